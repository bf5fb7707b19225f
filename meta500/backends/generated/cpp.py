"""Prints a schedule as C++17 with OpenMP: kernels, and the driver that calls them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meta500.backends.generated import cpp_exchange, cpp_messages, memory
from meta500.backends.generated.contraction import Blocked
from meta500.backends.generated.cpp_contraction import blocked_body
from meta500.backends.generated.cpp_nest import Lines, merge_body, nest_body
from meta500.backends.generated.cpp_pixelwise import pixelwise_body
from meta500.backends.generated.cpp_winograd import prepare_body, winograd_body
from meta500.backends.generated.cpp_winograd_gradient import gradient_body, gradient_merge_body
from meta500.backends.generated.images import IMAGES
from meta500.backends.generated.ir import Axis, Stage
from meta500.backends.generated.layout import EXTERNAL, OWN, SHARED, Place
from meta500.backends.generated.messages import Exchanging
from meta500.backends.generated.nests import Nest
from meta500.backends.generated.pixelwise import Pixelwise
from meta500.backends.generated.schedule import Kernel, Schedule, Step
from meta500.backends.generated.sweeps import Sweep
from meta500.backends.generated.winograd import Winograd
from meta500.backends.generated.winograd_gradient import WinogradGradient

# So many kernels go into one file: files are compiled in parallel.
_KERNELS_PER_FILE = 12
NAMESPACE = "network"
_OPENING = f'namespace [[gnu::visibility("hidden")]] {NAMESPACE} {{'


@dataclass(frozen=True)
class Argument:
    """A tensor that a kernel gets a pointer to."""

    tensor: str
    name: str
    written: bool


def sources(schedule: Schedule) -> dict[str, str]:
    """The text of all files by name."""
    kernels = [kernel for step in schedule.steps for kernel in step.kernels]
    kernels = [kernel for kernel in kernels if not isinstance(kernel.nest, Exchanging)]
    texts = [kernel_text(kernel, schedule) for kernel in kernels]
    files = {"network.h": _header(schedule, kernels)}
    for begin in range(0, len(texts), _KERNELS_PER_FILE):
        part = "\n".join(texts[begin : begin + _KERNELS_PER_FILE])
        name = f"kernels_{begin // _KERNELS_PER_FILE}.cpp"
        files[name] = f'#include "network.h"\n\n{_OPENING}\n\n{part}\n}}  // namespace {NAMESPACE}\n'
    files["network.cpp"] = _driver(schedule)
    return files


def arguments(*stages: Stage) -> list[Argument]:
    """The tensors of stages, those that they write last."""
    written = list(dict.fromkeys(n for stage in stages for n in stage.writes()))
    read = list(dict.fromkeys(n for stage in stages for n in stage.reads() if n not in written))
    names: dict[str, str] = {}
    for tensor in (*read, *written):
        # The prefix keeps them apart from keywords and from the local variables of kernels.
        text = "t_" + re.sub(r"\W+", "_", tensor).strip("_")
        while text in names.values():
            text += "_"
        names[tensor] = text
    return [Argument(t, names[t], t in written) for t in (*read, *written)]


def _names(given: list[Argument]) -> dict[str, str]:
    return {a.tensor: a.name for a in given}


def _parameters(given: list[Argument], places: Mapping[str, Place]) -> str:
    return ", ".join(
        f"{'' if a.written else 'const '}{places[a.tensor].c_type}* __restrict {a.name}" for a in given
    )


def kernel_text(kernel: Kernel, schedule: Schedule) -> str:
    """The function (or two, with a merge) of one kernel."""
    places = dict(schedule.places) | _copies(kernel, schedule)
    given = _arguments(kernel)
    lines = [f"// {line.strip()}" for part in kernel.parts for line in str(part.stage).splitlines()]
    lines.append(f"// {kernel.nest}")
    lines.append(f"{_signature(kernel, schedule)}")
    lines.append("{")
    lines += _body(kernel.nest, places, _names(given))
    lines.append("}")
    if isinstance(kernel.nest, Winograd):
        lines += ["", "// The weights at the points of the transforms.", _prepare_signature(kernel), "{"]
        lines += prepare_body(kernel.nest, places, _names(given))
        lines.append("}")
    for part in kernel.sums:
        assert part.merge is not None
        lines += ["", f"{_merge_signature(part, schedule)}", "{"]
        names = _names(_merge_arguments(arguments(part.merge), part))
        partial = schedule.partials[part.name]
        split = merge_split(part)
        if isinstance(part.nest, WinogradGradient):
            assert split is not None
            lines += gradient_merge_body(part.nest, part.merge, schedule.places, names, split)
        else:
            lines += merge_body(part.merge, partial, schedule.places, names, split)
        lines.append("}")
    return "\n".join(lines) + "\n"


def _body(nest: object, places: Mapping[str, Place], names: Mapping[str, str]) -> list[str]:
    if isinstance(nest, Blocked):
        return blocked_body(nest, places, names)
    if isinstance(nest, Winograd):
        return winograd_body(nest, places, names)
    if isinstance(nest, WinogradGradient):
        return gradient_body(nest, places, names)
    if isinstance(nest, Pixelwise):
        return pixelwise_body(nest, places, names)
    assert isinstance(nest, Nest)
    return nest_body(nest, places, names)


def _arguments(kernel: Kernel) -> list[Argument]:
    given = arguments(*(part.stage for part in kernel.parts))
    if isinstance(kernel.nest, Pixelwise):
        given = [a for a in given if a.tensor not in kernel.nest.local]
    return given


def _copies(kernel: Kernel, schedule: Schedule) -> dict[str, Place]:
    """The private copies that a kernel adds into, by tensor."""
    return {part.stage.write.tensor: schedule.partials[part.name] for part in kernel.sums}


def _merge_arguments(given: list[Argument], kernel: Kernel) -> list[Argument]:
    """Only what the sum begins and ends with: its terms were read before."""
    from meta500.backends.generated.expressions import loads

    assert kernel.merge is not None
    read = {x.access.tensor for x in loads(kernel.merge.initial) + loads(kernel.merge.finish)}
    return [a for a in given if a.written or a.tensor in read]


def merge_split(kernel: Kernel) -> Axis | None:
    """The axis by which threads share the adding up."""
    assert kernel.merge is not None
    return max(kernel.merge.kept, key=lambda a: a.size, default=None)


def _signature(kernel: Kernel, schedule: Schedule) -> str:
    parameters = _parameters(_arguments(kernel), schedule.places | _copies(kernel, schedule))
    used = kernel.nest.split is not None
    if kernel.scratch:
        parameters += ", real* __restrict scratch"
    if kernel.prepared:
        parameters += ", const real* __restrict transformed"
    return f"void {kernel.name}({parameters}, long {'lo' if used else ''}, long {'hi' if used else ''})"


def _weights(kernel: Kernel) -> Argument:
    """What is transformed before the region of a kernel begins."""
    assert isinstance(kernel.nest, Winograd)
    return next(a for a in _arguments(kernel) if a.tensor == kernel.nest.direct.second.access.tensor)


def _prepare_signature(kernel: Kernel) -> str:
    weights = _weights(kernel).name
    given = f"const real* __restrict {weights}, real* __restrict transformed"
    return f"void {kernel.name}_prepare({given}, long lo, long hi)"


def _merge_signature(kernel: Kernel, schedule: Schedule) -> str:
    assert kernel.merge is not None
    given = _merge_arguments(arguments(kernel.merge), kernel)
    parameters = _parameters(given, schedule.places)
    used = merge_split(kernel) is not None
    tail = f"long {'lo' if used else ''}, long {'hi' if used else ''}"
    return (
        f"void {kernel.name}_merge(const real* __restrict part, long pitch, int copies, {parameters}, {tail})"
    )


def _header(schedule: Schedule, kernels: list[Kernel]) -> str:
    lines = [
        f"// {schedule.program.name}: generated by meta500.",
        "#pragma once",
        "#include <cmath>",
        "#include <cstdint>",
        '#include "functions.h"',
        '#include "random.h"',
        '#include "vectors.h"',
        '#include "generated.h"',
        "",
        _OPENING,
        "",
        f"using real = {schedule.options.real};",
        "",
    ]
    for kernel in kernels:
        lines.append(f"{_signature(kernel, schedule)};")
        if kernel.prepared:
            lines.append(f"{_prepare_signature(kernel)};")
        lines += [f"{_merge_signature(part, schedule)};" for part in kernel.sums]
    lines += ["", f"}}  // namespace {NAMESPACE}", ""]
    return "\n".join(lines)


def _driver(schedule: Schedule) -> str:
    out = Lines()
    faults = list(schedule.program.faults)
    out.add(f"// The driver of {schedule.program.name}: memory, threads, and the order of the kernels.")
    out.add('#include "network.h"')
    out.add('#include "buffers.h"')
    if schedule.exchange is not None:
        out.add(cpp_exchange.HEADER)
    if cpp_messages.messages(schedule):
        out.add(cpp_messages.HEADER)
    out.add("#include <cstring>")
    out.add("#include <new>")
    out.add("")
    out.add(_OPENING)
    out.add("")
    out.add(f"constexpr int threads = {schedule.options.threads};")
    out.add(f"constexpr long shared_bytes = {schedule.shared_bytes};")
    out.add(f"constexpr long own_bytes = {schedule.own_bytes};")
    out.add(f"constexpr long partial_bytes = {schedule.partial_bytes};")
    out.add("")
    out.add("// So many of the threads work.")
    out.add("int team_size = threads;")
    out.add("")
    out.open("struct Instance")
    out.add("meta500::Buffer shared, partial, own[threads];")
    if schedule.exchange is not None:
        cpp_exchange.members(out, schedule)
    if cpp_messages.messages(schedule):
        cpp_messages.members(out, schedule)
    if schedule.options.profile:
        out.add("// Seconds in every kernel, by thread.")
        count = sum(len(step.kernels) for step in schedule.steps)
        out.add(f"double seconds[threads][{max(count, 1)}] = {{}};")
    out.close()
    out.lines[-1] += ";"
    out.add("")
    for number, step in enumerate(schedule.steps):
        _region(out, number, step, schedule)
    _run(out, schedule, faults)
    out.add("")
    out.add(f"}}  // namespace {NAMESPACE}")
    out.add("")
    _interface(out, schedule)
    return "\n".join(out.lines) + "\n"


def _pointer(place: Place, batched: bool, tensor: str, schedule: Schedule, image: bool) -> str:
    """The address of the element with index 0 (of image n)."""
    real_bytes = schedule.options.real_bytes
    if place.kind == EXTERNAL:
        number = schedule.external.index(tensor)
        base = f"static_cast<{place.c_type}*>(tensors[{number}])"
        offset = 0
    else:
        owner = {SHARED: "shared", OWN: "own"}[place.kind]
        base = f"reinterpret_cast<{place.c_type}*>({owner} + {place.offset})"
        offset = place.origin
        assert place.offset % memory.element_bytes(place, real_bytes) == 0
    if offset:
        base += f" + {offset}"
    if image and batched and place.kind != OWN and place.strides[0]:
        base += f" + n * {place.strides[0]}L"
    return base


def _sweep(out: Lines, step: Step, sweep: Sweep, schedule: Schedule) -> None:
    """The kernels of a sweep for one image, band by band."""
    kernels = step.kernels[sweep.first : sweep.last + 1]
    for name in sweep.cleared:
        place, (_, channels, height, width) = schedule.places[name], schedule.program.tensors[name].shape
        lines = (place.rolling or height) * channels
        base = f"reinterpret_cast<{place.c_type}*>(own + {place.offset})"
        given = f"{base}, {place.size}L, {place.origin}L, {lines}L, {width}L, {place.strides[1]}L"
        out.add(f"meta500::clear_around({given});  // {name}")
    if sweep.bounds is None:
        for kernel in kernels:
            out.add(_call(kernel, schedule, True))
        return
    bands, count = len(sweep.bounds) - 1, len(kernels)
    out.open("")
    out.add(f"// {count} kernels in {bands} bands: where every kernel begins in every band.")
    rows = ", ".join("{" + ", ".join(map(str, bound)) + "}" for bound in sweep.bounds)
    out.add(f"static constexpr int rows[{bands + 1}][{count}] = {{{rows}}};")
    moved = _rolling(out, sweep, schedule)
    out.open(f"for (int band = 0; band < {bands}; ++band)")
    for name, line in moved.values():
        out.add(f"auto* const {name} = {line};")
    pointers = {tensor: name for tensor, (name, _) in moved.items()}
    for number, kernel in enumerate(kernels):
        bounds = (f"rows[band][{number}]", f"rows[band + 1][{number}]")
        out.add(f"if ({bounds[0]} < {bounds[1]}) {_call(kernel, schedule, True, bounds, pointers)}")
    if schedule.exchange is not None:
        cpp_exchange.poll(out)
    out.close(2)


def _rolling(out: Lines, sweep: Sweep, schedule: Schedule) -> dict[str, tuple[str, str]]:
    """Declare the buffers that roll along with a sweep.

    Returns:
        For every tensor the name of its pointer, and what moves the buffer for the next band.
    """
    found: dict[str, tuple[str, str]] = {}
    for one in sweep.rolling:
        place = schedule.places[one.tensor]
        number, height = len(found), schedule.program.tensors[one.tensor].shape[2]
        ends = ", ".join(f"{{{first}, {end}}}" for first, end in zip(one.first, one.end, strict=True))
        out.add(f"// Rows of {one.tensor} from and to which its buffer reaches.")
        out.add(f"static constexpr int stored_{number}[{len(one.first)}][2] = {{{ends}}};")
        base = f"reinterpret_cast<{place.c_type}*>(own + {place.offset})"
        given = f"{base}, {place.strides[2]}L, {height}L, {one.first[0]}L"
        out.add(f"meta500::Rolling<{place.c_type}> buffer_{number}({given});")
        shift = f" + {place.origin}" if place.origin else ""
        advance = f"buffer_{number}.advance(stored_{number}[band][0], stored_{number}[band][1]){shift}"
        found[one.tensor] = (f"rolling_{number}", advance)
    return found


def _call(
    kernel: Kernel,
    schedule: Schedule,
    image: bool,
    bounds: tuple[str, str] | None = None,
    rolling: Mapping[str, str] | None = None,
) -> str:
    if isinstance(kernel.nest, Exchanging):
        name = kernel.stage.write.tensor
        place = schedule.places[name]
        pointer = _pointer(place, name in schedule.batch.tensors, name, schedule, image)
        return _measured(cpp_messages.call(kernel, schedule.places, pointer), kernel, schedule)
    places, copies = [], _copies(kernel, schedule)
    rolling = rolling or {}
    for a in _arguments(kernel):
        if a.tensor in copies:
            partial = copies[a.tensor]
            places.append(f"reinterpret_cast<{partial.c_type}*>(partial + {partial.offset})")
        elif a.tensor in rolling:
            places.append(rolling[a.tensor])
        else:
            batched = a.tensor in schedule.batch.tensors
            places.append(_pointer(schedule.places[a.tensor], batched, a.tensor, schedule, image))
    if kernel.scratch:
        places.append(f"reinterpret_cast<real*>(own + {schedule.scratch})")
    if kernel.prepared:
        places.append(f"reinterpret_cast<const real*>(shared + {schedule.prepared[kernel.name]})")
    size = kernel.nest.split.size if kernel.nest.split is not None else 1
    low, high = bounds or ("0", str(size))
    if not image:
        low, high = (_share(size, kernel.granule, part) for part in ("part", "part + 1"))
    return _measured(f"{kernel.name}({', '.join(places)}, {low}, {high});", kernel, schedule)


def _prepare_call(kernel: Kernel, schedule: Schedule) -> str:
    assert isinstance(kernel.nest, Winograd)
    weights = _weights(kernel).tensor
    pieces = [
        _pointer(schedule.places[weights], False, weights, schedule, False),
        f"reinterpret_cast<real*>(shared + {schedule.prepared[kernel.name]})",
        *(_share(kernel.nest.results.size, kernel.nest.block, part) for part in ("part", "part + 1")),
    ]
    return _measured(f"{kernel.name}_prepare({', '.join(pieces)});", kernel, schedule)


def _measured(call: str, kernel: Kernel, schedule: Schedule) -> str:
    if schedule.options.profile:
        number = [k.name for step in schedule.steps for k in step.kernels].index(kernel.name)
        call = f"{{ meta500::Stopwatch watch(instance.seconds[part][{number}]); {call} }}"
    return call


def _share(size: int, granule: int, part: str) -> str:
    """Where a thread's part of a range begins."""
    factor = "" if granule == 1 else f" * {granule}"
    return f"meta500::share({size // granule}, {part}, parts){factor}"


