"""Tables of other tools: every cell becomes the right number in the right unit, or one clear error."""

import csv
import io
import math
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.report.foreign import ColumnMap, ValueColumn, read_column_map, read_foreign
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

WIDE = """
[columns]
model = "net"
batch = "bs"
[constants]
level = 1
phase = "inference"
quantity = "time"
unit = "ms"
[words]
OOM = "failed"
"n/a" = "unsupported"
"-" = ""
[[values]]
column = "eager_ms"
backend = "torch"
mode = "eager"
[[values]]
column = "peak"
quantity = "peak_memory"
unit = "MiB"
backend = "torch"
mode = "eager"
"""
KNOWN = {"level": 1, "quantity": "time", "unit": "ms"}


@pytest.fixture
def table(tmp_path):
    """Writes a table, and reads it with a map as TOML text, pairs, or fields of ColumnMap."""

    def read(text, toml="", pairs=(), encoding="utf-8", **fields):
        path = tmp_path / "theirs.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode(encoding))
        if fields:
            return read_foreign(path, ColumnMap(**fields))
        where = None
        if toml:
            where = tmp_path / "map.toml"
            where.write_text(toml, encoding="utf-8")
        return read_foreign(path, read_column_map(where, pairs))

    return read


def simple(table, text, **more):
    """Rows of a table with the columns net and t, in milliseconds."""
    constants = {**KNOWN, **more.pop("constants", {})}
    columns = {"model": "net", "value": "t", **more.pop("columns", {})}
    return table(text, columns=columns, constants=constants, **more)


def test_a_wide_table_has_a_row_per_column_with_its_own_unit(table):
    rows, notes = table("net,bs,eager_ms,peak\na,8,1.5,2\nb,16.0,OOM,n/a\n", WIDE)
    what = {"level": 1, "phase": "inference", "backend": "torch", "mode": "eager"}
    time = {**what, "quantity": "time", "unit": "s"}
    memory = {**what, "quantity": "peak_memory", "unit": "B"}
    assert rows == [
        Row(model="a", batch=8, value=0.0015, **time),
        Row(model="a", batch=8, value=2 * 2**20, **memory),
        Row(model="b", batch=16, value=None, verdict="failed", note="the table says 'OOM'", **time),
        Row(model="b", batch=16, value=None, verdict="unsupported", note="the table says 'n/a'", **memory),
    ]
    assert notes == []


def test_the_example_of_the_documentation_works(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "reports-tables.md").read_text(encoding="utf-8")
    data, toml = (
        re.search(pattern, text, re.S)[1] for pattern in (r"```\n(net;.*?)```", r"```toml\n(.*?)```")
    )
    (tmp_path / "theirs.csv").write_text(data)
    (tmp_path / "map.toml").write_text(toml)
    rows, _ = read_foreign(tmp_path / "theirs.csv", read_column_map(tmp_path / "map.toml"))
    assert [(r.model, r.mode, r.batch, r.samples, r.value, r.verdict) for r in rows] == [
        ("resnet50", "eager", 8, (0.0315, 0.0312), pytest.approx(0.03135), "not_compared"),
        ("resnet50", "compile", 8, (0.0249, 0.0253), pytest.approx(0.0251), "not_compared"),
        ("vgg16", "eager", 8, (), pytest.approx(0.0801), "not_compared"),
        ("vgg16", "compile", 8, (), None, "failed"),
    ]


def test_cells_without_a_number_are_left_out_and_counted(table):
    rows, notes = table("net,bs,eager_ms,peak\na,8,1.5,\nb,8,,-\nc,8,2,\n", WIDE)
    assert [(r.model, r.quantity) for r in rows] == [("a", "time"), ("c", "time")]
    assert [n.partition(": ")[2] for n in notes] == [
        "3 cells of column 'peak' without a number left out",
        "1 cell of column 'eager_ms' without a number left out",
    ]


def test_lines_of_the_same_measurement_are_its_samples(table):
    values = [3.0, 1.0, 2.0, 5.0, 4.0, 7.0]
    text = "net,t,host\n" + "".join(f"a,{v},h{v}\n" for v in values) + "b,9,h\n"
    (a, b), notes = simple(table, text)
    samples = tuple(v / 1000 for v in values)
    found = median_interval(samples)
    assert a.samples == samples and a.repeats == 6
    assert (a.value, a.low, a.high, a.confidence) == (found.value, found.low, found.high, found.confidence)
    assert (b.value, b.samples, b.low) == (0.009, (), None)
    assert "1 of 2 have several" in notes[0] and notes[0].endswith("not used are the columns host")


