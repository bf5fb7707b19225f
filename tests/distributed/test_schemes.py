"""Distributed optimizers at 1 to 4 ranks, as real MPI processes; the proofs are in programs/."""

from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


@pytest.mark.sampled(4, first=2)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_times_batch_equals_one_rank_with_the_global_batch(mpiexec, ranks):
    """1e-12 in float64 after every step, uneven and empty batches included; replicas with the same bits."""
    backends = ["numpy", "torch"] if ranks in (2, 3) else ["numpy"]
    result = mpiexec(ranks, PROGRAMS / "consistent.py", ",".join(backends), timeout=120)
    assert result.stdout == f"checked {10 * len(backends)}\n"


@pytest.mark.slow
def test_generated_code_does_the_same(mpiexec):
    result = mpiexec(2, PROGRAMS / "consistent.py", "generated", "even", timeout=180)
    assert result.stdout == "checked 10\n"
    result = mpiexec(2, PROGRAMS / "recurrences.py", "generated", "even", timeout=180)
    assert result.stdout == "checked 12\n"


@pytest.mark.sampled(4, first=3)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_neighbors_and_model_average_follow_their_recurrences(mpiexec, ranks):
    """D-PSGD against X_{k+1} = W X_k - gamma G(X_k), local SGD against its own, simulated serially."""
    result = mpiexec(ranks, PROGRAMS / "recurrences.py", "torch" if ranks == 2 else "numpy", timeout=120)
    assert result.stdout == "checked 12\n"


@pytest.mark.sampled(4, first=2)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_asynchronous_schemes_wait_for_nobody_and_lose_nothing(mpiexec, ranks):
    """Also that staleness and leads are what the arranged order of events makes them."""
    assert mpiexec(ranks, PROGRAMS / "asynchronous.py", timeout=120).stdout == "checked\n"


@pytest.mark.sampled(3, first=1)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_schemes_promise(mpiexec, ranks):
    """Unequal starts, faults, statistics, native bases, hooks, saved state, compression, volume."""
    lines = mpiexec(ranks, PROGRAMS / "contracts.py", timeout=120).stdout.splitlines()
    assert [line.split()[1] for line in lines] == [
        "unequal_starts",
        "bad_options",
        "one_rank_has_all",
        "sum_of_losses",
        "running_statistics",
        "native_base",
        "hook",
        "recorded",
        "overlap",
        "native_state",
        "saved_state",
        "compression",
        "volume",
    ]


def test_training_repeats_bit_by_bit(mpiexec):
    """For a fixed number of ranks, two starts give the same parameters on every rank."""
    first = mpiexec(3, PROGRAMS / "digests.py").stdout
    assert len(first.splitlines()) == 3 * 6
    assert mpiexec(3, PROGRAMS / "digests.py").stdout == first


def test_a_failing_server_is_told_on_all_ranks(mpiexec):
    lines = sorted(mpiexec(2, PROGRAMS / "failing_server.py").stdout.splitlines())
    assert lines[0].startswith("rank 0: ") and "nan" in lines[0]
    assert lines[1] == (
        "rank 1: the server on rank 0 failed on a request of rank 1; its error is told by rank 0"
    )
