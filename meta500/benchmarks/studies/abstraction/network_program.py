"""What a generated C++ program is printed from, and how it is driven: names, arrays in files, its process.

A program consists of the generated ``network.cpp``, the texts of its library and the ones in ``cpp/`` that
all programs have in common: ``program.h`` (the contract between a network and the rest) and ``protocol.cpp``
(main, which answers orders). No Python runs in it. Its weights and inputs are files: the arrays one behind
the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta500.backends.windows import Windows, sliding
from meta500.benchmarks.studies.abstraction.level import INFERENCE, Job, Session
from meta500.benchmarks.workers import Worker
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Model, Operation, TensorType, Visitor
from meta500.graph.model import operations_for
from meta500.graph.passes import infer_types, training_form

TEXTS = Path(__file__).parent / "cpp"
IMAGE, LABEL, LOGITS, LOSS = "image", "label", "logits", "loss"
NO_LOSS = "the network has no 'label' and 'loss'"

_LONGEST = 60
_ORDER_SECONDS = 600.0
# Keywords and alternative tokens of C++20, macros in lower case of common headers, and names that the
# generated class uses.
_RESERVED = frozenset({
    "alignas", "alignof", "and", "and_eq", "asm", "auto", "bitand", "bitor", "bool", "break", "case",
    "catch", "char", "char8_t", "char16_t", "char32_t", "class", "co_await", "co_return", "co_yield",
    "compl", "concept", "const", "consteval", "constexpr", "constinit", "const_cast", "continue", "decltype",
    "default", "delete", "do", "double", "dynamic_cast", "else", "enum", "explicit", "export", "extern",
    "false", "final", "float", "for", "friend", "goto", "if", "inline", "int", "long", "mutable",
    "namespace", "new", "noexcept", "not", "not_eq", "nullptr", "operator", "or", "or_eq", "override",
    "private", "protected", "public", "register", "reinterpret_cast", "requires", "return", "short",
    "signed", "sizeof", "static", "static_assert", "static_cast", "struct", "switch", "template", "this",
    "thread_local", "throw", "true", "try", "typedef", "typeid", "typename", "union", "unsigned", "using",
    "virtual", "void", "volatile", "wchar_t", "while", "xor", "xor_eq", "module", "import", "assert",
    "errno", "stdin", "stdout", "stderr", "major", "minor", "linux", "unix", "i386", "near", "far", "at",
    "c10", "dnnl", "meta500", "onednn", "std", "torch", "main", "net", "network", "program", "weights",
    "inputs", "outputs", "forward", "view", "library", "prepare", "infer", "train", "weight", "add_input",
    "add_weight",
})  # fmt: skip


@dataclass(frozen=True)
class Description:
    """A network as programs need it: every value has a known shape.

    Attributes:
        name: of the network.
        inference: the operations that the logits need.
        training: those that the loss needs, in training form; empty where there is no loss.
        shapes: of all values of both forms.
        arrays: the initializers by name.
        weights: the float32 initializers that some operation reads, in the order of the file of weights;
            numbers (rank 0) that are not trained are written into the program instead.
        trained: those of them that a training step changes.
        inputs: "image" and, with a loss, "label", with their shapes; the order of the file of inputs.
    """

    name: str
    inference: tuple[Operation, ...]
    training: tuple[Operation, ...]
    shapes: Mapping[str, tuple[int, ...]]
    arrays: Mapping[str, np.ndarray]
    weights: tuple[str, ...]
    trained: frozenset[str]
    inputs: Mapping[str, tuple[int, ...]]

    def number(self, name: str) -> float | None:
        """The value of a constant of one number; None for any other value."""
        array = self.arrays.get(name)
        is_number = array is not None and array.ndim == 0 and name not in self.trained
        return float(array.item()) if is_number and array is not None else None

    def constant(self, op: Operation, name: str) -> np.ndarray | None:
        """The value of an operand that must be known now; None for a missing optional one.

        Raises:
            UserError: it is computed.
        """
        if not name:
            return None
        if name not in self.arrays:
            raise UserError(f"{op.label}: its operand '{name}' must be a constant of the file")
        return self.arrays[name]


def describe(model: Model) -> Description:
    """What programs of ``model`` are printed from.

    Raises:
        UserError: the network lacks "image" or "logits", is not float32, or a shape is open or unknown.
    """
    graph = model.graph
    for name, place in ((IMAGE, graph.inputs), (LOGITS, graph.outputs)):
        if name not in place:
            raise UserError(f"network '{model.name}' has no value '{name}'; it has {', '.join(place)}")
    with_loss = LOSS in graph.outputs and LABEL in graph.inputs
    arrays = {**graph.initializers, **_constants(graph.operations)}
    trained = training_form(model)[0] if with_loss else model
    shapes: dict[str, tuple[int, ...]] = {name: array.shape for name, array in arrays.items()}
    inference = _steps(graph.operations, operations_for(graph, [LOGITS]))
    training = _steps(trained.graph.operations, operations_for(trained.graph, [LOSS])) if with_loss else ()
    # Dropout's mode is a constant that the training form brings with it.
    arrays.update(trained.graph.initializers)
    shapes.update(_shapes(model, inference))
    shapes.update(_shapes(trained, training))
    inputs = {
        name: shapes[name] for name in (IMAGE, LABEL) if name in graph.inputs and (with_loss or name == IMAGE)
    }
    used = dict.fromkeys(name for op in (*inference, *training) for name in op.operands)
    parameters = frozenset(model.parameters)
    floats = {name: array for name, array in arrays.items() if array.dtype == np.float32}
    weights = tuple(n for n in used if n in floats and (floats[n].ndim > 0 or n in parameters))
    return Description(
        model.name, inference, training, shapes, arrays, weights, parameters & frozenset(weights), inputs
    )


def _constants(operations: Iterable[Operation]) -> dict[str, np.ndarray]:
    return {
        op.results[0]: np.asarray(op.attributes["value"])
        for op in operations
        if op.op_type == "Constant" and "value" in op.attributes
    }


def _steps(operations: Sequence[Operation], needed: Sequence[Operation]) -> tuple[Operation, ...]:
    wanted = {id(op) for op in needed}
    return tuple(
        op
        for op in operations
        if id(op) in wanted and not (op.op_type == "Constant" and "value" in op.attributes)
    )


def _shapes(model: Model, operations: Sequence[Operation]) -> dict[str, tuple[int, ...]]:
    types = infer_types(model, strict=False).graph.types()
    found = {}
    for name in dict.fromkeys(name for op in operations for name in (*op.operands, *op.results) if name):
        kind = types.get(name)
        if not isinstance(kind, TensorType) or not kind.static:
            raise UserError(f"network '{model.name}': value '{name}' has no fixed shape ({kind})")
        if kind.dtype in (np.float64, np.float16):
            raise UserError(f"network '{model.name}': value '{name}' is {kind.dtype}; programs are float32")
        found[name] = tuple(int(extent) for extent in kind.shape or ())  # type: ignore[arg-type]
    return found


def windows_of(op: Any, network: Description) -> Windows:
    """The windows of a Conv, MaxPool, AveragePool or LpPool node.

    Raises:
        UserError: attributes that do not fit.
    """
    x = network.shapes[op.X]
    kernel = network.shapes[op.W][2:] if op.op_type == "Conv" else op.kernel_shape
    return sliding(
        op.op_type,
        x[2:],
        kernel,
        op.strides,
        op.pads,
        getattr(op, "dilations", None),
        op.auto_pad,
        getattr(op, "ceil_mode", 0) or 0,
    )


class Names:
    """C++ identifiers for names of values: the same one for the same name, no two alike.

    Args:
        reserved: identifiers that are not given to any value, beside keywords and macros.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._chosen: dict[str, str] = {}
        self._taken = _RESERVED | set(reserved)

    def __call__(self, name: str) -> str:
        """The identifier of ``name``: its letters and digits, never a keyword or a macro."""
        if name not in self._chosen:
            stem = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_")[:_LONGEST].rstrip("_")
            if not stem or stem[0].isdigit() or stem.upper() == stem:
                stem = f"v_{stem}".rstrip("_")
            found, index = stem, 0
            while found in self._taken:
                index += 1
                found = f"{stem}_{index}"
            self._taken |= {found}
            self._chosen[name] = found
        return self._chosen[name]


