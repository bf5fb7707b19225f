"""``meta500 watch``: runs that go on, in the terminal, from their folders alone."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meta500.errors import UserError
from meta500.metrics import live as following
from meta500.metrics.live import LiveRun, Progress
from meta500.metrics.tickers.pace import duration, left_words

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

WELL = ("finished", "running")
COLOURS = {"running": "cyan", "finished": "green", "failed": "red", "interrupted": "yellow"}
# Nothing new for so long is said.
SILENT_SECONDS = 10.0
CURVES = (("loss", "test_loss"), ("accuracy",))
CURVE_LINES = 9
SIDE_BY_SIDE = 100


def watch_command(
    folders: Sequence[Path],
    *,
    interval: float = 0.5,
    once: bool = False,
    as_json: bool = False,
    console: Console | None = None,
) -> int:
    """Show runs until all are over.

    On a terminal the picture is drawn anew every ``interval`` seconds; elsewhere only the lines of the end
    are printed. As JSON every change is a line: the state of one run with those points that are new.

    Args:
        folders: run folders.
        interval: seconds between two readings.
        once: say how it stands now, and end.
        as_json: print JSON lines.
        console: None: standard output.

    Ctrl-C ends the watching; the runs go on.

    Returns:
        0, or 1 where a run failed or was interrupted.

    Raises:
        UserError: a folder is missing, holds no run or is damaged; an interval that is not positive.
    """
    from meta500.benchmarks.tables import console as make_console

    if not interval > 0:
        raise UserError(f"--interval must be positive, got {interval:g}")
    runs = [LiveRun(folder) for folder in folders]
    console = console or make_console()
    try:
        if as_json:
            _print_changes(runs, interval, once)
        elif once:
            for run in runs:
                _look(run)
                console.print(_picture(run, console.width, len(runs) == 1))
        elif console.is_terminal:
            _draw(runs, interval, console)
        else:
            _wait(runs, interval)
    except KeyboardInterrupt:
        going = [str(run.path) for run in runs if not run.over]
        sys.stderr.write(f"meta500: stopped watching; still running: {', '.join(going) or 'nothing'}\n")
    if not (as_json or once):
        for run in runs:
            console.print(sentence(run), markup=False, highlight=False, soft_wrap=True)
    damaged = next((run.problem for run in runs if run.problem), "")
    if damaged:
        raise UserError(damaged)
    return 0 if all(run.status in WELL for run in runs) else 1


def sentence(run: LiveRun) -> str:
    """One line about a run: how it ended or how far it is."""
    parts = [f"{run.path}: {run.status}"]
    if run.message:
        parts[0] += f" ({run.message})"
    progress = run.progress
    if progress is not None:
        parts.append(f"epoch {progress.epoch} of {progress.epochs}, {_count(progress.step, 'step')}")
        parts += _figures(progress)
    parts.append(_count(run.rows, "row"))
    return ", ".join(parts)


def _look(run: LiveRun) -> bool:
    """Read a run once, and surely: whether it was killed takes two questions."""
    changed = run.poll()
    while run.undecided:
        time.sleep(following.DEAD_SECONDS)
        changed |= run.poll()
    return changed


def _print_changes(runs: Sequence[LiveRun], interval: float, once: bool) -> None:
    marks = [0] * len(runs)
    first = True
    while True:
        for place, run in enumerate(runs):
            if (_look(run) if once else run.poll()) or first:
                state = run.since(marks[place])
                marks[place] = run.mark
                sys.stdout.write(json.dumps({"run": str(run.path), **state}, allow_nan=False) + "\n")
        sys.stdout.flush()
        first = False
        if once or all(run.over for run in runs):
            return
        time.sleep(interval)


def _wait(runs: Sequence[LiveRun], interval: float) -> None:
    while True:
        for run in runs:
            run.poll()
        if all(run.over for run in runs):
            return
        time.sleep(interval)


def _draw(runs: Sequence[LiveRun], interval: float, console: Console) -> None:
    from rich.console import Group
    from rich.live import Live

    with Live(console=console, auto_refresh=False, transient=True, vertical_overflow="ellipsis") as live:
        while True:
            for run in runs:
                run.poll()
            if all(run.over for run in runs):
                break
            live.update(Group(*(_picture(run, console.width, len(runs) == 1) for run in runs)), refresh=True)
            time.sleep(interval)
    for run in runs:
        console.print(_picture(run, console.width, len(runs) == 1))


def _picture(run: LiveRun, width: int, alone: bool) -> RenderableType:
    """Head, progress, curves and last measurements of one run."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble((run.status, f"bold {COLOURS[run.status]}"), "  ", (str(run.path), "bold"))
    lines: list[RenderableType] = [head]
    if run.message:
        lines.append(Text(run.message, style=COLOURS[run.status]))
    if run.problem:
        lines.append(Text(run.problem, style="red"))
    if run.training:
        lines.append(Text(_what(run.training), style="dim"))
    if run.progress is not None:
        lines.append(_bar(run.progress, width, run.over))
    elif not run.training:
        lines.append(Text(_count(run.rows, "row"), style="dim"))
    if alone:
        lines += _curves(run, width)
    if run.latest:
        lines.append(_latest(run))
    return Group(*lines, Text())


