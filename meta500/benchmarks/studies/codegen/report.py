"""The report of the study, from its rows alone."""

from __future__ import annotations

from collections.abc import Sequence

from meta500.benchmarks.studies.codegen import figures
from meta500.benchmarks.studies.codegen.cases import (
    Case,
    headline_cases,
    in_words,
    network_title,
    rates,
    slowdown,
    step_times,
    trusted,
    variant_title,
)
from meta500.benchmarks.studies.codegen.convolutions import FORWARD, LIGHT_SHARE, LIGHT_SPEED
from meta500.benchmarks.studies.codegen.findings import all_findings
from meta500.benchmarks.studies.codegen.generation_worker import COMPILING, STEPS
from meta500.benchmarks.studies.codegen.layer_times import REST
from meta500.benchmarks.studies.codegen.settings import EPOCH_IMAGES
from meta500.benchmarks.studies.select import one, select, unique
from meta500.benchmarks.tables import duration, error, size, timed
from meta500.benchmarks.variants import GENERATED
from meta500.metrics.report import Findings, Paragraph, Section, Table
from meta500.metrics.rows import Row

THESIS_PIXELS = 512
# Sizes and seconds of the thesis, for a reader to hold beside one's own.
TABLE_8 = (
    "Table 8 of the thesis (first approach, one core, n = 3, batch 8): convolutions forward 507.8 s and "
    "backward 665.9 s, transposed convolutions 21 s and 5.4 s, loss 4.7 s and its error tensor 1.7 s, ReLU "
    "1.6 s and 2.6 s, pooling 0.4 s and 1.3 s."
)
NOT_HERE = (
    "Several nodes (section 6.3.8) are measured by `meta500 scale`; the thesis' code for graphics processors "
    "(section 6.3.9) has no counterpart here."
)


def sections(rows: Sequence[Row]) -> list[Section]:
    """The report's sections; without rows of a part, the part says so."""
    lead = [Paragraph(text) for text in _remarks(rows)]
    return [
        Section("Findings", [*lead, Findings(all_findings(rows)), Paragraph(NOT_HERE)]),
        _epochs(rows),
        _generation(rows),
        _memory(rows),
        _layers(rows),
        _roofline(rows),
    ]


def _remarks(rows: Sequence[Row]) -> list[str]:
    sizes = sorted({pixels_of(row) for row in select(rows, quantity="epoch_rate", operator="")} - {0})
    if not sizes or sizes == [THESIS_PIXELS]:
        return []
    words = ", ".join(f"{s} x {s}" for s in sizes)
    return [
        f"This is not the thesis' size: images have {words} pixels instead of {THESIS_PIXELS} x "
        f"{THESIS_PIXELS}. An epoch still is {EPOCH_IMAGES} images, of that size; what takes a fixed time "
        "per step, in either backend, weighs more here."
    ]


def pixels_of(row: Row) -> int:
    """Height of the images, from a shape such as "8x3x512x512"; 0 where there is none."""
    parts = row.shape.split(" ")[0].split("x")
    return int(parts[2]) if len(parts) == 4 else 0


def _missing(part: str) -> list[Paragraph]:
    return [Paragraph(f"Not measured: the part {part} was not chosen, or has not run.")]


def _epochs(rows: Sequence[Row]) -> Section:
    lines = []
    for case in headline_cases(rows):
        times = {(row.backend, row.mode): row for row in step_times(rows, case)}
        for place, row in enumerate(rates(rows, case)):
            time = times.get((row.backend, row.mode))
            ratio = slowdown(rows, case, row.mode)
            lines.append(
                (
                    "" if place else f"{case.title}, {case.threads} threads",
                    variant_title(row),
                    in_words(row) if row.value is not None else row.verdict,
                    timed(time) if time is not None else "-",
                    in_words(ratio) if ratio is not None else "-",
                    error(row) if row.backend == GENERATED else _agreement(row),
                )
            )
    title = "Epochs per second"
    if not lines:
        return Section(title, _missing("epochs"))
    columns = ("network", "by", "epochs/s", "training step", "times generated", "correct")
    note = (
        f"An epoch is {EPOCH_IMAGES} images. Correct: error of the generated step (loss and gradients) "
        "against double precision; of PyTorch, whether the first loss agrees with the median of all variants."
    )
    table = Table("All threads", columns, lines, left=2, note=note)
    return Section(title, [*figures.speedup_figures(rows), table, *figures.epochs_figures(rows)])


