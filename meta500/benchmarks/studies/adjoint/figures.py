"""The figures of the study: bars of times, lines of speed-up, bars of memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from meta500.backends.generated.ir import GATHER, REDUCTION
from meta500.benchmarks.studies.adjoint.findings import Key, key, most_threads
from meta500.benchmarks.studies.adjoint.forms import FORMS, PARALLEL, SERIAL, SERIAL_GATHER, SERIAL_SCATTER
from meta500.benchmarks.studies.select import one, select, unique
from meta500.metrics.report import Figure
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing

    from meta500.metrics.plots.bars import Bar
    from meta500.metrics.plots.lines import LinePanel

# More adjoints do not fit on a page.
_MOST_PANELS = 8
_UNKNOWN = "not timed"


def time_bars(rows: Sequence[Row]) -> list[Figure]:
    """For every stencil the slides' bar chart: forms, and threads of each."""
    figures = []
    for which in _timed(rows):
        if which[0] != "stencil":
            continue
        own = [row for row in select(rows, quantity="time") if key(row) == which]
        name = f"time-{_slug(which[1])}"
        caption = (
            f"Run time of the adjoint of the {which[1]} stencil by form and number of threads; medians with "
            "95 % intervals. Corresponds to 'Speed of reorganised adjoint code (16 CPU threads)' and "
            "'(240 MIC "
            "threads)'; serial forms are compiled without OpenMP."
        )
        figures.append(Figure(name, caption, _drawn(own)))
    return figures


def _drawn(own: Sequence[Row]) -> Callable[[], Drawing]:
    def draw() -> Drawing:
        from meta500.metrics.plots.bars import draw_bars

        bars = form_bars(own)
        return draw_bars(bars, quantity="run time", unit="s", interval="median, 95 % interval")

    return draw


def form_bars(own: Sequence[Row]) -> list[Bar]:
    """The bars of one adjoint: a group per form, a bar per number of threads."""
    from meta500.metrics.plots.bars import Bar

    bars = []
    for form in FORMS:
        for row in select(own, mode=form):
            many = f"{row.threads} thread{'s' if row.threads != 1 else ''}"
            wrong = row.verdict == "wrong"
            value = None if wrong else row.value
            note = "wrong result" if wrong else row.verdict if row.value is None else ""
            bars.append(Bar(form, many, value, row.low, row.high, note=note))
    order = {bar.series: int(bar.series.split()[0]) for bar in bars}
    # The series of the legend in the order of the threads.
    return sorted(bars, key=lambda bar: (FORMS.index(bar.category), order[bar.series]))


def convolution_bars(rows: Sequence[Row]) -> list[Figure]:
    """For every kind of gradient of a U-Net's convolutions: all forms with all threads."""
    figures = []
    kinds = dict.fromkeys((w[0], w[2]) for w in _timed(rows) if w[0] != "stencil")
    for model, phase in kinds:
        longest = _longest([w for w in _timed(rows) if (w[0], w[2]) == (model, phase)], rows)
        shown = longest[:_MOST_PANELS]
        caption = (
            f"Run time of the {phase}s of the convolutions of {model}, one image, by form; parallel forms "
            f"with {most_threads(rows)} threads. Medians with 95 % intervals"
            + (f"; the {len(shown)} longest of {len(longest)}." if len(longest) > len(shown) else ".")
        )

        def draw(shown: Sequence[Key] = shown) -> Drawing:
            from meta500.metrics.plots.bars import Bar, draw_bars

            bars = []
            for which in shown:
                for form in FORMS:
                    threads = 1 if form in SERIAL else most_threads(rows)
                    row = _time(rows, which, form, threads)
                    label = form if form in SERIAL else f"{form}, {threads} threads"
                    good = row is not None and row.verdict == "ok"
                    note = _UNKNOWN if row is None else "same as gather" if row.value is None else row.verdict
                    bars.append(
                        Bar(which[1], label, row.value, row.low, row.high)
                        if row is not None and good
                        else Bar(which[1], label, None, note=note)
                    )
            return draw_bars(bars, quantity="run time", unit="s", interval="median, 95 % interval", log=True)

        figures.append(Figure(f"time-{_slug(model)}-{_slug(phase)}", caption, draw))
    return figures


def speed_lines(rows: Sequence[Row]) -> list[Figure]:
    """Speed-up over serial scatter against threads, a panel per adjoint."""
    most = most_threads(rows)
    timed = [w for w in _timed(rows) if _speeds(rows, w, GATHER)[0]]
    if most < 2 or not timed:
        return []
    stencils = [w for w in timed if w[0] == "stencil"]
    others = _longest([w for w in timed if w[0] != "stencil"], rows)
    figures = []
    for name, what, shown in (
        ("speedup-stencils", "the stencils", stencils),
        ("speedup-convolutions", "convolutions of the U-Net, the longest", others[:_MOST_PANELS]),
    ):
        if not shown:
            continue
        caption = (
            f"Speed-up over serial scatter against the number of threads for {what}, with 95 % intervals "
            "of the "
            "ratios paired by round. Serial gather has one thread; 'ideal' is one serial scatter per "
            "thread. "
            "A form that is missing would have the loops of the gather."
        )

        def draw(shown: Sequence[Key] = shown) -> Drawing:
            from meta500.metrics.plots.lines import draw_lines

            return draw_lines([_panel(rows, which, most) for which in shown], columns=2)

        figures.append(Figure(name, caption, draw))
    return figures


