"""``meta500 bench``: the main job."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Part(StrEnum):
    """The parts of the main job."""

    layers = "layers"
    networks = "networks"
    training = "training"


def bench(
    parts: Annotated[
        list[Part] | None, typer.Argument(help="Parts to run. [default: all]", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, under a minute.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The U-Net at 512 x 512, batch 8, and more repetitions.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(help="Threads of every backend. [default: all cores of this process]")
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the torch backend: cpu, cuda, cuda:N.")] = "cpu",
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, data and sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-ID]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON lines.")] = False,
) -> None:
    """Measure layers, networks and training to 97 % on every backend of ours; write a run folder."""
    from meta500.benchmarks.main_job import run
    from meta500.errors import UserError

    if quick and full:
        raise UserError("--quick and --full exclude each other; give one of them")
    size = "quick" if quick else "full" if full else "normal"
    failed = run(
        parts=[part.value for part in parts or list(Part)],
        size=size,
        threads=threads,
        device=device,
        seed=seed,
        out=out,
        as_json=as_json,
    )
    raise typer.Exit(1 if failed else 0)
