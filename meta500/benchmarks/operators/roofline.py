"""The machine's measured roofline: how fast it multiplies, and how fast it moves data.

S. Williams, A. Waterman and D. Patterson, Roofline (Communications of the ACM 52, 2009): an operator with F
operations on B bytes is bounded by min(peak, F / B * bandwidth). Both are measured on this machine with the
number of threads that the operators get, and never assumed:

- peak: a large square matrix product through PyTorch and through numpy's BLAS, by element type;
- bandwidth: STREAM's copy and triad (J. McCalpin, 1995) on arrays several times larger than the last-level
  cache, 2 and 3 arrays of traffic (write-allocate does not count), through PyTorch (all threads) and numpy
  (one thread).

A roof is the best of all samples: what is above it has not been seen on this machine. All samples stand in
the rows, so that the spread is seen. Data that fit a cache are moved faster than from memory; a share above 1
of the bandwidth then means just that. The rows say so, see ``meta500.benchmarks.operators.timing``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import SETTLE_SECONDS, version
from meta500.errors import UserError
from meta500.metrics.clocks import measure
from meta500.metrics.rows import Row

PHASE = "roofline"
PEAK, BANDWIDTH, CACHE = "peak", "bandwidth", "last_level_cache"
FLOP_RATE, BYTE_RATE = "FLOP/s", "B/s"

PRODUCT_SIZE = 2048
STREAM_BYTES = 128 * 2**20
CACHE_MULTIPLE = 4
# Types that numpy multiplies by its BLAS; half precision would go through a plain loop.
_BLAS_TYPES = ("float32", "float64")


@dataclass(frozen=True)
class Roof:
    """One measured limit.

    ``quantity`` is :data:`PEAK` or :data:`BANDWIDTH`, ``what`` the kernel, ``dtype`` its element type ("" for
    bandwidths), ``samples`` are rates in FLOP/s or B/s.
    """

    quantity: str
    what: str
    library: str
    dtype: str
    threads: int
    samples: tuple[float, ...]

    @property
    def best(self) -> float:
        """The highest rate of all samples."""
        return max(self.samples)

    def row(self) -> Row:
        """The row of this limit; value is the best, the note tells the spread."""
        unit = FLOP_RATE if self.quantity == PEAK else BYTE_RATE
        middle, lowest = float(np.median(self.samples)), min(self.samples)
        spread = f"best of {len(self.samples)}; median {middle:.4g}, lowest {lowest:.4g}"
        return Row(
            level=0,
            phase=PHASE,
            quantity=self.quantity,
            unit=unit,
            node=self.what,
            dtype=self.dtype,
            backend=self.library,
            version=version(self.library),
            threads=self.threads,
            device="cpu",
            protocol="alone",
            repeats=len(self.samples),
            samples=self.samples,
            value=self.best,
            note=spread,
        )


@dataclass(frozen=True)
class Roofline:
    """All limits of one machine and number of threads.

    ``cache`` is the size of the last-level cache in bytes, None where it is unknown.
    """

    roofs: tuple[Roof, ...]
    threads: int
    cache: int | None = None

    def peak(self, dtype: str) -> float | None:
        """Best rate of a product of this element type, FLOP/s; None if none was measured."""
        rates = [r.best for r in self.roofs if r.quantity == PEAK and r.dtype == dtype]
        return max(rates, default=None)

    @property
    def bandwidth(self) -> float | None:
        """Best rate of moving data from and to memory, B/s."""
        return max((r.best for r in self.roofs if r.quantity == BANDWIDTH), default=None)

    def limit(self, dtype: str, intensity: float) -> float | None:
        """min(peak, intensity * bandwidth) in FLOP/s; None where a limit is unknown."""
        peak, bandwidth = self.peak(dtype), self.bandwidth
        return None if peak is None or bandwidth is None else min(peak, intensity * bandwidth)

    def share(self, dtype: str, flops: float, nbytes: float, seconds: float) -> float | None:
        """Time that the roofline allows over the time that was needed.

        Above 1 where data come from a cache, where fewer operations were done than counted (Winograd), or
        where the machine was slower while its limits were measured.

        The allowed time is max(flops / peak, bytes / bandwidth), so movements (0 operations) have one too.
        """
        peak, bandwidth = self.peak(dtype), self.bandwidth
        if bandwidth is None or (peak is None and flops) or seconds <= 0:
            return None
        least = max(flops / peak if peak else 0.0, nbytes / bandwidth)
        return least / seconds if least else None

    def bound(self, dtype: str, flops: float, nbytes: float) -> str:
        """Which limit allows less speed: :data:`PEAK` or :data:`BANDWIDTH`."""
        peak, bandwidth = self.peak(dtype), self.bandwidth
        return PEAK if peak and bandwidth and flops / peak > nbytes / bandwidth else BANDWIDTH

    def fits_cache(self, nbytes: float) -> bool:
        """Whether a working set of this size fits the last-level cache."""
        return self.cache is not None and nbytes <= self.cache

    def rows(self) -> list[Row]:
        """The rows of all limits, and of the cache's size."""
        rows = [roof.row() for roof in self.roofs]
        if self.cache is not None:
            size: dict[str, Any] = {
                "quantity": CACHE,
                "unit": "B",
                "value": float(self.cache),
                "device": "cpu",
            }
            rows.append(Row(level=0, phase=PHASE, threads=self.threads, **size))
        return rows


def last_level_cache(environment: Mapping[str, Any]) -> int | None:
    """Size in bytes of the largest cache that ``meta500.metrics.machine.environment`` found."""
    sizes = environment.get("cpu", {}).get("caches_bytes") or {}
    return max(sizes.values(), default=None)


