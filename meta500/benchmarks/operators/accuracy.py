"""How accurate an operator is: a backend's results against the numpy backend in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta500.backends.network import network
from meta500.benchmarks.differential.tolerances import length
from meta500.errors import UserError
from meta500.graph import Model
from meta500.graph.passes import infer_types, with_precision
from meta500.graph.types import is_floating
from meta500.metrics.norms import compare, tolerance
from meta500.metrics.rows import Row

# Types that ``with_precision`` changes.
CONVERTED = ("float16", "bfloat16", "float32", "float64")
# Quantities of the rows and the field of Accuracy that each one holds.
QUANTITIES = ("max_absolute", "mean_absolute", "max_relative", "mean_relative", "ulp")

# The part of the allowance of 16 eps that holds for 16 bits: they are computed in wider arithmetic and
# rounded at the end of each operator, and 16 eps would be 1.6 % in float16.
_NARROW = 0.25


@dataclass(frozen=True)
class Accuracy:
    """Distances from float64 over all floating-point outputs of one call.

    Absolute: |r - x|. Relative: |r - x| / max(|x|, rms(x)), since cancellation leaves in small elements the
    rounding error of the large ones. ``ulp``: steps between neighbouring numbers of the result's type; it is
    large where a result near 0 is left by cancellation, however right; None for types without. Where one is
    NaN or infinite and the other is not the same, the distance is infinite.

    ``tolerance`` is the largest relative error that rounding explains: 16 eps sqrt(n) for n terms behind one
    element (:func:`terms_of`), 4 eps sqrt(n) for 16 bits.
    """

    dtype: str
    max_absolute: float
    mean_absolute: float
    max_relative: float
    mean_relative: float
    ulp: float | None
    elements: int
    tolerance: float

    def rows(self, **what: Any) -> list[Row]:
        """One row per distance; ``what`` are the other fields."""
        judged = {"error": self.max_relative, "error_norm": "max_relative", "tolerance": self.tolerance}
        values = {name: getattr(self, name) for name in QUANTITIES}
        columns = {**what, **judged}
        return [
            Row(quantity=name, unit="ULP" if name == "ulp" else "1", value=value, **columns)
            for name, value in values.items()
            if value is not None
        ]


def data_type(*groups: Mapping[str, Any]) -> str:
    """Name of the element type that a case is about: that of the first floating-point array, else the first.

    Args:
        groups: values by name, in the order in which they are looked through: outputs, then inputs.
    """
    arrays = [np.asarray(a) for group in groups for value in group.values() for a in leaves(value)]
    floating = [a.dtype.name for a in arrays if is_floating(a.dtype)]
    return (floating or [a.dtype.name for a in arrays] or [""])[0]


def leaves(value: Any) -> Iterator[Any]:
    """The arrays in a value: itself, or those of a sequence or map; none in an empty optional."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif value is not None:
        yield value


def in_type(value: Any, dtype: str) -> Any:
    """A value with all its arrays of float16, bfloat16, float32 and float64 in ``dtype``."""
    if value is None:
        return None
    if isinstance(value, list | tuple):
        return [in_type(item, dtype) for item in value]
    if isinstance(value, Mapping):
        return {key: in_type(item, dtype) for key, item in value.items()}
    array = np.asarray(value)
    if array.dtype.name not in CONVERTED:
        return value
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def reference(model: Model, inputs: Mapping[str, Any], precision: str | None = None) -> dict[str, Any]:
    """The outputs of the numpy backend in float64.

    Args:
        model: the network; with a ``precision`` its constants are rounded to that type first, so that the
            reference starts from the same numbers as what is judged by it.
        inputs: as the judged network gets them, in ``precision`` already.

    Raises:
        UserError: the operator draws random numbers, or the numpy backend does not run it in float64.
    """
    from meta500.backends.onnx_backend import refuse_random

    refuse_random(model, "numpy")
    rounded = with_precision(model, precision) if precision is not None else model
    with network(rounded, backend="numpy", precision="float64") as net, np.errstate(all="ignore"):
        return net.inference({name: in_type(value, "float64") for name, value in inputs.items()})


