"""Random operators on both backends: distributions, seeds, types, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper
from scipy import stats

import meta500
from meta500.errors import UserError

BACKENDS = ["numpy", "torch"]
# A right generator fails a test at this level once in a hundred thousand seeds; the seeds are fixed.
LEVEL = 1e-5


def network(
    backend: str,
    op_type: str,
    inputs: dict[str, np.ndarray],
    nodes: int = 1,
    network_seed: int = 0,
    **attributes: Any,
) -> Any:
    """``nodes`` equal nodes with outputs y0, y1, ..."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    made = [
        helper.make_node(op_type, list(inputs), [f"y{i}"], name=f"n{i}", **attributes) for i in range(nodes)
    ]
    outputs = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(nodes)]
    graph = helper.make_graph(made, op_type, infos, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return meta500.network(meta500.load(model), backend=backend, seed=network_seed)


def draw(
    backend: str, op_type: str, inputs: dict[str, np.ndarray] | None = None, **keywords: Any
) -> np.ndarray:
    with network(backend, op_type, inputs or {}, **keywords) as net:
        return net.inference(inputs or {})["y0"]


DRAWS = {
    "RandomNormal": ({}, {"shape": [40, 50], "mean": 2.0, "scale": 3.0}),
    "RandomUniform": ({}, {"shape": [40, 50], "low": -1.0, "high": 4.0}),
    "RandomNormalLike": ({"x": np.zeros((40, 50), np.float32)}, {"mean": 2.0, "scale": 3.0}),
    "RandomUniformLike": ({"x": np.zeros((40, 50), np.float32)}, {"low": -1.0, "high": 4.0}),
    "Multinomial": ({"x": np.zeros((2, 5), np.float32)}, {"sample_size": 30}),
    "Bernoulli": ({"x": np.full((40, 50), 0.3, np.float32)}, {}),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "op_type", ["RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike"]
)
def test_distribution(backend, op_type) -> None:
    inputs, attributes = DRAWS[op_type]
    y = draw(backend, op_type, inputs, **attributes)
    assert y.dtype == np.float32 and y.shape == (40, 50)
    wanted = stats.norm(2, 3) if "Normal" in op_type else stats.uniform(-1, 5)
    assert stats.kstest(y.ravel(), wanted.cdf).pvalue > LEVEL
    # Neighbours do not depend on each other.
    assert stats.pearsonr(y.ravel()[1:], y.ravel()[:-1]).pvalue > LEVEL


@pytest.mark.parametrize("backend", BACKENDS)
def test_bernoulli(backend) -> None:
    p = np.linspace(0, 1, 5, dtype=np.float32)[:, None].repeat(4000, 1)
    y = draw(backend, "Bernoulli", {"x": p})
    assert y.dtype == np.float32 and set(np.unique(y)) == {0, 1}
    assert not y[0].any() and y[-1].all()
    for row, chance in zip(y[1:-1], (0.25, 0.5, 0.75), strict=True):
        assert stats.binomtest(int(row.sum()), row.size, chance).pvalue > LEVEL
    assert draw(backend, "Bernoulli", {"x": p}, dtype=TensorProto.INT8).dtype == np.int8


@pytest.mark.parametrize("backend", BACKENDS)
def test_multinomial_takes_log_probabilities(backend) -> None:
    chances = np.array([[0.1, 0.2, 0.7, 0.0], [0.25, 0.25, 0.25, 0.25]])
    with np.errstate(divide="ignore"):
        x = (np.log(chances) + np.array([[3.0], [-2.0]])).astype(np.float32)
    y = draw(backend, "Multinomial", {"x": x}, sample_size=5000, dtype=TensorProto.INT64)
    assert y.dtype == np.int64 and y.shape == (2, 5000)
    for row, chance in zip(y, chances, strict=True):
        counts = np.bincount(row, minlength=4)
        assert counts[chance == 0].sum() == 0
        some = chance > 0
        assert stats.chisquare(counts[some], 5000 * chance[some]).pvalue > LEVEL
    assert draw(backend, "Multinomial", {"x": x}).dtype == np.int32


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op_type", DRAWS)
def test_networks_with_one_seed_draw_alike_and_go_on(backend, op_type) -> None:
    inputs, attributes = DRAWS[op_type]
    runs = []
    for seed in (5, 5, 6):
        with network(backend, op_type, inputs, network_seed=seed, **attributes) as net:
            runs.append([net.inference(inputs)["y0"] for _ in range(2)])
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0][0], runs[0][1])
    assert not np.array_equal(runs[0][0], runs[2][0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op_type", DRAWS)
@pytest.mark.parametrize("seed", [3.0, 0.5, -1.0, 1e20])
def test_a_seed_attribute_does_not_depend_on_the_network(backend, op_type, seed) -> None:
    inputs, attributes = DRAWS[op_type]
    plain = draw(backend, op_type, inputs, **attributes)
    first, second = (draw(backend, op_type, inputs, network_seed=k, seed=seed, **attributes) for k in (1, 2))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, plain)


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_nodes_draw_different_numbers(backend) -> None:
    with network(backend, "RandomNormal", {}, nodes=2, shape=[20]) as net:
        found = net.inference({})
    assert not np.array_equal(found["y0"], found["y1"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
def test_types(backend, dtype) -> None:
    number = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    for op_type in ("RandomNormal", "RandomUniform"):
        y = draw(backend, op_type, shape=[300], dtype=number)
        assert y.dtype == dtype and len(np.unique(y.astype(np.float64))) > 50
    like = {"x": np.zeros(300, dtype)}
    for op_type in ("RandomNormalLike", "RandomUniformLike"):
        assert draw(backend, op_type, like).dtype == dtype
        assert draw(backend, op_type, {"x": np.zeros(9, np.int32)}, dtype=number).dtype == dtype


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes", "words"),
    [
        ("RandomNormalLike", {"x": np.zeros(3, np.int32)}, {}, "float type"),
        ("Multinomial", {"x": np.full((1, 2), np.nan, np.float32)}, {}, "probabilit"),
        ("Multinomial", {"x": np.full((1, 2), -np.inf, np.float32)}, {}, "probabilit"),
        ("Bernoulli", {"x": np.array([0.5, 1.5], np.float32)}, {}, r"probability|0 <= p|p_in"),
        ("Bernoulli", {"x": np.array([np.nan], np.float32)}, {}, r"probability|0 <= p|p_in"),
    ],
)
def test_refusals(backend, op_type, inputs, attributes, words) -> None:
    with pytest.raises(UserError, match=words):
        draw(backend, op_type, inputs, **attributes)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_draw_has_no_gradient_by_its_probability(backend) -> None:
    x = np.array([0.5, 0.2], np.float32)
    with network(backend, "Bernoulli", {"x": x}) as net, pytest.raises(UserError, match="no gradient"):
        net.inference_and_backprop({"x": x}, loss="y0", wrt=["x"], cotangent=np.ones(2, np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_like_forms_have_gradient_zero(backend) -> None:
    x = np.array([0.5, 0.2], np.float32)
    with network(backend, "RandomNormalLike", {"x": x}) as net:
        net.inference_and_backprop({"x": x}, loss="y0", wrt=["x"], cotangent=np.ones(2, np.float32))
        assert net.fetch_tensors(["grad/x"])[0].tolist() == [0, 0]
