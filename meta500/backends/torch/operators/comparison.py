"""Comparisons, boolean logic and Where. Results of comparisons are bool; operands broadcast."""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.broadcasting import aligned
from meta500.backends.torch.operators.integers import ordered


@rules.rule("Equal", since=1)
def equal_1(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """ONNX Equal-1, with that version's broadcasting."""
    return torch.eq(a, aligned("Equal", a, b, broadcast, axis))


@rules.rule("Equal", since=7)
def equal(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Equal: ``a == b``."""
    return torch.eq(a, b)


@rules.rule("Greater", since=1)
def greater_1(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """ONNX Greater-1, with that version's broadcasting."""
    return torch.gt(a, aligned("Greater", a, b, broadcast, axis))


@rules.rule("Greater", since=7)
def greater(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Greater: ``a > b``."""
    return torch.gt(ordered(a), ordered(b))


@rules.rule("GreaterOrEqual", since=12)
def greater_or_equal(a: Tensor, b: Tensor) -> Tensor:
    """ONNX GreaterOrEqual: ``a >= b``."""
    return torch.ge(ordered(a), ordered(b))


@rules.rule("Less", since=1)
def less_1(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """ONNX Less-1, with that version's broadcasting."""
    return torch.lt(a, aligned("Less", a, b, broadcast, axis))


@rules.rule("Less", since=7)
def less(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Less: ``a < b``."""
    return torch.lt(ordered(a), ordered(b))


@rules.rule("LessOrEqual", since=12)
def less_or_equal(a: Tensor, b: Tensor) -> Tensor:
    """ONNX LessOrEqual: ``a <= b``."""
    return torch.le(ordered(a), ordered(b))


@rules.rule("And", since=1)
def and_1(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """ONNX And-1, with that version's broadcasting."""
    return torch.logical_and(a, aligned("And", a, b, broadcast, axis))


@rules.rule("And", since=7)
def and_7(a: Tensor, b: Tensor) -> Tensor:
    """ONNX And: logical and of bools."""
    return torch.logical_and(a, b)


@rules.rule("Or", since=1)
def or_1(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """ONNX Or-1, with that version's broadcasting."""
    return torch.logical_or(a, aligned("Or", a, b, broadcast, axis))


@rules.rule("Or", since=7)
def or_7(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Or: logical or of bools."""
    return torch.logical_or(a, b)


@rules.rule("Xor", since=1)
def xor_1(a: Tensor, b: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor:
    """ONNX Xor-1, with that version's broadcasting."""
    return torch.logical_xor(a, aligned("Xor", a, b, broadcast, axis))


@rules.rule("Xor", since=7)
def xor_7(a: Tensor, b: Tensor) -> Tensor:
    """ONNX Xor: exclusive or of bools."""
    return torch.logical_xor(a, b)


@rules.rule("Not", since=1)
def not_1(x: Tensor) -> Tensor:
    """ONNX Not: negation of bools."""
    return torch.logical_not(x)


@rules.rule("Where", since=9)
def where(condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """ONNX Where: ``x`` where the bool ``condition`` holds, else ``y``."""
    return torch.where(condition, x, y)
