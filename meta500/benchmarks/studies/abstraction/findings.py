"""What the rows say about the claims of the paper."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from meta500.benchmarks.studies.abstraction.footprint import OWN_PROCESSES
from meta500.benchmarks.studies.abstraction.found import (
    BASELINE,
    PAPER_LEVELS,
    VENDORS,
    Point,
    at,
    ends,
    names,
    point_of,
    right,
    scanned,
    scans,
    titles,
)
from meta500.benchmarks.studies.abstraction.level import CUDA, INFERENCE, TRAINING
from meta500.benchmarks.studies.abstraction.settings import ENOUGH_PROCESSES
from meta500.benchmarks.studies.select import select
from meta500.benchmarks.tables import duration
from meta500.metrics.plots.style import number
from meta500.metrics.report.findings import (
    AGREES,
    CONTRADICTS,
    NOT_MEASURED,
    UNDECIDED,
    Finding,
    stands,
)
from meta500.metrics.rows import Row

# "Almost an order of magnitude": at least this factor.
ORDER = 5.0
# "Approximately the same": within this factor.
SAME = 1.1


def findings(rows: Sequence[Row]) -> list[Finding]:
    """All findings, those about time first."""
    found = [
        slower(rows),
        *(narrows(rows, scan) for scan in ("batch", "size")),
        same_memory(rows),
        less_memory(rows),
        trained(rows),
        accuracy(rows),
        copies(rows),
        fastest(rows, INFERENCE),
        fastest(rows, TRAINING),
        operator_cost(rows),
        allocated(rows),
        break_even(rows),
    ]
    return [finding for finding in found if finding is not None]


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a claim about all of several things: one that contradicts is enough to contradict it."""
    if not verdicts:
        return NOT_MEASURED
    if CONTRADICTS in verdicts:
        return CONTRADICTS
    return AGREES if all(verdict == AGREES for verdict in verdicts) else UNDECIDED


def slower(rows: Sequence[Row]) -> Finding:
    """PyTorch is almost an order of magnitude slower than all others, and less so at larger points."""
    claim = (
        "PyTorch is almost an order of magnitude slower than TorchScript, LibTorch and the vendor's library, "
        "but the difference narrows as batch size or resolution increases (taken as: at least "
        f"{ORDER:g} times at the smallest point, slower at all others)"
    )
    where = "Results, figure 8 and the appendix"
    gaps = _gaps(rows)
    parts = [_range(rows, name, gaps) for name in PAPER_LEVELS if any(n == name for n, _ in gaps)]
    if not parts:
        return Finding(_nothing("no ratio to PyTorch eager of these levels"), claim, where, NOT_MEASURED)
    smallest = min((point for _, point in gaps), key=_work)
    verdicts = [
        stands(low, high, ORDER if point == smallest else 1.0, claimed_above=True)
        for (_, point), (_, low, high) in gaps.items()
    ]
    text = f"A step of PyTorch eager takes {'; '.join(parts)}. The smallest point is {smallest.words}."
    return Finding(text, claim, where, together(verdicts))


def _work(point: Point) -> tuple[int, Point]:
    """In this order points are small or large."""
    return point.batch * max(point.size, 1) ** 2, point


def narrows(rows: Sequence[Row], scan: str) -> Finding:
    """The difference narrows as the batch, or the resolution, increases."""
    word = "batch size" if scan == "batch" else "resolution"
    claim = f"The difference in execution time between PyTorch and the others narrows as the {word} increases"
    where = "Results, figures 9 to 14"
    gaps = _gaps(rows)
    parts, verdicts = [], []
    for name in PAPER_LEVELS:
        places = [point for n, point in gaps if n == name]
        chosen = scans(places)[0 if scan == "batch" else 1]
        if len(chosen) < 2:
            continue
        first, last = gaps[name, chosen[0]], gaps[name, chosen[-1]]
        verdicts.append(narrowing(first[1:], last[1:]))
        parts.append(
            f"{titles(rows)[name]}: {_gap(first)} at {chosen[0].words}, {_gap(last)} at {chosen[-1].words}"
        )
    if not parts:
        return Finding(_nothing(f"fewer than two points along the {word}"), claim, where, NOT_MEASURED)
    return Finding(f"Time of PyTorch eager relative to {'; '.join(parts)}.", claim, where, together(verdicts))


