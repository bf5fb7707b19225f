"""What the rows say about whole vision networks (section 5.5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler.derived import (
    calls,
    grouped,
    inverse,
    missing,
    named,
    paid_back,
    ratios,
    shown_mode,
    within,
    words,
)
from meta500.benchmarks.studies.compiler.networks import PHASE
from meta500.benchmarks.studies.compiler.settings import EAGER, MODES
from meta500.benchmarks.studies.select import one, select
from meta500.metrics.report import Figure, Finding, Section, Table
from meta500.metrics.report.findings import judged
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

# A gain up to this is "minimal", one above it significant.
MINIMAL = 0.1


@dataclass(frozen=True)
class Claim:
    """What the thesis says about a network: "faster", "minimal" or "slower", and its speedup if given."""

    title: str
    kind: str
    speedup: float | None = None

    @property
    def text(self) -> str:
        """In a sentence."""
        if self.kind == "slower":
            return f"{self.title} becomes slower when it is compiled."
        if self.kind == "minimal":
            return f"{self.title} gains only minimally from compiling."
        return f"{self.title} gains significantly from compiling: {self.speedup} times as fast."

    @property
    def where(self) -> str:
        """The place in the thesis; its speedups stand in the conclusion alone."""
        return WHERE if self.speedup is None else f"{WHERE}; the speedup: section 6.1"

    @property
    def meaning(self) -> str:
        """What its words are taken as; "" where they need no border."""
        if self.kind == "minimal":
            return f" “Minimal” is taken as a speedup from {1 - MINIMAL / 2:.2f} to {1 + MINIMAL:.2f}."
        if self.kind == "faster":
            return (
                f" “Significantly” is taken as a speedup above {1 + MINIMAL:.2f}, whatever the thesis's is."
            )
        return ""

    def verdict(self, speedup: Interval) -> str:
        """Whether the interval agrees."""
        if self.kind == "minimal":
            return within(speedup, 1 - MINIMAL / 2, 1 + MINIMAL)
        if self.kind == "faster":
            return judged(speedup, 1 + MINIMAL, claimed_above=True)
        return judged(speedup, 1.0, claimed_above=False)


# The speedups are those of the thesis's conclusion, on a V100.
CLAIMS = {
    "alexnet": Claim("AlexNet", "slower"),
    "densenet121": Claim("DenseNet-121", "minimal"),
    "googlenet": Claim("GoogLeNet", "faster", 1.43),
    "mobilenet_v2": Claim("MobileNetV2", "faster", 1.63),
    "resnet50": Claim("ResNet-50", "faster", 1.61),
    "squeezenet1_1": Claim("SqueezeNet 1.1", "minimal"),
}
WHERE = "section 5.5.1, figure 5.6"


def network_findings(rows: Sequence[Row]) -> list[Finding]:
    """One finding per network, one about compile time, and one about the results."""
    mine = select(rows, phase=PHASE)
    mode = shown_mode(mine)
    found = []
    for name, claim in CLAIMS.items():
        ratio = one(mine, quantity="ratio", model=name, mode=mode)
        if ratio is None or ratio.value is None:
            what = f"{claim.title}, interpreted against compiled"
            wrong = [r for r in select(mine, quantity="time", model=name) if r.verdict == "wrong"]
            what += "; its result was wrong" if wrong else ""
            found.append(missing(claim.text, claim.where, what))
            continue
        speedup = inverse(ratio)
        text = (
            f"{claim.title} runs {words(speedup)} times as fast compiled ({mode}) as interpreted on "
            f"{ratio.device}, images {ratio.shape}."
        )
        found.append(Finding(text + claim.meaning, claim.text, claim.where, claim.verdict(speedup)))
    return [*found, *_compile_time(mine, mode), *_results(mine)]


def network_sections(rows: Sequence[Row]) -> list[Section]:
    """The section with tables and figures of whole networks; none where none was measured."""
    mine = select(rows, phase=PHASE)
    times = [row for row in select(mine, quantity="time") if row.mode == EAGER or row.mode in MODES]
    if not any(row.value is not None for row in times):
        return []
    parts: list[Table | Figure] = [_table(mine, times)]
    relative = ratios(mine)
    if relative:
        parts.append(
            Figure(
                "networks-relative",
                "Time of one inference of each network, compiled relative to interpreted, with 95 % "
                "intervals.",
                partial(_draw_ratios, relative),
            )
        )
    parts.append(
        Figure(
            "networks",
            "Time of one inference of each network, interpreted and compiled in every mode, without "
            "compile time. Figure 5.6 of the thesis.",
            partial(_draw_times, times),
        )
    )
    return [Section("Vision networks end to end", parts)]


def _compile_time(rows: Sequence[Row], mode: str) -> list[Finding]:
    texts = []
    for first in select(rows, quantity="first_call", mode=mode):
        if first.value is None:
            continue
        pays = paid_back(rows, mode, model=first.model)
        when = "" if pays is None else f" (calls until that is paid back: {calls(pays)})"
        texts.append(f"{_title(first.model)}: {tables.duration(first.value)}{when}")
    if not texts:
        return []
    text = f"First inference with compile time ({mode}, fresh process, empty caches): {'; '.join(texts)}."
    return [Finding(text)]


def _results(rows: Sequence[Row]) -> list[Finding]:
    judged = [r for r in select(rows, quantity="time") if r.mode in MODES and r.error is not None]
    apart = [r.value for r in select(rows, quantity="error") if r.value is not None]
    if not judged:
        return []
    wrong = [f"{_title(row.model)} ({row.mode})" for row in judged if row.verdict == "wrong"]
    text = (
        f"Compiled networks differ from float64 by at most {max(r.error or 0.0 for r in judged):.1e} "
        "(largest relative error)"
    )
    text += f" and from the interpreted ones by at most {max(apart):.1e}." if apart else "."
    text += f" Beyond the tolerance: {', '.join(wrong)}." if wrong else " All are within their tolerance."
    return [Finding(text)]


def _title(name: str) -> str:
    return CLAIMS[name].title if name in CLAIMS else name


def _table(rows: Sequence[Row], times: Sequence[Row]) -> Table:
    lines = []
    for row in times:
        key = {"model": row.model, "mode": row.mode}
        ratio = one(rows, quantity="ratio", **key)
        first = one(rows, quantity="first_call", **key)
        claim = CLAIMS.get(row.model)
        lines.append(
            [
                _title(row.model),
                named(row.mode),
                tables.timed(row),
                "-" if ratio is None else words(inverse(ratio)),
                f"{claim.speedup}" if claim and claim.speedup and row.mode != EAGER else "-",
                tables.error(row),
                tables.duration(first.value if first else None),
                calls(paid_back(rows, row.mode, model=row.model)) if row.mode in MODES else "-",
            ]
        )
    columns = ["network", "by", "time", "speedup", "thesis (V100)", "error", "first call", "pays after calls"]
    note = (
        "Speedup: interpreted over compiled, paired by round. Errors: largest relative ones against float64. "
    )
    note += "First calls are those of fresh processes with empty caches, compile time included."
    return Table("Inference of vision networks", columns, lines, left=2, note=note)


def _draw_ratios(relative: Sequence[Row]) -> Drawing:
    from meta500.metrics.plots.bars import Ratio, draw_ratios

    points = [
        Ratio(named(row.mode), row.value, row.low, row.high, _title(row.model))
        for rows in grouped(relative, lambda row: row.model).values()
        for row in rows
        if row.value is not None and row.low is not None and row.high is not None
    ]
    return draw_ratios(points, quantity="time relative to interpreted", below="faster", above="slower")


def _draw_times(times: Sequence[Row]) -> Drawing:
    from meta500.metrics.plots.bars import Bar, draw_bars

    bars = [
        Bar(
            _title(row.model),
            named(row.mode),
            row.value,
            row.low,
            row.high,
            note="" if row.value is not None else row.verdict,
        )
        for row in times
    ]
    return draw_bars(bars, quantity="time of one inference", unit="s", interval="median, 95 % interval")
