"""Densities of ratios: how many things are how much faster or slower, with a line at 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError
from meta500.metrics.plots.style import PALETTE, WIDTH, drawing, legend_below, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

POINTS = 400
# Of the kernel, in units of log2 of the ratio: narrower ones would show single points.
LEAST_BANDWIDTH = 0.02
# Of the ratio, the more important ones first, and how much of the axis a label takes.
TICKS = (2, 0.5, 10, 0.1, 5, 0.2, 100, 0.01, 1.5, 0.7, 3, 0.3, 1.2, 0.8, 20, 50, 0.05, 0.02, 1.1, 0.9)
LABEL_SHARE = 0.12
ABOVE, BELOW, NEITHER = "interval above 1", "interval below 1", "interval around 1"
COLOURS = {ABOVE: PALETTE[2], BELOW: PALETTE[1], NEITHER: "#999999"}


@dataclass(frozen=True)
class Density:
    """Ratios of one group, on axes of their own.

    Attributes:
        title: above the axes.
        values: positive ratios.
        low, high: ends of their intervals.

    Raises:
        UserError: no ratio, one that is not positive and finite, or differing lengths.
    """

    title: str
    values: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]

    def __post_init__(self) -> None:
        if not len(self.values) == len(self.low) == len(self.high) or not self.values:
            raise UserError(f"density '{self.title}': values, low and high must have one length, above 0")
        if not (np.isfinite(self.values).all() and min(self.values) > 0):
            raise UserError(f"density '{self.title}': ratios must be positive and finite")


def kernel_density(values: Sequence[float], places: np.ndarray) -> np.ndarray:
    """Gaussian kernel density at ``places``, both (n,) float64 on the same axis.

    The bandwidth is Silverman's, 0.9 min(s, IQR / 1.34) n^(-1/5) (B. W. Silverman, Density Estimation for
    Statistics and Data Analysis, 1986, equation 3.31), with s where the quartiles are equal, and at least
    :data:`LEAST_BANDWIDTH`.
    """
    points = np.asarray(values, np.float64)
    spread = float(points.std(ddof=1)) if len(points) > 1 else 0.0
    quartiles = np.quantile(points, [0.25, 0.75])
    robust = float(quartiles[1] - quartiles[0]) / 1.34
    width = max(0.9 * (min(spread, robust) or spread) * len(points) ** -0.2, LEAST_BANDWIDTH)
    distances = (places[:, None] - points[None, :]) / width
    weights = np.exp(-0.5 * distances**2) / (width * np.sqrt(2 * np.pi))
    return np.asarray(weights.mean(axis=1))


def draw_densities(densities: Sequence[Density], *, quantity: str, columns: int = 3) -> Figure:
    """One panel per group with a common logarithmic axis: the density and, below it, a tick per ratio.

    Ticks have the colour of their interval: above 1, below 1, or around it. The density is that of log2 of
    the ratio, so its integral over a factor of 2 is the share in it.

    Args:
        densities: at least one.
        quantity: for the axis: "speedup by compilation".
        columns: most panels side by side.

    Raises:
        UserError: nothing to draw.
    """
    if not densities:
        raise UserError(f"density plot of {quantity}: there is nothing to draw")
    columns = min(columns, len(densities))
    lines = -(-len(densities) // columns)
    logs = np.log2([value for density in densities for value in density.values])
    margin = max(0.3, 0.3 * float(np.ptp(logs)))
    left, right = min(0.0, float(logs.min())) - margin, max(0.0, float(logs.max())) + margin
    with drawing():
        figure = new_figure(WIDTH, 2.1 * lines)
        grid = figure.subplots(lines, columns, squeeze=False, sharex=True).ravel()
        for place, (axes, density) in enumerate(zip(grid, densities, strict=False)):
            _draw(axes, density, (left, right))
            if place % columns == 0:
                axes.set_ylabel("density (per factor 2)")
            if place + columns >= len(densities):
                axes.set_xlabel(quantity)
                axes.tick_params(labelbottom=True)
        for axes in grid[len(densities) :]:
            axes.set_axis_off()
        _legend(figure, densities)
    return figure


def _draw(axes: Axes, density: Density, limits: tuple[float, float]) -> None:
    places = np.linspace(*limits, POINTS)
    heights = kernel_density(np.log2(density.values).tolist(), places)
    axes.set_xscale("log")
    axes.fill_between(2**places, heights, color=PALETTE[0], alpha=0.25, linewidth=0)
    axes.plot(2**places, heights, color=PALETTE[0])
    axes.axvline(1.0, color="#CC0000", linewidth=1.0, linestyle="--")
    top = float(heights.max())
    for value, low, high in zip(density.values, density.low, density.high, strict=True):
        axes.vlines(value, -0.13 * top, -0.03 * top, color=COLOURS[_side(low, high)], linewidth=1.0)
    axes.set_ylim(-0.16 * top, 1.08 * top)
    axes.set_xlim(2 ** limits[0], 2 ** limits[1])
    axes.set_yticks([tick for tick in axes.get_yticks() if 0 <= tick <= 1.08 * top])
    _ticks(axes, limits)
    axes.set_title(density.title)


def _ticks(axes: Axes, limits: tuple[float, float]) -> None:
    """As many plain numbers as fit, 1 among them."""
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    least = LABEL_SHARE * (limits[1] - limits[0])
    chosen = [1.0]
    for tick in TICKS:
        place = float(np.log2(tick))
        apart = min(abs(place - float(np.log2(other))) for other in chosen)
        if limits[0] <= place <= limits[1] and apart >= least:
            chosen.append(tick)
    axes.xaxis.set_major_locator(FixedLocator(chosen))
    axes.xaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in chosen]))
    axes.xaxis.set_minor_locator(NullLocator())


def _side(low: float, high: float) -> str:
    return ABOVE if low > 1 else BELOW if high < 1 else NEITHER


def _legend(figure: Figure, densities: Sequence[Density]) -> None:
    from matplotlib.lines import Line2D

    found = {_side(low, high) for d in densities for low, high in zip(d.low, d.high, strict=True)}
    labels = [label for label in COLOURS if label in found]
    look: dict[str, Any] = {"linestyle": "none", "marker": "|", "markersize": 9, "markeredgewidth": 1.4}
    handles = [Line2D([], [], color=COLOURS[label], **look) for label in labels]
    legend_below(figure, handles, labels)