def test_samples_may_stand_in_one_cell_and_with_them_goes_the_factor(table):
    constants = {**KNOWN, "unit": "s"}
    columns = {"model": "net", "samples": "runs"}
    (row,), _ = table("net,runs\na,1 2  3\n", columns=columns, constants=constants, factor=0.5)
    assert row.samples == (0.5, 1.0, 1.5) and row.value == 1.0 and row.repeats == 3
    assert (row.low, row.high, row.confidence) == (0.5, 1.5, 0.75)


def test_intervals_of_the_tool_are_kept_in_the_same_unit(table):
    columns = {"low": "from", "high": "to"}
    (row,), _ = simple(table, "net,t,from,to\na,2,1,4\n", columns=columns)
    assert (row.value, row.low, row.high) == (0.002, 0.001, 0.004)
    with pytest.raises(UserError, match=r"line 3, column 't': the same measurement is in line 2"):
        simple(table, "net,t,from,to\na,2,1,4\na,2,1,4\n", columns=columns)


def test_factors_of_the_map_and_of_a_column_multiply(table):
    values = (ValueColumn("t", {"unit": "s"}, factor=10.0),)
    rows, _ = table("net,t\na,3\n", columns={"model": "net"}, constants=KNOWN, values=values, factor=2.0)
    assert rows[0].value == 60.0


@pytest.mark.parametrize(
    ("unit", "expected", "base"),
    [
        ("ns", 3e-9, "s"),
        ("µs", 3e-6, "s"),
        ("us", 3e-6, "s"),
        ("min", 180.0, "s"),
        ("kB", 3000.0, "B"),
        ("GiB", 3 * 2.0**30, "B"),
        ("%", 0.03, "1"),
        ("images/s", 3.0, "images/s"),
    ],
)
def test_known_units_are_converted_exactly_and_others_kept(table, unit, expected, base):
    (row,), _ = simple(table, "net,t\na,3\n", constants={"unit": unit})
    assert (row.value, row.unit) == (expected, base)


def test_units_may_stand_in_a_column(table):
    columns = {"model": "net", "value": "t", "unit": "in"}
    rows, _ = table("net,t,in\na,3,ms\nb,2,s\n", columns=columns, constants={"level": 0, "quantity": "time"})
    assert [(r.value, r.unit) for r in rows] == [(0.003, "s"), (2.0, "s")]
    with pytest.raises(UserError, match=r"line 2, column 'in': there is no unit"):
        table("net,t,in\na,3,\n", columns=columns, constants={"level": 0, "quantity": "time"})


def test_pairs_alone_are_enough_and_count_more_than_the_file(table):
    pairs = ["model=net", "value=t=1", "unit==ms", "level==1", "quantity==time", "delimiter==;", "decimal==,"]
    rows, _ = table("net;t=1\na;1,5\n", pairs=pairs)
    assert rows == [Row(level=1, model="a", quantity="time", unit="s", value=0.0015)]
    rows, _ = table(
        "net,bs,eager_ms,peak\na,8,1,\n", WIDE, ["batch==4", "model==X", "dataset=net", "skip==0"]
    )
    assert [(r.model, r.batch, r.dataset) for r in rows] == [("X", 4, "a")]


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_delimiters_line_ends_and_byte_order_marks(table, delimiter, end, encoding):
    text = end.join([delimiter.join(cells) for cells in (("t", "net"), ("2", "é"), ("", ""))])
    (row,), _ = simple(table, text.encode(encoding))
    assert (row.model, row.value) == ("é", 0.002)


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiters_are_found_where_cells_stand_in_quotes(table, delimiter):
    (row,), _ = simple(table, f'"net"{delimiter}"t"\n"a, ; | b"{delimiter}"2"\n')
    assert (row.model, row.value) == ("a, ; | b", 0.002)
    with pytest.raises(UserError, match="no column 't', which the map of columns names; there are: net, s"):
        simple(table, f'"net"{delimiter}"s"\n"a"{delimiter}"2"\n')


def test_long_cells_are_read_with_any_delimiter(table):
    (row,), _ = simple(table, f"net;t\n{'a' * 200_000};2\n")
    assert len(row.model) == 200_000


def test_lines_that_all_failed_are_one_measurement_without_a_number(table):
    rows, notes = simple(table, "net,t\na,OOM\na,OOM\nb,1\nb,2\n", words={"OOM": "failed"})
    assert [(r.model, r.value, r.samples, r.verdict) for r in rows] == [
        ("a", None, (), "failed"),
        ("b", 0.0015, (0.001, 0.002), "not_compared"),
    ]
    assert "2 of 2 have several" in notes[0]


