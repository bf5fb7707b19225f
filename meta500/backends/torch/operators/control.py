"""Control flow, and the Gradient operator: operators whose meaning is a subgraph.

Subgraphs run as modules of their own, as often as the data say; autograd records each run.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from meta500.backends.control import Arrays, ScanAxes, batch_lengths, element_runs, loop, scalar, scan
from meta500.backends.torch.operators import rules
from meta500.backends.torch.tensors import native_tensor, to_host_value
from meta500.errors import UserError


def _arrays(device: torch.device) -> Arrays:
    return Arrays(
        stack=_stacked,
        select=lambda tensor, axis, index: tensor.select(axis, index),
        empty=lambda shape, dtype: native_tensor(np.zeros(shape, dtype), device),
        count=lambda i: torch.tensor(i, dtype=torch.int64, device=device),
        true=lambda: torch.tensor(True, device=device),
        truth=lambda condition: bool(scalar(to_host_value(condition))),
    )


def _stacked(tensors: Any, axis: int) -> Any:
    return np.stack(tensors, axis) if isinstance(tensors[0], np.ndarray) else torch.stack(list(tensors), axis)


def _types(body: Any) -> list[Any]:
    return list(body.graph.outputs.values())


@rules.rule("If", since=1, host=("cond",))
def if_(cond: Any, *, then_branch: Any, else_branch: Any) -> tuple[Any, ...]:
    """ONNX If: the outputs of one of two subgraphs.

    Raises:
        UserError: the condition has more than one element.
    """
    return (then_branch if scalar(cond) else else_branch)()  # type: ignore[no-any-return]


@rules.rule("Loop", since=1, host=("M", "cond"))
def loop_(M: Any = None, cond: Any = None, *v_initial: Any, body: Any) -> tuple[Any, ...]:
    """ONNX Loop: the body at most ``M`` times and while its condition output is true.

    A loop that never runs has scan outputs of length 0, whose other dimensions are those that the body
    declares (0 where it names no number).

    Raises:
        UserError: the body's inputs or outputs do not fit to the carried values.
    """
    return loop(body, M, cond, v_initial, _arrays(body.device), _types(body))[0]


@rules.rule("Scan", since=9)
def scan_(
    *inputs: Any,
    body: Any,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] | None = None,
    scan_input_directions: tuple[int, ...] | None = None,
    scan_output_axes: tuple[int, ...] | None = None,
    scan_output_directions: tuple[int, ...] | None = None,
) -> tuple[Any, ...]:
    """ONNX Scan (from version 9): the body over the slices of the last ``num_scan_inputs`` inputs.

    Raises:
        UserError: scanned axes of several lengths, or attributes of another length than there are scans.
    """
    n_state = len(inputs) - num_scan_inputs
    n_outputs = len(body.graph.outputs) - n_state
    return scan(
        body,
        inputs[:n_state],
        inputs[n_state:],
        ScanAxes.of("scan inputs", num_scan_inputs, scan_input_axes, scan_input_directions),
        ScanAxes.of("scan outputs", n_outputs, scan_output_axes, scan_output_directions),
        _arrays(body.device),
        _types(body),
    )[0]


@rules.rule("Scan", since=8, until=8, host=("sequence_lens",))
def scan_batched(
    sequence_lens: Any,
    *inputs: Tensor,
    body: Any,
    num_scan_inputs: int,
    directions: tuple[int, ...] | None = None,
) -> tuple[Tensor, ...]:
    """ONNX Scan-8: axis 0 of every input is the batch, axis 1 of the scanned ones the sequence.

    Scan outputs of sequences that are shorter than the longest are filled up with zeros.

    Raises:
        UserError: a sequence length outside of the scanned axis.
    """
    n_state = len(inputs) - num_scan_inputs
    axes = ScanAxes.of("scan inputs", num_scan_inputs, None, directions)
    out_axes = ScanAxes.of("scan outputs", len(body.graph.outputs) - n_state, None, None)
    batch, longest = inputs[0].shape[0], inputs[n_state].shape[1]
    lengths = batch_lengths(None if sequence_lens is None else list(sequence_lens), batch, longest)
    rows = []
    for entry, length in enumerate(lengths):
        state = [x[entry] for x in inputs[:n_state]]
        scanned = [x[entry][:length] for x in inputs[n_state:]]
        results, _ = scan(body, state, scanned, axes, out_axes, _arrays(body.device), _types(body))
        rows.append([*results[:n_state], *(_filled_up(r, longest) for r in results[n_state:])])
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _filled_up(x: Tensor, length: int) -> Tensor:
    return torch.cat([x, x.new_zeros((length - x.shape[0], *x.shape[1:]))]) if x.shape[0] < length else x


@rules.rule("SequenceMap", since=17)
def sequence_map(*inputs: Any, body: Any) -> tuple[Any, ...]:
    """ONNX SequenceMap: the body on every element of the sequences; other inputs are the same at each.

    Raises:
        UserError: sequences of several lengths.
    """
    runs = [body(*arguments) for arguments in element_runs(inputs)]
    return tuple([run[k] for run in runs] for k in range(len(body.graph.outputs)))


@rules.rule("Gradient", since=1, domain="ai.onnx.preview.training")
def gradient(
    *inputs: Tensor, body: Any, xs: tuple[str, ...], y: str, zs: tuple[str, ...] | None = None
) -> tuple[Tensor, ...]:
    """ONNX Gradient: partial derivatives of the sum of ``y`` by the ``xs``, at the values of the inputs.

    Raises:
        UserError: ``y`` is not floating point.
    """
    outer = torch.is_grad_enabled()
    with torch.enable_grad():
        variables = [
            x if outer and x.requires_grad else x.detach().requires_grad_() for x in inputs[: len(xs)]
        ]
        (target,) = body(*variables, *inputs[len(xs) :])
        if not target.is_floating_point():
            raise UserError(f"'{y}' is {target.dtype}; only floating point has a gradient")
        if not target.requires_grad:
            return tuple(torch.zeros_like(x) for x in variables)
        found = torch.autograd.grad(
            [target], variables, [torch.ones_like(target)], create_graph=outer, allow_unused=True
        )
    return tuple(torch.zeros_like(x) if g is None else g for x, g in zip(variables, found, strict=True))
