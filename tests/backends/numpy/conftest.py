"""Calling a numpy rule and its vector-Jacobian product directly, without graph and network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from meta500.backends.numpy.operators import rules
from meta500.backends.rules import Call, Rule


@dataclass
class Ran:
    """A forward call with what its backward needs."""

    rule: Rule
    call: Call

    @property
    def outputs(self) -> tuple[np.ndarray, ...]:
        return self.call.outputs

    def gradients(self, *cotangents: np.ndarray | None) -> tuple[np.ndarray | None, ...]:
        """Gradients of the inputs, checked for shape and dtype."""
        assert self.rule.backward is not None, f"{self.rule.__name__} has no vjp"
        found = self.rule.backward(self.call, *cotangents)
        assert len(found) == len(self.call.inputs)
        for gradient, array in zip(found, self.call.inputs, strict=True):
            if gradient is not None:
                assert isinstance(gradient, np.ndarray)
                assert gradient.shape == array.shape and gradient.dtype == array.dtype
        return tuple(found)


def run(
    op_type: str,
    since: int,
    inputs: Sequence[np.ndarray | None],
    attributes: dict[str, Any] | None = None,
    *,
    n_outputs: int = 1,
    domain: str = "",
    seed: int = 0,
    needs: Sequence[bool] | None = None,
) -> Ran:
    """Run the rule that covers version ``since`` of an operator, as the network's visitor does."""
    entry = rules.find(domain, op_type, since)
    assert entry is not None, f"no rule for {op_type} {since}"
    before = copy.deepcopy(list(inputs))
    args: list[Any] = list(inputs)
    for position in entry.host_positions:
        if position < len(args) and args[position] is not None:
            args[position] = args[position].tolist()
    keywords = dict(attributes or {})
    call = Call(tuple(inputs), (), keywords, tuple(needs or (a is not None for a in inputs)))
    given = {
        "n_outputs": n_outputs,
        "since_version": since,
        "rng": np.random.default_rng(seed),
        "saved": call.saved,
    }
    keywords.update({name: given[name] for name in entry.rule.injected})
    results = entry.rule(*args, **keywords)
    call.outputs = results if isinstance(results, tuple) else (results,)
    assert len(call.outputs) >= n_outputs
    assert all(isinstance(array, np.ndarray) for array in call.outputs)
    for array, original in zip(inputs, before, strict=True):
        if array is not None and array.dtype != object:
            assert array.tobytes() == original.tobytes(), f"{op_type} changed an input"
    return Ran(entry.rule, call)


@pytest.fixture(scope="session")
def rule() -> Callable[..., Ran]:
    """``rule(op_type, since, inputs, attributes, n_outputs=1)`` runs a rule; ``.outputs``, ``.gradients(...)``."""
    return run
