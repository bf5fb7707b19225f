"""Loss operators. Labels index the class axis (axis 1); the mean is over what is not ignored."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.errors import UserError, choose

_REDUCTIONS = ("none", "sum", "mean")

# torch ignores label -100 unless told otherwise, ONNX ignores nothing by default: name a label that no
# class can have, so that a stray -100 is out of range instead of silently left out.
_NOTHING = -(2**62)


def _prepared(labels: Tensor, ignore_index: int | None, reduction: str) -> tuple[Tensor, int]:
    if reduction not in _REDUCTIONS:
        choose("loss reduction", reduction, _REDUCTIONS)
    return labels.to(torch.int64), _NOTHING if ignore_index is None else ignore_index


def _wants_gradient(weights: Tensor | None) -> bool:
    return weights is not None and weights.requires_grad and torch.is_grad_enabled()


def _picked(log_prob: Tensor, labels: Tensor, weights: Tensor | None, ignored: int, reduction: str) -> Tensor:
    """The weighted negative log-probabilities of the labels, reduced."""
    if weights is None or not _wants_gradient(weights):
        # The backward of the kernel for images refuses other layouts.
        return F.nll_loss(log_prob.contiguous(), labels, weights, ignore_index=ignored, reduction=reduction)
    # The kernel has no gradient for weights.
    kept = labels != ignored
    classes = torch.where(kept, labels, 0)
    weight = weights[classes] * kept
    loss = -log_prob.gather(1, classes.unsqueeze(1)).squeeze(1) * weight
    if reduction == "none":
        return loss
    return loss.sum() if reduction == "sum" else loss.sum() / weight.sum()


@rules.rule("SoftmaxCrossEntropyLoss", since=12)
def softmax_cross_entropy_loss(
    scores: Tensor,
    labels: Tensor,
    weights: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
    n_outputs: int = 1,
) -> Tensor | tuple[Tensor, Tensor]:
    """ONNX SoftmaxCrossEntropyLoss: (N, C, D1..Dk), int (N, D1..Dk), (C) -> loss[, log_prob (N, C, D1..Dk)].

    ``mean`` divides by the summed weights of the labels that are not ignored.

    Raises:
        UserError: unknown reduction.
        IndexError: a label outside [0, C) that is not ``ignore_index`` (on the CPU).
    """
    target, ignored = _prepared(labels, ignore_index, reduction)
    if n_outputs == 1 and not _wants_gradient(weights):
        return F.cross_entropy(scores, target, weights, ignore_index=ignored, reduction=reduction)
    log_prob = F.log_softmax(scores, dim=1)
    loss = _picked(log_prob, target, weights, ignored, reduction)
    return loss if n_outputs == 1 else (loss, log_prob)


@rules.rule("NegativeLogLikelihoodLoss", since=12)
def negative_log_likelihood_loss(
    log_prob: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:
    """ONNX NegativeLogLikelihoodLoss: (N, C, D1..Dk), int (N, D1..Dk), (C) -> loss.

    Raises:
        UserError: unknown reduction.
        IndexError: a target outside [0, C) that is not ``ignore_index`` (on the CPU).
    """
    labels, ignored = _prepared(target, ignore_index, reduction)
    return _picked(log_prob, labels, weight, ignored, reduction)


@rules.rule("MeanSquaredError", since=1, domain="meta500")
def mean_squared_error(prediction: Tensor, target: Tensor, *, reduction: str = "mean") -> Tensor:
    """meta500 MeanSquaredError: ``(prediction - target)**2``, its mean over all elements, or its sum.

    Raises:
        UserError: the shapes differ (nothing is broadcast), or an unknown reduction.
    """
    if reduction not in _REDUCTIONS:
        choose("loss reduction", reduction, _REDUCTIONS)
    if prediction.shape != target.shape:
        raise UserError(
            f"MeanSquaredError: prediction {tuple(prediction.shape)} and target {tuple(target.shape)} "
            "must have the same shape"
        )
    return F.mse_loss(prediction, target, reduction=reduction)
