"""Plots for papers: training curves, bars and ratios with intervals, rooflines and heat maps of errors.

`plots_from_run` makes all plots of a run folder again, and `versus_plots` those of several training runs
against each other; the other functions take plain data, rows or
frames, and either draw a figure (``draw_...``) or write files and return their paths
(``..._plot``). matplotlib is imported when something is drawn.
"""

from __future__ import annotations

from meta500.metrics.plots.bars import Bar, Ratio, bar_plot, draw_bars, draw_ratios, ratio_plot
from meta500.metrics.plots.curves import (
    Curve,
    Panel,
    curve_plots,
    draw_curves,
    four_panels,
    running_mean,
)
from meta500.metrics.plots.from_rows import (
    as_rows,
    bars_from_rows,
    curves_from_rows,
    ratios_from_rows,
)
from meta500.metrics.plots.heatmap import Cell, cells_from_rows, draw_heatmap, heatmap_plots
from meta500.metrics.plots.pages import plots_from_run
from meta500.metrics.plots.ranking import Part, draw_ranking
from meta500.metrics.plots.roofline import (
    Limits,
    Point,
    draw_roofline,
    limits_from_rows,
    points_from_rows,
    roofline_plots,
)
from meta500.metrics.plots.style import PALETTE, save
from meta500.metrics.plots.versus import versus_plots

__all__ = [
    "PALETTE",
    "Bar",
    "Cell",
    "Curve",
    "Limits",
    "Panel",
    "Part",
    "Point",
    "Ratio",
    "as_rows",
    "bar_plot",
    "bars_from_rows",
    "cells_from_rows",
    "curve_plots",
    "curves_from_rows",
    "draw_bars",
    "draw_curves",
    "draw_heatmap",
    "draw_ranking",
    "draw_ratios",
    "draw_roofline",
    "four_panels",
    "heatmap_plots",
    "limits_from_rows",
    "plots_from_run",
    "points_from_rows",
    "ratio_plot",
    "ratios_from_rows",
    "roofline_plots",
    "running_mean",
    "save",
    "versus_plots",
]
