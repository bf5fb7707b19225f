"""Gradients of the backends against central differences and against each other, in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ml_dtypes
import numpy as np

from meta500.backends.network import Network, network
from meta500.benchmarks.operators.cases import Case, Value, cases, operator_name
from meta500.benchmarks.operators.differences import direction, directional, nearby
from meta500.benchmarks.operators.differentiability import (
    DIFFERENTIABLE,
    NOT_DIFFERENTIABLE,
    Differentiability,
    differentiability,
)
from meta500.errors import UserError
from meta500.graph import Model
from meta500.graph.types import OptionalType, TensorType, is_floating

RIGHT, WRONG, REFUSED, UNCHECKED = "right", "wrong", "refused", "unchecked"
BACKENDS = ("numpy", "torch")

# Relative to the size of the derivative: against differences, and between two backends.
TOLERANCE, AGREEMENT = 1e-6, 1e-9
# For outputs that ONNX defines as float32 whatever the inputs are (Mean of LayerNormalization).
COARSE_AGREEMENT = 1e-5
# How far the inputs are moved, relative to their elements, to get away from kinks, ties and borders.
_DISTANCES = (0.0, 0.03, 0.003, 0.1, 0.3)
_DIRECTIONS = 2

_MOD = "dividends are infinite and divisors zero, and so is the quotient in the derivative by the divisor"
_ATTENTION = (
    "the function body replaces the NaN of a row without keys after its softmax, so that backward multiplies "
    "NaN by 0; the operator itself is checked"
)

# Cases that are left out, each with the reason.
EXCLUDED: dict[str, str] = {
    "mod_float_edge_cases_fmod_0_float16": _MOD,
    "mod_float_edge_cases_fmod_0_float32": _MOD,
    "mod_float_edge_cases_fmod_0_float64": _MOD,
    "attention_23_boolmask_fullymasked_row_nan_robustness_expanded": _ATTENTION,
    "attention_23_fullymasked_qk_matmul_output_mode3_zero_expanded": _ATTENTION,
    "attention_24_fullymasked_qk_matmul_output_mode3_zero_expanded": _ATTENTION,
    "attention_24_qk_matmul_output_mode3_softmax_precision_expanded": _ATTENTION,
    "attention_4d_causal_nonpad_negative_offset_structural_empty_expanded": _ATTENTION,
    "attention_4d_causal_padded_kv_bf16_expanded": _ATTENTION,
    "attention_causal_boolmask_nan_robustness_expanded": _ATTENTION,
    "attention_local_window_gqa_rank4_mask_expanded": _ATTENTION,
}


@dataclass(frozen=True)
class GradientCheck:
    """The gradient of one output by one input on one backend (or of two backends against each other).

    Attributes:
        case: its name.
        operator: what the case is about.
        backend: "numpy", "torch", or "numpy/torch" for the difference between both.
        output, wrt: names of values of the case's model.
        formal: the input's name in the operator's definition ("" for networks).
        result: "right", "wrong", "refused" (the backend has no gradient and says so) or "unchecked" (no
            smooth point was found, or there is no forward).
        error: relative to the size of the derivative; None unless right or wrong.
        message: why it is not right.
    """

    case: str
    operator: str
    backend: str
    output: str
    wrt: str
    formal: str
    result: str
    error: float | None
    message: str = ""


def check_case(case: Case, backends: Sequence[str] = BACKENDS, seed: int = 0) -> list[GradientCheck]:
    """Check all gradients that the case's operator has, on the inputs of its first data set or near them.

    Inputs and outputs that are no floating-point tensors are left out; networks and custom
    operators are differentiated by all inputs. A case of :data:`EXCLUDED` is "unchecked", with the reason.
    """
    listed = case.operator and case.suite != "custom"
    entry = differentiability(case.operator) if listed else Differentiability(DIFFERENTIABLE)
    if entry.kind == NOT_DIFFERENTIABLE:
        return []
    formals = formal_names(case)
    inputs, types = case.data()[0][0], case.model().graph.inputs
    wrt = [
        name
        for name, value in inputs.items()
        if _is_float(value)
        and isinstance(types[name], TensorType)
        and (entry.inputs is None or not case.operator or formals[name] in entry.inputs)
    ]
    if case.name in EXCLUDED:
        checks = [_check(b, "", n, UNCHECKED, None, EXCLUDED[case.name]) for b in backends for n in wrt]
    else:
        checks = check_gradients(case.model(), inputs, wrt, backends, seed)
    return [_of_case(check, case, formals.get(check.wrt, "")) for check in checks]


def refusals(case: Case, backends: Sequence[str] = BACKENDS) -> list[GradientCheck]:
    """Ask for the gradients that the case's operator does not have, in the case's own types.

    Returns:
        For every floating-point input without a gradient: result "refused" as it should be, or "wrong" if the
        backend gave numbers. A zero gradient is right for inputs that the table calls constant. Nothing for
        expanded cases, whose operators are others, and for custom operators.
    """
    if case.expanded or case.suite == "custom":
        return []
    entry = differentiability(case.operator)
    formals, inputs = formal_names(case), case.data()[0][0]
    names = [
        name
        for name, value in inputs.items()
        if _is_float(value)
        and (
            entry.kind == NOT_DIFFERENTIABLE
            or (entry.inputs is not None and formals[name] not in entry.inputs)
        )
    ]
    found = []
    for backend in backends if names else ():
        try:
            subject = _Subject(case.model(), inputs, backend, precision=None)
        except UserError as error:
            found += [_refusal(case, backend, "", n, formals[n], UNCHECKED, str(error)) for n in names]
            continue
        outputs = subject.float_outputs() or list(subject.net.outputs)
        for name in names:
            for output in outputs:
                try:
                    gradient = subject.gradients(output, None, [name])[name]
                except UserError as error:
                    result, message = REFUSED, str(error)
                else:
                    zero = not np.any(gradient)
                    result = RIGHT if zero and formals[name] in entry.constant else WRONG
                    message = "zero" if zero else "a gradient was given"
                found.append(_refusal(case, backend, output, name, formals[name], result, message))
    return found


def check_gradients(
    model: Model,
    inputs: Mapping[str, Value],
    wrt: Iterable[str],
    backends: Sequence[str] = BACKENDS,
    seed: int = 0,
) -> list[GradientCheck]:
    """Check the gradients of every floating-point output by every value in ``wrt``, in float64.

    For each output a cotangent is drawn; the vector-Jacobian product is compared with central differences
    along random directions, at the given inputs or, where the function is not smooth there, near them.

    Args:
        model: what to differentiate.
        inputs: values of its inputs.
        wrt: names of inputs or parameters.
        backends: to check; differences are taken on the first one that runs the model.
        seed: of cotangents, directions and moves.
    """
    wrt = list(wrt)
    subjects: dict[str, _Subject] = {}
    refused: dict[str, str] = {}
    for backend in backends:
        try:
            subjects[backend] = _Subject(model, inputs, backend)
        except UserError as error:
            refused[backend] = str(error)
    checks = [
        _check(backend, "", name, UNCHECKED, None, text) for backend, text in refused.items() for name in wrt
    ]
    if not subjects or not wrt:
        return checks
    reference = next(iter(subjects.values()))
    pending = [(output, name) for output in reference.float_outputs() for name in wrt]
    for attempt, distance in enumerate(_DISTANCES):
        rng = np.random.default_rng((seed, attempt))
        try:
            for subject in subjects.values():
                subject.move(wrt, np.random.default_rng((seed, attempt)), distance)
            done, results = _check_at_point(subjects, reference, pending, wrt, rng)
        except UserError as error:
            done, results = set(), []
            message = str(error)
        else:
            message = "no smooth point near the given inputs"
        checks += results
        pending = [pair for pair in pending if pair not in done]
        if not pending:
            return checks
    for output, name in pending:
        checks += [_check(backend, output, name, UNCHECKED, None, message) for backend in subjects]
    return checks


def _check_at_point(
    subjects: Mapping[str, _Subject],
    reference: _Subject,
    pending: Sequence[tuple[str, str]],
    wrt: Sequence[str],
    rng: np.random.Generator,
) -> tuple[set[tuple[str, str]], list[GradientCheck]]:
    """Check, at the subjects' present inputs, those pairs of output and input for which it is smooth."""
    outputs = list(dict.fromkeys(output for output, _ in pending))
    cotangents = reference.cotangents(outputs, rng)
    slopes: dict[tuple[str, str], list[tuple[np.ndarray, float, float]]] = {}
    rough = set()
    for name in dict.fromkeys(name for _, name in pending):
        for _ in range(_DIRECTIONS):
            along = direction(rng, reference.value(name))
            for epsilon, group in reference.by_precision(outputs).items():
                found = directional(reference.line(name, along, group, cotangents), epsilon)
                for index, output in enumerate(group):
                    if not found.smooth[index]:
                        rough.add((output, name))
                    measured = float(found.value[index]), float(found.noise[index])
                    slopes.setdefault((output, name), []).append((along, *measured))
    done = {pair for pair in pending if pair not in rough}
    checks = []
    for output in outputs:
        names = [name for name in wrt if (output, name) in done]
        given: dict[str, dict[str, np.ndarray]] = {}
        for backend, subject in subjects.items():
            gradients, messages = subject.gradients_or_refusals(output, cotangents[output], names)
            given[backend] = gradients
            checks += [_check(backend, output, n, REFUSED, None, text) for n, text in messages.items()]
            for name, gradient in gradients.items():
                error = max(_miss(gradient, *slope) for slope in slopes[output, name])
                message = "" if error <= TOLERANCE else "differs from central differences"
                result = RIGHT if error <= TOLERANCE else WRONG
                checks.append(_check(backend, output, name, result, error, message))
        first, *others = given
        for other in others:
            for name in names:
                if name in given[first] and name in given[other]:
                    error = _gap(given[first][name], given[other][name])
                    exact = reference.epsilon(output) == np.finfo(np.float64).eps
                    result = RIGHT if error <= (AGREEMENT if exact else COARSE_AGREEMENT) else WRONG
                    message = "" if result == RIGHT else "the backends differ"
                    checks.append(_check(f"{first}/{other}", output, name, result, error, message))
    return done, checks


