"""Configurations: what they say, and what is refused with the file, the section and the key."""

import pytest

from meta500.benchmarks.generation import read_config
from meta500.errors import UserError

GOOD = """
[data]
name = "digits"

[train]
epochs = 3
batch_size = 16
optimizer = "adamw"
learning_rate = 0.01
weight_decay = 0.1
betas = [0.8, 0.99]
"""


@pytest.fixture
def read(tmp_path):
    def run(text):
        (tmp_path / "train.toml").write_text(text)
        return read_config(tmp_path / "train.toml")

    return run


def test_values_and_defaults(read, tmp_path):
    found = read(GOOD)
    assert (found.data, found.data_path, found.validation, found.storage) == ("digits", None, "own", "exact")
    assert (found.epochs, found.batch_size, found.optimizer, found.seed) == (3, 16, "adamw", 0)
    assert found.hyper == {
        "learning_rate": 0.01,
        "momentum": 0.9,
        "beta1": 0.8,
        "beta2": 0.99,
        "epsilon": 1e-8,
        "weight_decay": 0.1,
    }
    assert (
        found.shuffle and found.threads is None and found.precision == "float32" and found.report == "epoch"
    )
    assert found.update == "adamw"
    assert read(GOOD.replace('name = "digits"', 'path = "d"')).data_path == tmp_path / "d"
    assert read(GOOD + '[model]\nfile = "net.py"').model == str(tmp_path / "net.py")


@pytest.mark.parametrize(
    ("optimizer", "default"), [("sgd", 0.0), ("momentum", 0.0), ("adam", 0.0), ("adamw", 0.01)]
)
def test_every_optimizer_has_weight_decay(read, optimizer, default):
    text = GOOD.replace('"adamw"', f'"{optimizer}"').replace("betas = [0.8, 0.99]", "")
    assert read(text).hyper["weight_decay"] == 0.1
    assert read(text.replace("weight_decay = 0.1", "")).hyper["weight_decay"] == default
    assert read(text.replace("weight_decay = 0.1", "weight_decay = 0")).update == optimizer


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("epochs = 3", "", ["[train] epochs is missing"]),
        ("epochs = 3", "epochs = 0", ["[train] epochs", "at least 1", "0"]),
        ("epochs = 3", "epochs = true", ["[train] epochs", "True"]),
        ("epochs = 3", 'epochs = "3"', ["[train] epochs", "'3'"]),
        ("epochs = 3", "epochs = 3\nepoch = 3", ["key of [train]", "'epoch'", "Did you mean 'epochs'"]),
        ("batch_size = 16", "batch_size = 1.5", ["[train] batch_size", "1.5"]),
        ('"adamw"', '"rmsprop"', ["[train] optimizer", "'rmsprop'", "adam, adamw, momentum, sgd"]),
        ('"adamw"', '"sgd"', ["betas does not apply to optimizer 'sgd'", "adam, adamw"]),
        ("weight_decay = 0.1", "weight_decay = -0.1", ["[train] weight_decay", "at least 0", "-0.1"]),
        ("weight_decay = 0.1", 'weight_decay = "0.1"', ["[train] weight_decay", "'0.1'"]),
        ("weight_decay = 0.1", "weight_decay = inf", ["[train] weight_decay", "inf"]),
        ('"adamw"', "7", ["[train] optimizer", "text", "7"]),
        ("learning_rate = 0.01", "", ["[train] learning_rate is missing"]),
        ("learning_rate = 0.01", "learning_rate = -1", ["[train] learning_rate", "-1"]),
        ("learning_rate = 0.01", "learning_rate = nan", ["[train] learning_rate", "nan"]),
        ("[0.8, 0.99]", "[0.8]", ["[train] betas", "two numbers"]),
        ("[0.8, 0.99]", "[0.8, 1.0]", ["[train] betas", "below 1"]),
        ('name = "digits"', "", ["[data] needs either name", "path"]),
        ('name = "digits"', 'name = "digits"\npath = "x"', ["[data] needs either name"]),
        ('name = "digits"', 'name = "digits"\nvalidation = 1.5', ["[data] validation", "1.5"]),
        ('name = "digits"', 'name = "digits"\nstorage = "half"', ["[data] storage", "exact, uint8"]),
        ('name = "digits"', 'name = "digits"\ninputs = ["a"]', ["[data] inputs", "table"]),
        ('name = "digits"', 'path = "d"\noptions = { a = 1 }', ["[data] options", "not to a path"]),
        ("[data]", "[date]", ["section", "'date'", "Did you mean 'data'"]),
        ("[data]", "[data", ["is no TOML"]),
    ],
)
def test_what_is_refused(read, tmp_path, old, new, parts):
    assert old in GOOD
    with pytest.raises(UserError) as error:
        read(GOOD.replace(old, new))
    for part in ("train.toml", *parts):
        assert part in str(error.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(UserError, match=r"nothing.toml: cannot be read: No such file"):
        read_config(tmp_path / "nothing.toml")