def _agreement(row: Row) -> str:
    return {"wrong": "loss differs", "failed": "failed", "unsupported": "-"}.get(row.verdict, "agrees")


def _generation(rows: Sequence[Row]) -> Section:
    lines = []
    for parameters in sorted(select(rows, quantity="parameters"), key=lambda r: r.value or 0.0):
        cells = []
        for step in (*STEPS[:-1], "generating", COMPILING):
            row = one(rows, quantity="time", phase=step, model=parameters.model)
            cells.append("-" if row is None else timed(row))
        compiled = {r.model: r for r in figures.first_calls(rows, "compile")}
        first = compiled.get(parameters.model)
        count = f"{parameters.value or 0.0:,.0f}"
        cells.append("-" if first is None else duration(first.value))
        lines.append((network_title(parameters.model), count, *cells))
    title = "Generating and compiling"
    if not lines:
        return Section(title, _missing("generation"))
    columns = (
        "network",
        "parameters",
        *STEPS[:-1],
        "generating, all",
        "compiling",
        "PyTorch compile, first step",
    )
    note = (
        "Lowering: from the graph to loop nests, forward and backward. Scheduling: fusion, layouts, blocks, "
        "memory. Printing: C++. The caches of compiled code are empty."
    )
    table = Table("Time of generating the code of a training step", columns, lines, note=note)
    return Section(title, [*figures.generation_figure(rows), table])


def _memory(rows: Sequence[Row]) -> Section:
    lines = []
    peaks = select(rows, quantity="peak_memory")
    for case in sorted({Case.of(row) for row in peaks}):
        mine = [row for row in peaks if Case.of(row) == case]
        base = next((r.value for r in mine if r.backend == GENERATED and r.value), None)
        for place, row in enumerate(mine):
            what = {"model": row.model, "batch": row.batch, "dtype": row.dtype, "backend": row.backend}
            before = one(rows, quantity="memory_before", mode=row.mode, **what)
            plan = one(rows, quantity="planned_memory", **what) if row.backend == GENERATED else None
            foreseen = one(rows, quantity="predicted_peak", mode=row.mode, **what)
            lines.append(
                (
                    "" if place else case.title,
                    variant_title(row),
                    size(row.value) if row.value is not None else row.verdict,
                    size(before.value) if before is not None else "-",
                    _planned(plan, row, before) if plan is not None else "-",
                    size(foreseen.value) if foreseen is not None else "-",
                    f"{row.value / base:.3g}" if base and row.value else "-",
                )
            )
    title = "Memory"
    if not lines:
        return Section(title, _missing("memory"))
    columns = ("network", "by", "peak", "before", "planned / used", "foreseen", "times generated")
    note = (
        "Peak: highest resident memory of the process. Before: when data and libraries were loaded. Planned: "
        "what the generated code's plan needs, beside the peak less what was there before. Foreseen: from a "
        "smaller batch."
    )
    table = Table("Peak memory of a training process", columns, lines, left=2, note=note)
    return Section(title, [*figures.memory_figure(rows), table])


def _planned(plan: Row, peak: Row, before: Row | None) -> str:
    used = None if before is None or before.value is None or peak.value is None else peak.value - before.value
    return f"{size(plan.value)} / {size(used)}"


def _layers(rows: Sequence[Row]) -> Section:
    title = "Time by kind of layer"
    times = select(rows, quantity="layer_time")
    if not times:
        return Section(title, _missing("layers"))
    parts: list[Paragraph | Table] = []
    for case in sorted({Case.of(row) for row in times}):
        mine = [row for row in times if Case.of(row) == case]
        lines = []
        for row in sorted(mine, key=lambda r: (r.operator == REST, -(r.value or 0.0))):
            same = {"model": row.model, "batch": row.batch, "operator": row.operator}
            share = one(rows, quantity="layer_share", **same)
            lines.append(
                (
                    row.operator,
                    timed(row),
                    "-" if share is None or share.value is None else f"{share.value:.1%}",
                    _arithmetic(select(rows, quantity="arithmetic", **same)),
                )
            )
        cost = one(rows, quantity="stopwatch_cost", model=mine[0].model, batch=mine[0].batch)
        note = "The time of a fused kernel is not divided; its arithmetic is counted by kind of layer."
        if cost is not None:
            note += f" With stopwatches a step takes {in_words(cost)} times as long as without."
        columns = ("layers", "time per step", "share of kernels", "arithmetic")
        parts.append(Table(f"{case.title}, {case.threads} thread", columns, lines, left=1, note=note))
    return Section(title, [*figures.layers_figure(rows), *parts, Paragraph(TABLE_8)])


