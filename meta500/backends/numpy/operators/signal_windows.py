"""Window functions and the mel filter bank."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import as_list, is_floating
from meta500.backends.numpy.operators.generation import host_integer
from meta500.errors import UserError
from meta500.graph.types import dtype_from_onnx

BLACKMAN = (0.42, 0.5, 0.08)
HAMMING = (25 / 46, 21 / 46, 0.0)
HANN = (0.5, 0.5, 0.0)


def check_window(operator: str, size: int, periodic: int) -> int:
    """The length of one period of a window of ``size`` samples.

    Raises:
        UserError: a negative size, or a symmetric window of one sample, which ONNX defines as 0 / 0.
    """
    if size < 0 or (size == 1 and not periodic):
        raise UserError(f"{operator}: no window has size {size} (a symmetric one needs 0, 2 or more)")
    return size if periodic else size - 1


def _window(
    operator: str, size: Any, periodic: int, output_datatype: int, terms: tuple[float, float, float]
) -> np.ndarray:
    dtype = dtype_from_onnx(output_datatype)
    if dtype is None or dtype.kind == "O":
        raise UserError(f"{operator}: output_datatype {output_datatype} is no type of numbers")
    count = host_integer(size, operator, "size")
    period = check_window(operator, count, periodic)
    angle = np.arange(count) * (2 * math.pi / max(period, 1))
    a0, a1, a2 = terms
    window = a0 - a1 * np.cos(angle) + a2 * np.cos(2 * angle)
    # An integer type cuts off the fraction, and a rounding error must not take a whole one with it.
    return (window if is_floating(dtype) else window.round(12)).astype(dtype)


@rules.rule("BlackmanWindow", 17, host=("size",))
def blackman_window(size: Any, *, output_datatype: int = 1, periodic: int = 1) -> np.ndarray:
    """``0.42 - 0.5 cos(t) + 0.08 cos(2t)`` over one period t; computed in float64.

    Raises:
        UserError: see ``check_window``; an output type that is none of numbers.
    """
    return _window("BlackmanWindow", size, periodic, output_datatype, BLACKMAN)


@rules.rule("HammingWindow", 17, host=("size",))
def hamming_window(size: Any, *, output_datatype: int = 1, periodic: int = 1) -> np.ndarray:
    """``25/46 - 21/46 cos(t)`` over one period t; computed in float64.

    Raises:
        UserError: see ``check_window``; an output type that is none of numbers.
    """
    return _window("HammingWindow", size, periodic, output_datatype, HAMMING)


@rules.rule("HannWindow", 17, host=("size",))
def hann_window(size: Any, *, output_datatype: int = 1, periodic: int = 1) -> np.ndarray:
    """``0.5 - 0.5 cos(t)`` over one period t; computed in float64.

    Raises:
        UserError: see ``check_window``; an output type that is none of numbers.
    """
    return _window("HannWindow", size, periodic, output_datatype, HANN)


def mel_weights(bands: int, length: int, rate: int, low: float, high: float) -> np.ndarray:
    """The triangles of MelWeightMatrix in float64: (length // 2 + 1, bands).

    Their corners lie on a mel scale cut into ``bands + 2`` steps from ``low`` to ``high`` hertz, of which the
    last is not used, as in ONNX's case; each corner is rounded down to a bin of the spectrum.

    Raises:
        UserError: sizes below 1, edges that do not ascend from 0, or corners above the spectrum.
    """
    if bands < 1 or length < 1 or rate < 1 or not 0 <= low < high:
        raise UserError(
            f"MelWeightMatrix: num_mel_bins {bands}, dft_length {length} and sample_rate {rate} should be at "
            f"least 1, and the edges {low} to {high} hertz should ascend from at least 0"
        )
    first, last = (2595 * math.log10(1 + edge / 700) for edge in (low, high))
    mels = first + np.arange(bands + 2) * ((last - first) / (bands + 2))
    hertz = 700 * (10 ** (mels / 2595) - 1)
    corners = np.floor((length + 1) * hertz / rate).astype(np.int64)
    rows = length // 2 + 1
    if corners[-1] > rows:
        raise UserError(
            f"MelWeightMatrix: bands up to {high} hertz do not fit a spectrum up to {rate / 2} hertz"
        )
    bins = np.arange(rows)[:, None]
    lower, center, upper = corners[:-2], corners[1:-1], corners[2:]
    rising = (bins - lower) / np.maximum(center - lower, 1)
    falling = (upper - bins) / np.maximum(upper - center, 1)
    weights = np.where((bins >= lower) & (bins < center), rising, 0)
    weights = np.where((bins > center) & (bins < upper), falling, weights)
    return np.where(bins == center, 1.0, weights)


@rules.rule("MelWeightMatrix", 17, host=("bands", "length", "rate", "low", "high"))
def mel_weight_matrix(
    bands: Any, length: Any, rate: Any, low: Any, high: Any, *, output_datatype: int = 1
) -> np.ndarray:
    """Triangular filters (length // 2 + 1, bands) from a spectrum to a mel spectrum; see ``mel_weights``.

    Raises:
        UserError: numbers that fit no filter bank, or an output type that is none of numbers.
    """
    dtype = dtype_from_onnx(output_datatype)
    if dtype is None or dtype.kind == "O":
        raise UserError(f"MelWeightMatrix: output_datatype {output_datatype} is no type of numbers")
    sizes = [
        host_integer(value, "MelWeightMatrix", name)
        for name, value in (("num_mel_bins", bands), ("dft_length", length), ("sample_rate", rate))
    ]
    edges = [float(as_list(value)[0]) for value in (low, high)]
    return mel_weights(sizes[0], sizes[1], sizes[2], edges[0], edges[1]).astype(dtype)
