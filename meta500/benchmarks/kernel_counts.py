"""What every kernel of a schedule does in one step: its kind, its operations, the data that it touches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from meta500.backends.generated.contraction import Blocked
from meta500.backends.generated.expressions import Access
from meta500.backends.generated.images import IMAGES
from meta500.backends.generated.ir import REAL, Stage
from meta500.backends.generated.pixelwise import Pixelwise
from meta500.backends.generated.schedule import Kernel, Schedule
from meta500.backends.generated.winograd import Winograd
from meta500.backends.generated.winograd_gradient import WinogradGradient

# Every kind that there is; sums of products first.
PRODUCT_KINDS = ("stencil", "Winograd", "dual", "Winograd gradient")
KINDS = (*PRODUCT_KINDS, "pixelwise", "map", "row", "dot")
_BYTES = {"int32": 4, "int64": 8, "bool": 1}


@dataclass(frozen=True)
class KernelWork:
    """One kernel and its work in one step, all images and threads together.

    Attributes:
        name: of its function.
        kind: of :data:`KINDS`.
        form: the kind with its vectors or transforms.
        origin: the operators that it comes from.
        operations: of a sum of products in its direct form, two per multiply-add and products with zeros of
            the padding included; None for other kernels, which hardly compute.
        data_bytes: every element that it reads and every element that it writes, once per image (per step
            where images are not taken one by one). Private copies of sums, intermediate values in registers
            and scratch memory are not counted.
    """

    name: str
    kind: str
    form: str
    origin: str
    operations: int | None
    data_bytes: int


def kernel_works(schedule: Schedule) -> list[KernelWork]:
    """The work of all kernels, in the order in which they run."""
    return [
        _work(kernel, schedule, schedule.batch.count if step.kind == IMAGES else 1)
        for step in schedule.steps
        for kernel in step.kernels
    ]


def _work(kernel: Kernel, schedule: Schedule, calls: int) -> KernelWork:
    """``calls``: for how many images it is called one by one; its stage then lacks their axis."""
    form = str(kernel.nest).partition(":")[0]
    kind = form.partition(" on ")[0].partition(" F(")[0]
    product = isinstance(kernel.nest, Blocked | Winograd | WinogradGradient)
    origins = dict.fromkeys(part.stage.origin for part in kernel.parts)
    return KernelWork(
        name=kernel.name.removeprefix("k_"),
        kind=kind,
        form=form,
        origin="; ".join(origins),
        operations=2 * kernel.stage.multiplications * calls if product else None,
        data_bytes=calls * _touched(kernel, schedule),
    )


def _touched(kernel: Kernel, schedule: Schedule) -> int:
    """Bytes that one call reads and writes."""
    program, real_bytes = schedule.program, schedule.options.real_bytes
    local = kernel.nest.local if isinstance(kernel.nest, Pixelwise) else frozenset()
    found: dict[tuple[str, bool], dict[Access, Stage]] = {}
    for part in kernel.parts:
        for access, written in _accesses(part.stage):
            name = access.tensor
            # A total of a pixelwise pass is a private copy and no tensor of the program.
            if name in local or name not in program.tensors or (written and part.merge is not None):
                continue
            found.setdefault((name, written), {})[access] = part.stage
    total = 0
    for (name, _), accesses in found.items():
        tensor = program.tensors[name]
        size = real_bytes if tensor.dtype == REAL else _BYTES[tensor.dtype]
        total += size * _elements(accesses, tensor.shape)
    return total


def _accesses(stage: Stage) -> Iterator[tuple[Access, bool]]:
    """What a stage reads and, with True, what it writes."""
    yield from ((load.access, False) for load in stage.loads())
    if stage.onto:
        yield stage.write, False
    yield stage.write, True
    if stage.winner is not None:
        yield stage.winner[0], True


def _elements(accesses: Mapping[Access, Stage], shape: tuple[int, ...]) -> int:
    """How many elements of a tensor accesses go over.

    As many as the box around all of them has, unless the iterations of all of them are fewer, as where
    weights and biases lie in one array.
    """
    lows, highs, iterations = list(shape), [-1] * len(shape), 0
    for access, stage in accesses.items():
        sizes = stage.sizes
        for place, index in enumerate(access.indices):
            low, high = index.bounds(sizes)
            lows[place] = min(lows[place], max(low, 0))
            highs[place] = max(highs[place], min(high, shape[place] - 1))
        iterations += math.prod(sizes[name] for name in access.axes)
    box = math.prod(high - low + 1 for low, high in zip(lows, highs, strict=True))
    return min(box, iterations)
