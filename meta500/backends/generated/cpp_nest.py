"""Prints the nest of one stage as a C++ function."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from meta500.backends.generated.affine import Affine, Guard
from meta500.backends.generated.cpp_expressions import Printer, condition, index
from meta500.backends.generated.expressions import Expr, substitute
from meta500.backends.generated.ir import MAX, Axis, Stage
from meta500.backends.generated.layout import EXTERNAL, Place
from meta500.backends.generated.nests import ADD, DOT, MAP, Nest


class Lines:
    """Text with indentation."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def add(self, text: str) -> None:
        self.lines.append("    " * self.depth + text if text else "")

    def open(self, text: str) -> None:
        self.add(f"{text} {{".lstrip())
        self.depth += 1

    def loop(self, name: str, size: int | str, step: int | str = 1) -> None:
        """Open a loop from 0 to ``size`` - 1."""
        advance = f"++{name}" if step == 1 else f"{name} += {step}"
        self.open(f"for (long {name} = 0; {name} < {size}; {advance})")

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.add("}")


def nest_body(nest: Nest, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    """The body of the function: ``lo`` and ``hi`` bound the split axis."""
    out = Lines()
    out.depth = 1
    printer = Printer(places, names)
    opened = _strips(out, nest) + _loops(out, nest.outer, nest.split, [])
    if nest.form in (MAP, ADD):
        _map(out, nest, printer)
    elif nest.form == DOT:
        _dot(out, nest, printer)
    else:
        _row(out, nest, printer)
    out.close(opened)
    return out.lines


def _range(axis: Axis, split: Axis | None) -> tuple[str, str]:
    return ("lo", "hi") if split is not None and axis.name == split.name else ("0", str(axis.size))


def _strips(out: Lines, nest: Nest) -> int:
    """Open the loop over strips of the vectorised axis, if it goes in strips."""
    if not nest.strip:
        return 0
    assert nest.vector is not None
    j, (low, high) = nest.vector.name, _range(nest.vector, nest.split)
    out.open(f"for (long {j}_first = {low}; {j}_first < {high}; {j}_first += {nest.strip})")
    out.add(f"const long {j}_last = meta500::sooner({j}_first + {nest.strip}, {high});")
    return 1


def _vector_range(nest: Nest) -> tuple[str, str]:
    """Ends of the vectorised axis inside of all other loops."""
    assert nest.vector is not None
    j = nest.vector.name
    return (f"{j}_first", f"{j}_last") if nest.strip else _range(nest.vector, nest.split)


def _loops(out: Lines, axes: Sequence[Axis], split: Axis | None, guards: list[Guard]) -> int:
    for axis in axes:
        low, high = _range(axis, split)
        out.open(f"for (long {axis.name} = {low}; {axis.name} < {high}; ++{axis.name})")
    return len(axes)


def _map(out: Lines, nest: Nest, printer: Printer) -> None:
    stage = nest.stage
    opened, bounds = _conditions(out, stage.guards, stage, nest.vector)
    _prefetched_rows(out, nest, printer)
    adds = nest.form == ADD
    if nest.vector is not None:
        opened += _vector_loop(out, nest.vector, _vector_range(nest), bounds, vectors=not nest.atomic)
    for point in points(nest.unrolled):
        write = stage.write.substitute(point)
        inner = substitute(stage.value, point)
        guards = [g.substitute(point) for g in stage.guards if _inside(g, nest)]
        if guards:
            out.open(f"if ({' && '.join(condition(g, stage.sizes) for g in guards)})")
        elif nest.unrolled:
            out.open("")
        printer.loaded.clear()
        _declare(out, printer, inner)
        if nest.atomic:
            out.add("#pragma omp atomic")
        sign = "+=" if adds else "="
        out.add(f"{printer.element(write)} {sign} {_stored(printer.real(inner), stage, printer)};")
        if guards or nest.unrolled:
            out.close()
    out.close(opened)


# Shorter rows are not worth asking for ahead of time; so many rows ahead is early enough for memory.
_LONG_ROW, _ROWS_AHEAD = 64, 4
_LINE_BYTES = 64


def _prefetched_rows(out: Lines, nest: Nest, printer: Printer) -> None:
    """Ask for the rows of the caller's arrays that are read next: those come from memory."""
    vector, split = nest.vector, nest.split
    if vector is None or split is None or split == vector or vector.size < _LONG_ROW or nest.unrolled:
        return
    for access in dict.fromkeys(load.access for load in nest.stage.loads()):
        place = printer.places[access.tensor]
        address = place.address(access)
        if place.kind != EXTERNAL or address.coefficient(vector.name) != 1 or split.name not in address.axes:
            continue
        at = index(address.substitute({split.name: Affine.axis(split.name, 1, _ROWS_AHEAD)}))
        name = printer.names[access.tensor]
        out.loop(vector.name, vector.size, f"{_LINE_BYTES} / sizeof(*{name})")
        out.add(f"META500_PREFETCH_FAR({name} + {at});")
        out.close()


def _declare(out: Lines, printer: Printer, expr: Expr | None) -> None:
    for line in printer.declare(expr):
        out.add(line)


def _inside(guard: Guard, nest: Nest) -> bool:
    """Whether a guard must be tested inside of the vectorised loop."""
    return any(a.name in guard.index.axes for a in nest.unrolled)


def _stored(value: str, stage: Stage, printer: Printer) -> str:
    c_type = printer.places[stage.write.tensor].c_type
    return value if c_type == "real" else f"{c_type}({value})"


def _conditions(
    out: Lines, guards: Sequence[Guard], stage: Stage, vector: Axis | None
) -> tuple[int, list[Guard]]:
    """Open an if for guards without the vectorised axis; return those that bound it."""
    outside = [g for g in guards if vector is None or vector.name not in g.index.axes]
    bounds = [g for g in guards if g not in outside]
    if outside:
        out.open(f"if ({' && '.join(condition(g, stage.sizes) for g in outside)})")
    return len(outside[:1]), bounds


def _vector_loop(
    out: Lines,
    axis: Axis,
    ends: tuple[str, str],
    bounds: Sequence[Guard],
    reduction: str = "",
    vectors: bool = True,
) -> int:
    """Open the loop along an axis between two ends and within bounds; a vector loop unless said otherwise."""
    low, high = ends
    for guard in bounds:
        step = guard.index.coefficient(axis.name)
        rest = index(guard.index - Affine.axis(axis.name, step))
        if step > 0:
            low = f"meta500::later({low}, meta500::quotient_up({guard.low} - ({rest}), {step}))"
            high = f"meta500::sooner({high}, meta500::quotient_up({guard.high} - ({rest}), {step}))"
        else:
            low = f"meta500::later({low}, meta500::quotient_up(({rest}) - {guard.high} + 1, {-step}))"
            high = f"meta500::sooner({high}, meta500::quotient_up(({rest}) - {guard.low} + 1, {-step}))"
    if bounds:
        out.open("")
        out.add(f"const long {axis.name}_begin = {low}, {axis.name}_end = {high};")
        low, high = f"{axis.name}_begin", f"{axis.name}_end"
    if vectors:
        out.add(f"#pragma omp simd{reduction}")
    out.open(f"for (long {axis.name} = {low}; {axis.name} < {high}; ++{axis.name})")
    return 2 if bounds else 1


def points(axes: Sequence[Axis]) -> Iterator[dict[str, Affine]]:
    """All values of some axes."""
    for values in itertools.product(*(range(axis.size) for axis in axes)):
        yield {axis.name: Affine((), v) for axis, v in zip(axes, values, strict=True)}


def _start(stage: Stage, printer: Printer, atomic: bool = False) -> str:
    """What a sum or maximum begins with."""
    if atomic:
        return "real(0)"
    if stage.onto:
        return printer.element(stage.write)
    if stage.initial is not None:
        return printer.real(stage.initial)
    return "real(-INFINITY)" if stage.combine == MAX else "real(0)"


def _written_where(nest: Nest) -> list[Guard]:
    """Guards of the element that is written, where a sum is added onto what is there.

    Beyond them is another element, or none: it must not be written, not even with what it was.
    """
    stage = nest.stage
    kept = {axis.name for axis in stage.kept}
    adds = stage.onto or nest.private or nest.atomic
    return [g for g in stage.guards if kept.issuperset(g.index.axes)] if adds else []


def _row(out: Lines, nest: Nest, printer: Printer) -> None:
    stage, vector = nest.stage, nest.vector
    assert vector is not None
    j, span = vector.name, _vector_range(nest)
    at = f"{j} - {j}_first" if nest.strip else j
    written = _written_where(nest)
    wrapped, ends = _conditions(out, written, stage, vector)
    out.open("")
    out.add(f"alignas(64) real row[{nest.strip or vector.size}];")
    if stage.winner:
        out.add(f"alignas(64) std::int32_t winner[{nest.strip or vector.size}];")
    beginning = _vector_loop(out, vector, span, ends)
    out.add(f"row[{at}] = {_start(stage, printer, nest.atomic)};")
    if stage.winner:
        out.add(f"winner[{at}] = -1;")
    out.close(beginning)
    opened = _loops(out, nest.inner, nest.split, [])
    inside = [g for g in stage.guards if g in ends or g not in written]
    conditions, bounds = _conditions(out, inside, stage, vector)
    opened += conditions
    opened += _vector_loop(out, vector, span, bounds)
    printer.loaded.clear()
    _declare(out, printer, stage.value)
    value = printer.real(stage.value)
    if stage.combine != MAX:
        out.add(f"row[{at}] += {value};")
    elif stage.winner:
        out.add(f"const real term = {value};")
        out.add(f"const bool better = winner[{at}] < 0 || term > row[{at}] || term != term;")
        out.add(f"row[{at}] = better ? term : row[{at}];")
        out.add(f"winner[{at}] = better ? std::int32_t({index(stage.winner[1])}) : winner[{at}];")
    else:
        out.add(f"row[{at}] = meta500::maximum(row[{at}], {value});")
    out.close(opened)
    ending = _vector_loop(out, vector, span, ends, vectors=not nest.atomic)
    _finish(out, nest, printer, f"row[{at}]", f"winner[{at}]")
    out.close(1 + ending + wrapped)


def _finish(out: Lines, nest: Nest, printer: Printer, total: str, winner: str) -> None:
    stage = nest.stage
    if nest.private or nest.atomic:
        if nest.atomic:
            out.add("#pragma omp atomic")
        out.add(f"{printer.element(stage.write)} += {total};")
        return
    printer.loaded.clear()
    _declare(out, printer, stage.finish)
    value = total if stage.finish is None else printer.real(stage.finish, total)
    out.add(f"{printer.element(stage.write)} = {_stored(value, stage, printer)};")
    if stage.winner:
        out.add(f"{printer.element(stage.winner[0])} = {winner};")


def _dot(out: Lines, nest: Nest, printer: Printer) -> None:
    stage, vector = nest.stage, nest.vector
    written = _written_where(nest)
    wrapped, _ = _conditions(out, written, stage, None)
    out.open("")
    out.add(f"real total = {_start(stage, printer, nest.atomic)};")
    if stage.winner:
        out.add("std::int32_t winner = -1;")
    opened = _loops(out, nest.inner, nest.split, [])
    inside = [g for g in stage.guards if g not in written]
    conditions, bounds = _conditions(out, inside, stage, vector)
    opened += conditions
    printer.loaded.clear()
    if stage.combine == MAX:
        if vector is not None:
            # No vector loop: the winner is the first of equals, or the last NaN.
            opened += _vector_loop(out, vector, _range(vector, nest.split), bounds, vectors=False)
        _declare(out, printer, stage.value)
        value = printer.real(stage.value)
        if stage.winner:
            out.add(f"const real term = {value};")
            out.open("if (winner < 0 || term > total || term != term)")
            out.add("total = term;")
            out.add(f"winner = std::int32_t({index(stage.winner[1])});")
            out.close()
        else:
            out.add(f"total = meta500::maximum(total, {value});")
    elif vector is not None:
        out.add("real sum = 0;")
        inner = _vector_loop(out, vector, _range(vector, nest.split), bounds, " reduction(+ : sum)")
        _declare(out, printer, stage.value)
        out.add(f"sum += {printer.real(stage.value)};")
        out.close(inner)
        out.add("total += sum;")
    else:
        _declare(out, printer, stage.value)
        out.add(f"total += {printer.real(stage.value)};")
    out.close(opened)
    _finish(out, nest, printer, "total", "winner")
    out.close(1 + wrapped)


def merge_body(
    stage: Stage, partial: Place, places: Mapping[str, Place], names: Mapping[str, str], split: Axis | None
) -> list[str]:
    """The body of the function that adds up the private copies of a sum.

    ``part`` points to the first copy, ``pitch`` elements lie between copies, ``copies`` is their number.
    """
    out = Lines()
    out.depth = 1
    printer = Printer(places, names)
    axes = stage.kept
    opened = _loops(out, axes, split, [])
    out.add(f"const long at = {index(partial.address(stage.write))};")
    out.add("real total = 0;")
    out.add("for (int copy = 0; copy < copies; ++copy) total += part[copy * pitch + at];")
    merge_end(out, stage, printer)
    out.close(opened)
    return out.lines


def merge_end(out: Lines, stage: Stage, printer: Printer) -> None:
    """What becomes of a finished ``total``."""
    if stage.onto or stage.initial is not None:
        out.add(f"total += {_start(stage, printer)};")
    value = "total" if stage.finish is None else printer.real(stage.finish, "total")
    out.add(f"{printer.element(stage.write)} = {_stored(value, stage, printer)};")
