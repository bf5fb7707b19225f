"""Bars in order of length."""

import pytest

from meta500.errors import UserError
from meta500.metrics.plots import Part, draw_ranking, save

PARTS = [
    Part("a", "map", 1.0, "(10%)"),
    Part("decoder1.conv1, its gradient by " + "a name that is long " * 4, "Winograd", 7.0, "(70%)"),
    Part("c", "map", 2.0, "(20%)"),
]


def look(bar):
    return bar.get_facecolor(), bar.get_hatch()


def test_the_longest_bar_is_on_top_and_groups_have_their_colours():
    figure = draw_ranking(PARTS, quantity="time", unit="ms", groups=("stencil", "Winograd"), title="What")
    (axes,) = figure.axes
    assert [bar.get_width() for bar in axes.patches] == [7.0, 2.0, 1.0]
    heights = [bar.get_y() for bar in axes.patches]
    assert heights == sorted(heights) and axes.yaxis_inverted()
    first, second, third = map(look, axes.patches)
    assert second == third != first
    assert [t.get_text() for t in axes.texts] == ["7.00 (70%)", "2.00 (20%)", "1.00 (10%)"]
    (legend,) = figure.legends
    assert [t.get_text() for t in legend.get_texts()] == ["Winograd", "map"]
    # The same colour where other groups are shown.
    other = draw_ranking(PARTS[1:2], quantity="time", unit="ms", groups=("stencil", "Winograd"))
    assert look(other.axes[0].patches[0]) == first


def test_every_text_lies_inside_of_the_axes(tmp_path):
    figure = draw_ranking(PARTS, quantity="time", unit="ms")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert all(t.get_window_extent().x1 <= axes.get_window_extent().x1 for t in axes.texts)
    assert all(label.get_window_extent().x0 >= 0 for label in axes.get_yticklabels())
    assert [p.name for p in save(figure, tmp_path / "ranking.pdf")] == ["ranking.pdf"]


def test_many_groups_look_different():
    parts = [Part(str(k), f"group {k}", 1.0 + k) for k in range(20)]
    (axes,) = draw_ranking(parts, quantity="time", unit="ms").axes
    assert len({look(bar) for bar in axes.patches}) == 20


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_bad_values_are_refused(value):
    with pytest.raises(UserError, match="'x' has the value"):
        draw_ranking([Part("x", "map", value)], quantity="time", unit="ms")
    with pytest.raises(UserError, match="nothing to draw"):
        draw_ranking([], quantity="time", unit="ms")
