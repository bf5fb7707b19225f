"""Starting the ranks of a scaling study, and getting back what they measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from meta500.benchmarks.scaling.job import Job, Outcome
from meta500.distributed.launch import mpiexec_command
from meta500.distributed.mpi import launched_ranks
from meta500.errors import UserError

# Thread libraries of a rank get as many threads as the study says.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def launch(job: Job, limit: float | None = None) -> Outcome:
    """Start mpiexec with as many ranks as the largest count, wait, and read what rank 0 wrote.

    Args:
        job: what is measured.
        limit: seconds; None for no limit.

    Raises:
        UserError: this process is a rank itself, there is no mpiexec, or the ranks failed or took longer.
    """
    if launched_ranks() is not None:
        raise UserError("meta500 scale starts mpiexec itself: run it without mpiexec, with --ranks 1,2,4")
    ranks = max(job.counts)
    with tempfile.TemporaryDirectory(prefix="meta500-scale-") as folder:
        job_path, out_path = Path(folder, "job.json"), Path(folder, "outcome.json")
        job_path.write_text(json.dumps(job.to_dict()))
        module = "meta500.benchmarks.scaling.worker"
        program = [sys.executable, "-m", module, str(job_path), str(out_path)]
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(job.threads))}
        process = subprocess.Popen(
            mpiexec_command(ranks, program), env=environment, stdin=subprocess.DEVNULL, process_group=0
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            raise UserError(f"the {ranks} ranks were not finished after {limit:g} s and were ended") from None
        finally:
            _end(process)
        if code or not out_path.exists():
            raise UserError(f"the {ranks} ranks ended with exit code {code}; their messages are above")
        return Outcome.from_dict(json.loads(out_path.read_text()))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End mpiexec, which ends its ranks; only if it is still there."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
