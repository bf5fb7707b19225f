"""The data of a recipe and the reader of its TOML file, every table, key and value checked.

The file::

    [recipe]
    name = "digits-97"                # small letters, digits and hyphens
    title = "A small CNN reads digits"
    description = "..."
    source = "..."                    # who published the values, or how the bounds were found
    seeds = 5                         # seeds 0 to 4
    single_run = false                # true: with seeds = 1, no interval is needed for a verdict
    isolated = false                  # true: every training in a process of its own

    [fixed]                           # fields of meta500.benchmarks.training.Setup
    model = "digits_cnn"
    hyperparameters.learning_rate = 0.001

    [mutable]                         # the same, but --set may change them
    backend = "torch"

    [[runs]]                          # only where several trainings are compared
    name = "native"
    native = true                     # instead of or beside what is in [fixed]
    without = ["backend_options.device"]      # what this run leaves out

    [[metrics]]
    name = "test accuracy"
    quantity = "test_accuracy"
    at = "final"                      # or "best", over the epochs
    run = "native"                    # or difference = ["a", "b"] (a - b), or ratio = ["a", "b"] (a / b)
    low = 0.97                        # acceptance bounds; either or both may be missing
    high = 1.0
    confidence = 0.95
    unit = "1"
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meta500.benchmarks.recipes import values
from meta500.benchmarks.training import Setup
from meta500.errors import UserError, choose
from meta500.metrics.scores import SCORES, score

SHIPPED = Path(__file__).parent / "shipped"
ONLY_RUN = "run"
DEFAULT_CONFIDENCE = 0.95
_FORMS = ("run", "difference", "ratio")
_AT = ("final", "best")
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Quantity:
    """What a training run is measured by: whether it has a value per epoch, its unit, and its direction."""

    per_epoch: bool
    unit: str
    higher_is_better: bool


QUANTITIES: dict[str, Quantity] = {
    "test_accuracy": Quantity(True, "1", True),
    "test_loss": Quantity(True, "1", False),
    "train_loss": Quantity(True, "1", False),
    "step_seconds": Quantity(False, "s", False),
    "first_step_seconds": Quantity(False, "s", False),
    "data_seconds": Quantity(False, "s", False),
    "train_seconds": Quantity(False, "s", False),
    "peak_memory": Quantity(False, "B", False),
}


@dataclass(frozen=True)
class Run:
    """One of the trainings that a recipe compares: its name, what it has beside the common values, and which
    of these it leaves out."""

    name: str
    overrides: dict[str, Any]
    without: tuple[str, ...] = ()


@dataclass(frozen=True)
class Metric:
    """A number that every seed gives, with bounds for its mean.

    ``form`` is "run" (the value of the only entry of ``runs``), "difference" (first minus second) or "ratio"
    (first by second), both of the same seed. ``at`` is "" for quantities without a value per epoch. ``low``
    and ``high`` are None where there is no bound; a metric without any is reported only.
    """

    name: str
    quantity: str
    at: str
    form: str
    runs: tuple[str, ...]
    low: float | None
    high: float | None
    confidence: float
    unit: str

    @property
    def bounded(self) -> bool:
        """Whether the verdict depends on it."""
        return self.low is not None or self.high is not None

    def of(self, found: Mapping[str, float]) -> float:
        """The value from those of the runs of one seed; NaN for a ratio to 0."""
        first = found[self.runs[0]]
        if self.form == "run":
            return first
        second = found[self.runs[1]]
        if self.form == "difference":
            return first - second
        return first / second if second else math.nan


@dataclass(frozen=True)
class Recipe:
    """What a recipe file says; ``fixed``, ``mutable`` and overrides are flat: options have dotted keys.

    ``text`` is the file as it was read, ``path`` where, ``chosen`` what ``--set`` has changed.
    """

    name: str
    title: str
    description: str
    source: str
    seeds: int
    single_run: bool
    isolated: bool
    fixed: dict[str, Any]
    mutable: dict[str, Any]
    runs: tuple[Run, ...]
    metrics: tuple[Metric, ...]
    text: str
    path: Path
    chosen: dict[str, Any]

    def values_of(self, run: Run) -> dict[str, Any]:
        """All values of a run, flat; the path of an ONNX file is absolute (in the file it begins at the
        recipe's folder)."""
        common = {**self.fixed, **self.mutable}
        found = {key: value for key, value in common.items() if key not in run.without} | run.overrides
        if values.is_file(found.get("model")):
            found["model"] = str((self.path.parent / found["model"]).resolve())
        return found

    def setup(self, run: Run, seed: int = 0) -> Setup:
        """The training of a run with a seed."""
        return values.setup_from(self.values_of(run), seed)

    def decides(self) -> dict[str, Any]:
        """Everything that a result depends on, as plain values: not the texts nor the number of seeds.

        Raises:
            UserError: the ONNX file of a model cannot be read.
        """
        table = {
            "single_run": self.single_run,
            "isolated": self.isolated,
            **{f"[fixed] {key}": value for key, value in self.fixed.items()},
            **{f"[mutable] {key}": value for key, value in self.mutable.items()},
        }
        for run in self.runs:
            table |= {f"[[runs]] '{run.name}'": {**run.overrides, "without": run.without}}
            model = self.values_of(run)["model"]
            if values.is_file(model):
                table[f"SHA-256 of {Path(model).name} of run '{run.name}'"] = values.sha256(Path(model))
        for metric in self.metrics:
            table |= {f"[[metrics]] '{metric.name}'": {k: v for k, v in vars(metric).items() if k != "name"}}
        return table


def shipped() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def find(name_or_file: str) -> Recipe:
    """A shipped recipe by name, or one in a file (anything with a suffix or a folder in its name).

    Raises:
        UserError: no such recipe (lists those that are shipped) or file, or as `parse`.
    """
    path = Path(name_or_file)
    if path.suffix or path.name != name_or_file:
        return read(path)
    return read(SHIPPED / f"{choose('recipe', name_or_file, shipped())}.toml")


def read(path: Path) -> Recipe:
    """The recipe in a file.

    Raises:
        UserError: it cannot be read, or as `parse`.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise UserError(f"recipe {path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"recipe {path}: byte {error.start} is no UTF-8 text") from None
    return parse(text, path)


def parse(text: str, path: Path) -> Recipe:
    """The recipe that a TOML text describes.

    Args:
        text: of the file.
        path: of the file, for messages.

    Raises:
        UserError: no TOML (with line and column), an unknown table or key (with the nearest), a missing key,
            a value of the wrong type or range, a key that is both fixed and mutable, runs or metrics that
            contradict each other. The message names file, table and key.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"recipe {path}: is no TOML: {error}") from None
    for name in tables:
        choose(f"table of recipe {path}", name, ("recipe", "fixed", "mutable", "runs", "metrics"))
    head = _Table(f"recipe {path}: [recipe]", tables.get("recipe", {}))
    name = head.get("name", _text)
    if not _NAME.fullmatch(name):
        raise UserError(
            f"{head.where} name must consist of small letters, digits and single hyphens, not '{name}'"
        )
    fixed, mutable = (_flat(path, part, tables.get(part, {})) for part in ("fixed", "mutable"))
    for key in fixed:
        if key in mutable:
            raise UserError(f"recipe {path}: '{key}' stands in [fixed] and in [mutable]; it can only be one")
    isolated = head.get("isolated", _flag, False)
    runs = _runs(path, _tables(path, "runs", tables.get("runs", [])), fixed, mutable)
    found = Recipe(
        name=name,
        title=head.get("title", _text),
        description=head.get("description", _text),
        source=head.get("source", _text),
        seeds=head.get("seeds", _seeds),
        single_run=head.get("single_run", _flag, False),
        isolated=isolated,
        fixed=fixed,
        mutable=mutable,
        runs=runs,
        metrics=_metrics(path, _tables(path, "metrics", tables.get("metrics", [])), runs, isolated),
        text=text,
        path=path,
        chosen={},
    )
    head.end()
    _complete(found)
    return found


