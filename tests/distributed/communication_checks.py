"""Run by test_communication.py on several ranks: every operation against numpy. Ends silently if all is right."""

import os
import sys

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from meta500.distributed import CommunicationNetwork, PeerTimeout, ring
from meta500.distributed.mpi import mpi
from meta500.errors import UserError

network = CommunicationNetwork(timeout=20)
rank, size = network.rank, network.size

# All ranks draw the same examples; the arrays of any rank can be made on all.
examples = settings(
    max_examples=int(os.environ.get("META500_EXAMPLES", "8")), derandomize=True, database=None, deadline=None
)
DTYPES = ("float64", "float32", "float16", "bfloat16")
EPSILON = {"float64": 2e-15, "float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}
shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


def array_of(r, shape, dtype, draw=0):
    rng = np.random.default_rng([r, draw, *shape])
    return rng.normal(size=shape).astype(np.float32).astype(dtype)


def native_of(array, kind):
    """The array as a tensor of a kind: contiguous, strided or torch."""
    if kind == "numpy":
        return array.copy()
    if kind == "strided":
        wide = np.zeros((*array.shape, 2), array.dtype)
        wide[..., 1] = array
        return wide[..., 1]
    if array.dtype == ml_dtypes.bfloat16:
        tensor = torch.from_numpy(array.astype(np.float32)).to(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array.copy())
    if kind == "torch transposed":
        return tensor.mT.contiguous().mT if tensor.ndim > 1 else tensor
    return tensor.requires_grad_(kind == "torch parameter")


kinds = st.sampled_from(["numpy", "strided", "torch", "torch transposed", "torch parameter"])


def numbers(tensor):
    if isinstance(tensor, torch.Tensor):
        return tensor.detach().to(torch.float64).numpy()
    return np.asarray(tensor).astype(np.float64)


def same_kind(result, tensor):
    assert type(result) is (torch.Tensor if isinstance(tensor, torch.Tensor) else np.ndarray)
    assert result.dtype == tensor.dtype
    assert tuple(result.shape) == tuple(tensor.shape)


def close(result, expected, dtype):
    np.testing.assert_allclose(numbers(result), expected, rtol=EPSILON[dtype], atol=4 * size * EPSILON[dtype])


@examples
@seed(1)
@given(shapes, st.sampled_from(DTYPES), kinds, st.sampled_from(["mean", "sum", "max", "min"]), st.booleans())
def check_sync_all(shape, dtype, kind, op, blocking):
    arrays = [array_of(r, shape, dtype) for r in range(size)]
    stacked = np.stack([a.astype(np.float64) for a in arrays])
    expected = getattr(stacked, op)(axis=0)
    tensor = native_of(arrays[rank], kind)
    run = network.sync_all if blocking else (lambda *a, **k: network.sync_all_start(*a, **k).wait())
    result = run(tensor, op=op)
    same_kind(result, tensor)
    close(result, expected, dtype)
    np.testing.assert_array_equal(numbers(tensor), numbers(arrays[rank]))
    if kind != "torch parameter":
        out = native_of(np.zeros(shape, dtype), kind)
        assert run(tensor, op=op, out=out) is out
        close(out, expected, dtype)
        assert run(tensor, op=op, out=tensor) is tensor
        close(tensor, expected, dtype)
    at_root = network.sync_all_at_root(native_of(arrays[rank], kind), op=op)
    if network.is_root:
        close(at_root, expected, dtype)
    else:
        assert at_root is None


@examples
@seed(2)
@given(shapes, st.sampled_from(DTYPES), kinds, st.integers(0, size - 1))
def check_movement(shape, dtype, kind, source):
    arrays = [array_of(r, shape, dtype) for r in range(size)]
    tensor = native_of(arrays[rank], kind)
    everywhere = network.sync_all_with_root(tensor)
    same_kind(everywhere, tensor)
    np.testing.assert_array_equal(numbers(everywhere), numbers(arrays[0]))
    np.testing.assert_array_equal(numbers(tensor), numbers(arrays[rank]))
    out = native_of(np.ones(shape, dtype), "torch" if isinstance(tensor, torch.Tensor) else kind)
    assert network.sync_all_with_root(tensor, out=out) is out
    np.testing.assert_array_equal(numbers(out), numbers(arrays[0]))
    gathered = network.gather_at_root(tensor)
    if network.is_root:
        for part, array in zip(gathered, arrays, strict=True):
            same_kind(part, tensor)
            np.testing.assert_array_equal(numbers(part), numbers(array))
    else:
        assert gathered is None
    # Every rank sends to the next one.
    pending = network.send_to_rank_start(tensor, (rank + 1) % size, 5)
    before = (rank - 1) % size
    received = network.wait_for_rank(tensor, before, 5)
    pending.wait()
    same_kind(received, tensor)
    np.testing.assert_array_equal(numbers(received), numbers(arrays[before]))
    if rank == source:
        parts = {}
        for _ in range(size - 1):
            part, sender, tag = network.wait_for_any_rank(tensor)
            assert tag == sender + 7
            parts[sender] = part
        assert sorted(parts) == [r for r in range(size) if r != source]
        for sender, part in parts.items():
            np.testing.assert_array_equal(numbers(part), numbers(arrays[sender]))
    else:
        network.send_to_rank(tensor, source, rank + 7)
    # Messages of the next example must not overtake those that are received from anyone.
    network.barrier()


sets = st.lists(st.tuples(shapes, st.sampled_from(DTYPES), kinds), max_size=6)


@examples
@seed(3)
@given(
    sets,
    st.sampled_from([None, "some", "equal", "known"]),
    st.booleans(),
    st.booleans(),
    st.sampled_from([1, 64, 10**6]),
)
def check_many(entries, weighting, blocking, in_place, bucket_bytes):
    # A large one too, which goes through its own memory.
    entries = [*entries, ((300, 300), "float32", "torch"), ((190, 190), "float64", "numpy")]
    arrays = [
        {f"t{k}": array_of(r, shape, dtype, k) for k, (shape, dtype, _) in enumerate(entries)}
        for r in range(size)
    ]
    tensors = {f"t{k}": native_of(arrays[rank][f"t{k}"], kind) for k, (_, _, kind) in enumerate(entries)}
    names = list(tensors)
    if rank % 2:  # ranks may name their tensors in different orders
        names.reverse()
    tensors = {name: tensors[name] for name in names}
    weights = {None: [1.0] * size, "equal": [4.0] * size}.get(
        weighting, [float(r % 3 + (r == 0)) for r in range(size)]
    )
    options = {} if weighting is None else {"weight": weights[rank]}
    if weighting == "known":
        options["total"] = sum(weights)
    if weights[rank] == 0:  # a rank without samples holds anything
        for name in names:
            if name != "t0" and numbers(tensors[name]).size:
                with torch.no_grad():
                    tensors[name][...] = float("nan")
    run = network.sync_all_many if blocking else network.sync_all_many_start
    results = run(tensors, in_place=in_place, bucket_bytes=bucket_bytes, **options)
    results = results if blocking else results.wait()
    assert list(results) == names
    for k, (_, dtype, _) in enumerate(entries):
        name = f"t{k}"
        terms = [w * arrays[r][name].astype(np.float64) for r, w in enumerate(weights) if w]
        close(results[name], sum(terms) / sum(weights), dtype)
        assert (results[name] is tensors[name]) == in_place
        if not in_place:
            same_kind(results[name], tensors[name])
            if weights[rank]:
                np.testing.assert_array_equal(numbers(tensors[name]), numbers(arrays[rank][name]))
    everywhere = network.sync_all_with_root_many(
        {name: native_of(arrays[rank][name], "numpy") for name in names}
    )
    for name in names:
        np.testing.assert_array_equal(numbers(everywhere[name]), numbers(arrays[0][name]))


@examples
@seed(4)
@given(sets.filter(bool), st.integers(0, 10**6))
def check_neighbors(entries, draw):
    rng = np.random.default_rng(draw)
    pattern = np.triu(rng.random((size, size)) < 0.6, 1)
    matrix = np.where(pattern | pattern.T | np.eye(size, dtype=bool), rng.normal(size=(size, size)), 0)
    arrays = [
        {f"t{k}": array_of(r, shape, dtype, k) for k, (shape, dtype, _) in enumerate(entries)}
        for r in range(size)
    ]
    tensors = {f"t{k}": native_of(arrays[rank][f"t{k}"], kind) for k, (_, _, kind) in enumerate(entries)}
    row = {j: matrix[rank, j] for j in range(size) if j == rank or pattern[rank, j] or pattern[j, rank]}
    results = network.reduce_from_neighbors_many(tensors, row)
    for k, (_, dtype, _) in enumerate(entries):
        name = f"t{k}"
        expected = sum(matrix[rank, j] * arrays[j][name].astype(np.float64) for j in range(size))
        np.testing.assert_allclose(
            numbers(results[name]), expected, rtol=EPSILON[dtype], atol=40 * size * EPSILON[dtype]
        )
        same_kind(results[name], tensors[name])


def check_large():
    """Sizes around those from which arrays go round the ring, that no number of ranks divides."""
    ring.BYTES_PER_RANK, ring.PIECE_BYTES = 4096, 8192
    sizes = [ring.BYTES_PER_RANK * size // 4 + d for d in (-1, 0, 1)] + [size * 3 * ring.PIECE_BYTES // 4 + 5]
    sizes += [size * ring.PIECE_BYTES // 8 - 3, 200_001]
    with (
        CommunicationNetwork(network.comm, root=size - 1) as other,
        CommunicationNetwork(network.comm, algorithm="mpi") as plain,
    ):
        for count in sizes:
            for dtype in ("float32", "float64"):
                parts = [array_of(r, (count,), dtype) for r in range(size)]
                mine = parts[rank].copy()
                for op in ("mean", "sum", "max", "min"):
                    expected = getattr(np.stack(parts).astype(np.float64), op)(axis=0)
                    results = [
                        other.sync_all(mine, op=op),
                        other.sync_all(torch.from_numpy(mine), op=op).numpy(),
                        other.sync_all_many({"x": mine}, op=op)["x"],
                        plain.sync_all(mine, op=op),
                    ]
                    for x in (mine.copy(), mine.copy()):
                        results.append(x)
                    other.sync_all(results[-1], op=op, out=results[-1])
                    other.sync_all_many({"x": results[-2]}, op=op, in_place=True)
                    at_root = other.sync_all_at_root(mine, op=op)
                    assert (at_root is None) == (rank != size - 1)
                    for result in [*results, *([] if at_root is None else [at_root])]:
                        close(result, expected, dtype)
                    # The same bits on all ranks.
                    np.testing.assert_array_equal(other.sync_all_with_root(results[0]), results[0])
                    np.testing.assert_array_equal(mine, parts[rank])


def check_ring():
    """By default a ring; with 2 ranks the one neighbour counts once."""
    x = np.array([2.0**rank])
    members = {(rank - 1) % size, rank, (rank + 1) % size}
    expected = sum(2.0**r for r in members) / len(members)
    np.testing.assert_allclose(network.reduce_from_neighbors(x), expected, rtol=1e-15)
    assert x[0] == 2.0**rank


def check_values_everywhere():
    """What Deep500 got wrong: rank 0 counts, and other ranks read no uninitialised memory."""
    x = np.full(1000, float(rank + 1))
    np.testing.assert_array_equal(network.sync_all(x, op="sum"), np.full(1000, size * (size + 1) / 2))
    at_root = network.sync_all_at_root(x, op="sum")
    assert (at_root is None) == (rank != 0)
    for _ in range(3):
        np.testing.assert_array_equal(
            network.sync_all_with_root(np.full(5000, rank + 0.5)), np.full(5000, 0.5)
        )


def check_gather_shapes():
    parts = network.gather_at_root(np.arange(rank * 3.0).reshape(rank, 3))
    if rank == 0:
        assert [part.shape for part in parts] == [(r, 3) for r in range(size)]
        for r, part in enumerate(parts):
            np.testing.assert_array_equal(part.ravel(), np.arange(r * 3.0))


def check_pending():
    x = np.full(200_000, float(rank))
    pending = [network.sync_all_start(x + k, op="sum") for k in range(4)]
    while not all(p.test() for p in pending):
        pass
    for k, p in enumerate(pending):
        assert p.test()
        np.testing.assert_array_equal(p.wait(), np.full(200_000, size * (size - 1) / 2 + k * size))
        assert p.wait() is p.wait()
    assert not network._in_flight
    # Nobody keeps the handle: the network does, and the sum is right in memory that lives on.
    out = np.empty_like(x)
    network.sync_all_start(x, op="sum", out=out)
    for left in list(network._in_flight):
        left.wait()
    np.testing.assert_array_equal(out, np.full(200_000, size * (size - 1) / 2))


def check_root_messages():
    x = np.arange(4.0) + rank
    if rank == 0:
        for r in range(1, size):
            np.testing.assert_array_equal(network.wait_for_rank(x, r, 1), np.arange(4.0) + r)
            network.send_to_rank(2 * x, r, 2)
    else:
        network.send_to_root(x, 1)
        np.testing.assert_array_equal(network.wait_for_root(x, 2), 2 * np.arange(4.0))


def check_objects_and_groups():
    objects = network.gather_objects({"rank": rank})
    assert objects == ([{"rank": r} for r in range(size)] if rank == 0 else None)
    assert network.broadcast_object(("x", rank)) == ("x", 0)
    with network.split(rank % 2, key=-rank) as part:
        members = [r for r in range(size) if r % 2 == rank % 2]
        assert (part.size, part.rank) == (len(members), members[::-1].index(rank))
        assert part.sync_all(np.array([float(rank)]), op="sum")[0] == sum(members)


def check_counters():
    with CommunicationNetwork(network.comm) as fresh:
        fresh.sync_all(np.zeros(10))
        fresh.sync_all(np.zeros(10, np.float16))
        fresh.sync_all_with_root(np.zeros(3, np.float32))
        fresh.sync_all_at_root(np.zeros(2))
        fresh.gather_at_root(np.zeros(rank + 1))
        fresh.reduce_from_neighbors(np.zeros(7))
        fresh.sync_all_many({"a": np.zeros(3), "b": np.zeros(100_000)}, weight=1.0)
        volumes = {name: (v.calls, v.sent, v.received) for name, v in fresh.counters.snapshot().items()}
        neighbors = len({(rank - 1) % size, (rank + 1) % size} - {rank})
        many = 8 * (3 + 100_000 + 1)
        assert volumes == {
            "sync_all": (2, 80 + 40, 80 + 40),
            "sync_all_with_root": (1, 12, 0) if rank == 0 else (1, 0, 12),
            "sync_all_at_root": (1, 16, 16 if rank == 0 else 0),
            "gather_at_root": (1, 8 * (rank + 1), 8 * sum(range(size + 1)) if rank == 0 else 0),
            "reduce_from_neighbors": (1, 56 * neighbors, 56 * neighbors),
            "sync_all_many": (1, many, many),
        }
        rows = fresh.counters.rows(rank, size, model="m")
        sent = [row for row in rows if row.operator == "sync_all" and row.quantity == "bytes_sent"]
        assert [(r.value, r.unit, r.level, r.ranks, r.note, r.model) for r in sent] == [
            (120.0, "B", 3, size, f"rank {rank}", "m")
        ]
        assert all(v.seconds > 0 for v in fresh.counters.snapshot().values())
        fresh.counters.reset()
        assert not fresh.counters.rows(rank, size)


def check_integers():
    x = np.arange(5) * (rank + 1)
    np.testing.assert_array_equal(network.sync_all(x, op="sum"), np.arange(5) * size * (size + 1) // 2)
    assert network.sync_all(x, op="max").dtype == x.dtype
    with pytest.raises(UserError, match="mean of int64"):
        network.sync_all(x)
    with pytest.raises(UserError, match="'n' is int64"):
        network.sync_all_many({"n": x})


def check_refusals():
    x = np.zeros(3)
    frozen = x.copy()
    frozen.flags.writeable = False
    cases = [
        (lambda: network.sync_all(x, op="avg"), "unknown operation 'avg'"),
        (lambda: network.sync_all("text"), "numpy array or a torch tensor"),
        (lambda: network.sync_all(np.array(["a"])), "cannot be reduced"),
        (lambda: network.gather_at_root(np.array([None])), "cannot be communicated"),
        (lambda: network.sync_all(np.zeros(2, bool), op="max"), "bool cannot be reduced"),
        (lambda: network.sync_all(x, out=np.zeros(4)), "out has shape"),
        (lambda: network.sync_all(x, out=np.zeros(3, np.float32)), "float32"),
        (lambda: network.sync_all(x, out=torch.zeros(3)), "same kind"),
        (lambda: network.sync_all(x, out=frozen), "read-only"),
        (lambda: network.sync_all_many({"a": frozen}, in_place=True), "'a' is a read-only"),
        (lambda: network.sync_all_many({"a": x}, weight=-1.0), "weight has to be"),
        (lambda: network.sync_all_many({"a": x}, weight=float("nan")), "weight has to be"),
        (lambda: network.sync_all_many({"a": x}, weight=0.0), "weights of all ranks are 0"),
        (lambda: network.sync_all_many({"a": x}, bucket_bytes=0), "bucket_bytes"),
        (lambda: network.sync_all_many({"a": x}, weight=1.0, total=0.0), "total has to be"),
        (lambda: network.send_to_rank(x, size), f"from 0 to {size - 1}"),
        (lambda: network.send_to_rank(x, rank, tag=-1), "tag has to be"),
        (lambda: network.wait_for_rank(x, -1), f"from 0 to {size - 1}"),
        (lambda: network.reduce_from_neighbors(x, {rank: float("inf")}), "finite"),
        (lambda: network.reduce_from_neighbors(np.arange(3)), "floating-point"),
        (lambda: CommunicationNetwork("world"), "mpi4py communicator"),
        (lambda: CommunicationNetwork(root=size), f"root has to be a rank from 0 to {size - 1}"),
        (lambda: CommunicationNetwork(timeout=0), "timeout"),
        (lambda: CommunicationNetwork(compression="top-k:2"), "fraction"),
        (lambda: CommunicationNetwork(compression="top-k:x"), "no number"),
        (lambda: CommunicationNetwork(compression="top"), "Choose one of"),
    ]
    for call, text in cases:
        with pytest.raises(UserError) as caught:
            call()
        assert text in str(caught.value), (text, str(caught.value))


def check_lost_messages():
    """A wait without a partner ends after the timeout, and a message of another size is an error."""
    with CommunicationNetwork(network.comm, timeout=0.3) as hasty:
        for wait in (
            lambda: hasty.wait_for_rank(np.zeros(3), rank, 9),
            lambda: hasty.wait_for_any_rank(np.zeros(3)),
        ):
            with pytest.raises(PeerTimeout, match=r"wait_for_\w+ on rank \d of \d.* waited 0.3 s in vain"):
                wait()
        for wrong in (np.zeros(2), np.zeros(500)):
            for receive in (
                lambda: hasty.wait_for_rank(np.zeros(3), rank, 3),
                lambda: hasty.wait_for_any_rank(np.zeros(3)),
            ):
                pending = hasty.send_to_rank_start(wrong, rank, 3)
                with pytest.raises(UserError):
                    receive()
                pending.wait()
        if size > 1:
            if rank == 0:
                with pytest.raises(PeerTimeout, match="sync_all_start on rank 0"):
                    hasty.sync_all_start(np.zeros(5)).wait()
                hasty.timeout = 20
            else:
                mpi().COMM_WORLD.Probe(0, 77)
                mpi().COMM_WORLD.Recv(np.empty(1), 0, 77)
                hasty.timeout = 20
                hasty.sync_all_start(np.zeros(5)).wait()
            if rank == 0:
                for r in range(1, size):
                    mpi().COMM_WORLD.Send(np.zeros(1), r, 77)
                for left in list(hasty._in_flight):
                    left.wait()


def check_cuda():
    """Tensors of a GPU come back on it; only where there is one."""
    if not torch.cuda.is_available():
        return
    x = torch.full((300, 301), float(rank), device="cuda")
    results = [
        network.sync_all(x, op="sum"),
        network.sync_all_start(x, op="sum").wait(),
        network.sync_all(x, op="sum", out=torch.empty_like(x)),
        network.sync_all_many({"x": x, "y": x[:2].T}, op="sum")["x"],
        network.sync_all_many({"x": x.clone()}, op="sum", in_place=True)["x"],
    ]
    for result in results:
        assert result.device == x.device
        assert (result == size * (size - 1) / 2).all()
    assert (network.sync_all_with_root(x) == 0).all()
    assert (network.reduce_from_neighbors(x, {rank: 2.0}) == 2 * x).all()


def check_root_elsewhere():
    last = size - 1
    with CommunicationNetwork(network.comm, root=last) as other:
        assert other.is_root == (rank == last)
        np.testing.assert_array_equal(
            other.sync_all_with_root(np.full(3, float(rank))), np.full(3, float(last))
        )
        reduced = other.sync_all_at_root(np.full(3, float(rank)), op="max")
        assert (reduced is None) == (rank != last)
        gathered = other.gather_at_root(np.array(float(rank)))
        assert gathered is None if rank != last else [float(g) for g in gathered] == list(range(size))


checks = [value for name, value in sorted(globals().items()) if name.startswith("check_")]
for check in checks:
    check()
    network.barrier()
network.close()
print(f"rank {rank}: {len(checks)} checks", file=sys.stderr)
