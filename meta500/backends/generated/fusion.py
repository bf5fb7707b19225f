"""Joins stages: copies disappear, elementwise stages become the end of the sums that feed them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import (
    Access,
    Constant,
    Expr,
    Load,
    Result,
    add,
    loads,
    rewrite,
    substitute,
)
from meta500.backends.generated.ir import GATHER, GRADIENT, REAL, SET, SUM, VALUE, Program, Stage
from meta500.backends.generated.transposition import covers


def fused(program: Program) -> Program:
    """``program`` with the same results from fewer stages and tensors."""
    result = replace(program, tensors=dict(program.tensors), stages=list(program.stages))
    kept = set(result.outputs.values()) | set(result.gradients.values()) | set(result.updates.values())
    kept |= set(result.faults)
    result.stages = [_plain(stage) for stage in result.stages]
    _spread_constants(result, kept)
    _read_through_copies(result, kept)
    _write_into_joins(result, kept)
    result.stages = [_plain(stage) for stage in result.stages]
    while _join_elementwise(result, kept):
        result.stages = [_plain(stage) for stage in result.stages]
    used = {name for stage in result.stages for name in (*stage.reads(), *stage.writes())} | kept
    result.tensors = {n: t for n, t in result.tensors.items() if n in used or t.role == "input"}
    return result


def _plain(stage: Stage) -> Stage:
    """A sum over nothing as an assignment."""
    if (
        stage.combine != SUM
        or stage.reduced
        or stage.onto
        or stage.guards
        or stage.method not in ("", GATHER)
    ):
        return stage
    value = stage.value if stage.initial is None else add(stage.initial, stage.value)
    if stage.finish is not None:
        finish = stage.finish
        value = rewrite(finish, lambda e: value if isinstance(e, Result) else None)
    return replace(stage, combine=SET, value=value, initial=None, finish=None)


def _spread_constants(program: Program, kept: set[str]) -> None:
    """Numbers instead of tensors that have one value everywhere."""
    for stage in list(program.stages):
        name = stage.write.tensor
        if stage.combine != SET or not isinstance(stage.value, Constant) or stage.guards or name in kept:
            continue
        if not _internal(program, name) or program.tensors[name].dtype != REAL:
            continue
        if len([s for s in program.stages if name in s.writes()]) > 1:
            continue
        if not covers([stage], program.tensors[name].shape):
            continue
        change = functools.partial(_number_for, name=name, value=stage.value)
        program.stages = [_rewritten(s, change) for s in program.stages if s is not stage]


def _number_for(e: Expr, name: str, value: Constant) -> Expr | None:
    return value if isinstance(e, Load) and e.access.tensor == name else None


# -- copies ------------------------------------------------------------------------------------------


def _is_copy(stage: Stage) -> bool:
    return stage.combine == SET and isinstance(stage.value, Load) and not stage.guards and not stage.finish


def _inverse(access: Access, values: Sequence[Affine]) -> dict[str, Affine] | None:
    """What the axes of ``access`` must be for its indices to be ``values``; None unless they are plain."""
    found: dict[str, Affine] = {}
    for index, value in zip(access.indices, values, strict=True):
        if len(index.terms) != 1 or index.terms[0][1] != 1 or index.axes[0] in found:
            if index.terms:
                return None
            continue
        found[index.axes[0]] = value - index.constant
    return found


def _read_through_copies(program: Program, kept: set[str]) -> None:
    """Read the source of a whole copy instead of the copy; what adds onto the copy begins with the source."""
    for copy in list(program.stages):
        target = copy.write.tensor
        if not any(copy is stage for stage in program.stages):
            continue  # changed on the way
        if not _is_copy(copy) or target in kept or not _internal(program, target):
            continue
        assert isinstance(copy.value, Load)
        source = copy.value.access
        if program.tensors[source.tensor].dtype != program.tensors[target].dtype:
            continue
        writers = [s for s in program.stages if target in s.writes()]
        others = [s for s in writers if s is not copy]
        if writers[0] is not copy or not covers([copy], program.tensors[target].shape):
            continue
        if others and not (_one_group(others, program, target) and all(o.onto for o in others)):
            continue
        if any(o.initial is not None or o.combine != "sum" for o in others):
            continue
        if _written_after(program, copy, source.tensor):
            continue

        def through(access: Access, copy: Stage = copy, source: Access = source) -> Access | None:
            values = _inverse(copy.write, access.indices)
            return None if values is None else source.substitute(values)

        readers = [
            s for s in program.stages if s is not copy and target in [x.access.tensor for x in s.loads()]
        ]
        if others and readers and program.stages.index(readers[0]) < program.stages.index(others[-1]):
            continue
        if through(copy.write) is None:
            continue
        changed: dict[int, Stage] = {}
        for stage in others:
            begin = through(stage.write)
            if begin is None:
                break
            changed[id(stage)] = replace(stage, onto=False, initial=Load(begin))
        else:
            if not others:
                for stage in readers:
                    changed[id(stage)] = _with_loads(stage, target, through)
            program.stages = [changed.get(id(s), s) for s in program.stages if s is not copy]


def _write_into_joins(program: Program, kept: set[str]) -> None:
    """Let a value that is copied into a part of a larger tensor be that part from the beginning."""
    while any(_moved_into(program, copy, kept) for copy in list(program.stages)):
        pass


def _moved_into(program: Program, copy: Stage, kept: set[str]) -> bool:
    """Do that for one copy, if it can be done."""
    target = copy.write.tensor
    if not _is_copy(copy) or not _internal(program, target) or target in kept:
        return False
    assert isinstance(copy.value, Load)
    source = copy.value.access
    if source.tensor in kept or not _internal(program, source.tensor) or source.tensor == target:
        return False
    if program.tensors[source.tensor].dtype != program.tensors[target].dtype:
        return False
    shape = program.tensors[source.tensor].shape
    whole = replace(copy, write=source)
    if not covers([whole], shape) or _inverse(source, source.indices) is None:
        return False
    if not set(copy.write.axes) <= set(source.axes):
        return False  # its elements are copied to several places
    pieces = [s for s in program.stages if target in s.writes()]
    if not all(_is_copy(piece) for piece in pieces) and not all(
        piece.combine == SET or not piece.onto for piece in pieces
    ):
        return False
    if len(copy.write.indices) != len(source.indices):
        return False

    def placed(access: Access, copy: Stage = copy, source: Access = source) -> Access | None:
        values = _inverse(source, access.indices)
        return None if values is None else copy.write.substitute(values)

    touching = [
        s
        for s in program.stages
        if s is not copy and (source.tensor in s.writes() or source.tensor in s.reads())
    ]
    if any(s.winner is not None and s.winner[0].tensor == source.tensor for s in touching):
        return False
    name = source.tensor
    changed = {}
    for stage in touching:
        moved = _with_loads(stage, name, placed)
        if stage.write.tensor == name:
            place = placed(stage.write)
            assert place is not None
            moved = replace(moved, write=place)
        changed[id(stage)] = moved
    program.stages = [changed.get(id(s), s) for s in program.stages if s is not copy]
    del program.tensors[name]
    return True


def _with_loads(stage: Stage, tensor: str, through: object) -> Stage:
    """``stage`` with every load of ``tensor`` replaced by the access that ``through`` gives."""

    def change(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.access.tensor == tensor:
            access = through(e.access)  # type: ignore[operator]
            assert access is not None
            return Load(access, e.held)
        return None

    return _rewritten(stage, change)


def _rewritten(stage: Stage, change: Callable[[Expr], Expr | None]) -> Stage:
    """``stage`` with its expressions rewritten."""
    return replace(
        stage,
        value=rewrite(stage.value, change),
        initial=None if stage.initial is None else rewrite(stage.initial, change),
        finish=None if stage.finish is None else rewrite(stage.finish, change),
    )


def _internal(program: Program, name: str) -> bool:
    return program.tensors[name].role in (VALUE, GRADIENT)


def _written_after(program: Program, stage: Stage, tensor: str) -> bool:
    position = program.stages.index(stage)
    return any(tensor in later.writes() for later in program.stages[position:])


def _one_group(stages: Sequence[Stage], program: Program, tensor: str) -> bool:
    """Whether stages together write every element of a tensor exactly once."""
    return covers(stages, program.tensors[tensor].shape)


# -- elementwise stages ------------------------------------------------------------------------------


def _join_elementwise(program: Program, kept: set[str]) -> bool:
    """Join one elementwise stage with what feeds it; False if there is none."""
    readers = program.readers()
    for position, stage in enumerate(program.stages):
        if (
            stage.combine != SET
            or stage.guards
            or stage.write.tensor in [x.access.tensor for x in stage.loads()]
        ):
            continue
        for load in loads(stage.value):
            name = load.access.tensor
            if name in kept or not _internal(program, name):
                continue
            if any(p != position and not _adds_only(program.stages[p], name) for p in readers[name]):
                continue
            if _join(program, position, stage, load):
                return True
    return False


def _adds_only(stage: Stage, name: str) -> bool:
    """Whether a stage reads a tensor only because it adds onto it."""
    return stage.write.tensor == name and name not in {load.access.tensor for load in stage.loads()}


def _join(program: Program, position: int, stage: Stage, load: Load) -> bool:
    name = load.access.tensor
    same = [x for x in loads(stage.value) if x.access.tensor == name]
    if len(same) != 1 or not _same_elements(stage, load, program):
        return False
    writers = [p for p, s in enumerate(program.stages) if name in s.writes()]
    if any(p > position for p in writers):
        return False
    if any(s.winner is not None and s.winner[0].tensor == name for s in program.stages):
        return False
    group = _last_group(program, name, writers)
    if group is None:
        return False
    earlier = [p for p in writers if p not in group]
    if any(program.stages[p].onto for p in group) and not earlier:
        return False
    first = min(group)
    others = {x.access.tensor for x in stage.loads()} - {name}
    # What the joined stage reads must be there when the sums are finished.
    if any(p >= first for other in others for p in program.writers().get(other, [])):
        return False
    if any(stage.write.tensor in program.stages[p].writes() for p in range(first, position)):
        return False
    for number, p in enumerate(group):
        name_of_piece = stage.name if len(group) == 1 else f"{stage.name}.{number}"
        joined = _finished(program.stages[p], stage, load, bool(earlier))
        program.stages[p] = replace(joined, name=name_of_piece)
    del program.stages[position]
    if not earlier:
        del program.tensors[name]
    return True


def _same_elements(stage: Stage, load: Load, program: Program) -> bool:
    """Whether every element of the loaded tensor is read once, for one written element."""
    values = _inverse(load.access, load.access.indices)
    if values is None or set(values) != {axis.name for axis in stage.axes}:
        return False
    return covers([replace(stage, write=load.access)], program.tensors[load.access.tensor].shape)


def _last_group(program: Program, name: str, writers: list[int]) -> list[int] | None:
    """The last stages that together write all of a tensor."""
    for count in range(1, len(writers) + 1):
        group = writers[-count:]
        if _one_group([program.stages[p] for p in group], program, name):
            return group
    return None


def _finished(producer: Stage, stage: Stage, load: Load, again: bool) -> Stage:
    """``producer`` writing what ``stage`` makes of its result."""
    values = _inverse(load.access, producer.write.indices)
    assert values is not None
    ends = _apply(stage.value, load, values)
    write = stage.write.substitute(values)
    origin = f"{producer.origin}; {stage.origin}"
    if producer.combine == SET:
        value = rewrite(ends, lambda e: producer.value if isinstance(e, Result) else None)
        return replace(producer, name=stage.name, origin=origin, write=write, value=value)
    finish = ends
    if producer.finish is not None:
        before = producer.finish
        finish = rewrite(ends, lambda e: before if isinstance(e, Result) else None)
    initial = producer.initial
    if producer.onto:
        assert again and initial is None
        initial = Load(producer.write)
    return replace(
        producer, name=stage.name, origin=origin, write=write, finish=finish, initial=initial, onto=False
    )


def _apply(expr: Expr, load: Load, values: Mapping[str, Affine]) -> Expr:
    """``expr`` over other axes, with ``load`` replaced by the result."""

    def change(e: Expr) -> Expr | None:
        return Result() if e == load else None

    return substitute(rewrite(expr, change), values)
