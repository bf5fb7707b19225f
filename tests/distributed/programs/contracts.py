"""What schemes promise beside the recurrences: equal starts, faults, statistics, state, volume."""

import time
from functools import partial

import numpy as np
import problem

import meta500
from meta500 import optimizers
from meta500.distributed import Timeline, registry
from meta500.models import layers

comm = problem.communication()
rank, ranks = comm.rank, comm.size
world = comm.comm
SYNCHRONOUS = [n for n in registry.names() if n != "ddp" and registry.scheme_class(n).synchronous]


def refused(make, *words):
    """The message of the UserError that every rank raises, the same everywhere."""
    try:
        make()
    except meta500.UserError as error:
        message = str(error)
    else:
        message = ""
    assert all(word in message for word in words), (message, words)
    assert len(set(world.allgather(message))) == 1, message


def refused_here(make, words):
    """A UserError of this rank."""
    try:
        make()
    except meta500.UserError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def normalised_network(backend):
    """Convolution, batch normalisation, linear layer: two running statistics."""
    net = layers.draft("normalised", initialization="torch_default", seed=3, dtype=np.float64)
    x = net.builder.input("image", net.dtype, (None, 1, 4, 4))
    x = layers.convolution(net, x, "conv", (1, 2), kernel=3, bias=False)
    x = layers.relu(net, layers.batch_norm(net, x, "norm", 2), "relu")
    logits = layers.linear(net, layers.flatten(net, x, "flat"), "fc", (2 * 2 * 2, 3))
    return meta500.network(layers.finish(net, logits, (None,), {}), backend=backend)


def unequal_starts():
    if ranks == 1:
        return
    last = ranks - 1
    hidden = (5,) if rank < last else (4,)
    net = problem.network(hidden=hidden)
    refused(
        lambda: registry.create("consistent-decentralized", optimizers.SGD(net), comm), f"rank {last}", "[5"
    )
    hidden = (5,) if rank < last else (5, 3)
    net = problem.network(hidden=hidden)
    refused(lambda: registry.create("model-average", optimizers.SGD(net), comm), f"rank {last}", "fc3")
    net = problem.network(dtype="float64" if rank < last else "float32")
    refused(
        lambda: registry.create("consistent-neighbors", optimizers.SGD(net), comm), f"rank {last}", "float32"
    )
    net = problem.network()
    rate = 0.1 if rank < last else 0.2
    refused(
        lambda: registry.create("consistent-decentralized", optimizers.SGD(net, rate), comm),
        "learning_rate",
        f"0.2 on rank {last}",
        "0.1 on rank 0",
    )
    kind = optimizers.SGD if rank < last else optimizers.Adam
    refused(lambda: registry.create("consistent-decentralized", kind(net, 0.1), comm), "the optimizer")
    refused(lambda: registry.create("model-average", optimizers.SGD(net), comm, every=1 + rank), "every")


def bad_options():
    net = problem.network()
    sgd = optimizers.SGD(net)
    refused(lambda: registry.create("consistent", sgd, comm), "consistent-decentralized")
    refused(lambda: registry.create("model-average", sgd, comm, evry=2), "every")
    refused(lambda: registry.create("model-average", sgd, comm, every=0), "every", "0")
    refused(lambda: registry.create("stale-synchronous", sgd, comm, bound=-1), "bound")
    refused(lambda: registry.create("consistent-neighbors", sgd, comm, topology="tree"), "ring")
    refused(lambda: registry.create("consistent-decentralized", sgd, comm, loss_reduction="max"), "mean")
    accelerated = optimizers.AcceleGrad(net)
    refused(lambda: registry.create("inconsistent-parameter-server", accelerated, comm), "AcceleGrad")
    native = net.native_optimizer("sgd")
    refused(lambda: registry.create("consistent-decentralized", native, comm), "reference optimizer")
    refused(lambda: registry.create("model-average", native, comm), "three")
    scheme = registry.create("consistent-decentralized", sgd, comm)
    refused(lambda: scheme.train({"image": np.zeros((2, 6)), "label": np.zeros(3, np.int64)}), "batch_input")
    nobody = {"image": np.zeros((0, 6)), "label": np.zeros(0, np.int64)}
    for name in ("consistent-decentralized", "consistent-parameter-server"):
        scheme = registry.create(name, optimizers.SGD(problem.network()), comm)
        refused(partial(scheme.train, nobody), "no rank")


