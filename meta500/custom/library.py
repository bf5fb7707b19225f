"""Operators in a C++ file: the library behind them, called through the interface of ``meta500.h``."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meta500.backends.rules import Call, running_threads
from meta500.backends.toolchain import compile_library
from meta500.errors import UserError
from meta500.graph.operation import Signature
from meta500.graph.types import TensorType, dtype_from_onnx, dtype_to_onnx, is_floating

ABI, MAX_RANK = 1, 16
_MESSAGE = 2000
# FLOAT, UINT8, INT8, UINT16, INT16, INT32, INT64, BOOL, FLOAT16, DOUBLE, UINT32, UINT64, BFLOAT16
_ELEMENT_TYPES = frozenset({1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 16})
_KINDS = {"FLOAT": 1, "INT": 2, "STRING": 3, "FLOATS": 6, "INTS": 7, "STRINGS": 8}
# What the data of an empty tensor points to: NULL would mean that the tensor is missing.
_NOTHING = ctypes.c_int64(0)


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("dtype", ctypes.c_int32),
        ("rank", ctypes.c_int32),
    ]


class _Attribute(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("ints", ctypes.POINTER(ctypes.c_int64)),
        ("floats", ctypes.POINTER(ctypes.c_double)),
        ("strings", ctypes.POINTER(ctypes.c_char_p)),
        ("count", ctypes.c_int64),
        ("kind", ctypes.c_int32),
    ]


class _Call(ctypes.Structure):
    _fields_ = [
        ("abi", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("n_inputs", ctypes.c_int32),
        ("n_outputs", ctypes.c_int32),
        ("n_attributes", ctypes.c_int32),
        ("inputs", ctypes.POINTER(_Tensor)),
        ("outputs", ctypes.POINTER(_Tensor)),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("output_gradients", ctypes.POINTER(_Tensor)),
        ("input_gradients", ctypes.POINTER(_Tensor)),
        ("message", ctypes.c_char_p),
        ("message_size", ctypes.c_int64),
    ]


class View(NamedTuple):
    """A contiguous tensor in memory: address (0: none), ONNX element type and shape."""

    data: int
    dtype: int
    shape: tuple[int, ...]


MISSING = View(0, 0, ())


def view(data: int, dtype: np.dtype, shape: Sequence[int], name: str = "a tensor") -> View:
    """The view of a tensor with elements at address ``data``.

    Raises:
        UserError: an element type that ``meta500.h`` does not know.
    """
    number = dtype_to_onnx(dtype)
    if number not in _ELEMENT_TYPES:
        raise UserError(f"{name} is {dtype}, which C++ operators do not take")
    empty = 0 in shape
    return View(ctypes.addressof(_NOTHING) if empty else data, number, tuple(shape))


def array_view(array: np.ndarray | None, name: str = "a tensor") -> View:
    """The view of a contiguous array; it must outlive the view."""
    if array is None:
        return MISSING
    return view(array.__array_interface__["data"][0], array.dtype, array.shape, name)


def contiguous(array: Any) -> np.ndarray | None:
    """``array`` in row-major order, aligned and in the machine's byte order; copied only if need be."""
    if array is None:
        return None
    array = np.asarray(array)
    return np.require(array, array.dtype.newbyteorder("="), ["C", "A"])


_filling: ContextVar[int | None] = ContextVar("filling", default=None)


@contextmanager
def outputs_filled_with(byte: int) -> Iterator[None]:
    """A context in which outputs hold this ``byte`` before a forward: shows unwritten elements."""
    token = _filling.set(byte)
    try:
        yield
    finally:
        _filling.reset(token)


def fill(outputs: Sequence[np.ndarray]) -> None:
    """Fill new outputs as :func:`outputs_filled_with` asks for."""
    byte = _filling.get()
    if byte is not None:
        for array in outputs:
            array.reshape(-1).view(np.uint8).fill(byte)


