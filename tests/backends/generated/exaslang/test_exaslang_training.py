"""Layer-4 programs, run as they are written, train as the numpy backend: losses of 3 epochs and weights to 1e-10."""

from dataclasses import replace

import numpy as np
import pytest

import meta500
from meta500.backends.generated.exaslang.variant import Variant
from meta500.graph import ops

ORDERS = ("outermost", "innermost")
NETWORKS = (
    "two_layers",
    "two_layers_max",
    "two_layers_squares",
    "convolutions",
    "three_layers",
    "three_layers_max",
    "unet",
    "residual",
    "numbers",
    "shared",
    "joined",
)
BLOCKS = ((2, 1), (1, 2), (2, 2))


def test_all_networks_are_here(networks):
    assert set(NETWORKS) == set(networks)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pixels", ORDERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, pixels, subject, trains_as_numpy):
    trains_as_numpy(subject(name), Variant(pixels, double=True), "sgd")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pixels", ORDERS)
@pytest.mark.parametrize("halo", [True, False])
@pytest.mark.parametrize("blocks", BLOCKS)
def test_blocks(pixels, halo, blocks, subject, trains_as_numpy):
    variant = Variant(pixels, "mpi", blocks=blocks, halo=halo, double=True)
    trains_as_numpy(subject("two_layers_max"), variant, "momentum", epochs=2)


@pytest.mark.parametrize("variant", ["openmp", "hybrid", "cuda"])
@pytest.mark.parametrize("pixels", ORDERS)
def test_other_variants(pixels, variant, variants, subject, trains_as_numpy):
    trains_as_numpy(subject("two_layers"), variants[f"{variant}, {pixels}"], "adam", epochs=2)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_optimizers(optimizer, weight_decay, subject, trains_as_numpy):
    found = trains_as_numpy(
        subject("numbers", steps=3), Variant(double=True), optimizer, epochs=5, weight_decay=weight_decay
    )
    start = subject("numbers", steps=3).weights()
    assert all(not np.array_equal(array, start[name]) for name, array in found.weights.items())


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("batch", "shape"),
    [
        (1, (1, 4, 4)),
        (3, (1, 4, 4)),
        (5, (2, 4, 4)),
        (2, (3, 4, 4)),
        (1, (1, 4, 8)),
        (2, (2, 8, 4)),
        (1, (1, 6, 12)),
    ],
)
@pytest.mark.parametrize("pixels", ORDERS)
def test_shapes(pixels, batch, shape, subject, trains_as_numpy):
    trains_as_numpy(subject("two_layers", batch, shape), Variant(pixels, double=True), "adam", epochs=2)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("shape", "blocks"), [((1, 4, 8), (4, 2)), ((1, 6, 12), (3, 1)), ((2, 12, 6), (1, 3))]
)
@pytest.mark.parametrize("halo", [True, False])
def test_uneven_blocks(halo, shape, blocks, subject, trains_as_numpy):
    variant = Variant("outermost", "mpi", blocks=blocks, halo=halo, double=True)
    trains_as_numpy(subject("two_layers", 1, shape), variant, "sgd", epochs=2)


def test_two_epochs_are_the_first_two_of_three(subject, program, interpreted):
    one = subject("two_layers", steps=2)
    found = []
    for epochs in (2, 3):
        trained = program(one, Variant(double=True), "adam", epochs)
        found.append(interpreted(trained.tree, trained, one, (1, 1)).losses)
    assert found[0] == found[1][:2] and len(set(found[1])) == 3


def test_weights_without_a_picture_between(draft, with_data, trains_as_numpy):
    """Two convolutions side by side, whose gradients meet in the image's place."""
    d = draft("side_by_side", 2, (2, 4, 4))
    a, b = d.conv(d.image, 3, "a", kernel=(1, 3)), d.conv(d.image, 3, "b", kernel=(3, 1))
    model = d.finish(d.one(ops.Add, a, b))
    for pixels in ORDERS:
        trains_as_numpy(with_data(model), Variant(pixels, double=True), "sgd")


def test_a_convolution_of_five_by_five(draft, with_data, trains_as_numpy):
    """Two ghost layers."""
    d = draft("wide", 1, (1, 8, 8))
    model = d.finish(d.conv(d.relu(d.conv(d.image, 2, "wide", kernel=5)), 3, "last"))
    for pixels in ORDERS:
        for blocks, halo in (((1, 1), True), ((2, 2), True), ((2, 2), False)):
            parallel = "mpi" if blocks != (1, 1) else "serial"
            trains_as_numpy(
                with_data(model, 1),
                Variant(pixels, parallel, blocks=blocks, halo=halo, double=True),
                epochs=2,
            )


