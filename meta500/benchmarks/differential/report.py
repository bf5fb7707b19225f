"""What the differential debugger found."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from meta500.metrics.rows import Row

SAME, DIFFERS, FOLLOWS, AMPLIFIED = "same", "differs", "follows", "amplified"
REFUSED, FAILED, RANDOM, NOT_REACHED = "refused", "failed", "random", "not reached"
FORWARD, BACKWARD = "forward", "backward"
WHOLE, ALONE = "whole", "alone"

_ROW_VERDICTS = {
    SAME: "ok",
    DIFFERS: "wrong",
    FOLLOWS: "wrong",
    AMPLIFIED: "not_compared",
    REFUSED: "unsupported",
    FAILED: "failed",
    RANDOM: "unsupported",
    NOT_REACHED: "unsupported",
}


@dataclass(frozen=True)
class Finding:
    """One comparison.

    ``phase`` is "forward" or "backward", ``way`` "whole" (each backend with its own values) or "alone" (the
    node by itself, both with the values of ``a``). ``value`` is the name of the tensor, ``grad/NAME`` for a
    gradient. Errors are those of ``a`` relative to ``b`` (see :func:`meta500.metrics.norms.compare`), None
    where nothing could be compared. ``verdict``:

    - "same";
    - "differs": a fault of this node on one of the backends;
    - "follows": beyond the tolerance because a node before it differs;
    - "amplified": beyond the tolerance, but every node before it agrees when it is run alone: rounding;
    - "refused": one backend does not run the node (the value goes on from the other);
    - "failed": one backend stopped with an internal error;
    - "random": not compared, the values of ``a`` go on;
    - "not reached": an input is missing, since both backends refused a node before it.

    ``side`` is 0 or 1 where a backend disagrees with itself: inside the network and alone.
    """

    node: str
    op_type: str
    value: str
    phase: str
    way: str
    verdict: str
    max_absolute: float | None = None
    max_relative: float | None = None
    ulp: float | None = None
    tolerance: float | None = None
    dtype: str = ""
    shape: str = ""
    note: str = ""
    side: int | None = None

    @property
    def label(self) -> str:
        """Node and operator, for messages."""
        return f"node '{self.node}' ({self.op_type})" if self.node else "the network as a whole"

    def text(self) -> str:
        """Node, value and how far apart it is."""
        if self.max_relative is None or self.tolerance is None:
            return f"{self.label}, {self.value}: {self.note}"
        found = f"relative error {self.max_relative:.3g}, tolerance {self.tolerance:.3g}"
        return f"{self.label}, {self.value}: {found}{f' ({self.note})' if self.note else ''}"


@dataclass
class Difference:
    """The result of a comparison; ``same`` says whether no node differs.

    ``forward`` and ``backward`` are the first nodes that differ, in topological order and in reverse
    topological order; ``amplified`` the first value that only rounding separates; ``cases`` the folders of
    the saved ONNX cases of ``forward`` and ``backward``.
    """

    model: str
    a: str
    b: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    cases: dict[str, Path] = field(default_factory=dict)
    gradients: bool = False

    @property
    def same(self) -> bool:
        """Whether no node differs; amplified rounding is no difference."""
        return not any(f.verdict in (DIFFERS, FAILED) for f in self.findings)

    @property
    def forward(self) -> Finding | None:
        """The first node, in topological order, whose results differ."""
        return self._first(FORWARD)

    @property
    def backward(self) -> Finding | None:
        """The first node, in reverse topological order, whose gradients differ."""
        return self._first(BACKWARD)

    @property
    def first(self) -> Finding | None:
        """The node to look at first: the first forward difference, else the first backward one."""
        return self.forward or self.backward

    @property
    def amplified(self) -> Finding | None:
        """The first value beyond its tolerance although every node agrees alone."""
        return next((f for f in self.findings if f.verdict == AMPLIFIED), None)

    def _first(self, phase: str) -> Finding | None:
        return next((f for f in self.findings if f.phase == phase and f.verdict in (DIFFERS, FAILED)), None)

    def summary(self) -> list[str]:
        """The result in a few lines of text."""
        lines = []
        for finding in filter(None, (self.forward, self.backward)):
            what = "results" if finding.phase == FORWARD else "gradients"
            lines.append(f"first difference of {what}: {finding.text()}")
            if finding.phase in self.cases:
                lines.append(f"  saved as {self.cases[finding.phase]}")
        amplified = self.amplified
        if amplified is not None:
            lines.append(
                f"rounding amplified from {amplified.label} on ({amplified.value}: relative error "
                f"{amplified.max_relative or 0:.3g}, tolerance {amplified.tolerance or 0:.3g}); "
                "every node alone agrees"
                if self.first is None
                else f"rounding amplified from {amplified.label} on, beside the difference above"
            )
        compared = [f for f in self.findings if f.max_relative is not None]
        values = sum(f.phase == FORWARD for f in compared)
        counts = f"{values} values and {len(compared) - values} gradients compared"
        left_out: dict[str, dict[str, None]] = {}
        for f in self.findings:
            if f.verdict in (REFUSED, RANDOM, NOT_REACHED):
                left_out.setdefault(f.verdict, {})[f.op_type] = None
        for verdict, operators in left_out.items():
            counts += f"; {verdict}: {', '.join(operators)}"
        agree = "agree" if self.same else "differ"
        lines.append(f"{self.a} and {self.b} {agree} on {self.model}: {counts}")
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "model": self.model,
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "gradients": self.gradients,
            "forward": _plain(self.forward),
            "backward": _plain(self.backward),
            "amplified": _plain(self.amplified),
            "cases": {phase: str(path) for phase, path in self.cases.items()},
            "notes": self.notes,
            "findings": [_plain(finding) for finding in self.findings],
        }

    def rows(self) -> Iterable[Row]:
        """One result row per comparison, quantity "error"."""
        for f in self.findings:
            yield Row(
                level=1,
                model=self.model,
                operator=f.op_type,
                node=f.node,
                phase=f.phase,
                shape=f.shape,
                dtype=f.dtype,
                quantity="error",
                unit="1",
                backend=self.a,
                baseline=self.b,
                protocol=f.way,
                value=f.max_relative if f.max_relative is not None else _missing(f),
                error=f.max_relative,
                error_norm="max_relative",
                tolerance=f.tolerance,
                verdict=_ROW_VERDICTS[f.verdict],
                note=": ".join(filter(None, (f.value, f.verdict, f.note))),
            )


def _missing(finding: Finding) -> float | None:
    """A shape or dtype that differs has no error, but the row of a wrong result needs a number."""
    return float("inf") if finding.verdict in (DIFFERS, FOLLOWS) else None


def _plain(finding: Finding | None) -> dict[str, Any] | None:
    """A finding as JSON values; numbers that JSON lacks are the texts "inf" and "nan"."""
    if finding is None:
        return None
    return {
        key: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in asdict(finding).items()
    }
