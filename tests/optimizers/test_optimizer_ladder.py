"""What each rung of the ladder asks and guarantees: hooks, their order, checks, failures."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import meta500
from meta500.errors import UserError
from meta500.optimizers import (
    SGD,
    AcceleGrad,
    Adam,
    GraphOptimizer,
    Optimizer,
    Real,
    ThreeStepOptimizer,
    UpdateRuleOptimizer,
    schedules,
)


class GradientDescent(UpdateRuleOptimizer):
    """The listing of the Deep500 thesis."""

    def __init__(self, network, lr=0.1):
        super().__init__(network)
        self.lr = lr

    def update_rule(self, grad, old_param, name):
        return old_param - self.lr * grad


class Recorder(ThreeStepOptimizer):
    """Notes the calls; the prepared value is 2, so the gradient is taken there."""

    def __init__(self, network):
        super().__init__(network)
        self.calls = []

    def new_input(self):
        self.calls.append(("new_input", self.step_count, self.rate))

    def prepare_param(self, name):
        self.calls.append(("prepare", name))
        return self.xp.full_like(self.network.native(name), 2.0) if name == "scale" else None

    def before_updates(self, gradients):
        self.calls.append(("before", sorted(gradients)))

    def update_rule(self, grad, old_param, name):
        self.calls.append(("update", name, float(grad.sum()), float(old_param.sum())))
        return old_param - 0.5 * grad


def test_update_rule_optimizer_is_a_few_lines(backend, make_network, starting_point):
    network = make_network(backend)
    outputs = GradientDescent(network).train({"scale": 1.0})
    begin = starting_point("numpy")
    assert np.allclose(network.params["layer.bias"], begin["layer.bias"] - 1.55 * (begin["layer.bias"] - 1))
    assert float(outputs["loss"]) == pytest.approx(float(network.function(begin)[0]), rel=1e-14)


def test_hooks_are_called_in_the_order_of_the_thesis(backend, make_network, starting_point):
    network = make_network(backend)
    optimizer = Recorder(network)
    optimizer.learning_rate = schedules.exponential(1.0, 0.5)
    optimizer.train({})
    optimizer.train({})
    bias = starting_point("numpy")["layer.bias"].sum()
    names = ["layer.weight", "layer.bias", "scale"]
    kinds = [call[0] for call in optimizer.calls]
    assert kinds == (["new_input"] + ["prepare"] * 3 + ["before"] + ["update"] * 3) * 2
    assert optimizer.calls[0] == ("new_input", 0, 1.0)
    assert optimizer.calls[8] == ("new_input", 1, 0.5)
    assert [call[1] for call in optimizer.calls[1:4]] == names
    assert optimizer.calls[4] == ("before", sorted(names))
    updates = {call[1]: call[2:] for call in optimizer.calls[5:8]}
    assert updates["scale"] == (30.0, 2.0)  # curvature 30, at the prepared point
    assert updates["layer.bias"] == pytest.approx((15.5 * (bias - 5), bias))
    assert optimizer.step_count == 2


def test_loss_is_returned_whatever_outputs_are_asked_for(make_network):
    network = make_network()
    optimizer = SGD(network)
    optimizer.train({})
    optimizer.train({}, outputs=["other"])
    optimizer.train({}, outputs=("loss", "other"))
    assert network.requested == [None, ["other", "loss"], ["loss", "other"]]


def test_failed_pass_leaves_parameters_and_step_count(backend, make_network):
    network = make_network(backend)
    optimizer = AcceleGrad(network)
    for _ in range(4):
        optimizer.train({})
    before = {name: np.array(np.asarray(value)) for name, value in network.params.items()}

    def interrupted(inputs, loss, outputs):
        assert not np.array_equal(np.asarray(network.params["layer.bias"]), before["layer.bias"])
        raise KeyboardInterrupt

    network.inference_and_backprop = interrupted
    with pytest.raises(KeyboardInterrupt):
        optimizer.train({})
    assert optimizer.step_count == 4
    for name, value in before.items():
        assert np.array_equal(np.asarray(network.params[name]), value)


def test_parameter_without_gradient_is_left_alone(make_network, starting_point):
    network = make_network()
    native = network.native
    network.native = lambda name: None if name == "grad/scale" else native(name)
    Adam(network).train({})
    assert network.params["scale"] == starting_point("numpy")["scale"]
    assert (network.params["layer.bias"] != starting_point("numpy")["layer.bias"]).all()


def test_tensors_that_require_grad_give_plain_results():
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    new = Adam(None).apply({"x": x}, {"x": torch.ones(3, dtype=torch.float64)})["x"]
    assert not new.requires_grad
    assert new.grad_fn is None


def test_hyper_parameters_belong_to_the_instance(make_network):
    a, b = SGD(make_network(), weight_decay=0.1), SGD(make_network())
    assert (a.weight_decay, b.weight_decay) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("gradient", "pattern"),
    [
        (np.ones(1), r"gradient of parameter 'x' has shape \(1,\)"),
        (np.ones(3, np.float32), r"dtype float32, the parameter \(3,\) and float64"),
    ],
)
def test_gradient_that_would_broadcast_or_widen_is_refused(gradient, pattern):
    with pytest.raises(UserError, match=pattern):
        SGD(None).apply({"x": np.ones(3)}, {"x": gradient})


@pytest.mark.parametrize("dtype", [np.int64, np.complex128, np.bool_])
def test_only_real_floating_parameters(dtype):
    with pytest.raises(UserError, match="parameter 'x' has dtype"):
        SGD(None).apply({"x": np.ones(3, dtype)}, {"x": np.ones(3, dtype)})


def test_update_rule_that_changes_dtype_shape_or_forgets_its_result_is_refused():
    results = {
        "widened": lambda old: old * np.float64(0.5),
        "reshaped": lambda old: old[:1],
        "forgotten": lambda old: None,
    }

    class Wrong(UpdateRuleOptimizer):
        def update_rule(self, grad, old_param, name):
            return results[name](old_param)

    for name in results:
        array = {name: np.ones(3, np.float32)}
        with pytest.raises(UserError, match=f"Wrong: update_rule returned .* for parameter '{name}'"):
            Wrong(None).apply(array, array)


def test_apply_needs_matching_names():
    with pytest.raises(UserError, match=r"parameters \['x', 'y'\], gradients \['x'\]"):
        SGD(None).apply({"x": np.ones(2), "y": np.ones(2)}, {"x": np.ones(2)})


def test_training_without_a_network_is_refused():
    with pytest.raises(UserError, match="without a network"):
        SGD(None).train({})


def test_abstract_rungs_cannot_be_made():
    for rung in (Optimizer, ThreeStepOptimizer, UpdateRuleOptimizer, GraphOptimizer):
        with pytest.raises(TypeError, match="abstract"):
            rung(None)


def test_declared_hyper_parameters_are_checked_whenever_they_are_set():
    class Mine(UpdateRuleOptimizer):
        sharpness = Real(below=2.0)

        def update_rule(self, grad, old_param, name):
            return old_param

    mine = Mine(None)
    mine.sharpness = np.float32(0.5)
    assert type(mine.sharpness) is float
    assert mine.hyper_parameters() == {"learning_rate": 0.01, "sharpness": 0.5}
    with pytest.raises(UserError, match=r"Mine: sharpness = 2.0 .* at least 0 and below 2"):
        mine.sharpness = 2.0
    assert mine.sharpness == 0.5


# -- graph optimizers -----------------------------------------------------------------------------------


class Native(GraphOptimizer):
    """A backend's own optimizer over the fake network."""

    def build(self):
        self.built_with = [*getattr(self, "built_with", []), self.rate]

    def step(self):
        for name, gradient in self.network.gradient():
            old = self.network.native(name)
            new = old - self.rate * self.network.native(gradient)
            self.network.assign(name, np.asarray(new))


