"""Comparison of run folders: verdicts for known changes, and everything that is not comparable named."""

import itertools
import json
import math

import numpy as np
import pytest

from meta500.errors import UserError
from meta500.metrics.comparison import COLUMNS, compare
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
from meta500.metrics.statistics import median_interval

ENVIRONMENT = {"cpu": {"model": "abacus"}, "versions": {"numpy": "2.0"}}


def a_row(**fields):
    return Row(**{"level": 1, "model": "unet-0", "quantity": "time", "unit": "s", "value": 1.0, **fields})


def timed(factor=1.0, seed=0, n=20, noise=0.05, **fields):
    """A row of n samples around the factor, with lognormal noise."""
    samples = factor * np.exp(noise * np.random.default_rng(seed).standard_normal(n))
    return a_row(samples=tuple(samples), value=float(np.median(samples)), **fields)


@pytest.fixture
def folder(tmp_path):
    def make(*rows, name="new", environment=ENVIRONMENT, status="finished"):
        run = RunFolder.create(tmp_path / name, environment=environment)
        run.extend(rows)
        run.finish(status, "out of luck" if status != "finished" else "")
        return RunFolder.open(run.path)

    return make


@pytest.fixture
def judge(folder):
    """Compare a single row of two runs."""

    numbers = itertools.count()

    def run(old, new, **options):
        name = f"old{next(numbers)}"
        old, new = ([rows] if isinstance(rows, Row) else rows for rows in (old, new))
        (result,) = compare([folder(*old, name=name), folder(*new, name=f"new{name[3:]}")], **options).rows
        return result

    return run


@pytest.mark.parametrize(
    ("quantity", "factor", "verdict"),
    [
        ("time", 1.3, "regression"),
        ("time", 0.7, "improvement"),
        ("time", 1.0, "same"),
        ("time", 1.02, "same"),
        ("throughput", 1.3, "improvement"),
        ("throughput", 0.7, "regression"),
        ("frobnication", 1.3, "unknown"),
    ],
)
def test_direction_of_noisy_quantities(judge, quantity, factor, verdict):
    result = judge(timed(quantity=quantity), timed(factor, seed=1, quantity=quantity))
    assert result.verdict == verdict
    assert result.ratio.low <= result.ratio.value <= result.ratio.high
    assert result.ratio.value == pytest.approx(result.new.value / result.old.value)
    assert result.ratio.contains(factor)
    assert result.run == "new0"


def test_an_interval_that_touches_the_minimum_is_no_regression(judge):
    old, new = timed(n=400), timed(1.2, seed=1, n=400)
    ratio = judge(old, new).ratio
    assert 1.15 < ratio.low < 1.2
    assert ratio.high > 1.2
    assert judge(old, new, minimum=ratio.low - 1 + 1e-3).verdict == "same"
    assert judge(old, new, minimum=ratio.low - 1 - 1e-3).verdict == "regression"


@pytest.mark.parametrize(
    ("minimum", "verdict"),
    [(0.1, "regression"), (0.2, "same"), ({"time": 0.2}, "same"), ({"loss": 0.2}, "regression")],
)
def test_minimum(judge, minimum, verdict):
    assert judge(timed(n=400), timed(1.2, seed=1, n=400), minimum=minimum).verdict == verdict


def test_equal_runs_seldom_differ(folder):
    rows = [timed(seed=i, node=str(i)) for i in range(200)]
    again = [timed(seed=1000 + i, node=str(i)) for i in range(200)]
    result = compare([folder(*rows, name="old"), folder(*again)])
    assert len(result.rows) == 200
    assert len(result.regressions) + len(result.improvements) <= 1


def test_too_few_samples_are_unknown(judge):
    result = judge(timed(n=3, noise=0), timed(2.0, n=3, noise=0))
    assert result.verdict == "unknown"
    assert "too few samples" in result.note
    assert result.ratio.value == pytest.approx(2.0)


def test_a_single_time_is_unknown(judge):
    for quantity in ("time", "first_call", "time_to_accuracy"):
        result = judge(a_row(quantity=quantity), a_row(quantity=quantity, value=9.0))
        assert (result.verdict, result.ratio.value) == ("unknown", 9.0)


