"""Every example runs as a user would run it, and stays under 60 lines."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_there_are_examples():
    assert len(EXAMPLES) >= 6


# Their subjects have tests of their own.
LONG = ("compare_backends", "custom_operator", "find_difference", "own_optimizer", "train_without_python")


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=[pytest.mark.slow] if p.stem in LONG else []) for p in EXAMPLES],
    ids=[p.stem for p in EXAMPLES],
)
def test_example(path, tmp_path):
    assert len(path.read_text().splitlines()) < 60
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
