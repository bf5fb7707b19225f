"""Layers of networks timed in four ways, the oracles made of these times, and selective compilation for real
(sections 4.2, 4.3 and 5.5 of the thesis).

Vocabulary of the rows, all of level 1, with ``model``, ``shape``, ``batch``, ``threads``, ``device``:

- ``phase``: one of the following, a comma, and the mode of torch.compile that the piece of work is about;
  :data:`RUN` whole networks by a method of timing; :data:`LAYER` single layers; :data:`SEGMENT`
  segments; :data:`BORDER` switching costs between segments; :data:`ORACLE` what is predicted;
  :data:`CONFIGURATION` networks of which chosen segments are compiled.
- ``mode``: "eager", the mode of torch.compile, or :data:`SELECTIVE`.
- ``protocol``: the method, of :data:`METHODS` and the names below.
- ``node``: name of the layer or segment; of configurations and oracles the states of the segments, "I"
  interpreted and "C" compiled; ``step``: index of the layer, segment or border, from 0.
- ``quantity``: "time"; "sum" of the times of all parts; "ratio" of times to those of ``baseline``; "speedup",
  interpreted / compiled; "switching_cost"; "prediction"; "error" against the interpreted network.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.studies.compiler.modes import Compile, compiled, conditions, failed, who
from meta500.benchmarks.studies.compiler.settings import (
    DEFAULT,
    EAGER,
    MAX_AUTOTUNE,
    REDUCE_OVERHEAD,
    SMALL,
    Settings,
    on_cuda,
)
from meta500.benchmarks.studies.study import Piece
from meta500.metrics.rows import Row
from meta500.metrics.statistics import median_interval

RUN, LAYER, SEGMENT, BORDER, ORACLE, CONFIGURATION = (
    "run by a method",
    "layer",
    "segment",
    "border",
    "oracle",
    "configuration",
)
PHASES = (RUN, LAYER, SEGMENT, BORDER, ORACLE, CONFIGURATION)
END_TO_END, TIMERS, SUBTRACTION, PROFILER = "end to end", "timers", "subtraction", "profiler"
METHODS = (END_TO_END, TIMERS, SUBTRACTION, PROFILER)
# Every segment compiled on its own, without timers; timers behind every layer; many small segments.
SEPARATE, LAYER_TIMERS, FINE = "segments compiled alone", "timers behind layers", "timers, many segments"
# Parts of what timers do on a GPU: only reading the clock, only waiting for the device.
CLOCK_ALONE, WAITS_ALONE = "timers alone", "waits alone"
DYNAMIC, BEST_OF_TWO = "dynamic programme", "best of two runs"
HELD_OUT, BY_CHANCE, ALL_CHOICES = "on other rounds", "of the same run twice", "exhaustive search"
SELECTIVE = "selective"
WHOLE = "compiled whole"
# Segments: coarse ones for subtraction and the choices, fine ones for timers alone.
QUICK_SEGMENTS, SEGMENTS, FINE_SEGMENTS = 4, 8, 32
QUICK_NETWORK_SEGMENTS = 3
# Of the small network whose every choice is measured.
EXHAUSTIVE_SEGMENTS = 6
# As many as the sum over all choices takes no time.
MOST_CHOICES = 12

Array = np.ndarray


def layer_pieces(settings: Settings, *, compile: Compile = compiled) -> list[Piece]:
    """The pieces of this part: a small network with every choice of states, then the networks.

    In the quick mode networks are measured only where they are chosen by name.

    Args:
        settings: of the study.
        compile: from a function and a mode to the compiled function.
    """
    modes = settings.chosen_modes if settings.modes else (DEFAULT,)
    named = settings.named_networks if settings.quick else settings.chosen_networks
    coarse = QUICK_NETWORK_SEGMENTS if settings.quick else SEGMENTS
    every = QUICK_SEGMENTS if settings.quick else EXHAUSTIVE_SEGMENTS
    pieces = []
    for mode in modes:
        for name, segments, exhaustive in (
            (SMALL, every, True),
            *((name, coarse, False) for name in named),
        ):

            def run(
                emit: Emit,
                name: str = name,
                mode: str = mode,
                segments: int = segments,
                exhaustive: bool = exhaustive,
            ) -> None:
                measure_layers(settings, name, mode, segments, emit, exhaustive=exhaustive, compile=compile)

            pieces.append(Piece(f"layers-{name}-{mode}", f"{name}: layers, {mode}", run))
            if not settings.quick:

                def run_fine(emit: Emit, name: str = name, mode: str = mode) -> None:
                    measure_fine(settings, name, mode, FINE_SEGMENTS, emit, compile=compile)

                pieces.append(Piece(f"layers-{name}-{mode}-fine", f"{name}: many segments, {mode}", run_fine))
    return pieces


def measure_layers(
    settings: Settings,
    name: str,
    mode: str,
    segments: int,
    emit: Emit,
    *,
    exhaustive: bool = False,
    compile: Compile = compiled,
) -> None:
    """All rows of one network in one mode.

    Results come first: a network that is wrong where its segments are compiled is not timed further.

    Args:
        settings: protocol, device, seed, options of networks.
        name: of the network.
        mode: of torch.compile.
        segments: into how many it is cut.
        emit: receives the rows.
        exhaustive: run all choices of states, instead of those that an oracle takes.
        compile: see :func:`layer_pieces`.

    Raises:
        Exception: whatever the interpreted network raises, or the compiled one behind its first call.
    """
    from meta500.benchmarks.studies.compiler import methods, selective
    from meta500.benchmarks.studies.compiler.cut_network import cut

    if _overwritten(settings, name, mode, emit):
        return
    with conditions(settings, settings.device):
        network = cut(name, settings, mode, segments, compile=compile)
        writer = Writer(network, settings, mode, emit)
        n = network.segments
        alone = [network.region(i, i + 1) for i in range(n)]
        first = {WHOLE: network.chosen([1] * n), SEPARATE: network.timed(alone, [], methods.Unmarked)}
        if not all([writer.right(run, RUN, protocol) for protocol, run in first.items()]):
            return
        timers = methods.run_timers(network, settings.protocol)
        _emit_timers(writer, timers)
        chosen, _ = selective.choose(timers.segments, timers.switching)
        choices: dict[str, Sequence[int]] = {EAGER: [0] * n, mode: [1] * n}
        if tuple(chosen) not in {tuple(states) for states in choices.values()}:
            choices[SELECTIVE] = chosen
        prefixes = methods.run_prefixes(network, choices, settings.protocol)
        _emit_prefixes(writer, prefixes, choices)
        profile = methods.run_profiler(network)
        _emit_profiler(writer, profile)
        differences = np.stack([subtracted(prefixes[key]) for key in (EAGER, mode)], axis=-1)
        by_method = {TIMERS: timers.segments, SUBTRACTION: differences, PROFILER: profile["segments"]}
        selective.emit_oracles(writer, by_method, timers.switching)
        selective.measure_configurations(writer, by_method, timers.switching, exhaustive=exhaustive)


def measure_fine(
    settings: Settings, name: str, mode: str, segments: int, emit: Emit, *, compile: Compile = compiled
) -> None:
    """Rows of many small segments by timers, interpreted and each compiled on its own."""
    from meta500.benchmarks.studies.compiler import methods
    from meta500.benchmarks.studies.compiler.cut_network import cut

    if _overwritten(settings, name, mode, emit):
        return
    with conditions(settings, settings.device):
        network = cut(name, settings, mode, segments, compile=compile)
        writer = Writer(network, settings, mode, emit)
        alone = [network.region(i, i + 1) for i in range(network.segments)]
        if writer.right(network.timed(alone, [], methods.Unmarked), RUN, FINE):
            writer.segments(methods.run_segments(network, settings.protocol), FINE)


def _overwritten(settings: Settings, name: str, mode: str, emit: Emit) -> bool:
    """Whether the mode makes CUDA graphs of the segments; then the row that says why they are not measured.

    PyTorch's documentation, "CUDAGraph Trees", section "Limitations".
    """
    if not on_cuda(settings.device) or mode not in (REDUCE_OVERHEAD, MAX_AUTOTUNE):
        return False
    emit(
        Row(
            level=1,
            model=name,
            phase=f"{RUN}, {mode}",
            quantity="time",
            unit="s",
            value=None,
            verdict="unsupported",
            note=f"on a GPU {mode} makes a CUDA graph of each segment, whose outputs a later run overwrites "
            "while the segments behind it may still need them; max-autotune-no-cudagraphs has none",
            **who(settings, mode, settings.device),
        )
    )
    return True


def subtracted(prefixes: Array) -> Array:
    """Times of segments, (rounds, segments), as differences of the prefixes of the same round."""
    return np.diff(prefixes, axis=1, prepend=0.0)


def by_mode(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """The rows of this part, by the mode of torch.compile of their piece of work, with it taken out of
    ``phase``."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        phase, _, mode = row.phase.partition(", ")
        if phase in PHASES and mode:
            found.setdefault(mode, []).append(replace(row, phase=phase))
    return found


