"""Prints Winograd's forms of convolutions as C++ functions on vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.contraction import shifted
from meta500.backends.generated.cpp_contraction import VectorPrinter
from meta500.backends.generated.cpp_expressions import index, number
from meta500.backends.generated.cpp_linear import linear
from meta500.backends.generated.cpp_nest import Lines
from meta500.backends.generated.expressions import Load, loads
from meta500.backends.generated.layout import Place
from meta500.backends.generated.toom_cook import Matrix, ToomCook
from meta500.backends.generated.winograd import Winograd, window

# Pointers that the function gets beside those of the tensors.
SCRATCH, TRANSFORMED = "scratch", "transformed"
# Numbers of float32 in a line of the cache.
_CACHE_LINE = 16


def winograd_body(plan: Winograd, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    """The body of the function: ``lo`` and ``hi`` bound the rows, both multiples of the granule.

    Beside the tensors its arguments are ``scratch`` and ``transformed``, the weights as :func:`prepare_body`
    leaves them.
    """
    out = Lines()
    out.depth = 1
    printer = VectorPrinter(places, names, plan.direct.vector[0].name)
    out.add(f"using vec = meta500::Vector<real, {plan.side}>;")
    if plan.groups > 1:
        out.add(f"using wide = meta500::Vector<real, {plan.lanes}>;")
    for axis in plan.direct.outer:
        out.open(f"for (long {axis.name} = 0; {axis.name} < {axis.size}; ++{axis.name})")
    rows = plan.split.name
    out.open(f"for (long {rows}_tile = lo; {rows}_tile < hi; {rows}_tile += {plan.granule})")
    if plan.across is None:
        _single(out, plan, printer)
    else:
        _double(out, plan, plan.across, printer)
    out.close(1 + len(plan.direct.outer))
    return out.lines


def _image(plan: Winograd, printer: VectorPrinter, column: str) -> tuple[Affine, int]:
    """Where the window of the tile at (row ``*_tile``, ``column``) begins, and the step from row to row."""
    access = plan.direct.first.access
    address = printer.places[access.tensor].address(access)
    begin, _ = window(plan, printer.places)
    rows, vector = plan.split.name, plan.direct.vector[0].name
    tile = {rows: Affine.axis(f"{rows}_tile"), vector: Affine.axis(column)}
    return shifted(address, begin).substitute(tile), address.coefficient(rows)


def _single(out: Lines, plan: Winograd, printer: VectorPrinter) -> None:
    """Along rows only: planes of transformed rows, which the taps across read at three places."""
    lanes, block, points = plan.lanes, plan.block, plan.down.products
    vector, summed, results = plan.direct.vector[0], plan.summed, plan.results
    j, k = vector.name, results.name
    out.add(
        "// The rows of the image at the points; their first and last vectors overlap with their neighbours."
    )
    out.loop(summed.name, summed.size)
    out.loop("part", vector.size // lanes + 2)
    last = vector.size + 2 - lanes
    out.add(f"const long {j} = part == 0 ? 0 : meta500::sooner(1 + (part - 1) * {lanes}, {last});")
    start, step = _image(plan, printer, j)
    out.add(f"const real* const from = {printer.names[plan.direct.first.access.tensor]} + {index(start)};")
    out.add(f"real* const to = {SCRATCH} + {lanes - 1} + {summed.name} * {plan.pitch} + {j};")
    for row in range(points):
        out.add(f"const vec image{row} = meta500::load<vec>(from + {row * step});")
    given = [f"image{row}" for row in range(points)]

    def keep(point: int, text: str) -> None:
        out.add(f"meta500::store<vec>(to + {point * plan.plane}, {text});")

    linear(out, plan.down.data, given, keep)
    out.close(2)
    out.loop(f"{k}_block", results.size, block)
    out.loop(j, vector.size, lanes)
    _fetched(out, plan, printer, 8 * lanes)
    out.add(f"const real* at = {SCRATCH} + {lanes - 1} + {j};")
    out.add(f"const real* weight = {TRANSFORMED} + {k}_block * {summed.size * plan.filter_size};")
    for point in range(points):
        out.add("vec " + ", ".join(f"sum{point}_{b} = {{}}" for b in range(block)) + ";")
    advance = f"at += {plan.pitch}, weight += {plan.filter_size * block}"
    name = summed.name
    out.open(f"for (long {name} = 0; {name} < {summed.size}; ++{name}, {advance})")
    for point in range(points):
        for tap in range(3):
            out.add(f"vec image{point}_{tap} = meta500::load<vec>(at + {point * plan.plane + tap});")
            out.add(f"META500_KEEP(image{point}_{tap});")
            for b in range(block):
                factor = f"weight[{(point * 3 + tap) * block + b}]"
                out.add(f"sum{point}_{b} += {factor} * image{point}_{tap};")
    out.close()
    for b in range(block):
        out.open("")
        out.add(f"const long {k} = {k}_block + {b};")
        given = [f"sum{point}_{b}" for point in range(points)]

        def finish(row: int, text: str) -> None:
            out.open("")
            out.add(f"const long {plan.split.name} = {plan.split.name}_tile + {row};")
            _finished(out, plan, printer, text, 0)
            out.close()

        _by_columns(out, plan.down.output, given, finish)
        out.close()
    out.close(2)


def _double(out: Lines, plan: Winograd, across: ToomCook, printer: VectorPrinter) -> None:
    """In both directions: planes of transformed tiles, a plane for every point across."""
    wide = "wide" if plan.groups > 1 else "vec"
    lanes, side, block, groups = plan.lanes, plan.side, plan.block, plan.groups
    points, lines = plan.down.products, across.products
    vector, summed, results = plan.direct.vector[0], plan.summed, plan.results
    j, k, rows = vector.name, results.name, plan.split.name
    width, stretch = vector.size, plan.stretch
    out.loop(f"{j}_stretch", width, stretch)
    out.add("// The tiles of the image at the points: B^T x B.")
    out.loop(summed.name, summed.size)
    _along(out, plan)
    if groups > 1:
        out.loop("group", groups)
    start, step = _image(plan, printer, j)
    # The rows of the window but for its first column.
    start = start + 1 + (Affine.axis("group", len(plan.down.output) * step) if groups > 1 else 0)
    out.add(f"const real* from = {printer.names[plan.direct.first.access.tensor]} + {index(start)};")
    tile = f"({j} - {j}_stretch) / {plan.columns}"
    place = f"{SCRATCH} + {tile} * {lines * plan.plane} + {summed.name} * {plan.pitch}"
    place += f" + group * {side}" if groups > 1 else ""
    out.add(f"real* to = {place};")
    out.add(f"vec window[{lines}][{points}];")
    out.open(f"for (long row = 0; row < {points}; ++row, from += {step})")
    for part in range(0, plan.columns, _CACHE_LINE):
        out.add(f"META500_PREFETCH(from + {plan.columns + part});")
    given = _phases(out, len(across.output), side)
    linear(out, across.data, given, lambda line, text: out.add(f"window[{line}][row] = {text};"))
    out.close()
    out.open(f"for (long line = 0; line < {lines}; ++line, to += {plan.plane})")
    given = [f"window[line][{row}]" for row in range(points)]

    def keep(point: int, text: str) -> None:
        out.add(f"meta500::store<vec>(to + {point * lanes}, {text});")

    linear(out, plan.down.data, given, keep)
    out.close(3 + (groups > 1))
    out.loop(f"{k}_block", results.size, block)
    _along(out, plan)
    _fetched(out, plan, printer, 0)
    out.add(f"alignas(64) real sums[{lines}][{block}][{len(plan.down.output)}][{lanes}];")
    out.loop("line", lines)
    out.add(f"const real* at = {SCRATCH} + ({tile} * {lines} + line) * {plan.plane};")
    size = summed.size * points
    out.add(f"const real* weight = {TRANSFORMED} + ({k}_block * {lines} + line * {block}) * {size};")
    for point in range(points):
        out.add(f"{wide} " + ", ".join(f"sum{point}_{b} = {{}}" for b in range(block)) + ";")
    name = summed.name
    advance = f"at += {plan.pitch}, weight += {points * block}"
    out.open(f"for (long {name} = 0; {name} < {summed.size}; ++{name}, {advance})")
    for point in range(points):
        out.add(f"{wide} image{point} = meta500::load<{wide}>(at + {point * lanes});")
        out.add(f"META500_KEEP(image{point});")
        for b in range(block):
            out.add(f"sum{point}_{b} += weight[{point * block + b}] * image{point};")
    out.close()
    for b in range(block):
        out.open("")
        given = [f"sum{point}_{b}" for point in range(points)]

        def add_up(row: int, text: str, b: int = b) -> None:
            out.add(f"meta500::store<{wide}>(sums[line][{b}][{row}], {text});")

        _by_columns(out, plan.down.output, given, add_up, wide)
        out.close()
    out.close()
    out.open(f"for (long {k} = {k}_block; {k} < {k}_block + {block}; ++{k})")
    out.loop("row", len(plan.down.output))
    if groups > 1:
        out.loop("group", groups)
    shift = f" + group * {len(plan.down.output)}" if groups > 1 else ""
    out.add(f"const long {rows} = {rows}_tile + row{shift};")
    offset = f" + group * {side}" if groups > 1 else ""
    for line in range(lines):
        out.add(f"const vec total{line} = meta500::load<vec>(sums[{line}][{k} - {k}_block][row]{offset});")
    given = [f"total{line}" for line in range(lines)]
    _by_columns(out, across.output, given, lambda c, text: out.add(f"const vec column{c} = {text};"))
    for part, text in enumerate(_woven(out, [f"column{c}" for c in range(len(across.output))])):
        _finished(out, plan, printer, text, part * side)
    out.close(5 + (groups > 1))


def _along(out: Lines, plan: Winograd) -> None:
    """The loop over the vectors of tiles of a stretch."""
    j = plan.direct.vector[0].name
    out.open(f"for (long {j} = {j}_stretch; {j} < {j}_stretch + {plan.stretch}; {j} += {plan.columns})")


def _fetched(out: Lines, plan: Winograd, printer: VectorPrinter, ahead: int) -> None:
    """Fetch what a block ends with and where it goes while sums are computed.

    Many short pieces of many rows: processors do not foresee them. Measured: 3 to 8 % in networks.
    """
    rows, k, j = plan.split.name, plan.results.name, plan.direct.vector[0].name
    accesses = dict.fromkeys(load.access for load in loads(plan.stage.finish))
    accesses |= {plan.stage.write: None}
    addresses = {a: printer.places[a.tensor].address(a) for a in accesses}
    moving = {a: address for a, address in addresses.items() if j in address.axes}
    if not moving:
        return
    out.open(f"for (long {k} = {k}_block; {k} < {k}_block + {plan.block}; ++{k})")
    out.open(f"for (long {rows} = {rows}_tile; {rows} < {rows}_tile + {plan.granule}; ++{rows})")
    out.loop("line", -(-plan.columns // _CACHE_LINE))
    for access, address in moving.items():
        at = index(address + Affine.axis("line", _CACHE_LINE) + ahead)
        intent = "_WRITE" if access == plan.stage.write else ""
        out.add(f"META500_PREFETCH{intent}({printer.names[access.tensor]} + {at});")
    out.close(3)


def _phases(out: Lines, outputs: int, lanes: int) -> list[str]:
    """The columns of the windows of neighbouring tiles, ``outputs`` apart, as names of vectors.

    ``from`` points to the second column of the first window.
    """
    names = [f"next{part}" for part in range(outputs)]
    for part, name in enumerate(names):
        out.add(f"const vec {name} = meta500::load<vec>(from + {part * lanes});")
    # Halved again and again: of pairs of vectors all even elements, then all odd ones.
    step = 1
    while step < outputs:
        pairs = list(zip(names[::2], names[1::2], strict=True))
        names = []
        for kind in ("even", "odd"):
            for one, two in pairs:
                names.append(f"every{2 * step}_{len(names)}")
                out.add(f"const vec {names[-1]} = meta500::{kind}({one}, {two});")
        step *= 2
    out.add(f"const vec before = meta500::shifted_up({names[-1]}, from[-1]);")
    out.add(f"const vec after = meta500::shifted_down({names[0]}, from[{outputs * lanes}]);")
    return ["before", *names, "after"]


def _woven(out: Lines, columns: Sequence[str]) -> list[str]:
    """Vectors of every column of neighbouring tiles as vectors of neighbouring elements."""
    count = len(columns)
    if count == 1:
        return list(columns)
    found: list[str] = []
    for even, odd in zip(_woven(out, columns[::2]), _woven(out, columns[1::2]), strict=True):
        for kind in ("low", "high"):
            name = f"{columns[0]}_of{count}_{len(found)}"
            out.add(f"const vec {name} = meta500::interleave_{kind}({even}, {odd});")
            found.append(name)
    return found


def _finished(out: Lines, plan: Winograd, printer: VectorPrinter, text: str, shift: int) -> None:
    """What becomes of a vector of sums: beginning, finish, store."""
    stage = plan.stage
    beginning = Load(stage.write) if stage.onto else stage.initial
    if beginning is not None:
        text = f"{text} + {printer.vector_value(beginning, '', {}, shift)}"
    if stage.finish is not None:
        out.add(f"const vec result{shift} = {text};")
        text = printer.vector_value(stage.finish, f"result{shift}", {}, shift)
    place = printer.places[stage.write.tensor].address(stage.write) + shift
    out.add(f"meta500::store<vec>({printer.names[stage.write.tensor]} + {index(place)}, {text});")


def prepare_body(plan: Winograd, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    """The body of the function that transforms the weights: ``lo`` and ``hi`` bound the results.

    G g, or G g G^T, in double precision; they lie in the order in which the products use them.
    """
    out = Lines()
    out.depth = 1
    access = plan.direct.second.access
    address = places[access.tensor].address(access)
    begin, downwards = window(plan, places)
    down = next(name for name, rows in downwards.items() if rows)
    across = next(name for name, rows in downwards.items() if not rows)
    k, c, block, points = plan.results.name, plan.summed.name, plan.block, plan.down.products
    out.add(f"using vec = meta500::Vector<double, {block}>;")
    out.open(f"for (long {k} = lo; {k} < hi; {k} += {block})")
    out.loop(c, plan.summed.size)
    out.add(f"const real* const filter = {names[access.tensor]} + {index(shifted(address, begin))};")
    whole = plan.summed.size * plan.filter_size
    inner = (plan.filter_size if plan.across is None else points) * block
    out.add(f"real* const to = {TRANSFORMED} + {k} * {whole} + {c} * {inner};")
    step = address.coefficient(k)
    for row in range(3):
        for column in range(3):
            # Taps that run against the window are taken from its other end.
            offset = address.coefficient(down) * (-row if begin[down] else row)
            offset += address.coefficient(across) * (-column if begin[across] else column)
            lanes = ", ".join(f"filter[{offset + lane * step}]" for lane in range(block))
            out.add(f"const vec tap{row}_{column} = {{{lanes}}};")
    kind = ("vec", repr)
    for column in range(3):

        def keep(point: int, text: str, column: int = column) -> None:
            if plan.across is None:
                out.add(f"meta500::store_narrow(to + {(point * 3 + column) * block}, {text});")
            else:
                out.add(f"const vec part{point}_{column} = {text};")

        linear(out, plan.down.filter, [f"tap{row}_{column}" for row in range(3)], keep, kind)
    if plan.across is not None:
        plane = block * points * plan.summed.size
        for point in range(points):

            def put(line: int, text: str, point: int = point) -> None:
                out.add(f"meta500::store_narrow(to + {line * plane + point * block}, {text});")

            linear(out, plan.across.filter, [f"part{point}_{column}" for column in range(3)], put, kind)
    out.close(2)
    return out.lines


def _by_columns(
    out: Lines, matrix: Matrix, given: Sequence[str], use: Callable[[int, str], None], vector: str = "vec"
) -> None:
    """A matrix by variables of C++, as :func:`linear`.

    The columns of a point and of its negative differ by signs only: sums and differences of their variables
    are computed once.
    """
    columns = list(zip(*matrix, strict=True))
    found: list[tuple[str, Sequence[Fraction]]] = []
    position = 0
    while position < len(columns):
        pair = columns[position : position + 2]
        name = given[position]
        if len(pair) < 2 or any(abs(a) != abs(b) for a, b in zip(*pair, strict=True)):
            found.append((name, pair[0]))
            position += 1
            continue
        other = given[position + 1]
        out.add(f"const {vector} {name}_plus = {name} + {other}, {name}_minus = {name} - {other};")
        found.append((f"{name}_plus", [a if a == b else Fraction(0) for a, b in zip(*pair, strict=True)]))
        found.append((f"{name}_minus", [a if a != b else Fraction(0) for a, b in zip(*pair, strict=True)]))
        position += 2
    rows = tuple(zip(*(column for _, column in found), strict=True))
    linear(out, rows, [name for name, _ in found], use, (vector, number))
