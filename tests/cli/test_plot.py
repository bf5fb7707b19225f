"""``meta500 plot`` on real training runs: what it writes and prints, and its messages."""

import json

import pytest
from typer.testing import CliRunner

from meta500.benchmarks.training import Setup, train
from meta500.cli.application import application
from meta500.errors import UserError
from meta500.metrics import RunFolder

FILES = ["samples-accuracy", "seconds-accuracy", "samples-loss", "seconds-loss", "versus"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one training, and a run that trains nothing."""
    root = tmp_path_factory.mktemp("plot") / "runs"
    for seed in (0, 1):
        setup = Setup(model="mlp", backend="numpy", optimizer="sgd", epochs=1, batch_size=256, seed=seed)
        with RunFolder.create(root / f"sgd-{seed}", environment={}, command=["test"]) as folder:
            train(setup, folder)
    RunFolder.create(root / "other", environment={}, command=["test"]).finish()
    return root


def plot(*arguments):
    done = CliRunner().invoke(application, ["plot", *map(str, arguments)], catch_exceptions=True)
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_plots_are_written_and_the_lines_named(runs, tmp_path):
    options = ("--aggregate", "range", "--format", "svg", "--title", "two seeds")
    done = plot(runs, "--out", tmp_path / "out", *options)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "2 seeds: sgd-0, sgd-1",
        f"Plots: {tmp_path / 'out'}",
    ]
    assert done.stderr == "meta500: note: other: has no training curves and is left out\n"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        f"{name}.svg" for name in FILES
    )
    assert "two seeds" in (tmp_path / "out" / "versus.svg").read_text()


def test_json_and_filters(runs, tmp_path, monkeypatch):
    def written(found, out, title, formats):
        assert (title, formats) == ("", ["svg"])
        return [out / f"{name}.svg" for name in FILES]

    monkeypatch.setattr("meta500.metrics.plots.versus.write_versus", written)
    out = tmp_path / "out"
    done = plot(
        f"{runs}/*-*",
        "--filter",
        "-torch",
        "--filter",
        "seed 0|seed 1",
        "--out",
        out,
        "--json",
        "--title",
        "",
        "--format",
        "svg",
    )
    assert json.loads(done.stdout) == {
        "files": [str(out / f"{name}.svg") for name in FILES],
        "lines": [
            {"label": f"seed {seed}", "runs": [{"name": f"sgd-{seed}", "folder": str(runs / f"sgd-{seed}")}]}
            for seed in (0, 1)
        ],
        "notes": [],
    }
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--filter", "adam"],
            "no run fits the filter 'adam'; there are: other, sgd-0, sgd-1",
        ),
        (["--format", "gif"], "unknown format of plots 'gif'"),
        (["--aggregate", "mean"], "unknown way to aggregate 'mean'"),
        (["missing"], "missing: there is no such folder"),
    ],
)
def test_faults_are_told_before_anything_is_written(runs, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        plot(runs, *options)
    assert not list(tmp_path.iterdir())
