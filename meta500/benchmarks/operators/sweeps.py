"""DeepBench's convolutions and matrix products as problems for every backend.

The shapes and their source are in :mod:`meta500.benchmarks.operators.deepbench`. Inputs are seeded random
numbers, scaled so that outputs are about 1 whatever the length of the sums. A product is Gemm without C
(DeepBench adds into C), with the transpositions as flags; matrices are stored by rows.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.benchmarks.operators.counts import Counts, Extent, count, count_backward
from meta500.benchmarks.operators.deepbench import CONVOLUTIONS, PRODUCTS
from meta500.errors import UserError, choose
from meta500.graph import Builder, Model, ops
from meta500.metrics.norms import compare

SWEEPS = ("deepbench-conv", "deepbench-gemm")
SETS = ("training", "server", "device")

# Outputs that are recomputed in float64, one by one.
SAMPLES = 64
# Elements of large outputs that are compared at once.
CHUNK = 2**22
# Check, first call, warm-up, lead-in and sample: calls of each backend before one round is complete.
CALLS = 5
MEMORY_SHARE = 0.6


@dataclass(frozen=True)
class Problem:
    """One layer of fixed shape.

    Attributes:
        name: with application and sizes: "resnet-n8-c64-56x56-k256-1x1-s2-p0".
        operator: "Conv" or "Gemm".
        application, sets: what it is taken from, and the sets of DeepBench that it belongs to.
        inputs: shapes by name, "x" and "w" or "a" and "b".
        output: shape of "y".
        attributes: of the operation.
        length: terms of the sum behind one output.
    """

    name: str
    operator: str
    application: str
    sets: tuple[str, ...]
    inputs: dict[str, tuple[int, ...]]
    output: tuple[int, ...]
    attributes: dict[str, Any]
    length: int

    def model(self, dtype: str) -> Model:
        """The network of this one operation; input names as in ``inputs``, output "y"."""
        b = Builder(self.name)
        fed = [b.input(name, dtype, shape) for name, shape in self.inputs.items()]
        b.output(b.add(getattr(ops, self.operator), *fed, **self.attributes), "y")
        return b.build()

    def data(self, dtype: str, seed: int = 0) -> dict[str, np.ndarray]:
        """Standard normal inputs, the second divided by the root of the sum's length."""
        rng = np.random.default_rng(seed)
        scales = (1.0, 1 / math.sqrt(self.length))
        return {
            name: (rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)).astype(dtype, copy=False)
            for (name, shape), scale in zip(self.inputs.items(), scales, strict=True)
        }

    def counts(self, dtype: str) -> tuple[Counts, Counts]:
        """Operations and bytes, forward and forward plus backward."""
        size = np.dtype(dtype).itemsize
        op = self.model(dtype).graph.operations[0]
        inputs = [Extent(shape, size) for shape in self.inputs.values()]
        outputs = [Extent(self.output, size)]
        forward, backward = count(op, inputs, outputs), count_backward(op, inputs, outputs)
        assert forward is not None and backward is not None
        return forward, backward

    def memory(self, dtype: str) -> float:
        """Bytes that a measurement may need: all tensors twice, and the patches of a convolution."""
        size = np.dtype(dtype).itemsize
        tensors = sum(math.prod(s) for s in self.inputs.values()) + 2 * math.prod(self.output)
        patches = 0
        if self.operator == "Conv":
            patches = self.output[0] * math.prod(self.output[2:]) * self.length
        return float(size * (2 * tensors + 2 * patches))

    def exact(self, inputs: Mapping[str, np.ndarray], places: np.ndarray) -> np.ndarray:
        """Outputs at ``places`` (n, rank), each summed in float64 straight from the definition."""
        first, second = inputs.values()
        single = _convolution_at if self.operator == "Conv" else _product_at
        return np.array([single(first, second, tuple(place), self.attributes) for place in places])

    def error(self, inputs: Mapping[str, np.ndarray], result: np.ndarray, seed: int = 2) -> float:
        """Largest relative error of some outputs against float64.

        Raises:
            UserError: the result has another shape.
        """
        if result.shape != self.output:
            raise UserError(f"{self.name}: the result has shape {result.shape}, expected {self.output}")
        rng = np.random.default_rng(seed)
        places = np.stack([rng.integers(0, size, SAMPLES) for size in self.output], axis=1)
        return compare(result[tuple(places.T)], self.exact(inputs, places)).max_relative


def problems(
    sweep: str, patterns: Sequence[str] | None = None, sets: Sequence[str] | None = None
) -> list[Problem]:
    """The problems of a sweep, in DeepBench's order.

    Args:
        sweep: "deepbench-conv" or "deepbench-gemm".
        patterns: only those whose name matches one of these (shell wildcards).
        sets: only those of these sets: "training", "server", "device".

    Raises:
        UserError: an unknown sweep or set, or a pattern that matches nothing.
    """
    made = _convolutions if choose("sweep", sweep, SWEEPS) == SWEEPS[0] else _products
    found = list(made())
    if sets is not None:
        chosen = {choose("set", name, SETS) for name in sets}
        found = [problem for problem in found if chosen & set(problem.sets)]
    for pattern in patterns or ():
        if not any(fnmatch.fnmatchcase(problem.name, pattern) for problem in found):
            names = ", ".join(problem.name for problem in found[:4])
            raise UserError(f"no shape of sweep '{sweep}' matches '{pattern}'; there are {names}, ...")
    if patterns:
        found = [p for p in found if any(fnmatch.fnmatchcase(p.name, pattern) for pattern in patterns)]
    return found


