"""TfIdfVectorizer: counts of n-grams (runs of tokens) in rows of tokens."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.errors import UserError, choose

Ints = tuple[int, ...]


@rules.rule("TfIdfVectorizer", 9)
def tf_idf_vectorizer(
    x: np.ndarray,
    *,
    max_gram_length: int,
    max_skip_count: int,
    min_gram_length: int,
    mode: str,
    ngram_counts: Ints,
    ngram_indexes: Ints,
    pool_int64s: Ints | None = None,
    pool_strings: tuple[str, ...] | None = None,
    weights: tuple[float, ...] | None = None,
) -> np.ndarray:
    """ONNX TfIdfVectorizer: float32 of shape [K] for tokens [C], [N, K] for [N, C]; K is max(index) + 1.

    n-grams of ``min_gram_length`` to ``max_gram_length`` tokens are counted, the tokens of one 0 to
    ``max_skip_count`` tokens apart (always equally far). Coordinate ``ngram_indexes[i]`` of the result holds,
    for the i-th n-gram of the pool, its count ("TF"), ``weights[i]`` where it occurs ("IDF"), or the count
    times ``weights[i]`` ("TFIDF"). ONNX Runtime takes the weight of the coordinate instead, which is the same
    only if ``ngram_indexes`` counts 0, 1, 2, ...

    Raises:
        UserError: another rank, both or neither pool, tokens of another type than the pool, or attributes
            that contradict each other.
    """
    choose("TfIdfVectorizer mode", mode, ("IDF", "TF", "TFIDF"))
    if (pool_int64s is None) == (pool_strings is None):
        raise UserError("TfIdfVectorizer: exactly one of pool_int64s and pool_strings must be set")
    if (x.dtype.kind in "OU") != (pool_strings is not None):
        kind = "strings" if pool_strings is not None else "integers"
        raise UserError(f"TfIdfVectorizer: the pool holds {kind}, the input is {x.dtype}")
    if x.ndim > 2:
        raise UserError(f"TfIdfVectorizer: the input has shape {list(x.shape)}, expected [C] or [N, C]")
    if not 1 <= min_gram_length <= max_gram_length or max_skip_count < 0:
        raise UserError(
            f"TfIdfVectorizer: min_gram_length {min_gram_length}, max_gram_length {max_gram_length} and "
            f"max_skip_count {max_skip_count} do not fit"
        )
    pool: tuple[Any, ...] = pool_int64s if pool_int64s is not None else pool_strings or ()
    grams = _read_pool(pool, ngram_counts, ngram_indexes)
    if weights is not None and len(weights) != len(ngram_indexes):
        raise UserError(f"TfIdfVectorizer: {len(weights)} weights for {len(ngram_indexes)} n-grams")
    rows = x.reshape(1, -1) if x.ndim < 2 else x
    result = np.zeros((len(rows), max(ngram_indexes, default=-1) + 1), np.float64)
    scale = (1.0,) * len(ngram_indexes) if weights is None or mode == "TF" else weights
    for row, tokens in enumerate(rows.tolist()):
        found: dict[int, int] = defaultdict(int)
        for length in range(min_gram_length, max_gram_length + 1):
            # A single token is the same at every distance and counts once.
            for step in range(1, 2 if length == 1 else max_skip_count + 2):
                for start in range(len(tokens) - step * (length - 1)):
                    for number in grams.get(tuple(tokens[start : start + step * length : step]), ()):
                        found[number] += 1
        for number, count in found.items():
            result[row, ngram_indexes[number]] += scale[number] * (1 if mode == "IDF" else count)
    result = result.astype(np.float32)
    return result[0] if x.ndim < 2 else result


def _read_pool(pool: tuple[Any, ...], counts: Ints, indexes: Ints) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """The numbers of each n-gram in the pool (several if it is listed more than once)."""
    grams: dict[tuple[Any, ...], tuple[int, ...]] = {}
    number = 0
    for position, start in enumerate(counts):
        length = position + 1
        end = counts[length] if length < len(counts) else len(pool)
        if not 0 <= start <= end <= len(pool) or (end - start) % length:
            raise UserError(
                f"TfIdfVectorizer: ngram_counts {list(counts)} do not divide a pool of {len(pool)}: "
                f"{end - start} items make no {length}-grams"
            )
        for at in range(start, end, length):
            gram = tuple(pool[at : at + length])
            grams[gram] = (*grams.get(gram, ()), number)
            number += 1
    if number != len(indexes) or any(index < 0 for index in indexes):
        raise UserError(f"TfIdfVectorizer: {len(indexes)} ngram_indexes (from 0) for {number} n-grams")
    return grams
