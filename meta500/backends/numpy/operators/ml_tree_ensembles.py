"""TreeEnsemble, TreeEnsembleClassifier and TreeEnsembleRegressor of ai.onnx.ml.

Thresholds are compared in float64, which holds every float32 and float64 exactly. A NaN follows the branch
that ``nodes_missing_value_tracks_true`` names, the false one without it, whatever the comparison. The results
are piecewise constant in the input: gradients are zero.
"""

from __future__ import annotations

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.ml_scores import (
    DOMAIN,
    as_stored,
    either,
    expect_transform,
    expect_transform_of,
    labels,
    matrix,
    numbers,
    pick,
    top,
    transform,
)
from meta500.backends.numpy.operators.ml_trees import (
    LEAF,
    MODES,
    Forest,
    aggregate,
    read_forest,
    read_votes,
)
from meta500.backends.rules import Call
from meta500.errors import UserError, choose

Ints = tuple[int, ...]
Floats = tuple[float, ...]
Strings = tuple[str, ...]
AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
# TreeEnsemble-5 numbers the transforms in this order.
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def _base(operator: str, values: np.ndarray, count: int) -> np.ndarray:
    if values.size not in (0, count):
        raise UserError(f"{operator}: {values.size} base_values for {count} outputs")
    return values if values.size else np.zeros(count)


@rules.rule("TreeEnsembleRegressor", 1, domain=DOMAIN)
def tree_ensemble_regressor(
    x: np.ndarray,
    *,
    aggregate_function: str = "SUM",
    base_values: Floats | None = None,
    base_values_as_tensor: np.ndarray | None = None,
    n_targets: int | None = None,
    nodes_falsenodeids: Ints = (),
    nodes_featureids: Ints = (),
    nodes_hitrates: Floats | None = None,
    nodes_hitrates_as_tensor: np.ndarray | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: Strings = (),
    nodes_nodeids: Ints = (),
    nodes_treeids: Ints = (),
    nodes_truenodeids: Ints = (),
    nodes_values: Floats | None = None,
    nodes_values_as_tensor: np.ndarray | None = None,
    post_transform: str = "NONE",
    target_ids: Ints = (),
    target_nodeids: Ints = (),
    target_treeids: Ints = (),
    target_weights: Floats | None = None,
    target_weights_as_tensor: np.ndarray | None = None,
) -> np.ndarray:
    """ONNX TreeEnsembleRegressor (1, 3, 5): (N, n_targets), float32.

    Leaf weights are combined per target (AVERAGE divides by the number of trees), then ``base_values`` are
    added. A sum or average without any vote is the base value.

    Raises:
        UserError: ``n_targets`` is missing, MIN or MAX of no vote, a transform other than PROBIT of a single
            target, or malformed trees.
    """
    operator = "TreeEnsembleRegressor"
    choose("aggregate_function", aggregate_function, AGGREGATES)
    if n_targets is None:
        raise UserError(f"{operator}: the attribute n_targets is missing")
    expect_transform_of(operator, post_transform, n_targets)
    forest, position = read_forest(
        operator,
        treeids=nodes_treeids,
        nodeids=nodes_nodeids,
        featureids=nodes_featureids,
        modes=nodes_modes,
        splits=either(operator, "nodes_values", as_stored(nodes_values), nodes_values_as_tensor),
        yes=nodes_truenodeids,
        no=nodes_falsenodeids,
        missing=nodes_missing_value_tracks_true or (),
    )
    weights = either(operator, "target_weights", target_weights, target_weights_as_tensor)
    votes = read_votes(operator, position, target_treeids, target_nodeids, target_ids, weights, n_targets)
    base = _base(operator, either(operator, "base_values", base_values, base_values_as_tensor), n_targets)
    leaves = forest.leaves(operator, matrix(operator, x))
    scores = aggregate(aggregate_function, leaves, votes, n_targets, len(forest.roots)) + base
    return transform(post_transform, scores).astype(np.float32)


