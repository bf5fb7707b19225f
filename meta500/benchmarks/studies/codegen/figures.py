"""The figures of the study, drawn from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from meta500.benchmarks.studies.codegen.cases import (
    Case,
    headline_cases,
    network_title,
    rates,
    slowdown,
    training_cases,
    trusted,
    variant_title,
)
from meta500.benchmarks.studies.codegen.convolutions import FORWARD, LIGHT_SPEED
from meta500.benchmarks.studies.codegen.generation_worker import COMPILING
from meta500.benchmarks.studies.codegen.settings import DOUBLE, SINGLE
from meta500.benchmarks.studies.select import one, select, unique
from meta500.benchmarks.variants import GENERATED, PLAIN_TORCH, TUNED
from meta500.metrics.report import Figure
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from meta500.metrics.plots.lines import Line

MIB = 2**20
INTERVALS = "median, 95 % interval"


def epochs_figures(rows: Sequence[Row]) -> list[Figure]:
    """Epochs per second against threads, a figure per precision and batch with a panel per network.

    Where there is only one number of threads, bars.
    """
    cases = [c for c in training_cases(rows) if any(trusted(row) for row in rates(rows, c))]
    figures = []
    for dtype, batch in dict.fromkeys((c.dtype, c.batch) for c in cases):
        mine = [c for c in cases if (c.dtype, c.batch) == (dtype, batch)]
        counts = sorted({case.threads for case in mine})
        words = (
            f"Epochs (128 images) per second of training, {_words(dtype, batch)}; median and 95 % interval."
        )
        words += (
            " Both axes are logarithmic." if len(counts) > 1 else " Tuned variants stand in the table alone."
        )
        name = f"epochs-per-second-{_name(dtype, batch)}"
        draw = partial(_draw_epochs if len(counts) > 1 else _draw_epoch_bars, rows, mine)
        figures.append(Figure(name, f"{words} The graphs of section {_section(dtype)}.", draw))
    return figures


def _name(dtype: str, batch: int) -> str:
    return f"batch-{batch}" + ("-double" if dtype == DOUBLE else "")


def _section(dtype: str) -> str:
    return "6.3.6" if dtype == DOUBLE else "6.3.5"


def _words(dtype: str, batch: int) -> str:
    return f"{'double' if dtype == DOUBLE else 'single'} precision, batch {batch}"


def _draw_epochs(rows: Sequence[Row], cases: Sequence[Case]) -> Drawing:
    from meta500.metrics.plots.lines import LinePanel, draw_lines

    counts = sorted({case.threads for case in cases})
    panels = []
    for model in dict.fromkeys(case.model for case in cases):
        found = [r for c in cases if c.model == model for r in rates(rows, c) if trusted(r)]
        lines = _lines(found, lambda row: float(row.threads or 0))
        look: dict[str, Any] = {"log_x": True, "log_y": True, "x_ticks": counts}
        panels.append(LinePanel(network_title(model), "threads", "epochs/s", lines, **look))
    return draw_lines(panels)


def _draw_epoch_bars(rows: Sequence[Row], cases: Sequence[Case]) -> Drawing:
    from meta500.metrics.plots import Bar
    from meta500.metrics.plots.bars import draw_bars

    bars = [
        Bar(network_title(case.model), variant_title(row), row.value, row.low, row.high)
        for case in cases
        for row in rates(rows, case)
        # With all variants there would be more bars than colours.
        if trusted(row) and not row.mode.endswith(TUNED)
    ]
    return draw_bars(bars, quantity="epochs", unit="1/s", interval=INTERVALS)


def _lines(found: Sequence[Row], x: Callable[[Row], float]) -> list[Line]:
    """A line per variant, in the order in which they first come; points from left to right."""
    from meta500.metrics.plots.lines import Line

    lines = []
    # The generated code first, so that it has the same colour everywhere.
    names = dict.fromkeys(map(variant_title, sorted(found, key=lambda row: row.backend != GENERATED)))
    for name in names:
        points = sorted((row for row in found if variant_title(row) == name), key=x)
        y = [float(row.value or 0.0) for row in points]
        low = [v if r.low is None else r.low for r, v in zip(points, y, strict=True)]
        high = [v if r.high is None else r.high for r, v in zip(points, y, strict=True)]
        lines.append(Line(name, [x(row) for row in points], y, low, high))
    return lines


def speedup_figures(rows: Sequence[Row]) -> list[Figure]:
    """The time of PyTorch's variants over that of the generated code, a figure per precision and batch."""
    from meta500.metrics.plots import Ratio

    groups: dict[tuple[str, int], list[Ratio]] = {}
    for case in headline_cases(rows):
        for row in rates(rows, case):
            found = slowdown(rows, case, row.mode) if row.backend == PLAIN_TORCH else None
            if found is not None and found.value and found.low is not None and found.high is not None:
                ratio = Ratio(row.mode, found.value, found.low, found.high, network_title(case.model))
                groups.setdefault((case.dtype, case.batch), []).append(ratio)

    def draw(ratios: Sequence[Ratio]) -> Drawing:
        from meta500.metrics.plots.bars import draw_ratios

        return draw_ratios(
            ratios,
            quantity="time of a training step over that of the generated code",
            above="generated is faster",
            below="PyTorch is faster",
        )

    return [
        Figure(
            f"speedup-{_name(*group)}",
            "How many times as long as the generated code PyTorch takes for a training step, "
            f"{_words(*group)}, all threads; paired by round. Section {_section(group[0])}; the thesis "
            "measures eager PyTorch.",
            partial(draw, ratios),
        )
        for group, ratios in groups.items()
    ]