def narrowing(first: tuple[float, float], last: tuple[float, float]) -> str:
    """Whether a factor by which PyTorch is slower becomes smaller.

    Args:
        first, last: its intervals at the two ends of a scan.

    Returns:
        "contradicts" also where PyTorch is not slower to begin with: then there is no difference to narrow.
    """
    slower_first = stands(*first, 1.0, claimed_above=True)
    if slower_first != AGREES:
        return slower_first
    return stands(first[0] / last[1], first[1] / last[0], 1.0, claimed_above=True)


def same_memory(rows: Sequence[Row]) -> Finding:
    """PyTorch and LibTorch need about the same memory."""
    claim = f"PyTorch and LibTorch use about the same memory (taken as: within {SAME - 1:.0%})"

    def verdict(low: float, high: float) -> str:
        if low >= 1 / SAME and high <= SAME:
            return AGREES
        return CONTRADICTS if high < 1 / SAME or low > SAME else UNDECIDED

    return _memory(rows, ("libtorch",), claim, verdict)


def less_memory(rows: Sequence[Row]) -> Finding:
    """TorchScript and the vendor's library need less."""
    claim = "TorchScript and the vendor's library use less memory than PyTorch"

    def verdict(low: float, high: float) -> str:
        return stands(low, high, 1.0, claimed_above=False)

    return _memory(rows, ("torchscript", *VENDORS), claim, verdict)


def _memory(
    rows: Sequence[Row], levels: Sequence[str], claim: str, verdict: Callable[[float, float], str]
) -> Finding:
    where = "Results, figure 8"
    # On a GPU the network lives there, and the host's memory says little.
    accelerated = any(row.device.startswith(CUDA) for row in scanned(rows, "network_memory"))
    found = right(rows, "device_memory" if accelerated else "network_memory")
    parts, verdicts, unknown = [], [], []
    fewest = ENOUGH_PROCESSES
    for name in levels:
        ratios = []
        for row in (r for r in found if r.backend == name):
            base = at(found, BASELINE, point_of(row))
            if base is None:
                continue
            if min(ends(base)) <= 0 or min(ends(row)) <= 0:
                unknown.append(f"{titles(rows)[name]} at {point_of(row).words}")
                continue
            (low, high), (base_low, base_high) = ends(row), ends(base)
            ratios.append((_value(row) / _value(base), low / base_high, high / base_low, point_of(row)))
            # One process says little about another one of the same level.
            count = min(_processes(row), _processes(base))
            fewest = min(fewest, count)
            enough = count >= ENOUGH_PROCESSES
            verdicts.append(verdict(low / base_high, high / base_low) if enough else UNDECIDED)
        if ratios:
            smallest, largest = min(ratios), max(ratios)
            text = f"{titles(rows)[name]} {_ratio(*smallest[:3])} times as much at {smallest[3].words}"
            if len(ratios) > 1:
                text += f" to {_ratio(*largest[:3])} at {largest[3].words}"
            parts.append(text)
    lost = ""
    if unknown:
        lost = f" No ratio, as a network added no memory that could be told: {', '.join(unknown)}."
        verdicts.append(UNDECIDED)
    what = "the memory of the GPU in use" if accelerated else "the memory"
    if not parts:
        nothing = _nothing(f"{what} of these levels beside PyTorch eager")
        return Finding(nothing + lost, claim, where, NOT_MEASURED)
    taken = (
        "What the process has on the GPU" if accelerated else "What the network adds to its process's memory"
    )
    text = f"{taken}, relative to PyTorch eager: {'; '.join(parts)}.{lost}"
    if fewest < ENOUGH_PROCESSES:
        each = "one process" if fewest == 1 else f"{fewest} processes"
        text += f" Known from {each} of a level, it decides nothing"
        text += "." if accelerated else f": that takes {ENOUGH_PROCESSES}."
    return Finding(text, claim, where, together(verdicts))


def _processes(row: Row) -> int:
    """Of how many processes a row knows the memory: samples may be readings of the same one."""
    return len(row.samples) if row.protocol == OWN_PROCESSES else 1


