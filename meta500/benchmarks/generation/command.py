"""``meta500 generate cpp``: stages as text, C++ files, programs, and weights back as ONNX."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from meta500.backends.generated.network import GeneratedNetwork
from meta500.benchmarks.generation import forms
from meta500.benchmarks.generation.config import NO_VALIDATION, OPTIMIZERS, Config, read_config
from meta500.benchmarks.generation.folder import Folder
from meta500.benchmarks.generation.program import write_program
from meta500.benchmarks.generation.sources import library_command, library_files
from meta500.benchmarks.generation.subject import Source, Subject, load_network, shaped, with_examples
from meta500.benchmarks.generation.weights import import_weights
from meta500.datasets import Dataset, load_files, save_files
from meta500.datasets.files import file_names
from meta500.errors import UserError, choose
from meta500.graph.types import is_floating

STAGES = ("ir", "schedule", "source")
PHASES = (forms.TRAINING, forms.INFERENCE)
_DATA = "data"


@dataclass(frozen=True)
class Request:
    """What the command line asks for; None and "" where it says nothing."""

    model: str = ""
    stage: str = "ir"
    phase: str = ""
    out: Path | None = None
    threads: int | None = None
    precision: str = ""
    target: str = ""
    adjoint: str = "auto"
    winograd: bool = True
    batch: int | None = None
    size: int | None = None
    loss: str = ""
    optimizer: str = ""
    seed: int = 0
    model_options: dict[str, Any] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    config: Path | None = None
    program: bool = False
    with_data: bool = True
    weights: Path | None = None


def generate_command(request: Request) -> None:
    """Do what is asked for; text goes to standard output.

    Raises:
        UserError: options that do not fit together, and everything that the parts raise.
    """
    choose("stage", request.stage, STAGES)
    if request.phase:
        choose("phase", request.phase, PHASES)
    if (request.program or request.weights is not None) and request.out is None:
        raise UserError(f"{'--program' if request.program else '--import'} needs --out, where to write to")
    if request.program and request.weights is not None:
        raise UserError("--program and --import exclude each other; give one of them")
    if request.program and request.config is None:
        raise UserError("--program needs --config FILE.toml, which says how it trains")
    if request.config is not None:
        _refuse_beside_config(request)
        config = read_config(request.config)
        prepared = Prepared.of(request, config)
    else:
        config, prepared = None, None
    if request.weights is not None:
        _import(request, prepared)
    elif request.program:
        assert config is not None and prepared is not None
        _program(request, config, prepared)
    else:
        _stage(request, config, prepared)


def parse_shapes(entries: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``["image=8x3x64x64"]`` as shapes by name.

    Raises:
        UserError: another form, or a name given twice.
    """
    found: dict[str, tuple[int, ...]] = {}
    for entry in entries:
        name, _, text = entry.rpartition("=")
        sizes = text.split("x")
        if not name or not all(size.isdecimal() and int(size) > 0 for size in sizes):
            raise UserError(f"--shape: '{entry}' is not of the form NAME=8x3x64x64")
        if name in found:
            raise UserError(f"--shape: '{name}' is given twice")
        found[name] = tuple(map(int, sizes))
    return found


# -- the network -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prepared:
    """Data and network of a configuration."""

    train: Dataset
    validation: Dataset | None
    subject: Subject

    @staticmethod
    def of(request: Request, config: Config) -> Prepared:
        if request.model and config.model:
            raise UserError(
                f"the model is given twice: '{request.model}' and, in {config.path}, '{config.model}'"
            )
        model = request.model or config.model
        if not model:
            raise UserError(f"no model: give MODEL, or [model] name or file in {config.path}")
        train, validation = _load_data(config)
        for array in config.inputs:
            choose(f"array of [data] inputs in {config.path}", array, train.inputs)
        arrays = {config.inputs.get(name, name): array for name, array in train.inputs.items()}
        label = config.inputs.get(train.label or "label", train.label or "label")
        source = Source(
            model=model,
            name=config.model_class,
            options=config.model_options,
            loss=config.loss,
            label=label,
            seed=config.seed,
            examples={name: _example(array) for name, array in arrays.items() if name != label},
            classes=len(train.classes) if train.classes is not None else None,
        )
        if len(train) < config.batch_size:
            raise UserError(
                f"configuration {config.path}: [train] batch_size {config.batch_size} is more than the "
                f"{len(train)} training samples of '{train.name}'"
            )
        network = load_network(source)
        for name in network.inputs:
            if name not in arrays:
                raise UserError(
                    f"network '{network.name}' has the input '{name}'; the data have "
                    f"{', '.join(train.inputs)}: "
                    f'name the array that feeds it in {config.path}, [data] inputs = {{ ARRAY = "{name}" }}'
                )
            _check_dtype(name, network.inputs[name], arrays[name].dtype, train.name)
        shapes = {name: (config.batch_size, *arrays[name].shape[1:]) for name in network.inputs}
        return Prepared(train, validation, shaped(network, shapes))


