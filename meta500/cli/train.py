"""``meta500 train``: one training run, on one process or on many ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

# Options that may be given together with --resume; all others are those of the run that is resumed.
WITH_RESUME = frozenset(
    {
        *("resume", "ranks", "epochs", "target_accuracy", "time_limit", "checkpoint_every"),
        *("save", "out", "as_json", "timeline", "log"),
    }
)


def train(
    context: typer.Context,
    model: Annotated[str, typer.Option(help="A model's name, or the path of an ONNX file.")] = "digits_cnn",
    dataset: Annotated[str, typer.Option(help="A dataset's name.")] = "digits",
    backend: Annotated[str, typer.Option(help="The backend.")] = "torch",
    optimizer: Annotated[str, typer.Option(help="The optimizer.")] = "adam",
    native: Annotated[bool, typer.Option("--native", help="Use the backend's own optimizer.")] = False,
    learning_rate: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    epochs: Annotated[int, typer.Option(help="Epochs at most.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Samples per step, of each rank.")] = 64,
    drop_last: Annotated[
        bool | None,
        typer.Option(
            "--drop-last/--keep-last",
            help="Leave out a short last training batch. [default: only for a fixed batch]",
            show_default=False,
        ),
    ] = None,
    target_accuracy: Annotated[
        float | None, typer.Option(help="Stop at this test accuracy, a fraction in (0, 1].")
    ] = None,
    time_limit: Annotated[float | None, typer.Option(help="Stop after this many seconds.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Score the test set by iou, dice, top5, rmse, mae too.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights, data and sampling.")] = 0,
    device: Annotated[str | None, typer.Option(help="Device: cpu, cuda, cuda:N (torch).")] = None,
    mode: Annotated[str | None, typer.Option(help="eager or compile (torch).")] = None,
    precision: Annotated[str | None, typer.Option(help="float16, float32 or float64.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads of the computation, of each rank.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Option of the model, key=value.")] = None,
    dataset_option: Annotated[
        list[str] | None, typer.Option(help="Option of the dataset, key=value.")
    ] = None,
    workers: Annotated[
        int,
        typer.Option(
            help="Workers that make batches ahead, of each rank; 0: none. They share cores with the steps, "
            "whose times they change."
        ),
    ] = 0,
    loader: Annotated[str, typer.Option(help="Kind of workers: thread or process.")] = "thread",
    augment: Annotated[
        list[str] | None,
        typer.Option(help="Change training samples at random, NAME[:VALUE]: flip, crop:4, rotate:15, ..."),
    ] = None,
    optimizer_option: Annotated[
        list[str] | None, typer.Option(help="Hyper-parameter of the optimizer, key=value.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(help="Train on so many MPI ranks, as mpiexec -n RANKS does.")
    ] = None,
    scheme: Annotated[
        str | None, typer.Option(help="How ranks train together. [default: consistent-decentralized]")
    ] = None,
    scheme_option: Annotated[list[str] | None, typer.Option(help="Option of the scheme, key=value.")] = None,
    compression: Annotated[
        str | None, typer.Option(help="Compression of exchanged gradients, such as top-k:0.01.")
    ] = None,
    spatial: Annotated[
        str | None, typer.Option(help="Ranks share images, cut into ROWSxCOLUMNS blocks.")
    ] = None,
    halo: Annotated[
        bool, typer.Option("--halo/--no-halo", help="With --spatial: neighbouring blocks communicate.")
    ] = True,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Record and plot what every rank does when.")
    ] = False,
    checkpoint_every: Annotated[int | None, typer.Option(help="Steps between checkpoints.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on from the last checkpoint in this run folder.")
    ] = None,
    log: Annotated[
        list[str] | None, typer.Option(help="Log for other programs too: tensorboard, mlperf, mlflow.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the trained network to this ONNX file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-ID]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One epoch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a network; write losses, accuracy, times and plots into a run folder."""
    from meta500.cli import INTERRUPTED
    from meta500.distributed import faults, launch

    wanted = launch.ranks_of_command(ranks)
    if wanted is not None:
        code = launch.start(wanted, [sys.executable, "-m", "meta500", *sys.argv[1:]])
        if code == INTERRUPTED:
            os._exit(code)  # the ranks have said so
        raise typer.Exit(code)
    faults.supervise()

    from meta500.benchmarks.options import pairs
    from meta500.benchmarks.training import Setup, train_command

    named = {"device": device, "mode": mode, "precision": precision, "threads": threads}
    values: dict[str, Any] = {
        "model": model,
        "model_options": pairs("--model-option", model_option),
        "dataset": dataset,
        "dataset_options": pairs("--dataset-option", dataset_option),
        "backend": backend,
        "backend_options": {name: value for name, value in named.items() if value is not None},
        "optimizer": optimizer,
        "native": native,
        "hyperparameters": {
            "learning_rate": learning_rate,
            **pairs("--optimizer-option", optimizer_option),
        },
        "epochs": 1 if quick else epochs,
        "batch_size": batch_size,
        "drop_last": drop_last,
        "seed": seed,
        "target_accuracy": target_accuracy,
        "time_limit": time_limit,
        "metrics": tuple(metric or ()),
        "workers": workers,
        "loader": loader,
        "augment": tuple(augment or ()),
        "scheme": scheme,
        "scheme_options": pairs("--scheme-option", scheme_option),
        "compression": compression,
        "spatial": spatial,
        "halo": halo,
    }
    checkpoint = None
    if resume is not None:
        values, checkpoint = _resumed(resume, values, _given(context))
    raise typer.Exit(
        train_command(
            Setup(**values),
            out=out,
            save=save,
            as_json=as_json,
            checkpoint_every=checkpoint_every,
            resume=checkpoint,
            timeline=timeline,
            logs=tuple(log or ()),
        )
    )


def _given(context: typer.Context) -> set[str]:
    """Names of the options that stand on the command line."""
    return {
        name
        for name in context.params
        if (source := context.get_parameter_source(name)) is not None and source.name == "COMMANDLINE"
    }


def _resumed(run: Path, values: dict[str, Any], given: set[str]) -> tuple[dict[str, Any], Path]:
    """The setup of the run that is resumed, with what was given anew, and its last checkpoint."""
    from meta500.distributed.checkpoint import latest
    from meta500.errors import UserError
    from meta500.metrics.run import RunFolder

    for name in sorted(given - WITH_RESUME):
        raise UserError(
            f"--{name.replace('_', '-')} cannot be changed with --resume: it is that of the run in {run}; "
            "leave it out"
        )
    info = RunFolder.open(run).info
    if not isinstance(info.get("setup"), dict):
        raise UserError(f"{run}: is not the folder of a training run: run.json has no 'setup'")
    setup = {**info["setup"], **{name: values[name] for name in given if name in values}}
    for name in ("metrics", "augment"):
        setup[name] = tuple(setup.get(name, ()))
    return setup, latest(run)
