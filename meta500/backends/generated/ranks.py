"""The ranks that train a generated network together: what they agree on, and ranks without samples."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.backends.generated import mpi
from meta500.backends.generated.exchange import BUCKET_BYTES
from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.graph import Graph

MEAN, SUM = "mean", "sum"


@dataclass
class Ranks:
    """The options of a network that concern other ranks.

    Attributes:
        communicator: an mpi4py communicator of the network's own; None for a network without others.
        reduce_gradients: whether :meth:`inference_and_backprop` reduces over ranks.
        bucket_bytes: gradients of neighbouring layers join until they have so many bytes.
        loss_reduction: how the loss combines samples, "mean" or "sum".
        seconds: after which a rank that takes no part in a reduction is given up; may be changed.
    """

    communicator: Any = None
    reduce_gradients: bool = False
    bucket_bytes: int = BUCKET_BYTES
    loss_reduction: str = MEAN
    seconds: float = mpi.TIMEOUT

    @staticmethod
    def of(communicator: Any, reduce_gradients: bool, bucket_bytes: int, loss_reduction: str) -> Ranks:
        """Checked options; a collective call where there is a communicator, which is duplicated.

        Raises:
            UserError: an option that is wrong, or without a communicator.
        """
        choose("loss_reduction", loss_reduction, (MEAN, SUM))
        if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int) or bucket_bytes < 1:
            raise UserError(f"bucket_bytes: expected a whole number of bytes from 1 on, not {bucket_bytes!r}")
        if communicator is None:
            if reduce_gradients:
                raise UserError("reduce_gradients=True needs a communicator, such as mpi4py.MPI.COMM_WORLD")
            return Ranks()
        own = mpi.checked(communicator).Dup()
        return Ranks(own, reduce_gradients, bucket_bytes, loss_reduction)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return 1 if self.communicator is None else self.communicator.size

    @property
    def bytes_if_training(self) -> int:
        """``bucket_bytes`` for steps of native optimizers; 0 for a rank alone, with nothing to reduce."""
        return self.bucket_bytes if self.size > 1 else 0

    @property
    def bytes_if_asked(self) -> int:
        """``bucket_bytes`` for gradients without an update."""
        return self.bytes_if_training if self.reduce_gradients else 0

    def join(self, packed: np.ndarray, facts: Mapping[str, Any]) -> None:
        """Take the parameters of rank 0; a collective call.

        Args:
            packed: all parameters, overwritten.
            facts: what must be the same on all ranks, with what it is called.

        Raises:
            UserError: on all ranks, if a fact differs; names the rank and the fact.
        """
        if self.size == 1:
            return
        mine = {**facts, "bucket_bytes": self.bucket_bytes, "loss_reduction": self.loss_reduction}
        everyone = self.communicator.allgather(mine)
        for rank, other in enumerate(everyone):
            for name in dict.fromkeys([*everyone[0], *other]):
                first, second = everyone[0].get(name), other.get(name)
                if first != second:
                    raise UserError(
                        f"rank {rank} has {name} {_shown(second)}, rank 0 has {_shown(first)}: all ranks "
                        "that train a network together must have the same"
                    )
        self.communicator.Bcast(packed)

    def close(self) -> None:
        """Free the communicator."""
        if self.communicator is not None:
            mpi.release(self.communicator)
            self.communicator = None


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def network_facts(graph: Graph, shapes: Mapping[str, tuple[int, ...]], real: np.dtype) -> dict[str, Any]:
    """What networks of several ranks must have in common, batch sizes are not part of it."""
    found: dict[str, Any] = {"precision": real.name}
    found["operations"] = _digest(f"{op.op_type} {op.operands}".encode() for op in graph.operations)
    found |= {f"parameter '{name}' of shape": list(shape) for name, shape in shapes.items()}
    for name, array in graph.initializers.items():
        if name not in shapes:
            found[f"fixed tensor '{name}' with hash"] = _digest([str(array.shape).encode(), array.tobytes()])
    return found


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()[:12]


def has_no_samples(arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether a rank is fed nothing: an input with first dimension 0."""
    return any(array.ndim and array.shape[0] == 0 for array in arrays.values())


def stand_ins(
    arrays: Mapping[str, np.ndarray], shapes: Iterable[tuple[str, tuple[int, ...]]]
) -> dict[str, np.ndarray]:
    """Arrays for a program that will not read them: with shapes of an earlier run, or of one sample."""
    known = dict(shapes)
    if known.keys() != arrays.keys():
        known = {n: (1, *a.shape[1:]) if a.ndim and not a.shape[0] else a.shape for n, a in arrays.items()}
    return {name: np.zeros(known[name], array.dtype) for name, array in arrays.items()}
