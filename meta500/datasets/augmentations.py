"""Augmentation: random changes of pictures, and of the masks that belong to them, before they are batched.

A step is a frozen dataclass that is called as ``step(sample, random, roles)``: arrays by input, the random
stream of this sample, and which input is the label. It gives new arrays and leaves those that it got as they
are. Pictures are (C, H, W), uint8 or floating point; a mask is an integer label whose last two axes are the
picture's height and width, and moves with it. Labels that are a class stay as they are. Where a picture was
moved away it is 0, and the mask is the label that the set ignores, or else 0.

`parse` reads a step from a text such as "rotate:15", `names` lists what there is, and `Augment` is several
steps as the ``change`` of `Samples.batch`: what happens to a sample follows from the seed, the epoch and the
sample's number alone.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from meta500.datasets import geometry
from meta500.datasets.arguments import LARGEST_SIDE, integer, picture_side, stream
from meta500.errors import UserError, choose

_AUGMENT_STREAM = 7

Sample = dict[str, np.ndarray]


@dataclass(frozen=True)
class Roles:
    """What the inputs of a set are: its ``label``, and the label value that it ignores; None for none."""

    label: str | None = "label"
    ignore: int | None = None


class Step(Protocol):
    """One random change."""

    def __call__(self, sample: Sample, random: np.random.Generator, roles: Roles = ...) -> Sample: ...


@dataclass(frozen=True)
class Flip:
    """Mirror every second sample: "horizontal" exchanges left and right, "vertical" top and bottom, "both"
    decides about each by itself."""

    axis: str = "horizontal"

    def __post_init__(self) -> None:
        choose("value of augmentation 'flip'", self.axis, ("horizontal", "vertical", "both"))

    def __call__(self, sample: Sample, random: np.random.Generator, roles: Roles = Roles()) -> Sample:
        axes = {"horizontal": (-1,), "vertical": (-2,), "both": (-1, -2)}[self.axis]
        for axis in axes:
            if random.random() < 0.5:
                mirror = partial(geometry.flipped, axis=axis)
                sample = _moved(sample, roles, mirror, lambda a, _, mirror=mirror: mirror(a))  # type: ignore[misc]
        return sample


@dataclass(frozen=True)
class Crop:
    """Surround the picture with ``padding`` empty pixels and cut its own size out at a random place.

    Source: the augmentation of CIFAR pictures in He, Zhang, Ren and Sun, "Deep Residual Learning for Image
    Recognition" (2016), section 4.2.
    """

    padding: int = 4

    def __post_init__(self) -> None:
        integer("augmentation 'crop': the padding in pixels", self.padding, minimum=1, maximum=LARGEST_SIDE)

    def __call__(self, sample: Sample, random: np.random.Generator, roles: Roles = Roles()) -> Sample:
        top, left = (int(k) for k in random.integers(-self.padding, self.padding, size=2, endpoint=True))
        return _moved(
            sample,
            roles,
            lambda a: geometry.shifted_window(a, top, left, 0),
            lambda a, fill: geometry.shifted_window(a, top, left, fill),
        )


@dataclass(frozen=True)
class RandomResizedCrop:
    """Cut out a part of 8 % to 100 % of the area, 3:4 to 4:3 wide, and scale it.

    Args:
        size: height and width of the result in pixels; None: those of the picture. Sets that resize what they
            read take any size; for one in memory, and one of pictures of fixed size, it has to be theirs.

    Source: Szegedy et al., "Going Deeper with Convolutions" (2015), section 6: patches of 8 % to 100 % of
    the area, aspect ratios from 3/4 to 4/3. The ratio is drawn on a logarithmic scale; after ten parts that
    are larger than the picture the largest one in the middle with an allowed ratio is taken.
    """

    size: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None:
            picture_side("augmentation 'random-resized-crop': the size", self.size)

    def __call__(self, sample: Sample, random: np.random.Generator, roles: Roles = Roles()) -> Sample:
        height, width = _extent(sample, roles)
        box = self._box(height, width, random)
        size = (height, width) if self.size is None else (self.size, self.size)
        return _moved(
            sample,
            roles,
            lambda a: geometry.resized_picture(a, box, size),
            lambda a, _: geometry.resized_mask(a, box, size),
        )

    @staticmethod
    def _box(height: int, width: int, random: np.random.Generator) -> tuple[int, int, int, int]:
        widest = 4 / 3
        for _ in range(10):
            area = height * width * random.uniform(0.08, 1.0)
            ratio = math.exp(random.uniform(-math.log(widest), math.log(widest)))
            h, w = round(math.sqrt(area / ratio)), round(math.sqrt(area * ratio))
            if 0 < h <= height and 0 < w <= width:
                return int(random.integers(height - h + 1)), int(random.integers(width - w + 1)), h, w
        h, w = min(height, round(width * widest)), min(width, round(height * widest))
        return (height - h) // 2, (width - w) // 2, h, w


@dataclass(frozen=True)
class Rotate:
    """Turn by up to ``degrees`` either way around the middle; pictures linearly, masks by nearest pixels."""

    degrees: float = 15.0

    def __post_init__(self) -> None:
        _check_number("rotate", self.degrees)
        if not 0 < self.degrees <= 180:
            raise UserError(
                f"augmentation 'rotate': the angle must be more than 0 and at most 180 degrees, not "
                f"{self.degrees:g}"
            )

    def __call__(self, sample: Sample, random: np.random.Generator, roles: Roles = Roles()) -> Sample:
        angle = random.uniform(-self.degrees, self.degrees)
        return _moved(
            sample,
            roles,
            lambda a: geometry.rotated_picture(a, angle),
            lambda a, fill: geometry.rotated_mask(a, angle, fill),
        )


@dataclass(frozen=True)
class Brightness:
    """Multiply pictures by a factor from 1 - ``reach`` to 1 + ``reach``; bytes stay in 0 to 255."""

    reach: float = 0.2

    def __post_init__(self) -> None:
        _check_reach("brightness", self.reach)

    def __call__(self, sample: Sample, random: np.random.Generator, roles: Roles = Roles()) -> Sample:
        factor = random.uniform(1 - self.reach, 1 + self.reach)
        return _toned(sample, roles, lambda a: (factor, 0.0))


@dataclass(frozen=True)
class Contrast:
    """Multiply the distances from the picture's mean by 1 - ``reach`` to 1 + ``reach``; bytes stay bytes."""

    reach: float = 0.2

    def __post_init__(self) -> None:
        _check_reach("contrast", self.reach)

    def __call__(self, sample: Sample, random: np.random.Generator, roles: Roles = Roles()) -> Sample:
        factor = random.uniform(1 - self.reach, 1 + self.reach)
        return _toned(sample, roles, lambda a: (factor, (1 - factor) * float(a.mean(dtype=np.float64))))


