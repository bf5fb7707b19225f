"""How far two results may lie apart, and whether rounding explains a distance.

The base tolerance of a result is ``16 eps sqrt(n)`` relative to the larger of the element and the root mean
square of the tensor (:func:`meta500.metrics.norms.tolerance`), with n the terms of the longest sum behind an
element (:func:`length`). A node that exceeds it is judged again by its condition: sums that cancel may
exceed it without a fault. Then

1. both backends run the node in float64 on the same inputs: the distance of a rounding error shrinks by the
   ratio of the two machine epsilons, that of a fault stays;
2. the float64 result is differentiated along random relative changes of the inputs; the distance may be
   ``16 eps sqrt(n)`` times the change that a relative change of 1 would make. At a jump of the function two
   step widths disagree and nothing is excused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph import Operation
from meta500.graph.types import is_floating
from meta500.metrics.norms import SAFETY, compare, tolerance

# Operators whose every output element depends on a whole row, channel or sequence of the same size.
# fmt: off
_ROWS = frozenset({
    "Softmax", "LogSoftmax", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
    "LayerNormalization", "RMSNormalization", "MeanVarianceNormalization", "LpNormalization", "LRN",
    "CumSum", "CumProd", "RNN", "GRU", "LSTM", "Attention", "SoftmaxCrossEntropyLoss",
    "NegativeLogLikelihoodLoss", "DFT", "STFT", "Det", "Einsum", "Loop", "Scan", "If", "SequenceMap",
    "GridSample", "Resize", "Upsample", "AveragePool", "LpPool", "MeanSquaredError", "MatMul", "Gemm",
    "MatMulInteger", "QLinearMatMul",
})
# fmt: on
_CONTRACTIONS = frozenset(["MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"])
# fmt: off
_CONVOLUTIONS = frozenset({
    "Conv", "ConvTranspose", "DeformConv", "ConvInteger", "QLinearConv", "CausalConvWithState", "x", "O",
})
# fmt: on
# Steps of the numerical derivative, far above float64's rounding; they must agree within this factor.
_STEPS = (1e-6, 1e-8)
_AGREEMENT = 3.0
_SAMPLES = 3
# By how much the distance of rounding errors must shrink in float64, at least; eps shrinks by 2^29.
_SHRINK = 2.0**-12


@dataclass(frozen=True)
class Distance:
    """The distance of two values; ``problem`` where they are not even of one form."""

    max_absolute: float = 0.0
    max_relative: float = 0.0
    ulp: float | None = None
    dtype: str = ""
    shape: str = ""
    problem: str = ""

    @property
    def exact(self) -> bool:
        """Whether the values are equal."""
        return not self.problem and self.max_relative == 0 and self.max_absolute == 0


def distance(a: Any, b: Any, mixed: bool = False) -> Distance:
    """The distance of ``a`` from ``b``: arrays, sequences (by element), or nothing (None).

    Args:
        a, b: the values.
        mixed: the two floating-point types may differ, since the backends were asked for different ones.
    """
    if isinstance(a, list | tuple) or isinstance(b, list | tuple):
        if type(a) is not type(b) or len(a) != len(b):
            return Distance(problem=f"{_form(a)} against {_form(b)}")
        parts = [distance(x, y, mixed) for x, y in zip(a, b, strict=True)]
        if not parts:
            return Distance()
        worst = max(parts, key=lambda d: (bool(d.problem), d.max_relative))
        return replace(worst, shape=f"sequence of {len(parts)}")
    if a is None or b is None:
        return Distance(problem="" if a is b else f"{_form(a)} against {_form(b)}")
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        return Distance(problem="" if a == b else f"{_form(a)} against {_form(b)}")
    x, y = np.asarray(a), np.asarray(b)
    form = Distance(dtype=str(x.dtype), shape="x".join(map(str, x.shape)))
    if x.dtype != y.dtype and not (mixed and is_floating(x.dtype) and is_floating(y.dtype)):
        return replace(form, problem=f"dtype {x.dtype} against {y.dtype}")
    if x.shape != y.shape:
        return replace(form, problem=f"shape {list(x.shape)} against {list(y.shape)}")
    try:
        norms = compare(x, y)
    except UserError as error:
        return replace(form, problem=str(error))
    if norms.mismatched and x.dtype.kind != "O":
        kinds = f"{norms.mismatched} elements are NaN or infinite on one side only, or in another way"
        form = replace(form, problem=kinds)
    return replace(form, max_absolute=norms.max_absolute, max_relative=norms.max_relative, ulp=norms.ulp)


def length(op: Operation, inputs: Sequence[Any], outputs: Sequence[Any]) -> int:
    """An upper bound of the terms of the longest sum behind one element of the results of ``op``."""
    shapes = [tuple(np.shape(v)) for v in inputs if isinstance(v, np.ndarray)]
    sizes = [int(np.prod(s)) for s in shapes] or [1]
    results = [v.size for v in outputs if isinstance(v, np.ndarray) and v.size]
    if op.op_type in _CONTRACTIONS and shapes and shapes[0]:
        first = shapes[0]
        return max(1, first[0] if op.attributes.get("transA") else first[-1])
    if op.op_type in _CONVOLUTIONS and len(shapes) > 1 and len(shapes[1]) > 1:
        weight = shapes[1]
        return max(1, int(np.prod(weight[2:])) * max(weight[0], weight[1]))
    if op.op_type in _ROWS or op.subgraphs:
        return max(1, *sizes)
    return max(1, max(sizes) // min(results)) if results else 1


def gradient_length(terms: int, outputs: Iterable[Any], size: int) -> int:
    """The terms behind one element of a gradient of ``size`` elements: the products, spread over them."""
    products = max((v.size for v in outputs if isinstance(v, np.ndarray)), default=1) * terms
    return max(terms, products // max(size, 1), 1)


def base_tolerance(values: Iterable[Any], terms: int) -> float:
    """The base tolerance of results: that of their coarsest floating-point type, 0 for other types."""
    found = [0.0]
    for value in values:
        if isinstance(value, list | tuple):
            found.append(base_tolerance(value, terms))
        elif isinstance(value, np.ndarray | np.generic) and value.dtype.kind != "O":
            found.append(tolerance(value.dtype, terms))
    return max(found)


def epsilon(value: Any) -> float:
    """Machine epsilon of a floating-point array, else 0."""
    return base_tolerance([value], 1) / SAFETY


Function = Callable[[Mapping[str, Any]], Any]


def explained(
    gap: float,
    inputs: Mapping[str, Any],
    pair: tuple[Function, Function],
    eps: float,
    terms: int,
) -> float | None:
    """The largest absolute distance that rounding explains; None if it does not explain ``gap``.

    Args:
        gap: the largest absolute difference found.
        inputs: of the node, by name.
        pair: the node in float64 on both backends.
        eps: machine epsilon of the type in which ``gap`` was found.
        terms: see :func:`length`.
    """
    wide = {k: v.astype(np.float64) if _is_real(v) else v for k, v in inputs.items()}
    try:
        first, second = (np.asarray(function(wide), np.float64) for function in pair)
        if eps > np.finfo(np.float64).eps * 2 and not np.abs(first - second).max() <= gap * _SHRINK:
            return None
        changes = [_change(pair[1], wide, second, step) for step in _STEPS]
    except Exception:  # a backend without float64 for this node: nothing can be excused
        return None
    scale = max(changes)
    if not np.isfinite(scale) or scale > _AGREEMENT * max(min(changes), np.abs(second).max() * 1e-3):
        return None
    limit = SAFETY * eps * float(np.sqrt(terms)) * max(scale, float(np.abs(second).max()))
    return limit if gap <= limit else None


def _change(function: Function, inputs: Mapping[str, Any], result: np.ndarray, step: float) -> float:
    """The largest change of the result for a random relative change of all inputs, per unit of it."""
    found = 0.0
    for sample in range(_SAMPLES):
        rng = np.random.default_rng(sample)
        moved = {
            name: value * (1 + step * rng.uniform(-1, 1, value.shape)) if _is_real(value) else value
            for name, value in inputs.items()
        }
        found = max(found, float(np.abs(np.asarray(function(moved), np.float64) - result).max()) / step)
    return found


def _is_real(value: Any) -> bool:
    return isinstance(value, np.ndarray) and is_floating(value.dtype) and value.dtype.kind != "c"


def _form(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list | tuple):
        return f"a sequence of {len(value)}"
    if isinstance(value, Mapping):
        return f"a map of {len(value)}"
    return f"{np.asarray(value).dtype}{list(np.shape(value))}"