class Writer:
    """Writes the rows of one network."""

    def __init__(self, network: Any, settings: Settings, mode: str, emit: Emit) -> None:
        self.network, self.settings, self.mode, self._emit = network, settings, mode, emit
        self.expected = network.module(network.images).cpu().numpy()

    def emit(self, row: Row) -> None:
        """Write a row, the mode of the piece of work behind its phase."""
        self._emit(replace(row, phase=f"{row.phase}, {self.mode}"))

    def row(self, samples: Any, *, quantity: str = "time", unit: str = "s", mode: str, **what: Any) -> None:
        """The row of samples, with their median and its interval."""
        values = [float(value) for value in samples]
        self.emit(
            Row(
                quantity=quantity,
                unit=unit,
                samples=tuple(values),
                repeats=len(values),
                **asdict(median_interval(values)),
                **self.columns(mode),
                **what,
            )
        )

    def columns(self, mode: str) -> dict[str, Any]:
        """The columns that say which network and who ran."""
        return {**self.network.columns(), **who(self.settings, mode, self.network.device)}

    def ratio(self, a: Any, b: Any, *, baseline: str, quantity: str = "ratio", **what: Any) -> None:
        """The row of the ratios of samples of the same rounds; none where one is not positive."""
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if (a > 0).all() and (b > 0).all():
            self.row(a / b, quantity=quantity, unit="1", baseline=baseline, **what)

    def right(self, run: Any, phase: str, protocol: str, node: str = "", mode: str = "") -> bool:
        """Emit the error of a run against the interpreted network; whether it is within the tolerance."""
        from meta500.metrics.norms import compare

        what = {"phase": phase, "protocol": protocol, "node": node, **self.columns(mode or self.mode)}
        try:
            found = run(self.network.images).cpu().numpy()
        except Exception as failure:  # a compiler may fail in any way
            self.emit(failed(failure, **what))
            return False
        norms, limit = compare(found, self.expected), self.network.limit
        verdict = norms.verdict(limit)
        self.emit(
            Row(
                quantity="error",
                unit="1",
                value=norms.max_relative,
                error=norms.max_relative,
                error_norm="max_relative",
                tolerance=limit,
                baseline=f"torch {EAGER}",
                verdict=verdict,
                **what,
            )
        )
        return verdict == "ok"

    def segments(self, times: Array, protocol: str, *, mode: str = "") -> None:
        """Times of segments (rounds, segments, 2), interpreted and compiled, and their speedups."""
        for index in range(times.shape[1]):
            what = {"phase": SEGMENT, "node": self.network.segment_name(index), "step": index}
            for state, name in enumerate((EAGER, mode or self.mode)):
                self.row(times[:, index, state], mode=name, protocol=protocol, **what)
            self.ratio(
                times[:, index, 0],
                times[:, index, 1],
                quantity="speedup",
                baseline=f"torch {EAGER}",
                mode=self.mode,
                protocol=protocol,
                **what,
            )


