"""What a browser may ask for, and the command line of ``meta500 train`` that it becomes.

Nothing here loads anything: shapes and types of values are checked, and names against the choices. Whether a
network, a dataset and an optimizer go together is found out in a process of its own (`inspection`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meta500.errors import UserError, choose
from meta500.web.storage import UPLOAD

LABEL = 100
NAME = 200
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}", re.ASCII)
# Options that the form has fields for, that the data decides, or that are places on this machine.
HIDDEN = frozenset({"batch", "seed", "loss", "folder", "path", "learning_rate"})

DEFAULTS: dict[str, Any] = {
    "model": "digits_cnn",
    "dataset": "digits",
    "backend": "torch",
    "optimizer": "adam",
    "native": False,
    "learning_rate": 1e-3,
    "epochs": 10,
    "batch_size": 64,
    "seed": 0,
    "threads": None,
}


@dataclass(frozen=True)
class Number:
    """A number from ``least`` to ``most``; whole unless ``real``."""

    least: float
    most: float
    real: bool = False

    def check(self, key: str, value: Any) -> Any:
        """The value; raises UserError with the range."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = whole or (self.real and isinstance(value, float) and math.isfinite(value))
        if not number or not self.least <= value <= self.most:
            kind = "number" if self.real else "whole number"
            raise UserError(
                f"{key} must be a {kind} from {self.least:g} to {self.most:g}, got {shown(value)}"
            )
        return value


NUMBERS = {
    "learning_rate": Number(0, 1e6, real=True),
    "epochs": Number(1, 100_000),
    "batch_size": Number(1, 1_000_000),
    "seed": Number(0, 2**32 - 1),
    "threads": Number(1, 4096),
    "target_accuracy": Number(1e-9, 1, real=True),
    "time_limit": Number(1e-3, 1e9, real=True),
}
OPTIONS = ("model_options", "dataset_options", "optimizer_options")
KEYS = ("model", "upload", "dataset", "backend", "optimizer", "native", *NUMBERS, *OPTIONS, "label")


def checked(posted: Any, choices: Mapping[str, Any]) -> dict[str, Any]:
    """The setup of a request, with defaults filled in; ``choices`` as `inspection.choices` gives them.

    Raises:
        UserError: names the key, the value and what would be right.
    """
    if not isinstance(posted, dict):
        raise UserError('the request must be a JSON object, such as {"model": "mlp"}')
    for key in posted:
        choose("key", key[:80], KEYS)
    given = {key: value for key, value in posted.items() if value is not None}
    if "model" in given and "upload" in given:
        raise UserError(
            "model and upload exclude each other: give the name of a model, or the id of an upload"
        )
    setup = {**DEFAULTS, "upload": None, "label": "", "target_accuracy": None, "time_limit": None, **given}
    models = _by_name(choices["models"])
    if setup["upload"] is not None:
        if not isinstance(setup["upload"], str) or not UPLOAD.fullmatch(setup["upload"]):
            raise UserError(f"upload must be the id of an uploaded file, got {shown(setup['upload'])}")
        setup["model"] = None
        known: Mapping[str, Any] = {}
    else:
        known = models[_name("model", setup["model"], models)]["options"]
    datasets, backends = _by_name(choices["datasets"]), _by_name(choices["backends"])
    _name("dataset", setup["dataset"], datasets)
    _name("backend", setup["backend"], backends)
    if not isinstance(setup["native"], bool):
        raise UserError(f"native must be true or false, got {shown(setup['native'])}")
    kind = f"native optimizer of backend '{setup['backend']}'" if setup["native"] else "optimizer"
    listed = choices["native"].get(setup["backend"], []) if setup["native"] else choices["optimizers"]
    optimizers = _by_name(listed)
    optimizer = optimizers[_name("optimizer", setup["optimizer"], optimizers, kind)]
    for key, number in NUMBERS.items():
        if setup[key] is not None:
            number.check(key, setup[key])
    most = choices["limits"]["threads"]
    if setup["threads"] is not None and setup["threads"] > most:
        raise UserError(
            f"threads must be a number from 1 to {most}, the processors here; got {setup['threads']}"
        )
    sources = (known, datasets[setup["dataset"]]["options"], optimizer["options"])
    for key, options in zip(OPTIONS, sources, strict=True):
        setup[key] = _options(key, setup.get(key, {}), options)
    setup["label"] = label(setup["label"])
    return setup


def command(setup: Mapping[str, Any], model: str, out: str) -> list[str]:
    """Arguments of ``meta500 train``; every value is attached to its option, so none can become one."""
    named = {
        "model": model,
        "dataset": setup["dataset"],
        "backend": setup["backend"],
        "optimizer": setup["optimizer"],
        **{key: setup[key] for key in NUMBERS if setup[key] is not None},
        "out": out,
    }
    words = ["train", *(f"--{key.replace('_', '-')}={value}" for key, value in named.items())]
    if setup["native"]:
        words.append("--native")
    for key in OPTIONS:
        option = f"--{key.removesuffix('s').replace('_', '-')}"
        words += [f"{option}={name}={json.dumps(value)}" for name, value in setup[key].items()]
    return words


def label(text: Any, most: int = LABEL) -> str:
    """Text from outside as one line: without control and format characters, cut after ``most`` characters.

    Raises:
        UserError: it is no text.
    """
    if not isinstance(text, str):
        raise UserError(f"label must be text, got {shown(text)}")
    return "".join(c if c.isprintable() else " " for c in text[: 4 * most]).strip()[:most].strip()


def shown(value: Any) -> str:
    """A value from outside, short enough for a message."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        return "a value that is nested too deeply"
    return text if len(text) <= 80 else f"{text[:77]}..."


def _by_name(entries: Any) -> dict[str, Any]:
    return {entry["name"]: entry for entry in entries}


def _name(key: str, value: Any, known: Mapping[str, Any], kind: str = "") -> str:
    if not isinstance(value, str):
        raise UserError(f"{key} must be a name, got {shown(value)}")
    return choose(kind or key, value[:80], known)


def _options(key: str, values: Any, known: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError(f"{key} must be a JSON object, got {shown(values)}")
    for name, value in values.items():
        if not known:
            raise UserError(f"{key}: '{name[:80]}' is given, but there are no options here")
        choose(f"option in {key}", name[:80], known)
        for part in value if isinstance(value, list) and len(value) <= 64 else [value]:
            _simple(f"{key}: {name}", part)
    return {name: value for name, value in values.items() if value is not None}


def _simple(key: str, value: Any) -> None:
    """Numbers, truth values and words; no text that could be a path."""
    if isinstance(value, str) and _WORD.fullmatch(value):
        return
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, int | float) and abs(value) < 2**63:
        return
    raise UserError(
        f"{key} must be a number, true, false, a word of letters, digits, '_' and '-', or a list of these; "
        f"got {shown(value)}"
    )
