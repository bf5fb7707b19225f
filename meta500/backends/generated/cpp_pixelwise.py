"""Prints a pass of pixelwise stages as a C++ function."""

from __future__ import annotations

from collections.abc import Mapping

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.cpp_contraction import VectorPrinter
from meta500.backends.generated.cpp_expressions import Printer, index
from meta500.backends.generated.cpp_nest import Lines, points
from meta500.backends.generated.expressions import Access, Expr, Load, loads, substitute
from meta500.backends.generated.ir import MAX, SET, Axis, Stage
from meta500.backends.generated.layout import Place
from meta500.backends.generated.pixelwise import COLUMNS, ROWS, Pixelwise, is_total

Point = dict[str, Affine]


Totals = dict[tuple[int, Access], str]


def pixelwise_body(plan: Pixelwise, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    """The body of the function: ``lo`` and ``hi`` bound the rows."""
    out = Lines()
    out.depth = 1
    totals: Totals = {}
    for number, stage in enumerate(plan.stages):
        if is_total(stage):
            for point in points(stage.kept):
                totals[number, stage.write.substitute(point)] = f"total{len(totals)}"
    size = plan.columns.size
    whole = size - size % plan.lanes
    if whole:
        out.add(f"using vec = meta500::Vector<real, {plan.lanes}>;")
    for name in totals.values():
        out.add(f"real {name} = 0;")
    out.open(f"for (long {ROWS} = lo; {ROWS} < hi; ++{ROWS})")
    if whole:
        _columns(out, plan, places, names, totals, (0, whole))
    if whole < size:
        _columns(out, plan, places, names, totals, (whole, size), vectors=False)
    out.close()
    for (_, access), name in totals.items():
        out.add(f"{Printer(places, names).element(access)} += {name};")
    return out.lines


def _columns(
    out: Lines,
    plan: Pixelwise,
    places: Mapping[str, Place],
    names: Mapping[str, str],
    totals: Totals,
    bounds: tuple[int, int],
    vectors: bool = True,
) -> None:
    """One row, vector by vector or number by number."""
    writer = _Writer(out, places, names, vectors)
    out.open("")
    sums = {key: name.replace("total", "sum") for key, name in totals.items()}
    for name in sums.values():
        out.add(f"{writer.type} {name} = {{}};")
    step = f"{COLUMNS} += {plan.lanes}" if vectors else f"++{COLUMNS}"
    out.open(f"for (long {COLUMNS} = {bounds[0]}; {COLUMNS} < {bounds[1]}; {step})")
    for number, stage in enumerate(plan.stages):
        out.add(f"// {stage.name}")
        for point in points(_kept(stage)):
            write = stage.write.substitute(point)
            value = writer.value(stage, point)
            if is_total(stage):
                out.add(f"{sums[number, write]} += {value};")
            else:
                writer.assign(write, value, stage.write.tensor not in plan.local)
    out.close()
    for key, name in totals.items():
        out.add(f"{name} += {f'meta500::sum({sums[key]})' if vectors else sums[key]};")
    out.close()


def _kept(stage: Stage) -> list[Axis]:
    return [axis for axis in stage.kept if axis.name not in (ROWS, COLUMNS)]


class _Writer:
    """Writes statements on one pixel, or on one vector of them; every element is loaded once."""

    def __init__(
        self, out: Lines, places: Mapping[str, Place], names: Mapping[str, str], vectors: bool
    ) -> None:
        self.out, self.vectors = out, vectors
        self.type = "vec" if vectors else "real"
        self.printer = VectorPrinter(places, names, COLUMNS)
        self.count = 0

    def value(self, stage: Stage, point: Point) -> str:
        """The finished value at one point, sums and maxima over the other axes written out."""
        reduced = [axis for axis in stage.reduced if axis.name not in (ROWS, COLUMNS)]
        terms = [self.text(stage.value, {**point, **inner}) for inner in points(reduced)]
        if stage.combine == SET or is_total(stage):
            return " + ".join(terms)
        begin: list[str] = []
        if stage.onto:
            begin = [self.text(Load(stage.write), point)]
        elif stage.initial is not None:
            begin = [self.text(stage.initial, point)]
        parts = begin + terms
        total = " + ".join(parts)
        if stage.combine == MAX:
            total = parts[0]
            for part in parts[1:]:
                total = f"meta500::maximum<{self.type}>({total}, {part})"
        if stage.finish is None:
            return total
        sum_name = self.new("a")
        self.out.add(f"const {self.type} {sum_name} = {total};")
        return self.text(stage.finish, point, sum_name)

    def text(self, expr: Expr, point: Point, result: str = "") -> str:
        """An expression at one point."""
        inner = substitute(expr, point)
        for load in loads(inner):
            if load.access not in self.printer.loaded:
                name = self.new("v")
                self.out.add(f"const {self.type} {name} = {self._print(load, '')};")
                self.printer.loaded[load.access] = name
        return self._print(inner, result)

    def _print(self, expr: Expr, result: str) -> str:
        if self.vectors:
            return self.printer.vector_value(expr, result, {})
        return self.printer.real(expr, result)

    def assign(self, access: Access, value: str, stored: bool) -> None:
        """Give an element a value; later statements use it from its variable."""
        name = self.new("v")
        self.out.add(f"const {self.type} {name} = {value};")
        if stored:
            place = self.printer.places[access.tensor]
            target = f"{self.printer.names[access.tensor]} + {index(place.address(access))}"
            if self.vectors:
                store = "store" if place.c_type == "real" else "store_converted"
                self.out.add(f"meta500::{store}({target}, {name});")
            else:
                self.out.add(f"*({target}) = {name};")
        self.printer.loaded[access] = name

    def new(self, prefix: str) -> str:
        """A name that no other variable has."""
        self.count += 1
        return f"{prefix}{self.count}"
