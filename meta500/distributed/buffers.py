"""Native tensors as MPI buffers, without a copy where their memory can be handed over.

A buffer is a C-contiguous numpy array. Contiguous numpy arrays and torch tensors in host memory are buffers
themselves (a view, no copy); what is strided is packed, and what lives on another device (CUDA) passes
through host memory, there and back.

MPI reduces float32, float64, long double and integers. Smaller floats (float16, bfloat16, the 8-bit
ones) are reduced in float32 and rounded once at the end; for moving data every element type travels as the
bytes that it is.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from meta500.errors import UserError

_FLOAT32 = np.dtype(np.float32)
# The types of most tensors, which MPI knows too.
NATIVE_FLOATS = frozenset(np.dtype(code) for code in "fd")
_NATIVE = frozenset(np.dtype(code) for code in "bBhHiIlLqQfdg")
# torch's name of an element type that numpy lacks: ml_dtypes has it under the same name.
_CARRIERS = {1: ("uint8", np.uint8), 2: ("int16", np.int16)}


def is_torch(tensor: Any) -> bool:
    """Whether it is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def host(tensor: Any) -> np.ndarray:
    """A numpy array on the tensor's memory, with its strides; a host copy for tensors of other devices.

    Raises:
        UserError: neither a number, a numpy array nor a torch tensor, or elements without a fixed size.
    """
    if isinstance(tensor, np.ndarray):
        array = tensor
    elif is_torch(tensor):
        array = _from_torch(tensor)
    elif isinstance(tensor, bool | int | float | np.generic):
        array = np.asarray(tensor)
    else:
        raise UserError(
            f"communication needs a numpy array or a torch tensor, got {type(tensor).__module__}."
            f"{type(tensor).__qualname__}; convert it first"
        )
    if array.dtype.hasobject or array.dtype.kind in "USMm":
        raise UserError(f"elements of type {array.dtype} cannot be communicated; use numbers")
    return array


def packed(tensor: Any) -> np.ndarray:
    """The tensor as a buffer: its own memory if it is contiguous in host memory, else a copy."""
    array = tensor if type(tensor) is np.ndarray and tensor.dtype in NATIVE_FLOATS else host(tensor)
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def as_bytes(array: np.ndarray) -> np.ndarray:
    """The bytes of a buffer, (n,) uint8, no copy."""
    return array.reshape(-1).view(np.uint8)


def wire_dtype(dtype: np.dtype) -> np.dtype:
    """The element type in which MPI reduces ``dtype``: itself, or float32 for the smaller floats.

    Raises:
        UserError: a type that MPI cannot reduce, such as complex numbers.
    """
    if dtype in _NATIVE:
        return dtype
    if is_float(dtype):
        return _FLOAT32
    raise UserError(f"elements of type {dtype} cannot be reduced; use a floating-point or integer type")


def is_float(dtype: np.dtype) -> bool:
    """Whether it is a floating-point type, those of ml_dtypes included."""
    return dtype.kind == "f" or dtype.name.startswith(("bfloat", "float"))


def native(array: np.ndarray, like: Any) -> Any:
    """A native tensor with the values of ``array``: kind, element type and device of ``like``.

    Shares memory with ``array`` where element type and device allow it.
    """
    if type(like) is np.ndarray and array.dtype is like.dtype:
        return array
    if not is_torch(like):
        dtype = like.dtype if isinstance(like, np.ndarray | np.generic) else np.asarray(like).dtype
        return array.astype(dtype, copy=False)
    result = _to_torch(array, like.dtype)
    return result if like.is_cpu else result.to(like.device)


def store(array: np.ndarray, out: Any) -> None:
    """Write the values of ``array`` into the native tensor ``out`` of the same shape, rounding once.

    Nothing is done where ``array`` already is the memory of ``out``.
    """
    view = out if isinstance(out, np.ndarray) else _from_torch(out) if out.is_cpu else None
    if view is None:
        with sys.modules["torch"].no_grad():
            out.copy_(_to_torch(array, out.dtype))
    # Copying a few elements onto themselves costs less than finding out that they are the same.
    elif view.size < 1024 or not same_memory(array, view):
        np.copyto(view, array, casting="unsafe")


