"""Measuring layers: the rows of a small network, with compilers that do nothing, lie, or fail."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from meta500.benchmarks.studies.compiler import cut_network, methods, modes, timing
from meta500.benchmarks.studies.compiler.findings_layers import CLAIMS
from meta500.benchmarks.studies.compiler.sections_layers import layer_findings, layer_sections
from meta500.benchmarks.studies.compiler.settings import Settings
from meta500.benchmarks.studies.select import one, select
from meta500.metrics.plots import bars, density, lines
from meta500.metrics.rows import from_dict, to_dict

QUICK = Settings(quick=True, threads=1)


def leave(function, mode):
    """A compiler that changes nothing."""
    return function


COMPILED: list[str] = []


def count(function, mode):
    """As :func:`leave`, and every call is noted."""
    COMPILED.append(mode)
    return function


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(methods, "LEAST_ROUNDS", 6)
    monkeypatch.setattr(methods, "PROFILED_ROUNDS", 3)


def rows_of(compile=leave, **options):
    rows = []
    timing.measure_layers(QUICK, "digits_cnn", "default", 3, rows.append, compile=compile, **options)
    return [from_dict(to_dict(row)) for row in rows]


@pytest.fixture(scope="module")
def measured():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(methods, "LEAST_ROUNDS", 6)
        patch.setattr(methods, "PROFILED_ROUNDS", 3)
        COMPILED.clear()
        return rows_of(count, exhaustive=True)


def test_rows_of_a_small_network(measured):
    (mode, rows), *others = timing.by_mode(measured).items()
    assert mode == "default" and not others and len(rows) == len(measured)
    assert {row.phase for row in rows} == set(timing.PHASES)
    assert {row.verdict for row in select(rows, quantity="error")} == {"ok"}
    assert all(row.value is not None and row.level == 1 and row.model == "digits_cnn" for row in rows)
    # Nine layers, three segments, two borders with three kinds of costs, eight choices of states.
    layers = select(rows, phase=timing.LAYER)
    assert [row.node for row in layers][:2] == ["conv1", "relu1"] and len(layers) == 9
    assert [row.operator for row in layers][::8] == ["Conv", "Gemm"]
    for method in (timing.TIMERS, timing.SUBTRACTION, timing.PROFILER):
        for state in ("eager", "default"):
            times = select(rows, phase=timing.SEGMENT, quantity="time", protocol=method, mode=state)
            assert [row.step for row in times] == [0, 1, 2]
    assert len(select(rows, phase=timing.BORDER)) == 6
    choices = select(rows, phase=timing.CONFIGURATION, quantity="time")
    assert len({row.node for row in choices}) == 8
    assert {row.node for row in choices if row.mode == "eager"} == {"III"}
    assert {row.node for row in choices if row.mode == "default"} == {"CCC"}


def test_sums_and_parts_agree(measured):
    rows = timing.by_mode(measured)["default"]
    for protocol, phase, mode in (
        (timing.LAYER_TIMERS, timing.LAYER, "eager"),
        (timing.TIMERS, timing.SEGMENT, "default"),
        (timing.SUBTRACTION, timing.SEGMENT, "default"),
    ):
        parts = select(rows, phase=phase, protocol=protocol, mode=mode, quantity="time")
        total = one(rows, phase=timing.RUN, protocol=protocol, mode=mode, quantity="sum")
        np.testing.assert_allclose(np.sum([row.samples for row in parts], axis=0), total.samples, rtol=1e-9)
    # What is between two marks lies inside of the run.
    run = one(rows, phase=timing.RUN, protocol=timing.TIMERS, mode="eager", quantity="time")
    total = one(rows, phase=timing.RUN, protocol=timing.TIMERS, mode="eager", quantity="sum")
    assert all(a <= b for a, b in zip(total.samples, run.samples, strict=True))


def test_the_programme_finds_what_the_search_finds(measured):
    rows = select(timing.by_mode(measured)["default"], phase=timing.ORACLE, quantity="prediction")
    programme, search = (one(rows, protocol=name) for name in (timing.DYNAMIC, timing.ALL_CHOICES))
    assert programme.value == pytest.approx(search.value, rel=1e-9)


def test_report_of_what_was_measured(measured):
    sections = layer_sections(measured)
    assert [section.title for section in sections] == [
        "Ways to time layers",
        "Layers interpreted and compiled",
        "Oracles",
        "Selective compilation",
    ]
    made = [part for section in sections for part in section.parts if hasattr(part, "draw")]
    assert len(made) == len({figure.name for figure in made}) == 6
    for figure in made:
        assert any(axes.has_data() for axes in figure.draw().axes)
    claims = {f.claim: f.verdict for f in layer_findings(measured) if f.claim}
    assert claims.pop(CLAIMS["together"][0]) == "not measured"
    # Of the small network alone nothing is decided.
    assert set(claims.values()) <= {"undecided", "not measured"}
    assert claims[CLAIMS["timers"][0]] == "undecided"


class Reached(Exception):
    """The numbers of a figure were accepted, and drawing begins."""


def figures_begin(rows):
    """The number of figures of a report, after each was drawn as far as its numbers are looked at."""
    assert all(finding.text for finding in layer_findings(rows))
    made = [part for section in layer_sections(rows) for part in section.parts if hasattr(part, "draw")]
    for figure in made:
        with pytest.raises(Reached):
            figure.draw()
    return len(made)


@pytest.fixture
def undrawn(monkeypatch):
    def reached(*_, **__):
        raise Reached

    for module in (bars, density, lines):
        monkeypatch.setattr(module, "new_figure", reached)


@pytest.mark.parametrize("phase", timing.PHASES)
def test_report_without_some_rows(measured, phase, undrawn):
    """Of a study that was interrupted: whatever is missing is said so, and nothing fails."""
    rest = [row for row in measured if not row.phase.startswith(phase)]
    only = [row for row in measured if row.phase.startswith(phase)]
    for rows in (rest, only, only[:3]):
        figures_begin(rows)


@pytest.mark.parametrize("quantity", ["time", "sum", "ratio", "speedup", "prediction", "error"])
def test_report_without_a_quantity(measured, quantity, undrawn):
    figures_begin([row for row in measured if row.quantity != quantity])
    figures_begin([row for row in measured if row.quantity == quantity])


def test_any_beginning_of_the_rows_has_figures_that_can_be_drawn(measured, undrawn):
    kinds = [(row.phase, row.quantity, row.protocol) for row in measured]
    ends = [0, *(i for i in range(1, len(kinds)) if kinds[i] != kinds[i - 1]), len(kinds)]
    counts = [figures_begin(measured[: end + more]) for end in ends[::3] for more in (0, 1)]
    assert counts[0] == 0 and counts[-1] > 0


def test_a_wrong_network_leaves_the_figures_of_the_others(measured, short):
    """It has rows "error" of the phase of runs, and nothing else."""

    def lie(function, mode):
        return lambda *values: tuple(value * 1.01 for value in function(*values))

    wrong = [replace(row, model="alexnet") for row in rows_of(lie)]
    sections = layer_sections([*measured, *wrong])
    names = [part.name for section in sections for part in section.parts if hasattr(part, "draw")]
    assert "timing-methods-digits-cnn" in names and "timing-methods-alexnet" not in names
    assert layer_sections(wrong) == []


@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune"])
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_cuda_graphs_of_segments_are_not_supported(mode, device):
    settings = Settings(quick=True, threads=1, device=device)
    rows = []
    timing.measure_layers(settings, "digits_cnn", mode, 3, rows.append, compile=leave)
    timing.measure_fine(settings, "digits_cnn", mode, 3, rows.append, compile=leave)
    assert {(row.verdict, row.value, row.device) for row in rows} == {("unsupported", None, device)}
    assert all("CUDA graph" in row.note and row.phase.endswith(mode) for row in rows)


def test_parts_of_timers_have_ratios_of_their_own(short):
    """On a GPU; here the runs are given."""
    rng = np.random.default_rng(0)
    n, rounds = 3, 7
    whole = tuple(rng.uniform(1, 2, rounds) for _ in range(2))
    spent = {
        (state, words): rng.uniform(2, 3, rounds)
        for state in (0, 1)
        for words in (timing.CLOCK_ALONE, timing.WAITS_ALONE)
    }
    runs = methods.TimerRuns(
        whole=whole,
        separate=rng.uniform(1, 2, rounds),
        timed_layers=rng.uniform(2, 3, rounds),
        timed_segments=whole,
        layers=rng.uniform(1, 2, (rounds, 9)),
        segments=rng.uniform(1, 2, (rounds, n, 2)),
        switching=rng.uniform(0, 1, (rounds, n - 1, 2, 2)),
        variants=spent,
    )
    rows = []
    with modes.conditions(QUICK, "cpu"):
        network = cut_network.cut("digits_cnn", QUICK, "default", n, compile=leave)
        timing._emit_timers(timing.Writer(network, QUICK, "default", rows.append), runs)
    found = timing.by_mode(rows)["default"]
    for (state, words), samples in spent.items():
        mode, base = (("eager", whole[0]), ("default", runs.separate))[state]
        ratio = one(found, quantity="ratio", protocol=words, mode=mode)
        np.testing.assert_allclose(ratio.samples, samples / base)
        assert ratio.baseline == (timing.SEPARATE if state else timing.END_TO_END)


def test_a_compiler_that_is_wrong_is_not_timed(short):
    def lie(function, mode):
        return lambda *values: tuple(value * 1.01 for value in function(*values))

    rows = timing.by_mode(rows_of(lie))["default"]
    assert {row.quantity for row in rows} == {"error"}
    assert "wrong" in {row.verdict for row in rows}


def test_a_compiler_that_fails_is_reported(short):
    def fail(function, mode):
        def run(*values):
            raise RuntimeError("no such kernel")

        return run

    rows = timing.by_mode(rows_of(fail))["default"]
    assert {row.verdict for row in rows} == {"failed"}
    assert all("no such kernel" in row.note and row.value is None for row in rows)


def test_selective_choices_are_run_where_not_all_are(short):
    rows = timing.by_mode(rows_of())["default"]
    nodes = {row.node for row in select(rows, phase=timing.CONFIGURATION, quantity="time")}
    chosen = {
        row.node
        for row in select(rows, phase=timing.ORACLE, quantity="prediction")
        if row.protocol != timing.ALL_CHOICES
    }
    assert nodes == {"III", "CCC", *chosen}


def test_regions_are_compiled_once(measured):
    # All runs of three segments: three of one, two of two, one of three.
    assert COMPILED == ["default"] * 6


def test_switching_costs_are_recovered():
    """Runs made of known times and costs give these costs back."""
    rng = np.random.default_rng(1)
    n, rounds = 5, 4
    times = rng.uniform(1, 2, (rounds, n, 2))
    costs = rng.uniform(-0.5, 0.5, (rounds, n - 1, 2, 2))
    costs[:, :, 0, 0] = 0
    found = {}
    for phase in (0, 1):
        states = [int(i % 2 == phase) for i in range(n)]
        spent = np.stack([times[:, i, s] for i, s in enumerate(states)], axis=-1)
        for i in range(1, n):
            spent[:, i] += costs[:, i - 1, states[i - 1], states[i]]
        found[f"alternating {phase}"] = spent
        columns = []
        for a, b in methods._pairs(n, phase):
            columns.append(times[:, a:b, 1].sum(axis=1) + (costs[:, a, 1, 1] if b - a == 2 else 0))
        found[f"pairs {phase}"] = np.stack(columns, axis=-1)
    np.testing.assert_allclose(methods._switching(times, found), costs, atol=1e-12)


def test_pieces():
    keys = [piece.key for piece in timing.layer_pieces(QUICK)]
    assert keys == ["layers-digits_cnn-default"]
    named = Settings(quick=True, networks=("alexnet",), modes=("default", "max-autotune"))
    assert len(timing.layer_pieces(named)) == 4
    full = [piece.key for piece in timing.layer_pieces(Settings())]
    assert len(full) == len(set(full)) == 14
    assert "layers-resnet50-default" in full and "layers-resnet50-default-fine" in full


def test_fine_segments(short):
    rows = []
    timing.measure_fine(QUICK, "digits_cnn", "default", 32, rows.append, compile=leave)
    found = select(timing.by_mode(rows)["default"], phase=timing.SEGMENT, quantity="speedup")
    assert len(found) == 9 and {row.protocol for row in found} == {timing.FINE}


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_with_the_compiler(mode):
    rows = []
    timing.measure_layers(QUICK, "digits_cnn", mode, 3, rows.append, exhaustive=True, compile=modes.compiled)
    found = timing.by_mode(rows)[mode]
    assert {row.verdict for row in select(found, quantity="error")} == {"ok"}
    assert len(select(found, phase=timing.CONFIGURATION, quantity="time")) == 8
    assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
