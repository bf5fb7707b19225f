"""Sources of reports: run folders, files of result rows, and tables of other tools."""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.metrics.folders import find_results, short_names
from meta500.metrics.report.foreign import ColumnMap, read_foreign, text_of
from meta500.metrics.rows import Row, read_csv
from meta500.metrics.run import RunFolder

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz")


@dataclass(frozen=True)
class Source:
    """One run, or one file of measurements.

    Attributes:
        name: short, and unique among the sources that were read together.
        path: of the run folder or the file.
        rows: in the order of the file.
        info: contents of run.json; None for a file alone.
        command: shell-quoted words that made the run; "" if unknown.
        problems: what was wrong but tolerable, and what a reader has to know, in words.
    """

    name: str
    path: Path
    rows: tuple[Row, ...]
    info: Mapping[str, Any] | None
    command: str
    problems: tuple[str, ...] = ()


def read_sources(
    patterns: str | Path | Sequence[str | Path], columns: ColumnMap | None = None
) -> list[Source]:
    """Read run folders and files, each once, in the order given and then by name.

    Args:
        patterns: run folders, folders that hold them (searched 4 levels deep), patterns such as
            "runs/*sgd*", and files, which may be packed by gzip. A file with the header of result rows is
            read as such, and so is rows.csv with its run.json beside it; any other file needs ``columns``.
        columns: what the columns of another tool's tables are.

    Raises:
        UserError: a path that does not exist, a malformed run or file, a table of another tool without a
            map of its columns, or such a map and no table for it.
    """
    paths = find_results(patterns, SUFFIXES)
    # The rows of a run folder stand for the run.
    runs = [p.parent if p.name == "rows.csv" and (p.parent / "run.json").exists() else p for p in paths]
    paths = list({path.resolve(): path for path in runs}.values())
    names = short_names(paths)
    foreign = [path for path in paths if path.is_file() and not _has_result_rows(path)]
    if columns is not None and not foreign:
        raise UserError(
            f"{columns.name}: no file needs it: all that were given are runs or rows of meta500; "
            "name the other tool's table, or leave the map out"
        )
    return [
        _read_table(path, name, columns) if path in foreign else _read_results(path, name)
        for path, name in zip(paths, names, strict=True)
    ]


def rows_named_after(source: Source) -> list[Row]:
    """Copies of the rows, with the source's name in place of the run's identifier.

    Where the source has rows of several runs, the identifier follows the name, so that they stay apart.
    """
    identifiers = {row.run_id for row in source.rows}
    rows = []
    for row in source.rows:
        # A copy without the checks of a new row: the rows of a source may be many.
        renamed = copy.copy(row)
        name = source.name if len(identifiers) == 1 else f"{source.name} {row.run_id}".strip()
        object.__setattr__(renamed, "run_id", name)
        rows.append(renamed)
    return rows


def _has_result_rows(path: Path) -> bool:
    """Whether the first line that is not empty is a header of result rows."""
    # Not the csv module: the line may be of any length, and be no CSV.
    first = re.search(r"\S[^\r\n]*", text_of(path, lenient=True))
    header = [cell.strip().strip('"') for cell in first[0].split(",")] if first else []
    return "schema" in header and "quantity" in header


def _read_results(path: Path, name: str) -> Source:
    """A run folder, or result rows alone."""
    problems: list[str] = []
    if (path / "run.json").exists():
        run = RunFolder.open(path)
        if run.status in ("failed", "interrupted"):
            message = run.info.get("message")
            problems.append(f"{path}: the run was {run.status}" + (f": {message}" if message else ""))
        rows = tuple(run.rows)
        return Source(name, path, rows, run.info, _command(run.info), (*run.problems, *problems))
    file = path / "rows.csv" if path.is_dir() else path
    if path.is_dir():
        problems.append(f"{path}: there is no run.json: the machine and the command are not known")
    return Source(name, path, tuple(read_csv(file, problems)), None, "", tuple(problems))


def _read_table(path: Path, name: str, columns: ColumnMap | None) -> Source:
    if columns is None:
        raise UserError(
            f"{path}: no result rows (the header has no columns 'schema' and 'quantity'); for the table of "
            "another tool, say what its columns are, in a TOML file or as field=column"
        )
    rows, notes = read_foreign(path, columns)
    return Source(name, path, tuple(rows), None, "", tuple(notes))


def _command(info: Mapping[str, Any]) -> str:
    """The command line of a run, as one would type it."""
    words = info.get("command")
    if not isinstance(words, list) or not words:
        return ""
    program, *rest = map(str, words)
    path = Path(program)
    if path.name == "meta500" or path.parts[-2:] == ("meta500", "__main__.py"):
        return shlex.join(["meta500", *rest])
    return shlex.join([*(["python"] if path.suffix == ".py" else []), program, *rest])
