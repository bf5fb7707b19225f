"""Everything that is decided between the IR and the C++ text: regions, places, nests, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from meta500.backends.generated import companions, contraction, exchange, layout, nests, pixelwise
from meta500.backends.generated.affine import Affine, indices
from meta500.backends.generated.arenas import arrange, touched_at_end
from meta500.backends.generated.batch_last import with_batch_last
from meta500.backends.generated.companions import Companion
from meta500.backends.generated.contraction import Blocked
from meta500.backends.generated.copies import with_copies
from meta500.backends.generated.exchange import ExchangePlan
from meta500.backends.generated.expressions import Access
from meta500.backends.generated.images import (
    IMAGES,
    REDUCING,
    WHOLE,
    Batch,
    Region,
    divide,
    find_batch,
)
from meta500.backends.generated.ir import (
    ATOMICS,
    CONSTANT,
    INPUT,
    PARAMETER,
    REDUCTION,
    SUM,
    Axis,
    Program,
    Stage,
)
from meta500.backends.generated.layout import EXTERNAL, OWN, PARTIAL, SHARED, Place
from meta500.backends.generated.messages import Exchanging
from meta500.backends.generated.nests import Nest
from meta500.backends.generated.pixelwise import ROWS, Member, Pixelwise, is_total
from meta500.backends.generated.rolling import Walker, rolling, shortened
from meta500.backends.generated.sweeps import Rows, Sweep, sweeps
from meta500.backends.generated.transposition import conflict
from meta500.backends.generated.winograd import Winograd, winograd
from meta500.backends.generated.winograd_gradient import WinogradGradient, winograd_gradient
from meta500.errors import UserError


@dataclass(frozen=True)
class Options:
    """What may be chosen from outside.

    Attributes:
        real: "float" or "double".
        threads: number of threads.
        vector_bytes: width of the vectors.
        registers: number of vector registers.
        profile: measure the time in every kernel.
        cache_bytes: of the cache that belongs to one core; sweeps are cut to it, 0 for none.
        winograd: allow forms with fewer products for 3 x 3 taps in float32; their error is at most four times
            that of the direct form.
        private_sums: let threads share the terms of a sum and add them up in copies of their own; without,
            they share its elements, and every element is one thread's. Sums that scatter need the copies.
        register_blocks: compute sums of products in blocks of registers where these fit, and write short sums
            out; without, every sum is a plain vector loop, for comparisons of loops.
    """

    real: str = "float"
    threads: int = 1
    vector_bytes: int = 64
    registers: int = 32
    profile: bool = False
    cache_bytes: int = 1 << 20
    winograd: bool = True
    private_sums: bool = True
    register_blocks: bool = True

    @property
    def real_bytes(self) -> int:
        """Bytes of one floating-point number."""
        return 4 if self.real == "float" else 8

    @property
    def lanes(self) -> int:
        """Numbers in one vector."""
        return self.vector_bytes // self.real_bytes

    @property
    def half_vector(self) -> int:
        """Numbers in half a vector, at least one."""
        return max(self.lanes // 2, 1)

    @property
    def narrowest(self) -> int:
        """Numbers in the narrowest vector."""
        return contraction.NARROWEST // self.real_bytes


@dataclass(frozen=True)
class Kernel:
    """A function of the generated code: one stage in its loops.

    Attributes:
        name: of the function.
        nest: its loops.
        merge: for sums into private copies, the stage that adds these up; it sees the sum as ``Result``.
        companion: a sum that is computed on the way; its function is only the merge.
        members: the stages of a pixelwise pass; their functions are only the merges.
    """

    name: str
    nest: Nest | Blocked | Winograd | WinogradGradient | Companion | Pixelwise | Member | Exchanging
    merge: Stage | None = None
    companion: Kernel | None = None
    members: tuple[Kernel, ...] = ()

    @property
    def stage(self) -> Stage:
        """The stage that it computes."""
        return self.nest.stage

    @property
    def granule(self) -> int:
        """Ranges of the split axis begin at multiples of this."""
        return 1 if isinstance(self.nest, Nest) else self.nest.granule

    @property
    def preferred(self) -> int:
        """Rows that it had best be called for at once; 0 where it does not matter."""
        return self.nest.preferred if isinstance(self.nest, WinogradGradient) else 0

    @property
    def sums(self) -> list[Kernel]:
        """It and its companion, as far as they add into private copies."""
        return [part for part in self.parts if part.merge is not None]

    @property
    def parts(self) -> list[Kernel]:
        """It and its companion, or its members."""
        if self.members:
            return list(self.members)
        return [self] if self.companion is None else [self, self.companion]

    @property
    def scratch(self) -> int:
        """Numbers of memory of its own that the kernel needs while it runs."""
        return 0 if isinstance(self.nest, Nest) else self.nest.scratch

    @property
    def prepared(self) -> int:
        """Numbers of memory for what all threads compute together before its region begins."""
        return self.nest.prepared if isinstance(self.nest, Winograd) else 0


@dataclass
class Step:
    """A region with its kernels, and the sweeps in which they run."""

    kind: str
    kernels: list[Kernel] = field(default_factory=list)
    sweeps: list[Sweep] = field(default_factory=list)


@dataclass
class Schedule:
    """A program with all decisions taken.

    Attributes:
        program: what is computed.
        options: for whom.
        batch: the images.
        places: storage of every tensor.
        partials: storage of the private copies, by kernel name.
        external: tensors that the caller hands over, in the order of their pointers.
        steps: regions in order.
        shared_bytes, own_bytes, partial_bytes: sizes of the arenas; own and partial ones per thread.
        scratch: where in the own arena kernels find memory for the time of one call.
        prepared: where in the shared arena kernels find their transformed weights, by kernel name.
        exchange: when gradients are reduced over ranks, if they are.
    """

    program: Program
    options: Options
    batch: Batch
    places: dict[str, Place]
    partials: dict[str, Place]
    external: list[str]
    steps: list[Step]
    shared_bytes: int = 0
    own_bytes: int = 0
    partial_bytes: int = 0
    scratch: int = 0
    prepared: dict[str, int] = field(default_factory=dict)
    exchange: ExchangePlan | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all arenas."""
        return self.shared_bytes + self.options.threads * (self.own_bytes + self.partial_bytes)

    def lines(self) -> Iterator[str]:
        """The schedule as text."""
        yield f"schedule of {self.program.name}: {self.options.real}, {self.options.threads} threads, " + (
            f"vectors of {self.options.lanes}"
        )
        yield (
            f"memory: {self.shared_bytes} bytes shared; per thread {self.own_bytes} bytes for one image and "
            f"{self.partial_bytes} bytes of private sums"
        )
        for place in self.places.values():
            halo = f" zeros {place.halo.before} {place.halo.after}" if place.halo.any else ""
            few = f", {place.rolling} rows at a time" if place.rolling else ""
            yield (
                f"  {place.kind:8} {place.c_type} {place.tensor}: strides {place.strides} "
                f"origin {place.origin}{halo} at {place.offset}{few}"
            )
        for number, step in enumerate(self.steps):
            yield ""
            kind = "every thread its own images" if step.kind == IMAGES else "all threads together"
            yield f"region {number}: {kind}"
            swept = {s.first: s for s in step.sweeps}
            for position, kernel in enumerate(step.kernels):
                sweep = swept.get(position)
                if sweep is not None and sweep.cleared:
                    yield f"  zeros around {', '.join(sweep.cleared)}"
                if sweep is not None and sweep.bounds is not None:
                    count = sweep.last - sweep.first + 1
                    yield f"  sweep of the next {count} kernels in {len(sweep.bounds) - 1} bands of rows"
                yield f"  {kernel.name}: {kernel.nest}"
                for part in kernel.parts:
                    yield from (f"    {line}" for line in str(part.stage).splitlines()[1:])
        if self.exchange is not None:
            yield ""
            yield from self.exchange.lines()

    def __str__(self) -> str:
        return "\n".join(self.lines())


