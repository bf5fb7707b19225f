"""The scalars of a run as an event file of TensorBoard."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.events import RunState
from meta500.metrics.tickers.logs import ScalarTicker

# How old what is not on disk yet may become, in seconds; every flush waits for the disk.
FLUSH_SECONDS = 1.0
VERSION = "brain.Event:2"


class TensorBoardWriter(ScalarTicker):
    """Write an event file into the folder "tensorboard" (``path``: another folder); see `ScalarTicker` for
    the names of the scalars.

    Records go to the file in the thread of the run, so that a disk that is full is noticed where it
    happens. ``written`` is the file.
    """

    log = "tensorboard"
    default_path = "tensorboard"

    def __init__(self, path: str | Path | None = None, **what: Any) -> None:
        super().__init__(path, **what)
        self.written: Path | None = None
        self._file: Any = None

    def before_run(self, state: RunState) -> None:
        from tensorboardX.proto import event_pb2
        from tensorboardX.record_writer import RecordWriter

        super().before_run(state)
        self.written, self._flushed = None, 0.0
        folder = self.target(state)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            target = _unused(folder, int(time.time()))
            self._file = RecordWriter(str(target))
        except OSError as error:
            raise UserError(f"{folder} cannot be written: {error.strerror or error}") from None
        self.written = target
        self._write(event_pb2.Event(wall_time=time.time(), file_version=VERSION))

    def add(self, scalars: Mapping[str, float], step: int, seconds: float) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
        summary = summary_pb2.Summary(value=values)
        self._write(event_pb2.Event(wall_time=seconds, step=step, summary=summary))

    def after_run(self, state: RunState) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        try:
            # Closing writes what is left; flushing first would leave the file open where that fails.
            file.close()
        except OSError as error:
            raise self._failed(error) from None

    def _write(self, event: Any) -> None:
        try:
            self._file.write(event.SerializeToString())
            now = time.monotonic()
            if now - self._flushed > FLUSH_SECONDS:
                self._file.flush()
                self._flushed = now
        except OSError as error:
            raise self._failed(error) from None

    def _failed(self, error: OSError) -> UserError:
        return UserError(f"{self.written} cannot be written: {error.strerror or error}")


def _unused(folder: Path, second: int) -> Path:
    """A name for an event file that is not taken: readers want "tfevents" and the second it began."""
    names = (
        f"events.out.tfevents.{later:010d}.{socket.gethostname()}" for later in range(second, 2 * second)
    )
    return next(path for name in names if not (path := folder / name).exists())
