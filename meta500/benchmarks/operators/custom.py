"""Level 0 checks of an operator of one's own: what ONNX's operators are tested for, from one example."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meta500.backends.network import network
from meta500.benchmarks.operators.cases import Case, operator_name
from meta500.benchmarks.operators.conformance import RIGHT, difference, outcome
from meta500.errors import UserError
from meta500.graph import Builder, Model, Operation, load, with_precision
from meta500.graph.types import TensorType, is_floating
from meta500.metrics.norms import tolerance

SUITE = "custom"
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"

Inputs = Mapping[str, Any] | Sequence[Any]


@dataclass(frozen=True)
class Check:
    """One question about an operator: what was asked, on which backend and dtype, and the answer.

    ``error`` is the largest error that was found (absolute for "forward", relative for "gradient"), or None.
    """

    name: str
    backend: str
    dtype: str
    result: str
    error: float | None = None
    message: str = ""

    def __str__(self) -> str:
        error = "" if self.error is None else f"{self.error:.2g}"
        text = (
            f"{self.result:7}  {self.name:13}  {self.backend:11}  {self.dtype:8}  {error:8}  {self.message}"
        )
        return text.rstrip()


@dataclass(frozen=True)
class OperatorReport:
    """The answers to all checks of an operator; ``str`` makes a table of them."""

    operator: str
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failures

    @property
    def failures(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.result == FAILED)

    def __str__(self) -> str:
        return "\n".join([self.operator, *map(str, self.checks)])


def check_operator(
    operator: type[Operation] | Model,
    inputs: Inputs,
    attributes: Mapping[str, Any] | None = None,
    *,
    reference: Callable[..., Any] | None = None,
    backends: Sequence[str] = ("numpy", "torch"),
    dtypes: Sequence[str] | None = None,
    gradients: bool = True,
    seed: int = 0,
    strict: bool = True,
) -> OperatorReport:
    """Check an operator on an example: values, gradients, types, memory layouts, empty tensors, files.

    Asked per backend and dtype: "forward" (values, dtype and shape against the reference, inputs unchanged),
    "repeat" (the same bits again; for C++ also that every element is written), "strided" (inputs that are
    not contiguous), "types" (outputs are as declared), "empty" (backends agree on tensors without
    elements), "file" (written and read again), "function" (its ONNX function under onnx.reference),
    "backward" (gradients have the inputs' types, inputs are unchanged), and in float64 "gradient" (central
    differences, and backends against each other).

    Args:
        operator: a class of operations, custom or ONNX's, or a model.
        inputs: arrays by name, or in order; floating-point ones are converted to each dtype.
        attributes: of the operator.
        reference: a function of the inputs as float64 arrays and the attributes, as the operator. By default
            the Python function beside a C++ operator if it computes anything, else numpy in float64.
        backends: to check, and to compare with each other.
        dtypes: by default float32 and float64, as far as the operator takes them.
        gradients: whether there must be a gradient by every floating-point input.
        seed: of directions and cotangents.
        strict: raise if a check fails.

    Raises:
        UserError: unsuitable inputs, or, if ``strict``, a check that fails; the message is the report.
    """
    example = _example(operator, inputs, dict(attributes or {}), reference)
    chosen = list(dtypes) if dtypes is not None else example.dtypes()
    checks: list[Check] = []
    for dtype in chosen:
        for ask in (_forward, _types, _repeat, _strided, _empty, _file, _function):
            checks += ask(example, dtype, backends)
        if gradients:
            checks += _backward(example, dtype, backends)
    if gradients:
        checks += _gradients(example, backends, seed)
    report = OperatorReport(example.name, tuple(checks))
    if strict and not report.passed:
        failed = "\n".join(map(str, report.failures))
        raise UserError(f"{report.operator} fails {len(report.failures)} of {len(checks)} checks:\n{failed}")
    return report


def custom_case(
    operator: type[Operation] | Model,
    inputs: Inputs,
    attributes: Mapping[str, Any] | None = None,
    *,
    reference: Callable[..., Any] | None = None,
    dtype: str = "float32",
) -> Case:
    """An example of an operator as a case of the suite "custom", for the other tools of Level 0.

    Args:
        operator, inputs, attributes, reference: as for :func:`check_operator`.
        dtype: of the floating-point inputs.

    Raises:
        UserError: unsuitable inputs.
    """
    return _case(_example(operator, inputs, dict(attributes or {}), reference), dtype)


def example_cases(
    paths: Sequence[str], operators: Sequence[str] = (), seed: int = 0, dtype: str = "float32"
) -> list[Case]:
    """The examples of the operators that Python files define, as cases.

    Args:
        paths: of the files; see :func:`meta500.load_operators`.
        operators: names of those wanted, "Swish" or "my.ops.Swish"; empty for all.
        seed: of the examples' random numbers.
        dtype: of floating-point inputs, where the operator takes it.

    Raises:
        UserError: an unknown operator, one without an example, or an example that fails or does not fit.
    """
    from meta500.custom import load_operators
    from meta500.custom.user_code import user_code

    defined = load_operators(*paths)
    known = {cls.definition.label: cls for cls in defined}
    for name in operators:
        if not any(name in (label, cls.op_type) for label, cls in known.items()):
            raise UserError(f"there is no operator '{name}' in {', '.join(paths)}; it has {', '.join(known)}")
    found = []
    for label, cls in known.items():
        definition = cls.definition
        if operators and label not in operators and cls.op_type not in operators:
            continue
        if not definition.examples:
            raise UserError(
                f"{label} has no example; write @{cls.op_type}.example above a function from a random "
                "generator to inputs and attributes by name"
            )
        for function in definition.examples:
            with user_code(f"the example of {label}", function):
                given = dict(function(np.random.default_rng(seed)))
            attributes = {n: v for n, v in given.items() if n in definition.signature.attributes}
            inputs = {n: v for n, v in given.items() if n not in attributes}
            example = _example(cls, inputs, attributes, None)
            taken = example.dtypes()
            found.append(_case(example, dtype if dtype in taken or not taken else taken[0]))
    return found


def compile_libraries(cases: Iterable[Case]) -> None:
    """Compile the C++ files of the operators of ``cases``, so that errors are known at once.

    Raises:
        UserError: as :meth:`meta500.custom.library.Library.compile`.
    """
    for case in cases:
        for op in case.model().graph.operations:
            library = getattr(getattr(type(op), "definition", None), "library", None)
            if library is not None:
                library.compile()


@dataclass(frozen=True)
class _Example:
    """An operator with inputs: what the checks are about."""

    name: str
    model_in: Callable[[str, Mapping[str, np.ndarray]], Model]
    inputs: dict[str, np.ndarray]
    attributes: dict[str, Any]
    cls: type[Operation] | None
    reference: Callable[..., Any] | None

    def model(self, dtype: str) -> Model:
        return self.model_in(dtype, self.fed(dtype))

    def fed(self, dtype: str) -> dict[str, np.ndarray]:
        return {n: a.astype(dtype) if is_floating(a.dtype) else a for n, a in self.inputs.items()}

    def dtypes(self) -> list[str]:
        """float32 and float64 as far as the operator takes them; the first that it does take otherwise."""
        definition = getattr(self.cls, "definition", None)
        names = ["float32", "float64"]
        if definition is None:
            return names
        for name, array in self.inputs.items():
            rule = definition.inputs.get(name)
            if rule is not None and rule.dtypes and is_floating(array.dtype):
                allowed = [d.name for d in rule.dtypes if is_floating(d)]
                names = [n for n in names if n in allowed] or allowed[:1]
        return names

    def expected(self, dtype: str) -> dict[str, np.ndarray]:
        """The outputs by the reference in float64, in the operator's own types."""
        model = self.model(dtype)
        types = [(name, value) for name, value in model.outputs.items() if isinstance(value, TensorType)]
        if self.reference is not None:
            wide = [a.astype(np.float64) for a in self.fed(dtype).values() if is_floating(a.dtype)]
            order = iter(wide)
            args = [next(order) if is_floating(a.dtype) else a for a in self.inputs.values()]
            found = self.reference(*args, **self.attributes)
            arrays = [np.asarray(a) for a in (found if isinstance(found, tuple | list) else (found,))]
            if len(arrays) != len(types):
                raise UserError(f"the reference gives {len(arrays)} arrays for {len(types)} outputs")
        else:
            try:
                fed = {
                    n: a.astype(np.float64) if is_floating(a.dtype) else a for n, a in self.fed(dtype).items()
                }
                with network(model, backend="numpy", precision="float64") as net:
                    results = net.inference(fed)
            except UserError:  # an operator that does not take float64
                with network(model, backend="numpy") as net:
                    results = net.inference(self.fed(dtype))
            arrays = [results[name] for name, _ in types]
        found = {}
        for (name, value), array in zip(types, arrays, strict=True):
            floating = is_floating(array.dtype)
            wanted = value.dtype if value.dtype is not None else np.dtype(dtype if floating else array.dtype)
            found[name] = array.astype(wanted)
        return found


