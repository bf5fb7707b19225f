"""A resumed run gives the losses of one that was never stopped, bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import meta500
from meta500.datasets import Dataset
from meta500.distributed import checkpoint
from meta500.errors import UserError
from meta500.metrics import Runner
from meta500.metrics.position import Position

ROOT = str(Path(__file__).parents[2])

PROGRAM = """
from meta500.distributed import faults
faults.supervise()
import os, signal, sys
from pathlib import Path
import numpy as np
import meta500
from meta500.datasets import Dataset
from meta500.distributed import checkpoint
from meta500.distributed.mpi import launched_ranks
from meta500.graph import operators as ops
from meta500.models import layers
from meta500.metrics import Runner, Ticker
from meta500.metrics.tickers import AccuracyLimit

backend, native, folder, kill_at = sys.argv[1], sys.argv[2] == "native", Path(sys.argv[3]), int(sys.argv[4])
communication, rank = None, 0
if launched_ranks():
    from meta500.distributed import CommunicationNetwork
    from meta500.distributed import registry
    from meta500.distributed.runner import DistributedRunner
    communication = CommunicationNetwork(compression=sys.argv[5] or None)
    rank = communication.rank

class Killer(Ticker):
    def after_optimizer_step(self, state):
        if state.step == kill_at and rank == (0 if communication is None else 1):
            os.kill(os.getpid(), signal.SIGKILL)

net = layers.draft("net", initialization="torch_default", seed=0, dtype="float32")
x = net.builder.input("image", "float32", ("N", 1, 2, 3))
x = layers.batch_norm(net, layers.convolution(net, x, "conv", (1, 4), 1), "bn", 4)
x = layers.flatten(net, layers.relu(net, x, "relu"), "flat")
x = net.builder.add(ops.Dropout, x, net.builder.constant(np.float32(0.3)), name="drop", follow_mode=True)
model = layers.finish(net, layers.linear(net, x, "fc", (24, 4)), ("N",), {})
rng = np.random.default_rng(0)
data = Dataset("random", {"image": rng.normal(size=(26, 1, 2, 3)).astype(np.float32), "label": rng.integers(0, 4, 26)},
               classes=tuple("abcd"))

def run(resume=None, every=None, into=None, kill=False):
    network = meta500.network(model, backend, seed=rank)
    if native:
        optimizer = network.native_optimizer("adam", learning_rate=0.01)
    else:
        optimizer = meta500.optimizers.Adam(network, learning_rate=0.01)
    tickers = [AccuracyLimit(1.0)] + ([Killer()] if kill else [])
    if every:
        tickers.append(checkpoint.CheckpointTicker(into, every, communication))
    if communication is None:
        runner = Runner(network, optimizer, data, data, tickers=tickers, batch_size=4)
    else:
        optimizer = registry.create(sys.argv[6], optimizer, communication)
        runner = DistributedRunner(network, optimizer, data, data, tickers=tickers, batch_size=4,
                                   communication=communication)
    position = None
    if resume is not None:
        size = 1 if communication is None else communication.size
        saved = checkpoint.read(checkpoint.latest(resume), rank, size)
        assert saved.step == position_expected, saved.step
        position = checkpoint.restore(saved, network, optimizer)
    summary = runner.run(3, resume=position)
    parameters = network.fetch_tensors(network.get_params())
    return summary, parameters