def _emit_timers(writer: Writer, timers: Any) -> None:
    from meta500.benchmarks.studies.compiler.instruments import timer_cost

    network, mode = writer.network, writer.mode
    for state, name in enumerate((EAGER, mode)):
        run = {"phase": RUN, "mode": name}
        whole, timed = timers.whole[state], timers.timed_segments[state]
        writer.row(whole, protocol=END_TO_END, **run)
        writer.row(timed, protocol=TIMERS, **run)
        writer.row(timers.segments[:, :, state].sum(axis=1), quantity="sum", protocol=TIMERS, **run)
        # Compiled segments have their timers where the whole has none of their borders.
        without = whole if state == 0 else timers.separate
        writer.ratio(timed, without, baseline=END_TO_END if state == 0 else SEPARATE, protocol=TIMERS, **run)
        for (of, words), spent in timers.variants.items():
            if of == state:
                writer.row(spent, protocol=words, **run)
                base = END_TO_END if state == 0 else SEPARATE
                writer.ratio(spent, without, baseline=base, protocol=words, **run)
    writer.ratio(timers.whole[0], timers.whole[1], baseline=END_TO_END, quantity="speedup", phase=RUN,
                 mode=mode, protocol=END_TO_END)  # fmt: skip
    run = {"phase": RUN, "mode": EAGER, "protocol": LAYER_TIMERS}
    writer.row(timers.timed_layers, **run)
    writer.row(timers.layers.sum(axis=1), quantity="sum", **run)
    writer.ratio(timers.timed_layers, timers.whole[0], baseline=END_TO_END, **run)
    run = {"phase": RUN, "mode": mode, "protocol": SEPARATE}
    writer.row(timers.separate, **run)
    writer.ratio(timers.separate, timers.whole[1], baseline=END_TO_END, **run)
    cost = timer_cost(network.wait())
    writer.emit(
        Row(
            quantity="timer_cost",
            unit="s",
            phase=RUN,
            protocol=TIMERS,
            **asdict(cost),
            **writer.columns(EAGER),
        )
    )
    for index, layer in enumerate(network.layers):
        operation = layer.meta.get("operation")
        writer.row(
            timers.layers[:, index],
            phase=LAYER,
            mode=EAGER,
            protocol=LAYER_TIMERS,
            node=operation.name if operation is not None else layer.name,
            operator=operation.op_type if operation is not None else "",
            step=index,
        )
    writer.segments(timers.segments, TIMERS)
    for border, ((_, end), _) in enumerate(pairwise(pairwise(network.borders))):
        for before, behind in ((0, 1), (1, 0), (1, 1)):
            names = (EAGER, mode)
            writer.row(
                timers.switching[:, border, before, behind],
                quantity="switching_cost",
                phase=BORDER,
                step=border,
                node=f"behind {network.layers[end - 1].name}",
                mode=f"{names[before]} to {names[behind]}",
                protocol=TIMERS,
            )


