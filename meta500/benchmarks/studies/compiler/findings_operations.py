"""What the rows say about the thesis's claims on matrix products and convolutions (sections 5.3 and 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler import networks, products
from meta500.benchmarks.studies.compiler.convolutions import ALONE, BLOCK, SINGLE
from meta500.benchmarks.studies.compiler.derived import (
    block_kernel,
    calls,
    count_of,
    grouped,
    inverse,
    kernel_of,
    missing,
    mode_ratios,
    paid_back,
    pooled,
    ratios,
    shown_mode,
    tally,
    within,
    words,
)
from meta500.benchmarks.studies.compiler.fresh import NUMPY
from meta500.benchmarks.studies.compiler.profiled import INSIDE
from meta500.benchmarks.studies.compiler.settings import EAGER
from meta500.benchmarks.studies.select import one, select
from meta500.metrics.report.findings import (
    AGREES,
    CONTRADICTS,
    NOT_MEASURED,
    UNDECIDED,
    Finding,
    all_of,
    confidence_among,
    decisive,
    judged,
    row_interval,
)
from meta500.metrics.rows import Row
from meta500.metrics.statistics import Interval, ratio_interval

# How far a ratio may be from 1 to count as "hardly any effect" and as "similar".
HARDLY, SIMILAR = 0.05, 0.25
# To what the blocks converge in the thesis, and how near to it is "about".
BLOCKS_SPEEDUP, ABOUT = 0.95, 0.05
# Below this size the thesis's CPU was faster than its GPU.
CPU_SIZES = 1000


def operation_findings(rows: Sequence[Row]) -> list[Finding]:
    """The findings about products and convolutions, in the order of the thesis."""
    return [
        *_product_findings(rows),
        *_single_findings(rows),
        *_resnet_findings(rows),
        _block_finding(rows),
    ]


def _product_findings(rows: Sequence[Row]) -> list[Finding]:
    mine = select(rows, phase=products.PHASE)
    mode = shown_mode(mine)
    # The thesis says "slightly"; how much it is stands in the text, since it gives no limit to judge by.
    claim = "A compiled matrix product is slower than an interpreted one, on the CPU and on the GPU."
    found: list[Finding] = []
    measured = ratios(mine, mode=mode)
    for device, of_device in grouped(measured, lambda row: row.device).items():
        overall = pooled(of_device)
        text = (
            f"Matrix products on {device}: compiled ({mode}) takes {words(overall)} times as long as "
            f"interpreted (geometric mean over {len(of_device)} sizes); {tally(of_device)} sizes. "
            f"{_extremes(of_device)}"
        )
        found.append(Finding(text, claim, "figure 5.1", judged(overall, 1.0, claimed_above=True)))
    if not measured:
        found.append(missing(claim, "figure 5.1", "matrix products, interpreted against compiled"))
    elif not any(row.device.startswith("cuda") for row in measured):
        found.append(missing(claim, "figure 5.1", "matrix products on a GPU"))
    return [*found, _pays_finding(mine, mode), _numpy_finding(mine), _device_finding(mine)]


def _extremes(rows: Sequence[Row]) -> str:
    """The smallest and the largest thing of rising rows, in words."""
    if len(rows) < 2:
        return ""
    first, last = rows[0], rows[-1]
    return f"At {first.node} it is {tables.interval(first)}, at {last.node} {tables.interval(last)}."


def _pays_finding(rows: Sequence[Row], mode: str) -> Finding:
    claim = "Compiling matrix products gains nothing, so the compile time is never paid back."
    where = "section 5.3"
    firsts = [
        first
        for first in select(rows, quantity="first_call", backend="torch", mode=mode)
        if first.value is not None and _calls_to_pay(rows, first) is not None
    ]
    if not firsts:
        return missing(claim, where, "first calls of matrix products with compile time")
    found = {f"{first.node} on {first.device}": _calls_to_pay(rows, first) for first in firsts}
    cases = len(firsts)
    verdicts = [_never(_calls_to_pay(rows, first, cases), cases) for first in firsts]
    low, high = (choose(firsts, key=lambda r: r.value or 0.0) for choose in (min, max))
    text = (
        f"With compile time the first call of a matrix product ({mode}) takes "
        f"{tables.duration(low.value)} to {tables.duration(high.value)}. Calls until that is paid back: "
        + "; ".join(f"{thing}: {calls(when)}" for thing, when in found.items())
        + "."
    )
    return Finding(text, claim, where, all_of(verdicts))


def _calls_to_pay(rows: Sequence[Row], first: Row, cases: int = 1) -> Interval | None:
    return paid_back(rows, first.mode, cases, node=first.node, device=first.device)


def _never(when: Interval | None, cases: int) -> str:
    """Verdict on the claim that a compile time is never paid back."""
    if when is None or not decisive(when, cases):
        return UNDECIDED
    if when.low == float("inf"):
        return AGREES
    return CONTRADICTS if when.high < float("inf") else UNDECIDED


def _numpy_finding(rows: Sequence[Row]) -> Finding:
    claim = "NumPy's matrix product takes about as long as PyTorch's on the CPU."
    found = [r for r in select(rows, quantity="ratio", backend=NUMPY) if r.value is not None]
    overall = pooled(found)
    if overall is None:
        return missing(claim, "section 5.3", "NumPy's matrix products")
    text = (
        f"NumPy takes {words(overall)} times as long as interpreted PyTorch (geometric mean over "
        f"{len(found)} sizes); {tally(found)} sizes. “About as long” is taken as within {SIMILAR:.0%}."
    )
    return Finding(text, claim, "section 5.3", within(overall, 1 / (1 + SIMILAR), 1 + SIMILAR))


def _device_finding(rows: Sequence[Row]) -> Finding:
    claim = f"Matrices smaller than {CPU_SIZES} are multiplied faster on the CPU than on the GPU."
    where = "section 5.3"
    compare, texts = [], []
    times = select(rows, quantity="time", backend="torch", mode=EAGER)
    for node, of_size in grouped(times, lambda row: row.node).items():
        cpu = one(of_size, device="cpu")
        gpu = next((r for r in of_size if r.device.startswith("cuda") and r.samples), None)
        if cpu is None or gpu is None or not cpu.samples or int(node.split()[-1]) >= CPU_SIZES:
            continue
        # Taken in different runs, so not in pairs.
        compare.append(partial(ratio_interval, cpu.samples, gpu.samples, paired=False))
        texts.append(f"{node}: {words(compare[-1]())}")
    cases = len(compare)
    found = [ratio(confidence=confidence_among(cases)) for ratio in compare]
    verdicts = [judged(ratio, 1.0, claimed_above=False, cases=cases) for ratio in found]
    if not verdicts:
        return missing(claim, where, "matrix products on both CPU and GPU")
    text = f"Time on the CPU relative to that on the GPU, interpreted: {'; '.join(texts)}."
    return Finding(text, claim, where, all_of(verdicts))


def _single_findings(rows: Sequence[Row]) -> list[Finding]:
    mine = select(rows, phase=SINGLE)
    mode = shown_mode(mine)
    slow = "Single convolutions are slower when they are compiled, whatever their kernel, stride and padding."
    nearest = "Convolutions with a 1x1 kernel come nearest to the interpreted ones."
    where = "section 5.4.1, figure 5.3"
    measured = ratios(mine, mode=mode)
    overall = pooled(measured)
    if overall is None:
        what = "single convolutions, interpreted against compiled"
        return [missing(slow, where, what), missing(nearest, where, what)]
    by_kernel = grouped(measured, kernel_of)
    device = measured[0].device
    text = (
        f"Single convolutions on {device}: compiled ({mode}) takes {words(overall)} times as long as "
        f"interpreted (geometric mean over {len(measured)} configurations); {tally(measured)} configurations."
    )
    cases = len(measured)
    each = [judged(row_interval(row, cases), 1.0, claimed_above=True, cases=cases) for row in measured]
    several = len(by_kernel)
    pools = {k: found for k, of in by_kernel.items() if (found := pooled(of, several)) is not None}
    per_kernel = "; ".join(f"{kernel}: {words(pooled(of))}" for kernel, of in by_kernel.items())
    return [
        Finding(text, slow, where, all_of(each)),
        Finding(
            f"Compiled relative to interpreted by kernel: {per_kernel}.", nearest, where, _nearest(pools)
        ),
    ]


def _nearest(pools: dict[str, Interval], claimed: str = "1x1") -> str:
    """Verdict on whether one kernel's ratio is nearer to 1 than every other one's, as factors."""
    if claimed not in pools or len(pools) < 2:
        return NOT_MEASURED
    if not all(decisive(found, len(pools)) for found in pools.values()):
        return UNDECIDED
    near, far = _distance(pools[claimed])
    others = [_distance(found) for kernel, found in pools.items() if kernel != claimed]
    if all(far < other_near for other_near, _ in others):
        return AGREES
    return CONTRADICTS if any(near > other_far for _, other_far in others) else UNDECIDED


def _distance(found: Interval) -> tuple[float, float]:
    """The smallest and the largest factor between 1 and a number in the interval, at least 1."""
    factors = [max(end, 1 / end) for end in (found.low, found.high)]
    return (1.0 if found.contains(1.0) else min(factors)), max(factors)


def _resnet_findings(rows: Sequence[Row]) -> list[Finding]:
    where = "section 5.4.2, figure 5.4"
    claims = {
        ALONE: (
            "each alone",
            "The convolutions of ResNet, each alone, are slower when they are compiled (taken as: on the "
            "geometric mean over their kinds).",
            True,
        ),
        INSIDE: (
            "inside of the network, by the profiler,",
            "By the profiler, convolutions become faster inside of a compiled ResNet (taken as: on the "
            "geometric mean over their kinds).",
            False,
        ),
    }
    found = []
    for phase, (how, claim, claimed) in claims.items():
        measured = ratios(rows, phase=phase, mode=shown_mode(select(rows, phase=phase)))
        overall = pooled(measured)
        if overall is None:
            found.append(missing(claim, where, f"the convolutions of ResNet-50 {how.rstrip(',')}"))
            continue
        text = (
            f"The {len(measured)} kinds of convolutions of ResNet-50 {how} take {words(overall)} times "
            f"as long compiled ({measured[0].mode}) as interpreted on {measured[0].device} (geometric mean); "
            f"{tally(measured)}."
        )
        unmatched = [r for r in select(rows, phase=phase, quantity="time") if r.verdict == "unsupported"]
        if unmatched:
            kinds = len({row.node for row in unmatched})
            text += f" {kinds} kinds could not be matched between the two networks and are left out."
        if phase == INSIDE:
            text += (
                " Layout changes and fused operations around a convolution are not in the profiler's times."
            )
        found.append(Finding(text, claim, where, judged(overall, 1.0, claimed_above=claimed)))
    return found


def _block_finding(rows: Sequence[Row]) -> Finding:
    claim = f"With more convolutions in a row the speedup converges to about {BLOCKS_SPEEDUP}."
    where = "section 5.4.3, figure 5.5"
    measured = ratios(rows, phase=BLOCK, mode=shown_mode(select(rows, phase=BLOCK)))
    largest = [max(of, key=count_of) for of in grouped(measured, block_kernel).values()]
    if not largest:
        return missing(claim, where, "blocks of convolutions")
    verdicts, texts = [], []
    for row in largest:
        cases = len(largest)
        verdicts.append(within(inverse(row, cases), BLOCKS_SPEEDUP - ABOUT, BLOCKS_SPEEDUP + ABOUT, cases))
        texts.append(f"{words(inverse(row))} for {row.node} convolutions")
    text = (
        f"Speedup by compiling ({largest[0].mode}) of the longest blocks on {largest[0].device}: "
        f"{'; '.join(texts)}. “About” is taken as from {BLOCKS_SPEEDUP - ABOUT:.2f} to "
        f"{BLOCKS_SPEEDUP + ABOUT:.2f}."
    )
    return Finding(text, claim, where, all_of(verdicts))


def mode_finding(rows: Sequence[Row]) -> Finding:
    """The finding about the modes of torch.compile, over everything that was measured in several of them."""
    claim = "The modes of torch.compile hardly differ in the times that they give."
    where = "sections 5.3 to 5.5.3"
    rows = select(rows, phase={products.PHASE, SINGLE, networks.PHASE})
    by_mode = mode_ratios(rows)
    overall = {mode: ratio for mode, of in by_mode.items() if (ratio := pooled(of)) is not None}
    if not overall:
        return missing(claim, where, "more than one mode of torch.compile")
    cases = len(overall)
    corrected = [ratio for mode in overall if (ratio := pooled(by_mode[mode], cases)) is not None]
    verdicts = [within(ratio, 1 - HARDLY, 1 + HARDLY, cases) for ratio in corrected]
    things = len({(r.phase, r.model, r.node, r.shape, r.device) for r in rows if r.mode in overall})
    text = "Time relative to the mode default (geometric mean over what was measured in both, "
    text += f"{things} things): " + "; ".join(f"{m}: {words(ratio)}" for m, ratio in overall.items())
    return Finding(f"{text}. “Hardly” is taken as within {HARDLY:.0%}.", claim, where, all_of(verdicts))
