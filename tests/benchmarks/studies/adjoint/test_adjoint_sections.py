"""The report from synthetic rows: every finding on both sides of its border, and without its rows."""

from __future__ import annotations

import dataclasses
import math

import pytest

from meta500.benchmarks.studies.adjoint import sections
from meta500.benchmarks.studies.adjoint.findings import computed, pooled
from meta500.metrics.report import Figure, Findings, Paragraph, Table
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

ROUNDS = 9


def spread(value: float) -> tuple[float, ...]:
    """Samples around a value, 2 % apart at most."""
    return tuple(value * (1 + 0.01 * math.sin(3 * i)) for i in range(ROUNDS))


def what(node: str, phase: str, form: str, threads: int, model: str = "stencil") -> dict:
    return {
        "level": 0, "model": model, "operator": "Stencil" if model == "stencil" else "Conv", "node": node,
        "phase": phase, "mode": form, "threads": threads, "backend": "generated",
    }  # fmt: skip


def adjoint_rows(
    times: dict[tuple[str, int], float], node: str = "1-D 3-point", model: str = "stencil",
    phase: str = "input gradient", verdict: str = "ok",
) -> list[Row]:  # fmt: skip
    """Rows as the measurement emits them, with the ratios of these times."""
    rows = []
    for (form, threads), seconds in times.items():
        columns = what(node, phase, form, threads, model)
        judged = {"error": 1e-7 if verdict == "ok" else 1.0, "tolerance": 1e-6, "verdict": verdict}
        interval = dataclasses.asdict(median_interval(spread(seconds)))
        rows.append(Row(**columns, quantity="error", unit="1", **judged, value=judged["error"]))
        rows.append(
            Row(
                **columns,
                quantity="time",
                unit="s",
                samples=spread(seconds),
                repeats=ROUNDS,
                **interval,
                **judged,
            )
        )
        bases = {
            "serial scatter": ("serial scatter", 1),
            "1 thread": (form, 1),
            "gather": ("gather", threads),
        }
        for name, base in bases.items():
            if base in times and base != (form, threads):
                # The noise is one round's, and cancels.
                ratio = spread(seconds / times[base])
                interval = dataclasses.asdict(median_interval(ratio))
                rows.append(
                    Row(
                        **columns,
                        quantity="ratio",
                        unit="1",
                        baseline=name,
                        samples=ratio,
                        **interval,
                        **judged,
                    )
                )
        shares = {
            "differing_runs": 0.5 if (form, threads) == ("atomics", 2) else 0.0,
            "differing_elements": 0.25,
        }
        rows += [Row(**columns, quantity=q, unit="1", value=v) for q, v in shares.items()]
    return rows


PAPER = {
    ("serial scatter", 1): 1.0, ("serial gather", 1): 1.3,
    ("gather", 1): 1.3, ("gather", 2): 0.7,
    ("reduction", 1): 1.5, ("reduction", 2): 1.2,
    ("atomics", 1): 5.0, ("atomics", 2): 4.0,
}  # fmt: skip
OPPOSITE = {
    ("serial scatter", 1): 1.0, ("serial gather", 1): 0.5,
    ("gather", 1): 0.5, ("gather", 2): 2.0,
    ("reduction", 1): 0.8, ("reduction", 2): 0.6,
    ("atomics", 1): 0.9, ("atomics", 2): 0.6,
}  # fmt: skip


def by_claim(rows: list[Row]) -> dict[str, list]:
    found: dict[str, list] = {}
    for finding in computed(rows):
        found.setdefault(finding.claim, []).append(finding)
    return found


def verdict_of(rows: list[Row], words: str) -> str:
    (finding,) = [f for claim, own in by_claim(rows).items() if words in claim for f in own]
    return finding.verdict


@pytest.mark.parametrize(("times", "verdict"), [(PAPER, "agrees"), (OPPOSITE, "contradicts")])
@pytest.mark.parametrize(
    "words",
    [
        "slows down serial code",
        "scales better",
        "the method pays off",
        "Atomic updates are potentially slow",
    ],
)
def test_claims_about_times(times, verdict, words) -> None:
    assert verdict_of(adjoint_rows(times), words) == verdict


