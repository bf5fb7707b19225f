"""Operators that make tensors or tell their sizes.

Constant and ConstantOfShape have no input that names a device: what they make lies on torch's current default
device (``with torch.device(...)``), a given ``value`` where it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.errors import UserError

Ints = tuple[int, ...]

TORCH_TYPE = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
}
"""torch's dtype for each number in ``onnx.TensorProto.DataType`` that the torch backend computes with."""


@rules.rule("Constant", since=1)
def constant(
    *,
    value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: Ints | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
    sparse_value: Any = None,
) -> Tensor:
    """ONNX Constant: the one attribute that is set; floats become float32, ints int64.

    Raises:
        UserError: strings, sparse values, or not exactly one attribute.
    """
    texts = {"value_string": value_string, "value_strings": value_strings, "sparse_value": sparse_value}
    for name, given in texts.items():
        if given is not None:
            raise UserError(f"Constant: the torch backend cannot hold {name}; torch has dense numbers only")
    numbers = [
        (value_float, torch.float32),
        (value_floats, torch.float32),
        (value_int, torch.int64),
        (value_ints, torch.int64),
    ]
    chosen = [(given, dtype) for given, dtype in numbers if given is not None]
    if len(chosen) + (value is not None) != 1:
        raise UserError("Constant: exactly one of its value attributes must be set")
    if value is not None:
        return value
    given, dtype = chosen[0]
    return torch.tensor(given, dtype=dtype)


@rules.rule("ConstantOfShape", since=9, host=("shape",))
def constant_of_shape(shape: Ints, *, value: Tensor | None = None) -> Tensor:
    """ONNX ConstantOfShape: the one element of ``value`` everywhere (float32 zeros without it)."""
    if value is None:
        return torch.zeros(tuple(shape), dtype=torch.float32)
    if value.numel() != 1:
        raise UserError(f"ConstantOfShape: value has {value.numel()} elements, it must have one")
    return value.reshape(()).expand(tuple(shape)).clone()


@rules.rule("Shape", since=1)
def shape_1(x: Tensor, *, start: int = 0, end: int | None = None) -> Tensor:
    """ONNX Shape: the sizes of the axes ``start`` to ``end`` (int64, 1-D), counted as Python slices are."""
    return torch.tensor(tuple(x.shape)[start:end], dtype=torch.int64, device=x.device)


@rules.rule("Size", since=1)
def size(x: Tensor) -> Tensor:
    """ONNX Size: the number of elements (int64 scalar)."""
    return torch.tensor(x.numel(), dtype=torch.int64, device=x.device)