def _example(
    operator: type[Operation] | Model,
    inputs: Inputs,
    attributes: dict[str, Any],
    reference: Callable[..., Any] | None,
) -> _Example:
    if isinstance(operator, Model):
        if attributes:
            raise UserError("the attributes of a model's operators stand in the model; give none")
        arrays = _named(list(operator.inputs), inputs)
        base = operator
        return _Example(base.name, lambda dtype, _: with_precision(base, dtype), arrays, {}, None, reference)
    if not (isinstance(operator, type) and issubclass(operator, Operation)):
        raise UserError(f"an operator is a class of operations or a Model, not {operator!r}")
    formals = operator.signatures[-1].inputs
    count = len(inputs)
    names = [f.name for f in formals if not f.variadic]
    names += [f"{f.name}_{i}" for f in formals if f.variadic for i in range(count - len(names))]
    arrays = _named(names, inputs)
    cls = operator
    if reference is None:
        reference = _python_reference(cls, arrays, attributes)
    name = operator_name(cls.domain, cls.op_type)
    return _Example(name, lambda _, fed: _model_of(cls, fed, attributes), arrays, attributes, cls, reference)


def _named(names: Sequence[str], inputs: Inputs) -> dict[str, np.ndarray]:
    if isinstance(inputs, Mapping):
        unknown = [name for name in inputs if name not in names]
        if unknown:
            raise UserError(f"inputs: there is no input '{unknown[0]}'; they are {', '.join(names)}")
        given = {name: inputs[name] for name in names if name in inputs}
    else:
        if isinstance(inputs, np.ndarray) or len(inputs) > len(names):
            raise UserError(f"inputs are a list of arrays, one for each of {', '.join(names)}")
        given = dict(zip(names, inputs, strict=False))
    return {name: np.asarray(value) for name, value in given.items() if value is not None}


