"""What the rows say about the claims of the slides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from meta500.backends.generated.ir import ATOMICS, GATHER, REDUCTION
from meta500.benchmarks.studies.adjoint.forms import PARALLEL, SERIAL_GATHER, SERIAL_SCATTER
from meta500.benchmarks.studies.adjoint.measurement import ONE_THREAD
from meta500.benchmarks.studies.adjoint.subjects import INPUT_GRADIENT, WEIGHT_GRADIENT
from meta500.benchmarks.studies.select import one, select
from meta500.metrics.plots.style import number
from meta500.metrics.report.findings import AGREES, CONTRADICTS, NOT_MEASURED, UNDECIDED, Finding, stands
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, median_interval, ratio_interval

# With less of their processors threads wait for other programs, and times say nothing about the forms.
ALONE = 0.9
EXCLUSIVENESS = "slides 'Why did this happen?' and 'Summary so far'"
# Atomic additions that take longer than all the rest are not hidden by it.
HIDDEN = 2.0
SPEED = "slides 'Speed of reorganised adjoint code'"
Key = tuple[str, str, str]
GROUPS: dict[str, Callable[[Row], bool]] = {
    "stencils": lambda row: row.model == "stencil",
    "input gradients of convolutions": lambda row: row.model != "stencil" and row.phase == INPUT_GRADIENT,
    "weight gradients of convolutions": lambda row: row.phase == WEIGHT_GRADIENT,
}


def computed(rows: Sequence[Row]) -> list[Finding]:
    """All findings; those without rows say that they were not measured."""
    right = [row for row in rows if row.verdict not in ("wrong", "failed", "unsupported")]
    return [
        _parallelism(rows),
        _detection(rows),
        *_per_group(right, _serial_cost),
        *_per_group(right, _scaling),
        *_per_group(right, _payoff),
        *_per_group(right, _atomics),
        _hidden(right),
        _still_a_stencil(rows),
        _memory(rows),
        _numbers(rows),
    ]


def key(row: Row) -> Key:
    """Which adjoint a row belongs to."""
    return row.model, row.node, row.phase


def most_threads(rows: Sequence[Row]) -> int:
    """The most threads that any form was measured with; 0 where nothing was."""
    return max((row.threads or 0 for row in rows if row.quantity == "time"), default=0)


# -- ratios over several adjoints ----------------------------------------------------------------------------


def pooled(samples: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The geometric mean over adjoints of each round; as many as the fewest rounds.

    Args:
        samples: positive numbers by adjoint and round, at least one adjoint.
    """
    rounds = min(len(one) for one in samples)
    logarithms = np.log(np.array([one[:rounds] for one in samples]))
    return tuple(float(x) for x in np.exp(logarithms.mean(axis=0)))


def ratios(rows: Sequence[Row], mode: str, threads: int, baseline: str) -> dict[Key, Row]:
    """The ratios of one form to a baseline, by adjoint."""
    found = select(rows, quantity="ratio", mode=mode, threads=threads, baseline=baseline)
    return {key(row): row for row in found if row.value is not None and row.samples}


def _together(intervals: Sequence[Interval], samples: Sequence[float], border: float, above: bool) -> str:
    """How the adjoints of a group stand to a claim: by their mean, but undecided where they differ.

    Args:
        intervals: of each adjoint.
        samples: pooled over the adjoints.
        border: of the claim.
        above: whether the claim is "above".
    """
    if any(one.low > border for one in intervals) and any(one.high < border for one in intervals):
        return UNDECIDED
    interval = median_interval(samples)
    return stands(interval.low, interval.high, border, claimed_above=above)


def _each(rows: Sequence[Row]) -> list[Interval]:
    return [median_interval(row.samples) for row in rows]


def _words(interval: Interval) -> str:
    return f"{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]"


def _tally(rows: Sequence[Row], above: str, below: str) -> str:
    """How many ratios lie above and below 1 with their whole intervals."""
    return _sides(_each(rows), above, below)


def _sides(intervals: Sequence[Interval], above: str, below: str) -> str:
    up = sum(one.low > 1 for one in intervals)
    down = sum(one.high < 1 for one in intervals)
    parts = [f"{above} for {up}", f"{below} for {down}"]
    open_ = len(intervals) - up - down
    return ", ".join([*parts, *([f"undecided for {open_}"] if open_ else [])])


def _quotients(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(first, second, strict=False)]


