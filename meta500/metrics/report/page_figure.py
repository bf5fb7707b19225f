"""What a figure of a report is, and how much of one kind is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meta500.errors import UserError
from meta500.metrics.report.interactive import Spec, Store
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# Of one kind of figure so many pages are drawn; more would hide the others, and tables have all of them.
MOST_PAGES = 4
# Pairs of what is not drawn and why.
LeftOut = list[tuple[str, str]]


@dataclass(frozen=True)
class PageFigure:
    """One figure.

    Attributes:
        name: of its files without suffix, unique in a report.
        kind: of `WANTED`, the kind that it is.
        section: heading under which it stands.
        title: above it.
        caption: below it: what is shown and how to read it.
        rows: what it is made of.
        draw: makes the static figure.
        interactive: makes the figure for plotly; None where there is only the static one.
    """

    name: str
    kind: str
    section: str
    title: str
    caption: str
    rows: Sequence[Row]
    draw: Callable[[], Drawing]
    interactive: Callable[[Store], Spec] | None = None


def further(what: str, pages: int) -> tuple[str, str]:
    """What is said at the first page that is not drawn."""
    reason = f"only the first {MOST_PAGES} of {pages} figures are drawn; choose others with --filter"
    return f"Further figures of {what}", reason


def numbered(page: int, pages: int) -> str:
    """The number of a page behind a title, where there are several."""
    return f" ({page} of {pages})" if pages > 1 else ""


def fault(problem: Exception) -> str:
    """Why a figure cannot be drawn, in words."""
    return str(problem) if isinstance(problem, UserError) else f"{type(problem).__name__}: {problem}"
