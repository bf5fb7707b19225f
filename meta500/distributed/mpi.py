"""MPI, loaded when it is first needed, and what the launcher's environment says before that.

Importing this module does not import mpi4py: ``from mpi4py import MPI`` initialises MPI, which costs time,
registers the process with its launcher and forbids forking afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from meta500.errors import UserError

REMEDY = "install it with: pip install 'meta500[mpi]' (or mpi4py beside a system MPI)"

# (number of ranks, this rank) as launchers tell them: Hydra and srun --mpi=pmi2 (PMI), Open MPI and
# PRRTE, MVAPICH.
LAUNCHERS = (
    ("PMI_SIZE", "PMI_RANK"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
    ("MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"),
)


@lru_cache(maxsize=1)
def mpi() -> Any:
    """The module ``mpi4py.MPI``; the first call initialises MPI.

    Raises:
        UserError: mpi4py or the MPI library is missing, or MPI lives in another state than initialised.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        if getattr(error, "name", None) in ("mpi4py", None) and "mpi4py" in str(error):
            raise UserError(f"distributed training needs mpi4py, which is not installed; {REMEDY}") from None
        raise UserError(f"mpi4py cannot be loaded: {error}; {REMEDY}") from None
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"mpi4py finds no MPI library ({reason}); {REMEDY}") from None
    if not MPI.Is_initialized():
        MPI.Init_thread()
    return MPI


def loaded() -> bool:
    """Whether MPI is initialised and not finalised in this process; does not load it."""
    import sys

    module = sys.modules.get("mpi4py.MPI")
    return module is not None and bool(module.Is_initialized()) and not module.Is_finalized()


def launched_ranks(environment: Mapping[str, str] | None = None) -> int | None:
    """Number of ranks that a launcher started this process among, None if none did; without MPI.

    Known are Hydra (MPICH, Intel MPI), Open MPI, PRRTE, MVAPICH and srun.
    """
    return _launched(0, environment)


def launched_rank(environment: Mapping[str, str] | None = None) -> int | None:
    """This process' rank in the launcher's numbering, None if no launcher started it; without MPI."""
    return _launched(1, environment)


def _launched(which: int, environment: Mapping[str, str] | None) -> int | None:
    variables = os.environ if environment is None else environment
    launchers = list(LAUNCHERS)
    # Inside of a batch script Slurm sets SLURM_NTASKS too; only steps, which srun starts, have an id.
    if "SLURM_STEP_ID" in variables:
        launchers.append(("SLURM_NTASKS", "SLURM_PROCID"))
        launchers.append(("SLURM_STEP_NUM_TASKS", "SLURM_PROCID"))
    for names in launchers:
        size, rank = (_number(variables.get(name)) for name in names)
        if size is not None and rank is not None:
            return (size, rank)[which]
    return None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() else None
