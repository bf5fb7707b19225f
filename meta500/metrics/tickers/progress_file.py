"""Where a run is, in a small file of its folder for those who watch it from outside."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meta500.metrics.events import RunState
from meta500.metrics.live import PROGRESS, PROGRESS_VERSION, Progress, plain
from meta500.metrics.tickers.pace import Pace, PaceTicker

REFRESH_NS = 500_000_000


class ProgressFile(PaceTicker):
    """Writes `meta500.metrics.live.Progress` into progress.json of the run folder, at most every half second.

    The file is replaced as a whole and not forced to the disk: it tells nothing that rows.csv does not tell a
    second later. For the same reason a file that cannot be written ends no run.
    """

    def before_run(self, state: RunState) -> None:
        self._pace = Pace(state)
        self._written_ns = 0
        self._phase = "starting"
        self._write(state)

    def restore_state(self, saved: Mapping[str, Any], state: RunState) -> None:
        self._pace.restore(state)

    def after_epoch(self, state: RunState) -> None:
        self._write(state)

    def after_run(self, state: RunState) -> None:
        self._phase = "over"
        self._write(state)

    def begin(self, state: RunState, phase: str) -> None:
        self._phase = phase
        self._pace.begin()
        self._write(state)

    def advance(self, state: RunState, test: bool) -> None:
        if self._pace.advance(test) - self._written_ns >= REFRESH_NS:
            self._write(state)

    def _write(self, state: RunState) -> None:
        self._written_ns = time.perf_counter_ns()
        progress = Progress(
            phase=self._phase,
            epoch=state.epoch - state.first_epoch + 1,
            epochs=state.epochs,
            batch=state.batch if self._phase in ("training", "testing") else 0,
            batches={"training": state.train_batches, "testing": state.test_batches}.get(self._phase),
            step=state.step,
            samples_seen=state.samples_seen,
            loss=state.loss,
            accuracy=state.summary.accuracy,
            seconds=state.wall_seconds,
            remaining=self._pace.seconds(state),
            remaining_complete=self._pace.remaining.complete,
            may_stop=self._pace.may_stop,
            done=self._pace.fraction(state),
            updated=time.time(),
        )
        content = {"version": PROGRESS_VERSION} | {k: plain(v) for k, v in asdict(progress).items()}
        path = Path(state.folder.path) / PROGRESS
        temporary = path.with_name(f".{PROGRESS}.{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(content) + "\n", encoding="utf-8")
            os.replace(temporary, path)
