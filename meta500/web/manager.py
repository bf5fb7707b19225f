"""The queue: runs are started in turn, followed to their end, stopped, and found again after a restart."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import signal
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.run import note_end
from meta500.web import processes, setups
from meta500.web.jobs import ACTIVE, FINAL, Job
from meta500.web.limits import Limits
from meta500.web.processes import Process
from meta500.web.ranking import results
from meta500.web.refusals import Refusal
from meta500.web.storage import Storage, new_job, now

TICK = 0.2
# Seconds between attempts to write a job's file that could not be written.
AGAIN = 5.0
_LOG = logging.getLogger("meta500.web")


class Manager:
    """All jobs of one runs folder.

    Args:
        storage: the folder.
        limits: how many run and wait.
        changed: called with a job whose state is another one.
    """

    def __init__(self, storage: Storage, limits: Limits, changed: Callable[[Job], None]) -> None:
        self.storage, self.limits, self.changed = storage, limits, changed
        self.jobs: dict[str, Job] = {}
        self.problems: list[str] = []
        self._processes: dict[str, Process] = {}
        self._signals: dict[str, tuple[signal.Signals, float]] = {}
        self._unsaved: dict[str, float] = {}
        self._ticking = asyncio.Lock()
        self._closing = asyncio.Event()

    # -- from disk ------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Read the jobs; those whose processes live are followed, the dead ones get their end noted.

        Jobs that waited wait again, in their order.
        """
        found: list[Job] = []
        for path in self.storage.jobs.glob("*.json"):
            try:
                found.append(Job.read(path))
            except UserError as error:
                self.problems.append(str(error))
                _LOG.error("%s", error)
        for job in sorted(found, key=lambda job: (job.created, job.id)):
            self.jobs[job.id] = job
            if job.state in ACTIVE and job.pid is not None:
                self._processes[job.id] = Process(job.pid, job.birth)
            elif job.state in ACTIVE:
                job.state = "queued"
        waiting = {f"--out={self.storage.run(job.id)}": job for job in self._queue()}
        # A server that is killed just after it has started a process leaves a job that still seems to wait.
        for out, pid in processes.with_argument(waiting).items():
            job = waiting[out]
            job.state, job.started, job.pid, job.birth = "starting", now(), pid, processes.birth(pid)
            self._processes[job.id] = Process(pid, job.birth)
            self._save(job)

    # -- requests -------------------------------------------------------------------------------------

    def get(self, job: str) -> Job:
        """The job of an identifier.

        Raises:
            Refusal: there is none.
        """
        found = self.jobs.get(job)
        if found is None:
            raise Refusal(HTTPStatus.NOT_FOUND, f"there is no run '{job[:80]}'")
        return found

    def newest(self) -> list[Job]:
        """All jobs, the newest first."""
        return list(reversed(self.jobs.values()))

    def position(self, job: Job) -> int | None:
        """Its place in the queue, from 1; None if it does not wait."""
        return self._queue().index(job) + 1 if job.state == "queued" else None

    def active(self) -> int:
        """How many run."""
        return sum(job.state in ACTIVE for job in self.jobs.values())

    def check_room(self) -> None:
        """Refuse a run for which there is no place in the queue or on the disk.

        Raises:
            Refusal: says which.
        """
        active = self.active()
        waiting = len(self._queue())
        if active + waiting >= self.limits.running + self.limits.queued:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{active} runs are going and {waiting} wait, which is the most that this server takes; "
                "wait for one to end, or stop one",
            )
        self.storage.check_free()

    def add(self, setup: dict[str, Any], model: str) -> Job:
        """Put a checked setup into the queue.

        Raises:
            Refusal: there is no room.
        """
        self.check_room()
        job = Job(new_job(), setup, setup["label"], model, now())
        try:
            job.save(self.storage.job(job.id))
        except UserError as error:
            raise Refusal(HTTPStatus.INSUFFICIENT_STORAGE, str(error)) from None
        self.jobs[job.id] = job
        self.changed(job)
        return job

    def stop(self, job: Job) -> None:
        """Take a job out of the queue, or interrupt its process.

        Raises:
            Refusal: it is over.
        """
        if job.state in FINAL:
            raise Refusal(HTTPStatus.CONFLICT, f"the run is over: it is {job.state}")
        job.stopping = True
        if job.state == "queued":
            self._end(job, "stopped", "stopped before it began")
        elif job.id in self._processes and job.id not in self._signals:
            self._signal(job, signal.SIGINT)
            self._save(job)

    def uses(self, upload: str) -> bool:
        """Whether a run that is not over needs the uploaded file."""
        return any(job.setup.get("upload") == upload and job.state not in FINAL for job in self.jobs.values())

    # -- the loop -------------------------------------------------------------------------------------

    async def follow(self) -> None:
        """Start, follow and end, until `close`."""
        while not self._closing.is_set():
            try:
                await self.tick()
            except UserError as error:
                _LOG.error("%s", error)
            except Exception:
                _LOG.exception("following the runs")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK):
                    await self._closing.wait()

    def close(self) -> None:
        """Start nothing more, and let `follow` end after what it is doing."""
        self._closing.set()

    async def tick(self) -> None:
        """Look at every process once, and start what may start."""
        async with self._ticking:
            await self._tick()

    async def _tick(self) -> None:
        for job in [job for job in self.jobs.values() if job.state in ACTIVE]:
            process = self._processes.get(job.id)
            if process is None:
                continue
            if process.ended():
                await asyncio.to_thread(self._conclude, job, process)
                self.changed(job)
            elif job.state == "starting" and (self.storage.run(job.id) / "run.json").exists():
                job.state = "running"
                self._save(job)
                self.changed(job)
            if job.state in ACTIVE:
                self._insist(job)
        for name, since in list(self._unsaved.items()):
            if time.monotonic() - since > AGAIN:
                self._save(self.jobs[name])
        while not self._closing.is_set() and self._free() and (queue := self._queue()):
            await self._start(queue[0])

    async def shut(self, *, stop: bool) -> int:
        """Start nothing more; with ``stop`` interrupt what runs and wait for its end. Gives their number."""
        self.close()
        async with self._ticking:
            active = [job for job in self.jobs.values() if job.state in ACTIVE]
        if not stop:
            return len(active)
        for job in active:
            self.stop(job)
        while any(job.state in ACTIVE for job in active):
            await self.tick()
            await asyncio.sleep(TICK / 2)
        return len(active)

    # -- one job --------------------------------------------------------------------------------------

    def _queue(self) -> list[Job]:
        return [job for job in self.jobs.values() if job.state == "queued"]

    def _free(self) -> bool:
        return self.active() < self.limits.running

    async def _start(self, job: Job) -> None:
        upload = job.setup.get("upload")
        try:
            model = str(self.storage.uploaded(upload)) if upload else job.setup["model"]
            words = setups.command(job.setup, model, str(self.storage.run(job.id)))
            self.storage.check_free()
            job.state, job.started = "starting", now()
            child = await asyncio.to_thread(
                processes.start, words, self.storage.log(job.id), self.limits.memory
            )
        except UserError as error:
            self._end(job, "failed", str(error))
            return
        except Exception as error:
            _LOG.exception("starting %s", job.id)
            self._end(job, "failed", f"the run cannot be started: {type(error).__name__}: {error}")
            return
        job.pid, job.birth = child.pid, processes.birth(child.pid)
        self._processes[job.id] = Process(child.pid, job.birth, child)
        self._save(job)
        self.changed(job)

    def _signal(self, job: Job, number: signal.Signals) -> None:
        self._signals[job.id] = (number, time.monotonic())
        self._processes[job.id].send(number)

    def _insist(self, job: Job) -> None:
        """Use the next stronger signal where one had no effect."""
        if not job.stopping:
            return
        number, since = self._signals.get(job.id, (None, 0.0))
        waited = time.monotonic() - since
        if number is None:
            self._signal(job, signal.SIGINT)  # an earlier server was asked
        elif number == signal.SIGINT and waited > self.limits.grace:
            self._signal(job, signal.SIGTERM)
        elif number == signal.SIGTERM and waited > self.limits.grace / 2:
            self._signal(job, signal.SIGKILL)

    def _conclude(self, job: Job, process: Process) -> None:
        """Note how a run ended whose process is over."""
        folder = self.storage.run(job.id)
        info = _info(folder)
        status, message = str(info.get("status", "")), str(info.get("message") or "")
        if status == "running":
            # Killed before it could say so; or the disk was full.
            message = ("stopped by force" if job.stopping else self._last_words(job)) or process.cause()
            gone = process.code is None or process.code < 0
            status = "interrupted" if job.stopping or gone else "failed"
            try:
                note_end(folder, status, message)
            except UserError as error:
                message += f"; {error}"
        elif not status:
            status = "failed"
            message = self._last_words(job) or process.cause()
            if job.stopping:
                message = "stopped before training began"
            elif process.code is None:
                status = "interrupted"
        if job.stopping and status != "finished":
            status = "stopped"
        try:
            job.results = results(folder)
        except Exception:  # whatever is in the folder, the other runs go on
            _LOG.exception("reading the results of %s", job.id)
        if job.setup.get("upload"):
            place = re.escape(str(self.storage.upload(job.setup["upload"])))
            message = re.sub(place + r"/[A-Za-z0-9_-]+\.onnx", lambda _: job.model, message)
        self._end(job, status if status in FINAL else "failed", message, tell=False)

    def _end(self, job: Job, state: str, message: str, *, tell: bool = True) -> None:
        job.message, job.ended = message[:2000], now()
        job.state = state  # last: who sees it finds the rest
        self._processes.pop(job.id, None)
        self._signals.pop(job.id, None)
        self._save(job)
        if tell:
            self.changed(job)

    def _last_words(self, job: Job) -> str:
        """The last error message in the log; "" if there is none."""
        found = [line for line in self.log(job).splitlines() if line.startswith("meta500: error: ")]
        return found[-1].removeprefix("meta500: error: ") if found else ""

    def log(self, job: Job, most: int = 65536) -> str:
        """The end of what its process printed, at most so many bytes; "" before it has begun."""
        try:
            with open(self.storage.log(job.id), "rb") as file:
                file.seek(0, 2)
                file.seek(max(0, file.tell() - most))
                return file.read(most).decode("utf-8", "replace")
        except OSError:
            return ""

    def _save(self, job: Job) -> None:
        """Write the job's file; a full disk ends nothing, it is tried again later."""
        try:
            job.save(self.storage.job(job.id))
        except UserError as error:
            if job.id not in self._unsaved:
                _LOG.error("%s", error)
            self._unsaved[job.id] = time.monotonic()
        else:
            self._unsaved.pop(job.id, None)


def _info(folder: Path) -> dict[str, Any]:
    """What run.json says; empty if it says nothing."""
    try:
        info = json.loads((folder / "run.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}