@pytest.mark.parametrize(
    ("quantity", "old", "new", "verdict"),
    [
        ("peak_memory", 100.0, 104.0, "same"),
        ("peak_memory", 100.0, 106.0, "regression"),
        ("peak_memory", 106.0, 100.0, "improvement"),
        ("accuracy", 0.97, 0.96, "same"),
        ("accuracy", 0.97, 0.93, "regression"),
        ("accuracy", 0.93, 0.97, "improvement"),
        ("accuracy", 0.97, 0.0, "regression"),
        ("loss", 0.1, math.nan, "regression"),
        ("loss", math.inf, 0.1, "improvement"),
        ("loss", math.nan, math.nan, "same"),
        ("loss", 0.0, 0.0, "same"),
        ("loss", 0.0, 0.1, "regression"),
        ("loss", -1.0, 1.0, "unknown"),
        ("accuracy", 0.5, math.nan, "regression"),
    ],
)
def test_quantities_without_noise_are_called_by_value(judge, quantity, old, new, verdict):
    fields = {"quantity": quantity, "unit": "1"}
    assert judge(a_row(value=old, **fields), a_row(value=new, **fields)).verdict == verdict


def test_several_seeds_are_samples(judge):
    def seeds(values):
        return [a_row(quantity="accuracy", unit="1", value=v, seed=i) for i, v in enumerate(values)]

    old = [0.97, 0.96, 0.975, 0.965, 0.972, 0.968, 0.971, 0.969]
    assert judge(seeds(old), seeds([v - 0.1 for v in old])).verdict == "regression"


def test_seeds_with_noise_need_enough_of_them(judge):
    def seeds(*values):
        return [a_row(quantity="accuracy", unit="1", value=v, seed=i) for i, v in enumerate(values)]

    assert judge(seeds(0.97, 0.96), seeds(0.90, 0.91)).verdict == "unknown"


def test_intervals_without_samples_are_divided(judge):
    def ratio(low, value, high):
        fields = {"quantity": "ratio", "unit": "1", "baseline": "torch/eager", "confidence": 0.98}
        return a_row(low=low, value=value, high=high, **fields)

    result = judge(ratio(0.9, 1.0, 1.1), ratio(1.8, 2.0, 2.2))
    assert result.verdict == "regression"
    assert result.ratio.low == pytest.approx(1.8 / 1.1)
    assert result.ratio.high == pytest.approx(2.2 / 0.9)
    assert result.ratio.confidence == pytest.approx(0.98**2)


def test_overlapping_intervals_without_samples_are_the_same(judge):
    fields = {"quantity": "ratio", "unit": "1", "low": 0.9, "high": 1.2, "confidence": 0.98}
    assert judge(a_row(**fields), a_row(**{**fields, "value": 1.1})).verdict == "same"
    fields["confidence"] = 0.96  # 0.96 squared is less than 0.95
    assert judge(a_row(**fields), a_row(**{**fields, "value": 1.1})).verdict == "unknown"


CORRECT = {"verdict": "ok", "error": 1e-7, "error_norm": "max_relative", "tolerance": 1e-5}


@pytest.mark.parametrize(
    "broken",
    [
        {"verdict": "wrong"},
        {"verdict": "failed", "value": None, "note": "no kernel"},
        {"verdict": "unsupported", "value": None},
        {"verdict": "ok", "error": 1e-3, "tolerance": 1e-5},
        {"verdict": "not_compared", "error": math.nan, "tolerance": 1e-5},
    ],
)
def test_right_and_wrong_are_worth_more_than_speed(folder, broken):
    right = timed(**CORRECT)
    wrong = timed(**{"factor": 0.1, **CORRECT, **broken}) if "value" not in broken else a_row(**broken)
    old, new = folder(right, name="old"), folder(wrong)
    (worse,), (better,) = compare([old, new]).rows, compare([new, old]).rows
    assert (worse.verdict, worse.ratio) == ("regression", None)
    assert "ok before, now" in worse.note
    assert better.verdict == "improvement"
    again = compare([new, folder(wrong, name="third")]).rows[0]
    assert (again.verdict, again.ratio) == ("same", None)


def error_row(value, **fields):
    return a_row(quantity="error", unit="1", value=value, **fields)


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        (error_row(1e-7, tolerance=1e-5), error_row(9e-6, tolerance=1e-5), "same"),
        (error_row(1e-7, tolerance=1e-5), error_row(2e-5, tolerance=1e-5), "regression"),
        (error_row(2e-5, tolerance=1e-5), error_row(1e-7, tolerance=1e-5), "improvement"),
        (error_row(1e-7, tolerance=1e-5), error_row(math.nan, tolerance=1e-5), "regression"),
        (error_row(1e-7, verdict="ok"), error_row(1e-6, verdict="ok"), "same"),
        (error_row(1e-7, verdict="ok"), error_row(1e-8, verdict="wrong"), "regression"),
        (error_row(0.0, tolerance=0.0), error_row(0.0, tolerance=0.0), "same"),
        (error_row(1e-7), error_row(1.0), "unknown"),
    ],
)
def test_errors_count_against_their_tolerance(judge, old, new, verdict):
    assert judge(old, new).verdict == verdict


