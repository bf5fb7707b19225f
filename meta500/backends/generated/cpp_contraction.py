"""Prints register-blocked sums of products as C++ functions on vectors."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.contraction import STENCIL, Blocked, points, shifted
from meta500.backends.generated.cpp_expressions import CALLS, COMPARISONS, INFIX, Printer, index, number
from meta500.backends.generated.cpp_nest import Lines
from meta500.backends.generated.expressions import (
    Access,
    Apply,
    Constant,
    Expr,
    Index,
    Load,
    Result,
    loads,
    substitute,
)
from meta500.backends.generated.ir import Axis
from meta500.backends.generated.layout import Place

Accumulator = Callable[[Mapping[str, int], int, int], str]


class VectorPrinter(Printer):
    """Prints expressions whose loads along one axis are vectors.

    Args:
        places, names: as for :class:`Printer`.
        vector: the axis along which loads are vectors.
    """

    def __init__(self, places: Mapping[str, Place], names: Mapping[str, str], vector: str) -> None:
        super().__init__(places, names)
        self.vector = vector

    def vector_value(self, expr: Expr, result: str, point: Mapping[str, int], shift: int = 0) -> str:
        """``expr`` as a vector.

        Args:
            expr: to be printed.
            result: what stands for ``Result``.
            point: numbers for axes inside of the block.
            shift: elements to add to addresses that move along the vector.
        """
        if isinstance(expr, Constant):
            return f"meta500::broadcast<vec>({number(expr.value)})"
        if isinstance(expr, Result):
            return result
        if isinstance(expr, Load):
            return self._loaded(expr.access, point, shift)
        if isinstance(expr, Index):
            return f"meta500::broadcast<vec>(real({index(expr.index)}))"
        assert isinstance(expr, Apply)
        texts = [self.vector_value(a, result, point, shift) for a in expr.arguments]
        sign = INFIX.get(expr.function) or COMPARISONS.get(expr.function)
        if sign:
            return f"({texts[0]} {sign} {texts[1]})"
        if expr.function == "neg":
            return f"(-{texts[0]})"
        if expr.function == "select":
            flag = expr.arguments[0]
            if not (isinstance(flag, Apply) and flag.function in COMPARISONS):
                texts[0] = f"({texts[0]} != real(0))"
            return f"meta500::select({', '.join(texts)})"
        return f"meta500::{CALLS[expr.function]}({', '.join(texts)})"

    def _loaded(self, access: Access, point: Mapping[str, int], shift: int) -> str:
        if access in self.loaded:
            return self.loaded[access]
        address = self.places[access.tensor].address(access)
        name = self.names[access.tensor]
        if self.vector in address.axes:
            at = shifted(address, point) + shift
            load = "load" if self.places[access.tensor].c_type == "real" else "load_converted"
            return f"meta500::{load}<vec>({name} + {index(at)})"
        return f"meta500::broadcast<vec>(real({name}[{index(shifted(address, point))}]))"


def blocked_body(plan: Blocked, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    """The body of the function: ``lo`` and ``hi`` bound the rows, both multiples of the row block."""
    out = Lines()
    out.depth = 1
    out.add(f"using vec = meta500::Vector<real, {plan.lanes}>;")
    if plan.form == STENCIL:
        _stencil(out, plan, places, names)
    else:
        _dual(out, plan, places, names)
    return out.lines


def _block_loop(out: Lines, plan: Blocked, axis: Axis, step: int) -> int:
    """Open the loop over the blocks of an axis; the number of braces that it opened."""
    if axis == plan.split:
        advance = f"++{axis.name}" if step == 1 else f"{axis.name} += {step}"
        out.open(f"for (long {axis.name} = lo; {axis.name} < hi; {advance})")
    elif axis.size > step or axis == plan.vector[0]:
        out.loop(axis.name, axis.size, step)
    else:
        # The block is the whole axis.
        out.add(f"constexpr long {axis.name} = 0;")
        return 0
    return 1


def _block_points(plan: Blocked) -> list[dict[str, int]]:
    """Offsets of the block axes inside of a block."""
    return list(points([Axis(axis.name, size) for axis, size in plan.blocks]))


def _label(point: Mapping[str, int]) -> str:
    return "_".join(str(v) for v in point.values())


def _offset(address: Affine, point: Mapping[str, int]) -> int:
    """Elements that the values of a point, counted from the block's beginning, add to an address."""
    return sum(address.coefficient(name) * value for name, value in point.items())


