"""Histories: what was added is read again, nothing is lost or doubled, and damage is named by its line."""

import errno
import json
import math
import multiprocessing
import os

import numpy as np
import pytest

from meta500.errors import UserError
from meta500.metrics import history
from meta500.metrics.history import Point, add, machine_of, read
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder
from meta500.metrics.statistics import median_interval
from meta500.metrics.trends import trends

CPU = {"model": "abacus", "affinity": "0-1", "microcode": "1"}


def a_row(**fields):
    return Row(**{"level": 1, "model": "unet-0", "quantity": "time", "unit": "s", "value": 1.0, **fields})


def samples(center, seed, n=9):
    return tuple(center * np.exp(0.02 * np.random.default_rng(seed).standard_normal(n)))


@pytest.fixture
def make(tmp_path):
    def run(number, *rows, cpu=CPU, status="finished", **environment):
        git = {"commit": f"{number + 0xA0:02x}" * 20, "dirty": False}
        environment = {"cpu": cpu, "git": git, "versions": {"torch": "2.13"}, **environment}
        made = RunFolder.create(tmp_path / f"run{number}", environment=environment)
        made.info["started"] = f"2026-01-{1 + number:02d}T00:00:00+00:00"
        made.extend(rows or [a_row()])
        made.finish(status)
        return RunFolder.open(made.path)

    return run


def test_what_was_added_is_read_again(make, tmp_path):
    taken = samples(1.0, 0)
    rows = [
        a_row(samples=taken, value=float(np.median(taken)), threads=2, backend="torch"),
        a_row(node="broken", value=None, verdict="failed"),
        a_row(node="lost", quantity="loss", unit="1", value=math.nan),
        a_row(node="müde", quantity="ratio", unit="1", value=2.0, low=1.5, high=2.5, confidence=0.96),
    ]
    run = make(0, *rows)
    assert add(tmp_path / "h.jsonl", [run]) == [run.id]
    (entry,) = read(tmp_path / "h.jsonl")
    assert repr(entry) == repr(history.entry_of(run))  # NaN is not equal to itself
    assert (entry.run, entry.commit, entry.dirty) == (run.id, "a0" * 20, False)
    assert entry.machine == machine_of(run.environment)
    time, broken, lost, ratio = entry.points.values()
    found = median_interval(taken)
    assert time == Point(found.value, found.low, found.high, found.confidence, 9, "s", "")
    assert (broken.value, broken.fault) == (None, "failed")
    assert math.isnan(lost.value)
    assert (ratio.low, ratio.high, ratio.confidence) == (1.5, 2.5, 0.96)
    assert list(entry.points) == list(history.entry_of(run).points)


def test_the_same_run_is_not_added_twice(make, tmp_path):
    first, second = make(0), make(1)
    file = tmp_path / "new" / "h.jsonl"
    assert add(file, [first, first]) == [first.id]
    before = file.read_bytes()
    assert add(file, [first]) == []
    assert file.read_bytes() == before
    assert add(file, [second, first]) == [second.id]
    assert file.read_bytes().startswith(before)


def test_runs_are_ordered_by_their_start(make, tmp_path):
    late, early = make(5), make(1)
    add(tmp_path / "h.jsonl", [late])
    add(tmp_path / "h.jsonl", [early])
    assert [e.run for e in read(tmp_path / "h.jsonl")] == [early.id, late.id]


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_unfinished_runs_are_refused_and_nothing_is_written(make, tmp_path, status):
    file = tmp_path / "h.jsonl"
    with pytest.raises(UserError, match=f"run1: the run is {status}"):
        add(file, [make(0), make(1, status=status)])
    assert not file.exists()


def test_a_run_without_measurements_is_refused(tmp_path):
    with RunFolder.create(tmp_path / "empty", environment={}) as run:
        pass
    with pytest.raises(UserError, match="no measurement to keep"):
        add(tmp_path / "h.jsonl", [run])


