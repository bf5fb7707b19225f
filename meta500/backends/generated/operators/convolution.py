"""Conv and ConvTranspose: one sum over channels and taps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meta500.backends.generated.affine import Affine, Guard, indices
from meta500.backends.generated.expressions import ZERO, Access, mul
from meta500.backends.generated.ir import SUM, Axis, Stage, without_unit_axes
from meta500.backends.generated.lower import Lowering
from meta500.backends.generated.rule_table import lowers
from meta500.backends.generated.transposition import covers, gathered
from meta500.backends.windows import sliding, transposed
from meta500.errors import UserError

SPATIAL = ("i", "j", "l")
TAPS = ("r", "q", "t")


@lowers("Conv")
def conv(to: Lowering, op: Any) -> None:
    """Conv: y[n, k, i] = b[k] + sum over c, r of x[n, c, i*stride + r*dilation - pad] * w[k, c, r].

    Groups split the channels: k = g*K + k', and x is read at g*C + c.
    """
    to.real(op)
    x, w = to.shape(op.X), to.shape(op.W)
    rank = len(x) - 2
    group = op.group or 1
    _check(to, op, x, w, rank, w[1] * group if len(w) > 1 else 0)
    if w[0] % group:
        to.refuse(f"{w[0]} filters do not divide into {group} groups")
    try:
        windows = sliding("Conv", x[2:], w[2:], op.strides, op.pads, op.dilations, op.auto_pad)
    except UserError as error:
        raise UserError(f"{op.label}: {error}") from None
    y = to.result(op, shape=(x[0], w[0], *windows.outputs))
    if op.B and to.shape(op.B) != (w[0],):
        raise UserError(f"{op.label}: B has shape {list(to.shape(op.B))}, expected {[w[0]]}")
    filters, channels = w[0] // group, w[1]
    space, taps = SPATIAL[:rank], TAPS[:rank]
    axes = {"n": x[0], "g": group, "k": filters, **dict(zip(space, windows.outputs, strict=True))}
    axes |= {"c": channels, **dict(zip(taps, windows.kernel, strict=True))}
    k = Affine.of({"g": filters, "k": 1})
    places = [
        Affine.of({i: s, r: d}, -p)
        for i, r, s, d, p in zip(space, taps, windows.strides, windows.dilations, windows.begins, strict=True)
    ]
    value = mul(
        to.load(op.X, ["n", Affine.of({"g": channels, "c": 1}), *places]),
        to.load(op.W, [k, "c", *taps]),
    )
    guards = [Guard(place, 0, size) for place, size in zip(places, x[2:], strict=True)]
    initial = to.load(op.B, [k]) if op.B else None
    to.emit(y, ["n", k, *space], axes, value, SUM, guards, initial)


@lowers("ConvTranspose")
def conv_transpose(to: Lowering, op: Any) -> None:
    """ConvTranspose: y[n, k, i*stride + r*dilation - pad] += x[n, c, i] * w[c, k, r].

    Overlapping taps are gathered by a change of variables, as in the adjoint of a convolution.
    """
    to.real(op)
    x, w = to.shape(op.X), to.shape(op.W)
    rank = len(x) - 2
    group = op.group or 1
    _check(to, op, x, w, rank, w[0])
    if w[0] % group:
        to.refuse(f"{w[0]} channels do not divide into {group} groups")
    try:
        windows, shape = transposed(
            x[2:], w[2:], op.strides, op.pads, op.dilations, op.output_padding, op.output_shape, op.auto_pad,
            op.since_version,
        )  # fmt: skip
    except UserError as error:
        raise UserError(f"{op.label}: {error}") from None
    y = to.result(op, shape=(x[0], w[1] * group, *shape))
    if op.B and to.shape(op.B) != (w[1] * group,):
        raise UserError(f"{op.label}: B has shape {list(to.shape(op.B))}, expected {[w[1] * group]}")
    filters, channels = w[1], w[0] // group
    space, taps = SPATIAL[:rank], TAPS[:rank]
    axes = {"n": x[0], "g": group, "k": filters, **dict(zip(space, x[2:], strict=True))}
    axes |= {"c": channels, **dict(zip(taps, windows.kernel, strict=True))}
    k, c = Affine.of({"g": filters, "k": 1}), Affine.of({"g": channels, "c": 1})
    places = [
        Affine.of({i: s, r: d}, -p)
        for i, r, s, d, p in zip(space, taps, windows.strides, windows.dilations, windows.begins, strict=True)
    ]
    value = mul(to.load(op.X, ["n", c, *space]), to.load(op.W, [c, "k", *taps]))
    scatter = without_unit_axes(
        Stage(
            name=to.program.unique_stage(y),
            origin=f"ConvTranspose {op.name}".strip(),
            axes=tuple(Axis(name, size) for name, size in axes.items()),
            write=Access(y, indices(["n", k, *places])),
            value=value,
            combine=SUM,
            guards=tuple(Guard(place, 0, size) for place, size in zip(places, shape, strict=True)),
        )
    ).simplified()
    pieces = gathered(scatter, to.shape(y))
    if pieces is None:
        to.refuse("its taps cannot be gathered")
    _emit_pieces(to, y, pieces, op.B)


def _emit_pieces(to: Lowering, y: str, pieces: list[Stage], bias: str | None) -> None:
    """The pieces of y, each beginning with its bias; all of y is filled first where they leave gaps."""
    complete = covers(pieces, to.shape(y))
    if not complete:
        axes = to.axes(to.shape(y))
        channel = list(axes)[1]
        to.emit(y, list(axes), axes, to.load(bias, [channel]) if bias else ZERO)
    for piece in pieces:
        initial = to.load(bias, [piece.write.indices[1]]) if bias and complete else None
        name = to.program.unique_stage(piece.name)
        to.program.stages.append(replace(piece, name=name, initial=initial, onto=not complete))


def _check(to: Lowering, op: Any, x: tuple[int, ...], w: tuple[int, ...], rank: int, channels: int) -> None:
    if rank not in (1, 2, 3) or len(w) != rank + 2:
        to.refuse(f"X has shape {list(x)} and W {list(w)}; generated code has 1 to 3 spatial dimensions")
    if x[1] != channels:
        raise UserError(f"{op.label}: X has {x[1]} channels, W {list(w)} takes {channels}")
    if op.kernel_shape and tuple(op.kernel_shape) != w[2:]:
        raise UserError(f"{op.label}: kernel_shape {list(op.kernel_shape)} is not that of W {list(w)}")
