"""What ``meta500 data`` lists and tells of datasets: nothing is loaded, and no file of them opened."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from meta500.benchmarks.tables import table_of
from meta500.datasets import catalog, registry
from meta500.datasets.catalog import Entry
from meta500.datasets.places import folder_of
from meta500.datasets.verification import needs_files

_SCALES = ((10**9, "GB"), (10**6, "MB"), (10**3, "kB"))


def listing() -> list[dict[str, Any]]:
    """One record per dataset: the published ones first, then those that need no download."""
    published = [about(entry.name) for entry in catalog.entries()]
    others = [name for name in registry.names() if name not in {record["name"] for record in published}]
    return published + [about(name) for name in others]


def about(name: str, folder: str | Path | None = None, *, make: bool = False) -> dict[str, Any]:
    """What is known of the dataset ``name``.

    Keys: name, title, options (with their defaults), kind ("published", "own files" or "no files needed"); of
    a published one too folder, here, missing, samples, classes, shape (0: differs), bytes, default_loss,
    licence, homepage, citation, files, how. With ``make`` a set that needs no files is made with its
    defaults, to know its samples, classes, shape, default_loss and licence.

    Raises:
        UserError: unknown dataset, or a folder that does not exist.
    """
    loader = registry.loader(name)
    options = {
        key: "(must be given)" if default is inspect.Parameter.empty else default
        for key, default in registry.options(name).items()
    }
    found = catalog.published(name)
    if found is None:
        title = inspect.cleandoc(loader.__doc__ or "").split("\n", maxsplit=1)[0]
        kind = "own files" if needs_files(name) else "no files needed"
        record = {"name": name, "title": title, "kind": kind, "options": options}
        return {**record, **_made(loader)} if make and kind == "no files needed" else record
    absent = catalog.missing(name, folder)
    return {
        "name": name,
        "title": found.title,
        "kind": "published",
        "folder": str(folder_of(name, folder)),
        "here": not absent,
        "missing": absent,
        "samples": list(found.samples),
        "classes": found.classes,
        "shape": list(found.shape),
        "bytes": found.bytes,
        "default_loss": found.default_loss,
        "licence": found.licence,
        "homepage": found.homepage,
        "citation": found.citation,
        "files": _files(found),
        "how": found.how,
        "options": options,
    }


def _made(loader: registry.Loader) -> dict[str, Any]:
    train, test = loader()
    return {
        "samples": [len(train), len(test)],
        "classes": None if train.classes is None else len(train.classes),
        "shape": list(train.shapes["image"]),
        "default_loss": train.default_loss,
        "licence": train.licence,
    }


def _files(found: Entry) -> list[dict[str, Any]]:
    return [
        {
            "name": file.name,
            "bytes": file.bytes,
            "md5": file.md5,
            "urls": [file.url, *file.mirrors] * bool(file.url),
        }
        for file in (*found.files, *found.by_hand)
    ]


def listing_table(records: Sequence[Mapping[str, Any]]) -> Any:
    """The records of `listing` as a rich table."""
    table = table_of("Datasets", ("dataset", "here"), ("train + test", "classes", "shape", "download"))
    for record in records:
        if record["kind"] != "published":
            table.add_row(record["name"], record["kind"], "", "", "", "")
            continue
        train, test = record["samples"]
        table.add_row(
            record["name"],
            "yes" if record["here"] else "no",
            f"{train:,} + {test:,}",
            str(record["classes"]),
            shape(record["shape"]),
            amount(record["bytes"]) if record["bytes"] else "by hand",
        )
    return table


def lines(record: Mapping[str, Any]) -> list[str]:
    """A record of `about`, line by line."""
    found = [f"{record['name']}: {record['title']}"]
    if "samples" in record:
        train, test = record["samples"]
        found += [
            f"samples: {train:,} for training, {test:,} for test",
            f"classes: {record['classes']}",
            f"shape: {shape(record['shape'])}",
            f"loss: {record['default_loss']}",
            f"licence or terms: {record['licence']}",
        ]
    if record["kind"] == "published":
        found += [
            f"citation: {record['citation']}",
            f"homepage: {record['homepage']}",
        ]
        for file in record["files"]:
            where = f" from {' or '.join(file['urls'])}" if file["urls"] else ""
            found.append(f"file: {file['name']}, {amount(file['bytes'])}, MD5 {file['md5']}{where}")
        absent = record["missing"]
        found.append(
            f"folder: {record['folder']}: " + (f"lacks {', '.join(absent)}" if absent else "complete")
        )
        if absent:
            found.append(f"to get it: {record['how'] or 'meta500 data get ' + record['name']}")
    else:
        found.append(f"files: {record['kind']}")
    found.append("options: " + ", ".join(f"{key}={value}" for key, value in record["options"].items()))
    return found


def shape(sides: Sequence[int]) -> str:
    """``(3, 32, 32)`` as text; 0 stands for sides that differ."""
    return " x ".join(str(side) if side else "any" for side in sides)


def amount(count: int | None) -> str:
    """Bytes in the decimal unit that fits, as disks and downloads are measured."""
    if count is None:
        return "size not known"
    scale, unit = next(((s, u) for s, u in _SCALES if count >= s), (1, "bytes"))
    return f"{count / scale:.3g} {unit}"
