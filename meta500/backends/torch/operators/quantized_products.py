"""Products of quantized numbers: ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul.

Sums of products of 8-bit integers are computed in float64, where they are exact (up to 2**53), and then cut
to 32 bits, in which ONNX lets them overflow. What the operators mean is told by the numpy rules of the same
names; shapes are checked there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.numpy.operators.quantized_products import (
    along_columns,
    along_rows,
    check_filters,
    check_one_value,
    per_filter,
)
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.convolution import conv
from meta500.backends.torch.operators.quantization import exact, quantized
from meta500.errors import UserError

Ints = tuple[int, ...]


def _accumulated(sums: Tensor) -> Tensor:
    """Whole numbers (float64) as int32, modulo 2**32; a kernel's transforms may have left rounding errors."""
    return torch.round(sums).to(torch.int64).to(torch.int32)


def _shape(x: Tensor) -> Ints:
    return tuple(x.shape)


def _rows(operator: str, name: str, value: Tensor, matrix: Tensor) -> Tensor:
    return value.reshape(along_rows(operator, name, _shape(value), _shape(matrix)))


def _columns(operator: str, name: str, value: Tensor, matrix: Tensor) -> Tensor:
    return value.reshape(along_columns(operator, name, _shape(value), _shape(matrix)))


@rules.rule("MatMulInteger", since=10)
def matmul_integer(
    a: Tensor, b: Tensor, a_zero_point: Tensor | None = None, b_zero_point: Tensor | None = None
) -> Tensor:
    """ONNX MatMulInteger: ``(a - a_zero_point) @ (b - b_zero_point)`` as int32, exact modulo 2**32.

    Raises:
        UserError: a zero point that is neither per tensor, nor per row of a or column of b.
    """
    left, right = exact(a), exact(b)
    if a_zero_point is not None:
        left = left - _rows("MatMulInteger", "a_zero_point", exact(a_zero_point), a)
    if b_zero_point is not None:
        right = right - _columns("MatMulInteger", "b_zero_point", exact(b_zero_point), b)
    return _accumulated(torch.matmul(left, right))


@rules.rule("QLinearMatMul", since=10)
def qlinear_matmul(
    a: Tensor,
    a_scale: Tensor,
    a_zero_point: Tensor,
    b: Tensor,
    b_scale: Tensor,
    b_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
) -> Tensor:
    """ONNX QLinearMatMul: ``saturate(round(product / y_scale) + y_zero_point)`` of two quantized matrices.

    8-bit integers are summed exactly, 8-bit floats in float64; scales are applied in float64. The result has
    the type of ``y_zero_point``.

    Raises:
        UserError: a scale or zero point that is neither per tensor, nor per row of a or y or column of b.
    """
    name = "QLinearMatMul"
    left = exact(a) - _rows(name, "a_zero_point", exact(a_zero_point), a)
    right = exact(b) - _columns(name, "b_zero_point", exact(b_zero_point), b)
    product = torch.matmul(left, right)
    if not a.dtype.is_floating_point and not b.dtype.is_floating_point:
        product = _accumulated(product).to(torch.float64)
    scale = _rows(name, "a_scale", exact(a_scale), a) * _columns(name, "b_scale", exact(b_scale), b)
    scale = scale / _rows(name, "y_scale", exact(y_scale), product)
    zero_point = _rows(name, "y_zero_point", y_zero_point, product)
    return quantized(product * scale, zero_point, y_zero_point.dtype)


def _correlation(
    operator: str,
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None,
    w_zero_point: Tensor | None,
    *,
    auto_pad: str,
    dilations: Ints | None,
    group: int,
    kernel_shape: Ints | None,
    pads: Ints | None,
    strides: Ints | None,
) -> Tensor:
    """The convolution of ``x - x_zero_point`` (padded by zeros) and ``w - w_zero_point`` in float64."""
    check_filters(operator, _shape(x), _shape(w), group, kernel_shape)
    image, kernel = exact(x), exact(w)
    if x_zero_point is not None:
        check_one_value(operator, x_zero_point=_shape(x_zero_point))
        image = image - exact(x_zero_point).reshape(())
    if w_zero_point is not None:
        fitted = per_filter(operator, "w_zero_point", _shape(w_zero_point), w.shape[0], w.ndim)
        kernel = kernel - exact(w_zero_point).reshape(fitted)
    return conv.function(  # type: ignore[no-any-return]
        image, kernel, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides
    )


@rules.rule("ConvInteger", since=10)
def conv_integer(
    x: Tensor,
    w: Tensor,
    x_zero_point: Tensor | None = None,
    w_zero_point: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX ConvInteger: Conv of ``x - x_zero_point`` and ``w - w_zero_point`` as int32, exact modulo 2**32.

    Raises:
        UserError: shapes and attributes do not fit.
    """
    sums = _correlation(
        "ConvInteger",
        x,
        w,
        x_zero_point,
        w_zero_point,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    return _accumulated(sums)


@rules.rule("QLinearConv", since=10)
def qlinear_conv(
    x: Tensor,
    x_scale: Tensor,
    x_zero_point: Tensor,
    w: Tensor,
    w_scale: Tensor,
    w_zero_point: Tensor,
    y_scale: Tensor,
    y_zero_point: Tensor,
    b: Tensor | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> Tensor:
    """ONNX QLinearConv: the convolution of quantized x and w with the bias ``b`` (M), quantized.

    The sum is exact in int32; then ``saturate(round(sum * x_scale * w_scale / y_scale) + y_zero_point)``, in
    float64.

    Raises:
        UserError: shapes and attributes do not fit.
    """
    name = "QLinearConv"
    total = _correlation(
        name,
        x,
        w,
        x_zero_point,
        w_zero_point,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    if b is not None:
        if _shape(b) != (w.shape[0],):
            raise UserError(f"{name}: the bias has shape {_shape(b)}, expected ({w.shape[0]},)")
        total = total + exact(b).reshape(-1, *(1,) * (x.ndim - 2))
    check_one_value(name, x_scale=_shape(x_scale), y_scale=_shape(y_scale), y_zero_point=_shape(y_zero_point))
    scales = per_filter(name, "w_scale", _shape(w_scale), w.shape[0], x.ndim - 1)
    factor = exact(x_scale).reshape(()) / exact(y_scale).reshape(()) * exact(w_scale).reshape(scales)
    return quantized(_accumulated(total) * factor, y_zero_point.reshape(()), y_zero_point.dtype)
