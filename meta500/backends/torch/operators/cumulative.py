"""Running sums and products along an axis."""

from __future__ import annotations

import torch
from torch import Tensor

from meta500.backends.torch.operators import rules
from meta500.backends.torch.operators.gathering import place_of
from meta500.backends.torch.operators.integers import as_signed, as_type
from meta500.backends.torch.operators.literals import Scalar, single

_HALF = (torch.float16, torch.bfloat16)


def _cumulate(product: bool, x: Tensor, axis: Scalar, reverse: int, exclusive: int) -> Tensor:
    operator = "CumProd" if product else "CumSum"
    place = place_of(operator, int(single(operator, "axis", axis)), x.ndim)
    if not x.numel():
        return x.clone()
    # Products and sums modulo 2**n have the same bits signed and unsigned.
    wide = x.float() if x.dtype in _HALF else as_signed(x)
    wide = wide.flip(place) if reverse else wide
    if exclusive:
        first = torch.full_like(wide.narrow(place, 0, 1), 1 if product else 0)
        wide = torch.cat((first, wide.narrow(place, 0, x.shape[place] - 1)), place)
    result = (torch.cumprod if product else torch.cumsum)(wide, place, dtype=wide.dtype)
    result = result.flip(place) if reverse else result
    return result.to(x.dtype) if x.dtype in _HALF else as_type(result, x.dtype)


@rules.rule("CumSum", since=11, host=("axis",))
def cum_sum(x: Tensor, axis: Scalar, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """ONNX CumSum: sums up to each element (``exclusive``: before it); 16-bit floats in float32.

    Raises:
        UserError: a wrong axis.
    """
    return _cumulate(False, x, axis, reverse, exclusive)


@rules.rule("CumProd", since=26, host=("axis",))
def cum_prod(x: Tensor, axis: Scalar, *, exclusive: int = 0, reverse: int = 0) -> Tensor:
    """ONNX CumProd: products up to each element (``exclusive``: before it); 16-bit floats in float32.

    Raises:
        UserError: a wrong axis.
    """
    return _cumulate(True, x, axis, reverse, exclusive)