def one_rank_has_all():
    """Only one rank has samples, each in turn: nobody's gradient is dropped, and no memory is read unset."""
    batch = problem.batches(1, uneven=False)[0]
    empty = {name: array[:0] for name, array in batch.items()}
    for scheme in ("consistent-decentralized", "consistent-parameter-server"):
        for backend in ("numpy", "torch"):
            net, serial = problem.network(backend), problem.network(backend)
            distributed = registry.create(scheme, problem.optimizer("adam", net), comm)
            reference = problem.optimizer("adam", serial)
            for owner in range(ranks):
                outputs = distributed.train(batch if rank == owner else empty)
                assert np.isnan(outputs["loss"]) == (rank != owner)
                reference.train(batch)
                assert np.abs(problem.values(net) - problem.values(serial)).max() <= 1e-12


def sum_of_losses():
    """With a loss that is a sum over samples gradients are added: equal to the mean times the batch."""
    for scheme in ("consistent-decentralized", "consistent-parameter-server"):
        net, serial = problem.network(), problem.network()
        distributed = registry.create(scheme, optimizers.SGD(net, 0.01), comm, loss_reduction="sum")
        reference = optimizers.SGD(serial, 0.01)
        for batch in problem.batches(ranks):
            distributed.train(problem.part(batch, rank, ranks))
            # Σ_r g_r of mean losses, serially: each part's gradient at the same parameters.
            x = problem.values(serial)
            total = 0.0
            for r in range(ranks):
                total = total + problem.gradient(serial, x, problem.part(batch, r, ranks))
            begin = 0
            for name in serial.get_params():
                array = serial.native(name)
                new = (x - 0.01 * total)[begin : begin + array.size].reshape(array.shape)
                begin += array.size
                serial.feed_tensor(name, new)
        assert np.abs(problem.values(net) - problem.values(serial)).max() <= 1e-12
        del reference


def running_statistics():
    """Those of consistent schemes are equal everywhere: the mean of the ranks', weighted with samples."""
    rng = np.random.default_rng(5)
    sizes = [3 * ranks, 3 * ranks + 1]
    data = [(rng.normal(size=(n, 1, 4, 4)), rng.integers(0, 3, n)) for n in sizes]
    for backend in ("numpy", "torch"):
        for scheme in ("consistent-decentralized", "consistent-parameter-server", "model-average"):
            net, oracle = normalised_network(backend), normalised_network(backend)
            distributed = registry.create(scheme, optimizers.SGD(net, 0.1), comm)
            names = distributed.statistics
            assert len(names) == 2, names
            for images, labels in data:
                # The oracle has the same parameters and statistics before the step and sees the parts in turn.
                everything = [*net.get_params(), *names]
                old = net.fetch_tensors(everything)
                expected = [0.0, 0.0]
                for r in range(ranks):
                    mine = {
                        "image": np.array_split(images, ranks)[r],
                        "label": np.array_split(labels, ranks)[r],
                    }
                    for name, value in zip(everything, old, strict=True):
                        oracle.feed_tensor(name, value)
                    oracle.inference_and_backprop(mine)
                    share = len(mine["label"]) / len(labels)
                    found = oracle.fetch_tensors(names)
                    expected = [e + share * f for e, f in zip(expected, found, strict=True)]
                mine = {
                    "image": np.array_split(images, ranks)[rank],
                    "label": np.array_split(labels, ranks)[rank],
                }
                distributed.train(mine)
                for name, e, f in zip(names, expected, net.fetch_tensors(names), strict=True):
                    assert problem.same_everywhere(comm, f), f"{scheme} {name}"
                    assert np.abs(e - f).max() <= 1e-12, f"{backend} {scheme} {name}"
                assert problem.same_everywhere(comm, problem.values(net))
    for scheme in ("inconsistent-parameter-server", "inconsistent-decentralized", "stale-synchronous"):
        net = normalised_network("numpy")
        distributed = registry.create(scheme, optimizers.SGD(net, 0.1), comm)
        for images, labels in data:
            distributed.train(
                {"image": np.array_split(images, ranks)[rank], "label": np.array_split(labels, ranks)[rank]}
            )
        distributed.finish()
        for value in net.fetch_tensors(distributed.statistics):
            assert problem.same_everywhere(comm, value), scheme


