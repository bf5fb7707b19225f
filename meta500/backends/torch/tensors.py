"""Between numpy arrays and torch tensors, without copies where both can share the memory."""

from __future__ import annotations

import keyword
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import torch

from meta500.errors import UserError

# Element types that numpy takes from ml_dtypes, and the torch type with the same bits.
_SPECIAL: dict[np.dtype, torch.dtype] = {
    np.dtype(ml_dtypes.bfloat16): torch.bfloat16,
    np.dtype(ml_dtypes.float8_e4m3fn): torch.float8_e4m3fn,
    np.dtype(ml_dtypes.float8_e5m2): torch.float8_e5m2,
    np.dtype(ml_dtypes.float8_e4m3fnuz): torch.float8_e4m3fnuz,
    np.dtype(ml_dtypes.float8_e5m2fnuz): torch.float8_e5m2fnuz,
}
_BITS = {1: np.uint8, 2: np.uint16}
_BACK = {value: key for key, value in _SPECIAL.items()}


def from_numpy(array: np.ndarray, device: torch.device | None = None) -> torch.Tensor:
    """A tensor with the contents of ``array``; on the CPU it shares its memory.

    Raises:
        UserError: torch has no such dtype.
    """
    special = _SPECIAL.get(array.dtype)
    if special is not None:
        return from_numpy(array.view(_BITS[array.dtype.itemsize]), device).view(special)
    if any(stride < 0 for stride in array.strides) or not array.dtype.isnative:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    try:
        if array.flags.writeable:
            tensor = torch.from_numpy(array)
        else:
            with warnings.catch_warnings():  # nothing here writes to what it was fed
                warnings.simplefilter("ignore", UserWarning)
                tensor = torch.from_numpy(array)
    except TypeError:
        raise UserError(f"torch has no dtype for {array.dtype}") from None
    return tensor if device is None or device.type == "cpu" else tensor.to(device)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """An array with the contents of ``tensor``; from the CPU it shares its memory."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    special = _BACK.get(tensor.dtype)
    if special is not None:
        bits = tensor.contiguous().view(torch.uint8 if special.itemsize == 1 else torch.uint16)
        return bits.numpy().view(special)
    return tensor.numpy()


def has_dtype(dtype: np.dtype) -> bool:
    """Whether torch has tensors of this dtype; it has none of strings, 4- and 2-bit numbers, float8_e8m0."""
    if dtype in _SPECIAL:
        return True
    try:
        torch.from_numpy(np.zeros(0, dtype))
    except TypeError:
        return False
    return True


def native_tensor(array: np.ndarray, device: torch.device | None = None) -> torch.Tensor | np.ndarray:
    """A tensor with the contents of ``array``; the array itself where torch lacks its dtype."""
    return from_numpy(array, device) if has_dtype(array.dtype) else array


def host_array(value: torch.Tensor | np.ndarray) -> np.ndarray:
    """The contents of a tensor, or of an array that stands for one."""
    return value if isinstance(value, np.ndarray) else to_numpy(value)


def torch_dtype(dtype: np.dtype) -> torch.dtype:
    """The torch dtype of a numpy dtype.

    Raises:
        UserError: torch has none.
    """
    return from_numpy(np.zeros(0, dtype)).dtype


def attribute_name(stem: str, root: torch.nn.Module) -> str:
    """A name for an attribute of ``root``: ``stem`` as an identifier, numbered if it is taken."""
    text = "".join(c if c.isalnum() else "_" for c in stem) or "tensor"
    text = text if text[0].isalpha() and not keyword.iskeyword(text) else f"t_{text}"
    index, attribute = 0, text
    while hasattr(root, attribute):
        index += 1
        attribute = f"{text}_{index}"
    return attribute


def to_host_value(tensor: torch.Tensor | np.ndarray) -> Any:
    """A tensor as Python numbers; waits for the device.

    Raises:
        UserError: gradients would flow through the tensor; as numbers they could not.
    """
    if isinstance(tensor, np.ndarray):
        return _tuples(tensor.tolist())
    if tensor.requires_grad and torch.is_grad_enabled():
        raise UserError(
            "a value is needed as a plain number here (a ratio, scale or pad value), but gradients would "
            "flow through it; the torch backend has no gradient for it"
        )
    return _tuples(tensor.detach().cpu().tolist())


def tracked_or_host_value(tensor: torch.Tensor | np.ndarray) -> Any:
    """The tensor itself where gradients flow through it, else as :func:`to_host_value`."""
    tracked = isinstance(tensor, torch.Tensor) and tensor.requires_grad and torch.is_grad_enabled()
    return tensor if tracked else to_host_value(tensor)


def _tuples(value: Any) -> Any:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
