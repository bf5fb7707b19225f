"""Training runs for plots: found in folders, named, chosen by text, and labelled by what they differ in."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from meta500.errors import UserError
from meta500.metrics.folders import find_run_folders, short_names
from meta500.metrics.plots.curves import Curve
from meta500.metrics.plots.from_rows import SERIES, curves_of_runs, describe
from meta500.metrics.rows import Row
from meta500.metrics.run import RunFolder

Filter = Callable[[str], bool] | str | Sequence[str] | None
DRAWN = (("loss", "training_step"), ("loss", "training_set"), ("accuracy", "test_set"))
FIELDS = (*SERIES, "threads", "ranks", "version")
# Entries of the setup that the rows say too; the seed has a place of its own.
IN_ROWS = ("native", "optimizer", "dataset", "backend", "batch_size", "seed")
# How long a run was meant to go on tells least about it.
ENDS = ("epochs", "target_accuracy", "time_limit", "metrics")
# Facts in the order in which labels take them; beyond fields their names are such as "setup.model".
KINDS_OF_FACTS = (*FIELDS, "hyperparameters", "schedule", "setup", "end", "machine", "meta500")
# Environment variables that say how many threads there are, and where and how they run. Not all of a
# family: KMP_INIT_AT_FORK, for one, is set by a library that only some runs have loaded.
THREAD_VARIABLES = re.compile(
    r"G?OMP_\w+|\w+_(NUM|MAX)_THREADS|MKL_DYNAMIC|KMP_(AFFINITY|BLOCKTIME|HW_SUBSET|LIBRARY|TEAMS_THREAD_LIMIT)"
)
COMMIT_CHARACTERS = 10
NAMES_SHOWN = 40


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """One training run of a run folder.

    Attributes:
        name: of the folder, with as many folders above it as tell it from the others found; followed by
            "#2", "#3" ... for the further training runs of one folder.
        facts: what decides the run except for its seed, in words, by field; "" where a field is unknown.
        seed: in words, "" where it is unknown.
        curves: loss and accuracy, with the name as their label.
    """

    folder: Path
    name: str
    facts: Mapping[str, str]
    seed: str
    curves: tuple[Curve, ...]

    @property
    def text(self) -> str:
        """What filters see: "NAME: facts seed"."""
        return f"{self.name}: {' '.join(filter(None, (*self.facts.values(), self.seed)))}"

    def curve(self, quantity: str, phase: str) -> Curve | None:
        """The curve of a quantity and phase, None where the run has none."""
        found = (c for c in self.curves if (c.quantity, c.phase) == (quantity, phase))
        return next(found, None)


@dataclass
class Found:
    """Runs, the names of all that there were, and in words what a reader of the plots must know."""

    runs: list[TrainingRun] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def read_training_runs(folders: str | Path | Sequence[str | Path], choice: Filter = None) -> Found:
    """The training runs in folders (see `find_run_folders`) that a filter leaves over.

    Args:
        folders: run folders, folders that hold them, or patterns.
        choice: a function of the text "NAME: facts", such as "adam-0: mlp digits adam (reference) torch eager
            cpu float32 batch 64 learning rate 0.001 seed 0", that is true for the runs wanted. Or one or
            several texts that must all fit: the text is a part of "NAME: facts", where upper and lower case
            and underscore and space are alike; of "sgd|momentum" one is a part of it; of "-numpy|adam"
            neither is. A folder whose name has an excluded text in it is not read.

    Raises:
        UserError: nothing found, a malformed run, an empty text, or no run with training curves is left.
    """
    accepts, excluded = text_filter(choice)
    paths = find_run_folders(folders)
    names = short_names(paths)
    found = Found(names=list(names))
    unread = 0
    without: list[str] = []
    for path, name in zip(paths, names, strict=True):
        if any(text in _folded(name) for text in excluded):
            unread += 1
            continue
        folder = RunFolder.open(path)
        here, faults = _runs_of(folder, name)
        if not here:
            reason = f" (the run {_ended(folder)})" if folder.status != "finished" else ""
            without.append(f"{name}: has no training curves and is left out{reason}")
        chosen = [run for run in here if accepts(run.text)]
        found.runs += [run for run in chosen if run.curves]
        without += [
            f"{run.name}: has no finite loss or accuracy and is left out" for run in here if not run.curves
        ]
        if chosen:
            found.notes += [*folder.problems, *faults]
            if folder.status in ("failed", "interrupted"):
                found.notes.append(f"{name}: the run {_ended(folder)}")
    if not found.runs:
        raise UserError(_nothing(choice, found.names, len(without), unread))
    found.notes += without
    return found


def labels_of(runs: Sequence[TrainingRun]) -> list[str]:
    """One label per run: what the runs differ in, as much of it as tells them apart.

    Fields of the rows come first, then hyper-parameters and their schedules, the rest of the setup, the
    machine and its threads, meta500's version, the commit of the current folder, and the seed.
    Runs that none of these tells apart have their name in the label, and so has a run that is alone.
    """
    names = sorted(dict.fromkeys(name for run in runs for name in run.facts), key=_rank)
    words = [{name: run.facts.get(name, "") for name in names} | {"seed": run.seed} for run in runs]
    labels = [""] * len(runs)
    shown: list[str] = []
    for name in (*names, "seed"):
        groups: dict[str, set[str]] = {}
        for label, entry in zip(labels, words, strict=True):
            groups.setdefault(label, set()).add(entry[name])
        if any(len(values) > 1 for values in groups.values()):
            shown.append(name)
            labels = [" ".join(filter(None, (entry[n] for n in shown))) for entry in words]
    alone = [label != "" and labels.count(label) == 1 for label in labels]
    return [
        label if known else f"{label} {run.name}".strip()
        for label, run, known in zip(labels, runs, alone, strict=True)
    ]


def shared_facts(runs: Sequence[TrainingRun]) -> str:
    """Network, data, optimizer, backend and batch as far as all runs share them, in words."""
    wanted = ("model", "dataset", "optimizer", "backend", "mode", "batch")
    sets = [(name, {run.facts.get(name, "") for run in runs}) for name in wanted]
    return ", ".join(values.pop() for _, values in sets if len(values) == 1 and values != {""})


def _rank(fact: str) -> int:
    return KINDS_OF_FACTS.index(fact.partition(".")[0])


def text_filter(choice: Filter) -> tuple[Callable[[str], bool], tuple[str, ...]]:
    """What accepts a run's text, and the texts (lower case) that a name must not have in it."""
    if choice is None:
        return lambda text: True, ()
    if callable(choice):
        return lambda text: bool(choice(text)), ()
    wanted: list[list[str]] = []
    excluded: list[str] = []
    for term in [choice] if isinstance(choice, str) else choice:
        exclude = term.startswith("-")
        parts = [_folded(part).strip() for part in term.removeprefix("-").split("|")]
        if not all(parts):
            raise UserError(
                f"filter '{term}': a text is empty; write a part of the names wanted, 'one|other', or '-text'"
            )
        if exclude:
            excluded += parts
        else:
            wanted.append(parts)

    def accepts(text: str) -> bool:
        text = _folded(text)
        fits = all(any(part in text for part in parts) for parts in wanted)
        return fits and not any(part in text for part in excluded)

    return accepts, tuple(excluded)


