"""All parameters in one array, all their gradients in another one: an optimizer is then a single loop."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.expressions import Access, Expr, Load, rewrite
from meta500.backends.generated.ir import PARAMETER, REAL, VALUE, Program, Stage, Tensor

PARAMETERS, GRADIENTS = "parameters", "gradients"
# Every tensor begins at a multiple of so many elements: 64 bytes of float32.
_STEP = 16


@dataclass(frozen=True)
class Packing:
    """Where every parameter lies in the array of all.

    Attributes:
        shapes: by name.
        offsets: elements before the first one, by name.
        size: elements of the whole array.
    """

    shapes: dict[str, tuple[int, ...]]
    offsets: dict[str, int]
    size: int

    @staticmethod
    def of(shapes: Mapping[str, tuple[int, ...]]) -> Packing:
        """Parameters of these shapes, one after the other."""
        offsets, total = {}, 0
        for name, shape in shapes.items():
            offsets[name] = total
            total += -(-max(math.prod(shape), 1) // _STEP) * _STEP
        return Packing(dict(shapes), offsets, max(total, _STEP))

    def elements(self, name: str) -> int:
        """How many elements a parameter has."""
        return math.prod(self.shapes[name])

    def end(self, name: str) -> int:
        """Where the next parameter begins."""
        return self.offsets[name] + -(-max(self.elements(name), 1) // _STEP) * _STEP

    def index(self, name: str, indices: Sequence[Affine]) -> Affine:
        """The position of an element of ``name``."""
        total, step = Affine((), self.offsets[name]), 1
        for size, index in zip(reversed(self.shapes[name]), reversed(indices), strict=True):
            total, step = total + index * step, step * size
        return total


def packed(program: Program, packing: Packing) -> Program:
    """``program`` reading its parameters from one tensor and writing their gradients into another one."""
    result = replace(
        program,
        tensors=dict(program.tensors),
        gradients=dict(program.gradients),
        outputs=dict(program.outputs),
    )
    places: dict[str, tuple[str, str]] = {}
    parameters, gradients = result.unique(PARAMETERS), result.unique(GRADIENTS)
    for name in packing.offsets:
        if name in result.tensors:
            places[name] = (parameters, name)
        bar = result.gradients.get(name)
        if bar is not None and bar not in result.outputs.values():
            places[bar] = (gradients, name)
            result.gradients[name] = gradients
    for tensor, role in ((parameters, PARAMETER), (gradients, VALUE)):
        if any(place[0] == tensor for place in places.values()):
            result.tensors[tensor] = Tensor(tensor, (packing.size,), REAL, role)
    for name in places:
        del result.tensors[name]

    def moved(access: Access) -> Access:
        if access.tensor not in places:
            return access
        tensor, name = places[access.tensor]
        return Access(tensor, (packing.index(name, access.indices),))

    def change(e: Expr) -> Expr | None:
        return Load(moved(e.access), e.held) if isinstance(e, Load) and e.access.tensor in places else None

    def moved_stage(stage: Stage) -> Stage:
        return replace(
            stage,
            write=moved(stage.write),
            value=rewrite(stage.value, change),
            initial=None if stage.initial is None else rewrite(stage.initial, change),
            finish=None if stage.finish is None else rewrite(stage.finish, change),
        )

    result.stages = [moved_stage(stage) for stage in program.stages]
    return result
