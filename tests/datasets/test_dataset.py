"""Dataset: what it stores, gives out, splits and refuses."""

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.datasets import Dataset
from meta500.errors import UserError


def make(samples=12, classes=3, **more):
    labels = np.arange(samples, dtype=np.int64) % classes
    image = np.arange(samples * 6, dtype=np.float32).reshape(samples, 2, 3)
    names = tuple("abcdefghij"[:classes])
    return Dataset("toy", {"image": image, "label": labels}, classes=names, **more)


def test_batch_gives_the_samples_asked_for():
    data = make()
    batch = data.batch([7, 0, 7])
    assert set(batch) == {"image", "label"}
    np.testing.assert_array_equal(batch["image"], data.inputs["image"][[7, 0, 7]])
    np.testing.assert_array_equal(batch["label"], [1, 0, 1])
    assert batch["image"].dtype == np.float32 and batch["image"].flags.c_contiguous


def test_stored_arrays_are_out_of_reach():
    mine = np.zeros((4, 2), np.float32)
    view = mine[:]
    view.flags.writeable = False
    data = Dataset("toy", {"x": mine, "y": view}, label=None)
    mine[:] = 1
    assert data.inputs["x"].sum() == 0 and data.inputs["y"].sum() == 0
    with pytest.raises(ValueError, match="read-only"):
        data.inputs["x"][0] = 1
    batch = data.batch([0, 1])
    batch["x"] += 5
    assert data.inputs["x"].sum() == 0
    for part in data.split(0.5):
        assert not part.inputs["x"].flags.writeable


def test_transposed_input_is_stored_contiguous():
    data = Dataset("toy", {"x": np.arange(6.0).reshape(2, 3).T}, label=None)
    assert data.inputs["x"].flags.c_contiguous
    np.testing.assert_array_equal(data.batch([2])["x"], [[2.0, 5.0]])


@pytest.mark.parametrize("again", [copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))])
def test_copies_are_equal_and_read_only(again):
    data = make(licence="free", default_loss="cross_entropy")
    other = again(data)
    assert (other.name, other.label, other.classes, other.licence, other.default_loss) == (
        (data.name, data.label, data.classes, data.licence, data.default_loss)
    )
    np.testing.assert_array_equal(other.inputs["image"], data.inputs["image"])
    assert not other.inputs["image"].flags.writeable


@pytest.mark.parametrize(
    "indices, message",
    [
        ([12], r"index 12 is outside 0\.\.11"),
        ([3, -1], "index -1 is outside"),
        ([], "non-empty"),
        ([0.5], "float64"),
        ([[0, 1]], r"\(1, 2\)"),
        ([True, False], "bool"),
    ],
)
def test_batch_refuses(indices, message):
    with pytest.raises(UserError, match=message):
        make().batch(indices)


@pytest.mark.parametrize(
    "inputs, options, message",
    [
        ({}, {}, "no inputs"),
        ({"x": np.zeros((0, 2))}, {"label": None}, "no samples"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, {"label": None}, "unequal length: 'x' 3, 'y' 4"),
        ({"x": np.float32(1)}, {"label": None}, "scalar"),
        ({"x": np.array(["a", "b"])}, {"label": None}, "numbers are needed"),
        ({"x": np.zeros(3)}, {}, "no input 'label'.*one of x"),
        ({"label": np.zeros(3)}, {}, "integer class numbers, not float64"),
        ({"label": np.array([0, 3])}, {"classes": ("a", "b")}, r"holds 3, outside 0\.\.1"),
        ({"label": np.array([0, -1])}, {}, "holds -1"),
        ({"label": np.array([0, 5])}, {"classes": ("a",), "default_loss": "mse"}, "holds 5"),
        ({"label": np.array([0, 1])}, {"default_loss": "hinge"}, "cross_entropy, mse"),
        ({"label": np.zeros((3, 0), int)}, {}, "no label in it"),
    ],
)
def test_constructor_refuses(inputs, options, message):
    with pytest.raises(UserError, match=message):
        Dataset("toy", inputs, **options)


def test_cast_changes_floating_arrays_only():
    data = make()
    double = data.cast("float64")
    assert double.inputs["image"].dtype == np.float64
    assert double.inputs["label"].dtype == np.int64
    assert data.inputs["image"].dtype == np.float32
    np.testing.assert_array_equal(double.inputs["image"], data.inputs["image"])


def test_cast_refuses_overflow_and_other_dtypes():
    data = Dataset("toy", {"x": np.array([1e6, np.inf])}, label=None)
    with pytest.raises(UserError, match="'x' reaches 1e\\+06, more than float16"):
        data.cast(np.float16)
    assert np.isinf(data.cast(np.float32).inputs["x"][1])
    for dtype in ("int32", "nonsense"):
        with pytest.raises(UserError, match="float16, float32"):
            data.cast(dtype)


@given(
    labels=st.lists(st.integers(0, 4), min_size=2, max_size=60),
    fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**40),
    stratified=st.booleans(),
)
def test_split_is_disjoint_complete_and_repeatable(labels, fraction, seed, stratified):
    size = len(labels)
    data = Dataset("toy", {"id": np.arange(size), "label": np.array(labels)})
    expected = int(np.floor(size * fraction + 0.5))
    if expected in (0, size):
        with pytest.raises(UserError, match="set empty"):
            data.split(fraction, seed, stratified=stratified)
        return
    train, test = data.split(fraction, seed, stratified=stratified)
    assert len(test) == expected
    ids = np.concatenate([train.inputs["id"], test.inputs["id"]])
    assert sorted(ids) == list(range(size))
    for part in (train, test):
        np.testing.assert_array_equal(part.inputs["label"], np.array(labels)[part.inputs["id"]])
        assert (np.diff(part.inputs["id"]) > 0).all()
    if stratified:
        for label in set(labels):
            share = (test.inputs["label"] == label).sum() - labels.count(label) * fraction
            assert abs(share) < 1 + 1e-9
    again = data.split(fraction, seed, stratified=stratified)
    np.testing.assert_array_equal(again[1].inputs["id"], test.inputs["id"])


def test_stratified_split_gives_the_rest_to_the_largest_remainder():
    # 0.3 of (10, 5) is (3, 1.5), and 4.5 samples round to 5.
    data = Dataset("toy", {"label": np.repeat([0, 1], [10, 5])})
    _, test = data.split(0.3, stratified=True)
    assert np.bincount(test.inputs["label"]).tolist() == [3, 2]


def test_split_depends_on_the_seed():
    data = make(40)
    chosen = {tuple(data.split(0.5, seed)[1].inputs["image"][:, 0, 0]) for seed in range(8)}
    assert len(chosen) == 8


@pytest.mark.parametrize("fraction", [0, 1, 1.5, -0.1, float("nan"), True, "half"])
def test_split_refuses_fractions_outside_the_open_interval(fraction):
    with pytest.raises(UserError, match="strictly between 0 and 1"):
        make().split(fraction)


@pytest.mark.parametrize("seed", [-1, 0.5, None])
def test_split_refuses_seeds(seed):
    with pytest.raises(UserError, match="seed must be an integer of at least 0"):
        make().split(0.5, seed)


def test_stratified_split_needs_one_integer_label_per_sample():
    pixels = Dataset("toy", {"label": np.zeros((4, 2, 2), np.int64)})
    with pytest.raises(UserError, match=r"one integer label.*\(4, 2, 2\)"):
        pixels.split(0.5, stratified=True)
    with pytest.raises(UserError, match="found none"):
        Dataset("toy", {"x": np.zeros(4)}, label=None).split(0.5, stratified=True)
