"""What the rows say about matrix products and convolutions (sections 5.3 and 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler import products
from meta500.benchmarks.studies.compiler.convolutions import ALONE, BLOCK, SINGLE
from meta500.benchmarks.studies.compiler.derived import (
    block_kernel,
    calls,
    count_of,
    grouped,
    inverse,
    kernel_of,
    named,
    paid_back,
    ratios,
    words,
)
from meta500.benchmarks.studies.compiler.fresh import NUMPY
from meta500.benchmarks.studies.compiler.profiled import INSIDE
from meta500.benchmarks.studies.compiler.settings import EAGER, MODES
from meta500.benchmarks.studies.select import one, select, unique
from meta500.metrics.report import (
    Figure,
    Paragraph,
    Section,
    Table,
)
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from meta500.metrics.plots.lines import Line, LinePanel


def operation_sections(rows: Sequence[Row]) -> list[Section]:
    """Sections with the tables and figures of products, convolutions and blocks, where measured."""
    made = [_product_section(rows), _single_section(rows), _resnet_section(rows), _block_section(rows)]
    return [section for section in made if section is not None]


def _product_section(rows: Sequence[Row]) -> Section | None:
    mine = select(rows, phase=products.PHASE)
    times = [row for row in select(mine, quantity="time") if row.value is not None]
    if not times:
        return None
    parts: list[Table | Figure] = []
    for device, of_device in grouped(times, lambda row: row.device).items():
        parts.append(_product_table(select(mine, device=device), of_device, device))
    parts.append(
        Figure(
            "matrix-products",
            "Matrix products of two square matrices: time of one call without compile time, and compiled "
            "relative to interpreted; medians with 95 % intervals. Figure 5.1 of the thesis.",
            partial(_draw_products, times, ratios(mine)),
        )
    )
    first = [row for row in select(mine, quantity="first_call") if row.value is not None]
    if len(unique(first, "node")) > 1:
        parts.append(
            Figure(
                "matrix-products-with-compile-time",
                "First call of a matrix product in a fresh process, with compile time where it is "
                "compiled. The first figure of the thesis's appendix.",
                partial(_draw_first_products, first),
            )
        )
    return Section("Matrix products", parts)


def _product_table(rows: Sequence[Row], times: Sequence[Row], device: str) -> Table:
    lines = []
    for row in times:
        key = {"node": row.node, "backend": row.backend, "mode": row.mode}
        first = one(rows, quantity="first_call", **key)
        pays = paid_back(rows, row.mode, node=row.node) if row.mode in MODES else None
        lines.append(
            [
                row.node.removeprefix("size "),
                "NumPy" if row.backend == NUMPY else named(row.mode),
                tables.timed(row),
                tables.interval(one(rows, quantity="ratio", **key)),
                tables.error(row),
                tables.duration(first.value if first else None),
                calls(pays),
            ]
        )
    return Table(
        f"Matrix products on {device}",
        ["size", "by", "time", "relative to interpreted", "error", "first call", "pays after calls"],
        lines,
        left=2,
        note=(
            "Errors are the largest relative ones against float64. First calls are those of fresh processes."
        ),
    )


def _size(row: Row) -> float:
    return float(row.node.split()[-1])


def _lines(rows: Sequence[Row], label: str, x: list[float]) -> Line:
    from meta500.metrics.plots.lines import Line

    return Line(
        label,
        x,
        [row.value if row.value is not None else float("nan") for row in rows],
        *(
            [end if end is not None else (row.value or float("nan")) for row, end in ends]
            for ends in ([(row, row.low) for row in rows], [(row, row.high) for row in rows])
        ),
    )


def _by(row: Row) -> str:
    return "NumPy" if row.backend == NUMPY else named(row.mode)


def _draw_products(times: Sequence[Row], ratio_rows: Sequence[Row]) -> Drawing:
    from meta500.metrics.plots.lines import LinePanel, draw_lines

    panels: list[LinePanel] = []
    for device, of_device in grouped(times, lambda row: row.device).items():
        series = grouped(of_device, _by)
        panels.append(
            LinePanel(
                f"time on {device}",
                "rows and columns",
                "time per call ({unit})",
                [_lines(of, label, [_size(row) for row in of]) for label, of in series.items()],
                log_x=True,
                log_y=True,
                seconds=True,
            )
        )
        relative = grouped([row for row in ratio_rows if row.device == device], _by)
        if relative:
            panels.append(
                LinePanel(
                    f"compiled / interpreted on {device}",
                    "rows and columns",
                    "ratio of times",
                    [_lines(of, label, [_size(row) for row in of]) for label, of in relative.items()],
                    log_x=True,
                    log_y=True,
                    marks=[(1.0, "")],
                )
            )
    return draw_lines(panels)


def _draw_first_products(first: Sequence[Row]) -> Drawing:
    from meta500.metrics.plots.lines import LinePanel, draw_lines

    panels = [
        LinePanel(
            f"first call on {device}",
            "rows and columns",
            "time of the first call ({unit})",
            [_lines(of, label, [_size(row) for row in of]) for label, of in grouped(of_device, _by).items()],
            log_x=True,
            log_y=True,
            seconds=True,
        )
        for device, of_device in grouped(first, lambda row: row.device).items()
    ]
    return draw_lines(panels)


def _ratio_table(title: str, rows: Sequence[Row], what: str) -> Table:
    """Times and ratios of things by their node: one line per thing and compiled mode."""
    lines = []
    for node, of_node in grouped(select(rows, quantity="time"), lambda row: row.node).items():
        plain = one(of_node, mode=EAGER)
        for row in of_node:
            if row.mode in MODES:
                ratio = one(rows, quantity="ratio", node=node, mode=row.mode)
                speedup = "-" if ratio is None else words(inverse(ratio))
                lines.append(
                    [
                        node,
                        row.mode,
                        "-" if plain is None else tables.timed(plain),
                        tables.timed(row),
                        speedup,
                        tables.error(row),
                    ]
                )
    return Table(
        title,
        [what, "mode", "interpreted", "compiled", "speedup", "error"],
        lines,
        left=2,
        note="Speedup: interpreted over compiled, paired by round. Errors are against float64.",
    )


def _single_section(rows: Sequence[Row]) -> Section | None:
    mine = select(rows, phase=SINGLE)
    if not ratios(mine):
        return None
    return Section(
        "Single convolutions",
        [
            _ratio_table("Single convolutions", mine, "convolution"),
            Figure(
                "convolution-kernels",
                "Speedup (interpreted over compiled time, logarithmic) of single convolutions against "
                "the size of their square kernel, for all strides and paddings, with 95 % intervals; "
                "below 1 compiling slows down. Figure 5.3 of the thesis.",
                partial(_draw_kernels, ratios(mine)),
            ),
        ],
    )


def _draw_kernels(found: Sequence[Row]) -> Drawing:
    from meta500.metrics.plots.lines import LinePanel, draw_lines

    panels = []
    for mode, of_mode in grouped(found, lambda row: row.mode).items():
        series = grouped(of_mode, lambda row: ",".join(row.node.split(",")[2:]).strip())
        panels.append(
            LinePanel(
                named(mode),
                "square kernel",
                "speedup",
                [speedup_line(of, label, [_side(row) for row in of]) for label, of in series.items()],
                log_y=True,
                x_ticks=sorted({_side(row) for row in of_mode}),
                marks=[(1.0, "")],
            )
        )
    return draw_lines(panels)


def speedup_line(rows: Sequence[Row], label: str, x: list[float]) -> Line:
    """A line of speedups from rows "ratio"."""
    from meta500.metrics.plots.lines import Line

    found = [inverse(row) for row in rows]
    return Line(label, x, [f.value for f in found], [f.low for f in found], [f.high for f in found])


def _side(row: Row) -> float:
    return float(kernel_of(row).split("x")[0])


def _resnet_section(rows: Sequence[Row]) -> Section | None:
    alone, inside = select(rows, phase=ALONE), select(rows, phase=INSIDE)
    if not ratios([*alone, *inside]):
        return None
    nodes = unique([*alone, *inside], "node")
    lines = []
    for node in nodes:
        cells = [node]
        for mine in (alone, inside):
            of_node = select(mine, node=node)
            plain = one(of_node, quantity="time", mode=EAGER)
            ratio = next(iter(ratios(of_node)), None)
            refused = next((r for r in of_node if r.verdict in ("unsupported", "failed")), None)
            cells += [
                "-" if plain is None else tables.timed(plain),
                words(inverse(ratio))
                if ratio is not None
                else refused.verdict
                if refused is not None
                else "-",
            ]
        lines.append(cells)
    columns = ["convolution", "alone, interpreted", "speedup alone", "in the network, interpreted"]
    parts: list[Paragraph | Table | Figure] = [
        Table(
            "The convolutions of ResNet-50, each kind once",
            [*columns, "speedup in the network"],
            lines,
            note=(
                "Alone: whole calls by the clock. In the network: PyTorch's profiler, mean over all of a "
                "kind."
            ),
        ),
        Figure(
            "resnet-convolutions",
            "Speedup by compiling of every kind of convolution of ResNet-50: alone, by the clock, and "
            "inside of the network, by PyTorch's profiler; medians with 95 % intervals, hollow where "
            "they reach over 1. Figure 5.4 of the thesis.",
            partial(_draw_resnet, ratios(alone), ratios(inside)),
        ),
    ]
    return Section("The convolutions of ResNet-50", parts)


def _draw_resnet(alone: Sequence[Row], inside: Sequence[Row]) -> Drawing:
    from meta500.metrics.plots.bars import Ratio
    from meta500.metrics.plots.speedups import draw_speedups

    points = []
    for group, of_group in (("alone", alone), ("in the network, by the profiler", inside)):
        for row in of_group:
            speedup = inverse(row)
            points.append(Ratio(row.node, speedup.value, speedup.low, speedup.high, group))
    return draw_speedups(
        points,
        quantity="speedup (interpreted over compiled time, 95 % interval)",
        below="slower",
        above="faster",
    )


def _block_section(rows: Sequence[Row]) -> Section | None:
    mine = select(rows, phase=BLOCK)
    if not ratios(mine):
        return None
    return Section(
        "Blocks of convolutions",
        [
            _ratio_table("Convolutions in a row", mine, "block"),
            Figure(
                "convolution-blocks",
                "Speedup (interpreted over compiled time) against the number of convolutions in a row, "
                "with 95 % intervals. Figure 5.5 of the thesis.",
                partial(_draw_blocks, ratios(mine)),
            ),
        ],
    )


def _draw_blocks(found: Sequence[Row]) -> Drawing:
    from meta500.metrics.plots.lines import LinePanel, draw_lines

    series = grouped(found, lambda row: f"{block_kernel(row)}, {named(row.mode)}")
    panel = LinePanel(
        "",
        "convolutions in a row",
        "speedup",
        [speedup_line(of, label, [float(count_of(row)) for row in of]) for label, of in series.items()],
        log_x=True,
        log_y=True,
        x_ticks=sorted({float(count_of(row)) for row in found}),
        marks=[(1.0, "")],
    )
    return draw_lines([panel])
