"""Interactive figures as plain data for plotly: the same bars, curves and points as in the static figures.

A figure is a dictionary with "data" and "layout", as plotly.js takes it. Colours are those of the static
figures; the page's script replaces black by the ink of its theme. Long arrays of numbers stand in a `Store`,
each one once, and figures refer to them. All names are escaped, since plotly reads some HTML in texts.
"""

from __future__ import annotations

import base64
import html
import itertools
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.metrics.plots.bars import LABEL_CHARACTERS, Bar, Ratio, display_unit
from meta500.metrics.plots.boxes import boxed, spread
from meta500.metrics.plots.boxes import wide as wide_samples
from meta500.metrics.plots.curves import (
    FEW_POINTS,
    MEAN_SHARE,
    PHASES,
    Curve,
    Panel,
    abscissa,
    line_look,
    running_mean,
)
from meta500.metrics.plots.style import PALETTE, number

Spec = dict[str, Any]
# Lines with more points are drawn by the smallest and largest value of as many neighbours as needed.
MOST_POINTS = 2000
SHORT = 32
INCH = 96
# Bars whose values span more than this have a logarithmic axis, like the static ones.
WIDE = 50
DASHES = {"-": "solid", "--": "dash", "-.": "dashdot", ":": "dot"}
SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "D": "diamond",
    "v": "triangle-down",
    "P": "cross",
    "X": "x",
    "<": "triangle-left",
    ">": "triangle-right",
}


class Store:
    """The numbers of all figures of a page: each array stands in it once, little-endian float64 in base64."""

    def __init__(self) -> None:
        self.arrays: list[str] = []
        self._places: dict[bytes, int] = {}

    def add(self, values: Sequence[float] | np.ndarray) -> Any:
        """What stands in a figure for these numbers (n,): a list, or where in the store they are."""
        array = np.ascontiguousarray(values, "<f8")
        if array.size <= SHORT:
            return [_finite(value) for value in array]
        data = array.tobytes()
        if data not in self._places:
            self._places[data] = len(self.arrays)
            self.arrays.append(base64.b64encode(data).decode("ascii"))
        return {"array": self._places[data]}


def bars(store: Store, found: Sequence[Bar], *, quantity: str, unit: str, interval: str) -> Spec:
    """Horizontal bars with intervals, as `draw_bars` draws them."""
    known = [bar for bar in found if bar.known]
    numbers = [
        float(v) for b in known for v in (b.value, b.low, b.high) if v is not None and math.isfinite(v)
    ]
    smallest, largest = min(numbers), max(numbers)
    log = smallest > 0 and largest > WIDE * smallest
    factor, unit = display_unit(math.sqrt(smallest * largest) if log else max(-smallest, largest), unit)
    series, places, layout = _lanes(found)
    data = []
    for index, name in enumerate(series):
        mine = [bar for bar in known if bar.series == name]
        x = np.array([float(bar.value or 0.0) for bar in mine]) * factor
        both = [(b.low, b.high) if None not in (b.low, b.high) else (b.value, b.value) for b in mine]
        low, high = (np.array([float(end[k] or 0.0) for end in both]) * factor for k in (0, 1))
        data.append(
            {
                "type": "bar",
                "orientation": "h",
                "name": text(name) or " ",
                "showlegend": len(series) > 1,
                "x": store.add(x),
                "y": store.add([places[bar.category, bar.series] for bar in mine]),
                "width": 0.8,
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": store.add(high - x),
                    "arrayminus": store.add(x - low),
                    "color": "#000000",
                    "thickness": 1.2,
                    "visible": bool((high > low).any()),
                },
                "marker": {"color": PALETTE[index % len(PALETTE)]},
                "hoverinfo": "text",
                "hovertext": [_about(bar, factor, unit) for bar in mine],
                # Texts at the ends of bars are hover texts here: they would hide the intervals.
                "textposition": "none",
            }
        )
    words = ", ".join(p for p in (unit, interval) if p and p != "1")
    layout["xaxis"] = axis_titled(f"{quantity} ({words})" if words else quantity, log)
    layout["annotations"] = [
        {
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": places[bar.category, bar.series],
            "text": text(bar.note or ("NaN" if bar.value is not None else "not measured")),
            "showarrow": False,
            "font": {"size": 11},
        }
        for bar in found
        if not bar.known
    ]
    return {"data": data, "layout": layout}


