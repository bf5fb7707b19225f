"""Result rows: the one flat table that every run writes and every plot and report reads.

A row is one measurement. It says what was measured, who ran it, how, and the raw samples beside the
summary, so that any other statistic can be taken later. Floats survive writing and reading exactly.

CSV files have a header line with :data:`COLUMNS`; the first column is the schema version, an absent
number is an empty cell, samples stand in one cell separated by spaces. JSONL files have one object
per line with the same names, an absent number is ``null`` and non-finite numbers are the strings
"nan", "inf", "-inf".
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import operator as operators
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meta500.errors import UserError

if TYPE_CHECKING:
    import pandas

SCHEMA_VERSION = 1
# What files that were packed by gzip begin with (RFC 1952).
GZIP = b"\x1f\x8b"
VERDICTS = ("ok", "wrong", "unsupported", "failed", "not_compared")
NO_VALUE_VERDICTS = ("unsupported", "failed")
LEVELS = range(4)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement. Text fields are "" and numbers None where they do not apply.

    Which run:
        run_id: identifier of the run; filled in by the run folder.
    What was measured:
        level: 0 operators, 1 networks, 2 training, 3 distributed training.
        model: name of the network, e.g. "unet-0".
        operator: ONNX operator, e.g. "Conv", for measurements of one operator.
        node: name of the node, where one node of a network is meant.
        phase: "forward", "backward", "inference", "training_step", "epoch", "training_set",
            "test_set", ...
        shape: shapes in words, e.g. "8x16x512x512" or "8x16x64x64 * 32x16x3x3".
        dtype: ONNX or numpy name of the element type, e.g. "float32".
        batch: samples per step.
        optimizer, dataset: names, for training.
        quantity: "time", "first_call", "throughput", "error", "peak_memory", "loss", "accuracy",
            "ratio", or the name of any other metric.
        unit: of value, low, high and samples: "s", "samples/s", "B", "FLOP/s", "1" for pure
            numbers.
    Who ran it:
        backend: "numpy", "torch", ...; mode: e.g. "eager" or "compile"; version: of the backend.
        threads: threads of one process; ranks: processes; device: "cpu", "cuda:0", ...
        seed: of initialisation and sampling, where it varies inside a run.
    How:
        protocol: how it was timed, e.g. "interleaved" or "alone".
        warmup: calls before the first sample (the first call is not counted here).
        repeats: number of samples taken.
    Result:
        samples: the raw numbers, in the order in which they were taken.
        value: median of the samples, or the value itself; None only for verdicts unsupported and
            failed.
        low, high: ends of the confidence interval; confidence: its coverage, 0 to 1.
        baseline: for quantity "ratio", what the value is relative to, e.g. "torch/eager".
    Correctness:
        error: distance from the float64 reference; error_norm: its name, e.g. "max_relative".
        tolerance: largest error accepted.
        verdict: one of "ok", "wrong", "unsupported", "failed", "not_compared".
    Place on a curve:
        step: optimizer steps done; epoch: counted from 0; seconds: of training time so far.
    note: free text, e.g. the reason of a failure.

    Raises:
        UserError: a field has the wrong type or an impossible value.
    """

    run_id: str = ""
    level: int
    model: str = ""
    operator: str = ""
    node: str = ""
    phase: str = ""
    shape: str = ""
    dtype: str = ""
    batch: int | None = None
    optimizer: str = ""
    dataset: str = ""
    quantity: str
    unit: str
    backend: str = ""
    mode: str = ""
    version: str = ""
    threads: int | None = None
    ranks: int | None = None
    device: str = ""
    seed: int | None = None
    protocol: str = ""
    warmup: int | None = None
    repeats: int | None = None
    samples: tuple[float, ...] = ()
    value: float | None
    low: float | None = None
    high: float | None = None
    confidence: float | None = None
    baseline: str = ""
    error: float | None = None
    error_norm: str = ""
    tolerance: float | None = None
    verdict: str = "not_compared"
    step: int | None = None
    epoch: int | None = None
    seconds: float | None = None
    note: str = ""

    def __post_init__(self) -> None:
        for name, kind in KINDS.items():
            object.__setattr__(self, name, _typed(name, kind, getattr(self, name)))
        if self.level not in LEVELS:
            raise UserError(f"column 'level': {self.level} is no level; use 0, 1, 2 or 3")
        if not self.quantity or not self.unit:
            raise UserError("columns 'quantity' and 'unit' must not be empty (unit '1' for pure numbers)")
        if self.verdict not in VERDICTS:
            raise UserError(f"column 'verdict': '{self.verdict}' is none of {', '.join(VERDICTS)}")
        if self.value is None and self.verdict not in NO_VALUE_VERDICTS:
            raise UserError(f"column 'value': only {' and '.join(NO_VALUE_VERDICTS)} rows may have none")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise UserError(f"columns 'low' and 'high': {self.low} is above {self.high}")
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise UserError(f"column 'confidence': {self.confidence} is outside of 0 to 1")


