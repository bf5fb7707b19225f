"""Discrete Fourier transforms; complex numbers have a last axis of (real, imaginary)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.numpy.operators.generation import host_integer
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


def _complex(x: np.ndarray) -> np.ndarray:
    """Complex numbers from pairs, or from reals, in the last axis."""
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _pairs(z: np.ndarray) -> np.ndarray:
    return np.stack((z.real, z.imag), axis=-1)


def _resized(x: np.ndarray, size: int, axis: int) -> np.ndarray:
    """The first ``size`` elements along ``axis``, with zeros behind if there are fewer."""
    shape = [*x.shape[:axis], size, *x.shape[axis + 1 :]]
    result = np.zeros(shape, x.dtype)
    places = (slice(None),) * axis + (slice(0, min(size, x.shape[axis])),)
    result[places] = x[places]
    return result


def check_dft(
    shape: tuple[int, ...], axis: int, length: int | None, inverse: int, onesided: int
) -> tuple[int, int]:
    """The axis counted from the front and the length of a DFT of an input of ``shape``.

    Raises:
        UserError: an axis that is no signal axis, a length below 1, or a one-sided transform of the wrong
            kind of input (complex forward, real inverse).
    """
    rank = len(shape)
    if rank < 2 or shape[-1] not in (1, 2):
        raise UserError(f"DFT: the input has shape {shape}, its last axis should be 1 (real) or 2 (complex)")
    place = axis + rank if axis < 0 else axis
    if not 0 <= place <= rank - 2:
        raise UserError(
            f"DFT: axis {axis} is outside [{-rank}, -2] and [0, {rank - 2}] for an input of rank {rank}"
        )
    if onesided and shape[-1] != (2 if inverse else 1):
        kind = "complex input (last axis 2)" if inverse else "real input (last axis 1)"
        raise UserError(f"DFT: onesided with inverse={inverse} needs {kind}, the shape is {shape}")
    size = shape[place]
    if length is None:
        length = 2 * (size - 1) if onesided and inverse else size
    if length < 1:
        raise UserError(f"DFT: the length is {length}, it should be at least 1")
    return place, length


def _dft(
    x: np.ndarray, length: Any, axis: int, inverse: int, onesided: int, saved: dict[str, Any]
) -> np.ndarray:
    given = None if length is None else host_integer(length, "DFT", "dft_length")
    place, size = check_dft(x.shape, axis, given, inverse, onesided)
    saved.update(axis=place, length=size)
    z = _complex(x)
    if onesided and inverse:
        return np.asarray(np.fft.irfft(z, size, axis=place)[..., None], x.dtype)
    if onesided:
        return np.asarray(_pairs(np.fft.rfft(z, size, axis=place)), x.dtype)
    return np.asarray(_pairs((np.fft.ifft if inverse else np.fft.fft)(z, size, axis=place)), x.dtype)


@rules.rule("DFT", 20, host=("length", "axis"))
@numeric
def dft(
    x: np.ndarray,
    length: Any = None,
    axis: Any = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """The DFT along ``axis`` (the last signal axis without), of ``length`` elements cut or padded by zeros.

    ``onesided`` forward gives the ``length // 2 + 1`` first bins of a real signal, backward a real signal
    from these. The inverse is divided by the length. Computed in the type of x, 16-bit floats in float32.

    Raises:
        UserError: see ``check_dft``.
    """
    place = -2 if axis is None else host_integer(axis, "DFT", "axis")
    return _dft(x, length, place, inverse, onesided, saved)


@rules.rule("DFT", 17, host=("length",))
@numeric
def dft_attribute(
    x: np.ndarray,
    length: Any = None,
    *,
    axis: int = 1,
    inverse: int = 0,
    onesided: int = 0,
    saved: dict[str, Any],
) -> np.ndarray:
    """Before version 20 the axis is an attribute, 1 unless given."""
    return _dft(x, length, axis, inverse, onesided, saved)


def _dft_adjoint(d: np.ndarray, axis: int, length: int, inverse: int, onesided: int) -> np.ndarray:
    """The complex gradient of a signal of ``length`` (or of its bins) from the cotangent of its transform."""
    if onesided and inverse:
        # Bins other than the first and, for even lengths, the last one stand for two of the full spectrum.
        count = length // 2 + 1
        weight = np.full(count, 2.0 / length)
        weight[0] = 1.0 / length
        if length % 2 == 0:
            weight[-1] = 1.0 / length
        bins = np.fft.rfft(d[..., 0], axis=axis)
        return np.asarray(bins * weight.reshape((-1,) + (1,) * (bins.ndim - 1 - axis)))
    if inverse:
        return np.asarray(np.fft.fft(_complex(d), axis=axis) / length)
    return np.asarray(np.fft.ifft(_resized(_complex(d), length, axis), axis=axis) * length)


def _as_input(z: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (z.real[..., None] if x.shape[-1] == 1 else _pairs(z)).astype(x.dtype)


@dft.vjp
@dft_attribute.vjp
@numeric_vjp
def dft_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The adjoint transform, cut or padded to the input."""
    x, axis, given = call.inputs[0], call.saved["axis"], call.attributes
    z = _dft_adjoint(d, axis, call.saved["length"], given.get("inverse", 0), given.get("onesided", 0))
    d_x = _as_input(_resized(z, x.shape[axis], axis), x)
    return (d_x, *(None,) * (len(call.inputs) - 1))