def schedule(program: Program, options: Options) -> Schedule:
    """All decisions for a fused program.

    Raises:
        UserError: a tensor with more elements than addresses can count.
    """
    # Half a vector is no loss on many processors, and more than short rows fill.
    program, last = with_batch_last(program, max(options.half_vector, options.narrowest))
    program = with_copies(program)
    batch = replace(find_batch(program), last=last)
    regions = _regions(program, batch, options)
    passes = [_passes(region, batch, program) for region in regions]
    local = {name for items in passes for item in items if isinstance(item, Pixelwise) for name in item.local}
    places = _places(program, batch, regions, options, local)
    stages = {s.name: layout.unguarded(s, program, places) for s in program.stages}
    steps = []
    names: dict[str, int] = {}
    for region, items in zip(regions, passes, strict=True):
        step = Step(region.kind)
        for item in items:
            if isinstance(item, Pixelwise):
                step.kernels.append(_pass(item, stages, names, options))
            else:
                stage = stages[item.name]
                step.kernels.append(_kernel(stage, region, batch, places, program, options, names))
        step.kernels = companions.joined(step.kernels, region.kind == IMAGES)
        _sweep(step, places, program, options)
        steps.append(step)
    partials = {
        one.name: _partial(one, program) for step in steps for kernel in step.kernels for one in kernel.sums
    }
    external = [name for name, place in places.items() if place.kind == EXTERNAL]
    result = Schedule(program, options, batch, places, partials, external, steps)
    _roll(result)
    arrange(result)
    result.exchange = exchange.planned(program, steps, result.places, options.real_bytes)
    return result


