"""The report on layers: methods of timing, speedups of layers, oracles, selective compilation."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler import figures_layers
from meta500.benchmarks.studies.compiler.derived import named
from meta500.benchmarks.studies.compiler.findings_layers import layer_findings
from meta500.benchmarks.studies.compiler.layer_numbers import (
    chosen,
    ends,
    known,
    prediction_errors,
    ranking,
    segment_speedups,
    signed,
)
from meta500.benchmarks.studies.compiler.settings import DEFAULT, EAGER
from meta500.benchmarks.studies.compiler.timing import (
    BEST_OF_TWO,
    BORDER,
    BY_CHANCE,
    CONFIGURATION,
    END_TO_END,
    HELD_OUT,
    METHODS,
    ORACLE,
    RUN,
    SEGMENT,
    WHOLE,
    by_mode,
)
from meta500.benchmarks.studies.select import one, select, unique
from meta500.metrics.report import Figure, Paragraph, Section, Table
from meta500.metrics.rows import Row

# Choices of a network in the table of all of them.
SHOWN_CHOICES = 16

__all__ = ["layer_findings", "layer_sections"]

METHODS_TEXT = (
    "End to end: a clock around the whole network. Timers: the device is waited for and the clock read "
    "behind every segment (or layer), in the generated Python code between them. Subtraction: the network "
    "is stopped behind each segment, keeping all values that later layers need, and times are differences "
    "of runs of the same round; they add up to the last run by construction, so what counts is the number "
    "of runs. Profiler: a named range around every segment, inside of the PyTorch profiler. Compiled "
    "segments are compiled each on its own, compiled prefixes each as one region; how many layers make a "
    "segment is chosen so that the interpreted time is spread evenly."
)
ORACLE_TEXT = (
    "The best of two runs adds up the faster time of each segment (equation 4.1). The dynamic programme "
    "adds switching costs: T = sum of t[i, state] + sum of c[i, state, next state], where t[i, compiled] "
    "is the time of segment i compiled on its own, c[interpreted, compiled] and c[compiled, interpreted] "
    "what a segment takes more behind one in the other state, and c[compiled, compiled] what two segments "
    "joined into one region take more (mostly: less) than apart. All are timed in one interleaved run. "
    "The thesis motivates its dynamic programme by such costs, but its recurrence (figure 4.2) leaves "
    "them out. For the real runs, consecutive compiled segments are one compiled region and the others "
    "stay interpreted."
)


def layer_sections(rows: Sequence[Row]) -> list[Section]:
    """Sections with the tables and figures, one group per mode of torch.compile; none without rows."""
    groups = by_mode(rows)
    found: list[Section] = []
    for mode, mine in groups.items():
        suffix = "" if mode == DEFAULT else f"-{mode}"
        title = f", {mode}" if len(groups) > 1 else ""
        for make in (_methods, _speedups, _oracles, _choices):
            section = make(mine, mode, suffix, title)
            if section is not None:
                found.append(section)
    return found


def _methods(rows: Sequence[Row], mode: str, suffix: str, title: str) -> Section | None:
    runs = known(select(rows, phase=RUN, quantity={"time", "sum", "ratio"}))
    if not select(runs, quantity={"time", "sum"}):
        return None
    lines = []
    for model in unique(runs, "model"):
        for name in (EAGER, mode):
            of_run = select(runs, model=model, mode=name)
            for method in (END_TO_END, *(m for m in unique(of_run, "protocol") if m != END_TO_END)):
                lines.append(_method_line(select(of_run, protocol=method), str(model), name, method))
    table = Table(
        "Run time by each method, and what the method costs",
        ("network", "run", "method", "run time", "sum of its parts", "relative", "to"),
        [line for line in lines if line],
        left=3,
        note="Relative: time of the run with the method to that of the run without it, in the same rounds; "
        "for subtraction: of all its runs together to one whole run. Compiled segments with timers are "
        "compared with the same segments without timers.",
    )
    figures = [
        Figure(
            f"timing-methods-{str(model).replace('_', '-')}{suffix}",
            f"{model}: the run by each method, and the sum of its parts. Figure 5.7 of the thesis.",
            partial(figures_layers.draw_methods, bars),
        )
        for model in unique(runs, "model")
        if (bars := figures_layers.method_bars(rows, str(model), mode))
    ]
    return Section(f"Ways to time layers{title}", [Paragraph(METHODS_TEXT), table, *figures])


def _method_line(rows: Sequence[Row], model: str, mode: str, method: str) -> tuple[str, ...] | None:
    time, total = one(rows, quantity="time"), one(rows, quantity="sum")
    ratio = one(rows, quantity="ratio")
    if time is None and total is None:
        return None
    return (
        model,
        named(mode) if mode == EAGER else "compiled",
        method,
        tables.timed(time) if time is not None else "-",
        tables.timed(total) if total is not None else "-",
        tables.interval(ratio),
        ratio.baseline if ratio is not None else "",
    )


def _speedups(rows: Sequence[Row], mode: str, suffix: str, title: str) -> Section | None:
    models = [str(m) for m in unique(select(rows, phase=SEGMENT), "model") if segment_speedups(rows, str(m))]
    if not models:
        return None
    lines = []
    for model in models:
        speedups = segment_speedups(rows, model)
        limits = [ends(row) for row in speedups]
        values = sorted(row.value or 0.0 for row in speedups)
        lines.append(
            (
                model,
                str(len(limits)),
                str(sum(low > 1 for low, _ in limits)),
                str(sum(high < 1 for _, high in limits)),
                f"{values[0]:.2f}",
                f"{values[len(values) // 2]:.2f}",
                f"{values[-1]:.2f}",
            )
        )
    parts: list[Table | Figure] = [
        Table(
            "Speedups of segments, interpreted / compiled, each compiled on its own, by timers",
            ("network", "segments", "faster", "slower", "least", "middle", "largest"),
            lines,
            note="Faster, slower: the 95 % interval lies above 1, below 1.",
        ),
        Figure(
            f"layer-speedups{suffix}",
            "Density of the speedups of segments; each tick is one. Figure 5.8 of the thesis.",
            partial(figures_layers.draw_speedups, rows, models),
        ),
    ]
    panels = figures_layers.segment_panels(rows, models, mode, by_subtraction=False)
    if panels:
        parts.append(
            Figure(
                f"layer-times{suffix}",
                "Times of segments in the order of the network, by timers; compiled ones are compiled each "
                "on its own. Figure 5.11 of the thesis.",
                partial(figures_layers.draw_panels, panels),
            )
        )
    panels = figures_layers.segment_panels(rows, models, mode, by_subtraction=True)
    if panels:
        parts.append(
            Figure(
                f"layer-times-by-subtraction{suffix}",
                "Times of segments by subtraction; negative ones are differences of runs that chance made. "
                "Selective: as the dynamic programme chooses, where that is not all or nothing. Figure 5.10 "
                "of the thesis.",
                partial(figures_layers.draw_panels, panels),
            )
        )
    return Section(f"Layers interpreted and compiled{title}", parts)


def _oracles(rows: Sequence[Row], mode: str, suffix: str, title: str) -> Section | None:
    oracles = known(select(rows, phase=ORACLE))
    if not oracles:
        return None
    lines = []
    for model in unique(oracles, "model"):
        for method in (m for m in METHODS if m != END_TO_END):
            name = f"{BEST_OF_TWO}, {method}"
            mine = select(oracles, model=model, quantity="speedup")
            naive, chance = one(mine, protocol=name), one(mine, protocol=f"{name}, {BY_CHANCE}")
            elsewhere = one(mine, protocol=f"{name}, {HELD_OUT}")
            choice = one(oracles, model=model, protocol=name, quantity="prediction")
            if choice is not None:
                lines.append(
                    (
                        str(model),
                        method,
                        choice.node,
                        tables.interval(naive),
                        tables.interval(chance),
                        tables.interval(elsewhere),
                    )
                )
    parts: list[Paragraph | Table | Figure] = [
        Paragraph(ORACLE_TEXT),
        Table(
            "Best of two runs relative to the faster run (table 5.1 of the thesis)",
            ("network", "times by", "choice", "speedup", "by chance", "on other rounds"),
            lines,
            left=3,
            note="By chance: the same formula on two runs of the same interpreted network. On other rounds: "
            "chosen by every second round, timed in the others. Choice: I interpreted, C compiled.",
        ),
    ]
    costs = _switching_lines(rows, mode)
    if costs:
        parts.append(
            Table(
                "Switching costs",
                ("network", "border", "interpreted to compiled", "compiled to interpreted", "two joined"),
                costs,
                left=2,
                note="What the segment behind the border takes more (joined: what both take more) than its "
                "time says; medians of differences within rounds, with 95 % intervals.",
            )
        )
    return Section(f"Oracles{title}", parts)


def _switching_lines(rows: Sequence[Row], mode: str) -> list[tuple[str, ...]]:
    lines = []
    borders = known(select(rows, phase=BORDER, quantity="switching_cost"))
    for model in unique(borders, "model"):
        for node in unique(select(borders, model=model), "node"):
            cells = [
                _difference(one(borders, model=model, node=node, mode=f"{a} to {b}"))
                for a, b in ((EAGER, mode), (mode, EAGER), (mode, mode))
            ]
            lines.append((str(model), str(node), *cells))
    return lines


def _difference(row: Row | None) -> str:
    if row is None or row.value is None or row.low is None or row.high is None:
        return "-"
    return f"{signed(row.value)} [{signed(row.low)}, {signed(row.high)}]"


def _choices(rows: Sequence[Row], mode: str, suffix: str, title: str) -> Section | None:
    times = known(select(rows, phase=CONFIGURATION, quantity="time", protocol=END_TO_END))
    if not times:
        return None
    lines = []
    for model in unique(times, "model"):
        errors = prediction_errors(rows, str(model))
        for words, node in chosen(rows, str(model)).items():
            mine = select(rows, phase=CONFIGURATION, model=model, node=node)
            time = one(mine, quantity="time", protocol=END_TO_END)
            guess = one(mine, quantity="prediction")
            if time is not None:
                lines.append(
                    (
                        str(model),
                        words,
                        node,
                        tables.timed(guess) if guess is not None else "-",
                        tables.timed(time),
                        f"{errors[node]:+.0%}" if node in errors else "-",
                        tables.interval(one(mine, quantity="ratio", baseline=EAGER)),
                        tables.interval(one(mine, quantity="ratio", baseline=WHOLE)),
                    )
                )
    columns = (
        "network",
        "choice",
        "segments",
        "predicted",
        "measured",
        "off by",
        "to interpreted",
        "to compiled whole",
    )
    parts: list[Table | Figure] = [
        Table(
            "Prediction and outcome",
            columns,
            lines,
            left=3,
            note="Predicted: by the cost model with switching costs, the median over rounds.",
        )
    ]
    bars = figures_layers.oracle_bars(rows)
    if bars:
        parts.append(
            Figure(
                f"oracles{suffix}",
                "Interpreted and compiled networks, what the oracles predict, and the network compiled as "
                "the dynamic programme chooses, relative to compiling all of it. Figure 5.9 of the thesis.",
                partial(figures_layers.draw_oracles, bars),
            )
        )
    for model in unique(times, "model"):
        ranked = ranking(rows, str(model))
        if ranked is not None:
            parts.append(_every_choice(rows, str(model), ranked[1]))
            parts.append(
                Figure(
                    f"all-choices-{str(model).replace('_', '-')}{suffix}",
                    f"{model}: every choice of compiled segments, predicted and measured, in the order of "
                    "the predicted times.",
                    partial(figures_layers.draw_all_choices, rows, str(model)),
                )
            )
    return Section(f"Selective compilation{title}", parts)


def _every_choice(rows: Sequence[Row], model: str, order: Sequence[str]) -> Table:
    lines = []
    for place, node in enumerate(order[:SHOWN_CHOICES], 1):
        mine = select(rows, phase=CONFIGURATION, model=model, node=node)
        time, guess = one(mine, quantity="time"), one(mine, quantity="prediction")
        lines.append(
            (
                node,
                str(place),
                tables.timed(time) if time is not None else "-",
                tables.timed(guess) if guess is not None else "-",
                tables.interval(one(mine, quantity="ratio", baseline=WHOLE)),
            )
        )
    left_out = len(order) - len(lines)
    return Table(
        f"Choices of {model}, the fastest first",
        ("segments", "place", "measured", "predicted", "to compiled whole"),
        lines,
        note=f"{left_out} slower ones are left out." if left_out else "",
    )