def joined(
    parts: Sequence[Sequence[str]], operations: Sequence[Operation], variables: Mapping[str, str], kept: str
) -> list[str]:
    """The lines of all operations, with a line that releases each variable after its last use.

    Args:
        parts: the lines of each operation.
        operations: in the same order.
        variables: by name of a value, the variable that has it; constants and inputs have none.
        kept: the variable that is not released.
    """
    last = {
        variables[name]: position
        for position, op in enumerate(operations)
        for name in (*op.operands, *op.results)
        if name in variables
    }
    lines: list[str] = []
    for position, part in enumerate(parts):
        lines += part
        lines += [f"{v}.reset();" for v, place in last.items() if place == position and v != kept]
    return lines


def printed(
    visitor: Visitor, form: Any, operations: Iterable[Operation]
) -> tuple[list[list[str]], dict[str, str]]:
    """The lines of each operation with its comment, and the variables of the values, for :func:`joined`.

    Args:
        visitor: prints an operation into ``form.lines``.
        form: the function that is printed, with ``names``, ``lines``, ``defined`` and ``aliases``.
        operations: in order.

    Raises:
        UnsupportedOperation: the visitor has no rule for one.
    """
    parts: list[list[str]] = []
    for op in operations:
        form.lines = []
        op.accept(visitor, form)
        parts.append([f"// {describe_node(op)}", *form.lines])
    variables = {name: form.names(name) for name in form.defined}
    variables |= {alias: form.names(name) for alias, name in form.aliases.items() if name in form.defined}
    return parts, variables


