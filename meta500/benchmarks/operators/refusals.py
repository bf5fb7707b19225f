"""The committed list of ONNX's cases that the backends numpy and torch do not pass. It may only shrink."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING

from meta500.errors import choose

if TYPE_CHECKING:
    from meta500.benchmarks.operators.conformance import Outcome


@functools.cache
def _read() -> dict[str, dict[str, dict[str, str]]]:
    text = resources.files(__package__).joinpath("refusals.json").read_text(encoding="utf-8")
    found: dict[str, dict[str, dict[str, str]]] = json.loads(text)
    return found


def listed_backends() -> list[str]:
    """The backends that the list is about."""
    return sorted(_read())


def refusals(backend: str, suite: str = "node") -> dict[str, str]:
    """The cases of ``suite`` that ``backend`` refuses, with the reason of each.

    Raises:
        UserError: a backend that the list is not about.
    """
    return dict(_read()[choose("backend", backend, _read())].get(suite, {}))


def complaints(outcomes: Iterable[Outcome]) -> list[str]:
    """What contradicts the list: wrong and crashed cases, refused ones it lacks, right ones it has."""
    found = []
    for outcome in outcomes:
        case, listed = outcome.case, refusals(outcome.backend, outcome.case.suite)
        where = f"{outcome.backend}, {case.suite} '{case.name}'"
        if outcome.result in ("wrong", "crashed"):
            found.append(f"{where} is {outcome.result}: {outcome.message}")
        elif outcome.result == "refused" and case.name not in listed:
            found.append(f"{where} is refused and not listed: {outcome.message}")
        elif outcome.result == "right" and case.name in listed:
            found.append(f"{where} is right: remove it from refusals.json")
    return found