def with_settings(recipe: Recipe, settings: Mapping[str, Any]) -> Recipe:
    """The recipe with other values for mutable keys, as ``--set key=value`` gives them.

    None leaves an option out (``--set backend_options.device=null``).

    Raises:
        UserError: a fixed key (names its value), a key that is not mutable (names the nearest), or a value of
            another type.
    """
    changed: dict[str, Any] = {}
    for key, value in settings.items():
        if key in recipe.fixed:
            raise UserError(
                f"--set {key}: '{key}' is fixed in recipe '{recipe.name}', it is {recipe.fixed[key]!r}; "
                f"{_mutable_keys(recipe)}"
            )
        owners = [run for run in recipe.runs if key in run.overrides]
        if owners and key not in recipe.mutable:
            raise UserError(
                f"--set {key}: '{key}' is fixed in recipe '{recipe.name}', it is "
                f"{owners[0].overrides[key]!r} in run '{owners[0].name}'; {_mutable_keys(recipe)}"
            )
        if not recipe.mutable:
            raise UserError(f"--set {key}: recipe '{recipe.name}' has no mutable keys")
        choose(f"mutable key of recipe '{recipe.name}'", key, recipe.mutable)
        if "." in key and value is not None:
            value = values.like(f"--set {key}", recipe.mutable[key], values.checked("--set", key, value))
        changed[key] = value if "." in key else values.checked("--set", key, value)
    if not changed:
        return recipe
    left_out = {key for key, value in changed.items() if value is None and "." in key}
    mutable = {k: v for k, v in {**recipe.mutable, **changed}.items() if k not in left_out}
    found = replace(recipe, mutable=mutable, chosen=changed)
    _complete(found)
    return found


