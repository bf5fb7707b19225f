"""Runs against each other: which runs are found and chosen, what their lines are, and what is written."""

from __future__ import annotations

import itertools
import math
import shutil
import warnings

import numpy as np
import pytest

from meta500.errors import UserError
from meta500.metrics.folders import find_run_folders
from meta500.metrics.plots import Curve, Panel, running_mean, save, versus_plots
from meta500.metrics.plots.curves import line_look
from meta500.metrics.plots.training_runs import labels_of, read_training_runs
from meta500.metrics.plots.versus import MOST_LINES, draw_versus, medians, panels_of, read_versus
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder

FILES = ["samples-accuracy", "seconds-accuracy", "samples-loss", "seconds-loss", "versus"]
MACHINE = {"cpu": {"model": "one CPU"}}


def write_run(
    path,
    losses=(2.0, 1.5, 1.0, 0.5),
    accuracies=(0.4, 0.8),
    *,
    second=0.5,
    batch=10,
    status="finished",
    setup=None,
    environment=MACHINE,
    folder=None,
    schedule=None,
    **what,
):
    """A run folder with the rows that a training writes: chunks of steps, and a test set after each epoch."""
    what = {
        **{"level": 2, "model": "mlp", "dataset": "digits", "optimizer": "adam", "backend": "torch"},
        **{"mode": "eager", "batch": batch, "seed": 0, **what},
    }
    run = folder or RunFolder.create(path, environment=environment, command=["test"], seeds={"seed": 0})
    if setup is not None:
        run.info["setup"] = setup
    if schedule is not None:
        run.info["schedule"] = schedule
    epochs = max(len(accuracies), 1)
    done = 0
    for epoch, chunk in enumerate(np.array_split(np.asarray(losses, float), epochs)):
        steps = np.arange(done + 1, done + len(chunk) + 1)
        done += len(chunk)
        place = {"step": done, "epoch": epoch, "seconds": second * done}
        for quantity, unit, values in (
            ("loss", "1", chunk),
            ("samples_seen", "samples", steps * batch),
            ("training_time", "s", steps * second),
        ):
            samples = tuple(map(float, values))
            step = {"phase": "training_step", "quantity": quantity, "unit": unit, "value": samples[-1]}
            run.append(Row(**what, **place, **step, samples=samples))
        ends = [("training_set", "samples_seen", "samples", float(done * batch))]
        if epoch < len(accuracies):
            ends.append(("test_set", "accuracy", "1", accuracies[epoch]))
        for phase, quantity, unit, value in ends:
            run.append(Row(**what, **place, phase=phase, quantity=quantity, unit=unit, value=value))
    if status != "running" and folder is None:
        run.finish(status, "loss is NaN")
    return run


@pytest.fixture
def optimizers(tmp_path):
    """Four runs, two of each optimizer, one of them on each backend."""
    root = tmp_path / "runs"
    for k, (optimizer, backend) in enumerate(itertools.product(("adam", "sgd"), ("numpy", "torch"))):
        write_run(root / f"{optimizer}-{backend}", optimizer=optimizer, backend=backend, second=k + 1.0)
    return root


def names(found):
    return [run.name for run in found.runs]


# -- finding runs -------------------------------------------------------------------------------


def test_runs_are_found_below_folders_by_patterns_and_once(optimizers, tmp_path):
    write_run(tmp_path / "more" / "a" / "run-10")
    write_run(tmp_path / "more" / "a" / "run-2")
    write_run(tmp_path / "more" / ".hidden" / "run")
    (tmp_path / "more" / "a" / "run-2" / "inner").mkdir()
    shutil.copytree(tmp_path / "more" / "a" / "run-10", tmp_path / "more" / "a" / "run-2" / "inner" / "run")
    (tmp_path / "more" / "notes.txt").write_text("no run")

    def found(*entries):
        return [path.name for path in find_run_folders([str(entry) for entry in entries])]

    assert found(tmp_path / "more") == ["run-2", "run-10"]
    assert found(optimizers / "sgd-torch") == ["sgd-torch"]
    assert found(optimizers / "sgd-torch", optimizers) == [
        "sgd-torch", "adam-numpy", "adam-torch", "sgd-numpy"
    ]  # fmt: skip
    assert found(optimizers / "*numpy") == ["adam-numpy", "sgd-numpy"]
    assert found(tmp_path / "**") == [
        "run-2", "run-10", "adam-numpy", "adam-torch", "sgd-numpy", "sgd-torch"
    ]  # fmt: skip
    assert find_run_folders(optimizers / "sgd-torch") == [optimizers / "sgd-torch"]


