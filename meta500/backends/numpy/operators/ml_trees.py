"""Forests of decision trees: how they are read and how rows of features find their leaves.

All trees of a forest lie in one table of nodes; all rows descend all trees at once, one level per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from meta500.errors import UserError

# Numbered as in ``nodes_modes`` of TreeEnsemble-5; the older operators name them.
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ", "BRANCH_MEMBER")
LEAF = -1


@dataclass(frozen=True)
class Forest:
    """Nodes as parallel arrays; ``yes`` and ``no`` are positions of the children, ``mode`` is LEAF at leaves.

    ``missing`` says whether NaN follows ``yes``; ``members`` holds the sets of BRANCH_MEMBER nodes.
    """

    roots: np.ndarray
    feature: np.ndarray
    mode: np.ndarray
    split: np.ndarray
    yes: np.ndarray
    no: np.ndarray
    missing: np.ndarray
    members: dict[int, np.ndarray] = field(default_factory=dict)

    def leaves(self, operator: str, x: np.ndarray) -> np.ndarray:
        """Position of the leaf that each row of ``x`` (N, F) reaches in each tree: (N, trees).

        Raises:
            UserError: a node looks at a feature that x does not have, or the nodes form a circle.
        """
        inner = self.mode != LEAF
        if np.any(inner) and not 0 <= self.feature[inner].min() <= self.feature[inner].max() < x.shape[1]:
            raise UserError(
                f"{operator}: the trees use features {self.feature[inner].min()} to "
                f"{self.feature[inner].max()}, the input has {x.shape[1]}"
            )
        at = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        for _ in range(len(self.mode) + 1):
            rows, trees = np.nonzero(self.mode[at] != LEAF)
            if not rows.size:
                return at
            nodes = at[rows, trees]
            taken = self._taken(nodes, x[rows, self.feature[nodes]])
            at[rows, trees] = np.where(taken, self.yes[nodes], self.no[nodes])
        raise UserError(f"{operator}: the nodes of a tree form a circle")

    def _taken(self, nodes: np.ndarray, value: np.ndarray) -> np.ndarray:
        mode, split = self.mode[nodes], self.split[nodes]
        compare = (
            value <= split,
            value < split,
            value >= split,
            value > split,
            value == split,
            value != split,
        )
        taken = np.select([mode == number for number in range(len(compare))], compare, False)
        for node in np.unique(nodes[mode == MODES.index("BRANCH_MEMBER")]):
            here = nodes == node
            taken[here] = np.isin(value[here], self.members[int(node)])
        return np.where(np.isnan(value), self.missing[nodes], taken)


def aggregate(
    function: str,
    leaves: np.ndarray,
    votes: tuple[np.ndarray, np.ndarray, np.ndarray],
    targets: int,
    trees: int,
) -> np.ndarray:
    """Combine the votes of the leaves reached, per target: (N, targets) in float64.

    ``votes`` are parallel arrays: leaf position, target and weight. A sum without a vote is 0.

    Raises:
        UserError: MIN or MAX of no vote.
    """
    where, target, weight = votes
    order = np.argsort(where, kind="stable")
    where, target, weight = where[order], target[order], weight[order]
    first = np.searchsorted(where, leaves, side="left")
    number = np.searchsorted(where, leaves, side="right") - first
    start = {"SUM": 0.0, "AVERAGE": 0.0, "MIN": np.inf, "MAX": -np.inf}[function]
    combine = {"SUM": np.add, "AVERAGE": np.add, "MIN": np.minimum, "MAX": np.maximum}[function]
    result = np.full((len(leaves), targets), start)
    for index in range(int(number.max(initial=0))):
        rows, columns = np.nonzero(number > index)
        vote = first[rows, columns] + index
        combine.at(result, (rows, target[vote]), weight[vote])
    if function == "AVERAGE":
        result /= max(trees, 1)
    if function in ("MIN", "MAX"):
        voted = np.zeros((len(leaves), targets), bool)
        for index in range(int(number.max(initial=0))):
            rows, columns = np.nonzero(number > index)
            voted[rows, target[first[rows, columns] + index]] = True
        if not voted.all():
            row, absent = np.argwhere(~voted)[0].tolist()
            raise UserError(
                f"aggregate_function {function} of no vote: row {row} has none for target {absent}"
            )
    return result


def read_forest(
    operator: str,
    *,
    treeids: Sequence[int],
    nodeids: Sequence[int],
    featureids: Sequence[int],
    modes: Sequence[str],
    splits: np.ndarray,
    yes: Sequence[int],
    no: Sequence[int],
    missing: Sequence[int],
) -> tuple[Forest, dict[tuple[int, int], int]]:
    """The forest of TreeEnsembleClassifier and -Regressor, and the position of each (tree, node).

    Raises:
        UserError: attributes of different lengths, an unknown mode, a node listed twice, a child that does
            not exist, or a tree without exactly one root.
    """
    count = len(nodeids)
    lengths = {
        "nodes_treeids": len(treeids),
        "nodes_featureids": len(featureids),
        "nodes_modes": len(modes),
        "nodes_values": len(splits),
        "nodes_truenodeids": len(yes),
        "nodes_falsenodeids": len(no),
        "nodes_missing_value_tracks_true": len(missing) or count,
    }
    for name, length in lengths.items():
        if length != count:
            raise UserError(f"{operator}: {name} has {length} entries, nodes_nodeids {count}")
    names = {name: number for number, name in enumerate(MODES[:6])} | {"LEAF": LEAF}
    unknown = sorted(set(modes) - set(names))
    if unknown:
        raise UserError(f"{operator}: nodes_modes has {unknown}; choose from {', '.join(names)}")
    position = {key: index for index, key in enumerate(zip(treeids, nodeids, strict=True))}
    if len(position) != count:
        raise UserError(f"{operator}: a node id occurs twice in a tree")
    mode = np.array([names[m] for m in modes], np.int64)
    children = np.zeros((2, count), np.int64)
    reached = np.zeros(count, bool)
    for index in np.flatnonzero(mode != LEAF).tolist():
        for side, ids in enumerate((yes, no)):
            child = position.get((treeids[index], ids[index]))
            if child is None:
                raise UserError(f"{operator}: tree {treeids[index]} has no node {ids[index]}, a child")
            children[side, index] = child
            reached[child] = True
    roots = np.flatnonzero(~reached)
    if sorted(treeids[r] for r in roots.tolist()) != sorted(set(treeids)):
        raise UserError(f"{operator}: every tree must have exactly one node that is no child of another")
    forest = Forest(
        roots,
        np.array(featureids, np.int64),
        mode,
        np.asarray(splits, np.float64),
        children[0],
        children[1],
        np.array(missing, bool) if len(missing) else np.zeros(count, bool),
    )
    return forest, position


def read_votes(
    operator: str,
    position: dict[tuple[int, int], int],
    treeids: Sequence[int],
    nodeids: Sequence[int],
    targets: Sequence[int],
    weights: np.ndarray,
    count: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Votes as ``aggregate`` takes them.

    Raises:
        UserError: attributes of different lengths, a node that does not exist, or a target outside
            0 to ``count`` - 1.
    """
    if not len(treeids) == len(nodeids) == len(targets) == len(weights):
        raise UserError(
            f"{operator}: {len(treeids)} tree ids, {len(nodeids)} node ids, {len(targets)} targets and "
            f"{len(weights)} weights of the leaves, expected as many of each"
        )
    keys = list(zip(treeids, nodeids, strict=True))
    absent = [key for key in keys if key not in position]
    if absent:
        raise UserError(
            f"{operator}: a weight is for node {absent[0][1]} of tree {absent[0][0]}, which is none"
        )
    if any(not 0 <= target < count for target in targets):
        raise UserError(f"{operator}: the targets {sorted(set(targets))} are not all in 0 to {count - 1}")
    where = np.array([position[key] for key in keys], np.int64)
    return where, np.array(targets, np.int64), np.asarray(weights, np.float64)
