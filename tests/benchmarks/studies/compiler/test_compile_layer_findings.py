"""Findings about layers from rows with known answers, on both sides of each border."""

from dataclasses import replace

import pytest

from meta500.benchmarks.studies.compiler import timing
from meta500.benchmarks.studies.compiler.findings_layers import CLAIMS, layer_findings
from meta500.benchmarks.studies.compiler.layer_numbers import ranking
from meta500.benchmarks.studies.compiler.sections_layers import layer_sections
from meta500.benchmarks.studies.compiler.settings import SMALL
from meta500.metrics.rows import Row

NETWORK = "alexnet"


def row(phase, value, spread=0.001, *, quantity="ratio", mode="eager", model=NETWORK, count=12, **more):
    """A row whose samples, interval and value are ``value`` give or take ``spread``."""
    samples = tuple(value + spread * (-1) ** k for k in range(count))
    return Row(
        level=1,
        phase=f"{phase}, default",
        model=model,
        mode=mode,
        backend="torch",
        device="cpu",
        quantity=quantity,
        unit="1" if quantity in ("ratio", "speedup") else "s",
        value=value,
        low=value - spread,
        high=value + spread,
        confidence=0.96,
        samples=samples,
        **more,
    )


def verdict(key, rows):
    claim, _ = CLAIMS[key]
    (found,) = [finding for finding in layer_findings(rows) if finding.claim == claim]
    return found.verdict


def words(rows):
    return " ".join(finding.text for finding in layer_findings(rows))


@pytest.mark.parametrize(
    ("values", "twice", "alike"),
    [
        ((1.9, 2.1), "agrees", "agrees"),
        ((2.0, 2.0), "agrees", "agrees"),
        ((1.05, 1.1), "contradicts", "agrees"),
        ((4.0, 4.0), "contradicts", "agrees"),
        ((1.2, 3.0), "agrees", "contradicts"),
    ],
)
def test_profiler(values, twice, alike):
    rows = [
        row(timing.RUN, value, 0.2 if values == (1.9, 2.1) else 0.06, mode=mode, protocol=timing.PROFILER)
        for value, mode in zip(values, ("eager", "default"), strict=True)
    ]
    assert verdict("profiler", rows) == twice
    assert verdict("consistent", rows) == alike


def test_wide_intervals_decide_nothing():
    rows = [row(timing.RUN, 2.0, 1.0, mode=mode, protocol=timing.PROFILER) for mode in ("eager", "default")]
    assert verdict("profiler", rows) == verdict("consistent", rows) == "undecided"
    few = [row(timing.RUN, 2.0, count=3, protocol=timing.PROFILER)]
    assert verdict("profiler", few) == "undecided"


@pytest.mark.parametrize(
    ("value", "spread", "expected"),
    [(1.01, 0.01, "agrees"), (1.2, 0.01, "contradicts"), (1.05, 0.02, "undecided")],
)
def test_timers(value, spread, expected):
    assert verdict("timers", [row(timing.RUN, value, spread, protocol=timing.LAYER_TIMERS)]) == expected


def speedups(values, protocol=timing.TIMERS, **more):
    return [
        row(
            timing.SEGMENT, value, 0.05, quantity="speedup", mode="default", protocol=protocol, step=i, **more
        )
        for i, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1.2, 0.8, 1.0), "agrees"),
        ((1.2, 1.3, 1.1), "contradicts"),
        ((0.9, 0.5), "contradicts"),
        ((1.2, 1.0), "undecided"),
    ],
)
def test_layers_on_both_sides(values, expected):
    assert verdict("sides", speedups(values)) == expected


def test_every_network_must_have_both_and_many_segments_count_more():
    first, second = speedups((1.2, 0.8)), speedups((1.2, 1.3), model="resnet50")
    assert verdict("sides", [*first, *second]) == "contradicts"
    fine = speedups((1.2, 0.8), protocol=timing.FINE, model="resnet50")
    assert verdict("sides", [*first, *second, *fine]) == "agrees"


def test_too_few_rounds_decide_nothing():
    few = [replace(found, confidence=0.75, samples=found.samples[:3]) for found in speedups((1.2, 0.8))]
    assert verdict("sides", few) == "undecided"
    (table, *_) = [p for s in layer_sections(few) for p in s.parts if hasattr(p, "rows")]
    assert table.rows[0][1:4] == ("2", "0", "0")