class Library:
    """The compiled functions ``NAME_forward``, ``NAME_backward`` and ``NAME_shapes`` of one C++ file.

    Args:
        label: domain and operator, as "my.ops.Swish".
        source: the C++ file.
        signature: of the operator.
        flags: for the compiler.

    Raises:
        UserError: there is no such file, or an attribute of a kind that ``meta500.h`` does not know.
    """

    def __init__(self, label: str, source: Path, signature: Signature, flags: tuple[str, ...] = ()) -> None:
        self.label, self.source, self.signature, self.flags = label, source, signature, flags
        if not source.is_file():
            raise UserError(f"{label}: there is no C++ file {source}")
        for attribute in signature.attributes.values():
            if attribute.kind not in _KINDS:
                raise UserError(
                    f"{label}: C++ operators have no {attribute.kind} attribute ('{attribute.name}')"
                )

    @functools.cached_property
    def _functions(self) -> dict[str, Any]:
        """The functions of the library by kind, compiled and loaded on first use."""
        path = compile_library([self.source], self.flags, include=[Path(__file__).parent])
        try:
            loaded = ctypes.CDLL(os.fspath(path))
        except OSError as error:
            raise UserError(f"{self.source}: its library cannot be loaded: {error}") from None
        found = {}
        for kind in ("forward", "backward", "shapes"):
            function = getattr(loaded, f"{self._name}_{kind}", None)
            if function is not None:
                function.argtypes, function.restype = [ctypes.POINTER(_Call)], ctypes.c_int32
                found[kind] = function
        if "forward" not in found:
            raise UserError(
                f"{self.source}: has no function {self._name}_forward; "
                f"write META500_FORWARD({self._name}) {{ ... }}"
            )
        return found

    def compile(self) -> None:
        """Compile and load the file now, where that has not been done.

        Raises:
            UserError: there is no compiler, it reports an error, or the file has no forward function.
        """
        _ = self._functions

    @property
    def _name(self) -> str:
        return self.label.rpartition(".")[2]

    def output_types(
        self, inputs: Sequence[TensorType | None], attributes: Mapping[str, Any]
    ) -> tuple[TensorType | None, ...] | None:
        """Types of the outputs by ``NAME_shapes`` for inputs of known size; None without that function.

        Raises:
            UserError: what the function refuses.
        """
        if "shapes" not in self._functions:
            return None
        views = [_type_view(value) for value in inputs]
        count = len(self.signature.outputs)
        blank = [View(0, 0, (0,) * MAX_RANK) for _ in range(count)]
        tensors, _kept_alive = self._run("shapes", views, blank, attributes)
        found = []
        for formal, tensor in zip(self.signature.outputs, tensors, strict=True):
            dtype = dtype_from_onnx(tensor.dtype) if tensor.dtype in _ELEMENT_TYPES else None
            shape = (
                tuple(tensor.shape[axis] for axis in range(tensor.rank)) if tensor.rank <= MAX_RANK else ()
            )
            if dtype is None or any(size < 0 for size in shape) or not 0 <= tensor.rank <= MAX_RANK:
                raise UserError(
                    f"{self.source.name}: {self._name}_shapes gives no valid type for output '{formal.name}'"
                )
            found.append(TensorType(dtype, shape))
        return tuple(found)

    def known(self, types: Sequence[TensorType | None]) -> list[tuple[np.dtype, tuple[int, ...]]]:
        """Dtypes and sizes of the outputs to allocate.

        Raises:
            UserError: they are not known.
        """
        found = []
        for formal, value in zip(self.signature.outputs, types, strict=True):
            if value is None or value.dtype is None or not value.static:
                raise UserError(
                    f"{self.label}: the type of output '{formal.name}' is unknown; name an input of its type "
                    f"in outputs=, or write @{self._name}.shape, or META500_SHAPES({self._name}) in C++"
                )
            assert value.shape is not None
            found.append((value.dtype, tuple(int(d) for d in value.shape)))  # type: ignore[arg-type]
        return found

    def forward(
        self,
        inputs: Sequence[Any],
        types: Sequence[TensorType | None],
        attributes: Mapping[str, Any],
    ) -> tuple[np.ndarray, ...]:
        """The outputs, of ``types``, for numpy inputs (None where one is missing).

        Raises:
            UserError: what the C++ function refuses, with its message.
        """
        arrays = [contiguous(a) for a in inputs]
        outputs = [np.empty(shape, dtype) for dtype, shape in self.known(types)]
        fill(outputs)
        self._run("forward", self._views(arrays), [array_view(a) for a in outputs], attributes)
        return tuple(outputs)

    def backward(self, call: Call, *cotangents: Any) -> tuple[np.ndarray | None, ...]:
        """The numpy rule's vector-Jacobian product.

        Raises:
            UserError: the file has no backward, or what it refuses.
        """
        inputs = [contiguous(a) for a in call.inputs]
        outputs = [contiguous(a) for a in call.outputs]
        given = [*cotangents, *(None for _ in outputs[len(cotangents) :])]
        gradients = [
            np.zeros_like(out) if g is None else contiguous(np.asarray(g, out.dtype))
            for g, out in zip(given, outputs, strict=True)
            if out is not None
        ]
        needs = (*call.needs, *(True for _ in inputs[len(call.needs) :]))
        wanted = [
            np.zeros_like(a) if a is not None and need and is_floating(a.dtype) else None
            for a, need in zip(inputs, needs, strict=False)
        ]
        self.run_backward(
            self._views(inputs),
            [array_view(a) for a in outputs],
            [array_view(a) for a in gradients],
            [array_view(a) for a in wanted],
            {name: call.attributes.get(name) for name in self.signature.attributes},
        )
        return tuple(wanted)

    def run_forward(
        self,
        inputs: Sequence[View],
        outputs: Sequence[View],
        attributes: Mapping[str, Any],
        threads: int | None = None,
    ) -> None:
        """Call ``NAME_forward`` on tensors in memory.

        Raises:
            UserError: what it refuses.
        """
        self._run("forward", inputs, outputs, attributes, threads=threads)

    def run_backward(
        self,
        inputs: Sequence[View],
        outputs: Sequence[View],
        output_gradients: Sequence[View],
        input_gradients: Sequence[View],
        attributes: Mapping[str, Any],
        threads: int | None = None,
    ) -> None:
        """Call ``NAME_backward`` on tensors in memory; ``input_gradients`` hold zeros.

        Raises:
            UserError: the file has no backward, or what it refuses.
        """
        if "backward" not in self._functions:
            raise UserError(
                f"{self.label} has no gradient: {self.source.name} has no function {self._name}_backward; "
                f"write META500_BACKWARD({self._name}) {{ ... }}"
            )
        self._run("backward", inputs, outputs, attributes, output_gradients, input_gradients, threads)

    def _views(self, arrays: Sequence[np.ndarray | None]) -> list[View]:
        return [array_view(a, f"input {index}") for index, a in enumerate(arrays)]

    def _run(
        self,
        kind: str,
        inputs: Sequence[View],
        outputs: Sequence[View],
        attributes: Mapping[str, Any],
        output_gradients: Sequence[View] = (),
        input_gradients: Sequence[View] = (),
        threads: int | None = None,
    ) -> tuple[Any, list[Any]]:
        """Call one function.

        Returns:
            The C array of its outputs as the function left it, and what has to live as long as it is read.
        """
        function = self._functions[kind]
        kept: list[Any] = []
        listed = _attributes(self.signature, attributes, kept)
        message = ctypes.create_string_buffer(_MESSAGE)
        groups = (inputs, outputs, output_gradients, input_gradients)
        tensors = [_tensors(views, kept) for views in groups]
        call = _Call(
            abi=ABI,
            threads=threads if threads is not None else running_threads.get() or 0,
            n_inputs=len(inputs),
            n_outputs=len(outputs),
            n_attributes=len(listed),
            inputs=tensors[0],
            outputs=tensors[1],
            attributes=listed,
            output_gradients=tensors[2],
            input_gradients=tensors[3],
            message=ctypes.cast(message, ctypes.c_char_p),
            message_size=_MESSAGE,
        )
        code = function(ctypes.byref(call))  # what `kept` holds has to live until here
        if code != 0:
            text = message.value.decode("utf-8", "replace") or f"it returned {code} without a message"
            raise UserError(f"{self.source.name}: {self._name}_{kind}: {text}")
        return tensors[1], kept


