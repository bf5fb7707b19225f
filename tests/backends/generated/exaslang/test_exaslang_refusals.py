"""What layer-4 code can't express is refused with the name of the node; what does not fit, with what would be right."""

import numpy as np
import pytest

import meta500
from meta500.backends.generated.exaslang.variant import Variant, parse_blocks
from meta500.errors import UserError
from meta500.graph import Builder, ops

MPI = Variant(parallel="mpi", blocks=(2, 2), double=True)


def refused(make, *, shape=(2, 8, 8), batch=2):
    """Parametrised by a function from a draft and a convolution to what goes into the head."""

    def model(draft):
        d = draft("refused", batch, shape)
        x = make(d, d.conv(d.image, 4, "first"))
        return d.finish(x if d.channels[x] == 3 and x != "odd" else d.conv(x, 3, "head", kernel=1))

    return model


def sized(d, x, rows, columns):
    """``x`` where the picture has another size than the image."""
    d.size = (rows, columns)
    return x


STRIDE = dict(strides=(2, 2), pads=(1, 1, 1, 1))


@pytest.mark.parametrize(
    ("make", "node"),
    [
        (lambda d, x: sized(d, d.conv(x, 4, "odd", **STRIDE), 4, 4), "odd"),
        (lambda d, x: d.one(ops.Gelu, x, name="odd"), "odd"),
        (lambda d, x: d.one(ops.Softplus, x, name="odd"), "odd"),
        (lambda d, x: sized(d, d.conv(x, 4, "odd", pads=(0, 0, 0, 0)), 6, 6), "6 x 6"),
        (lambda d, x: sized(d, d.pool(x, ops.MaxPool, 4, name="odd"), 2, 2), "odd"),
        (lambda d, x: d.pool(x, ops.AveragePool, 3, strides=(1, 1), pads=(1, 1, 1, 1), name="odd"), "odd"),
        (lambda d, x: d.pool(x, ops.MaxPool, 3, strides=(1, 1), pads=(1, 1, 1, 1), name="odd"), "odd"),
        (lambda d, x: sized(d, d.up(x, 4, "odd", 3, strides=(1, 1)), 10, 10), "8 x 8"),
        (lambda d, x: sized(d, d.up(x, 4, "odd", 4, strides=(4, 4)), 32, 32), "odd"),
        (
            lambda d, x: sized(d, d.up(x, 4, "odd", 4, strides=(2, 2), pads=(1, 1, 1, 1)), 16, 16),
            "odd",
        ),
        (lambda d, x: d.one(ops.Mul, x, d.one(ops.GlobalAveragePool, x, name="odd")), "1 x 1"),
    ],
)
@pytest.mark.parametrize("pixels", ["outermost", "innermost"])
def test_operators(make, node, pixels, draft, with_data, program):
    with pytest.raises(UserError) as refusal:
        program(with_data(refused(make)(draft)), Variant(pixels, double=True))
    assert node in str(refusal.value) and "\n" not in str(refusal.value)


def test_dilated_convolutions_train_or_are_refused(draft, with_data, trains_as_numpy):
    """Two ghost layers: as far as a 5 x 5 window."""
    d = draft("dilated", 1, (1, 8, 8))
    x = d.conv(d.image, 2, "odd", dilations=(2, 2), pads=(2, 2, 2, 2))
    one = with_data(d.finish(d.conv(x, 3, "head", kernel=1)))
    for pixels in ("outermost", "innermost"):
        trains_as_numpy(one, Variant(pixels, double=True), epochs=2)


@pytest.mark.parametrize("groups", [2, 4])
def test_grouped_convolutions_train_as_well(groups, draft, with_data, trains_as_numpy):
    d = draft("grouped", 1, (1, 4, 4))
    x = d.conv(d.conv(d.image, 4, "first", kernel=1), 4, "grouped", group=groups)
    one = with_data(d.finish(d.conv(x, 3, "head", kernel=1)))
    for pixels in ("outermost", "innermost"):
        trains_as_numpy(one, Variant(pixels, double=True), epochs=2)


