"""The PyTorch compiler on matrix products, convolutions and vision networks, interpreted against compiled.

After A. Goldfarb, Evaluating the PyTorch Compiler in the Vision Domain (McGill University, 2024).

What the columns of its rows hold (those of single layers: see :mod:`~.timing`):

- mode: "eager" is interpreted; else the mode of torch.compile. NumPy's rows have none.
- phase: "product", a matrix product, its size in ``node``; "single convolution", of the ablation;
  "convolution alone" and "convolution in the network", those of ResNet-50; "block of convolutions", their
  number and kernel in ``node``; "end to end", an inference of a whole network.
- quantity: "time" of a call without compile time; "ratio" to "torch eager", by round; "first_call" in a fresh
  process with empty caches, compile time included; "error" of the compiled result against the interpreted one
  (the error against float64 stands in the rows "time").
- protocol: "interleaved"; "interleaved, with rests" (NumPy against PyTorch); "profiler, interleaved"; "fresh
  process".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meta500.benchmarks.studies.compiler.settings import Settings

if TYPE_CHECKING:
    from meta500.benchmarks.studies.study import Study
    from meta500.metrics.report import Section
    from meta500.metrics.rows import Row

__all__ = ["Settings", "plan", "sections"]


def plan(settings: Settings) -> Study:
    """The pieces of work.

    Raises:
        UserError: settings that can't be measured.
    """
    from meta500.benchmarks.studies.compiler.pieces import plan as made

    return made(settings)


def sections(rows: Sequence[Row]) -> list[Section]:
    """The report, computed from the rows alone."""
    from meta500.benchmarks.studies.compiler.report import sections as made

    return made(rows)
