"""Resize against ONNX's reference evaluator in float64, over drawn shapes and attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from meta500.backends.torch.operators import rules
from meta500.errors import UserError

_COORDINATES = ["half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"]
_NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]


def _tolerance(mode: str) -> dict[str, float]:
    """The reference weighs in float32 in cubic mode (its coefficient is a float32 scalar)."""
    return {"rtol": 1e-5, "atol": 2e-5} if mode == "cubic" else {"rtol": 1e-11, "atol": 1e-12}


def _reference(x: np.ndarray, roi: Any, scales: Any, sizes: Any, attributes: dict[str, Any]) -> np.ndarray:
    given = {"roi": roi, "scales": scales, "sizes": sizes}
    names = ["X", *(name if value is not None else "" for name, value in given.items())]
    plain = {k: list(v) if isinstance(v, tuple) else v for k, v in attributes.items()}
    node = helper.make_node("Resize", names, ["Y"], **plain)
    feeds = {"X": x, **{name: value for name, value in given.items() if value is not None}}
    return ReferenceEvaluator(node).run(None, feeds)[0]


@st.composite
def _resizes(draw: st.DrawFn) -> tuple[tuple[int, ...], Any, Any, dict[str, Any]]:
    shape = tuple(draw(st.integers(1, 7)) for _ in range(draw(st.integers(1, 4))))
    axes = tuple(draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))])
    mode = draw(st.sampled_from(["nearest", "linear", "cubic"]))
    attributes: dict[str, Any] = {
        "mode": mode,
        "coordinate_transformation_mode": draw(st.sampled_from(_COORDINATES)),
        "exclude_outside": draw(st.integers(0, 1)),
        "cubic_coeff_a": draw(st.sampled_from([-0.75, -0.5])),
        "nearest_mode": draw(st.sampled_from(_NEAREST)),
        "antialias": draw(st.integers(0, 1)) if mode != "nearest" else 0,
    }
    if len(axes) < len(shape) or draw(st.booleans()):
        attributes["axes"] = axes
    else:
        axes = tuple(range(len(shape)))
    if draw(st.booleans()):
        attributes["keep_aspect_ratio_policy"] = draw(
            st.sampled_from(["stretch", "not_larger", "not_smaller"])
        )
        return shape, None, np.array([draw(st.integers(1, 9)) for _ in axes]), attributes
    scales = st.sampled_from([0.5, 2.0, 1.0, 4.0, 0.7, 1.3, 3.0, 2.6])
    return shape, np.array([draw(scales) for _ in axes], np.float32), None, attributes


# The same draws each time: next to a whole coordinate the last bit decides, in the reference too.
@settings(max_examples=250, derandomize=True)
@given(_resizes())
def test_resize_is_the_reference(rule: Any, drawn: Any) -> None:
    shape, scales, sizes, attributes = drawn
    axes = attributes.get("axes", tuple(range(len(shape))))
    if scales is not None:
        chosen = np.array(shape, np.float32)[list(axes)]
        single, double = np.floor(chosen * scales), np.floor(chosen.astype(np.float64) * scales)
        assume((single == double).all() and single.min() >= 1)
        out = single
    else:
        out = sizes
    # At one output element ONNX's text has coordinate 0, the reference -0.5.
    assume(attributes["coordinate_transformation_mode"] != "pytorch_half_pixel" or min(out) > 1)
    if attributes.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        ratios = [size / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
        ratio = min(ratios) if attributes["keep_aspect_ratio_policy"] == "not_larger" else max(ratios)
        products = [ratio * shape[axis] for axis in axes]
        assume(all(p >= 0.6 and abs(p % 1 - 0.5) > 1e-6 for p in products))
        assume(attributes["coordinate_transformation_mode"] != "pytorch_half_pixel" or min(products) > 1.6)
    if attributes["coordinate_transformation_mode"] == "half_pixel_symmetric":
        # The reference takes neighbours of x + 1 and weights of x, which differ where x is whole but for rounding.
        assume(scales is None and attributes.get("keep_aspect_ratio_policy", "stretch") == "stretch")
    x = np.random.default_rng(3).normal(size=shape)
    try:
        (y,) = rule("Resize", 19, (x, None, scales, sizes), attributes)
    except UserError as error:
        assert "there is no other to weigh" in str(error) and attributes["exclude_outside"]
        return
    expected = _reference(x, None, scales, sizes, attributes)
    assert y.shape == expected.shape
    np.testing.assert_allclose(y.numpy(), expected, **_tolerance(attributes["mode"]))


@pytest.mark.parametrize("corners", [True, False])
@pytest.mark.parametrize("sizes", [(5, 9), (13, 4), (7, 7), (80, 3)])
def test_cubic_is_torch_in_float64(rule: Any, corners: bool, sizes: tuple[int, int]) -> None:
    x = torch.randn(1, 2, 7, 6, dtype=torch.float64)
    expected = torch.nn.functional.interpolate(x, sizes, mode="bicubic", align_corners=corners)
    attributes = {
        "mode": "cubic",
        "coordinate_transformation_mode": "align_corners" if corners else "half_pixel",
    }
    (y,) = rule("Resize", 19, (x, None, None, (1, 2, *sizes)), attributes)
    torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [(3, 7), (1, 4), (5, 1)])
def test_crop_and_resize(rule: Any, mode: str, sizes: tuple[int, int]) -> None:
    x = np.random.default_rng(4).normal(size=(2, 4, 5))
    attributes = {
        "mode": mode,
        "coordinate_transformation_mode": "tf_crop_and_resize",
        "extrapolation_value": 9.5,
        "axes": (1, 2),
    }
    roi = np.array([0.25, -0.2, 1.125, 0.75])
    (y,) = rule("Resize", 19, (x, roi, None, np.array(sizes)), attributes)
    expected = _reference(x, roi, None, np.array(sizes), attributes)
    np.testing.assert_allclose(y.numpy(), expected, **_tolerance(mode))


def test_symmetric_half_pixels_share_the_fraction(rule: Any) -> None:
    """7 elements at scale 0.5 want 3.5; the 3 that there are have their centres at 1, 3 and 5."""
    attributes = {"coordinate_transformation_mode": "half_pixel_symmetric", "mode": "linear"}
    (y,) = rule("Resize", 19, (np.arange(7.0) ** 2, None, np.array([0.5], np.float32)), attributes)
    np.testing.assert_allclose(y.numpy(), [1, 9, 25], rtol=1e-14)


@pytest.mark.parametrize(("size", "out"), [(9, 6), (7, 49), (49, 7), (30, 9), (22, 33)])
def test_whole_coordinates_come_out_whole(rule: Any, size: int, out: int) -> None:
    """Rounded down, x * size / out must not lose a whole element to the last bit."""
    attributes = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    (y,) = rule("Resize", 19, (np.arange(float(size)), None, None, np.array([out])), attributes)
    np.testing.assert_array_equal(y.numpy(), np.arange(out) * size // out)


def test_scales_round_in_float32(rule: Any) -> None:
    """10 * 0.7 is 7 in float32, as ONNX's shape inference has it, although the factor lies below 0.7."""
    (y,) = rule("Resize", 13, (np.arange(10.0), None, np.array([0.7], np.float32)))
    assert y.shape == (7,)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("antialias", [0, 1])
