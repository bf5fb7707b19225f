"""For every operator, in which inputs it is differentiable, and why it is not where it isn't.

Written from the operators' definitions, not from the backends: what a backend lacks shows in the comparison.
"Differentiable" means almost everywhere, as usual: Relu is.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta500.errors import choose

DIFFERENTIABLE = "differentiable"
PIECEWISE_CONSTANT = "piecewise constant"
NOT_DIFFERENTIABLE = "not differentiable"


@dataclass(frozen=True)
class Differentiability:
    """What an operator's gradient is.

    Attributes:
        kind: "differentiable", "piecewise constant" (floating-point outputs whose gradient is zero almost
            everywhere) or "not differentiable" (a gradient has to be refused).
        inputs: names (as in the operator's definition) of the inputs that the kind holds for; None for all
            floating-point inputs. A gradient by any other input has to be refused.
        reason: why there is no gradient, for the other inputs or at all.
        constant: inputs besides, which the output's numbers do not depend on or only by steps; a gradient by
            them is refused or zero.
    """

    kind: str
    inputs: tuple[str, ...] | None = None
    reason: str = ""
    constant: tuple[str, ...] = ()


def differentiability(operator: str) -> Differentiability:
    """The entry of an operator, named as in :func:`meta500.benchmarks.operators.cases.operator_name`.

    Raises:
        UserError: no entry; the message lists the operators that have one.
    """
    return TABLE[choose("operator", operator, TABLE)]


_EVERYWHERE = """
    Abs Acos Acosh Add AffineGrid Asin Asinh Atan Atanh AveragePool CausalConvWithState Celu CenterCropPad
    Col2Im Compress Concat ConcatFromSequence Conv ConvTranspose Cos Cosh CumProd CumSum DFT DeformConv
    DepthToSpace Det Div Einsum Elu Erf Exp Expand Flatten GRU Gather GatherElements GatherND Gelu Gemm
    GlobalAveragePool GlobalLpPool GlobalMaxPool GridSample GroupNormalization HardSigmoid HardSwish Identity
    If InstanceNormalization LRN LSTM LayerNormalization LeakyRelu LinearAttention Log LogSoftmax Loop
    LpNormalization LpPool MatMul Max MaxPool MaxUnpool Mean MeanVarianceNormalization Min Mish Mod Mul Neg
    Optional OptionalGetElement PRelu Pad Pow RMSNormalization RNN Reciprocal ReduceL1 ReduceL2 ReduceLogSum
    ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape
    ReverseSequence RotaryEmbedding STFT Scan Scatter ScatterElements ScatterND Selu SequenceAt
    SequenceConstruct SequenceErase SequenceInsert SequenceMap Shrink Sigmoid Sin Sinh Slice Softmax Softplus
    Softsign SpaceToDepth Split SplitToSequence Sqrt Squeeze Sub Sum SwiGLU Swish Tan Tanh TensorScatter
    ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Where
    ai.onnx.ml.ArrayFeatureExtractor ai.onnx.ml.FeatureVectorizer ai.onnx.ml.Imputer
    ai.onnx.ml.LinearClassifier ai.onnx.ml.LinearRegressor ai.onnx.ml.Normalizer ai.onnx.ml.SVMRegressor
    ai.onnx.ml.Scaler ai.onnx.preview.FlexAttention
"""

_IN_SOME: dict[str, tuple[tuple[str, ...], str]] = {
    "Attention": (("Q", "K", "V", "attn_mask", "past_key", "past_value"), ""),
    "BatchNormalization": (("X", "scale", "B", "input_mean", "input_var"), ""),
    "Cast": (("input",), "to an integer, boolean or string type it has no gradient"),
    "CastLike": (("input",), "target_type gives only its type"),
    "Clip": (("input", "min", "max"), ""),
    "DequantizeLinear": (("x_scale",), "x and its zero point are integers"),
    "Dropout": (("data",), "ratio decides how many elements are dropped, a step function"),
    "MaxRoiPool": (("X",), "rois are rounded to cells"),
    "NegativeLogLikelihoodLoss": (("input", "weight"), ""),
    "OneHot": (("values",), "indices and depth are whole numbers"),
    "Range": (("start", "delta"), "limit decides the number of elements only"),
    "Resize": (("X",), "scales and roi decide the size of the output and which elements are read"),
    "RoiAlign": (("X", "rois"), ""),
    "SoftmaxCrossEntropyLoss": (("scores", "weights"), ""),
    "Unique": (("X",), "only the first output is floating point: a permutation of elements of X"),
    "Upsample": (("X",), "scales decide the size of the output"),
    "ai.onnx.preview.training.Adagrad": (("R", "inputs"), ""),
    "ai.onnx.preview.training.Adam": (("R", "inputs"), ""),
    "ai.onnx.preview.training.Momentum": (("R", "inputs"), ""),
    "ai.onnx.preview.training.Gradient": (("Inputs",), ""),
}

_CONSTANT = {
    "CastLike": ("target_type",),
    "EyeLike": ("input",),
    "OneHot": ("indices", "depth"),
    "RandomNormalLike": ("input",),
    "RandomUniformLike": ("input",),
    "Range": ("limit",),
}

_STEPS = {
    "Ceil": "a step function",
    "DynamicQuantizeLinear": "y is an integer; the scale depends on the extremes only, steps on the rest",
    "Floor": "a step function",
    "Hardmax": "one-hot: constant while the largest element stays the largest",
    "Round": "a step function",
    "Sign": "a step function",
    "ai.onnx.ml.Binarizer": "a step function",
    "ai.onnx.ml.TreeEnsemble": "trees compare their input with thresholds",
    "ai.onnx.ml.TreeEnsembleClassifier": "trees compare their input with thresholds",
    "ai.onnx.ml.TreeEnsembleRegressor": "trees compare their input with thresholds",
}

_SHAPE_ONLY = "its output depends on the shape of its input only"
_BOOLEAN = "its output is boolean"
_INTEGER = "its output is an integer"
_FROM_INTEGERS = "its inputs are no floating-point numbers"
_STRINGS = "it works on strings"
_RANDOM = "its output is random and has no derivative by its input"

_NOWHERE = {
    "And": _BOOLEAN,
    "ArgMax": _INTEGER,
    "ArgMin": _INTEGER,
    "Bernoulli": _RANDOM,
    "BitCast": "it reinterprets bits",
    "BitShift": _INTEGER,
    "BitwiseAnd": _INTEGER,
    "BitwiseNot": _INTEGER,
    "BitwiseOr": _INTEGER,
    "BitwiseXor": _INTEGER,
    "BlackmanWindow": _FROM_INTEGERS,
    "Constant": "it has no inputs",
    "ConstantOfShape": _FROM_INTEGERS,
    "ConvInteger": _FROM_INTEGERS,
    "Equal": _BOOLEAN,
    "EyeLike": _SHAPE_ONLY,
    "Greater": _BOOLEAN,
    "GreaterOrEqual": _BOOLEAN,
    "HammingWindow": _FROM_INTEGERS,
    "HannWindow": _FROM_INTEGERS,
    "ImageDecoder": _FROM_INTEGERS,
    "IsInf": _BOOLEAN,
    "IsNaN": _BOOLEAN,
    "Less": _BOOLEAN,
    "LessOrEqual": _BOOLEAN,
    "MatMulInteger": _FROM_INTEGERS,
    "MelWeightMatrix": "the edges in hertz are rounded to bins of the spectrum",
    "Multinomial": _RANDOM,
    "NonMaxSuppression": "its output is a list of indices",
    "NonZero": "its output is a list of indices",
    "Not": _BOOLEAN,
    "OptionalHasElement": _BOOLEAN,
    "Or": _BOOLEAN,
    "QLinearConv": "its output is a quantized integer",
    "QLinearMatMul": "its output is a quantized integer",
    "QuantizeLinear": "its output is a quantized number",
    "RandomNormal": "it has no inputs",
    "RandomNormalLike": _SHAPE_ONLY,
    "RandomUniform": "it has no inputs",
    "RandomUniformLike": _SHAPE_ONLY,
    "RegexFullMatch": _STRINGS,
    "SequenceEmpty": "it has no inputs",
    "SequenceLength": _INTEGER,
    "Shape": _SHAPE_ONLY,
    "Size": _SHAPE_ONLY,
    "StringConcat": _STRINGS,
    "StringNormalizer": _STRINGS,
    "StringSplit": _STRINGS,
    "TfIdfVectorizer": "it counts n-grams of integers or strings",
    "Xor": _BOOLEAN,
    "ai.onnx.ml.CastMap": "its input is a map",
    "ai.onnx.ml.CategoryMapper": _STRINGS,
    "ai.onnx.ml.DictVectorizer": "its input is a map",
    "ai.onnx.ml.LabelEncoder": "it looks its input up in a list of keys",
    "ai.onnx.ml.OneHotEncoder": "it looks its input up in a list of categories",
    "ai.onnx.ml.SVMClassifier": "its scores are votes of pairs of classes or tabulated probabilities",
    "ai.onnx.ml.ZipMap": "its output is a sequence of maps",
}

TABLE: dict[str, Differentiability] = dict(
    sorted(
        {
            **{name: Differentiability(DIFFERENTIABLE) for name in _EVERYWHERE.split()},
            **{
                name: Differentiability(DIFFERENTIABLE, inputs, reason, _CONSTANT.get(name, ()))
                for name, (inputs, reason) in _IN_SOME.items()
            },
            **{name: Differentiability(PIECEWISE_CONSTANT, None, reason) for name, reason in _STEPS.items()},
            **{
                name: Differentiability(NOT_DIFFERENTIABLE, None, reason, _CONSTANT.get(name, ()))
                for name, reason in _NOWHERE.items()
            },
        }.items()
    )
)
