"""Structure, options and metadata of the networks."""

import inspect
import json

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500 import models
from meta500.errors import UserError
from meta500.graph import load
from meta500.graph.passes import FOLLOW, MODE_KEY

SMALL = {
    "digits_cnn": {},
    "lenet": {},
    "mlp": {},
    "resnet18": {"size": 32, "classes": 10, "small_images": True},
    "resnet50": {"size": 64, "classes": 10},
    "unet": {"size": 16},
}
COUNTS = {
    "digits_cnn": 38_282,
    "lenet": 61_706,
    "mlp": 17_226,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "unet": 5_879,
}


@pytest.mark.parametrize(("n", "count"), list(enumerate([5_879, 23_253, 92_495, 368_955])))
def test_unet_has_the_parameters_of_the_thesis(n, count):
    assert models.unet(n).parameter_count() == count


@pytest.mark.parametrize("name", COUNTS)
def test_networks_have_their_known_number_of_parameters(name):
    model = models.create(name, batch=1)
    assert model.parameter_count() == COUNTS[name]
    assert f"{COUNTS[name]:,}" in inspect.getdoc(getattr(models, name))


@pytest.mark.parametrize(("name", "count"), [("resnet18", 11_173_962), ("resnet50", 23_520_842)])
def test_small_residual_networks(name, count):
    model = models.create(name, size=32, classes=10, small_images=True)
    assert model.parameter_count() == count
    first = model.graph.operations[0]
    assert (first.kernel_shape, first.strides) == ((3, 3), (1, 1))
    assert "MaxPool" not in {op.op_type for op in model.graph.operations}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("batch", [2, None, "images"])
def test_networks_are_valid_onnx(name, batch):
    model = models.create(name, batch=batch, **SMALL[name])
    proto = model.to_proto()
    onnx.checker.check_model(proto, full_check=True)
    dimension = {None: "N"}.get(batch, batch)
    assert list(model.inputs) == ["image", "label"] and list(model.outputs) == ["logits", "loss"]
    assert model.inputs["image"].shape[0] == dimension == model.inputs["label"].shape[0]
    assert model.outputs["logits"].shape[0] == dimension
    assert (model.inputs["label"].dtype, model.outputs["loss"].shape) == (np.dtype("int64"), ())
    assert model.batch() == (batch if isinstance(batch, int) else None)
    assert load(proto).parameters == model.parameters


@pytest.mark.parametrize("name", SMALL)
def test_what_a_network_was_made_with_is_visible(name):
    model = models.create(name, seed=3, initialization="lecun_normal", **SMALL[name])
    assert model.metadata["meta500.model"] == name
    assert model.metadata["meta500.initialization"] == "lecun_normal"
    assert model.metadata["meta500.seed"] == "3"
    chosen = json.loads(model.metadata["meta500.options"])
    assert set(chosen) | {"seed", "initialization"} == set(models.options(name))
    again = models.create(name, seed=3, initialization="lecun_normal", **chosen)
    assert again.metadata == model.metadata
    for key in model.parameters:
        assert np.array_equal(again.graph.initializers[key], model.graph.initializers[key])
    assert again.graph.inputs == model.graph.inputs


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("dtype", ["float16", np.float64])
def test_dtype_holds_for_everything_that_floats(name, dtype):
    model = models.create(name, dtype=dtype, **SMALL[name])
    assert {a.dtype for a in model.graph.initializers.values()} == {np.dtype(dtype)}
    assert model.inputs["image"].dtype == model.outputs["loss"].dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", SMALL)
def test_without_loss_there_is_no_label(name):
    model = models.create(name, loss=False, **SMALL[name])
    assert list(model.inputs) == ["image"] and list(model.outputs) == ["logits"]


@pytest.mark.parametrize("name", SMALL)
def test_docstrings_say_where_a_network_comes_from(name):
    text = inspect.getdoc(getattr(models, name))
    for word in ("UserError", "arameters"):
        assert word in text
    assert "Source:" in text or "resnet18" in text
    if "resnet18" not in text:
        assert all(f"{option}:" in text for option in models.options(name)), models.options(name)


def test_batch_normalisation_follows_the_mode():
    model = models.resnet18(**SMALL["resnet18"])
    norms = [op for op in model.graph.operations if op.op_type == "BatchNormalization"]
    assert len(norms) == 20
    for op in norms:
        assert op.metadata[MODE_KEY] == FOLLOW
        assert (op.epsilon, op.momentum, op.training_mode) == (1e-5, 0.9, 0)
        assert not {op.input_mean, op.input_var} & set(model.parameters)


def test_the_stride_of_a_bottleneck_is_on_its_3x3():
    model = models.resnet50(**SMALL["resnet50"])
    strided = {
        op.name: op.kernel_shape
        for op in model.graph.operations
        if op.op_type == "Conv" and op.strides == (2, 2)
    }
    assert strided == {
        "conv1": (7, 7),
        **{f"layer{i}.0.conv2": (3, 3) for i in (2, 3, 4)},
        **{f"layer{i}.0.downsample.0": (1, 1) for i in (2, 3, 4)},
    }


