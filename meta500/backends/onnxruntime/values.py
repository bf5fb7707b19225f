"""Between numpy arrays and what ONNX Runtime takes and gives.

Its Python interface knows numpy's own dtypes and strings. Tensors of bfloat16, of the 8-bit floats and of
4-bit numbers go through its memory, in the packing of ONNX's ``raw_data``.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnx
import onnxruntime

from meta500.backends.values import apply, leaves
from meta500.errors import UserError
from meta500.graph.types import dtype_to_onnx

_PLAIN = "?bBhHiIlLqQefdO"
_MEMORY = {
    "tensor(bfloat16)": onnx.TensorProto.BFLOAT16,
    "tensor(float8e4m3fn)": onnx.TensorProto.FLOAT8E4M3FN,
    "tensor(float8e4m3fnuz)": onnx.TensorProto.FLOAT8E4M3FNUZ,
    "tensor(float8e5m2)": onnx.TensorProto.FLOAT8E5M2,
    "tensor(float8e5m2fnuz)": onnx.TensorProto.FLOAT8E5M2FNUZ,
    "tensor(float8e8m0)": onnx.TensorProto.FLOAT8E8M0,
    "tensor(int4)": onnx.TensorProto.INT4,
    "tensor(uint4)": onnx.TensorProto.UINT4,
    "tensor(int2)": onnx.TensorProto.INT2,
    "tensor(uint2)": onnx.TensorProto.UINT2,
    "tensor(float4e2m1)": onnx.TensorProto.FLOAT4E2M1,
}


def to_runtime(value: Any, label: str) -> Any:
    """What ``InferenceSession.run`` takes for ``value`` (arrays, lists, dicts, None).

    Raises:
        UserError: an element type that can't be handed over inside of a sequence, or not at all.
    """
    if isinstance(value, np.ndarray) and not _is_plain(value):
        return _handed_over(value, label)
    for leaf in leaves(value):
        if isinstance(leaf, np.ndarray) and not _is_plain(leaf):
            raise UserError(f"{label}: ONNX Runtime takes no sequences of {leaf.dtype} from Python")
    return apply(_contiguous, value)


def from_runtime(value: Any) -> Any:
    """An array for an ``OrtValue`` or a result of ``InferenceSession.run``; lists and None stay."""
    if not isinstance(value, onnxruntime.OrtValue):
        return apply(np.asarray, value)
    element = _MEMORY.get(value.data_type())
    if element is None:
        return np.asarray(value.numpy())
    size = value.tensor_size_in_bytes()
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    proto = onnx.TensorProto(dims=value.shape(), data_type=element, raw_data=data)
    return np.asarray(onnx.numpy_helper.to_array(proto))


def through_memory(kind: str) -> bool:
    """Whether values of the type ``kind`` ("tensor(bfloat16)") come out as ``OrtValue`` only.

    Raises:
        UserError: a sequence or optional of such an element type, which has no way out.
    """
    if kind in _MEMORY:
        return True
    if any(element in kind for element in _MEMORY):
        raise UserError(f"ONNX Runtime gives no {kind} to Python")
    return False


def _is_plain(array: np.ndarray) -> bool:
    return array.dtype.char in _PLAIN


def _contiguous(array: Any) -> Any:
    if not isinstance(array, np.ndarray):
        return array
    native = array.dtype.newbyteorder("=") if array.dtype.kind != "O" else array.dtype
    return np.asarray(array, dtype=native, order="C")


def _handed_over(array: np.ndarray, label: str) -> Any:
    """An ``OrtValue`` with the contents of ``array``."""
    try:
        proto = onnx.numpy_helper.from_array(np.asarray(array, order="C"))
        # The public constructor takes numpy dtypes only.
        inner = onnxruntime.capi._pybind_state.OrtValue.ortvalue_from_shape_and_onnx_type(
            list(array.shape), dtype_to_onnx(array.dtype), _CPU
        )
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        raise UserError(f"{label}: ONNX Runtime takes no {array.dtype} from Python: {error}") from None
    value = onnxruntime.OrtValue(inner)
    if len(proto.raw_data) != value.tensor_size_in_bytes():
        raise UserError(f"{label}: ONNX Runtime takes no {array.dtype} from Python")
    ctypes.memmove(value.data_ptr(), proto.raw_data, len(proto.raw_data))
    return value


_CPU = onnxruntime.capi._pybind_state.OrtDevice(
    onnxruntime.capi._pybind_state.OrtDevice.cpu(),
    onnxruntime.capi._pybind_state.OrtDevice.default_memory(),
    0,
)
