"""One run on several ranks: the same losses, scores and limits as on one."""

import json
import sys

import pytest

SETUP = """
import json, sys
import numpy as np
import meta500
from meta500.datasets import Dataset
from meta500.distributed import CommunicationNetwork
from meta500.distributed.decentralized import ConsistentDecentralized
from meta500.distributed.runner import DistributedRunner
from meta500.metrics import Runner, Ticker, RunFolder
from meta500.metrics.tickers import *
from meta500.optimizers import Adam, SGD

def sets(samples=21, tests=13):
    rng = np.random.default_rng(0)
    def one(n):
        return Dataset("random", {"image": rng.normal(size=(n, 1, 2, 3)), "label": rng.integers(0, 4, n)},
                       classes=tuple("abcd"))
    return one(samples), one(tests)

def make(name="sgd", backend="numpy"):
    model = meta500.models.mlp("N", shape=(1, 2, 3), hidden=(5,), classes=4, dtype="float64")
    network = meta500.network(model, backend)
    return network, meta500.optimizers.create(name, network, learning_rate=0.05)

communication = CommunicationNetwork()
rank, size = communication.rank, communication.size
"""

EQUAL = (
    SETUP
    + """
import math
# 21 samples in global batches of 4 * size: with 3 and 4 ranks the last batch has fewer samples than ranks or is uneven.
checks = []
for name, backend in (("sgd", "numpy"), ("adam", "torch")):
    train, test = sets(samples=4 * size * 2 + 1)
    network, optimizer = make(name, backend)
    runner = DistributedRunner(
        network, ConsistentDecentralized(optimizer, communication), train, test, batch_size=4,
        test_batch_size=3, tickers=[MetricTicker("iou"), MetricTicker("top5") if False else MetricTicker("dice"),
        MetricTicker(lambda p, t: float((p.argmax(1) * 7 + np.arange(len(t)) * t).sum()), name="ordered")], seed=5)
    summary = runner.run(2)
    alone, base = make(name, backend)
    serial = Runner(alone, base, train, test, batch_size=4 * size, test_batch_size=3, seed=5,
        tickers=[MetricTicker("iou"), MetricTicker("dice"),
        MetricTicker(lambda p, t: float((p.argmax(1) * 7 + np.arange(len(t)) * t).sum()), name="ordered")])
    expected = serial.run(2)
    assert len(summary.losses) == len(expected.losses) == 6
    np.testing.assert_allclose(summary.losses, expected.losses, rtol=1e-12)
    assert summary.samples == expected.samples
    for a, b in zip(summary.epochs, expected.epochs, strict=True):
        assert (a.accuracy, a.test_samples, a.samples, a.steps) == (b.accuracy, b.test_samples, b.samples, b.steps)
        assert a.scores == b.scores, (a.scores, b.scores)
        assert math.isclose(a.test_loss, b.test_loss, rel_tol=1e-12) and math.isclose(a.loss, b.loss, rel_tol=1e-12)
    for p in network.get_params():
        np.testing.assert_allclose(*(n.fetch_tensors([p])[0] for n in (network, alone)), rtol=1e-11, atol=1e-14)
    everyone = communication.gather_objects(summary.losses)
    assert rank or all(other == everyone[0] for other in everyone)
    # More ranks than test batches: some have none.
    network, optimizer = make(name, backend)
    train, test = sets(samples=16, tests=3)
    small = DistributedRunner(network, ConsistentDecentralized(optimizer, communication), train, test, batch_size=4)
    assert small.run(1).epochs[0].test_samples == 3
if rank == 0:
    print("equal", size)
"""
)