def _example(array: np.ndarray) -> np.ndarray:
    """A few samples as a module takes them, whose parameters are float32."""
    return array[:2].astype(np.float32) if is_floating(array.dtype) else array[:2]


def _check_dtype(name: str, declared: Any, dtype: np.dtype, data: str) -> None:
    """Whether an array can feed an input: floating point each other, whole numbers the same or wider ones."""
    wanted = getattr(declared, "dtype", None)
    if wanted is None or (is_floating(wanted) and is_floating(dtype)):
        return
    whole = not is_floating(wanted) and not is_floating(dtype) and np.can_cast(dtype, wanted)
    if not whole or (wanted.kind == "b") != (dtype.kind == "b"):
        raise UserError(f"input '{name}' takes {wanted}, the data '{data}' have {dtype}")


def _load_data(config: Config) -> tuple[Dataset, Dataset | None]:
    from meta500 import datasets

    held: Dataset | None
    if config.data_path is not None:
        train, held = load_files(config.data_path)
    else:
        options = dict(config.data_options)
        if "seed" in datasets.options(choose("dataset", config.data, datasets.names())):
            options.setdefault("seed", config.seed)
        # The program reads files of whole arrays.
        train, held = (part.in_memory() for part in datasets.load(config.data, **options))
    if isinstance(config.validation, float):
        train, held = train.split(config.validation, config.seed)
    elif config.validation == NO_VALIDATION:
        held = None
    return train, held


def _refuse_beside_config(request: Request) -> None:
    """Options that the configuration decides."""
    given = {
        "--batch": request.batch,
        "--size": request.size,
        "--loss": request.loss,
        "--optimizer": request.optimizer,
        "--precision": request.precision,
        "--model-option": request.model_options,
        "--shape": request.shapes,
        "--seed": request.seed,
    }
    for option, value in given.items():
        if value:
            raise UserError(f"{option} is decided by {request.config}; change it there")


def _plain_subject(request: Request) -> Subject:
    """The network of a command line without a configuration."""
    options = dict(request.model_options)
    name = request.model.partition(":")[0]
    ours = not name.endswith((".py", ".onnx")) and not Path(name).is_file()
    if request.size is not None and not ours:
        raise UserError("--size is an option of our models; give --shape NAME=8x3x64x64 for files")
    if ours and request.size is not None:
        options["size"] = request.size
    if ours and request.batch is not None:
        options["batch"] = request.batch
    source = Source(request.model, options=options, loss=request.loss, seed=request.seed)
    if ours and "batch" not in options:
        from meta500 import models

        known = models.options(request.model)
        # The number that the model itself has as its default, not an open dimension.
        source = replace(source, options={"batch": known["batch"], **options}) if "batch" in known else source
    if name.endswith(".py"):
        source = with_examples(source, request.shapes)
        network = load_network(source)
        batch = request.batch or next((shape[0] for shape in request.shapes.values()), None)
        return shaped(network, request.shapes, batch)
    return shaped(load_network(source), request.shapes, request.batch)


