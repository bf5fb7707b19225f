"""Ratios of several series side by side."""

from pathlib import Path

import pytest

from meta500.errors import UserError
from meta500.metrics.plots.bars import Ratio
from meta500.metrics.plots.speedups import draw_speedups
from meta500.metrics.plots.style import PALETTE, save


def test_draws_every_series_at_its_line(tmp_path: Path) -> None:
    points = [
        Ratio("first", 0.5, 0.4, 0.6, "alone"),
        Ratio("first", 2.0, 1.9, 2.2, "inside"),
        Ratio("second", 1.0, 0.9, 1.1, "alone"),
    ]
    figure = draw_speedups(points, quantity="speedup", below="slower", above="faster", title="title")
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["first", "second"]
    drawn = [(line.get_xdata()[0], line.get_markerfacecolor()) for line in axes.lines[1:]]
    assert [x for x, _ in drawn] == [0.5, 2.0, 1.0]
    # Filled where the interval excludes 1, in the colour of the group.
    assert [fill for _, fill in drawn] == [PALETTE[0], PALETTE[1], "white"]
    low, high = axes.get_xlim()
    assert low < 0.4 and high > 2.2
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["alone", "inside"]
    save(figure, tmp_path / "speedups.png")


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "there is no ratio"),
        ([Ratio("a", 1, 1, 1), Ratio("a", 1, 1, 1)], "two ratios for one label and group"),
        ([Ratio("a", 0.0, 0.0, 1.0)], "'a' is 0.0"),
        ([Ratio("a", 2.0, 1.0, float("inf"))], "positive numbers in order"),
    ],
)
def test_refuses(points: list[Ratio], message: str) -> None:
    with pytest.raises(UserError, match=message):
        draw_speedups(points, quantity="speedup")
