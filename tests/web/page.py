"""What tests of the live page in a browser share: a server in a process of its own, visitors, and what they do."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from urllib.parse import urlsplit

import pytest

from meta500 import models
from tests.browser import chromium  # noqa: F401  (a fixture)

httpx = pytest.importorskip("httpx", reason="the extra 'test' is not installed")
pytest.importorskip("starlette", reason="the extra 'web' is not installed")

URL = re.compile(r"http://127\.0\.0\.1:\d+/\S*")
SECONDS = 60
FOREVER = 100_000
# Names that would run, or change the page, if anything took them for HTML.
HOSTILE = "<img src=x onerror='window.hacked=1'><a href='javascript:window.hacked=1'>go</a> \u202ex"


class Server:
    """``meta500 serve`` in a process of its own, on a port that stays the same after `restart`."""

    def __init__(self, folder):
        self.folder, self.port = folder, 0
        self.restart()

    def restart(self):
        words = ["serve", "--port", str(self.port), "--runs", str(self.folder / "runs"), "--max-running", "3"]
        with open(self.folder / "errors", "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "meta500", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        for line in self.process.stdout:
            if found := URL.search(line):
                self.url = found[0]
                self.port = urlsplit(self.url).port
                return
        raise AssertionError((self.folder / "errors").read_text())

    def stop_runs(self):
        """Stop what a test has left, which would keep the processors from the next one."""
        for run in httpx.get(f"{self.url}api/runs").json()["runs"]:
            if run["state"] in ("queued", "starting", "running"):
                httpx.post(f"{self.url}api/runs/{run['id']}/stop")

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def close(self):
        """Ctrl-C, which stops the runs too."""
        self.process.send_signal(signal.SIGINT)
        self.process.communicate(timeout=SECONDS)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server"))
    yield server
    server.close()


@pytest.fixture
def visit(chromium, server):  # noqa: F811
    """``visit()`` is a new visitor's page, ready for use; afterwards none may have asked another host for
    anything, or have had an error that ``expected`` (a regular expression) does not match."""
    contexts, foreign, errors = [], [], []

    def visited(expected="$^", **settings):
        context = chromium.new_context(**settings)
        contexts.append(context)
        context.set_default_timeout(1000 * SECONDS)

        def elsewhere(route):
            foreign.append(route.request.url)
            route.abort()

        context.route(lambda url: not url.startswith(f"http://127.0.0.1:{server.port}/"), elsewhere)
        page = context.new_page()
        noted = lambda text: None if re.search(expected, text) else errors.append(text)  # noqa: E731
        page.on("console", lambda message: message.type == "error" and noted(message.text))
        page.on("pageerror", lambda error: noted(str(error)))
        page.goto(server.url)
        ready(page)
        return page

    yield visited
    for context in contexts:
        context.close()
    server.stop_runs()
    assert foreign == []
    assert errors == []


def ready(page):
    page.locator("#form[data-ready]").wait_for()
    page.locator("#connection[data-live=true]").wait_for()


def fill(page, label, *, model="mlp", backend="numpy", epochs=FOREVER):
    """Fill in the form; by default for a run that goes on until it is stopped."""
    page.select_option("#model", model)
    page.select_option("#backend", backend)
    page.fill("#epochs", str(epochs))
    if not page.is_visible("#label"):
        page.click("#further > summary")
    page.fill("#label", label)


def start(page, label, **settings):
    """Start a run; its card in the list."""
    fill(page, label, **settings)
    page.click("#start")
    card = card_of(page, label)
    card.wait_for()
    return card


def card_of(page, label):
    return page.locator("li.run").filter(has=page.get_by_role("heading", name=label, exact=True))


def in_state(page, label, pattern):
    """Wait until the run of this name is in a state."""
    state = card_of(page, label).locator(".state").filter(has_text=re.compile(pattern))
    state.wait_for()


def moves(page, label, plot="loss-samples", than=0):
    """Wait until the last curve of a run in a plot has more than so many points; how many it has."""
    count = """([plot, label]) => document.getElementById(plot).data
        ?.filter((trace) => trace.name.startsWith(label)).at(-1)?.x.length || 0"""
    page.wait_for_function(
        f"([plot, label, than]) => ({count})([plot, label]) > than", arg=[plot, label, than]
    )
    return page.evaluate(count, [plot, label])


def stop(page, label):
    card_of(page, label).get_by_role("button", name="Stop").click()
    in_state(page, label, "^stopped$")


def onnx_file(path, change=lambda proto: None):
    """An uploadable network, the MLP for digits."""
    proto = models.create("mlp", batch="N").to_proto()
    change(proto)
    path.write_bytes(proto.SerializeToString())
    return path
