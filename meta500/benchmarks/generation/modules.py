"""PyTorch modules in Python files of the user: ``net.py`` or ``net.py:Name``."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meta500.errors import UserError, choose

# The user's file is imported under a name that no package has.
_PREFIX = "meta500_user_module_"


def load_module(path: str | Path, name: str, arguments: Mapping[str, Any], seed: int) -> Any:
    """The module in a Python file.

    Args:
        path: of the file; files beside it can be imported by it.
        name: of a class of modules, or of a module; "" for the only class that the file defines.
        arguments: keyword arguments of the class's constructor.
        seed: of PyTorch's generator while the file runs and the module is made: its initial weights.

    Raises:
        UserError: the file can't be read or fails, has no such class or module, or several where no name is
            given, or the constructor fails.
    """
    try:
        import torch
    except ImportError:
        raise UserError("a PyTorch module needs PyTorch: pip install torch") from None
    place = Path(path)
    if not place.is_file():
        raise UserError(f"{place}: there is no such file")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        space = _imported(place)
        found = _find(space, place, name, torch.nn.Module)
        if isinstance(found, torch.nn.Module):
            if arguments:
                raise UserError(
                    f"{place}: '{name}' is a module already: it takes no options {sorted(arguments)}"
                )
            return found
        title = f"{place}: {found.__name__}"
        try:
            inspect.signature(found).bind(**arguments)
        except TypeError as error:
            raise UserError(f"{title}({', '.join(arguments)}): {error}") from None
        except ValueError:  # a class without a signature
            pass
        try:
            return found(**arguments)
        except Exception as error:  # whatever the user's code raises
            raise UserError(f"{title}: its constructor fails: {type(error).__name__}: {error}") from error


def _imported(place: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"{_PREFIX}{place.stem}", place)
    if spec is None or spec.loader is None:
        raise UserError(f"{place}: is no Python file (its name must end in .py)")
    space = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = space
    sys.path.insert(0, str(place.resolve().parent))
    try:
        spec.loader.exec_module(space)
    except Exception as error:  # whatever the user's code raises
        line = _line(error, place)
        raise UserError(f"{place}{line}: cannot be imported: {type(error).__name__}: {error}") from error
    finally:
        sys.path.remove(str(place.resolve().parent))
    return space


def _line(error: BaseException, place: Path) -> str:
    """The line of the user's file at which it failed, ":12"."""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        return f":{error.lineno}"
    number, trace = None, error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename) == place:
            number = trace.tb_lineno
        trace = trace.tb_next
    return f":{number}" if number is not None else ""


def _find(space: Any, place: Path, name: str, base: type) -> Any:
    classes = {
        key: value
        for key, value in vars(space).items()
        if inspect.isclass(value) and issubclass(value, base) and value.__module__ == space.__name__
    }
    if name:
        found = getattr(space, name, None)
        if isinstance(found, base) or (inspect.isclass(found) and issubclass(found, base)):
            return found
        if found is not None:
            raise UserError(f"{place}: '{name}' is no torch.nn.Module but {type(found).__name__}")
        choose(f"module in {place}", name, classes)
    if not classes:
        raise UserError(f"{place}: defines no class of torch.nn.Module")
    if len(classes) > 1:
        raise UserError(
            f"{place}: defines several modules, {', '.join(classes)}; name one: "
            f"{place}:{next(reversed(classes))}"
        )
    return next(iter(classes.values()))
