"""ONNX test cases on disk: a folder with ``model.onnx`` and ``test_data_set_N/{input,output}_*.pb``.

Beside what ONNX's own runner reads, a data set may hold ``cotangent_I.pb``, the cotangent of output I.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph import Model, OptionalType, SequenceType, load
from meta500.graph.types import ValueType

README = """\
One node that two backends of meta500 computed differently, with the inputs on which they did.

  operator:  {operator}
  node:      {node}
  compared:  {a} with {b}
  found:     {found}

model.onnx            the node, with its constants
test_data_set_0       input_*.pb, output_*.pb (the values of {b}){cotangents}

Run it again:

  meta500 diff {folder} --a {a} --b {b}

The folder has the form of ONNX's backend tests, so other runtimes can run it too.
"""


@dataclass
class Case:
    """A model with its inputs by name and, if the folder has some, cotangents of outputs."""

    model: Model
    inputs: dict[str, Any]
    cotangents: dict[str, np.ndarray] = field(default_factory=dict)
    note: str = ""


def is_case(path: Path) -> bool:
    """Whether ``path`` is the folder of a test case, or of one of its data sets."""
    return (path / "model.onnx").is_file() or (
        path.name.startswith("test_data_set_") and (path.parent / "model.onnx").is_file()
    )


def load_case(path: Path) -> Case:
    """Read a test case; of several data sets the first, or the one whose folder is given.

    Raises:
        UserError: a file is missing or malformed.
    """
    note = ""
    if (path / "model.onnx").is_file():
        folder = path
        sets = sorted(path.glob("test_data_set_*"), key=_number)
        if not sets:
            raise UserError(f"{path}: has no test_data_set_0; give the inputs by --inputs FILE.npz")
        chosen = sets[0]
        if len(sets) > 1:
            note = f"{len(sets)} data sets; {chosen.name} is taken, give its folder for another"
    else:
        folder, chosen = path.parent, path
    model = load(folder / "model.onnx")
    names = list(model.inputs)
    inputs = _values(chosen, "input", names, model.inputs)
    missing = [name for name in names if name not in inputs]
    if missing:
        raise UserError(f"{chosen}: has no input_*.pb for {', '.join(missing)}")
    cotangents = _values(chosen, "cotangent", list(model.outputs), model.outputs)
    return Case(model, inputs, cotangents, note)


def save_case(
    folder: Path,
    model: Model,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    cotangents: Mapping[str, np.ndarray],
    about: Mapping[str, str],
) -> Path:
    """Write a one-node model with its inputs as a test case.

    Args:
        folder: a new folder.
        model: the node as a model.
        inputs: by name, for every input of the model.
        outputs: expected ones by name; those that are missing are left out with all after them.
        cotangents: of outputs, by name.
        about: "a", "b" and "found" for the description.

    Raises:
        UserError: the folder cannot be written.
    """
    data = folder / "test_data_set_0"
    try:
        data.mkdir(parents=True, exist_ok=True)
        model.save(folder / "model.onnx")
        for index, name in enumerate(model.inputs):
            (data / f"input_{index}.pb").write_bytes(_encoded(inputs[name], name))
        for index, name in enumerate(model.outputs):
            if name not in outputs:
                break
            (data / f"output_{index}.pb").write_bytes(_encoded(outputs[name], name))
        for index, name in enumerate(model.outputs):
            if name in cotangents:
                (data / f"cotangent_{index}.pb").write_bytes(_encoded(cotangents[name], name))
        op = model.graph.operations[0]
        text = README.format(
            operator=f"{op.domain or 'ai.onnx'}.{op.op_type}, version {op.since_version}",
            node=op.name,
            folder=folder,
            cotangents=", cotangent_*.pb (of the outputs)" if cotangents else "",
            **about,
        )
        (folder / "README.txt").write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror})") from None
    return folder


def _number(path: Path) -> tuple[int, str]:
    digits = re.search(r"(\d+)$", path.stem)
    return (int(digits.group(1)) if digits else 0, path.name)


def _values(
    folder: Path, kind: str, names: list[str], types: Mapping[str, ValueType | None]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for file in sorted(folder.glob(f"{kind}_*.pb"), key=_number):
        index = _number(file)[0]
        if index >= len(names):
            raise UserError(f"{file}: the model has only {len(names)} {kind}s")
        try:
            found[names[index]] = _decoded(file.read_bytes(), types[names[index]])
        except OSError as error:
            raise UserError(f"{file}: cannot be read ({error.strerror})") from None
        except Exception as error:  # whatever protobuf and onnx raise on malformed bytes
            raise UserError(f"{file}: is no value of the declared type ({error})") from None
    return found


def _decoded(data: bytes, declared: ValueType | None) -> Any:
    import onnx
    from onnx import numpy_helper

    if isinstance(declared, SequenceType):
        return numpy_helper.to_list(onnx.SequenceProto.FromString(data))
    if isinstance(declared, OptionalType):
        return numpy_helper.to_optional(onnx.OptionalProto.FromString(data))
    return numpy_helper.to_array(onnx.TensorProto.FromString(data))


def _encoded(value: Any, name: str) -> bytes:
    from onnx import OptionalProto, numpy_helper

    from meta500.graph.writer import array_to_tensor

    if value is None:
        return bytes(OptionalProto(name=name).SerializeToString())
    if isinstance(value, list | tuple):
        return bytes(numpy_helper.from_list(list(value), name).SerializeToString())
    return bytes(array_to_tensor(np.asarray(value), name).SerializeToString())