def broken(line):
    entry = json.loads(line)
    del entry["machine"]
    return json.dumps(entry).encode()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: line[: len(line) // 2], "is damaged"),
        (lambda line: b"", "is damaged"),
        (lambda line: b"[1]", "is damaged: no line of a history"),
        (lambda line: b"\xff" + line, "is damaged"),
        (lambda line: line.replace(b'"value": 1.0', b'"value": "many"'), "is damaged"),
        (lambda line: line.replace(b'"measurements": [', b'"measurements": [3, '), "is damaged"),
        (lambda line: line.replace(b'_version": 1', b'_version": 2'), "schema_version 2"),
        (broken, "is damaged: 'machine' is missing"),
    ],
)
def test_a_damaged_line_is_named_and_nothing_is_lost(make, tmp_path, damage, message):
    file = tmp_path / "h.jsonl"
    add(file, [make(number) for number in range(3)])
    lines = file.read_bytes().split(b"\n")
    lines[1] = damage(lines[1])
    file.write_bytes(b"\n".join(lines))
    before = file.read_bytes()
    for call in (lambda: read(file), lambda: add(file, [make(3)])):
        with pytest.raises(UserError, match=r"h\.jsonl, line 2: ") as error:
            call()
        assert message in str(error.value)
        assert file.read_bytes() == before


@pytest.mark.parametrize("cut", [1, 40])
def test_a_line_that_a_crash_cut_is_named(make, tmp_path, cut):
    file = tmp_path / "h.jsonl"
    add(file, [make(0), make(1)])
    file.write_bytes(file.read_bytes()[:-cut])
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"line 2: is incomplete.*add its run again"):
        add(file, [make(2)])
    assert file.read_bytes() == before


def test_a_repeated_run_is_named(make, tmp_path):
    file = tmp_path / "h.jsonl"
    add(file, [make(0)])
    file.write_bytes(file.read_bytes() * 2)
    with pytest.raises(UserError, match="line 2: run .* is there twice"):
        read(file)


@pytest.mark.parametrize("after", [0, 50])
def test_a_full_disk_leaves_the_file_as_it_was(make, tmp_path, monkeypatch, after):
    file = tmp_path / "h.jsonl"
    add(file, [make(0)])
    before, write, written = file.read_bytes(), os.write, []

    def failing(descriptor, data):
        if sum(written) >= after:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(write(descriptor, bytes(data)[:after]))
        return written[-1]

    new = make(1)
    monkeypatch.setattr(history.os, "write", failing)
    with pytest.raises(UserError, match=r"disk is full.*the runs so far are intact"):
        add(file, [new])
    assert file.read_bytes() == before


def test_a_missing_file_and_one_that_is_held(make, tmp_path, monkeypatch):
    import fcntl

    file = tmp_path / "h.jsonl"
    with pytest.raises(UserError, match="no such file"):
        read(file)
    run = make(0)
    monkeypatch.setattr(history, "PATIENCE", 0.05)
    with open(file, "wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match="another process has held it"):
            add(file, [run])
    assert add(file, [run]) == [run.id]


def _adder(file, paths, start):
    start.wait()
    for path in paths:
        add(file, [RunFolder.open(path)])


def test_many_writers_at_once_lose_and_double_nothing(make, tmp_path):
    runs = [make(number) for number in range(12)]
    # Every run is added by two processes.
    shares = [[r.path for r in runs[i::4] + runs[(i + 1) % 4 :: 4]] for i in range(4)]
    context = multiprocessing.get_context("fork")
    start = context.Event()
    processes = [context.Process(target=_adder, args=(tmp_path / "h.jsonl", s, start)) for s in shares]
    for process in processes:
        process.start()
    start.set()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    assert [e.run for e in read(tmp_path / "h.jsonl")] == [r.id for r in runs]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"cpu": {**CPU, "model": "slide rule"}}, False),
        ({"cpu": {**CPU, "affinity": "0-3"}}, False),
        ({"cpu": {**CPU, "affinity": "4,7"}}, True),
        ({"cpu": {**CPU, "microcode": "2"}}, True),
        ({"cpu": CPU, "versions": {"torch": "3"}}, True),
        ({"cpu": CPU, "gpus": [{"name": "G", "memory_bytes": 1}]}, False),
        ({"cpu": CPU, "memory": {"total_bytes": 2**35}}, False),
    ],
)
def test_machines(other, same):
    assert (machine_of({"cpu": CPU}) == machine_of(other)) == same


