"""The order of samples in a stand-alone program, computed in Python: the twin of ``program/shuffle.h``."""

from __future__ import annotations

import numpy as np

from meta500.datasets.arguments import integer

_EPOCH_STREAM = 1 << 63
_WORD = np.uint64(0xFFFFFFFF)


def sample_order(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order in which a program takes the samples in an epoch, a function of these arguments alone.

    Fisher and Yates' shuffle of 0, 1, ..., samples - 1: for i from samples - 1 down to 1, elements i and j
    change places, where j is the upper half of the 128-bit product of (i + 1) and a 64-bit random number.
    That number is a + 2^32 b of the block (a, b, c, d) of Philox4x32-10 (Salmon et al., 2011) with the seed
    as key, i as the lower and epoch + 2^63 as the upper half of the counter.

    Args:
        samples: how many there are.
        seed: at least 0.
        epoch: counted from 0.

    Returns:
        (samples,) int64, every number once.

    Raises:
        UserError: an argument out of range.
    """
    integer("samples", samples, minimum=1)
    key, stream = integer("seed", seed, minimum=0), integer("epoch", epoch, minimum=0) | _EPOCH_STREAM
    numbers = np.arange(samples, dtype=np.uint64)
    a, b = _philox(numbers, stream, key)[:2]
    order = np.arange(samples, dtype=np.int64)
    draws = (a | b << np.uint64(32)).tolist()
    for i in range(samples - 1, 0, -1):
        j = draws[i] * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def _philox(low: np.ndarray, high: int, key: int) -> tuple[np.ndarray, ...]:
    """The four words of the blocks with the counters (low, high), each as uint64 below 2^32."""
    shift = np.uint64(32)
    a, b = low & _WORD, low >> shift
    c = np.full_like(low, high & 0xFFFFFFFF)
    d = np.full_like(low, high >> 32)
    key0, key1 = key & 0xFFFFFFFF, key >> 32 & 0xFFFFFFFF
    for _ in range(10):
        first, second = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a = second >> shift ^ b ^ np.uint64(key0)
        c = first >> shift ^ d ^ np.uint64(key1)
        b, d = second & _WORD, first & _WORD
        key0, key1 = key0 + 0x9E3779B9 & 0xFFFFFFFF, key1 + 0xBB67AE85 & 0xFFFFFFFF
    return a, b, c, d
