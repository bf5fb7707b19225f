"""Causal depthwise convolution along a sequence, with the tail of one call carried into the next."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.errors import UserError, choose


@rules.rule("CausalConvWithState", 27)
def causal_conv_with_state(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, past_state: Tensor | None = None, *,
    activation: str = "none", n_outputs: int = 2,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    """ONNX CausalConvWithState: x (B, C, T), weight (C, 1, k), bias (C), past_state (B, C, k - 1) or zeros.

    ``y[t] = bias + sum_i weight[i] s[t + i]`` over ``s`` = past_state followed by x, then ``y sigmoid(y)``
    where ``activation`` is "silu" or "swish". Returns y (B, C, T) and the last k - 1 columns of ``s``. 16-bit
    floats are computed in float32 and rounded once.

    Raises:
        UserError: shapes do not fit or the activation is unknown.
    """
    choose("activation of CausalConvWithState", activation, ("none", "silu", "swish"))
    given, kernel = tuple(x.shape), tuple(weight.shape)
    if len(given) != 3 or len(kernel) != 3 or kernel[:2] != (given[1], 1) or kernel[2] < 1:
        raise UserError(
            f"CausalConvWithState: input {given} and weight {kernel} must be (B, C, T) and (C, 1, k)"
        )
    batch, channels, steps = given
    tail = (batch, channels, kernel[2] - 1)
    for name, tensor, shape in (("bias", bias, (channels,)), ("past_state", past_state, tail)):
        if tensor is not None and tuple(tensor.shape) != shape:
            raise UserError(f"CausalConvWithState: {name} has shape {tuple(tensor.shape)}, expected {shape}")
    sequence = torch.cat((x.new_zeros(tail) if past_state is None else past_state, x), dim=2)
    if x.numel():
        wide = torch.promote_types(x.dtype, torch.float32)
        shift = None if bias is None else bias.to(wide)
        y = F.conv1d(sequence.to(wide), weight.to(wide), shift, groups=channels)
        y = (y if activation == "none" else F.silu(y)).to(x.dtype)
    else:
        y = x
    return y if n_outputs == 1 else (y, sequence[:, :, steps:])
