"""One training of a recipe in a process of its own.

Its memory is then its own, and a crash ends it alone. The process gets its job as JSON on standard input and
writes the run folder, where everything that it has to say is found. It ends with the process that started it
(Linux); where it cannot, it keeps the recipe's folder locked until its end.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.run import note_end

# What an interrupted process has to write its folder.
_GRACE_SECONDS = 30
_SET_PARENT_DEATH_SIGNAL = 1


def train_apart(values: Mapping[str, Any], seed: int, epochs: int, path: Path, lock: int) -> None:
    """Train in a new process; the run folder says how it ended, also if the process was killed.

    Args:
        values: of the run, flat.
        seed: of the training.
        epochs: instead of those in ``values``.
        path: of the run folder.
        lock: descriptor of the locked file of the recipe's folder, which the process has, too.

    Raises:
        KeyboardInterrupt: by Ctrl-C, after the process was interrupted, too.
    """
    job = {
        "values": {**values, "epochs": epochs},
        "seed": seed,
        "path": str(path),
        "parent": os.getpid(),
    }
    # In a session of its own, so that Ctrl-C reaches it once, from here.
    process = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=(lock,),
        text=True,
    )
    assert process.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(job))
            process.stdin.close()
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        raise
    if process.returncode:
        code = process.returncode
        how = f"signal {-code} ({signal.Signals(-code).name})" if code < 0 else f"exit code {code}"
        with contextlib.suppress(UserError):  # there is no folder, which says enough
            note_end(path, "failed", f"the process of the training ended with {how}")


def _end_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies (Linux)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(1)  # it died before


def _main() -> None:
    from meta500.benchmarks.recipes import values as keys
    from meta500.benchmarks.recipes.execution import train_once

    job = json.load(sys.stdin)
    _end_with(job["parent"])
    found = {key: tuple(v) if isinstance(v, list) else v for key, v in job["values"].items()}
    try:
        setup = keys.setup_from(found, job["seed"])
        train_once(setup, Path(job["path"]), keys.schedule(found), memory=True)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(1)


if __name__ == "__main__":
    _main()
