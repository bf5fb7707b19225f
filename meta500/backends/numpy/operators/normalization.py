"""Softmax and the normalisations over batch, instance, layer and channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import (
    broadcasts_to,
    normal_axis,
    numeric,
    numeric_vjp,
    unbroadcast,
)
from meta500.backends.numpy.operators.loss import log_softmax
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


def _softmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    exponent = np.exp(x - x.max(axis=axes, keepdims=True))
    return exponent / exponent.sum(axis=axes, keepdims=True)


def _stepwise_softmax(x: np.ndarray, axes: tuple[int, ...], kind: np.dtype) -> np.ndarray:
    """Softmax of float32 numbers, each step rounded to ``kind`` as in the function body that defines it."""

    def rounded(a: np.ndarray) -> np.ndarray:
        return a.astype(kind).astype(np.float32)

    exponent = rounded(np.exp(rounded(x - x.max(axis=axes, keepdims=True))))
    return exponent / rounded(exponent.sum(axis=axes, keepdims=True))


def _softmax_gradient(d: np.ndarray, y: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return y * (d - (d * y).sum(axis=axes, keepdims=True))


def _log_softmax_gradient(d: np.ndarray, y: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    return d - np.exp(y) * d.sum(axis=axes, keepdims=True)


def _hardmax(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    """1 at the first maximum over ``axes`` (which are the last ones, or a single one), else 0."""
    if not axes:
        return np.ones_like(x)
    rows = x.reshape(*x.shape[: axes[0]], -1) if len(axes) > 1 else np.moveaxis(x, axes[0], -1)
    places = rows.argmax(axis=-1)
    hot = (np.arange(rows.shape[-1]) == places[..., None]).astype(x.dtype)
    return hot.reshape(x.shape) if len(axes) > 1 else np.moveaxis(hot, -1, axes[0])


def _register_softmax(operator: str, function: Any, gradient: Any, stepwise: Any = None) -> None:
    def run(x: np.ndarray, axes: tuple[int, ...], saved: dict[str, Any]) -> np.ndarray:
        saved["axes"] = axes
        return function(x, axes) if x.size else x

    def one_axis(x: np.ndarray, *, axis: int = -1, saved: dict[str, Any]) -> np.ndarray:
        return run(x, (normal_axis(axis, x.ndim, operator),), saved)

    def narrow(x: np.ndarray, *, axis: int = -1, saved: dict[str, Any]) -> np.ndarray:
        if x.dtype.name not in ("float16", "bfloat16") or not x.size:
            return numeric(one_axis)(x, axis=axis, saved=saved)
        saved["axes"] = (normal_axis(axis, x.ndim, operator),)
        with np.errstate(all="ignore"):
            return np.asarray(stepwise(x.astype(np.float32), saved["axes"], x.dtype).astype(x.dtype))

    def coerced(x: np.ndarray, *, axis: int = 1, saved: dict[str, Any]) -> np.ndarray:
        first = normal_axis(axis, x.ndim, operator, limit=x.ndim)
        return run(x, tuple(range(first, x.ndim)), saved)

    def backward(call: Call, d: np.ndarray) -> Gradients:
        return (gradient(d, call.outputs[0], call.saved["axes"]),)

    one_axis.__name__ = operator.lower()
    one_axis.__doc__ = f"ONNX {operator} along one axis."
    coerced.__name__ = f"{operator.lower()}_coerced"
    coerced.__doc__ = f"{operator} before version 13: over all axes from ``axis`` on, taken as one."
    narrow.__name__, narrow.__doc__ = one_axis.__name__, one_axis.__doc__
    newest = narrow if stepwise else numeric(one_axis)
    for since, forward in ((13, newest), (1, numeric(coerced))):
        rules.rule(operator, since)(forward).vjp(numeric_vjp(backward))


_register_softmax("Softmax", _softmax, _softmax_gradient, _stepwise_softmax)
_register_softmax("LogSoftmax", log_softmax, _log_softmax_gradient)
_register_softmax("Hardmax", _hardmax, lambda d, y, axes: np.zeros_like(y))


def _standardized_gradient(
    d: np.ndarray, normal: np.ndarray, inverse: np.ndarray, axes: tuple[int, ...]
) -> np.ndarray:
    """Gradient of x for ``normal = (x - mean(x)) * inverse`` with ``inverse = 1 / sqrt(var(x) + eps)``."""
    mean = d.mean(axis=axes, keepdims=True)
    slope = (d * normal).mean(axis=axes, keepdims=True)
    return inverse * (d - mean - normal * slope)


# Batch normalisation (arXiv:1502.03167).


def _batch_norm(
    arrays: tuple[np.ndarray, ...],
    training: bool,
    epsilon: float,
    momentum: float,
    spatial: bool,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Y, new running mean and variance, batch mean and variance (inference: as the inputs are).

    Statistics are taken over all axes but 1, or over axis 0 only without ``spatial``; the variance is that of
    the population. float16 and bfloat16 are computed in float32; every result has the type of its input.
    """
    x, scale, shift, old_mean, old_var = arrays
    features = x.shape[1:2] if spatial else x.shape[1:]
    if x.ndim == 1:
        features = (1,)
    for name, array in (("scale", scale), ("B", shift), ("mean", old_mean), ("var", old_var)):
        if array.shape != features:
            raise UserError(
                f"BatchNormalization: {name} has shape {array.shape}, expected {features} for X {x.shape}"
            )
    shape = (1, *features, *(1,) * (x.ndim - 1 - len(features))) if x.ndim > 1 else (1,)
    axes = (0, *range(1 + len(features), x.ndim))
    dtype: Any = np.float64 if x.dtype == np.float64 else np.float32
    wide = x.astype(dtype, copy=False)
    gain, offset, mean, var = (
        array.astype(dtype, copy=False).reshape(shape) for array in (scale, shift, old_mean, old_var)
    )
    if training and not x.size:
        raise UserError(f"BatchNormalization: a batch of shape {x.shape} has no mean and variance")
    with np.errstate(all="ignore"):
        if training:
            mean = wide.mean(axis=axes, keepdims=True)
            var = np.square(wide - mean).mean(axis=axes, keepdims=True)
        inverse = 1 / np.sqrt(var + epsilon)
        normal = (wide - mean) * inverse
        y = normal * gain + offset
    saved.update(normal=normal, inverse=inverse, gain=gain, axes=axes, training=training, momentum=momentum)
    if not training:
        return (y.astype(x.dtype, copy=False), old_mean, old_var, old_mean, old_var)
    batch = [value.reshape(features).astype(old.dtype) for value, old in ((mean, old_mean), (var, old_var))]
    running = [
        # float64 where the running statistics are, even if X is narrower.
        (
            old.astype(np.float64 if old.dtype == np.float64 else dtype, copy=False) * momentum
            + value.reshape(features) * (1 - momentum)
        ).astype(old.dtype, copy=False)
        for value, old in ((mean, old_mean), (var, old_var))
    ]
    return (y.astype(x.dtype, copy=False), *running, *batch)


