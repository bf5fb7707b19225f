"""Parts of the study on networks so small that they take seconds."""

import os

import pytest

from meta500.benchmarks.studies.codegen import Settings, plan, sections
from meta500.benchmarks.studies.codegen.epochs import measure_epochs
from meta500.benchmarks.studies.codegen.generation import measure_generation
from meta500.benchmarks.studies.codegen.memory import foresee, measure_memory
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.benchmarks.variants import GENERATED, PLAIN_TORCH, VARIANTS

TINY = Point(0, 16, 1, "float32", 1)
BOTH = [VARIANTS["generated"], VARIANTS["eager"]]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def test_epochs_generation_and_memory_of_a_tiny_network(cache):
    """One program: what generation compiles is what the other parts run."""
    rows = []
    environment = {"META500_CACHE": str(cache)}
    measure_generation([TINY], 2, 1, cache, rows.append)
    libraries = os.listdir(cache / "libraries")
    assert len(libraries) == 1
    measure_epochs(TINY, BOTH, 2, environment, rows.append, warmup=1)
    measure_memory(TINY, BOTH[:1], 1, environment, rows.append)
    assert os.listdir(cache / "libraries") == libraries
    (parameters,) = (r.value for r in rows if r.quantity == "parameters")
    assert parameters == 5879
    steps = {
        r.phase: len(r.samples) for r in rows if r.quantity == "time" and r.model and "cache" in r.protocol
    }
    assert steps == {"lowering": 2, "scheduling": 2, "printing": 2, "compiling": 1, "generating": 2}
    rates = {r.backend: r for r in rows if r.quantity == "epoch_rate"}
    times = {r.backend: r for r in rows if r.quantity == "time" and r.phase == "training_step"}
    assert set(rates) == {GENERATED, PLAIN_TORCH}
    for backend, rate in rates.items():
        assert rate.samples == pytest.approx([1 / (128 * s) for s in times[backend].samples])
        assert rate.verdict != "wrong"
    assert rates[GENERATED].verdict == "ok" and 0 < rates[GENERATED].error <= rates[GENERATED].tolerance
    memory = {r.quantity: r.value for r in rows if r.backend == GENERATED and r.unit == "B"}
    assert 0 < memory["planned_memory"] < memory["memory_before"] < memory["peak_memory"] < 2**30
    titles = [s.title for s in sections(rows)]
    assert titles[0] == "Findings" and len(titles) == 6


@pytest.mark.slow
def test_what_is_foreseen_from_smaller_batches():
    """Processes of PyTorch at an eighth and a quarter of the batch."""
    point = Point(0, 16, 8, "float32", 1)
    found = foresee(point, BOTH[1:], {})["eager"]
    assert (found.first.batch, found.second.batch, found.point) == (1, 2, point)
    assert min(found.peaks) > 2**26 and found.peaks[1] <= found.bytes < 2**31


@pytest.mark.slow
def test_double_precision_is_measured_and_right(tmp_path):
    rows = []
    point = Point(0, 32, 2, "float64", 2)
    variants = [*BOTH, VARIANTS["channels-last"], VARIANTS["compile"]]
    measure_epochs(point, variants, 2, {"META500_CACHE": str(tmp_path)}, rows.append)
    rates = [r for r in rows if r.quantity == "epoch_rate"]
    assert len(rates) == 4 and {r.dtype for r in rates} == {"float64"}
    assert all(r.verdict != "wrong" for r in rates)
    (ours,) = (r for r in rates if r.backend == GENERATED)
    assert ours.verdict == "ok" and ours.error < 1e-12


@pytest.mark.slow
def test_all_pieces_of_a_tiny_quick_study():
    settings = Settings(quick=True, threads=1, n=(0,), size=32, batches=(2,))
    rows = []
    for piece in plan(settings).pieces:
        piece.run(rows.append)
    assert not [r for r in rows if r.verdict in ("failed", "wrong")]
    assert {r.quantity for r in rows} >= {"epoch_rate", "peak_memory", "layer_share", "light_share"}
    for section in sections(rows):
        assert not any("Not measured: the part" in getattr(part, "text", "") for part in section.parts)
