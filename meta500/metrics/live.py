"""Following a run while it goes, from its folder alone: what ``meta500 watch`` and the live page show.

The process that trains does nothing for those who watch beyond the files that it writes anyway: rows.csv,
which grows, and progress.json, a few hundred bytes that are replaced at most every half second
(`meta500.metrics.tickers.ProgressFile`). Watching takes no lock for longer than a question about it, and
reads of rows.csv only what is new.
"""

from __future__ import annotations

import bisect
import csv
import io
import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.rows import Row, from_dict
from meta500.metrics.run import being_written, read_info

PROGRESS = "progress.json"
PROGRESS_VERSION = 1
# Points of one series that are kept; from then on every second, fourth, ... step.
MOST_POINTS = 4000
LATEST = 8
# A run counts as dead only when two questions so far apart find nobody writing it.
DEAD_SECONDS = 1.0
SERIES_PHASES = ("training_step", "training_set", "test_set")
# Rows that say where on a curve its other rows lie.
AXES = ("samples_seen", "training_time", "data_time")
# Fields of rows that tell one training run in a folder from another.
TRAINING = ("model", "dataset", "optimizer", "backend", "mode", "device", "dtype", "batch", "threads", "seed")


@dataclass(frozen=True)
class Progress:
    """Where a training run is, as its process says in progress.json.

    ``phase`` is "starting", "training", "testing" or "over"; ``epoch`` counts from 1; ``batch`` of
    ``batches`` belong to the phase (None: their number is unknown). ``step`` and ``samples_seen`` count
    training steps and samples of the whole run, ``loss`` is that of the last step and ``accuracy`` (0 to 1)
    that of the last test. ``seconds`` of wall time have passed; ``remaining`` seconds are estimated from the
    batches timed so far (None: too few of them) and are a lower bound unless ``remaining_complete``,
    an upper one if ``may_stop``: a score may end the run sooner. ``updated``: seconds since 1970.
    """

    phase: str
    epoch: int
    epochs: int
    batch: int
    batches: int | None
    step: int
    samples_seen: int
    loss: float | None
    accuracy: float | None
    seconds: float
    remaining: float | None
    remaining_complete: bool
    may_stop: bool
    done: float | None
    updated: float

    @classmethod
    def read(cls, path: Path) -> Progress | None:
        """The progress in a file; None where there is none, or one of another version.

        Raises:
            UserError: the file is no progress.
        """
        try:
            entry = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read: {error}") from None
        if not isinstance(entry, dict) or "version" not in entry:
            raise UserError(f"{path}: does not hold the progress of a run")
        if entry["version"] != PROGRESS_VERSION:
            return None
        names = {field.name for field in fields(cls)}
        if missing := sorted(names - set(entry)):
            raise UserError(f"{path}: is damaged: '{missing[0]}' is missing")
        return cls(**{name: number_of(entry[name]) for name in names})


class Series:
    """The points of one curve, at most `MOST_POINTS` of them: beyond, only those of every ``every``-th call
    of `add` are kept."""

    def __init__(self) -> None:
        self.every = 1
        self._count = 0
        self._marks: list[int] = []
        self._points: list[tuple[float, float, float]] = []

    def add(self, mark: int, samples: float, seconds: float, value: float) -> None:
        self._count += 1
        if (self._count - 1) % self.every:
            return
        self._marks.append(mark)
        self._points.append((samples, seconds, value))
        if len(self._points) > MOST_POINTS:
            self.every *= 2
            self._marks, self._points = self._marks[::2], self._points[::2]

    def points(self, mark: int = 0) -> list[tuple[float, float, float]]:
        """Triples of samples seen, seconds of training and value that came after ``mark``."""
        return self._points[bisect.bisect_right(self._marks, mark) :]


