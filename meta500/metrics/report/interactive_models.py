"""Interactive rooflines, heat maps of errors and scaling as plain data for plotly."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from meta500.metrics.plots.heatmap import HIGHEST, LOWEST, Cell
from meta500.metrics.plots.roofline import GIGA, Limits, Point
from meta500.metrics.plots.scaling import GREY, Series, Study, crowded_ranks, ideal_single, look
from meta500.metrics.plots.style import PALETTE, number, time_unit
from meta500.metrics.report.interactive import (
    DASHES,
    SYMBOLS,
    Spec,
    Store,
    axis_titled,
    base_layout,
    folded,
    named_axis,
    text,
)

RINGS = "model of this machine without this rank count"


def roofline(store: Store, points: Sequence[Point], limits: Limits) -> Spec:
    """Points under the measured roof, both axes logarithmic; hollow ones fit the last-level cache."""
    ridge = limits.peak / limits.bandwidth
    across = [p.intensity for p in points]
    ends = (min(*across, ridge) / 2, max(*across, ridge) * 4)
    data: list[Spec] = []
    for peak, bandwidth, dash, word in (
        (limits.peak, limits.bandwidth, "solid", "best"),
        (limits.median_peak, limits.median_bandwidth, "dot", "median"),
    ):
        x = [ends[0], peak / bandwidth, ends[1]]
        words = f"{word}: {number(peak / GIGA)} GFLOP/s, {number(bandwidth / GIGA)} GB/s"
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "name": words,
                "x": store.add(x),
                "y": store.add([min(peak, bandwidth * at) / GIGA for at in x]),
                "line": {"color": "#000000", "dash": dash, "width": 1.5},
                "hoverinfo": "name",
            }
        )
    for index, name in enumerate(dict.fromkeys(p.series for p in points)):
        mine = [p for p in points if p.series == name]
        y = np.array([p.rate for p in mine]) / GIGA
        low, high = (
            np.array([p.rate if end is None else end for p, end in pairs]) / GIGA
            for pairs in ([(p, p.low) for p in mine], [(p, p.high) for p in mine])
        )
        color = PALETTE[index % len(PALETTE)]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": text(name) or " ",
                "x": store.add([p.intensity for p in mine]),
                "y": store.add(y),
                "error_y": {
                    "type": "data",
                    "symmetric": False,
                    "array": store.add(high - y),
                    "arrayminus": store.add(y - low),
                    "color": color,
                    "thickness": 1,
                },
                "marker": {
                    "color": color,
                    "size": 7,
                    "symbol": ["circle-open" if p.cached else "circle" for p in mine],
                },
                "hoverinfo": "text",
                "hovertext": [
                    f"{text(p.operator)}, {text(p.series)}<br>{number(p.rate / GIGA)} GFLOP/s at "
                    f"{number(p.intensity)} FLOP/B{', data fit the cache' if p.cached else ''}"
                    for p in mine
                ],
            }
        )
    layout = base_layout(480)
    layout["xaxis"] = axis_titled("operations per byte of compulsory traffic (FLOP/B)", True)
    layout["yaxis"] = axis_titled("GFLOP/s", True)
    return {"data": data, "layout": layout}


def heatmap(cells: Sequence[Cell]) -> Spec:
    """Errors in eps as coloured cells, logarithmic from 0.1 to 10,000; the words of cells are hover texts."""
    names = list(dict.fromkeys(c.name for c in cells))
    series = list(dict.fromkeys(c.series for c in cells))
    z: list[list[float | None]] = [[None] * len(series) for _ in names]
    words = [[""] * len(series) for _ in names]
    inside = [[""] * len(series) for _ in names]
    for cell in cells:
        line, column = names.index(cell.name), series.index(cell.series)
        if cell.error is not None:
            error = min(max(cell.error, LOWEST), HIGHEST)
            z[line][column] = math.log10(error)
        value = "" if cell.error is None else f"{number(cell.error, 2)} eps"
        said = " ".join(filter(None, (value, cell.word)))
        inside[line][column] = " ".join(filter(None, (value.removesuffix(" eps"), cell.word)))
        words[line][column] = f"{text(cell.name)}<br>{text(cell.series.replace(chr(10), ' '))}<br>{said}"
    ticks = list(range(round(math.log10(LOWEST)), round(math.log10(HIGHEST)) + 1))
    trace: Spec = {
        "type": "heatmap",
        "z": z,
        "x": list(range(len(series))),
        "y": list(range(len(names))),
        "text": inside,
        "texttemplate": "%{text}",
        "hovertext": words,
        "hoverinfo": "text",
        "colorscale": "YlGnBu",
        "reversescale": True,
        "zmin": ticks[0],
        "zmax": ticks[-1],
        "xgap": 1,
        "ygap": 1,
        "colorbar": {
            "title": {"text": "eps", "side": "right"},
            "tickvals": ticks,
            "ticktext": ["≤ 0.1", *(f"{10.0**t:,.0f}" for t in ticks[1:-1]), f"≥ {10.0 ** ticks[-1]:,.0f}"],
        },
    }
    layout = base_layout(max(280, 20 * len(names) + 140))
    layout["yaxis"] = named_axis([folded(name) for name in names], range(len(names))) | {"showgrid": False}
    labels = [text(name).replace("\n", "<br>") for name in series]
    across = {"tickvals": list(range(len(series))), "ticktext": labels, "side": "top", "showgrid": False}
    layout["xaxis"] = across | {"tickangle": 0, "automargin": True}
    return {"data": [trace], "layout": layout}


def scaling(store: Store, study: Study, kind: str) -> Spec:
    """Step time (left) and efficiency (right) against ranks, with all that `draw_scaling` shows.

    Points are measured, lines and rings predicted; ideal times, the rank counts that share cores, and the
    efficiency below which a scheme does not pay with the rank count from which on it does not.
    """
    chosen = [s for s in study.series if s.scaling == kind]
    longest = max([m.high for s in chosen for m in s.measured] + [t for s in chosen for _, t in s.predicted])
    factor, unit = time_unit(longest)
    data: list[Spec] = []
    for index, series in enumerate(chosen):
        color, marker, line = look(index)
        single, first = series.single, series.predicted[0][1] if series.predicted else None
        shared = {"type": "scatter", "name": text(series.scheme), "legendgroup": str(index)}
        symbol = {"color": color, "symbol": SYMBOLS[marker], "size": 8}
        dashed = {"color": color, "dash": DASHES[line]}
        ranks = [m.ranks for m in series.measured]
        for axis, base in (("", None), ("2", single)):
            if axis and base is None:
                continue

            def shown(seconds: float, p: int, base: float | None = base) -> float:
                return (
                    seconds * factor if base is None else 100 * base / seconds / (1 if kind == "weak" else p)
                )

            y = np.array([shown(m.seconds, m.ranks) for m in series.measured])
            ends = np.array(
                [sorted((shown(m.low, m.ranks), shown(m.high, m.ranks))) for m in series.measured]
            )
            axes = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
            if ranks:
                error = {"type": "data", "symmetric": False, "color": color}
                error |= {"array": store.add(ends[:, 1] - y), "arrayminus": store.add(y - ends[:, 0])}
                more = {"mode": "markers", "marker": symbol, "error_y": error, "showlegend": not axis}
                data.append(shared | axes | more | {"x": ranks, "y": store.add(y)})
            if series.predicted:
                base = first if axis else None
                path: Spec = {"x": [p for p, _ in series.predicted]}
                path["y"] = store.add([shown(t, p, base) for p, t in series.predicted])
                more = {"mode": "lines", "line": dashed, "showlegend": not (axis or ranks)}
                data.append(shared | axes | more | path)
            checked = [(m.ranks, m.checked) for m in series.measured if m.checked and m.ranks > 1]
            if checked:
                ring = {"color": color, "symbol": "circle-open", "size": 14}
                rings: Spec = {"mode": "markers", "marker": ring, "showlegend": False}
                rings |= {"x": [p for p, _ in checked]}
                rings |= {"y": store.add([shown(t, p, single if axis else None) for p, t in checked])}
                data.append(shared | axes | rings | {"hovertemplate": f"%{{y:.4g}}: {RINGS}"})
            predicted = dict(series.predicted)
            if axis and first and series.inefficient in predicted:
                cross = {"color": color, "symbol": "x", "size": 12, "line": {"color": "#FFFFFF", "width": 1}}
                end: Spec = {"mode": "markers", "marker": cross, "showlegend": False}
                end |= {"x": [series.inefficient]}
                end |= {"y": store.add([shown(predicted[series.inefficient], series.inefficient, first)])}
                data.append(shared | axes | end | {"hovertemplate": _below(study)})
    data += _ideal(store, chosen, kind, factor)
    if any(m.checked and m.ranks > 1 for s in chosen for m in s.measured):
        data.append(_entry(RINGS, {"symbol": "circle-open", "size": 12}))
    if any(s.inefficient for s in chosen):
        data.append(_entry(_below(study), {"symbol": "x", "size": 10}))
    crowded = crowded_ranks(study, chosen)
    if crowded:
        data.append(_entry("ranks share cores", {"symbol": "square", "size": 12, "opacity": 0.25}))
    layout = base_layout(400)
    layout["shapes"] = _shapes(study, crowded)
    log2 = {"type": "log", "dtick": math.log10(2), "automargin": True}
    layout["xaxis"] = log2 | {"title": {"text": "ranks"}, "domain": [0, 0.44]}
    layout["xaxis2"] = log2 | {"title": {"text": "ranks"}, "domain": [0.56, 1], "anchor": "y2"}
    layout["yaxis"] = axis_titled(f"time of a step ({unit})", True)
    layout["yaxis2"] = axis_titled("parallel efficiency (%)", False) | {"rangemode": "tozero", "anchor": "x2"}
    return {"data": data, "layout": layout}


def _shapes(study: Study, crowded: tuple[float, float] | None) -> list[Spec]:
    """The threshold of the efficiency, and the ranks that share cores."""
    shapes: list[Spec] = []
    if study.threshold is not None:
        y = 100 * study.threshold
        line: Spec = {"type": "line", "line": {"color": GREY, "width": 1, "dash": "dot"}}
        shapes.append(line | {"xref": "x2 domain", "yref": "y2", "x0": 0, "x1": 1, "y0": y, "y1": y})
    if crowded:
        area: Spec = {"type": "rect", "fillcolor": GREY, "opacity": 0.12, "line": {"width": 0}}
        area |= {"layer": "below", "x0": crowded[0], "x1": crowded[1], "y0": 0, "y1": 1}
        shapes += [area | {"xref": f"x{axis}", "yref": f"y{axis} domain"} for axis in ("", "2")]
    return shapes


def _ideal(store: Store, chosen: Sequence[Series], kind: str, factor: float) -> list[Spec]:
    """The time of one rank (weak), or its p-th part (strong), as a dashed line."""
    single = ideal_single(chosen)
    if single is None:
        return []
    ranks = {m.ranks for s in chosen for m in s.measured} | {p for s in chosen for p, _ in s.predicted}
    ends = [1, max(ranks)]
    line: Spec = {"type": "scatter", "mode": "lines", "name": "ideal", "xaxis": "x", "yaxis": "y"}
    line |= {"line": {"color": GREY, "dash": "dash", "width": 1}, "x": ends}
    line |= {"y": store.add([single * factor / (1 if kind == "weak" else p) for p in ends])}
    return [line | {"hovertemplate": "%{y:.4g}"}]


def _entry(name: str, marker: Spec) -> Spec:
    """An entry of the legend alone."""
    entry: Spec = {"type": "scatter", "mode": "markers", "name": name, "x": [None], "y": [None]}
    return entry | {"marker": {"color": GREY} | marker, "hoverinfo": "skip"}


def _below(study: Study) -> str:
    return f"from here on below {100 * (study.threshold or 0):.0f} %"
