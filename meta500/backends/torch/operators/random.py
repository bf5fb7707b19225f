"""Random tensors: RandomNormal, RandomUniform, their Like forms, Multinomial and Bernoulli.

They draw from the network's generator, or from the node's own where it has a ``seed``. Compiled graphs take
no generator: there PyTorch's default one draws, and a seed is refused. The numbers are not those of numpy.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from meta500.backends.numpy.operators.seeding import whole_seed
from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.creation import TORCH_TYPE
from meta500.errors import UserError

Ints = tuple[int, ...]


def generator(
    operator: str, seed: float | None, rng: torch.Generator | None, device: torch.device | None
) -> torch.Generator | None:
    """What draws: ``rng``, a new generator of ``seed``, or None for PyTorch's default one.

    Raises:
        UserError: a seed in a compiled graph, which cannot make a generator.
    """
    if torch.compiler.is_compiling():
        if seed is not None:
            raise UserError(
                f"{operator}: the seed attribute needs mode='eager'; drop it to use the network's seed"
            )
        return None
    if seed is None:
        return rng
    own = torch.Generator(device=device or "cpu")
    own.manual_seed(whole_seed(seed))
    return own


def _float_type(operator: str, number: int) -> torch.dtype:
    dtype = TORCH_TYPE.get(number)
    if dtype is None or not dtype.is_floating_point:
        raise UserError(f"{operator}: dtype {number} is no float type")
    return dtype


def _like_type(operator: str, x: Tensor, number: int | None) -> torch.dtype:
    if number is not None:
        return _float_type(operator, number)
    if not x.is_floating_point():
        raise UserError(f"{operator}: the input is {x.dtype}; give dtype, one of the float types")
    return x.dtype


def _wide(dtype: torch.dtype) -> torch.dtype:
    """16-bit floats are drawn in float32 and rounded."""
    return dtype if dtype is torch.float64 else torch.float32


def _device(rng: torch.Generator | None) -> torch.device | None:
    """Where a node without inputs puts its result: where the generator is."""
    return None if rng is None or torch.compiler.is_compiling() else rng.device


def _normal(
    shape: Any, dtype: torch.dtype, device: Any, source: torch.Generator | None, mean: float, scale: float
) -> Tensor:
    drawn = torch.randn(shape, dtype=_wide(dtype), device=device, generator=source)
    return (mean + scale * drawn).to(dtype)


def _uniform(
    shape: Any, dtype: torch.dtype, device: Any, source: torch.Generator | None, low: float, high: float
) -> Tensor:
    drawn = torch.rand(shape, dtype=_wide(dtype), device=device, generator=source)
    return (low + (high - low) * drawn).to(dtype)


@rules.rule("RandomNormal", since=1)
def random_normal(
    *,
    shape: Ints,
    dtype: int = 1,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """ONNX RandomNormal: ``shape`` numbers of mean ``mean`` and standard deviation ``scale``.

    Raises:
        UserError: ``dtype`` is no float type; a seed in a compiled graph.
    """
    device = _device(rng)
    source = generator("RandomNormal", seed, rng, device)
    return _normal(shape, _float_type("RandomNormal", dtype), device, source, mean, scale)


@rules.rule("RandomUniform", since=1)
def random_uniform(
    *,
    shape: Ints,
    dtype: int = 1,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """ONNX RandomUniform: numbers from ``low`` to ``high``.

    Raises:
        UserError: ``dtype`` is no float type; a seed in a compiled graph.
    """
    device = _device(rng)
    source = generator("RandomUniform", seed, rng, device)
    return _uniform(shape, _float_type("RandomUniform", dtype), device, source, low, high)


@rules.rule("RandomNormalLike", since=1)
def random_normal_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    mean: float = 0.0,
    scale: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """ONNX RandomNormalLike: in the shape, and without ``dtype`` in the type, of ``x``; gradient zero.

    Raises:
        UserError: the type is no float type; a seed in a compiled graph.
    """
    source = generator("RandomNormalLike", seed, rng, x.device)
    return _normal(x.shape, _like_type("RandomNormalLike", x, dtype), x.device, source, mean, scale)


@rules.rule("RandomUniformLike", since=1)
def random_uniform_like(
    x: Tensor,
    *,
    dtype: int | None = None,
    low: float = 0.0,
    high: float = 1.0,
    seed: float | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """ONNX RandomUniformLike: in the shape, and without ``dtype`` in the type, of ``x``; gradient zero.

    Raises:
        UserError: the type is no float type; a seed in a compiled graph.
    """
    source = generator("RandomUniformLike", seed, rng, x.device)
    return _uniform(x.shape, _like_type("RandomUniformLike", x, dtype), x.device, source, low, high)


@rules.rule("Multinomial", since=7)
def multinomial(
    x: Tensor,
    *,
    dtype: int = 6,
    sample_size: int = 1,
    seed: float | None = None,
    rng: torch.Generator | None = None,
) -> Tensor:
    """ONNX Multinomial: ``sample_size`` classes per row of unnormalised log-probabilities (N, classes).

    Raises:
        UserError: another rank, no class, ``dtype`` neither int32 nor int64, or a seed in a compiled graph.
        RuntimeError: a row whose probabilities are not defined (NaN, +inf, or all -inf).
    """
    if dtype not in (6, 7):
        raise UserError(f"Multinomial: dtype {dtype} is neither int32 (6) nor int64 (7)")
    if x.ndim != 2 or x.shape[1] == 0:
        raise UserError(f"Multinomial: the input has shape {list(x.shape)}, expected [batch, classes]")
    source = generator("Multinomial", seed, rng, x.device)
    if x.shape[0] == 0 or sample_size == 0:
        return torch.zeros((x.shape[0], sample_size), dtype=TORCH_TYPE[dtype], device=x.device)
    probabilities = torch.softmax(x.detach().to(torch.float64), dim=1)
    return torch.multinomial(probabilities, sample_size, True, generator=source).to(TORCH_TYPE[dtype])


class _Draw(torch.autograd.Function):
    """Passes a draw on; refuses a gradient instead of losing it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, drawn: Tensor) -> Tensor:
        return drawn.clone()

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        raise UserError("Bernoulli: a draw is not differentiable by its probability; it has no gradient")


@rules.rule("Bernoulli", since=15)
def bernoulli(
    x: Tensor, *, dtype: int | None = None, seed: float | None = None, rng: torch.Generator | None = None
) -> Tensor:
    """ONNX Bernoulli: 1 with probability ``x``, else 0, in ``dtype`` (default: the type of ``x``).

    A draw is not a differentiable function of its probability: backward raises.

    Raises:
        UserError: a type that torch lacks; in a compiled graph a seed, or a probability with a gradient.
        RuntimeError: a probability outside [0, 1], or NaN (on the CPU).
    """
    target = x.dtype if dtype is None else TORCH_TYPE.get(dtype)
    if target is None:
        raise UserError(f"Bernoulli: the torch backend has no element type number {dtype}")
    source = generator("Bernoulli", seed, rng, x.device)
    drawn = torch.bernoulli(x.detach(), generator=source).to(target)
    if not (x.requires_grad and torch.is_grad_enabled() and target.is_floating_point):
        return drawn
    if torch.compiler.is_compiling():
        raise UserError("Bernoulli: a draw is not differentiable by its probability; it has no gradient")
    return _Draw.apply(x, drawn)  # type: ignore[no-any-return, no-untyped-call]
