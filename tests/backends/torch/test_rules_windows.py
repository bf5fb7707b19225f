"""Convolution and pooling against plain loops in float64, over drawn sizes and attributes."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meta500.backends.torch.operators import rules
from meta500.errors import UserError


def _conv(
    x: np.ndarray,
    w: np.ndarray,
    begin: tuple[int, ...],
    end: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    group: int,
) -> np.ndarray:
    """Cross-correlation, one kernel tap at a time."""
    padded = np.pad(x, [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    kernel = w.shape[2:]
    out = tuple(
        (n - (k - 1) * d - 1) // s + 1
        for n, k, s, d in zip(padded.shape[2:], kernel, strides, dilations, strict=True)
    )
    y = np.zeros((x.shape[0], w.shape[0], *out))
    per_group_in, per_group_out = w.shape[1], w.shape[0] // group
    for taps in itertools.product(*map(range, kernel)):
        view = padded[
            (
                slice(None),
                slice(None),
                *(
                    slice(t * d, t * d + (o - 1) * s + 1, s)
                    for t, d, o, s in zip(taps, dilations, out, strides, strict=True)
                ),
            )
        ]
        for m in range(w.shape[0]):
            g = m // per_group_out
            part = view[:, g * per_group_in : (g + 1) * per_group_in]
            y[:, m] += np.tensordot(w[(m, slice(None), *taps)], part, (0, 1))
    return y


def _scattered(
    x: np.ndarray, w: np.ndarray, strides: tuple[int, ...], dilations: tuple[int, ...], group: int
) -> np.ndarray:
    """Every input element adds its kernel to the full output of a transposed convolution."""
    kernel = w.shape[2:]
    full = tuple(
        s * (n - 1) + (k - 1) * d + 1
        for n, k, s, d in zip(x.shape[2:], kernel, strides, dilations, strict=True)
    )
    y = np.zeros((x.shape[0], w.shape[1] * group, *full))
    channels = x.shape[1] // group
    for c in range(x.shape[1]):
        first = c // channels * w.shape[1]
        for place in itertools.product(*map(range, x.shape[2:])):
            window = tuple(
                slice(p * s, p * s + (k - 1) * d + 1, d)
                for p, s, k, d in zip(place, strides, kernel, dilations, strict=True)
            )
            value = x[(slice(None), c, *place)].reshape(-1, 1, *(1,) * len(kernel))
            y[(slice(None), slice(first, first + w.shape[1]), *window)] += value * w[c][None]
    return y


@st.composite
def _windows(draw: st.DrawFn, *, most_axes: int = 3) -> dict[str, Any]:
    rank = draw(st.integers(1, most_axes))
    largest = {1: 9, 2: 7, 3: 5}[rank]
    return {
        "rank": rank,
        "sizes": tuple(draw(st.integers(1, largest)) for _ in range(rank)),
        "kernel": tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        "strides": tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        "dilations": tuple(draw(st.integers(1, 2)) for _ in range(rank)),
        "pads": tuple(draw(st.integers(0, 3)) for _ in range(2 * rank)),
        "auto_pad": draw(st.sampled_from(["NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"])),
        "seed": draw(st.integers(0, 99)),
    }


def _resolved(drawn: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Begin and end pads from the text of ``auto_pad``."""
    rank, mode = drawn["rank"], drawn["auto_pad"]
    if mode == "NOTSET":
        return drawn["pads"][:rank], drawn["pads"][rank:]
    begin, end = [], []
    for n, k, s, d in zip(drawn["sizes"], drawn["kernel"], drawn["strides"], drawn["dilations"], strict=True):
        total = max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0) if mode != "VALID" else 0
        more = math.ceil(total / 2)
        begin.append(more if mode == "SAME_LOWER" else total - more)
        end.append(total - begin[-1])
    return tuple(begin), tuple(end)


def _attributes(drawn: dict[str, Any], *names: str) -> dict[str, Any]:
    given = {name: drawn[name] for name in names}
    given["auto_pad"] = drawn["auto_pad"]
    if drawn["auto_pad"] == "NOTSET":
        given["pads"] = drawn["pads"]
    return given