def _regions(program: Program, batch: Batch, options: Options) -> list[Region]:
    """Regions; those of all threads together where there are too few images for the threads."""
    if program.exchange is not None and program.exchange.after:
        # What needs the sums over all ranks comes last, in a region of its own.
        late = [s for s in program.stages if s.name in program.exchange.after]
        early = [s for s in program.stages if s.name not in program.exchange.after]
        before = replace(program, stages=early, exchange=replace(program.exchange, after=()))
        return [*_regions(before, batch, options), Region(WHOLE, late)]
    count, threads = batch.count, options.threads
    if count and (count % threads == 0 or count >= 4 * threads):
        regions = divide(program, batch)
    else:
        regions = [Region(WHOLE, list(program.stages))] if program.stages else []
    return [part for region in regions for part in _after_faults(region, set(program.faults))]


def _after_faults(region: Region, faults: set[str]) -> list[Region]:
    """A region in two where it counts faults: they are looked at before the second updates anything."""
    last = max((p for p, s in enumerate(region.stages) if faults.intersection(s.writes())), default=-1)
    if region.kind == IMAGES or last in (-1, len(region.stages) - 1):
        return [region]
    return [Region(WHOLE, region.stages[: last + 1]), Region(WHOLE, region.stages[last + 1 :])]


