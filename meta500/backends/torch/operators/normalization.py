"""Batch, instance, layer and local response normalization, and Dropout, which also knows two modes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.numpy.operators.seeding import seeded_legacy
from meta500.backends.torch.compilation import outside_of_graphs
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.literals import single
from meta500.errors import UserError

Ints = tuple[int, ...]

# ONNX stores its defaults 1e-5, 0.9 and 1e-4 in float32.
EPSILON = 9.999999747378752e-06
MOMENTUM = 0.8999999761581421
ALPHA = 9.999999747378752e-05


def _batch_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    training: bool,
    momentum: float,
    epsilon: float,
    n_outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    """Y[, running mean, running var[, batch mean, batch var]] over all axes but the channel axis 1."""
    if x.ndim == 1:
        # One axis is the batch, with a single channel.
        y = _batch_norm(
            x.unsqueeze(1), scale, bias, mean, var,
            training=training, momentum=momentum, epsilon=epsilon, n_outputs=n_outputs,
        )  # fmt: skip
        return y.squeeze(1) if isinstance(y, Tensor) else (y[0].squeeze(1), *y[1:])
    parameters = {t.dtype for t in (scale, bias, mean, var)}
    half = x.dtype in (torch.float16, torch.bfloat16)
    # The kernels take one dtype throughout, or float32 parameters for a half-precision input. With
    # half-precision parameters they round the mean of a batch before they subtract it.
    if (parameters != {x.dtype} or (half and training)) and not (half and parameters == {torch.float32}):
        wide = functools.reduce(torch.promote_types, parameters, torch.float32 if half else x.dtype)
        wide_y = _batch_norm(
            x.to(wide), scale.to(wide), bias.to(wide), mean.to(wide), var.to(wide),
            training=training, momentum=momentum, epsilon=epsilon, n_outputs=n_outputs,
        )  # fmt: skip
        if isinstance(wide_y, Tensor):
            return wide_y.to(x.dtype)
        return (wide_y[0].to(x.dtype), *(t.to(mean.dtype) for t in wide_y[1:]))
    if not training and torch.is_grad_enabled() and (mean.requires_grad or var.requires_grad):
        # The kernel has no gradient for given statistics.
        column = (-1, *(1,) * (x.ndim - 2))
        factor = scale * torch.rsqrt(var + epsilon)
        return (x - mean.reshape(column)) * factor.reshape(column) + bias.reshape(column)
    if not training:
        return F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon) if x.numel() else x.clone()

    if not x.numel():
        raise UserError(f"BatchNormalization: a batch of shape {tuple(x.shape)} has no mean and variance")
    count = x.numel() // x.shape[1]
    if n_outputs == 1 or count == 1:
        # F.batch_norm refuses a single value per channel, whose variance of 0 ONNX does define.
        y = torch.batch_norm(x, scale, bias, None, None, True, 0.0, epsilon, torch.backends.cudnn.enabled)
        if n_outputs == 1:
            return y
        batch_mean = x.mean([a for a in range(x.ndim) if a != 1])
        running_mean = mean * momentum + batch_mean * (1 - momentum)
        running_var = var * momentum
    else:
        # The kernel updates these copies by the same formula, except that its variance is the sample's,
        # count / (count - 1) times ONNX's: scaled before and after, the result is ONNX's.
        running_mean = mean.detach().clone()
        sample_var = var.detach() * (count / (count - 1))
        y = F.batch_norm(x, running_mean, sample_var, scale, bias, True, 1 - momentum, epsilon)
        running_var = sample_var * ((count - 1) / count)
        if torch.is_grad_enabled() and (x.requires_grad or mean.requires_grad or var.requires_grad):
            running_mean, running_var = _Running.apply(x, mean, var, running_mean, running_var, momentum)
    if n_outputs <= 3:
        return y, running_mean, running_var
    spread, centre = torch.var_mean(x, [a for a in range(x.ndim) if a != 1], correction=0)
    return y, running_mean, running_var, centre, spread


class _Running(torch.autograd.Function):
    """Hands through the running statistics that a kernel computed and gives them the gradient it lacks."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, var: Tensor, new_mean: Tensor, new_var: Tensor, momentum: float
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.momentum, ctx.dtype = momentum, mean.dtype
        ctx.set_materialize_grads(False)
        return new_mean.view_as(new_mean), new_var.view_as(new_var)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        momentum, axes = ctx.momentum, [a for a in range(x.ndim) if a != 1]
        share, column = (1 - momentum) * x.shape[1] / x.numel(), (-1, *(1,) * (x.ndim - 2))
        d_mean, d_var = cotangents
        d_x = None
        if d_mean is not None:
            d_x = (d_mean.to(x.dtype) * share).reshape(column).expand_as(x)
        if d_var is not None:
            centred = x - x.mean(axes, keepdim=True)
            part = (d_var.to(x.dtype) * (2 * share)).reshape(column) * centred
            d_x = part if d_x is None else d_x + part
        old = [None if d is None else d * momentum for d in cotangents]
        return d_x, *old, None, None, None


