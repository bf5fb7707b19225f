"""Augmentations against numpy: exact moves, picture and mask together, streams that depend on nothing else."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.datasets import geometry
from meta500.datasets.augmentations import (
    Augment,
    Brightness,
    Contrast,
    Crop,
    Flip,
    RandomResizedCrop,
    Roles,
    Rotate,
    names,
    parse,
    parsed,
)
from meta500.errors import UserError

MOVES = (
    "flip",
    "flip:vertical",
    "flip:both",
    "crop:3",
    "rotate:40",
    "random-resized-crop",
    "random-resized-crop:9",
)


def picture(shape=(3, 6, 8), seed=0, dtype=np.uint8):
    values = np.random.default_rng(seed).integers(0, 256, shape)
    return values.astype(dtype) if np.dtype(dtype).kind == "u" else (values / 255).astype(dtype)


class Fixed:
    """A random stream whose every draw is known."""

    def __init__(self, *values):
        self.values = list(values)

    def random(self):
        return self.values.pop(0)

    def uniform(self, low, high):
        return self.values.pop(0)

    def integers(self, low, high=None, size=None, endpoint=False):
        return np.array([self.values.pop(0) for _ in range(size)]) if size else self.values.pop(0)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_flips_are_those_of_numpy(dtype):
    sample = {"image": picture(dtype=dtype), "label": picture((6, 8))}
    for axis, number in (("horizontal", -1), ("vertical", -2)):
        moved = Flip(axis)(sample, Fixed(0.4))
        for name, array in sample.items():
            np.testing.assert_array_equal(moved[name], np.flip(array, number))
            assert moved[name].dtype == array.dtype and moved[name].flags.c_contiguous
        assert Flip(axis)(sample, Fixed(0.6))["image"] is sample["image"]
    both = Flip("both")(sample, Fixed(0.1, 0.1))
    np.testing.assert_array_equal(both["label"], sample["label"][::-1, ::-1])
    np.testing.assert_array_equal(Flip("both")(sample, Fixed(0.9, 0.1))["label"], sample["label"][::-1])


def test_half_of_the_samples_are_flipped():
    sample = {"image": np.arange(2, dtype=np.float32).reshape(1, 1, 2), "label": np.array(1)}
    change = [Augment((Flip(),), 3, 0)(sample, i)["image"][0, 0, 0] for i in range(400)]
    assert 150 < sum(change) < 250


@given(top=st.integers(-5, 5), left=st.integers(-5, 5))
@settings(max_examples=40, deadline=None)
def test_a_crop_is_the_window_of_the_padded_picture(top, left):
    sample = {"image": picture((2, 4, 5)), "label": picture((4, 5)).astype(np.int64)}
    moved = Crop(5)(sample, Fixed(top, left), Roles(ignore=255))
    rows, columns = slice(5 + top, 9 + top), slice(5 + left, 10 + left)
    around = ((5, 5), (5, 5))
    expected = np.pad(sample["image"], ((0, 0), *around))[:, rows, columns]
    np.testing.assert_array_equal(moved["image"], expected)
    mask = np.pad(sample["label"], around, constant_values=255)[rows, columns]
    np.testing.assert_array_equal(moved["label"], mask)
    assert moved["label"].dtype == np.int64


@pytest.mark.parametrize("side", [5, 8])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
def test_quarter_turns_are_exact(side, dtype, quarters):
    image, mask = picture((3, side, side), dtype=dtype), picture((side, side), 1)
    expected = np.rot90(image, quarters, axes=(-2, -1))
    # float64 is computed as float32.
    expected = expected.astype(np.float32).astype(dtype) if dtype is np.float64 else expected
    np.testing.assert_array_equal(geometry.rotated_picture(image, 90 * quarters), expected)
    np.testing.assert_array_equal(geometry.rotated_mask(mask, 90 * quarters, 7), np.rot90(mask, quarters))


def test_a_rotation_is_bilinear_between_pixels_and_rounds_bytes():
    ramp = np.tile(np.arange(40, dtype=np.float32) * 3, (40, 1))[None]
    turned = geometry.rotated_picture(ramp, 30.0)[0]
    y, x = np.mgrid[0:40, 0:40] - 19.5
    source = x * np.cos(np.pi / 6) - y * np.sin(np.pi / 6) + 19.5
    inside = np.hypot(x, y) < 18
    np.testing.assert_allclose(turned[inside], 3 * source[inside], atol=1e-4)
    as_bytes = geometry.rotated_picture(ramp.astype(np.uint8), 30.0)[0]
    np.testing.assert_allclose(as_bytes[inside], np.rint(3 * source[inside]), atol=1)
    assert abs((as_bytes[inside] - 3 * source[inside]).mean()) < 0.05


def test_empty_places_are_0_in_the_picture_and_ignored_in_the_mask():
    sample = {"image": np.full((1, 20, 30), 9, np.uint8), "label": np.full((20, 30), 4, np.uint8)}
    for text in ("rotate:60", "crop:10"):
        moved = Augment((parse(text),), 1, 0, Roles(ignore=255))(sample, 5)
        assert set(np.unique(moved["label"])) == {4, 255}
        np.testing.assert_array_equal(moved["image"][0] == 0, moved["label"] == 255)
        assert set(np.unique(Augment((parse(text),), 1, 0)(sample, 5)["label"])) == {0, 4}


@given(text=st.sampled_from(MOVES), seed=st.integers(0, 10**6), dtype=st.sampled_from(["u1", "f4"]))
@settings(max_examples=60, deadline=None)
def test_picture_and_mask_move_together(text, seed, dtype):
    # Whole areas of a few pixels, so that linear and nearest pixels can agree inside of them.
    areas = np.kron(np.arange(1, 7).reshape(2, 3), np.ones((8, 8), np.int64))
    sample = {"image": np.stack([areas, 10 * areas]).astype(dtype), "label": areas}
    moved = Augment((parse(text),), seed, 2)(sample, 3)
    assert moved["image"].dtype == np.dtype(dtype) and moved["label"].dtype == np.int64
    assert moved["image"].shape[1:] == moved["label"].shape
    # Equal wherever a place and its neighbours show one area.
    image, label = moved["image"], moved["label"]
    padded = np.pad(label, 1, mode="edge")
    around = [padded[i : i + label.shape[0], j : j + label.shape[1]] for i in range(3) for j in range(3)]
    plain = np.all([part == label for part in around], axis=0)
    if text.startswith("random-resized-crop") or text.startswith("rotate"):
        # A smaller picture mixes more of its neighbours than a mask shows; most places are plain still.
        wrong = plain & ((image[0] != label) | (image[1] != 10 * label))
        assert wrong.mean() < 0.25
    else:
        np.testing.assert_array_equal(image[0], label)
        np.testing.assert_array_equal(image[1], 10 * label)


@given(box=st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 7), st.integers(1, 7)))
@settings(max_examples=30, deadline=None)
def test_a_box_of_its_own_size_is_copied(box):
    top, left, height, width = box
    image, mask = picture((2, 12, 12)), picture((12, 12), 1)
    part = (slice(top, top + height), slice(left, left + width))
    np.testing.assert_array_equal(geometry.resized_picture(image, box, (height, width)), image[:, *part])
    np.testing.assert_array_equal(geometry.resized_mask(mask, box, (height, width)), mask[part])
    twice = np.kron(mask[part], np.ones((2, 2), np.uint8))
    np.testing.assert_array_equal(geometry.resized_mask(mask, box, (2 * height, 2 * width)), twice)


def test_the_boxes_of_random_crops_have_the_published_sizes():
    step, random = RandomResizedCrop(), np.random.default_rng(0)
    boxes = np.array([step._box(300, 400, random) for _ in range(500)])
    top, left, height, width = boxes.T
    assert (top >= 0).all() and (left >= 0).all()
    assert (top + height <= 300).all() and (left + width <= 400).all()
    area, ratio = height * width / 120_000, width / height
    assert area.min() > 0.079 and area.max() <= 1.001 and area.max() - area.min() > 0.8
    assert 0.74 < ratio.min() < 0.8 and 1.25 < ratio.max() < 1.35
    # Nothing that is drawn fits: the largest part in the middle.
    assert step._box(10, 100, Fixed(*(v for _ in range(10) for v in (1.0, 0.0)))) == (0, 43, 10, 13)


def test_brightness_and_contrast():
    sample = {"image": np.array([[[0, 100, 200]]], np.uint8), "label": np.array([[0, 1, 2]], np.uint8)}
    np.testing.assert_array_equal(Brightness(0.5)(sample, Fixed(1.5))["image"][0, 0], [0, 150, 255])
    np.testing.assert_array_equal(Contrast(0.5)(sample, Fixed(0.5))["image"][0, 0], [50, 100, 150])
    floats = {"image": np.array([[[0.0, 0.5, 1.0]]], np.float32), "label": np.array(1)}
    np.testing.assert_allclose(Brightness()(floats, Fixed(1.2))["image"][0, 0], [0, 0.6, 1.2])
    np.testing.assert_allclose(Contrast()(floats, Fixed(1.2))["image"][0, 0], [-0.1, 0.5, 1.1], atol=1e-7)
    assert Brightness()(floats, Fixed(1.2))["image"].dtype == np.float32
    assert Brightness()(sample, Fixed(1.5))["label"] is sample["label"]


@pytest.mark.parametrize("text", [*names(), "flip:both"])
def test_class_labels_and_what_was_given_stay(text):
    image, label = picture((3, 12, 12)), np.array(7)
    image.flags.writeable = label.flags.writeable = False
    moved = Augment((parse(text),), 0, 0)({"image": image, "label": label, "weight": np.float32(2)}, 1)
    assert moved["label"] is label and moved["weight"] == 2 and moved["image"].shape == image.shape
    np.testing.assert_array_equal(image, picture((3, 12, 12)))


def test_a_regression_target_that_is_a_picture_moves_linearly_and_keeps_its_tone():
    target = picture((1, 6, 8), 2, np.float32)
    sample = {"image": picture(dtype=np.float32), "label": target}
    np.testing.assert_array_equal(Flip()(sample, Fixed(0.0))["label"], target[..., ::-1])
    assert Brightness()(sample, Fixed(1.1))["label"] is target
    plane = {"image": picture(dtype=np.float32), "label": target[0]}
    assert Rotate(10.0)(plane, Fixed(5.0))["label"].shape == (6, 8)


def test_the_stream_depends_on_seed_epoch_and_sample_only():
    steps = parsed(["crop:4", Rotate(20.0), "flip"])
    sample = {"image": picture((1, 16, 16)), "label": np.array(0)}

    def made(seed, epoch, index):
        return pickle.loads(pickle.dumps(Augment(steps, seed, epoch)))(sample, index)["image"].tobytes()

    assert made(1, 2, 3) == made(1, 2, 3)
    assert len({made(1, 2, 3), made(2, 2, 3), made(1, 3, 3), made(1, 2, 4), made(1, 3, 2)}) == 5


def test_texts_become_steps():
    assert parse("rotate:15") == Rotate(15.0) and parse("rotate") == Rotate()
    assert parse("crop:2") == Crop(2) and parse("random-resized-crop:224") == RandomResizedCrop(224)
    assert parse("flip:vertical") == Flip("vertical") and parse("contrast:0.3") == Contrast(0.3)
    assert parsed(["flip", Crop(1)]) == (Flip(), Crop(1))
    assert names() == ("brightness", "contrast", "crop", "flip", "random-resized-crop", "rotate")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flop", "unknown augmentation 'flop'. Did you mean 'flip'?"),
        ("flip:diagonal", "unknown value of augmentation 'flip' 'diagonal'"),
        ("crop:four", "augmentation 'crop:four': 'four' is no whole number; write crop:VALUE"),
        ("crop:1.5", "'1.5' is no whole number"),
        ("crop:0", "augmentation 'crop': the padding in pixels must be an integer from 1 to 16384, not 0"),
        ("crop:" + "9" * 30, "the padding in pixels must be an integer from 1 to 16384, not 999"),
        ("random-resized-crop:99999999", "must be an integer from 1 to 16384, not 99999999"),
        ("rotate:x", "augmentation 'rotate:x': 'x' is no number"),
        ("rotate:200", "must be more than 0 and at most 180 degrees, not 200"),
        ("rotate:nan", "not nan"),
        ("brightness:2", "augmentation 'brightness': the value must be more than 0 and at most 1, not 2"),
        ("random-resized-crop:0", "the size (pixels per side) must be an integer from 1 to 16384, not 0"),
    ],
)
def test_a_text_that_is_no_step_says_so(text, message):
    with pytest.raises(UserError) as caught:
        parse(text)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_cannot_be_augmented_says_so():
    with pytest.raises(UserError, match=r"must be a list: write augment=\['flip'\]"):
        parsed("flip")
    with pytest.raises(UserError, match=r"an object such as Flip\(\)"):
        parsed([Flip])
    random = np.random.default_rng(0)
    with pytest.raises(UserError, match=r"needs a picture .* there is x float64 \[3\]"):
        Crop()({"x": np.zeros(3)}, random)
    sample = {"image": picture((1, 4, 4)), "label": np.zeros((2, 2), np.int64)}
    with pytest.raises(UserError, match="'label' has 2 x 2 pixels, the picture 4 x 4"):
        Crop()(sample, random)
    sample["label"] = np.zeros((4, 4), np.uint8)
    with pytest.raises(UserError, match="the mask 'label' is uint8 and cannot hold -1"):
        Crop()(sample, random, Roles(ignore=-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Rotate("15"), "augmentation 'rotate': the value must be a number, not '15'"),
        (lambda: Rotate(True), "augmentation 'rotate': the value must be a number, not True"),
        (lambda: Brightness(None), "augmentation 'brightness': the value must be a number, not None"),
        (lambda: Contrast([0.2]), "augmentation 'contrast': the value must be a number, not "),
    ],
)
def test_values_are_numbers(make, message):
    with pytest.raises(UserError, match=message):
        make()


@pytest.mark.parametrize("text", MOVES)
@pytest.mark.parametrize("shape", [(1, 0, 4), (1, 4, 0), (0, 4, 4)])
def test_pictures_have_pixels(text, shape):
    sample = {"image": np.zeros(shape, np.uint8)}
    with pytest.raises(UserError, match=r"needs a picture with pixels: 'image' has the shape"):
        for seed in range(8):  # a flip happens every second time
            parse(text)(sample, np.random.default_rng(seed))


def gives_nothing(sample, random, roles):
    return None


def loses_the_label(sample, random, roles):
    return {"image": sample["image"]}


def gives_a_number(sample, random, roles):
    return {**sample, "label": 3}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            gives_nothing,
            "augmentation gives_nothing gave None for sample 5; a step returns the sample, a dict",
        ),
        (loses_the_label, "augmentation loses_the_label gave no array 'label' for sample 5"),
        (gives_a_number, "augmentation gives_a_number gave no array 'label' for sample 5"),
    ],
)
def test_a_step_gives_the_sample(step, message):
    sample = {"image": picture(), "label": np.array(1)}
    with pytest.raises(UserError, match=message):
        Augment((Flip(), step), 0, 0)(sample, 5)