OTHERS = {
    "PRelu": lambda d, x: d.one(ops.PRelu, x, d.parameter("slope", (3, 1, 1))),
    "LeakyRelu": lambda d, x: d.one(ops.LeakyRelu, x, alpha=0.1),
    "Elu": lambda d, x: d.one(ops.Elu, x, alpha=0.5),
    "Clip": lambda d, x: d.one(ops.Clip, x, d.builder.constant(-0.5), d.builder.constant(0.5)),
    "HardSigmoid": lambda d, x: d.one(ops.HardSigmoid, x),
    "Softmax": lambda d, x: d.one(ops.Softmax, x, axis=1),
    "Div": lambda d, x: d.one(ops.Div, x, d.one(ops.Exp, d.conv(d.image, 3, "b"))),
    "Neg": lambda d, x: d.one(ops.Neg, x),
    "Max": lambda d, x: d.joined(ops.Max, (x, d.conv(d.image, 3, "b"))),
    "Sum": lambda d, x: d.joined(ops.Sum, (x, x, d.conv(d.image, 3, "b", pads=(2, 0, 0, 2)))),
    "scale": lambda d, x: d.one(ops.Mul, x, d.builder.constant(np.array(0.3))),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pixels", ORDERS)
@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_train_as_well(name, pixels, draft, with_data, trains_as_numpy):
    d = draft("other", 1, (2, 4, 4))
    one = with_data(d.finish(OTHERS[name](d, d.conv(d.image, 3, "a"))), 1)
    for blocks, parallel in (((1, 1), "serial"), ((2, 1), "mpi")):
        trains_as_numpy(one, Variant(pixels, parallel, blocks=blocks, double=True), epochs=2)


def test_pooling_twice(draft, with_data, trains_as_numpy):
    d = draft("deep", 1, (1, 8, 8))
    a = d.relu(d.conv(d.image, 1, "a"))
    b = d.relu(d.conv(d.pool(a, ops.MaxPool), 2, "b"))
    c = d.relu(d.conv(d.pool(b), 3, "c"))
    x = d.concat(b, d.up(c, 2, "up1"))
    x = d.concat(a, d.up(d.relu(d.conv(x, 2, "d")), 1, "up2"))
    model = d.finish(d.conv(x, 3, "head", kernel=1))
    for pixels in ORDERS:
        trains_as_numpy(with_data(model, 1), Variant(pixels, double=True), "adam", epochs=2)
    trains_as_numpy(with_data(model, 1), Variant(parallel="mpi", blocks=(2, 2), double=True), epochs=2)


@pytest.mark.parametrize(
    "names",
    [
        ("sum_1", "term_1"),
        ("largest_1", "largest_1_at"),
        ("batch_2", "channel_2"),
        ("channel_in_2", "element_2"),
        ("chosen_1", "correction"),
        ("epoch_loss", "validation_loss"),
        ("double", "class"),
        ("new", "delete"),
        ("step_2", "power_beta1"),
        ("ForwardPass", "Layout_2_1"),
        ("w\n} }", "w } }"),
        ("Gewicht_ä", "Gewicht_ö"),
        ("_", "__"),
        ("a.b", "a_b"),
        ("A_b", "1"),
        ("vf_cellCenter_x", "i0"),
    ],
)
def test_names_of_all_kinds(names, draft, with_data, trains_as_numpy):
    """Parameters that are called like what the program itself has, or like nothing in the language."""
    d = draft("names", 1, (1, 4, 4))
    for name, channels, before in zip(names, (2, 3), (1, 2), strict=True):
        d.parameter(name, (channels, before, 3, 3))
    x = d.pool(d.relu(d.conv(d.image, 2, names[0] + "/", weight=names[0])), ops.MaxPool)
    model = d.finish(d.up(d.conv(x, 3, names[1] + "/", weight=names[1]), 3, "up"))
    trains_as_numpy(with_data(model), Variant(double=True), "adam", epochs=1)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("shape", [(3, 4, 4), (2, 8, 4)])
@pytest.mark.parametrize("name", NETWORKS)
def test_everything_with_everything(name, shape, variants, subject, trains_as_numpy):
    for variant in variants.values():
        trains_as_numpy(subject(name, 2, shape), variant, "adam")


@pytest.mark.parametrize(("depth", "size"), [(3, 16), pytest.param(4, 32, marks=pytest.mark.slow)])
def test_the_unet_of_the_thesis(depth, size, with_data, trains_as_numpy):
    """Its own initialisation in float32; pictures of 2 x 2 pixels at the bottom."""
    model = meta500.models.unet(n=0, batch=1, size=size, depth=depth, dtype="float64")
    trains_as_numpy(with_data(model, 1), Variant(double=True), "adam", epochs=3 if depth == 4 else 1)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("pixels", ORDERS)
@pytest.mark.parametrize("parallel", ["serial", "mpi", "hybrid"])
@pytest.mark.parametrize("halo", [True, False])
def test_the_unet_in_all_variants(pixels, parallel, halo, with_data, trains_as_numpy):
    if parallel == "serial" and not halo:
        pytest.skip("one block has no halo")
    model = meta500.models.unet(n=0, batch=2, size=16, depth=3, dtype="float64")
    blocks = (1, 1) if parallel == "serial" else (2, 2)
    variant = Variant(pixels, parallel, blocks=blocks, halo=halo, double=True)
    variant = replace(variant, threads=2 if parallel == "hybrid" else 1)
    trains_as_numpy(with_data(model), variant, "adam", epochs=3)
