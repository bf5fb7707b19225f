"""All files of a network on the way through ExaStencils: layer 4, knowledge, weights, order of samples."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meta500.backends.generated.exaslang import files
from meta500.backends.generated.exaslang.pictures import Picture
from meta500.backends.generated.exaslang.training import (
    TRAINED,
    TRAINING,
    VALIDATION,
    WEIGHTS,
    Trained,
    Training,
    training_program,
)
from meta500.backends.generated.exaslang.variant import Variant
from meta500.backends.generated.fusion import fused
from meta500.backends.generated.network import GeneratedNetwork
from meta500.benchmarks.generation import forms
from meta500.benchmarks.generation.config import Config
from meta500.benchmarks.generation.shuffle import sample_order
from meta500.benchmarks.generation.subject import Subject
from meta500.datasets import Dataset
from meta500.datasets.files import TRAIN, file_names, stored_array
from meta500.datasets.files import VALIDATION as HELD
from meta500.errors import UserError

TEXTS = Path(__file__).parent
DATA, ORDER = "data", "order.bin"
# Arguments by which a cell asks for its number.
_CELL = "long batch, long channel, long i0, long i1, double x, double y"
_GIVEN = "channel, i0, i1, x, y, meta500::blocks"
# Element types that the header reads, under the names that it gives them.
_TYPES = ("float32", "float64", "int64", "int32", "uint8")


@dataclass(frozen=True)
class Written:
    """What is written for a network.

    Attributes:
        files: contents by name.
        trained: the program with its parameters.
        training: how it trains.
        batch: samples per step.
    """

    files: dict[str, bytes]
    trained: Trained
    training: Training
    batch: int


def program_files(
    subject: Subject,
    config: Config,
    variant: Variant,
    machine: files.Platform,
    train: Dataset,
    validation: Dataset | None,
) -> Written:
    """The files of a network that trains as ``config`` says, without the data.

    Raises:
        UserError: what layer-4 code can't express, with the name of the node; data that do not fit.
    """
    batch = _batch(subject)
    training = Training(
        config.epochs,
        len(train) // batch,
        len(validation) // batch if validation is not None else 0,
        config.update,
        config.hyper,
        config.report == "step",
    )
    net = GeneratedNetwork(subject.model, precision=config.precision, threads=1)
    with net:
        stages = fused(net.stages(forms.training(net, subject.shapes)))
        trained = training_program(stages, variant, training)
        weights = _flat(trained, {p.name: np.asarray(net.native(p.name)) for p in trained.parameters})
        model = net.model
    name = identifier(model.name)
    levels = (trained.translation.bottom, trained.translation.top)
    parts = {TRAINING: train}
    if training.validation and validation is not None:
        parts[VALIDATION] = validation
    found = {
        f"{name}.exa4": str(trained.tree).encode(),
        f"{name}.knowledge": files.knowledge(variant, levels).encode(),
        f"{name}.platform": files.platform(variant, machine).encode(),
        f"{name}.settings": files.settings(name).encode(),
        files.HEADER: (TEXTS / "layer4" / files.HEADER).read_bytes(),
        ORDER: _order(config, len(train)).tobytes(),
        "meta500_network.h": _network_header(trained, config, variant, batch, parts).encode(),
        WEIGHTS: weights.tobytes(),
        "parameters.json": _parameters(trained).encode(),
        "train.toml": config.path.read_bytes(),
    }
    found["README.md"] = _readme(name, variant, training, batch, train, validation).encode()
    return Written(found, trained, training, batch)


def data_files(train: Dataset, validation: Dataset | None) -> tuple[str, ...]:
    """Names of the data files in the folder."""
    return tuple(f"{DATA}/{name}" for name in file_names(train, validation))


def with_weights(
    parameters: Path, weights: Path, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, np.ndarray]:
    """Weights that a program has saved, by parameter.

    Args:
        parameters: the folder's ``parameters.json``.
        weights: the saved file.
        shapes: of the network's parameters.

    Raises:
        UserError: files that are missing or belong to another network.
    """
    try:
        listed = json.loads(parameters.read_text())["parameters"]
        entries = [(str(e["name"]), tuple(map(int, e["shape"])), int(e["offset"])) for e in listed]
        numbers = np.fromfile(weights, "<f8")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{weights} with {parameters}: cannot be read: {error}") from None
    wanted = sum(math.prod(shape) for shape in shapes.values())
    if weights.stat().st_size != wanted * numbers.itemsize:
        raise UserError(f"{weights}: has {numbers.size} weights, the network has {wanted}")
    found = {}
    for name, shape, offset in entries:
        if shapes.get(name) != shape or not 0 <= offset <= wanted - math.prod(shape):
            raise UserError(f"{parameters}: parameter '{name}' {list(shape)} is none of the network's")
        found[name] = numbers[offset:][: math.prod(shape)].reshape(shape)
    if set(found) != set(shapes):
        missing = ", ".join(sorted(set(shapes) - set(found)))
        raise UserError(f"{parameters}: lacks the network's parameters {missing}")
    return found


def _batch(subject: Subject) -> int:
    sizes = {shape[0] for shape in subject.shapes.values()}
    if len(sizes) != 1:
        raise UserError("the first dimension of all inputs must be the samples of a batch")
    return next(iter(sizes))


def _order(config: Config, samples: int) -> np.ndarray:
    """The order of the samples, (epochs, samples)."""
    plain = np.arange(samples)
    orders = [
        sample_order(samples, config.seed, e) if config.shuffle else plain for e in range(config.epochs)
    ]
    return np.stack(orders).astype("<i4")


def _flat(trained: Trained, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([arrays[p.name].astype("<f8").ravel() for p in trained.parameters])


def identifier(name: str) -> str:
    """A network's name as the name of its files."""
    return "".join(c if c.isascii() and c.isalnum() else "_" for c in name) or "network"