def check_stft(
    shape: tuple[int, ...], step: int, window: tuple[int, ...] | None, length: int | None, onesided: int
) -> int:
    """The frame length of an STFT.

    Raises:
        UserError: a signal, window or lengths that do not fit together, or ``onesided`` of a complex signal.
    """
    if len(shape) != 3 or shape[-1] not in (1, 2):
        raise UserError(f"STFT: the signal has shape {shape}, it should be (batch, length, 1 or 2)")
    if onesided and shape[-1] == 2:
        raise UserError("STFT: a complex signal (last axis 2) has no one-sided transform; set onesided=0")
    size = length if length is not None else window[0] if window else shape[1]
    if window is not None and window != (size,):
        raise UserError(f"STFT: the window has shape {window}, it should have one of the frame length {size}")
    if not 1 <= size <= shape[1] or step < 1:
        raise UserError(
            f"STFT: frame length {size} should be from 1 to the signal's length {shape[1]}, "
            f"frame step {step} at least 1"
        )
    return size


@rules.rule("STFT", 17, host=("step", "length"))
@numeric
def stft(
    signal: np.ndarray,
    step: Any,
    window: np.ndarray | None = None,
    length: Any = None,
    *,
    onesided: int = 1,
    saved: dict[str, Any],
) -> np.ndarray:
    """DFTs of the windowed frames of ``signal`` (batch, length, 1 or 2): (batch, frames, bins, 2).

    Raises:
        UserError: see ``check_stft``.
    """
    stride = host_integer(step, "STFT", "frame_step")
    size = check_stft(
        signal.shape,
        stride,
        None if window is None else window.shape,
        None if length is None else host_integer(length, "STFT", "frame_length"),
        onesided,
    )
    index = np.arange(0, signal.shape[1] - size + 1, stride)[:, None] + np.arange(size)
    saved["index"] = index
    frames = _complex(signal)[:, index]
    if window is not None:
        frames = frames * window
    transform = np.fft.rfft if onesided else np.fft.fft
    return np.asarray(_pairs(transform(frames, axis=2)), signal.dtype)


@stft.vjp
@numeric_vjp
def stft_vjp(call: Call, d: np.ndarray) -> Gradients:
    """Overlapping frames add up; the window's gradient is summed over all frames."""
    signal, index = call.inputs[0], call.saved["index"]
    window = call.inputs[2] if len(call.inputs) > 2 else None
    onesided = call.attributes.get("onesided", 1)
    frames = _dft_adjoint(d, 2, index.shape[1], 0, onesided)
    z = np.zeros(signal.shape[:2], frames.dtype)
    np.add.at(z.T, index, np.moveaxis(frames if window is None else frames * window, 0, -1))
    d_window = None
    if window is not None:
        # The window is real: the real part of the product with the conjugate signal.
        d_window = (np.conj(_complex(signal)[:, index]) * frames).real.sum(axis=(0, 1))
    return (_as_input(z, signal), None, d_window, None)[: len(call.inputs)]
