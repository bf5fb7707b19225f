"""The cost of an operator: slopes, and the chains whose times they come from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.backends.network import network
from meta500.benchmarks.studies.abstraction.dispatch import block_chain, elementwise_chain, slopes

_seconds = st.floats(1e-7, 1e-2)


@given(
    counts=st.lists(st.integers(1, 1000), min_size=2, max_size=5, unique=True),
    rounds=st.lists(st.tuples(_seconds, _seconds), min_size=1, max_size=8),
)
def test_straight_lines_give_their_slope_in_each_round(
    counts: list[int], rounds: list[tuple[float, float]]
) -> None:
    times = [[call + each * n for call, each in rounds] for n in counts]
    np.testing.assert_allclose(slopes(counts, times), [each for _, each in rounds], rtol=1e-6)


@given(st.lists(st.tuples(_seconds, _seconds, _seconds), min_size=1, max_size=5))
def test_slopes_are_those_of_least_squares(rounds: list[tuple[float, float, float]]) -> None:
    counts = [8, 32, 128]
    times = [[each[place] for each in rounds] for place in range(3)]
    expected = [np.polyfit(counts, each, 1)[0] for each in rounds]
    np.testing.assert_allclose(slopes(counts, times), expected, rtol=1e-6, atol=1e-12)


def test_rounds_that_not_all_chains_have_are_left_out() -> None:
    assert len(slopes([1, 2], [[1.0, 2.0, 3.0], [2.0, 4.0]])) == 2


@pytest.mark.parametrize("count", [1, 5])
def test_a_chain_has_so_many_operators_and_computes_them(count: int) -> None:
    model = elementwise_chain(count)
    assert [op.op_type for op in model.graph.operations] == ["Relu"] * count
    image = np.linspace(-1, 1, 16, dtype=np.float32).reshape(1, 16)
    with network(model, backend="numpy") as net:
        np.testing.assert_array_equal(net.inference({"image": image})["logits"], np.maximum(image, 0))


def test_blocks_are_residual_and_stay_finite() -> None:
    model = block_chain(3, seed=1)
    kinds = [op.op_type for op in model.graph.operations]
    assert kinds == ["Conv", "BatchNormalization", "Add", "Relu"] * 3 + ["GlobalAveragePool", "Flatten"]
    weights = model.graph.initializers
    x = image = np.linspace(-1, 1, 16).reshape(1, 4, 2, 2)
    for index in range(3):
        y = np.einsum("oi,nihw->nohw", weights[f"conv{index}.weight"][:, :, 0, 0].astype(np.float64), x)
        x = np.maximum(x + 0.1 * y / np.sqrt(1 + 1e-5), 0)
    with network(model, backend="numpy", precision="float64") as net:
        found = net.inference({"image": image})["logits"]
    np.testing.assert_allclose(found, x.mean(axis=(2, 3)), rtol=1e-6)
