"""Optimizer steps inside of the generated code against the reference optimizers, step by step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.errors import UserError
from meta500.graph import Builder, ops
from meta500.optimizers import SGD, Adam, AdamW, Momentum, schedules

FEW = min(2, len(os.sched_getaffinity(0)))
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (SGD, {"learning_rate": 0.05}),
    "momentum": (Momentum, {"learning_rate": 0.02, "momentum": 0.8}),
    "adam": (Adam, {"learning_rate": 0.01, "beta1": 0.8, "beta2": 0.95, "epsilon": 1e-6}),
    "adamw": (AdamW, {"learning_rate": 0.01, "weight_decay": 0.1}),
}
DECAYED: dict[str, tuple[Any, dict[str, Any]]] = {
    name: (cls, {**options, "learning_rate": schedules.cosine(0.1, 12), "weight_decay": 0.3})
    for name, (cls, options) in CASES.items()
}


def model(dtype: str = "float64") -> meta500.Model:
    """Odd sizes: parameters of 1, 5, 37 and 111 elements beside an unused one."""
    rng = np.random.default_rng(1)
    b = Builder("regression")
    x, target = b.input("x", dtype, (6, 37)), b.input("target", dtype, (6, 3))
    y = b.add(ops.Mul, x, b.parameter("scale", rng.standard_normal(37).astype(dtype)))
    y = b.add(ops.Tanh, b.add(ops.Gemm, y, b.parameter("w", rng.standard_normal((37, 3)).astype(dtype))))
    y = b.add(ops.Add, y, b.parameter("b", rng.standard_normal(1).astype(dtype)))
    b.parameter("idle", np.ones(5, dtype))
    difference = b.add(ops.Sub, y, target)
    b.output(b.add(ops.ReduceMean, b.add(ops.Mul, difference, difference), keepdims=0, outputs=["loss"]))
    return b.build()


def batches(count: int, dtype: str = "float64") -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [
        {"x": rng.standard_normal((6, 37)).astype(dtype), "target": rng.standard_normal((6, 3)).astype(dtype)}
        for _ in range(count)
    ]


def network(threads: int = FEW, dtype: str = "float64") -> Any:
    return meta500.network(model(dtype), backend="generated", threads=threads)


@pytest.fixture
def net() -> Iterator[Any]:
    with network() as made:
        yield made


def parameters(net: Any) -> dict[str, np.ndarray]:
    return dict(zip(net.get_params(), net.fetch_tensors(net.get_params()), strict=True))


def compare(net: Any, name: str, case: tuple[Any, dict[str, Any]], steps: int, rtol: float) -> None:
    """Losses and parameters after every step of the native optimizer are those of the reference."""
    cls, options = case
    native = net.native_optimizer(name, **options)
    with meta500.network(model(), backend="numpy") as other:
        reference = cls(other, **options)
        for batch in batches(steps):
            found, wanted = native.train(batch)["loss"], reference.train(batch)["loss"]
            np.testing.assert_allclose(found, wanted, rtol=rtol)
            for parameter, value in parameters(other).items():
                np.testing.assert_allclose(parameters(net)[parameter], value, rtol=rtol, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_steps_are_those_of_the_reference(net, name):
    compare(net, name, CASES[name], steps=20, rtol=1e-11)


@pytest.mark.parametrize("name", DECAYED)
def test_weight_decay_is_that_of_the_reference(net, name):
    """To 1e-12, with a rate of its own for every step; a parameter without gradient shrinks all the same."""
    compare(net, name, DECAYED[name], steps=10, rtol=1e-12)
    assert (parameters(net)["idle"] < 0.9).all()


def test_weight_decay_enters_the_gradient_of_sgd(net):
    """One step by hand: x - rate * (g + weight_decay * x)."""
    before = parameters(net)
    net.native_optimizer("sgd", learning_rate=0.125, weight_decay=0.5).train(batches(1)[0])
    gradients = dict(zip(before, net.fetch_tensors([f"grad/{n}" for n in before]), strict=True))
    for name, x in before.items():
        wanted = x - 0.125 * (gradients[name] + 0.5 * x)
        np.testing.assert_allclose(parameters(net)[name], wanted, rtol=1e-14, atol=1e-15)


def test_weight_decay_is_read_at_every_step(net):
    decays = [0.0, 0.5, 0.25, 0.0]
    native = net.native_optimizer("momentum", learning_rate=0.02)
    with meta500.network(model(), backend="numpy") as other:
        reference = Momentum(other, learning_rate=0.02)
        for decay, batch in zip(decays, batches(4), strict=True):
            native.weight_decay = reference.weight_decay = decay
            native.train(batch)
            reference.train(batch)
        for parameter, value in parameters(other).items():
            np.testing.assert_allclose(parameters(net)[parameter], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", CASES)
def test_references_run_on_the_same_buffers(net, name):
    cls, options = CASES[name]
    optimizer = cls(net, **options)
    with meta500.network(model(), backend="numpy") as other:
        reference = cls(other, **options)
        for batch in batches(3):
            np.testing.assert_allclose(
                optimizer.train(batch)["loss"], reference.train(batch)["loss"], rtol=1e-11
            )
        for parameter, value in parameters(other).items():
            np.testing.assert_allclose(parameters(net)[parameter], value, rtol=1e-10, atol=1e-13)


def test_single_precision_adam_is_as_exact_as_single_precision():
    """1 - beta2 is not rounded: after many steps the error is that of the arithmetic."""
    from meta500.metrics.norms import compare

    with network(dtype="float32") as net, meta500.network(model(), backend="numpy") as other:
        native, reference = net.native_optimizer("adam", learning_rate=0.01), Adam(other, learning_rate=0.01)
        for batch in batches(30, "float32"):
            native.train(batch)
            reference.train({n: a.astype("float64") for n, a in batch.items()})
        for parameter, value in parameters(other).items():
            assert compare(parameters(net)[parameter].astype("float64"), value).l2_relative < 3e-6, parameter


def test_several_steps_in_one_call(net):
    given = batches(5)
    trainer = net.native_optimizer("adam", learning_rate=0.01)
    losses = [float(step["loss"]) for step in trainer.train_steps(given)]
    assert trainer.step_count == 5
    after = parameters(net)
    with network() as other:
        single = other.native_optimizer("adam", learning_rate=0.01)
        assert losses == [float(single.train(batch)["loss"]) for batch in given]
        for name, value in parameters(other).items():
            np.testing.assert_array_equal(after[name], value)


def test_the_rate_is_read_at_every_step(net):
    trainer = net.native_optimizer("sgd", learning_rate=0.0)
    before = parameters(net)
    (batch,) = batches(1)
    trainer.train(batch)
    for name, value in before.items():
        np.testing.assert_array_equal(parameters(net)[name], value)
    trainer.learning_rate = lambda step: 0.125 if step else 1e9
    trainer.train(batch)
    gradients = dict(zip(before, net.fetch_tensors([f"grad/{n}" for n in before]), strict=True))
    assert all(
        np.allclose(parameters(net)[n], before[n] - 0.125 * gradients[n], rtol=1e-12, atol=1e-15)
        for n in before
    )


@pytest.mark.parametrize(("name", "cases"), [*((n, CASES) for n in CASES), ("adam", DECAYED)])
def test_a_saved_state_goes_on(name, cases):
    options, given = cases[name][1], batches(6)
    with network() as first, network() as second:
        whole = first.native_optimizer(name, **options)
        for batch in given[:3]:
            whole.train(batch)
        state = whole.state_dict()
        for parameter, value in parameters(first).items():
            second.feed_tensor(parameter, value)
        # Other options than the rate, which may be a schedule, come with the state.
        resumed = second.native_optimizer(name, learning_rate=options["learning_rate"])
        resumed.load_state_dict(state)
        assert resumed.step_count == 3 and resumed.hyper_parameters() == whole.hyper_parameters()
        assert resumed.weight_decay == options.get("weight_decay", 0.0)
        for batch in given[3:]:
            assert float(whole.train(batch)["loss"]) == float(resumed.train(batch)["loss"])
        for parameter, value in parameters(first).items():
            np.testing.assert_array_equal(parameters(second)[parameter], value)


def test_parameters_fed_between_steps_are_used(net):
    trainer = net.native_optimizer("momentum", learning_rate=0.01)
    first, second = batches(2)
    trainer.train(first)
    net.feed_tensor("w", np.zeros((37, 3)))
    loss = trainer.train(second)["loss"]
    bias = parameters(net)["b"]
    assert float(loss) != 0
    assert np.isfinite(bias).all()
    np.testing.assert_allclose(
        loss, np.square(_bias_before(second, first) - second["target"]).mean(), rtol=1e-10
    )


def _bias_before(second: dict[str, np.ndarray], first: dict[str, np.ndarray]) -> np.ndarray:
    """The bias after one step of momentum on the first batch."""
    with meta500.network(model(), backend="numpy") as other:
        Momentum(other, learning_rate=0.01).train(first)
        return parameters(other)["b"]


def test_gradients_after_a_step_are_those_before_it(net):
    (batch,) = batches(1)
    with meta500.network(model(), backend="numpy") as other:
        other.inference_and_backprop(batch)
        wanted = other.fetch_tensors([f"grad/{n}" for n in other.get_params()])
    net.native_optimizer("adam", learning_rate=0.5).train(batch)
    for found, value in zip(net.fetch_tensors([f"grad/{n}" for n in net.get_params()]), wanted, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("nothing", {}, "adamw"),
        ("adam", {"momentum": 0.9}, "beta1"),
        ("adam", {"beta1": 1.5}, "beta1"),
        ("sgd", {"learning_rate": -1.0}, "learning_rate|rate"),
        ("sgd", {"weight_decay": -0.1}, r"weight_decay = -0\.1 is not valid: give a .* at least 0"),
        ("momentum", {"weight_decay": float("nan")}, "weight_decay = nan is not valid"),
        ("adam", {"weight_decay": "much"}, "weight_decay = 'much' is not valid"),
        ("sgd", {"weight_deca": 0.1}, "weight_decay"),
    ],
)
def test_wrong_optimizers(net, name, options, words):
    with pytest.raises(UserError, match=words):
        net.native_optimizer(name, **options)


def test_an_unknown_loss(net):
    with pytest.raises(UserError, match="nothing"):
        net.native_optimizer("sgd", loss="nothing").train(batches(1)[0])


def test_two_optimizers_of_one_network(net):
    """Each has its own state; the parameters are common."""
    first, second = net.native_optimizer("adam"), net.native_optimizer("momentum")
    a, b = batches(2)
    first.train(a)
    second.train(b)
    first.train(a)
    with meta500.network(model(), backend="numpy") as other:
        one, two = Adam(other), Momentum(other)
        one.train(a)
        two.train(b)
        one.train(a)
        for parameter, value in parameters(other).items():
            np.testing.assert_allclose(parameters(net)[parameter], value, rtol=1e-10, atol=1e-13)