def _activation_norm(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    training: bool,
    momentum: float,
    epsilon: float,
    n_outputs: int,
) -> Tensor | tuple[Tensor, ...]:
    """Batch normalization with ``spatial=0``: every element of (C, D1..Dn) has statistics of its own."""
    shape = tuple(x.shape[1:])
    if any(tuple(t.shape) != shape for t in (scale, bias, mean, var)):
        raise UserError(
            f"BatchNormalization: with spatial=0 scale, B, mean and var need the shape {shape} of one sample"
        )
    if x.dtype in (torch.float16, torch.bfloat16):
        wide = _activation_norm(
            x.float(), scale.float(), bias.float(), mean.float(), var.float(),
            training=training, momentum=momentum, epsilon=epsilon, n_outputs=n_outputs,
        )  # fmt: skip
        return wide.to(x.dtype) if isinstance(wide, Tensor) else tuple(t.to(x.dtype) for t in wide)
    spread, centre = var, mean
    if training:
        spread, centre = torch.var_mean(x, 0, correction=0)
    y = (x - centre) * torch.rsqrt(spread + epsilon) * scale + bias
    if n_outputs == 1:
        return y
    running_mean = mean * momentum + centre * (1 - momentum)
    running_var = var * momentum + spread * (1 - momentum)
    return y, running_mean, running_var, centre, spread


