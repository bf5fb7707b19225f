"""Everything that is decided between the IR and the C++ text: regions, places, nests, memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from meta500.backends.generated import contraction, layout, memory, nests
from meta500.backends.generated.affine import Affine, indices
from meta500.backends.generated.contraction import Blocked
from meta500.backends.generated.expressions import Access, Load
from meta500.backends.generated.images import (
    IMAGES,
    REDUCING,
    WHOLE,
    Batch,
    Region,
    divide,
    find_batch,
)
from meta500.backends.generated.ir import CONSTANT, INPUT, PARAMETER, SET, VALUE, Axis, Program, Stage
from meta500.backends.generated.layout import EXTERNAL, OWN, PARTIAL, SHARED, Place
from meta500.backends.generated.nests import Nest
from meta500.backends.generated.sweeps import Rows, Sweep, sweeps
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
    """

    real: str = "float"
    threads: int = 1
    vector_bytes: int = 64
    registers: int = 32
    profile: bool = False
    cache_bytes: int = 1 << 20

    @property
    def real_bytes(self) -> int:
        """Bytes of one floating-point number."""
        return 4 if self.real == "float" else 8

    @property
    def lanes(self) -> int:
        """Numbers in one vector."""
        return self.vector_bytes // self.real_bytes


@dataclass(frozen=True)
class Kernel:
    """A function of the generated code: one stage in its loops.

    Attributes:
        name: of the function.
        nest: its loops.
        merge: for sums into private copies, the stage that adds these up; it sees the sum as ``Result``.
    """

    name: str
    nest: Nest | Blocked
    merge: Stage | None = None

    @property
    def stage(self) -> Stage:
        """The stage that it computes."""
        return self.nest.stage

    @property
    def granule(self) -> int:
        """Ranges of the split axis begin at multiples of this."""
        return self.nest.granule if isinstance(self.nest, Blocked) else 1

    @property
    def scratch(self) -> int:
        """Numbers of memory of its own that the kernel needs while it runs."""
        return self.nest.scratch if isinstance(self.nest, Blocked) else 0


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
            yield (
                f"  {place.kind:8} {place.c_type} {place.tensor}: strides {place.strides} origin {place.origin}"
                f"{halo} at {place.offset}"
            )
        for number, step in enumerate(self.steps):
            yield ""
            kind = "every thread its own images" if step.kind == IMAGES else "all threads together"
            yield f"region {number}: {kind}"
            swept = {s.first: s for s in step.sweeps if s.bounds is not None}
            for position, kernel in enumerate(step.kernels):
                if position in swept:
                    sweep = swept[position]
                    assert sweep.bounds is not None
                    count = sweep.last - sweep.first + 1
                    yield f"  sweep of the next {count} kernels in {len(sweep.bounds) - 1} bands of rows"
                yield f"  {kernel.name}: {kernel.nest}"
                yield from (f"    {line}" for line in str(kernel.stage).splitlines()[1:])

    def __str__(self) -> str:
        return "\n".join(self.lines())


def schedule(program: Program, options: Options) -> Schedule:
    """All decisions for a fused program.

    Raises:
        UserError: a tensor with more elements than addresses can count.
    """
    program = _with_copies(program)
    batch = find_batch(program)
    regions = _regions(program, batch, options)
    places = _places(program, batch, regions, options)
    stages = {s.name: layout.unguarded(s, program, places) for s in program.stages}
    steps = []
    names: dict[str, int] = {}
    for region in regions:
        step = Step(region.kind)
        for stage in region.stages:
            step.kernels.append(_kernel(stages[stage.name], region, batch, places, program, options, names))
        _sweep(step, places, program, options)
        steps.append(step)
    partials = {
        kernel.name: replace(layout.dense(program.tensors[kernel.stage.write.tensor], PARTIAL), offset=0)
        for step in steps
        for kernel in step.kernels
        if kernel.merge is not None
    }
    external = [name for name, place in places.items() if place.kind == EXTERNAL]
    result = Schedule(program, options, batch, places, partials, external, steps)
    _arrange(result)
    return result


