"""Affine expressions, guards, injectivity, and tables of positions as affine pieces, against enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.backends.generated.affine import Affine, Guard, affine, indices, injective
from meta500.backends.generated.index_maps import pieces

bounded = settings(max_examples=200, derandomize=True, database=None)
NAMES = ("i", "j", "k")
expressions = st.builds(
    Affine.of, st.dictionaries(st.sampled_from(NAMES), st.integers(-4, 4)), st.integers(-5, 5)
)
sizes = st.fixed_dictionaries({name: st.integers(1, 4) for name in NAMES})


def value(index: Affine, point: dict[str, int]) -> int:
    return index.constant + sum(c * point[a] for a, c in index.terms)


def points(extent: dict[str, int]) -> list[dict[str, int]]:
    ranges = (range(extent[name]) for name in NAMES)
    return [dict(zip(NAMES, p, strict=True)) for p in itertools.product(*ranges)]


@given(a=expressions, b=expressions, factor=st.integers(-3, 3), extent=sizes)
@bounded
def test_arithmetic(a, b, factor, extent) -> None:
    for point in points(extent)[:7]:
        x, y = value(a, point), value(b, point)
        assert value(a + b, point) == x + y and value(a - b, point) == x - y
        assert value(a + 3, point) == x + 3 and value(a * factor, point) == x * factor
        assert value((a * 3).divided(3), point) == x
        assert value(a.substitute({"i": b}), point) == value(a, {**point, "i": y})
    assert all(c for _, c in (a + b).terms) and (a - a) == Affine()


def test_division_is_exact() -> None:
    with pytest.raises(ValueError, match=r"2\*i\+1 is not divisible by 2"):
        Affine.of({"i": 2}, 1).divided(2)


def test_text() -> None:
    assert str(Affine.of({"i": 2, "j": -1, "k": 0}, -3)) == "2*i-j-3"
    assert str(affine(0)) == "0" and str(affine("i")) == "i" and str(affine(-2)) == "-2"
    assert indices(["i", 3, affine("j")]) == (Affine.axis("i"), Affine((), 3), Affine.axis("j"))
    assert str(Guard(Affine.of({"i": 1}, -1), 0, 4)) == "0 <= i-1 < 4"
    assert affine("i").is_axis and not (affine("i") + 1).is_axis and affine("i").coefficient("j") == 0


@given(index=expressions, extent=sizes, low=st.integers(-6, 6), length=st.integers(0, 9))
@bounded
def test_bounds_guards_and_injectivity(index, extent, low, length) -> None:
    values = [value(index, p) for p in points(extent)]
    assert index.bounds(extent) == (min(values), max(values))
    guard = Guard(index, low, low + length)
    inside = [low <= v < low + length for v in values]
    assert guard.always(extent) == all(inside)
    if guard.never(extent):
        assert not any(inside)
    used = {tuple(p[a] for a in index.axes) for p in points(extent)}
    distinct = {value(index, dict.fromkeys(NAMES, 0) | dict(zip(index.axes, p, strict=True))) for p in used}
    if injective(index, extent):
        assert len(distinct) == len(used)
    elif len(index.axes) <= 1:
        assert len(distinct) < len(used)


def test_injective_accepts_mixed_radix_numbers() -> None:
    assert injective(Affine.of({"i": 2, "r": 1}), {"i": 5, "r": 2})
    assert injective(Affine.of({"i": -6, "r": 2, "q": 1}, 7), {"i": 5, "r": 3, "q": 2})
    assert not injective(Affine.of({"i": 1, "r": 1}), {"i": 5, "r": 2})


def rebuilt(found, length: int, columns: int = 1) -> np.ndarray:
    result = np.full((length, columns), -1)
    for piece in found:
        axes = piece.axes("x")
        for point in itertools.product(*(range(n) for n in axes.values())):
            at = dict(zip(axes, point, strict=True))
            place = value(piece.place("x"), at)
            assert (result[place] == -1).all()
            result[place] = [value(piece.source("x", c), at) for c in range(columns)]
    return result


@given(table=st.lists(st.integers(0, 9), min_size=1, max_size=14), label=st.booleans())
@bounded
def test_pieces_are_the_table(table, label) -> None:
    labels = [n % 2 for n in table] if label else None
    found = pieces(table, labels, limit=99)
    assert np.array_equal(rebuilt(found, len(table))[:, 0], table)
    columns = np.array([table, table[::-1]]).T
    assert np.array_equal(rebuilt(pieces(columns, limit=99), len(table), 2), columns)


@pytest.mark.parametrize(
    ("table", "count"),
    [
        (np.arange(12) // 3, 1), (np.tile(np.arange(4), 3), 1), (np.arange(9)[::-2], 1), ([2, 2, 2], 1), ([5], 1),
        (np.pad(np.arange(6), (2, 3), mode="reflect"), 3), (np.pad(np.arange(5), (2, 2), mode="edge"), 3),
        (np.arange(9) * 2 // 3, 3), (np.arange(30) // 2 * 2, 1),
    ],
)  # fmt: skip
def test_regular_tables_have_few_pieces(table, count) -> None:
    assert len(pieces(table)) == count


def test_irregular_tables_have_none() -> None:
    assert pieces(np.random.default_rng(0).permutation(60)) is None


def test_long_tables_are_cut_as_well() -> None:
    """Many positions: they do not go one by one."""
    table = np.arange(100_000) * 3 // 7
    found = pieces(table)
    assert len(found) == 7 and np.array_equal(rebuilt(found, len(table))[:, 0], table)
    assert pieces(np.random.default_rng(0).permutation(100_000)) is None