def reason_against_training(network: Description, print_training: Callable[[], object]) -> str:
    """Why the program of a network can't train; "" where it can.

    Args:
        network: what is printed.
        print_training: prints its training step, and raises UnsupportedOperation where it cannot.
    """
    if not network.training:
        return NO_LOSS
    try:
        print_training()
    except UnsupportedOperation as error:
        return str(error)
    return ""


def literal(text: str) -> str:
    """A C++ string literal with the bytes of ``text`` (UTF-8)."""
    plain = set(range(0x20, 0x7F)) - {ord('"'), ord("\\"), ord("?")}
    return (
        '"' + "".join(chr(b) if b in plain else f"\\{b:03o}" for b in text.encode("utf-8", "replace")) + '"'
    )


def comment(text: str) -> str:
    """``text`` as part of one comment line: printable ASCII without backslashes."""
    return "".join(c if 0x20 <= ord(c) < 0x7F and c != "\\" else "?" for c in text)[:200]


def describe_node(op: Operation) -> str:
    """The comment over a node's lines."""
    return comment(f"{op.name or op.results[0]}: {op.op_type}")


def ints(values: Iterable[int]) -> str:
    """``{1, 2}``."""
    return "{" + ", ".join(str(int(value)) for value in values) + "}"


def real(value: float) -> str:
    """A finite number as a C++ double.

    Raises:
        UserError: it is not finite.
    """
    if not np.isfinite(value):
        raise UserError(f"{value} cannot be written into a program")
    return repr(float(value))


