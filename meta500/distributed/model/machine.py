"""The machine of the model: links inside and between nodes, cores that ranks share, and what rounds cost on
it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

from meta500.distributed.model.collectives import Round, rounds_of
from meta500.distributed.model.links import Link
from meta500.errors import UserError


@dataclass(frozen=True)
class Channel:
    """Between two ranks: messages that only one of them sends, and messages that both send at once."""

    one_way: Link
    exchange: Link

    @classmethod
    def uniform(cls, alpha: float, beta: float) -> Channel:
        """Full duplex: sending to each other takes no longer than one message."""
        return cls(Link.uniform(alpha, beta), Link.uniform(alpha, beta))

    def between(self, other: Channel, weight: float) -> Channel:
        """Both links at ``weight`` of the way to ``other``."""
        return Channel(
            self.one_way.between(other.one_way, weight), self.exchange.between(other.exchange, weight)
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {"one_way": self.one_way.to_dict(), "exchange": self.exchange.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Channel:
        """The counterpart of `to_dict`."""
        return cls(Link.from_dict(values["one_way"]), Link.from_dict(values["exchange"]))


@dataclass(frozen=True)
class Efficiency:
    """Measured over modelled time of a collective operation by the size of its tensor.

    Libraries copy through buffers of their own, overlap rounds, and leave the caches with large tensors; what
    the rounds alone do not explain is this factor. Between sizes it is interpolated on logarithmic scales,
    beyond the first and last one it stays.
    """

    sizes: tuple[float, ...] = ()
    factors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        rising = all(a < b for a, b in pairwise(self.sizes)) and all(n > 0 for n in self.sizes)
        if len(self.sizes) != len(self.factors) or not rising or any(f <= 0 for f in self.factors):
            raise UserError(
                f"efficiency: sizes {self.sizes} must rise, and each needs a positive factor, got "
                f"{self.factors}"
            )

    def at(self, nbytes: float) -> float:
        """The factor for a tensor of this size; 1 where nothing was measured."""
        if not self.sizes:
            return 1.0
        place = math.log(max(nbytes, self.sizes[0]))
        return float(np.exp(np.interp(place, np.log(self.sizes), np.log(self.factors))))


@dataclass(frozen=True)
class Machine:
    """The parameters of alpha-beta-gamma, and where ranks are placed.

    Attributes:
        inside: between ranks of one node, each on cores of its own.
        between: between nodes; None where there is one node only, or none is known: then ``inside`` holds.
        shared: between two ranks on one core; None: taken as ``inside``, twice as slow.
        gamma: seconds per byte combined (one operand's bytes).
        copy: seconds per byte copied.
        call: seconds of the interface per operation; tensor: per tensor of an operation on many.
        wake: seconds until a thread that waits beside computing ones is heard, e.g. one that serves
            parameters.
        turn: seconds that ranks which share a core lose whenever they wait for each other, two on a core.
        cores: per node.
        ranks_per_node: ranks on a node; None: as many as have cores of their own.
        balance: seconds after which the system has spread ranks evenly over cores that do not divide them.
        efficiency: by collective operation, of its rounds inside a node; far: of those between nodes.
    """

    inside: Channel
    gamma: float
    cores: int
    between: Channel | None = None
    shared: Channel | None = None
    copy: float = 0.0
    call: float = 0.0
    tensor: float = 0.0
    wake: float = 0.0
    turn: float = 0.0
    ranks_per_node: int | None = None
    balance: float = 0.06
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict)
    far: Mapping[str, Efficiency] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.cores < 1 or (self.ranks_per_node is not None and self.ranks_per_node < 1):
            raise UserError(
                f"a node of {self.cores} cores with {self.ranks_per_node} ranks; both must be at least 1"
            )
        for name in ("gamma", "copy", "call", "tensor", "wake", "turn", "balance"):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"machine: {name} {getattr(self, name)} s must be finite and not negative")

    def on_node(self, ranks: int, threads: int = 1) -> int:
        """Ranks of a full node when ``ranks`` run."""
        return min(ranks, self.ranks_per_node or max(1, self.cores // threads))

    def sharing(self, ranks: int, threads: int = 1) -> float:
        """Threads per core of a full node, at least 1."""
        return max(1.0, self.on_node(ranks, threads) * threads / self.cores)

    def channel(self, ranks: int, threads: int = 1) -> Channel:
        """Between ranks of one node; slower where several share a core."""
        beyond = self.sharing(ranks, threads) - 1
        if not beyond:
            return self.inside
        both_on_one = self.shared or _slower(self.inside, 2.0)
        return self.inside.between(both_on_one, beyond)

    def seconds(self, rounds: Iterable[Round], ranks: int, threads: int = 1) -> float:
        """Time of the rounds, one after the other, ranks placed on nodes block by block."""
        return sum(self.parts(rounds, ranks, threads))

    def parts(self, rounds: Iterable[Round], ranks: int, threads: int = 1) -> tuple[float, float]:
        """`seconds` of the rounds whose slowest messages stay inside a node, and of those that leave it."""
        node = self.on_node(ranks, threads)
        channel = self.channel(ranks, threads)
        combine = self.gamma * self.sharing(ranks, threads)
        near, far = 0.0, 0.0
        for entry in rounds:
            flows = _crossing(entry, ranks, node)
            inside = _link(channel, entry).seconds(entry.sent) if node > 1 else 0.0
            outside = 0.0
            if flows:
                between = _link(self.between or self.inside, entry)
                outside = between.seconds(entry.sent, sharing=flows if self.between else 1)
            combining = entry.reduced * combine
            # The slowest of the messages that are under way at once ends the round.
            if outside > inside:
                far += entry.repeats * (outside + combining)
            else:
                near += entry.repeats * (inside + combining)
        return near, far

    def collective(
        self, operation: str, ranks: int, nbytes: float, *, algorithm: str = "auto", threads: int = 1
    ) -> float:
        """Time of a collective operation on ``nbytes``, with its measured efficiency."""
        near, far = self.parts(rounds_of(operation, ranks, nbytes, algorithm), ranks, threads)
        none = Efficiency()
        inside, between = self.efficiency.get(operation, none), self.far.get(operation, none)
        return near * inside.at(nbytes) + far * between.at(nbytes)

    def message(self, ranks: int, nbytes: float, *, both: bool = False, threads: int = 1) -> float:
        """Time of one message between neighbouring ranks (``both``: in both directions at once)."""
        pattern = "shift" if both else "tree"
        return self.seconds([Round(pattern, 1, nbytes)], ranks, threads)  # type: ignore[arg-type]

    def with_network(self, alpha: float | None, beta: float | None) -> Machine:
        """The machine with the given parameters between nodes; None keeps those known so far."""
        if alpha is None and beta is None:
            return self
        known = (self.between or self.inside).one_way
        chosen = (
            known.latency if alpha is None else alpha,
            known.pieces[-1].beta if beta is None else beta,
        )
        return replace(self, between=Channel.uniform(*chosen), far={})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        optional = {name: getattr(self, name) for name in ("between", "shared")}
        return {
            "inside": self.inside.to_dict(),
            **{name: channel.to_dict() if channel else None for name, channel in optional.items()},
            **{name: getattr(self, name) for name in _NUMBERS},
            **{name: {k: _listed(e) for k, e in getattr(self, name).items()} for name in _CURVES},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Machine:
        """The counterpart of `to_dict`."""
        channels = {name: values.get(name) for name in ("between", "shared")}
        optional: dict[str, Any] = {n: Channel.from_dict(c) if c else None for n, c in channels.items()}
        optional |= {name: values[name] for name in _NUMBERS}
        optional |= {name: {k: _curve(e) for k, e in values[name].items()} for name in _CURVES}
        return cls(inside=Channel.from_dict(values["inside"]), **optional)


_NUMBERS = ("gamma", "cores", "copy", "call", "tensor", "wake", "turn", "ranks_per_node", "balance")
_CURVES = ("efficiency", "far")


def _listed(curve: Efficiency) -> dict[str, list[float]]:
    return {"sizes": list(curve.sizes), "factors": list(curve.factors)}


def _curve(values: Mapping[str, Any]) -> Efficiency:
    return Efficiency(tuple(values["sizes"]), tuple(values["factors"]))


def _link(channel: Channel, entry: Round) -> Link:
    return channel.one_way if entry.pattern == "tree" else channel.exchange


def _crossing(entry: Round, ranks: int, node: int) -> int:
    """Most messages of the round that leave one node at once; 0 where all stay inside."""
    if ranks <= node:
        return 0
    if entry.pattern == "shift":
        return min(entry.distance, node)
    if node % (2 * entry.distance) == 0:
        return 0
    return 1 if entry.pattern == "tree" and entry.distance >= node else min(entry.distance, node)


def _slower(channel: Channel, factor: float) -> Channel:
    def scaled(link: Link) -> Link:
        return Link(tuple(replace(p, alpha=p.alpha * factor, beta=p.beta * factor) for p in link.pieces))

    return Channel(scaled(channel.one_way), scaled(channel.exchange))