def _merge_call(kernel: Kernel, schedule: Schedule) -> str:
    """The adding up of a sum's copies, by all threads."""
    split = merge_split(kernel)
    size = split.size if split is not None else 1
    share = (f"meta500::share({size}, part, parts)", f"meta500::share({size}, part + 1, parts)")
    call = _merge_of(kernel, schedule, *share)
    return call if split is not None else f"if (part == 0) {call}"


def _merge_alone(kernel: Kernel, schedule: Schedule) -> str:
    """The same, by one thread."""
    split = merge_split(kernel)
    return _merge_of(kernel, schedule, "0", str(split.size if split is not None else 1))


def _merge_of(kernel: Kernel, schedule: Schedule, low: str, high: str) -> str:
    assert kernel.merge is not None
    partial = schedule.partials[kernel.name]
    pieces = [
        f"reinterpret_cast<const {partial.c_type}*>(partials + {partial.offset})",
        "partial_bytes / long(sizeof(real))",
        "parts",
    ]
    for a in _merge_arguments(arguments(kernel.merge), kernel):
        pieces.append(_pointer(schedule.places[a.tensor], False, a.tensor, schedule, False))
    return f"{kernel.name}_merge({', '.join([*pieces, low, high])});"


def _merges(out: Lines, sums: Sequence[Kernel], schedule: Schedule) -> None:
    """The merges of several sums; one waits for another that touches the same elements.

    The copies of a sum that scatters are as large as the tensor, which may be that of all gradients.
    """
    touched: list[tuple[str, int, int]] = []
    for kernel in sums:
        assert kernel.merge is not None
        name = kernel.merge.write.tensor
        low, high = schedule.places[name].address(kernel.merge.write).bounds(kernel.merge.sizes)
        if any(name == other and low <= last and first <= high for other, first, last in touched):
            out.add("meta500::wait();")
            touched = []
        out.add(_merge_call(kernel, schedule))
        touched.append((name, low, high))
    if sums:
        out.add("meta500::wait();")


