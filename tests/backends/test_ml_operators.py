"""Operators of ai.onnx.ml on both backends against scikit-learn's models and, where it is installed, ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import meta500
from meta500.errors import UserError

pytest.importorskip("sklearn")

BACKENDS = ["numpy", "torch"]
ML = "ai.onnx.ml"
TYPES = {np.dtype(object): TensorProto.STRING}


def proto(
    op_type: str, inputs: dict[str, np.ndarray], outputs: dict[str, Any], version: int, attributes: dict
) -> Any:
    """A model of one node; ``outputs`` are dtypes by name."""
    infos = [
        helper.make_tensor_value_info(
            n, TYPES.get(a.dtype) or helper.np_dtype_to_tensor_dtype(a.dtype), a.shape
        )
        for n, a in inputs.items()
    ]
    results = [
        helper.make_tensor_value_info(
            n, TYPES.get(np.dtype(t)) or helper.np_dtype_to_tensor_dtype(np.dtype(t)), None
        )
        for n, t in outputs.items()
    ]
    attributes = {k: v for k, v in attributes.items() if not (isinstance(v, list | tuple) and len(v) == 0)}
    node = helper.make_node(op_type, list(inputs), list(outputs), domain=ML, **attributes)
    graph = helper.make_graph([node], op_type, infos, results)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def run(
    backend: str,
    op_type: str,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, Any],
    version: int = 3,
    ort: bool = True,
    **attributes: Any,
) -> list[np.ndarray]:
    """Outputs of one node; ONNX Runtime, where it is installed, must have the same (``ort``)."""
    model = proto(op_type, inputs, outputs, version, attributes)
    with meta500.network(meta500.load(model), backend=backend) as net:
        found = list(net.inference(inputs).values())
    for array, dtype in zip(found, outputs.values(), strict=True):
        assert array.dtype == dtype
    if ort and backend == "numpy":
        compare_with_runtime(model, inputs, found)
    return found


def compare_with_runtime(model: Any, inputs: dict[str, np.ndarray], found: list[np.ndarray]) -> None:
    try:
        import onnxruntime
    except ImportError:
        return
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for mine, other in zip(found, session.run(None, inputs), strict=True):
        assert mine.shape == np.asarray(other).shape
        if mine.dtype.kind == "f":
            np.testing.assert_allclose(mine, other, rtol=2e-5, atol=2e-6)
        else:
            assert mine.tolist() == np.asarray(other).tolist()


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features on a grid of eighths, so that many lie on thresholds; three classes; a real target."""
    rng = np.random.default_rng(3)
    x = (rng.integers(-20, 20, size=(150, 4)) / 8).astype(np.float32)
    label = (x[:, 0] + x[:, 1] * x[:, 2] > 0.3).astype(int) + (x[:, 3] > 0.5)
    return x, label, x[:, 0] - 2 * x[:, 1] * x[:, 3]


