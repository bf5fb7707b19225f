"""ExaStencils as a program of its own: found by an environment variable, started with files of a folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from meta500.errors import UserError

VARIABLE = "META500_EXASTENCILS"
_TAIL = 12


def generate(folder: Path, name: str) -> None:
    """Let ExaStencils write C++ for NAME.settings, NAME.knowledge and NAME.platform in a folder.

    Raises:
        UserError: the generator or java is missing, or the generator fails; the message has its last lines.
    """
    files = [f"{name}.{ending}" for ending in ("settings", "knowledge", "platform")]
    run_in(folder, [java(), "-Xss64m", "-cp", jars(), "Main", *files])


def java() -> str:
    """The command java.

    Raises:
        UserError: it is not there.
    """
    found = shutil.which("java")
    if found is None:
        raise UserError("ExaStencils needs java, which is not on the PATH")
    return found


def jars() -> str:
    """The class path of the generator.

    Raises:
        UserError: the variable does not name a folder of jar files.
    """
    folder = os.environ.get(VARIABLE, "")
    if not folder:
        raise UserError(f"ExaStencils is not known here: set {VARIABLE} to the folder of its jar files")
    if not list(Path(folder).glob("*.jar")):
        raise UserError(f"{VARIABLE}: {folder} has no jar files")
    return f"{Path(folder).resolve()}/*"


def identity() -> str:
    """What tells one generator from another: names, sizes and times of its jar files, "" for none."""
    jars = Path(os.environ.get(VARIABLE) or os.devnull).glob("*.jar")
    stamps = [(path.name, path.stat()) for path in sorted(jars)]
    return " ".join(f"{name}:{stat.st_size}:{stat.st_mtime_ns}" for name, stat in stamps)


def run_in(folder: Path, command: Sequence[str]) -> str:
    """Run a command in a folder; its output.

    Raises:
        UserError: it is missing or fails; the message has its last lines.
    """
    try:
        ended = subprocess.run(
            list(command), cwd=folder, capture_output=True, text=True, check=False, errors="replace"
        )
    except OSError as error:
        raise UserError(f"{command[0]}: cannot be started: {error.strerror}") from None
    if ended.returncode:
        lines = (ended.stdout + ended.stderr).strip().splitlines()
        tail = "\n".join(lines[-_TAIL:])
        raise UserError(f"{folder}: '{' '.join(command)}' ended with {ended.returncode}:\n{tail}")
    return ended.stdout