class LiveRun:
    """One run folder that is followed; `poll` reads what is new.

    Args:
        path: a run folder. It may be one that is still being made: then it has no rows yet.

    Attributes:
        path: the folder.
        info: contents of run.json.
        status: "running", "finished", "failed" or "interrupted"; the last one also for a run that says that
        it
            is running while nobody writes it any more.
        message: why it ended so.
        progress: where the training is, None for runs that train nothing.
        training: what the training run under way is (the last one, where a folder has several), as fields of
            rows.
        series: its curves: "loss" of single steps, "train_loss" (mean of an epoch), "test_loss", "accuracy"
            and other scores of the test set. ``last`` has the newest point of each and ``counts`` their
            number, whatever was thinned.
        rows: number of rows so far; latest: the last of those that are no points of a curve.

    Raises:
        UserError: there is no such folder, or no run in it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not self.path.is_dir():
            raise UserError(f"{self.path}: there is no such folder; name the folder of a run")
        self.info = read_info(self.path / "run.json")
        self.progress: Progress | None = None
        self.problem = ""
        self._info_stamp: tuple[int, int] | None = None
        self._dead_since: float | None = None
        self._dead = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        self._tail = _Tail(self.path / "rows.csv")
        self.rows = 0
        self.latest: deque[Row] = deque(maxlen=LATEST)
        self.mark = getattr(self, "mark", 0) + 1
        self._begin_training({})

    def _begin_training(self, what: dict[str, Any]) -> None:
        self.training = what
        self.series: dict[str, Series] = {}
        self.last: dict[str, tuple[float, float, float]] = {}
        self.counts: dict[str, int] = {}
        self._first_mark = self.mark
        self._last_step = -1
        self._seen: dict[int, float] = {}
        self._chunk: dict[str, tuple[float, ...]] = {}

    @property
    def status(self) -> str:
        return "interrupted" if self._dead else str(self.info["status"])

    @property
    def message(self) -> str:
        return "the process that wrote this run is gone" if self._dead else str(self.info.get("message", ""))

    @property
    def undecided(self) -> bool:
        """Whether nobody was found to write this run, and a second question is due `DEAD_SECONDS` later."""
        return self._dead_since is not None and not self._dead

    @property
    def over(self) -> bool:
        return self.status != "running"

    def poll(self) -> bool:
        """Read what is new; True where anything changed.

        A file that is damaged is said in ``problem``; what was read before stays.
        """
        before = (self.mark, self.rows, self.status, self.message, self.progress, self.problem)
        try:
            self.problem = ""
            self._poll_info()
            self._poll_rows()
            if self.training or self.progress or not self.rows:
                self.progress = Progress.read(self.path / PROGRESS)
        except UserError as error:
            self.problem = str(error)
        self._poll_life()
        return before != (self.mark, self.rows, self.status, self.message, self.progress, self.problem)

    def snapshot(self) -> dict[str, Any]:
        """Everything, as JSON can hold it; numbers that are not finite are strings ("NaN", "Infinity")."""
        return self.since(0)

    def since(self, mark: int) -> dict[str, Any]:
        """As `snapshot`, with only those points of the series that came after an earlier ``mark``.

        ``reset`` is True where the points of that mark no longer belong to these curves, so that all are
        given.
        """
        reset = mark < self._first_mark
        after = 0 if reset else mark
        series = {name: [list(map(plain, p)) for p in one.points(after)] for name, one in self.series.items()}
        return {
            "id": self.info["id"],
            "mark": self.mark,
            "reset": reset,
            "status": self.status,
            "message": self.message,
            "problem": self.problem,
            "started": self.info["started"],
            "finished": self.info.get("finished"),
            "progress": None
            if self.progress is None
            else {name: plain(value) for name, value in asdict(self.progress).items()},
            "training": self.training,
            "series": {name: points for name, points in series.items() if points},
            "every": {name: one.every for name, one in self.series.items() if one.every > 1},
            "rows": self.rows,
            "latest": [_short(row) for row in self.latest],
        }

    def _poll_info(self) -> None:
        path = self.path / "run.json"
        try:
            found = path.stat()
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}") from None
        stamp = (found.st_mtime_ns, found.st_ino)
        if stamp != self._info_stamp:
            before = self.info.get("continued")
            self.info = read_info(path)
            self._info_stamp = stamp
            if self.info.get("continued") != before:
                # A run that is gone on with has dropped rows, also where others already took their place.
                self._begin_anew()

    def _poll_rows(self) -> None:
        try:
            for row in self._tail.read():
                self._take(row)
        except _Shorter:
            # A run that is resumed drops the rows after its checkpoint.
            self._begin_anew()
            for row in self._tail.read():
                self._take(row)

    def _take(self, row: Row) -> None:
        self.rows += 1
        if row.phase in SERIES_PHASES and row.step is not None:
            self._add(row)
        else:
            self.latest.append(row)

    def _add(self, row: Row) -> None:
        assert row.step is not None
        what = {name: value for name in TRAINING if (value := getattr(row, name)) not in ("", None)}
        if what != self.training or row.step < self._last_step:
            self.mark += 1
            self._begin_training(what)
        self._last_step = row.step
        if row.phase == "training_step":
            self._chunk[row.quantity] = row.samples
            if row.quantity == "training_time":
                self._add_steps(row.step)
        elif row.quantity not in AXES and row.value is not None:
            name = row.quantity
            if name == "loss":
                name = "train_loss" if row.phase == "training_set" else "test_loss"
            samples = self._seen.get(row.step, math.nan)
            self._point(name, samples, row.seconds or 0.0, row.value)

    def _add_steps(self, step: int) -> None:
        # In the order in which `RowsTicker` writes a group of steps.
        chunk, self._chunk = self._chunk, {}
        values = [chunk.get(name, ()) for name in ("samples_seen", "training_time", "loss")]
        for samples, seconds, loss in zip(*values, strict=False):
            self._point("loss", samples, seconds, loss)
        if values[0]:
            self._seen = {step: values[0][-1]}

    def _point(self, name: str, samples: float, seconds: float, value: float) -> None:
        self.mark += 1
        self.series.setdefault(name, Series()).add(self.mark, samples, seconds, value)
        self.last[name] = (samples, seconds, value)
        self.counts[name] = self.counts.get(name, 0) + 1

    def _poll_life(self) -> None:
        """Ask whether the process of a run that is not over still lives."""
        now = time.monotonic()
        if self.info["status"] != "running" or being_written(self.path) is not False:
            self._dead_since, self._dead = None, False
        elif self._dead_since is None:
            self._dead_since = now
        elif now - self._dead_since >= DEAD_SECONDS:
            self._dead = True


class _Shorter(Exception):
    """The file is shorter than what was read of it."""


class _Tail:
    """The rows of a file that grows; each is given once, as soon as its line is complete."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0
        self._rest = b""
        self._lines = 0
        self._header: list[str] | None = None
        self._damage: UserError | None = None

    def read(self) -> Iterator[Row]:
        """Rows that came since the last call.

        Raises:
            UserError: names file and line of what is malformed; nothing after it is read.
            _Shorter: the file was cut, or replaced by a shorter one.
        """
        if self._damage is not None:
            raise self._damage
        try:
            with open(self.path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size < self._offset:
                    raise _Shorter
                file.seek(self._offset)
                new = file.read(size - self._offset)
        except FileNotFoundError:
            if self._offset:
                raise _Shorter from None
            return
        except OSError as error:
            raise UserError(f"{self.path}: cannot be read: {error.strerror}") from None
        if not new:
            return
        self._offset += len(new)
        data = self._rest + new
        end = data.rfind(b"\n") + 1
        # A line end inside of quotes ends no row.
        while end and data.count(b'"', 0, end) % 2:
            end = data.rfind(b"\n", 0, end - 1) + 1
        self._rest = data[end:]
        try:
            yield from self._parsed(data[:end])
        except UserError as error:
            self._damage = error
            raise

    def _parsed(self, data: bytes) -> Iterator[Row]:
        limit = csv.field_size_limit(sys.maxsize)
        try:
            records = list(csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""), strict=True))
        except (csv.Error, UnicodeDecodeError) as error:
            raise UserError(f"{self.path}, after line {self._lines}: no CSV: {error}") from None
        finally:
            csv.field_size_limit(limit)
        first = self._lines
        self._lines += data.count(b"\n")
        for place, cells in enumerate(records):
            if self._header is None:
                self._header = cells
            elif cells:
                if len(cells) != len(self._header):
                    raise UserError(
                        f"{self.path}, about line {first + place + 1}: {len(cells)} cells, "
                        f"the header has {len(self._header)}"
                    )
                try:
                    yield from_dict(dict(zip(self._header, cells, strict=True)))
                except UserError as error:
                    raise UserError(f"{self.path}, about line {first + place + 1}: {error}") from None


def plain(value: Any) -> Any:
    """A value as JSON can hold it: floats that are not finite become "NaN", "Infinity" or "-Infinity"."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def number_of(value: Any) -> Any:
    """The inverse of `plain`."""
    names = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
    return names.get(value, value) if isinstance(value, str) else value


def _short(row: Row) -> dict[str, Any]:
    names = (
        "phase",
        "model",
        "operator",
        "node",
        "shape",
        "backend",
        "mode",
        "optimizer",
        "quantity",
        "unit",
    )
    text = {name: getattr(row, name) for name in (*names, "verdict", "note") if getattr(row, name)}
    return text | {name: plain(getattr(row, name)) for name in ("value", "low", "high")}
