"""The reading of ``key=value`` pairs, which several verbs share."""

from meta500.benchmarks.options import pairs

__all__ = ["pairs"]
