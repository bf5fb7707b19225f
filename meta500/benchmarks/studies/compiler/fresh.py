"""First calls in fresh processes with empty caches: what a user waits for when a program compiles for the
first time.

``python -m meta500.benchmarks.studies.compiler.fresh`` is the process; it takes one order.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import Emit, version
from meta500.benchmarks.studies.compiler.instruments import clocked
from meta500.benchmarks.studies.compiler.settings import EAGER, Settings
from meta500.benchmarks.workers import Worker, WorkerFailed, serve
from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

PROTOCOL = "fresh process"
LIMIT_SECONDS = 1800.0
NUMPY = "numpy"
KINDS = ("product", "network")

# From work, mode, device and settings to the seconds of the first call.
FirstCall = Callable[[Mapping[str, Any], str, str, Settings], float]


def first_call(work: Mapping[str, Any], mode: str, device: str, settings: Settings) -> float:
    """Seconds of the first call in a new process with empty caches of the compiler.

    Nothing else is called in that process: the first use of a library, which takes longer than later ones, is
    part of every first call, compiled or not. Loading PyTorch, making the inputs and, for networks, the
    module are outside of the clock; loading the compiler is inside, since it is loaded when it is first used.

    Args:
        work: "kind" ("product" with "size", or "network" with "name").
        mode: of torch.compile, "eager" or "numpy".
        device: "cpu" or "cuda".
        settings: threads, seed, options of networks.

    Raises:
        WorkerFailed: the process failed; says how.
    """
    with tempfile.TemporaryDirectory(prefix="meta500-compile-") as caches:
        environment = {"TORCHINDUCTOR_CACHE_DIR": caches, "TRITON_CACHE_DIR": f"{caches}/triton"}
        with Worker(__spec__.name, environment, f"first call, {mode}") as worker:
            found = worker.ask(
                "first_call",
                LIMIT_SECONDS,
                work=dict(work),
                mode=mode,
                device=device,
                settings=asdict(settings),
            )
    return float(found)


def emit_first_calls(
    work: Mapping[str, Any],
    modes: Sequence[str],
    repeats: int,
    settings: Settings,
    device: str,
    emit: Emit,
    what: Mapping[str, Any],
    call: FirstCall = first_call,
) -> None:
    """Rows "first_call" of each mode.

    Args:
        work, settings, device: see :func:`first_call`.
        modes: of torch.compile, "eager" and "numpy".
        repeats: processes per mode.
        emit: receives the rows.
        what: columns that say what is called.
        call: runs one process.
    """
    seconds: dict[str, list[float]] = {}
    columns = {
        **what,
        "ranks": 1,
        "device": device,
        "seed": settings.seed,
        "threads": settings.used_threads,
        "quantity": "first_call",
        "unit": "s",
        "protocol": PROTOCOL,
        "warmup": 0,
    }
    failures: dict[str, str] = {}
    for _ in range(repeats):
        for mode in modes:
            if mode in failures:
                continue
            try:
                seconds.setdefault(mode, []).append(call(work, mode, device, settings))
            except WorkerFailed as failure:
                failures[mode] = str(failure)
    for mode, note in failures.items():
        seconds.pop(mode, None)
        emit(Row(**{**columns, **_who(mode)}, value=None, verdict="failed", note=note))
    for mode, samples in seconds.items():
        interval = asdict(median_interval(samples))
        emit(Row(**{**columns, **_who(mode)}, **interval, samples=tuple(samples), repeats=len(samples)))


def _who(mode: str) -> dict[str, str]:
    if mode == NUMPY:
        return {"backend": NUMPY, "mode": "", "version": version(NUMPY)}
    return {"backend": "torch", "mode": mode, "version": version("torch")}


def _answer(order: Mapping[str, Any]) -> float:
    """What the process does."""
    # JSON has no tuples.
    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in order["settings"].items()
    }
    settings = Settings(**given)
    work, mode, device = order["work"], order["mode"], order["device"]
    if work["kind"] not in KINDS:
        raise UserError(f"unknown kind of work '{work['kind']}'; choose one of: {', '.join(KINDS)}")
    if mode == NUMPY:
        return _numpy_seconds(work, settings)
    from meta500.benchmarks.studies.compiler.modes import compiled, conditions, synchronizing

    with conditions(settings, device):
        made = _made(work, device, settings)
        # The first use of a device initialises it, which is no part of a first call.
        wait = synchronizing(device)
        if mode == EAGER:
            return clocked(made.call(made.function), wait)
        return clocked(lambda: compiled(made.function, mode)(*made.inputs), wait)


def _made(work: Mapping[str, Any], device: str, settings: Settings) -> Any:
    if work["kind"] == "product":
        from meta500.benchmarks.studies.compiler.products import product

        return product(work["size"], device, settings.seed)
    from meta500.benchmarks.studies.compiler.networks import vision_network

    return vision_network(work["name"], settings, device)


def _numpy_seconds(work: Mapping[str, Any], settings: Settings) -> float:
    from threadpoolctl import threadpool_limits

    from meta500.benchmarks.studies.compiler.products import matrices

    a, b = matrices(work["size"], settings.seed)
    with threadpool_limits(limits=settings.used_threads, user_api="blas"):
        return clocked(lambda: np.matmul(a, b))


if __name__ == "__main__":
    serve({"first_call": _answer})
    sys.exit(0)
