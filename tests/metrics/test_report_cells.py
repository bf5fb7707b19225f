"""Cells: numbers have the digits that their intervals justify, and units that make them short."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.report.cells import Cell, Column, DataTable, number_cell, one_line, slug, unit_for

NAN = math.nan


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (1.23456, 1.2, 1.31, "1.235 [1.200, 1.310]"),
        (1.23456, None, None, "1.235"),
        (1.0, 1.0, 1.0, "1"),
        (5.0, 4.0, 6.0, "5.0 [4.0, 6.0]"),
        (0.6649, 0.4825, 31.957, "0.66 [0.48, 32]"),
        (425.3, 358.1, 32000.0, "425 [358, 32000]"),
        (1234567.0, None, None, "1234567"),
        (12345678.9, None, None, "1.235e7"),
        (1.5e-7, 1.4e-7, 1.7e-7, "1.50e-7 [1.40e-7, 1.70e-7]"),
        (0.0, -1.0, 2.0, "0 [-1.0, 2.0]"),
        (-0.5, -0.75, 0.0, "-0.50 [-0.75, 0]"),
        (NAN, None, None, "NaN"),
        (math.inf, None, None, "∞"),
        (-math.inf, 1.0, 2.0, "-∞"),
        (2.0, 1.0, math.inf, "2"),
        (None, None, None, ""),
    ],
)
def test_numbers_have_the_digits_that_their_interval_justifies(value, low, high, expected):
    assert number_cell(value, low, high).text == expected


finite = st.floats(1e-12, 1e12)


@given(finite, finite, finite)
def test_texts_of_intervals_are_near_their_numbers(a, b, c):
    low, value, high = sorted((a, b, c))
    cell = number_cell(value, low, high)
    assert (cell.value, len(cell.text) < 45) == (value, True)
    if low == high:
        assert (cell.low, cell.high) == (None, None)
        return
    shown, rest = cell.text.split(" [")
    ends = rest.removesuffix("]").split(", ")
    assert (cell.low, cell.high) == (low, high)
    nearest = min(x for x in (value - low, high - value) if x > 0)
    # Half of the last of two digits of a distance is at most 5 % of it, or the number has at least two of its own.
    for text, number, distance in (
        (shown, value, nearest),
        (ends[0], low, value - low or nearest),
        (ends[1], high, high - value or nearest),
    ):
        assert abs(float(text) - number) <= max(0.051 * distance, 1e-6 * number)


@given(st.floats(1e-30, 1e30))
def test_numbers_without_an_interval_are_right_to_four_digits(value):
    assert float(number_cell(value).text) == pytest.approx(value, rel=5.1e-4)


@given(st.integers(-(10**14), 10**14))
def test_wholes_are_exact(number):
    assert int(number_cell(float(number)).text) == number


@pytest.mark.parametrize(
    ("unit", "values", "factor", "name"),
    [
        ("s", [0.002, 0.003, None, NAN], 1e3, "ms"),
        ("s", [2.0], 1, "s"),
        ("s", [3e-10], 1e9, "ns"),
        ("s", [0.0], 1, "s"),
        ("B", [2e6], 1e-6, "MB"),
        ("FLOP/s", [3e9], 1e-9, "GFLOP/s"),
        ("1", [1e-9], 1, ""),
        ("samples/s", [1e9], 1, "samples/s"),
    ],
)
def test_units_make_numbers_short(unit, values, factor, name):
    found = unit_for(unit, values)
    assert found == (pytest.approx(factor), name)


def test_names_of_files_and_texts_on_one_line():
    assert slug("Time", 0, "forward+backward", "", "torch eager") == "time-0-forward-backward-torch-eager"
    assert slug("é") == "table"
    assert one_line(" a\r\n b\tc\0 ") == "a b c?"


def test_a_table_whose_lines_do_not_fit_its_columns_is_an_error():
    with pytest.raises(UserError, match="table 'x': a row has 2 cells, there are 1 columns"):
        DataTable("x", "x", (Column("a"),), ((Cell("1"), Cell("2")),))
