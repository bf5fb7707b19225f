"""Level 2: training runs, one (``meta500 train``) or several side by side (the main job)."""

from __future__ import annotations

import inspect
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from meta500.backends.network import Network, network
from meta500.benchmarks import ranks
from meta500.benchmarks.protocol import version
from meta500.datasets.augmentations import parsed
from meta500.datasets.loader import KINDS
from meta500.distributed.launch import COLUMNS
from meta500.distributed.mpi import launched_ranks
from meta500.errors import UserError, choose
from meta500.graph import Model, ops
from meta500.graph.passes import training_form
from meta500.metrics.run import RunFolder
from meta500.metrics.runner import Runner
from meta500.metrics.tickers import (
    AccuracyLimit,
    MetricTicker,
    ProgressFile,
    ProgressTicker,
    RowsTicker,
    Summary,
    TimeLimit,
    check_packages,
    create_log,
)

# A process that is killed loses the rows of so many seconds at most.
ROWS_SECONDS = 1.0


@dataclass(frozen=True)
class Setup:
    """Everything that decides a training run.

    ``model`` is a name of ``meta500.models`` or the path of an ONNX file; ``native`` takes the backend's own
    optimizer instead of the reference one of this name; ``drop_last`` leaves out a short last training batch
    (None: only where the network's batch is fixed); ``metrics`` are names of ``meta500.metrics.scores``
    that the test set of every epoch is scored by, beside the accuracy.

    ``workers`` make batches ahead in each process (0: batches are made when they are asked for), as threads
    or processes (``loader``); ``augment`` changes training samples at random, by steps such as "flip" or
    "crop:4" (`meta500.datasets.augmentations`).

    On several ranks ``batch_size`` is that of one rank; ``scheme`` with its options is how they train
    together (None: the usual one for the optimizer), ``compression`` that of gradients, ``spatial`` the
    blocks of the image ("2x1") where ranks share images instead of samples, ``halo`` whether neighbouring
    blocks communicate.
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
    workers: int = 0
    loader: str = "thread"
    augment: tuple[str, ...] = ()
    model_options: dict[str, Any] = field(default_factory=dict)
    dataset_options: dict[str, Any] = field(default_factory=dict)
    backend_options: dict[str, Any] = field(default_factory=dict)
    hyperparameters: dict[str, Any] = field(default_factory=lambda: {"learning_rate": 1e-3})
    scheme: str | None = None
    scheme_options: dict[str, Any] = field(default_factory=dict)
    compression: str | None = None
    spatial: str | None = None
    halo: bool = True

    def ranks_needed(self) -> str | None:
        """The option that only makes sense on several ranks, if one is given."""
        given = {
            "--scheme": self.scheme,
            "--scheme-option": self.scheme_options,
            "--compression": self.compression,
            "--spatial": self.spatial,
        }
        return next((option for option, value in given.items() if value), None)


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
    """The model of a setup; a model of ours takes classes, channels, size and ignored label from the data.

    Raises:
        UserError: an unknown model, option or file, a model whose inputs are not those of the dataset, or
            one whose loss counts labels that the dataset ignores.
    """
    from meta500 import models
    from meta500.graph import load

    if setup.model.endswith(".onnx") or Path(setup.model).is_file():
        if setup.model_options:
            raise UserError(f"model options {sorted(setup.model_options)} do not apply to a file")
        model = load(setup.model)
    else:
        known = models.options(setup.model)
        image = train_set.shapes.get("image", ())
        found: dict[str, Any] = {"batch": "N", "seed": setup.seed}
        if len(image) == 3:
            found |= {"channels_in": image[0], "size": image[1:]}
        if train_set.ignore is not None:
            found["ignore"] = train_set.ignore
        if train_set.classes is not None:
            found["classes"] = len(train_set.classes)
        options = {k: v for k, v in found.items() if k in known}
        model = models.create(setup.model, **{**options, **setup.model_options})
    missing = set(model.inputs) - set(train_set.shapes)
    if missing:
        raise UserError(
            f"model '{setup.model}' needs the inputs {', '.join(sorted(model.inputs))}; dataset "
            f"'{setup.dataset}' gives {', '.join(train_set.shapes)}"
        )
    check_ignored(model, setup.model, train_set)
    return model


def fitting_labels(model: Model, samples: Any) -> Any:
    """``samples`` with its masks cut to their middle where the network takes the whole picture and gives a
    smaller output, as the published U-Net does.
    """
    from meta500.datasets.centre import centred_label

    def sides(name: str) -> tuple[Any, ...]:
        return tuple(getattr(model.inputs.get(name), "shape", None) or ())[1:]

    whole = sides("image") == tuple(samples.shapes.get("image", ()))
    wanted = sides(samples.label or "")
    given = samples.shapes.get(samples.label or "", ())
    cut = len(wanted) == len(given) == 2 and all(
        isinstance(w, int) and w <= g for w, g in zip(wanted, given, strict=True)
    )
    return centred_label(samples, *wanted) if whole and cut and wanted != tuple(given) else samples


def check_ignored(model: Model, name: str, train_set: Any) -> None:
    """Refuse a model whose loss takes the label that a dataset ignores for a class.

    Raises:
        UserError: see above.
    """
    ignore = train_set.ignore
    if ignore is None:
        return
    for operation in model.graph.operations:
        if isinstance(operation, ops.SoftmaxCrossEntropyLoss | ops.NegativeLogLikelihoodLoss):
            counted = operation.ignore_index
            if counted != ignore:
                found = "leaves no label out" if counted is None else f"leaves out the label {counted}"
                raise UserError(
                    f"dataset '{train_set.name}' has labels {ignore} that must not count, but the loss of "
                    f"model '{name}' {found}: its ignore_index has to be {ignore}"
                )


def make_optimizer(setup: Setup, net: Network) -> Any:
    """The reference or native optimizer of a setup."""
    from meta500 import optimizers

    if setup.native:
        return net.native_optimizer(setup.optimizer, **setup.hyperparameters)
    return optimizers.create(setup.optimizer, net, **setup.hyperparameters)


def train(
    setup: Setup,
    folder: RunFolder | None,
    tickers: Sequence[Any] = (),
    save: Path | None = None,
    *,
    communication: Any = None,
    checkpoint_every: int | None = None,
    checkpoints: Path | None = None,
    resume: Path | None = None,
    logs: Sequence[str] = (),
) -> Summary:
    """Run one training, writing its rows into ``folder``.

    Args:
        setup: what to train.
        folder: an open run folder; with a communication only on its root.
        tickers: more tickers, after those for rows and limits.
        save: where to write the trained network as ONNX.
        communication: the ranks that train together (collective); None: this process alone.
        checkpoint_every: steps between checkpoints, which go into ``checkpoints``.
        checkpoints: path of the run folder, on all ranks.
        resume: a checkpoint to go on from.
        logs: names of logs for other programs that ``folder`` gets too (`meta500.metrics.tickers.logs`).

    Raises:
        UserError: anything in the setup that does not fit.
    """
    train_set, test_set = load_sets(setup)
    model = load_model(setup, train_set)
    train_set, test_set = fitting_labels(model, train_set), fitting_labels(model, test_set)
    precision = setup.backend_options.get("precision")
    if precision is not None:
        train_set, test_set = train_set.cast(precision), test_set.cast(precision)
    options = {"seed": setup.seed, **setup.backend_options}
    part, whole = None, model
    if communication is not None:
        options = ranks.backend_options(setup, communication)
        part = ranks.decomposed(setup, model, communication)
    if part is not None:
        train_set = part.dataset(train_set, augmented=bool(setup.augment))
        model, test_set = part.model, part.dataset(test_set)
    with network(model, setup.backend, **options) as net:
        if communication is None or communication.is_root:
            busy = busy_cores(setup.workers, net.threads)
            if busy:
                sys.stderr.write(busy + "\n")
        optimizer = make_optimizer(setup, net)
        what: dict[str, Any] = {
            "model": setup.model if not setup.model.endswith(".onnx") else Path(setup.model).stem,
            "optimizer": optimizer_name(setup),
            "version": version(setup.backend),
            "seed": setup.seed,
            "ranks": 1,
        }
        if communication is not None:
            what |= {"ranks": communication.size, "optimizer": distributed_name(setup), "level": 3}
            optimizer = ranks.distributed_optimizer(setup, optimizer, communication)
        chosen: list[Any] = [RowsTicker(folder, seconds=ROWS_SECONDS, **what)]
        if folder is not None:
            chosen.append(ProgressFile())
            chosen += [create_log(name, **what) for name in dict.fromkeys(logs)]
        chosen += map(MetricTicker, setup.metrics)
        if setup.target_accuracy is not None:
            chosen.append(AccuracyLimit(setup.target_accuracy))
        if setup.time_limit is not None:
            chosen.append(TimeLimit(setup.time_limit))
        chosen += tickers
        if checkpoint_every is not None:
            from meta500.distributed.checkpoint import CheckpointTicker

            assert checkpoints is not None
            chosen.append(CheckpointTicker(checkpoints, checkpoint_every, communication))
        common: dict[str, Any] = {
            "tickers": chosen,
            "batch_size": setup.batch_size,
            "drop_last": setup.drop_last,
            "seed": setup.seed,
            "loading": {"workers": setup.workers, "kind": setup.loader, "augment": setup.augment},
            "folder": folder,
        }
        if communication is None:
            runner = Runner(net, optimizer, train_set, test_set, **common)
        else:
            from meta500.distributed.runner import DistributedRunner

            if ranks.scheme_of(setup) == ranks.IN_STEP and setup.drop_last is None:
                # A rank without samples cannot take part in a step of generated code.
                common["drop_last"] = True
            runner = DistributedRunner(
                net,
                optimizer,
                train_set,
                test_set,
                communication=communication,
                partition=part is None,
                what=what,
                **common,
            )
        position = None
        if resume is not None:
            from meta500.distributed import checkpoint

            rank, size = (0, 1) if communication is None else (communication.rank, communication.size)
            position = checkpoint.restore(checkpoint.read(resume, rank, size), net, optimizer)
        summary = runner.run(setup.epochs, resume=position)
        if hasattr(optimizer, "finish"):
            optimizer.finish()
        if save is not None and (communication is None or communication.is_root):
            trained = net.current_model() if part is None else with_parameters_of(whole, net)
            trained.save(save)
    return summary


def busy_cores(workers: int, threads: int | None) -> str:
    """A warning where ``workers`` and the network's ``threads`` (None: as many as there are cores) are more
    than the cores that this process may use; "" where they are not."""
    cores = len(os.sched_getaffinity(0))
    computing = cores if threads is None else threads
    if not workers or workers + computing <= cores:
        return ""
    return (
        f"{_number(workers, 'worker')} and {_number(computing, 'thread')} of the network share "
        f"{_number(cores, 'core')}: step times contain what the workers take; to compare step times, "
        "use --workers 0 or fewer --threads"
    )


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def optimizer_name(setup: Setup) -> str:
    """Name of the optimizer for rows: which one, and whether it is ours or the backend's."""
    return f"{setup.optimizer} ({'native' if setup.native else 'reference'})"


