"""The command line as a user runs it: real processes, exit codes, files and messages."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meta500.metrics import RunFolder

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def meta500(*arguments, cwd, check=True, **more):
    done = subprocess.run(
        [sys.executable, "-m", "meta500", *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )
    if check:
        assert done.returncode == 0, done.stderr + done.stdout
    return done


@pytest.fixture
def here(monkeypatch, capsys):
    """The command line in this process: (exit code, stdout, stderr)."""
    from meta500.cli import main

    def call(*arguments, cwd):
        monkeypatch.chdir(cwd)
        with pytest.raises(SystemExit) as stop:
            main([*map(str, arguments)])
        shown = capsys.readouterr()
        return stop.value.code or 0, shown.out, shown.err

    return call


def refused(done, *parts):
    """Exit code 2, one clear message, no traceback."""
    assert done.returncode == 2, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def test_version_and_help(tmp_path):
    assert meta500("--version", cwd=tmp_path).stdout.startswith("meta500 0.")
    text = meta500("--help", cwd=tmp_path).stdout
    assert all(verb in text for verb in ("bench", "train", "compare", "info"))


def test_importing_and_help_load_nothing_heavy(tmp_path):
    program = (
        "import sys, meta500\n"
        "from meta500.cli.application import application\n"
        "print([m for m in ('torch', 'matplotlib', 'onnx', 'scipy', 'pandas', 'sklearn', 'mpi4py') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_info(tmp_path):
    text = meta500("info", cwd=tmp_path).stdout
    assert "backends: generated, numpy, onnxruntime, torch" in text and "digits_cnn" in text
    found = json.loads(meta500("info", "--json", cwd=tmp_path).stdout)
    assert found["environment"]["cpu"]["model"] and "adam" in found["optimizers"]


LAYERS = ("--quick", "--threads", 1, "--out", "run")


@pytest.mark.slow
def test_bench_layers_writes_a_complete_run(tmp_path):
    done = meta500("bench", "layers", *LAYERS, cwd=tmp_path)
    assert "conv 3x3" in done.stdout and "Results:" in done.stdout
    times = complete_times(tmp_path / "run")
    assert len({r.operator for r in times}) >= 6


@pytest.fixture
def layers_run(tmp_path, monkeypatch, here):
    """A run of two layers."""
    from meta500.benchmarks import layers

    every = layers.unet_layers
    monkeypatch.setattr(layers, "SETTLE_SECONDS", 0.001)
    monkeypatch.setattr(
        layers,
        "unet_layers",
        lambda **options: [x for x in every(**options) if x.name in ("ReLU", "average pooling 2x2")],
    )
    code, out, _ = here("bench", "layers", *LAYERS, cwd=tmp_path)
    assert code == 0 and "ReLU" in out and "Results:" in out
    return tmp_path / "run"


def complete_times(path):
    """The times of a run of layers, which must be whole."""
    run = RunFolder.open(path)
    assert run.status == "finished" and run.info["size"] == "quick"
    rows = run.rows
    times = [r for r in rows if r.quantity == "time"]
    assert {r.backend for r in times} == {"generated", "numpy", "torch"}
    assert all("g++" in r.version or "clang" in r.version for r in times if r.backend == "generated")
    assert {r.phase for r in times} == {"forward", "forward+backward"}
    assert all(r.verdict == "ok" and r.error <= r.tolerance for r in times)
    assert all(len(r.samples) == r.repeats > 0 and r.low <= r.value <= r.high for r in times)
    assert any(r.quantity == "ratio" and r.baseline == "torch eager" for r in rows)
    assert list((path / "plots").glob("*.png"))
    return times


@pytest.mark.slow
def test_bench_networks_quick(tmp_path):
    done = meta500("bench", "networks", "--quick", "--threads", 1, "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    times = [r for r in rows if r["quantity"] == "time"]
    assert {r["model"] for r in times} == {"unet-0", "digits_cnn"}
    assert {r["phase"] for r in times} == {"inference", "training_step"}
    judged = [r for r in times if "overhead" not in r["protocol"]]
    assert judged and all(r["verdict"] == "ok" for r in judged)
    assert {r["backend"] for r in judged} == {"generated", "numpy", "torch"}
    ratios = {(r["backend"], r["optimizer"], r["baseline"]) for r in rows if r["quantity"] == "ratio"}
    assert ("torch", "adam (torch.optim)", "plain PyTorch eager adam (torch.optim)") in ratios


def test_training_reaches_97_percent_with_every_adam(tmp_path):
    done = meta500("bench", "training", "--quick", "--threads", 1, "--out", "run", cwd=tmp_path)
    assert done.stdout.count("97.") >= 6
    rows = RunFolder.open(tmp_path / "run").rows
    reached = [r for r in rows if r.quantity == "time_to_accuracy"]
    assert {(r.backend, r.optimizer) for r in reached} == {
        (backend, f"adam ({kind})")
        for backend in ("generated", "numpy", "torch")
        for kind in ("reference", "native")
    }
    assert all(r.value > 0 for r in reached)
    assert (tmp_path / "run" / "plots" / "training.png").stat().st_size > 10_000


def test_train_segmentation_with_a_metric(tmp_path):
    done = meta500(
        *("train", "--model", "unet", "--dataset", "digits-segmentation", "--metric", "iou", "--quick"),
        *("--dataset-option", "size=32", "--dataset-option", "train_samples=8"),
        *("--dataset-option", "test_samples=4", "--batch-size", 4, "--threads", 1, "--out", "run"),
        cwd=tmp_path,
    )
    assert "iou" in done.stdout
    scores = [r for r in RunFolder.open(tmp_path / "run").rows if r.quantity == "iou"]
    assert len(scores) == 1 and 0 < scores[0].value < 1 and scores[0].dataset == "digits-segmentation"


@pytest.mark.slow
def test_train_leaves_out_a_short_last_batch(tmp_path):
    steps = {}
    for option in ("--drop-last", "--keep-last"):
        meta500("train", "--quick", "--threads", 1, option, "--out", option, cwd=tmp_path)
        rows = RunFolder.open(tmp_path / option).rows
        steps[option] = sum(len(r.samples) for r in rows if r.quantity == "loss")
    assert steps["--keep-last"] == steps["--drop-last"] + 1


def test_train_saves_a_network_that_reloads_and_repeats(tmp_path):
    common = ("train", "--epochs", 2, "--threads", 1)
    meta500(*common, "--out", "a", "--save", "net.onnx", cwd=tmp_path)
    done = meta500(*common, "--out", "b", "--json", "--backend", "torch", cwd=tmp_path)
    summary = json.loads(done.stdout)
    assert summary["status"] == "finished" and len(summary["epochs"]) == 2
    first, second = (RunFolder.open(tmp_path / name) for name in "ab")
    # Step by step: how many steps stand in a row depends on the time.
    losses = [[x for r in run.rows if r.quantity == "loss" for x in r.samples] for run in (first, second)]
    assert losses[0] == losses[1] and losses[0]
    again = meta500("train", "--model", "net.onnx", "--quick", "--json", "--backend", "numpy", cwd=tmp_path)
    assert json.loads(again.stdout)["epochs"][0]["accuracy"] > summary["epochs"][0]["accuracy"]


def slower(run, target, factor):
    """A copy of a run whose times are ``factor`` as long."""
    import csv
    import shutil

    shutil.copytree(run, target)
    with open(target / "rows.csv", newline="") as file:
        rows = list(csv.reader(file))
    header = rows[0]
    for row in rows[1:]:
        if row[header.index("quantity")] == "time":
            for name in ("value", "low", "high"):
                row[header.index(name)] = repr(float(row[header.index(name)]) * factor)
            samples = row[header.index("samples")].split(" ")
            row[header.index("samples")] = " ".join(repr(float(s) * factor) for s in samples)
    with open(target / "rows.csv", "w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def test_compare_exits_1_on_a_regression_only(layers_run, here, tmp_path):
    assert len({r.operator for r in complete_times(layers_run)}) == 2
    slower(layers_run, tmp_path / "slow", 30.0)
    code, out, _ = here("compare", "run", "slow", cwd=tmp_path)
    assert code == 1 and "regression" in out
    code, out, _ = here("compare", "slow", "run", "--out", "plots", cwd=tmp_path)
    assert code == 0 and "improvement" in out and ", 0 regression" not in out
    assert list((tmp_path / "plots").glob("*.png"))
    code, out, _ = here("compare", "run", "run", "--json", "--out", "p2", cwd=tmp_path)
    assert code == 0 and {row["verdict"] for row in json.loads(out)["rows"]} <= {"same", "unknown"}


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("train", "--backend", "nump"), ("unknown backend 'nump'", "Did you mean 'numpy'", "torch")),
        (("train", "--model", "unett"), ("unknown model 'unett'", "unet")),
        (("train", "--model", "missing.onnx"), ("missing.onnx", "No such file")),
        (("train", "--optimizer", "adm"), ("unknown optimizer 'adm'", "adam")),
        (("train", "--optimizer", "accelegrad", "--native"), ("native optimizer", "accelegrad")),
        (("train", "--dataset", "mnst"), ("unknown dataset 'mnst'", "digits")),
        (("train", "--mode", "fast"), ("unknown mode 'fast'", "compile")),
        (("train", "--device", "cuda:99"), ("cuda:99",)),
        (("train", "--precision", "float31"), ("float31",)),
        (
            ("train", "--backend", "numpy", "--mode", "compile"),
            ("unknown option 'mode' of backend 'numpy'", "threads"),
        ),
        (("train", "--learning-rate", "-1"), ("learning_rate", "-1")),
        (("train", "--metric", "iouu"), ("iouu", "iou")),
        (("train", "--epochs", "0"), ("epochs", "0")),
        (("train", "--batch-size", "0"), ("batch_size", "0")),
        (("train", "--target-accuracy", "97"), ("97", "0.97")),
        (("train", "--model-option", "n"), ("--model-option: 'n' is not of the form key=value",)),
        (("train", "--model-option", "deep=3"), ("unknown option of model 'digits_cnn' 'deep'",)),
        (("train", "--optimizer-option", "beta3=1"), ("beta3",)),
        (("train", "--model", "unet"), ("size 8x8", "multiples of 16")),
        (("train", "--model", "unet", "--model-option", "size=16"), ("'image'", "[N, 1, 16, 16]")),
        (("train", "--save", "no/such/folder/x.onnx"), ("folder", "does not exist")),
        (("bench", "--quick", "--full"), ("exclude each other",)),
        (("bench", "--threads", "0"), ("--threads must be at least 1",)),
        (("bench", "--device", "cuda:99"), ("cuda:99",)),
        (("compare", "nowhere", "nowhere2"), ("nowhere", "no such folder")),
        (("compare", "."), ("no run folder", "run.json")),
    ],
)
def test_bad_input_is_one_clear_message(arguments, parts, tmp_path, here):
    code, out, err = here(*arguments, cwd=tmp_path)
    assert code == 2 and "meta500: error: " in err
    for part in parts:
        assert part in err
    assert not list(tmp_path.glob("runs/*/rows.csv")) or "rows" not in out


def test_bad_input_ends_the_process_without_a_traceback(tmp_path):
    refused(meta500("train", "--backend", "nump", cwd=tmp_path, check=False), "unknown backend 'nump'")


def test_unknown_options_and_verbs(tmp_path):
    for arguments in (("bench", "--fast"), ("bench", "speed"), ("benchh",)):
        done = meta500(*arguments, cwd=tmp_path, check=False)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert arguments[-1].lstrip("-") in done.stderr


def test_an_output_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    refused(
        meta500("bench", "layers", "--quick", "--out", "file/run", cwd=tmp_path, check=False),
        "file/run",
    )
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "something").write_text("precious")
    refused(
        meta500("bench", "layers", "--quick", "--out", "full", cwd=tmp_path, check=False), "full", "empty"
    )
    assert (tmp_path / "full" / "something").read_text() == "precious"


@pytest.mark.slow
def test_a_full_disk_keeps_the_rows_so_far(tmp_path):
    """A limit on the size of files stands in for a full disk: the same failing write."""
    import resource

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, 12_000))

    done = meta500(
        "bench",
        "layers",
        "--quick",
        "--threads",
        1,
        "--out",
        "run",
        cwd=tmp_path,
        check=False,
        preexec_fn=limit,
    )
    refused(done, "rows.csv", "rows so far are intact")
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "failed" and 3 < len(run.rows) < 100


def test_nan_losses_end_the_run_and_keep_the_gradients(tmp_path):
    done = meta500(
        "train", "--optimizer", "sgd", "--learning-rate", "1e30", "--out", "run", cwd=tmp_path, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "not finite" in done.stdout.lower() or "nan" in done.stdout.lower()
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "failed" and run.rows
    assert list((tmp_path / "run").glob("*.npz"))


def test_ctrl_c_keeps_the_rows_and_marks_the_run(tmp_path):
    # Tests that a shell runs in its background inherit that Ctrl-C is ignored.
    program = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "runpy.run_module('meta500', run_name='__main__', alter_sys=True)"
    )
    options = ("train", "--epochs", "100000", "--out", "run", "--threads", "1")
    process = subprocess.Popen(
        [sys.executable, "-c", program, *options],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    rows = tmp_path / "run" / "rows.csv"
    limit = time.monotonic() + 120
    while time.monotonic() < limit and not (rows.exists() and rows.read_text().count("\n") > 20):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in stderr and "interrupted" in stderr
    run = RunFolder.open(tmp_path / "run")
    assert run.status == "interrupted" and len(run.rows) > 20
    compared = meta500("compare", "run", "run", cwd=tmp_path)
    assert "interrupted" in compared.stdout


def test_help_shows_defaults_that_are_told_in_words():
    from typer.testing import CliRunner

    from meta500.cli.application import application

    text = CliRunner().invoke(application, ["train", "--help"], env={"COLUMNS": "200"}).stdout
    assert "Run folder. [default: runs/TIME-ID]" in text
