"""The report of the study, computed from its rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meta500.benchmarks.studies.abstraction import figures
from meta500.benchmarks.studies.abstraction.findings import findings
from meta500.benchmarks.studies.abstraction.found import (
    BASELINE,
    Point,
    at,
    names,
    point_of,
    right,
    scanned,
    titles,
    wrong_levels,
)
from meta500.benchmarks.studies.abstraction.level import INFERENCE, TRAINING
from meta500.benchmarks.studies.select import one, select, unique
from meta500.benchmarks.tables import duration, interval, size, timed
from meta500.metrics.plots.style import number
from meta500.metrics.report.parts import Figure, Findings, Paragraph, Part, Section, Table
from meta500.metrics.rows import Row

PHASES = {INFERENCE: "inference", TRAINING: "training step"}


def sections(rows: Sequence[Row]) -> list[Section]:
    """The report, computed from the rows alone; what was not measured is left out."""
    found = [
        Section("Findings", [*_about(rows), Findings(findings(rows))]),
        Section("Levels of abstraction", _levels(rows)),
        Section("Correctness", _correctness(rows)),
        *(Section(f"Time of {_article(phase)}", _times(rows, phase)) for phase in PHASES),
        Section("Memory and allocations", _memory(rows)),
        Section("Cost of an operator", _dispatch(rows)),
        Section("Start", _start(rows)),
        Section("Accelerator", _accelerator(rows)),
    ]
    return [section for section in found if section.parts]


def _article(phase: str) -> str:
    return "inference" if phase == INFERENCE else "a training step"


def _about(rows: Sequence[Row]) -> list[Part]:
    """Which network was run: the paper's, or another one."""
    models = [
        m for m in unique(select(rows, quantity={"time", "peak_memory"}), "model") if not m.endswith(" chain")
    ]
    models = [m for m in models if m != "abstraction"]
    if not models or models == ["resnet50"]:
        return []
    return [
        Paragraph(
            f"The network is {' and '.join(models)}, not the paper's ResNet-50: with other arithmetic "
            "behind each operator the levels lie differently far apart, and the verdicts on the paper's "
            "claims hold for this network alone."
        )
    ]


def _levels(rows: Sequence[Row]) -> list[Part]:
    found = select(rows, quantity="available")
    if not found:
        return []
    lines = []
    for name in names(found):
        row = next(row for row in found if row.backend == name)
        can = "yes" if row.value is not None else f"no: {row.note}"
        what = row.note if row.value is not None else "-"
        lines.append((row.operator or name, name, what, can, _trains(rows, name), row.version or "-"))
    columns = ("level", "name", "what runs", "here", "training", "version")
    note = "From the highest level of abstraction down."
    return [Table("Levels", columns, lines, left=6, note=note)]


def _trains(rows: Sequence[Row], name: str) -> str:
    """Whether a level was trained, or why not."""
    found = [r for r in select(rows, backend=name, phase=TRAINING, quantity="time") if not r.operator]
    if not found:
        return "not measured"
    if any(row.value is not None and row.verdict == "ok" for row in found):
        return "yes"
    row = found[-1]
    return {"unsupported": f"no: {row.note}", "failed": f"failed: {row.note}"}.get(row.verdict, row.verdict)


def _correctness(rows: Sequence[Row]) -> list[Part]:
    lines = []
    for phase, word in PHASES.items():
        found = scanned(rows, "time", phase)
        for name in names(found):
            mine = [row for row in found if row.backend == name and row.error is not None]
            if not mine:
                continue
            worst = max(mine, key=lambda row: (row.verdict == "wrong", row.error or 0.0))
            points = sum(row.verdict == "ok" for row in mine)
            lines.append(
                (
                    titles(rows)[name],
                    word,
                    f"{worst.error:.1e}",
                    f"{worst.tolerance:.1e}" if worst.tolerance is not None else "-",
                    f"{points} of {len(mine)}",
                    worst.verdict,
                )
            )
    if not lines:
        return []
    note = (
        "Largest error of all points against float64: of logits the largest difference relative to the "
        "element or to the root mean square; of training the first loss and its decrease by the first "
        "update. A level that is wrong at a point has no ratio and no place in a ranking there."
    )
    columns = ("level", "phase", "largest error", "tolerance", "points right", "verdict")
    table = Table("Error against float64", columns, lines, left=2, note=note)
    wrong = [f"{titles(rows)[n]} at {p.words}" for phase in PHASES for n, p in wrong_levels(rows, phase)]
    parts: list[Part] = [table]
    if wrong:
        parts.append(Paragraph(f"Left out of all comparisons as wrong: {', '.join(dict.fromkeys(wrong))}."))
    return parts


