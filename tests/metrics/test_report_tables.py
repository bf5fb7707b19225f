"""Tables of reports: every row is in one of them, and what it says there follows from it."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.metrics.report.cells import Cell
from meta500.metrics.report.sources import Source
from meta500.metrics.report.tables import tables_of
from meta500.metrics.rows import Row

NAN = math.nan


def source(rows, name="run", info=None, problems=()):
    return Source(name, Path(name), tuple(rows), info, f"meta500 bench --out {name}", tuple(problems))


def tables(*sources):
    return {table.key: table for table in tables_of(sources)}


def texts(table):
    return [[cell.text for cell in row] for row in table.rows]


def headings(table):
    return [column.heading for column in table.columns]


def time_row(node, backend, value, **more):
    what = {
        "level": 0,
        "operator": "Conv",
        "phase": "forward",
        "quantity": "time",
        "unit": "s",
        "dtype": "float32",
    }
    return Row(**{**what, "node": node, "backend": backend, "value": value, **more})


def test_times_stand_by_what_was_measured_and_who_ran_it():
    interval = {"low": 0.0018, "high": 0.0023, "confidence": 0.97, "samples": (0.002,) * 7}
    rows = [
        time_row("a", "torch", 0.002, mode="eager", **interval),
        time_row("a", "numpy", 0.5, verdict="ok"),
        time_row("b", "torch", None, mode="eager", verdict="failed", note="out of memory"),
        time_row("b", "numpy", 0.004, verdict="wrong"),
    ]
    found = tables(source(rows))
    table = found["time-0-forward"]
    assert table.title == "Operators: forward, time"
    assert headings(table) == ["node", "torch eager (ms)", "numpy (ms)"]
    assert texts(table) == [["a", "2.00 [1.80, 2.30]", "500"], ["b", "failed", "wrong"]]
    assert table.rows[0][1] == Cell("2.00 [1.80, 2.30]", 2.0, 1.8, pytest.approx(2.3))
    assert table.note == (
        "In all lines: Conv, float32; medians of 7 samples; in brackets the 97 % confidence interval."
    )
    refused = found["no-results"]
    assert headings(refused)[-3:] == ["verdict", "reason", "rows"]
    assert texts(refused)[0][-3:] == ["failed", "out of memory", "1"]


def test_many_series_stand_in_lines():
    rows = [time_row("a", f"backend{i}", 1.0 + i) for i in range(7)]
    table = tables(source(rows))["time-0-forward"]
    assert headings(table) == ["node", "by", "time (s)"]
    assert texts(table)[6] == ["a", "backend6", "7"]


def test_measurements_that_are_repeated_are_all_there():
    rows = [time_row("a", "torch", value) for value in (1.0, 2.0, 3.0)] + [time_row("a", "numpy", 4.0)]
    table = tables(source(rows))["time-0-forward"]
    assert texts(table) == [["a", "1", "4"], ["a", "2", ""], ["a", "3", ""]]
    assert "further measurements of the same" in table.note


def test_runs_tell_measurements_apart_and_are_listed():
    info = {
        "status": "finished",
        "started": "2026-01-02T03:04:05+00:00",
        "environment": {
            "cpu": {"model": "one CPU"},
            "gpus": [{"name": "a GPU"}],
            "versions": {"meta500": "9"},
        },
    }
    rows = [time_row("a", "torch", 1.0, verdict="ok"), time_row("b", "torch", 3.0)]
    other = [time_row("a", "torch", 2.0, run_id="x"), time_row("b", "torch", 4.0, run_id="y")]
    found = tables(source(rows, "first", info), source(other, "second", problems=["it was killed"]))
    assert headings(found["time-0-forward"]) == [
        "node",
        "torch first (s)",
        "torch second x (s)",
        "torch second y (s)",
    ]
    assert texts(found["time-0-forward"]) == [["a", "1", "2", ""], ["b", "3", "", "4"]]
    runs = found["runs"]
    assert texts(runs)[0] == [
        *("first", "finished", "2026-01-02T03:04:05+00:00", "one CPU, a GPU", "9", "2", "1", "1"),
        "meta500 bench --out first",
    ]
    assert runs.note == "it was killed"
    assert rows[0].run_id == ""


def test_ratios_have_a_table_per_baseline_and_aspects_are_apart():
    ratio = {
        "level": 1,
        "model": "net",
        "phase": "inference",
        "quantity": "ratio",
        "unit": "1",
        "backend": "numpy",
    }
    rows = [
        Row(**ratio, value=2.0, baseline="torch eager"),
        Row(**ratio, value=3.0, baseline="onnxruntime"),
        Row(**ratio, value=4.0, baseline="torch eager", protocol="interleaved, overhead"),
    ]
    found = tables(source(rows))
    assert found["ratio-1-inference-torch-eager"].title == "Networks: inference, ratio to torch eager"
    assert [texts(t)[0][-1] for k, t in found.items() if k.startswith("ratio")] == ["2", "3", "4"]
    assert "ratio-1-inference-overhead-torch-eager" in found


def test_errors_are_shown_once_with_tolerance_and_verdict():
    judged = {"error": 2e-6, "error_norm": "max_relative", "tolerance": 1e-5, "verdict": "ok"}
    rows = [
        time_row("a", "torch", 1.0, **judged, protocol="interleaved"),
        time_row("a", "torch", 2e-6, **{**judged, "quantity": "error", "unit": "1"}),
        time_row("b", "torch", 3e-5, **{**judged, "quantity": "max_relative", "unit": "1", "error": 3e-5}),
        time_row("b", "torch", 12.0, quantity="ulp", unit="ULP"),
    ]
    table = tables(source(rows))["errors-0"]
    assert headings(table)[-5:] == ["unit", "error", "tolerance", "error / tolerance", "verdict"]
    assert [line[-5:] for line in texts(table)] == [
        ["", "2.0e-6", "1.0e-5", "0.20", "ok"],
        # The row says "ok", its numbers do not.
        ["", "3.0e-5", "1.0e-5", "3", "wrong"],
        ["ULP", "12", "", "", "not compared"],
    ]


def training_rows(accuracies, second=2.0, **what):
    what = {
        "level": 2,
        "model": "mlp_2",
        "dataset": "digits",
        "optimizer": "adam",
        "backend": "torch",
        **what,
    }
    rows = []
    for epoch, accuracy in enumerate(accuracies):
        step = 10 * (epoch + 1)
        place = {"step": step, "epoch": epoch, "seconds": second * (epoch + 1)}
        losses = tuple(1.0 / (step - i) for i in range(9, -1, -1))
        seen = float(64 * step)
        for phase, quantity, unit, value, samples in (
            ("training_step", "loss", "1", losses[-1], losses),
            ("training_set", "loss", "1", 0.5 / (epoch + 1), ()),
            ("training_set", "samples_seen", "samples", seen, ()),
            ("test_set", "accuracy", "1", accuracy, ()),
        ):
            rows.append(
                Row(**what, **place, phase=phase, quantity=quantity, unit=unit, value=value, samples=samples)
            )
    rows.append(Row(**what, phase="run", quantity="wall_time", unit="s", value=9.0, step=step, seconds=1.0))
    return rows


def test_training_runs_tell_best_and_last_and_the_way_to_what_all_reach():
    first = source(training_rows([0.5, 0.9, 0.8]), "first")
    second = source(training_rows([0.6, 0.7], second=0.5, optimizer="sgd"), "second")
    found = tables(first, second)
    table = found["training"]
    columns = headings(table)
    lines = [dict(zip(columns, line, strict=True)) for line in texts(table)]
    assert columns[:2] == ["run", "optimizer"]
    assert lines[0] == {
        **{"run": "first", "optimizer": "adam", "epochs": "3", "steps": "30", "samples": "1920"},
        **{"training time (s)": "6", "training loss": "0.1667", "last accuracy (%)": "80"},
        **{
            "best accuracy (%)": "90",
            "target (%)": "70",
            "time to target (s)": "4",
            "samples to target": "1280",
        },
    }
    assert (lines[1]["target (%)"], lines[1]["time to target (s)"]) == ("70", "1")
    assert table.note.startswith("In all lines: mlp_2, digits, torch; losses are the last ones")
    assert texts(found["training-totals"]) == [["first", "adam", "9"], ["second", "sgd", "9"]]
    curve = texts(found["training-curves"])[0]
    assert curve == ["first", "training step", "loss", "30", "1", "0.03333", "0.03333", "1", ""]


def test_a_target_that_was_given_counts_and_may_not_be_reached():
    info = {"setup": {"target_accuracy": 0.95}}
    table = tables(source(training_rows([0.5, 0.9]), "run", info))["training"]
    line = dict(zip(headings(table), texts(table)[0], strict=True))
    assert (line["target (%)"], line["time to target (s)"]) == ("95", "not reached")
    alone = tables(source(training_rows([0.5, NAN])))["training"]
    assert "target (%)" not in headings(alone)
    assert dict(zip(headings(alone), texts(alone)[0], strict=True))["best accuracy (%)"] == "50"


def test_several_training_runs_of_one_source_are_numbered():
    rows = training_rows([0.5]) + training_rows([0.6], optimizer="sgd")
    assert [line[0] for line in texts(tables(source(rows))["training"])] == ["run", "run#2"]


def test_scaling_has_efficiencies():
    what = {
        "level": 3,
        "model": "net",
        "operator": "allreduce",
        "phase": "training_step",
        "unit": "s",
        "backend": "torch",
    }
    rows = [
        Row(
            **what,
            quantity="step_time",
            ranks=1,
            value=0.02,
            low=0.019,
            high=0.021,
            protocol="strong, interleaved",
        ),
        Row(**what, quantity="step_time", ranks=2, value=0.0125, protocol="strong, interleaved"),
        Row(**what, quantity="predicted_step_time", ranks=4, value=0.01, protocol="strong, predicted"),
        Row(**what, quantity="step_time", ranks=1, value=0.02, protocol="weak, interleaved"),
        Row(**what, quantity="predicted_step_time", ranks=8, value=0.025, protocol="weak, predicted"),
    ]
    found = tables(source(rows))
    table = found["scaling"]
    chosen = [
        headings(table).index(name)
        for name in ("scaling", "ranks", "step time (ms)", "predicted (ms)", "efficiency (%)")
    ]
    assert [[line[i] for i in chosen] for line in texts(table)] == [
        ["strong", "1", "20.0 [19.0, 21.0]", "", "100"],
        ["strong", "2", "12.50", "", "80"],
        ["strong", "4", "", "10", "50"],
        ["weak", "1", "20", "", "100"],
        ["weak", "8", "", "25", "80"],
    ]
    assert {line[-1] for line in texts(found["contents"])} == {"Scaling"}


def test_quantities_of_few_rows_are_put_together():
    what = {"level": 3, "phase": "model", "model": "net"}
    rows = [
        Row(**what, quantity="gamma", unit="s/B", value=2e-10),
        Row(**what, quantity="wake", unit="s", value=5e-4),
        *[Row(**what, quantity="alpha", unit="s", value=1e-3, operator=f"from {i} B") for i in range(4)],
    ]
    found = tables(source(rows))
    assert texts(found["further-3-model"]) == [["gamma", "2.000e-10", "s/B"], ["wake", "500", "µs"]]
    assert len(found["alpha-3-model"].rows) == 4


def test_keys_are_unique_also_where_titles_are_nearly_the_same():
    rows = [
        time_row("a", "torch", 1.0, phase=phase) for phase in ("forward", "Forward", "for ward", "forward!")
    ]
    keys = [table.key for table in tables_of([source(rows)])]
    assert len(set(keys)) == len(keys)
    assert {"time-0-forward", "time-0-forward-2", "time-0-forward-3"} < set(keys)


def test_sources_without_rows_are_still_listed():
    (table,) = tables_of([source([])])
    assert (table.key, texts(table)) == ("runs", [["run", "0", "meta500 bench --out run"]])


words = st.sampled_from(["", "a", "b", "forward", "training_step", "run", "test_set", "x|y"])
numbers = st.one_of(st.none(), st.integers(0, 3))
some_rows = st.builds(
    Row,
    level=st.integers(0, 3),
    model=words,
    operator=words,
    node=words,
    phase=words,
    backend=words,
    mode=words,
    protocol=st.sampled_from(["", "weak, x", "strong, predicted", "interleaved"]),
    quantity=st.sampled_from(
        [
            "time",
            "ratio",
            "error",
            "verdict",
            "loss",
            "accuracy",
            "samples_seen",
            "step_time",
            "predicted_step_time",
            "other",
        ]
    ),
    unit=st.sampled_from(["s", "1", "B"]),
    value=st.floats(allow_nan=True),
    verdict=st.sampled_from(["ok", "wrong", "failed", "not_compared"]),
    step=numbers,
    epoch=numbers,
    ranks=st.one_of(st.none(), st.integers(1, 4)),
    seconds=st.one_of(st.none(), st.floats(0, 10)),
    samples=st.sampled_from([(), (1.0,), (1.0, NAN, 3.0)]),
    error=st.one_of(st.none(), st.floats(0, 1)),
    tolerance=st.one_of(st.none(), st.floats(0, 1)),
)


@given(st.lists(some_rows, max_size=25), st.lists(some_rows, max_size=5))
def test_every_row_is_in_a_table_and_all_are_counted(one, two):
    found = tables_of([source(one, "one"), source(two, "two")])
    assert len({table.key for table in found}) == len(found)
    if not one and not two:
        assert [table.key for table in found] == ["runs"]
        return
    contents = found[-1]
    titles = {table.title for table in found[:-1]}
    assert sum(row[3].value for row in contents.rows) == len(one) + len(two)
    for row in contents.rows:
        # A row that no table showed would be named "not shown".
        assert set(row[4].text.split("; ")) <= titles


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), st.floats(0, 1)), min_size=1, max_size=30
    )
)
def test_every_value_of_a_time_is_in_its_table(measured):
    rows = [time_row(node, backend, value) for node, backend, value in measured]
    table = tables(source(rows))["time-0-forward"]
    factor = {"s": 1, "ms": 1e3, "µs": 1e6, "ns": 1e9}[next(c.unit for c in table.columns if c.numeric)]
    shown = sorted(cell.value for row in table.rows for cell in row if cell.value is not None)
    assert shown == pytest.approx(sorted(value * factor for _, _, value in measured))
