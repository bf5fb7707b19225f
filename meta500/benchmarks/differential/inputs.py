"""Seeded random inputs by declared type and shape; integers within what their consumers can take."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph import Model, Operation, TensorType

# Operators that hand an integer on without changing its meaning.
_THROUGH = ("Identity", "Cast", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand")
# Operators whose other integer inputs are shapes, positions or counts, which cannot be guessed.
# fmt: off
_NOT_GUESSED = frozenset({
    "Reshape", "Expand", "Tile", "Slice", "Pad", "Resize", "Upsample", "ConstantOfShape", "Range",
    "TopK", "Split", "Squeeze", "Unsqueeze", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin",
    "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
    "CumSum", "DFT", "STFT", "MelWeightMatrix", "GatherND", "ScatterND", "SplitToSequence",
    "SequenceAt", "SequenceInsert", "SequenceErase", "CenterCropPad", "Col2Im", "AffineGrid",
    "BlackmanWindow", "HannWindow", "HammingWindow", "RNN", "GRU", "LSTM", "Loop", "Scan",
    "ReverseSequence", "Compress", "Trilu", "OneHot", "NonMaxSuppression", "EyeLike", "Attention",
    "RotaryEmbedding", "shape",
})
# fmt: on
DEFAULT_RANGE = (0, 10)
Range = tuple[float, float]


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an ``.npz`` file by name.

    Raises:
        UserError: the file is missing or no such file.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error}); give an .npz file") from None
    except (ValueError, AttributeError, TypeError, zlib.error) as error:
        # numpy would advise to load pickled objects, which runs whatever code is in them.
        reason = "" if "pickle" in str(error) else f" ({error})"
        raise UserError(f"{path}: is no .npz file of plain arrays{reason}") from None
    except Exception as error:  # zipfile's BadZipFile
        raise UserError(f"{path}: is no .npz file ({error})") from None


def parse_range(text: str) -> Range:
    """``"0:10"`` as (0.0, 10.0): from the first, below the second.

    Raises:
        UserError: no two numbers, or the second not above the first.
    """
    low, colon, high = str(text).partition(":")
    try:
        found = (float(low), float(high))
    except ValueError:
        found = (1.0, 0.0)
    if not colon or not found[0] < found[1] or not np.isfinite(found).all():
        raise UserError(f"--range: '{text}' is no range LOW:HIGH (from LOW, below HIGH)")
    return found


def draw(
    model: Model,
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    ranges: Mapping[str, Range] | None = None,
) -> tuple[dict[str, np.ndarray], list[str]]:
    """An array for every input of ``model``, and notes about what was assumed.

    Floating-point inputs are standard normal, integers are drawn from the classes or indices that their
    consumers have, else from 0 to 9.

    Args:
        model: with inferred types.
        seed: of the random numbers.
        dimensions: sizes of symbolic dimensions, and of unnamed ones as "INPUT:AXIS".
        ranges: of inputs, from the first number, below the second.

    Raises:
        UserError: an open dimension without a size, an unknown name, or an input that cannot be drawn.
    """
    dimensions, ranges = dict(dimensions or {}), dict(ranges or {})
    known = _open_dimensions(model)
    for key in dimensions:
        if key not in known:
            raise UserError(
                f"--dim: no input has the open dimension '{key}'; open are: {', '.join(known) or 'none'}"
            )
    for name in ranges:
        if name not in model.inputs:
            raise UserError(f"--range: the model has no input '{name}'; it has {', '.join(model.inputs)}")
    rng = np.random.default_rng(seed)
    found: dict[str, np.ndarray] = {}
    notes: list[str] = []
    for name, declared in model.inputs.items():
        if not isinstance(declared, TensorType) or declared.dtype is None or declared.shape is None:
            raise UserError(
                f"input '{name}' is {declared or 'of unknown type'}; random values are drawn for tensors of "
                "known type and rank only: give it by --inputs FILE.npz, or as a test case"
            )
        shape = tuple(_size(name, axis, d, dimensions) for axis, d in enumerate(declared.shape))
        found[name] = _values(rng, model, name, declared.dtype, shape, ranges.get(name), notes, dimensions)
    return found, notes


def _open_dimensions(model: Model) -> list[str]:
    """Names under which the sizes of open dimensions are given."""
    return sorted(
        {
            str(d) if d is not None else f"{name}:{axis}"
            for name, declared in model.inputs.items()
            for axis, d in enumerate(getattr(declared, "shape", None) or ())
            if not isinstance(d, int)
        }
    )


def _size(name: str, axis: int, dimension: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(dimension, int):
        return dimension
    key = dimension if dimension is not None else f"{name}:{axis}"
    if key not in sizes:
        raise UserError(f"input '{name}': dimension {axis} is open; give its size by --dim {key}=8")
    size = sizes[key]
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise UserError(f"--dim: '{key}' must be a whole number from 0, got {size!r}")
    return size


def _values(
    rng: np.random.Generator,
    model: Model,
    name: str,
    dtype: np.dtype,
    shape: tuple[int, ...],
    bounds: Range | None,
    notes: list[str],
    dimensions: Mapping[str, int],
) -> np.ndarray:
    if dtype == np.dtype(bool):
        return rng.integers(0, 2, shape).astype(bool)
    if dtype == np.dtype(object):
        return np.array([f"text {i}" for i in range(int(np.prod(shape)))], object).reshape(shape)
    whole = dtype.kind in "iu" or re.match(r"u?int\d", dtype.name) is not None
    if not whole:
        if bounds is not None:
            return np.asarray(rng.uniform(*bounds, shape)).astype(dtype)
        drawn = rng.standard_normal(shape)
        if dtype.kind == "c":
            drawn = drawn + 1j * rng.standard_normal(shape)
        with np.errstate(all="ignore"):
            return np.asarray(drawn).astype(dtype)
    if bounds is None:
        limit = _limit(model, name, dimensions)
        if limit is None:
            limit = DEFAULT_RANGE[1]
            notes.append(
                f"input '{name}' is drawn from 0 to {limit - 1}; --range {name}=LOW:HIGH changes that"
            )
        bounds = (0, max(limit, 1))
    return rng.integers(int(bounds[0]), int(np.ceil(bounds[1])), shape).astype(dtype)


def _limit(model: Model, name: str, dimensions: Mapping[str, int]) -> int | None:
    """The number of values that the consumers of an integer input can take; None where any will do.

    Raises:
        UserError: it is a shape, a position or a count of something, which cannot be guessed.
    """
    consumers = model.graph.consumers()
    limits: list[int] = []
    pending, seen = [name], set()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        for op, position in consumers.get(value, ()):
            if op.op_type in _THROUGH and position == 0:
                pending += op.results
                continue
            found = _indexed(model, op, position, dimensions)
            if found is not None:
                limits.append(found)
            elif op.op_type in _NOT_GUESSED or op.subgraphs:
                raise UserError(
                    f"input '{name}' is {op.op_type}'s input {position}, whose values cannot be guessed; "
                    f"give --range {name}=LOW:HIGH or --inputs FILE.npz"
                )
    return min(limits) if limits else None


def _indexed(model: Model, op: Operation, position: int, dimensions: Mapping[str, int]) -> int | None:
    """The size of what input ``position`` of ``op`` selects from, where that is known."""
    if op.op_type in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss") and position == 1:
        return _dimension(model, op.operands[0], 1, dimensions)
    if op.op_type in ("Gather", "GatherElements") and position == 1:
        return _dimension(model, op.operands[0], op.attributes.get("axis", 0), dimensions)
    if op.op_type in ("ScatterElements", "Scatter", "TensorScatter") and position == 1:
        return _dimension(model, op.operands[0], op.attributes.get("axis", 0), dimensions)
    if op.op_type == "OneHot" and position == 0:
        depth = model.graph.initializers.get(op.operands[1])
        return None if depth is None else int(depth.ravel()[0])
    return None


def _dimension(model: Model, name: str, axis: int, dimensions: Mapping[str, int]) -> int | None:
    graph = model.graph
    constant = graph.initializers.get(name)
    if constant is not None:
        return constant.shape[axis] if -constant.ndim <= axis < constant.ndim else None
    known = {**graph.value_types, **graph.inputs, **graph.outputs}.get(name)
    shape = getattr(known, "shape", None)
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    size = shape[axis]
    return size if isinstance(size, int) else dimensions.get(str(size))