def _type_view(value: TensorType | None) -> View:
    if value is None:
        return MISSING
    assert value.dtype is not None and value.shape is not None
    shape = tuple(int(d) for d in value.shape)  # type: ignore[arg-type]
    return View(ctypes.addressof(_NOTHING), view(0, value.dtype, (0,), "an input").dtype, shape)


def _tensors(views: Sequence[View], kept: list[Any]) -> Any:
    """A C array of tensors; their shapes lie in one block, which is put into ``kept`` to live on."""
    sizes = [size for _, _, shape in views for size in shape]
    block = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
    found = (_Tensor * max(1, len(views)))()
    start = ctypes.addressof(block)
    offset = 0
    for tensor, (data, dtype, shape) in zip(found, views, strict=False):
        tensor.data, tensor.dtype, tensor.rank = data or None, dtype, len(shape)
        tensor.shape = ctypes.cast(start + 8 * offset, ctypes.POINTER(ctypes.c_int64))
        offset += len(shape)
    kept += [block, found]
    return found


def _attributes(signature: Signature, values: Mapping[str, Any], kept: list[Any]) -> Any:
    """A C array of the attributes that have a value; what it points to is put into ``kept``."""
    given = [(name, values[name]) for name in signature.attributes if values.get(name) is not None]
    found = (_Attribute * len(given))()
    for entry, (name, value) in zip(found, given, strict=True):
        kind = signature.attributes[name].kind
        items = value if kind.endswith("S") else (value,)
        scalar = kind.removesuffix("S")
        entry.name, entry.kind, entry.count = name.encode(), _KINDS[kind], len(items)
        if scalar == "STRING":
            texts = [item if isinstance(item, bytes) else item.encode() for item in items]
            entry.strings = _kept((ctypes.c_char_p * len(items))(*texts), kept)
        elif scalar == "INT":
            entry.ints = _kept((ctypes.c_int64 * len(items))(*items), kept)
        else:
            entry.floats = _kept((ctypes.c_double * len(items))(*items), kept)
    return found


def _kept(array: Any, kept: list[Any]) -> Any:
    kept.append(array)
    return ctypes.cast(array, ctypes.POINTER(array._type_))
