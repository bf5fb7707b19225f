"""Random networks: outputs, all gradients and running statistics are those of the numpy backend in float64."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import meta500
from meta500.graph import Builder, ops

PROCESSORS = len(os.sched_getaffinity(0))
# Below, at and beyond one vector, and what no power of two divides.
WIDTHS = [*range(1, 41)]


@dataclass
class Sketch:
    """A network in the making: its builder, the shapes of its values, and what is fed."""

    draw: Any
    rng: np.random.Generator
    builder: Builder
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    fed: dict[str, np.ndarray] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    count: int = 0

    def pick(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def one_of(self, values: Any) -> Any:
        return self.draw(st.sampled_from(values))

    def coin(self) -> bool:
        return self.draw(st.booleans())

    def parameter(self, *shape: int, positive: bool = False) -> str:
        self.count += 1
        scale = 1 / math.sqrt(max(math.prod(shape[1:]), 1))
        value = self.rng.standard_normal(shape) * scale
        return self.builder.parameter(f"p{self.count}", np.abs(value) + 0.5 if positive else value)

    def add(self, kind: Any, *inputs: Any, shape: tuple[int, ...], **fields: Any) -> str:
        follow = fields.pop("follow_mode", False)
        outputs = fields.pop("outputs", 1)
        name = self.builder.add(kind, *inputs, follow_mode=follow, outputs=outputs, **fields)
        name = name if isinstance(name, str) else name[0]
        self.shapes[name] = shape
        given = ", ".join(str(i) for i in inputs)
        self.text.append(f"{name}{list(shape)} = {kind.__name__}({given}, {fields})")
        return name


def windows(s: Sketch, size: int, pooling: bool) -> tuple[int, int, int, int, int] | None:
    """Kernel, stride, dilation and pads along one axis of ``size`` elements, if any fit."""
    kernel = s.pick(1, 3 if pooling else 5)
    dilation = s.pick(1, 2) if not pooling else 1
    reach = dilation * (kernel - 1) + 1
    begin, end = (s.pick(0, min(kernel - 1, 3)) for _ in range(2))
    return (kernel, s.pick(1, 3), dilation, begin, end) if size + begin + end >= reach else None


def convolution(s: Sketch, x: str) -> str | None:
    n, c, h, w = s.shapes[x]
    group = s.one_of([g for g in (1, 2, 3, c) if c % g == 0])
    filters = group * s.pick(1, 4)
    rows, columns = windows(s, h, False), windows(s, w, False)
    if rows is None or columns is None:
        return None
    (kh, sh, dh, top, bottom), (kw, sw, dw, left, right) = rows, columns
    size = [
        (h + top + bottom - dh * (kh - 1) - 1) // sh + 1,
        (w + left + right - dw * (kw - 1) - 1) // sw + 1,
    ]
    bias = s.parameter(filters) if s.coin() else None
    weight = s.parameter(filters, c // group, kh, kw)
    return s.add(
        ops.Conv, x, weight, bias, shape=(n, filters, *size), group=group, kernel_shape=(kh, kw),
        strides=(sh, sw), dilations=(dh, dw), pads=(top, left, bottom, right),
    )  # fmt: skip


def transposed_convolution(s: Sketch, x: str) -> str | None:
    n, c, h, w = s.shapes[x]
    group = s.one_of([g for g in (1, 2, c) if c % g == 0])
    filters = s.pick(1, 3)
    kernel, stride = (s.pick(1, 3), s.pick(1, 3)), (s.pick(1, 3), s.pick(1, 3))
    dilation = (s.pick(1, 2), s.pick(1, 2))
    pads = [s.pick(0, 1) for _ in range(4)]
    extra = tuple(s.pick(0, max(a, d) - 1) for a, d in zip(stride, dilation, strict=True))
    size = [
        (m - 1) * stride[i] + dilation[i] * (kernel[i] - 1) + 1 + extra[i] - pads[i] - pads[i + 2]
        for i, m in enumerate((h, w))
    ]
    if min(size) < 1 or max(size) > 60:
        return None
    bias = s.parameter(filters * group) if s.coin() else None
    return s.add(
        ops.ConvTranspose, x, s.parameter(c, filters, *kernel), bias, shape=(n, filters * group, *size),
        group=group, kernel_shape=kernel, strides=stride, dilations=dilation, pads=tuple(pads),
        output_padding=extra,
    )  # fmt: skip


def doubling(s: Sketch, x: str) -> str | None:
    """The transposed convolution of U-Nets."""
    n, c, h, w = s.shapes[x]
    if max(h, w) > 20:
        return None
    filters = s.pick(1, 4)
    return s.add(
        ops.ConvTranspose, x, s.parameter(c, filters, 2, 2), s.parameter(filters),
        shape=(n, filters, 2 * h, 2 * w), kernel_shape=(2, 2), strides=(2, 2),
    )  # fmt: skip


def same_convolution(s: Sketch, x: str) -> str | None:
    """The padded convolution of U-Nets, with ReLU."""
    n, c, h, w = s.shapes[x]
    filters, size = s.pick(1, 5), s.one_of([1, 3, 5])
    y = s.add(
        ops.Conv, x, s.parameter(filters, c, size, size), s.parameter(filters), shape=(n, filters, h, w),
        kernel_shape=(size, size), pads=(size // 2,) * 4,
    )  # fmt: skip
    return s.add(ops.Relu, y, shape=s.shapes[y])


def pool(s: Sketch, x: str) -> str | None:
    n, c, h, w = s.shapes[x]
    rows, columns = windows(s, h, True), windows(s, w, True)
    if rows is None or columns is None:
        return None
    ceil = s.pick(0, 1)
    size, pads = [], []
    for m, (kernel, stride, _, begin, end) in zip((h, w), (rows, columns), strict=True):
        span = m + begin + end - kernel
        found = (-(-span // stride) if ceil else span // stride) + 1
        # Where the last window begins behind the input, type inference and the operator differ.
        if ceil and (found - 1) * stride >= m + begin:
            return None
        size.append(found)
        pads.append((begin, end))
        if any(i * stride - begin + kernel <= 0 or i * stride - begin >= m for i in range(found)):
            return None
    if min(size) < 1:
        return None
    common = {
        "kernel_shape": (rows[0], columns[0]), "strides": (rows[1], columns[1]), "ceil_mode": ceil,
        "pads": (pads[0][0], pads[1][0], pads[0][1], pads[1][1]),
    }  # fmt: skip
    if s.coin():
        return s.add(ops.MaxPool, x, shape=(n, c, *size), **common)
    return s.add(ops.AveragePool, x, shape=(n, c, *size), count_include_pad=s.pick(0, 1), **common)


def halving(s: Sketch, x: str) -> str | None:
    """The pooling of U-Nets."""
    n, c, h, w = s.shapes[x]
    if min(h, w) < 2:
        return None
    kind = s.one_of([ops.MaxPool, ops.AveragePool])
    return s.add(kind, x, shape=(n, c, h // 2, w // 2), kernel_shape=(2, 2), strides=(2, 2))


def activation(s: Sketch, x: str) -> str | None:
    kind, fields = s.one_of(
        [
            (ops.Relu, {}),
            (ops.LeakyRelu, {"alpha": 0.125}),
            (ops.Sigmoid, {}),
            (ops.Tanh, {}),
            (ops.Clip, None),
        ]
    )
    if fields is None:
        low, high = s.builder.constant(np.float64(-0.75)), s.builder.constant(np.float64(1.25))
        return s.add(kind, x, low, high, shape=s.shapes[x])
    return s.add(kind, x, shape=s.shapes[x], **fields)


def normalization(s: Sketch, x: str) -> str | None:
    n, c, h, w = s.shapes[x]
    if n * h * w < 6:
        return None
    mean = s.builder.constant(s.rng.standard_normal(c) * 0.1, f"mean{s.count}")
    variance = s.builder.constant(s.rng.uniform(0.5, 1.5, c), f"variance{s.count}")
    trains = s.coin()
    return s.add(
        ops.BatchNormalization, x, s.parameter(c, positive=True), s.parameter(c), mean, variance,
        shape=s.shapes[x], follow_mode=trains, epsilon=1e-3,
    )  # fmt: skip


def broadcast(s: Sketch, x: str) -> str | None:
    c, h, w = s.shapes[x][1:]
    kind = s.one_of([ops.Add, ops.Mul, ops.Sub])
    shape = s.one_of([(1, c, 1, 1), (c, 1, 1), (1, 1, h, w), (h, 1), (w,), (1,), (1, c, h, w)])
    other = s.parameter(*shape)
    pair = (x, other) if s.coin() else (other, x)
    return s.add(kind, *pair, shape=s.shapes[x])


def join(s: Sketch, x: str) -> str | None:
    """Adds, multiplies or concatenates an earlier value of the same size, itself perhaps."""
    n, c, h, w = s.shapes[x]
    near = [v for v, shape in s.shapes.items() if len(shape) == 4 and shape[2:] == (h, w)]
    other = s.one_of(near)
    if s.shapes[other][1] == c and s.coin():
        return s.add(s.one_of([ops.Add, ops.Mul]), x, other, shape=s.shapes[x])
    if c + s.shapes[other][1] > 12:
        return None
    return s.add(ops.Concat, (x, other), shape=(n, c + s.shapes[other][1], h, w), axis=1)


def mean_of_image(s: Sketch, x: str) -> str | None:
    """A picture shifted or scaled by its own means, as attention over channels does."""
    n, c, *_ = s.shapes[x]
    mean = s.add(ops.GlobalAveragePool, x, shape=(n, c, 1, 1))
    if s.coin():
        mean = s.add(ops.Sigmoid, mean, shape=(n, c, 1, 1))
    return s.add(s.one_of([ops.Add, ops.Mul, ops.Sub]), x, mean, shape=s.shapes[x])


def factor_of_image(s: Sketch, x: str) -> str | None:
    """A picture shifted or scaled by a number that is fed for every image (and channel)."""
    n, c, *_ = s.shapes[x]
    s.count += 1
    shape = (n, s.one_of([1, c]), 1, 1)
    factor = s.builder.input(f"factor{s.count}", np.float64, shape)
    s.fed[factor] = s.rng.standard_normal(shape)
    return s.add(s.one_of([ops.Add, ops.Mul]), x, factor, shape=s.shapes[x])


def normalized_image(s: Sketch, x: str) -> str | None:
    _, c, h, w = s.shapes[x]
    if h * w < 6:
        return None
    scale, shift = s.parameter(c, positive=True), s.parameter(c)
    return s.add(ops.InstanceNormalization, x, scale, shift, shape=s.shapes[x], epsilon=1e-2)


class Seeded(Sketch):
    """A sketch that draws from its random numbers instead of from hypothesis."""

    def pick(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def one_of(self, values: Any) -> Any:
        values = list(values)
        return values[int(self.rng.integers(len(values)))]

    def coin(self) -> bool:
        return bool(self.rng.integers(2))


STEPS = [
    convolution, convolution, same_convolution, same_convolution, transposed_convolution, doubling, pool, halving,
    activation, normalization, broadcast, join, join,
]  # fmt: skip


# With sums over the pixels of one image beside those over all images.
PER_IMAGE = [
    *STEPS, mean_of_image, mean_of_image, factor_of_image, factor_of_image, factor_of_image, normalized_image,
]  # fmt: skip


def ending(s: Sketch, x: str) -> None:
    """The loss: softmax cross entropy of pixels or of images."""
    n, c = s.shapes[x][:2]
    kind = s.one_of(["pixels", "pixels", "images", "average", "squares"])
    if kind == "squares":
        s.builder.output(x)
        target = s.builder.input("target", np.float64, s.shapes[x])
        s.fed["target"] = s.rng.standard_normal(s.shapes[x])
        difference = s.add(ops.Sub, x, target, shape=s.shapes[x])
        square = s.add(ops.Mul, difference, difference, shape=s.shapes[x])
        s.builder.output(s.builder.add(ops.ReduceMean, square, keepdims=0, outputs=["loss"]))
        return
    if kind != "pixels":
        if kind == "average":
            x = s.add(ops.GlobalAveragePool, x, shape=(n, c, 1, 1))
        features = math.prod(s.shapes[x][1:])
        if features > 2000:
            x = s.add(ops.GlobalAveragePool, x, shape=(n, c, 1, 1))
            features = c
        x = s.add(ops.Flatten, x, shape=(n, features))
        classes = s.pick(1, 11)
        transpose = s.pick(0, 1)
        weight = s.parameter(*((classes, features) if transpose else (features, classes)))
        x = s.add(ops.Gemm, x, weight, s.parameter(classes), shape=(n, classes), transB=transpose)
    classes, pixels = s.shapes[x][1], (n, *s.shapes[x][2:])
    s.builder.output(x)
    labels = s.rng.integers(0, classes, pixels)
    fields: dict[str, Any] = {"reduction": s.one_of(["mean", "mean", "sum"])}
    weight = None
    if s.coin():
        weight = s.builder.constant(s.rng.uniform(0.5, 2.0, classes))
    if s.coin():
        fields["ignore_index"] = s.one_of([-100, 0])
        labels[s.rng.random(pixels) < 0.3] = fields["ignore_index"]
        labels.flat[0] = classes - 1
        if fields["ignore_index"] == 0 and classes == 1:
            fields["ignore_index"] = -100
    s.builder.input("label", np.int64, pixels)
    s.fed["label"] = labels
    s.text.append(f"loss = SoftmaxCrossEntropyLoss({x}, {fields}, weight={weight is not None})")
    s.builder.output(
        s.builder.add(ops.SoftmaxCrossEntropyLoss, x, "label", weight, outputs=["loss"], **fields)
    )


def unet(s: Sketch) -> tuple[Any, dict[str, np.ndarray], str]:
    """A U-Net: wide enough and with rows long enough for every way in which convolutions are computed."""
    depth = s.pick(1, 2)
    step, base = 2**depth, s.one_of([1, 2, 3, 4, 5, 8, 12, 16])
    shape = (s.pick(1, 5), s.pick(1, 4), step * s.pick(1, 16), step * s.pick(1, 32))
    x = s.builder.input("x", np.float64, shape)
    s.shapes[x] = shape
    s.fed["x"] = s.rng.standard_normal(shape)
    s.text.append(f"x{list(shape)}")

    def convolve(x: str, filters: int) -> str:
        n, c, h, w = s.shapes[x]
        bias = s.parameter(filters) if s.pick(0, 3) else None
        weight = s.parameter(filters, c, 3, 3)
        y = s.add(ops.Conv, x, weight, bias, shape=(n, filters, h, w), kernel_shape=(3, 3), pads=(1,) * 4)
        if not s.pick(0, 4):
            y = normalization(s, y) or y
        return s.add(ops.Relu, y, shape=s.shapes[y])

    skips = []
    for level in range(depth):
        for _ in range(s.pick(1, 2)):
            x = convolve(x, base * 2**level)
        skips.append(x)
        x = halving(s, x) or x
    x = convolve(x, base * 2**depth)
    for level in reversed(range(depth)):
        n, c, h, w = s.shapes[x]
        filters = base * 2**level
        x = s.add(
            ops.ConvTranspose, x, s.parameter(c, filters, 2, 2), s.parameter(filters),
            shape=(n, filters, 2 * h, 2 * w), kernel_shape=(2, 2), strides=(2, 2),
        )  # fmt: skip
        if s.pick(0, 3):
            pair = (skips[level], x) if s.coin() else (x, skips[level])
            x = s.add(ops.Concat, pair, shape=(n, 2 * filters, 2 * h, 2 * w), axis=1)
        else:
            x = s.add(ops.Add, x, skips[level], shape=s.shapes[x])
        x = convolve(x, filters)
    n, c, h, w = s.shapes[x]
    classes = s.pick(2, 4)
    x = s.add(ops.Conv, x, s.parameter(classes, c, 1, 1), s.parameter(classes), shape=(n, classes, h, w))
    s.builder.output(x)
    s.fed["label"] = s.rng.integers(0, classes, (n, h, w))
    s.builder.input("label", np.int64, (n, h, w))
    s.builder.output(s.builder.add(ops.SoftmaxCrossEntropyLoss, x, "label", outputs=["loss"]))
    return s.builder.build(), s.fed, "\n".join(s.text)


def seeded_unet(seed: int) -> tuple[Any, dict[str, np.ndarray], str]:
    """The random U-Net number ``seed``."""
    return unet(Seeded(None, np.random.default_rng(seed), Builder("random")))


@st.composite
def unets(draw: Any) -> tuple[Any, dict[str, np.ndarray], str]:
    """A U-Net as :func:`networks` gives networks."""
    return unet(Sketch(draw, np.random.default_rng(draw(st.integers(0, 2**16))), Builder("random")))


@st.composite
def networks(
    draw: Any, steps: int = 6, batch: int = 0, kinds: Any = STEPS
) -> tuple[Any, dict[str, np.ndarray], str]:
    """A model with an output and a "loss", what to feed, and the network as text."""
    sketch = Sketch(draw, np.random.default_rng(draw(st.integers(0, 2**16))), Builder("random"))
    return network(sketch, steps, batch, kinds)


def seeded(
    seed: int, steps: int = 6, batch: int = 0, kinds: Any = STEPS
) -> tuple[Any, dict[str, np.ndarray], str]:
    """The random network number ``seed``."""
    return network(Seeded(None, np.random.default_rng(seed), Builder("random")), steps, batch, kinds)


def network(
    s: Sketch, steps: int, batch: int = 0, kinds: Any = STEPS
) -> tuple[Any, dict[str, np.ndarray], str]:
    shape = (
        batch or s.pick(1, 5),
        s.pick(1, 4),
        s.pick(1, 14),
        s.one_of([*range(1, 15)] if batch else WIDTHS),
    )
    x = s.builder.input("x", np.float64, shape)
    s.shapes[x] = shape
    s.fed["x"] = s.rng.standard_normal(shape)
    s.text.append(f"x{list(shape)}")
    for _ in range(s.pick(1, steps)):
        source = x if s.pick(0, 5) else s.one_of([v for v, shape in s.shapes.items() if len(shape) == 4])
        x = s.one_of(kinds)(s, source) or x
    ending(s, x)
    return s.builder.build(), s.fed, "\n".join(s.text)


def close(found: np.ndarray, wanted: np.ndarray, name: str, floor: float = 0.0, limit: float = 1e-10) -> None:
    """Equal relative to the element or the root mean square; ``floor`` is the size of what cancels."""
    assert found.shape == wanted.shape, name
    size = math.sqrt(float(np.mean(np.square(wanted)))) if wanted.size else 0.0
    np.testing.assert_allclose(
        found, wanted, rtol=limit, atol=limit * size + 0.01 * limit * floor, err_msg=name
    )


def check(
    model: Any,
    fed: dict[str, np.ndarray],
    threads: int,
    precision: str = "float64",
    least: float = 0.0,
    **options: Any,
) -> None:
    """Training runs (memory is used again), statistics, and inference.

    ``least`` is the size of what may cancel in outputs and gradients.
    """
    names = [*model.parameters, *(n for n in fed if fed[n].dtype == np.float64)]
    single = precision == "float32"
    limit = 2e-3 if single else 1e-10
    fed_here = {n: a.astype("float32") if single and a.dtype == "float64" else a for n, a in fed.items()}
    with (
        meta500.network(model, backend="numpy") as reference,
        meta500.network(model, backend="generated", precision=precision, threads=threads, **options) as net,
    ):
        # A run of NaN first: what it leaves between the rows must not reach the next one.
        net.inference_and_backprop(
            {n: np.full_like(a, np.nan) if a.dtype == precision else a for n, a in fed_here.items()},
            wrt=names,
        )
        for name, value in net.model.graph.initializers.items():
            net.feed_tensor(name, value)
        for _ in range(2):
            wanted = reference.inference_and_backprop(fed, wrt=names)
            found = net.inference_and_backprop(fed_here, wrt=names)
            for name, value in wanted.items():
                assert found[name].dtype == precision
                close(np.asarray(found[name]), np.asarray(value), name, least, limit)
            gradients = [f"grad/{name}" for name in names]
            pairs = list(
                zip(gradients, net.fetch_tensors(gradients), reference.fetch_tensors(gradients), strict=True)
            )
            floor = max([least, *(float(np.abs(g).max()) for *_, g in pairs if g.size)])
            for name, ours, theirs in pairs:
                close(ours, theirs, name, floor, limit)
        for name in model.graph.initializers:
            close(net.fetch_tensors([name])[0], reference.fetch_tensors([name])[0], name, limit=limit)
        wanted = reference.inference(fed)
        for name, value in net.inference(fed_here).items():
            close(np.asarray(value), np.asarray(wanted[name]), f"inference {name}", least, limit)


@pytest.mark.sampled(2, first=1)
@pytest.mark.parametrize("threads", sorted({1, min(2, PROCESSORS)}))
@settings(max_examples=4, suppress_health_check=list(HealthCheck), derandomize=True)
@given(drawn=networks(steps=5))
def test_random_networks(threads, drawn):
    model, fed, text = drawn
    note(text)
    check(model, fed, threads)


@settings(max_examples=4, suppress_health_check=list(HealthCheck), derandomize=True)
@given(drawn=networks(steps=5, kinds=PER_IMAGE))
def test_random_networks_with_sums_per_image(drawn):
    model, fed, text = drawn
    note(text)
    check(model, fed, min(2, PROCESSORS))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [0, 8])
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_many_random_networks_with_sums_per_image(batch, data):
    model, fed, text = data.draw(networks(steps=8, batch=batch, kinds=PER_IMAGE))
    note(text)
    check(model, fed, min(2, PROCESSORS))


@settings(max_examples=4, suppress_health_check=list(HealthCheck), derandomize=True)
@given(drawn=networks(steps=5, batch=8))
def test_random_networks_on_vectors_of_images(drawn):
    model, fed, text = drawn
    note(text)
    check(model, fed, min(2, PROCESSORS))


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(drawn=networks(steps=8, batch=8))
def test_many_random_networks_on_vectors_of_images(drawn):
    model, fed, text = drawn
    note(text)
    check(model, fed, min(2, PROCESSORS))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("seed", "threads", "precision"), [(0, 2, "float64"), (1, 1, "float32"), (3, 2, "float32")]
)
def test_unets(seed, threads, precision):
    model, fed, _ = seeded_unet(seed)
    check(model, fed, min(threads, PROCESSORS), precision)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("threads", sorted({1, min(2, PROCESSORS)}))
@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(drawn=unets())
def test_many_random_unets(threads, precision, drawn):
    model, fed, text = drawn
    note(text)
    check(model, fed, threads, precision)


# Each has something of its own that is easy to get wrong: filters whose last vector reaches into the next row, a
# value joined with itself, a gradient that is read while it is still summed up, taps that meet even and odd elements
# of one vector, conditional loads that g++ 12 mixes up, gradients that are constants.
DELICATE = [(4, 1), (26, 1), (2012, 2), (1003, 1), (1001, 2), (5, 2), (2007, 2)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("seed", "threads"), DELICATE)
def test_delicate_networks(seed, threads):
    model, fed, _ = seeded(seed)
    check(model, fed, min(threads, PROCESSORS))


@pytest.mark.slow
@pytest.mark.parametrize("threads", sorted({1, min(2, PROCESSORS)}))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(drawn=networks(steps=6))
def test_many_random_networks_in_single_precision(threads, drawn):
    model, fed, text = drawn
    note(text)
    check(model, fed, threads, "float32")


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ["auto", "reduction", "atomics"])
@pytest.mark.parametrize("threads", sorted({1, min(2, PROCESSORS)}))
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(drawn=networks(steps=8))
def test_many_random_networks(threads, adjoint, drawn):
    model, fed, text = drawn
    note(text)
    check(model, fed, threads, adjoint=adjoint)
