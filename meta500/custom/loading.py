"""Python files that define operators, read by path."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path

from meta500.custom.definition import CustomOperator
from meta500.errors import UserError
from meta500.graph.custom import custom_operations

VARIABLE = "META500_OPERATORS"


def load_operators(*paths: str | os.PathLike[str]) -> list[type[CustomOperator]]:
    """Run the Python files at ``paths``, so that models with the operators that they define can be read.

    A file is run once in a process. Without paths, the files named in the environment variable
    META500_OPERATORS (separated by ":") are taken.

    Returns:
        The operators that the files define.

    Raises:
        UserError: there is no such file, or it fails; the message has the line.
    """
    chosen = paths or tuple(part for part in os.environ.get(VARIABLE, "").split(os.pathsep) if part)
    found: list[type[CustomOperator]] = []
    for path in chosen:
        name = _run(Path(path))
        found += [
            cls
            for cls in custom_operations().values()
            if cls.__module__ == name and issubclass(cls, CustomOperator)
        ]
    return found


def _run(path: Path) -> str:
    """Import the file under a name of its own; the name."""
    source = path.resolve()
    if not source.is_file():
        raise UserError(f"{path}: there is no such Python file of operators")
    digest = hashlib.sha256(os.fsencode(source)).hexdigest()[:12]
    name = f"meta500_operators_{digest}_{source.stem}"
    if name in sys.modules:
        return name
    spec = importlib.util.spec_from_file_location(name, source)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: is no Python file; operators are defined in a file NAME.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except UserError as error:
        del sys.modules[name]
        raise UserError(f"{path}{_line(error, source)}: {error}") from None
    except Exception as error:
        del sys.modules[name]
        raise UserError(f"{path}{_line(error, source)}: {type(error).__name__}: {error}") from error
    return name


def _line(error: Exception, source: Path) -> str:
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(source)]
    return f", line {lines[-1]}" if lines else ""
