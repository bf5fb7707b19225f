"""Levels of other software than PyTorch: ONNX Runtime, and the C++ that this package generates."""

from __future__ import annotations

import importlib.util

import numpy as np

from meta500.benchmarks.studies.abstraction.level import (
    CPU,
    INFERENCE,
    Job,
    Level,
    Session,
    Unavailable,
    no_driver,
)

_NO_GRADIENTS = "ONNX Runtime's inference package has no gradients"


class NetworkSession(Session):
    """A network of one of this package's backends."""

    def __init__(self, job: Job, backend: str) -> None:
        from meta500.backends.network import network

        super().__init__()
        self._arrays = job.arrays()
        device = {} if job.device == CPU else {"device": job.device}
        self._network = network(job.network(), backend=backend, threads=job.threads, **device)
        self._image = {"image": self._arrays["image"]}
        self._optimizer = None
        if job.phase != INFERENCE:
            self._optimizer = self._network.native_optimizer("sgd", learning_rate=job.learning_rate)

    def step(self) -> np.ndarray:
        if self._optimizer is None:
            return self._network.inference(self._image, outputs=["logits"])["logits"]
        return np.asarray(self._optimizer.train(self._arrays, outputs=["loss"])["loss"])

    def close(self) -> None:
        self._network.close()


def _make_generated(job: Job) -> Session:
    from meta500.backends.compiler import has_openmp, no_openmp

    if job.threads > 1 and not has_openmp():
        raise Unavailable(no_openmp())
    return NetworkSession(job, "generated")


def _make_onnxruntime(job: Job) -> Session:
    if job.phase != INFERENCE:
        raise Unavailable(_NO_GRADIENTS)
    from meta500.backends.onnxruntime.engine import parse_device
    from meta500.errors import UserError

    try:
        parse_device(job.device)
    except UserError as error:
        raise Unavailable(str(error)) from None
    return NetworkSession(job, "onnxruntime")


def _missing_onnxruntime(device: str) -> str:
    if importlib.util.find_spec("onnxruntime") is None:
        return "ONNX Runtime is not installed: pip install onnxruntime"
    return no_driver(device)


def _missing_generated(device: str) -> str:
    from meta500.backends.compiler import compiler
    from meta500.errors import UserError

    if device != CPU:
        return "the generated backend computes on the CPU"
    try:
        compiler()
    except UserError as error:
        return str(error)
    return ""


ONNXRUNTIME = Level(
    name="onnxruntime",
    title="ONNX Runtime",
    rank=4,
    what="an interpreter of a graph that is optimized when it is loaded, called from Python",
    make=_make_onnxruntime,
    imports=("onnxruntime", "meta500.backends.onnxruntime.network"),
    missing=_missing_onnxruntime,
    untrainable=_NO_GRADIENTS,
    package="onnxruntime",
)
GENERATED = Level(
    name="generated",
    title="generated C++",
    rank=9,
    what="one C++ function for the whole network, generated and compiled by this package",
    make=_make_generated,
    imports=("meta500.backends.generated.network",),
    missing=_missing_generated,
    package="generated",
)
