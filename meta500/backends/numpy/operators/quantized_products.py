"""Products of quantized numbers: ConvInteger, MatMulInteger, QLinearConv, QLinearMatMul.

Sums of products of 8-bit integers are computed in float64, where they are exact (up to 2**53) and use BLAS,
and then cut to 32 bits, in which ONNX lets them overflow.
"""

from __future__ import annotations

import math

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.cast import plain
from meta500.backends.numpy.operators.convolution import correlate
from meta500.backends.numpy.operators.quantization import quantized
from meta500.backends.windows import sliding
from meta500.errors import UserError

Ints = tuple[int, ...]


def _accumulated(exact: np.ndarray) -> np.ndarray:
    """Whole numbers (float64) as int32, modulo 2**32."""
    return exact.astype(np.int64).astype(np.int32)


def _broadcasts(value: Ints, batch: Ints) -> bool:
    return len(value) == len(batch) and all(n in (1, m) for n, m in zip(value, batch, strict=True))


def along_rows(operator: str, name: str, value: Ints, matrix: Ints) -> Ints:
    """The shape in which a scale or zero point of shape ``value`` broadcasts against a left operand.

    For a ``matrix`` (..., M, K) it has one, M, or (..., M, 1) values.

    Raises:
        UserError: another shape.
    """
    rows = matrix[-2] if len(matrix) > 1 else 1
    if math.prod(value) == 1:
        return ()
    if value == (rows,):
        return (rows, 1)
    if value[-2:] == (rows, 1) and _broadcasts(value[:-2], matrix[:-2]):
        return value
    raise UserError(
        f"{operator}: {name} has shape {value}; for a matrix of shape {matrix} it is one value, a "
        f"vector of {rows}, or one value per row of shape (..., {rows}, 1)"
    )


def along_columns(operator: str, name: str, value: Ints, matrix: Ints) -> Ints:
    """The same for a right operand (..., K, N): one, N, or (..., 1, N) values.

    Raises:
        UserError: another shape.
    """
    columns = matrix[-1] if len(matrix) > 1 else 1
    if math.prod(value) == 1:
        return ()
    if value == (columns,) or (value[-2:] == (1, columns) and _broadcasts(value[:-2], matrix[:-2])):
        return value
    raise UserError(
        f"{operator}: {name} has shape {value}; for a matrix of shape {matrix} it is one value, a "
        f"vector of {columns}, or one value per column of shape (..., 1, {columns})"
    )


def _exact(value: np.ndarray) -> np.ndarray:
    return plain(value).astype(np.float64)


@rules.rule("MatMulInteger", 10)
def matmul_integer(
    a: np.ndarray,
    b: np.ndarray,
    a_zero_point: np.ndarray | None = None,
    b_zero_point: np.ndarray | None = None,
) -> np.ndarray:
    """``(a - a_zero_point) @ (b - b_zero_point)`` as int32, exact modulo 2**32.

    Raises:
        UserError: a zero point that is neither per tensor, nor per row of a or column of b.
    """
    left, right = _exact(a), _exact(b)
    if a_zero_point is not None:
        fitted = along_rows("MatMulInteger", "a_zero_point", a_zero_point.shape, a.shape)
        left = left - _exact(a_zero_point).reshape(fitted)
    if b_zero_point is not None:
        fitted = along_columns("MatMulInteger", "b_zero_point", b_zero_point.shape, b.shape)
        right = right - _exact(b_zero_point).reshape(fitted)
    return _accumulated(np.asarray(np.matmul(left, right)))


@rules.rule("QLinearMatMul", 10)
def qlinear_matmul(
    a: np.ndarray,
    a_scale: np.ndarray,
    a_zero_point: np.ndarray,
    b: np.ndarray,
    b_scale: np.ndarray,
    b_zero_point: np.ndarray,
    y_scale: np.ndarray,
    y_zero_point: np.ndarray,
) -> np.ndarray:
    """The product of two quantized matrices, quantized.

    That is ``saturate(round(product / y_scale) + y_zero_point)``.

    8-bit integers are summed exactly, 8-bit floats in float64; scales are applied in float64. The result has
    the type of ``y_zero_point``.

    Raises:
        UserError: a scale or zero point that is neither per tensor, nor per row of a or y or column of b.
    """
    name = "QLinearMatMul"
    a_zero = along_rows(name, "a_zero_point", a_zero_point.shape, a.shape)
    b_zero = along_columns(name, "b_zero_point", b_zero_point.shape, b.shape)
    left = _exact(a) - _exact(a_zero_point).reshape(a_zero)
    right = _exact(b) - _exact(b_zero_point).reshape(b_zero)
    product = np.asarray(np.matmul(left, right))
    if a.dtype.kind in "iu" and b.dtype.kind in "iu":
        product = _accumulated(product).astype(np.float64)
    rows = _exact(a_scale).reshape(along_rows(name, "a_scale", a_scale.shape, a.shape))
    columns = _exact(b_scale).reshape(along_columns(name, "b_scale", b_scale.shape, b.shape))
    scale = _exact(y_scale).reshape(along_rows(name, "y_scale", y_scale.shape, product.shape))
    zero_point = y_zero_point.reshape(along_rows(name, "y_zero_point", y_zero_point.shape, product.shape))
    with np.errstate(all="ignore"):
        return quantized(np.asarray(product * (rows * columns / scale)), zero_point, y_zero_point.dtype, 1)