def test_rows_match_by_what_was_measured(folder):
    kept = [timed(node="a"), timed(node="b", threads=1), timed(node="b", threads=2)]
    old = folder(*kept, timed(node="c", backend="torch", mode="eager"), name="old")
    new = folder(*kept[::-1], timed(node="c", backend="torch", mode="compile"))
    result = compare([old, new])
    assert [row.verdict for row in result.rows] == ["same"] * 3
    assert [(row.old.node, row.old.threads) for row in result.rows] == [
        ("a", None),
        ("b", 1),
        ("b", 2),
    ]
    assert result.unmatched == [
        ("new", "unet-0 c, torch/eager, time"),
        ("old", "unet-0 c, torch/compile, time"),
    ]


def test_nothing_in_common_is_an_error(folder):
    old, new = folder(timed(node="a"), name="old"), folder(timed(node="b"))
    with pytest.raises(
        UserError, match=r"new \(1 measurements\) and old \(1\) have no measurement in common"
    ):
        compare([old, new])
    with pytest.raises(UserError, match="needs two runs or more, 1 given"):
        compare([old])
    with pytest.raises(UserError, match="must not be negative"):
        compare([old, old], minimum=-1)
    with pytest.raises(UserError, match="must not be negative"):
        compare([old, old], minimum={"time": -0.1})