def _places(
    program: Program, batch: Batch, regions: list[Region], options: Options, local: set[str]
) -> dict[str, Place]:
    halos = layout.halos(program)
    used_in: dict[str, set[int]] = {}
    for number, region in enumerate(regions):
        for stage in region.stages:
            for name in (*stage.reads(), *stage.writes()):
                used_in.setdefault(name, set()).add(number)
    handed = {*program.outputs.values(), *program.gradients.values(), *program.updates.values()}
    places: dict[str, Place] = {}
    for name, tensor in program.tensors.items():
        if tensor.role in (INPUT, PARAMETER, CONSTANT) or name in handed:
            places[name] = layout.dense(tensor, EXTERNAL)
            continue
        if name not in used_in or name in local:
            continue
        numbers = used_in[name]
        images = name in batch.tensors
        own = images and len(numbers) == 1 and regions[min(numbers)].kind == IMAGES
        kind = OWN if own else SHARED
        if len(tensor.shape) == 4:
            halo = halos.get(name, layout.Halo((0,) * 4, (0,) * 4))
            # Without a dimension of images the first one is an ordinary dimension.
            places[name] = (
                layout.batch_last(tensor, halo)
                if name in batch.last
                else layout.rows(tensor, kind, halo, options.lanes, kind == SHARED)
            )
        else:
            place = layout.dense(tensor, kind)
            if own:
                count = tensor.shape[0]
                place = replace(place, strides=(0, *place.strides[1:]), size=max(place.size // count, 1))
            places[name] = place
    for place in places.values():
        if place.size >= 2**40:
            raise UserError(f"'{place.tensor}' has {place.size} elements, more than generated code addresses")
    return places


def _passes(region: Region, batch: Batch, program: Program) -> list[Pixelwise | Stage]:
    """The stages of a region, pixelwise ones joined."""
    if region.kind != IMAGES:
        return list(region.stages)
    bare = [_of_one_image(stage, batch) for stage in region.stages]
    pictures = {n for n in batch.tensors if len(program.tensors[n].shape) >= 3}
    return pixelwise.joined(bare, program, pictures, batch.tensors)


def _of_one_image(stage: Stage, batch: Batch) -> Stage:
    """``stage`` without the axis of the images, which the caller of the kernel chooses."""
    axis = batch.axes[stage.name]
    return stage.substitute({axis: Affine()}, tuple(a for a in stage.axes if a.name != axis))


def _pass(plan: Pixelwise, stages: Mapping[str, Stage], names: dict[str, int], options: Options) -> Kernel:
    """The kernel of a pixelwise pass."""
    members, renamed = [], []
    for stage in plan.stages:
        name = _identifier(stage.name, names)
        merge = None
        if is_total(stage):
            merge = stages[stage.name]
            # The private copy is a tensor of its own.
            stage = replace(_bare(stage), write=replace(stage.write, tensor=name))
        renamed.append(stage)
        members.append(Kernel(name, Member(stage, merge is not None), merge))
    plan = replace(plan, stages=tuple(renamed), lanes=options.lanes)
    return Kernel(f"{members[-1].name}_pass", plan, None, None, tuple(members))


def _kernel(
    stage: Stage,
    region: Region,
    batch: Batch,
    places: Mapping[str, Place],
    program: Program,
    options: Options,
    names: dict[str, int],
) -> Kernel:
    private = False
    if region.kind == IMAGES:
        private = batch.kinds[stage.name] == REDUCING
        stage = _of_one_image(stage, batch)
    name = _identifier(stage.name, names)
    if stage.message is not None:
        return Kernel(name, Exchanging(stage))
    last = not batch.last.isdisjoint((*stage.reads(), *stage.writes()))
    rows_axis = _axis_of(stage, 1 if last else 2)
    # Blocks keep their results in registers: two of them must not be the same element.
    scatters = conflict(stage, program.tensors[stage.write.tensor].shape) is not None
    together = region.kind == WHOLE and options.threads > 1
    if together and not scatters and stage.method == ATOMICS and _shares_terms(stage):
        nest = nests.plan(_bare(stage), places, True, rows_axis)
        return Kernel(name, replace(nest, stage=stage, private=False, atomic=True))
    asked = together and options.private_sums and stage.method == REDUCTION and _shares_terms(stage)
    if not scatters and options.register_blocks:
        alone = private or asked
        kernel = _in_blocks(name, stage, alone, region, last, rows_axis, places, program, options)
        if kernel is not None:
            return kernel
    shared = scatters and together
    if shared and stage.method != ATOMICS:
        private = True
    # Inside of an image a thread is alone: its copy is shared along the axis that bands go by.
    any_axis = scatters and (shared or not private)
    bare = _bare(stage) if private else stage
    nest = nests.plan(bare, places, private, rows_axis, any_axis, options.register_blocks)
    if together and not private and (asked or _needs_private(nest, options)):
        private = True
        nest = nests.plan(_bare(stage), places, True, rows_axis)
    if shared and not private:
        nest = replace(nest, atomic=True)
    return Kernel(name, nest, _merge(stage, program) if private else None)


def _in_blocks(
    name: str,
    stage: Stage,
    private: bool,
    region: Region,
    last: bool,
    rows_axis: str | None,
    places: Mapping[str, Place],
    program: Program,
    options: Options,
) -> Kernel | None:
    """The kernel of a sum of products in register blocks; None where it is none.

    Args:
        name: of the kernel.
        stage: as the region runs it.
        private: whether it sums over the images of a thread.
        region: in which it runs.
        last: whether its images lie side by side.
        rows_axis: the axis of its rows.
        places: of all tensors.
        program: what is computed.
        options: for whom.
    """
    lanes, registers = options.lanes, options.registers
    owned = region.kind == WHOLE and options.threads > 1 and not options.private_sums
    if last:
        fast = contraction.batch_last(stage, places, lanes, options.half_vector, registers)
        if fast is not None and fast.sums_over_parts and owned:
            return None
        if fast is not None and fast.sums_over_parts and options.threads > 1:
            return Kernel(name, replace(fast, private=True), _merge(stage, program))
        if fast is not None:
            return Kernel(name, fast)
    bare = _bare(stage) if private else stage
    fast = contraction.blocked(bare, places, rows_axis, lanes, options.narrowest, registers, private)
    if fast is not None and fast.form == contraction.DUAL and owned:
        return None
    if fast is not None and fast.form == contraction.DUAL and (private or region.kind == WHOLE):
        merge = _merge(stage, program)
        if options.winograd and options.real == "float" and merge == stage:
            quick = winograd_gradient(fast, places, lanes, registers)
            if quick is not None:
                return Kernel(name, quick, merge)
        if options.threads > 1:
            return Kernel(name, replace(fast, private=True), merge)
    if fast is not None:
        chosen = _winograd(fast, places, program, options)
        return Kernel(name, chosen, _merge(stage, program) if private else None)
    if region.kind == WHOLE and not private:
        product = contraction.matrix(stage, places, lanes, options.narrowest, registers)
        if product is not None:
            return Kernel(name, product)
    return None


def _winograd(
    fast: Blocked, places: Mapping[str, Place], program: Program, options: Options
) -> Blocked | Winograd:
    """Winograd's form where it is allowed and faster; weights are transformed before the region begins."""
    given = program.tensors[fast.second.access.tensor].role in (INPUT, PARAMETER, CONSTANT)
    if not options.winograd or options.real != "float" or not given or fast.stage.name in program.exact:
        return fast
    return winograd(fast, places, options.lanes, options.registers) or fast


def _partial(kernel: Kernel, program: Program) -> Place:
    """Storage of one private copy: the part of the tensor that the kernel writes."""
    stage = kernel.merge
    assert stage is not None
    place = layout.dense(program.tensors[stage.write.tensor], PARTIAL)
    if isinstance(kernel.nest, WinogradGradient):
        return replace(place, size=kernel.nest.copy)
    low, high = place.address(stage.write).bounds(stage.sizes)
    return replace(place, shift=low, size=high - low + 1)


def _merge(stage: Stage, program: Program) -> Stage:
    """The stage that a merge completes; of one that scatters, element by element."""
    if conflict(stage, program.tensors[stage.write.tensor].shape) is None:
        return stage
    tensor = program.tensors[stage.write.tensor]
    axes = tuple(Axis(f"d{i}", size) for i, size in enumerate(tensor.shape))
    return replace(
        stage, axes=axes, write=Access(tensor.name, indices(axis.name for axis in axes)), guards=()
    )


def _sweep(step: Step, places: Mapping[str, Place], program: Program, options: Options) -> None:
    """Arrange the kernels of a region of images in sweeps."""
    if step.kind != IMAGES or not options.cache_bytes:
        step.sweeps = [Sweep(i, i) for i in range(len(step.kernels))]
        return
    rows = [_rows(kernel) for kernel in step.kernels]
    step.sweeps = sweeps(rows, places, program.tensors, options.cache_bytes, options.real_bytes)


def _rows(kernel: Kernel) -> Rows:
    split = kernel.nest.split
    named = ROWS if kernel.members else _axis_of(kernel.stage, 2)
    axis = split.name if split is not None and split.name == named else None
    stages = tuple(part.stage for part in kernel.parts)
    return Rows(stages, axis, split.size if split else 1, kernel.granule, kernel.preferred)


def _roll(result: Schedule) -> None:
    """Find the tensors that need no more than some rows of room, and shorten their places."""
    homes: dict[str, set[tuple[int, int]]] = {}
    for number, step in enumerate(result.steps):
        for position, sweep in enumerate(step.sweeps):
            for kernel in step.kernels[sweep.first : sweep.last + 1]:
                for part in kernel.parts:
                    for name in (*part.stage.reads(), *part.stage.writes()):
                        homes.setdefault(name, set()).add((number, position))
                    for name in touched_at_end(part):
                        homes.setdefault(name, set()).add((number, -1))
    for number, step in enumerate(result.steps):
        for position, sweep in enumerate(step.sweeps):
            if sweep.bounds is None:
                continue
            walkers = []
            for at, kernel in enumerate(step.kernels[sweep.first : sweep.last + 1]):
                rows = _rows(kernel)
                assert rows.axis is not None
                bounds = tuple(bound[at] for bound in sweep.bounds)
                walkers.append(Walker(rows.stages, rows.axis, bounds))
            inside = [n for n, at in homes.items() if at == {(number, position)} and n in result.places]
            candidates = {n: result.places[n] for n in inside}
            found = rolling(walkers, candidates, result.program.tensors)
            step.sweeps[position] = replace(sweep, rolling=tuple(found))
            for one in found:
                place = result.places[one.tensor]
                result.places[one.tensor] = shortened(place, one, result.options.lanes)


def _bare(stage: Stage) -> Stage:
    """Only the sum: what it begins with and what becomes of it is the business of the merge."""
    return replace(stage, initial=None, finish=None, onto=False)


def _needs_private(nest: Nest, options: Options) -> bool:
    """Whether a sum has too few elements to share them among the threads."""
    stage = nest.stage
    if options.threads == 1 or not options.private_sums or stage.combine != SUM or not stage.reduced:
        return False
    work = stage.multiplications
    parts = nest.split.size if nest.split else 1
    return parts < options.threads and work >= 4096


def _shares_terms(stage: Stage) -> bool:
    """Whether the longest loop of a sum runs over terms: as it stands, that is the parallel one."""
    terms = max((axis.size for axis in stage.reduced), default=0)
    return stage.combine == SUM and terms > max((axis.size for axis in stage.kept), default=1)


def _axis_of(stage: Stage, dimension: int) -> str | None:
    """The axis of a dimension of pictures, such as 2 for rows: of what is written, or of what is read."""
    sizes = stage.sizes
    found: list[tuple[int, int, str]] = []
    for position, access in enumerate([stage.write, *(load.access for load in stage.loads())]):
        if len(access.indices) == 4 and access.indices[dimension].terms:
            # The window's position moves further than its taps.
            name = max(access.indices[dimension].axes, key=lambda n: (sizes[n], n))
            found.append((sizes[name], -position, name))
    return max(found)[2] if found else None


def _identifier(name: str, taken: dict[str, int]) -> str:
    import re

    text = re.sub(r"\W+", "_", name).strip("_") or "stage"
    if text[0].isdigit():
        text = f"s_{text}"
    number = taken.get(text, 0)
    taken[text] = number + 1
    return f"k_{text}_{number}" if number else f"k_{text}"
