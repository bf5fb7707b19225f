"""What the rows say about timing layers, oracles and selective compilation (sections 4.3, 5.5.2 to 5.5.4)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler.derived import missing, pooled, within, words
from meta500.benchmarks.studies.compiler.layer_numbers import ends, known, segment_speedups
from meta500.benchmarks.studies.compiler.remarks_layers import remarks
from meta500.benchmarks.studies.compiler.settings import DEFAULT, MODES, SMALL
from meta500.benchmarks.studies.compiler.timing import (
    BEST_OF_TWO,
    BY_CHANCE,
    CLOCK_ALONE,
    CONFIGURATION,
    DYNAMIC,
    HELD_OUT,
    LAYER_TIMERS,
    ORACLE,
    PROFILER,
    RUN,
    SEGMENT,
    TIMERS,
    WAITS_ALONE,
    WHOLE,
    by_mode,
)
from meta500.benchmarks.studies.select import one, select, unique
from meta500.metrics.report.findings import (
    AGREES,
    CONTRADICTS,
    NOT_MEASURED,
    UNDECIDED,
    Finding,
    all_of,
    judged,
    row_interval,
)
from meta500.metrics.rows import Row

# What "twice" and "minimal" mean here, since the thesis gives no limits.
TWICE = (1.5, 2.5)
MINIMAL = 1.05
# Factors within this factor of their mean are counted as alike.
ALIKE = 1.25
# Of table 5.1, rounded outwards.
BOUNDS = (1.02, 1.05)

CLAIMS = {
    "profiler": ("A run under the PyTorch profiler takes about twice as long.", "section 5.5.2, figure 5.7"),
    "consistent": ("The profiler slows all configurations alike.", "section 5.5.2, figure 5.7"),
    "timers": (
        "Timers have minimal effect on the run time; on a GPU so have timers alone and waiting alone.",
        "section 5.5.2, figure 5.7",
    ),
    "together": (
        "On a GPU timers together with synchronisation slow the run notably.",
        "section 5.5.2, figure 5.7",
    ),
    "sides": (
        "Every network has layers that compilation makes faster and layers that it makes slower.",
        "section 5.5.3, figure 5.8",
    ),
    "bound": (
        "The best of two runs would be 1.02 to 1.05 times as fast as the faster run.",
        "section 5.5.4, table 5.1",
    ),
    "selective": (
        "Selective compilation does not beat compiling the whole network.",
        "section 5.5.4, figure 5.10",
    ),
}
ABSENT = {
    "profiler": "runs under the profiler",
    "consistent": "two runs under the profiler",
    "timers": "runs with timers",
    "together": "runs with timers on a GPU",
    "sides": "segments by timers",
    "bound": "best of two runs",
    "selective": "selective compilation",
}

# What was found, in words, and its verdict; None where nothing was measured.
Found = tuple[str, str] | None


def layer_findings(rows: Sequence[Row]) -> list[Finding]:
    """The findings, "not measured" where rows are missing.

    The small network on which every choice is tried is none of the thesis's: where another one was measured
    it has no vote, and where it is the only one nothing is decided.
    """
    groups = by_mode(rows)
    mode = shown(groups)
    mine = groups.get(mode, [])
    makers: dict[str, Callable[[Sequence[Row]], Found]] = {
        "profiler": _profiler,
        "consistent": _consistent,
        "timers": _timers,
        "together": _together,
        "sides": _sides,
        "bound": _bound,
        "selective": partial(_selective, mode=mode),
    }
    small = select(mine, model=SMALL)
    others = [row for row in mine if row.model != SMALL]
    found = []
    for key, make in makers.items():
        of_others = make(others)
        judged_one = of_others if of_others is not None else _undecided(make(small))
        if judged_one is None:
            found.append(missing(*CLAIMS[key], ABSENT[key]))
        else:
            found.append(Finding(judged_one[0], *CLAIMS[key], judged_one[1]))
    return [*found, *remarks(mine, mode)]


def _undecided(found: Found) -> Found:
    """What was found on the small network alone."""
    if found is None:
        return None
    text, verdict = found
    remark = f" Measured on {SMALL} alone, which is none of the thesis's networks, so it decides nothing."
    return text + remark, NOT_MEASURED if verdict == NOT_MEASURED else UNDECIDED


def shown(modes: Iterable[str]) -> str:
    """The mode of torch.compile that findings speak of: "default" where it was measured."""
    known = list(modes)
    return DEFAULT if DEFAULT in known or not known else known[0]


def _profiler(rows: Sequence[Row]) -> Found:
    ratios = known(select(rows, phase=RUN, protocol=PROFILER, quantity="ratio"))
    mean = pooled(ratios)
    if mean is None:
        return None
    text = (
        f"Under the profiler a run takes {words(mean)} times as long (geometric mean of {len(ratios)} runs). "
        f"“About twice” is taken as from {TWICE[0]} to {TWICE[1]}."
    )
    return text, within(mean, *TWICE)


def _consistent(rows: Sequence[Row]) -> Found:
    ratios = known(select(rows, phase=RUN, protocol=PROFILER, quantity="ratio"))
    mean, cases = pooled(ratios), len(ratios)
    if mean is None or cases < 2:
        return None
    each = "; ".join(f"{_run(row)} {tables.interval(row)}" for row in ratios)
    values = [row.value or 0.0 for row in ratios]
    limits = [ends(row, cases) for row in ratios]
    apart = max(low for low, _ in limits) > min(high for _, high in limits)
    text = (
        f"The profiler's factor lies between {min(values):.2f} and {max(values):.2f} over the runs ({each}); "
        + (
            "their intervals, together in 95 %, have no number in common."
            if apart
            else "one number lies in all their intervals, together in 95 %."
        )
    )
    alike = all(mean.value / ALIKE <= low and high <= mean.value * ALIKE for low, high in limits)
    return text, CONTRADICTS if apart else AGREES if alike else UNDECIDED


def _timers(rows: Sequence[Row]) -> Found:
    """On the CPU there is nothing to wait for, so timers alone and timers with waits are the same."""
    if _on_gpu(rows):
        return _parts_of_timers(rows)
    layers = known(select(rows, phase=RUN, protocol=LAYER_TIMERS, quantity="ratio"))
    both = [*layers, *known(select(rows, phase=RUN, protocol=TIMERS, quantity="ratio"))]
    mean = pooled(both)
    if mean is None:
        return None
    each = ", ".join(f"{row.model} {tables.interval(row)}" for row in layers)
    cost = one(rows, phase=RUN, quantity="timer_cost")
    text = f"With timers a run takes {words(mean)} times as long (geometric mean of {len(both)} runs)."
    text += f" With one behind every interpreted layer: {each}." if each else ""
    text += f" One timer takes {tables.timed(cost)}." if cost is not None else ""
    text += f" Counted as minimal: below {MINIMAL}."
    return text, judged(mean, MINIMAL, claimed_above=False)


def _parts_of_timers(rows: Sequence[Row]) -> Found:
    texts, verdicts = [], []
    for protocol, what in ((CLOCK_ALONE, "timers alone"), (WAITS_ALONE, "synchronisation alone")):
        ratios = known(select(rows, phase=RUN, protocol=protocol, quantity="ratio"))
        mean, corrected = pooled(ratios), pooled(ratios, 2)
        if mean is not None:
            texts.append(f"with {what} {words(mean)} (geometric mean of {len(ratios)} runs)")
            verdicts.append(judged(corrected, MINIMAL, claimed_above=False, cases=2))
    if not texts:
        return None
    text = f"Time of a run on the GPU, relative to one without: {'; '.join(texts)}."
    # Both halves of the claim are needed to agree with it.
    verdict = all_of(verdicts) if len(verdicts) == 2 or CONTRADICTS in verdicts else UNDECIDED
    return f"{text} Counted as minimal: below {MINIMAL}.", verdict


def _together(rows: Sequence[Row]) -> Found:
    if not _on_gpu(rows):
        return None
    ratios = known(select(rows, phase=RUN, protocol={LAYER_TIMERS, TIMERS}, quantity="ratio"))
    mean = pooled(ratios)
    if mean is None:
        return None
    text = (
        f"With timers that wait for the GPU a run takes {words(mean)} times as long (geometric mean of "
        f"{len(ratios)} runs). Counted as notable: above {MINIMAL}."
    )
    return text, judged(mean, MINIMAL, claimed_above=True)


def _on_gpu(rows: Sequence[Row]) -> bool:
    return any(row.device.startswith("cuda") for row in rows)


def _sides(rows: Sequence[Row]) -> Found:
    models = [str(model) for model in unique(select(rows, phase=SEGMENT), "model")]
    by_model = {model: found for model in models if (found := segment_speedups(rows, model))}
    if not by_model:
        return None
    cases = sum(map(len, by_model.values()))
    texts, verdicts = [], []
    for model, speedups in by_model.items():
        limits = [ends(row, cases) for row in speedups]
        faster, slow = sum(low > 1 for low, _ in limits), sum(high < 1 for _, high in limits)
        verdicts.append(
            AGREES if faster and slow else CONTRADICTS if len(limits) in (faster, slow) else UNDECIDED
        )
        texts.append(
            f"{model}: {faster} faster, {slow} slower, {len(limits) - faster - slow} neither of {len(limits)}"
        )
    text = (
        "Segments whose speedup by compiling them on their own has an interval above 1, below 1, or neither "
        f"(all intervals together hold in 95 %): {'; '.join(texts)}."
    )
    return text, all_of(verdicts)


def _bound(rows: Sequence[Row]) -> Found:
    oracles = select(rows, phase=ORACLE, quantity="speedup")
    name = f"{BEST_OF_TWO}, {TIMERS}"
    tested = known(select(oracles, protocol=f"{name}, {HELD_OUT}"))
    mean = pooled(tested)
    if mean is None:
        return None
    texts = []
    for row in tested:
        naive = one(oracles, protocol=name, model=row.model)
        chance = one(oracles, protocol=f"{name}, {BY_CHANCE}", model=row.model)
        texts.append(
            f"{row.model} {_plain(naive)} by the thesis's formula, {_plain(chance)} by the same formula from "
            f"two runs of the same interpreted network, {tables.interval(row)} where the choice is tried on "
            "rounds that it was not made by"
        )
    verdict = within(mean, *BOUNDS)
    if mean.low == mean.high and not _decided(rows):
        # The choice is one of the two runs itself; with unclear segments that may be for want of rounds.
        verdict = UNDECIDED
    text = (
        f"Best of two runs by timers, relative to the faster run: {'; '.join(texts)}. Tried on other rounds "
        f"the geometric mean is {words(mean)}. The formula cannot give less than 1: it takes the smaller of "
        "two noisy times."
    )
    return text, verdict


def _decided(rows: Sequence[Row]) -> bool:
    """Whether every segment by timers is faster or slower compiled, by its interval."""
    speedups = known(select(rows, phase=SEGMENT, protocol=TIMERS, quantity="speedup"))
    return all(not low <= 1 <= high for low, high in map(ends, speedups))


def _selective(rows: Sequence[Row], mode: str) -> Found:
    """Judged by networks of which a part was compiled for real: all or nothing is no selective compilation.

    Where the dynamic programme takes all, other choices that were run have the vote.
    """
    texts: list[str] = []
    voting: list[Row] = []
    for choice in select(rows, phase=ORACLE, protocol=DYNAMIC, quantity="prediction"):
        tried = [
            row
            for row in known(select(rows, phase=CONFIGURATION, model=choice.model, quantity="ratio"))
            if row.baseline == WHOLE
        ]
        own = one(tried, node=choice.node)
        partly = [row for row in tried if len(set(row.node)) > 1]
        if set(choice.node) == {"C"}:
            text = f"{choice.model}: the choice is to compile all of it"
            if partly:
                least = min(partly, key=lambda row: row.value or 0.0)
                text += f"; of {len(partly)} others that were run the fastest, {least.node}, takes "
                text += tables.interval(least)
            texts.append(text)
            voting += partly
        elif own is not None and set(choice.node) == {"I"}:
            texts.append(
                f"{choice.model}: the choice is to compile nothing, which takes {tables.interval(own)} and "
                "is no selective compilation"
            )
        elif own is not None:
            texts.append(f"{choice.model} ({choice.node}) {tables.interval(own)}")
            voting.append(own)
    if not texts:
        return None
    text = (
        "Time of the network compiled as the dynamic programme chooses, relative to compiling all of it "
        f"({mode}): " + "; ".join(texts) + ". I: interpreted segment, C: compiled."
    )
    cases = len(voting)
    verdicts = [judged(row_interval(row, cases), 1.0, claimed_above=True, cases=cases) for row in voting]
    return text if voting else f"{text} Nothing that is compiled in part was judged.", all_of(verdicts)


def _run(row: Row) -> str:
    return f"{row.model} {'interpreted' if row.mode not in MODES else 'compiled'}"


def _plain(row: Row | None) -> str:
    return "-" if row is None or row.value is None else f"{row.value:.3f}"
