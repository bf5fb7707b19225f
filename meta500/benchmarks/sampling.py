"""How fast batches come, and whether labels are drawn with a bias (``meta500 data sample``)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from meta500.errors import UserError, choose
from meta500.metrics.run import RunFolder
from meta500.metrics.sampling import Sampling, measure

# Samples of a bucket where none is said.
_BUCKET = 64


def sampling_command(
    dataset: str,
    dataset_options: Mapping[str, Any],
    sampler: str,
    batch_size: int,
    seed: int,
    epochs: int,
    workers: int,
    augment: Sequence[str],
    out: Path | None,
    as_json: bool,
    *,
    loader: str = "thread",
    prefetch: int = 2,
) -> int:
    """Walk over a dataset's training samples as fast as they come; write a run folder and print a table.

    Args:
        dataset, dataset_options: which set, by its name, and its options.
        sampler: "ordered", "shuffle", "choice", "bucket" or "bucket:SIZE".
        batch_size: samples per batch.
        seed: of the sampler and the augmentation, and of the set if it has one.
        epochs: how often the set is walked over.
        workers: that make batches ahead; 0: none.
        augment: steps such as "flip" or "crop:4".
        out: the run folder; None: a new one in runs/.
        as_json: print the numbers as JSON instead of a table.
        loader: kind of workers, "thread" or "process".
        prefetch: batches ahead per worker.

    Returns:
        0.

    Raises:
        UserError: an unknown name, an option that does not fit, files that are missing or damaged.
    """
    from meta500 import datasets
    from meta500.datasets.loader import Loader
    from meta500.metrics.plots import plots_from_run

    options = dict(dataset_options)
    if "seed" in datasets.options(choose("dataset", dataset, datasets.names())):
        options.setdefault("seed", seed)
    if epochs < 1:
        raise UserError(f"--epochs must be at least 1, got {epochs}")
    make = sampler_of(sampler)
    train_set, _ = datasets.load(dataset, **options)
    order = make(train_set, batch_size, seed)
    with Loader(
        order, workers=workers, kind=loader, prefetch=prefetch, augment=augment, seed=seed
    ) as batches:
        command = {"command": sys.argv, "seeds": {"seed": seed}}
        with RunFolder.create(out, **command) as folder:  # type: ignore[arg-type]
            folder.info["sampling"] = {
                "dataset": dataset,
                "dataset_options": {key: str(value) for key, value in options.items()},
                "sampler": sampler,
                "batch_size": batch_size,
                "workers": workers,
                "loader": loader,
                "prefetch": prefetch,
                "augment": list(augment),
                "epochs": epochs,
            }
            sys.stderr.write(f"Writing to {folder.path}\n")
            found = measure(batches, epochs)
            who = f"{workers} {loader} {'worker' if workers == 1 else 'workers'}" if workers else "no workers"
            note = "; ".join(filter(None, (f"sampler {sampler}", ", ".join(augment))))
            what = {"dataset": train_set.name, "batch": batch_size, "seed": seed, "mode": who, "note": note}
            folder.extend(found.rows(**what))
    plots_from_run(folder.path)
    _report(found, folder, what, as_json)
    return 0


def sampler_of(text: str) -> Callable[[Any, int, int], Any]:
    """The function ``(set, batch size, seed) -> Sampler`` of a sampler's name.

    Raises:
        UserError: an unknown name, or a bucket's size that is no whole number.
    """
    from meta500 import datasets

    name, colon, value = text.partition(":")
    known: Mapping[str, Callable[[Any, int, int], Any]] = MappingProxyType(
        {
            "ordered": lambda data, batch, seed: datasets.OrderedSampler(data, batch),
            "shuffle": lambda data, batch, seed: datasets.ShuffleSampler(data, batch, seed=seed),
            "choice": lambda data, batch, seed: datasets.ChoiceSampler(data, batch, seed=seed),
            "bucket": lambda data, batch, seed: datasets.BucketSampler(
                data, batch, bucket_size=int(value) if colon else _BUCKET, seed=seed
            ),
        }
    )
    choose("sampler", name, known)
    if colon and (name != "bucket" or not value.isdecimal() or int(value) < 1):
        raise UserError(
            f"sampler '{text}': only bucket takes a value, the samples of a bucket: write bucket:{_BUCKET}"
        )
    return known[name]


def _report(found: Sampling, folder: RunFolder, what: Mapping[str, Any], as_json: bool) -> None:
    from meta500.benchmarks.tables import console as make_console
    from meta500.benchmarks.tables import duration, table_of, timed

    rows = folder.rows
    if as_json:
        numbers = {r.quantity: r.value for r in rows if not r.node}
        labels = (
            {} if found.labels is None else dict(zip(found.labels.names, found.labels.counts, strict=True))
        )
        told = {
            "run": str(folder.path),
            "id": folder.id,
            **{key: what[key] for key in ("dataset", "batch", "seed", "mode", "note")},
            "batches": found.batches,
            "samples": found.samples,
            **numbers,
            "label_counts": {name: int(count) for name, count in labels.items()},
        }
        sys.stdout.write(json.dumps(told) + "\n")
        return
    by_quantity = {r.quantity: r for r in rows if not r.node}
    latency = by_quantity.get("latency")
    slowest = max(found.latencies, default=None)
    table = table_of(
        "Sampling",
        ["workers"],
        [
            "batches",
            "median latency [interval]",
            "mean",
            "slowest",
            "first batch",
            "samples/s",
            "label bias",
            "p value",
        ],
    )
    table.caption = (
        f"{what['dataset']}, {what['batch']} samples per batch, {what['note'].replace('; ', ', ')}"
    )
    table.caption_justify = "left"
    table.add_row(
        what["mode"],
        str(found.batches),
        "-" if latency is None else timed(latency),
        duration(found.mean_latency),
        duration(slowest),
        duration(by_quantity["first_call"].value),
        f"{found.throughput:.4g}",
        "-" if found.labels is None else f"{found.labels.total_variation:.4f}",
        "-" if "p_value" not in by_quantity else f"{by_quantity['p_value'].value:.3g}",
    )
    console = make_console()
    console.print(table)
    if found.labels is not None and found.labels.ignored:
        console.print(f"{found.labels.ignored} labels are ignored and not counted", highlight=False)
    console.print(f"Results: {folder.path}", highlight=False, soft_wrap=True)
