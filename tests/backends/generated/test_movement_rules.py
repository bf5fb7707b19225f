"""Rules that move, repeat or resample elements, and dropout, against the numpy backend in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from meta500.backends.generated.adjoint import differentiate
from meta500.backends.generated.interpret import run
from meta500.backends.generated.ir import Tensor
from meta500.backends.generated.lower import lower
from meta500.errors import UserError
from meta500.graph import load
from meta500.graph.passes import infer_types

bounded = settings(max_examples=25, derandomize=True, database=None)
seeds = st.integers(0, 2**16)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


# -- shapes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, 3, 4), (6, 4)), ((2, 3, 4), (2, 12)), ((24,), (2, 3, 4)), ((2, 3, 4), (24,)), ((6, 4), (2, 3, 2, 2)),
        ((1, 6, 1), (2, 3)), ((), (1, 1)), ((1,), ()), ((4, 6), (3, 8)), ((2, 4, 6), (2, 8, 3)), ((3, 4, 5), (5, 12)),
        ((2, 6), (4, 3)), ((2, 3, 4), (0, -1)), ((2, 3, 4), (-1, 2)),
    ],
)  # fmt: skip
def test_reshape(same, before, after) -> None:
    same("Reshape", 14, [normal(*before)], {1: np.array(after, np.int64)})


def test_reshape_of_other_types(same) -> None:
    same("Reshape", 14, [np.arange(6)], {1: whole(2, 3)}, gradient=False)
    same("Transpose", 13, [np.arange(6).reshape(2, 3) > 2], gradient=False)


@pytest.mark.parametrize("axis", [0, 1, 2, 3, -1])
def test_flatten(same, axis) -> None:
    same("Flatten", 13, [normal(2, 3, 4)], axis=axis)


def test_squeeze_and_unsqueeze(same) -> None:
    same("Squeeze", 13, [normal(1, 3, 1)])
    same("Squeeze", 13, [normal(1, 3, 1)], {1: whole(-1)})
    same("Squeeze", 11, [normal(1, 3, 1)], axes=[0])
    same("Unsqueeze", 13, [normal(3, 2)], {1: whole(-1, 1)})
    same("Unsqueeze", 11, [normal(3, 2)], axes=[0, 2])


@pytest.mark.parametrize("perm", [None, [0, 2, 1], [2, 0, 1]])
def test_transpose(same, perm) -> None:
    same("Transpose", 13, [normal(2, 3, 4)], **({} if perm is None else {"perm": perm}))


def test_shapes_are_constants(lowered) -> None:
    program = lowered("Shape", 15, [normal(2, 3, 4)], start=1)
    assert program.constants["out0"].tolist() == [3, 4] and not program.stages
    assert lowered("Size", 13, [normal(2, 3, 4)]).constants["out0"] == 24


def test_a_shape_that_is_computed_from_shapes() -> None:
    """The chain that exporters write for x.view(x.size(0), -1) needs no run."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "zero"], ["n"]),
        helper.make_node("Unsqueeze", ["n", "axis"], ["rows"]),
        helper.make_node("Concat", ["rows", "rest"], ["shape"], axis=0),
        helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    stored = [
        helper.make_tensor("zero", 7, [], [0]),
        helper.make_tensor("axis", 7, [1], [0]),
        helper.make_tensor("rest", 7, [1], [-1]),
    ]
    x = helper.make_tensor_value_info("x", 11, [2, 3, 4])
    graph = helper.make_graph(nodes, "view", [x], [helper.make_empty_tensor_value_info("y")], stored)
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    program = lower(infer_types(model, strict=False), ["y"], [])
    values = normal(2, 3, 4)
    assert np.array_equal(run(program, {"x": values})["y"], values.reshape(2, 12))
    assert len(program.stages) == 1


# -- joins and cuts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_concat(same, axis) -> None:
    parts = [normal(*(n if i == axis % 3 else 2 for i in range(3)), seed=n) for n in (1, 3, 2)]
    same("Concat", 13, parts, axis=axis)
    same("Concat", 1, [normal(2, 3), normal(2, 1)])


def test_split(same) -> None:
    x = normal(2, 6)
    same("Split", 18, [x], n_outputs=3, axis=1, num_outputs=3, weighted=[0, 2])
    same("Split", 18, [normal(2, 5)], n_outputs=3, axis=-1, num_outputs=3, weighted=[0, 1, 2])
    same("Split", 13, [x], {1: whole(1, 5)}, n_outputs=2, axis=1)
    same("Split", 11, [x], n_outputs=2, split=[4, 2], axis=-1, weighted=[1])
    same("Split", 2, [x], n_outputs=2)


