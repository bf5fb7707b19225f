"""The look of all plots: colours, markers, fonts, and writing figures to files.

matplotlib is imported when a figure is drawn, through ``Figure`` objects with the Agg canvas;
pyplot and its global state stay out. Settings hold inside `drawing` only and start from
matplotlib's own defaults, so that a user's settings neither change nor are changed by these plots,
and a plot made again from the same data is the same file.
"""

from __future__ import annotations

import math
import textwrap
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meta500.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito, "Color Universal Design" (2008): distinct for all common kinds of colour blindness.
# Their yellow is left out, since it is too pale for lines on white paper.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
LINES = ("-", "--", "-.", ":")
HATCHES = ("", "////", "....", "xxxx", "\\\\\\\\", "----", "++++")
FORMATS = ("png", "pdf", "svg")
DPI = 200
# Logarithmic axes shorter than this have ticks at equal distances.
NARROW_DECADES = 0.4
WIDTH = 6.4
TITLE_CHARACTERS = 100

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.labelsize": 9,
    "axes.titlesize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    # Type 42 fonts stay text in the PDF; many journals refuse matplotlib's default, Type 3.
    "pdf.fonttype": 42,
    "svg.hashsalt": "meta500",
}

_lock = threading.RLock()


@contextmanager
def drawing() -> Iterator[None]:
    """Hold the style while drawing or saving, one thread at a time: matplotlib keeps only one."""
    import matplotlib.style

    with _lock, matplotlib.style.context(["default", STYLE]):
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure (inches), Agg canvas, constrained layout; to be called inside `drawing`."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, paths: str | Path | Sequence[str | Path]) -> list[Path]:
    """Write the figure to one or several files; their suffixes (.png, .pdf, .svg) are the formats.

    Folders that are missing are made. PNG has 200 dots per inch. Files carry no date.

    Raises:
        UserError: another suffix, no path at all, or a file that cannot be written.
    """
    targets = [Path(p) for p in ([paths] if isinstance(paths, str | Path) else paths)]
    if not targets:
        raise UserError("a plot needs at least one path")
    for target in targets:
        if target.suffix[1:] not in FORMATS:
            raise UserError(f"plot '{target}': the name must end in .png, .pdf or .svg")
    undated: dict[str, dict[str, Any]] = {
        "png": {"Software": "meta500"},
        "pdf": {"CreationDate": None},
        "svg": {"Date": None},
    }
    with drawing():
        for target in targets:
            kind = target.suffix[1:]
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                figure.savefig(target, format=kind, dpi=DPI, metadata=undated[kind])
            except OSError as error:
                reason = error.strerror or error
                raise UserError(f"plot '{target}' cannot be written: {reason}") from None
    return targets


def literal(text: str) -> str:
    """Text that matplotlib draws as it stands: no formulas between dollars, no label that it would hide."""
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def titled(title: str, most: int = TITLE_CHARACTERS) -> str:
    """The title of a wide figure as it stands, on as many lines of ``most`` characters as it needs."""
    return "\n".join(literal(line) for line in textwrap.wrap(title, most))


def is_positive(value: float | None) -> bool:
    """Whether a number has a place on a logarithmic axis."""
    return value is not None and 0 < value < math.inf


def text_width(figure: Figure, text: str, size: float) -> float:
    """Width of a text in inches, as the figure's renderer draws it."""
    artist = figure.text(0, 0, text, fontsize=size)
    width = artist.get_window_extent(figure.canvas.get_renderer()).width  # type: ignore[attr-defined]
    artist.remove()
    return width / figure.dpi


def legend_below(figure: Figure, handles: Sequence[Any], labels: Sequence[str]) -> None:
    """A legend under all axes, in as many columns as fit, for which the figure grows in height.

    It stands outside so that it never covers data, however many entries there are.
    """
    if not handles:
        return
    size = STYLE["legend.fontsize"]
    widths = [text_width(figure, label, size) for label in labels]
    width, height = figure.get_size_inches()
    columns = _columns(widths, width - 0.2)
    lines = [label.count("\n") + 1 for label in labels]
    height_in_lines = max(sum(lines[a:b]) for a, b in pairwise(_column_starts(len(lines), columns)))
    figure.set_size_inches(width, height + 0.18 * height_in_lines + 0.1)
    figure.legend(list(handles), list(labels), loc="outside lower center", ncols=columns, handlelength=2.6)


def _columns(widths: Sequence[float], available: float) -> int:
    """The most columns of legend entries that fit; entries are filled in column by column."""
    handle_and_gaps = 0.65
    for columns in range(len(widths), 1, -1):
        starts = _column_starts(len(widths), columns)
        needed = sum(max(widths[a:b]) + handle_and_gaps for a, b in pairwise(starts))
        if needed <= available:
            return columns
    return 1


def _column_starts(entries: int, columns: int) -> list[int]:
    """Where each column begins, and the end: matplotlib spreads evenly, with the long columns first."""
    short, longer = divmod(entries, columns)
    return [k * short + min(k, longer) for k in range(columns + 1)]


def number(value: float, digits: int = 3) -> str:
    """A number with ``digits`` significant digits, without an exponent where that stays short."""
    if math.isnan(value):
        return "NaN"
    if value == 0 or math.isinf(value):
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e5:
        mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    rounded = float(f"{value:.{digits}g}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:.{places}f}"


def time_unit(seconds: float) -> tuple[float, str]:
    """Factor and name of the unit in which ``seconds`` reads best: ns, µs, ms, s, min or h."""
    units = ((1e9, "ns", 1e-6), (1e6, "µs", 1e-3), (1e3, "ms", 1.0), (1.0, "s", 600.0))
    for factor, name, limit in units:
        if seconds < limit:
            return factor, name
    return (1 / 60, "min") if seconds < 36_000 else (1 / 3600, "h")


def plain_log_ticks(axes: Axes, axis: str) -> None:
    """Ticks of a logarithmic axis as plain numbers (0.1, 1, 10), with 2 and 5 on a short axis.

    An axis that is so short that it might show only one of them has ticks at equal distances.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    low, high = axes.get_xlim() if axis == "x" else axes.get_ylim()
    decades = math.log10(high / low) if 0 < low < high else 1.0
    chosen = axes.xaxis if axis == "x" else axes.yaxis
    subs = (1.0, 2.0, 5.0) if decades <= 2.5 else (1.0,)
    locator = MaxNLocator(5) if decades < NARROW_DECADES else LogLocator(subs=subs, numticks=12)
    chosen.set_major_locator(locator)
    chosen.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    chosen.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    if value <= 0:
        return ""
    return f"{value:g}" if 1e-4 <= value < 1e5 else f"$10^{{{math.log10(value):g}}}$"
