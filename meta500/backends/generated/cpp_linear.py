"""Prints products of exact matrices with variables, as few operations as their signs allow."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fractions import Fraction

from meta500.backends.generated.cpp_expressions import number
from meta500.backends.generated.cpp_nest import Lines
from meta500.backends.generated.toom_cook import Matrix


def linear(
    out: Lines,
    matrix: Matrix,
    given: Sequence[str],
    use: Callable[[int, str], None],
    kind: tuple[str, Callable[[float], str]] = ("vec", number),
) -> None:
    """A matrix by variables of C++: rows that differ by signs only share their even and odd parts.

    Args:
        out: where lines go.
        matrix: exact.
        given: names of the variables.
        use: prints what becomes of a row, from its number and expression.
        kind: type of the variables, and how their numbers are written.
    """
    row = 0
    while row < len(matrix):
        pair = matrix[row : row + 2]
        if len(pair) == 2 and _mirrored(*pair):
            same = [v if v == w else Fraction(0) for v, w in zip(*pair, strict=True)]
            other = [v if v != w else Fraction(0) for v, w in zip(*pair, strict=True)]
            factor = [v for v in other if v][-1]
            name = re.sub(r"\W+", "_", given[0]).strip("_")
            even, odd = f"even{row}_{name}", f"odd{row}_{name}"
            out.add(
                f"const {kind[0]} {even} = {combination(same, given, kind[1])}, "
                f"{odd} = {combination([v / factor for v in other], given, kind[1])};"
            )
            times = "" if factor == 1 else f"{kind[1](float(factor))} * "
            use(row, f"{even} + {times}{odd}")
            use(row + 1, f"{even} - {times}{odd}")
            row += 2
        else:
            use(row, combination(matrix[row], given, kind[1]))
            row += 1


def _mirrored(one: Sequence[Fraction], other: Sequence[Fraction]) -> bool:
    """Whether two rows have the same numbers up to signs, some with the same sign and some not."""
    pairs = [(v, w) for v, w in zip(one, other, strict=True) if v or w]
    return all(abs(v) == abs(w) for v, w in pairs) and len({v == w for v, w in pairs}) == 2


def combination(row: Sequence[Fraction], given: Sequence[str], literal: Callable[[float], str]) -> str:
    """A sum of multiples; the plain terms first."""
    terms = sorted(
        ((v, name) for v, name in zip(row, given, strict=True) if v),
        key=lambda t: (abs(t[0]) != 1, t[0] < 0),
    )
    text = ""
    for value, name in terms:
        sign = " - " if value < 0 else " + "
        factor = "" if abs(value) == 1 else f"{literal(float(abs(value)))} * "
        text += f"{sign if text else '-' if value < 0 else ''}{factor}{name}"
    return text