def test_folders_are_searched_four_levels_deep(tmp_path):
    write_run(tmp_path / "1" / "2" / "3" / "4")
    assert len(find_run_folders(tmp_path)) == 1
    write_run(tmp_path / "deep" / "1" / "2" / "3" / "4" / "5")
    with pytest.raises(UserError, match=r"deep: there is no run folder in it, searched 4 levels deep"):
        find_run_folders(tmp_path / "deep")


def test_a_folder_whose_name_looks_like_a_pattern_is_a_folder(tmp_path):
    write_run(tmp_path / "lr[0.1]")
    assert names(read_training_runs(tmp_path / "lr[0.1]")) == ["lr[0.1]"]


def test_names_have_as_many_folders_as_tell_them_apart(tmp_path):
    for study in ("a", "b"):
        write_run(tmp_path / study / "run")
    assert names(read_training_runs(tmp_path)) == ["a/run", "b/run"]
    assert names(read_training_runs(tmp_path / "a")) == ["run"]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("missing", r"missing: there is no such folder; name a run folder, or one that holds them"),
        ("no*", r"no\*: nothing matches this pattern"),
        ("file", r"file: is a file; name a run folder, or a folder that holds run folders"),
        ("empty", r"empty: there is no run folder in it, searched 4 levels deep"),
    ],
)
def test_what_holds_no_runs_is_refused(tmp_path, entry, message):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=message):
        versus_plots(tmp_path / entry, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_folder_at_all_is_refused():
    with pytest.raises(UserError, match="no folder was given"):
        versus_plots([])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run / "run.json").write_text("{"), r"bad/run.json, line 1, column 2: is damaged"),
        (lambda run: (run / "run.json").unlink(), r"bad: is no run folder: there is no run.json in it"),
        (lambda run: (run / "rows.csv").unlink(), r"bad/rows.csv: is missing"),
        (
            lambda run: (run / "rows.csv").write_text((run / "rows.csv").read_text().replace("0.8", "x")),
            r"bad/rows.csv, line \d+: column 'value': 'x' is no number",
        ),
    ],
)
def test_a_malformed_run_is_named(optimizers, damage, message):
    write_run(optimizers / "bad")
    damage(optimizers / "bad")
    with pytest.raises(UserError, match=message):
        read_training_runs(optimizers)
    # A run that is excluded by its name need not be readable.
    assert len(read_training_runs(optimizers, "-bad").runs) == 4


# -- the filter ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ["adam-numpy", "adam-torch", "sgd-numpy", "sgd-torch"]),
        ("SGD", ["sgd-numpy", "sgd-torch"]),
        ("sgd torch eager", ["sgd-torch"]),
        (["sgd", "torch"], ["sgd-torch"]),
        ("sgd-numpy|adam-torch", ["adam-torch", "sgd-numpy"]),
        (["adam|sgd", "-numpy"], ["adam-torch", "sgd-torch"]),
        ("-sgd-numpy|adam", ["sgd-torch"]),
        ("-eager", None),
        (["sgd", "-sgd"], None),
        (lambda text: text.startswith("sgd-torch: mlp digits sgd torch eager batch 10"), ["sgd-torch"]),
        (lambda text: "gradientdescent" in text.lower(), None),
    ],
)
def test_filters(optimizers, choice, expected):
    if expected is None:
        with pytest.raises(UserError, match="there are: adam-numpy, adam-torch, sgd-numpy, sgd-torch$"):
            read_training_runs(optimizers, choice)
    else:
        assert names(read_training_runs(optimizers, choice)) == expected