def test_long_axes_gather_or_multiply_alike(rule: Any, mode: str, antialias: int) -> None:
    x = np.random.default_rng(5).normal(size=(90, 70, 66))
    attributes = {"mode": mode, "antialias": antialias}
    sizes = np.array([70, 100, 30])
    (y,) = rule("Resize", 19, (x, None, None, sizes), attributes)
    expected = _reference(x, None, None, sizes, attributes)
    np.testing.assert_allclose(y.numpy(), expected, **_tolerance(mode))


@pytest.mark.parametrize(
    ("mode", "coordinates", "scales", "kernel"),
    [
        ("nearest", "half_pixel", (1, 1, 2, 4), "aten::upsample_nearest2d"),
        ("nearest", "asymmetric", (1, 1, 2, 2), "aten::upsample_nearest2d"),
        ("linear", "half_pixel", (1, 1, 2, 2), "aten::upsample_bilinear2d"),
        ("linear", "pytorch_half_pixel", (1, 1, 0.5, 4), "aten::upsample_bilinear2d"),
        ("linear", "half_pixel", (1, 1, 2), "aten::upsample_linear1d"),
        ("linear", "half_pixel", (1, 1, 2, 2, 2), "aten::upsample_trilinear3d"),
        ("cubic", "half_pixel", (1, 1, 2, 0.5), "aten::upsample_bicubic2d"),
    ],
)
def test_powers_of_two_run_torch_kernels(mode: str, coordinates: str, scales: Any, kernel: str) -> None:
    entry = rules.find("", "Resize", 19)
    assert entry is not None
    x = torch.randn(2, 3, *(8,) * (len(scales) - 2))
    attributes = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    if coordinates == "half_pixel":
        attributes["nearest_mode"] = "round_prefer_floor"
    with torch.profiler.profile() as profile:
        y = entry.rule.function(x, None, scales, **attributes)
    assert [event.name for event in profile.events() if event.cpu_parent is None] == [kernel]
    expected = _reference(x.numpy(), None, np.array(scales, np.float32), None, attributes)
    np.testing.assert_allclose(y.numpy(), expected, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_weighs_in_float32(rule: Any, dtype: torch.dtype) -> None:
    x = torch.randn(5, dtype=torch.float32).to(dtype)
    (y,) = rule("Resize", 19, (x, None, (1.7,)), {"mode": "linear"})
    (expected,) = rule("Resize", 19, (x.double(), None, (1.7,)), {"mode": "linear"})
    assert y.dtype is dtype
    torch.testing.assert_close(y, expected.to(dtype))


def test_kept_weights_serve_gradients_after_inference(rule: Any) -> None:
    """Weights made in inference mode must not be inference tensors."""
    attributes = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    x = torch.randn(1, 1, 11, dtype=torch.float64)
    with torch.inference_mode():
        rule("Resize", 19, (x, None, None, (1, 1, 29)), attributes)
    x.requires_grad_()
    (y,) = rule("Resize", 19, (x, None, None, (1, 1, 29)), attributes)
    y.sum().backward()
    assert x.grad is not None and x.grad.sum().item() == pytest.approx(29)


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.int64, torch.bool, torch.uint16, torch.uint64, torch.float16]
)
def test_nearest_takes_every_type(rule: Any, dtype: torch.dtype) -> None:
    x = torch.tensor([[0, 1, 1, 0]]).to(dtype)
    (y,) = rule("Resize", 19, (x, None, (2.0, 2.0)))
    assert y.dtype is dtype
    assert torch.equal(y, x.repeat_interleave(2, 0).repeat_interleave(2, 1))
