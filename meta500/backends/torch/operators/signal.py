"""Discrete Fourier transforms, window functions and the mel filter bank.

Complex numbers have a last axis of (real, imaginary).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from meta500.backends.numpy.operators.signal import check_dft, check_stft
from meta500.backends.numpy.operators.signal_windows import BLACKMAN, HAMMING, HANN, check_window, mel_weights
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.creation import TORCH_TYPE
from meta500.backends.torch.operators.literals import Scalar, single
from meta500.backends.torch.tensors import from_numpy, to_host_value
from meta500.errors import UserError

_HALF = (torch.float16, torch.bfloat16)


def _complex(x: Tensor) -> Tensor:
    """Complex numbers from pairs, or from reals, in the last axis."""
    return x[..., 0] if x.shape[-1] == 1 else torch.complex(x[..., 0], x[..., 1])


def _dft(x: Tensor, length: Scalar | None, axis: int, inverse: int, onesided: int) -> Tensor:
    given = None if length is None else int(single("DFT", "dft_length", length))
    place, size = check_dft(tuple(x.shape), axis, given, inverse, onesided)
    z = _complex(x.float() if x.dtype in _HALF else x)
    if onesided and inverse:
        return torch.fft.irfft(z, size, dim=place).unsqueeze(-1).to(x.dtype)
    if onesided:
        found = torch.fft.rfft(z, size, dim=place)
    else:
        found = (torch.fft.ifft if inverse else torch.fft.fft)(z, size, dim=place)
    return torch.view_as_real(found.resolve_conj()).to(x.dtype)


@rules.rule("DFT", since=20, host=("length", "axis"))
def dft(
    x: Tensor,
    length: Scalar | None = None,
    axis: Scalar | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Tensor:
    """ONNX DFT along ``axis`` (the last signal axis without), of ``length`` elements, cut or padded by zeros.

    Raises:
        UserError: an axis, length or kind of input that the transform does not have.
    """
    place = -2 if axis is None else int(single("DFT", "axis", axis))
    return _dft(x, length, place, inverse, onesided)


@rules.rule("DFT", since=17, host=("length",))
def dft_17(
    x: Tensor, length: Scalar | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    """ONNX DFT-17, whose axis is an attribute, 1 unless given."""
    return _dft(x, length, axis, inverse, onesided)


def _inverse_on_host(op: Any, types: Mapping[str, Any]) -> str:
    """Complex inverse transforms in less than float64 run on numpy.

    Bins whose exact value is zero hold nothing but rounding errors, and ONNX's cases expect numpy's.
    """
    kind = types.get(op.operands[0])
    if not op.inverse or op.onesided or (kind is not None and kind.dtype == np.float64):
        return ""
    return "the complex inverse DFT has numpy's rounding"


dft.host_when = dft_17.host_when = _inverse_on_host


@rules.rule("STFT", since=17, host=("step", "length"))
def stft(
    signal: Tensor,
    step: Scalar,
    window: Tensor | None = None,
    length: Scalar | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    """ONNX STFT: DFTs of the windowed frames of ``signal`` (batch, length, 1 or 2): (batch, frames, bins, 2).

    Raises:
        UserError: a signal, window or lengths that do not fit together, or ``onesided`` of a complex signal.
    """
    stride = int(single("STFT", "frame_step", step))
    size = check_stft(
        tuple(signal.shape),
        stride,
        None if window is None else tuple(window.shape),
        None if length is None else int(single("STFT", "frame_length", length)),
        onesided,
    )
    frames = (signal.float() if signal.dtype in _HALF else signal).unfold(1, size, stride).movedim(2, 3)
    if window is not None:
        frames = frames * window.to(frames.dtype)[:, None]
    found = (torch.fft.rfft if onesided else torch.fft.fft)(_complex(frames), dim=2)
    return torch.view_as_real(found.resolve_conj()).to(signal.dtype)


def _output_type(operator: str, number: int) -> torch.dtype:
    if number not in TORCH_TYPE:
        known = ", ".join(f"{n} ({str(dtype)[6:]})" for n, dtype in TORCH_TYPE.items())
        raise UserError(f"{operator}: the torch backend has no element type number {number}; it has {known}")
    return TORCH_TYPE[number]


def _integer(operator: str, name: str, value: Tensor) -> int:
    """The value of a tensor of one element; tensors, unlike host inputs, tell the device."""
    return int(single(operator, name, to_host_value(value)))


def _window(
    operator: str, size: Tensor, periodic: int, output_datatype: int, terms: tuple[float, float, float]
) -> Tensor:
    dtype = _output_type(operator, output_datatype)
    count = _integer(operator, "size", size)
    period = check_window(operator, count, periodic)
    steps = torch.arange(count, device=size.device, dtype=torch.float64)
    angle = steps * (2 * math.pi / max(period, 1))
    a0, a1, a2 = terms
    window = a0 - a1 * torch.cos(angle) + a2 * torch.cos(2 * angle)
    # An integer type cuts off the fraction, and a rounding error must not take a whole one with it.
    return (window if dtype.is_floating_point else window.round(decimals=12)).to(dtype)


@rules.rule("BlackmanWindow", since=17)
def blackman_window(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    """ONNX BlackmanWindow, computed in float64.

    Raises:
        UserError: a size that no window has, or an element type that torch lacks.
    """
    return _window("BlackmanWindow", size, periodic, output_datatype, BLACKMAN)


@rules.rule("HammingWindow", since=17)
def hamming_window(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    """ONNX HammingWindow, computed in float64.

    Raises:
        UserError: a size that no window has, or an element type that torch lacks.
    """
    return _window("HammingWindow", size, periodic, output_datatype, HAMMING)


@rules.rule("HannWindow", since=17)
def hann_window(size: Tensor, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
    """ONNX HannWindow, computed in float64.

    Raises:
        UserError: a size that no window has, or an element type that torch lacks.
    """
    return _window("HannWindow", size, periodic, output_datatype, HANN)


@rules.rule("MelWeightMatrix", since=17)
def mel_weight_matrix(
    bands: Tensor, length: Tensor, rate: Tensor, low: Tensor, high: Tensor, *, output_datatype: int = 1
) -> Tensor:
    """ONNX MelWeightMatrix (length // 2 + 1, bands), computed in float64 on the host.

    Its inputs are numbers, not data: a gradient that should flow to the edges is refused.

    Raises:
        UserError: numbers that fit no filter bank, or an element type that torch lacks.
    """
    operator = "MelWeightMatrix"
    dtype = _output_type(operator, output_datatype)
    edges = [float(single(operator, "an edge", to_host_value(value))) for value in (low, high)]
    sizes = [
        _integer(operator, name, value)
        for name, value in (("num_mel_bins", bands), ("dft_length", length), ("sample_rate", rate))
    ]
    weights = mel_weights(sizes[0], sizes[1], sizes[2], edges[0], edges[1])
    return from_numpy(weights, bands.device).to(dtype)
