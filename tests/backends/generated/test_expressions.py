"""Derivatives of expressions against central differences, and what the constructors simplify."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meta500.backends.generated import expressions as ex
from meta500.backends.generated.affine import Affine, affine
from meta500.backends.generated.expressions import (
    FUNCTIONS,
    ONE,
    ZERO,
    Access,
    Apply,
    Constant,
    Expr,
    Index,
    Load,
    call,
    derivative,
    loads,
    rewrite,
    select,
    substitute,
    walk,
)
from meta500.backends.generated.interpret import _evaluate

bounded = settings(max_examples=150, derandomize=True, database=None)
A, B = (Load(Access(name, ())) for name in "ab")
SMOOTH = ("exp", "tanh", "sigmoid", "softplus", "erf", "neg", "abs", "relu", "sqrt", "log")
COMPARISONS = ("less", "greater", "less_equal", "greater_equal", "equal")
BINARY = ("add", "sub", "mul", "div", "maximum", "minimum")


def number(expr: Expr, a: float, b: float) -> float:
    with np.errstate(all="ignore"):
        values = {"a": np.array(a), "b": np.array(b)}
        return float(np.asarray(_evaluate(expr, {}, 1, values)).reshape(-1)[0])


expressions = st.recursive(
    st.sampled_from([A, B, Constant(0.5), Constant(-1.5)]),
    lambda inner: st.one_of(
        st.builds(call, st.sampled_from(SMOOTH), inner),
        st.builds(call, st.sampled_from(BINARY), inner, inner),
        st.builds(lambda c, x, y: select(call("less", c, ZERO), x, y), inner, inner, inner),
    ),
    max_leaves=6,
)


# Points of ordinary size: next to a pole differences say nothing.
places = st.integers(-30, 30).map(lambda n: n / 16 + 0.013)


@given(expr=expressions, a=places, b=places)
@bounded
def test_derivatives_against_central_differences(expr, a, b) -> None:
    h = 1e-5
    here = number(expr, a, b)
    for load, (da, db) in ((A, (h, 0)), (B, (0, h))):
        before, after = number(expr, a - da, b - db), number(expr, a + da, b + db)
        before2, after2 = number(expr, a - 2 * da, b - 2 * db), number(expr, a + 2 * da, b + 2 * db)
        slope, wide = (after - before) / (2 * h), (after2 - before2) / (4 * h)
        assume(all(map(math.isfinite, (here, slope, wide))) and abs(slope) < 1e4)
        # Near a kink or a pole differences of two widths do not agree.
        assume(abs(slope - wide) < 1e-6 * (1 + abs(slope)))
        assume(abs((after - here) - (here - before)) < 1e-3 * h * (1 + abs(slope)))
        found = number(derivative(expr, load), a, b)
        assume(math.isfinite(found))  # sqrt(a - a) has no derivative, its differences are 0
        assert abs(found - slope) <= 1e-4 * (1 + abs(slope))


@pytest.mark.parametrize("name", sorted(FUNCTIONS - {"select", "uniform"}))
def test_every_function_has_a_derivative_and_a_value(name) -> None:
    arity = 2 if name in (*BINARY, *COMPARISONS) else 1
    expr = Apply(name, (A, B)[:arity])
    h = 1e-6
    for load, (da, db) in list(zip((A, B), ((h, 0), (0, h)), strict=True))[:arity]:
        wanted = (number(expr, 0.3 + da, 0.7 + db) - number(expr, 0.3 - da, 0.7 - db)) / (2 * h)
        assert abs(number(derivative(expr, load), 0.3, 0.7) - wanted) < 1e-7


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_equal_values_share_the_gradient(name) -> None:
    expr = call(name, A, B)
    assert number(derivative(expr, A), 2.0, 2.0) == number(derivative(expr, B), 2.0, 2.0) == 0.5
    assert number(expr, math.nan, 1.0) != number(expr, math.nan, 1.0)  # NaN stays
    assert number(derivative(expr, A), math.nan, 1.0) == 0


def test_a_condition_makes_no_nan_of_infinity() -> None:
    mask = select(call("greater", A, ZERO), Constant(3.0), ZERO)
    assert number(ex.mul(mask, B), -1.0, math.inf) == 0
    assert number(ex.mul(B, mask), 1.0, 2.0) == 6
    nested = select(call("less", A, ONE), mask, ZERO)
    assert number(ex.mul(nested, B), -1.0, math.inf) == 0


def test_simplifications() -> None:
    assert ex.add(ZERO, A) == A and ex.add(A, ZERO) == A
    assert ex.sub(A, ZERO) == A and ex.sub(ZERO, A) == call("neg", A)
    assert ex.mul(ZERO, A) == ZERO and ex.mul(ONE, A) == A and ex.mul(A, ONE) == A
    assert ex.mul(Constant(2.0), Constant(3.0)) == Constant(6.0)
    assert ex.div(A, ONE) == A and ex.div(ZERO, A) == ZERO and ex.neg(Constant(2.0)) == Constant(-2.0)
    assert select(call("less", A, B), A, A) == A
    assert derivative(Constant(1.0), A) == ZERO and derivative(B, A) == ZERO and derivative(A, A) == ONE


def test_other_elements_of_the_same_tensor_are_constants() -> None:
    here, there = (Load(Access("u", (index,))) for index in (affine("i"), affine("i") + 1))
    product = ex.mul(here, there)
    assert derivative(product, here) == there and derivative(product, there) == here


def test_rewriting() -> None:
    u = Load(Access("u", (Affine.of({"i": 2, "r": 1}),)), held=True)
    expr = ex.add(u, ex.mul(Index(affine("r")), u))
    assert loads(expr) == [u] and loads(None) == [] and len(list(walk(expr))) == 5
    moved = substitute(expr, {"r": affine("i") + 1})
    assert str(moved) == "(u[3*i+1] + ((i+1) * u[3*i+1]))" and loads(moved)[0].held
    assert rewrite(expr, lambda e: ONE if e == u else None) == ex.add(
        ONE, call("mul", Index(affine("r")), ONE)
    )
    assert str(call("exp", ex.neg(A))) == "exp(neg(a[]))" and A.access.axes == set()
