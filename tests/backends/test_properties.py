"""Properties of operators over random shapes and attributes: numpy against torch, and against plain loops.

Inputs are of all sizes down to none, and hold NaN and infinities where the operator takes them. Windows
(convolutions, pooling) are compared with loops over the text of the operator; where numpy has the same
function, with that; everything on both backends, forward and backward.
"""

import functools
import itertools
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import helper

from meta500.backends.network import network
from meta500.errors import UserError
from meta500.graph import load
from meta500.graph.types import dtype_to_onnx

bounded = settings(
    max_examples=30,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, 1e30, -1e-30)
TOLERANCE = {"float16": 2e-3, "float32": 2e-5, "float64": 1e-11}


# -- running one operator on both backends -------------------------------------------------------------------


def model_of(op_type, inputs, outputs, opset, domain, attributes):
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(inputs)]
    given = [
        helper.make_tensor_value_info(n, dtype_to_onnx(x.dtype), x.shape)
        for n, x in zip(names, inputs, strict=True)
        if n
    ]
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op_type, names, results, domain=domain, name="node", **attributes)
    graph = helper.make_graph([node], "one", given, [helper.make_empty_tensor_value_info(r) for r in results])
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, 1)] if domain else [])
    feeds = {n: x for n, x in zip(names, inputs, strict=True) if n}
    return load(helper.make_model(graph, opset_imports=imports, ir_version=10)), feeds


def on(backend, model, feeds, cotangent=None, wrt=()):
    """The outputs and gradients of one backend, or its refusal."""
    try:
        with np.errstate(all="ignore"), network(model, backend=backend) as net:
            found = [net.inference(feeds)[name] for name in model.outputs]
            if cotangent is None:
                return found, []
            net.inference_and_backprop(feeds, loss="y0", wrt=list(wrt), cotangent=cotangent)
            return found, net.fetch_tensors([f"grad/{name}" for name in wrt])
    except UserError as error:
        return error, []


def close(a, b, tolerance=None, what=""):
    """Equal in type, shape and the places of NaN and infinities, and close elsewhere."""
    a, b = np.asarray(a), np.asarray(b)
    assert a.dtype == b.dtype and a.shape == b.shape, f"{what}: {a.dtype}{a.shape} against {b.dtype}{b.shape}"
    if a.dtype.kind != "f":
        assert np.array_equal(a, b), f"{what}: {a!r} against {b!r}"
        return
    limit = TOLERANCE[a.dtype.name] if tolerance is None else tolerance
    with np.errstate(all="ignore"):
        finite = np.abs(b[np.isfinite(b)].astype(np.float64))
    scale = float(np.sqrt(np.mean(finite**2))) if finite.size and finite.max() < 1e100 else 1.0
    assert np.allclose(a, b, rtol=limit, atol=limit * max(min(scale, 1e3), 1e-30), equal_nan=True), (
        f"{what}: {a!r} against {b!r}"
    )


def both(op_type, *inputs, outputs=1, opset=21, domain="", grad=(), tolerance=None, **attributes):
    """The outputs of ``op_type``, the same on numpy and torch; None when both refuse.

    ``grad`` lists the inputs by which the first output is differentiated; the gradients of both are compared.
    """
    model, feeds = model_of(op_type, inputs, outputs, opset, domain, attributes)
    wrt = [f"x{i}" for i in grad]
    ours, _ = on("numpy", model, feeds)
    cotangent = None
    if wrt and not isinstance(ours, UserError):
        cotangent = np.asarray(np.random.default_rng(1).standard_normal(ours[0].shape)).astype(ours[0].dtype)
    ours, gradients = on("numpy", model, feeds, cotangent, wrt)
    theirs, other = on("torch", model, feeds, cotangent, wrt)
    if isinstance(ours, UserError) or isinstance(theirs, UserError):
        assert isinstance(ours, UserError) and isinstance(theirs, UserError), (
            f"numpy: {ours}; torch: {theirs}"
        )
        return None
    for index, (a, b) in enumerate(zip(theirs, ours, strict=True)):
        close(a, b, tolerance, f"{op_type} output {index}, torch against numpy")
    for name, a, b in zip(wrt, other, gradients, strict=True):
        close(a, b, tolerance, f"{op_type} gradient of {name}, torch against numpy")
    return ours


# -- values --------------------------------------------------------------------------------------------------


