"""Generated C++ for U-Nets against PyTorch: epochs per second, generation, memory, layers, rooflines.

After S. Kemmler, Code Generation for U-Nets Using the ExaStencils Code Generation Framework (master's thesis,
Friedrich-Alexander-Universität Erlangen-Nürnberg, 2022), chapter 6. Rows have level 1 and the model "unet-n";
those of the machine's limits are as in ``meta500.benchmarks.operators.roofline``. Quantities:

epochs (phase "training_step", columns batch, dtype, shape, threads, mode as in ``against_torch``)
    "time" of a step, "first_call", "ratio" of a variant's time to the generated code's; "epoch_rate"
    (epochs/s), 128 images per epoch; "predicted_peak" (B) of a variant that might not fit memory.
generation (phases "lowering", "scheduling", "printing", "compiling")
    "time"; "parameters" (1) of the network; "first_call" of PyTorch's compiler.
memory
    "peak_memory" (B) of a process, "memory_before" (B) the network is made; "planned_memory" (B): what the
    generated code's memory plan and the arrays that are handed over need.
layers (mode "stopwatches")
    "kernel_time" (s): node is the kernel, operator its group of layers; "layer_time" (s) of a group and
    "layer_share", of the time in all kernels; "convolution_share" of the kernels that hardly do anything but
    convolutions; "arithmetic" (FLOP): operator is the group, node the kind of layer; "time" of the step,
    "outside_share" of it that is in no kernel; "stopwatch_cost" (ratio).
roofline (phase "forward", operator "Conv", node is the layer)
    "flops" (FLOP), "bytes_read", "bytes_written" (B) of one call as the model counts them; "traffic_read",
    "traffic_written" (B) as counters saw it; "time"; "epoch_rate" of this layer alone; "light_speed"
    (epochs/s); "light_share".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meta500.benchmarks.studies.codegen.settings import Settings

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
    from meta500.benchmarks.studies.codegen.pieces import plan as made

    return made(settings)


def sections(rows: Sequence[Row]) -> list[Section]:
    """The report, computed from the rows alone."""
    from meta500.benchmarks.studies.codegen.report import sections as made

    return made(rows)
