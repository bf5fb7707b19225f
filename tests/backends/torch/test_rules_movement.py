"""Pad, Slice, Split, Reshape and their kin against numpy, over drawn shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meta500.errors import UserError

_INT_MAX = 2**63 - 1


@st.composite
def _padded(draw: st.DrawFn) -> tuple[tuple[int, ...], list[tuple[int, int]], str]:
    shape = tuple(draw(st.integers(1, 5)) for _ in range(draw(st.integers(1, 5))))
    pads = [(draw(st.integers(-2, 7)), draw(st.integers(-2, 7))) for _ in shape]
    if len(shape) > 2 and draw(st.booleans()):
        pads[:2] = [(0, 0), (0, 0)]
    return shape, pads, draw(st.sampled_from(["constant", "reflect", "edge", "wrap"]))


def _defined(size: int, begin: int, end: int, mode: str) -> bool:
    """Whether cutting and filling one axis, in either order, is possible and gives the same."""
    left, grown = size + min(begin, 0) + min(end, 0), max(begin, end)
    if left < 0 or mode == "constant" or grown <= 0:
        return left >= 0
    needed = {"edge": 1, "reflect": grown + 1, "wrap": np.inf}[mode]
    return left > 0 and (min(begin, end) >= 0 or needed <= left)


@settings(max_examples=250)
@given(_padded())
def test_pad(rule: Any, drawn: Any) -> None:
    shape, pads, mode = drawn
    x = np.random.default_rng(8).normal(size=shape)
    order = np.random.default_rng(len(shape)).permutation(len(shape))
    flat = [pads[a][0] for a in order] + [pads[a][1] for a in order]
    axes = tuple(int(a) - (len(shape) if a % 2 else 0) for a in order)
    if not all(_defined(n, b, e, mode) for n, (b, e) in zip(shape, pads, strict=True)):
        with pytest.raises(UserError, match="Pad"):
            rule("Pad", 25, (x, tuple(flat), 2.5, axes), {"mode": mode})
        return
    crop = tuple(slice(max(-b, 0), n - max(-e, 0)) for n, (b, e) in zip(shape, pads, strict=True))
    value = {"constant_values": 2.5} if mode == "constant" else {}
    expected = x[crop]
    for axis, (b, e) in enumerate(pads):
        if b > 0 or e > 0:
            widths = [(0, 0)] * x.ndim
            widths[axis] = max(b, 0), max(e, 0)
            expected = np.pad(expected, widths, mode, **value)
    (y,) = rule("Pad", 25, (x, tuple(flat), 2.5, axes), {"mode": mode})
    np.testing.assert_array_equal(y.numpy(), expected)


def test_pad_constants_are_exact(rule: Any) -> None:
    big = 2**60 + 1
    (y,) = rule("Pad", 13, (np.array([7]), (1, 0), np.array([big])))
    assert y.tolist() == [big, 7]
    (y,) = rule("Pad", 13, (np.array([False]), (0, 1), np.array(True)))
    assert y.tolist() == [False, True]


@settings(max_examples=250)
@given(st.data())
def test_slice(rule: Any, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(0, 6)) for _ in range(data.draw(st.integers(1, 3))))
    axes = data.draw(st.permutations(range(len(shape))))[: data.draw(st.integers(1, len(shape)))]
    bound = st.one_of(st.integers(-9, 9), st.sampled_from([_INT_MAX, -_INT_MAX - 1]))
    starts, ends = [data.draw(bound) for _ in axes], [data.draw(bound) for _ in axes]
    steps = [data.draw(st.sampled_from([1, 2, 3, -1, -2, -5])) for _ in axes]
    x = np.random.default_rng(9).normal(size=shape)
    window = [slice(None)] * len(shape)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # ONNX begins a backward slice from before the first element at the first one, Python takes nothing.
        window[axis] = slice(max(start, -shape[axis]) if step < 0 else start, end, step)
    negative = tuple(a - len(shape) for a in axes)
    (y,) = rule("Slice", 13, (x, tuple(starts), tuple(ends), negative, tuple(steps)))
    np.testing.assert_array_equal(y.numpy(), x[tuple(window)])


def test_scalars_and_one_element_lists_mean_the_same(rule: Any) -> None:
    """Exporters write both; a scalar axis 0 must not count as no axes, nor a list with False as true."""
    x = torch.randn(1, 3)
    for op_type, version in (("ReduceSum", 13), ("Squeeze", 13), ("Unsqueeze", 13)):
        for axis in (0, -2):
            assert torch.equal(rule(op_type, version, (x, axis))[0], rule(op_type, version, (x, (axis,)))[0])
    assert torch.equal(rule("Dropout", 13, (x, (0.5,), (False,)))[0], x)
    assert torch.equal(
        rule("Pad", 13, (x, (0, 1, 0, 0), (2.0,)))[0], rule("Pad", 13, (x, (0, 1, 0, 0), 2.0))[0]
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_adds_up_in_float32(rule: Any, dtype: torch.dtype) -> None:
    x = torch.rand(1, 40, 9, 9, dtype=torch.float64).to(dtype)
    for op_type, attributes in (
        ("AveragePool", {"kernel_shape": (9, 8), "pads": (1, 2, 0, 0)}),
        ("LRN", {"size": 37, "alpha": 5.0}),
    ):
        (got,) = rule(op_type, 19, (x,), attributes)
        (exact,) = rule(op_type, 19, (x.double(),), attributes)
        assert got.dtype is dtype
        # Half a unit in the last place, and a little for the sums in float32.
        torch.testing.assert_close(got.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=0)


def test_slice_forward_is_a_view(rule: Any) -> None:
    x = torch.arange(10.0)
    (y,) = rule("Slice", 13, (x, (1,), (9,), (0,), (3,)))
    assert y.data_ptr() == x[1:].data_ptr()


@settings(max_examples=100)
@given(st.integers(0, 12), st.integers(1, 5))
def test_split_into_parts(rule: Any, size: int, parts: int) -> None:
    x = np.arange(2.0 * size).reshape(2, size)
    chunk = -(-size // parts)
    assume(size - chunk * (parts - 1) >= 0)
    outputs = rule("Split", 18, (x,), {"axis": -1, "num_outputs": parts}, n_outputs=parts)
    assert [t.shape[1] for t in outputs] == [chunk] * (parts - 1) + [size - chunk * (parts - 1)]
    np.testing.assert_array_equal(np.concatenate([t.numpy() for t in outputs], 1), x)


@pytest.mark.parametrize(
    ("shape", "wanted", "allowzero", "expected"),
    [
        ((2, 3, 4), (0, -1), 0, (2, 12)),
        ((2, 3, 4), (4, 0, -1), 0, (4, 3, 2)),
        ((0, 3), (3, 0), 1, (3, 0)),
        ((0, 3, 4), (0, 12), 0, (0, 12)),
        ((2, 0, 4), (-1, 3), 0, (0, 3)),
        ((1, 1), (), 0, ()),
        ((), (1, 1), 0, (1, 1)),
    ],
)
def test_reshape(rule: Any, shape: Any, wanted: Any, allowzero: int, expected: Any) -> None:
    x = np.arange(float(np.prod(shape))).reshape(shape)
    (y,) = rule("Reshape", 14, (x, wanted), {"allowzero": allowzero})
    np.testing.assert_array_equal(y.numpy(), x.reshape(expected))


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("indices", [0, -1, [1, -2], [[0, -1], [1, 1]], np.zeros((0,), int)])
def test_gather(rule: Any, dtype: Any, axis: int, indices: Any) -> None:
    x = np.random.default_rng(10).normal(size=(2, 3, 4))
    places = np.asarray(indices).astype(dtype)
    (y,) = rule("Gather", 13, (x, places), {"axis": axis})
    np.testing.assert_array_equal(y.numpy(), np.take(x, places, axis))
    with pytest.raises(IndexError):
        rule("Gather", 13, (x, np.array([7], dtype)), {"axis": axis})


@pytest.mark.parametrize(
    ("shape", "wanted"), [((3, 1), (2, 1, 6)), ((3, 1), (1,)), ((), (2,)), ((4,), (1, 1))]
)
def test_expand_broadcasts_both_ways(rule: Any, shape: Any, wanted: Any) -> None:
    x = np.random.default_rng(11).normal(size=shape)
    (y,) = rule("Expand", 13, (x, wanted))
    np.testing.assert_array_equal(y.numpy(), x * np.ones(wanted))


@pytest.mark.parametrize(("start", "end"), [(0, None), (-1, None), (1, 2), (-9, 9), (2, 1), (0, -2)])
def test_shape_and_size(rule: Any, start: int, end: int | None) -> None:
    x = np.zeros((2, 3, 4))
    (y,) = rule("Shape", 25, (x,), {"start": start, "end": end})
    assert y.dtype is torch.int64 and y.tolist() == [2, 3, 4][start:end]
    (n,) = rule("Size", 25, (x,))
    assert n.dtype is torch.int64 and n.shape == () and n.item() == 24


def test_constants(rule: Any) -> None:
    made = {
        "value_float": (1.5, torch.tensor(1.5)),
        "value_floats": ((1.5, 2.0), torch.tensor([1.5, 2.0])),
        "value_int": (7, torch.tensor(7)),
        "value_ints": ((7, 8), torch.tensor([7, 8])),
        "value": (torch.eye(2), torch.eye(2)),
    }
    for name, (value, expected) in made.items():
        (y,) = rule("Constant", 13, (), {name: value})
        assert y.dtype is expected.dtype and torch.equal(y, expected)
    (y,) = rule("ConstantOfShape", 9, ((2, 0),))
    assert y.dtype is torch.float32 and y.shape == (2, 0)
    (y,) = rule("ConstantOfShape", 9, ((),), {"value": torch.tensor([3], dtype=torch.int8)})
    assert y.dtype is torch.int8 and y.shape == () and y.item() == 3


def test_results_are_made_on_the_device_of_the_input(rule: Any) -> None:
    """Shapes are enough to see the device: a tensor made elsewhere would not be on meta."""
    x = torch.zeros(2, 3, 8, 8, device="meta")
    for op_type, attributes in {
        "Shape": {},
        "Size": {},
        "AveragePool": {"kernel_shape": (3, 3), "pads": (1, 0, 0, 1)},
        "ReduceMax": {},
        "Dropout": {},
    }.items():
        (y,) = rule(op_type, 22, (x,), attributes)
        assert y.device.type == "meta", op_type
    y, places = rule("MaxPool", 22, (x,), {"kernel_shape": (2, 2)}, n_outputs=2)
    assert y.device.type == places.device.type == "meta"