KINDS: dict[str, str] = {f.name: str(f.type) for f in fields(Row)}
REQUIRED = ("level", "quantity", "unit", "value")
COLUMNS = ("schema", *KINDS)

# From a schema version to the function that turns its dictionaries into those of the next one.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


def _typed(name: str, kind: str, value: Any) -> Any:
    """Python value of exactly the field's type; numpy scalars become Python numbers."""
    if value is None and kind.endswith("| None"):
        return None
    try:
        if kind == "str":
            if isinstance(value, str):
                return value
        elif kind.startswith("int"):
            if not isinstance(value, bool):
                return operators.index(value)
        elif kind.startswith("float"):
            if not isinstance(value, str | bool):
                return float(value)
        elif not isinstance(value, str):
            return tuple(float(sample) for sample in value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"column '{name}': {value!r} is no {kind}")


def _parsed(name: str, kind: str, value: Any) -> Any:
    """The field's value from CSV text or from a JSON value."""
    if not isinstance(value, str) or kind == "str":
        if kind.startswith("tuple") and isinstance(value, list | tuple):
            return tuple(_parsed(name, "float", sample) for sample in value)
        return value
    if value == "" and kind.endswith("| None"):
        return None
    try:
        if kind.startswith("int"):
            return int(value)
        if kind.startswith("float"):
            return float(value)
        return tuple(float(sample) for sample in value.split(" ")) if value else ()
    except ValueError:
        words = {"i": "whole number", "f": "number", "t": "list of numbers separated by spaces"}
        raise UserError(f"column '{name}': '{value[:60]}' is no {words[kind[0]]}") from None


def from_dict(entry: Mapping[str, Any]) -> Row:
    """Row from a dictionary of CSV texts or JSON values, upgraded from older schema versions.

    Raises:
        UserError: names the column that is unknown, missing or malformed, or the unknown schema
            version.
    """
    entry = dict(entry)
    try:
        version = int(entry.pop("schema"))
    except (KeyError, TypeError, ValueError):
        raise UserError("column 'schema': the schema version is missing or no whole number") from None
    if version > SCHEMA_VERSION:
        raise UserError(
            f"column 'schema': version {version} was written by a newer meta500; this one "
            f"reads up to {SCHEMA_VERSION}: install the newer one"
        )
    for older in range(version, SCHEMA_VERSION):
        if older not in UPGRADES:
            raise UserError(f"column 'schema': version {older} is unknown to this meta500")
        entry = UPGRADES[older](entry)
    for name in entry:
        if name not in KINDS:
            raise UserError(f"column '{name}' is unknown to schema version {SCHEMA_VERSION}")
    for name in REQUIRED:
        if name not in entry:
            raise UserError(f"column '{name}' is missing")
    return Row(**{name: _parsed(name, KINDS[name], value) for name, value in entry.items()})


def to_dict(row: Row) -> dict[str, Any]:
    """Dictionary with the keys :data:`COLUMNS` and values that standard JSON can hold exactly."""

    def plain(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(sample) for sample in value]
        return repr(value) if isinstance(value, float) and not math.isfinite(value) else value

    return {"schema": SCHEMA_VERSION} | {name: plain(getattr(row, name)) for name in KINDS}


def csv_line(cells: Iterable[str]) -> str:
    """One line of CSV with its line end (RFC 4180 quoting, ``\\n`` as the line end)."""
    quoted = (
        '"' + cell.replace('"', '""') + '"' if any(c in cell for c in '",\r\n') else cell for cell in cells
    )
    return ",".join(quoted) + "\n"