def _arithmetic(amounts: Sequence[Row]) -> str:
    """Operations of a group, and whose they are where layers are fused."""
    total = sum(row.value or 0.0 for row in amounts)
    if not total:
        return "-"
    words = f"{total / 1e9:.3g} GFLOP"
    if len(amounts) > 1:
        ordered = sorted(amounts, key=lambda row: -(row.value or 0.0))
        words += f": {', '.join(f'{r.node} {(r.value or 0.0) / total:.1%}' for r in ordered)}"
    return words


def _roofline(rows: Sequence[Row]) -> Section:
    title = "Convolutions under the roofline"
    timed_rows = select(rows, quantity="time", phase=FORWARD, operator="Conv")
    if not timed_rows:
        return Section(title, _missing("roofline"))
    lines, work = [], []
    for node in unique(timed_rows, "node"):
        light = one(rows, quantity=LIGHT_SPEED, node=node)
        for place, row in enumerate(r for r in timed_rows if r.node == node):
            same = {"node": node, "backend": row.backend, "mode": row.mode}
            rate, share = one(rows, quantity="epoch_rate", **same), one(rows, quantity=LIGHT_SHARE, **same)
            lines.append(
                (
                    "" if place else f"{node}: {row.shape.partition(' * ')[2].partition(' * ')[0]}",
                    variant_title(row),
                    timed(row),
                    "-" if rate is None else in_words(rate),
                    "-" if light is None else f"{light.value:.3g}, {light.note.partition(';')[0]}",
                    "-" if share is None else in_words(share),
                    error(row),
                )
            )
        work.append((node, *_work(rows, node)))
    columns = ("layer and weights", "by", "time", "epochs/s", "light speed", "share of it", "error")
    note = (
        "Light speed: what the better of two limits allows, the peak of matrix products and the rate of "
        "copying. A share above 1 comes from a cache or from Winograd's form."
    )
    tables = [
        Table("Forward passes", columns, lines, left=2, note=note),
        Table(
            "Work of an epoch, predicted and counted",
            (
                "layer",
                "GFLOP",
                "read (MB)",
                "written (MB)",
                "all (MB)",
                "read, counted (MB)",
                "written, counted (MB)",
            ),
            work,
            note="Predicted: image and result once. For n = 3 and 512 pixels the thesis has 14.5 GFLOP and "
            "1476 MB for convolution 0 (counted: 1.91 GB read, 1.87 GB written), and 38.65 GFLOP and 2148 MB "
            "for convolution 1 (2.91 and 1.93 GB).",
        ),
    ]
    return Section(title, [*figures.roofline_figures(rows), *tables])


def _work(rows: Sequence[Row], node: str) -> list[str]:
    """Operations and bytes of an epoch, as texts."""
    cells = []
    numbers: dict[str, float] = {}
    for quantity, scale in (("flops", 1e9), ("bytes_read", 1e6), ("bytes_written", 1e6)):
        row = one(rows, quantity=quantity, node=node)
        if row is not None and row.value is not None and row.batch:
            numbers[quantity] = row.value * EPOCH_IMAGES / row.batch / scale
        cells.append(f"{numbers[quantity]:.4g}" if quantity in numbers else "-")
    both = [numbers[name] for name in ("bytes_read", "bytes_written") if name in numbers]
    cells.append(f"{sum(both):.4g}" if len(both) == 2 else "-")
    for direction in ("read", "written"):
        found = select(rows, quantity=f"traffic_{direction}", node=node)
        row = found[-1] if found else None
        if row is None or not trusted(row) or not row.batch:
            cells.append("-" if row is None else row.verdict)
        else:
            cells.append(f"{(row.value or 0.0) * EPOCH_IMAGES / row.batch / 1e6:.4g}")
    return cells
