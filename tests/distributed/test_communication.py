"""CommunicationNetwork on real ranks, and its parts that need none."""

import math
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from meta500.distributed import buckets, buffers
from meta500.distributed.mpi import launched_rank, launched_ranks
from meta500.distributed.volume import Counters, Volume
from meta500.errors import UserError

HERE = Path(__file__).parent


@pytest.mark.sampled(4, first=2)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_operations_against_numpy(mpiexec, ranks):
    done = mpiexec(ranks, HERE / "communication_checks.py", timeout=180)
    assert done.stderr.count("checks") == ranks


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_operations_against_numpy_at_length(mpiexec, ranks):
    done = mpiexec(ranks, HERE / "communication_checks.py", timeout=590, env={"META500_EXAMPLES": "100"})
    assert done.stderr.count("checks") == ranks


def test_importing_loads_neither_mpi_nor_torch():
    program = (
        "import sys, meta500, meta500.distributed, meta500.distributed.communication, "
        "meta500.distributed.timeline, meta500.distributed.windows, meta500.distributed.compression\n"
        "bad = [m for m in ('mpi4py', 'mpi4py.MPI', 'torch') if m in sys.modules]\n"
        "sys.exit(f'imported: {bad}' if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_missing_mpi4py_is_told_with_the_remedy(tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py" / "__init__.py").write_text("")
    (tmp_path / "mpi4py" / "MPI.py").write_text(
        "raise RuntimeError('cannot load MPI library\\nlibmpi.so.12: none')"
    )
    program = (
        "from meta500.distributed import CommunicationNetwork\n"
        "from meta500.errors import UserError\n"
        "try:\n    CommunicationNetwork()\nexcept UserError as error:\n    print(error)"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{HERE.parents[1]}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert "no MPI library (cannot load MPI library)" in done.stdout
    assert "meta500[mpi]" in done.stdout
    (tmp_path / "mpi4py" / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'mpi4py'\", name='mpi4py')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert "needs mpi4py, which is not installed" in done.stdout


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, (None, None)),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, (4, 3)),
        ({"OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_RANK": "0", "PMIX_RANK": "0"}, (8, 0)),
        # A batch script is no rank; a step that srun starts is one.
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, (None, None)),
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "5", "SLURM_STEP_ID": "0"}, (16, 5)),
        ({"PMI_SIZE": "x", "PMI_RANK": "1"}, (None, None)),
    ],
)
def test_what_the_launcher_says(variables, expected):
    assert (launched_ranks(variables), launched_rank(variables)) == expected


def test_launched_ranks_under_mpiexec(mpiexec):
    done = mpiexec(2, "from meta500.distributed.mpi import *\nprint(launched_ranks(), launched_rank())\n")
    assert sorted(done.stdout.split("\n")[:2]) == ["2 0", "2 1"]


def test_buffers_share_memory():
    array = np.arange(6.0).reshape(2, 3)
    assert buffers.packed(array) is array
    assert buffers.native(array, array) is array
    for dtype in (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
    ):
        tensor = torch.arange(6).reshape(2, 3).to(dtype)
        view = buffers.packed(tensor)
        assert view.__array_interface__["data"][0] == tensor.data_ptr()
        assert view.astype(np.float64).tolist() == [[0, 1, 2], [3, 4, 5]]
        back = buffers.native(view, tensor)
        assert back.data_ptr() == tensor.data_ptr()
        assert back.dtype == dtype
    assert not np.shares_memory(buffers.packed(array.T), array)


def test_element_types():
    half = np.dtype(np.float32)
    assert [
        buffers.wire_dtype(np.dtype(d)) for d in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2)
    ] == [half] * 3
    assert buffers.wire_dtype(np.dtype(np.float64)) == np.float64
    for dtype in (np.complex64, np.bool_, ml_dtypes.int4):
        with pytest.raises(UserError, match="cannot be reduced"):
            buffers.wire_dtype(np.dtype(dtype))


def test_store_rounds_once_into_strided_memory():
    out = torch.zeros(3, 2, dtype=torch.bfloat16).T
    values = np.array([[1.0, 1.00390625, -3.14159], [0.1, 65536.5, np.inf]], np.float32)
    buffers.store(values, out)
    assert torch.equal(out, torch.from_numpy(values).to(torch.bfloat16))
    parameter = torch.nn.Parameter(torch.zeros(2))
    buffers.store(np.array([1.0, 2.0], np.float32), parameter)
    assert parameter.tolist() == [1.0, 2.0]