def to_csv_line(row: Row) -> str:
    """The row as one line of CSV, in the order of :data:`COLUMNS`."""

    def cell(value: Any) -> str:
        if isinstance(value, tuple):
            return " ".join(map(repr, value))
        return "" if value is None else value if isinstance(value, str) else repr(value)

    return csv_line([str(SCHEMA_VERSION), *(cell(getattr(row, name)) for name in KINDS)])


def to_json_line(row: Row) -> str:
    """The row as one line of JSON with its line end."""
    return json.dumps(to_dict(row), allow_nan=False) + "\n"


def read_csv(path: str | Path, problems: list[str] | None = None) -> list[Row]:
    """Rows of a CSV file, in file order.

    A process that is killed may leave an incomplete last line. It cannot be trusted (a number may
    be cut), so it is an error, unless ``problems`` is given: then it is left out and described
    there.

    Raises:
        UserError: names file, line and column of what is malformed.
    """
    lines = _records(Path(path), problems)
    try:
        header_line, header = next(lines)
    except StopIteration:
        return []
    if "schema" not in header or len(set(header)) != len(header):
        raise UserError(
            f"{path}, line {header_line}: no table of result rows: a header with the column "
            f"'schema' and without repeated columns is expected, found: {','.join(header)[:80]}"
        )
    rows = []
    for number, cells in lines:
        if len(cells) != len(header):
            where = f"column '{header[len(cells)]}' is missing" if len(cells) < len(header) else "too many"
            raise UserError(
                f"{path}, line {number}: {len(cells)} cells, the header has {len(header)}: {where}"
            )
        rows.append(_located(path, number, dict(zip(header, cells, strict=True))))
    return rows


def read_jsonl(path: str | Path) -> list[Row]:
    """Rows of a JSONL file, in file order; blank lines are skipped.

    Raises:
        UserError: names file, line and column of what is malformed.
    """
    rows = []
    # Not str.splitlines, which would also split at characters that may stand inside a JSON string.
    for number, line in enumerate(_text(Path(path)).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}, line {number}, character {error.colno}: no JSON: {error.msg}") from None
        if not isinstance(entry, dict):
            raise UserError(f"{path}, line {number}: a JSON object is expected, found {line[:40]}")
        rows.append(_located(path, number, entry))
    return rows


def to_frame(rows: Iterable[Row]) -> pandas.DataFrame:
    """A pandas frame with one line per row and one column per field, also for no rows at all.

    Whole numbers are nullable ``Int64``, other numbers ``float64`` (absent: NaN); ``samples`` holds
    tuples.
    """
    import pandas

    dtypes = {"i": "Int64", "f": "float64", "s": "object", "t": "object"}
    rows = list(rows)
    columns = {
        name: pandas.Series([getattr(row, name) for row in rows], dtype=dtypes[kind[0]])
        for name, kind in KINDS.items()
    }
    return pandas.DataFrame(columns)


def _located(path: str | Path, number: int, entry: Mapping[str, Any]) -> Row:
    try:
        return from_dict(entry)
    except UserError as error:
        raise UserError(f"{path}, line {number}: {error}") from None


def read_bytes(path: Path) -> bytes:
    """What is in the file, unpacked where it was packed by gzip.

    Raises:
        UserError: it cannot be read, or its end is missing.
    """
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(GZIP) else data
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path}: is damaged: no whole gzip file: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: byte {error.start} is no UTF-8 text") from None


def _records(path: Path, problems: list[str] | None) -> Iterator[tuple[int, Sequence[str]]]:
    """Pairs of first line number and cells, with the header, without an incomplete last line."""
    text = _text(path)
    complete = text[: text.rfind("\n") + 1]
    incomplete = len(complete) < len(text)
    # The cell of the samples may be longer than the csv module's default limit, which is a global
    # setting.
    limit = csv.field_size_limit(sys.maxsize)
    records: list[tuple[int, Sequence[str]]] = []
    number = 1
    try:
        reader = csv.reader(io.StringIO(complete, newline=""), strict=True)
        for cells in reader:
            if cells:
                records.append((number, cells))
            number = reader.line_num + 1
    except csv.Error as error:
        if "unexpected end of data" not in str(error):
            raise UserError(f"{path}, line {number}: no CSV: {error}") from None
        incomplete = True
    finally:
        csv.field_size_limit(limit)
    if incomplete:
        message = f"{path}, line {number}: the last line is incomplete (the run was killed while writing)"
        if problems is None:
            raise UserError(message)
        problems.append(f"{message}; it is left out")
    return iter(records)
