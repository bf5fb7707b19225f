"""Gathering, scattering, selecting, cumulating, bits, rearranging, Einsum and detection on both backends.

Expected values are computed element by element from the operators' definitions.
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.errors import UserError

BACKENDS = ("numpy", "torch")
shapes = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)


def distinct(rng, shape):
    """Numbers without ties, so that gradients of choices are defined."""
    size = int(np.prod(shape))
    return (rng.permutation(size) + rng.random(size) * 0.5).reshape(shape)


def wrapped(rng, size, shape):
    """Indices from -size to size - 1."""
    return rng.integers(-size, size, shape) if size else np.zeros(shape, np.int64)


@settings(max_examples=40)
@given(shape=shapes, data=st.data(), seed=st.integers(0, 999))
def test_gather_elements(agree, shape, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    place = axis % len(shape)
    listed = [data.draw(st.integers(0, n)) for n in shape]
    listed[place] = data.draw(st.integers(0, 4)) if shape[place] else 0
    x, indices = rng.normal(size=shape), wrapped(rng, shape[place], listed)
    values, _ = agree(
        "GatherElements", 13, [x, indices], axis=axis, cotangents={0: rng.normal(size=listed)}, wrt=["x0"]
    )
    expected = np.zeros(listed)
    for index in np.ndindex(*listed):
        source = list(index)
        source[place] = indices[index]
        expected[index] = x[tuple(source)]
    np.testing.assert_array_equal(values[0], expected)


@settings(max_examples=40)
@given(data=st.data(), seed=st.integers(0, 999))
def test_gather_nd(agree, data, seed) -> None:
    rng = np.random.default_rng(seed)
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    batch = data.draw(st.integers(0, len(shape) - 1))
    depth = data.draw(st.integers(1, len(shape) - batch))
    middle = data.draw(st.lists(st.integers(0, 3), max_size=2))
    x = rng.normal(size=shape)
    indices = np.stack([wrapped(rng, n, [*shape[:batch], *middle]) for n in shape[batch : batch + depth]], -1)
    expected = np.zeros([*indices.shape[:-1], *shape[batch + depth :]])
    for index in np.ndindex(*indices.shape[:-1]):
        expected[index] = x[(*index[:batch], *indices[index])]
    values, _ = agree(
        "GatherND", 13, [x, indices], batch_dims=batch, wrt=["x0"],
        cotangents={0: rng.normal(size=expected.shape)},
    )  # fmt: skip
    np.testing.assert_array_equal(values[0], expected)


COMBINE = {
    "none": lambda a, b: b,
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "max": max,
    "min": min,
}


@settings(max_examples=50)
@given(
    shape=st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple),
    reduction=st.sampled_from(sorted(COMBINE)),
    dtype=st.sampled_from(["float64", "float32", "int32", "uint8", "int64"]),
    data=st.data(),
    seed=st.integers(0, 999),
)
def test_scatter_elements(node, shape, reduction, dtype, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    place = axis % len(shape)
    listed = [data.draw(st.integers(0, n)) for n in shape]
    x = rng.integers(0, 9, shape).astype(dtype)
    updates, indices = rng.integers(0, 9, listed).astype(dtype), wrapped(rng, shape[place], listed)
    expected = x.copy()
    with np.errstate(over="ignore"):
        for index in np.ndindex(*listed):
            target = list(index)
            target[place] = indices[index]
            expected[tuple(target)] = COMBINE[reduction](expected[tuple(target)], updates[index])
    for backend in BACKENDS:
        (found,), _ = node(
            backend, "ScatterElements", 18, [x, indices, updates], axis=axis, reduction=reduction
        )
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("reduction", ["max", "min"])
def test_complex_numbers_have_no_extremes(node, backend, reduction) -> None:
    x = np.array([1 + 2j, 1 - 2j])
    with pytest.raises(UserError, match="not defined"):
        node(backend, "ScatterElements", 18, [x, np.array([0]), x[:1]], reduction=reduction)


@settings(max_examples=40)
@given(
    reduction=st.sampled_from(sorted(COMBINE)),
    repeated=st.booleans(),
    data=st.data(),
    seed=st.integers(0, 999),
)
def test_scatter_nd_with_gradients(agree, reduction, repeated, data, seed) -> None:
    rng = np.random.default_rng(seed)
    shape = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    depth = data.draw(st.integers(1, len(shape)))
    places = list(itertools.product(*map(range, shape[:depth])))
    count = data.draw(st.integers(0, len(places)))
    chosen = rng.permutation(len(places))[:count]
    if repeated and count:
        chosen = np.append(chosen, chosen[0])
    indices = np.array([places[i] for i in chosen], np.int64).reshape(len(chosen), depth)
    x = distinct(rng, shape)
    updates = distinct(rng, (len(chosen), *shape[depth:])) + 0.3
    expected = x.copy()
    for row, index in enumerate(indices):
        old, new = expected[tuple(index)], updates[row]
        pick = {"max": np.maximum, "min": np.minimum}.get(reduction, COMBINE[reduction])
        expected[tuple(index)] = pick(old, new)
    values, _ = agree(
        "ScatterND", 18, [x, indices, updates], reduction=reduction, wrt=["x0", "x2"],
        cotangents={0: rng.normal(size=shape)},
    )  # fmt: skip
    np.testing.assert_allclose(values[0], expected, rtol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("operator", "opset", "inputs", "options", "message"),
    [
        ("GatherElements", 13, [np.ones(3), np.array([3])], {}, "index 3 is outside"),
        ("GatherElements", 13, [np.ones((2, 2)), np.array([0])], {}, "do not fit"),
        ("GatherND", 13, [np.ones((2, 2)), np.array([[0, 2]])], {}, "index 2 is outside"),
        ("GatherND", 13, [np.ones((2, 2)), np.array([[0, 0, 0]])], {}, "too long"),
        ("GatherND", 13, [np.ones((2, 2)), np.array([[0]])], {"batch_dims": 1}, "batch_dims 1"),
        ("ScatterElements", 13, [np.ones(3), np.array([0]), np.ones(2)], {}, "one shape"),
        ("ScatterElements", 16, [np.ones(3), np.array([0]), np.ones(1)], {"reduction": "max"}, "max"),
        ("ScatterElements", 18, [np.ones(3), np.array([0]), np.ones(1)], {"reduction": "mean"}, "mean"),
        ("ScatterND", 18, [np.ones(3), np.array([[-4]]), np.ones(1)], {}, "index -4 is outside"),
        ("ScatterND", 18, [np.ones(3), np.array([[0]]), np.ones(2)], {}, "updates have shape"),
        ("TensorScatter", 24, [np.ones((1, 3, 2)), np.ones((1, 2, 2)), np.array([2])], {}, "leave"),
        ("TensorScatter", 24, [np.ones((1, 3, 2)), np.ones((1, 4, 2))], {}, "does not fit"),
        ("TopK", 11, [np.ones(3), np.array([4])], {}, "k is 4|out of bounds"),
        ("CumSum", 14, [np.ones(3), np.array(1)], {}, "axis 1"),
        ("Compress", 11, [np.ones(3), np.ones((1, 1), bool)], {}, "ondition"),
        ("DepthToSpace", 13, [np.ones((1, 6, 1, 1))], {"blocksize": 2}, "blocksize 2"),
        ("SpaceToDepth", 13, [np.ones((1, 1, 3, 2))], {"blocksize": 2}, "blocksize 2"),
        ("ReverseSequence", 10, [np.ones((2, 2)), np.array([3, 1])], {}, "from 0 to 2"),
        ("Einsum", 12, [np.ones((2, 3)), np.ones((2, 3))], {"equation": "ij,jk->ik"}, "j"),
        ("Einsum", 12, [np.ones((2, 3))], {"equation": "ij->ijk"}, "k"),
        ("Einsum", 12, [np.ones((2, 3)), np.ones(3)], {"equation": "...i,...i->..."}, "one number"),
        ("Det", 22, [np.ones((2, 3))], {}, "equal|square"),
        ("OneHot", 11, [np.array([0]), np.array(-1), np.ones(2)], {}, "depth -1"),
        ("Range", 27, [np.array(0.0), np.array(1.0), np.array(0.0)], {}, "delta is 0"),
        ("BitShift", 11, [np.ones(1, np.uint8), np.ones(1, np.uint8)], {"direction": "UP"}, "UP"),
    ],
)
def test_what_does_not_fit_is_refused(node, backend, operator, opset, inputs, options, message) -> None:
    with pytest.raises(UserError, match=message):
        node(backend, operator, opset, inputs, **options)


@settings(max_examples=25)
@given(
    batch=st.integers(1, 3), size=st.integers(1, 4), length=st.integers(0, 3), circular=st.booleans(),
    given_=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_tensor_scatter(agree, batch, size, length, circular, given_, seed) -> None:
    rng = np.random.default_rng(seed)
    length = min(length, size)
    past, update = rng.normal(size=(batch, 2, size, 3)), rng.normal(size=(batch, 2, length, 3))
    starts = rng.integers(0, size if circular else size - length + 1, batch) if given_ else None
    expected = past.copy()
    for b, i in np.ndindex(batch, length):
        expected[b, :, ((0 if starts is None else starts[b]) + i) % size] = update[b, :, i]
    values, _ = agree(
        "TensorScatter", 24, [past, update, starts], mode="circular" if circular else "linear",
        cotangents={0: rng.normal(size=past.shape)}, wrt=["x0", "x1"],
    )  # fmt: skip
    np.testing.assert_array_equal(values[0], expected)


@settings(max_examples=40)
@given(shape=shapes, largest=st.integers(0, 1), ties=st.booleans(), data=st.data(), seed=st.integers(0, 99))
def test_top_k(agree, shape, largest, ties, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(0, shape[axis]))
    x = rng.integers(0, 3, shape).astype(np.float64) if ties else distinct(rng, shape)
    order = np.argsort(-x if largest else x, axis=axis, kind="stable")
    order = np.take(order, np.arange(k), axis=axis)
    values, _ = agree(
        "TopK", 11, [x, np.array([k])], 2, axis=axis, largest=largest, wrt=["x0"],
        cotangents={0: rng.normal(size=order.shape)},
    )  # fmt: skip
    np.testing.assert_array_equal(values[1], order)
    np.testing.assert_array_equal(values[0], np.take_along_axis(x, order, axis))


@settings(max_examples=40)
@given(shape=shapes, ordered=st.integers(0, 1), data=st.data(), seed=st.integers(0, 99))
def test_unique(agree, shape, ordered, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    x = rng.integers(-1, 2, shape).astype(np.float64)
    options = {} if axis is None else {"axis": axis}
    values, _ = agree("Unique", 11, [x], 4, sorted=ordered, **options)
    rows = list(x.ravel()) if axis is None else [tuple(r.ravel()) for r in np.moveaxis(x, axis, 0)]
    distinct_rows = list(dict.fromkeys(rows))
    if ordered:
        distinct_rows.sort()
    first = [rows.index(row) for row in distinct_rows]
    np.testing.assert_array_equal(values[0], x.ravel()[first] if axis is None else np.take(x, first, axis))
    assert values[1].tolist() == first
    assert values[2].tolist() == [distinct_rows.index(row) for row in rows]
    assert values[3].tolist() == [rows.count(row) for row in distinct_rows]


@settings(max_examples=30)
@given(shape=shapes, data=st.data(), seed=st.integers(0, 99))
def test_compress_and_nonzero(agree, shape, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    x = rng.normal(size=shape) * (rng.random(shape) < 0.7)
    size = int(np.prod(shape)) if axis is None else shape[axis]
    condition = rng.random(data.draw(st.integers(0, size))) < 0.5
    expected = np.compress(condition, x, axis)
    options = {} if axis is None else {"axis": axis}
    values, _ = agree(
        "Compress", 11, [x, condition], cotangents={0: rng.normal(size=expected.shape)}, wrt=["x0"], **options
    )
    np.testing.assert_array_equal(values[0], expected)
    np.testing.assert_array_equal(agree("NonZero", 13, [x])[0][0], np.array(np.nonzero(x)))


@settings(max_examples=40)
@given(
    operator=st.sampled_from(["CumSum", "CumProd"]), shape=shapes, reverse=st.integers(0, 1),
    exclusive=st.integers(0, 1), zeros=st.booleans(), data=st.data(), seed=st.integers(0, 99),
)  # fmt: skip
def test_cumulative(agree, operator, shape, reverse, exclusive, zeros, data, seed) -> None:
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    x = rng.normal(size=shape)
    if zeros:
        x = x * (rng.random(shape) < 0.6)
    start, step = (0, np.add) if operator == "CumSum" else (1, np.multiply)
    rows = np.moveaxis(x, axis, 0)
    rows = rows[::-1] if reverse else rows
    total, found = np.full(rows.shape[1:], float(start)), []
    for row in rows:
        before, total = total, step(total, row)
        found.append(before if exclusive else total)
    expected = np.array(found[::-1] if reverse else found).reshape(rows.shape)
    values, _ = agree(
        operator, 26, [x, np.array(axis)], reverse=reverse, exclusive=exclusive, wrt=["x0"],
        cotangents={0: rng.normal(size=shape)},
    )  # fmt: skip
    np.testing.assert_allclose(values[0], np.moveaxis(expected, 0, axis), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"])
def test_integer_arithmetic_is_exact(node, backend, dtype) -> None:
    """Modulo, shifts and bitwise operators against Python's integers, extremes included."""
    info = np.iinfo(dtype)
    values = sorted({info.min, info.min + 1, info.max, info.max - 1, 0, 1, 3, info.max // 2 + 1})
    pairs = list(itertools.product(values, values))
    a, b = (np.array(column, dtype) for column in zip(*pairs, strict=True))

    def check(operator, opset, expected, x, y, **options):
        (found,), _ = node(backend, operator, opset, [x, y], **options)
        assert found.dtype == dtype
        wrapped_ = [((v - info.min) % (info.max - info.min + 1)) + info.min for v in expected]
        assert found.tolist() == wrapped_, (operator, options)

    whole = [(p, q) for p, q in pairs if q != 0]
    c, d = (np.array(column, dtype) for column in zip(*whole, strict=True))
    check("Mod", 13, [p % q for p, q in whole], c, d)
    check("Mod", 13, [abs(p) % abs(q) * (-1 if p < 0 else 1) for p, q in whole], c, d, fmod=1)
    for operator, function in (("And", int.__and__), ("Or", int.__or__), ("Xor", int.__xor__)):
        check(f"Bitwise{operator}", 18, [function(p, q) for p, q in pairs], a, b)
    (inverted,), _ = node(backend, "BitwiseNot", 18, [a])
    assert inverted.tolist() == [(~p) % 2**info.bits if info.min == 0 else ~p for p, _ in pairs]
    if info.min == 0:
        shifts = np.array([q % info.bits for _, q in pairs], dtype)
        check("BitShift", 11, [p << int(s) for (p, _), s in zip(pairs, shifts, strict=True)], a, shifts,
              direction="LEFT")  # fmt: skip
        check("BitShift", 11, [p >> int(s) for (p, _), s in zip(pairs, shifts, strict=True)], a, shifts,
              direction="RIGHT")  # fmt: skip


def test_mod_of_floats_has_gradients(agree) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 5)) * 5, rng.normal(size=5) + 3
    d = rng.normal(size=(4, 5))
    values, gradients = agree("Mod", 13, [a, b], fmod=1, cotangents={0: d})
    np.testing.assert_array_equal(values[0], np.fmod(a, b))
    np.testing.assert_array_equal(gradients["x0"], d)
    np.testing.assert_allclose(gradients["x1"], (-np.trunc(a / b) * d).sum(0), rtol=1e-12)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(agree, mode) -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 12, 2, 3))
    values, _ = agree(
        "DepthToSpace", 13, [x], blocksize=2, mode=mode, cotangents={0: rng.normal(size=(2, 3, 4, 6))}
    )
    expected = np.zeros((2, 3, 4, 6))
    for c, h, w in np.ndindex(3, 4, 6):
        block = (h % 2) * 2 + w % 2
        depth = block * 3 + c if mode == "DCR" else c * 4 + block
        expected[:, c, h, w] = x[:, depth, h // 2, w // 2]
    np.testing.assert_array_equal(values[0], expected)
    if mode == "DCR":
        back, _ = agree("SpaceToDepth", 13, [expected], blocksize=2, cotangents={0: rng.normal(size=x.shape)})
        np.testing.assert_array_equal(back[0], x)


@pytest.mark.parametrize(("time_axis", "batch_axis"), [(0, 1), (1, 0)])
def test_reverse_sequence(agree, time_axis, batch_axis) -> None:
    rng = np.random.default_rng(2)
    x, lengths = rng.normal(size=(3, 3, 2)), np.array([0, 3, 2])
    values, _ = agree(
        "ReverseSequence", 10, [x, lengths], time_axis=time_axis, batch_axis=batch_axis, wrt=["x0"],
        cotangents={0: rng.normal(size=x.shape)},
    )  # fmt: skip
    expected = x.copy() if batch_axis == 0 else x.swapaxes(0, 1).copy()
    for row, length in zip(expected, lengths, strict=True):
        row[:length] = row[:length][::-1].copy()
    np.testing.assert_array_equal(values[0], expected if batch_axis == 0 else expected.swapaxes(0, 1))


@settings(max_examples=30)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), data=st.data(), seed=st.integers(0, 99))
def test_center_crop_pad(agree, shape, data, seed) -> None:
    rng = np.random.default_rng(seed)
    sizes = [data.draw(st.integers(0, 7)) for _ in shape]
    x = rng.normal(size=shape)
    expected = x
    for axis, size in enumerate(sizes):
        old = expected.shape[axis]
        if size < old:
            start = (old - size) // 2
            expected = np.take(expected, range(start, start + size), axis)
        else:
            pads = [(0, 0)] * len(shape)
            pads[axis] = ((size - old) // 2, size - old - (size - old) // 2)
            expected = np.pad(expected, pads)
    values, _ = agree(
        "CenterCropPad", 18, [x, np.array(sizes)], cotangents={0: rng.normal(size=sizes)}, wrt=["x0"]
    )
    np.testing.assert_array_equal(values[0], expected)


@pytest.mark.parametrize(
    ("equation", "given_"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("bij, bjk -> bik", [(2, 2, 3), (2, 3, 4)]),
        ("...ij,...jk->...ik", [(2, 1, 2, 3), (1, 5, 3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("i,j,k->kij", [(2,), (3,), (4,)]),
        ("ij,kj", [(2, 3), (4, 3)]),
        ("i...->...i", [(2, 3, 4)]),
        ("ij,ij->ij", [(0, 3), (0, 3)]),
    ],
)
def test_einsum(agree, equation, given_) -> None:
    rng = np.random.default_rng(3)
    inputs = [rng.normal(size=shape) for shape in given_]
    expected = np.einsum(equation.replace(" ", ""), *inputs)
    d = rng.normal(size=expected.shape)
    values, gradients = agree("Einsum", 12, inputs, equation=equation, cotangents={0: d})
    np.testing.assert_allclose(values[0], expected, rtol=1e-11, atol=1e-13)
    leaves = [torch.tensor(a, requires_grad=True) for a in inputs]
    (torch.einsum(equation, *leaves) * torch.tensor(d)).sum().backward()
    for i, leaf in enumerate(leaves):
        np.testing.assert_allclose(gradients[f"x{i}"], leaf.grad.numpy(), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("size", [0, 1, 3])
def test_determinants(agree, size) -> None:
    rng = np.random.default_rng(4)
    x, d = rng.normal(size=(2, size, size)), rng.normal(size=2)
    values, gradients = agree("Det", 22, [x], cotangents={0: d})
    np.testing.assert_allclose(values[0], np.linalg.det(x), rtol=1e-12)
    expected = d[:, None, None] * np.linalg.det(x)[:, None, None] * np.linalg.inv(x).swapaxes(1, 2)
    np.testing.assert_allclose(gradients["x0"], expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_of_a_singular_determinant_is_the_matrix_of_cofactors(node, backend) -> None:
    x = np.array([[1.0, 2], [2, 4]])
    _, gradients = node(backend, "Det", 22, [x], cotangents={0: np.array(1.0)})
    np.testing.assert_allclose(gradients["x0"], [[4, -2], [-2, 1]], atol=1e-14)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numbers", [(0, 10, 3), (10, 0, -3), (5, 5, 1), (0.5, 2.25, 0.25), (1, 0, 1)])
def test_range(node, backend, numbers) -> None:
    dtype = np.float64 if any(isinstance(n, float) for n in numbers) else np.int32
    (found,), _ = node(backend, "Range", 11, [np.array(n, dtype) for n in numbers])
    np.testing.assert_array_equal(found, np.arange(*numbers, dtype=dtype))


def test_one_hot(agree) -> None:
    rng = np.random.default_rng(5)
    indices, values = rng.integers(-5, 5, (2, 3)), np.array([0.25, 2.0])
    for axis in (-1, 0, 1):
        expected = np.full((2, 3, 4), 0.25)
        for index in np.ndindex(2, 3):
            if -4 <= indices[index] < 4:
                expected[(*index, indices[index])] = 2
        expected = np.moveaxis(expected, -1, axis)
        d = rng.normal(size=expected.shape)
        found, gradients = agree(
            "OneHot", 11, [indices, np.array(4), values], axis=axis, cotangents={0: d}, wrt=["x2"]
        )
        np.testing.assert_array_equal(found[0], expected)
        hot = expected == 2
        np.testing.assert_allclose(gradients["x2"], [d[~hot].sum(), d[hot].sum()], rtol=1e-12)


def suppressed(boxes, scores, limit, iou_threshold, score_threshold, center):
    """Greedy suppression, one class at a time."""

    def corners(box):
        if center:
            return np.array(
                [box[0] - box[2] / 2, box[1] - box[3] / 2, box[0] + box[2] / 2, box[1] + box[3] / 2]
            )
        return np.concatenate((np.minimum(box[:2], box[2:]), np.maximum(box[:2], box[2:])))

    def iou(p, q):
        p, q = corners(p), corners(q)
        common = np.prod(np.maximum(np.minimum(p[2:], q[2:]) - np.maximum(p[:2], q[:2]), 0))
        union = np.prod(p[2:] - p[:2]) + np.prod(q[2:] - q[:2]) - common
        return common / union if common > 0 else 0

    found = []
    for b, c in np.ndindex(scores.shape[:2]):
        kept = []
        for i in np.argsort(-scores[b, c], kind="stable"):
            if len(kept) == limit:
                break
            if scores[b, c, i] >= score_threshold and all(
                iou(boxes[b, i], boxes[b, j]) <= iou_threshold for j in kept
            ):
                kept.append(i)
        found += [(b, c, i) for i in kept]
    return np.array(found, np.int64).reshape(-1, 3)


@settings(max_examples=25)
@given(
    count=st.integers(0, 6), limit=st.integers(0, 4), iou=st.sampled_from([0.0, 0.2, 0.5, 1.0]),
    least=st.sampled_from([0.0, 0.4]), center=st.integers(0, 1), seed=st.integers(0, 999),
)  # fmt: skip
def test_non_max_suppression(node, count, limit, iou, least, center, seed) -> None:
    rng = np.random.default_rng(seed)
    boxes = rng.random((2, count, 4)).astype(np.float32)
    scores = rng.random((2, 3, count)).astype(np.float32)
    expected = suppressed(boxes, scores, limit, iou, least, center)
    inputs = [boxes, scores, np.array([limit]), np.float32([iou]), np.float32([least])]
    for backend in BACKENDS:
        (found,), _ = node(backend, "NonMaxSuppression", 11, inputs, center_point_box=center)
        assert sorted(map(tuple, found.tolist())) == sorted(map(tuple, expected.tolist()))