def _folded(text: str) -> str:
    return text.lower().replace("_", " ")


def _nothing(choice: Filter, names: Sequence[str], without: int, unread: int) -> str:
    some = ", ".join(names[:NAMES_SHOWN])
    if len(names) > NAMES_SHOWN:
        some += f" and {len(names) - NAMES_SHOWN} more"
    if without == len(names):
        return f"no run has training curves that can be drawn: {some}"
    if choice is None or callable(choice):
        what = "the filter function is true for none of the runs"
    else:
        terms = [choice] if isinstance(choice, str) else choice
        what = f"no run fits the filter {' and '.join(repr(term) for term in terms)}"
    also = f"; {without} of them without training curves" if without else ""
    return f"{what}; there are: {some}{also}"


def _runs_of(folder: RunFolder, name: str) -> tuple[list[TrainingRun], list[str]]:
    """The training runs in a folder, and notes on curves that cannot be drawn."""
    runs: list[TrainingRun] = []
    notes: list[str] = []
    trained = [
        (row, [c for c in curves if (c.quantity, c.phase) in DRAWN and len(c.values)])
        for row, curves in curves_of_runs(folder.rows)
    ]
    for row, curves in trained:
        if not curves:
            continue
        own = f"{name}#{len(runs) + 1}" if runs else name
        drawn = tuple(replace(c, label=own) for c in curves if np.isfinite(c.values).any())
        for curve in curves if drawn else ():
            if not np.isfinite(curve.values).any():
                what = f"{curve.quantity} of phase {curve.phase}"
                notes.append(f"{own}: the {what} is never finite and is left out")
        runs.append(TrainingRun(folder.path, own, _facts(folder, row), _seed(folder, row), drawn))
    return runs, notes


