"""Findings from made-up rows, on both sides of each border."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from meta500.benchmarks.studies.abstraction import sections
from meta500.benchmarks.studies.abstraction.findings import (
    accuracy,
    break_even,
    copies,
    fastest,
    findings,
    less_memory,
    narrows,
    operator_cost,
    same_memory,
    slower,
    together,
    trained,
)
from meta500.benchmarks.studies.abstraction.footprint import OWN_PROCESS, OWN_PROCESSES
from meta500.metrics.report.findings import AGREES, CONTRADICTS, NOT_MEASURED, UNDECIDED
from meta500.metrics.report.parts import Figure, Findings, Paragraph, Table
from meta500.metrics.rows import Row

INFERENCE, TRAINING = "inference", "training_step"


def row(name: str, quantity: str, value: float | None, **more: Any) -> Row:
    batch, size = more.pop("batch", 8), more.pop("size", 64)
    spread = more.pop("spread", 1.01)
    columns: dict[str, Any] = {
        "level": 1,
        "model": "resnet50",
        "phase": INFERENCE,
        "shape": f"{batch}x3x{size}x{size}",
        "batch": batch,
        "backend": name,
        "unit": "s" if quantity in ("time", "first_call", "dispatch") else "1",
        "confidence": 0.95,
    }
    if value is not None:
        columns |= {"low": value / spread, "high": value * spread}
    return Row(quantity=quantity, value=value, **{**columns, **more})


def timed(name: str, seconds: float, **more: Any) -> Row:
    return row(name, "time", seconds, **{"verdict": "ok", "error": 1e-6, "tolerance": 1e-4, **more})


def ratio(name: str, gap: float, **more: Any) -> Row:
    """The ratio of a level that is ``gap`` times as fast as eager."""
    return row(name, "ratio", 1 / gap, baseline="eager", **more)


@pytest.mark.parametrize(
    ("gaps", "verdict"),
    [
        ({"torchscript": 8.0, "libtorch": 6.0}, AGREES),
        ({"torchscript": 8.0, "onednn": 4.5}, CONTRADICTS),
        ({"torchscript": 8.0, "libtorch": 1.1}, CONTRADICTS),
        ({"torchscript": 8.0, "libtorch": 5.02}, UNDECIDED),
        ({"torchscript": 5.06}, AGREES),
        ({"torchscript": 4.94}, CONTRADICTS),
        ({"compile": 20.0}, NOT_MEASURED),
        ({}, NOT_MEASURED),
    ],
)
def test_an_order_of_magnitude_is_five_times_against_every_level_of_the_paper(
    gaps: dict[str, float], verdict: str
) -> None:
    finding = slower([ratio(name, gap) for name, gap in gaps.items()])
    assert finding.verdict == verdict
    if verdict == CONTRADICTS and "libtorch" in gaps:
        assert "1.10" in finding.text


@pytest.mark.parametrize(
    ("smallest", "other", "verdict"),
    [(8.0, 1.5, AGREES), (8.0, 0.9, CONTRADICTS), (8.0, 1.005, UNDECIDED), (4.0, 8.0, CONTRADICTS)],
)
def test_at_larger_points_the_order_of_magnitude_may_shrink_but_not_vanish(
    smallest: float, other: float, verdict: str
) -> None:
    rows = [ratio("libtorch", smallest, batch=1, size=32), ratio("libtorch", other, batch=64, size=32)]
    assert slower(rows).verdict == verdict
    assert slower([rows[0], ratio("libtorch", other, batch=1, size=256)]).verdict == verdict


@pytest.mark.parametrize(
    ("first", "last", "verdict"),
    [
        (4.0, 1.5, AGREES),
        (1.5, 4.0, CONTRADICTS),
        (1.5, 1.5, UNDECIDED),
        (0.9, 0.5, CONTRADICTS),
        (1.0, 0.5, UNDECIDED),
        (2.0, 1.95, AGREES),
        (2.0, 1.97, UNDECIDED),
    ],
)
def test_a_difference_narrows_only_if_there_was_one(first: float, last: float, verdict: str) -> None:
    by_batch = [ratio("libtorch", first, batch=1), ratio("libtorch", 9.0, batch=4)]
    by_batch.append(ratio("libtorch", last, batch=64))
    assert narrows(by_batch, "batch").verdict == verdict
    assert narrows(by_batch, "size").verdict == NOT_MEASURED
    by_size = [ratio("libtorch", first, size=8), ratio("libtorch", last, size=256)]
    assert narrows(by_size, "size").verdict == verdict
    assert narrows(by_size, "batch").verdict == NOT_MEASURED


def memory(name: str, mib: float, **more: Any) -> Row:
    size = mib * 2**20
    samples = tuple(size * (1 + 1e-3 * (2 * k / 5 - 1)) for k in range(more.pop("processes", 6)))
    ends = {"low": samples[0], "high": samples[-1]}
    return row(name, "network_memory", size, samples=samples, **{**ends, "protocol": OWN_PROCESSES, **more})


@pytest.mark.parametrize(
    ("mib", "verdict"),
    [
        *((100, AGREES), (109.7, AGREES), (91.1, AGREES), (109.9, UNDECIDED), (110.1, UNDECIDED)),
        *((91.0, UNDECIDED), (90.8, UNDECIDED), (110.5, CONTRADICTS), (90.5, CONTRADICTS)),
    ],
)
def test_libtorch_needs_the_same_memory_within_a_tenth(mib: float, verdict: str) -> None:
    assert same_memory([memory("eager", 100), memory("libtorch", mib)]).verdict == verdict


@pytest.mark.parametrize(
    ("mib", "verdict"),
    [(90, AGREES), (99.7, AGREES), (99.9, UNDECIDED), (100.1, UNDECIDED), (100.3, CONTRADICTS)],
)
def test_torchscript_needs_less_memory_at_every_point(mib: float, verdict: str) -> None:
    rows = [memory("eager", 100), memory("torchscript", mib), memory("onednn", 10)]
    assert less_memory(rows).verdict == verdict
    more = [memory("eager", 100, batch=16), memory("torchscript", 150, batch=16)]
    assert less_memory([*rows, *more]).verdict == CONTRADICTS


def test_few_processes_decide_nothing_about_memory() -> None:
    for processes in (1, 2, 5):
        rows = [memory("eager", 100), memory("torchscript", 50, processes=processes)]
        finding = less_memory(rows)
        assert finding.verdict == UNDECIDED
        words = "one process of" if processes == 1 else f"{processes} processes of"
        assert f"Known from {words} a level, it decides nothing: that takes 6." in finding.text
    assert "nothing" not in less_memory([memory("eager", 100), memory("torchscript", 50)]).text
    # Six samples may be readings of one process.
    rows = [memory(name, mib, protocol=OWN_PROCESS) for name, mib in (("eager", 100), ("torchscript", 50))]
    assert less_memory(rows).verdict == UNDECIDED
    assert "one process" in less_memory(rows).text


def test_a_network_that_adds_no_memory_is_said_and_decides_nothing() -> None:
    rows = [memory("eager", 100), memory("libtorch", 100)]
    lost = [memory("eager", 0, batch=1), memory("libtorch", 100, batch=1)]
    finding = same_memory([*rows, *lost])
    assert finding.verdict == UNDECIDED
    assert "libtorch at batch 1, size 64" in finding.text
    finding = same_memory(lost)
    assert finding.verdict == NOT_MEASURED
    assert "libtorch at batch 1" in finding.text


def test_on_a_gpu_the_memory_is_that_of_the_gpu() -> None:
    rows = [memory("eager", 100, device="cuda"), memory("libtorch", 10, device="cuda")]
    assert same_memory(rows).verdict == NOT_MEASURED
    there = [
        row(name, "device_memory", mib * 2**20, device="cuda", spread=1.0)
        for name, mib in (("eager", 500), ("libtorch", 505))
    ]
    assert same_memory([*rows, *there]).verdict == UNDECIDED
    assert "Known from one process of a level, it decides nothing." in same_memory([*rows, *there]).text
    assert "on the GPU" in same_memory([*rows, *there]).text


def test_memory_without_eager_is_not_measured() -> None:
    assert same_memory([memory("libtorch", 5)]).verdict == NOT_MEASURED
    assert less_memory([memory("eager", 5)]).verdict == NOT_MEASURED


def test_torchscript_that_was_trained_contradicts_and_one_that_refuses_agrees() -> None:
    done = timed("torchscript", 0.1, phase=TRAINING)
    assert trained([done]).verdict == CONTRADICTS
    none = {"phase": TRAINING, "note": "a traced module cannot be trained"}
    assert trained([row("torchscript", "time", None, verdict="unsupported", **none)]).verdict == AGREES
    assert trained([row("torchscript", "time", None, verdict="failed", **none)]).verdict == UNDECIDED
    wrong = trained([timed("torchscript", 0.1, phase=TRAINING, verdict="wrong", error=0.07)])
    assert wrong.verdict == UNDECIDED
    assert "trains wrongly" in wrong.text and "0.07" in wrong.text
    shape = {"phase": TRAINING, "verdict": "wrong", "error": None, "tolerance": None, "note": "shape (3,)"}
    assert (
        "trains wrongly at batch 8, size 64: shape (3,)."
        in trained([timed("torchscript", 0.1, **shape)]).text
    )
    unknown = {"phase": TRAINING, "verdict": "not_compared", "note": "no reference"}
    open_ = trained([timed("torchscript", 0.1, **unknown)])
    assert open_.verdict == UNDECIDED
    assert "is trained, but its results are not known to be right: no reference" in open_.text
    assert trained([timed("torchscript", 0.1)]).verdict == NOT_MEASURED


def test_first_steps_say_what_they_give_and_decide_nothing_about_many_epochs() -> None:
    rows = [timed("eager", 1.0), timed("libtorch", 1.0)]
    assert accuracy(rows).verdict == NOT_MEASURED
    assert accuracy([*rows, timed("onednn", 1.0)]).verdict == NOT_MEASURED
    assert "give the results of float64" in accuracy(rows).text
    wrong = accuracy([*rows, timed("onednn", 1.0, verdict="wrong", error=0.5)])
    assert wrong.verdict == NOT_MEASURED
    assert "Wrong: onednn (inference, batch 8, size 64)" in wrong.text
    assert accuracy([]).verdict == NOT_MEASURED


@pytest.mark.parametrize(("factor", "verdict"), [(2.0, AGREES), (1.0, CONTRADICTS)])
def test_copies_are_compared_where_there_is_a_gpu(factor: float, verdict: str) -> None:
    rows = [row("eager", "copied_to_device", factor * 100), row("libtorch", "copied_to_device", 100)]
    assert copies(rows).verdict == verdict
    assert copies(rows[:1]).verdict == NOT_MEASURED


def test_a_wrong_level_is_never_the_fastest() -> None:
    rows = [timed("eager", 1.0), timed("generated", 0.5), timed("onednn", 0.1, verdict="wrong")]
    finding = fastest(rows, INFERENCE)
    assert finding is not None
    assert "generated with 500" in finding.text
    assert "onednn" not in finding.text
    assert fastest(rows, TRAINING) is None


def test_a_wrong_level_is_left_out_of_gaps_and_memory() -> None:
    wrong = timed("torchscript", 0.1, verdict="wrong")
    assert slower([wrong, ratio("torchscript", 9.0)]).verdict == NOT_MEASURED
    rows = [wrong, memory("eager", 100), memory("torchscript", 10)]
    assert less_memory(rows).verdict == NOT_MEASURED


def test_a_first_call_is_paid_back_by_faster_steps_only() -> None:
    def start(name: str, seconds: float) -> Row:
        return row(name, "first_call", seconds, verdict="ok")

    rows = [timed("eager", 1.0), start("eager", 2.0), timed("compile", 0.5), start("compile", 12.3)]
    finding = break_even([*rows, timed("export", 1.005), start("export", 1.0)])
    assert finding is not None
    assert "compile after 21 steps" in finding.text
    assert "export" not in finding.text
    slow = break_even([timed("eager", 1.0), start("eager", 1.0)])
    assert slow is not None
    assert "no level" in slow.text


def test_the_cost_of_an_operator_is_told_even_where_noise_makes_it_negative() -> None:
    rows = [row("eager", "dispatch", 5e-6, operator="elementwise")]
    lost = {"low": -2e-7, "high": 3e-7, "operator": "elementwise"}
    rows.append(row("generated", "dispatch", 1e-8, **lost))
    finding = operator_cost(rows)
    assert finding is not None
    assert "eager 5.00" in finding.text
    assert "[-0.200, 0.300]" in finding.text


@pytest.mark.parametrize(
    ("verdicts", "all_of_them"),
    [
        ([], NOT_MEASURED),
        ([AGREES, AGREES], AGREES),
        ([AGREES, UNDECIDED], UNDECIDED),
        ([AGREES, UNDECIDED, CONTRADICTS], CONTRADICTS),
    ],
)
def test_a_claim_about_all_falls_with_one(verdicts: Sequence[str], all_of_them: str) -> None:
    assert together(verdicts) == all_of_them


def _texts(rows: Sequence[Row]) -> str:
    found: list[str] = []
    for section in sections(rows):
        found.append(section.title)
        for part in section.parts:
            if isinstance(part, Paragraph):
                found.append(part.text)
            elif isinstance(part, Table):
                found += [" | ".join(cells) for cells in (part.columns, *part.rows)]
            elif isinstance(part, Findings):
                found += [finding.text for finding in part.findings]
    return "\n".join(found)


def test_the_report_of_nothing_says_that_nothing_was_measured() -> None:
    assert {f.verdict for f in findings([]) if f.claim} == {NOT_MEASURED}
    assert [section.title for section in sections([])] == ["Findings"]


def test_a_missing_level_stands_in_the_table_with_its_reason() -> None:
    here = row("eager", "available", 1.0, operator="PyTorch eager", note="nn layers")
    gone = row("cudnn", "available", None, verdict="unsupported", operator="cuDNN", note="no GPU here")
    text = _texts([here, gone])
    assert "cuDNN | cudnn | - | no: no GPU here" in text
    assert "PyTorch eager | eager | nn layers | yes" in text


def test_another_network_than_the_papers_is_named() -> None:
    assert "not the paper's" not in _texts([timed("eager", 1.0)])
    assert "mlp, not the paper's ResNet-50" in _texts([timed("eager", 1.0, model="mlp")])


def test_the_whole_report_with_all_figures_is_made_from_rows() -> None:
    rows: list[Row] = []
    for name, seconds in (("eager", 1.0), ("torchscript", 0.9), ("generated", 0.5)):
        rows.append(row(name, "available", 1.0, operator=name.title(), note="runs"))
        for batch, size in ((1, 64), (8, 64), (1, 32)):
            at: dict[str, Any] = {"batch": batch, "size": size}
            for phase in (INFERENCE, TRAINING):
                rows.append(timed(name, seconds * batch, phase=phase, **at))
                rows.append(
                    row(name, "first_call", 2.0, phase=phase, verdict="ok", note="making 1 s; x", **at)
                )
                if name != "eager":
                    rows.append(ratio(name, 1 / seconds, phase=phase, **at))
            rows.append(row(name, "time_per_operator", seconds * batch / 1e3, **at))
            rows.append(row(name, "peak_memory", 3e8, unit="B", **at))
            rows.append(row(name, "network_memory", 1e8 * batch, unit="B", **at))
            rows.append(row(name, "allocations", 120.0, **at))
            rows.append(row(name, "allocated_bytes", 1e6, unit="B", **at))
        for kind in ("elementwise", "residual block"):
            rows.append(row(name, "dispatch", seconds * 1e-6, operator=kind, model=f"{kind} chain"))
    report = sections(rows)
    drawn = [part for section in report for part in section.parts if isinstance(part, Figure)]
    assert {figure.name for figure in drawn} == {
        "time-inference",
        "time-training-step",
        "ratio-inference",
        "ratio-training-step",
        "memory-inference",
        "memory-bars",
        "allocations-bars",
        "dispatch",
    }
    for figure in drawn:
        assert figure.draw().axes
    text = _texts(rows)
    assert "level | elementwise | residual block | network, batch 1, size 32" in text
    assert "Generated | 0.500 [0.495, 0.505] | 0.500 [0.495, 0.505] | 500 [495, 505]" in text
    assert "batch 8, size 64 | 8.00 s | 7.20 s | 4.00 s" in text


def test_the_package_keeps_its_functions_once_their_modules_are_imported() -> None:
    import meta500.benchmarks.studies.abstraction as package

    package.plan(package.Settings(quick=True))
    for _ in range(2):
        assert package.sections([])
        assert package.plan(package.Settings(quick=True)).pieces
