"""``meta500 diff``: the differential debugger."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def diff(
    model: Annotated[
        str, typer.Argument(help="An ONNX file, the folder of an ONNX test case, or a model's name.")
    ],
    a: Annotated[str, typer.Option("--a", help="Backend with options: torch, torch:mode=compile.")] = "torch",
    b: Annotated[str, typer.Option("--b", help="Backend that it is measured against.")] = "numpy",
    inputs: Annotated[Path | None, typer.Option(help="Inputs from an .npz file. [default: random]")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, inputs and cotangents.")] = 0,
    dim: Annotated[
        list[str] | None, typer.Option(help="Size of a symbolic dimension, N=8 (INPUT:AXIS=8 if unnamed).")
    ] = None,
    input_range: Annotated[
        list[str] | None, typer.Option("--range", help="Range of a random input, NAME=LOW:HIGH.")
    ] = None,
    gradients: Annotated[
        bool | None,
        typer.Option(
            "--gradients/--no-gradients", help="[default: where both backends give some]", show_default=False
        ),
    ] = None,
    loss: Annotated[str | None, typer.Option(help="Output to differentiate.")] = None,
    precision: Annotated[str | None, typer.Option(help="float16, float32 or float64 on both.")] = None,
    rtol: Annotated[float | None, typer.Option(help="Largest relative error, for every value.")] = None,
    atol: Annotated[float | None, typer.Option(help="Absolute error that is accepted in any case.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Option of the model, key=value.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-ID]")] = None,
    show_all: Annotated[bool, typer.Option("--all", help="Show the values that agree too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the summary only.")] = False,
) -> None:
    """Find the first node on which two backends differ; exit code 1 when there is one."""
    from meta500.benchmarks.differential.command import Request, diff_command
    from meta500.benchmarks.options import pairs

    request = Request(
        model=model,
        a=a,
        b=b,
        model_options=pairs("--model-option", model_option),
        inputs=inputs,
        dimensions=pairs("--dim", dim),
        ranges=pairs("--range", input_range),
        gradients=gradients,
        loss=loss,
        precision=precision,
        rtol=rtol,
        atol=atol,
        seed=seed,
    )
    code = diff_command(request, out=out, show_all=show_all, as_json=as_json, quiet=quiet)
    raise typer.Exit(code)
