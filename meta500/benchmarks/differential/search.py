"""Runs a network on two backends and looks for the first node on which they differ."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from meta500.benchmarks.differential.backward import Backward
from meta500.benchmarks.differential.cases import save_case
from meta500.benchmarks.differential.forward import Forward
from meta500.benchmarks.differential.inputs import Range, draw
from meta500.benchmarks.differential.judge import Judge, attempt
from meta500.benchmarks.differential.report import BACKWARD, FORWARD, Difference
from meta500.benchmarks.differential.sides import (
    Side,
    check_gradients,
    is_float,
    part,
    prepared,
    reads,
    side,
)
from meta500.errors import UserError, choose
from meta500.graph import Model, TensorType
from meta500.graph.passes import infer_types, with_precision
from meta500.graph.types import is_floating

MEMORY = 2**31


def diff(
    model: Model,
    a: str | Side = "torch",
    b: str | Side = "numpy",
    inputs: Mapping[str, Any] | None = None,
    *,
    gradients: bool | None = None,
    loss: str | None = None,
    cotangents: Mapping[str, np.ndarray] | None = None,
    precision: str | None = None,
    rtol: float | None = None,
    atol: float | None = None,
    seed: int = 0,
    dimensions: Mapping[str, int] | None = None,
    ranges: Mapping[str, Range] | None = None,
    memory: int = MEMORY,
    out: Path | None = None,
) -> Difference:
    """Compare every value and every gradient of ``model`` on two backends.

    Args:
        model: the network.
        a, b: backends, with options as in "torch:mode=compile"; ``b`` is what ``a`` is measured against.
        inputs: arrays by name; None draws seeded random ones.
        gradients: compare gradients; None does so where both backends give some and an output is floating
            point.
        loss: the output to differentiate; one with several elements gets a seeded random cotangent. By
            default the scalar floating-point loss of the model, for which the network runs in training form;
            a model without one runs as it is written, and all its floating-point outputs get random
            cotangents.
        cotangents: instead of ``loss``, cotangents of outputs by name.
        precision: "float16", "float32" or "float64" on both backends.
        rtol, atol: instead of the tolerances of :mod:`meta500.benchmarks.differential.tolerances`: results
            agree when max_relative <= rtol or max_absolute <= atol.
        seed: of random inputs and cotangents.
        dimensions, ranges: see :func:`meta500.benchmarks.differential.inputs.draw`.
        memory: bytes of values that one network may return; larger ones run in several parts, and the
            gradients of single values are then compared alone only.
        out: folder for the ONNX cases of the first differing nodes; None saves none.

    Raises:
        UserError: an unknown backend, option, input or output, or inputs that do not fit the model.
    """
    first, second = _sides(a, b, precision)
    wanted = gradients is not False
    report = Difference(model.path or model.name, first.label, second.label)
    for which in (first, second):
        reason = check_gradients(which)
        if gradients and reason:
            raise UserError(f"--gradients: {which.label} gives no gradients: {reason}")
        if wanted and reason:
            report.notes.append(f"forward only, since {which.label} gives no gradients: {reason}")
            wanted = False
    training = wanted and not cotangents and (loss is not None or _scalar_loss(model) is not None)
    base = prepared(model, training, inputs)
    if inputs is None:
        inputs, notes = draw(base, seed, dimensions, ranges)
        report.notes += notes
    elif dimensions or ranges:
        raise UserError("--dim and --range are for random inputs; inputs are given")
    fed = _checked(base, inputs)
    differentiated = _differentiated(base, loss) if wanted and not cotangents else []
    judge = Judge(base, (first, second), report, rtol, atol)
    forward = Forward(judge, fed, memory)
    forward.run()
    seeds = dict(cotangents or {}) if wanted else {}
    for index, name in enumerate(differentiated):
        cotangent = _cotangent(forward.values[0].get(name), [seed, 1 + index])
        if cotangent is not None:
            seeds[name] = cotangent
    if seeds:
        report.gradients = True
        Backward(judge, forward, seeds).run()
    elif wanted and (gradients or loss is not None):
        raise UserError("there are no gradients to compare: no floating-point output could be computed")
    if out is not None:
        _save(report, judge, forward, out)
    return report


def _sides(a: str | Side, b: str | Side, precision: str | None) -> tuple[Side, Side]:
    found = []
    for which in (side(a), side(b)):
        if precision is not None:
            if which.precision not in (None, precision):
                raise UserError(
                    f"--precision {precision} contradicts {which.label}; give the precision once, for both "
                    "backends or for one"
                )
            which = replace(which, options={**which.options, "precision": precision})
        found.append(which)
    return found[0], found[1]


def _checked(model: Model, inputs: Mapping[str, Any]) -> dict[str, Any]:
    known = model.graph.inputs
    for name in inputs:
        if name not in known:
            raise UserError(f"the model has no input '{name}'; its inputs are {', '.join(known) or 'none'}")
    missing = [name for name in model.inputs if name not in inputs]
    if missing:
        raise UserError(f"inputs are missing: {', '.join(missing)}")
    fed: dict[str, Any] = {}
    for name, value in inputs.items():
        if isinstance(value, list | tuple) or value is None:
            fed[name] = value
            continue
        array = np.asarray(value)
        fed[name] = array.astype(object) if array.dtype.kind in "US" else array
    return fed


def _scalar_loss(model: Model) -> str | None:
    """The output that is a scalar floating-point loss: "loss", or the only such output."""
    found = [
        name
        for name, t in model.outputs.items()
        if isinstance(t, TensorType) and is_floating(t.dtype) and t.shape is not None and t.static
        if math.prod(d for d in t.shape if isinstance(d, int)) == 1
    ]
    if "loss" in found:
        return "loss"
    return found[0] if len(found) == 1 else None


def _differentiated(model: Model, loss: str | None) -> list[str]:
    """The outputs to differentiate: ``loss``, else the scalar loss, else all that may be floating point."""
    if loss is not None:
        choose("output", loss, model.outputs)
        dtype = getattr(model.outputs[loss], "dtype", None)
        if dtype is not None and not is_floating(dtype):
            raise UserError(f"--loss: output '{loss}' is {dtype}; only floating-point outputs have gradients")
        return [loss]
    found = _scalar_loss(model)
    return [found] if found is not None else list(model.outputs)


def _cotangent(value: Any, seed: list[int]) -> np.ndarray | None:
    """1 for a scalar, random numbers for other floating-point outputs; None where there is no gradient."""
    if not is_float(value):
        return None
    if value.size == 1:
        return np.ones_like(value)
    return np.asarray(np.random.default_rng(seed).standard_normal(value.shape)).astype(value.dtype)


def _save(report: Difference, judge: Judge, forward: Forward, out: Path) -> None:
    """Write the first differing node of each phase as an ONNX case."""
    for finding in filter(None, (report.forward, report.backward)):
        if finding.phase == BACKWARD and report.forward and report.forward.node == finding.node:
            report.cases[BACKWARD] = report.cases[FORWARD]
            continue
        op = next((op for op in judge.model.graph.operations if op.name == finding.node), None)
        if op is None:
            continue
        values = forward.values[finding.side or 0]
        if not all(name in values for name in reads(op)):
            continue
        model = part(judge.model, [op], values)
        shared = judge.sides[0].precision
        if shared is not None and shared == judge.sides[1].precision:
            model = with_precision(model, shared)
        feeds = {name: _as_declared(values[name], model.graph.inputs[name]) for name in model.inputs}
        expected, _, _ = attempt(judge.sides[1].forward, model, feeds, tuple(model.outputs))
        model = _typed(infer_types(model, strict=False), expected or {})
        about = {"a": report.a, "b": report.b, "found": finding.text()}
        cotangents = judge.cotangents.get(op.name, {}) if report.backward is not None else {}
        folder = out / f"case_{finding.phase}"
        report.cases[finding.phase] = save_case(folder, model, feeds, expected or {}, cotangents, about)


def _typed(model: Model, results: Mapping[str, Any]) -> Model:
    """The model with the types of ``results`` where inference knows none: files must declare them."""
    outputs = dict(model.graph.outputs)
    for name, declared in outputs.items():
        value = results.get(name)
        if declared is None and isinstance(value, np.ndarray):
            outputs[name] = TensorType(value.dtype, value.shape)
    return model.with_graph(replace(model.graph, outputs=outputs))


def _as_declared(value: Any, declared: Any) -> Any:
    dtype = getattr(declared, "dtype", None)
    return value.astype(dtype) if dtype is not None and is_float(value) and is_floating(dtype) else value