_REGION = "void region_{}(Instance& instance, void* const* tensors, int part, int parts)"


def _region(out: Lines, number: int, step: Step, schedule: Schedule) -> None:
    for line in (_REGION.format(number), "{"):
        out.add(line)
    out.depth += 1
    out.add("[[maybe_unused]] char* const shared = instance.shared.at<char>();")
    out.add("[[maybe_unused]] char* const own = instance.own[part].at<char>();")
    out.add("[[maybe_unused]] char* const partials = instance.partial.at<char>();")
    out.add("[[maybe_unused]] char* const partial = partials + part * partial_bytes;")
    sums = [part for kernel in step.kernels for part in kernel.sums]
    for kernel in sums:
        place = schedule.partials[kernel.name]
        size = place.size * memory.element_bytes(place, schedule.options.real_bytes)
        out.add(f"std::memset(partial + {place.offset}, 0, {size});")
    prepared = [kernel for kernel in step.kernels if kernel.prepared]
    for kernel in prepared:
        out.add(_prepare_call(kernel, schedule))
    if prepared:
        out.add("meta500::wait();")
    exchange = schedule.exchange
    if exchange is not None:
        cpp_exchange.watch(out, schedule, number, None)
    if step.kind == IMAGES:
        count = schedule.batch.count
        out.add(
            f"const long first = meta500::share({count}, part, parts), "
            f"last = meta500::share({count}, part + 1, parts);"
        )
        if exchange is not None:
            cpp_exchange.watch_earlier(out, schedule, number, True)
        out.open("for (long n = first; n < last; ++n)")
        if exchange is not None:
            cpp_exchange.watch_earlier(out, schedule, number, False)
        for position, sweep in enumerate(step.sweeps):
            if exchange is None:
                _sweep(out, step, sweep, schedule)
                continue
            cpp_exchange.weigh(out, schedule, number, position, True)
            out.open("")
            cpp_exchange.watch(out, schedule, number, position)
            _sweep(out, step, sweep, schedule)
            out.close()
            cpp_exchange.after_sweep(out, schedule, number, position, lambda one: _merge_alone(one, schedule))
        out.close()
        if exchange is not None:
            early = exchange.early(number)
            sums = [one for one in sums if one.name not in early]
            cpp_exchange.end_of_images(out)
        out.add("meta500::wait();")
        _merges(out, sums, schedule)
        if exchange is not None:
            cpp_exchange.end_of_region(out, schedule, number)
    else:
        for position, kernel in enumerate(step.kernels):
            if exchange is not None:
                cpp_exchange.weigh(out, schedule, number, position, False)
                out.open("")
                cpp_exchange.watch(out, schedule, number, position)
            call = _call(kernel, schedule, False)
            alone = kernel.nest.split is None and not isinstance(kernel.nest, Exchanging)
            out.add(f"if (part == 0) {call}" if alone else call)
            out.add("meta500::wait();")
            _merges(out, kernel.sums, schedule)
            if exchange is not None:
                out.close()
                cpp_exchange.after_kernel(out, schedule, number, position)
    out.depth -= 1
    out.add("}")
    out.add("")


