"""The saved state of an optimizer: its form, its checks, and its .npz file.

The file holds one array per state slot under the key ``SLOT:PARAMETER``, and under ``manifest`` one
JSON text with everything else. It contains no pickled object and is read without pickle, so a file
from elsewhere can fail to load but cannot run anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import array_api_compat
import numpy as np

from meta500.backends.hyperparameters import Hyper, describe_rate
from meta500.errors import UserError

Array = Any
FORMAT = 1
MANIFEST = "manifest"
_FIELDS: dict[str, type] = {
    "format": int,
    "optimizer": str,
    "step_count": int,
    "hyper": dict,
    "scalars": dict,
    "parameters": dict,
}

# What numpy and zipfile raise on files that are cut off, changed, or of another kind.
_DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    TypeError,
    KeyError,
    NotImplementedError,
    RuntimeError,
    MemoryError,
    struct.error,
    zlib.error,
    zipfile.BadZipFile,
)


@dataclass(frozen=True)
class Checked:
    """A state that fits the optimizer: hyper-parameters to set, and state as numpy arrays."""

    step_count: int
    hyper: dict[str, Any]
    scalars: dict[str, float]
    arrays: dict[str, dict[str, np.ndarray]]


def dtype_name(dtype: Any) -> str:
    """The name of a dtype, the same for every backend ("float32")."""
    return str(dtype).removeprefix("torch.")


def describe(array: Array) -> dict[str, Any]:
    """Shape and dtype of a native array, as they stand in a saved state."""
    return {"shape": [int(size) for size in array.shape], "dtype": dtype_name(array.dtype)}


def to_numpy(array: Array) -> np.ndarray:
    """A copy in numpy; bfloat16, which numpy lacks, is widened to float32 (exact)."""
    if isinstance(array, np.ndarray):
        return array.copy()
    if hasattr(array, "detach"):
        array = array.detach().cpu()
    if dtype_name(array.dtype) == "bfloat16":
        xp = array_api_compat.array_namespace(array)
        array = xp.astype(array, xp.float32)
    return np.array(np.asarray(array))


def to_native(value: np.ndarray, like: Array) -> Array:
    """A copy of ``value`` as an array of the backend, dtype and device of ``like``."""
    xp = array_api_compat.array_namespace(like)
    native = xp.asarray(np.array(value, order="C"), device=array_api_compat.device(like))
    return xp.astype(native, like.dtype)


def snapshot(
    optimizer: Any,
    parameters: Mapping[str, Mapping[str, Any]],
    arrays: Mapping[str, Mapping[str, Array]],
    scalars: Mapping[str, float],
) -> dict[str, Any]:
    """The state of an optimizer in numpy arrays and plain values; see ``Optimizer.state_dict``."""
    hyper = optimizer.hyper_parameters()
    if "learning_rate" in hyper:
        hyper["learning_rate"] = describe_rate(hyper["learning_rate"])
    return {
        "format": FORMAT,
        "optimizer": optimizer.kind,
        "step_count": optimizer.step_count,
        "hyper": hyper,
        "scalars": dict(scalars),
        "parameters": {name: dict(entry) for name, entry in parameters.items()},
        "state": {
            name: {slot: to_numpy(array) for slot, array in slots.items()} for name, slots in arrays.items()
        },
    }


def check(
    optimizer: Any,
    state: Mapping[str, Any],
    parameters: Mapping[str, Mapping[str, Any]],
    source: str,
) -> Checked:
    """Check that a state fits an optimizer and its parameters (names, shapes, dtypes, values).

    Raises:
        UserError: naming ``source`` and the key that does not fit, with what is there and what is
            expected.
    """
    if not isinstance(state, Mapping):
        raise UserError(f"{source}: not the state of an optimizer, but a {type(state).__name__}")
    for field, kind in {**_FIELDS, "state": dict}.items():
        if field not in state:
            raise UserError(f"{source}: key '{field}' is missing: not the state of an optimizer")
        if not isinstance(state[field], kind) or isinstance(state[field], bool):
            raise UserError(
                f"{source}: key '{field}' is {state[field]!r}, not a value of type {kind.__name__}"
            )
    if state["format"] != FORMAT:
        raise UserError(f"{source}: key 'format' is {state['format']}: this version reads format {FORMAT}")
    name = optimizer.kind
    if state["optimizer"] != name:
        raise UserError(f"{source}: the state of optimizer {state['optimizer']} cannot be loaded into {name}")
    if state["step_count"] < 0:
        raise UserError(f"{source}: key 'step_count' is {state['step_count']}: it must be at least 0")
    _check_parameters(state["parameters"], parameters, source)
    for key, value in state["scalars"].items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{source}: key 'scalars.{key}' is {value!r}: it must be a number")
    return Checked(
        step_count=state["step_count"],
        hyper=_check_hyper(optimizer, state["hyper"], source),
        scalars={key: float(value) for key, value in state["scalars"].items()},
        arrays=_check_arrays(state["state"], parameters, source),
    )


def _check_parameters(
    saved: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]], source: str
) -> None:
    missing, extra = sorted(set(parameters) - set(saved)), sorted(set(saved) - set(parameters))
    if missing or extra:
        raise UserError(
            f"{source}: key 'parameters' is of another network: parameters of this network that it "
            f"lacks: {missing}; parameters that this network lacks: {extra}"
        )
    for name, entry in parameters.items():
        if saved[name] != entry:
            raise UserError(
                f"{source}: key 'parameters.{name}' says {saved[name]}, but the parameter has {dict(entry)}"
            )


def _check_hyper(optimizer: Any, saved: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The hyper-parameters to set, validated; a schedule that stays as it is is left out."""
    present = optimizer.hyper_parameters()
    if set(saved) != set(present):
        raise UserError(f"{source}: key 'hyper' has the options {sorted(saved)}, expected {sorted(present)}")
    values = dict(saved)
    rate = present.get("learning_rate")
    if isinstance(values.get("learning_rate"), str) or callable(rate):
        if values["learning_rate"] != describe_rate(rate):
            raise UserError(
                f"{source}: the state was saved with the learning rate {values['learning_rate']}, "
                f"this optimizer has {describe_rate(rate)}: a schedule is not saved, set the same "
                "learning_rate before loading"
            )
        del values["learning_rate"]
    for key, value in values.items():
        declaration = getattr(type(optimizer), key, None)
        if isinstance(declaration, Hyper):
            try:
                values[key] = declaration.check(type(optimizer).__name__, value)
            except UserError as error:
                raise UserError(f"{source}: key 'hyper.{key}': {error}") from None
    return values


