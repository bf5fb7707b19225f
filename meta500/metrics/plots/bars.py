"""Comparisons: grouped bars with intervals, and ratios with intervals around the line at 1."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.style import (
    HATCHES,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    new_figure,
    number,
    plain_log_ticks,
    save,
    time_unit,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

BAR_INCHES = 0.17
GAP_INCHES = 0.14
LINE_INCHES = 0.23
LABEL_CHARACTERS = 32
# Of a line below the axis.
AXIS_CHARACTERS = 64
VALUE_SIZE = 7
# Ratios that reach further than this get ticks like any logarithmic axis.
WIDE = 2.5


@dataclass(frozen=True)
class Bar:
    """The value of one series in one category, with its interval and, if wanted, its raw samples.

    ``value`` None or NaN: no bar, but ``note`` (such as "unsupported") in its place.
    """

    category: str
    series: str
    value: float | None
    low: float | None = None
    high: float | None = None
    samples: tuple[float, ...] = ()
    note: str = ""

    @property
    def known(self) -> bool:
        return self.value is not None and math.isfinite(self.value)


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval; ``group`` is a heading under which neighbours are gathered."""

    label: str
    value: float
    low: float
    high: float
    group: str = ""


def bar_plot(bars: Sequence[Bar], paths: str | Path | Sequence[str | Path], **look: Any) -> list[Path]:
    """Write what `draw_bars` draws (same arguments); returns the paths.

    Raises:
        UserError: as `draw_bars` and `meta500.metrics.plots.style.save`.
    """
    return save(draw_bars(bars, **look), paths)


def ratio_plot(ratios: Sequence[Ratio], paths: str | Path | Sequence[str | Path], **look: Any) -> list[Path]:
    """Write what `draw_ratios` draws (same arguments); returns the paths.

    Raises:
        UserError: as `draw_ratios` and `meta500.metrics.plots.style.save`.
    """
    return save(draw_ratios(ratios, **look), paths)


def draw_bars(
    bars: Sequence[Bar],
    *,
    quantity: str,
    unit: str,
    title: str = "",
    log: bool | None = None,
    dots: bool = False,
    interval: str = "",
) -> Figure:
    """Horizontal bars, grouped by category, one colour and hatch per series, the value at each end.

    Every bar has a line of its own, so that neither long names nor values can collide. Categories
    and series keep the order of their first bar. Seconds are shown in the unit that fits.

    Args:
        quantity: what is measured, for the axis: "time per call".
        unit: of the values: "s", "B", "samples/s"; "1" for pure numbers.
        log: logarithmic axis; None: when the values span more than a factor 50. The bars then begin
            at the power of ten below the smallest value, and only their ends have a meaning.
        dots: draw the raw samples as dots.
        interval: what the intervals are, for the axis: "median, 95 % interval".

    Raises:
        UserError: no bar with a value, two bars for one category and series, or a value of 0 or
            less on a logarithmic axis.
    """
    known = [bar for bar in bars if bar.known]
    if not known:
        raise UserError(f"bar plot of {quantity}: no bar has a value")
    places = {(bar.category, bar.series): bar for bar in bars}
    if len(places) < len(bars):
        raise UserError(f"bar plot of {quantity}: two bars for one category and series")
    smallest, largest = _extent(known, dots)
    if log is None:
        log = smallest > 0 and largest > 50 * smallest
    if log and smallest <= 0:
        raise UserError(f"bar plot of {quantity}: a logarithmic axis needs positive values")
    middle = math.sqrt(smallest * largest) if log else max(abs(smallest), abs(largest))
    factor, unit = display_unit(middle, unit)
    smallest, largest = smallest * factor, largest * factor
    categories = list(dict.fromkeys(bar.category for bar in bars))
    series = list(dict.fromkeys(bar.series for bar in bars))
    names = [textwrap.fill(name, LABEL_CHARACTERS) for name in categories]
    with drawing():
        heights = [max(len(series) * BAR_INCHES, 0.14 * (1 + name.count("\n"))) for name in names]
        total = sum(heights) + GAP_INCHES * len(names)
        figure = new_figure(WIDTH, total + 0.55 + (0.2 if title else 0.0))
        axes = figure.subplots()
        # One unit of the y axis is one inch, so that bars are equally thick in every figure.
        centres = np.cumsum([h + GAP_INCHES for h in heights]) - np.add(heights, GAP_INCHES) / 2
        texts: list[Text] = []
        for centre, category in zip(centres, categories, strict=True):
            for index, name in enumerate(series):
                bar = places.get((category, name))
                if bar is not None:
                    y = centre + (index - (len(series) - 1) / 2) * BAR_INCHES
                    texts.append(_draw_bar(axes, bar, (float(y), index), factor, dots=dots))
        axes.set_ylim(total, 0)
        axes.set_yticks(centres, names)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.set_xlabel(f"{quantity} ({', '.join(p for p in (unit, interval) if p and p != '1')})")
        if not unit or unit == "1":
            axes.set_xlabel(f"{quantity} ({interval})" if interval else quantity)
        if log:
            axes.set_xscale("log")
            axes.set_xlim(10.0 ** math.floor(math.log10(smallest * 0.8)), largest * 1.1)
        else:
            axes.set_xlim(min(0.0, smallest * 1.1), max(0.0, largest * 1.05))
        if title:
            axes.set_title(title, loc="left")
        _legend(figure, series)
        _make_room(figure, axes, texts)
        if log:
            plain_log_ticks(axes, "x")
    return figure


