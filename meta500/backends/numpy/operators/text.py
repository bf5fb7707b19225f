"""Operators on strings: StringConcat, StringSplit, StringNormalizer and RegexFullMatch.

String tensors are object arrays of str.
"""

from __future__ import annotations

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.regex import compile_re2
from meta500.errors import UserError, choose

# Languages whose upper and lower case differ from the one mapping that Unicode gives all others.
_OWN_CASING = ("az", "lt", "tr")


def texts(values: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """An object array of ``shape`` holding ``values``."""
    array = np.empty(len(values), object)
    array[:] = values
    return array.reshape(shape)


def check_texts(operator: str, *arrays: np.ndarray) -> None:
    """Raises UserError unless all arrays hold strings."""
    for array in arrays:
        if array.dtype.kind not in "OU":
            raise UserError(f"{operator}: expected strings, got {array.dtype}")


@rules.rule("StringConcat", 20)
def string_concat(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """ONNX StringConcat: element by element, with broadcasting."""
    check_texts("StringConcat", x, y)
    left, right = np.broadcast_arrays(x, y)
    return texts([a + b for a, b in zip(left.flat, right.flat, strict=True)], left.shape)


@rules.rule("StringSplit", 20)
def string_split(
    x: np.ndarray, *, delimiter: str | None = None, maxsplit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """ONNX StringSplit: the parts, padded with "" along a new last axis, and their numbers (int64).

    Without a delimiter the text is split at runs of (Unicode) white space, and none is kept at either end.

    Raises:
        UserError: ``maxsplit`` is negative.
    """
    check_texts("StringSplit", x)
    if maxsplit is not None and maxsplit < 0:
        raise UserError(f"StringSplit: maxsplit is {maxsplit}, it must not be negative")
    limit = -1 if maxsplit is None else maxsplit
    if delimiter:
        parts = [text.split(delimiter, limit) for text in x.flat]
    else:
        parts = [text.strip().split(None, limit) for text in x.flat]
    longest = max(map(len, parts), default=0)
    padded = [part for found in parts for part in found + [""] * (longest - len(found))]
    return texts(padded, (*x.shape, longest)), np.array([len(p) for p in parts], np.int64).reshape(x.shape)


@rules.rule("StringNormalizer", 10)
def string_normalizer(
    x: np.ndarray,
    *,
    case_change_action: str = "NONE",
    is_case_sensitive: int = 0,
    locale: str | None = None,
    stopwords: tuple[str, ...] | None = None,
) -> np.ndarray:
    """ONNX StringNormalizer: elements of [C] or [1, C] that are no stop words, in the wanted case.

    When none is left the result is one empty string. Case follows Unicode's mapping, which is that of every
    locale but the Azeri, Lithuanian and Turkish ones.

    Raises:
        UserError: another shape, an unknown action, or a locale with a case mapping of its own.
    """
    check_texts("StringNormalizer", x)
    choose("StringNormalizer case_change_action", case_change_action, ("LOWER", "NONE", "UPPER"))
    if x.ndim not in (1, 2) or (x.ndim == 2 and x.shape[0] != 1):
        raise UserError(f"StringNormalizer: the input has shape {list(x.shape)}, expected [C] or [1, C]")
    cased = case_change_action != "NONE" or (not is_case_sensitive and stopwords)
    if cased and locale and locale.replace("-", "_").split("_")[0].lower() in _OWN_CASING:
        raise UserError(f"StringNormalizer: the numpy backend has no case mapping for locale '{locale}'")
    stops = set(stopwords or ())
    if is_case_sensitive:
        kept = [text for text in x.flat if text not in stops]
    else:
        lowered = {word.lower() for word in stops}
        kept = [text for text in x.flat if text.lower() not in lowered]
    if case_change_action != "NONE":
        kept = [text.lower() if case_change_action == "LOWER" else text.upper() for text in kept]
    kept = kept or [""]
    return texts(kept, (len(kept),) if x.ndim == 1 else (1, len(kept)))


@rules.rule("RegexFullMatch", 20)
def regex_full_match(x: np.ndarray, *, pattern: str | None = None) -> np.ndarray:
    """ONNX RegexFullMatch: whether each whole text matches the RE2 ``pattern`` (bool).

    The pattern is translated for Python's ``re`` (:mod:`meta500.backends.numpy.operators.regex`).

    Raises:
        UserError: the pattern is missing, no RE2 syntax, or names a Unicode script.
    """
    check_texts("RegexFullMatch", x)
    if pattern is None:
        raise UserError("RegexFullMatch: the attribute 'pattern' is missing")
    compiled = compile_re2(pattern)
    return np.array([compiled.fullmatch(text) is not None for text in x.flat], bool).reshape(x.shape)
