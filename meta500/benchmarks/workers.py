"""Processes that take orders: one per thing that is measured, idle until it is asked.

What is compared in processes of their own may differ in its environment (allocator, thread library) and can
neither keep the other's threads spinning nor share its heap. An idle worker waits at a pipe and needs no
processor. Orders and answers are lines of JSON: ``{"order": NAME, ...}`` and ``{"result": ...}`` or
``{"error": MESSAGE}``.

A worker ends when its pipe closes or its parent dies, whatever it is doing (Linux; elsewhere when it next
reads). It leads a process group, so that a compiler that it has started ends with it.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any

from meta500.errors import UserError

_SET_PARENT_DEATH_SIGNAL = 1
_END_SECONDS = 2.0
_LOOK_SECONDS = 0.5
# Settings of whoever starts the measurement would hold for all workers; each gets exactly its own.
_NOT_INHERITED = ("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")

Order = Callable[[Mapping[str, Any]], Any]


class WorkerFailed(Exception):
    """A worker said no, died or did not answer in time; the message says which."""


class Worker:
    """A process that runs a module whose ``main`` calls :func:`serve`.

    Args:
        module: its dotted name.
        environment: variables on top of this process's, of which those that steer thread libraries and
            allocators are left out.
        name: for messages.
        command: a program that answers the same orders, to run instead of the module.

    Raises:
        UserError: it can't be started.
    """

    def __init__(
        self,
        module: str,
        environment: Mapping[str, str] | None = None,
        name: str = "",
        command: Sequence[str] = (),
    ) -> None:
        self.name = name or module
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_NOT_INHERITED)}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        try:
            self._process = subprocess.Popen(
                list(command) or [sys.executable, "-m", module],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**kept, "META500_WORKER_PARENT": str(os.getpid()), **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(f"{self.name}: the process does not start: {error.strerror}") from None
        self._rest = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, order: str, limit: float, **what: Any) -> Any:
        """Give an order and wait for its result.

        Args:
            order: its name.
            limit: seconds to wait.
            what: the rest of the order, as JSON can hold it.

        Raises:
            WorkerFailed: the order failed (the worker goes on), or the worker died or did not answer in time
                (it is ended).
        """
        line = json.dumps({"order": order, **what}).encode() + b"\n"
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except (OSError, ValueError):
            raise self._died(order) from None
        answer = json.loads(self._line(order, limit))
        if "error" in answer:
            raise WorkerFailed(answer["error"])
        return answer["result"]

    def close(self) -> None:
        """End it, and what it has started."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _line(self, order: str, limit: float) -> bytes:
        """The next line that it prints."""
        assert self._process.stdout is not None
        end = time.monotonic() + limit
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                left = end - time.monotonic()
                if left <= 0:
                    with suppress(OSError):
                        os.killpg(self._process.pid, signal.SIGKILL)
                    raise WorkerFailed(f"{order}: no answer after {limit:g} s; the process was ended")
                # A child that it has forked may hold the pipe open beyond its death.
                gone = self._process.poll() is not None
                if selector.select(0 if gone else min(left, _LOOK_SECONDS)):
                    chunk = os.read(self._process.stdout.fileno(), 65536)
                    if not chunk:
                        raise self._died(order)
                    self._rest += chunk
                elif gone:
                    raise self._died(order)
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _died(self, order: str) -> WorkerFailed:
        try:
            status: int | str = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            status = "unknown"
        ending = f"status {status}"
        if isinstance(status, int) and -status in set(signal.Signals):
            ending = f"signal {signal.Signals(-status).name}"
            ending += " (is there enough memory?)" if -status == signal.SIGKILL else ""
        self._errors.seek(0)
        text = self._errors.read().decode(errors="replace").strip().splitlines()
        return WorkerFailed(f"{order}: the process ended with {ending}: {text[-1] if text else 'no output'}")


def serve(orders: Mapping[str, Order]) -> None:
    """Answer orders from standard input until it ends; called by the worker's process.

    What the orders print goes to standard error.

    Args:
        orders: functions by name; each takes the order and returns what JSON can hold. A UserError becomes
            the answer as it is, any other exception with its type before it.
    """
    _end_with_parent()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    # Children that the orders start must not hold the pipe of the orders open, nor read from it.
    lines = os.fdopen(os.dup(0), "r", encoding="utf-8")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for line in lines:
        order = json.loads(line)
        try:
            answer: dict[str, Any] = {"result": orders[order["order"]](order)}
        except UserError as error:
            answer = {"error": str(error)}
        except Exception as error:  # the parent reports it; the worker goes on
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _end_with_parent() -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if str(os.getppid()) != os.environ.get("META500_WORKER_PARENT"):
        sys.exit(1)  # it died before
