"""Halos of neighbouring processes, and sums over all processes of a grid."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meta500.backends.generated.affine import Affine, affine
from meta500.backends.generated.expressions import Access, Load
from meta500.backends.generated.ir import MESSAGE
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.messages import HALO, TOTAL, Message
from meta500.backends.generated.rule_table import lowers
from meta500.errors import UserError


@lowers("HaloExchange", domain="meta500")
def halo_exchange(to: Lowering, op: Any) -> None:
    """y[.., before + i, ..] = x[.., i, ..]; then the cells around these come from the neighbours."""
    to.real(op)
    x = to.shape(op.X)
    if not 0 <= op.axis < len(x):
        raise UserError(f"{op.label}: axis {op.axis} of a tensor of shape {list(x)} does not exist")
    if max(op.send_before, op.send_after) > x[op.axis]:
        raise UserError(
            f"{op.label}: the neighbours need {max(op.send_before, op.send_after)} cells of a block that has "
            f"{x[op.axis]} along axis {op.axis}"
        )
    shape = [*x]
    shape[op.axis] += op.before + op.after
    y = to.result(op, shape=shape)
    axes = to.axes(x)
    at: list[Affine] = [affine(name) for name in axes]
    at[op.axis] = at[op.axis] + op.before
    to.emit(y, at, axes, to.load(op.X, list(axes)))
    names = ("axis", "direction", "before", "after", "send_before", "send_after", "group")
    message = Message(HALO, tag=2 * op.tag, **{name: getattr(op, name) for name in names})
    _exchange(to, y, shape, message)


@lowers("AllReduce", domain="meta500")
def all_reduce(to: Lowering, op: Any) -> None:
    """y = x; then every element becomes its sum over all processes."""
    to.real(op)
    x = to.shape(op.X)
    y = to.result(op, shape=x)
    axes = to.axes(x)
    to.emit(y, list(axes), axes, to.load(op.X, list(axes)))
    _exchange(to, y, x, Message(TOTAL, op.group))


def _exchange(to: Lowering, tensor: str, shape: Any, message: Message) -> None:
    """Add a stage that changes ``tensor`` in place by a message."""
    axes = to.axes(shape)
    whole = Access(tensor, tuple(affine(name if size > 1 else 0) for name, size in axes.items()))
    stage = to.emit(tensor, list(axes), axes, Load(whole))
    to.program.stages[-1] = replace(stage, combine=MESSAGE, message=message)
