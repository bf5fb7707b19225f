"""Programs of ATen calls: their text, what they refuse, and their results."""

import numpy as np
import pytest

from meta500.backends.network import network
from meta500.benchmarks.studies.abstraction import libtorch
from meta500.benchmarks.studies.abstraction.level import (
    CPU,
    CUDA,
    INFERENCE,
    TRAINING,
    Unavailable,
)
from meta500.benchmarks.studies.abstraction.libtorch_program import network_source, untrainable
from meta500.benchmarks.studies.abstraction.network_program import describe
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Model
from meta500.graph import operators as ops
from meta500.graph.builder import Builder
from meta500.models import create


def mixed() -> Model:
    """A network with operators in forms that need care, and with names that mean something in C++."""
    net, rng = Builder('mixed"\n#error'), np.random.default_rng(3)

    def weight(name: str, *shape: int) -> str:
        return net.parameter(
            name, (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        )

    def number(value: float) -> str:
        return net.constant(np.float32(value))

    x = net.input("image", np.float32, (2, 3, 11, 10))
    a = net.add(ops.Conv, x, weight("int", 6, 3, 3, 2), weight('b"1', 6), pads=(0, 1, 2, 0), strides=(1, 2))
    a = net.add(ops.LeakyRelu, a, alpha=0.1, name="a\\", outputs=["a\n#error"])
    b = net.add(ops.Conv, a, weight("w2", 6, 2, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), group=3)
    scale, shift = net.parameter("s", np.full(6, 0.7, np.float32)), weight("shift", 6)
    mean, variance = (net.constant(np.full(6, v, np.float32), f"{v}") for v in (0.1, 0.8))
    b = net.add(ops.BatchNormalization, b, scale, shift, mean, variance, follow_mode=True)
    a = net.add(ops.Concat, [net.add(ops.Add, a, b), net.add(ops.Sub, a, number(0.25))], axis=1)
    up = net.add(
        ops.ConvTranspose, a, weight("w3", 12, 2, 3, 3), weight("b3", 4),
        strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 0), group=2,
    )  # fmt: skip
    up = net.add(ops.Clip, up, number(-0.6), number(0.7))
    pooled = net.add(ops.MaxPool, up, kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)
    pooled = net.add(ops.MaxPool, pooled, kernel_shape=(2, 2), pads=(0, 0, 1, 0))
    means = net.add(ops.AveragePool, pooled, kernel_shape=(3, 3), pads=(1, 1, 1, 1), count_include_pad=1)
    starts, ends, axes = (net.constant(np.array(v, np.int64)) for v in ([1, -3], [4, 2**62], [1, 2]))
    part = net.add(ops.Slice, net.add(ops.Tanh, means), starts, ends, axes)
    part = net.add(ops.MatMul, part, net.constant(rng.standard_normal((3, 2)).astype(np.float32), "right"))
    flat = net.add(ops.Identity, net.add(ops.Flatten, net.add(ops.Transpose, part, perm=(0, 2, 1, 3))))
    flat = net.add(ops.Dropout, flat, number(0.0), follow_mode=True)
    hidden = net.add(ops.Gemm, flat, weight("w4", 5, 18), weight("b4", 5), transB=1)
    hidden = net.add(ops.Sum, [hidden, net.add(ops.Sigmoid, hidden), net.add(ops.Div, hidden, number(3.0))])
    logits = net.add(ops.Gemm, hidden, weight("w5", 5, 4), weight("b5", 4), alpha=0.5, outputs=["logits"])
    net.output(logits)
    label = net.input("label", np.int64, (2,))
    main = net.add(ops.SoftmaxCrossEntropyLoss, logits, label)
    other = net.add(
        ops.Mul, net.add(ops.SoftmaxCrossEntropyLoss, hidden, label, reduction="sum"), number(0.3)
    )
    net.output(net.add(ops.Sum, [main, other], outputs=["loss"]))
    return net.build()


def test_the_text_has_one_tensor_per_value_and_releases_it() -> None:
    text = network_source(describe(create("resnet18", batch=2, size=32, small_images=True)))
    forward, loss = text.split("at::Tensor loss() const override")
    assert forward.count("at::conv2d(") == forward.count("at::batch_norm(") == 20
    assert "// layer3.0.downsample.0: Conv\n" in forward and "// layer4.1.relu: Relu\n" in loss
    assert forward.count("false, 0.0, 1e-05, false)") == 20 and "true, 0.09999999999999998, " in loss
    # the shortcut lives until it has been added
    lines = [line.strip() for line in forward.splitlines()]
    added = next(i for i, line in enumerate(lines) if line.startswith("at::Tensor layer1_0_add ="))
    assert lines[added + 1 : added + 3] == ["relu.reset();", "layer1_0_bn2.reset();"]
    assert "return logits;" in forward and "logits.reset();" not in forward
    assert "#include <ATen/ops/conv2d.h>" in text and "torch/torch.h" not in text


def test_hostile_names_stay_in_their_places() -> None:
    text = network_source(describe(mixed()))
    assert "#error" not in "\n".join(line for line in text.splitlines() if not line.strip().startswith("//"))
    assert not any(line.rstrip().endswith("\\") for line in text.splitlines())
    assert 'add_weight("b\\0421", true, {6}, b_1);' in text
    assert 'add_weight("int", true, {6, 3, 3, 2}, int_1);' in text