def test_the_numbers_in_the_texts() -> None:
    found = by_claim(adjoint_rows(PAPER))
    (serial,) = found["Reorganisation slows down serial code."]
    assert (
        "takes 1.30 [" in serial.text and "over 1 of the stencils: slower for 1, faster for 0." in serial.text
    )
    (scaling,) = [f for c, own in found.items() if "scales better" in c for f in own]
    # 1.3 / 0.7 and 5 / 4; what is left, (0.7 / 1.3) / (4 / 5).
    assert "gather becomes 1.86" in scaling.text and "atomics 1.25" in scaling.text
    assert "the time that is left is 0.673" in scaling.text
    (pays,) = [f for c, own in found.items() if "pays off" in c for f in own]
    assert (
        "serial scatter 1.43" in pays.text and "reduction 1.71" in pays.text and "atomics 5.71" in pays.text
    )


def test_an_interval_over_the_border_decides_nothing() -> None:
    rows = adjoint_rows(PAPER)
    wide = tuple(0.8 if i % 2 else 1.3 for i in range(ROUNDS))
    rows = [
        dataclasses.replace(row, samples=wide)
        if row.quantity == "ratio" and row.mode == "serial gather" and row.baseline == "serial scatter"
        else row
        for row in rows
    ]
    assert verdict_of(rows, "slows down serial code") == "undecided"


def test_wrong_results_are_not_ranked() -> None:
    rows = adjoint_rows(PAPER, verdict="wrong")
    for words in ("slows down serial code", "scales better", "the method pays off", "potentially slow"):
        assert verdict_of(rows, words) == "not measured"
    assert "0 of 8 results are within" in computed(rows)[-1].text
    (table,) = [
        p for s in sections(rows) for p in s.parts if isinstance(p, Table) and p.title.startswith("Times")
    ]
    assert all("wrong!" in line[3] and set(line[4:]) == {"-"} for line in table.rows)


def test_adjoints_are_pooled_by_round() -> None:
    assert pooled([(1.0, 2.0, 9.0), (4.0, 8.0)]) == pytest.approx((2.0, 4.0))
    rows = adjoint_rows(PAPER) + adjoint_rows(OPPOSITE, node="2-D 5x5")
    (finding,) = by_claim(rows)["Reorganisation slows down serial code."]
    # The geometric mean of 1.3 and 0.5.
    assert "takes 0.806 [" in finding.text and "slower for 1, faster for 1." in finding.text
    assert finding.verdict == "undecided"


@pytest.mark.parametrize(
    "words", ["slows down serial code", "scales better", "the method pays off", "potentially slow"]
)
def test_adjoints_on_both_sides_decide_nothing(words) -> None:
    """Whatever their mean is: that of twenty like the one and one like the other lies far on one side."""
    for many, few, verdict in ((PAPER, OPPOSITE, "agrees"), (OPPOSITE, PAPER, "contradicts")):
        rows = [row for i in range(20) for row in adjoint_rows(many, node=f"stencil {i}")]
        assert verdict_of(rows, words) == verdict
        assert verdict_of([*rows, *adjoint_rows(few, node="2-D 5x5")], words) == "undecided"


def test_forms_are_compared_over_the_same_adjoints() -> None:
    """One adjoint without atomic additions, on which gather is slow, has no part in any of the means."""
    slow = {("serial scatter", 1): 1.0, ("gather", 2): 9.0, ("reduction", 2): 1.0}
    rows = adjoint_rows(PAPER) + adjoint_rows(slow, node="2-D 5x5")
    (finding,) = [f for c, own in by_claim(rows).items() if "pays off" in c for f in own]
    assert finding.verdict == "agrees" and "over 1 of the stencils" in finding.text
    assert "serial scatter 1.43" in finding.text and "reduction 1.71" in finding.text


@pytest.mark.parametrize(("overhead", "verdict"), [(1.5, "agrees"), (3.0, "undecided"), (9.0, "contradicts")])
def test_few_atomic_additions_are_hidden(overhead, verdict) -> None:
    conv = {("serial scatter", 1): 1.0, ("atomics", 1): overhead}
    rows = adjoint_rows(PAPER) + adjoint_rows(conv, node="3x3 convolution, 2 to 2 at 8", model="unet-0")
    assert verdict_of(rows, "hide a few of them") == verdict
    assert verdict_of(adjoint_rows(PAPER), "hide a few of them") == "not measured"