def _parameters(trained: Trained) -> str:
    entries = [{"name": p.name, "shape": list(p.shape), "offset": p.offset} for p in trained.parameters]
    return json.dumps({"parameters": entries}, indent=1) + "\n"


def _network_header(
    trained: Trained, config: Config, variant: Variant, batch: int, parts: Mapping[str, Dataset]
) -> str:
    """What the header knows of this network and its data."""
    arrays = {config.inputs.get(name, name): name for name in next(iter(parts.values())).inputs}
    lines = [
        "/* The data of this folder's program. */",
        "#ifndef META500_NETWORK_H",
        "#define META500_NETWORK_H",
        "",
        "namespace meta500 {",
        "",
        f"static const long batch = {batch};",
        f"static const Blocks blocks = {{{variant.blocks[0]}, {variant.blocks[1]}}};",
    ]
    for part, data in parts.items():
        lines += [
            f"static const long {part}_samples = {len(data)};",
            f"static const Array {part}_arrays[] = {{",
        ]
        for name, picture in trained.inputs.items():
            lines.append(f"    {_array(part, data, arrays[name], picture, config)},")
        lines.append("};")
    lines += [
        "",
        "}  // namespace meta500",
        "",
        "/* Reads all data into memory. */",
        "inline void meta500_read() {",
        f'    meta500::order() = meta500::contents("{ORDER}", '
        f"{4 * config.epochs} * meta500::training_samples);",
        *(f"    meta500::{part}().read(meta500::{part}_arrays, {len(trained.inputs)});" for part in parts),
        "}",
        "",
    ]
    for number in range(len(trained.inputs)):
        lines += [
            f"inline double meta500_training_{number}(long epoch, long step, {_CELL}) {{",
            "    const long at = epoch * meta500::training_samples + step * meta500::batch + batch;",
            "    const long sample = meta500::bytes_as<std::int32_t>(meta500::order().data() + 4 * at);",
            f"    return meta500::training().at({number}, sample, {_GIVEN});",
            "}",
        ]
        if VALIDATION in parts:
            lines += [
                f"inline double meta500_validation_{number}(long step, {_CELL}) {{",
                "    const long sample = step * meta500::batch + batch;",
                f"    return meta500::validation().at({number}, sample, {_GIVEN});",
                "}",
            ]
    return "\n".join([*lines, "", "#endif"]) + "\n"


def _array(part: str, data: Dataset, name: str, picture: Picture, config: Config) -> str:
    file, dtype, scale = stored_array(TRAIN if part == TRAINING else HELD, data, name, config.storage)
    shape = data.inputs[name].shape[1:]
    wanted = (picture.channels, *picture.size) if len(shape) == 3 else picture.size
    if tuple(shape) != wanted:
        raise UserError(
            f"data '{data.name}': '{name}' has samples of {list(shape)}, the network takes {list(wanted)}"
        )
    if dtype not in _TYPES:
        raise UserError(f"data '{data.name}': '{name}' is {dtype}; layer-4 programs read {', '.join(_TYPES)}")
    classes = 0
    if data.label == name and np.dtype(dtype).kind in "iu" and data.classes is not None:
        classes = len(data.classes)
    rows, columns = picture.size
    return (
        f'{{"{DATA}/{file}", Type::{dtype}, {scale!r}, {len(data)}, '
        f"{picture.channels}, {rows}, {columns}, {classes}}}"
    )


def _readme(
    name: str, variant: Variant, training: Training, batch: int, train: Dataset, validation: Dataset | None
) -> str:
    start = f"./{files.GENERATED}/{files.PROGRAM}"
    if variant.mpi:
        start = f"mpirun -n {variant.processes} {start}"
    used = f"{training.batches * batch} of {len(train)} training samples"
    if validation is not None:
        used += f" and {training.validation * batch} of {len(validation)} validation samples"
    steps = "\n".join(
        [
            'java -Xss64m -cp "$META500_EXASTENCILS/*" Main '
            f"{name}.settings {name}.knowledge {name}.platform",
            f"make -j -C {files.GENERATED}",
            start,
        ]
    )
    return f"""# {name}: training through ExaStencils

`{name}.exa4` is the whole training of the network in ExaSlang, layer 4: forward pass, loss, backward pass,
optimizer. The other files say how code is generated from it, and hold data and weights. In this folder, with
`META500_EXASTENCILS` naming the folder of the generator's jar files:

```
{steps}
```

The program prints the loss of every epoch and saves its weights as `{TRAINED}`;
`meta500 generate exaslang MODEL --config train.toml --import {TRAINED} --out trained.onnx`
makes a network of them.
Batches have {batch} samples: an epoch uses {used}.
"""
