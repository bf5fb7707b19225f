"""Level 1 of the main job: whole networks, inference and training step, and what our Network costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np

from meta500.backends.network import Network, network
from meta500.benchmarks.protocol import (
    SETTLE_SECONDS,
    Emit,
    Protocol,
    label,
    made,
    ratio_row,
    shape_text,
    version,
    who,
    who_from,
)
from meta500.benchmarks.subjects import Subject, inference_action, training_action
from meta500.errors import UserError
from meta500.metrics.clocks import Timing, interleave
from meta500.metrics.norms import ErrorNorms, compare, tolerance
from meta500.metrics.rows import Row

INFERENCE, TRAINING = "inference", "training_step"
PLAIN = {"backend": "plain PyTorch", "mode": "eager"}


def measure_networks(
    subjects: Sequence[Subject],
    backends: Sequence[dict[str, Any]],
    protocol: Protocol,
    emit: Emit,
    progress: Callable[[str], None] = lambda _: None,
    memory: bool = True,
) -> None:
    """Measure inference and training step of every subject on every backend, interleaved.

    Args:
        subjects: what to run.
        backends: options for :func:`meta500.network`, ``backend`` among them; the first is the baseline of
            the ratios.
        protocol: how long.
        emit: receives the rows: time, first call, throughput, ratio to the baseline, error against the numpy
            backend in float64, peak memory of a process of its own.
        progress: called with a description before each piece of work.
        memory: measure peak memory (one more process per subject and backend).
    """
    for subject in subjects:
        networks = made(subject.model, backends, _refusal(columns_of(subject, INFERENCE), emit))
        running = {net.backend for net in networks}
        progress(f"{subject.title}: float64 reference")
        reference = float64_reference(subject)
        try:
            for phase in (INFERENCE, TRAINING):
                progress(f"{subject.title}: {phase.replace('_', ' ')}")
                _measure_phase(subject, phase, networks, reference, protocol, emit)
        finally:
            for net in networks:
                net.close()
        if memory:
            for options in (o for o in backends if o["backend"] in running):
                progress(f"{subject.title}: peak memory of {label(who_from(options))}")
                _measure_memory(subject, options, emit)


def _refusal(what: Mapping[str, Any], emit: Emit) -> Callable[[Mapping[str, Any], str], None]:
    """Emits the row of a backend that refuses the network."""

    def refused(options: Mapping[str, Any], reason: str) -> None:
        columns = {**what, **who_from(options)}
        emit(Row(**columns, quantity="time", unit="s", value=None, verdict="unsupported", note=reason))

    return refused


def _measure_phase(
    subject: Subject,
    phase: str,
    networks: Sequence[Network],
    reference: dict[str, Any],
    protocol: Protocol,
    emit: Emit,
) -> None:
    actions: dict[str, Callable[[], object]] = {}
    waits: dict[str, Callable[[], object]] = {}
    for net in networks:
        name = label(who(net))
        waits[name] = net.synchronize
        if phase == INFERENCE:
            actions[name] = inference_action(net, subject.inputs)
        else:
            actions[name] = training_action(net, subject.inputs)
    timings = interleave(actions, synchronize=waits, settle=SETTLE_SECONDS, **protocol.limits())
    base = label(who(networks[0]))
    for net in networks:
        name = label(who(net))
        what = {**columns_of(subject, phase), **who(net)}
        if timings[name].failure is None:
            # After the timing, so that the first call that was timed is the first call.
            what |= judged(subject, phase, net, reference)
        emit_times(timings[name], what, subject.batch, emit)
        if name == base:
            continue
        row = ratio_row(timings[name], timings[base], base, protocol="interleaved", **what)
        if row is not None:
            emit(row)


def emit_times(
    timing: Timing, what: dict[str, Any], batch: int, emit: Emit, protocol: str = "interleaved"
) -> None:
    """Rows of time, first call and throughput.

    The first call of what is compiled depends on what the compiler finds in its cache on disk; its row says
    so.
    """
    for row in timing.rows(protocol=protocol, **what):
        if row.quantity == "first_call" and ("compile" in row.mode or row.backend == "generated"):
            row = replace(row, note="with the compiler's cache on disk as it was found")
        emit(row)
    if timing.samples and timing.failure is None:
        interval = timing.interval()
        emit(
            Row(
                quantity="throughput",
                unit="samples/s",
                value=batch / interval.value,
                low=batch / interval.high,
                high=batch / interval.low,
                confidence=interval.confidence,
                samples=tuple(batch / s for s in timing.samples),
                protocol=protocol,
                warmup=len(timing.warmup),
                repeats=len(timing.samples),
                **what,
            )
        )


def measure_overhead(
    subjects: Sequence[Subject],
    protocol: Protocol,
    emit: Emit,
    threads: int,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> None:
    """The training step of our torch Network against the same step in plain PyTorch, interleaved.

    Three steps run from the same weights on the same batch, each with Adam: plain PyTorch, our Network with
    torch's own Adam, and our Network with the reference Adam. The rows hold the times and two ratios: our
    Network over plain PyTorch, both with torch's Adam; and reference over native Adam, both on our Network.
    """
    import torch

    from meta500.benchmarks.plain_torch import plain_module, plain_training_action
    from meta500.optimizers import Adam

    torch.set_num_threads(threads)
    for subject in subjects:
        progress(f"{subject.title}: overhead over plain PyTorch")
        options = {"backend": "torch", "device": device, "threads": threads}
        module = plain_module(subject.name, subject.model, **subject.options)
        plain = plain_training_action(module, subject.inputs["image"], subject.inputs["label"], device)
        native_net, reference_net = subject.on(options)[0], subject.on(options)[0]
        reference = Adam(reference_net, learning_rate=1e-3)
        native = native_net.native_optimizer("adam", learning_rate=1e-3)

        actions = {
            "plain": plain,
            "native": _loss_action(native, subject.inputs),
            "reference": _loss_action(reference, subject.inputs),
        }
        with _same_numerics(device):
            timings = interleave(actions, synchronize=native_net.synchronize, **protocol.limits())
        base = {**columns_of(subject, TRAINING), **who(native_net), "protocol": "interleaved, overhead"}
        columns = {
            "plain": {**base, **PLAIN, "version": version("torch"), "optimizer": "adam (torch.optim)"},
            "native": {**base, "optimizer": "adam (torch.optim)"},
            "reference": {**base, "optimizer": "adam (reference)"},
        }
        for name, timing in timings.items():
            for row in timing.rows(**columns[name]):
                emit(row)
        for name, against in (("native", "plain"), ("reference", "native")):
            baseline = " ".join(str(columns[against][c]) for c in ("backend", "mode", "optimizer"))
            ratio = ratio_row(timings[name], timings[against], baseline, **columns[name])
            if ratio is not None:
                emit(ratio)
        for net in (native_net, reference_net):
            net.close()


def _same_numerics(device: str) -> AbstractContextManager[None]:
    """Plain PyTorch with the float32 arithmetic that our Network uses (no TF32)."""
    if device == "cpu":
        return nullcontext()
    from meta500.backends.torch.ambient import CudaNumerics

    return CudaNumerics(tf32=False)


def _loss_action(optimizer: Any, inputs: dict[str, np.ndarray]) -> Callable[[], object]:
    """One training step from numpy input to the loss as a number."""
    return lambda: float(optimizer.train(inputs, outputs=["loss"])["loss"])


def _measure_memory(subject: Subject, options: dict[str, Any], emit: Emit) -> None:
    from meta500.benchmarks.memory import peak_memory

    what = {**columns_of(subject, TRAINING), **who_from(options), "quantity": "peak_memory", "unit": "B"}
    try:
        peak = peak_memory(subject.name, subject.options, options, TRAINING)
    except UserError as error:
        emit(Row(**what, value=None, verdict="failed", note=str(error)))
        return
    memory = "memory of the whole process" if options.get("device", "cpu") == "cpu" else "host memory only"
    note = f"{memory}; {peak.before} B before the network was made"
    emit(Row(**what, value=float(peak.peak), protocol="process of its own", note=note))


def columns_of(subject: Subject, phase: str) -> dict[str, Any]:
    """The columns of a row that say what was measured."""
    return {
        "level": 1,
        "model": subject.title,
        "phase": phase,
        "shape": shape_text([subject.inputs["image"].shape]),
        "dtype": subject.inputs["image"].dtype.name,
        "batch": subject.batch,
    }


def float64_reference(subject: Subject) -> dict[str, Any]:
    """Logits of inference, loss and gradients of the numpy backend in float64."""
    with network(subject.model, backend="numpy", precision="float64") as net:
        # Before a training step, which changes the statistics that inference normalises with.
        found: dict[str, Any] = dict(net.inference({"image": subject.inputs["image"]}, outputs=["logits"]))
        found |= net.inference_and_backprop(subject.inputs, outputs=["loss"])
        found["gradients"] = net.fetch_tensors([g for _, g in net.gradient()])
    return found


def judged(
    subject: Subject, phase: str, net: Network, reference: dict[str, Any], with_gradients: bool = True
) -> dict[str, Any]:
    """Error columns against float64 at the initial weights: logits, or the worst of loss and gradients."""
    for name in net.get_params():
        net.feed_tensor(name, subject.model.graph.initializers[name])
    if phase == INFERENCE:
        logits = net.inference({"image": subject.inputs["image"]}, outputs=["logits"])["logits"]
        norms = [compare(logits, reference["logits"])]
    else:
        loss = net.inference_and_backprop(subject.inputs, outputs=["loss"])["loss"]
        norms = [compare(loss, reference["loss"])]
        if with_gradients:
            gradients = net.fetch_tensors([g for _, g in net.gradient()])
            norms += [compare(g, e) for g, e in zip(gradients, reference["gradients"], strict=True)]
    return worst_of(norms, subject)


def worst_of(norms: Sequence[ErrorNorms], subject: Subject) -> dict[str, Any]:
    """Error columns of the worst of several results of a subject."""
    limit = tolerance(subject.inputs["image"].dtype, _reduction(subject))
    worst = max(norms, key=lambda n: n.max_relative)
    return {
        "error": worst.max_relative,
        "error_norm": "max_relative",
        "tolerance": limit,
        "verdict": worst.verdict(limit),
    }


def _reduction(subject: Subject) -> int:
    """Terms of the longest chain of sums behind one gradient: all pixels, and all weights of a path."""
    pixels = int(np.prod(subject.inputs["image"].shape))
    weights = [subject.model.graph.initializers[p] for p in subject.model.parameters]
    return pixels + sum(w.size // w.shape[0] for w in weights if w.ndim > 1)
