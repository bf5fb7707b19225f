"""Products of matrices in register blocks: forward and by both factors, in every storage order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta500
from meta500.backends.generated.contraction import Blocked
from meta500.graph import Builder, ops


def trained(
    sizes: tuple[int, int, int], precision: str, threads: int, turned: tuple[int, int], bias: bool
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[Any]]:
    """Results and gradients of y = relu(x w + b), of the generated network and of float64, and the nests."""
    n, c, k = sizes
    rng = np.random.default_rng(n * 1000 + c + k)
    b = Builder("product")
    shapes = [(c, n) if turned[0] else (n, c), (k, c) if turned[1] else (c, k)]
    fed = {"x": rng.standard_normal(shapes[0])}
    x = b.input("x", np.float64, shapes[0])
    w = b.parameter("w", rng.standard_normal(shapes[1]))
    extra = [b.parameter("b", rng.standard_normal(k))] if bias else []
    y = b.add(ops.Relu, b.add(ops.Gemm, x, w, *extra, transA=turned[0], transB=turned[1]), outputs=["y"])
    b.output(y)
    b.output(b.add(ops.ReduceMean, b.add(ops.Mul, y, y), keepdims=0, outputs=["loss"]))
    model = b.build()
    names = ["x", *model.parameters]
    found: list[dict[str, np.ndarray]] = []
    for options in ({"backend": "numpy"}, {"backend": "generated", "threads": threads}):
        kind = "float64" if options["backend"] == "numpy" else precision
        with meta500.network(model, precision=kind, **options) as net:
            out = net.inference_and_backprop({m: a.astype(kind) for m, a in fed.items()}, wrt=names)
            gradients = net.fetch_tensors([f"grad/{m}" for m in names])
            found.append({**out, **dict(zip(names, gradients, strict=True))})
            if kind == precision and options["backend"] == "generated":
                (executable,) = net._executables.values()
                nests = [kernel.nest for step in executable.schedule.steps for kernel in step.kernels]
    return found[1], found[0], nests


@pytest.mark.sampled(5)
@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("sizes", [(64, 48, 32), (16, 128, 16)])
def test_blocks_are_the_product(sizes: tuple[int, int, int], precision: str, turned: tuple[int, int]) -> None:
    found, wanted, nests = trained(sizes, precision, 2, turned, True)
    limit = 1e-12 if precision == "float64" else 1e-5
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=limit * np.abs(value).max(), err_msg=name)
    blocked = [nest for nest in nests if isinstance(nest, Blocked)]
    # The product, and by both factors.
    assert len(blocked) == 3 and all(nest.shared is not None and not nest.private for nest in blocked)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("sizes", [(1, 64, 64), (3, 5, 7), (64, 1, 9), (13, 64, 10), (7, 33, 64), (5, 16, 1)])
def test_other_sizes_are_right_as_well(sizes: tuple[int, int, int], bias: bool, threads: int) -> None:
    for turned in ((0, 0), (0, 1), (1, 0), (1, 1)):
        found, wanted, _ = trained(sizes, "float64", threads, turned, bias)
        for name, value in wanted.items():
            limit = 1e-12 * np.abs(value).max() + 1e-300
            np.testing.assert_allclose(found[name], value, rtol=0, atol=limit, err_msg=name)


def test_batches_of_products() -> None:
    rng = np.random.default_rng(1)
    b = Builder("products")
    x, fed = b.input("x", np.float64, (3, 2, 16, 24)), {"x": rng.standard_normal((3, 2, 16, 24))}
    w = b.parameter("w", rng.standard_normal((3, 2, 24, 32)))
    y = b.add(ops.MatMul, x, w, outputs=["y"])
    b.output(y)
    b.output(b.add(ops.ReduceMean, b.add(ops.Mul, y, y), keepdims=0, outputs=["loss"]))
    model = b.build()
    results = []
    for backend in ("numpy", "generated"):
        with meta500.network(model, backend=backend, threads=1) as net:
            net.inference_and_backprop(fed, wrt=["x", "w"])
            results.append(net.fetch_tensors(["grad/x", "grad/w", "y"]))
    for wanted, found in zip(*results, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
