"""The comparison with plain PyTorch in processes: rows, failures, and tables made from rows."""

from dataclasses import replace

import pytest
from rich.console import Console

from meta500.benchmarks import against_torch
from meta500.benchmarks import against_torch_tables as tables
from meta500.benchmarks.against_torch import (
    COLD,
    COLD_START,
    INFERENCE,
    INTERLEAVED,
    MEMORY,
    OWN_PROCESS,
    TRAINING,
    WARM_START,
    Plan,
    measure,
    measure_net,
    unet,
)
from meta500.benchmarks.variants import PLAIN_TORCH, TUNED_ENVIRONMENT, VARIANTS, Variant, variants
from meta500.errors import UserError
from meta500.metrics import Row

BOTH = tuple(variants(["eager"], tuned=False))


def measured(**changes):
    plan = Plan(
        nets=("digits_cnn",), phases=(), variants=BOTH, rounds=3, threads=1, warmup=1, settle=0.0, quick=True
    )
    rows = []
    measure(replace(plan, **changes), rows.append)
    return rows


def test_variants_are_chosen_by_name_and_ours_is_among_them():
    assert [v.name for v in variants(None, tuned=False)] == [
        "generated",
        "eager",
        "channels-last",
        "compile",
        "compile-channels-last",
    ]
    assert len(variants(None, tuned=True)) == 9
    assert [v.name for v in variants(["compile-tuned"], tuned=False)] == ["generated", "compile-tuned"]
    assert VARIANTS["compile-channels-last-tuned"].mode == "compile, channels-last, tuned"
    assert VARIANTS["eager-tuned"].environment == TUNED_ENVIRONMENT and not VARIANTS["eager"].environment
    with pytest.raises(UserError, match="unknown variant 'egaer'. Did you mean 'eager'"):
        variants(["egaer"], tuned=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nets": ("unet-9",)}, "unknown network 'unet-9'"),
        ({"phases": ("train",)}, "unknown phase 'train'"),
        ({"rounds": 0}, "rounds 0"),
        ({"limit": 0.0}, "limit 0"),
    ],
)
def test_bad_plans_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        measured(**changes)


def test_times_of_a_tiny_network():
    rows = measured(phases=(TRAINING,))
    times = {r.backend: r for r in rows if r.quantity == "time"}
    assert set(times) == {"generated", PLAIN_TORCH}
    for row in times.values():
        assert row.protocol == INTERLEAVED and row.phase == TRAINING and row.model == "digits_cnn"
        assert len(row.samples) == row.repeats == 3 and row.warmup == 1
        assert 0 < row.low <= row.value <= row.high and row.verdict != "wrong"
        assert row.threads == 1 and row.version
    ours = times["generated"]
    assert ours.verdict == "ok" and 0 < ours.error <= ours.tolerance
    (ratio,) = (r for r in rows if r.quantity == "ratio")
    assert (ratio.backend, ratio.mode, ratio.baseline) == (PLAIN_TORCH, "eager", "generated")
    pairs = zip(times[PLAIN_TORCH].samples, ours.samples, strict=True)
    assert ratio.samples == pytest.approx([theirs / mine for theirs, mine in pairs])
    assert {r.backend for r in rows if r.quantity == "first_call"} == {"generated", PLAIN_TORCH}


def test_a_network_of_ones_own_in_double_precision():
    """All processes get the plan's variables; here one that nothing but PyTorch's process minds."""
    net = unet(0, 16, 1, "float64")
    assert net.small == {"n": 0, "size": 16, "batch": 1, "dtype": "float64"} and net.options == net.small
    assert unet(3, 512).small == {"n": 3, "size": 64, "batch": 2}
    eager = (VARIANTS["eager"],)
    plan = Plan((), (INFERENCE,), eager, rounds=2, threads=1, warmup=0, settle=0.0)
    rows = []
    measure_net(plan, net, rows.append)
    (time,) = (r for r in rows if r.quantity == "time")
    assert (time.dtype, time.model, time.batch, len(time.samples)) == ("float64", "unet-0", 1, 2)
    broken = replace(plan, environment={"PYTHONHOME": "/nowhere"})
    failed = []
    measure_net(broken, net, failed.append)
    assert [r.verdict for r in failed if r.quantity == "time"] == ["failed"]