@rules.rule("BatchNormalization", since=1)
def batch_normalization_1(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = EPSILON,
    is_test: int = 0,
    momentum: float = MOMENTUM,
    spatial: int = 1,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """ONNX BatchNormalization-1 and -6: the batch's own statistics unless ``is_test`` is set.

    Raises:
        UserError: training mode with Y alone or test mode with more (the definition contradicts itself).
    """
    if (n_outputs > 1) == bool(is_test):
        raise UserError(
            f"BatchNormalization: is_test={is_test} with {n_outputs} output(s) is undefined before version "
            "7; test mode has the output Y only, training mode all five"
        )
    function = _batch_norm if spatial else _activation_norm
    return function(
        x, scale, bias, mean, var,
        training=not is_test, momentum=momentum, epsilon=epsilon, n_outputs=n_outputs,
    )  # fmt: skip


@rules.rule("BatchNormalization", since=7)
def batch_normalization_7(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    mean: Tensor,
    var: Tensor,
    *,
    epsilon: float = EPSILON,
    momentum: float = MOMENTUM,
    spatial: int = 1,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """ONNX BatchNormalization-7 and -9: training if more outputs than Y are wanted."""
    function = _batch_norm if spatial else _activation_norm
    return function(
        x, scale, bias, mean, var,
        training=n_outputs > 1, momentum=momentum, epsilon=epsilon, n_outputs=n_outputs,
    )  # fmt: skip


@rules.rule("BatchNormalization", since=14)
def batch_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    input_mean: Tensor,
    input_var: Tensor,
    *,
    epsilon: float = EPSILON,
    momentum: float = MOMENTUM,
    training_mode: int = 0,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """ONNX BatchNormalization: (N, C, D1..Dn) and four (C) -> Y[, running mean (C), running var (C)].

    ``running = input * momentum + batch * (1 - momentum)`` with the population variance of the batch.

    Raises:
        UserError: running statistics are wanted in inference mode, which ONNX forbids.
    """
    if n_outputs > 1 and not training_mode:
        raise UserError("BatchNormalization: running_mean and running_var exist only with training_mode=1")
    return _batch_norm(
        x, scale, bias, input_mean, input_var,
        training=bool(training_mode), momentum=momentum, epsilon=epsilon, n_outputs=n_outputs,
    )  # fmt: skip


@rules.rule("InstanceNormalization", since=1)
def instance_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor,
    *,
    epsilon: float = EPSILON,
) -> Tensor:
    """ONNX InstanceNormalization: (N, C, D1..Dn), (C), (C) -> the shape of X, each plane on its own."""
    if not x.numel():
        broadcast = (1, -1, *(1,) * (x.ndim - 2))
        return x * scale.reshape(broadcast) + bias.reshape(broadcast)
    # F.instance_norm refuses planes of one element, whose variance of 0 ONNX does define.
    # With 16-bit parameters it would round the means before it subtracts them.
    half = x.dtype in (torch.float16, torch.bfloat16)
    wide = (t.float() if half else t for t in (x, scale, bias))
    y = torch.instance_norm(*wide, None, None, True, 0.0, epsilon, torch.backends.cudnn.enabled)
    return y.to(x.dtype)


@rules.rule("LayerNormalization", since=17)
def layer_normalization(
    x: Tensor,
    scale: Tensor,
    bias: Tensor | None = None,
    *,
    axis: int = -1,
    epsilon: float = EPSILON,
    stash_type: int = 1,
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, ...]:
    """ONNX LayerNormalization over all axes from ``axis`` on -> Y[, Mean, InvStdDev].

    ``stash_type`` 1 asks for float32 in the first stage: narrower inputs are widened to it, float64 ones stay
    float64 (ONNX would round them). Mean and InvStdDev come in float32.

    Raises:
        UserError: ``stash_type`` other than 1, or an axis out of range.
    """
    if stash_type != 1:
        raise UserError(f"LayerNormalization: stash_type {stash_type} is not supported, only 1 (float32)")
    if not -x.ndim <= axis < x.ndim:
        raise UserError(f"LayerNormalization: axis {axis} is outside of the {x.ndim} axes of the input")
    shape = x.shape[axis % x.ndim :]
    plain = scale.shape == shape and (bias is None or bias.shape == shape)
    single = x.dtype in (torch.float32, torch.float64)
    if n_outputs == 1 and plain and single:
        return F.layer_norm(x, shape, scale, bias, epsilon)
    stage = x if single else x.to(torch.float32)
    dims = tuple(range(axis % x.ndim, x.ndim))
    spread, centre = torch.var_mean(stage, dims, correction=0, keepdim=True)
    inverse = torch.rsqrt(spread + epsilon)
    y = ((stage - centre) * inverse).to(x.dtype) * scale
    if bias is not None:
        y = y + bias
    return y if n_outputs == 1 else (y, centre.to(torch.float32), inverse.to(torch.float32))


@rules.rule("LRN", since=1)
def lrn(x: Tensor, *, size: int, alpha: float = ALPHA, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    """ONNX LRN: ``x / (bias + alpha / size * sum of squares of size channels around)**beta``."""
    if not x.numel():
        return x.clone()
    wide = x if x.dtype is torch.float64 else x.to(torch.float32)
    squares = F.pad(wide.square().reshape(x.shape[0], 1, x.shape[1], -1), (0, 0, (size - 1) // 2, size // 2))
    mean = F.avg_pool2d(squares, (size, 1), 1).reshape(x.shape)
    return (wide / (mean * alpha + bias) ** beta).to(x.dtype)


def _dropped(
    x: Tensor, ratio: float, rng: torch.Generator | None, n_outputs: int
) -> Tensor | tuple[Tensor, Tensor]:
    """Elements dropped with probability ``ratio``, the others scaled by ``1 / (1 - ratio)``; bool mask."""
    if not 0 <= ratio < 1:
        raise UserError(f"Dropout: ratio is {ratio}; it must be at least 0 and below 1")
    if torch.compiler.is_compiling():
        # Compiled graphs take no generator: there the device's default one draws.
        if n_outputs == 1:
            return F.dropout(x, ratio, True)
        mask = torch.rand_like(x) >= ratio
        return x * (mask * (1 / (1 - ratio))).to(x.dtype), mask
    scale = torch.empty_like(x, requires_grad=False).bernoulli_(1 - ratio, generator=rng)
    scale.mul_(1 / (1 - ratio))
    y = x * scale
    return y if n_outputs == 1 else (y, scale.to(torch.bool))


def _dropped_as_onnx(
    x: Tensor, ratio: float, rng: torch.Generator | None, n_outputs: int, seed: int
) -> Tensor | tuple[Tensor, Tensor]:
    """As ``_dropped``, with a mask from the host that the numpy backend draws too."""
    if not 0 <= ratio < 1:
        raise UserError(f"Dropout: ratio is {ratio}; it must be at least 0 and below 1")
    if not x.is_floating_point():
        raise UserError(f"Dropout: data has type {str(x.dtype)[6:]}, expected a float type")
    mask = _mask_as_onnx(tuple(x.shape), ratio, rng, seed).to(x.device)
    scale = torch.full((), 1 / (1 - ratio), dtype=x.dtype, device=x.device)
    y = torch.where(mask, x * scale, torch.zeros_like(scale))
    return y if n_outputs == 1 else (y, mask)


@outside_of_graphs
def _mask_as_onnx(shape: Ints, ratio: float, rng: torch.Generator | None, seed: int) -> Tensor:
    """What is kept; drawn on the host, outside of compiled graphs."""
    stream = np.random.RandomState(int(seed) % 2**32) if rng is None else seeded_legacy(rng, seed)
    return torch.from_numpy(np.asarray(stream.uniform(0.0, 1.0, shape) >= ratio))


@rules.rule("Dropout", since=1)
def dropout_1(
    x: Tensor,
    *,
    is_test: int = 0,
    ratio: float = 0.5,
    n_outputs: int = 1,
    rng: torch.Generator | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """ONNX Dropout-1 and -6: drops unless ``is_test`` is set. The mask has the dtype of the input.

    Raises:
        UserError: the mask is wanted in test mode, where it is not filled; a ratio outside [0, 1).
    """
    if is_test:
        if n_outputs > 1:
            raise UserError("Dropout: before version 7 there is no mask with is_test=1")
        return x
    dropped = _dropped(x, ratio, rng, n_outputs)
    return dropped if isinstance(dropped, Tensor) else (dropped[0], dropped[1].to(x.dtype))


@rules.rule("Dropout", since=7)
def dropout_7(
    x: Tensor, *, ratio: float = 0.5, n_outputs: int = 1, since_version: int = 10
) -> Tensor | tuple[Tensor, Tensor]:
    """ONNX Dropout-7 and -10: inference only, all elements pass. The mask is bool from version 10 on."""
    mask_type = x.dtype if since_version < 10 else torch.bool
    return x if n_outputs == 1 else (x, torch.ones_like(x, dtype=mask_type, requires_grad=False))


@rules.rule("Dropout", since=12, host=("ratio", "training_mode"))
def dropout(
    x: Tensor,
    ratio: float | None = None,
    training_mode: bool | None = None,
    *,
    seed: int | None = None,
    n_outputs: int = 1,
    rng: torch.Generator | None = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """ONNX Dropout: in training mode drops with probability ``ratio`` (0.5 where absent).

    With ``seed`` the masks are those of ONNX's own cases and of the numpy backend: uniform numbers of
    ``np.random.RandomState(seed)``, drawn on the host. The stream goes on from call to call with one ``rng``,
    and nodes with the same seed share it; without ``rng`` every call draws the same mask.

    Raises:
        UserError: a ratio outside [0, 1).
    """
    if training_mode is None or not single("Dropout", "training_mode", training_mode):
        return x if n_outputs == 1 else (x, torch.ones_like(x, dtype=torch.bool, requires_grad=False))
    ratio = 0.5 if ratio is None else single("Dropout", "ratio", ratio)
    if seed is None:
        return _dropped(x, ratio, rng, n_outputs)
    return _dropped_as_onnx(x, ratio, rng, n_outputs, seed)
