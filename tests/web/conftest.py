"""A server in this process without a socket, and real ones in processes of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="the live page needs meta500[web]")

import httpx
from starlette.testclient import TestClient

from meta500.web.application import Page, application
from meta500.web.limits import Limits
from meta500.web.storage import Storage

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
# The smallest run: no packages to import but numpy.
SMALL = {"model": "mlp", "dataset": "digits", "backend": "numpy", "optimizer": "sgd", "epochs": 1}
# One that lasts until it is stopped.
LONG = {**SMALL, "epochs": 100_000}
FINAL = ("finished", "failed", "interrupted", "stopped")


# What `inspection.choices` finds, as far as tests without real runs need it.
CHOICES = {
    "models": [{"name": "mlp", "title": "", "options": {"hidden": [128, 64]}}],
    "datasets": [{"name": "digits", "title": "", "options": {"test_fraction": 0.2}}],
    "backends": [{"name": "numpy", "native": ["sgd"]}],
    "optimizers": [{"name": "sgd", "learning_rate": 0.01, "options": {"weight_decay": 0.0}}],
    "native": {"numpy": [{"name": "sgd", "learning_rate": 0.01, "options": {"weight_decay": 0.0}}]},
    "limits": {"threads": 2},
}


@pytest.fixture
def served(tmp_path, monkeypatch):
    """``served(token=..., **limits)`` gives a client of a server in this process, and its page.

    It offers `CHOICES` at once, where a real one looks first at what is installed.
    """

    async def offer(self):
        return CHOICES

    monkeypatch.setattr(Page, "_offer", offer)
    with contextlib.ExitStack() as stack:

        def start(*, token=None, hosts=(), runs=None, base="http://localhost", **limits):
            storage = Storage(runs or tmp_path / "runs")
            stack.callback(storage.close)
            page = Page(storage, Limits(**limits))
            stack.callback(
                lambda: [process.send(signal.SIGKILL) for process in page.manager._processes.values()]
            )
            app = application(page, hosts=hosts, token=token)
            return stack.enter_context(TestClient(app, base_url=base, follow_redirects=False)), page

        yield start


class Live:
    """A server that is asked through ``client``."""

    def __init__(self, client):
        self.client = client

    def get(self, path):
        answer = self.client.get(path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def start(self, setup):
        answer = self.client.post("/api/runs", json=setup)
        assert answer.status_code == 201, answer.text
        return answer.json()["id"]

    def wait(self, job, *states, seconds=60):
        """The run, as soon as it is in one of ``states``."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            run = self.get(f"/api/runs/{job}")
            if run["state"] in states:
                return run
            assert run["state"] not in FINAL, run
            time.sleep(0.1)
        raise AssertionError(
            f"{run['state']} after {seconds} s: {self.client.get(f'/api/runs/{job}/log').text}"
        )

    def training(self, job):
        """The run, as soon as it has a curve."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            run = self.get(f"/api/runs/{job}")
            if run["snapshot"] and run["snapshot"]["series"]:
                return run
            assert run["state"] not in FINAL, run
            time.sleep(0.1)
        raise AssertionError(run)


class Server(Live):
    """``meta500 serve`` as a process; ``url`` is where it says that it listens."""

    def __init__(self, runs, *options, **more):
        command = [sys.executable, "-m", "meta500", "serve", "--port", "0", "--runs", str(runs), *options]
        self.process = subprocess.Popen(
            command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more
        )
        line = self.process.stdout.readline()
        assert line.startswith("Listening on "), line + self.process.stderr.read()
        self.url, _, self.token = line.removeprefix("Listening on ").strip().partition("?token=")
        super().__init__(httpx.Client(base_url=self.url, timeout=60))

    def kill(self):
        """kill -9: the server alone, not what it started."""
        self.process.kill()
        self.process.communicate()
        self.client.close()

    def stop(self):
        """Ctrl-C; gives what it printed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        out, err = self.process.communicate(timeout=60)
        self.client.close()
        return out, err


@pytest.fixture
def inside(served):
    """``inside(**limits)``: a server in this process, as a `Live`; its runs are processes all the same."""
    return lambda **limits: Live(served(**limits)[0])


@pytest.fixture
def server(tmp_path):
    """``server(*options)`` starts ``meta500 serve``; what runs at the end of the test is ended."""
    started = []

    def start(*options, runs=tmp_path / "runs", **more):
        started.append(Server(runs, *options, **more))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()
    for job in (tmp_path / "runs" / ".serve" / "jobs").glob("*.json"):
        facts = json.loads(job.read_text())
        if facts["pid"] and facts["state"] not in FINAL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(facts["pid"], signal.SIGKILL)


def events(response):
    """The server-sent events of a streamed answer: (event, number, data)."""
    kind = number = None
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "id":
            number = value
        elif name == "data":
            yield kind, number, json.loads(value)


@pytest.fixture(name="events")
def _events():
    return events


@pytest.fixture
def small():
    return dict(SMALL)


@pytest.fixture
def long():
    return dict(LONG)
