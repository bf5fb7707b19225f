"""``meta500 scale``: measure, check the model, predict, write the run folder."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from meta500.benchmarks.scaling import rows, tables
from meta500.benchmarks.scaling.analysis import (
    LARGEST,
    Network,
    accuracy,
    checks,
    curves,
    elsewhere,
    rank_counts,
    stops_paying,
    subject_of,
)
from meta500.benchmarks.scaling.job import Job, Outcome
from meta500.benchmarks.scaling.launching import launch
from meta500.benchmarks.training import announce, load_model, load_sets
from meta500.distributed.model.prediction import Subject
from meta500.distributed.model.stage import QUIET
from meta500.errors import UserError
from meta500.metrics.run import RunFolder


def scale_command(
    job: Job,
    *,
    prediction: bool = False,
    largest: int = LARGEST,
    network: Network | None = None,
    threshold: float = 0.5,
    out: Path | None = None,
    as_json: bool = False,
) -> int:
    """Run a study.

    Args:
        job: what is measured.
        prediction: predict too, up to ``largest`` ranks on the ``network`` that the user describes.
        threshold: of the efficiency, below which a scheme does not pay.
        out: run folder.
        as_json: print a summary as JSON instead of tables.

    Returns:
        0.

    Raises:
        UserError: anything in the job that does not fit, or ranks that failed.
    """
    network = network or Network()
    if largest < 1:
        raise UserError(f"--up-to {largest}: at least 1 rank is needed")
    if not 0 < threshold < 1:
        raise UserError(f"--threshold {threshold}: must be between 0 and 1")
    if prediction and max(job.counts) < 2:
        raise UserError("--predict needs messages between 2 ranks at least; measure more with --ranks 1,2")
    train_set, _ = load_sets(job.setup)
    load_model(job.setup, train_set)
    with RunFolder.create(out, command=sys.argv, seeds={"seed": job.setup.seed}) as folder:
        folder.info["job"] = job.to_dict()
        announce(folder)
        outcome = launch(job)
        _write(folder, job, outcome, prediction, largest, network, threshold, as_json)
    from meta500.metrics.plots import plots_from_run

    plots_from_run(folder.path)
    return 0


def _write(
    folder: RunFolder,
    job: Job,
    outcome: Outcome,
    prediction: bool,
    largest: int,
    network: Network,
    threshold: float,
    as_json: bool,
) -> None:
    """Rows into the folder, tables or rows to standard output."""
    from meta500.benchmarks.tables import console as make_console

    subject = subject_of(job, outcome)
    found = checks(job, outcome)
    median, worst = accuracy(found)
    folder.info["model"] = {
        "machine": subject.machine.to_dict(),
        "computation": subject.computation.to_dict(),
        "singles": dict(subject.singles),
        "scales": dict(subject.scales),
        "network": asdict(network),
    }
    shown = [tables.measured_table(found, outcome.volumes)]
    folder.extend(rows.step_rows(job, outcome, found))
    folder.extend(rows.network_rows(job, outcome))
    folder.extend(rows.model_rows(job, outcome, subject))
    if prediction:
        there = elsewhere(subject, network)
        limits = {}
        for scaling in job.scalings:
            predicted = curves(there, job.schemes, scaling, rank_counts(largest, job.counts))
            limits[scaling] = stops_paying(predicted, threshold)
            folder.extend(rows.prediction_rows(job, predicted, described(there, network)))
            folder.extend(rows.limit_rows(job, scaling, limits[scaling], threshold))
            shown.append(tables.predicted_table(predicted, scaling))
        shown.append(tables.limit_table(limits, threshold, largest))
    if as_json:
        steps = [{**asdict(check), "error": check.error} for check in found]
        summary: dict[str, Any] = {"run": str(folder.path), "id": folder.id, "steps": steps}
        if prediction:
            summary["limits"] = {k: {s: asdict(x) for s, x in each.items()} for k, each in limits.items()}
        sys.stdout.write(json.dumps(summary) + "\n")
        return
    console = make_console()
    for table in shown:
        console.print(table)
    if not math.isnan(median):
        console.print(
            f"Prediction from the other rank counts: median error {100 * median:.0f} %, "
            f"largest {100 * worst:.0f} %",
            highlight=False,
        )
    load = rows.foreign_load(outcome)
    if load > QUIET:
        console.print(
            f"Other programs used {100 * load:.0f} % of the cores meanwhile: repeat on a quiet machine",
            highlight=False,
        )
    if prediction:
        console.print(f"Predicted: {described(there, network)}", highlight=False)
    console.print(f"Results: {folder.path}", highlight=False, soft_wrap=True)


def described(subject: Subject, network: Network) -> str:
    """The machine of a prediction in words."""
    machine = subject.machine
    per_node = machine.ranks_per_node or max(1, machine.cores // subject.threads)
    link = (machine.between or machine.inside).one_way
    source = "given" if network.alpha is not None or network.beta is not None else "measured"
    if machine.between is None:
        source = "measured inside a node, none between nodes is known"
    cores = f"{machine.cores} core{'s' if machine.cores > 1 else ''}"
    ranks = f"{per_node} rank{'s' if per_node > 1 else ''}"
    return (
        f"nodes of {cores} with {ranks}; between them {1e6 * link.latency:.3g} µs and "
        f"{link.bandwidth / 1e9:.3g} GB/s ({source})"
    )
