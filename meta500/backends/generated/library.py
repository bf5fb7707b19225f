"""Compiled programs: from a schedule to a function that runs on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from meta500.backends.generated import cpp
from meta500.backends.generated.schedule import Schedule
from meta500.backends.targets import Target
from meta500.backends.toolchain import compile_text, load_library
from meta500.errors import UserError

RUNTIME = Path(__file__).parent / "runtime"


class Executable:
    """A schedule as machine code, with its memory.

    Args:
        schedule: what runs.
        target: the processor.
        parameters, gradients: names of the packed tensors, "" where there are none.

    Raises:
        UserError: the compiler is missing or fails, or memory does not suffice.
    """

    def __init__(self, schedule: Schedule, target: Target, parameters: str = "", gradients: str = "") -> None:
        self.schedule = schedule
        self.parameters, self.gradients = parameters, gradients
        self.path = compile_text(
            cpp.sources(schedule), include=[RUNTIME], target=target, openmp=schedule.options.threads > 1
        )
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
                f"network '{schedule.program.name}' needs {schedule.total_bytes / 2**20:.0f} MiB of memory for "
                f"{schedule.options.threads} threads, which are not available: use a smaller batch or fewer threads"
            )
        self._pointers = (ctypes.c_void_p * max(len(schedule.external), 1))()
        self._faults = list(schedule.program.faults.values())

    def run(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Run once.

        Args:
            arrays: contiguous arrays of the external tensors, by name; results are written into them.

        Raises:
            UserError: a fault of the input that only the run can see, such as a label that is no class.
        """
        for number, name in enumerate(self.schedule.external):
            self._pointers[number] = arrays[name].ctypes.data
        fault = self._library.meta500_run(self._instance, self._pointers)
        if fault:
            raise UserError(self._faults[fault - 1])

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
