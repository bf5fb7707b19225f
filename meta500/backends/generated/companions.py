"""Sums that ride along with a larger one: a bias gradient with the gradient of the weights.

The gradient of a bias sums up the very pictures that the gradient of the weights multiplies with others. On
its own it costs a pass over them; beside the products it costs an addition per vector, in the pass over the
first block of the other factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from meta500.backends.generated.affine import Affine
from meta500.backends.generated.contraction import DUAL, Blocked
from meta500.backends.generated.expressions import Access, Load
from meta500.backends.generated.images import overlap
from meta500.backends.generated.ir import SUM, Axis, Stage
from meta500.backends.generated.winograd_gradient import WinogradGradient

if TYPE_CHECKING:
    from meta500.backends.generated.schedule import Kernel


@dataclass(frozen=True)
class Companion:
    """A sum over one factor of a dual sum of products.

    Attributes:
        stage: only the sum, in the axes of the sum of products.
        held: whether it sums up the held factor; else the moving one.
        others: looped axes of the sum of products that it lacks: it is added to where all of them are 0.
        private: whether threads add into copies of their own.
    """

    stage: Stage
    held: bool
    others: tuple[Axis, ...]
    private: bool

    @property
    def split(self) -> None:
        """It runs with the other sum, never on its own."""
        return None

    @property
    def granule(self) -> int:
        """As for every kernel."""
        return 1

    @property
    def scratch(self) -> int:
        """As for every kernel."""
        return 0

    def __str__(self) -> str:
        return f"sum of the {'held' if self.held else 'moving'} factor" + (
            " into private copies" if self.private else ""
        )


def joined(kernels: Sequence[Kernel], images: bool) -> list[Kernel]:
    """The kernels of a region, with sums over a factor joined to the sums of products that read it.

    Args:
        kernels: in order.
        images: every thread runs them on images of its own. Sums over all images, which have a merge, and
            sums within one image, which have none, do not go together then.
    """
    found = list(kernels)
    for kernel in kernels:
        if not kernel.members and _simple_sum(kernel.stage):
            position = found.index(kernel)
            for other, host in enumerate(found):
                if images and (host.merge is None) != (kernel.merge is None):
                    continue
                companion = _accompany(host, kernel, found[min(position, other) + 1 : max(position, other)])
                if companion is not None:
                    found[other] = companion
                    del found[position]
                    break
    return found


def _simple_sum(stage: Stage) -> bool:
    return stage.combine == SUM and isinstance(stage.value, Load) and not stage.guards


def _accompany(host: Kernel, kernel: Kernel, between: Sequence[Kernel]) -> Kernel | None:
    """``host`` with ``kernel`` inside; None where they do not fit or something between them is in the way."""
    nest = host.nest
    if not isinstance(nest, Blocked | WinogradGradient) or host.companion is not None:
        return None
    plan = nest if isinstance(nest, Blocked) else nest.direct
    if plan.form != DUAL:
        return None
    stage = kernel.merge or kernel.stage
    ends = stage.initial is not None or stage.finish is not None or stage.onto
    if ends and host.merge is None:
        return None
    if any(_depend(stage, one.merge or one.stage) for one in between):
        return None
    bare = replace(kernel.stage, initial=None, finish=None, onto=False)
    if host.merge is not None:
        # The private copy is a tensor of its own.
        bare = replace(bare, write=replace(bare.write, tensor=kernel.name))
    companion = fitted(plan, bare, host.merge is not None)
    if companion is None or not nest.welcomes(companion):
        return None
    part = replace(kernel, nest=companion, merge=stage if companion.private else None)
    return replace(host, nest=replace(nest, companion=companion), companion=part)


def _depend(one: Stage, other: Stage) -> bool:
    """Whether one stage may write what the other reads or writes."""
    for first, second in ((one, other), (other, one)):
        touched = [second.write, *(load.access for load in second.loads())]
        if any(a.tensor == first.write.tensor and overlap(first.write, first, a, second) for a in touched):
            return True
    return False


def fitted(plan: Blocked, stage: Stage, private: bool) -> Companion | None:
    """``stage`` as a companion of ``plan``; None if it is no sum over exactly one of its factors."""
    assert isinstance(stage.value, Load)
    for held, load in ((True, plan.first), (False, plan.second)):
        if load.access.tensor != stage.value.access.tensor:
            continue
        names = _renaming(stage, plan.stage, stage.value.access, load.access)
        if names is None:
            continue
        sizes = {a.name: a for a in plan.stage.axes}
        axes = tuple(sizes[names[a.name]] for a in stage.axes)
        own = stage.substitute({a.name: Affine.axis(names[a.name]) for a in stage.axes}, axes)
        blocks = [a for a, _ in plan.blocks]
        others = tuple(a for a in (*plan.outer, *blocks) if a not in axes)
        kept = {a for a in (*plan.outer, *blocks) if a in axes}
        if set(own.kept) == kept and set(plan.stage.reduced) <= set(own.reduced):
            return Companion(own, held, others, private)
    return None


def _renaming(stage: Stage, other: Stage, mine: Access, theirs: Access) -> dict[str, str] | None:
    """The axes of ``stage`` as those of ``other`` for which both accesses are the same element."""
    names: dict[str, str] = {}
    sizes, other_sizes = stage.sizes, other.sizes
    for a, b in zip(mine.indices, theirs.indices, strict=True):
        ours = sorted(a.terms, key=lambda t: (t[1], sizes[t[0]]))
        wanted = sorted(b.terms, key=lambda t: (t[1], other_sizes[t[0]]))
        if a.constant != b.constant or len(ours) != len(wanted):
            return None
        for (axis, step), (target, other_step) in zip(ours, wanted, strict=True):
            if step != other_step or sizes[axis] != other_sizes[target]:
                return None
            if names.setdefault(axis, target) != target:
                return None
    if set(names) != set(sizes) or len(set(names.values())) != len(names):
        return None
    return names