def loop(axis: str, write: float, read: float, model: str = "stencil") -> list[Row]:
    columns = {"level": 0, "model": model, "node": "s", "unit": "1", "mode": f"loop {axis}"}
    return [
        Row(**columns, phase="write", quantity="exclusive_write", value=write),
        Row(**columns, phase="read of u", quantity="exclusive_read", value=read, note="both touch [1]"),
    ]


def test_parallel_loops_and_exclusive_reads() -> None:
    words = "does not make its adjoint parallel"
    rows = loop("i", 1, 0) + loop("j", 1, 1) + loop("r", 0, 0)
    (finding,) = [f for c, own in by_claim(rows).items() if words in c for f in own]
    assert finding.verdict == "agrees" and "Of 2 pairs" in finding.text
    assert "1 read exclusively and 1 do not" in finding.text and "both touch [1]" in finding.text
    assert verdict_of(loop("j", 1, 1) + loop("r", 0, 0), words) == "contradicts"
    assert verdict_of(adjoint_rows(PAPER), words) == "not measured"


def test_what_can_be_detected() -> None:
    words = "may be detected"
    assert verdict_of(loop("i", 1, 0), words) == "agrees"
    assert verdict_of(loop("i", 1, 0) + loop("j", 1, math.nan), words) == "undecided"
    example = loop("i", 1, math.nan, model="example")
    assert verdict_of(example, words) == "not measured"
    assert verdict_of(loop("i", 1, 0) + example, words) == "agrees"


def stencil_again(points: tuple[int, int], own: float) -> list[Row]:
    columns = {"level": 0, "model": "stencil", "node": "s", "unit": "1"}
    return [
        Row(**columns, phase="primal", quantity="points", value=points[0]),
        Row(**columns, phase="adjoint", quantity="points", value=points[1]),
        Row(**columns, phase="adjoint", quantity="transposed", value=own, note="for w<9"),
    ]


@pytest.mark.parametrize(
    ("points", "own", "verdict"),
    [((3, 3), 1, "agrees"), ((3, 4), 1, "undecided"), ((3, 3), 0, "contradicts")],
)
def test_the_adjoint_of_a_stencil(points, own, verdict) -> None:
    assert verdict_of(stencil_again(points, own), "can be a stencil") == verdict


def memory(allocated: int) -> list[Row]:
    columns = {**what("2-D 5x5", "input gradient", "reduction", 2), "quantity": "private_memory", "unit": "B"}
    gather = {**columns, "mode": "gather", "protocol": "resident"}
    return [
        Row(**columns, protocol="predicted", value=4 << 20),
        Row(**columns, protocol="allocated", value=allocated),
        Row(**columns, protocol="resident", value=5 << 20),
        Row(**gather, value=1 << 20),
    ]


@pytest.mark.parametrize(("allocated", "exact"), [(4 << 20, 1), (3 << 20, 0)])
def test_memory(allocated, exact) -> None:
    texts = [f.text for f in computed(memory(allocated))]
    (text,) = [t for t in texts if t.startswith("Private copies cost")]
    assert "2.00 MiB per thread" in text and "4.00 MiB with 2 threads" in text
    assert f"allocated in {exact} of 1 cases" in text
    (section,) = [s for s in sections(memory(allocated)) if s.title.startswith("Memory")]
    (table,) = [p for p in section.parts if isinstance(p, Table)]
    assert table.rows[0][2] == "4.00 MiB" and table.rows[0][4] == "4.00 MiB"  # 5 MiB less the 1 MiB of gather


def test_repeatability_is_counted() -> None:
    text = computed(adjoint_rows(PAPER))[-1].text
    assert "atomics repeats itself bit by bit in 0 of 1 cases" in text
    assert "gather repeats itself bit by bit in 1 of 1 cases" in text
    assert "10% of its tolerance" in text


def test_without_rows_nothing_fails() -> None:
    found = sections([])
    assert found[0].title == "Findings"
    (findings,) = found[0].parts
    assert isinstance(findings, Findings)
    assert {f.verdict for f in findings.findings} <= {"not measured", ""}
    assert all(isinstance(p, Paragraph) for s in found[1:] for p in s.parts)


