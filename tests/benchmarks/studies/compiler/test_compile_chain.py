"""Cutting networks: whatever is compiled, stopped or marked, the values are the network's."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500 import models
from meta500.backends.torch.module import torch_module
from meta500.benchmarks.studies.compiler import instruments
from meta500.benchmarks.studies.compiler.chain import (
    Region,
    assembled,
    even_borders,
    layers_of,
    live,
    part,
)
from meta500.errors import UserError

OPTIONS = {
    "googlenet": {"size": 32, "small_images": True, "auxiliary": False, "classes": 5},
    "mobilenet_v2": {"size": 32, "classes": 5},
    "unet": {"size": 16},
}


@pytest.fixture(scope="module")
def networks():
    """Module, images and result by name; branches run past one another in all of them."""
    found = {}
    for name, options in OPTIONS.items():
        module = torch_module(models.create(name, batch=1, loss=False, **options)).requires_grad_(False)
        images = torch.randn(
            1, 3, options["size"], options["size"], generator=torch.Generator().manual_seed(0)
        )
        with torch.no_grad():
            found[name] = (module, images, module(images))
    return found


def region(module, begin, end):
    inner, _ = part(module, begin, end)

    def run(*values):
        return inner(*values)

    return Region(begin, end, run)


@given(name=st.sampled_from(sorted(OPTIONS)), data=st.data())
@settings(max_examples=25, deadline=None)
def test_regions_change_nothing(networks, name, data):
    module, images, expected = networks[name]
    count = len(layers_of(module))
    cuts = sorted(data.draw(st.sets(st.integers(0, count), min_size=2, max_size=6)))
    regions = [region(module, a, b) for a, b in itertools.pairwise(cuts) if data.draw(st.booleans())]
    watch = instruments.Stopwatch()
    run = assembled(module, regions, before=watch.start, after=dict.fromkeys(cuts[1:], watch.mark))
    with torch.no_grad():
        assert torch.equal(run(images), expected)
    assert watch.seconds(1).shape == (1, len(cuts) - 1)


@given(name=st.sampled_from(sorted(OPTIONS)), data=st.data())
@settings(max_examples=15, deadline=None)
def test_prefixes_hold_the_values_that_later_layers_need(networks, name, data):
    module, images, expected = networks[name]
    layers = layers_of(module)
    end = data.draw(st.integers(1, len(layers) - 1))
    start = data.draw(st.integers(0, end - 1))
    rest, inputs = part(module, end, len(layers))
    with torch.no_grad():
        values = assembled(module, [region(module, start, end)], end=end)(images)
        kept = dict(zip(live(module, end), values, strict=True))
        assert set(inputs) <= {*kept, *(n for n in module.graph.nodes if n.op == "placeholder")}
        given_values = [kept.get(node, images) for node in inputs]
        assert torch.equal(rest(*given_values)[0], expected)


def test_what_does_not_fit_is_refused(networks):
    module, _, _ = networks["unet"]
    count = len(layers_of(module))
    for regions, options in (
        ([region(module, 0, 4), region(module, 3, 6)], {}),
        ([region(module, 2, 6)], {"end": 4}),
        ([region(module, 2, 6)], {"after": {4: lambda: None}}),
        ([], {"after": {count + 1: lambda: None}}),
    ):
        with pytest.raises(UserError, match="do not fit into"):
            assembled(module, regions, **options)
    with pytest.raises(UserError, match=f"layers 3 to 3 of {count}"):
        part(module, 3, 3)


@given(st.lists(st.floats(0, 5), min_size=1, max_size=30), st.integers(1, 40))
@settings(max_examples=150, deadline=None)
def test_borders(seconds, count):
    borders = even_borders(seconds, count)
    assert borders[0] == 0 and borders[-1] == len(seconds)
    assert len(borders) == min(count, len(seconds)) + 1
    assert all(a < b for a, b in itertools.pairwise(borders))


def test_borders_spread_time_evenly():
    assert even_borders([1.0] * 12, 4) == (0, 3, 6, 9, 12)
    assert even_borders([9.0, 1, 1, 1, 9, 9, 1, 1], 3)[1:3] == (3, 5)


def test_timer_cost_is_that_of_a_mark():
    found = instruments.timer_cost()
    assert 0 < found.low <= found.value <= found.high < 1e-3


def test_waiting_comes_before_each_reading_of_the_clock():
    waits = []
    watch = instruments.Stopwatch(lambda: waits.append(len(watch.runs[-1]) if watch.runs else 0))
    watch.start()
    watch.mark()
    watch.mark()
    assert waits == [0, 1, 2]


def test_profiler_ranges(networks):
    module, images, _ = networks["unet"]
    count = len(layers_of(module))
    ranges = instruments.Ranges(2)
    run = assembled(module, before=ranges.start, after={20: ranges.mark, count: ranges.mark})
    with torch.no_grad():
        found = instruments.profiled(lambda: run(images), None, 2, "cpu")
    assert found["layers"].shape == (2,) and (found["layers"] > 0).all()
    assert found["layers"].sum() <= found["time"] * 1.01
    assert 0 < found["self"]["cpu"] <= found["time"] * 1.01


def test_rounds_are_shuffled_and_the_first_one_dropped():
    calls = []
    actions = {name: lambda name=name: calls.append(name) or len(calls) for name in "abc"}
    found = instruments.in_rounds(actions, 4)
    assert len(calls) == 15 and all(len(v) == 4 for v in found.values())
    rounds = np.array(calls).reshape(5, 3)
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds.tolist()) and len({tuple(r) for r in rounds}) > 1
    assert min(min(v) for v in found.values()) == 4
