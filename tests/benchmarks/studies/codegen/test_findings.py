"""Findings from rows with known numbers, on both sides of each border."""

from dataclasses import asdict, replace

import pytest

from meta500.benchmarks.studies.codegen import findings
from meta500.benchmarks.studies.codegen.cases import headline_cases, slowdown
from meta500.benchmarks.studies.codegen.counters import CACHE_MISSES, MEMORY_CONTROLLERS
from meta500.metrics.report.findings import AGREES, CONTRADICTS, NOT_MEASURED, UNDECIDED
from meta500.metrics.statistics import median_interval


def test_one_interval_of_nine_may_miss(synthetic):
    """What one case alone would contradict is undecided among nine: one in three such studies has one."""
    ratios = (0.99, 1.01, 0.98, 0.98, 0.97, 0.97, 0.96, 0.96, 0.95, 0.95, 0.94)
    alone = median_interval(ratios)
    assert alone.high < 1
    rows = []
    for n in range(9):
        where = synthetic.point(n=n)
        race = synthetic.race(where, 1.0, eager=1.0)
        samples = ratios if not n else tuple(1 / r for r in ratios)
        found = median_interval(samples)
        ends = {"value": found.value, "low": found.low, "high": found.high, "confidence": found.confidence}
        rows += [replace(r, samples=samples, **ends) if r.quantity == "ratio" else r for r in race]
    first = [r for r in rows if r.model == "unet-0"]
    assert findings.against_torch(first)[0].verdict == CONTRADICTS
    assert findings.against_torch(rows)[0].verdict == UNDECIDED
    # Without overlap nine cases are as clear as one.
    clear = [
        replace(r, samples=tuple(x / 2 for x in r.samples), value=0.5, low=0.4, high=0.6)
        if r.quantity == "ratio"
        else r
        for r in rows
    ]
    assert findings.against_torch(clear)[0].verdict == CONTRADICTS


@pytest.mark.parametrize(
    ("eager", "verdict"), [(0.5, AGREES), (0.995, UNDECIDED), (1.005, UNDECIDED), (1.1, CONTRADICTS)]
)
def test_faster_than_eager_pytorch(synthetic, eager, verdict):
    rows = synthetic.race(synthetic.point(), 1.0, eager=eager)
    against_eager, against_fastest = findings.against_torch(rows)
    assert against_eager.verdict == against_fastest.verdict == verdict
    assert f"{1 / eager:.3g}"[:4] in against_eager.text and "U-Net(0) (2 threads)" in against_eager.text


def test_the_fastest_variant_decides_the_second_finding(synthetic):
    rows = synthetic.race(synthetic.point(), 1.0, eager=0.5, compile=1.25)
    against_eager, against_fastest = findings.against_torch(rows)
    assert (against_eager.verdict, against_fastest.verdict) == (AGREES, CONTRADICTS)
    assert "PyTorch compile" in against_fastest.text and "0.800" in against_fastest.text


def test_wrong_results_never_win(synthetic):
    wrong = [
        synthetic.row("generated", "epoch_rate", 5.0, verdict="wrong"),
        synthetic.row("eager", "epoch_rate", 1.0),
        synthetic.row("eager", "ratio", 5.0, baseline="generated"),
    ]
    (case,) = headline_cases(wrong)
    assert slowdown(wrong, case, "eager") is None
    assert [f.verdict for f in findings.against_torch(wrong)] == [NOT_MEASURED] * 2
    # Nor does a wrong variant of PyTorch stand in the way.
    rows = synthetic.race(synthetic.point(), 1.0, eager=0.5)
    rows.append(synthetic.row("channels-last", "epoch_rate", 9.0, verdict="wrong"))
    assert [f.verdict for f in findings.against_torch(rows)] == [AGREES] * 2


def test_too_few_samples_decide_nothing(synthetic):
    rows = [
        synthetic.row("generated", "epoch_rate", 1.0),
        synthetic.row("eager", "epoch_rate", 0.1),
        synthetic.row("eager", "ratio", 10.0, baseline="generated", confidence=0.75),
    ]
    assert {f.verdict for f in findings.against_torch(rows)} == {UNDECIDED}


def test_headlines_take_the_most_threads(synthetic):
    rows = synthetic.race(synthetic.point(threads=1), 1.0, eager=2.0)
    rows += synthetic.race(synthetic.point(threads=2), 2.0, eager=1.0)
    assert [c.threads for c in headline_cases(rows)] == [2]
    assert findings.against_torch(rows)[0].verdict == AGREES


@pytest.mark.parametrize(("large", "verdict"), [(5.0, AGREES), (9.9, UNDECIDED), (20.0, CONTRADICTS)])
def test_speedup_by_workload(synthetic, large, verdict):
    rows = synthetic.race(synthetic.point(n=0, batch=8), 10.0, eager=1.0)
    rows += synthetic.race(synthetic.point(n=3, batch=8), large, eager=1.0)
    by_size, by_batch = findings.of_workload(rows)
    assert (by_size.verdict, by_batch.verdict) == (verdict, NOT_MEASURED)
    rows = synthetic.race(synthetic.point(n=0, batch=8), 10.0, eager=1.0)
    rows += synthetic.race(synthetic.point(n=0, batch=64), large, eager=1.0)
    by_size, by_batch = findings.of_workload(rows)
    assert (by_size.verdict, by_batch.verdict) == (NOT_MEASURED, verdict)


