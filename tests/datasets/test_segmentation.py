"""The digits segmentation set: seeded scene by scene, balanced, and labelled as it is painted."""

import numpy as np
import pytest

from meta500.datasets import load, scenes, segmentation
from meta500.datasets.arguments import stream
from meta500.datasets.digits import digits
from meta500.datasets.scenes import (
    OUTLINE,
    OUTLINE_LEVEL,
    STROKE,
    Scene,
    Shape,
    digit_template,
    distractor_templates,
    draw_scene,
    stamp,
)
from meta500.errors import UserError

NAME = "digits-segmentation"


def make(**options):
    options = {"train_samples": 4, "test_samples": 2, "size": 48, **options}
    return load(NAME, **options)


@pytest.mark.parametrize("size, shape", [(32, (32, 32)), ((33, 70), (33, 70)), ([80, 17], (80, 17))])
def test_shapes_dtypes_and_ranges(size, shape):
    for part, count in zip(make(size=size), (4, 2), strict=True):
        image, label = part.inputs["image"], part.inputs["label"]
        assert image.shape == (count, 3, *shape) and image.dtype == np.float32
        assert label.shape == (count, *shape) and label.dtype == np.int64
        assert image.min() >= 0 and image.max() <= 1 and image.std() > 0.05
        assert part.classes == ("background", "stroke", "outline")
        assert "CC BY 4.0" in part.licence


def test_scene_depends_on_seed_and_index_only():
    short, _ = make(train_samples=2)
    long, test = make(train_samples=5)
    for key in ("image", "label"):
        np.testing.assert_array_equal(long.inputs[key][:2], short.inputs[key])
    scenes = {image.tobytes() for image in [*long.inputs["image"], *test.inputs["image"]]}
    assert len(scenes) == 7
    other, _ = make(seed=1)
    assert not np.array_equal(other.inputs["image"][0], long.inputs["image"][0])


def test_class_choices_label_the_same_images():
    three, _ = make(classes=3)
    two, _ = make(classes=2)
    eleven, _ = make(classes=11)
    assert eleven.classes == ("background", *"0123456789")
    for other in (two, eleven):
        np.testing.assert_array_equal(other.inputs["image"], three.inputs["image"])
        np.testing.assert_array_equal(other.inputs["label"] > 0, three.inputs["label"] > 0)


@pytest.mark.parametrize("classes", [2, 3, 11])
def test_no_class_is_rare(classes):
    train, test = make(train_samples=120, test_samples=60, size=48, classes=classes)
    for part in (train, test):
        labels = part.inputs["label"]
        share = np.bincount(labels.ravel(), minlength=classes) / labels.size
        assert len(share) == classes
        assert share.min() > 0.02 and 0.4 < share[0] < 0.75
        # A digit in every scene.
        assert (labels.reshape(len(labels), -1).max(axis=1) > 0).all()


def test_train_and_test_draw_from_disjoint_digits(monkeypatch):
    drawn = []

    def record(random, height, width, inks, numbers):
        drawn.append({ink.tobytes() for ink in inks})
        return draw_scene(random, height, width, inks, numbers)

    monkeypatch.setattr(segmentation, "draw_scene", record)
    make(train_samples=1, test_samples=1)
    assert len(drawn) == 2 and not drawn[0] & drawn[1]


def test_train_and_test_scenes_have_streams_of_their_own(monkeypatch):
    train, _ = digits()
    monkeypatch.setattr(segmentation, "digits", lambda: (train, train))
    first, second = make()
    assert not np.array_equal(first.inputs["label"][0], second.inputs["label"][0])


def test_every_scene_has_a_digit(monkeypatch):
    monkeypatch.setattr(scenes, "_DIGIT_SHARE", 0.0)
    train, _ = make(train_samples=6, classes=11)
    for label in train.inputs["label"]:
        assert len(np.unique(label)) == 2


def painted(angle, centre=(32, 32)):
    source = digits()[0]
    scene = Scene(np.zeros((3, 64, 64), np.float32), np.zeros((64, 64), int), np.zeros((64, 64), int))
    red, green = np.array([1, 0, 0], np.float32), np.array([0, 1, 0], np.float32)
    template = digit_template(source.inputs["image"][4, 0])
    stamp(scene, Shape(template, red, green, 7), centre, 5.0, angle)
    return scene


