"""What the classifiers and regressors of ai.onnx.ml share: post transforms of scores and class labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meta500.backends.numpy.operators.text import texts
from meta500.errors import UserError, choose

DOMAIN = "ai.onnx.ml"
TRANSFORMS = ("LOGISTIC", "NONE", "PROBIT", "SOFTMAX", "SOFTMAX_ZERO")
# Scores nearer to zero than this count as zero in SOFTMAX_ZERO.
_ZERO = 1e-7
# ONNX's reference has 0.5 there, ONNX Runtime NaN.
ZEROS = "post_transform SOFTMAX_ZERO is not defined where all scores are zero"


def matrix(operator: str, x: np.ndarray) -> np.ndarray:
    """[N, F] in float64; [F] is one row.

    Raises:
        UserError: another rank, or no numbers.
    """
    if x.dtype.kind not in "fiub":
        raise UserError(f"{operator}: expected numbers, got {x.dtype}")
    if x.ndim not in (1, 2):
        raise UserError(f"{operator}: the input has shape {list(x.shape)}, expected [N, F]")
    return np.atleast_2d(x).astype(np.float64)


def transform(name: str, scores: np.ndarray) -> np.ndarray:
    """The post transform of scores (..., E) along their last axis, in their own type.

    SOFTMAX_ZERO leaves zero scores zero; PROBIT is the inverse of the normal distribution function
    (ONNX Runtime approximates it to about 0.002).

    Raises:
        UserError: an unknown name, or SOFTMAX_ZERO of zeros only.
    """
    choose("post_transform", name, TRANSFORMS)
    with np.errstate(all="ignore"):
        if name == "LOGISTIC":
            return np.asarray(0.5 * (1 + np.tanh(0.5 * scores)))
        if name == "PROBIT":
            from scipy.special import ndtri

            return np.asarray(ndtri(scores))
        if name in ("SOFTMAX", "SOFTMAX_ZERO") and scores.shape[-1]:
            highest = scores.max(axis=-1, keepdims=True)
            powers = np.exp(scores - highest)
            if name == "SOFTMAX_ZERO":
                powers = np.where(np.abs(scores) > _ZERO, powers, scores * np.exp(-highest))
                if np.any(powers.sum(axis=-1) == 0):
                    raise UserError(ZEROS)
            return np.asarray(powers / powers.sum(axis=-1, keepdims=True))
    return scores


def expect_transform(operator: str, name: str, allowed: tuple[str, ...], where: str) -> None:
    """Refuse the transforms whose meaning ``where`` is open: ONNX's text leaves the case out, and its
    reference and ONNX Runtime compute different scores.

    Raises:
        UserError: an unknown name, or one that is not allowed.
    """
    choose("post_transform", name, TRANSFORMS)
    if name not in allowed:
        raise UserError(
            f"{operator}: post_transform {name} is ambiguous {where}: implementations of ONNX differ; "
            f"expected {' or '.join(allowed)}"
        )


def expect_transform_of(operator: str, name: str, outputs: int) -> None:
    """Refuse transforms of a regressor's only output, which ONNX Runtime leaves out against ONNX's text.

    Raises:
        UserError: LOGISTIC, SOFTMAX or SOFTMAX_ZERO of one output, or an unknown name.
    """
    expect_transform(operator, name, ("NONE", "PROBIT") if outputs == 1 else TRANSFORMS, "for one output")


def top(operator: str, name: str, scores: np.ndarray, results: np.ndarray) -> np.ndarray:
    """Index (N) of the highest of the scores (N, E), the first of equals; ``results`` are the transformed.

    Raises:
        UserError: SOFTMAX_ZERO moved the highest score below others, which happens to a zero among negatives;
            or PROBIT of a score outside (0, 1), where it has no finite value.
    """
    chosen = scores.argmax(axis=1)
    if name == "PROBIT" and np.any(np.isfinite(scores) & ~np.isfinite(results)):
        raise UserError(
            f"{operator}: post_transform PROBIT of a score outside (0, 1): "
            "implementations of ONNX differ in the label"
        )
    if name == "SOFTMAX_ZERO":
        of_chosen = np.take_along_axis(results, chosen[:, None], axis=1)
        if np.any(of_chosen < results):
            raise UserError(
                f"{operator}: post_transform SOFTMAX_ZERO makes the highest score, a zero, the lowest: "
                "implementations of ONNX differ in the label"
            )
    return np.asarray(chosen)


def transform_vjp(name: str, scores: np.ndarray, results: np.ndarray, d: np.ndarray) -> np.ndarray:
    """Cotangent of the scores from that of the transformed ones."""
    if name == "LOGISTIC":
        return d * results * (1 - results)
    if name == "PROBIT":
        return d * np.sqrt(2 * np.pi) * np.exp(0.5 * results * results)
    if name in ("SOFTMAX", "SOFTMAX_ZERO"):
        if name == "SOFTMAX_ZERO" and np.any(np.abs(scores) <= _ZERO):
            raise UserError("post_transform SOFTMAX_ZERO is not differentiable where a score is zero")
        return results * (d - (d * results).sum(axis=-1, keepdims=True))
    return d


def labels(operator: str, ints: Sequence[int] | None, strings: Sequence[str] | None) -> tuple[Any, ...]:
    """The class labels: all int or all str.

    Raises:
        UserError: both kinds, or neither.
    """
    if bool(ints) == bool(strings):
        raise UserError(f"{operator}: exactly one of the class label attributes (ints, strings) must be set")
    return tuple(ints or strings or ())


def pick(names: tuple[Any, ...], chosen: np.ndarray) -> np.ndarray:
    """The labels at the indices ``chosen``, as int64 or strings."""
    found = [names[int(index)] for index in chosen.flat]
    if names and isinstance(names[0], str):
        return texts(found, chosen.shape)
    return np.array(found, np.int64).reshape(chosen.shape)


def numbers(values: Any) -> np.ndarray:
    """An attribute (floats, a tensor or None) as a float64 vector."""
    return np.zeros(0) if values is None else np.asarray(values, np.float64).reshape(-1)


def as_stored(values: Any) -> np.ndarray:
    """A float attribute as the float32 numbers of the file, in float64: what data is compared with.

    The attribute itself holds the shortest decimals that round to them, which float32 data is not equal to.
    """
    return np.asarray(values or (), np.float32).astype(np.float64)


def either(operator: str, name: str, floats: Any, tensor: Any) -> np.ndarray:
    """The attribute ``name`` or its ``name``_as_tensor form as a float64 vector (empty without both).

    Raises:
        UserError: both are given.
    """
    if floats is not None and len(floats) and tensor is not None and tensor.size:
        raise UserError(f"{operator}: both {name} and {name}_as_tensor are set")
    return numbers(floats if floats is not None and len(floats) else tensor)