@dataclass(frozen=True)
class Augment:
    """``steps`` one after the other, as the ``change`` of `Samples.batch`.

    The random stream depends on (seed, epoch, number of the sample) only: neither on the batch, nor on who
    loads it, nor on what was loaded before.
    """

    steps: tuple[Step, ...]
    seed: int
    epoch: int
    roles: Roles = Roles()

    def __call__(self, sample: Sample, index: int) -> Sample:
        random = stream(self.seed, _AUGMENT_STREAM, self.epoch, index)
        for step in self.steps:
            result = step(sample, random, self.roles)
            _check_result(step, sample, result, index)
            sample = result
        return sample


# How a value is read, and the step.
_STEPS: Mapping[str, tuple[Callable[[str], Any], Callable[..., Step]]] = MappingProxyType(
    {
        "brightness": (float, Brightness),
        "contrast": (float, Contrast),
        "crop": (int, Crop),
        "flip": (str, Flip),
        "random-resized-crop": (int, RandomResizedCrop),
        "rotate": (float, Rotate),
    }
)


def names() -> tuple[str, ...]:
    """The names that `parse` knows, sorted."""
    return tuple(sorted(_STEPS))


def parse(text: str) -> Step:
    """A step from NAME or NAME:VALUE, such as "flip", "flip:vertical", "crop:4", "random-resized-crop:224",
    "rotate:15", "brightness:0.2", "contrast:0.2".

    Raises:
        UserError: an unknown name (lists those that exist), or a value that is no number or that the step
            refuses.
    """
    name, colon, value = str(text).partition(":")
    read, step = _STEPS[choose("augmentation", name, _STEPS)]
    if not colon:
        return step()
    try:
        given = read(value)
    except ValueError:
        kind = "a whole number" if read is int else "a number"
        raise UserError(f"augmentation '{text}': '{value}' is no {kind[2:]}; write {name}:VALUE") from None
    return step(given)


