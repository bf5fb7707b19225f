"""Numeric preparation of features in ai.onnx.ml.

ArrayFeatureExtractor, Binarizer, FeatureVectorizer, Imputer, Normalizer, OneHotEncoder and Scaler.

Scaler, Normalizer and FeatureVectorizer give float32 whatever the input; they compute in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import scatter_sum
from meta500.backends.numpy.operators.ml_scores import DOMAIN, numbers
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Floats = tuple[float, ...]


@rules.rule("ArrayFeatureExtractor", 1, domain=DOMAIN)
def array_feature_extractor(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ONNX ArrayFeatureExtractor: elements ``y`` of the last axis; a vector is one row: (1, len(y)).

    Raises:
        UserError: a scalar, no index, or an index outside the axis.
    """
    if x.ndim == 0 or y.size == 0:
        raise UserError("ArrayFeatureExtractor: needs an array with an axis, and at least one index")
    index = y.reshape(-1)
    if index.min() < 0 or index.max() >= x.shape[-1]:
        raise UserError(
            f"ArrayFeatureExtractor: indices from {index.min()} to {index.max()} are outside the last axis, "
            f"of size {x.shape[-1]}"
        )
    return np.take(np.atleast_2d(x), index, axis=-1)


@array_feature_extractor.vjp
def array_feature_extractor_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray, None]:
    """Every cotangent goes back to the element that it was taken from."""
    x, y = call.inputs
    return scatter_sum(d, y.reshape(-1), x.shape[-1], d.ndim - 1).reshape(x.shape), None


@rules.rule("Binarizer", 1, domain=DOMAIN)
def binarizer(x: np.ndarray, *, threshold: float = 0.0) -> np.ndarray:
    """ONNX Binarizer: 1 where ``x`` is above the threshold, else 0 (also for NaN), in the type of x."""
    return np.asarray(x > np.float32(threshold)).astype(x.dtype)


@binarizer.vjp
def binarizer_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """Zero: the result is piecewise constant."""
    return (np.zeros_like(call.inputs[0]),)


@rules.rule("FeatureVectorizer", 1, domain=DOMAIN)
def feature_vectorizer(*tensors: np.ndarray, inputdimensions: tuple[int, ...] | None = None) -> np.ndarray:
    """ONNX FeatureVectorizer: the inputs [N, C] (or [C] for one row) side by side, float32.

    Where ``inputdimensions`` gives another size than an input has, its first columns are taken, or zeros are
    appended, as ONNX Runtime does.

    Raises:
        UserError: another rank, or different numbers of rows or of sizes.
    """
    rows = [np.atleast_2d(tensor) for tensor in tensors]
    if inputdimensions is not None and len(inputdimensions) != len(tensors):
        raise UserError(
            f"FeatureVectorizer: {len(inputdimensions)} inputdimensions for {len(tensors)} inputs"
        )
    if any(r.ndim != 2 or len(r) != len(rows[0]) for r in rows):
        shapes = ", ".join(str(list(t.shape)) for t in tensors)
        raise UserError(f"FeatureVectorizer: inputs of shapes {shapes}; expected [N, C] or [C]")
    sizes = inputdimensions or tuple(r.shape[1] for r in rows)
    result = np.zeros((len(rows[0]), sum(sizes)), np.float32)
    at = 0
    for row, size in zip(rows, sizes, strict=True):
        taken = min(size, row.shape[1])
        result[:, at : at + taken] = row[:, :taken]
        at += size
    return result


@feature_vectorizer.vjp
def feature_vectorizer_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray, ...]:
    """Each input's columns of the cotangent; zero where columns were cut off."""
    given = call.attributes.get("inputdimensions")
    sizes = given or tuple(np.atleast_2d(t).shape[1] for t in call.inputs)
    gradients, at = [], 0
    for tensor, size in zip(call.inputs, sizes, strict=True):
        gradient = np.zeros_like(np.atleast_2d(tensor))
        taken = min(size, gradient.shape[1])
        gradient[:, :taken] = d[:, at : at + taken]
        gradients.append(gradient.reshape(tensor.shape))
        at += size
    return tuple(gradients)


