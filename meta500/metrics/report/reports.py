"""Reports of runs: from run folders and tables of other tools to a page, tables and figures in one folder."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meta500.errors import UserError, choose
from meta500.metrics.plots.style import FORMATS as IMAGES
from meta500.metrics.plots.style import save
from meta500.metrics.plots.training_runs import text_filter
from meta500.metrics.report.environments import environments_of
from meta500.metrics.report.figures import figures_of
from meta500.metrics.report.foreign import ColumnMap
from meta500.metrics.report.interactive import Spec, Store
from meta500.metrics.report.output import Output
from meta500.metrics.report.page_figure import LeftOut, PageFigure, fault
from meta500.metrics.report.run_page import RunPage, Shown, page_text
from meta500.metrics.report.sources import Source, read_sources, rows_named_after
from meta500.metrics.report.summary import summary_of
from meta500.metrics.report.tables import DataTable, tables_of
from meta500.metrics.rows import KINDS, Row

FORMATS = ("html", "markdown", "latex", *IMAGES)
PAGE, MARKDOWN, LATEX = "report.html", "tables.md", "tables.tex"
# Fields that a filter sees.
SEEN = tuple(name for name, kind in KINDS.items() if kind == "str" and name not in ("note", "unit"))


@dataclass(frozen=True)
class Request:
    """What a report is asked for.

    Attributes:
        runs: run folders, folders that hold them, patterns, files of rows and tables of other tools.
        out: folder of the report.
        title: of the page; "" for one that names the runs.
        filter: texts that must all fit a row: a part of its run's name and its fields in words.
        formats: of `FORMATS`.
        figures: names of the figures wanted; none: all.
        columns: what the columns of another tool's tables are.
        words: the options that a command for one figure needs as well, such as ("--columns", "map.toml").
    """

    runs: Sequence[str]
    out: Path = Path("report")
    title: str = ""
    filter: Sequence[str] = ()
    formats: Sequence[str] = ("html",)
    figures: Sequence[str] = ()
    columns: ColumnMap | None = None
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Report:
    """What was written, and what a reader has to know.

    Attributes:
        files: in the order in which they were written.
        figures: names of the figures that were drawn.
        tables: keys of the tables.
        missing: pairs of what was not drawn, and why.
        notes: problems of the runs.
        removed: files of an earlier report that this one has no more.
    """

    files: tuple[Path, ...]
    figures: tuple[str, ...]
    tables: tuple[str, ...]
    missing: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    removed: tuple[Path, ...] = ()


def write_report(request: Request) -> Report:
    """Write the report.

    Raises:
        UserError: an unknown format or figure, nothing to read, nothing left by the filter, or a file that
            somebody else wrote or changed.
    """
    formats = list(dict.fromkeys(request.formats))
    if not formats:
        raise UserError(f"no format was given; choose of {', '.join(FORMATS)}")
    for kind in formats:
        choose("format of reports", kind, FORMATS)
    sources = chosen_rows(read_sources(request.runs, request.columns), request.filter)
    rows, places = named_rows(sources)
    images = [kind for kind in formats if kind in IMAGES]
    figures: list[PageFigure] = []
    missing: list[tuple[str, str]] = []
    if request.figures and not (images or "html" in formats):
        raise UserError(
            f"figure {request.figures[0]}: the formats {', '.join(formats)} have tables only; choose html or "
            f"one of {', '.join(IMAGES)} as well"
        )
    if images or "html" in formats:
        figures, missing = figures_of(rows)
        for name in request.figures:
            choose("figure", name, [figure.name for figure in figures])
        figures = [f for f in figures if not request.figures or f.name in request.figures]
    output = Output(request.out)
    output.check(
        [PAGE] * ("html" in formats)
        + [MARKDOWN] * ("markdown" in formats)
        + [LATEX] * ("latex" in formats)
        + [f"{figure.name}.{kind}" for figure in figures for kind in images]
    )
    kinds = [*images, *(["svg"] if "html" in formats and "svg" not in images else [])]
    shown: list[Shown] = []
    names: list[str] = []
    store = Store()
    for figure in figures:
        try:
            drawn = draw(figure, kinds)
        except Exception as problem:
            # Rows may not suffice for one figure, or hold what it cannot show; the others shall be seen.
            missing.append((figure.title, fault(problem)))
            continue
        names.append(figure.name)
        for kind in images:
            output.write(f"{figure.name}.{kind}", drawn[kind])
        if "html" in formats:
            spec = spec_of(figure, store, missing)
            shown.append(Shown(figure, slim(drawn["svg"]), command_of(request, figure.name), spec))
    tables = tables_of(sources) if set(formats) - set(IMAGES) else []
    title = request.title or f"Report of {titled(sources)}"
    if "markdown" in formats:
        output.write(MARKDOWN, markdown_text(title, tables))
    if "latex" in formats:
        output.write(LATEX, latex_text(tables))
    notes = tuple(problem for source in sources for problem in source.problems)
    if "html" in formats:
        page = RunPage(
            title=title,
            sources=sources,
            facts=summary_of(sources, rows),
            warnings=notes,
            environments=environments_of(sources),
            tables=tables,
            figures=shown,
            rows=places,
            missing=missing,
            store=store,
        )
        output.write(PAGE, page_text(page))
    # One figure alone is made beside the others.
    removed = () if request.figures else tuple(output.remove_others([f".{kind}" for kind in images]))
    keys = tuple(table.key for table in tables)
    return Report(tuple(output.written), tuple(names), keys, tuple(missing), notes, removed)


def chosen_rows(sources: Sequence[Source], texts: Sequence[str]) -> list[Source]:
    """The sources with the rows that fit all texts; sources without any are left out.

    Args:
        texts: see `meta500.metrics.plots.training_runs.text_filter`.

    Raises:
        UserError: no row is left; names the runs.
    """
    if not texts:
        return list(sources)
    accepts, _ = text_filter(list(texts))
    left = []
    for source in sources:
        rows = tuple(r for r in source.rows if accepts(f"{source.name}: {' '.join(_words(r))}"))
        if rows:
            left.append(replace(source, rows=rows))
    if not left:
        names = ", ".join(source.name for source in sources[:20])
        raise UserError(
            f"filter {' '.join(map(repr, texts))}: no row fits; the runs are: {names}; a text is a part of a "
            "run's name, network, operator, phase, quantity, backend, ..."
        )
    return left


def named_rows(sources: Sequence[Source]) -> tuple[list[Row], dict[int, tuple[int, int]]]:
    """All rows, and by their identity the places of source and row.

    Of several sources, ``run_id`` names the source, so that labels of figures say it: see `rows_named_after`.
    """
    rows: list[Row] = []
    places: dict[int, tuple[int, int]] = {}
    for number, source in enumerate(sources):
        for place, row in enumerate(rows_named_after(source) if len(sources) > 1 else source.rows):
            rows.append(row)
            places[id(row)] = (number, place)
    return rows, places


def draw(figure: PageFigure, formats: Sequence[str]) -> dict[str, bytes]:
    """The static figure in these image formats.

    Raises:
        UserError: it cannot be drawn.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        # Characters that the font lacks are boxes in the figure; tables have them.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        paths = save(figure.draw(), [Path(folder) / f"figure.{kind}" for kind in formats])
        return {path.suffix[1:]: path.read_bytes() for path in paths}


