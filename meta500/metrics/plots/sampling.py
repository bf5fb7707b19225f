"""Sampling: how long batches take, and the drawn labels against the dataset's own shares."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.style import (
    HATCHES,
    MARKERS,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    literal,
    new_figure,
    number,
    plain_log_ticks,
    save,
    time_unit,
)
from meta500.metrics.rows import Row
from meta500.metrics.sampling import PHASE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Up to so many classes have a bar with a name each; more of them are one outline over their numbers.
NAMED = 24
_NAME_CHARACTERS = 24


def sampling_plots(
    rows: Sequence[Row], folder: str | Path, formats: Sequence[str] = ("png", "pdf")
) -> list[Path]:
    """Write "sampling-latency" and "sampling-labels" from the rows of `meta500.metrics.sampling`, as far as
    they are there; returns the paths."""
    written: list[Path] = []
    found = [row for row in rows if row.phase == PHASE]
    if any(row.quantity == "latency" for row in found):
        written += save(
            draw_latencies(found), [Path(folder) / f"sampling-latency.{kind}" for kind in formats]
        )
    if any(row.quantity == "label_count" for row in found):
        written += save(draw_labels(found), [Path(folder) / f"sampling-labels.{kind}" for kind in formats])
    return written


def draw_latencies(rows: Sequence[Row]) -> Figure:
    """Seconds per batch: in the order of the batches, and the share of batches that take at most so long.

    Several measurements, told apart by ``mode`` and ``dataset``, have a colour each. The first batches of
    epochs, in which workers start, are left out.

    Raises:
        UserError: no latency among the rows.
    """
    chosen = [row for row in rows if row.quantity == "latency" and row.samples]
    if not chosen:
        raise UserError("there is no latency of batches to plot")
    labels = [literal(label) for label in _labels_of(chosen)]
    every = np.concatenate([row.samples for row in chosen])
    factor, unit = time_unit(float(np.median(every)))
    positive = every[every > 0]
    log = positive.size == every.size and every.max() > 20 * every.min()
    with drawing():
        figure = new_figure(WIDTH * 1.15, 2.7)
        order, share = figure.subplots(1, 2, sharey=True, width_ratios=(3, 2))
        handles: list[Any] = []
        for index, row in enumerate(chosen):
            times = np.array(row.samples) * factor
            color, marker = PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)]
            look = {"color": color, "marker": marker, "linestyle": "none", "markeredgewidth": 0}
            size = 4.0 if len(times) <= 200 else 2.2
            handles += order.plot(np.arange(1, len(times) + 1), times, markersize=size, alpha=0.7, **look)
            ordered = np.sort(times)
            shares = np.arange(1, len(ordered) + 1) / len(ordered) * 100
            share.step(
                np.concatenate([[0.0], shares]),
                np.concatenate([ordered[:1], ordered]),
                where="pre",
                color=color,
            )
            share.plot(50, np.median(times), marker=marker, color=color, zorder=3)
        if log:
            order.set_yscale("log")
            plain_log_ticks(order, "y")
        else:
            order.set_ylim(bottom=0)
        order.set_xlabel("batch")
        order.set_xlim(left=0)
        order.xaxis.get_major_locator().set_params(integer=True)
        order.set_ylabel(f"time until the batch is there ({unit})")
        share.set_xlabel("batches that take at most so long (%)")
        share.set_xlim(0, 100)
        medians = [f"median {number(float(np.median(row.samples)) * factor)} {unit}" for row in chosen]
        if len(chosen) > 1:
            texts = [", ".join(filter(None, pair)) for pair in zip(labels, medians, strict=True)]
            legend_below(figure, handles, texts)
        else:
            figure.suptitle(
                ", ".join(filter(None, (literal(chosen[0].dataset), labels[0], medians[0]))), fontsize=9
            )
    return figure


def draw_labels(rows: Sequence[Row]) -> Figure:
    """How often every class was drawn, as a percentage of all labels, against its share in the dataset.

    Up to 24 classes have a bar each, more are an outline over the numbers of the classes. Above it stands the
    total variation distance and, where there is one, the p value of the chi-square test.

    Raises:
        UserError: no counted labels among the rows.
    """
    counts = [row for row in rows if row.quantity == "label_count"]
    expected = [row for row in rows if row.quantity == "label_expected"]
    if not counts or len(counts) != len(expected):
        raise UserError("there are no counted labels to plot")
    drawn, own = (np.array([row.value for row in part], np.float64) for part in (counts, expected))
    drawn, own = (100 * part / part.sum() for part in (drawn, own))
    single = {row.quantity: row.value for row in rows if row.quantity in ("total_variation", "p_value")}
    with drawing():
        few = len(drawn) <= NAMED
        names = [literal(textwrap.shorten(row.node, _NAME_CHARACTERS, placeholder="…")) for row in counts]
        figure = new_figure(WIDTH, 2.6)
        axes = figure.subplots()
        places = np.arange(len(drawn))
        if few:
            handles = _bars(axes, places, drawn, own, names)
        else:
            handles = [
                axes.stairs(drawn, np.arange(len(drawn) + 1) - 0.5, fill=True, color=PALETTE[4]),
                axes.stairs(own, np.arange(len(own) + 1) - 0.5, color="black", linewidth=1.0, baseline=None),
            ]
            axes.set_xlabel("number of the class")
        axes.set_xlim(-0.6, len(drawn) - 0.4)
        axes.set_ylim(0, 1.08 * max(drawn.max(), own.max()))
        axes.grid(False, axis="x")
        axes.set_ylabel("share of the labels (%)")
        axes.set_title(literal(_title(counts[0], single)), loc="left")
        legend_below(figure, handles, ["drawn", "expected from the dataset"])
    return figure


def _bars(
    axes: Axes, places: np.ndarray, drawn: np.ndarray, own: np.ndarray, names: Sequence[str]
) -> list[Any]:
    bars = axes.bar(
        places, drawn, width=0.72, color=PALETTE[4], edgecolor="black", linewidth=0.5, hatch=HATCHES[0]
    )
    marks = axes.hlines(own, places - 0.44, places + 0.44, color="black", linewidth=1.6)
    # Neighbours would touch, at about 0.07 inches per character.
    room = (WIDTH - 0.6) / len(names) / 0.07
    long = any((len(a) + len(b)) / 2 + 1 > room for a, b in pairwise(names))
    axes.set_xticks(places, names, rotation=40 if long else 0, ha="right" if long else "center")
    if long:
        for label in axes.get_xticklabels():
            label.set_rotation_mode("anchor")
    axes.tick_params(axis="x", length=0)
    return [bars, marks]


def _title(row: Row, single: dict[str, float | None]) -> str:
    parts = [row.dataset, row.note.partition(";")[0]]
    if single.get("total_variation") is not None:
        parts.append(f"total variation {number(float(single['total_variation'] or 0), 2)}")
    if single.get("p_value") is not None:
        parts.append(f"p = {number(float(single['p_value'] or 0), 2)}")
    return ", ".join(filter(None, parts))


def _labels_of(rows: Sequence[Row]) -> list[str]:
    """What tells the measurements apart."""
    datasets = {row.dataset for row in rows}
    return [", ".join(filter(None, (row.dataset if len(datasets) > 1 else "", row.mode))) for row in rows]
