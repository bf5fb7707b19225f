"""The convolutions of ResNet-50 inside of the network, one by one, by PyTorch's profiler (figure 5.4).

Both networks, interpreted and compiled, call PyTorch's convolution (``aten::convolution``), which the
profiler records with its shapes and attributes; the compiled one calls it from generated code. What the
compiler does before and after it (changing layouts, fused elementwise operations) is outside of these
events. Where the compiler makes a kernel of its own instead of calling ``aten::convolution``, there is
nothing to match, and the rows say so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import Emit, ratio_row
from meta500.benchmarks.studies.compiler.convolutions import (
    RESNET,
    Convolution,
    convolutions_of,
    one_mode,
    resnet,
)
from meta500.benchmarks.studies.compiler.modes import (
    BASELINE,
    Compile,
    compiled,
    conditions,
    failed,
    host,
    synchronizing,
    who,
    worst,
)
from meta500.benchmarks.studies.compiler.networks import network_work
from meta500.benchmarks.studies.compiler.settings import EAGER, Settings
from meta500.metrics.clocks import Timing
from meta500.metrics.norms import tolerance
from meta500.metrics.rows import Row

INSIDE = "convolution in the network"
PROTOCOL = "profiler, interleaved"
EVENT = "aten::convolution"

# Seconds of each occurrence of each kind in one call.
Recorded = dict[Convolution, list[float]]


def measure_inside(settings: Settings, emit: Emit, *, compile: Compile = compiled) -> None:
    """Rows of every kind of convolution inside of ResNet-50, interpreted against compiled.

    Interpreted and compiled network are called in turns, each call in a profiler of its own. A sample is the
    mean over the occurrences of a kind in one call.
    """
    model, output = resnet(settings)
    counts: dict[Convolution, int] = {}
    for kind, count in convolutions_of(model).items():
        counts[_key(kind)] = counts.get(_key(kind), 0) + count
    mode, device = one_mode(settings), settings.device
    with conditions(settings, device):
        columns = {
            name: {"level": 1, "model": RESNET, "phase": INSIDE, **who(settings, name, device)}
            for name in (EAGER, mode)
        }
        work = network_work(model, output, settings, device)
        calls = {EAGER: work.call(work.function)}
        try:
            calls[mode] = work.call(compile(work.function, mode))
            results = {name: [host(call())] for name, call in calls.items()}
        except Exception as failure:  # a compiler may fail in any way
            emit(failed(failure, **columns[mode]))
            return
        recorded = _recorded_in_turns(calls, settings, device)
        exact = work.exact
        assert exact is not None
        verdicts = {}
        for name, call in calls.items():
            results[name].append(host(call()))
            limit = tolerance(results[name][0].dtype, work.terms)
            verdicts[name] = worst(results[name], exact, limit).verdict(limit)
    for kind, count in counts.items():
        timings = {}
        for name, calls_of_kind in recorded.items():
            what = {**columns[name], **kind.columns(), "protocol": PROTOCOL}
            found = [call.get(kind, []) for call in calls_of_kind]
            missing = next((len(f) for f in found if len(f) != count), None)
            if missing is not None:
                emit(_unmatched(missing, count, calls_of_kind[0], counts, what))
                continue
            samples = tuple(float(np.mean(seconds)) for seconds in found)
            timings[name] = Timing(None, (), samples)
            note = f"mean of {count} in the network"
            for row in timings[name].rows(**what, verdict=verdicts[name], note=note):
                emit(row)
        if len(timings) == 2 and set(verdicts.values()) == {"ok"}:
            what = {**columns[mode], **kind.columns(), "protocol": PROTOCOL}
            ratio = ratio_row(timings[mode], timings[EAGER], BASELINE, **what)
            if ratio is not None:
                emit(ratio)


def recorded_convolutions(call: Callable[[], Any], device: str) -> Recorded:
    """Seconds of each convolution in one call, by its kind, as the profiler sees them.

    On the CPU the time of the operator with all that it calls; on CUDA that of its kernels on the device.
    """
    from torch.profiler import ProfilerActivity, profile

    wait = synchronizing(device)
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device != "cpu" else [])
    with profile(activities=activities, record_shapes=True) as profiler:
        call()
        if wait is not None:
            wait()
    found: Recorded = {}
    for event in profiler.events():
        if event.name == EVENT:
            microseconds = event.cpu_time_total if device == "cpu" else event.device_time_total
            kind = _of_event(event)
            if kind is not None:
                found.setdefault(kind, []).append(microseconds * 1e-6)
    return found


def _recorded_in_turns(
    calls: Mapping[str, Callable[[], Any]], settings: Settings, device: str
) -> dict[str, list[Recorded]]:
    protocol = settings.protocol
    recorded: dict[str, list[Recorded]] = {name: [] for name in calls}
    rng = np.random.default_rng(settings.seed)
    names = list(calls)
    for turn in range(-protocol.warmup, protocol.min_repeats):
        for index in rng.permutation(len(names)):
            name = names[index]
            found = recorded_convolutions(calls[name], device)
            if turn >= 0:
                recorded[name].append(found)
    return recorded


def _of_event(event: Any) -> Convolution | None:
    """The kind of an event; None for a transposed or not two-dimensional convolution, or without shapes."""
    shapes, values = event.input_shapes, event.concrete_inputs
    if len(shapes) < 2 or len(shapes[0]) != 4 or len(values) < 9 or values[6]:
        return None
    strides, padding, dilations, groups = values[3], values[4], values[5], values[8]
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in (strides, padding, dilations)):
        return None
    return Convolution(
        tuple(shapes[0]), tuple(shapes[1]), tuple(strides), tuple(padding), tuple(dilations), groups
    )


def _key(kind: Convolution) -> Convolution:
    """The kind as events know it: a compiler may add the bias elsewhere."""
    return replace(kind, bias=True)


def _unmatched(
    found: int, count: int, recorded: Recorded, wanted: Mapping[Convolution, int], what: Mapping[str, Any]
) -> Row:
    others = sum(len(seconds) for kind, seconds in recorded.items() if kind not in wanted)
    note = f"the profiler shows {found} of {count} convolutions of this kind, and {others} of kinds that the "
    note += "network does not have"
    return Row(quantity="time", unit="s", value=None, verdict="unsupported", note=note, **what)