# -- Linear models and scaling --------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_linear_regression(backend, data) -> None:
    from sklearn.linear_model import LinearRegression

    x, _, target = data
    fitted = LinearRegression().fit(x, np.stack([target, -2 * target + x[:, 2]], 1))
    (y,) = run(
        backend, "LinearRegressor", {"x": x}, {"y": np.float32}, 1,
        coefficients=fitted.coef_.ravel().tolist(), intercepts=fitted.intercept_.tolist(), targets=2,
    )  # fmt: skip
    np.testing.assert_allclose(y, fitted.predict(x.astype(np.float64)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", [False, True])
def test_logistic_regression(backend, data, text) -> None:
    from sklearn.linear_model import LogisticRegression

    x, label, _ = data
    fitted = LogisticRegression(max_iter=500).fit(x, label)
    names = {"classlabels_strings": ["a", "b", "c"]} if text else {"classlabels_ints": [0, 1, 2]}
    chosen, scores = run(
        backend, "LinearClassifier", {"x": x}, {"label": object if text else np.int64, "scores": np.float32}, 1,
        coefficients=fitted.coef_.ravel().tolist(), intercepts=fitted.intercept_.tolist(),
        post_transform="SOFTMAX", **names,
    )  # fmt: skip
    wide = x.astype(np.float64)
    np.testing.assert_allclose(scores, fitted.predict_proba(wide), rtol=1e-5, atol=1e-6)
    expected = fitted.predict(wide)
    assert chosen.tolist() == ([["a", "b", "c"][k] for k in expected] if text else expected.tolist())


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "PROBIT"])
def test_gradient_through_linear_scores(backend, transform) -> None:
    """In float64 against central differences of the formula."""
    from scipy.special import expit, ndtri, softmax

    rng = np.random.default_rng(0)
    w, x = rng.uniform(0.01, 0.1, size=(3, 4)), rng.uniform(0.2, 1, size=(5, 4))
    function = {"NONE": np.asarray, "LOGISTIC": expit, "SOFTMAX": lambda s: softmax(s, -1), "PROBIT": ndtri}[
        transform
    ]
    weight = np.cos(np.arange(15)).reshape(5, 3)
    attributes = {"coefficients": w.ravel().tolist(), "targets": 3, "post_transform": transform}
    model = proto("LinearRegressor", {"x": x}, {"y": np.float32}, 1, attributes)
    with meta500.network(meta500.load(model), backend=backend) as net:
        net.inference_and_backprop({"x": x}, loss="y", wrt=["x"], cotangent=weight)
        (found,) = net.fetch_tensors(["grad/x"])
    w = w.astype(np.float32).astype(np.float64)
    for index in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[index] = 1e-6
        ends = [(function((x + s * step) @ w.T) * weight).sum() for s in (1, -1)]
        assert found[index] == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=2e-4, abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_scaler_and_normalizer(backend, data) -> None:
    from sklearn.preprocessing import Normalizer, StandardScaler

    x = np.concatenate([data[0], np.zeros((1, 4), np.float32)])
    fitted = StandardScaler().fit(x)
    (y,) = run(
        backend, "Scaler", {"x": x}, {"y": np.float32}, 1,
        offset=fitted.mean_.tolist(), scale=(1 / fitted.scale_).tolist(),
    )  # fmt: skip
    np.testing.assert_allclose(y, fitted.transform(x.astype(np.float64)), rtol=1e-5, atol=1e-6)
    for norm in ("L1", "L2"):
        (y,) = run(backend, "Normalizer", {"x": x}, {"y": np.float32}, 1, norm=norm, ort=norm == "L2")
        np.testing.assert_allclose(y, Normalizer(norm=norm.lower()).transform(x), rtol=1e-6, atol=1e-7)
    positive = np.abs(x)
    (y,) = run(backend, "Normalizer", {"x": positive}, {"y": np.float32}, 1, norm="MAX")
    np.testing.assert_allclose(y, Normalizer(norm="max").transform(positive), rtol=1e-6)


# -- Trees ----------------------------------------------------------------------------------------


