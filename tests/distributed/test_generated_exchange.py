"""Generated steps that reduce their gradients over ranks, as real MPI processes.

The reference is the numpy backend with one rank and all samples, in float64.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

BEGIN = f"""
import json, sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import numpy as np
from mpi4py import MPI
import meta500
from meta500.errors import UserError
from generated_networks import batches, model, parameters, part

comm = MPI.COMM_WORLD
rank, ranks = comm.rank, comm.size

def generated(name, batch=None, **options):
    options = {{"communicator": comm, **options}}
    return meta500.network(model(name, batch), backend="generated", **options)

def far(found, wanted):
    return max(float(np.abs(found[n] - wanted[n]).max()) for n in wanted)

def same_everywhere(tensors):
    mine = b"".join(a.tobytes() for a in tensors.values())
    return all(other == mine for other in comm.allgather(mine))

def say(**found):
    everyone = comm.gather(found)
    if rank == 0:
        print(json.dumps(everyone), flush=True)
"""

EQUAL = (
    BEGIN
    + """
RULES = {"sgd": meta500.optimizers.SGD, "adam": meta500.optimizers.Adam, "momentum": meta500.optimizers.Momentum}
found = {}
# Networks, threads, bytes of a bucket, the native optimizer, samples of the ranks by step.
even, uneven = [4] * ranks, [4, 3, 0, 5][:ranks]
for name, threads, bucket, rule in [
    ("unet", 1, 1, "adam"),
    ("unet", 2, 2000, "adam"),
    ("digits", 2, 8192, "momentum"),
    ("residual", 2, 1, "adam"),
]:
    if name not in sys.argv[1].split(","):
        continue
    steps = [even, even, uneven if rule == "adam" else even, even]
    whole = [batches(model(name, 1), 1, sum(sizes), seed)[0] for seed, sizes in enumerate(steps)]
    with meta500.network(model(name, None), backend="numpy") as net:
        optimizer = RULES[rule](net, learning_rate=0.01)
        for fed in whole:
            optimizer.train(fed)
        wanted = parameters(net)
    with generated(name, threads=threads, bucket_bytes=bucket) as net:
        if rank:  # rank 0's parameters count
            for tensor in list(net.get_params()):
                net.feed_tensor(tensor, np.ones_like(net.fetch_tensors([tensor])[0]))
        optimizer = net.native_optimizer(rule, learning_rate=0.01)
        equal, losses = [], []
        for fed, sizes in zip(whole, steps):
            out = optimizer.train(part(fed, sizes, rank))
            equal.append(same_everywhere(parameters(net)))
            losses.append(bool(np.isnan(out["loss"])) == (sizes[rank] == 0))
        # After a step the network has the gradients of all samples.
        found[f"{name} {threads} {rule}"] = [far(parameters(net), wanted), all(equal), all(losses)]
say(**found)
"""
)


@pytest.mark.sampled(8, first=1)
@pytest.mark.parametrize(
    "ranks, names",
    [
        (1, "digits"),
        (2, "digits"),
        (3, "digits"),
        (4, "digits"),
        *(pytest.param(n, "unet,digits,residual", marks=pytest.mark.slow) for n in (1, 2, 3, 4)),
    ],
)
def test_ranks_together_train_as_one_with_all_samples(mpiexec, ranks, names):
    found = json.loads(mpiexec(ranks, EQUAL, names, timeout=400, env={"OMP_WAIT_POLICY": "passive"}).stdout)
    assert len(found) == ranks and all(len(one) >= len(names.split(",")) for one in found)
    for one in found:
        for case, (error, identical, losses) in one.items():
            assert error < 1e-12, case
            assert identical, f"{case}: ranks differ"
            assert losses, f"{case}: only a rank without samples has no loss"


GRADIENTS = (
    BEGIN
    + """
from meta500.optimizers import AcceleGrad, Adam
found = {}
fed = batches(model("residual", 1), 3, 4 * ranks)
sizes = [4] * ranks
with meta500.network(model("residual", None), backend="numpy") as net:
    optimizer = AcceleGrad(net, learning_rate=0.01)
    for one in fed:
        optimizer.train(one)
    wanted = parameters(net)
    net.inference_and_backprop(fed[0], wrt=["fc.weight", "first.bias", "image"])
    grads = [np.array(g) for g in net.fetch_tensors(["grad/fc.weight", "grad/first.bias", "grad/image"])]
with generated("residual", threads=1, reduce_gradients=True, bucket_bytes=1000) as net:
    optimizer = AcceleGrad(net, learning_rate=0.01)
    for one in fed:
        optimizer.train(part(one, sizes, rank))
    found["reference optimizer"] = far(parameters(net), wanted)
    net.inference_and_backprop(part(fed[0], sizes, rank), wrt=["fc.weight", "first.bias", "image"])
    mine = net.fetch_tensors(["grad/fc.weight", "grad/first.bias", "grad/image"])
    grads[2] = part({"image": grads[2]}, sizes, rank)["image"]
    found["some gradients"] = max(float(np.abs(a - b).max()) for a, b in zip(mine, grads))
    try:
        net.inference_and_backprop(part(fed[0], sizes, rank), cotangent=np.ones(()))
    except UserError as error:
        found["cotangent"] = str(error)
