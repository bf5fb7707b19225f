"""Networks named on the command line: Python files with modules, ONNX files, names."""

import numpy as np
import pytest

import meta500
from meta500.benchmarks.generation import Source, load_subject
from meta500.errors import UserError

IMAGES = {"image": np.zeros((2, 1, 8, 8), np.float32)}


@pytest.fixture
def source(tmp_path, two_files):
    two_files(tmp_path)

    def make(model="net.py", text=None, **more):
        if text is not None:
            (tmp_path / "net.py").write_text(text)
        return Source(str(tmp_path / model), **{"examples": IMAGES, "loss": "cross_entropy", **more})

    return make


def test_the_module_is_the_network(source, tmp_path):
    import torch

    subject = load_subject(source(options={"channels": 4}, seed=3), batch=5)
    assert subject.shapes == {"image": (5, 1, 8, 8), "label": (5,)} and subject.open_batch
    same = load_subject(source("net.py:Net", options={"channels": 4}, seed=3), batch=5)
    for name, array in subject.model.graph.initializers.items():
        assert np.array_equal(array, same.model.graph.initializers[name])
    other = load_subject(source(options={"channels": 4}, seed=4), batch=5)
    weight = "head.weight"
    assert not np.array_equal(
        other.model.graph.initializers[weight], subject.model.graph.initializers[weight]
    )
    assert subject.model.parameters[-1] == "head.bias"
    assert torch.initial_seed() != 3  # PyTorch's own generator is left alone


MSE = """
from torch import nn
net = nn.Sequential(nn.Conv2d(1, 1, 3, padding=1))
class A(nn.Module): pass
class B(nn.Module): pass
number = 3
"""


def test_a_module_that_is_made_already_and_another_loss(source):
    subject = load_subject(source("net.py:net", MSE, loss="mean_squared_error"), batch=2)
    assert subject.shapes == {"image": (2, 1, 8, 8), "label": (2, 1, 8, 8)}


@pytest.mark.parametrize(
    ("model", "text", "more", "parts"),
    [
        ("net.py", "x = 1\n", {}, ["defines no class of torch.nn.Module"]),
        ("net.py", MSE, {}, ["several modules, A, B", "net.py:B"]),
        ("net.py:C", MSE, {}, ["'C'", "A, B"]),
        ("net.py:number", MSE, {}, ["'number' is no torch.nn.Module but int"]),
        ("net.py:net", MSE, {"options": {"a": 1}}, ["is a module already", "'a'"]),
        ("net.py:A", MSE, {"name": "B"}, ["names another class, 'B'"]),
        ("net.py", "import nowhere_at_all\n", {}, ["net.py:1: cannot be imported", "nowhere_at_all"]),
        ("net.py", "def f(:\n", {}, ["net.py:1: cannot be imported: SyntaxError"]),
        ("net.py", None, {"options": {"channel": 1}}, ["Net(channel)", "unexpected keyword"]),
        ("net.py", None, {"options": {"channels": -1}}, ["its constructor fails"]),
        ("net.py", None, {"examples": {}}, ["--shape NAME"]),
        ("other.py", None, {}, ["other.py: there is no such file"]),
        ("net.onnx", None, {"name": "Net"}, ["is no Python file", "'Net'"]),
    ],
)
def test_what_is_refused(source, model, text, more, parts):
    with pytest.raises(UserError) as error:
        load_subject(source(model, text, **more), batch=2)
    for part in parts:
        assert part in str(error.value)


def test_models_of_ours_and_files(tmp_path):
    subject = load_subject(Source("digits_cnn", examples=IMAGES, classes=7), batch=3)
    assert subject.shapes["image"] == (3, 1, 8, 8) and subject.open_batch
    assert subject.model.outputs["logits"].shape[1] == 7
    subject.model.save(tmp_path / "net.onnx")
    file = str(tmp_path / "net.onnx")
    assert load_subject(Source(file), batch=4).shapes["label"] == (4,)
    assert load_subject(Source(file), {"image": (4, 1, 8, 8), "label": (4,)}).shapes["label"] == (4,)
    fixed = meta500.models.digits_cnn(batch=6)
    fixed.save(tmp_path / "fixed.onnx")
    assert not load_subject(Source(str(tmp_path / "fixed.onnx")), batch=6).open_batch
    squared = load_subject(Source("digits_cnn", loss="mean_squared_error"), batch=2)
    assert squared.shapes["label"] == (2, 10)
    for wrong, message in (
        ({"batch": 5}, "fixed batch 6; 5"),
        ({"shapes": {"image": (6, 1, 9, 8)}}, "declared"),
        ({"shapes": {"picture": (6, 1, 8, 8)}}, "unknown input"),
    ):
        with pytest.raises(UserError, match=message):
            load_subject(Source(str(tmp_path / "fixed.onnx")), **wrong)
    with pytest.raises(UserError, match="needs all sizes"):
        load_subject(Source(file))
    with pytest.raises(UserError, match="a loss of its own, SoftmaxCrossEntropyLoss"):
        load_subject(Source(file, loss="mean_squared_error"), batch=2)
    with pytest.raises(UserError, match="do not apply to a file"):
        load_subject(Source(file, options={"n": 1}), batch=2)