class Stub:
    """A process whose steps take a second of the clock in ``clock``, and give the loss in its variable."""

    clock = 0.0

    def __init__(self, module, environment, name):
        self.loss = float(environment["LOSS"])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    close = __exit__

    def ask(self, order, limit, **what):
        if order == "steps":
            Stub.clock += 1.0
        return {"seconds": 0.1, "found": self.loss}


def stubbed(monkeypatch, losses, rounds=11, **how):
    """Rows of variants of PyTorch with these first losses."""
    monkeypatch.setattr(against_torch, "Worker", Stub)
    monkeypatch.setattr(against_torch.time, "monotonic", lambda: Stub.clock)
    torch = tuple(
        Variant(name, PLAIN_TORCH, name, environment={"LOSS": str(x)}) for name, x in losses.items()
    )
    known = how.pop("known", None)
    plan = Plan((), (TRAINING,), torch, rounds, 1, warmup=1, settle=0.0, **how)
    rows = []
    measure_net(plan, unet(0, 16, 1), rows.append, known=known)
    return [row for row in rows if row.quantity == "time"]


@pytest.mark.parametrize(("seconds", "rounds"), [(0.0, 7), (5.5, 7), (9.5, 9), (100.0, 11)])
def test_rounds_end_when_time_is_over_but_seven_are_sampled(monkeypatch, seconds, rounds):
    # Each round takes a second; one is for warming up.
    (time,) = stubbed(monkeypatch, {"eager": 1.0}, max_seconds=seconds)
    assert len(time.samples) == rounds and time.confidence >= 0.95 and time.verdict != "failed"
    (few,) = stubbed(monkeypatch, {"eager": 1.0}, rounds=2, max_seconds=0.0)
    assert len(few.samples) == 2


def test_groups_of_one_are_compared_with_the_groups_before(monkeypatch):
    known = {}
    (first,) = stubbed(monkeypatch, {"eager": 2.0}, rounds=1, known=known)
    (second,) = stubbed(monkeypatch, {"channels-last": 2.0005}, rounds=1, known=known)
    (third,) = stubbed(monkeypatch, {"compile": 2.1}, rounds=1, known=known)
    assert known == {"eager": 2.0, "channels-last": 2.0005, "compile": 2.1}
    assert [row.verdict == "wrong" for row in (first, second, third)] == [False, False, True]
    assert "the median of all variants is 2.0005" in third.note
    # Without what is known of others nothing could be said of it.
    (alone,) = stubbed(monkeypatch, {"compile": 2.1}, rounds=1)
    assert alone.verdict != "wrong"


def test_variants_are_tuned_by_the_allocator_alone():
    other = replace(VARIANTS["eager"], environment={"X": "1"})
    assert not other.tuned and VARIANTS["eager-tuned"].tuned
    assert replace(other, environment={**TUNED_ENVIRONMENT, "X": "1"}).tuned


@pytest.mark.slow
def test_inference_memory_and_start_of_a_tiny_network():
    rows = measured(phases=(COLD, MEMORY, INFERENCE))
    assert {r.verdict for r in rows} <= {"ok", "not_compared"}
    peak = {r.backend: r.value for r in rows if r.quantity == "peak_memory"}
    assert 2**24 < peak["generated"] < peak[PLAIN_TORCH] < 2**32
    before = {r.backend: r.value for r in rows if r.quantity == "memory_before"}
    assert all(2**24 < before[backend] <= peak[backend] for backend in peak)
    start = {(r.backend, r.protocol): r.value for r in rows if r.protocol in (COLD_START, WARM_START)}
    assert len(start) == 4 and start["generated", COLD_START] > start["generated", WARM_START]
    assert {r.phase for r in rows if r.quantity == "time"} == {INFERENCE}


