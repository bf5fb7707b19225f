"""Runs a page of docs/tutorials as a reader would: its blocks in order, in one folder.

``python tests/docs/tutorial.py PAGE [slow]`` in an empty folder. What the fences mean:

- ``python``: goes on with the variables of the Python blocks before it; with ``title="FILE"`` it is written to FILE.
- ``sh``: runs in bash and has to succeed. ``cpp`` and ``toml`` need a title and are written.
- ``text``: what the block before it prints; every line has to be there, any number for a number, "..." for
  anything.

Comments in the line before a fence change this: ``<!-- slow -->`` runs it only in a slow test,
``<!-- exit 0 or 1 -->`` allows other exit codes, ``<!-- not run: REASON -->`` leaves it out.
"""

from __future__ import annotations

import contextlib
import io
import linecache
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LANGUAGES = ("cpp", "python", "sh", "text", "toml")
_FENCE = re.compile(r"^```(\S*)(?: title=\"([^\"]+)\")?$")
_COMMENT = re.compile(r"^<!-- (.*) -->$")
_NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file that it is, its text, its first line in the page (from 1), and the
    comment before it."""

    language: str
    title: str
    text: str
    line: int
    comment: str

    @property
    def slow(self) -> bool:
        """Whether only slow tests run it."""
        return self.comment == "slow"

    @property
    def left_out(self) -> bool:
        """Whether no test runs it."""
        return self.comment.startswith("not run: ")

    @property
    def exit_codes(self) -> tuple[int, ...]:
        """The exit codes that are right."""
        found = re.fullmatch(r"exit (\d+(?: or \d+)*)", self.comment)
        return tuple(int(code) for code in found[1].split(" or ")) if found else (0,)


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order.

    Raises:
        ValueError: a fence or comment that is not understood, or one that is not closed.
    """
    lines = page.read_text(encoding="utf-8").splitlines()
    found, start, opened = [], 0, None
    for number, line in enumerate(lines, 1):
        where = f"{page.name}:{number}"
        if opened is not None:
            if line.strip() == "```":
                language, title = opened
                before = _COMMENT.match(lines[start - 2]) if start > 1 else None
                text = "".join(f"{each}\n" for each in lines[start : number - 1])
                found.append(Block(language, title, text, start + 1, before[1] if before else ""))
                opened = None
        elif line.lstrip().startswith("```"):
            fence = _FENCE.match(line)
            if not fence or fence[1] not in LANGUAGES or (fence[1] in ("cpp", "toml") and not fence[2]):
                raise ValueError(f'{where}: a fence is ```LANGUAGE title="FILE", one of {LANGUAGES}: {line}')
            start, opened = number, (fence[1], fence[2] or "")
    if opened is not None:
        raise ValueError(f"{page.name}:{start}: the block is not closed")
    for block in found:
        if block.comment and not block.slow and not block.left_out and not block.comment.startswith("exit "):
            raise ValueError(f"{page.name}:{block.line}: unknown comment '{block.comment}'")
    return found


def missing_lines(expected: str, printed: str) -> list[str]:
    """The lines of ``expected`` that were not printed, a number standing for any number."""
    there = {_masked(line) for line in printed.splitlines()}
    wanted = [line for line in expected.splitlines() if line.strip() not in ("", "...")]
    return [line for line in wanted if _masked(line) not in there]


def run(page: Path, slow: bool = False) -> None:
    """Run a page in the current folder.

    Raises:
        SystemExit: a block failed or did not print what the page shows; names the line of the page.
    """
    variables: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks(page):
        where = f"{page.name}:{block.line}"
        if block.left_out or (block.slow and not slow):
            printed = None
            print(where, "left out", flush=True)
            continue
        if block.language == "text":
            lines = missing_lines(block.text, printed) if printed is not None else []
            if lines:
                sys.exit(f"{where}: not printed: {lines}\n--- printed was\n{printed}")
        elif block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            printed = _run_python(block, where, variables)
        else:
            done = subprocess.run(
                ["bash", "-euo", "pipefail", "-c", block.text],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            printed = done.stdout
            if done.returncode not in block.exit_codes:
                sys.exit(f"{where}: exit code {done.returncode}\n{block.text}--- printed was\n{printed}")
        print(where, "done", flush=True)


def _run_python(block: Block, where: str, variables: dict[str, Any]) -> str:
    # Errors show the line of the page, and inspect finds the source.
    text = "\n" * (block.line - 1) + block.text
    linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(text, where, "exec"), variables)
    return out.getvalue()


def _masked(line: str) -> str:
    return " ".join(_NUMBER.sub("#", line).split())


if __name__ == "__main__":
    sys.path.insert(0, "")
    run(Path(sys.argv[1]), slow="slow" in sys.argv[2:])