def test_filters_see_hyper_parameters_seeds_and_the_rest_of_the_setup(tmp_path):
    for k, rate in enumerate((0.1, 0.01)):
        setup = {"hyperparameters": {"learning_rate": rate}, "model_options": {"n": k}, "epochs": 2}
        write_run(tmp_path / f"run{k}", setup=setup, seed=k + 3)
    for text in ("learning rate 0.01", "seed 4", "n=1", "run1"):
        assert names(read_training_runs(tmp_path, text)) == ["run1"]


@pytest.mark.parametrize("choice", ["", "-", ["sgd", " "], "sgd|"])
def test_an_empty_text_is_refused(optimizers, choice):
    with pytest.raises(UserError, match=r"filter '.*': a text is empty"):
        read_training_runs(optimizers, choice)


def test_the_message_names_the_filter_and_at_most_40_runs(tmp_path):
    for k in range(42):
        RunFolder.create(tmp_path / f"run{k}", environment={}, command=["test"]).finish()
    with pytest.raises(
        UserError, match=r"^no run fits the filter 'a' and '-run3'; there are: run0, .*run39 and 2"
    ):
        read_training_runs(tmp_path, ["a", "-run3"])
    with pytest.raises(UserError, match=r"^no run has training curves that can be drawn: run0, "):
        read_training_runs(tmp_path)


# -- labels -------------------------------------------------------------------------------------


def labels(folder, choice=None):
    return labels_of(read_training_runs(folder, choice).runs)


def test_labels_say_what_runs_differ_in(optimizers):
    assert labels(optimizers) == ["adam numpy", "adam torch", "sgd numpy", "sgd torch"]
    assert labels(optimizers, "adam") == ["numpy", "torch"]
    assert labels(optimizers, "adam-torch") == ["adam-torch"]
    write_run(optimizers / "run", model="mobilenet_v2")
    assert "mobilenet_v2 adam" in labels(optimizers, "torch")
    for text in ("mobilenet_v2", "mobilenet v2"):
        assert names(read_training_runs(optimizers, text)) == ["run"]


def test_labels_name_hyper_parameters_machines_seeds_and_names_only_where_needed(tmp_path):
    def setup(rate, **more):
        return {"optimizer": "adam", "hyperparameters": {"learning_rate": rate, **more}, "epochs": 2}

    write_run(tmp_path / "rate" / "a", setup=setup(0.1))
    write_run(tmp_path / "rate" / "b", setup=setup(0.01), seed=7)
    assert labels(tmp_path / "rate") == ["learning rate 0.1", "learning rate 0.01"]
    write_run(tmp_path / "rate" / "c", setup=setup(0.01, beta1=0.5), seed=8)
    assert labels(tmp_path / "rate") == [
        "learning rate 0.1",
        "learning rate 0.01",
        "learning rate 0.01 beta1 0.5",
    ]
    write_run(tmp_path / "machine" / "a")
    write_run(tmp_path / "machine" / "b", environment={"cpu": {"model": "another CPU"}})
    assert labels(tmp_path / "machine") == ["one CPU", "another CPU"]
    for seed in (0, 1):
        write_run(tmp_path / "seeds" / f"a{seed}", seed=seed)
        write_run(tmp_path / "seeds" / f"b{seed}", seed=seed, optimizer="sgd")
    assert labels(tmp_path / "seeds") == ["adam seed 0", "adam seed 1", "sgd seed 0", "sgd seed 1"]
    write_run(tmp_path / "seeds" / "again", seed=1)
    assert labels(tmp_path / "seeds") == [
        "adam seed 0", "adam seed 1 a1", "adam seed 1 again", "sgd seed 0", "sgd seed 1"
    ]  # fmt: skip
    for name in ("x", "y"):
        write_run(tmp_path / "same" / name)
    assert labels(tmp_path / "same") == ["x", "y"]


