"""Recipes in real processes: Ctrl-C and going on, a training in a process of its own, a crash of one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from meta500.benchmarks.recipes import execution, worker
from meta500.benchmarks.recipes.execution import run_recipe
from meta500.benchmarks.recipes.folder import opened
from meta500.benchmarks.recipes.recipe import read
from meta500.metrics.run import RunFolder

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
METRIC = '[[metrics]]\nname = "accuracy"\nquantity = "test_accuracy"\n'
MEMORY = '[[metrics]]\nname = "memory"\nquantity = "peak_memory"\n'


def started(path, out):
    return subprocess.Popen(
        [sys.executable, "-m", "meta500", "recipe", "run", str(path), "--out", str(out)],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_ctrl_c_and_going_on(tiny, tmp_path):
    # Long enough that the second training is hit for sure, and is over soon.
    path, out = tiny("epochs = 1", "epochs = 30"), tmp_path / "out"
    process = started(path, out)
    deadline = time.monotonic() + 300
    while not (out / "run-1" / "rows.csv").exists() and process.poll() is None:
        assert time.monotonic() < deadline, "the second training has not begun"
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=300)
    assert process.returncode == 130, told
    assert "Traceback" not in told and f"--out {out}" in told and "interrupted" in told
    found = json.loads((out / "recipe.json").read_text())
    assert found["status"] == "interrupted" and list(found["metrics"][0]["values"]) == ["0"]
    rows = (out / "run-0" / "rows.csv").read_bytes()
    again = started(path, out)
    printed, told = again.communicate(timeout=300)
    assert again.returncode in (0, 1, 3) and "seed 0 (training 1 of 2): finished earlier" in told
    found = json.loads((out / "recipe.json").read_text())
    assert again.returncode == {"reproduced": 0, "not reproduced": 1, "undecided": 3}[found["verdict"]]
    assert f"Recipe 'tiny', 2 seeds: {found['verdict']}" in printed
    assert found["status"] == "finished" and list(found["metrics"][0]["values"]) == ["0", "1"]
    assert (out / "run-0" / "rows.csv").read_bytes() == rows
    assert RunFolder.open(out / "run-1.interrupted-1").status == "interrupted"


def test_a_process_of_its_own_gives_the_same_and_its_memory(tiny, tmp_path):
    apart = tiny("seeds = 2", "seeds = 1\nisolated = true", METRIC, MEMORY + METRIC, name="apart.toml")
    _, (memory, accuracy) = run_recipe(read(apart), out=tmp_path / "apart")
    _, (here,) = run_recipe(read(tiny()), out=tmp_path / "here", seeds=1)
    assert accuracy.values == here.values
    assert 20e6 < memory.values[0] < 20e9  # more than an interpreter with numpy, less than a machine
    assert RunFolder.open(tmp_path / "apart" / "run-0").status == "finished"


def test_a_process_that_dies_is_a_failed_training(tiny, tmp_path, monkeypatch):
    recipe = read(tiny("seeds = 2", "seeds = 1\nisolated = true"))
    # Stands for the worker: it makes a run folder and is killed as by the kernel that runs out of memory.
    dying = tmp_path / "dying"
    dying.write_text(
        f"#!{sys.executable}\n"
        "import json, os, signal, sys\n"
        "from meta500.benchmarks.recipes import values\n"
        "from meta500.benchmarks.recipes.folder import plain\n"
        "from dataclasses import asdict\n"
        "from meta500.metrics.run import RunFolder\n"
        "job = json.load(sys.stdin)\n"
        "folder = RunFolder.create(job['path'], environment={})\n"
        "folder.info |= {'setup': plain(asdict(values.setup_from(job['values'], job['seed']))), 'measured': {}}\n"
        "folder._save()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    dying.chmod(0o755)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(worker.sys, "executable", str(dying))
    _, (verdict,) = run_recipe(recipe, out=tmp_path / "out")
    assert verdict.verdict == "not reproduced" and "signal 9 (SIGKILL)" in verdict.reason
    assert execution.exit_code([verdict]) == 1


def test_an_isolated_training_ends_with_its_parent(tiny, tmp_path):
    path, out = (
        tiny("epochs = 1", "epochs = 100000", "seeds = 2", "seeds = 2\nisolated = true"),
        tmp_path / "out",
    )
    process = started(path, out)
    deadline = time.monotonic() + 60
    while not (out / "run-0" / "rows.csv").exists() and process.poll() is None:
        assert time.monotonic() < deadline, "the training has not begun"
        time.sleep(0.02)
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    try:
        held = [os.path.realpath(entry) for entry in Path(f"/proc/{child}/fd").iterdir()]
        assert str((out / ".lock").resolve()) in held  # no second run while it lives
        process.kill()
        process.communicate(timeout=60)
        while (
            Path(f"/proc/{child}/stat").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z"
        ):
            assert time.monotonic() < deadline, "the training outlived its parent"
            time.sleep(0.02)
    except BaseException:
        process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(child), signal.SIGKILL)
        raise
    with opened(read(path), out, None, False) as folder:
        assert folder.seeds == (0, 1)