def common_texts() -> dict[str, str]:
    """The sources that all programs have in common, by file name."""
    from meta500.benchmarks.generation.program import TEXTS as TRAINING_PROGRAM

    own = {name: (TEXTS / name).read_text() for name in ("program.h", "protocol.cpp")}
    return own | {name: (TRAINING_PROGRAM / name).read_text() for name in ("files.h", "json.h")}


def write_arrays(path: Path, arrays: Iterable[np.ndarray]) -> None:
    """Write arrays one behind the other."""
    with path.open("wb") as file:
        for array in arrays:
            file.write(np.ascontiguousarray(array).tobytes())


class ProgramSession(Session):
    """A generated program at work: its process holds the library and nothing else.

    Args:
        program: the executable.
        network: what it was printed from.
        job: what it is to do.
        name: for messages.

    Raises:
        UserError: it can't be started.
        WorkerFailed: the library refuses the network; the message is the library's.
    """

    def __init__(self, program: Path, network: Description, job: Job, name: str) -> None:
        super().__init__()
        self._network, self._folder = network, Path(job.folder)
        self._training = job.phase != INFERENCE
        weights, inputs = self._folder / "weights.bin", self._folder / "inputs.bin"
        arrays = job.arrays()
        write_arrays(weights, (network.arrays[name] for name in network.weights))
        missing = [
            name for name in network.inputs if name not in arrays and (name == IMAGE or self._training)
        ]
        if missing:
            raise UserError(f"{job.inputs}: has no array '{missing[0]}', an input of '{network.name}'")
        write_arrays(
            inputs,
            (
                _fed(name, arrays.get(name, np.zeros(shape, np.int64)), shape)
                for name, shape in network.inputs.items()
            ),
        )
        self._worker = Worker("", dict(os.environ), name, command=[str(program)])
        try:
            self.pid = self._worker.pid
            self.base_memory = int(self.memory()["resident"]) or None
            self.library = str(
                self._worker.ask(
                    "load",
                    _ORDER_SECONDS,
                    weights=str(weights),
                    inputs=str(inputs),
                    training=self._training,
                    threads=job.threads,
                    rate=job.learning_rate,
                )
            )
        except BaseException:
            self.close()
            raise
        finally:
            weights.unlink(missing_ok=True)
            inputs.unlink(missing_ok=True)

    def step(self) -> np.ndarray:
        if self._training:
            loss = self._worker.ask("train", _ORDER_SECONDS, count=1)  # None where it is not finite
            return np.asarray(np.nan if loss is None else loss, np.float32)
        path = self._folder / "logits.bin"
        self._worker.ask("infer", _ORDER_SECONDS, file=str(path))
        return np.fromfile(path, np.float32).reshape(self._network.shapes[LOGITS])

    def run(self, count: int) -> float:
        """``count`` steps; the seconds are the program's own, by a steady clock around the steps alone."""
        return float(self._worker.ask("steps", _ORDER_SECONDS, count=count))

    def memory(self) -> dict[str, int]:
        """Bytes of the program that are "resident" and its "peak"; 0 where the system does not tell."""
        return dict(self._worker.ask("memory", _ORDER_SECONDS))

    def trained(self, gradients: bool = False) -> dict[str, np.ndarray]:
        """The trained weights as they are now, or the gradients of the last training step."""
        path = self._folder / "trained.bin"
        self._worker.ask("write", _ORDER_SECONDS, gradients=gradients, file=str(path))
        values, found, begin = np.fromfile(path, np.float32), {}, 0
        for name in self._network.weights:
            if name in self._network.trained:
                shape = self._network.shapes[name]
                end = begin + int(np.prod(shape))
                found[name], begin = values[begin:end].reshape(shape), end
        return found

    def close(self) -> None:
        self._worker.close()


def _fed(name: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    dtype = np.dtype(np.float32 if name == IMAGE else np.int64)
    if array.shape != shape or array.dtype != dtype:
        raise UserError(
            f"input '{name}' is {array.dtype}{list(array.shape)}, the network takes {dtype}{list(shape)}"
        )
    return array
