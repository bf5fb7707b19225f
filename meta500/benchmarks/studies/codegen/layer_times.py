"""Time by kind of layer (table 8 of the thesis), from the stopwatches around the kernels of a generated step.

A kernel that computes layers of one kind belongs to that kind. A fused kernel belongs to a group that names
all kinds in it: its time is not divided, since nobody has measured the parts. What can be counted is its
arithmetic: of a sum whose result is finished by another layer (a ReLU behind a convolution) the sum belongs
to the first operator and the finish to the others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from meta500.backends.generated.expressions import Apply, Expr, walk
from meta500.backends.generated.ir import SET, Stage
from meta500.benchmarks import kernels
from meta500.benchmarks.against_torch import unet
from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.studies.codegen.generation import columns_of
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, median_interval, ratio_interval

CONVOLUTION, FORWARD, BACKWARD = "convolution", "forward", "backward"
OPTIMIZER, COPY, REST = "optimizer", "copy of the input", "outside of kernels"
STOPWATCHES = "stopwatches"
# Kernels whose arithmetic is convolutions to this share count as convolutions.
MOSTLY = 0.9
_KINDS = {
    "Conv": CONVOLUTION,
    "ConvTranspose": "transposed convolution",
    "Relu": "ReLU",
    "AveragePool": "pooling",
    "SoftmaxCrossEntropyLoss": "loss",
    "Concat": "concatenation",
}
_ORIGIN = re.compile(r"(adjoint of )?(\w+) ")


@dataclass(frozen=True)
class Layer:
    """A kind of layer in one direction; the optimizer and copies have none."""

    kind: str
    direction: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.direction}".strip()


@dataclass
class Group:
    """Kernels that compute the same kinds of layers.

    Attributes:
        arithmetic: operations of one step, by kind of layer.
        kernels: their places in the order of the step.
    """

    name: str
    arithmetic: dict[Layer, float] = field(default_factory=dict)
    kernels: list[int] = field(default_factory=list)


def layers_of(origin: str) -> list[Layer]:
    """The layers that a stage's origin names, each once.

    Args:
        origin: such as "Conv encoder1.conv1; Relu encoder1.relu1" or "adjoint of Conv head by logits".
    """
    found = []
    for part in origin.split("; "):
        if part.startswith("optimizer "):
            found.append(Layer(OPTIMIZER))
        elif part.startswith("copy "):
            found.append(Layer(COPY))
        elif match := _ORIGIN.match(part):
            direction = BACKWARD if match[1] else FORWARD
            found.append(Layer(_KINDS.get(match[2], match[2]), direction))
        else:
            found.append(Layer(part))
    return list(dict.fromkeys(found))


def group_name(layers: Sequence[Layer]) -> str:
    """All kinds in words: "convolution + ReLU, forward"."""
    if len(layers) == 1:
        return str(layers[0])
    kinds = " + ".join(sorted({layer.kind for layer in layers}, key=lambda k: (k != CONVOLUTION, k.lower())))
    directions = [d for d in (FORWARD, BACKWARD) if any(layer.direction == d for layer in layers)]
    return f"{kinds}, {' and '.join(directions)}" if directions else kinds


def arithmetic(stage: Stage) -> dict[Layer, float]:
    """Operations of one run of a stage, guards not counted, by layer.

    A multiply-add is two; elementary functions, comparisons and selections are one.
    """
    layers = layers_of(stage.origin)
    terms = _operations(stage.value) + (stage.combine != SET)
    found = {layers[0]: float(terms * stage.multiplications)}
    if stage.finish is not None:
        elements = math.prod(axis.size for axis in stage.kept)
        finish = float(_operations(stage.finish) * elements)
        others = layers[1:] or layers
        # Several finishing layers share what cannot be told apart; here there is at most one.
        for layer in others:
            found[layer] = found.get(layer, 0.0) + finish / len(others)
    return found


def _operations(expression: Expr) -> int:
    return sum(isinstance(part, Apply) for part in walk(expression))


def grouped(kernels_of_step: Sequence[Sequence[tuple[Stage, int]]]) -> list[Group]:
    """The groups of a step's kernels, in the order of their first kernels.

    Args:
        kernels_of_step: for every kernel its stages, and how often each runs in a step.
    """
    groups: dict[str, Group] = {}
    for place, stages in enumerate(kernels_of_step):
        layers = list(dict.fromkeys(layer for stage, _ in stages for layer in layers_of(stage.origin)))
        group = groups.setdefault(group_name(layers), Group(group_name(layers)))
        group.kernels.append(place)
        for stage, times in stages:
            for layer, operations in arithmetic(stage).items():
                group.arithmetic[layer] = group.arithmetic.get(layer, 0.0) + operations * times
    return list(groups.values())


def convolution_share(arithmetic_of: Mapping[Layer, float]) -> float:
    """Part of the arithmetic that is convolutions, of 0 to 1; transposed ones do not count."""
    total = sum(arithmetic_of.values())
    mine = sum(amount for layer, amount in arithmetic_of.items() if layer.kind == CONVOLUTION)
    return mine / total if total else 0.0


def measure_layers(point: Point, rounds: int, quick: bool, emit: Emit, seed: int = 0) -> None:
    """Run a network with stopwatches around its kernels, and without.

    Args:
        point: the network.
        rounds: that are sampled.
        quick: few samples of the machine's limits, which are not used here.
        emit: receives the rows.
        seed: of weights and images.

    Raises:
        UserError: there is no compiler, or more threads than processors.
    """
    net = unet(point.n, point.size, point.batch, point.dtype)
    plan = kernels.Plan(net, "training", point.threads, rounds, quick=quick, seed=seed)
    found = kernels.measure(plan)
    (profile,) = found.profiles
    assert profile.schedule is not None
    parts = list(_stages_of(profile.schedule))
    what = {**columns_of(point), "mode": STOPWATCHES, "protocol": "interleaved", "repeats": rounds}
    for row in layer_rows(grouped(parts), profile, found.plain, what):
        emit(row)


def _stages_of(schedule: Any) -> Iterator[list[tuple[Stage, int]]]:
    from meta500.backends.generated.images import IMAGES

    for step in schedule.steps:
        times = schedule.batch.count if step.kind == IMAGES else 1
        for kernel in step.kernels:
            yield [(part.stage, times) for part in kernel.parts]


def layer_rows(
    groups: Sequence[Group], profile: kernels.Profile, plain: Sequence[float], what: dict[str, Any]
) -> Iterator[Row]:
    """The rows of a profile: kernels, groups, arithmetic, and what is outside of all kernels.

    Args:
        groups: of all kernels of the profile.
        profile: seconds by round.
        plain: seconds of a step without stopwatches in the same rounds.
        what: further columns.
    """
    wall = np.array(profile.wall)
    inside = profile.seconds.sum(axis=1)
    yield _row("time", "s", wall, what)
    cost = ratio_interval(profile.wall, plain, paired=True)
    yield Row(quantity="stopwatch_cost", unit="1", **asdict(cost), **{**what, "baseline": "generated"})
    for group in groups:
        named = {**what, "operator": group.name}
        for place in group.kernels:
            work = profile.works[place]
            kernel = {**named, "node": work.name, "note": f"{work.form}: {work.origin}"}
            yield _row("kernel_time", "s", profile.seconds[:, place], kernel)
        seconds = profile.seconds[:, group.kernels].sum(axis=1)
        yield _row("layer_time", "s", seconds, named)
        yield _row("layer_share", "1", seconds / inside, named)
        for layer, amount in group.arithmetic.items():
            yield Row(**{**named, "node": str(layer)}, quantity="arithmetic", unit="FLOP", value=amount)
    yield _row("layer_time", "s", wall - inside, {**what, "operator": REST})
    yield _row("outside_share", "1", 1 - inside / wall, {**what, "operator": REST})
    mostly = [g for g in groups if convolution_share(g.arithmetic) >= MOSTLY]
    places = [place for group in mostly for place in group.kernels]
    share = profile.seconds[:, places].sum(axis=1) / inside
    yield _row("convolution_share", "1", share, {**what, "note": "; ".join(g.name for g in mostly)})


def _row(quantity: str, unit: str, samples: np.ndarray, what: dict[str, Any]) -> Row:
    found: Interval = median_interval(list(samples))
    values = tuple(float(s) for s in samples)
    return Row(
        **{**what, "repeats": len(values)}, quantity=quantity, unit=unit, samples=values, **asdict(found)
    )
