"""Drawing of one scene: handwritten digits and look-alike shapes on a textured background.

Everything drawn is an ink template: a small image of ink in [0, 1] which is rotated, scaled and
cut at two levels. Above `STROKE_LEVEL` lies the stroke, between it and `OUTLINE_LEVEL` the outline
around it, and each is painted in a colour of its own. Digits and distractors differ in their shape
only, so a network that looks at colours alone can't tell them apart.

All arithmetic on pixels is elementwise (no BLAS), so one seed gives the same bits on any number of
threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

OUTLINE_LEVEL, STROKE_LEVEL = 0.25, 0.55
BACKGROUND, STROKE, OUTLINE = 0, 1, 2

# A template shows the 8x8 cells of a source image and one empty cell around them.
_CELLS = 10
_RESOLUTION = 60
_DIGIT_SHARE = 0.85
_GRAIN = 0.03


@dataclass(frozen=True)
class Scene:
    """One scene of H x W pixels.

    Attributes:
        image: (3, H, W) float32 in [0, 1].
        part: (H, W) int64: `BACKGROUND`, `STROKE` or `OUTLINE`; distractors are background.
        identity: (H, W) int64: 0 on the background, 1 + digit where a digit is painted.
    """

    image: np.ndarray
    part: np.ndarray
    identity: np.ndarray


@dataclass(frozen=True)
class Shape:
    """What one stamp paints: a digit, or a distractor.

    Attributes:
        template: (60, 60) float32, the ink.
        fill: (3,) float32, the colour of the stroke.
        outline: (3,) float32, the colour of the outline.
        number: the digit 0..9, or None for a distractor.
    """

    template: np.ndarray
    fill: np.ndarray
    outline: np.ndarray
    number: int | None


def draw_scene(
    random: np.random.Generator, height: int, width: int, inks: np.ndarray, numbers: np.ndarray
) -> Scene:
    """Draw a scene of ``height`` x ``width`` pixels from ``random`` alone.

    Args:
        random: the scene's own stream; it decides about everything.
        inks: (M, 8, 8) float32 in [0, 1], the source digits to choose from.
        numbers: (M,) integers 0..9, which digit each of them is.
    """
    first, second = _background_colours(random)
    blend = _texture(random, height, width)
    image = first[:, None, None] + (second - first)[:, None, None] * blend
    scene = Scene(
        image=image,
        part=np.zeros((height, width), np.int64),
        identity=np.zeros((height, width), np.int64),
    )
    backdrop = (first + second) / 2
    cells = _cells(random, height, width)
    is_digit = random.random(len(cells)) < _DIGIT_SHARE
    # A scene without any digit would hold one class only.
    is_digit[random.integers(len(cells))] = True
    for (top, left, cell_height, cell_width), shows_digit in zip(cells, is_digit, strict=True):
        if shows_digit:
            source = int(random.integers(len(inks)))
            template, number = digit_template(inks[source]), int(numbers[source])
        else:
            shapes = distractor_templates()
            template, number = shapes[random.integers(len(shapes))], None
        # Digits are about 6 cells wide and 8 high.
        unit = min(cell_height / 8, cell_width / 6) * random.uniform(0.85, 1.1)
        jitter = random.uniform(-0.06, 0.06, size=2)
        centre = (
            top + cell_height * (0.5 + jitter[0]),
            left + cell_width * (0.5 + jitter[1]),
        )
        outline = _contrasting(random, [backdrop])
        fill = _contrasting(random, [backdrop, outline])
        angle = random.uniform(-0.35, 0.35) if shows_digit else random.uniform(-np.pi, np.pi)
        stamp(scene, Shape(template, fill, outline, number), centre, unit, angle)
    grain = random.standard_normal(image.shape, dtype=np.float32)
    grain *= np.float32(_GRAIN)
    image += grain
    np.clip(image, 0, 1, out=image)
    return scene


def stamp(scene: Scene, shape: Shape, centre: tuple[float, float], unit: float, angle: float) -> None:
    """Paint ``shape`` into ``scene``, image and labels.

    Args:
        scene: where to paint; what lies outside it is cut off.
        shape: what to paint.
        centre: (row, column) in pixels from the upper left corner; a pixel's own centre is at .5.
        unit: pixels per cell of the template, which is 10 cells wide.
        angle: clockwise turn in radians.
    """
    height, width = scene.part.shape
    cos, sin = np.float32(np.cos(angle)), np.float32(np.sin(angle))
    reach = _CELLS / 2 * unit * float(abs(cos) + abs(sin))
    top, bottom = max(0, int(centre[0] - reach)), min(height, int(centre[0] + reach) + 1)
    left, right = max(0, int(centre[1] - reach)), min(width, int(centre[1] + reach) + 1)
    per_pixel = _RESOLUTION / (_CELLS * unit)
    down = ((np.arange(top, bottom) + 0.5 - centre[0]) * per_pixel).astype(np.float32)[:, None]
    across = ((np.arange(left, right) + 0.5 - centre[1]) * per_pixel).astype(np.float32)[None, :]
    middle = np.float32(_RESOLUTION / 2 - 0.5)
    ink = _bilinear(shape.template, cos * down - sin * across + middle, sin * down + cos * across + middle)

    # Blend over about one pixel: ink changes by about 1 / unit from one pixel to the next.
    sharpness = np.float32(unit)
    window = scene.image[:, top:bottom, left:right]
    for level, colour in ((OUTLINE_LEVEL, shape.outline), (STROKE_LEVEL, shape.fill)):
        cover = np.clip((ink - np.float32(level)) * sharpness + np.float32(0.5), 0, 1)
        window += cover * (colour[:, None, None] - window)

    painted = ink >= OUTLINE_LEVEL
    part = scene.part[top:bottom, left:right]
    identity = scene.identity[top:bottom, left:right]
    if shape.number is None:
        part[painted], identity[painted] = BACKGROUND, 0
    else:
        part[painted], identity[painted] = OUTLINE, shape.number + 1
        part[ink >= STROKE_LEVEL] = STROKE


def digit_template(ink: np.ndarray) -> np.ndarray:
    """Enlarge an (8, 8) image to a (60, 60) float32 template with an empty rim of one cell.

    Cubic convolution (Keys 1981, a = -1/2), which keeps thin strokes thin; cut to [0, 1].
    """
    weights = _cubic_weights()
    rows = np.einsum("ti,ij->tj", weights, ink)
    return np.clip(np.einsum("tj,uj->tu", rows, weights), 0, 1).astype(np.float32)


@cache
def distractor_templates() -> np.ndarray:
    """Shapes that are no digits: disc, square, triangle, plus and bow; (5, 60, 60) float32."""
    axis = (np.arange(_RESOLUTION) + 0.5) * _CELLS / _RESOLUTION - _CELLS / 2
    y, x = axis[:, None], axis[None, :]
    inside = [
        2.8 - np.sqrt(x * x + y * y),
        2.5 - np.maximum(abs(x), abs(y)),
        np.minimum(2.0 - y, (y + 3.2) * 0.45 - abs(x) * 0.9),
        np.maximum(np.minimum(3.0 - abs(x), 0.9 - abs(y)), np.minimum(3.0 - abs(y), 0.9 - abs(x))),
        np.minimum(3.0 - abs(x), 0.5 + 0.7 * abs(x) - abs(y)),
    ]
    templates = np.stack([np.clip(depth / 1.5 + OUTLINE_LEVEL, 0, 1) for depth in inside])
    templates = templates.astype(np.float32)
    templates.flags.writeable = False
    return templates


@cache
def _cubic_weights() -> np.ndarray:
    positions = (np.arange(_RESOLUTION) + 0.5) * _CELLS / _RESOLUTION - 1
    distance = abs(positions[:, None] - (np.arange(8) + 0.5))
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    weights = np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
    weights.flags.writeable = False
    return weights


def _cells(random: np.random.Generator, height: int, width: int) -> list[tuple[float, float, float, float]]:
    """Cut the scene into rows of cells of random size: (top, left, height, width) of each."""
    row_height = max(min(height, width) * random.uniform(0.3, 0.55), 16.0)
    cells = []
    for top, bottom in _cut(random, height, row_height):
        for left, right in _cut(random, width, 0.8 * (bottom - top)):
            cells.append((top, left, bottom - top, right - left))
    return cells


def _cut(random: np.random.Generator, length: int, piece: float) -> list[tuple[float, float]]:
    count = max(1, round(length / piece))
    edges = np.concatenate([[0.0], np.cumsum(random.uniform(0.75, 1.25, size=count))])
    edges *= length / edges[-1]
    return list(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True))


def _texture(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """A field of (height, width) float32 in (0, 1): plane waves and two octaves of smooth noise."""
    short = min(height, width)
    field = np.zeros((height, width), np.float32)
    y = np.arange(height)[:, None]
    x = np.arange(width)[None, :]
    for wavelength in short * random.uniform(0.06, 0.7, size=4):
        direction, phase = random.uniform(0, 2 * np.pi, size=2)
        rows = 2 * np.pi / wavelength * np.sin(direction) * y + phase
        columns = 2 * np.pi / wavelength * np.cos(direction) * x
        # sin(a + b) by the addition theorem: sines of vectors instead of the whole field.
        field += (np.sin(rows) * np.cos(columns)).astype(np.float32)
        field += (np.cos(rows) * np.sin(columns)).astype(np.float32)
    for grid in (4, 16):
        coarse = random.standard_normal((grid + 1, grid + 1))
        field += _smooth(_smooth(coarse, height).T, width).T.astype(np.float32)
    return 0.5 + 0.5 * field / (1 + abs(field))


def _smooth(coarse: np.ndarray, length: int) -> np.ndarray:
    """Interpolate linearly along axis 0, from the grid to ``length`` points."""
    position = np.linspace(0, len(coarse) - 1, length, endpoint=False)
    below = position.astype(np.int64)
    part = (position - below)[:, None]
    return coarse[below] * (1 - part) + coarse[below + 1] * part


def _background_colours(random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    first = random.uniform(0.1, 0.9, size=3)
    second = np.clip(first + random.uniform(-0.6, 0.6, size=3), 0, 1)
    return first.astype(np.float32), second.astype(np.float32)


def _contrasting(random: np.random.Generator, others: list[np.ndarray]) -> np.ndarray:
    """The one of six random colours whose nearest colour in ``others`` is farthest away."""
    colours = random.uniform(0, 1, size=(6, 3)).astype(np.float32)
    distances = ((colours[:, None] - np.stack(others)) ** 2).sum(axis=2).min(axis=1)
    return colours[int(distances.argmax())]


def _bilinear(template: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Sample ``template`` at fractional (rows, columns); 0 outside, where its rim is empty."""
    last = _RESOLUTION - 1
    inside = (rows >= 0) & (rows <= last) & (columns >= 0) & (columns <= last)
    rows = np.clip(rows, 0, np.float32(last - 1e-3))
    columns = np.clip(columns, 0, np.float32(last - 1e-3))
    i, j = rows.astype(np.int32), columns.astype(np.int32)
    v, u = rows - i.astype(np.float32), columns - j.astype(np.float32)
    flat, start = template.ravel(), i * _RESOLUTION + j
    above = flat[start] * (1 - u) + flat[start + 1] * u
    below = flat[start + _RESOLUTION] * (1 - u) + flat[start + _RESOLUTION + 1] * u
    return np.where(inside, above * (1 - v) + below * v, np.float32(0))
