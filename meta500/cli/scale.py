"""``meta500 scale``: scaling of distributed training, measured here and predicted for larger machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def scale(
    model: Annotated[str, typer.Option(help="A model's name, or the path of an ONNX file.")] = "digits_cnn",
    dataset: Annotated[str, typer.Option(help="A dataset's name.")] = "digits",
    backend: Annotated[str, typer.Option(help="The backend.")] = "torch",
    optimizer: Annotated[str, typer.Option(help="The optimizer inside of the schemes.")] = "adam",
    scheme: Annotated[
        list[str] | None, typer.Option(help="Scheme, again and again. [default: consistent-decentralized]")
    ] = None,
    scheme_option: Annotated[
        list[str] | None, typer.Option(help="Option of a scheme, SCHEME:key=value.")
    ] = None,
    ranks: Annotated[str, typer.Option(help="Rank counts to measure, such as 1,2,4.")] = "1,2",
    weak: Annotated[bool, typer.Option("--weak", help="The same batch on every rank.")] = False,
    strong: Annotated[bool, typer.Option("--strong", help="One batch, divided among the ranks.")] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Samples per step: of a rank (weak), of all together (strong).")
    ] = 64,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every rank.")] = 1,
    predict: Annotated[bool, typer.Option("--predict", help="Predict for more ranks, too.")] = False,
    up_to: Annotated[int, typer.Option(min=1, help="Most ranks to predict.")] = 4096,
    alpha: Annotated[
        float | None, typer.Option(min=0, help="Seconds per message between nodes. [default: measured]")
    ] = None,
    beta: Annotated[
        float | None, typer.Option(min=0, help="Seconds per byte between nodes. [default: measured]")
    ] = None,
    nodes_cores: Annotated[
        int | None, typer.Option(min=1, help="Cores of a node. [default: as here]")
    ] = None,
    nodes_ranks: Annotated[
        int | None, typer.Option(min=1, help="Ranks on a node. [default: one for every --threads cores]")
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Efficiency below which a scheme does not pay, a fraction.")
    ] = 0.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of weights and data.")] = 0,
    mode: Annotated[str | None, typer.Option(help="eager or compile (torch).")] = None,
    precision: Annotated[str | None, typer.Option(help="float16, float32 or float64.")] = None,
    model_option: Annotated[list[str] | None, typer.Option(help="Option of the model, key=value.")] = None,
    dataset_option: Annotated[
        list[str] | None, typer.Option(help="Option of the dataset, key=value.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-ID]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few and short rounds.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a summary as JSON.")] = False,
) -> None:
    """Measure step times on few ranks, check the performance model against them, and predict for many."""
    from meta500.benchmarks.options import pairs
    from meta500.benchmarks.scaling.analysis import Network
    from meta500.benchmarks.scaling.command import scale_command
    from meta500.benchmarks.scaling.job import Job
    from meta500.benchmarks.training import Setup

    named = {"mode": mode, "precision": precision}
    setup = Setup(
        model=model,
        model_options=pairs("--model-option", model_option),
        dataset=dataset,
        dataset_options=pairs("--dataset-option", dataset_option),
        backend=backend,
        backend_options={name: value for name, value in named.items() if value is not None},
        optimizer=optimizer,
        batch_size=batch_size,
        seed=seed,
    )
    both = weak == strong
    job = Job(
        setup,
        tuple(dict.fromkeys(scheme or ["consistent-decentralized"])),
        _counts(ranks),
        tuple(name for name, wanted in (("weak", weak or both), ("strong", strong or both)) if wanted),
        _scheme_options(scheme_option),
        threads,
        "quick" if quick else "normal",
    )
    network = Network(alpha, beta, nodes_cores, nodes_ranks)
    code = scale_command(
        job,
        prediction=predict,
        largest=up_to,
        network=network,
        threshold=threshold,
        out=out,
        as_json=as_json,
    )
    raise typer.Exit(code)


def _counts(text: str) -> tuple[int, ...]:
    """ "1,2,4" as rank counts, rising, with 1 among them.

    Raises:
        UserError: anything but whole numbers of at least 1.
    """
    from meta500.errors import UserError

    try:
        counts = {int(word) for word in text.split(",")}
    except ValueError:
        counts = {0}
    if min(counts) < 1:
        raise UserError(f"--ranks '{text}' must be whole numbers of at least 1 with commas, such as 1,2,4")
    return tuple(sorted(counts | {1}))


def _scheme_options(values: list[str] | None) -> dict[str, dict[str, object]]:
    """``["model-average:every=4"]`` as {"model-average": {"every": 4}}.

    Raises:
        UserError: an entry of another form.
    """
    from meta500.benchmarks.options import pairs
    from meta500.errors import UserError

    found: dict[str, dict[str, object]] = {}
    for entry in values or ():
        name, colon, option = entry.partition(":")
        if not colon:
            raise UserError(f"--scheme-option: '{entry}' is not of the form SCHEME:key=value")
        found.setdefault(name, {}).update(pairs("--scheme-option", [option]))
    return found
