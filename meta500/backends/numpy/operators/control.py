"""Control flow, and the Gradient operator: operators whose meaning is a subgraph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.control import Arrays, ScanAxes, batch_lengths, element_runs, loop, scalar, scan
from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.sequence import filled, zeros
from meta500.backends.rules import Call
from meta500.backends.values import add

ARRAYS = Arrays(
    stack=np.stack,
    select=lambda tensor, axis, index: np.take(tensor, index, axis),
    empty=np.zeros,
    count=lambda i: np.array(i, np.int64),
    true=lambda: np.array(True),
    truth=lambda condition: bool(scalar(np.asarray(condition).tolist())),
)


def _types(body: Any) -> list[Any]:
    return list(body.graph.outputs.values())


@rules.rule("If", host=("cond",))
def if_(cond: Any, *, then_branch: Any, else_branch: Any, saved: dict[str, Any]) -> tuple[Any, ...]:
    """The outputs of one of two subgraphs.

    Raises:
        UserError: the condition has more than one element.
    """
    saved["branch"] = "then_branch" if scalar(cond) else "else_branch"
    return (then_branch if saved["branch"] == "then_branch" else else_branch)()  # type: ignore[no-any-return]


@if_.vjp
def if_vjp(call: Call, *cotangents: Any) -> tuple[Any, ...]:
    call.attributes[call.saved["branch"]].pullback(0, cotangents)
    return (None,)


@rules.rule("Loop", host=("M", "cond"))
def loop_(
    M: Any = None, cond: Any = None, *v_initial: Any, body: Any, saved: dict[str, Any]
) -> tuple[Any, ...]:
    """The body again and again, at most ``M`` times and while its condition output is true.

    A loop that never runs has scan outputs of length 0, whose other dimensions are those that the body
    declares (0 where it names no number).

    Raises:
        UserError: the body's inputs or outputs do not fit to the carried values.
    """
    results, saved["runs"] = loop(body, M, cond, v_initial, ARRAYS, _types(body))
    return results


@loop_.vjp
def loop_vjp(call: Call, *cotangents: Any) -> tuple[Any, ...]:
    body, initial = call.attributes["body"], call.inputs[2:]
    state: Sequence[Any] = cotangents[: len(initial)]
    scans = cotangents[len(initial) :]
    for run in reversed(range(call.saved["runs"])):
        outputs = [None, *state, *(None if d is None else d[run] for d in scans)]
        state = body.pullback(run, outputs)[2:]
    return (None, None, *map(filled, state, initial))


def _scan_axes(
    body: Any,
    n_state: int,
    n_scans: int,
    input_axes: Any,
    input_directions: Any,
    output_axes: Any = None,
    output_directions: Any = None,
) -> tuple[ScanAxes, ScanAxes]:
    outputs = len(body.graph.outputs) - n_state
    return (
        ScanAxes.of("scan inputs", n_scans, input_axes, input_directions),
        ScanAxes.of("scan outputs", outputs, output_axes, output_directions),
    )


@rules.rule("Scan", 9)
def scan_(
    *inputs: Any,
    body: Any,
    num_scan_inputs: int,
    saved: dict[str, Any],
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> tuple[Any, ...]:
    """The body over the slices of the last ``num_scan_inputs`` inputs, with the others as its state.

    Raises:
        UserError: scanned axes of several lengths, or attributes of another length than there are scans.
    """
    n_state = len(inputs) - num_scan_inputs
    axes = _scan_axes(
        body, n_state, num_scan_inputs,
        scan_input_axes, scan_input_directions, scan_output_axes, scan_output_directions,
    )  # fmt: skip
    results, saved["runs"] = scan(
        body, inputs[:n_state], inputs[n_state:], *axes, arrays=ARRAYS, types=_types(body)
    )
    saved["axes"], saved["n_state"] = axes, n_state
    return results


@scan_.vjp
def scan_vjp(call: Call, *cotangents: Any) -> tuple[Any, ...]:
    return _scan_back(
        call.attributes["body"], call.inputs, cotangents, call.saved["n_state"], *call.saved["axes"],
        runs=range(call.saved["runs"]),
    )  # fmt: skip


def _scan_back(
    body: Any,
    inputs: Sequence[Any],
    cotangents: Sequence[Any],
    n_state: int,
    input_axes: ScanAxes,
    output_axes: ScanAxes,
    *,
    runs: range,
) -> tuple[Any, ...]:
    """Cotangents of the state and the scanned inputs; ``runs`` are the body's runs of this scan."""
    state: Sequence[Any] = [filled(d, x) for d, x in zip(cotangents[:n_state], inputs, strict=False)]
    scanned = [zeros(x) for x in inputs[n_state:]]
    steps = len(runs)
    for step in reversed(range(steps)):
        pieces = [
            None if d is None
            else np.take(d, output_axes.index(k, step, steps), output_axes.axis(k, d.ndim))
            for k, d in enumerate(cotangents[n_state:])
        ]  # fmt: skip
        found = body.pullback(runs[step], [*state, *pieces])
        state = found[:n_state]
        for k, gradient in enumerate(found[n_state:]):
            if gradient is not None:
                axis = input_axes.axis(k, scanned[k].ndim)
                np.moveaxis(scanned[k], axis, 0)[input_axes.index(k, step, steps)] = gradient
    return (*map(filled, state, inputs[:n_state]), *scanned)


