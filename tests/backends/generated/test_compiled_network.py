"""What a compiled network takes, keeps, refuses and gives back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Builder, ops

PROCESSORS = len(os.sched_getaffinity(0))
FEW = min(2, PROCESSORS)


def small(
    batch: int | str = 4, dtype: str = "float64", *, normalized: bool = False, dropout: float | None = None
) -> meta500.Model:
    """Convolution, normalisation and dropout (on demand), ReLU, pooling, and a linear classifier of 3 classes."""
    rng = np.random.default_rng(11)

    def parameter(name: str, *shape: int) -> str:
        return b.parameter(name, rng.standard_normal(shape).astype(dtype))

    b = Builder("small")
    x = b.input("x", dtype, (batch, 2, 6, 7))
    label = b.input("label", np.int64, (batch,))
    y = b.add(ops.Conv, x, parameter("w", 3, 2, 3, 3), parameter("b", 3), pads=(1, 1, 1, 1), name="conv")
    if normalized:
        mean, variance = (b.constant(np.full(3, v, dtype), n) for n, v in (("mean", 0.1), ("variance", 1.2)))
        y = b.add(
            ops.BatchNormalization, y, parameter("scale", 3), parameter("shift", 3), mean, variance,
            name="norm", follow_mode=True,
        )  # fmt: skip
    y = b.add(ops.Relu, y, name="relu")
    if dropout is not None:
        ratio, training = b.constant(np.array(dropout, dtype)), b.constant(np.array(False))
        y = b.add(ops.Dropout, y, ratio, training, name="drop", follow_mode=True)
        b.output(y)
    y = b.add(ops.MaxPool, y, kernel_shape=(2, 2), strides=(2, 2))
    y = b.add(ops.Flatten, y)
    y = b.add(ops.Gemm, y, parameter("v", 27, 3), parameter("c", 3), outputs=["logits"])
    b.output(y)
    b.output(b.add(ops.SoftmaxCrossEntropyLoss, y, label, outputs=["loss"], name="criterion"))
    return b.build()


def batch_of(size: int = 4, seed: int = 0, dtype: str = "float64") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"x": rng.standard_normal((size, 2, 6, 7)).astype(dtype), "label": rng.integers(0, 3, size)}


def network(model: Any, **options: Any) -> Any:
    return meta500.network(model, backend="generated", **options)


def reference(model: Any, fed: dict[str, np.ndarray], **options: Any) -> dict[str, np.ndarray]:
    """Outputs and gradients of the numpy backend."""
    with meta500.network(model, backend="numpy") as net:
        found = dict(net.inference_and_backprop(fed, **options))
        wrt = options.get("wrt") or net.get_params()
        names = [f"grad/{n}" for n in wrt]
        return found | dict(zip(names, net.fetch_tensors(names), strict=True))


def same(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.fixture(scope="module")
def plain() -> Iterator[Any]:
    with network(small(), threads=FEW) as net:
        yield net


@pytest.fixture(scope="module")
def open_batch() -> Iterator[Any]:
    with network(small("N"), threads=FEW) as net:
        yield net


# -- what is fed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"x": np.zeros((4, 2, 6, 7), "complex128")}, ["x", "float64"]),
        ({"x": np.zeros((4, 2, 6, 8))}, ["x", "[4, 2, 6, 7]", "[4, 2, 6, 8]"]),
        ({"x": np.zeros((2, 6, 7))}, ["x", "[2, 6, 7]"]),
        ({"label": np.zeros(4)}, ["label", "int64"]),
        ({"label": np.zeros(3, np.int64)}, ["label", "[3]"]),
        ({"other": np.zeros(3)}, ["other"]),
        ({"x": None}, ["x"]),
    ],
)
def test_wrong_inputs_are_refused(plain, change, words):
    with pytest.raises(UserError) as error:
        plain.inference_and_backprop({**batch_of(), **change})
    for word in words:
        assert word in str(error.value)


def test_missing_inputs(plain):
    fed = batch_of()
    assert set(plain.inference({"x": fed["x"]})) == {"logits"}
    with pytest.raises(UserError, match="label"):
        plain.inference_and_backprop({"x": fed["x"]})
    with pytest.raises(UserError, match="missing: x"):
        plain.inference({"label": fed["label"]}, outputs=["loss"])


def test_nothing_writes_into_what_was_fed(plain):
    fed = batch_of(seed=1)
    before = {n: a.copy() for n, a in fed.items()}
    frozen = {n: a for n, a in fed.items()}
    for array in frozen.values():
        array.flags.writeable = False
    plain.inference_and_backprop(frozen, wrt=["x", "w"])
    for name, array in before.items():
        np.testing.assert_array_equal(fed[name], array)


def test_strided_and_foreign_inputs(plain):
    fed = batch_of(seed=2)
    wanted = reference(plain.model, fed)
    strided = np.zeros((4, 2, 6, 14))[..., ::2]
    strided[...] = fed["x"]
    swapped = fed["x"].astype(">f8")
    transposed = np.ascontiguousarray(fed["x"].transpose(3, 2, 1, 0)).transpose(3, 2, 1, 0)
    for x in (strided, swapped, transposed, fed["x"].astype("float64")[::1]):
        same(plain.inference_and_backprop({"x": x, "label": fed["label"]})["loss"], wanted["loss"])


def test_open_batch_takes_every_size(open_batch):
    for size in (1, 4, 5, 1, 3):
        fed = batch_of(size, seed=size)
        wanted = reference(open_batch.model, fed)
        found = open_batch.inference_and_backprop(fed)
        for name in ("logits", "loss"):
            same(found[name], wanted[name])
        for name in open_batch.get_params():
            same(open_batch.fetch_tensors([f"grad/{name}"])[0], wanted[f"grad/{name}"])
    with pytest.raises(UserError, match="N"):
        open_batch.inference({"x": np.zeros((2, 2, 6, 7)), "label": np.zeros(3, np.int64)})
    with pytest.raises(UserError, match="x"):
        open_batch.inference({"x": np.zeros((0, 2, 6, 7))})


# -- labels and numbers ------------------------------------------------------------------------------------


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bad", [3, -1, 2**40])
# One image has one region of all threads; four have images in vectors; five have regions of images.
@pytest.mark.parametrize("batch", [1, 4, 5])
def test_a_bad_label_is_refused_and_changes_nothing(bad, batch):
    with network(small(batch, normalized=True), threads=FEW) as net:
        trainer = net.native_optimizer("adam", learning_rate=0.1)
        trainer.train(batch_of(batch))
        names = [*net.get_params(), "mean", "variance"]
        before = net.fetch_tensors(names)
        slots = {p: {s: np.array(a) for s, a in slots.items()} for p, slots in trainer.state.items()}
        fed = batch_of(batch, seed=3)
        fed["label"][-1] = bad
        for run in (trainer.train, net.inference_and_backprop):
            with pytest.raises(UserError, match="criterion.*label"):
                run(fed)
        for name, old, new in zip(names, before, net.fetch_tensors(names), strict=True):
            np.testing.assert_array_equal(old, new, err_msg=name)
        for parameter, arrays in slots.items():
            for slot, old in arrays.items():
                np.testing.assert_array_equal(trainer.state[parameter][slot], old)
        assert trainer.step_count == 1
        # And afterwards it goes on as if nothing had happened.
        fed["label"][-1] = 0
        trainer.train(fed)
        assert trainer.step_count == 2
        assert not np.array_equal(net.fetch_tensors(["w"])[0], before[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_infinity_and_nan_propagate(plain, bad):
    fed = batch_of(seed=4)
    fed["x"][1, 0, 2, 3] = bad
    wanted = reference(plain.model, fed)
    found = plain.inference_and_backprop(fed)
    np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-10, atol=1e-12)
    assert np.isnan(found["loss"]) == np.isnan(wanted["loss"])
    # Only the spoilt image is spoilt.
    assert np.isfinite(found["logits"][[0, 2, 3]]).all()
    for name in plain.get_params():
        ours, theirs = plain.fetch_tensors([f"grad/{name}"])[0], wanted[f"grad/{name}"]
        np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs), err_msg=name)
    # The next run is clean: nothing of it is left in the memory between the rows.
    fed = batch_of(seed=5)
    same(plain.inference_and_backprop(fed)["loss"], reference(plain.model, fed)["loss"])
    same(plain.fetch_tensors(["grad/w"])[0], reference(plain.model, fed)["grad/w"])


# -- tensors -----------------------------------------------------------------------------------------------


def test_parameters_can_be_fed_and_assigned(plain):
    fed = batch_of(seed=6)
    before = dict(zip(plain.get_params(), plain.fetch_tensors(plain.get_params()), strict=True))
    try:
        plain.feed_tensor("w", before["w"] * 2)
        plain.assign("b", before["b"] + 1)
        model = plain.current_model()
        np.testing.assert_array_equal(model.graph.initializers["w"], before["w"] * 2)
        same(plain.inference(fed)["logits"], reference(model, fed)["logits"])
        for name, value, words in (
            ("w", np.zeros((3, 2, 3, 2)), "shape"),
            ("w", np.zeros((3, 2, 3, 3), "complex128"), "float64"),
            ("nothing", np.zeros(3), "nothing"),
        ):
            with pytest.raises(UserError, match=words):
                plain.feed_tensor(name, value)
    finally:
        for name, value in before.items():
            plain.feed_tensor(name, value)
    same(plain.inference(fed)["logits"], reference(plain.model, fed)["logits"])


def test_a_fetched_parameter_is_a_copy(plain):
    (copy,) = plain.fetch_tensors(["w"])
    copy[...] = 0
    assert plain.fetch_tensors(["w"])[0].any()


def test_statistics_are_kept_fed_and_updated():
    model = small(normalized=True)
    with network(model, threads=FEW) as net, meta500.network(model, backend="numpy") as other:
        for step in range(10):
            fed = batch_of(seed=step)
            found, wanted = (n.inference_and_backprop(fed)["loss"] for n in (net, other))
            same(found, wanted)
        for name in ("mean", "variance"):
            same(net.fetch_tensors([name])[0], other.fetch_tensors([name])[0])
            assert not np.allclose(net.fetch_tensors([name])[0], model.graph.initializers[name])
        fed = batch_of(seed=20)
        same(net.inference(fed)["logits"], other.inference(fed)["logits"])
        for each in (net, other):
            each.feed_tensor("mean", np.array([1.0, 2.0, 3.0]))
        same(net.inference(fed)["logits"], other.inference(fed)["logits"])
        same(net.fetch_tensors(["mean"])[0], [1.0, 2.0, 3.0])


def test_a_constant_that_is_part_of_the_code_can_be_fed():
    b = Builder("clipped")
    x = b.input("x", "float64", (2, 5))
    low, high = b.constant(np.float64(-0.5), "low"), b.constant(np.float64(0.5), "high")
    factor = b.constant(np.arange(5.0), "factor")
    y = b.add(ops.Mul, b.add(ops.Clip, x, low, high), factor)
    shape = b.constant(np.array([10]), "shape")
    b.output(b.add(ops.Reshape, y, shape, outputs=["y"]))
    fed = {"x": np.random.default_rng(0).standard_normal((2, 5))}
    with network(b.build(), threads=1) as net:
        for values in ({}, {"high": np.float64(0.25)}, {"factor": np.ones(5)}, {"low": np.float64(-0.125)}):
            for name, value in values.items():
                net.feed_tensor(name, value)
            bounds = [net.fetch_tensors([n])[0] for n in ("low", "high", "factor")]
            wanted = (np.clip(fed["x"], *bounds[:2]) * bounds[2]).reshape(-1)
            np.testing.assert_array_equal(net.inference(fed)["y"], wanted)
        np.testing.assert_array_equal(net.fetch_tensors(["high"])[0], 0.25)


def test_outputs_stay_while_they_are_held(plain):
    first, second = batch_of(seed=7), batch_of(seed=8)
    held = plain.inference_and_backprop(first)
    gradient = plain.native("grad/w")
    logits, loss = held["logits"], held["loss"]
    copies = logits.copy(), float(loss), np.array(gradient)
    for _ in range(3):
        plain.inference_and_backprop(second)
        plain.inference(second)
    np.testing.assert_array_equal(logits, copies[0])
    assert float(loss) == copies[1]
    view = held["logits"][1:, ::2]
    kept = view.copy()
    del held, logits
    plain.inference_and_backprop(second)
    np.testing.assert_array_equal(view, kept)
    np.testing.assert_array_equal(gradient, copies[2])


def test_the_last_run_is_kept(plain):
    fed = batch_of(seed=9)
    found = plain.inference_and_backprop(fed, wrt=["w", "x"])
    np.testing.assert_array_equal(plain.fetch_tensors(["logits"])[0], found["logits"])
    np.testing.assert_array_equal(plain.fetch_tensors(["x"])[0], fed["x"])
    for name in ("grad/conv", "conv", "grad/nothing"):
        with pytest.raises(UserError, match=name):
            plain.native(name)


# -- gradients ---------------------------------------------------------------------------------------------


def test_gradients_by_some_variables(plain):
    fed = batch_of(seed=10)
    wanted = reference(plain.model, fed, wrt=["x", "c"])
    plain.inference_and_backprop(fed, wrt=["x", "c"])
    for name in ("x", "c"):
        same(plain.fetch_tensors([f"grad/{name}"])[0], wanted[f"grad/{name}"])
    for name, words in (("label", "int64"), ("nothing", "nothing")):
        with pytest.raises(UserError, match=words):
            plain.inference_and_backprop(fed, wrt=[name])


def test_a_cotangent(plain):
    fed, cotangent = batch_of(seed=12), np.random.default_rng(1).standard_normal((4, 3))
    options = {"loss": "logits", "wrt": ["x", "w", "v"], "cotangent": cotangent}
    wanted = reference(plain.model, fed, **options)
    found = plain.inference_and_backprop({"x": fed["x"]}, **options)
    same(found["logits"], wanted["logits"])
    for name in ("x", "w", "v"):
        same(plain.fetch_tensors([f"grad/{name}"])[0], wanted[f"grad/{name}"])
    with pytest.raises(UserError, match=r"\[4, 3\]"):
        plain.inference_and_backprop(fed, loss="logits", cotangent=np.zeros((3, 4)))
    with pytest.raises(UserError, match="scalar"):
        plain.inference_and_backprop(fed, loss="logits")


def test_an_unused_parameter_has_gradient_zero():
    b = Builder("unused")
    x = b.input("x", "float64", (3, 4))
    b.parameter("idle", np.ones(5))
    y = b.add(ops.Mul, x, b.parameter("w", np.arange(4.0)))
    b.output(b.add(ops.ReduceSum, y, keepdims=0, outputs=["loss"]))
    fed = {"x": np.arange(12.0).reshape(3, 4)}
    with network(b.build(), threads=1) as net:
        net.inference_and_backprop(fed)
        np.testing.assert_array_equal(net.fetch_tensors(["grad/idle"])[0], np.zeros(5))
        np.testing.assert_array_equal(net.fetch_tensors(["grad/w"])[0], fed["x"].sum(0))


# -- the graph changes -------------------------------------------------------------------------------------


def test_outputs_and_operations_can_be_added():
    model, fed = small(), batch_of(seed=13)
    with network(model, threads=FEW) as net, meta500.network(model, backend="numpy") as other:
        first = net.inference(fed)
        assert set(first) == {"logits", "loss"}
        for each in (net, other):
            each.feed_tensor("b", np.array([0.5, -0.5, 0.25]))
            each.add_output("relu")
            each.add_operation(ops.Softmax("logits", "probabilities", name="softmax", axis=1))
            each.add_output("probabilities")
        found, wanted = net.inference_and_backprop(fed), other.inference_and_backprop(fed)
        assert set(found) == {"logits", "loss", "relu", "probabilities"}
        for name, value in wanted.items():
            same(found[name], value)
        same(net.fetch_tensors(["grad/w"])[0], other.fetch_tensors(["grad/w"])[0])
        with pytest.raises(UserError, match="nothing"):
            net.add_output("nothing")
        with pytest.raises(UnsupportedOperation, match="Hardmax"):
            net.add_operation(ops.Hardmax("logits", "hard", name="hard"))
        # A refused change changes nothing.
        same(net.inference(fed)["probabilities"], wanted["probabilities"])


def test_an_input_or_a_parameter_as_an_output():
    b = Builder("through")
    x = b.input("x", "float64", (2, 3))
    w = b.parameter("w", np.arange(3.0))
    b.output(b.add(ops.Identity, w, outputs=["same"]))
    b.output(b.add(ops.Add, x, w, outputs=["y"]))
    with network(b.build(), threads=1) as net:
        net.add_output("x")
        found = net.inference({"x": np.ones((2, 3))})
        np.testing.assert_array_equal(found["x"], np.ones((2, 3)))
        np.testing.assert_array_equal(found["same"], np.arange(3.0))
        found["same"][...] = 7
        found["x"][...] = 7
        np.testing.assert_array_equal(net.fetch_tensors(["w"])[0], np.arange(3.0))
        np.testing.assert_array_equal(
            net.inference({"x": np.ones((2, 3))})["y"], 1 + np.arange(3.0) * [[1], [1]]
        )


# -- refusals ----------------------------------------------------------------------------------------------


def test_unsupported_nodes_are_refused_by_name():
    b = Builder("refused")
    x = b.input("x", "float32", (2, 3))
    b.output(b.add(ops.Hardmax, x, name="the.hardmax", outputs=["y"]))
    with pytest.raises(UnsupportedOperation, match=r"the\.hardmax") as error:
        network(b.build())
    assert error.value.op_type == "Hardmax"
    assert error.value.backend == "generated"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"precision": "float16"}, "float32"),
        ({"adjoint": "magic"}, "gather"),
        ({"target": "z80"}, "native"),
        ({"threads": 0}, "threads"),
        ({"threads": 10**6}, "threads"),
        ({"mode": "eager"}, "mode"),
    ],
)
def test_wrong_options(options, words):
    with pytest.raises(UserError, match=words):
        network(small(), **options)


def test_a_network_of_two_types_is_refused():
    b = Builder("mixed")
    x = b.input("x", "float32", (2, 3))
    b.output(b.add(ops.Cast, x, to=11, outputs=["y"]))
    with pytest.raises(UserError, match="float32, float64"):
        network(b.build())


def outer_sum(size: int) -> meta500.Model:
    """64 channels of ``size`` x ``size`` from a column and a row."""
    b = Builder("huge")
    x = b.input("x", "float32", (1, 1, size, 1))
    y = b.add(ops.Add, x, b.parameter("row", np.ones(size, "float32")))
    y = b.add(ops.Conv, y, b.parameter("w", np.ones((64, 1, 3, 3), "float32")), pads=(1, 1, 1, 1))
    b.output(b.add(ops.ReduceMean, b.add(ops.Sigmoid, y), keepdims=0, outputs=["loss"]))
    return b.build()


@pytest.mark.parametrize(("size", "words"), [(100_000, "MiB of memory"), (4_000_000, "elements")])
def test_terabytes_are_refused_before_they_are_allocated(size, words):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with network(outer_sum(size), threads=1) as net, pytest.raises(UserError, match=words):
        net.inference_and_backprop({"x": np.ones((1, 1, size, 1), "float32")})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 2**19  # KiB


def test_a_closed_network():
    net = network(small(), threads=1)
    net.inference(batch_of())
    net.close()
    net.close()
    for run in (net.inference, net.inference_and_backprop):
        with pytest.raises(UserError, match="closed"):
            run(batch_of())
    with pytest.raises(UserError, match="closed"):
        net.native_optimizer("sgd")


# -- several at once ---------------------------------------------------------------------------------------


def test_two_networks_do_not_know_of_each_other(plain):
    model = small()
    with network(model, threads=FEW) as other:
        other.feed_tensor("w", -model.graph.initializers["w"])
        first, second = batch_of(seed=14), batch_of(seed=15)
        held = plain.inference_and_backprop(first)
        found = other.inference_and_backprop(second)
        again = plain.inference_and_backprop(first)
        np.testing.assert_array_equal(held["logits"], again["logits"])
        same(found["logits"], reference(other.current_model(), second)["logits"])
    same(plain.inference(first)["logits"], reference(model, first)["logits"])


def test_two_threads_of_python_each_with_a_network():
    model = small()
    results: dict[int, list[np.ndarray]] = {}
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            with network(model, threads=FEW) as net:
                trainer = net.native_optimizer("sgd", learning_rate=0.05)
                for step in range(40):
                    trainer.train(batch_of(seed=100 * number + step % 5))
                results[number] = net.fetch_tensors(net.get_params())
        except BaseException as error:
            errors.append(error)

    workers = [threading.Thread(target=work, args=(n,)) for n in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not errors
    for number in (0, 1):
        together = results[number]
        work(number)
        for a, b in zip(together, results[number], strict=True):
            np.testing.assert_array_equal(a, b)


# -- repetition --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_equal_runs_are_bit_identical(dtype):
    model = small(5, dtype, normalized=True)
    found = []
    for _ in range(2):
        with network(model, threads=FEW) as net:
            trainer = net.native_optimizer("adam", learning_rate=0.01)
            losses = [trainer.train(batch_of(5, seed, dtype))["loss"].copy() for seed in range(6)]
            assert losses[0].dtype == dtype
            found.append([*losses, *net.fetch_tensors([*net.get_params(), "mean", "variance"])])
    for first, second in zip(*found, strict=True):
        np.testing.assert_array_equal(first, second)


def test_float32_from_float64():
    fed = batch_of(seed=16)
    wanted = reference(small(), fed)
    with network(small(), precision="float32", threads=FEW) as net:
        single = {n: a.astype("float32") if a.dtype == "float64" else a for n, a in fed.items()}
        found = net.inference_and_backprop(single)
        assert found["logits"].dtype == "float32"
        np.testing.assert_allclose(found["logits"], wanted["logits"], rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(net.fetch_tensors(["grad/w"])[0], wanted["grad/w"], rtol=1e-4, atol=1e-5)


# -- dropout -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dropping() -> Iterator[Any]:
    with network(small(64, dropout=0.25), threads=FEW, seed=5) as net:
        yield net


def test_dropout_keeps_scales_and_differs_from_step_to_step(dropping):
    fed = batch_of(64, seed=17)
    undropped = dropping.inference(fed)["drop"]
    assert (undropped[undropped != 0] > 0).all()
    masks = []
    for _ in range(2):
        found = np.array(dropping.inference_and_backprop(fed)["drop"])
        inside = undropped > 0
        kept = found[inside] != 0
        same(found[inside][kept], undropped[inside][kept] / 0.75)
        # 4 standard deviations of a binomial distribution.
        assert abs(kept.mean() - 0.75) < 4 * np.sqrt(0.75 * 0.25 / kept.size)
        masks.append(kept)
    assert (masks[0] != masks[1]).mean() > 0.2


def test_dropout_uses_the_same_mask_backward(dropping):
    fed = batch_of(64, seed=18)
    cotangent = np.random.default_rng(2).standard_normal((64, 3, 6, 7))
    dropping.inference_and_backprop(fed, loss="drop", wrt=["b"], cotangent=cotangent)
    dropped = dropping.fetch_tensors(["drop"])[0]
    # Where the output is not zero, the derivative by the bias of the channel is 1 / (1 - ratio).
    wanted = (cotangent * (dropped > 0)).sum((0, 2, 3)) / 0.75
    same(dropping.fetch_tensors(["grad/b"])[0], wanted)


def test_dropout_is_decided_by_the_seed():
    model, fed = small(8, dropout=0.5), batch_of(8, seed=19)

    def drops(seed: int, threads: int) -> list[np.ndarray]:
        with network(model, threads=threads, seed=seed) as net:
            return [np.array(net.inference_and_backprop(fed)["drop"]) for _ in range(3)]

    first, other = drops(1, FEW), drops(2, FEW)
    for a, b, c in zip(first, drops(1, 1), drops(1, FEW), strict=True):
        np.testing.assert_array_equal(a != 0, b != 0)
        np.testing.assert_array_equal(a, c)
    assert any((a != b).any() for a, b in zip(first, other, strict=True))