def per_filter(operator: str, name: str, value: Ints, filters: int, rank: int) -> Ints:
    """The shape of one value, or of one per output channel along the first of ``rank`` axes.

    Raises:
        UserError: a scale or zero point of shape ``value`` is neither.
    """
    if math.prod(value) == 1:
        return ()
    if value != (filters,):
        raise UserError(
            f"{operator}: {name} has shape {value}; it is one value, or one for each of {filters} filters"
        )
    return (filters, *(1,) * (rank - 1))


def check_one_value(operator: str, **shapes: Ints) -> None:
    """Raises UserError where an input, given by its shape, is not one value."""
    for name, shape in shapes.items():
        if math.prod(shape) != 1:
            raise UserError(f"{operator}: {name} has shape {shape}; it must be one value")


def check_filters(operator: str, x: Ints, w: Ints, group: int, kernel_shape: Ints | None) -> None:
    """Whether image (N, C, *spatial), filters (M, C/group, *kernel) and attributes fit each other.

    Raises:
        UserError: they do not.
    """
    if len(x) < 3 or len(w) != len(x):
        raise UserError(
            f"{operator}: x has shape {x} and w {w}; both need batch or filters, channels and "
            "the same number of spatial axes (at least one)"
        )
    if kernel_shape is not None and tuple(kernel_shape) != w[2:]:
        raise UserError(f"{operator}: kernel_shape {tuple(kernel_shape)} contradicts w of shape {w}")
    if group < 1 or x[1] != w[1] * group or w[0] % group:
        raise UserError(f"{operator}: x of shape {x} and w of shape {w} do not fit group {group}")


def _correlation(
    operator: str,
    x: np.ndarray,
    w: np.ndarray,
    x_zero_point: np.ndarray | None,
    w_zero_point: np.ndarray | None,
    *,
    auto_pad: str,
    dilations: Ints | None,
    group: int,
    kernel_shape: Ints | None,
    pads: Ints | None,
    strides: Ints | None,
) -> np.ndarray:
    """The convolution of ``x - x_zero_point`` (padded by zeros) and ``w - w_zero_point``; float64, exact."""
    check_filters(operator, x.shape, w.shape, group, kernel_shape)
    windows = sliding(operator, x.shape[2:], w.shape[2:], strides, pads, dilations, auto_pad)
    image, kernel = _exact(x), _exact(w)
    if x_zero_point is not None:
        check_one_value(operator, x_zero_point=x_zero_point.shape)
        image = image - _exact(x_zero_point).reshape(())
    if w_zero_point is not None:
        fitted = per_filter(operator, "w_zero_point", w_zero_point.shape, w.shape[0], w.ndim)
        kernel = kernel - _exact(w_zero_point).reshape(fitted)
    return correlate(image, kernel, windows, group)


@rules.rule("ConvInteger", 10)
def conv_integer(
    x: np.ndarray,
    w: np.ndarray,
    x_zero_point: np.ndarray | None = None,
    w_zero_point: np.ndarray | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> np.ndarray:
    """ONNX Conv of ``x - x_zero_point`` and ``w - w_zero_point`` as int32, exact modulo 2**32.

    Raises:
        UserError: shapes and attributes do not fit.
    """
    exact = _correlation(
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
    return _accumulated(exact)


@rules.rule("QLinearConv", 10)
def qlinear_conv(
    x: np.ndarray,
    x_scale: np.ndarray,
    x_zero_point: np.ndarray,
    w: np.ndarray,
    w_scale: np.ndarray,
    w_zero_point: np.ndarray,
    y_scale: np.ndarray,
    y_zero_point: np.ndarray,
    b: np.ndarray | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: Ints | None = None,
    group: int = 1,
    kernel_shape: Ints | None = None,
    pads: Ints | None = None,
    strides: Ints | None = None,
) -> np.ndarray:
    """The convolution of quantized x (N, C, *spatial) and w (M, C/group, *kernel), quantized.

    The sum is exact in int32 with the bias ``b`` (M; scale x_scale * w_scale, zero point 0); then
    ``saturate(round(sum * x_scale * w_scale / y_scale) + y_zero_point)``, in float64.

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
        if b.shape != (w.shape[0],):
            raise UserError(f"{name}: the bias has shape {b.shape}, expected ({w.shape[0]},)")
        total = total + _exact(b).reshape(-1, *(1,) * (x.ndim - 2))
    check_one_value(name, x_scale=x_scale.shape, y_scale=y_scale.shape, y_zero_point=y_zero_point.shape)
    scales = per_filter(name, "w_scale", w_scale.shape, w.shape[0], x.ndim - 1)
    factor = _exact(x_scale).reshape(()) / _exact(y_scale).reshape(()) * _exact(w_scale).reshape(scales)
    zero_point = y_zero_point.reshape(())
    with np.errstate(all="ignore"):
        quotient = np.asarray(_accumulated(total) * factor)
        return quantized(quotient, zero_point, y_zero_point.dtype, 1)
