"""``meta500 data``: published datasets: list, get and check them; time how fast batches come."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

data = typer.Typer(
    help="List, download and check datasets, and time how fast their batches come.",
    no_args_is_help=True,
    add_completion=False,
)

Name = Annotated[str, typer.Argument(help="A dataset's name.", show_default=False)]
Folder = Annotated[
    Path | None,
    typer.Option(help="Where its files are. [default: $META500_DATA/NAME or ~/.cache/meta500/data/NAME]"),
]
Options = Annotated[list[str] | None, typer.Option(help="Option of the dataset, key=value.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@data.command("list")
def list_datasets(as_json: AsJson = False) -> None:
    """List all datasets: samples, classes, size, terms, and which are here."""
    from meta500.benchmarks.data_listing import listing, listing_table
    from meta500.benchmarks.tables import console

    records = listing()
    if as_json:
        _print_json(records)
    else:
        console().print(listing_table(records))
        typer.echo("Classes, loss, licence and files of one: meta500 data info NAME")


@data.command("info")
def info(name: Name, folder: Folder = None, as_json: AsJson = False) -> None:
    """Say what a dataset is, its terms, where its files come from, and which are missing."""
    from meta500.benchmarks.data_listing import about, lines

    record = about(name, folder, make=True)
    if as_json:
        _print_json(record)
    else:
        typer.echo("\n".join(lines(record)))


@data.command("get")
def get(
    names: Annotated[list[str], typer.Argument(help="Names of datasets.", show_default=False)],
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Where to, made if missing; for one dataset. "
            "[default: $META500_DATA/NAME or ~/.cache/meta500/data/NAME]"
        ),
    ] = None,
    keep_archives: Annotated[
        bool, typer.Option("--keep-archives", help="Do not remove archives after they were unpacked.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download datasets and unpack them; what is there is not fetched again, what broke off goes on."""
    from meta500.benchmarks.data_listing import amount
    from meta500.cli import INTERRUPTED
    from meta500.datasets import catalog, download, registry
    from meta500.errors import UserError

    for name in set(names) & set(registry.names()):
        if catalog.published(name) is None:
            raise UserError(f"dataset '{name}' is not downloaded: see `meta500 data info {name}`")
    wanted = [catalog.entry(name) for name in dict.fromkeys(names)]
    if folder is not None and len(wanted) > 1:
        raise UserError(f"--folder {folder}: is for one dataset; {len(wanted)} are named")
    done: list[dict[str, Any]] = []
    try:
        for entry in wanted:
            typer.echo(f"{entry.name}: licence or terms: {entry.licence}", err=True)
            with download.bars() as report:
                got = download.get(entry.name, folder, keep_archives=keep_archives, report=report)
            done.append(
                {
                    "name": got.name,
                    "folder": str(got.folder),
                    "downloaded": list(got.downloaded),
                    "bytes": got.bytes,
                    "unpacked_files": got.files,
                }
            )
            if not as_json:
                what = [f"downloaded {', '.join(got.downloaded)} ({amount(got.bytes)})"] * bool(
                    got.downloaded
                )
                what += [f"unpacked {got.files} files"] * bool(got.files)
                typer.echo(f"{got.name}: {', '.join(what) or 'was here already'}; in {got.folder}")
    except KeyboardInterrupt:
        sys.stdout.flush()
        sys.stderr.write(
            "meta500: interrupted; what has come is kept, and the same command goes on with it\n"
        )
        sys.stderr.flush()
        os._exit(INTERRUPTED)  # main would speak of a run folder
    if as_json:
        _print_json(done)


@data.command("check")
def check(name: Name, folder: Folder = None, dataset_option: Options = None, as_json: AsJson = False) -> None:
    """Check all files of a dataset: checksums, headers, lists, pictures; exit code 2 where one is wrong."""
    from meta500.benchmarks.options import pairs
    from meta500.datasets.verification import verify

    found = verify(name, folder, pairs("--dataset-option", dataset_option))
    record = {
        "name": found.name,
        "folder": None if found.folder is None else str(found.folder),
        "archives": list(found.archives),
        "compared_files": found.compared,
        "train": len(found.train),
        "test": len(found.test),
        "arrays": {
            key: {"shape": list(shape), "dtype": str(found.train.dtypes[key])}
            for key, shape in found.train.shapes.items()
        },
        "classes": None if found.train.classes is None else len(found.train.classes),
    }
    if as_json:
        _print_json(record)
        return
    where = "" if found.folder is None else f" in {found.folder}"
    typer.echo(f"{name}: all is right{where}: {len(found.train):,} + {len(found.test):,} samples")
    for key, array in found.train.shapes.items():
        typer.echo(f"{key}: {found.train.dtypes[key]} {array}")
    if found.archives:
        typer.echo(f"as published: {', '.join(found.archives)}")
    if found.compared:
        typer.echo(f"as they came out of the archive: {found.compared:,} files")
    if not found.archives and not found.compared and found.folder is not None:
        typer.echo("by their headers, sizes and contents, and the checksums that the loader knows")


@data.command("sample")
def sample(
    name: Name,
    dataset_option: Options = None,
    sampler: Annotated[
        str, typer.Option(help="ordered, shuffle, choice (with repeats), bucket or bucket:SIZE.")
    ] = "shuffle",
    batch_size: Annotated[int, typer.Option(help="Samples per batch.")] = 64,
    epochs: Annotated[int, typer.Option(help="How often the training set is walked over.")] = 1,
    workers: Annotated[int, typer.Option(help="Workers that make batches ahead; 0: none.")] = 0,
    loader: Annotated[str, typer.Option(help="Kind of workers: thread or process.")] = "thread",
    prefetch: Annotated[int, typer.Option(help="Batches ahead per worker.")] = 2,
    augment: Annotated[
        list[str] | None, typer.Option(help="A step of augmentation, such as flip or crop:4; in order.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of sampler, augmentation and set.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/TIME-ID]")] = None,
    as_json: AsJson = False,
) -> None:
    """Time how fast batches come, and see whether labels are drawn with a bias."""
    from meta500.benchmarks.options import pairs
    from meta500.benchmarks.sampling import sampling_command

    raise typer.Exit(
        sampling_command(
            name,
            pairs("--dataset-option", dataset_option),
            sampler,
            batch_size,
            seed,
            epochs,
            workers,
            tuple(augment or ()),
            out,
            as_json,
            loader=loader,
            prefetch=prefetch,
        )
    )


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, default=str) + "\n")
