"""The keys of a recipe's tables: fields of `Setup` and their options, with the values that fit them."""

from __future__ import annotations

import hashlib
import types
import typing
from collections.abc import Mapping
from dataclasses import fields
from functools import lru_cache
from pathlib import Path
from typing import Any

from meta500.benchmarks.training import Setup
from meta500.errors import UserError, choose

# Fields of Setup that a recipe does not have, with the reason.
NOT_IN_RECIPES: Mapping[str, str] = types.MappingProxyType(
    {
        "seed": "every seed of [recipe] seeds is run",
        **dict.fromkeys(
            ("scheme", "scheme_options", "compression", "spatial", "halo"),
            "it is for training on several ranks, and recipes train in one process",
        ),
    }
)
# What is not in Setup: the schedule of the learning rate, see `schedule`.
SCHEDULE = "schedule"
SCHEDULE_UNITS = ("step", "epoch")
# A recipe says these itself, so that another default one day does not change what it means.
REQUIRED = (
    "model",
    "dataset",
    "backend",
    "optimizer",
    "hyperparameters.learning_rate",
    "epochs",
    "batch_size",
)


@lru_cache(maxsize=1)
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Setup)


@lru_cache(maxsize=1)
def groups() -> tuple[str, ...]:
    """The keys that have options behind a dot: ``model_options``, ``hyperparameters``, ..., ``schedule``."""
    hints = _hints()
    own = [f.name for f in fields(Setup) if typing.get_origin(hints[f.name]) is dict]
    return (*(name for name in own if name not in NOT_IN_RECIPES), SCHEDULE)


@lru_cache(maxsize=1)
def known_keys() -> tuple[str, ...]:
    """All keys that a recipe may have; those of `groups` stand for all of their options."""
    own = [f.name for f in fields(Setup) if f.name not in NOT_IN_RECIPES]
    return tuple(dict.fromkeys([*own, SCHEDULE]))


def flat(where: str, table: Mapping[str, Any]) -> dict[str, Any]:
    """A table with its options under dotted keys, every key and value checked.

    Args:
        where: the table and the file, for messages.
        table: as `tomllib` reads it: ``model_options.n = 0`` is a table in the table, and
            ``"model_options.n" = 0`` a key with a dot; both mean the same.

    Raises:
        UserError: an unknown key (names the nearest), a value of another type, or a key given in both ways.
    """
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key in groups():
            if not isinstance(value, dict):
                raise UserError(f"{where}: '{key}' holds options: write {key}.NAME = VALUE, not {value!r}")
            entries = {f"{key}.{option}": v for option, v in value.items()}
        else:
            entries = {key: value}
        for name, entry in entries.items():
            if name in found:
                raise UserError(f"{where}: '{name}' is given twice")
            found[name] = checked(where, name, entry)
    return found


def checked(where: str, key: str, value: Any) -> Any:
    """``value`` as the field ``key`` of `Setup` holds it; options may have any plain value.

    Raises:
        UserError: an unknown key (names the nearest), or a value of another type.
    """
    group, dot, option = key.partition(".")
    if group in NOT_IN_RECIPES:
        raise UserError(f"{where}: '{key}' is not for recipes: {NOT_IN_RECIPES[group]}")
    choose(f"key of {where}", group, known_keys())
    if dot and group not in groups():
        raise UserError(f"{where}: '{group}' has no options, so '{key}' means nothing")
    if not dot:
        if key in groups():
            raise UserError(f"{where}: '{key}' holds options: write {key}.NAME = VALUE")
        return _of_kind(f"{where}: '{key}'", _hints()[key], value)
    if not option:
        raise UserError(f"{where}: '{key}' names no option behind the dot")
    if key == f"{SCHEDULE}.per":
        try:
            return choose("unit", str(value), SCHEDULE_UNITS)
        except UserError as error:
            raise UserError(f"{where}: '{key}': {error}") from None
    if isinstance(value, dict):
        raise UserError(f"{where}: '{key}' is a table; options have plain values or lists")
    _plain(f"{where}: '{key}'", value)
    return tuple(value) if isinstance(value, list) else value


def like(where: str, old: Any, new: Any) -> Any:
    """``new``, if it is of the same kind as ``old``: both numbers, texts, lists, or true or false.

    Raises:
        UserError: they are of different kinds.
    """
    if _kind(old) != _kind(new):
        raise UserError(f"{where} must be {_kind(old)} like {old!r}, not {new!r}")
    return new


def setup_from(values: Mapping[str, Any], seed: int) -> Setup:
    """The training run that flat ``values`` describe, with this seed."""
    own: dict[str, Any] = {}
    for key, value in values.items():
        group, dot, option = key.partition(".")
        if group == SCHEDULE:
            continue
        if dot:
            own.setdefault(group, {})[option] = value
        else:
            own[key] = value
    return Setup(**own, seed=seed)


def schedule(values: Mapping[str, Any]) -> tuple[Any, str] | None:
    """The schedule of the learning rate among flat ``values``: a function, and "step" or "epoch"; or None.

    ``schedule.name`` is one of `meta500.optimizers.schedules`, with its options beside it; it begins at
    ``hyperparameters.learning_rate``. ``schedule.per`` says what it counts, "epoch" unless it is given.

    Raises:
        UserError: an unknown schedule or option, or a value that it refuses.
    """
    chosen = {k.partition(".")[2]: v for k, v in values.items() if k.startswith(f"{SCHEDULE}.")}
    if not chosen:
        return None
    from meta500.optimizers.schedules import create_schedule

    if "name" not in chosen:
        raise UserError("'schedule.name' is missing: it says which schedule the other options belong to")
    name, per = chosen.pop("name"), chosen.pop("per", "epoch")
    return create_schedule(str(name), values["hyperparameters.learning_rate"], **chosen), per


def is_file(model: Any) -> bool:
    """Whether a ``model`` is the path of an ONNX file, and no name."""
    return isinstance(model, str) and model.endswith(".onnx")


def sha256(path: Path) -> str:
    """SHA-256 of a file's contents, hexadecimal.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _plain(where: str, value: Any) -> None:
    """Refuse what no option can have: dates and times, tables in lists."""
    if isinstance(value, list | tuple):
        for entry in value:
            _plain(where, entry)
    elif not isinstance(value, bool | int | float | str | None):
        kind = "a table" if isinstance(value, dict) else f"a {type(value).__name__}"
        raise UserError(
            f"{where} has {kind}, {str(value)!r}; options have numbers, texts, true or false, or lists"
        )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, int | float):
        return "a number"
    return "a text" if isinstance(value, str) else "a list" if isinstance(value, tuple | list) else "empty"


def _of_kind(where: str, hint: Any, value: Any) -> Any:
    """``value`` as the type hint of a field has it."""
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        if value is None and type(None) in typing.get_args(hint):
            return None
        (hint,) = (h for h in typing.get_args(hint) if h is not type(None))
    if typing.get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, list | tuple):
            raise UserError(f"{where} must be a list of texts, not {value!r}")
        return tuple(_of_kind(f"{where}, entry {i + 1}", str, v) for i, v in enumerate(value))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise UserError(f"{where} must be {words[hint]}, not {value!r}")
    return value
