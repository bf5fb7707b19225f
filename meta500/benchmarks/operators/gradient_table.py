"""The table of all operators' gradients: docs/gradients.csv and docs/gradients.md.

``python -m meta500.benchmarks.operators.gradient_table`` checks every operator (in about a minute) and writes
both files; give another folder than ``docs`` as argument. The exit status is 1 if a gradient is wrong or an
operator lacks one without a known reason.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from meta500.benchmarks.operators.cases import Case, cases
from meta500.benchmarks.operators.differentiability import (
    DIFFERENTIABLE,
    NOT_DIFFERENTIABLE,
    TABLE,
    differentiability,
)
from meta500.benchmarks.operators.gradient_models import gradient_models
from meta500.benchmarks.operators.gradients import (
    AGREEMENT,
    BACKENDS,
    EXCLUDED,
    REFUSED,
    TOLERANCE,
    UNCHECKED,
    WRONG,
    GradientCheck,
    check_case,
    refusals,
)

CSV, PAGE = "gradients.csv", "gradients.md"

_INTRODUCTION = """# Gradients of the operators

`python -m meta500.benchmarks.operators.gradient_table` makes this page and `gradients.csv`, in a minute or
two.

Of {operators} operators {having} have a derivative almost everywhere; {done} of these were checked, with
{checked} gradients of one output by one input. {refused} gradients that do not exist were asked for and
refused.

- **How**: on the shapes of ONNX's node cases (and of a few models of our own where those have integers or
  sequences), with all floating-point data in float64. A cotangent is drawn, and the product of the gradient
  with a random direction is compared with Richardson-extrapolated central differences along it. Their step
  is eps^(1/4) times the typical element, eps being the precision of the output. Where the differences of
  three steps do not belong to one smooth function (kinks, ties, borders), all inputs are moved a little and
  checked again.
- **Errors** are the largest of all cases, relative to the derivative; up to {tolerance} is right. Between
  the backends, up to {agreement} of the largest element is. Outputs that ONNX defines as float32 whatever
  the inputs are have the allowance of float32.
- **Largest of all**: numpy {numpy}, torch {torch}, between them {between}.
- **Derivative by**: "all" are all floating-point inputs; "0" says that the output is piecewise constant:
  its gradient is zero almost everywhere and may be refused as well; "none" that a gradient has to be
  refused.
- **Refused** counts the gradients that do not exist, were asked for and were refused with a clear error.

| Operator | Derivative by | Cases | Checked | Refused | numpy | torch | between | Note |
|---|---|---|---|---|---|---|---|---|"""
BETWEEN = "/".join(BACKENDS)

# Gradients that exist but that a backend lacks: (operator, backend) -> the reason.
LACKING: dict[tuple[str, str], str] = {
    ("ai.onnx.preview.training.Gradient", "numpy"): "numpy has no second derivatives and refuses",
}


@dataclass(frozen=True)
class Line:
    """What is known about the gradient of one operator.

    Attributes:
        operator: as in :func:`meta500.benchmarks.operators.cases.operator_name`.
        kind: of :class:`meta500.benchmarks.operators.differentiability.Differentiability`.
        inputs: names of the inputs with a gradient; "all" for all floating-point ones, "" for none.
        cases: number of cases that something was checked on.
        checked: number of gradients (of one output by one input) compared with central differences, over
            all backends.
        refused: number of gradients that do not exist, were asked for and were refused.
        numpy, torch: largest error against central differences, relative to the derivative; None if
            unchecked.
        between: largest difference of the two backends, relative to the largest element; None if unchecked.
        note: why there is no gradient, or what was not checked and why.
    """

    operator: str
    kind: str
    inputs: str
    cases: int
    checked: int
    refused: int
    numpy: float | None
    torch: float | None
    between: float | None
    note: str


def operator_cases(operator: str) -> list[Case]:
    """ONNX's node cases about an operator, and the models of ``gradient_models`` about it."""
    return [case for case in (*cases("node"), *gradient_models()) if case.operator == operator]


def check_operator(operator: str) -> tuple[Line, list[GradientCheck]]:
    """Check the gradients of one operator on all its cases.

    Returns:
        The line of the table, and what is wrong: gradients that differ, are missing without a known reason,
        could not be checked without a known reason, or were given where there is none.

    Raises:
        UserError: an unknown operator.
    """
    entry = differentiability(operator)
    checks: list[GradientCheck] = []
    asked: list[GradientCheck] = []
    for case in operator_cases(operator):
        checks += check_case(case)
        asked += refusals(case)
    faults = [check for check in (*checks, *asked) if _is_fault(check)]
    errors = {
        backend: max((c.error for c in checks if c.backend == backend and c.error is not None), default=None)
        for backend in (*BACKENDS, BETWEEN)
    }
    compared = [check for check in checks if check.backend in BACKENDS and check.error is not None]
    line = Line(
        operator,
        entry.kind,
        "" if entry.kind == NOT_DIFFERENTIABLE else ", ".join(entry.inputs or ("all",)),
        len({check.case for check in (*compared, *asked)}),
        len(compared),
        sum(check.result == REFUSED for check in asked),
        errors["numpy"],
        errors["torch"],
        errors[BETWEEN],
        _note(operator, checks, faults),
    )
    return line, faults