def _per_group(rows: Sequence[Row], finding: Callable[[Sequence[Row], str], Finding | None]) -> list[Finding]:
    """One finding for each group that has rows; at least one altogether."""
    found = []
    for name, belongs in GROUPS.items():
        own = [row for row in rows if belongs(row)]
        if own:
            made = finding(own, name)
            if made is not None:
                found.append(made)
    if not found:
        empty = finding([], "adjoints")
        assert empty is not None
        found.append(empty)
    return found


def _count(number_: int, name: str) -> str:
    return f"{number_} of the {name}"


# -- loops ---------------------------------------------------------------------------------------------------


def _parallelism(rows: Sequence[Row]) -> Finding:
    claim = "That a loop is parallel does not make its adjoint parallel; exclusive reads do."
    loops = parallel_reads([row for row in rows if row.model != "example"])
    if not loops:
        return Finding("No loop was judged.", claim, EXCLUSIVENESS, NOT_MEASURED)
    shared = [row for row in loops if row.value == 0]
    own = [row for row in loops if row.value == 1]
    text = (
        f"Of {len(loops)} pairs of a parallel loop and a tensor that it reads, {len(own)} read exclusively "
        f"and {len(shared)} do not."
    )
    if shared:
        row = shared[0]
        text += f" For example {row.node}, {row.mode}, {row.phase}: {row.note}."
    return Finding(text, claim, EXCLUSIVENESS, AGREES if shared else CONTRADICTS)


def parallel_reads(rows: Sequence[Row]) -> list[Row]:
    """The verdicts on reads in loops whose iterations write elements of their own."""
    writes = {
        (row.model, row.node, row.mode) for row in select(rows, quantity="exclusive_write") if row.value == 1
    }
    reads = select(rows, quantity="exclusive_read")
    return [row for row in reads if (row.model, row.node, row.mode) in writes]


def _detection(rows: Sequence[Row]) -> Finding:
    claim = "With static control flow and affine indices exclusive reads may be detected; in general not."
    where = "slides 'Detection of exclusive read' and 'The problem with exclusive read'"
    found = select(rows, quantity="exclusive_read")
    measured = [row for row in found if row.model != "example"]
    if not measured:
        return Finding("No loop was judged.", claim, where, NOT_MEASURED)
    unknown = [row for row in measured if row.value is not None and math.isnan(row.value)]
    text = f"All {len(measured)} questions about the loops of the subjects were decided."
    if unknown:
        text = f"{len(unknown)} of {len(measured)} questions stayed open, the first: {unknown[0].note}."
    open_examples = [
        row for row in found if row.model == "example" and row.value is not None and math.isnan(row.value)
    ]
    if open_examples:
        text += f" Of the example loops '{open_examples[0].node}' {open_examples[0].note}."
    return Finding(text, claim, where, UNDECIDED if unknown else AGREES)


def _still_a_stencil(rows: Sequence[Row]) -> Finding:
    claim = "The adjoint of a stencil computation can be a stencil computation."
    where = "slides 'Backward stencil' and 'The good, the bad, the ugly'"
    found = select(rows, quantity="transposed")
    if not found:
        return Finding("No adjoint was derived.", claim, where, NOT_MEASURED)
    own = [row for row in found if row.value == 1]
    stencils = [row for row in found if row.model == "stencil"]
    same = []
    for row in stencils:
        points = {
            phase: one(rows, model=row.model, node=row.node, quantity="points", phase=phase)
            for phase in ("primal", "adjoint")
        }
        numbers = {point.value for point in points.values() if point is not None}
        if None not in points.values() and len(numbers) == 1:
            same.append(row)
    text = (
        f"Turned round, {len(own)} of {len(found)} input gradients consist of loops whose iterations write "
        f"elements of their own, and {len(same)} of {len(stencils)} stencils have adjoints with as many "
        "points."
    )
    all_of_them = len(own) == len(found) and len(same) == len(stencils)
    verdict = AGREES if all_of_them else UNDECIDED if own else CONTRADICTS
    return Finding(text, claim, where, verdict)


# -- times ---------------------------------------------------------------------------------------------------


def _serial_cost(rows: Sequence[Row], group: str) -> Finding:
    claim = "Reorganisation slows down serial code."
    found = list(ratios(rows, SERIAL_GATHER, 1, SERIAL_SCATTER).values())
    if not found:
        return Finding(f"Serial code was not timed for {group}.", claim, SPEED, NOT_MEASURED)
    samples = pooled([row.samples for row in found])
    interval = median_interval(samples)
    text = (
        f"Serial gather takes {_words(interval)} times as long as serial scatter over "
        f"{_count(len(found), group)}: {_tally(found, 'slower', 'faster')}."
    )
    return Finding(text, claim, SPEED, _together(_each(found), samples, 1.0, above=True))


