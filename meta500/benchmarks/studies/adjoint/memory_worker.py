"""A process that says by how much it grows when it opens and runs one form of a stencil's adjoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meta500.backends.generated.library import Executable, build
from meta500.backends.targets import native_target
from meta500.benchmarks.studies.adjoint.forms import planned
from meta500.benchmarks.studies.adjoint.subjects import STENCILS, stencil_subject
from meta500.benchmarks.workers import serve
from meta500.errors import UserError

_RUNS = 3


def resident_bytes() -> int:
    """Memory of this process that is in use now.

    Raises:
        UserError: the system has no /proc/self/status.
    """
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    raise UserError("resident memory can only be read on Linux (VmRSS in /proc/self/status)")


def grown(order: Mapping[str, Any]) -> int:
    """Bytes by which the process grows; arrays of the caller are there before."""
    (text,) = [one for one in STENCILS if one.name == order["stencil"]]
    subject = stencil_subject(text, order["size"], order["seed"])
    plan = planned(subject, order["form"], order["threads"])
    manifest = build(plan.schedule, native_target(), "", "")
    arrays = {}
    for name, shape, _ in manifest.external:
        given = subject.arrays.get(name)
        arrays[name] = np.ones(shape, np.float32) if given is None else given
    before = resident_bytes()
    executable = Executable(manifest, lambda: plan.schedule)
    for _ in range(_RUNS):
        executable.run(arrays)
    after = resident_bytes()
    executable.close()
    return max(after - before, 0)


if __name__ == "__main__":
    serve({"grown": grown})
