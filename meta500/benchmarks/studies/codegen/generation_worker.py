"""The process that generates and compiles the code of one network, step by step with a clock around each.

It runs for as long as rounds are asked for, so that imports and the tables of lowering rules, which a process
loads once, are in none of the times.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from meta500.backends.generated import cpp
from meta500.backends.generated.forms import joined
from meta500.backends.generated.library import build
from meta500.backends.generated.network import GeneratedNetwork
from meta500.backends.generated.schedule import Schedule, schedule
from meta500.backends.network import network
from meta500.benchmarks.generation import forms
from meta500.benchmarks.workers import serve
from meta500.graph import TensorType
from meta500.models import create

LOWERING, SCHEDULING, PRINTING, COMPILING = "lowering", "scheduling", "printing", "compiling"
GENERATING = (LOWERING, SCHEDULING, PRINTING)
STEPS = (*GENERATING, COMPILING)

_state: dict[str, Any] = {}


def make(order: Mapping[str, Any]) -> dict[str, int]:
    """Make the network of which all other orders speak.

    Args:
        order: "model" and "model_options" as for ``meta500.models.create``; "threads".

    Returns:
        "parameters": how many numbers are trained.
    """
    model = create(order["model"], **order["model_options"])
    shapes = {}
    for name, value in model.inputs.items():
        assert isinstance(value, TensorType) and value.shape is not None
        shapes[name] = tuple(int(size) for size in value.shape if isinstance(size, int))
    net = network(model, backend="generated", threads=order["threads"])
    assert isinstance(net, GeneratedNetwork)
    _state.update(net=net, form=forms.training(net, shapes, "adam"))
    return {"parameters": sum(model.graph.initializers[p].size for p in model.parameters)}


def generate(order: Mapping[str, Any]) -> dict[str, float]:
    """Generate the code of the training step with Adam, and compile it if asked to.

    Args:
        order: "cache": folder of the compiled code, which is compiled anew only if it is not in there; "" to
            leave the compiler out.

    Returns:
        Seconds of each of :data:`STEPS`; those of the compiler less what it takes to print the code again.
    """
    found: dict[str, float] = {}
    net: GeneratedNetwork = _state["net"]
    with _clock(found, LOWERING):
        stages = net.stages(_state["form"])
    with _clock(found, SCHEDULING):
        planned, parameters, gradients = _scheduled(net, stages)
    with _clock(found, PRINTING):
        cpp.sources(planned)
    if order["cache"]:
        os.environ["META500_CACHE"] = order["cache"]
        with _clock(found, COMPILING):
            build(planned, net.target, parameters, gradients)
        found[COMPILING] = max(found[COMPILING] - found[PRINTING], 0.0)
    return found


def planned_memory(order: Mapping[str, Any]) -> dict[str, int]:
    """Bytes that the plan of memory needs.

    Returns:
        "arenas": of the step's own memory; "handed": of the arrays that are handed over, parameters,
        gradients and moments of the optimizer among them, but not the inputs.
    """
    net: GeneratedNetwork = _state["net"]
    planned, _, _ = net.planned(_state["form"])
    handed = 0
    for name in planned.external:
        tensor = planned.program.tensors[name]
        if name not in net.model.inputs:
            kind = net.real if tensor.dtype == "real" else np.dtype(tensor.dtype)
            handed += int(np.prod(tensor.shape, dtype=np.int64)) * kind.itemsize
    return {"arenas": planned.total_bytes, "handed": handed}


def _scheduled(net: GeneratedNetwork, stages: Any) -> tuple[Schedule, str, str]:
    fused = joined(stages, _state["form"], net.packing, net._with_zeros, net.real.itemsize)
    program, parameters, gradients = fused
    return schedule(program, net._schedule_options()), parameters, gradients


@contextmanager
def _clock(found: dict[str, float], step: str) -> Iterator[None]:
    begin = time.perf_counter()
    yield
    found[step] = time.perf_counter() - begin


def main() -> None:
    """Serve until the parent is done."""
    serve({"make": make, "generate": generate, "planned_memory": planned_memory})


if __name__ == "__main__":
    main()
