"""What a level costs per operator: networks of operators so small that nothing is left to compute.

A chain of N elementwise operators, and one of N residual blocks (convolution, normalisation, addition,
ReLU), each on a few numbers. The slope of the time over N is what one more operator costs: dispatch,
allocation of its result, and the loop over a handful of numbers; what a call of the network costs by itself
falls out. Where a compiler joins the operators, the slope is that of what it made of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.studies.abstraction.crew import Crew
from meta500.benchmarks.studies.abstraction.level import INFERENCE
from meta500.benchmarks.studies.abstraction.measure import INTERLEAVED, Runner, begun, dropping, run_rounds
from meta500.benchmarks.studies.abstraction.settings import Pace
from meta500.benchmarks.studies.abstraction.subject import written
from meta500.graph import Model
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

ELEMENTWISE, BLOCKS = "elementwise", "residual block"
_OPERATORS = {ELEMENTWISE: 1, BLOCKS: 4}
_NUMBERS = 16
_CHANNELS, _SIZE = 4, 2


def elementwise_chain(count: int) -> Model:
    """``count`` times ReLU on 16 numbers: "image" (1, 16) to "logits" (1, 16)."""
    from meta500.graph import operators as ops
    from meta500.graph.builder import Builder

    net = Builder(f"chain of {count} ReLU")
    x = net.input("image", np.float32, (1, _NUMBERS))
    for index in range(count):
        x = net.add(ops.Relu, x, name=f"relu{index}")
    net.output(x, "logits")
    return net.build()


def block_chain(count: int, seed: int = 0) -> Model:
    """``count`` residual blocks of a 1x1 convolution on 4 x 2 x 2 numbers, then the mean of each channel.

    x becomes ReLU(x + normalised(convolution(x))). "image" (1, 4, 2, 2) to "logits" (1, 4).
    """
    from meta500.models import layers

    net = layers.draft(
        f"chain of {count} blocks", initialization="kaiming_normal", seed=seed, dtype="float32"
    )
    x = net.builder.input("image", np.float32, (1, _CHANNELS, _SIZE, _SIZE))
    for index in range(count):
        y = layers.convolution(net, x, f"conv{index}", (_CHANNELS, _CHANNELS), 1, bias=False)
        # gamma 0.1 keeps the numbers of a long chain small.
        y = layers.batch_norm(net, y, f"bn{index}", _CHANNELS, gamma=0.1)
        x = layers.relu(net, layers.add(net, y, x, f"add{index}"), f"relu{index}")
    net.builder.output(layers.global_average_pool(net, x, "pool"), "logits")
    return net.builder.build()


def measure_dispatch(crew: Crew, folder: Path, pace: Pace, seed: int, emit: Emit) -> None:
    """Times of all chains on all levels, and the slope per operator of each level that computes them right.

    Rows: "time" of each chain (column node: its operators), and "dispatch", seconds per operator, with the
    kind of operator in the column operator.
    """
    # That they are absent is told once, not for every chain.
    absent = {member.name for member in crew.members if member.missing}
    for kind, counts in ((ELEMENTWISE, pace.elementwise), (BLOCKS, pace.blocks)):
        if not counts:
            continue
        runners: list[Runner] = []
        by_level: dict[str, list[Runner]] = {}
        with dropping(runners):
            for count in counts:
                home = folder / f"{kind}-{count}".replace(" ", "-")
                home.mkdir()
                model = elementwise_chain(count) if kind == ELEMENTWISE else block_chain(count, seed)
                subject = replace(written(model.name, model, home, seed), title=f"{kind} chain")
                node = str(count * _OPERATORS[kind])

                def named(row: Row, node: str = node, kind: str = kind) -> None:
                    if row.backend not in absent:
                        emit(replace(row, node=node, operator=kind))

                runners += begun(crew, subject, INFERENCE, home, pace, named, key=f"{kind} {count}")
            run_rounds(runners, pace)
            for runner in runners:
                by_level.setdefault(runner.member.name, []).append(runner)
            for group in by_level.values():
                _emit(group, kind, counts, pace, emit)


def _emit(group: Sequence[Runner], kind: str, counts: Sequence[int], pace: Pace, emit: Emit) -> None:
    """Rows of one level's chains of one kind."""
    each = _OPERATORS[kind]
    columns: dict[str, Any] = {
        "level": 1,
        "model": f"{kind} chain",
        "operator": kind,
        "phase": INFERENCE,
        "dtype": "float32",
    }
    columns |= {"batch": 1, **group[0].member.columns(), "protocol": INTERLEAVED}
    chains = {int(runner.key.split()[-1]): runner for runner in group}
    for count, runner in chains.items():
        for row in runner.timing(pace).rows(**columns, node=str(count * each)):
            if row.quantity == "time":
                emit(replace(row, **runner.judged) if row.verdict == "not_compared" else row)
    if set(chains) != set(counts) or not all(r.right and r.samples for r in group):
        wrong = any(r.failure is None and not r.right for r in group)
        note = "a chain is not computed right" if wrong else "not all chains were timed"
        emit(Row(**columns, quantity="dispatch", unit="s", value=None, verdict="failed", note=note))
        return
    found = slopes([n * each for n in counts], [chains[n].samples for n in counts])
    counted = " and ".join(str(n * each) for n in counts)
    note = f"slope of the time over {counted} operators, in each round"
    columns |= {"verdict": "ok", "note": note, "repeats": len(found)}
    emit(
        Row(**columns, quantity="dispatch", unit="s", samples=tuple(found), **asdict(median_interval(found)))
    )


def slopes(counts: Sequence[int], times: Sequence[Sequence[float]]) -> list[float]:
    """The slope of the straight line of least squares through the times of each round.

    Args:
        counts: numbers of operators, at least two different ones.
        times: for each of them the seconds in every round; what has more rounds than others is cut.

    Returns:
        Seconds per operator, one per round.
    """
    rounds = min(len(each) for each in times)
    x = np.asarray(counts, np.float64)
    y = np.asarray([list(each)[:rounds] for each in times], np.float64)
    centred = x - x.mean()
    return [float(slope) for slope in centred @ (y - y.mean(axis=0)) / (centred @ centred)]
