"""Parallel adjoints: gather, atomics, private copies and serial code for the adjoints of stencils.

Source: J. Hückelheim and P. Hovland, "Automatic Differentiation of Parallelised Convolutional Neural
Networks: Lessons from Adjoint PDE Solvers", 2017.

Subjects are stencils (linear ones of 3 and of 5 points in 1-D, of 3 x 3 and 5 x 5 points in 2-D, the star of
5 points as the sum of one along each dimension, and a step of the viscous Burgers equation, which is not
linear) and the convolutions of the U-Net. The generated backend derives, compiles and runs each adjoint in
these forms:

- "gather": the loop turned round by transposition, so that every element collects its own sum;
- "reduction": the loop as it stands, every thread adds into a copy of its own, the copies are added up;
- "atomics": the loop as it stands, all threads add into one array, one at a time;
- "serial gather", "serial scatter": the first and the last without OpenMP and without atomic additions.

Vocabulary of the rows (level 0): ``model`` "stencil", "unet-N" or "example"; ``operator`` "Stencil", "Conv"
or "ConvTranspose"; ``node`` the subject; ``phase`` "input gradient" or "weight gradient"; ``mode`` the form.

- "time": seconds of the adjoint, clearing the gradient included; error and verdict against float64.
- "ratio": of times, paired by round. Baselines: "serial scatter"; "1 thread", the same form; "gather", with
  as many threads.
- "error": against float64. "differing_elements": share of elements that differ in a bit from those of "serial
  scatter". "differing_runs": share of repeated runs whose result differs in a bit from the first one.
- "private_memory": bytes of private copies; ``protocol`` "predicted" from the loops, "allocated" by the
  schedule; "resident": bytes by which a process of its own grows, for "reduction" and for "gather".
- "exclusive_write", "exclusive_read": 1 exclusive, 0 not, NaN unknown; ``phase`` "write" or "read of TENSOR",
  ``mode`` "loop AXIS", ``note`` the witness or the reason.
- "processor_share": the part of the timed rounds in which the threads of the gather had a processor, NaN
  where the system does not say.
- "points": terms behind one element of the stencil (``phase`` "primal") and of its gathered adjoint
  ("adjoint"). "transposed": 1 where all loops of that adjoint write elements of their own; ``note`` them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meta500.benchmarks.studies.adjoint.settings import Settings

if TYPE_CHECKING:
    from meta500.benchmarks.studies.study import Study
    from meta500.metrics.report import Section
    from meta500.metrics.rows import Row

__all__ = ["Settings", "plan", "sections"]


def plan(settings: Settings) -> Study:
    """The pieces of work.

    Raises:
        UserError: an option is out of range.
    """
    from meta500.benchmarks.studies.adjoint.pieces import planned

    return planned(settings)


def sections(rows: Sequence[Row]) -> list[Section]:
    """The report, from the rows alone."""
    from meta500.benchmarks.studies.adjoint.report import made

    return made(rows)
