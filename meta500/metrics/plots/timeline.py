"""What every rank did when, from a timeline in Chrome's Trace Event Format.

`meta500.distributed.timeline` writes such files; they are all that is needed here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.style import (
    HATCHES,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    new_figure,
    save,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LANES = ("compute", "communication")
# Of an entry of the legend.
MOST_LETTERS = 48
STEP_LANE = "step"
# Names that take most of the time of their lane get a colour of their own.
COLORED = 6
OTHERS, OTHERS_COLOR = "others", "#AAAAAA"
# Without a range, this many steps at the end are drawn.
LAST_STEPS = 2
LANE_HEIGHT = 0.36


class Span(NamedTuple):
    """One thing that a rank did; seconds since the beginning of the timeline."""

    rank: int
    lane: str
    name: str
    begin: float
    end: float
    bytes: int


def timeline_plot(
    trace: str | Path,
    paths: str | Path | Sequence[str | Path],
    *,
    begin: float | None = None,
    end: float | None = None,
) -> list[Path]:
    """Write what `draw_timeline` draws from a trace file; returns the paths.

    Raises:
        UserError: as `read_trace`, `draw_timeline` and `meta500.metrics.plots.style.save`.
    """
    return save(draw_timeline(read_trace(trace), begin=begin, end=end), paths)


def read_trace(path: str | Path) -> list[Span]:
    """The spans of a trace file, in its order.

    Raises:
        UserError: the file cannot be read or is no trace.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: is no timeline: no JSON ({error})") from None
    try:
        entries = content["traceEvents"]
        spans = []
        for entry in entries:
            if entry["ph"] != "X":
                continue
            start = entry["ts"] * 1e-6
            count = int(entry.get("args", {}).get("bytes", 0))
            lane = str(entry.get("cat", entry["tid"]))
            spans.append(
                Span(int(entry["pid"]), lane, str(entry["name"]), start, start + entry["dur"] * 1e-6, count)
            )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: is no timeline in the Trace Event Format: {error!r}") from None
    return spans


def hidden_share(spans: Sequence[Span], rank: int) -> float:
    """Share of a rank's communication time during which it computed too; NaN without communication."""
    compute = union([(s.begin, s.end) for s in spans if s.rank == rank and s.lane == "compute"])
    communication = union([(s.begin, s.end) for s in spans if s.rank == rank and s.lane == "communication"])
    total = sum(end - begin for begin, end in communication)
    if not total:
        return math.nan
    both = sum(
        max(0.0, min(a_end, b_end) - max(a_begin, b_begin))
        for a_begin, a_end in compute
        for b_begin, b_end in communication
    )
    return both / total


