"""Draws the road through ExaStencils, exastencils.png: `python docs/images/exastencils.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

OURS, FILES, OTHERS, CHECK = "#dbe9f6", "#ffffff", "#f3e3cc", "#dcefdc"
INK, SOFT, GREEN = "#222222", "#666666", "#2e7d32"
_PITCH = 0.31  # of lines of small text
Box = tuple[float, float, float, float]


def box(axes: Axes, place: Box, title: str, text: str = "", fill: str = OURS) -> None:
    """A box at (left, bottom, width, height): a process with round corners, files with sharp ones."""
    left, bottom, width, height = place
    if fill == FILES:
        axes.add_patch(Rectangle((left, bottom), width, height, facecolor=fill, edgecolor=INK, lw=0.8))
    else:
        style = "round,pad=0,rounding_size=0.12"
        axes.add_patch(
            FancyBboxPatch((left, bottom), width, height, style, facecolor=fill, edgecolor=INK, lw=0.8)
        )
    middle, lines = left + width / 2, text.count("\n") + 1 if text else 0
    top = bottom + height / 2 + _PITCH / 2 * lines
    axes.text(middle, top, title, ha="center", va="center", fontsize=8, weight="bold", color=INK)
    if text:
        axes.text(middle, top - 0.19, text, ha="center", va="top", fontsize=7, color=INK, linespacing=1.25)


def arrow(axes: Axes, *points: tuple[float, float], check: bool = False) -> None:
    """A line through points, with a head at the last one; broken for a check."""
    look: dict[str, Any] = {
        "color": GREEN if check else INK,
        "lw": 1.1,
        "linestyle": (0, (4, 2)) if check else "-",
    }
    axes.plot(*zip(*points[:-1], strict=True), solid_capstyle="round", **look)
    head = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9, **look}
    axes.annotate("", xy=points[-1], xytext=points[-2], arrowprops=head)


def draw(axes: Axes) -> None:
    """The whole picture, in units of about 1 cm."""
    axes.add_patch(Rectangle((0, 5.15), 18.2, 3.95, facecolor="none", edgecolor=SOFT, lw=0.6, ls=":"))
    axes.text(0.12, 8.93, "meta500 generate exaslang", fontsize=7, color=SOFT, va="center", style="italic")
    box(
        axes,
        (0.25, 7.1, 3.2, 1.5),
        "network",
        "net.py (PyTorch module),\nONNX file, or the name\nof a model of ours",
        FILES,
    )
    box(
        axes,
        (0.25, 5.4, 3.2, 1.5),
        "train.toml",
        "data, batch size, loss,\noptimizer, epochs,\nprecision",
        FILES,
    )
    box(axes, (4.25, 6.25, 2.5, 1.5), "graph", "typed operations,\nwith the loss")
    box(
        axes,
        (7.55, 5.9, 3.1, 2.2),
        "stages",
        "loop nests: forward,\nderived adjoints;\nfused (bias, ReLU,\nconcatenation)",
    )
    box(axes, (11.45, 6.1, 2.6, 1.8), "syntax tree", "of layer 4:\nfields on levels,\nloops over cells")
    box(
        axes,
        (14.85, 5.4, 3.1, 3.2),
        "folder",
        "Net.exa4\nNet.knowledge\nNet.platform\nNet.settings\nmeta500_data.h\nmeta500_network.h\n"
        "weights.bin, order.bin\ndata/",
        FILES,
    )
    arrow(axes, (3.45, 7.85), (3.85, 7.85), (3.85, 7.2), (4.25, 7.2))
    arrow(axes, (3.45, 6.15), (3.85, 6.15), (3.85, 6.8), (4.25, 6.8))
    arrow(axes, (6.75, 7.0), (7.55, 7.0))
    arrow(axes, (10.65, 7.0), (11.45, 7.0))
    arrow(axes, (14.05, 7.0), (14.85, 7.0))

    box(axes, (14.85, 0.5, 3.1, 1.5), "ExaStencils", "an external program;\nwrites C++", OTHERS)
    box(axes, (11.45, 0.5, 2.6, 1.5), "C++", "serial, OpenMP,\nMPI, both, CUDA", OTHERS)
    box(axes, (7.55, 0.5, 3.1, 1.5), "training", "the compiled program:\nlosses, trained.bin", OTHERS)
    box(axes, (0.25, 0.5, 3.2, 1.5), "trained.onnx", "the network with its\ntrained weights", FILES)
    arrow(axes, (17.2, 5.4), (17.2, 2.0))
    arrow(axes, (14.85, 1.25), (14.05, 1.25))
    arrow(axes, (11.45, 1.25), (10.65, 1.25))
    arrow(axes, (7.55, 1.25), (3.45, 1.25))
    axes.text(5.5, 1.38, "--import", ha="center", va="bottom", fontsize=7, family="monospace", color=INK)

    box(
        axes,
        (11.45, 2.85, 4.1, 1.5),
        "parser and interpreter",
        "the text read back, run\nin float64, block by block",
        fill=CHECK,
    )
    box(
        axes,
        (4.25, 2.85, 4.4, 1.5),
        "numpy backend",
        "the same batches: losses of all\nepochs, weights at the end",
        fill=CHECK,
    )
    arrow(axes, (15.2, 5.4), (15.2, 4.35), check=True)
    arrow(axes, (11.45, 3.6), (8.65, 3.6), check=True)
    axes.text(10.05, 3.73, "--check", ha="center", va="bottom", fontsize=7, family="monospace", color=GREEN)
    axes.text(10.05, 3.46, "to 1e-10", ha="center", va="top", fontsize=7, color=GREEN)
    arrow(axes, (8.2, 2.0), (8.2, 2.85), check=True)
    axes.text(8.32, 2.52, "--run", ha="left", va="center", fontsize=7, family="monospace", color=GREEN)
    axes.text(
        9.42, 2.52, "to 1e-9 (float64), 5e-3 (float32)", ha="left", va="center", fontsize=7, color=GREEN
    )
    arrow(axes, (5.5, 6.25), (5.5, 4.35))
    axes.set_xlim(-0.1, 18.3)
    axes.set_ylim(0.3, 9.2)


def main() -> None:
    """Write the picture beside this file."""
    figure = plt.figure(figsize=(7.2, 3.5))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    draw(axes)
    figure.savefig(Path(__file__).with_suffix(".png"), dpi=220)


if __name__ == "__main__":
    main()