def test_other_encodings_must_be_named(table):
    data = "net,t\né,2\n".encode("cp1252")
    with pytest.raises(UserError, match=r"theirs.csv: byte 6 is no text in utf-8: .*encoding = 'cp1252'"):
        simple(table, data)


def test_an_encoding_that_is_named_is_used(tmp_path):
    path = tmp_path / "theirs.csv"
    path.write_bytes("net,t\né,2\n".encode("cp1252"))
    columns = ColumnMap(columns={"model": "net", "value": "t"}, constants=KNOWN, encoding="cp1252")
    assert read_foreign(path, columns)[0][0].model == "é"


def test_lines_before_the_header_quoted_cells_and_delimiters_at_the_end(table):
    text = 'Report\n\nnet;t;\n"a;""b""";2;\n'
    (row,), _ = simple(table, text, skip=2)
    assert (row.model, row.value) == ('a;"b"', 0.002)


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([".", ","]))
def test_numbers_are_read_exactly_with_either_decimal_mark(tmp_path_factory, number, decimal):
    path = tmp_path_factory.mktemp("number") / "theirs.csv"
    path.write_text(f"net;t\na;{repr(number).replace('.', decimal)}\n")
    columns = ColumnMap(
        columns={"model": "net", "value": "t"}, constants={**KNOWN, "unit": "s"}, decimal=decimal
    )
    assert read_foreign(path, columns)[0][0].value == number


@given(st.integers(-(10**12), 10**12))
def test_thousands_may_be_grouped(tmp_path_factory, number):
    path = tmp_path_factory.mktemp("number") / "theirs.csv"
    path.write_text(f"net;t\na;{format(number, ',').replace(',', '.')},5\n")
    columns = ColumnMap(
        columns={"model": "net", "value": "t"}, constants={**KNOWN, "unit": "s"}, decimal=",", thousands="."
    )
    # Halves of numbers this small are exact.
    assert read_foreign(path, columns)[0][0].value == number + (0.5 if number >= 0 else -0.5)


def test_numbers_that_are_not_finite_are_results(table):
    rows, _ = simple(table, "net,t\na,NaN\nb,inf\nc,-Inf\n")
    assert math.isnan(rows[0].value) and [r.value for r in rows[1:]] == [math.inf, -math.inf]
    with pytest.raises(UserError, match=r"line 3, column 't': samples: sample 1 is NaN"):
        simple(table, "net,t\na,1\na,NaN\n")


@pytest.mark.parametrize(
    ("cell", "hint"),
    [
        ("1.5ms", "say the unit 'ms' in the map"),
        ('"1,5"', "decimal = ','"),
        ("killed", r"\[words\] 'killed' = 'failed'"),
        ("1_000", r"\[words\]"),
        ("٣", "is no number"),
        ("0x10", "is no number"),
    ],
)
def test_what_is_no_number_is_an_error_that_says_where_and_what_to_do(table, cell, hint):
    with pytest.raises(UserError, match=rf"theirs.csv, line 3, column 't': .*{hint}"):
        simple(table, f"net,t\na,1\nb,{cell}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        (",,,\n,,,\n", "has only empty cells"),
        ('"net,t\na,1\n', "line 1: no CSV"),
        ("net,t\n", "there are no measurements in it"),
        ("net,t\na,\n", "no measurements in it; .*1 cell of column 't'"),
        ("net,time\na,1\n", "no column 't', which the map of columns names; there are: net, time"),
        ("just text\nnet,t\n", "no column 'net'.*say skip = N"),
        ("net,t,t\na,1,2\n", "column 't' is there 2 times"),
        ("net,t\na,1,2\n", "line 2: 3 cells, the header has 2"),
        ("net,t\na,1\n\nb\n", "line 4: 1 cells, the header has 2"),
        ('net,t\na,"1\n', "line 2: no CSV"),
        ('net,t\na,"1"2\n', "line 2: no CSV"),
    ],
)
def test_files_that_do_not_fit_are_named(table, text, message):
    with pytest.raises(UserError, match=rf"theirs.csv.*{message}"):
        simple(table, text)


