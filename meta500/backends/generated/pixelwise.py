"""Stages that work on every pixel by itself, joined into one pass: softmax, loss, their gradient.

All stages of a pass run over the same rows and columns; other axes are few and written out. What one stage
writes and only others of the pass read stays in registers. Sums over all pixels are added up on the way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import Apply, Index, walk
from meta500.backends.generated.ir import MAX, SET, SUM, Axis, Program, Stage

# Names of the axes of rows and columns in a pass.
ROWS, COLUMNS = "i", "j"
# Limits of what is written out: values of the other axes of a stage, sums over all pixels, and statements.
_MOST_POINTS, _MOST_SUMS, _MOST_STATEMENTS = 32, 16, 160
_FEWEST_STAGES = 3


@dataclass(frozen=True)
class Pixelwise:
    """One pass over rows and columns.

    Attributes:
        stages: in order; rows and columns are called ``i`` and ``j`` in all of them.
        rows, columns: the axes.
        local: tensors that exist in registers only.
        lanes: numbers in a vector.
    """

    stages: tuple[Stage, ...]
    rows: Axis
    columns: Axis
    local: frozenset[str]
    lanes: int = 1

    @property
    def stage(self) -> Stage:
        """The last stage."""
        return self.stages[-1]

    @property
    def split(self) -> Axis:
        """The axis whose range the caller chooses."""
        return self.rows

    @property
    def granule(self) -> int:
        """As for every kernel."""
        return 1

    @property
    def scratch(self) -> int:
        """As for every kernel."""
        return 0

    def __str__(self) -> str:
        local = ", ".join(sorted(self.local)) or "-"
        return (
            f"pixelwise: {len(self.stages)} stages over rows {self.rows.name}<{self.rows.size}, vectorised "
            f"{self.columns.name}<{self.columns.size} on {self.lanes} lanes; in registers {local}"
        )


@dataclass(frozen=True)
class Member:
    """A stage of a pass, where it is looked at alone."""

    stage: Stage
    private: bool = False
    split: None = None
    granule: int = 1
    scratch: int = 0


def is_total(stage: Stage) -> bool:
    """Whether a stage of a pass sums over all its pixels."""
    return ROWS not in stage.write.axes


def joined(
    stages: Sequence[Stage], program: Program, pictures: set[str], images: set[str]
) -> list[Pixelwise | Stage]:
    """Consecutive pixelwise stages as passes; the others as they are.

    Args:
        stages: of one region, without the axis of the images.
        program: whose stages they are.
        pictures: tensors with an image in their last two dimensions.
        images: tensors with something of every image. Sums over the pixels of one image are finished with it,
            and read then: they are no part of a pass, whose sums are added up when all images are through.
    """
    found: list[Pixelwise | Stage] = []
    begin = 0
    while begin < len(stages):
        end = _run(stages, begin, pictures, images)
        if end - begin >= _FEWEST_STAGES:
            found.append(_pass(stages[begin:end], program, pictures))
            begin = end
        else:
            found.append(stages[begin])
            begin += 1
    return found


def _run(stages: Sequence[Stage], begin: int, pictures: set[str], images: set[str]) -> int:
    """The end of the run of pixelwise stages that begins here."""
    first = pixels(stages[begin], pictures)
    if first is None:
        return begin
    totals = statements = 0
    for end in range(begin, len(stages)):
        stage = stages[end]
        here = pixels(stage, pictures)
        if here is None or [a.size for a in here] != [a.size for a in first]:
            return end
        others = math.prod(a.size for a in stage.axes if a not in here)
        statements += others
        if here[0].name not in stage.write.axes:
            if stage.write.tensor in images:
                return end
            totals += math.prod(a.size for a in stage.kept)
        if others > _MOST_POINTS or totals > _MOST_SUMS or statements > _MOST_STATEMENTS:
            return end
    return len(stages)


def pixels(stage: Stage, pictures: set[str]) -> tuple[Axis, Axis] | None:
    """The axes of rows and columns of a pixelwise stage, None for any other."""
    if stage.guards or stage.winner is not None or stage.combine not in (SET, SUM, MAX):
        return None
    if stage.method not in ("", "gather"):
        return None
    found: tuple[str, str] | None = None
    accesses = [stage.write, *(load.access for load in stage.loads())]
    for access in accesses:
        if access.tensor not in pictures:
            continue
        last = access.indices[-2:]
        if not all(index.is_axis for index in last):
            return None
        names = (last[0].axes[0], last[1].axes[0])
        if found not in (None, names):
            return None
        found = names
    if found is None or found[0] == found[1]:
        return None
    for access in accesses:
        indices = access.indices[:-2] if access.tensor in pictures else access.indices
        if any(set(found) & set(index.axes) for index in indices):
            return None
    parts = [part for part in (stage.value, stage.initial, stage.finish) if part is not None]
    if any(isinstance(e, Apply) and e.function == "uniform" for part in parts for e in walk(part)):
        return None
    if any(isinstance(e, Index) and set(found) & set(e.index.axes) for part in parts for e in walk(part)):
        return None
    sizes = {a.name: a for a in stage.axes}
    if found[0] not in sizes or found[1] not in sizes or sizes[found[1]].size < 4:
        return None
    both = {name in stage.write.axes for name in found}
    if len(both) == 2 or (both == {False} and stage.combine != SUM):
        return None
    return sizes[found[0]], sizes[found[1]]


def _pass(stages: Sequence[Stage], program: Program, pictures: set[str]) -> Pixelwise:
    renamed = []
    for stage in stages:
        here = pixels(stage, pictures)
        assert here is not None
        renamed.append(_named(stage, here))
    rows, columns = pixels(renamed[0], pictures) or (Axis(ROWS, 1), Axis(COLUMNS, 1))
    names = {stage.name for stage in stages}
    handed = {*program.outputs.values(), *program.gradients.values(), *program.updates.values()}
    handed |= set(program.faults)
    local = set()
    for stage in renamed:
        tensor = stage.write.tensor
        if tensor in handed or is_total(stage):
            continue
        users = [s.name for s in program.stages if tensor in s.reads() or tensor in s.writes()]
        if set(users) <= names:
            local.add(tensor)
    return Pixelwise(tuple(renamed), rows, columns, frozenset(local))


def _named(stage: Stage, here: tuple[Axis, Axis]) -> Stage:
    """``stage`` with rows and columns called ``i`` and ``j``."""
    new = {here[0].name: ROWS, here[1].name: COLUMNS}
    for axis in stage.axes:
        if axis.name not in new and axis.name in (ROWS, COLUMNS):
            new[axis.name] = f"{axis.name}_"
    axes = tuple(Axis(new.get(a.name, a.name), a.size) for a in stage.axes)
    return stage.substitute({old: Affine.axis(name) for old, name in new.items()}, axes)
