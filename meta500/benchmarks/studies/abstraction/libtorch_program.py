"""Prints a network as a C++ program of ATen calls: one named tensor per value, one comment per ONNX node.

Inference runs under ``c10::InferenceMode``; a training step is the forward pass in training form, the
loss, ``Tensor::backward()`` and ``w.add_(w.grad(), -rate)`` for each weight. A tensor is released after its
last use, as a loop in Python releases it. Only the headers of the operators that occur are included: they
compile in a third of the time of ``torch/torch.h``.

Batch normalisation in training updates its running statistics as PyTorch does: with the variance of the
sample where ONNX takes that of the batch. No loss or gradient depends on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from meta500.backends.windows import transposed
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
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Operation, Visitor
from meta500.graph.visitor import unsupported

BACKEND = "LibTorch program"
# The generated class, and what it inherits: a weight is a member beside them. The value "logits" is a
# variable of a function, which may have the name of a member.
_MEMBERS = ("Network", "LibtorchProgram", "Program", "Array", "Type", "loss", "logits_count")
_ENDS = {"mean": 1, "sum": 2, "none": 0}


@dataclass
class Form:
    """A function that is printed: its lines so far, and the headers that it needs.

    ``aliases`` are the values of identities, with the value that each is; ``defined`` those that have a
    variable of this function.
    """

    network: Description
    names: Names
    training: bool
    headers: set[str] = field(default_factory=set)
    lines: list[str] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)

    def tensor(self, name: str) -> str:
        """The variable of a value; ``{}`` for a missing optional one.

        Raises:
            UserError: a constant that is not float32.
        """
        if not name:
            return "{}"
        number = self.network.number(name)
        if number is not None:
            return self.call("scalar_tensor", real(number))
        if name in self.network.arrays and name not in self.network.weights:
            kind = self.network.arrays[name].dtype
            raise UserError(
                f"network '{self.network.name}': constant '{name}' is {kind}; programs are float32"
            )
        return self.names(self.aliases.get(name, name))

    def call(self, function: str, *arguments: str) -> str:
        """A call of ``at::function``."""
        self.headers.add(function)
        return f"at::{function}({', '.join(arguments)})"

    def let(self, name: str, expression: str) -> None:
        """Define the variable of value ``name``."""
        self.defined.add(name)
        self.lines.append(f"at::Tensor {self.names(name)} = {expression};")


class LibtorchVisitor(Visitor):
    """Writes the lines of every operation that the programs have; refuses all others."""

    backend = BACKEND

    def visit_conv(self, op: Any, network: Form) -> None:
        windows, x = windows_of(op, network.network), network.tensor(op.X)
        rank = _images(op, network, op.X)
        pads = windows.begins
        if windows.begins != windows.ends:
            x, pads = _padded(x, windows.begins, windows.ends, 0.0, network), (0,) * rank
        arguments = (
            x,
            network.tensor(op.W),
            network.tensor(op.B),
            ints(windows.strides),
            f"at::IntArrayRef({ints(pads)})",  # {0, 0} alone could be a text: there is padding="same"
            ints(windows.dilations),
            str(op.group),
        )
        network.let(op.Y, network.call(f"conv{rank}d", *arguments))

    def visit_convtranspose(self, op: Any, network: Form) -> None:
        rank, spatial = _images(op, network, op.X), network.network.shapes[op.X][2:]
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
        covered = [(n - 1) * s + e for n, s, e in zip(spatial, windows.strides, windows.extents, strict=True)]
        extra = [o - c + 2 * p for o, c, p in zip(shape, covered, windows.begins, strict=True)]
        if min(extra) < 0 or any(
            e >= max(s, d) for e, s, d in zip(extra, windows.strides, windows.dilations, strict=True)
        ):
            raise unsupported(op, BACKEND, "pads that differ at both ends of an axis")
        arguments = (
            *map(network.tensor, (op.X, op.W, op.B)),
            ints(windows.strides),
            ints(windows.begins),
            ints(extra),
            str(op.group),
            ints(windows.dilations),
        )
        network.let(op.Y, network.call(f"conv_transpose{rank}d", *arguments))

    def visit_batchnormalization(self, op: Any, network: Form) -> None:
        if op.since_version < 9:
            raise unsupported(op, BACKEND, "versions before 9")
        training = bool(getattr(op, "training_mode", 0))
        values = map(network.tensor, (op.X, op.scale, op.B, *_statistics(op)))
        share = real(1 - op.momentum) if training else "0.0"
        more = ("true" if training else "false", share, real(op.epsilon), "false")
        network.let(op.Y, network.call("batch_norm", *values, *more))

    def visit_maxpool(self, op: Any, network: Form) -> None:
        if op.results[1:]:
            raise unsupported(op, BACKEND, "its output 'Indices'")
        windows, rank, x = windows_of(op, network.network), _images(op, network, op.X), network.tensor(op.X)
        pads = windows.begins
        uneven = windows.begins != windows.ends and not op.ceil_mode
        if uneven or any(2 * p > k for p, k in zip(pads, windows.kernel, strict=True)):
            x = _padded(x, windows.begins, windows.ends, None, network)
            pads = (0,) * rank
        elif windows.begins != windows.ends:
            raise unsupported(op, BACKEND, "ceil_mode with pads that differ at both ends of an axis")
        sizes = (ints(windows.kernel), ints(windows.strides), ints(pads), ints(windows.dilations))
        ceil = "true" if op.ceil_mode else "false"
        network.let(op.Y, network.call(f"max_pool{rank}d", x, *sizes, ceil))

    def visit_averagepool(self, op: Any, network: Form) -> None:
        windows, rank = windows_of(op, network.network), _images(op, network, op.X)
        uneven = windows.begins != windows.ends
        if uneven or set(windows.dilations) != {1}:
            raise unsupported(op, BACKEND, "dilations, and pads that differ at both ends of an axis")
        sizes = (ints(windows.kernel), ints(windows.strides), ints(windows.begins))
        flags = ("true" if flag else "false" for flag in (op.ceil_mode, op.count_include_pad))
        network.let(op.Y, network.call(f"avg_pool{rank}d", network.tensor(op.X), *sizes, *flags))

    def visit_globalaveragepool(self, op: Any, network: Form) -> None:
        rank = _images(op, network, op.X)
        network.let(op.Y, network.call(f"adaptive_avg_pool{rank}d", network.tensor(op.X), ints((1,) * rank)))

    def visit_gemm(self, op: Any, network: Form) -> None:
        a, b, c = map(network.tensor, (op.A, op.B, op.C))
        plain = op.alpha == 1 and op.beta == 1 and not op.transA
        if plain and op.transB and (not op.C or len(network.network.shapes[op.C]) == 1):
            network.let(op.Y, network.call("linear", a, b, c))
            return
        a, b = (f"{m}.t()" if flag else m for m, flag in ((a, op.transA), (b, op.transB)))
        if not op.C:
            raise unsupported(op, BACKEND, "without C, and not x W^T")
        network.let(op.Y, network.call("addmm", c, a, b, real(op.beta), real(op.alpha)))

    def visit_matmul(self, op: Any, network: Form) -> None:
        network.let(op.Y, network.call("matmul", network.tensor(op.A), network.tensor(op.B)))

    def visit_relu(self, op: Any, network: Form) -> None:
        network.let(op.Y, network.call("relu", network.tensor(op.X)))

    def visit_leakyrelu(self, op: Any, network: Form) -> None:
        network.let(op.Y, network.call("leaky_relu", network.tensor(op.X), real(op.alpha)))

    def visit_tanh(self, op: Any, network: Form) -> None:
        network.let(op.output, network.call("tanh", network.tensor(op.input)))

    def visit_sigmoid(self, op: Any, network: Form) -> None:
        network.let(op.Y, network.call("sigmoid", network.tensor(op.X)))

    def visit_clip(self, op: Any, network: Form) -> None:
        limits: list[str] = []
        for side in ("min", "max"):
            value = getattr(op, side)
            if op.since_version >= 11:
                given = network.network.constant(op, value or "")
                value = None if given is None else given.item()
            limits.append("{}" if value is None or not np.isfinite(value) else f"at::Scalar({real(value)})")
        network.let(op.output, network.call("clamp", network.tensor(op.input), *limits))

    def visit_softmax(self, op: Any, network: Form) -> None:
        if op.since_version < 13:
            raise unsupported(op, BACKEND, "versions before 13")
        network.let(op.output, network.call("softmax", network.tensor(op.input), str(op.axis)))

    def visit_add(self, op: Any, network: Form) -> None:
        self._pointwise(op, "add", network)

    def visit_sub(self, op: Any, network: Form) -> None:
        self._pointwise(op, "sub", network)

    def visit_mul(self, op: Any, network: Form) -> None:
        self._pointwise(op, "mul", network)

    def visit_div(self, op: Any, network: Form) -> None:
        self._pointwise(op, "div", network)

    def _pointwise(self, op: Any, function: str, network: Form) -> None:
        if op.since_version < 7:
            raise unsupported(op, BACKEND, "versions before 7")
        value = network.call(function, network.tensor(op.A), _scalar_or_tensor(op.B, network))
        network.let(op.C, value)

    def visit_sum(self, op: Any, network: Form) -> None:
        first, *others = op.operands
        value = network.tensor(first)
        for name in others:
            value = network.call("add", value, network.tensor(name))
        network.let(op.results[0], value)

    def visit_concat(self, op: Any, network: Form) -> None:
        values = ", ".join(map(network.tensor, op.operands))
        network.let(op.results[0], network.call("cat", f"{{{values}}}", str(op.axis)))

    def visit_flatten(self, op: Any, network: Form) -> None:
        shape = network.network.shapes[op.output]
        network.let(op.output, network.call("reshape", network.tensor(op.input), ints(shape)))

    def visit_reshape(self, op: Any, network: Form) -> None:
        shape = network.network.shapes[op.results[0]]
        network.let(op.results[0], network.call("reshape", network.tensor(op.data), ints(shape)))

    def visit_transpose(self, op: Any, network: Form) -> None:
        rank = len(network.network.shapes[op.data])
        order = op.perm or tuple(reversed(range(rank)))
        network.let(op.transposed, network.call("permute", network.tensor(op.data), ints(order)))

    def visit_slice(self, op: Any, network: Form) -> None:
        if op.since_version < 10:
            raise unsupported(op, BACKEND, "versions before 10")
        known = [network.network.constant(op, name or "") for name in (op.starts, op.ends, op.axes, op.steps)]
        starts, ends = (np.asarray(array).tolist() for array in known[:2])
        axes = list(range(len(starts))) if known[2] is None else known[2].tolist()
        steps = [1] * len(starts) if known[3] is None else known[3].tolist()
        if min(steps) < 1:
            raise unsupported(op, BACKEND, "steps below 1")
        value = network.tensor(op.data)
        limit = 2**63 - 1
        for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
            places = (str(max(-limit, min(limit, place))) + "LL" for place in (start, end))
            value = network.call("slice", value, str(axis), *places, str(step))
        network.let(op.output, value)

    def visit_identity(self, op: Any, network: Form) -> None:
        self._same(op.input, op.output, network)

    def visit_dropout(self, op: Any, network: Form) -> None:
        if op.results[1:]:
            raise unsupported(op, BACKEND, "its output 'mask'")
        if op.since_version < 12:
            raise unsupported(op, BACKEND, "versions before 12")
        mode = network.network.constant(op, op.training_mode or "")
        ratio = network.network.constant(op, op.ratio or "")
        if mode is None or not mode.item():
            self._same(op.data, op.output, network)
            return
        share = real(0.5 if ratio is None else ratio.item())
        network.let(op.output, network.call("dropout", network.tensor(op.data), share, "true"))

    def _same(self, source: str, target: str, network: Form) -> None:
        network.aliases[target] = network.aliases.get(source, source)
        network.lines.append(f"// it is {network.tensor(source)} itself")

    def visit_softmaxcrossentropyloss(self, op: Any, network: Form) -> None:
        if op.results[1:]:
            raise unsupported(op, BACKEND, "its output 'log_prob'")
        ignored = -100 if op.ignore_index is None else op.ignore_index
        values = map(network.tensor, (op.scores, op.labels, op.weights))
        network.let(
            op.output, network.call("cross_entropy_loss", *values, str(_ENDS[op.reduction]), str(ignored))
        )


def _statistics(op: Any) -> tuple[str, str]:
    """Mean and variance, which version 14 has renamed."""
    mean, variance = op.operands[3:5]
    return mean, variance


def _images(op: Operation, network: Form, x: str) -> int:
    rank = len(network.network.shapes[x]) - 2
    if rank not in (1, 2, 3):
        raise unsupported(op, BACKEND, f"{rank} spatial axes")
    return rank


def _padded(x: str, begins: Sequence[int], ends: Sequence[int], value: float | None, network: Form) -> str:
    """``x`` with ``value`` around it; None is what never wins a maximum."""
    pairs = [side for pair in zip(reversed(begins), reversed(ends), strict=True) for side in pair]
    number = "-std::numeric_limits<double>::infinity()" if value is None else real(value)
    return network.call("constant_pad_nd", x, ints(pairs), number)


def _scalar_or_tensor(name: str, network: Form) -> str:
    number = network.network.number(name)
    return network.tensor(name) if number is None else f"at::Scalar({real(number)})"


def network_source(network: Description) -> str:
    """The text of ``network.cpp``: forward, and with a loss the training form of it.

    Raises:
        UnsupportedOperation: an operation of inference that these programs do not have.
    """
    names = Names(_MEMBERS)
    fed = [names(name) for name in network.inputs]
    weights = [names(name) for name in network.weights]
    forms = [_form(network, names, False)]
    refusal = ""
    try:
        forms.append(_form(network, names, True))
    except UnsupportedOperation as error:
        refusal = str(error)
    headers = sorted({header for form in forms for header in form.headers})
    trained = (
        forms[1].lines if len(forms) > 1 else [_thrown(refusal or "this network has no 'label' and 'loss'")]
    )
    types = {IMAGE: "float32", LABEL: "int64"}
    lines = [
        f"// {comment(network.name)}: inference and training as ATen calls.",
        "#include <limits>",
        "#include <stdexcept>",
        "",
        *(f"#include <ATen/ops/{header}.h>" for header in headers),
        "",
        '#include "libtorch.h"',
        "",
        "namespace {",
        "",
        "class Network final : public meta500::LibtorchProgram {",
        "  public:",
        "    Network() {",
        *(
            f"        add_input({literal(name)}, meta500::Type::{types[name]}, {ints(shape)}, {names(name)});"
            for name, shape in network.inputs.items()
        ),
        *(
            f"        add_weight({literal(name)}, {'true' if name in network.trained else 'false'}, "
            f"{ints(network.shapes[name])}, {names(name)});"
            for name in network.weights
        ),
        "    }",
        "",
        "  protected:",
        "    at::Tensor forward() const override {",
        *(f"        {line}" for line in forms[0].lines),
        "    }",
        "",
        "    at::Tensor loss() const override {",
        *(f"        {line}" for line in trained),
        "    }",
        "",
        "  private:",
        *(f"    at::Tensor {name};" for name in (*fed, *weights)),
        "};",
        "",
        "}  // namespace",
        "",
        "std::unique_ptr<meta500::Program> meta500::make_program() { return std::make_unique<Network>(); }",
        "",
    ]
    return "\n".join(lines)


def untrainable(network: Description) -> str:
    """Why the program of a network can't train; "" where it can."""
    return reason_against_training(network, lambda: _form(network, Names(_MEMBERS), True))


def _form(network: Description, names: Names, training: bool) -> Form:
    operations, result = (network.training, LOSS) if training else (network.inference, LOGITS)
    form = Form(network, names, training)
    if not operations:
        form.lines.append(_thrown(NO_LOSS))
        return form
    parts, variables = printed(LibtorchVisitor(), form, operations)
    form.lines = joined(parts, operations, variables, form.tensor(result))
    form.lines.append(f"return {form.tensor(result)};")
    return form


def _thrown(reason: str) -> str:
    return f"throw std::runtime_error({literal(reason)});"