@rules.rule("TreeEnsembleClassifier", 1, domain=DOMAIN)
def tree_ensemble_classifier(
    x: np.ndarray,
    *,
    base_values: Floats | None = None,
    base_values_as_tensor: np.ndarray | None = None,
    class_ids: Ints = (),
    class_nodeids: Ints = (),
    class_treeids: Ints = (),
    class_weights: Floats | None = None,
    class_weights_as_tensor: np.ndarray | None = None,
    classlabels_int64s: Ints | None = None,
    classlabels_strings: Strings | None = None,
    nodes_falsenodeids: Ints = (),
    nodes_featureids: Ints = (),
    nodes_hitrates: Floats | None = None,
    nodes_hitrates_as_tensor: np.ndarray | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: Strings = (),
    nodes_nodeids: Ints = (),
    nodes_treeids: Ints = (),
    nodes_truenodeids: Ints = (),
    nodes_values: Floats | None = None,
    nodes_values_as_tensor: np.ndarray | None = None,
    post_transform: str = "NONE",
) -> tuple[np.ndarray, np.ndarray]:
    """ONNX TreeEnsembleClassifier (1, 3, 5): the label of the highest score (N); the scores (N, E), float32.

    Where there are two labels but all votes are for class 0, their sum s, with the one base value, is of the
    second label: without a post transform and with no negative weight it is its probability, the scores are
    (1 - s, s) and it is chosen where s > 0.5; otherwise the scores are (-s, s), or the logistic function of
    them, and it is chosen where s > 0. ONNX leaves this form open; the converters of scikit-learn, XGBoost
    and LightGBM write it with this meaning. (With LOGISTIC and no negative weight ONNX Runtime chooses where
    s > 0.5, against the scores it returns itself and against XGBoost.)

    With votes for both of two classes ONNX's text holds, as it does for more: here ONNX Runtime returns
    labels that are not in the list, and other scores where there are base values.

    Raises:
        UserError: a single class label, malformed trees, or votes for one class in any other form than the
            above.
    """
    operator = "TreeEnsembleClassifier"
    names = labels(operator, classlabels_int64s, classlabels_strings)
    if len(names) < 2:
        raise UserError(f"{operator}: with a single class label there is nothing to choose from")
    forest, position = read_forest(
        operator,
        treeids=nodes_treeids,
        nodeids=nodes_nodeids,
        featureids=nodes_featureids,
        modes=nodes_modes,
        splits=either(operator, "nodes_values", as_stored(nodes_values), nodes_values_as_tensor),
        yes=nodes_truenodeids,
        no=nodes_falsenodeids,
        missing=nodes_missing_value_tracks_true or (),
    )
    weights = either(operator, "class_weights", class_weights, class_weights_as_tensor)
    votes = read_votes(operator, position, class_treeids, class_nodeids, class_ids, weights, len(names))
    base = either(operator, "base_values", base_values, base_values_as_tensor)
    leaves = forest.leaves(operator, matrix(operator, x))
    sums = aggregate("SUM", leaves, votes, len(names), len(forest.roots))
    if len(set(class_ids)) == 1:
        _check_one_class(operator, class_ids[0], len(names), base.size)
        expect_transform(operator, post_transform, ("NONE", "LOGISTIC"), "with votes for one class only")
        score = sums[:, 0] + (base[0] if base.size else 0.0)
        positive = post_transform == "NONE" and bool(np.all(weights >= 0))
        scores = np.stack((1 - score if positive else -score, score), axis=1)
        results = transform(post_transform, scores)
        chosen = (score > (0.5 if positive else 0.0)).astype(np.int64)
    else:
        scores = sums + _base(operator, base, len(names))
        results = transform(post_transform, scores)
        chosen = top(operator, post_transform, scores, results)
    return pick(names, chosen), results.astype(np.float32)


def _check_one_class(operator: str, voted: int, classes: int, bases: int) -> None:
    """Refuse votes for a single class unless they are of the form that converters write."""
    if (voted, classes) != (0, 2) or bases > 1:
        raise UserError(
            f"{operator}: all class_ids are {voted}, with {classes} class labels and {bases} base_values: "
            "implementations of ONNX differ; votes for one class only must be for class 0 of two, "
            "with at most one base value"
        )


