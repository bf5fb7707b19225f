"""Epochs per second of training, from steps that are timed in processes that take turns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from meta500.benchmarks.against_torch import Plan, measure_net, unet
from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.step_worker import TRAINING
from meta500.benchmarks.studies.codegen import memory
from meta500.benchmarks.studies.codegen.generation import LIMIT
from meta500.benchmarks.studies.codegen.settings import EPOCH_IMAGES, Point, epochs_per_second
from meta500.benchmarks.variants import GENERATED, Variant
from meta500.metrics.rows import Row

EPOCH_RATE, EPOCHS_PER_SECOND = "epoch_rate", "epochs/s"


def measure_epochs(
    point: Point,
    variants: Sequence[Variant],
    rounds: int,
    environment: dict[str, str],
    emit: Emit,
    *,
    warmup: int = 2,
    error: bool = True,
    seed: int = 0,
    max_seconds: float = math.inf,
) -> None:
    """Time training steps of all variants in turns.

    Where memory might not hold all processes, what each will need is foreseen; those that fit together take
    turns, the generated code in every group, and those that fit nowhere are not run. The first losses of all
    groups are compared with each other.

    Args:
        point: the network.
        variants: who is compared, the generated backend first.
        rounds: that are sampled; warmup: rounds before.
        environment: of all processes.
        emit: receives the rows: "time", "first_call", "ratio" to the generated code, "epoch_rate".
        error: measure the error of the generated code against float64.
        seed: of weights and images.
        max_seconds: of all rounds; see :class:`meta500.benchmarks.against_torch.Plan`.
    """
    groups = [list(variants)]
    available = memory.available_memory()
    if memory.may_not_fit(point, len(variants), available):
        foreseen = memory.foresee(point, variants, environment, seed)
        for row in memory.foreseen_rows(point, foreseen, variants):
            emit(row)
        groups, left_out = memory.groups_that_fit(variants, foreseen, available)
        for variant in left_out:
            beside = [v for group in groups[:1] for v in group if v.backend == GENERATED]
            others = sum(memory.needed(foreseen, v) for v in beside)
            reason = memory.reason_of(foreseen[variant.name], available, others)
            emit(memory.refused_row(point, variant, EPOCH_RATE, EPOCHS_PER_SECOND, reason))
    net = unet(point.n, point.size, point.batch, point.dtype)
    losses: dict[str, float] = {}
    for number, group in enumerate(group for group in groups if group):
        plan = Plan((), (TRAINING,), tuple(group), rounds, point.threads, warmup, LIMIT)
        plan = replace(plan, environment=environment, error=error and not number, max_seconds=max_seconds)
        # The times of the generated code are those of the first group; its ratios are of each.
        keep = [v for v in group if not number or v.backend != GENERATED]
        passing = partial(_passed_on, keep=keep, emit=emit)
        measure_net(plan, net, passing, seed=seed, known=losses)


def _passed_on(row: Row, keep: Sequence[Variant], emit: Emit) -> None:
    if not any((row.backend, row.mode) == (v.backend, v.mode) for v in keep):
        return
    emit(with_epochs(row))
    if row.quantity == "time" and row.verdict == "failed":
        nothing: dict[str, Any] = {"value": None, "low": None, "high": None, "samples": ()}
        emit(replace(row, quantity=EPOCH_RATE, unit=EPOCHS_PER_SECOND, **nothing))


def with_epochs(row: Row) -> Row:
    """Images per second as epochs per second; other rows as they are."""
    if row.quantity != "throughput" or row.value is None:
        return row
    numbers: dict[str, Any] = {
        end: None if value is None else epochs_per_second(value)
        for end, value in (("value", row.value), ("low", row.low), ("high", row.high))
    }
    return replace(
        row,
        quantity=EPOCH_RATE,
        unit=EPOCHS_PER_SECOND,
        samples=tuple(map(epochs_per_second, row.samples)),
        note="; ".join(filter(None, (row.note, f"an epoch is {EPOCH_IMAGES} images"))),
        **numbers,
    )
