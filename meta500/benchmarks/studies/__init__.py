"""The studies: what a compiler, an abstraction, an adjoint and generated code cost, as commands.

One package per study; each has ``plan(settings)``, which gives the :class:`~.study.Study` with its pieces of
work, and ``sections(rows)``, which makes the report from the rows alone.
"""
