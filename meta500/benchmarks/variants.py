"""Who is compared in processes of their own: the generated backend, plain PyTorch, ExaStencils."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meta500.benchmarks.protocol import version
from meta500.errors import choose

GENERATED, PLAIN_TORCH, EXASTENCILS = "generated", "plain PyTorch", "exastencils"
INSTALLED, TUNED = "as installed", "tuned"
# One call for all parameters: torch.optim.Adam(fused=True), or the end of the generated step.
ADAM = "adam (fused)"

# What somebody does who knows that PyTorch's time goes into page faults of activations that were just mapped:
# freed memory is kept by the process, and comes in huge pages.
_KEPT = str(1 << 34)
TUNED_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": _KEPT,
    "MALLOC_TRIM_THRESHOLD_": _KEPT,
    "MALLOC_TOP_PAD_": str(1 << 28),
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}


@dataclass(frozen=True)
class Variant:
    """One implementation of inference and training step.

    Attributes:
        name: on the command line.
        backend, mode: columns of its rows.
        channels_last, compiled: how plain PyTorch runs.
        environment: variables of its process.
        optimizer: of its training step, as rows name it.
    """

    name: str
    backend: str
    mode: str = ""
    channels_last: bool = False
    compiled: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    optimizer: str = ADAM

    @property
    def tuned(self) -> bool:
        """Whether its allocator is the expert's."""
        return TUNED_ENVIRONMENT.items() <= self.environment.items()

    def columns(self, threads: int) -> dict[str, Any]:
        """The columns of a row that say who ran."""
        package = "torch" if self.backend == PLAIN_TORCH else self.backend
        return {
            "backend": self.backend,
            "mode": self.mode,
            "version": version(package),
            "threads": threads,
            "device": "cpu",
            "ranks": 1,
        }

    def job(self, threads: int) -> dict[str, Any]:
        """What its worker has to know of it."""
        return {
            "backend": self.backend,
            "channels_last": self.channels_last,
            "compiled": self.compiled,
            "threads": threads,
        }


def _torch_variants(tuned: bool) -> list[Variant]:
    ways = {
        "eager": (False, False),
        "channels-last": (True, False),
        "compile": (False, True),
        "compile-channels-last": (True, True),
    }
    found = []
    for way, (channels_last, compiled) in ways.items():
        name = f"{way}-tuned" if tuned else way
        mode = way.replace("compile-", "compile, ") + (f", {TUNED}" if tuned else "")
        environment = TUNED_ENVIRONMENT if tuned else {}
        found.append(Variant(name, PLAIN_TORCH, mode, channels_last, compiled, environment))
    return found


# The generated backend with the toolchain "exastencils"; its optimizer is the reference Adam.
_EXASTENCILS = Variant(EXASTENCILS, EXASTENCILS, optimizer="adam (reference)")
_ALL = (Variant("generated", GENERATED), *_torch_variants(False), *_torch_variants(True), _EXASTENCILS)
VARIANTS = {variant.name: variant for variant in _ALL}


def variants(names: Sequence[str] | None, tuned: bool) -> list[Variant]:
    """The variants of these names; the generated backend first, since the ratios are to it.

    Args:
        names: None for all, the tuned ones among them where ``tuned`` is set, ExaStencils not.
        tuned: whether all includes the tuned ones.

    Raises:
        UserError: an unknown name.
    """
    if names is None:
        return [v for v in VARIANTS.values() if (tuned or not v.tuned) and v.backend != EXASTENCILS]
    chosen = {choose("variant", name, VARIANTS) for name in names} | {"generated"}
    return [v for name, v in VARIANTS.items() if name in chosen]
