"""What a recipe needs, checked before anything starts: names, options, files to be got, networks."""

from __future__ import annotations

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from meta500.benchmarks.recipes.recipe import Recipe, Run
from meta500.benchmarks.training import Setup, check_loading, load_model, load_sets, make_optimizer
from meta500.errors import UnsupportedOperation, UserError, choose

# What decides which network runs on which data and backend.
_OF_THE_NETWORK = (
    "model",
    "model_options",
    "dataset",
    "dataset_options",
    "backend",
    "backend_options",
    "batch_size",
    "drop_last",
    "metrics",
)


def check(recipe: Recipe) -> None:
    """Everything that can be known without training.

    Names and options of all runs come first, then the files of their datasets, then, from the real data,
    whether each network fits its dataset and its backend.

    Raises:
        UserError: what does not fit, with recipe, run and key; all missing files at once, with the command
            that gets them.
    """
    for run in recipe.runs:
        _told(recipe, run, _names)
    absent = missing(recipe)
    if absent:
        raise UserError(_to_get(recipe, absent))
    done: list[dict[str, Any]] = []
    for run in recipe.runs:
        # Runs that differ in the optimizer alone have the same network.
        what = {k: v for k, v in recipe.values_of(run).items() if k.partition(".")[0] in _OF_THE_NETWORK}
        if what not in done:
            _told(recipe, run, _network)
            done.append(what)


def missing(recipe: Recipe) -> dict[str, list[str]]:
    """Files that have to be got, by dataset; nothing is opened."""
    from meta500.datasets import catalog

    found: dict[str, list[str]] = {}
    for run in recipe.runs:
        setup = recipe.setup(run)
        for name in catalog.missing(setup.dataset, **setup.dataset_options):
            files = found.setdefault(setup.dataset, [])
            if name not in files:
                files.append(name)
    return found


def _to_get(recipe: Recipe, absent: dict[str, list[str]]) -> str:
    """Which files are missing, and how to come by them, in one line."""
    from meta500.datasets import catalog

    ways: dict[str, dict[str, None]] = {name: {} for name in absent}
    for run in recipe.runs:
        setup = recipe.setup(run)
        if catalog.missing(setup.dataset, **setup.dataset_options):
            options = {key: value for key, value in setup.dataset_options.items() if key != "folder"}
            ways[setup.dataset][catalog.how_to_get(setup.dataset, **options)] = None
    parts = []
    for name, files in absent.items():
        parts.append(f"dataset '{name}' lacks {', '.join(files)}: {'; '.join(ways[name])}")
    return f"recipe '{recipe.name}' cannot start: {'; '.join(parts)}"


def _told(recipe: Recipe, run: Run, check_one: Any) -> None:
    """Run a check; say which recipe and run an error is about."""
    try:
        check_one(recipe.setup(run))
    except UserError as error:
        where = f", run '{run.name}'" if len(recipe.runs) > 1 else ""
        raise UserError(f"recipe '{recipe.name}'{where}: {error}") from None


def _names(setup: Setup) -> None:
    """Model, dataset, backend and optimizer with the names of their options; needs no data."""
    from meta500 import datasets, models, optimizers
    from meta500.backends.network import network

    if setup.target_accuracy is not None and not 0 < setup.target_accuracy <= 1:
        raise UserError(f"target_accuracy must be a fraction in (0, 1], not {setup.target_accuracy!r}")
    if setup.time_limit is not None and not setup.time_limit > 0:
        raise UserError(f"time_limit must be a positive number of seconds, not {setup.time_limit!r}")
    check_loading(setup)
    if not setup.model.endswith(".onnx"):
        known = models.options(setup.model)
        for option in setup.model_options:
            choose(f"option of model '{setup.model}'", option, known)
    of_dataset = datasets.options(setup.dataset)
    for option in setup.dataset_options:
        choose(f"option of dataset '{setup.dataset}'", option, of_dataset)
    for option, default in of_dataset.items():
        if default is inspect.Parameter.empty and option not in setup.dataset_options:
            raise UserError(f"dataset '{setup.dataset}' needs dataset_options.{option}")
    if not setup.native:
        known = optimizers.options(setup.optimizer)
        for option in setup.hyperparameters:
            choose(f"option of optimizer '{setup.optimizer}'", option, known)
    # Options of a backend and of its own optimizers are known to itself alone: a small network asks it.
    small = models.create("mlp", batch=2, shape=(1, 2, 2), hidden=(2,), classes=2)
    with network(small, setup.backend, **setup.backend_options) as net:
        try:
            net.gradient()
        except UnsupportedOperation as error:
            raise UserError(f"backend '{setup.backend}' does not train: {error}") from None
        make_optimizer(setup, net)


