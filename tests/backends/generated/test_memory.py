"""Tensors take turns in the memory of an arena."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meta500
from meta500.backends.generated.layout import OWN, Halo, Place
from meta500.backends.generated.memory import ALIGNMENT, Arena, arrange

AROUND, NONE = Halo((0, 0, 1, 1), (0, 0, 1, 1)), Halo((), ())
LAST = 12


@st.composite
def arenas(draw) -> tuple[list[Place], dict[str, tuple[int, int]]]:
    """Places of few geometries with and without zeros around them, and when they are used."""
    places, lives = [], {}
    for number in range(draw(st.integers(0, 14))):
        size = 16 * draw(st.integers(1, 6))
        halo = draw(st.sampled_from((AROUND, AROUND, NONE)))
        c_type = draw(st.sampled_from(("real", "real", "real", "std::uint8_t")))
        place = Place(f"t{number}", OWN, c_type, (0, size // 2, size, 1), 0, size, halo)
        begin = draw(st.integers(0, LAST))
        places.append(place)
        lives[place.tensor] = (begin, draw(st.integers(begin, LAST)))
    return places, lives


def extent(place: Place) -> tuple[int, int]:
    return place.offset, place.offset + place.size * (4 if place.c_type == "real" else 1)


def meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def check(arena: Arena, places: list[Place], lives: dict[str, tuple[int, int]], clearing: bool) -> None:
    assert {p.tensor for p in places} == set(arena.places)
    for one, other in itertools.permutations(arena.places.values(), 2):
        first, second = lives[one.tensor], lives[other.tensor]
        together = first[0] <= second[1] and second[0] <= first[1]
        if meet(extent(one), extent(other)):
            assert not together
            twins = one.offset == other.offset and one.geometry == other.geometry
            if one.halo.any and not twins:
                assert clearing and one.tensor in arena.cleared
    for place in arena.places.values():
        assert place.offset % ALIGNMENT == 0
        assert extent(place)[1] <= arena.bytes
    rounded = {p.tensor: -(-(extent(p)[1] - extent(p)[0]) // ALIGNMENT) * ALIGNMENT for p in places}
    assert arena.bytes <= sum(rounded.values())
    for moment in range(LAST + 1):
        assert arena.bytes >= sum(rounded[n] for n, (b, e) in lives.items() if b <= moment <= e)


@pytest.mark.parametrize("clearing", [False, True])
@given(drawn=arenas())
def test_nobody_writes_what_another_one_needs(clearing, drawn):
    places, lives = drawn
    check(arrange(places, lives, 4, clearing), places, lives, clearing)


def test_tensors_of_one_geometry_need_no_clearing():
    places = [Place(f"t{n}", OWN, "real", (0, 32, 64, 1), 0, 64, AROUND) for n in range(4)]
    lives = {"t0": (0, 1), "t1": (1, 2), "t2": (2, 3), "t3": (3, 4)}
    arena = arrange(places, lives, 4, clearing=True)
    assert arena.bytes == 2 * 64 * 4
    assert not arena.cleared


def test_others_share_memory_where_zeros_may_be_written_again():
    large = Place("large", OWN, "real", (0, 32, 64, 1), 0, 128, AROUND)
    small = Place("small", OWN, "real", (0, 16, 32, 1), 0, 64, AROUND)
    lives = {"large": (0, 1), "small": (2, 3)}
    assert arrange([large, small], lives, 4).bytes == (128 + 64) * 4
    arena = arrange([large, small], lives, 4, clearing=True)
    assert arena.bytes == 128 * 4
    assert arena.cleared == {"large", "small"}


def test_a_network_writes_its_zeros_again():
    """Numbers that are not finite fill the memory first; the zeros between them must not be what they were."""
    model = meta500.models.unet(n=1, batch=2, size=32, depth=2, dtype="float64")
    rng = np.random.default_rng(0)
    fed = {"image": rng.standard_normal((2, 3, 32, 32)), "label": rng.integers(0, 3, (2, 32, 32))}
    spoilt = {**fed, "image": np.full_like(fed["image"], np.nan)}
    with (
        meta500.network(model, backend="numpy") as reference,
        meta500.network(model, backend="generated", precision="float64") as net,
    ):
        net.inference_and_backprop(spoilt)
        net.inference_and_backprop(fed)
        reference.inference_and_backprop(fed)
        names = [gradient for _, gradient in reference.gradient()]
        for name, ours, theirs in zip(
            names, net.fetch_tensors(names), reference.fetch_tensors(names), strict=True
        ):
            np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12, err_msg=name)
        (executable,) = net._executables.values()
        plan = executable.schedule
    cleared = [name for step in plan.steps for sweep in step.sweeps for name in sweep.cleared]
    assert cleared and len(cleared) == len(set(cleared))
    assert "zeros around" in str(plan)
