"""A small recipe that trains in a fraction of a second, to be varied by tests."""

import pytest

TINY = """\
[recipe]
name = "tiny"
title = "A tiny recipe"
description = "An MLP on digits."
source = "These tests."
seeds = 2

[fixed]
model = "mlp"
dataset = "digits"
optimizer = "adam"
hyperparameters.learning_rate = 0.003
epochs = 1

[mutable]
backend = "numpy"
batch_size = 64
model_options.hidden = [16]

[[metrics]]
name = "accuracy"
quantity = "test_accuracy"
low = 0.2
high = 0.95
"""


@pytest.fixture
def tiny(tmp_path):
    """Writes the tiny recipe with some of its text replaced (old, new, old, new, ...); gives its path."""

    def write(*changes, name="tiny.toml"):
        text = TINY
        for old, new in zip(changes[::2], changes[1::2], strict=True):
            assert old in text, f"the tiny recipe has no {old!r}"
            text = text.replace(old, new)
        path = tmp_path / name
        path.write_text(text)
        return path

    return write
