"""Shows docstrings as they are meant: Sphinx's roles as code, its literal blocks as blocks of code."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension

_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod|obj):`~?([^`]+)`")
_LITERAL = re.compile(r"^( *)(.*?)::\n\n((?:\1 +.*\n?|\n)+)", re.MULTILINE)


class Docstrings(Extension):
    """Rewrites every docstring when it is read."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """``:class:`Name``` as `` `Name` ``, and ``text::`` with an indented block as a block of Python."""
    return _LITERAL.sub(_block, _ROLE.sub(r"`\1`", text))


def _block(found: re.Match[str]) -> str:
    indent, before, body = found.groups()
    code = body.rstrip("\n").splitlines()
    depth = min(len(line) - len(line.lstrip()) for line in code if line.strip())
    lines = [f"{indent}{before}:", ""] if before else []
    lines += [f"{indent}```python", *(indent + line[depth:] for line in code), f"{indent}```", ""]
    return "\n".join(lines) + "\n"