def _bar(progress: Progress, width: int, over: bool) -> RenderableType:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    batches = "" if progress.batches is None else f"/{progress.batches}"
    words = [f"epoch {progress.epoch}/{progress.epochs}"]
    if not over:
        words.append(f"{progress.phase} {progress.batch}{batches}")
    words += _figures(progress)
    silent = time.time() - progress.updated
    if not over and silent > SILENT_SECONDS:
        words.append(f"nothing new for {duration(silent)}")
    elif not over:
        left = left_words(progress.remaining, progress.remaining_complete, progress.may_stop)
        words += [left] if left else []
    text = Text("  ".join(words))
    if progress.done is None:
        return text
    return Group(ProgressBar(total=1.0, completed=progress.done, width=min(width, 100)), text)


def _figures(progress: Progress) -> list[str]:
    words = []
    if progress.loss is not None:
        words.append(f"loss {progress.loss:.4g}")
    if progress.accuracy is not None:
        words.append(f"accuracy {100 * progress.accuracy:.2f} %")
    return [*words, duration(progress.seconds)]


def _curves(run: LiveRun, width: int) -> list[RenderableType]:
    from rich.table import Table

    drawn = [names for names in CURVES if any(name in run.series for name in names)]
    if not drawn:
        return []
    columns = len(drawn) if width >= SIDE_BY_SIDE else 1
    grid = Table.grid(padding=(0, 2))
    pictures = [_curve(run, names, width // columns - 2) for names in drawn]
    for start in range(0, len(pictures), columns):
        grid.add_row(*pictures[start : start + columns])
    return [grid]


def _curve(run: LiveRun, names: Sequence[str], width: int) -> RenderableType:
    """Series over the samples seen, drawn by uniplot; points that are not finite are counted below."""
    from rich.console import Group
    from rich.text import Text
    from uniplot import plot_to_string

    points = {name: run.series[name].points() for name in names if name in run.series}
    finite = {
        name: [
            (samples, value) for samples, _, value in found if math.isfinite(samples) and math.isfinite(value)
        ]
        for name, found in points.items()
    }
    left_out = sum(map(len, points.values())) - sum(map(len, finite.values()))
    shown = {name: found for name, found in finite.items() if found}
    title = " and ".join(name.replace("_", " ") for name in points) + " over samples"
    notes = [Text(f"{_count(left_out, 'value')} not finite", style="red")] if left_out else []
    if not shown:
        return Group(Text(title), *notes)
    drawing = plot_to_string(
        xs=[[samples for samples, _ in found] for found in shown.values()],
        ys=[[value for _, value in found] for found in shown.values()],
        lines=True,
        color=True,
        title=title,
        legend_labels=[name.replace("_", " ") for name in shown],
        width=max(width - 14, 16),
        height=CURVE_LINES,
        character_set="braille",
    )
    return Group(Text.from_ansi(drawing), *notes)


def _latest(run: LiveRun) -> RenderableType:
    from rich.text import Text

    from meta500.benchmarks.tables import table_of

    table = table_of("Last measurements", ["what", "who"], ["quantity", "value"])
    for row in run.latest:
        what = " ".join(filter(None, (row.model, row.node or row.operator, row.shape, row.phase)))
        who = " ".join(filter(None, (row.backend, row.mode, row.optimizer)))
        value = row.verdict if row.value is None else f"{row.value:.4g} {'' if row.unit == '1' else row.unit}"
        # As texts, so that brackets in a name are no markup.
        table.add_row(*map(Text, (what, who, row.quantity, value.strip())))
    return table


def _what(training: dict[str, Any]) -> str:
    names = ("model", "dataset", "optimizer", "backend", "mode", "device", "dtype")
    words = [str(training[name]) for name in names if name in training]
    return "  ".join(
        [*words, *(f"{name} {training[name]}" for name in ("batch", "seed") if name in training)]
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