def distributed_name(setup: Setup) -> str:
    """Name of the optimizer and the scheme around it, for rows."""
    scheme = setup.spatial and f"spatial {setup.spatial}{'' if setup.halo else ' without halo'}"
    parts = [scheme or ranks.scheme_of(setup), *([setup.compression] if setup.compression else [])]
    return f"{optimizer_name(setup)}, {', '.join(parts)}"


def train_command(
    setup: Setup,
    out: Path | None,
    save: Path | None,
    as_json: bool,
    *,
    checkpoint_every: int | None = None,
    resume: Path | None = None,
    timeline: bool = False,
    logs: Sequence[str] = (),
) -> int:
    """``meta500 train``: run, write the folder and plots, print a summary.

    In a process that mpiexec started it trains together with the other ranks; only rank 0 writes and prints.

    Args:
        setup: what to train.
        out: the run folder; None: a new one in runs/.
        save: where to write the trained network.
        as_json: print the summary as JSON.
        checkpoint_every: steps between checkpoints.
        resume: a checkpoint; its run is named in the new one.
        timeline: record what every rank does when.
        logs: names of logs for other programs.

    Returns:
        0 when the run finished or stopped at a limit, 1 when it failed (NaN) or missed its target accuracy.
    """
    check_arguments(setup, save, checkpoint_every)
    check_loading(setup)
    for name in logs:
        check_packages(name)
    launched = launched_ranks()
    if launched is None:
        alone = setup.ranks_needed() or ("--timeline" if timeline else None)
        if alone is not None:
            raise UserError(f"{alone} is for training on several ranks: add --ranks N, or start with mpiexec")
        return run_and_report(setup, out, save, as_json, checkpoint_every, resume, logs, None)
    from meta500.distributed import faults

    communication = ranks.communication_network(setup, timeline)
    with faults.guard(communication):
        code = run_and_report(setup, out, save, as_json, checkpoint_every, resume, logs, communication)
        sys.stdout.flush()
        # A rank that leaves with a code other than 0 ends all: first the root has to have said everything.
        communication.barrier()
    return code


