"""Numbers of tables."""

from meta500.benchmarks.tables import interval, timed
from meta500.metrics.rows import Row


def row(**fields):
    return Row(level=1, quantity="time", unit="s", value=0.025, low=0.025, high=0.025, **fields)


def test_a_single_sample_has_no_interval():
    assert timed(row(confidence=0.0, repeats=1)) == "25.0 ms" and interval(row(confidence=0.0)) == "0.025"
    assert timed(row(confidence=0.98)) == "25.0 [25.0, 25.0] ms"
    assert interval(row(confidence=0.98)) == "0.0250 [0.0250, 0.0250]"