def union(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Disjoint intervals, in order, that cover the same points."""
    result: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if result and begin <= result[-1][1]:
            result[-1] = (result[-1][0], max(result[-1][1], end))
        else:
            result.append((begin, end))
    return result


def draw_timeline(spans: Sequence[Span], *, begin: float | None = None, end: float | None = None) -> Figure:
    """One band per rank with a lane for computation and one for communication.

    At the right of every band stands the share of the communication time that is hidden behind computation.
    Thin lines mark the steps.

    Args:
        spans: what `read_trace` gives.
        begin, end: seconds of the timeline to draw; by default its last two steps, or all of it where
            it has no steps.

    Raises:
        UserError: there is nothing in this range.
    """
    low, high = _range(spans, begin, end)
    shown = [span for span in spans if span.end > low and span.begin < high]
    ranks = sorted({span.rank for span in shown})
    drawn = [span for span in shown if span.lane != STEP_LANE]
    if not drawn:
        raise UserError(f"timeline: nothing happens from {low:g} s to {high:g} s; choose another range")
    lanes = [*LANES, *sorted({span.lane for span in drawn} - set(LANES))]
    lanes = [lane for lane in lanes if any(span.lane == lane for span in drawn)]
    looks = _looks(drawn, lanes)
    factor, unit = time_unit(high - low)
    # A gap between ranks, as high as half of a lane.
    band = len(lanes) + 0.5
    with drawing():
        figure = new_figure(WIDTH, 0.75 + LANE_HEIGHT * band * len(ranks))
        axes = figure.add_subplot()
        handles: dict[str, object] = {}
        for row, rank in enumerate(ranks):
            for position, lane in enumerate(lanes):
                y = row * band + position
                _draw_lane(
                    axes,
                    [s for s in drawn if (s.rank, s.lane) == (rank, lane)],
                    y,
                    low,
                    factor,
                    looks,
                    handles,
                )
            clipped = [
                s._replace(begin=max(s.begin, low), end=min(s.end, high)) for s in drawn if s.rank == rank
            ]
            share = hidden_share(clipped, rank)
            if not math.isnan(share):
                axes.annotate(
                    f"{100 * share:.0f} %\nhidden",
                    (1.01, row * band + (len(lanes) - 1) / 2),
                    xycoords=("axes fraction", "data"),
                    va="center",
                    fontsize=8,
                )
            for step in (s for s in shown if s.rank == rank and s.lane == STEP_LANE):
                for moment in (step.begin, step.end):
                    if low <= moment <= high:
                        x = (moment - low) * factor
                        axes.plot(
                            [x, x],
                            [row * band - 0.6, row * band + len(lanes) - 0.4],
                            color="black",
                            linewidth=0.6,
                            linestyle=":",
                        )
        ticks = [row * band + position for row in range(len(ranks)) for position in range(len(lanes))]
        axes.set_yticks(ticks, [f"rank {rank}: {lane}" for rank in ranks for lane in lanes])
        axes.set_ylim(len(ranks) * band - 0.75, -0.75)
        axes.set_xlim(0, (high - low) * factor)
        axes.set_xlabel(f"time [{unit}]")
        axes.grid(axis="y", visible=False)
        names = [name for name in looks if name in handles]
        legend_below(figure, [handles[name] for name in names], [_short(name) for name in names])
    return figure


def _short(name: str) -> str:
    """A name that fits into the legend: of lists of tensors the first, and how many more there are."""
    if len(name) <= MOST_LETTERS:
        return name
    first, *others = name.split(", ")
    first = first if len(first) <= MOST_LETTERS else f"{first[: MOST_LETTERS - 3]}..."
    return f"{first} and {len(others)} more" if others else first


def _range(spans: Sequence[Span], begin: float | None, end: float | None) -> tuple[float, float]:
    if not spans:
        raise UserError("timeline: there is nothing in it")
    first, last = min(span.begin for span in spans), max(span.end for span in spans)
    if begin is None and end is None:
        root = min(span.rank for span in spans)
        steps = sorted((s.begin, s.end) for s in spans if s.lane == STEP_LANE and s.rank == root)[
            -LAST_STEPS:
        ]
        if steps:
            names = {(s.begin, s.end): s.name for s in spans if s.lane == STEP_LANE and s.rank == root}
            wanted = {names[step] for step in steps}
            same = [s for s in spans if s.lane == STEP_LANE and s.name in wanted]
            first, last = min(s.begin for s in same), max(s.end for s in same)
    low = first if begin is None else begin
    high = last if end is None else end
    if not low < high:
        raise UserError(f"timeline: the range from {low:g} s to {high:g} s is empty")
    return low, high


def _looks(spans: Sequence[Span], lanes: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Colour and hatch of each name; in lanes after the first, bars are hatched."""
    totals: dict[str, float] = {}
    lane_of: dict[str, str] = {}
    for span in spans:
        totals[span.name] = totals.get(span.name, 0.0) + span.end - span.begin
        lane_of.setdefault(span.name, span.lane)
    most = sorted(totals, key=lambda name: -totals[name])[:COLORED]
    most.sort(key=lambda name: (lanes.index(lane_of[name]), -totals[name]))
    looks = {
        name: (PALETTE[index % len(PALETTE)], HATCHES[0 if lane_of[name] == "compute" else 1])
        for index, name in enumerate(most)
    }
    if len(totals) > len(most):
        looks[OTHERS] = (OTHERS_COLOR, "")
    return looks


def _draw_lane(
    axes: Axes,
    spans: Sequence[Span],
    y: float,
    low: float,
    factor: float,
    looks: dict[str, tuple[str, str]],
    handles: dict[str, object],
) -> None:
    """Bars of one lane; what runs at the same time shares its height."""
    if not spans:
        return
    ordered = sorted(spans, key=lambda span: (span.begin, span.end))
    slots = _slots(ordered)
    height = 0.8 / (max(slots) + 1)
    for name, (color, hatch) in looks.items():
        chosen = [
            k for k, span in enumerate(ordered) if (span.name if span.name in looks else OTHERS) == name
        ]
        for slot in sorted({slots[k] for k in chosen}):
            bars = [
                ((ordered[k].begin - low) * factor, (ordered[k].end - ordered[k].begin) * factor)
                for k in chosen
                if slots[k] == slot
            ]
            handle = axes.broken_barh(
                bars,
                (y - 0.4 + slot * height, height),
                facecolor=color,
                edgecolor="white" if hatch else color,
                hatch=hatch,
                linewidth=0.2,
                zorder=2,
            )
            handles.setdefault(name, handle)


def _slots(ordered: Sequence[Span]) -> list[int]:
    """For spans by begin, the first row that is free, so that bars of one row do not overlap."""
    ends: list[float] = []
    slots = []
    for span in ordered:
        free = np.nonzero(np.asarray(ends) <= span.begin + 1e-9)[0]
        if len(free):
            slot = int(free[0])
            ends[slot] = span.end
        else:
            slot = len(ends)
            ends.append(span.end)
        slots.append(slot)
    return slots
