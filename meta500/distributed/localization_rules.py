"""What becomes of each operator on a block of the image, and which ones are refused.

A rule adds the local operation (with halos or sums where it needs cells of other blocks) and says where its
results are cut. Losses and means over the image become sums over all processes, so that every process has the
loss of the whole image; the gradients of one process are then those of the sum of all processes' losses by
its own copy of the parameters, and their mean over the processes is the gradient of the undivided network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from meta500.distributed.blocks import Cut, Layout
from meta500.distributed.localization import Localization
from meta500.distributed.localization_windows import transposed_convolution, window_operator
from meta500.graph import Operation, ops
from meta500.graph.model import captured_names
from meta500.graph.passes import FOLLOW, MODE_KEY

Rule = Callable[[Localization, Operation], None]

_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd",
    "BitwiseNot", "BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu",
    "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish",
    "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish",
    "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink",
    "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh",
    "ThresholdedRelu", "Where", "Xor",
)  # fmt: skip
_REASONS = {
    "GlobalMaxPool": "its maximum is over the whole image",
    "InstanceNormalization": "its statistics are those of the whole image",
    "GroupNormalization": "its statistics are those of the whole image",
    "LayerNormalization": "its statistics are those of the whole image",
    "LpNormalization": "its norm is over cells of all blocks",
    "Flatten": "the elements of a block are no contiguous part of the flattened image",
    "Reshape": "the elements of a block are no contiguous part of the reshaped image",
    "MatMul": "its sum is over cells of all blocks",
    "Gemm": "its sum is over cells of all blocks",
    "Dropout": "every block would draw the same mask",
}


def localize_operation(to: Localization, op: Operation) -> None:
    """Add what ``op`` becomes on this block.

    Raises:
        UserError: it needs cells of other blocks in a way that has no distributed form here; names the node.
    """
    operands = [name for name in op.operands if name]
    captured = captured_names(op)
    rule = _RULES.get(op.op_type) if op.domain in ("", "meta500") else None
    if any(to.layout(name) for name in captured):
        to.refuse(op, "its subgraph reads a value that is cut into blocks")
    if not any(to.layout(name) for name in operands):
        for name in (*operands, *captured):
            to.read_whole(name)
        to.keep(op, {})
        return
    if rule is None:
        to.refuse(op, _REASONS.get(op.op_type, f"{op.op_type} is not known to work block by block"))
    rule(to, op)


def _elementwise(to: Localization, op: Operation) -> None:
    _broadcast(to, op, [name for name in op.operands if name])


def _broadcast(to: Localization, op: Operation, names: Sequence[str]) -> None:
    """Element by element, with numpy's broadcasting: all operands are cut where the longest one is."""
    ranks = {name: len(to.shape(op, name)) for name in names}
    rank = max(ranks.values())
    wanted: dict[int, Cut] = {}
    for name in names:
        for axis, cut in to.layout(name).items():
            at = axis + rank - ranks[name]
            if at in wanted and not wanted[at].same(cut):
                to.refuse(op, f"its inputs are cut at different places, {wanted[at]} and {cut}")
            wanted[at] = cut
    changed: dict[str, str] = {}
    for name in names:
        shift = rank - ranks[name]
        own: Layout = {
            at - shift: cut
            for at, cut in wanted.items()
            if at >= shift and to.shape(op, name)[at - shift] != 1
        }
        changed[name] = to.aligned(op, name, own) if own else name
        if not own:
            to.read_whole(name)
    to.keep(_reading(op, changed), wanted)


def _reading(op: Operation, names: dict[str, str]) -> Operation:
    """``op`` with other operands."""
    results = set(op.results)
    return op.renamed({old: new for old, new in names.items() if old != new and old not in results})


def _first_operand(to: Localization, op: Operation) -> None:
    """The layout of the first operand; the others (scales, statistics) are the same for all cells."""
    for name in op.operands[1:]:
        if name and to.read_whole(name):
            to.refuse(op, f"'{name}' is cut into blocks")
    to.keep(op, to.layout(op.operands[0]))


def _batch_normalization(to: Localization, op: Operation) -> None:
    training = (
        op.metadata.get(MODE_KEY) == FOLLOW
        or op.attributes.get("training_mode")
        or not (op.attributes.get("spatial", 1))
    )
    if training:
        to.refuse(
            op,
            "in training its statistics are those of the whole batch and image; normalise with fixed "
            "statistics, or take a network without batch normalisation",
        )
    _first_operand(to, op)


def _dropout(to: Localization, op: Operation) -> None:
    if op.metadata.get(MODE_KEY) == FOLLOW or getattr(op, "training_mode", None) or op.since_version < 7:
        to.refuse(op, _REASONS["Dropout"])
    _first_operand(to, op)


