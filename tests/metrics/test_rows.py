"""Result rows survive writing and reading exactly, and malformed files are named to the cell."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics import rows as module
from meta500.metrics.rows import (
    COLUMNS,
    KINDS,
    SCHEMA_VERSION,
    Row,
    csv_line,
    from_dict,
    read_csv,
    read_jsonl,
    to_csv_line,
    to_dict,
    to_frame,
    to_json_line,
)

floats = st.floats(allow_nan=False)
texts = st.text(st.characters(exclude_categories=("Cs",)))
VALUES = {
    "str": texts,
    "int | None": st.none() | st.integers(-(2**70), 2**70),
    "float | None": st.none() | floats,
    "tuple[float, ...]": st.lists(floats).map(tuple),
}
FREE = {
    name: VALUES[kind]
    for name, kind in KINDS.items()
    if name not in ("level", "quantity", "unit", "value", "low", "high", "confidence", "verdict")
}


@st.composite
def any_row(draw):
    low, high = sorted((draw(floats), draw(floats)))
    return Row(
        level=draw(st.integers(0, 3)),
        quantity=draw(st.text("ab,\"\n\r;'", min_size=1)),
        unit="s",
        value=draw(floats),
        low=low,
        high=high,
        confidence=draw(st.floats(0, 1)),
        verdict=draw(st.sampled_from(module.VERDICTS)),
        **draw(st.fixed_dictionaries(FREE)),
    )


def a_row(**fields):
    return Row(**{"level": 0, "quantity": "time", "unit": "s", "value": 1.5, **fields})


def write(path, *lines):
    path.write_bytes("".join(lines).encode())
    return path


@given(st.lists(any_row(), max_size=3))
def test_csv_and_jsonl_round_trip_is_exact(tmp_path_factory, table):
    folder = tmp_path_factory.mktemp("rows")
    written = write(folder / "a.csv", csv_line(COLUMNS), *map(to_csv_line, table))
    assert read_csv(written) == table
    assert read_jsonl(write(folder / "a.jsonl", *map(to_json_line, table))) == table


def test_not_a_number_and_signed_zero_survive(tmp_path):
    row = a_row(value=float("nan"), samples=(-0.0, math.inf, 5e-324, float("nan")), error=-math.inf)
    for back in (
        read_csv(write(tmp_path / "a.csv", csv_line(COLUMNS), to_csv_line(row)))[0],
        read_jsonl(write(tmp_path / "a.jsonl", to_json_line(row)))[0],
    ):
        assert math.isnan(back.value)
        assert math.copysign(1, back.samples[0]) == -1
        assert back.samples[1:3] == (math.inf, 5e-324)
        assert math.isnan(back.samples[3])
        assert back.error == -math.inf


def test_json_lines_are_standard_json():
    line = to_json_line(a_row(value=float("inf")))
    entry = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert entry["schema"] == SCHEMA_VERSION
    assert entry["value"] == "inf"
    assert tuple(entry) == COLUMNS


def test_numpy_numbers_become_exact_python_numbers():
    import numpy as np

    row = a_row(value=np.float32(0.1), batch=np.int64(8), samples=np.array([0.1, 0.2], np.float32))
    assert type(row.value) is float
    assert row.value == float(np.float32(0.1))
    assert type(row.batch) is int
    assert row.samples == (float(np.float32(0.1)), float(np.float32(0.2)))


def test_more_samples_than_the_csv_modules_limit(tmp_path):
    import csv

    limit = csv.field_size_limit()
    row = a_row(samples=tuple(i / 7 for i in range(20_000)))
    line = to_csv_line(row)
    assert len(line) > limit
    assert read_csv(write(tmp_path / "a.csv", csv_line(COLUMNS), line)) == [row]
    assert csv.field_size_limit() == limit


@pytest.mark.parametrize(
    ("fields", "column"),
    [
        ({"level": 4}, "level"),
        ({"level": 1.0}, "level"),
        ({"level": True}, "level"),
        ({"level": None}, "level"),
        ({"batch": 2.5}, "batch"),
        ({"value": "1"}, "value"),
        ({"value": None}, "value"),
        ({"value": None, "verdict": "ok"}, "value"),
        ({"unit": ""}, "unit"),
        ({"quantity": ""}, "quantity"),
        ({"model": None}, "model"),
        ({"model": 3}, "model"),
        ({"samples": 1.0}, "samples"),
        ({"samples": "1"}, "samples"),
        ({"samples": ("a",)}, "samples"),
        ({"low": 2.0, "high": 1.0}, "low"),
        ({"confidence": 95}, "confidence"),
        ({"verdict": "good"}, "verdict"),
    ],
)
def test_impossible_fields_are_refused(fields, column):
    with pytest.raises(UserError, match=f"'{column}'"):
        a_row(**fields)


def test_only_failures_may_have_no_value():
    for verdict in module.NO_VALUE_VERDICTS:
        assert a_row(value=None, verdict=verdict).value is None


@pytest.mark.parametrize(
    ("cell", "bad", "words"),
    [
        ("value", "fast", "column 'value': 'fast' is no number"),
        ("batch", "2.5", "column 'batch': '2.5' is no whole number"),
        ("samples", "1 2 x", "column 'samples': '1 2 x' is no list of numbers"),
        ("samples", "1  2", "column 'samples'"),
        ("level", "7", "column 'level': 7 is no level"),
        ("level", "", "column 'level': '' is no whole number"),
        ("schema", "", "column 'schema'"),
        ("schema", "2", "newer meta500"),
        ("schema", "0", "version 0 is unknown"),
    ],
)
def test_malformed_cell_names_file_line_and_column(tmp_path, cell, bad, words):
    good = to_csv_line(a_row(note="two\nlines"))
    cells = to_csv_line(a_row()).rstrip("\n").split(",")
    cells[COLUMNS.index(cell)] = bad
    path = write(tmp_path / "a.csv", csv_line(COLUMNS), good, csv_line(cells))
    # The note of the first row takes two lines, so the second row begins in line 4.
    with pytest.raises(UserError, match=words) as caught:
        read_csv(path)
    assert str(caught.value).startswith(f"{path}, line 4: column")


def test_malformed_tables(tmp_path):
    path = tmp_path / "a.csv"
    for content, words in [
        ("a,b\n1,2\n", "line 1: no table of result rows"),
        ("schema,schema\n", "repeated columns"),
        ("schema,level\n1,0,3\n", "line 2: 3 cells, the header has 2: too many"),
        ("schema,level\n1\n", "line 2: 1 cells, the header has 2: column 'level' is missing"),
        ("schema,colour\n1,red\n", "line 2: column 'colour' is unknown"),
        ("schema,level,quantity,unit\n1,0,time,s\n", "line 2: column 'value' is missing"),
        ('schema,level\n1,"0"x\n', "line 2: no CSV"),
    ]:
        with pytest.raises(UserError, match=words):
            read_csv(write(path, content))
    path.write_bytes(b"schema\n\xff\xfe\n")
    with pytest.raises(UserError, match="byte 7 is no UTF-8"):
        read_csv(path)
    with pytest.raises(UserError, match="cannot be read: No such file"):
        read_csv(tmp_path / "absent.csv")


def test_malformed_jsonl(tmp_path):
    path = tmp_path / "a.jsonl"
    good = to_json_line(a_row())
    for line, words in [
        ("{", "line 3, character 2: no JSON"),
        ("[1]", "line 3: a JSON object is expected"),
        ('{"schema": 1, "level": 0}', "line 3: column 'quantity' is missing"),
    ]:
        with pytest.raises(UserError, match=words):
            read_jsonl(write(path, good, "\n", line))


def test_every_cut_of_the_last_line_is_noticed(tmp_path):
    first, second = (
        a_row(note="first"),
        a_row(note='with "quotes",\nand lines\n', samples=(1.0, 2.0)),
    )
    whole = (csv_line(COLUMNS) + to_csv_line(first)).encode()
    last = to_csv_line(second).encode()
    path = tmp_path / "a.csv"
    for cut in range(1, len(last)):
        path.write_bytes(whole + last[:cut])
        problems = []
        assert read_csv(path, problems) == [first]
        assert len(problems) == 1
        assert f"{path}, line 3: the last line is incomplete" in problems[0]
    with pytest.raises(UserError, match="line 3: the last line is incomplete"):
        read_csv(path)
    path.write_bytes(whole + last)
    assert read_csv(path) == [first, second]


def test_columns_may_be_missing_or_in_another_order(tmp_path):
    path = write(tmp_path / "a.csv", "unit,value,quantity,level,schema\ns,2.0,time,1,1\n")
    assert read_csv(path) == [Row(level=1, quantity="time", unit="s", value=2.0)]


def test_old_rows_are_upgraded_step_by_step(monkeypatch):
    def without(entry, name):
        return {key: value for key, value in entry.items() if key != name}

    def to_version_0(entry):
        return {**without(entry, "duration"), "milliseconds": entry["duration"]}

    def to_version_1(entry):
        seconds = entry["milliseconds"] / 1000
        return {**without(entry, "milliseconds"), "value": seconds, "unit": "s"}

    monkeypatch.setattr(module, "UPGRADES", {-1: to_version_0, 0: to_version_1})
    original = {"schema": -1, "level": 0, "quantity": "time", "duration": 250}
    assert from_dict(original) == Row(level=0, quantity="time", unit="s", value=0.25)
    assert original["duration"] == 250


def test_dictionary_round_trip():
    row = a_row(samples=(0.1, 0.2), threads=2, low=0.1, high=0.2, confidence=0.5)
    assert from_dict(to_dict(row)) == row


def test_frame_has_numbers_and_tuples():
    import numpy as np

    frame = to_frame([a_row(batch=8, samples=(1.0, 2.0)), a_row(value=2.5)])
    assert list(frame.columns) == list(KINDS)
    assert frame["value"].dtype == np.float64
    assert frame["value"].tolist() == [1.5, 2.5]
    assert frame["batch"].dtype == "Int64"
    assert frame["batch"].isna().tolist() == [False, True]
    assert frame["samples"].tolist() == [(1.0, 2.0), ()]
    assert np.isnan(frame["low"]).all()
    empty = to_frame([])
    assert len(empty) == 0
    assert empty["value"].dtype == np.float64