def trained(rows: Sequence[Row]) -> Finding:
    """TorchScript can't be trained."""
    claim, where = "TorchScript cannot be trained, only evaluated", "Results, and note 32"
    found = [r for r in select(rows, backend="torchscript", phase=TRAINING, quantity="time")]
    done = [row for row in found if row.value is not None and row.verdict == "ok"]
    if done:
        worst = max(row.error or 0.0 for row in done)
        text = (
            "A traced module is trained: its first loss, and what the first update makes of it, agree "
            f"with float64 within {number(worst)} (relative) at {_count(len(done), 'point')}; a step "
            f"takes {duration(done[-1].value)} at {point_of(done[-1]).words}."
        )
        return Finding(text, claim, where, CONTRADICTS)
    if not found:
        return Finding(_nothing("training with TorchScript"), claim, where, NOT_MEASURED)
    wrong = next((row for row in found if row.verdict == "wrong"), None)
    if wrong is not None:
        text = f"TorchScript trains wrongly at {point_of(wrong).words}: "
        if wrong.error is None or wrong.tolerance is None:
            text += f"{wrong.note}."
        else:
            text += (
                "its first loss, or what the first update makes of it, is off by "
                f"{number(wrong.error)} (relative), and by at most {number(wrong.tolerance)} it is right."
            )
        return Finding(text, claim, where, UNDECIDED)
    unknown = next((row for row in found if row.value is not None), None)
    if unknown is not None:
        text = f"A traced module is trained, but its results are not known to be right: {unknown.note}."
        return Finding(text, claim, where, UNDECIDED)
    reason = found[-1].note
    verdict = AGREES if found[-1].verdict == "unsupported" and "train" in reason else UNDECIDED
    return Finding(f"TorchScript was not trained: {reason}.", claim, where, verdict)


def accuracy(rows: Sequence[Row]) -> Finding:
    """What is known about the accuracy of the levels; the paper's is that after 100 epochs of training."""
    claim = (
        "After 100 epochs of training PyTorch and LibTorch are equally accurate; the implementation on the "
        "vendor's library is far behind, for reasons unknown"
    )
    where = "Results, figures 7 and 15"
    found = [
        r for phase in (INFERENCE, TRAINING) for r in scanned(rows, "time", phase) if r.error is not None
    ]
    if not found:
        return Finding(_nothing("no result was compared with float64"), claim, where, NOT_MEASURED)
    wrong = [row for row in found if row.verdict == "wrong"]
    agreeing = [name for name in names(found) if not any(row.backend == name for row in wrong)]
    titled = titles(rows)
    text = ""
    if agreeing:
        errors = [r.error or 0.0 for r in found if r.backend in agreeing and r.phase == INFERENCE]
        text = f"{', '.join(titled[name] for name in agreeing)} give the results of float64"
        text += f" (logits within {number(max(errors))}, relative). " if errors else ". "
    if wrong:
        shown = [f"{titled[r.backend]} ({r.phase.replace('_', ' ')}, {point_of(r).words})" for r in wrong]
        text += f"Wrong: {'; '.join(dict.fromkeys(shown))}. "
    text += "Compared are first steps; what many epochs of training come to is not measured."
    return Finding(text, claim, where, NOT_MEASURED)


def copies(rows: Sequence[Row]) -> Finding:
    """PyTorch copies twice as much to the device."""
    claim = "Per batch PyTorch copies twice as many bytes to the GPU as the other implementations"
    where = "Results, fixed batch of 32"
    found = scanned(rows, "copied_to_device")
    base = next((r for r in found if r.backend == BASELINE), None)
    others = [r for r in found if r.backend in PAPER_LEVELS and _value(r) > 0]
    if base is None or not others:
        return Finding(
            _nothing("there was no GPU, or its copies could not be seen"), claim, where, NOT_MEASURED
        )
    factors = {titles(rows)[r.backend]: _value(base) / _value(r) for r in others}
    text = ", ".join(f"{factor:.3f} times as many as {name}" for name, factor in factors.items())
    # Bytes are counted, not sampled: they are what they are.
    verdicts = [AGREES if factor >= 1.5 else CONTRADICTS for factor in factors.values()]
    return Finding(f"Per batch PyTorch eager copies {text} to the GPU.", claim, where, together(verdicts))


def fastest(rows: Sequence[Row], phase: str) -> Finding | None:
    """The level with the lowest time at each end of the scans, among those that are right."""
    found = [row for row in right(rows, "time", phase) if row.verdict == "ok"]
    if not found:
        return None
    points = sorted({point_of(row) for row in found}, key=_work)
    parts = []
    for point in dict.fromkeys((points[0], points[-1])):
        here = sorted((row for row in found if point_of(row) == point), key=_value)
        best, rest = here[0], here[1:]
        titled = titles(rows)
        text = f"at {point.words} {titled[best.backend]} with {_timed(best)}"
        close = [titled[row.backend] for row in rest if ends(row)[0] <= ends(best)[1]]
        if close:
            text += f" (its interval meets {', '.join(close)})"
        base = next((row for row in here if row.backend == BASELINE), None)
        if base is not None and base is not best:
            text += f"; PyTorch eager takes {_timed(base)}"
        parts.append(text)
    what = "Inference" if phase == INFERENCE else "A training step"
    return Finding(f"{what} is fastest {'; '.join(parts)}. Only levels whose results are right take part.")


