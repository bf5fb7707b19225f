"""Level 3: training on many processes, over MPI.

The names below are loaded when they are first used; MPI is initialised when the first communication network
is made, never by an import.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meta500.distributed.agreement import RankFault
    from meta500.distributed.averaging import ModelAverage
    from meta500.distributed.checkpoint import CheckpointTicker
    from meta500.distributed.communication import CommunicationNetwork
    from meta500.distributed.compression import TopK
    from meta500.distributed.decentralized import ConsistentDecentralized
    from meta500.distributed.faults import guard, supervise
    from meta500.distributed.gossip import InconsistentDecentralized
    from meta500.distributed.launch import mpi_fork
    from meta500.distributed.mpi import launched_rank, launched_ranks
    from meta500.distributed.neighbors import ConsistentNeighbors
    from meta500.distributed.optimizer import DistributedOptimizer
    from meta500.distributed.parameter_server import ConsistentParameterServer, InconsistentParameterServer
    from meta500.distributed.pending import PeerTimeout, Pending
    from meta500.distributed.runner import DistributedRunner
    from meta500.distributed.samplers import DealtSampler, DistributedSampler
    from meta500.distributed.spatial import Decomposition, decompose
    from meta500.distributed.stale import StaleSynchronous
    from meta500.distributed.timeline import Timeline
    from meta500.distributed.torch_ddp import DistributedDataParallel
    from meta500.distributed.windows import Window

_NAMES = {
    "CheckpointTicker": "checkpoint",
    "CommunicationNetwork": "communication",
    "ConsistentDecentralized": "decentralized",
    "ConsistentNeighbors": "neighbors",
    "ConsistentParameterServer": "parameter_server",
    "DistributedDataParallel": "torch_ddp",
    "DealtSampler": "samplers",
    "Decomposition": "spatial",
    "DistributedOptimizer": "optimizer",
    "DistributedRunner": "runner",
    "DistributedSampler": "samplers",
    "InconsistentDecentralized": "gossip",
    "InconsistentParameterServer": "parameter_server",
    "ModelAverage": "averaging",
    "PeerTimeout": "pending",
    "Pending": "pending",
    "RankFault": "agreement",
    "StaleSynchronous": "stale",
    "Timeline": "timeline",
    "TopK": "compression",
    "Window": "windows",
    "decompose": "spatial",
    "guard": "faults",
    "launched_rank": "mpi",
    "launched_ranks": "mpi",
    "mpi_fork": "launch",
    "supervise": "faults",
}

__all__ = [
    "CheckpointTicker",
    "CommunicationNetwork",
    "ConsistentDecentralized",
    "ConsistentNeighbors",
    "ConsistentParameterServer",
    "DealtSampler",
    "Decomposition",
    "DistributedDataParallel",
    "DistributedOptimizer",
    "DistributedRunner",
    "DistributedSampler",
    "InconsistentDecentralized",
    "InconsistentParameterServer",
    "ModelAverage",
    "PeerTimeout",
    "Pending",
    "RankFault",
    "StaleSynchronous",
    "Timeline",
    "TopK",
    "Window",
    "decompose",
    "guard",
    "launched_rank",
    "launched_ranks",
    "mpi_fork",
    "supervise",
]


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(f"meta500.distributed.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'meta500.distributed' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
