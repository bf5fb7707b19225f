"""Every method of adding up gradients gives the same numbers, whatever the threads share."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.errors import UserError
from meta500.graph import Builder, ops

FEW = min(2, len(os.sched_getaffinity(0)))
METHODS = ["gather", "reduction", "atomics"]


def colliding(batch: int, dtype: str = "float64") -> meta500.Model:
    """Strided and overlapping windows, a transposed convolution, fan-out and broadcasting."""
    rng = np.random.default_rng(4)

    def parameter(name: str, *shape: int) -> str:
        return b.parameter(name, rng.standard_normal(shape).astype(dtype))

    b = Builder("colliding")
    x = b.input("x", dtype, (batch, 2, 11, 13))
    y = b.add(ops.Conv, x, parameter("w1", 3, 2, 3, 3), parameter("b1", 3), strides=(2, 1), pads=(1, 2, 0, 1))
    y = b.add(ops.Add, y, parameter("row", y_width(13)))
    z = b.add(ops.Sigmoid, y)
    z = b.add(ops.AveragePool, z, kernel_shape=(3, 3), strides=(1, 2), pads=(1, 1, 1, 1))
    z = b.add(ops.MaxPool, z, kernel_shape=(2, 3), strides=(1, 2))
    z = b.add(ops.ConvTranspose, z, parameter("w2", 3, 2, 3, 3), parameter("b2", 2), strides=(2, 2))
    z = b.add(ops.Mul, z, z)
    z = b.add(ops.ReduceMean, z, b.constant(np.array([1, 3])), keepdims=0)
    b.output(b.add(ops.ReduceSum, z, keepdims=0, outputs=["loss"]))
    return b.build()


def y_width(width: int) -> int:
    """Columns after the first convolution: 3 of padding, 3 taps."""
    return width + 3 - 2


def gradients(model: Any, fed: dict[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    names = [*model.parameters, "x"]
    with meta500.network(model, **options) as net:
        for _ in range(2):  # what the first run leaves in memory must not count
            found = net.inference_and_backprop(fed, wrt=names)
        values = net.fetch_tensors([f"grad/{n}" for n in names])
        return {"loss": np.array(found["loss"]), **dict(zip(names, values, strict=True))}


# One image for all threads, fewer images than threads or not divisible by them, and images for every thread.
SLOW = pytest.mark.slow


@pytest.mark.sampled(4, first=1)
@pytest.mark.parametrize(
    ("batch", "threads"),
    [pytest.param(1, 1, marks=SLOW), (1, FEW), (3, FEW), pytest.param(4, FEW, marks=SLOW)],
)
def test_methods_agree(batch, threads):
    model = colliding(batch)
    fed = {"x": np.random.default_rng(batch).standard_normal((batch, 2, 11, 13))}
    wanted = gradients(model, fed, backend="numpy")
    for method in METHODS:
        found = gradients(model, fed, backend="generated", threads=threads, adjoint=method)
        for name, value in wanted.items():
            np.testing.assert_allclose(
                found[name], value, rtol=1e-10, atol=1e-11, err_msg=f"{method} {name}, {batch} images"
            )


@pytest.mark.parametrize(("batch", "threads"), [(1, FEW), (2 * FEW, FEW)])
@pytest.mark.parametrize("window", [pytest.param((2, 1), marks=SLOW), (3, 3)])
def test_methods_agree_on_windows_without_padding(window, batch, threads):
    """Without guards neighbouring windows add to the same elements as well."""
    rng = np.random.default_rng(6)
    b = Builder("unpadded")
    x = b.input("x", "float64", (batch, 2, 12, 24))
    y = b.add(ops.Conv, x, b.parameter("w", rng.standard_normal((3, 2, *window))))
    b.output(b.add(ops.ReduceSum, b.add(ops.Mul, y, y), keepdims=0, outputs=["loss"]))
    model, fed = b.build(), {"x": rng.standard_normal((batch, 2, 12, 24))}
    wanted = gradients(model, fed, backend="numpy")
    for method in METHODS:
        found = gradients(model, fed, backend="generated", threads=threads, adjoint=method)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-10, atol=1e-11, err_msg=f"{method} {name}")


@pytest.mark.parametrize("method", ["gather", "reduction"])
def test_without_atomics_every_run_is_the_same(method):
    model = colliding(3, "float32")
    fed = {"x": np.random.default_rng(0).standard_normal((3, 2, 11, 13)).astype("float32")}
    options = {"backend": "generated", "threads": FEW, "adjoint": method}
    first, second = gradients(model, fed, **options), gradients(model, fed, **options)
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name])


def test_the_verdicts_are_in_the_stages():
    from meta500.backends.generated.forms import Form

    found = {}
    for method in METHODS:
        with meta500.network(colliding(2), backend="generated", adjoint=method) as net:
            form = Form(("loss",), (("x", (2, 2, 11, 13)),), "loss", ("w1", "x"))
            stages = [s for s in net.stages(form).stages if s.method]
            found[method] = {s.method for s in stages}
            assert all(s.verdict for s in stages)
            assert net.options.get("adjoint") == method
    assert found["gather"] == {"gather"}
    for method in ("reduction", "atomics"):
        assert method in found[method] <= {"gather", method}


@pytest.mark.skipif(FEW == 1, reason="one thread needs no atomic additions")
def test_atomic_additions_are_printed():
    """Several threads on one image add to the same elements: the text says how they keep out of each other's way."""
    from meta500.backends.generated import cpp

    with meta500.network(colliding(1), backend="generated", threads=2, adjoint="atomics") as net:
        net.inference_and_backprop({"x": np.zeros((1, 2, 11, 13))}, wrt=["x"])
        (executable,) = net._executables.values()
        text = "\n".join(cpp.sources(executable.schedule).values())
    assert "#pragma omp atomic" in text


def test_unknown_method():
    with pytest.raises(UserError, match="gather"):
        meta500.network(colliding(1), backend="generated", adjoint="scatter")
