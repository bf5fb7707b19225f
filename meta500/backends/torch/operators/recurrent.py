"""RNN, GRU and LSTM: the inputs of all steps in one matrix product, then one product per step.

Equations are those of the ONNX operators; shapes, activations and their parameters are checked in
:mod:`meta500.backends.recurrent`. Up to version 3 the texts write ``H R`` where ``H R^T`` is meant. Beyond
the end of a sequence (``sequence_lens``) the state stays as it is and Y is zero; a reverse direction starts
at the sequence's own last step. An empty sequence keeps its initial state. 16-bit floats are computed in
float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends import recurrent
from meta500.backends.recurrent import Activation, Direction
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.activation import bounded_line
from meta500.errors import UserError

Floats = tuple[float, ...]
States = tuple[Tensor, ...]
Functions = tuple[Activation, ...]


def activate(function: Activation, x: Tensor) -> Tensor:
    """The value of an activation at ``x``, after clipping."""
    if function.clip is not None:
        x = torch.clamp(x, -function.clip, function.clip)
    a, b = function.alpha, function.beta
    match function.name:
        case "Sigmoid":
            return torch.sigmoid(x)
        case "Tanh":
            return torch.tanh(x)
        case "Relu":
            return torch.relu(x)
        case "Affine":
            return x * a + b
        case "LeakyRelu":
            return torch.where(x >= 0, x, x * a)
        case "ThresholdedRelu":
            return torch.where(x >= a, x, 0)
        case "ScaledTanh":
            return torch.tanh(x * b) * a
        case "HardSigmoid":
            return bounded_line(x, a, b)
        case "Elu":
            return F.elu(x, a)
        case "Softsign":
            return F.softsign(x)
    return F.softplus(x, threshold=50)  # Softplus; beyond 50 it is x to the last bit of float64


@dataclass(frozen=True)
class Weights:
    """Recurrent parameters of one direction: r (G H, H), rb (G H), p (3 H); biases None where absent."""

    r: Tensor
    rb: Tensor | None
    p: Tensor | None


def _linear(h: Tensor, weights: Weights, first: int, last: int) -> Tensor:
    """``h R^T + Rb`` for the rows from ``first`` to ``last`` of R."""
    bias = None if weights.rb is None else weights.rb[first:last]
    return F.linear(h, weights.r[first:last], bias)


def _rnn_step(xw: Tensor, state: States, weights: Weights, functions: Functions, coupled: bool) -> States:
    (h,) = state
    return (activate(functions[0], xw + _linear(h, weights, 0, h.shape[1])),)


def _gru_step(xw: Tensor, state: States, weights: Weights, functions: Functions, coupled: bool) -> States:
    """``coupled`` is linear_before_reset here."""
    (h,) = state
    n, (f, g) = h.shape[1], functions
    if coupled:
        hr = _linear(h, weights, 0, 3 * n)
        z, reset = activate(f, xw[:, : 2 * n] + hr[:, : 2 * n]).chunk(2, dim=1)
        candidate = activate(g, xw[:, 2 * n :] + reset * hr[:, 2 * n :])
    else:
        z, reset = activate(f, xw[:, : 2 * n] + _linear(h, weights, 0, 2 * n)).chunk(2, dim=1)
        candidate = activate(g, xw[:, 2 * n :] + _linear(reset * h, weights, 2 * n, 3 * n))
    return ((1 - z) * candidate + z * h,)


def _lstm_step(xw: Tensor, state: States, weights: Weights, functions: Functions, coupled: bool) -> States:
    """``coupled`` is input_forget here: the forget gate is one minus the input gate."""
    h, c = state
    n, (f, g, last) = h.shape[1], functions
    raw_i, raw_o, raw_f, raw_c = (xw + _linear(h, weights, 0, 4 * n)).chunk(4, dim=1)
    p = weights.p
    if p is not None:
        raw_i = raw_i + p[:n] * c
        raw_f = raw_f + p[2 * n :] * c
    i = activate(f, raw_i)
    forget = 1 - i if coupled else activate(f, raw_f)
    c = forget * c + i * activate(g, raw_c)
    if p is not None:
        raw_o = raw_o + p[n : 2 * n] * c
    return activate(f, raw_o) * activate(last, c), c


@dataclass(frozen=True)
class Kind:
    """One of the three operators."""

    name: str
    gates: int
    states: int
    defaults: tuple[str, ...]
    step: Callable[[Tensor, States, Weights, Functions, bool], States]


RNN = Kind("RNN", 1, 1, ("Tanh",), _rnn_step)
GRU = Kind("GRU", 3, 1, ("Sigmoid", "Tanh"), _gru_step)
LSTM = Kind("LSTM", 4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step)


def _check_lengths(operator: str, lengths: Tensor, steps: int) -> None:
    fits = ((lengths >= 0) & (lengths <= steps)).all()
    message = f"{operator}: sequence_lens must lie between 0 and the {steps} steps of X"
    if torch.compiler.is_compiling():
        torch._assert_async(fits, message)
    elif not fits:
        raise UserError(message)


def _run(
    kind: Kind, inputs: tuple[Tensor | None, ...], plan: tuple[Direction, ...], coupled: bool,
    hidden_size: int | None, layout: int, n_outputs: int,
) -> Tensor | States:  # fmt: skip
    """Y and the last state(s) of ``inputs`` = X, W, R, B, sequence_lens, initial_h, initial_c, P."""
    names = ("B", "sequence_lens", "initial_h", "initial_c", "P")
    others = {n: None if a is None else tuple(a.shape) for n, a in zip(names, inputs[3:], strict=True)}
    first, second, third = inputs[:3]
    assert first is not None and second is not None and third is not None
    steps, batch, _, n = recurrent.check_shapes(
        kind.name, kind.gates, len(plan), tuple(first.shape), tuple(second.shape), tuple(third.shape), others,
        hidden_size, layout,
    )  # fmt: skip
    dtype = first.dtype
    narrow = dtype in (torch.float16, torch.bfloat16)
    lengths = inputs[4]
    x, w, r, b, h0, c0, p = (
        a.to(torch.float32) if narrow and a is not None else a for a in (*inputs[:4], *inputs[5:])
    )
    assert x is not None and w is not None and r is not None
    if layout:
        x = x.transpose(0, 1)
    valid = None
    if lengths is not None:
        _check_lengths(kind.name, lengths, steps)
        valid = (torch.arange(steps, device=x.device)[:, None] < lengths).unsqueeze(-1)
        x = torch.where(valid, x, 0)  # whatever the padding holds, NaN too, reaches nothing
    rows = kind.gates * n
    sequences, ends = [], []
    for k, direction in enumerate(plan):
        bias = None if b is None else b[k]
        weights = Weights(r[k], None if bias is None else bias[rows:], None if p is None else p[k])
        xw = F.linear(x, w[k], None if bias is None else bias[:rows])
        state: States = tuple(
            x.new_zeros(batch, n) if s is None else (s[:, k] if layout else s[k])
            for s in (h0, c0)[: kind.states]
        )
        outputs: list[Tensor] = [x] * steps
        for t in range(steps)[:: -1 if direction.backwards else 1]:
            new = kind.step(xw[t], state, weights, direction.activations, coupled)
            if valid is None:
                state, outputs[t] = new, new[0]
            else:
                outputs[t] = torch.where(valid[t], new[0], 0)
                state = tuple(torch.where(valid[t], a, old) for a, old in zip(new, state, strict=True))
        sequences.append(torch.stack(outputs) if steps else x.new_zeros(0, batch, n))
        ends.append(state)
    y = torch.stack(sequences, dim=1)
    if layout:
        y = y.permute(2, 0, 1, 3)
    last = [torch.stack(values, dim=1 if layout else 0) for values in zip(*ends, strict=True)]
    results = tuple(a.to(dtype) for a in (y, *last))
    return results[0] if n_outputs == 1 else results


@rules.rule("RNN")
def rnn(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None, activations: tuple[str, ...] | None = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
    output_sequence: int = 0, since_version: int = 22, n_outputs: int = 1,
) -> Tensor | States:  # fmt: skip
    """ONNX RNN: ``H = f(X Wi^T + H R^T + Wb + Rb)``.

    X is (time, batch, input), W (directions, hidden, input), R (directions, hidden, hidden), B (directions,
    2 hidden), initial_h (directions, batch, hidden). Returns Y (time, directions, batch, hidden) and Y_h
    (directions, batch, hidden). With ``layout`` 1 the batch comes first in X, initial_h, Y and Y_h.
    ``output_sequence`` (up to version 3) only allows Y to be left out.

    Raises:
        UserError: shapes, activations or attributes do not fit.
    """
    plan = recurrent.directions(
        "RNN", RNN.defaults, direction, activations, activation_alpha, activation_beta, clip, since_version
    )
    inputs = (x, w, r, b, sequence_lens, initial_h, None, None)
    return _run(RNN, inputs, plan, False, hidden_size, layout, n_outputs)


@rules.rule("GRU")
def gru(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, *, activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None, activations: tuple[str, ...] | None = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
    linear_before_reset: int = 0, output_sequence: int = 0, since_version: int = 22, n_outputs: int = 1,
) -> Tensor | States:  # fmt: skip
    """ONNX GRU (arXiv:1406.1078): gates z, r, h in this order; shapes as in :func:`rnn` with 3 hidden rows.

    ``H = (1 - z) h + z H`` with ``h = g(X Wh^T + (r H) Rh^T + Rbh + Wbh)`` or, with
    ``linear_before_reset``, ``h = g(X Wh^T + r (H Rh^T + Rbh) + Wbh)``. Version 1 has only the former.

    Raises:
        UserError: shapes, activations or attributes do not fit.
    """
    plan = recurrent.directions(
        "GRU", GRU.defaults, direction, activations, activation_alpha, activation_beta, clip, since_version
    )
    inputs = (x, w, r, b, sequence_lens, initial_h, None, None)
    return _run(GRU, inputs, plan, bool(linear_before_reset), hidden_size, layout, n_outputs)


@rules.rule("LSTM")
def lstm(
    x: Tensor, w: Tensor, r: Tensor, b: Tensor | None = None, sequence_lens: Tensor | None = None,
    initial_h: Tensor | None = None, initial_c: Tensor | None = None, p: Tensor | None = None, *,
    activation_alpha: Floats | None = None, activation_beta: Floats | None = None,
    activations: tuple[str, ...] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0, output_sequence: int = 0,
    since_version: int = 22, n_outputs: int = 1,
) -> Tensor | States:  # fmt: skip
    """ONNX LSTM: gates i, o, f, c in this order; shapes as in :func:`rnn` with 4 hidden rows; P (i, o, f).

    Returns Y, Y_h and Y_c. ``clip`` bounds the argument of every activation, that of h(C) too, and not the
    cell itself. With ``input_forget`` the forget gate is ``1 - i``.

    Raises:
        UserError: shapes, activations or attributes do not fit.
    """
    plan = recurrent.directions(
        "LSTM", LSTM.defaults, direction, activations, activation_alpha, activation_beta, clip, since_version
    )
    inputs = (x, w, r, b, sequence_lens, initial_h, initial_c, p)
    return _run(LSTM, inputs, plan, bool(input_forget), hidden_size, layout, n_outputs)
