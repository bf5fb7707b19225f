"""The report from synthetic rows, on both sides of each claim."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from meta500.benchmarks.studies.compiler import Settings
from meta500.benchmarks.studies.compiler.convolutions import ALONE, BLOCK, SINGLE
from meta500.benchmarks.studies.compiler.findings_operations import mode_finding, operation_findings
from meta500.benchmarks.studies.compiler.networks import PHASE as NETWORK
from meta500.benchmarks.studies.compiler.products import PHASE as PRODUCT
from meta500.benchmarks.studies.compiler.profiled import INSIDE
from meta500.benchmarks.studies.compiler.sections_networks import (
    CLAIMS,
    network_findings,
    network_sections,
)
from meta500.benchmarks.studies.compiler.sections_operations import operation_sections
from meta500.metrics.plots import bars, lines, speedups
from meta500.metrics.report import Figure, Finding, Section, Table
from meta500.metrics.report.findings import AGREES, CONTRADICTS, NOT_MEASURED, UNDECIDED
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

MODES = Settings().chosen_modes
# Rounds differ a little, so that intervals have a width.
JITTER = (0.99, 1.0, 1.01, 1.0, 0.995, 1.005, 1.0, 0.992, 1.008, 1.0)


def row(samples: list[float], **columns: Any) -> Row:
    defaults = {"level": 0, "backend": "torch", "device": "cpu", "threads": 2, "version": "2.9", "unit": "s"}
    return Row(**{**defaults, **columns}, samples=tuple(samples), **asdict(median_interval(samples)))


def pair(
    factor: float, base: float = 1e-3, mode: str = "default", spread: float = 1.0, **columns: Any
) -> list[Row]:
    """Rows of something that takes ``factor`` times as long compiled as interpreted."""
    plain = [base] * len(JITTER)
    compiled = [base * factor * (1 + (j - 1) * spread) for j in JITTER]
    ratios = [c / p for c, p in zip(compiled, plain, strict=True)]
    return [
        row(plain, quantity="time", mode="eager", verdict="ok", error=1e-7, **columns),
        row(compiled, quantity="time", mode=mode, verdict="ok", error=2e-7, **columns),
        row(ratios, quantity="ratio", mode=mode, baseline="torch eager", **{**columns, "unit": "1"}),
    ]


def product(size: int, factor: float, **columns: Any) -> list[Row]:
    return pair(factor, phase=PRODUCT, node=f"size {size}", operator="MatMul", **columns)


def single(kernel: int, factor: float, **columns: Any) -> list[Row]:
    node = f"{kernel}x{kernel}, 8 to 8 on 9x9, stride 1, padding 1"
    return pair(factor, phase=SINGLE, node=node, operator="Conv", **columns)


def finding(findings: list[Finding], words: str) -> Finding:
    (found,) = [f for f in findings if words in f.claim]
    return found


def verdict(rows: list[Row], words: str) -> str:
    return finding(operation_findings(rows), words).verdict


@pytest.mark.parametrize(
    ("factor", "spread", "expected"),
    [(1.1, 1, AGREES), (0.9, 1, CONTRADICTS), (1.001, 1, UNDECIDED), (1.1, 50, UNDECIDED)],
)
def test_products(factor: float, spread: float, expected: str) -> None:
    rows = [r for size in (64, 256) for r in product(size, factor, spread=spread)]
    on_cpu, on_gpu = (f for f in operation_findings(rows) if "matrix product is slower" in f.claim)
    assert on_cpu.verdict == expected
    assert "2 sizes" in on_cpu.text and "cpu" in on_cpu.text
    assert on_gpu.verdict == NOT_MEASURED


def test_products_on_both_devices_have_a_finding_each() -> None:
    rows = product(64, 1.2) + product(64, 0.8, device="cuda:0")
    found = [f.verdict for f in operation_findings(rows) if "matrix product is slower" in f.claim]
    assert found == [AGREES, CONTRADICTS]


@pytest.mark.parametrize(("gpu", "expected"), [(2.0, AGREES), (0.5, CONTRADICTS), (1.0, UNDECIDED)])
def test_small_products_on_cpu_and_gpu(gpu: float, expected: str) -> None:
    rows = product(64, 1.0) + product(64, 1.0, base=1e-3 * gpu, device="cuda:0")
    rows += product(2048, 1.0) + product(2048, 1.0, base=1e-5, device="cuda:0")
    assert verdict(rows, "faster on the CPU than on the GPU") == expected


@pytest.mark.parametrize(
    ("factor", "expected", "words"),
    [(1.5, AGREES, "never"), (0.5, CONTRADICTS, "9001 [8930, 9074]"), (1.0, UNDECIDED, "never [")],
)
def test_compile_time_of_products(factor: float, expected: str, words: str) -> None:
    rows = product(64, factor)
    for mode, seconds in (("eager", 0.5), ("default", 5.0)):
        rows.append(
            row([seconds], quantity="first_call", mode=mode, phase=PRODUCT, node="size 64", operator="MatMul")
        )
    found = finding(operation_findings(rows), "never paid back")
    assert found.verdict == expected
    assert words in found.text and "5.00 s" in found.text


def paid(size: int, factor: float, samples: int = len(JITTER)) -> list[Row]:
    """A product with compile time."""
    what: dict[str, Any] = {"phase": PRODUCT, "node": f"size {size}", "operator": "MatMul"}
    rows = [
        row(list(r.samples[:samples]), **{**what, "quantity": r.quantity, "mode": r.mode, "unit": r.unit})
        for r in product(size, factor)
    ]
    for mode, seconds in (("eager", 0.5), ("default", 5.0)):
        rows.append(row([seconds], quantity="first_call", mode=mode, **what))
    return rows


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_few_samples_do_not_say_when_compiling_pays(factor: float) -> None:
    assert verdict(paid(64, factor, samples=3), "never paid back") == UNDECIDED
    assert verdict(paid(64, factor), "never paid back") != UNDECIDED


def test_one_of_many_contradicts_only_by_an_interval_that_is_wide_enough() -> None:
    """7 samples: 98.4 % are enough for one thing, not for each of nine."""
    one, *others = [paid(size, 0.5 if size == 1 else 1.0, samples=7) for size in range(1, 10)]
    assert verdict(one, "never paid back") == CONTRADICTS
    assert verdict([*one, *(r for rows in others for r in rows)], "never paid back") == UNDECIDED


def test_without_a_difference_many_things_seldom_contradict() -> None:
    rng = np.random.default_rng(0)
    what: dict[str, Any] = {"phase": SINGLE, "mode": "default", "quantity": "ratio", "unit": "1"}
    wrong = 0
    for _ in range(100):
        drawn = np.exp(0.02 * rng.standard_normal((9, 25)))
        rows = [row(list(r), node=f"3x3, 8 to 8, stride {i}, padding 1", **what) for i, r in enumerate(drawn)]
        wrong += verdict(rows, "Single convolutions are slower") == CONTRADICTS
    # Nine intervals of 95 %, of which one would be enough, would be wrong in about 20.
    assert wrong <= 5


@pytest.mark.parametrize(("factor", "expected"), [(1.1, AGREES), (2.0, CONTRADICTS), (0.4, CONTRADICTS)])
def test_numpy(factor: float, expected: str) -> None:
    samples = [factor * j for j in JITTER]
    rows = [row(samples, quantity="ratio", unit="1", backend="numpy", phase=PRODUCT, node="size 64")]
    assert verdict(rows, "NumPy") == expected


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1.1, 1.3, 1.6), AGREES),
        ((0.7, 0.8, 0.6), CONTRADICTS),
        # Slower by the mean, but the claim is about every kernel.
        ((0.8, 1.1, 1.6), CONTRADICTS),
        ((1.0, 1.1, 1.6), UNDECIDED),
    ],
)
def test_single_convolutions(factors: tuple[float, ...], expected: str) -> None:
    rows = [r for kernel, factor in zip((1, 3, 5), factors, strict=True) for r in single(kernel, factor)]
    assert verdict(rows, "Single convolutions are slower") == expected


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ((1.05, 1.5, 2.0), AGREES),
        ((0.98, 0.5, 2.0), AGREES),
        ((1.5, 1.05, 2.0), CONTRADICTS),
        ((0.5, 1.6, 1.9), CONTRADICTS),
        ((1.5, 1.5, 2.0), UNDECIDED),
    ],
)
def test_the_nearest_kernel(factors: tuple[float, ...], expected: str) -> None:
    rows = [r for kernel, factor in zip((1, 3, 5), factors, strict=True) for r in single(kernel, factor)]
    assert verdict(rows, "1x1 kernel") == expected


def test_the_nearest_kernel_needs_others() -> None:
    assert verdict(single(1, 1.1), "1x1 kernel") == NOT_MEASURED


@pytest.mark.parametrize(
    ("phase", "claim", "factor", "expected"),
    [
        (ALONE, "each alone", 1.3, AGREES),
        (ALONE, "each alone", 0.8, CONTRADICTS),
        (INSIDE, "By the profiler", 0.8, AGREES),
        (INSIDE, "By the profiler", 1.3, CONTRADICTS),
        (INSIDE, "By the profiler", 1.0, UNDECIDED),
    ],
)
def test_convolutions_of_resnet(phase: str, claim: str, factor: float, expected: str) -> None:
    rows = [r for node in ("a", "b") for r in pair(factor, phase=phase, node=node, model="resnet50")]
    assert verdict(rows, claim) == expected


def test_unmatched_convolutions_are_counted() -> None:
    rows = pair(0.8, phase=INSIDE, node="a", model="resnet50")
    rows.append(
        Row(
            level=1,
            quantity="time",
            unit="s",
            value=None,
            verdict="unsupported",
            phase=INSIDE,
            node="b",
            note="no",
        )
    )
    found = finding(operation_findings(rows), "By the profiler")
    assert "1 kinds could not be matched" in found.text
    (section,) = operation_sections(rows)
    (table,) = [part for part in section.parts if isinstance(part, Table)]
    assert table.rows[1][0] == "b" and "unsupported" in table.rows[1]


@pytest.mark.parametrize(
    ("speedups", "expected"),
    [((0.5, 0.95), AGREES), ((0.95, 0.5), CONTRADICTS), ((0.95, 1.3), CONTRADICTS), ((0.95, 1.0), UNDECIDED)],
)
def test_blocks(speedups: tuple[float, float], expected: str) -> None:
    rows = []
    for count, speedup in zip((1, 16), speedups, strict=True):
        rows += pair(1 / speedup, phase=BLOCK, node=f"{count} of 3x3")
    assert verdict(rows, "converges") == expected


@pytest.mark.parametrize(
    ("factor", "expected"), [(1.0, AGREES), (1.2, CONTRADICTS), (0.7, CONTRADICTS), (1.05, UNDECIDED)]
)
def test_modes(factor: float, expected: str) -> None:
    rows = product(64, 1.0) + product(64, factor, mode="max-autotune")
    found = mode_finding(rows)
    assert found.verdict == expected
    assert "max-autotune" in found.text
    assert mode_finding(product(64, 1.0)).verdict == NOT_MEASURED


@pytest.mark.parametrize(
    ("name", "factor", "expected"),
    [
        ("alexnet", 1.2, AGREES),
        ("alexnet", 0.8, CONTRADICTS),
        ("resnet50", 0.62, AGREES),
        ("resnet50", 1.2, CONTRADICTS),
        ("resnet50", 1.0, CONTRADICTS),
        # 1.02 times as fast is no significant gain.
        ("resnet50", 1 / 1.02, CONTRADICTS),
        ("resnet50", 1 / 1.1, UNDECIDED),
        ("resnet50", 1 / 1.13, AGREES),
        ("alexnet", 1.0, UNDECIDED),
        ("densenet121", 0.98, AGREES),
        ("densenet121", 0.5, CONTRADICTS),
        ("squeezenet1_1", 1.3, CONTRADICTS),
        ("squeezenet1_1", 0.91, UNDECIDED),
    ],
)
def test_networks(name: str, factor: float, expected: str) -> None:
    rows = pair(factor, phase=NETWORK, model=name)
    found = finding(network_findings(rows), CLAIMS[name].text)
    assert found.verdict == expected
    others = [f for f in network_findings(rows) if f.claim and f.claim != CLAIMS[name].text]
    assert len(others) == 5 and {f.verdict for f in others} == {NOT_MEASURED}


def test_numbers_of_the_conclusion_are_cited_from_there() -> None:
    places = {f.claim: f.where for f in network_findings([]) if f.claim}
    assert {"section 6.1" in place for claim, place in places.items() if "significantly" in claim} == {True}
    assert {"section 6.1" in place for claim, place in places.items() if "minimally" in claim} == {False}


def test_a_wrong_network_is_no_win() -> None:
    plain, compiled, _ = pair(0.5, phase=NETWORK, model="alexnet")
    wrong = Row(**{**asdict(compiled), "verdict": "wrong", "error": 0.3})
    findings = network_findings([plain, wrong])
    found = finding(findings, "AlexNet")
    assert found.verdict == NOT_MEASURED and "wrong" in found.text
    assert any("Beyond the tolerance: AlexNet (default)" in f.text for f in findings)


def test_compile_time_of_networks() -> None:
    rows = pair(0.5, phase=NETWORK, model="alexnet")
    for mode, seconds in (("eager", 0.5), ("default", 10.5)):
        rows.append(row([seconds], quantity="first_call", mode=mode, phase=NETWORK, model="alexnet"))
    (found,) = [f for f in network_findings(rows) if "compile time" in f.text]
    # 10 s more once, 0.5 ms less in each further call.
    assert "AlexNet: 10.5 s (calls until that is paid back: 20001 [" in found.text


def test_without_rows_everything_is_not_measured() -> None:
    findings = [*operation_findings([]), *network_findings([]), mode_finding([])]
    assert {f.verdict for f in findings} == {NOT_MEASURED}
    assert operation_sections([]) == network_sections([]) == []


def everything() -> list[Row]:
    rows: list[Row] = []
    for device in ("cpu", "cuda:0"):
        for size in (64, 256, 1024):
            for mode in MODES:
                rows += product(size, 1.1, base=1e-8 * size**2, mode=mode, device=device)
                rows.append(
                    row(
                        [5.0],
                        quantity="first_call",
                        mode=mode,
                        phase=PRODUCT,
                        node=f"size {size}",
                        device=device,
                    )
                )
    for kernel in (1, 3, 5):
        for mode in MODES:
            rows += single(kernel, 1 + kernel / 10, mode=mode)
    for phase, factor in ((ALONE, 1.2), (INSIDE, 0.8)):
        for node in (
            "3x3, 64 to 64 on 56x56, stride 1, padding 1",
            "1x1, 64 to 256 on 56x56, stride 1, padding 0",
        ):
            rows += pair(factor, phase=phase, node=node, model="resnet50")
    for count in (1, 2, 4):
        rows += pair(1 + 0.1 / count, phase=BLOCK, node=f"{count} of 3x3")
    for name in CLAIMS:
        for mode in MODES:
            rows += pair(0.8, phase=NETWORK, model=name, mode=mode)
    rows.append(
        Row(
            level=1,
            quantity="time",
            unit="s",
            value=None,
            verdict="failed",
            phase=NETWORK,
            model="x",
            mode="default",
        )
    )
    # What was interpreted is the same in every mode.
    keys = ("quantity", "backend", "mode", "phase", "node", "model", "device")
    return list({tuple(getattr(r, key) for key in keys): r for r in rows}.values())


def figures(sections: list[Section]) -> list[Figure]:
    return [part for section in sections for part in section.parts if isinstance(part, Figure)]


def test_all_figures_of_the_thesis_are_drawn() -> None:
    rows = everything()
    made = figures([*operation_sections(rows), *network_sections(rows)])
    assert [figure.name for figure in made] == [
        "matrix-products",
        "matrix-products-with-compile-time",
        "convolution-kernels",
        "resnet-convolutions",
        "convolution-blocks",
        "networks-relative",
        "networks",
    ]
    for figure in made:
        assert all(axes.has_data() for axes in figure.draw().axes if axes.axison)


@pytest.mark.parametrize("left_out", [PRODUCT, SINGLE, ALONE, INSIDE, BLOCK, NETWORK])
def test_any_part_may_be_missing(left_out: str) -> None:
    rows = [r for r in everything() if r.phase != left_out]
    sections = [*operation_sections(rows), *network_sections(rows)]
    assert sections
    findings = [*operation_findings(rows), *network_findings(rows)]
    assert any(f.verdict == NOT_MEASURED for f in findings)
    names = {figure.name for figure in figures(sections)}
    assert len(names) == {PRODUCT: 5, NETWORK: 5, ALONE: 7, INSIDE: 7}.get(left_out, 6)
    for figure in figures(sections):
        if figure.name == "resnet-convolutions":
            figure.draw()


class Reached(Exception):
    """The numbers of a figure were accepted, and drawing begins."""


def reached(*_: Any, **__: Any) -> None:
    raise Reached


@pytest.mark.parametrize("quantity", ["time", "ratio", "first_call"])
def test_any_quantity_may_be_missing(quantity: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bars, lines, speedups):
        monkeypatch.setattr(module, "new_figure", reached)
    rows = [r for r in everything() if r.quantity != quantity]
    made = figures([*operation_sections(rows), *network_sections(rows)])
    assert made
    for figure in made:
        with pytest.raises(Reached):
            figure.draw()
    found = {
        f.claim: f.verdict
        for f in [*operation_findings(rows), *network_findings(rows), mode_finding(rows)]
        if f.claim
    }
    unknown = {claim for claim, verdict in found.items() if verdict == NOT_MEASURED}
    missing = {
        "time": {"never paid back", "faster on the CPU", "NumPy", "modes of torch.compile"},
        "ratio": {"is slower than an interpreted", "whatever their kernel", "1x1 kernel", "converges"},
        "first_call": {"never paid back", "NumPy"},
    }[quantity]
    for words in missing:
        assert any(words in claim for claim in unknown)
    if quantity == "first_call":
        assert len(unknown) == len(missing)


def test_the_package_keeps_its_functions() -> None:
    """A module of the package with the name of one of its functions would take its place once imported."""
    from meta500.benchmarks.studies import compiler

    for _ in range(2):
        assert compiler.sections([])[0].title == "Findings"
        assert compiler.plan(Settings(quick=True, parts=("blocks",))).pieces


def test_the_whole_report_says_where_it_was_measured() -> None:
    from meta500.benchmarks.studies.compiler import sections

    first, *rest = sections(everything())
    assert first.title == "Findings"
    text = getattr(first.parts[0], "text", "")
    assert "V100" in text and "PyTorch 2.3.0" in text and "cpu, cuda:0" in text and "PyTorch 2.9" in text
    assert "Vision networks end to end" in [section.title for section in rest]
    assert sections([])[0].title == "Findings"