def _panel(rows: Sequence[Row], which: Key, most: int) -> LinePanel:
    from meta500.metrics.plots.lines import Line, LinePanel

    lines = []
    counts: set[int] = {1, most}
    for form in PARALLEL:
        threads, speeds, low, high = _speeds(rows, which, form)
        counts |= set(threads)
        # A form without points keeps its place in the legend, so that colours are the same in all panels.
        lines.append(Line(form, threads, speeds, low, high) if threads else Line(form, [1], [math.nan]))
    ideal = sorted(counts)
    lines.append(Line("ideal", ideal, ideal))
    serial = [
        row
        for row in select(rows, quantity="ratio", mode=SERIAL_GATHER, baseline=SERIAL_SCATTER)
        if key(row) == which and row.value
    ]
    for row in serial:
        if row.value:
            lines.append(Line(SERIAL_GATHER, ideal, [1 / row.value] * len(ideal)))
    title = which[1] if which[0] == "stencil" else f"{which[1]},\n{which[2]}"
    return LinePanel(title, "threads", "speed-up over serial scatter", lines, True, True, x_ticks=ideal)


def _speeds(
    rows: Sequence[Row], which: Key, form: str
) -> tuple[list[int], list[float], list[float], list[float]]:
    """Threads, speed-ups, and the ends of their intervals."""
    found = [
        row
        for row in select(rows, quantity="ratio", mode=form, baseline=SERIAL_SCATTER)
        if key(row) == which and row.value and row.low and row.high and row.verdict == "ok"
    ]
    found.sort(key=lambda row: row.threads or 0)
    return (
        [row.threads or 0 for row in found],
        [1 / row.value for row in found if row.value],
        [1 / row.high for row in found if row.high],
        [1 / row.low for row in found if row.low],
    )


def memory_bars(rows: Sequence[Row]) -> list[Figure]:
    """Bytes of private copies: predicted, allocated, and seen by the system."""
    found = select(rows, quantity="private_memory", mode=REDUCTION, protocol="predicted")
    found = sorted(found, key=lambda row: -(row.value or 0.0))[: 2 * _MOST_PANELS]
    if not found:
        return []
    caption = (
        f"Memory of the private copies of all {found[0].threads} threads: as the loops predict it, as the "
        "schedule "
        "allocates it, and by how much more a process of its own grows than with gather (pages of the system "
        "are counted whole; only of stencils, since copies of convolutions are smaller than such pages). "
        "Gather and atomics need none."
    )

    def draw() -> Drawing:
        from meta500.metrics.plots.bars import Bar, draw_bars

        bars = []
        for row in found:
            name = row.node if row.model == "stencil" else f"{row.node}, {row.phase} ({row.model})"
            for label, count in memory_of(rows, row).items():
                bars.append(Bar(name, label, count))
        return draw_bars(bars, quantity="private copies", unit="B")

    return [Figure("memory", caption, draw)]


def memory_of(rows: Sequence[Row], row: Row) -> dict[str, float]:
    """Bytes of private copies of one adjoint, by how they were found."""
    same = {"model": row.model, "node": row.node, "phase": row.phase, "quantity": "private_memory"}
    found = {}
    for protocol in ("predicted", "allocated"):
        given = one(rows, **same, mode=REDUCTION, protocol=protocol)
        if given is not None and given.value is not None:
            found[protocol] = given.value
    grown = [one(rows, **same, mode=mode, protocol="resident") for mode in (REDUCTION, GATHER)]
    values = [given.value for given in grown if given is not None and given.value is not None]
    if len(values) == 2:
        found["resident"] = values[0] - values[1]
    return found


def _timed(rows: Sequence[Row]) -> list[Key]:
    """The adjoints that were timed, in order."""
    return list(dict.fromkeys(key(row) for row in select(rows, quantity="time") if row.value is not None))


def _time(rows: Sequence[Row], which: Key, form: str, threads: int) -> Row | None:
    found = [row for row in select(rows, quantity="time", mode=form, threads=threads) if key(row) == which]
    return found[-1] if found else None


def _longest(which: Sequence[Key], rows: Sequence[Row]) -> list[Key]:
    """Adjoints by the time of their serial scatter, the longest first."""

    def seconds(one_: Key) -> float:
        row = _time(rows, one_, SERIAL_SCATTER, 1)
        return -(row.value or 0.0) if row is not None else 0.0

    return sorted(which, key=seconds)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def thread_counts(rows: Sequence[Row]) -> list[int]:
    """All numbers of threads, ascending."""
    return sorted(unique(select(rows, quantity="time"), "threads"))
