"""Whether all ranks mean the same training, asked before it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meta500.distributed.communication import CommunicationNetwork
from meta500.errors import UserError


def check_equal(communication: CommunicationNetwork, settings: Mapping[str, Any]) -> None:
    """Compare a mapping from words to values over all ranks (collective).

    Raises:
        UserError: on all ranks, with the first rank and entry that differ from the root's.
    """
    entries = [(key, str(value)) for key, value in settings.items()]
    gathered = communication.gather_objects(entries)
    message = communication.broadcast_object(None if gathered is None else _difference(gathered))
    if message:
        raise UserError(message)


def _difference(gathered: Sequence[Sequence[tuple[str, str]]]) -> str:
    expected = dict(gathered[0])
    for rank, entries in enumerate(gathered):
        found = dict(entries)
        for key, value in expected.items():
            if key not in found:
                return f"the ranks train different networks: rank {rank} lacks {key}, which rank 0 has"
            if found[key] != value:
                return f"the ranks differ: {key} is {found[key]} on rank {rank}, {value} on rank 0"
        for key in found:
            if key not in expected:
                return f"the ranks train different networks: rank {rank} has {key}, which rank 0 lacks"
        if [key for key, _ in entries] != list(expected):
            return f"the ranks differ: rank {rank} has its parameters in another order than rank 0"
    return ""
