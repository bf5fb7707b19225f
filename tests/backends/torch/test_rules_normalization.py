"""Normalization, dropout, losses and activations against their formulas in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special

EPSILON = 9.999999747378752e-06


def _statistics(seed: int, *shape: int) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(seed)
    c = shape[1]
    return (
        rng.normal(2, 3, shape),
        rng.normal(size=c),
        rng.normal(size=c),
        rng.normal(size=c),
        rng.uniform(0.5, 2, c),
    )


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 2, 3), (1, 3, 1, 1)])
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_batch_normalization_trains_with_population_variance(rule: Any, shape: Any, n_outputs: int) -> None:
    x, scale, bias, mean, var = _statistics(1, *shape)
    attributes = {"training_mode": 1, "momentum": 0.75, "epsilon": 1e-3}
    outputs = rule("BatchNormalization", 15, (x, scale, bias, mean, var), attributes, n_outputs=n_outputs)
    axes = tuple(a for a in range(x.ndim) if a != 1)
    column = (-1, *(1,) * (x.ndim - 2))
    batch_mean, batch_var = x.mean(axes), x.var(axes)
    y = (x - batch_mean.reshape(column)) / np.sqrt(batch_var.reshape(column) + 1e-3)
    y = y * scale.reshape(column) + bias.reshape(column)
    expected = (y, mean * 0.75 + batch_mean * 0.25, var * 0.75 + batch_var * 0.25)
    for got, wanted in zip(outputs, expected, strict=False):
        np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-12, atol=1e-12)


def test_batch_normalization_of_one_axis_has_one_channel(rule: Any) -> None:
    x = np.array([1.0, 2.0, 6.0])
    one, zero = np.ones(1), np.zeros(1)
    (y,) = rule("BatchNormalization", 15, (x, one, zero, 2 * one, 4 * one), {"epsilon": 0.0})
    np.testing.assert_allclose(y.numpy(), [-0.5, 0.0, 2.0], rtol=1e-15)
    y, mean, _ = rule(
        "BatchNormalization",
        15,
        (x, one, zero, zero, one),
        {"training_mode": 1, "momentum": 0.5},
        n_outputs=3,
    )
    assert y.shape == (3,)
    np.testing.assert_allclose(mean.numpy(), [1.5], rtol=1e-15)


@pytest.mark.parametrize("parameters", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("training", [0, 1])
def test_batch_normalization_mixes_types(rule: Any, parameters: torch.dtype, training: int) -> None:
    x, *rest = (torch.tensor(a) for a in _statistics(2, 3, 4, 5, 6))
    given = (x.half(), *(t.to(parameters) for t in rest))
    outputs = rule(
        "BatchNormalization", 15, given, {"training_mode": training}, n_outputs=3 if training else 1
    )
    exact = rule(
        "BatchNormalization",
        15,
        tuple(t.double() for t in given),
        {"training_mode": training},
        n_outputs=3 if training else 1,
    )
    assert outputs[0].dtype is torch.float16
    assert all(t.dtype is parameters for t in outputs[1:])
    for got, wanted in zip(outputs, exact, strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 3, 1), (1, 1, 2, 2, 2)])
def test_instance_normalization(rule: Any, shape: Any) -> None:
    x, scale, bias, _, _ = _statistics(3, *shape)
    (y,) = rule("InstanceNormalization", 6, (x, scale, bias))
    axes, column = tuple(range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    unit = (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + EPSILON)
    expected = unit * scale.reshape(column) + bias.reshape(column)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("axis", [-1, 1, -3, 0])
@pytest.mark.parametrize("n_outputs", [1, 3])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_layer_normalization(rule: Any, axis: int, n_outputs: int, dtype: Any) -> None:
    rng = np.random.default_rng(4)
    x = rng.normal(size=(2, 3, 4)).astype(dtype)
    axes = tuple(range(axis % 3, 3))
    wide = x.astype(np.float64)
    mean, var = wide.mean(axes, keepdims=True), wide.var(axes, keepdims=True)
    tolerance = {"rtol": 1e-12, "atol": 1e-12} if dtype is np.float64 else {"rtol": 3e-3, "atol": 3e-3}
    for shape in (x.shape[axis % 3 :], (4,), (1, 1)):
        scale, bias = rng.normal(size=(2, *shape)).astype(dtype)
        for shift in (bias, None):
            outputs = rule("LayerNormalization", 17, (x, scale, shift), {"axis": axis}, n_outputs=n_outputs)
            expected = (wide - mean) / np.sqrt(var + EPSILON) * scale + (0 if shift is None else shift)
            assert outputs[0].numpy().dtype == dtype
            np.testing.assert_allclose(outputs[0].numpy(), expected, **tolerance)
            for got, wanted in zip(outputs[1:], (mean, 1 / np.sqrt(var + EPSILON)), strict=False):
                assert got.dtype is torch.float32
                np.testing.assert_allclose(
                    got.numpy(), wanted, rtol=1e-3 if dtype is np.float16 else 1e-6, atol=1e-6
                )


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("shape", [(2, 5, 3, 2), (2, 4)])
def test_local_response_normalization(rule: Any, size: int, shape: Any) -> None:
    x = np.random.default_rng(5).normal(size=shape)
    attributes = {"size": size, "alpha": 0.5, "beta": 0.6, "bias": 1.5}
    (y,) = rule("LRN", 13, (x,), attributes)
    expected = np.empty_like(x)
    for c in range(shape[1]):
        low = max(0, c - math.floor((size - 1) / 2))
        high = min(shape[1] - 1, c + math.ceil((size - 1) / 2))
        squares = (x[:, low : high + 1] ** 2).sum(1)
        expected[:, c] = x[:, c] / (1.5 + 0.5 / size * squares) ** 0.6
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12)


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("version", "inputs", "attributes"),
    [
        (1, (), {"ratio": 0.25}),
        (6, (), {"ratio": 0.25}),
        (12, (0.25, True), {}),
        (22, (0.25, True), {}),
        (13, (0.25, True), {"seed": 3}),
    ],
)
def test_dropout(rule: Any, version: int, inputs: Any, attributes: Any) -> None:
    x = torch.rand(100, 200, dtype=torch.float64) + 1
    y, mask = rule("Dropout", version, (x, *inputs), attributes, n_outputs=2, rng=_generator(0))
    assert mask.dtype is (torch.bool if version >= 10 else x.dtype)
    kept = mask.to(torch.bool)
    # 20,000 draws: five standard deviations are 0.0153.
    assert abs(kept.double().mean().item() - 0.75) < 0.016
    torch.testing.assert_close(y[kept], x[kept] / 0.75, rtol=1e-15, atol=0)
    assert not y[~kept].any()
    (alone,) = rule("Dropout", version, (x, *inputs), attributes, rng=_generator(0))
    assert torch.equal(alone, y)
    (other,) = rule("Dropout", version, (x, *inputs), attributes, rng=_generator(1))
    assert torch.equal(other, y) == ("seed" in attributes)


def test_dropout_draws_anew(rule: Any) -> None:
    rng, x = _generator(0), torch.ones(1000)
    first, second = (rule("Dropout", 13, (x, None, True), rng=rng)[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert set(first.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("training", [None, False])
def test_dropout_at_inference_is_the_identity(rule: Any, training: bool | None) -> None:
    x = torch.randn(5)
    y, mask = rule("Dropout", 13, (x, 0.9, training), n_outputs=2)
    assert torch.equal(y, x) and mask.dtype is torch.bool and mask.all()


def _cross_entropy(
    scores: np.ndarray, labels: np.ndarray, weights: np.ndarray | None, ignored: int | None
) -> tuple[np.ndarray, np.ndarray]:
    """Loss and weight of each label."""
    log_prob = scores - special.logsumexp(scores, axis=1, keepdims=True)
    loss, weight = np.zeros(labels.shape), np.zeros(labels.shape)
    for place in np.ndindex(labels.shape):
        if labels[place] == ignored:
            continue
        weight[place] = 1 if weights is None else weights[labels[place]]
        loss[place] = -log_prob[(place[0], labels[place], *place[1:])] * weight[place]
    return loss, weight


@pytest.mark.parametrize("shape", [(6, 5), (2, 5, 3), (2, 5, 3, 4), (2, 5, 2, 3, 2)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [None, 1, -1, 255])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_softmax_cross_entropy(
    rule: Any, shape: Any, weighted: bool, ignored: int | None, n_outputs: int
) -> None:
    rng = np.random.default_rng(6)
    scores, labels = rng.normal(size=shape), rng.integers(0, 5, (shape[0], *shape[2:]))
    weights = rng.uniform(0.5, 2, 5) if weighted else None
    if ignored is not None:
        labels.flat[::3] = ignored
    loss, weight = _cross_entropy(scores, labels, weights, ignored)
    for reduction, expected in {
        "none": loss,
        "sum": loss.sum(),
        "mean": loss.sum() / weight.sum(),
    }.items():
        attributes: dict[str, Any] = {"reduction": reduction}
        if ignored is not None:
            attributes["ignore_index"] = ignored
        for dtype in (np.int32, np.int64):
            inputs = (scores, labels.astype(dtype), weights)
            outputs = rule("SoftmaxCrossEntropyLoss", 13, inputs, attributes, n_outputs=n_outputs)
            np.testing.assert_allclose(outputs[0].numpy(), expected, rtol=1e-12, atol=1e-14)
            log_prob = scores - special.logsumexp(scores, axis=1, keepdims=True)
            if n_outputs == 2:
                np.testing.assert_allclose(outputs[1].numpy(), log_prob, rtol=1e-12)
            inputs = (log_prob, labels.astype(dtype), weights)
            (loss_only,) = rule("NegativeLogLikelihoodLoss", 13, inputs, attributes)
            np.testing.assert_allclose(loss_only.numpy(), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
def test_no_label_is_ignored_by_default(rule: Any, op_type: str) -> None:
    """torch would pass over -100."""
    with pytest.raises(IndexError):
        rule(op_type, 13, (np.ones((2, 3)), np.array([0, -100])))


X = np.array([-60.0, -21.0, -3.0, -1.0, -0.3, -0.0, 0.0, 0.2, 1.0, 2.5, 19.9, 20.1, 49.0, 51.0, 70.0])
_A, _G = 1.6732631921768188, 1.0507010221481323

ACTIVATIONS: list[tuple[str, int, dict[str, Any], np.ndarray]] = [
    ("Relu", 14, {}, np.maximum(X, 0)),
    ("LeakyRelu", 16, {}, np.where(X < 0, 0.009999999776482582 * X, X)),
    ("Elu", 6, {"alpha": 0.7}, np.where(X < 0, 0.7 * np.expm1(X), X)),
    ("Selu", 6, {}, np.where(X > 0, _G * X, _G * _A * np.expm1(np.minimum(X, 0)))),
    ("Selu", 22, {"alpha": 2.0, "gamma": 3.0}, np.where(X > 0, 3 * X, 6 * np.expm1(np.minimum(X, 0)))),
    ("Celu", 12, {"alpha": 0.4}, np.maximum(X, 0) + np.minimum(0, 0.4 * np.expm1(np.minimum(X, 0) / 0.4))),
    ("ThresholdedRelu", 10, {"alpha": 1.0}, np.where(X > 1, X, 0)),
    ("HardSigmoid", 6, {}, np.clip(0.20000000298023224 * X + 0.5, 0, 1)),
    ("HardSwish", 14, {}, X * np.clip(X / 6 + 0.5, 0, 1)),
    ("Softplus", 1, {}, np.logaddexp(X, 0)),
    ("Softsign", 1, {}, X / (1 + np.abs(X))),
    ("Mish", 18, {}, X * np.tanh(np.logaddexp(X, 0))),
    ("Gelu", 20, {}, X * special.ndtr(X)),
    (
        "Gelu",
        20,
        {"approximate": "tanh"},
        0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
    ),
    ("Swish", 24, {}, X * special.expit(X)),
    ("Swish", 24, {"alpha": 0.3}, X * special.expit(0.3 * X)),
    ("Sigmoid", 13, {}, special.expit(X)),
    ("Tanh", 13, {}, np.tanh(X)),
    ("Erf", 13, {}, special.erf(X)),
]


@pytest.mark.parametrize(("op_type", "version", "attributes", "expected"), ACTIVATIONS)
def test_activations_are_exact_in_float64(
    rule: Any, op_type: str, version: int, attributes: dict[str, Any], expected: np.ndarray
) -> None:
    (y,) = rule(op_type, version, (X,), attributes)
    np.testing.assert_allclose(y.numpy(), expected, rtol=2e-14, atol=1e-16)


@pytest.mark.parametrize("shape", [(3, 1, 1), (1,), (), (4, 5), (2, 3, 4, 5), (5,)])
def test_prelu_broadcasts_its_slope(rule: Any, shape: Any) -> None:
    rng = np.random.default_rng(7)
    x, slope = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=shape)
    (y,) = rule("PRelu", 16, (x, slope))
    np.testing.assert_allclose(y.numpy(), np.where(x < 0, x * slope, x), rtol=1e-15)
