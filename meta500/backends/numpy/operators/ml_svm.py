"""Support vector machines of ai.onnx.ml: SVMRegressor and SVMClassifier.

Kernels with gamma, coef0, degree = ``kernel_params``: LINEAR <x, v>; POLY (gamma <x, v> + coef0)^degree;
RBF exp(-gamma |x - v|^2); SIGMOID tanh(gamma <x, v> + coef0). The decision between classes i < j and the
probabilities are those of LIBSVM (Chang and Lin 2011); coefficients lie as in its models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.ml_scores import (
    DOMAIN,
    labels,
    matrix,
    numbers,
    pick,
    transform,
    transform_vjp,
)
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Floats = tuple[float, ...]
Ints = tuple[int, ...]
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
_CLIP = 1e-7


def _kernel(operator: str, name: str, params: Floats | None, x: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Kernel values (N, vectors)."""
    choose(f"{operator} kernel_type", name, KERNELS)
    gamma, coef0, degree = _parameters(operator, name, params)
    if name == "RBF":
        return np.asarray(np.exp(-gamma * np.square(x[:, None, :] - v[None, :, :]).sum(axis=-1)))
    products = x @ v.T
    if name == "POLY":
        return np.asarray((gamma * products + coef0) ** degree)
    return np.tanh(gamma * products + coef0) if name == "SIGMOID" else products


def _parameters(operator: str, name: str, params: Floats | None) -> tuple[float, float, float]:
    given = numbers(params)
    if name == "LINEAR" and given.size == 0:
        return 0.0, 0.0, 0.0
    if given.size != 3:
        raise UserError(f"{operator}: kernel_params must hold gamma, coef0 and degree; got {given.tolist()}")
    return float(given[0]), float(given[1]), float(given[2])


def _vectors(operator: str, flat: Floats | None, count: int, features: int) -> np.ndarray:
    values = numbers(flat)
    if values.size != count * features:
        raise UserError(
            f"{operator}: {values.size} numbers do not make {count} support vectors of {features} features"
        )
    return values.reshape(count, features)


