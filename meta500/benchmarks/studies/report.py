"""The report of a study: made from its folder alone, so that it can be made again."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meta500.benchmarks.protocol import label
from meta500.benchmarks.studies.study import sections_of
from meta500.errors import UserError
from meta500.metrics.contention import NOTEWORTHY
from meta500.metrics.report import Finding, Findings, Paragraph, Section, Table
from meta500.metrics.report.page import Heading, facts_of, write_page
from meta500.metrics.rows import NO_VALUE_VERDICTS, Row
from meta500.metrics.run import RunFolder

PAGE = "report.html"


def write_report(folder: RunFolder) -> Path:
    """Write report.html and the figures into the folder of a study, finished or not.

    Returns:
        The path of the page.

    Raises:
        UserError: the folder holds no study, or a file cannot be written.
    """
    about = about_study(folder)
    page = folder.path / PAGE
    heading = Heading(
        title=about["title"],
        lead=[f"After {about['source']}.", *_quick(about)],
        facts=facts_of(folder.info),
        warnings=[*_unfinished(folder, about), *_disturbed(about), *about["notes"]],
    )
    files = [
        ("rows.csv", "every measurement, with its raw samples"),
        ("run.json", "machine, software, settings"),
    ]
    write_page(page, heading, report_sections(folder), folder.path / "plots", files)
    return page


def about_study(folder: RunFolder) -> dict[str, Any]:
    """What run.json says of the study.

    Raises:
        UserError: the folder holds another kind of run.
    """
    about = folder.info.get("study")
    if not isinstance(about, dict) or "name" not in about:
        raise UserError(f"{folder.path}: holds no study; name the folder of `meta500 study ...`")
    return about


def report_sections(folder: RunFolder) -> list[Section]:
    """The study's own sections, what could not be measured, and how everything was."""
    about, rows = about_study(folder), folder.rows
    own = sections_of(about["name"], rows)
    settings = [(name, _word(value)) for name, value in about["settings"].items()]
    how = Section(
        "How this was measured",
        [
            *(Paragraph(text) for text in about["protocol"]),
            Table("Settings", ("setting", "value"), settings, left=2),
        ],
    )
    missing = missing_table(rows)
    rest = [Section("What could not be measured", [missing])] if missing else []
    return [*own, *rest, how]


def missing_table(rows: Sequence[Row]) -> Table | None:
    """Every measurement that failed or is not supported, with its reason; None if there is none.

    What has the same reason and the same "by" shares a line.
    """
    entries: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        if row.verdict in NO_VALUE_VERDICTS:
            size = f"batch {row.batch}" if row.batch is not None else ""
            what = ", ".join(filter(None, (row.model, row.node or row.operator, row.phase, row.shape, size)))
            known = entries.setdefault((label(row), row.verdict, row.note), [])
            if (words := what.replace("_", " ")) not in known:
                known.append(words)
    if not entries:
        return None
    lines = [("; ".join(what), *entry) for entry, what in entries.items()]
    return Table("Left out, and why", ("what", "by", "verdict", "reason"), lines, left=4)


def findings_of(sections: Sequence[Section]) -> list[Finding]:
    """All findings of a report, in its order."""
    parts = [part for section in sections for part in section.parts if isinstance(part, Findings)]
    return [finding for part in parts for finding in part.findings]


def _unfinished(folder: RunFolder, about: dict[str, Any]) -> list[str]:
    if folder.status == "finished":
        return []
    done, all_pieces = len(about["done"]), len(about["pieces"])
    return [f"This run did not finish ({folder.status}): {done} of {all_pieces} parts are done."]


def _disturbed(about: dict[str, Any]) -> list[str]:
    """What other programs did while parts were measured that took a second or more."""
    seconds = about.get("seconds", {})
    found = {
        key: share
        for key, share in about.get("others", {}).items()
        if share >= NOTEWORTHY and seconds.get(key, 0.0) >= 1.0
    }
    if not found:
        return []
    parts = ", ".join(f"{key} ({share:.0%})" for key, share in sorted(found.items(), key=lambda e: -e[1]))
    return [
        "Other programs, or other guests of the host, used the processors during "
        f"{len(found)} of {len(about['others'])} parts; the times of these are too long or too uncertain, "
        f"and findings from them may be wrong: {parts}."
    ]


def _quick(about: dict[str, Any]) -> list[str]:
    if not about["settings"].get("quick"):
        return []
    return ["A quick run: small sizes and few samples, to see what the study does; not the paper's protocol."]


def _word(value: Any) -> str:
    """A setting in words."""
    if isinstance(value, list):
        return ", ".join(map(_word, value)) or "default"
    if isinstance(value, dict):
        return ", ".join(f"{name}={_word(entry)}" for name, entry in value.items()) or "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "default" if value is None or value == "" else str(value)
