"""LinearRegressor and LinearClassifier of ai.onnx.ml."""

from __future__ import annotations

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.ml_scores import (
    DOMAIN,
    expect_transform,
    expect_transform_of,
    labels,
    matrix,
    numbers,
    pick,
    top,
    transform,
    transform_vjp,
)
from meta500.backends.rules import Call
from meta500.errors import UserError

Floats = tuple[float, ...]
ONE_ROW = "with one row of coefficients for two class labels"


def weights(operator: str, coefficients: Floats | None, features: int, rows: int | None) -> np.ndarray:
    """The coefficients as (rows, features); ``rows`` None takes as many as there are.

    Raises:
        UserError: their number does not fit.
    """
    flat = numbers(coefficients)
    count = flat.size // max(features, 1) if rows is None else rows
    if flat.size != count * features or not count:
        wanted = f"{rows} rows of" if rows is not None else "rows of"
        raise UserError(f"{operator}: {flat.size} coefficients do not make {wanted} {features} features")
    return flat.reshape(count, features)


def _scores(operator: str, x: np.ndarray, w: np.ndarray, intercepts: Floats | None) -> np.ndarray:
    offsets = numbers(intercepts)
    if offsets.size not in (0, len(w)):
        raise UserError(f"{operator}: {offsets.size} intercepts for {len(w)} rows of coefficients")
    return x @ w.T + (offsets if offsets.size else 0)


@rules.rule("LinearRegressor", 1, domain=DOMAIN)
def linear_regressor(
    x: np.ndarray,
    *,
    coefficients: Floats | None = None,
    intercepts: Floats | None = None,
    post_transform: str = "NONE",
    targets: int = 1,
    saved: dict[str, np.ndarray],
) -> np.ndarray:
    """ONNX LinearRegressor: ``x @ W.T + intercepts`` of shape (N, targets), float32; x (N, F).

    Raises:
        UserError: coefficients or intercepts do not fit, or a transform other than PROBIT of one target.
    """
    expect_transform_of("LinearRegressor", post_transform, targets)
    data = matrix("LinearRegressor", x)
    w = weights("LinearRegressor", coefficients, data.shape[1], targets)
    scores = _scores("LinearRegressor", data, w, intercepts)
    results = transform(post_transform, scores)
    saved.update(weights=w, scores=scores, results=results)
    return results.astype(np.float32)


@linear_regressor.vjp
def linear_regressor_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """Back through the transform, then through the product."""
    return (_input_gradient(call, call.attributes.get("post_transform", "NONE"), d),)


@rules.rule("LinearClassifier", 1, domain=DOMAIN)
def linear_classifier(
    x: np.ndarray,
    *,
    classlabels_ints: tuple[int, ...] | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: Floats,
    intercepts: Floats | None = None,
    multi_class: int = 0,
    post_transform: str = "NONE",
    saved: dict[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """ONNX LinearClassifier: the label of the highest score (N), and the scores (N, E), float32.

    With two labels but one row of coefficients s is the score of the second label and -s that of the first;
    only their logistic function is sure, as other scores differ between ONNX's reference and ONNX Runtime.
    ``multi_class`` says how the weights were trained and changes nothing here.

    Raises:
        UserError: the numbers of labels, coefficients and intercepts do not fit, or a transform other than
            LOGISTIC for one row of coefficients.
    """
    names = labels("LinearClassifier", classlabels_ints, classlabels_strings)
    data = matrix("LinearClassifier", x)
    w = weights("LinearClassifier", coefficients, data.shape[1], None)
    scores = _scores("LinearClassifier", data, w, intercepts)
    if len(w) == 1 and len(names) == 2:
        expect_transform("LinearClassifier", post_transform, ("LOGISTIC",), ONE_ROW)
        scores = np.concatenate((-scores, scores), axis=1)
        w = np.concatenate((-w, w))
    if len(w) != len(names):
        raise UserError(f"LinearClassifier: {len(w)} rows of coefficients for {len(names)} class labels")
    if len(names) == 1:
        raise UserError("LinearClassifier: with a single class label there is nothing to choose from")
    results = transform(post_transform, scores)
    saved.update(weights=w, scores=scores, results=results)
    chosen = top("LinearClassifier", post_transform, scores, results)
    return pick(names, chosen), results.astype(np.float32)


@linear_classifier.vjp
def linear_classifier_vjp(
    call: Call, d_label: np.ndarray | None, d_scores: np.ndarray | None = None
) -> tuple[np.ndarray]:
    """The gradient of the scores; labels have none."""
    if d_scores is None:
        return (np.zeros_like(call.inputs[0]),)
    return (_input_gradient(call, call.attributes.get("post_transform", "NONE"), d_scores),)


def _input_gradient(call: Call, name: str, d: np.ndarray) -> np.ndarray:
    x, saved = call.inputs[0], call.saved
    d_scores = transform_vjp(name, saved["scores"], saved["results"], d.astype(np.float64))
    return (d_scores @ saved["weights"]).reshape(x.shape).astype(x.dtype)