def _times(rows: Sequence[Row], phase: str) -> list[Part]:
    found = right(rows, "time", phase)
    if not found:
        return []
    parts: list[Part] = []
    word = PHASES[phase].replace(" ", "-")
    panels = figures.scan_panels(rows, "time", phase)
    if panels:
        caption = (
            f"Time per image of {_article(phase)} against batch at a fixed size and against size at a "
            "fixed batch; medians with 95 % intervals (the paper's figures 8 to 14)."
        )
        parts.append(Figure(f"time-{word}", caption, partial(figures.draw_scans, panels)))
    ratios = figures.ratios_to_baseline(rows, phase)
    if ratios:
        caption = f"Time of {_article(phase)} relative to PyTorch eager, paired by round."
        parts.append(Figure(f"ratio-{word}", caption, partial(figures.draw_ratio_plot, ratios)))
    levels = names(found)
    points = sorted({point_of(row) for row in found})
    lines = [(_point(p), *(_cell(at(found, name, p)) for name in levels)) for p in points]
    columns = ("point", *(titles(rows)[name] for name in levels))
    note = "Medians; of what is left out the reason is below, intervals are in the figures and rows."
    parts.append(Table(f"Time of {_article(phase)}", columns, lines, note=note))
    others = [name for name in levels if name != BASELINE]
    compared = right(rows, "ratio", phase)
    if compared:
        lines = [(_point(p), *(interval(at(compared, name, p)) for name in others)) for p in points]
        columns = ("point", *(titles(rows)[name] for name in others))
        parts.append(
            Table("Relative to PyTorch eager", columns, lines, note="Median of the ratios of each round.")
        )
    return parts


def _cell(row: Row | None) -> str:
    return "-" if row is None else duration(row.value) if row.value is not None else row.verdict


def _point(point: Point) -> str:
    return point.words


def _memory(rows: Sequence[Row]) -> list[Part]:
    parts: list[Part] = []
    lines = []
    for phase, word in PHASES.items():
        found = right(rows, "peak_memory", phase)
        for point in sorted({point_of(row) for row in found}):
            for name in names(found):
                peak = at(found, name, point)
                if peak is None:
                    continue
                others = {q: at(right(rows, q, phase), name, point) for q in _FOOTPRINT}
                lines.append(
                    (
                        word,
                        point.words,
                        titles(rows)[name],
                        size(peak.value),
                        *(_amount(others[quantity], unit) for quantity, unit in _FOOTPRINT.items()),
                    )
                )
        panels = figures.scan_panels(rows, "network_memory", phase)
        if panels:
            caption = (
                f"Memory that the network adds to its process in {_article(phase)}: highest resident "
                "memory less that with the libraries loaded (the paper's figures 8 to 14)."
            )
            parts.append(
                Figure(f"memory-{word.replace(' ', '-')}", caption, partial(figures.draw_scans, panels))
            )
    for quantity, words in (("network_memory", "memory"), ("allocations", "allocations")):
        bars = figures.level_bars(rows, quantity)
        if bars:
            caption = {
                "memory": "Memory that the network adds to its process, inference.",
                "allocations": "Allocations in one step of inference: calls of malloc and its kin, and of "
                "anonymous mmap.",
            }[words]
            parts.append(Figure(f"{words}-bars", caption, partial(figures.draw_level_bars, bars, quantity)))
    if lines:
        columns = ("phase", "point", "level", "process", "network adds", "allocations", "allocated")
        note = (
            "Highest resident memory of the process over steps after the first ones; what of it was not "
            "there with the libraries loaded; requests for memory in one step and the bytes asked for, "
            "small Python objects apart."
        )
        parts.append(Table("Memory and allocations of a step", columns, lines, left=3, note=note))
    return parts


_FOOTPRINT = {"network_memory": "B", "allocations": "1", "allocated_bytes": "B"}


