"""The main job (``meta500 bench``): layers, networks, and training to 97 %, into one run folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meta500.benchmarks.protocol import PROTOCOLS, Protocol, version, who_from
from meta500.errors import UserError
from meta500.metrics.clocks import clock_overhead
from meta500.metrics.rows import Row, to_json_line
from meta500.metrics.run import RunFolder

TARGET_ACCURACY = 0.97


@dataclass(frozen=True)
class Sizes:
    """How large the parts of the main job are."""

    layer: dict[str, int]
    unet: dict[str, int]
    memory: bool
    compile: bool
    epochs: int


SIZES = {
    "quick": Sizes({"batch": 1, "size": 64, "channels": 8}, {"batch": 2, "size": 64}, False, False, 15),
    "normal": Sizes({"batch": 4, "size": 128, "channels": 8}, {"batch": 4, "size": 256}, True, True, 30),
    "full": Sizes({"batch": 8, "size": 512, "channels": 8}, {"batch": 8, "size": 512}, True, True, 30),
}


def run(
    *,
    parts: Sequence[str],
    size: str = "normal",
    threads: int | None = None,
    device: str = "cpu",
    seed: int = 0,
    out: Path | None = None,
    as_json: bool = False,
) -> bool:
    """Run the chosen parts, write the run folder with its plots, print tables.

    Args:
        parts: of "layers", "networks", "training".
        size: "quick", "normal" or "full".
        threads: of every backend; None for all cores that this process may use.
        device: of the torch backend.
        seed: of weights, data and sampling.
        out: the run folder.
        as_json: print the rows as JSON lines instead of tables.

    Returns:
        Whether anything was wrong, failed, or missed the target accuracy. A missing C++ compiler is no
        failure: the generated backend is then left out, and the tables say so.
    """
    from meta500.benchmarks.tables import console as make_console
    from meta500.benchmarks.tables import measurement_table, overhead_table
    from meta500.benchmarks.training import announce
    from meta500.metrics.plots import plots_from_run

    threads = threads if threads is not None else len(os.sched_getaffinity(0))
    if threads < 1:
        raise UserError(f"--threads must be at least 1, got {threads}")
    _check_device(device)
    console = make_console(stderr=as_json)
    sizes, protocol = SIZES[size], PROTOCOLS[size]
    rows: list[Row] = []
    with RunFolder.create(out, command=sys.argv, seeds={"seed": seed}) as folder:
        folder.info |= {"size": size, "threads": threads, "device": device}
        announce(folder)

        def emit(row: Row) -> None:
            folder.append(row)
            rows.append(row)
            if as_json:
                sys.stdout.write(to_json_line(replace(row, run_id=folder.id)))

        _emit_clock(emit)
        backends = _Backends(threads, device)
        jobs = {
            "layers": lambda step: _layers(sizes, protocol, backends, seed, emit, step),
            "networks": lambda step: _networks(sizes, protocol, backends, seed, emit, step),
        }
        for part in ("layers", "networks"):
            if part not in parts:
                continue
            begin = len(rows)
            with _progress(part) as step:
                jobs[part](step)
            backends.say_missing(part, emit)
            found = rows[begin:]
            overhead = [r for r in found if "overhead" in r.protocol]
            others = [r for r in found if "overhead" not in r.protocol]
            title = "Layers of the U-Net" if part == "layers" else "Networks"
            console.print(measurement_table(title, others))
            if overhead:
                console.print(overhead_table(overhead))
        missed = "training" in parts and _training(sizes, backends, seed, folder, console)
        if as_json:
            for row in folder.rows[len(rows) :]:
                sys.stdout.write(to_json_line(row))
    plots = plots_from_run(folder.path)
    bad = [r for r in rows if r.verdict in ("wrong", "failed")]
    for row in bad:
        console.print(f"{row.verdict}: {row.node or row.model} {row.phase} {row.backend}: {row.note}")
    if backends.missing:
        console.print(f"generated: not measured: {backends.missing}", soft_wrap=True, markup=False)
    console.print(f"Results: {folder.path} ({len(plots)} plots in plots/)", highlight=False, soft_wrap=True)
    return bool(bad) or missed


class _Backends:
    """The backends that are compared.

    Attributes:
        threads, device: of all of them, and of torch.
        missing: why the generated backend is left out; "" if it is not.
    """

    def __init__(self, threads: int, device: str) -> None:
        self.threads, self.device = threads, device
        self.missing = compiler_problem(threads)

    def options(self, compiled: bool) -> list[dict[str, Any]]:
        """Options of every network; the first one is the baseline of the ratios.

        Args:
            compiled: whether torch's compile mode is among them.
        """
        eager = {"backend": "torch", "threads": self.threads, "device": self.device}
        chosen: list[dict[str, Any]] = [eager]
        if compiled:
            chosen.append({**eager, "mode": "compile"})
        chosen.append({"backend": "numpy", "threads": self.threads})
        return chosen if self.missing else [*chosen, {"backend": "generated", "threads": self.threads}]

    def say_missing(self, part: str, emit: Callable[[Row], None]) -> None:
        """One row, and so one line of the table, where the generated backend is left out."""
        if self.missing:
            who: dict[str, Any] = who_from({"backend": "generated", "threads": self.threads})
            level = 0 if part == "layers" else 1
            why: dict[str, Any] = {"value": None, "verdict": "unsupported", "note": self.missing}
            emit(Row(level=level, model="everything", quantity="time", unit="s", **why, **who))


def compiler_problem(threads: int) -> str:
    """Why nothing can be compiled for the generated backend; "" where nothing speaks against it."""
    from meta500.backends.compiler import compiler, has_openmp, no_openmp

    try:
        compiler()
        return "" if threads == 1 or has_openmp() else no_openmp()
    except UserError as problem:
        return str(problem)


def _layers(
    sizes: Sizes,
    protocol: Protocol,
    backends: _Backends,
    seed: int,
    emit: Callable[[Row], None],
    step: Callable[[str], None],
) -> None:
    from meta500.benchmarks.layers import measure_layers, unet_layers

    layers = unet_layers(**sizes.layer, seed=seed)
    measure_layers(layers, backends.options(compiled=False), protocol, emit, step)


def _networks(
    sizes: Sizes,
    protocol: Protocol,
    backends: _Backends,
    seed: int,
    emit: Callable[[Row], None],
    step: Callable[[str], None],
) -> None:
    from meta500.benchmarks.networks import measure_networks, measure_overhead
    from meta500.benchmarks.subjects import prepared

    subjects = [
        prepared("unet", {"n": 0, **sizes.unet}, seed),
        prepared("digits_cnn", {"batch": 64}, seed),
    ]
    measure_networks(subjects, backends.options(sizes.compile), protocol, emit, step, sizes.memory)
    measure_overhead(subjects, protocol, emit, backends.threads, backends.device, step)


def _training(sizes: Sizes, backends: _Backends, seed: int, folder: RunFolder, console: Any) -> bool:
    """Train the digits CNN with both Adams on every backend; True when one missed the target."""
    from meta500.benchmarks.training import Setup, train, training_table
    from meta500.metrics.tickers import ProgressTicker

    runs = []
    for options in reversed(backends.options(compiled=False)):
        backend = options["backend"]
        for native in (False, True):
            setup = Setup(
                backend=backend,
                native=native,
                epochs=sizes.epochs,
                seed=seed,
                target_accuracy=TARGET_ACCURACY,
                backend_options={k: v for k, v in options.items() if k != "backend"},
            )
            runs.append((setup, train(setup, folder, [ProgressTicker()])))
    console.print(training_table(runs))
    return any(summary.status == "failed" or not summary.reached for _, summary in runs)


def _emit_clock(emit: Callable[[Row], None]) -> None:
    """What the clock itself adds to a sample."""
    cost = clock_overhead()
    emit(
        Row(
            level=0,
            phase="clock",
            quantity="clock_overhead",
            unit="s",
            value=cost.value,
            low=cost.low,
            high=cost.high,
            confidence=cost.confidence,
            backend="python",
            note="seconds that measuring adds to one sample",
        )
    )


def _check_device(device: str) -> None:
    if device != "cpu":
        if not version("torch"):
            raise UserError(f"--device {device} needs PyTorch")
        from meta500.backends.torch.ambient import parse_device

        parse_device(device)


@contextmanager
def _progress(title: str) -> Iterator[Callable[[str], None]]:
    """A spinner with the current piece of work, on a terminal; nothing elsewhere."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(title) as status:
        yield lambda text: status.update(f"{title}: {text}")
