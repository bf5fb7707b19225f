"""The meaning of stages: the vectorised interpreter against one that runs an iteration at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.backends.generated.affine import Affine, Guard, affine, indices
from meta500.backends.generated.expressions import (
    ONE,
    Access,
    Apply,
    Constant,
    Expr,
    Index,
    Load,
    Result,
    add,
    call,
    mul,
    select,
)
from meta500.backends.generated.interpret import run, run_stage
from meta500.backends.generated.ir import (
    CONSTANT,
    INPUT,
    MAX,
    SET,
    SUM,
    Axis,
    Program,
    Stage,
    Tensor,
    leaves,
    without_unit_axes,
)

SCALAR = {
    "add": lambda a, b: a + b, "mul": lambda a, b: a * b, "less": lambda a, b: a < b, "tanh": math.tanh,
    "select": lambda c, a, b: a if c else b,
}  # fmt: skip


def index(expr: Affine, point: dict[str, int]) -> int:
    return expr.constant + sum(c * point[a] for a, c in expr.terms)


def value(expr: Expr, point: dict[str, int], tensors: dict[str, np.ndarray], result: float = 0.0) -> float:
    if isinstance(expr, Constant):
        return expr.value
    if isinstance(expr, Load):
        return float(tensors[expr.access.tensor][tuple(index(i, point) for i in expr.access.indices)])
    if isinstance(expr, Index):
        return index(expr.index, point)
    if isinstance(expr, Result):
        return result
    assert isinstance(expr, Apply)
    return SCALAR[expr.function](*(value(a, point, tensors, result) for a in expr.arguments))


def points(axes: tuple[Axis, ...]) -> list[dict[str, int]]:
    names = [axis.name for axis in axes]
    return [dict(zip(names, p, strict=True)) for p in itertools.product(*(range(a.size) for a in axes))]


def one_by_one(stage: Stage, tensors: dict[str, np.ndarray]) -> None:
    target = tensors[stage.write.tensor]
    if stage.combine != SET and not stage.onto:
        for point in points(stage.kept):
            start = -math.inf if stage.combine == MAX else 0.0
            start = start if stage.initial is None else value(stage.initial, point, tensors)
            target[tuple(index(i, point) for i in stage.write.indices)] = start
    for point in points(stage.axes):
        if not all(g.low <= index(g.index, point) < g.high for g in stage.guards):
            continue
        place = tuple(index(i, point) for i in stage.write.indices)
        new = value(stage.value, point, tensors)
        if stage.combine == SET:
            target[place] = new
        elif stage.combine == SUM:
            target[place] += new
        else:
            target[place] = max(target[place], new)
    if stage.finish is not None:
        for point in points(stage.kept):
            place = tuple(index(i, point) for i in stage.write.indices)
            target[place] = value(stage.finish, point, tensors, float(target[place]))


@st.composite
def stages(draw):
    n, m, k = (draw(st.integers(1, 4)) for _ in range(3))
    axes = {"i": n, "j": m, "r": k}
    u, v = Load(Access("u", indices(["i", Affine.of({"j": 1, "r": 1})]))), Load(Access("v", indices(["r"])))
    choices = [
        mul(u, v),
        add(u, Index(Affine.of({"i": 2, "r": -1}))),
        select(call("less", u, v), call("tanh", u), ONE),
        Constant(2.0),
    ]
    write = draw(
        st.sampled_from((["i", "j"], ["j", "i"], [affine("i") * -1 + (n - 1), "j"], ["i", 0], [0, 0]))
    )
    shape = tuple(1 + max(i.bounds(axes)[1] for i in (part,)) for part in indices(write))
    guards = []
    if draw(st.booleans()):
        guards.append(Guard(Affine.of({"j": 1, "r": 1}, -1), 0, m))
    kept = {a for part in indices(write) for a in part.axes}
    combine = draw(st.sampled_from((SUM, MAX)))
    own = Load(Access("w", indices(["i" if "i" in kept else 0])))
    stage = Stage(
        "s", "test", tuple(Axis(a, x) for a, x in axes.items()), Access("y", indices(write)),
        draw(st.sampled_from(choices)), combine, tuple(guards),
        initial=draw(st.sampled_from((None, own))),
        onto=False,
        finish=draw(st.sampled_from((None, mul(Result(), own)))),
    )  # fmt: skip
    if draw(st.booleans()):
        stage = replace(stage, onto=True, initial=None)
    return stage, shape, axes


@given(case=stages(), seed=st.integers(0, 99))
@settings(max_examples=150, derandomize=True, database=None)
def test_stages(case, seed) -> None:
    stage, shape, axes = case
    rng = np.random.default_rng(seed)
    tensors = {
        "u": rng.standard_normal((axes["i"], axes["j"] + axes["r"])),
        "v": rng.standard_normal(axes["r"]),
        "w": rng.standard_normal(axes["i"]),
        "y": rng.standard_normal(shape),
    }
    wanted = {name: array.copy() for name, array in tensors.items()}
    one_by_one(stage, wanted)
    for form in (stage, without_unit_axes(stage).simplified()):
        found = {name: array.copy() for name, array in tensors.items()}
        run_stage(form, found)
        np.testing.assert_allclose(found["y"], wanted["y"], rtol=1e-13, atol=1e-13)


def program(stage: Stage, **tensors: Any) -> Program:
    found = Program("test", stages=[stage])
    for name, (shape, dtype, role) in tensors.items():
        found.tensors[name] = Tensor(name, shape, dtype, role)
    return found


def test_assignments_and_what_nobody_writes() -> None:
    stage = Stage(
        "y", "test", (Axis("i", 4),), Access("y", indices([affine("i") + 1])), Load(Access("u", indices(["i"]))),
        guards=(Guard(affine("i"), 1, 3),),
    )  # fmt: skip
    found = program(stage, u=((4,), "real", INPUT), y=((6,), "real", "value"), z=((2,), "int64", "value"))
    values = run(found, {"u": np.arange(4)})
    np.testing.assert_array_equal(values["y"], [np.nan, np.nan, 1, 2, np.nan, np.nan])
    assert values["z"].tolist() == [0, 0] and values["z"].dtype == np.int64
    assert run(found, {"u": np.arange(4)}, np.float32)["y"].dtype == np.float32
    with pytest.raises(KeyError, match="u"):
        run(found, {})


def test_constants_have_their_shape_and_type() -> None:
    stage = Stage(
        "y", "test", (Axis("i", 3),), Access("y", indices(["i"])), Load(Access("c", indices(["i"])))
    )
    found = program(stage, c=((3,), "real", CONSTANT), y=((3,), "real", "value"))
    found.constants["c"] = np.array([[1, 2, 3]], np.float32)
    assert run(found, {})["y"].tolist() == [1, 2, 3]


def test_an_index_outside_of_a_tensor_is_an_error() -> None:
    stage = Stage(
        "y", "test", (Axis("i", 4),), Access("y", indices(["i"])), Load(Access("u", indices([affine("i") + 1])))
    )  # fmt: skip
    found = program(stage, u=((4,), "real", INPUT), y=((4,), "real", "value"))
    with pytest.raises(IndexError, match=r"u\[i\+1\]: index i\+1 leaves 0\.\.3"):
        run(found, {"u": np.zeros(4)})
    assert "u[i+1] runs from 1 to 4" in leaves(stage, found.tensors)
    guarded = replace(stage, guards=(Guard(affine("i"), 0, 3),))
    assert leaves(guarded, found.tensors) == ""
    short = replace(guarded, write=Access("y", ()))
    assert "for shape [4]" in leaves(short, found.tensors)


@pytest.mark.parametrize(
    ("row", "largest", "winner"),
    [
        ([1.0, 3.0, 2.0, 3.0], 3.0, 1), ([-math.inf] * 4, -math.inf, 0), ([1.0, math.nan, 5.0, math.nan], math.nan, 3),
        ([0.0, -0.0, 0.0, 0.0], 0.0, 0),
    ],
)  # fmt: skip
def test_the_first_winner_of_equal_ones_and_the_last_nan(row, largest, winner) -> None:
    stage = Stage(
        "y", "test", (Axis("i", 1), Axis("r", 4)), Access("y", indices(["i"])), Load(Access("u", indices(["r"]))), MAX,
        winner=(Access("k", indices(["i"])), affine("r")),
    )  # fmt: skip
    found = program(stage, u=((4,), "real", INPUT), y=((1,), "real", "value"), k=((1,), "int32", "value"))
    values = run(found, {"u": np.array(row)})
    np.testing.assert_array_equal(values["y"], [largest])
    assert values["k"].tolist() == [winner]


def test_uniform_numbers_depend_on_the_element_only() -> None:
    def drawn(first: int) -> np.ndarray:
        number = call("uniform", Index(affine("i") + first))
        stage = Stage("y", "test", (Axis("i", 4000),), Access("y", indices(["i"])), number)
        return run(program(stage, y=((4000,), "real", "value")), {})["y"]

    y = drawn(0)
    assert np.array_equal(y[100:], drawn(100)[:-100])
    assert (y >= 0).all() and (y < 1).all() and len(np.unique(y)) == 4000
    assert abs(y.mean() - 0.5) < 5 * math.sqrt(1 / 12 / 4000)
    assert abs(np.corrcoef(y[1:], y[:-1])[0, 1]) < 5 / math.sqrt(4000)


def test_a_program_prints_readably() -> None:
    stage = Stage(
        "y", 'Conv "c"', (Axis("k", 2), Axis("i", 4), Axis("r", 3)), Access("y", indices(["k", "i"])),
        mul(Load(Access("x", indices([Affine.of({"i": 1, "r": 1}, -1)]))), Load(Access("w", indices(["k", "r"])))),
        SUM, (Guard(Affine.of({"i": 1, "r": 1}, -1), 0, 4),), initial=Load(Access("b", indices(["k"]))),
    )  # fmt: skip
    found = program(stage, x=((4,), "real", INPUT), y=((2, 4), "real", "value"))
    found.outputs["out"] = "y"
    assert str(found).splitlines() == [
        "program test",
        "  input     real  x[4]",
        "  value     real  y[2, 4]",
        "",
        'y  # Conv "c"',
        "  for k<2, i<4, r<3 where 0 <= i+r-1 < 4",
        "    y[k, i] += x[i+r-1] * w[k, r]   from b[k]",
        "",
        "outputs: out <- y",
    ]
    assert found.readers() == {"x": [0], "w": [0], "b": [0]} and found.writers() == {"y": [0]}
    assert [a.name for a in stage.reduced] == ["r"] and stage.multiplications == 24
