"""Workers: orders and answers, failures, limits, environment, and that they end with their parent."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from meta500.benchmarks.workers import Worker, WorkerFailed

LIMIT = 60.0
PROGRAM = """
import os, subprocess, sys, time
from meta500.benchmarks.workers import serve
from meta500.errors import UserError

def add(order):
    print("this goes to standard error")
    return order["a"] + order["b"]

def refuse(order):
    raise UserError("not this")

def crash(order):
    return 1 / 0

def die(order):
    sys.stderr.write("last words\\n")
    sys.stderr.flush()
    os._exit(3)

def variable(order):
    return {name: os.environ.get(name) for name in order["names"]}

def child(order):
    return subprocess.Popen(["sleep", "100"]).pid

def sleep(order):
    time.sleep(order["seconds"])

serve(dict(add=add, refuse=refuse, crash=crash, die=die, variable=variable, child=child, sleep=sleep))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "orders_of_a_test.py").write_text(PROGRAM)
    root = Path(__file__).parents[2]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(root)]))
    return "orders_of_a_test"


def alive(pid):
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def gone(pid):
    """Whether a process ends within a few seconds."""
    end = time.monotonic() + 10
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not alive(pid)


def test_orders_and_answers(module):
    with Worker(module) as worker:
        assert worker.ask("add", LIMIT, a=1, b=2) == 3
        assert worker.ask("add", LIMIT, a="x" * 100_000, b="y") == "x" * 100_000 + "y"
    assert gone(worker.pid)


def test_a_failed_order_is_told_and_the_worker_goes_on(module):
    with Worker(module) as worker:
        with pytest.raises(WorkerFailed, match="^not this$"):
            worker.ask("refuse", LIMIT)
        with pytest.raises(WorkerFailed, match="ZeroDivisionError: division by zero"):
            worker.ask("crash", LIMIT)
        assert worker.ask("add", LIMIT, a=1, b=1) == 2


def test_a_death_is_told_with_its_status_and_last_words(module):
    with Worker(module) as worker:
        with pytest.raises(WorkerFailed, match="die: the process ended with status 3: last words"):
            worker.ask("die", LIMIT)
        with pytest.raises(WorkerFailed, match="add: the process ended"):
            worker.ask("add", LIMIT, a=1, b=1)


def test_a_killed_worker_is_told_by_its_signal(module):
    with Worker(module) as worker:
        worker.ask("add", LIMIT, a=1, b=1)
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerFailed, match="SIGKILL"):
            worker.ask("add", LIMIT, a=1, b=1)


def test_a_limit_ends_the_worker_and_its_children(module):
    with Worker(module) as worker:
        child = worker.ask("child", LIMIT)
        with pytest.raises(WorkerFailed, match=r"sleep: no answer after 0.2 s"):
            worker.ask("sleep", 0.2, seconds=100)
        assert gone(worker.pid) and gone(child)


def test_closing_ends_the_children(module):
    with Worker(module) as worker:
        child = worker.ask("child", LIMIT)
        assert alive(child)
    assert gone(child)


def test_a_module_that_does_not_exist():
    with (
        Worker("no_such_module_at_all") as worker,
        pytest.raises(WorkerFailed, match="no_such_module_at_all"),
    ):
        worker.ask("add", LIMIT, a=1, b=1)


def test_only_the_given_settings_of_libraries_hold(module, monkeypatch):
    for name in ("OMP_NUM_THREADS", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("KEPT", "yes")
    names = ["OMP_NUM_THREADS", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES", "GOMP_SPINCOUNT", "KEPT"]
    with Worker(module, {"OMP_NUM_THREADS": "2"}) as worker:
        assert list(worker.ask("variable", LIMIT, names=names).values()) == ["2", None, None, None, "yes"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs the parent death signal")
def test_a_busy_worker_ends_when_its_parent_dies(module):
    parent = textwrap.dedent(f"""
        import threading
        from meta500.benchmarks.workers import Worker
        worker = Worker({module!r})
        worker.ask("add", 60, a=1, b=1)
        print(worker.pid, flush=True)
        worker.ask("sleep", 100, seconds=100)
        """)
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        pid = int(process.stdout.readline())
        assert alive(pid)
        process.kill()
    assert gone(pid)
