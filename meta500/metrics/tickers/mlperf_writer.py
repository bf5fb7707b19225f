"""A run as log lines of MLPerf.

Format and keys are those of MLCommons' package mlperf-logging (https://github.com/mlcommons/logging), which
also makes the lines here: ":::MLLOG " and a JSON object with namespace, time_ms (since 1970), event_type
(INTERVAL_START, INTERVAL_END or POINT_IN_TIME), key, value and metadata.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import meta500
from meta500.errors import UserError
from meta500.metrics.events import RunState
from meta500.metrics.tickers.limits import ScoreLimit
from meta500.metrics.tickers.logs import LogTicker, hyper_parameters, plain
from meta500.metrics.tickers.summary import EpochSummary


class MlperfWriter(LogTicker):
    """Write "mlperf.log" (``path``: another file, which must not exist).

    At the beginning: ``seed``, ``global_batch_size``, ``opt_name``, ``opt_base_learning_rate`` (if it is a
    number), ``opt_weight_decay`` (if the optimizer has one), ``train_samples`` and ``eval_samples`` as far as
    they are known, then ``run_start``. For every epoch ``epoch_start`` and ``epoch_stop`` around the training
    set, ``tracked_stats`` (train_loss, throughput in samples per second of training), and with a test set
    ``eval_start``, ``eval_accuracy`` and ``eval_stop``; test loss and further scores are ``eval_loss`` and
    ``eval_NAME``, which MLPerf does not define. Metadata name the epoch, from 1, as ``epoch_num``, and the
    training samples seen as ``samples_count``. At the end ``run_stop`` with the status "success" or
    "aborted": success needs the target score where the run has one, else that it ended neither by an error
    nor by Ctrl-C. Intervals that an abort cut short are ended before it.

    Lines of a submission (``submission_...``, ``cache_clear``, ``init_...``) are not written: a run here is
    none. Numbers that are not finite are the strings "nan", "inf" and "-inf", since JSON has none. A run
    that is resumed writes the epochs before it too, at the times of its wall clock.
    """

    log = "mlperf"
    default_path = "mlperf.log"

    def __init__(self, path: str | Path | None = None, **what: Any) -> None:
        super().__init__(path, **what)
        self.written: Path | None = None
        self._file: IO[str] | None = None
        self._begun = False
        self._open: list[str] = []

    def before_run(self, state: RunState) -> None:
        from mlperf_logging.mllog.mllog import MLLogger

        super().before_run(state)
        self.written = None
        self._begun, self._open = False, []
        target = self.target(state)
        try:
            self._file = target.open("x", encoding="utf-8", newline="\n")
        except FileExistsError:
            raise UserError(f"{target} exists already: choose another path") from None
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror or error}") from None
        self.written = target
        self._lines = _Lines("meta500.mlperf")
        # Who logs is the caller of _log, named relative to the folder that holds the package.
        root = re.escape(str(Path(meta500.__file__).parent.parent))
        self._mllog = MLLogger(self._lines, default_stack_offset=2, root_dir=root)

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        super().restore_state(saved, state)
        self._begin(state)
        summary, end = state.summary, 0.0
        for epoch in summary.epochs:
            self._start("epoch", epoch.epoch, epoch.samples_seen - epoch.samples, end)
            trained, end = summary.wall_seconds[epoch.step - 1], epoch.total_wall_seconds
            self._trained(epoch, trained)
            if epoch.test_loss is not None:
                self._start("eval", epoch.epoch, epoch.samples_seen, trained)
                self._scored(epoch, end)
        # The epoch under way; before_training_set finds it started.
        done = 0 if summary.current is None else summary.current.samples
        self._start("epoch", state.epoch, state.samples_seen - done, end)

    def before_training_set(self, state: RunState) -> None:
        self._begin(state)
        if not self._open:
            self._start("epoch", state.epoch, state.samples_seen, state.wall_seconds)

    def after_training_set(self, state: RunState) -> None:
        assert state.summary.current is not None
        self._trained(state.summary.current, state.wall_seconds)

    def before_test_set(self, state: RunState) -> None:
        self._start("eval", state.epoch, state.samples_seen, state.wall_seconds)

    def after_epoch(self, state: RunState) -> None:
        if self._open:
            self._scored(state.summary.epochs[-1], state.wall_seconds)

    def after_run(self, state: RunState) -> None:
        if self._file is None:
            return
        place, end = _place(state.epoch, state.samples_seen), state.wall_seconds
        try:
            self._begin(state)
            while self._open:
                self._stop(place, end)
            reason = {"reason": state.abort_reason} if state.abort_reason else {}
            self._log("end", "run_stop", end, metadata={"status": _status(state), **place, **reason})
        finally:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                raise self._failed(error) from None

    # -- the parts of a run ----------------------------------------------------------------------------

    def _begin(self, state: RunState) -> None:
        """The lines before the first epoch, once; not before it is known whether the run is resumed."""
        if self._begun:
            return
        self._begun = True
        fields, hyper = self.fields(state), hyper_parameters(state.optimizer)
        rate = hyper.get("learning_rate")
        facts = {
            "seed": fields.get("seed"),
            "global_batch_size": fields.get("batch"),
            "opt_name": fields.get("optimizer"),
            "opt_base_learning_rate": None if isinstance(rate, str) else rate,
            "opt_weight_decay": hyper.get("weight_decay"),
            "train_samples": _length(state.runner.train_set),
            "eval_samples": _length(state.runner.test_set),
        }
        for key, value in facts.items():
            if value is not None:
                self._log("event", key, 0.0, value)
        self._log("start", "run_start", 0.0)

    def _trained(self, epoch: EpochSummary, seconds: float) -> None:
        place = _place(epoch.epoch, epoch.samples_seen)
        throughput = epoch.samples / epoch.train_seconds if epoch.train_seconds else math.nan
        stats = {"train_loss": plain(epoch.loss), "throughput": plain(throughput)}
        self._log("event", "tracked_stats", seconds, stats, {**place, "step": epoch.step})
        self._stop(place, seconds)

    def _scored(self, epoch: EpochSummary, seconds: float) -> None:
        place = _place(epoch.epoch, epoch.samples_seen)
        scores = {"accuracy": epoch.accuracy, "loss": epoch.test_loss, **epoch.scores}
        for name, value in scores.items():
            if value is not None:
                self._log("event", f"eval_{name}", seconds, plain(value), place)
        self._stop(place, seconds)

    def _start(self, interval: str, epoch: int, samples: int, seconds: float) -> None:
        self._log("start", f"{interval}_start", seconds, metadata=_place(epoch, samples))
        self._open.append(interval)

    def _stop(self, place: dict[str, Any], seconds: float) -> None:
        self._log("end", f"{self._open[-1]}_stop", seconds, metadata=place)
        self._open.pop()

    def _log(
        self, kind: str, key: str, seconds: float, value: Any = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Write one line whose time is that at which the run's wall clock showed ``seconds``."""
        assert self._file is not None
        time_ms = int(1000 * self.at(seconds))
        getattr(self._mllog, kind)(key, value, metadata=metadata, time_ms=time_ms)
        try:
            self._file.write(self._lines.text + "\n")
            self._file.flush()
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> UserError:
        return UserError(f"{self.written} cannot be written: {error.strerror or error}")


class _Lines(logging.Logger):
    """Keeps the last line instead of handing it to handlers, which would swallow errors of writing."""

    text = ""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        if level != logging.INFO:
            raise ValueError(msg)
        self.text = str(msg)


def _place(epoch: int, samples: int) -> dict[str, Any]:
    return {"epoch_num": epoch + 1, "samples_count": samples}


def _status(state: RunState) -> str:
    limits = [ticker for ticker in state.runner.tickers if isinstance(ticker, ScoreLimit)]
    reached = all(limit.reached is not None for limit in limits)
    return "success" if state.status in ("finished", "stopped") and reached else "aborted"


def _length(source: Any) -> int | None:
    """Samples of the dataset behind a sampler or loader."""
    dataset: Any = getattr(source, "dataset", None)
    return len(dataset) if hasattr(dataset, "__len__") else None
