"""The messages of a loaded library, as Python sees them: the processes they go to, and errors."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from meta500.backends.generated import mpi
from meta500.backends.process_grid import HALO_EXCHANGE, SUM_OVER_BLOCKS, ProcessGrid
from meta500.errors import UserError
from meta500.graph.collectives import COLUMNS, ROWS

# As in runtime/mpi_communicator.h and runtime/mpi_exchange.h.
_HANDLES = {
    1: "the header it was compiled with has another type of communicators",
    2: "it is linked with another MPI library, which is not running",
    3: "it sees another number of ranks",
}
_LATE, _BROKEN = -12, -13


class ProcessMessages:
    """The messages of one instance.

    Args:
        library: that was loaded.
        instance: of it.
        grid: the processes.

    Raises:
        UserError: the library does not understand the communicator.
    """

    def __init__(self, library: Any, instance: Any, grid: ProcessGrid) -> None:
        self._library, self._instance, self._grid = library, instance, grid
        communicator = mpi.checked(grid.communicator)
        take = library.meta500_processes
        take.argtypes = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            *[ctypes.c_int] * 3,
            ctypes.c_void_p,
            ctypes.c_double,
        ]
        take.restype = ctypes.c_int
        library.meta500_message_error.argtypes = [ctypes.c_void_p]
        library.meta500_message_error.restype = ctypes.c_int
        library.meta500_message_volumes.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
        library.meta500_message_volumes.restype = None
        self._volumes = (ctypes.c_int64 * 8)()
        ranks = [*grid.neighbours(ROWS), *grid.neighbours(COLUMNS)]
        neighbours = (ctypes.c_int * 4)(*(-1 if rank is None else rank for rank in ranks))
        given = (*mpi.handle(communicator), communicator.rank, communicator.size)
        wrong = take(instance, *given, neighbours, grid.seconds)
        if wrong:
            raise UserError(
                f"generated code does not understand mpi4py's communicator: {_HANDLES[wrong]} "
                f"({mpi.mpi_library().path}, {' '.join(mpi.mpi_library().include)})"
            )

    def count(self) -> None:
        """Count what the last run exchanged."""
        if self._grid.count is None:
            return
        self._library.meta500_message_volumes(self._instance, self._volumes)
        for first, operation in ((0, HALO_EXCHANGE), (4, SUM_OVER_BLOCKS)):
            calls, sent, received, nanoseconds = self._volumes[first : first + 4]
            if calls:
                self._grid.count(operation, sent, received, nanoseconds, calls)

    def error(self, outcome: int) -> UserError | None:
        """What to raise for the outcome of a run; None for one that is no fault of messages."""
        if outcome == _LATE:
            return UserError(
                f"rank {self._grid.rank} waited {self._grid.seconds:g} s for a message of another block: "
                "one of the ranks has ended, or runs something else"
            )
        if outcome == _BROKEN:
            code = self._library.meta500_message_error(self._instance)
            text = sys.modules["mpi4py.MPI"].Get_error_string(code)
            return UserError(f"rank {self._grid.rank}: exchanging messages between blocks failed: {text}")
        return None