def test_plan_covers_every_tensor_once():
    rng = np.random.default_rng(0)
    f4, f8, f2 = (np.dtype(t) for t in ("float32", "float64", "float16"))
    for weighted in (False, True):
        for bucket_bytes in (1, 1000, 10**6, 10**9):
            sizes = [int(10 ** rng.uniform(0, 5.5)) for _ in range(60)]
            types = [(f4, f8, f2)[k % 3] for k in range(60)]
            signature = [(f"p{k}", (n,), t) for k, (n, t) in enumerate(zip(sizes, types, strict=True))]
            layout = buckets.plan(signature, bucket_bytes, weighted)
            shuffled = buckets.plan([signature[k] for k in rng.permutation(60)], bucket_bytes, weighted)
            assert layout == shuffled
            names = [part.name for bucket in layout.buckets for part in bucket.parts] + list(layout.alone)
            assert sorted(names) == sorted(f"p{k}" for k in range(60))
            assert [bucket.weighted for bucket in layout.buckets] == [weighted] + [False] * (
                len(layout.buckets) - 1
            )
            for name in layout.alone:
                k = int(name[1:])
                assert types[k] != f2 and sizes[k] * types[k].itemsize >= buckets.LARGE_BYTES
            for bucket in layout.buckets:
                end = 0
                for part in bucket.parts:
                    assert part.start == end
                    end += part.count
                assert bucket.count == end + bucket.weighted
                # Closed as soon as it is full: without its last part it was not.
                assert (end - bucket.parts[-1].count) * bucket.dtype.itemsize < bucket_bytes


def test_weight_needs_no_further_message():
    f4 = np.dtype(np.float32)
    signature = [("a", (1000, 1000), f4), ("b", (500, 500), f4)]
    assert buckets.plan(signature, 10**6, False) == buckets.Plan((), ("a", "b"))
    layout = buckets.plan(signature, 10**6, True)
    assert [[p.name for p in bucket.parts] for bucket in layout.buckets] == [["b"]]
    assert layout.alone == ("a",)


def test_ring_counts_neighbours_once():
    assert buckets.ring_weights(0, 1) == {0: 1.0}
    assert buckets.ring_weights(1, 2) == {0: 0.5, 1: 0.5}
    for size in (3, 4, 7):
        matrix = np.zeros((size, size))
        for rank in range(size):
            for other, weight in buckets.ring_weights(rank, size).items():
                matrix[rank, other] = weight
        np.testing.assert_allclose(matrix.sum(0), 1)
        np.testing.assert_allclose(matrix, matrix.T)
        assert np.count_nonzero(matrix) == 3 * size


def test_counters_add_up():
    counters = Counters()
    counters.add("a", 10, 20, 2_000_000_000)
    counters.add("a", 1, 2, 500_000_000)
    counters.add("b", 5, 0, 1)
    before = counters.snapshot()
    assert counters["a"] == Volume(2, 11, 22, 2.5)
    assert counters["c"] == Volume()
    assert counters.total().sent == 16
    counters.add("a", 4, 4, 0)
    assert counters["a"] - before["a"] == Volume(1, 4, 4, 0.0)
    rows = counters.rows(1, 2, optimizer="adam")
    assert [(r.operator, r.quantity) for r in rows[:4]] == [
        ("a", "calls"), ("a", "bytes_sent"), ("a", "bytes_received"), ("a", "time")
    ]  # fmt: skip
    assert {(r.level, r.ranks, r.note, r.optimizer) for r in rows} == {(3, 2, "rank 1", "adam")}
    assert math.isclose(rows[3].value, 2.5)


def test_a_dead_rank_ends_a_wait(mpiexec):
    """The partner sleeps instead of coming; the waiting rank gives up in time and says where."""
    program = """
import os, time
import numpy as np
from meta500.distributed import CommunicationNetwork, PeerTimeout
network = CommunicationNetwork(timeout=0.5)
if network.rank == 0:
    begin = time.monotonic()
    try:
        network.barrier()
    except PeerTimeout as error:
        print(error, flush=True)
    assert time.monotonic() - begin < 10
    os._exit(3)
time.sleep(60)
"""
    done = mpiexec(2, program, returncode="failure", timeout=40)
    assert "barrier on rank 0 of 2 waited 0.5 s in vain" in done.stdout


def test_tensors_on_the_same_memory_are_reduced_once(mpiexec):
    program = """
import numpy as np
from meta500.distributed import CommunicationNetwork
network = CommunicationNetwork()
shared = np.full(200_000, network.rank + 1.0)
found = network.sync_all_many({"a": shared, "b": shared}, weight=float(network.rank + 1), in_place=True)
assert np.allclose(found["a"], 5 / 3) and np.allclose(found["b"], 5 / 3), found
one = np.full(200_000, float(network.rank))
# The last batch lies on one rank alone.
found = network.sync_all_many({"a": one}, weight=float(network.rank == 1))
assert (found["a"] == 1).all() and (one == network.rank).all()
print("once", flush=True)
"""
    assert mpiexec(2, program).stdout.count("once") == 2


def test_an_exchange_that_was_given_up_is_the_last(mpiexec):
    """What the late rank sends for it must not be taken for the next one's."""
    program = """
import time
import numpy as np
from meta500.distributed import CommunicationNetwork, PeerTimeout
from meta500.errors import UserError
network = CommunicationNetwork(timeout=1.0)
large = np.ones(1_000_000)
if network.rank == 0:
    try:
        network.sync_all(large)
    except PeerTimeout:
        print("late", flush=True)
    try:
        network.sync_all(2 * large)
    except UserError as error:
        print("refused", "make a new CommunicationNetwork" in str(error), flush=True)
else:
    time.sleep(2.5)
network.comm.Abort(3)
"""
    done = mpiexec(2, program, returncode="failure")
    assert "late\nrefused True" in done.stdout
