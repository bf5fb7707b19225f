"""Bars in order of length, one per line, coloured by group: which parts of a whole take how much of it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meta500.errors import UserError
from meta500.metrics.plots.style import (
    HATCHES,
    PALETTE,
    WIDTH,
    drawing,
    legend_below,
    new_figure,
    number,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE_INCHES = 0.21
LABEL_CHARACTERS = 46
LABEL_SIZE = 7.5
VALUE_SIZE = 7
COLORS = (*PALETTE[:-1], "#999999", PALETTE[-1])


@dataclass(frozen=True)
class Part:
    """One bar: ``group`` decides its colour, ``note`` stands behind its value."""

    label: str
    group: str
    value: float
    note: str = ""


def draw_ranking(
    parts: Sequence[Part], *, quantity: str, unit: str, groups: Sequence[str] = (), title: str = ""
) -> Figure:
    """Horizontal bars, the longest on top, each with its value and note at its end.

    Args:
        parts: what is drawn, in any order.
        quantity: of the values, for the axis.
        unit: of the values, for the axis.
        groups: in this order they get their colours, so that these are the same in several figures; groups
            that are missing here follow. Only groups with a bar are in the legend.

    Raises:
        UserError: there is nothing to draw, or a value that is negative or not finite.
    """
    from matplotlib.patches import Patch

    if not parts:
        raise UserError(f"ranking of {quantity}: there is nothing to draw")
    for part in parts:
        if not 0 <= part.value < math.inf:
            raise UserError(f"ranking of {quantity}: '{part.label}' has the value {part.value}")
    order = sorted(parts, key=lambda part: -part.value)
    known = list(dict.fromkeys([*groups, *(part.group for part in order)]))
    names = [textwrap.fill(part.label, LABEL_CHARACTERS) for part in order]
    with drawing():
        heights = [LINE_INCHES + 0.12 * name.count("\n") for name in names]
        figure = new_figure(WIDTH, sum(heights) + 0.55 + (0.2 if title else 0.0))
        axes = figure.subplots()
        top, centres, texts = 0.0, [], []
        for part, height in zip(order, heights, strict=True):
            centres.append(top + height / 2)
            top += height
            look = _look(known.index(part.group))
            axes.barh(centres[-1], part.value, height=LINE_INCHES * 0.78, **look)
            text = " ".join(filter(None, (number(part.value), part.note)))
            place: dict[str, Any] = {"xytext": (4, 0), "textcoords": "offset points"}
            texts.append(
                axes.annotate(text, (part.value, centres[-1]), va="center", fontsize=VALUE_SIZE, **place)
            )
        axes.set_ylim(top, 0)
        axes.set_yticks(centres, names, fontsize=LABEL_SIZE)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.set_xlabel(f"{quantity} ({unit})")
        axes.set_xlim(0, (order[0].value or 1.0) * 1.05)
        if title:
            axes.set_title(title, loc="left")
        shown = [group for group in known if any(part.group == group for part in parts)]
        legend_below(figure, [Patch(**_look(known.index(group))) for group in shown], shown)
        # Room for the texts at the ends of the bars.
        figure.draw_without_rendering()
        inside = axes.get_window_extent()
        share = min((inside.width - t.get_window_extent().width - 8) / inside.width for t in texts)
        axes.set_xlim(0, (order[0].value or 1.0) / max(share, 0.2))
    return figure


def _look(index: int) -> dict[str, Any]:
    """Colour and hatch of a group; no two of the first 50 are the same."""
    turn, place = divmod(index, len(COLORS))
    hatch = HATCHES[(place + turn) % len(HATCHES)]
    return {"facecolor": COLORS[place], "edgecolor": "black", "linewidth": 0.5, "hatch": hatch}
