"""Ranks that die, raise, run dry or compute NaN: all ranks end soon, with one message, and the rows stay."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from meta500.metrics import RunFolder

# Seconds in which a run has to end after a fault, on a machine that is busy with other tests.
BOUND = 60
ROOT = Path(__file__).parents[2]

PROGRAM = """
from meta500.distributed import faults
faults.supervise()
import os, signal, sys, time
import numpy as np
import meta500
from meta500.benchmarks.ranks import run_folder
from meta500.datasets import Dataset
from meta500.distributed import CommunicationNetwork
from meta500.distributed.decentralized import ConsistentDecentralized
from meta500.distributed.runner import DistributedRunner
from meta500.metrics import RunFolder, Ticker
from meta500.metrics.tickers import RowsTicker

mode, where, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
communication = CommunicationNetwork()
rank, size = communication.rank, communication.size
here = rank == where

class Fault(Ticker):
    def after_optimizer_step(self, state):
        if mode == "along" and not here and state.step == 3:  # as MPI does when it misses a rank
            time.sleep(0.3)
            os._exit(143)
        if not here or state.step != 3:
            return
        if mode in ("kill", "along"):
            os.kill(os.getpid(), signal.SIGKILL)
        if mode == "ticker":
            raise ValueError("bad day")
        if mode == "interrupt":
            os.kill(os.getppid(), signal.SIGINT)
        if mode == "exit":
            os._exit(3)

rng = np.random.default_rng(0)
data = Dataset("random", {"image": rng.normal(size=(40, 1, 2, 3)), "label": rng.integers(0, 4, 40)})

def batches():
    for step in range(20):
        batch = data.batch(np.arange(4) + step % 9 * 4)
        if here and mode == "data" and step == 3:
            raise OSError("the disk is gone")
        if here and mode == "nan" and step == 3:
            batch["image"][1] = np.nan
        if here and mode == "label" and step == 3:
            batch["label"][1] = 17
        if here and mode == "short" and step == 3:
            return
        yield batch

with faults.guard(communication, patience=2.0):
    hidden = 6 if mode == "unequal" and here else 5
    if mode == "setup" and here:
        raise meta500.UserError("no such thing: 'x'; use y")
    model = meta500.models.mlp("N", shape=(1, 2, 3), hidden=(hidden,), classes=4, dtype="float64")
    with run_folder(communication, lambda: RunFolder.create(path)) as (folder, _):
        network = meta500.network(model, "numpy")
        optimizer = ConsistentDecentralized(meta500.optimizers.SGD(network, learning_rate=0.05), communication)
        DistributedRunner(network, optimizer, batches(), logits=None, folder=folder, communication=communication,
                          tickers=[RowsTicker(folder), Fault()]).run(1)
