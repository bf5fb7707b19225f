"""Jobs for levels that are programs, and what their steps must give."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from meta500.backends.network import network
from meta500.benchmarks.studies.abstraction.level import CPU, LEARNING_RATE, Job
from meta500.graph import Model
from meta500.graph.passes import with_precision


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., tuple[Job, dict[str, np.ndarray]]]:
    """Writes a model and seeded inputs; gives the job and the inputs."""

    def write(model: Model, phase: str) -> tuple[Job, dict[str, np.ndarray]]:
        folder = tmp_path / phase
        folder.mkdir()
        rng = np.random.default_rng(1)
        arrays = {"image": rng.standard_normal(model.inputs["image"].shape).astype(np.float32)}
        if "label" in model.inputs:
            shape, classes = model.inputs["label"].shape, model.outputs["logits"].shape[1]
            arrays["label"] = rng.integers(0, classes, shape).astype(np.int64)
        path, inputs = tmp_path / f"{phase}.onnx", tmp_path / f"{phase}.npz"
        model.save(path)
        np.savez(inputs, **arrays)
        return Job(str(path), str(inputs), phase, 1, CPU, str(folder)), arrays

    return write


@pytest.fixture
def exact_logits() -> Callable[[Model, np.ndarray], np.ndarray]:
    """The logits by the numpy backend in float64."""

    def logits(model: Model, image: np.ndarray) -> np.ndarray:
        with network(with_precision(model, "float64"), backend="numpy") as net:
            return net.inference({"image": image.astype(np.float64)}, outputs=["logits"])["logits"]

    return logits


@pytest.fixture
def exact_steps() -> Callable[..., tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]]:
    """Training steps by the numpy backend in float64: the losses, the first gradients, the weights at last."""

    def steps(
        model: Model, arrays: dict[str, np.ndarray], count: int
    ) -> tuple[list[float], dict[str, np.ndarray], dict[str, np.ndarray]]:
        wide = {**arrays, "image": arrays["image"].astype(np.float64)}
        with network(with_precision(model, "float64"), backend="numpy") as net:
            net.inference_and_backprop(wide, loss="loss")
            names = dict(net.gradient())
            found = net.fetch_tensors(list(names.values()))
            gradients = {p: np.array(g) for p, g in zip(names, found, strict=True)}
            optimizer = net.native_optimizer("sgd", learning_rate=LEARNING_RATE)
            losses = [float(optimizer.train(wide, outputs=["loss"])["loss"]) for _ in range(count)]
            weights = dict(zip(names, map(np.array, net.fetch_tensors(list(names))), strict=True))
        return losses, gradients, weights

    return steps
