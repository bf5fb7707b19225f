"""Stencils given as text, against Python's own evaluation element by element; their adjoints by differences."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from meta500.backends.generated.adjoint import METHODS, differentiate
from meta500.backends.generated.interpret import run
from meta500.backends.generated.stencil import stencil
from meta500.errors import UserError

FUNCTIONS = {
    "tanh": math.tanh, "exp": math.exp, "max": max, "min": min, "abs": abs,
    "where": lambda c, a, b: a if c else b,
}  # fmt: skip


class Outside(Exception):
    pass


class Array:
    """An array that raises, or is 0, outside."""

    def __init__(self, values: np.ndarray, zero: bool) -> None:
        self.values, self.zero = values, zero

    def __getitem__(self, where: Any) -> float:
        where = where if isinstance(where, tuple) else (where,)
        if all(0 <= i < n for i, n in zip(where, self.values.shape, strict=True)):
            return float(self.values[where])
        if self.zero:
            return 0.0
        raise Outside


def evaluated(
    once: str,
    each: str,
    given: dict[str, np.ndarray],
    kept: dict[str, int],
    summed: dict[str, int],
    zero: bool,
) -> np.ndarray:
    """``once`` plus the sum of ``each`` for every element; 0 where something outside is read."""
    names = {n: float(x) if x.ndim == 0 else Array(x, zero) for n, x in given.items()} | FUNCTIONS
    result = np.zeros(tuple(kept.values()))
    for place in itertools.product(*map(range, kept.values())):
        here = names | dict(zip(kept, place, strict=True))
        try:
            total = eval(once, {}, here)
            for tap in itertools.product(*map(range, summed.values())):
                total += eval(each, {}, here | dict(zip(summed, tap, strict=True)))
        except Outside:
            continue
        result[place] = total
    return result


CASES: list[tuple[str, dict[str, tuple[int, ...]], str, dict[str, int]]] = [
    # right-hand side: what is added once, shapes, what is summed, over which axes
    (
        "a * u[i, j] + b * (u[i-1, j] + u[i+1, j] + u[i, j-1] + u[i, j+1])",
        {"u": (6, 5), "a": (), "b": ()},
        "",
        {},
    ),
    ("u[i] - 2 * u[i-2] + u[i+1] / 3", {"u": (9,)}, "", {}),
    ("", {"u": (9,), "w": (3,)}, "w[r] * u[i+r-1]", {"r": 3}),
    ("b[i]", {"u": (9,), "w": (3,), "b": (9,)}, "w[r] * u[i+2*r-2]", {"r": 3}),
    ("", {"u": (7, 8), "w": (2, 3)}, "u[i+r, j+q-1] * w[r, q]", {"r": 2, "q": 3}),
    ("u[i+1, j, k] + u[i, j-1, k] * u[i, j, k+1]", {"u": (4, 5, 3)}, "", {}),
    ("", {"u": (4, 4, 4), "w": (2, 2, 2)}, "w[r, q, t] * u[i+r, j-q, k+t]", {"r": 2, "q": 2, "t": 2}),
    ("tanh(u[i-1] * c[i]) + max(u[i], 0.1) ** 2", {"u": (8,), "c": (8,)}, "", {}),
    ("where(u[i] < u[i+1], u[i] * v[i], -u[i+1])", {"u": (8,), "v": (8,)}, "", {}),
    ("u[i] * i + exp(-u[i-1])", {"u": (6,)}, "", {}),
    ("u[i, j] * (1 + v[i, j]) - v[i+1, j+1]", {"u": (5, 5), "v": (5, 5)}, "", {}),
]


@pytest.mark.parametrize("boundary", ["interior", "zero"])
@pytest.mark.parametrize(("once", "shapes", "each", "summed"), CASES)
def test_stencils(once, shapes, each, summed, boundary) -> None:
    rng = np.random.default_rng(len(once))
    given = {n: np.asarray(rng.standard_normal(s)) for n, s in shapes.items()}
    axes = ("i", "j", "k")[: len(shapes["u"])]
    kept = dict(zip(axes, shapes["u"], strict=True))
    text = f"y[{', '.join(axes)}] = " + " + ".join(part for part in (once, each) if part)
    program = stencil(text, {**shapes, "y": shapes["u"]}, boundary=boundary, parameters=["w"] if each else ())
    wanted = evaluated(once or "0", each or "0", given, kept, summed, boundary == "zero")
    np.testing.assert_allclose(run(program, given)["y"], wanted, rtol=1e-12, atol=1e-12)
    assert program.outputs == {"y": "y"}

    names = list(shapes)
    v = {n: np.asarray(rng.standard_normal(s)) for n, s in shapes.items()}
    y_bar = rng.standard_normal(shapes["u"])
    h = 1e-6
    high, low = (run(program, {n: x + step * v[n] for n, x in given.items()})["y"] for step in (h, -h))
    difference = float((y_bar * (high - low)).sum() / (2 * h))
    for method in METHODS:
        if method == "gather":
            continue
        adjoint = differentiate(program, "y", names, cotangent="y_bar", method=method)
        values = run(adjoint, {**given, "y_bar": y_bar})
        dot = sum(float((values[adjoint.gradients[n]] * v[n]).sum()) for n in names)
        assert abs(dot - difference) < 1e-7 * (1 + abs(difference))


@pytest.mark.parametrize("boundary", ["interior", "zero"])
def test_a_linear_stencil_and_its_adjoint_are_transposed_matrices(boundary) -> None:
    n = 6
    program = stencil("v[i] = 2 * u[i] - u[i-1] + 3 * u[i+2]", {"u": (n,)}, boundary=boundary)
    matrix = np.zeros((n, n))
    for i in range(n):
        row = {i: 2.0, i - 1: -1.0, i + 2: 3.0}
        if boundary == "zero" or all(0 <= j < n for j in row):
            for j, factor in row.items():
                if 0 <= j < n:
                    matrix[i, j] += factor
    columns = [run(program, {"u": unit})["v"] for unit in np.eye(n)]
    assert np.array_equal(np.array(columns).T, matrix)
    adjoint = differentiate(program, "v", ["u"], cotangent="v_bar")
    rows = [run(adjoint, {"u": np.zeros(n), "v_bar": unit})["grad/u"] for unit in np.eye(n)]
    assert np.array_equal(np.array(rows), matrix)
    assert {s.method for s in adjoint.stages if s.method} == {"gather"}


def test_an_inner_stencil_is_one_stage_with_zeros_around_it() -> None:
    program = stencil("v[i, j] = u[i-1, j] + u[i+1, j]", {"u": (5, 4)})
    inner = [s for s in program.stages if "boundary" not in s.name]
    assert len(inner) == 1 and str(inner[0].write) == "v[i+1, j]" and not inner[0].guards
    assert [(a.name, a.size) for a in inner[0].axes] == [("i", 3), ("j", 4)]
    assert len(program.stages) == 3
    assert "stencil v[i, j] = u[i-1, j] + u[i+1, j]" in str(program)


def test_a_tensor_product_with_zeros_is_one_guarded_stage() -> None:
    program = stencil("v[i] = w[r] * u[i+r-1]", {"u": (9,), "w": (3,)}, boundary="zero", parameters=["w"])
    (stage,) = program.stages
    assert [str(g) for g in stage.guards] == ["0 <= i+r-1 < 9"] and stage.combine == "sum"
    assert program.tensors["w"].role == "parameter" and program.tensors["u"].role == "input"
    (shifted,) = stencil("v[i] = u[i-1]", {"u": (4,)}, boundary="zero").stages
    assert run(stencil("v[i] = u[i-1]", {"u": (4,)}, boundary="zero"), {"u": np.arange(1, 5)})[
        "v"
    ].tolist() == [0, 1, 2, 3]
    assert shifted.combine == "sum"


def test_strides_extents_constants_and_full_sums() -> None:
    u = np.arange(10.0)
    program = stencil("v[i] = h * u[2*i+1]", {"u": (10,), "v": (5,)}, constants={"h": 0.5})
    assert run(program, {"u": u})["v"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5]
    reverse = stencil("v[i] = u[9 - i]", {"u": (10,)}, extents={"i": 10})
    assert np.array_equal(run(reverse, {"u": u})["v"], u[::-1])
    square = stencil("s = u[i] * u[i]", {"u": (10,)})
    assert run(square, {"u": u})["s"] == 285
    spread = stencil("v[i, j] = u[i + j]", {"u": (4,)}, extents={"i": 3, "j": 2})
    assert run(spread, {"u": u[:4]})["v"].tolist() == [[0, 1], [1, 2], [2, 3]]


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("v[i] = u[i", {}, "column"),
    ("v[i] + u[i]", {}, "expected one assignment"),
    ("v[i] = u[i]; w[i] = u[i]", {}, "expected one assignment"),
    ("v[i] = uu[i]", {}, "column 8: 'uu' has no shape and is no constant; did you mean 'u'"),
    ("v[i] = u[i, i]", {}, "column 8: 'u' has shape \\[9\\], not 2 dimensions"),
    ("v[i*j] = u[i]", {}, "column 3: a product of axes"),
    ("v[2*i] = u[i]", {}, "column 1: indices on the left-hand side"),
    ("v[i, i] = u[i]", {}, "column 1: indices on the left-hand side"),
    ("v[i] = u[i*i]", {}, "column 10: a product of axes"),
    ("v[i] = u[i/2]", {}, "column 10: an index is made of"),
    ("v[i] = u[u]", {}, "column 10: 'u' is a tensor"),
    ("v[i] = sin(u[i])", {}, r"column 8: sin\(u\[i\]\) is no function"),
    ("v[i] = u[i] ** 0.3", {}, "column 16: an exponent is a whole number"),
    ("v[i] = u[i] % 2", {}, "column 8: choose"),
    ("v[i] = where(u[i], 1, 2)", {}, "column 14: a condition"),
    ("v[i] = 'text' + u[i]", {}, "column 8: 'text' is no expression"),
    ("u[i] = u[i-1]", {}, "column 8: 'u' is read and written"),
    ("v[i] = u[i-20] + u[i]", {}, "no value of i keeps"),
    ("v[i] = u[2*i + r]", {}, "column 12: the size of axis i is not known"),
    ("v[i] = w[r] * (u[i] + u[i+r])", {}, "one side is summed over nothing, the other over r"),
    ("v[i] = w[r] * u[i+r] + w[q] * u[i-q]", {}, "summed over q|summed over r"),
    ("v[i] = w[r] * u[i+r] * c[r]", {"c": (4,)}, "axis r is summed over and has sizes"),
    ("v[i] = u[i] + u[9]", {}, "leaves shape"),
    ("v[i] = z[i] + u[i]", {"z": (0,)}, "no elements"),
    ("v[i] = u[i]", {"v": (3, 3)}, "column 1: 'v' has shape"),
]


@pytest.mark.parametrize(("text", "more", "words"), WRONG)
def test_errors_name_the_text_and_the_column(text, more, words) -> None:
    with pytest.raises(UserError, match=words) as error:
        stencil(text, {"u": (9,), "w": (3,), **more})
    assert text in str(error.value)


def test_other_wrong_arguments() -> None:
    with pytest.raises(UserError, match="unknown boundary of a stencil 'periodic'"):
        stencil("v[i] = u[i]", {"u": (9,)}, boundary="periodic")
    with pytest.raises(UserError, match="parameter 'b' is not read"):
        stencil("v[i] = u[i]", {"u": (9,), "b": (9,)}, parameters=["b"])
    with pytest.raises(UserError, match="no box; use boundary='zero'"):
        stencil("v[i, j] = u[i + j]", {"u": (4,)}, extents={"i": 4, "j": 4})
    with pytest.raises(UserError, match="axis i has sizes 9 and 4"):
        stencil("v[i] = u[i]", {"u": (9,), "v": (9,)}, extents={"i": 4})
