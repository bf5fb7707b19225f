"""Events for many listeners: every run folder is read once, every message written once.

Each job has one reader, asked at most once per second and only while somebody listens or asks. What is new
becomes bytes once and goes into the bounded queues of all listeners; one that does not keep up is let go, and
comes back with the number of the last event that it saw.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from meta500.errors import UserError
from meta500.metrics.live import LiveRun, plain
from meta500.web.jobs import FINAL, Job
from meta500.web.limits import Limits
from meta500.web.manager import Manager
from meta500.web.refusals import Refusal

INTERVAL = 1.0
# Messages that wait for one listener; a minute of them.
_QUEUE = 120
# Readers of runs that are over are kept for so many.
_KEPT = 32
_LOG = logging.getLogger("meta500.web")


class Listener:
    """One connection: the curves that it wants, and the messages that wait for it.

    ``single`` is True for the events of one run alone.
    """

    def __init__(self, ids: Sequence[str], single: bool) -> None:
        self.ids, self.single = tuple(ids), single
        self.queue: asyncio.Queue[bytes | None] = asyncio.Queue(_QUEUE)
        self.lost = False

    def put(self, message: bytes | None) -> None:
        """Hand over a message (None: the end); a listener that is behind by a full queue is let go."""
        if self.lost:
            return
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.lost = True
            while not self.queue.empty():
                self.queue.get_nowait()
            self.queue.put_nowait(None)


class Reader:
    """The reader of one run, and where it is.

    Attributes:
        live: None until there is a run folder.
        mark: up to where listeners have been told.
        progress: of the run, ready for JSON; None before there is any.
        over: whether all was read of a run that is over.
        asked: when somebody wanted it last.
        text: everything as JSON, until something is new.
    """

    def __init__(self) -> None:
        self.live: LiveRun | None = None
        self.mark = 0
        self.progress: Any = None
        self.over = False
        self.asked = -1.0
        self.text: str | None = None


class Feed:
    """What runs have to tell, for all who listen.

    Args:
        manager: the jobs.
        limits: how many may listen.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.manager: Manager
        self.boot = secrets.token_hex(4)
        self._readers: dict[str, Reader] = {}
        self._listeners: list[Listener] = []
        self._dirty: set[str] = set()
        self._lock = asyncio.Lock()
        self._wake = asyncio.Event()
        self._closed = False
        self._refreshed = -INTERVAL

    def changed(self, job: Job) -> None:
        """Note that a job's state is another one; told with the next messages."""
        self._dirty.add(job.id)
        if job.state == "queued" or job.state in FINAL:
            # The places of those that wait may have changed.
            self._dirty |= {other.id for other in self.manager.jobs.values() if other.state == "queued"}
        self._wake.set()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        for listener in self._listeners:
            listener.put(None)

    async def run(self) -> None:
        """Read and tell once per second while somebody listens, until cancelled."""
        said = ""
        while True:
            if self._listeners:
                try:
                    await self.refresh()
                except Exception as error:
                    if said != repr(error):  # once, not every second
                        _LOG.exception("telling what is new")
                    said = repr(error)
                left = self._refreshed + INTERVAL - time.monotonic()
                await asyncio.sleep(max(0.01, left))
            else:
                self._wake.clear()
                await self._wake.wait()

    # -- reading --------------------------------------------------------------------------------------

    async def refresh(self) -> None:
        """Read what is new of the runs that are going, and tell it; at most once per second."""
        async with self._lock:
            if time.monotonic() - self._refreshed < INTERVAL:
                return
            self._refreshed = time.monotonic()
            news: dict[str, str | None] = {}
            # What changes from here on, while others are read, is read again and told with the next messages.
            dirty, self._dirty = self._dirty, set()
            try:
                for job in list(self.manager.jobs.values()):
                    if job.state not in ("queued", *FINAL) or job.id in dirty:
                        news |= await self._read(job)
                told = {*news, *dirty} & self.manager.jobs.keys()
                if told:
                    self._tell([self.manager.jobs[name] for name in self.manager.jobs if name in told], news)
            except BaseException:
                self._dirty |= dirty
                raise

    async def _read(self, job: Job) -> dict[str, str | None]:
        """``{id: what is new, as JSON}``; empty where nothing is."""
        reader = self._readers.setdefault(job.id, Reader())
        reader.asked = time.monotonic()
        over = job.state in FINAL  # asked before reading: what comes after it is read the next time
        new = await asyncio.to_thread(self._polled, job, reader)
        reader.over = over
        return {} if new is None else {job.id: new}

    def _polled(self, job: Job, reader: Reader) -> str | None:
        if reader.live is None:
            reader.live = self._open(job)
            if reader.live is None:
                return None
        elif not reader.live.poll():
            return None
        news = _since(reader.live, reader.mark)
        reader.mark, reader.progress, reader.text = news["mark"], news["progress"], None
        return _json(news)

    def _open(self, job: Job) -> LiveRun | None:
        folder = self.manager.storage.run(job.id)
        if not (folder / "run.json").exists():
            return None
        try:
            live = LiveRun(folder)
            live.poll()
        except UserError:
            return None
        return live

    async def snapshot(self, job: Job) -> str:
        """Everything about the run as JSON, "null" where it has no folder yet. Needs the lock."""
        reader = self._readers.setdefault(job.id, Reader())
        reader.asked = time.monotonic()
        if reader.live is None:
            # Those who listen already are to hear of it too.
            news = await self._read(job)
            if news:
                self._tell([job], news)
        live = reader.live
        if live is None:
            return "null"
        if reader.text is None:
            reader.text = await asyncio.to_thread(lambda: _json(_since(live, 0)))
        self._forget()
        return reader.text

    def _forget(self) -> None:
        """Drop readers of runs that are over and were not asked for longest."""
        wanted = {name for listener in self._listeners for name in listener.ids}
        over = [
            name
            for name, reader in self._readers.items()
            if self.manager.jobs[name].state in FINAL and name not in wanted and reader.live is not None
        ]
        for name in sorted(over, key=lambda name: self._readers[name].asked)[:-_KEPT]:
            self._readers[name] = Reader()

    # -- telling --------------------------------------------------------------------------------------

    def summary(self, job: Job) -> dict[str, Any]:
        """A job as the page shows it."""
        reader = self._readers.get(job.id)
        progress = None if reader is None else reader.progress
        if progress is None and job.results is not None:
            progress = job.results["progress"]
        return job.summary(self.manager.position(job), progress)

    async def list(self) -> str:
        """All jobs, the newest first, as JSON."""
        await self.refresh()
        return _json({"runs": [self.summary(job) for job in self.manager.newest()]})

    async def one(self, job: Job) -> str:
        """One job with everything about its run, as JSON."""
        await self.refresh()
        async with self._lock:
            snapshot = await self.snapshot(job)
            return _with(self.summary(job), "snapshot", snapshot)

    def _tell(self, jobs: Sequence[Job], news: dict[str, str | None]) -> None:
        """Write each message once, and hand it to all who want it."""
        if not self._listeners:
            return
        summaries = {job.id: _json(self.summary(job)) for job in reversed(jobs)}
        groups: dict[tuple[tuple[str, ...], bool], bytes | None] = {}
        for listener in list(self._listeners):
            key = (listener.ids, listener.single)
            if key not in groups:
                groups[key] = self._message(listener, summaries, news)
            message = groups[key]
            if message is not None:
                listener.put(message)
            if listener.single and listener.ids[0] in summaries and self._readers[listener.ids[0]].over:
                job = self.manager.jobs[listener.ids[0]]
                listener.put(event("end", self._mark(listener.ids), _json(self.summary(job))))
                listener.put(None)

    def _message(
        self, listener: Listener, summaries: dict[str, str], news: dict[str, str | None]
    ) -> bytes | None:
        if listener.single:
            name = listener.ids[0]
            if name not in summaries:
                return None
            data = _extended(summaries[name], "since", news.get(name) or "null")
        else:
            curves = {name: found for name in listener.ids if (found := news.get(name)) is not None}
            data = f'{{"runs":[{",".join(summaries.values())}],"curves":{_object(curves)}}}'
        return event("update", self._mark(listener.ids), data)

    def _mark(self, ids: Iterable[str]) -> str:
        """The number of an event: where each of the runs is, valid as long as this server lives."""
        return ".".join(
            [self.boot, *(str(self._readers[name].mark) if name in self._readers else "0" for name in ids)]
        )

    def check_room(self) -> None:
        """Refuse one more connection where too many are open.

        Raises:
            Refusal: see above.
        """
        if len(self._listeners) >= self.limits.clients:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{len(self._listeners)} pages watch already, the most here"
            )

    async def events(self, ids: Sequence[str], single: bool, last: str | None) -> AsyncIterator[bytes]:
        """The messages for one connection: first everything, or what is new after the event ``last``."""
        listener = Listener(ids, single)
        await self.refresh()
        async with self._lock:
            first = await self._first(listener, last)
            over = single and self._readers[ids[0]].over
            self._listeners.append(listener)
        try:
            self._wake.set()
            yield first
            if over:
                yield event("end", self._mark(ids), _json(self.summary(self.manager.jobs[ids[0]])))
                return
            while not self._closed or not listener.queue.empty():
                message = await listener.queue.get()
                if message is None:
                    return
                yield message
        finally:
            self._listeners.remove(listener)

    async def _first(self, listener: Listener, last: str | None) -> bytes:
        known = self._known(listener.ids, last)
        jobs = {name: self.manager.jobs[name] for name in listener.ids}
        curves: dict[str, str] = {}
        for name, job in jobs.items():
            reader = self._readers.get(name)
            if known is not None and reader is not None and reader.live is not None:
                curves[name] = _json(await asyncio.to_thread(_since, reader.live, known[name]))
            else:
                curves[name] = await self.snapshot(job)
        kind = "snapshot" if known is None else "update"
        if listener.single:
            name = listener.ids[0]
            inner = "snapshot" if known is None else "since"
            data = _with(self.summary(jobs[name]), inner, curves[name])
        else:
            runs = _json([self.summary(job) for job in self.manager.newest()])
            there = {name: text for name, text in curves.items() if text != "null"}
            data = f'{{"runs":{runs},"curves":{_object(there)}}}'
        return event(kind, self._mark(listener.ids), data)

    def _known(self, ids: Sequence[str], last: str | None) -> dict[str, int] | None:
        """The marks in the number of an event of this server; None if it is none."""
        boot, *marks = (last or "").split(".")
        if boot != self.boot or len(marks) != len(ids) or not all(mark.isdecimal() for mark in marks):
            return None
        found = dict(zip(ids, (int(mark[:18]) for mark in marks), strict=True))
        readers = self._readers
        for name, mark in found.items():
            if name not in readers or readers[name].live is None or mark > readers[name].mark:
                return None
        return found


def event(kind: str, number: str, data: str) -> bytes:
    """One server-sent event; ``data`` is JSON, which has no line breaks."""
    return f"id: {number}\nevent: {kind}\ndata: {data}\n\n".encode()


def _since(live: LiveRun, mark: int) -> dict[str, Any]:
    """`LiveRun.since` with ``last``, the newest point of every curve, which a long one may not have kept."""
    return {**live.since(mark), "last": {name: list(map(plain, point)) for name, point in live.last.items()}}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    return asdict(value) if hasattr(value, "__dataclass_fields__") else str(value)


def _with(summary: dict[str, Any], key: str, text: str) -> str:
    """The summary as JSON with one more member, which is JSON already."""
    return _extended(_json(summary), key, text)


def _extended(text: str, key: str, member: str) -> str:
    return f'{text[:-1]},"{key}":{member}}}'


def _object(members: dict[str, str]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}:{text}" for key, text in members.items()) + "}"
