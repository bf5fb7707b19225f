"""Checks of DistributedDataParallel that every rank of an MPI run makes; started by test_torch_ddp.py."""

import sys
import traceback
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
import torch.distributed as dist

import meta500
from meta500.distributed import CommunicationNetwork
from meta500.distributed.torch_ddp import DistributedDataParallel
from meta500.errors import UserError
from meta500.graph import ops
from meta500.models import layers

OPTIMIZERS = (
    ("sgd", {"learning_rate": 0.1}),
    ("momentum", {"learning_rate": 0.05}),
    ("adam", {"learning_rate": 0.01}),
)
SIZES = (6, 6, 5, 2)


def network(model, **options):
    return meta500.network(model, backend="torch", precision="float64", **options)


def digits(seed=0):
    return meta500.models.digits_cnn(batch=None, seed=seed, dtype="float64")


def batches(shape=(1, 8, 8), classes=10, sizes=SIZES):
    rng = np.random.default_rng(5)
    return [
        {"image": rng.standard_normal((size, *shape)), "label": rng.integers(0, classes, size)}
        for size in sizes
    ]


def part(batch, communication):
    return {
        name: np.array_split(value, communication.size)[communication.rank] for name, value in batch.items()
    }


def parameters(net, names=None):
    names = net.get_params() if names is None else names
    return dict(zip(names, net.fetch_tensors(list(names)), strict=True))


def close_to(found, expected, tolerance=1e-12):
    for name, value in expected.items():
        scale = max(np.abs(value).max(), 1.0)
        difference = np.abs(found[name] - value).max()
        assert difference <= tolerance * scale, (name, difference, scale)


def identical(communication, tensors):
    """All ranks have the same bits."""
    everywhere = communication.gather_objects({name: value.tobytes() for name, value in tensors.items()})
    same = everywhere is None or all(other == everywhere[0] for other in everywhere)
    assert communication.broadcast_object(same)


def refused(action, *words):
    try:
        action()
    except UserError as error:
        for word in words:
            assert word in str(error), (word, str(error))
        return
    raise AssertionError(f"nothing was refused; expected {words}")


@contextmanager
def ending(optimizer):
    yield optimizer
    optimizer.finish()


def equals_one_rank(communication, name, hyper, model=None, net_options=None, sizes=SIZES, **options):
    """Steps over uneven batches, an empty one among them with 3 ranks, against the whole batches on one rank."""
    # Other ranks begin elsewhere: construction gives them the root's parameters.
    net = network(digits(seed=communication.rank), **(net_options or {}))
    alone = network(digits(), **(net_options or {}))
    optimizer = DistributedDataParallel(net.native_optimizer(name, **hyper), communication, **options)
    reference = alone.native_optimizer(name, **hyper)
    identical(communication, parameters(net))
    for step, batch in enumerate(batches(sizes=sizes)):
        mine = part(batch, communication)
        result = optimizer.train(mine)
        expected = reference.train(batch)
        # Nothing else than the batch's part on this rank went through the network.
        if len(mine["label"]):
            assert result["logits"].shape == (len(mine["label"]), 10)
        else:
            assert np.isnan(result["loss"])
        losses = communication.gather_objects((float(result["loss"]), len(mine["label"])))
        if communication.is_root:
            total = sum(loss * count for loss, count in losses if count) / sum(count for _, count in losses)
            assert abs(total - float(expected["loss"])) <= 1e-12
        close_to(parameters(net), parameters(alone))
        identical(communication, parameters(net))
        gradients = [gradient for _, gradient in net.gradient()]
        if len(mine["label"]):
            close_to(parameters(net, gradients), parameters(alone, gradients))
        assert optimizer.step_count == step + 1
    return optimizer, net, reference


def exactness(communication):
    for name, hyper in OPTIMIZERS:
        optimizer, _, _ = equals_one_rank(communication, name, hyper)
        optimizer.finish()
    for options in (
        {"static_graph": True},
        {"gradient_as_bucket_view": False},
        {"find_unused_parameters": True},
        {"bucket_megabytes": 0.01},
    ):
        optimizer, _, _ = equals_one_rank(communication, "momentum", {"learning_rate": 0.05}, **options)
        optimizer.finish()
    assert not dist.is_initialized()


