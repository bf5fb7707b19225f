"""What there is to choose from: operators with their cases, or the shapes of a sweep."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from meta500.benchmarks.operators.plan import Plan, chosen_cases
from meta500.benchmarks.operators.sweeps import problems


def listing(plan: Plan, as_json: bool = False) -> Iterator[str]:
    """Lines for the terminal, or one JSON object per line.

    Without operators, cases or a sweep named: every operator with its number of cases. Else: the cases or
    shapes themselves.

    Raises:
        UserError: as :meth:`Plan.check` and :func:`chosen_cases`.
    """
    plan.check()
    for entry in _entries(plan):
        yield json.dumps(entry) if as_json else "  ".join(str(value) for value in entry.values())


def _entries(plan: Plan) -> Iterator[dict[str, Any]]:
    if plan.sweep:
        for problem in problems(plan.sweep, plan.patterns or None, plan.sets or None):
            flops = problem.counts("float32")[0].flops
            yield {"shape": problem.name, "GFLOP": f"{flops / 1e9:.4g}", "sets": ", ".join(problem.sets)}
        return
    found = chosen_cases(plan)
    if plan.operators or plan.patterns:
        for case in found:
            yield {"case": case.name, "operator": case.operator, "suite": case.suite}
        return
    counts: dict[tuple[str, str], int] = {}
    for case in found:
        key = (case.operator or case.name, case.suite)
        counts[key] = counts.get(key, 0) + 1
    for (operator, suite), number in sorted(counts.items()):
        yield {"operator": operator, "cases": number, "suite": suite}
