"""Measuring: events and tickers, the Runner, clocks, statistics, error norms, result rows, plots.

The names below are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta500.metrics import plots, tickers
    from meta500.metrics.clocks import Timer, Timing, clock_overhead, interleave, measure
    from meta500.metrics.comparison import Comparison, compare
    from meta500.metrics.events import RunState, Ticker
    from meta500.metrics.machine import differences, environment
    from meta500.metrics.norms import ErrorNorms, tolerance
    from meta500.metrics.norms import compare as error_norms
    from meta500.metrics.rows import Row, read_csv, read_jsonl, to_frame
    from meta500.metrics.run import RunFolder
    from meta500.metrics.runner import Runner
    from meta500.metrics.statistics import Interval, median_interval, paired_test, ratio_interval

_MODULES = ("plots", "scores", "tickers")
_NAMES = {
    "Comparison": "comparison",
    "ErrorNorms": "norms",
    "Interval": "statistics",
    "Row": "rows",
    "RunFolder": "run",
    "RunState": "events",
    "Runner": "runner",
    "Ticker": "events",
    "Timer": "clocks",
    "Timing": "clocks",
    "clock_overhead": "clocks",
    "compare": "comparison",
    "differences": "machine",
    "environment": "machine",
    "interleave": "clocks",
    "measure": "clocks",
    "median_interval": "statistics",
    "paired_test": "statistics",
    "ratio_interval": "statistics",
    "read_csv": "rows",
    "read_jsonl": "rows",
    "to_frame": "rows",
    "tolerance": "norms",
}

__all__ = [
    "Comparison",
    "ErrorNorms",
    "Interval",
    "Row",
    "RunFolder",
    "RunState",
    "Runner",
    "Ticker",
    "Timer",
    "Timing",
    "clock_overhead",
    "compare",
    "differences",
    "environment",
    "error_norms",
    "interleave",
    "measure",
    "median_interval",
    "paired_test",
    "plots",
    "ratio_interval",
    "read_csv",
    "read_jsonl",
    "tickers",
    "to_frame",
    "tolerance",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"meta500.metrics.{name}")
    if name == "error_norms":
        return importlib.import_module("meta500.metrics.norms").compare
    if name in _NAMES:
        return getattr(importlib.import_module(f"meta500.metrics.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'meta500.metrics' has no attribute '{name}'")
