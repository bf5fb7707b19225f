"""The rows of the study by what they measured: cases, variants, and comparisons that may be trusted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from meta500.benchmarks.step_worker import TRAINING
from meta500.benchmarks.studies.codegen.epochs import EPOCH_RATE
from meta500.benchmarks.studies.codegen.layer_times import STOPWATCHES
from meta500.benchmarks.studies.select import select
from meta500.benchmarks.tables import interval
from meta500.benchmarks.variants import GENERATED, PLAIN_TORCH
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval

_BAD = ("wrong", "failed", "unsupported")


@dataclass(frozen=True, order=True)
class Case:
    """One network, batch, precision and number of threads."""

    dtype: str
    batch: int
    model: str
    threads: int

    @staticmethod
    def of(row: Row) -> Case:
        return Case(row.dtype, row.batch or 0, row.model, row.threads or 0)

    @property
    def title(self) -> str:
        """The network, its batch, and the precision if it is not single."""
        words = f"{network_title(self.model)}, batch {self.batch}"
        return words if self.dtype == "float32" else f"{words}, double precision"


def network_title(model: str) -> str:
    """ "unet-2" as "U-Net(2)"."""
    return f"U-Net({model.removeprefix('unet-')})"


def variant_title(row: Row) -> str:
    """ "generated", or PyTorch's way of running."""
    return GENERATED if row.backend == GENERATED else f"PyTorch {row.mode}"


def trusted(row: Row) -> bool:
    """Whether a row has a number, and of a result that is not known to be wrong."""
    return row.value is not None and row.verdict not in _BAD


def training_cases(rows: Iterable[Row]) -> list[Case]:
    """All cases of training steps, in order."""
    return sorted({Case.of(row) for row in select(rows, quantity=EPOCH_RATE, phase=TRAINING)})


def headline_cases(rows: Sequence[Row]) -> list[Case]:
    """Of each network, batch and precision the case with the most threads."""
    most: dict[tuple[str, int, str], Case] = {}
    for case in training_cases(rows):
        most[case.dtype, case.batch, case.model] = case
    return list(most.values())


def rates(rows: Iterable[Row], case: Case) -> list[Row]:
    """Epochs per second of all variants in a case, wrong and unsupported ones too."""
    return [row for row in select(rows, quantity=EPOCH_RATE, phase=TRAINING) if Case.of(row) == case]


def step_times(rows: Iterable[Row], case: Case) -> list[Row]:
    """Times of training steps of a case, without those that had stopwatches in them."""
    found = select(rows, quantity="time", phase=TRAINING)
    return [row for row in found if Case.of(row) == case and row.mode != STOPWATCHES]


def slowdown(rows: Sequence[Row], case: Case, mode: str) -> Row | None:
    """How many times the generated step PyTorch's takes; None if it is unknown, or one of them is wrong."""
    good = {(row.backend, row.mode) for row in rates(rows, case) if trusted(row)}
    if (GENERATED, "") not in good or (PLAIN_TORCH, mode) not in good:
        return None
    found = select(rows, quantity="ratio", phase=TRAINING, backend=PLAIN_TORCH, mode=mode)
    return next((row for row in reversed(found) if Case.of(row) == case), None)


def fastest_torch(rows: Sequence[Row], case: Case) -> Row | None:
    """The rate of PyTorch's fastest variant whose results agree."""
    good = [row for row in rates(rows, case) if row.backend == PLAIN_TORCH and trusted(row)]
    return max(good, key=lambda row: row.value or 0.0, default=None)


def ours(rows: Sequence[Row], case: Case) -> Row | None:
    """The rate of the generated code, if its results are right."""
    return next((r for r in rates(rows, case) if r.backend == GENERATED and trusted(r)), None)


def in_words(found: Row | Interval) -> str:
    """A number with its interval."""
    if isinstance(found, Row):
        return interval(found)
    return interval(Row(level=1, quantity="ratio", unit="1", **asdict(found)))


def listed(words: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""
