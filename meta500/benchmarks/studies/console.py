"""A study on the terminal: its progress, its findings, and where the report is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from meta500.benchmarks.studies.report import findings_of, missing_table, report_sections, write_report
from meta500.benchmarks.studies.running import Progress, run_study
from meta500.benchmarks.studies.study import Study
from meta500.benchmarks.tables import console as make_console
from meta500.benchmarks.tables import table_of


def show(study: Study, out: Path | None, as_json: bool) -> bool:
    """Run a study, write its report, and print findings, gaps and the report's path.

    Args:
        study: what is measured.
        out: see :func:`~meta500.benchmarks.studies.running.run_study`.
        as_json: print the rows as JSON lines, and everything else on standard error.

    Returns:
        Whether something was wrong or failed. What is not supported on this machine is no failure.
    """
    printer = make_console(stderr=as_json)
    with _progress(study.name) as progress:
        folder = run_study(study, out=out, as_json=as_json, progress=progress)
        sections = report_sections(folder)
        page = write_report(folder)
    for finding in findings_of(sections):
        verdict = f"[{finding.verdict}] " if finding.verdict else ""
        printer.print(f"- {verdict}{finding.text}", markup=False, soft_wrap=True)
        if finding.claim:
            where = f" ({finding.where})" if finding.where else ""
            printer.print(f"  The source{where}: {finding.claim}", markup=False, soft_wrap=True)
    missing = missing_table(folder.rows)
    if missing is not None:
        table = table_of(missing.title, missing.columns, [])
        for cells in missing.rows:
            table.add_row(*cells)
        printer.print(table, markup=False)
    bad = [row for row in folder.rows if row.verdict in ("wrong", "failed")]
    for row in (r for r in bad if r.verdict == "wrong"):
        what = ", ".join(filter(None, (row.model, row.node, row.phase, row.backend, row.mode)))
        printer.print(f"wrong: {what}: error {row.error} above {row.tolerance}", markup=False, soft_wrap=True)
    printer.print(f"Report: {page}", markup=False, soft_wrap=True)
    return bool(bad)


@contextmanager
def _progress(name: str) -> Iterator[Progress | None]:
    """The part that is under way, on a terminal; nothing elsewhere."""
    from rich.console import Console

    printer = Console(stderr=True)
    if not printer.is_terminal:
        yield None
        return
    with printer.status(name) as status:
        yield lambda number, count, title: status.update(f"{name}, part {number} of {count}: {title}")
