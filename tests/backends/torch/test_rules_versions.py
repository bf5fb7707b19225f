"""Versions that ONNX's node cases leave out: values from the version's text, and what it refuses."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from meta500.errors import UserError

CASES = runpy.run_path(str(Path(__file__).with_name("version_cases.py")))["CASES"]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_version_case(case: Any, rule: Any, values: Any) -> None:
    outputs = rule(
        case.op_type,
        case.version,
        case.inputs,
        case.attributes,
        domain=case.domain,
        n_outputs=len(case.expected),
    )
    assert len(outputs) == len(case.expected)
    for tensor, expected in zip(outputs, case.expected, strict=True):
        got = values(tensor)
        assert got.dtype == expected.dtype and got.shape == expected.shape
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-14)
        else:
            np.testing.assert_array_equal(got, expected)


X = np.ones((2, 3, 4))
IMAGE = np.ones((1, 1, 4, 4))

REFUSALS = [
    ("Add", 6, (X, X[0]), {}, "do not fit"),
    ("Add", 1, (X, X[:, :2, 0]), {"broadcast": 1, "axis": 0}, "do not fit"),
    ("Sum", 6, (X, X[0]), {}, "one shape"),
    ("PRelu", 6, (X, np.ones(4)), {}, "per channel"),
    ("PRelu", 7, (X, np.ones((2, 2))), {}, "does not broadcast"),
    ("Gemm", 6, (np.ones((2, 3)), np.ones((3, 4)), np.ones(4)), {}, "broadcast=1"),
    ("Gemm", 13, (X, X, None), {}, "matrices"),
    ("Gemm", 13, (np.eye(2, dtype=int), np.eye(2, dtype=int), None), {"alpha": 0.5}, "whole numbers"),
    ("Softmax", 11, (X,), {"axis": 4}, "axis 4"),
    ("Split", 1, (X,), {}, "no default axis"),
    ("Split", 13, (X,), {"axis": 2, "n_outputs": 3}, "equal parts"),
    ("Split", 18, (np.ones(5), None), {"num_outputs": 4}, "do not split"),
    ("Split", 18, (X, (1, 2)), {"axis": 2}, "do not add up"),
    ("Squeeze", 13, (X, (0,)), {}, "size 1"),
    ("Squeeze", 13, (X, (3,)), {}, "axis 3"),
    ("Unsqueeze", 13, (X, (0, -5)), {}, "twice"),
    ("Reshape", 14, (X, (-1, -1)), {}, "does not determine"),
    ("Reshape", 14, (X, (0, -1)), {"allowzero": 1}, "does not determine"),
    ("Reshape", 14, (X, (5, -1)), {}, "do not fit"),
    ("Reshape", 14, (X, (2, 3, 4, 0)), {}, "lacks"),
    ("Flatten", 13, (X,), {"axis": 4}, "axis 4"),
    ("Concat", 13, (X, X[:0, 0, 0]), {"axis": 0}, "number of axes"),
    ("Concat", 13, (X, X), {"axis": 3}, "axis 3"),
    ("Slice", 13, (X, (0,), (1,), (0,), (0,)), {}, "must not contain 0"),
    ("Slice", 13, (X, (0, 0), (1,), None, None), {}, "one length"),
    ("Tile", 13, (X, (1, 2)), {}, "one entry for each axis"),
    ("Pad", 13, (X, (1,) * 6, None), {"mode": "wrap"}, "unknown Pad mode 'wrap'"),
    ("Pad", 19, (X, (-1, 0, 0, 2, 0, 0)), {"mode": "wrap"}, "which comes first"),
    ("Pad", 19, (X, (-1, 0, 0, -2, 0, 0)), {}, "cut more"),
    ("Pad", 19, (X, (1, 0)), {}, "two entries"),
    ("Dropout", 6, (X,), {"is_test": 1, "n_outputs": 2}, "no mask"),
    ("Dropout", 13, (X, 1.0, True), {}, "ratio is 1.0"),
    ("Cast", 13, (X,), {"to": 8}, "element type number 8"),
    ("Cast", 1, (X,), {"to": "STRING"}, "unknown Cast type"),
    ("Constant", 13, (), {"value_string": "a"}, "value_string"),
    ("Constant", 13, (), {}, "exactly one"),
    ("ConstantOfShape", 9, ((2,),), {"value": np.ones(2)}, "must have one"),
    ("ReduceSum", 13, (X, (3,)), {}, "axes (3,)"),
    ("ReduceLogSum", 18, (X.astype(int),), {}, "has no logarithm"),
    ("ReduceMean", 18, (X.astype(np.uint64),), {}, "uint64"),
    ("ReduceMean", 18, (np.zeros((0,), int),), {}, "undefined"),
    ("ReduceL2", 18, (X.astype(np.uint64),), {}, "uint64"),
    ("BatchNormalization", 15, (X, *[np.ones(3)] * 4), {"n_outputs": 3}, "training_mode=1"),
    ("BatchNormalization", 7, (X, *[np.ones(3)] * 4), {"spatial": 0}, "shape (3, 4)"),
    ("LayerNormalization", 17, (X, np.ones(4)), {"stash_type": 16}, "stash_type 16"),
    ("LayerNormalization", 17, (X, np.ones(4)), {"axis": 3}, "axis 3"),
    ("Gelu", 20, (X,), {"approximate": "exact"}, "choose none or tanh"),
    ("SoftmaxCrossEntropyLoss", 13, (np.ones((2, 3)), np.array([0, 1])), {"reduction": "avg"}, "'avg'"),
    ("MaxPool", 12, (IMAGE,), {"kernel_shape": (5, 5)}, "reaches over 5"),
    ("MaxPool", 12, (IMAGE,), {"kernel_shape": (2, 2), "pads": (2, 0, 0, 0)}, "wholly in the padding"),
    ("MaxPool", 12, (IMAGE,), {"kernel_shape": (2, 2), "pads": (0, 0)}, "need 4 entries"),
    ("MaxPool", 12, (IMAGE,), {"kernel_shape": (2,)}, "need 2 entries"),
    ("MaxPool", 12, (IMAGE.astype(np.int32),), {"kernel_shape": (2, 2)}, "element type"),
    (
        "MaxPool",
        22,
        (IMAGE,),
        {"kernel_shape": (3, 3), "strides": (2, 2), "auto_pad": "VALID", "ceil_mode": 1},
        "2 by its shape inference",
    ),
    ("AveragePool", 11, (IMAGE,), {"kernel_shape": (2, 2), "pads": (0, 0, 3, 0)}, "wholly in the padding"),
    ("AveragePool", 11, (IMAGE,), {"kernel_shape": (2, 2), "auto_pad": "SAME"}, "not one of"),
    ("Conv", 11, (IMAGE, IMAGE), {"auto_pad": "VALID", "pads": (1, 1, 1, 1)}, "exclude each other"),
    ("Conv", 11, (IMAGE, IMAGE), {"kernel_shape": (3, 3)}, "kernel_shape is (3, 3)"),
    ("Conv", 11, (IMAGE, IMAGE), {"strides": (1,)}, "strides is (1,)"),
    ("Conv", 11, (np.ones((1, 1)), np.ones((1, 1))), {}, "0 spatial axes"),
    ("ConvTranspose", 11, (IMAGE, IMAGE), {"output_padding": (1, 1)}, "must be smaller"),
    ("ConvTranspose", 11, (IMAGE, IMAGE), {"pads": (-1, 0, 0, 0)}, "negative"),
    ("ConvTranspose", 11, (IMAGE, IMAGE), {"pads": (4, 0, 4, 0)}, "leave nothing"),
    ("ConvTranspose", 1, (IMAGE, IMAGE), {"auto_pad": "SAME_UPPER"}, "defined in two ways"),
    ("Resize", 19, (IMAGE, None, (1.0,) * 4, (1, 1, 4, 4)), {}, "either scales or sizes"),
    ("Resize", 19, (IMAGE, None, (2.0,)), {}, "one entry for each"),
    ("Resize", 19, (IMAGE, None, (1.0, 1.0, 0.1, 1.0)), {}, "would get size 0"),
    ("Resize", 19, (IMAGE, None, (2.0,) * 4), {"mode": "area"}, "unknown Resize mode 'area'"),
    ("Resize", 19, (IMAGE, None, (2.0,) * 4), {"antialias": 1}, "antialias"),
    ("Resize", 19, (IMAGE.astype(int), None, (2.0,) * 4), {"mode": "linear"}, "how to round"),
    (
        "Resize",
        19,
        (IMAGE, None, (2.0,) * 4),
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        "needs the input roi",
    ),
    (
        "Resize",
        18,
        (IMAGE, None, (2.0,) * 4),
        {"coordinate_transformation_mode": "half_pixel_symmetric"},
        "unknown Resize coordinate_transformation_mode",
    ),
    ("Upsample", 9, (IMAGE, (1.0, 1.0, 0.5, 1.0)), {}, "at least 1"),
    ("Upsample", 1, (X,), {"height_scale": 2.0, "width_scale": 2.0}, "(N, C, H, W)"),
]


@pytest.mark.parametrize(
    ("op_type", "version", "inputs", "attributes", "message"),
    REFUSALS,
    ids=[f"{r[0]}-{r[1]}-{r[4]}" for r in REFUSALS],
)
def test_refusals_say_why(
    op_type: str, version: int, inputs: tuple[Any, ...], attributes: dict[str, Any], message: str, rule: Any
) -> None:
    given = dict(attributes)
    n_outputs = given.pop("n_outputs", 1)
    if "value" in given:
        import torch

        given["value"] = torch.tensor(given["value"])
    with pytest.raises(UserError) as caught:
        rule(op_type, version, inputs, given, n_outputs=n_outputs)
    assert message in str(caught.value)


def test_mean_squared_error_does_not_broadcast(rule: Any) -> None:
    with pytest.raises(UserError, match="same shape"):
        rule("MeanSquaredError", 1, (X, X[:, :1]), domain="meta500")
