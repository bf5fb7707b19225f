"""From the parameters of a Python function to the signature of an operator.

Positional parameters are inputs (``b=None`` is optional, ``*xs`` variadic), keyword-only ones attributes with
their types and defaults: the convention of the operator rules in :mod:`meta500.backends.rules`.
"""

from __future__ import annotations

import collections.abc
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meta500.backends.rules import INJECTED
from meta500.errors import UserError
from meta500.graph.operation import Attribute, Operation, Signature

_SCALARS: dict[Any, str] = {float: "FLOAT", int: "INT", bool: "INT", str: "STRING", np.ndarray: "TENSOR"}
_LISTS = (tuple, list, collections.abc.Sequence)
_CHOICES = "float, int, str, np.ndarray, tuple[float, ...], tuple[int, ...] or tuple[str, ...]"

# Names that an operation or Builder.add uses for itself.
_OWN = {"name", "opset", "since_version", "doc_string", "metadata", "overload", "device_configurations"}
_BUILDER = {"operation", "outputs", "follow_mode", "definition", "schema"}
_RESERVED = frozenset(_OWN | _BUILDER | {n for n in dir(Operation) if not n.startswith("__")})
# Integer attributes of these names hold element types, which change with a network's precision.
_ELEMENT_TYPES = ("dtype", "to", "output_dtype", "output_datatype", "softmax_precision")


def read_signature(label: str, function: Callable[..., Any], outputs: Sequence[str]) -> Signature:
    """The signature of the operator that ``function`` computes.

    Raises:
        UserError: a parameter that is no input and no attribute of a known type, or a name that is taken.
    """
    hints = _hints(function)
    inputs: list[str] = []
    attributes: list[Attribute] = []
    minimum = 0
    for parameter in inspect.signature(function).parameters.values():
        name = parameter.name
        if parameter.kind is parameter.VAR_KEYWORD:
            raise UserError(f"{label}: name the attributes one by one instead of **{name}")
        if parameter.kind is parameter.KEYWORD_ONLY:
            if name not in INJECTED:
                attributes.append(_attribute(label, parameter, hints.get(name)))
        elif parameter.kind is parameter.VAR_POSITIONAL:
            if any(text.endswith("?") for text in inputs):
                raise UserError(
                    f"{label}: ONNX has no optional input before a variable number of them; "
                    f"make '{inputs[-1][:-1]}' required, or one of *{name}"
                )
            inputs.append(f"{name}*")
        elif parameter.default is None:
            inputs.append(f"{name}?")
        elif parameter.default is parameter.empty:
            minimum += 1
            inputs.append(name)
        else:
            raise UserError(
                f"{label}: input '{name}' has the default {parameter.default!r}; an optional input has None, "
                f"and an attribute stands after the star: def ...(x, *, {name}={parameter.default!r})"
            )
    if not outputs:
        raise UserError(f"{label}: name its outputs: outputs='y', or outputs={{'y': 'x'}} for the type of x")
    _check_names(label, [text.rstrip("?*") for text in inputs], outputs, attributes)
    return Signature(1, " ".join(inputs), " ".join(outputs), attributes, minimum=minimum)


def same_parameters(label: str, function: Callable[..., Any], signature: Signature, inputs: bool) -> None:
    """Check that ``function`` takes the attributes of ``signature`` and, with ``inputs``, its inputs.

    Raises:
        UserError: says which names are missing or too many.
    """
    parameters = inspect.signature(function).parameters.values()
    keywords = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - set(INJECTED)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters) and keywords != set(signature.attributes):
        raise UserError(
            f"{label}: {function.__name__} must take the attributes {_names(signature.attributes)} "
            f"after a star, it takes {_names(keywords)}"
        )
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    wanted = [formal.name for formal in signature.inputs] if inputs else []
    if positional != wanted:
        raise UserError(
            f"{label}: {function.__name__} must take the inputs {_names(wanted)} in this order, "
            f"it takes {_names(positional)}"
        )