FULL_MACHINE = {
    "cpu": {
        "model": "one CPU", "physical_cores": 8, "logical_cores": 16, "affinity": "0-15", "limit_cores": 8.0
    },
    "memory": {"total_bytes": 64 * 2**30, "available_bytes": 10},
    "threads": {"torch": 2},
    "variables": {"OMP_NUM_THREADS": "2", "KMP_INIT_AT_FORK": "FALSE"},
    "versions": {"meta500": "0.1.0"},
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "gpus": [],
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "change", "first", "second"),
    [
        ("cpu", {"physical_cores": 4}, "8 physical cores", "4 physical cores"),
        ("cpu", {"logical_cores": 8}, "16 logical cores", "8 logical cores"),
        ("cpu", {"affinity": "0-3"}, "on cores 0-15", "on cores 0-3"),
        ("cpu", {"limit_cores": 1.5}, "limit 8 cores", "limit 1.5 cores"),
        ("cpu", {"limit_cores": None}, "limit 8 cores", "b"),
        ("variables", {"OMP_NUM_THREADS": "1"}, "OMP_NUM_THREADS=2", "OMP_NUM_THREADS=1"),
        ("variables", {"MKL_NUM_THREADS": "1"}, "a", "MKL_NUM_THREADS=1"),
        ("variables", {"KMP_AFFINITY": "compact"}, "a", "KMP_AFFINITY=compact"),
        ("memory", {"total_bytes": 32 * 2**30}, "64.0 GiB memory", "32.0 GiB memory"),
        ("versions", {"meta500": "0.2.0"}, "meta500 0.1.0", "meta500 0.2.0"),
        ("git", {"commit": "fedcba9876543210"}, "commit 0123456789", "commit fedcba9876"),
    ],
)
def test_threads_machine_and_version_tell_runs_apart(tmp_path, part, change, first, second):
    write_run(tmp_path / "a", environment=FULL_MACHINE)
    other = {**FULL_MACHINE, part: {**FULL_MACHINE[part], **change}}
    write_run(tmp_path / "b", environment=other, seed=1)
    found = read_versus(tmp_path, aggregate="range")
    assert [line.label for line in found.lines] == [first, second]
    for line in found.lines:
        if line.label not in ("a", "b"):
            assert names(read_training_runs(tmp_path, line.label)) == [line.runs[0].name]


def test_what_changes_from_run_to_run_on_one_machine_does_not_tell_runs_apart(tmp_path):
    write_run(tmp_path / "a", environment=FULL_MACHINE)
    later = {
        **FULL_MACHINE,
        "memory": {"total_bytes": 64 * 2**30 + 4096, "available_bytes": 11},
        "threads": {},
        "variables": {"OMP_NUM_THREADS": "2", "CFLAGS": "-O1"},
        "git": {"commit": "0123456789abcdef", "dirty": True},
        "load": [3.0, 2.0, 1.0],
    }
    write_run(tmp_path / "b", environment=later, seed=1)
    assert [len(line.runs) for line in read_versus(tmp_path, aggregate="range").lines] == [2]


def test_schedules_of_the_learning_rate_tell_runs_apart(tmp_path):
    setup = {"hyperparameters": {"learning_rate": 0.1}}
    schedules = {
        "half": {"learning_rate": "0.1 * 0.5 ** epoch", "per": "epoch"},
        "tenth": {"learning_rate": "0.1 * 0.1 ** epoch", "per": "epoch"},
    }
    for name, schedule in schedules.items():
        for seed in (0, 1):
            write_run(tmp_path / f"{name}-{seed}", setup=setup, schedule=schedule, seed=seed)
    found = read_versus(tmp_path, aggregate="range")
    assert [(line.label, len(line.runs)) for line in found.lines] == [
        ("learning rate per epoch 0.1 * 0.5 ** epoch", 2),
        ("learning rate per epoch 0.1 * 0.1 ** epoch", 2),
    ]
    assert names(read_training_runs(tmp_path, "0.5 ** epoch")) == ["half-0", "half-1"]
    write_run(tmp_path / "steps", setup=setup, schedule={**schedules["half"], "per": "step"}, seed=2)
    write_run(tmp_path / "unchanged", setup=setup, seed=3)
    lines = read_versus(tmp_path, aggregate="range").lines
    assert sorted(len(line.runs) for line in lines) == [1, 1, 2, 2]


