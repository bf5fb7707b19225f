"""Convolution, transposed convolution and pooling against torch in float64, over drawn geometries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meta500.backends.numpy.operators import convolution, rules
from meta500.backends.rules import Call
from meta500.errors import UserError

CONV = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d, 3: torch.nn.functional.conv3d}
TRANSPOSED = {
    1: torch.nn.functional.conv_transpose1d,
    2: torch.nn.functional.conv_transpose2d,
    3: torch.nn.functional.conv_transpose3d,
}
MAX_POOL = {
    1: torch.nn.functional.max_pool1d,
    2: torch.nn.functional.max_pool2d,
    3: torch.nn.functional.max_pool3d,
}
AVERAGE_POOL = {
    1: torch.nn.functional.avg_pool1d,
    2: torch.nn.functional.avg_pool2d,
    3: torch.nn.functional.avg_pool3d,
}


def run(operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any]) -> Call:
    """Forward through the newest rule."""
    rule = rules.find("", operator, 1000).rule
    call = Call(inputs, (), dict(attributes), tuple(a is not None for a in inputs))
    keywords = {"saved": call.saved, "n_outputs": 1} | attributes
    result = rule(*inputs, **{k: v for k, v in keywords.items() if k in rule.injected | rule.attributes})
    call.outputs = result if isinstance(result, tuple) else (result,)
    return call


def close(got: np.ndarray, wanted: Any, tolerance: float = 1e-12) -> None:
    """Equal in relation to the largest element."""
    reference = wanted.detach().numpy() if isinstance(wanted, torch.Tensor) else wanted
    assert got.shape == reference.shape and got.dtype == reference.dtype
    scale = float(np.abs(reference).max(initial=0)) or 1.0
    assert float(np.abs(got - reference).max(initial=0)) <= tolerance * scale


def against_torch(operator: str, arrays: tuple[Any, ...], attributes: dict[str, Any], reference: Any) -> None:
    """Forward and all gradients equal those of ``reference`` applied to torch tensors."""
    call = run(operator, arrays, attributes)
    tensors = [None if a is None else torch.tensor(a, requires_grad=True) for a in arrays]
    wanted = reference(*tensors)
    close(call.outputs[0], wanted)
    cotangent = np.random.default_rng(3).standard_normal(wanted.shape)
    wanted.backward(torch.tensor(cotangent))
    backward = rules.find("", operator, 1000).rule.backward
    for gradient, tensor in zip(backward(call, cotangent), tensors, strict=True):
        if tensor is not None:
            close(gradient, tensor.grad)


def padded(x: torch.Tensor, pads: tuple[int, ...], value: float = 0.0) -> torch.Tensor:
    """``x`` with ONNX pads, which may differ at both ends."""
    rank = len(pads) // 2
    return torch.nn.functional.pad(
        x, [p for axis in reversed(range(rank)) for p in (pads[axis], pads[axis + rank])], value=value
    )


@st.composite
def geometries(draw: Any) -> dict[str, Any]:
    """Shapes and attributes of a convolution over 1 to 3 axes."""
    rank = draw(st.integers(1, 3))

    def each(low: int, high: int) -> tuple[int, ...]:
        return tuple(draw(st.integers(low, high)) for _ in range(rank))

    return {
        "rank": rank,
        "group": draw(st.integers(1, 3)),
        "images": draw(st.integers(1, 3)),
        "channels": draw(st.integers(1, 3)),
        "filters": draw(st.integers(1, 3)),
        "spatial": each(1, 8 if rank < 3 else 5),
        "kernel": each(1, 3),
        "strides": each(1, 3),
        "dilations": each(1, 3),
        "begins": each(0, 3),
        "ends": each(0, 3),
        "bias": draw(st.booleans()),
        "column_bytes": draw(st.sampled_from((1, 300, 4000, 8 << 20))),
        "seed": draw(st.integers(0, 1000)),
    }


@settings(max_examples=150)
@given(geometries())
def test_conv(c: dict[str, Any]) -> None:
    """Any block size gives the convolution of torch, and its gradients."""
    for n, b, e, k, d in zip(c["spatial"], c["begins"], c["ends"], c["kernel"], c["dilations"], strict=True):
        assume(n + b + e >= (k - 1) * d + 1)
    g = np.random.default_rng(c["seed"])
    x = g.standard_normal((c["images"], c["channels"] * c["group"], *c["spatial"]))
    w = g.standard_normal((c["filters"] * c["group"], c["channels"], *c["kernel"]))
    b = g.standard_normal(w.shape[0]) if c["bias"] else None
    attributes = {k: c[k] for k in ("strides", "dilations", "group")} | {"pads": c["begins"] + c["ends"]}

    def reference(x: Any, w: Any, b: Any) -> Any:
        x = padded(x, attributes["pads"])
        return CONV[c["rank"]](x, w, b, c["strides"], 0, c["dilations"], c["group"])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "COLUMN_BYTES", c["column_bytes"])
        against_torch("Conv", (x, w, b), attributes, reference)


@settings(max_examples=150)
@given(geometries(), st.data())
def test_conv_transpose(c: dict[str, Any], data: Any) -> None:
    """Any block size gives the transposed convolution of torch, cut by pads that may differ at both ends."""
    extra = tuple(
        data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(c["strides"], c["dilations"], strict=True)
    )
    pads = c["begins"] + c["ends"]
    full = [
        (n - 1) * s + (k - 1) * d + 1 + o
        for n, s, k, d, o in zip(c["spatial"], c["strides"], c["kernel"], c["dilations"], extra, strict=True)
    ]
    assume(all(f - b - e > 0 for f, b, e in zip(full, c["begins"], c["ends"], strict=True)))
    g = np.random.default_rng(c["seed"])
    x = g.standard_normal((c["images"], c["channels"] * c["group"], *c["spatial"]))
    w = g.standard_normal((c["channels"] * c["group"], c["filters"], *c["kernel"]))
    b = g.standard_normal(c["filters"] * c["group"]) if c["bias"] else None
    attributes = {k: c[k] for k in ("strides", "dilations", "group")}
    attributes |= {"pads": pads, "output_padding": extra}

    def reference(x: Any, w: Any, b: Any) -> Any:
        y = TRANSPOSED[c["rank"]](x, w, b, c["strides"], 0, extra, c["group"], c["dilations"])
        return padded(y, tuple(-p for p in pads))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "COLUMN_BYTES", c["column_bytes"])
        against_torch("ConvTranspose", (x, w, b), attributes, reference)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(("size", "kernel", "stride", "dilation"), [
    (7, 3, 2, 1), (8, 3, 2, 1), (8, 2, 1, 1), (9, 4, 3, 1), (6, 3, 1, 2), (5, 1, 2, 1), (7, 2, 3, 1),
])  # fmt: skip
def test_auto_pad_same(auto_pad: str, size: int, kernel: int, stride: int, dilation: int) -> None:
    """ceil(n / stride) outputs; of an odd padding the end gets more for SAME_UPPER, the begin for SAME_LOWER."""
    outputs = -(-size // stride)
    total = max((outputs - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    small, large = total // 2, total - total // 2
    pads = (small, large) if auto_pad == "SAME_UPPER" else (large, small)
    g = np.random.default_rng(0)
    x, w = g.standard_normal((2, 2, size)), g.standard_normal((3, 2, kernel))
    common = {"strides": (stride,), "dilations": (dilation,)}
    got = run("Conv", (x, w), common | {"auto_pad": auto_pad}).outputs[0]
    assert got.shape[2] == outputs
    wanted = torch.nn.functional.conv1d(
        padded(torch.tensor(x), pads), torch.tensor(w), None, stride, 0, dilation
    )
    close(got, wanted[..., :outputs])
    pooled = run("MaxPool", (x,), common | {"auto_pad": auto_pad, "kernel_shape": (kernel,)}).outputs[0]
    wanted = torch.nn.functional.max_pool1d(
        padded(torch.tensor(x), pads, -np.inf), kernel, stride, 0, dilation
    )
    close(pooled, wanted[..., :outputs])


@pytest.mark.parametrize(("auto_pad", "pads"), [
    ("SAME_UPPER", (0, 1)), ("SAME_LOWER", (1, 0)),
])  # fmt: skip
def test_transposed_auto_pad(auto_pad: str, pads: tuple[int, int]) -> None:
    """Output n * stride; an odd total padding is split as the attribute says, for output_shape too."""
    g = np.random.default_rng(0)
    x, w = g.standard_normal((2, 2, 4)), g.standard_normal((2, 3, 3))
    full = torch.nn.functional.conv_transpose1d(torch.tensor(x), torch.tensor(w), None, 2)
    wanted = full[..., pads[0] : full.shape[2] - pads[1]]
    assert wanted.shape[2] == 8
    got = run("ConvTranspose", (x, w), {"auto_pad": auto_pad, "strides": (2,)})
    close(got.outputs[0], wanted)
    got = run("ConvTranspose", (x, w), {"auto_pad": auto_pad, "strides": (2,), "output_shape": (8,)})
    close(got.outputs[0], wanted)


def test_transposed_output_shape() -> None:
    """Without auto_pad the begin loses more (version 11); what is missing is filled with zeros at the end."""
    g = np.random.default_rng(0)
    x, w = g.standard_normal((1, 2, 4)), g.standard_normal((2, 3, 3))
    full = torch.nn.functional.conv_transpose1d(torch.tensor(x), torch.tensor(w), None, 2)
    got = run("ConvTranspose", (x, w), {"strides": (2,), "output_shape": (6,)}).outputs[0]
    close(got, full[..., 2:-1])
    got = run("ConvTranspose", (x, w), {"strides": (2,), "output_shape": (11,)}).outputs[0]
    close(got, torch.nn.functional.pad(full, (0, 2)))


@settings(max_examples=120)
@given(geometries(), st.booleans(), st.booleans())
def test_pooling(c: dict[str, Any], ceil_mode: bool, include_pad: bool) -> None:
    """Maximum (with dilation) and average against torch, which takes equal pads of at most half a window."""
    rank, kernel = c["rank"], c["kernel"]
    pads = tuple(min(b, k // 2) for b, k in zip(c["begins"], kernel, strict=True))
    x = np.random.default_rng(c["seed"]).standard_normal((c["images"], c["channels"], *c["spatial"]))
    common = {"kernel_shape": kernel, "strides": c["strides"], "pads": pads * 2, "ceil_mode": int(ceil_mode)}
    for dilations in (c["dilations"], (1,) * rank):
        room = [
            n + 2 * p - (k - 1) * d - 1
            for n, p, k, d in zip(c["spatial"], pads, kernel, dilations, strict=True)
        ]
        assume(min(room) >= 0)

        def maximum(x: Any, d: tuple[int, ...] = dilations) -> Any:
            return MAX_POOL[rank](x, kernel, c["strides"], pads, d, ceil_mode)

        def average(x: Any) -> Any:
            return AVERAGE_POOL[rank](x, kernel, c["strides"], pads, ceil_mode, include_pad)

        try:
            against_torch("MaxPool", (x,), common | {"dilations": dilations}, maximum)
        except UserError as error:
            # A dilated window can miss the input with all its elements; torch then returns -inf.
            assert "lies in the padding only" in str(error)
            assert torch.isinf(maximum(torch.tensor(x))).any()
    # Over three axes torch refuses inputs smaller than the window even where padding makes up for it.
    assume(rank < 3 or all(n >= k for n, k in zip(c["spatial"], kernel, strict=True)))
    against_torch("AveragePool", (x,), common | {"count_include_pad": int(include_pad)}, average)


@pytest.mark.parametrize("storage_order", [0, 1])
def test_max_pool_indices(rule, storage_order: int) -> None:
    """Indices point at the maxima in the whole tensor, row-major, or with the spatial axes column-major."""
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4, 6))
    attributes = {"kernel_shape": (2, 3, 2), "strides": (2, 1, 2), "pads": (1, 1, 0, 0, 1, 1)}
    ran = rule("MaxPool", 22, [x], attributes | {"storage_order": storage_order}, n_outputs=2)
    y, indices = ran.outputs
    flat = x.transpose(0, 1, 4, 3, 2).ravel() if storage_order else x.ravel()
    np.testing.assert_array_equal(flat[indices], y)
    assert indices.dtype == np.int64


def test_max_pool_ties_take_the_first(rule) -> None:
    """Equal maxima: index and gradient go to the first in the window; GlobalMaxPool shares, as ReduceMax."""
    x = np.ones((1, 1, 4))
    ran = rule("MaxPool", 22, [x], {"kernel_shape": (2,), "strides": (2,)}, n_outputs=2)
    np.testing.assert_array_equal(ran.outputs[1], [[[0, 2]]])
    np.testing.assert_array_equal(ran.gradients(np.array([[[3.0, 5.0]]]), None)[0], [[[3, 0, 5, 0]]])
    ran = rule("GlobalMaxPool", 1, [x])
    np.testing.assert_array_equal(ran.gradients(np.array([[[3.0]]]))[0], [[[0.75] * 4]])


def test_integer_and_nan_max_pool(rule) -> None:
    x = np.array([[[-5, -7, -128, 3]]], np.int8)
    attributes = {"kernel_shape": (2,), "pads": (1, 1)}
    np.testing.assert_array_equal(rule("MaxPool", 12, [x], attributes).outputs[0], [[[-5, -5, -7, 3, 3]]])
    x = np.array([[[1.0, np.nan, 2.0, 3.0]]])
    got = rule("MaxPool", 22, [x], {"kernel_shape": (2,)}).outputs[0]
    np.testing.assert_array_equal(got, [[[np.nan, np.nan, 3.0]]])


def test_count_include_pad_stops_at_the_border(rule) -> None:
    """With ceil_mode the last window reaches beyond the padding: those elements never count."""
    x = np.arange(1.0, 5.0).reshape(1, 1, 4)
    attributes = {"kernel_shape": (3,), "strides": (3,), "pads": (1, 0), "ceil_mode": 1}
    got = rule("AveragePool", 22, [x], attributes | {"count_include_pad": 1}).outputs[0]
    np.testing.assert_allclose(got, [[[3 / 3, 7 / 2]]])
    got = rule("AveragePool", 22, [x], attributes).outputs[0]
    np.testing.assert_allclose(got, [[[3 / 2, 7 / 2]]])


@pytest.mark.parametrize(("attributes", "shape", "words"), [
    ({"kernel_shape": (2,), "pads": (2, 0)}, (1, 1, 4), "lies in the padding only"),
    ({"kernel_shape": (5,)}, (1, 1, 4), "more than the 4 of the padded input"),
    ({"kernel_shape": (2, 2)}, (1, 1, 4), "expected 1 integers"),
    ({"kernel_shape": (2,), "strides": (0,)}, (1, 1, 4), "strides"),
    ({"kernel_shape": (2,), "pads": (-1, 0)}, (1, 1, 4), "pads"),
    ({"kernel_shape": (2,), "pads": (1, 0), "auto_pad": "SAME_UPPER"}, (1, 1, 4), "exclude each other"),
    ({"kernel_shape": (2,), "auto_pad": "SAME"}, (1, 1, 4), "SAME_LOWER, SAME_UPPER, VALID"),
    ({"kernel_shape": (2,)}, (1, 4), "expected"),
])  # fmt: skip
@pytest.mark.parametrize("operator", ["MaxPool", "AveragePool", "LpPool"])
def test_pooling_refuses(rule, operator, attributes, shape, words) -> None:
    with pytest.raises(UserError, match=words):
        rule(operator, 22, [np.zeros(shape)], attributes)


@pytest.mark.parametrize(("shapes", "attributes", "words"), [
    (((1, 3, 5), (4, 2, 3)), {}, "do not fit group=1"),
    (((1, 4, 5), (3, 2, 3)), {"group": 2}, "do not fit group=2"),
    (((1, 2, 5), (3, 2, 3)), {"kernel_shape": (2,)}, "contradicts"),
    (((1, 2, 5), (3, 2, 3), (4,)), {}, "bias"),
    (((1, 2, 5, 5), (3, 2, 3)), {}, "same number of spatial axes"),
    (((1, 2, 2), (3, 2, 3)), {}, "more than the 2"),
])  # fmt: skip
def test_conv_refuses(rule, shapes, attributes, words) -> None:
    with pytest.raises(UserError, match=words):
        rule("Conv", 22, [np.zeros(s) for s in shapes], attributes)


@pytest.mark.parametrize(("shapes", "attributes", "words"), [
    (((1, 3, 5), (2, 4, 3)), {}, "do not fit"),
    (((1, 2, 5), (2, 4, 3)), {"pads": (4, 3)}, "leave nothing"),
    (((1, 2, 5), (2, 4, 3)), {"output_shape": (1, 4, 7)}, "output_shape"),
])  # fmt: skip
def test_conv_transpose_refuses(rule, shapes, attributes, words) -> None:
    with pytest.raises(UserError, match=words):
        rule("ConvTranspose", 22, [np.zeros(s) for s in shapes], attributes)
