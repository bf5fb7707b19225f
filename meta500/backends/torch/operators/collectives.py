"""Halos of neighbouring processes, and sums over all processes of a grid, through MPI on the host.

Tensors of other devices travel through the host. A compiled graph is interrupted here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meta500.backends.halo import Halo, extended, gathered, summed
from meta500.backends.torch.compilation import outside_of_graphs
from meta500.backends.torch.operators import rules
from meta500.backends.torch.tensors import from_numpy, to_numpy

Exchange = Callable[[np.ndarray, Any], np.ndarray]


class _Collective(torch.autograd.Function):
    """An exchange between processes on the host, and its adjoint in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, adjoint: Exchange, where: Any) -> Tensor:
        ctx.adjoint, ctx.where = adjoint, where
        return from_numpy(exchange(to_numpy(x), where), x.device)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None, None]:
        return from_numpy(ctx.adjoint(to_numpy(d), ctx.where), d.device), None, None, None


@outside_of_graphs
def _collective(x: Tensor, exchange: Exchange, adjoint: Exchange, where: Any) -> Tensor:
    found: Tensor = _Collective.apply(x, exchange, adjoint, where)  # type: ignore[no-untyped-call]
    return found


@rules.rule("HaloExchange", since=1, domain="meta500")
def halo_exchange(
    X: Tensor,
    *,
    axis: int,
    direction: int,
    before: int = 0,
    after: int = 0,
    send_before: int = 0,
    send_after: int = 0,
    group: str,
    tag: int = 0,
) -> Tensor:
    """meta500 HaloExchange: X between the last cells of the previous process and the first of the next.

    Raises:
        UserError: no such grid, neighbour or axis, or a block narrower than what it sends.
    """
    halo = Halo(axis, direction, before, after, send_before, send_after, group, tag)
    return _collective(X, extended, gathered, halo)


@rules.rule("AllReduce", since=1, domain="meta500")
def all_reduce(X: Tensor, *, group: str) -> Tensor:
    """meta500 AllReduce: the sum of X over all processes of the grid.

    Raises:
        UserError: no such grid.
    """
    return _collective(X, summed, summed, group)
