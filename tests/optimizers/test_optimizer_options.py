"""Hyper-parameters and the registry: every bad value and name is one clear error."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500 import optimizers
from meta500.errors import UserError
from meta500.optimizers import create, names, options

NUMBERS = {
    (name, option)
    for name in names()
    for option, default in options(name).items()
    if isinstance(default, float)
}


@pytest.mark.parametrize("value", [-1e-9, float("nan"), float("inf"), "0.1", None, True, 1 + 0j])
@pytest.mark.parametrize(("name", "option"), sorted(NUMBERS))
def test_numbers_must_be_finite_and_not_negative(name, option, value):
    cls = optimizers.registry.OPTIMIZERS[name].__name__
    with pytest.raises(UserError) as error:
        create(name, None, **{option: value})
    text = str(error.value)
    assert text.startswith(f"{cls}: {option} = {value!r} is not valid")
    assert "at least 0" in text


@pytest.mark.parametrize(
    ("name", "option"),
    [("adam", "beta1"), ("adam", "beta2"), ("momentum", "momentum"), ("rmsprop", "decay")],
)
def test_decay_rates_are_below_one(name, option):
    with pytest.raises(UserError, match=f"{option} = 1.0 is not valid: .* at least 0 and below 1"):
        create(name, None, **{option: 1.0})


def test_flags_are_bools():
    with pytest.raises(UserError, match="centered = 1 is not valid: give True or False"):
        create("rmsprop", None, centered=1)


@pytest.mark.parametrize("name", names())
def test_every_optimizer_is_made_by_name_with_its_options(name):
    optimizer = create(name, None, **options(name))
    assert set(options(name)) == {*optimizer.hyper_parameters(), "loss"} - (
        {"dampening"} if name == "nesterov" else set()
    )
    assert optimizer.loss == "loss"
    assert type(optimizer).__name__ in optimizers.__all__


def test_names_are_those_promised():
    assert names() == [
        "accelegrad", "adagrad", "adam", "adamw", "momentum", "nesterov", "rmsprop", "sgd",
    ]  # fmt: skip


def test_unknown_names_give_the_choices():
    with pytest.raises(UserError, match=r"unknown optimizer 'adan'.*'adam'.*accelegrad, adagrad"):
        create("adan", None)
    with pytest.raises(UserError, match=r"option of optimizer 'adam' 'beta'.*beta1, beta2, epsilon"):
        create("adam", None, beta=0.9)
    with pytest.raises(UserError, match="unknown optimizer 'adan'"):
        options("adan")


@given(value=st.floats(0, 6e4), kind=st.sampled_from([float, np.float64, np.float32, np.float16]))
def test_stored_numbers_are_python_floats(value, kind):
    """A numpy scalar would widen float32 arrays."""
    number = kind(value)
    optimizer = create("sgd", None, learning_rate=number)
    assert type(optimizer.learning_rate) is float
    assert optimizer.learning_rate == float(number)


def test_schedule_that_gives_a_bad_rate_is_caught_in_its_step():
    optimizer = create("sgd", None, learning_rate=lambda step: 0.1 if step < 2 else float("nan"))
    x = {"x": np.ones(3)}
    optimizer.apply(x, x)
    optimizer.apply(x, x)
    with pytest.raises(UserError, match=r"SGD: the schedule .*lambda.* rate nan at step 2"):
        optimizer.apply(x, x)


def test_learning_rate_can_be_set_between_steps():
    optimizer = create("sgd", None, learning_rate=0.5)
    x = {"x": np.ones(3)}
    assert optimizer.apply(x, x)["x"][0] == 0.5
    optimizer.learning_rate = 0.25
    assert optimizer.apply(x, x)["x"][0] == 0.75


def test_import_stays_light():
    code = (
        "import sys, meta500.optimizers; print([m for m in ('torch', 'scipy', 'pandas') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
