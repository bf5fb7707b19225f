"""Asks a process of its own (`inspection`) and waits for its answer within bounds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from meta500.errors import UserError
from meta500.web.limits import GIBI, MEBI
from meta500.web.refusals import Refusal

# Bytes of data of a check where nothing else is said.
CHECK = 4 * GIBI
# Bytes of an answer that are read at most.
_ANSWER = 2**20
# Bytes of a file that a check may write. Reading an upload writes nothing; making a network does: importing
# PyTorch tries whether it can, and compilers write what they make.
_FILES = {"upload": 0, "choices": 16 * MEBI, "setup": 64 * MEBI}
# Numerical libraries start as many threads as there are cores, each with memory of its own.
_ONE_THREAD = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}


class Inspectors:
    """At most ``together`` inspections at a time; more wait for their turn.

    Args:
        seconds: how long one may take.
        memory: bytes of data of one, unless the question says another number.
    """

    def __init__(self, together: int = 2, seconds: int = 60, memory: int = CHECK) -> None:
        self.seconds, self.memory = seconds, memory
        self._turns = asyncio.Semaphore(together)
        self._waiting, self._most = 0, 8 * together

    async def ask(
        self, task: str, subject: str, *, memory: int | None = None, **request: Any
    ) -> dict[str, Any]:
        """The answer of ``task``; ``subject`` is what a message is about, such as "the run".

        ``memory`` replaces the bound of all.

        Raises:
            UserError: what the task found wrong, or that it broke a bound.
            Refusal: too many are waiting.
        """
        if self._waiting >= self._most:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS, "too many requests are being checked; try again in a moment"
            )
        self._waiting += 1
        try:
            async with self._turns:
                return await self._asked(task, subject, {"memory": memory or self.memory, **request})
        finally:
            self._waiting -= 1

    async def _asked(self, task: str, subject: str, request: Mapping[str, Any]) -> dict[str, Any]:
        full = {"task": task, "seconds": self.seconds, "files": _FILES[task], **request}
        try:
            with tempfile.TemporaryDirectory(prefix="meta500-check-", ignore_cleanup_errors=True) as folder:
                raw = await self._raw(subject, folder, json.dumps(full).encode())
        except OSError as error:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE, f"{subject} cannot be checked now: {error.strerror}"
            ) from None
        try:
            answer = json.loads(raw)
        except ValueError:
            raise UserError(
                f"{subject} could not be checked: checking it needs too much memory or breaks the reader"
            ) from None
        if "crash" in answer:
            raise UserError(f"{subject} could not be checked: {answer['crash']}")
        problem = answer.get("problem")
        if problem and len(answer) == 1:
            raise UserError(f"{subject} {problem}" if task == "upload" else problem)
        return answer  # type: ignore[no-any-return]

    async def _raw(self, subject: str, folder: str, request: bytes) -> bytes:
        """What a new process answers; its temporary files are in ``folder``."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "meta500.web.inspection"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, **_ONE_THREAD, "TMPDIR": folder},
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self.seconds):
                return await self._conversation(process, request)
        except TimeoutError:
            raise UserError(f"{subject} could not be checked within {self.seconds} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    @staticmethod
    async def _conversation(process: asyncio.subprocess.Process, request: bytes) -> bytes:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            process.stdin.write(request)
            await process.stdin.drain()
        process.stdin.close()
        parts: list[bytes] = []
        size = 0
        while part := await process.stdout.read(65536):
            size += len(part)
            if size > _ANSWER:
                return b""
            parts.append(part)
        return b"".join(parts)
