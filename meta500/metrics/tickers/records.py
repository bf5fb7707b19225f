"""One flat record per recorded event, and the text file that takes them as they come."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

from meta500.errors import UserError
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.tickers.metric import MetricTicker

Record = dict[str, str | int | float | None]

STEP_FIELDS = (
    "event",
    "epoch",
    "step",
    "samples_seen",
    "train_seconds",
    "wall_seconds",
    "step_seconds",
    "fetch_seconds",
    "loss",
)
EPOCH_FIELDS = ("test_loss", "accuracy")
END_FIELDS = ("status", "abort_reason")


class RecordTicker(Ticker):
    """Base of tickers that write a record after every step, after every epoch and at the end.

    Events: "step" (fields STEP_FIELDS; ``loss`` of that step), "epoch" (``loss`` is the epoch's
    mean, EPOCH_FIELDS and the values of metric tickers are set, ``step_seconds`` and
    ``fetch_seconds`` are sums over the epoch) and "end" (END_FIELDS). Times are seconds; fields
    that do not apply are None. Every record is on disk when its event is over.

    Args:
        path: the file; relative to the run folder where the run has one.
        overwrite: replace a file that exists.

    Raises:
        UserError: the file exists (and ``overwrite`` is False), or cannot be written.
    """

    suffix = ""
    root_only = True

    def __init__(self, path: str | Path | None = None, *, overwrite: bool = False) -> None:
        self.path, self.overwrite = path, overwrite
        self.written: Path | None = None
        self._file: IO[str] | None = None

    def columns(self, state: RunState) -> list[str]:
        """All fields of this run's records, in order."""
        metrics = [t.name for t in state.runner.tickers if isinstance(t, MetricTicker)]
        return [*STEP_FIELDS, *EPOCH_FIELDS, *metrics, *END_FIELDS]

    def line(self, record: Record) -> str:
        """The record as one line of text with its line end."""
        raise NotImplementedError

    def before_run(self, state: RunState) -> None:
        name = f"training{self.suffix}" if self.path is None else self.path
        if state.folder is not None:
            target = Path(state.folder.path) / name
        elif self.path is not None:
            target = Path(self.path)
        else:
            raise UserError(f"{type(self).__name__} needs a path, since the Runner has no run folder")
        try:
            self._file = target.open("w" if self.overwrite else "x", encoding="utf-8", newline="")
        except FileExistsError:
            raise UserError(f"{target} exists already: choose another path, or overwrite=True") from None
        except OSError as error:
            raise UserError(f"{target} cannot be written: {error.strerror or error}") from None
        self.written = target
        self._columns = self.columns(state)

    def after_optimizer_step(self, state: RunState) -> None:
        self._write(
            self._place(state, "step")
            | {
                "step_seconds": state.step_seconds,
                "fetch_seconds": state.fetch_ns * 1e-9,
                "loss": state.loss,
            }
        )

    def after_epoch(self, state: RunState) -> None:
        epoch = state.summary.epochs[-1]
        self._write(
            self._place(state, "epoch")
            | {
                "step_seconds": epoch.train_seconds,
                "fetch_seconds": epoch.data_seconds,
                "loss": epoch.loss,
                "test_loss": epoch.test_loss,
                "accuracy": epoch.accuracy,
                **epoch.scores,
            }
        )

    def after_run(self, state: RunState) -> None:
        if self._file is None:
            return
        try:
            end: Record = {"status": state.status, "abort_reason": state.abort_reason}
            self._write(self._place(state, "end") | end)
        finally:
            file, self._file = self._file, None
            try:
                file.close()
            except OSError as error:
                raise UserError(f"{self.written} cannot be written: {error.strerror or error}") from None

    def _place(self, state: RunState, event: str) -> Record:
        return {
            "event": event,
            "epoch": state.epoch,
            "step": state.step,
            "samples_seen": state.samples_seen,
            "train_seconds": state.train_seconds,
            "wall_seconds": state.wall_seconds,
        }

    def _write(self, values: Record) -> None:
        assert self._file is not None
        record: dict[str, Any] = {name: values.get(name) for name in self._columns}
        try:
            self._file.write(self.line(record))
            self._file.flush()
        except OSError as error:
            raise UserError(f"{self.written} cannot be written: {error.strerror or error}") from None
