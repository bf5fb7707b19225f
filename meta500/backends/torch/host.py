"""The declared host fallback: a numpy rule inside a torch network, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from meta500.backends.numpy.visitor import Step
from meta500.backends.torch.tensors import from_numpy, to_numpy
from meta500.graph.types import is_floating


class HostOperation(torch.nn.Module):
    """Copies its inputs to the host, runs one numpy step, and copies the results back."""

    def __init__(self, step: Step) -> None:
        super().__init__()
        self.step = step
        self.rng = np.random.default_rng(0)

    @torch.compiler.disable
    def forward(self, *inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """The step's outputs, one tensor each."""
        return _HostFunction.apply(self, *inputs)  # type: ignore[no-any-return, no-untyped-call]


class _HostFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: HostOperation, *inputs: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        arrays = tuple(None if t is None else to_numpy(t) for t in inputs)
        call = module.step.forward(arrays, module.rng)
        device = next((t.device for t in inputs if t is not None), torch.device("cpu"))
        # An output that was not asked for still needs a tensor in its place.
        outputs = tuple(from_numpy(np.zeros(0) if a is None else np.array(a), device) for a in call.outputs)
        ctx.call, ctx.step = call, module.step
        ctx.mark_non_differentiable(*(t for t in outputs if not t.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        call = ctx.call
        call.needs = tuple(ctx.needs_input_grad[1:])
        given = tuple(
            None if g is None or a is None or not is_floating(a.dtype) else to_numpy(g)
            for g, a in zip(cotangents, call.outputs, strict=True)
        )
        device = next((g.device for g in cotangents if g is not None), torch.device("cpu"))
        gradients = ctx.step.backward(call, given)
        wanted = zip(gradients, call.needs, strict=False)
        found = [from_numpy(np.asarray(g), device) if need and g is not None else None for g, need in wanted]
        return (None, *found, *([None] * (len(call.needs) - len(found))))
