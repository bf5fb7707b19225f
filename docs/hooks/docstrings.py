"""Shows docstrings as they are meant: roles as code, literal blocks as code, "name: text" as lists."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`~?([^`]+)`")
_ITEM = re.compile(r"^[a-z]\w*(?:, [a-z]\w*)*: ")
_HEADER = re.compile(r"^[A-Z][\w ]+:$")
# Those that the reader of Google's style understands by itself.
SECTIONS = ("Args", "Attributes", "Examples", "Raises", "Returns", "Warns", "Yields")
_LITERAL = re.compile(r"^( *)(.*?)::\n\n((?:\1 +.*\n?|\n)+)", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites every docstring when it is read."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """``:class:`Name``` as `` `Name` ``, ``text::`` with an indented block as Python, and lists."""
    return _lists(_LITERAL.sub(_block, _ROLE.sub(r"`\1`", text)))


def _lists(text: str) -> str:
    """Lines "name: text" outside of sections as items of a list, headers over them in bold.

    A header is a line such as "Who ran it:" with indented lines below it; without one, two such lines in a
    paragraph make a list.
    """
    lines = text.splitlines()
    out: list[str] = []
    section = listed = fenced = False
    for number, line in enumerate(lines):
        stripped = line.strip()
        following = lines[number + 1] if number + 1 < len(lines) else ""
        if stripped.startswith("```"):
            fenced = not fenced
        if stripped and not line.startswith(" ") and not fenced:
            section = stripped.removesuffix(":") in SECTIONS
        if section or fenced or stripped.startswith("```") or not stripped:
            out.append(line)
            listed = False
        elif _HEADER.match(line) and following.startswith("    "):
            out += ["", f"**{stripped.removesuffix(':')}**", ""]
            listed = True
        elif _ITEM.match(stripped) and (listed or _another(lines[number + 1 :])):
            name, _, rest = stripped.partition(": ")
            out += [*([] if listed else [""]), f"- **{name}**: {rest}"]
            listed = True
        else:
            out.append(f"  {stripped}" if listed else line)
    return "\n".join(out) + ("\n" if text.endswith("\n") else "")


def _another(lines: list[str]) -> bool:
    """Whether a further item follows before the paragraph ends; lines between are indented."""
    for line in lines:
        if not line.strip():
            return False
        if not line.startswith(" "):
            return bool(_ITEM.match(line))
    return False


def _block(found: re.Match[str]) -> str:
    indent, before, body = found.groups()
    code = body.rstrip("\n").splitlines()
    depth = min(len(line) - len(line.lstrip()) for line in code if line.strip())
    lines = [f"{indent}{before}:", ""] if before else []
    lines += [f"{indent}```python", *(indent + line[depth:] for line in code), f"{indent}```", ""]
    return "\n".join(lines) + "\n"
