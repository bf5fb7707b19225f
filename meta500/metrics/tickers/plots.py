"""Loss and accuracy plots of one run at its end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meta500.errors import UserError
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.plots.curves import Curve, curve_plots, four_panels
from meta500.metrics.tickers.summary import Summary


class PlotsTicker(Ticker):
    """Write the plots of `curve_plots` when the run is over, also after an abort or Ctrl-C.

    They show this run alone; where several runs share a run folder, `plots_from_run` draws all of
    them together. ``written`` holds the paths; it stays empty when the run ended before its first
    step.

    Args:
        folder: None: "plots" in the run folder.
        label: name of the run in the plots; None: optimizer and backend.
        formats: of "png", "pdf" and "svg".

    Raises:
        UserError: no folder, at the beginning of the run; files that cannot be written.
    """

    root_only = True

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        label: str | None = None,
        formats: Sequence[str] = ("png", "pdf"),
    ) -> None:
        self.folder, self.label, self.formats = folder, label, tuple(formats)
        self.written: list[Path] = []

    def before_run(self, state: RunState) -> None:
        self.written = []
        if self.folder is None and state.folder is None:
            raise UserError("PlotsTicker needs a folder, since the Runner has no run folder")

    def after_run(self, state: RunState) -> None:
        if self.folder is not None:
            target = Path(self.folder)
        elif state.folder is not None:
            target = Path(state.folder.path) / "plots"
        else:
            return
        optimizer = getattr(state.optimizer, "name", type(state.optimizer).__name__)
        curves = summary_curves(state.summary, self.label or f"{optimizer} {state.network.backend}")
        if four_panels(curves):
            self.written = curve_plots(curves, target, self.formats)


def summary_curves(summary: Summary, label: str) -> list[Curve]:
    """The curves of a Summary: loss per step, and accuracy, losses and scores per epoch."""
    steps = (np.array(summary.samples), np.array(summary.train_seconds), np.array(summary.losses))
    curves = [Curve(label, "loss", "training_step", *steps)]
    points: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for epoch in summary.epochs:
        values = {("loss", "training_set"): epoch.loss, ("loss", "test_set"): epoch.test_loss}
        values[("accuracy", "test_set")] = epoch.accuracy
        values.update({(name, "test_set"): value for name, value in epoch.scores.items()})
        for key, value in values.items():
            if value is not None:
                place = points.setdefault(key, [])
                place.append((epoch.samples_seen, epoch.total_train_seconds, value))
    curves += [
        Curve(label, quantity, phase, *np.array(values).T) for (quantity, phase), values in points.items()
    ]
    return [curve for curve in curves if len(curve.values)]