def draw_ratios(
    ratios: Sequence[Ratio],
    *,
    quantity: str,
    interval: str = "95 % interval",
    title: str = "",
    below: str = "",
    above: str = "",
) -> Figure:
    """A forest plot: one line per ratio, a point with its interval, and a line at 1.

    The axis is logarithmic, and symmetric around 1 while all ratios are near it. Filled points have
    intervals that exclude 1, hollow ones do not. The numbers stand at the right.

    Args:
        quantity: for the axis: "time relative to plain PyTorch".
        interval: what the intervals are.
        below: what it means to be left of 1: "faster".
        above: what it means to be right of 1: "slower".

    Raises:
        UserError: no ratio, or one that is not positive and finite or outside of its interval.
    """
    if not ratios:
        raise UserError(f"ratio plot of {quantity}: there is no ratio")
    for ratio in ratios:
        if not (0 < ratio.low <= ratio.value <= ratio.high < math.inf):
            raise UserError(
                f"ratio plot of {quantity}: '{ratio.label}' is {ratio.value} in "
                f"[{ratio.low}, {ratio.high}]; positive numbers in order are needed"
            )
    lines: list[tuple[str, Ratio | None]] = []
    group = ""
    for ratio in ratios:
        if ratio.group != group:
            group = ratio.group
            lines.append((textwrap.fill(group, LABEL_CHARACTERS), None))
        lines.append((textwrap.fill(ratio.label, LABEL_CHARACTERS), ratio))
    with drawing():
        heights = [LINE_INCHES + 0.14 * text.count("\n") for text, _ in lines]
        centres = np.cumsum(heights) - np.array(heights) / 2
        below_axis = textwrap.fill(f"{quantity} (ratio, {interval})", AXIS_CHARACTERS)
        further = 0.16 * below_axis.count("\n") + (0.2 if title else 0.0)
        figure = new_figure(WIDTH, sum(heights) + 0.75 + further)
        axes = figure.subplots()
        axes.axvline(1.0, color="black", linewidth=0.9)
        for (_, line), y in zip(lines, centres, strict=True):
            if line is not None:
                _draw_ratio(axes, line, float(y))
        _ratio_axes(axes, ratios, lines, centres, sum(heights))
        axes.set_xlabel(below_axis)
        if below:
            _beside_one(axes, f"← {below}", -6)
        if above:
            _beside_one(axes, f"{above} →", 6)
        if title:
            axes.set_title(title, loc="left", pad=18 if below or above else 6)
    return figure


def _draw_bar(axes: Axes, bar: Bar, place: tuple[float, int], factor: float, *, dots: bool) -> Text:
    """Draw one bar at ``place`` (y, index of the series); returns the text at its end."""
    y, index = place
    look: dict[str, Any] = {
        "xytext": (4, 0),
        "textcoords": "offset points",
        "va": "center",
        "fontsize": VALUE_SIZE,
    }
    if not bar.known:
        note = bar.note or ("NaN" if bar.value is not None else "not measured")
        return axes.annotate(
            note,
            (0, y),
            xycoords=("axes fraction", "data"),
            color="#555555",
            style="italic",
            **look,
        )
    value = float(bar.value or 0) * factor
    axes.barh(
        y,
        value,
        height=BAR_INCHES * 0.88,
        color=PALETTE[index % len(PALETTE)],
        edgecolor="black",
        linewidth=0.5,
        hatch=HATCHES[index % len(HATCHES)],
    )
    end = value
    if bar.low is not None and bar.high is not None:
        low, high = bar.low * factor, bar.high * factor
        axes.hlines(y, low, high, color="black", linewidth=1.0)
        axes.plot([low, high], [y, y], "|", color="black", markersize=5, markeredgewidth=1.0)
        end = max(end, high)
    if dots and bar.samples:
        raw = np.array(bar.samples) * factor
        # Spread by a fixed pattern, so that the same data give the same picture.
        spread = (np.arange(len(raw)) * 0.618034 % 1 - 0.5) * 0.7 * BAR_INCHES
        axes.plot(raw, y + spread, ".", color="black", alpha=0.45, markersize=2.5, markeredgewidth=0)
        end = max(end, float(raw.max()))
    return axes.annotate(number(value), (end, y), **look)


