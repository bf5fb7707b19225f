"""Run by test_communication_windows.py on several ranks."""

import time

import ml_dtypes
import numpy as np
import pytest
import torch

from meta500.distributed import CommunicationNetwork, PeerTimeout
from meta500.errors import UserError

network = CommunicationNetwork(timeout=30)
rank, size = network.rank, network.size
following = (rank + 1) % size


def check_get_and_put():
    for make in (
        lambda v: np.full((3, 5), v),
        lambda v: np.full((3, 5), v, np.float16),
        lambda v: torch.full((4,), v),
        lambda v: torch.full((2, 3), v, dtype=torch.bfloat16),
        lambda v: np.full((0, 2), v),
        np.array,
    ):
        window = network.window(make(float(rank)))
        got = window.get(following)
        assert type(got) is type(window.local) is type(make(0.0))
        assert got.dtype == make(0.0).dtype
        assert (got == following).all()
        window.fence()
        window.put(following, make(rank + 10.0))
        window.fence()
        before = (rank - 1) % size
        assert (window.local == before + 10).all()
        out = make(0.0)
        assert window.get(following, out=out) is out
        assert (out == rank + 10).all()
        window.free()


def check_accumulate_loses_nothing():
    for dtype in (np.float64, np.float32, np.int64, np.float16, ml_dtypes.bfloat16):
        window = network.window(np.zeros(33, dtype))
        for _ in range(20):
            window.accumulate(0, np.ones(33, dtype))
        window.fence()
        assert (window.get(0) == 20 * size).all()
        window.fence()
        window.accumulate(0, np.full(33, 100 * rank, dtype), op="max")
        window.fence()
        assert (window.get(0) == max(100 * (size - 1), 20 * size)).all()
        window.free()


def check_updates_are_seen_whole():
    """Readers between writers: every value is one that some rank wrote everywhere."""
    window = network.window(np.zeros(5000))
    for k in range(30):
        window.put(0, np.full(5000, 1000.0 * rank + k))
        seen = window.get(0)
        assert (seen == seen[0]).all()
    window.free()


def check_exclusive_lock_protects_read_and_write():
    window = network.window(np.zeros(2))
    for _ in range(50):
        with window.locked(0):
            value = window.get(0)
            window.put(0, value + 1)
    window.fence()
    assert (window.get(0) == 50 * size).all()
    window.free()


def check_fetch_add_counts():
    window = network.window(np.zeros(3, np.int64))
    mine = [int(window.fetch_add(0, 1, index=2)) for _ in range(25)]
    assert mine == sorted(set(mine))
    everyone = network.gather_objects(mine)
    if rank == 0:
        assert sorted(number for numbers in everyone for number in numbers) == list(range(25 * size))
        assert window.local.tolist() == [0, 0, 25 * size]
    window.free()


def check_busy_owner_is_read():
    """The owner computes, outside of MPI, for as long as the others read."""
    window = network.window(np.full(1000, 3.0))
    if size > 1:
        busy = network.window(np.zeros(1, np.int64))
        if rank == 0:
            end = time.monotonic() + 20
            while busy.local[0] < size - 1 and time.monotonic() < end:
                busy._win.Sync()
            assert busy.local[0] == size - 1
        else:
            assert (window.get(0) == 3).all()
            busy.fetch_add(0, 1)
        busy.fence()
        busy.free()
    window.free()


def check_refusals():
    window = network.window(np.zeros(3))
    half = network.window(np.zeros(3, np.float16))
    cases = [
        (lambda: window.put(0, np.zeros(4)), r"float64 \[4\], the window has float64 \[3\]"),
        (lambda: window.put(0, np.zeros(3, np.float32)), "float32"),
        (lambda: window.accumulate(0, np.zeros(3), op="mean"), "unknown operation"),
        (lambda: window.get(size), "rank has to be"),
        (lambda: window.unlock(0), "holds no lock"),
        (lambda: window.fetch_add(0, 1, index=3), "index"),
        (lambda: half.fetch_add(0, 1), "atomic"),
    ]
    for call, text in cases:
        with pytest.raises(UserError, match=text):
            call()
    with window.locked(rank), pytest.raises(UserError, match="holds a lock"):
        window.lock(rank)
    with half.locked(0, exclusive=False), pytest.raises(UserError, match="exclusive lock"):
        half.accumulate(0, np.ones(3, np.float16))
    window.fence()
    # Someone keeps the lock for ever.
    if size > 1:
        network.timeout = 0.3
        if rank == 0:
            window.lock(0)
        network.comm.Barrier()
        if rank == 1:
            for access in (lambda: window.lock(0), lambda: window.get(0)):
                with pytest.raises(PeerTimeout, match="window lock of rank 0 on rank 1"):
                    access()
        network.comm.Barrier()
        network.timeout = 30
        if rank == 0:
            window.unlock(0)
        window.fence()
        assert (window.get(0) == 0).all()
    window.free()
    half.free()
    if size > 1:
        with pytest.raises(UserError, match=r"rank 1 gives float64 \[1\], rank 0 float64 \[0\]"):
            network.window(np.zeros(min(rank, 1)))


for check in [value for name, value in sorted(globals().items()) if name.startswith("check_")]:
    check()
    network.barrier()
network.close()
