"""The Level 0 runner: which rows a run writes, what it judges wrong, and what survives a failure."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from meta500.backends.network import register
from meta500.backends.numpy.network import NumpyNetwork
from meta500.benchmarks.operators import runner
from meta500.benchmarks.operators.case_runner import measure_case
from meta500.benchmarks.operators.plan import Plan, chosen_cases
from meta500.benchmarks.operators.runner import run
from meta500.benchmarks.operators.timing import backend_options
from meta500.errors import UserError
from meta500.metrics.plots import plots_from_run
from meta500.metrics.run import RunFolder


class Off(NumpyNetwork):
    """Every result is 30 % too large: more than rounding explains, also in float16."""

    backend = "off"

    def inference(self, *arguments, **options):
        found = super().inference(*arguments, **options)
        return {name: (value * 1.3).astype(value.dtype) for name, value in found.items()}


@pytest.fixture
def off(monkeypatch):
    from meta500.backends import network

    monkeypatch.setattr(network, "_BACKENDS", dict(network._BACKENDS))
    monkeypatch.setitem(sys.modules, "off_backend", SimpleNamespace(Off=Off))
    register("off", "off_backend:Off")
    return "off"


def rows_of(plan, precision=None):
    rows = []
    (case,) = chosen_cases(plan)
    measure_case(plan, case, precision, None, rows.append)
    return rows


def test_a_run_writes_rows_summary_and_plots(tmp_path, capsys):
    plan = Plan(operators=("Softmax",), patterns=("softmax_axis_?",), time=False, gradients=True)
    assert run(plan, out=tmp_path / "run", quiet=True) is False
    folder = RunFolder.open(tmp_path / "run")
    assert folder.status == "finished"
    found = {(r.node, r.backend, r.quantity) for r in folder.rows}
    for case in ("softmax_axis_0", "softmax_axis_1", "softmax_axis_2"):
        for backend in ("numpy", "torch"):
            for quantity in (
                "verdict",
                "max_absolute",
                "mean_absolute",
                "max_relative",
                "mean_relative",
                "ulp",
            ):
                assert (case, backend, quantity) in found
            assert (case, backend, "gradient_error") in found
    assert all(r.verdict == "ok" for r in folder.rows)
    gradients = [r for r in folder.rows if r.quantity == "gradient_error"]
    assert all(r.dtype == "float64" and r.value < 1e-6 for r in gradients)
    assert str(tmp_path / "run") in capsys.readouterr().out


def test_tables_can_be_read_with_pandas(tmp_path):
    plan = Plan(operators=("Relu", "Elu"), patterns=("relu", "elu"), time=False)
    run(plan, out=tmp_path / "run", quiet=True)
    rows = pandas.read_csv(tmp_path / "run" / "rows.csv")
    assert rows[rows.quantity == "verdict"].groupby("backend").value.sum().to_dict() == {
        "numpy": 2,
        "torch": 2,
    }
    summary = pandas.read_csv(tmp_path / "run" / "summary.csv")
    assert summary.operator.tolist() == ["Elu", "Elu", "Relu", "Relu", "all", "all"]
    assert (summary.ok == summary.cases).all()
    assert (summary.max_error_in_eps < 4).all()


def test_plots_come_again_from_the_folder_alone(tmp_path):
    run(Plan(patterns=("tanh", "sinh"), time=False), out=tmp_path / "run", quiet=True)
    plot = tmp_path / "run" / "plots" / "errors.png"
    before = plot.read_bytes()
    plot.unlink()
    assert plot in plots_from_run(tmp_path / "run")
    assert plot.read_bytes() == before


def test_times_rates_and_shares_belong_together(tmp_path):
    plan = Plan(patterns=("add",), backends=("numpy",), quick=True, time=True, gradients=True)
    run(plan, out=tmp_path / "run", quiet=True)
    rows = [r for r in RunFolder.open(tmp_path / "run").rows if r.node == "add"]
    forward = {r.quantity: r for r in rows if r.phase == "forward"}
    # 3 x 4 x 5 sums of two float32.
    assert (forward["flops"].value, forward["bytes"].value) == (60, 720)
    seconds = forward["time"].value
    assert len(forward["time"].samples) >= 7
    assert forward["first_call"].value > 0
    assert forward["flop_rate"].value == pytest.approx(60 / seconds, rel=1e-12)
    assert forward["byte_rate"].value == pytest.approx(720 / seconds, rel=1e-12)
    assert forward["roofline_share"].value > 0
    assert "cache" in forward["roofline_share"].note
    assert {r.quantity for r in rows if r.phase == "forward+backward"} == {"time", "first_call"}
    machine = [r for r in RunFolder.open(tmp_path / "run").rows if r.phase == "roofline"]
    assert {"peak", "bandwidth"} <= {r.quantity for r in machine}
    assert (tmp_path / "run" / "plots" / "roofline-forward-float32.png").exists()


def test_every_backend_gets_the_threads_that_its_rows_name():
    """numpy and torch are limited for the whole run; any other backend has to be told."""
    import torch
    from threadpoolctl import threadpool_info

    before = torch.get_num_threads()
    with runner.machine_threads(1):
        assert torch.get_num_threads() == 1
        assert {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"} == {1}
    assert torch.get_num_threads() == before
    assert backend_options("numpy", 1) == {"backend": "numpy"}
    assert backend_options("onnxruntime", 1) == {"backend": "onnxruntime", "threads": 1}


def test_a_wrong_backend_is_called_wrong(off, tmp_path, capsys):
    plan = Plan(patterns=("exp",), backends=("numpy", off), time=False)
    assert run(plan, out=tmp_path / "run", quiet=True) is True
    verdicts = {r.backend: r for r in RunFolder.open(tmp_path / "run").rows if r.quantity == "verdict"}
    assert (verdicts["numpy"].verdict, verdicts["numpy"].value) == ("ok", 1)
    assert (verdicts[off].verdict, verdicts[off].value) == ("wrong", 0)
    assert "wrong: exp off" in capsys.readouterr().out
    errors = {
        r.backend: r.value for r in RunFolder.open(tmp_path / "run").rows if r.quantity == "max_relative"
    }
    assert errors[off] == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize("precision", ["float16", "float32", "float64"])
def test_types(off, precision):
    """Narrow types are judged by float64 on the same rounded inputs, wider ones by the expected values."""
    rows = rows_of(Plan(patterns=("tanh",), backends=("numpy", "torch", off), time=False), precision)
    verdicts = {r.backend: r.verdict for r in rows if r.quantity == "verdict"}
    assert verdicts == {"numpy": "ok", "torch": "ok", off: "wrong"}
    for row in rows:
        assert row.dtype == precision
        if row.quantity == "max_relative" and row.backend != off:
            assert row.value <= 4 * np.finfo(precision).eps


def test_a_type_that_does_not_apply_is_left_out_with_the_reason():
    rows = rows_of(Plan(patterns=("and2d",), time=False), "float32")
    assert [(r.quantity, r.verdict) for r in rows] == [("skipped", "not_compared")]
    assert "float32 does not apply" in rows[0].note


def test_random_operators_are_refused_not_judged():
    rows = rows_of(Plan(patterns=("bernoulli",), time=False))
    assert {(r.backend, r.quantity, r.verdict) for r in rows} == {
        ("numpy", "verdict", "unsupported"),
        ("torch", "verdict", "unsupported"),
    }


def test_one_failing_case_costs_no_other(tmp_path, monkeypatch, capsys):
    measure = runner.measure_case

    def failing(plan, case, *others):
        if case.name == "relu":
            raise MemoryError("no memory for this one")
        measure(plan, case, *others)

    monkeypatch.setattr(runner, "measure_case", failing)
    plan = Plan(patterns=("neg", "relu", "sqrt"), time=False)
    assert run(plan, out=tmp_path / "run", quiet=True) is True
    verdicts = [(r.node, r.verdict) for r in RunFolder.open(tmp_path / "run").rows if r.quantity == "verdict"]
    assert verdicts == [("neg", "ok")] * 2 + [("relu", "failed")] + [("sqrt", "ok")] * 2
    assert "no memory for this one" in capsys.readouterr().out


def test_rows_survive_an_interruption(tmp_path, monkeypatch):
    measure = runner.measure_case

    def interrupted(plan, case, *others):
        if case.name == "relu":
            raise KeyboardInterrupt
        measure(plan, case, *others)

    monkeypatch.setattr(runner, "measure_case", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(Plan(patterns=("neg", "relu", "sqrt"), time=False), out=tmp_path / "run", quiet=True)
    folder = RunFolder.open(tmp_path / "run")
    assert folder.status == "interrupted"
    assert {r.node for r in folder.rows} == {"neg"}


def test_quick_takes_one_case_of_each_operator():
    few = chosen_cases(Plan(operators=("Softmax", "Conv"), quick=True))
    assert sorted(case.operator for case in few) == ["Conv", "Softmax"]
    assert not any(case.expanded for case in few)
    assert len(chosen_cases(Plan(operators=("Softmax",)))) > 10


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (Plan(threads=0), "--threads must be from 1"),
        (Plan(threads=10_000), "--threads must be from 1"),
        (Plan(backends=()), "at least one backend"),
        (Plan(backends=("numpy", "numpy")), "twice"),
        (Plan(backends=("nump",)), "Did you mean 'numpy'"),
        (Plan(dtypes=("float23",)), "Did you mean 'float32'"),
        (Plan(suites=("nod",)), "Did you mean 'node'"),
        (Plan(sets=("training",)), "--sweep"),
        (Plan(sweep="deepbench"), "deepbench-gemm"),
        (Plan(sweep="deepbench-gemm", operators=("Conv",)), "leave out operators"),
        (Plan(sweep="deepbench-gemm", budget=float("nan")), "--budget"),
    ],
)
def test_impossible_plans_are_refused(plan, message):
    with pytest.raises(UserError, match=message):
        plan.check()


def test_unknown_names_are_refused_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="The nearest are: Conv, "):
        run(Plan(operators=("Convv",)), out=tmp_path / "run")
    with pytest.raises(UserError, match="near are: relu"):
        run(Plan(patterns=("rellu",)), out=tmp_path / "run")
    with pytest.raises(UserError, match="does not apply"):
        run(Plan(patterns=("and2d",), dtypes=("float32",)), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_json_lines_are_the_rows(tmp_path, capsys):
    run(Plan(patterns=("abs",), backends=("numpy",), time=False), out=tmp_path / "run", as_json=True)
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = RunFolder.open(tmp_path / "run").rows
    assert [(p["quantity"], p["run_id"]) for p in printed] == [(r.quantity, r.run_id) for r in rows]
