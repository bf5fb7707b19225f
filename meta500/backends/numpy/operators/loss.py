"""Losses: negative log-likelihood, softmax cross entropy, mean squared error."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import numeric, numeric_vjp
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

REDUCTIONS = ("none", "mean", "sum")


def log_softmax(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """``x - log(sum(exp(x)))`` over ``axis``, shifted by the maximum so that nothing overflows."""
    shifted = x - x.max(axis=axis, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True))


def _sample_weights(
    operator: str,
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    ignore_index: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels (N, 1, ...) usable as indices, weight of every sample (N, ...), and which ones count.

    Raises:
        UserError: shapes do not fit, or a label is no class.
    """
    if scores.ndim < 2 or labels.shape != (scores.shape[0], *scores.shape[2:]):
        raise UserError(
            f"{operator}: scores of shape {scores.shape} need labels of shape "
            f"{(*scores.shape[:1], *scores.shape[2:])}, got {labels.shape}"
        )
    classes = scores.shape[1]
    if weights is not None and weights.shape != (classes,):
        raise UserError(f"{operator}: weights have shape {weights.shape}, expected ({classes},)")
    used = np.ones(labels.shape, bool) if ignore_index is None else labels != ignore_index
    index = np.where(used, labels, 0)
    if np.any((index < 0) | (index >= classes)):
        wrong = index[(index < 0) | (index >= classes)].flat[0]
        raise UserError(
            f"{operator}: label {wrong} is outside [0, {classes - 1}]"
            + ("" if ignore_index is None else f" and is not ignore_index ({ignore_index})")
        )
    sample = used.astype(scores.dtype) if weights is None else np.where(used, weights[index], 0)
    return np.expand_dims(index, 1), sample, used


def _reduced_nll(
    operator: str,
    log_prob: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None,
    ignore_index: int | None,
    reduction: str,
    saved: dict[str, Any],
) -> np.ndarray:
    choose(f"reduction of {operator}", reduction, REDUCTIONS)
    index, sample, used = _sample_weights(operator, log_prob, labels, weights, ignore_index)
    picked = np.take_along_axis(log_prob, index, axis=1).squeeze(1)
    # A sample of weight zero counts nothing, even where its log-probability is -inf.
    loss = np.where(sample == 0, 0, -picked * sample)
    saved.update(index=index, sample=sample, used=used, picked=picked, loss=loss, reduction=reduction)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return loss.sum()
    saved["total"] = sample.sum()
    return loss.sum() / saved["total"]


def _nll_gradients(call: Call, d: np.ndarray, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """Gradients of the log-probabilities (of ``shape``) and of the class weights."""
    saved = call.saved
    sample, index = saved["sample"], saved["index"]
    scale = d / saved["total"] if saved["reduction"] == "mean" else d
    d_log = np.zeros(shape, sample.dtype)
    np.put_along_axis(d_log, index, np.expand_dims(-scale * sample, 1), axis=1)
    if len(call.inputs) < 3 or call.inputs[2] is None or not call.needs[2]:
        return d_log, None
    per_sample = -saved["picked"]
    if saved["reduction"] == "mean":
        per_sample = per_sample - saved["loss"].sum() / saved["total"]
    per_sample = np.where(saved["used"], scale * per_sample, 0)
    # bincount sums in float64.
    d_weights = np.bincount(index.ravel(), per_sample.ravel(), minlength=shape[1])
    return d_log, d_weights.astype(sample.dtype)


@rules.rule("NegativeLogLikelihoodLoss", 12)
@numeric
def negative_log_likelihood_loss(
    log_prob: np.ndarray,
    target: np.ndarray,
    weight: np.ndarray | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    saved: dict[str, Any],
) -> np.ndarray:
    """ONNX NegativeLogLikelihoodLoss: log_prob (N, C, ...), target (N, ...) of integers, weight (C).

    "mean" divides by the sum of the weights of the samples that are not ignored.

    Raises:
        UserError: shapes do not fit, a target is no class, unknown reduction.
    """
    return _reduced_nll("NegativeLogLikelihoodLoss", log_prob, target, weight, ignore_index, reduction, saved)


@negative_log_likelihood_loss.vjp
@numeric_vjp
def negative_log_likelihood_loss_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """Gradients of the log-probabilities and the weights."""
    d_log, d_weight = _nll_gradients(call, d, call.inputs[0].shape)
    return (d_log, None, d_weight)[: len(call.inputs)]


@rules.rule("SoftmaxCrossEntropyLoss", 12)
@numeric
def softmax_cross_entropy_loss(
    scores: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    saved: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """ONNX SoftmaxCrossEntropyLoss: scores (N, C, ...), labels (N, ...), weights (C).

    Returns the loss, and the log-probabilities in the shape of the scores.

    Raises:
        UserError: shapes do not fit, a label is no class, unknown reduction.
    """
    if scores.ndim < 2:
        raise UserError(f"SoftmaxCrossEntropyLoss: scores have shape {scores.shape}, expected (N, C, ...)")
    log_prob = log_softmax(scores, 1)
    saved["log_prob"] = log_prob
    loss = _reduced_nll("SoftmaxCrossEntropyLoss", log_prob, labels, weights, ignore_index, reduction, saved)
    return np.asarray(loss), log_prob


@softmax_cross_entropy_loss.vjp
@numeric_vjp
def softmax_cross_entropy_loss_vjp(
    call: Call, d_loss: np.ndarray | None, d_log_prob: np.ndarray | None = None
) -> tuple[np.ndarray | None, ...]:
    """``softmax(scores) - onehot(labels)``, weighted; plus the part of the second output."""
    log_prob, d_weights = call.saved["log_prob"], None
    d_log = np.zeros_like(log_prob) if d_log_prob is None else d_log_prob
    if d_loss is not None:
        part, d_weights = _nll_gradients(call, d_loss, log_prob.shape)
        d_log = d_log + part
    elif len(call.inputs) > 2 and call.inputs[2] is not None:
        d_weights = np.zeros_like(call.inputs[2])  # the log-probabilities are not weighted
    d_scores = d_log - np.exp(log_prob) * d_log.sum(axis=1, keepdims=True)
    return (d_scores, None, d_weights)[: len(call.inputs)]


@rules.rule("MeanSquaredError", domain="meta500")
@numeric
def mean_squared_error(
    prediction: np.ndarray, target: np.ndarray, *, reduction: str = "mean", saved: dict[str, Any]
) -> np.ndarray:
    """``(prediction - target) ** 2``, as it is, summed, or averaged over all elements.

    Raises:
        UserError: the shapes differ, unknown reduction.
    """
    choose("reduction of MeanSquaredError", reduction, REDUCTIONS)
    if prediction.shape != target.shape:
        raise UserError(
            f"MeanSquaredError: prediction has shape {prediction.shape}, target {target.shape}; "
            f"they must be equal"
        )
    saved["reduction"] = reduction
    squares = np.square(prediction - target)
    if reduction == "none":
        return squares
    return squares.sum() if reduction == "sum" else squares.mean()


@mean_squared_error.vjp
@numeric_vjp
def mean_squared_error_vjp(call: Call, d: np.ndarray) -> tuple[np.ndarray | None, ...]:
    """``2 * (prediction - target)``, over the number of elements for "mean"."""
    prediction, target = call.inputs
    scale = 2 * d / prediction.size if call.saved["reduction"] == "mean" else 2 * d
    d_prediction = scale * (prediction - target)
    return d_prediction, -d_prediction if call.needs[1] else None
