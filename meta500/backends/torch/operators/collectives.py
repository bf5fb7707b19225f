"""Halos of neighbouring processes, and sums over all processes of a grid, through MPI on the host.

Tensors of other devices travel through the host. A compiled graph is interrupted here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta500.backends.halo import Halo, extended, gathered, summed
from meta500.backends.torch.compilation import outside_of_graphs
from meta500.backends.torch.operators import rules
from meta500.backends.torch.tensors import from_numpy, to_numpy


class _HaloExchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, halo: Halo) -> Tensor:
        ctx.halo = halo
        return from_numpy(extended(to_numpy(x), halo), x.device)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return from_numpy(gathered(to_numpy(d), ctx.halo), d.device), None


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: str) -> Tensor:
        ctx.group = group
        return from_numpy(summed(to_numpy(x), group), x.device)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        return from_numpy(summed(to_numpy(d), ctx.group), d.device), None


@outside_of_graphs
def _outside_of_compiled_graphs(function: Any, x: Tensor, where: Any) -> Tensor:
    found: Tensor = function.apply(x, where)
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
    return _outside_of_compiled_graphs(_HaloExchange, X, halo)


@rules.rule("AllReduce", since=1, domain="meta500")
def all_reduce(X: Tensor, *, group: str) -> Tensor:
    """meta500 AllReduce: the sum of X over all processes of the grid.

    Raises:
        UserError: no such grid.
    """
    return _outside_of_compiled_graphs(_AllReduce, X, group)