def imputed(
    x_kind: str,
    x_shape: tuple[int, ...],
    floats: Floats | None,
    int64s: tuple[int, ...] | None,
    replaced_float: float,
    replaced_int: int,
) -> tuple[tuple[Any, ...], Any]:
    """The new values (one or one per feature) and the value that they replace.

    Raises:
        UserError: attributes of the other kind (float, integer) than the input, or a wrong number of them.
    """
    if bool(floats) == bool(int64s):
        raise UserError("Imputer: exactly one of imputed_value_floats and imputed_value_int64s must be set")
    if (x_kind == "f") != bool(floats):
        raise UserError("Imputer: imputed values must be floats for a float input, integers for integers")
    values: tuple[Any, ...] = floats or int64s or ()
    features = x_shape[-1] if x_shape else 1
    if len(values) not in (1, features):
        raise UserError(f"Imputer: {len(values)} imputed values for {features} features; give 1 or all")
    return values, replaced_float if floats else replaced_int


def _missing(x: np.ndarray, replaced: Any) -> np.ndarray:
    if isinstance(replaced, float):
        return np.isnan(x) if math.isnan(replaced) else np.asarray(x == np.float32(replaced))
    return np.asarray(x == replaced)


@rules.rule("Imputer", 1, domain=DOMAIN)
def imputer(
    x: np.ndarray,
    *,
    imputed_value_floats: Floats | None = None,
    imputed_value_int64s: tuple[int, ...] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
    saved: dict[str, np.ndarray],
) -> np.ndarray:
    """ONNX Imputer: elements equal to the replaced value (NaN is equal to NaN) become the imputed one.

    Raises:
        UserError: see ``imputed``; an integer that does not fit the type of ``x``.
    """
    values, replaced = imputed(
        x.dtype.kind,
        x.shape,
        imputed_value_floats,
        imputed_value_int64s,
        replaced_value_float,
        replaced_value_int64,
    )
    if x.dtype.kind == "i" and any(
        not -(2 ** (8 * x.itemsize - 1)) <= v < 2 ** (8 * x.itemsize - 1) for v in values
    ):
        raise UserError(f"Imputer: imputed values {list(values)} do not fit into {x.dtype}")
    saved["missing"] = _missing(x, replaced)
    return np.where(saved["missing"], np.asarray(values, x.dtype), x)


@imputer.vjp
def imputer_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """The cotangent where the input was kept, zero elsewhere."""
    return (np.where(call.saved["missing"], d.dtype.type(0), d),)


@rules.rule("Normalizer", 1, domain=DOMAIN)
def normalizer(x: np.ndarray, *, norm: str = "MAX", saved: dict[str, np.ndarray]) -> np.ndarray:
    """ONNX Normalizer: rows of [N, C] (or [C]) divided by a norm; unchanged where that is zero; float32.

    "MAX" divides by the largest element, sign included, as the operator's text says (scikit-learn takes the
    largest magnitude); "L1" by the sum of magnitudes and "L2" by the root of the sum of squares, keeping
    signs (the text's formulas for both leave signs out).

    Raises:
        UserError: another rank or an unknown norm.
    """
    choose("Normalizer norm", norm, ("L1", "L2", "MAX"))
    if x.ndim not in (1, 2):
        raise UserError(f"Normalizer: the input has shape {list(x.shape)}, expected [N, C] or [C]")
    wide = x.astype(np.float64)
    if norm == "MAX":
        divisor = wide.max(axis=-1, keepdims=True) if x.shape[-1] else np.ones((*x.shape[:-1], 1))
    elif norm == "L1":
        divisor = np.abs(wide).sum(axis=-1, keepdims=True)
    else:
        divisor = np.sqrt((wide * wide).sum(axis=-1, keepdims=True))
    kept = divisor == 0
    saved.update(divisor=np.where(kept, 1, divisor), kept=kept)
    return (wide / saved["divisor"]).astype(np.float32)


