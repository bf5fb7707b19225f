"""``meta500 launch``: how a command is started on many ranks."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

SETTINGS = {"allow_extra_args": True, "ignore_unknown_options": True}


def launch(
    context: typer.Context,
    ranks: Annotated[int, typer.Option(help="Processes in total.")],
    slurm: Annotated[bool, typer.Option("--slurm", help="Print a batch script for sbatch.")] = False,
    nodes: Annotated[int, typer.Option(help="Nodes (Slurm).")] = 1,
    threads: Annotated[int, typer.Option(help="Processors and OpenMP threads of each rank.")] = 1,
    time: Annotated[str | None, typer.Option(help="Time limit, HH:MM:SS (Slurm).")] = None,
    partition: Annotated[str | None, typer.Option(help="Partition (Slurm).")] = None,
    account: Annotated[str | None, typer.Option(help="Account (Slurm).")] = None,
    gpus_per_node: Annotated[int | None, typer.Option(help="GPUs of each node (Slurm).")] = None,
    name: Annotated[str, typer.Option(help="Name of the job (Slurm).")] = "meta500",
    environment: Annotated[Path | None, typer.Option(help="Virtual environment to activate (Slurm).")] = None,
    mpi: Annotated[str | None, typer.Option(help="srun's --mpi, e.g. pmi2 or pmix (Slurm).")] = None,
) -> None:
    """Print how to start a command on many ranks: an mpiexec line, or a batch script for Slurm.

    The command follows after --, such as: meta500 launch --ranks 8 --slurm -- meta500 train --epochs 5
    """
    from meta500.distributed.launch import mpiexec_command, slurm_script
    from meta500.errors import UserError

    program = list(context.args)
    if not slurm:
        given: dict[str, Any] = {
            "--nodes": nodes != 1,
            "--time": time,
            "--partition": partition,
            "--account": account,
        }
        given |= {"--gpus-per-node": gpus_per_node, "--environment": environment, "--mpi": mpi}
        for option, value in given.items():
            if value:
                raise UserError(f"{option} is for batch scripts: add --slurm")
        if not program:
            raise UserError("there is no command to run: give it after '--', such as: -- meta500 train")
        words = ["env", f"OMP_NUM_THREADS={threads}", *mpiexec_command(ranks, program)]
        typer.echo(shlex.join(words))
        return
    typer.echo(
        slurm_script(
            program,
            ranks=ranks,
            nodes=nodes,
            threads=threads,
            time=time,
            partition=partition,
            account=account,
            gpus_per_node=gpus_per_node,
            name=name,
            environment=None if environment is None else str(environment),
            mpi=mpi,
        ),
        nl=False,
    )