def _network(request: Request, subject: Subject, config: Config | None) -> GeneratedNetwork:
    threads = request.threads if request.threads is not None else config.threads if config else None
    return GeneratedNetwork(
        subject.model,
        precision=(config.precision if config else request.precision) or None,
        threads=threads,
        seed=config.seed if config else request.seed,
        adjoint=request.adjoint,
        winograd=request.winograd,
        target=request.target or (config.target if config else "native"),
    )


# -- what is written -------------------------------------------------------------------------------


def _stage(request: Request, config: Config | None, prepared: Prepared | None) -> None:
    if not request.model and prepared is None:
        raise UserError("no model: give MODEL, the name of a model of ours, an ONNX file or a Python file")
    subject = prepared.subject if prepared is not None else _plain_subject(request)
    folder = Folder(request.out) if request.out is not None else None
    with _network(request, subject, config) as net:
        assert isinstance(net, GeneratedNetwork)
        trains = "loss" in net.model.outputs and bool(net.get_params())
        phase = request.phase or (forms.TRAINING if trains else forms.INFERENCE)
        if request.optimizer and phase == forms.INFERENCE:
            raise UserError("--optimizer belongs to the phase training")
        if request.optimizer:
            choose("optimizer", request.optimizer, OPTIMIZERS)
        optimizer = request.optimizer or (config.update if config else "")
        if phase == forms.TRAINING:
            form = forms.training(net, subject.shapes, optimizer)
        else:
            form = forms.inference(net, subject.shapes)
        if request.stage == "ir":
            files = _ir(net, subject, form, phase)
        else:
            planned = forms.plan(net, form)
            files = {"schedule.txt": f"{planned.schedule}\n".encode()}
            if request.stage == "source":
                files = library_files(planned.schedule, net.target)
        _emit(files, folder)
        if folder is not None and request.stage == "source":
            command = library_command(planned.schedule, net.target)
            _say(f"Compile with: cd {shlex.quote(str(folder.path))} && {command}")


def _ir(net: GeneratedNetwork, subject: Subject, form: forms.Form, phase: str) -> dict[str, bytes]:
    """The stages before and after the joining, as text by file name."""
    files = {}
    inference = form if phase == forms.INFERENCE else forms.inference(net, subject.shapes)
    files["forward.txt"] = net.stages(inference)
    if phase == forms.TRAINING:
        files["adjoint.txt"] = net.stages(form)
    files["fused.txt"] = net.program(form)[0]
    return {name: f"{program}\n".encode() for name, program in files.items()}


def _emit(files: dict[str, bytes], folder: Folder | None) -> None:
    if folder is not None:
        folder.write(files)
        _say(f"Written to {folder.path}: {', '.join(sorted(name for name in files if '/' not in name))}")
        return
    for name, contents in files.items():
        if name.startswith("runtime/"):
            continue
        if len(files) > 1:
            _say(f"==== {name} ====")
        sys.stdout.write(contents.decode())


def _program(request: Request, config: Config, prepared: Prepared) -> None:
    assert request.out is not None
    folder = Folder(request.out)
    with _network(request, prepared.subject, config) as net:
        assert isinstance(net, GeneratedNetwork)
        keep: tuple[str, ...] = ()
        if request.with_data:
            keep = tuple(f"{_DATA}/{name}" for name in file_names(prepared.train, prepared.validation))
        command = write_program(folder, prepared.subject, net, config, keep)
        if request.with_data:
            save_files(request.out / _DATA, prepared.train, prepared.validation, storage=config.storage)
    _say(f"Written to {request.out}. Build with either of")
    place = shlex.quote(str(request.out))
    _say(f"  cd {place} && cmake -S . -B build && cmake --build build -j    # build/train")
    _say(f"  cd {place} && {command}    # ./train")


def _import(request: Request, prepared: Prepared | None) -> None:
    assert request.weights is not None and request.out is not None
    if request.out.is_dir():
        raise UserError(f"--out {request.out}: is a folder; give the path of the ONNX file")
    subject = prepared.subject if prepared is not None else _plain_subject(request)
    config = read_config(request.config) if request.config is not None else None
    with _network(request, subject, config) as net:
        model = import_weights(net.model, request.weights)
    model.save(request.out)
    _say(f"Written to {request.out}")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
