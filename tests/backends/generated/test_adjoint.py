"""Derived adjoints: dot products with directional differences, forced methods, verdicts, structure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.backends.generated.adjoint import METHODS, differentiate, without_dead_stages
from meta500.backends.generated.affine import Affine, Guard, affine, indices
from meta500.backends.generated.expressions import (
    ONE,
    ZERO,
    Access,
    Constant,
    Expr,
    Index,
    Load,
    add,
    call,
    mul,
    select,
    sub,
)
from meta500.backends.generated.interpret import run
from meta500.backends.generated.ir import INPUT, MAX, PARAMETER, SET, SUM, Axis, Program, Stage, Tensor
from meta500.errors import UserError


def at(tensor: str, *where: Any, held: bool = False) -> Load:
    return Load(Access(tensor, indices(where)), held)


class Maker:
    """A program in the making: ``give`` adds inputs, ``stage`` adds stages and the tensors that they write."""

    def __init__(self, seed: int = 0) -> None:
        self.program = Program("test")
        self.rng = np.random.default_rng(seed)
        self.given: dict[str, np.ndarray] = {}

    def give(self, name: str, *shape: int, role: str = INPUT) -> None:
        self.program.tensors[name] = Tensor(name, shape, role=role)
        self.given[name] = np.asarray(self.rng.standard_normal(shape))

    def stage(
        self, name: str, shape: tuple[int, ...], write: Any, axes: dict[str, int], value: Expr, **more: Any
    ) -> Stage:
        self.program.tensors.setdefault(name, Tensor(name, shape))
        found = Stage(
            self.program.unique_stage(name), f"test {name}", tuple(Axis(a, n) for a, n in axes.items()),
            Access(name, indices(write)), value, **more,
        )  # fmt: skip
        self.program.stages.append(found)
        return found


def check(
    maker: Maker, target: str, variables: list[str], methods: tuple[str, ...] = METHODS
) -> list[Program]:
    """<w, J v> by central differences equals <J^T w, v>, for every method; the methods agree."""
    program, rng = maker.program, np.random.default_rng(9)
    shape = program.tensors[target].shape
    program.tensors["cotangent"] = Tensor("cotangent", shape, role=INPUT)
    w = np.asarray(rng.standard_normal(shape))
    directions = {n: np.asarray(rng.standard_normal(program.tensors[n].shape)) for n in variables}

    def moved(h: float) -> np.ndarray:
        values = {n: x + h * directions[n] if n in directions else x for n, x in maker.given.items()}
        return run(program, {**values, "cotangent": w})[target]

    h = 1e-5
    wanted = float((w * (moved(h) - moved(-h))).sum() / (2 * h))
    results, gradients = [], []
    for method in methods:
        try:
            result = differentiate(program, target, variables, cotangent="cotangent", method=method)
        except UserError as error:
            assert method == "gather" and "cannot gather" in str(error)
            continue
        values = run(result, {**maker.given, "cotangent": w})
        found = [values[result.gradients[n]] for n in variables]
        dot = sum(float((g * directions[n]).sum()) for g, n in zip(found, variables, strict=True))
        assert abs(dot - wanted) <= 1e-6 * (1 + abs(wanted)), (method, dot, wanted)
        results.append(result)
        gradients.append(found)
    for found in gradients[1:]:
        for a, b in zip(found, gradients[0], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)
    return results


def convolution(maker: Maker, stride: int, dilation: int, pad: int, tap: int = 3, size: int = 7) -> None:
    """y[n, k, i] = b[k] + sum of x[n, c, s*i + d*r - p] * w[k, c, r]."""
    out = (size + 2 * pad - (tap - 1) * dilation - 1) // stride + 1
    maker.give("x", 2, 3, size)
    maker.give("w", 4, 3, tap, role=PARAMETER)
    maker.give("b", 4, role=PARAMETER)
    place = Affine.of({"i": stride, "r": dilation}, -pad)
    maker.stage(
        "y", (2, 4, out), ["n", "k", "i"], {"n": 2, "k": 4, "i": out, "c": 3, "r": tap},
        mul(at("x", "n", "c", place), at("w", "k", "c", "r")),
        combine=SUM, guards=(Guard(place, 0, size),), initial=at("b", "k"),
    )  # fmt: skip


@pytest.mark.parametrize(("stride", "dilation", "pad", "tap"), [
    (1, 1, 1, 3), (2, 1, 1, 3), (1, 2, 2, 3), (3, 2, 0, 2), (3, 1, 1, 3), (2, 1, 0, 1), (2, 1, 1, 2),
])  # fmt: skip
def test_convolutions(stride, dilation, pad, tap) -> None:
    maker = Maker()
    convolution(maker, stride, dilation, pad, tap)
    check(maker, "y", ["x", "w", "b"])


def test_the_adjoint_of_a_convolution_is_a_convolution_with_flipped_taps() -> None:
    """Nothing knows of convolutions; that is what the transposition finds."""
    maker = Maker()
    convolution(maker, 1, 1, 1)
    maker.program.tensors["dy"] = Tensor("dy", (2, 4, 7), role=INPUT)
    result = differentiate(maker.program, "y", ["x", "w", "b"], cotangent="dy")
    dx, dw, db = (next(s for s in result.stages if s.write.tensor == f"grad/{n}") for n in "xwb")
    assert len(result.stages) == 4
    assert str(dx.write) == "grad/x[n, c, w]" and str(dx.value) == "(dy[n, k, -r+w+1] * w[k, c, r])"
    assert [str(g) for g in dx.guards] == ["0 <= -r+w+1 < 7"]
    assert {axis.name for axis in dx.reduced} == {"k", "r"} and not dx.onto and dx.combine == SUM
    assert str(dw.write) == "grad/w[k, c, r]" and {axis.name for axis in dw.reduced} == {"n", "i"}
    assert str(db.write) == "grad/b[k]" and str(db.value) == "dy[n, k, i]"
    assert (
        dx.verdict == "neighbouring iterations meet in i+r-1; transposed, every element collects its own sum"
    )
    assert dx.origin == "adjoint of test y by x"
    assert dw.method == "gather" and "shared over n, i: each element sums over them" in dw.verdict
    assert "gather: reads were exclusive over k; shared over n, i" in str(db)


def test_verdicts_name_the_method_and_the_reason() -> None:
    maker = Maker()
    convolution(maker, 2, 1, 1)
    maker.program.tensors["dy"] = Tensor("dy", (2, 4, 4), role=INPUT)
    by = {m: differentiate(maker.program, "y", ["x", "w"], cotangent="dy", method=m) for m in METHODS}
    for method in ("reduction", "atomics"):
        forced = [s for s in by[method].stages if s.method]
        assert {s.method for s in forced} == {method}
        assert all(s.onto and "(forced)" in s.verdict for s in forced)
        assert any("neighbouring iterations meet in 2*i+r-1" in s.verdict for s in forced)
    for method in ("auto", "gather"):
        pieces = [s for s in by[method].stages if s.write.tensor == "grad/x"]
        assert len(pieces) == 2 and all("transposed in 2 phases" in s.verdict for s in pieces)
        assert [s.onto for s in pieces] == [False, False]


def test_what_cannot_be_gathered() -> None:
    maker = Maker()
    maker.give("u", 8, 8)
    maker.stage(
        "y", (4, 4), ["i", "r"], {"i": 4, "r": 4}, at("u", Affine.of({"i": 1, "r": 1}), Affine.of({"i": 1, "r": 1}))
    )  # fmt: skip
    results = check(maker, "y", ["u"])
    assert len(results) == 3  # all but "gather"
    assert [s.method for s in results[0].stages if s.method] == ["atomics"]
    assert "cannot be solved for one axis" in str(results[0])
    with pytest.raises(UserError, match="cannot gather.*use reduction or atomics"):
        differentiate(maker.program, "y", ["u"], cotangent="cotangent", method="gather")


@st.composite
def networks(draw):
    """Stencils, products, functions and sums, one after the other."""
    maker = Maker(draw(st.integers(0, 99)))
    n, m = draw(st.integers(3, 6)), draw(st.integers(3, 6))
    maker.give("u", n, m)
    maker.give("w", 3, 3, role=PARAMETER)
    maker.give("v", m, role=PARAMETER)
    last = "u"
    for step in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(("stencil", "taps", "function", "product", "sum", "part", "twice")))
        name, axes = f"t{step}", {"i": n, "j": m}
        here = at(last, "i", "j")
        if kind == "stencil":
            r, q = draw(st.integers(-1, 1)), draw(st.integers(-2, 2))
            place = [affine("i") + r, affine("j") + q]
            value = add(mul(here, Constant(0.5)), mul(at("v", "j"), here))
            maker.stage(name, (n, m), ["i", "j"], axes, value, combine=SET)
            guards = (Guard(place[0], 0, n), Guard(place[1], 0, m))
            maker.stage(
                name, (n, m), ["i", "j"], axes, at(last, *place), combine=SUM, guards=guards, onto=True
            )
        elif kind == "taps":
            place = [Affine.of({"i": 1, "r": 1}, -1), Affine.of({"j": 1, "q": draw(st.integers(1, 2))}, -1)]
            maker.stage(
                name, (n, m), ["i", "j"], {**axes, "r": 3, "q": 3}, mul(at(last, *place), at("w", "r", "q")),
                combine=SUM, guards=(Guard(place[0], 0, n), Guard(place[1], 0, m)), initial=at("v", "j"),
            )  # fmt: skip
        elif kind == "function":
            name_of = draw(st.sampled_from(("tanh", "sigmoid", "softplus", "erf")))
            maker.stage(name, (n, m), ["i", "j"], axes, call(name_of, here))
        elif kind == "product":
            maker.stage(name, (n, m), ["i", "j"], axes, mul(here, at("u", "i", "j")))
        elif kind == "sum":
            maker.stage(f"{name}s", (m,), ["j"], axes, mul(here, Constant(1 / n)), combine=SUM)
            maker.stage(name, (n, m), ["i", "j"], axes, sub(here, at(f"{name}s", "j")))
        elif kind == "part":
            maker.stage(name, (n, m), ["i", "j"], axes, mul(here, Constant(0.5)))
            other = at(last, "i", affine("j") * -1 + (m - 1))
            maker.stage(name, (n, m), ["i", "j"], axes, other, combine=SUM, onto=True)
        else:
            left = at(last, "i", affine("j") * -1 + (m - 1))
            maker.stage(name, (n, m), ["i", "j"], axes, mul(here, left))
        last = name
    return maker, last


@given(network=networks())
@settings(max_examples=60, derandomize=True, database=None)
def test_random_programs(network) -> None:
    maker, last = network
    check(maker, last, ["u", "w", "v"])


def test_a_dense_jacobian() -> None:
    """Every column by complex-free exact means: the program is linear in u."""
    maker = Maker(3)
    maker.give("u", 5, 4)
    place = [Affine.of({"i": 2, "r": 1}, -1), Affine.of({"j": 1, "q": 2}, -2)]
    maker.give("w", 3, 2)
    maker.stage(
        "y", (3, 4), ["i", "j"], {"i": 3, "j": 4, "r": 3, "q": 2}, mul(at("u", *place), at("w", "r", "q")),
        combine=SUM, guards=(Guard(place[0], 0, 5), Guard(place[1], 0, 4)),
    )  # fmt: skip
    maker.program.tensors["dy"] = Tensor("dy", (3, 4), role=INPUT)
    forward = np.zeros((12, 20))
    for column in range(20):
        unit = np.eye(20)[column].reshape(5, 4)
        forward[:, column] = run(maker.program, {**maker.given, "u": unit, "dy": np.zeros((3, 4))})[
            "y"
        ].reshape(-1)
    result = differentiate(maker.program, "y", ["u"], cotangent="dy")
    backward = np.zeros((20, 12))
    for column in range(12):
        unit = np.eye(12)[column].reshape(3, 4)
        backward[:, column] = run(result, {**maker.given, "dy": unit})["grad/u"].reshape(-1)
    np.testing.assert_allclose(backward, forward.T, rtol=0, atol=1e-15)


# -- maxima --------------------------------------------------------------------------------------------------


def maximum(winner: bool) -> tuple[Maker, np.ndarray]:
    maker = Maker()
    maker.give("u", 2, 6)
    maker.given["u"] = np.array([[1.0, 3.0, 3.0, 0.0, 3.0, -1.0], [5.0, 2.0, 5.0, 1.0, 1.0, 2.0]])
    more: dict[str, Any] = {}
    if winner:
        maker.program.tensors["winner"] = Tensor("winner", (2, 2), "int32")
        more["winner"] = (Access("winner", indices(["n", "i"])), affine("r"))
    value = at("u", "n", Affine.of({"i": 3, "r": 1}))
    maker.stage("y", (2, 2), ["n", "i"], {"n": 2, "i": 2, "r": 3}, value, combine=MAX, **more)
    maker.program.tensors["dy"] = Tensor("dy", (2, 2), role=INPUT)
    return maker, np.array([[2.0, 4.0], [6.0, 8.0]])


def test_the_gradient_of_a_maximum_goes_to_the_first_winner() -> None:
    maker, dy = maximum(winner=True)
    values = run(differentiate(maker.program, "y", ["u"], cotangent="dy"), {**maker.given, "dy": dy})
    assert values["grad/u"].tolist() == [[0, 2, 0, 0, 4, 0], [6, 0, 0, 0, 0, 8]]


def test_equal_maxima_share_the_gradient_where_no_winner_is_recorded() -> None:
    maker, dy = maximum(winner=False)
    result = differentiate(maker.program, "y", ["u"], cotangent="dy")
    values = run(result, {**maker.given, "dy": dy})
    assert values["grad/u"].tolist() == [[0, 1, 1, 0, 4, 0], [3, 0, 3, 0, 0, 8]]
    assert values["y.ties"].tolist() == [[2, 1], [2, 1]]


def test_a_maximum_of_an_expression() -> None:
    for winner in (False, True):
        maker = Maker(4)
        maker.give("u", 4, 5)
        maker.give("v", 5)
        more: dict[str, Any] = {}
        if winner:
            maker.program.tensors["winner"] = Tensor("winner", (4,), "int32")
            more["winner"] = (Access("winner", indices(["i"])), affine("j"))
        value = mul(at("u", "i", "j"), call("tanh", at("v", "j")))
        maker.stage("y", (4,), ["i"], {"i": 4, "j": 5}, value, combine=MAX, **more)
        check(maker, "y", ["u", "v"])


# -- what is left out, and what is refused -------------------------------------------------------------------


def test_held_loads_take_no_part() -> None:
    maker = Maker()
    maker.give("u", 4)
    value = mul(at("u", "i"), at("u", "i", held=True))
    maker.stage("y", (), [], {"i": 4}, value, combine=SUM)
    result = differentiate(maker.program, "y", ["u"])
    np.testing.assert_array_equal(run(result, maker.given)["grad/u"], maker.given["u"])


def test_an_infinite_cotangent_behind_a_condition_is_no_nan() -> None:
    maker = Maker()
    maker.give("u", 3)
    maker.given["u"] = np.array([-1.0, 0.5, 2.0])
    u = at("u", "i")
    maker.stage("y", (3,), ["i"], {"i": 3}, select(call("less", u, ONE), ZERO, mul(u, Constant(2.0))))
    maker.program.tensors["dy"] = Tensor("dy", (3,), role=INPUT)
    result = differentiate(maker.program, "y", ["u"], cotangent="dy")
    values = run(result, {**maker.given, "dy": np.array([np.inf, np.nan, 3.0])})
    assert values["grad/u"].tolist() == [0, 0, 6]


def test_constant_gradients_need_no_loop_until_they_are_wanted() -> None:
    maker = Maker()
    maker.give("u", 3)
    maker.give("unused", 2, 2)
    maker.stage("y", (), [], {}, at("u", 1))
    result = differentiate(maker.program, "y", ["u", "unused", "y"])
    values = run(result, maker.given)
    assert values["grad/u"].tolist() == [0, 1, 0] and values["grad/y"] == 1
    assert values[result.gradients["unused"]].tolist() == [[0, 0], [0, 0]]


def test_results_are_read_instead_of_computed_again() -> None:
    maker = Maker()
    maker.give("u", 3)
    maker.stage("y", (3,), ["i"], {"i": 3}, call("exp", at("u", "i")))
    maker.stage("s", (), [], {"i": 3}, at("y", "i"), combine=SUM)
    result = differentiate(maker.program, "s", ["u"])
    assert "exp" not in str(result.stages[-1]) and "y[" in str(result.stages[-1].value)


def test_what_was_added_onto_is_computed_again() -> None:
    """After y += 1 the tensor is no longer exp(u)."""
    maker = Maker()
    maker.give("u", 3)
    maker.stage("y", (3,), ["i"], {"i": 3}, call("exp", at("u", "i")))
    maker.stage("y", (3,), ["i"], {"i": 3}, ONE, combine=SUM, onto=True)
    check(maker, "y", ["u"])


def test_dead_stages_and_winners_go() -> None:
    maker, _ = maximum(winner=True)
    maker.stage("z", (2, 2), ["n", "i"], {"n": 2, "i": 2}, at("y", "n", "i"))
    kept = without_dead_stages(maker.program, ["y"])
    assert [s.name for s in kept.stages] == ["y"] and kept.stages[0].winner is None
    assert set(kept.tensors) == {"u", "y", "dy"}
    both = without_dead_stages(maker.program, ["y", "winner"])
    assert both.stages[0].winner is not None


def test_refusals() -> None:
    maker = Maker()
    maker.give("u", 3)
    maker.stage("y", (3,), ["i"], {"i": 3}, at("u", "i"))
    with pytest.raises(UserError, match="only a scalar can be differentiated"):
        differentiate(maker.program, "y", ["u"])
    with pytest.raises(UserError, match="unknown method of adjoints 'gathr'"):
        differentiate(maker.program, "y", ["u"], method="gathr")
    with pytest.raises(UserError, match="no tensor 'w'"):
        differentiate(maker.program, "y", ["w"], cotangent="u")


def test_indices_as_values_move_with_the_change_of_variables() -> None:
    """Position-dependent weights: the transposed stage must see the number of the old iteration."""
    maker = Maker()
    maker.give("u", 6)
    place = Affine.of({"i": 1, "r": 1}, -1)
    weight = add(Index(Affine.of({"i": 2, "r": -1})), ONE)
    maker.stage(
        "y", (6,), ["i"], {"i": 6, "r": 3}, mul(weight, at("u", place)), combine=SUM, guards=(Guard(place, 0, 6),)
    )  # fmt: skip
    check(maker, "y", ["u"])
    assert math.isfinite(maker.given["u"].sum())