@pytest.mark.parametrize(("double", "verdict"), [(7.45, AGREES), (2.6, UNDECIDED), (1.5, CONTRADICTS)])
def test_double_precision(synthetic, double, verdict):
    rows = synthetic.race(synthetic.point(n=3), 2.57, eager=1.0)
    assert findings.double_precision(rows).verdict == NOT_MEASURED
    rows += synthetic.race(synthetic.point(n=3, dtype="float64"), double, eager=1.0)
    found = findings.double_precision(rows)
    assert found.verdict == verdict and "U-Net(3) at batch 8" in found.text


@pytest.mark.parametrize(("torch", "verdict"), [(5.0, AGREES), (8.0, UNDECIDED), (12.0, CONTRADICTS)])
def test_scaling_over_threads(synthetic, torch, verdict):
    rows = synthetic.race(synthetic.point(threads=1), 1.0, eager=0.5)
    assert findings.threads(rows).verdict == NOT_MEASURED
    rows += synthetic.race(synthetic.point(threads=16), 13.0, eager=0.5 * torch)
    found = findings.threads(rows)
    assert found.verdict == verdict and found.claim == "PyTorch scales poorly across the node."
    assert f"an efficiency of {torch / 16:.0%}," in found.text and "an efficiency of 81%" in found.text


def test_two_threads_say_little_about_a_node(synthetic):
    rows = synthetic.race(synthetic.point(threads=1), 1.0, eager=0.5)
    rows += synthetic.race(synthetic.point(threads=2), 1.9, eager=0.55)
    found = findings.threads(rows)
    assert found.verdict == UNDECIDED and "So few threads say little about a node" in found.text


@pytest.mark.parametrize(
    ("measured", "title"),
    [
        ([(0, 8), (3, 8), (3, 64)], "U-Net(3), batch 64: "),
        ([(0, 8), (0, 64), (3, 8)], "U-Net(3), batch 8: "),
        ([(1, 8), (2, 8)], "U-Net(1), batch 8: "),
    ],
)
def test_scaling_is_told_of_the_thesis_case_where_it_was_measured(synthetic, measured, title):
    rows = []
    for n, batch in measured:
        rows += synthetic.race(synthetic.point(n=n, batch=batch, threads=1), 1.0, eager=0.5)
        rows += synthetic.race(synthetic.point(n=n, batch=batch, threads=16), 13.0, eager=2.0)
    found = findings.threads(rows)
    assert found.text.startswith(title) and found.verdict == AGREES


def generation_rows(synthetic, generating, compiling, rate=None):
    small, large = synthetic.point(n=0), synthetic.point(n=3)
    rows = [synthetic.row("generated", "parameters", 5879.0, small)]
    rows += [synthetic.row("generated", "parameters", 368955.0, large)]
    for where, g, c in ((small, 1.0, 5.0), (large, generating, compiling)):
        rows += [synthetic.timed("generating", g, where), synthetic.timed("compiling", c, where)]
        if rate is not None:
            rows += synthetic.race(where, rate, eager=rate / 2)
    return rows


@pytest.mark.parametrize(("growth", "verdict"), [(1.05, AGREES), (1.1, UNDECIDED), (1.5, CONTRADICTS)])
def test_growth_of_generation(synthetic, growth, verdict):
    by_generating, by_compiling, _ = findings.generation(generation_rows(synthetic, growth, 5 * growth))
    assert by_generating.verdict == by_compiling.verdict == verdict
    assert "62.8 times the parameters" in by_generating.text


@pytest.mark.parametrize(("rate", "verdict"), [(0.1, AGREES), (1 / 6, UNDECIDED), (0.5, CONTRADICTS)])
def test_generation_beside_training(synthetic, rate, verdict):
    # Six seconds; an epoch is 1 / rate seconds.
    *_, found = findings.generation(generation_rows(synthetic, 1.0, 5.0, rate))
    assert found.verdict == verdict
    # Eager takes 2 / rate an epoch: what is gained back in one is 1 / rate.
    assert f"gained back against PyTorch eager after {6 * rate:.3g} epochs" in found.text


@pytest.mark.parametrize(("share", "verdict"), [(0.5, AGREES), (0.8, UNDECIDED), (0.9, CONTRADICTS)])
def test_memory(synthetic, share, verdict):
    rows = [synthetic.row("eager", "peak_memory", 2.0**30), synthetic.row("compile", "peak_memory", 2.0**31)]
    assert findings.memory(rows).verdict == NOT_MEASURED
    rows.append(synthetic.row("generated", "peak_memory", share * 2.0**30))
    found = findings.memory(rows)
    assert found.verdict == verdict and "1024 MiB (PyTorch eager)" in found.text


