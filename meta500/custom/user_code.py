"""Running functions that a user wrote: inputs are read-only, and faults name file and line."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from meta500.errors import UserError


def read_only(value: Any) -> Any:
    """A view of an array that can't be written to; other values as they are."""
    if not isinstance(value, np.ndarray):
        return value
    seen = value.view()
    seen.flags.writeable = False
    return seen


@contextmanager
def user_code(what: str, function: Callable[..., Any]) -> Iterator[None]:
    """A context in which the user's ``function``, called ``what`` in messages, runs.

    Raises:
        UserError: for any exception in it, with its type, its text, and the file and line in the user's code.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        where = _line(error, function)
        raise UserError(f"{what} fails{where}: {type(error).__name__}: {error}") from error


def _line(error: Exception, function: Callable[..., Any]) -> str:
    file = inspect.getsourcefile(inspect.unwrap(function))
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f" ({Path(file).name}, line {lines[-1]})" if file and lines else ""
