"""Options that several commands share: the reading of ``key=value`` pairs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from meta500.errors import UserError


def pairs(option: str, values: Sequence[str] | None) -> dict[str, Any]:
    """``["n=1", "size=64"]`` as a dictionary; values are JSON where they can be, else text.

    Raises:
        UserError: an entry without ``=``, or a key given twice.
    """
    found: dict[str, Any] = {}
    for entry in values or ():
        key, equals, text = entry.partition("=")
        if not equals or not key:
            raise UserError(f"{option}: '{entry}' is not of the form key=value")
        if key in found:
            raise UserError(f"{option}: '{key}' is given twice")
        try:
            found[key] = json.loads(text)
        except json.JSONDecodeError:
            found[key] = text
        if isinstance(found[key], list):
            found[key] = tuple(found[key])
    return found
