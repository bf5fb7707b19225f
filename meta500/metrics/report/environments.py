"""Environments of several runs side by side, what differs between them first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meta500.metrics.report.page import facts_of
from meta500.metrics.report.sources import Source

UNKNOWN = "unknown"
# What is different at any two moments on the same machine.
FLEETING = ("load", "memory.available_bytes")
# Facts of a run, not of its environment; they stand in the table of the runs.
OF_THE_RUN = ("Command", "Run", "Started", "Finished", "Continued")


@dataclass(frozen=True)
class Fact:
    """One fact of the environment: its value for each run, and whether the runs differ in it."""

    name: str
    values: tuple[str, ...]
    differs: bool


@dataclass(frozen=True)
class Environments:
    """Facts of all runs.

    Attributes:
        runs: names of the runs whose environment is known.
        unknown: names of the sources without one.
        main: what matters most, in words: processor, software; those that differ first.
        details: everything that was recorded; those that differ first.
    """

    runs: tuple[str, ...]
    unknown: tuple[str, ...]
    main: tuple[Fact, ...]
    details: tuple[Fact, ...]

    @property
    def differences(self) -> tuple[str, ...]:
        """Names of the facts in which the runs differ."""
        return tuple(fact.name for fact in (*self.main, *self.details) if fact.differs)


def environments_of(sources: Sequence[Source]) -> Environments:
    """The environments of the sources that have one."""
    known = [s for s in sources if s.info and s.info.get("environment")]
    main = [{name: value for name, value in facts_of(s.info or {}) if name not in OF_THE_RUN} for s in known]
    details = [dict(_flat((s.info or {})["environment"])) for s in known]
    return Environments(
        tuple(s.name for s in known),
        tuple(s.name for s in sources if s not in known),
        _facts(main),
        _facts(details),
    )


def _facts(entries: Sequence[Mapping[str, str]]) -> tuple[Fact, ...]:
    facts = []
    for name in dict.fromkeys(name for entry in entries for name in entry):
        values = tuple(entry.get(name, UNKNOWN) for entry in entries)
        facts.append(Fact(name, values, len(set(values)) > 1 and name not in FLEETING))
    return tuple(sorted(facts, key=lambda fact: not fact.differs))


def _flat(entry: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Pairs of a name such as "cpu.model" and its value in words; what is absent is left out."""
    if isinstance(entry, Mapping):
        for key, value in entry.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    elif isinstance(entry, list) and any(isinstance(item, Mapping) for item in entry):
        for place, item in enumerate(entry, start=1):
            yield from _flat(item, f"{name} {place}")
    elif isinstance(entry, list):
        if entry:
            yield name, ", ".join(map(str, entry))
    elif entry not in (None, ""):
        yield name, "yes" if entry is True else "no" if entry is False else str(entry)
