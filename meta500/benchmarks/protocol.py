"""What the benchmarks share: how long to measure, and the columns that say who ran."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from meta500.backends.network import Network, network
from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Model
from meta500.metrics.clocks import Timing
from meta500.metrics.rows import Row
from meta500.metrics.statistics import ratio_interval

# Rest before a sample where different libraries share the cores; longer than OpenBLAS's threads spin.
SETTLE_SECONDS = 0.13

Emit = Callable[[Row], None]


@dataclass(frozen=True)
class Protocol:
    """How long one group of functions is measured against each other; see ``metrics.clocks.interleave``.

    Seconds are those of the whole group, all functions together.
    """

    warmup: int
    min_repeats: int
    min_seconds: float
    max_seconds: float

    def limits(self) -> dict[str, Any]:
        """The keyword arguments of ``interleave``."""
        return asdict(self)


QUICK = Protocol(warmup=1, min_repeats=7, min_seconds=0.1, max_seconds=6.0)
NORMAL = Protocol(warmup=2, min_repeats=11, min_seconds=0.4, max_seconds=20.0)
FULL = Protocol(warmup=3, min_repeats=25, min_seconds=5.0, max_seconds=600.0)
PROTOCOLS = {"quick": QUICK, "normal": NORMAL, "full": FULL}


def who(network: Network) -> dict[str, Any]:
    """The columns of a row that say which implementation ran."""
    return {
        "backend": network.backend,
        "mode": network.mode,
        "version": version(network.backend),
        "threads": network.threads,
        "device": network.device,
        "ranks": 1,
    }


def who_from(options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of :func:`who` from the options of a network alone."""
    return {
        "backend": options["backend"],
        "mode": options.get("mode", "eager") if options["backend"] == "torch" else "",
        "version": version(options["backend"]),
        "threads": options.get("threads"),
        "device": options.get("device", "cpu"),
        "ranks": 1,
    }


def version(package: str) -> str:
    """Version of an installed package; empty when the backend is no package of its own.

    Of the generated backend: meta500's, and the compiler's first line.
    """
    if package == "generated":
        import meta500

        return f"{meta500.__version__}, {_compiler()}"
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _compiler() -> str:
    from meta500.backends.compiler import compiler, compiler_version

    try:
        return compiler_version(compiler()).splitlines()[0]
    except (UserError, IndexError):
        return "no C++ compiler"


def label(row_or_columns: Row | Mapping[str, Any]) -> str:
    """Name of an implementation in tables and plots: backend and, where it has several, mode."""
    columns = asdict(row_or_columns) if isinstance(row_or_columns, Row) else row_or_columns
    return " ".join(part for part in (columns.get("backend"), columns.get("mode")) if part)


def made(
    model: Model, backends: Sequence[Mapping[str, Any]], refused: Callable[[Mapping[str, Any], str], None]
) -> list[Network]:
    """The networks of those backends that run ``model``.

    Args:
        model: the network.
        backends: options for :func:`meta500.network`, ``backend`` among them.
        refused: called with the options and the reason where a backend refuses.

    Raises:
        UserError: the first backend, which the others are compared with, refuses.
    """
    found = []
    for place, options in enumerate(backends):
        try:
            found.append(network(model, **options))
        except UnsupportedOperation as refusal:
            if not place:
                raise
            refused(options, str(refusal))
    return found


def ratio_row(timing: Timing, base: Timing, baseline: str, **what: Any) -> Row | None:
    """The row "ratio" of two functions timed in the same rounds; None when one of them failed.

    Pairs are formed round by round, so what slows a whole round down cancels.
    """
    count = min(len(timing.samples), len(base.samples))
    if timing.failure is not None or base.failure is not None or not count:
        return None
    interval = ratio_interval(timing.samples[:count], base.samples[:count])
    return Row(
        quantity="ratio",
        unit="1",
        baseline=baseline,
        repeats=count,
        samples=tuple(a / b for a, b in zip(timing.samples[:count], base.samples[:count], strict=True)),
        **asdict(interval),
        **what,
    )


def shape_text(shapes: Sequence[Sequence[int]]) -> str:
    """Shapes in words: "8x16x64x64 * 32x16x3x3"."""
    return " * ".join("x".join(str(d) for d in shape) if shape else "scalar" for shape in shapes)
