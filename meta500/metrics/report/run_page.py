"""The page of runs as one HTML file: tables that sort and filter, figures that zoom, all rows inside.

Nothing is loaded from elsewhere, and only the two scripts whose checksums stand in the page's policy run:
plotly from its installed package, and ours. Texts are escaped by Jinja2; what the scripts read is JSON
without any "<". Without JavaScript the page shows the same tables and the static figures.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import importlib.util
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.report.environments import Environments
from meta500.metrics.report.interactive import Spec, Store
from meta500.metrics.report.page import templates
from meta500.metrics.report.page_figure import PageFigure
from meta500.metrics.report.sources import Source
from meta500.metrics.report.tables import DataTable
from meta500.metrics.rows import COLUMNS, Row, csv_line, to_csv_line

_TEMPLATES = Path(__file__).parent / "templates"
# A table of the page has at most so many lines, so that large runs open and sort at once.
MOST_LINES = 500
ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


@dataclass(frozen=True)
class Shown:
    """A figure on the page.

    Attributes:
        figure: what it is.
        svg: the static figure.
        command: shell-quoted words that make it.
        spec: the figure for plotly; None where there is only the static one.
    """

    figure: PageFigure
    svg: bytes
    command: str
    spec: Spec | None = None


@dataclass(frozen=True)
class RunPage:
    """What stands on the page.

    Attributes:
        facts: pairs of name and value: counts, verdicts and the main results.
        warnings: what a reader has to know first.
        rows: the rows of figures by identity, as pairs of the places of their source and of the row in it.
        missing: pairs of what is not drawn, and why.
        store: the numbers of the figures for plotly.
    """

    title: str
    sources: Sequence[Source]
    facts: Sequence[tuple[str, str]] = ()
    warnings: Sequence[str] = ()
    environments: Environments | None = None
    tables: Sequence[DataTable] = ()
    figures: Sequence[Shown] = ()
    rows: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    missing: Sequence[tuple[str, str]] = ()
    store: Store = field(default_factory=Store)


def page_text(page: RunPage) -> str:
    """The HTML of a page.

    Raises:
        UserError: plotly is needed and not installed.
    """
    specs = {shown.figure.name: shown.spec for shown in page.figures if shown.spec is not None}
    data = {
        "arrays": page.store.arrays,
        "figures": specs,
        "rows": {shown.figure.name: ranges(page, shown.figure.rows) for shown in page.figures},
    }
    scripts = [
        (_TEMPLATES / "run_page.js").read_text(encoding="utf-8"),
        *([plotly_script()] if specs else []),
    ]
    environment = templates()
    environment.filters["sorting_value"] = sorting_value
    sections: dict[str, list[Shown]] = {}
    for shown in page.figures:
        sections.setdefault(shown.figure.section, []).append(shown)
    return environment.get_template("run_page.html").render(
        page=page,
        sections=[
            (f"section-{n}", title, shown) for n, (title, shown) in enumerate(sections.items(), start=1)
        ],
        tables=[(table, table.rows[:MOST_LINES]) for table in page.tables],
        files=[
            {
                "name": source.name,
                "file": file_name(source.name),
                "rows": len(source.rows),
                "data": base64.b64encode(gzip.compress(_csv(source).encode(), mtime=0)).decode("ascii"),
            }
            for source in page.sources
        ],
        images={
            shown.figure.name: "data:image/svg+xml;base64," + base64.b64encode(shown.svg).decode("ascii")
            for shown in page.figures
        },
        data=embedded(data),
        scripts=scripts,
        policy=" ".join(f"'sha256-{_checksum(script)}'" for script in scripts),
        styles=[(_TEMPLATES / name).read_text(encoding="utf-8") for name in ("page.css", "run_page.css")],
    )


def plotly_script() -> str:
    """The script of plotly.js from the installed package plotly.

    Raises:
        UserError: the package is not installed, or its script could not stand in a page.
    """
    found = importlib.util.find_spec("plotly")
    if found is None or not found.submodule_search_locations:
        raise UserError("interactive figures need the package plotly: pip install plotly, or --format svg")
    path = Path(next(iter(found.submodule_search_locations))) / "package_data" / "plotly.min.js"
    try:
        script = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: plotly's script cannot be read: {error}; install plotly again") from None
    if re.search(r"</script|<!--|\r", script, re.IGNORECASE):
        raise UserError(
            f"{path}: this version of plotly's script cannot stand in a page; install another one"
        )
    return script


def embedded(data: Any) -> str:
    """JSON that can stand in a script element: none of its texts can end the element."""
    text = json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    return re.sub(r"[<>&\u2028\u2029]", lambda match: ESCAPES[match[0]], text)


def ranges(page: RunPage, rows: Sequence[Row]) -> list[list[int]]:
    """Where the rows are: for each source its place, then the first and last place of each row of rows."""
    places: dict[int, list[int]] = {}
    for row in rows:
        source, place = page.rows[id(row)]
        places.setdefault(source, []).append(place)
    result = []
    for source, numbers in places.items():
        line = [source]
        for number in sorted(set(numbers)):
            if len(line) > 1 and line[-1] == number - 1:
                line[-1] = number
            else:
                line += [number, number]
        result.append(line)
    return result


def sorting_value(value: float | None) -> str:
    """A number as JavaScript reads it; "" for what has no place in an order."""
    if value is None or math.isnan(value):
        return ""
    return repr(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"


def file_name(name: str) -> str:
    """A name for a file of rows from the name of a source."""
    return (
        re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip(".-").removesuffix(".gz").removesuffix(".csv") or "rows"
    )


def _csv(source: Source) -> str:
    return csv_line(COLUMNS) + "".join(map(to_csv_line, source.rows))


def _checksum(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
