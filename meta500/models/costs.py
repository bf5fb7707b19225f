"""What a network costs before anything runs: parameters, multiply-adds, memory of activations.

Operations: the multiply-adds of convolutions, transposed convolutions and matrix products, as the formula of
each operator has them, those with padding included; a multiply-add is 2 operations. Additions of biases,
activation functions, normalisation, pooling, dropout and the loss do not count. These are the numbers that
papers and PyTorch give (as GMACs: half of the operations).

Activations: the bytes of every value that an operation of the forward pass writes, 4 for each floating-point
element (float32) whatever the network's type. A training step that keeps all of them for its backward pass
needs so much. Backends need less where they compute in place, join operations or keep a mask, and more where
an operation keeps what it does not hand on (means of a normalisation, temporary arrays).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meta500.errors import UserError
from meta500.graph import Model, Operation, TensorType
from meta500.graph.types import ValueType, is_floating
from meta500.models import arguments, registry

FLOAT32_BYTES = 4

Shape = tuple[int, ...]
# (operation, shapes of its inputs, shape of its first output) -> multiply-adds.
Formula = Callable[[Operation, list[Shape], Shape], int]


@dataclass(frozen=True)
class Node:
    """One operation: its name, operator, the shape of its first output; its trainable scalars, multiply-adds
    of one forward pass, and bytes of the values that it writes."""

    name: str
    operator: str
    shape: Shape
    parameters: int
    multiply_adds: int
    activation_bytes: int


@dataclass(frozen=True)
class Costs:
    """The sums over all ``nodes``, which stand in the order of the graph.

    ``image`` is the shape of one sample of the first input where the costs are those of one image.
    """

    parameters: int
    multiply_adds: int
    activation_bytes: int
    nodes: tuple[Node, ...]
    image: Shape = ()

    @property
    def flops(self) -> int:
        """Floating-point operations of one forward pass: 2 per multiply-add."""
        return 2 * self.multiply_adds

    def operators(self) -> dict[str, tuple[int, Costs]]:
        """Number of nodes and their costs by operator, the most multiply-adds first, then the most bytes."""
        groups: dict[str, list[Node]] = {}
        for node in self.nodes:
            groups.setdefault(node.operator, []).append(node)
        sums = {name: (len(nodes), _sum(nodes)) for name, nodes in groups.items()}
        rank = {name: (-c.multiply_adds, -c.activation_bytes, name) for name, (_, c) in sums.items()}
        return {name: sums[name] for name in sorted(sums, key=rank.__getitem__)}


def costs(model: Model) -> Costs:
    """Parameters, multiply-adds and bytes of activations of one forward pass over the model's batch, as this
    module's docstring defines them.

    A parameter that several nodes read counts at the first of them.

    Raises:
        UserError: a shape that is not known in numbers, such as that of an open batch, or an operator whose
            multiply-adds are not known here.
    """
    types = model.graph.types()
    sizes = {name: model.graph.initializers[name].size for name in model.parameters}
    nodes = []
    for op in model.graph.operations:
        formula = _formula(op)
        inputs = [_shape(types, name, op) for name in op.operands if name]
        outputs = [_shape(types, name, op) for name in op.results if name]
        read = sum(sizes.pop(name) for name in dict.fromkeys(op.operands) if name in sizes)
        written = sum(_bytes(types[name], _shape(types, name, op)) for name in op.results if name)
        products = formula(op, inputs, outputs[0]) if formula else 0
        nodes.append(Node(op.name, op.op_type, outputs[0], read, products, written))
    total = _sum(nodes)
    return Costs(model.parameter_count(), total.multiply_adds, total.activation_bytes, total.nodes)


def outline(name: str, **chosen: Any) -> Model:
    """The network ``name`` with all weights 0 instead of random ones, which takes no time and no memory; made
    to be looked at, not to be trained.

    Raises:
        UserError: as :func:`meta500.models.create`.
    """
    registry.options(name)
    if "initialization" in chosen:
        arguments.initialization_name(chosen["initialization"])
    try:
        return registry.create(name, **{**chosen, "initialization": "zeros"})
    except MemoryError as error:
        raise UserError(f"model '{name}' with these options does not fit into memory: {error}") from None


def costs_per_image(name: str, **chosen: Any) -> Costs:
    """:func:`costs` of the network ``name`` for one image, whatever its option ``batch``.

    Raises:
        UserError: as :func:`meta500.models.create`.
    """
    if "batch" in chosen:
        arguments.batch_dimension(chosen["batch"])
    model = outline(name, **{**chosen, "batch": 1})
    first = next(iter(model.inputs.values()))
    shape = first.shape if isinstance(first, TensorType) else None
    return replace(costs(model), image=tuple(int(d) for d in (shape or ())[1:]))  # type: ignore[arg-type]


def _sum(nodes: list[Node]) -> Costs:
    return Costs(
        sum(n.parameters for n in nodes),
        sum(n.multiply_adds for n in nodes),
        sum(n.activation_bytes for n in nodes),
        tuple(nodes),
    )


def _shape(types: dict[str, ValueType | None], name: str, op: Operation) -> Shape:
    found = types.get(name)
    if not isinstance(found, TensorType) or not found.static:
        raise UserError(
            f"{op.label}: the size of '{name}' ({found or 'of unknown type'}) is not known in numbers; "
            "costs are counted for a fixed batch and fixed sizes"
        )
    assert found.shape is not None
    return tuple(int(d) for d in found.shape)  # type: ignore[arg-type]


def _bytes(value: ValueType | None, shape: Shape) -> int:
    dtype = value.dtype if isinstance(value, TensorType) else None
    each = FLOAT32_BYTES if dtype is None or is_floating(dtype) else dtype.itemsize
    return each * math.prod(shape)


def _formula(op: Operation) -> Formula | None:
    """The formula of an operator; None where it has no products."""
    if op.domain in ("", "ai.onnx"):
        if op.op_type in _PRODUCTS:
            return _PRODUCTS[op.op_type]
        if op.op_type in _NO_PRODUCTS:
            return None
    raise UserError(
        f"{op.label}: the multiply-adds of operator {op.domain or 'ai.onnx'}.{op.op_type} are not known; "
        f"those of {', '.join(_PRODUCTS)} are, and many operators have none"
    )


def _conv(op: Operation, inputs: list[Shape], output: Shape) -> int:
    """N K OH OW (C / group) KH KW; likewise in other dimensions."""
    return math.prod(output) * math.prod(inputs[1][1:])


def _conv_transpose(op: Operation, inputs: list[Shape], output: Shape) -> int:
    """N C H W (K / group) KH KW, with H and W of the input."""
    return math.prod(inputs[0]) * math.prod(inputs[1][1:])


def _gemm(op: Operation, inputs: list[Shape], output: Shape) -> int:
    """M N K."""
    return math.prod(output) * inputs[0][0 if getattr(op, "transA", 0) else 1]


def _matmul(op: Operation, inputs: list[Shape], output: Shape) -> int:
    """One per element of the result and of the inner dimension."""
    return math.prod(output) * inputs[0][-1]


_PRODUCTS: dict[str, Formula] = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
}

# Operators of which nothing counts: elementwise, reductions, pooling, normalisation, losses, movements.
_WITHOUT = (
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Celu", "Clip", "Div", "Elu", "Equal", "Erf", "Exp",
    "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "LeakyRelu", "Less",
    "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow",
    "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Softplus", "Softsign", "Sqrt", "Sub",
    "Sum", "Swish", "Tanh", "ThresholdedRelu", "Where", "ArgMax", "ArgMin", "CumSum", "ReduceL1",
    "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare", "TopK", "AveragePool", "GlobalAveragePool", "GlobalLpPool",
    "GlobalMaxPool", "LpPool", "MaxPool", "MaxUnpool", "BatchNormalization", "Dropout",
    "GroupNormalization", "InstanceNormalization", "LRN", "LayerNormalization", "LpNormalization",
    "MeanVarianceNormalization", "RMSNormalization", "Hardmax", "LogSoftmax", "NegativeLogLikelihoodLoss",
    "Softmax", "SoftmaxCrossEntropyLoss", "Concat", "Constant", "ConstantOfShape", "DepthToSpace",
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad", "Range", "Reshape",
    "Resize", "Shape", "Size", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose",
    "Unsqueeze", "Upsample",
)  # fmt: skip
_NO_PRODUCTS = frozenset(_WITHOUT)