@settings(max_examples=100)
@given(_windows(), st.sampled_from([(1, 2, 3), (2, 4, 2), (3, 3, 3)]), st.booleans())
def test_conv(rule: Any, drawn: dict[str, Any], channels: tuple[int, int, int], bias: bool) -> None:
    group, c, m = channels
    rng = np.random.default_rng(drawn["seed"])
    begin, end = _resolved(drawn)
    reach = [(k - 1) * d + 1 for k, d in zip(drawn["kernel"], drawn["dilations"], strict=True)]
    assume(all(n + b + e >= r for n, b, e, r in zip(drawn["sizes"], begin, end, reach, strict=True)))
    x = rng.normal(size=(2, c, *drawn["sizes"]))
    w = rng.normal(size=(m, c // group, *drawn["kernel"]))
    b = rng.normal(size=m) if bias else None
    attributes = _attributes(drawn, "strides", "dilations")
    (y,) = rule("Conv", 22, (x, w, b), {**attributes, "group": group, "kernel_shape": drawn["kernel"]})
    expected = _conv(x, w, begin, end, drawn["strides"], drawn["dilations"], group)
    if b is not None:
        expected += b.reshape(-1, *(1,) * drawn["rank"])
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)


@settings(max_examples=150)
@given(_windows(), st.sampled_from([(1, 2, 3), (2, 4, 2), (3, 3, 3)]), st.data())
def test_conv_transpose(
    rule: Any, drawn: dict[str, Any], channels: tuple[int, int, int], data: st.DataObject
) -> None:
    group, c, m = channels
    rank, strides, dilations = drawn["rank"], drawn["strides"], drawn["dilations"]
    rng = np.random.default_rng(drawn["seed"])
    x = rng.normal(size=(2, c, *drawn["sizes"]))
    w = rng.normal(size=(c, m // group, *drawn["kernel"]))
    b = rng.normal(size=m) if data.draw(st.booleans()) else None
    full = _scattered(x, w, strides, dilations, group)
    extra = tuple(data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True))
    attributes = {"strides": strides, "dilations": dilations, "output_padding": extra, "group": group}
    sizes = [n + e for n, e in zip(full.shape[2:], extra, strict=True)]
    how = data.draw(st.sampled_from(["pads", "output_shape", "SAME_UPPER", "SAME_LOWER"]))
    if how == "pads":
        begin, end = drawn["pads"][:rank], drawn["pads"][rank:]
        attributes["pads"] = drawn["pads"]
    else:
        if how == "output_shape":
            wanted = [data.draw(st.integers(1, n + 3)) for n in sizes]
            attributes["output_shape"] = tuple(wanted)
        else:
            wanted = [n * s for n, s in zip(drawn["sizes"], strides, strict=True)]
            attributes["auto_pad"] = how
        total = [n - o for n, o in zip(sizes, wanted, strict=True)]
        begin = tuple(max(math.floor(t / 2) if how == "SAME_UPPER" else math.ceil(t / 2), 0) for t in total)
        begin = tuple(b if t > 0 else 0 for b, t in zip(begin, total, strict=True))
        end = tuple(t - b for t, b in zip(total, begin, strict=True))
    assume(all(n - b - e > 0 for n, b, e in zip(sizes, begin, end, strict=True)))
    grown = np.pad(full, [(0, 0), (0, 0), *((0, e + max(-c, 0)) for e, c in zip(extra, end, strict=True))])
    crop = tuple(slice(b, n - e) for b, n, e in zip(begin, sizes, end, strict=True))
    expected = grown[(slice(None), slice(None), *crop)]
    if b is not None:
        expected = expected + b.reshape(-1, *(1,) * rank)
    (y,) = rule("ConvTranspose", 22, (x, w, b), attributes)
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-12)


def test_conv_transpose_crops_more_at_the_begin(rule: Any) -> None:
    """The equation of version 11; that of version 1 rounds an odd total to the other side and is refused."""
    x, w = np.arange(1.0, 4).reshape(1, 1, 3), np.ones((1, 1, 2))
    (y,) = rule("ConvTranspose", 11, (x, w), {"output_shape": (3,)})
    np.testing.assert_array_equal(y.numpy().ravel(), [3.0, 5.0, 3.0])
    with pytest.raises(UserError, match="defined in two ways"):
        rule("ConvTranspose", 1, (x, w), {"output_shape": (3,)})


def _pool(
    x: np.ndarray, drawn: dict[str, Any], begin: tuple[int, ...], end: tuple[int, ...], ceil_mode: int
) -> tuple[list[list[list[int]]], list[list[int]]]:
    """Per axis and output position: the tap positions inside the input, and the number of taps in the padding."""
    inside, padded = [], []
    for n, k, s, d, b, e in zip(
        x.shape[2:], drawn["kernel"], drawn["strides"], drawn["dilations"], begin, end, strict=True
    ):
        reach = (k - 1) * d + 1
        count = (math.ceil if ceil_mode else math.floor)((n + b + e - reach) / s) + 1
        if ceil_mode and (count - 1) * s >= n + b:
            count -= 1
        taps = [[o * s - b + t * d for t in range(k)] for o in range(count)]
        inside.append([[t for t in window if 0 <= t < n] for window in taps])
        padded.append([sum(-b <= t < n + e for t in window) for window in taps])
    return inside, padded


def _drawn_pool(drawn: dict[str, Any], ceil_mode: int) -> tuple[np.ndarray, Any, Any]:
    begin, end = _resolved(drawn)
    reach = [(k - 1) * d + 1 for k, d in zip(drawn["kernel"], drawn["dilations"], strict=True)]
    assume(all(n + b + e >= r for n, b, e, r in zip(drawn["sizes"], begin, end, reach, strict=True)))
    x = np.random.default_rng(drawn["seed"]).normal(size=(2, 2, *drawn["sizes"]))
    if drawn["auto_pad"].startswith("SAME"):  # negative paddings are refused
        sizes = zip(drawn["sizes"], drawn["strides"], reach, strict=True)
        assume(all((-(-n // s) - 1) * s + r - n >= -1 for n, s, r in sizes))
    if drawn["auto_pad"] == "VALID":
        strides = drawn["strides"]
        assume(
            not ceil_mode
            or all((n - r) % s == 0 for n, r, s in zip(drawn["sizes"], reach, strides, strict=True))
        )
    return x, *_pool(x, drawn, begin, end, ceil_mode)


@settings(max_examples=150)
@given(_windows(), st.integers(0, 1), st.integers(0, 1))
def test_max_pool(rule: Any, drawn: dict[str, Any], ceil_mode: int, storage_order: int) -> None:
    x, inside, _ = _drawn_pool(drawn, ceil_mode)
    attributes = {
        **_attributes(drawn, "strides", "dilations"),
        "kernel_shape": drawn["kernel"],
        "ceil_mode": ceil_mode,
        "storage_order": storage_order,
    }
    if any(not window for axis in inside for window in axis):
        with pytest.raises(UserError, match="wholly in the padding"):
            rule("MaxPool", 22, (x,), attributes)
        return
    y, indices = rule("MaxPool", 22, (x,), attributes, n_outputs=2)
    (alone,) = rule("MaxPool", 22, (x,), attributes)
    assert torch.equal(y, alone) and indices.dtype is torch.int64
    shape = x.shape[2:]
    assert y.shape[2:] == tuple(map(len, inside))
    order = "F" if storage_order else "C"
    for place in itertools.product(*(range(len(axis)) for axis in inside)):
        window = np.ix_(*(axis[p] for axis, p in zip(inside, place, strict=True)))
        for n, c in itertools.product(range(2), range(2)):
            values = x[n, c][window]
            assert y[(n, c, *place)].item() == values.max()
            best = np.unravel_index(values.argmax(), values.shape)
            spot = tuple(axis[p][b] for axis, p, b in zip(inside, place, best, strict=True))
            inner = int(np.ravel_multi_index(spot, shape, order=order))
            assert indices[(n, c, *place)].item() == (n * 2 + c) * math.prod(shape) + inner


@settings(max_examples=150)
@given(_windows(), st.integers(0, 1), st.integers(0, 1))
def test_average_pool(rule: Any, drawn: dict[str, Any], ceil_mode: int, count_include_pad: int) -> None:
    x, inside, padded = _drawn_pool(drawn, ceil_mode)
    attributes = {
        **_attributes(drawn, "strides", "dilations"),
        "kernel_shape": drawn["kernel"],
        "ceil_mode": ceil_mode,
        "count_include_pad": count_include_pad,
    }
    counts = padded if count_include_pad else [[len(w) for w in axis] for axis in inside]
    if any(count == 0 for axis in counts for count in axis):
        with pytest.raises(UserError, match="wholly in the padding"):
            rule("AveragePool", 22, (x,), attributes)
        return
    (y,) = rule("AveragePool", 22, (x,), attributes)
    expected = np.zeros((2, 2, *map(len, inside)))
    for place in itertools.product(*(range(len(axis)) for axis in inside)):
        window = np.ix_(*(axis[p] for axis, p in zip(inside, place, strict=True)))
        count = math.prod(axis[p] for axis, p in zip(counts, place, strict=True))
        for n, c in itertools.product(range(2), range(2)):
            expected[(n, c, *place)] = x[n, c][window].sum() / count
    np.testing.assert_allclose(y.numpy(), expected, rtol=1e-12, atol=1e-14)


def test_max_pool_of_bytes(rule: Any) -> None:
    x = np.arange(-8, 8, dtype=np.int8).reshape(1, 1, 4, 4)
    (y,) = rule("MaxPool", 12, (x,), {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 1, 0, 1)})
    assert y.dtype is torch.int8
    np.testing.assert_array_equal(y.numpy()[0, 0], [[-4, -2, -1], [4, 6, 7]])


def test_global_pooling_without_spatial_axes_is_the_identity(rule: Any) -> None:
    x = np.arange(6.0).reshape(2, 3)
    for op_type in ("GlobalAveragePool", "GlobalMaxPool"):
        np.testing.assert_array_equal(rule(op_type, 1, (x,))[0].numpy(), x)


# One torch kernel and nothing else: the cost of a rule is the cost of torch.
_ONE_CALL = [
    ("Conv", {"pads": (1, 1, 1, 1)}, "aten::conv2d"),
    ("Conv", {"auto_pad": "SAME_UPPER"}, "aten::conv2d"),
    ("ConvTranspose", {"strides": (2, 2), "pads": (1, 1, 0, 0)}, "aten::conv_transpose2d"),
    ("ConvTranspose", {"strides": (2, 2), "auto_pad": "SAME_LOWER"}, "aten::conv_transpose2d"),
    ("MaxPool", {"kernel_shape": (2, 2), "strides": (2, 2)}, "aten::max_pool2d"),
    ("MaxPool", {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "ceil_mode": 1}, "aten::max_pool2d"),
    ("AveragePool", {"kernel_shape": (3, 3), "auto_pad": "SAME_UPPER"}, "aten::avg_pool2d"),
]


@pytest.mark.parametrize(("op_type", "attributes", "kernel"), _ONE_CALL)
def test_common_cases_are_one_kernel(op_type: str, attributes: dict[str, Any], kernel: str) -> None:
    entry = rules.find("", op_type, 22)
    assert entry is not None
    x, w = torch.ones(1, 2, 6, 6), torch.ones(2, 2, 3, 3)
    arguments = (x, w) if "Conv" in op_type else (x,)
    with torch.profiler.profile() as profile:
        entry.rule.function(*arguments, **attributes)
    outermost = [event.name for event in profile.events() if event.cpu_parent is None]
    assert outermost == [kernel]


@pytest.mark.parametrize("pads", [(1, 1, 1, 1), (0, 1, 1, 0)])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
def test_channels_last_is_kept(rule: Any, op_type: str, pads: tuple[int, ...]) -> None:
    x = torch.ones(2, 4, 6, 6).to(memory_format=torch.channels_last)
    w = torch.ones(4, 4, 3, 3).to(memory_format=torch.channels_last)
    inputs, attributes = ((x, w), {}) if "Conv" in op_type else ((x,), {"kernel_shape": (3, 3)})
    (y,) = rule(op_type, 22, inputs, {**attributes, "pads": pads})
    if op_type == "ConvTranspose" and pads != (1, 1, 1, 1):
        y = y.contiguous(memory_format=torch.channels_last)  # a view of such a tensor
    assert y.is_contiguous(memory_format=torch.channels_last)
