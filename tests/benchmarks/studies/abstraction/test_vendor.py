"""Programs of oneDNN primitives: their text, what they refuse, their results, and where the library is found."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.backends.toolchain import compile_program, compile_text, load_library
from meta500.benchmarks.studies.abstraction import vendor
from meta500.benchmarks.studies.abstraction.level import CPU, CUDA, INFERENCE, TRAINING, Unavailable
from meta500.benchmarks.studies.abstraction.network_program import Names, comment, describe, literal
from meta500.benchmarks.studies.abstraction.onednn_program import network_source, untrainable
from meta500.benchmarks.workers import WorkerFailed
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Model
from meta500.graph import operators as ops
from meta500.graph.builder import Builder
from meta500.models import create

HOSTILE = [
    'x"; abort(); //',
    "a\nabort();",
    "*/ abort(); /*",
    "end\\",
    "int",
    "errno",
    "NULL",
    "9lives",
    "ä€",
    "??/",
]

needs_onednn = pytest.mark.skipif(bool(vendor.ONEDNN.missing(CPU)), reason=vendor.ONEDNN.missing(CPU) or "-")


def small(net: Builder, name: str, *shape: int) -> str:
    rng = np.random.default_rng(sum(map(ord, name)))
    return net.parameter(name, (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32))


def normalized(net: Builder, x: str, name: str, channels: int) -> str:
    values = {"scale": (0.5, 1.5), "shift": (-0.5, 0.5)}
    rng = np.random.default_rng(channels)
    scale, shift = (
        net.parameter(f"{name}.{key}", rng.uniform(*limits, channels).astype(np.float32))
        for key, limits in values.items()
    )
    mean, variance = (
        net.constant(rng.uniform(0.1, 1, channels).astype(np.float32), f"{name}.{key}")
        for key in ("mean", "var")
    )
    return net.add(ops.BatchNormalization, x, scale, shift, mean, variance, name=name, follow_mode=True)


def mixed(training: bool) -> Model:
    """A network with every operator of the programs, in forms that need care."""
    net = Builder("mixed")
    x = net.input("image", np.float32, (2, 3, 11, 10))
    a = net.add(
        ops.Conv, x, small(net, "w1", 6, 3, 3, 2), small(net, "b1", 6), pads=(0, 1, 2, 0), strides=(1, 2)
    )
    a = net.add(ops.LeakyRelu, a, alpha=0.1)
    b = net.add(ops.Conv, a, small(net, "w2", 6, 2, 3, 3), pads=(2, 2, 2, 2), dilations=(2, 2), group=3)
    b = net.add(ops.Relu, normalized(net, b, "bn1", 6))
    a = net.add(ops.Relu, net.add(ops.Add, a, b))  # a has two readers
    a = net.add(ops.Concat, [a, b, a], axis=1)
    up = net.add(
        ops.ConvTranspose, a, small(net, "w3", 18, 2, 3, 3), small(net, "b3", 4),
        strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 0), group=2,
    )  # fmt: skip
    low, high = (net.constant(np.float32(value)) for value in (-0.6, 0.7))
    up = net.add(ops.Clip, normalized(net, up, "bn2", 4), low, high)
    pooled = net.add(ops.MaxPool, up, kernel_shape=(3, 3), strides=(2, 2), ceil_mode=1)
    means = net.add(
        ops.AveragePool,
        net.add(ops.Tanh, pooled),
        kernel_shape=(2, 3),
        pads=(1, 1, 0, 1),
        count_include_pad=1,
    )
    inner = net.add(ops.AveragePool, means, kernel_shape=(2, 2), pads=(1, 1, 1, 1), count_include_pad=0)
    rows, columns = 12, 5
    rng = np.random.default_rng(5)
    left = net.constant(rng.standard_normal((3, rows)).astype(np.float32), "left")
    right = net.constant(rng.standard_normal((columns, 2)).astype(np.float32), "right")
    y = net.add(ops.MatMul, net.add(ops.MatMul, left, inner), right)
    if not training:
        y = net.add(ops.LRN, y, size=3, alpha=0.3, beta=0.6, bias=1.5)
        starts, ends, axes = (net.constant(np.array(v, np.int64)) for v in ([1, -3], [4, 2**62], [1, 2]))
        y = net.add(ops.Concat, [y, y], axis=1)
        y = net.add(ops.Slice, y, starts, ends, axes)
        y = net.add(ops.Concat, [y, net.add(ops.Sigmoid, y)], axis=1)
    flat = net.add(ops.Flatten, y)
    width = 24 if training else 36
    hidden = net.add(ops.Gemm, flat, small(net, "w4", 5, width), small(net, "b4", 5), transB=1)
    hidden = net.add(ops.Sum, [hidden, net.add(ops.Sigmoid, hidden), hidden])
    if training:
        logits = net.add(ops.Gemm, hidden, small(net, "w5", 4, 5), transB=1, outputs=["logits"])
        net.output(logits)
        label = net.input("label", np.int64, (2,))
        net.output(net.add(ops.SoftmaxCrossEntropyLoss, logits, label, outputs=["loss"]))
    else:
        net.output(net.add(ops.Softmax, hidden, axis=-1, outputs=["logits"]))
    return net.build()


def hostile() -> Model:
    """A network whose values and nodes have names that mean something in C++."""
    net = Builder(HOSTILE[1])
    x = net.input("image", np.float32, (2, 3, 4, 4))
    for index, name in enumerate(HOSTILE):
        weight = net.parameter(
            f"{name} ".replace("\n", " "), np.full((3, 3, 1, 1), 0.1 * (index + 1), np.float32)
        )
        x = net.add(ops.Conv, x, weight, name=name, outputs=[name])
    net.output(net.add(ops.Flatten, x, outputs=["logits"]))
    return net.build()


@given(st.lists(st.text(max_size=70), max_size=30))
def test_identifiers_are_distinct_and_plain(names: list[str]) -> None:
    chosen = Names()
    found = {name: chosen(name) for name in names}
    assert len(set(found.values())) == len(found)
    assert all(text.isascii() and text.isidentifier() and "__" not in text for text in found.values())
    assert all(not text.startswith("_") and any(c.islower() for c in text) for text in found.values())
    assert {chosen("int"), chosen("errno"), chosen("class")}.isdisjoint({"int", "errno", "class"})


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_literals_hold_their_text_and_comments_one_line(text: str) -> None:
    inside = literal(text)[1:-1]
    assert inside.isascii() and inside.isprintable() and "?" not in inside and '"' not in inside
    assert inside.encode().decode("unicode_escape").encode("latin-1") == text.encode()
    assert comment(text).isascii() and comment(text).isprintable() and "\\" not in comment(text)


def test_the_text_names_every_node_and_fuses_what_it_says() -> None:
    text = network_source(describe(create("resnet18", batch=2, size=32, small_images=True)))
    inference, training = text.split("void meta500::build_training")
    assert inference.count("net.batch_normalization(") == training.count("net.batch_normalization(") == 20
    assert inference.count("true, true);") == training.count("true, false);") == 9  # ReLU within, in place
    assert inference.count("Activation::relu()") == training.count("net.elementwise(") == 8
    assert "net.elementwise(" not in inference and "net.cross_entropy(logits, 1," in training
    for part in (inference, training):
        assert "// layer3.0.downsample.0: Conv\n" in part and "// layer4.1.relu: Relu\n" in part


def test_hostile_names_stay_in_their_places() -> None:
    text = network_source(describe(hostile()))
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("//")]
    outside = re.sub(r'"(?:[^"\\]|\\.)*"', "", "\n".join(lines))
    assert outside.isascii() and '"' not in outside and "\\" not in outside
    assert not re.search(r"abort\(|\bValue (int|errno|NULL)\b|/\*|//(?! namespace)", outside)
    assert outside.count("net.convolution(") == len(HOSTILE)


@pytest.mark.parametrize(
    ("operation", "fields", "reason"),
    [
        (ops.Erf, {}, ""),
        (ops.Transpose, {"perm": (0, 1, 3, 2)}, ""),
        (ops.Flatten, {"axis": 2}, "axis 2"),
        (
            ops.AveragePool,
            {"kernel_shape": (3, 3), "strides": (2, 2), "ceil_mode": 1, "count_include_pad": 1},
            "beyond",
        ),
    ],
)
def test_an_operation_is_refused_by_its_node(operation: type, fields: dict, reason: str) -> None:
    net = Builder("n")
    x = net.input("image", np.float32, (1, 2, 4, 4))
    net.output(net.add(operation, x, name="the node", outputs=["logits"], **fields))
    with pytest.raises(UnsupportedOperation, match=f"node 'the node'.*oneDNN program.*{reason}"):
        network_source(describe(net.build()))


@pytest.mark.parametrize("first", ["Gemm", "MatMul"])
def test_a_matrix_that_another_operator_reads_too_is_refused(first: str) -> None:
    net = Builder("n")
    x = net.input("image", np.float32, (1, 2, 4, 4))
    matrix = net.constant(np.eye(4, dtype=np.float32), "shared")
    wide = net.constant(np.eye(4, 32, dtype=np.float32), "wide")

    def gemm(value: str) -> str:
        narrow = net.add(ops.Gemm, net.add(ops.Flatten, value), wide, transB=1)
        return net.add(ops.Gemm, narrow, matrix, transB=1)

    def product(value: str) -> str:
        return net.add(ops.Flatten, net.add(ops.MatMul, value, matrix))

    order = (gemm, product) if first == "Gemm" else (product, gemm)
    found = [make(x) for make in order]
    net.output(net.add(ops.Concat, found, axis=1, outputs=["logits"]))
    with pytest.raises(UnsupportedOperation, match="used in other ways"):
        network_source(describe(net.build()))


def test_dropout_is_refused_in_training_alone() -> None:
    options = {"batch": 1, "size": 32, "width": 0.25, "classes": 3}
    network = describe(create("mobilenet_v2", **options))
    assert "classifier.0" in untrainable(network) and "dropout" in untrainable(network)
    assert "std::runtime_error" in network_source(network)
    assert untrainable(describe(create("mobilenet_v2", dropout=0.0, **options))) == ""


def test_a_network_needs_its_names_and_shapes() -> None:
    net = Builder("n")
    net.output(net.add(ops.Relu, net.input("image", np.float32, (1, 2)), outputs=["y"]))
    with pytest.raises(UserError, match="no value 'logits'"):
        describe(net.build())
    with pytest.raises(UserError, match="no fixed shape"):
        describe(create("mlp", batch=None))
    with pytest.raises(UserError, match="float64"):
        describe(create("mlp", batch=1, dtype="float64"))


def errors(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(found - expected).max() / max(np.abs(expected).max(), 1e-30))


@needs_onednn
def test_logits_are_right(job_of, exact_logits) -> None:
    for model in (create("digits_cnn", batch=3), mixed(False), hostile()):
        job, arrays = job_of(model, INFERENCE)
        session = vendor.ONEDNN.make(job)
        try:
            first, second = session.step(), session.step()
            assert errors(first, exact_logits(model, arrays["image"])) < 1e-5, model.name
            np.testing.assert_array_equal(first, second)
            assert session.run(3) > 0 and session.base_memory > 0 and session.pid > 0
            with pytest.raises(WorkerFailed, match="loaded for inference"):
                session._worker.ask("train", 60, count=1)
        finally:
            session.close()
        for path in (job.model, job.inputs):
            Path(path).unlink()
        for path in sorted(Path(job.folder).glob("*")):
            path.unlink()
        Path(job.folder).rmdir()


@needs_onednn
@pytest.mark.parametrize("name", ["digits_cnn", "mixed"])
def test_training_is_right(name: str, job_of, exact_steps) -> None:
    model = mixed(True) if name == "mixed" else create(name, batch=3)
    job, arrays = job_of(model, TRAINING)
    losses, gradients, weights = exact_steps(model, arrays, 3)
    session = vendor.ONEDNN.make(job)
    try:
        found = [float(session.step())]
        slopes = session.trained(gradients=True)
        found += [float(session.step()) for _ in range(2)]
        moved = session.trained()
    finally:
        session.close()
    np.testing.assert_allclose(found, losses, rtol=2e-5)
    assert set(slopes) == set(gradients)
    scale = max(np.abs(g).max() for g in gradients.values())
    for key, gradient in gradients.items():
        assert np.abs(slopes[key] - gradient).max() < 1e-4 * max(np.abs(gradient).max(), 1e-3 * scale), key
        assert np.abs(moved[key] - weights[key]).max() < 1e-5 * np.abs(weights[key]).max() + 1e-7, key
    assert any(np.abs(moved[key] - model.graph.initializers[key]).max() > 0 for key in moved)


@needs_onednn
def test_a_label_that_is_no_class_is_told(job_of) -> None:
    model = create("digits_cnn", batch=3)
    job, arrays = job_of(model, TRAINING)
    np.savez(job.inputs, image=arrays["image"], label=np.array([0, 10, 1]))
    session = vendor.ONEDNN.make(job)
    try:
        with pytest.raises(WorkerFailed, match="a label is no class"):
            session.step()
    finally:
        session.close()
    np.savez(job.inputs, image=arrays["image"][:2], label=arrays["label"])
    with pytest.raises(UserError, match=r"'image' is float32\[2, 1, 8, 8\], the network takes"):
        vendor.ONEDNN.make(job)


@pytest.mark.slow
@needs_onednn
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {"size": 64}),
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
    session = vendor.ONEDNN.make(job)
    try:
        assert errors(session.step(), exact_logits(model, arrays["image"])) < 2e-5
    finally:
        session.close()


def fake(root: Path, version: str) -> Path:
    headers = root / "include" / "oneapi" / "dnnl"
    headers.mkdir(parents=True)
    (root / "lib").mkdir()
    (headers / "dnnl.hpp").write_text("")
    parts = zip(("MAJOR", "MINOR", "PATCH"), version.split("."), strict=True)
    (headers / "dnnl_version.h").write_text("\n".join(f"#define DNNL_VERSION_{k} {v}" for k, v in parts))
    (root / "lib" / "libdnnl.so").write_text("")
    return root


def test_the_library_is_found_where_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DNNLROOT", str(fake(tmp_path / "three", "3.7.1")))
    found = vendor.onednn()
    assert found.version == "3.7.1" and found.headers == tmp_path / "three" / "include"
    assert found.library == tmp_path / "three" / "lib" / "libdnnl.so"
    assert vendor.ONEDNN.version() == "oneDNN 3.7.1"
    monkeypatch.setenv("DNNLROOT", str(fake(tmp_path / "two", "2.7.5")))
    with pytest.raises(UserError, match="DNNLROOT is .*two"):
        vendor.onednn()
    monkeypatch.setenv("DNNLROOT", str(tmp_path / "nowhere"))
    assert "DNNLROOT" in vendor.ONEDNN.missing(CPU)


def test_without_the_library_the_level_says_what_to_install(job_of, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise vendor.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.delenv("DNNLROOT", raising=False)
    monkeypatch.setattr(vendor.importlib.metadata, "distribution", absent)
    monkeypatch.setattr(vendor, "_SYSTEM", ())
    assert "pip install 'meta500[onednn]'" in vendor.ONEDNN.missing(CPU)
    assert vendor.ONEDNN.version() == ""
    job, _ = job_of(create("mlp", batch=1), INFERENCE)
    with pytest.raises(Unavailable, match=r"meta500\[onednn\]"):
        vendor.ONEDNN.make(job)


def test_what_is_not_there_says_so(job_of) -> None:
    assert "CPU" in vendor.ONEDNN.missing(CUDA)
    assert "cuDNN" in vendor.CUDNN.missing(CPU) and "no program" in vendor.CUDNN.missing(CUDA)
    job, _ = job_of(create("mlp", batch=1), INFERENCE)
    with pytest.raises(Unavailable, match="cuDNN"):
        vendor.CUDNN.make(job)


def test_a_program_and_a_library_of_the_same_text_are_two_things() -> None:
    text = {"seven.cpp": 'extern "C" int seven() { return 7; }\nint main() { return seven(); }\n'}
    program, library = compile_program(text, openmp=False), compile_text(text, openmp=False)
    assert program != library and program == compile_program(text, openmp=False)
    assert subprocess.run([program], check=False).returncode == load_library(library).seven() == 7
    with pytest.raises(UserError, match=r"undefined reference to .*eight"):
        compile_program({"a.cpp": "int eight();\nint main() { return eight(); }\n"}, openmp=False)