@given(
    size=st.integers(1, 7), start=st.integers(-9, 9), end=st.integers(-9, 9), step=st.sampled_from((-3, -2, -1, 1, 2, 3))
)  # fmt: skip
@bounded
def test_slice(same, size, start, end, step) -> None:
    full = np.arange(size)
    first = max(0, start + size if start < 0 else start)
    assume(len(full[slice(start, end, step)]) or (step < 0 and first == 0))
    constants = {1: whole(start), 2: whole(end), 3: whole(1), 4: whole(step)}
    try:
        same("Slice", 13, [normal(2, size, 2)], constants)
    except UserError as error:
        assert "no elements" in str(error)


def test_slice_of_several_axes(same) -> None:
    same(
        "Slice", 13, [normal(4, 5, 6)], {1: whole(1, -1), 2: whole(9, -100), 3: whole(0, -1), 4: whole(2, -2)}
    )
    same("Slice", 13, [normal(4, 5)], {1: whole(1), 2: whole(3)})
    same("Slice", 9, [normal(4, 5)], starts=[1, 0], ends=[3, -1], axes=[1, 0])


# -- padding -------------------------------------------------------------------------------------------------


@given(
    shape=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    mode=st.sampled_from(("constant", "reflect", "edge", "wrap")),
    data=st.data(),
    seed=seeds,
)
@bounded
def test_pad(same, shape, mode, data, seed) -> None:
    pads = data.draw(st.lists(st.integers(-2, 4), min_size=2 * len(shape), max_size=2 * len(shape)))
    assume(all(n + b + e > 0 for n, b, e in zip(shape, pads, pads[len(shape) :], strict=False)))
    try:
        same("Pad", 19, [normal(*shape, seed=seed)], {1: whole(*pads)}, mode=mode)
    except UserError as error:
        assert "cut" in str(error) or "left" in str(error) or "too many times" in str(error)


def test_pad_values_and_versions(same) -> None:
    x = normal(2, 3)
    same("Pad", 21, [x, None, np.array(2.5)], {1: whole(1, 0, 2, 3)})
    same("Pad", 21, [x], {1: whole(1, 1), 2: np.array([7.0]), 3: whole(-1)})
    same("Pad", 13, [x], {1: whole(0, 1, 0, 2)}, mode="edge")
    same("Pad", 2, [x], pads=[1, 0, 0, 1], value=-1.5)
    same("Pad", 1, [x], paddings=[1, 0, 0, 1], mode="reflect")
    same("Pad", 21, [x], {1: whole(-2, 0, 3, 0), 2: np.array(1.0)})
    same("Pad", 21, [normal(2, 2, 2, 2, 2)], {1: whole(*(1,) * 10)}, mode="reflect")


# -- repetition, selection, order ----------------------------------------------------------------------------


def test_expand_and_tile(same) -> None:
    same("Expand", 13, [normal(3, 1)], {1: whole(2, 1, 4)})
    same("Expand", 13, [normal(3, 4)], {1: whole(1)})
    same("Tile", 13, [normal(2, 3)], {1: whole(2, 3)})
    same("Tile", 13, [normal(1, 3)], {1: whole(4, 1)})


@pytest.mark.parametrize(
    "indices",
    [
        [2, 0],
        [0, 1, 2, 3],
        [3, 2, 1, 0],
        [-1, -1],
        [0, 2, 0, 2, 0, 2],
        [1, 3, 0],
        2,
        [[0, 1], [2, 3]],
        [[1], [1]],
    ],
)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_gather(same, indices, axis) -> None:
    same("Gather", 13, [normal(4, 5, 4)], {1: np.array(indices)}, axis=axis)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(same, mode) -> None:
    same("DepthToSpace", 13, [normal(2, 8, 2, 3)], blocksize=2, mode=mode)
    if mode == "DCR":
        same("SpaceToDepth", 13, [normal(2, 3, 4, 6)], blocksize=2)


@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("k", [None, -1, 0, 2])
def test_trilu(same, upper, k) -> None:
    for shape in ((3, 4), (2, 1, 3), (3, 1)):
        same("Trilu", 14, [normal(*shape)], {} if k is None else {1: np.array(k)}, upper=upper)


def test_cast_like(same) -> None:
    same("CastLike", 19, [np.arange(3)], {1: np.zeros(1)}, gradient=False)


# -- resampling ----------------------------------------------------------------------------------------------

COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", COORDINATES)
@given(before=st.integers(1, 6), after=st.integers(1, 13), other=st.integers(1, 4), data=st.data())
@settings(max_examples=6, derandomize=True, database=None)
def test_resize_to_sizes(same, mode, coordinates, before, after, other, data) -> None:
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": coordinates}
    if mode == "nearest":
        kinds = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
        attributes["nearest_mode"] = data.draw(st.sampled_from(kinds))
    elif mode == "cubic":
        attributes["exclude_outside"] = data.draw(st.integers(0, 1))
    same("Resize", 19, [normal(1, 2, before, 3)], {3: whole(1, 2, after, other)}, **attributes)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    "scales", [(1, 1, 2, 2), (1, 1, 3, 1), (1, 1, 0.5, 0.5), (1, 1, 1.5, 2.6), (1, 1, 4, 0.3)]
)
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_resize_by_scales(same, mode, scales, coordinates) -> None:
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    same("Resize", 13, [normal(2, 2, 4, 5)], {2: np.array(scales, np.float32)}, **attributes)


def test_resize_of_a_region(same) -> None:
    roi = np.array([0, 0, 0.2, 0.1, 1, 1, 0.9, 0.8], np.float32)
    attributes = {"coordinate_transformation_mode": "tf_crop_and_resize", "mode": "linear"}
    same("Resize", 19, [normal(1, 1, 5, 6)], {1: roi, 3: whole(1, 1, 3, 4)}, **attributes)


def test_resize_before_version_11_and_upsample(same) -> None:
    for mode in ("nearest", "linear"):
        same("Resize", 10, [normal(1, 2, 4, 5)], {1: np.array([1, 1, 0.6, 2], np.float32)}, mode=mode)
        same("Upsample", 9, [normal(1, 2, 3, 2)], {1: np.array([1, 1, 2, 3], np.float32)}, mode=mode)
        same("Upsample", 7, [normal(1, 2, 3, 2)], mode=mode, scales=[1.0, 1.0, 2.0, 1.5])
        first = "bilinear" if mode == "linear" else mode
        same("Upsample", 1, [normal(1, 2, 3, 2)], mode=first, height_scale=2.0, width_scale=3.0)


def test_resize_by_a_whole_factor_is_one_stage(lowered) -> None:
    scales = {2: np.array([1, 1, 2, 2], np.float32)}
    program = lowered("Resize", 13, [normal(1, 2, 4, 5)], scales, mode="nearest")
    assert len(program.stages) == 1
    assert len(program.stages[0].axes) == 5  # (an image has no loop,) channels, rows, columns and two phases


def test_an_element_of_weight_zero_may_be_infinite(lowered) -> None:
    x = normal(1, 1, 13)
    x[0, 0, 0] = np.inf
    program = lowered("Resize", 13, [x], {3: whole(1, 1, 29)}, mode="linear")
    assert any("weights" in name for name in program.constants)
    y = run(program, {"x0": x})["out0"]
    assert np.isinf(y[0, 0, 0]) and np.isfinite(y[0, 0, 5:]).all()


# -- dropout -------------------------------------------------------------------------------------------------


def test_dropout_in_inference(same) -> None:
    x = normal(3, 4)
    same("Dropout", 13, [x], n_outputs=2)
    same("Dropout", 13, [x], {1: np.array(0.3), 2: np.array(False)}, n_outputs=2)
    same("Dropout", 10, [x], n_outputs=2, ratio=0.3)
    same("Dropout", 7, [x], n_outputs=2, weighted=[0])
    same("Dropout", 6, [x], n_outputs=2, weighted=[0], is_test=1)


@pytest.mark.parametrize("version", [6, 13])
def test_dropout_in_training(lowered, version) -> None:
    x = np.ones((40, 50))
    if version == 6:
        program = lowered("Dropout", 6, [x], n_outputs=2, ratio=0.25)
    else:
        program = lowered("Dropout", 13, [x], {1: np.array(0.25), 2: np.array(True)}, n_outputs=2)
    program.tensors["d"] = Tensor("d", x.shape, role="input")
    whole_program = differentiate(program, "out0", ["x0"], cotangent="d")
    values = run(whole_program, {"x0": x, "d": x * 3})
    mask = values["out1"] != 0
    assert abs(mask.mean() - 0.75) < 5 * math.sqrt(0.75 * 0.25 / mask.size)
    np.testing.assert_array_equal(values["out0"], mask / 0.75)
    np.testing.assert_allclose(values[whole_program.gradients["x0"]], 3 * mask / 0.75, rtol=1e-15)


def test_two_dropouts_draw_different_numbers() -> None:
    nodes = [helper.make_node("Dropout", ["x", "r", "t"], [y]) for y in "ab"]
    stored = [helper.make_tensor("r", 11, [], [0.5]), helper.make_tensor("t", 9, [], [True])]
    x = helper.make_tensor_value_info("x", 11, [100])
    outputs = [helper.make_empty_tensor_value_info(y) for y in "ab"]
    graph = helper.make_graph(nodes, "two", [x], outputs, stored)
    model = load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    values = run(lower(infer_types(model), ["a", "b"], []), {"x": np.ones(100)})
    assert 20 < np.sum(values["a"] != values["b"]) < 80
