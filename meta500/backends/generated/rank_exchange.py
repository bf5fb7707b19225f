"""The reductions over ranks of a loaded library, as Python sees them: communicator, errors, times."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from meta500.backends.generated import mpi
from meta500.backends.generated.manifest import Manifest
from meta500.errors import UserError

# As in runtime/mpi_communicator.h and runtime/mpi_exchange.h.
_HANDLES = {
    1: "the header it was compiled with has another type of communicators",
    2: "it is linked with another MPI library, which is not running",
    3: "it sees another number of ranks",
}
_DIFFERENT, _LATE, _BROKEN = -1, -2, -3


class RankExchange:
    """The reductions of one instance.

    Args:
        library: that was loaded.
        instance: of it.
        manifest: its description.
        communicator: of the ranks.

    Raises:
        UserError: the library does not understand the communicator.
    """

    def __init__(
        self, library: ctypes.CDLL, instance: int | None, manifest: Manifest, communicator: Any
    ) -> None:
        self._library, self._instance, self._manifest = library, instance, manifest
        self._communicator = communicator
        take = library.meta500_communicator
        take.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_int]
        take.restype = ctypes.c_int
        library.meta500_share.argtypes = [
            ctypes.c_void_p,
            ctypes.c_double,
            ctypes.c_int,
            ctypes.c_double,
        ]
        library.meta500_share.restype = None
        library.meta500_culprit.argtypes = [ctypes.c_void_p, *[ctypes.POINTER(ctypes.c_int)] * 2]
        library.meta500_culprit.restype = None
        library.meta500_spans.argtypes, library.meta500_spans.restype = [ctypes.c_void_p], ctypes.c_void_p
        wrong = take(instance, *mpi.handle(communicator), communicator.rank, communicator.size)
        if wrong:
            raise UserError(
                f"generated code does not understand mpi4py's communicator: {_HANDLES[wrong]} "
                f"({mpi.mpi_library().path}, {' '.join(mpi.mpi_library().include)})"
            )

    def share(self, samples: int, added: bool, seconds: float) -> None:
        """Set how the coming run takes part.

        Args:
            samples: of this rank; 0: it computes nothing.
            added: whether gradients of ranks are added, not averaged.
            seconds: after which other ranks are given up.
        """
        self._library.meta500_share(self._instance, samples, added, seconds)
        self._seconds = seconds

    def error(self, outcome: int) -> UserError:
        """What to raise for the outcome of a run that is not 0."""
        rank, code = ctypes.c_int(), ctypes.c_int()
        self._library.meta500_culprit(self._instance, ctypes.byref(rank), ctypes.byref(code))
        if outcome == _DIFFERENT:
            return UserError(
                "the ranks do not reduce the same gradients in this step: all must have the same network, "
                "loss, optimizer and bucket_bytes"
            )
        if outcome == _LATE:
            return UserError(
                f"rank {self._communicator.rank} waited {self._seconds:g} s for other ranks to reduce their "
                "gradients: one of them has ended, or takes other steps"
            )
        if outcome == _BROKEN:
            text = sys.modules["mpi4py.MPI"].Get_error_string(code.value)
            return UserError(f"rank {self._communicator.rank}: reducing gradients over ranks failed: {text}")
        return UserError(f"rank {rank.value}: {self._manifest.faults[outcome - 1]}")

    def spans(self) -> list[tuple[str, str, int, int, int]]:
        """Lane, name, begin, end (ns) and bytes of what the last run recorded, in the order of beginning."""
        timed = self._manifest.timed
        address = self._library.meta500_spans(self._instance)
        numbers = (ctypes.c_int64 * (2 * len(timed))).from_address(address)
        found = [
            (lane, name, numbers[2 * i], numbers[2 * i + 1], size)
            for i, (lane, name, size) in enumerate(timed)
            if numbers[2 * i + 1]
        ]
        return sorted(found, key=lambda span: span[2])