def test_windows_wider_than_the_blocks_below(draft, with_data, program):
    """Ghost layers are as wide on all levels; blocks of the coarsest must have as many pixels."""
    d = draft("wide", 1, (1, 8, 8))
    x = d.conv(d.image, 1, "wide", kernel=5)
    low = d.conv(d.pool(x), 1, "low")
    model = d.finish(d.conv(d.concat(x, d.up(d.up(d.pool(low), 1, "b"), 1, "a")), 3, "head"))
    with pytest.raises(
        UserError, match=r"windows reach 2 pixels.* 1 pixels in one direction, with 2 x 2 blocks"
    ):
        program(with_data(model), MPI)
    assert program(with_data(model), Variant(double=True)).tree.layouts[0].ghost == 2


def test_batch_normalization(draft, with_data, program):
    d = draft("normalized", 2, (1, 4, 4))
    x = d.conv(d.image, 3, "first")
    taken = [d.builder.parameter(n, np.ones(3)) for n in ("gamma", "beta")]
    taken += [d.builder.constant(np.ones(3), n) for n in ("mean", "variance")]
    made = d.builder.add(ops.BatchNormalization, x, *taken, name="odd", follow_mode=True)
    d.channels[made] = 3
    with pytest.raises(UserError, match="odd|statistics"):
        program(with_data(d.finish(made)), Variant(double=True))


def test_networks_without_pictures(program, with_data):
    b = Builder("dense")
    x = b.input("image", np.float64, (2, 4))
    y = b.add(ops.Gemm, x, b.parameter("w", np.ones((4, 3))), name="odd")
    label = b.input("label", np.int64, (2,))
    b.output(b.add(ops.SoftmaxCrossEntropyLoss, y, label, outputs=["loss"]))
    with pytest.raises(UserError, match=r"network 'dense'.*pictures"):
        program(with_data(b.build()), Variant(double=True))


@pytest.mark.parametrize("name", ["digits_cnn"])
def test_classifiers(name, program, with_data):
    model = getattr(meta500.models, name)(batch=2)
    with pytest.raises(UserError) as refusal:
        program(with_data(model), Variant(double=True))
    assert "\n" not in str(refusal.value)


def test_pictures_that_are_too_small(program, with_data):
    model = meta500.models.unet(n=0, batch=1, size=16, depth=4, dtype="float64")
    with pytest.raises(UserError, match=r"network 'unet': pictures of 1 x 1 pixels are too small"):
        program(with_data(model), Variant(double=True))


@pytest.mark.parametrize("blocks", [(3, 1), (1, 3), (8, 1), (4, 4)])
def test_blocks_that_do_not_divide(blocks, subject, program):
    with pytest.raises(UserError, match=rf"can't be cut into {blocks[0]} x {blocks[1]} equal blocks"):
        program(subject("two_layers"), Variant(parallel="mpi", blocks=blocks, double=True))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pixels": "outer"}, r"outer.*outermost"),
        ({"parallel": "open-mp"}, r"open-mp.*openmp"),
        ({"threads": 2}, "2 threads need the parallelisation openmp or hybrid"),
        ({"threads": 2, "parallel": "mpi"}, "2 threads need"),
        ({"threads": 0}, "at least 1"),
        ({"blocks": (2, 1)}, "2 blocks need the parallelisation mpi or hybrid"),
        ({"blocks": (2, 2), "parallel": "openmp"}, "4 blocks need"),
        ({"blocks": (0, 1), "parallel": "mpi"}, "at least 1"),
        ({"halo": False}, "several blocks"),
        ({"halo": False, "parallel": "mpi"}, "several blocks"),
    ],
)
def test_variants_that_make_no_sense(fields, message):
    with pytest.raises(UserError, match=message):
        Variant(**fields).checked()


@pytest.mark.parametrize("text", ["2", "2x", "x2", "2*2", "2x2x2", "-1x2", "axb", "", "²x1"])
def test_blocks_of_another_form(text):
    with pytest.raises(UserError, match="of the form 2x2"):
        parse_blocks(text)


