"""The report of the study, made from its rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from meta500.backends.generated.ir import GATHER, REDUCTION
from meta500.benchmarks.studies.adjoint import figures, findings
from meta500.benchmarks.studies.adjoint.forms import FORMS, SERIAL_SCATTER
from meta500.benchmarks.studies.adjoint.measurement import ONE_THREAD
from meta500.benchmarks.studies.select import one, select, unique
from meta500.benchmarks.tables import interval, timed
from meta500.metrics.report import Findings, Paragraph, Section, Table
from meta500.metrics.report.parts import Part
from meta500.metrics.rows import Row

_READS = {1.0: "exclusive", 0.0: "not exclusive"}


def made(rows: Sequence[Row]) -> list[Section]:
    """All sections; figures and tables without data are left out."""
    return [
        Section("Findings", [Findings(findings.computed(rows))]),
        Section("Exclusive reads", _exclusive(rows)),
        Section("The adjoint of a stencil", _transposed(rows)),
        Section("Run time and scaling", _times(rows)),
        Section("Numbers", _numbers(rows)),
        Section("Memory of private copies", _memory(rows)),
    ]


def _or_nothing(parts: Sequence[Part], what: str) -> list[Part]:
    return list(parts) or [Paragraph(f"{what}: not measured.")]


def _verdict(row: Row | None) -> str:
    if row is None or row.value is None:
        return "-"
    return "unknown" if math.isnan(row.value) else _READS[row.value]


# -- loops ---------------------------------------------------------------------------------------------------


def _exclusive(rows: Sequence[Row]) -> list[Part]:
    parts: list[Part] = []
    examples = select(rows, model="example", quantity="exclusive_read")
    if examples:
        parts.append(
            Table(
                "The example loops of the slides, parallel over i",
                ["loop", "read of", "verdict", "why"],
                [[row.node, row.phase.removeprefix("read of "), _verdict(row), row.note] for row in examples],
                left=4,
            )
        )
    lines = _loop_lines([row for row in rows if row.model != "example"])
    if lines:
        note = (
            "A loop is parallel if its iterations write elements of their own; its adjoint in the same "
            "form is "
            "parallel if they also read elements of their own. Loops that are the same but for sizes are "
            "one line. "
            "Of a convolution n counts images, k filters, c channels, i and j rows and columns, r and q taps."
        )
        columns = ["loops of", "loop", "parallel", "tensor", "reads", "how many", "witness of the first"]
        parts.append(Table("Verdicts per loop", columns, lines, left=7, note=note))
    return _or_nothing(parts, "Loops")


def _loop_lines(rows: Sequence[Row]) -> list[list[str]]:
    """Verdicts on reads, those of convolutions with the same kernel together."""
    writes = {(row.model, row.node, row.mode): row for row in select(rows, quantity="exclusive_write")}
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in select(rows, quantity="exclusive_read"):
        name = row.node if row.model == "stencil" else row.node.split(",")[0]
        write = writes.get((row.model, row.node, row.mode))
        parallel = {"exclusive": "yes", "not exclusive": "no"}.get(_verdict(write), _verdict(write))
        line = (name, row.mode.removeprefix("loop "), parallel, row.phase.removeprefix("read of "))
        found.setdefault((*line, _verdict(row)), []).append(row)
    return [[*line, str(len(own)), own[0].note] for line, own in found.items()]


def _transposed(rows: Sequence[Row]) -> list[Part]:
    lines = []
    for row in select(rows, quantity="transposed"):
        counts = [
            one(rows, model=row.model, node=row.node, quantity="points", phase=phase)
            for phase in ("primal", "adjoint")
        ]
        points = ["-" if c is None or c.value is None else f"{c.value:.0f}" for c in counts]
        name = row.node if row.model == "stencil" else f"{row.node} ({row.model})"
        lines.append([name, row.note, *points, "yes" if row.value == 1 else "no"])
    if not lines:
        return _or_nothing([], "Transposed loops")
    columns = ["subject", "loops of the gathered adjoint", "points", "points of the adjoint", "own elements"]
    note = (
        "Points are terms behind one element; 'own elements': all loops of the adjoint write elements of "
        "their own, so that every one of them is parallel."
    )
    return [Table("Gathered adjoints", columns, lines, left=2, note=note)]


# -- times ---------------------------------------------------------------------------------------------------


def _times(rows: Sequence[Row]) -> list[Part]:
    parts: list[Part] = [
        *figures.time_bars(rows),
        *figures.convolution_bars(rows),
        *figures.speed_lines(rows),
    ]
    parts[:0] = _busy(rows)
    for model in unique(select(rows, quantity="time"), "model"):
        lines = _time_lines([row for row in rows if row.model == model])
        columns = ["adjoint", "form", "threads", "time [95 %]"]
        columns += [f"to {base}" for base in (SERIAL_SCATTER, ONE_THREAD, GATHER)]
        note = "Ratios of times, paired by round: less than 1 is faster. Wrong results have no ratios."
        parts.append(Table(f"Times of {model}", columns, lines, left=2, note=note))
    return _or_nothing(parts, "Times")


def _busy(rows: Sequence[Row]) -> list[Part]:
    """A warning where others used the processors."""
    adjoints = [findings.key(row) for row in select(rows, quantity="processor_share")]
    share = findings.least_share(rows, adjoints)
    if not share < findings.ALONE:
        return []
    text = (
        f"The threads had as little as {share:.0%} of their processors, since other programs used them. A "
        "thread "
        "that waits for a processor holds up its team: times with several threads are then those of "
        "waiting. Run "
        "the study again on a machine of your own."
    )
    return [Paragraph(text)]


def _time_lines(rows: Sequence[Row]) -> list[list[str]]:
    places = {which: n for n, which in enumerate(dict.fromkeys(findings.key(row) for row in rows))}
    ratios = {
        (findings.key(row), row.mode, row.threads, row.baseline): row
        for row in select(rows, quantity="ratio")
    }

    def order(row: Row) -> tuple[int, int, int]:
        form = FORMS.index(row.mode) if row.mode in FORMS else len(FORMS)
        return places[findings.key(row)], form, row.threads or 0

    lines = []
    for row in sorted(select(rows, quantity="time"), key=order):
        right = row.verdict != "wrong"
        found = [
            ratios.get((findings.key(row), row.mode, row.threads, base)) if right else None
            for base in (SERIAL_SCATTER, ONE_THREAD, GATHER)
        ]
        seconds = timed(row) if right else f"{timed(row)} wrong!"
        cells = [_adjoint(row), row.mode, str(row.threads or "-"), seconds]
        lines.append([*cells, *(interval(one_) for one_ in found)])
    return lines


def _adjoint(row: Row) -> str:
    return row.node if row.model == "stencil" else f"{row.node}, {row.phase}"


# -- numbers and memory --------------------------------------------------------------------------------------


def _numbers(rows: Sequence[Row]) -> list[Part]:
    lines = []
    shares = {
        (row.quantity, findings.key(row), row.mode, row.threads): row
        for row in rows
        if row.quantity in ("differing_elements", "differing_runs")
    }
    for row in select(rows, quantity="error"):
        others = [
            shares.get((quantity, findings.key(row), row.mode, row.threads))
            for quantity in ("differing_elements", "differing_runs")
        ]
        differing = ["-" if o is None or o.value is None else f"{o.value:.1%}" for o in others]
        error, limit = row.error, row.tolerance
        known = error is not None and limit is not None
        lines.append(
            [
                _adjoint(row) if row.model == "stencil" else f"{_adjoint(row)} ({row.model})",
                row.mode,
                str(row.threads),
                f"{error:.1e}" if known else "-",
                f"{limit:.1e}" if known else "-",
                row.verdict,
                *differing,
            ]
        )
    if not lines:
        return _or_nothing([], "Errors")
    columns = [
        "adjoint", "form", "threads", "error", "tolerance", "verdict", "differing elements", "differing runs",
    ]  # fmt: skip
    note = (
        "Error: largest distance from float64, relative to the larger of element and root mean square. "
        "Differing "
        f"elements: share that differs in a bit from {SERIAL_SCATTER}. Differing runs: share of repeated "
        "runs that "
        "differ in a bit from the first."
    )
    return [Table("Errors and repeatability", columns, lines, left=2, note=note)]


def _memory(rows: Sequence[Row]) -> list[Part]:
    found = select(rows, quantity="private_memory", mode=REDUCTION, protocol="predicted")
    if not found:
        return _or_nothing([], "Private copies")
    lines = []
    for row in found:
        known = figures.memory_of(rows, row)
        sizes = [known.get(name) for name in ("predicted", "allocated", "resident")]
        name = _adjoint(row) if row.model == "stencil" else f"{_adjoint(row)} ({row.model})"
        lines.append([name, str(row.threads), *("-" if s is None else findings.size_text(s) for s in sizes)])
    columns = ["adjoint", "threads", "predicted", "allocated", "resident"]
    note = (
        "Bytes of all private copies; 'resident' is by how much more a process of its own grows than "
        "with gather, "
        "in whole pages."
    )
    return [*figures.memory_bars(rows), Table("Private copies", columns, lines, note=note)]