def schedule_and_state(communication):
    """A schedule of the learning rate counts steps as on one rank; a saved state goes both ways."""
    schedule = meta500.optimizers.schedules.step_decay(0.1, every=2, factor=0.5)
    optimizer, net, reference = equals_one_rank(communication, "adam", {"learning_rate": schedule})
    saved, plain = optimizer.state_dict(), reference.state_dict()
    assert saved["step_count"] == len(SIZES)
    for name, slots in plain["state"].items():
        close_to(saved["state"][name], slots)
    again = DistributedDataParallel(
        network(net.current_model()).native_optimizer("adam", learning_rate=schedule), communication
    )
    again.load_state_dict(saved)
    for batch in batches()[:2]:
        for one in (optimizer, again):
            one.train(part(batch, communication))
    # The first pass of a process has its buckets in another order than later ones: sums differ by rounding.
    close_to(parameters(again.network), parameters(net), 1e-15)
    assert again.step_count == len(SIZES) + 2 == optimizer.step_count
    optimizer.finish()
    # The process group lives as long as an optimizer needs it.
    assert dist.is_initialized()
    again.finish()
    assert not dist.is_initialized()
    # A step after the end makes a group again.
    again.train(part(batches()[0], communication))
    identical(communication, parameters(again.network))
    again.finish()
    assert not dist.is_initialized()


def sum_of_losses(communication):
    """The loss adds its samples: gradients are added, not averaged."""

    def model(seed=0):
        net = layers.draft("sum", initialization="torch_default", seed=seed, dtype="float64")
        image = net.builder.input("image", np.float64, ("N", 5))
        label = net.builder.input("label", np.int64, ("N",))
        net.builder.output(layers.linear(net, image, "fc", (5, 3)), "logits")
        loss = net.builder.add(
            ops.SoftmaxCrossEntropyLoss, "logits", label, outputs=["loss"], reduction="sum"
        )
        net.builder.output(loss)
        return net.builder.build({})

    net, alone = network(model(communication.rank)), network(model())
    optimizer = DistributedDataParallel(net.native_optimizer("sgd"), communication, loss_reduction="sum")
    reference = alone.native_optimizer("sgd")
    for batch in batches((5,), 3):
        optimizer.train(part(batch, communication))
        reference.train(batch)
        close_to(parameters(net), parameters(alone))
    optimizer.finish()


def normalised(seed=0, unused=False):
    net = layers.draft("normalised", initialization="torch_default", seed=seed, dtype="float64")
    image = net.builder.input("image", np.float64, ("N", 2, 4, 4))
    x = layers.convolution(net, image, "conv", (2, 3), pad=1)
    x = layers.flatten(
        net, layers.global_average_pool(net, layers.batch_norm(net, x, "bn", 3), "pool"), "flat"
    )
    if unused:
        net.builder.output(layers.linear(net, x, "other", (3, 2)), "other_logits")
    return layers.finish(net, layers.linear(net, x, "fc", (3, 4)), ("N",), {})


def running_statistics(communication):
    """Statistics are the mean over ranks, weighted by samples; constants of the root are taken over."""
    names = ["bn.running_mean", "bn.running_var"]
    net, local = network(normalised(communication.rank)), network(normalised())
    if not communication.is_root:
        net.feed_tensor(names[0], np.full(3, 9.0))
    optimizer = DistributedDataParallel(net.native_optimizer("sgd"), communication)
    identical(communication, parameters(net, names))
    communication.counters.reset()
    batch = batches((2, 4, 4), 4, (7,))[0]
    mine = part(batch, communication)
    optimizer.train(mine)
    local.inference_and_backprop(mine)
    gathered = communication.gather_objects((len(mine["label"]), parameters(local, names)))
    expected = communication.broadcast_object(
        gathered and {name: sum(n * found[name] for n, found in gathered) / 7 for name in names}
    )
    close_to(parameters(net, names), expected)
    # All gradients once; two statistics with 3 numbers each, and the weight; numbers of samples.
    counters, elements = communication.counters, sum(value.size for value in parameters(net).values())
    assert counters["ddp_all_reduce"].sent == counters["ddp_all_reduce"].received == elements * 8
    if communication.size > 1:
        assert counters["sync_all_many"].sent == (2 * 3 + 1) * 8
        assert counters["sync_all"].sent == 8
    assert not np.array_equal(expected[names[0]], np.zeros(3))
    for batch in batches((2, 4, 4), 4, (6, 1, 4)):
        optimizer.train(part(batch, communication))
        identical(communication, parameters(net, [*net.get_params(), *names]))
    optimizer.finish()


def unused_parameters(communication):
    """Parameters without an influence on the loss are refused, or found when asked."""
    batch = batches((2, 4, 4), 4, (6,))[0]
    mine = part(batch, communication)

    def made(**options):
        native = network(normalised(unused=True)).native_optimizer("sgd")
        return DistributedDataParallel(native, communication, **options)

    for options in ({}, {"static_graph": True}):
        with ending(made(**options)) as optimizer:
            refused(partial(optimizer.train, mine), "other.weight", "find_unused_parameters")
    for options in (
        {"find_unused_parameters": True},
        {"find_unused_parameters": True, "bucket_megabytes": 0.001},
    ):
        with ending(made(**options)) as optimizer:
            before = parameters(optimizer.network)
            for _ in range(3):
                optimizer.train(mine)
            after = parameters(optimizer.network)
        identical(communication, after)
        assert np.array_equal(after["other.weight"], before["other.weight"])
        assert not np.array_equal(after["fc.weight"], before["fc.weight"])
        if communication.size == 1:
            alone = network(normalised(unused=True))
            reference = alone.native_optimizer("sgd")
            for _ in range(3):
                reference.train(batch)
            close_to(after, parameters(alone))


