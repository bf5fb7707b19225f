"""What a browser may ask for: every key, every wrong value, and the command line that comes of it."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.web.setups import DEFAULTS, KEYS, checked, command, label

ADAM = {"name": "adam", "learning_rate": 0.001, "options": {"beta1": 0.9}}
CHOICES = {
    "models": [{"name": "mlp", "options": {"hidden": [128, 64], "initialization": "torch_default"}}],
    "datasets": [{"name": "digits", "options": {"test_fraction": 0.2}}],
    "backends": [{"name": "numpy", "native": ["adam"]}, {"name": "torch", "native": []}],
    "optimizers": [ADAM, {"name": "sgd", "learning_rate": 0.01, "options": {}}],
    "native": {"numpy": [ADAM], "torch": []},
    "limits": {"threads": 8},
}
UPLOAD = "0123456789abcdef0123456789abcdef"


def check(**posted):
    return checked({"model": "mlp", "backend": "numpy", **posted}, CHOICES)


def test_defaults():
    setup = checked({"model": "mlp"}, CHOICES)
    assert {key: setup[key] for key in DEFAULTS} == {**DEFAULTS, "model": "mlp"}
    assert setup["upload"] is None and setup["label"] == "" and setup["model_options"] == {}
    assert check(threads=None, seed=None)["seed"] == 0
    assert set(setup) == set(KEYS)


def test_command_line():
    setup = check(
        optimizer_options={"beta1": 0.8},
        model_options={"hidden": [32], "initialization": "x"},
        native=True,
        threads=2,
        target_accuracy=0.9,
        label="--not-an-option",
    )
    assert command(setup, "mlp", "/runs/1") == [
        "train",
        "--model=mlp",
        "--dataset=digits",
        "--backend=numpy",
        "--optimizer=adam",
        "--learning-rate=0.001",
        "--epochs=10",
        "--batch-size=64",
        "--seed=0",
        "--threads=2",
        "--target-accuracy=0.9",
        "--out=/runs/1",
        "--native",
        "--model-option=hidden=[32]",
        '--model-option=initialization="x"',
        "--optimizer-option=beta1=0.8",
    ]


@pytest.mark.parametrize(
    ("posted", "words"),
    [
        ({"epoch": 3}, "unknown key 'epoch'. Did you mean 'epochs'?"),
        ({"out": "/tmp/x"}, "unknown key 'out'"),
        ({"model": "../../etc/passwd"}, "unknown model"),
        ({"model": ["mlp"]}, 'model must be a name, got ["mlp"]'),
        ({"model": "mlp", "upload": UPLOAD}, "exclude each other"),
        ({"model": None, "upload": "../" + UPLOAD}, "upload must be the id"),
        ({"model": None, "upload": 3}, "upload must be the id"),
        ({"dataset": "mnist"}, "unknown dataset 'mnist'"),
        ({"backend": "onnxruntime"}, "unknown backend"),
        ({"optimizer": "lion"}, "unknown optimizer 'lion'"),
        ({"native": True, "optimizer": "sgd"}, "unknown native optimizer of backend 'numpy' 'sgd'"),
        ({"native": "yes"}, 'native must be true or false, got "yes"'),
        ({"epochs": 0}, "epochs must be a whole number from 1 to 100000, got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number"),
        ({"epochs": True}, "epochs must be a whole number"),
        ({"epochs": "3"}, "epochs must be a whole number"),
        ({"epochs": 10**400}, "epochs must be a whole number"),
        ({"learning_rate": -1}, "learning_rate must be a number from 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a number"),
        ({"learning_rate": float("inf")}, "learning_rate must be a number"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"seed": -1}, "seed must be"),
        ({"threads": 9}, "threads must be a number from 1 to 8"),
        ({"target_accuracy": 1.1}, "target_accuracy must be"),
        ({"time_limit": 0}, "time_limit must be"),
        ({"model_options": {"folder": "x"}}, "unknown option in model_options 'folder'"),
        ({"model_options": [1]}, "model_options must be a JSON object, got [1]"),
        ({"model_options": {"initialization": "../x"}}, "model_options: initialization must be a number"),
        ({"model_options": {"initialization": "/etc"}}, "model_options: initialization must be"),
        ({"model_options": {"initialization": "--x"}}, "model_options: initialization must be"),
        ({"model_options": {"hidden": [[1]]}}, "model_options: hidden must be"),
        ({"model_options": {"hidden": list(range(65))}}, "model_options: hidden must be"),
        ({"model_options": {"hidden": 10**400}}, "model_options: hidden must be"),
        ({"dataset_options": {"seed": 1}}, "unknown option in dataset_options 'seed'"),
        ({"optimizer": "sgd", "optimizer_options": {"beta1": 1}}, "there are no options here"),
        ({"label": 3}, "label must be text, got 3"),
    ],
)
def test_refused(posted, words):
    with pytest.raises(UserError) as error:
        check(**posted)
    assert words in str(error.value)


@pytest.mark.parametrize("posted", [None, [], "mlp", 3, True])
def test_no_object(posted):
    with pytest.raises(UserError, match="must be a JSON object"):
        checked(posted, CHOICES)


def test_values_of_any_depth_are_shown():
    value = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(UserError, match="model must be a name, got a value that is nested too deeply"):
        check(model=value)


def test_options_of_an_upload():
    setup = check(model=None, upload=UPLOAD)
    assert setup["model"] is None and setup["upload"] == UPLOAD
    with pytest.raises(UserError, match="there are no options here"):
        check(model=None, upload=UPLOAD, model_options={"hidden": [3]})


@given(st.text(max_size=20) | st.text("ab\t\u202e", min_size=90, max_size=400))
def test_labels_are_one_short_line(text):
    found = label(text)
    assert len(found) <= 100 and (found == "" or found.isprintable()) and found == found.strip()


def test_labels_keep_what_is_harmless_in_text():
    assert label("<b>Run</b> 1 & 'ä' 漢") == "<b>Run</b> 1 & 'ä' 漢"
    assert label("a\n\tb\x00c\u202ed\ud800") == "a  b c d"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(KEYS) | st.text(max_size=10), JSON, max_size=6))
def test_whatever_is_posted_is_refused_or_becomes_words_of_its_own(posted):
    """No value gets out of its option, none is a path, and nothing but UserError is raised."""
    try:
        setup = checked({"model": "mlp", **posted} if "upload" not in posted else posted, CHOICES)
    except UserError:
        return
    for word in command(setup, "MODEL", "OUT")[1:]:
        option, _, value = word.partition("=")
        assert option.startswith("--") and option.removeprefix("--").replace("-", "").isalpha()
        assert "/" not in value and "\0" not in value
    json.dumps(setup, allow_nan=False)
