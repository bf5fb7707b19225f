"""Sampling, folding, unpooling and regions on both backends: values and gradients against PyTorch's own functions
or plain loops, for the attribute values that ONNX's cases do not reach."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from onnx import helper

import meta500
from meta500.errors import UserError

BACKENDS = ["numpy", "torch"]
RNG = np.random.default_rng(7)


def network(
    backend: str, op_type: str, inputs: dict[str, np.ndarray], opset: int, attributes: dict[str, Any]
) -> Any:
    """A network of one node ``y = op_type(inputs)`` and ``loss = sum(y * weight)``."""
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    node = helper.make_node(op_type, list(inputs), ["y"], **attributes)
    # None of known shape: the operator's own inference may not know it.
    output = helper.make_tensor_value_info("y", infos[0].type.tensor_type.elem_type, None)
    graph = helper.make_graph([node], op_type, infos, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return meta500.network(meta500.load(model), backend=backend)


def run(
    backend: str, op_type: str, inputs: dict[str, np.ndarray], opset: int = 22, **attributes: Any
) -> np.ndarray:
    with network(backend, op_type, inputs, opset, attributes) as net:
        assert {node.how for node in net.coverage()} == {"native"}
        return net.inference(inputs)["y"]


def gradients(
    backend: str,
    op_type: str,
    inputs: dict[str, np.ndarray],
    wrt: list[str],
    opset: int = 22,
    **attributes: Any,
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The output, and gradients of its product with a fixed cotangent."""
    with network(backend, op_type, inputs, opset, attributes) as net:
        y = net.inference(inputs)["y"]
        found = net.inference_and_backprop(inputs, loss="y", wrt=wrt, cotangent=cotangent(y.shape))
        np.testing.assert_allclose(found["y"], y)
        return y, net.fetch_tensors([f"grad/{name}" for name in wrt])


def cotangent(shape: tuple[int, ...]) -> np.ndarray:
    return np.cos(np.arange(math.prod(shape))).reshape(shape)


