"""From a PyTorch module to an ONNX message, with PyTorch's own exporter."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meta500.errors import UserError
from meta500.models.torch_modes import follow_training
from meta500.models.torch_operations import (
    MODULE_PREFIX,
    calls,
    operations,
    rewrite_batch_statistics,
)

FOLLOW_MODE, INFERENCE = "follow", "inference"


@dataclass
class Exported:
    """An exported module.

    ``proto`` is the ONNX message, ``following`` the names of the running means of the batch
    normalisations that train in training steps. ``numbers`` are those that the module computes
    with, by their value in the single precision to which the exporter rounds them.
    """

    proto: Any
    following: set[str]
    numbers: dict[float, float]


def export(
    module: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    opset: int,
    dynamic_batch: str | None,
    mode: str,
    dropout: str,
) -> Exported:
    """Export ``module`` with PyTorch's exporter; it is left in the mode in which it came.

    In the message the module's parameters and buffers have the prefix ``module.``.

    Raises:
        UserError: the module can't be exported, or does something in training that the graph can't
            follow.
    """
    import torch

    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *values: Any) -> Any:
            return self.module(*values[: len(args)], **dict(zip(kwargs, values[len(args) :], strict=True)))

    title, outer = type(module).__name__, Outer()
    values = (*args, *kwargs.values())
    flags = [(part, part.training) for part in module.modules()]
    fast_path = torch.backends.mha.get_fastpath_enabled()
    # The fused kernels of evaluation have no ONNX form, and training has none to compare with.
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        training = None
        if mode == FOLLOW_MODE:
            if not module.training:
                module.train()
            training = _trace(outer, values, dynamic_batch, f"'{title}' in training mode")
        module.eval()
        program = _trace(outer, values, dynamic_batch, f"'{title}'")
        following: set[str] = set()
        if training is not None:
            following = follow_training(training, program, title, dropout)
            program = training
        rewrite_batch_statistics(program)
        _check_outputs(program, title)
        return Exported(_to_onnx(program, title, opset), following, _numbers(program))
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for part, flag in flags:
            part.training = flag


def _trace(module: Any, values: tuple[Any, ...], dynamic_batch: str | None, title: str) -> Any:
    import torch

    dynamic_shapes = None
    if dynamic_batch is not None:
        batch = torch.export.Dim(dynamic_batch)
        dynamic_shapes = (tuple({0: batch} if value.dim() else {} for value in values),)
    try:
        with quiet():
            return torch.export.export(module, values, dynamic_shapes=dynamic_shapes, strict=False)
    except Exception as error:  # the exporter raises many kinds
        raise UserError(f"{title} cannot be exported: {reason(error)}") from error


def _to_onnx(program: Any, title: str, opset: int) -> Any:
    import torch

    try:
        with quiet():
            exported = torch.onnx.export(
                program,
                dynamo=True,
                verbose=False,
                # The optimizer fuses batch normalisation into convolutions and drops dropout.
                optimize=False,
                opset_version=opset,
                custom_translation_table=operations().translations,
            )
            proto = exported.model_proto
    except Exception as error:  # the exporter raises many kinds
        raise UserError(f"'{title}' cannot be written in ONNX: {reason(error)}") from error
    found = next((i.version for i in proto.opset_import if i.domain in ("", "ai.onnx")), None)
    if found != opset:
        raise UserError(f"'{title}': PyTorch's exporter wrote opset {found}, not {opset}; give opset={found}")
    return proto


def _numbers(program: Any) -> dict[float, float]:
    """The floating-point numbers among the arguments of all calls; not where two round to the same."""
    import numpy as np
    from torch.utils import _pytree

    found: dict[float, set[float]] = {}
    for node in calls(program):
        for value in _pytree.tree_leaves((node.args, dict(node.kwargs))):
            if type(value) is float and math.isfinite(value):
                with np.errstate(over="ignore", under="ignore"):
                    found.setdefault(float(np.float32(value)), set()).add(value)
    return {single: values.pop() for single, values in found.items() if len(values) == 1}


def _check_outputs(program: Any, title: str) -> None:
    """Refuse what a graph has no place for.

    That is a result that is no tensor, one result under two names, and buffers that change in
    inference.
    """
    for spec in program.graph_signature.output_specs:
        if spec.kind.name == "USER_OUTPUT" and type(spec.arg).__name__ != "TensorArgument":
            value = getattr(spec.arg, "value", spec.arg)
            raise UserError(f"'{title}' returns {value!r}, which is no tensor; return tensors only")
    try:
        with quiet():
            functional = program.run_decompositions({})
    except Exception as error:  # the exporter raises many kinds
        raise UserError(f"'{title}' cannot be exported: {reason(error)}") from error
    outputs = [str(name) for name in functional.graph_signature.user_outputs]
    if len(set(outputs)) < len(outputs):
        raise UserError(f"'{title}' returns the same tensor twice; return each once")
    mutated = set(functional.graph_signature.buffers_to_mutate.values())
    changed = sorted(name.removeprefix(MODULE_PREFIX) for name in mutated)
    if changed:
        raise UserError(
            f"'{title}' changes {', '.join(changed)} in inference, which a graph cannot do; "
            "take the change out of forward()"
        )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep the exporter's prints, warnings and log lines to itself."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def reason(error: BaseException) -> str:
    """The innermost cause of an exception, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= 300 else f"{line[:297]}..."