@rules.rule("BatchNormalization", 14)
def batch_normalization(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    input_mean: np.ndarray,
    input_var: np.ndarray,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
    n_outputs: int = 1,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """ONNX BatchNormalization: x (N, C, ...), the others (C); returns Y, running mean, running variance.

    ``running = old * momentum + batch * (1 - momentum)``.

    Raises:
        UserError: shapes do not fit, or running statistics are wanted without training_mode.
    """
    if n_outputs > 1 and not training_mode:
        raise UserError(
            f"BatchNormalization: {n_outputs} outputs are wanted but training_mode is 0; "
            f"running statistics exist only in training"
        )
    arrays = (x, scale, shift, input_mean, input_var)
    return _batch_norm(arrays, bool(training_mode), epsilon, momentum, True, saved)[
        : 3 if training_mode else 1
    ]


@rules.rule("BatchNormalization", 7)
def batch_normalization_by_outputs(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    n_outputs: int = 1,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Versions 7 and 9: inference with one output, training with more.

    The outputs of training are Y, running mean and variance, batch mean and variance.
    """
    arrays = (x, scale, shift, mean, var)
    training = n_outputs > 1
    results = _batch_norm(arrays, training, epsilon, momentum, bool(spatial), saved)
    return results if training else results[:1]


@rules.rule("BatchNormalization", 1)
def batch_normalization_is_test(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    mean: np.ndarray,
    var: np.ndarray,
    *,
    consumed_inputs: tuple[int, ...] | None = None,
    epsilon: float = 1e-5,
    is_test: int = 0,
    momentum: float = 0.9,
    spatial: int = 1,
    n_outputs: int = 1,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """Versions 1 and 6: the mode is ``is_test``, and must agree with the number of outputs.

    Raises:
        UserError: training mode with Y alone or test mode with more (the definition contradicts itself).
    """
    if (n_outputs > 1) == bool(is_test):
        raise UserError(
            f"BatchNormalization: is_test={is_test} with {n_outputs} output(s) is undefined before version "
            f"7; test mode has the output Y only, training mode all five"
        )
    return batch_normalization_by_outputs(
        x, scale, shift, mean, var, epsilon=epsilon, momentum=momentum, spatial=spatial,
        n_outputs=n_outputs, saved=saved,
    )  # fmt: skip


@batch_normalization.vjp
@batch_normalization_by_outputs.vjp
@batch_normalization_is_test.vjp
def batch_normalization_vjp(call: Call, *cotangents: np.ndarray | None) -> Gradients:
    """Gradients of all five inputs; the statistics depend on x in training only."""
    saved, x = call.saved, call.inputs[0]
    normal, inverse, gain, axes = (saved[k] for k in ("normal", "inverse", "gain", "axes"))
    training, momentum, count = saved["training"], saved["momentum"], 1
    for axis in axes:
        count *= x.shape[axis]
    wide = [
        None if d is None else d.astype(normal.dtype, copy=False)
        for d in (*cotangents, *(None,) * (5 - len(cotangents)))
    ]
    d_y = np.zeros_like(normal) if wide[0] is None else wide[0]
    with np.errstate(all="ignore"):
        d_shift = d_y.sum(axis=axes)
        d_scale = (d_y * normal).sum(axis=axes)
        d_normal = d_y * gain
        d_mean = d_var = None
        if training:
            d_x = _standardized_gradient(d_normal, normal, inverse, axes) if call.needs[0] else None
            blends = [(wide[i], 1 - momentum) for i in (1, 2)] + [(wide[i], 1.0) for i in (3, 4)]
            if d_x is not None:
                for i, (d, factor) in enumerate(blends):
                    if d is not None:
                        share = d.reshape(gain.shape) * (factor / count)
                        d_x = d_x + (share if i % 2 == 0 else share * 2 * normal / inverse)
            d_mean, d_var = (np.zeros_like(d_shift) if d is None else d * momentum for d in wide[1:3])
        else:
            d_x = d_normal * inverse
            if call.needs[3]:
                d_mean = -(d_normal * inverse).sum(axis=axes)
            if call.needs[4]:
                d_var = -0.5 * (d_normal * normal * inverse * inverse).sum(axis=axes)
    return tuple(
        None if d is None or not need else d.reshape(array.shape).astype(array.dtype, copy=False)
        for d, need, array in zip(
            (d_x, d_scale, d_shift, d_mean, d_var), call.needs, call.inputs, strict=True
        )
    )


@rules.rule("InstanceNormalization")
@numeric
def instance_normalization(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray,
    *,
    consumed_inputs: tuple[int, ...] | None = None,
    epsilon: float = 1e-5,
    saved: dict[str, Any],
) -> np.ndarray:
    """Every channel of every image on its own (arXiv:1607.08022): x (N, C, ...), scale and shift (C).

    Raises:
        UserError: shapes do not fit.
    """
    if x.ndim < 3 or scale.shape != x.shape[1:2] or shift.shape != x.shape[1:2]:
        raise UserError(
            f"InstanceNormalization: scale {scale.shape} and B {shift.shape} must have one entry per "
            f"channel of an input (N, C, D1, ...), got {x.shape}"
        )
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + epsilon)
    normal = centred * inverse
    gain = scale.reshape(-1, *(1,) * len(axes))
    saved.update(normal=normal, inverse=inverse, gain=gain, axes=axes)
    return normal * gain + shift.reshape(gain.shape)


@instance_normalization.vjp
@numeric_vjp
def instance_normalization_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Gradients of x, scale and shift."""
    normal, inverse, gain, axes = (call.saved[k] for k in ("normal", "inverse", "gain", "axes"))
    rest = (0, *axes)
    d_x = _standardized_gradient(d * gain, normal, inverse, axes) if call.needs[0] else None
    return d_x, (d * normal).sum(axis=rest), d.sum(axis=rest)


@rules.rule("LayerNormalization", 17)
def layer_normalization(
    x: np.ndarray,
    scale: np.ndarray,
    shift: np.ndarray | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    saved: dict[str, Any],
) -> tuple[np.ndarray, ...]:
    """ONNX LayerNormalization over the axes from ``axis`` on; scale and shift broadcast to x.

    Returns Y, Mean and InvStdDev (the latter two float32, one value per normalised slice). float64 inputs are
    computed in float64, more than ``stash_type`` 1 (float32) asks for, and only Mean and InvStdDev rounded.

    Raises:
        UserError: a ``stash_type`` other than 1, or shapes that do not broadcast to x.
    """
    if stash_type != 1:
        raise UserError(f"LayerNormalization: stash_type {stash_type} is not supported, only 1 (float32)")
    for name, array in (("Scale", scale), ("B", shift)):
        if array is not None and not broadcasts_to(array.shape, x.shape):
            raise UserError(
                f"LayerNormalization: {name} of shape {array.shape} does not broadcast to X {x.shape}"
            )
    first = normal_axis(axis, x.ndim, "LayerNormalization")
    axes = tuple(range(first, x.ndim))
    dtype = np.float64 if x.dtype == np.float64 else np.float32
    wide = x.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        mean = wide.mean(axis=axes, keepdims=True)
        centred = wide - mean
        inverse = 1 / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + epsilon)
        normal = centred * inverse
        # The second stage is defined in the type of x.
        y = normal.astype(x.dtype, copy=False) * scale
        if shift is not None:
            y = y + shift
    saved.update(normal=normal, inverse=inverse, axes=axes)
    stash = np.float32
    return y, mean.astype(stash, copy=False), inverse.astype(stash, copy=False)


@layer_normalization.vjp
def layer_normalization_vjp(
    call: Call,
    d_y: np.ndarray | None,
    d_mean: np.ndarray | None = None,
    d_inverse: np.ndarray | None = None,
) -> Gradients:
    """Gradients of x, scale and shift; Mean and InvStdDev may have cotangents of their own."""
    x, scale = call.inputs[:2]
    normal, inverse, axes = (call.saved[k] for k in ("normal", "inverse", "axes"))
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    d = np.zeros_like(normal) if d_y is None else d_y.astype(normal.dtype, copy=False)
    with np.errstate(all="ignore"):
        d_x = _standardized_gradient(d * scale.astype(d.dtype, copy=False), normal, inverse, axes)
        if d_mean is not None:
            d_x = d_x + d_mean.astype(d.dtype) / count
        if d_inverse is not None:
            d_x = d_x - d_inverse.astype(d.dtype) * normal * inverse**2 / count
        parts: list[np.ndarray | None] = [d_x, unbroadcast(d * normal, scale.shape)]
    if len(call.inputs) > 2:
        shift = call.inputs[2]
        parts.append(None if shift is None else unbroadcast(d, shift.shape))
    return tuple(
        None if part is None else part.astype(array.dtype, copy=False)
        for part, array in zip(parts, call.inputs, strict=True)
    )


def _channel_sums(values: np.ndarray, before: int, after: int) -> np.ndarray:
    """Sums over the channels (axis 1) from ``before`` below to ``after`` above each one."""
    total = np.zeros_like(values)
    for shift in range(-before, after + 1):
        if abs(shift) >= values.shape[1]:
            continue
        if shift >= 0:
            total[:, : values.shape[1] - shift] += values[:, shift:]
        else:
            total[:, -shift:] += values[:, :shift]
    return total


@rules.rule("LRN")
@numeric
def lrn(
    x: np.ndarray,
    *,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    size: int,
    saved: dict[str, Any],
) -> np.ndarray:
    """Local response normalisation across channels: ``x / (bias + alpha / size * squares) ** beta``.

    ``squares`` sums over channels c - floor((size - 1) / 2) to c + ceil((size - 1) / 2). x is (N, C, ...).
    """
    before, after = (size - 1) // 2, size // 2
    base = bias + (alpha / size) * _channel_sums(x * x, before, after)
    saved.update(base=base, slope=2 * alpha * beta / size, beta=beta, reach=(after, before))
    return x / np.power(base, beta)


@lrn.vjp
@numeric_vjp
def lrn_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The direct part, and the part through the squares (the window of channels turned round)."""
    base, beta, x, y = call.saved["base"], call.saved["beta"], call.inputs[0], call.outputs[0]
    spread = _channel_sums(d * y / base, *call.saved["reach"])
    return (d / np.power(base, beta) - call.saved["slope"] * x * spread,)