@rules.rule("Scan", 8, until=8)
def scan_batched(
    sequence_lens: np.ndarray | None,
    *inputs: Any,
    body: Any,
    num_scan_inputs: int,
    saved: dict[str, Any],
    directions: tuple[int, ...] | None = None,
) -> tuple[Any, ...]:
    """Scan over batches: axis 0 of every input is the batch, axis 1 of the scanned ones the sequence.

    Scan outputs of sequences that are shorter than the longest are filled up with zeros.

    Raises:
        UserError: a sequence length outside of the scanned axis.
    """
    n_state = len(inputs) - num_scan_inputs
    axes = _scan_axes(body, n_state, num_scan_inputs, None, directions)
    longest = inputs[n_state].shape[1]
    lengths = batch_lengths(
        None if sequence_lens is None else sequence_lens.tolist(), inputs[0].shape[0], longest
    )
    saved["axes"], saved["n_state"], saved["lengths"] = axes, n_state, lengths
    rows = []
    for entry, length in enumerate(lengths):
        own = [x[entry] for x in inputs[:n_state]] + [x[entry][:length] for x in inputs[n_state:]]
        results, _ = scan(body, own[:n_state], own[n_state:], *axes, arrays=ARRAYS, types=_types(body))
        rows.append(
            [
                *results[:n_state],
                *(np.pad(r, [(0, longest - length), *[(0, 0)] * (r.ndim - 1)]) for r in results[n_state:]),
            ]
        )
    return tuple(np.stack(column) for column in zip(*rows, strict=True))


@scan_batched.vjp
def scan_batched_vjp(call: Call, *cotangents: Any) -> tuple[Any, ...]:
    body, n_state, inputs = call.attributes["body"], call.saved["n_state"], call.inputs[1:]
    found = [zeros(x) for x in inputs]
    first = 0
    for entry, length in enumerate(call.saved["lengths"]):
        own = [x[entry] for x in inputs[:n_state]] + [x[entry][:length] for x in inputs[n_state:]]
        given = [None if d is None else d[entry] for d in cotangents]
        given = given[:n_state] + [None if d is None else d[:length] for d in given[n_state:]]
        runs = range(first, first + length)
        for k, gradient in enumerate(_scan_back(body, own, given, n_state, *call.saved["axes"], runs=runs)):
            found[k][entry][tuple(slice(0, size) for size in gradient.shape)] = gradient
        first += length
    return (None, *found)


@rules.rule("SequenceMap", 17)
def sequence_map(*inputs: Any, body: Any, saved: dict[str, Any]) -> tuple[Any, ...]:
    """The body on every element of the sequences; other inputs are the same at each.

    Raises:
        UserError: sequences of several lengths.
    """
    runs = [body(*arguments) for arguments in element_runs(inputs)]
    return tuple([run[k] for run in runs] for k in range(len(body.graph.outputs)))


@sequence_map.vjp
def sequence_map_vjp(call: Call, *cotangents: Any) -> tuple[Any, ...]:
    body = call.attributes["body"]
    found: list[Any] = [[] if isinstance(value, list) else None for value in call.inputs]
    for run in range(len(call.inputs[0])):
        gradients = body.pullback(run, [None if d is None else d[run] for d in cotangents])
        for k, gradient in enumerate(gradients):
            if isinstance(call.inputs[k], list):
                found[k].append(gradient)
            else:
                found[k] = add(found[k], gradient)
    return tuple(map(filled, found, call.inputs))


@rules.rule("Gradient", 1, domain="ai.onnx.preview.training")
def gradient(
    *inputs: Any, body: Any, xs: tuple[str, ...], y: str, zs: tuple[str, ...] | None = None
) -> tuple[Any, ...]:
    """Partial derivatives of the sum of ``y`` by the ``xs``, at the values of the inputs (xs, then zs).

    The result itself has no gradient on numpy.

    Raises:
        UserError: ``y`` is not floating point, or an operation between has no gradient.
    """
    body.record = True
    (target,) = body(*inputs)
    found = body.pullback(0, [np.ones_like(target)])
    return tuple(filled(found[k], inputs[k]) for k in range(len(xs)))
