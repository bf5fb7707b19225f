"""Prints stages that exchange messages, as calls of ``runtime/mpi_messages.h``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from meta500.backends.generated.cpp_nest import Lines
from meta500.backends.generated.ir import Stage
from meta500.backends.generated.layout import Place
from meta500.backends.generated.messages import HALO, TOTAL, Exchanging

if TYPE_CHECKING:
    from meta500.backends.generated.schedule import Kernel, Schedule

HEADER = '#include "mpi_messages.h"'


def messages(schedule: Schedule) -> list[Kernel]:
    """The kernels that exchange messages."""
    return [k for step in schedule.steps for k in step.kernels if isinstance(k.nest, Exchanging)]


def members(out: Lines, schedule: Schedule) -> None:
    """What an instance has of it."""
    size = max(_elements(kernel.stage) for kernel in messages(schedule))
    out.add("meta500::Messages messages;")
    out.add("// Room for what is sent and received.")
    out.add(f"meta500::Buffer packed{{{max(size, 1)} * sizeof(real)}};")


def call(kernel: Kernel, places: Mapping[str, Place], pointer: str) -> str:
    """The call of all threads; ``pointer`` is the element of the tensor with index 0."""
    stage, message = kernel.stage, kernel.stage.message
    assert message is not None
    place = places[stage.write.tensor]
    origin, sizes = _box(stage)
    strides = place.strides or (0,)
    common = f"instance.messages, {pointer}, instance.packed.at<real>()"
    if message.kind == TOTAL:
        box = _printed(strides, origin, sizes)
        rank = len(strides)
        given = f"{{{_numbers(strides)}}}, meta500::Box<{rank}>{box}"
        return f"meta500::sum_over_processes<real, {rank}>({common}, {given}, part, parts);"
    assert message.kind == HALO
    boxes = []
    for ranges in message.parts(sizes[message.axis]):
        pieces = []
        for first, end in ranges:
            moved = [o + (first if d == message.axis else 0) for d, o in enumerate(origin)]
            length = [end - first if d == message.axis else n for d, n in enumerate(sizes)]
            pieces.append(_printed(strides, moved, length))
        boxes.append(f"{{{', '.join(pieces)}}}")
    tag, adding = message.tag + message.transposed, str(message.transposed).lower()
    halo = f"{message.direction}, {tag}, {adding}, {{{_numbers(strides)}}}, {', '.join(boxes)}"
    return f"meta500::exchange_halo<real, {len(strides)}>({common}, {{{halo}}}, part, parts);"


def interface(out: Lines, namespace: str) -> None:
    """What the caller of the library sees of it."""
    instance = f"static_cast<{namespace}::Instance*>(instance)"
    out.add(
        "// The processes of the coming runs, and the ranks above, below, left and right of this one (or -1)."
    )
    out.add("// 0, or what is wrong with the communicator's handle.")
    out.open(
        "int meta500_processes(void* instance, const void* handle, int bytes, int rank, int size, "
        "const int* neighbours, double seconds)"
    )
    out.add(f"auto& messages = {instance}->messages;")
    out.add("messages.neighbours(neighbours);")
    out.add("messages.seconds = seconds;")
    out.add("return static_cast<int>(messages.communicator.take(handle, bytes, rank, size));")
    out.close()
    out.add("")
    out.add("// Calls, bytes sent and received, and nanoseconds since the last call: of halos, then of sums.")
    out.open("void meta500_message_volumes(void* instance, std::int64_t* numbers)")
    out.add(f"auto& messages = {instance}->messages;")
    out.add("std::memcpy(numbers, &messages.halos, sizeof(meta500::Volume));")
    out.add("std::memcpy(numbers + 4, &messages.sums, sizeof(meta500::Volume));")
    out.add("messages.halos = messages.sums = {};")
    out.close()
    out.add("")
    out.add("// MPI's own code of what failed in the last run.")
    out.open("int meta500_message_error(void* instance)")
    out.add(f"return {instance}->messages.error();")
    out.close()
    out.add("")


def _box(stage: Stage) -> tuple[list[int], list[int]]:
    """Where the exchanged part of the tensor begins, and its sizes."""
    sizes = stage.sizes
    assert all(len(index.terms) <= 1 for index in stage.write.indices)
    origin = [index.constant for index in stage.write.indices]
    lengths = [sizes[index.axes[0]] if index.terms else 1 for index in stage.write.indices]
    return origin or [0], lengths or [1]


def _elements(stage: Stage) -> int:
    """Elements that are sent and received."""
    message = stage.message
    assert message is not None
    _, sizes = _box(stage)
    if message.kind == TOTAL:
        return math.prod(sizes)
    cells = message.before + message.after + message.send_before + message.send_after
    return math.prod(sizes) // sizes[message.axis] * cells


def _printed(strides: Iterable[int], origin: Iterable[int], sizes: Iterable[int]) -> str:
    offset = sum(stride * index for stride, index in zip(strides, origin, strict=True))
    return f"{{{offset}, {{{_numbers(sizes)}}}}}"


def _numbers(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))
