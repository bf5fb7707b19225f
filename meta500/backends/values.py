"""What flows between operations: tensors, and the ONNX values that are built of them.

A sequence is a list, an optional without a value is None, a map is a dict; every other value is a tensor of
the backend (or a numpy array, where the backend has no tensor of that element type).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph.types import MapType, OptionalType, SequenceType, TensorType, ValueType, is_floating


def apply(function: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with ``function`` applied to its tensors; lists stay lists, None stays None."""
    if value is None:
        return None
    if isinstance(value, list):
        return [apply(function, element) for element in value]
    if isinstance(value, dict):
        return {key: apply(function, element) for key, element in value.items()}
    return function(value)


def leaves(value: Any) -> Iterator[Any]:
    """The tensors in ``value``."""
    if isinstance(value, list):
        for element in value:
            yield from leaves(element)
    elif isinstance(value, dict):
        for element in value.values():
            yield from leaves(element)
    elif value is not None:
        yield value


def add(a: Any, b: Any) -> Any:
    """The sum of two cotangents of one value; None stands for zero."""
    if a is None or b is None:
        return b if a is None else a
    if isinstance(a, list):
        return [add(x, y) for x, y in zip(a, b, strict=True)]
    return a + b


def checked(value: Any, declared: ValueType | None, label: str, tensor: Callable[..., Any]) -> Any:
    """``value`` as the declared type asks for, its tensors passed through ``tensor(array, type, label)``.

    Raises:
        UserError: another kind of value than the declared one.
    """
    if isinstance(declared, OptionalType):
        return None if value is None else checked(value, declared.element, label, tensor)
    if isinstance(declared, SequenceType):
        if not isinstance(value, list | tuple):
            raise UserError(f"{label} is a sequence: give a list of its elements, not {_kind(value)}")
        return [checked(v, declared.element, f"{label}, element {i}", tensor) for i, v in enumerate(value)]
    if isinstance(declared, MapType):
        if not isinstance(value, dict):
            raise UserError(f"{label} is a map: give a dict, not {_kind(value)}")
        return {
            _key(k, declared, label): _map_value(v, declared, f"{label}[{k!r}]", tensor)
            for k, v in value.items()
        }
    if value is None:
        raise UserError(f"{label} is missing: only an optional may be None, it is declared {declared}")
    known = declared if isinstance(declared, TensorType) else None
    return tensor(value, known, label)


def _key(key: Any, declared: MapType, label: str) -> Any:
    """A key as int or str, whichever the map has."""
    plain = key.item() if isinstance(key, np.generic) else key
    text = declared.key.kind == "O"
    if isinstance(plain, bool) or not isinstance(plain, str if text else int):
        raise UserError(f"{label} has keys of type {'str' if text else 'int'}, not {key!r}")
    return plain


def _map_value(value: Any, declared: MapType, label: str, tensor: Callable[..., Any]) -> Any:
    """A map's value; plain numbers and texts become 0-d arrays of the declared type."""
    kind = declared.value
    if isinstance(kind, TensorType) and kind.dtype is not None and not isinstance(value, bool):
        number = isinstance(value, int) or (isinstance(value, float) and is_floating(kind.dtype))
        if (isinstance(value, str) and kind.dtype.kind == "O") or (number and kind.dtype.kind != "O"):
            return np.array(value, kind.dtype)
    return checked(value, kind, label, tensor)


def _kind(value: Any) -> str:
    return "None" if value is None else type(value).__name__
