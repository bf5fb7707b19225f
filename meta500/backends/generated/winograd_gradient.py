"""Winograd's form of the gradient of 3 x 3 weights: fewer products for tiles of two pictures.

A gradient of weights is a correlation whose long filter is the picture of the results' gradients. F(3, 4)
along rows takes 4 of its rows with 6 of the image's and gives the sums for 3 taps by 6 products instead of
12; nested with F(3, 2) along columns, 24 products replace 72. The products are summed up over all tiles as
they are; only when the private copies are merged the sums of 24 (or 3 x 6) numbers become those of 9 taps.

Measured on AVX-512: from 8 channels the form along rows pays, from 16 the nested one. Their largest error
was at most 3 times that of the direct form (2.1 times in the root mean square). F(3, 4) in both directions
would be faster still, but exceeds four times in some cases.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

from meta500.backends.generated.contraction import DUAL, Blocked, steps
from meta500.backends.generated.ir import Axis, Stage
from meta500.backends.generated.layout import Place
from meta500.backends.generated.toom_cook import Matrix, toom_cook

if TYPE_CHECKING:
    from meta500.backends.generated.companions import Companion

_TAPS = 3
# Rows and columns of the held factor in one tile.
ROWS, COLUMNS = 4, 2
# Finite points of F(3, 4) and F(3, 2). Both factors of a product must be transformed with the same ones.
DOWN = tuple(Fraction(p) for p in ("0", "3/4", "-3/4", "3/2", "-3/2"))
ACROSS = tuple(Fraction(p) for p in ("0", "1", "-1"))
# With fewer channels the transforms cost more than the products that they save.
_FEWEST, _FEWEST_NESTED = 8, 16
# Vectors that one sum goes over in a band (nested, along rows), and the fewest that pay.
_VECTORS = {True: 16, False: 64}
_FEWEST_VECTORS = 8
_FEWEST_LANES = 8
# Numbers between planes of the scratch memory: a power of two apart they meet in the same sets of a cache.
_MOVING_PADDING, _HELD_PADDING = 80, 144
# Points across that combine the same columns, and the most numbers that two may have in the scratch memory.
_PAIRS = ((1, 2), (0, 3))
_LARGEST_PAIR = 1 << 17


@dataclass(frozen=True)
class Transforms:
    """What becomes of the two factors and of the sum of their products in one direction.

    Attributes:
        held: of the factor whose rows (columns) form a tile, 6 x 4 (4 x 2).
        moving: of the rows (columns) of the other one that the tile meets, 6 x 6 (4 x 4).
        result: from the sums of products to the taps, 3 x 6 (3 x 4).
    """

    held: Matrix
    moving: Matrix
    result: Matrix

    @property
    def products(self) -> int:
        """Number of products."""
        return len(self.held)


def transforms(length: int, points: tuple[Fraction, ...]) -> Transforms:
    """The matrices of F(3, length); rows of ``held`` begin with 1, what they lack is in ``result``."""
    cook = toom_cook(_TAPS, length, points)
    scales = [next(v for v in row if v) for row in cook.filter]
    held = tuple(tuple(v / s for v in row) for row, s in zip(cook.filter, scales, strict=True))
    result = tuple(tuple(v * s for v, s in zip(row, scales, strict=True)) for row in cook.output)
    return Transforms(held, cook.data, result)


@dataclass(frozen=True)
class WinogradGradient:
    """A dual sum of products with 3 x 3 taps in Winograd's form.

    Attributes:
        direct: the same in the direct form.
        down: transforms along rows.
        across: those along columns; None for all three taps there as they are.
        lanes: numbers in a vector.
        block: results (of the held factor, of the moving one) whose sums are in registers.
        band: rows that are transformed at once.
        row_tap, column_tap: the unrolled axes.
        companion: a sum over the held factor that is computed on the way.
    """

    direct: Blocked
    down: Transforms
    across: Transforms | None
    lanes: int
    block: tuple[int, int]
    band: int
    row_tap: Axis
    column_tap: Axis
    companion: Companion | None = None

    @property
    def stage(self) -> Stage:
        """The stage that it computes."""
        return self.direct.stage

    @property
    def split(self) -> Axis:
        """The axis whose range the caller chooses."""
        return self.direct.rows[0]

    @property
    def granule(self) -> int:
        """Ranges begin and end at multiples of this."""
        return ROWS

    @property
    def preferred(self) -> int:
        """Ranges of so many rows are best."""
        return self.band

    @property
    def private(self) -> bool:
        """Threads add into copies of their own: only the merge gives what the stage writes."""
        return True

    @property
    def held(self) -> Axis:
        """The axis of results that the held factor has."""
        return self.direct.blocks[0][0]

    @property
    def moving(self) -> Axis:
        """The axis of results that the moving factor has."""
        return self.direct.blocks[1][0]

    @property
    def planes(self) -> int:
        """Products of one tile, for every tap across where these are as they are."""
        return self.down.products * (self.across.products if self.across else 1)

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Points across whose planes are in the scratch memory together, and the order of all planes.

        Pairs share what they load; where they would not fit into the cache they are on their own.
        """
        if self.across is None:
            return ((0,),)
        pair = 2 * self.down.products * (self.held_plane + self.moving_plane)
        return _PAIRS if pair <= _LARGEST_PAIR else tuple((p,) for pair in _PAIRS for p in pair)

    @property
    def taps(self) -> int:
        """Taps across that the vectors of a plane are shifted by."""
        return 1 if self.across else _TAPS

    @property
    def columns(self) -> int:
        """Vectors of the held factor in one row of tiles of a plane."""
        return self.direct.vector[0].size // (self.lanes * (COLUMNS if self.across else 1))

    @property
    def tiles(self) -> int:
        """Rows of tiles in a band."""
        return self.band // ROWS

    @property
    def held_row(self) -> int:
        """Numbers in one row of tiles of the transformed held factor."""
        return self.columns * self.lanes

    @property
    def moving_row(self) -> int:
        """Numbers in one row of tiles of the transformed moving factor: taps across reach beyond it."""
        return self.held_row + (0 if self.across else self.lanes)

    @property
    def held_plane(self) -> int:
        """Numbers between planes of the transformed held factor."""
        return self.held.size * self.tiles * self.held_row + _HELD_PADDING

    @property
    def moving_plane(self) -> int:
        """Numbers between planes of the transformed moving factor."""
        return self.moving.size * self.tiles * self.moving_row + _MOVING_PADDING

    @property
    def scratch(self) -> int:
        """Numbers of memory of its own that it needs while it runs: a band at all points down, few across."""
        return len(self.groups[0]) * self.down.products * (self.held_plane + self.moving_plane)

    @property
    def sums(self) -> int:
        """Sums of products of one block and plane."""
        return self.block[0] * self.block[1] * self.taps

    @property
    def pitch(self) -> int:
        """Numbers between blocks of sums: whole vectors."""
        return -(-self.sums // self.lanes) * self.lanes

    @property
    def copy(self) -> int:
        """Numbers of one private copy: [plane][block of held][block of moving][sum]."""
        blocks = self.held.size // self.block[0] * (self.moving.size // self.block[1])
        return self.planes * blocks * self.pitch

    def welcomes(self, companion: Companion) -> bool:
        """Whether it can compute such a sum on the way."""
        return companion.held

    def __str__(self) -> str:
        rows, (vector, _) = self.split, self.direct.vector
        form = "F(3, 4) down" + (" x F(3, 2) across" if self.across else "")
        parts = [f"Winograd gradient {form} on {self.lanes} lanes: rows {rows.name}<{rows.size} by {ROWS}"]
        parts.append(f"bands of {self.band}")
        pairs = zip((self.held, self.moving), self.block, strict=True)
        parts.append("blocks " + ", ".join(f"{axis.name}<{axis.size} by {size}" for axis, size in pairs))
        parts.append(f"{self.columns} vectors of {vector.name}<{vector.size}")
        if self.direct.inner:
            parts.append("summed " + ", ".join(f"{a.name}<{a.size}" for a in self.direct.inner))
        parts.append(f"scratch {self.scratch}, into private copies of {self.copy}")
        if self.companion:
            parts.append(f"with {self.companion.stage.write}, {self.companion}")
        return "; ".join(parts)


def winograd_gradient(
    direct: Blocked, places: Mapping[str, Place], lanes: int, registers: int
) -> WinogradGradient | None:
    """Winograd's form of a dual sum of products; None where it has none, or none that is faster.

    Args:
        direct: the sum in the direct form.
        places: of its tensors.
        lanes: float32 numbers in the widest vector.
        registers: number of vector registers.
    """
    taps = _window(direct, places)
    if taps is None:
        return None
    channels = [axis.size for axis, _ in direct.blocks]
    rows, width = direct.rows[0].size, direct.vector[0].size
    if min(channels) < _FEWEST or rows % ROWS:
        return None
    many = registers >= 32
    for nested in (True, False) if min(channels) >= _FEWEST_NESTED else (False,):
        block = ((4 if many else 2), 4) if nested else ((4 if many else 2), 2)
        if any(size % part for size, part in zip(channels, block, strict=True)):
            continue
        for wide in (lanes, lanes // 2):
            step = wide * (COLUMNS if nested else 1)
            if wide < _FEWEST_LANES or width % step:
                continue
            columns, tiles = width // step, rows // ROWS
            if columns * tiles < _FEWEST_VECTORS:
                continue
            bands = min(-(-tiles * columns // _VECTORS[nested]), tiles)
            band = -(-tiles // bands) * ROWS
            down, across = (
                transforms(ROWS, DOWN),
                transforms(COLUMNS, ACROSS) if nested else None,
            )
            return WinogradGradient(replace(direct, private=True), down, across, wide, block, band, *taps)
    return None


def _window(direct: Blocked, places: Mapping[str, Place]) -> tuple[Axis, Axis] | None:
    """The taps along rows and along columns, if there are 3 x 3 that move a window by one element each."""
    if direct.form != DUAL or direct.masked or direct.outer or len(direct.taps) != 2:
        return None
    if len(direct.blocks) != 2 or any(tap.size != _TAPS for tap in direct.taps):
        return None
    held, moving = direct.first.access, direct.second.access
    names = {tap.name: tap for tap in direct.taps}
    found = []
    for axis, _ in (direct.rows, direct.vector):
        mine = [index for index in moving.indices if axis.name in index.axes]
        others = [index for index in held.indices if axis.name in index.axes]
        if len(mine) != 1 or len(others) != 1 or dict(others[0].terms) != {axis.name: 1}:
            return None
        terms = dict(mine[0].terms)
        tap = next((name for name in terms if name in names), "")
        if terms != {axis.name: 1, tap: 1}:
            return None
        found.append(names[tap])
    (left, _), (right, _) = direct.blocks
    axes = [set(held.axes), set(moving.axes)]
    if left.name not in axes[0] - axes[1] or right.name not in axes[1] - axes[0]:
        return None
    # Every tap is in one index only.
    if sum(tap in index.axes for index in moving.indices for tap in names) != len(names):
        return None
    unit = all(steps(access, places)[direct.vector[0].name] == 1 for access in (held, moving))
    return (found[0], found[1]) if unit else None