def _scaling(rows: Sequence[Row], group: str) -> Finding:
    claim = "The reorganised code scales better than scattering with atomic additions."
    most = most_threads(rows)
    gathers, atomic = ratios(rows, GATHER, most, ONE_THREAD), ratios(rows, ATOMICS, most, ONE_THREAD)
    both = [k for k in gathers if k in atomic]
    if not both or most < 2:
        return Finding(
            f"Scaling of {group} was not measured with two forms and threads.", claim, SPEED, NOT_MEASURED
        )
    first = pooled([gathers[k].samples for k in both])
    second = pooled([atomic[k].samples for k in both])
    a, b = (median_interval([1 / x for x in samples]) for samples in (first, second))
    quotients = [_quotients(gathers[k].samples, atomic[k].samples) for k in both]
    each = [median_interval(samples) for samples in quotients]
    quotient = median_interval(pooled(quotients))
    text = (
        f"From 1 to {most} threads gather becomes {_words(a)} times as fast and atomics {_words(b)} times, "
        f"over {_count(len(both), group)}; the time that is left is {_words(quotient)} of that of atomics, "
        f"each relative to its own single thread: {_sides(each, 'more', 'less')}."
    )
    verdict = _together(each, pooled(quotients), 1.0, above=False)
    return _undisturbed(rows, both, text, claim, verdict)


def _payoff(rows: Sequence[Row], group: str) -> Finding:
    claim = "With all threads the gathered adjoint is faster than any other form: the method pays off."
    most = most_threads(rows)
    found = ratios(rows, GATHER, most, SERIAL_SCATTER) if most > 1 else {}
    if not found:
        return Finding(f"Gather was not timed with several threads for {group}.", claim, SPEED, NOT_MEASURED)
    others = {mode: ratios(rows, mode, most, GATHER) for mode in (REDUCTION, ATOMICS)}
    others = {mode: own for mode, own in others.items() if own}
    common = [k for k in found if all(k in own for own in others.values())]
    if not common:
        text = f"None of the {group} was timed in all forms with several threads."
        return Finding(text, claim, SPEED, NOT_MEASURED)
    slower = {SERIAL_SCATTER: [[1 / x for x in found[k].samples] for k in common]}
    slower |= {mode: [list(own[k].samples) for k in common] for mode, own in others.items()}
    texts, verdicts = [], set()
    for mode, samples in slower.items():
        each = [median_interval(one_) for one_ in samples]
        mean = pooled(samples)
        verdicts.add(_together(each, mean, 1.0, above=True))
        texts.append(f"{mode} {_words(median_interval(mean))} ({_sides(each, 'slower', 'faster')})")
    text = (
        f"With {most} threads the other forms take so many times as long as gather, over "
        f"{_count(len(common), group)}: {'; '.join(texts)}."
    )
    verdict = CONTRADICTS if CONTRADICTS in verdicts else UNDECIDED if UNDECIDED in verdicts else AGREES
    return _undisturbed(rows, common, text, claim, verdict)


def least_share(rows: Sequence[Row], adjoints: Sequence[Key]) -> float:
    """The least part of their processors that the threads had while these adjoints were timed.

    NaN where it is known of none of them.
    """
    return min(_shares(rows, adjoints).values(), default=math.nan)


def _shares(rows: Sequence[Row], adjoints: Sequence[Key]) -> dict[Key, float]:
    """The known parts, by adjoint."""
    return {
        key(row): row.value
        for row in select(rows, quantity="processor_share")
        if key(row) in adjoints and row.value is not None and not math.isnan(row.value)
    }


def _undisturbed(
    rows: Sequence[Row], adjoints: Sequence[Key], text: str, claim: str, verdict: str
) -> Finding:
    """A finding on several threads, which decides nothing where others used their processors."""
    share = least_share(rows, adjoints)
    unknown = len(adjoints) - len(_shares(rows, adjoints))
    if share < ALONE:
        text += (
            f" But the threads had only {share:.0%} of their processors, since others used them: nothing is "
            "decided."
        )
        verdict = UNDECIDED
    if unknown:
        text += f" How much of their processors the threads had is not known for {unknown} of them."
    return Finding(text, claim, SPEED, verdict)