def _mutable_keys(recipe: Recipe) -> str:
    return f"mutable are: {', '.join(sorted(recipe.mutable))}" if recipe.mutable else "nothing is mutable"


class _Table:
    """A table of the file; ``get`` checks and takes a key, ``end`` refuses those that are left."""

    def __init__(self, where: str, table: Any) -> None:
        self.where = where
        if not isinstance(table, dict):
            raise UserError(f"{where} must be a table, not {table!r}")
        self.table, self.known = table, dict[str, None]()

    def get(self, key: str, check: Callable[[str, Any], Any], *default: Any) -> Any:
        self.known[key] = None
        if key in self.table:
            return check(f"{self.where} {key}", self.table[key])
        if not default:
            raise UserError(f"{self.where} {key} is missing")
        return default[0]

    def end(self) -> None:
        for key in self.table:
            choose(f"key of {self.where}", key, self.known)


def _flat(path: Path, part: str, table: Any) -> dict[str, Any]:
    where = f"recipe {path}: [{part}]"
    if not isinstance(table, dict):
        raise UserError(f"{where} must be a table, not {table!r}")
    return values.flat(where, table)


def _tables(path: Path, part: str, found: Any) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise UserError(f"recipe {path}: '{part}' must be tables, each under [[{part}]]")
    return found


def _runs(
    path: Path, tables: list[dict[str, Any]], fixed: Mapping[str, Any], mutable: Mapping[str, Any]
) -> tuple[Run, ...]:
    found: dict[str, Run] = {}
    for number, table in enumerate(tables, start=1):
        head = _Table(f"recipe {path}: [[runs]] {number}", table)
        name = head.get("name", _text)
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{head.where} name must consist of small letters, digits and single hyphens, not '{name}'"
            )
        where = f"recipe {path}: [[runs]] '{name}'"
        if name in found:
            raise UserError(f"{where}: two runs have this name")
        without = head.get("without", _texts, ())
        for key in without:
            choose(f"key to leave out in {where}", key, [*fixed, *mutable])
        own = {key: value for key, value in table.items() if key not in head.known}
        overrides = values.flat(where, own)
        for key in overrides:
            if key in mutable:
                raise UserError(
                    f"{where}: '{key}' is mutable, and the run would undo what --set says: leave it out of "
                    "the run, or of [mutable]"
                )
            if key in fixed and fixed[key] == overrides[key]:
                raise UserError(f"{where}: '{key}' is {fixed[key]!r} already in [fixed]")
        found[name] = Run(name, overrides, without)
    return tuple(found.values()) or (Run(ONLY_RUN, {}),)


def _metrics(
    path: Path, tables: list[dict[str, Any]], runs: tuple[Run, ...], isolated: bool
) -> tuple[Metric, ...]:
    found: dict[str, Metric] = {}
    for number, table in enumerate(tables, start=1):
        metric = _metric(_Table(f"recipe {path}: [[metrics]] {number}", table), path, runs, isolated)
        if metric.name in found:
            raise UserError(f"recipe {path}: [[metrics]] '{metric.name}': two metrics have this name")
        found[metric.name] = metric
    if not any(metric.bounded for metric in found.values()):
        raise UserError(
            f"recipe {path}: no [[metrics]] has a bound (low, high), so nothing could be reproduced or not"
        )
    return tuple(found.values())


