"""The cost of abstractions: one network at levels from eager PyTorch down to calls of a vendor's library.

After "Comparing the costs of abstraction for DL frameworks" (2021), which runs ResNet-50 in PyTorch,
TorchScript, LibTorch and cuDNN over batch sizes and resolutions.

Words in the rows, beside those of :mod:`meta500.metrics.rows`:

    backend             name of the level; operator of "available": its title, note: what runs there
    shape, batch        of the images
    model "... chain"   a chain of tiny operators; node: how many, operator: "elementwise", "residual block"
    baseline            of "ratio": the level "eager"

    quantity "available"                            whether a level runs here
    quantity "peak_memory", "network_memory"        bytes of the process, and what the network adds
    quantity "allocations", "allocated_bytes"       of one step
    quantity "dispatch"                             seconds per operator, the slope over chains
    quantity "time_per_operator"                    of inference, by the operators of the network
    quantity "gpu_utilisation", "device_memory", "copied_to_device", "copied_from_device"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meta500.benchmarks.studies.abstraction.settings import Settings

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
    from meta500.benchmarks.studies.abstraction.pieces import plan as made

    return made(settings)


def sections(rows: Sequence[Row]) -> list[Section]:
    """The report, computed from the rows alone."""
    from meta500.benchmarks.studies.abstraction.report import sections as made

    return made(rows)
