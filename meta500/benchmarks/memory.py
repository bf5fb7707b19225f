"""Peak memory of a network on a backend, measured in a process of its own.

Backends that share a process share its memory, so each measurement starts a fresh interpreter, runs a few
steps, and reads the kernel's high-water mark of resident memory (``VmHWM``) before and after. The mark
belongs to the new process image alone, unlike ``ru_maxrss``, which a child can inherit from its parent.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta500.errors import UserError

_TIMEOUT_SECONDS = 600


@dataclass(frozen=True)
class Peak:
    """Bytes of resident memory: before the network was made, and at the highest point."""

    before: int
    peak: int


def peak_memory(
    model: str, model_options: dict[str, Any], options: dict[str, Any], phase: str, seed: int = 0
) -> Peak:
    """Run a few steps of ``phase`` ("inference" or "training_step") in a fresh process.

    Args:
        model: as for ``meta500.models.create``.
        model_options: as for ``meta500.models.create``.
        options: as for ``meta500.network``, ``backend`` among them.
        phase: what to run.
        seed: of the input data.

    Raises:
        UserError: the process failed; carries the end of what it printed.
    """
    job = {"model": model, "model_options": model_options, "options": options, "phase": phase, "seed": seed}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "meta500.benchmarks.memory"],
            input=json.dumps(job),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"peak memory of {model}: no result after {_TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise UserError(f"peak memory of {model}: the process ended with {done.returncode}: {last}")
    return Peak(**json.loads(done.stdout.strip().splitlines()[-1]))


def high_water_mark() -> int:
    """Highest resident memory of this process so far, in bytes.

    Raises:
        UserError: the system has no /proc/self/status.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise UserError("peak memory can only be read on Linux (VmHWM in /proc/self/status)")


def _main() -> None:
    from meta500.benchmarks.subjects import inference_action, prepared, training_action

    job = json.load(sys.stdin)
    subject = prepared(job["model"], job["model_options"], job["seed"])
    before = high_water_mark()
    net, inputs = subject.on(job["options"])
    if job["phase"] == "inference":
        step = inference_action(net, inputs)
    else:
        step = training_action(net, inputs)
    for _ in range(3):
        step()
    sys.stdout.write(json.dumps({"before": before, "peak": high_water_mark()}) + "\n")


if __name__ == "__main__":
    _main()
