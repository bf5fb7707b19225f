"""The folder of a recipe's run: one run folder for every training, and what they say together.

    RUN-SEED/       a run folder as `meta500 train` writes it, for every run and seed
    recipe.json     the recipe as it was run, what was set, the environment, the verdicts
    verdicts.csv    the verdicts as result rows

A training that was interrupted stays, as RUN-SEED.interrupted-N, when it is run again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meta500.benchmarks.recipes.acceptance import NOT_REPRODUCED, REPRODUCED, Verdict, worst
from meta500.benchmarks.recipes.recipe import Recipe, Run
from meta500.benchmarks.training import Setup
from meta500.errors import UserError
from meta500.metrics.machine import differences, environment
from meta500.metrics.rows import COLUMNS, Row, csv_line, to_csv_line
from meta500.metrics.run import RunFolder

FORMAT, SCHEMA_VERSION = "meta500 recipe run", 1
RECIPE, VERDICTS, LOCK = "recipe.json", "verdicts.csv", ".lock"
_ENDED = ("finished", "failed")


@dataclass(frozen=True)
class Outcome:
    """How one training ended: ``status`` "finished" or "failed" with the ``reason``, and what it measured.

    ``measured`` holds for each quantity its values: "final" and "best" of those with one per epoch, "" of the
    others.
    """

    run: str
    seed: int
    status: str
    reason: str
    measured: dict[str, dict[str, float]]


class RecipeFolder:
    """A recipe's run on disk; made by `opened`.

    Attributes:
        path: of the folder.
        seeds: to be run, 0 to n - 1.
        info: contents of recipe.json.
        notes: what a reader of the verdicts has to know beside them, in words.
        failed: the trainings that failed, as of the last `write`.
        lock: descriptor of the locked file; the folder stays locked as long as any process has it.
    """

    def __init__(
        self, path: Path, recipe: Recipe, seeds: Sequence[int], info: dict[str, Any], lock: int
    ) -> None:
        self.path, self.recipe, self.seeds, self.info, self.lock = path, recipe, tuple(seeds), info, lock
        fewer = _fewer(len(self.seeds), recipe)
        self.notes: list[str] = [fewer] if len(self.seeds) < recipe.seeds and not info["quick"] else []
        self.failed: list[Outcome] = []

    def training(self, run: Run, seed: int) -> Path:
        """The run folder of a training."""
        return self.path / f"{run.name}-{seed}"

    def outcome(self, run: Run, seed: int, setup: Setup) -> Outcome | None:
        """How the training ended; None if it has not been run, or not to its end.

        Raises:
            UserError: the folder holds another training.
        """
        path = self.training(run, seed)
        if not path.is_dir():
            return None
        try:
            info = RunFolder.open(path).info
        except UserError:
            return None
        if info["status"] not in _ENDED:
            return None
        if info.get("setup") != plain(asdict(setup)) or "measured" not in info:
            raise UserError(
                f"{path}: holds another training than that of recipe '{self.recipe.name}'; give a new folder "
                "with --out"
            )
        measured = {
            quantity: {at: float(value) for at, value in values.items()}
            for quantity, values in info["measured"].items()
        }
        return Outcome(run.name, seed, info["status"], info.get("message", ""), measured)

    def set_aside(self, run: Run, seed: int) -> None:
        """Rename what a training left that did not come to its end, so that it can be run again."""
        path = self.training(run, seed)
        if not path.exists():
            return
        number = 1
        while (aside := path.with_name(f"{path.name}.interrupted-{number}")).exists():
            number += 1
        path.rename(aside)

    def write(self, status: str, outcomes: Sequence[Outcome], verdicts: Sequence[Verdict]) -> None:
        """Write recipe.json and verdicts.csv anew, each as a whole.

        Args:
            status: "running", "finished" or "interrupted".
            outcomes: of the trainings so far.
            verdicts: on all metrics, from these.

        Raises:
            UserError: a file cannot be written.
        """
        self.failed = [outcome for outcome in outcomes if outcome.status == "failed"]
        over = None if status == "running" else datetime.now(UTC).isoformat(timespec="seconds")
        self.info |= {
            "status": status,
            "finished": over,
            "verdict": worst(verdicts, self.failed),
            "metrics": [_metric_entry(verdict) for verdict in verdicts],
            "runs": [
                {"run": o.run, "seed": o.seed, "folder": f"{o.run}-{o.seed}", "status": o.status}
                | ({"reason": o.reason} if o.reason else {})
                for o in outcomes
            ],
            "notes": self.notes,
        }
        _replace(self.path / RECIPE, json.dumps(plain(self.info), indent=2) + "\n")
        rows = [verdict_row(self.recipe, verdict, str(self.info["id"])) for verdict in verdicts]
        _replace(self.path / VERDICTS, "".join([csv_line(COLUMNS), *map(to_csv_line, rows)]))


@contextlib.contextmanager
def opened(recipe: Recipe, out: Path | None, seeds: int | None, quick: bool) -> Iterator[RecipeFolder]:
    """A new folder, or that of an earlier run of the same recipe, for this process alone.

    Args:
        recipe: with what was set.
        out: the folder; None: a new one in runs/.
        seeds: how many; None: those of the earlier run, or of the recipe.
        quick: whether the trainings are cut short.

    Raises:
        UserError: the folder holds something else, another recipe or more seeds; it is in use; it cannot be
            written.
    """
    now = datetime.now(UTC)
    identifier = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
    path = Path("runs") / f"{recipe.name}-{identifier}" if out is None else out
    try:
        path.mkdir(parents=True, exist_ok=True)
        others = [entry.name for entry in path.iterdir() if entry.name != LOCK]
        lock = (path / LOCK).open("w")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}; give another folder with --out"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(f"{path}: another process is running a recipe in this folder") from None
        if RECIPE in others:
            yield _continued(recipe, path, seeds, quick, lock.fileno())
        elif others:
            raise UserError(
                f"{path}: is not empty and holds no {RECIPE}; give a new folder, or that of an earlier run"
            )
        else:
            number = seeds if seeds is not None else 1 if quick else recipe.seeds
            info = {
                "format": FORMAT,
                "schema_version": SCHEMA_VERSION,
                "id": identifier,
                "name": recipe.name,
                "title": recipe.title,
                "file": str(recipe.path),
                "text": recipe.text,
                "set": recipe.chosen,
                "quick": quick,
                "decides": recipe.decides(),
                "seeds": list(range(number)),
                "command": list(sys.argv),
                "environment": environment(),
                "started": now.isoformat(timespec="seconds"),
            }
            yield RecipeFolder(path, recipe, range(number), info, lock.fileno())


def read_info(path: Path) -> dict[str, Any]:
    """Contents of the recipe.json in a folder.

    Raises:
        UserError: it is missing, damaged, or of a newer version.
    """
    file = path / RECIPE
    try:
        info = json.loads(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UserError(f"{file}: is damaged: {error}") from None
    if not isinstance(info, dict) or info.get("format") != FORMAT:
        raise UserError(f'{file}: does not describe the run of a recipe: "format" is not "{FORMAT}"')
    if info.get("schema_version") != SCHEMA_VERSION:
        raise UserError(
            f"{file}: schema_version {info.get('schema_version')!r} was written by another meta500; this one "
            f"reads {SCHEMA_VERSION}"
        )
    for key in ("id", "quick", "decides", "seeds", "environment"):
        if key not in info:
            raise UserError(f"{file}: is damaged: '{key}' is missing")
    return info


def plain(value: Any) -> Any:
    """What standard JSON can hold: tuples are lists, numbers that are not finite are texts."""
    if isinstance(value, Mapping):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def verdict_row(recipe: Recipe, verdict: Verdict, run_id: str) -> Row:
    """A verdict as a result row: the seeds' values as samples, their mean and its interval.

    The verdict is "ok" (reproduced), "wrong" (not reproduced), "failed" (that, without a value) or
    "not_compared"; the note has it in words, with the bounds.
    """
    metric = verdict.metric
    names = dict.fromkeys(metric.runs)
    setups = [recipe.setup(run) for run in recipe.runs if run.name in names]

    def common(field: str) -> str:
        found = {str(getattr(setup, field)) for setup in setups}
        return found.pop() if len(found) == 1 else ""

    words = {REPRODUCED: "ok", NOT_REPRODUCED: "wrong"}
    known = verdict.mean is not None
    word = words.get(verdict.verdict, "not_compared") if known else "failed"
    return Row(
        run_id=run_id,
        level=2,
        model=common("model"),
        dataset=common("dataset"),
        backend=common("backend"),
        optimizer=common("optimizer"),
        node=" - ".join(metric.runs) if metric.form == "difference" else metric.runs[0],
        baseline=metric.runs[1] if metric.form == "ratio" else "",
        phase="recipe",
        quantity=metric.name,
        unit=metric.unit,
        protocol="seeds",
        repeats=len(verdict.values),
        samples=tuple(verdict.values.values()),
        value=verdict.mean,
        low=verdict.low,
        high=verdict.high,
        confidence=metric.confidence if verdict.low is not None else None,
        verdict=word,
        note=f"{recipe.name}: mean of seeds, bounds {bounds(metric.low, metric.high)}: {verdict.verdict}, "
        f"{verdict.reason}",
    )


def bounds(low: float | None, high: float | None) -> str:
    """Two acceptance bounds in words."""
    if low is None and high is None:
        return "none"
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"


def _fewer(number: int, recipe: Recipe) -> str:
    return f"{number} seed{'s' if number > 1 else ''} instead of the recipe's {recipe.seeds}"


def _continued(recipe: Recipe, path: Path, seeds: int | None, quick: bool, lock: int) -> RecipeFolder:
    info = read_info(path)
    there, here = info["decides"], plain(recipe.decides())
    for key in [*here, *(key for key in there if key not in here)]:
        if there.get(key) != here.get(key):
            raise UserError(
                f"{path}: holds a run of another recipe: {key} is {there.get(key)!r} there and "
                f"{here.get(key)!r} here; give a new folder with --out, or the same recipe and --set"
            )
    if info["quick"] != quick:
        was = "with" if info["quick"] else "without"
        raise UserError(f"{path}: the run was begun {was} --quick; give a new folder with --out")
    had = len(info["seeds"])
    number = had if seeds is None else seeds
    if number < had:
        raise UserError(
            f"--seeds {number}: the run in {path} was begun with {had} seeds, and fewer would be a choice "
            "among results; give a new folder with --out"
        )
    folder = RecipeFolder(path, recipe, range(number), info, lock)
    now = environment()
    changed = [key for key, _, _ in differences(info["environment"], now) if not key.startswith("load")]
    if changed:
        folder.notes.append(f"continued on another machine or software: {', '.join(changed)} changed")
    before = [note for note in info.get("notes", []) if note != _fewer(had, recipe)]
    folder.notes = list(dict.fromkeys([*before, *folder.notes]))
    info["seeds"] = list(range(number))
    return folder


def _metric_entry(verdict: Verdict) -> dict[str, Any]:
    metric = verdict.metric
    return {
        "name": metric.name,
        "quantity": metric.quantity,
        "at": metric.at,
        metric.form: list(metric.runs) if len(metric.runs) > 1 else metric.runs[0],
        "unit": metric.unit,
        "low": metric.low,
        "high": metric.high,
        "confidence": metric.confidence,
        "values": verdict.values,
        "mean": verdict.mean,
        "interval": None if verdict.low is None else [verdict.low, verdict.high],
        "verdict": verdict.verdict,
        "reason": verdict.reason,
    }


def _replace(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old or the new content."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written: {error.strerror}") from None
