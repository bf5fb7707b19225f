"""Turns distances between results into findings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meta500.benchmarks.differential.report import DIFFERS, SAME, Difference, Finding
from meta500.benchmarks.differential.sides import Side
from meta500.benchmarks.differential.tolerances import (
    Distance,
    Function,
    base_tolerance,
    distance,
    epsilon,
    explained,
)
from meta500.errors import UserError
from meta500.graph import Model, Operation

_RANDOM = frozenset(
    ["RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"]
)


class Judge:
    """The model, the two sides, and the tolerances of one comparison.

    ``cotangents`` collects, by node, those with which its gradient was compared.
    """

    def __init__(
        self,
        model: Model,
        sides: tuple[Side, Side],
        report: Difference,
        rtol: float | None,
        atol: float | None,
    ) -> None:
        for option, value in (("rtol", rtol), ("atol", atol)):
            if value is not None and not value >= 0:
                raise UserError(f"--{option} must be a number from 0, got {value}")
        self.model, self.sides, self.report = model, sides, report
        self.rtol, self.atol = rtol, atol
        self.mixed = sides[0].precision != sides[1].precision
        self.cotangents: dict[str, dict[str, np.ndarray]] = {}

    def compare(
        self,
        pair: Sequence[Any],
        terms: int,
        eps: float = 0.0,
        inputs: Mapping[str, Any] | None = None,
        wide: tuple[Function, Function] | None = None,
    ) -> tuple[bool, dict[str, Any]]:
        """Whether two values agree, and the numbers of the finding.

        Args:
            pair: the values of the two sides.
            terms: terms of the longest sum behind an element.
            eps: machine epsilon of the coarsest type on the way, if that is coarser than the values' own.
            inputs: of the node, where it ran alone.
            wide: the node in float64 on both sides, to judge what exceeds the base tolerance.
        """
        found = distance(pair[0], pair[1], self.mixed)
        limit = max(base_tolerance(pair, terms), eps * 16.0 * float(np.sqrt(terms)))
        if self.rtol is not None:
            limit = self.rtol
        agree, note = self._within(found, limit), found.problem
        given = self.rtol is not None or self.atol is not None
        if not agree and not found.problem and not given and inputs is not None and wide is not None:
            coarse = max(epsilon(pair[0]), epsilon(pair[1]))
            excused = explained(found.max_absolute, inputs, wide, coarse, terms) if coarse else None
            if excused is not None:
                agree, note = True, f"within the condition of the node: {excused:.3g} absolute"
        numbers = {
            "max_absolute": float("inf") if found.problem and found.exact else found.max_absolute,
            "max_relative": found.max_relative,
            "ulp": found.ulp,
            "tolerance": limit,
            "dtype": found.dtype,
            "shape": found.shape,
            "note": note,
        }
        if found.problem and found.max_relative == 0:
            numbers.update(max_absolute=None, max_relative=None, ulp=None)
        return agree, numbers

    def _within(self, found: Distance, limit: float) -> bool:
        if found.problem:
            return False
        if self.atol is not None and found.max_absolute <= self.atol:
            return True
        if self.rtol is None and self.atol is not None and found.max_absolute > self.atol:
            return found.max_relative == 0
        return found.max_relative <= limit

    def add(
        self, op: Operation | None, value: str, phase: str, way: str, verdict: str, **numbers: Any
    ) -> Finding:
        """Record a finding of a node, or of the network as a whole."""
        finding = Finding(
            node=op.name if op is not None else "",
            op_type=op.op_type if op is not None else "",
            value=value,
            phase=phase,
            way=way,
            verdict=verdict,
            **numbers,
        )
        self.report.findings.append(finding)
        return finding

    def verdict(self, agree: bool, otherwise: str = DIFFERS) -> str:
        """ "same", or ``otherwise``."""
        return SAME if agree else otherwise


def is_random(model: Model, op: Operation, values: Mapping[str, Any]) -> bool:
    """Whether ``op`` draws random numbers, as far as ``values`` and constants tell."""
    for inner in (op, *(i for g in op.subgraphs.values() for i in g.walk())):
        if inner.op_type in _RANDOM and inner.domain == "":
            return True
        if inner.op_type == "Dropout" and _drops(model, inner, values):
            return True
    return False


def _drops(model: Model, op: Operation, values: Mapping[str, Any]) -> bool:
    if op.since_version < 7:
        return not op.attributes.get("is_test", 0) and op.attributes.get("ratio", 0.5) > 0
    if op.since_version < 12:
        return False
    known = {**model.graph.initializers, **values}
    names = (*op.operands, "", "")[:3]
    constants = [known.get(name) if name else None for name in names]
    ratio, training = constants[1], constants[2]
    if not names[2] or (training is not None and not np.any(training)):
        return False
    return ratio is None or bool(np.any(np.asarray(ratio) > 0)) if names[1] else True


def attempt(function: Callable[..., Any], *arguments: Any) -> tuple[Any, str, bool]:
    """The result of ``function``, or None with the reason and whether that is an internal error."""
    try:
        return function(*arguments), "", False
    except UserError as error:
        return None, str(error), False
    except Exception as error:  # a backend under test may fail in any way
        return None, f"{type(error).__name__}: {error}", True
