"""The pieces of the study of parallel adjoints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from meta500.benchmarks.protocol import FULL, Emit, Protocol
from meta500.benchmarks.studies.adjoint import loops
from meta500.benchmarks.studies.adjoint.measurement import Conditions, measure
from meta500.benchmarks.studies.adjoint.settings import STENCILS, Settings
from meta500.benchmarks.studies.adjoint.subjects import (
    BURGERS,
    Convolution,
    Subject,
    convolution_subjects,
    convolutions,
    stencil_subject,
)
from meta500.benchmarks.studies.adjoint.subjects import STENCILS as TEXTS
from meta500.benchmarks.studies.study import ADJOINT, Piece, Study

TITLE = "Parallel adjoints"
SOURCE = (
    "J. Hückelheim and P. Hovland, Automatic Differentiation of Parallelised Convolutional Neural Networks: "
    "Lessons from Adjoint PDE Solvers, 2017"
)
# Elements per dimension of the fields, by rank.
_QUICK_FIELDS, _FULL_FIELDS = {1: 200_000, 2: 512}, {1: 4_000_000, 2: 2048}
_QUICK_STENCILS = ("1-D 3-point", "2-D star", "2-D 5x5", BURGERS)
_QUICK_NETS, _FULL_NETS = (3,), (0, 1, 2, 3)
_QUICK_IMAGE, _FULL_IMAGE = 64, 256
# Those of quick mode, by operator and kernel.
_QUICK_KINDS = (("Conv", 3), ("ConvTranspose", 2))
_QUICK = Protocol(warmup=1, min_repeats=11, min_seconds=0.3, max_seconds=5.0)
# The full protocol for each of two hundred adjoints would take days.
_FULL = Protocol(warmup=FULL.warmup, min_repeats=15, min_seconds=1.0, max_seconds=60.0)


def planned(settings: Settings) -> Study:
    """The study.

    Raises:
        UserError: an option is out of range.
    """
    settings.check()
    quick = settings.quick
    conditions = Conditions(
        settings.thread_counts, _QUICK if quick else _FULL, repeats=20 if quick else 100, seed=settings.seed
    )
    pieces = [Piece("example loops", "three example loops", loops.examples)]
    if STENCILS in settings.chosen:
        fields = _QUICK_FIELDS if quick else _FULL_FIELDS
        for text in TEXTS:
            size = fields[text.rank]
            resident = not quick or text.name == "2-D 5x5"

            def make(text=text, size=size) -> list[Subject]:  # type: ignore[no-untyped-def]
                return [stencil_subject(text, size, settings.seed)]

            times = not quick or text.name in _QUICK_STENCILS
            run = _run(make, conditions, times, size if resident else 0)
            pieces.append(Piece(f"stencil {text.name}", f"adjoint of the {text.name} stencil", run))
    if len(settings.chosen) > 1 or STENCILS not in settings.chosen:
        pieces += _unet_pieces(settings, conditions)
    return Study(ADJOINT, TITLE, SOURCE, _plain(settings, conditions), pieces, _protocol(conditions, quick))


def _unet_pieces(settings: Settings, conditions: Conditions) -> list[Piece]:
    nets, image = (_QUICK_NETS, _QUICK_IMAGE) if settings.quick else (_FULL_NETS, _FULL_IMAGE)
    pieces = []
    for n in nets:
        timed: dict[tuple[str, int], Convolution] = {}
        found = convolutions(n, image)
        for one in found:
            # Of each kind the one with most work.
            best = timed.get((one.operator, one.kernel))
            if best is None or one.work > best.work:
                timed[one.operator, one.kernel] = one
        for one in found:
            kind = (one.operator, one.kernel)
            times = not settings.quick or (kind in _QUICK_KINDS and timed[kind] == one)

            def make(one=one, n=n) -> list[Subject]:  # type: ignore[no-untyped-def]
                return convolution_subjects(one, f"unet-{n}", settings.seed)

            if not settings.quick or timed[kind] == one:
                run = _run(make, conditions, times, 0)
                pieces.append(Piece(f"unet-{n} {one.name}", f"adjoints of the {one.name} (unet-{n})", run))
    return pieces


def _run(
    make: Callable[[], Sequence[Subject]], conditions: Conditions, times: bool, resident: int
) -> Callable[[Emit], None]:
    """The work of one piece: the verdicts on the loops of its subjects and, if wanted, their times."""

    def run(emit: Emit) -> None:
        subjects = make()
        loops.verdicts(subjects, emit)
        for subject in subjects:
            loops.transposed(subject, emit)
            if times:
                measure(subject, conditions, emit, resident)

    return run


def _plain(settings: Settings, conditions: Conditions) -> dict[str, object]:
    parts = {"threads": settings.most_threads, "parts": list(settings.chosen)}
    return {**asdict(settings), **parts, "protocol": conditions.protocol.limits()}


def _protocol(conditions: Conditions, quick: bool) -> list[str]:
    counts = ", ".join(map(str, conditions.threads))
    return [
        "Every adjoint is derived from the loops of its primal by the generated backend and compiled once "
        f"per form; parallel forms are made for {conditions.threads[-1]} threads and run with {counts} of "
        "them.",
        "Serial forms are compiled without OpenMP and have no atomic additions; their vector loops stay. "
        "Winograd's forms are off, so that all forms do the same products, and so are sums in "
        "blocks of registers or written out, which only some forms allow: all are plain vector loops, and "
        "slower for a convolution than the backend's own choice.",
        "A call clears the gradient where the form needs that, runs all loops, and adds up private copies.",
        "All forms and numbers of threads of one adjoint are timed in the same rounds, in an order that is "
        "shuffled anew in each; before each timed call the same function runs once untimed, so that threads "
        "are awake and data are as they would be in a loop.",
        "Times are medians with 95 % intervals from order statistics; ratios are paired by round, and ratios "
        "over several adjoints are those of the geometric mean over adjoints in each round.",
        "Every result is compared with a float64 reference in numpy that shares no code with the generated "
        f"one, and with up to {conditions.repeats} repetitions of itself, bit by bit. Wrong results are not "
        "ranked.",
        "The verdicts on loops are exact: with whole-number arithmetic it is decided whether two iterations "
        "read the same element, and a 'no' has a witness. Convolutions are judged with two images, and timed "
        "with one: within a batch the loop over images reads exclusively and nothing has to be protected.",
        "Fields and images are small, so that the study takes minutes."
        if quick
        else "Fields have 4,000,000 elements or 2048 x 2048; images 256 x 256.",
    ]
