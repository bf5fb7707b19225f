"""What the rows say about the thesis' claims."""

from __future__ import annotations

from collections.abc import Sequence

from meta500.benchmarks.operators.roofline import BANDWIDTH, PEAK, PHASE
from meta500.benchmarks.studies.codegen.cases import (
    Case,
    fastest_torch,
    headline_cases,
    in_words,
    listed,
    network_title,
    ours,
    slowdown,
    training_cases,
    trusted,
    variant_title,
)
from meta500.benchmarks.studies.codegen.convolutions import LIGHT_SHARE, NODES
from meta500.benchmarks.studies.codegen.counters import CACHE_MISSES, READ, WRITTEN
from meta500.benchmarks.studies.codegen.generation_worker import COMPILING
from meta500.benchmarks.studies.select import one, select
from meta500.benchmarks.tables import duration, size
from meta500.benchmarks.variants import GENERATED, PLAIN_TORCH
from meta500.metrics.report.findings import (
    CONTRADICTS,
    NOT_MEASURED,
    UNDECIDED,
    Finding,
    all_of,
    judged,
    row_interval,
    stands,
)
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, ratio_interval

SINGLE, DOUBLE = "float32", "float64"
# "Does not grow": by less than this.
GROWTH = 1.1
# "Negligible": less than an epoch, which is 1 % of 100.
NEGLIGIBLE_EPOCHS = 1.0
# "Significantly less memory": at most this share.
LESS = 0.8
# "Only a third of light speed": less than half.
HALF = 0.5
MORE_TRAFFIC = 1.1
# "Scales poorly": less than this speedup per thread; with fewer threads nothing is said about a node.
POOR_EFFICIENCY = 0.5
NODE_THREADS = 8
# The case of which the thesis tells how it scales, and what is taken where it was not measured.
_SCALING = (("unet-3", 64), ("unet-3", 8))


def all_findings(rows: Sequence[Row]) -> list[Finding]:
    """In the order of the thesis."""
    return [
        *against_torch(rows),
        *of_workload(rows),
        double_precision(rows),
        threads(rows),
        *generation(rows),
        memory(rows),
        layers(rows),
        *roofline(rows),
    ]


def _missing(what: str, claim: str, where: str) -> Finding:
    return Finding(f"Not measured: {what}.", claim, where, NOT_MEASURED)


# -- epochs -------------------------------------------------------------------------------------------------


def against_torch(rows: Sequence[Row]) -> list[Finding]:
    """The generated code against eager PyTorch, as in the thesis, and against its fastest variant."""
    claim = "Generated code outperforms PyTorch for all sizes and batches, by a factor of 1.84 to 25."
    where = "sections 6.3.5 and 7"
    groups: dict[int, list[Case]] = {}
    for case in headline_cases(rows):
        if case.dtype == SINGLE:
            groups.setdefault(case.batch, []).append(case)
    if not groups:
        return [_missing("epochs per second in single precision", claim, where)]
    found = []
    for batch, cases in groups.items():
        eager = [(case, slowdown(rows, case, "eager")) for case in cases]
        text = f"At batch {batch} the generated code is {{}} times as fast as eager PyTorch {{}}."
        found.append(_compared(text, claim, where, eager))
        best = []
        for case in cases:
            row = fastest_torch(rows, case)
            best.append((case, None if row is None else slowdown(rows, case, row.mode)))
        names = listed(list(dict.fromkeys(variant_title(r) for _, r in best if r is not None)))
        text = (
            f"Against the fastest of PyTorch's variants that were measured ({names or 'none'}), it is {{}} "
            f"times as fast at batch {batch} {{}}."
        )
        stronger = "Generated code outperforms PyTorch (here: its fastest variant; the thesis takes eager)."
        found.append(_compared(text, stronger, where, best))
    return found


def _compared(text: str, claim: str, where: str, pairs: Sequence[tuple[Case, Row | None]]) -> Finding:
    known = [(case, row) for case, row in pairs if row is not None]
    if not known:
        return _missing("a pair of results that agree", claim, where)
    count = len(known)
    found = [row_interval(row, count) for _, row in known]
    verdict = all_of([judged(interval, 1.0, claimed_above=True, cases=count) for interval in found])
    numbers = listed([in_words(row) for _, row in known])
    names = listed([network_title(case.model) for case, _ in known])
    threads = _number_of(known[0][0].threads, "thread")
    return Finding(text.format(numbers, f"for {names} ({threads})"), claim, where, verdict)


