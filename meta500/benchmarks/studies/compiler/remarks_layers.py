"""What the rows say about layers beyond the claims of the thesis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meta500.benchmarks import tables
from meta500.benchmarks.studies.compiler.derived import pooled, words
from meta500.benchmarks.studies.compiler.layer_numbers import (
    end_to_end,
    ends,
    known,
    prediction_errors,
    ranking,
    signed,
)
from meta500.benchmarks.studies.compiler.timing import (
    ALL_CHOICES,
    BEST_OF_TWO,
    BORDER,
    CONFIGURATION,
    DYNAMIC,
    ORACLE,
    RUN,
    SEGMENT,
    SEPARATE,
    SUBTRACTION,
    TIMERS,
)
from meta500.benchmarks.studies.select import one, select, unique
from meta500.metrics.report.findings import Finding
from meta500.metrics.rows import Row


def remarks(rows: Sequence[Row], mode: str) -> list[Finding]:
    """Findings without a claim of the thesis."""
    found = [_subtraction(rows), _switching(rows, mode), _predictions(rows), _optimal(rows), _ranks(rows)]
    return [Finding(text) for text in found if text]


def _subtraction(rows: Sequence[Row]) -> str:
    differences = known(select(rows, phase=SEGMENT, protocol=SUBTRACTION, quantity="time"))
    if not differences:
        return ""
    limits = [ends(row) for row in differences]
    zero = sum(low <= 0 <= high for low, high in limits)
    negative = sum(high < 0 for _, high in limits)
    below = sum((row.value or 0) < 0 for row in differences)
    costs = known(select(rows, phase=RUN, protocol=SUBTRACTION, quantity="ratio"))
    text = (
        f"Layer subtraction: of {len(differences)} segment times {below} are negative; {zero} intervals "
        f"contain 0, {negative} lie below it."
    )
    mean = pooled(costs)
    return text + (f" Its runs together take {words(mean)} times one whole run." if mean is not None else "")


def _switching(rows: Sequence[Row], mode: str) -> str:
    parts = []
    for name, meaning in (
        (f"eager to {mode}", "entering compiled segments from interpreted ones"),
        (f"{mode} to eager", "leaving them"),
        (f"{mode} to {mode}", "joining two compiled segments into one"),
    ):
        costs = known(select(rows, phase=BORDER, mode=name, quantity="switching_cost"))
        if costs:
            middle = float(np.median([row.value or 0.0 for row in costs]))
            limits = [ends(row) for row in costs]
            parts.append(
                f"{meaning} {signed(middle)} (median of {len(costs)} borders; interval above 0 at "
                f"{sum(low > 0 for low, _ in limits)}, below 0 at {sum(high < 0 for _, high in limits)})"
            )
    if not parts:
        return ""
    separate = known(select(rows, phase=RUN, protocol=SEPARATE, quantity="ratio"))
    text = "Costs of switching, beyond the times of the segments themselves: " + "; ".join(parts) + "."
    if separate:
        each = ", ".join(f"{row.model} {tables.interval(row)}" for row in separate)
        text += f" All segments compiled, each on its own, relative to one compiled whole: {each}."
    return text + (
        " The recurrence of figure 4.2 in the thesis has no such costs, so it chooses the faster state of "
        "each segment, as the best of two runs does; here they are part of it."
    )


def _predictions(rows: Sequence[Row]) -> str:
    texts = []
    for model in unique(select(rows, phase=CONFIGURATION), "model"):
        errors = prediction_errors(rows, str(model))
        choice = one(rows, phase=ORACLE, protocol=DYNAMIC, quantity="prediction", model=model)
        if choice is None or choice.node not in errors:
            continue
        text = f"{model} {errors[choice.node]:+.0%}"
        naive = one(
            rows, phase=ORACLE, protocol=f"{BEST_OF_TWO}, {TIMERS}", quantity="prediction", model=model
        )
        measured = naive and end_to_end(rows, str(model), naive.node)
        if naive is not None and naive.value and measured and measured.value:
            text += f" (best of two runs, without costs: {naive.value / measured.value - 1:+.0%})"
        texts.append(text)
    if not texts:
        return ""
    return (
        "Predicted by the dynamic programme against measured, for its own choice: " + ", ".join(texts) + "."
    )


def _optimal(rows: Sequence[Row]) -> str:
    pairs = []
    for row in select(rows, phase=ORACLE, protocol=ALL_CHOICES, quantity="prediction"):
        programme = one(rows, phase=ORACLE, protocol=DYNAMIC, quantity="prediction", model=row.model)
        if programme is not None and row.value and programme.value:
            pairs.append((row, abs(programme.value / row.value - 1) < 1e-9))
    if not pairs:
        return ""
    same = sum(equal for _, equal in pairs)
    return (
        f"The dynamic programme finds the time that a search of all choices finds in {same} of {len(pairs)} "
        "networks."
    )


def _ranks(rows: Sequence[Row]) -> str:
    texts = []
    for model in unique(select(rows, phase=CONFIGURATION), "model"):
        ranked = ranking(rows, str(model))
        choice = one(rows, phase=ORACLE, protocol=DYNAMIC, quantity="prediction", model=model)
        if ranked is None or choice is None or choice.node not in ranked[1]:
            continue
        correlation, order = ranked
        best = end_to_end(rows, str(model), order[0])
        own = end_to_end(rows, str(model), choice.node)
        assert best is not None and own is not None and own.value and best.value
        texts.append(
            f"{model}: of {len(order)} choices that were all run, the rank correlation of predicted and "
            f"measured times is {correlation:.2f}; the choice of the dynamic programme, {choice.node}, has "
            f"place {order.index(choice.node) + 1}, {own.value / best.value - 1:.1%} behind the fastest, "
            f"{order[0]}"
        )
    return "; ".join(texts) + "." if texts else ""