def test_several_training_runs_in_one_folder(tmp_path):
    run = RunFolder.create(tmp_path / "run", environment={}, command=["test"])
    for optimizer in ("adam", "sgd"):
        write_run(None, folder=run, optimizer=optimizer)
    run.finish()
    assert names(read_training_runs(tmp_path)) == ["run", "run#2"]
    assert labels(tmp_path) == ["adam", "sgd"]


# -- the lines ----------------------------------------------------------------------------------


def line_data(figure, axes=0):
    """Points of each line with markers, and of the faint lines behind them."""
    lines = figure.axes[axes].get_lines()
    return (
        [line.get_xydata().T for line in lines if line.get_marker() != "None"],
        [line.get_xydata().T for line in lines if line.get_marker() == "None"],
    )


def test_curves_are_exactly_those_of_the_rows(tmp_path):
    losses, accuracies = (2.3, 2.0, 1.7, 0.1), (0.123456789, 0.987654321)
    write_run(tmp_path / "run", losses, accuracies, second=0.7, batch=3)
    (run,) = read_training_runs(tmp_path).runs
    loss, accuracy = run.curve("loss", "training_step"), run.curve("accuracy", "test_set")
    assert loss.values.tolist() == list(losses)
    assert loss.samples.tolist() == [3, 6, 9, 12]
    assert loss.seconds.tolist() == [k * 0.7 for k in (1, 2, 3, 4)]
    assert accuracy.values.tolist() == list(accuracies)
    assert accuracy.samples.tolist() == [6, 12]
    assert accuracy.seconds.tolist() == [2 * 0.7, 4 * 0.7]

    found = read_versus(tmp_path)
    assert [(p.quantity, p.x, p.phase) for p in panels_of(found)] == [
        ("accuracy", "samples", "test_set"),
        ("accuracy", "seconds", "test_set"),
        ("loss", "samples", "training_step"),
        ("loss", "seconds", "training_step"),
    ]
    figure = draw_versus(found)
    for axes, (x, y) in enumerate(
        [
            ([6, 12], [100 * a for a in accuracies]),
            ([1.4, 2.8], [100 * a for a in accuracies]),
            ([3, 6, 9, 12], losses),
            ([0.7, 1.4, 2.1, 2.8], losses),
        ]
    ):
        ((drawn,), faint) = line_data(figure, axes)
        assert drawn.tolist() == [pytest.approx(x), pytest.approx(y)]
        assert not faint
    words = [(ax.get_xlabel(), ax.get_ylabel()) for ax in figure.axes]
    assert words == [
        ("training samples seen", "test accuracy (%)"),
        ("training time (s)", "test accuracy (%)"),
        ("training samples seen", "training loss"),
        ("training time (s)", "training loss"),
    ]


def test_only_the_loss_is_smoothed_and_the_legend_says_so(tmp_path):
    rng = np.random.default_rng(0)
    losses, accuracies = rng.random(82), rng.random(41)
    write_run(tmp_path / "run", losses, accuracies)
    figure = draw_versus(read_versus(tmp_path))
    ((accuracy,), faint) = line_data(figure, 0)
    assert accuracy[1] == pytest.approx(100 * accuracies)
    assert not faint
    ((loss,), (single,)) = line_data(figure, 2)
    assert loss[1] == pytest.approx(running_mean(losses, 4))
    assert single[1].tolist() == losses.tolist()
    assert legend(figure) == ["loss of single steps", "loss: running mean over 5 % of the steps"]


def legend(figure):
    return [text.get_text() for box in figure.legends for text in box.get_texts()]


def seeds(folder, count=3, optimizer="adam", **more):
    """Runs that differ in their seeds alone; the values of seed k are those of seed 0 plus k / 10."""
    for k in range(count):
        write_run(
            folder / f"{optimizer}-{k}",
            [value + 0.1 * k for value in (2.0, 1.5, 1.0, 0.5)],
            [0.4 + 0.1 * k, 0.6 + 0.1 * k],
            **{"optimizer": optimizer, "seed": k, "second": 1.0 + k, **more},
        )


