"""Winograd's forms of 3 x 3 convolutions: fewer products for several neighbouring outputs at once.

With the matrices of :mod:`toom_cook`, y = A^T [(G g) * (B^T x)] along rows, or nested in both directions,
Y = A^T [(G g G^T) * (B^T X B)] A (Winograd, Arithmetic Complexity of Computations, 1980; Lavin and Gray, Fast
Algorithms for Convolutional Neural Networks, CVPR 2016). A forward convolution and the gradient by its input
are both stencils in :mod:`contraction`, so both take these forms.

The points at which the polynomials are evaluated decide the rounding errors. With 0, +-1, +-2 the form
F(4, 3) x F(4, 3) is 7 to 9 times less exact than the direct one, with those below 2 to 2.6 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from meta500.backends.generated.contraction import STENCIL, Blocked, steps
from meta500.backends.generated.ir import Axis, Stage
from meta500.backends.generated.layout import Place
from meta500.backends.generated.toom_cook import ToomCook, toom_cook

_TAPS = 3
# For F(4, 3) along rows only, F(4, 3) in both directions, F(2, 3); the last point is infinity.
SINGLE = tuple(map(Fraction, ("0", "3/4", "-3/4", "3/2", "-3/2")))
DOUBLE = tuple(map(Fraction, ("0", "5/8", "-5/8", "3/2", "-3/2")))
SHORT = tuple(map(Fraction, ("0", "1", "-1")))
# With fewer channels the transforms cost more than the products that they save.
_FEWEST, _FEWEST_DOUBLE = 4, 8
# Sums over fewer channels have so small errors in the direct form that those of two transforms stand out.
_FEWEST_SUMMED = 16
# Numbers between the planes of the scratch memory, so that they do not meet in the same sets of a cache.
_PADDING, _DOUBLE_PADDING = 32, 80
# The transformed image may fill so much of the cache of a core: 192 KiB of float32.
_CACHED = 48 * 1024
# Tiles that lie side by side in a vector of their own: vectors have 4 lanes at least.
_FEWEST_LANES = 4


@dataclass(frozen=True)
class Winograd:
    """A stencil of 3 x 3 taps in Winograd's form.

    Attributes:
        direct: the same sum of products in the direct form.
        down: along image rows.
        across: along the vectorised axis; None for all three taps there as they are.
        lanes: numbers in the vectors that are multiplied.
        side: tiles side by side in one row of tiles; ``lanes // side`` rows of tiles share a vector.
        block: results (channels) of a block.
        stretch: image columns whose tiles are in the scratch memory at a time.
    """

    direct: Blocked
    down: ToomCook
    across: ToomCook | None
    lanes: int
    side: int
    block: int
    stretch: int

    @property
    def stage(self) -> Stage:
        """The stage that it computes."""
        return self.direct.stage

    @property
    def split(self) -> Axis:
        """The axis whose range the caller chooses."""
        return self.direct.rows[0]

    @property
    def groups(self) -> int:
        """Rows of tiles that share a vector."""
        return self.lanes // self.side

    @property
    def granule(self) -> int:
        """Ranges begin and end at multiples of this."""
        return len(self.down.output) * self.groups

    @property
    def private(self) -> bool:
        """Whether threads add into copies of their own: never."""
        return False

    @property
    def columns(self) -> int:
        """Image columns of one vector of tiles."""
        return self.side * (len(self.across.output) if self.across else 1)

    @property
    def results(self) -> Axis:
        """The axis of the results that share an image: output channels of a convolution."""
        return self.direct.blocks[0][0]

    @property
    def summed(self) -> Axis:
        """The summed axis beside the taps."""
        return self.direct.inner[0]

    @property
    def pitch(self) -> int:
        """Numbers between the summed axis' elements in the scratch memory."""
        if self.across is None:
            # Left of a row is room for a column that the window begins before it.
            return self.direct.vector[0].size + self.lanes
        return self.down.products * self.lanes

    @property
    def plane(self) -> int:
        """Numbers between planes of the scratch memory: one per point of ``across``, or else of ``down``."""
        return self.summed.size * self.pitch + (_DOUBLE_PADDING if self.across else self.lanes + _PADDING)

    @property
    def scratch(self) -> int:
        """Numbers of memory of its own that it needs while it runs: the transformed image."""
        if self.across is None:
            return self.down.products * self.plane
        return self.stretch // self.columns * self.across.products * self.plane

    @property
    def filter_size(self) -> int:
        """Numbers of one transformed filter."""
        return self.down.products * (self.across.products if self.across else _TAPS)

    @property
    def prepared(self) -> int:
        """Numbers of all transformed weights."""
        return self.results.size * self.summed.size * self.filter_size

    def __str__(self) -> str:
        rows, (vector, _) = self.split, self.direct.vector
        form = f"Winograd F({len(self.down.output)}, {_TAPS}) down"
        form += f" x F({len(self.across.output)}, {_TAPS}) across" if self.across else ""
        parts = [f"{form} on {self.lanes} lanes: rows {rows.name}<{rows.size} by {self.granule}"]
        parts.append(f"blocks {self.results.name}<{self.results.size} by {self.block}")
        parts.append(f"vectors {vector.name}<{vector.size} by {self.columns} columns")
        if self.groups > 1:
            parts.append(f"{self.groups} rows of tiles in a vector")
        if self.direct.outer:
            parts.append("outside " + ", ".join(f"{a.name}<{a.size}" for a in self.direct.outer))
        parts.append(f"summed {self.summed.name}<{self.summed.size}")
        if self.stretch < vector.size:
            parts.append(f"{self.stretch} columns at a time")
        parts.append(f"scratch {self.scratch}, transformed weights {self.prepared}")
        return "; ".join(parts)


