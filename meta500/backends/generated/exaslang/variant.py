"""What may be chosen for a layer-4 program: the order of its loops, and what runs it."""

from __future__ import annotations

from dataclasses import dataclass

from meta500.errors import UserError, choose

OUTERMOST, INNERMOST = "outermost", "innermost"
SERIAL, OPENMP, MPI, HYBRID, CUDA = "serial", "openmp", "mpi", "hybrid", "cuda"
PARALLEL = (SERIAL, OPENMP, MPI, HYBRID, CUDA)
# Elements of a matrix that a loop over pixels adds up at once. Every thread has a copy on its stack, and a
# graphics processor one per pixel.
_LARGEST_SUM, _LARGEST_SUM_CUDA = 4096, 9


@dataclass(frozen=True)
class Variant:
    """A choice.

    Attributes:
        pixels: "outermost" (the loop over the pixels around those over images and channels, the first
            approach of the U-Net thesis, section 6.3.3) or "innermost" (section 6.3.4).
        parallel: "serial", "openmp", "mpi", "hybrid" (MPI and OpenMP) or "cuda".
        threads: of OpenMP.
        blocks: columns and rows of blocks, one per MPI process.
        halo: whether the pixels around a block are communicated; else they count as zeros.
        double: 64-bit numbers.
        optimize: the optimisation flags of the thesis (table 5).
    """

    pixels: str = OUTERMOST
    parallel: str = SERIAL
    threads: int = 1
    blocks: tuple[int, int] = (1, 1)
    halo: bool = True
    double: bool = False
    optimize: bool = False

    def checked(self) -> Variant:
        """Itself.

        Raises:
            UserError: an unknown value, or values that do not go together.
        """
        choose("order of the loops over pixels", self.pixels, (OUTERMOST, INNERMOST))
        choose("parallelisation", self.parallel, PARALLEL)
        if self.threads < 1 or min(self.blocks) < 1:
            raise UserError("threads and blocks must be at least 1")
        if self.threads > 1 and not self.openmp:
            raise UserError(f"{self.threads} threads need the parallelisation openmp or hybrid")
        if self.processes > 1 and not self.mpi:
            raise UserError(f"{self.processes} blocks need the parallelisation mpi or hybrid")
        if not self.halo and self.processes == 1:
            raise UserError("without a halo there must be several blocks: give --blocks 2x2")
        return self

    @property
    def openmp(self) -> bool:
        """Whether loops are shared by threads."""
        return self.parallel in (OPENMP, HYBRID)

    @property
    def mpi(self) -> bool:
        """Whether there are processes."""
        return self.parallel in (MPI, HYBRID)

    @property
    def shared_regions(self) -> bool:
        """Whether loops over pixels share the threads of a parallel region around them."""
        return self.openmp and self.pixels == INNERMOST

    @property
    def processes(self) -> int:
        """One per block."""
        return self.blocks[0] * self.blocks[1]

    @property
    def largest_sum(self) -> int:
        """Elements of a matrix that a loop over pixels may add up at once."""
        return _LARGEST_SUM_CUDA if self.parallel == CUDA else _LARGEST_SUM


def parse_blocks(text: str) -> tuple[int, int]:
    """Columns and rows in a text such as "2x2".

    Raises:
        UserError: another form.
    """
    columns, _, rows = text.partition("x")
    if not (columns.isdecimal() and rows.isdecimal()):
        raise UserError(f"--blocks: '{text}' is not of the form 2x2, columns x rows")
    return int(columns), int(rows)
