"""Average pooling to a given number of windows, whatever the size of the image."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from meta500.graph import ops
from meta500.models.layers import Draft


def adaptive_average_pool(net: Draft, x: str, name: str, sides: tuple[int, int], count: int) -> str:
    """(N, C, *sides) -> (N, C, count, count): means over the :func:`windows` of rows and columns, as
    PyTorch's AdaptiveAvgPool2d has them.

    Writes nothing where ``sides`` are already ``count``. ONNX: AveragePool where all windows are alike and
    equally far apart; else a product with a matrix of constants for each axis, as the mean goes by rows and
    columns.
    """
    if sides == (count, count):
        return x
    found = [windows(side, count) for side in sides]
    forms = [_regular(each) for each in found]
    if all(forms):
        kernel, strides = zip(*forms, strict=True)  # type: ignore[arg-type]
        return net.builder.add(ops.AveragePool, x, name=name, kernel_shape=kernel, strides=strides)
    rows, columns = (_means(side, each, net.dtype) for side, each in zip(sides, found, strict=True))
    left = net.builder.constant(rows, f"{name}.rows.means")
    right = net.builder.constant(columns.T, f"{name}.columns.means")
    x = net.builder.add(ops.MatMul, left, x, name=f"{name}.rows")
    return net.builder.add(ops.MatMul, x, right, name=name)


def windows(side: int, count: int) -> list[tuple[int, int]]:
    """First pixel and end of each of ``count`` windows over ``side`` pixels: from i side / count, rounded
    down, to (i + 1) side / count, rounded up. They overlap where ``count`` does not divide ``side``."""
    return [(i * side // count, -(-(i + 1) * side // count)) for i in range(count)]


def _regular(spans: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Length and stride of windows that are alike and equally far apart; None for others."""
    lengths = {end - start for start, end in spans}
    strides = {after[0] - before[0] for before, after in pairwise(spans)}
    # Fewer pixels than windows: the same pixel again and again, for which ONNX has no stride.
    return (lengths.pop(), strides.pop()) if len(lengths) == len(strides) == 1 and 0 not in strides else None


def _means(side: int, spans: list[tuple[int, int]], dtype: np.dtype) -> np.ndarray:
    """The matrix (windows, side) that takes ``side`` pixels to the means of the windows."""
    matrix = np.zeros((len(spans), side), dtype)
    for row, (start, end) in zip(matrix, spans, strict=True):
        row[start:end] = 1 / (end - start)
    return matrix
