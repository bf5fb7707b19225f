"""Pieces: what is left out with a reason, and what one failure must not cost."""

import pytest

from meta500.benchmarks.studies.codegen import Settings, generation, pieces, plan, sections
from meta500.benchmarks.studies.codegen.generation import measure_generation
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.benchmarks.variants import GENERATED, PLAIN_TORCH
from meta500.benchmarks.workers import WorkerFailed

POINTS = [Point(n, 64, 2, "float32", 1) for n in (0, 1, 2)]


@pytest.fixture
def calls(monkeypatch):
    """Stands in for the measurements; who is measured, with which options."""
    found = []

    def record(name):
        def called(*arguments, **options):
            found.append((name, arguments, options))

        return called

    for name in ("epochs", "memory", "layers", "convolutions", "generation", "first_calls"):
        monkeypatch.setattr(pieces, f"measure_{name}", record(name))
    return found


def rows_of(settings):
    rows = []
    for piece in plan(settings).pieces:
        piece.run(rows.append)
    return rows


@pytest.mark.parametrize("quick", [True, False])
def test_without_a_compiler_everything_of_the_generated_code_is_unsupported(monkeypatch, calls, quick):
    monkeypatch.setattr(pieces, "compiler_problem", lambda threads: "no C++ compiler is installed")
    settings = Settings(quick=quick, threads=1, n=(0,), batches=(2,))
    refused = [row for row in rows_of(settings) if row.backend == GENERATED]
    assert {row.quantity for row in refused} >= {"time", "epoch_rate", "peak_memory"}
    assert {(row.value, row.verdict, row.note) for row in refused} == {
        (None, "unsupported", "no C++ compiler is installed")
    }
    assert {name for name, _, _ in calls} == {"epochs", "memory", "convolutions"} | (
        set() if quick else {"first_calls"}
    )
    for name, arguments, _ in calls:
        if name != "convolutions":
            assert {v.backend for v in arguments[1]} == {PLAIN_TORCH}


def test_quick_says_that_the_compiler_of_pytorch_is_left_out(calls, monkeypatch):
    monkeypatch.setattr(pieces, "compiler_problem", lambda threads: "")
    (row,) = rows_of(Settings(quick=True))
    assert (row.backend, row.mode, row.model) == (PLAIN_TORCH, "compile", "unet-0")
    assert (row.quantity, row.value, row.verdict) == ("epoch_rate", None, "unsupported")
    assert row.note == (
        "left out of the quick mode: its first call alone takes most of a minute; the full mode has it"
    )
    # The error against double precision is measured once.
    errors = [options["error"] for name, _, options in calls if name == "epochs"]
    assert errors.count(True) == 1 and errors[0]
    assert sections([row])


def test_long_pieces_end_in_time(calls):
    rows_of(Settings(threads=1, n=(0,)))
    limits = {name: options.get("max_seconds") for name, _, options in calls}
    assert (limits["epochs"], limits["memory"]) == (600.0, 1800.0)


def test_what_is_asked_for_is_measured(calls):
    """Batch, size and seed reach the parts as they were given."""
    rows_of(Settings(quick=True, threads=1, n=(0,), batches=(1,), size=64, seed=3))
    given = {name: (arguments, options) for name, arguments, options in calls}
    (point, *_, seed), _ = given["convolutions"]
    assert (point.batch, point.size, seed) == (1, 64, 3)
    (point, *_, seed), _ = given["layers"]
    assert (point.batch, point.size, seed) == (1, 64, 3)
    calls.clear()
    rows_of(Settings(quick=True, threads=1, parts=("roofline",)))
    ((_, (point, *_), _),) = calls
    assert (point.batch, point.size) == (8, 256)


class Generator:
    """A process that generates in known seconds; that of ``broken`` fails in its second round."""

    def __init__(self, n, broken):
        self.n, self.broken, self.asked = n, broken, 0

    def ask(self, order, limit, cache):
        self.asked += 1
        if self.n == self.broken and self.asked == 3:
            raise WorkerFailed("generate: the process ended with signal SIGKILL")
        steps = {"lowering": 1.0, "scheduling": 2.0, "printing": 3.0}
        return steps | ({"compiling": 4.0} if cache else {})


def test_a_network_that_fails_costs_no_other(monkeypatch, tmp_path):
    def made_worker(stack, point, seed):
        if point.n == 0:
            raise WorkerFailed("make: no memory")
        return Generator(point.n, 1), {"parameters": 7}

    monkeypatch.setattr(generation, "made_worker", made_worker)
    rows = []
    measure_generation(POINTS, 3, 2, tmp_path, rows.append)
    failed = {row.model: row.note for row in rows if row.verdict == "failed"}
    assert failed == {
        "unet-0": "make: no memory",
        "unet-1": "generate: the process ended with signal SIGKILL",
    }
    times = {(row.model, row.phase): row.samples for row in rows if row.value is not None and row.unit == "s"}
    assert times == {
        ("unet-2", "lowering"): (1.0,) * 3,
        ("unet-2", "scheduling"): (2.0,) * 3,
        ("unet-2", "printing"): (3.0,) * 3,
        ("unet-2", "compiling"): (4.0,) * 2,
        ("unet-2", "generating"): (6.0,) * 3,
    }
    assert sections(rows)