def _without(address: Affine, names: Sequence[str]) -> Affine:
    """The part of an address that does not depend on some axes."""
    return Affine.of({n: c for n, c in address.terms if n not in names}, address.constant)


def _stencil(out: Lines, plan: Blocked, places: Mapping[str, Place], names: Mapping[str, str]) -> None:
    row_count = plan.rows[1]
    vector, vectors = plan.vector
    outer = [(axis, 1) for axis in plan.outer]
    along = (vector, plan.lanes * vectors)
    # Weights of a block of results stay in the cache while images pass, or rows while results do.
    order = (
        [*plan.blocks, along, *outer, plan.rows]
        if plan.shared is not None
        else [*outer, plan.rows, *plan.blocks, along]
    )
    opened = sum(_block_loop(out, plan, axis, step) for axis, step in order)
    printer = VectorPrinter(places, names, vector.name)
    block = _block_points(plan)
    rest = list(itertools.product(block, range(row_count), range(vectors)))

    def accumulator(point: Mapping[str, int], row: int, v: int) -> str:
        return "a" + "_".join(filter(None, (_label(point), str(row), str(v))))

    for point, row, v in rest:
        name = accumulator(point, row, v)
        out.add(f"vec {name} = {_beginning(plan, printer, point, row, v)};")
    _prefetched_ends(out, plan, printer)
    for axis in plan.inner:
        out.loop(axis.name, axis.size)
    _products(out, plan, places, names, accumulator, block)
    out.close(len(plan.inner))
    _ends(out, plan, printer, accumulator, block)
    out.close(opened)


def _at(plan: Blocked, point: Mapping[str, int], row: int, v: int) -> dict[str, Affine]:
    """Axes inside of a block as what they are counted from its beginning."""
    values = {name: Affine.axis(name, 1, value) for name, value in point.items() if value}
    if row:
        values[plan.rows[0].name] = Affine.axis(plan.rows[0].name, 1, row)
    if v:
        values[plan.vector[0].name] = Affine.axis(plan.vector[0].name, 1, v * plan.lanes)
    return values


def _beginning(plan: Blocked, printer: VectorPrinter, point: Mapping[str, int], row: int, v: int) -> str:
    stage = plan.stage
    if plan.interleaved and stage.initial is not None:
        # Between interleaved elements only what does not move along the vector can be a beginning.
        values = _at(plan, point, row, v)
        return printer.vector_value(substitute(stage.initial, values), "", {})
    if stage.onto:
        return printer.vector_value(substitute(Load(stage.write), _at(plan, point, row, v)), "", {})
    if stage.initial is None:
        return "{}"
    return printer.vector_value(substitute(stage.initial, _at(plan, point, row, v)), "", {})


def _products(
    out: Lines,
    plan: Blocked,
    places: Mapping[str, Place],
    names: Mapping[str, str],
    accumulator: Accumulator,
    block: Sequence[Mapping[str, int]],
) -> None:
    """All multiplications of one iteration of the inner loops: every image vector is loaded once."""
    vector, vectors = plan.vector
    rows, row_count = plan.rows
    image = places[plan.first.access.tensor].address(plan.first.access)
    weight = places[plan.second.access.tensor].address(plan.second.access)
    inside = [t.name for t in plan.taps]
    base, weights = _without(image, inside), _without(weight, inside)
    stride = image.coefficient(vector.name)
    # Where an image vector begins, relative to the first: the products that use it. A weight is loaded once
    # for all vectors of the block.
    uses: dict[int, list[tuple[int, dict[str, int]]]] = {}
    for row, tap in itertools.product(range(row_count), points(plan.taps)):
        uses.setdefault(image.coefficient(rows.name) * row + _offset(image, tap), []).append((row, tap))
    x, w = names[plan.first.access.tensor], names[plan.second.access.tensor]
    out.add(f"const real* const p = {x} + {index(base)};")
    out.add(f"const real* const u = {w} + {index(weights)};")
    loader = _Loader(out, plan.lanes, stride, "p", "x")
    for place in _lines_ahead(plan, image, uses):
        out.add(f"META500_PREFETCH(p + {place});")
    for place in sorted(uses):
        loaded = [loader.load(place + stride * v * plan.lanes, place + 1 in uses) for v in range(vectors)]
        for (row, tap), point in itertools.product(uses[place], block):
            offset = _offset(weight, tap) + _offset(weight, point)
            for v, name in enumerate(loaded):
                out.add(f"{accumulator(point, row, v)} += u[{offset}] * {name};")