def _facts(folder: RunFolder, row: Row) -> dict[str, str]:
    facts = {name: describe([row], (name,), (name,))[0] for name in FIELDS}
    # The names of networks and others as users write them, with their underscores.
    facts |= {name: value for name in FIELDS if isinstance(value := getattr(row, name), str)}
    setup = folder.info.get("setup")
    for name, value in setup.items() if isinstance(setup, dict) else ():
        if isinstance(value, dict):
            hyper = name == "hyperparameters"
            for key, entry in value.items():
                words = f"{key.replace('_', ' ')} {entry}" if hyper else f"{key}={entry}"
                facts[f"{name}.{key}" if hyper else f"setup.{name}.{key}"] = words
        elif name not in IN_ROWS and value not in (None, []):
            facts[f"{'end' if name in ENDS else 'setup'}.{name}"] = f"{name.replace('_', ' ')} {value}"
    facts |= _schedules(folder.info.get("schedule"))
    return facts | {name: words for name, words in _machine(folder.environment) if words}


def _schedules(schedule: object) -> dict[str, str]:
    """What a recipe's training did to its hyper-parameters as it went on, such as the learning rate."""
    if not isinstance(schedule, dict):
        return {}
    per = schedule.get("per", "")
    return {
        f"schedule.{name}": f"{name.replace('_', ' ')} per {per} {formula or 'by a function'}"
        for name, formula in schedule.items()
        if name != "per"
    }


def _machine(environment: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """What of the machine, its threads and meta500 itself decides a run; "" where it is unknown.

    The threads that libraries report (``threads``, ``blas``) are left out: they are those of libraries that
    are loaded already when a run begins, so that two runs of one process differ in them.
    """

    def part(name: str) -> dict[str, object]:
        value = environment.get(name)
        return value if isinstance(value, dict) else {}

    def words(value: object, form: str) -> str:
        return "" if value in (None, "") else form.format(value)

    cpu = part("cpu")
    yield "machine.cpu", words(cpu.get("model"), "{}")
    gpus = environment.get("gpus")
    if isinstance(gpus, list):
        yield "machine.gpus", " ".join(str(gpu.get("name", "")) for gpu in gpus if isinstance(gpu, dict))
    yield "machine.physical_cores", words(cpu.get("physical_cores"), "{} physical cores")
    yield "machine.logical_cores", words(cpu.get("logical_cores"), "{} logical cores")
    yield "machine.affinity", words(cpu.get("affinity"), "on cores {}")
    limit = cpu.get("limit_cores")
    yield "machine.limit_cores", f"limit {limit:g} cores" if isinstance(limit, int | float) else ""
    for name, value in sorted(part("variables").items()):
        if THREAD_VARIABLES.fullmatch(name):
            yield f"machine.variables.{name}", f"{name}={value}"
    total = part("memory").get("total_bytes")
    if isinstance(total, int):
        # Equal machines differ by some kB, which their kernels keep.
        yield "machine.memory", f"{total / 2**30:.1f} GiB memory"
    yield "meta500.version", words(part("versions").get("meta500"), "meta500 {}")
    yield "meta500.commit", words(str(part("git").get("commit") or "")[:COMMIT_CHARACTERS], "commit {}")


def _seed(folder: RunFolder, row: Row) -> str:
    if row.seed is not None:
        return f"seed {row.seed}"
    seeds = folder.info["seeds"]
    if not isinstance(seeds, dict):
        return ""
    return " ".join(
        f"{name} seed {value}" if name != "seed" else f"seed {value}" for name, value in seeds.items()
    )


def _ended(folder: RunFolder) -> str:
    if folder.status == "running":
        return "is not finished: it is still going or was killed"
    message = folder.info.get("message")
    return f"{'was interrupted' if folder.status == 'interrupted' else folder.status}" + (
        f": {message}" if message and folder.status == "failed" else ""
    )
