"""Level 2: training runs, one (``meta500 train``) or several side by side (the main job)."""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meta500.backends.network import Network, network
from meta500.benchmarks.protocol import version
from meta500.errors import UserError, choose
from meta500.graph import Model
from meta500.metrics.run import RunFolder
from meta500.metrics.runner import Runner
from meta500.metrics.tickers import (
    AccuracyLimit,
    MetricTicker,
    ProgressTicker,
    RowsTicker,
    Summary,
    TimeLimit,
)


@dataclass(frozen=True)
class Setup:
    """Everything that decides a training run.

    ``model`` is a name of ``meta500.models`` or the path of an ONNX file; ``native`` takes the backend's own
    optimizer instead of the reference one of this name; ``drop_last`` leaves out a short last training batch
    (None: only where the network's batch is fixed); ``metrics`` are names of ``meta500.metrics.scores``
    that the test set of every epoch is scored by, beside the accuracy.
    """

    model: str = "digits_cnn"
    dataset: str = "digits"
    backend: str = "torch"
    optimizer: str = "adam"
    native: bool = False
    epochs: int = 10
    batch_size: int = 64
    drop_last: bool | None = None
    seed: int = 0
    target_accuracy: float | None = None
    time_limit: float | None = None
    metrics: tuple[str, ...] = ()
    model_options: dict[str, Any] = field(default_factory=dict)
    dataset_options: dict[str, Any] = field(default_factory=dict)
    backend_options: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=lambda: {"learning_rate": 1e-3})


def load_sets(setup: Setup) -> tuple[Any, Any]:
    """Training and test set, seeded by the setup unless its options say otherwise.

    Raises:
        UserError: an unknown dataset or option.
    """
    from meta500 import datasets

    options = dict(setup.dataset_options)
    if "seed" in datasets.options(choose("dataset", setup.dataset, datasets.names())):
        options.setdefault("seed", setup.seed)
    return datasets.load(setup.dataset, **options)


def load_model(setup: Setup, train_set: Any) -> Model:
    """The model of a setup; a model of ours takes classes, channels and size from the data.

    Raises:
        UserError: an unknown model, option or file, or a model whose inputs are not those of the dataset.
    """
    from meta500 import models
    from meta500.graph import load

    if setup.model.endswith(".onnx") or Path(setup.model).is_file():
        if setup.model_options:
            raise UserError(f"model options {sorted(setup.model_options)} do not apply to a file")
        model = load(setup.model)
    else:
        known = models.options(setup.model)
        images = train_set.inputs.get("image")
        found: dict[str, Any] = {"batch": "N", "seed": setup.seed}
        if images is not None and images.ndim == 4:
            found |= {"channels_in": images.shape[1], "size": (images.shape[2], images.shape[3])}
        if train_set.classes is not None:
            found["classes"] = len(train_set.classes)
        options = {k: v for k, v in found.items() if k in known}
        model = models.create(setup.model, **{**options, **setup.model_options})
    missing = set(model.inputs) - set(train_set.inputs)
    if missing:
        raise UserError(
            f"model '{setup.model}' needs the inputs {', '.join(sorted(model.inputs))}; dataset "
            f"'{setup.dataset}' gives {', '.join(train_set.inputs)}"
        )
    return model


def make_optimizer(setup: Setup, net: Network) -> Any:
    """The reference or native optimizer of a setup."""
    from meta500 import optimizers

    if setup.native:
        return net.native_optimizer(setup.optimizer, **setup.hyperparameters)
    return optimizers.create(setup.optimizer, net, **setup.hyperparameters)


def train(setup: Setup, folder: RunFolder, tickers: Sequence[Any] = (), save: Path | None = None) -> Summary:
    """Run one training, writing its rows into ``folder``.

    Args:
        setup: what to train.
        folder: an open run folder.
        tickers: more tickers, after those for rows and limits.
        save: where to write the trained network as ONNX.

    Raises:
        UserError: anything in the setup that does not fit.
    """
    train_set, test_set = load_sets(setup)
    model = load_model(setup, train_set)
    precision = setup.backend_options.get("precision")
    if precision is not None:
        train_set, test_set = train_set.cast(precision), test_set.cast(precision)
    with network(model, setup.backend, **{"seed": setup.seed, **setup.backend_options}) as net:
        optimizer = make_optimizer(setup, net)
        what: dict[str, Any] = {
            "model": setup.model if not setup.model.endswith(".onnx") else Path(setup.model).stem,
            "optimizer": optimizer_name(setup),
            "version": version(setup.backend),
            "seed": setup.seed,
            "ranks": 1,
        }
        chosen: list[Any] = [RowsTicker(folder, **what), *map(MetricTicker, setup.metrics)]
        if setup.target_accuracy is not None:
            chosen.append(AccuracyLimit(setup.target_accuracy))
        if setup.time_limit is not None:
            chosen.append(TimeLimit(setup.time_limit))
        runner = Runner(
            net,
            optimizer,
            train_set,
            test_set,
            tickers=[*chosen, *tickers],
            batch_size=setup.batch_size,
            drop_last=setup.drop_last,
            seed=setup.seed,
            folder=folder,
        )
        summary = runner.run(setup.epochs)
        if save is not None:
            net.current_model().save(save)
    return summary