def boxes(store: Store, found: Sequence[Bar], *, quantity: str, unit: str) -> Spec:
    """Boxes of quartiles with whiskers over all samples, and the samples as points."""
    chosen = boxed(found)
    log = wide_samples(chosen)
    smallest, largest = (f(f(b.samples) for b in chosen) for f in (min, max))
    factor, unit = display_unit(math.sqrt(smallest * largest) if log else max(-smallest, largest), unit)
    series, places, layout = _lanes(chosen)
    data: list[Spec] = []
    for index, name in enumerate(series):
        mine = [bar for bar in chosen if bar.series == name]
        color = PALETTE[index % len(PALETTE)]
        y = [places[bar.category, bar.series] for bar in mine]
        quartiles = np.array([np.quantile(b.samples, (0, 0.25, 0.5, 0.75, 1)) for b in mine]).T * factor
        ends = dict(zip(("lowerfence", "q1", "median", "q3", "upperfence"), quartiles, strict=True))
        data.append(
            {
                "type": "box",
                "orientation": "h",
                "name": text(name) or " ",
                "legendgroup": str(index),
                "showlegend": len(series) > 1,
                "y": store.add(y),
                **{key: store.add(values) for key, values in ends.items()},
                "width": 0.7,
                "line": {"color": color, "width": 1.5},
                "fillcolor": "rgba(0,0,0,0)",
                "hoverinfo": "x",
            }
        )
        across = [place + 0.7 * s for place, b in zip(y, mine, strict=True) for s in spread(len(b.samples))]
        samples = np.concatenate([np.array(b.samples) for b in mine]) * factor
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": text(name) or " ",
                "legendgroup": str(index),
                "showlegend": False,
                "x": store.add(samples),
                "y": store.add(across),
                "marker": {"color": color, "size": 7, "opacity": 0.75},
                "hovertemplate": "%{x:.4g} " + text(unit if unit != "1" else ""),
            }
        )
    layout["xaxis"] = axis_titled(quantity if unit in ("", "1") else f"{quantity} ({unit})", log)
    return {"data": data, "layout": layout}


def ratios(store: Store, found: Sequence[Ratio], *, quantity: str, interval: str) -> Spec:
    """Ratios with intervals around a line at 1; filled points have intervals without 1."""
    lines: list[tuple[str, Ratio | None]] = []
    group = ""
    for ratio in found:
        if ratio.group != group:
            group = ratio.group
            lines.append((f"<b>{folded(group)}</b>", None))
        lines.append((folded(ratio.label), ratio))
    data = []
    for clear in (True, False):
        mine = [(place, r) for place, (_, r) in enumerate(lines) if r and (r.high < 1 or r.low > 1) == clear]
        if not mine:
            continue
        x = np.array([r.value for _, r in mine])
        color = PALETTE[0] if clear else "#808080"
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": "interval without 1" if clear else "interval with 1",
                "x": store.add(x),
                "y": store.add([place for place, _ in mine]),
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": store.add(np.array([r.high for _, r in mine]) - x),
                    "arrayminus": store.add(x - np.array([r.low for _, r in mine])),
                    "color": color,
                },
                "marker": {"color": color, "size": 8, "symbol": "circle" if clear else "circle-open"},
                "hoverinfo": "text",
                "hovertext": [
                    f"{text(r.group)} {text(r.label)}<br>{number(r.value, 4)} "
                    f"[{number(r.low, 4)}, {number(r.high, 4)}]"
                    for _, r in mine
                ],
            }
        )
    layout = base_layout(max(260, 24 * len(lines) + 110))
    layout["xaxis"] = axis_titled(f"{quantity} (ratio, {interval})", True)
    layout["yaxis"] = named_axis([name for name, _ in lines], range(len(lines)))
    line = {"color": "#000000", "width": 1}
    layout["shapes"] = [{"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper", "line": line}]
    return {"data": data, "layout": layout}