def native_base():
    """torch.optim as the base: the same as on one rank."""
    net, serial = problem.network("torch", seed=1 + rank), problem.network("torch")
    distributed = registry.create(
        "consistent-decentralized", net.native_optimizer("adam", learning_rate=0.01), comm
    )
    reference = serial.native_optimizer("adam", learning_rate=0.01)
    for batch in problem.batches(ranks):
        distributed.train(problem.part(batch, rank, ranks))
        reference.train(batch)
        assert problem.same_everywhere(comm, problem.values(net))
        assert np.abs(problem.values(net) - problem.values(serial)).max() <= 1e-12


def native_state():
    """torch.optim's state is saved and loaded through the scheme."""
    batches = problem.batches(ranks)

    def fresh():
        native = problem.network("torch").native_optimizer("adam", learning_rate=0.01)
        return registry.create("consistent-decentralized", native, comm)

    whole, second = fresh(), fresh()
    for batch in batches[:2]:
        whole.train(problem.part(batch, rank, ranks))
    for key in second.network.get_params():
        second.network.feed_tensor(key, whole.network.fetch_tensors([key])[0])
    second.load_state_dict(whole.state_dict())
    for batch in batches[2:]:
        whole.train(problem.part(batch, rank, ranks))
        second.train(problem.part(batch, rank, ranks))
    assert np.array_equal(problem.values(second.network), problem.values(whole.network))


def overlap():
    """Gradients reduced during backward give the global batch; a pass that fails leaves nobody waiting."""
    net, serial = (
        problem.network("torch", seed=1 + rank, hidden=(5, 4)),
        problem.network("torch", hidden=(5, 4)),
    )
    distributed = registry.create(
        "consistent-decentralized", problem.optimizer("adam", net), comm, overlap=True
    )
    reference = problem.optimizer("adam", serial)
    for batch in problem.batches(ranks):
        distributed.train(problem.part(batch, rank, ranks))
        reference.train(batch)
        assert problem.same_everywhere(comm, problem.values(net))
        assert np.abs(problem.values(net) - problem.values(serial)).max() <= 1e-12
    if ranks > 1:
        refused(
            partial(
                registry.create,
                "consistent-decentralized",
                optimizers.SGD(problem.network()),
                comm,
                overlap=True,
            ),
            "torch backend in eager mode",
        )
    # The last rank's pass fails at once, the others begin all their reductions and are then told.
    before = problem.values(net)
    batch = problem.part(problem.batches(ranks)[0], rank, ranks)
    if rank == ranks - 1:
        batch["image"] = batch["image"][:, :-1]
        refused_here(partial(distributed.train, batch), "image")
    else:
        distributed.before_exchange = stop
        refused_here(partial(distributed.train, batch), "stopped")
        distributed.before_exchange = None
    assert np.array_equal(problem.values(net), before)
    # And the next step is as if nothing had been.
    batch = problem.batches(ranks)[1]
    distributed.train(problem.part(batch, rank, ranks))
    reference.train(batch)
    assert np.abs(problem.values(net) - problem.values(serial)).max() <= 1e-12


