"""Rows of the study with known numbers."""

from types import SimpleNamespace

import pytest

from meta500.benchmarks.operators.roofline import BANDWIDTH, PEAK, Roof
from meta500.benchmarks.studies.codegen.generation import columns_of
from meta500.benchmarks.studies.codegen.settings import Point
from meta500.benchmarks.variants import VARIANTS
from meta500.metrics import Row

CONFIDENCE = 0.97
UNITS = {"time": "s", "first_call": "s", "ratio": "1", "epoch_rate": "epochs/s", "kernel_time": "s"}
UNITS |= {"peak_memory": "B", "memory_before": "B", "planned_memory": "B", "parameters": "1", "flops": "FLOP"}
UNITS |= {"layer_time": "s", "layer_share": "1", "convolution_share": "1", "arithmetic": "FLOP"}
UNITS |= {"bytes_read": "B", "bytes_written": "B", "traffic_read": "B", "traffic_written": "B"}
UNITS |= {"light_speed": "epochs/s", "light_share": "1", "stopwatch_cost": "1", "predicted_peak": "B"}


def point(n=0, batch=8, dtype="float32", threads=2, size=512):
    return Point(n, size, batch, dtype, threads)


def row(variant, quantity, value, where=None, spread=0.02, **more):
    """A row of a variant with an interval of ``spread`` to either side."""
    what = {**columns_of(where or point()), **VARIANTS[variant].columns((where or point()).threads)}
    numbers = {"value": value, "confidence": CONFIDENCE}
    if value is not None:
        numbers |= {"low": value * (1 - spread), "high": value * (1 + spread)}
    unit = UNITS[quantity]
    return Row(**{**what, "quantity": quantity, "unit": unit, **numbers, **more})


def race(where, generated, **torch):
    """Rates of the generated code and of PyTorch's variants, with the ratios that follow."""
    rows = [row("generated", "epoch_rate", generated, where, verdict="ok", error=1e-7, tolerance=1e-4)]
    rows.append(row("generated", "time", where.batch / 128 / generated, where))
    for name, rate in torch.items():
        variant = name.replace("_", "-")
        rows.append(row(variant, "epoch_rate", rate, where))
        rows.append(row(variant, "time", where.batch / 128 / rate, where))
        rows.append(row(variant, "ratio", generated / rate, where, baseline="generated"))
    return rows


def timed(phase, seconds, where):
    """A time of generation, with its samples."""
    return row("generated", "time", seconds, where, phase=phase, samples=tuple([seconds] * 6))


def convolution(quantity, value, node="encoder1.conv1", variant="generated", **more):
    what = {"phase": "forward", "operator": "Conv", "node": node, "optimizer": ""}
    return row(variant, quantity, value, point(3, 64), **{**what, **more})


def roofs(peak, bandwidth):
    """Limits whose best and median are ``peak`` and ``bandwidth``."""
    best = (
        Roof(PEAK, "product", "torch", "float32", 2, (peak,) * 3),
        Roof(BANDWIDTH, "copy", "torch", "", 2, (bandwidth,) * 3),
    )
    return [roof.row() for roof in best]


@pytest.fixture(scope="session")
def synthetic():
    """The functions of this file; pytest's import mode has no folder of it on the path."""
    functions = (point, row, race, timed, convolution, roofs)
    return SimpleNamespace(**{function.__name__: function for function in functions})