def of_workload(rows: Sequence[Row]) -> list[Finding]:
    """The speedup over eager PyTorch against the number of parameters, and against the batch."""
    claim = "The speedup is smaller for more trainable parameters per layer."
    where = "section 7"
    cases = [case for case in headline_cases(rows) if case.dtype == SINGLE]
    pairs = []
    for batch in sorted({case.batch for case in cases}):
        mine = [c for c in cases if c.batch == batch and slowdown(rows, c, "eager") is not None]
        if len(mine) > 1:
            pairs.append((mine[0], mine[-1]))
    found = [_quotients(rows, pairs, "with the larger network", claim, where)]
    claim = "The speedup is smaller for more samples per batch."
    pairs = []
    for model in sorted({case.model for case in cases}):
        mine = [c for c in cases if c.model == model and slowdown(rows, c, "eager") is not None]
        if len(mine) > 1:
            pairs.append((mine[0], mine[-1]))
    return [*found, _quotients(rows, pairs, "with the larger batch", claim, where)]


def _quotients(
    rows: Sequence[Row], pairs: Sequence[tuple[Case, Case]], what: str, claim: str, where: str
) -> Finding:
    """How the speedup changes from the first to the second case of each pair; the claim is that it falls."""
    if not pairs:
        return _missing(f"the speedup over eager PyTorch {what}", claim, where)
    words, verdicts = [], []
    for small, large in pairs:
        first, second = slowdown(rows, small, "eager"), slowdown(rows, large, "eager")
        assert first is not None and second is not None
        quotient = quotient_of(second, first, len(pairs))
        verdicts.append(judged(quotient, 1.0, claimed_above=False, cases=len(pairs)))
        words.append(
            f"{large.title}: {in_words(second)} after {in_words(first)} for {small.title}, "
            f"{in_words(quotient)} times as much"
        )
    return Finding(f"Speedup over eager PyTorch {what}: {'; '.join(words)}.", claim, where, all_of(verdicts))


def quotient_of(a: Row, b: Row, cases: int = 1) -> Interval:
    """a / b of two rows that were not measured in the same rounds, with the widest ends.

    Args:
        a, b: rows with a value above 0.
        cases: how many such quotients are judged together.
    """
    above, below = _ends(a, cases), _ends(b, cases)
    value = (a.value or 0.0) / (b.value or 1.0)
    return Interval(
        value, above.low / below.high, above.high / below.low, min(above.confidence, below.confidence)
    )


def _ends(row: Row, cases: int) -> Interval:
    """The interval of a row; the value itself, which decides nothing, where it has none."""
    value = row.value or 0.0
    return row_interval(row, cases) or Interval(value, value, value, 0.0)


def double_precision(rows: Sequence[Row]) -> Finding:
    """The speedup in double against that in single precision, for the largest network that has both."""
    claim = "The speedup over PyTorch is larger in double precision: 7.45 against 2.57 at n = 3, batch 8."
    where = "section 6.3.6"
    by_place = {(c.model, c.batch, c.threads, c.dtype): c for c in headline_cases(rows)}
    for model, batch, count, dtype in sorted(by_place, reverse=True):
        if dtype != DOUBLE or (model, batch, count, SINGLE) not in by_place:
            continue
        double = slowdown(rows, by_place[model, batch, count, DOUBLE], "eager")
        single = slowdown(rows, by_place[model, batch, count, SINGLE], "eager")
        if double is None or single is None:
            continue
        quotient = quotient_of(double, single)
        text = (
            f"{network_title(model)} at batch {batch}: the speedup over eager PyTorch is {in_words(double)} "
            f"in double and {in_words(single)} in single precision, {in_words(quotient)} times as much."
        )
        return Finding(text, claim, where, judged(quotient, 1.0, claimed_above=True))
    return _missing("both precisions of one network", claim, where)