def generation_figure(rows: Sequence[Row]) -> list[Figure]:
    """Times of generating, of compiling, and of PyTorch's first call, against parameters."""
    parameters = {r.model: r.value or 0.0 for r in select(rows, quantity="parameters")}
    groups = {
        "generating": select(rows, quantity="time", phase="generating"),
        "compiling the generated code": select(rows, quantity="time", phase=COMPILING),
        "PyTorch compile, first step": first_calls(rows, "compile"),
    }
    kept = {
        name: sorted(
            (r for r in found if trusted(r) and r.model in parameters), key=lambda r: parameters[r.model]
        )
        for name, found in groups.items()
    }
    if not kept["generating"]:
        return []

    def draw() -> Drawing:
        from meta500.metrics.plots.lines import Line, LinePanel, draw_lines

        lines = []
        for name, found in kept.items():
            if found:
                y = [float(r.value or 0.0) for r in found]
                low = [v if r.low is None else r.low for r, v in zip(found, y, strict=True)]
                high = [v if r.high is None else r.high for r, v in zip(found, y, strict=True)]
                lines.append(Line(name, [parameters[r.model] for r in found], y, low, high))
        ticks = sorted(set(parameters.values()))
        look: dict[str, Any] = {"log_x": True, "log_y": True, "x_ticks": ticks, "seconds": True}
        return draw_lines([LinePanel("", "trainable parameters", "time ({unit})", lines, **look)])

    caption = (
        "Times of generating the code of a training step (lowering, scheduling, printing) and of compiling "
        "it, with an empty cache, against trainable parameters; beside them the first step of PyTorch's "
        "compiler. The graph of section 6.3.2."
    )
    return [Figure("generation", caption, draw)]


def first_calls(rows: Sequence[Row], mode: str) -> list[Row]:
    """First training steps of a PyTorch variant with empty caches, one per network."""
    found: dict[str, Row] = {}
    for row in select(rows, quantity="first_call", backend=PLAIN_TORCH, mode=mode):
        # A start that was measured for itself is preferred to one among the epochs.
        known = row.value is not None and "warm" not in row.protocol
        if known and (row.model not in found or "cold" in row.protocol):
            found[row.model] = row
    return list(found.values())


def memory_figure(rows: Sequence[Row]) -> list[Figure]:
    """Peak memory against n, a panel per batch."""
    peaks = [r for r in select(rows, quantity="peak_memory") if trusted(r)]
    batches = sorted({r.batch or 0 for r in peaks})
    if not batches:
        return []

    def exponent(row: Row) -> float:
        return float(row.model.removeprefix("unet-"))

    def draw() -> Drawing:
        from meta500.metrics.plots.lines import Line, LinePanel, draw_lines

        panels = []
        for batch in batches:
            lines = [
                Line(
                    line.label,
                    line.x,
                    [v / MIB for v in line.y],
                    [v / MIB for v in line.low or line.y],
                    [v / MIB for v in line.high or line.y],
                )
                for line in _lines([r for r in peaks if r.batch == batch], exponent)
            ]
            planned = sorted(select(rows, quantity="planned_memory", batch=batch), key=exponent)
            if planned:
                before = [one(rows, quantity="memory_before", backend=GENERATED, batch=batch, model=r.model)
                          for r in planned]  # fmt: skip
                y = [
                    ((r.value or 0.0) + (b.value or 0.0)) / MIB if b is not None else float("nan")
                    for r, b in zip(planned, before, strict=True)
                ]
                lines.append(Line("generated, by its memory plan", [exponent(r) for r in planned], y))
            ticks = sorted({x for line in lines for x in line.x})
            panels.append(
                LinePanel(f"batch {batch}", "n", "peak memory (MiB)", lines, log_y=True, x_ticks=ticks)
            )
        return draw_lines(panels)

    caption = (
        "Highest resident memory of a training process, and what the generated code's plan of memory "
        "predicts (planned memory and what the process held before the network was made). The graph of "
        "section 6.3.10."
    )
    return [Figure("memory", caption, draw)]