def agreement(communication):
    """The hook sees every rank's loss and samples; its number becomes the loss; its error ends the step on all."""
    net = network(digits())
    optimizer = DistributedDataParallel(net.native_optimizer("sgd"), communication)
    seen = []
    optimizer.before_exchange = lambda loss, samples: seen.append((loss, samples)) or 42.0
    for batch in batches():
        mine = part(batch, communication)
        result = optimizer.train(mine)
        assert float(result["loss"]) == 42.0
        assert seen[-1][1] == len(mine["label"]) and np.isnan(seen[-1][0]) == (not len(mine["label"]))

    before = parameters(net)

    def fault(loss, samples):
        raise UserError("rank 0 has no more data")

    optimizer.before_exchange = fault
    refused(lambda: optimizer.train(part(batches()[0], communication)), "rank 0 has no more data")
    close_to(parameters(net), before, 0.0)
    optimizer.finish()


def bad_input(communication):
    net = network(digits())
    refused(
        lambda: DistributedDataParallel(meta500.optimizers.SGD(net), communication), "native optimizer", "SGD"
    )
    with meta500.network(digits(), backend="numpy") as other:
        refused(
            lambda: DistributedDataParallel(meta500.optimizers.SGD(other), communication),
            "torch backend",
            "numpy",
        )
    sgd = net.native_optimizer("sgd")
    refused(lambda: DistributedDataParallel(sgd, communication, bucket_megabytes=0), "bucket_megabytes = 0")
    if communication.size > 1:
        model = digits() if communication.is_root else meta500.models.mlp(batch=None, dtype="float64")
        refused(
            lambda: DistributedDataParallel(network(model).native_optimizer("sgd"), communication),
            "different networks",
            "rank 1",
        )
        halves = communication.split(communication.rank % 2)
        whole = DistributedDataParallel(sgd, communication)
        refused(lambda: DistributedDataParallel(sgd, halves), "close the optimizer")
        whole.finish()
        # Groups of some of the ranks, side by side.
        optimizer = DistributedDataParallel(
            network(digits(communication.rank)).native_optimizer("sgd"), halves
        )
        optimizer.train(part(batches()[0], halves))
        identical(halves, parameters(optimizer.network))
        optimizer.finish()
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    refused(lambda: DistributedDataParallel(sgd, communication), "initialised already by somebody else")
    dist.destroy_process_group()


def lost_rank(communication):
    """A rank that leaves in the middle of a step ends it on the others, with a message."""
    optimizer = DistributedDataParallel(network(digits()).native_optimizer("sgd"), communication)
    # The second pass begins with an exchange of its own, about the order of the buckets.
    for _ in range(2):
        optimizer.train(part(batches()[0], communication))
    if communication.rank == 1:
        optimizer.total_samples(2)
        optimizer.close()
    else:
        refused(
            partial(optimizer.train, part(batches()[0], communication)),
            f"rank {communication.rank} of",
            "step 3",
        )
        optimizer.close()
    assert not dist.is_initialized()


def compiled(communication):
    """torch.compile inside of DistributedDataParallel; even batches, since every shape compiles again."""
    size = communication.size
    for options in ({}, {"static_graph": True}):
        optimizer, _, _ = equals_one_rank(
            communication, "adam", {"learning_rate": 0.01},
            net_options={"mode": "compile"}, sizes=(2 * size, 2 * size, 2 * size), **options,
        )  # fmt: skip
        optimizer.finish()


CHECKS = (
    exactness,
    schedule_and_state,
    sum_of_losses,
    running_statistics,
    unused_parameters,
    agreement,
    bad_input,
)

if __name__ == "__main__":
    everyone = CommunicationNetwork(timeout=60)
    torch.set_num_threads(1)
    try:
        for check in {"compiled": [compiled], "lost": [lost_rank]}.get(sys.argv[-1], CHECKS):
            check(everyone)
            if everyone.is_root:
                sys.stdout.write(f"{check.__name__} ok\n")
        if "lost" in sys.argv:
            # As after every fault; a group that lost a rank can't be ended in an orderly way.
            sys.stdout.flush()
            everyone.comm.Abort(3)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        everyone.comm.Abort(1)