def test_weights_do_not_take_the_names_of_the_classes_members() -> None:
    net = Builder("n")
    x = net.input("image", np.float32, (1, 3))
    for name in ("Network", "loss", "logits_count", "LibtorchProgram", "Array"):
        weight = net.parameter(name, np.eye(3, dtype=np.float32))
        x = net.add(ops.Gemm, x, weight, transB=1)
    net.output(net.add(ops.Relu, x, outputs=["logits"]))
    text = network_source(describe(net.build()))
    declared = [
        line.split()[1].rstrip(";") for line in text.splitlines() if line.startswith("    at::Tensor ")
    ]
    members = {name for name in declared if not name.endswith("()")}
    assert {"Network_1", "loss_1", "logits_count_1", "LibtorchProgram_1", "Array_1"} <= members
    assert 'add_weight("Network", true, {3, 3}, Network_1);' in text


@pytest.mark.parametrize(
    ("operation", "fields", "reason"),
    [
        (ops.Erf, {}, ""),
        (ops.AveragePool, {"kernel_shape": (2, 2), "pads": (0, 0, 1, 1)}, "pads that differ"),
    ],
)
def test_an_operation_is_refused_by_its_node(operation: type, fields: dict, reason: str) -> None:
    net = Builder("n")
    x = net.input("image", np.float32, (1, 2, 4, 4))
    net.output(net.add(operation, x, name="the node", outputs=["logits"], **fields))
    model = net.build()
    with pytest.raises(UnsupportedOperation, match=f"node 'the node'.*LibTorch program.*{reason}"):
        network_source(describe(model))


def test_a_network_without_loss_has_no_training(job_of) -> None:
    model = create("mlp", batch=2, loss=False)
    assert "no 'label'" in untrainable(describe(model))
    assert "std::runtime_error" in network_source(describe(model))
    job, _ = job_of(model, TRAINING)
    with pytest.raises(Unavailable, match="no 'label'"):
        libtorch.LIBTORCH.make(job)


def test_a_constant_of_another_type_is_told() -> None:
    net = Builder("n")
    x = net.input("image", np.float32, (1, 2))
    index = net.constant(np.array([1], np.int64), "the constant")
    net.output(net.add(ops.MatMul, x, index, outputs=["logits"]))
    model = net._graph
    from meta500.graph.types import TensorType

    model.outputs["logits"] = TensorType(np.dtype(np.float32), (1,))
    with pytest.raises(UserError, match="'the constant' is int64"):
        network_source(describe(Model(model, {"": 21})))


def test_where_it_runs() -> None:
    assert libtorch.LIBTORCH.missing(CPU) == ""
    assert "CPU" in libtorch.LIBTORCH.missing(CUDA)


def test_a_torch_without_headers_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    found = libtorch.importlib.util.find_spec("torch")
    monkeypatch.setattr(found, "submodule_search_locations", [str(tmp_path)])
    monkeypatch.setattr(libtorch.importlib.util, "find_spec", lambda name: found)
    assert "headers" in libtorch.LIBTORCH.missing(CPU)
    monkeypatch.setattr(libtorch.importlib.util, "find_spec", lambda name: None)
    assert "pip install torch" in libtorch.LIBTORCH.missing(CPU)


@pytest.mark.slow
def test_inference_and_training_are_right(job_of, exact_logits, exact_steps) -> None:
    model = mixed()
    job, arrays = job_of(model, INFERENCE)
    session = libtorch.LIBTORCH.make(job)
    try:
        found, expected = session.step(), exact_logits(model, arrays["image"])
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
        assert session.run(2) > 0 and session.base_memory > 0
    finally:
        session.close()
    job, arrays = job_of(model, TRAINING)
    losses, gradients, weights = exact_steps(model, arrays, 3)
    session = libtorch.LIBTORCH.make(job)
    try:
        values = [float(session.step())]
        slopes = session.trained(gradients=True)
        values += [float(session.step()) for _ in range(2)]
        moved = session.trained()
    finally:
        session.close()
    np.testing.assert_allclose(values, losses, rtol=2e-5)
    for key, gradient in gradients.items():
        assert np.abs(slopes[key] - gradient).max() < 1e-4 * max(np.abs(gradient).max(), 1e-3), key
        assert np.abs(moved[key] - weights[key]).max() < 1e-5 * np.abs(weights[key]).max() + 1e-7, key


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_training_equals_the_torch_backend(name: str, job_of) -> None:
    model = create(name, batch=2, size=64, classes=10)
    job, arrays = job_of(model, TRAINING)
    session = libtorch.LIBTORCH.make(job)
    try:
        found = [float(session.step()) for _ in range(2)]
        moved = session.trained()
    finally:
        session.close()
    with network(model, backend="torch", threads=1) as net:
        optimizer = net.native_optimizer("sgd", learning_rate=job.learning_rate)
        losses = [float(optimizer.train(arrays, outputs=["loss"])["loss"]) for _ in range(2)]
        weights = dict(zip(moved, net.fetch_tensors(list(moved)), strict=True))
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    for key, weight in weights.items():
        np.testing.assert_allclose(
            moved[key], weight, rtol=1e-4, atol=1e-5 * np.abs(weight).max(), err_msg=key
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet50", {"size": 64}),
        ("mobilenet_v2", {"size": 64}),
        ("squeezenet1_1", {"size": 64}),
        ("alexnet", {"size": 64}),
        ("googlenet", {"size": 64}),
        ("densenet121", {"size": 64}),
        ("vgg16", {"size": 32}),
        ("unet", {"size": 64, "n": 1}),
        ("unet_ronneberger", {"size": 188}),
        ("lenet", {}),
        ("mlp", {}),
    ],
)
def test_logits_of_all_networks_are_right(name: str, options: dict, job_of, exact_logits) -> None:
    model = create(name, batch=1, **options)
    job, arrays = job_of(model, INFERENCE)
    session = libtorch.LIBTORCH.make(job)
    try:
        expected = exact_logits(model, arrays["image"])
        assert np.abs(session.step() - expected).max() < 2e-5 * np.abs(expected).max()
    finally:
        session.close()