def operator_cost(rows: Sequence[Row]) -> Finding | None:
    """What one more tiny operator costs on each level."""
    found = [r for r in select(rows, quantity="dispatch") if r.value is not None]
    parts = []
    for kind in dict.fromkeys(row.operator for row in found):
        here = {row.backend: row for row in found if row.operator == kind}
        each = [f"{titles(rows)[name]} {_timed(here[name])}" for name in names(here.values())]
        words = "of residual blocks" if kind == "residual block" else kind
        parts.append(f"{words}: {', '.join(each)}")
    if not parts:
        return None
    return Finding(f"One more operator in a chain of tiny ones costs ({'; '.join(parts)}).")


def allocated(rows: Sequence[Row]) -> Finding | None:
    """How often each level asks for memory in a step of inference."""
    found = right(rows, "allocations")
    if not found:
        return None
    point = max((point_of(row) for row in found), key=lambda p: (p.batch, p.size))
    here = {name: at(found, name, point) for name in names(found)}
    each = [f"{titles(rows)[name]} {number(_value(row))}" for name, row in here.items() if row is not None]
    return Finding(f"Requests for memory in one step of inference at {point.words}: {', '.join(each)}.")


def break_even(rows: Sequence[Row]) -> Finding | None:
    """After how many steps a level that is faster than eager has paid for its first call."""
    times, first = right(rows, "time"), right(rows, "first_call")
    points = {point_of(row) for row in times if row.backend == BASELINE}
    if not points:
        return None
    point = max(points, key=lambda p: (p.batch, p.size))
    base, base_first = at(times, BASELINE, point), at(first, BASELINE, point)
    parts = []
    for name in names(times):
        row, start = at(times, name, point), at(first, name, point)
        if name == BASELINE or not (row and start and base and base_first):
            continue
        if ends(row)[1] < ends(base)[0]:
            steps = max(0.0, (_value(start) - _value(base_first)) / (_value(base) - _value(row)))
            after = "at once" if steps == 0 else f"after {_count(math.ceil(steps), 'step')}"
            parts.append(f"{titles(rows)[name]} {after}")
    if not parts:
        return Finding(f"At {point.words} no level is shown to be faster than PyTorch eager.")
    return Finding(
        f"At {point.words} what a level takes to be made, with caches as they were found, is paid back "
        f"by its faster steps of inference: {', '.join(parts)}."
    )


# -- words --------------------------------------------------------------------------------------------------


def _gaps(rows: Sequence[Row]) -> dict[tuple[str, Point], tuple[float, float, float]]:
    """How many times as long PyTorch eager takes as each of the paper's levels, with its interval."""
    found = {}
    for row in right(rows, "ratio"):
        if row.backend in PAPER_LEVELS and row.baseline == BASELINE:
            low, high = ends(row)
            found[row.backend, point_of(row)] = (1 / _value(row), 1 / high, 1 / low)
    return found


def _range(rows: Sequence[Row], name: str, gaps: dict[tuple[str, Point], tuple[float, float, float]]) -> str:
    """The smallest and the largest factor of one level."""
    mine = {point: gap for (level, point), gap in gaps.items() if level == name}
    low, high = min(mine, key=lambda p: mine[p]), max(mine, key=lambda p: mine[p])
    text = f"{_gap(mine[low])} times as long as one of {titles(rows)[name]} at {low.words}"
    if low == high:
        return text
    return f"{text} and {_gap(mine[high])} times as long at {high.words}"


def _gap(gap: tuple[float, float, float]) -> str:
    return _ratio(*gap)


def _ratio(value: float, low: float, high: float) -> str:
    return f"{number(value)} [{number(low)}, {number(high)}]"


def _timed(row: Row) -> str:
    low, high = ends(row)
    if low < 0 or _value(row) <= 0:
        return f"{number(_value(row) * 1e6)} [{number(low * 1e6)}, {number(high * 1e6)}] µs"
    from meta500.benchmarks.tables import timed

    return timed(row)


def _value(row: Row) -> float:
    assert row.value is not None
    return row.value


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _nothing(what: str) -> str:
    return f"Not measured: {what}."
