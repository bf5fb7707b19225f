"""Environments of several runs side by side, what differs between them first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from meta500.metrics.machine import LOAD, differences, flat
from meta500.metrics.report.page import facts_of
from meta500.metrics.report.sources import Source

UNKNOWN = "unknown"
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
    environments = [(s.info or {})["environment"] for s in known]
    details = [_details(environment) for environment in environments]
    # The same rule as that of comparisons.
    differing = {key for other in environments[1:] for key, _, _ in differences(environments[0], other)}
    return Environments(
        tuple(s.name for s in known),
        tuple(s.name for s in sources if s not in known),
        _facts(main),
        _facts(details, {"load" if key == LOAD else key for key in differing}),
    )


def _facts(entries: Sequence[Mapping[str, str]], differing: Set[str] | None = None) -> tuple[Fact, ...]:
    """Facts by name; those in ``differing`` differ, by default those whose words do."""
    facts = []
    for name in dict.fromkeys(name for entry in entries for name in entry):
        values = tuple(entry.get(name, UNKNOWN) for entry in entries)
        differs = len(set(values)) > 1 if differing is None else name in differing
        facts.append(Fact(name, values, differs))
    return tuple(sorted(facts, key=lambda fact: not fact.differs))


def _details(environment: Mapping[str, Any]) -> dict[str, str]:
    """Everything in an environment, in words."""
    load = environment.get("load")
    return {name: _words(value) for name, value in (*flat(environment), *([("load", load)] if load else []))}


def _words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "yes" if value is True else "no" if value is False else str(value)