def tree_attributes(trees: list[Any], leaf: str, weights: Any) -> dict[str, list[Any]]:
    """Attributes of TreeEnsemble* for trees of scikit-learn; ``weights(tree, node)`` are a leaf's votes."""
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    found: dict[str, list[Any]] = {f"nodes_{name}": [] for name in names}
    for name in ("treeids", "nodeids", "ids", "weights"):
        found[f"{leaf}_{name}"] = []
    for number, tree in enumerate(trees):
        for node in range(tree.node_count):
            inner = tree.children_left[node] != -1
            row = (
                number, node, max(int(tree.feature[node]), 0), "BRANCH_LEQ" if inner else "LEAF",
                float(np.float32(tree.threshold[node])) if inner else 0.0,
                int(tree.children_left[node]) if inner else 0, int(tree.children_right[node]) if inner else 0,
            )  # fmt: skip
            for name, value in zip(names, row, strict=True):
                found[f"nodes_{name}"].append(value)
            for target, weight in enumerate(weights(tree, node) if not inner else ()):
                for name, value in zip(
                    ("treeids", "nodeids", "ids", "weights"), (number, node, target, weight), strict=True
                ):
                    found[f"{leaf}_{name}"].append(value)
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_forest_regression(backend, data) -> None:
    from sklearn.ensemble import RandomForestRegressor

    x, _, target = data
    fitted = RandomForestRegressor(7, max_depth=6, random_state=0).fit(x, np.stack([target, -target], 1))
    trees = [tree.tree_ for tree in fitted.estimators_]
    attributes = tree_attributes(trees, "target", lambda tree, node: tree.value[node, :, 0].tolist())
    (y,) = run(
        backend, "TreeEnsembleRegressor", {"x": x}, {"y": np.float32}, 1,
        n_targets=2, aggregate_function="AVERAGE", **attributes,
    )  # fmt: skip
    np.testing.assert_allclose(y, fitted.predict(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_forest_classification(backend, data) -> None:
    from sklearn.ensemble import RandomForestClassifier

    x, label, _ = data
    fitted = RandomForestClassifier(5, max_depth=5, random_state=1).fit(x, label)
    trees = [tree.tree_ for tree in fitted.estimators_]

    def votes(tree: Any, node: int) -> list[float]:
        value = tree.value[node, 0]
        return (value / value.sum() / len(trees)).tolist()

    chosen, scores = run(
        backend, "TreeEnsembleClassifier", {"x": x}, {"label": np.int64, "scores": np.float32}, 1,
        classlabels_int64s=[0, 1, 2], **tree_attributes(trees, "class", votes),
    )  # fmt: skip
    np.testing.assert_allclose(scores, fitted.predict_proba(x), rtol=1e-5, atol=1e-6)
    ties = np.sort(fitted.predict_proba(x), axis=1)
    clear = ties[:, -1] - ties[:, -2] > 1e-6
    np.testing.assert_array_equal(chosen[clear], fitted.predict(x)[clear])


@pytest.mark.parametrize("backend", BACKENDS)
def test_thresholds_are_float32(backend) -> None:
    """0.1 in a file is the float32 next to it, which an input of 0.1 is equal to."""
    tree = {
        "nodes_treeids": [0, 0, 0], "nodes_nodeids": [0, 1, 2], "nodes_featureids": [0, 0, 0],
        "nodes_values": [0.1, 0.0, 0.0], "nodes_truenodeids": [1, 0, 0], "nodes_falsenodeids": [2, 0, 0],
        "target_treeids": [0, 0], "target_nodeids": [1, 2], "target_ids": [0, 0], "target_weights": [1.0, 2.0],
    }  # fmt: skip
    x = np.array([[0.1], [np.nextafter(np.float32(0.1), 1)], [0.0], [np.nan]], np.float32)
    modes = {
        "BRANCH_LEQ": [1, 2, 1, 2], "BRANCH_LT": [2, 2, 1, 2], "BRANCH_GTE": [1, 1, 2, 2],
        "BRANCH_GT": [2, 1, 2, 2], "BRANCH_EQ": [1, 2, 2, 2], "BRANCH_NEQ": [2, 1, 1, 2],
    }  # fmt: skip
    for mode, expected in modes.items():
        (y,) = run(
            backend, "TreeEnsembleRegressor", {"x": x}, {"y": np.float32}, 1,
            n_targets=1, nodes_modes=[mode, "LEAF", "LEAF"], ort=mode != "BRANCH_NEQ", **tree,
        )  # fmt: skip
        assert y.ravel().tolist() == expected, mode


# -- Support vector machines ----------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "sigmoid"])
def test_support_vector_regression(backend, data, kernel) -> None:
    from sklearn.svm import SVR

    x, _, target = data
    fitted = SVR(kernel=kernel, gamma=0.3, coef0=0.5, degree=3).fit(x, target)
    (y,) = run(
        backend, "SVMRegressor", {"x": x}, {"y": np.float32}, 1,
        kernel_type=kernel.upper(), kernel_params=[0.3, 0.5, 3.0], coefficients=fitted.dual_coef_.ravel().tolist(),
        support_vectors=fitted.support_vectors_.ravel().tolist(), n_supports=len(fitted.support_),
        rho=fitted.intercept_.tolist(),
    )  # fmt: skip
    np.testing.assert_allclose(y.ravel(), fitted.predict(x.astype(np.float64)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", ["linear", "rbf"])
def test_support_vector_classification(backend, data, kernel) -> None:
    from sklearn.svm import SVC

    x, label, _ = data
    fitted = SVC(kernel=kernel, gamma=0.3, decision_function_shape="ovo").fit(x, label)
    chosen, scores = run(
        backend, "SVMClassifier", {"x": x}, {"label": np.int64, "scores": np.float32}, 1,
        kernel_type=kernel.upper(), kernel_params=[0.3, 0.0, 3.0], coefficients=fitted.dual_coef_.ravel().tolist(),
        support_vectors=fitted.support_vectors_.ravel().tolist(), vectors_per_class=fitted.n_support_.tolist(),
        rho=fitted.intercept_.tolist(), classlabels_ints=[0, 1, 2], ort=False,
    )  # fmt: skip
    wide = x.astype(np.float64)
    np.testing.assert_allclose(scores, fitted.decision_function(wide), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(chosen, fitted.predict(wide))


# -- Features and labels --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_binarizer_and_imputer_compare_in_float32(backend) -> None:
    x = np.array([[0.1, 0.2, np.nan], [0.3, 0.1, -1]], np.float32)
    (y,) = run(backend, "Binarizer", {"x": x}, {"y": np.float32}, 1, threshold=0.1, ort=False)
    assert y.tolist() == [[0, 1, 0], [1, 0, 0]]
    (y,) = run(
        backend, "Imputer", {"x": x}, {"y": np.float32}, 1,
        replaced_value_float=0.1, imputed_value_floats=[7.0, 8.0, 9.0],
    )  # fmt: skip
    np.testing.assert_array_equal(y, np.array([[7, 0.2, np.nan], [0.3, 8, -1]], np.float32))
    (y,) = run(
        backend, "Imputer", {"x": x}, {"y": np.float32}, 1,
        replaced_value_float=float("nan"), imputed_value_floats=[5.0],
    )  # fmt: skip
    np.testing.assert_array_equal(y, np.where(np.isnan(x), np.float32(5), x))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", [2, 4])
def test_label_encoder_finds_decimal_keys(backend, version) -> None:
    x = np.array([0.1, 0.7, np.nan, 3.0], np.float32)
    (y,) = run(
        backend, "LabelEncoder", {"x": x}, {"y": np.int64}, version,
        keys_floats=[0.1, 0.7, float("nan")], values_int64s=[10, 70, 5], default_int64=-3, ort=version > 2,
    )  # fmt: skip
    assert y.tolist() == [10, 70, 5, -3]
    (y,) = run(
        backend, "LabelEncoder", {"x": np.array(["b", "z"], object)}, {"y": np.float32}, version,
        keys_strings=["a", "b"], values_floats=[0.5, 0.1], default_float=0.3,
    )  # fmt: skip
    np.testing.assert_array_equal(y, np.array([0.1, 0.3], np.float32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_label_encoder_1_goes_both_ways(backend) -> None:
    classes = {"classes_strings": ["a", "b"], "default_int64": -7, "default_string": "?"}
    x = np.array(["b", "z", "a"], object)
    (y,) = run(backend, "LabelEncoder", {"x": x}, {"y": np.int64}, 1, **classes)
    assert y.tolist() == [1, -7, 0]
    (y,) = run(backend, "LabelEncoder", {"x": np.array([1, 0, 2, -1])}, {"y": object}, 1, **classes)
    assert y.tolist() == ["b", "a", "?", "?"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_map_inputs_are_checked(backend) -> None:
    """Values take the declared type; keys and values of another kind are refused."""
    model = map_model(
        "dict (map(string, float) m) => (float[2] y) {"
        '  y = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b"]> (m)'
        "}"
    )
    with meta500.network(model, backend=backend) as net:
        y = net.inference({"m": {"a": np.float32(1.5), "b": 2}})["y"]
        assert y.tolist() == [1.5, 2.0] and y.dtype == np.float32
        with pytest.raises(UserError, match="keys of type str"):
            net.inference({"m": {1: 2.0}})
        with pytest.raises(UserError, match="not in the vocabulary"):
            net.inference({"m": {"c": 2.0}})
        with pytest.raises(UserError, match="must be float32"):
            net.inference({"m": {"a": "one"}})


@pytest.mark.parametrize("backend", BACKENDS)
def test_encoders(backend) -> None:
    x = np.array([[3, 1], [9, 3]])
    (y,) = run(backend, "OneHotEncoder", {"x": x}, {"y": np.float32}, 1, cats_int64s=[1, 3, 5])
    np.testing.assert_array_equal(y, np.array([[[0, 1, 0], [1, 0, 0]], [[0, 0, 0], [0, 1, 0]]]))
    (y,) = run(
        backend, "CategoryMapper", {"x": x}, {"y": object}, 1,
        cats_int64s=[1, 3], cats_strings=["one", "three"], default_string="?",
    )  # fmt: skip
    assert y.tolist() == [["three", "one"], ["?", "three"]]
    (y,) = run(backend, "ArrayFeatureExtractor", {"x": x, "i": np.array([1, 0, 1])}, {"y": np.int64}, 1)
    assert y.tolist() == [[1, 3, 1], [3, 9, 3]]
    (y,) = run(
        backend, "FeatureVectorizer", {"a": x, "b": x[:, :1]}, {"y": np.float32}, 1, inputdimensions=[2, 1]
    )
    assert y.tolist() == [[3, 1, 3], [9, 3, 9]]


# -- Maps -----------------------------------------------------------------------------------------


def map_model(text: str) -> Any:
    import onnx.parser

    header = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]>\n'
    return meta500.load(onnx.parser.parse_model(header + text))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("labels", ['classlabels_strings = ["a", "b"]', "classlabels_int64s = [4, 2]"])
def test_zip_map(backend, labels) -> None:
    key = "string" if "strings" in labels else "int64"
    model = map_model(
        f"zip (float[2, 2] x) => (seq(map({key}, float)) y) {{ y = ai.onnx.ml.ZipMap <{labels}> (x) }}"
    )
    with meta500.network(model, backend=backend) as net:
        y = net.inference({"x": np.array([[0.5, 1], [2, 3]], np.float32)})["y"]
    first, second = ("a", "b") if key == "string" else (4, 2)
    assert y == [{first: 0.5, second: 1.0}, {first: 2.0, second: 3.0}]


@pytest.mark.parametrize("backend", BACKENDS)
def test_dict_vectorizer_and_cast_map(backend) -> None:
    model = map_model(
        "dict (map(string, float) m, map(int64, float) n) => (float[3] y, int64[1, 4] z, string[1, 2] t) {"
        '  y = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b", "c"]> (m)'
        '  z = ai.onnx.ml.CastMap <cast_to = "TO_INT64", map_form = "SPARSE", max_map = 4> (n)'
        '  t = ai.onnx.ml.CastMap <cast_to = "TO_STRING"> (n)'
        "}"
    )
    with meta500.network(model, backend=backend) as net:
        found = net.inference({"m": {"c": 2.5, "a": 1.0}, "n": {3: 7.0, 1: 2.0}})
    assert found["y"].tolist() == [1, 0, 2.5] and found["y"].dtype == np.float32
    assert found["z"].tolist() == [[0, 2, 0, 7]] and found["z"].dtype == np.int64
    assert found["t"].tolist() == [["2.0", "7.0"]]


# -- Refusals -------------------------------------------------------------------------------------

X = np.ones((2, 3), np.float32)
REFUSED: list[tuple[str, dict[str, np.ndarray], dict[str, Any], str]] = [
    ("LinearRegressor", {"x": X}, {"coefficients": [1.0, 2.0]}, "do not make 1 rows of 3 features"),
    (
        "LinearRegressor",
        {"x": X},
        {"coefficients": [1.0] * 3, "intercepts": [1.0, 2.0]},
        "2 intercepts for 1 rows",
    ),
    ("LinearRegressor", {"x": X}, {"coefficients": [1.0] * 3, "post_transform": "TANH"}, "post_transform"),
    ("Scaler", {"x": X}, {"offset": [1.0, 2.0]}, "2 values of offset for 3 features"),
    ("Normalizer", {"x": X}, {"norm": "L3"}, "norm"),
    ("Imputer", {"x": X}, {"imputed_value_int64s": [1]}, "must be floats"),
    ("Imputer", {"x": X}, {"imputed_value_floats": [1.0, 2.0]}, "2 imputed values for 3 features"),
    ("FeatureVectorizer", {"x": X, "z": X[:1]}, {}, "expected"),
    ("ArrayFeatureExtractor", {"x": X, "i": np.array([3])}, {}, "outside|out of"),
    ("SVMRegressor", {"x": X}, {"coefficients": [1.0], "rho": [0.0]}, "expected 3 and 1"),
    ("TreeEnsembleRegressor", {"x": X}, {}, "n_targets is missing"),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", REFUSED, ids=lambda c: f"{c[0]}-{'-'.join(c[2])}")
def test_refusals(backend, case) -> None:
    op_type, inputs, attributes, words = case
    with pytest.raises(UserError, match=words):
        run(backend, op_type, inputs, {"y": np.float32}, 1, ort=False, **attributes)
