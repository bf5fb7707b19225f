"""Prints the reductions over ranks of a schedule, as calls of ``runtime/mpi_exchange.h``."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meta500.backends.generated.cpp_nest import Lines
from meta500.backends.generated.exchange import (
    END,
    WAITING,
    ExchangePlan,
    Stop,
    earlier_name,
    item_name,
    region_name,
)
from meta500.backends.generated.images import IMAGES
from meta500.backends.generated.ir import WEIGHT
from meta500.backends.generated.schedule import Kernel, Schedule

HEADER = '#include "mpi_exchange.h"'


def members(out: Lines, schedule: Schedule) -> None:
    """What an instance has of it."""
    plan = _plan(schedule)
    size = sum(schedule.program.tensors[name].size for name in plan.exchange.statistics)
    out.add(f"meta500::Exchange<real, {len(plan.needs)}, {plan.counters}> exchange;")
    out.add("// When everything happened in the last run.")
    out.add(f"meta500::Span spans[{len(plan.timed)}] = {{}};")
    if size:
        out.add(f"real statistics[{size}];")


def begin(out: Lines, schedule: Schedule) -> None:
    """Before the threads begin."""
    plan = _plan(schedule)
    ranges = ", ".join(f"{{{first}, {end}}}" for first, end in plan.exchange.ranges) or "{0, 0}"
    out.add(f"static constexpr meta500::Range ranges[] = {{{ranges}}};")
    out.add(f"static constexpr int needs[] = {{{', '.join(map(str, plan.needs)) or '0'}}};")
    array = _pointer(schedule, plan.exchange.tensor) if plan.needs else "nullptr"
    given = f"{array}, ranges, needs, {plan.signature}, instance.spans"
    out.add("auto& exchange = instance.exchange;")
    out.add(f"exchange.begin({given});")


def weigh(out: Lines, schedule: Schedule, step: int, position: int, alone: bool) -> None:
    """Before the sweep or kernel that needs this rank's share first.

    Args:
        out: where to.
        schedule: what runs.
        step, position: of the sweep or kernel.
        alone: whether threads run by themselves here.
    """
    plan = _plan(schedule)
    if plan.weigh != (step, position):
        return
    call = f"instance.exchange.weigh(part, {_pointer(schedule, WEIGHT)});"
    out.add(f"if (n == first) {call}" if alone else call)


def watch(out: Lines, schedule: Schedule, number: int, position: int | None) -> None:
    """Begin to record the time of a sweep (in the last image of thread 0), of a kernel, or of a region."""
    plan, step = _plan(schedule), schedule.steps[number]
    name = region_name(number) if position is None else item_name(number, position, step)
    wanted = "part == 0" + (" && n == last - 1" if step.kind == IMAGES and position is not None else "")
    out.add(f"meta500::Recorded watch(instance.spans[{plan.span(name)}], {wanted});")


def watch_earlier(out: Lines, schedule: Schedule, number: int, begins: bool) -> None:
    """Before the images of a region, and at the beginning of each: when thread 0 begins its last one."""
    plan = _plan(schedule)
    span = f"instance.spans[{plan.span(earlier_name(number))}]"
    if begins:
        out.add(f"if (part == 0) {span}.begin = meta500::now();")
    else:
        out.add(f"if (part == 0 && n == last - 1) {span}.end = meta500::now();")


def after_sweep(
    out: Lines, schedule: Schedule, number: int, position: int, merged: Callable[[Kernel], str]
) -> None:
    """After a sweep: sums that are complete with the last image are added up by the last thread."""
    stop = _plan(schedule).stop(number, position)
    if stop is not None:
        sums = {one.name: one for kernel in schedule.steps[number].kernels for one in kernel.sums}
        out.open(f"if (n == last - 1 && instance.exchange.last_at({stop.number}, parts))")
        for name in stop.merges:
            out.add(merged(sums[name]))
        _complete(out, stop)
        out.close()
    poll(out)


def after_kernel(out: Lines, schedule: Schedule, number: int, position: int) -> None:
    """After a kernel of all threads, its merges and their barrier."""
    stop = _plan(schedule).stop(number, position)
    if stop is not None:
        out.open("if (part == 0)")
        _complete(out, stop)
        out.close()
    poll(out)


def poll(out: Lines) -> None:
    """Let MPI work between kernels."""
    out.add("if (part == 0) instance.exchange.poll();")


def end_of_images(out: Lines) -> None:
    """Before the barrier at the end of a region of images."""
    out.add("instance.exchange.gather_threads(part, parts);")


def end_of_region(out: Lines, schedule: Schedule, number: int) -> None:
    """After the merges at the end of a region of images."""
    if _plan(schedule).stop(number, END) is not None:
        after_kernel(out, schedule, number, END)


def finish(out: Lines, schedule: Schedule, faults: Sequence[str]) -> None:
    """After the last region before the updates: everything is reduced."""
    plan = _plan(schedule)
    out.open("if (part == 0)")
    out.add(f"meta500::Recorded watch(instance.spans[{plan.span(WAITING)}], true);")
    weight = _pointer(schedule, WEIGHT)
    out.add(f"exchange.begin_rest({weight});")
    sizes = [(name, schedule.program.tensors[name].size) for name in plan.exchange.statistics]
    offset = 0
    for name, size in sizes:
        given = f"{_pointer(schedule, name)}, {size}, instance.statistics + {offset}"
        out.add(f"exchange.share_of({given});")
        offset += size
    if sizes:
        out.add(f"exchange.begin_statistics(instance.statistics, {offset});")
    if faults:
        out.add("exchange.begin_faults(fault);")
    out.add("fault = exchange.finish();")
    offset = 0
    for name, size in sizes:
        source = f"instance.statistics[{offset} + i]"
        out.add(f"for (long i = 0; i < {size}; ++i) {_pointer(schedule, name)}[i] = {source};")
        offset += size
    out.close()
    out.add("meta500::wait();")


def interface(out: Lines, namespace: str) -> None:
    """What the caller of the library sees of it."""
    instance = f"static_cast<{namespace}::Instance*>(instance)"
    out.add("// The communicator of the coming runs; 0, or what is wrong with its handle.")
    out.open("int meta500_communicator(void* instance, const void* handle, int bytes, int rank, int size)")
    out.add(f"auto& communicator = {instance}->exchange.communicator;")
    out.add("return static_cast<int>(communicator.take(handle, bytes, rank, size));")
    out.close()
    out.add("")
    out.add(
        "// The coming runs: samples of this rank (0: nothing is computed), whether gradients of ranks are"
    )
    out.add("// added, not averaged, and the seconds after which other ranks are given up.")
    out.open("void meta500_share(void* instance, double samples, int added, double seconds)")
    out.add(f"{instance}->exchange.samples = samples;")
    out.add(f"{instance}->exchange.added = added != 0;")
    out.add(f"{instance}->exchange.seconds = seconds;")
    out.close()
    out.add("")
    out.add("// The rank of the fault of the last run, and MPI's own error code.")
    out.open("void meta500_culprit(void* instance, int* rank, int* error)")
    out.add(f"*rank = {instance}->exchange.culprit();")
    out.add(f"*error = {instance}->exchange.error();")
    out.close()
    out.add("")
    out.add("// Pairs of begin and end, in nanoseconds of the steady clock, of the last run.")
    out.open("const void* meta500_spans(void* instance)")
    out.add(f"return {instance}->spans;")
    out.close()
    out.add("")


def _complete(out: Lines, stop: Stop) -> None:
    for number in stop.parts:
        out.add(f"instance.exchange.complete({number});")


def _pointer(schedule: Schedule, tensor: str) -> str:
    """A tensor of the caller."""
    place = schedule.places[tensor]
    return f"static_cast<{place.c_type}*>(tensors[{schedule.external.index(tensor)}])"


def _plan(schedule: Schedule) -> ExchangePlan:
    assert schedule.exchange is not None
    return schedule.exchange
