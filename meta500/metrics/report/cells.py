"""Tables of measurements: columns with units, and cells with a text to read and the numbers behind it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meta500.metrics.report.parts import check_cells

# Digits of a number without an interval, and the most of one with a narrow interval.
PLAIN_DIGITS, MOST_DIGITS = 4, 7
# Digits of the distance from a value to the end of its interval (JCGM 100:2008, 7.2.6: at most two).
DISTANCE_DIGITS = 2
# Numbers outside of these are written with an exponent, as are all wholes that are not exact from here on.
SMALLEST, LARGEST = 1e-4, 1e7
EXACT = 1e15
# What `number_cell` writes: a number, maybe with an exponent, and maybe with an interval.
NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?(e-?[0-9]+)?")
SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")),
    "B": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")),
    "FLOP/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"), (1.0, "FLOP/s")),
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s"), (1.0, "B/s")),
}


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        name: its heading.
        unit: of all its numbers, also of ``Cell.value``; "" for words and pure numbers.
        numeric: whether it holds numbers, which stand right.
    """

    name: str
    unit: str = ""
    numeric: bool = False

    @property
    def heading(self) -> str:
        """Name and unit: "time (ms)"."""
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True)
class Cell:
    """What stands in a cell.

    Attributes:
        text: with as many digits as the interval justifies, such as "1.23 [1.20, 1.31]"; "" where nothing is.
        value: for sorting, in the column's unit; None where there is no number.
        low, high: ends of its interval; None without one.
    """

    text: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class DataTable:
    """A table.

    Attributes:
        key: lower-case words joined by hyphens, unique among the tables made together: for file names, labels
            and anchors.
        title: what it shows.
        columns: their names and units.
        rows: cells, as many as columns.
        note: what all rows share, and how to read the numbers.

    Raises:
        UserError: a row with another number of cells.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""

    def __post_init__(self) -> None:
        check_cells(self.title, self.columns, self.rows)


def unit_for(unit: str, values: Iterable[float | None]) -> tuple[float, str]:
    """Factor and name of the unit in which the median of these values is a number from 1 to 1000.

    Times become ms, µs or ns, bytes kB, MB or GB. Pure numbers have no name; other units stay.
    """
    sizes = sorted(abs(v) for v in values if v is not None and math.isfinite(v) and v != 0)
    if unit == "1" or unit not in SCALES or not sizes:
        return 1.0, "" if unit == "1" else unit
    middle = sizes[len(sizes) // 2]
    scale, name = next((entry for entry in SCALES[unit] if middle >= entry[0]), SCALES[unit][-1])
    return 1 / scale, name


def number_cell(
    value: float | None, low: float | None = None, high: float | None = None, factor: float = 1.0
) -> Cell:
    """A number with its interval, and with as many digits as that justifies: "1.23 [1.20, 1.31]".

    The value has the digits of two in the distance to the nearer end, and each end those of its own distance.
    A number without an interval has four digits, an exact whole all of its own. The numbers are multiplied
    with ``factor``.
    """
    if value is None:
        return Cell()
    value, low, high = (None if x is None else x * factor for x in (value, low, high))
    assert value is not None
    ends = [x for x in (low, high) if x is not None and math.isfinite(x)]
    distances = sorted(abs(x - value) for x in ends if x != value)
    if len(ends) < 2 or not distances or not math.isfinite(value):
        return Cell(plain_number(value), value)
    texts = [_rounded(value, distances[0])]
    texts += [_rounded(x, abs(x - value) or distances[0]) for x in ends]
    return Cell(f"{texts[0]} [{texts[1]}, {texts[2]}]", value, low, high)


def plain_number(value: float, digits: int = PLAIN_DIGITS) -> str:
    """A number of which no interval is known; wholes below 10^15 are exact."""
    if not math.isfinite(value):
        return {"nan": "NaN"}.get(repr(value), "∞" if value > 0 else "-∞")
    if value.is_integer() and abs(value) < EXACT:
        return str(int(value))
    return _digits(value, digits)


def _rounded(value: float, distance: float) -> str:
    """The number to two digits of a distance, with at least two and at most seven digits of its own."""
    if value == 0:
        return "0"
    digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(distance)) + DISTANCE_DIGITS
    return _digits(value, min(max(digits, DISTANCE_DIGITS), MOST_DIGITS))


def _digits(value: float, digits: int) -> str:
    """The number with so many significant digits, without an exponent where that stays short."""
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = int(exponent)
    if not SMALLEST <= abs(value) < LARGEST:
        return f"{mantissa}e{power}"
    # Of a whole with more places than digits, zeros stand for the rest.
    places = digits - 1 - power
    return f"{value:.{places}f}" if places >= 0 else str(int(round(value, places)))


def slug(*parts: object) -> str:
    """A key from words: lower-case letters and digits joined by hyphens."""
    text = "-".join(str(part) for part in parts if str(part))
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "table"


def without_empty(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]]
) -> tuple[tuple[Column, ...], tuple[tuple[Cell, ...], ...]]:
    """The columns that have something in them, and their cells; the first column stays."""
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i].text for row in rows)]
    return tuple(columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows)


def one_line(text: str) -> str:
    """The text without line ends, tabs and doubled blanks, and with "?" for what cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def words(*texts: object) -> tuple[Cell, ...]:
    """Cells of words."""
    return tuple(Cell(str(text)) for text in texts)


def named(*names: str) -> Sequence[Column]:
    """Columns of words."""
    return tuple(map(Column, names))
