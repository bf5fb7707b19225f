from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

from meta500.errors import UserError
from meta500.metrics import scores


def batches(score, prediction, target, cuts):
    for a, b in zip([0, *cuts], [*cuts, len(target)], strict=True):
        score.update(prediction[a:b], target[a:b])
    return score.value()


def sample(seed, n=37, classes=6, shape=()):
    rng = np.random.default_rng(seed)
    prediction = rng.standard_normal((n, classes, *shape)).astype(np.float32)
    return prediction, rng.integers(0, classes, (n, *shape))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_accuracy_equals_sklearn(k):
    prediction, target = sample(k)
    expected = reference.top_k_accuracy_score(target, prediction, k=k, labels=range(6))
    assert scores.accuracy(prediction, target, k) == pytest.approx(expected, abs=1e-15)


@settings(max_examples=30, deadline=None)
@given(cuts=st.lists(st.integers(0, 37), max_size=5).map(sorted), seed=st.integers(0, 100))
def test_streaming_over_any_batches_equals_the_whole(cuts, seed):
    prediction, target = sample(seed)
    for name in ("accuracy", "top5", "iou", "dice"):
        whole = batches(scores.score(name), prediction, target, [])
        assert batches(scores.score(name), prediction, target, cuts) == whole
    values = np.random.default_rng(seed).standard_normal((2, 37, 3)) * 100
    for name in ("rmse", "mae"):
        whole = batches(scores.score(name), *values, [])
        assert batches(scores.score(name), *values, cuts) == pytest.approx(whole, rel=1e-14)


def test_the_mean_of_batch_means_would_be_another_number():
    prediction = np.eye(2)[[0, 0, 0, 1]]
    target = np.array([0, 0, 0, 0])
    accuracy = scores.Accuracy()
    assert batches(accuracy, prediction, target, [3]) == 0.75
    assert np.mean([1.0, 0.0]) == 0.5


def test_confusion_iou_and_dice_equal_sklearn():
    prediction, target = sample(3, n=9, classes=5, shape=(4, 6))
    flat = prediction.argmax(axis=1).ravel()
    matrix = reference.confusion_matrix(target.ravel(), flat, labels=range(5))
    assert np.array_equal(scores.confusion_matrix(prediction, target), matrix)
    assert np.array_equal(scores.confusion_matrix(prediction.argmax(axis=1), target, classes=5), matrix)
    iou, dice = scores.IoU(), scores.Dice()
    for score in (iou, dice):
        score.update(prediction[:4], target[:4])
        score.update(prediction[4:], target[4:])
    per_class = reference.jaccard_score(target.ravel(), flat, average=None)
    assert np.allclose(iou.per_class(), per_class, rtol=1e-14)
    assert iou.value() == pytest.approx(per_class.mean(), rel=1e-14)
    assert np.allclose(dice.per_class(), reference.f1_score(target.ravel(), flat, average=None), rtol=1e-14)


def test_classes_that_do_not_occur_are_nan_and_left_out_of_the_mean():
    target = np.array([0, 0, 1, 1])
    predicted = np.array([0, 1, 1, 1])
    iou = scores.IoU(classes=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iou.update(predicted, target)
        per_class = iou.per_class()
    assert np.allclose(per_class[:2], [1 / 2, 2 / 3])
    assert np.isnan(per_class[2:]).all()
    assert iou.value() == pytest.approx((1 / 2 + 2 / 3) / 2)
    # Predicted but never true: it does occur, with IoU 0.
    iou.update(np.array([3]), np.array([0]))
    assert iou.per_class()[3] == 0


def test_deviations_equal_sklearn():
    a, b = np.random.default_rng(0).standard_normal((2, 11, 4))
    assert scores.rmse(a, b) == pytest.approx(math.sqrt(reference.mean_squared_error(a, b)), rel=1e-14)
    assert scores.mae(a, b) == pytest.approx(reference.mean_absolute_error(a, b), rel=1e-14)


def test_deviations_of_float32_and_integers_are_accumulated_in_float64():
    a = np.full((1000,), 3e38, np.float32)
    assert scores.rmse(a, -a) == pytest.approx(6e38, rel=1e-6)
    assert scores.mae(np.array([0], np.uint8), np.array([255], np.uint8)) == 255


def test_nan_scores_count_as_wrong():
    prediction = np.array([[np.nan, 1.0, 0.0], [5.0, 1.0, 0.0]])
    target = np.array([0, 0])
    assert prediction.argmax(axis=1)[0] == 0
    assert scores.accuracy(prediction, target) == 0.5
    assert scores.accuracy(prediction, target, k=2) == 0.5
    counts = scores.Dice()
    counts.update(prediction, target)
    assert counts.missed.tolist() == [1, 0, 0]
    assert counts.per_class()[0] == pytest.approx(2 / 3)


def test_ties_are_ranked_by_class_index_as_argmax_does():
    prediction = np.zeros((3, 3))
    assert scores.accuracy(prediction, np.array([0, 1, 2]), k=1) == pytest.approx(1 / 3)
    for k in (1, 2, 3):
        hits = [scores.accuracy(prediction[:1], np.array([label]), k=k) for label in range(3)]
        assert hits == [float(label < k) for label in range(3)]


def test_ignored_labels_are_in_neither_numerator_nor_denominator():
    prediction, target = sample(4)
    mask = target != 2
    for make in (scores.Accuracy, scores.IoU, scores.Dice):
        with_ignore = make(ignore=255)
        with_ignore.update(prediction, np.where(mask, target, 255))
        only = make()
        only.update(prediction[mask], target[mask])
        assert with_ignore.value() == only.value()


def test_nothing_to_score_is_nan_and_reset_forgets():
    for name in scores.SCORES:
        fresh = scores.score(name)
        assert math.isnan(fresh.value())
    accuracy = scores.Accuracy()
    accuracy.update(np.eye(2), np.array([1, 0]))
    accuracy.reset()
    accuracy.update(np.eye(2), np.array([0, 1]))
    assert accuracy.value() == 1.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scores.accuracy(np.zeros((3, 2)), np.zeros((3, 1), int)), r"\(3, 1\).*\(3,\)"),
        (lambda: scores.accuracy(np.zeros((3, 2)), np.zeros(3)), "integer"),
        (
            lambda: scores.accuracy(np.zeros((3, 2)), np.array([0, 1, 2])),
            "label 2 lies outside 0..1",
        ),
        (lambda: scores.accuracy(np.zeros((3, 2)), np.array([0, -1, 1])), "label -1"),
        (lambda: scores.accuracy(np.zeros((3, 2)), np.zeros(3, int), k=3), "top-3.*2 classes"),
        (lambda: scores.accuracy(np.zeros(3), np.zeros(3, int)), r"\(N, C, ...\)"),
        (lambda: scores.Accuracy(k=0), "k >= 1"),
        (lambda: scores.rmse(np.zeros((3, 1)), np.zeros(3)), r"\(3, 1\).*\(3,\)"),
        (lambda: scores.confusion_matrix(np.zeros(3, int), np.zeros(3, int)), "how many classes"),
        (lambda: scores.confusion_matrix(np.array([4]), np.array([0]), classes=3), "outside 0..2"),
        (lambda: scores.IoU(classes=3).update(np.zeros((2, 4)), np.zeros(2, int)), "4 classes.*3"),
        (lambda: scores.score("acuracy"), "Did you mean 'accuracy'"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()