@pytest.mark.parametrize(
    ("aggregate", "low", "high", "words"),
    [
        ("range", 0.0, 0.3, "median of 4 seeds, band from the smallest to the largest"),
        ("quartiles", 0.075, 0.225, "median of 4 seeds, band from the lower to the upper quartile"),
    ],
)
def test_seeds_are_drawn_as_medians_with_a_band(tmp_path, aggregate, low, high, words):
    seeds(tmp_path, 4)
    found = read_versus(tmp_path, aggregate=aggregate)
    (line,) = found.lines
    assert [run.name for run in line.runs] == [f"adam-{k}" for k in range(4)]
    assert not found.notes
    figure = draw_versus(found, [Panel("loss", "seconds", "training_step")])
    ((drawn,), _) = line_data(figure)
    # Four runs of 1, 2, 3 and 4 seconds per step: the median step takes 2.5 s.
    assert drawn[0] == pytest.approx([2.5, 5.0, 7.5, 10.0])
    assert drawn[1] == pytest.approx([2.15, 1.65, 1.15, 0.65])
    (band,) = figure.axes[0].collections
    assert band.get_datalim(figure.axes[0].transData).y0 == pytest.approx(0.5 + low)
    assert band.get_datalim(figure.axes[0].transData).y1 == pytest.approx(2.0 + high)
    assert legend(figure) == [words]


def curve(values, samples=None, seconds=None, label="a"):
    count = len(values)
    samples = range(1, count + 1) if samples is None else samples
    return Curve(
        label, "loss", "training_step", samples, range(count) if seconds is None else seconds, values
    )


def test_medians_end_with_the_shortest_and_with_what_is_not_finite():
    drawn = medians(
        [
            curve([1, 5, 3, 4], seconds=[1, 2, 3, 4]),
            curve([2, math.nan, 1], seconds=[3, 4, 8]),
            curve([9, 1, 1]),
        ],
        "range",
    )
    assert np.array_equal(drawn.middle.values, [2, math.nan, 1], equal_nan=True)
    assert drawn.middle.seconds.tolist() == [1, 2, 3]
    assert np.array_equal(drawn.low, [1, math.nan, 1], equal_nan=True)
    assert np.array_equal(drawn.high, [9, math.nan, 3], equal_nan=True)
    assert drawn.single is None


def test_medians_of_smoothed_curves_are_medians_of_their_running_means():
    rng = np.random.default_rng(1)
    values = rng.random((3, 60))
    drawn = medians([curve(v) for v in values], "quartiles", smooth=True)
    means = np.stack([running_mean(v, 3) for v in values])
    assert drawn.middle.values == pytest.approx(np.sort(means, axis=0)[1])
    assert drawn.low == pytest.approx(np.percentile(means, 25, axis=0))
    assert drawn.high == pytest.approx(np.percentile(means, 75, axis=0))


def test_medians_of_different_samples_are_refused():
    with pytest.raises(UserError, match="'a' and 'b' differ in the samples of their points"):
        medians([curve([1, 2]), curve([1, 2], samples=[1, 3], label="b")], "range")


def test_only_runs_that_differ_in_seeds_alone_are_aggregated(tmp_path):
    seeds(tmp_path)
    seeds(tmp_path, 2, "sgd", setup={"hyperparameters": {"learning_rate": 0.1}})
    write_run(
        tmp_path / "sgd-rate", optimizer="sgd", seed=2, setup={"hyperparameters": {"learning_rate": 1.0}}
    )
    found = read_versus(tmp_path, aggregate="range")
    assert [(line.label, len(line.runs)) for line in found.lines] == [
        ("adam, 3 seeds", 3),
        ("sgd learning rate 0.1, 2 seeds", 2),
        ("sgd learning rate 1.0", 1),
    ]
    assert [len(line.runs) for line in read_versus(tmp_path).lines] == [1] * 6


@pytest.mark.parametrize(
    ("second", "note"),
    [
        ({"seed": 0}, "runs with the same seed 0 cannot be aggregated; drawn apart: a, b"),
        ({"seed": 1, "losses": (1, 1, 1, 1, 1, 1)}, None),
        ({"seed": 1, "accuracies": ()}, "runs of which only some have a loss or an accuracy cannot be"),
        (
            {"seed": 1, "losses": (1, 1), "accuracies": (0.4,)},
            "a, b: their medians end with the shortest run, after 20",
        ),
    ],
)
def test_what_keeps_runs_from_being_aggregated_is_said(tmp_path, second, note):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", **second)
    found = read_versus(tmp_path, aggregate="range")
    if note is None:
        # Epochs of three steps in place of two: accuracies at other samples.
        note = "runs that differ in the samples of their points cannot be aggregated; drawn apart: a, b"
    assert any(entry.startswith(note) for entry in found.notes), found.notes
    assert len(found.lines) == (1 if "shortest" in note else 2)