# Without being asked, gradients are those of this rank.
with generated("residual", threads=1) as net, meta500.network(model("residual", None), backend="numpy") as alone:
    mine = part(fed[0], sizes, rank)
    for one in (net, alone):
        one.inference_and_backprop(mine)
    names = [f"grad/{n}" for n in net.get_params()]
    found["own gradients"] = max(
        float(np.abs(a - b).max()) for a, b in zip(net.fetch_tensors(names), alone.fetch_tensors(names))
    )
# Sums of samples are added.
from meta500.graph import Builder, ops
def summed(batch):
    builder = Builder("summed")
    x = builder.input("x", np.float64, (batch, 3))
    y = builder.add(ops.MatMul, x, builder.parameter("w", np.arange(6.0).reshape(3, 2) - 2))
    y = builder.add(ops.Mul, y, y)
    builder.output(y)
    builder.output(builder.add(ops.ReduceSum, y, keepdims=0, outputs=["loss"]))
    return builder.build()
x = np.random.default_rng(1).standard_normal((4 * ranks, 3))
with meta500.network(summed(4 * ranks), backend="numpy") as net:
    net.inference_and_backprop({"x": x})
    (wanted,) = net.fetch_tensors(["grad/w"])
with meta500.network(
    summed(4), backend="generated", communicator=comm, reduce_gradients=True, loss_reduction="sum", threads=1
) as net:
    net.inference_and_backprop({"x": x[4 * rank : 4 * rank + 4]})
    found["sum"] = float(np.abs(net.fetch_tensors(["grad/w"])[0] - wanted).max())
say(**found)
"""
)


@pytest.mark.slow
def test_gradients_are_reduced_where_that_is_asked_for(mpiexec):
    for one in json.loads(mpiexec(2, GRADIENTS, timeout=120).stdout):
        assert "no cotangent" in one.pop("cotangent")
        assert set(one) == {"reference optimizer", "some gradients", "own gradients", "sum"}
        assert max(one.values()) < 1e-12, one


STATISTICS = (
    BEGIN
    + """
# Every rank normalises with its own samples; running statistics become means.
sizes = [4, 2, 3][:ranks]
steps = [batches(model("bn", 1), 1, sum(sizes), seed)[0] for seed in range(3)]
names = [n for n in model("bn", 1).graph.initializers]
nets = [meta500.network(model("bn", None), backend="numpy") for _ in range(ranks)]
trained = list(nets[0].get_params())
kept = [n for n in names if n not in trained]
share = [size / sum(sizes) for size in sizes]
for fed in steps:
    for r, net in enumerate(nets):
        net.inference_and_backprop(part(fed, sizes, r))
    for n in trained:
        gradient = sum(s * net.fetch_tensors([f"grad/{n}"])[0] for s, net in zip(share, nets))
        value = nets[0].fetch_tensors([n])[0] - 0.05 * gradient
        for net in nets:
            net.feed_tensor(n, value)
    for n in kept:
        value = sum(s * net.fetch_tensors([n])[0] for s, net in zip(share, nets))
        for net in nets:
            net.feed_tensor(n, value)
everything = trained + kept
with generated("bn", threads=1) as net:
    optimizer = net.native_optimizer("sgd", learning_rate=0.05)
    for fed in steps:
        optimizer.train(part(fed, sizes, rank))
    mine = {n: np.array(net.fetch_tensors([n])[0]) for n in everything}
wanted = {n: np.array(nets[0].fetch_tensors([n])[0]) for n in everything}
before = {n: model("bn", 1).graph.initializers[n] for n in kept}
say(error=far(mine, wanted), identical=same_everywhere(mine), kept=len(kept), moved=far(before, {n: mine[n] for n in kept}))
"""
)


def test_running_statistics_become_means_over_ranks(mpiexec):
    for one in json.loads(mpiexec(3, STATISTICS, timeout=120).stdout):
        assert one["kept"] >= 4 and one["moved"] > 0.01
        assert one["error"] < 1e-12 and one["identical"]


FAULTS = (
    BEGIN
    + """
found = {}
fed = batches(model("mlp", 1), 1, 4)[0]
wrong = {**fed, "label": np.full_like(fed["label"], 77)}
with generated("mlp", threads=1) as net:
    optimizer = net.native_optimizer("adam", learning_rate=0.01)
    optimizer.train(fed)
    before = parameters(net)
    try:
        optimizer.train(wrong if rank == 1 else fed)
    except UserError as error:
        found["label"] = str(error)
    found["untouched"] = far(parameters(net), before) == 0
    optimizer.train(fed)
    found["goes on"] = far(parameters(net), before) > 0 and same_everywhere(parameters(net))
    net.ranks.bucket_bytes = 1 if rank == 0 else 4096
    before = parameters(net)
    try:
        optimizer.train(fed)
    except UserError as error:
        found["other buckets"] = str(error)
    found["untouched"] = found["untouched"] and far(parameters(net), before) == 0