def autograd(function: Any, arrays: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y = function(*tensors)
    found = torch.autograd.grad(y, tensors, torch.tensor(cotangent(tuple(y.shape))))
    return y.detach().numpy(), [g.numpy() for g in found]


# -- GridSample and AffineGrid --------------------------------------------------------------------

KERNEL = {"linear": "bilinear", "nearest": "nearest", "cubic": "bicubic"}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(
    ("mode", "rank"), [("linear", 2), ("nearest", 2), ("cubic", 2), ("linear", 3), ("nearest", 3)]
)
def test_grid_sample_is_that_of_torch(backend, mode, rank, padding, align) -> None:
    x = RNG.normal(size=(2, 3, *(4, 5, 3)[:rank]))
    grid = RNG.uniform(-2.3, 2.3, size=(2, *(3, 4, 2)[:rank], rank))
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    y, (d_x, d_grid) = gradients(backend, "GridSample", {"x": x, "grid": grid}, ["x", "grid"], **attributes)
    expected, (e_x, e_grid) = autograd(
        lambda a, g: F.grid_sample(a, g, KERNEL[mode], padding, bool(align)), [x, grid]
    )
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(d_x, e_x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(d_grid, e_grid, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_in_one_dimension_is_that_of_a_flat_image(backend, mode, padding, align) -> None:
    x, grid = RNG.normal(size=(2, 3, 6)), RNG.uniform(-2.3, 2.3, size=(2, 9, 1))
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    y, (d_x, d_grid) = gradients(backend, "GridSample", {"x": x, "grid": grid}, ["x", "grid"], **attributes)
    # Five equal rows, sampled at the middle one: no mode mixes anything else in.
    flat = lambda a, g: F.grid_sample(  # noqa: E731
        a[:, :, None].expand(-1, -1, 5, -1),
        torch.cat([g, torch.zeros_like(g)], -1)[:, None],
        KERNEL[mode],
        padding,
        bool(align),
    )[:, :, 0]
    expected, (e_x, e_grid) = autograd(flat, [x, grid])
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(d_x, e_x, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(d_grid, e_grid, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize(("mode", "rank"), [("cubic", 3), ("linear", 4), ("nearest", 4), ("cubic", 4)])
def test_grid_sample_in_ranks_that_torch_has_no_kernel_for(mode, rank, padding, align) -> None:
    x = RNG.normal(size=(2, 2, *(3, 4, 2, 3)[:rank]))
    grid = RNG.uniform(-1.5, 1.5, size=(2, *(2, 1, 2, 1)[:rank], rank))
    attributes = {"mode": mode, "padding_mode": padding, "align_corners": align}
    found = [
        gradients(b, "GridSample", {"x": x, "grid": grid}, ["x", "grid"], **attributes) for b in BACKENDS
    ]
    for left, right in zip((found[0][0], *found[0][1]), (found[1][0], *found[1][1]), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_grid_sample_16_has_the_names_of_torch(backend, mode) -> None:
    x, grid = RNG.normal(size=(2, 3, 4, 5)), RNG.uniform(-1.5, 1.5, size=(2, 3, 2, 2))
    y = run(backend, "GridSample", {"x": x, "grid": grid}, 16, mode=mode, padding_mode="border")
    expected = F.grid_sample(torch.tensor(x), torch.tensor(grid), mode, "border", align_corners=False)
    np.testing.assert_allclose(y, expected.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_grid_sample_of_other_types(backend) -> None:
    """Halves are computed in float32; integers in float64 and cut; the grid may have another type."""
    grid = RNG.uniform(-1.2, 1.2, size=(1, 4, 5, 2)).astype(np.float32)
    x = RNG.normal(size=(1, 2, 4, 4))
    y = run(backend, "GridSample", {"x": x.astype(np.float16), "grid": grid})
    wide = run("numpy", "GridSample", {"x": x.astype(np.float16).astype(np.float32), "grid": grid})
    np.testing.assert_array_equal(y, wide.astype(np.float16))
    whole = (100 * x).astype(np.int32)
    y = run(backend, "GridSample", {"x": whole, "grid": grid})
    expected = F.grid_sample(
        torch.tensor(whole, dtype=torch.float64), torch.tensor(grid, dtype=torch.float64), align_corners=False
    )
    assert y.dtype == np.int32
    assert np.abs(y - np.trunc(expected.numpy())).max() <= 0


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("align", [0, 1])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (1, 1, 2, 3, 4), (2, 1, 3, 2)])
def test_affine_grid_is_that_of_torch(backend, size, align) -> None:
    rank = len(size) - 2
    theta = RNG.normal(size=(size[0], rank, rank + 1))
    inputs = {"theta": theta, "size": np.array(size)}
    y, (d,) = gradients(backend, "AffineGrid", inputs, ["theta"], align_corners=align)
    expected, (e,) = autograd(lambda t: F.affine_grid(t, list(size), align_corners=bool(align)), [theta])
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(d, e, rtol=1e-12, atol=1e-13)


# -- Col2Im and MaxUnpool -------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kernel", "dilation", "pad", "stride"),
    [((2, 3), (1, 1), (0, 0), (1, 1)), ((3, 2), (2, 1), (1, 1), (2, 3)), ((2, 2), (1, 3), (2, 1), (1, 2))],
)
def test_col2im_is_fold(backend, kernel, dilation, pad, stride) -> None:
    size = (7, 8)
    counts = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(size, pad, dilation, kernel, stride, strict=True)
    ]
    x = RNG.normal(size=(2, 3 * math.prod(kernel), math.prod(counts)))
    inputs = {"x": x, "size": np.array(size), "block": np.array(kernel)}
    attributes = {"dilations": dilation, "pads": pad * 2, "strides": stride}
    y, (d,) = gradients(backend, "Col2Im", inputs, ["x"], **attributes)
    expected, (e,) = autograd(lambda t: F.fold(t, size, kernel, dilation, pad, stride), [x])
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(d, e, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float64, np.int32, np.uint16, np.float16, np.bool_])
def test_col2im_with_uneven_pads(backend, dtype) -> None:
    """Against plain loops; in one dimension, three blocks of two, padded at the front only."""
    x = (RNG.normal(size=(2, 4, 3)) * 10).astype(dtype)
    inputs = {"x": x, "size": np.array([5]), "block": np.array([2])}
    y = run(backend, "Col2Im", inputs, pads=[1, 0], strides=[2])
    expected = np.zeros((2, 2, 6), dtype)
    for block, k in itertools.product(range(3), range(2)):
        expected[:, :, 2 * block + k] += x.reshape(2, 2, 2, 3)[:, :, k, block]
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, expected[:, :, 1:])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("stride", [2, 1])
def test_max_unpool_turns_max_pool_back(backend, stride) -> None:
    """PyTorch's indices count in each image, ONNX's in all of them."""
    image = torch.tensor(RNG.normal(size=(2, 3, 6, 6)))
    x, places = F.max_pool2d(image, 2, stride, return_indices=True)
    offset = torch.arange(6).reshape(2, 3, 1, 1) * 36
    inputs = {"x": x.numpy(), "places": (places + offset).numpy()}
    y, (d,) = gradients(backend, "MaxUnpool", inputs, ["x"], kernel_shape=[2, 2], strides=[stride] * 2)
    expected = np.zeros(2 * 3 * 36)
    expected[inputs["places"].ravel()] = x.numpy().ravel()
    np.testing.assert_array_equal(y.ravel(), expected)
    # Where windows overlap an element may come several times: its last copy has the gradient.
    last = {place: at for at, place in enumerate(inputs["places"].ravel().tolist())}
    wanted = np.zeros(x.numel())
    for place, at in last.items():
        wanted[at] = cotangent((expected.size,))[place]
    np.testing.assert_allclose(d.ravel(), wanted)


# -- Regions --------------------------------------------------------------------------------------


def bilinear(image: np.ndarray, y: float, x: float) -> tuple[float, list[float]]:
    """The value at a place of an image (H, W), and the four weighted neighbours that make it up."""
    height, width = image.shape
    if y < -1 or y > height or x < -1 or x > width:
        return 0.0, [0.0] * 4
    y, x = min(max(y, 0.0), height - 1), min(max(x, 0.0), width - 1)
    top, left = int(y), int(x)
    bottom, right = min(top + 1, height - 1), min(left + 1, width - 1)
    v, u = y - top, x - left
    parts = [
        (1 - v) * (1 - u) * image[top, left],
        (1 - v) * u * image[top, right],
        v * (1 - u) * image[bottom, left],
        v * u * image[bottom, right],
    ]
    return sum(parts), parts


def aligned(x, rois, images, mode, bins, ratio, scale, half) -> np.ndarray:
    """RoiAlign (He et al. 2017), one sample after the other."""
    y = np.zeros((len(rois), x.shape[1], *bins))
    for r, c in itertools.product(range(len(rois)), range(x.shape[1])):
        x1, y1, x2, y2 = rois[r] * scale - (0.5 if half else 0)
        height, width = y2 - y1, x2 - x1
        if not half:
            height, width = max(height, 1.0), max(width, 1.0)
        count_h = ratio or math.ceil(height / bins[0])
        count_w = ratio or math.ceil(width / bins[1])
        for p, q in itertools.product(range(bins[0]), range(bins[1])):
            values, parts = [], []
            for i, j in itertools.product(range(count_h), range(count_w)):
                at_y = y1 + (p + (i + 0.5) / count_h) * height / bins[0]
                at_x = x1 + (q + (j + 0.5) / count_w) * width / bins[1]
                value, neighbours = bilinear(x[images[r], c], at_y, at_x)
                values.append(value)
                parts += neighbours
            if values:
                y[r, c, p, q] = np.mean(values) if mode == "avg" else max(parts)
    return y


ROIS = np.array([[0.2, 0.7, 6.3, 5.1], [-3, -2, 2, 3.3], [4, 4, 4.2, 9.9], [5, 1, 3, 2.5], [2, 2, 2, 2]])
IMAGES = np.array([0, 1, 1, 0, 1])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("coordinates", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("ratio", [0, 1, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(backend, mode, ratio, coordinates) -> None:
    x = RNG.normal(size=(2, 2, 6, 5))
    inputs = {"x": x, "rois": ROIS, "images": IMAGES}
    attributes = {
        "mode": mode,
        "output_height": 3,
        "output_width": 2,
        "sampling_ratio": ratio,
        "spatial_scale": 0.75,
    }
    half = coordinates == "half_pixel"
    expected = aligned(x, ROIS, IMAGES, mode, (3, 2), ratio, 0.75, half)
    y = run(backend, "RoiAlign", inputs, coordinate_transformation_mode=coordinates, **attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)
    if not half:
        y = run(backend, "RoiAlign", inputs, opset=10, **attributes)
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align_gradients_are_those_of_differences(backend, mode) -> None:
    """Away from the kinks, which lie where a sample passes an element."""
    x = RNG.normal(size=(2, 2, 6, 5))
    rois = np.array([[0.21, 0.68, 3.33, 4.12], [1.13, 0.24, 3.91, 2.87]])
    inputs = {"x": x, "rois": rois, "images": np.array([1, 0])}
    attributes = {"mode": mode, "output_height": 2, "output_width": 2, "sampling_ratio": 2}
    y, (d_x, d_rois) = gradients(backend, "RoiAlign", inputs, ["x", "rois"], **attributes)
    weight, step = cotangent(y.shape), 1e-6
    for array, gradient, name in ((x, d_x, "x"), (rois, d_rois, "rois")):
        for index in list(np.ndindex(array.shape))[:: max(array.size // 24, 1)]:
            values = []
            for sign in (1, -1):
                moved = {n: a.copy() for n, a in inputs.items()}
                moved[name][index] += sign * step
                found = aligned(moved["x"], moved["rois"], inputs["images"], mode, (2, 2), 2, 1.0, True)
                values.append((found * weight).sum())
            assert gradient[index] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("backend", BACKENDS)
def test_max_roi_pool(backend) -> None:
    """Against Caffe's loops (Girshick 2015); gradients go to the largest element of each bin."""
    x = RNG.normal(size=(2, 2, 6, 7))
    rois = np.array([[0, 0, 0, 6, 5], [1, 1.5, 2.4, 4.6, 3.5], [1, 3, 3, 3, 3], [0, -2, 4, 2, 9]])
    expected, gradient = np.zeros((4, 2, 2, 3)), np.zeros_like(x)
    weight = cotangent(expected.shape)
    for r, (image, *ends) in enumerate(rois):
        x1, y1, x2, y2 = (int(math.copysign(math.floor(abs(e * 0.8) + 0.5), e)) for e in ends)
        height, width = max(y2 - y1 + 1, 1) / 2, max(x2 - x1 + 1, 1) / 3
        for c, p, q in itertools.product(range(2), range(2), range(3)):
            rows = range(max(math.floor(p * height) + y1, 0), min(math.ceil((p + 1) * height) + y1, 6))
            columns = range(max(math.floor(q * width) + x1, 0), min(math.ceil((q + 1) * width) + x1, 7))
            places = list(itertools.product(rows, columns))
            if places:
                best = max(places, key=lambda at: x[int(image), c, at[0], at[1]])
                expected[r, c, p, q] = x[(int(image), c, *best)]
                gradient[(int(image), c, *best)] += weight[r, c, p, q]
    y, (d,) = gradients(
        backend, "MaxRoiPool", {"x": x, "rois": rois}, ["x"], pooled_shape=[2, 3], spatial_scale=0.8
    )
    np.testing.assert_allclose(y, expected)
    np.testing.assert_allclose(d, gradient)


# -- DeformConv -----------------------------------------------------------------------------------


def deformed(x, w, offset, b, mask, group, offset_group, strides, pads, dilations) -> np.ndarray:
    """Dai et al. (2017) and Zhu et al. (2018) in two dimensions, one product after the other."""
    batch, filters = len(x), len(w)
    outputs = offset.shape[2:]
    y = np.zeros((batch, filters, *outputs))
    per_group, kernel = w.shape[1], w.shape[2:]
    for n, m, i, j in itertools.product(range(batch), range(filters), *map(range, outputs)):
        total = b[m]
        for c, p, q in itertools.product(range(per_group), *map(range, kernel)):
            channel = m // (filters // group) * per_group + c
            part = channel // (x.shape[1] // offset_group)
            at = part * math.prod(kernel) + p * kernel[1] + q
            place_y = i * strides[0] - pads[0] + p * dilations[0] + offset[n, 2 * at, i, j]
            place_x = j * strides[1] - pads[1] + q * dilations[1] + offset[n, 2 * at + 1, i, j]
            image = np.pad(x[n, channel], 1)
            inside = -1 < place_y < x.shape[2] and -1 < place_x < x.shape[3]
            value = bilinear(image, place_y + 1, place_x + 1)[0] if inside else 0.0
            total += value * w[m, c, p, q] * mask[n, at, i, j]
        y[n, m, i, j] = total
    return y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("group", "offset_group"), [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_deform_conv(backend, group, offset_group) -> None:
    x, w = RNG.normal(size=(2, 4, 6, 5)), RNG.normal(size=(4, 4 // group, 2, 3))
    strides, pads, dilations = (2, 1), (1, 0, 0, 2), (1, 2)
    outputs = ((6 + 1 - 2) // 2 + 1, 5 + 2 - 5 + 1)
    offset = RNG.normal(size=(2, offset_group * 12, *outputs)) * 1.5
    mask, b = RNG.uniform(size=(2, offset_group * 6, *outputs)), RNG.normal(size=4)
    inputs = {"x": x, "w": w, "offset": offset, "b": b, "mask": mask}
    attributes = {
        "group": group, "offset_group": offset_group, "strides": strides, "pads": pads, "dilations": dilations,
    }  # fmt: skip
    expected = deformed(x, w, offset, b, mask, group, offset_group, strides, pads, dilations)
    y, found = gradients(backend, "DeformConv", inputs, list(inputs), **attributes)
    np.testing.assert_allclose(y, expected, rtol=1e-10, atol=1e-12)
    # Along one random direction for each input.
    weight, step = cotangent(y.shape), 1e-6
    for name, gradient in zip(inputs, found, strict=True):
        along = RNG.normal(size=inputs[name].shape)
        values = [
            (
                run(backend, "DeformConv", {**inputs, name: inputs[name] + sign * step * along}, **attributes)
                * weight
            ).sum()
            for sign in (1, -1)
        ]
        assert (gradient * along).sum() == pytest.approx(
            (values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-6
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_deform_conv_without_offsets_is_conv(backend) -> None:
    for rank in (1, 2, 3):
        x, w = RNG.normal(size=(2, 2, *(5,) * rank)), RNG.normal(size=(3, 2, *(2,) * rank))
        offset = np.zeros((2, rank * 2**rank, *(4,) * rank))
        y = run(backend, "DeformConv", {"x": x, "w": w, "offset": offset})
        convolution = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]
        np.testing.assert_allclose(
            y, convolution(torch.tensor(x), torch.tensor(w)).numpy(), rtol=1e-10, atol=1e-12
        )


# -- Refusals -------------------------------------------------------------------------------------

IMAGE = np.ones((1, 2, 4, 4), np.float32)
REFUSED = [
    ("GridSample", {"x": IMAGE, "grid": np.ones((1, 2, 2, 2), np.float32)}, {"mode": "bilinear"}, 22, "mode of GridSample"),
    ("GridSample", {"x": IMAGE, "grid": np.ones((1, 2, 2, 2), np.float32)}, {"mode": "linear"}, 16, "mode of GridSample"),
    ("GridSample", {"x": IMAGE, "grid": np.ones((1, 2, 2, 2), np.float32)}, {"padding_mode": "wrap"}, 22, "padding_mode"),
    ("GridSample", {"x": IMAGE, "grid": np.ones((1, 2, 2, 3), np.float32)}, {}, 22, "needs a grid"),
    ("AffineGrid", {"theta": np.ones((1, 2, 3)), "size": np.array([2, 1, 4, 4])}, {}, 22, "needs theta"),
    ("Col2Im", {"x": np.ones((1, 4, 3)), "size": np.array([3, 3]), "block": np.array([2, 2])}, {}, 22, "have 4 blocks"),
    ("Col2Im", {"x": np.ones((1, 4, 4)), "size": np.array([3, 3]), "block": np.array([2])}, {}, 22, "one entry"),
    ("MaxUnpool", {"x": IMAGE, "i": np.full(IMAGE.shape, 128)}, {"kernel_shape": [2, 2], "strides": [2, 2]}, 22, "do not lie"),
    ("MaxUnpool", {"x": IMAGE, "i": np.zeros((1, 2, 4, 3), np.int64)}, {"kernel_shape": [2, 2]}, 22, "agree"),
    ("RoiAlign", {"x": IMAGE, "r": np.zeros((2, 4), np.float32), "i": np.array([0, 1])}, {}, 22, "beyond the 1 of X"),
    ("RoiAlign", {"x": IMAGE, "r": np.zeros((2, 5), np.float32), "i": np.array([0, 0])}, {}, 22, "regions, 4"),
    ("RoiAlign", {"x": IMAGE, "r": np.full((1, 4), np.nan, np.float32), "i": np.array([0])}, {}, 22, "NaN"),
    ("MaxRoiPool", {"x": IMAGE, "r": np.full((1, 5), 3, np.float32)}, {"pooled_shape": [2, 2]}, 22, "beyond the 1 of X"),
    ("MaxRoiPool", {"x": IMAGE, "r": np.zeros((1, 5), np.float32)}, {"pooled_shape": [2, 0]}, 22, "pooled_shape"),
    ("DeformConv", {"x": IMAGE, "w": IMAGE[:, :, :2, :2], "o": np.ones((1, 6, 3, 3), np.float32)}, {}, 22, "offset has shape"),
    ("DeformConv", {"x": IMAGE, "w": IMAGE[:, :, :2, :2], "o": np.ones((1, 8, 3, 3), np.float32)}, {"group": 2}, 22, "group 2"),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", REFUSED, ids=lambda c: f"{c[0]}-{c[-1]}")
def test_refusals(backend, case) -> None:
    op_type, inputs, attributes, opset, words = case
    with pytest.raises(UserError, match=words):
        run(backend, op_type, inputs, opset, **attributes)


# -- Resize where its text and its reference part, and integers that torch hardly computes with ----------------

CROP = {"coordinate_transformation_mode": "tf_crop_and_resize"}
ROI = np.array([0.25, 0.75], np.float32)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ({"roi": ROI, "scales": np.array([1], np.float32)}, CROP, "roi of another extent"),
        ({"roi": ROI, "scales": np.array([2], np.float32)}, CROP, "roi of another extent"),
        ({"roi": ROI * 4 - 1, "scales": np.array([1.3], np.float32)}, CROP, "another extent"),
        ({"roi": ROI * 2 - 0.5, "scales": np.array([1.3], np.float32)}, CROP, "fractional size"),
        (
            {"roi": ROI, "scales": np.array([1.5], np.float32)},
            {"exclude_outside": 1, "nearest_mode": "ceil"},
            "exclude_outside",
        ),
    ],
)
def test_resize_refuses_what_its_text_leaves_open(backend, inputs, attributes, message):
    given = {"x": np.arange(4.0), **inputs}
    with pytest.raises(UserError, match=message):
        run(backend, "Resize", given, opset=13, **attributes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_resize_refuses_to_move_an_axis_that_keeps_its_size(backend, mode):
    inputs = {
        "x": np.arange(6.0).reshape(3, 2),
        "roi": np.zeros(0, np.float32),
        "scales": np.array([1, 2], np.float32),
    }
    nn = {"coordinate_transformation_mode": "tf_half_pixel_for_nn", "mode": mode}
    with pytest.raises(UserError, match="axis 0, whose scale is 1"):
        run(backend, "Resize", inputs, opset=11, nearest_mode="ceil", **nn)
    with pytest.raises(UserError, match="tf_half_pixel_for_nn"):
        run(backend, "Resize", inputs, opset=13, nearest_mode="floor", **nn)
    if mode == "nearest":
        y = run(backend, "Resize", inputs, opset=11, nearest_mode="floor", **nn)
        np.testing.assert_array_equal(y, [[0, 0, 1, 1], [2, 2, 3, 3], [4, 4, 5, 5]])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [0.5, -1.0, 300.0])
def test_resize_refuses_an_extrapolation_value_that_the_type_lacks(backend, value):
    inputs = {
        "x": np.arange(4, dtype=np.uint8),
        "roi": np.array([0.5, 1.5], np.float32),
        "scales": np.ones(1, np.float32),
    }
    with pytest.raises(UserError, match="is no .*uint8"):
        run(backend, "Resize", inputs, opset=13, extrapolation_value=value, **CROP)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32, np.uint64, np.int8])
def test_resize_moves_and_fills_integers(backend, dtype):
    top = np.iinfo(dtype).max
    inputs = {
        "x": np.array([0, 1, top - 1, top], dtype),
        "roi": np.array([0.25, 1.25], np.float32),
        "scales": np.ones(1, np.float32),
    }
    y = run(
        backend,
        "Resize",
        inputs,
        opset=13,
        extrapolation_value=100.0,
        nearest_mode="round_prefer_ceil",
        **CROP,
    )
    np.testing.assert_array_equal(y, np.array([1, top - 1, top, 100], dtype), strict=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_resize_has_a_gradient_where_all_neighbours_are_outside(backend):
    inputs = {
        "x": np.arange(1.0, 5.0),
        "roi": np.array([0, 3], np.float32),
        "scales": np.zeros(0, np.float32),
        "sizes": np.array([4]),
    }
    found, (d_x,) = gradients(
        backend,
        "Resize",
        inputs,
        ["x"],
        opset=13,
        mode="linear",
        exclude_outside=1,
        extrapolation_value=7.0,
        **CROP,
    )
    np.testing.assert_allclose(found, [1, 4, 7, 7])
    weight = cotangent((4,))
    np.testing.assert_allclose(d_x, [weight[0], 0, 0, weight[1]])
