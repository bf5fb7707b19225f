"""Sums that must be exact where they are exactly zero, because a kink follows.

Where a picture is black and a bias is 0, a convolution gives exactly 0, and no gradient passes the Relu
behind it. A form that adds and subtracts large numbers on the way gives some 1e-7 there, of either sign, and
gradients pass where it is positive. Such sums keep the direct form.
"""

from __future__ import annotations

from collections.abc import Collection

from meta500.backends.generated.adjoint import PREFIX
from meta500.backends.generated.expressions import Apply, Result, loads, walk
from meta500.backends.generated.ir import PARAMETER, SUM, Program, Stage

_KINKS = ("abs", "greater", "greater_equal", "less", "less_equal", "maximum", "minimum", "relu", "sign")


def exact_stages(program: Program, with_zeros: Collection[str]) -> set[str]:
    """Names of the fused forward sums whose exact zeros matter.

    Args:
        program: after fusion.
        with_zeros: parameters that have an element 0.
    """
    return {
        stage.name
        for stage in program.stages
        if _meets_kink(stage) and _may_be_zero(stage, program, with_zeros)
    }


def _meets_kink(stage: Stage) -> bool:
    """Whether the finished sum of a forward stage goes straight into a function with a kink."""
    if stage.combine != SUM or stage.finish is None or stage.write.tensor.startswith(PREFIX):
        return False
    return any(
        isinstance(e, Apply) and e.function in _KINKS and any(isinstance(a, Result) for a in walk(e))
        for e in walk(stage.finish)
    )


def _may_be_zero(stage: Stage, program: Program, with_zeros: Collection[str]) -> bool:
    """Whether the sum is exactly 0 where all its terms are: unless it begins with numbers other than 0."""
    begins = [load.access.tensor for load in loads(stage.initial)]
    if len(begins) != 1 or program.tensors[begins[0]].role != PARAMETER:
        return True
    return begins[0] in with_zeros
