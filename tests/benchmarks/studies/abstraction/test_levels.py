"""The levels that are cheap to start, on small networks: they agree with float64, and train where they can."""

from __future__ import annotations

import ctypes.util
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import meta500
from meta500.benchmarks.studies.abstraction import Settings, plan, sections
from meta500.benchmarks.studies.abstraction import reference as references
from meta500.benchmarks.studies.abstraction.level import LEARNING_RATE, LEVELS, Job, Unavailable, level
from meta500.benchmarks.studies.abstraction.measure import LOSS_TOLERANCE, loss_errors
from meta500.benchmarks.studies.abstraction.reference import (
    NUMPY,
    TORCH,
    float64_results,
    learning_rate,
    reference,
)
from meta500.benchmarks.studies.abstraction.settings import Pace
from meta500.benchmarks.studies.abstraction.subject import written
from meta500.benchmarks.studies.select import select
from meta500.errors import UserError
from meta500.metrics.report.parts import Findings
from meta500.metrics.rows import Row
from meta500.models import create

LOSS = "SoftmaxCrossEntropyLoss"
_PACE = Pace(3, 1, 0.001, 0.0, 10.0, 120.0, 2, 2, (), (1, 2))
_CHEAP = ("eager", "torchscript", "export")


def _job(folder: Path, phase: str, network: str = "digits_cnn", **options: object) -> Job:
    subject = written(network, create(network, batch=4, **options), folder, seed=1)
    own = folder / "own"
    own.mkdir()
    return Job(subject.model, subject.inputs, phase, 1, "cpu", str(own))


