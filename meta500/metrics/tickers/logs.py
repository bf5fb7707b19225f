"""Logs in the formats of other programs: their names, the packages they need, and what they share."""

from __future__ import annotations

import importlib
import importlib.util
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta500.backends.hyperparameters import describe_rate
from meta500.errors import UserError, choose
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.rows import KINDS
from meta500.metrics.tickers.rows import row_fields
from meta500.metrics.tickers.summary import EpochSummary

# The packages that the extra of the same name installs.
PACKAGES = {
    "tensorboard": ("tensorboardX",),
    "mlperf": ("mlperf_logging",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
}
_WRITERS = {
    "tensorboard": "tensorboard_writer:TensorBoardWriter",
    "mlperf": "mlperf_writer:MlperfWriter",
    "mlflow": "mlflow_writer:MlflowWriter",
}


def check_packages(name: str) -> None:
    """Whether the log ``name`` can be written here; imports nothing.

    Raises:
        UserError: an unknown name, or a package that is not installed, with its extra.
    """
    for package in PACKAGES[choose("log", name, PACKAGES)]:
        if importlib.util.find_spec(package) is None:
            raise UserError(f"the log '{name}' needs the package '{package}': pip install 'meta500[{name}]'")


def _load(name: str) -> None:
    """Import the packages of a log: some take seconds, which are not to be part of the run."""
    check_packages(name)
    for package in PACKAGES[name]:
        try:
            importlib.import_module(package)
        except ImportError as error:
            raise UserError(
                f"the log '{name}' cannot load the package '{package}': {error}; install it anew: "
                f"pip install 'meta500[{name}]'"
            ) from None


def create_log(name: str, **what: Any) -> LogTicker:
    """The ticker that writes the log ``name`` into the run folder; ``what`` as for `RowsTicker`.

    Raises:
        UserError: an unknown name or field, or a package that cannot be loaded.
    """
    module, _, attribute = _WRITERS[choose("log", name, _WRITERS)].partition(":")
    writer: type[LogTicker] = getattr(importlib.import_module(f"meta500.metrics.tickers.{module}"), attribute)
    return writer(**what)


class LogTicker(Ticker):
    """Base of the writers of one log.

    Args:
        path: the file or folder (see the writer); relative to the run folder where the run has one.
            None: the writer's own name in the run folder.
        what: fields of result rows, such as ``model`` or ``seed``, that replace what is found out from
            the run (see `row_fields`).

    Raises:
        UserError: an unknown field; a package that cannot be loaded; at the beginning of the run: neither
            path nor run folder; in any event: the log cannot be written.
    """

    root_only = True
    log = ""
    default_path = ""

    def __init__(self, path: str | Path | None = None, **what: Any) -> None:
        _load(self.log)
        for name in what:
            choose("field of result rows", name, KINDS)
        self.path, self.what = path, what
        self._began = 0.0

    def before_run(self, state: RunState) -> None:
        self._began = time.time() - state.wall_seconds

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        self._began = time.time() - state.wall_seconds

    def target(self, state: RunState) -> Path:
        """Where this run's log goes."""
        if state.folder is not None:
            return Path(state.folder.path) / (self.default_path if self.path is None else self.path)
        if self.path is None:
            raise UserError(f"{type(self).__name__} needs a path, since the Runner has no run folder")
        return Path(self.path)

    def fields(self, state: RunState) -> dict[str, Any]:
        """What is known of the run, as fields of result rows; without those that are unknown."""
        found = row_fields(state, self.what)
        return {name: value for name, value in found.items() if value not in (None, "")}

    def at(self, seconds: float) -> float:
        """The time since the epoch, in seconds, at which the run's wall clock showed ``seconds``."""
        return self._began + seconds


class ScalarTicker(LogTicker):
    """Base of logs of named numbers against the number of optimizer steps done.

    After every step: "train/loss", "train/step_seconds" (inside the optimizer) and "train/data_seconds"
    (waiting for the batch). After every epoch: "train/epoch_loss" (mean over its samples) and, with a
    test set, "test/loss", "test/accuracy" and the scores of metric tickers as "test/NAME". A run that is
    resumed writes the steps and epochs before it too, at the times of its wall clock.
    """

    def add(self, scalars: Mapping[str, float], step: int, seconds: float) -> None:
        """Write ``scalars`` by name; ``seconds`` is the time since the epoch."""
        raise NotImplementedError

    def after_optimizer_step(self, state: RunState) -> None:
        assert state.loss is not None
        scalars = _of_step(state.loss, state.step_seconds, state.fetch_ns * 1e-9)
        self.add(scalars, state.step, self.at(state.wall_seconds))

    def after_epoch(self, state: RunState) -> None:
        epoch = state.summary.epochs[-1]
        self.add(_of_epoch(epoch), epoch.step, self.at(epoch.total_wall_seconds))

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        super().restore_state(saved, state)
        summary = state.summary
        ends = {epoch.step: epoch for epoch in summary.epochs}
        steps = zip(
            summary.losses,
            summary.step_seconds,
            summary.data_seconds,
            summary.wall_seconds,
            strict=True,
        )
        for step, (loss, computing, waiting, wall) in enumerate(steps, 1):
            self.add(_of_step(loss, computing, waiting), step, self.at(wall))
            if step in ends:
                self.add(_of_epoch(ends[step]), step, self.at(ends[step].total_wall_seconds))


def _of_step(loss: float, computing: float, waiting: float) -> dict[str, float]:
    return {"train/loss": loss, "train/step_seconds": computing, "train/data_seconds": waiting}


def _of_epoch(epoch: EpochSummary) -> dict[str, float]:
    tested = {"loss": epoch.test_loss, "accuracy": epoch.accuracy, **epoch.scores}
    found = {f"test/{name}": value for name, value in tested.items() if value is not None}
    return {"train/epoch_loss": epoch.loss, **found}


def hyper_parameters(optimizer: Any) -> dict[str, Any]:
    """The optimizer's hyper-parameters by name, a schedule by its description; {} where it tells none."""
    if not callable(getattr(optimizer, "hyper_parameters", None)):
        return {}
    found = dict(optimizer.hyper_parameters())
    return {name: describe_rate(value) if callable(value) else value for name, value in found.items()}


def plain(value: Any) -> Any:
    """``value`` as JSON has it: numbers that are not finite become "nan", "inf" and "-inf"."""
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value
