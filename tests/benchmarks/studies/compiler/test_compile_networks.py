"""Whole networks with a compiler that changes nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from meta500.benchmarks.studies.compiler import Settings, plan
from meta500.benchmarks.studies.compiler.networks import measure_first_network, measure_network
from meta500.benchmarks.studies.compiler.settings import NETWORKS
from meta500.benchmarks.studies.select import one, select
from meta500.metrics.rows import Row

pytest.importorskip("torch")

QUICK = Settings(quick=True, modes=("default",), threads=1)


def unchanged(function: Callable[..., Any], mode: str) -> Callable[..., Any]:
    """A compiler that changes nothing."""
    return function


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("squeezenet1_1", "googlenet") else pytest.param(name, marks=pytest.mark.slow)
        for name in NETWORKS
    ],
)
def test_rows_of_a_network(name: str) -> None:
    rows: list[Row] = []
    measure_network(QUICK, name, rows.append, compile=unchanged)
    assert [(row.quantity, row.mode) for row in rows] == [
        ("time", "eager"),
        ("error", "default"),
        ("time", "default"),
        ("ratio", "default"),
    ]
    assert {(row.model, row.shape, row.batch) for row in rows} == {(name, "1x3x64x64", 1)}
    times = select(rows, quantity="time")
    assert {row.verdict for row in times} == {"ok"}
    # Single precision: neither exact nor wrong.
    assert all(row.error is not None and 0 < row.error < 1e-4 for row in times)
    apart = one(rows, quantity="error")
    assert apart is not None and apart.value == 0


def test_first_calls_of_a_network() -> None:
    def call(work: Any, mode: str, device: str, settings: Settings) -> float:
        assert work == {"kind": "network", "name": "alexnet"}
        return 0.5 if mode == "eager" else 9.0

    rows: list[Row] = []
    measure_first_network(QUICK, "alexnet", ["eager", "default"], rows.append, call=call)
    assert {(row.mode, row.value, row.model, row.phase) for row in rows} == {
        ("eager", 0.5, "alexnet", "end to end"),
        ("default", 9.0, "alexnet", "end to end"),
    }


@pytest.mark.parametrize("quick", [True, False])
def test_the_interpreted_first_call_has_a_process_of_its_own(quick: bool) -> None:
    settings = Settings(quick=quick, parts=("networks",), networks=("alexnet",), modes=("default",))
    keys = [piece.key for piece in plan(settings).pieces]
    assert keys == ["network-alexnet", "first-network-alexnet-eager", "first-network-alexnet-default"]
    without = Settings(quick=True, parts=("networks",))
    assert [piece.key for piece in plan(without).pieces] == ["network-alexnet"]
