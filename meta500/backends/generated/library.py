"""Compiled programs: from a schedule to a function that runs on numpy arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from meta500.backends import library_cache
from meta500.backends.generated import cpp
from meta500.backends.generated.manifest import Manifest
from meta500.backends.generated.schedule import Schedule
from meta500.backends.targets import Target
from meta500.backends.toolchain import LIBRARY, compile_text, load_library
from meta500.errors import UserError

RUNTIME = Path(__file__).parent / "runtime"


def build(schedule: Schedule, target: Target, parameters: str, gradients: str) -> Manifest:
    """Compile a schedule.

    Args:
        schedule: what runs.
        target: the processor.
        parameters, gradients: names of the packed tensors, "" where there are none.

    Raises:
        UserError: the compiler is missing or fails.
    """
    path = compile_text(
        cpp.sources(schedule), include=[RUNTIME], target=target, openmp=schedule.options.threads > 1
    )
    program = schedule.program
    tensors = [program.tensors[name] for name in schedule.external]
    return Manifest(
        name=program.name,
        library=path.parent.name,
        external=[(t.name, t.shape, t.dtype) for t in tensors],
        outputs=dict(program.outputs),
        gradients=dict(program.gradients),
        updates=dict(program.updates),
        faults=list(program.faults.values()),
        parameters=parameters,
        packed_gradients=gradients,
        baked=sorted(program.baked),
        threads=schedule.options.threads,
        total_bytes=schedule.total_bytes,
        constants={t.name: program.constants[t.name] for t in tensors if t.name in program.constants},
    )


class Executable:
    """A compiled program with its memory.

    Args:
        manifest: what there is to know of it.
        plan: makes its schedule, for those who want to look at it.

    Raises:
        UserError: memory does not suffice, or this processor does not run its code.
    """

    def __init__(self, manifest: Manifest, plan: Callable[[], Schedule]) -> None:
        self.manifest = manifest
        self._plan = plan
        self.path = library_cache.library_entry(manifest.library) / LIBRARY
        self._library = load_library(self.path)
        self._library.meta500_open.restype = ctypes.c_void_p
        self._library.meta500_open.argtypes = []
        self._library.meta500_close.restype = None
        self._library.meta500_close.argtypes = [ctypes.c_void_p]
        self._library.meta500_run.restype = ctypes.c_int
        self._library.meta500_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._instance: int | None = self._library.meta500_open()
        if self._instance is None:
            raise UserError(
                f"network '{manifest.name}' needs {manifest.total_bytes / 2**20:.0f} MiB of memory for "
                f"{manifest.threads} threads, which are not available: use a smaller batch or fewer threads"
            )
        self._pointers = (ctypes.c_void_p * max(len(manifest.external), 1))()

    @functools.cached_property
    def schedule(self) -> Schedule:
        """What it computes and how."""
        return self._plan()

    def run(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Run once.

        Args:
            arrays: contiguous arrays of the external tensors, by name; results are written into them.

        Raises:
            UserError: a fault of the input that only the run can see, such as a label that is no class.
        """
        for number, (name, _, _) in enumerate(self.manifest.external):
            self._pointers[number] = arrays[name].ctypes.data
        fault = self._library.meta500_run(self._instance, self._pointers)
        if fault:
            raise UserError(self.manifest.faults[fault - 1])

    def seconds(self) -> dict[str, float]:
        """Seconds in every kernel since the beginning, the mean over the threads; needs ``profile``."""
        names = [kernel.name for step in self.schedule.steps for kernel in step.kernels]
        function = self._library.meta500_seconds
        function.restype = ctypes.POINTER(ctypes.c_double)
        function.argtypes = [ctypes.c_void_p, ctypes.c_int]
        threads = self.schedule.options.threads
        found = [function(self._instance, thread) for thread in range(threads)]
        return {name: sum(f[i] for f in found) / threads for i, name in enumerate(names)}

    def close(self) -> None:
        """Free its memory."""
        if self._instance is not None:
            self._library.meta500_close(self._instance)
            self._instance = None

    def __del__(self) -> None:
        if getattr(self, "_instance", None) is not None:
            self.close()