def test_one_process_decides_nothing_about_memory(synthetic):
    single = {"spread": 0.0, "confidence": 0.0}
    rows = [synthetic.row("eager", "peak_memory", 2.0**30, **single)]
    rows.append(synthetic.row("generated", "peak_memory", 2.0**28, **single))
    found = findings.memory(rows)
    assert found.verdict == UNDECIDED and "A single process of each decides nothing" in found.text
    assert "256 MiB against 1024 MiB" in found.text


@pytest.mark.parametrize(("processes", "verdict"), [(8, AGREES), (6, UNDECIDED)])
def test_memory_of_nine_cases(synthetic, processes, verdict):
    """The full study's processes are enough for the intervals of all its cases."""
    rows = []
    for n in range(9):
        for variant, peak in (("eager", 2.0**30), ("generated", 2.0**28)):
            samples = tuple(peak * (1 + k / 1000) for k in range(processes))
            found = asdict(median_interval(samples))
            one = synthetic.row(variant, "peak_memory", peak, synthetic.point(n=n), samples=samples)
            rows.append(replace(one, **found))
    assert findings.memory(rows).verdict == verdict


@pytest.mark.parametrize(("share", "verdict"), [(0.9, AGREES), (0.5, UNDECIDED), (0.3, CONTRADICTS)])
def test_convolutions_dominate(synthetic, share, verdict):
    assert findings.layers([]).verdict == NOT_MEASURED
    row = synthetic.row("generated", "convolution_share", share, synthetic.point(threads=1))
    assert findings.layers([row]).verdict == verdict


# -- roofline -------------------------------------------------------------------------------------------------


def counted(synthetic, **more):
    """Convolution 0 of the thesis in one call: half an epoch."""
    numbers = {"flops": 14.495e9 / 2, "bytes_read": 402.65e6 / 2, "bytes_written": 1073.74e6 / 2}
    return [synthetic.convolution(quantity, value) for quantity, value in (numbers | more).items()]


@pytest.mark.parametrize(
    ("peak", "bandwidth", "verdict"), [(1267e9, 70e9, AGREES), (300e9, 70e9, CONTRADICTS)]
)
def test_convolution_0_under_the_roofline(synthetic, peak, bandwidth, verdict):
    rows = counted(synthetic) + synthetic.roofs(peak, bandwidth)
    bound = findings.roofline(rows)[0]
    # 14.5 GFLOP on 1.476 GB.
    assert bound.verdict == verdict and "9.82 operations per byte" in bound.text
    assert bound.text.startswith("Convolution 0 of U-Net(3) at batch 64 does")
    assert findings.roofline(counted(synthetic))[0].verdict == NOT_MEASURED


@pytest.mark.parametrize(
    ("share", "note", "verdict"),
    [
        (0.33, "bound by memory", AGREES),
        (0.5, "bound by memory", UNDECIDED),
        (0.8, "bound by memory", CONTRADICTS),
        (0.33, "bound by memory; its data fit the last-level cache", UNDECIDED),
    ],
)
def test_share_of_light_speed(synthetic, share, note, verdict):
    rows = [synthetic.convolution("light_share", share, note=note, verdict="ok")]
    first, second = findings.roofline(rows)[1:3]
    assert (first.verdict, second.verdict) == (verdict, NOT_MEASURED)


@pytest.mark.parametrize(
    ("factor", "source", "verdict"),
    [
        (1.8, MEMORY_CONTROLLERS, AGREES),
        (1.1, MEMORY_CONTROLLERS, UNDECIDED),
        (1.0, MEMORY_CONTROLLERS, CONTRADICTS),
        (1.8, CACHE_MISSES, AGREES),
        # Prefetched lines are not among the misses.
        (0.3, CACHE_MISSES, UNDECIDED),
    ],
)
def test_traffic(synthetic, factor, source, verdict):
    rows = counted(synthetic)
    for quantity, least in (("traffic_read", 201.33e6), ("traffic_written", 536.87e6)):
        samples = tuple(least * factor * (1 + k / 500) for k in range(-5, 6))
        rows.append(synthetic.convolution(quantity, least * factor, samples=samples, note=f"{source}, here"))
    found = findings.roofline(rows)[3]
    assert found.verdict == verdict and f"Counters ({source}, here) saw {factor:.3g}" in found.text
    assert ("it is at least that" in found.text) == (source == CACHE_MISSES)


def test_a_single_run_of_the_counters_decides_nothing(synthetic):
    more = {"confidence": 0.0, "spread": 0.0, "note": MEMORY_CONTROLLERS}
    rows = [*counted(synthetic), synthetic.convolution("traffic_read", 1e12, **more)]
    assert findings.roofline(rows)[3].verdict == UNDECIDED


def test_traffic_without_counters_gives_the_reason(synthetic):
    rows = counted(synthetic)
    rows.append(synthetic.convolution("traffic_read", None, verdict="unsupported", note="a virtual machine"))
    found = findings.roofline(rows)[3]
    assert found.verdict == NOT_MEASURED and "a virtual machine" in found.text
