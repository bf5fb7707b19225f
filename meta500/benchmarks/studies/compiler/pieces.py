"""The pieces of work of the study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from meta500.benchmarks.studies.compiler import convolutions, networks, products, profiled
from meta500.benchmarks.studies.compiler.settings import (
    BLOCKS,
    CONVOLUTIONS,
    EAGER,
    LAYERS,
    NETWORKS_PART,
    PRODUCTS,
    Settings,
    on_cuda,
)
from meta500.benchmarks.studies.study import COMPILE, Piece, Study

TITLE = "The PyTorch compiler: interpreted against compiled"
SOURCE = "A. Goldfarb, Evaluating the PyTorch Compiler in the Vision Domain, McGill University, 2024"
PROTOCOL = (
    "Interpreted (eager) and compiled functions (torch.compile with dynamic=False, one copy per mode) "
    "run interleaved in one process with the same threads, in an order that is shuffled anew in each "
    "round; outputs are freed inside of the clock, and a device is waited for before the clock starts "
    "and before it stops.",
    "Before and behind that each is called once, and its result compared with float64 and with that of "
    "the interpreted function; a function with a wrong result has a time but no ratio.",
    "Times are medians with intervals of order statistics (95 %); ratios are taken within each round. "
    "Where a claim is about several things, the verdict takes wider intervals, which all hold together in "
    "95 % (Bonferroni).",
    "Times without compile time are those of calls after compilation. With compile time: the first call"
    " in a fresh process of its own, interpreted or compiled, with empty caches of the compiler. Loading "
    "PyTorch, making inputs and making the network are outside of that clock; loading the compiler is "
    "inside, since this happens at the first use.",
    "All inference: evaluation mode, no gradients, float32 without TF32.",
    "Convolutions inside of ResNet-50 are those that PyTorch's profiler records as aten::convolution, "
    "matched by shapes, stride, padding, dilation and groups; the profiler itself slows the calls. "
    "Layout changes and fused operations around a convolution are not in its time.",
    "In a block every convolution reads what the one before it wrote, and has weights of its own. (The "
    "thesis's simplified listing calls one convolution on the same input and drops the results, which a"
    " compiler may leave out altogether.)",
    "NumPy is measured against interpreted PyTorch in a run of its own, with a rest before each sample,"
    " since both have threads that spin for a while after a call.",
)


def plan(settings: Settings) -> Study:
    """The study.

    Raises:
        UserError: settings that can't be measured.
    """
    settings.check()
    parts = {
        PRODUCTS: _products,
        CONVOLUTIONS: _convolutions,
        BLOCKS: _blocks,
        NETWORKS_PART: _networks,
        LAYERS: _layers,
    }
    pieces = [piece for part in settings.chosen_parts for piece in parts[part](settings)]
    return Study(COMPILE, TITLE, SOURCE, settings.as_json(), pieces, PROTOCOL)


def _products(settings: Settings) -> Iterator[Piece]:
    # As figure 5.1 has it, a run on a GPU also shows the CPU.
    for device in dict.fromkeys(("cpu", settings.device)):
        for size in products.sizes(settings, device):
            yield Piece(
                f"product-{device}-{size}",
                f"matrix product of size {size} on {device}",
                partial(products.measure_product, settings, size, device),
            )
        for size in products.first_sizes(settings, device):
            yield Piece(
                f"first-product-{device}-{size}",
                f"matrix product of size {size} on {device} with compile time",
                partial(products.measure_first_product, settings, size, device),
            )
    if not on_cuda(settings.device):
        yield Piece("product-cuda", "matrix products on CUDA", partial(products.emit_missing_cuda, settings))


def _convolutions(settings: Settings) -> Iterator[Piece]:
    for kernel in convolutions.KERNELS:
        yield Piece(
            f"convolution-{kernel}",
            f"single convolutions, kernel {kernel}",
            partial(convolutions.measure_ablation, settings, kernel),
        )
    yield Piece(
        "resnet50-alone",
        "convolutions of ResNet-50, each alone",
        partial(convolutions.measure_alone, settings),
    )
    yield Piece(
        "resnet50-inside",
        "convolutions of ResNet-50 inside of the network",
        partial(profiled.measure_inside, settings),
    )


def _blocks(settings: Settings) -> Iterator[Piece]:
    quick = settings.quick
    for kernel in convolutions.QUICK_BLOCK_KERNELS if quick else convolutions.BLOCK_KERNELS:
        for count in convolutions.QUICK_BLOCK_SIZES if quick else convolutions.BLOCK_SIZES:
            yield Piece(
                f"block-{kernel}-{count}",
                f"{count} {kernel}x{kernel} convolutions in a row",
                partial(convolutions.measure_block, settings, kernel, count),
            )


def _networks(settings: Settings) -> Iterator[Piece]:
    first_modes: Sequence[str] = settings.chosen_modes
    if settings.quick:
        # Compiling a network from nothing takes half a minute: only where one was asked for.
        first_modes = [convolutions.one_mode(settings)] if settings.networks else []
    # The interpreted network once, since it is the same for all modes.
    first_modes = [EAGER, *first_modes] if first_modes else []
    for name in settings.chosen_networks:
        yield Piece(
            f"network-{name}",
            f"{name} end to end",
            partial(networks.measure_network, settings, name),
        )
        for mode in first_modes:
            yield Piece(
                f"first-network-{name}-{mode}",
                f"{name} with compile time, {mode}",
                partial(networks.measure_first_network, settings, name, [mode]),
            )


def _layers(settings: Settings) -> list[Piece]:
    from meta500.benchmarks.studies.compiler.timing import layer_pieces

    return layer_pieces(settings)
