"""The digits and synthetic sets, and the registry that loads them by name."""

import importlib.util
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from meta500 import datasets
from meta500.errors import UserError


def load(name, **options):
    return datasets.load(name, **options)


def test_digits_are_the_real_images():
    from sklearn.datasets import load_digits

    train, test = load("digits")
    assert (len(train), len(test)) == (1438, 359)
    assert train.inputs["image"].shape == (1438, 1, 8, 8)
    assert train.inputs["image"].dtype == np.float32 and train.inputs["label"].dtype == np.int64
    assert train.classes == tuple("0123456789") and "CC BY 4.0" in train.licence
    source = load_digits()
    expected = {(row.tobytes(), int(y)) for row, y in zip(source.data, source.target, strict=True)}
    found = [
        ((image * 16.0).astype(np.float64).tobytes(), int(label))
        for part in (train, test)
        for image, label in zip(part.inputs["image"], part.inputs["label"], strict=True)
    ]
    assert len(found) == 1797 and set(found) == expected
    assert train.inputs["image"].min() == 0 and train.inputs["image"].max() == 1


def test_digits_split_is_stratified_and_seeded():
    train, test = load("digits")
    every = np.bincount(np.concatenate([train.inputs["label"], test.inputs["label"]]))
    assert (abs(np.bincount(test.inputs["label"]) - 0.2 * every) < 1).all()
    again = load("digits")[1]
    np.testing.assert_array_equal(again.inputs["image"], test.inputs["image"])
    other = load("digits", seed=1)[1]
    assert not np.array_equal(other.inputs["image"], test.inputs["image"])
    assert len(load("digits", test_fraction=0.5)[1]) == 899


@pytest.mark.parametrize("value", [0, 1, "a"])
def test_digits_refuse_test_fraction(value):
    with pytest.raises(UserError, match="test_fraction must be"):
        load("digits", test_fraction=value)


def test_missing_scikit_learn_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(UserError, match="pip install scikit-learn"):
        load("digits")


def test_digits_kept_elsewhere_are_the_same(monkeypatch, tmp_path):
    """A release of scikit-learn without the file where it is now."""
    usual = load("digits")
    elsewhere = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: elsewhere)
    for found, known in zip(load("digits"), usual, strict=True):
        for name, values in known.inputs.items():
            assert found.inputs[name].dtype == values.dtype
            np.testing.assert_array_equal(found.inputs[name], values)


def test_synthetic_has_the_asked_shapes_and_dtypes():
    inputs = {
        "image": ((4, 3, 5, 7), "float16"),
        "tokens": ((4, 9), np.uint8),
        "mask": ((4,), "bool"),
        "label": ((4, 5, 7), "int32"),
    }
    train, test = load("synthetic", inputs=inputs, classes={"tokens": 200, "label": 3})
    for part in (train, test):
        assert {k: (v.shape, v.dtype) for k, v in part.inputs.items()} == {
            k: (shape, np.dtype(dtype)) for k, (shape, dtype) in inputs.items()
        }
        assert part.classes == ("0", "1", "2") and part.default_loss == "cross_entropy"
        assert set(np.unique(part.inputs["label"])) == {0, 1, 2}
        assert part.inputs["tokens"].max() > 2
    assert not np.array_equal(train.inputs["image"], test.inputs["image"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_synthetic_floats_are_standard_normal(dtype):
    train, _ = load("synthetic", inputs={"x": ((200, 100), dtype)}, label=None)
    values = train.inputs["x"]
    assert abs(values.mean()) < 0.05 and abs(values.std() - 1) < 0.05


def test_synthetic_is_seeded_by_input():
    first, _ = load("synthetic")
    same, _ = load("synthetic", seed=0)
    other, _ = load("synthetic", seed=1)
    np.testing.assert_array_equal(first.inputs["image"], same.inputs["image"])
    assert not np.array_equal(first.inputs["image"], other.inputs["image"])
    alone, _ = load("synthetic", inputs={"image": ((256, 1, 8, 8), "float32")}, label=None)
    np.testing.assert_array_equal(alone.inputs["image"], first.inputs["image"])
    renamed, _ = load("synthetic", inputs={"photo": ((256, 1, 8, 8), "float32")}, label=None)
    assert not np.array_equal(renamed.inputs["photo"], first.inputs["image"])


def test_synthetic_takes_tensor_types_and_counts():
    spec = SimpleNamespace(shape=("batch", 6), dtype="float32")
    train, test = load("synthetic", inputs={"x": spec}, label=None, samples=7, test_samples=3)
    assert train.inputs["x"].shape == (7, 6) and test.inputs["x"].shape == (3, 6)


def test_synthetic_regression_labels():
    inputs = {"x": ((5, 2), "float32"), "label": ((5, 1), "float32")}
    train, _ = load("synthetic", inputs=inputs)
    assert train.default_loss == "mse" and train.classes is None


@pytest.mark.parametrize(
    "options, message",
    [
        ({"inputs": {"x": ((2, "n"), "float32")}}, "axis 1 of its shape must be an integer"),
        ({"inputs": {"x": (("n", 2), "float32")}}, "axis 0 of its shape .or samples. must be"),
        ({"inputs": {"x": ((), "float32")}}, "batch axis first"),
        ({"inputs": {"x": "float32"}}, "must be .shape, dtype."),
        ({"inputs": {"x": ((2,), "complex64")}}, "dtype must be"),
        ({"inputs": {"x": ((2,), "nonsense")}}, "dtype must be"),
        ({"inputs": {"x": ((2,), "float32"), "y": ((3,), "float32")}}, "'x' 2, 'y' 3"),
        ({"inputs": {"label": ((2,), "int8")}, "classes": 200}, "int8 does not hold 200"),
        ({"inputs": {"label": ((2,), "int8")}, "classes": {"x": 2}}, "names x"),
        ({"inputs": {"x": ((2,), "float32")}}, "None for a set without labels"),
        ({"classes": 0}, "classes must be"),
        ({"samples": 0}, "samples"),
        ({"test_samples": 0}, "test_samples must be"),
    ],
)
def test_synthetic_refuses(options, message):
    with pytest.raises(UserError, match=message):
        load("synthetic", **options)


def test_registry_names_and_options():
    wanted = "mnist fashion-mnist cifar10 cifar100 stl10 voc-segmentation oxford-pets imagenet"
    assert {*wanted.split(), "image-folder", "mask-folder", "arrays"} < set(datasets.names())
    for name in datasets.names():
        assert callable(datasets.registry.loader(name)) and datasets.options(name)
    with pytest.raises(UserError, match="dataset 'arrays' needs the option path"):
        load("arrays")
    assert datasets.options("digits") == {"test_fraction": 0.2, "seed": 0}
    with pytest.raises(UserError, match=r"unknown dataset 'digit'.*'digits'.*synthetic"):
        load("digit")
    with pytest.raises(UserError, match=r"option of dataset 'digits' 'sed'.*'seed'.*test_fraction"):
        load("digits", sed=1)


def test_import_stays_light():
    code = (
        "import sys, meta500.datasets\n"
        "heavy = {'sklearn', 'scipy', 'torch', 'pandas', 'matplotlib', 'PIL', 'pooch', 'requests'} & set(sys.modules)\n"
        "sys.exit(', '.join(sorted(heavy)) or None)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
