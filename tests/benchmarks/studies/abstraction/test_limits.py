"""What is predicted about points that would need too much."""

from __future__ import annotations

import pytest

from meta500.benchmarks.studies.abstraction import limits
from meta500.benchmarks.studies.abstraction.accelerator import copied
from meta500.benchmarks.studies.abstraction.crew import Crew
from meta500.benchmarks.studies.abstraction.limits import memory_needed, too_much
from meta500.benchmarks.studies.abstraction.settings import Settings
from meta500.benchmarks.studies.abstraction.subject import Needs, needs

_SETTINGS = Settings(network="resnet18", batches=(1, 64), sizes=(64,), levels=("eager", "export"))


def test_a_network_needs_what_its_layers_need() -> None:
    found = needs("mlp", {"hidden": (10,), "classes": 3}, 0)
    # 64 -> 10 -> 3 on one image: both products; flat, fc1, relu, logits and loss.
    assert found.multiply_adds == 64 * 10 + 10 * 3
    assert found.weights == 4 * (64 * 10 + 10 + 10 * 3 + 3)
    assert found.largest == 4 * 64


def test_training_keeps_all_activations_and_inference_a_few() -> None:
    needed = Needs(multiply_adds=1, activations=1000, largest=100, weights=10)
    assert memory_needed(needed, 4, "inference") == 20 + 3 * 4 * 100
    assert memory_needed(needed, 4, "training_step") == 30 + 1.5 * 4 * 1000


@pytest.mark.parametrize(("rate", "left_out"), [(1e9, True), (1e12, False)])
def test_a_step_that_would_take_too_long_is_left_out(
    monkeypatch: pytest.MonkeyPatch, rate: float, left_out: bool
) -> None:
    monkeypatch.setattr(limits, "_rate", lambda settings, crew: rate)
    monkeypatch.setattr(limits, "free_memory", lambda: 1e12)
    with Crew(_SETTINGS.levels, 1, "cpu", 60.0) as crew:
        reason = too_much(_SETTINGS, (64, 224), "inference", crew)
        assert too_much(_SETTINGS, (1, 64), "inference", crew) == ""
    assert bool(reason) == left_out
    if left_out:
        # 1.814e9 multiply-adds of an image of 224 x 224 (torchvision's number), 64 images.
        assert "would take about 116 s" in reason
        assert "the limit is 10 s" in reason


@pytest.mark.parametrize(("free", "left_out"), [(1e9, True), (1e12, False)])
def test_more_memory_than_is_free_is_left_out(
    monkeypatch: pytest.MonkeyPatch, free: float, left_out: bool
) -> None:
    monkeypatch.setattr(limits, "_rate", lambda settings, crew: 1e15)
    monkeypatch.setattr(limits, "free_memory", lambda: free)
    with Crew(_SETTINGS.levels, 1, "cpu", 60.0) as crew:
        reason = too_much(_SETTINGS, (64, 224), "training_step", crew)
    assert bool(reason) == left_out
    assert not left_out or "2 levels" in reason


def test_the_rate_is_predicted_at_points_that_the_network_takes() -> None:
    settings = Settings(network="alexnet", batches=(1,), levels=("cudnn",))
    with Crew(settings.levels, 1, "cpu", 60.0) as crew:
        assert not crew.present
        assert limits._rate(settings, crew) == 0.0


def test_copies_are_summed_by_direction_and_divided_by_steps() -> None:
    def copy(name: str, size: int) -> dict[str, object]:
        return {"cat": "gpu_memcpy", "name": name, "args": {"bytes": size}}

    events = [
        copy("Memcpy HtoD (Pinned -> Device)", 600),
        copy("Memcpy HtoD (Pageable -> Device)", 300),
        copy("Memcpy DtoH (Device -> Pageable)", 30),
        copy("Memcpy DtoD (Device -> Device)", 5000),
        {"cat": "kernel", "name": "HtoD", "args": {"bytes": 7}},
    ]
    assert copied({"traceEvents": events}, 3) == {"copied_to_device": 300.0, "copied_from_device": 10.0}