def measure_roofline(
    threads: int,
    dtypes: Iterable[str] = ("float32",),
    *,
    cache: int | None = None,
    product_size: int = PRODUCT_SIZE,
    stream_bytes: int | None = None,
    min_repeats: int = 5,
    min_seconds: float = 0.2,
) -> Roofline:
    """Measure the limits of this machine; some seconds.

    Args:
        threads: of both libraries.
        dtypes: element types of the products: "float16" (PyTorch only), "float32", "float64".
        cache: size of the last-level cache in bytes, if known.
        product_size: rows and columns of the matrices.
        stream_bytes: size of one array of copy and triad; by default 128 MiB, or 4 times the cache if that is
            more.
        min_repeats, min_seconds: how long each limit is measured, at least.

    Raises:
        UserError: numbers that are not positive, or an unknown element type.
    """
    if threads < 1 or product_size < 1 or min_repeats < 1:
        raise UserError(
            f"threads {threads}, product_size {product_size} and min_repeats {min_repeats} must be at least 1"
        )
    if stream_bytes is None:
        import psutil

        # Three arrays are alive at once; on a machine with a huge cache and little memory they shrink, and
        # the rows say how large they were.
        room = int(psutil.virtual_memory().available) // 8
        stream_bytes = min(max(STREAM_BYTES, CACHE_MULTIPLE * (cache or 0)), room)
    how: dict[str, Any] = {"min_repeats": min_repeats, "min_seconds": min_seconds}
    roofs: list[Roof] = []

    def add(quantity: str, what: str, dtype: str, amount: float, run: Callable[[], Any]) -> None:
        timing = measure(run, warmup=2, max_seconds=20.0, **how)
        rates = tuple(amount / s for s in timing.samples)
        roofs.append(Roof(quantity, what, library, dtype, threads, rates))

    for library, limited in (("torch", torch_threads), ("numpy", _numpy_threads)):
        if not version(library):
            continue
        # The other library's threads may still be spinning.
        time.sleep(SETTLE_SECONDS if threads > 1 else 0)
        with limited(threads):
            for dtype in dtypes:
                if library == "numpy" and dtype not in _BLAS_TYPES:
                    continue
                product = _PRODUCTS[library](product_size, dtype)
                name = f"product {product_size} x {product_size}"
                add(PEAK, name, dtype, 2.0 * product_size**3, product)
            _measure_streams(library, stream_bytes, add)
    if not roofs:
        raise UserError("neither torch nor numpy is installed: the roofline cannot be measured")
    return Roofline(tuple(roofs), threads, cache)


def _measure_streams(library: str, nbytes: int, add: Callable[..., None]) -> None:
    """Copy and triad of one library, on arrays of ``nbytes``, which are freed at the end."""
    elements = max(1, nbytes // 8)
    for what, (moved, run) in _STREAMS[library](elements).items():
        add(BANDWIDTH, f"{what}, arrays of {nbytes / 2**20:.3g} MiB", "", 8.0 * moved * elements, run)


def from_rows(rows: Sequence[Row]) -> Roofline | None:
    """The roofline that a run folder's rows hold; None if they hold none."""
    found = [r for r in rows if r.phase == PHASE]
    roofs = tuple(
        Roof(r.quantity, r.node, r.backend, r.dtype, r.threads or 1, r.samples)
        for r in found
        if r.quantity in (PEAK, BANDWIDTH) and r.samples
    )
    if not roofs:
        return None
    cache = next((int(r.value) for r in found if r.quantity == CACHE and r.value), None)
    return Roofline(roofs, roofs[0].threads, cache)


def _torch_product(n: int, dtype: str) -> Callable[[], Any]:
    import torch

    kinds = {"float16": torch.float16, "float32": torch.float32, "float64": torch.float64}
    if dtype not in kinds:
        raise UserError(f"the roofline has no product of '{dtype}'; choose one of: {', '.join(kinds)}")
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn((n, n), generator=generator).to(kinds[dtype]) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out)


def _numpy_product(n: int, dtype: str) -> Callable[[], Any]:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in range(2))
    out = np.empty_like(a)
    return lambda: np.matmul(a, b, out=out)


def _torch_streams(n: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Copy and triad on arrays of n float64: how many arrays each one moves, and the function."""
    import torch

    # Filled, not only allocated: pages that were never written all are the same page of zeros.
    a, b, c = (torch.full((n,), float(i), dtype=torch.float64) for i in range(3))
    return {"copy": (2, lambda: a.copy_(b)), "triad": (3, lambda: torch.add(b, c, alpha=3.0, out=a))}


def _numpy_streams(n: int) -> dict[str, tuple[int, Callable[[], Any]]]:
    """Copy and sum on arrays of n float64; numpy has no triad in one pass."""
    a, b, c = (np.full(n, float(i)) for i in range(3))
    return {"copy": (2, lambda: np.copyto(a, b)), "sum": (3, lambda: np.add(b, c, out=a))}


_PRODUCTS: dict[str, Callable[[int, str], Callable[[], Any]]] = {
    "torch": _torch_product,
    "numpy": _numpy_product,
}
_STREAMS: dict[str, Callable[[int], dict[str, tuple[int, Callable[[], Any]]]]] = {
    "torch": _torch_streams,
    "numpy": _numpy_streams,
}


@contextmanager
def torch_threads(threads: int) -> Any:
    """PyTorch with this number of threads, and its own again afterwards."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _numpy_threads(threads: int) -> Any:
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=threads, user_api="blas"):
        yield