def test_fields_are_checked_line_by_line(table):
    for columns, text, message in (
        (
            {"batch": "b"},
            "net,t,b\na,1,2.5\n",
            "line 2, column 'b': '2.5' is no whole number, which batch needs",
        ),
        ({"verdict": "b"}, "net,t,b\na,1,fine\n", "line 2: column 'verdict': 'fine' is none of"),
        ({"level": "b"}, "net,t,b\na,1,7\n", "line 2: column 'level': 7 is no level"),
    ):
        constants = {k: v for k, v in KNOWN.items() if k not in columns}
        with pytest.raises(UserError, match=message):
            table(text, columns={"model": "net", "value": "t", **columns}, constants=constants)


def test_empty_cells_of_other_fields_are_absent(table):
    columns = {"batch": "b", "verdict": "v", "error": "e"}
    (row,), _ = simple(table, "net,t,b,v,e\n,1,,,\n", columns=columns)
    assert (row.model, row.batch, row.verdict, row.error) == ("", None, "not_compared", None)


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("colums = 1", "'colums' is unknown: there are the options"),
        ("x = [", "is no TOML"),
        ("columns = 1", r"'columns' must be a table, such as \[columns\]"),
        ("[columns]\nmodel = 3", "columns: model = 3: the name of a column"),
        ("values = 3", "'values' must be a list of tables"),
        ("[[values]]\nunit = 's'", r"an entry of \[\[values\]\] has no column"),
        ("[columns]\nmod = 'a'", "unknown field of result rows 'mod'. Did you mean 'mode'"),
        ("[columns]\nrun_id = 'a'", "unknown field of result rows 'run_id'"),
        ("[columns]\nmodel = 'a'\n[constants]\nmodel = 'b'", "'model' is both the column 'a' and a constant"),
        ("[columns]\nmodel = 'a'", r"say where the values are: .* found none"),
        ("[columns]\nvalue = 'a'\nsamples = 'b'", "found value, samples"),
        ("[columns]\nvalue = 'a'\n[[values]]\ncolumn = 'b'", r"found value and \[\[values\]\]"),
        ("[columns]\nvalue = 'a'", "values column 'a' has no unit: say for example unit = 'ms'"),
        ("[columns]\nvalue = 'a'\n[constants]\nunit = 's'", "has no level"),
        ("[columns]\nvalue = 'a'\n[constants]\nunit = 's'\nlevel = 1", "has no quantity"),
        ("[constants]\nlevel = '1'", "level = '1': a whole number is expected"),
        ("[constants]\nmodel = 1", "model = 1: a text in quotes is expected"),
        ("[constants]\nvalue = 1", "'value' cannot be a constant"),
        ("factor = 0", "factor 0: a positive number"),
        ("factor = '2'", "factor '2': a positive number"),
        ("decimal = ';'", "decimal ';': say"),
        ("thousands = '.'", "thousands '.'"),
        ("delimiter = ', '", "delimiter ', ': one character"),
        (
            "thousands = ' '\n[columns]\nsamples = 'a'\n[constants]\nlevel = 1",
            r"thousands ' ': blanks stand between",
        ),
        ("skip = -1", "skip -1"),
        ("encoding = 'nonsense'", "encoding 'nonsense' is unknown"),
        ("[words]\nOOM = 'dead'", "words: 'OOM' = 'dead'"),
    ],
)
def test_maps_that_are_wrong_are_errors_that_name_the_file(tmp_path, toml, message):
    path = tmp_path / "map.toml"
    path.write_text(toml)
    with pytest.raises(UserError, match=rf"map.toml.*{message}"):
        read_column_map(path)


@pytest.mark.parametrize(
    ("pair", "message"),
    [
        ("model", "say field=column"),
        ("=x", "say field=column"),
        ("model=", "say field=column"),
        ("model==", "say field=column"),
        ("mod=x", "Did you mean 'mode'"),
        ("level==one", "'one' is no whole number"),
        ("factor==much", "'much' is no number"),
    ],
)
def test_pairs_that_are_wrong_are_named(pair, message):
    with pytest.raises(UserError, match=message):
        read_column_map(None, [pair])


def test_a_map_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match=r"none.toml: cannot be read"):
        read_column_map(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes("é".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin.toml: byte 0 is no UTF-8"):
        read_column_map(tmp_path / "latin.toml")


@given(
    st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), min_size=1, max_size=5
    )
)
def test_names_survive_whatever_is_in_them(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("names") / "theirs.csv"
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["net", "t", "i"])
    writer.writerows([name, 1, i] for i, name in enumerate(names))
    path.write_bytes(text.getvalue().encode())
    columns = ColumnMap(columns={"model": "net", "value": "t", "seed": "i"}, constants=KNOWN)
    assert [row.model for row in read_foreign(path, columns)[0]] == [name.strip() for name in names]
