"""Small models for gradients that ONNX's node cases do not reach.

Their operators have no case, cases in integers or without some input (a bias) only, or work on sequences and
optionals, which are here made from tensors and turned into tensors again.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meta500.benchmarks.operators.cases import Case, DataSet

SUITE = "gradients"

_OPSET = 25
_OTHER_OPSETS = '"ai.onnx.ml" : 5, "ai.onnx.preview.training" : 1'

# Operator (with a word where it has several models, "opset16" for another opset) -> the graph in ONNX's
# textual form. Inputs are drawn.
_GRAPHS = {
    "ConcatFromSequence": """
        (float[2,3] a, float[1,3] b) => (float[3,3] y)
        { s = SequenceConstruct(a, b)  y = ConcatFromSequence<axis=0>(s) }""",
    "ConcatFromSequence.new_axis": """
        (float[2,3] a, float[2,3] b) => (float[2,2,3] y)
        { s = SequenceConstruct(a, b)  y = ConcatFromSequence<axis=1, new_axis=1>(s) }""",
    "Conv.bias": """
        (float[2,4,6,5] x, float[6,2,3,2] w, float[6] b) => (float[M,N,H,W] y)
        { y = Conv<dilations = [1,2], group = 2, pads = [1,0,0,2], strides = [2,1]>(x, w, b) }""",
    "ConvTranspose.bias": """
        (float[2,4,3,4] x, float[4,3,3,2] w, float[6] b) => (float[M,N,H,W] y)
        {
            y = ConvTranspose<dilations = [1,2], group = 2, output_padding = [1,0], pads = [1,0,0,1],
                strides = [2,1]>(x, w, b)
        }""",
    "GRU.initial": """
        (float[3,2,2] x, float[2,12,2] w, float[2,12,4] r, float[2,24] b, float[2,2,4] h)
        => (float[3,2,2,4] y, float[2,2,4] last)
        {
            y, last = GRU<direction = "bidirectional", hidden_size = 4, linear_before_reset = 1>(
                x, w, r, b, , h)
        }""",
    "GlobalLpPool": "(float[2,3,4,5] x) => (float[2,3,1,1] y) { y = GlobalLpPool<p=3>(x) }",
    "GridSample.opset16": """
        (float[1,2,4,5] x, float[1,3,2,2] grid) => (float[1,2,3,2] y)
        { y = GridSample(x, grid) }""",
    "GroupNormalization.opset18": """
        (float[2,6,3] x, float[2] scale, float[2] bias) => (float[2,6,3] y)
        { y = GroupNormalization<num_groups = 2>(x, scale, bias) }""",
    "Hardmax.opset9": "(float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax<axis=1>(x) }",
    "If": """
        (float[2,3] x, float[3] b) => (float[2,3] y)
        {
            c = Constant<value = bool {1}>()
            y = If<then_branch = t () => (float[2,3] u) { u = Mul(x, b) },
                   else_branch = e () => (float[2,3] v) { v = Sub(x, b) }>(c)
        }""",
    "If.else": """
        (float[2,3] x, float[3] b) => (float[2,3] y)
        {
            c = Constant<value = bool {0}>()
            y = If<then_branch = t () => (float[2,3] u) { u = Add(x, b) },
                   else_branch = e () => (float[2,3] v) { v = Div(x, b) }>(c)
        }""",
    "MaxRoiPool": """
        (float[1,2,6,6] x) => (float[2,2,2,2] y)
        {
            r = Constant<value = float[2,5] {0,0,0,3,4, 0,1,2,5,5}>()
            y = MaxRoiPool<pooled_shape = [2,2]>(x, r)
        }""",
    "Optional": """
        (float[2,3] x) => (float[2,3] y) { o = Optional(x)  e = OptionalGetElement(o)  y = Mul(e, x) }""",
    "RNN.initial": """
        (float[3,2,2] x, float[1,4,2] w, float[1,4,4] r, float[1,8] b, float[1,2,4] h)
        => (float[3,1,2,4] y, float[1,2,4] last)
        { y, last = RNN<direction = "reverse", hidden_size = 4>(x, w, r, b, , h) }""",
    "Optional.opset28": """
        (float[2,3] x) => (float[2,3] y) { o = Optional(x)  e = OptionalGetElement(o)  y = Mul(e, x) }""",
    "OptionalGetElement.opset15": """
        (float[2,3] x) => (float[2,3] y) { o = Optional(x)  e = OptionalGetElement(o)  y = Mul(e, x) }""",
    "OptionalGetElement.opset18": """
        (float[2,3] x) => (float[2,3] y) { o = Optional(x)  e = OptionalGetElement(o)  y = Mul(e, x) }""",
    "RoiAlign.opset10": """
        (float[1,2,6,6] x) => (float[2,2,2,2] y)
        {
            r = Constant<value = float[2,4] {0.3,0.2,3.1,4.4, 1.1,2.3,5.2,5.4}>()
            b = Constant<value = int64[2] {0, 0}>()
            y = RoiAlign<output_height = 2, output_width = 2, sampling_ratio = 2>(x, r, b)
        }""",
    "SequenceAt": """
        (float[2,3] a, float[4] b) => (float[4] y)
        { s = SequenceConstruct(a, b)  i = Constant<value = int64 {-1}>()  y = SequenceAt(s, i) }""",
    "SequenceConstruct": """
        (float[2,3] a, float[2,3] b) => (float[6,3] y)
        { s = SequenceConstruct(a, b, a)  y = ConcatFromSequence<axis=0>(s) }""",
    "SequenceErase": """
        (float[2,3] a, float[1,3] b, float[2,3] c) => (float[4,3] y)
        {
            s = SequenceConstruct(a, b, c)  i = Constant<value = int64 {1}>()  t = SequenceErase(s, i)
            y = ConcatFromSequence<axis=0>(t)
        }""",
    "SequenceInsert": """
        (float[2,3] a, float[1,3] b) => (float[5,3] y)
        {
            s = SequenceConstruct(a, a)  i = Constant<value = int64 {0}>()  t = SequenceInsert(s, b, i)
            y = ConcatFromSequence<axis=0>(t)
        }""",
    "SequenceMap": """
        (float[2,3] a, float[1,3] b, float[3] c) => (float[3,3] y)
        {
            s = SequenceConstruct(a, b)
            t = SequenceMap<body = m (float[N,3] p, float[3] q) => (float[N,3] r) { r = Mul(p, q) }>(s, c)
            y = ConcatFromSequence<axis=0>(t)
        }""",
    "SplitToSequence": """
        (float[5,3] x) => (float[3,3] y)
        {
            n = Constant<value = int64[2] {2, 3}>()  s = SplitToSequence<axis=0>(x, n)
            i = Constant<value = int64 {1}>()  y = SequenceAt(s, i)
        }""",
    "SplitToSequence.opset11": """
        (float[5,3] x) => (float[2,3] y)
        {
            n = Constant<value = int64[2] {2, 3}>()  s = SplitToSequence<axis=0>(x, n)
            i = Constant<value = int64 {0}>()  y = SequenceAt(s, i)
        }""",
    "TopK.opset9": "(float[3,5] x) => (float[3,2] y, int64[3,2] i) { y, i = TopK<axis=1, k=2>(x) }",
    "Trilu": "(float[2,4,5] x) => (float[2,4,5] y) { y = Trilu<upper=1>(x) }",
    "Trilu.lower": """
        (float[4,5] x) => (float[4,5] y)
        { k = Constant<value = int64 {-1}>()  y = Trilu<upper=0>(x, k) }""",
    "ai.onnx.ml.FeatureVectorizer": """
        (float[2,3] a, float[2,1] b) => (float[2,4] y)
        { y = ai.onnx.ml.FeatureVectorizer<inputdimensions = [3, 1]>(a, b) }""",
    "ai.onnx.ml.Imputer": """
        (float[4,3] x) => (float[4,3] y)
        {
            y = ai.onnx.ml.Imputer<imputed_value_floats = [1.5, -2.0, 0.25], replaced_value_float = 7.0>(x)
        }""",
    "ai.onnx.ml.LinearClassifier": """
        (float[4,3] x) => (int64[4] label, float[4,3] scores)
        {
            label, scores = ai.onnx.ml.LinearClassifier<classlabels_ints = [0, 1, 2],
                coefficients = [1.0, -0.5, 0.25, 0.5, 2.0, -1.0, -1.5, 0.75, 0.3],
                intercepts = [0.1, -0.2, 0.3], post_transform = "SOFTMAX">(x)
        }""",
    "ai.onnx.ml.LinearRegressor": """
        (float[4,3] x) => (float[4,2] y)
        {
            y = ai.onnx.ml.LinearRegressor<coefficients = [1.0, -0.5, 0.25, 0.5, 2.0, -1.0],
                intercepts = [0.1, -0.2], targets = 2>(x)
        }""",
    "ai.onnx.ml.Normalizer": '(float[4,3] x) => (float[4,3] y) { y = ai.onnx.ml.Normalizer<norm = "L2">(x) }',
    "ai.onnx.ml.Normalizer.max": """
        (float[4,3] x) => (float[4,3] y) { y = ai.onnx.ml.Normalizer<norm = "MAX">(x) }""",
    "ai.onnx.ml.SVMRegressor": """
        (float[4,2] x) => (float[4,1] y)
        {
            y = ai.onnx.ml.SVMRegressor<coefficients = [1.0, -0.5, 0.75], kernel_params = [0.5, 0.0, 3.0],
                kernel_type = "RBF", n_supports = 3, rho = [0.2],
                support_vectors = [0.1, 0.2, -0.3, 1.0, 0.7, -0.6]>(x)
        }""",
    "ai.onnx.ml.Scaler": """
        (float[4,3] x) => (float[4,3] y)
        { y = ai.onnx.ml.Scaler<offset = [1.0, 2.0, 3.0], scale = [0.5, -2.0, 4.0]>(x) }""",
    "ai.onnx.ml.TreeEnsembleClassifier": """
        (float[4,2] x) => (int64[4] label, float[4,2] scores)
        {
            label, scores = ai.onnx.ml.TreeEnsembleClassifier<class_ids = [0, 1], class_nodeids = [1, 2],
                class_treeids = [0, 0], class_weights = [1.0, 2.0], classlabels_int64s = [0, 1],
                nodes_falsenodeids = [2, 0, 0], nodes_featureids = [1, 0, 0],
                nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_nodeids = [0, 1, 2],
                nodes_treeids = [0, 0, 0], nodes_truenodeids = [1, 0, 0], nodes_values = [0.1, 0.0, 0.0]>(x)
        }""",
    "ai.onnx.ml.TreeEnsembleRegressor": """
        (float[4,2] x) => (float[4,1] y)
        {
            y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_falsenodeids = [2, 0, 0],
                nodes_featureids = [1, 0, 0], nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"],
                nodes_nodeids = [0, 1, 2], nodes_treeids = [0, 0, 0], nodes_truenodeids = [1, 0, 0],
                nodes_values = [0.1, 0.0, 0.0], target_ids = [0, 0], target_nodeids = [1, 2],
                target_treeids = [0, 0], target_weights = [1.5, -2.0]>(x)
        }""",
    "Multinomial": """
        (float[2,3] input) => (int32[2,4] y) { y = Multinomial<sample_size = 4, seed = 1.0>(input) }""",
    "RandomNormalLike": "(float[2,3] input) => (float[2,3] y) { y = RandomNormalLike<seed = 1.0>(input) }",
    "RandomUniformLike": "(float[2,3] input) => (float[2,3] y) { y = RandomUniformLike<seed = 1.0>(input) }",
    "ai.onnx.ml.OneHotEncoder": """
        (float[3] X) => (float[3,2] Y)
        { Y = ai.onnx.ml.OneHotEncoder<cats_int64s = [0, 1], zeros = 1>(X) }""",
    "ai.onnx.ml.SVMClassifier": """
        (float[4,2] X) => (int64[4] label, float[4,2] scores)
        {
            label, scores = ai.onnx.ml.SVMClassifier<classlabels_ints = [0, 1], coefficients = [1.0, -1.0],
                kernel_params = [0.5, 0.0, 3.0], kernel_type = "RBF", rho = [0.2],
                support_vectors = [0.1, 0.2, -0.3, 1.0], vectors_per_class = [1, 1]>(X)
        }""",
    "ai.onnx.preview.training.Gradient": """
        (float[2,3] a, float[3] b) => (float[2,3] da, float[3] db)
        {
            c = Mul(a, b)  d = Mul(c, a)
            da, db = ai.onnx.preview.training.Gradient<xs = ["a", "b"], y = "d">(a, b)
        }""",
}


@functools.cache
def gradient_models() -> tuple[Case, ...]:
    """The models as cases of suite "gradients", sorted by name; inputs are normal numbers, seeded."""
    return tuple(
        Case(_name(key), SUITE, _operator(key), 0.0, 0.0, functools.partial(_made, key))
        for key in sorted(_GRAPHS)
    )


def _operator(key: str) -> str:
    """A key without what numbers it: operators begin with a capital letter and hold no further dot."""
    parts = key.split(".")
    last = next(i for i, part in enumerate(parts) if part[0].isupper())
    return ".".join(parts[: last + 1])


def _name(key: str) -> str:
    return f"gradient_{key.removeprefix('ai.onnx.').replace('.', '_').lower()}"


def _made(key: str) -> tuple[Any, list[DataSet]]:
    import onnx.parser

    word = key.rpartition(".")[2]
    opset = int(word.removeprefix("opset")) if word.startswith("opset") else _OPSET
    head = f'<ir_version: 10, opset_import: ["" : {opset}, {_OTHER_OPSETS}]> {_name(key)} '
    model = onnx.parser.parse_model(head + _GRAPHS[key])
    rng = np.random.default_rng(list(key.encode()))
    inputs = {
        value.name: rng.standard_normal([d.dim_value for d in value.type.tensor_type.shape.dim]).astype("f")
        for value in model.graph.input
    }
    return model, [(inputs, {})]
