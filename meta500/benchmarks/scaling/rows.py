"""Result rows of a scaling study: all that tables and plots need, measured and predicted.

The column ``operator`` names the scheme, or the kind of message or collective; ``protocol`` begins with the
scaling; ``batch`` is that of all ranks together. Quantities:

==========================  ===================  ==========================================================
phase                       quantity             value
==========================  ===================  ==========================================================
training_step               step_time            measured median
training_step               checked_step_time    predicted from the other rank counts
training_step               predicted_step_time  predicted from all measurements
training_step               prediction_error     checked over measured, minus 1
training_step               bytes_handed         bytes that the busiest rank hands to the interface per step
message, collective         message_time, ...    measured, by ``shape`` ("65536 B"); node: where
message, collective         predicted_...        by the fitted model
pass                        pass_time            of one rank alone, by batch
model                       its parameter's name see `Machine` and `Computation`
limit                       ranks_...            where a scheme stops paying; see `Limit`
==========================  ===================  ==========================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import version
from meta500.benchmarks.scaling.analysis import Check, machine_of
from meta500.benchmarks.scaling.job import Job, Outcome
from meta500.benchmarks.training import optimizer_name
from meta500.distributed.model.calibration import collective_seconds
from meta500.distributed.model.prediction import Limit, Prediction, Subject
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

STEP, MESSAGE, COLLECTIVE, PASS, MODEL, LIMIT = (
    "training_step", "message", "collective", "pass", "model", "limit",
)  # fmt: skip


def who(job: Job) -> dict[str, Any]:
    """The columns that all rows of a study share."""
    setup = job.setup
    return {
        "level": 3,
        "model": setup.model,
        "dataset": setup.dataset,
        "optimizer": optimizer_name(setup),
        "backend": setup.backend,
        "mode": str(setup.backend_options.get("mode", "eager" if setup.backend == "torch" else "")),
        "version": version(setup.backend),
        "threads": job.threads,
        "device": "cpu",
        "seed": setup.seed,
    }


def step_rows(job: Job, outcome: Outcome, found: Sequence[Check]) -> list[Row]:
    """Measured steps with their intervals, their predictions, and the errors of these."""
    rows = []
    for check in found:
        key = (check.scheme, check.scaling, check.ranks)
        samples = tuple(outcome.steps[key])
        what = {
            **who(job),
            "phase": STEP,
            "operator": check.scheme,
            "ranks": check.ranks,
            "batch": _samples(job, check.scaling, check.ranks),
            "protocol": f"{check.scaling}, interleaved",
        }
        rows.append(
            Row(
                **what,
                quantity="step_time",
                unit="s",
                samples=samples,
                repeats=len(samples),
                **asdict(median_interval(samples)),
            )
        )
        volume = outcome.volumes[key]
        rows.append(Row(**what, quantity="bytes_handed", unit="B", value=volume))
        what["protocol"] = f"{check.scaling}, calibrated without {check.ranks} ranks"
        rows.append(Row(**what, quantity="checked_step_time", unit="s", value=check.predicted))
        if check.ranks > 1:
            rows.append(Row(**what, quantity="prediction_error", unit="1", value=check.error))
    return rows


def prediction_rows(job: Job, curves: Mapping[str, Sequence[Prediction]], note: str) -> list[Row]:
    """Predicted steps; the note says on what machine."""
    return [
        Row(
            **who(job),
            phase=STEP,
            operator=prediction.scheme,
            ranks=prediction.ranks,
            batch=prediction.samples,
            protocol=f"{prediction.scaling}, predicted",
            quantity="predicted_step_time",
            unit="s",
            value=prediction.seconds,
            note=note,
        )
        for curve in curves.values()
        for prediction in curve
    ]


def limit_rows(job: Job, scaling: str, found: Mapping[str, Limit], threshold: float) -> list[Row]:
    """Where schemes stop paying, and the threshold that this is about."""
    what = {**who(job), "phase": LIMIT, "unit": "1", "protocol": f"{scaling}, predicted"}
    rows = [Row(**what, quantity="efficiency_threshold", value=threshold)]
    for scheme, limit in found.items():
        for quantity, value, baseline in (
            ("ranks_inefficient", limit.inefficient, ""),
            ("ranks_overtaken", limit.overtaken, limit.by),
            ("ranks_slower", limit.slower, ""),
        ):
            if value is not None:
                rows.append(Row(**what, operator=scheme, quantity=quantity, value=value, baseline=baseline))
    return rows


def network_rows(job: Job, outcome: Outcome) -> list[Row]:
    """Messages and collectives, measured and by the model (of collectives, without this rank count)."""
    machine = machine_of(outcome, job)
    channels = {"inside": machine.inside, "between": machine.between, "shared": machine.shared}
    rows = []

    def measured(samples: Sequence[float], **what: Any) -> Row:
        interval = asdict(median_interval(samples))
        return Row(**who(job), **what, unit="s", samples=tuple(samples), repeats=len(samples), **interval)

    for (place, kind, nbytes), samples in outcome.network.messages.items():
        where: dict[str, Any] = {"phase": MESSAGE, "node": place, "operator": kind, "shape": f"{nbytes} B"}
        rows.append(measured(samples, **where, quantity="message_time"))
        channel = channels[place]
        if channel is not None:
            seconds = getattr(channel, kind).seconds(nbytes)
            rows.append(Row(**who(job), **where, quantity="predicted_message_time", unit="s", value=seconds))
    held_out = {p: machine_of(outcome, job, (p,)) for p in {p for _, p, _ in outcome.network.collectives}}
    for (operation, ranks, nbytes), samples in outcome.network.collectives.items():
        where = {"phase": COLLECTIVE, "operator": operation, "shape": f"{nbytes} B", "ranks": ranks}
        rows.append(measured(samples, **where, quantity="collective_time"))
        seconds = held_out[ranks].collective(operation, ranks, nbytes, threads=job.threads)
        rest = collective_seconds(outcome.network, operation, ranks, nbytes, [0.0])
        predicted: dict[str, Any] = {
            "quantity": "predicted_collective_time",
            "unit": "s",
            "value": seconds - rest,
        }
        rows.append(Row(**who(job), **where, **predicted, note=f"calibrated without {ranks} ranks"))
    return rows


def model_rows(job: Job, outcome: Outcome, subject: Subject) -> list[Row]:
    """Passes by batch, and the parameters of the model."""
    rows = []
    for batch, samples in sorted(outcome.passes.items()):
        rows.append(
            Row(
                **who(job),
                phase=PASS,
                batch=batch,
                ranks=1,
                quantity="pass_time",
                unit="s",
                samples=tuple(samples),
                repeats=len(samples),
                **asdict(median_interval(samples)),
            )
        )
    machine, computation = subject.machine, subject.computation
    numbers = [
        ("gamma", "s/B", machine.gamma, ""),
        ("copy", "s/B", machine.copy, ""),
        ("call", "s", machine.call, ""),
        ("tensor", "s", machine.tensor, ""),
        ("wake", "s", machine.wake, ""),
        ("turn", "s", machine.turn, ""),
        ("balance", "s", machine.balance, ""),
        ("cores", "1", float(machine.cores), ""),
        ("update_time", "s", computation.update, ""),
        ("busy", "1", computation.busy, ""),
        ("slicing", "1", computation.slicing, ""),
        ("jitter", "1", computation.jitter, ""),
        ("foreign_load", "1", foreign_load(outcome), ""),
        ("parameters", "B", float(subject.tensors.nbytes), ""),
        *(("computation_scale", "1", scale, scheme) for scheme, scale in subject.singles.items()),
        *(("exchange_scale", "1", scale, scheme) for scheme, scale in subject.scales.items()),
    ]
    for place in ("inside", "between", "shared"):
        channel = getattr(machine, place)
        if channel is None or not outcome.network.messages:
            continue
        for kind in ("one_way", "exchange"):
            for piece in getattr(channel, kind).pieces:
                where = f"{place} {kind} from {piece.start:.0f} B"
                numbers += [("alpha", "s", piece.alpha, where), ("beta", "s/B", piece.beta, where)]
    rows += [
        Row(**who(job), phase=MODEL, quantity=name, unit=unit, value=value, operator=where)
        for name, unit, value, where in numbers
    ]
    return rows


def foreign_load(outcome: Outcome) -> float:
    """Median share of the cores that other programs used during what was measured; 0 for nothing measured."""
    return float(np.median(outcome.disturbance)) if outcome.disturbance else 0.0


def _samples(job: Job, scaling: str, ranks: int) -> int:
    return job.setup.batch_size * (ranks if scaling == "weak" else 1)