def _emit_prefixes(writer: Writer, prefixes: Mapping[str, Array], choices: Mapping[str, Any]) -> None:
    for name, spent in prefixes.items():
        run = {"phase": RUN, "mode": name, "protocol": SUBTRACTION}
        # The differences add up to the last prefix, which is the whole network.
        writer.row(spent[:, -1], quantity="sum", **run)
        writer.ratio(spent.sum(axis=1), spent[:, -1], baseline=END_TO_END, **run)
    both = np.stack([subtracted(prefixes[name]) for name in (EAGER, writer.mode)], axis=-1)
    writer.segments(both, SUBTRACTION)
    if SELECTIVE in prefixes:
        for index, spent in enumerate(subtracted(prefixes[SELECTIVE]).T):
            writer.row(
                spent,
                phase=SEGMENT,
                mode=SELECTIVE,
                protocol=SUBTRACTION,
                node=writer.network.segment_name(index),
                step=index,
                note="compiled" if choices[SELECTIVE][index] else "interpreted",
            )


def _emit_profiler(writer: Writer, profile: Mapping[str, Any]) -> None:
    for state, name in enumerate((EAGER, writer.mode)):
        run = {"phase": RUN, "mode": name, "protocol": PROFILER}
        plain, under = profile["whole"][state].T
        writer.row(under, **run)
        writer.row(profile["segments"][:, :, state].sum(axis=1), quantity="sum", **run)
        writer.ratio(under, plain, baseline=END_TO_END, **run)
        for (of, device), spent in profile["self"].items():
            if of == state:
                writer.row(spent, quantity=f"self_{device}", **run)
    writer.segments(profile["segments"], PROFILER)
