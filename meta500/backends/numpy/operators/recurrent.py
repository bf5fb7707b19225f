"""RNN, GRU and LSTM: loops over time around one matrix product per step, and backpropagation through time.

Equations are those of the ONNX operators. Up to version 3 their texts write ``H R`` where the later ones
write ``H R^T``; R has the same layout in all, one row per unit of a gate, so ``R^T`` is meant throughout.
Beyond the end of a sequence (``sequence_lens``) the state stays as it is and Y is zero; a reverse direction
starts at the sequence's own last step. An empty sequence keeps its initial state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meta500.backends import recurrent
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.activation import sigmoid
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.recurrent import Activation, Direction
from meta500.backends.rules import Call
from meta500.errors import UserError

Array = np.ndarray
Gradients = tuple[Array | None, ...]
Floats = tuple[float, ...]


# Activations.


def activate(function: Activation, x: Array) -> Array:
    """The value of an activation at ``x``, after clipping."""
    if function.clip is not None:
        x = np.clip(x, -function.clip, function.clip)
    a, b = function.alpha, function.beta
    match function.name:
        case "Sigmoid":
            return sigmoid(x)
        case "Tanh":
            return np.tanh(x)
        case "Relu":
            return np.maximum(x, 0)
        case "Affine":
            return a * x + b
        case "LeakyRelu":
            return np.where(x >= 0, x, a * x)
        case "ThresholdedRelu":
            return np.where(x >= a, x, 0)
        case "ScaledTanh":
            return a * np.tanh(b * x)
        case "HardSigmoid":
            return np.clip(a * x + b, 0, 1)
        case "Elu":
            return np.where(x >= 0, x, a * np.expm1(np.minimum(x, 0)))
        case "Softsign":
            return x / (1 + np.abs(x))
    return np.logaddexp(x, 0)  # Softplus


def slope(function: Activation, x: Array) -> Array:
    """The derivative of an activation at ``x``; zero where clipping is active."""
    inside: Array | bool = True
    if function.clip is not None:
        inside = np.abs(x) <= function.clip
        x = np.clip(x, -function.clip, function.clip)
    a, b = function.alpha, function.beta
    match function.name:
        case "Sigmoid":
            y = sigmoid(x)
            result = y * (1 - y)
        case "Tanh":
            result = 1 - np.square(np.tanh(x))
        case "Relu":
            result = np.where(x > 0, 1, 0)
        case "Affine":
            result = np.full_like(x, a)
        case "LeakyRelu":
            result = np.where(x >= 0, 1, a)
        case "ThresholdedRelu":
            result = np.where(x >= a, 1, 0)
        case "ScaledTanh":
            result = a * b * (1 - np.square(np.tanh(b * x)))
        case "HardSigmoid":
            linear = a * x + b
            result = np.where((linear > 0) & (linear < 1), a, 0)
        case "Elu":
            result = np.where(x > 0, 1, a * np.exp(np.minimum(x, 0)))
        case "Softsign":
            result = 1 / np.square(1 + np.abs(x))
        case _:
            result = sigmoid(x)
    return np.where(inside, result, 0).astype(x.dtype, copy=False)


# One direction of one node.


@dataclass
class Weights:
    """Parameters of one direction: w (G H, I), r (G H, H), wb and rb (G H), p (3 H); zeros where absent."""

    w: Array
    r: Array
    wb: Array
    rb: Array
    p: Array


@dataclass
class Run:
    """One direction as it ran: what backpropagation needs of every step, in the order of the steps."""

    weights: Weights
    functions: tuple[Activation, ...]
    order: list[int]
    x: Array
    valid: Array | None
    coupled: bool
    steps: list[tuple[Array, ...]] = field(default_factory=list)


Step = Callable[[Run, Array, tuple[Array, ...]], tuple[tuple[Array, ...], tuple[Array, ...]]]
Back = Callable[[Run, tuple[Array, ...], tuple[Array, ...], "Grads"], tuple[tuple[Array, ...], Array]]


@dataclass
class Grads:
    """Gradients of one direction's parameters, added up over time."""

    r: Array
    rb: Array
    p: Array


