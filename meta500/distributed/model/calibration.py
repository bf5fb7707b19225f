"""From measurements of the micro-benchmark to a machine."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from meta500.distributed.model.collectives import rounds_of
from meta500.distributed.model.links import Link, fit
from meta500.distributed.model.machine import Channel, Efficiency, Machine
from meta500.distributed.model.microbenchmark import Measurements
from meta500.distributed.pending import LONGEST_SLEEP
from meta500.errors import UserError

# Operations that the micro-benchmark ends with an allreduce of one float64.
ANSWERED, TOKEN = ("broadcast", "reduce"), 8


def machine_from(
    measured: Measurements,
    *,
    cores: int,
    ranks_per_node: int | None = None,
    threads: int = 1,
    without: Collection[int] = (),
) -> Machine:
    """Fit the parameters of a machine.

    Args:
        measured: with messages "inside" a node or, on nodes of one core or one rank, "shared" or "between".
        cores: of a node.
        ranks_per_node: see `Machine`.
        threads: of every rank.
        without: rank counts whose collectives are left out, for a check against what was not used.

    Raises:
        UserError: there are no messages among the measurements.
    """
    channels = {place: _channel(measured, place) for place in ("inside", "between", "shared")}
    inside = channels["inside"] or channels["between"] or channels["shared"]
    if inside is None:
        raise UserError(
            "calibration: no messages were measured; start the micro-benchmark on at least 2 ranks"
        )

    def local(name: str) -> float:
        return float(np.median(measured.local[name]))

    machine = Machine(
        inside,
        gamma=local("gamma"),
        cores=cores,
        between=channels["between"],
        shared=channels["shared"],
        copy=local("copy"),
        call=local("call"),
        tensor=local("tensor"),
        wake=LONGEST_SLEEP / 2,
        ranks_per_node=ranks_per_node,
    )
    operations = dict.fromkeys(operation for operation, _, _ in measured.collectives)
    node = machine.on_node(max((p for _, p, _ in measured.collectives), default=1), threads)
    near = {o: efficiency_of(measured, machine, o, threads, without, range(2, node + 1)) for o in operations}
    machine = replace(machine, efficiency=near)
    beyond = range(node + 1, max((p for _, p, _ in measured.collectives), default=1) + 1)
    return replace(
        machine, far={o: efficiency_of(measured, machine, o, threads, without, beyond) for o in operations}
    )


def efficiency_of(
    measured: Measurements,
    machine: Machine,
    operation: str,
    threads: int,
    without: Collection[int],
    counts: Collection[int],
) -> Efficiency:
    """Measured over modelled time by size, the geometric mean over the rank counts.

    Of rank counts on several nodes it is the factor of the rounds between nodes, what the others take (with
    their efficiency) being subtracted.
    """
    ratios: dict[int, list[float]] = {}
    for (name, ranks, nbytes), samples in measured.collectives.items():
        if name != operation or ranks in without or ranks not in counts:
            continue
        near, far = machine.parts(rounds_of(operation, ranks, nbytes), ranks, threads)
        seconds = collective_seconds(measured, operation, ranks, nbytes, samples)
        known = near * machine.efficiency.get(operation, Efficiency()).at(nbytes) if far else 0.0
        if (far or near) > 0 and seconds > known:
            ratios.setdefault(nbytes, []).append((seconds - known) / (far or near))
    sizes = sorted(ratios)
    return Efficiency(
        tuple(map(float, sizes)), tuple(float(np.exp(np.mean(np.log(ratios[n])))) for n in sizes)
    )


def collective_seconds(
    measured: Measurements, operation: str, ranks: int, nbytes: int, samples: list[float]
) -> float:
    """Median time of a collective, without the allreduce that the micro-benchmark ends some with."""
    seconds = float(np.median(samples))
    if operation in ANSWERED:
        seconds -= float(np.median(measured.collectives["allreduce", ranks, TOKEN]))
    return seconds


def _channel(measured: Measurements, place: str) -> Channel | None:
    """Links fitted to the medians of one place; an exchange costs no less than one message."""
    links: dict[str, Link] = {}
    for kind in ("one_way", "exchange"):
        sizes = sorted(n for where, what, n in measured.messages if (where, what) == (place, kind))
        if len(sizes) < 2:
            return None
        links[kind] = fit(sizes, [float(np.median(measured.messages[place, kind, n])) for n in sizes])
    return Channel(links["one_way"], links["exchange"])
