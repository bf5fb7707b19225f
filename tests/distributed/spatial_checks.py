"""Runs under mpiexec: networks on blocks of the image against the undivided ones, in float64."""

import sys
import time

import numpy as np

import meta500
from meta500.backends.process_grid import ProcessGrid, register
from meta500.distributed import CommunicationNetwork
from meta500.distributed.spatial import decompose
from meta500.graph import Builder, HaloExchange, MeanSquaredError, ops

TOLERANCE = 1e-12


def close(found, expected, what):
    scale = max(float(np.abs(expected).max()), 1.0) if np.size(expected) else 1.0
    error = float(np.abs(np.asarray(found) - expected).max()) if np.size(expected) else 0.0
    assert np.shape(found) == np.shape(expected), f"{what}: {np.shape(found)} instead of {np.shape(expected)}"
    assert error <= TOLERANCE * scale, f"{what}: {error:.3g} away, largest value {scale:.3g}"


class Drafting:
    """A network in the making: layers with random weights."""

    def __init__(self, name, size, batch=2, channels=2, seed=1):
        self.b = Builder(name)
        self.rng = np.random.default_rng(seed)
        self.size, self.batch, self.channels = size, batch, channels
        self.x = self.b.input("image", np.float64, (batch, channels, *size))

    def weight(self, name, *shape):
        return self.b.parameter(name, self.rng.normal(size=shape) * 0.3)

    def conv(self, x, name, c_in, c_out, kernel=3, **fields):
        fields.setdefault("pads", (kernel // 2,) * 4)
        kernels = (kernel, kernel) if isinstance(kernel, int) else kernel
        w = self.weight(f"{name}.w", c_out, c_in, *kernels)
        return self.b.add(
            ops.Conv, x, w, self.weight(f"{name}.b", c_out), name=name, kernel_shape=kernels, **fields
        )

    def up(self, x, name, c_in, c_out, kernel, **fields):
        w = self.weight(f"{name}.w", c_in, c_out, kernel, kernel)
        return self.b.add(ops.ConvTranspose, x, w, None, name=name, kernel_shape=(kernel, kernel), **fields)


def windows():
    """Strides, dilations, unequal padding, pooling of all kinds."""
    d = Drafting("windows", (24, 20))
    x = d.conv(d.x, "c1", 2, 3, 5)
    x = d.b.add(ops.Tanh, x)
    x = d.conv(x, "c2", 3, 3, 3, dilations=(2, 1), pads=(2, 1, 2, 1))
    a = d.conv(x, "c3", 3, 4, 3, strides=(2, 2), pads=(1, 1, 1, 1))
    b = d.conv(x, "c4", 3, 4, 1, strides=(2, 2), pads=(0, 0, 0, 0))
    x = d.b.add(ops.Add, a, b)
    x = d.b.add(ops.MaxPool, x, kernel_shape=(3, 3), pads=(1, 1, 1, 1), strides=(1, 1))
    x = d.b.add(
        ops.AveragePool, x, kernel_shape=(3, 3), pads=(1, 0, 1, 2), strides=(1, 1), count_include_pad=1
    )
    x = d.b.add(ops.AveragePool, x, kernel_shape=(2, 3), auto_pad="SAME_UPPER", strides=(1, 1))
    x = d.conv(x, "c5", 4, 2, 2, pads=(0, 0, 1, 1))
    d.b.output(d.b.add(ops.Sigmoid, x), "out")
    target = d.b.input("target", np.float64, (2, 2, 12, 10))
    d.b.output(d.b.add(MeanSquaredError, "out", target, outputs=["loss"]))
    return d.b.build(), {}


def shrinking():
    """Convolutions without padding, an enlargement, constants and parameters of the image's size."""
    d = Drafting("shrinking", (22, 18))
    x = d.conv(d.x, "c1", 2, 3, 3, pads=(0, 0, 0, 0))
    x = d.b.add(ops.Mul, x, d.b.constant(d.rng.normal(size=(20, 16))))
    x = d.b.add(ops.Add, x, d.weight("position", 1, 3, 20, 16))
    x = d.up(x, "u1", 3, 2, 4, strides=(2, 2), pads=(1, 1, 1, 1))
    x = d.b.add(ops.Softplus, x)
    x = d.up(x, "u2", 2, 2, 3, strides=(1, 1), pads=(1, 1, 1, 1))
    x = d.up(x, "u3", 2, 2, 3, strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1))
    x = d.b.add(ops.Resize, x, None, d.b.constant(np.array([1, 1, 2, 2], np.float32)), mode="nearest",
                coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip
    x = d.b.add(ops.MaxPool, x, kernel_shape=(4, 4), strides=(4, 4), ceil_mode=1)
    d.b.output(d.b.add(ops.Softmax, x, axis=1), "out")
    square = d.b.add(ops.Mul, "out", x)
    d.b.output(d.b.add(ops.ReduceMean, square, keepdims=0, outputs=["loss"]))
    return d.b.build(), {}


def classifier():
    """A mean over the image, then layers that all processes compute alike."""
    d = Drafting("classifier", (16, 16), batch=3)
    x = d.conv(d.x, "c1", 2, 4, 3)
    x = d.b.add(ops.Tanh, x)
    x = d.conv(x, "c2", 4, 4, 3, strides=(2, 2))
    x = d.b.add(ops.GlobalAveragePool, x)
    x = d.b.add(ops.Flatten, x)
    x = d.b.add(ops.Gemm, x, d.weight("fc.w", 5, 4), d.weight("fc.b", 5), transB=1)
    d.b.output(x, "logits")
    label = d.b.input("label", np.int64, (3,))
    d.b.output(d.b.add(ops.SoftmaxCrossEntropyLoss, "logits", label, outputs=["loss"]))
    return d.b.build(), {"label": 5}


def weighted():
    """A loss with class weights and labels to ignore, which are spread unevenly over the blocks."""
    d = Drafting("weighted", (12, 12))
    x = d.conv(d.x, "c1", 2, 4, 3)
    d.b.output(x, "logits")
    label = d.b.input("label", np.int64, (2, 12, 12))
    weights = d.b.constant(np.array([0.5, 1.0, 2.0, 3.0]))
    d.b.output(
        d.b.add(ops.SoftmaxCrossEntropyLoss, "logits", label, weights, ignore_index=-1, outputs=["loss"])
    )
    return d.b.build(), {"label": (-1, 4)}


def unet(size=(48, 32)):
    """Two levels; 48 rows in units of 4."""
    return meta500.models.unet(n=1, batch=2, size=size, depth=2, dtype="float64"), {"label": 3}


def small():
    """One level, for generated code, which takes time to compile."""
    return meta500.models.unet(n=0, batch=2, size=(12, 16), depth=1, dtype="float64"), {"label": 3}


def sample(model, labels, rng):
    batch = {}
    for name, value in model.inputs.items():
        if value.dtype == np.int64:
            low, high = labels[name] if isinstance(labels[name], tuple) else (0, labels[name])
            batch[name] = rng.integers(low, high, value.shape)
            if low < 0:  # more of them in one block than in the others
                batch[name][:, : value.shape[1] // 3] = np.where(
                    rng.random(batch[name][:, : value.shape[1] // 3].shape) < 0.5, -1, 1
                )
        else:
            batch[name] = rng.normal(size=value.shape)
    return batch


def check(model, labels, blocks, communication, backend, **options):
    """Outputs, loss and all gradients."""
    batch = sample(model, labels, np.random.default_rng(5))
    local = decompose(model, blocks, communication)
    # Compiling takes time, and numpy is everybody's reference.
    usual = {"backend": "numpy"} if backend == "generated" else {"backend": backend, **options}
    with meta500.network(model, **usual) as whole:
        expected = whole.inference_and_backprop(batch)
        gradients = {n: whole.fetch_tensors([g])[0] for n, g in whole.gradient()}
        inferred = whole.inference(batch)
    label = f"{model.name} {blocks} {backend}"
    with meta500.network(local.model, backend=backend, **options) as net:
        found = net.inference(local.cut(batch))
        found |= {
            f"{name} in training": v for name, v in net.inference_and_backprop(local.cut(batch)).items()
        }
        mine = {n: net.fetch_tensors([g])[0] for n, g in net.gradient()}
    everything = communication.comm.allgather((found, mine))
    exchanged = communication.counters["halo_exchange"]
    sums = [communication.comm.allreduce(n) for n in (exchanged.sent, exchanged.received)]
    assert sums[0] == sums[1] and (sums[0] > 0) == (communication.size > 1), f"{label}: volumes {sums}"
    for name, value in expected.items():
        for form, values in (("", inferred[name]), (" in training", value)):
            whole_again = local.assemble(name, [f[name + form] for f, _ in everything])
            close(whole_again, values, f"{label}: output {name}{form}")
    for loss in (f["loss"] for f, _ in everything):
        assert np.array_equal(loss, everything[0][0]["loss"]), f"{label}: losses of processes differ"
    for name, value in gradients.items():
        mean = sum(g[name] for _, g in everything) / communication.size
        close(mean, value, f"{label}: gradient of {name}")


def train(communication, backend, blocks, halo=True, **options):
    """Some steps of Adam; the losses of the whole image."""
    from meta500.distributed.decentralized import ConsistentDecentralized

    model, labels = unet((24, 16))
    rng = np.random.default_rng(0)
    batches = [sample(model, labels, rng) for _ in range(4)]
    local = decompose(model, blocks, communication, halo=halo)
    with meta500.network(model, backend=backend, **options) as whole:
        optimizer = meta500.optimizers.Adam(whole, learning_rate=1e-2)
        expected = [float(optimizer.train(batch)["loss"]) for batch in batches]
        parameters = dict(zip(whole.get_params(), whole.fetch_tensors(whole.get_params()), strict=True))
    with meta500.network(local.model, backend=backend, **options) as net:
        optimizer = ConsistentDecentralized(meta500.optimizers.Adam(net, learning_rate=1e-2), communication)
        found = [float(optimizer.train(local.cut(batch))["loss"]) for batch in batches]
        mine = dict(zip(net.get_params(), net.fetch_tensors(net.get_params()), strict=True))
    others = communication.comm.allgather(mine)
    for other in others:
        for name, value in mine.items():
            assert np.array_equal(other[name], value), f"replicas of {name} differ"
    if halo:
        close(np.array(found), np.array(expected), f"losses of {backend} {blocks}")
        for name, value in parameters.items():
            # Adam divides by the root of small second moments, which multiplies rounding errors.
            error = np.abs(mine[name] - value).max()
            assert error < 1e-9, f"{name} after {len(batches)} steps of {backend} {blocks}: {error:.3g} away"
    else:
        # The borders of blocks see zeros instead of their neighbours: near, but not the same.
        assert 1e-9 < abs(found[0] - expected[0]) < 0.1 * expected[0], (found, expected)
        assert found[-1] < found[0]


def native(communication, blocks, **options):
    """The optimizer inside of generated code, with halos and gradient sums in the same step."""
    model, labels = small()
    rng = np.random.default_rng(0)
    batches = [sample(model, labels, rng) for _ in range(4)]
    local = decompose(model, blocks, communication)
    results = []
    mine = {"backend": "generated", "communicator": communication.comm, **options}
    for network, cut, given in ((model, dict, {"backend": "numpy"}), (local.model, local.cut, mine)):
        with meta500.network(network, **given) as net:
            optimizer = net.native_optimizer("adam", learning_rate=1e-2)
            losses = [float(optimizer.train(cut(batch))["loss"]) for batch in batches]
            results.append((losses, net.fetch_tensors(sorted(net.get_params()))))
    (expected, parameters), (found, mine) = results
    close(np.array(found), np.array(expected), f"losses of native adam {blocks}")
    for other in communication.comm.allgather(mine):
        for a, b, c in zip(mine, other, parameters, strict=True):
            assert np.array_equal(a, b), "replicas differ"
            assert np.abs(a - c).max() < 1e-9, np.abs(a - c).max()


def faults(communication, blocks):
    """A label that is no class, in one block only, ends the step on all ranks."""
    from meta500.errors import UserError

    model, labels = small()
    batch = sample(model, labels, np.random.default_rng(0))
    local = decompose(model, blocks, communication)
    bad = local.cut(batch)
    if communication.rank == 1:
        bad["label"][0, 0, 0] = 7
    with meta500.network(local.model, backend="generated", threads=1) as net:
        good = net.inference_and_backprop(local.cut(batch))["loss"]
        try:
            net.inference_and_backprop(bad)
        except UserError as error:
            assert "outside [0, 2]" in str(error), error
        else:
            raise AssertionError("a wrong label went unnoticed")
        assert np.array_equal(net.inference_and_backprop(local.cut(batch))["loss"], good)


def both(communication, backend):
    """Two groups with samples of their own, each image in two blocks: the gradient of all samples."""
    from meta500.distributed import ConsistentDecentralized

    model, labels = small()
    rng = np.random.default_rng(0)
    halves = [sample(model, labels, rng) for _ in range(2)]
    group = communication.split(communication.rank // 2)
    local = decompose(model, "2x1", group)
    double = meta500.models.unet(n=0, batch=4, size=(12, 16), depth=1, dtype="float64")
    joined = {name: np.concatenate([half[name] for half in halves]) for name in halves[0]}
    parameters = []
    for network, batch in ((double, joined), (local.model, local.cut(halves[communication.rank // 2]))):
        with meta500.network(network, backend=backend) as net:
            optimizer = meta500.optimizers.Momentum(net, learning_rate=0.1)
            if network is local.model:
                optimizer = ConsistentDecentralized(optimizer, communication)
            for _ in range(3):
                optimizer.train(batch)
            parameters.append(net.fetch_tensors(net.get_params()))
    for expected, found in zip(*parameters, strict=True):
        close(found, expected, f"parameters of {backend} with samples and images shared")


def lost(blocks, backend):
    """A rank that runs nothing: the others give up after the timeout."""
    from meta500.errors import UserError

    model, labels = small()
    for timeout in (600.0, 3.0):  # compiling counts as waiting
        communication = CommunicationNetwork(timeout=timeout)
        local = decompose(model, blocks, communication)
        batch = local.cut(sample(model, labels, np.random.default_rng(0)))
        net = meta500.network(local.model, backend=backend, threads=1)
        communication.barrier()
        net.inference_and_backprop(batch)
    with net:
        if communication.rank == 0:
            try:
                net.inference_and_backprop(batch)
            except UserError as error:
                print(error, flush=True)
            communication.comm.Abort(3)
    time.sleep(120)  # until rank 0 ends all


def adjoint(communication, rows, columns, cases=8):
    """<A x, y> = <x, A^T y> summed over all processes, for random halos; and both backends alike."""
    from meta500.backends.halo import Halo, extended, gathered

    rank, size = communication.rank, communication.size
    group = f"adjoint {rows}x{columns}"
    grid = ProcessGrid(communication.comm, rows, columns)
    register(group, grid)
    shared, own = np.random.default_rng(3), np.random.default_rng(100 + rank)
    for case in range(cases):
        direction = int(shared.integers(2))
        count = (rows, columns)[direction]
        lengths = shared.integers(2, 7, count)
        before, after = shared.integers(0, 3, count), shared.integers(0, 3, count)
        before[0] = after[-1] = 0
        i = divmod(rank, columns)[direction]
        send_before = int(after[i - 1]) if i else 0
        send_after = int(before[i + 1]) if i + 1 < count else 0
        axis, other = int(shared.integers(0, 3)), shared.integers(1, 4, 3)
        shape = [*map(int, other)]
        shape[axis] = int(lengths[i])
        halo = Halo(axis, direction, int(before[i]), int(after[i]), send_before, send_after, group, case)
        x = own.normal(size=shape)
        ax = extended(x, halo)
        y = own.normal(size=ax.shape)
        aty = gathered(y, halo)
        left, right = communication.comm.allreduce(np.array([np.vdot(ax, y), np.vdot(x, aty)]))
        assert abs(left - right) <= 1e-12 * max(abs(left), 1), (case, left, right)
        # And the same through the operation, on both backends.
        fields = dict(axis=axis, direction=direction, before=halo.before, after=halo.after, tag=case,
                      send_before=send_before, send_after=send_after, group=group)  # fmt: skip
        b = Builder("halo")
        b.input("x", np.float64, shape)
        b.output(b.add(HaloExchange, "x", outputs=["y"], **fields))
        for backend in ("numpy", "torch"):
            with meta500.network(b.build(), backend=backend) as net:
                got = net.inference_and_backprop({"x": x}, "y", wrt=["x"], cotangent=y)["y"]
                assert np.array_equal(got, ax)
                assert np.array_equal(net.fetch_tensors(["grad/x"])[0], aty)
    if size == 1:
        return
    for dtype in ("float16", "float32"):
        everyone = communication.comm.allgather(np.full((3, 2), rank + 0.5, dtype))
        from meta500.backends.halo import summed

        assert np.array_equal(summed(everyone[rank], group), sum(e.astype(np.float64) for e in everyone))


def main():
    what, blocks = sys.argv[1], sys.argv[2]
    if what == "lost":
        lost(blocks, sys.argv[3])
    communication = CommunicationNetwork()
    rows, columns = map(int, blocks.split("x"))
    if what == "adjoint":
        adjoint(communication, rows, columns)
    elif what == "networks":
        for backend in sys.argv[3].split(","):
            for make in (windows, shrinking, classifier, weighted, unet):
                check(*make(), blocks, communication, backend)
    elif what == "train":
        for backend in sys.argv[3].split(","):
            train(communication, backend, blocks)
            train(communication, backend, blocks, halo=False)
    elif what == "both":
        both(communication, sys.argv[3])
    elif what == "generated":
        threads = int(sys.argv[3])
        names = sys.argv[4].split(",")
        for make in map(globals().__getitem__, names):
            check(*make(), blocks, communication, "generated", threads=threads)
        native(communication, blocks, threads=threads)
        faults(communication, blocks)
    print("good" if communication.rank == 0 else "", end="")


if __name__ == "__main__":
    main()