def smallest(found: Sequence[Problem], number: int = 10, limit: float = 1e9) -> list[Problem]:
    """Some problems from the smallest up to ``limit`` operations, evenly by rank, in the order given."""
    sizes = {problem.name: problem.counts("float32")[0].flops for problem in found}
    small = sorted((p for p in found if sizes[p.name] <= limit), key=lambda p: sizes[p.name])
    places = {round(k * (len(small) - 1) / max(1, number - 1)) for k in range(number)} if small else set()
    chosen = {small[place].name for place in places}
    return [problem for problem in found if problem.name in chosen]


def obstacle(
    problem: Problem, dtype: str, *, memory: float | None, peak: float | None, calls: int, budget: float
) -> tuple[str, float, str] | None:
    """Why a problem cannot be measured here, before anything is allocated; None if it can.

    Args:
        problem: what to measure.
        dtype: element type.
        memory: free bytes, None if unknown.
        peak: measured rate of products in FLOP/s, None if unknown.
        calls: that one round needs, of all backends.
        budget: seconds for the problem.

    Returns:
        What is short ("memory" or "time"), how much is needed (bytes or seconds), and the reason in words.
    """
    needed = problem.memory(dtype)
    if memory is not None and needed > MEMORY_SHARE * memory:
        return "memory", needed, f"needs {needed / 1e9:.1f} GB of memory, {memory / 1e9:.1f} GB are free"
    if peak:
        seconds = calls * problem.counts(dtype)[0].flops / peak
        if seconds > budget:
            rate = f"{peak / 1e9:.0f} GFLOP/s"
            reason = f"{calls} calls at the measured peak of {rate} take {seconds:.1f} s"
            return "time", seconds, f"{reason}, the budget is {budget:g} s"
    return None


def disagreement(first: np.ndarray, second: np.ndarray) -> float:
    """Largest relative difference of two large results, compared in portions.

    Raises:
        UserError: the shapes differ.
    """
    if first.shape != second.shape:
        raise UserError(f"one result has shape {first.shape}, the other {second.shape}")
    a, b = first.reshape(-1), second.reshape(-1)
    portions = [slice(start, start + CHUNK) for start in range(0, a.size, CHUNK)]
    return max((compare(a[p], b[p]).max_relative for p in portions), default=0.0)


def _convolutions() -> Iterator[Problem]:
    for application, numbers, batches in _lines(CONVOLUTIONS, 10):
        c, h, w, k, r, s, ph, pw, sh, sw = (int(number) for number in numbers)
        oh, ow = (h + 2 * ph - r) // sh + 1, (w + 2 * pw - s) // sw + 1
        stride, pad = (f"{a}" if a == b else f"{a}x{b}" for a, b in ((sh, sw), (ph, pw)))
        for n, sets in batches.items():
            yield Problem(
                name=f"{application}-n{n}-c{c}-{h}x{w}-k{k}-{r}x{s}-s{stride}-p{pad}",
                operator="Conv",
                application=application,
                sets=sets,
                inputs={"x": (n, c, h, w), "w": (k, c, r, s)},
                output=(n, k, oh, ow),
                attributes={"strides": (sh, sw), "pads": (ph, pw, ph, pw)},
                length=c * r * s,
            )


def _products() -> Iterator[Problem]:
    for application, (m_text, k_text, flags), batches in _lines(PRODUCTS, 3):
        m, k = int(m_text), int(k_text)
        left, right = (flag == "T" for flag in flags)
        for n, sets in batches.items():
            yield Problem(
                name=f"{application}-m{m}-n{n}-k{k}-{flags}",
                operator="Gemm",
                application=application,
                sets=sets,
                inputs={"a": (k, m) if left else (m, k), "b": (n, k) if right else (k, n)},
                output=(m, n),
                attributes={"transA": int(left), "transB": int(right)},
                length=k,
            )


def _lines(table: str, numbers: int) -> Iterator[tuple[str, list[str], dict[int, tuple[str, ...]]]]:
    """Application, its numbers, and from each batch size to the sets that have it."""
    for line in table.splitlines():
        words = line.split()
        batches: dict[int, list[str]] = {}
        for entry in words[1 + numbers :]:
            name, _, sizes = entry.partition("=")
            for size in sizes.split(","):
                batches.setdefault(int(size), []).append(name)
        yield words[0], words[1 : 1 + numbers], {n: tuple(sets) for n, sets in batches.items()}


def _convolution_at(
    x: np.ndarray, w: np.ndarray, place: tuple[int, ...], attributes: Mapping[str, Any]
) -> float:
    """One output (image, filter, row, column): the sum over the part of the window that lies on the image."""
    image, channel, row, column = place
    slices, kernel = [], []
    for position, stride, pad, length, size in zip(
        (row, column), attributes["strides"], attributes["pads"], w.shape[2:], x.shape[2:], strict=False
    ):
        start = position * stride - pad
        low = min(max(start, 0), size)
        # A window may lie wholly in the padding.
        high = max(low, min(start + length, size))
        slices.append(slice(low, high))
        kernel.append(slice(low - start, high - start))
    window = x[image, :, slices[0], slices[1]].astype(np.float64)
    return float((window * w[channel, :, kernel[0], kernel[1]].astype(np.float64)).sum())


def _product_at(a: np.ndarray, b: np.ndarray, place: tuple[int, ...], attributes: Mapping[str, Any]) -> float:
    """One output (row, column): the inner product of a row and a column."""
    row, column = place
    left = a[:, row] if attributes["transA"] else a[row]
    right = b[column] if attributes["transB"] else b[:, column]
    return float(left.astype(np.float64) @ right.astype(np.float64))
