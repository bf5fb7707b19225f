"""Gradient compression: only the largest elements travel, what stays behind is added to the next gradient.

Top-k with error feedback, for a tensor x of rank r in step t and its residual e (at first 0)::

    p = x + e             what should be sent
    s = top_k(p)          the k elements of largest magnitude, the others 0
    e = p - s             kept for the next step
    result = mean over ranks of s

S. U. Stich, J.-B. Cordonnier, M. Jaggi, Sparsified SGD with Memory, NeurIPS 2018 (arXiv:1809.07599);
S. P. Karimireddy, Q. Rebjock, S. U. Stich, M. Jaggi, Error Feedback Fixes SignSGD and other Gradient
Compression Schemes, ICML 2019 (arXiv:1901.09847), who scale the gradient by the step size before it enters
the memory. Here the optimizer comes after the exchange, which is the same for gradient descent with a
constant step size.

All tensors of an exchange travel in one allgather of indices (4 bytes each, 8 from 2^31 elements on) and
values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from meta500.distributed import buffers
from meta500.distributed.buckets import check_weight
from meta500.distributed.pending import Pending, PendingMany
from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

KINDS = ("top-k",)
# The message begins with the weight of the rank (float64), padded.
HEADER_BYTES = 16


class Slot(NamedTuple):
    """Where the elements of a tensor lie in the message, in bytes."""

    name: str
    size: int
    kept: int
    dtype: np.dtype
    index_dtype: np.dtype
    indices: int
    values: int


class TopK:
    """Top-k sparsification with error feedback; one object for each rank and set of gradients.

    Args:
        fraction: share of the elements of every tensor that is sent, rounded up, at least one element; 1.0
            sends everything.

    Raises:
        UserError: a fraction outside of (0, 1].
    """

    def __init__(self, fraction: float) -> None:
        number = isinstance(fraction, int | float | np.number) and not isinstance(fraction, bool)
        if not (number and 0 < fraction <= 1):
            raise UserError(f"top-k: the fraction has to be above 0 and at most 1, got {fraction!r}")
        self.fraction = float(fraction)
        self._residuals: dict[str, np.ndarray] = {}

    def __repr__(self) -> str:
        return f"TopK({self.fraction:g})"

    def __str__(self) -> str:
        return f"top-k:{self.fraction:g}"

    def kept(self, size: int) -> int:
        """Number of elements that are sent of ``size``."""
        # 0.01 * 300 is 3.0000000000000004 in some orders of rounding; that is still 3.
        return min(size, max(1, math.ceil(self.fraction * size - 1e-9 * size))) if size else 0

    def message_bytes(self, tensors: Mapping[str, Any]) -> int:
        """Bytes that a rank sends for these tensors."""
        return self._layout(tensors)[1]

    def residual(self, name: str) -> np.ndarray | None:
        """What was not sent yet of a tensor (a copy, in the type of the exchange), None at first."""
        found = self._residuals.get(name)
        return None if found is None else found.copy()

    def state_dict(self) -> dict[str, np.ndarray]:
        """Residuals by name (copies)."""
        return {name: residual.copy() for name, residual in self._residuals.items()}

    def load_state_dict(self, state: Mapping[str, np.ndarray]) -> None:
        """Take over the residuals of :meth:`state_dict`."""
        self._residuals = {name: np.array(residual) for name, residual in state.items()}

    def start(
        self,
        network: CommunicationNetwork,
        operation: str,
        tensors: Mapping[str, Any],
        op: str,
        weight: float | None,
        in_place: bool,
    ) -> PendingMany:
        """Begin the compressed form of `CommunicationNetwork.sync_all_many` ("mean" or "sum").

        A rank with weight 0 sends nothing of its tensors and keeps its residuals.

        Raises:
            UserError: no floating-point type, a tensor with another shape than before, or a bad weight.
        """
        begin = perf_counter_ns()
        if not tensors:
            return Pending(network, operation, [], dict, 0, 0, begin)
        if weight is not None:
            check_weight(operation, weight)
        slots, nbytes = self._layout(tensors)
        message = np.zeros(nbytes, np.uint8)
        message[:8].view(np.float64)[0] = 1.0 if weight is None else weight
        if weight != 0:
            for slot in slots:
                indices, values = _pieces(message, slot)
                self._select(slot, tensors[slot.name], indices, values)
        gathered = np.empty((network.size, nbytes), np.uint8)
        with network._errors(operation):
            request = network.comm.Iallgather(message, gathered)

        def finish() -> dict[str, Any]:
            weights = [float(part[:8].view(np.float64)[0]) for part in gathered]
            divisor = math.fsum(weights)
            if op == "mean" and divisor == 0:
                raise UserError(f"{operation}: the weights of all ranks are 0, there is nothing to average")
            results = {}
            for slot in slots:
                total = np.zeros(slot.size, slot.dtype)
                for rank_weight, part in zip(weights, gathered, strict=True):
                    indices, values = _pieces(part, slot)
                    if op == "sum" or rank_weight == 1:
                        total[indices] += values
                    elif rank_weight != 0:
                        total[indices] += values * slot.dtype.type(rank_weight)
                if op == "mean" and divisor != 1:
                    total /= slot.dtype.type(divisor)
                results[slot.name] = total
            return {name: _result(results[name], tensor, in_place) for name, tensor in tensors.items()}

        return Pending(network, operation, [request], finish, nbytes, gathered.nbytes, begin)

    def _layout(self, tensors: Mapping[str, Any]) -> tuple[list[Slot], int]:
        slots, start = [], HEADER_BYTES
        for name in sorted(tensors):
            size = math.prod(np.shape(tensors[name]))
            dtype = buffers.host_dtype(tensors[name])
            if not buffers.is_float(dtype):
                raise UserError(f"top-k: '{name}' is {dtype}; only floating-point tensors are compressed")
            wire, kept = buffers.wire_dtype(dtype), self.kept(size)
            index = np.dtype(np.int32 if size < 2**31 else np.int64)
            values = start + _aligned(kept * index.itemsize)
            slots.append(Slot(name, size, kept, wire, index, start, values))
            start = values + _aligned(kept * wire.itemsize)
        return slots, start

    def _select(self, slot: Slot, tensor: Any, indices: np.ndarray, values: np.ndarray) -> None:
        """Fill indices and values of one tensor and keep the rest as its residual."""
        wanted = np.array(buffers.host(tensor), dtype=slot.dtype, order="C").reshape(-1)
        residual = self._residuals.get(slot.name)
        if residual is not None:
            if residual.size != wanted.size:
                raise UserError(
                    f"top-k: '{slot.name}' has {wanted.size} elements, its residual {residual.size}; "
                    "use one TopK for one set of gradients"
                )
            wanted += residual
        if slot.kept == slot.size:
            chosen = np.arange(slot.size, dtype=slot.index_dtype)
        else:
            # Partitioning puts NaN last: it counts as the largest and is sent, not hidden in the residual.
            chosen = np.argpartition(np.abs(wanted), slot.size - slot.kept)[slot.size - slot.kept :]
            chosen.sort()
        indices[...] = chosen
        values[...] = wanted[chosen]
        wanted[chosen] = 0
        self._residuals[slot.name] = wanted


def from_text(text: str) -> TopK | None:
    """The compression that a text names: "top-k:FRACTION", or "none".

    Raises:
        UserError: another name, or no fraction.
    """
    kind, _, fraction = text.partition(":")
    if kind == "none" and not fraction:
        return None
    choose("compression", kind, (*KINDS, "none"))
    if kind == "none":
        raise UserError(f"compression '{text}': none has no number; write none or top-k:0.01")
    try:
        return TopK(float(fraction))
    except ValueError:
        raise UserError(
            f"compression '{text}': '{fraction}' is no number; write for example top-k:0.01"
        ) from None


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 16) * 16


def _pieces(message: np.ndarray, slot: Slot) -> tuple[np.ndarray, np.ndarray]:
    """Views of a tensor's indices and values in a message."""
    indices = message[slot.indices : slot.indices + slot.kept * slot.index_dtype.itemsize]
    values = message[slot.values : slot.values + slot.kept * slot.dtype.itemsize]
    return indices.view(slot.index_dtype), values.view(slot.dtype)


def _result(total: np.ndarray, tensor: Any, in_place: bool) -> Any:
    array = total.reshape(np.shape(tensor))
    if in_place:
        buffers.store(array, tensor)
        return tensor
    return buffers.native(array, tensor)
