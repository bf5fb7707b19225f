"""meta500 measures deep learning at every level and compares the implementations.

The names below are loaded when they are first used, so that importing the package stays cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from meta500 import (
        backends,
        benchmarks,
        custom,
        datasets,
        distributed,
        graph,
        metrics,
        models,
        optimizers,
    )
    from meta500.backends.network import Network, backend_names, coverage, network
    from meta500.benchmarks.operators.custom import check_operator
    from meta500.custom import load_operators
    from meta500.errors import UnsupportedOperation, UserError
    from meta500.graph import Model, load
    from meta500.metrics import Runner
    from meta500.models import from_torch

_ROOMS = (
    "backends",
    "benchmarks",
    "custom",
    "datasets",
    "distributed",
    "graph",
    "metrics",
    "models",
    "optimizers",
)
_NAMES = {
    "Model": "meta500.graph",
    "Network": "meta500.backends.network",
    "Runner": "meta500.metrics",
    "UnsupportedOperation": "meta500.errors",
    "UserError": "meta500.errors",
    "backend_names": "meta500.backends.network",
    "check_operator": "meta500.benchmarks.operators.custom",
    "coverage": "meta500.backends.network",
    "from_torch": "meta500.models",
    "load": "meta500.graph",
    "load_operators": "meta500.custom",
    "network": "meta500.backends.network",
}

__all__ = [
    "Model",
    "Network",
    "Runner",
    "UnsupportedOperation",
    "UserError",
    "__version__",
    "backend_names",
    "backends",
    "benchmarks",
    "check_operator",
    "coverage",
    "custom",
    "datasets",
    "distributed",
    "from_torch",
    "graph",
    "load",
    "load_operators",
    "metrics",
    "models",
    "network",
    "optimizers",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"meta500.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'meta500' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
