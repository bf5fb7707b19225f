"""Small pictures whose images lie side by side, and the copies where they meet large ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta500
from meta500.backends.generated.batch_last import FEWEST
from meta500.backends.generated.contraction import Blocked
from meta500.backends.generated.schedule import Schedule
from meta500.graph import Builder, ops

# Eight numbers in float64 fill a vector of 64 bytes; other processors have shorter ones.
BATCH = 8


class Layers:
    """A network layer by layer."""

    def __init__(self, *shape: int) -> None:
        self.builder, self.rng = Builder("layers"), np.random.default_rng(5)
        self.x = self.builder.input("x", np.float64, shape)
        self.fed = {"x": self.rng.standard_normal(shape)}
        self.count = 0

    def parameter(self, *shape: int) -> str:
        self.count += 1
        return self.builder.parameter(f"p{self.count}", self.rng.standard_normal(shape) * 0.3)

    def conv(self, x: str, channels: int, filters: int, kernel: int = 3, **fields: Any) -> str:
        group = fields.get("group", 1)
        fields.setdefault("pads", (kernel // 2,) * 4)
        return self.builder.add(
            fields.pop("kind", ops.Conv), x, self.parameter(filters, channels // group, kernel, kernel),
            self.parameter(filters), kernel_shape=(kernel, kernel), **fields,
        )  # fmt: skip

    def relu(self, x: str) -> str:
        return self.builder.add(ops.Relu, x)

    def normalized(self, x: str, channels: int) -> str:
        mean = self.builder.constant(np.zeros(channels), f"mean{self.count}")
        variance = self.builder.constant(np.ones(channels), f"variance{self.count}")
        weights = (self.parameter(channels), self.parameter(channels))
        found = self.builder.add(ops.BatchNormalization, x, *weights, mean, variance, follow_mode=True)
        return found if isinstance(found, str) else found[0]

    def model(self, x: str) -> meta500.Model:
        square = self.builder.add(ops.Mul, x, x)
        self.builder.output(x)
        self.builder.output(self.builder.add(ops.ReduceMean, square, keepdims=0, outputs=["loss"]))
        return self.builder.build()


def plain(n: Layers) -> str:
    return n.relu(n.conv(n.relu(n.conv(n.x, 3, 8)), 8, 5))


def strided(n: Layers) -> str:
    """From large to small pictures: both read, and the gradient of the large one is written from small ones."""
    x = n.relu(n.conv(n.x, 3, 6))
    x = n.relu(n.conv(x, 6, 8, strides=(2, 2)))
    return n.relu(n.conv(x, 8, 8))


def shortcut(n: Layers) -> str:
    """Two strided convolutions of the same large picture, as in residual networks."""
    x = n.relu(n.normalized(n.conv(n.x, 3, 6), 6))
    y = n.relu(n.normalized(n.conv(x, 6, 8, strides=(2, 2)), 8))
    y = n.normalized(n.conv(y, 8, 8), 8)
    z = n.normalized(n.conv(x, 6, 8, 1, strides=(2, 2)), 8)
    return n.relu(n.builder.add(ops.Add, y, z))


def two_readers(n: Layers) -> str:
    """The gradient of a large picture comes from small and from large ones."""
    x = n.relu(n.conv(n.x, 3, 4))
    y = n.relu(n.conv(x, 4, 4, strides=(2, 2)))
    up = n.builder.add(
        ops.ConvTranspose, y, n.parameter(4, 4, 2, 2), n.parameter(4), kernel_shape=(2, 2), strides=(2, 2)
    )
    return n.relu(n.conv(n.builder.add(ops.Concat, (x, up), axis=1), 8, 4))


def pools(n: Layers) -> str:
    x = n.relu(n.conv(n.x, 3, 4))
    x = n.builder.add(ops.MaxPool, x, kernel_shape=(3, 3), strides=(2, 2), pads=(1,) * 4)
    x = n.relu(n.conv(x, 4, 6))
    x = n.builder.add(ops.AveragePool, x, kernel_shape=(2, 2), strides=(2, 2))
    return n.builder.add(ops.GlobalAveragePool, n.conv(x, 6, 5))


def groups(n: Layers) -> str:
    x = n.relu(n.conv(n.x, 3, 12, group=3))
    x = n.relu(n.conv(x, 12, 12, group=12))
    return n.conv(x, 12, 4, 1, pads=(0,) * 4)


def dilated(n: Layers) -> str:
    return n.conv(n.conv(n.x, 3, 6, dilations=(2, 2), pads=(2,) * 4), 6, 4, 5)


def single_pixels(n: Layers) -> str:
    return n.relu(n.conv(n.relu(n.conv(n.x, 3, 8)), 8, 8))


def single_filters(n: Layers) -> str:
    """No axis of a result is left for threads to share, forward (in one row) and by the weights."""
    return n.relu(n.conv(n.conv(n.x, 3, 1), 1, 1))


def scaled(n: Layers) -> str:
    return n.builder.add(ops.Mul, n.relu(n.conv(n.x, 3, 2)), n.parameter(1))


def flattened(n: Layers) -> str:
    x = n.builder.add(ops.Flatten, n.relu(n.conv(n.x, 3, 4)))
    return n.builder.add(ops.Gemm, x, n.parameter(4 * 5 * 7, 6), n.parameter(6))


CASES = {
    "small": (plain, (5, 7)), "strided": (strided, (12, 12)), "shortcut": (shortcut, (10, 14)),
    "two readers": (two_readers, (12, 12)), "pools": (pools, (9, 13)), "groups": (groups, (6, 4)),
    "dilated": (dilated, (7, 7)), "one row": (plain, (1, 6)), "one column": (plain, (6, 1)),
    "single pixels": (single_pixels, (1, 1)), "flattened": (flattened, (5, 7)),
    "single filters": (single_filters, (5, 4)), "single filters in a row": (single_filters, (1, 4)),
    "scaled": (scaled, (3, 4)),
}  # fmt: skip


def schedule_of(net: Any) -> Schedule:
    (executable,) = net._executables.values()
    return executable.schedule


def last(plan: Schedule) -> set[str]:
    return {name for name in plan.places if name in plan.batch.last}


@pytest.mark.sampled(9)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("batch", [BATCH, 3 * BATCH])
@pytest.mark.parametrize("case", CASES)
def test_training_is_that_of_the_reference(case: str, batch: int, threads: int) -> None:
    network, size = CASES[case]
    layers = Layers(batch, 3, *size)
    model = layers.model(network(layers))
    names = [*model.parameters, "x"]
    with (
        meta500.network(model, backend="numpy") as reference,
        meta500.network(model, backend="generated", precision="float64", threads=threads) as net,
    ):
        for _ in range(2):
            wanted = reference.inference_and_backprop(layers.fed, wrt=names)
            found = net.inference_and_backprop(layers.fed, wrt=names)
            for name, value in wanted.items():
                scale = np.abs(value).max() + 1e-12
                np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-11 * scale, err_msg=name)
            for name in names:
                (value,), (mine,) = (n.fetch_tensors([f"grad/{name}"]) for n in (reference, net))
                # Biases before a normalization have no gradient but what rounding leaves.
                limit = 1e-10 * np.abs(value).max() + 1e-15
                np.testing.assert_allclose(mine, value, rtol=0, atol=limit, err_msg=name)
        assert last(schedule_of(net))


def test_other_batches_are_stored_row_by_row() -> None:
    layers = Layers(BATCH + 1, 3, 5, 7)
    model = layers.model(plain(layers))
    with meta500.network(model, backend="generated", precision="float64", threads=1) as net:
        net.inference_and_backprop(layers.fed)
        assert not last(schedule_of(net))


def test_large_pictures_are_stored_row_by_row() -> None:
    layers = Layers(BATCH, 3, FEWEST, 3)
    model = layers.model(plain(layers))
    with meta500.network(model, backend="generated", precision="float64", threads=1) as net:
        net.inference_and_backprop(layers.fed)
        assert not last(schedule_of(net))


def test_convolutions_in_all_directions_run_over_images() -> None:
    """Forward, by the input and by the weights: vectors of images, and threads that share results."""
    layers = Layers(BATCH, 3, 6, 6)
    model = layers.model(plain(layers))
    with meta500.network(model, backend="generated", precision="float64", threads=2) as net:
        net.inference_and_backprop(layers.fed)
        plan = schedule_of(net)
    blocked = [k.nest for step in plan.steps for k in step.kernels if isinstance(k.nest, Blocked)]
    assert len(blocked) == 5
    for nest in blocked:
        assert nest.vector[0].size == BATCH
        assert nest.shared is not None and not nest.private


def test_zeros_around_a_picture_do_not_replace_the_guards_of_another_factor() -> None:
    """The number of pixels in a window is read beside the gradient: 0 times what lies behind it may be NaN."""
    layers = Layers(BATCH, 3, 5, 5)
    x = layers.conv(layers.x, 3, 3)
    fields: dict[str, Any] = {"kernel_shape": (3, 1), "pads": (1, 0, 1, 0), "count_include_pad": 0}
    model = layers.model(layers.builder.add(ops.AveragePool, x, **fields))
    with meta500.network(model, backend="generated", precision="float64", threads=1) as net:
        net.inference_and_backprop(layers.fed)
        plan = schedule_of(net)
    seen = 0
    for stage in [part.stage for step in plan.steps for kernel in step.kernels for part in kernel.parts]:
        inside = {axis for guard in stage.guards for axis in guard.index.axes}
        for access in [load.access for load in stage.loads()]:
            place = plan.places[access.tensor]
            if not inside.intersection(access.axes):
                low, high = place.address(access).bounds(stage.sizes)
                assert place.origin + low >= 0 and place.origin + high < place.size, str(stage)
                seen += ".share" in access.tensor
    assert seen


def test_a_large_picture_is_copied_once_for_its_readers() -> None:
    layers = Layers(BATCH, 3, 10, 14)
    model = layers.model(shortcut(layers))
    with meta500.network(model, backend="generated", precision="float64", threads=1) as net:
        net.inference_and_backprop(layers.fed)
        plan = schedule_of(net)
    stages = [k.stage for step in plan.steps for k in step.kernels]
    copies = [(s.reads(), s.write.tensor) for s in stages if s.origin.startswith("copy of")]
    # Forward the activation, for two convolutions and the gradients of their weights; back its gradient.
    assert [target for _, target in copies if target.endswith(".last")] == ["relu_1.last"]
    back = [source for (source,), _ in copies if source.endswith(".last") and source != "relu_3.last"]
    assert back == ["grad/batchnormalization_1.last"]