def test_runs_of_unknown_seed_are_not_aggregated(tmp_path):
    for name in ("a", "b"):
        run = RunFolder.create(tmp_path / name, environment={}, command=["test"], seeds={})
        write_run(None, folder=run, seed=None)
        run.finish()
    found = read_versus(tmp_path, aggregate="range")
    assert [line.label for line in found.lines] == ["a", "b"]
    assert found.notes[0].startswith("runs of which one has no known seed cannot be aggregated")


def test_a_line_ends_where_a_run_is_no_longer_finite(tmp_path):
    write_run(tmp_path / "a", (2.0, 1.0, math.nan, math.nan))
    write_run(tmp_path / "b", seed=1)
    figure = draw_versus(read_versus(tmp_path), [Panel("loss", "samples", "training_step")])
    cross = next(
        line
        for line in figure.axes[0].get_lines()
        if line.get_marker() == "X" and line.get_linestyle() == "None"
    )
    assert cross.get_xydata().tolist() == [[20, 1.0]]
    assert legend(figure) == ["seed 0", "seed 1", "NaN or infinite from here on"]
    figure = draw_versus(
        read_versus(tmp_path, aggregate="range"), [Panel("loss", "samples", "training_step")]
    )
    assert legend(figure)[-1] == "NaN or infinite in one run from here on"


# -- runs that are left out, and what is written ------------------------------------------------


def test_runs_without_curves_and_unfinished_runs_are_named(optimizers):
    RunFolder.create(optimizers / "bench", environment={}, command=["test"]).finish()
    RunFolder.create(optimizers / "killed", environment={}, command=["test"])
    write_run(optimizers / "failed", status="failed")
    write_run(optimizers / "going", status="running", seed=1)
    write_run(optimizers / "lost", (math.nan,) * 4, (), seed=2)
    write_run(optimizers / "nan", (math.nan,) * 4, seed=3)
    write_run(optimizers / "untested", (1.0, 0.5), (), seed=4)
    found = read_versus(optimizers)
    assert sorted(run.name for line in found.lines for run in line.runs) == [
        "adam-numpy", "adam-torch", "failed", "going", "nan", "sgd-numpy", "sgd-torch", "untested"
    ]  # fmt: skip
    assert set(found.notes) == {
        "failed: the run failed: loss is NaN",
        f"{optimizers / 'going'}: the run is not finished: it is still going or was killed",
        "nan: the loss of phase training_step is never finite and is left out",
        "bench: has no training curves and is left out",
        "killed: has no training curves and is left out (the run is not finished: it is still going or was killed)",
        "lost: has no finite loss or accuracy and is left out",
        "untested: has no test accuracy and is not in the plots of accuracy",
        "nan: has no training loss and is not in the plots of loss",
    }


def test_plots_are_written_and_the_same_runs_give_the_same_files(optimizers, tmp_path, monkeypatch):
    RunFolder.create(optimizers / "bench", environment={}, command=["test"]).finish()
    monkeypatch.chdir(tmp_path)
    with pytest.warns(UserWarning, match="^bench: has no training curves and is left out$"):
        first = versus_plots("runs", filter="sgd", formats=["png"])
    assert [path.as_posix() for path in first] == [f"versus/{name}.png" for name in FILES]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in first)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        figure = draw_versus(read_versus([optimizers / "sgd-*"]))
    assert save(figure, tmp_path / "again.png")[0].read_bytes() == first[-1].read_bytes()


def test_a_quantity_that_no_run_has_is_not_written(tmp_path):
    write_run(tmp_path / "run", accuracies=())
    found = read_versus(tmp_path / "run")
    assert found.notes == (
        "no run has a test accuracy: samples-accuracy and seconds-accuracy are not written",
    )
    assert [panel.quantity for panel in panels_of(found)] == ["loss", "loss"]
    assert len(draw_versus(found).axes) == 2