def _amount(row: Row | None, unit: str) -> str:
    if row is None or row.value is None:
        return "-"
    if unit == "1":
        return number(row.value)
    return f"{row.value / 2**20:.1f} MiB" if row.value >= 2**18 else f"{row.value / 2**10:.1f} KiB"


def _dispatch(rows: Sequence[Row]) -> list[Part]:
    found = [row for row in select(rows, quantity="dispatch") if row.value is not None]
    if not found:
        return []
    kinds = unique(found, "operator")
    smallest = right(rows, "time_per_operator")
    points = sorted({point_of(row) for row in smallest}, key=lambda p: p.batch * max(p.size, 1) ** 2)
    whole = {point: f"network, {point.words}" for point in points[:1]}
    bars = figures.dispatch_bars(rows)
    parts: list[Part] = []
    if bars:
        caption = (
            "What one more operator costs in a chain of operators on a handful of numbers: slope of the "
            "time over the length of the chain. Where a compiler joins operators, it is what became of "
            "them."
        )
        parts.append(Figure("dispatch", caption, partial(figures.draw_dispatch, bars)))
    lines = []
    for name in names(found):
        slopes = {kind: one(found, backend=name, operator=kind) for kind in kinds}
        slopes |= {words: at(smallest, name, point) for point, words in whole.items()}
        each = ("-" if row is None else _microseconds(row) for row in slopes.values())
        lines.append((titles(rows)[name], *each))
    note = (
        "Median of the slopes of each round with its interval; one that reaches below 0 is lost in noise. "
        "Of the network: its time by its operators, which bounds the cost of one from above."
    )
    parts.append(Table("Microseconds per operator", ("level", *kinds, *whole.values()), lines, note=note))
    chains = [
        row for row in select(rows, quantity="time") if row.model.endswith(" chain") and row.value is not None
    ]
    if chains:
        lengths = [f"{row.operator}, {row.node}" for row in chains]
        columns = tuple(dict.fromkeys(lengths))
        levels = names(chains)
        table = []
        for name in levels:
            cells = {f"{r.operator}, {r.node}": timed(r) for r in chains if r.backend == name}
            table.append((titles(rows)[name], *(cells.get(column, "-") for column in columns)))
        note = "Kind of operator and how many of them."
        parts.append(Table("Times of the chains", ("level", *columns), table, note=note))
    return parts


def _microseconds(row: Row) -> str:
    assert row.value is not None
    text = number(row.value * 1e6)
    if row.low is None or row.high is None:
        return text
    return f"{text} [{number(row.low * 1e6)}, {number(row.high * 1e6)}]"


def _start(rows: Sequence[Row]) -> list[Part]:
    lines = []
    for phase, word in PHASES.items():
        found = right(rows, "first_call", phase)
        for name in names(found):
            for row in (r for r in found if r.backend == name):
                point, what = point_of(row).words, row.note.partition(";")[0]
                lines.append((word, point, titles(rows)[name], duration(row.value), what))
    if not lines:
        return []
    note = "Imports are not in it; caches of compilers on disk were as they were found."
    columns = ("phase", "point", "level", "until the first result", "of which")
    return [Table("First call", columns, lines, left=3, note=note)]


def _accelerator(rows: Sequence[Row]) -> list[Part]:
    kinds = ("gpu_utilisation", "device_memory", "copied_to_device", "copied_from_device")
    found = [row for row in select(rows, quantity=set(kinds)) if row.value is not None]
    if not found:
        asked = select(rows, quantity=set(kinds))
        if not asked:
            return []
        here = {row.backend for row in select(rows, quantity="available") if row.value is not None}
        told = [row for row in asked if row.backend in {"", *here}] or asked
        reasons = ", ".join(dict.fromkeys(row.note for row in told))
        return [Paragraph(f"Utilisation, memory and copies of a GPU were not measured: {reasons}.")]
    lines = []
    for name in names(found):
        cells = {row.quantity: row for row in found if row.backend == name}
        use = cells.get("gpu_utilisation")
        share = "-" if use is None or use.value is None else f"{use.value:.0%}"
        rest = (_amount(cells.get(kind), "B") for kind in kinds[1:])
        lines.append((titles(rows)[name], share, *rest))
    columns = ("level", "GPU busy", "device memory", "copied to it per step", "copied from it per step")
    return [Table("Use of the GPU", columns, lines)]
