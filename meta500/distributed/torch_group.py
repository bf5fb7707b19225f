"""The process group of torch.distributed over the ranks of a CommunicationNetwork.

It is made from what the communicator knows (rank, size, the root's host) and never from environment variables
such as MASTER_ADDR or RANK, which may belong to another launcher.
"""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from meta500.errors import UserError

if TYPE_CHECKING:
    from meta500.distributed.communication import CommunicationNetwork

LOOPBACK = "127.0.0.1"
FOREVER = 10 * 365 * 86400.0


class ProcessGroup:
    """The default group of torch.distributed in this process, shared by all that need it.

    Attributes:
        backend: "gloo" or "nccl".
        users: how many hold it; the last one to ``release`` it destroys it.
    """

    current: ProcessGroup | None = None

    def __init__(self, communication: CommunicationNetwork, backend: str) -> None:
        self.communication, self.backend, self.users = communication, backend, 0

    def release(self) -> None:
        """Give it back; the last user destroys it.

        Other ranks that still wait for a result see a lost connection: let all meet at a barrier before.
        """
        self.users -= 1
        if self.users == 0:
            ProcessGroup.current = None
            dist.destroy_process_group()


def backend_for(device: torch.device) -> str:
    """ "nccl" for CUDA where this PyTorch has it, else "gloo".

    Raises:
        UserError: this PyTorch was built without the one that is needed.
    """
    if dist.is_available() and device.type == "cuda" and dist.is_nccl_available():
        return "nccl"
    if not dist.is_available() or not dist.is_gloo_available():
        raise UserError(
            "this PyTorch was built without torch.distributed and gloo: install one that has them, "
            "or use the scheme consistent-decentralized, which communicates through MPI"
        )
    return "gloo"


def acquire(communication: CommunicationNetwork, backend: str, host: str | None = None) -> ProcessGroup:
    """The group of these ranks; made on the first call, shared afterwards. Collective.

    Args:
        communication: its ranks become the group's, in the same order.
        backend: "gloo" or "nccl".
        host: name or address of the root under which the others reach it; by default the loopback where all
            ranks run on one machine, else the root's host name.

    Raises:
        UserError: torch.distributed is initialised already with other ranks or another backend, or the ranks
            do not reach the root.
    """
    group = ProcessGroup.current
    if group is None:
        if dist.is_initialized():
            raise UserError(
                "torch.distributed is initialised already by somebody else: destroy that process group "
                "(torch.distributed.destroy_process_group()) before the scheme ddp is used"
            )
        group = _created(communication, backend, host)
        ProcessGroup.current = group
    elif not _congruent(group.communication, communication) or group.backend != backend:
        raise UserError(
            f"torch.distributed is initialised already with backend {group.backend} and "
            f"{group.communication.size} ranks: close the optimizer that uses it before another is made "
            "with other ranks or another backend"
        )
    group.users += 1
    return group


def _created(communication: CommunicationNetwork, backend: str, host: str | None) -> ProcessGroup:
    # None is "for ever" there; torch.distributed has no such thing.
    timeout = timedelta(seconds=communication.timeout or FOREVER)
    hosts = communication.gather_objects(socket.gethostname())
    store: Any = None
    offer: tuple[str, int, str] | None = None
    if communication.is_root:
        assert hosts is not None
        name = host or (LOOPBACK if len(set(hosts)) == 1 else socket.gethostname())
        try:
            # Port 0: the system gives a free one, so that no two runs meet on the same.
            store = dist.TCPStore(
                name, 0, communication.size, is_master=True, wait_for_workers=False, timeout=timeout
            )
            offer = (name, store.port, "")
        except (RuntimeError, OSError) as error:
            offer = (name, 0, str(error))
    name, port, failure = communication.broadcast_object(offer)
    if failure:
        raise UserError(
            f"rank {communication.root} can't listen as '{name}' for torch.distributed: {failure}"
        )
    try:
        if store is None:
            store = dist.TCPStore(name, port, communication.size, is_master=False, timeout=timeout)
        dist.init_process_group(
            backend, store=store, rank=communication.rank, world_size=communication.size, timeout=timeout
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise UserError(
            f"rank {communication.rank} can't join the {backend} process group at {name}:{port}: {error}. "
            "Give host=... a name or address of the root that all ranks reach"
        ) from None
    # Whoever leaves before all others are connected would look to them like a rank that died.
    communication.barrier()
    return ProcessGroup(communication, backend)


def _congruent(a: CommunicationNetwork, b: CommunicationNetwork) -> bool:
    from meta500.distributed.mpi import mpi

    if a is b:
        return True
    MPI = mpi()
    return MPI.Comm.Compare(a.comm, b.comm) in (MPI.IDENT, MPI.CONGRUENT)
