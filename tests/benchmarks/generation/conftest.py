"""The command line of ``meta500 generate``, programs that it writes, and what they print."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import meta500
from meta500.benchmarks.generation import load_weights, sample_order

ROOT = Path(__file__).parents[3]

DIGITS = """
[data]
name = "digits"

[train]
epochs = 2
batch_size = 64
optimizer = "adam"
learning_rate = 1e-3
threads = 2

[output]
report = "step"
"""

NET = """
from layers import block
from torch import nn


class Net(nn.Module):
    def __init__(self, channels=8, classes=10):
        super().__init__()
        self.features = nn.Sequential(block(1, channels), nn.MaxPool2d(2))
        self.head = nn.Linear(channels * 16, classes)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))
"""

LAYERS = """
from torch import nn


def block(before, after):
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())
"""

TWO_FILES = """
[data]
name = "digits"
validation = 0.25
storage = "uint8"

[model]
options = { channels = 4 }

[train]
epochs = 2
batch_size = 100
loss = "cross_entropy"
optimizer = "momentum"
learning_rate = 0.05
momentum = 0.8
weight_decay = 0.05
precision = "float64"
seed = 7
threads = 1

[output]
report = "step"
"""


@dataclass(frozen=True)
class Run:
    """What a program printed: JSON objects by event, and its messages."""

    status: int
    events: dict[str, list[dict]]
    messages: str

    @property
    def losses(self):
        return [step["loss"] for step in self.events.get("step", [])]


@dataclass(frozen=True)
class Project:
    """A generated folder with its executable."""

    folder: Path
    executable: Path
    config: Path

    def train(self, *options, cwd=None, environment=None):
        done = subprocess.run(
            [str(self.executable), *map(str, options)],
            cwd=cwd or self.folder,
            env={**os.environ, "OMP_WAIT_POLICY": "passive", **(environment or {})},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        events = {}
        for line in done.stdout.splitlines():
            event = json.loads(line)
            events.setdefault(event["event"], []).append(event)
        return Run(done.returncode, events, done.stderr)


def _command(*arguments, cwd, check=True, environment=None):
    done = subprocess.run(
        [sys.executable, "-m", "meta500", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if check:
        assert done.returncode == 0, done.stderr + done.stdout
    return done


@pytest.fixture(scope="session")
def generate():
    """``generate(*arguments, cwd=..., check=True)`` runs ``meta500 generate cpp`` in a process."""

    def run(*arguments, cwd, check=True, environment=None):
        return _command("generate", "cpp", *arguments, cwd=cwd, check=check, environment=environment)

    return run


@pytest.fixture(scope="session")
def exaslang():
    """``exaslang(*arguments, cwd=..., check=True)`` runs ``meta500 generate exaslang`` in a process."""

    def run(*arguments, cwd, check=True, environment=None):
        return _command("generate", "exaslang", *arguments, cwd=cwd, check=check, environment=environment)

    return run


def write_two_files(folder):
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(NET)
    (folder / "layers.py").write_text(LAYERS)
    (folder / "train.toml").write_text(TWO_FILES)
    return folder


@pytest.fixture(scope="session")
def two_files():
    """``two_files(folder)`` writes net.py, layers.py and train.toml there."""
    return write_two_files


@pytest.fixture(scope="session")
def digits_config():
    return DIGITS


@pytest.fixture(scope="session")
def digits_program(tmp_path_factory):
    """The digits CNN with Adam in float32, two threads, built by CMake.

    Without Winograd's forms: where the background is black, values before a Relu are exactly 0 at the beginning of
    the training. Rounding makes them positive there, and then they have a gradient.
    """
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    folder = tmp_path_factory.mktemp("digits")
    (folder / "train.toml").write_text(DIGITS)
    options = ("--config", "train.toml", "--no-winograd", "--program", "--out", "program")
    _command("generate", "cpp", "digits_cnn", *options, cwd=folder)
    place = folder / "program"
    for step in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build", "--parallel", "2"]):
        done = subprocess.run(step, cwd=place, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in (done.stdout + done.stderr).lower()
    return Project(place, place / "build" / "train", folder / "train.toml")


def build(folder, model, *flags):
    """The program of ``train.toml`` in ``folder``, compiled by the command that is printed and further flags."""
    done = _command(
        *("generate", "cpp", model, "--config", "train.toml", "--program", "--out", "program"), cwd=folder
    )
    command = done.stdout.splitlines()[-1].partition("#")[0]
    built = subprocess.run(
        f"{command} {shlex.join(flags)}",
        shell=True,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr
    return Project(folder / "program", folder / "program" / "train", folder / "train.toml"), command


@pytest.fixture(scope="session")
def build_program():
    """``build_program(folder, model, *flags)``: the project and the command."""
    return build


@pytest.fixture(scope="session")
def module_program(tmp_path_factory):
    """A PyTorch module with batch normalisation, momentum, float64, built by the command that is printed."""
    project, command = build(write_two_files(tmp_path_factory.mktemp("module")), "net.py")
    assert "-fopenmp" not in shlex.split(command)  # one thread
    return project


def reference(model, train, validation, *, backend, optimizer, batch, epochs, seed, precision, **options):
    """Losses by step, weights by name, and validation loss and accuracy of a network trained on the same batches."""
    train, validation = train.cast(precision), validation.cast(precision)
    label = train.inputs["label"]
    assert label.dtype == np.int64
    losses = []
    with meta500.network(model, backend=backend, precision=precision, **options) as net:
        taken = optimizer(net)
        for epoch in range(epochs):
            order = sample_order(len(train), seed, epoch)
            for step in range(len(train) // batch):
                found = taken.train(train.batch(order[step * batch : (step + 1) * batch]), ["loss"])
                losses.append(float(found["loss"]))
        statistics = [n for n in net.model.graph.initializers if "running" in n]
        names = [*net.get_params(), *statistics]
        weights = dict(zip(names, net.fetch_tensors(names), strict=True))
        out = net.inference(dict(validation.inputs))
    accuracy = float((out["logits"].argmax(1) == validation.inputs["label"]).mean())
    return losses, weights, float(out["loss"]), accuracy


def compare(run, saved, expected, tolerance):
    losses, weights, loss, accuracy = expected
    np.testing.assert_allclose(run.losses, losses, rtol=tolerance)
    tensors, _ = load_weights(saved)
    for name, array in weights.items():
        np.testing.assert_allclose(tensors[name], array, rtol=tolerance, atol=10 * tolerance, err_msg=name)
    last = run.events["epoch"][-1]
    assert last["validation_loss"] == pytest.approx(loss, rel=10 * tolerance)
    assert last["validation_accuracy"] == pytest.approx(accuracy, abs=1e-12)
    per_epoch = len(losses) // len(run.events["epoch"])
    assert last["loss"] == pytest.approx(np.mean(losses[-per_epoch:]), rel=tolerance)


@pytest.fixture(scope="session")
def train_in_python():
    return reference


@pytest.fixture(scope="session")
def check():
    """``check(run, saved, expected, tolerance)``: a run and its weights against ``train_in_python``."""
    return compare