def optimizer_name(setup: Setup) -> str:
    """Name of the optimizer for rows: which one, and whether it is ours or the backend's."""
    return f"{setup.optimizer} ({'native' if setup.native else 'reference'})"


def train_command(setup: Setup, out: Path | None, save: Path | None, as_json: bool) -> int:
    """``meta500 train``: run, write the folder and plots, print a summary.

    Returns:
        0 when the run finished or stopped at a limit, 1 when it failed (NaN) or missed its target accuracy.
    """
    from meta500.benchmarks.tables import console as make_console
    from meta500.metrics.plots import plots_from_run

    if save is not None and not save.resolve().parent.is_dir():
        raise UserError(f"--save {save}: the folder '{save.parent}' does not exist")
    if save is not None and save.is_dir():
        raise UserError(f"--save {save}: is a folder; give the path of a file")
    if setup.epochs < 1:
        raise UserError(f"--epochs must be at least 1, got {setup.epochs}")
    train_set, _ = load_sets(setup)  # anything wrong with the names is said before a folder is made
    load_model(setup, train_set)
    with RunFolder.create(out, command=sys.argv, seeds={"seed": setup.seed}) as folder:
        folder.info["setup"] = asdict(setup)
        announce(folder)
        summary = train(setup, folder, [ProgressTicker()], save)
        if summary.status == "failed":
            folder.finish("failed", summary.abort_reason or "")
    plots_from_run(folder.path)
    missed = setup.target_accuracy is not None and not summary.reached
    if as_json:
        sys.stdout.write(json.dumps(_summary(summary, folder), default=str) + "\n")
    else:
        console = make_console()
        console.print(training_table([(setup, summary)]))
        if summary.abort_reason:
            console.print(f"{summary.status}: {summary.abort_reason}", highlight=False)
        console.print(f"Results: {folder.path}", highlight=False, soft_wrap=True)
    return 1 if summary.status == "failed" or missed else 0


def announce(folder: RunFolder) -> None:
    """Say on standard error where the run is written, so that an interrupted one can be found."""
    sys.stderr.write(f"Writing to {folder.path}\n")


def training_table(runs: Sequence[tuple[Setup, Summary]]) -> Any:
    """A rich table with one line per run."""
    from meta500.benchmarks.tables import table_of

    left = ["model", "backend", "optimizer"]
    scores = list(dict.fromkeys(name for setup, _ in runs for name in setup.metrics))
    right = ["epochs", "steps", "train loss", "test accuracy", *scores, "train", "data", "time to target"]
    table = table_of("Training", left, right)
    for setup, summary in runs:
        last = summary.epochs[-1] if summary.epochs else None
        accuracy = last.accuracy if last is not None else None
        loss = last.loss if last is not None else None
        reached = summary.reached[0] if summary.reached else None
        if reached is not None:
            target = f"{reached.train_seconds:.2f} s ({reached.target:g})"
        else:
            target = "-" if setup.target_accuracy is None else f"not reached ({setup.target_accuracy:g})"
        table.add_row(
            setup.model,
            " ".join(filter(None, (setup.backend, setup.backend_options.get("mode", "")))),
            optimizer_name(setup),
            str(len(summary.epochs)),
            str(last.step if last is not None else 0),
            "-" if loss is None else f"{loss:.4g}",
            "-" if accuracy is None else f"{100 * accuracy:.2f} %",
            *("-" if last is None else f"{last.scores.get(name, math.nan):.4f}" for name in scores),
            f"{summary.seconds['train']:.2f} s",
            f"{summary.seconds['data']:.2f} s",
            target,
        )
    return table


def _summary(summary: Summary, folder: RunFolder) -> dict[str, Any]:
    return {"run": str(folder.path), "id": folder.id, **_plain(summary)}


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__") and not inspect.isclass(value):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value
