"""The contract of a level of abstraction: one way to run a network, from high level to low.

Every level gets the same network (an ONNX file that holds the weights) and the same inputs (an .npz file),
runs in a process of its own (:mod:`~meta500.benchmarks.studies.abstraction.worker`), and is asked for one
kind of step: inference, or training. A step begins with images (and labels) as contiguous arrays in host
memory and ends with the logits, or the loss, in host memory and no work left on the device. Nothing may be
copied on the CPU.

A level is one module with one :class:`Level`, named in :data:`LEVELS`. It imports frameworks inside
functions.
"""

from __future__ import annotations

import ctypes.util
import importlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.errors import UserError, choose

if TYPE_CHECKING:
    from meta500.graph import Model

INFERENCE, TRAINING = "inference", "training_step"
# Of jobs for which no other is chosen; see :func:`.reference.learning`.
LEARNING_RATE = 1e-3
CPU, CUDA = "cpu", "cuda"


@dataclass(frozen=True)
class Job:
    """What a session is made for.

    Attributes:
        model: ONNX file with the weights; input "image" (batch, ...) float32, output "logits" (batch,
            classes, ...) float32; where it is to be trained also input "label" (batch, ...) int64 and
            output "loss" (mean cross-entropy, a scalar). All shapes are fixed. Operators in inference are
            those of the network, batch normalisation as its own operator.
        inputs: .npz file with "image", and "label" where the model has it.
        phase: "inference" or "training_step".
        threads: that compute.
        device: "cpu", "cuda" or "cuda:N".
        folder: an empty folder for the level's own files; deleted when the level is closed.
        learning_rate: of plain stochastic gradient descent without momentum or decay:
            w <- w - learning_rate * grad.
    """

    model: str
    inputs: str
    phase: str
    threads: int
    device: str
    folder: str
    learning_rate: float = LEARNING_RATE

    def network(self) -> Model:
        """The network with its weights."""
        import meta500

        return meta500.load(self.model)

    def arrays(self) -> dict[str, np.ndarray]:
        """The inputs of every step, by name; contiguous."""
        with np.load(self.inputs) as file:
            return {name: np.ascontiguousarray(file[name]) for name in file.files}

    def columns(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


class Session(ABC):
    """A network on a level, ready for steps of one phase.

    Attributes:
        pid: of the process that computes, whose memory and allocations count: this one, unless the level is a
            program of its own. Such a program is started by :meth:`Level.make`, gets this process's
            environment unchanged (a library that counts allocations is preloaded through it), and ends in
            :meth:`close`.
        base_memory: resident bytes of that process with its libraries loaded, before it read the weights;
            None where the worker measures it itself, in this process, before :meth:`Level.make`.
    """

    pid: int
    base_memory: int | None = None

    def __init__(self) -> None:
        self.pid = os.getpid()

    @abstractmethod
    def step(self) -> np.ndarray:
        """One step on the inputs of the job; the first one may compile.

        Returns:
            Inference: the logits, (batch, classes) float32. Training (forward in training form, loss,
            backward, SGD with the job's learning rate): the loss before the update, a scalar; the weights,
            and the running statistics of batch normalisation, are changed.
        """

    def run(self, count: int) -> float:
        """Run ``count`` steps one after the other; returns the seconds of all together.

        A level that is driven through a pipe measures around its steps, in its own process, by a monotonic
        clock; what the pipe costs is no part of the level.
        """
        result: np.ndarray | None = None
        begin = time.perf_counter_ns()
        for _ in range(count):
            result = None  # freed inside the clock, as in a loop of one's own
            result = self.step()
        seconds = (time.perf_counter_ns() - begin) * 1e-9
        del result
        return seconds

    def close(self) -> None:  # noqa: B027 - most sessions have nothing to end
        """Free what it holds; ends its process where it has one."""


def no_driver(device: str) -> str:
    """Why a device is not there, as far as it shows without a framework; "" where it may be."""
    if device != CPU and ctypes.util.find_library("cuda") is None:
        return "no CUDA driver (libcuda) is installed"
    return ""


def nothing_missing(device: str) -> str:
    """The reason why a level is not available on a device: none."""
    return ""


@dataclass(frozen=True)
class Level:
    """One way to run a network.

    Attributes:
        name: on the command line and in rows (column ``backend``).
        title: in tables and figures, up to about 24 characters.
        rank: place in tables and figures, 0 the highest abstraction.
        what: one sentence: what runs, through how many layers of whose software.
        make: makes a session; reads, converts and compiles what can be done before the first step. Raises
            UnsupportedOperation or :class:`Unavailable` where the level does not run this network or phase,
            UserError (or anything) where it fails.
        imports: modules that the worker imports before it measures its memory and starts the clock.
        missing: of a device, the reason why the level can't run there on this machine, or "". Called in the
            study's process: takes at most about a second and imports no framework
            (``importlib.util.find_spec`` and looking for files are enough; what only shows when building may
            be raised by ``make``).
        untrainable: why it can't train; "" where it can.
        package: whose version the rows name; "" for none.
        version: the version that the rows name instead of the package's, where that is another number; ""
            where it is not known.
        environment: further variables of its process.
    """

    name: str
    title: str
    rank: int
    what: str
    make: Callable[[Job], Session]
    imports: Sequence[str] = ()
    missing: Callable[[str], str] = nothing_missing
    untrainable: str = ""
    package: str = ""
    version: Callable[[], str] | None = None
    environment: tuple[tuple[str, str], ...] = ()


class Unavailable(UserError):
    """A level does not run this network or phase on this machine; the message says why."""


# Name of a level: (module of this package, name of the Level in it); from the highest abstraction down.
LEVELS: dict[str, tuple[str, str]] = {
    "eager": ("torch_levels", "EAGER"),
    "compile": ("torch_levels", "COMPILE"),
    "export": ("torch_levels", "EXPORT"),
    "torchscript": ("torch_levels", "TORCHSCRIPT"),
    "onnxruntime": ("other_levels", "ONNXRUNTIME"),
    "aotinductor": ("torch_levels", "AOTINDUCTOR"),
    "libtorch": ("libtorch", "LIBTORCH"),
    "onednn": ("vendor", "ONEDNN"),
    "cudnn": ("vendor", "CUDNN"),
    "generated": ("other_levels", "GENERATED"),
}


def level(name: str) -> Level:
    """The level of that name, of :data:`LEVELS`, or "MODULE:ATTRIBUTE" of any module.

    Raises:
        UserError: there is no such level.
    """
    if ":" in name:
        module, _, attribute = name.partition(":")
        return getattr(importlib.import_module(module), attribute)  # type: ignore[no-any-return]
    place, attribute = LEVELS[choose("level", name, LEVELS)]
    return getattr(importlib.import_module(f"{__package__}.{place}"), attribute)  # type: ignore[no-any-return]


def scratch(job: Job) -> Path:
    """The folder of a session."""
    return Path(job.folder)
