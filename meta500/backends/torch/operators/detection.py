"""NonMaxSuppression: the best of overlapping boxes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from meta500.backends.numpy.operators.detection import check_boxes, threshold
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.literals import Scalar


def _corners(boxes: Tensor, center_point_box: int) -> tuple[Tensor, Tensor]:
    """Lower and upper corners (..., 2) of boxes (..., 4)."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if center_point_box:
        first, second = first - second / 2, first + second / 2
    return torch.minimum(first, second), torch.maximum(first, second)


@rules.rule("NonMaxSuppression", since=10, host=("limit", "iou_threshold", "score_threshold"))
def non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    limit: Scalar | None = None,
    iou_threshold: Scalar | None = None,
    score_threshold: Scalar | None = None,
    *,
    center_point_box: int = 0,
) -> Tensor:
    """ONNX NonMaxSuppression: (count, 3) of batch, class and box, by falling score, equal ones by index.

    All batch entries and classes choose their next box at once. Boxes without area overlap none; a box whose
    overlap equals the threshold stays. The indices have no gradient.

    Raises:
        UserError: shapes or thresholds that do not fit.
    """
    iou, least = threshold(iou_threshold, 0.0), threshold(score_threshold, -math.inf)
    sizes = tuple(boxes.shape), tuple(scores.shape)
    count = check_boxes(*sizes, int(threshold(limit, 0.0)), iou, center_point_box)
    boxes, scores = boxes.detach(), scores.detach()
    batch, _, number = scores.shape
    device = scores.device
    if not count or not scores.numel():
        return torch.zeros((0, 3), dtype=torch.int64, device=device)
    order = torch.sort(scores, dim=-1, descending=True, stable=True).indices
    alive = scores.gather(-1, order) >= least
    # Every class in its own order of boxes: corners (batch, classes, boxes, 2).
    entry = torch.arange(batch, device=device)[:, None, None]
    low, high = (corner[entry, order] for corner in _corners(boxes, center_point_box))
    area = (high - low).prod(-1)
    steps = torch.arange(number, device=device)
    chosen = []
    for _ in range(count):
        first = torch.where(alive, steps, number).amin(-1, keepdim=True)
        found = first < number
        if not bool(found.any()):
            break
        place = first.clamp(max=number - 1)
        chosen.append(torch.where(found, order.gather(-1, place), -1))
        corner = place[..., None].expand(-1, -1, -1, 2)
        size = torch.minimum(high, high.gather(2, corner)) - torch.maximum(low, low.gather(2, corner))
        common = size.clamp(min=0).prod(-1)
        union = area + area.gather(-1, place) - common
        overlap = torch.where(common > 0, common / torch.where(union > 0, union, 1), 0)
        alive = alive & (overlap <= iou) & (steps != place)
    if not chosen:
        return torch.zeros((0, 3), dtype=torch.int64, device=device)
    boxes_of = torch.cat(chosen, -1)
    kept = (boxes_of >= 0).nonzero()
    return torch.stack((kept[:, 0], kept[:, 1], boxes_of[boxes_of >= 0]), dim=1)
