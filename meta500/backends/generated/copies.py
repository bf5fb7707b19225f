"""Copies of tensors into another storage: with zeros around them, or handed out to the caller."""

from __future__ import annotations

from dataclasses import replace

from meta500.backends.generated.affine import indices
from meta500.backends.generated.expressions import Access, Expr, Load, rewrite
from meta500.backends.generated.ir import CONSTANT, INPUT, PARAMETER, SET, VALUE, Axis, Program, Stage


def with_copies(program: Program) -> Program:
    """Inputs that stencils read past their edge are copied into storage with zeros around it.

    Every reader gets a copy of its own: one that is used at once may roll along with a sweep, one that is
    kept from the forward to the backward pass fills the memory of a whole image. Outputs that stencils read
    are computed there too, and copied out.
    """
    program = replace(program, tensors=dict(program.tensors), stages=list(program.stages))
    outside = {name for name, t in program.tensors.items() if t.role == INPUT and len(t.shape) == 4}
    for name in sorted(outside):
        for reader in [s for s in program.stages if _reads_past_edge(s, name)]:
            inner = program.unique(f"{name}.rows")
            program.tensors[inner] = replace(program.tensors[name], name=inner, role=VALUE)
            at = program.stages.index(reader)
            copy = copy_stage(program, name, inner)
            program.stages[at : at + 1] = [copy, renamed_loads(reader, name, inner)]
    handed = dict.fromkeys(
        [*program.outputs.values(), *program.gradients.values(), *program.updates.values()]
    )
    copied: dict[str, str] = {}
    for name in handed:
        tensor = program.tensors[name]
        if tensor.role in (INPUT, PARAMETER, CONSTANT) or any(
            _reads_past_edge(s, name) for s in program.stages
        ):
            copied[name] = _copied_out(program, name)
    for pairs in (program.outputs, program.gradients, program.updates):
        for key, name in list(pairs.items()):
            if name in copied:
                pairs[key] = copied[name]
    return program


def _reads_past_edge(stage: Stage, name: str) -> bool:
    """Whether a guard protects a load of the tensor in a sum of products."""
    if stage.combine != "sum":
        return False
    for load in stage.loads():
        if load.access.tensor == name and any(
            guard.index in load.access.indices[2:] for guard in stage.guards
        ):
            return True
    return False


def renamed_loads(stage: Stage, old: str, new: str) -> Stage:
    """``stage`` reading another tensor."""

    def change(e: Expr) -> Expr | None:
        return (
            Load(replace(e.access, tensor=new), e.held)
            if isinstance(e, Load) and e.access.tensor == old
            else None
        )

    return replace(
        stage,
        value=rewrite(stage.value, change),
        initial=None if stage.initial is None else rewrite(stage.initial, change),
        finish=None if stage.finish is None else rewrite(stage.finish, change),
    )


def renamed(stage: Stage, old: str, new: str) -> Stage:
    """``stage`` reading and writing another tensor."""

    def moved(access: Access) -> Access:
        return replace(access, tensor=new) if access.tensor == old else access

    winner = stage.winner and (moved(stage.winner[0]), stage.winner[1])
    return replace(renamed_loads(stage, old, new), write=moved(stage.write), winner=winner)


def copy_stage(program: Program, source: str, target: str) -> Stage:
    """``target`` becomes ``source``."""
    shape = program.tensors[source].shape
    axes = tuple(Axis(f"d{i}", size) for i, size in enumerate(shape) if size > 1)
    at = indices(f"d{i}" if size > 1 else 0 for i, size in enumerate(shape))
    return Stage(
        program.unique_stage(target),
        f"copy of {source}",
        axes,
        Access(target, at),
        Load(Access(source, at)),
        SET,
    )


def _copied_out(program: Program, name: str) -> str:
    outer = program.unique(f"{name}.out")
    program.tensors[outer] = replace(program.tensors[name], name=outer, role=VALUE)
    program.stages.append(copy_stage(program, name, outer))
    return outer