@rules.rule("SVMRegressor", 1, domain=DOMAIN)
def svm_regressor(
    x: np.ndarray,
    *,
    coefficients: Floats | None = None,
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    n_supports: int = 0,
    one_class: int = 0,
    post_transform: str = "NONE",
    rho: Floats | None = None,
    support_vectors: Floats | None = None,
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX SVMRegressor: ``sum of coefficient * kernel(x, vector) + rho`` of shape (N, 1), float32.

    Without ``n_supports`` the coefficients are the weights of a linear model; with ``one_class`` the result
    is 1 where the sum is positive, else -1.

    Raises:
        UserError: coefficients, vectors, ``rho`` or kernel parameters of a wrong number.
    """
    data, weights, offset = matrix("SVMRegressor", x), numbers(coefficients), numbers(rho)
    wanted = n_supports if n_supports > 0 else data.shape[1]
    if weights.size != wanted or offset.size != 1:
        raise UserError(
            f"SVMRegressor: {weights.size} coefficients and {offset.size} rho, expected {wanted} and 1"
        )
    if n_supports > 0:
        vectors = _vectors("SVMRegressor", support_vectors, n_supports, data.shape[1])
        sums = _kernel("SVMRegressor", kernel_type, kernel_params, data, vectors) @ weights
    else:
        vectors, sums = None, data @ weights
    scores = (sums + offset)[:, None]
    if one_class:
        return np.where(scores > 0, 1, -1).astype(np.float32)
    results = transform(post_transform, scores)
    saved.update(vectors=vectors, scores=scores, results=results)
    return results.astype(np.float32)


@svm_regressor.vjp
def svm_regressor_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """Through the transform and the kernel; zero for one class, which is piecewise constant."""
    x, a, saved = call.inputs[0], call.attributes, call.saved
    if a.get("one_class", 0):
        return (np.zeros_like(x),)
    data, weights = matrix("SVMRegressor", x), numbers(a.get("coefficients"))
    name = a.get("post_transform", "NONE")
    d_sums = transform_vjp(name, saved["scores"], saved["results"], d.astype(np.float64))
    vectors, kernel = saved["vectors"], a.get("kernel_type", "LINEAR")
    if vectors is None:
        return ((d_sums * weights).reshape(x.shape).astype(x.dtype),)
    gamma, coef0, degree = _parameters("SVMRegressor", kernel, a.get("kernel_params"))
    d_kernel = d_sums * weights
    if kernel == "RBF":
        d_kernel = d_kernel * _kernel("SVMRegressor", kernel, a.get("kernel_params"), data, vectors)
        gradient = -2 * gamma * (d_kernel.sum(axis=1, keepdims=True) * data - d_kernel @ vectors)
    else:
        inner = gamma * (data @ vectors.T) + coef0
        if kernel == "POLY":
            d_kernel = d_kernel * degree * gamma * inner ** (degree - 1)
        elif kernel == "SIGMOID":
            d_kernel = d_kernel * gamma * (1 - np.tanh(inner) ** 2)
        gradient = d_kernel @ vectors
    return (gradient.reshape(x.shape).astype(x.dtype),)


@rules.rule("SVMClassifier", 1, domain=DOMAIN)
def svm_classifier(
    x: np.ndarray,
    *,
    classlabels_ints: Ints | None = None,
    classlabels_strings: tuple[str, ...] | None = None,
    coefficients: Floats | None = None,
    kernel_params: Floats | None = None,
    kernel_type: str = "LINEAR",
    post_transform: str = "NONE",
    prob_a: Floats | None = None,
    prob_b: Floats | None = None,
    rho: Floats | None = None,
    support_vectors: Floats | None = None,
    vectors_per_class: Ints | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """ONNX SVMClassifier: labels (N) and scores, float32, after the post transform.

    With ``vectors_per_class`` every pair of classes votes, and the class with most votes wins (the first of
    equals). Scores are the probabilities (N, classes) where ``prob_a`` and ``prob_b`` are given, otherwise
    the decision values of the pairs (0, 1), (0, 2), ..., (1, 2), ...; with two classes the one value s
    becomes (-s, s) as in ONNX Runtime, although s > 0 means the first label. Without ``vectors_per_class``
    each class has a row of weights, and ``rho`` one offset for all or one each.

    Has no gradient here: labels are integers, and probabilities come from an iteration.

    Raises:
        UserError: numbers of labels, coefficients, vectors or ``rho`` that do not fit.
    """
    names = labels("SVMClassifier", classlabels_ints, classlabels_strings)
    data, offsets = matrix("SVMClassifier", x), numbers(rho)
    a, b = numbers(prob_a), numbers(prob_b)
    classes = len(names)
    if classes < 2:
        raise UserError("SVMClassifier: with a single class label there is nothing to choose from")
    if not vectors_per_class:
        scores = _linear_scores(data, numbers(coefficients), offsets, classes)
        return pick(names, scores.argmax(axis=1)), transform(post_transform, scores).astype(np.float32)
    pairs = classes * (classes - 1) // 2
    if len(vectors_per_class) != classes or offsets.size != pairs:
        raise UserError(
            f"SVMClassifier: {len(vectors_per_class)} vectors_per_class and {offsets.size} rho for {classes} "
            f"classes, expected {classes} and {pairs}"
        )
    if a.size != b.size or a.size not in (0, pairs):
        raise UserError(f"SVMClassifier: {a.size} prob_a and {b.size} prob_b, expected 0 or {pairs} of both")
    count = sum(vectors_per_class)
    vectors = _vectors("SVMClassifier", support_vectors, count, data.shape[1])
    weights = numbers(coefficients)
    if weights.size != (classes - 1) * count:
        raise UserError(f"SVMClassifier: {weights.size} coefficients, expected {(classes - 1) * count}")
    kernels = _kernel("SVMClassifier", kernel_type, kernel_params, data, vectors)
    decisions, votes = _decisions(kernels, weights.reshape(classes - 1, count), offsets, vectors_per_class)
    chosen = votes.argmax(axis=1)
    if a.size:
        scores = _probabilities(decisions, a, b, classes)
    else:
        scores = np.concatenate((-decisions, decisions), axis=1) if pairs == 1 else decisions
    return pick(names, chosen), transform(post_transform, scores).astype(np.float32)


def _linear_scores(x: np.ndarray, weights: np.ndarray, rho: np.ndarray, classes: int) -> np.ndarray:
    if weights.size != classes * x.shape[1] or rho.size not in (1, classes):
        raise UserError(
            f"SVMClassifier: {weights.size} coefficients and {rho.size} rho for {classes} classes and "
            f"{x.shape[1]} features"
        )
    return np.asarray(x @ weights.reshape(classes, -1).T + rho)


def _decisions(
    kernels: np.ndarray, weights: np.ndarray, rho: np.ndarray, counts: Ints
) -> tuple[np.ndarray, np.ndarray]:
    """Decision values (N, pairs) and votes (N, classes)."""
    classes = len(counts)
    starts = np.concatenate(([0], np.cumsum(counts)))
    votes = np.zeros((len(kernels), classes))
    found: list[np.ndarray] = []
    for i in range(classes):
        mine = slice(starts[i], starts[i + 1])
        for j in range(i + 1, classes):
            other = slice(starts[j], starts[j + 1])
            value = rho[len(found)] + kernels[:, mine] @ weights[j - 1, mine]
            value = value + kernels[:, other] @ weights[i, other]
            found.append(value)
            votes[:, i] += value > 0
            votes[:, j] += value <= 0
    return np.stack(found, axis=1), votes


def _probabilities(decisions: np.ndarray, a: np.ndarray, b: np.ndarray, classes: int) -> np.ndarray:
    """Class probabilities from those of the pairs, by Wu, Lin and Weng (2004), as LIBSVM couples them."""
    paired = np.clip(1 - transform("LOGISTIC", decisions * a + b), _CLIP, 1 - _CLIP)
    result = np.empty((len(decisions), classes))
    for row, probabilities in enumerate(paired):
        r = np.zeros((classes, classes))
        r[np.triu_indices(classes, 1)] = probabilities
        r[np.tril_indices(classes, -1)] = (1 - r.T)[np.tril_indices(classes, -1)]
        result[row] = (r[0, 1], r[1, 0]) if classes == 2 else _coupled(r)
    return result


def _coupled(r: np.ndarray) -> np.ndarray:
    """The minimum of sum over i < j of (r_ji p_i - r_ij p_j)^2 with sum p = 1: one linear system."""
    classes = len(r)
    q = -r.T * r
    np.fill_diagonal(q, (r * r).sum(axis=0))
    system = np.ones((classes + 1, classes + 1))
    system[:classes, :classes], system[classes, classes] = q, 0
    return np.linalg.solve(system, np.append(np.zeros(classes), 1.0))[:classes]