def _check_arrays(
    saved: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Any]], source: str
) -> dict[str, dict[str, np.ndarray]]:
    for name, slots in saved.items():
        if name not in parameters:
            raise UserError(f"{source}: key 'state.{name}' belongs to no parameter of this network")
        expected = parameters[name]
        stored = "float32" if expected["dtype"] == "bfloat16" else expected["dtype"]
        for slot, value in slots.items():
            if not isinstance(value, np.ndarray):
                raise UserError(
                    f"{source}: key '{slot}:{name}' is a {type(value).__name__}, not a numpy array"
                )
            if list(value.shape) != expected["shape"] or dtype_name(value.dtype) != stored:
                raise UserError(
                    f"{source}: key '{slot}:{name}' has shape {value.shape} and dtype "
                    f"{value.dtype}, expected {tuple(expected['shape'])} and {stored}"
                )
    present = {slot for slots in saved.values() for slot in slots}
    for name, slots in saved.items():
        for slot in present - set(slots):
            raise UserError(f"{source}: key '{slot}:{name}' is missing")
    return {name: dict(slots) for name, slots in saved.items()}


def write(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write a state as .npz to ``path`` exactly, replacing the file whole or leaving it as it was.

    Raises:
        UserError: the file cannot be written (names it and the reason).
    """
    target = os.fspath(path)
    manifest = {field: state[field] for field in _FIELDS}
    manifest["slots"] = {name: sorted(slots) for name, slots in state["state"].items()}
    arrays = {
        f"{slot}:{name}": value for name, slots in state["state"].items() for slot, value in slots.items()
    }
    arrays[MANIFEST] = np.array(json.dumps(manifest))
    temporary = f"{target}.{os.getpid()}.part"
    try:
        with open(temporary, "wb") as stream:
            np.savez(stream, **arrays)  # type: ignore[arg-type]
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"cannot write the optimizer state '{target}': {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a file of ``write``; whether it fits an optimizer is for ``check`` to say.

    Raises:
        UserError: the file cannot be read, is damaged, or lacks a key (names the file and the key).
    """
    target = os.fspath(path)
    key = MANIFEST
    try:
        with np.load(target, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile) or MANIFEST not in archive.files:
                raise UserError(
                    f"file '{target}': key '{MANIFEST}' is missing: not the state of an optimizer"
                )
            state = json.loads(str(archive[MANIFEST][()]))
            if not isinstance(state, dict) or not isinstance(state.get("slots"), dict):
                raise UserError(
                    f"file '{target}': key '{MANIFEST}' does not describe the state of an optimizer"
                )
            arrays: dict[str, dict[str, np.ndarray]] = {}
            for name, slots in state.pop("slots").items():
                arrays[name] = {}
                for slot in slots:
                    key = f"{slot}:{name}"
                    if key not in archive.files:
                        raise UserError(f"file '{target}': key '{key}' is missing")
                    arrays[name][slot] = archive[key]
    except FileNotFoundError as error:
        raise UserError(f"file '{target}' does not exist") from error
    except _DAMAGE as error:
        raise UserError(
            f"file '{target}': key '{key}' cannot be read, the file is damaged: {error}"
        ) from error
    state["state"] = arrays
    return state