def test_a_form_that_is_not_there_is_said() -> None:
    times = {key: s for key, s in PAPER.items() if key[0] not in ("reduction", "atomics")}
    rows = adjoint_rows(times, node="2x2 up-convolution, 8 to 8 at 32", model="unet-3")
    for form in ("reduction", "atomics"):
        columns = what("2x2 up-convolution, 8 to 8 at 32", "input gradient", form, 2, "unet-3")
        rows.append(Row(**columns, quantity="time", unit="s", value=None, verdict="unsupported", note="why"))
    (table,) = [p for s in sections(rows) for p in s.parts if isinstance(p, Table) and "Times" in p.title]
    assert [line[3] for line in table.rows].count("unsupported") == 2
    for figure in (p for s in sections(rows) for p in s.parts if isinstance(p, Figure)):
        assert figure.draw() is not None


def test_a_busy_machine_is_told_and_decides_nothing_about_threads() -> None:
    def alone(share: float) -> list[Row]:
        columns = what("1-D 3-point", "input gradient", "gather", 2)
        return [*adjoint_rows(PAPER), Row(**columns, quantity="processor_share", unit="1", value=share)]

    def warned(rows: list[Row]) -> bool:
        parts = [p for s in sections(rows) for p in s.parts if isinstance(p, Paragraph)]
        return any("as little as 60% of their processors" in p.text for p in parts)

    assert warned(alone(0.6)) and not warned(alone(0.95))
    for words in ("scales better", "the method pays off"):
        assert verdict_of(alone(0.6), words) == "undecided" and verdict_of(alone(0.95), words) == "agrees"
    assert verdict_of(alone(0.6), "slows down serial code") == "agrees"


@pytest.mark.parametrize("shares", [[], [math.nan]])
def test_an_unknown_share_of_the_processors_is_said(shares) -> None:
    columns = {**what("1-D 3-point", "input gradient", "gather", 2), "quantity": "processor_share"}
    unknown = [Row(**columns, unit="1", value=share) for share in shares]
    known = Row(**columns, unit="1", value=0.97)
    for rows, said in ((unknown, True), ([known], False)):
        for words in ("scales better", "the method pays off"):
            found = by_claim([*adjoint_rows(PAPER), *rows])
            (finding,) = [f for claim, own in found.items() if words in claim for f in own]
            assert ("not known for 1 of them" in finding.text) == said
            assert finding.verdict == "agrees"
    # What is known of another adjoint counts, wherever the unknown one comes.
    other = {**columns, "node": "2-D 5x5", "unit": "1", "value": 0.5}
    for rows in ([*unknown, Row(**other)], [Row(**other), *unknown]):
        both = [*adjoint_rows(PAPER), *adjoint_rows(PAPER, node="2-D 5x5"), *rows]
        assert verdict_of(both, "scales better") == "undecided"


def test_all_figures_are_drawn() -> None:
    conv = "3x3 convolution, 2 to 2 at 8"
    rows = adjoint_rows(PAPER) + adjoint_rows(OPPOSITE, node="2-D 5x5") + memory(4 << 20)
    rows += adjoint_rows(PAPER, node=conv, model="unet-0")
    rows += adjoint_rows(OPPOSITE, node=conv, model="unet-0", phase="weight gradient")
    figures = [p for s in sections(rows) for p in s.parts if isinstance(p, Figure)]
    assert [f.name for f in figures] == [
        "time-1-d-3-point", "time-2-d-5x5", "time-unet-0-input-gradient", "time-unet-0-weight-gradient",
        "speedup-stencils", "speedup-convolutions", "memory",
    ]  # fmt: skip
    drawn = {figure.name: figure.draw() for figure in figures}
    titles = [axes.get_title() for axes in drawn["speedup-stencils"].axes]
    assert titles == ["1-D 3-point", "2-D 5x5"]
    gather = next(line for line in drawn["speedup-stencils"].axes[0].lines if line.get_label() == "gather")
    assert list(gather.get_xdata()) == [1, 2]
    assert list(gather.get_ydata()) == pytest.approx([1 / 1.3, 1 / 0.7], rel=0.02)
