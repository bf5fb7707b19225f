"""The file that says how a stand-alone program trains: TOML, every key and value checked."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta500.backends.generated.updates import update_kind
from meta500.backends.hyperparameters import as_float
from meta500.datasets.files import STORAGES
from meta500.errors import UserError, choose

OPTIMIZERS: dict[str, tuple[str, ...]] = {
    "sgd": ("weight_decay",),
    "momentum": ("momentum", "weight_decay"),
    "adam": ("betas", "epsilon", "weight_decay"),
    "adamw": ("betas", "epsilon", "weight_decay"),
}
LOSSES = ("cross_entropy", "mean_squared_error")
PRECISIONS = ("float32", "float64")
OWN, NO_VALIDATION = "own", "none"
_REQUIRED = object()


@dataclass(frozen=True)
class Config:
    """What a configuration file says.

    Attributes:
        path: of the file.
        data: name of a dataset of ours, or "" where ``data_path`` names a folder of files.
        data_path: such a folder, relative paths being relative to the configuration file.
        data_options: of the dataset.
        validation: "own" (the dataset's test part, or the folder's part "validation"), "none", or the
            fraction of the training samples that is split off.
        storage: how the program's data files hold floating-point arrays: "exact" or "uint8".
        inputs: network input by the name of the array that feeds it, where they differ.
        model: as on the command line; "" where it is given there.
        model_class: name of the class or module in a Python file; "" for the only one.
        model_options: of a model of ours, or arguments of the class's constructor.
        epochs, batch_size, loss, optimizer, seed, shuffle, threads, precision: of the training; ``loss`` is
            "" where the model has one, ``threads`` None for all processors.
        hyper: learning_rate, momentum, beta1, beta2, epsilon, weight_decay.
        report: "epoch" or "step": how often the program prints a loss.
        target: the processor.
    """

    path: Path
    data: str
    data_path: Path | None
    data_options: dict[str, Any]
    validation: str | float
    storage: str
    inputs: dict[str, str]
    model: str
    model_class: str
    model_options: dict[str, Any]
    epochs: int
    batch_size: int
    loss: str
    optimizer: str
    seed: int
    shuffle: bool
    threads: int | None
    precision: str
    report: str
    target: str
    hyper: dict[str, float] = field(default_factory=dict)

    @property
    def update(self) -> str:
        """The name in ``updates.UPDATES`` of the optimizer's rule."""
        return update_kind(self.optimizer, self.hyper["weight_decay"])


