"""Einsum and Det: products of tensors along named axes, and determinants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.numpy.operators import rules
from meta500.backends.numpy.operators.arrays import is_floating, numeric, numeric_vjp, unbroadcast
from meta500.backends.rules import Call
from meta500.errors import UserError

Gradients = tuple[np.ndarray | None, ...]


@dataclass(frozen=True)
class Contraction:
    """An equation for given ranks: the label (a small number) of every axis of operands and result."""

    operands: tuple[tuple[int, ...], ...]
    result: tuple[int, ...]


def parse_equation(equation: str, shapes: Sequence[tuple[int, ...]]) -> Contraction:
    """The axes that an ONNX Einsum equation means for operands of these shapes.

    Letters, upper and lower case apart, name axes; "..." stands for equally many axes everywhere. Without
    "->" the result has the ellipsis, then the letters that occur once, sorted by ASCII.

    Raises:
        UserError: an equation that is malformed or does not fit the shapes.
    """
    text = equation.replace(" ", "")
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if len(terms) != len(shapes):
        raise UserError(f"Einsum: equation '{equation}' has {len(terms)} terms for {len(shapes)} operands")
    letters = [_letters(term, equation) for term in terms]
    spans = set()
    for term, names, shape in zip(terms, letters, shapes, strict=True):
        rest = len(shape) - len(names)
        if rest < 0 or (rest and "..." not in term):
            raise UserError(f"Einsum: term '{term}' of '{equation}' does not fit an operand of shape {shape}")
        if "..." in term:
            spans.add(rest)
    if len(spans) > 1:
        raise UserError(
            f"Einsum: '...' in '{equation}' stands for {sorted(spans)} axes, one number is allowed"
        )
    every = "".join(letters)
    if arrow:
        output = right
        names = _letters(right, equation)
        if len(set(names)) != len(names) or not set(names) <= set(every) or ("..." in right and not spans):
            raise UserError(
                f"Einsum: the result of '{equation}' repeats an axis or names one that no term has"
            )
    else:
        once = "".join(sorted(c for c in set(every) if every.count(c) == 1))
        output = ("..." if spans else "") + once
    number = {name: i for i, name in enumerate(sorted(set(every)))}
    span = spans.pop() if spans else 0
    if len(number) + span > 52:
        raise UserError(f"Einsum: '{equation}' has more than 52 axes in all")
    dots = tuple(range(len(number), len(number) + span))

    def labels(term: str) -> tuple[int, ...]:
        before, ellipsis, after = term.partition("...")
        return (*(number[c] for c in before), *(dots if ellipsis else ()), *(number[c] for c in after))

    parsed = Contraction(tuple(labels(term) for term in terms), labels(output))
    _check_sizes(equation, parsed, shapes)
    return parsed


def _letters(term: str, equation: str) -> str:
    names = term.replace("...", "", 1)
    if not all(c.isascii() and c.isalpha() for c in names):
        raise UserError(f"Einsum: term '{term}' of '{equation}' may have letters and one '...' only")
    return names


def _check_sizes(equation: str, parsed: Contraction, shapes: Sequence[tuple[int, ...]]) -> None:
    sizes: dict[int, int] = {}
    for labels, shape in zip(parsed.operands, shapes, strict=True):
        for label, size in zip(labels, shape, strict=True):
            known = sizes.get(label, 1)
            if size not in (known, 1) and known != 1:
                raise UserError(
                    f"Einsum: an axis of '{equation}' has sizes {known} and {size}: {list(shapes)}"
                )
            sizes[label] = size if known == 1 else known
        for label in set(labels):
            if len({size for other, size in zip(labels, shape, strict=True) if other == label}) > 1:
                raise UserError(f"Einsum: a repeated axis of '{equation}' has two sizes in shape {shape}")


def _contract(operands: Sequence[tuple[np.ndarray, Sequence[int]]], result: Sequence[int]) -> np.ndarray:
    """Sum of the products of the operands, each given with its labels, over the labels not in ``result``."""
    arguments: list[Any] = []
    for array, labels in operands:
        arguments += [array, list(labels)]
    return np.asarray(np.einsum(*arguments, list(result), optimize=len(operands) > 1))


@rules.rule("Einsum", 12)
@numeric
def einsum(*operands: np.ndarray, equation: str, saved: dict[str, Any]) -> np.ndarray:
    """Sums of products of the operands along the axes that ``equation`` names; axes of size 1 broadcast.

    Raises:
        UserError: an equation that is malformed or does not fit the operands.
    """
    parsed = parse_equation(equation, [x.shape for x in operands])
    saved["parsed"] = parsed
    # The result of numpy may be a view of the operand.
    return np.array(_contract(list(zip(operands, parsed.operands, strict=True)), parsed.result))


@einsum.vjp
@numeric_vjp
def einsum_vjp(call: Call, d: np.ndarray) -> Gradients:
    """For each operand, the contraction of the cotangent with all others."""
    if not is_floating(call.inputs[0].dtype):
        return (None,) * len(call.inputs)
    parsed: Contraction = call.saved["parsed"]
    pairs = list(zip(call.inputs, parsed.operands, strict=True))
    sizes: dict[int, int] = {}
    for array, labels in pairs:
        for label, size in zip(labels, array.shape, strict=True):
            sizes[label] = size if sizes.get(label, 1) == 1 else sizes[label]
    gradients: list[np.ndarray | None] = []
    for i, (x, labels) in enumerate(pairs):
        if not call.needs[i]:
            gradients.append(None)
            continue
        others = [*pairs[:i], *pairs[i + 1 :], (d, parsed.result)]
        distinct = tuple(dict.fromkeys(labels))
        # Vectors of ones give back the axes that were only summed over, at full size.
        present = {
            label: size
            for array, names in others
            for label, size in zip(names, array.shape, strict=True)
            if size == sizes[label]
        }
        ones = [(np.ones(sizes[label], d.dtype), (label,)) for label in distinct if label not in present]
        found = _contract([*others, *ones], distinct)
        extents = tuple(x.shape[labels.index(label)] for label in distinct)
        gradients.append(_to_diagonal(unbroadcast(found, extents), distinct, labels, x.shape))
    return tuple(gradients)


def _to_diagonal(
    gradient: np.ndarray, distinct: tuple[int, ...], labels: tuple[int, ...], shape: tuple[int, ...]
) -> np.ndarray:
    """A gradient with one axis per distinct label, put on the diagonals that repeated labels mean."""
    if len(distinct) == len(labels):
        return gradient
    result = np.zeros(shape, gradient.dtype)
    grid = np.ix_(*(np.arange(n) for n in gradient.shape))
    result[tuple(grid[distinct.index(label)] for label in labels)] = gradient
    return result


@rules.rule("Det", 11)
@numeric
def det(x: np.ndarray) -> np.ndarray:
    """Determinants of the matrices (..., M, M); shape (...).

    Raises:
        UserError: the last two axes are no square.
    """
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise UserError(f"Det: the input has shape {x.shape}, its last two axes should be equal")
    return np.asarray(np.linalg.det(x), x.dtype)


@det.vjp
@numeric_vjp
def det_vjp(call: Call, d: np.ndarray) -> Gradients:
    """The cofactors, from the singular values, so that singular matrices are no exception.

    With X = U S Vᵀ they are det(U) det(V) U cof(S) Vᵀ, where cof(S) has the products of all other values.
    """
    x = call.inputs[0]
    if x.size == 0:
        return (np.zeros(x.shape, x.dtype),)
    u, s, vt = np.linalg.svd(x.astype(np.float64))
    size = s.shape[-1]
    ones = np.ones((*s.shape[:-1], 1))
    before = np.concatenate((ones, np.cumprod(s, axis=-1)[..., : size - 1]), -1)
    after = np.concatenate((ones, np.cumprod(s[..., ::-1], axis=-1)[..., : size - 1]), -1)[..., ::-1]
    sign = np.linalg.det(u) * np.linalg.det(vt)
    cofactors = (u * (before * after * sign[..., None])[..., None, :]) @ vt
    return ((np.asarray(d)[..., None, None] * cofactors).astype(x.dtype),)
