"""``meta500 study``: what a compiler, an abstraction, an adjoint and generated code cost, with a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from meta500.benchmarks.studies.study import Study

study = typer.Typer(
    help="Repeat a published study on this machine, and compare its findings with what is measured here.",
    no_args_is_help=True,
    add_completion=False,
)

Quick = Annotated[bool, typer.Option("--quick", help="Small sizes, few samples: under 3 minutes.")]
Out = Annotated[
    Path | None, typer.Option(help="Folder, new or of a study to go on with. [default: runs/TIME-ID]")
]
Threads = Annotated[
    int | None, typer.Option(help="Threads. [default: all cores of this process]", show_default=False)
]
MostThreads = Annotated[
    int | None, typer.Option(help="Most threads. [default: all cores of this process]", show_default=False)
]
Device = Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")]
Seed = Annotated[int, typer.Option(min=0, help="Seed of weights and data.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the rows as JSON lines.")]


@study.command("compile")
def compile_study(
    quick: Quick = False,
    part: Annotated[
        list[str] | None,
        typer.Option(
            help="products, convolutions, blocks, networks or layers, again and again. [default: all]"
        ),
    ] = None,
    network: Annotated[
        list[str] | None,
        typer.Option(help="A model's name, again and again. [default: the six vision networks]"),
    ] = None,
    mode: Annotated[
        list[str] | None, typer.Option(help="A mode of torch.compile, again and again. [default: all]")
    ] = None,
    threads: Threads = None,
    device: Device = "cpu",
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """PyTorch's compiler: products, convolutions, networks, timing methods, selective compilation."""
    # PyTorch's profiler announces each start and stop on standard error; read when PyTorch is loaded.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    from meta500.benchmarks.studies.compiler import Settings, plan

    settings = Settings(
        quick=quick,
        threads=threads,
        device=device,
        seed=seed,
        parts=tuple(part or ()),
        networks=tuple(network or ()),
        modes=tuple(mode or ()),
    )
    _run(plan(settings), out, as_json)


@study.command("abstraction")
def abstraction_study(
    quick: Quick = False,
    network: Annotated[
        str, typer.Option(help="A model's name. [default: resnet50, with --quick a smaller one]")
    ] = "",
    model_option: Annotated[list[str] | None, typer.Option(help="Option of the model, key=value.")] = None,
    level: Annotated[
        list[str] | None, typer.Option(help="A level of abstraction, again and again. [default: all]")
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Samples per step, again and again. [default: a scan]")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=1, help="Height and width, again and again. [default: a scan]")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training/--no-training", help="Also training steps, where a level can train.")
    ] = True,
    threads: Threads = None,
    device: Device = "cpu",
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """One network from PyTorch down to the vendor's library: time, memory, allocations, dispatch."""
    from meta500.benchmarks.options import pairs
    from meta500.benchmarks.studies.abstraction import Settings, plan

    settings = Settings(
        quick=quick,
        threads=threads,
        device=device,
        seed=seed,
        network=network,
        network_options=pairs("--model-option", model_option),
        levels=tuple(level or ()),
        batches=tuple(batch or ()),
        sizes=tuple(size or ()),
        training=training,
    )
    _run(plan(settings), out, as_json)


@study.command("adjoint")
def adjoint_study(
    quick: Quick = False,
    part: Annotated[
        list[str] | None, typer.Option(help="stencils or unet, again and again. [default: both]")
    ] = None,
    threads: MostThreads = None,
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Parallel adjoints of stencils and convolutions: gather, atomics, private copies, serial."""
    from meta500.benchmarks.studies.adjoint import Settings, plan

    settings = Settings(quick=quick, threads=threads, seed=seed, parts=tuple(part or ()))
    _run(plan(settings), out, as_json)


@study.command("codegen")
def codegen_study(
    quick: Quick = False,
    part: Annotated[
        list[str] | None,
        typer.Option(help="epochs, generation, memory, layers or roofline, again and again. [default: all]"),
    ] = None,
    n: Annotated[
        list[int] | None,
        typer.Option(
            "--n", min=0, help="U-Net with 2^n channels, again and again. [default: 0 to 3, and more]"
        ),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(min=1, help="Samples per step, again and again. [default: 8 and 64]")
    ] = None,
    precision: Annotated[
        list[str] | None, typer.Option(help="float32 or float64, again and again. [default: both]")
    ] = None,
    size: Annotated[int | None, typer.Option(min=16, help="Height and width. [default: 512]")] = None,
    threads: MostThreads = None,
    seed: Seed = 0,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Generated C++ of U-Nets against PyTorch: epochs per second, compile time, memory, roofline."""
    from meta500.benchmarks.studies.codegen import Settings, plan

    settings = Settings(
        quick=quick,
        threads=threads,
        seed=seed,
        n=tuple(n or ()),
        batches=tuple(batch or ()),
        precisions=tuple(precision or ()),
        size=size,
        parts=tuple(part or ()),
    )
    _run(plan(settings), out, as_json)


@study.command("report")
def report(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a study, finished or not.", show_default=False)
    ],
) -> None:
    """Write a study's report and figures again, from its folder alone."""
    from meta500.benchmarks.studies.report import write_report
    from meta500.metrics.run import RunFolder

    typer.echo(str(write_report(RunFolder.open(folder))))


def _run(planned: Study, out: Path | None, as_json: bool) -> None:
    from meta500.benchmarks.studies.console import show

    if show(planned, out, as_json):
        raise typer.Exit(1)
