"""Exclusive reads, against the enumeration of all iterations."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meta500.backends.generated.adjoint import differentiate
from meta500.backends.generated.affine import Affine, Guard, indices
from meta500.backends.generated.exclusive_read import (
    EXCLUSIVE,
    SHARED,
    UNKNOWN,
    Reading,
    exclusive,
    exclusive_read,
    exclusive_write,
)
from meta500.backends.generated.expressions import Access, Load, add
from meta500.backends.generated.ir import Axis, Stage
from meta500.backends.generated.stencil import stencil
from meta500.backends.generated.transposition import conflict
from meta500.errors import UserError


def value(index: Affine, point: dict[str, int]) -> int:
    return index.constant + sum(c * point[a] for a, c in index.terms)


def element(access: Access, point: dict[str, int]) -> tuple[int, ...]:
    return tuple(value(index, point) for index in access.indices)


def allowed(guards, point) -> bool:
    return all(guard.low <= value(guard.index, point) < guard.high for guard in guards)


def by_enumeration(readings, sizes, parallel) -> bool:
    """Whether no two iterations that differ in a parallel axis touch the same element."""
    owners: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for values in itertools.product(*(range(size) for size in sizes.values())):
        point = dict(zip(sizes, values, strict=True))
        for reading in readings:
            if allowed(reading.guards, point):
                mine = tuple(point[a] for a in parallel)
                owners.setdefault(element(reading.access, point), set()).add(mine)
    return all(len(iterations) == 1 for iterations in owners.values())


@st.composite
def loops(draw):
    """Up to four axes, up to three accesses with up to three affine indices each, and guards."""
    names = "ijrq"[: draw(st.integers(1, 4))]
    sizes = {name: draw(st.integers(1, 6)) for name in names}
    assume(math.prod(sizes.values()) <= 400)
    coefficient = st.sampled_from((-2, -1, 0, 0, 0, 1, 1, 1, 2, 3, 6))

    def index() -> Affine:
        return Affine.of({name: draw(coefficient) for name in names}, draw(st.integers(-3, 3)))

    guards = []
    for _ in range(draw(st.sampled_from((0, 0, 1, 2)))):
        low = draw(st.integers(-3, 3))
        guards.append(Guard(index(), low, low + draw(st.integers(0, 8))))
    dimensions = draw(st.integers(1, 3))
    readings = [
        Reading(Access("u", tuple(index() for _ in range(dimensions))), tuple(guards))
        for _ in range(draw(st.sampled_from((1, 1, 1, 2, 3))))
    ]
    parallel = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return readings, sizes, parallel


@given(loop=loops())
@settings(max_examples=400, derandomize=True, database=None, deadline=None)
def test_the_verdict_is_that_of_all_iterations(loop) -> None:
    readings, sizes, parallel = loop
    found = exclusive(readings, sizes, parallel)
    assert found.verdict == (EXCLUSIVE if by_enumeration(readings, sizes, parallel) else SHARED)
    if found.witness is None:
        return
    first, second = dict(found.witness.first), dict(found.witness.second)
    assert any(first[axis] != second[axis] for axis in parallel)
    for point in (first, second):
        assert all(0 <= point[name] < size for name, size in sizes.items())
        reads = {element(one.access, point) for one in readings if allowed(one.guards, point)}
        assert found.witness.element in reads


def test_the_three_loops_of_the_slides() -> None:
    """b(i) = sin(c(i)): yes; b(i) = a + c(i): no; a window whose size only the run knows: it depends."""
    first = stencil("b[i] = tanh(c[i])", {"c": (10,)}).stages[-1]
    assert exclusive_read(first, "c", ["i"]).verdict == EXCLUSIVE
    second = stencil("b[i] = a + c[i]", {"a": (), "c": (10,)}).stages[-1]
    assert exclusive_read(second, "c", ["i"]).verdict == EXCLUSIVE
    shared = exclusive_read(second, "a", ["i"])
    assert shared.verdict == SHARED and shared.witness.element == ()
    for size, verdict in ((0, EXCLUSIVE), (1, SHARED), (4, SHARED)):
        window = [Reading(Access("c", (Affine.of({"i": 1, "j": 1}),)))]
        assert exclusive(window, {"i": 2, "j": 2 * size + 1}, ["i"]).verdict == verdict
    unknown = exclusive(window, {"i": 2, "j": None}, ["i"])
    assert unknown.verdict == UNKNOWN and "size of j" in unknown.reason
    # With nothing but the parallel axis in the index no size matters.
    assert exclusive([Reading(Access("c", indices(["i"])))], {"i": 9, "j": None}, ["i"]).verdict == EXCLUSIVE
    fixed = [Reading(Access("c", indices([0])))]
    assert exclusive(fixed, {"i": 9, "j": None}, ["i"]).verdict == SHARED


def test_reads_of_several_terms_count_together() -> None:
    """Every load of u[i], u[i-1] is exclusive by itself, both together are not."""
    stage = stencil("v[i] = u[i] - u[i-1]", {"u": (9,)}).stages[-1]
    found = exclusive_read(stage, "u", ["i"])
    assert found.verdict == SHARED
    first, second = dict(found.witness.first), dict(found.witness.second)
    assert abs(first["i"] - second["i"]) == 1
    for load in stage.loads():
        assert exclusive([Reading(load.access)], stage.sizes, ["i"]).verdict == EXCLUSIVE


def test_large_loops_are_decided_at_once() -> None:
    """A convolution with millions of iterations: exclusive over images and not over rows and filters."""
    write = Access("y", indices(["n", "k", "i", "j"]))
    rows, columns = Affine.of({"i": 1, "r": 1}, -1), Affine.of({"j": 1, "q": 1}, -1)
    read = Load(Access("x", (*indices(["n", "c"]), rows, columns)))
    weight = Load(Access("w", indices(["k", "c", "r", "q"])))
    sizes = {"n": 8, "k": 64, "i": 512, "j": 512, "c": 64, "r": 3, "q": 3}
    stage = Stage("conv", "Conv", tuple(Axis(*pair) for pair in sizes.items()), write, add(read, weight))
    stage = replace(stage, combine="sum", guards=(Guard(rows, 0, 512), Guard(columns, 0, 512)))
    found = {(t, a): exclusive_read(stage, t, [a]).verdict for t in ("x", "w") for a in "nkij"}
    exclusive_ones = {key for key, verdict in found.items() if verdict == EXCLUSIVE}
    assert exclusive_ones == {("x", "n"), ("w", "k")}
    assert {found[key] for key in found.keys() - exclusive_ones} == {SHARED}
    assert {a for a in sizes if exclusive_write(stage, [a]).verdict == EXCLUSIVE} == set("nkij")


TEXTS = [
    ("v[i] = w[r] * u[i+r-1]", {"u": (9,), "w": (3,)}),
    ("v[i] = w[r] * u[3*i+r]", {"u": (12,), "w": (3,), "v": (4,)}),
    ("v[i] = u[8-i] * u[8-i]", {"u": (9,), "v": (9,)}),
    ("v[i, j] = w[r] * u[i+r, 2*j]", {"u": (6, 8), "w": (2,), "v": (5, 4)}),
    ("s = u[i] * w[i]", {"u": (9,), "w": (9,)}),
]


@pytest.mark.parametrize(("text", "shapes"), TEXTS)
def test_an_adjoint_scatters_without_races_where_its_primal_read_exclusively(text, shapes) -> None:
    """The adjoint of one load writes what the load read; the backend's own test agrees with both."""
    program = stencil(text, shapes)
    (primal,) = [s for s in program.stages if not s.name.endswith("boundary")]
    adjoint = differentiate(program, primal.write.tensor, ["u"], cotangent="bar", method="atomics")
    (scatter,) = [s for s in adjoint.stages if s.origin.startswith("adjoint") and s.write.tensor == "grad/u"]
    for axis in primal.sizes:
        verdict = exclusive_write(scatter, [axis]).verdict
        assert verdict == exclusive_read(primal, "u", [axis]).verdict, axis
    if conflict(scatter, shapes["u"]) is None:
        kept = [axis.name for axis in scatter.kept]
        assert exclusive_read(primal, "u", kept).verdict == EXCLUSIVE


def test_wrong_names_are_told() -> None:
    stage = stencil("v[i] = u[i]", {"u": (9,)}).stages[-1]
    with pytest.raises(UserError, match="no axis 'k'; its axes are i"):
        exclusive_read(stage, "u", ["k"])
    with pytest.raises(UserError, match="does not read 'b'"):
        exclusive_read(stage, "b", ["i"])