def _network(setup: Setup) -> None:
    """The network of the real data: whether its backend has every operator, and whether batches fit it."""
    from meta500.backends.network import UNSUPPORTED, coverage

    train_set, test_set = load_sets(setup)
    model = load_model(setup, train_set)
    refused = sorted({c.op_type for c in coverage(model, setup.backend) if c.how == UNSUPPORTED})
    if refused:
        raise UserError(f"backend '{setup.backend}' does not run {', '.join(refused)} of '{setup.model}'")
    _fits(setup, model, train_set, test_set)


def _fits(setup: Setup, model: Any, train_set: Any, test_set: Any) -> None:
    """Whether a network takes the batches of both sets, from shapes and dtypes alone."""
    from meta500.backends.checks import check_shapes, exact
    from meta500.graph.passes import infer_types
    from meta500.graph.types import TensorType
    from meta500.metrics.runner import Runner
    from meta500.metrics.tickers import MetricTicker

    # The Runner refuses batch sizes, sets and scores that do not fit; it needs only names and types for that.
    outside = SimpleNamespace(inputs=model.inputs, outputs=model.outputs)
    scores = [MetricTicker(name) for name in setup.metrics]
    Runner(
        outside,
        None,
        train_set,
        test_set,
        tickers=scores,
        batch_size=setup.batch_size,
        drop_last=setup.drop_last,
    )
    cast = setup.backend_options.get("precision") is not None
    for data in (train_set, test_set):
        shapes = {name: (setup.batch_size, *data.shapes[name]) for name in model.inputs}
        check_shapes(model.inputs, shapes)
        for name, kind in model.inputs.items():
            wanted, given = getattr(kind, "dtype", None), data.dtypes[name]
            # With a precision, floating-point arrays and types become it, both.
            if wanted is not None and not (cast and wanted.kind == given.kind == "f"):
                exact(np.empty(0, given), wanted, f"input '{name}' of model '{setup.model}'")
    inputs = {
        name: replace(kind, shape=shapes[name])
        for name, kind in model.inputs.items()
        if isinstance(kind, TensorType)
    }
    concrete = model.with_graph(replace(model.graph, inputs={**model.graph.inputs, **inputs}))
    found = infer_types(concrete, strict=_is_strict(model))
    scored = getattr(found.outputs.get("logits"), "shape", None)
    if train_set.classes is None or train_set.default_loss != "cross_entropy" or not scored:
        return
    count, named = scored[1] if len(scored) > 1 else None, len(train_set.classes)
    # More classes than the data's train all the same; with fewer, labels lie outside.
    if isinstance(count, int) and count < named:
        raise UserError(
            f"model '{setup.model}' tells {count} classes apart, but dataset '{setup.dataset}' has {named}"
        )


def _is_strict(model: Any) -> bool:
    """Whether type inference knows all of the model's operators, so that what it refuses cannot run."""
    from meta500.graph.passes import infer_types

    try:
        infer_types(model, strict=True)
    except UserError:
        return False
    return True


def needs_download(recipe: Recipe) -> list[str]:
    """Datasets of the recipe whose files are published, whether they are here or not."""
    from meta500.datasets import catalog

    published = {entry.name for entry in catalog.entries()}
    found = dict.fromkeys(recipe.values_of(run)["dataset"] for run in recipe.runs)
    return [name for name in found if name in published]
