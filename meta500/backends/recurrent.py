"""What RNN, GRU and LSTM nodes say, checked once for all backends: directions, activations and shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meta500.errors import UserError, choose

Floats = Sequence[float]
Shape = tuple[int, ...]

# Activation: default alpha and beta. None: the function has no such parameter. NaN: it has one without a
# default (ONNX takes defaults from the operators of the same names, and there is no ScaledTanh).
ACTIVATIONS: dict[str, tuple[float | None, float | None]] = {
    "Affine": (1.0, 0.0),
    "Elu": (1.0, None),
    "HardSigmoid": (0.2, 0.5),
    "LeakyRelu": (0.01, None),
    "Relu": (None, None),
    "ScaledTanh": (float("nan"), float("nan")),
    "Sigmoid": (None, None),
    "Softplus": (None, None),
    "Softsign": (None, None),
    "Tanh": (None, None),
    "ThresholdedRelu": (1.0, None),
}
_NAMES = {name.lower(): name for name in ACTIVATIONS}


@dataclass(frozen=True)
class Activation:
    """One activation function with its parameters; its argument is first bounded to [-clip, clip]."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float | None = None


@dataclass(frozen=True)
class Direction:
    """One direction of a recurrent node: backwards in time or not, and its activations in order."""

    backwards: bool
    activations: tuple[Activation, ...]


def directions(
    operator: str,
    defaults: Sequence[str],
    direction: str,
    activations: Sequence[str] | None,
    alpha: Floats | None,
    beta: Floats | None,
    clip: float | None,
    since_version: int,
) -> tuple[Direction, ...]:
    """The one or two directions of a recurrent node.

    ``defaults`` are the activations of one direction. Alphas and betas are consumed in the order of the
    functions that have such a parameter, as ONNX states.

    Raises:
        UserError: an unknown direction or activation, a wrong number of activations or parameters, or a clip
            that is not positive.
    """
    if direction == "foward" and operator == "GRU" and since_version == 1:
        direction = "forward"  # the default as the schema of GRU-1 spells it
    choose(f"direction of {operator}", direction, ("forward", "reverse", "bidirectional"))
    if clip is not None and not clip > 0:
        raise UserError(f"{operator}: clip is {clip}, expected a positive threshold (or no clip at all)")
    backwards = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}[direction]
    names = list(activations) if activations else list(defaults) * len(backwards)
    wanted = len(defaults) * len(backwards)
    if operator == "RNN" and len(backwards) == 1 and names == ["Tanh", "Tanh"]:
        names = names[:1]  # the default of the schema is a pair in every direction
    if len(names) != wanted:
        raise UserError(f"{operator}: {len(names)} activations {names}, expected {wanted} for {direction}")
    known = [
        _NAMES.get(name.lower()) or choose(f"activation of {operator}", name, ACTIVATIONS) for name in names
    ]
    alphas = _parameters(operator, "activation_alpha", alpha, known, 0)
    betas = _parameters(operator, "activation_beta", beta, known, 1)
    functions = [Activation(n, a, b, clip) for n, a, b in zip(known, alphas, betas, strict=True)]
    count = len(defaults)
    return tuple(
        Direction(back, tuple(functions[i * count : (i + 1) * count])) for i, back in enumerate(backwards)
    )


def _parameters(
    operator: str, attribute: str, values: Floats | None, names: Sequence[str], which: int
) -> list[float]:
    takers = [name for name in names if ACTIVATIONS[name][which] is not None]
    given = list(values or ())
    if takers and len(given) > len(takers):
        raise UserError(
            f"{operator}: {attribute} has {len(given)} values, but only {len(takers)} of the activations "
            f"{list(names)} take one ({takers}); they are consumed in this order"
        )
    found = []
    for name in names:
        default = ACTIVATIONS[name][which]
        if default is None:
            found.append(0.0)
        elif given:
            found.append(float(given.pop(0)))
        elif math.isnan(default):
            raise UserError(f"{operator}: activation {name} needs a value in {attribute}; it has no default")
        else:
            found.append(default)
    return found


def check_shapes(
    operator: str,
    gates: int,
    count: int,
    x: Shape,
    w: Shape,
    r: Shape,
    others: dict[str, Shape | None],
    hidden_size: int | None,
    layout: int,
) -> tuple[int, int, int, int]:
    """(time steps, batch, input size, hidden size) of a node with ``gates`` gates and ``count`` directions.

    ``others`` holds the shapes of B, sequence_lens, initial_h, initial_c and P where they are given.

    Raises:
        UserError: a shape that does not fit, or an unknown layout; the message has both shapes.
    """
    if layout not in (0, 1):
        raise UserError(f"{operator}: layout is {layout}, expected 0 (time first) or 1 (batch first)")
    if len(x) != 3 or len(w) != 3 or len(r) != 3:
        raise UserError(f"{operator}: X {x}, W {w} and R {r} must have three axes each")
    steps, batch = (x[1], x[0]) if layout else (x[0], x[1])
    hidden = r[2]
    if hidden_size is not None and hidden_size != hidden:
        raise UserError(f"{operator}: hidden_size is {hidden_size}, but R has shape {r}")
    state = (batch, count, hidden) if layout else (count, batch, hidden)
    expected = {
        "W": (count, gates * hidden, x[2]),
        "R": (count, gates * hidden, hidden),
        "B": (count, 2 * gates * hidden),
        "sequence_lens": (batch,),
        "initial_h": state,
        "initial_c": state,
        "P": (count, 3 * hidden),
    }
    for name, shape in {"W": w, "R": r, **others}.items():
        if shape is not None and shape != expected[name]:
            raise UserError(f"{operator}: {name} has shape {shape}, expected {expected[name]} for X {x}")
    return steps, batch, x[2], hidden
