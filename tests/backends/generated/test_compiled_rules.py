"""All lowering rules in one network of compiled C++ against the numpy backend in float64, values and gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import meta500
from meta500.graph import Builder, load, ops

OPSET = 21
Case = tuple[str, list[Any], dict[int, Any], dict[str, Any]]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.asarray(np.random.default_rng(seed).standard_normal(shape))


def ties(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice([-3.0, -1.0, -0.5, 0.0, 0.5, 1.0, 3.0], shape)


def whole(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def single(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


FUNCTIONS: list[Case] = [
    (name, [ties(2, 3, 5)], {}, {})
    for name in (
        "Abs", "Ceil", "Erf", "Exp", "Floor", "Relu", "Sigmoid", "Sign", "Softplus", "Tanh", "Neg", "Identity",
        "Softsign", "LeakyRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "HardSigmoid", "HardSwish", "Mish", "Gelu",
        "Softmax", "LogSoftmax",
    )
]  # fmt: skip
VALUES: list[Case] = [
    *((name, [normal(2, 3), normal(3, seed=1) + 4], {}, {}) for name in ("Add", "Sub", "Mul", "Div")),
    *((name, [ties(3, 4), ties(3, 4, seed=1), ties(4, seed=2)], {}, {}) for name in ("Max", "Min", "Sum", "Mean")),
    ("Max", [np.array([np.nan, 1.0, 2.0]), np.array([0.0, np.nan, 2.0])], {}, {}),
    ("Pow", [normal(3, 4)], {1: 3.0}, {}),
    ("Clip", [ties(3, 4), np.array(-0.5), np.array(0.5)], {}, {}),
    ("PRelu", [ties(2, 3, 4), normal(3, 1)], {}, {}),
    ("Where", [ties(3, 4) > 0, normal(3, 4), normal(4)], {}, {}),
    ("Where", [ties(3, 4) > 0, np.arange(4), np.array(7)], {}, {}),
    ("LessOrEqual", [ties(3, 4), ties(4, seed=4)], {}, {}),
    ("Xor", [ties(3, 4) > 0, ties(3, 4, seed=1) > 0], {}, {}),
    ("Not", [ties(3, 4) > 0], {}, {}),
    ("IsNaN", [np.array([1.0, np.nan])], {}, {}),
    ("Cast", [normal(3, 4) * 3], {}, {"to": 7}),
    ("Cast", [ties(3, 4)], {}, {"to": 9}),
    ("MatMul", [normal(2, 3, 4), normal(4, 5)], {}, {}),
    ("MatMul", [normal(4), normal(2, 4, 5)], {}, {}),
    ("Gemm", [normal(4, 3), normal(5, 4), normal(5)], {}, {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("SoftmaxCrossEntropyLoss", [normal(3, 4, 2), whole(1, 0, 3, 3, 2, 1).reshape(3, 2), np.abs(normal(4))], {}, {}),
    ("NegativeLogLikelihoodLoss", [normal(3, 4), whole(1, 0, 3)], {}, {"reduction": "none"}),
    ("ReduceSum", [normal(5, 3, 4, 4)], {1: whole(0, 2)}, {}),
    ("ReduceMax", [ties(2, 3, 4)], {1: whole(1)}, {}),
    ("ReduceMin", [ties(2, 3, 4)], {1: whole(0, 2)}, {}),
    ("ReduceMean", [normal(2, 3, 4)], {1: whole(-1)}, {"keepdims": 0}),
    ("ReduceL2", [np.zeros((2, 3))], {1: whole(-1)}, {}),
    ("ReduceLogSumExp", [normal(2, 3)], {1: whole(-1)}, {}),
]  # fmt: skip
IMAGES: list[Case] = [
    ("Conv", [normal(2, 4, 7, 7), normal(4, 2, 3, 3), normal(4)], {}, {"group": 2, "dilations": [2, 1], "pads": [2, 1, 0, 1]}),
    ("Conv", [normal(2, 2, 7, 7), normal(3, 2, 3, 3)], {}, {"strides": [3, 3], "pads": [1, 1, 1, 1]}),
    ("ConvTranspose", [normal(2, 2, 3, 3), normal(2, 3, 3, 3), normal(3)], {}, {"strides": [3, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", [ties(2, 2, 7, 7)], {}, {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    ("MaxPool", [np.array([np.nan, 1, np.nan, 2, 3, 4.0]).reshape(1, 1, 6)], {}, {"kernel_shape": [3], "strides": [3]}),
    ("AveragePool", [normal(2, 2, 7, 6)], {}, {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1], "ceil_mode": 1}),
    ("GlobalMaxPool", [ties(2, 3, 4, 4)], {}, {}),
    ("GlobalAveragePool", [normal(2, 3, 4, 4)], {}, {}),
    ("BatchNormalization", [normal(4, 3, 5, 5), *(np.abs(normal(3, seed=i)) + 0.1 for i in range(4))], {}, {}),
    ("InstanceNormalization", [normal(2, 4, 3, 3), normal(4), normal(4, seed=2)], {}, {}),
    ("GroupNormalization", [normal(2, 4, 3, 3), normal(4), normal(4, seed=2)], {}, {"num_groups": 2}),
    ("LayerNormalization", [normal(2, 3, 4), normal(4), normal(4, seed=2)], {}, {}),
    ("Resize", [normal(2, 2, 4, 5)], {2: single(1, 1, 2, 2)}, {"mode": "nearest"}),
    ("Resize", [normal(2, 2, 4, 5)], {2: single(1, 1, 2, 2)}, {"mode": "linear"}),
    ("Resize", [normal(2, 2, 4, 5)], {3: whole(2, 2, 13, 11)}, {"mode": "cubic"}),
    ("DepthToSpace", [normal(2, 8, 2, 3)], {}, {"blocksize": 2}),
    ("SpaceToDepth", [normal(2, 3, 4, 6)], {}, {"blocksize": 2}),
    ("Pad", [normal(2, 3, 4, 5)], {1: whole(0, 0, 1, 2, 0, 0, 1, 1)}, {"mode": "reflect"}),
    ("Pad", [normal(2, 3, 4, 5), None, np.array(2.5)], {1: whole(0, 0, 1, -1, 0, 0, -1, 1)}, {}),
]  # fmt: skip
MOVEMENT: list[Case] = [
    ("Reshape", [normal(4, 6)], {1: whole(3, 8)}, {}),
    ("Flatten", [normal(2, 3, 4)], {}, {}),
    ("Transpose", [normal(2, 3, 4)], {}, {"perm": [2, 0, 1]}),
    ("Concat", [normal(2, 3), normal(1, 3)], {}, {"axis": 0}),
    ("Slice", [normal(4, 5, 6)], {1: whole(1, -1), 2: whole(9, -100), 3: whole(0, -1), 4: whole(2, -2)}, {}),
    ("Expand", [normal(3, 1)], {1: whole(2, 1, 4)}, {}),
    ("Tile", [normal(2, 3)], {1: whole(2, 3)}, {}),
    ("Gather", [normal(4, 5)], {1: np.array([[0, 1], [2, 3]])}, {"axis": 1}),
    ("Trilu", [normal(3, 4)], {}, {}),
    ("Shape", [normal(2, 3, 4)], {}, {}),
    ("Squeeze", [normal(1, 3, 1)], {}, {}),
    ("Unsqueeze", [normal(3, 2)], {1: whole(-1, 1)}, {}),
    ("Split", [normal(3, 6)], {}, {"axis": 1, "num_outputs": 1}),
    ("Dropout", [normal(3, 6)], {}, {}),
]


def network_of(cases: list[Case]) -> tuple[meta500.Model, dict[str, np.ndarray], dict[str, str]]:
    """All cases side by side: the model, its inputs, and the operator of every output."""
    nodes, stored, fed, outputs, parts = [], [], {}, {}, []
    for number, (op_type, inputs, constants, attributes) in enumerate(cases):
        names = []
        for place in range(max([len(inputs), *(i + 1 for i in constants)])):
            name = f"x{number}_{place}"
            if place in constants:
                stored.append(onnx.numpy_helper.from_array(np.asarray(constants[place]), name))
            elif place < len(inputs) and inputs[place] is not None:
                fed[name] = inputs[place]
            else:
                name = ""
            names.append(name)
        out = f"y{number}"
        outputs[out] = op_type
        nodes.append(helper.make_node(op_type, names, [out], name=out, **attributes))
    kinds = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in fed.items()
    ]
    infos = [helper.make_empty_tensor_value_info(n) for n in outputs]
    graph = helper.make_graph(nodes, "rules", kinds, infos, stored)
    opsets = [helper.make_opsetid("", OPSET)]
    with meta500.network(
        load(helper.make_model(graph, opset_imports=opsets, ir_version=10)), backend="numpy"
    ) as net:
        values = net.inference(fed)
    for out, y in values.items():
        if y.dtype.kind == "f" and np.isfinite(y).any():
            weight = np.asarray(np.random.default_rng(len(parts)).standard_normal(y.shape))
            stored.append(onnx.numpy_helper.from_array(weight, f"w_{out}"))
            nodes.append(helper.make_node("Mul", [out, f"w_{out}"], [f"p_{out}"]))
            nodes.append(helper.make_node("ReduceSum", [f"p_{out}"], [f"s_{out}"], keepdims=0))
            parts.append(f"s_{out}")
    nodes.append(helper.make_node("Sum", parts, ["loss"]))
    infos.append(helper.make_empty_tensor_value_info("loss"))
    graph = helper.make_graph(nodes, "rules", kinds, infos, stored)
    return load(helper.make_model(graph, opset_imports=opsets, ir_version=10)), fed, outputs


@pytest.mark.slow
@pytest.mark.parametrize(
    "cases", [FUNCTIONS, VALUES, IMAGES, MOVEMENT], ids=["functions", "values", "images", "movement"]
)
def test_compiled_rules(cases) -> None:
    model, fed, outputs = network_of(cases)
    wrt = [name for name, x in fed.items() if x.dtype.kind == "f"]
    found = {}
    for backend in ("numpy", "generated"):
        with meta500.network(model, backend=backend, precision="float64") as net:
            values = net.inference_and_backprop(fed, loss="loss", wrt=wrt, outputs=list(outputs))
            found[backend] = (
                values,
                dict(zip(wrt, net.fetch_tensors([f"grad/{n}" for n in wrt]), strict=True)),
            )
    for name, op_type in outputs.items():
        wanted, y = (np.asarray(found[b][0][name], float) for b in ("numpy", "generated"))
        assert y.shape == wanted.shape, op_type
        np.testing.assert_allclose(y, wanted, 1e-10, 1e-10, err_msg=op_type)
    for name in wrt:
        operator = outputs["y" + name[1:].split("_")[0]]
        wanted, gradient = (found[b][1][name] for b in ("numpy", "generated"))
        np.testing.assert_allclose(gradient, wanted, 1e-10, 1e-10, err_msg=f"{operator} {name}")


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (4, 2, 16, 16)])
@pytest.mark.parametrize("threads", [1, 2])
def test_sums_over_the_pixels_of_an_image_are_finished_before_they_are_read(shape, threads):
    """Mean and variance of instance normalization, which once were part of the pass that read them."""
    rng = np.random.default_rng(0)
    b = Builder("normalized")
    x = b.input("x", np.float64, shape)
    scale, shift = (b.parameter(n, rng.standard_normal(shape[1])) for n in ("scale", "shift"))
    b.output(b.add(ops.InstanceNormalization, x, scale, shift, epsilon=1e-2, outputs=["y"]))
    model, fed = b.build(), {"x": rng.standard_normal(shape)}
    with meta500.network(model, backend="numpy") as net:
        wanted = net.inference(fed)["y"]
    with meta500.network(model, backend="generated", threads=threads) as net:
        np.testing.assert_allclose(net.inference(fed)["y"], wanted, rtol=0, atol=1e-12)