def _with_copies(program: Program) -> Program:
    """Inputs that stencils read past their edge are copied into storage with zeros around it.

    Outputs that stencils read are computed there too, and copied out.
    """
    program = replace(program, tensors=dict(program.tensors), stages=list(program.stages))
    outside = {name for name, t in program.tensors.items() if t.role == INPUT and len(t.shape) == 4}
    for name in sorted(outside):
        readers = [s for s in program.stages if _reads_past_edge(s, name)]
        if readers:
            inner = program.unique(f"{name}.rows")
            program.tensors[inner] = replace(program.tensors[name], name=inner, role=VALUE)
            first = program.stages.index(readers[0])
            changed = {s.name: _renamed_loads(s, name, inner) for s in readers}
            program.stages = [changed.get(s.name, s) for s in program.stages]
            program.stages.insert(first, _copy(program, name, inner))
    handed = dict.fromkeys(
        [*program.outputs.values(), *program.gradients.values(), *program.updates.values()]
    )
    renamed: dict[str, str] = {}
    for name in handed:
        tensor = program.tensors[name]
        if tensor.role in (INPUT, PARAMETER, CONSTANT) or any(
            _reads_past_edge(s, name) for s in program.stages
        ):
            renamed[name] = _copied_out(program, name)
    for pairs in (program.outputs, program.gradients, program.updates):
        for key, name in list(pairs.items()):
            if name in renamed:
                pairs[key] = renamed[name]
    return program


def _reads_past_edge(stage: Stage, name: str) -> bool:
    """Whether a guard protects a load of the tensor in a sum of products."""
    if stage.combine != "sum":
        return False
    for load in stage.loads():
        if load.access.tensor == name and any(
            guard.index in load.access.indices[2:] for guard in stage.guards
        ):
            return True
    return False


def _renamed_loads(stage: Stage, old: str, new: str) -> Stage:
    from meta500.backends.generated.expressions import Expr, rewrite

    def change(e: Expr) -> Expr | None:
        return (
            Load(replace(e.access, tensor=new), e.held)
            if isinstance(e, Load) and e.access.tensor == old
            else None
        )

    return replace(
        stage,
        value=rewrite(stage.value, change),
        initial=None if stage.initial is None else rewrite(stage.initial, change),
        finish=None if stage.finish is None else rewrite(stage.finish, change),
    )


def _copy(program: Program, source: str, target: str) -> Stage:
    shape = program.tensors[source].shape
    axes = tuple(Axis(f"d{i}", size) for i, size in enumerate(shape) if size > 1)
    at = indices(f"d{i}" if size > 1 else 0 for i, size in enumerate(shape))
    return Stage(
        program.unique_stage(target),
        f"copy of {source}",
        axes,
        Access(target, at),
        Load(Access(source, at)),
        SET,
    )


def _copied_out(program: Program, name: str) -> str:
    outer = program.unique(f"{name}.out")
    program.tensors[outer] = replace(program.tensors[name], name=outer, role=VALUE)
    program.stages.append(_copy(program, name, outer))
    return outer


def _regions(program: Program, batch: Batch, options: Options) -> list[Region]:
    """Regions; one alone, of all threads together, where there are too few images for the threads."""
    count, threads = batch.count, options.threads
    if count and (count % threads == 0 or count >= 4 * threads):
        return divide(program, batch)
    return [Region(WHOLE, list(program.stages))] if program.stages else []


def _places(program: Program, batch: Batch, regions: list[Region], options: Options) -> dict[str, Place]:
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
        if name not in used_in:
            continue
        numbers = used_in[name]
        images = name in batch.tensors
        own = images and len(numbers) == 1 and regions[min(numbers)].kind == IMAGES
        kind = OWN if own else SHARED
        if len(tensor.shape) == 4:
            halo = halos.get(name, layout.Halo((0,) * 4, (0,) * 4))
            # Without a dimension of images the first one is an ordinary dimension.
            places[name] = layout.rows(tensor, kind, halo, options.lanes, kind == SHARED)
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
        axis = batch.axes[stage.name]
        private = batch.kinds[stage.name] == REDUCING
        # The image is chosen by the caller: its axis is no loop of the kernel.
        stage = stage.substitute({axis: Affine()}, tuple(a for a in stage.axes if a.name != axis))
    rows_axis = _rows_axis(stage, places)
    name = _identifier(stage.name, names)
    fast = contraction.blocked(
        _bare(stage) if private else stage, places, rows_axis, options.lanes, options.registers, private
    )
    if fast is not None and fast.form == contraction.DUAL and not private and options.threads > 1:
        private = True
        fast = replace(fast, private=True)
    if fast is not None:
        return Kernel(name, fast, stage if private else None)
    nest: Nest = nests.plan(_bare(stage) if private else stage, places, private, rows_axis)
    if region.kind == WHOLE and not private and _needs_private(nest, options):
        private = True
        nest = nests.plan(_bare(stage), places, True, rows_axis)
    return Kernel(name, nest, stage if private else None)