def curves(store: Store, found: Sequence[Curve], panel: Panel) -> Spec:
    """Lines over samples or seconds; a line with many points is its running mean with the values behind."""
    chosen = [c for c in found if (c.quantity, c.phase) == (panel.quantity, panel.phase)]
    labels = list(dict.fromkeys(c.label for c in found))
    scale, x_label = abscissa(chosen, panel.x)
    percent = 100 if panel.quantity == "accuracy" else 1
    data = []
    for curve in chosen:
        style = line_look(labels.index(curve.label))
        values = np.where(np.isfinite(curve.values), curve.values, np.nan) * percent
        x = getattr(curve, panel.x) * scale
        trace: Spec = {
            "type": "scatter",
            "name": text(curve.label) or " ",
            "legendgroup": str(labels.index(curve.label)),
            "hovertemplate": "%{y:.4g} at %{x:.4s}",
        }
        line = {"color": style["color"], "dash": DASHES[style["linestyle"]], "width": 2}
        marker = {"color": style["color"], "symbol": SYMBOLS[style["marker"]], "size": 7}
        drawn: Spec = {"mode": "lines+markers", "line": line, "marker": marker}
        lines = [(values, drawn)]
        if len(values) > FEW_POINTS:
            mean = running_mean(values, max(1, len(values) // MEAN_SHARE))
            thin = {"color": style["color"], "width": 1}
            faint = {"mode": "lines", "line": thin, "opacity": 0.35, "showlegend": False}
            # A few markers tell lines of one colour apart.
            lines = [(values, faint), (mean, drawn | {"marker": marker | {"maxdisplayed": 8}})]
        for y, more in lines:
            kept = thinned(y)
            data.append(trace | more | {"x": store.add(x[kept]), "y": store.add(y[kept])})
        gaps = np.flatnonzero(np.isnan(values))
        if len(gaps) and gaps[0] > 0:
            last = int(gaps[0]) - 1
            broken = {
                "symbol": "x",
                "size": 11,
                "color": style["color"],
                "line": {"color": "#000000", "width": 1},
            }
            end: Spec = {"mode": "markers", "marker": broken, "showlegend": False}
            end |= {"x": store.add(x[last : last + 1]), "y": store.add(values[last : last + 1])}
            data.append(trace | end | {"hovertemplate": "NaN or infinite from here on"})
    known = np.concatenate([c.values[np.isfinite(c.values)] for c in chosen])
    positive = known.size > 0 and bool((known > 0).all())
    log = panel.quantity.endswith("loss") and positive and known.max() > 10 * known.min()
    layout = base_layout(430)
    layout["xaxis"] = axis_titled(x_label, False) | {"rangemode": "tozero"}
    unit = " (%)" if percent == 100 else ""
    layout["yaxis"] = axis_titled(f"{PHASES[panel.phase]} {panel.quantity.replace('_', ' ')}{unit}", log)
    layout["showlegend"] = len(labels) > 1
    return {"data": data, "layout": layout}


def thinned(values: np.ndarray, most: int = MOST_POINTS) -> np.ndarray:
    """Places, rising, of at most about ``most`` of the values (n,): both ends, and of each of equally long
    parts the smallest and the largest value. All places where n is no larger than that."""
    count = len(values)
    if count <= most:
        return np.arange(count)
    borders = np.linspace(0, count, most // 2 + 1).astype(int)
    kept = {0, count - 1}
    for begin, end in itertools.pairwise(borders.tolist()):
        part = values[begin:end]
        if np.isnan(part).all():
            kept.add(int(begin))
            continue
        kept |= {int(begin + np.nanargmin(part)), int(begin + np.nanargmax(part))}
    return np.array(sorted(kept))


def text(words: str) -> str:
    """Words that plotly shows as they stand."""
    return html.escape("".join(c if c.isprintable() or c == "\n" else " " for c in words), quote=False)


def folded(words: str) -> str:
    return "<br>".join(text(line) for line in textwrap.wrap(words, LABEL_CHARACTERS)) or " "


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _about(bar: Bar, factor: float, unit: str) -> str:
    """Hover text of a bar: what, who, the value with its interval and the number of samples."""
    word = "" if unit == "1" else f" {text(unit)}"
    value = f"{number(float(bar.value or 0.0) * factor, 4)}{word}"
    if bar.low is not None and bar.high is not None:
        value += f" [{number(bar.low * factor, 4)}, {number(bar.high * factor, 4)}]"
    counted = f", {len(bar.samples)} samples" if len(bar.samples) > 1 else ""
    note = f"<br>{text(bar.note)}" if bar.note else ""
    return f"{folded(bar.category)}<br>{text(bar.series)}<br>{value}{counted}{note}"


def _lanes(found: Sequence[Bar]) -> tuple[list[str], dict[tuple[str, str], float], Spec]:
    """The series, the place of each bar, and a layout whose y axis names the categories.

    A lane is one unit high; categories are half a lane apart.
    """
    categories = list(dict.fromkeys(bar.category for bar in found))
    series = list(dict.fromkeys(bar.series for bar in found))
    height = len(series) + 0.6
    centres = [(k + 0.5) * height for k in range(len(categories))]
    places = {
        (bar.category, bar.series): centres[categories.index(bar.category)]
        + series.index(bar.series)
        - (len(series) - 1) / 2
        for bar in found
    }
    names = [folded(category) for category in categories]
    layout = base_layout(int(max(260, 17 * height * len(categories) + 120 + 14 * (len(series) > 1))))
    layout["yaxis"] = named_axis(names, centres) | {
        "range": [height * len(categories), 0],
        "autorange": False,
    }
    layout["barmode"] = "overlay"
    return series, places, layout


def base_layout(height: int) -> Spec:
    return {
        "height": height,
        "margin": {"l": 60, "r": 20, "t": 30, "b": 50},
        "hovermode": "closest",
        "legend": {"orientation": "h", "y": 0, "yref": "container", "yanchor": "bottom", "x": 0},
    }


def axis_titled(title: str, log: bool) -> Spec:
    axis: Spec = {"title": {"text": text(title)}, "automargin": True}
    return axis | ({"type": "log", "tickformat": "~g", "nticks": 6} if log else {})


def named_axis(names: Sequence[str], places: Sequence[float] | range) -> Spec:
    return {
        "tickvals": list(places),
        "ticktext": list(names),
        "autorange": "reversed",
        "automargin": True,
        "showgrid": False,
        "zeroline": False,
    }
