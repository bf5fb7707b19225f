"""Causal depthwise convolution along a sequence, with the tail of one call carried into the next."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.activation import sigmoid
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Array = np.ndarray


@rules.rule("CausalConvWithState", 27)
@numeric
def causal_conv_with_state(
    x: Array, weight: Array, bias: Array | None = None, past_state: Array | None = None, *,
    activation: str = "none", saved: dict[str, Any],
) -> tuple[Array, Array]:  # fmt: skip
    """ONNX CausalConvWithState: x (B, C, T), weight (C, 1, k), bias (C), past_state (B, C, k - 1) or zeros.

    ``y[t] = bias + sum_i weight[i] s[t + i]`` over ``s`` = past_state followed by x, then ``y sigmoid(y)``
    where ``activation`` is "silu" or "swish". Returns y (B, C, T) and the last k - 1 columns of ``s``.

    Raises:
        UserError: shapes do not fit or the activation is unknown.
    """
    choose("activation of CausalConvWithState", activation, ("none", "silu", "swish"))
    if x.ndim != 3 or weight.ndim != 3 or weight.shape[:2] != (x.shape[1], 1) or weight.shape[2] < 1:
        raise UserError(
            f"CausalConvWithState: input {x.shape} and weight {weight.shape} must be (B, C, T) and (C, 1, k)"
        )
    batch, channels, steps = x.shape
    taps = weight.shape[2]
    expected = (("bias", bias, (channels,)), ("past_state", past_state, (batch, channels, taps - 1)))
    for name, array, shape in expected:
        if array is not None and array.shape != shape:
            raise UserError(f"CausalConvWithState: {name} has shape {array.shape}, expected {shape}")
    before = np.zeros((batch, channels, taps - 1), x.dtype) if past_state is None else past_state
    sequence = np.concatenate((before, x), axis=2)
    y = np.zeros(x.shape, x.dtype)
    for i in range(taps):
        y = y + weight[:, :, i] * sequence[:, :, i : i + steps]
    if bias is not None:
        y = y + bias[:, None]
    saved.update(sequence=sequence, linear=y)
    return (y if activation == "none" else y * sigmoid(y)), np.array(sequence[:, :, steps:])


@causal_conv_with_state.vjp
@numeric_vjp
def causal_conv_with_state_vjp(
    call: Call, d_y: Array | None, d_present: Array | None = None
) -> tuple[Array | None, ...]:
    """Gradients of all inputs."""
    x, weight = call.inputs[:2]
    sequence, linear = call.saved["sequence"], call.saved["linear"]
    steps, taps = x.shape[2], weight.shape[2]
    d_sequence = np.zeros_like(sequence)
    d_linear = np.zeros_like(linear) if d_y is None else d_y
    if call.attributes.get("activation", "none") != "none":
        s = sigmoid(linear)
        d_linear = d_linear * s * (1 + linear * (1 - s))
    d_weight = np.zeros_like(weight)
    for i in range(taps):
        part = sequence[:, :, i : i + steps]
        d_weight[:, 0, i] = (d_linear * part).sum(axis=(0, 2))
        d_sequence[:, :, i : i + steps] += weight[:, :, i] * d_linear
    if d_present is not None:
        d_sequence[:, :, steps:] += d_present
    parts = (d_sequence[:, :, taps - 1 :], d_weight, d_linear.sum(axis=(0, 2)), d_sequence[:, :, : taps - 1])
    return tuple(None if a is None else d for a, d in zip(call.inputs, parts, strict=False))