def threads(rows: Sequence[Row]) -> Finding:
    """Efficiency over threads of eager PyTorch, and of the generated code beside it."""
    claim = "PyTorch scales poorly across the node."
    where = "section 6.3.3"
    cases = [case for case in training_cases(rows) if case.dtype == SINGLE]
    lasts = [case for case in headline_cases(rows) if case.dtype == SINGLE and case.threads > 1]
    # The sort is stable: without the thesis' cases the first one.
    for last in sorted(lasts, key=lambda c: _scaling_place(c.model, c.batch)):
        first = next((c for c in cases if (c.model, c.batch, c.threads) == (last.model, last.batch, 1)), None)
        if first is None:
            continue
        theirs = [_rate(rows, case, PLAIN_TORCH, "eager") for case in (last, first)]
        if theirs[0] is None or theirs[1] is None:
            continue
        gain = quotient_of(theirs[0], theirs[1])
        efficiency = _divided(gain, last.threads)
        text = (
            f"{last.title}: {last.threads} threads train {in_words(gain)} times as fast as one with eager "
            f"PyTorch, an efficiency of {efficiency.value:.0%}"
        )
        our = [_rate(rows, case, GENERATED, "") for case in (last, first)]
        if our[0] is not None and our[1] is not None:
            mine = quotient_of(our[0], our[1])
            text += (
                f", and {in_words(mine)} times with the generated code, an efficiency of "
                f"{mine.value / last.threads:.0%} (the thesis: 13.3 times by 18 threads, 74 %, and 28 by 72 "
                "for n = 3, batch 64)"
            )
        text += f". Less than {POOR_EFFICIENCY:.0%} counts as poor."
        if last.threads < NODE_THREADS:
            text += f" So few threads say little about a node; at least {NODE_THREADS} are asked for."
            return Finding(text, claim, where, UNDECIDED)
        return Finding(text, claim, where, judged(efficiency, POOR_EFFICIENCY, claimed_above=False))
    return _missing("eager PyTorch by one thread and by several on one network", claim, where)


def _scaling_place(model: str, batch: int) -> int:
    return _SCALING.index((model, batch)) if (model, batch) in _SCALING else len(_SCALING)


def _rate(rows: Sequence[Row], case: Case, backend: str, mode: str) -> Row | None:
    mine = select(rows, quantity="epoch_rate", backend=backend, mode=mode)
    return next((row for row in mine if Case.of(row) == case and trusted(row)), None)


# -- generation, memory -------------------------------------------------------------------------------------


def generation(rows: Sequence[Row]) -> list[Finding]:
    """Growth of generating and of compiling with the parameters, and both beside training."""
    where = "section 6.3.2"
    found = []
    for phase, claim in (
        ("generating", "Times of generating code do not increase with the number of trainable parameters."),
        (COMPILING, "The time of compiling the generated code does not increase with the parameters."),
    ):
        timed = [row for row in select(rows, quantity="time", phase=phase) if row.samples]
        timed.sort(key=lambda row: _parameters(rows, row) or 0.0)
        if len(timed) < 2 or _parameters(rows, timed[0]) is None:
            found.append(_missing(f"{phase} of two networks", claim, where))
            continue
        small, large = timed[0], timed[-1]
        ratio = ratio_interval(large.samples, small.samples)
        factor = (_parameters(rows, large) or 0.0) / (_parameters(rows, small) or 1.0)
        text = (
            f"{phase.capitalize()} {network_title(large.model)}, which has {factor:.3g} times the parameters "
            f"of {network_title(small.model)}, takes {in_words(ratio)} times as long: "
            f"{duration(large.value)} after {duration(small.value)}. Less than {GROWTH - 1:.0%} more counts "
            "as no increase."
        )
        found.append(Finding(text, claim, where, judged(ratio, GROWTH, claimed_above=False)))
    return [*found, _negligible(rows)]


def _parameters(rows: Sequence[Row], row: Row) -> float | None:
    found = one(rows, quantity="parameters", model=row.model)
    return None if found is None else found.value