def test_curves_count_by_their_last_point(judge):
    def curve(*losses):
        fields = {"quantity": "loss", "unit": "1"}
        return [a_row(value=v, step=s, epoch=s // 2, **fields) for s, v in enumerate(losses)]

    result = judge(curve(3.0, 2.0, 1.0), curve(9.0, 7.0, 1.01, 0.5)[:3])
    assert result.verdict == "same"
    assert (result.old.value, result.new.value) == (1.0, 1.01)


def test_a_worse_end_of_a_curve_is_a_regression(judge):
    def curve(seed, *losses):
        fields = {"quantity": "loss", "unit": "1", "seed": seed}
        return [a_row(value=v, step=s, **fields) for s, v in enumerate(losses)]

    result = judge(curve(0, 3.0, 1.0) + curve(1, 3.0, 1.0), curve(0, 1.0, 2.0) + curve(1, 1.0, 2.0))
    assert result.old.samples == (1.0, 1.0)
    assert result.new.samples == (2.0, 2.0)
    assert result.verdict == "regression"


def test_times_of_single_steps_are_pooled(judge):
    rng = np.random.default_rng(0)

    def steps(factor):
        return [a_row(value=factor * (1 + 0.1 * rng.random()), step=i) for i in range(30)]

    result = judge(steps(1.0), steps(1.5))
    assert len(result.old.samples) == len(result.new.samples) == 30
    assert result.verdict == "regression"


def test_pooling_keeps_the_worst_verdict(judge):
    result = judge([timed(**CORRECT)] * 2, [timed(**CORRECT), timed(**{**CORRECT, "verdict": "wrong"})])
    assert result.verdict == "regression"


def test_different_units_are_told(judge):
    result = judge(a_row(unit="s"), a_row(unit="ms"))
    assert (result.verdict, result.note) == ("unknown", "unit s before, now ms")


def test_different_protocols_are_told(judge):
    result = judge(timed(protocol="alone"), timed(protocol="interleaved"))
    assert (result.verdict, result.note) == ("same", "protocol alone before, now interleaved")


def test_directions_may_be_added(folder):
    old = folder(timed(quantity="smoothness"), name="old")
    new = folder(timed(2.0, seed=1, quantity="smoothness"))
    assert compare([old, new]).rows[0].verdict == "unknown"
    up = compare([old, new], higher_is_better=["smoothness"])
    assert (len(up.improvements), len(up.regressions)) == (1, 0)
    assert len(compare([old, new], lower_is_better=["smoothness"]).regressions) == 1


def test_differences_of_the_machines_and_unfinished_runs_come_first(folder):
    other = {"cpu": {"model": "slide rule"}, "versions": {"numpy": "2.0"}}
    old = folder(timed(), name="old")
    new = folder(timed(), environment=other, status="interrupted")
    result = compare([old, new])
    assert result.machine == [("new", "cpu.model", "abacus", "slide rule")]
    assert result.notes == ["new: the run was interrupted: out of luck"]
    assert compare([old, old]).machine == []


def test_a_common_change_of_all_times_is_told(folder):
    old = folder(*(timed(seed=i, node=str(i), noise=0.01) for i in range(5)), name="old")
    new = folder(*(timed(1.2, seed=9 + i, node=str(i), noise=0.01) for i in range(5)))
    (note,) = compare([old, new]).notes
    assert note.startswith("new: the median of all 5 ratios of times is 1.2")
    few = [folder(timed(), name="few"), folder(timed(), name="few again")]
    assert compare(few).notes == []


def test_a_cut_row_is_told(folder):
    old, new = folder(timed(), name="old"), folder(timed(), timed(node="a"))
    new.rows_path.write_bytes(new.rows_path.read_bytes()[:-5])
    result = compare([old, RunFolder.open(new.path)])
    assert len(result.rows) == 1
    assert "incomplete" in result.notes[0]


def test_more_than_two_runs(folder):
    runs = [folder(timed(f, seed=i), name=n) for i, (n, f) in enumerate([("a", 1), ("b", 1), ("c", 2)])]
    result = compare(runs)
    assert (result.baseline, result.runs) == ("a", ("b", "c"))
    assert [(row.run, row.verdict) for row in result.rows] == [("b", "same"), ("c", "regression")]
    assert [row.run for row in result.regressions] == ["c"]


def test_folders_of_the_same_name_are_told_apart(folder, tmp_path):
    (tmp_path / "x").mkdir()
    result = compare([folder(timed(), name="x/run"), folder(timed(), name="run")])
    assert result.baseline == str(tmp_path / "x" / "run")
    assert result.runs == (str(tmp_path / "run"),)


def test_table_and_json(folder):
    fields = {"backend": "torch", "mode": "eager", "threads": 1, "device": "cpu", "batch": 8}
    old = folder(timed(node="b"), timed(node="a", phase="inference", **fields), name="old")
    new = folder(timed(node="b", seed=1), timed(2.0, node="a", phase="inference", **fields))
    result = compare([old, new])
    table = result.table()
    assert all(tuple(line) == COLUMNS for line in table)
    first = table[0]
    assert first["verdict"] == "regression"
    assert first["what"] == "unet-0 a inference batch 8"
    assert first["who"] == "torch/eager cpu 1 thread"
    assert first["quantity"] == "time"
    assert first["baseline run"].endswith(" s")
    assert first["run"] == f"new: {result.regressions[0].new.value:.4g} s"
    assert first["ratio"].startswith("2.000 [")
    assert table[1]["verdict"] == "same"
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["rows"][0]["key"]["model"] == "unet-0"
    assert plain["rows"][1]["ratio"]["value"] == pytest.approx(2.0)
    assert plain["rows"][1]["new"] == pytest.approx(2 * plain["rows"][1]["old"])


def test_two_comparisons_are_identical(folder):
    old, new = folder(timed(), name="old"), folder(timed(1.05, seed=1))
    assert compare([old, new]) == compare([old, new])


def test_samples_of_one_row_summarised_by_the_writer(judge):
    """What a benchmark writes, samples and interval together, is judged by the samples."""
    samples = [timed(f, seed=s).samples for f, s in ((1.0, 0), (1.4, 1))]
    rows = []
    for taken in samples:
        i = median_interval(taken)
        rows.append(a_row(samples=taken, value=i.value, low=i.low, high=i.high, confidence=i.confidence))
    result = judge(*rows)
    assert result.verdict == "regression"
    assert result.ratio.confidence >= 0.95


def many(factors, n=20, **fields):
    return [timed(f, seed=100 * n + i, n=n, node=str(i), **fields) for i, f in enumerate(factors)]


@pytest.mark.parametrize(("measurements", "each"), [(1, 0.95), (5, 0.99), (50, 0.999)])
def test_intervals_are_widened_over_all_comparisons(folder, measurements, each):
    """Deterministic values and quantities without a direction are not judged by intervals, so not counted."""
    others = [a_row(quantity="peak_memory", unit="B"), timed(quantity="frobnication")]
    rows = [*many([1.0] * measurements), *others]
    result = compare([folder(*rows, name="old"), folder(*rows)])
    assert result.comparisons == measurements == sum(row.counted for row in result.rows)
    assert result.each == pytest.approx(each)
    assert all(row.ratio.confidence >= result.each for row in result.rows)


def test_every_run_counts(folder):
    rows = many([1.0] * 4)
    runs = [folder(*rows, name=name) for name in "abc"]
    assert compare(runs).comparisons == 8


def test_a_change_that_is_clear_alone_may_be_chance_among_many(folder):
    old, new = timed(n=13, node="0"), timed(1.12, seed=12, n=13, node="0")
    rest = [timed(seed=i, n=13, node=str(i)) for i in range(1, 40)]
    alone = compare([folder(old, name="a"), folder(new, name="b")], minimum=0.02)
    among = compare([folder(old, *rest, name="c"), folder(new, *rest, name="d")], minimum=0.02)
    assert [row.verdict for row in alone.rows] == ["regression"]
    assert among.comparisons == 40 and not among.regressions
    assert among.rows[0].ratio.low < alone.rows[0].ratio.low
    assert among.rows[0].ratio.high > alone.rows[0].ratio.high


def test_too_few_samples_for_so_many_comparisons_are_never_called(folder):
    """7 samples of each side reach 0.969: enough for one comparison, not for twenty."""
    one = compare([folder(*many([1.0], 7), name="a"), folder(*many([3.0], 7), name="b")])
    assert [row.verdict for row in one.rows] == ["regression"]
    result = compare([folder(*many([1.0] * 20, 7), name="c"), folder(*many([3.0] * 20, 7), name="d")])
    assert {row.verdict for row in result.rows} == {"unknown"}
    assert (result.comparisons, result.regressions) == (0, [])
    enough = next(n for n in range(2, 99) if (1 - 2.0 ** (1 - n)) ** 2 >= 1 - 0.05 / 20)
    assert result.rows[0].note == (
        f"too few samples for a verdict: 7 and 7; {enough} and {enough} would do for all 20 comparisons"
    )


def test_measurements_with_too_few_samples_do_not_widen_the_others(folder):
    few = [timed(n=3, node=f"few {i}") for i in range(50)]
    old, new = [*many([1.0] * 2), *few], [*many([2.0] * 2), *few]
    result = compare([folder(*old, name="old"), folder(*new)])
    assert (result.comparisons, result.each) == (2, pytest.approx(0.975))
    assert [row.verdict for row in result.rows] == ["regression"] * 2 + ["unknown"] * 50


def test_equal_runs_have_no_regression_in_95_of_100_comparisons(folder):
    """The rate of comparisons with any call, without a minimum: at most 5 %, over 20 measurements each."""
    rng, called = np.random.default_rng(5), 0
    repetitions = 60
    for repetition in range(repetitions):
        names = [f"{side}{repetition}" for side in ("old", "new")]
        runs = []
        for name in names:
            samples = np.exp(0.1 * rng.standard_normal((20, 15)))
            rows = [
                a_row(node=str(i), samples=tuple(s), value=float(np.median(s))) for i, s in enumerate(samples)
            ]
            runs.append(folder(*rows, name=name))
        result = compare(runs, minimum=0)
        assert result.comparisons == 20
        called += any(row.verdict != "same" for row in result.rows)
    # Binomial with 60 draws of 0.05: more than 9 has a probability below 0.001.
    assert called <= 9


def test_effect_size(folder):
    old, new = folder(timed(), a_row(node="one"), name="old"), folder(timed(5.0), a_row(node="one"))
    timed_row, single = compare([old, new]).rows
    assert timed_row.effect == 1.0 and compare([new, old]).rows[0].effect == 0.0
    assert compare([old, old]).rows[0].effect == 0.5
    assert single.effect is None
    table = compare([old, new]).table()
    assert [line["effect"] for line in table] == ["A = 1.00, large", ""]
    assert compare([old, new]).to_dict()["rows"][0]["effect"] == {"superiority": 1.0, "word": "large"}


def test_versions_of_backends_are_differences_of_the_machine(folder):
    old = folder(timed(backend="generated", version="0.1, g++ 12"), name="old")
    new = folder(timed(backend="generated", version="0.1, g++ 14"))
    expected = [("new", "version of backend generated", "0.1, g++ 12", "0.1, g++ 14")]
    assert compare([old, new]).machine == expected
