"""``meta500 operators``: single operators, their correctness, accuracy, gradients and times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def operators(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[OPERATORS]...", help="ONNX operators. [default: all of the suite]", show_default=False
        ),
    ] = None,
    suite: Annotated[
        list[str] | None,
        typer.Option(
            help="node, simple, pytorch-operator, pytorch-converted, light, light-random. [default: node]"
        ),
    ] = None,
    cases: Annotated[
        list[str] | None, typer.Option(help="Only these cases or shapes; wildcards: 'conv_*'.")
    ] = None,
    custom: Annotated[
        list[Path] | None,
        typer.Option(help="Python files of custom operators; their examples are the cases, not a suite."),
    ] = None,
    backend: Annotated[list[str] | None, typer.Option(help="Backends. [default: numpy and torch]")] = None,
    dtype: Annotated[
        list[str] | None,
        typer.Option(help="float16, float32, float64 for all data. [default: the cases' own]"),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of every backend. [default: all cores of this process]")
    ] = None,
    time: Annotated[
        bool | None,
        typer.Option(
            "--time/--no-time",
            help="Measure times. [default: where operators, cases or a sweep are named]",
            show_default=False,
        ),
    ] = None,
    gradients: Annotated[
        bool,
        typer.Option("--gradients/--no-gradients", help="Check gradients, and time forward plus backward."),
    ] = False,
    sweep: Annotated[
        str | None, typer.Option(help="DeepBench's shapes: deepbench-conv or deepbench-gemm.")
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Of the sweep: training, server, device. [default: all]")
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds for one shape of a sweep.")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of random data.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="One case of each operator, or ten shapes; fewer repetitions.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-ID]")] = None,
    show: Annotated[
        bool, typer.Option("--list", help="List operators (or, of those named, cases) and stop.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON lines.")] = False,
    quiet: Annotated[
        bool, typer.Option("--quiet", help="Print what is wrong and where the results are.")
    ] = False,
) -> None:
    """Check and time single operators on several backends; exit code 1 when one is wrong or failed."""
    import os

    from meta500.benchmarks.operators.plan import BACKENDS, Plan
    from meta500.benchmarks.operators.runner import run

    plan = Plan(
        operators=tuple(names or ()),
        patterns=tuple(cases or ()),
        suites=tuple(suite or ()),
        backends=tuple(backend or BACKENDS),
        dtypes=tuple(dict.fromkeys(dtype or ())),
        threads=len(os.sched_getaffinity(0)) if threads is None else threads,
        time=time,
        gradients=gradients,
        sweep=sweep,
        sets=tuple(sets or ()),
        budget=budget,
        seed=seed,
        quick=quick,
        custom=tuple(map(str, custom or ())),
    )
    if show:
        from meta500.benchmarks.operators.listing import listing

        for line in listing(plan, as_json):
            typer.echo(line)
        return
    raise typer.Exit(1 if run(plan, out=out, as_json=as_json, quiet=quiet) else 0)
