"""First values of parameters: their distributions, and that they depend on seed and name only."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from meta500 import models
from meta500.errors import UserError
from meta500.models.initialization import BIAS, fans, initialize

SHAPE = (64, 32, 3, 3)
FAN_IN, FAN_OUT = 32 * 9, 64 * 9

# Variance and bound (None: normal) of each distribution, by its paper.
DISTRIBUTIONS = {
    "torch_default": (1 / (3 * FAN_IN), 1 / math.sqrt(FAN_IN)),
    "kaiming_uniform": (2 / FAN_IN, math.sqrt(6 / FAN_IN)),
    "kaiming_normal": (2 / FAN_IN, None),
    "kaiming_normal_fan_out": (2 / FAN_OUT, None),
    "xavier_uniform": (2 / (FAN_IN + FAN_OUT), math.sqrt(6 / (FAN_IN + FAN_OUT))),
    "xavier_normal": (2 / (FAN_IN + FAN_OUT), None),
    "lecun_normal": (1 / FAN_IN, None),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_weights_have_the_moments_of_the_paper(name):
    variance, bound = DISTRIBUTIONS[name]
    values = initialize(name, "w", SHAPE, dtype=np.float64)
    count, deviation = values.size, math.sqrt(variance)
    kurtosis = 3.0 if bound is None else 1.8
    assert abs(values.mean()) < 5 * deviation / math.sqrt(count)
    assert abs(values.var() / variance - 1) < 5 * math.sqrt((kurtosis - 1) / count)
    assert abs((values**4).mean() / variance**2 / kurtosis - 1) < 0.15
    if bound is not None:
        assert 0.999 * bound < np.abs(values).max() < bound


@pytest.mark.parametrize("name", [n for n in models.initializations() if n != "torch_default"])
def test_biases_begin_as_zero(name):
    assert not initialize(name, "b", (64,), weight_shape=SHAPE, role=BIAS).any()


def test_the_default_is_that_of_pytorch():
    for layer in (torch.nn.Conv2d(32, 64, 3), torch.nn.ConvTranspose2d(64, 32, 3)):
        shape = tuple(layer.weight.shape)
        ours = initialize("torch_default", "w", shape)
        bias = initialize("torch_default", "b", (4096,), weight_shape=shape, role=BIAS, dtype=np.float64)
        for value in (ours, bias):
            assert np.abs(value).max() == pytest.approx(layer.weight.abs().max().item(), rel=5e-3)
    linear = torch.nn.Linear(200, 300)
    ours = initialize("torch_default", "w", (300, 200))
    assert np.abs(ours).max() == pytest.approx(linear.weight.abs().max().item(), rel=5e-3)
    assert ours.std() == pytest.approx(linear.weight.std().item(), rel=0.02)


@given(st.lists(st.integers(1, 7), min_size=2, max_size=5))
def test_fans_are_those_of_pytorch(shape):
    expected = torch.nn.init._calculate_fan_in_and_fan_out(torch.empty(shape))
    assert fans(tuple(shape)) == expected


def test_a_vector_has_no_fans():
    with pytest.raises(UserError, match=r"shape \(3,\) has no fan-in"):
        fans((3,))


def test_constant_and_zeros():
    assert (initialize("constant", "w", (2, 3)) == np.float32(0.01)).all()
    assert (initialize("constant:-1.5", "w", (2, 3)) == -1.5).all()
    assert not initialize("zeros", "w", (2, 3)).any()


@pytest.mark.parametrize("name", ["kaiming", "zeros:1", "constant:much", "constant:nan", "", None])
def test_unknown_initialisations_are_refused(name):
    with pytest.raises(UserError, match="initialization"):
        models.mlp(initialization=name)


def test_the_message_lists_the_initialisations():
    with pytest.raises(UserError, match=r"Did you mean 'xavier_normal'\? Choose one of: constant, "):
        models.unet(size=16, initialization="xavier_normale")


@pytest.mark.parametrize("name", [n for n in models.initializations() if n[:4] not in ("cons", "zero")])
def test_values_depend_on_seed_and_name_and_nothing_else(name):
    value = initialize(name, "conv1.weight", (3, 4), seed=7)
    assert np.array_equal(value, initialize(name, "conv1.weight", (3, 4), seed=7))
    assert not np.array_equal(value, initialize(name, "conv1.weight", (3, 4), seed=8))
    assert not np.array_equal(value, initialize(name, "conv2.weight", (3, 4), seed=7))


def test_other_parts_of_a_network_do_not_change_a_parameter():
    small, large = models.mlp(hidden=(16,)), models.mlp(hidden=(16, 8, 4))
    for name in ("fc1.weight", "fc1.bias"):
        assert np.array_equal(small.graph.initializers[name], large.graph.initializers[name])


def test_single_precision_is_the_rounded_double_precision():
    single, double = models.digits_cnn(), models.digits_cnn(dtype="float64")
    for name in single.parameters:
        a, b = single.graph.initializers[name], double.graph.initializers[name]
        assert (a.dtype, b.dtype) == (np.float32, np.float64)
        assert np.array_equal(a, b.astype(np.float32))


def test_the_stream_of_a_seed_is_fixed():
    # A change here changes every published result that names a seed.
    value = initialize("torch_default", "conv1.weight", (1, 4), seed=0, dtype=np.float64)
    expected = [[-0.018028425759687106, -0.10163884362120779, -0.42524783861974946, -0.03822743842311582]]
    assert value.tolist() == expected
