"""Densities of ratios."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.metrics.plots.density import Density, draw_densities, kernel_density


@given(st.lists(st.floats(-3, 3), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
def test_the_density_integrates_to_one(values):
    places = np.linspace(-12, 12, 20_001)
    heights = kernel_density(values, places)
    assert (heights >= 0).all()
    assert np.trapezoid(heights, places) == pytest.approx(1, abs=1e-3)


def test_bandwidth_is_silvermans():
    values = np.random.default_rng(0).standard_normal(50)
    quartiles = np.quantile(values, [0.25, 0.75])
    width = 0.9 * min(values.std(ddof=1), (quartiles[1] - quartiles[0]) / 1.34) * 50**-0.2
    from scipy.stats import norm

    places = np.linspace(-2, 2, 9)
    expected = [np.mean(norm.pdf(place, values, width)) for place in places]
    np.testing.assert_allclose(kernel_density(values.tolist(), places), expected)


def test_panels():
    densities = [
        Density(f"network {k}", [0.8, 1.0, 2.0 + k], [0.7, 0.9, 1.9], [0.9, 1.1, 2.5]) for k in range(4)
    ]
    figure = draw_densities(densities, quantity="speedup", columns=3)
    panels = [axes for axes in figure.axes if axes.axison]
    assert [axes.get_title() for axes in panels] == [density.title for density in densities]
    assert len({axes.get_xlim() for axes in panels}) == 1
    low, high = panels[0].get_xlim()
    assert low < 0.8 and high > 5
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "interval above 1", "interval below 1", "interval around 1",
    ]  # fmt: skip
    figure.draw_without_rendering()
    assert "1" in [label.get_text() for label in panels[3].get_xticklabels()]


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [([], [], []), ([1.0], [], [1.0]), ([0.0], [0.0], [0.0]), ([float("inf")], [1], [2])],
)
def test_bad_ratios(values, low, high):
    with pytest.raises(UserError, match="density 'x'"):
        Density("x", values, low, high)


def test_nothing_to_draw():
    with pytest.raises(UserError, match="nothing to draw"):
        draw_densities([], quantity="speedup")