def _softmax(to: Localization, op: Operation) -> None:
    layout = to.layout(op.operands[0])
    rank = len(to.shape(op, op.operands[0]))
    axis = op.attributes.get("axis")
    axis = (-1 if op.since_version >= 13 else 1) if axis is None else axis
    axis %= rank
    summed = [axis] if op.since_version >= 13 else range(axis, rank)
    if any(a in layout for a in summed):
        to.refuse(op, f"its sum is along axis {axis}, which is cut into blocks")
    to.keep(op, layout)


def _concat(to: Localization, op: Operation) -> None:
    names = [name for name in op.operands if name]
    wanted = next(to.layout(name) for name in names if to.layout(name))
    axis = op.attributes["axis"] % len(to.shape(op, names[0]))
    if axis in wanted:
        to.refuse(op, f"it joins along axis {axis}, which is cut into blocks")
    changed = {name: to.aligned(op, name, wanted) for name in names}
    to.keep(_reading(op, changed), wanted)


def _transpose(to: Localization, op: Operation) -> None:
    layout = to.layout(op.operands[0])
    rank = len(to.shape(op, op.operands[0]))
    order = op.attributes.get("perm") or tuple(reversed(range(rank)))
    to.keep(op, {new: layout[old] for new, old in enumerate(order) if old in layout})


def _reduced(mean: bool) -> Rule:
    def reduce(to: Localization, op: Operation) -> None:
        x = op.operands[0]
        layout, rank = to.layout(x), len(to.shape(op, x))
        found = _axes(to, op)
        axes = [axis % rank for axis in (range(rank) if found is None else found)]
        keep = op.attributes.get("keepdims", 1)
        over = {axis: cut for axis, cut in layout.items() if axis in axes}
        rest = {axis: cut for axis, cut in layout.items() if axis not in axes}
        if not over:
            to.keep(op, {axis - (0 if keep else sum(a < axis for a in axes)): c for axis, c in rest.items()})
            return
        if rest:
            to.refuse(op, f"it reduces axes {axes}, of which only some are cut into blocks")
        _summed(to, op, to.fraction(over) if mean else None)

    return reduce


def _axes(to: Localization, op: Operation) -> list[int] | None:
    """The axes of a reduction, an attribute or a constant input; None for all, [] for none."""
    given = getattr(op, "axes", None)
    if isinstance(given, str) and given:
        if given not in to.initializers:
            to.refuse(op, f"its axes '{given}' are no constant")
        given = to.initializers[given].reshape(-1)
    axes = [] if given is None or isinstance(given, str) else [int(axis) for axis in given]
    return axes if axes or op.attributes.get("noop_with_empty_axes") else None


def _global_average(to: Localization, op: Operation) -> None:
    layout = to.layout(op.operands[0])
    if any(axis < 2 for axis in layout):
        to.refuse(op, f"axis {min(layout)} is cut, which is no spatial axis")
    _summed(to, op, to.fraction(layout))


def _summed(to: Localization, op: Operation, share: float | None) -> None:
    """``op`` on the block, times ``share``, summed over all processes."""
    result = op.results[0]
    part = to.fresh(f"{result}:part")
    to.operations.append(op.renamed({result: part}))
    to.total(part, result, share)


def _depth_to_space(to: Localization, op: Operation) -> None:
    layout, size = to.layout(op.operands[0]), op.attributes["blocksize"]
    to.keep(op, {a: _scaled(to, op, cut, Fraction(size)) for a, cut in layout.items()})


def _space_to_depth(to: Localization, op: Operation) -> None:
    layout, size = to.layout(op.operands[0]), op.attributes["blocksize"]
    to.keep(op, {a: _scaled(to, op, cut, Fraction(1, size)) for a, cut in layout.items()})


def _scaled(to: Localization, op: Operation, cut: Cut, factor: Fraction) -> Cut:
    bounds = [b * factor for b in cut.bounds]
    if any(b.denominator != 1 for b in bounds):
        to.refuse(op, f"blocks at {list(cut.bounds)} are no multiples of {1 / factor}")
    return Cut(cut.direction, tuple(int(b) for b in bounds), cut.stride / factor)


