"""Datasets in folders: what is written is read again, and what is wrong is named."""

import json

import numpy as np
import pytest

from meta500.datasets import Dataset, load, load_files, save_files
from meta500.errors import UserError


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)

    def part(count):
        return Dataset(
            name="mine",
            inputs={
                "image": rng.random((count, 2, 3), np.float32),
                "wide/x": rng.random((count, 2)),
                "label": rng.integers(0, 3, count),
                "mask": rng.random((count, 2)) < 0.5,
                "small": rng.integers(0, 9, (count, 1), dtype=np.int32),
            },
            classes=("a", "b", "c"),
            licence="none",
        )

    return part(5), part(2)


def test_what_is_written_is_read(parts, tmp_path):
    names = save_files(tmp_path / "d", *parts)
    assert sorted(names) == sorted(path.name for path in (tmp_path / "d").iterdir()) and len(names) == 11
    for found, part in zip(load_files(tmp_path / "d"), parts, strict=True):
        assert (found.name, found.classes, found.licence, found.label) == (
            "mine",
            part.classes,
            "none",
            "label",
        )
        assert list(found.inputs) == list(part.inputs)
        for name, array in part.inputs.items():
            assert found.inputs[name].dtype == array.dtype and np.array_equal(found.inputs[name], array)
    save_files(tmp_path / "e", parts[0])
    assert load_files(tmp_path / "e")[1] is None


def test_bytes_take_a_quarter_and_round_to_the_nearest(parts, tmp_path):
    train, _ = load("digits")
    save_files(tmp_path, train, storage="uint8")
    assert (tmp_path / "train_image.bin").stat().st_size == train.inputs["image"].size
    found, _ = load_files(tmp_path)
    assert found.inputs["image"].dtype == np.float32
    assert abs(found.inputs["image"] - train.inputs["image"]).max() < 0.5001 / 255
    wide = Dataset("w", {"image": np.full((2, 1), 1.5, np.float32)}, None)
    with pytest.raises(UserError, match=r"'image' runs from 1.5 to 1.5; storage 'uint8' holds \[0, 1\]"):
        save_files(tmp_path, wide, storage="uint8")


def test_npy_files(tmp_path):
    for part, count in (("train", 4), ("validation", 2)):
        (tmp_path / part).mkdir()
        np.save(tmp_path / part / "image.npy", np.ones((count, 3), np.float32))
        np.save(tmp_path / part / "label.npy", np.arange(count))
    train, validation = load_files(tmp_path)
    assert len(train) == 4 and len(validation) == 2 and train.label == "label"
    (tmp_path / "train" / "image.npy").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"image.npy: cannot be read"):
        load_files(tmp_path)


def test_what_is_wrong_is_named(parts, tmp_path):
    save_files(tmp_path, *parts)
    with pytest.raises(UserError, match="nowhere: there is no such folder"):
        load_files(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="neither dataset.json nor train"):
        load_files(tmp_path / "empty")
    image = (tmp_path / "train_image.bin").read_bytes()
    (tmp_path / "train_image.bin").write_bytes(image[:-1] + b"\xff")
    with pytest.raises(UserError, match=r"train_image.bin: is damaged"):
        load_files(tmp_path)
    (tmp_path / "train_image.bin").write_bytes(image[:-1])
    with pytest.raises(UserError, match=r"train_image.bin: has 119 bytes"):
        load_files(tmp_path)
    (tmp_path / "train_image.bin").unlink()
    with pytest.raises(UserError, match=r"train_image.bin: cannot be read"):
        load_files(tmp_path)
    header = json.loads((tmp_path / "dataset.json").read_text())
    for change, message in (
        ({"format": "x"}, "is no header of data files"),
        ({"version": 2}, "has version 2"),
        ({"parts": {"train": {"samples": True}}}, "'samples' must be a whole number"),
        ({"parts": {"test": {}}}, "'test'"),
        ({"parts": {}}, "'train' must be an object"),
    ):
        (tmp_path / "dataset.json").write_text(json.dumps({**header, **change}))
        with pytest.raises(UserError, match=message):
            load_files(tmp_path)
    (tmp_path / "dataset.json").write_text("{")
    with pytest.raises(UserError, match="is no JSON"):
        load_files(tmp_path)


def test_other_types_and_parts_that_differ_are_refused(parts, tmp_path):
    train, validation = parts
    with pytest.raises(UserError, match="'image' is float16"):
        save_files(tmp_path, Dataset("h", {"image": np.zeros((2, 1), np.float16)}, None))
    with pytest.raises(UserError, match="the validation part has"):
        save_files(tmp_path, train, load("digits")[1])
    with pytest.raises(UserError, match="unknown storage 'half'"):
        save_files(tmp_path, train, validation, storage="half")
    assert not list(tmp_path.iterdir())
