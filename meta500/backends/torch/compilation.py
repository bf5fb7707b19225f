"""Marks that tell torch.compile how to treat a function, without loading the compiler.

The decorators of ``torch.compiler`` import ``torch._dynamo``, which takes seconds, in every process that
loads the backend. These do the same once something is compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

# PyTorch's own form of torch.compiler.disable that imports the compiler at the first call.
_disable: Callable[[Any], Any] = getattr(torch, "_disable_dynamo", torch.compiler.disable)
_constant: list[Callable[..., Any]] = []


def outside_of_graphs(function: Function) -> Function:
    """``torch.compiler.disable``: the function and all that it calls run as they stand."""
    return _disable(function)  # type: ignore[no-any-return]


def constant_in_graphs(function: Function) -> Function:
    """``torch.compiler.assume_constant_result``, once `before_compiling` has been called."""
    _constant.append(function)
    return function


def before_compiling() -> None:
    """Load the compiler, so that no first call pays for it, and pass on the marks of `constant_in_graphs`."""
    import torch._dynamo

    while _constant:
        torch.compiler.assume_constant_result(_constant.pop())
