"""The queue without a server: its order over restarts, and what happens when the server ends meanwhile."""

import asyncio
import subprocess
import threading
import time

import pytest

from meta500.web import manager as module
from meta500.web import processes
from meta500.web.application import Page
from meta500.web.jobs import FINAL, Job
from meta500.web.limits import Limits
from meta500.web.manager import Manager
from meta500.web.storage import Storage, new_job, now

SETUP = {
    "model": "mlp", "dataset": "digits", "backend": "numpy", "optimizer": "sgd", "native": False, "upload": None,
    "label": "", "learning_rate": 0.1, "epochs": 1, "batch_size": 8, "seed": 0, "threads": None,
    "target_accuracy": None, "time_limit": None, "model_options": {}, "dataset_options": {}, "optimizer_options": {},
}  # fmt: skip


@pytest.fixture
def storage(tmp_path):
    storage = Storage(tmp_path / "runs")
    yield storage
    storage.close()


def quiet(job):
    pass


def test_those_who_wait_keep_their_order_over_restarts(storage):
    before = Manager(storage, Limits(), quiet)
    waiting = [before.add({**SETUP, "label": str(number)}, "mlp") for number in range(12)]
    for _ in range(2):
        after = Manager(storage, Limits(), quiet)
        after.recover()
        assert [job.label for job in after._queue()] == [job.label for job in waiting]
        assert [after.position(after.get(job.id)) for job in waiting] == list(range(1, 13))


def test_a_job_that_was_about_to_start_waits_again(storage):
    job = Job(new_job(), SETUP, "", "mlp", now(), "starting")
    job.save(storage.job(job.id))
    manager = Manager(storage, Limits(), quiet)
    manager.recover()
    assert manager.position(manager.get(job.id)) == 1


def test_closing_while_a_process_is_being_started(storage, monkeypatch):
    """The process is known and ended; nothing waits for ever."""
    page = Page(storage, Limits())
    begun, children = threading.Event(), []

    def slow(words, log, memory):
        begun.set()
        time.sleep(0.3)
        children.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        return children[0]

    async def nothing(self):
        return {}

    monkeypatch.setattr(processes, "start", slow)
    monkeypatch.setattr(Page, "_offer", nothing)

    async def scene():
        async with asyncio.timeout(20):
            async with page.lifespan(None):
                job = page.manager.add(SETUP, "mlp")
                await asyncio.to_thread(begun.wait, 10)
            # The server's lifespan is over; now it ends what runs.
            stopped = await page.manager.shut(stop=True)
        return job, stopped

    try:
        job, stopped = asyncio.run(scene())
    finally:
        for child in children:
            processes.tell(child.pid, 9)
            child.wait()
    assert stopped == 1 and job.state == "stopped" and job.pid == children[0].pid


def test_closing_while_an_end_is_noted(storage, monkeypatch):
    """It is noted once, and to its end."""
    page = Page(storage, Limits())
    begun, noted = threading.Event(), []

    def slow(folder):
        begun.set()
        time.sleep(0.3)
        noted.append(folder)

    async def nothing(self):
        return {}

    monkeypatch.setattr(
        processes, "start", lambda words, log, memory: subprocess.Popen(["true"], start_new_session=True)
    )
    monkeypatch.setattr(module, "results", slow)
    monkeypatch.setattr(Page, "_offer", nothing)

    async def scene():
        async with asyncio.timeout(20):
            async with page.lifespan(None):
                job = page.manager.add(SETUP, "mlp")
                await asyncio.to_thread(begun.wait, 10)
            await page.manager.shut(stop=True)
        return job

    job = asyncio.run(scene())
    assert len(noted) == 1 and job.state == "failed" and Job.read(storage.job(job.id)).state == "failed"


def test_a_fault_in_starting_fails_the_run_alone(storage, monkeypatch):
    manager = Manager(storage, Limits(), quiet)
    job = manager.add(SETUP, "mlp")
    monkeypatch.setattr(processes, "start", lambda *_: 1 / 0)
    asyncio.run(manager.tick())
    assert job.state == "failed" and job.state in FINAL and "ZeroDivisionError" in job.message