LIMITS = (
    SETUP
    + """
class Only(Ticker):
    root_only = True
    events = []
    def after_optimizer_step(self, state):
        self.events.append(state.step)

class StopAt(Ticker):
    def __init__(self, rank, step): self.rank, self.step = rank, step
    def abort_after_optimizer_step(self, state):
        return "enough" if rank == self.rank and state.step == self.step else None

train, test = sets()
network, optimizer = make()
folder = RunFolder.create(sys.argv[1]) if rank == 0 else None
runner = DistributedRunner(
    network, ConsistentDecentralized(optimizer, communication), train, test, batch_size=2, folder=folder,
    tickers=[Only(), StopAt(1, 4), RowsTicker(folder, ranks=size)], what={"model": "mlp"})
summary = runner.run(3)
assert (summary.status, len(summary.losses)) == ("stopped", 4), summary
assert summary.abort_reason == "enough (rank 1)"
assert Only.events == ([1, 2, 3, 4] if rank == 0 else [])
if rank == 0:
    folder.finish()
    rows = RunFolder.open(sys.argv[1]).rows
    times = [r for r in rows if r.quantity == "time" and r.phase == "training_step"]
    assert {r.note for r in times} == {f"rank {r}" for r in range(size)} and all(r.level == 3 for r in times)
    volumes = {r.note: r.value for r in rows if r.operator == "sync_all_many" and r.quantity == "bytes_sent"}
    assert len(volumes) == size and min(volumes.values()) > 0
    assert all(r.model == "mlp" and r.ranks == size for r in times)

# A test-set limit on all ranks: the merged accuracy decides, so all agree.
network, optimizer = make()
runner = DistributedRunner(network, ConsistentDecentralized(optimizer, communication), train, test, batch_size=2,
                           tickers=[ScoreLimit(0.0)])
summary = runner.run(3)
assert summary.status == "stopped" and len(summary.epochs) == 1 and summary.reached

# Own iterables: every rank its own batches.
network, optimizer = make()
own = [train.batch(np.arange(2) + 2 * rank + 4 * k) for k in range(3)]
runner = DistributedRunner(network, ConsistentDecentralized(optimizer, communication), own, logits=None)
assert runner.run(2).samples == [4, 8, 12, 16, 20, 24]
if rank == 0:
    print("limits")
"""
)


def test_losses_scores_and_parameters_equal_those_of_one_rank(mpiexec):
    assert "equal 2" in mpiexec(2, EQUAL).stdout
    assert "equal 3" in mpiexec(3, EQUAL).stdout


def test_limits_tickers_rows_and_own_iterables(mpiexec, tmp_path):
    assert "limits" in mpiexec(2, LIMITS, tmp_path / "run").stdout