def _lines_ahead(plan: Blocked, image: Affine, uses: Iterable[int]) -> list[int]:
    """Where the image vectors of the next block begin, relative to the first vector of this one.

    Processors follow few streams by themselves; a block reads one per row and channel.
    """
    vector, vectors = plan.vector
    width = image.coefficient(vector.name) * vectors * plan.lanes
    pitch = abs(image.coefficient(plan.rows[0].name))
    if vector.size <= vectors * plan.lanes or pitch <= width:
        return []
    starts: dict[int, int] = {}
    for place in uses:
        starts[place // pitch] = min(place, starts.get(place // pitch, place))
    return [start + width + at for start in sorted(starts.values()) for at in range(0, width, plan.lanes)]


class _Loader:
    """Prints loads of vectors, contiguous or of every second element, each pair of vectors once."""

    def __init__(self, out: Lines, lanes: int, stride: int, pointer: str, prefix: str) -> None:
        self.out, self.lanes, self.stride = out, lanes, stride
        self.pointer, self.prefix = pointer, prefix
        self.count = 0
        self.pairs: dict[int, tuple[str, str, str]] = {}

    def load(self, place: int, paired: bool) -> str:
        """The vector that begins at ``place``, by name; ``paired``: that at ``place`` + 1 is loaded, too."""
        self.count += 1
        name = f"{self.prefix}{self.count}"
        if self.stride == 1:
            self.out.add(f"vec {name} = meta500::load<vec>({self.pointer} + {place});")
            self.out.add(f"META500_KEEP({name});")
            return name
        # Elements place, place + 2, ... are the even ones of a pair of vectors, place + 1, ... the odd ones.
        # Without these the pair overlaps: the element behind the last one may be behind the array.
        if place not in self.pairs:
            low, high, second = f"{name}_low", f"{name}_high", place + self.lanes - (not paired)
            self.out.add(
                f"const vec {low} = meta500::load<vec>({self.pointer} + {place}), "
                f"{high} = meta500::load<vec>({self.pointer} + {second});"
            )
            self.pairs[place] = (low, high, "even" if paired else "even_overlapping")
            if paired:
                self.pairs.setdefault(place + 1, (low, high, "odd"))
        low, high, part = self.pairs[place]
        self.out.add(f"vec {name} = meta500::{part}({low}, {high});")
        self.out.add(f"META500_KEEP({name});")
        return name


def _prefetched_ends(out: Lines, plan: Blocked, printer: VectorPrinter) -> None:
    """Ask for what the end of the block reads and writes, which arrives during the products."""
    if plan.interleaved:
        return
    vector = plan.vector[0].name
    reads = [x.access for x in loads(plan.stage.finish)]
    for access, write in [*((a, False) for a in dict.fromkeys(reads)), (plan.stage.write, True)]:
        place = printer.places[access.tensor]
        address = place.address(access)
        if address.coefficient(vector) != 1 or (write and access in reads):
            continue
        for point in _block_points(plan):
            for row, v in itertools.product(range(plan.rows[1]), range(plan.vector[1])):
                at = index(address.substitute(_at(plan, point, row, v)))
                out.add(
                    f"META500_PREFETCH{'_WRITE' if write else ''}({printer.names[access.tensor]} + {at});"
                )


def _ends(
    out: Lines,
    plan: Blocked,
    printer: VectorPrinter,
    accumulator: Accumulator,
    block: Sequence[Mapping[str, int]],
) -> None:
    """What becomes of the accumulators: finish, mask, store."""
    stage, lanes = plan.stage, plan.lanes
    vector, vectors = plan.vector
    place = printer.places[stage.write.tensor]
    write = place.address(stage.write)
    between = [a.name for a in plan.interleaved]
    for row, v in itertools.product(range(plan.rows[1]), range(vectors)):
        for point in block:
            if any(point[name] for name in between):
                continue
            values = _at(plan, point, row, v)
            at = write.substitute(values)
            target = printer.names[stage.write.tensor]
            if not between:
                name = accumulator(point, row, v)
                text = name
                if stage.finish is not None:
                    text = printer.vector_value(substitute(stage.finish, values), name, {})
                if plan.masked and v == vectors - 1:
                    left = f"{vector.size} - ({vector.name} + {v * lanes})"
                    text = f"meta500::first({text}, {left})"
                out.add(f"meta500::store({target} + {index(at)}, {text});")
                continue
            pair = [accumulator({**point, between[0]: k}, row, v) for k in (0, 1)]
            for half, function in enumerate(("interleave_low", "interleave_high")):
                text = f"meta500::{function}({pair[0]}, {pair[1]})"
                if stage.finish is not None:
                    text = printer.vector_value(
                        substitute(stage.finish, values), text, {between[0]: 0}, half * lanes
                    )
                out.add(f"meta500::store({target} + {index(_without(at, between) + half * lanes)}, {text});")


def _dual(out: Lines, plan: Blocked, places: Mapping[str, Place], names: Mapping[str, str]) -> None:
    stage, lanes = plan.stage, plan.lanes
    vector = plan.vector[0]
    rows, row_count = plan.rows
    outer = [(axis, 1) for axis in plan.outer]
    opened = sum(_block_loop(out, plan, axis, step) for axis, step in [*outer, *plan.blocks])
    block = _block_points(plan)
    taps = list(points(plan.taps))

    def accumulator(point: Mapping[str, int], tap: Mapping[str, int]) -> str:
        return "a" + "_".join(filter(None, (_label(point), _label(tap))))

    out.open("")
    opened += 1
    for point, tap in itertools.product(block, taps):
        out.add(f"vec {accumulator(point, tap)} = {{}};")
    riding = _Riding(plan, places, names)
    riding.begin(out)
    for axis in plan.inner:
        out.loop(axis.name, axis.size)
    inside = len(plan.inner) + _block_loop(out, plan, *plan.rows)
    out.loop(vector.name, vector.size, lanes)
    held = places[plan.first.access.tensor].address(plan.first.access)
    moving = places[plan.second.access.tensor].address(plan.second.access)
    out.add(f"const real* const d = {names[plan.first.access.tensor]} + {index(held)};")
    tap_names = [t.name for t in plan.taps]
    out.add(
        f"const real* const p = {names[plan.second.access.tensor]} + {index(_without(moving, tap_names))};"
    )
    loaded: dict[int, str] = {}
    for row, point in itertools.product(range(row_count), block):
        place = held.coefficient(rows.name) * row + _offset(held, point)
        if place in loaded:
            continue
        loaded[place] = f"d{len(loaded)}"
        text = f"meta500::load<vec>(d + {place})"
        if plan.masked:
            text = f"meta500::first({text}, {vector.size} - {vector.name})"
        out.add(f"vec {loaded[place]} = {text};")
        out.add(f"META500_KEEP({loaded[place]});")
    riding.add_held(
        out,
        [
            (loaded[held.coefficient(rows.name) * row + _offset(held, p)], p)
            for row in range(row_count)
            for p in block
        ],
    )
    uses: dict[int, list[tuple[int, dict[str, int], dict[str, int]]]] = {}
    for row, point, tap in itertools.product(range(row_count), block, taps):
        place = moving.coefficient(rows.name) * row + _offset(moving, point) + _offset(moving, tap)
        uses.setdefault(place, []).append((row, point, tap))
    loader = _Loader(out, lanes, moving.coefficient(vector.name), "p", "x")
    for place in sorted(uses):
        name = loader.load(place, place + 1 in uses)
        if plan.masked:
            # Beyond the row may be anything, and 0 times infinity is no zero.
            out.add(f"{name} = meta500::first({name}, {vector.size} - {vector.name});")
        for row, point, tap in uses[place]:
            factor = loaded[held.coefficient(rows.name) * row + _offset(held, point)]
            out.add(f"{accumulator(point, tap)} += {factor} * {name};")
        riding.add_moving(out, name, [point for _, point, _ in uses[place]])
    out.close(1 + inside)
    target = names[stage.write.tensor]
    write = places[stage.write.tensor].address(stage.write)
    scalars = Printer(places, names)
    for point, tap in itertools.product(block, taps):
        values = {n: Affine.axis(n, 1, v) for n, v in point.items() if v}
        values |= {n: Affine((), v) for n, v in tap.items()}
        total = f"meta500::sum({accumulator(point, tap)})"
        if plan.private:
            out.add(f"{target}[{index(write.substitute(values))}] += {total};")
        else:
            _finished_sum(out, plan, scalars, values, total)
    riding.end(out)
    out.close(opened)


def _finished_sum(
    out: Lines, plan: Blocked, printer: Printer, values: Mapping[str, Affine], total: str
) -> None:
    """What becomes of one sum: beginning, finish, store."""
    stage = plan.stage
    write = stage.write.substitute(dict(values))
    beginning = Load(stage.write) if stage.onto else stage.initial
    if beginning is not None:
        total = f"{printer.real(substitute(beginning, values))} + {total}"
    if stage.finish is not None:
        out.open("")
        out.add(f"const real total = {total};")
        total = printer.real(substitute(stage.finish, values), "total")
    out.add(f"{printer.element(write)} = {total};")
    if stage.finish is not None:
        out.close()


class _Riding:
    """Prints the companion of a dual sum of products; nothing where it has none."""

    def __init__(self, plan: Blocked, places: Mapping[str, Place], names: Mapping[str, str]) -> None:
        self.companion, self.places, self.names = plan.companion, places, names
        self.points: list[dict[str, int]] = []
        if plan.companion is None:
            return
        axes = plan.companion.stage.axes
        self.points = list(points([Axis(axis.name, size) for axis, size in plan.blocks if axis in axes]))
        blocks = dict(plan.blocks)
        looped = [a for a in plan.companion.others if a.size > blocks.get(a, 1)]
        self.condition = " && ".join(f"{a.name} == 0" for a in looped)

    def begin(self, out: Lines) -> None:
        for point in self.points:
            out.add(f"vec {self._name(point)} = {{}};")

    def add_held(self, out: Lines, vectors: Sequence[tuple[str, Mapping[str, int]]]) -> None:
        if self.companion is not None and self.companion.held:
            terms = dict.fromkeys((self._name(point), vector) for vector, point in vectors)
            self._where(out, [f"{name} += {vector};" for name, vector in terms])

    def add_moving(self, out: Lines, vector: str, block: Sequence[Mapping[str, int]]) -> None:
        if self.companion is not None and not self.companion.held:
            others = [a.name for a in self.companion.others]
            terms = [self._name(p) for p in block if not any(p.get(name) for name in others)]
            self._where(out, [f"{name} += {vector};" for name in terms])

    def end(self, out: Lines) -> None:
        if self.companion is None:
            return
        write = self.companion.stage.write
        address = self.places[write.tensor].address(write)
        sign = "+=" if self.companion.private else "="
        lines = []
        for point in self.points:
            at = address.substitute({n: Affine.axis(n, 1, v) for n, v in point.items() if v})
            lines.append(f"{self.names[write.tensor]}[{index(at)}] {sign} meta500::sum({self._name(point)});")
        self._where(out, lines)

    def _where(self, out: Lines, lines: Sequence[str]) -> None:
        if self.condition and lines:
            out.open(f"if ({self.condition})")
        for line in lines:
            out.add(line)
        if self.condition and lines:
            out.close()

    def _name(self, point: Mapping[str, int]) -> str:
        values = [str(point[p]) for p in self.points[0]]
        return "_".join(["total", *values])