def winograd(direct: Blocked, places: Mapping[str, Place], lanes: int, registers: int) -> Winograd | None:
    """Winograd's form of a stencil; None where it has none, or none that is faster.

    Args:
        direct: the stencil in the direct form.
        places: of its tensors.
        lanes: float32 numbers in the widest vector.
        registers: number of vector registers.
    """
    if not _suits(direct, places):
        return None
    results, summed = direct.blocks[0][0].size, direct.inner[0].size
    # A block's sums for six points stay in registers.
    block = 4 if registers >= 32 and results % 4 == 0 else 2
    channels = min(results, summed)
    rows, width = direct.rows[0].size, direct.vector[0].size
    if results % block or channels < _FEWEST:
        return None
    if channels >= _FEWEST_DOUBLE and summed >= _FEWEST_SUMMED:
        # Half a vector costs less than the larger number of products of F(2, 3).
        for outputs, points in ((4, DOUBLE), (2, SHORT)):
            down, across = _form(4, DOUBLE if outputs == 4 else SINGLE), _form(outputs, points)
            for wide in (lanes, lanes // 2):
                side = wide
                while side >= _FEWEST_LANES:
                    plan = Winograd(direct, down, across, wide, side, block, side * outputs)
                    if width % plan.columns == 0 and rows % plan.granule == 0:
                        return _stretched(plan)
                    side //= 2
    if rows % 4 or direct.lanes < _FEWEST_LANES:
        return None
    return Winograd(direct, _form(4, SINGLE), None, direct.lanes, direct.lanes, block, width)


def _form(outputs: int, points: tuple[Fraction, ...]) -> ToomCook:
    return toom_cook(outputs, _TAPS, points)


def _stretched(plan: Winograd) -> Winograd:
    """As many columns at a time as a part of the cache holds in transformed form."""
    count = plan.direct.vector[0].size // plan.columns
    fitting = [n for n in range(1, count + 1) if count % n == 0 and n * plan.scratch <= _CACHED]
    return replace(plan, stretch=max(fitting, default=1) * plan.columns)


def _suits(direct: Blocked, places: Mapping[str, Place]) -> bool:
    """Whether a stencil has 3 x 3 taps without strides, one axis of results and one summed axis."""
    if direct.form != STENCIL or direct.masked or direct.interleaved or direct.private:
        return False
    if len(direct.blocks) != 1 or len(direct.inner) != 1 or [t.size for t in direct.taps] != [_TAPS] * 2:
        return False
    rows, vector = direct.rows[0].name, direct.vector[0].name
    write = steps(direct.stage.write, places)
    image, weights = steps(direct.first.access, places), steps(direct.second.access, places)
    if image[vector] != 1 or write[vector] != 1 or image[rows] <= 0:
        return False
    if sorted(abs(image[t.name]) for t in direct.taps) != sorted((1, image[rows])) or image[rows] == 1:
        return False
    axes = {direct.blocks[0][0].name, direct.inner[0].name, *(t.name for t in direct.taps)}
    return set(weights) <= axes


def window(plan: Winograd, places: Mapping[str, Place]) -> tuple[dict[str, int], dict[str, bool]]:
    """How taps lie in the window of the image that a result sees.

    Returns:
        The value of every tap at the window's beginning, and whether it runs along rows (``down``).
    """
    image = steps(plan.direct.first.access, places)
    begin = {t.name: 0 if image[t.name] > 0 else t.size - 1 for t in plan.direct.taps}
    return begin, {t.name: abs(image[t.name]) != 1 for t in plan.direct.taps}
