"""Generators for nodes with a ``seed`` attribute: they start from the seed and go on from run to run."""

from __future__ import annotations

import math
import weakref
from typing import Any

import numpy as np

# Of a numpy Generator only its lock can be referred to weakly; it lives exactly as long.
_STREAMS: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()


def seeded(rng: np.random.Generator, seed: float | None) -> np.random.Generator:
    """The generator to draw from: ``rng`` without a seed, else ``np.random.default_rng(seed)``.

    The seeded one belongs to the network that ``rng`` belongs to and goes on with every draw, so that runs
    differ from each other and repeat in a new network. Nodes with the same seed draw from it one after
    another. A seed with a fraction stands for the bits of its float32.

    """
    if seed is None:
        return rng
    key = whole_seed(seed)
    streams = _STREAMS.setdefault(rng.bit_generator.lock, {})
    if key not in streams:
        streams[key] = np.random.default_rng(key)
    return streams[key]  # type: ignore[no-any-return]


def seeded_legacy(owner: Any, seed: int) -> np.random.RandomState:
    """``np.random.RandomState(seed)``, the stream that ONNX's own cases are drawn from, one per ``owner``.

    ``owner`` is what draws without a seed (the network's generator, of numpy or torch).
    """
    key = ("legacy", int(seed))
    streams = _STREAMS.setdefault(_anchor(owner), {})
    if key not in streams:
        streams[key] = np.random.RandomState(int(seed) % 2**32)
    return streams[key]  # type: ignore[no-any-return]


def stream_states(owner: Any) -> list[list[Any]]:
    """The streams of an owner as [kind, seed, state] of plain values and arrays."""
    found: list[list[Any]] = []
    for key, stream in _STREAMS.get(_anchor(owner), {}).items():
        if isinstance(stream, np.random.RandomState):
            found.append(["legacy", key[1], stream.get_state(legacy=False)])
        else:
            found.append(["generator", key, stream.bit_generator.state])
    return found


def restore_streams(owner: Any, states: list[list[Any]]) -> None:
    """Give an owner streams in states of ``stream_states``; it has no others afterwards."""
    streams: dict[Any, Any] = {}
    for kind, seed, state in states:
        if kind == "legacy":
            streams["legacy", seed] = legacy = np.random.RandomState(0)
            legacy.set_state(state)
        else:
            streams[seed] = generator = np.random.default_rng(0)
            generator.bit_generator.state = state
    _STREAMS[_anchor(owner)] = streams


def _anchor(owner: Any) -> Any:
    return owner.bit_generator.lock if isinstance(owner, np.random.Generator) else owner


def whole_seed(seed: float) -> int:
    """A seed attribute, which ONNX types as float, as a number that generators take (0 to 2**64 - 1)."""
    if math.isfinite(seed) and seed == math.floor(seed):
        return int(seed) % 2**64
    return int(np.asarray(seed, np.float32).view(np.uint32)) + 2**32
