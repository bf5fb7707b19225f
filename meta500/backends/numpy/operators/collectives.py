"""Halos of neighbouring processes, and sums over all processes of a grid."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.halo import Halo, extended, gathered, summed
from meta500.backends.numpy.operators import rules
from meta500.backends.rules import Call


@rules.rule("HaloExchange", domain="meta500")
def halo_exchange(
    X: np.ndarray,
    *,
    axis: int,
    direction: int,
    before: int = 0,
    after: int = 0,
    send_before: int = 0,
    send_after: int = 0,
    group: str,
    tag: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """meta500 HaloExchange: X between the last cells of the previous process and the first of the next.

    Raises:
        UserError: no such grid, neighbour or axis, or a block narrower than what it sends.
    """
    halo = Halo(axis, direction, before, after, send_before, send_after, group, tag)
    saved["halo"] = halo
    return extended(X, halo)


@halo_exchange.vjp
def halo_exchange_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """Cotangents of received cells go back to the processes that own them."""
    return (gathered(d, call.saved["halo"]),)


@rules.rule("AllReduce", domain="meta500")
def all_reduce(X: np.ndarray, *, group: str) -> np.ndarray:
    """meta500 AllReduce: the sum of X over all processes of the grid.

    Raises:
        UserError: no such grid.
    """
    return summed(X, group)


@all_reduce.vjp
def all_reduce_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """The sum of the cotangents over all processes."""
    return (summed(d, call.attributes["group"]),)
