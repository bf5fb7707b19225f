"""Distributed optimizers by name, for the command line and recipes."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from meta500.errors import choose

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork
    from meta500.distributed.optimizer import DistributedOptimizer

# Name -> "module:class", loaded when first used.
SCHEMES: dict[str, str] = {
    "consistent-decentralized": "meta500.distributed.decentralized:ConsistentDecentralized",
    "consistent-neighbors": "meta500.distributed.neighbors:ConsistentNeighbors",
    "consistent-parameter-server": "meta500.distributed.parameter_server:ConsistentParameterServer",
    "ddp": "meta500.distributed.torch_ddp:DistributedDataParallel",
    "inconsistent-decentralized": "meta500.distributed.gossip:InconsistentDecentralized",
    "inconsistent-parameter-server": "meta500.distributed.parameter_server:InconsistentParameterServer",
    "model-average": "meta500.distributed.averaging:ModelAverage",
    "stale-synchronous": "meta500.distributed.stale:StaleSynchronous",
}


def names() -> list[str]:
    """The names that ``create`` knows."""
    return sorted(SCHEMES)


def scheme_class(name: str) -> type[DistributedOptimizer]:
    """The class of a scheme.

    Raises:
        UserError: an unknown name; the message lists those known.
    """
    module, _, attribute = SCHEMES[choose("distributed scheme", name, SCHEMES)].partition(":")
    cls: type[DistributedOptimizer] = getattr(importlib.import_module(module), attribute)
    return cls


def options(name: str) -> dict[str, Any]:
    """The options of a scheme and their default values."""
    from meta500.distributed.optimizer import DistributedOptimizer

    # A scheme's own options first, then those that it hands on to the base.
    parameters = [
        *inspect.signature(scheme_class(name)).parameters.values(),
        *inspect.signature(DistributedOptimizer).parameters.values(),
    ]
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def create(
    name: str, optimizer: Any, communication: CommunicationNetwork | None = None, **chosen: Any
) -> DistributedOptimizer:
    """A distributed optimizer by name, e.g. ``create("model-average", Adam(network), every=4)``.

    Collective: all ranks make the same.

    Raises:
        UserError: an unknown name or option (with the choices), or an invalid value.
    """
    accepted = options(name)
    for option in chosen:
        choose(f"option of scheme '{name}'", option, accepted)
    return scheme_class(name)(optimizer, communication, **chosen)
