"""Pickles of dicts, lists, strings, integers and integer arrays, read without being run.

A pickle is a program that can call anything. Here none is run: the few operations that the files of CIFAR
need are followed one by one, and everything else is refused. Their meaning is that of Python's pickletools.
"""

from __future__ import annotations

import pickletools
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta500.datasets.pictures import file_bytes
from meta500.errors import UserError


class Number(int):
    """An integer of a pickle that knows at which byte of the file it is."""

    offset: int

    def __new__(cls, value: int, offset: int) -> Number:
        number = super().__new__(cls, value)
        number.offset = offset
        return number


class _Array:
    """An array whose contents come after it."""

    value: np.ndarray


@dataclass
class _Dtype:
    code: str
    order: str = "="

    def numpy(self) -> np.dtype:
        return np.dtype(self.code).newbyteorder(self.order)  # type: ignore[arg-type]


_CORES = ("numpy.core", "numpy._core")
# The globals that these files name, by what they are here. numpy 2 moved its core; Python 3 spells bytes by
# _codecs.encode where the protocol has none.
_GLOBALS = {
    ("numpy", "ndarray"): "ndarray",
    ("numpy", "dtype"): "dtype",
    ("_codecs", "encode"): "encode",
    **{(f"{core}.multiarray", "_reconstruct"): "reconstruct" for core in _CORES},
    **{(f"{core}.multiarray", "scalar"): "scalar" for core in _CORES},
    **{(f"{core}.numeric", "_frombuffer"): "frombuffer" for core in _CORES},
}
_INTEGERS = re.compile("[iu][1248]")


@dataclass(frozen=True)
class _Global:
    kind: str


def read_pickle(path: Path) -> Any:
    """What a pickle of CIFAR holds, without running it: dicts (with str keys), lists, tuples, bytes, str,
    None, bool, integers (`Number`) and numpy arrays of integers.

    Protocols 2 to 5 of Python 2 and 3, the arrays as numpy 1 and 2 write them (text of Python 2 is bytes).

    Raises:
        UserError: the file cannot be read, is cut off, damaged, goes on after the pickle, or holds anything
            else; the message names file and byte, and the global or operation that is refused.
    """
    data = file_bytes(path)
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}
    at = 0

    def marked() -> list[Any]:
        start = marks.pop()
        items = stack[start:]
        del stack[start:]
        return items

    try:
        operations: Iterable[tuple[Any, Any, Any]] = pickletools.genops(data)
        for opcode, argument, at in operations:
            name = opcode.name
            if name in ("PROTO", "FRAME"):
                pass
            elif name == "MARK":
                marks.append(len(stack))
            elif name in ("BININT", "BININT1", "BININT2", "LONG1"):
                stack.append(Number(argument, at))
            elif name in ("BINSTRING", "SHORT_BINSTRING"):
                stack.append(argument.encode("latin-1"))
            elif name in ("BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8"):
                stack.append(argument)
            elif name == "BYTEARRAY8":
                stack.append(bytes(argument))
            elif name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
                stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
            elif name == "TUPLE":
                stack.append(tuple(marked()))
            elif name in _TUPLES:
                items = [stack.pop() for _ in range(_TUPLES[name])]
                stack.append(tuple(items[::-1]))
            elif name in ("APPEND", "APPENDS"):
                items = [stack.pop()] if name == "APPEND" else marked()
                _plain(stack[-1], list).extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                items = [stack.pop(), stack.pop()][::-1] if name == "SETITEM" else marked()
                entries = _plain(stack[-1], dict)
                entries.update((_text(key), value) for key, value in _pairs(items))
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in ("GLOBAL", "STACK_GLOBAL"):
                if name == "GLOBAL":
                    module, _, attribute = argument.partition(" ")
                else:
                    attribute, module = _plain(stack.pop(), str), _plain(stack.pop(), str)
                if (module, attribute) not in _GLOBALS:
                    raise UserError(
                        f"{path}: byte {at}: the pickle names the global {module}.{attribute}, which is "
                        "refused: files of CIFAR name numpy's arrays only"
                    )
                stack.append(_Global(_GLOBALS[module, attribute]))
            elif name == "REDUCE":
                arguments, function = stack.pop(), stack.pop()
                stack.append(_called(_plain(function, _Global).kind, _plain(arguments, tuple), at))
            elif name == "BUILD":
                _build(stack[-2], _plain(stack.pop(), tuple))
            elif name != "STOP":
                raise UserError(
                    f"{path}: byte {at}: the pickle has the operation {name}, which is refused: files of "
                    "CIFAR hold dicts, lists, strings, integers and numpy arrays only"
                )
        (value,) = stack
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: byte {at} of {len(data)}: is no pickle of CIFAR, damaged or cut off: {error}"
        ) from None
    if at + 1 != len(data):
        raise UserError(f"{path}: byte {at + 1}: the pickle ends here, the file goes on to byte {len(data)}")
    if isinstance(value, dict):
        return {key: item.value if isinstance(item, _Array) else item for key, item in value.items()}
    return value


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _plain(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"{type(value).__name__} in place of {kind.__name__}")
    return value


def _pairs(items: list[Any]) -> list[tuple[Any, Any]]:
    return list(zip(items[::2], items[1::2], strict=True))


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else _plain(value, str)


def _called(kind: str, arguments: tuple[Any, ...], at: int) -> Any:
    """What one of `_GLOBALS` makes of its arguments."""
    if kind == "encode":
        text, encoding = arguments
        if _plain(encoding, str) != "latin1":
            raise ValueError(f"text encoded as {encoding}")
        return _plain(text, str).encode("latin-1")
    if kind == "dtype":
        code = _text(arguments[0])
        if not _INTEGERS.fullmatch(code):
            raise ValueError(f"numbers of the dtype {code!r}; integers are needed")
        return _Dtype(code)
    if kind == "reconstruct":
        if _plain(arguments[0], _Global).kind != "ndarray":
            raise ValueError(f"an array of the class {arguments[0].kind}")
        return _Array()
    if kind == "scalar":
        dtype, raw = arguments
        return Number(int(_numbers(raw, dtype, (), "C")), at)
    if kind == "frombuffer":
        raw, dtype, shape, order = arguments[:4]
        array = _Array()
        array.value = _numbers(raw, dtype, shape, order)
        return array
    raise ValueError(f"a call of {kind}")


def _build(target: Any, state: tuple[Any, ...]) -> None:
    """Give an array or a dtype its contents."""
    if isinstance(target, _Dtype):
        order = _text(state[1])
        if order not in ("<", ">", "=", "|"):
            raise ValueError(f"the byte order {order!r}")
        target.order = order
        return
    _, shape, dtype, is_fortran, raw = state
    _plain(target, _Array).value = _numbers(raw, dtype, shape, "F" if is_fortran else "C")


def _numbers(raw: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    kind = _plain(dtype, _Dtype).numpy()
    sides = [int(_plain(side, Number)) for side in _plain(shape, tuple)]
    if any(side < 0 for side in sides):
        raise ValueError(f"an array of the shape {sides}")
    return np.frombuffer(_plain(raw, bytes), kind).reshape(sides, order="F" if order == "F" else "C")