def _negligible(rows: Sequence[Row]) -> Finding:
    claim = "Times of generating and compiling are negligible compared to the time of training."
    where = "section 6.3.2"
    known = []
    for generating in select(rows, quantity="time", phase="generating"):
        compiling = one(rows, quantity="time", phase=COMPILING, model=generating.model)
        rate = ours(rows, Case.of(generating))
        if generating.value is not None and compiling is not None and rate is not None and rate.value:
            known.append((generating, compiling, rate))
    words, verdicts = [], []
    for generating, compiling, rate in known:
        case = Case.of(generating)
        total, speed = sum_of(generating, compiling, len(known)), _ends(rate, len(known))
        assert rate.value is not None
        epochs = Interval(
            total.value * rate.value,
            total.low * speed.low,
            total.high * speed.high,
            min(total.confidence, speed.confidence),
        )
        verdicts.append(judged(epochs, NEGLIGIBLE_EPOCHS, claimed_above=False, cases=len(known)))
        text = f"{duration(total.value)} for {network_title(case.model)}, in which {in_words(epochs)} epochs "
        text += f"could be trained at batch {case.batch}"
        best = fastest_torch(rows, case)
        if best is not None and best.value:
            gained = 1 / best.value - 1 / rate.value
            text += (
                f" (gained back against {variant_title(best)} after {total.value / gained:.3g} epochs)"
                if gained > 0
                else f" (never gained back against {variant_title(best)})"
            )
        words.append(text)
    if not words:
        return _missing("generation and epochs of one network", claim, where)
    text = f"Generating and compiling take {'; '.join(words)}. Less than an epoch, 1 % of 100, is negligible."
    return Finding(text, claim, where, all_of(verdicts))


def _divided(found: Interval, by: float) -> Interval:
    return Interval(found.value / by, found.low / by, found.high / by, found.confidence)


def sum_of(a: Row, b: Row, cases: int = 1) -> Interval:
    """The sum of two times, with the widest ends; one of ``cases`` that are judged together."""
    x, y = _ends(a, cases), _ends(b, cases)
    value = (a.value or 0.0) + (b.value or 0.0)
    return Interval(value, x.low + y.low, x.high + y.high, min(x.confidence, y.confidence))


def memory(rows: Sequence[Row]) -> Finding:
    """Peak memory of the generated code against the most frugal variant of PyTorch."""
    claim = "The generated code uses significantly less main memory than PyTorch."
    where = "section 6.3.10"
    peaks = [row for row in select(rows, quantity="peak_memory") if trusted(row)]
    pairs = []
    for mine in sorted((r for r in peaks if r.backend == GENERATED), key=Case.of):
        others = [r for r in peaks if r.backend == PLAIN_TORCH and Case.of(r) == Case.of(mine)]
        if others:
            pairs.append((mine, min(others, key=lambda row: row.value or 0.0)))
    words, verdicts = [], []
    for mine, least in pairs:
        share = quotient_of(mine, least, len(pairs))
        verdicts.append(judged(share, LESS, claimed_above=False, cases=len(pairs)))
        words.append(
            f"{size(mine.value)} against {size(least.value)} ({variant_title(least)}) for "
            f"{Case.of(mine).title}, {in_words(share)} times as much"
        )
    if not words:
        return _missing("peak memory of both", claim, where)
    text = f"Peak memory of a training process: {'; '.join(words)}. "
    text += f"At most {LESS:.0%} counts as significantly less."
    if any(share.confidence == 0 for share in (quotient_of(*pair) for pair in pairs)):
        text += " A single process of each decides nothing."
    return Finding(text, claim, where, all_of(verdicts))


# -- layers, roofline ---------------------------------------------------------------------------------------


def layers(rows: Sequence[Row]) -> Finding:
    """The share of convolutions in the time of all kernels."""
    claim = "The convolutional layers dominate the run time (97 % of it at n = 3, batch 8)."
    where = "section 6.3.4, table 8"
    found = [row for row in select(rows, quantity="convolution_share") if row.value is not None]
    if not found:
        return _missing("times by layer", claim, where)
    words = [f"{in_words(row)} for {Case.of(row).title}" for row in found]
    cases = len(found)
    intervals = [row_interval(row, cases) for row in found]
    verdict = all_of([judged(share, HALF, claimed_above=True, cases=cases) for share in intervals])
    text = (
        "Kernels whose arithmetic is convolutions to 90 % or more take this share of the time in all "
        f"kernels, by one thread: {'; '.join(words)}. More than half counts as dominating."
    )
    return Finding(text, claim, where, verdict)


