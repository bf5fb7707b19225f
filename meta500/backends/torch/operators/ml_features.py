"""Numeric operators of ai.onnx.ml on torch.

ArrayFeatureExtractor, Binarizer, FeatureVectorizer, Imputer, LinearClassifier, LinearRegressor, Normalizer
and Scaler. What they mean is told by the numpy rules of the same names.

They compute in float64; all but the first two and Imputer give float32, as ONNX has it.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from meta500.backends.numpy.operators.ml_features import imputed, scaling
from meta500.backends.numpy.operators.ml_linear import ONE_ROW, weights
from meta500.backends.numpy.operators.ml_scores import (
    DOMAIN,
    TRANSFORMS,
    ZEROS,
    expect_transform,
    expect_transform_of,
    labels,
    numbers,
    pick,
    top,
)
from meta500.backends.torch.operators import rules
from meta500.errors import UserError, choose

Floats = tuple[float, ...]


@rules.rule("ArrayFeatureExtractor", since=1, domain=DOMAIN)
def array_feature_extractor(x: Tensor, y: Tensor) -> Tensor:
    """ONNX ArrayFeatureExtractor: elements ``y`` of the last axis; a vector is one row: (1, len(y)).

    Raises:
        UserError: a scalar, or no index.
        IndexError: an index outside the axis.
    """
    if x.ndim == 0 or y.numel() == 0:
        raise UserError("ArrayFeatureExtractor: needs an array with an axis, and at least one index")
    return torch.index_select(torch.atleast_2d(x), -1, y.reshape(-1))


@rules.rule("Binarizer", since=1, domain=DOMAIN)
def binarizer(x: Tensor, *, threshold: float = 0.0) -> Tensor:
    """ONNX Binarizer: 1 where ``x`` is above the threshold, else 0 (also for NaN); gradient zero."""
    wide = x.detach() if x.is_floating_point() else x.to(torch.float64)
    # The attribute is a float32 in the file.
    result = (wide > float(np.float32(threshold))).to(x.dtype)
    # Adding a zero that depends on x keeps the zero gradient in the graph.
    return result + torch.zeros_like(x) * x.nan_to_num(0, 0, 0) if x.requires_grad else result


@rules.rule("FeatureVectorizer", since=1, domain=DOMAIN)
def feature_vectorizer(*tensors: Tensor, inputdimensions: tuple[int, ...] | None = None) -> Tensor:
    """ONNX FeatureVectorizer: the inputs [N, C] (or [C] for one row) side by side, float32.

    Raises:
        UserError: another rank, or different numbers of rows or of sizes.
    """
    rows = [torch.atleast_2d(tensor) for tensor in tensors]
    if inputdimensions is not None and len(inputdimensions) != len(tensors):
        raise UserError(
            f"FeatureVectorizer: {len(inputdimensions)} inputdimensions for {len(tensors)} inputs"
        )
    if any(r.ndim != 2 or len(r) != len(rows[0]) for r in rows):
        shapes = ", ".join(str(list(t.shape)) for t in tensors)
        raise UserError(f"FeatureVectorizer: inputs of shapes {shapes}; expected [N, C] or [C]")
    sizes = inputdimensions or tuple(r.shape[1] for r in rows)
    # A negative padding cuts columns off.
    fitted = [
        torch.nn.functional.pad(r.to(torch.float32), (0, size - r.shape[1]))
        for r, size in zip(rows, sizes, strict=True)
    ]
    return torch.cat(fitted, dim=1)


@rules.rule("Imputer", since=1, domain=DOMAIN)
def imputer(
    x: Tensor,
    *,
    imputed_value_floats: Floats | None = None,
    imputed_value_int64s: tuple[int, ...] | None = None,
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:
    """ONNX Imputer: elements equal to the replaced value (NaN is equal to NaN) become the imputed one.

    Raises:
        UserError: attributes of the other kind than the input, a wrong number of them, or integers that do
            not fit.
    """
    values, replaced = imputed(
        "f" if x.is_floating_point() else "i",
        tuple(x.shape),
        imputed_value_floats,
        imputed_value_int64s,
        replaced_value_float,
        replaced_value_int64,
    )
    if not x.is_floating_point():
        limits = torch.iinfo(x.dtype)
        if any(not limits.min <= value <= limits.max for value in values):
            raise UserError(f"Imputer: imputed values {list(values)} do not fit into {x.dtype}")
    if isinstance(replaced, float) and math.isnan(replaced):
        missing = torch.isnan(x)
    else:
        # Compared in a type that holds both exactly.
        given = float(np.float32(replaced)) if x.is_floating_point() else replaced
        missing = (x.to(torch.float64) if x.is_floating_point() else x.to(torch.int64)) == given
    return torch.where(missing, torch.tensor(values, dtype=x.dtype, device=x.device), x)


@rules.rule("LinearRegressor", since=1, domain=DOMAIN)
def linear_regressor(
    x: Tensor,
    *,
    coefficients: Floats | None = None,
    intercepts: Floats | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
) -> Tensor:
    """ONNX LinearRegressor: ``x @ W.T + intercepts`` of shape (N, targets), float32; x (N, F).

    Raises:
        UserError: coefficients or intercepts do not fit, or a transform other than PROBIT of one target.
    """
    expect_transform_of("LinearRegressor", post_transform, targets)
    data = _matrix("LinearRegressor", x)
    scores = _scores("LinearRegressor", data, coefficients, intercepts, targets)
    return transform(post_transform, scores).to(torch.float32)


def _matrix(operator: str, x: Tensor) -> Tensor:
    """[N, F] in float64; [F] is one row."""
    if x.ndim not in (1, 2):
        raise UserError(f"{operator}: the input has shape {list(x.shape)}, expected [N, F]")
    return torch.atleast_2d(x).to(torch.float64)


def _scores(
    operator: str, x: Tensor, coefficients: Floats | None, intercepts: Floats | None, rows: int | None
) -> Tensor:
    """Linear scores (N, rows) of x (N, F); ``rows`` None takes as many as there are coefficients for."""
    matrix = weights(operator, coefficients, x.shape[1], rows)
    offsets = numbers(intercepts).tolist()
    if len(offsets) not in (0, len(matrix)):
        raise UserError(f"{operator}: {len(offsets)} intercepts for {len(matrix)} rows of coefficients")
    w = torch.tensor(matrix.tolist(), dtype=x.dtype, device=x.device).reshape(matrix.shape)
    scores = x @ w.T
    return scores + torch.tensor(offsets, dtype=x.dtype, device=x.device) if offsets else scores


@rules.rule("LinearClassifier", since=1, domain=DOMAIN)
def linear_classifier(
    x: Tensor,
    *,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: Floats,
    intercepts: Floats | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
) -> tuple[Tensor | np.ndarray, Tensor]:
    """ONNX LinearClassifier: the label of the highest score (N), and the scores (N, E), float32.

    Labels that are strings come as a numpy array. With two labels but one row of coefficients s is the score
    of the second label and -s that of the first, and the transform must be LOGISTIC. ``multi_class`` changes
    nothing here.

    Raises:
        UserError: the numbers of labels, coefficients and intercepts do not fit, or a transform other than
            LOGISTIC for one row of coefficients.
    """
    name = "LinearClassifier"
    names = labels(name, classlabels_ints, classlabels_strings)
    scores = _scores(name, _matrix(name, x), coefficients, intercepts, None)
    if scores.shape[1] == 1 and len(names) == 2:
        expect_transform(name, post_transform, ("LOGISTIC",), ONE_ROW)
        scores = torch.cat((-scores, scores), dim=1)
    if scores.shape[1] != len(names):
        raise UserError(f"{name}: {scores.shape[1]} rows of coefficients for {len(names)} class labels")
    if len(names) == 1:
        raise UserError(f"{name}: with a single class label there is nothing to choose from")
    wide = transform(post_transform, scores)
    results = wide.to(torch.float32)
    if post_transform in ("SOFTMAX_ZERO", "PROBIT"):  # refuses where the label is not sure
        top(name, post_transform, scores.detach().cpu().numpy(), wide.detach().cpu().numpy())
    chosen = scores.detach().argmax(dim=1)
    if isinstance(names[0], str):
        return pick(names, chosen.cpu().numpy()), results
    return torch.tensor(names, device=x.device)[chosen], results


def transform(name: str, scores: Tensor) -> Tensor:
    """The post transform of scores (..., E) along their last axis; as the numpy function of this name.

    Raises:
        UserError: an unknown name, or SOFTMAX_ZERO of zeros only.
    """
    choose("post_transform", name, TRANSFORMS)
    if name == "LOGISTIC":
        return torch.sigmoid(scores)
    if name == "PROBIT":
        return torch.special.ndtri(scores)
    if name == "SOFTMAX":
        return torch.softmax(scores, dim=-1)
    if name == "SOFTMAX_ZERO":
        highest = scores.amax(dim=-1, keepdim=True)
        powers = torch.where(scores.abs() > 1e-7, torch.exp(scores - highest), scores * torch.exp(-highest))
        total = powers.sum(dim=-1, keepdim=True)
        if bool((total == 0).any()):
            raise UserError(ZEROS)
        return powers / total
    return scores


@rules.rule("Normalizer", since=1, domain=DOMAIN)
def normalizer(x: Tensor, *, norm: str = "MAX") -> Tensor:
    """ONNX Normalizer: rows of [N, C] (or [C]) divided by a norm; unchanged where that is zero; float32.

    "MAX" is the largest element, sign included.

    Raises:
        UserError: another rank or an unknown norm.
    """
    choose("Normalizer norm", norm, ("L1", "L2", "MAX"))
    if x.ndim not in (1, 2):
        raise UserError(f"Normalizer: the input has shape {list(x.shape)}, expected [N, C] or [C]")
    if x.shape[-1] == 0:
        return x.to(torch.float32)
    wide = x.to(torch.float64)
    if norm == "MAX":
        divisor = wide.max(dim=-1, keepdim=True).values
    else:
        divisor = torch.linalg.vector_norm(wide, 1 if norm == "L1" else 2, dim=-1, keepdim=True)
    return (wide / torch.where(divisor == 0, 1.0, divisor)).to(torch.float32)


@rules.rule("Scaler", since=1, domain=DOMAIN)
def scaler(x: Tensor, *, offset: Floats | None = None, scale: Floats | None = None) -> Tensor:
    """ONNX Scaler: ``(x - offset) * scale`` per feature (last axis), float32.

    Raises:
        UserError: neither one value nor one per feature.
    """
    subtract, multiply = (v.tolist() for v in scaling(tuple(x.shape), offset, scale))
    wide = x.to(torch.float64)
    shift = torch.tensor(subtract, dtype=wide.dtype, device=x.device)
    factor = torch.tensor(multiply, dtype=wide.dtype, device=x.device)
    return ((wide - shift) * factor).reshape(x.shape).to(torch.float32)
