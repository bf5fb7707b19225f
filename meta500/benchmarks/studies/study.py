"""A study: pieces of work that emit rows into one run folder, and a report made from these rows alone.

    run.json      as of every run; beside it "study": name, settings, and the pieces that are done
    rows.csv      the rows of all pieces
    plots/        the figures of the report, PNG and PDF
    report.html   the report: one file, no network

A piece that is done stays done: when a study is interrupted, the same command with the same folder drops the
rows of the piece that was under way and goes on with it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from meta500.benchmarks.protocol import Emit
from meta500.errors import choose
from meta500.metrics.rows import Row

if TYPE_CHECKING:
    from meta500.metrics.report import Section

COMPILE, ABSTRACTION, ADJOINT, CODEGEN = "compile", "abstraction", "adjoint", "codegen"
_PACKAGES = {
    COMPILE: "meta500.benchmarks.studies.compiler",
    ABSTRACTION: "meta500.benchmarks.studies.abstraction",
    ADJOINT: "meta500.benchmarks.studies.adjoint",
    CODEGEN: "meta500.benchmarks.studies.codegen",
}
NAMES = tuple(_PACKAGES)


@dataclass(frozen=True)
class Piece:
    """A part of a study that is measured as a whole or not at all.

    Attributes:
        key: its name, unique in the study and the same in every run with the same settings.
        title: what it does, for the progress line.
        run: measures, and emits its rows. A UserError or any other exception becomes a row with verdict
            "failed" that names the key, and the study goes on.
    """

    key: str
    title: str
    run: Callable[[Emit], None]


@dataclass(frozen=True)
class Study:
    """What is measured.

    Attributes:
        name: of :data:`NAMES`.
        title: of the report.
        source: the work whose protocol it follows.
        settings: everything that decides what the pieces measure, as JSON can hold it; a folder can only be
            gone on with by the same.
        pieces: in the order in which they run.
        protocol: how it is measured, in sentences, for the report.
    """

    name: str
    title: str
    source: str
    settings: Mapping[str, Any]
    pieces: Sequence[Piece]
    protocol: Sequence[str] = field(default=())


def sections_of(name: str, rows: Sequence[Row]) -> list[Section]:
    """The sections of a study's report, computed from its rows.

    Raises:
        UserError: there is no such study.
    """
    package = importlib.import_module(_PACKAGES[choose("study", name, NAMES)])
    return package.sections(rows)  # type: ignore[no-any-return]