def roofline(rows: Sequence[Row]) -> list[Finding]:
    """Convolution 0: what bounds it, how near it comes to that, and the traffic that it causes."""
    return [
        _memory_bound(rows),
        *(_light_share(rows, node, number) for number, node in enumerate(NODES[:2])),
        _traffic(rows),
    ]


def _memory_bound(rows: Sequence[Row]) -> Finding:
    claim = "From a roofline perspective the forward pass of convolution 0 is bound by main memory."
    where = "section 6.3.7"
    balance = machine_balance(rows)
    numbers = {q: one(rows, quantity=q, node=NODES[0]) for q in ("flops", "bytes_read", "bytes_written")}
    if balance is None or None in numbers.values():
        return _missing("the machine's limits, or convolution 0", claim, where)
    flops, read, written = (row.value for row in numbers.values() if row is not None and row.value)
    intensity = flops / (read + written)
    low, high = (end / intensity for end in balance)
    layer = numbers["flops"]
    assert layer is not None
    text = (
        f"Convolution 0 of {network_title(layer.model)} at batch {layer.batch} does {intensity:.3g} "
        f"operations per byte of least traffic; this machine can do {balance[0]:.3g} to {balance[1]:.3g} "
        "while it moves one (medians and best of what was measured)."
    )
    return Finding(text, claim, where, stands(low, high, 1.0, claimed_above=True))


def machine_balance(rows: Sequence[Row]) -> tuple[float, float] | None:
    """Operations per byte that the machine can do: the lowest and highest of its best and median limits."""

    def ends(quantity: str) -> tuple[float, float] | None:
        found = [r for r in select(rows, phase=PHASE, quantity=quantity) if r.value and r.samples]
        if not found:
            return None
        best = max(found, key=lambda row: row.value or 0.0)
        return sorted(best.samples)[len(best.samples) // 2], float(best.value or 0.0)

    peak, bandwidth = ends(PEAK), ends(BANDWIDTH)
    if peak is None or bandwidth is None:
        return None
    return peak[0] / bandwidth[1], peak[1] / bandwidth[0]


def _light_share(rows: Sequence[Row], node: str, number: int) -> Finding:
    claim = f"The forward pass of convolution {number} reaches only one third of light speed."
    where = "section 6.3.7"
    row = one(rows, quantity=LIGHT_SHARE, node=node, backend=GENERATED)
    if row is None or not trusted(row):
        return _missing(f"convolution {number} under the roofline", claim, where)
    text = (
        f"Convolution {number} reaches {in_words(row)} of light speed on the generated backend ({row.note})."
    )
    if "cache" in row.note:
        return Finding(f"{text} Its size says nothing about main memory.", claim, where, UNDECIDED)
    return Finding(text, claim, where, judged(row_interval(row), HALF, claimed_above=False))


def _traffic(rows: Sequence[Row]) -> Finding:
    claim = "Much more is read and written than the roofline assumes: 4.8 and 1.7 times for convolution 0."
    where = "section 6.3.7, table 10"
    reason = "traffic between cache and memory"
    pairs = []
    for direction in (READ, WRITTEN):
        found = select(rows, quantity=f"traffic_{direction}", node=NODES[0])
        least = one(rows, quantity=f"bytes_{direction}", node=NODES[0])
        if found and found[-1].value is None:
            reason = f"{reason} ({found[-1].note})" if "(" not in reason else reason
        if found and found[-1].value is not None and least is not None and least.value:
            pairs.append((direction, found[-1], least.value))
    words, verdicts = [], []
    for direction, counted, least_bytes in pairs:
        factor = _divided(_ends(counted, len(pairs)), least_bytes)
        verdict = judged(factor, MORE_TRAFFIC, claimed_above=True, cases=len(pairs))
        # Misses are a lower bound: prefetched lines are not among them.
        few = counted.note.startswith(CACHE_MISSES) and verdict == CONTRADICTS
        verdicts.append(UNDECIDED if few else verdict)
        words.append(f"{in_words(factor)} times what must be {direction}")
    if not words:
        return _missing(reason, claim, where)
    source = pairs[0][1].note
    text = f"Counters ({source}) saw {listed(words)} by convolution 0."
    if source.startswith(CACHE_MISSES):
        text += " Prefetched lines are not counted: it is at least that."
    return Finding(text, claim, where, all_of(verdicts))


def _number_of(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"
