"""``meta500 generate exaslang``: a network's training as a layer-4 program, checked and run."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from meta500.backends.generated.exaslang.files import Platform
from meta500.backends.generated.exaslang.variant import Variant
from meta500.benchmarks.generation.command import Prepared, Request
from meta500.benchmarks.generation.config import read_config
from meta500.benchmarks.generation.exaslang_files import (
    DATA,
    data_files,
    identifier,
    program_files,
    with_weights,
)
from meta500.benchmarks.generation.folder import Folder
from meta500.datasets import load_files, save_files
from meta500.datasets.files import STORAGES
from meta500.errors import UserError
from meta500.graph import Model


@dataclass(frozen=True)
class ExaslangRequest:
    """What the command line asks for.

    Attributes:
        model: as on the command line; "" where the configuration names it.
        config: the TOML file.
        out: the folder, or the ONNX file with ``weights``; None for a folder named after the network.
        variant: loops and processes; its precision is the configuration's.
        machine: for the platform file.
        with_data: whether data files are written.
        check: run the program in the interpreter, against the numpy backend.
        run: generate C++, compile and run it, against the numpy backend.
        weights: saved weights to be written as ONNX.
    """

    model: str
    config: Path
    out: Path | None
    variant: Variant
    machine: Platform = field(default_factory=Platform)
    with_data: bool = True
    check: bool = False
    run: bool = False
    weights: Path | None = None


def exaslang_command(request: ExaslangRequest) -> None:
    """Do what is asked for.

    Raises:
        UserError: options that do not fit together, and everything that the parts raise.
    """
    if request.out is None and request.weights is not None:
        raise UserError("--import needs --out: the ONNX file to write")
    if request.run and not request.with_data:
        raise UserError("--run needs the data: leave --no-data out")
    config = read_config(request.config)
    variant = replace(request.variant, double=config.precision == "float64").checked()
    prepared = Prepared.of(Request(model=request.model), config)
    if request.weights is not None:
        _import(request, prepared, request.weights)
        return
    out = request.out if request.out is not None else Path(default_folder(prepared.subject.model))
    folder = Folder(out)
    written = program_files(
        prepared.subject, config, variant, request.machine, prepared.train, prepared.validation
    )
    keep = data_files(prepared.train, prepared.validation) if request.with_data else ()
    folder.write(written.files, keep)
    if request.with_data:
        save_files(out / DATA, prepared.train, prepared.validation, storage=config.storage)
        if config.storage != STORAGES[0]:
            # What the program reads is rounded.
            train, validation = load_files(out / DATA)
            prepared = replace(prepared, train=train, validation=validation)
    _say(f"Written to {out}: {', '.join(sorted(written.files))}")
    if request.check:
        from meta500.benchmarks.generation.exaslang_check import check

        check(prepared, config, variant, written)
    if request.run:
        from meta500.benchmarks.generation.exaslang_run import run

        run(out, prepared, config, variant, written)


def default_folder(model: Model) -> str:
    """Where the files of a network go if nothing is said."""
    return f"{identifier(model.name)}-exastencils"


def trained_model(model: Model, arrays: dict[str, np.ndarray]) -> Model:
    """The network with other weights."""
    initializers = dict(model.graph.initializers)
    for name, array in arrays.items():
        initializers[name] = array.astype(initializers[name].dtype)
    return model.with_graph(replace(model.graph, initializers=initializers))


def _import(request: ExaslangRequest, prepared: Prepared, weights: Path) -> None:
    assert request.out is not None
    if request.out.is_dir():
        raise UserError(f"--out {request.out}: is a folder; give the path of the ONNX file")
    model = prepared.subject.model
    shapes = {name: model.graph.initializers[name].shape for name in model.parameters}
    arrays = with_weights(weights.parent / "parameters.json", weights, shapes)
    trained_model(model, arrays).save(request.out)
    _say(f"Written to {request.out}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