@rules.rule("TreeEnsemble", 5, domain=DOMAIN)
def tree_ensemble(
    x: np.ndarray,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Ints,
    leaf_weights: np.ndarray,
    membership_values: np.ndarray | None = None,
    n_targets: int | None = None,
    nodes_falseleafs: Ints,
    nodes_falsenodeids: Ints,
    nodes_featureids: Ints,
    nodes_hitrates: np.ndarray | None = None,
    nodes_missing_value_tracks_true: Ints | None = None,
    nodes_modes: np.ndarray,
    nodes_splits: np.ndarray,
    nodes_trueleafs: Ints,
    nodes_truenodeids: Ints,
    post_transform: int = 0,
    tree_roots: Ints,
) -> np.ndarray:
    """ONNX TreeEnsemble: (N, n_targets) in the type of ``x``; leaves and nodes are numbered apart.

    The numbers of the transforms are those of ONNX's text; ONNX Runtime takes 1 and 2 for each other.

    Raises:
        UserError: ``n_targets`` is missing, an unknown number of a mode, aggregate or transform, MIN or MAX
            of no vote, a transform other than PROBIT of a single target, or malformed trees.
    """
    operator = "TreeEnsemble"
    if n_targets is None:
        raise UserError(f"{operator}: the attribute n_targets is missing")
    for name, number, known in (
        ("aggregate_function", aggregate_function, AGGREGATES),
        ("post_transform", post_transform, _TRANSFORMS),
    ):
        if not 0 <= number < len(known):
            raise UserError(f"{operator}: {name} {number} is not one of 0 to {len(known) - 1}")
    expect_transform_of(operator, _TRANSFORMS[post_transform], n_targets)
    forest = _forest(
        operator,
        len(leaf_targetids),
        nodes_modes.astype(np.int64).reshape(-1),
        nodes_featureids,
        numbers(nodes_splits),
        (nodes_truenodeids, nodes_trueleafs),
        (nodes_falsenodeids, nodes_falseleafs),
        nodes_missing_value_tracks_true or (),
        tree_roots,
        numbers(membership_values),
    )
    weights, target = numbers(leaf_weights), np.array(leaf_targetids, np.int64)
    if weights.size != target.size or target.size == 0 or target.min() < 0 or target.max() >= n_targets:
        raise UserError(
            f"{operator}: {weights.size} leaf_weights for leaf_targetids {target.tolist()[:10]} and "
            f"n_targets {n_targets}"
        )
    leaves = forest.leaves(operator, matrix(operator, x))
    votes = (len(nodes_modes) + np.arange(target.size), target, weights)
    scores = aggregate(AGGREGATES[aggregate_function], leaves, votes, n_targets, len(tree_roots))
    return transform(_TRANSFORMS[post_transform], scores).astype(x.dtype)


def _forest(
    operator: str,
    leaf_count: int,
    modes: np.ndarray,
    featureids: Ints,
    splits: np.ndarray,
    true_side: tuple[Ints, Ints],
    false_side: tuple[Ints, Ints],
    missing: Ints,
    roots: Ints,
    members: np.ndarray,
) -> Forest:
    """The table of nodes, with the leaves behind the inner ones."""
    count = len(modes)
    lengths = [len(part) for part in (featureids, *true_side, *false_side)]
    lengths += [splits.size, len(missing) or count]
    if any(length != count for length in lengths):
        raise UserError(f"{operator}: {count} nodes_modes, but the other nodes_* have {lengths} entries")
    if count and not 0 <= modes.min() <= modes.max() < len(MODES):
        raise UserError(f"{operator}: nodes_modes {sorted(set(modes.tolist()))} are not all in 0 to 6")
    children = []
    for ids, leafs in (true_side, false_side):
        child, is_leaf = np.array(ids, np.int64), np.array(leafs, bool)
        if np.any(child < 0) or np.any(child >= np.where(is_leaf, leaf_count, count)):
            raise UserError(f"{operator}: a branch leads to a node or leaf that does not exist")
        children.append(
            np.concatenate((np.where(is_leaf, count + child, child), np.zeros(leaf_count, np.int64)))
        )
    if any(not 0 <= root < count for root in roots):
        raise UserError(f"{operator}: tree_roots {list(roots)[:10]} are not all in 0 to {count - 1}")
    pad = (0, leaf_count)
    return Forest(
        np.array(roots, np.int64),
        np.pad(np.array(featureids, np.int64), pad),
        np.pad(modes, pad, constant_values=LEAF),
        np.pad(splits, pad),
        children[0],
        children[1],
        np.pad(np.array(missing, bool) if missing else np.zeros(count, bool), pad),
        _members(operator, modes, members),
    )


def _members(operator: str, modes: np.ndarray, values: np.ndarray) -> dict[int, np.ndarray]:
    """The set of each BRANCH_MEMBER node: runs of ``values`` that end with NaN, in the order of nodes."""
    nodes = np.flatnonzero(modes == MODES.index("BRANCH_MEMBER"))
    ends = np.flatnonzero(np.isnan(values)).tolist()
    if values.size and not np.isnan(values[-1]):
        ends.append(values.size)
    if len(ends) != len(nodes):
        raise UserError(f"{operator}: {len(ends)} sets of membership_values for {len(nodes)} nodes")
    starts = [0, *(end + 1 for end in ends)]
    return {int(node): values[s:e] for node, s, e in zip(nodes, starts, ends, strict=False)}


@tree_ensemble.vjp
@tree_ensemble_regressor.vjp
@tree_ensemble_classifier.vjp
def tree_ensemble_vjp(call: Call, *cotangents: np.ndarray | None) -> tuple[np.ndarray]:
    """Zero: the results are piecewise constant."""
    return (np.zeros_like(call.inputs[0]),)