def layers_figure(rows: Sequence[Row]) -> list[Figure]:
    """Shares of groups of layers in the time of all kernels."""
    from meta500.metrics.plots import Bar

    shares = [r for r in select(rows, quantity="layer_share") if r.value is not None]
    if not shares:
        return []
    total: dict[str, float] = {}
    for row in shares:
        total[row.operator] = total.get(row.operator, 0.0) + (row.value or 0.0)
    bars = []
    for group in sorted(total, key=lambda name: -total[name]):
        for row in (r for r in shares if r.operator == group):
            value, low, high = (None if v is None else 100 * v for v in (row.value, row.low, row.high))
            bars.append(Bar(group, Case.of(row).title, value, low, high))

    def draw() -> Drawing:
        from meta500.metrics.plots.bars import draw_bars

        return draw_bars(bars, quantity="share of all kernels", unit="%", log=False, interval=INTERVALS)

    caption = (
        "Where a training step of the generated code spends its time, by one thread. A kernel in which "
        "layers are fused stands under the names of all of them. Corresponds to table 8."
    )
    return [Figure("layers", caption, draw)]


def roofline_figures(rows: Sequence[Row]) -> list[Figure]:
    """Single convolutions under the machine's limits, and their epochs per second beside light speed."""
    from meta500.metrics.plots import Bar, Point, limits_from_rows

    limits = limits_from_rows(rows, SINGLE)
    timed = [
        r for r in select(rows, quantity="time", phase=FORWARD, operator="Conv") if trusted(r) and r.value
    ]
    points, bars = [], []
    for node in unique(timed, "node"):
        numbers = [one(rows, quantity=q, node=node) for q in ("flops", "bytes_read", "bytes_written")]
        if None in numbers:
            continue
        flops, read, written = (float(r.value or 0.0) for r in numbers if r is not None)
        for row in (r for r in timed if r.node == node):
            speed, low, high = (flops / t if t else None for t in (row.value, row.high, row.low))
            cached = "cache" in _bound(rows, node)
            intensity = flops / (read + written)
            points.append(Point(node, variant_title(row), intensity, speed or 0.0, low, high, cached))
            rate = one(rows, quantity="epoch_rate", node=node, backend=row.backend, mode=row.mode)
            if rate is not None and rate.value is not None:
                bars.append(Bar(node, variant_title(row), rate.value, rate.low, rate.high))
        light = one(rows, quantity=LIGHT_SPEED, node=node)
        if light is not None:
            bars.append(Bar(node, "light speed", light.value))
    if not points:
        return []
    names = ", ".join(dict.fromkeys(network_title(r.model) for r in timed))

    def draw_bars_of() -> Drawing:
        from meta500.metrics.plots.bars import draw_bars

        return draw_bars(bars, quantity="epochs of this layer alone", unit="1/s", interval=INTERVALS)

    figures = []
    # A study that was interrupted may have times without rates.
    if bars:
        caption = (
            f"Forward passes of single convolutions of {names}, in epochs (128 images) per second, and what "
            "the roofline allows. The graphs of section 6.3.7."
        )
        figures.append(Figure("convolutions", caption, draw_bars_of))
    if limits is None:
        return figures

    def draw() -> Drawing:
        from meta500.metrics.plots import draw_roofline

        return draw_roofline(points, limits, title=f"convolutions of {names}, forward")

    caption = (
        "The same convolutions under the measured limits of this machine; operations are those of the direct "
        "form, bytes the least traffic."
    )
    return [*figures, Figure("roofline", caption, draw)]


def _bound(rows: Sequence[Row], node: str) -> str:
    light = one(rows, quantity=LIGHT_SPEED, node=node)
    return "" if light is None else light.note