def test_a_variant_that_fails_is_a_row_and_the_others_go_on():
    broken = Variant("broken", PLAIN_TORCH, "broken", environment={"PYTHONHOME": "/nowhere"})
    rows = measured(phases=(INFERENCE, MEMORY), variants=(VARIANTS["generated"], broken))
    failed = [r for r in rows if r.verdict == "failed"]
    assert {(r.mode, r.quantity) for r in failed} == {("broken", "time"), ("broken", "peak_memory")}
    assert all("the process ended with status 1" in r.note for r in failed)
    (ours,) = (r for r in rows if r.backend == "generated" and r.quantity == "time")
    assert ours.verdict == "ok" and len(ours.samples) == 3
    assert not [r for r in rows if r.quantity == "ratio"]


def test_a_limit_that_is_exceeded_is_told():
    rows = measured(phases=(MEMORY,), limit=0.05)
    assert [(r.verdict, r.value) for r in rows] == [("failed", None)] * 2
    assert all("make: no answer after 0.05 s" in r.note for r in rows)


# -- tables ---------------------------------------------------------------------------------------------------


def row(variant, quantity, value, **more):
    who = VARIANTS[variant].columns(2)
    what = {"level": 1, "model": "unet-0", "phase": TRAINING, "shape": "8x3x512x512", "protocol": INTERLEAVED}
    units = {"time": "s", "first_call": "s", "peak_memory": "B", "ratio": "1"}
    return Row(**{**what, **who, "quantity": quantity, "unit": units[quantity], "value": value, **more})


def text(table):
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table)
    return capture.get()


TIMES = [
    row("generated", "time", 0.016, error=3e-7, tolerance=1e-5, verdict="ok"),
    row("eager", "time", 1.2),
    row("compile", "time", 0.2),
    row("channels-last", "time", 0.001, verdict="wrong"),
    row("compile-channels-last", "time", None, verdict="failed"),
    row("eager-tuned", "time", 0.6),
    row("compile-tuned", "time", 0.14),
    row("compile", "ratio", 12.5, low=12.0, high=13.0, baseline="generated"),
    row("compile-tuned", "ratio", 8.75, low=8.5, high=9.0, baseline="generated"),
    row("compile", "first_call", 30.0),
]


def test_the_best_table_takes_the_fastest_that_is_right():
    lines = text(tables.best_table(TIMES)).splitlines()
    assert "as installed" in lines[2] and "tuned" in lines[2]
    (line,) = (line for line in lines if line.startswith(" unet-0") or line.startswith("unet-0"))
    for part in ("16.0 ms", "3.0e-07", "200 ms (compile)", "12.5 [12.0, 13.0]", "140 ms (compile)", "8.75"):
        assert part in line


def test_the_best_table_has_no_column_for_what_was_not_measured():
    assert "tuned" not in text(tables.best_table([r for r in TIMES if "tuned" not in r.mode]))


def test_the_table_of_all_variants_leaves_nobody_out():
    shown = text(tables.variants_table(TIMES))
    assert shown.count("plain PyTorch") == 6 and "failed" in shown and "wrong!" in shown and "30.0 s" in shown


def test_memory_and_start():
    memory = [
        row("generated", "peak_memory", 2.0**20 * 100, protocol=OWN_PROCESS),
        row("eager", "peak_memory", 2.0**20 * 800, protocol=OWN_PROCESS),
        row("compile", "peak_memory", 2.0**20 * 500, protocol=OWN_PROCESS),
    ]
    shown = text(tables.memory_table(memory))
    assert "100 MiB" in shown and "500 MiB" in shown and "0.20" in shown and "800" not in shown
    starts = [
        row("generated", "first_call", 6.0, protocol=COLD_START),
        row("generated", "first_call", 0.1, protocol=WARM_START),
        row("compile", "first_call", None, protocol=COLD_START, verdict="failed"),
    ]
    shown = text(tables.start_table(starts))
    assert "6.00 s / 100 ms" in shown and "failed / -" in shown
    assert len(tables.all_tables([*TIMES, *memory, *starts])) == 4
