"""What the loops say before anything runs: exclusive reads and writes, and the transposed loops."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from meta500.backends.generated.affine import Affine, indices
from meta500.backends.generated.exclusive_read import (
    EXCLUSIVE,
    SHARED,
    Exclusiveness,
    Reading,
    exclusive,
    exclusive_read,
    exclusive_write,
)
from meta500.backends.generated.expressions import ZERO, Access, Expr, Load, loads, rewrite
from meta500.backends.generated.ir import GATHER, Axis, Program, Stage
from meta500.benchmarks.protocol import Emit
from meta500.benchmarks.studies.adjoint.forms import adjoint_program
from meta500.benchmarks.studies.adjoint.subjects import INPUT_GRADIENT, Subject
from meta500.errors import UserError
from meta500.metrics.rows import Row

_VALUES = {EXCLUSIVE: 1.0, SHARED: 0.0}
# Convolutions are judged on so many images; more would change no verdict.
_IMAGES = 2


def examples(emit: Emit) -> None:
    """The three example loops of the slides; the third with known sizes, and with one that is not."""
    plain, scalar = Access("c", indices(["i"])), Access("a", ())
    window = Access("c", indices([Affine.of({"i": 1, "j": 1})]))
    cases: list[tuple[str, Access, dict[str, int | None]]] = [
        ("b(i) = sin(c(i))", plain, {"i": 10}),
        ("b(i) = a + c(i)", plain, {"i": 10}),
        ("b(i) = a + c(i)", scalar, {"i": 10}),
    ]
    for size in (0, 1, 4):
        text = f"b(i) = sum of c(i-size ... i+size), size = {size}"
        cases.append((text, window, {"i": 10 - 2 * size, "j": 2 * size + 1}))
    cases.append(("b(i) = sum of c(i-size ... i+size), size read at run time", window, {"i": 10, "j": None}))
    for text, access, sizes in cases:
        found = exclusive([Reading(access)], sizes, ["i"])
        emit(_row(f"read of {access.tensor}", "i", found, model="example", operator="", node=text))


def verdicts(subjects: Sequence[Subject], emit: Emit) -> None:
    """For every loop of the primal: does it write, and does it read, elements of its own?"""
    for name in dict.fromkeys(subject.name for subject in subjects):
        subject = next(s for s in subjects if s.name == name)
        for stage in primal_loops(subject):
            what = {"model": subject.model, "operator": subject.operator, "node": name}
            for axis in stage.axes:
                emit(_row("write", axis.name, exclusive_write(stage, [axis.name]), **what))
                for tensor in dict.fromkeys(load.access.tensor for load in stage.loads()):
                    try:
                        found = exclusive_read(stage, tensor, [axis.name])
                    except UserError:
                        continue  # it is read outside of this loop
                    emit(_row(f"read of {tensor}", axis.name, found, **what))


def primal_loops(subject: Subject) -> Iterable[Stage]:
    """The loops that write what is differentiated, without those of its edge; pictures are a batch of two."""
    for stage in subject.program.stages:
        if stage.write.tensor != subject.target or stage.value == ZERO:
            continue
        yield _with_images(stage) if subject.operator != "Stencil" else stage


def _with_images(stage: Stage) -> Stage:
    """The loops of a convolution on one image, on several."""
    image = Affine.axis("n")

    def moved(access: Access) -> Access:
        return replace(access, indices=(image, *access.indices[1:]))

    def change(e: Expr) -> Expr | None:
        # Weights have no images.
        if isinstance(e, Load) and e.access.tensor == "x":
            return replace(e, access=moved(e.access))
        return None

    axes = (Axis("n", _IMAGES), *stage.axes)
    return replace(stage, axes=axes, write=moved(stage.write), value=rewrite(stage.value, change))


def _row(phase: str, axis: str, found: Exclusiveness, **what: Any) -> Row:
    note = found.reason or (f"both touch {found.witness}" if found.witness is not None else "")
    return Row(
        level=0,
        phase=phase,
        mode=f"loop {axis}",
        quantity="exclusive_write" if phase == "write" else "exclusive_read",
        unit="1",
        value=_VALUES.get(found.verdict, math.nan),
        note=note,
        **what,
    )


def transposed(subject: Subject, emit: Emit) -> None:
    """Whether the gathered adjoint is a stencil again: points per element, and who writes what."""
    if subject.phase != INPUT_GRADIENT:
        return
    what: dict[str, Any] = {"level": 0, "unit": "1", "backend": "generated", "operator": subject.operator}
    what |= {"model": subject.model, "node": subject.name}
    program = adjoint_program(subject, GATHER)
    stages = [stage for stage in program.stages if stage.method == GATHER]
    forward = sum(_points(stage, subject.variable) for stage in _forward(subject.program, subject.target))
    backward = sum(math.prod(axis.size for axis in stage.reduced) for stage in stages)
    alone = all(
        exclusive_write(stage, [axis.name]).verdict == EXCLUSIVE for stage in stages for axis in stage.kept
    )
    note = "; ".join(" ".join(str(stage).split("\n", 2)[-1].split()) for stage in stages)
    emit(Row(**what, phase="primal", quantity="points", value=forward))
    emit(Row(**what, phase="adjoint", quantity="points", value=backward))
    emit(Row(**what, phase="adjoint", quantity="transposed", value=float(alone), note=note))


def _forward(program: Program, target: str) -> list[Stage]:
    return [stage for stage in program.stages if stage.write.tensor == target and stage.value != ZERO]


def _points(stage: Stage, variable: str) -> int:
    """How often the loops for one written element read a variable."""
    inside = [load for load in loads(stage.value) if load.access.tensor == variable]
    once = [load for load in loads(stage.initial) if load.access.tensor == variable]
    return len(inside) * math.prod(axis.size for axis in stage.reduced) + len(once)
