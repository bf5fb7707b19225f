"""Settings of the study: what they choose, and what they refuse."""

from __future__ import annotations

import os

import pytest

from meta500.benchmarks.studies.abstraction import Settings, plan
from meta500.benchmarks.studies.abstraction.crew import Crew
from meta500.errors import UserError
from meta500.metrics.rows import Row


def test_full_is_the_papers_network_and_scans_all_levels() -> None:
    full = Settings()
    assert full.model == "resnet50"
    assert full.all_batches == full.all_sizes == (8, 16, 32, 64, 128, 256, 512, 1024)
    assert full.fixed == (8, 64)
    assert len(full.points) == 15
    assert {"eager", "torchscript", "libtorch", "onednn", "cudnn", "generated"} <= set(full.chosen)


def test_quick_takes_a_small_network_and_says_so_in_its_settings() -> None:
    study = plan(Settings(quick=True))
    assert study.settings["network"] == "digits_cnn"
    assert study.settings["network_options"] == {"channels_in": 3}
    assert [piece.key for piece in study.pieces] == [
        "levels",
        "times",
        "memory-inference-b4-s32",
        "accelerator",
    ]


def test_the_scans_cross_at_the_first_batch_and_the_size_nearest_to_64() -> None:
    settings = Settings(batches=(16, 2, 4), sizes=(224, 48, 96))
    assert settings.fixed == (2, 48)
    assert set(settings.points) == {(2, 48), (4, 48), (16, 48), (2, 96), (2, 224)}
    assert settings.points[0] == (2, 48)


def test_a_network_without_sizes_has_the_scan_of_the_batch_alone() -> None:
    settings = Settings(network="mlp", batches=(2, 8))
    settings.check()
    assert settings.points == ((2, 0), (8, 0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Settings(threads=0), "--threads 0"),
        (Settings(threads=100_000), "--threads 100000"),
        (Settings(device="tpu"), "--device 'tpu'"),
        (Settings(device="cuda:x"), "--device 'cuda:x'"),
        (Settings(network="resnet51"), r"\(--network\).*resnet50"),
        (Settings(network="alexnet", sizes=(32, 224)), "--size 32: --network alexnet .* 63x63"),
        (Settings(network="lenet", sizes=(64,)), "--size 64: .*28 or 32"),
        (Settings(network="mlp", network_options={"classes": 0}), "--model-option: --network mlp"),
        (Settings(levels=("eagre",)), "eager"),
        (Settings(levels=("eager", "eager")), "--level eager eager"),
        (Settings(batches=(0,)), "--batch 0"),
        (Settings(sizes=(32, 32)), "--size 32 32"),
        (Settings(network="mlp", sizes=(32,)), "--size"),
        (Settings(network_options={"batch": 3}), "--batch"),
        (Settings(network_options={"classses": 3}), "classes"),
    ],
)
def test_what_cannot_be_measured_is_refused_by_name(settings: Settings, words: str) -> None:
    with pytest.raises(UserError, match=words):
        settings.check()


def test_keys_of_pieces_are_unique_and_every_point_has_one() -> None:
    settings = Settings(batches=(2, 4), sizes=(32, 64))
    keys = [piece.key for piece in plan(settings).pieces]
    assert len(set(keys)) == len(keys)
    assert {f"times-b{b}-s{s}" for b, s in settings.points} <= set(keys)
    assert {f"memory-training_step-b{b}-s{s}" for b, s in settings.points} <= set(keys)
    without = [piece.key for piece in plan(Settings(batches=(2,), sizes=(32,), training=False)).pieces]
    assert not [key for key in without if "training" in key]


def test_quick_leaves_levels_out_with_a_reason_unless_they_are_named() -> None:
    assert "--level aotinductor" in Settings(quick=True).left_out("aotinductor")
    assert Settings(quick=True).left_out("eager") == ""
    assert Settings(quick=True, levels=("aotinductor",)).left_out("aotinductor") == ""
    assert Settings().left_out("aotinductor") == ""


def test_a_device_may_have_a_number() -> None:
    Settings(device="cuda:1", quick=True).check()


def test_threads_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3}, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert plan(Settings(quick=True)).settings["threads"] == 1
    with pytest.raises(UserError, match="--threads 2: a number from 1 to 1"):
        Settings(threads=2).check()


def test_sizes_of_the_scan_that_do_not_fit_have_rows_that_say_so() -> None:
    settings = Settings(network="lenet", batches=(2,), levels=("eager",), training=False)
    settings.check()
    assert settings.fixed == (2, 32)
    rows: list[Row] = []
    piece = next(piece for piece in plan(settings).pieces if piece.key == "times-b2-s64")
    piece.run(rows.append)
    assert [(row.backend, row.verdict, row.shape) for row in rows] == [("eager", "unsupported", "2x1x64x64")]
    assert "28 or 32" in rows[0].note


def test_what_is_left_out_has_the_shape_of_the_networks_images() -> None:
    settings = Settings(quick=True, network="mlp", levels=("eager",), batches=(3,))
    rows: list[Row] = []
    next(piece for piece in plan(settings).pieces if piece.key == "accelerator").run(rows.append)
    assert {(row.shape, row.batch, row.verdict) for row in rows} == {("3x1x8x8", 3, "unsupported")}


def test_quick_does_not_train_what_is_compiled_again_unless_it_is_named() -> None:
    quick = Settings(quick=True)
    with Crew(quick.chosen, 1, "cpu", 60.0, None, quick.left_out, quick.untrained) as crew:
        reasons = {member.name: member.untrainable for member in crew.members}
    assert "--level compile" in reasons["compile"]
    assert reasons["torchscript"] == ""
    assert "gradients" in reasons["onnxruntime"]
    assert Settings(quick=True, levels=("eager", "compile")).untrained("compile") == ""
    assert Settings().untrained("compile") == ""
