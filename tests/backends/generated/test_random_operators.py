"""Random networks of all operators: outputs, gradients and statistics are those of the numpy backend in float64."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

import meta500
from meta500.backends.generated.cpp import sources
from meta500.backends.generated.network import GeneratedNetwork
from meta500.backends.generated.rule_table import rules
from meta500.errors import UnsupportedOperation
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


def check(
    model: Any, fed: dict[str, np.ndarray], threads: int, precision: str = "float64", **options: Any
) -> None:
    """As for all random networks; centred values have sums that are nothing but rounding."""
    steps.networks.check(model, fed, min(threads, PROCESSORS), precision, least=1.0, **options)


# Together they have every operator with a rule, except those of OTHERS.
SEEDS = [
    124, 188, 330, 414, 553, 599, 679, 828, 829, 994, 1244, 1485, 1535, 1973, 2204, 2429, 2601, 2640, 3429, 3625, 3705,
    3714, 3863, 3878, 3996,
]  # fmt: skip
# Drawn by other tests: what has no gradient, is of constants, or needs other opsets, types or
# processes.
OTHERS = {"AllReduce", "Celu", "HaloExchange", "Upsample"}


def cache_of(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    """A cache so small that small pictures are swept in bands and rows take turns."""
    if size is not None:
        usual = GeneratedNetwork._schedule_options
        monkeypatch.setattr(
            GeneratedNetwork, "_schedule_options", lambda net: replace(usual(net), cache_bytes=size)
        )


@pytest.mark.sampled(8)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_operators(seed, monkeypatch):
    model, fed, _ = steps.seeded(seed)
    cache_of(monkeypatch, [None, 2048, 8192][seed % 3])
    check(model, fed, 1 + seed % 2)


def test_the_seeds_have_every_operator():
    drawn = {op.op_type for seed in SEEDS for op in steps.seeded(seed)[0].graph.operations}
    assert {name for _, name in rules().entries} - drawn == OTHERS


@pytest.mark.slow
@pytest.mark.parametrize("adjoint", ["auto", "gather", "reduction", "atomics"])
@pytest.mark.parametrize("cache", [None, 2048, 16384])
@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    batch=st.sampled_from([0, 0, 4, 8, 16]),
    threads=st.sampled_from([1, 2]),
    precision=st.sampled_from(["float64", "float64", "float64", "float32"]),
)
def test_many_random_operators(cache, adjoint, seed, batch, threads, precision):
    model, fed, text = steps.seeded(seed, 10, batch)
    note(text)
    with pytest.MonkeyPatch.context() as patch:
        cache_of(patch, cache)
        try:
            check(model, fed, threads, precision, adjoint=adjoint)
        except UnsupportedOperation as refusal:
            note(str(refusal))


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


@pytest.mark.parametrize("repeats", [(1, 1, 3, 2), (1, 2, 1, 1)])
def test_what_is_repeated_is_computed_once(repeats):
    """It cannot be the part of the repetition from the beginning, as it can be a part of a concatenation."""
    rng = np.random.default_rng(0)
    b = Builder("repeated")
    x = b.input("x", np.float64, (1, 3, 8, 7))
    y = b.add(ops.Tile, b.add(ops.Mul, x, x), integers(b, *repeats))
    y = b.add(ops.Pad, y, integers(b, 0, 0, 1, 0, 0, 0, 0, 0), None, mode="edge")
    check(ended(b, y), {"x": rng.standard_normal((1, 3, 8, 7))}, 1)


@pytest.mark.parametrize(("threads", "read"), [(1, False), (2, True)])
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


@pytest.mark.parametrize(("threads", "part"), [(1, "sum"), (2, "product")])
def test_some_of_the_images(threads, part):
    """A sum over half of a batch is none over all images, and half of a batch that becomes a whole one neither."""
    rng = np.random.default_rng(0)
    b = Builder("half")
    x = b.input("x", np.float64, (4, 3, 9, 10))
    y = b.add(ops.Slice, x, integers(b, 0), integers(b, 2), integers(b, 0), integers(b, 1))
    if part == "product":
        y = b.add(ops.Mul, y, b.parameter("w", rng.standard_normal((3, 9, 10))))
        y = b.add(ops.Mul, x, b.add(ops.Pad, y, integers(b, 0, 0, 0, 0, 2, 0, 0, 0)))
    check(ended(b, y), {"x": rng.standard_normal((4, 3, 9, 10))}, threads)


def test_merges_that_meet_wait_for_each_other():
    """The private copies of a sum that scatters are of all gradients: other ones were added to at the same time."""
    rng = np.random.default_rng(0)
    b = Builder("merges")
    x = b.input("x", np.float64, (4, 2, 3, 15))
    weight, bias = (
        b.parameter("w", rng.standard_normal((2, 3, 2, 1))),
        b.parameter("b", rng.standard_normal(3)),
    )
    y = b.add(
        ops.ConvTranspose, x, weight, bias, kernel_shape=(2, 1), dilations=(2, 1), pads=(1, 0, 0, 0),
        output_padding=(1, 0),
    )  # fmt: skip
    model = ended(b, b.add(ops.Mul, y, y))
    fed = {"x": rng.standard_normal((4, 2, 3, 15))}
    check(model, fed, 2, adjoint="reduction")
    with meta500.network(model, backend="generated", threads=2, adjoint="reduction") as net:
        net.inference_and_backprop(fed)
        (executable,) = net._executables.values()
    lines = [line.strip() for line in sources(executable.schedule)["network.cpp"].splitlines()]
    merges = [i for i, line in enumerate(lines) if "_merge(" in line]
    pairs = [(a, c) for a, c in itertools.pairwise(merges) if "_d_w_merge(" in lines[a] + lines[c]]
    assert pairs
    for a, c in pairs:
        assert "meta500::wait();" in lines[a:c], lines[a : c + 1]
