"""Random networks of all operators: outputs, gradients and statistics are those of the numpy backend in float64."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.graph import Builder, ops

PROCESSORS = len(os.sched_getaffinity(0))


def load_steps() -> Any:
    """The module random_steps.py; pytest's import mode has no folder of it on the path."""
    if "random_steps" not in sys.modules:
        path = Path(__file__).with_name("random_steps.py")
        spec = importlib.util.spec_from_file_location("random_steps", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["random_steps"] = module
        spec.loader.exec_module(module)
    return sys.modules["random_steps"]


steps = load_steps()
check = steps.networks.check


def integers(b: Builder, *values: int) -> str:
    return b.constant(np.array(values, np.int64))


def ended(b: Builder, y: str) -> Any:
    """The model with the sum of ``y`` as its loss."""
    b.output(b.add(ops.ReduceSum, y, keepdims=0, outputs=["loss"]))
    return b.build()


def test_the_sum_of_a_constant():
    """The gradient of a summand that all images share: so many ones."""
    rng = np.random.default_rng(0)
    b = Builder("constant")
    x = b.input("x", np.float64, (1, 2, 8, 14))
    y = b.add(ops.Add, x, b.parameter("p", rng.standard_normal((2, 8, 14))))
    y = b.add(ops.Pad, y, integers(b, 0, 0, 1, 0, 0, 0, 0, 3), None, mode="edge")
    check(ended(b, y), {"x": rng.standard_normal((1, 2, 8, 14))}, 1)


@pytest.mark.parametrize("repeats", [(1, 1, 3, 2), (1, 1, 1, 2), (1, 2, 1, 1)])
def test_what_is_repeated_is_computed_once(repeats):
    """It cannot be the part of the repetition from the beginning, as it can be a part of a concatenation."""
    rng = np.random.default_rng(0)
    b = Builder("repeated")
    x = b.input("x", np.float64, (1, 3, 8, 7))
    y = b.add(ops.Tile, b.add(ops.Mul, x, x), integers(b, *repeats))
    y = b.add(ops.Pad, y, integers(b, 0, 0, 1, 0, 0, 0, 0, 0), None, mode="edge")
    check(ended(b, y), {"x": rng.standard_normal((1, 3, 8, 7))}, 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("read", [False, True])
def test_flags_of_what_a_convolution_gives(threads, read):
    """The sum of products becomes a flag as it ends, or a pass over all pixels makes flags: numbers of one byte."""
    rng = np.random.default_rng(0)
    b = Builder("flags")
    x = b.input("x", np.float64, (2, 3, 3, 14))
    weight, bias = (
        b.parameter("w", rng.standard_normal((3, 3, 1, 1))),
        b.parameter("b", rng.standard_normal(3)),
    )
    y = b.add(ops.Conv, x, weight, bias)
    low = b.add(ops.Less, y, b.constant(np.float64(-0.3)))
    fed = {"x": rng.standard_normal((2, 3, 3, 14))}
    if read:
        y = b.add(ops.MatMul, b.parameter("p", rng.standard_normal((19, 3))), b.add(ops.Where, low, y, x))
        check(ended(b, b.add(ops.Transpose, y, perm=(0, 1, 3, 2))), fed, threads)
        return
    b.output(low)
    with (
        meta500.network(b.build(), backend="numpy") as reference,
        meta500.network(b.build(), backend="generated", threads=threads) as net,
    ):
        np.testing.assert_array_equal(net.inference(fed)[low], reference.inference(fed)[low])
