"""Runs a written program through ExaStencils and compares it with the numpy backend."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meta500.backends.generated.exaslang.files import GENERATED, PROGRAM
from meta500.backends.generated.exaslang.generator import generate, run_in
from meta500.backends.generated.exaslang.training import TRAINED
from meta500.backends.generated.exaslang.variant import CUDA, Variant
from meta500.benchmarks.generation.command import Prepared
from meta500.benchmarks.generation.config import Config
from meta500.benchmarks.generation.exaslang_files import Written
from meta500.benchmarks.generation.exaslang_reference import (
    Losses,
    compare,
    conclude,
    print_losses,
    reference,
)
from meta500.errors import UserError
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder

# Of losses and weights after a training, relative to numpy in the same precision.
LIMITS = {"float64": 1e-9, "float32": 5e-3}
_NUMBER = r"[-+0-9.eEinfa]+"
_LINE = re.compile(rf"epoch (\d+) (training|validation)_loss ({_NUMBER})")
_TIMER = re.compile(rf"Timer training:\s+({_NUMBER})")


@dataclass(frozen=True)
class Ran:
    """What a program did.

    Attributes:
        losses: that it printed, and the weights that it saved.
        seconds: of "code generation", "compilation" and "run".
        steps: seconds that all training steps took, by the program's own clock.
    """

    losses: Losses
    seconds: dict[str, float]
    steps: float


def run(out: Path, prepared: Prepared, config: Config, variant: Variant, written: Written) -> None:
    """Run the program of a folder and compare it; rows go to a new folder below ``runs``.

    Raises:
        UserError: the generator is missing, a step failed, or the results differ.
    """
    found = through_exastencils(out, variant, written)
    limit = LIMITS[config.precision]
    worst, faults = compare(
        found.losses, reference(prepared, config, variant, written, config.precision), limit
    )
    print_losses(found.losses)
    for what, seconds in found.seconds.items():
        sys.stdout.write(f"{what}: {seconds:.1f} s\n")
    with RunFolder.create(None, command=sys.argv, seeds={"seed": config.seed}) as folder:
        for row in _rows(found, prepared, config, variant, written, worst, not faults):
            folder.append(row)
        sys.stdout.write(f"Results: {folder.path}\n")
    conclude(worst, faults, config.precision)


def through_exastencils(out: Path, variant: Variant, written: Written) -> Ran:
    """Generate, compile and run the program of a folder.

    Raises:
        UserError: the generator or a compiler is missing, or a step failed; the message has its last lines.
    """
    if variant.parallel == CUDA and shutil.which("nvcc") is None:
        raise UserError("--run with cuda needs nvcc")
    (name,) = (n.removesuffix(".exa4") for n in written.files if n.endswith(".exa4"))
    seconds = {}
    shutil.rmtree(out / GENERATED, ignore_errors=True)
    begin = time.perf_counter()
    generate(out, name)
    seconds["code generation"] = time.perf_counter() - begin
    begin = time.perf_counter()
    run_in(out, ["make", f"-j{len(os.sched_getaffinity(0))}", "-C", GENERATED])
    seconds["compilation"] = time.perf_counter() - begin
    command = [f"./{GENERATED}/{PROGRAM}"]
    if variant.mpi:
        command = ["mpiexec", "-n", str(variant.processes), *command]
    (out / TRAINED).unlink(missing_ok=True)
    begin = time.perf_counter()
    text = run_in(out, command)
    seconds["run"] = time.perf_counter() - begin
    losses: dict[str, list[float]] = {"training": [], "validation": []}
    for _, part, number in _LINE.findall(text):
        losses[part].append(float(number))
    timer = _TIMER.search(text)
    weights = written.trained.parts(np.fromfile(out / TRAINED, "<f8"))
    steps = float(timer.group(1)) * 1e-3 if timer else float("nan")
    return Ran(Losses(losses["training"], losses["validation"], weights), seconds, steps)


def _rows(
    found: Ran,
    prepared: Prepared,
    config: Config,
    variant: Variant,
    written: Written,
    worst: float,
    good: bool,
) -> list[Row]:
    mode = f"{variant.parallel}, pixels {variant.pixels}" + (", optimized" if variant.optimize else "")
    common = {
        "level": 2,
        "model": prepared.subject.model.name,
        "dtype": config.precision,
        "batch": written.batch,
        "optimizer": config.optimizer,
        "dataset": prepared.train.name,
        "backend": "exastencils",
        "mode": mode,
        "threads": variant.threads,
        "ranks": variant.processes,
        "device": "cuda:0" if variant.parallel == CUDA else "cpu",
        "seed": config.seed,
        "protocol": "alone",
    }
    steps = written.training.epochs * written.training.batches
    rows = [
        Row(**common, phase=what, quantity="time", unit="s", value=seconds)  # type: ignore[arg-type]
        for what, seconds in found.seconds.items()
    ]
    rows.append(
        Row(
            **common,  # type: ignore[arg-type]
            phase="training_step",
            quantity="time",
            unit="s",
            value=found.steps / steps,
            repeats=steps,
            error=worst,
            error_norm="max_relative",
            tolerance=LIMITS[config.precision],
            verdict="ok" if good else "wrong",
        )
    )
    return rows
