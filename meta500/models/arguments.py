"""Checks of the options that users give to networks."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.errors import UserError, choose
from meta500.models.initialization import rule

# The name of a batch dimension that is left open.
OPEN_BATCH = "N"


def integer(what: str, value: object, *, minimum: int = 1, maximum: int | None = None) -> int:
    """``value`` as an int from ``minimum`` to ``maximum``; ``what`` names it in the message.

    Raises:
        UserError: not an integer (bool and 2.0 are none), or out of range.
    """
    good = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not good or value < minimum or (maximum is not None and value > maximum):  # type: ignore[operator]
        limits = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise UserError(f"{what} must be an integer {limits}, not {value!r}")
    return int(value)  # type: ignore[call-overload]


def positive(what: str, value: object) -> float:
    """``value`` as a float above 0; ``what`` names it in the message.

    Raises:
        UserError: no finite number above 0 (bool is none).
    """
    number = _number(value)
    if not 0 < number < math.inf:
        raise UserError(f"{what} must be a number above 0, not {value!r}")
    return number


def ratio(what: str, value: object) -> float:
    """``value`` as a share that Dropout may drop: a float of at least 0 and below 1.

    Raises:
        UserError: no such number (bool is none).
    """
    number = _number(value)
    if not 0 <= number < 1:
        raise UserError(f"{what} must be a number of at least 0 and below 1, not {value!r}")
    return number


def _number(value: object) -> float:
    """``value`` as a float; NaN where it is no number."""
    good = isinstance(value, numbers.Real) and not isinstance(value, bool)
    return float(value) if good else math.nan  # type: ignore[arg-type]


def batch_dimension(value: object) -> int | str:
    """A batch size, or the name of a symbolic batch dimension; None is the name ``"N"``.

    Raises:
        UserError: neither a positive integer nor an identifier nor None.
    """
    if value is None:
        return OPEN_BATCH
    if isinstance(value, str):
        if not value.isidentifier():
            raise UserError(
                f"batch '{value}' is no name of a dimension; give a positive integer, None or 'N'"
            )
        return value
    return integer("batch", value)


def image_size(value: object) -> tuple[int, int]:
    """``value``, an int or (height, width), as (height, width).

    Raises:
        UserError: not one or two positive integers.
    """
    if isinstance(value, Sequence) and not isinstance(value, str):
        if len(value) != 2:
            raise UserError(f"size must be one integer or (height, width), not {value!r}")
        return integer("size", value[0]), integer("size", value[1])
    side = integer("size", value)
    return side, side


def floating(value: Any) -> np.dtype:
    """The dtype of a network's parameters: float16, float32 or float64.

    Raises:
        UserError: any other.
    """
    try:
        name = np.dtype(value).name
    except TypeError:
        name = str(value)
    return np.dtype(choose("dtype", name, ("float16", "float32", "float64")))


def initialization_name(value: object) -> str:
    """``value`` as the name of an initialisation.

    Raises:
        UserError: unknown; lists those that exist.
    """
    rule(str(value))
    return str(value)


def label_or_none(what: str, value: object) -> int | None:
    """``value`` as a label (any 64-bit integer, such as -100 or 255), or None.

    Raises:
        UserError: neither.
    """
    if value is None:
        return None
    good = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not good or not -(2**63) <= value < 2**63:  # type: ignore[operator]
        raise UserError(f"{what} must be a label, an integer such as 255, or None, not {value!r}")
    return int(value)  # type: ignore[call-overload]


def flag(what: str, value: object) -> bool:
    """``value`` as a bool.

    Raises:
        UserError: neither True nor False.
    """
    if not isinstance(value, bool | np.bool_):
        raise UserError(f"{what} must be True or False, not {value!r}")
    return bool(value)


def integers(what: str, value: object, *, length: int | None = None, empty: bool = False) -> tuple[int, ...]:
    """``value`` as a tuple of positive ints, of ``length`` if given.

    Raises:
        UserError: no sequence of positive integers, of the wrong length, or empty where ``empty``
            is False.
    """
    wanted = f"{length} positive integers" if length is not None else "positive integers"
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise UserError(f"{what} must be {wanted}, not {value!r}")
    if (length is not None and len(value) != length) or (not value and not empty):
        raise UserError(f"{what} must be {wanted}, not {value!r}")
    return tuple(integer(what, item) for item in value)