def recorded():
    """The timeline has the steps, passes and updates of this rank beside its communication."""
    timeline = Timeline(rank)
    group = problem.communication(timeline=timeline)
    for scheme in SYNCHRONOUS:
        timeline.clear()
        distributed = registry.create(scheme, problem.optimizer("sgd", problem.network()), group)
        for batch in problem.batches(ranks, uneven=False)[:2]:
            distributed.train(problem.part(batch, rank, ranks))
        lanes = {lane: [e for e in timeline.events if e.lane == lane] for lane in ("step", "compute")}
        assert [e.name for e in lanes["step"]] == ["step 1", "step 2"]
        names = [e.name for e in lanes["compute"]]
        updates = comm.is_root or scheme != "consistent-parameter-server"
        assert names == (["pass", "update"] * 2 if updates else ["pass"] * 2), (scheme, names)
        for event in lanes["compute"]:
            assert any(s.begin_ns <= event.begin_ns <= event.end_ns <= s.end_ns for s in lanes["step"])
        if ranks > 1:
            assert any(e.lane == "communication" for e in timeline.events)


def stop(loss, samples):
    raise meta500.UserError("stopped")


def hook():
    """before_exchange sees loss and samples, and what it returns is the loss of the step."""
    net = problem.network()
    distributed = registry.create("consistent-decentralized", optimizers.SGD(net), comm)
    seen = []

    def agree(loss, samples):
        seen.append((loss, samples))
        distributed.global_samples = world.allreduce(samples)
        return 7.5

    distributed.before_exchange = agree
    batch = problem.batches(ranks)[2]
    mine = problem.part(batch, rank, ranks)
    assert distributed.train(mine)["loss"] == 7.5
    assert seen[0][1] == len(mine["label"]) and np.isnan(seen[0][0]) == (len(mine["label"]) == 0)
    serial = problem.network()
    optimizers.SGD(serial).train(batch)
    assert np.abs(problem.values(net) - problem.values(serial)).max() <= 1e-12
    # A refusal between pass and exchange leaves everything as it was, prepared parameters included.
    for backend in ("numpy", "torch"):
        net = problem.network(backend)
        for scheme in SYNCHRONOUS:
            distributed = registry.create(scheme, problem.optimizer("accelegrad", net), comm)
            distributed.train(problem.part(problem.batches(ranks)[0], rank, ranks))
            before = problem.values(net)

            distributed.before_exchange = stop
            refused(
                partial(distributed.train, problem.part(problem.batches(ranks)[1], rank, ranks)), "stopped"
            )
            assert np.array_equal(problem.values(net), before), scheme


def saved_state():
    """Five steps at once, or two, a state saved and loaded into new objects, and three: the same bits."""
    for scheme in SYNCHRONOUS:
        for name in ("momentum", "adam"):
            resumed(scheme, name, None)
    resumed("consistent-decentralized", "adam", "top-k:0.3")


def resumed(scheme, name, compression):
    batches = problem.batches(ranks)

    def fresh():
        group = problem.communication(compression=compression)
        options = {"every": 3} if scheme == "model-average" else {}
        return registry.create(scheme, problem.optimizer(name, problem.network()), group, **options)

    whole, first, second = fresh(), fresh(), fresh()
    for batch in batches:
        whole.train(problem.part(batch, rank, ranks))
    for batch in batches[:2]:
        first.train(problem.part(batch, rank, ranks))
    for key in second.network.get_params():
        second.network.feed_tensor(key, first.network.fetch_tensors([key])[0])
    second.load_state_dict(first.state_dict())
    assert second.step_count == 2
    for batch in batches[2:]:
        second.train(problem.part(batch, rank, ranks))
    assert np.array_equal(problem.values(second.network), problem.values(whole.network)), (scheme, name)
    other = "model-average" if scheme != "model-average" else "consistent-decentralized"
    stranger = registry.create(other, problem.optimizer(name, problem.network()), comm)
    refused_here(partial(stranger.load_state_dict, first.state_dict()), "cannot be loaded")