def read_config(path: str | Path) -> Config:
    """The configuration in a TOML file.

    Raises:
        UserError: the file can't be read, an unknown section or key, a missing key, or a wrong value; the
            message names the file, the section and the key.
    """
    place = Path(path)
    try:
        with place.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise UserError(f"configuration {place}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"configuration {place}: is no TOML: {error}") from None
    for name in tables:
        choose(f"section of {place}", name, ("data", "model", "train", "output"))
    return _config(place, *(_Section(place, name, tables) for name in ("data", "model", "train", "output")))


class _Section:
    """A table of the file; ``get`` checks and takes a key, ``end`` refuses those that are left."""

    def __init__(self, path: Path, name: str, tables: Mapping[str, Any]) -> None:
        self.path, self.name = path, name
        table = tables.get(name, {})
        if not isinstance(table, dict):
            raise UserError(f"configuration {path}: '{name}' must be a section, [{name}]")
        self.table, self.known = dict(table), set[str]()

    def where(self, key: str) -> str:
        return f"configuration {self.path}: [{self.name}] {key}"

    def get(self, key: str, check: Callable[[str, Any], Any], default: Any = _REQUIRED) -> Any:
        self.known.add(key)
        if key not in self.table:
            if default is _REQUIRED:
                raise UserError(f"{self.where(key)} is missing")
            return default
        return check(self.where(key), self.table[key])

    def end(self) -> None:
        for key in self.table:
            choose(f"key of [{self.name}] in {self.path}", key, self.known)


def _config(place: Path, data: _Section, model: _Section, train: _Section, output: _Section) -> Config:
    name, folder = data.get("name", _text, ""), data.get("path", _text, "")
    if bool(name) == bool(folder):
        raise UserError(
            f"configuration {place}: [data] needs either name (a dataset of ours) or path (a folder of files)"
        )
    given, file = model.get("name", _text, ""), model.get("file", _text, "")
    if given and file:
        raise UserError(f"configuration {place}: [model] has a name and a file; give one of them")
    optimizer = train.get("optimizer", _one_of("optimizer", OPTIMIZERS))
    found = Config(
        path=place,
        data=name,
        data_path=place.parent / folder if folder else None,
        data_options=data.get("options", _table, {}),
        validation=data.get("validation", _validation, OWN),
        storage=data.get("storage", _one_of("storage", STORAGES), STORAGES[0]),
        inputs=data.get("inputs", _names, {}),
        model=given or (str(place.parent / file) if file else ""),
        model_class=model.get("class", _text, ""),
        model_options=model.get("options", _table, {}),
        epochs=train.get("epochs", _whole(1)),
        batch_size=train.get("batch_size", _whole(1)),
        loss=train.get("loss", _one_of("loss", LOSSES), ""),
        optimizer=optimizer,
        seed=train.get("seed", _whole(0, 2**63 - 1), 0),
        shuffle=train.get("shuffle", _flag, True),
        threads=train.get("threads", _whole(1), None),
        precision=train.get("precision", _one_of("precision", PRECISIONS), PRECISIONS[0]),
        report=output.get("report", _one_of("report", ("epoch", "step")), "epoch"),
        target=output.get("target", _text, "native"),
        hyper=_hyper(train, optimizer),
    )
    for section in (data, model, train, output):
        section.end()
    if found.data_options and not name:
        raise UserError(f"{data.where('options')} belong to a dataset of ours, not to a path")
    return found


def _hyper(train: _Section, optimizer: str) -> dict[str, float]:
    """The optimizer's numbers; options of other optimizers are refused."""
    rate = train.get("learning_rate", _number(0))
    betas = train.get("betas", _betas, (0.9, 0.999))
    found = {
        "learning_rate": rate,
        "momentum": train.get("momentum", _number(0, 1), 0.9),
        "beta1": betas[0],
        "beta2": betas[1],
        "epsilon": train.get("epsilon", _number(0), 1e-8),
        "weight_decay": train.get("weight_decay", _number(0), 0.01 if optimizer == "adamw" else 0.0),
    }
    for key in ("momentum", "betas", "epsilon"):
        if key in train.table and key not in OPTIMIZERS[optimizer]:
            having = [name for name, options in OPTIMIZERS.items() if key in options]
            raise UserError(
                f"{train.where(key)} does not apply to optimizer '{optimizer}'; it belongs to "
                f"{', '.join(having)}"
            )
    return found


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise UserError(f"{where} must be a text that is not empty, not {value!r}")
    return value


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{where} must be true or false, not {value!r}")
    return value


def _table(where: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UserError(f"{where} must be a table, {{ key = value }}, not {value!r}")
    return {key: tuple(v) if isinstance(v, list) else v for key, v in value.items()}


def _names(where: str, value: Any) -> dict[str, str]:
    table = _table(where, value)
    for key, name in table.items():
        _text(f"{where}.{key}", name)
    if len(set(table.values())) < len(table):
        raise UserError(f"{where} names an input twice")
    return table


def _whole(low: int, high: int | None = None) -> Callable[[str, Any], int]:
    def check(where: str, value: Any) -> int:
        if (
            isinstance(value, bool)
            or not isinstance(value, int)
            or value < low
            or (high is not None and value > high)
        ):
            limit = f"of at least {low}" if high is None else f"from {low} to {high}"
            raise UserError(f"{where} must be a whole number {limit}, not {value!r}")
        return value

    return check


def _number(low: float, below: float | None = None) -> Callable[[str, Any], float]:
    def check(where: str, value: Any) -> float:
        number = as_float(value)
        if number is None or number < low or (below is not None and number >= below):
            limit = f"of at least {low:g}" if below is None else f"of at least {low:g} and below {below:g}"
            raise UserError(f"{where} must be a finite number {limit}, not {value!r}")
        return number

    return check


def _betas(where: str, value: Any) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise UserError(f"{where} must be two numbers, [0.9, 0.999], not {value!r}")
    check = _number(0, 1)
    return check(where, value[0]), check(where, value[1])


def _validation(where: str, value: Any) -> str | float:
    if value in (OWN, NO_VALIDATION):
        return str(value)
    number = as_float(value)
    if number is None or not 0 < number < 1:
        raise UserError(
            f"{where} must be 'own', 'none' or a fraction of the training samples between 0 and 1, not "
            f"{value!r}"
        )
    return number


def _one_of(kind: str, choices: Any) -> Callable[[str, Any], str]:
    def check(where: str, value: Any) -> str:
        _text(where, value)
        try:
            return choose(kind, value, choices)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None

    return check