class Adjustable(Native):
    def set_rate(self, rate):
        self.changes = [*getattr(self, "changes", []), rate]


def test_graph_optimizer_builds_once_and_steps_after_backpropagation(make_network):
    network, reference = make_network(), make_network()
    native, plain = Native(network, learning_rate=0.02), SGD(reference, 0.02)
    for _ in range(5):
        a, b = native.train({}, outputs=["loss"]), plain.train({})
        assert a["loss"] == b["loss"]
    assert native.built_with == [0.02]
    assert native.step_count == 5
    assert np.array_equal(network.params["layer.weight"], reference.params["layer.weight"])


def test_graph_optimizer_passes_on_changes_of_the_learning_rate(make_network):
    native = Adjustable(make_network(), learning_rate=schedules.step_decay(0.1, every=2))
    for _ in range(5):
        native.train({})
    assert native.built_with == [0.1]
    assert native.changes == pytest.approx([0.01, 0.001])


def test_graph_optimizer_refuses_what_it_cannot_do(make_network, tmp_path):
    native = Native(make_network(), learning_rate=0.1)
    native.train({})
    with pytest.raises(UserError, match="state of this native optimizer cannot be saved"):
        native.save(tmp_path / "state.npz")
    native.learning_rate = 0.2
    with pytest.raises(UserError, match=r"Native: .* cannot change its learning rate to 0.2"):
        native.train({})


@pytest.mark.parametrize("native", [False, True])
def test_a_step_has_the_threads_of_the_network_throughout(native, monkeypatch):
    """Else a step that is reported with one thread is updated with all of them."""
    found = []

    class Counting(SGD):
        def update_rule(self, grad, old_param, name):
            found.append(torch.get_num_threads())
            return super().update_rule(grad, old_param, name)

    step = torch.optim.SGD.step
    monkeypatch.setattr(
        torch.optim.SGD, "step", lambda self: (found.append(torch.get_num_threads()), step(self))[1]
    )
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with meta500.network(meta500.models.mlp(batch=4), "torch", threads=1) as net:
            optimizer = net.native_optimizer("sgd") if native else Counting(net)
            optimizer.train({"image": np.zeros((4, 1, 8, 8), np.float32), "label": np.zeros(4, np.int64)})
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert found and set(found) == {1}