def _run(out: Lines, schedule: Schedule, faults: list[str]) -> None:
    out.add("// 0, or the number (from 1) of the first fault.")
    out.add("int run(Instance& instance, void* const* tensors)")
    out.add("{")
    out.depth += 1
    out.add("int fault = 0;")
    exchange = schedule.exchange
    if exchange is not None:
        cpp_exchange.begin(out, schedule)
    exchanging = bool(cpp_messages.messages(schedule))
    if exchanging:
        out.add("instance.messages.begin();")
    out.add("#pragma omp parallel num_threads(team_size)")
    out.open("")
    out.add("const int part = meta500::thread(), parts = meta500::team();")
    shared = {}
    for number, step in enumerate(schedule.steps):
        stop = "fault == 0" if number else "true"
        if exchange is not None and number <= exchange.last:
            stop += " && exchange.works()"
        out.add(f"if ({stop}) region_{number}(instance, tensors, part, parts);")
        written = {n for k in step.kernels for p in k.parts for n in (p.merge or p.stage).writes()}
        for position, name in enumerate(faults, 1):
            if name in written:
                shared[name] = position
                place = schedule.places[name]
                out.open("if (part == 0)")
                out.add("char* const shared = instance.shared.at<char>();")
                out.add(f"if (*({_pointer(place, False, name, schedule, False)}) != 0) fault = {position};")
                if exchanging:
                    out.add("fault = instance.messages.worst(fault);")
                out.close()
                out.add("meta500::wait();")
        if exchange is not None and number == exchange.last:
            cpp_exchange.finish(out, schedule, faults)
    out.close()
    if exchanging:
        out.add("if (instance.messages.fault()) fault = instance.messages.fault();")
    out.add("return fault;")
    out.depth -= 1
    out.add("}")