def _python_reference(
    cls: type[Operation], arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any]
) -> Callable[..., Any] | None:
    """The Python function beside a C++ operator, if it computes anything."""
    definition = getattr(cls, "definition", None)
    if definition is None or definition.library is None:
        return None
    function: Callable[..., Any] = definition.function
    return function if function(*arrays.values(), **attributes) is not None else None


def _model_of(cls: type[Operation], fed: Mapping[str, np.ndarray], attributes: Mapping[str, Any]) -> Model:
    builder = Builder(cls.op_type)
    formals = cls.signatures[-1].inputs
    fields: dict[str, Any] = {}
    for name, array in fed.items():
        builder.input(name, array.dtype, array.shape)
    for formal in formals:
        if formal.variadic:
            fields[formal.name] = tuple(n for n in fed if n.startswith(f"{formal.name}_"))
        elif formal.name in fed:
            fields[formal.name] = formal.name
    outputs = [formal.name for formal in cls.signatures[-1].outputs]
    builder.add(cls, outputs=outputs, **fields, **attributes)
    for name in outputs:
        builder.output(name)
    return builder.build()


def _case(example: _Example, dtype: str) -> Case:
    model, fed = example.model(dtype), example.fed(dtype)
    expected = example.expected(dtype)
    floats = [a for a in expected.values() if is_floating(a.dtype)]
    terms = max(1, sum(a.size for a in fed.values()))
    rtol = max((tolerance(a.dtype, terms) for a in floats), default=0.0)
    sizes = [np.abs(a[np.isfinite(a)].astype(np.float64)) for a in floats]
    scale = max((math.sqrt(float(np.mean(s**2))) for s in sizes if s.size), default=0.0)
    proto = model.to_proto()
    # The readers of cases keep what they read by the case's name: another model needs another one.
    digest = hashlib.sha256(proto.SerializeToString())
    for name, array in {**fed, **expected}.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes())
    if example.cls is not None:
        defaults = [(a.name, str(a.default)) for a in example.cls.signatures[-1].attributes.values()]
        digest.update(repr(defaults).encode())
    name = f"{example.name}_{dtype}_{digest.hexdigest()[:10]}"
    return Case(name, SUITE, example.name, rtol, rtol * scale, lambda: (proto, [(fed, expected)]))


