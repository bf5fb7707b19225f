"""What stands behind predictions of scaling: their errors; messages and allreduces with the fitted model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meta500.metrics.plots.scaling import GREY, HEIGHT, Study, look
from meta500.metrics.plots.style import (
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    literal,
    new_figure,
    plain_log_ticks,
    titled,
)
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Errors within this are what the model promises.
PROMISED = 0.2


def draw_errors(study: Study) -> Figure:
    """Predicted over measured step time for every scheme, scaling and rank count, with the promised band.

    Every prediction comes from a model that was calibrated without the rank count that it is compared at;
    horizontal lines are the intervals of the measurements.
    """
    lines = [
        (f"{s.scheme}, {s.scaling}", m) for s in study.series for m in s.measured if m.checked and m.ranks > 1
    ]
    groups = list(dict.fromkeys(name for name, _ in lines))
    counts = sorted({m.ranks for _, m in lines})
    with drawing():
        figure = new_figure(WIDTH, 0.9 + 0.26 * len(groups))
        axes = figure.add_subplot()
        axes.axvspan(-100 * PROMISED, 100 * PROMISED, color="#EEEEEE", zorder=0)
        axes.axvline(0, color=GREY, linewidth=0.8, zorder=1)
        for name, m in lines:
            place = counts.index(m.ranks)
            y = groups.index(name) + 0.22 * (place - (len(counts) - 1) / 2)
            assert m.checked is not None
            color = PALETTE[place % len(PALETTE)]
            low, middle, high = (100 * (m.checked / t - 1) for t in (m.high, m.seconds, m.low))
            axes.hlines(y, low, high, color=color, linewidth=0.8)
            axes.plot(middle, y, MARKERS[place % len(MARKERS)], color=color, markersize=4.5, zorder=3)
        axes.set_yticks(range(len(groups)), list(map(literal, groups)))
        axes.set_ylim(len(groups) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        widest = max(abs(v) for v in axes.get_xlim())
        axes.set_xlim(-max(widest, 30), max(widest, 30))
        axes.set_xlabel("predicted over measured step time, minus 1 (%)")
        figure.suptitle(titled(f"predictions without the rank count, {study.title}"), fontsize=9)
        handles = [
            _legend_marker(MARKERS[place % len(MARKERS)], PALETTE[place % len(PALETTE)])
            for place in range(len(counts))
        ]
        legend_below(figure, handles, [f"{ranks} ranks" for ranks in counts])
    return figure


def _legend_marker(marker: str, color: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=color, marker=marker, linestyle="", markersize=4.5)


_PLACES = {"inside": "on a node", "shared": "on one core", "between": "between nodes"}
_KINDS = {"one_way": "one way", "exchange": "both ways"}


def draw_network(rows: Sequence[Row]) -> Figure:
    """Messages (left) and allreduces (right) against size; points are measured, lines the model."""
    messages = [r for r in rows if r.phase == "message"]
    reductions = [r for r in rows if r.phase == "collective" and r.operator == "allreduce"]
    panels: list[tuple[str, list[tuple[str, list[Row]]]]] = []
    if messages:
        kinds = dict.fromkeys((r.node, r.operator) for r in messages)
        panels.append(
            (
                "message",
                [
                    (
                        f"{_PLACES.get(n, n)}, {_KINDS.get(o, o)}",
                        [r for r in messages if (r.node, r.operator) == (n, o)],
                    )
                    for n, o in kinds
                ],
            )
        )
    if reductions:
        counts = sorted({r.ranks or 0 for r in reductions})
        panels.append(
            ("allreduce", [(f"{p} ranks", [r for r in reductions if r.ranks == p]) for p in counts])
        )
    columns = {what: 2 if max(len(n) for n, _ in groups) <= 24 else 1 for what, groups in panels}
    lines = max(-(-len(groups) // columns[what]) for what, groups in panels)
    with drawing():
        # Two lines of a legend fit below the axis.
        height = HEIGHT + 0.3 + 0.17 * max(0, lines - 2)
        figure = new_figure(WIDTH * (1.15 if len(panels) > 1 else 0.7), height)
        for axes, (what, groups) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            for index, (label, group) in enumerate(groups):
                _draw_sizes(axes, label, group, index)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            _byte_ticks(axes, sorted({_bytes(r) for _, group in groups for r in group}))
            plain_log_ticks(axes, "y")
            axes.set_xlabel("bytes")
            axes.set_ylabel(f"time of one {what} (µs)")
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns[what], handlelength=2.2)
        title = "measured (points) and modelled (lines; of allreduces, without their rank count)"
        figure.suptitle(titled(title, 100 if len(panels) > 1 else 60), fontsize=9)
    return figure


def _draw_sizes(axes: Axes, label: str, rows: Sequence[Row], index: int) -> None:
    color, marker, line = look(index)
    points = [(_bytes(r), r) for r in rows if not r.quantity.startswith("predicted")]
    measured = sorted(points, key=lambda point: point[0])
    for nbytes, row in measured:
        if row.low is not None and row.high is not None:
            axes.vlines(nbytes, 1e6 * row.low, 1e6 * row.high, color=color, linewidth=0.8)
    axes.plot(
        [n for n, _ in measured],
        [1e6 * (r.value or 0) for _, r in measured],
        marker,
        color=color,
        markersize=4,
    )
    modelled = sorted((_bytes(r), r.value or 0.0) for r in rows if r.quantity.startswith("predicted"))
    axes.plot(
        [n for n, _ in modelled], [1e6 * t for _, t in modelled], color=color, linestyle=line, linewidth=1
    )
    axes.plot(
        [], [], marker=marker, color=color, linestyle=line, linewidth=1, markersize=4, label=literal(label)
    )


def _bytes(row: Row) -> int:
    return int(row.shape.partition(" ")[0])


def _byte_ticks(axes: Axes, sizes: Sequence[int]) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter

    powers = [4 ** (2 * k + 1) for k in range(20)]
    shown = [n for n in powers if sizes[0] <= n <= sizes[-1]]
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _byte_text(value)))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _byte_text(value: float) -> str:
    for factor, unit in ((2**20, "MiB"), (2**10, "KiB")):
        if value >= factor:
            return f"{value / factor:g} {unit}"
    return f"{value:g} B"