def check_out(out: Any, tensor: Any, name: str) -> None:
    """Check that results of ``tensor`` fit into ``out``.

    Raises:
        UserError: other kind, shape or element type, or read-only memory; the message begins with ``name``.
    """
    # The usual case first: this is a good part of what a call costs beyond MPI.
    kind = type(out)
    if kind is type(tensor) and (kind is np.ndarray or is_torch(out)):
        fits = out is tensor or (out.dtype == tensor.dtype and out.shape == tensor.shape)
        if fits and (kind is not np.ndarray or out.flags.writeable):
            return
    if is_torch(out) != is_torch(tensor) or not (is_torch(out) or isinstance(out, np.ndarray)):
        raise UserError(f"{name}: out has to be of the same kind as the tensor, got {type(out).__name__}")
    shape = tensor.shape if hasattr(tensor, "shape") else np.shape(tensor)
    if tuple(out.shape) != tuple(shape) or out.dtype != _dtype(tensor):
        raise UserError(
            f"{name}: out has shape {list(out.shape)} and type {out.dtype}, "
            f"the tensor {list(np.shape(tensor))} and {_dtype(tensor)}; they have to be equal"
        )
    if isinstance(out, np.ndarray) and not out.flags.writeable:
        raise UserError(f"{name}: out is a read-only array")


def in_host(tensor: Any) -> bool:
    """Whether the tensor's memory is that of the processor."""
    return type(tensor) is np.ndarray or not is_torch(tensor) or bool(tensor.is_cpu)


def describe(tensor: Any) -> str:
    """Element type and shape in words, e.g. "float32 [64, 3, 3, 3]"."""
    return f"{host_dtype(tensor)} {list(np.shape(tensor))}"


def host_dtype(tensor: Any) -> np.dtype:
    """The numpy (or ml_dtypes) element type of a native tensor; no copy."""
    if is_torch(tensor):
        return _numpy_dtype(tensor.dtype)
    return tensor.dtype if isinstance(tensor, np.ndarray | np.generic) else np.asarray(tensor).dtype


def _dtype(tensor: Any) -> Any:
    return tensor.dtype if hasattr(tensor, "dtype") else np.asarray(tensor).dtype


def same_memory(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether both are the very same elements: address, type, shape and strides."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.strides == b.strides
        and a.__array_interface__["data"][0] == b.__array_interface__["data"][0]
    )


def _from_torch(tensor: Any) -> np.ndarray:
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not tensor.is_cpu:
        tensor = tensor.cpu()
    try:
        return tensor.numpy()
    except TypeError:
        pass
    # What numpy has no type for (bfloat16, 8-bit floats) is viewed as integers, then as ml_dtypes.
    dtype = _numpy_dtype(tensor.dtype)
    carrier, _ = _CARRIERS[dtype.itemsize]
    return tensor.view(getattr(sys.modules["torch"], carrier)).numpy().view(dtype)


def _to_torch(array: np.ndarray, dtype: Any) -> Any:
    """Tensor of the torch element type, on the array's memory where its own type is that one."""
    torch = sys.modules["torch"]
    wanted = _numpy_dtype(dtype)
    if array.dtype != wanted:
        array = array.astype(wanted)
    if wanted.kind != "V" and wanted.isbuiltin == 1:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(_CARRIERS[wanted.itemsize][1])).view(dtype)


_DTYPES: dict[Any, np.dtype] = {}


def _numpy_dtype(dtype: Any) -> np.dtype:
    """numpy's (or ml_dtypes') type of the same name as torch's."""
    found = _DTYPES.get(dtype)
    if found is None:
        name = str(dtype).removeprefix("torch.")
        try:
            found = np.dtype(name)
        except TypeError:
            import ml_dtypes

            kind = getattr(ml_dtypes, name, None)
            if kind is None:
                raise UserError(
                    f"elements of type {dtype} cannot be communicated; convert them first"
                ) from None
            found = np.dtype(kind)
        _DTYPES[dtype] = found
    return found