@pytest.mark.parametrize(("name", "last"), [("resnet18", "bn2"), ("resnet50", "bn3")])
def test_zero_gamma_is_in_the_last_normalisation_of_each_block(name, last):
    model = models.create(name, zero_gamma=True, **SMALL[name])
    zero = {
        key
        for key, value in model.graph.initializers.items()
        if key in model.parameters and key.endswith("weight") and not value.any()
    }
    assert zero == {k for k in model.parameters if k.endswith(f".{last}.weight")} and zero


@settings(max_examples=15)
@given(st.integers(0, 2), st.integers(1, 3), st.integers(1, 3), st.integers(2, 4), st.integers(1, 3))
def test_unet_in_other_forms(n, depth, batch, classes, channels_in):
    size = (2**depth, 2 * 2**depth)
    model = models.unet(n, depth=depth, batch=batch, size=size, classes=classes, channels_in=channels_in)
    assert model.outputs["logits"].shape == (batch, classes, *size)
    assert model.inputs["image"].shape == (batch, channels_in, *size)
    kinds = [op.op_type for op in model.graph.operations]
    assert kinds.count("Conv") == 4 * depth + 3 and kinds.count("ConvTranspose") == depth
    assert kinds.count("AveragePool") == kinds.count("Concat") == depth


def test_unet_joins_the_skip_before_what_comes_from_below():
    model = models.unet(size=16)
    joins = {op.name: op.inputs for op in model.graph.operations if op.op_type == "Concat"}
    assert joins == {f"decoder{i}.concat": (f"encoder{i}.relu2", f"decoder{i}.up") for i in (1, 2, 3, 4)}


def test_softmax_regression_and_deep_perceptrons():
    assert models.mlp(hidden=()).parameter_count() == 64 * 10 + 10
    model = models.mlp(shape=(5,), hidden=(4, 3, 2), classes=2)
    assert [op.op_type for op in model.graph.operations][:2] == ["Gemm", "Relu"]
    assert model.parameter_count() == 24 + 15 + 8 + 6


REFUSED = [
    ("unet", {"size": 100}, "size 100x100 cannot be halved 4 times.*multiples of 16.*96x96 or 112x112"),
    ("unet", {"size": (16, 8)}, "16x8 cannot be halved.*16x16"),
    ("unet", {"size": 8}, "for example 16x16$"),
    ("unet", {"n": -1}, "n must be an integer from 0 to 8, not -1"),
    ("unet", {"n": True}, "n must be an integer"),
    ("unet", {"n": 8, "depth": 5}, "n=8 and depth=5 give 2.13 channels at the bottom"),
    ("unet", {"depth": 0}, "depth must be an integer from 1 to 8, not 0"),
    ("unet", {"batch": 0}, "batch must be an integer of at least 1, not 0"),
    ("unet", {"batch": -3}, "batch must be"),
    ("unet", {"batch": 2.0}, "batch must be"),
    ("unet", {"batch": "a b"}, "batch 'a b' is no name of a dimension"),
    ("unet", {"size": 0}, "size must be"),
    ("unet", {"size": (16, 16, 16)}, "one integer or"),
    ("unet", {"size": "16"}, "size must be"),
    ("unet", {"classes": 1}, "classes must be an integer of at least 2, not 1"),
    ("unet", {"channels_in": 0}, "channels_in must be"),
    ("unet", {"seed": -1}, "seed must be an integer of at least 0, not -1"),
    ("unet", {"seed": 1.5}, "seed must be"),
    ("unet", {"dtype": "int32"}, "unknown dtype 'int32'.*float64"),
    ("unet", {"dtype": "float33"}, "unknown dtype 'float33'"),
    ("unet", {"loss": "mse", "size": 16}, "loss must be True or False, not 'mse'"),
    ("unet", {"initialization": "he"}, "unknown initialization 'he'"),
    ("digits_cnn", {"size": 1}, "smaller than the 2x2 pool"),
    ("digits_cnn", {"channels": (4,)}, "channels must be 2 positive integers"),
    ("digits_cnn", {"channels": 4}, "channels must be 2 positive integers"),
    ("digits_cnn", {"hidden": 0}, "hidden must be"),
    ("mlp", {"hidden": (8, 0)}, "hidden must be an integer of at least 1, not 0"),
    ("mlp", {"hidden": 8}, "hidden must be positive integers"),
    ("mlp", {"shape": ()}, "shape must be positive integers"),
    ("lenet", {"size": 30}, "size 28 or 32, not 30"),
    ("lenet", {"activation": "swish"}, "unknown activation 'swish'.*relu, tanh"),
    ("lenet", {"pool": "min"}, "unknown pool 'min'.*average, max"),
    ("resnet18", {"small_images": 1}, "small_images must be True or False"),
    ("resnet50", {"zero_gamma": None}, "zero_gamma must be True or False"),
    ("resnet50", {"size": -32}, "size must be"),
    ("unet", {"width": 3}, "unknown option of model 'unet' 'width'.*Choose one of: batch, "),
    ("unett", {}, r"unknown model 'unett'. Did you mean 'unet'\?"),
]


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        models.create(name, **options)


def test_registry():
    assert models.names() == tuple(sorted(models.names())) and set(COUNTS) < set(models.names())
    assert all(callable(getattr(models, name)) for name in models.names())
    assert models.options("unet")["size"] == 512
    with pytest.raises(UserError, match="unknown model"):
        models.options("vgg")