def test_stamp_turns_clockwise():
    upright, turned = painted(0.0), painted(np.pi / 2)
    assert not np.array_equal(upright.part, upright.part.T)
    np.testing.assert_allclose(turned.image, np.rot90(upright.image, -1, axes=(1, 2)), atol=1e-4)
    # Rounding may move a pixel that lies on a level exactly.
    assert (turned.part != np.rot90(upright.part, -1)).mean() < 0.001
    # Any turn keeps the painted area.
    area = [(painted(angle).part > 0).sum() for angle in (0.0, 0.4, -1.1)]
    assert max(area) - min(area) < 0.03 * min(area)


def test_stamp_moves_and_paints_with_its_colours():
    here, there = painted(0.3), painted(0.3, centre=(38, 22))
    np.testing.assert_array_equal(there.part[6:, :-10], here.part[:-6, 10:])
    assert set(np.unique(here.identity)) == {0, 8}
    stroke = here.image[:, here.part == STROKE]
    outline = here.image[:, here.part == OUTLINE]
    assert stroke[0].mean() > 0.9 and outline[1].mean() > outline[0].mean()
    cut_off = painted(0.3, centre=(0, 64))
    np.testing.assert_array_equal(cut_off.part[:32, 32:], here.part[32:, :32])


def test_labels_follow_the_paint():
    source = digits()[0]
    zeros = source.inputs["label"] == 0
    inks = source.inputs["image"][zeros, 0]
    numbers = source.inputs["label"][zeros]
    scene = draw_scene(stream(0, 1), 160, 160, inks, numbers)
    assert set(np.unique(scene.identity)) == {0, 1}
    # Within a part all pixels have one colour up to blending and grain, so its neighbours are alike
    # and the borders of the labels are the edges of the image.
    edge = abs(np.diff(scene.image, axis=2)).sum(axis=0)
    border = np.diff(scene.part, axis=1) != 0
    assert edge[border].mean() > 2 * edge[~border].mean()
    # The outline runs around the stroke: no stroke pixel next to the background.
    part = scene.part
    for a, b in ((part[1:], part[:-1]), (part[:, 1:], part[:, :-1])):
        touching = ((a == STROKE) & (b == 0)) | ((a == 0) & (b == STROKE))
        assert touching.mean() < 0.002
    assert (part == OUTLINE).any()


def test_digit_template_is_the_enlarged_image():
    ink = digits()[0].inputs["image"][0, 0]
    template = digit_template(ink)
    assert template.shape == (60, 60) and template.dtype == np.float32
    assert template.min() >= 0 and template.max() <= 1
    # Cell (r, c) has its centre between two of its six samples per axis.
    inner = template[6:-6, 6:-6].reshape(8, 6, 8, 6)[:, 2:4][:, :, :, 2:4].mean(axis=(1, 3))
    np.testing.assert_allclose(inner, ink, atol=0.06)


def test_cubic_enlargement_reproduces_linear_ramps():
    ramp = np.broadcast_to(np.linspace(0, 0.7, 8)[:, None], (8, 8))
    template = digit_template(ramp)
    # Sample t lies at (t + 0.5) / 6 - 1 cells, cell i at i + 0.5 with ink 0.1 i; the rims, where
    # neighbours lack, are left out.
    position = (np.arange(60) + 0.5) / 6 - 1
    expected = 0.1 * (position - 0.5)
    np.testing.assert_allclose(template[15:45, 30], expected[15:45], atol=1e-6)


def test_distractors_are_painted_shapes():
    templates = distractor_templates()
    assert templates.shape == (5, 60, 60) and not templates.flags.writeable
    for template in templates:
        assert 0.1 < (template >= OUTLINE_LEVEL).mean() < 0.6
        rim = np.concatenate([template[0], template[-1], template[:, 0], template[:, -1]])
        assert (rim < OUTLINE_LEVEL).all()


def test_distractors_are_background():
    source = digits()[0]
    inks = np.zeros_like(source.inputs["image"][:, 0])
    scene = draw_scene(stream(0, 2), 96, 96, inks, source.inputs["label"])
    assert (scene.part == 0).all() and (scene.identity == 0).all()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"size": 8}, "size .* from 16 to 16384, not 8"),
        ({"size": (64, 8)}, "from 16 to 16384, not 8"),
        ({"size": 2**40}, "from 16 to 16384, not 1099511627776"),
        ({"size": (64, 64, 3)}, "one number or .height, width."),
        ({"size": 64.0}, "size .* must be an integer"),
        ({"size": "64x64"}, "size .* must be an integer"),
        ({"classes": 4}, "unknown number of classes.*11, 2, 3"),
        ({"train_samples": 0}, "train_samples must be"),
        ({"test_samples": -1}, "test_samples must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(UserError, match=message):
        make(**options)
