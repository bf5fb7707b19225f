"""Scaling studies: analysis on synthetic measurements, the command on real ranks, rows, tables and plots."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from meta500.benchmarks.scaling import rows as scaling_rows
from meta500.benchmarks.scaling import tables
from meta500.benchmarks.scaling.analysis import (
    Network,
    accuracy,
    checks,
    computation_of,
    curves,
    elsewhere,
    rank_counts,
    stops_paying,
    subject_of,
)
from meta500.benchmarks.scaling.command import described
from meta500.benchmarks.scaling.job import Job, Outcome
from meta500.benchmarks.training import Setup
from meta500.cli.application import application
from meta500.distributed.model.computation import Computation
from meta500.distributed.model.links import Link, Piece
from meta500.distributed.model.machine import Channel, Machine
from meta500.distributed.model.microbenchmark import Measurements
from meta500.distributed.model.prediction import Subject, predict
from meta500.distributed.model.schemes import Tensors
from meta500.errors import UserError
from meta500.metrics.plots import plots_from_run
from meta500.metrics.plots.scaling import studies_from_rows
from meta500.metrics.run import RunFolder

SCHEMES = ("consistent-decentralized", "consistent-neighbors", "inconsistent-parameter-server")
COUNTS = (1, 2, 3, 4)
JOB = Job(Setup(batch_size=64), SCHEMES, COUNTS)
TENSORS = Tensors((("w", (512, 512), "float32"), *((f"b{i}", (64,), "float32") for i in range(16))))
MACHINE = Machine(
    Channel(Link((Piece(0, 2e-6, 2e-10),)), Link((Piece(0, 3e-6, 3e-10),))),
    gamma=1e-10,
    cores=2,
    shared=Channel.uniform(9e-6, 8e-10),
    copy=5e-11,
    call=2e-5,
    tensor=1e-6,
    wake=5e-4,
    turn=1e-3,
    ranks_per_node=4,
)
COMPUTATION = Computation({b: 2e-3 + 3e-4 * b for b in JOB.batches()}, update=1e-3, busy=1.2, slicing=1.05)
TRUTH = Subject(MACHINE, COMPUTATION, TENSORS, 64, scales=dict.fromkeys(SCHEMES, 1.5))


def outcome(noise=0.0, seed=0):
    """What ranks would measure if the model were the truth, with log-normal noise."""
    rng = np.random.default_rng(seed)

    def samples(seconds):
        return [float(seconds * math.exp(noise * rng.standard_normal())) for _ in range(9)]

    sizes = [4 * 4**k for k in range(12)]
    network = Measurements()
    for place in ("inside", "shared"):
        for kind in ("one_way", "exchange"):
            link = getattr(getattr(MACHINE, place), kind)
            network.messages |= {(place, kind, n): samples(link.seconds(n)) for n in sizes}
    for ranks in (2, 3, 4):
        for n in (8, 65536, 2**20):
            small = MACHINE.collective("allreduce", ranks, 8)
            for operation in ("allreduce", "broadcast", "reduce"):
                extra = 0.0 if operation == "allreduce" else small
                network.collectives[operation, ranks, n] = samples(
                    MACHINE.collective(operation, ranks, n) + extra
                )
    network.local = {name: samples(getattr(MACHINE, name)) for name in ("gamma", "copy", "call", "tensor")}
    keys = [(s, k, p) for s in SCHEMES for k in ("weak", "strong") for p in COUNTS]
    found = Outcome(
        2,
        1,
        4,
        list(TENSORS.parameters),
        [],
        network,
        {b: samples(COMPUTATION.alone(b)) for b in JOB.batches()},
        samples(COMPUTATION.update),
        samples(COMPUTATION.busy),
        2,
        samples(COMPUTATION.busy * COMPUTATION.slicing),
        samples(MACHINE.turn),
        [1.0] * 50,
        {key: samples(predict(TRUTH, key[0], key[2], key[1]).seconds) for key in keys},
        {(s, k, p): 0.0 if p == 1 else 1e6 for s, k, p in keys},
    )
    return Outcome.from_dict(json.loads(json.dumps(found.to_dict())))


def test_what_the_model_made_is_predicted_from_the_other_rank_counts():
    found = checks(JOB, outcome())
    assert [(c.scheme, c.scaling, c.ranks) for c in found] == [
        (s, k, p) for s in SCHEMES for k in ("weak", "strong") for p in COUNTS
    ]
    for check in found:
        assert check.predicted == pytest.approx(check.seconds, rel=0.03), check
    median, worst = accuracy(found)
    assert median <= worst < 0.03


def test_noise_of_five_percent_stays_within_twenty():
    _, worst = accuracy(checks(JOB, outcome(noise=0.05)))
    assert 0.001 < worst < 0.2


def test_predictions_do_not_know_what_they_are_checked_against():
    honest, wrong = outcome(), outcome()
    for key in wrong.steps:
        if key[2] == 4:
            wrong.steps[key] = [17.0] * 9
    for key in wrong.network.collectives:
        if key[1] == 4:
            wrong.network.collectives[key] = [17.0] * 9
    a, b = ([c.predicted for c in checks(JOB, each) if c.ranks == 4] for each in (honest, wrong))
    assert a == b
    a, b = ([c.predicted for c in checks(JOB, each) if c.ranks == 2] for each in (honest, wrong))
    assert a != b


def test_few_busy_ranks_say_what_many_will_do():
    found = replace(outcome(), cores=9, busy_ranks=3, busy=[1.1, 1.2, 1.3])
    assert computation_of(found, JOB).busy == pytest.approx(1 + 0.2 * 8 / 2)


def test_a_machine_that_the_user_describes():
    subject = subject_of(JOB, outcome())
    assert elsewhere(subject, Network()).machine.ranks_per_node is None
    there = elsewhere(subject, Network(alpha=1e-6, beta=1e-10, cores=64, ranks_per_node=32))
    assert (there.machine.cores, there.machine.on_node(4096)) == (64, 32)
    assert there.machine.between.one_way.seconds(100) == pytest.approx(1e-6 + 1e-8)
    assert described(there, Network(alpha=1e-6)).endswith("between them 1 µs and 10 GB/s (given)")
    assert "none between nodes is known" in described(elsewhere(subject, Network()), Network())


def test_rank_counts_and_curves():
    assert rank_counts(4096)[:4] == [1, 2, 4, 8] and rank_counts(4096)[-1] == 4096
    assert rank_counts(100, (1, 3)) == [1, 2, 3, 4, 8, 16, 32, 64, 100]
    subject = subject_of(JOB, outcome())
    strong = curves(subject, SCHEMES, "strong", rank_counts(4096))
    assert all(curve[-1].ranks == 64 and curve[-1].batch == 1 for curve in strong.values())


def test_rows_tables_and_plots_from_the_folder_alone(tmp_path):
    measured = outcome(noise=0.02)
    subject, found = subject_of(JOB, measured), checks(JOB, measured)
    there = elsewhere(subject, Network(alpha=2e-6, beta=1e-10, cores=32))
    with RunFolder.create(tmp_path / "run", command=["test"], environment={}) as folder:
        folder.extend(scaling_rows.step_rows(JOB, measured, found))
        folder.extend(scaling_rows.network_rows(JOB, measured))
        folder.extend(scaling_rows.model_rows(JOB, measured, subject))
        limits = {}
        for scaling in JOB.scalings:
            predicted = curves(there, SCHEMES, scaling, rank_counts(4096, COUNTS))
            limits[scaling] = stops_paying(predicted, 0.5)
            folder.extend(scaling_rows.prediction_rows(JOB, predicted, "somewhere"))
            folder.extend(scaling_rows.limit_rows(JOB, scaling, limits[scaling], 0.5))
    (study,) = studies_from_rows(RunFolder.open(folder.path).rows)
    assert (study.threshold, study.network) == (0.5, "somewhere")
    by_name = {(s.scheme, s.scaling): s for s in study.series}
    assert set(by_name) == {(s, k) for s in SCHEMES for k in ("weak", "strong")}
    for (scheme, scaling), series in by_name.items():
        assert [m.ranks for m in series.measured] == list(COUNTS)
        expected = [c.predicted for c in found if (c.scheme, c.scaling) == (scheme, scaling)]
        assert [m.checked for m in series.measured] == expected
        assert series.predicted[-1][0] == (4096 if scaling == "weak" else 64)
        assert series.inefficient == limits[scaling][scheme].inefficient
    written = plots_from_run(folder.path, ("png", "svg"))
    names = {path.name for path in written}
    assert names == {
        f"scaling-{what}.{kind}"
        for what in ("weak", "strong", "errors", "network")
        for kind in ("png", "svg")
    }
    svg = next(path for path in written if path.name == "scaling-weak.svg").read_bytes()
    plots_from_run(folder.path, ("png", "svg"))
    assert (folder.path / "plots" / "scaling-weak.svg").read_bytes() == svg

    import io

    from rich.console import Console

    text = io.StringIO()
    console = Console(file=text, width=118)
    console.print(tables.measured_table(found, measured.volumes))
    console.print(tables.predicted_table(curves(there, SCHEMES, "weak", rank_counts(4096)), "weak"))
    console.print(tables.limit_table(limits, 0.5, 4096))
    for word in (*SCHEMES, "4096", "efficiency below 50 %"):
        assert word in text.getvalue()
    assert max(map(len, text.getvalue().splitlines())) <= 118


def test_jobs_survive_json_and_refuse_nonsense():
    setup = Setup(model_options={"hidden": (8, 4)}, batch_size=10, metrics=("accuracy",), augment=("flip",))
    job = Job(setup, ("model-average",), (1, 4), ("strong",), {"model-average": {"every": 2}})
    assert Job.from_dict(json.loads(json.dumps(job.to_dict()))) == job
    assert [job.local_batch("strong", 4, r) for r in range(4)] == [3, 3, 2, 2]
    assert job.batches() == [1, 2, 3, 10]
    for values, message in (
        ({"schemes": ("consistent",)}, "unknown scheme 'consistent'"),
        ({"options": {"model-average": {"evry": 2}}}, "Did you mean 'every'"),
        ({"counts": (1, 11)}, "a batch of 10 cannot be divided among 11 ranks"),
        ({"counts": (0,)}, "must be at least 1"),
        ({"scalings": ("wide",)}, "unknown scaling 'wide'"),
    ):
        with pytest.raises(UserError, match=message):
            replace(job, **values)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--ranks", "1;2"], "--ranks '1;2' must be whole numbers"),
        (["--ranks", "1,0"], "must be whole numbers of at least 1"),
        (["--scheme", "ring"], "unknown scheme 'ring'"),
        (["--scheme-option", "every=2"], "not of the form SCHEME:key=value"),
        (["--threshold", "2"], "--threshold 2.0: must be between 0 and 1"),
        (["--ranks", "1", "--predict"], "--predict needs messages between 2 ranks"),
        (["--model", "mlpp"], "unknown model 'mlpp'"),
    ],
)
def test_the_command_refuses_bad_input_before_anything_starts(arguments, message, tmp_path):
    done = CliRunner().invoke(application, ["scale", *arguments, "--out", str(tmp_path / "run")])
    assert isinstance(done.exception, UserError) and message in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_the_command_measures_and_predicts(tmp_path):
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: install meta500[mpi]")
    run = tmp_path / "run"
    words = [
        "scale",
        "--model",
        "mlp",
        "--backend",
        "numpy",
        "--quick",
        "--ranks",
        "1,2",
        "--weak",
        "--predict",
    ]
    words += ["--scheme", "consistent-decentralized", "--scheme", "inconsistent-parameter-server"]
    words += [
        "--alpha",
        "1e-6",
        "--beta",
        "1e-10",
        "--up-to",
        "64",
        "--batch-size",
        "16",
        "--out",
        str(run),
        "--json",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "meta500", *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert [(s["scheme"], s["ranks"]) for s in summary["steps"]] == [
        (scheme, p)
        for scheme in ("consistent-decentralized", "inconsistent-parameter-server")
        for p in (1, 2)
    ]
    folder = RunFolder.open(run)
    assert folder.status == "finished"
    rows = folder.rows
    steps = [r for r in rows if r.quantity == "step_time"]
    assert len(steps) == 4 and all(1 <= len(r.samples) <= 3 and min(r.samples) > 0 for r in steps)
    assert {r.batch for r in steps if r.ranks == 2} == {32}
    model_bytes = next(r.value for r in rows if r.quantity == "parameters")
    handed = {(r.operator, r.ranks): r.value for r in rows if r.quantity == "bytes_handed"}
    # All gradients, and the numbers of samples with them.
    assert model_bytes < handed["consistent-decentralized", 2] <= model_bytes + 16
    assert handed["consistent-decentralized", 1] == 0
    assert max(r.ranks for r in rows if r.quantity == "predicted_step_time") == 64
    assert (run / "plots" / "scaling-weak.png").exists() and (run / "plots" / "scaling-network.png").exists()