def series(make, tmp_path, factors, **options):
    """A history of one time per factor; ``options`` are those of the runs from ``since`` on."""
    since = options.pop("since", len(factors))
    runs = []
    for number, factor in enumerate(factors):
        taken = samples(factor, number)
        rows = [a_row(samples=taken, value=float(np.median(taken))), a_row(quantity="error", unit="1")]
        runs.append(make(number, *rows, **(options if number >= since else {})))
    add(tmp_path / "h.jsonl", runs)
    return read(tmp_path / "h.jsonl")


def test_a_step_is_marked_between_its_runs_with_what_else_changed(make, tmp_path):
    factors = [1.0] * 8 + [1.5] * 8
    entries = series(make, tmp_path, factors, since=8, versions={"torch": "3.0"})
    found = trends(entries)
    (only,) = found.series  # errors have no trend
    (mark,) = only.marks
    assert (mark.before, mark.after) == (entries[7], entries[8])
    assert mark.verdict == "regression"
    assert mark.software == (("versions.torch", "2.13", "3.0"),)
    assert mark.change.ratio == pytest.approx(1.5, rel=0.03)


def test_machines_are_never_joined(make, tmp_path):
    """The other machine is half as fast: no change, since nothing changed on either of them."""
    entries = series(make, tmp_path, [1.0] * 10 + [2.0] * 10, since=10, cpu={**CPU, "model": "slide rule"})
    found = trends(entries)
    assert len(found.machines) == len(found.series) == 2
    assert [len(s.points) for s in found.series] == [10, 10]
    assert found.tested == 2 and not any(s.marks for s in found.series)
    assert found.each == pytest.approx(0.025)


def test_short_series_are_not_searched(make, tmp_path):
    found = trends(series(make, tmp_path, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]))
    assert (found.tested, found.needed) == (0, 8)
    assert not found.series[0].tested


def test_failures_are_told_and_are_no_points(make, tmp_path):
    add(tmp_path / "h.jsonl", [make(0), make(1, a_row(value=None, verdict="failed"))])
    (only,) = trends(read(tmp_path / "h.jsonl")).series
    assert len(only.points) == 1
    assert [what for _, what in only.faults] == ["failed"]


def test_bad_options_of_trends(make, tmp_path):
    entries = series(make, tmp_path, [1.0])
    for options, message in (
        ({"text": "nothing"}, "has 'nothing' in its name"),
        ({"minimum": -0.1}, "must not be negative"),
        ({"rate": 1.5}, "outside of"),
    ):
        with pytest.raises(UserError, match=message):
            trends(entries, **options)
    with pytest.raises(UserError, match="no run yet"):
        trends([])


def test_plots(make, tmp_path):
    from meta500.metrics.plots.history import draw_history, history_plots

    entries = series(make, tmp_path, [1.0] * 8 + [1.5] * 9, since=14, cpu={**CPU, "model": "slide rule"})
    found = trends(entries)
    written = history_plots(found, tmp_path / "plots")
    assert [path.name for path in written] == ["history-1.png", "history-1.pdf"]
    figure = draw_history(found, [found.series[0].measurement])
    (axes,) = figure.axes
    curves = [line for line in axes.lines if line.get_marker() in ("o", "s")]
    assert [len(line.get_xdata()) for line in curves] == [14, 3]  # one line per machine
    assert [text.get_text() for text in axes.texts] == [
        f"▲ {100 * (found.series[0].marks[0].change.ratio - 1):+.3g} %"
    ]
    uprights = [line.get_xdata()[0] for line in axes.lines if line.get_marker() not in ("o", "s")]
    assert sorted(uprights) == [7.5, 13.5]  # the change and the other machine
    with pytest.raises(UserError, match="no point of 'nothing'"):
        draw_history(found, ["nothing"])