def _forward(example: _Example, dtype: str, backends: Sequence[str]) -> Iterator[Check]:
    case = _case(example, dtype)
    for backend in backends:
        found = outcome(case, backend)
        message = found.message if found.result == RIGHT else f"{found.result}: {found.message}"
        how = found.how if found.result == RIGHT and found.how != "native" else ""
        result = PASSED if found.result == RIGHT else FAILED
        yield Check("forward", backend, dtype, result, found.error, message or how)


def _types(example: _Example, dtype: str, backends: Sequence[str]) -> Iterator[Check]:
    """What running gives must be what shape inference says."""
    model = example.model(dtype)
    unknown = [n for n, v in model.outputs.items() if not isinstance(v, TensorType) or not v.static]
    for backend in backends:
        if unknown:
            text = f"the type of output '{unknown[0]}' is not inferred"
            yield Check("types", backend, dtype, SKIPPED, None, text)
            continue
        with _running(model, backend) as run:
            found = run(example.fed(dtype))
        message = found if isinstance(found, str) else ""
        for name, value in model.outputs.items():
            if not message and isinstance(value, TensorType):
                array = found[name]
                if (array.dtype, array.shape) != (value.dtype, value.shape):
                    message = f"output '{name}' is {array.dtype}{list(array.shape)}, inferred is {value}"
        yield _answer("types", backend, dtype, message)


def _repeat(example: _Example, dtype: str, backends: Sequence[str]) -> Iterator[Check]:
    from meta500.custom.library import outputs_filled_with

    model = example.model(dtype)
    for backend in backends:
        with _running(model, backend) as run:
            with outputs_filled_with(0x00):
                first = run(example.fed(dtype))
            with outputs_filled_with(0xFF):
                second = run(example.fed(dtype))
        yield _answer("repeat", backend, dtype, _unequal(second, first))


def _strided(example: _Example, dtype: str, backends: Sequence[str]) -> Iterator[Check]:
    case = _case(example, dtype)
    fed = example.fed(dtype)
    for backend in backends:
        with _running(example.model(dtype), backend) as run:
            found = run({name: _every_second(array) for name, array in fed.items()})
        message = _unequal(found, case.data()[0][1], case.rtol, case.atol)
        yield _answer("strided", backend, dtype, message)


def _empty(example: _Example, dtype: str, backends: Sequence[str]) -> Iterator[Check]:
    """Tensors whose first dimension has size 0: the backends agree, in numbers or in refusing."""
    fed = example.fed(dtype)
    size = next((a.shape[0] for a in fed.values() if a.ndim), None)
    if example.cls is None or size is None:
        return
    cut = {n: a[:0] if a.ndim and a.shape[0] == size else a for n, a in fed.items()}
    first: Any = None
    for index, backend in enumerate(backends):
        try:
            model = example.model_in(dtype, cut)
            with _running(model, backend) as run:
                found = run(cut)
        except UserError as error:
            found = str(error)
        if index == 0:
            first = found
        if isinstance(found, str) and isinstance(first, str):
            yield Check("empty", backend, dtype, PASSED, None, "refused")
        else:
            yield _answer("empty", backend, dtype, _unequal(found, first))


def _file(example: _Example, dtype: str, backends: Sequence[str]) -> Iterator[Check]:
    model = example.model(dtype)
    read = load(model.to_proto().SerializeToString())
    for backend in backends:
        with _running(model, backend) as run:
            first = run(example.fed(dtype))
        with _running(read, backend) as run:
            yield _answer("file", backend, dtype, _unequal(run(example.fed(dtype)), first))