def bounds(value, spread):
    name = f"{timing.BEST_OF_TWO}, {timing.TIMERS}"
    return [
        row(timing.ORACLE, value, spread, quantity="speedup", mode=timing.SELECTIVE, protocol=protocol)
        for protocol in (name, f"{name}, {timing.HELD_OUT}", f"{name}, {timing.BY_CHANCE}")
    ]


@pytest.mark.parametrize(
    ("value", "spread", "expected"),
    [
        (1.035, 0.01, "agrees"),
        (1.2, 0.01, "contradicts"),
        (0.9, 0.01, "contradicts"),
        (1.05, 0.01, "undecided"),
    ],
)
def test_best_of_two(value, spread, expected):
    assert verdict("bound", bounds(value, spread)) == expected


def test_best_of_two_that_is_one_of_the_runs():
    """No interval to go by: then the segments say whether it is for want of rounds."""
    assert verdict("bound", [*bounds(1.0, 0.0), *speedups((1.3, 1.0))]) == "undecided"
    assert verdict("bound", [*bounds(1.0, 0.0), *speedups((1.3, 1.2))]) == "contradicts"


def configured(value, node="IC", spread=0.01, **more):
    return [
        row(
            timing.ORACLE,
            1.0,
            quantity="prediction",
            mode=timing.SELECTIVE,
            protocol=timing.DYNAMIC,
            node=node,
            **more,
        ),
        row(
            timing.CONFIGURATION, value, spread, mode=timing.SELECTIVE, node=node, baseline=timing.WHOLE,
            protocol=timing.END_TO_END, **more,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(("value", "expected"), [(1.1, "agrees"), (0.9, "contradicts"), (1.005, "undecided")])
def test_selective(value, expected):
    assert verdict("selective", configured(value)) == expected


def test_compiling_nothing_is_no_selective_compilation():
    assert verdict("selective", configured(0.9, node="II")) == "not measured"
    assert "the choice is to compile nothing, which takes 0.90" in words(configured(0.9, node="II"))
    others = configured(1.1, model="resnet50")
    assert verdict("selective", [*configured(0.9, node="II"), *others]) == "agrees"


@pytest.mark.parametrize(
    ("others", "expected"),
    [((), "not measured"), ((1.1, 1.2), "agrees"), ((1.1, 0.9), "contradicts"), ((1.1, 1.0), "undecided")],
)
def test_choosing_to_compile_all_is_judged_by_what_else_was_run(others, expected):
    rows = configured(1.0, node="CC")[:1]
    for node, value in zip(("IC", "CI"), others, strict=False):
        rows += configured(value, node=node)[1:]
    assert verdict("selective", rows) == expected


def every_claim(model):
    """Rows that decide every claim about layers on a CPU."""
    ratios = [
        row(timing.RUN, 2.0, mode=m, protocol=timing.PROFILER, model=model) for m in ("eager", "default")
    ]
    rows = [*ratios, row(timing.RUN, 1.01, protocol=timing.LAYER_TIMERS, model=model)]
    rows += [*speedups((1.2, 0.8), model=model), *configured(1.1, model=model)]
    return rows + [replace(found, model=model) for found in bounds(1.035, 0.01)]


CPU_CLAIMS = tuple(key for key in CLAIMS if key != "together")


def test_the_small_network_alone_decides_nothing():
    rows = every_claim(SMALL)
    assert {verdict(key, rows) for key in CPU_CLAIMS} == {"undecided"}
    found = [f for f in layer_findings(rows) if f.claim and f.verdict == "undecided"]
    assert all(f"Measured on {SMALL} alone" in f.text for f in found)


def test_the_small_network_has_no_vote_beside_others():
    opposite = [
        row(timing.RUN, 9.0, mode="eager", protocol=timing.PROFILER, model=SMALL),
        row(timing.RUN, 1.5, protocol=timing.LAYER_TIMERS, model=SMALL),
        *speedups((1.2, 1.3), model=SMALL),
        *(replace(found, model=SMALL) for found in bounds(1.5, 0.01)),
        *configured(0.5, model=SMALL),
    ]
    rows = [*every_claim(NETWORK), *opposite]
    assert {verdict(key, rows) for key in CPU_CLAIMS} == {"agrees"}


@pytest.mark.parametrize(
    ("clock", "waits", "both", "minimal", "notable"),
    [
        (1.01, 1.02, 1.8, "agrees", "agrees"),
        (1.01, 1.3, 1.8, "contradicts", "agrees"),
        (1.01, 1.02, 1.01, "agrees", "contradicts"),
        (1.01, None, 1.8, "undecided", "agrees"),
        (None, None, 1.8, "not measured", "agrees"),
    ],
)
def test_timers_on_a_gpu(clock, waits, both, minimal, notable):
    values = {timing.CLOCK_ALONE: clock, timing.WAITS_ALONE: waits, timing.LAYER_TIMERS: both}
    rows = [
        replace(row(timing.RUN, value, protocol=protocol), device="cuda:0")
        for protocol, value in values.items()
        if value is not None
    ]
    assert verdict("timers", rows) == minimal
    assert verdict("together", rows) == notable


def test_waiting_is_no_question_on_a_cpu():
    assert verdict("together", [row(timing.RUN, 1.8, protocol=timing.LAYER_TIMERS)]) == "not measured"


def test_segments_are_judged_together():
    """7 rounds: 98.4 % are enough for four segments, not for twelve."""
    four, twelve = (
        [replace(r, samples=r.samples[:7], confidence=0.984) for r in speedups((1.2, 0.8) * half)]
        for half in (2, 6)
    )
    assert verdict("sides", four) == "agrees"
    assert verdict("sides", twelve) == "undecided"


def test_subtraction_counts_negative_differences():
    rows = [
        row(timing.SEGMENT, value, 0.1, quantity="time", protocol=timing.SUBTRACTION, step=i)
        for i, value in enumerate((1.0, 0.05, -0.05, -1.0))
    ]
    assert "of 4 segment times 2 are negative; 2 intervals contain 0, 1 lie below it" in words(rows)


def test_prediction_against_outcome_and_ranks():
    choices = {"II": (4.0, 4.0), "IC": (2.0, 3.0), "CI": (3.0, 2.0), "CC": (1.5, 1.0)}
    rows = []
    for node, (guess, time) in choices.items():
        for quantity, value, protocol in (
            ("prediction", guess, timing.DYNAMIC),
            ("time", time, timing.END_TO_END),
        ):
            rows.append(
                row(timing.CONFIGURATION, value, quantity=quantity, protocol=protocol, node=node, mode="x")
            )
    for protocol in (timing.DYNAMIC, timing.ALL_CHOICES):
        rows.append(row(timing.ORACLE, 1.5, quantity="prediction", protocol=protocol, node="CC", mode="x"))
    text = words(rows)
    assert "alexnet +50%" in text
    assert "finds in 1 of 1 networks" in text
    # Ranks 4 2 3 1 and 4 3 2 1: 1 - 6 * 2 / (4 * 15).
    assert "of 4 choices that were all run" in text and "is 0.80" in text
    assert "has place 1, 0.0% behind the fastest, CC" in text
    (table, *_) = [
        p for s in layer_sections(rows) for p in s.parts if getattr(p, "title", "").startswith("Pred")
    ]
    assert [line[1] for line in table.rows] == ["interpreted", "compiled", timing.DYNAMIC]
    plain = [r for r in timing.by_mode(rows)["default"] if r.node != "IC"]
    assert ranking(plain, NETWORK) is None


def test_nothing_measured():
    assert {finding.verdict for finding in layer_findings([])} == {"not measured"}
    assert layer_sections([]) == []
    other = [Row(level=0, quantity="time", unit="s", value=1.0, phase="product", mode="default")]
    assert layer_sections(other) == [] and len(layer_findings(other)) == len(CLAIMS)


def test_failures_alone():
    failed = Row(
        level=1, quantity="time", unit="s", value=None, verdict="failed", note="no", model=NETWORK,
        phase=f"{timing.RUN}, default", mode="default", protocol=timing.SEPARATE,
    )  # fmt: skip
    assert layer_sections([failed]) == []
    assert {finding.verdict for finding in layer_findings([failed])} == {"not measured"}
