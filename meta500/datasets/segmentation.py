"""The digits segmentation set: scenes of real handwritten digits with a label per pixel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meta500.datasets.arguments import integer, picture_side, stream
from meta500.datasets.dataset import Dataset
from meta500.datasets.digits import digits
from meta500.datasets.scenes import Scene, draw_scene
from meta500.errors import UserError, choose

_DIGITS = tuple(str(number) for number in range(10))
CLASSES = {
    2: ("background", "digit"),
    3: ("background", "stroke", "outline"),
    11: ("background", *_DIGITS),
}
_SCENE_STREAM = 6
_TRAIN, _TEST = 0, 1
_SMALLEST = 16


def digits_segmentation(
    *,
    train_samples: int = 128,
    test_samples: int = 32,
    size: int | Sequence[int] = 128,
    classes: int = 3,
    seed: int = 0,
) -> tuple[Dataset, Dataset]:
    """Scenes of handwritten digits on textured backgrounds, as (train, test).

    ``image`` is (N, 3, H, W) float32 in [0, 1], ``label`` (N, H, W) int64. A scene shows digits and
    some other shapes (distractors), scaled and turned, in any colours; each has a stroke and,
    around it, an outline of another colour. The ``classes`` of a pixel:

    - 2: background (distractors included), digit (stroke and outline).
    - 3: background, stroke of a digit, outline of a digit.
    - 11: background, then the digits 0 to 9 (stroke and outline), so label = 1 + digit.

    The images don't depend on ``classes``. Scene i depends on the seed, its part (train or test),
    the size and i only: a longer set starts with the shorter one. The digits come from the training
    and the test part of the digits set (its default split), so no source digit is in both.

    Source: generated here from the digits set, whose licence holds for the scenes too (see
    `meta500.datasets.digits.digits`).

    Args:
        train_samples: number of training scenes.
        test_samples: number of test scenes.
        size: pixels per side, or (height, width); at least 16 each. U-Nets with four poolings need
            multiples of 16.
        classes: 2, 3 or 11.
        seed: the same seed gives the same scenes.

    Raises:
        UserError: a count or size too small, an unknown number of classes, or no scikit-learn.
    """
    counts = (
        integer("train_samples", train_samples, minimum=1),
        integer("test_samples", test_samples, minimum=1),
    )
    height, width = _height_and_width(size)
    choose("number of classes of dataset 'digits-segmentation'", str(classes), CLASSES)
    train, test = (
        _scenes(source, (height, width), count, int(classes), (seed, part))
        for source, part, count in zip(digits(), (_TRAIN, _TEST), counts, strict=True)
    )
    return train, test


def _scenes(
    source: Dataset, size: tuple[int, int], count: int, classes: int, key: tuple[int, int]
) -> Dataset:
    height, width = size
    seed, part = key
    images = np.empty((count, 3, height, width), np.float32)
    labels = np.empty((count, height, width), np.int64)
    inks, numbers = source.inputs["image"][:, 0], source.inputs["label"]
    for index in range(count):
        random = stream(seed, _SCENE_STREAM, part, index)
        scene = draw_scene(random, height, width, inks, numbers)
        images[index] = scene.image
        labels[index] = _label(scene, classes)
    images.flags.writeable = labels.flags.writeable = False
    return Dataset(
        name="digits-segmentation",
        inputs={"image": images, "label": labels},
        classes=CLASSES[classes],
        licence=f"scenes generated from: {source.licence}",
    )


def _label(scene: Scene, classes: int) -> np.ndarray:
    if classes == 2:
        return scene.identity > 0
    return scene.part if classes == 3 else scene.identity


def _height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    sides = (size, size) if not isinstance(size, Sequence) or isinstance(size, str) else tuple(size)
    if len(sides) != 2:
        raise UserError(f"size must be one number or (height, width), not {size!r}")
    height, width = (picture_side("size", side, minimum=_SMALLEST) for side in sides)
    return height, width