def _resize(to: Localization, op: Operation) -> None:
    """Nearest-neighbour enlargement by a whole number, in forms where cell o comes from cell o // factor."""
    x = op.operands[0]
    layout, given = to.layout(x), op.attributes
    usual = ("half_pixel", "round_prefer_floor") if op.since_version >= 11 else ("asymmetric", "floor")
    mode = (
        given.get("mode") or "nearest",
        given.get("coordinate_transformation_mode") or usual[0],
        given.get("nearest_mode") or usual[1],
    )
    if mode[0] != "nearest" or mode[1:] not in (
        ("asymmetric", "floor"), ("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"),
        ("pytorch_half_pixel", "round_prefer_floor"), ("pytorch_half_pixel", "round_prefer_ceil"),
    ):  # fmt: skip
        to.refuse(op, f"only nearest neighbours are enlarged block by block, not {', '.join(mode)}")
    if given.get("axes") is not None or given.get("antialias"):
        to.refuse(op, "its axes or antialiasing are not known to work block by block")
    results = {}
    for axis, cut in layout.items():
        size = to.sizes(op, op.results[0], [axis])[0]
        if size % cut.size:
            to.refuse(op, f"axis {axis} grows from {cut.size} to {size} cells, which is no whole multiple")
        results[axis] = _scaled(to, op, cut, Fraction(size // cut.size))
    changes = {}
    sizes = getattr(op, "sizes", None)
    if isinstance(sizes, str) and sizes:
        if sizes not in to.initializers:
            to.refuse(op, f"its sizes '{sizes}' are no constant")
        local = np.array(to.initializers[sizes])
        for axis, cut in results.items():
            local[axis] = to.length(cut)
        changes["sizes"] = to.constant(f"{sizes}:block", local)
    to.keep(op, results, **changes)


def _mean_squared_error(to: Localization, op: Operation) -> None:
    given = {name: to.layout(name) for name in op.operands}
    wanted = next(layout for layout in given.values() if layout)
    changed = {name: to.aligned(op, name, wanted) for name in op.operands}
    local = _reading(op, changed)
    if op.attributes["reduction"] == "none":
        to.keep(local, wanted)
        return
    _summed(to, local, to.fraction(wanted) if op.attributes["reduction"] == "mean" else None)


def _classification_loss(to: Localization, op: Operation) -> None:
    """SoftmaxCrossEntropyLoss and NegativeLogLikelihoodLoss: scores (N, C, ...), labels (N, ...)."""
    scores, labels = op.operands[:2]
    weights = op.operands[2] if len(op.operands) > 2 else ""
    layout = to.layout(scores)
    if weights and to.read_whole(weights):
        to.refuse(op, f"its weights '{weights}' are cut into blocks")
    if not layout:
        layout = {axis + (axis >= 1): cut for axis, cut in to.layout(labels).items()}
        scores = to.aligned(op, scores, layout)
    if any(axis < 2 for axis in layout):
        to.refuse(op, f"axis {min(layout)} of '{scores}' is cut, which is no spatial axis")
    local_labels = to.aligned(op, labels, {axis - 1: cut for axis, cut in layout.items()})
    local = _reading(op, {op.operands[0]: scores, labels: local_labels})
    reduction = op.attributes.get("reduction") or "mean"
    if len(op.results) > 1 and op.results[1]:
        to.layouts[op.results[1]] = layout
    if reduction == "none":
        to.operations.append(local)
        to.layouts[op.results[0]] = {axis - 1: cut for axis, cut in layout.items()}
        return
    ignored = op.attributes.get("ignore_index")
    if reduction == "sum" or (not weights and ignored is None):
        _summed(to, local, to.fraction(layout) if reduction == "mean" else None)
        return
    # The mean divides by the weights of all labels that count, of which each block knows its own.
    result = op.results[0]
    parts = [to.fresh(f"{result}:{part}") for part in ("part", "numerator", "denominator")]
    to.operations.append(local.replace(reduction="sum").renamed({result: parts[0]}))
    to.total(parts[0], parts[1])
    to.total(_counted(to, local, result, scores), parts[2])
    opset = to.model.opset
    to.operations.append(ops.Div(parts[1], parts[2], result, name=f"{result}:mean", opset=opset))


def _counted(to: Localization, local: Operation, result: str, scores: str) -> str:
    """The sum of the weights of this block's labels that count: the loss of log-probabilities of -1."""
    dtype = getattr(to.types.get(result), "dtype", None) or np.dtype(np.float32)
    # An infinite score makes this NaN, as it makes the loss.
    nothing = to.add(ops.Mul, f"{result}:zeros", scores, to.constant(f"{result}:zero", 0, dtype))
    ones = to.add(ops.Sub, f"{result}:ones", nothing, to.constant(f"{result}:one", 1, dtype))
    return to.add(
        ops.NegativeLogLikelihoodLoss,
        f"{result}:count",
        ones,
        *local.operands[1:],
        ignore_index=local.attributes.get("ignore_index"),
        reduction="sum",
    )


_RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _elementwise),
    **dict.fromkeys(("Conv", "MaxPool", "AveragePool", "LpPool"), window_operator),
    "ConvTranspose": transposed_convolution,
    "BatchNormalization": _batch_normalization,
    "Dropout": _dropout,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Hardmax": _softmax,
    "Concat": _concat,
    "Transpose": _transpose,
    "ReduceMean": _reduced(mean=True),
    "ReduceSum": _reduced(mean=False),
    "ReduceSumSquare": _reduced(mean=False),
    "ReduceL1": _reduced(mean=False),
    "GlobalAveragePool": _global_average,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Resize": _resize,
    "Upsample": _resize,
    "MeanSquaredError": _mean_squared_error,
    "SoftmaxCrossEntropyLoss": _classification_loss,
    "NegativeLogLikelihoodLoss": _classification_loss,
}


def rules() -> dict[str, Any]:
    """The operators with a form on blocks, by name."""
    return dict(_RULES)
