"""The declared host fallback: a numpy rule inside a torch network, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from meta500.backends.numpy.visitor import Step
from meta500.backends.torch.compilation import outside_of_graphs
from meta500.backends.torch.tensors import from_numpy, host_array, native_tensor, to_numpy
from meta500.backends.values import apply, leaves
from meta500.errors import UserError
from meta500.graph.types import is_floating


class HostOperation(torch.nn.Module):
    """Copies its inputs to the host, runs one numpy step, and copies the results back.

    Values without a torch tensor (strings, small integers) go in and out as numpy arrays. Gradients flow
    through tensors, not through sequences.
    """

    def __init__(self, step: Step, device: torch.device, seed: int = 0) -> None:
        super().__init__()
        self.step, self.device = step, device
        self.rng = np.random.default_rng(seed)

    @outside_of_graphs
    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """The step's outputs, one value each.

        Raises:
            UserError: gradients would flow through a sequence.
        """
        tracked = any(isinstance(t, torch.Tensor) and t.requires_grad for t in inputs)
        inside = (t for value in inputs if isinstance(value, list | dict) for t in leaves(value))
        if torch.is_grad_enabled():
            if any(isinstance(t, torch.Tensor) and t.requires_grad for t in inside):
                raise UserError(
                    f"{self.step.op.label}: runs on the host, which has no gradient through sequences"
                )
            if tracked:
                return _HostFunction.apply(self, *inputs)  # type: ignore[no-any-return, no-untyped-call]
        return self.results(self.call(inputs, record=False))

    def call(self, inputs: tuple[Any, ...], record: bool) -> Any:
        """Run the step on the host."""
        return self.step.forward(tuple(apply(host_array, value) for value in inputs), self.rng, record)

    def results(self, call: Any) -> tuple[Any, ...]:
        """The outputs of a call as values of the network; None where one was not asked for."""
        return tuple(apply(self._native, value) for value in call.outputs)

    def _native(self, array: Any) -> torch.Tensor | np.ndarray:
        return native_tensor(np.array(array), self.device)


class _HostFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, module: HostOperation, *inputs: Any) -> tuple[Any, ...]:
        call = module.call(inputs, record=True)
        outputs = module.results(call)
        ctx.call, ctx.module = call, module
        tensors = [t for t in outputs if isinstance(t, torch.Tensor)]
        ctx.mark_non_differentiable(*(t for t in tensors if not t.is_floating_point()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        call, device = ctx.call, ctx.module.device
        call.needs = tuple(ctx.needs_input_grad[1:])
        given = tuple(
            None if g is None or not isinstance(a, np.ndarray | np.generic) or not is_floating(a.dtype)
            else to_numpy(g)
            for g, a in zip(cotangents, call.outputs, strict=True)
        )  # fmt: skip
        gradients = ctx.module.step.backward(call, given)
        found: list[Any] = []
        for position, need in enumerate(ctx.needs_input_grad[1:]):
            gradient = gradients[position] if need and position < len(gradients) else None
            if need and gradient is None:
                op = ctx.module.step.op
                raise UserError(
                    f"{op.label}: has no gradient with respect to its input '{op.operands[position]}'"
                )
            found.append(None if gradient is None else from_numpy(np.asarray(gradient), device))
        return (None, *found)
