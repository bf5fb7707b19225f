"""Scattering stencils turned into gathering ones, against the scatter itself."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meta500.backends.generated.affine import Affine, Guard, affine, indices
from meta500.backends.generated.expressions import Access, Index, Load, add, mul
from meta500.backends.generated.interpret import run
from meta500.backends.generated.ir import INPUT, SET, SUM, Axis, Program, Stage, Tensor
from meta500.backends.generated.transposition import conflict, covers, gathered


def stage(shape, axes, write, value=None, guards=()) -> Stage:
    found = tuple(Axis(name, size) for name, size in axes.items())
    value = Load(Access("u", indices(axes))) if value is None else value
    return Stage("s", "test", found, Access("y", indices(write)), value, SUM, tuple(guards))


@st.composite
def scatters(draw):
    """y[s*i + d*r + e*q - p] += u[i, ..] * w[r, q, ..] in 1 to 3 dimensions, with sizes that cut at both ends."""
    rank = draw(st.sampled_from((1, 1, 2, 2, 3)))
    axes, reads, taps, write, guards, shape = {}, [], [], [], [], []
    for d in range(rank):
        size, tap = draw(st.integers(1, 5)), draw(st.integers(1, 4))
        stride = draw(st.sampled_from((1, 1, 2, 3, -1, -2)))
        step = draw(st.sampled_from((1, 1, 2, 3, -1)))
        terms = {f"i{d}": stride, f"r{d}": step}
        axes |= {f"i{d}": size, f"r{d}": tap}
        if draw(st.integers(0, 4)) == 0:
            axes[f"q{d}"], terms[f"q{d}"] = draw(st.integers(1, 3)), draw(st.sampled_from((1, 2)))
        index = Affine.of(terms, draw(st.integers(-2, 4)))
        extent = draw(st.integers(1, 9))
        reads.append(f"i{d}")
        taps += [a for a in terms if a != f"i{d}"]
        write.append(index)
        guards.append(Guard(index, 0, extent))
        shape.append(extent)
    if draw(st.booleans()):  # an axis that is summed over, and one that is kept
        axes |= {"c": 2, "k": 3}
        reads, taps, write, shape = [*reads, "c"], [*taps, "c", "k"], [*write, "k"], [*shape, 3]
    assume(math.prod(axes.values()) <= 4000)
    product = mul(Load(Access("u", indices(reads))), Load(Access("w", indices(taps))))
    # The numbers of the iterations must move with the change of variables, too.
    value = add(product, Index(Affine.of({name: n + 2 for n, name in enumerate(axes)}, 1)))
    return stage(shape, axes, write, value, guards), tuple(shape), axes, reads, taps


def program_of(stages, shape, axes, reads, taps) -> tuple[Program, dict[str, np.ndarray]]:
    program = Program("test")
    given_ = {}
    for name, own in (("u", reads), ("w", taps)):
        size = tuple(axes[a] for a in own)
        program.tensors[name] = Tensor(name, size, role=INPUT)
        given_[name] = np.random.default_rng(len(own)).standard_normal(size)
    program.tensors["y"] = Tensor("y", shape)
    program.stages = list(stages)
    return program, given_


def filled(shape) -> Stage:
    axes = {f"d{i}": n for i, n in enumerate(shape)}
    found = tuple(Axis(a, n) for a, n in axes.items())
    return Stage("fill", "test", found, Access("y", indices(axes)), Index(Affine()), SET)


@given(scatter=scatters())
@settings(max_examples=150, derandomize=True, database=None)
def test_the_gather_computes_what_the_scatter_does(scatter) -> None:
    one, shape, axes, reads, taps = scatter
    pieces = gathered(one, shape)
    assert pieces is not None
    wanted = np.zeros(shape)
    program, given_ = program_of([filled(shape), replace(one, onto=True)], shape, axes, reads, taps)
    wanted = run(program, given_)["y"]
    complete = covers(pieces, shape)
    stages = pieces if complete else [filled(shape), *(replace(piece, onto=True) for piece in pieces)]
    program, given_ = program_of(stages, shape, axes, reads, taps)
    np.testing.assert_allclose(run(program, given_)["y"], wanted, rtol=1e-11, atol=1e-11)


@given(scatter=scatters())
@settings(max_examples=80, derandomize=True, database=None)
def test_every_element_belongs_to_one_iteration_of_one_piece(scatter) -> None:
    one, shape, *_ = scatter
    pieces = gathered(one, shape)
    assert pieces is not None
    counts = np.zeros(shape, int)
    for piece in pieces:
        assert conflict(piece, shape) is None
        own = {axis.name: axis.size for axis in piece.kept}
        for point in itertools.product(*(range(n) for n in own.values())):
            at = dict(zip(own, point, strict=True))
            counts[tuple(i.constant + sum(c * at[a] for a, c in i.terms) for i in piece.write.indices)] += 1
    assert covers(pieces, shape) == bool((counts == 1).all())


def test_the_adjoint_of_a_stencil_is_the_transposed_stencil() -> None:
    index = Affine.of({"i": 1, "r": 1}, -1)
    one = stage((8,), {"i": 8, "r": 3}, [index], None, [Guard(index, 0, 8)])
    one = replace(one, value=mul(Load(Access("u", indices(["i"]))), Load(Access("w", indices(["r"])))))
    (piece,) = gathered(one, (8,))
    assert str(piece.write) == "y[w]" and str(piece.value) == "(u[-r+w+1] * w[r])"
    assert [str(g) for g in piece.guards] == ["0 <= -r+w+1 < 8"]
    assert conflict(one, (8,)).reason == "neighbouring iterations meet in i+r-1"


def test_strides_give_phases() -> None:
    index = Affine.of({"i": 2, "r": 1})
    pieces = gathered(stage((9,), {"i": 4, "r": 3}, [index], Load(Access("u", indices(["i"])))), (9,))
    assert sorted(str(piece.write.indices[0]) for piece in pieces) == ["2*w", "2*w+1"]
    assert sorted(math.prod(a.size for a in piece.reduced) for piece in pieces) == [1, 2]
    assert covers(pieces, (9,))


def test_iterations_that_only_guards_keep_inside_are_turned_round() -> None:
    """A kernel as long as its stride never overlaps, but padding moves its first element out of the tensor."""
    index = Affine.of({"i": 3, "r": 1}, -1)
    one = stage((7,), {"i": 3, "r": 3}, [index], Load(Access("u", indices(["i"]))), [Guard(index, 0, 7)])
    assert "outside" in conflict(one, (7,)).reason and conflict(one, (7,)).dimensions == (0,)
    pieces = gathered(one, (7,))
    assert len(pieces) == 3 and covers(pieces, (7,))


def test_pieces_that_add_to_the_same_elements_do_not_cover() -> None:
    """Two taps in even steps under a stride of 2: both pieces write the even elements, none the odd ones."""
    index = Affine.of({"i": 2, "r": 2, "q": 4})
    pieces = gathered(stage((12,), {"i": 6, "r": 2, "q": 2}, [index], None, [Guard(index, 0, 12)]), (12,))
    assert [str(piece.write.indices[0]) for piece in pieces] == ["2*w", "2*w"]
    assert not covers(pieces, (12,))


def test_what_cannot_be_gathered() -> None:
    # Neither i nor r is free: both occur in the other dimension, too.
    both = stage((9, 9), {"i": 4, "r": 3}, [Affine.of({"i": 1, "r": 1}), Affine.of({"i": 1, "r": 2})])
    assert "shares an axis" in conflict(both, (9, 9)).reason
    assert gathered(both, (9, 9)) is None
    square = stage((4, 4), {"i": 4}, ["i", "i"])
    assert gathered(square, (4, 4)) is None and not covers([square], (4, 4))


def test_exclusive_stages_stay_as_they_are() -> None:
    one = stage((4, 6), {"i": 4, "j": 3, "r": 2}, ["i", Affine.of({"j": 2, "r": 1})])
    assert gathered(one, (4, 6)) == [one] and covers([one], (4, 6)) and not covers([one], (4, 7))


@pytest.mark.parametrize("combine", [SET, SUM])
def test_guarded_assignments_do_not_cover(combine) -> None:
    guard = Guard(affine("i"), 1, 3)
    one = replace(stage((4,), {"i": 4}, ["i"], None, [guard]), combine=combine)
    assert covers([one], (4,)) == (combine == SUM)
