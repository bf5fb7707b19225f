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
    TRANSFORMS,
    expect_transform,
    labels,
    matrix,
    numbers,
    pick,
    top,
    transform,
)
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Floats = tuple[float, ...]
Ints = tuple[int, ...]
KERNELS = ("LINEAR", "POLY", "RBF", "SIGMOID")
# LIBSVM's bounds of a pair's probability, and the end of its iteration.
_CLIP, _TOLERANCE, _ITERATIONS = 1e-7, 0.005, 100


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
    is 1 where the sum is positive, else -1. Only ``post_transform`` NONE is sure: ONNX's reference has no
    other and ONNX Runtime leaves the others out.

    Raises:
        UserError: coefficients, vectors, ``rho`` or kernel parameters of a wrong number, or a post transform.
    """
    expect_transform("SVMRegressor", post_transform, ("NONE",), "for one output")
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
    saved.update(vectors=vectors)
    return scores.astype(np.float32)


@svm_regressor.vjp
def svm_regressor_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray]:
    """Through the kernel; zero for one class, which is piecewise constant."""
    x, a, saved = call.inputs[0], call.attributes, call.saved
    if a.get("one_class", 0):
        return (np.zeros_like(x),)
    data, weights = matrix("SVMRegressor", x), numbers(a.get("coefficients"))
    d_sums = d.astype(np.float64)
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
    becomes (-s, s) as in ONNX Runtime, although s > 0 means the first label; of the transforms only LOGISTIC
    is sure there. Without ``vectors_per_class`` each of three or more classes has a row of weights, and
    ``rho`` is one offset for all; with two classes implementations differ in the label.

    Has no gradient here: labels are integers, and probabilities come from an iteration.

    Raises:
        UserError: numbers of labels, coefficients, vectors or ``rho`` that do not fit, or a form of two
            classes of which implementations of ONNX differ.
    """
    choose("post_transform", post_transform, TRANSFORMS)
    names = labels("SVMClassifier", classlabels_ints, classlabels_strings)
    data, offsets = matrix("SVMClassifier", x), numbers(rho)
    a, b = numbers(prob_a), numbers(prob_b)
    classes = len(names)
    if classes < 2:
        raise UserError("SVMClassifier: with a single class label there is nothing to choose from")
    if not vectors_per_class:
        scores = _linear_scores(data, numbers(coefficients), offsets, classes)
        results = transform(post_transform, scores)
        chosen = top("SVMClassifier", post_transform, scores, results)
        return pick(names, chosen), results.astype(np.float32)
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
    elif pairs == 1:
        where = "for two classes without prob_a and prob_b"
        expect_transform("SVMClassifier", post_transform, ("NONE", "LOGISTIC"), where)
        scores = np.concatenate((-decisions, decisions), axis=1)
    else:
        scores = decisions
    return pick(names, chosen), transform(post_transform, scores).astype(np.float32)


def _linear_scores(x: np.ndarray, weights: np.ndarray, rho: np.ndarray, classes: int) -> np.ndarray:
    if classes < 3:
        raise UserError(
            "SVMClassifier: two classes without vectors_per_class are ambiguous: implementations of ONNX "
            "differ in the label; use LinearClassifier"
        )
    if weights.size != classes * x.shape[1] or rho.size != 1:
        raise UserError(
            f"SVMClassifier: {weights.size} coefficients and {rho.size} rho for {classes} classes and "
            f"{x.shape[1]} features, expected {classes * x.shape[1]} and 1"
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
    """Class probabilities (N, classes) from those of the pairs, coupled by Wu, Lin and Weng (2004).

    They minimise the sum over i < j of (r_ji p_i - r_ij p_j)^2 with sum p = 1, by the iteration of that paper
    (algorithm 2) with LIBSVM's end: every optimality error below 0.005 / classes, which leaves the result up
    to about 0.005 from the minimum. Stopping there is part of what a model's probabilities are.
    """
    paired = np.clip(1 - transform("LOGISTIC", decisions * a + b), _CLIP, 1 - _CLIP)
    first, second = np.triu_indices(classes, 1)
    r = np.zeros((len(paired), classes, classes))
    r[:, first, second], r[:, second, first] = paired, 1 - paired
    q = -np.swapaxes(r, 1, 2) * r
    q[:, range(classes), range(classes)] = np.square(r).sum(axis=1)
    p = np.full((len(paired), classes), 1 / classes)
    for _ in range(max(_ITERATIONS, classes)):
        gradient = np.einsum("nij,nj->ni", q, p)
        value = (p * gradient).sum(axis=1)
        # Written so that NaN moves too, and is not taken for the start.
        moving = ~(np.abs(gradient - value[:, None]).max(axis=1) < _TOLERANCE / classes)
        if not moving.any():
            break
        p[moving] = _sweep(q[moving], p[moving])
    return p


def _sweep(q: np.ndarray, p: np.ndarray) -> np.ndarray:
    """One pass over the classes: each probability moved to its optimum, then all scaled to the sum 1."""
    for index in range(p.shape[1]):
        gradient = np.einsum("nij,nj->ni", q, p)
        value = (p * gradient).sum(axis=1)
        step = (value - gradient[:, index]) / q[:, index, index]
        p[:, index] += step
        p /= (1 + step)[:, None]
    return p
