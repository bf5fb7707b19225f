"""The nine networks that onnx ships without their weights, as shipped and with seeded random weights."""

from __future__ import annotations

import functools
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.operators.cases import Case, DataSet, quiet_generators, read_value

SEED = 20


def light_cases(random: bool) -> list[Case]:
    """AlexNet, DenseNet-121, Inception v1 and v2, ResNet-50, ShuffleNet, SqueezeNet, VGG-19 and ZFNet.

    As shipped, nearly all weights are the number 0.02 and the expected output is one number repeated, which
    a wrong backend may give too; with ``random`` weights nothing is expected, backends have to agree.
    """
    with quiet_generators():
        import onnx
        from onnx.backend.test.loader import load_model_tests

        tests = load_model_tests(kind="real")
    folder = Path(onnx.__file__).parent.parent
    suite = "light-random" if random else "light"
    read = _random if random else _shipped
    return [
        Case(
            test.model_name, suite, "", test.rtol, test.atol, functools.partial(read, folder / str(test.url))
        )
        for test in tests
    ]


def _shipped(path: Path) -> tuple[Any, list[DataSet]]:
    import onnx

    model = onnx.load(path)
    given = {}
    for info, shape in _inputs(model):
        count = math.prod(shape)
        given[info.name] = (np.arange(count).reshape(shape) / count).astype(np.float32)
    wanted = {
        info.name: read_value(path.with_name(f"{path.stem}_output_{index}.pb"), info.type)
        for index, info in enumerate(model.graph.output)
    }
    return model, [(given, wanted)]


def _random(path: Path) -> tuple[Any, list[DataSet]]:
    import onnx

    model = onnx.load(path)
    randomize(model)
    _show_logits(model)
    rng = np.random.default_rng(SEED)
    given = {info.name: rng.standard_normal(shape, dtype=np.float32) for info, shape in _inputs(model)}
    return model, [(given, {})]


def _show_logits(model: Any) -> None:
    """Make the input of a last Softmax an output too: a softmax near 0 and 1 hides differences before it."""
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        output = model.graph.output.add()
        output.name = last.input[0]


def _inputs(model: Any) -> list[tuple[Any, tuple[int, ...]]]:
    constants = {tensor.name for tensor in model.graph.initializer}
    return [
        (info, tuple(d.dim_value or 1 for d in info.type.tensor_type.shape.dim))
        for info in model.graph.input
        if info.name not in constants
    ]


def randomize(model: Any, seed: int = SEED) -> None:
    """Give an ``onnx.ModelProto`` random floating-point weights, in place.

    Initializers and ConstantOfShape nodes are replaced by values drawn after their names. Weights of
    convolutions and products have the variance 2 / fan-in (He et al. 2015), so that activations keep their
    size through the depth; scales and variances lie around 1 and are positive, biases and means around 0.
    """
    from onnx import numpy_helper

    graph = model.graph
    shapes: dict[str, tuple[int, ...]] = {}
    initializers = {tensor.name: tensor for tensor in graph.initializer}
    for name, tensor in initializers.items():
        if tensor.data_type == tensor.FLOAT:
            shapes[name] = tuple(tensor.dims)
    kept = []
    for node in graph.node:
        if node.op_type == "ConstantOfShape" and node.input[0] in initializers:
            shapes[node.output[0]] = tuple(numpy_helper.to_array(initializers[node.input[0]]).tolist())
        else:
            kept.append(node)
    roles = _roles(kept, shapes)
    others = [tensor for tensor in graph.initializer if tensor.name not in shapes]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(others)
    for name, shape in shapes.items():
        rng = np.random.default_rng((seed, zlib.crc32(name.encode())))
        graph.initializer.append(numpy_helper.from_array(_draw(rng, shape, roles.get(name, "bias")), name))


def _roles(nodes: list[Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, str]:
    """What each weight is to the node that reads it, through Unsqueeze nodes."""
    meanings = {
        "Conv": {1: "convolution"},
        "BatchNormalization": {1: "scale", 4: "variance"},
        "Mul": {0: "scale", 1: "scale"},
    }
    origin = {name: name for name in shapes}
    roles: dict[str, str] = {}
    for node in nodes:
        if node.op_type == "Unsqueeze" and node.input[0] in origin:
            origin[node.output[0]] = origin[node.input[0]]
        meaning = meanings.get(node.op_type, {})
        if node.op_type == "Gemm":
            transposed = any(a.name == "transB" and a.i for a in node.attribute)
            meaning = {1: "rows" if transposed else "columns"}
        for position, name in enumerate(node.input):
            if name in origin and position in meaning:
                roles[origin[name]] = meaning[position]
    return roles


def _draw(rng: np.random.Generator, shape: tuple[int, ...], role: str) -> np.ndarray:
    if role in ("scale", "variance"):
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if role == "bias":
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1)
    fan_in = shape[0] if role == "columns" else math.prod(shape[1:])
    return rng.standard_normal(shape, dtype=np.float32) * np.float32(math.sqrt(2 / fan_in))