def _interface(out: Lines, schedule: Schedule) -> None:
    out.add('extern "C" {')
    out.add("")
    out.add("// A new instance, or null if memory does not suffice.")
    out.open("void* meta500_open()")
    out.add(f"using namespace {NAMESPACE};")
    out.add("auto* instance = new (std::nothrow) Instance;")
    out.add("if (!instance) return nullptr;")
    out.add("instance->shared = meta500::Buffer(shared_bytes);")
    out.add("instance->partial = meta500::Buffer(partial_bytes * threads);")
    out.add("bool good = instance->shared && instance->partial;")
    out.open("for (auto& buffer : instance->own)")
    out.add("buffer = meta500::Buffer(own_bytes);")
    out.add("good = good && buffer;")
    out.close()
    out.add("if (good) return instance;")
    out.add("delete instance;")
    out.add("return nullptr;")
    out.close()
    out.add("")
    out.open("void meta500_close(void* instance)")
    out.add(f"delete static_cast<{NAMESPACE}::Instance*>(instance);")
    out.close()
    out.add("")
    out.add(
        "// Lets the coming runs of all instances use fewer threads: 1 to the number that they were made for."
    )
    out.open("void meta500_threads(int count)")
    out.add(f"{NAMESPACE}::team_size = count;")
    out.close()
    out.add("")
    out.add("// Runs the program once on the tensors; 0, or the number of a fault.")
    out.open("int meta500_run(void* instance, void* const* tensors)")
    out.add(f"return {NAMESPACE}::run(*static_cast<{NAMESPACE}::Instance*>(instance), tensors);")
    out.close()
    out.add("")
    if schedule.exchange is not None:
        cpp_exchange.interface(out, NAMESPACE)
    if cpp_messages.messages(schedule):
        cpp_messages.interface(out, NAMESPACE)
    if schedule.options.profile:
        out.add("// Seconds of one thread in every kernel since the instance was opened.")
        out.open("const double* meta500_seconds(void* instance, int thread)")
        out.add(f"return static_cast<{NAMESPACE}::Instance*>(instance)->seconds[thread];")
        out.close()
        out.add("")
    out.add("}")