def test_the_command_line_on_ranks_equals_one_process(mpiexec, tmp_path):
    import subprocess
    import sys

    from meta500.metrics import RunFolder

    common = [
        "--backend",
        "numpy",
        "--model",
        "mlp",
        "--epochs",
        "1",
        "--precision",
        "float64",
        "--threads",
        "1",
    ]
    words = [sys.executable, "-m", "meta500", "train", *common]
    done = mpiexec(2, [*words, "--batch-size", "64", "--out", "ranks", "--json", "--timeline"], cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert done.stderr.splitlines() == ["Writing to ranks"]
    own = subprocess.run(
        [*words, "--batch-size", "64", "--ranks", "2", "--out", "own", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    serial = subprocess.run(
        [*words, "--batch-size", "128", "--out", "serial", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    expected = json.loads(serial.stdout)
    assert json.loads(own.stdout)["losses"] == summary["losses"]
    assert len(summary["losses"]) == len(expected["losses"]) == 12
    assert max(abs(a - b) for a, b in zip(summary["losses"], expected["losses"], strict=True)) < 1e-12
    assert summary["epochs"][0]["accuracy"] == expected["epochs"][0]["accuracy"]
    run = RunFolder.open(tmp_path / "ranks")
    assert run.status == "finished" and run.info["ranks"] == 2
    losses = [r for r in run.rows if r.quantity == "loss"]
    assert {(r.ranks, r.batch) for r in losses} == {(2, 128)}
    trace = json.loads((tmp_path / "ranks" / "timeline.json").read_text())
    assert {e["pid"] for e in trace["traceEvents"]} == {0, 1}
    assert (tmp_path / "ranks" / "plots" / "timeline.png").stat().st_size > 5000


TESTED = (
    SETUP
    + """
from meta500.distributed.registry import create
train, test = sets(samples=16 * size)
losses = []
for test_set in (None, test):
    model = meta500.models.mlp(4, shape=(1, 2, 3), hidden=(5,), classes=4, dtype="float64")
    network = meta500.network(model, sys.argv[1])
    optimizer = create("model-average", SGD(network, learning_rate=0.05), communication, every=7)
    if test_set is not None:
        test_set = Dataset("random", {k: v[:12] for k, v in test_set.batch(np.arange(13)).items()},
                           classes=tuple("abcd"))
    runner = DistributedRunner(network, optimizer, train, test_set, batch_size=4, seed=5)
    losses.append(runner.run(3).losses)
assert losses[0] == losses[1], losses
print("same", flush=True)
"""
)


@pytest.mark.parametrize("backend", ["numpy", "generated"])
def test_tests_leave_replicas_that_differ_as_they_are(mpiexec, backend):
    """They are tested with their mean, and train on from their own parameters."""
    assert mpiexec(2, TESTED, backend).stdout.count("same") == 2


LATE = (
    SETUP
    + """
from meta500.distributed import guard
from meta500.distributed.registry import create
class Late(Ticker):
    root_only = True
    def after_run(self, state):
        raise RuntimeError("no space for the plot")
train, _ = sets(samples=8 * size)
network, optimizer = make()
with guard(communication, patience=2.0):
    optimizer = create("stale-synchronous", optimizer, communication, bound=1)
    DistributedRunner(network, optimizer, train, batch_size=4, tickers=[Late()]).run(1)
"""
)


def test_a_ticker_that_fails_after_the_run_ends_all_ranks(mpiexec):
    done = mpiexec(2, LATE, returncode="failure", timeout=50)
    assert "no space for the plot" in done.stderr


def test_one_rank_that_misses_its_target_is_no_fault(mpiexec, tmp_path):
    words = [
        "-m",
        "meta500",
        "train",
        "--quick",
        "--backend",
        "numpy",
        "--target-accuracy",
        "0.999",
        "--out",
        "run",
    ]
    done = mpiexec(1, [sys.executable, *words], returncode=1, cwd=tmp_path)
    assert "left with exit code" not in done.stderr
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "finished"
    assert not (tmp_path / "run" / "fault.txt").exists()


IGNORED = (
    SETUP
    + """
import math
from meta500.distributed import RankFault
from meta500.datasets import OrderedSampler
from meta500.distributed.registry import create
rng = np.random.default_rng(0)

def void(*places):
    label = rng.integers(0, 3, (12, 8, 8))
    for samples in places:
        label[samples] = 255
    return Dataset("void", {"image": rng.random((12, 2, 8, 8)), "label": label}, ignore=255)

def unet():
    model = meta500.models.unet(n=0, batch="N", size=8, depth=1, channels_in=2, classes=3, ignore=255, dtype="float64")
    network = meta500.network(model, "numpy")
    return network, SGD(network, learning_rate=0.0)

# Of each half of a global batch other numbers of labels count.
data = void((0, slice(2)), (5, slice(6)), (10, slice(7)))
network, optimizer = unet()
runner = DistributedRunner(network, ConsistentDecentralized(optimizer, communication), OrderedSampler(data, 4))
summary = runner.run(1)
alone, base = unet()
expected = Runner(alone, base, OrderedSampler(data, 4)).run(1)
np.testing.assert_allclose(summary.losses, expected.losses, rtol=1e-12)
assert math.isclose(summary.epochs[0].loss, expected.epochs[0].loss, rel_tol=1e-12)
assert summary.samples == expected.samples == [4, 8, 12]

# All labels of rank 1 are ignored in the second batch.
network, optimizer = unet()
runner = DistributedRunner(
    network, ConsistentDecentralized(optimizer, communication), OrderedSampler(void(6, 7), 4))
try:
    runner.run(1)
except RankFault as fault:
    assert "rank 1: batch 2 of epoch 0 has no label that counts (all are 255)" in str(fault), fault
    print("refused", flush=True)
"""
)


def test_losses_with_ignored_labels_are_those_of_one_rank(mpiexec):
    assert mpiexec(2, IGNORED).stdout.count("refused") == 2
