"""Prints a network as a C++ program of oneDNN primitives, built one by one for exactly its shapes.

It is what a direct user of the library writes: convolutions and inner products in the layouts that they
choose, values in these layouts from one primitive to the next, weights reordered once. An activation that
alone reads the result of a convolution, an inner product or an addition runs within that primitive (post-op),
ReLU behind a batch normalisation within that (``fuse_norm_relu``); others overwrite their operand where
nothing else reads it. Batch normalisation stays a primitive of its own: nothing is folded into weights. The
post-op ``sum`` is not used: the networks of this package never add to the direct result of a convolution.

In training activations are primitives of their own, except for ReLU behind a batch normalisation. The
backward primitives are built by ``onednn.cpp``, each beside its forward; the update is the primitive ``sum``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meta500.backends.windows import Windows, transposed
from meta500.benchmarks.studies.abstraction.network_program import (
    IMAGE,
    LABEL,
    LOGITS,
    LOSS,
    NO_LOSS,
    Description,
    Names,
    comment,
    ints,
    joined,
    literal,
    printed,
    real,
    reason_against_training,
    windows_of,
)
from meta500.errors import UnsupportedOperation
from meta500.graph import Operation, Visitor
from meta500.graph.visitor import unsupported

BACKEND = "oneDNN program"
# What the generated functions name.
_NAMED = ("net", "none", "Value", "Weights", "Activation", "Pooling", "Builder", "Array", "Type", "Dims")
_ALIASES = {"Identity", "Dropout"}
# Nothing that is built for their derivative reads what these have written.
_OVERWRITABLE = {
    *("Conv", "ConvTranspose", "Gemm", "Add", "Sum", "BatchNormalization", "Concat", "MatMul"),
    *("MaxPool", "AveragePool", "GlobalAveragePool"),
}


@dataclass
class Form:
    """A function that is printed.

    ``aliases`` are the values that are another one; ``defined`` those that have a variable; ``readers`` the
    operations that read each value, through aliases and flattening; ``writers`` the one that writes it;
    ``within`` the values that a primitive before their own operation has written.
    """

    network: Description
    names: Names
    training: bool
    result: str
    lines: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)
    readers: dict[str, list[Operation]] = field(default_factory=dict)
    writers: dict[str, Operation] = field(default_factory=dict)
    within: dict[str, str] = field(default_factory=dict)

    def value(self, name: str, op: Operation) -> str:
        """The variable of a value.

        Raises:
            UnsupportedOperation: it is a constant.
        """
        if name in self.network.arrays:
            raise unsupported(op, BACKEND, f"operand '{name}' is a constant there")
        return self.names(self.aliases.get(name, name))

    def weight(self, name: str, op: Operation) -> str:
        """The index of a weight; ``none`` for a missing one.

        Raises:
            UnsupportedOperation: it is computed, or not float32.
        """
        if name and name not in self.network.weights:
            raise unsupported(op, BACKEND, f"operand '{name}' must be a float32 constant")
        return f"Weights::{self.names(name)}" if name else "none"

    def let(self, name: str, expression: str) -> None:
        """Define the variable of value ``name``."""
        self.defined.add(name)
        self.lines.append(f"Value {self.names(name)} = {expression};")

    def shape(self, name: str) -> str:
        """The extents of a value."""
        return ints(self.network.shapes[name])

    def only_reader(self, name: str) -> Operation | None:
        """The operation that alone reads a value which is no result; None if there is no such."""
        found = self.readers.get(name, [])
        if len(found) != 1 or name == self.result:
            return None
        return found[0]

    def owned(self, name: str) -> bool:
        """Whether the one operation that reads a value may write into its memory."""
        while True:
            writer = self.writers.get(name)
            if writer is None or self.only_reader(name) is None:
                return False
            if writer.op_type not in _ALIASES | {"Flatten"}:
                return not self.training or writer.op_type in _OVERWRITABLE
            name = writer.operands[0]


class OnednnVisitor(Visitor):
    """Writes the lines of every operation that the programs have; refuses all others."""

    backend = BACKEND

    def visit_conv(self, op: Any, network: Form) -> None:
        _require_images(op, network, op.X)
        windows = _text(windows_of(op, network.network))
        after, written = _activation_within(op, op.Y, network)
        network.let(
            written,
            f"net.convolution({_operands(op, network)}, {windows}, {op.group}, {network.shape(op.Y)}{after})",
        )

    def visit_convtranspose(self, op: Any, network: Form) -> None:
        _require_images(op, network, op.X)
        spatial = network.network.shapes[op.X][2:]
        windows, shape = transposed(
            spatial,
            network.network.shapes[op.W][2:],
            op.strides,
            op.pads,
            op.dilations,
            op.output_padding,
            op.output_shape,
            op.auto_pad,
            op.since_version,
        )
        # The end pads are what makes the extents right; they are below the given ones by the output padding.
        ends = [
            (n - 1) * s + e - b - o
            for n, s, e, b, o in zip(
                spatial, windows.strides, windows.extents, windows.begins, shape, strict=True
            )
        ]
        after, written = _activation_within(op, op.Y, network)
        network.let(
            written,
            f"net.transposed_convolution({_operands(op, network)}, {_text(windows, ends)}, {op.group}, "
            f"{network.shape(op.Y)}{after})",
        )

    def visit_gemm(self, op: Any, network: Form) -> None:
        shapes = network.network.shapes
        if op.alpha != 1 or op.beta != 1 or op.transA or not op.transB:
            raise unsupported(op, BACKEND, "anything but x W^T + b")
        if op.C and shapes[op.C] != shapes[op.B][:1]:
            raise unsupported(op, BACKEND, f"C of shape {list(shapes[op.C])}")
        after, written = _activation_within(op, op.Y, network)
        network.let(
            written,
            f"net.inner_product({_operands(op, network)}, {network.shape(op.Y)}{after})",
        )

    def visit_batchnormalization(self, op: Any, network: Form) -> None:
        if op.since_version < 9:
            raise unsupported(op, BACKEND, "versions before 9")
        if network.training and not getattr(op, "training_mode", 0):
            raise unsupported(op, BACKEND, "given statistics in training")
        reader = network.only_reader(op.Y)
        within = reader is not None and reader.op_type == "Relu"
        written = network.within[op.Y] = reader.results[0] if within and reader is not None else op.Y
        weights = ", ".join(network.weight(name, op) for name in op.operands[1:5])
        in_place = not network.training and network.owned(op.X)
        network.let(
            written,
            f"net.batch_normalization({network.value(op.X, op)}, {weights}, {_single(op.epsilon)}, "
            f"{_single(op.momentum)}, {_flag(within)}, {_flag(in_place)})",
        )

    def visit_relu(self, op: Any, network: Form) -> None:
        self._elementwise(op, "Activation::relu()", network)

    def visit_leakyrelu(self, op: Any, network: Form) -> None:
        self._elementwise(op, f"Activation::relu({_single(op.alpha)})", network)

    def visit_clip(self, op: Any, network: Form) -> None:
        self._elementwise(op, _clip(op, network), network)

    def visit_tanh(self, op: Any, network: Form) -> None:
        self._elementwise(op, "Activation::tanh()", network)

    def visit_sigmoid(self, op: Any, network: Form) -> None:
        self._elementwise(op, "Activation::sigmoid()", network)

    def _elementwise(self, op: Operation, function: str, network: Form) -> None:
        source, target = op.operands[0], op.results[0]
        if network.within.get(source) == target:
            network.lines.append("// within the primitive before")
            return
        value = network.value(source, op)
        network.let(target, f"net.elementwise({value}, {function}, {_flag(network.owned(source))})")

    def visit_maxpool(self, op: Any, network: Form) -> None:
        if op.results[1:]:
            raise unsupported(op, BACKEND, "its output 'Indices'")
        _require_images(op, network, op.X)
        windows = windows_of(op, network.network)
        network.let(op.Y, self._pooling("max", op, windows, network))

    def visit_averagepool(self, op: Any, network: Form) -> None:
        _require_images(op, network, op.X)
        windows = windows_of(op, network.network)
        beyond = any(
            a > b for a, b in zip(_ends(windows, network.network.shapes[op.X]), windows.ends, strict=True)
        )
        if op.count_include_pad and beyond:
            raise unsupported(op, BACKEND, "count_include_pad with windows beyond the padding")
        kind = "average_with_padding" if op.count_include_pad else "average_inside"
        network.let(op.Y, self._pooling(kind, op, windows, network))

    def visit_globalaveragepool(self, op: Any, network: Form) -> None:
        _require_images(op, network, op.X)
        spatial = network.network.shapes[op.X][2:]
        ones, zeros = (1,) * len(spatial), (0,) * len(spatial)
        whole = Windows(spatial, ones, ones, zeros, zeros, ones)
        network.let(op.Y, self._pooling("average_inside", op, whole, network))

    def _pooling(self, kind: str, op: Any, windows: Windows, network: Form) -> str:
        text = _text(windows, _ends(windows, network.network.shapes[op.X]))
        return f"net.pooling({network.value(op.X, op)}, Pooling::{kind}, {text}, {network.shape(op.Y)})"

    def visit_add(self, op: Any, network: Form) -> None:
        self._require_same_shapes(op, network)
        after, written = _activation_within(op, op.C, network)
        network.let(written, f"net.addition({network.value(op.A, op)}, {network.value(op.B, op)}{after})")

    def visit_sum(self, op: Any, network: Form) -> None:
        self._require_same_shapes(op, network)
        if len(op.operands) < 2:
            raise unsupported(op, BACKEND, "of one value")
        text = network.value(op.operands[0], op)
        for name in op.operands[1:]:
            text = f"net.addition({text}, {network.value(name, op)})"
        network.let(op.results[0], text)

    def _require_same_shapes(self, op: Operation, network: Form) -> None:
        shapes = {network.network.shapes[name] for name in op.operands}
        if len(shapes) != 1 or op.since_version < 7:
            raise unsupported(op, BACKEND, "operands of different shapes, and versions before 7")

    def visit_concat(self, op: Any, network: Form) -> None:
        rank = len(network.network.shapes[op.results[0]])
        values = ", ".join(network.value(name, op) for name in op.operands)
        network.let(
            op.results[0],
            f"net.concatenation({{{values}}}, {op.axis % rank}, {network.shape(op.results[0])})",
        )

    def visit_flatten(self, op: Any, network: Form) -> None:
        shape = network.network.shapes[op.input]
        if (op.axis if op.axis >= 0 else op.axis + len(shape)) != 1:
            raise unsupported(op, BACKEND, f"axis {op.axis}")
        network.let(op.output, f"net.flattened({network.value(op.input, op)}, {network.shape(op.output)})")

    def visit_reshape(self, op: Any, network: Form) -> None:
        before, after = network.network.shapes[op.data], network.network.shapes[op.results[0]]
        if len(after) != 2 or before[:1] != after[:1]:
            raise unsupported(op, BACKEND, f"{list(before)} to {list(after)}")
        network.let(op.results[0], f"net.flattened({network.value(op.data, op)}, {ints(after)})")

    def visit_matmul(self, op: Any, network: Form) -> None:
        shapes, left = network.network.shapes, op.A in network.network.arrays
        matrix, x = (op.A, op.B) if left else (op.B, op.A)
        constant = matrix in network.network.weights and matrix not in network.network.trained
        if not constant or len(shapes[matrix]) != 2 or len(shapes[x]) != 4:
            raise unsupported(op, BACKEND, "anything but four dimensions and a constant matrix")
        if any(reader.op_type != "MatMul" for reader in network.readers[matrix]):
            # Other primitives take their weights into a layout of their own, and the plain ones are freed.
            raise unsupported(op, BACKEND, "a matrix that is used in other ways")
        network.let(
            op.Y,
            f"net.matrix_product({network.value(x, op)}, {network.weight(matrix, op)}, {_flag(left)}, "
            f"{network.shape(op.Y)})",
        )

    def visit_softmax(self, op: Any, network: Form) -> None:
        if op.since_version < 13 or network.training:
            raise unsupported(op, BACKEND, "versions before 13, and training")
        rank = len(network.network.shapes[op.input])
        network.let(op.output, f"net.softmax({network.value(op.input, op)}, {op.axis % rank})")

    def visit_lrn(self, op: Any, network: Form) -> None:
        if network.training or not op.size % 2:
            raise unsupported(op, BACKEND, "training, and even sizes")
        numbers = ", ".join(_single(value) for value in (op.alpha, op.beta, op.bias))
        network.let(
            op.Y, f"net.local_response_normalization({network.value(op.X, op)}, {op.size}, {numbers})"
        )

    def visit_slice(self, op: Any, network: Form) -> None:
        if op.since_version < 10 or network.training:
            raise unsupported(op, BACKEND, "versions before 10, and training")
        known = [network.network.constant(op, name or "") for name in (op.starts, op.ends, op.axes, op.steps)]
        starts = np.asarray(known[0]).tolist()
        axes = list(range(len(starts))) if known[2] is None else known[2].tolist()
        if known[3] is not None and set(known[3].tolist()) != {1}:
            raise unsupported(op, BACKEND, "steps other than 1")
        shape = network.network.shapes[op.data]
        begins = [0] * len(shape)
        for axis, start in zip(axes, starts, strict=True):
            extent = shape[axis]
            begins[axis] = min(max(start + extent if start < 0 else start, 0), extent)
        network.let(
            op.output, f"net.slice({network.value(op.data, op)}, {ints(begins)}, {network.shape(op.output)})"
        )

    def visit_identity(self, op: Any, network: Form) -> None:
        self._same(op, network)

    def visit_dropout(self, op: Any, network: Form) -> None:
        if op.results[1:] or op.since_version < 12:
            raise unsupported(op, BACKEND, "its output 'mask', and versions before 12")
        mode = network.network.constant(op, op.training_mode or "")
        ratio = network.network.constant(op, op.ratio or "")
        if mode is not None and mode.item() and (ratio is None or ratio.item() != 0):
            raise unsupported(op, BACKEND, "training: this version of oneDNN has no dropout")
        self._same(op, network)

    def _same(self, op: Operation, network: Form) -> None:
        source = op.operands[0]
        network.value(source, op)
        network.aliases[op.results[0]] = network.aliases.get(source, source)
        network.lines.append(f"// it is {network.value(source, op)} itself")

    def visit_softmaxcrossentropyloss(self, op: Any, network: Form) -> None:
        plain = op.output == LOSS and op.labels == LABEL and op.reduction == "mean"
        if op.results[1:] or op.weights or not plain:
            raise unsupported(op, BACKEND, "anything but the mean without weights as the loss itself")
        ignored = (
            f"{op.ignore_index}"
            if op.ignore_index is not None
            else "std::numeric_limits<std::int64_t>::min()"
        )
        label = list(network.network.inputs).index(LABEL)
        network.lines.append(f"net.cross_entropy({network.value(op.scores, op)}, {label}, {ignored});")


def _operands(op: Operation, network: Form) -> str:
    """A value, its weights, and the bias or ``none``."""
    x, weights, bias = (*op.operands, "")[:3]
    return ", ".join((network.value(x, op), network.weight(weights, op), network.weight(bias, op)))


def _activation_within(op: Operation, written: str, network: Form) -> tuple[str, str]:
    """The activation that runs within the primitive of ``op``, as a last argument, and the value written."""
    reader = network.only_reader(written)
    if reader is None or network.training or reader.op_type not in ("Relu", "Clip"):
        return "", written
    network.within[written] = reader.results[0]
    text = "Activation::relu()" if reader.op_type == "Relu" else _clip(reader, network)
    return f", {text}", reader.results[0]


def _clip(op: Any, network: Form) -> str:
    limits = []
    for side, least in (("min", "-"), ("max", "")):
        value = getattr(op, side)
        if op.since_version >= 11:
            given = network.network.constant(op, value or "")
            value = None if given is None else given.item()
        unlimited = value is None or not np.isfinite(value)
        limits.append(f"{least}std::numeric_limits<float>::max()" if unlimited else _single(value))
    return f"Activation::clip({', '.join(limits)})"


def _require_images(op: Operation, network: Form, x: str) -> None:
    rank = len(network.network.shapes[x])
    if rank not in (3, 4, 5):
        raise unsupported(op, BACKEND, f"{rank - 2} spatial axes")


def _text(windows: Windows, ends: Sequence[int] | None = None) -> str:
    parts = (windows.kernel, windows.strides, windows.dilations, windows.begins)
    return "{" + ", ".join(map(ints, (*parts, windows.ends if ends is None else ends))) + "}"


def _ends(windows: Windows, shape: Sequence[int]) -> list[int]:
    """The pads at the ends that all windows need: with ceil_mode the last may reach beyond the given ones."""
    return [
        max(end, span - begin - extent)
        for end, span, begin, extent in zip(
            windows.ends, windows.spans, windows.begins, shape[2:], strict=True
        )
    ]


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _single(value: float) -> str:
    return f"{real(value)}f"


def network_source(network: Description) -> str:
    """The text of ``network.cpp``: the lists of primitives of inference and, with a loss, of training.

    Raises:
        UnsupportedOperation: an operation of inference that these programs do not have.
    """
    names = Names(_NAMED)
    for name in (*network.inputs, *network.weights):
        names(name)
    inference = _form(network, names, False)
    try:
        training = _form(network, names, True)
    except UnsupportedOperation as error:
        training = [f"throw std::runtime_error({literal(str(error))});"]
    types = {IMAGE: "float32", LABEL: "int64"}
    lines = [
        f"// {comment(network.name)}: inference and training as oneDNN primitives.",
        "// These functions run once and build what the steps run: they shall compile fast.",
        '#pragma GCC optimize("O0")',
        "",
        "#include <limits>",
        "#include <stdexcept>",
        "",
        '#include "onednn.h"',
        "",
        "using namespace meta500;",
        "",
        "namespace {",
        "",
        "// In the order of the file of weights; apart from the functions of the C library.",
        "struct Weights {",
        "    enum : int {",
        *(f"        {names(name)}," for name in network.weights),
        "    };",
        "};",
        "",
        "}  // namespace",
        "",
        "std::vector<Array> meta500::network_weights() {",
        "    std::vector<Array> found;",
        *(
            f"    found.emplace_back({literal(name)}, Type::float32, Dims{ints(network.shapes[name])}, "
            f"{_flag(name in network.trained)});"
            for name in network.weights
        ),
        "    return found;",
        "}",
        "",
        "std::vector<Array> meta500::network_inputs() {",
        "    std::vector<Array> found;",
        *(
            f"    found.emplace_back({literal(name)}, Type::{types[name]}, Dims{ints(shape)});"
            for name, shape in network.inputs.items()
        ),
        "    return found;",
        "}",
        "",
        "void meta500::build_inference(Builder &net) {",
        *(f"    {line}" for line in inference),
        "}",
        "",
        "void meta500::build_training(Builder &net) {",
        *(f"    {line}" for line in training),
        "}",
        "",
    ]
    return "\n".join(lines)


def untrainable(network: Description) -> str:
    """Why the program of a network can't train; "" where it can."""
    return reason_against_training(network, lambda: _form(network, Names(_NAMED), True))


def _form(network: Description, names: Names, training: bool) -> list[str]:
    operations, result = (network.training, LOSS) if training else (network.inference, LOGITS)
    if not operations:
        return [f"throw std::runtime_error({literal(NO_LOSS)});"]
    form = Form(network, names, training, result)
    for op in operations:
        for name in op.operands:
            form.readers.setdefault(name, []).append(op)
        for name in op.results:
            form.writers[name] = op
    form.defined.add(IMAGE)
    parts, variables = printed(OnednnVisitor(), form, operations)
    kept = names(form.aliases.get(result, result))
    lines = joined(parts, operations, variables, kept)
    first = f"Value {names(IMAGE)} = net.input({list(network.inputs).index(IMAGE)});"
    return [first, *lines, *([] if training else [f"net.finish({kept});"])]