def _miss(gradient: np.ndarray, along: np.ndarray, slope: float, noise: float) -> float:
    """How far a gradient is from a directional derivative, relative to the size of its terms."""
    terms = np.where(along != 0, gradient, 0.0) * along
    size = max(abs(slope), float(np.sqrt(np.sum(terms**2)))) + noise / TOLERANCE
    gap = abs(float(terms.sum()) - slope)
    if not np.isfinite(gap):
        return float("inf")
    return gap / size if size else 0.0


def _gap(a: np.ndarray, b: np.ndarray) -> float:
    finite = np.isfinite(a) & np.isfinite(b)
    if (np.isfinite(a) != np.isfinite(b)).any():
        return float("inf")
    size = max(float(np.abs(a[finite]).max(initial=0)), float(np.abs(b[finite]).max(initial=0)))
    return float(np.abs(a[finite] - b[finite]).max(initial=0)) / size if size else 0.0


class _Subject:
    """A network (in float64 unless another ``precision`` is given) with inputs that can be moved."""

    def __init__(
        self, model: Model, inputs: Mapping[str, Value], backend: str, precision: str | None = "float64"
    ) -> None:
        self.backend = backend
        self.make: Callable[[], Network] = lambda: network(model, backend=backend, precision=precision)
        self.net = self.make()
        types = self.net.model.graph.inputs
        self.given = {name: _as_declared(value, types[name]) for name, value in inputs.items()}
        self.fed = dict(self.given)
        self.random = any(op.op_type == "Dropout" for op in self.net.model.graph.walk())
        self.values = self._forward(self.fed)

    def _fresh(self) -> Network:
        """The network; one that draws random numbers is made anew, so that it draws the same again."""
        if self.random:
            self.net.close()
            self.net = self.make()
        return self.net

    def _forward(self, inputs: Mapping[str, Value]) -> dict[str, Any]:
        return self._fresh().inference(inputs)

    def float_outputs(self) -> list[str]:
        """The outputs that are floating-point tensors."""
        return [name for name, value in self.values.items() if _is_float(value)]

    def epsilon(self, output: str) -> float:
        """The relative precision of an output's dtype."""
        return float(ml_dtypes.finfo(self.values[output].dtype).eps)

    def by_precision(self, outputs: Sequence[str]) -> dict[float, list[str]]:
        """``outputs`` grouped by :meth:`epsilon`."""
        groups: dict[float, list[str]] = {}
        for output in outputs:
            groups.setdefault(self.epsilon(output), []).append(output)
        return groups

    def value(self, name: str) -> np.ndarray:
        """The present value of an input."""
        return np.asarray(self.fed[name])

    def move(self, names: Sequence[str], rng: np.random.Generator, distance: float) -> None:
        """Move inputs away from where they were given.

        Raises:
            UserError: the network refuses them there.
        """
        self.fed = dict(self.given)
        if distance:
            self.fed |= {name: nearby(rng, np.asarray(self.given[name]), distance) for name in names}
        self.values = self._forward(self.fed)

    def cotangents(self, outputs: Sequence[str], rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Random cotangents, zero where an output is not finite."""
        return {
            name: np.where(np.isfinite(self.values[name]), rng.standard_normal(self.values[name].shape), 0.0)
            for name in outputs
        }

    def line(
        self, name: str, along: np.ndarray, outputs: Sequence[str], cotangents: Mapping[str, np.ndarray]
    ) -> Callable[[float], tuple[np.ndarray, np.ndarray]]:
        """t -> the outputs' products with their cotangents where input ``name`` is moved by t * ``along``."""
        start = self.value(name)

        def function(t: float) -> tuple[np.ndarray, np.ndarray]:
            values = self._forward({**self.fed, name: start + t * along})
            sums, sizes = [], []
            for output in outputs:
                cotangent = cotangents[output]
                found = values[output]
                if found.shape != cotangent.shape:
                    sums.append(np.nan)
                    sizes.append(np.nan)
                    continue
                terms = np.where(cotangent != 0, found, 0.0).astype(np.float64) * cotangent
                sums.append(terms.sum())
                sizes.append(np.abs(terms).sum())
            return np.array(sums), np.array(sizes)

        return function

    def gradients(
        self, output: str, cotangent: np.ndarray | None, names: Sequence[str]
    ) -> dict[str, np.ndarray]:
        """The gradients of an output by inputs, with a cotangent of ones unless one is given.

        Raises:
            UserError: the network has no such gradient.
        """
        if cotangent is None:
            cotangent = np.ones(np.shape(self.values[output]))
        net = self._fresh()
        net.inference_and_backprop(self.fed, loss=output, outputs=[output], wrt=names, cotangent=cotangent)
        found = net.fetch_tensors([f"grad/{name}" for name in names])
        return dict(zip(names, found, strict=True))

    def gradients_or_refusals(
        self, output: str, cotangent: np.ndarray, names: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        """The gradients that the network has, and for the others what it says."""
        if not names:
            return {}, {}
        try:
            return self.gradients(output, cotangent, names), {}
        except UserError as error:
            if len(names) == 1:
                return {}, {names[0]: str(error)}
        found: dict[str, np.ndarray] = {}
        refused: dict[str, str] = {}
        for name in names:
            one, text = self.gradients_or_refusals(output, cotangent, [name])
            found |= one
            refused |= text
        return found, refused


def formal_names(case: Case) -> dict[str, str]:
    """For each input of a case's model its name in the operator's definition ("" where it has none).

    An expanded case has the inputs of the case that it expands.
    """
    names = dict.fromkeys(case.model().graph.inputs, "")
    if case.expanded:
        (case,) = cases(case.suite, names=[case.unexpanded])
    operations = case.model().graph.operations
    about = [op for op in operations if operator_name(op.domain, op.op_type) == case.operator]
    if len(about) != 1:
        return names
    (op,) = about
    formals = op.signature.inputs
    for position, name in enumerate(op.operands):
        if name in names:
            names[name] = formals[min(position, len(formals) - 1)].name
    return names


def _is_float(value: Value) -> bool:
    return isinstance(value, np.ndarray) and is_floating(value.dtype) and value.dtype.kind != "c"


def _as_declared(value: Value, declared: Any) -> Value:
    """``value`` with floating-point tensors in the dtype that the network in float64 declares."""
    if isinstance(value, list):
        return [_as_declared(item, getattr(declared, "element", None)) for item in value]
    if isinstance(declared, OptionalType):
        return _as_declared(value, declared.element)
    dtype = getattr(declared, "dtype", None)
    if _is_float(value) and (dtype is None or is_floating(dtype)):
        return value.astype(np.float64 if dtype is None else dtype)
    return value


def _check(
    backend: str, output: str, wrt: str, result: str, error: float | None, message: str
) -> GradientCheck:
    return GradientCheck("", "", backend, output, wrt, "", result, error, message)


def _of_case(check: GradientCheck, case: Case, formal: str) -> GradientCheck:
    return replace(check, case=case.name, operator=case.operator, formal=formal)


def _refusal(
    case: Case, backend: str, output: str, wrt: str, formal: str, result: str, message: str
) -> GradientCheck:
    return GradientCheck(case.name, case.operator, backend, output, wrt, formal, result, None, message)