def parsed(steps: Iterable[str | Step]) -> tuple[Step, ...]:
    """Steps from texts or steps.

    Raises:
        UserError: as `parse`; or one text in place of several, or something that cannot be called.
    """
    if isinstance(steps, str):
        raise UserError(f"augmentations must be a list: write augment=['{steps}']")
    found = tuple(parse(step) if isinstance(step, str) else step for step in steps)
    for step in found:
        if isinstance(step, type) or not callable(step):
            raise UserError(f"an augmentation is a name, or an object such as Flip(), not {step!r}")
    return found


def _moved(
    sample: Sample,
    roles: Roles,
    picture: Callable[[np.ndarray], np.ndarray],
    mask: Callable[[np.ndarray, int], np.ndarray],
) -> Sample:
    """``sample`` with its pictures and its mask moved; ``mask`` gets what empty places become too."""
    pictures, masks = _places(sample, roles)
    fill = 0 if roles.ignore is None else roles.ignore
    moved = {name: picture(sample[name]) for name in pictures}
    for name in masks:
        moved[name] = mask(sample[name], geometry.fitting(fill, sample[name].dtype, name))
    return {**sample, **moved}


def _toned(sample: Sample, roles: Roles, line: Callable[[np.ndarray], tuple[float, float]]) -> Sample:
    """``sample`` with a * x + b in place of the values x of its pictures, ``line`` giving (a, b)."""
    result = dict(sample)
    for name in _places(sample, roles)[0]:
        array = sample[name]
        if name == roles.label:
            continue
        factor, summand = line(array)
        if array.dtype == np.uint8:
            table = np.rint(np.arange(256) * factor + summand).clip(0, 255).astype(np.uint8)
            result[name] = table[array]
        else:
            result[name] = (array * factor + summand).astype(array.dtype)
    return result


def _extent(sample: Sample, roles: Roles) -> tuple[int, int]:
    """Height and width of the pictures.

    Raises:
        UserError: there is none, or it has no pixels.
    """
    for name, array in sample.items():
        if name != roles.label and _is_picture(array):
            if array.size == 0:
                raise UserError(
                    f"augmentation needs a picture with pixels: '{name}' has the shape {array.shape}"
                )
            return int(array.shape[1]), int(array.shape[2])
    found = ", ".join(f"{name} {array.dtype} {list(array.shape)}" for name, array in sample.items())
    raise UserError(
        f"augmentation needs a picture of shape (C, H, W), uint8 or floating point; there is {found}"
    )


def _places(sample: Sample, roles: Roles) -> tuple[list[str], list[str]]:
    """Names of the pictures and of the masks.

    Raises:
        UserError: no picture; pictures, or a label with places, of another size.
    """
    size = _extent(sample, roles)
    pictures: list[str] = []
    masks: list[str] = []
    for name, array in sample.items():
        is_label = name == roles.label
        if not (_is_picture(array) or (is_label and array.ndim >= 2)):
            continue
        if array.shape[-2:] != size:
            raise UserError(
                f"augmentation moves pictures and masks of one size: '{name}' has {array.shape[-2]} x "
                f"{array.shape[-1]} pixels, the picture {size[0]} x {size[1]}"
            )
        (masks if is_label and array.dtype.kind in "iub" else pictures).append(name)
    return pictures, masks


def _check_result(step: object, before: Sample, after: object, index: int) -> None:
    """See that a step gave the arrays that it got.

    Raises:
        UserError: it gave something else, or fewer.
    """
    fault = None
    if not isinstance(after, dict):
        fault = f"gave {after!r:.60} for sample {index}"
    elif lacking := [name for name in before if not isinstance(after.get(name), np.ndarray | np.generic)]:
        fault = f"gave no array '{lacking[0]}' for sample {index}"
    if fault is not None:
        what = getattr(step, "__name__", type(step).__name__)
        raise UserError(
            f"augmentation {what} {fault}; a step returns the sample, a dict with an array for each of "
            f"{', '.join(before)}"
        )


def _is_picture(array: np.ndarray) -> bool:
    return array.ndim == 3 and (array.dtype == np.uint8 or array.dtype.kind == "f")


def _check_reach(name: str, reach: float) -> None:
    _check_number(name, reach)
    if not 0 < reach <= 1:
        raise UserError(f"augmentation '{name}': the value must be more than 0 and at most 1, not {reach:g}")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise UserError(f"augmentation '{name}': the value must be a number, not {value!r}")