per_epoch = 7 if communication is None else -(-26 // (4 * communication.size))
if kill_at:
    run(every=1 if kill_at % 2 else 3, into=folder, kill=True)
    raise SystemExit("the run was not killed")
position_expected = int(sys.argv[7])
whole, expected = run()
resumed, parameters = run(resume=folder)
assert len(whole.losses) == 3 * per_epoch
assert resumed.losses == whole.losses, (resumed.losses, whole.losses)
assert resumed.samples == whole.samples
assert [e.test_loss for e in resumed.epochs] == [e.test_loss for e in whole.epochs]
assert [(e.loss, e.steps, e.samples, e.accuracy, e.step) for e in resumed.epochs] == [
    (e.loss, e.steps, e.samples, e.accuracy, e.step) for e in whole.epochs]
for a, b in zip(parameters, expected, strict=True):
    assert a.tobytes() == b.tobytes()
print("resumed", rank)
"""


# backend, optimizer, ranks (0: without MPI), step in which a rank is killed, scheme, compression. The checkpoint
# ticker comes last, so the checkpoint is that of the step before, or of the last multiple of 3.
CASES = [
    ("torch", "reference", 0, 9, "", ""),
    ("generated", "native", 0, 12, "", ""),
    ("torch", "reference", 2, 5, "consistent-decentralized", "top-k:0.3"),
    ("generated", "reference", 2, 10, "consistent-decentralized", ""),
    ("torch", "native", 2, 8, "ddp", ""),
    ("numpy", "reference", 3, 4, "consistent-neighbors", ""),
    ("numpy", "reference", 2, 6, "consistent-parameter-server", ""),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("backend", "kind", "ranks", "kill_at", "scheme", "compression"),
    [pytest.param(*c, marks=[pytest.mark.slow] if c[4] == "ddp" else []) for c in CASES],
    ids=["-".join(map(str, c)) for c in CASES],
)
def test_a_resumed_run_gives_the_same_losses(
    mpiexec, tmp_path, backend, kind, ranks, kill_at, scheme, compression
):
    script, folder = tmp_path / "program.py", tmp_path / "run"
    script.write_text(PROGRAM)
    expected = kill_at - 1 if kill_at % 2 else (kill_at - 1) // 3 * 3

    def start(kill):
        words = [backend, kind, folder, kill_at if kill else 0, compression, scheme, expected]
        if ranks:
            return mpiexec(ranks, script, *words, returncode="failure" if kill else 0, timeout=120)
        done = subprocess.run(
            [sys.executable, str(script), *map(str, words)],
            capture_output=True, text=True, timeout=120, check=False, env={**os.environ, "PYTHONPATH": ROOT},
        )  # fmt: skip
        assert done.returncode == (-9 if kill else 0), done.stderr
        return done

    start(kill=True)
    folders = sorted(
        path.name for path in (folder / "checkpoints").iterdir() if not path.name.startswith(".")
    )
    assert folders == [f"step-{expected:08d}"]
    assert start(kill=False).stdout.count("resumed") == max(ranks, 1)


def test_the_command_line_resumes_in_a_new_folder(tmp_path):
    import json

    from meta500.metrics import RunFolder

    def train(*words, code=0):
        done = subprocess.run(
            [sys.executable, "-m", "meta500", "train", *map(str, words)],
            cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return done

    common = ["--model", "mlp", "--backend", "numpy", "--threads", 1, "--batch-size", 128]
    whole = json.loads(train(*common, "--epochs", 2, "--out", "whole", "--json").stdout)
    train(*common, "--epochs", 1, "--out", "first", "--checkpoint-every", 5)
    done = train("--resume", "first", "--epochs", 2, "--out", "second", "--json")
    assert json.loads(done.stdout)["losses"] == whole["losses"]
    first, second = (RunFolder.open(tmp_path / name) for name in ("first", "second"))
    assert first.status == second.status == "finished"
    assert second.info["resumed_from"] == str(tmp_path / "first" / "checkpoints" / "step-00000010")

    def curve(run):
        rows = [r for r in run.rows if r.phase == "training_step" and r.quantity == "loss"]
        return [value for r in rows for value in r.samples]

    assert curve(second) == whole["losses"]
    refused = train("--resume", "first", "--batch-size", 3, code=2)
    assert "--batch-size cannot be changed with --resume" in refused.stderr
    assert "has no checkpoint" in train("--resume", "whole", code=2).stderr


def test_files_keep_everything_exactly(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    contents = {
        "numbers": [1, 2.5, float("inf"), None, True, 2**100],
        "tuple": (1, "a", (2.0,)),
        "nested": {"array": np.arange(6, dtype=np.float16).reshape(2, 3), "scalar": np.array(1.5)},
        "small": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "none": np.zeros((0, 3)),
    }
    checkpoint.write_file(tmp_path / "file.npz", contents)
    found = checkpoint.read_file(tmp_path / "file.npz")
    assert found["numbers"] == contents["numbers"] and found["tuple"] == contents["tuple"]
    for name in ("array", "scalar"):
        a, b = found["nested"][name], contents["nested"][name]
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    assert (
        found["small"].dtype == contents["small"].dtype
        and found["small"].tobytes() == contents["small"].tobytes()
    )
    assert found["none"].shape == (0, 3)


def test_a_writer_that_is_killed_leaves_the_checkpoint_before(tmp_path, monkeypatch):
    def contents(step):
        return {"format": 1, "rank": 0, "ranks": 1, "tensors": {"x": np.zeros(2)}, "position": {"step": step}}

    checkpoint.write(tmp_path, 5, contents(5))
    with monkeypatch.context() as patch:

        def dies(*_):
            raise KeyboardInterrupt

        patch.setattr(checkpoint.os, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.write(tmp_path, 10, contents(10))
    assert checkpoint.read(checkpoint.latest(tmp_path)).step == 5
    checkpoint.write(tmp_path, 10, contents(10))
    assert checkpoint.read(checkpoint.latest(tmp_path)).step == 10
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == ["step-00000010"]


def test_what_cannot_be_resumed_is_refused(tmp_path):
    with pytest.raises(UserError, match="has no checkpoint"):
        checkpoint.latest(tmp_path)
    path = checkpoint.write(
        tmp_path, 5, {"format": 1, "rank": 0, "ranks": 2, "tensors": {}, "position": {"step": 5}}
    )
    with pytest.raises(UserError, match="written by 2 ranks, this run has 1"):
        checkpoint.read(path)
    with pytest.raises(UserError, match="rank-1.npz: this file of the checkpoint is missing"):
        checkpoint.read(path, 1, 2)
    (path / "rank-0.npz").write_bytes(b"PK\3\4 damaged")
    with pytest.raises(UserError, match="is damaged"):
        checkpoint.read(path)
    model = meta500.models.mlp("N", shape=(3,), hidden=(), classes=2)
    data = Dataset("two", {"image": np.zeros((2, 3), np.float32), "label": np.zeros(2, np.int64)})
    network = meta500.network(model, "numpy")
    runner = Runner(network, meta500.optimizers.SGD(network), data, logits=None)
    behind = Position(epoch=2, batch=1, step=5, samples_seen=9, loss=0.0, clocks={}, summary={})
    with pytest.raises(UserError, match="stands in epoch 2, outside of epochs 0 to 1: ask for more epochs"):
        runner.run(2, resume=behind)
    with pytest.raises(UserError, match="at least 1"):
        checkpoint.CheckpointTicker(tmp_path, 0)
