"""The processes that a network's collective operations belong to, by the name of their group.

Operations are data and hold a name only; whoever makes the network registers the communicator under that name
before the network runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta500.errors import UserError
from meta500.graph.collectives import ROWS

# Names under which messages are counted.
HALO_EXCHANGE, SUM_OVER_BLOCKS = "halo_exchange", "sum_over_blocks"


@dataclass(frozen=True)
class ProcessGrid:
    """Processes in rows and columns: rank r stands in row r // columns and column r % columns.

    Attributes:
        communicator: an mpi4py communicator with rows * columns processes, used for nothing else meanwhile.
        rows, columns: size of the grid.
        source: the communicator that it was duplicated from, if any.
        seconds: after which a process that does not answer is given up.
        count: called with the name of an operation, bytes sent and received, nanoseconds, and calls.
    """

    communicator: Any
    rows: int
    columns: int
    source: Any = None
    seconds: float = 600.0
    count: Callable[[str, int, int, int, int], None] | None = None

    def __post_init__(self) -> None:
        size = self.communicator.Get_size()
        if size != self.rows * self.columns:
            raise UserError(
                f"a grid of {self.rows} x {self.columns} processes needs "
                f"{self.rows * self.columns} of them, the communicator has {size}"
            )

    @property
    def rank(self) -> int:
        """The number of this process."""
        return int(self.communicator.Get_rank())

    def neighbours(self, direction: int) -> tuple[int | None, int | None]:
        """Ranks of the previous and the next process along rows (0) or columns (1), None at the border."""
        row, column = divmod(self.rank, self.columns)
        if direction == ROWS:
            above = self.rank - self.columns if row > 0 else None
            return above, self.rank + self.columns if row < self.rows - 1 else None
        left = self.rank - 1 if column > 0 else None
        return left, self.rank + 1 if column < self.columns - 1 else None


_GRIDS: dict[str, ProcessGrid] = {}


def register(group: str, grid: ProcessGrid) -> None:
    """Let the operations of ``group`` run on ``grid``; a later one takes the place of an earlier one."""
    _GRIDS[group] = grid


def registered(group: str, source: Any) -> bool:
    """Whether ``group`` runs on a duplicate of the communicator ``source`` already."""
    grid = _GRIDS.get(group)
    return grid is not None and source is not None and grid.source is source


def find(group: str) -> ProcessGrid:
    """The processes of a group.

    Raises:
        UserError: nobody registered it; the network was not made by ``meta500.distributed.spatial`` here.
    """
    grid = _GRIDS.get(group)
    if grid is None:
        raise UserError(
            f"there is no grid of processes '{group}' here: networks with HaloExchange and AllReduce are "
            "made by meta500.distributed.spatial.decompose under mpiexec"
        )
    return grid