def test_unknown_formats_and_ways_to_aggregate_are_refused(optimizers, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UserError, match="unknown format of plots 'gif'. Choose one of: pdf, png, svg"):
        versus_plots(optimizers, out=out, formats=["png", "gif"])
    with pytest.raises(UserError, match="no format was given"):
        versus_plots(optimizers, out=out, formats=[])
    with pytest.raises(UserError, match="unknown way to aggregate 'mean'"):
        versus_plots(optimizers, out=out, aggregate="mean")
    assert not out.exists()
    out.write_text("")
    with pytest.raises(UserError, match="out/samples-accuracy.png' cannot be written"):
        versus_plots(optimizers, out=out)


def test_more_lines_than_can_be_told_apart_are_refused(optimizers, monkeypatch):
    looks = {(look["color"], look["marker"]) for look in map(line_look, range(MOST_LINES))}
    assert len(looks) == MOST_LINES == 63
    monkeypatch.setattr("meta500.metrics.plots.versus.MOST_LINES", 3)
    with pytest.raises(
        UserError, match="4 lines cannot be told apart, at most 3 can: choose some with a filter, or"
    ):
        read_versus(optimizers)
    assert len(read_versus(optimizers, filter="-adam-numpy").lines) == 3


# -- legibility ---------------------------------------------------------------------------------


def boxes(figure):
    """All texts outside of the axes' ticks, with their boxes in pixels."""
    figure.draw_without_rendering()
    found = [*figure.texts, *(text for box in figure.legends for text in box.get_texts())]
    if figure._suptitle is not None:
        found.append(figure._suptitle)
    for axes in figure.axes:
        found += [axes.xaxis.label, axes.yaxis.label]
    unique = {id(text): text for text in found if text.get_text().strip()}
    return [(text.get_text(), text.get_window_extent()) for text in unique.values()]


def test_twenty_runs_with_long_and_strange_labels_are_readable(tmp_path):
    for k in range(20):
        write_run(
            tmp_path / f"run{k}",
            (2.0, 1.0),
            (0.5,),
            optimizer=f"momentum {k} (reference), consistent-decentralized",
        )
    write_run(tmp_path / "a", optimizer="$x$ \\frac{")
    write_run(tmp_path / "b", optimizer="_hidden")
    write_run(tmp_path / "c", optimizer="a very long name " * 9)
    found = read_versus(tmp_path)
    figure = draw_versus(found, title="A title of many words, much longer than the figure is wide. " * 3)
    drawn = boxes(figure)
    width, height = figure.get_size_inches() * figure.dpi
    for text, box in drawn:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, text
    for (a, one), (b, other) in itertools.combinations(drawn, 2):
        over = min(one.x1, other.x1) - max(one.x0, other.x0)
        under = min(one.y1, other.y1) - max(one.y0, other.y0)
        assert over < 1 or under < 1, f"{a!r} and {b!r} overlap"
    words = legend(figure)
    assert len(words) == 23
    assert {r"\$x\$ \frac{", " _hidden"} < set(words)
    assert [word.replace("\n", " ") for word in words if "very long" in word] == [
        ("a very long name " * 9).strip()
    ]
    bottom = min(axes.get_window_extent().y0 for axes in figure.axes)
    assert all(box.get_window_extent().y1 < bottom for box in figure.legends)
    # Points that are all at about the same place stay inside of the axes.
    for axes in figure.axes:
        assert axes.get_xlim()[1] > 1.04 * max(line.get_xdata().max() for line in axes.get_lines())


def test_the_title_is_what_runs_share_unless_it_is_given(optimizers):
    found = read_versus(optimizers)
    panel = [Panel("loss", "samples", "training_step")]
    assert draw_versus(found, panel)._suptitle.get_text() == "mlp, digits, eager, batch 10"
    assert draw_versus(found, panel, title="only sgd")._suptitle.get_text() == "only sgd"
    assert draw_versus(found, panel, title="")._suptitle is None
