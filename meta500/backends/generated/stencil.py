"""Stencils given as text: one assignment to an element becomes one stage.

Example::

    program = stencil(
        "v[i, j] = a * u[i, j] + b * (u[i-1, j] + u[i+1, j] + u[i, j-1] + u[i, j+1])",
        {"u": (64, 64), "a": (), "b": ()},
    )
    adjoint = differentiate(program, "v", ["u", "a"], cotangent="v_bar")
    values = run(adjoint, {"u": u, "a": 0.6, "b": 0.1, "v_bar": v_bar})
    du = values[adjoint.gradients["u"]]

Axes that only the right-hand side has are summed over: ``v[i] = b[i] + w[r] * u[i+r]`` adds b[i] once and the
product for every r. Terms are ``+``, ``-``, ``*``, ``/``, ``**`` with whole exponents, the functions of
:mod:`.expressions`, ``max``, ``min`` and ``where(x < y, a, b)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from meta500.backends.generated.affine import Affine, Guard, affine, indices
from meta500.backends.generated.expressions import ZERO, Access, Apply, Expr, Load, add, loads, neg, rewrite
from meta500.backends.generated.index_maps import frame
from meta500.backends.generated.ir import (
    INPUT,
    PARAMETER,
    SET,
    SUM,
    Axis,
    Program,
    Stage,
    Tensor,
    leaves,
    without_unit_axes,
)
from meta500.backends.generated.stencil_text import Text
from meta500.errors import UserError, choose

INTERIOR, ZEROS = "interior", "zero"


def stencil(
    text: str,
    shapes: Mapping[str, Sequence[int]],
    *,
    parameters: Iterable[str] = (),
    constants: Mapping[str, float] | None = None,
    extents: Mapping[str, int] | None = None,
    boundary: str = INTERIOR,
) -> Program:
    """The program of one stencil.

    Args:
        text: one assignment, such as ``"v[i] = w[r] * u[i + 2*r - 1]"``; indices are whole multiples of axes.
        shapes: of all tensors that are read, () for numbers; and of the one that is written, unless it is the
            grid of what is read at i, or at i plus something.
        parameters: tensors with the role of parameters; the others are inputs.
        constants: names that stand for numbers.
        extents: sizes of axes that no tensor tells.
        boundary: "interior" computes the elements for which all reads are inside, the others are 0; "zero"
            computes all, what is read outside of a tensor is 0.

    Raises:
        UserError: the text or the shapes are wrong; the message has the text and the column.
    """
    choose("boundary of a stencil", boundary, (INTERIOR, ZEROS))
    source = Text(text, dict(constants or {}), shapes)
    target, value = source.target, source.value
    _check_parameters(source, parameters)
    program = Program(target.tensor)
    reads = {load.access.tensor: load.access for load in loads(value)}
    for name in reads:
        role = PARAMETER if name in set(parameters) else INPUT
        program.tensors[name] = Tensor(name, tuple(shapes[name]), role=role)
    kept = [index.axes[0] for index in target.indices]
    sizes = _sizes(source, program, kept, shapes, extents or {})
    shape = tuple(sizes[a] for a in kept)
    program.tensors[target.tensor] = Tensor(target.tensor, shape)
    program.outputs[target.tensor] = target.tensor
    initial, term = _terms(source, value, set(sizes) - set(kept))
    stage = Stage(
        name=target.tensor,
        origin=f"stencil {text.strip()}",
        axes=tuple(Axis(a, sizes[a]) for a in sizes),
        write=target,
        value=term,
        combine=SUM if len(sizes) > len(kept) else SET,
        initial=initial,
    )
    stages = _interior(source, program, stage) if boundary == INTERIOR else _zeros(program, stage)
    program.stages = [without_unit_axes(one).simplified() for one in stages]
    for one in program.stages:
        wrong = leaves(one, program.tensors)
        if wrong:
            raise UserError(f"stencil '{text}': {wrong}")
    return program


def _check_parameters(source: Text, parameters: Iterable[str]) -> None:
    read = {load.access.tensor for load in loads(source.value)}
    for name in parameters:
        if name not in read:
            raise UserError(f"stencil '{source.text}': parameter '{name}' is not read")


def _sizes(
    source: Text,
    program: Program,
    kept: list[str],
    shapes: Mapping[str, Sequence[int]],
    extents: Mapping[str, int],
) -> dict[str, int]:
    """The size of every axis, those of the result first: given, or that of a dimension that it runs along."""
    found: dict[str, int] = {}
    if source.target.tensor in shapes:
        shape = shapes[source.target.tensor]
        if len(shape) != len(kept):
            raise source.wrong(f"'{source.target.tensor}' has shape {list(shape)}", source.target_node)
        found = dict(zip(kept, shape, strict=True))
    for name, size in extents.items():
        if found.setdefault(name, size) != size:
            raise UserError(f"stencil '{source.text}': axis {name} has sizes {found[name]} and {size}")
    plain: dict[str, set[int]] = {}
    shifted: dict[str, set[int]] = {}
    for load in loads(source.value):
        for index, size in zip(load.access.indices, program.tensors[load.access.tensor].shape, strict=True):
            if index.is_axis:
                plain.setdefault(index.axes[0], set()).add(size)
            own = [name for name in index.axes if name in kept]
            if len(own) == 1 and index.coefficient(own[0]) == 1:
                shifted.setdefault(own[0], set()).add(size)
    plain = {**shifted, **plain}
    axes = dict.fromkeys([*kept, *source.axes])
    for name in axes:
        if name not in found and name not in plain:
            raise source.wrong(
                f"the size of axis {name} is not known: give the shape of '{source.target.tensor}' or "
                "extents",
                source.axes.get(name, source.target_node),
            )
        # Of an axis that several tensors tell, the smallest keeps all reads inside.
        found.setdefault(name, min(plain.get(name, {0})))
        if found[name] < 1:
            raise UserError(f"stencil '{source.text}': axis {name} has size {found[name]}")
        if name not in kept and len(plain.get(name, ())) > 1:
            raise source.wrong(
                f"axis {name} is summed over and has sizes {sorted(plain[name])}", source.axes[name]
            )
    return {name: found[name] for name in axes}


# -- sums ----------------------------------------------------------------------------------------------------


def _axes_of(expr: Expr) -> set[str]:
    return Text.axes_of(expr)


def _terms(source: Text, value: Expr, summed: set[str]) -> tuple[Expr | None, Expr]:
    """What is added once, and what is summed over the axes that the result lacks."""
    if not summed:
        return None, value
    once: Expr | None = None
    each: Expr | None = None
    for sign, term in _addends(value, 1):
        signed = term if sign > 0 else neg(term)
        own = _axes_of(term) & summed
        if not own:
            once = signed if once is None else add(once, signed)
        elif own == summed:
            _check_sum(source, term, summed)
            each = signed if each is None else add(each, signed)
        else:
            raise UserError(
                f"stencil '{source.text}': the term {term} is summed over {_list(own)}, another one over "
                f"{_list(summed)}; write one stencil for each"
            )
    assert each is not None
    return once, each


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _addends(expr: Expr, sign: int) -> list[tuple[int, Expr]]:
    """The terms of the outermost sum, with signs."""
    if isinstance(expr, Apply) and expr.function in ("add", "sub"):
        second = -sign if expr.function == "sub" else sign
        return _addends(expr.arguments[0], sign) + _addends(expr.arguments[1], second)
    if isinstance(expr, Apply) and expr.function == "neg":
        return _addends(expr.arguments[0], -sign)
    return [(sign, expr)]


def _check_sum(source: Text, term: Expr, summed: set[str]) -> None:
    """Refuse sums inside of a term of which only one side has a summed axis: how often to add is not said."""
    if not isinstance(term, Apply):
        return
    if term.function in ("add", "sub"):
        sides = [_axes_of(side) & summed for side in term.arguments]
        if sides[0] != sides[1]:
            raise UserError(
                f"stencil '{source.text}': in {term} one side is summed over {_list(sides[0]) or 'nothing'}, "
                f"the other over {_list(sides[1]) or 'nothing'}; multiply it out"
            )
    for argument in term.arguments:
        _check_sum(source, argument, summed)


# -- boundaries ----------------------------------------------------------------------------------------------


def _interior(source: Text, program: Program, stage: Stage) -> list[Stage]:
    """Only the elements for which all reads are inside; zeros around them."""
    sizes, kept = stage.sizes, [index.axes[0] for index in stage.write.indices]
    inner = {name: (0, sizes[name]) for name in kept}
    for load in stage.loads():
        shape = program.tensors[load.access.tensor].shape
        for index, size in zip(load.access.indices, shape, strict=True):
            own = [name for name in index.axes if name in inner]
            rest = Affine.of({a: c for a, c in index.terms if a not in inner}, index.constant)
            low, high = rest.bounds(sizes)
            if len(own) > 1:
                whole_low, whole_high = index.bounds(sizes)
                if whole_low < 0 or whole_high >= size:
                    raise UserError(
                        f"stencil '{source.text}': the interior for {load.access} is no box; "
                        "use boundary='zero'"
                    )
            elif own:
                step = index.coefficient(own[0])
                # 0 <= step * i + rest < size for the smallest and largest rest.
                first = -low / step if step > 0 else (size - 1 - high) / step
                last = (size - 1 - high) / step if step > 0 else -low / step
                start, stop = inner[own[0]]
                inner[own[0]] = (max(start, math.ceil(first)), min(stop, math.floor(last) + 1))
            elif low < 0 or high >= size:
                raise UserError(f"stencil '{source.text}': {load.access} leaves shape {list(shape)}")
    for name, (start, stop) in inner.items():
        if start >= stop:
            raise UserError(f"stencil '{source.text}': no value of {name} keeps all reads inside")
    shape = program.tensors[stage.write.tensor].shape
    around = [_filled(stage, box, kept) for box in frame(shape, [inner[name] for name in kept])]
    shifted = {name: Affine.axis(name) + start for name, (start, _) in inner.items()}
    axes = tuple(
        Axis(a.name, inner[a.name][1] - inner[a.name][0]) if a.name in inner else a for a in stage.axes
    )
    return [*around, stage.substitute(shifted, axes)]


def _filled(stage: Stage, box: Sequence[tuple[int, int]], kept: Sequence[str]) -> Stage:
    """Zeros in a part of the result."""
    return Stage(
        name=f"{stage.name}.boundary",
        origin=f"boundary of {stage.origin}",
        axes=tuple(Axis(name, last - first) for name, (first, last) in zip(kept, box, strict=True)),
        write=Access(
            stage.write.tensor, tuple(affine(n) + first for n, (first, _) in zip(kept, box, strict=True))
        ),
        value=ZERO,
    )


def _zeros(program: Program, stage: Stage) -> list[Stage]:
    """All elements. Guards, if the term vanishes with what leaves its tensor; else reads of padded copies."""
    sizes = stage.sizes
    outside: dict[Load, list[Guard]] = {}
    for load in stage.loads():
        shape = program.tensors[load.access.tensor].shape
        guards = [Guard(i, 0, n) for i, n in zip(load.access.indices, shape, strict=True)]
        guards = [guard for guard in guards if not guard.always(sizes)]
        if guards:
            outside[load] = guards
    once = [load for load in loads(stage.initial) if load in outside]
    together = len({tuple(guards) for guards in outside.values()}) <= 1
    if together and not once and all(_vanishes(stage.value, load) for load in outside):
        needed = tuple(guard for guards in outside.values() for guard in guards)
        return [replace(stage, guards=needed, combine=SUM if needed else stage.combine)]
    result: list[Stage] = []
    moved: dict[Expr, Expr] = {}
    for name in dict.fromkeys(load.access.tensor for load in outside):
        own = [load for load in stage.loads() if load.access.tensor == name]
        stages, changed = _padded(program, name, own, sizes)
        result += stages
        moved |= changed
    changed_stage = replace(
        stage,
        value=rewrite(stage.value, moved.get),
        initial=None if stage.initial is None else rewrite(stage.initial, moved.get),
    )
    return [*result, changed_stage]


def _vanishes(expr: Expr, load: Load) -> bool:
    """Whether the expression is 0 where the load is."""
    if expr == load:
        return True
    if not isinstance(expr, Apply):
        return False
    if expr.function in ("add", "sub"):
        return all(_vanishes(a, load) for a in expr.arguments)
    if expr.function == "mul":
        return any(_vanishes(a, load) for a in expr.arguments)
    return expr.function in ("neg", "div") and _vanishes(expr.arguments[0], load)


def _padded(
    program: Program, name: str, reads: Sequence[Load], sizes: Mapping[str, int]
) -> tuple[list[Stage], dict[Expr, Expr]]:
    """A copy of a tensor with zeros around it that covers all reads, and the reads of the copy."""
    shape = program.tensors[name].shape
    lows, highs = [0] * len(shape), [n - 1 for n in shape]
    for load in reads:
        for d, index in enumerate(load.access.indices):
            low, high = index.bounds(sizes)
            lows[d], highs[d] = min(lows[d], low), max(highs[d], high)
    full = [high - low + 1 for low, high in zip(lows, highs, strict=True)]
    copy = program.unique(f"{name}.padded")
    program.tensors[copy] = Tensor(copy, tuple(full))
    axes = {f"d{d}": n for d, n in enumerate(shape)}
    place = tuple(affine(a) - low for a, low in zip(axes, lows, strict=True))
    inside = Stage(
        name=copy,
        origin=f"{name} with zeros around it",
        axes=tuple(Axis(a, n) for a, n in axes.items()),
        write=Access(copy, place),
        value=Load(Access(name, indices(axes))),
    )
    inner = [(-low, -low + n) for low, n in zip(lows, shape, strict=True)]
    around = [_filled(inside, box, list(axes)) for box in frame(full, inner)]
    changed: dict[Expr, Expr] = {}
    for load in reads:
        at = tuple(index - low for index, low in zip(load.access.indices, lows, strict=True))
        changed[load] = Load(Access(copy, at))
    return [*around, inside], changed