"""

# mode, ranks, rank with the fault, exit code, what the message says, steps whose rows are kept
CASES = [
    ("kill", 2, 1, 1, "meta500: error: rank 1 (process ", 3),
    ("kill", 3, 0, 1, "meta500: error: rank 0 (process ", None),
    ("along", 2, 1, 1, "meta500: error: rank 1 (process ", None),
    ("along", 3, 0, 1, "meta500: error: rank 0 (process ", None),
    ("exit", 2, 1, 3, "meta500: error: rank 1 (process ", 3),
    ("ticker", 2, 1, 1, "meta500: error: rank 1: ValueError: bad day", 3),
    ("data", 2, 1, 1, "meta500: error: rank 1: OSError: the disk is gone", 3),
    ("label", 3, 2, None, "meta500: error: rank 2: ", 3),
    ("nan", 2, 1, 1, "meta500: error: rank 1: the loss is nan in step 4", 3),
    ("short", 2, 1, 2, "rank 1: its data ended after batch 3 of epoch 0, but rank 0 had more", 3),
    ("unequal", 2, 1, 2, "rank 1", 0),
    ("setup", 2, 1, 2, "meta500: error: rank 1: no such thing: 'x'; use y", None),
    ("interrupt", 2, 1, 130, "meta500: interrupted", 3),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("mode", "ranks", "where", "code", "message", "steps"),
    CASES,
    ids=[f"{c[0]}-{c[2]}-of-{c[1]}" for c in CASES],
)
def test_a_fault_ends_all_ranks_with_one_message(mpiexec, tmp_path, mode, ranks, where, code, message, steps):
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    begin = time.monotonic()
    done = mpiexec(ranks, script, mode, where, tmp_path / "run", returncode=None, timeout=BOUND + 60)
    assert time.monotonic() - begin < BOUND
    assert done.returncode == code if code is not None else done.returncode != 0, done.stderr
    assert message in done.stderr, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("meta500: ")]
    assert len(told) == 1, done.stderr
    tracebacks = done.stderr.count("Traceback")
    assert tracebacks == (1 if mode in ("ticker", "data") else 0), done.stderr
    assert "BAD TERMINATION" not in done.stdout
    if mode in ("kill", "along"):
        assert "was killed by signal 9 (SIGKILL) in step 3" in done.stderr
    if mode == "along":
        assert RunFolder.open(tmp_path / "run").status == "failed"
    if steps is None:
        return
    run = RunFolder.open(tmp_path / "run")
    assert run.status == ("interrupted" if mode == "interrupt" else "failed")
    losses = [
        value for r in run.rows if r.phase == "training_step" and r.quantity == "loss" for value in r.samples
    ]
    if mode == "interrupt":  # the signal takes its way while the ranks go on
        assert steps <= len(losses) < 20
    else:
        assert len(losses) == steps
        assert f"rank {where}" in run.info["message"]


def test_bad_input_is_said_once(mpiexec, tmp_path):
    words = [sys.executable, "-m", "meta500", "train", "--quick", "--backend", "numpy"]
    for wrong, text in (
        (["--model", "nothing"], "unknown model 'nothing'"),
        (["--scheme", "nothing"], "unknown distributed scheme 'nothing'"),
        (["--ranks", "3"], "--ranks 3 does not agree with the 2 ranks"),
        (["--no-such-option"], "No such option"),
    ):
        done = mpiexec(2, [*words, *wrong, "--out", "run"], returncode=2, cwd=tmp_path)
        assert done.stderr.count(text) == 1, done.stderr
        assert done.stdout == "" and not (tmp_path / "run").exists()


def started(tmp_path, *words):
    """``meta500 train --ranks 2`` that has written rows and a checkpoint, and runs on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "meta500", "train", "--ranks", "2", "--backend", "numpy", "--model", "mlp",
         "--epochs", "5000", "--checkpoint-every", "5", "--out", "run", *words],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    deadline = time.monotonic() + BOUND
    while time.monotonic() < deadline and process.poll() is None:
        rows = tmp_path / "run" / "rows.csv"
        if (
            rows.exists()
            and "training_step" in rows.read_text()
            and list((tmp_path / "run").glob("checkpoints/s*"))
        ):
            return process
        time.sleep(0.1)
    process.kill()
    pytest.fail(f"the training did not start: {process.communicate()}")


def ranks_of(process):
    """The processes that compute, by rank: of each rank the one without children."""
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        if not child.children() and "PMI_RANK" in child.environ():
            found[int(child.environ()["PMI_RANK"])] = child
    return found


def finished(process, tmp_path):
    descendants = psutil.Process(process.pid).children(recursive=True)
    yield
    try:
        out, err = process.communicate(timeout=BOUND)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"not ended within {BOUND} s: {process.communicate()}")
    _gone, alive = psutil.wait_procs(descendants, timeout=15)
    assert not alive
    yield process.returncode, out, err, RunFolder.open(tmp_path / "run")


def test_a_killed_rank_of_the_command_line(tmp_path):
    process = started(tmp_path)
    end = finished(process, tmp_path)
    next(end)
    victim = ranks_of(process)[1]
    victim.kill()
    code, out, err, run = next(end)
    assert code == 1 and out == ""
    told = [line for line in err.splitlines() if line.startswith("meta500: ")]
    assert len(told) == 1 and f"rank 1 (process {victim.pid} on " in told[0]
    assert "was killed by signal 9 (SIGKILL) in step " in told[0] and str(tmp_path / "run") in told[0]
    assert run.status == "failed" and f"process {victim.pid}" in run.info["message"]
    assert not run.problems and [r for r in run.rows if r.phase == "training_step" and r.quantity == "loss"]
    assert list((tmp_path / "run" / "checkpoints").glob("step-*"))


def test_ctrl_c_of_the_command_line(tmp_path):
    process = started(tmp_path)
    end = finished(process, tmp_path)
    next(end)
    process.send_signal(signal.SIGINT)
    code, _, err, run = next(end)
    assert code == 130, err
    assert [line for line in err.splitlines() if line.startswith("meta500: ")] == [
        "meta500: interrupted; the rows so far are in the run folder"
    ]
    assert run.status == "interrupted"
    assert {r.note for r in run.rows if r.quantity == "calls"} == {"rank 0", "rank 1"}
