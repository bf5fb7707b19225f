"""Logs for other programs, written by `meta500 train` in a real process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from meta500.metrics import RunFolder
from meta500.metrics.tickers.logs import PACKAGES

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
SMALL = ("train", "--epochs", 2, "--backend", "numpy", "--model", "mlp")


def meta500(*arguments, cwd, path=()):
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([*map(str, path), str(ROOT)])}
    return subprocess.run(
        [sys.executable, "-m", "meta500", *map(str, arguments)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def installed():
    from importlib.util import find_spec

    return [name for name, packages in PACKAGES.items() if all(map(find_spec, packages))]


def lines_of(run):
    return [json.loads(line.partition(" ")[2]) for line in (run / "mlperf.log").read_text().splitlines()]


def test_every_log_stands_in_the_run_folder(tmp_path):
    names = installed() or pytest.skip("needs meta500[tensorboard], [mlperf] or [mlflow]")
    options = [word for name in [*names, names[0]] for word in ("--log", name)]
    done = meta500(*SMALL, *options, "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert len(summary["epochs"]) == 2
    # Nothing but where the run is written.
    assert done.stderr.splitlines() == ["Writing to run"]
    run = tmp_path / "run"
    assert RunFolder.open(run).status == "finished"
    if "tensorboard" in names:
        (events,) = (run / "tensorboard").iterdir()
        data = events.read_bytes()
        assert data.count(b"train/loss") == len(summary["losses"])
        assert data.count(b"test/accuracy") == 2
    if "mlperf" in names:
        lines = lines_of(run)
        accuracies = [line["value"] for line in lines if line["key"] == "eval_accuracy"]
        assert accuracies == [e["accuracy"] for e in summary["epochs"]]
        facts = {line["key"]: line["value"] for line in lines}
        assert (facts["seed"], facts["global_batch_size"], facts["opt_base_learning_rate"]) == (0, 64, 1e-3)
        assert lines[-1]["key"] == "run_stop"
    if "mlflow" in names:
        from mlflow.tracking import MlflowClient

        client = MlflowClient(tracking_uri=f"sqlite:///{run / 'mlflow' / 'mlflow.db'}")
        (found,) = client.search_runs([client.get_experiment_by_name("meta500").experiment_id])
        assert found.info.status == "FINISHED"
        assert found.data.params["learning_rate"] == "0.001"
        metrics = client.get_metric_history(found.info.run_id, "train/loss")
        assert [m.value for m in metrics] == summary["losses"]


@pytest.mark.parametrize("name", list(PACKAGES))
def test_a_missing_extra_is_told_before_anything_is_made(tmp_path, name):
    package = PACKAGES[name][0]
    # Python reads this file at its start; None stands for a package that is not there.
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{package!r}] = None\n")
    done = meta500(*SMALL, "--log", name, "--out", "run", cwd=tmp_path, path=[tmp_path])
    assert done.returncode == 2
    assert f"pip install 'meta500[{name}]'" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_an_unknown_log_is_told_with_the_choices(tmp_path):
    done = meta500(*SMALL, "--log", "tensorbord", "--out", "run", cwd=tmp_path)
    assert done.returncode == 2
    assert "Did you mean 'tensorboard'?" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_may_be_given_a_log(tmp_path):
    pytest.importorskip("mlperf_logging")
    first = meta500(*SMALL, "--checkpoint-every", 30, "--out", "a", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    second = meta500("train", "--resume", "a", "--log", "mlperf", "--out", "b", cwd=tmp_path)
    assert second.returncode == 0, second.stderr
    keys = [line["key"] for line in lines_of(tmp_path / "b")]
    assert keys.count("epoch_start") == keys.count("epoch_stop") == keys.count("eval_accuracy") == 2


def test_on_two_ranks_only_the_root_writes(tmp_path):
    pytest.importorskip("mpi4py")
    pytest.importorskip("mlperf_logging")
    pytest.importorskip("tensorboardX")
    logs = ("--log", "mlperf", "--log", "tensorboard")
    done = meta500(*SMALL, *logs, "--ranks", 2, "--batch-size", 32, "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 1
    lines = lines_of(tmp_path / "run")
    assert [line["key"] for line in lines].count("run_start") == 1
    assert {line["key"]: line["value"] for line in lines}["global_batch_size"] == 64
