"""``meta500 diff``: finds the model and its inputs, prints and writes the comparison."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from meta500.benchmarks.differential.cases import Case, is_case, load_case
from meta500.benchmarks.differential.inputs import load_npz, parse_range
from meta500.benchmarks.differential.report import FORWARD, SAME, Difference, Finding
from meta500.benchmarks.differential.search import diff
from meta500.errors import UserError
from meta500.metrics.run import RunFolder


@dataclass(frozen=True)
class Request:
    """What to compare: ``model`` is a file, the folder of an ONNX case, or the name of a model of ours."""

    model: str
    a: str = "torch"
    b: str = "numpy"
    model_options: dict[str, Any] = field(default_factory=dict)
    inputs: Path | None = None
    dimensions: dict[str, Any] = field(default_factory=dict)
    ranges: dict[str, Any] = field(default_factory=dict)
    gradients: bool | None = None
    loss: str | None = None
    precision: str | None = None
    rtol: float | None = None
    atol: float | None = None
    seed: int = 0


def diff_command(
    request: Request,
    *,
    out: Path | None = None,
    show_all: bool = False,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Compare, write a run folder with rows and cases, print a table.

    Args:
        request: what to compare.
        out: the run folder; a new one in ``runs/`` by default.
        show_all: print the values that agree too.
        as_json: print JSON instead of the table.
        quiet: print the summary only.

    Returns:
        1 when some node differs, else 0.

    Raises:
        UserError: see :func:`meta500.benchmarks.differential.diff`.
    """
    case = _case(request)
    inputs: Mapping[str, Any] | None = case.inputs or None
    if request.inputs is not None:
        inputs = load_npz(request.inputs)
    loss_given = request.loss is not None
    with RunFolder.create(out, seeds={"inputs": request.seed}) as run:
        report = diff(
            case.model,
            request.a,
            request.b,
            inputs,
            gradients=request.gradients,
            loss=request.loss,
            cotangents=None if loss_given else case.cotangents or None,
            precision=request.precision,
            rtol=request.rtol,
            atol=request.atol,
            seed=request.seed,
            dimensions=request.dimensions,
            ranges={name: parse_range(text) for name, text in request.ranges.items()},
            out=run.path,
        )
        if case.note:
            report.notes.append(case.note)
        run.extend(report.rows())
    if as_json:
        sys.stdout.write(json.dumps(report.to_dict() | {"run": str(run.path)}) + "\n")
    else:
        _print(report, run.path, show_all, quiet)
    return 0 if report.same else 1


def _case(request: Request) -> Case:
    from meta500 import models
    from meta500.graph import load

    path = Path(request.model)
    if is_case(path):
        if request.model_options:
            raise UserError(f"model options {sorted(request.model_options)} do not apply to a test case")
        return load_case(path)
    if request.model.endswith(".onnx") or path.is_file():
        if request.model_options:
            raise UserError(f"model options {sorted(request.model_options)} do not apply to a file")
        return Case(load(path), {})
    if path.is_dir():
        raise UserError(f"{path}: is no ONNX test case: a folder with model.onnx is expected")
    known = models.options(request.model)
    options = {"seed": request.seed} if "seed" in known else {}
    return Case(models.create(request.model, **{**options, **request.model_options}), {})


def _print(report: Difference, folder: Path, show_all: bool, quiet: bool) -> None:
    from meta500.benchmarks.tables import console, table_of

    screen = console()
    if not quiet:
        lines = [f for f in report.findings if show_all or f.verdict != SAME]
        if lines:
            table = table_of(
                f"{report.a} against {report.b}",
                ["node", "operator", "value", "compared"],
                ["max abs", "max rel", "ULP", "tolerance", "verdict"],
            )
            for finding in lines:
                table.add_row(*_cells(finding))
            screen.print(table)
            for finding in lines:
                if finding.note:
                    screen.print(
                        f"{finding.label}: {finding.verdict}: {finding.note}", markup=False, soft_wrap=True
                    )
        for note in report.notes:
            screen.print(f"note: {note}", markup=False, soft_wrap=True)
    for line in report.summary():
        screen.print(line, markup=False, soft_wrap=True)
    if not quiet:
        screen.print(f"Rows: {folder / 'rows.csv'}", markup=False, soft_wrap=True)


def _cells(finding: Finding) -> list[str]:
    how = finding.way if finding.phase == FORWARD else f"{finding.way}, gradient"
    numbers = [finding.max_absolute, finding.max_relative, finding.ulp, finding.tolerance]
    texts = ["-" if n is None else f"{n:.3g}" for n in numbers]
    return [finding.node, finding.op_type, finding.value, how, *texts, finding.verdict]
