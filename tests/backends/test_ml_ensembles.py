"""Classifiers and regressors of ai.onnx.ml where ONNX's text leaves room: what trained models mean by their
files (scikit-learn's predictions, the sign of XGBoost's margin, CatBoost's two columns), against ONNX Runtime
and ONNX's reference where those agree with the models, and a refusal where the implementations differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import meta500
from meta500.errors import UserError

BACKENDS = ["numpy", "torch"]
ML = "ai.onnx.ml"
TRANSFORMS = ("NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO", "PROBIT")
# Two stumps: tree 0 asks x[0] <= 0, tree 1 asks x[1] <= 0.
STUMPS: dict[str, Any] = {
    "nodes_treeids": [0] * 3 + [1] * 3, "nodes_nodeids": [0, 1, 2] * 2, "nodes_featureids": [0, 0, 0, 1, 0, 0],
    "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2, "nodes_values": [0.0] * 6,
    "nodes_truenodeids": [1, 0, 0] * 2, "nodes_falsenodeids": [2, 0, 0] * 2,
}  # fmt: skip
# All four pairs of leaves.
X = np.array([[-1, -1], [-1, 1], [1, -1], [1, 1]], np.float32)
POSITIVE, MIXED = (0.05, 0.3, 0.15, 0.55), (-0.7, 0.4, -0.2, 0.9)


def model(op_type: str, features: int, attributes: dict[str, Any], version: int = 3) -> Any:
    """One node with the outputs its kind has."""
    attributes = {name: value for name, value in attributes.items() if value is not None}
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, None)]
    if op_type.endswith("Classifier"):
        text = any(name.endswith("_strings") for name in attributes)
        kind = TensorProto.STRING if text else TensorProto.INT64
        outputs.insert(0, helper.make_tensor_value_info("label", kind, None))
    node = helper.make_node(op_type, ["x"], [o.name for o in outputs], domain=ML, **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", features])
    graph = helper.make_graph([node], op_type, [x], outputs)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid(ML, version)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def run(backend: str, op_type: str, x: np.ndarray, version: int = 3, **attributes: Any) -> list[np.ndarray]:
    loaded = meta500.load(model(op_type, x.shape[1], attributes, version))
    with meta500.network(loaded, backend=backend) as net:
        return list(net.inference({"x": x}).values())


def runtime(op_type: str, x: np.ndarray, **attributes: Any) -> list[np.ndarray]:
    """ONNX Runtime's outputs."""
    onnxruntime = pytest.importorskip("onnxruntime")
    data = model(op_type, x.shape[1], attributes).SerializeToString()
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    return list(session.run(None, {"x": x}))


def reference(op_type: str, x: np.ndarray, **attributes: Any) -> list[np.ndarray]:
    """The outputs of ONNX's reference."""
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(model(op_type, x.shape[1], attributes)).run(None, {"x": x}))


