"""The table of lowering rules, by operator and version; rules are found by their folder, ``operators/``."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meta500.graph.operation import Operation

if TYPE_CHECKING:
    from meta500.backends.generated.lower import Lowering

LoweringRule = Callable[["Lowering", Any], None]


class _Rules:
    """Lowering rules by (domain, operator), each from a version on."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], list[tuple[int, LoweringRule]]] = {}

    def find(self, op: Operation) -> LoweringRule | None:
        found = None
        for since, rule in self.entries.get((op.domain, op.op_type), ()):
            if since <= op.since_version:
                found = rule
        return found


_RULES = _Rules()


def lowers(*op_types: str, since: int = 1, domain: str = "") -> Callable[[LoweringRule], LoweringRule]:
    """Register the decorated rule for operators, from version ``since`` up to the next rule's."""

    def register(rule: LoweringRule) -> LoweringRule:
        for op_type in op_types:
            entries = _RULES.entries.setdefault((domain, op_type), [])
            entries.append((since, rule))
            entries.sort(key=lambda entry: entry[0])
        return rule

    return register


@functools.cache
def rules() -> _Rules:
    """All rules of the folder ``operators``."""
    from meta500.backends.generated import operators

    for module in sorted(m.name for m in pkgutil.iter_modules(operators.__path__)):
        importlib.import_module(f"{operators.__name__}.{module}")
    return _RULES