def _is_fault(check: GradientCheck) -> bool:
    if check.result == WRONG:
        return True
    asked = differentiability(check.operator)
    if check.result == UNCHECKED:
        return check.case not in EXCLUDED
    refused = check.result == REFUSED and asked.kind == DIFFERENTIABLE
    has_gradient = asked.inputs is None or not check.formal or check.formal in asked.inputs
    return refused and has_gradient and (check.operator, check.backend) not in LACKING


def _note(operator: str, checks: Sequence[GradientCheck], faults: Sequence[GradientCheck]) -> str:
    notes = [differentiability(operator).reason]
    notes += [LACKING[operator, backend] for backend in BACKENDS if (operator, backend) in LACKING]
    left_out: dict[str, list[str]] = {}
    for name in dict.fromkeys(check.case for check in checks if check.result == UNCHECKED):
        if name in EXCLUDED:
            left_out.setdefault(EXCLUDED[name], []).append(name)
    notes += [f"left out: {', '.join(names)} ({reason})" for reason, names in left_out.items()]
    notes += [f"FAULT: {fault.case}, {fault.backend}: {fault.message}" for fault in faults[:3]]
    return "; ".join(filter(None, notes))


def write_table(lines: Iterable[Line], folder: Path) -> None:
    """Write gradients.csv and gradients.md into ``folder``."""
    lines = list(lines)
    with (folder / CSV).open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(field.name for field in fields(Line))
        for line in lines:
            writer.writerow(_text(value) for value in asdict(line).values())
    (folder / PAGE).write_text(page(read_table(folder)), encoding="utf-8")


def read_table(folder: Path) -> list[Line]:
    """The lines of gradients.csv in ``folder``."""
    with (folder / CSV).open(newline="", encoding="utf-8") as file:
        return [
            Line(
                row["operator"],
                row["kind"],
                row["inputs"],
                int(row["cases"]),
                int(row["checked"]),
                int(row["refused"]),
                _number(row["numpy"]),
                _number(row["torch"]),
                _number(row["between"]),
                row["note"],
            )
            for row in csv.DictReader(file)
        ]


def _number(text: str) -> float | None:
    return float(text) if text else None


def page(lines: Sequence[Line]) -> str:
    """The table as a page of Markdown, made from its lines alone."""
    having = [line for line in lines if line.kind != NOT_DIFFERENTIABLE]
    worst = {
        name: max((getattr(line, name) or 0.0 for line in lines), default=0.0)
        for name in ("numpy", "torch", "between")
    }
    rows = [
        f"| {line.operator} | {_derivative(line)} | {line.cases} | {line.checked} | {line.refused} "
        f"| {_text(line.numpy)} | {_text(line.torch)} | {_text(line.between)} | {line.note} |"
        for line in lines
    ]
    introduction = _INTRODUCTION.format(
        operators=len(lines),
        having=len(having),
        done=sum(line.checked > 0 for line in having),
        checked=sum(line.checked for line in lines),
        refused=sum(line.refused for line in lines),
        tolerance=f"{TOLERANCE:g}",
        agreement=f"{AGREEMENT:g}",
        **{name: _text(value) for name, value in worst.items()},
    )
    return "\n".join((introduction, *rows, ""))


def _derivative(line: Line) -> str:
    if line.kind == NOT_DIFFERENTIABLE:
        return "none"
    return line.inputs if line.kind == DIFFERENTIABLE else "0"


def _text(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def main(folder: Path) -> int:
    """Check all operators and write the table into ``folder``; the number of faults."""
    found = [check_operator(operator) for operator in TABLE]
    write_table((line for line, _ in found), folder)
    faults = [fault for _, faults in found for fault in faults]
    for fault in faults:
        sys.stderr.write(
            f"{fault.case}, {fault.backend}: {fault.output} by {fault.wrt}: {fault.result} {fault.message}\n"
        )
    return len(faults)


if __name__ == "__main__":
    sys.exit(1 if main(Path(sys.argv[1] if len(sys.argv) > 1 else "docs")) else 0)