@normalizer.vjp
def normalizer_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """d/n minus the part along the norm's own gradient; MAX's goes to the first largest element."""
    x, divisor = call.inputs[0], call.saved["divisor"]
    wide = x.astype(np.float64)
    norm = call.attributes.get("norm", "MAX")
    if norm == "MAX":
        slope = np.zeros_like(wide)
        if x.shape[-1]:
            np.put_along_axis(slope, wide.argmax(axis=-1, keepdims=True), 1.0, axis=-1)
    else:
        slope = np.sign(wide) if norm == "L1" else wide / divisor
    slope = np.where(call.saved["kept"], 0, slope)
    along = (d * wide).sum(axis=-1, keepdims=True) / divisor**2
    return ((d / divisor - along * slope).astype(x.dtype),)


@rules.rule("OneHotEncoder", 1, domain=DOMAIN)
def one_hot_encoder(
    x: np.ndarray,
    *,
    cats_int64s: tuple[int, ...] | None = None,
    cats_strings: tuple[str, ...] | None = None,
    zeros: int = 1,
) -> np.ndarray:
    """ONNX OneHotEncoder: x.shape + (categories,), float32; floats are cut off to integers first.

    Without ``zeros`` an unknown category is an error. No gradient: the result depends on x through integers.

    Raises:
        UserError: both or neither kind of category, or one of another type than x; an unknown category;
            a float that is no integer of 64 bits.
    """
    if bool(cats_int64s) == bool(cats_strings):
        raise UserError("OneHotEncoder: exactly one of cats_int64s and cats_strings must be set")
    if (x.dtype.kind in "OU") != bool(cats_strings):
        kind = "strings" if cats_strings else "integers"
        raise UserError(f"OneHotEncoder: the categories are {kind}, the input is {x.dtype}")
    if x.dtype.kind == "f" and not np.all(np.abs(x) < 2.0**63):
        raise UserError("OneHotEncoder: the input has values that are no 64-bit integers")
    categories: tuple[Any, ...] = cats_int64s or cats_strings or ()
    position = {category: index for index, category in reversed(list(enumerate(categories)))}
    values = x if cats_strings else x.astype(np.int64)
    result = np.zeros((x.size, len(categories)), np.float32)
    for row, value in enumerate(values.reshape(-1).tolist()):
        if value in position:
            result[row, position[value]] = 1
        elif not zeros:
            raise UserError(f"OneHotEncoder: {value!r} is none of the categories")
    return result.reshape(*x.shape, len(categories))


@rules.rule("Scaler", 1, domain=DOMAIN)
def scaler(x: np.ndarray, *, offset: Floats | None = None, scale: Floats | None = None) -> np.ndarray:
    """ONNX Scaler: ``(x - offset) * scale`` per feature (last axis), float32.

    Raises:
        UserError: neither one value nor one per feature.
    """
    subtract, multiply = scaling(x.shape, offset, scale)
    return np.asarray((x.astype(np.float64) - subtract) * multiply).astype(np.float32)


@scaler.vjp
def scaler_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """The cotangent times the scale."""
    x = call.inputs[0]
    _, multiply = scaling(x.shape, call.attributes.get("offset"), call.attributes.get("scale"))
    return (np.asarray(d * multiply).astype(x.dtype),)


def scaling(
    shape: tuple[int, ...], offset: Floats | None, scale: Floats | None
) -> tuple[np.ndarray, np.ndarray]:
    """Offset and scale as vectors; 0 and 1 where they are missing.

    Raises:
        UserError: neither one value nor one per feature.
    """
    features = shape[-1] if shape else 1
    for name, values in (("offset", offset), ("scale", scale)):
        if values and len(values) not in (1, features):
            raise UserError(f"Scaler: {len(values)} values of {name} for {features} features; give 1 or all")
    return numbers(offset) if offset else np.zeros(1), numbers(scale) if scale else np.ones(1)