with generated("mlp" if rank == 0 else "residual", threads=1) as net:
    try:
        net.native_optimizer("sgd").train(batches(net.model, 1, 4)[0])
    except UserError as error:
        found["other network"] = str(error)
with generated("mlp", threads=1) as net:
    try:
        net.native_optimizer("sgd", learning_rate=0.1 * (1 + rank)).train(fed)
    except UserError as error:
        found["other rate"] = str(error)
for options in ({"communicator": 3}, {"communicator": None, "reduce_gradients": True}, {"bucket_bytes": 0},
                {"loss_reduction": "median"}, {"toolchain": "exastencils"}):
    try:
        generated("mlp", **options)
    except UserError as error:
        found[str(sorted(options))] = str(error)
say(**found)
"""
)


def test_faults_of_one_rank_are_errors_of_all(mpiexec):
    found = json.loads(mpiexec(2, FAULTS, timeout=120).stdout)
    for one in found:
        assert one["label"].startswith("rank 1: ") and "label" in one["label"]
        assert one["untouched"] and one["goes on"]
        assert "do not reduce the same gradients" in one["other buckets"]
        assert "rank 1 has" in one["other network"]
        assert "rank 1 has rate 0.2, rank 0 has 0.1" in one["other rate"]
        assert "mpi4py communicator" in one["['communicator']"]
        assert "needs a communicator" in one["['communicator', 'reduce_gradients']"]
        assert "bucket_bytes" in one["['bucket_bytes']"]
        assert "median" in one["['loss_reduction']"]
        assert "exastencils" in one["['toolchain']"]
    assert {k: v for k, v in found[0].items()} == {k: v for k, v in found[1].items()}


LATE = (
    BEGIN
    + """
import os
fed = batches(model("mlp", 1), 1, 4)[0]
with generated("mlp", threads=1) as net:
    optimizer = net.native_optimizer("adam", learning_rate=0.01)
    optimizer.train(fed)
    if rank == 0:
        net.ranks.seconds = 0.5
        try:
            optimizer.train(fed)
        except UserError as error:
            print(error, flush=True)
            comm.Abort(7)
    time.sleep(60)
"""
)


def test_a_rank_that_takes_no_part_is_given_up(mpiexec):
    done = mpiexec(2, LATE, timeout=50, returncode="failure")
    assert "rank 0 waited 0.5 s for other ranks" in done.stdout


TIMES = (
    BEGIN
    + """
fed = batches(model("unet", 1), 1, 4)[0]
with generated("unet", threads=1, bucket_bytes=1) as net:
    assert net.timeline() == []
    optimizer = net.native_optimizer("adam")
    before = time.perf_counter_ns()
    optimizer.train(fed)
    after = time.perf_counter_ns()
    spans = net.timeline()
    say(spans=spans, before=before, after=after, parameters=len(list(net.get_params())))
"""
)


def test_reductions_begin_while_backward_goes_on(mpiexec):
    for one in json.loads(mpiexec(2, TIMES, timeout=60).stdout):
        assert all(one["before"] <= begin <= end <= one["after"] for _, _, begin, end, _ in one["spans"])
        sent = [s for s in one["spans"] if s[0] == "communication" and s[1].endswith(("weight", "bias"))]
        assert len(sent) == one["parameters"]
        computed = [s for s in one["spans"] if s[0] == "compute"]
        updated = min(begin for _, name, begin, _, _ in computed if "adam" in name)
        backward = [s for s in computed if s[3] <= updated and not s[1].startswith(("region", "waiting"))]
        last = max(begin for _, _, begin, _, _ in backward)
        # One thread begins a reduction between two kernels: all but the last layer's before the last kernel.
        early = [s for s in sent if s[2] < last]
        assert len(early) >= len(sent) - 2
        assert all(end <= updated for _, _, _, end, _ in sent)


ALONE = (
    BEGIN
    + """
from meta500.backends.generated import cpp
from meta500.backends.generated.forms import Form
def text(net):
    shapes = tuple((n, t.shape) for n, t in net.model.inputs.items())
    form = Form(tuple(net.model.outputs), shapes, "loss", tuple(net._parameters), False, (), "adam",
                net.ranks.bytes_if_training)
    return cpp.sources(net.planned(form)[0])
with generated("unet", batch=4, threads=2) as net, meta500.network(
    model("unet", 4), backend="generated", threads=2
) as plain:
    a, b = text(net), text(plain)
say(same=a == b, mpi=any("mpi" in part.lower() for part in a.values()))
"""
)


def test_a_rank_alone_runs_the_code_without_mpi(mpiexec):
    assert json.loads(mpiexec(1, ALONE).stdout) == [{"same": True, "mpi": False}]