def _rnn_step(run: Run, xw: Array, state: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    (h,) = state
    raw = xw + h @ run.weights.r.T + run.weights.rb
    return (activate(run.functions[0], raw),), (h, raw)


def _rnn_back(run: Run, tape: tuple[Array, ...], d: tuple[Array, ...], grads: Grads) -> Any:
    h, raw = tape
    d_raw = d[0] * slope(run.functions[0], raw)
    grads.r += d_raw.T @ h
    grads.rb += d_raw.sum(axis=0)
    return (d_raw @ run.weights.r,), d_raw


def _gru_step(run: Run, xw: Array, state: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """``coupled`` is linear_before_reset here."""
    (h,) = state
    n, (f, g) = h.shape[1], run.functions
    r, rb = run.weights.r, run.weights.rb
    raw = xw[:, : 2 * n] + h @ r[: 2 * n].T + rb[: 2 * n]
    gates = activate(f, raw)
    z, reset = gates[:, :n], gates[:, n:]
    if run.coupled:
        inner = h @ r[2 * n :].T + rb[2 * n :]
        raw_h = xw[:, 2 * n :] + reset * inner
    else:
        inner = reset * h
        raw_h = xw[:, 2 * n :] + inner @ r[2 * n :].T + rb[2 * n :]
    candidate = activate(g, raw_h)
    return ((1 - z) * candidate + z * h,), (h, raw, gates, inner, raw_h, candidate)


def _gru_back(run: Run, tape: tuple[Array, ...], d: tuple[Array, ...], grads: Grads) -> Any:
    h, raw, gates, inner, raw_h, candidate = tape
    n, (f, g) = h.shape[1], run.functions
    r = run.weights.r
    z, reset = gates[:, :n], gates[:, n:]
    d_h = d[0] * z
    d_z = d[0] * (h - candidate)
    d_raw_h = d[0] * (1 - z) * slope(g, raw_h)
    if run.coupled:
        d_reset, d_inner = d_raw_h * inner, d_raw_h * reset
        d_h = d_h + d_inner @ r[2 * n :]
        grads.r[2 * n :] += d_inner.T @ h
        grads.rb[2 * n :] += d_inner.sum(axis=0)
    else:
        d_inner = d_raw_h @ r[2 * n :]
        d_reset = d_inner * h
        d_h = d_h + d_inner * reset
        grads.r[2 * n :] += d_raw_h.T @ inner
        grads.rb[2 * n :] += d_raw_h.sum(axis=0)
    d_raw = np.concatenate([d_z, d_reset], axis=1) * slope(f, raw)
    d_h = d_h + d_raw @ r[: 2 * n]
    grads.r[: 2 * n] += d_raw.T @ h
    grads.rb[: 2 * n] += d_raw.sum(axis=0)
    return (d_h,), np.concatenate([d_raw, d_raw_h], axis=1)


def _lstm_step(run: Run, xw: Array, state: tuple[Array, ...]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """``coupled`` is input_forget here: the forget gate is one minus the input gate."""
    h, c = state
    n, (f, g, last) = h.shape[1], run.functions
    p = run.weights.p
    raw = xw + h @ run.weights.r.T + run.weights.rb
    raw_i, raw_o, raw_f, raw_c = (raw[:, k * n : (k + 1) * n] for k in range(4))
    raw_i = raw_i + p[:n] * c
    raw_f = raw_f + p[2 * n :] * c
    i, candidate = activate(f, raw_i), activate(g, raw_c)
    forget = 1 - i if run.coupled else activate(f, raw_f)
    c_new = forget * c + i * candidate
    raw_o = raw_o + p[n : 2 * n] * c_new
    o, shown = activate(f, raw_o), activate(last, c_new)
    tape = (h, c, raw_i, raw_o, raw_f, raw_c, i, o, forget, candidate, c_new, shown)
    return (o * shown, c_new), tape


def _lstm_back(run: Run, tape: tuple[Array, ...], d: tuple[Array, ...], grads: Grads) -> Any:
    h, c, raw_i, raw_o, raw_f, raw_c, i, o, forget, candidate, c_new, shown = tape
    n, (f, g, last) = h.shape[1], run.functions
    p = run.weights.p
    d_h, d_c = d
    d_o = d_h * shown * slope(f, raw_o)
    d_c = d_c + d_h * o * slope(last, c_new) + d_o * p[n : 2 * n]
    d_i, d_forget = d_c * candidate, d_c * c
    if run.coupled:
        d_i, d_forget = d_i - d_forget, np.zeros_like(d_forget)
    d_i, d_forget = d_i * slope(f, raw_i), d_forget * slope(f, raw_f)
    d_candidate = d_c * i * slope(g, raw_c)
    d_raw = np.concatenate([d_i, d_o, d_forget, d_candidate], axis=1)
    grads.r += d_raw.T @ h
    grads.rb += d_raw.sum(axis=0)
    grads.p += np.concatenate([(d_i * c).sum(0), (d_o * c_new).sum(0), (d_forget * c).sum(0)])
    d_old = d_c * forget + d_i * p[:n] + d_forget * p[2 * n :]
    return (d_raw @ run.weights.r, d_old), d_raw


@dataclass(frozen=True)
class Kind:
    """One of the three operators."""

    name: str
    gates: int
    states: int
    defaults: tuple[str, ...]
    step: Step
    back: Back


RNN = Kind("RNN", 1, 1, ("Tanh",), _rnn_step, _rnn_back)
GRU = Kind("GRU", 3, 1, ("Sigmoid", "Tanh"), _gru_step, _gru_back)
LSTM = Kind("LSTM", 4, 2, ("Sigmoid", "Tanh", "Tanh"), _lstm_step, _lstm_back)


def _forward(
    kind: Kind, inputs: tuple[Array | None, ...], plan: tuple[Direction, ...], coupled: bool,
    hidden_size: int | None, layout: int, saved: dict[str, Any],
) -> tuple[Array, ...]:  # fmt: skip
    """Y and the last state(s) of ``inputs`` = X, W, R, B, sequence_lens, initial_h, initial_c, P."""
    x, w, r, b, lengths, *states, peepholes = inputs
    assert x is not None and w is not None and r is not None
    names = ("B", "sequence_lens", "initial_h", "initial_c", "P")
    others = {n: None if a is None else a.shape for n, a in zip(names, inputs[3:], strict=True)}
    steps, batch, _, n = recurrent.check_shapes(
        kind.name, kind.gates, len(plan), x.shape, w.shape, r.shape, others, hidden_size, layout
    )
    if lengths is not None and lengths.size and (lengths.min() < 0 or lengths.max() > steps):
        raise UserError(f"{kind.name}: sequence_lens {lengths.tolist()} must lie between 0 and {steps}")
    x = x.swapaxes(0, 1) if layout else x
    valid = None if lengths is None else (np.arange(steps)[:, None] < lengths)[..., None]
    if valid is not None:
        x = np.where(valid, x, 0)  # whatever the padding holds, NaN too, reaches nothing
    rows = kind.gates * n
    y = np.zeros((steps, len(plan), batch, n), x.dtype)
    last: list[list[Array]] = [[] for _ in range(kind.states)]
    runs = []
    for k, direction in enumerate(plan):
        bias = np.zeros(2 * rows, x.dtype) if b is None else b[k]
        peephole = np.zeros(3 * n, x.dtype) if peepholes is None else peepholes[k]
        weights = Weights(w[k], r[k], bias[:rows], bias[rows:], peephole)
        order = list(range(steps))[:: -1 if direction.backwards else 1]
        run = Run(weights, direction.activations, order, x, valid, coupled)
        state = tuple(
            np.zeros((batch, n), x.dtype) if s is None else (s[:, k] if layout else s[k])
            for s in states[: kind.states]
        )
        xw = x @ weights.w.T + weights.wb
        for t in order:
            new, tape = kind.step(run, xw[t], state)
            run.steps.append(tape)
            if valid is None:
                state, y[t, k] = new, new[0]
            else:
                y[t, k] = np.where(valid[t], new[0], 0)
                state = tuple(np.where(valid[t], a, old) for a, old in zip(new, state, strict=True))
        runs.append(run)
        for place, value in zip(last, state, strict=True):
            place.append(value)
    saved.update(kind=kind, runs=runs, layout=layout)
    ends = tuple(np.stack(values, axis=1 if layout else 0) for values in last)
    return (y.transpose(2, 0, 1, 3) if layout else y, *ends)


def _backward(call: Call, cotangents: tuple[Array | None, ...]) -> Gradients:
    kind, runs, layout = (call.saved[k] for k in ("kind", "runs", "layout"))
    inputs = call.inputs
    x = runs[0].x
    steps, batch = x.shape[:2]
    n = inputs[2].shape[2]
    given = (*cotangents, *(None,) * (3 - len(cotangents)))
    d_y = given[0]
    if d_y is not None and layout:
        d_y = d_y.transpose(1, 2, 0, 3)
    d_x = np.zeros_like(x)
    parts: dict[str, list[Array]] = {name: [] for name in ("w", "r", "b", "h", "c", "p")}
    for k, run in enumerate(runs):
        weights = run.weights
        grads = Grads(np.zeros_like(weights.r), np.zeros_like(weights.rb), np.zeros_like(weights.p))
        d_state = tuple(
            np.zeros((batch, n), x.dtype) if d is None else (d[:, k] if layout else d[k])
            for d in given[1 : 1 + kind.states]
        )
        d_xw = np.zeros((steps, batch, weights.w.shape[0]), x.dtype)
        for t, tape in zip(reversed(run.order), reversed(run.steps), strict=True):
            d_new = d_state if d_y is None else (d_state[0] + d_y[t, k], *d_state[1:])
            if run.valid is not None:
                d_new = tuple(np.where(run.valid[t], d, 0) for d in d_new)
            d_old, d_xw[t] = kind.back(run, tape, d_new, grads)
            if run.valid is not None:
                d_old = tuple(np.where(run.valid[t], d, kept) for d, kept in zip(d_old, d_state, strict=True))
            d_state = d_old
        d_x += d_xw @ weights.w
        parts["w"].append(np.tensordot(d_xw, x, axes=((0, 1), (0, 1))))
        parts["r"].append(grads.r)
        parts["b"].append(np.concatenate([d_xw.sum(axis=(0, 1)), grads.rb]))
        parts["p"].append(grads.p)
        for name, d in zip(("h", "c"), d_state, strict=False):
            parts[name].append(d)
    stacked: dict[str, Any] = {name: np.stack(found) for name, found in parts.items() if found}
    for name in ("h", "c"):
        if layout and name in stacked:
            stacked[name] = stacked[name].swapaxes(0, 1)
    found = (d_x.swapaxes(0, 1) if layout else d_x, stacked["w"], stacked["r"], stacked["b"], None,
             stacked["h"], stacked.get("c"), stacked["p"])  # fmt: skip
    return tuple(None if a is None else g for a, g in zip(inputs, found, strict=False))


# The operators.


@rules.rule("RNN")
@numeric
def rnn(
    x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None,
    initial_h: Array | None = None, *, activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None, activations: tuple[str, ...] | None = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
    output_sequence: int = 0, since_version: int = 22, saved: dict[str, Any],
) -> tuple[Array, ...]:  # fmt: skip
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
    return _forward(RNN, inputs, plan, False, hidden_size, layout, saved)


@rules.rule("GRU")
@numeric
def gru(
    x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None,
    initial_h: Array | None = None, *, activation_alpha: Floats | None = None,
    activation_beta: Floats | None = None, activations: tuple[str, ...] | None = None,
    clip: float | None = None, direction: str = "forward", hidden_size: int | None = None, layout: int = 0,
    linear_before_reset: int = 0, output_sequence: int = 0, since_version: int = 22, saved: dict[str, Any],
) -> tuple[Array, ...]:  # fmt: skip
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
    return _forward(GRU, inputs, plan, bool(linear_before_reset), hidden_size, layout, saved)


@rules.rule("LSTM")
@numeric
def lstm(
    x: Array, w: Array, r: Array, b: Array | None = None, sequence_lens: Array | None = None,
    initial_h: Array | None = None, initial_c: Array | None = None, p: Array | None = None, *,
    activation_alpha: Floats | None = None, activation_beta: Floats | None = None,
    activations: tuple[str, ...] | None = None, clip: float | None = None, direction: str = "forward",
    hidden_size: int | None = None, input_forget: int = 0, layout: int = 0, output_sequence: int = 0,
    since_version: int = 22, saved: dict[str, Any],
) -> tuple[Array, ...]:  # fmt: skip
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
    return _forward(LSTM, inputs, plan, bool(input_forget), hidden_size, layout, saved)


@rnn.vjp
@gru.vjp
@lstm.vjp
@numeric_vjp
def recurrent_vjp(call: Call, *cotangents: Array | None) -> Gradients:
    """Gradients of all float inputs by backpropagation through time."""
    return _backward(call, cotangents)
