"""Finding what the rows say about a level at a point of the scans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meta500.benchmarks.studies.abstraction.level import INFERENCE, LEVELS
from meta500.benchmarks.studies.select import select, unique
from meta500.metrics.rows import Row

BASELINE = "eager"
VENDORS = ("onednn", "cudnn")
# The implementations of the paper beside PyTorch; on the CPU oneDNN stands in cuDNN's place.
PAPER_LEVELS = ("torchscript", "libtorch", *VENDORS)
# Networks of these names are chains, whose times are no part of the scans.
_CHAIN = " chain"


@dataclass(frozen=True, order=True)
class Point:
    """A place in the scans; size 0 of a network without one."""

    batch: int
    size: int

    @property
    def words(self) -> str:
        """In text."""
        return f"batch {self.batch}" + (f", size {self.size}" if self.size else "")


def point_of(row: Row) -> Point:
    """The point that a row was measured at: its batch, and the last number of its shape of images."""
    sizes = row.shape.split("x")
    return Point(row.batch or 0, int(sizes[-1]) if len(sizes) == 4 else 0)


def scanned(rows: Iterable[Row], quantity: str, phase: str = INFERENCE) -> list[Row]:
    """Rows of the network (not of chains) with a value."""
    found = select(rows, quantity=quantity, phase=phase)
    return [row for row in found if row.value is not None and not row.model.endswith(_CHAIN)]


def wrong_levels(rows: Iterable[Row], phase: str) -> dict[tuple[str, Point], Row]:
    """Where a level's result is not that of the reference."""
    return {(r.backend, point_of(r)): r for r in scanned(rows, "time", phase) if r.verdict == "wrong"}


def right(rows: Sequence[Row], quantity: str, phase: str = INFERENCE) -> list[Row]:
    """As :func:`scanned`, without levels that are wrong at that point."""
    wrong = wrong_levels(rows, phase)
    return [row for row in scanned(rows, quantity, phase) if (row.backend, point_of(row)) not in wrong]


def names(rows: Iterable[Row]) -> list[str]:
    """Names of all levels that have a row, from the highest abstraction down; unknown ones last."""
    known = list(LEVELS)
    found = unique(rows, "backend")
    return sorted(found, key=lambda name: known.index(name) if name in known else len(known))


def titles(rows: Iterable[Row]) -> dict[str, str]:
    """Titles of the levels by name; the name itself where the rows have none."""
    rows = list(rows)
    found = {name: name for name in names(rows)}
    found |= {row.backend: row.operator for row in select(rows, quantity="available") if row.operator}
    return found


def scans(points: Iterable[Point]) -> tuple[list[Point], list[Point]]:
    """The points of the scan of the batch (at the size with most batches) and of the size, each ascending."""
    found = sorted(set(points))
    by_size: dict[int, list[Point]] = {}
    by_batch: dict[int, list[Point]] = {}
    for point in found:
        by_size.setdefault(point.size, []).append(point)
        by_batch.setdefault(point.batch, []).append(point)
    return max(by_size.values(), key=len, default=[]), max(by_batch.values(), key=len, default=[])


def at(rows: Iterable[Row], name: str, point: Point) -> Row | None:
    """The last row of a level at a point."""
    found = [row for row in rows if row.backend == name and point_of(row) == point]
    return found[-1] if found else None


def ends(row: Row) -> tuple[float, float]:
    """The interval of a row; its value where it has none."""
    assert row.value is not None
    low = row.value if row.low is None else row.low
    return low, row.value if row.high is None else row.high
