"""A server of the live page for `live_page.py`, in a process and a folder of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

LONG = {"model": "mlp", "dataset": "digits", "backend": "numpy", "optimizer": "sgd", "epochs": 100_000}


class Server:
    """``meta500 serve`` in a process of its own; as a context manager it ends with its runs.

    Raises:
        SystemExit: it does not start.
    """

    def __init__(self, runs: Path, *options: str, **more: Any) -> None:
        self.runs = runs
        command = [sys.executable, "-m", "meta500", "serve", "--port", "0", "--runs", str(runs), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **more)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("Listening on "):
            self.process.wait()
            sys.exit(f"the server does not start: {' '.join(command)}")
        self.url = line.removeprefix("Listening on ").strip()
        self.client = httpx.Client(base_url=self.url, timeout=90)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self, **setup: Any) -> str:
        """Start a run and give its identifier."""
        answer = self.client.post("/api/runs", json={**LONG, **setup})
        answer.raise_for_status()
        return str(answer.json()["id"])

    def wait(self, job: str, *states: str) -> dict[str, Any]:
        """The run, as soon as it is in one of ``states``."""
        while True:
            run: dict[str, Any] = self.client.get(f"/api/runs/{job}").json()
            if run["state"] in states:
                return run
            time.sleep(0.1)

    def training(self, job: str) -> None:
        """Wait until the run has made steps."""
        while not (self.client.get(f"/api/runs/{job}").json()["snapshot"] or {}).get("series"):
            time.sleep(0.1)

    def pid(self, job: str) -> int:
        """The process of a run."""
        return int(json.loads((self.runs / ".serve" / "jobs" / f"{job}.json").read_text())["pid"])

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait()
        self.client.close()

    def stop(self) -> None:
        """Ctrl-C, which ends the runs too; those of a server that is dead or does not end are killed."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
        self.kill()
        for path in (self.runs / ".serve" / "jobs").glob("*.json"):
            facts = json.loads(path.read_text())
            if facts["pid"] and facts["state"] in ("starting", "running"):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(facts["pid"], signal.SIGKILL)


@contextlib.contextmanager
def temporary() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="meta500-live-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