def test_blocks_are_columns_and_rows():
    assert parse_blocks("4x2") == (4, 2)


def test_a_parameter_without_an_influence(draft, with_data, program):
    d = draft("unused", 1, (1, 4, 4))
    d.parameter("idle", (2, 2))
    model = d.finish(d.conv(d.image, 3, "first"))
    with pytest.raises(UserError, match="idle"):
        program(with_data(model), Variant(double=True))


def cross_entropy(d, weights=None, **attributes):
    d.builder.output(d.conv(d.image, 3, "first"), "logits")
    label = d.builder.input("label", np.int64, (d.batch, *d.size))
    taken = ("logits", label) if weights is None else ("logits", label, d.builder.constant(weights))
    d.builder.output(
        d.builder.add(ops.SoftmaxCrossEntropyLoss, *taken, name="odd", outputs=["loss"], **attributes)
    )
    return d.builder.build()


@pytest.mark.parametrize("options", [{"ignore_index": 1}, {"weights": np.array([1.0, 2.0, 0.5])}])
def test_losses_that_count_pixels_otherwise(options, draft, with_data, program):
    with pytest.raises(UserError, match="SoftmaxCrossEntropyLoss odd"):
        program(with_data(cross_entropy(draft("counted", 1, (1, 4, 4)), **options)), Variant(double=True))


def test_a_summed_loss_trains_as_well(draft, with_data, trains_as_numpy):
    one = with_data(cross_entropy(draft("summed", 2, (1, 4, 4)), reduction="sum"))
    for blocks, parallel in (((1, 1), "serial"), ((2, 2), "mpi")):
        trains_as_numpy(one, Variant(parallel=parallel, blocks=blocks, double=True), learning_rate=1e-3)


def test_weights_that_are_not_trained(draft, with_data, program):
    """No file of the program has them."""
    d = draft("frozen", 1, (2, 4, 4))
    mean = d.builder.constant(np.array([0.3, -0.7]).reshape(1, 2, 1, 1), "mean")
    model = d.finish(d.conv(d.one(ops.Sub, d.image, mean), 3, "first"))
    with pytest.raises(UserError, match=r"network 'frozen': 'mean' is not trained"):
        program(with_data(model), Variant(double=True))


@pytest.mark.parametrize("shape", [(1, 2, 4, 4), (2, 4, 4)])
@pytest.mark.parametrize("pixels", ["outermost", "innermost"])
def test_parameters_with_a_number_for_every_pixel(pixels, shape, draft, with_data, program):
    d = draft("map", 1, (2, 4, 4))
    x = d.one(ops.Mul, d.image, d.parameter("map", shape), name="odd")
    with pytest.raises(UserError, match="odd.*'map' has a number for every pixel"):
        program(with_data(d.finish(d.conv(x, 3, "first"))), Variant(pixels, double=True))


def test_parameters_that_are_one_number(draft, with_data, program, trains_as_numpy):
    for shape in ((), (1, 1, 1)):
        d = draft("factor", 1, (1, 4, 4))
        x = d.one(ops.Mul, d.conv(d.image, 3, "first"), d.parameter("factor", shape))
        one = with_data(d.finish(x))
        if shape:
            trains_as_numpy(one, Variant(double=True), epochs=2)
            continue
        with pytest.raises(UserError, match="parameter 'factor' is a single number.* shape"):
            program(one, Variant(double=True))


@pytest.mark.parametrize("number", [float("inf"), float("nan")])
def test_numbers_that_no_text_has(number, draft, with_data, program):
    d = draft("endless", 1, (1, 4, 4))
    x = d.one(ops.Mul, d.conv(d.image, 3, "first"), d.builder.constant(np.full((), number)), name="odd")
    with pytest.raises(UserError) as refusal:
        program(with_data(d.finish(x)), Variant(double=True))
    assert "\n" not in str(refusal.value)