def _metric(table: _Table, path: Path, runs: tuple[Run, ...], isolated: bool) -> Metric:
    name = table.get("name", _text)
    table.where = f"recipe {path}: [[metrics]] '{name}'"
    where = table.where
    quantity = table.get("quantity", _one_of("quantity", [*QUANTITIES, *SCORES]))
    kind = QUANTITIES.get(quantity) or Quantity(True, score(quantity).unit, score(quantity).higher_is_better)
    at = table.get("at", _one_of("epoch", _AT), "final" if kind.per_epoch else "")
    if at and not kind.per_epoch:
        raise UserError(f"{where} at: {quantity} has one value per run, not one per epoch; leave 'at' out")
    if quantity == "peak_memory" and not isolated:
        raise UserError(
            f"{where} quantity: peak_memory needs a process for every training: [recipe] isolated = true"
        )
    form, named = _form(table, runs)
    low, high = table.get("low", _number, None), table.get("high", _number, None)
    if low is not None and high is not None and low > high:
        raise UserError(f"{where}: low = {low:g} is above high = {high:g}")
    confidence = table.get("confidence", _number, DEFAULT_CONFIDENCE)
    if not 0 < confidence < 1:
        raise UserError(f"{where} confidence must lie between 0 and 1, such as 0.95, not {confidence:g}")
    unit = "1" if form == "ratio" else kind.unit
    given = table.get("unit", _text, unit)
    if given != unit:
        raise UserError(f"{where} unit: {quantity} as {form} has the unit '{unit}', not '{given}'")
    table.end()
    return Metric(name, quantity, at, form, named, low, high, confidence, unit)


def _form(table: _Table, runs: tuple[Run, ...]) -> tuple[str, tuple[str, ...]]:
    """Whether a metric is the value of a run, or a difference or ratio of two; and of which."""
    given = [form for form in _FORMS if form in table.table]
    if len(given) > 1:
        raise UserError(f"{table.where}: has {' and '.join(given)}; give one of them")
    form = given[0] if given else "run"
    default = (runs[0].name,) if len(runs) == 1 else ()
    if not given and not default:
        raise UserError(f"{table.where}: says of no run; give run, difference or ratio")
    names = {run.name for run in runs}
    single = table.get("run", _one_of("run", names), *(default or ("",)))
    pairs = {f: table.get(f, _pair(names), None) for f in ("difference", "ratio")}
    return form, (single,) if form == "run" else pairs[form]


def _complete(recipe: Recipe) -> None:
    """Refuse a recipe whose runs do not say all that they need to."""
    for run in recipe.runs:
        found = recipe.values_of(run)
        place = f"recipe {recipe.path}" + (f", run '{run.name}'" if len(recipe.runs) > 1 else "")
        for key in values.REQUIRED:
            if key not in found:
                raise UserError(f"{place}: '{key}' is missing; a recipe says it in [fixed] or [mutable]")
        for key in ("epochs", "batch_size"):
            if found[key] < 1:
                raise UserError(f"{place}: '{key}' must be at least 1, not {found[key]}")
        for name in found.get("metrics", ()):
            try:
                score(name)
            except UserError as error:
                raise UserError(f"{place}: 'metrics': {error}") from None
        try:
            values.schedule(found)
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
    scored = {run.name: recipe.values_of(run).get("metrics", ()) for run in recipe.runs}
    for metric in recipe.metrics:
        for name in metric.runs:
            if metric.quantity in SCORES and metric.quantity not in scored[name]:
                raise UserError(
                    f"recipe {recipe.path}: [[metrics]] '{metric.name}': run '{name}' is not scored by "
                    f'{metric.quantity}; add metrics = ["{metric.quantity}"] to [fixed]'
                )


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UserError(f"{where} must be a text that is not empty, not {value!r}")
    return value.strip()


def _texts(where: str, value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise UserError(f"{where} must be a list of texts, not {value!r}")
    return tuple(_text(where, entry) for entry in value)


def _flag(where: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UserError(f"{where} must be true or false, not {value!r}")
    return value


def _number(where: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UserError(f"{where} must be a finite number, not {value!r}")
    return float(value)


def _seeds(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(
            f"{where} must be a whole number of at least 1 (5 stands for seeds 0 to 4), not {value!r}"
        )
    return value


def _one_of(kind: str, choices: Any) -> Callable[[str, Any], str]:
    def check(where: str, value: Any) -> str:
        try:
            return choose(kind, _text(where, value), choices)
        except UserError as error:
            raise UserError(str(error) if str(error).startswith(where) else f"{where}: {error}") from None

    return check


def _pair(names: set[str]) -> Callable[[str, Any], tuple[str, str]]:
    def check(where: str, value: Any) -> tuple[str, str]:
        if not isinstance(value, list) or len(value) != 2 or value[0] == value[1]:
            raise UserError(f'{where} must name two different runs, ["a", "b"], not {value!r}')
        first, second = (_one_of("run", names)(where, name) for name in value)
        return first, second

    return check
