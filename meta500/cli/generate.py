"""``meta500 generate``: stages of generated code, its C++ files, programs that train without Python."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

generate = typer.Typer(
    help="Show and write generated code, stage by stage, or a program that trains without Python.",
    no_args_is_help=True,
    add_completion=False,
)


@generate.callback()
def _printers() -> None:
    """One command per language that is printed."""


class Stage(StrEnum):
    """What is written."""

    ir = "ir"
    schedule = "schedule"
    source = "source"


class Phase(StrEnum):
    """What is computed."""

    training = "training"
    inference = "inference"


@generate.command("cpp")
def cpp(
    model: Annotated[
        str,
        typer.Argument(help="A model's name, an ONNX file, or net.py[:Name] with a PyTorch module."),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(help="Folder (with --import: ONNX file) to write. [default: standard output]"),
    ] = None,
    stage: Annotated[Stage, typer.Option(help="Stages, decisions, or C++ files.")] = Stage.ir,
    phase: Annotated[
        Phase | None, typer.Option(help="[default: training where there is a loss]", show_default=False)
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Threads. [default: all cores of this process]")] = None,
    precision: Annotated[str, typer.Option(help="float32 or float64. [default: the model's]")] = "",
    target: Annotated[str, typer.Option(help="native, avx2, x86-64 or aarch64. [default: native]")] = "",
    adjoint: Annotated[str, typer.Option(help="auto, gather, reduction or atomics.")] = "auto",
    winograd: Annotated[
        bool, typer.Option("--winograd/--no-winograd", help="Fewer products for 3 x 3 taps in float32.")
    ] = True,
    batch: Annotated[int | None, typer.Option(min=1, help="Samples per step.")] = None,
    size: Annotated[int | None, typer.Option(min=1, help="Height and width, for models of ours.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="Shape of an input, NAME=8x3x64x64.")] = None,
    loss: Annotated[
        str, typer.Option(help="Append cross_entropy or mean_squared_error to a model without a loss.")
    ] = "",
    optimizer: Annotated[
        str, typer.Option(help="Append the step of sgd, momentum, adam or adamw. [default: none]")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    model_option: Annotated[
        list[str] | None, typer.Option(help="Option of the model or argument of the class, key=value.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with data, model and training.")] = None,
    program: Annotated[
        bool, typer.Option("--program", help="Write a CMake project that trains as --config says.")
    ] = False,
    data: Annotated[bool, typer.Option("--data/--no-data", help="Write the data beside the program.")] = True,
    weights: Annotated[
        Path | None, typer.Option("--import", help="Weights of a program, to be written as ONNX.")
    ] = None,
) -> None:
    """Show what the generated backend makes of a network, or write it as a program."""
    from meta500.benchmarks.generation.command import Request, generate_command, parse_shapes
    from meta500.benchmarks.options import pairs

    generate_command(
        Request(
            model=model,
            stage=stage.value,
            phase=phase.value if phase is not None else "",
            out=out,
            threads=threads,
            precision=precision,
            target=target,
            adjoint=adjoint,
            winograd=winograd,
            batch=batch,
            size=size,
            loss=loss,
            optimizer=optimizer,
            seed=seed,
            model_options=pairs("--model-option", model_option),
            shapes=parse_shapes(shape or ()),
            config=config,
            program=program,
            with_data=data,
            weights=weights,
        )
    )


class Pixels(StrEnum):
    """Where the loops over pixels are."""

    outermost = "outermost"
    innermost = "innermost"


class Parallel(StrEnum):
    """What runs an ExaStencils program."""

    serial = "serial"
    openmp = "openmp"
    mpi = "mpi"
    hybrid = "hybrid"
    cuda = "cuda"


@generate.command("exaslang")
def exaslang(
    model: Annotated[
        str, typer.Argument(help="A model's name, an ONNX file, or net.py[:Name] with a PyTorch module.")
    ] = "",
    config: Annotated[
        Path | None, typer.Option(help="TOML file with data, model and training.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder (with --import: ONNX file) to write. [default: NAME-exastencils]", show_default=False
        ),
    ] = None,
    pixels: Annotated[Pixels, typer.Option(help="Loops over pixels around the others, or inside.")] = (
        Pixels.outermost
    ),
    parallel: Annotated[Parallel, typer.Option(help="What runs the program.")] = Parallel.serial,
    threads: Annotated[int, typer.Option(min=1, help="Threads, with openmp and hybrid.")] = 1,
    blocks: Annotated[
        str, typer.Option(help="Columns x rows of processes, with mpi and hybrid, such as 2x2.")
    ] = "1x1",
    halo: Annotated[
        bool, typer.Option("--halo/--no-halo", help="Communicate the pixels around blocks.")
    ] = True,
    optimize: Annotated[bool, typer.Option("--optimize", help="ExaStencils' optimisation flags.")] = False,
    simd: Annotated[str, typer.Option(help="Instruction set for the platform file.")] = "AVX2",
    data: Annotated[bool, typer.Option("--data/--no-data", help="Write the data beside the program.")] = True,
    check: Annotated[
        bool, typer.Option("--check", help="Run the program in the interpreter, against numpy.")
    ] = False,
    run: Annotated[
        bool, typer.Option("--run", help="Generate C++, compile and run it, against numpy.")
    ] = False,
    weights: Annotated[
        Path | None,
        typer.Option("--import", help="Weights of a program, to be written as ONNX.", show_default=False),
    ] = None,
) -> None:
    """Write a network's training for ExaStencils: layer 4 of ExaSlang, with all files beside it."""
    from meta500.backends.generated.exaslang.files import Platform
    from meta500.backends.generated.exaslang.variant import Variant, parse_blocks
    from meta500.benchmarks.generation.exaslang_command import ExaslangRequest, exaslang_command
    from meta500.errors import UserError

    if config is None:
        raise UserError("--config FILE.toml is missing: it says how the network is trained")
    variant = Variant(
        pixels=pixels.value,
        parallel=parallel.value,
        threads=threads,
        blocks=parse_blocks(blocks),
        halo=halo,
        optimize=optimize,
    )
    exaslang_command(
        ExaslangRequest(
            model, config, out, variant, Platform(simd=simd), data, check=check, run=run, weights=weights
        )
    )
