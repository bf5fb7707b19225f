"""Stages that exchange messages with other processes: halos of blocks of an image, and sums over all blocks.

Such a stage changes one tensor in place: a halo exchange fills the cells at both ends of an axis with what
the neighbours have beside them, a sum replaces every element by its sum over all processes. Both are linear,
and their transposed forms change the gradient in place: cells at the ends go back to their owners, which add
them; a sum is its own transposed form. To all passes the stage reads and writes the whole tensor; all threads
work on it together, and messages follow one another in the order of the program, which all processes have in
common.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meta500.backends.generated.ir import Stage

HALO, TOTAL = "halo", "total"


@dataclass(frozen=True)
class Message:
    """What a stage exchanges.

    Attributes:
        kind: "halo" or "total".
        group: name of the grid of processes.
        axis: along which the tensor has halos.
        direction: 0 for neighbours above and below, 1 for left and right.
        before, after: cells at the ends of the axis that belong to the previous and the next process.
        send_before, send_after: cells next to these that the previous and the next process need.
        tag: of the messages; the transposed form uses tag + 1.
        transposed: cells at the ends are sent, and what comes is added.
    """

    kind: str
    group: str
    axis: int = 0
    direction: int = 0
    before: int = 0
    after: int = 0
    send_before: int = 0
    send_after: int = 0
    tag: int = 0
    transposed: bool = False

    @property
    def adjoint(self) -> Message:
        """The transposed exchange."""
        return replace(self, transposed=True) if self.kind == HALO else self

    def parts(self, size: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """Ranges of the axis (of ``size`` cells) that are sent and received, previous neighbour first."""
        ends = [(0, self.before), (size - self.after, size)]
        edges = [
            (self.before, self.before + self.send_before),
            (size - self.after - self.send_after, size - self.after),
        ]
        return (ends, edges) if self.transposed else (edges, ends)

    def __str__(self) -> str:
        if self.kind == TOTAL:
            return f"sum over all processes of '{self.group}'"
        what = "add what comes back into" if self.transposed else "fill"
        sides = [f"{self.before} before", f"{self.after} after"]
        if self.transposed:
            sides = [f"{self.send_before} behind the first", f"{self.send_after} before the last"]
        return f"{what} cells of dimension {self.axis}: {', '.join(sides)}, from neighbours in '{self.group}'"


@dataclass(frozen=True)
class Exchanging:
    """How a message runs: all threads pack, the first one sends and receives, all unpack."""

    stage: Stage

    @property
    def split(self) -> None:
        """It shares its work among the threads itself."""
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
        return f"message: {self.stage.message}"
