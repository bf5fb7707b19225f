"""How parameters begin: named initialisations, and a random stream per parameter.

The value of a parameter depends on (seed, name of the parameter, initialisation, shape) and on
nothing else: not on the order in which a network makes its parameters, nor on what else it has.
Values are drawn in float64 and rounded once to the wanted type, so a float32 network holds the
rounded values of the float64 one.

Fan-in and fan-out are those of ``torch.nn.init``: with ``r`` the product of the kernel's sizes, a
weight of shape (a, b, kernel...) has fan-in b*r and fan-out a*r. For a convolution (out, in,
kernel...) these are the number of inputs of an output and of outputs of an input; for a transposed
convolution (in, out, kernel...) PyTorch counts them the same way, that is, exchanged, and so do we.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from meta500.errors import UserError, choose

WEIGHT, BIAS = "weight", "bias"

# (shape, fan-in, fan-out, random stream, role) -> float64 values. The role is WEIGHT or BIAS; both
# fans are those of the layer's weight.
Rule = Callable[[tuple[int, ...], int, int, np.random.Generator, str], np.ndarray]


def torch_default(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """What ``torch.nn.Conv*d``, ``ConvTranspose*d`` and ``Linear`` do: U(-k, k), k =
    1/sqrt(fan_in).

    PyTorch's ``reset_parameters`` writes it as kaiming_uniform with a = sqrt(5), whose bound
    sqrt(6 / ((1 + a^2) fan_in)) is this k, and draws biases from the same interval. The variance is
    1/(3 fan_in): a sixth of what He et al. derive for ReLU.
    """
    bound = 1.0 / math.sqrt(fan_in)
    return rng.uniform(-bound, bound, shape)


def kaiming_uniform(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """U(-k, k), k = sqrt(6 / fan_in), of variance 2/fan_in; biases 0.

    He, Zhang, Ren and Sun, "Delving Deep into Rectifiers", ICCV 2015, equation 10.
    """
    return _uniform(shape, math.sqrt(6.0 / fan_in), rng, role)


def kaiming_normal(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """N(0, 2/fan_in); biases 0. He et al., ICCV 2015, equation 10."""
    return _normal(shape, math.sqrt(2.0 / fan_in), rng, role)


def kaiming_normal_fan_out(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """N(0, 2/fan_out); biases 0. He et al., ICCV 2015, equation 14; torchvision's ResNets."""
    return _normal(shape, math.sqrt(2.0 / fan_out), rng, role)


def xavier_uniform(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """U(-k, k), k = sqrt(6 / (fan_in + fan_out)); biases 0.

    Glorot and Bengio, "Understanding the difficulty of training deep feedforward neural networks",
    AISTATS 2010, equation 16.
    """
    return _uniform(shape, math.sqrt(6.0 / (fan_in + fan_out)), rng, role)


def xavier_normal(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """N(0, 2/(fan_in + fan_out)); biases 0. Glorot and Bengio, AISTATS 2010, equation 12."""
    return _normal(shape, math.sqrt(2.0 / (fan_in + fan_out)), rng, role)


def lecun_normal(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """N(0, 1/fan_in), not truncated; biases 0.

    LeCun et al., "Efficient BackProp", 1998, equation 16; Klambauer et al., "Self-Normalizing
    Neural Networks", NeurIPS 2017.
    """
    return _normal(shape, math.sqrt(1.0 / fan_in), rng, role)


def zeros(
    shape: tuple[int, ...], fan_in: int, fan_out: int, rng: np.random.Generator, role: str
) -> np.ndarray:
    """Weights and biases 0."""
    return np.zeros(shape)


_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "torch_default": torch_default,
        "kaiming_uniform": kaiming_uniform,
        "kaiming_normal": kaiming_normal,
        "kaiming_normal_fan_out": kaiming_normal_fan_out,
        "xavier_uniform": xavier_uniform,
        "xavier_normal": xavier_normal,
        "lecun_normal": lecun_normal,
        "zeros": zeros,
    }
)
_CONSTANT, _CONSTANT_VALUE = "constant", 0.01


def initializations() -> tuple[str, ...]:
    """The names that networks take as ``initialization``, sorted.

    ``constant`` may carry its value, as in ``"constant:0.5"``; alone it means 0.01. It fills
    weights and leaves biases 0.
    """
    return tuple(sorted((*_RULES, _CONSTANT)))


def rule(initialization: str) -> Rule:
    """The rule of a named initialisation.

    Raises:
        UserError: unknown name (lists those that exist), or a constant that is no finite number.
    """
    text = str(initialization)
    name, separator, argument = text.partition(":")
    choose("initialization", name if name == _CONSTANT else text, initializations())
    if name != _CONSTANT:
        return _RULES[name]
    try:
        value = float(argument) if separator else _CONSTANT_VALUE
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UserError(f"initialization '{text}': '{argument}' is no finite number; write 'constant:0.5'")
    return lambda shape, fan_in, fan_out, rng, role: np.full(shape, value if role == WEIGHT else 0.0)


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan-in, fan-out) of a weight of ``shape``, as this module's docstring defines them.

    Raises:
        UserError: a shape with fewer than two dimensions, or an empty one.
    """
    if len(shape) < 2 or min(shape) < 1:
        raise UserError(f"a weight of shape {shape} has no fan-in; it needs two positive dimensions or more")
    receptive = math.prod(shape[2:])
    return shape[1] * receptive, shape[0] * receptive


def stream(seed: int, name: str) -> np.random.Generator:
    """The random stream of a parameter: Philox, keyed by the seed and a SHA-256 of the name."""
    digest = hashlib.sha256(name.encode()).digest()
    key = tuple(int.from_bytes(digest[i : i + 4], "little") for i in range(0, len(digest), 4))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed, spawn_key=key)))


def initialize(
    initialization: str,
    name: str,
    shape: tuple[int, ...],
    *,
    weight_shape: tuple[int, ...] | None = None,
    role: str = WEIGHT,
    seed: int = 0,
    dtype: Any = np.float32,
) -> np.ndarray:
    """The first value of a parameter.

    Args:
        initialization: one of :func:`initializations`.
        name: the parameter's name; with ``seed`` it decides the random stream.
        shape: of the parameter.
        weight_shape: of the weight of the same layer, which gives the fans; by default ``shape``.
        role: WEIGHT or BIAS.
        seed: at least 0.
        dtype: floating-point type of the result.

    Returns:
        An array of ``shape`` and ``dtype``.

    Raises:
        UserError: unknown initialisation.
    """
    fan_in, fan_out = fans(weight_shape or shape)
    if rule(initialization) is zeros:
        # Memory that nobody has written to: a network that is only looked at costs none for its weights.
        return np.zeros(shape, dtype)
    values = rule(initialization)(shape, fan_in, fan_out, stream(seed, name), role)
    return values.astype(dtype)


def _uniform(shape: tuple[int, ...], bound: float, rng: np.random.Generator, role: str) -> np.ndarray:
    return rng.uniform(-bound, bound, shape) if role == WEIGHT else np.zeros(shape)


def _normal(shape: tuple[int, ...], deviation: float, rng: np.random.Generator, role: str) -> np.ndarray:
    return rng.normal(0.0, deviation, shape) if role == WEIGHT else np.zeros(shape)