def check_arguments(setup: Setup, save: Path | None, checkpoint_every: int | None) -> None:
    """Refuse options that cannot work before anything is loaded."""
    if save is not None and not save.resolve().parent.is_dir():
        raise UserError(f"--save {save}: the folder '{save.parent}' does not exist")
    if save is not None and save.is_dir():
        raise UserError(f"--save {save}: is a folder; give the path of a file")
    if setup.epochs < 1:
        raise UserError(f"--epochs must be at least 1, got {setup.epochs}")
    if checkpoint_every is not None and checkpoint_every < 1:
        raise UserError(f"--checkpoint-every must be at least 1, got {checkpoint_every}")


def check_loading(setup: Setup) -> None:
    """Refuse options of the data pipeline that cannot work.

    Raises:
        UserError: names the option.
    """
    if setup.workers < 0:
        raise UserError(f"--workers must be at least 0, got {setup.workers}")
    choose("--loader", setup.loader, KINDS)
    parsed(setup.augment)


def run_and_report(
    setup: Setup,
    out: Path | None,
    save: Path | None,
    as_json: bool,
    checkpoint_every: int | None,
    resume: Path | None,
    logs: Sequence[str],
    communication: Any,
) -> int:
    """Train, then write plots and print the summary on the root; gives the exit code on all ranks."""
    from meta500.benchmarks.tables import console as make_console
    from meta500.metrics.plots import plots_from_run

    if communication is not None:
        ranks.scheme_of(setup)
    train_set, _ = load_sets(setup)  # anything wrong with the names is said before a folder is made
    load_model(setup, train_set)

    def create() -> RunFolder:
        folder = RunFolder.create(out, command=sys.argv, seeds={"seed": setup.seed})
        folder.info["setup"] = asdict(setup)
        folder.info["ranks"] = 1 if communication is None else communication.size
        if resume is not None:
            folder.info["resumed_from"] = str(resume.resolve())
        announce(folder)
        return folder

    common: dict[str, Any] = {
        "save": save,
        "checkpoint_every": checkpoint_every,
        "resume": resume,
        "logs": logs,
    }
    if communication is None:
        with create() as folder:
            summary = train(setup, folder, [progress()], checkpoints=folder.path, **common)
            if summary.status == "failed":
                folder.finish("failed", summary.abort_reason or "")
    else:
        with ranks.run_folder(communication, create) as (folder, path):
            summary = train(
                setup, folder, [progress()], checkpoints=path, communication=communication, **common
            )
            if communication.timeline is not None:
                ranks.write_timeline(communication, folder)
            if folder is not None and summary.status == "failed":
                folder.finish("failed", summary.abort_reason or "")
    missed = setup.target_accuracy is not None and not summary.reached
    code = 1 if summary.status == "failed" or missed else 0
    if folder is None:
        return code
    plots_from_run(folder.path)
    if as_json:
        sys.stdout.write(json.dumps(_summary(summary, folder), default=str) + "\n")
    else:
        console = make_console()
        console.print(training_table([(setup, summary)]))
        if communication is not None:
            console.print(f"{communication.size} ranks: {distributed_name(setup)}", highlight=False)
        if summary.abort_reason:
            console.print(f"{summary.status}: {summary.abort_reason}", highlight=False)
        console.print(f"Results: {folder.path}", highlight=False, soft_wrap=True)
    return code


def progress() -> ProgressTicker:
    """The progress bar; on the terminal of the process that started mpiexec, if that has one."""
    columns = os.environ.get(COLUMNS, "")
    if not columns.isdecimal():
        return ProgressTicker()
    from rich.console import Console

    return ProgressTicker(Console(stderr=True, force_terminal=True, width=int(columns)))


def with_parameters_of(model: Model, net: Network) -> Model:
    """``model`` with the parameters and running statistics that ``net`` has under the same names."""
    initializers = dict(model.graph.initializers)
    current = net.current_model().graph.initializers
    names = [*net.get_params(), *training_form(model)[1]]
    initializers |= {name: current[name] for name in names if name in initializers}
    return model.with_graph(replace(model.graph, initializers=initializers))


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
