"""Matrix products over sizes, interpreted against compiled, and by NumPy (section 5.3, figure 5.1)."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta500.benchmarks.protocol import SETTLE_SECONDS, Emit, ratio_row, shape_text, version
from meta500.benchmarks.studies.compiler.fresh import NUMPY, FirstCall, emit_first_calls, first_call
from meta500.benchmarks.studies.compiler.modes import (
    BASELINE,
    INTERLEAVED,
    Compile,
    Work,
    compare_modes,
    compiled,
    conditions,
    synchronizing,
    who,
)
from meta500.benchmarks.studies.compiler.settings import DEFAULT, EAGER, Settings, on_cuda
from meta500.metrics.clocks import interleave
from meta500.metrics.norms import compare, tolerance
from meta500.metrics.rows import Row

PHASE = "product"
QUICK_SIZES = (64, 256, 1024)
SIZES = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
# The thesis goes to 17,500, which a CPU takes half a minute for.
CUDA_SIZES = (*SIZES, 8192, 17500)
# With compile time, in a fresh process each.
QUICK_FIRST_SIZES = (64, 1024)
FIRST_REPEATS = 3


def sizes(settings: Settings, device: str) -> tuple[int, ...]:
    """Rows and columns of the square matrices, rising."""
    return QUICK_SIZES if settings.quick else CUDA_SIZES if on_cuda(device) else SIZES


def first_sizes(settings: Settings, device: str) -> tuple[int, ...]:
    """Those of which the first call is measured as well."""
    return QUICK_FIRST_SIZES if settings.quick else sizes(settings, device)


def columns(size: int) -> dict[str, Any]:
    """The columns of a row that say which product."""
    return {
        "level": 0,
        "operator": "MatMul",
        "phase": PHASE,
        "node": f"size {size}",
        "shape": shape_text([(size, size), (size, size)]),
        "dtype": "float32",
    }


def matrices(size: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Two seeded (size, size) float32 matrices."""
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    return a, b


def product(size: int, device: str, seed: int) -> Work:
    """The product of two square matrices in PyTorch, without its exact result."""
    import torch

    def multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    return Work(multiply, [torch.from_numpy(m).to(device) for m in matrices(size, seed)], terms=size)


def measure_product(
    settings: Settings, size: int, device: str, emit: Emit, *, compile: Compile = compiled
) -> None:
    """Rows of one size: PyTorch interpreted and compiled in every mode, and on the CPU NumPy."""
    work = product(size, device, settings.seed)
    a, b = matrices(size, settings.seed)
    work = Work(work.function, work.inputs, a.astype(np.float64) @ b.astype(np.float64), size)
    what = columns(size)
    with conditions(settings, device):
        compare_modes(work, settings.chosen_modes, settings, emit, what, device=device, compile=compile)
        if device == "cpu":
            _measure_numpy(work, (a, b), settings, emit, what)


def _measure_numpy(
    work: Work, operands: tuple[Any, Any], settings: Settings, emit: Emit, what: dict[str, Any]
) -> None:
    """NumPy against interpreted PyTorch: with rests, since each has threads that spin for a while."""
    from threadpoolctl import threadpool_limits

    a, b = operands
    exact = work.exact
    assert exact is not None
    threads = who(settings, EAGER, "cpu")["threads"]
    with threadpool_limits(limits=threads, user_api="blas"):
        norms = compare(a @ b, exact)
        limit = tolerance(a.dtype, work.terms)
        timings = interleave(
            {NUMPY: lambda: a @ b, EAGER: work.call(work.function)},
            settle=SETTLE_SECONDS,
            synchronize=synchronizing("cpu"),
            **settings.protocol.limits(),
        )
    columns = {**what, **who(settings, "", "cpu"), "backend": NUMPY, "version": version(NUMPY)}
    columns["protocol"] = f"{INTERLEAVED}, with rests"
    judged: dict[str, Any] = {
        "error": norms.max_relative,
        "error_norm": "max_relative",
        "tolerance": limit,
        "verdict": norms.verdict(limit),
    }
    for row in timings[NUMPY].rows(**columns, **judged):
        if row.quantity == "time":
            emit(row)
    ratio = ratio_row(timings[NUMPY], timings[EAGER], BASELINE, **columns)
    if ratio is not None and judged["verdict"] == "ok":
        emit(ratio)


def measure_first_product(
    settings: Settings, size: int, device: str, emit: Emit, *, call: FirstCall = first_call
) -> None:
    """Rows "first_call" of one size, each from fresh processes: interpreted, compiled, and NumPy."""
    work = {"kind": PHASE, "size": size}
    modes = [EAGER, *([DEFAULT] if settings.quick else settings.chosen_modes)]
    if device == "cpu":
        modes.append(NUMPY)
    repeats = 1 if settings.quick else FIRST_REPEATS
    emit_first_calls(work, modes, repeats, settings, device, emit, columns(size), call)


def emit_missing_cuda(settings: Settings, emit: Emit) -> None:
    """A row "unsupported" where PyTorch finds no CUDA device, on which the thesis measured as well."""
    import torch

    if torch.cuda.is_available():
        return
    with conditions(settings, "cpu"):
        emit(
            Row(
                level=0,
                operator="MatMul",
                phase=PHASE,
                quantity="time",
                unit="s",
                value=None,
                verdict="unsupported",
                note="PyTorch finds no CUDA device on this machine",
                **who(settings, EAGER, "cuda"),
            )
        )
