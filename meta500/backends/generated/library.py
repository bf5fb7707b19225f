"""Compiled programs: from a schedule to a function that runs on numpy arrays."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meta500.backends import library_cache
from meta500.backends.generated import cpp, mpi
from meta500.backends.generated.cpp_messages import messages
from meta500.backends.generated.manifest import Manifest
from meta500.backends.generated.process_messages import ProcessMessages
from meta500.backends.generated.rank_exchange import RankExchange
from meta500.backends.generated.ranks import SUM, Ranks
from meta500.backends.generated.schedule import Schedule
from meta500.backends.process_grid import find
from meta500.backends.targets import Target
from meta500.backends.toolchain import LIBRARY, compile_text, load_library
from meta500.errors import UserError

RUNTIME = Path(__file__).parent / "runtime"
VECTOR_LOOPS = "-fopenmp-simd"


def build(
    schedule: Schedule, target: Target, parameters: str, gradients: str, library: mpi.MpiLibrary | None = None
) -> Manifest:
    """Compile a schedule.

    Args:
        schedule: what runs.
        target: the processor.
        parameters, gradients: names of the packed tensors, "" where there are none.
        library: the MPI library that the schedule's code calls, if it does.

    Raises:
        UserError: the compiler is missing or fails.
    """
    # One thread needs no OpenMP but for its vector loops, which take no runtime library.
    parallel_flags = () if schedule.options.threads > 1 else (VECTOR_LOOPS,)
    path = compile_text(
        cpp.sources(schedule),
        (*parallel_flags, *(() if library is None else library.flags)),
        include=[RUNTIME],
        target=target,
        openmp=schedule.options.threads > 1,
    )
    plan = schedule.exchange
    program = schedule.program
    sent = [kernel.stage.message for kernel in messages(schedule)]
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
        timed=[] if plan is None else [(one.lane, one.name, one.bytes) for one in plan.timed],
        samples=1 if plan is None else plan.exchange.samples,
        group=next((message.group for message in sent if message is not None), ""),
    )


class Executable:
    """A compiled program with its memory.

    Args:
        manifest: what there is to know of it.
        plan: makes its schedule, for those who want to look at it.
        communicator: of the ranks over which it reduces, an mpi4py communicator.

    Raises:
        UserError: memory does not suffice, or this processor does not run its code.
    """

    def __init__(self, manifest: Manifest, plan: Callable[[], Schedule], communicator: Any = None) -> None:
        self.manifest = manifest
        self._plan = plan
        self.path = library_cache.library_entry(manifest.library) / LIBRARY
        self._library = load_library(self.path)
        self._library.meta500_open.restype = ctypes.c_void_p
        self._library.meta500_open.argtypes = []
        self._library.meta500_close.restype = None
        self._library.meta500_close.argtypes = [ctypes.c_void_p]
        self._library.meta500_threads.restype = None
        self._library.meta500_threads.argtypes = [ctypes.c_int]
        self._library.meta500_run.restype = ctypes.c_int
        self._library.meta500_run.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        self._instance: int | None = self._library.meta500_open()
        if self._instance is None:
            raise UserError(
                f"network '{manifest.name}' needs {manifest.total_bytes / 2**20:.0f} MiB of memory for "
                f"{manifest.threads} threads, which are not available: use a smaller batch or fewer threads"
            )
        self._pointers = (ctypes.c_void_p * max(len(manifest.external), 1))()
        self._exchange: RankExchange | None = None
        if manifest.exchanges:
            self._exchange = RankExchange(self._library, self._instance, manifest, communicator)
        self._messages: ProcessMessages | None = None
        if manifest.group:
            grid = find(manifest.group)
            self._messages = ProcessMessages(self._library, self._instance, grid)

    @functools.cached_property
    def schedule(self) -> Schedule:
        """What it computes and how."""
        return self._plan()

    def run(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Run once. A program that reduces over ranks waits for the other ranks.

        Args:
            arrays: contiguous arrays of the external tensors, by name; results are written into them.

        Raises:
            UserError: a fault of the input that only the run can see, such as a label that is no class.
        """
        for number, (name, _, _) in enumerate(self.manifest.external):
            self._pointers[number] = arrays[name].ctypes.data
        fault = self._library.meta500_run(self._instance, self._pointers)
        if self._messages is not None:
            self._messages.count()
        if fault and self._messages is not None and (error := self._messages.error(fault)):
            raise error
        if fault and self._exchange is not None:
            raise self._exchange.error(fault)
        if fault:
            raise UserError(self.manifest.faults[fault - 1])

    def use_threads(self, count: int) -> None:
        """Let the coming runs use fewer threads than it was made for; so do all that have the same code.

        Raises:
            UserError: more threads than it was made for, or none.
        """
        if not 1 <= count <= self.manifest.threads:
            raise UserError(
                f"network '{self.manifest.name}' was made for {self.manifest.threads} threads; "
                f"it runs with 1 to as many, not with {count}"
            )
        self._library.meta500_threads(count)

    def seconds(self) -> dict[str, float]:
        """Seconds in every kernel since the beginning, the mean over the threads; needs ``profile``."""
        names = [kernel.name for step in self.schedule.steps for kernel in step.kernels]
        function = self._library.meta500_seconds
        function.restype = ctypes.POINTER(ctypes.c_double)
        function.argtypes = [ctypes.c_void_p, ctypes.c_int]
        threads = self.schedule.options.threads
        found = [function(self._instance, thread) for thread in range(threads)]
        return {name: sum(f[i] for f in found) / threads for i, name in enumerate(names)}

    def share(self, ranks: Ranks, idle: bool) -> None:
        """Say how the coming run takes part in reductions; ``idle``: without samples."""
        assert self._exchange is not None
        self._exchange.share(0 if idle else self.manifest.samples, ranks.loss_reduction == SUM, ranks.seconds)

    def spans(self) -> list[tuple[str, str, int, int, int]]:
        """Lane, name, begin and end (ns of the steady clock) and bytes of what the last run recorded."""
        return [] if self._exchange is None else self._exchange.spans()

    def close(self) -> None:
        """Free its memory."""
        if self._instance is not None:
            self._library.meta500_close(self._instance)
            self._instance = None

    def __del__(self) -> None:
        if getattr(self, "_instance", None) is not None:
            self.close()