def _atomics(rows: Sequence[Row], group: str) -> Finding:
    claim = "Atomic updates are potentially slow."
    where = "slide 'What if there's no exclusive read?'"
    found = list(ratios(rows, ATOMICS, 1, SERIAL_SCATTER).values())
    if not found:
        return Finding(f"Atomic additions were not timed for {group}.", claim, where, NOT_MEASURED)
    samples = pooled([row.samples for row in found])
    text = (
        f"With one thread, which waits for nobody, atomic additions take {_words(median_interval(samples))} "
        f"times as long as the same loops without them, over {_count(len(found), group)}: "
        f"{_tally(found, 'slower', 'faster')}."
    )
    return Finding(text, claim, where, _together(_each(found), samples, 1.0, above=True))


def _hidden(rows: Sequence[Row]) -> Finding:
    claim = "Atomic additions are acceptable where the computation is expensive enough to hide a few of them."
    where = "slide 'What if there's no exclusive read?'"
    names = list(GROUPS)
    found = {
        name: list(ratios(own, ATOMICS, 1, SERIAL_SCATTER).values())
        for name, own in ((n, [r for r in rows if GROUPS[n](r)]) for n in (names[0], names[1]))
    }
    if not all(found.values()):
        return Finding(
            "Atomic additions were not timed for both stencils and convolutions.", claim, where, NOT_MEASURED
        )
    many, few = (pooled([row.samples for row in found[name]]) for name in (names[0], names[1]))
    interval = ratio_interval(few, many, paired=False)
    text = (
        "An input gradient of a convolution sums over filters before each atomic addition, a stencil adds "
        f"every term: the slow-down by atomics is {_words(median_interval(few))} against "
        f"{_words(median_interval(many))}, a ratio of {_words(interval)}. Hidden means here that "
        f"convolutions take less than {HIDDEN:.0f} times as long with them, and suffer less than stencils."
    )
    verdicts = {
        _together(_each(found[names[1]]), few, HIDDEN, above=False),
        stands(interval.low, interval.high, 1.0, claimed_above=False),
    }
    # One without the other: acceptable without being hidden, or hidden and not acceptable.
    verdict = verdicts.pop() if len(verdicts) == 1 else UNDECIDED
    return Finding(text, claim, where, verdict)


# -- memory and numbers --------------------------------------------------------------------------------------


def _memory(rows: Sequence[Row]) -> Finding:
    found = select(rows, quantity="private_memory", protocol="predicted")
    if not found:
        return Finding("Memory of private copies was not measured.")
    exact = 0
    for row in found:
        same = {"model": row.model, "node": row.node, "phase": row.phase, "quantity": "private_memory"}
        allocated = one(rows, **same, protocol="allocated")
        exact += allocated is not None and allocated.value == row.value
    largest = max(found, key=lambda row: row.value or 0.0)
    threads = largest.threads or 1
    text = (
        f"Private copies cost {size_text((largest.value or 0) / threads)} per thread for {largest.node} "
        f"({largest.phase}), the most of all, {size_text(largest.value or 0)} with {threads} threads; gather "
        "and "
        f"atomics need none. What the loops predict is what is allocated in {exact} of {len(found)} cases."
    )
    return Finding(text)


def size_text(count: float) -> str:
    """Bytes in the unit that fits."""
    for factor, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= factor:
            return f"{number(count / factor)} {unit}"
    return f"{count:.0f} B"


def _numbers(rows: Sequence[Row]) -> Finding:
    errors = select(rows, quantity="error")
    if not errors:
        return Finding("No result was compared with float64.")
    wrong = [row for row in errors if row.verdict == "wrong"]
    worst = max(errors, key=lambda row: (row.error or 0.0) / (row.tolerance or math.inf))
    text = (
        f"{len(errors) - len(wrong)} of {len(errors)} results are within their tolerances of float64; the "
        f"largest error is {(worst.error or 0) / (worst.tolerance or math.inf):.0%} of its tolerance "
        f"({worst.node}, {worst.mode})."
    )
    for form in PARALLEL:
        runs = [
            row
            for row in select(rows, quantity="differing_runs", mode=form)
            if (row.threads or 1) > 1 and row.value is not None
        ]
        if runs:
            same = sum(row.value == 0 for row in runs)
            text += f" With several threads {form} repeats itself bit by bit in {same} of {len(runs)} cases."
    return Finding(text)
