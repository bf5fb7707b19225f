"""Prints Winograd's form of the gradient of weights as C++ functions on vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.cpp_expressions import Printer, index, number
from meta500.backends.generated.cpp_linear import combination, linear
from meta500.backends.generated.cpp_nest import Lines, merge_end
from meta500.backends.generated.ir import Axis, Stage
from meta500.backends.generated.layout import Place
from meta500.backends.generated.toom_cook import Matrix
from meta500.backends.generated.winograd_gradient import ROWS, WinogradGradient

# Type of variables, and how numbers are written beside them.
DOUBLE = ("double", repr)


def gradient_body(plan: WinogradGradient, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    """The body of the function: ``lo`` and ``hi`` bound the rows, both multiples of the granule.

    Beside the tensors it has the argument ``scratch``.
    """
    out = Lines()
    out.depth = 1
    out.add(f"using vec = meta500::Vector<real, {plan.lanes}>;")
    out.add("real* const held_planes = scratch;")
    planes = plan.down.products * len(plan.groups[0])
    out.add(f"real* const moving_planes = scratch + {planes * plan.held_plane};")
    for axis in plan.direct.inner:
        out.loop(axis.name, axis.size)
    out.open(f"for (long band = lo; band < hi; band += {plan.band})")
    out.add(f"const long tiles = (meta500::sooner(band + {plan.band}, hi) - band) / {ROWS};")
    printer = Printer(places, names)
    out.add(f"real* to = {names[plan.stage.write.tensor]};")
    for points in plan.groups:
        _moving(out, plan, printer, points)
        _held(out, plan, printer, points)
        _sums(out, plan)
    out.close(1 + len(plan.direct.inner))
    return out.lines


def _tile(out: Lines, plan: WinogradGradient, printer: Printer, held: bool, column: str) -> int:
    """Pointer ``from`` to the first row of a tile; returns the elements between rows."""
    access = (plan.direct.first if held else plan.direct.second).access
    address = printer.places[access.tensor].address(access)
    rows, vector = plan.split.name, plan.direct.vector[0].name
    at = address.substitute(
        {
            rows: Affine.of({"band": 1, "tile": ROWS}),
            vector: Affine.axis(column),
            plan.row_tap.name: Affine(),
            plan.column_tap.name: Affine(),
        }
    )
    out.add(f"const real* const from = {printer.names[access.tensor]} + {index(at)};")
    return address.coefficient(rows)


def _assign(out: Lines, pattern: str) -> Callable[[int, str], None]:
    return lambda row, text: out.add(pattern.format(row, text))


def _store(out: Lines, first: int, plane: int) -> Callable[[int, str], None]:
    return lambda row, text: out.add(f"meta500::store<vec>(plane + {(first + row) * plane}, {text});")


def _moving(out: Lines, plan: WinogradGradient, printer: Printer, points: Sequence[int]) -> None:
    axis, lanes = plan.moving, plan.lanes
    out.add(_headline("moving", plan, points))
    out.loop("tile", "tiles")
    out.loop(axis.name, axis.size)
    to = f"real* const plane = moving_planes + ({axis.name} * {plan.tiles} + tile) * {plan.moving_row}"
    if plan.across is None:
        # The last vector overlaps with the one before it: the taps reach two columns beyond the tile.
        width = plan.direct.vector[0].size
        out.loop("part", plan.columns + 1)
        out.add(f"const long column = meta500::sooner(part * {lanes}, {width + 2 - lanes});")
        step = _tile(out, plan, printer, False, "column")
        out.add(f"{to} + column;")
        for row in range(plan.down.products):
            out.add(f"const vec row{row}_0 = meta500::load<vec>(from + {row * step});")
    else:
        out.loop("part", plan.columns)
        out.add(f"const long column = part * {2 * lanes};")
        step = _tile(out, plan, printer, False, "column")
        out.add(f"{to} + part * {lanes};")
        for row in range(plan.down.products):
            _columns(out, plan.across.moving, points, row, row * step, lanes)
    _down(out, plan.down.moving, points, plan.moving_plane)
    out.close(3)


def _down(out: Lines, matrix: Matrix, points: Sequence[int], plane: int) -> None:
    for position, point in enumerate(points):
        given = [f"row{row}_{point}" for row in range(len(matrix[0]))]
        first = position * len(matrix)
        linear(out, matrix, given, _store(out, first, plane))


def _columns(out: Lines, matrix: Matrix, points: Sequence[int], row: int, begin: int, lanes: int) -> None:
    """Combine neighbouring columns of one row: those of all tiles lie beside each other in a vector."""
    given = []
    for column in range(len(matrix[0])):
        pair, part = f"row{row}_from{column // 2 * 2}", ("even", "odd")[column % 2]
        used = any(any(matrix[point][column : column + 2]) for point in points)
        if used and column % 2 == 0:
            first = begin + column
            out.add(
                f"const vec {pair}_low = meta500::load<vec>(from + {first}), "
                f"{pair}_high = meta500::load<vec>(from + {first + lanes});"
            )
        given.append(f"meta500::{part}({pair}_low, {pair}_high)")
    for point in points:
        out.add(f"const vec row{row}_{point} = {combination(matrix[point], given, number)};")


def _held(out: Lines, plan: WinogradGradient, printer: Printer, points: Sequence[int]) -> None:
    axis, lanes = plan.held, plan.lanes
    companion = plan.companion if points == plan.groups[0] else None
    out.add(_headline("held", plan, points))
    out.loop(axis.name, axis.size)
    if companion is not None:
        out.add("vec total = {};")
    out.loop("tile", "tiles")
    out.loop("part", plan.columns)
    out.add(f"const long column = part * {lanes * (2 if plan.across else 1)};")
    step = _tile(out, plan, printer, True, "column")
    out.add(
        f"real* const plane = held_planes + ({axis.name} * {plan.tiles} + tile) * {plan.held_row} "
        f"+ part * {lanes};"
    )
    summands = []
    for row in range(ROWS):
        if plan.across is None:
            out.add(f"const vec row{row}_0 = meta500::load<vec>(from + {row * step});")
            summands.append(f"row{row}_0")
        else:
            _columns(out, plan.across.held, points, row, row * step, lanes)
            summands += [f"row{row}_from0_low", f"row{row}_from0_high"]
    if companion is not None:
        out.add(f"total += {_balanced(summands)};")
    _down(out, plan.down.held, points, plan.held_plane)
    out.close(2)
    if companion is not None:
        write = companion.stage.write
        at = printer.places[write.tensor].address(write)
        out.add(f"{printer.names[write.tensor]}[{index(at)}] += meta500::sum(total);")
    out.close()


def _headline(factor: str, plan: WinogradGradient, points: Sequence[int]) -> str:
    across = f", {' and '.join(map(str, points))} across" if plan.across else ""
    return f"// The {factor} factor at the points down{across}."


def _balanced(terms: Sequence[str]) -> str:
    if len(terms) == 1:
        return terms[0]
    half = len(terms) // 2
    return f"({_balanced(terms[:half])} + {_balanced(terms[half:])})"


def _sums(out: Lines, plan: WinogradGradient) -> None:
    """Sums of products, plane by plane, onto those of earlier bands."""
    lanes, (held, moving) = plan.lanes, plan.block
    held_channel, moving_channel = (
        plan.tiles * plan.held_row,
        plan.tiles * plan.moving_row,
    )
    out.add("// Sums of the products.")
    out.loop("plane", plan.down.products * len(plan.groups[0]))
    out.loop(plan.held.name, plan.held.size, held)
    out.open(
        f"for (long {plan.moving.name} = 0; {plan.moving.name} < {plan.moving.size}; "
        f"{plan.moving.name} += {moving}, to += {plan.pitch})"
    )
    out.add(
        f"const real* held_at = held_planes + plane * {plan.held_plane} + {plan.held.name} * {held_channel};"
    )
    out.add(
        f"const real* moving_at = moving_planes + plane * {plan.moving_plane} + "
        f"{plan.moving.name} * {moving_channel};"
    )
    order = [(k, c, q) for k in range(held) for c in range(moving) for q in range(plan.taps)]
    for k in range(held):
        names = [f"sum{a}_{c}_{q} = {{}}" for a, c, q in order if a == k]
        out.add(f"vec {', '.join(names)};")
    if plan.taps == 1:
        advance = f"held_at += {lanes}, moving_at += {lanes}"
        out.open(f"for (long at = 0; at < tiles * {plan.columns}; ++at, {advance})")
    else:
        out.open(f"for (long tile = 0; tile < tiles; ++tile, moving_at += {lanes})")
        out.open(
            f"for (long part = 0; part < {plan.columns}; ++part, held_at += {lanes}, moving_at += {lanes})"
        )
    for k in range(held):
        out.add(f"vec held{k} = meta500::load<vec>(held_at + {k * held_channel});")
        out.add(f"META500_KEEP(held{k});")
    for c in range(moving):
        for q in range(plan.taps):
            name = f"moving{c}_{q}"
            out.add(f"vec {name} = meta500::load<vec>(moving_at + {c * moving_channel + q});")
            out.add(f"META500_KEEP({name});")
            for k in range(held):
                out.add(f"sum{k}_{c}_{q} += held{k} * {name};")
    out.close(1 if plan.taps == 1 else 2)
    names = [f"sum{k}_{c}_{q}" for k, c, q in order]
    for begin in range(0, len(names), lanes):
        text = f"meta500::sums({', '.join(names[begin : begin + lanes])})"
        out.add(f"meta500::store<vec>(to + {begin}, meta500::load<vec>(to + {begin}) + {text});")
    out.close(3)


def gradient_merge_body(
    plan: WinogradGradient,
    stage: Stage,
    places: Mapping[str, Place],
    names: Mapping[str, str],
    split: Axis,
) -> list[str]:
    """The body of the function that adds up the private copies and goes from sums of products to taps.

    ``part`` points to the first copy, ``pitch`` elements lie between copies, ``copies`` is their number.
    ``lo`` and ``hi`` bound the axis ``split``; blocks that begin in the range belong to it.
    """
    out = Lines()
    out.depth = 1
    for axis, block in zip((plan.held, plan.moving), plan.block, strict=True):
        name, low, high = f"{axis.name}_block", "0", str(axis.size)
        if axis == split:
            low, high = f"(lo + {block - 1}) / {block} * {block}", "hi"
        out.open(f"for (long {name} = {low}; {name} < {high}; {name} += {block})")
    held, moving = plan.held.name, plan.moving.name
    blocks = f"{held}_block / {plan.block[0]} * {plan.moving.size // plan.block[1]}"
    out.add(f"const real* from = part + ({blocks} + {moving}_block / {plan.block[1]}) * {plan.pitch};")
    count, plane = plan.down.products, plan.copy // plan.planes
    out.add("// In double: the rounding of these few operations would add to that of the long sums.")
    out.add(f"double sums[{plan.planes}][{plan.pitch}] = {{}};")
    out.add(f"double weights[{3 * (3 if plan.across else 1)}][{plan.pitch}];")
    out.open("for (int copy = 0; copy < copies; ++copy)")
    out.loop("plane", plan.planes)
    out.add("#pragma omp simd")
    out.loop("at", plan.pitch)
    out.add(f"sums[plane][at] += from[copy * pitch + plane * {plane} + at];")
    out.close(3)
    out.add("#pragma omp simd")
    out.loop("at", plan.pitch)
    if plan.across is None:
        given = [f"sums[{n}][at]" for n in range(count)]
        linear(out, plan.down.result, given, _assign(out, "weights[{}][at] = {};"), DOUBLE)
    else:
        for position, h in enumerate(point for points in plan.groups for point in points):
            given = [f"sums[{position * count + n}][at]" for n in range(count)]
            linear(
                out,
                plan.down.result,
                given,
                _assign(out, f"const double row{{}}_{h} = {{}};"),
                DOUBLE,
            )
        for r in range(3):
            given = [f"row{r}_{h}" for h in range(plan.across.products)]
            rows = f"weights[{r} * 3 + {{}}][at] = {{}};"
            linear(out, plan.across.result, given, _assign(out, rows), DOUBLE)
    out.close()
    printer = Printer(places, names)
    for axis, block in zip((plan.held, plan.moving), plan.block, strict=True):
        name = axis.name
        out.open(f"for (long {name} = {name}_block; {name} < {name}_block + {block}; ++{name})")
    out.loop(plan.row_tap.name, 3)
    out.loop(plan.column_tap.name, 3)
    number_in_block = f"({held} - {held}_block) * {plan.block[1]} + {moving} - {moving}_block"
    down, right = plan.row_tap.name, plan.column_tap.name
    if plan.across is None:
        out.add(f"real total = real(weights[{down}][({number_in_block}) * 3 + {right}]);")
    else:
        out.add(f"real total = real(weights[{down} * 3 + {right}][{number_in_block}]);")
    merge_end(out, stage, printer)
    out.close(6)
    return out.lines