def votes(*columns: tuple[float, ...], ids: tuple[int, ...]) -> dict[str, Any]:
    """The stumps with one column of four leaf weights for each class id."""
    leaves = [(0, 1), (0, 2), (1, 1), (1, 2)]
    rows = [(*leaf, k, c[i]) for i, leaf in enumerate(leaves) for k, c in zip(ids, columns, strict=True)]
    names = ("class_treeids", "class_nodeids", "class_ids", "class_weights")
    return STUMPS | {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def sums(column: tuple[float, ...]) -> np.ndarray:
    """What the rows of X collect of a column of leaf weights."""
    return np.array([column[0 if a < 0 else 1] + column[2 if b < 0 else 3] for a, b in X])


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


# -- Two classes, votes for one: scikit-learn, XGBoost, LightGBM ----------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("base", [None, [0.1], [-0.25]])
@pytest.mark.parametrize("weights", [POSITIVE, MIXED])
@pytest.mark.parametrize("name", ["NONE", "LOGISTIC"])
@pytest.mark.parametrize("text", [False, True])
def test_votes_for_one_class(backend, base, weights, name, text) -> None:
    names = {"classlabels_strings": ["no", "yes"]} if text else {"classlabels_int64s": [9, 5]}
    attributes = votes(weights, ids=(0,)) | names | {"base_values": base, "post_transform": name}
    label, scores = run(backend, "TreeEnsembleClassifier", X, **attributes)
    s = sums(weights) + (base[0] if base else 0)
    probability = name == "NONE" and weights is POSITIVE
    if name == "LOGISTIC":
        expected = np.stack([sigmoid(-s), sigmoid(s)], 1)
    else:
        expected = np.stack([1 - s if probability else -s, s], 1)
    np.testing.assert_allclose(scores, expected, rtol=1e-6, atol=1e-7)
    pair = next(iter(names.values()))
    assert label.tolist() == [pair[int(v > (0.5 if probability else 0))] for v in s]
    their_label, their_scores = runtime("TreeEnsembleClassifier", X, **attributes)
    np.testing.assert_allclose(scores, their_scores, rtol=1e-5, atol=1e-6)
    if name == "NONE" or weights is MIXED:  # else it compares a margin with 0.5, see the next test
        assert label.tolist() == their_label.tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_positive_margins_are_no_probabilities(backend) -> None:
    """A margin above zero is the second class, as XGBoost predicts; ONNX's reference agrees."""
    attributes = votes((0.01, 0.3, 0.02, 0.15), ids=(0,)) | {"classlabels_int64s": [0, 1]}
    attributes["post_transform"] = "LOGISTIC"
    label, scores = run(backend, "TreeEnsembleClassifier", X, **attributes)
    assert label.tolist() == [1, 1, 1, 1] and np.all(scores[:, 1] > 0.5)
    theirs = reference("TreeEnsembleClassifier", X, **attributes)
    assert label.tolist() == theirs[0].tolist()
    np.testing.assert_allclose(scores, theirs[1], rtol=1e-6)


def stump_attributes(trees: list[Any], weight: Any) -> dict[str, list[Any]]:
    """Trees of scikit-learn with one vote for class 0 in each leaf, as its converter writes two classes."""
    names = ("treeids", "nodeids", "featureids", "modes", "values", "truenodeids", "falsenodeids")
    rows, leaves = [], []
    for number, tree in enumerate(trees):
        for node in range(tree.node_count):
            left, right = int(tree.children_left[node]), int(tree.children_right[node])
            mode = "BRANCH_LEQ" if left != -1 else "LEAF"
            rows.append(
                (
                    number,
                    node,
                    max(int(tree.feature[node]), 0),
                    mode,
                    float(tree.threshold[node]),
                    left,
                    right,
                )
            )
            if mode == "LEAF":
                leaves.append((number, node, 0, float(weight(tree, node))))
    found = {f"nodes_{n}": list(column) for n, column in zip(names, zip(*rows, strict=True), strict=True)}
    names = ("treeids", "nodeids", "ids", "weights")
    return found | {
        f"class_{n}": list(column) for n, column in zip(names, zip(*leaves, strict=True), strict=True)
    }


@pytest.fixture(scope="module")
def data() -> tuple[np.ndarray, np.ndarray]:
    """Features on a grid of eighths and noisy margins."""
    rng = np.random.default_rng(5)
    x = (rng.integers(-20, 20, size=(150, 4)) / 8).astype(np.float32)
    return x, x[:, 0] + x[:, 1] * x[:, 2] + rng.normal(size=150)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("border", [-4, 0.3, 4])
@pytest.mark.parametrize("raw", [False, True])
def test_gradient_boosting(backend, data, border, raw) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    x, margin = data
    fitted = ensemble.GradientBoostingClassifier(n_estimators=6, random_state=0).fit(x, margin > border)
    rate = fitted.learning_rate
    attributes = stump_attributes(
        [row[0].tree_ for row in fitted.estimators_], lambda tree, node: rate * tree.value[node, 0, 0]
    )
    base = np.log(np.mean(margin > border) / np.mean(margin <= border))
    attributes |= {"base_values": [base], "post_transform": "NONE" if raw else "LOGISTIC"}
    label, scores = run(backend, "TreeEnsembleClassifier", x, classlabels_int64s=[0, 1], **attributes)
    if raw:
        np.testing.assert_allclose(scores[:, 1], fitted.decision_function(x), rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_allclose(scores, fitted.predict_proba(x), rtol=1e-5, atol=1e-6)
    assert label.tolist() == fitted.predict(x).astype(int).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_forest_of_two_classes(backend, data) -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    x, margin = data
    fitted = ensemble.RandomForestClassifier(7, max_depth=4, random_state=0).fit(x, margin > 0.3)

    def share(tree: Any, node: int) -> float:
        value = tree.value[node, 0]
        return value[1] / value.sum() / 7

    attributes = stump_attributes([tree.tree_ for tree in fitted.estimators_], share)
    label, scores = run(backend, "TreeEnsembleClassifier", x, classlabels_int64s=[0, 1], **attributes)
    np.testing.assert_allclose(scores, fitted.predict_proba(x), rtol=1e-5, atol=1e-6)
    assert label.tolist() == fitted.predict(x).astype(int).tolist()


# -- Votes for every class: the operator's text ---------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("base", [None, [0.1, 0.1], [0.31, -0.2]])
@pytest.mark.parametrize("name", ["NONE", "LOGISTIC", "SOFTMAX"])
def test_votes_for_two_classes(backend, base, name) -> None:
    other = (0.5, -0.31, 0.18, -0.7)
    attributes = votes(other, MIXED, ids=(0, 1)) | {"base_values": base, "post_transform": name}
    label, scores = run(backend, "TreeEnsembleClassifier", X, classlabels_int64s=[9, 5], **attributes)
    raw = np.stack([sums(other), sums(MIXED)], 1) + np.array(base or [0, 0])
    powers = np.exp(raw)
    expected = {"NONE": raw, "LOGISTIC": sigmoid(raw), "SOFTMAX": powers / powers.sum(1, keepdims=True)}
    np.testing.assert_allclose(scores, expected[name], rtol=1e-5, atol=1e-6)
    assert label.tolist() == [[9, 5][k] for k in raw.argmax(1)]
    theirs = reference("TreeEnsembleClassifier", X, classlabels_int64s=[9, 5], **attributes)
    assert label.tolist() == theirs[0].tolist()
    np.testing.assert_allclose(scores, theirs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_margins_of_both_signs(backend) -> None:
    """CatBoost's form of two classes: -margin and margin in two columns, the bias in both base values."""
    attributes = votes(tuple(-w for w in MIXED), MIXED, ids=(0, 1)) | {"base_values": [-0.4, 0.4]}
    label, scores = run(
        backend, "TreeEnsembleClassifier", X, classlabels_strings=["a", "b"], post_transform="LOGISTIC", **attributes
    )  # fmt: skip
    margin = sums(MIXED) + 0.4
    np.testing.assert_allclose(scores, np.stack([sigmoid(-margin), sigmoid(margin)], 1), rtol=1e-6)
    assert label.tolist() == ["b" if m > 0 else "a" for m in margin]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_votes_for_three_classes(backend, name) -> None:
    columns = (0.1, 0.2, 0.05, 0.15), (0.2, 0.05, 0.1, 0.3), (0.15, 0.1, 0.3, 0.02)
    attributes = votes(*columns, ids=(0, 1, 2)) | {"classlabels_int64s": [7, 1, 4], "post_transform": name}
    attributes["base_values"] = [0.1, 0.2, 0.05]
    found = run(backend, "TreeEnsembleClassifier", X, **attributes)
    for theirs in (reference, runtime):
        label, scores = theirs("TreeEnsembleClassifier", X, **attributes)
        assert found[0].tolist() == label.tolist()
        np.testing.assert_allclose(found[1], scores, rtol=3e-3 if name == "PROBIT" else 1e-5, atol=3e-3)


# -- TreeEnsemble and regressors ------------------------------------------------------------------


def ensemble_attributes(**attributes: Any) -> dict[str, Any]:
    """The stumps as TreeEnsemble-5; leaves 0 to 3 vote for targets 0, 1, 1, 0."""

    def tensor(values: list[float], dtype: type = np.float32) -> Any:
        return numpy_helper.from_array(np.array(values, dtype))

    return {
        "nodes_featureids": [0, 1], "nodes_modes": tensor([0, 0], np.uint8), "nodes_splits": tensor([0, 0]),
        "nodes_truenodeids": [0, 2], "nodes_falsenodeids": [1, 3], "nodes_trueleafs": [1, 1],
        "nodes_falseleafs": [1, 1], "tree_roots": [0, 1], "leaf_targetids": [0, 1, 1, 0],
        "leaf_weights": tensor([0.1, 0.2, 0.25, 0.4]), "n_targets": 2,
    } | attributes  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
def test_tree_ensemble_transforms_are_numbered_as_in_the_text(backend) -> None:
    raw = np.array([[0.1, 0.25], [0.5, 0], [0, 0.45], [0.4, 0.2]])
    powers = np.exp(raw)
    expected = [raw, powers / powers.sum(1, keepdims=True), sigmoid(raw)]
    for number, scores in enumerate(expected):
        (found,) = run(backend, "TreeEnsemble", X, 5, **ensemble_attributes(post_transform=number))
        np.testing.assert_allclose(found, scores, rtol=1e-6, atol=1e-7)


# -- Support vector machines ----------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", ["linear", "poly", "rbf", "sigmoid"])
@pytest.mark.parametrize("classes", [2, 3])
def test_support_vector_probabilities(backend, data, kernel, classes) -> None:
    """Vectors, weights and pairwise sigmoids of LIBSVM, as scikit-learn holds them."""
    svm = pytest.importorskip("sklearn.svm")
    x, margin = data
    target = (margin > 0).astype(int) + (classes == 3) * (x[:, 3] > 0.5)
    fitted = svm.SVC(kernel=kernel, gamma=0.3, coef0=0.25, degree=2, random_state=0, probability=True)
    try:
        fitted.fit(x, target)
    except TypeError:
        pytest.skip("this scikit-learn has no probability of SVC")
    sign = -1 if classes == 2 else 1  # scikit-learn turns LIBSVM's sign for two classes
    label, scores = run(
        backend, "SVMClassifier", x, kernel_type=kernel.upper(), kernel_params=[0.3, 0.25, 2.0],
        coefficients=(sign * fitted.dual_coef_).ravel().tolist(), rho=(sign * fitted.intercept_).tolist(),
        support_vectors=fitted.support_vectors_.ravel().tolist(), vectors_per_class=fitted.n_support_.tolist(),
        prob_a=fitted.probA_.tolist(), prob_b=fitted.probB_.tolist(), classlabels_ints=list(range(classes)),
    )  # fmt: skip
    wide = x.astype(np.float64)
    np.testing.assert_allclose(scores, fitted.predict_proba(wide), rtol=1e-4, atol=1e-4)
    assert label.tolist() == fitted.predict(wide).tolist()


SVM: dict[str, Any] = {
    "kernel_type": "RBF", "kernel_params": [0.3, 0.0, 0.0], "coefficients": [0.5, 0.25, -0.75], "rho": [0.1],
    "support_vectors": [1.0, 0.0, 0.5, 1.0, -1.0, -0.5],
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["NONE", "LOGISTIC"])
def test_support_vector_margin_of_two_classes(backend, name) -> None:
    attributes = SVM | {"vectors_per_class": [2, 1], "classlabels_ints": [9, 5], "post_transform": name}
    label, scores = run(backend, "SVMClassifier", X, **attributes)
    vectors = np.array(SVM["support_vectors"]).reshape(3, 2)
    distance = np.square(X[:, None, :] - vectors).sum(-1)
    s = np.exp(-0.3 * distance) @ np.array(SVM["coefficients"]) + 0.1
    expected = np.stack([-s, s], 1)
    np.testing.assert_allclose(
        scores, expected if name == "NONE" else sigmoid(expected), rtol=1e-5, atol=1e-6
    )
    assert label.tolist() == [9 if v > 0 else 5 for v in s]
    theirs = runtime("SVMClassifier", X, **attributes)
    assert label.tolist() == theirs[0].tolist()
    np.testing.assert_allclose(scores, theirs[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_unknown_features_have_no_probabilities(backend) -> None:
    attributes = SVM | {
        "vectors_per_class": [2, 1],
        "prob_a": [-2.0],
        "prob_b": [0.1],
        "classlabels_ints": [0, 1],
    }
    _, scores = run(backend, "SVMClassifier", np.array([[np.nan, 0], [0, 0]], np.float32), **attributes)
    assert np.isnan(scores[0]).all() and np.isclose(scores[1].sum(), 1)


# -- Refusals -------------------------------------------------------------------------------------

INTS = {"classlabels_int64s": [0, 1]}
ONE_VOTE = votes(POSITIVE, ids=(0,)) | INTS
TARGET = STUMPS | {
    "n_targets": 1, "target_treeids": [0, 0, 1, 1], "target_nodeids": [1, 2, 1, 2], "target_ids": [0] * 4,
    "target_weights": list(MIXED),
}  # fmt: skip
TWO_LABELS = {"classlabels_ints": [0, 1]}
ROW = {"coefficients": [1.0, -0.5], "intercepts": [0.25]} | TWO_LABELS
ZERO_ROWS = {"coefficients": [0.0] * 6, "classlabels_ints": [0, 1, 2], "post_transform": "SOFTMAX_ZERO"}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "second-class": ("TreeEnsembleClassifier", votes(POSITIVE, ids=(1,)) | INTS, "all class_ids are 1"),
    "two-bases": (
        "TreeEnsembleClassifier",
        ONE_VOTE | {"base_values": [0.1, 0.1]},
        "2 class labels and 2 base_values",
    ),
    "three-labels": (
        "TreeEnsembleClassifier",
        ONE_VOTE | {"classlabels_int64s": [0, 1, 2]},
        "with 3 class labels",
    ),
    "one-base": (
        "TreeEnsembleClassifier",
        votes(MIXED, POSITIVE, ids=(0, 1)) | INTS | {"base_values": [0.1]},
        "1 base_values for 2",
    ),
    "minimum-of-none": (
        "TreeEnsembleRegressor",
        TARGET | {"n_targets": 2, "aggregate_function": "MIN"},
        "MIN of no vote: row 0 has none for target 1",
    ),
    "linear-svm": (
        "SVMClassifier",
        {"coefficients": [1.0, 0.5, -1.0, 0.5], "rho": [0.1]} | TWO_LABELS,
        "two classes without vectors_per_class",
    ),
    "linear-svm-offsets": (
        "SVMClassifier",
        {"coefficients": [1.0] * 6, "rho": [0.1, 0.2, 0.3], "classlabels_ints": [0, 1, 2]},
        "3 rho for 3 classes",
    ),
    "highest-is-zero": ("LinearClassifier", ZERO_ROWS | {"intercepts": [0.0, -2.0, -3.0]}, "makes the highest"),
    "outside-probit": (
        "LinearClassifier",
        ZERO_ROWS | {"intercepts": [0.5, 1.5, 0.2], "post_transform": "PROBIT"},
        "PROBIT of a score outside",
    ),
    "all-zero": ("LinearClassifier", ZERO_ROWS, "all scores are zero"),
} | {
    f"{op_type}-{name}": (op_type, attributes | {"post_transform": name}, f"post_transform {name} is ambiguous")
    for op_type, attributes, names in (
        ("TreeEnsembleClassifier", ONE_VOTE, TRANSFORMS[2:]),
        ("TreeEnsembleRegressor", TARGET, TRANSFORMS[1:4]),
        ("LinearClassifier", ROW, ("NONE", *TRANSFORMS[2:])),
        ("LinearRegressor", {"coefficients": [1.0, -0.5]}, TRANSFORMS[1:4]),
        ("SVMClassifier", SVM | TWO_LABELS | {"vectors_per_class": [2, 1]}, TRANSFORMS[2:]),
        ("SVMRegressor", SVM | {"n_supports": 3}, TRANSFORMS[1:]),
    )
    for name in names
}  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", REFUSED)
def test_refusals(backend, case) -> None:
    op_type, attributes, words = REFUSED[case]
    with pytest.raises(UserError, match=words):
        run(backend, op_type, X, **attributes)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("number", [1, 2, 3])
def test_tree_ensemble_refuses_transforms_of_one_target(backend, number) -> None:
    attributes = ensemble_attributes(n_targets=1, leaf_targetids=[0] * 4, post_transform=number)
    with pytest.raises(UserError, match="ambiguous for one output"):
        run(backend, "TreeEnsemble", X, 5, **attributes)