def _function(example: _Example, dtype: str, _: Sequence[str]) -> Iterator[Check]:
    proto = example.model(dtype).to_proto()
    if not proto.functions:
        return
    from onnx.reference import ReferenceEvaluator

    case = _case(example, dtype)
    names = list(case.data()[0][1])
    try:
        found: Any = dict(zip(names, ReferenceEvaluator(proto).run(names, example.fed(dtype)), strict=True))
    except Exception as error:  # onnx.reference has no common error
        found = f"{type(error).__name__}: {error}"
    message = _unequal(found, case.data()[0][1], case.rtol, case.atol)
    yield _answer("function", "onnx", dtype, message)


def _backward(example: _Example, dtype: str, backends: Sequence[str]) -> Iterator[Check]:
    """Gradients have the types of their inputs, repeat, and leave the inputs alone."""
    model = example.model(dtype)
    names = [n for n, a in example.inputs.items() if is_floating(a.dtype)]
    losses = [n for n, v in model.outputs.items() if is_floating(getattr(v, "dtype", None))]
    for backend in backends:
        message = ""
        for loss in losses if names else ():
            fed = example.fed(dtype)
            try:
                with network(model, backend=backend) as net:
                    cotangent = np.ones_like(net.inference(fed, outputs=[loss])[loss])
                    given = []
                    for _ in range(2):
                        net.inference_and_backprop(
                            fed, loss=loss, outputs=[loss], wrt=names, cotangent=cotangent
                        )
                        found = net.fetch_tensors([f"grad/{n}" for n in names])
                        given.append(dict(zip(names, found, strict=True)))
            except UserError as error:
                message = message or str(error)
                continue
            except Exception as crash:  # whatever else comes out of an operator is a fault to be reported
                message = message or f"{type(crash).__name__}: {crash}"
                continue
            message = message or _unequal(given[1], given[0]) or _unequal(fed, example.fed(dtype))
            for name in names:
                got, wanted = given[0][name], fed[name]
                if (got.dtype, got.shape) != (wanted.dtype, wanted.shape):
                    text = f"{got.dtype}{list(got.shape)} for {wanted.dtype}{list(wanted.shape)}"
                    message = message or f"the gradient of '{name}' is {text}"
        yield _answer("backward", backend, dtype, message)


def _gradients(example: _Example, backends: Sequence[str], seed: int) -> Iterator[Check]:
    from meta500.benchmarks.operators.gradients import RIGHT, UNCHECKED, check_gradients

    names = [n for n, a in example.inputs.items() if is_floating(a.dtype)]
    if "float64" not in example.dtypes():
        yield Check("gradient", "", "float64", SKIPPED, None, "the operator does not take float64")
        return
    found = check_gradients(example.model("float64"), example.fed("float64"), names, backends, seed)
    for check in found:
        results = {RIGHT: PASSED, UNCHECKED: SKIPPED}
        result = results.get(check.result, FAILED)
        message = f"d {check.output} / d {check.wrt} {check.message}".strip()
        yield Check("gradient", check.backend, "float64", result, check.error, message)


class _running:
    """A context that gives a function from inputs to outputs, or to the text of what went wrong."""

    def __init__(self, model: Model, backend: str) -> None:
        self.model, self.backend = model, backend
        self.net: Any = None

    def __enter__(self) -> Callable[[Mapping[str, np.ndarray]], Any]:
        try:
            self.net = network(self.model, backend=self.backend)
        except UserError as error:
            text = str(error)
            return lambda _: text
        return self._run

    def _run(self, fed: Mapping[str, np.ndarray]) -> Any:
        try:
            return self.net.inference(fed)
        except UserError as error:
            return str(error)
        except Exception as crash:  # whatever else comes out of an operator is a fault to be reported
            return f"{type(crash).__name__}: {crash}"

    def __exit__(self, *_: object) -> None:
        if self.net is not None:
            self.net.close()


def _answer(name: str, backend: str, dtype: str, message: str) -> Check:
    return Check(name, backend, dtype, FAILED if message else PASSED, None, message)


def _unequal(found: Any, expected: Any, rtol: float = 0.0, atol: float = 0.0) -> str:
    """What is wrong with arrays by name; a text instead of them is what went wrong."""
    for value in (found, expected):
        if isinstance(value, str):
            return value
    for name, array in expected.items():
        message = difference(found[name], array, rtol, atol)[1]
        if message:
            return f"'{name}': {message}"
    return ""


def _every_second(array: np.ndarray) -> np.ndarray:
    """An array of the same contents that lies scattered in memory."""
    if not array.ndim:
        return array
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]
