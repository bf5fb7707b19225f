"""Running a study piece by piece into a folder, going on with one, and writing its report."""

from __future__ import annotations

import json
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from meta500.benchmarks.studies.report import write_report
from meta500.benchmarks.studies.study import Piece, Study
from meta500.errors import UserError
from meta500.metrics.contention import Contention
from meta500.metrics.machine import differences, environment
from meta500.metrics.rows import Row, to_json_line
from meta500.metrics.run import RunFolder

# Called before each piece: its place counted from 1, how many there are, and its title.
Progress = Callable[[int, int, str], None]


def run_study(
    study: Study, *, out: Path | None = None, as_json: bool = False, progress: Progress | None = None
) -> RunFolder:
    """Run the pieces of a study that are not done yet, and write its report.

    Args:
        study: what is measured.
        out: the folder, new, or that of an earlier run of the same study with the same settings, which is
            gone on with; None: a new one in runs/.
        as_json: print the rows as JSON lines.
        progress: called before each piece.

    Returns:
        The folder, with the report in it.

    Raises:
        UserError: the folder holds something else or other settings, another process writes it, or it cannot
            be written.
    """
    folder = _opened(study, out)
    done: list[str] = list(folder.info["study"]["done"])
    if folder.status == "finished":
        return folder
    try:
        with folder:
            for number, piece in enumerate(study.pieces, start=1):
                if piece.key in done:
                    continue
                if progress is not None:
                    progress(number, len(study.pieces), piece.title)
                _run(study, piece, folder, as_json)
                done.append(piece.key)
                folder.info["study"]["done"] = done
                folder.checkpoint()
    except KeyboardInterrupt:
        again = shlex.join([*_without_out(folder.info["command"]), "--out", str(folder.path)])
        sys.stderr.write(
            f"\nInterrupted after {len(done)} of {len(study.pieces)} parts. Go on with: {again}\n"
        )
        with suppress(UserError):  # that it was interrupted is what the user must see
            write_report(folder)
        raise
    return folder


def _run(study: Study, piece: Piece, folder: RunFolder, as_json: bool) -> None:
    def emit(row: Row) -> None:
        folder.append(row)
        if as_json:
            sys.stdout.write(to_json_line(replace(row, run_id=folder.id)))

    begin, contention = time.perf_counter(), Contention()
    try:
        piece.run(emit)
    except UserError as problem:
        emit(_failed(study, piece, str(problem)))
    except Exception as problem:  # one part must not cost the others
        emit(_failed(study, piece, f"{type(problem).__name__}: {problem}"))
    taken, others = time.perf_counter() - begin, contention.share()
    folder.info["study"].setdefault("seconds", {})[piece.key] = round(taken, 3)
    if others is not None:
        folder.info["study"].setdefault("others", {})[piece.key] = round(others, 3)


def _failed(study: Study, piece: Piece, reason: str) -> Row:
    """The row of a piece that ended early; what it had emitted before stays."""
    what: dict[str, Any] = {"level": 0, "model": study.name, "node": piece.key, "phase": "study"}
    return Row(**what, quantity="time", unit="s", value=None, verdict="failed", note=reason[:2000])


def _opened(study: Study, out: Path | None) -> RunFolder:
    about = {
        "name": study.name,
        "title": study.title,
        "source": study.source,
        "protocol": list(study.protocol),
        "settings": json.loads(json.dumps(dict(study.settings))),
        "pieces": [piece.key for piece in study.pieces],
        "done": [],
        "notes": [],
    }
    if len(set(about["pieces"])) != len(study.pieces):  # type: ignore[arg-type]
        raise UserError(f"study '{study.name}': two of its parts have the same key")
    if out is not None and (out / "run.json").exists():
        return _continued(about, out)
    folder = RunFolder.create(out, command=sys.argv)
    folder.info["study"] = about
    folder.checkpoint()
    return folder


def _continued(about: dict[str, Any], out: Path) -> RunFolder:
    """An earlier run of the same study; a finished one is opened for reading."""
    before = RunFolder.open(out)
    there = before.info.get("study")
    if not isinstance(there, dict) or there.get("name") != about["name"]:
        raise UserError(
            f"{out}: holds another run, not one of the study '{about['name']}'; give a new folder"
        )
    for key in sorted({*there["settings"], *about["settings"]}):
        old, new = there["settings"].get(key), about["settings"].get(key)
        if old != new:
            raise UserError(
                f"{out}: was begun with {key} = {json.dumps(old)}, now it is {json.dumps(new)}; give the "
                "same options, or a new folder with --out"
            )
    if there["pieces"] != about["pieces"]:
        raise UserError(f"{out}: was begun by a meta500 with other parts of this study; give a new folder")
    if before.status != "finished" and there.get("protocol") != about["protocol"]:
        raise UserError(f"{out}: was begun by a meta500 that measures it otherwise; give a new folder")
    if before.status == "finished":
        return before
    folder = RunFolder.resume(out)
    now = environment()
    changed = [key for key, _, _ in differences(folder.environment, now) if not key.startswith("load")]
    if changed:
        note = f"continued on another machine or software: {', '.join(changed)} changed"
        folder.info["study"]["notes"] = list(dict.fromkeys([*folder.info["study"]["notes"], note]))
    return folder


def _without_out(words: Sequence[str]) -> list[str]:
    """A command line without its option --out, and its program by name."""
    kept: list[str] = []
    skip = False
    for word in words:
        if not skip and word != "--out" and not word.startswith("--out="):
            kept.append(word)
        skip = word == "--out"
    return [Path(kept[0]).name, *kept[1:]] if kept else kept