def spec_of(figure: PageFigure, store: Store, missing: LeftOut) -> Spec | None:
    """The figure for plotly; None where there is none, or where it cannot be made, which is said then."""
    if figure.interactive is None:
        return None
    try:
        spec = figure.interactive(store)
        # Numbers that are not finite have no place in JSON.
        json.dumps(spec, allow_nan=False)
    except Exception as problem:
        missing.append((f"{figure.title}, interactive", fault(problem)))
        return None
    return spec


def slim(svg: bytes) -> bytes:
    """The same picture in fewer bytes: paths with two decimals, which are hundredths of a point."""
    path = re.compile(rb' d="[^"]*"')
    decimals = re.compile(rb"(\.[0-9]{2})[0-9]+")
    return path.sub(lambda found: decimals.sub(rb"\1", found[0]).replace(b" \n", b" "), svg)


def command_of(request: Request, figure: str) -> str:
    """Shell-quoted words that make one figure as a file."""
    words = ["meta500", "report", *request.runs, *request.words]
    words += [f"--filter={text}" for text in request.filter]
    return shlex.join([*words, "--figure", figure, "--format", "svg", "--out", str(request.out)])


def markdown_text(title: str, tables: Sequence[DataTable]) -> str:
    """All tables as one Markdown file."""
    from meta500.metrics.report.markdown import escaped, markdown

    return "\n\n".join([f"# {escaped(title)}", *(markdown(table).strip() for table in tables)]) + "\n"


def latex_text(tables: Sequence[DataTable]) -> str:
    """All tables as one file for ``\\input``; the first line names the packages."""
    from meta500.metrics.report.latex import latex

    text = "\n".join(latex(table) for table in tables)
    # Only this sign is missing in LaTeX's own encoding of fonts.
    encoding = " and \\usepackage[T1]{fontenc}" if r"\textquotedbl" in text else ""
    return f"% needs: \\usepackage{{array,booktabs,longtable}}{encoding}\n{text}"


def titled(sources: Sequence[Source]) -> str:
    """The runs in a title."""
    return sources[0].name if len(sources) == 1 else f"{len(sources)} runs"


def _words(row: Row) -> list[str]:
    return [value for name in SEEN if (value := getattr(row, name))]
