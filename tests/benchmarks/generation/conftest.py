"""The command line of ``meta500 generate``, programs that it writes, and what they print."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

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
    """The digits CNN with Adam in float32, two threads, built by CMake."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    folder = tmp_path_factory.mktemp("digits")
    (folder / "train.toml").write_text(DIGITS)
    _command(
        *("generate", "cpp", "digits_cnn", "--config", "train.toml", "--program", "--out", "program"),
        cwd=folder,
    )
    place = folder / "program"
    for step in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build", "--parallel", "2"]):
        done = subprocess.run(step, cwd=place, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "warning" not in (done.stdout + done.stderr).lower()
    return Project(place, place / "build" / "train", folder / "train.toml")


@pytest.fixture(scope="session")
def module_program(tmp_path_factory):
    """A PyTorch module with batch normalisation, momentum, float64, built by the command that is printed."""
    folder = write_two_files(tmp_path_factory.mktemp("module"))
    done = _command(
        *("generate", "cpp", "net.py", "--config", "train.toml", "--program", "--out", "program"), cwd=folder
    )
    command = done.stdout.splitlines()[-1].partition("#")[0]
    assert "-fopenmp" not in shlex.split(command)  # one thread
    built = subprocess.run(
        command, shell=True, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr
    return Project(folder / "program", folder / "program" / "train", folder / "train.toml")
