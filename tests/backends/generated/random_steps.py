"""Steps of random networks: the operators that test_random_networks.py does not draw.

Every step takes a sketch and a value of any shape, and gives a new value, or None where it does not fit. Arguments
of logarithms, roots and divisions stay away from 0; values that may hold equal elements by computation (copies,
zeros) are marked as ``tied``, and get different again before an operator that chooses between them.
"""

from __future__ import annotations

import importlib.util
import itertools
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from meta500.graph import Builder, MeanSquaredError, ops


def load_networks() -> Any:
    """The module test_random_networks.py; pytest's import mode has no folder of it on the path."""
    if "random_networks" not in sys.modules:
        path = Path(__file__).with_name("test_random_networks.py")
        spec = importlib.util.spec_from_file_location("random_networks", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["random_networks"] = module
        spec.loader.exec_module(module)
    return sys.modules["random_networks"]


networks = load_networks()

MOST = 4000
Shape = tuple[int, ...]


class Mixed:
    """What a sketch needs beside its draws: parameters that are used twice, and values with equal elements."""

    def parameter(self, *shape: int, positive: bool = False) -> str:
        used = self.__dict__.setdefault("used", {})
        old = used.get((shape, positive), [])
        if old and not self.pick(0, 3):  # type: ignore[attr-defined]
            return self.one_of(old)  # type: ignore[attr-defined, no-any-return]
        name = super().parameter(*shape, positive=positive)  # type: ignore[misc]
        used.setdefault((shape, positive), []).append(name)
        return str(name)

    def add(self, kind: Any, *inputs: Any, **fields: Any) -> str:
        name = super().add(kind, *inputs, **fields)  # type: ignore[misc]
        flat = [v for i in inputs for v in (i if isinstance(i, tuple) else (i,))]
        if not self.tied.isdisjoint(flat) or kind in COPIES:
            self.tied.add(name)
        return str(name)

    @property
    def tied(self) -> set[str]:
        """Values that may hold equal elements."""
        return self.__dict__.setdefault("ties", set())  # type: ignore[no-any-return]


class MixedSketch(Mixed, networks.Sketch):
    """Draws from hypothesis."""


class MixedSeeded(Mixed, networks.Seeded):
    """Draws from its random numbers."""


COPIES = (
    ops.Expand,
    ops.Tile,
    ops.Resize,
    ops.Gather,
    ops.Pad,
    ops.Where,
    ops.Trilu,
    ops.Clip,
    ops.HardSigmoid,
)


def integers(s: Any, *values: int) -> str:
    return str(s.builder.constant(np.array(values, np.int64)))


def number(s: Any, value: float) -> str:
    return str(s.builder.constant(np.float64(value)))


def different(s: Any, x: str) -> str:
    """``x`` with random numbers added to every element."""
    if x not in s.tied:
        return x
    y = s.add(ops.Add, x, s.parameter(*s.shapes[x]), shape=s.shapes[x])
    s.tied.discard(y)
    return str(y)


def operand(s: Any, shape: Shape, positive: bool = False) -> str:
    """A factor or summand: a parameter, a constant, something computed from constants, or fed.

    Any of its axes may be 1, leading ones may be missing.
    """
    axes = tuple(n if s.pick(0, 2) else 1 for n in shape)
    if s.pick(0, 3) == 0:
        axes = axes[s.pick(0, len(axes)) :]
    kind = s.one_of(["parameter", "parameter", "fed", "fed", "constant", "folded"])
    if kind == "parameter":
        return str(s.parameter(*axes, positive=positive))
    value = s.rng.standard_normal(axes)
    if positive:
        value = np.abs(value) + 0.5
    s.count += 1
    if kind == "fed":
        name = s.builder.input(f"fed{s.count}", np.float64, axes)
        s.fed[name] = value
        s.text.append(f"{name}{list(axes)} is fed")
        return str(name)
    name = s.builder.constant(value, f"constant{s.count}")
    if kind == "folded" and axes:
        order = list(range(len(axes)))[::-1]
        turned = s.builder.add(ops.Transpose, name, perm=order)
        name = s.builder.add(ops.Transpose, s.builder.add(ops.Mul, turned, turned), perm=order)
        if positive:
            name = s.builder.add(ops.Add, name, number(s, 0.5))
    s.text.append(f"{name}{list(axes)} is constant")
    return str(name)


def normal(axis: int, rank: int, s: Any) -> int:
    """An axis, counted from the front or from behind."""
    return axis - rank if s.coin() else axis


# -- elements that move ---------------------------------------------------------------------------------------------


def transpose(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    if len(shape) < 2:
        return None
    perm = list(range(len(shape)))
    # The images mostly stay in front.
    first = 1 if len(shape) > 2 and s.pick(0, 3) else 0
    rest = perm[first:]
    s_order = []
    while rest:
        s_order.append(rest.pop(s.pick(0, len(rest) - 1)))
    perm = perm[:first] + s_order
    return str(s.add(ops.Transpose, x, shape=tuple(shape[p] for p in perm), perm=tuple(perm)))


def factored(s: Any, total: int, rank: int) -> list[int]:
    """``rank`` sizes with the product ``total``."""
    sizes = []
    for _ in range(rank - 1):
        sizes.append(s.one_of([d for d in range(1, total + 1) if total % d == 0]))
        total //= sizes[-1]
    sizes.append(total)
    return sizes


def reshape(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    if not shape or math.prod(shape) > MOST:
        return None
    if s.pick(0, 3):
        wanted = [shape[0], *factored(s, math.prod(shape[1:]), s.pick(1, 3))]
    else:
        wanted = factored(s, math.prod(shape), s.pick(1, 4))
    given = list(wanted)
    if s.coin():
        given[s.pick(0, len(given) - 1)] = -1
    return str(s.add(ops.Reshape, x, integers(s, *given), shape=tuple(wanted)))


def picture(s: Any, x: str) -> str:
    """Any value as images with channels, rows and columns."""
    shape = s.shapes[x]
    if len(shape) == 4:
        return x
    images = shape[0] if shape else 1
    channels = [d for d in range(1, 9) if math.prod(shape) % (images * d) == 0]
    wanted = [images, s.one_of(channels)]
    wanted += factored(s, math.prod(shape) // math.prod(wanted), 2)
    if max(wanted[2:]) > 40 and s.coin():
        wanted[2:] = sorted(wanted[2:])
    return str(s.add(ops.Reshape, x, integers(s, *wanted), shape=tuple(wanted)))


def flatten(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    axis = s.one_of([1, 1, 1, *range(len(shape) + 1)])
    if axis > len(shape):
        return None
    return str(s.add(ops.Flatten, x, shape=(math.prod(shape[:axis]), math.prod(shape[axis:])), axis=axis))


def squeeze(s: Any, x: str) -> str | None:
    """An axis of 1 taken away or put in."""
    shape = list(s.shapes[x])
    ones = [i for i, n in enumerate(shape) if n == 1]
    if ones and (s.coin() or len(shape) > 3):
        axis = s.one_of(ones)
        rest = shape[:axis] + shape[axis + 1 :]
        return str(s.add(ops.Squeeze, x, integers(s, normal(axis, len(shape), s)), shape=tuple(rest)))
    if len(shape) > 3:
        return None
    axis = s.pick(0, len(shape))
    grown = [*shape[:axis], 1, *shape[axis:]]
    return str(s.add(ops.Unsqueeze, x, integers(s, normal(axis, len(grown), s)), shape=tuple(grown)))


def cut(s: Any, x: str) -> str | None:
    """Slice, with any starts, ends and steps, along some axes."""
    shape = list(s.shapes[x])
    axes = [i for i in range(len(shape)) if not s.pick(0, 1 if i else 4)]
    if not axes:
        return None
    starts, ends, steps = [], [], []
    for axis in axes:
        size, step = shape[axis], s.one_of([1, 1, 2, 3, -1, -1, -2])
        low, high = sorted((s.pick(0, size), s.pick(0, size)))
        high = max(high, low + 1) if low < size else size
        low = min(low, size - 1)
        begin, end = (low, high) if step > 0 else (high - 1, low - 1)
        kept = range(begin, end, step)
        if step < 0 and end < 0:
            end = -size - 1 - s.pick(0, 2)
        elif end == size and s.coin():
            end = size + s.pick(0, 5)
        elif s.coin() and end > 0:
            end = end - size if end != size else end
        starts.append(begin - size if s.coin() else begin)
        ends.append(end)
        steps.append(step)
        shape[axis] = len(kept)
    lists = [integers(s, *values) for values in (starts, ends, axes, steps)]
    s.text.append(f"Slice {starts} {ends} {axes} {steps}:")
    return str(s.add(ops.Slice, x, *lists, shape=tuple(shape)))


def parts(s: Any, x: str) -> str | None:
    """Split; some parts are joined again, in another order perhaps."""
    shape = s.shapes[x]
    axes = [i for i, n in enumerate(shape) if n > 1]
    if not axes:
        return None
    axis = s.one_of(axes)
    count = s.pick(2, min(3, shape[axis]))
    cuts: set[int] = set()
    while len(cuts) < count - 1:
        cuts.add(s.pick(1, shape[axis] - 1))
    edges = [0, *sorted(cuts), shape[axis]]
    lengths = [b - a for a, b in itertools.pairwise(edges)]
    names = s.builder.add(
        ops.Split, x, integers(s, *lengths), outputs=count, axis=normal(axis, len(shape), s)
    )
    for name, length in zip(names, lengths, strict=True):
        s.shapes[name] = (*shape[:axis], length, *shape[axis + 1 :])
        if x in s.tied:
            s.tied.add(name)
    s.text.append(f"{', '.join(names)} = Split({x}, {lengths}, axis={axis})")
    chosen = [s.one_of(names) for _ in range(s.pick(1, 3))]
    if len(chosen) == 1:
        return str(chosen[0])
    if len({s.shapes[name] for name in chosen}) == 1 and s.coin():
        return str(s.add(s.one_of([ops.Sum, ops.Mean]), tuple(chosen), shape=s.shapes[chosen[0]]))
    total = sum(s.shapes[name][axis] for name in chosen)
    return str(s.add(ops.Concat, tuple(chosen), shape=(*shape[:axis], total, *shape[axis + 1 :]), axis=axis))


def concat_any(s: Any, x: str) -> str | None:
    """A value beside an earlier one, or beside itself, along any axis."""
    shape = s.shapes[x]
    if not shape:
        return None
    axis = s.pick(0, len(shape) - 1)
    near = [
        v for v, o in s.shapes.items()
        if len(o) == len(shape) and o[:axis] == shape[:axis] and o[axis + 1 :] == shape[axis + 1 :]
    ]  # fmt: skip
    other = s.one_of(near)
    wanted = (*shape[:axis], shape[axis] + s.shapes[other][axis], *shape[axis + 1 :])
    if math.prod(wanted) > MOST:
        return None
    pair = (x, other) if s.coin() else (other, x)
    y = s.add(ops.Concat, pair, shape=wanted, axis=axis)
    s.tied.add(y)
    return str(y)


def pad(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    mode = s.one_of(["constant", "constant", "reflect", "edge", "wrap"])
    begin, end = [], []
    for axis, n in enumerate(shape):
        most = {"constant": 3, "edge": 3, "reflect": min(n - 1, 3), "wrap": min(n, 3)}[mode]
        least = -min(2, (n - 1) // 2) if mode == "constant" else 0
        some = s.pick(0, 1 if axis > 1 else 4) == 0
        begin.append(s.pick(least, most) if some else 0)
        end.append(s.pick(least, most) if some else 0)
    wanted = tuple(n + a + b for n, a, b in zip(shape, begin, end, strict=True))
    if math.prod(wanted) > MOST or not shape:
        return None
    value = number(s, s.one_of([0.0, 0.75])) if mode == "constant" and s.coin() else None
    s.text.append(f"pads {begin} {end}:")
    return str(s.add(ops.Pad, x, integers(s, *begin, *end), value, shape=wanted, mode=mode))


def resize(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    if len(shape) != 4:
        return None
    fields: dict[str, Any] = {"mode": s.one_of(["nearest", "nearest", "linear", "linear", "cubic"])}
    fields["coordinate_transformation_mode"] = s.one_of(
        ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
    )
    if fields["mode"] == "nearest":
        fields["nearest_mode"] = s.one_of(["round_prefer_floor", "floor", "ceil", "round_prefer_ceil"])
    if s.coin():
        factors = [s.one_of([1, 2, 2, 3, 0.5, 1.5]) for _ in range(2)]
        wanted = (*shape[:2], *(int(n * f) for n, f in zip(shape[2:], factors, strict=True)))
        scales = s.builder.constant(np.array([1, 1, *factors], np.float32))
        given = (None, scales, None)
    else:
        wanted = (*shape[:2], *(s.pick(max(n // 3, 1), 2 * n + 1) for n in shape[2:]))
        given = (None, None, integers(s, *wanted))
    if math.prod(wanted) > MOST or min(wanted) < 1:
        return None
    return str(s.add(ops.Resize, x, *given, shape=wanted, **fields))


def expand(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    wanted = [n if n > 1 else s.pick(1, 4) for n in shape]
    if len(shape) < 4 and not s.pick(0, 2):
        wanted = [s.pick(1, 3), *wanted]
    if math.prod(wanted) > MOST or not wanted:
        return None
    return str(s.add(ops.Expand, x, integers(s, *wanted), shape=tuple(wanted)))


def tile(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    repeats = [s.one_of([1, 1, 2, 3]) for _ in shape]
    wanted = tuple(n * k for n, k in zip(shape, repeats, strict=True))
    if math.prod(wanted) > MOST or not shape:
        return None
    return str(s.add(ops.Tile, x, integers(s, *repeats), shape=wanted))


def gather(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    if not shape:
        return None
    axis = s.pick(0, len(shape) - 1)
    size = shape[axis]
    kinds = {
        "one": np.array(s.pick(-size, size - 1)),
        "backwards": np.arange(size)[::-1],
        "odd": np.arange(size)[::2],
        "repeated": np.repeat(np.arange(size), 2),
        "twice": np.concatenate([np.arange(size), np.arange(size)]).reshape(2, size),
        "few": s.rng.integers(0, size, s.pick(1, 4)),
    }
    index = kinds[s.one_of(list(kinds))].astype(np.int64)
    wanted = (*shape[:axis], *index.shape, *shape[axis + 1 :])
    if math.prod(wanted) > MOST or len(wanted) > 5:
        return None
    s.text.append(f"indices {index.tolist()}:")
    return str(s.add(ops.Gather, x, s.builder.constant(index), shape=wanted, axis=axis))


def depth_and_space(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    if len(shape) != 4:
        return None
    n, c, h, w = shape
    size = s.one_of([2, 3])
    if c % (size * size) == 0 and s.coin():
        mode = s.one_of(["DCR", "CRD"])
        wanted = (n, c // size**2, h * size, w * size)
        return str(s.add(ops.DepthToSpace, x, shape=wanted, blocksize=size, mode=mode))
    if s.coin():
        filters = size**2 * s.pick(1, 2)
        x = s.add(ops.Conv, x, s.parameter(filters, c, 1, 1), shape=(n, filters, h, w), kernel_shape=(1, 1))
        mode, wanted = s.one_of(["DCR", "CRD"]), (n, filters // size**2, h * size, w * size)
        return str(s.add(ops.DepthToSpace, x, shape=wanted, blocksize=size, mode=mode))
    if h % size or w % size:
        return None
    return str(s.add(ops.SpaceToDepth, x, shape=(n, c * size**2, h // size, w // size), blocksize=size))


# -- products of matrices -------------------------------------------------------------------------------------------


def matmul(s: Any, x: str) -> str | None:
    """A value times a parameter, whose leading axes broadcast, or times itself turned round."""
    shape = s.shapes[x]
    if len(shape) < 2 or math.prod(shape) > 2000:
        return None
    lead, rows, depth = shape[:-2], shape[-2], shape[-1]
    kind = s.one_of(["right", "right", "left", "own", "stack", "vector"])
    if kind == "own":
        perm = (*range(len(lead)), len(shape) - 1, len(shape) - 2)
        turned = s.add(ops.Transpose, x, shape=(*lead, depth, rows), perm=perm)
        wanted = (*lead, rows, rows)
        if math.prod(wanted) > MOST:
            return None
        return str(s.add(ops.MatMul, x, turned, shape=wanted))
    if kind == "vector":
        return str(s.add(ops.MatMul, x, s.parameter(depth), shape=(*lead, rows)))
    size = s.pick(1, 20) if s.pick(0, 4) else s.pick(20, 70)
    some = tuple(n if s.coin() else 1 for n in lead)[s.pick(0, len(lead)) if lead else 0 :]
    if kind == "stack" and len(shape) < 4:
        some = (s.pick(1, 3), *(n if s.coin() else 1 for n in lead))
    full = np.broadcast_shapes(lead, some)
    if kind == "left":
        return str(s.add(ops.MatMul, s.parameter(*some, size, rows), x, shape=(*full, size, depth)))
    weight = s.add(
        ops.Mul, s.parameter(*some, depth, size), number(s, depth**-0.5), shape=(*some, depth, size)
    )
    return str(s.add(ops.MatMul, x, weight, shape=(*full, rows, size)))


def gemm(s: Any, x: str) -> str | None:
    if len(s.shapes[x]) != 2:
        x = flatten(s, x) or x
    shape = s.shapes[x]
    if len(shape) != 2 or max(shape) > 500:
        return None
    turned = s.pick(0, 3) == 0
    depth, rows = shape if turned else shape[::-1]
    size, other = s.pick(1, 20), s.pick(0, 1)
    weight = s.parameter(*((size, depth) if other else (depth, size)))
    bias = s.one_of([(), (size,), (1, size), (rows, 1), (rows, size), (1,), None])
    fields: dict[str, Any] = {"transA": int(turned), "transB": other}
    fields |= s.one_of([{}, {}, {"alpha": 0.5}, {"beta": 0.25}, {"alpha": -1.5, "beta": 2.0}, {"beta": 0.0}])
    c = s.parameter(*bias) if bias is not None else None
    return str(s.add(ops.Gemm, x, weight, c, shape=(rows, size), **fields))


def dense(s: Any, x: str) -> str | None:
    """A chain of fully connected layers."""
    if len(s.shapes[x]) != 2:
        shape = s.shapes[x]
        if not shape or math.prod(shape[1:]) > 1000:
            return None
        x = s.add(ops.Flatten, x, shape=(shape[0], math.prod(shape[1:])))
    for _ in range(s.pick(1, 3)):
        rows, depth = s.shapes[x]
        size, other = s.pick(1, 24), s.pick(0, 1)
        weight = s.parameter(*((size, depth) if other else (depth, size)))
        x = s.add(ops.Gemm, x, weight, s.parameter(size), shape=(rows, size), transB=other)
        kind = s.one_of([ops.Relu, ops.Tanh, ops.Sigmoid])
        x = s.add(kind, x, shape=s.shapes[x])
    return str(x)


def attention(s: Any, x: str) -> str | None:
    """softmax(q k^T / sqrt(d)) v over the positions, with one or two heads, masked perhaps."""
    shape = s.shapes[x]
    if len(shape) == 4:
        shape = (shape[0], shape[1], shape[2] * shape[3])
        x = s.add(ops.Reshape, x, integers(s, *shape), shape=shape)
        if s.coin():
            shape = (shape[0], shape[2], shape[1])
            x = s.add(ops.Transpose, x, shape=shape, perm=(0, 2, 1))
    if len(shape) != 3 or shape[1] > 30:
        return None
    n, t, d = shape
    heads, e = s.pick(1, 2), s.pick(1, 5)
    names = []
    for role in "qkv":
        y = s.add(ops.MatMul, x, s.parameter(d, heads * e), shape=(n, t, heads * e))
        if heads > 1:
            y = s.add(ops.Reshape, y, integers(s, 0, 0, heads, e), shape=(n, t, heads, e))
            perm = (0, 2, 3, 1) if role == "k" else (0, 2, 1, 3)
            size = (n, t, heads, e)
            y = s.add(ops.Transpose, y, shape=tuple(size[p] for p in perm), perm=perm)
        elif role == "k":
            y = s.add(ops.Transpose, y, shape=(n, e, t), perm=(0, 2, 1))
        names.append(y)
    lead = (n, heads) if heads > 1 else (n,)
    score = s.add(ops.MatMul, names[0], names[1], shape=(*lead, t, t))
    score = s.add(ops.Mul, score, number(s, e**-0.5), shape=(*lead, t, t))
    if s.pick(0, 2) == 0:
        mask = s.builder.constant(np.where(np.tri(t, dtype=bool), 0.0, -1e9))
        score = s.add(ops.Add, score, mask, shape=(*lead, t, t))
    share = s.add(ops.Softmax, score, shape=(*lead, t, t), axis=-1)
    y = s.add(ops.MatMul, share, names[2], shape=(*lead, t, e))
    if heads > 1:
        y = s.add(ops.Transpose, y, shape=(n, t, heads, e), perm=(0, 2, 1, 3))
        y = s.add(ops.Reshape, y, integers(s, 0, 0, -1), shape=(n, t, heads * e))
    if heads * e == d and s.coin():
        y = s.add(ops.Add, x, y, shape=(n, t, d))
    return str(y)


# -- sums and normalization -----------------------------------------------------------------------------------------


def softmax(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    if not shape:
        return None
    axis = s.pick(-len(shape), len(shape) - 1)
    y = s.add(s.one_of([ops.Softmax, ops.LogSoftmax]), x, shape=shape, axis=axis)
    if shape[axis] == 1:
        s.tied.add(y)
    return str(y)


REDUCTIONS = [
    ops.ReduceMean, ops.ReduceMean, ops.ReduceSum, ops.ReduceSum, ops.ReduceMax, ops.ReduceMin, ops.ReduceL2,
    ops.ReduceL1, ops.ReduceSumSquare, ops.ReduceLogSumExp,
]  # fmt: skip


def reduction(s: Any, x: str) -> str | None:
    """A reduction over any axes; what keeps its rank may go back onto the value."""
    shape = s.shapes[x]
    if not shape:
        return None
    kind = s.one_of(REDUCTIONS)
    if kind in (ops.ReduceMax, ops.ReduceMin):
        x = different(s, x)
    axes = [i for i in range(len(shape)) if s.coin()]
    keeps = s.pick(0, 1)
    over = axes or list(range(len(shape)))
    kept = tuple(1 if i in over else n for i, n in enumerate(shape))
    wanted = kept if keeps else tuple(n for i, n in enumerate(shape) if i not in over)
    given = integers(s, *(normal(a, len(shape), s) for a in axes)) if axes else None
    s.text.append(f"axes {axes}:")
    if kind is ops.ReduceL2 and math.prod(shape[i] for i in over) == 1:
        return None
    if kind is ops.ReduceLogSumExp and s.coin():
        kind = ops.ReduceLogSum
        x = s.add(ops.Add, s.add(ops.Mul, x, x, shape=shape), number(s, 0.3), shape=shape)
    y = s.add(kind, x, given, shape=wanted, keepdims=keeps)
    if keeps and s.coin():
        return str(s.add(s.one_of([ops.Add, ops.Sub, ops.Mul]), x, y, shape=shape))
    return str(y)


def global_pool(s: Any, x: str) -> str | None:
    if len(s.shapes[x]) not in (3, 4):
        return None
    x = different(s, x)
    shape = s.shapes[x]
    wanted = (*shape[:2], *(1,) * (len(shape) - 2))
    y = s.add(s.one_of([ops.GlobalMaxPool, ops.GlobalAveragePool]), x, shape=wanted)
    if s.coin():
        return str(s.add(s.one_of([ops.Add, ops.Sub, ops.Mul]), y, x, shape=shape))
    return str(y)


def standardization(s: Any, x: str) -> str | None:
    """Layer, group, instance, root-mean-square or batch normalisation."""
    shape = s.shapes[x]
    if len(shape) < 2:
        return None
    c, rest = shape[1], math.prod(shape[2:])
    kind = s.one_of(["layer", "layer", "group", "instance", "rms", "batch", "batch"])
    if kind in ("layer", "rms"):
        axis = s.pick(1 if math.prod(shape[1:]) > 3 else 0, len(shape) - 1)
        if math.prod(shape[axis:]) < 4:
            return None
        axis = normal(axis, len(shape), s)
        scale = s.parameter(*shape[axis:], positive=True)
        if kind == "layer":
            shift = s.parameter(*shape[axis:]) if s.coin() else None
            return str(
                s.add(
                    ops.LayerNormalization,
                    x,
                    scale,
                    shift,
                    shape=shape,
                    axis=axis,
                    epsilon=1e-2,
                    outputs=s.pick(1, 3),
                )
            )
        if s.builder.opset < 23:
            return None
        return str(s.add(ops.RMSNormalization, x, scale, shape=shape, axis=axis, epsilon=1e-2))
    if kind == "group":
        groups = s.one_of([g for g in range(1, c + 1) if c % g == 0])
        if c // groups * rest < 4:
            return None
        scale, shift = s.parameter(c, positive=True), s.parameter(c)
        return str(
            s.add(ops.GroupNormalization, x, scale, shift, shape=shape, num_groups=groups, epsilon=1e-2)
        )
    scale, shift = s.parameter(c, positive=True), s.parameter(c)
    if kind == "instance":
        if rest < 4 or len(shape) < 3:
            return None
        return str(s.add(ops.InstanceNormalization, x, scale, shift, shape=shape, epsilon=1e-2))
    if shape[0] * rest < 6:
        return None
    s.count += 1
    mean = s.builder.constant(s.rng.standard_normal(c) * 0.1, f"mean_{s.count}")
    variance = s.builder.constant(s.rng.uniform(0.5, 1.5, c), f"variance_{s.count}")
    return str(
        s.add(
            ops.BatchNormalization, x, scale, shift, mean, variance, shape=shape, follow_mode=s.coin(), epsilon=1e-2
        )
    )  # fmt: skip


# -- elementwise ----------------------------------------------------------------------------------------------------


def arithmetic(s: Any, x: str) -> str | None:
    shape = s.shapes[x]
    kind = s.one_of([ops.Add, ops.Sub, ops.Mul, ops.Div])
    if s.coin():
        same = [v for v, o in s.shapes.items() if o == shape]
        other = s.one_of(same)
        if kind is ops.Div:
            other = s.add(ops.Add, s.add(ops.Abs, other, shape=shape), number(s, 0.7), shape=shape)
    else:
        other = operand(s, shape, positive=kind is ops.Div)
        if kind is not ops.Div and s.coin():
            return str(s.add(kind, other, x, shape=shape))
    return str(s.add(kind, x, other, shape=shape))


def several(s: Any, x: str) -> str | None:
    """Sum, mean, maximum or minimum of up to four values."""
    kind = s.one_of([ops.Max, ops.Min, ops.Sum, ops.Mean])
    if kind in (ops.Max, ops.Min):
        x = different(s, x)
    shape = s.shapes[x]
    same = [v for v, o in s.shapes.items() if o == shape and v not in s.tied]
    values = [x]
    for _ in range(s.pick(0, 3)):
        values.insert(s.pick(0, len(values)), s.one_of(same) if same and s.coin() else operand(s, shape))
    return str(s.add(kind, tuple(values), shape=shape))


COMPARISONS = [ops.Greater, ops.Less, ops.GreaterOrEqual, ops.LessOrEqual]


def where(s: Any, x: str) -> str | None:
    x = different(s, x)
    shape = s.shapes[x]
    bound = operand(s, shape) if s.coin() else number(s, s.one_of([-0.3, 0.2]))
    holds = s.builder.add(s.one_of(COMPARISONS), x, bound)
    if s.pick(0, 2) == 0:
        other = s.builder.add(s.one_of(COMPARISONS), x, number(s, 0.6))
        holds = s.builder.add(s.one_of([ops.And, ops.Or, ops.Xor]), holds, other)
    if s.pick(0, 2) == 0:
        holds = s.builder.add(ops.Not, holds)
    s.text.append(f"{holds} is a condition on {x} and {bound}")
    same = [v for v, o in s.shapes.items() if o == shape]
    pair = [x, s.one_of(same) if s.coin() else operand(s, shape)]
    if s.coin():
        pair = pair[::-1]
    return str(s.add(ops.Where, holds, *pair, shape=shape))


def function(s: Any, x: str) -> str | None:
    """A function of every element, of arguments where it is smooth."""
    shape = s.shapes[x]

    def make(kind: Any, *inputs: Any, **fields: Any) -> str:
        return str(s.add(kind, *inputs, shape=shape, **fields))

    def above(x: str) -> str:
        square = make(ops.Mul, x, x) if s.coin() else make(ops.Abs, x)
        return make(ops.Add, square, number(s, 0.5))

    simple: list[tuple[Any, dict[str, Any]]] = [
        (ops.Relu, {}), (ops.Abs, {}), (ops.Neg, {}), (ops.Erf, {}), (ops.Softplus, {}), (ops.Softsign, {}),
        (ops.Tanh, {}), (ops.Sigmoid, {}), (ops.Elu, {"alpha": 0.7}), (ops.Selu, {}),
        (ops.ThresholdedRelu, {"alpha": 0.3}), (ops.HardSigmoid, {"alpha": 0.3}), (ops.HardSwish, {}),
        (ops.Mish, {}), (ops.Gelu, {}), (ops.Gelu, {"approximate": "tanh"}), (ops.LeakyRelu, {"alpha": 0.2}),
        (ops.Identity, {}), (ops.Dropout, {}),
    ]  # fmt: skip
    kind = s.one_of(
        ["simple"] * 6 + ["exp", "log", "sqrt", "reciprocal", "pow", "pow", "clip", "prelu", "steps"]
    )
    if kind == "simple":
        if s.builder.opset >= 24:
            simple += [(ops.Swish, {"alpha": 0.7})] * 3
        which, fields = s.one_of(simple)
        return make(which, x, **fields)
    if kind == "steps":
        x = different(s, x)
        y = make(s.one_of([ops.Floor, ops.Ceil, ops.Sign]), x)
        s.tied.add(y)
        return make(s.one_of([ops.Sub, ops.Mul]), x, y)
    if kind == "exp":
        return make(ops.Exp, make(ops.Tanh, x))
    if kind in ("log", "sqrt", "reciprocal"):
        return make({"log": ops.Log, "sqrt": ops.Sqrt, "reciprocal": ops.Reciprocal}[kind], above(x))
    if kind == "pow":
        exponent = s.one_of([2.0, 3.0, -1.0, 0.5, -0.5, 0.0, 1.0, 5.0])
        base = above(x) if exponent < 0 or exponent == 0.5 else make(ops.Tanh, x)
        if exponent == 0:
            s.tied.add(base)
        return make(ops.Pow, base, number(s, exponent))
    if kind == "clip":
        x = different(s, x)
        low, high = s.one_of([(-0.5, 0.9), (None, 0.4), (-0.2, None)])
        return make(ops.Clip, x, *(number(s, b) if b is not None else None for b in (low, high)))
    x = different(s, x)
    slope = tuple(n if s.coin() else 1 for n in shape)[s.pick(0, len(shape)) :]
    return make(ops.PRelu, x, s.parameter(*slope))


def cast_mask(s: Any, x: str) -> str | None:
    """A value times whether another one is positive, as a number."""
    x = different(s, x)
    holds = s.builder.add(ops.Greater, x, number(s, 0.1))
    s.text.append(f"{holds} = {x} > 0.1")
    mask = s.add(ops.CastLike, holds, x, shape=s.shapes[x])
    y = s.add(ops.Mul, x, mask, shape=s.shapes[x])
    s.tied.add(y)
    return str(y)


def conditions(s: Any, x: str) -> str | None:
    """What only few networks ask for: whether elements are numbers, are 0, or are equal."""
    shape = s.shapes[x]
    kind = s.one_of(["number", "zero", "equal"])
    if kind == "number":
        holds = s.builder.add(ops.Not, s.builder.add(ops.IsNaN, x))
    elif kind == "zero":
        x = s.add(ops.Relu, x, shape=shape)
        holds = s.builder.add(ops.Cast, x, to=9)
    else:
        x = s.add(ops.Relu, x, shape=shape)
        holds = s.builder.add(ops.Not, s.builder.add(ops.Equal, x, number(s, 0.0)))
    s.text.append(f"{holds} = {kind} {x}")
    return str(s.add(ops.Where, holds, x, operand(s, shape), shape=shape))


def of_shape(s: Any, x: str) -> str | None:
    """A value made as large as another one, by its shape."""
    shape = s.shapes[x]
    if not shape:
        return None
    wanted = s.builder.add(ops.Shape, x)
    other = s.parameter(*(n if s.coin() else 1 for n in shape))
    grown = s.add(ops.Expand, other, wanted, shape=shape)
    y = s.add(ops.Mul, x, grown, shape=shape)
    if s.coin():
        return str(y)
    count = s.builder.add(ops.CastLike, s.builder.add(ops.Size, x), x)
    s.text.append(f"{count} = Size({x})")
    return str(s.add(ops.Add, y, s.builder.add(ops.Reciprocal, count), shape=shape))


def triangle(s: Any, x: str) -> str | None:
    if len(s.shapes[x]) < 2:
        return None
    k = s.builder.constant(np.array(s.pick(-2, 2), np.int64)) if s.coin() else None
    return str(s.add(ops.Trilu, x, k, shape=s.shapes[x], upper=s.pick(0, 1)))


# -- blocks of well-known networks ----------------------------------------------------------------------------------


def as_picture(s: Any, x: str) -> str | None:
    x = picture(s, x)
    return x if max(s.shapes[x][2:]) <= 40 and s.shapes[x][0] <= 40 else None


def convolved(s: Any, x: str, filters: int, size: int = 3, group: int = 1, bias: bool = True) -> str:
    n, c, h, w = s.shapes[x]
    weight = s.parameter(filters, c // group, size, size)
    b = s.parameter(filters) if bias else None
    return str(
        s.add(
            ops.Conv, x, weight, b, shape=(n, filters, h, w), kernel_shape=(size, size), pads=(size // 2,) * 4,
            group=group,
        )
    )  # fmt: skip


def residual(s: Any, x: str) -> str | None:
    """Two convolutions with batch normalisation, and a way past them."""
    picked = as_picture(s, x)
    if picked is None:
        return None
    x = picked
    c = s.shapes[x][1]
    y = convolved(s, x, s.pick(1, 6), bias=False)
    y = networks.normalization(s, y) or y
    y = s.add(ops.Relu, y, shape=s.shapes[y])
    y = convolved(s, y, c, bias=s.coin())
    y = networks.normalization(s, y) or y
    y = s.add(ops.Add, *((x, y) if s.coin() else (y, x)), shape=s.shapes[x])
    return str(s.add(ops.Relu, y, shape=s.shapes[y]))


def separable(s: Any, x: str) -> str | None:
    """A convolution of every channel by itself, one of every pixel by itself."""
    picked = as_picture(s, x)
    if picked is None:
        return None
    c = s.shapes[picked][1]
    y = convolved(s, picked, c * s.pick(1, 2), s.one_of([3, 5]), group=c)
    y = s.add(s.one_of([ops.HardSwish, ops.Relu, ops.Gelu]), different(s, y), shape=s.shapes[y])
    return convolved(s, y, s.pick(1, 9), 1)


def excitation(s: Any, x: str) -> str | None:
    """Channels scaled by what two small layers make of their means."""
    picked = as_picture(s, x)
    if picked is None:
        return None
    n, c, h, w = s.shapes[picked]
    if s.coin():
        y = s.add(ops.GlobalAveragePool, picked, shape=(n, c, 1, 1))
        y = s.add(ops.Flatten, y, shape=(n, c))
    else:
        y = s.add(ops.ReduceMean, picked, integers(s, 2, 3), shape=(n, c), keepdims=0)
    hidden = s.pick(1, 5)
    y = s.add(ops.Gemm, y, s.parameter(c, hidden), s.parameter(hidden), shape=(n, hidden))
    y = s.add(ops.Relu, y, shape=(n, hidden))
    y = s.add(ops.Gemm, y, s.parameter(c, hidden), s.parameter(c), shape=(n, c), transB=1)
    y = s.add(ops.Sigmoid, y, shape=(n, c))
    if s.coin():
        y = s.add(ops.Reshape, y, integers(s, n, c, 1, 1), shape=(n, c, 1, 1))
    else:
        y = s.add(ops.Unsqueeze, y, integers(s, 2, 3), shape=(n, c, 1, 1))
    return str(s.add(ops.Mul, picked, y, shape=(n, c, h, w)))


def modulation(s: Any, x: str) -> str | None:
    """Channels scaled and shifted by a layer of what is fed for every image."""
    picked = as_picture(s, x)
    if picked is None:
        return None
    n, c = s.shapes[picked][:2]
    size = s.pick(1, 6)
    s.count += 1
    fed = s.builder.input(f"fed{s.count}", np.float64, (n, size))
    s.fed[fed] = s.rng.standard_normal((n, size))
    y = s.add(ops.Gemm, fed, s.parameter(size, 2 * c), s.parameter(2 * c), shape=(n, 2 * c))
    y = s.add(ops.Reshape, y, integers(s, 0, 2 * c, 1, 1), shape=(n, 2 * c, 1, 1))
    scale, shift = s.builder.add(ops.Split, y, integers(s, c, c), outputs=2, axis=1)
    y = s.add(ops.Mul, picked, scale, shape=s.shapes[picked])
    return str(s.add(ops.Add, y, shift, shape=s.shapes[picked]))


def channels_last(s: Any, x: str) -> str | None:
    """Layer normalisation over the channels, and layers of every pixel."""
    picked = as_picture(s, x)
    if picked is None or s.shapes[picked][1] < 3:
        return None
    n, c, h, w = s.shapes[picked]
    y = s.add(ops.Transpose, picked, shape=(n, h, w, c), perm=(0, 2, 3, 1))
    y = s.add(
        ops.LayerNormalization, y, s.parameter(c, positive=True), s.parameter(c), shape=(n, h, w, c), axis=-1,
        epsilon=1e-2,
    )  # fmt: skip
    size = s.pick(1, 9)
    y = s.add(ops.MatMul, y, s.parameter(c, size), shape=(n, h, w, size))
    y = s.add(ops.Add, y, s.parameter(size), shape=(n, h, w, size))
    y = s.add(ops.Gelu, y, shape=(n, h, w, size))
    y = s.add(ops.MatMul, y, s.parameter(size, c), shape=(n, h, w, c))
    y = s.add(ops.Transpose, y, shape=(n, c, h, w), perm=(0, 3, 1, 2))
    return str(s.add(ops.Add, picked, y, shape=(n, c, h, w)))


def transformer(s: Any, x: str) -> str | None:
    """Patches of a picture, attention between them, and layers of each."""
    picked = as_picture(s, x)
    if picked is None:
        return None
    n, c, h, w = s.shapes[picked]
    size = s.one_of([k for k in (1, 2, 3, 4) if h % k == 0 and w % k == 0])
    t, d = h * w // size**2, s.pick(4, 9)
    if t > 30:
        return None
    y = s.add(
        ops.Conv, picked, s.parameter(d, c, size, size), s.parameter(d), shape=(n, d, h // size, w // size),
        kernel_shape=(size, size), strides=(size, size),
    )  # fmt: skip
    y = s.add(ops.Reshape, y, integers(s, n, d, t), shape=(n, d, t))
    y = s.add(ops.Transpose, y, shape=(n, t, d), perm=(0, 2, 1))
    y = s.add(ops.Add, y, s.parameter(1, t, d), shape=(n, t, d))

    def standardized(y: str) -> str:
        scale, shift = s.parameter(d, positive=True), s.parameter(d)
        return str(s.add(ops.LayerNormalization, y, scale, shift, shape=(n, t, d), axis=-1, epsilon=1e-2))

    z = attention(s, standardized(y))
    if z is not None and s.shapes[z] == (n, t, d):
        y = s.add(ops.Add, y, z, shape=(n, t, d))
    z, hidden = standardized(y), s.pick(1, 12)
    z = s.add(ops.MatMul, z, s.parameter(d, hidden), shape=(n, t, hidden))
    z = s.add(ops.Gelu, s.add(ops.Add, z, s.parameter(hidden), shape=(n, t, hidden)), shape=(n, t, hidden))
    z = s.add(ops.MatMul, z, s.parameter(hidden, d), shape=(n, t, d))
    y = s.add(ops.Add, y, z, shape=(n, t, d))
    if s.coin():
        return str(s.add(ops.ReduceMean, y, integers(s, 1), shape=(n, d), keepdims=0))
    return str(y)


MOVES = [
    transpose, transpose, reshape, reshape, flatten, squeeze, cut, cut, parts, parts, concat_any, pad, pad, resize,
    resize, expand, tile, gather, depth_and_space, triangle,
]  # fmt: skip
PRODUCTS = [matmul, matmul, matmul, gemm, gemm, dense, attention, attention]
SUMS = [
    softmax, softmax, reduction, reduction, reduction, global_pool, standardization, standardization, standardization,
]  # fmt: skip
BLOCKS = [residual, separable, excitation, modulation, channels_last, transformer]
ELEMENTWISE = [
    arithmetic, arithmetic, arithmetic, several, several, where, function, function, function, cast_mask, conditions,
    of_shape,
]  # fmt: skip


def ending(s: Any, x: str) -> None:
    """A loss of any kind, or a sum of two."""
    losses = [
        loss(s, s.one_of(list(s.shapes)) if i else x, f"loss{i}") for i in range(1 if s.pick(0, 2) else 2)
    ]
    if len(losses) == 2:
        s.builder.output(s.builder.add(ops.Add, *losses, outputs=["loss"]))
    else:
        s.builder.output(s.builder.add(ops.Mul, losses[0], number(s, 0.5), outputs=["loss"]))


def loss(s: Any, x: str, name: str) -> str:
    shape = s.shapes[x]
    kind = s.one_of(["cross", "cross", "likelihood", "squares", "reduce", "reduce", "cotangent"])
    reduction = s.one_of(["mean", "mean", "sum"])
    if kind in ("cross", "likelihood") and 2 <= len(shape) <= 5:
        classes, pixels = shape[1], (shape[0], *shape[2:])
        labels = s.rng.integers(0, classes, pixels)
        fields: dict[str, Any] = {"reduction": reduction}
        weight = s.builder.constant(s.rng.uniform(0.5, 2.0, classes)) if s.coin() else None
        if classes > 1 and s.coin():
            fields["ignore_index"] = s.one_of([-100, 0])
            labels[s.rng.random(pixels) < 0.3] = fields["ignore_index"]
            labels.flat[0] = classes - 1
        s.builder.input(f"label_{name}", np.int64, pixels)
        s.fed[f"label_{name}"] = labels
        s.text.append(f"{name} = {kind}({x}, {fields}, weight={weight is not None})")
        if kind == "cross":
            outputs = s.pick(1, 2)
            found = s.builder.add(
                ops.SoftmaxCrossEntropyLoss,
                x,
                f"label_{name}",
                weight,
                outputs=[name, f"{name}_p"][:outputs],
                **fields,
            )
            if outputs == 2 and s.coin():
                s.builder.output(f"{name}_p")
            return str(found if outputs == 1 else found[0])
        x = s.add(ops.LogSoftmax, x, shape=shape, axis=1)
        return str(
            s.builder.add(ops.NegativeLogLikelihoodLoss, x, f"label_{name}", weight, outputs=[name], **fields)
        )
    if kind == "squares":
        target = s.builder.input(f"target_{name}", np.float64, shape)
        s.fed[target] = s.rng.standard_normal(shape)
        s.text.append(f"{name} = MeanSquaredError({x}, {reduction})")
        return str(s.builder.add(MeanSquaredError, x, target, outputs=[name], reduction=reduction))
    if kind == "cotangent":
        y = s.add(ops.Mul, x, operand(s, shape), shape=shape)
        s.text.append(f"{name} = ReduceSum({y})")
        return str(s.builder.add(ops.ReduceSum, y, keepdims=0, outputs=[name]))
    which = s.one_of([ops.ReduceMean, ops.ReduceSum, ops.ReduceLogSumExp, ops.ReduceSumSquare])
    s.text.append(f"{name} = {which.__name__}({x})")
    return str(s.builder.add(which, x, keepdims=0, outputs=[name]))


def known_step(s: Any, x: str) -> str | None:
    """A step of test_random_networks.py, which takes all values for pictures of the same images."""
    everything = s.shapes
    s.shapes = {v: o for v, o in everything.items() if len(o) == 4 and o[0] == everything[x][0]}
    y = s.one_of(networks.PER_IMAGE)(s, x)
    everything.update(s.shapes)
    s.shapes = everything
    return None if y is None else str(y)


def network(s: Any, steps: int, batch: int = 0, old: int = 3) -> tuple[Any, dict[str, np.ndarray], str]:
    """A model with a "loss", what to feed, and the network as text.

    Args:
        s: the sketch.
        steps: at most.
        batch: images; 0 for any number.
        old: of ten steps how many are those of test_random_networks.py.
    """
    shape = (batch or s.pick(1, 9), s.pick(1, 4), s.pick(1, 9), s.pick(1, 14))
    kind = s.pick(0, 5)
    if kind == 0:
        shape = (batch or s.pick(1, 3), s.pick(1, 3), s.pick(1, 12), s.pick(14, 40))
    if kind == 1:
        shape = (shape[0], s.pick(1, 40)) if s.coin() else (shape[0], s.pick(1, 12), s.pick(1, 17))
    x = s.builder.input("x", np.float64, shape)
    s.shapes[x] = shape
    s.fed["x"] = s.rng.standard_normal(shape)
    s.text.append(f"x{list(shape)}, opset {s.builder.opset}")
    outputs = []
    for _ in range(s.pick(1, steps)):
        source = x if s.pick(0, 5) else s.one_of(list(s.shapes))
        if s.pick(0, 9) < old:
            source = different(s, picture(s, source) if s.shapes[source] else source)
            if len(s.shapes[source]) != 4 or max(s.shapes[source][2:]) > 40 or s.shapes[source][0] > 40:
                continue
            x = known_step(s, source) or x
        else:
            steps_of = s.one_of([MOVES, MOVES, PRODUCTS, SUMS, ELEMENTWISE, ELEMENTWISE, BLOCKS])
            x = s.one_of(steps_of)(s, source) or x
        if not s.pick(0, 5) and x not in s.builder._graph.inputs:
            outputs.append(x)
    for name in dict.fromkeys(outputs):
        s.builder.output(name)
        s.text.append(f"output {name}")
    ending(s, x)
    return s.builder.build(), s.fed, "\n".join(s.text)


def seeded(seed: int, steps: int = 7, batch: int = 0, old: int = 3) -> tuple[Any, dict[str, np.ndarray], str]:
    """The random network number ``seed``."""
    builder = Builder("random", opset=24 if seed % 4 == 0 else 21)
    return network(MixedSeeded(None, np.random.default_rng(seed), builder), steps, batch, old)