def normal(shape, seed=0, dtype=np.float64):
    return np.asarray(np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def specials(shape, seed, dtype=np.float32):
    """NaN, infinities, signed zeros and ordinary numbers, all values of the type."""
    chosen = np.random.default_rng(seed).choice(SPECIAL, shape)
    with np.errstate(all="ignore"):
        return np.asarray(chosen).astype(dtype)


seeds = st.integers(0, 2**16)
shape = functools.partial(st.lists, st.integers(0, 4))


@st.composite
def broadcastable(draw, count=2, rank=4):
    """Shapes that broadcast with each other, sizes of 0 and 1 included."""
    full = draw(st.lists(st.integers(0, 4), max_size=rank))
    found = []
    for _ in range(count):
        kept = full[draw(st.integers(0, len(full))) :]
        found.append(tuple(1 if draw(st.booleans()) else d for d in kept))
    return found


# -- windows -------------------------------------------------------------------------------------------------


@st.composite
def windows(draw, dilated=True, auto=True):
    """Sizes, kernel and the attributes of a window in 1 to 3 dimensions."""
    rank = draw(st.sampled_from((1, 1, 2, 2, 2, 3)))

    def each(low, high, count=rank):
        return draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    size, kernel, strides = each(1, 7 if rank < 3 else 4), each(1, 3), each(1, 3)
    dilations = each(1, 2) if dilated else [1] * rank
    attributes = {"strides": strides, **({"dilations": dilations} if dilated else {})}
    kind = (
        draw(st.sampled_from(("NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))) if auto else "NOTSET"
    )
    if kind == "NOTSET":
        pads = [
            min(p, (k - 1) * d)
            for p, k, d in zip(each(0, 2, 2 * rank), kernel * 2, dilations * 2, strict=True)
        ]
        attributes["pads"] = pads
    else:
        attributes["auto_pad"] = kind
    return size, kernel, strides, dilations, kind, attributes


def padding(size, kernel, strides, dilations, kind, attributes):
    """Pads before and after each axis."""
    rank = len(size)
    if kind == "VALID":
        return [0] * rank, [0] * rank
    if kind == "NOTSET":
        return attributes["pads"][:rank], attributes["pads"][rank:]
    total = [
        max((math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n, 0)
        for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
    ]
    small, large = [t // 2 for t in total], [t - t // 2 for t in total]
    return (small, large) if kind == "SAME_UPPER" else (large, small)


def window_counts(size, kernel, strides, dilations, before, after, ceil=False):
    """Windows along each axis; with ``ceil`` also a last one that begins inside the input or its left pad."""
    counts = []
    for n, k, s, d, b, a in zip(size, kernel, strides, dilations, before, after, strict=True):
        room = n + b + a - ((k - 1) * d + 1)
        count = (math.ceil(room / s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + b:
            count -= 1
        counts.append(count)
    return counts


def positions(start, kernel, strides, dilations, before, size):
    """Input positions under the window at ``start``; None where it covers padding."""
    for offset in itertools.product(*map(range, kernel)):
        place = tuple(
            i * s + o * d - b for i, s, o, d, b in zip(start, strides, offset, dilations, before, strict=True)
        )
        yield offset, place if all(0 <= p < n for p, n in zip(place, size, strict=True)) else None


@bounded
@given(
    windows(),
    st.integers(0, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 3),
    st.booleans(),
    seeds,
)
def test_conv(window, batch, channels, features, group, bias, seed):
    size, kernel, strides, dilations, _, attributes = window
    x = normal((batch, channels * group, *size), seed)
    w = normal((features * group, channels, *kernel), seed + 1)
    b = normal(features * group, seed + 2) if bias else None
    found = both(
        "Conv", x, w, b, grad=(0, 1, 2)[: 3 if bias else 2], group=group, kernel_shape=kernel, **attributes
    )
    before, after = padding(*window)
    counts = window_counts(size, kernel, strides, dilations, before, after)
    if min(counts) < 1:
        assert found is None or found[0].size == 0
        return
    expected = np.zeros((batch, features * group, *counts)) + (
        0 if b is None else b.reshape(-1, *[1] * len(size))
    )
    for start in itertools.product(*map(range, counts)):
        for offset, place in positions(start, kernel, strides, dilations, before, size):
            if place is None:
                continue
            for f in range(features * group):
                first = f // features * channels
                taken = x[(slice(None), slice(first, first + channels), *place)]
                expected[(slice(None), f, *start)] += taken @ w[(f, slice(None), *offset)]
    close(found[0], expected)


@bounded
@given(
    windows(auto=False),
    st.integers(0, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    st.integers(1, 2),
    seeds,
    st.data(),
)
def test_conv_transpose(window, batch, channels, features, group, seed, data):
    size, kernel, strides, dilations, _, attributes = window
    extra = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    x = normal((batch, channels * group, *size), seed)
    w = normal((channels * group, features, *kernel), seed + 1)
    b = normal(features * group, seed + 2)
    found = both(
        "ConvTranspose",
        x,
        w,
        b,
        grad=(0, 1, 2),
        group=group,
        kernel_shape=kernel,
        output_padding=extra,
        **attributes,
    )
    before, after = padding(*window)
    whole = [
        (n - 1) * s + (k - 1) * d + 1 + e
        for n, s, k, d, e in zip(size, strides, kernel, dilations, extra, strict=True)
    ]
    counts = [n - p - q for n, p, q in zip(whole, before, after, strict=True)]
    if min(counts) < 1:
        assert found is None or found[0].size == 0
        return
    expected = np.zeros((batch, features * group, *whole))
    for start in itertools.product(*map(range, size)):
        for offset in itertools.product(*map(range, kernel)):
            place = tuple(i * s + o * d for i, s, o, d in zip(start, strides, offset, dilations, strict=True))
            for g in range(group):
                rows = slice(g * channels, (g + 1) * channels)
                part = x[(slice(None), rows, *start)] @ w[(rows, slice(None), *offset)]
                expected[(slice(None), slice(g * features, (g + 1) * features), *place)] += part
    inner = tuple(slice(p, p + n) for p, n in zip(before, counts, strict=True))
    close(found[0], expected[(..., *inner)] + b.reshape(-1, *[1] * len(size)))


@bounded
@given(windows(), st.sampled_from(("MaxPool", "AveragePool", "LpPool")), st.booleans(), st.booleans(), seeds)
def test_pooling(window, op_type, ceil, include, seed):
    size, kernel, strides, dilations, kind, attributes = window
    assume(kind == "NOTSET" or not ceil)
    before, after = padding(*window)
    x = normal((2, 2, *size), seed)
    options = {"ceil_mode": int(ceil), "kernel_shape": kernel, **attributes}
    if op_type == "AveragePool":
        options["count_include_pad"] = int(include)
    found = both(op_type, x, grad=(0,), opset=22, **options)
    counts = window_counts(size, kernel, strides, dilations, before, after, ceil)
    if min(counts) < 1:
        assert found is None or found[0].size == 0
        return
    fits = min(window_counts(size, kernel, strides, dilations, before, after)) > 0
    alone = False
    expected = np.zeros((2, 2, *counts))
    for start in itertools.product(*map(range, counts)):
        places = [p for _, p in positions(start, kernel, strides, dilations, before, size)]
        inside = [x[(..., *p)] for p in places if p is not None]
        count = len(inside)
        if op_type == "MaxPool":
            value = np.max(inside, axis=0) if inside else -np.inf
        elif op_type == "LpPool":
            value = np.sqrt(np.sum(np.square(inside), axis=0))
        else:
            # The pads count, the cells beyond them that ceil_mode adds do not.
            reach = sum(
                all(
                    i * s + o * d < n + b + a
                    for i, s, o, d, n, b, a in zip(
                        start, strides, offset, dilations, size, before, after, strict=True
                    )
                )
                for offset in itertools.product(*map(range, kernel))
            )
            count = reach if include else count
            value = np.sum(inside, axis=0) / count if count else np.nan
        alone = alone or not count
        expected[(..., *start)] = value
    # Refused: windows over nothing that counts, windows larger than all, and SAME where it would have to cut.
    cut = kind.startswith("SAME") and any(
        (math.ceil(n / s) - 1) * s + (k - 1) * d + 1 - n < -1
        for n, k, s, d in zip(size, kernel, strides, dilations, strict=True)
    )
    assert (found is None) == (alone or not fits or cut), (alone, fits, cut)
    if found is not None:
        close(found[0], expected)


@bounded
@given(windows(auto=False), st.booleans(), st.booleans(), seeds)
def test_max_pool_indices_and_special_values(window, ceil, column_major, seed):
    """The indices point at the maxima; a NaN in a window is its maximum."""
    size, kernel, _, _, _, attributes = window
    x = specials((2, 2, *size), seed)
    order = {"storage_order": int(column_major)}
    found = both("MaxPool", x, outputs=2, ceil_mode=int(ceil), kernel_shape=kernel, **order, **attributes)
    if found is None:
        return
    values, indices = found
    volume = math.prod(size)
    taken = indices - np.arange(4).reshape(2, 2, *[1] * len(size)) * volume
    valid = values != -np.inf
    flat = (
        x.reshape(2, 2, -1)
        if not column_major
        else x.transpose(0, 1, *range(len(size) + 1, 1, -1)).reshape(2, 2, -1)
    )
    assert ((taken[valid] >= 0) & (taken[valid] < volume)).all()
    picked = np.take_along_axis(flat, np.clip(taken, 0, volume - 1).reshape(2, 2, -1), -1).reshape(
        values.shape
    )
    assert np.array_equal(picked[valid], values[valid], equal_nan=True)


@bounded
@given(
    st.sampled_from(("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")),
    shape(min_size=1, max_size=3),
    seeds,
)
def test_global_pooling(op_type, size, seed):
    x = normal((2, 3, *size), seed)
    found = both(op_type, x, grad=(0,))
    if 0 in size:
        return
    axes = tuple(range(2, x.ndim))
    expected = {
        "GlobalMaxPool": lambda: x.max(axes, keepdims=True),
        "GlobalAveragePool": lambda: x.mean(axes, keepdims=True),
        "GlobalLpPool": lambda: np.sqrt((x**2).sum(axes, keepdims=True)),
    }[op_type]()
    close(found[0], expected)


# -- elementwise ---------------------------------------------------------------------------------------------

BINARY = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Pow": np.power,
    "Greater": np.greater,
    "Less": np.less,
    "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal,
    "Equal": np.equal,
    "Max": np.maximum,
    "Min": np.minimum,
    "PRelu": None,
    "Mod": np.fmod,
}


@bounded
@given(st.sampled_from(sorted(BINARY)), broadcastable(), seeds, st.sampled_from((np.float32, np.float64)))
def test_binary_operators_broadcast_and_carry_special_values(op_type, shapes, seed, dtype):
    a, b = (specials(s, seed + i, dtype) for i, s in enumerate(shapes))
    if op_type == "PRelu":
        assume(np.broadcast_shapes(*shapes) == shapes[0])
        found = both("PRelu", a, b)
        with np.errstate(all="ignore"):
            expected = np.where(a < 0, a * b, a)
    else:
        found = both(op_type, a, b, **({"fmod": 1} if op_type == "Mod" else {}))
        with np.errstate(all="ignore"):
            expected = np.asarray(BINARY[op_type](a, b))
    close(found[0], expected)


@bounded
@given(
    st.sampled_from(("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "PRelu", "Mean", "Sum")),
    broadcastable(),
    seeds,
)
def test_gradients_of_broadcast_operands_have_their_shape(op_type, shapes, seed):
    a, b = (np.abs(normal(s, seed + i)) + 0.5 for i, s in enumerate(shapes))
    if op_type == "PRelu":
        assume(np.broadcast_shapes(*shapes) == shapes[0])
        a = a - 1.0
    assert both(op_type, a, b, grad=(0, 1)) is not None


@bounded
@given(st.sampled_from(("Max", "Min", "Sum", "Mean")), broadcastable(count=3), seeds)
def test_variadic_operators(op_type, shapes, seed):
    arrays = [specials(s, seed + i) for i, s in enumerate(shapes)]
    found = both(op_type, *arrays)
    with np.errstate(all="ignore"):
        a, b, c = arrays
        total = a + b + c
        expected = {
            "Max": np.maximum(np.maximum(a, b), c),
            "Min": np.minimum(np.minimum(a, b), c),
            "Sum": total,
            "Mean": total / np.float32(3),
        }[op_type]
    close(found[0], np.asarray(expected))


UNARY = {
    "Abs": np.abs,
    "Neg": np.negative,
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sign": np.sign,
    "IsNaN": np.isnan,
    "IsInf": np.isinf,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Sigmoid": lambda x: np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), 1 - 1 / (1 + np.exp(-np.abs(x)))),
    "Softplus": lambda x: np.logaddexp(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "LeakyRelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "Elu": lambda x: np.where(x < 0, np.expm1(x), x),
    "Selu": None,
    "Celu": None,
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "HardSwish": None,
    "Mish": None,
    "Gelu": None,
    "Erf": None,
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
    "Identity": lambda x: x,
}


@pytest.mark.parametrize("op_type", sorted(UNARY))
def test_unary_operators_on_special_values(op_type):
    for dims in ((len(SPECIAL),), (0,), (2, 0, 3), ()):
        x = np.array(SPECIAL, np.float64) if dims == (len(SPECIAL),) else specials(dims, 3, np.float64)
        found = both(op_type, x)
        function = UNARY[op_type]
        if function is None:
            assert found[0].shape == x.shape and np.isnan(found[0][np.isnan(x)]).all()
            continue
        with np.errstate(all="ignore"):
            expected = np.asarray(function(x))
        close(found[0], expected.astype(bool) if op_type.startswith("Is") else expected)


@pytest.mark.parametrize("op_type", sorted(set(UNARY) - {"IsNaN", "IsInf"}))
def test_gradients_of_unary_operators(op_type):
    x = np.array([0.3, 0.7, 0.11, 0.9]) + (1.0 if op_type == "Acosh" else 0.0)
    for value in (x, x[:0], x.reshape(2, 1, 2), x[0]):
        assert both(op_type, np.asarray(value), grad=(0,)) is not None
    if op_type not in ("Log", "Sqrt", "Acosh"):
        assert both(op_type, -x, grad=(0,)) is not None


@bounded
@given(
    shape(max_size=3),
    st.sampled_from((None, -1.0, 0.0, math.nan)),
    st.sampled_from((None, 0.0, 1.0, math.inf)),
    seeds,
)
def test_clip(dims, low, high, seed):
    x = specials(dims, seed)
    bounds = [None if v is None else np.float32(v) for v in (low, high)]
    found = both("Clip", x, *(None if v is None else np.asarray(v) for v in bounds))
    expected = x
    if low is not None:
        expected = np.maximum(expected, bounds[0])
    if high is not None:
        expected = np.minimum(expected, bounds[1])
    close(found[0], np.asarray(expected))


# -- reductions ----------------------------------------------------------------------------------------------

REDUCTIONS = {
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMean": np.mean,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k),
    "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)),
    "ReduceLogSumExp": None,
}


@st.composite
def reduced(draw):
    dims = draw(st.lists(st.integers(0, 4), max_size=4))
    axes = draw(
        st.none() | st.lists(st.sampled_from(range(len(dims))), unique=True)
        if dims
        else st.none() | st.just([])
    )
    negative = draw(st.booleans())
    return tuple(dims), axes, negative


@bounded
@given(
    st.sampled_from(sorted(REDUCTIONS)),
    reduced(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_reductions(op_type, what, keep, noop, special, old, seed):
    dims, axes, negative = what
    x = specials(dims, seed, np.float64) if special else np.abs(normal(dims, seed)) + 0.1
    over = tuple(axes) if axes else (() if noop else tuple(range(len(dims))))
    given_axes = None if axes is None else [a - len(dims) if negative else a for a in axes]
    grad = (0,) if not special and x.size else ()
    if old:
        # Before opset 18 (13 for ReduceSum) the axes are an attribute.
        assume(axes != [] and not noop)
        found = both(
            op_type, x, opset=12, keepdims=int(keep), grad=grad, **({"axes": given_axes} if axes else {})
        )
    else:
        found = both(
            op_type,
            x,
            None if axes is None else np.array(given_axes, np.int64),
            keepdims=int(keep),
            noop_with_empty_axes=int(noop),
            grad=grad,
        )
    empty = any(dims[a] == 0 for a in over)
    if found is None:
        # Only the extrema and the mean of nothing have no value.
        assert empty and op_type in ("ReduceMax", "ReduceMin", "ReduceMean")
        return
    if empty and op_type in ("ReduceMax", "ReduceMin", "ReduceMean"):
        return
    with np.errstate(all="ignore"):
        if op_type == "ReduceLogSumExp":
            # One axis after the other; of nothing it is the logarithm of 0.
            expected = x
            for axis in over:
                expected = np.logaddexp.reduce(expected, axis=axis, keepdims=True, initial=-np.inf)
            expected = expected if keep else expected.reshape(np.sum(x, axis=over).shape)
        else:
            expected = REDUCTIONS[op_type](x, axis=over, keepdims=keep)
    close(found[0], np.asarray(expected))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64"])
@pytest.mark.parametrize("opset", [13, 21])
def test_reductions_of_integers_are_cut_to_whole_numbers(dtype, opset):
    x = np.array([[3, 4, 12], [7, 1, 150]], dtype)
    exact = {
        "ReduceMean": [19 // 3, 158 // 3],
        "ReduceL2": [13, math.isqrt(7**2 + 1 + 150**2)],
        "ReduceLogSum": [math.floor(math.log(19)), math.floor(math.log(158))],
        "ReduceLogSumExp": [12, 150],
        "ReduceSumSquare": [169, 22550],
        "ReduceL1": [19, 158],
    }
    for op_type, expected in exact.items():
        axes = {"axes": [1]} if opset == 13 else {}
        (y,) = both(op_type, x, *([] if axes else [np.array([1])]), opset=opset, keepdims=0, **axes)
        close(y, np.array(expected, dtype))


def test_reductions_refuse_an_axis_named_twice():
    assert both("ReduceSum", np.ones((2, 3)), np.array([1, -1])) is None
    assert both("ReduceMax", np.ones((2, 3)), opset=13, axes=[0, 0]) is None


def test_the_constant_has_no_gradient_where_pad_repeats_elements():
    (y,) = both("Pad", normal((3,)), np.array([1, 1]), np.array(2.0), mode="edge", grad=(0, 2))
    assert y.shape == (5,)


@bounded
@given(
    st.sampled_from(("ArgMax", "ArgMin")),
    shape(min_size=1, max_size=3),
    st.booleans(),
    st.booleans(),
    seeds,
    st.data(),
)
def test_arg_extrema(op_type, dims, keep, last, seed, data):
    """The first or last of equal ones; NaN comes before everything."""
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    x = specials(dims, seed)
    found = both(op_type, x, axis=axis, keepdims=int(keep), select_last_index=int(last))
    if dims[axis] == 0:
        return
    function = np.argmax if op_type == "ArgMax" else np.argmin
    expected = function(np.flip(x, axis) if last else x, axis=axis, keepdims=keep)
    close(found[0], np.asarray(dims[axis] - 1 - expected if last else expected))


@bounded
@given(
    st.sampled_from(("Softmax", "LogSoftmax", "Hardmax")),
    shape(min_size=1, max_size=3),
    seeds,
    st.booleans(),
    st.data(),
)
def test_softmax(op_type, dims, seed, special, data):
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    x = specials(dims, seed, np.float64) if special else normal(dims, seed) * 5
    found = both(op_type, x, axis=axis, grad=() if special or op_type == "Hardmax" else (0,))
    if special or x.size == 0:
        assert found[0].shape == x.shape
        return
    soft = np.exp(x - x.max(axis, keepdims=True))
    soft /= soft.sum(axis, keepdims=True)
    if op_type == "Hardmax":
        expected = np.zeros_like(x)
        np.put_along_axis(expected, np.expand_dims(x.argmax(axis), axis), 1.0, axis)
    else:
        expected = soft if op_type == "Softmax" else np.log(soft)
    close(found[0], expected)


@bounded
@given(shape(min_size=1, max_size=3), st.booleans(), st.booleans(), seeds, st.booleans(), st.data())
def test_top_k(dims, largest, sort, seed, special, data):
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    k = data.draw(st.integers(0, dims[axis]))
    x = specials(dims, seed) if special else normal(dims, seed, np.float32)
    found = both("TopK", x, np.array([k]), outputs=2, axis=axis, largest=int(largest), sorted=1)
    if special:
        return
    order = np.argsort(-x if largest else x, axis=axis, kind="stable")
    indices = np.take(order, np.arange(k), axis=axis)
    close(found[1], indices.astype(np.int64))
    close(found[0], np.take_along_axis(x, indices, axis))


@bounded
@given(shape(min_size=1, max_size=3), st.booleans(), st.booleans(), seeds, st.data())
def test_cumulative_sum(dims, exclusive, reverse, seed, data):
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    x = normal(dims, seed)
    found = both("CumSum", x, np.array(axis), exclusive=int(exclusive), reverse=int(reverse), grad=(0,))
    y = np.flip(x, axis) if reverse else x
    expected = np.cumsum(y, axis) - (y if exclusive else 0)
    close(found[0], np.flip(expected, axis) if reverse else expected)


# -- shapes and indices --------------------------------------------------------------------------------------


@bounded
@given(shape(min_size=1, max_size=3), seeds, st.data())
def test_slice(dims, seed, data):
    """Python's slices, with ends beyond the tensor and negative steps."""
    axes = data.draw(st.lists(st.sampled_from(range(len(dims))), unique=True, min_size=1))
    bound = st.integers(-6, 6) | st.sampled_from((2**62, -(2**62)))
    starts, ends = ([data.draw(bound) for _ in axes] for _ in range(2))
    steps = [data.draw(st.sampled_from((1, 1, 2, 3, -1, -2))) for _ in axes]
    x = normal(dims, seed)
    inputs = [np.array(v, np.int64) for v in (starts, ends, [a - len(dims) for a in axes], steps)]
    found = both("Slice", x, *inputs, grad=(0,))
    index = [slice(None)] * len(dims)
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        # ONNX clamps the start of a backward slice to the first element; Python takes nothing from there.
        index[axis] = slice(max(start, -dims[axis]) if step < 0 else start, end, step)
    close(found[0], x[tuple(index)])


@bounded
@given(
    shape(min_size=1, max_size=3), st.sampled_from(("constant", "edge", "reflect", "wrap")), seeds, st.data()
)
def test_pad(dims, mode, seed, data):
    pads = [data.draw(st.integers(-1, 3)) for _ in range(2 * len(dims))]
    low, high = pads[: len(dims)], pads[len(dims) :]
    negative = min(pads) < 0
    x = normal(dims, seed)
    if mode != "constant":
        assume(not negative)
        assume(
            0 not in dims
            and (
                mode != "reflect"
                or all(max(p) < d for p, d in zip(zip(low, high, strict=True), dims, strict=True))
            )
        )
        assume(
            mode != "wrap" or all(max(p) <= d for p, d in zip(zip(low, high, strict=True), dims, strict=True))
        )
    assume(all(d + p + q >= 0 for d, p, q in zip(dims, low, high, strict=True)))
    assume(all(d + min(p, 0) + min(q, 0) >= 0 for d, p, q in zip(dims, low, high, strict=True)))
    fill = np.asarray(1.5) if mode == "constant" else None
    found = both("Pad", x, np.array(pads), fill, mode=mode, grad=(0,))
    options = {"constant_values": 1.5} if mode == "constant" else {}
    expected = np.pad(x, [(max(p, 0), max(q, 0)) for p, q in zip(low, high, strict=True)], mode, **options)
    cut = tuple(
        slice(-min(p, 0), expected.shape[i] + min(q, 0))
        for i, (p, q) in enumerate(zip(low, high, strict=True))
    )
    close(found[0], expected[cut])


@bounded
@given(shape(min_size=1, max_size=3), shape(max_size=2), seeds, st.data())
def test_gather(dims, chosen, seed, data):
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    assume(dims[axis] > 0 or 0 in chosen)
    rng = np.random.default_rng(seed)
    indices = (
        rng.integers(-dims[axis], max(dims[axis], 1), chosen) if dims[axis] else np.zeros(chosen, np.int64)
    )
    x = normal(dims, seed)
    found = both("Gather", x, np.asarray(indices), axis=axis, grad=(0,))
    close(found[0], np.take(x, indices, axis=axis))


@bounded
@given(shape(min_size=1, max_size=3), seeds, st.sampled_from(("none", "add", "mul", "max", "min")), st.data())
def test_gather_and_scatter_elements(dims, seed, reduction, data):
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    x = normal(dims, seed)
    assume(x.size)
    chosen = tuple(data.draw(st.integers(0, d)) for d in dims)
    rng = np.random.default_rng(seed)
    indices = np.asarray(rng.integers(-dims[axis], dims[axis], chosen))
    found = both("GatherElements", x, indices, axis=axis, grad=(0,))
    inner = tuple(slice(0, n) if i != axis % len(dims) else slice(None) for i, n in enumerate(chosen))
    close(found[0], np.take_along_axis(x[inner], indices, axis))
    if reduction == "none":
        indices = np.argsort(rng.random(tuple(dims)), axis)[tuple(slice(0, n) for n in chosen)]
    updates = normal(chosen, seed + 1)
    found = both("ScatterElements", x, indices, updates, axis=axis, reduction=reduction, grad=(0, 2))
    expected = x.copy()
    combine = {"none": lambda a, b: b, "add": np.add, "mul": np.multiply, "max": max, "min": min}[reduction]
    for place in np.ndindex(*chosen):
        target = list(place)
        target[axis] = indices[place]
        expected[tuple(target)] = combine(expected[tuple(target)], updates[place])
    close(found[0], expected)


@bounded
@given(shape(min_size=1, max_size=3), st.integers(1, 3), seeds, st.data())
def test_concat_and_split_are_inverse(dims, parts, seed, data):
    axis = data.draw(st.integers(-len(dims), len(dims) - 1))
    sizes = [data.draw(st.integers(0, 3)) for _ in range(parts)]
    arrays = []
    for index, size in enumerate(sizes):
        own = list(dims)
        own[axis] = size
        arrays.append(normal(own, seed + index))
    whole = both("Concat", *arrays, axis=axis, grad=tuple(range(parts)))[0]
    close(whole, np.concatenate(arrays, axis))
    for part, array in zip(
        both("Split", whole, np.array(sizes), outputs=parts, axis=axis), arrays, strict=True
    ):
        close(part, array)


@bounded
@given(broadcastable(), seeds)
def test_expand_and_where(shapes, seed):
    a, b = (normal(s, seed + i) for i, s in enumerate(shapes))
    full = np.broadcast_shapes(*shapes)
    close(both("Expand", a, np.array(shapes[1], np.int64), grad=(0,))[0], np.array(np.broadcast_to(a, full)))
    condition = np.asarray(np.random.default_rng(seed).random(shapes[1]) < 0.5)
    close(both("Where", condition, a, b, grad=(1, 2))[0], np.asarray(np.where(condition, a, b)))


@bounded
@given(shape(max_size=4), seeds, st.data())
def test_transpose_reshape_tile(dims, seed, data):
    x = normal(dims, seed)
    order = data.draw(st.permutations(range(len(dims))))
    close(both("Transpose", x, grad=(0,), **({"perm": order} if order else {}))[0], x.transpose(order))
    repeats = [data.draw(st.integers(0, 2)) for _ in dims]
    close(both("Tile", x, np.array(repeats, np.int64), grad=(0,))[0], np.tile(x, repeats))
    close(both("Reshape", x, np.array([x.size]), grad=(0,), allowzero=1)[0], x.reshape(-1))
    for axis in range(len(dims) + 1):
        expected = x.reshape(math.prod(dims[:axis]), math.prod(dims[axis:]))
        close(both("Flatten", x, axis=axis)[0], expected)


@bounded
@given(
    st.sampled_from(("nearest", "linear", "cubic")),
    st.sampled_from(
        ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel", "half_pixel_symmetric")
    ),
    st.sampled_from(("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")),
    st.booleans(),
    st.lists(st.integers(1, 5), min_size=1, max_size=2),
    st.booleans(),
    seeds,
    st.data(),
)
def test_resize(mode, transformation, nearest, antialias, size, by_scale, seed, data):
    target = [data.draw(st.integers(1, 9)) for _ in size]
    x = normal((1, 2, *size), seed)
    scales = sizes = None
    if by_scale:
        scales = np.array([1, 1, *(t / n for t, n in zip(target, size, strict=True))], np.float32)
    else:
        sizes = np.array([1, 2, *target])
    both(
        "Resize",
        x,
        None,
        scales,
        sizes,
        mode=mode,
        coordinate_transformation_mode=transformation,
        nearest_mode=nearest,
        antialias=int(antialias and mode != "nearest"),
        grad=(0,),
    )


# -- products ------------------------------------------------------------------------------------------------


@bounded
@given(
    broadcastable(rank=2),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    seeds,
)
def test_matmul(shapes, m, k, n, left, right, seed):
    a = normal((k,) if left else (*shapes[0], m, k), seed)
    b = normal((k,) if right else (*shapes[1], k, n), seed + 1)
    close(both("MatMul", a, b, grad=(0, 1))[0], np.asarray(np.matmul(a, b)))


@bounded
@given(
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.sampled_from((None, (), "n", "1n", "m1", "mn")),
    st.sampled_from((1.0, 0.0, -0.5)),
    seeds,
)
def test_gemm(m, k, n, trans_a, trans_b, bias, scale, seed):
    a = normal((k, m) if trans_a else (m, k), seed)
    b = normal((n, k) if trans_b else (k, n), seed + 1)
    form = {None: None, (): (), "n": (n,), "1n": (1, n), "m1": (m, 1), "mn": (m, n)}[bias]
    c = None if form is None else normal(form, seed + 2)
    grad = (0, 1) if c is None else (0, 1, 2)
    attributes = {"transA": int(trans_a), "transB": int(trans_b), "alpha": scale, "beta": 2.0}
    found = both("Gemm", a, b, c, grad=grad, **attributes)
    expected = scale * ((a.T if trans_a else a) @ (b.T if trans_b else b)) + (0 if c is None else 2.0 * c)
    close(found[0], expected)


# -- types ---------------------------------------------------------------------------------------------------

INTEGERS = (np.int8, np.uint8, np.int16, np.int32, np.int64)


@bounded
@given(
    st.sampled_from(INTEGERS),
    broadcastable(),
    st.sampled_from(("Add", "Sub", "Mul", "Max", "Min", "Mod")),
    seeds,
)
def test_integers_wrap_around(dtype, shapes, op_type, seed):
    """Arithmetic is modulo two to the bits; Mod has the sign of the divisor."""
    rng = np.random.default_rng(seed)
    bounds = np.iinfo(dtype)
    a, b = (np.asarray(rng.integers(bounds.min, bounds.max, s, dtype=dtype, endpoint=True)) for s in shapes)
    if op_type == "Mod":
        b = np.where(b == 0, dtype(1), b)
    function = {"Max": np.maximum, "Min": np.minimum, "Mod": np.mod}.get(op_type, BINARY.get(op_type))
    with np.errstate(all="ignore"):
        close(both(op_type, a, b)[0], np.asarray(function(a, b)))


@bounded
@given(st.sampled_from(INTEGERS), broadcastable(), seeds)
def test_integer_division_truncates(dtype, shapes, seed):
    rng = np.random.default_rng(seed)
    a, b = (np.asarray(rng.integers(-100 if dtype != np.uint8 else 0, 100, s).astype(dtype)) for s in shapes)
    b = np.where(b == 0, dtype(7), b)
    expected = np.trunc(a.astype(np.float64) / b.astype(np.float64)).astype(dtype)
    close(both("Div", a, b)[0], np.asarray(expected))


@bounded
@given(st.sampled_from((*INTEGERS, np.bool_, np.float16, np.float64)), shape(max_size=3), seeds)
def test_cast_within_the_range(dtype, dims, seed):
    """Towards zero; NaN and infinities are true, and stay what they are among floats."""
    x = np.asarray(np.random.default_rng(seed).uniform(0, 100, dims)).astype(np.float32)
    if np.dtype(dtype).kind in "bf":
        x = specials(dims, seed)
    with np.errstate(all="ignore"):
        expected = x.astype(dtype)
    close(both("Cast", x, to=dtype_to_onnx(np.dtype(dtype)))[0], np.asarray(expected))


@bounded
@given(st.sampled_from(INTEGERS), seeds)
def test_cast_outside_of_the_range(dtype, seed):
    """ONNX leaves NaN, infinities and numbers out of range undefined; both backends give the same."""
    both("Cast", specials((6,), seed), to=dtype_to_onnx(np.dtype(dtype)))


# -- points without a derivative -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Abs", [[0.0]], {}),
        ("Relu", [[0.0]], {}),
        ("LeakyRelu", [[0.0]], {}),
        ("Elu", [[0.0]], {}),
        ("ThresholdedRelu", [[1.0]], {}),
        ("PRelu", [[0.0], [0.3]], {}),
        ("Max", [[1.0], [1.0]], {}),
        ("Min", [[1.0], [1.0]], {}),
        ("ReduceMax", [[1.0, 1.0, 0.0]], {}),
        ("MaxPool", [[[[1.0, 1.0, 1.0]]]], {"kernel_shape": [2]}),
        ("GlobalMaxPool", [[[[1.0, 1.0, 0.0]]]], {}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_both_backends_choose_the_same_gradient_where_there_are_several(op_type, inputs, attributes):
    arrays = [np.array(v) for v in inputs]
    assert both(op_type, *arrays, grad=tuple(range(len(arrays))), **attributes) is not None


# -- sizes of none -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op_type", "shapes", "attributes"),
    [
        ("BatchNormalization", [(0, 3, 2), (3,), (3,), (3,), (3,)], {}),
        ("InstanceNormalization", [(0, 3, 2), (3,), (3,)], {}),
        ("LayerNormalization", [(0, 3), (3,)], {}),
        ("LayerNormalization", [(2, 0), (0,)], {}),
        ("LRN", [(0, 3, 2, 2)], {"size": 3}),
        ("LpNormalization", [(0, 3)], {}),
        ("Conv", [(0, 2, 4, 4), (3, 2, 3, 3)], {}),
        ("ConvTranspose", [(0, 2, 4, 4), (2, 3, 3, 3)], {}),
        ("MaxPool", [(0, 2, 4, 4)], {"kernel_shape": [2, 2]}),
        ("AveragePool", [(2, 0, 4, 4)], {"kernel_shape": [2, 2]}),
        ("DepthToSpace", [(0, 4, 2, 2)], {"blocksize": 2}),
        ("SpaceToDepth", [(0, 1, 4, 4)], {"blocksize": 2}),
        ("Einsum", [(0, 3), (3, 2)], {"equation": "ij,jk->ik"}),
        ("Einsum", [(2, 0), (0, 2)], {"equation": "ij,jk->ik"}),
        ("Det", [(0, 2, 2)], {}),
        ("Trilu", [(0, 3)], {}),
        ("Softmax", [(3, 0)], {}),
        ("Concat", [(0, 3), (2, 3), (0, 3)], {"axis": 0}),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_operators_on_nothing(op_type, shapes, attributes):
    found = both(op_type, *(np.abs(normal(s)) for s in shapes), grad=(0,), **attributes)
    assert found is not None and np.isfinite(found[0]).all()
