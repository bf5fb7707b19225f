"""Prints a pass of pixelwise stages as a C++ function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.cpp_expressions import Printer
from meta500.backends.generated.cpp_nest import Lines
from meta500.backends.generated.expressions import Access, Expr, loads, substitute
from meta500.backends.generated.ir import MAX, SET, Axis, Stage
from meta500.backends.generated.layout import Place
from meta500.backends.generated.pixelwise import COLUMNS, ROWS, Pixelwise, is_total

Point = dict[str, Affine]


def pixelwise_body(plan: Pixelwise, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    """The body of the function: ``lo`` and ``hi`` bound the rows."""
    out = Lines()
    out.depth = 1
    printer = Printer(places, names)
    totals: dict[tuple[int, Access], str] = {}
    for number, stage in enumerate(plan.stages):
        if is_total(stage):
            for point in _points(stage.kept):
                totals[number, stage.write.substitute(point)] = f"total{len(totals)}"
    for name in totals.values():
        out.add(f"real {name} = 0;")
    out.open(f"for (long {ROWS} = lo; {ROWS} < hi; ++{ROWS})")
    sums = [name.replace("total", "sum") for name in totals.values()]
    for name in sums:
        out.add(f"real {name} = 0;")
    out.add("#pragma omp simd" + (f" reduction(+ : {', '.join(sums)})" if sums else ""))
    out.open(f"for (long {COLUMNS} = 0; {COLUMNS} < {plan.columns.size}; ++{COLUMNS})")
    for number, stage in enumerate(plan.stages):
        out.add(f"// {stage.name}")
        for point in _points(_kept(stage)):
            write = stage.write.substitute(point)
            value = _value(out, stage, point, printer)
            if is_total(stage):
                out.add(f"{totals[number, write].replace('total', 'sum')} += {value};")
                continue
            variable = f"v{len(printer.loaded)}"
            out.add(f"const real {variable} = {value};")
            if stage.write.tensor not in plan.local:
                c_type = places[stage.write.tensor].c_type
                stored = variable if c_type == "real" else f"{c_type}({variable})"
                out.add(f"{printer.element(write)} = {stored};")
            # A second version of the same element takes the place of the first one.
            printer.loaded.pop(write, None)
            printer.loaded[write] = variable
            printer.loaded[Access(f"{variable} is taken", ())] = variable
    out.close()
    for name, part in zip(totals.values(), sums, strict=True):
        out.add(f"{name} += {part};")
    out.close()
    for (_, access), name in totals.items():
        out.add(f"{printer.element(access)} += {name};")
    return out.lines


def _kept(stage: Stage) -> list[Axis]:
    return [axis for axis in stage.kept if axis.name not in (ROWS, COLUMNS)]


def _points(axes: Sequence[Axis]) -> list[Point]:
    points: list[Point] = [{}]
    for axis in axes:
        points = [{**p, axis.name: Affine((), v)} for p in points for v in range(axis.size)]
    return points


def _value(out: Lines, stage: Stage, point: Point, printer: Printer) -> str:
    """The finished value at one point, sums and maxima over the other axes written out."""
    reduced = [axis for axis in stage.reduced if axis.name not in (ROWS, COLUMNS)]
    terms = [_text(out, stage.value, {**point, **inner}, printer) for inner in _points(reduced)]
    if stage.combine == SET or is_total(stage):
        return " + ".join(terms)
    if stage.onto:
        begin = [
            printer.loaded.get(stage.write.substitute(point))
            or printer.element(stage.write.substitute(point))
        ]
    elif stage.initial is not None:
        begin = [_text(out, stage.initial, point, printer)]
    else:
        begin = []
    parts = begin + terms
    if stage.combine == MAX:
        total = parts[0]
        for part in parts[1:]:
            total = f"meta500::maximum<real>({total}, {part})"
    else:
        total = " + ".join(parts)
    if stage.finish is None:
        return total
    variable = f"a{len(printer.loaded)}"
    printer.loaded[Access(f"{variable} is taken", ())] = variable
    out.add(f"const real {variable} = {total};")
    finish = substitute(stage.finish, point)
    _load(out, finish, printer)
    return printer.real(finish, variable)


def _text(out: Lines, expr: Expr, point: Point, printer: Printer) -> str:
    inner = substitute(expr, point)
    _load(out, inner, printer)
    return printer.real(inner)


def _load(out: Lines, expr: Expr, printer: Printer) -> None:
    """Load every element once."""
    for load in loads(expr):
        if load.access not in printer.loaded:
            variable = f"v{len(printer.loaded)}"
            out.add(f"const auto {variable} = {printer.element(load.access)};")
            printer.loaded[load.access] = variable