def _draw_ratio(axes: Axes, ratio: Ratio, y: float) -> None:
    clear = ratio.high < 1 or ratio.low > 1
    color = PALETTE[0] if ratio.value < 1 else PALETTE[1]
    color = color if clear else "#555555"
    axes.hlines(y, ratio.low, ratio.high, color=color, linewidth=1.4)
    axes.plot([ratio.low, ratio.high], [y, y], "|", color=color, markersize=9)
    axes.plot(
        ratio.value,
        y,
        "o" if not clear else ("<" if ratio.value < 1 else ">"),
        color=color,
        markerfacecolor=color if clear else "white",
        markersize=4.5,
    )


def _beside_one(axes: Axes, text: str, points: int) -> None:
    """A text above the axes, ``points`` right (or left, if negative) of the line at 1."""
    axes.annotate(
        text,
        (1, 1),
        xycoords=("data", "axes fraction"),
        xytext=(points, 3),
        textcoords="offset points",
        ha="left" if points > 0 else "right",
        fontsize=8,
    )


def _ratio_axes(
    axes: Axes,
    ratios: Sequence[Ratio],
    lines: Sequence[tuple[str, Ratio | None]],
    centres: np.ndarray,
    bottom: float,
) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    lowest, highest = min(r.low for r in ratios), max(r.high for r in ratios)
    reach = max(max(highest, 1 / lowest) ** 1.1, 1.02)
    axes.set_xscale("log")
    axes.set_ylim(bottom, 0)
    if reach < WIDE:
        axes.set_xlim(1 / reach, reach)
        axes.xaxis.set_major_locator(FixedLocator(_ratio_ticks(reach)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_xlim(min(lowest / reach**0.1, 0.8), max(highest * reach**0.1, 1.25))
        plain_log_ticks(axes, "x")
    axes.set_yticks(centres, [text for text, _ in lines])
    for label, (_, ratio) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if ratio is None else "normal")
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    numbers = axes.secondary_yaxis("right")
    numbers.set_yticks(centres, ["" if r is None else _ratio_text(r) for _, r in lines])
    numbers.tick_params(axis="y", length=0)
    numbers.spines["right"].set_visible(False)


def _ratio_ticks(reach: float) -> list[float]:
    """Ticks at 1 and, equally far from it in percent, two on either side."""
    steps = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.4, 0.5)
    step = next((s for s in reversed(steps) if 1 + 2 * s <= reach), steps[0])
    ticks = [1 + k * step for k in range(-9, 10)]
    return [round(t, 6) for t in ticks if t > 0 and 1 / reach <= t <= reach]


def _ratio_text(ratio: Ratio) -> str:
    """Value and interval with one digit more than the width of the interval is good for."""
    width = ratio.high - ratio.low
    places = max(0, min(4, 1 - math.floor(math.log10(width * 1.001)))) if width > 0 else 3
    return f"{ratio.value:.{places}f}  [{ratio.low:.{places}f}, {ratio.high:.{places}f}]"


def _extent(bars: Sequence[Bar], dots: bool) -> tuple[float, float]:
    """Smallest and largest number that is drawn."""
    drawn: list[float] = []
    for bar in bars:
        ends = [bar.value, bar.low, bar.high, *(bar.samples if dots else ())]
        drawn += [float(v) for v in ends if v is not None and math.isfinite(v)]
    return min(drawn), max(drawn)


def display_unit(middle: float, unit: str) -> tuple[float, str]:
    """Factor and unit for an axis whose typical number is ``middle``."""
    if middle <= 0:
        return 1.0, unit
    if unit == "s":
        return time_unit(middle)
    if unit == "B":
        power = max(0, min(4, int(math.log2(middle) // 10)))
        return 1 / 1024**power, ("B", "KiB", "MiB", "GiB", "TiB")[power]
    if unit == "FLOP/s" and middle >= 1e9:
        return 1e-9, "GFLOP/s"
    return 1.0, unit


def _legend(figure: Figure, series: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    if len(series) < 2:
        return
    handles = [
        Patch(
            facecolor=PALETTE[index % len(PALETTE)],
            edgecolor="black",
            linewidth=0.5,
            hatch=HATCHES[index % len(HATCHES)],
        )
        for index in range(len(series))
    ]
    legend_below(figure, handles, series)


def _make_room(figure: Figure, axes: Axes, texts: Sequence[Text]) -> None:
    """Widen the x axis until all texts at the ends of bars lie inside the axes."""
    for _ in range(4):
        figure.draw_without_rendering()
        inside = axes.get_window_extent()
        over = max(t.get_window_extent().x1 for t in texts) - (inside.x1 - 2)
        if over <= 0:
            return
        low, high = axes.get_xlim()
        share = inside.width / max(inside.width - over * 1.1, 0.2 * inside.width)
        if axes.get_xscale() == "log":
            axes.set_xlim(low, low * (high / low) ** share)
        else:
            axes.set_xlim(low, low + (high - low) * share)
