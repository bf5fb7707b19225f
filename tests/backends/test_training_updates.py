"""Momentum, Adagrad and Adam as operators, on both backends: several steps against torch.optim, and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import meta500
from meta500.errors import UserError

BACKENDS = ["numpy", "torch"]
DOMAIN = "ai.onnx.preview.training"
SHAPES = [(3, 2), (4,)]
RATE = 0.1


def network(backend: str, op_type: str, states: int, shapes: Any = SHAPES, **attributes: Any) -> Any:
    """Inputs R, T, then values x0 x1, gradients g0 g1 and states; outputs nx0 nx1 and the new states."""
    kinds = ["x", "g", *(f"s{k}_" for k in range(states))]
    names = [f"{kind}{i}" for kind in kinds for i in range(len(shapes))]
    infos = [
        helper.make_tensor_value_info("R", TensorProto.DOUBLE, []),
        helper.make_tensor_value_info("T", TensorProto.INT64, []),
        *(
            helper.make_tensor_value_info(n, TensorProto.DOUBLE, shape)
            for n, shape in zip(names, [*shapes] * len(kinds), strict=True)
        ),
    ]
    results = [f"n{kind}{i}" for kind in kinds if kind != "g" for i in range(len(shapes))]
    outputs = [helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in results]
    node = helper.make_node(op_type, ["R", "T", *names], results, domain=DOMAIN, **attributes)
    graph = helper.make_graph([node], op_type, infos, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return meta500.network(meta500.load(model), backend=backend)


CASES = [
    (
        "Momentum",
        {"mode": "standard", "alpha": 0.9, "beta": 0.25, "norm_coefficient": 0.5},
        lambda p: torch.optim.SGD(p, RATE, momentum=0.9, dampening=0.75, weight_decay=0.5),
    ),
    (
        "Momentum",
        {"mode": "nesterov", "alpha": 0.75, "beta": 1.0, "norm_coefficient": 0.0},
        lambda p: torch.optim.SGD(p, RATE, momentum=0.75, nesterov=True),
    ),
    (
        "Adagrad",
        {"decay_factor": 0.5, "epsilon": 0.125, "norm_coefficient": 0.25},
        lambda p: torch.optim.Adagrad(p, RATE, lr_decay=0.5, eps=0.125, weight_decay=0.25),
    ),
    (
        # The operator adds epsilon before the bias correction, torch behind it: none here.
        "Adam",
        {"alpha": 0.75, "beta": 0.875, "epsilon": 0.0, "norm_coefficient": 0.5},
        lambda p: torch.optim.Adam(p, RATE, (0.75, 0.875), eps=0.0, weight_decay=0.5),
    ),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1].get('mode', '')}")
def test_steps_are_those_of_torch(backend, case) -> None:
    op_type, attributes, optimizer = case
    rng = np.random.default_rng(0)
    values = [rng.normal(size=s) for s in SHAPES]
    parameters = [torch.tensor(v) for v in values]
    other = optimizer(parameters)
    states = 2 if op_type == "Adam" else 1
    state = [np.zeros(s) for _ in range(states) for s in SHAPES]
    with network(backend, op_type, states, **attributes) as net:
        for step in range(4):
            gradients = [rng.normal(size=s) for s in SHAPES]
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = torch.tensor(gradient)
            other.step()
            count = step + 1 if op_type == "Adam" else step
            given = [np.array(RATE), np.array(count), *values, *gradients, *state]
            found = net.inference(dict(zip(net.model.graph.inputs, given, strict=True)))
            values = [found[f"nx{i}"] for i in range(2)]
            state = [found[f"ns{k}_{i}"] for k in range(states) for i in range(2)]
            for value, parameter in zip(values, parameters, strict=True):
                np.testing.assert_allclose(value, parameter.numpy(), rtol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adam_regularizes_behind_the_step_and_starts_without_correction(backend) -> None:
    x, g, v, h = 2.0, 0.5, 0.25, 0.0625
    attributes = {"alpha": 0.5, "beta": 0.25, "epsilon": 0.125, "norm_coefficient_post": 0.1}
    given = [np.array(RATE), np.array(0), *(np.array([a]) for a in (x, g, v, h))]
    with network(backend, "Adam", 2, [(1,)], **attributes) as net:
        found = net.inference(dict(zip(net.model.graph.inputs, given, strict=True)))
    velocity, squares = 0.5 * v + 0.5 * g, 0.25 * h + 0.75 * g * g
    assert found["ns0_0"] == velocity and found["ns1_0"] == squares
    post = float(np.float32(0.1))
    expected = (1 - post) * (x - RATE * velocity / (np.sqrt(squares) + 0.125))
    np.testing.assert_allclose(found["nx0"], [expected], rtol=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1].get('mode', '')}")
def test_gradients_along_a_random_direction(backend, case, count) -> None:
    op_type, attributes, _ = case
    rng = np.random.default_rng(1)
    states = 2 if op_type == "Adam" else 1
    with network(backend, op_type, states, **attributes) as net:
        names = list(net.model.graph.inputs)
        given = [np.array(RATE), np.array(count)]
        given += [rng.uniform(0.5, 1.5, size=s) for _ in range(states + 2) for s in SHAPES]
        inputs = dict(zip(names, given, strict=True))
        along = {n: rng.normal(size=a.shape) for n, a in inputs.items() if n != "T"}
        for loss in ("nx0", "ns0_1"):
            weight = rng.normal(size=net.inference(inputs)[loss].shape)
            wrt = [n for n in names if n != "T"]
            net.inference_and_backprop(inputs, loss=loss, wrt=wrt, cotangent=weight)
            gradients = dict(zip(wrt, net.fetch_tensors([f"grad/{n}" for n in wrt]), strict=True))
            ends = []
            for sign in (1, -1):
                moved = {n: a + sign * 1e-6 * along[n] if n in along else a for n, a in inputs.items()}
                ends.append((net.inference(moved)[loss] * weight).sum())
            expected = (ends[0] - ends[1]) / 2e-6
            assert sum((gradients[n] * along[n]).sum() for n in wrt) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_refusals(backend) -> None:
    x = {n: np.ones(s) for n, s in (("x0", (2,)), ("g0", (2,)), ("s0_0", (2,)))}
    scalars = {"R": np.array(RATE), "T": np.array(0)}
    attributes = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0}
    heavy = network(backend, "Momentum", 1, [(2,)], mode="heavy", **attributes)
    with heavy as net, pytest.raises(UserError, match="Momentum mode 'heavy'"):
        net.inference({**scalars, **x})
    with network(backend, "Adagrad", 1, [(None,)]) as net, pytest.raises(UserError, match="have the shapes"):
        net.inference({**scalars, **x, "g0": np.ones(3)})
    with network(backend, "Adagrad", 2, [(2,)]) as net, pytest.raises(UserError, match="multiple of 3"):
        net.inference({**scalars, **x, "s1_0": np.ones(2)})
