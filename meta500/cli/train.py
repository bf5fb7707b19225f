"""``meta500 train``: one training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    model: Annotated[str, typer.Option(help="A model's name, or the path of an ONNX file.")] = "digits_cnn",
    dataset: Annotated[str, typer.Option(help="A dataset's name.")] = "digits",
    backend: Annotated[str, typer.Option(help="The backend.")] = "torch",
    optimizer: Annotated[str, typer.Option(help="The optimizer.")] = "adam",
    native: Annotated[bool, typer.Option("--native", help="Use the backend's own optimizer.")] = False,
    learning_rate: Annotated[float, typer.Option(help="Learning rate.")] = 1e-3,
    epochs: Annotated[int, typer.Option(help="Epochs at most.")] = 10,
    batch_size: Annotated[int, typer.Option(help="Samples per step.")] = 64,
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
    threads: Annotated[int | None, typer.Option(help="Threads of the computation.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Option of the model, key=value.")] = None,
    dataset_option: Annotated[
        list[str] | None, typer.Option(help="Option of the dataset, key=value.")
    ] = None,
    optimizer_option: Annotated[
        list[str] | None, typer.Option(help="Hyper-parameter of the optimizer, key=value.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the trained network to this ONNX file.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-ID]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="One epoch.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Train a network; write losses, accuracy, times and plots into a run folder."""
    from meta500.benchmarks.training import Setup, train_command
    from meta500.cli.options import pairs

    named = {"device": device, "mode": mode, "precision": precision, "threads": threads}
    setup = Setup(
        model=model,
        model_options=pairs("--model-option", model_option),
        dataset=dataset,
        dataset_options=pairs("--dataset-option", dataset_option),
        backend=backend,
        backend_options={name: value for name, value in named.items() if value is not None},
        optimizer=optimizer,
        native=native,
        hyperparameters={"learning_rate": learning_rate, **pairs("--optimizer-option", optimizer_option)},
        epochs=1 if quick else epochs,
        batch_size=batch_size,
        drop_last=drop_last,
        seed=seed,
        target_accuracy=target_accuracy,
        time_limit=time_limit,
        metrics=tuple(metric or ()),
    )
    raise typer.Exit(train_command(setup, out=out, save=save, as_json=as_json))
