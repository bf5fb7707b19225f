"""The measured roofline, its rows, and the shares that are taken of it."""

import math

import numpy as np
import pytest

from meta500.benchmarks.operators import roofline, timing
from meta500.benchmarks.operators.counts import Counts
from meta500.benchmarks.operators.roofline import BANDWIDTH, PEAK, Roof, Roofline, measure_roofline
from meta500.errors import UserError
from meta500.metrics.clocks import Timing

MACHINE = Roofline(
    (
        Roof(PEAK, "product", "numpy", "float32", 1, (80e9, 100e9, 60e9)),
        Roof(PEAK, "product", "torch", "float32", 1, (90e9,)),
        Roof(PEAK, "product", "torch", "float64", 1, (50e9,)),
        Roof(BANDWIDTH, "copy", "torch", "", 1, (18e9, 20e9)),
    ),
    threads=1,
    cache=1000,
)


def test_limits_are_the_best_samples():
    assert MACHINE.peak("float32") == 100e9
    assert MACHINE.peak("float64") == 50e9
    assert MACHINE.peak("float16") is None
    assert MACHINE.bandwidth == 20e9
    # The ridge is at 5 FLOP/B: below it memory bounds, above it arithmetic.
    assert MACHINE.limit("float32", 1.0) == 20e9
    assert MACHINE.limit("float32", 5.0) == 100e9
    assert MACHINE.limit("float32", 50.0) == 100e9
    assert MACHINE.limit("float16", 1.0) is None


def test_share_is_allowed_time_over_needed_time():
    # 1e9 operations take 10 ms at the peak, 1e6 bytes take 0.05 ms.
    assert MACHINE.share("float32", 1e9, 1e6, 0.02) == pytest.approx(0.5, rel=1e-12)
    assert MACHINE.bound("float32", 1e9, 1e6) == PEAK
    # 1e9 bytes take 50 ms.
    assert MACHINE.share("float32", 1e6, 1e9, 0.1) == pytest.approx(0.5, rel=1e-12)
    assert MACHINE.bound("float32", 1e6, 1e9) == BANDWIDTH
    # Movements have a limit as well, whatever their type.
    assert MACHINE.share("int8", 0, 2e9, 0.2) == pytest.approx(0.5, rel=1e-12)
    assert MACHINE.share("float16", 1e9, 1e6, 0.02) is None
    assert MACHINE.share("float32", 0, 0, 0.02) is None


def rates(flops, nbytes, seconds):
    found = timing.rate_rows(Timing(0.1, (), (seconds,) * 5), Counts(flops, nbytes), MACHINE, "float32")
    return {row["quantity"]: row for row in found}


def test_rates_are_amount_over_median_with_interval():
    found = timing.rate_rows(
        Timing(0.1, (0.3,), tuple(0.01 * k for k in range(1, 12))), Counts(6e6, 3e6), MACHINE, "float32"
    )
    by_name = {row["quantity"]: row for row in found}
    assert by_name["flop_rate"]["value"] == pytest.approx(6e6 / 0.06, rel=1e-12)
    assert by_name["byte_rate"]["value"] == pytest.approx(3e6 / 0.06, rel=1e-12)
    assert by_name["roofline_share"]["value"] == pytest.approx(3e6 / 20e9 / 0.06, rel=1e-12)
    for row in found:
        assert row["low"] < row["value"] < row["high"]
        assert (row["warmup"], row["repeats"]) == (1, 11)


def test_a_share_above_one_says_why():
    assert rates(1e9, 1e6, 0.02)["roofline_share"]["note"] == ""
    arithmetic = rates(1e9, 1e3, 0.005)["roofline_share"]
    assert arithmetic["value"] == pytest.approx(2)
    assert arithmetic["note"] == timing.ABOVE[PEAK]
    memory = rates(1e6, 1e9, 0.025)["roofline_share"]
    assert memory["note"] == timing.ABOVE[BANDWIDTH]
    # A cache lifts the limit of the memory, not that of arithmetic.
    cached = rates(10, 900, 1e-9)["roofline_share"]
    assert cached["value"] > 1
    assert cached["note"] == timing.IN_CACHE
    assert rates(1_000_000, 900, 1.0)["roofline_share"]["note"] == ""


def test_measured_limits_have_plausible_spread_and_survive_rows():
    found = measure_roofline(
        1,
        ("float32", "float64"),
        cache=2**20,
        product_size=128,
        stream_bytes=2**20,
        min_repeats=3,
        min_seconds=0,
    )
    kinds = {(r.quantity, r.library, r.dtype) for r in found.roofs}
    assert {(PEAK, lib, t) for lib in ("numpy", "torch") for t in ("float32", "float64")} <= kinds
    assert {(BANDWIDTH, lib, "") for lib in ("numpy", "torch")} <= kinds
    for roof in found.roofs:
        assert len(roof.samples) >= 3
        assert all(1e6 < rate < 1e15 for rate in roof.samples)
    rows = found.rows()
    assert {row.unit for row in rows} == {"FLOP/s", "B/s", "B"}
    assert any("1 MiB" in row.node for row in rows)
    assert roofline.from_rows(rows) == found
    assert roofline.from_rows([]) is None


def test_streams_move_what_they_are_said_to_move():
    """2 arrays for a copy, 3 for triad and sum; the results show that every element was written."""
    for library in ("numpy", "torch"):
        for what, (arrays, run) in roofline._STREAMS[library](1000).items():
            result = np.asarray(run() if library == "torch" else _last(run))
            assert arrays == (2 if what == "copy" else 3)
            assert np.unique(result).tolist() == [{"copy": 1.0, "triad": 7.0, "sum": 3.0}[what]]


def _last(run):
    """numpy's streams write to the first of their arrays, a."""
    run()
    cells = dict(zip(run.__code__.co_freevars, run.__closure__, strict=True))
    return cells["a"].cell_contents


def test_impossible_requests_are_refused():
    with pytest.raises(UserError, match="threads 0"):
        measure_roofline(0)
    with pytest.raises(UserError, match="float8"):
        measure_roofline(1, ("float8",), product_size=8, stream_bytes=64, min_repeats=1, min_seconds=0)


def test_cache_is_the_largest_one():
    environment = {"cpu": {"caches_bytes": {"L1d": 32768, "L2": 2**20, "L3": 2**25}}}
    assert roofline.last_level_cache(environment) == 2**25
    assert roofline.last_level_cache({}) is None
    assert MACHINE.fits_cache(1000)
    assert not MACHINE.fits_cache(1001)
    assert not Roofline(MACHINE.roofs, 1, None).fits_cache(1)
    assert math.isclose(MACHINE.roofs[0].best, 100e9)
