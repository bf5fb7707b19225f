"""Events: written once for all who listen, in order, and nobody who is slow holds anybody up."""

import asyncio
import json

import pytest

from meta500.metrics import RunFolder, live
from meta500.metrics.live import LiveRun
from meta500.metrics.rows import Row
from meta500.web import feed as module
from meta500.web.feed import Feed, Listener, event
from meta500.web.jobs import Job
from meta500.web.limits import Limits
from meta500.web.manager import Manager
from meta500.web.refusals import Refusal
from meta500.web.storage import Storage, new_job, now

SETUP = {"dataset": "digits", "backend": "numpy", "optimizer": "sgd", "native": False}


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A feed that may read as often as it is asked, a running job, and its open run folder."""
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    storage = Storage(tmp_path / "runs")
    feed = Feed(Limits(clients=3))
    feed.manager = Manager(storage, feed.limits, feed.changed)
    job = Job(new_job(), SETUP, "", "mlp", now(), "running")
    feed.manager.jobs[job.id] = job
    with RunFolder.create(storage.run(job.id), environment={}) as run:
        yield feed, job, run
    storage.close()


def epoch(run, number, accuracy=0.5):
    what = {"level": 2, "model": "mlp", "step": number, "epoch": number, "seconds": 1.0 * number}
    run.append(Row(phase="test_set", quantity="accuracy", unit="1", value=accuracy, **what))


def parsed(message):
    number, kind, data = message.decode().rstrip("\n").split("\n")
    return kind.removeprefix("event: "), number.removeprefix("id: "), json.loads(data.removeprefix("data: "))


async def nexts(stream, feed):
    """The next message, with a reading before it."""
    await feed.refresh()
    async with asyncio.timeout(5):
        return parsed(await anext(stream))


def accuracies(curve):
    return [point[2] for point in curve["series"].get("accuracy", [])]


def test_all_hear_the_same_bytes_and_the_folder_is_read_once(told, monkeypatch):
    feed, job, run = told
    polls = []
    monkeypatch.setattr(LiveRun, "poll", lambda self, poll=LiveRun.poll: polls.append(1) or poll(self))

    async def scene():
        streams = [feed.events([job.id], False, None) for _ in range(3)]
        first = [await anext(stream) for stream in streams]
        assert len(set(first)) == 1 and parsed(first[0])[0] == "snapshot"
        polls.clear()
        epoch(run, 1)
        await feed.refresh()
        assert len(polls) == 1
        messages = [await anext(stream) for stream in streams]
        assert messages[0] is messages[1] is messages[2], "written once"
        with pytest.raises(Refusal, match="3 pages watch already"):
            feed.check_room()
        for stream in streams:
            await stream.aclose()
        assert feed._listeners == []

    asyncio.run(scene())


def test_parts_make_the_whole(told):
    feed, job, run = told

    async def scene():
        epoch(run, 1, 0.1)
        stream = feed.events([job.id], False, None)
        _, _, first = parsed(await anext(stream))
        heard = accuracies(first["curves"][job.id])
        numbers = []
        for number in range(2, 5):
            epoch(run, number, number / 10)
            # Somebody who comes in between takes nothing away from those who listen.
            other = feed.events([job.id], False, None)
            _, _, fresh = parsed(await anext(other))
            await other.aclose()
            kind, last, more = await nexts(stream, feed)
            assert kind == "update" and not more["curves"][job.id]["reset"]
            heard += accuracies(more["curves"][job.id])
            numbers.append(last)
            assert accuracies(fresh["curves"][job.id]) == heard
        assert heard == [0.1, 0.2, 0.3, 0.4] and len(set(numbers)) == 3
        # Coming back with the number of an event: what came after it, and nothing twice.
        again = feed.events([job.id], False, numbers[0])
        kind, _, rest = parsed(await anext(again))
        assert kind == "update" and accuracies(rest["curves"][job.id]) == [0.3, 0.4]
        for bad in ("", "x.1", f"{feed.boot}", f"{feed.boot}.x", f"{feed.boot}.9999", f"{feed.boot}.1.1"):
            kind, _, all_ = parsed(await anext(feed.events([job.id], False, bad)))
            assert kind == "snapshot" and accuracies(all_["curves"][job.id]) == heard

    asyncio.run(scene())


def test_a_run_that_begins_later_is_told_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "INTERVAL", 0.0)
    storage = Storage(tmp_path / "runs")
    feed = Feed(Limits())
    feed.manager = Manager(storage, feed.limits, feed.changed)
    job = Job(new_job(), SETUP, "", "mlp", now())
    feed.manager.jobs[job.id] = job

    async def scene():
        stream = feed.events([job.id], False, None)
        _, _, first = parsed(await anext(stream))
        assert first["curves"] == {} and first["runs"][0]["position"] == 1
        job.state = "running"
        feed.changed(job)
        with RunFolder.create(storage.run(job.id), environment={}) as run:
            epoch(run, 1, 0.25)
            # Another listener is the first to open it.
            await anext(feed.events([job.id], True, None))
            _, _, update = await nexts(stream, feed)
        assert accuracies(update["curves"][job.id]) == [0.25] and update["curves"][job.id]["reset"]

    asyncio.run(scene())
    storage.close()


def test_the_end_of_one_run(told):
    feed, job, run = told

    async def scene():
        stream = feed.events([job.id], True, None)
        await anext(stream)
        epoch(run, 1)
        run.finish()
        job.state = "finished"
        feed.changed(job)
        await feed.refresh()
        kinds = [parsed(message)[0] async for message in stream]
        assert kinds == ["update", "end"] and feed._listeners == []
        late = [parsed(message)[0] async for message in feed.events([job.id], True, None)]
        assert late == ["snapshot", "end"]

    asyncio.run(scene())


def test_a_stream_does_not_end_before_its_last_points(told, monkeypatch):
    """A run ends while another one is read: what it wrote last is told before the end."""
    feed, job, run = told
    other = Job(new_job(), SETUP, "", "mlp", now(), "running")
    feed.manager.jobs[other.id] = other
    polled = feed._polled

    def meanwhile(asked, reader):
        if asked is other and job.state == "running":
            epoch(run, 2, 0.75)
            run.finish()
            job.state = "finished"  # by the thread that notes the end; `changed` comes after it
        return polled(asked, reader)

    async def scene():
        stream = feed.events([job.id], True, None)
        await anext(stream)
        epoch(run, 1, 0.25)
        with RunFolder.create(feed.manager.storage.run(other.id), environment={}):
            monkeypatch.setattr(feed, "_polled", meanwhile)
            await feed.refresh()
        late = feed.events([job.id], True, None)  # comes after the end, before it is told
        feed.changed(job)
        await feed.refresh()
        for one in (stream, late):
            messages = [parsed(message) async for message in one]
            assert [kind for kind, _, _ in messages].count("end") == 1 and messages[-1][0] == "end"
            parts = [
                data.get("snapshot") or data.get("since") or {"series": {}} for _, _, data in messages[:-1]
            ]
            assert [value for part in parts for value in accuracies(part)] == [0.25, 0.75]

    asyncio.run(scene())


def test_one_fault_does_not_end_all_streams(told, monkeypatch, caplog):
    feed, job, _ = told
    faults = iter([KeyError("x"), KeyError("x")])
    refresh = feed.refresh

    async def faulty():
        for fault in faults:
            raise fault
        await refresh()

    async def scene():
        stream = feed.events([job.id], False, None)
        await anext(stream)
        monkeypatch.setattr(feed, "refresh", faulty)
        task = asyncio.create_task(feed.run())
        feed.changed(job)
        async with asyncio.timeout(5):
            assert parsed(await anext(stream))[0] == "update"
        task.cancel()

    asyncio.run(scene())
    assert len(caplog.records) == 1, "the same fault is logged once"


def test_what_was_not_told_for_a_fault_is_told_later(told, monkeypatch):
    feed, job, _ = told
    tell = feed._tell

    async def scene():
        stream = feed.events([job.id], False, None)
        await anext(stream)
        feed.changed(job)
        monkeypatch.setattr(feed, "_tell", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await feed.refresh()
        monkeypatch.setattr(feed, "_tell", tell)
        kind, _, _ = await nexts(stream, feed)
        assert kind == "update"

    asyncio.run(scene())


def test_the_newest_point_is_told_whatever_was_kept(told, monkeypatch):
    monkeypatch.setattr(live, "MOST_POINTS", 4)
    feed, job, run = told

    async def scene():
        for number in range(1, 7):
            epoch(run, number, number / 10)
        _, _, first = parsed(await anext(feed.events([job.id], False, None)))
        curve = first["curves"][job.id]
        assert accuracies(curve)[-1] != 0.6 and curve["last"]["accuracy"][1:] == [6.0, 0.6]

    asyncio.run(scene())


def test_a_slow_listener_is_let_go_and_bounded(told):
    feed, job, _ = told

    async def scene():
        stream = feed.events([job.id], False, None)
        await anext(stream)
        listener = feed._listeners[0]
        for _ in range(1000):
            feed.changed(job)
            await feed.refresh()
            assert listener.queue.qsize() <= module._QUEUE
        assert listener.lost
        assert [message async for message in stream] == [] and feed._listeners == []

    asyncio.run(scene())


def test_closing_ends_all(told):
    feed, _, _ = told

    async def scene():
        stream = feed.events([], False, None)
        await anext(stream)
        feed.close()
        assert [message async for message in stream] == []

    asyncio.run(scene())


def test_events_are_of_one_line_each():
    assert event("update", "a.1", '{"x":1}') == b'id: a.1\nevent: update\ndata: {"x":1}\n\n'
    listener = Listener(["a"], False)
    listener.put(b"x"), listener.put(None)
    assert [listener.queue.get_nowait(), listener.queue.get_nowait()] == [b"x", None]
