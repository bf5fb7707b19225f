"""Host inputs: small tensors that reach a rule as Python numbers, sequences of them, or None."""

from __future__ import annotations

from collections.abc import Sequence

from meta500.errors import UserError

Scalar = bool | int | float


def single(operator: str, name: str, value: Scalar | Sequence[Scalar]) -> Scalar:
    """The value of a scalar input, which some exporters write with shape (1).

    Raises:
        UserError: it has another number of elements.
    """
    if isinstance(value, (list, tuple)):
        if len(value) != 1 or isinstance(value[0], (list, tuple)):
            raise UserError(f"{operator}: {name} is {value}, it should be a single value")
        return value[0]  # type: ignore[no-any-return]
    return value  # type: ignore[return-value]


def several(value: int | Sequence[int]) -> Sequence[int]:
    """The values of a one-dimensional input, which some exporters write as a scalar."""
    return (value,) if isinstance(value, int) else value