def check_input_names(label: str, option: str, given: Mapping[str, Any], signature: Signature) -> None:
    """Raises UserError if ``given`` names anything but inputs of ``signature``."""
    known = [formal.name for formal in signature.inputs]
    for name in given:
        if name not in known:
            raise UserError(f"{label}: {option} names '{name}'; the inputs are {_names(known)}")


def _names(names: collections.abc.Iterable[str]) -> str:
    return ", ".join(sorted(names) if isinstance(names, set) else names) or "none"


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # a name in some annotation is not importable; the others are read as they stand
        return {k: v for k, v in getattr(function, "__annotations__", {}).items() if not isinstance(v, str)}


def _attribute(label: str, parameter: inspect.Parameter, hint: Any) -> Attribute:
    name = parameter.name
    required = parameter.default is parameter.empty
    default = None if required else parameter.default
    kind = _kind_of_hint(hint) if hint is not None else _kind_of_value(default)
    if kind is None:
        said = "has no type" if hint is None else f"is annotated {hint}"
        raise UserError(f"{label}: attribute '{name}' {said}; annotate it as {_CHOICES}")
    if kind == "INT" and name in _ELEMENT_TYPES:
        raise UserError(f"{label}: an int attribute '{name}' would be read as an element type; rename it")
    if default is not None:
        default = _normal(label, name, kind, default)
    return Attribute(name, kind, required, default)


def _kind_of_hint(hint: Any) -> str | None:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        kinds = [_kind_of_hint(part) for part in typing.get_args(hint) if part is not type(None)]
        return kinds[0] if len(kinds) == 1 else None
    origin = typing.get_origin(hint)
    if origin in _LISTS:
        parts = {part for part in typing.get_args(hint) if part is not Ellipsis}
        element = _SCALARS.get(next(iter(parts))) if len(parts) == 1 else None
        return f"{element}S" if element in ("FLOAT", "INT", "STRING") else None
    return _SCALARS.get(np.ndarray if origin is np.ndarray else hint)


def _kind_of_value(value: Any) -> str | None:
    if isinstance(value, tuple | list):
        kinds = {_SCALARS.get(type(item)) for item in value}
        if kinds == {"INT", "FLOAT"}:
            kinds = {"FLOAT"}
        element = kinds.pop() if len(kinds) == 1 else None
        return f"{element}S" if element in ("FLOAT", "INT", "STRING") else None
    return _SCALARS.get(type(value))


def _normal(label: str, name: str, kind: str, value: Any) -> Any:
    """A default in the form in which attributes arrive: tuples for lists, float for FLOAT."""
    python: dict[str, Any] = {"FLOAT": float, "INT": int, "STRING": str}
    accepted: dict[str, Any] = {"FLOAT": float | int, "INT": int, "STRING": str}
    scalar = kind.removesuffix("S")
    if kind == "TENSOR":
        array = np.array(value)
        array.flags.writeable = False
        return array
    values = value if kind != scalar else (value,)
    if isinstance(values, str) or not all(isinstance(item, accepted[scalar]) for item in values):
        raise UserError(f"{label}: the default {value!r} of attribute '{name}' is no {kind}")
    found = tuple(python[scalar](item) for item in values)
    return found if kind != scalar else found[0]


def _check_names(
    label: str, inputs: Sequence[str], outputs: Sequence[str], attributes: Sequence[Attribute]
) -> None:
    seen: set[str] = set()
    for name in (*inputs, *outputs, *(attribute.name for attribute in attributes)):
        if not name.isidentifier():
            raise UserError(f"{label}: '{name}' is no name for an input or output")
        if name in _RESERVED:
            raise UserError(f"{label}: the name '{name}' has another meaning on every operation; rename it")
        if name in seen:
            raise UserError(f"{label}: '{name}' names two of its inputs, outputs and attributes")
        seen.add(name)