@pytest.mark.parametrize("name", [*_CHEAP, "onnxruntime"])
def test_logits_agree_with_float64(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime" if name == "onnxruntime" else "torch")
    job = _job(tmp_path, "inference")
    expected = float64_results(job, 1, NUMPY)[0]
    session = level(name).make(job)
    for _ in range(2):
        found = session.step()
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    assert session.run(2) > 0
    session.close()


@pytest.mark.parametrize("name", _CHEAP)
def test_training_lowers_the_loss_as_in_float64(name: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = _job(tmp_path, "training_step")
    expected = float64_results(job, 2, NUMPY)
    session = level(name).make(job)
    found = np.stack([session.step() for _ in range(2)])
    assert found.shape == (2,)
    assert max(loss_errors(found, expected)) < LOSS_TOLERANCE
    session.close()


def test_dropout_drops_nothing_in_the_network_that_all_levels_get(tmp_path: Path) -> None:
    model = create("mobilenet_v2", batch=2, size=32, width=0.25, classes=3)
    subject = written("mobilenet_v2", model, tmp_path, seed=1)
    assert subject.operators == len([op for op in model.graph.operations if op.op_type != LOSS])
    job = Job(subject.model, subject.inputs, "training_step", 1, "cpu", str(tmp_path))
    dropouts = [op for op in job.network().graph.operations if op.op_type == "Dropout"]
    assert [float(job.network().graph.initializers[op.ratio]) for op in dropouts] == [0.0]
    first, second = (float64_results(job, 2, NUMPY) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_labels_have_the_shape_that_the_network_takes(tmp_path: Path) -> None:
    subject = written("unet", create("unet", batch=1, size=16, n=1), tmp_path, seed=1)
    with np.load(subject.inputs) as arrays:
        assert arrays["label"].shape == (1, 16, 16)
        assert arrays["image"].shape == subject.shape
    job = Job(subject.model, subject.inputs, "training_step", 1, "cpu", str(tmp_path))
    assert np.isfinite(float64_results(job, 2, NUMPY)).all()


def test_a_device_that_is_not_there_is_a_reason_and_no_failure(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxruntime")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    job = replace(_job(tmp_path, "inference"), device="cuda:0")
    for name in ("eager", "onnxruntime"):
        with pytest.raises(Unavailable, match="CUDA"):
            level(name).make(job)
    if ctypes.util.find_library("cuda") is None:
        assert all("libcuda" in level(name).missing("cuda:0") for name in ("eager", "onnxruntime"))


def test_a_compiler_without_openmp_is_a_reason_and_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from meta500.backends import compiler

    monkeypatch.setattr(compiler, "has_openmp", lambda: False)
    job = replace(_job(tmp_path, "inference"), threads=2)
    with pytest.raises(Unavailable, match="OpenMP"):
        level("generated").make(job)


def test_both_references_agree(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for phase in ("inference", "training_step"):
        folder = tmp_path / phase
        folder.mkdir()
        job = _job(folder, phase)
        np.testing.assert_allclose(
            float64_results(job, 2, TORCH), float64_results(job, 2, NUMPY), rtol=1e-9, atol=1e-12
        )


@pytest.mark.parametrize("network", ["digits_cnn", "mlp"])
def test_the_first_update_lowers_the_loss_by_about_two_percent(network: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = _job(tmp_path, "training_step", network)
    arrays = {**job.arrays(), "image": job.arrays()["image"].astype(np.float64)}
    with meta500.network(job.network(), backend="numpy", precision="float64") as net:
        loss = net.inference_and_backprop(arrays, loss="loss", outputs=["loss"])["loss"]
        squared = sum(np.square(g).sum() for g in net.fetch_tensors(list(dict(net.gradient()).values())))
    assert learning_rate(job) == float(f"{0.02 * loss / squared:.1e}")
    losses, learning = reference(job, 2, NUMPY)
    assert learning.rate == learning_rate(job)
    assert 0.01 < 1 - losses[1] / losses[0] < 0.03
    # Weights wrong by one eps change the losses by some eps, and the difference by some more.
    assert 0 < learning.loss < 1e-5
    assert 0 < learning.change < 1e-3


def test_a_difference_between_two_references_is_no_sensitivity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    job = _job(tmp_path, "training_step", "mlp")
    _, learning = reference(job, 2, TORCH)
    monkeypatch.setattr(references, "float64_results", lambda job, count, by: np.array([2.0, 1.0]))
    losses, other = reference(job, 2, NUMPY)
    assert losses.tolist() == [2.0, 1.0]
    assert other == learning


@pytest.mark.parametrize("gradient", [0.0, 1e-30, 1e30, math.nan])
def test_without_a_usable_gradient_the_learning_rate_is_the_usual_one(
    gradient: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")

    def results(job: Job, count: int, prepare: Callable[..., None]) -> np.ndarray:
        module = torch.nn.Linear(1, 1, bias=False)
        prepare(module)
        (module.weight.sum() * gradient).backward()
        return np.array([2.0])

    monkeypatch.setattr(references, "_torch_results", results)
    assert learning_rate(_job(tmp_path, "training_step", "mlp")) == LEARNING_RATE


def test_infinite_images_leave_the_usual_learning_rate(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    job = _job(tmp_path, "training_step", "mlp")
    with np.load(job.inputs) as arrays:
        np.savez(job.inputs, image=np.full_like(arrays["image"], np.inf), label=arrays["label"])
    assert learning_rate(job) == LEARNING_RATE


def test_what_cannot_train_says_why_and_refuses(tmp_path: Path) -> None:
    for name in ("onnxruntime", "aotinductor"):
        assert level(name).untrainable
        with pytest.raises(UserError, match="gradients"):
            level(name).make(_job_of(tmp_path / name))


def _job_of(folder: Path) -> Job:
    folder.mkdir()
    return _job(folder, "training_step")


def test_all_levels_are_found_in_order_of_abstraction_without_importing_a_framework() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from meta500.benchmarks.studies.abstraction.level import LEVELS, level\n"
        "for name in LEVELS: assert level(name).name == name; level(name).missing('cpu')\n"
        "assert not {'torch', 'onnxruntime', 'matplotlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    ranks = [level(name).rank for name in LEVELS]
    assert ranks == sorted(ranks)
    with pytest.raises(UserError, match="eager"):
        level("eagr")


def test_a_small_run_from_settings_to_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    if level("eager").missing("cpu") or level("onnxruntime").missing("cpu"):
        pytest.skip("PyTorch and ONNX Runtime are needed")
    monkeypatch.setattr("meta500.benchmarks.studies.abstraction.settings.QUICK", _PACE)
    chosen = ("eager", "onnxruntime", "cudnn")
    settings = Settings(quick=True, threads=1, network="mlp", levels=chosen, batches=(2, 4), training=True)
    rows: list[Row] = []
    study = plan(settings)
    assert len({piece.key for piece in study.pieces}) == len(study.pieces)
    for piece in study.pieces:
        if piece.key in ("levels", "times", "accelerator"):
            piece.run(rows.append)
    times = select(rows, quantity="time", model="mlp", backend={"eager", "onnxruntime"})
    found = [(row.backend, row.phase, row.batch, row.verdict) for row in times]
    assert sorted(found) == [
        ("eager", "inference", 2, "ok"),
        ("eager", "inference", 4, "ok"),
        ("eager", "training_step", 4, "ok"),
        ("onnxruntime", "inference", 2, "ok"),
        ("onnxruntime", "inference", 4, "ok"),
        ("onnxruntime", "training_step", 4, "unsupported"),
    ]
    assert {row.verdict for row in select(rows, quantity="time", backend="cudnn")} == {"unsupported"}
    slopes = select(rows, quantity="dispatch", backend={"eager", "onnxruntime"})
    assert len(slopes) == 2
    assert len(select(rows, quantity="ratio", backend="onnxruntime")) == 2
    report = sections(rows)
    parts = [part for part in report[0].parts if isinstance(part, Findings)]
    texts = " ".join(finding.text for finding in parts[0].findings)
    assert "Inference is fastest at batch 2" in texts
    tables = [section.title for section in report]
    assert "Levels of abstraction" in tables
