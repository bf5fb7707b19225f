"""Heat maps of errors: operators (or the cases of one operator) by who ran them, in units of eps.

An error is the largest relative distance from the float64 reference; divided by eps, the distance from 1 to
the next larger number of its element type, errors of all types are on one scale: rounding gives a few eps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meta500.errors import UserError
from meta500.metrics.norms import SAFETY, tolerance
from meta500.metrics.plots.style import WIDTH, drawing, new_figure, number, save
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROW_INCHES = 0.17
CELL_INCHES = 0.95
# The scale of colours, in eps; what lies outside has the colour of its end.
LOWEST, HIGHEST = 0.1, 1e4
PAGE = 50
NAME_CHARACTERS = 44
BAR_INCHES = 0.12
REFUSED, WRONG, FAILED, EQUAL = "refused", "wrong", "failed", "equal"
# What the errors are measured against has none of its own.
REFERENCE, REFERENCE_BACKEND, REFERENCE_TYPE = "reference", "numpy", "float64"


@dataclass(frozen=True)
class Cell:
    """The largest error of one operator by one series, in eps.

    ``error`` None: there is none, and ``word`` says why: "refused", "failed", "equal" (no floating-point
    results, and they are right), "reference" (it is what the others are measured against). "wrong" marks an
    error that rounding does not explain.
    """

    name: str
    series: str
    error: float | None
    word: str = ""


def cells_from_rows(rows: Iterable[Row]) -> list[Cell]:
    """One cell per operator (of a run about one operator: per case) and per backend and element type."""
    chosen = [r for r in rows if belongs(r)]
    operators = {r.operator for r in chosen}
    errors: dict[tuple[str, str], float] = {}
    words: dict[tuple[str, str], set[str]] = {}
    names: dict[str, None] = {}
    series: dict[str, None] = {}
    for row in chosen:
        name, who = _place(row, len(operators) == 1)
        unit = _epsilon(row.dtype)
        names.setdefault(name)
        series.setdefault(who)
        key = (name, who)
        words.setdefault(key, set()).add(_word(row))
        if (row.backend, row.dtype) == (REFERENCE_BACKEND, REFERENCE_TYPE):
            words[key].add(REFERENCE)
            continue
        if row.quantity == "max_relative" and row.value is not None and unit and not math.isnan(row.value):
            errors[key] = max(errors.get(key, 0.0), row.value / unit)
    worst = (WRONG, FAILED, REFERENCE, EQUAL, REFUSED)
    cells = []
    for name in sorted(names, key=str.lower):
        for who in series:
            if (name, who) in words:
                error = errors.get((name, who))
                word = next((w for w in worst if w in words[name, who]), "")
                cells.append(Cell(name, who, error, word if error is None or word in (WRONG, FAILED) else ""))
    return cells


def rows_of_cells(rows: Iterable[Row], cells: Iterable[Cell]) -> list[Row]:
    """Those of the rows that `cells_from_rows` made these cells of."""
    chosen = [r for r in rows if belongs(r)]
    operators = {r.operator for r in chosen}
    places = {(cell.name, cell.series) for cell in cells}
    return [row for row in chosen if _place(row, len(operators) == 1) in places]


def _place(row: Row, cases: bool) -> tuple[str, str]:
    """Line and column of a row; ``cases`` says that the lines are the cases of one operator."""
    name = (row.node or row.model) if cases else (row.operator or row.model)
    # Types without eps (integers, text) are one column.
    return name, f"{row.backend}\n{row.dtype if _epsilon(row.dtype) else 'other types'}"


def draw_heatmap(cells: Sequence[Cell], *, title: str = "") -> Figure:
    """A table of coloured cells with numbers; logarithmic colours from 0.1 to 10,000 eps.

    Raises:
        UserError: no cells.
    """
    if not cells:
        raise UserError("heat map: there are no errors")
    names = list(dict.fromkeys(c.name for c in cells))
    series = list(dict.fromkeys(c.series for c in cells))
    with drawing():
        # Room for names at the left, and for the scale of colours below.
        longest = max(len(_short(name)) for name in names)
        width = min(max(0.075 * longest + 0.4 + CELL_INCHES * len(series), 3.6), 4 * WIDTH)
        height = ROW_INCHES * len(names)
        figure = new_figure(width, height + 1.1)
        grid = figure.add_gridspec(2, 1, height_ratios=(height, BAR_INCHES))
        axes = figure.add_subplot(grid[0])
        axes.set_xlim(0, len(series))
        axes.set_ylim(len(names), 0)
        scale = _scale()
        for cell in cells:
            _draw_cell(axes, cell, series.index(cell.series), names.index(cell.name), scale)
        axes.set_yticks([i + 0.5 for i in range(len(names))], [_short(name) for name in names])
        axes.set_xticks([i + 0.5 for i in range(len(series))], series)
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        if title:
            axes.set_title(title, loc="left")
        _colour_bar(figure, figure.add_subplot(grid[1]), scale)
    return figure


def heatmap_plots(rows: Sequence[Row], folder: Path, formats: Sequence[str] = ("png", "pdf")) -> list[Path]:
    """Write "errors", and "errors-2", ... for further pages; nothing where there is no error in eps."""
    written: list[Path] = []
    for name, cells in heatmap_pages(rows):
        written += save(draw_heatmap(cells), [folder / f"{name}.{kind}" for kind in formats])
    return written


def heatmap_pages(rows: Sequence[Row]) -> Iterator[tuple[str, list[Cell]]]:
    """Pairs of the name of a figure and its cells; none where there is no error in eps."""
    cells = cells_from_rows(rows)
    # What has numbers is a picture; equality of integers and refusals stand in the tables.
    numbered = {cell.name for cell in cells if cell.error is not None}
    cells = [cell for cell in cells if cell.name in numbered]
    columns = {cell.series for cell in cells if cell.error is not None}
    cells = [cell for cell in cells if cell.series in columns]
    names = list(dict.fromkeys(cell.name for cell in cells))
    pages = max(1, math.ceil(len(names) / PAGE))
    size = math.ceil(len(names) / pages)
    for page in range(pages if names else 0):
        chosen = set(names[page * size : (page + 1) * size])
        number_of_page = f"-{page + 1}" if page else ""
        yield f"errors{number_of_page}", [cell for cell in cells if cell.name in chosen]


def belongs(row: Row) -> bool:
    """Rows of verdicts and of the largest relative error, not those of times or gradients."""
    return row.level == 0 and row.phase == "conformance" and row.quantity in ("verdict", "max_relative")


def _word(row: Row) -> str:
    words = {"wrong": WRONG, "failed": FAILED, "unsupported": REFUSED, "ok": EQUAL}
    return words.get(row.verdict, "")


def _epsilon(dtype: str) -> float:
    """The distance from 1 to the next larger number; 0 for types without."""
    try:
        import ml_dtypes  # noqa: F401  registers bfloat16 and the small floats

        return tolerance(dtype) / SAFETY
    except (TypeError, UserError):
        return 0.0


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS else name[: NAME_CHARACTERS - 1] + "…"


def _scale() -> Any:
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    return ScalarMappable(LogNorm(LOWEST, HIGHEST, clip=True), colormaps["YlGnBu"])


def _draw_cell(axes: Axes, cell: Cell, column: int, line: int, scale: Any) -> None:
    from matplotlib.patches import Rectangle

    color: Any = "#EEEEEE"
    if cell.error is not None:
        color = scale.to_rgba(max(cell.error, LOWEST))
    wrong = cell.word in (WRONG, FAILED)
    look: dict[str, Any] = {"facecolor": color, "edgecolor": "white", "linewidth": 0.8}
    axes.add_patch(Rectangle((column, line), 1, 1, **look))
    if wrong:
        # A frame inside of the cell, which does not depend on seeing colours.
        inner: dict[str, Any] = {"fill": False, "edgecolor": "#D55E00", "linewidth": 1.4}
        axes.add_patch(Rectangle((column + 0.02, line + 0.1), 0.96, 0.8, **inner))
    text = cell.word if cell.error is None else " ".join(filter(None, (_number(cell.error), cell.word)))
    dark = cell.error is not None and 0.299 * color[0] + 0.587 * color[1] + 0.114 * color[2] < 0.5
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 7}
    style["style"] = "italic" if cell.error is None else "normal"
    axes.text(
        *(column + 0.5, line + 0.52, text),
        **style,
        color="white" if dark else "black" if cell.error is not None else "#555555",
    )


def _number(error: float) -> str:
    return "inf" if math.isinf(error) else "0" if error == 0 else number(error, 2)


def _colour_bar(figure: Figure, axes: Axes, scale: Any) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    bar = figure.colorbar(scale, cax=axes, orientation="horizontal")
    bar.set_label("largest relative error against float64 (eps of the type)")
    bar.ax.xaxis.set_major_locator(FixedLocator([0.1, 1, 10, 100, 1000, 10_000]))
    bar.ax.xaxis.set_minor_locator(NullLocator())
    words = {0.1: "≤ 0.1", 10_000: "≥ 10,000", 1000: "1,000"}
    bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: words.get(round(value, 1), f"{value:g}")))
    bar.outline.set_visible(False)  # type: ignore[operator]
