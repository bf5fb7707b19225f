"""NonMaxSuppression: the best of overlapping boxes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import as_list
from meta500.errors import UserError


def check_boxes(
    boxes: tuple[int, ...], scores: tuple[int, ...], limit: int, iou: float, center_point_box: int
) -> int:
    """The greatest number of boxes that a class may keep.

    Raises:
        UserError: shapes that do not fit, a threshold outside [0, 1], or an unknown box format.
    """
    if len(boxes) != 3 or len(scores) != 3 or boxes[::2] != (scores[0], 4) or boxes[1] != scores[2]:
        raise UserError(
            f"NonMaxSuppression: boxes {boxes} and scores {scores} should be (batch, boxes, 4) and "
            "(batch, classes, boxes)"
        )
    if not 0 <= iou <= 1 or center_point_box not in (0, 1):
        raise UserError(
            f"NonMaxSuppression: iou_threshold {iou} should be in [0, 1], "
            f"center_point_box {center_point_box} 0 or 1"
        )
    return max(min(limit, boxes[1]), 0)


def threshold(value: Any, default: float) -> float:
    """A host input of one number, or ``default``.

    Raises:
        UserError: several numbers, or NaN.
    """
    if value is None:
        return default
    listed = as_list(value)
    if len(listed) != 1 or math.isnan(listed[0]):
        raise UserError(f"NonMaxSuppression: a threshold or limit is {value}, it should be a single number")
    return float(listed[0])


def _corners(boxes: np.ndarray, center_point_box: int) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper corners (..., 2) of boxes (..., 4)."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        first, second = first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


@rules.rule("NonMaxSuppression", 10, host=("limit", "iou_threshold", "score_threshold"))
def non_max_suppression(
    boxes: np.ndarray,
    scores: np.ndarray,
    limit: Any = None,
    iou_threshold: Any = None,
    score_threshold: Any = None,
    *,
    center_point_box: int = 0,
) -> np.ndarray:
    """Per batch entry and class the boxes that overlap no better one: (count, 3) of batch, class, box; int64.

    Boxes come by falling score, equal ones by index, at most ``limit`` (0 without). One is dropped if its
    score is below ``score_threshold``, or its intersection over union with a chosen one exceeds
    ``iou_threshold`` (0 without). Boxes without area overlap none. The indices have no gradient.

    Raises:
        UserError: shapes or thresholds that do not fit.
    """
    iou, least = threshold(iou_threshold, 0.0), threshold(score_threshold, -math.inf)
    count = check_boxes(boxes.shape, scores.shape, int(threshold(limit, 0.0)), iou, center_point_box)
    low, high = _corners(boxes, center_point_box)
    area = np.prod(high - low, axis=-1)
    chosen = []
    for batch, label in np.ndindex(scores.shape[:2]):
        score = scores[batch, label]
        left = np.argsort(-score, kind="stable")
        left = left[score[left] >= least]
        for _ in range(count):
            if not left.size:
                break
            best, left = left[0], left[1:]
            chosen.append((batch, label, best))
            size = np.minimum(high[batch, best], high[batch, left]) - np.maximum(
                low[batch, best], low[batch, left]
            )
            common = np.prod(np.maximum(size, 0), axis=-1)
            union = area[batch, best] + area[batch, left] - common
            overlap = np.where(common > 0, common / np.where(union > 0, union, 1), 0)
            left = left[overlap <= np.float32(iou)]
    return np.array(chosen, np.int64).reshape(-1, 3)