def compression():
    """Everything sent is the exact average; a part of it is not, and the schemes that cannot compress say so."""
    exact, net = problem.network(), problem.network()
    reference = registry.create("consistent-decentralized", problem.optimizer("adam", exact), comm)
    everything = problem.communication(compression="top-k:1")
    distributed = registry.create("consistent-decentralized", problem.optimizer("adam", net), everything)
    for batch in problem.batches(ranks):
        reference.train(problem.part(batch, rank, ranks))
        distributed.train(problem.part(batch, rank, ranks))
    assert np.abs(problem.values(net) - problem.values(exact)).max() <= 1e-12
    part = problem.communication(compression="top-k:0.1")
    net = problem.network()
    distributed = registry.create("consistent-decentralized", problem.optimizer("adam", net), part)
    distributed.train(problem.part(problem.batches(ranks)[0], rank, ranks))
    assert problem.same_everywhere(comm, problem.values(net))
    for scheme in registry.names():
        if not registry.scheme_class(scheme).compressible and scheme != "ddp":
            sgd = optimizers.SGD(problem.network())
            refused(partial(registry.create, scheme, sgd, part), "compress")


def settle(counters):
    """Wait until nothing has been counted for a while."""
    last = None
    while last != (last := counters.total()):
        time.sleep(0.1)


def volume():
    """Bytes per step as the documentation says, V being the bytes of all parameters."""
    net = problem.network()
    tensors = net.fetch_tensors(net.get_params())
    V = sum(array.nbytes for array in tensors)
    padded = sum(-(-array.nbytes // 16) * 16 for array in tensors)
    batch = problem.batches(ranks, uneven=False)[0]

    def of_step(scheme, steps=6, **options):
        group = problem.communication()
        distributed = registry.create(scheme, optimizers.SGD(problem.network()), group, **options)
        before = group.counters.snapshot()
        for _ in range(steps):
            distributed.train(problem.part(batch, rank, ranks))
        if not distributed.synchronous:
            # Threads count a reply after it is sent, which may be after its receiver has gone on.
            group.barrier()
            settle(group.counters)
        after = group.counters.snapshot()
        # Nobody says good-bye before all have counted.
        world.Barrier()
        sent = received = 0
        for operation, total in after.items():
            if operation == "barrier":
                continue
            sent += total.sent - (before[operation].sent if operation in before else 0)
            received += total.received - (before[operation].received if operation in before else 0)
        distributed.finish()
        return sent / steps, received / steps

    if ranks == 1:
        assert of_step("consistent-decentralized") == (0, 0)
        assert of_step("consistent-neighbors") == (0, 0)
        assert of_step("inconsistent-parameter-server") == (0, 0)
        assert of_step("inconsistent-decentralized") == (0, 0)
        return
    root, others = comm.is_root, ranks - 1
    assert of_step("consistent-decentralized") == (V + 8, V + 8)
    sent, received = of_step("consistent-parameter-server")
    assert (sent, received) == ((8 + V + padded, 8 + V) if root else (8 + V, 8 + padded))
    degree = min(2, others)
    assert of_step("consistent-neighbors", topology="ring") == (degree * V, degree * V)
    assert of_step("consistent-neighbors", topology="complete") == (others * V, others * V)
    for every in (1, 3):
        assert of_step("model-average", every=every) == ((V + 16) / every, (V + 16) / every)
    message = padded + 40
    for scheme in ("inconsistent-parameter-server", "stale-synchronous"):
        sent, received = of_step(scheme)
        expected = others * message if root else message
        assert (sent, received) == (expected, expected), (scheme, sent, received, expected)
    sent, received = of_step("inconsistent-decentralized")
    totals = world.allreduce(np.array([sent, received]))
    assert np.array_equal(totals, [2 * ranks * padded] * 2), totals


for check in (
    unequal_starts,
    bad_options,
    one_rank_has_all,
    sum_of_losses,
    running_statistics,
    native_base,
    hook,
    recorded,
    overlap,
    native_state,
    saved_state,
    compression,
    volume,
):
    check()
    world.Barrier()
    if comm.is_root:
        print("checked", check.__name__, flush=True)