def _sweep(step: Step, places: Mapping[str, Place], program: Program, options: Options) -> None:
    """Arrange the kernels of a region of images in sweeps."""
    if step.kind != IMAGES or not options.cache_bytes:
        step.sweeps = [Sweep(i, i) for i in range(len(step.kernels))]
        return
    rows = []
    for kernel in step.kernels:
        split = kernel.nest.split
        named = _rows_axis(kernel.stage, places)
        axis = split.name if split is not None and split.name == named else None
        rows.append(Rows(kernel.stage, axis, split.size if split else 1, kernel.granule))
    step.sweeps = sweeps(rows, places, program.tensors, options.cache_bytes, options.real_bytes)


def _bare(stage: Stage) -> Stage:
    """Only the sum: what it begins with and what becomes of it is the business of the merge."""
    return replace(stage, initial=None, finish=None, onto=False)


def _needs_private(nest: Nest, options: Options) -> bool:
    """Whether a sum has too few elements to share them among the threads."""
    stage = nest.stage
    if options.threads == 1 or stage.combine != "sum" or not stage.reduced:
        return False
    work = stage.multiplications
    parts = nest.split.size if nest.split else 1
    return parts < options.threads and work >= 4096


def _rows_axis(stage: Stage, places: Mapping[str, Place]) -> str | None:
    """The axis of the image rows: dimension 2 of what is written, or of what is read."""
    sizes = stage.sizes
    found: list[tuple[int, int, str]] = []
    for position, access in enumerate([stage.write, *(load.access for load in stage.loads())]):
        if len(access.indices) == 4 and access.indices[2].terms:
            # The window's position moves further than its taps.
            name = max(access.indices[2].axes, key=lambda n: (sizes[n], n))
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


def _arrange(result: Schedule) -> None:
    """Offsets of all places in their arenas."""
    moments: dict[str, list[tuple[int, int]]] = {}
    time = 0
    for number, step in enumerate(result.steps):
        sweep_of = {p: i for i, s in enumerate(step.sweeps) for p in range(s.first, s.last + 1)}
        start = time
        for position, kernel in enumerate(step.kernels):
            # All tensors of a sweep are alive together.
            time = start + sweep_of[position] + 1
            stages = [kernel.stage] + ([kernel.merge] if kernel.merge else [])
            for stage in stages:
                for name in (*stage.reads(), *stage.writes()):
                    moments.setdefault(name, []).append((number, time))
            if kernel.merge is not None and step.kind == IMAGES:
                # Merged when the region ends.
                for name in (*kernel.merge.reads(), *kernel.merge.writes()):
                    moments[name].append((number, 1 << 40))
    kinds: dict[str, list[Place]] = {SHARED: [], OWN: []}
    for place in result.places.values():
        if place.kind in kinds:
            kinds[place.kind].append(place)
    shared_lives = {n: (min(m)[0], max(m)[0]) for n, m in moments.items()}
    if len(result.steps) == 1 and result.steps[0].kind == WHOLE:
        shared_lives = {n: (min(m)[1], max(m)[1]) for n, m in moments.items()}
    own_lives = {n: (min(m)[1], max(m)[1]) for n, m in moments.items()}
    real_bytes = result.options.real_bytes
    for name in result.program.faults:
        shared_lives[name] = (0, 1 << 40)
    found, result.shared_bytes = memory.arrange(kinds[SHARED], shared_lives, real_bytes)
    result.places.update(found)
    found, result.own_bytes = memory.arrange(kinds[OWN], own_lives, real_bytes)
    result.places.update(found)
    result.scratch = result.own_bytes
    result.own_bytes += max((k.scratch for s in result.steps for k in s.kernels), default=0) * real_bytes
    lives = {name: (0, 0) for name in result.partials}
    partials = [replace(place, tensor=name) for name, place in result.partials.items()]
    found, result.partial_bytes = memory.arrange(partials, lives, real_bytes)
    result.partials = {n: replace(p, tensor=result.partials[n].tensor) for n, p in found.items()}