def terms_of(model: Model, inputs: Mapping[str, Any], results: Mapping[str, Any]) -> int:
    """An upper bound of the terms that enter one element of a result: 1 for an elementwise operator.

    For several nodes it is the sum along the longest chain of them; for that the intermediate values are
    computed, by the numpy backend in float64. Operators outside ONNX's own domain, about which nothing is
    known, count with all elements of the inputs, and so does a network that numpy does not run.

    Args:
        model: the network.
        inputs, results: of a call, by name.
    """
    everything = max(1, sum(np.asarray(a).size for value in inputs.values() for a in leaves(value)))
    graph = model.graph
    operations = [op for op in graph.operations if op.op_type != "Constant"]
    known: dict[str, Any] = {**graph.initializers, **inputs, **results}
    if len(operations) > 1:
        inner = {name: graph.value_types.get(name) for op in graph.operations for name in op.results if name}
        try:
            whole = infer_types(
                model.with_graph(replace(graph, outputs={**inner, **graph.outputs})), strict=False
            )
            with network(whole, backend="numpy", precision="float64") as net, np.errstate(all="ignore"):
                known |= net.inference({name: in_type(value, "float64") for name, value in inputs.items()})
        except UserError:
            return everything
    behind: dict[str, int] = {}
    for op in operations:
        own = everything
        if op.op_type == "Identity":
            own = 0
        elif op.domain in ("", "ai.onnx"):
            read, given = ([known.get(name) for name in names if name] for names in (op.operands, op.results))
            own = length(op, read, given)
        before = max((behind.get(name, 0) for name in op.operands), default=0)
        behind |= dict.fromkeys(op.results, before + own)
    return max((1, *(behind.get(name, 1) for name in results)))


def measure_accuracy(results: Mapping[str, Any], exact: Mapping[str, Any], terms: int = 1) -> Accuracy | None:
    """The distances of ``results`` from ``exact``; None where no output is real floating point.

    Args:
        results: outputs of the judged network by name.
        exact: what :func:`reference` gave.
        terms: of the longest sum behind one element, see :func:`terms_of`.

    Raises:
        UserError: the outputs have other shapes than the reference.
    """
    pairs = [(r, x) for name in results for r, x in _pairs(results[name], exact.get(name))]
    if not pairs:
        return None
    norms = [compare(r, x) for r, x in pairs]
    elements = sum(r.size for r, _ in pairs)
    ulps = [n.ulp for n in norms if n.ulp is not None]
    widest = max((r.dtype for r, _ in pairs), key=_epsilon)
    return Accuracy(
        dtype=widest.name,
        max_absolute=max(n.max_absolute for n in norms),
        mean_absolute=sum(n.l1 for n in norms) / max(elements, 1),
        max_relative=max(n.max_relative for n in norms),
        mean_relative=sum(_relative_sum(r, x) for r, x in pairs) / max(elements, 1),
        ulp=max(ulps) if ulps else None,
        elements=elements,
        tolerance=tolerance(widest, terms) * (_NARROW if widest.itemsize <= 2 else 1.0),
    )


def epsilon(dtype: str) -> float | None:
    """Distance from 1 to the next larger number of a floating-point type; None for other types."""
    import ml_dtypes

    try:
        kind = np.dtype(getattr(ml_dtypes, dtype)) if hasattr(ml_dtypes, dtype) else np.dtype(dtype)
    except TypeError:
        return None
    return _epsilon(kind) if is_floating(kind) and kind.kind != "c" else None


def _epsilon(dtype: np.dtype) -> float:
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)


def _pairs(result: Any, exact: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    found = [np.asarray(a) for a in leaves(result)]
    wanted = [np.asarray(a) for a in leaves(exact)]
    if len(found) != len(wanted):
        raise UserError(f"the result has {len(found)} arrays, the float64 reference {len(wanted)}")
    return [(r, x) for r, x in zip(found, wanted, strict=True) if _real(r.dtype) and _real(x.dtype)]


def _real(dtype: np.dtype) -> bool:
    return bool(is_floating(dtype)) and dtype.kind != "c"


def _relative_sum(result: np.ndarray, exact: np.ndarray) -> float:
    """sum |r - x| / max(|x|, rms(x)), infinite where one is NaN or infinite and the other is not the same."""
    if not result.size:
        return 0.0
    with np.errstate(all="ignore"):
        r, x = result.astype(np.float64), exact.astype(np.float64)
        rounded = exact.astype(result.dtype).astype(np.float64)
        finite = np.isfinite(r) & np.isfinite(x)
        alike = (r == x) | (np.isnan(r) & np.isnan(x)) | (np.isinf(r) & (r == rounded))
        scale = np.where(np.isfinite(x), np.abs(x), 0.0)
        largest = float(scale.max())
        rms = largest * math.sqrt(float(np.mean((scale / largest) ** 2))) if largest else 0.0
        difference = np.where(finite, np.abs(r - x), np.where(alike, 0.0, np.inf))
        relative = np.where(difference == 0, 0.0, difference / np.maximum(scale, rms))
    return float(relative.sum())
