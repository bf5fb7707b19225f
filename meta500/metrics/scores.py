"""Scores of predictions against targets, accumulated exactly over batches of any size.

A `Score` is fed batch after batch and keeps sums and counts, never means: the value over a test set
whose last batch is short equals the value over the whole set at once. Class scores have the shape
(N, C, ...) with the classes on axis 1 (as ONNX and PyTorch lay them out) and integer labels the
shape (N, ...), so that one definition serves classification (no further axes) and segmentation
(pixels).

A sample whose class scores hold a NaN counts as wrong: argmax would silently take the NaN for a
winner.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from meta500.errors import UserError, choose


class Score(ABC):
    """A streaming score: ``reset``, ``update`` for every batch, then ``value``.

    ``name`` is its quantity in result rows, ``unit`` the unit of ``value()`` ("1" for a fraction)
    and ``higher_is_better`` its direction.
    """

    name: str
    unit = "1"
    higher_is_better = True

    @abstractmethod
    def reset(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def update(self, prediction: np.ndarray, target: np.ndarray) -> None:
        """Take in one batch."""

    @abstractmethod
    def value(self) -> float:
        """The score over all batches since the last reset; NaN when there was nothing to score."""

    def merge(self, other: Any) -> None:
        """Take in what another score of the same kind has accumulated over other samples.

        Raises:
            UserError: this kind of score cannot be merged.
        """
        raise UserError(f"the score '{self.name}' cannot be merged over ranks: it has no method merge")


class Accuracy(Score):
    """Top-k accuracy: the fraction of labels whose score is among the k highest of their sample.

    ``update`` takes class scores (N, C, ...) and integer labels (N, ...). Of equal scores the lower
    class index ranks first, as with argmax. Labels equal to ``ignore`` are left out of numerator
    and denominator.

    Raises:
        UserError: shapes that do not fit, labels that are no integers or lie outside 0..C-1, k > C.
    """

    def __init__(self, k: int = 1, ignore: int | None = None) -> None:
        if k < 1:
            raise UserError(f"top-k accuracy needs k >= 1, not {k}")
        self.k, self.ignore = k, ignore
        self.name = "accuracy" if k == 1 else f"top{k}"
        self.reset()

    def reset(self) -> None:
        self.correct = 0
        self.count = 0

    def update(self, prediction: np.ndarray, target: np.ndarray) -> None:
        scores, labels, kept = _class_scores(prediction, target, self.ignore)
        if self.k > scores.shape[1]:
            raise UserError(
                f"top-{self.k} accuracy of {scores.shape[1]} classes: k may be at most their number"
            )
        if self.k == 1:
            hit = predicted_classes(scores) == labels
        else:
            own = np.take_along_axis(scores, labels[:, None], axis=1)
            index = np.arange(scores.shape[1]).reshape((1, -1) + (1,) * (scores.ndim - 2))
            ahead = (scores > own) | ((scores == own) & (index < labels[:, None]))
            hit = (ahead.sum(axis=1) < self.k) & ~np.isnan(scores).any(axis=1)
        self.correct += int(np.count_nonzero(hit & kept))
        self.count += int(np.count_nonzero(kept))

    def merge(self, other: Any) -> None:
        self.correct += other.correct
        self.count += other.count

    def value(self) -> float:
        return self.correct / self.count if self.count else math.nan


class Confusion(Score):
    """Confusion matrix of class scores (N, C, ...) and labels (N, ...); base of IoU and Dice.

    ``matrix`` is (C, C) int64, rows the true class, columns the predicted one; ``missed`` is (C,)
    int64, the labels whose scores held a NaN and so predict nothing. ``value()`` is the accuracy. A
    one-dimensional or integer ``prediction`` of the labels' shape is taken as class indices; then
    ``classes`` must be given.

    Raises:
        UserError: as `Accuracy`, and when the number of classes changes between batches.
    """

    name = "pixel_accuracy"

    def __init__(self, classes: int | None = None, ignore: int | None = None) -> None:
        self.classes, self.ignore = classes, ignore
        self.reset()

    def reset(self) -> None:
        self._counts: np.ndarray | None = None

    def update(self, prediction: np.ndarray, target: np.ndarray) -> None:
        prediction, target = np.asarray(prediction), np.asarray(target)
        if prediction.shape == target.shape and np.issubdtype(prediction.dtype, np.integer):
            if self.classes is None:
                raise UserError("class indices were given as prediction: say how many classes there are")
            classes, predicted = self.classes, prediction
            labels, kept = _labels(target, target.shape, classes, self.ignore)
            if predicted.size and (predicted.min() < 0 or predicted.max() >= classes):
                raise UserError(f"predicted class outside 0..{classes - 1}")
        else:
            scores, labels, kept = _class_scores(prediction, target, self.ignore)
            classes, predicted = scores.shape[1], predicted_classes(scores)
        if self.classes not in (None, classes):
            raise UserError(f"the scores have {classes} classes on axis 1, not {self.classes}")
        if self._counts is None:
            self._counts = np.zeros((classes, classes + 1), np.int64)
        elif self._counts.shape[0] != classes:
            raise UserError(f"the scores have {classes} classes on axis 1, earlier {self._counts.shape[0]}")
        column = np.where(predicted < 0, classes, predicted)[kept].astype(np.int64)
        flat = labels[kept].astype(np.int64) * (classes + 1) + column
        self._counts += np.bincount(flat, minlength=self._counts.size).reshape(self._counts.shape)

    def merge(self, other: Any) -> None:
        if other._counts is None:
            return
        if self._counts is None:
            self._counts = np.zeros_like(other._counts)
        if self._counts.shape != other._counts.shape:
            raise UserError(
                f"the scores have {self._counts.shape[0]} classes on one rank, {other._counts.shape[0]} on "
                "another"
            )
        self._counts += other._counts

    @property
    def matrix(self) -> np.ndarray:
        return self._all()[:, :-1].copy()

    @property
    def missed(self) -> np.ndarray:
        return self._all()[:, -1].copy()

    def _all(self) -> np.ndarray:
        if self._counts is None:
            return np.zeros((self.classes or 0, (self.classes or 0) + 1), np.int64)
        return self._counts

    def value(self) -> float:
        total = int(self._all().sum())
        return float(np.trace(self.matrix)) / total if total else math.nan


class IoU(Confusion):
    """Mean intersection over union, tp / (tp + fp + fn), over the classes that occur.

    ``per_class()`` is (C,) float64; a class that neither labels nor predictions hold is NaN there
    and left out of the mean, since 0 / 0 says nothing about the network.
    """

    name = "iou"

    def per_class(self) -> np.ndarray:
        return iou_per_class(self.matrix, self.missed)

    def value(self) -> float:
        return mean_of_present(self.per_class())


class Dice(Confusion):
    """Mean Dice coefficient (F1), 2 tp / (2 tp + fp + fn); otherwise as `IoU`."""

    name = "dice"

    def per_class(self) -> np.ndarray:
        return dice_per_class(self.matrix, self.missed)

    def value(self) -> float:
        return mean_of_present(self.per_class())


class _Deviation(Score):
    """Sum of a function of prediction - target over all elements; both arrays have the same shape.

    A prediction (N, 1) against a target (N,) is refused: broadcasting would compare all pairs. Elements whose
    target equals ``ignore`` are left out.
    """

    higher_is_better = False
    unit = "unit of the target"

    def __init__(self, ignore: float | None = None) -> None:
        self.ignore = ignore
        self.reset()

    def reset(self) -> None:
        self.total = 0.0
        self.count = 0

    def update(self, prediction: np.ndarray, target: np.ndarray) -> None:
        prediction, target = np.asarray(prediction), np.asarray(target)
        if prediction.shape != target.shape:
            raise UserError(
                f"{self.name}: prediction has shape {prediction.shape}, target {target.shape}; "
                "they must be equal"
            )
        if self.ignore is not None:
            kept = target != self.ignore
            prediction, target = prediction[kept], target[kept]
        difference = prediction.astype(np.float64) - target.astype(np.float64)
        self.total += self._sum(difference)
        self.count += difference.size

    def merge(self, other: Any) -> None:
        self.total += other.total
        self.count += other.count

    @abstractmethod
    def _sum(self, difference: np.ndarray) -> float: ...


class RMSE(_Deviation):
    """Root of the mean squared error over all elements, accumulated in float64."""

    name = "rmse"

    def _sum(self, difference: np.ndarray) -> float:
        return float(np.square(difference).sum())

    def value(self) -> float:
        return math.sqrt(self.total / self.count) if self.count else math.nan


class MAE(_Deviation):
    """Mean absolute error over all elements, accumulated in float64."""

    name = "mae"

    def _sum(self, difference: np.ndarray) -> float:
        return float(np.abs(difference).sum())

    def value(self) -> float:
        return self.total / self.count if self.count else math.nan


SCORES: dict[str, Callable[[], Score]] = {
    "accuracy": Accuracy,
    "top1": Accuracy,
    "top5": lambda: Accuracy(k=5),
    "iou": IoU,
    "dice": Dice,
    "rmse": RMSE,
    "mae": MAE,
}


def score(name: str) -> Score:
    """A fresh score by name: accuracy, top1, top5, iou, dice, rmse or mae.

    Raises:
        UserError: unknown name, with the choices.
    """
    return SCORES[choose("score", name, SCORES)]()


def accuracy(scores: np.ndarray, labels: np.ndarray, k: int = 1, ignore: int | None = None) -> float:
    """Top-k accuracy of class scores (N, C, ...) and integer labels (N, ...); see `Accuracy`."""
    return _once(Accuracy(k, ignore), scores, labels)


def confusion_matrix(
    predictions: np.ndarray,
    labels: np.ndarray,
    classes: int | None = None,
    ignore: int | None = None,
) -> np.ndarray:
    """(C, C) int64, rows true, columns predicted, from class indices or scores; see `Confusion`."""
    counts = Confusion(classes, ignore)
    counts.update(predictions, labels)
    return counts.matrix


def iou_per_class(matrix: np.ndarray, missed: np.ndarray | None = None) -> np.ndarray:
    """tp / (tp + fp + fn) per class, (C,) float64, NaN for absent classes, from a confusion matrix
    (C, C).

    ``missed`` (C,) counts labels without any prediction; they add to the false negatives.
    """
    hit, either = _overlap(matrix, missed)
    with np.errstate(invalid="ignore", divide="ignore"):
        return hit / (either - hit)


def dice_per_class(matrix: np.ndarray, missed: np.ndarray | None = None) -> np.ndarray:
    """2 tp / (2 tp + fp + fn) per class, (C,) float64; otherwise as `iou_per_class`."""
    hit, either = _overlap(matrix, missed)
    with np.errstate(invalid="ignore", divide="ignore"):
        return 2 * hit / either


def mean_of_present(values: np.ndarray) -> float:
    """Mean of the values that are not NaN; NaN if all are."""
    present = values[~np.isnan(values)]
    return float(present.mean()) if present.size else math.nan


def rmse(prediction: np.ndarray, target: np.ndarray) -> float:
    """Root mean squared error of two arrays of one shape."""
    return _once(RMSE(), prediction, target)


def mae(prediction: np.ndarray, target: np.ndarray) -> float:
    """Mean absolute error of two arrays of one shape."""
    return _once(MAE(), prediction, target)


def predicted_classes(scores: np.ndarray) -> np.ndarray:
    """Class indices (N, ...) int64 of class scores (N, C, ...); -1 where a score is NaN."""
    best = np.argmax(scores, axis=1)
    broken = np.isnan(scores).any(axis=1)
    return np.where(broken, -1, best) if broken.any() else best


def _once(streaming: Score, prediction: np.ndarray, target: np.ndarray) -> float:
    streaming.update(prediction, target)
    return streaming.value()


def _overlap(matrix: np.ndarray, missed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """True positives, and number of labels plus number of predictions, per class."""
    hit = np.diag(matrix).astype(np.float64)
    either = matrix.sum(axis=0) + matrix.sum(axis=1) + (0 if missed is None else missed)
    return hit, either.astype(np.float64)


def _class_scores(
    prediction: Any, target: Any, ignore: int | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checked scores (N, C, ...), labels (N, ...) with ignored ones as 0, mask of those kept."""
    scores, labels = np.asarray(prediction), np.asarray(target)
    if scores.ndim < 2:
        raise UserError(f"class scores need the shape (N, C, ...), not {scores.shape}")
    expected = scores.shape[:1] + scores.shape[2:]
    checked, kept = _labels(labels, expected, scores.shape[1], ignore)
    return scores, checked, kept


def _labels(
    labels: np.ndarray, expected: tuple[int, ...], classes: int, ignore: int | None
) -> tuple[np.ndarray, np.ndarray]:
    if labels.shape != expected:
        raise UserError(f"labels have shape {labels.shape}, the predictions need {expected}")
    if not np.issubdtype(labels.dtype, np.integer):
        raise UserError(f"labels must be integer class indices, not {labels.dtype}")
    kept = np.ones(labels.shape, bool) if ignore is None else labels != ignore
    labels = np.where(kept, labels, 0)
    if labels.size and (labels.min() < 0 or labels.max() >= classes):
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise UserError(f"label {wrong} lies outside 0..{classes - 1}")
    return labels, kept
