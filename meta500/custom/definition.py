"""Defining an operator: one decorator over a Python function or over the declaration of a C++ one.

The decorated name becomes a class of operations, for ``Builder.add`` and the parser, whose class methods add
what else the operator has: ``backward``, ``shape``, ``torch`` and ``onnx``.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from meta500.backends.rules import Call, Rule, RuleTable, when_loaded
from meta500.custom.function_body import function_body
from meta500.custom.inference import InputRule, check_inputs, input_names, onnx_schema, output_types
from meta500.custom.library import Library
from meta500.custom.signature import check_input_names, read_signature, same_parameters
from meta500.custom.user_code import read_only, user_code
from meta500.errors import UserError
from meta500.graph.custom import custom_operation, custom_operations
from meta500.graph.operation import Operation, Signature
from meta500.graph.operators import OPSETS
from meta500.graph.types import TensorType, is_floating


@dataclass
class Definition:
    """All that is known about a custom operator.

    ``function`` is the decorated function: the numpy forward, or, beside a C++ ``library``, a reference (it
    returns None if it only declares the parameters). ``like`` gives per output the input whose type it has
    ("" for none), ``inputs`` what inputs may be; ``shape`` is the shape function. ``rules`` are those of the
    backends, None before the backend is imported; ``examples`` the example functions.
    """

    op_type: str
    domain: str
    doc: str
    function: Callable[..., Any]
    signature: Signature
    like: dict[str, str]
    inputs: dict[str, InputRule]
    library: Library | None = None
    shape: Callable[..., Any] | None = None
    rules: dict[str, Rule | None] = field(default_factory=dict)
    examples: list[Callable[[np.random.Generator], Mapping[str, Any]]] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Domain and operator, for messages."""
        return f"{self.domain}.{self.op_type}"


class CustomOperator(Operation):
    """The base of the classes that :func:`operator` makes; ``schema`` is what ``onnx`` has to know of it."""

    definition: ClassVar[Definition]
    schema: ClassVar[Any]

    @classmethod
    def backward(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the numpy gradient, ``function(call, *d_outputs) -> d_inputs``.

        ``call`` has ``inputs``, ``outputs``, ``attributes``, ``needs`` (per input, whether its gradient is
        wanted) and ``saved``. There is one cotangent per output, zeros where the loss does not depend on it.
        Returned is one array of exactly the input's shape and dtype per input, or None for an input without
        a gradient.

        Raises:
            UserError: the operator has a backward already, or the function takes other parameters.
        """
        definition = cls.definition
        rule = definition.rules["numpy"]
        assert rule is not None
        if definition.library is not None:
            raise UserError(f"{definition.label}: its backward is written in {definition.library.source}")
        if rule.backward is not None:
            raise UserError(f"{definition.label}: its backward is defined twice")
        count = 1 + len(definition.signature.outputs)
        try:
            inspect.signature(function).bind(*range(count))
        except TypeError:
            outputs = ", ".join(f"d_{formal.name}" for formal in definition.signature.outputs)
            raise UserError(f"{definition.label}: its backward must take (call, {outputs})") from None
        rule.vjp(functools.partial(_checked_backward, definition, function))
        return function

    @classmethod
    def shape(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: types of the outputs from those of the inputs, ``function(*inputs, *, attributes)``.

        Inputs are :class:`meta500.graph.TensorType` (None where one is missing) whose dimensions are ints, or
        names and None while a network is built; returned is a TensorType per output (None: unknown).

        Raises:
            UserError: the operator has its shapes from elsewhere, or the function takes other parameters.
        """
        definition = cls.definition
        if definition.shape is not None or any(definition.like.values()):
            raise UserError(f"{definition.label}: the types of its outputs are given twice")
        same_parameters(definition.label, function, definition.signature, inputs=True)
        definition.shape = function
        return function

    @classmethod
    def torch(cls, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the operator on torch tensors, made of differentiable torch functions.

        Without it a Python operator runs on the host by its numpy function, and ``coverage()`` says so.

        Raises:
            UserError: the operator has a torch function already, or this one takes other parameters.
        """
        definition = cls.definition
        if "torch" in definition.rules:
            raise UserError(f"{definition.label}: its torch function is defined twice")
        same_parameters(definition.label, function, definition.signature, inputs=True)
        _register(cls, "torch", lambda: Rule(function))
        return function

    @classmethod
    def example(
        cls, function: Callable[[np.random.Generator], Mapping[str, Any]]
    ) -> Callable[[np.random.Generator], Mapping[str, Any]]:
        """Decorator: an example for ``meta500 operators --custom``, ``function(rng) -> {name: value}``.

        It gives the inputs, as arrays, and attributes by name; an operator may have several.
        """
        cls.definition.examples.append(function)
        return function

    @classmethod
    def onnx(cls, text: str | Callable[..., str]) -> str | Callable[..., str]:
        """The operator as ONNX nodes, written into files so that they run in any ONNX runtime.

        ``text`` is the body of a function in ONNX's text form ("s = Sigmoid (x)  y = Mul (x, s)"), or a
        decorated function from the attributes to that text.

        Raises:
            UserError: the operator has a body already, or the text is not understood.
        """
        definition = cls.definition
        if "body" in cls.__dict__:
            raise UserError(f"{definition.label}: its ONNX function is defined twice")
        if callable(text):
            same_parameters(definition.label, text, definition.signature, inputs=False)
        else:
            function_body(definition, text, {}, 21)
        cls.body = staticmethod(  # type: ignore[attr-defined]
            lambda op, opset: function_body(definition, text, op.attributes, opset)
        )
        return text


def operator(
    domain: str,
    *,
    outputs: str | Sequence[str] | Mapping[str, str],
    dtypes: Sequence[Any] | Mapping[str, Sequence[Any]] = (),
    ranks: Mapping[str, int] | None = None,
    source: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    replace: bool = False,
) -> Callable[[Callable[..., Any]], type[CustomOperator]]:
    """Decorator that makes an operator, named like the function, in ``domain``.

    The function's positional parameters are the inputs (``b=None``: optional, ``*xs``: variadic), its
    keyword-only ones the attributes with types and defaults. It gets numpy arrays and returns one, or a tuple
    for several outputs.

    Args:
        domain: an own name such as "my.ops".
        outputs: names, as "y z"; or a mapping from each to the input whose type it has, as {"y": "x"}. Types
            of other outputs are given by ``.shape`` or the C++ file.
        dtypes: allowed for all inputs, or by name of the input; empty for any.
        ranks: required ranks, by name of the input.
        source: a C++ file with the functions ``NAME_forward`` and ``NAME_backward`` (see ``meta500.h``),
            compiled when the operator first runs; relative to the file of the decorated function, which then
            only declares the parameters, or is a reference for :func:`meta500.check_operator`.
        flags: further options of the compiler.
        replace: take the place of an operator that is already defined, instead of refusing.

    Raises:
        UserError: the operator is defined already, or a name, type or default is not understood.
    """

    def define(function: Callable[..., Any]) -> type[CustomOperator]:
        op_type = function.__name__
        label = f"{domain}.{op_type}"
        if not domain or domain in OPSETS or domain in ("ai.onnx", "meta500"):
            raise UserError(
                f"{label}: the domain '{domain}' is taken; choose a name of your own, as 'my.ops'"
            )
        like = dict(outputs) if isinstance(outputs, Mapping) else dict.fromkeys(_split(outputs), "")
        signature = read_signature(label, function, list(like))
        check_input_names(label, "outputs", dict.fromkeys(name for name in like.values() if name), signature)
        inputs = _input_rules(label, signature, dtypes, ranks or {})
        if (domain, op_type) in custom_operations():
            if not replace:
                raise UserError(f"{label} is defined already; say replace=True to define it anew")
            remove(domain, op_type)
        definition = Definition(
            op_type, domain, inspect.getdoc(function) or "", function, signature, like, inputs
        )
        if source is not None:
            folder = Path(inspect.getsourcefile(function) or ".").parent
            definition.library = Library(label, folder / source, signature, tuple(flags))
        return _make(definition)

    return define


def remove(domain: str, op_type: str) -> None:
    """Forget a custom operator, so that its name is free again.

    Raises:
        UserError: no operator of this name was defined with :func:`operator`.
    """
    cls = custom_operations().get((domain, op_type))
    if cls is None or not issubclass(cls, CustomOperator):
        known = [c.definition.label for c in custom_operations().values() if issubclass(c, CustomOperator)]
        raise UserError(
            f"there is no custom operator {domain}.{op_type}; defined are {', '.join(known) or 'none'}"
        )
    del custom_operations()[domain, op_type]
    for backend, rule in cls.definition.rules.items():
        if rule is not None:
            when_loaded(backend, lambda table: table.remove(domain, op_type))


def _make(definition: Definition) -> type[CustomOperator]:
    function = definition.function
    cls: type[CustomOperator] = type(
        definition.op_type,
        (CustomOperator,),
        {
            "__doc__": definition.doc,
            "__module__": function.__module__,
            "__qualname__": function.__qualname__,
            "domain": definition.domain,
            "op_type": definition.op_type,
            "signatures": (definition.signature,),
            "definition": definition,
            "schema": onnx_schema(definition),
        },
    )
    custom_operation(cls)
    library = definition.library
    if library is None:
        forward = functools.partial(_checked_forward, definition)
    else:
        forward = functools.partial(_library_forward, definition, library)
    rule = Rule(functools.update_wrapper(forward, function))
    _register(cls, "numpy", lambda: rule)
    definition.rules["numpy"] = rule
    if library is not None:
        rule.vjp(library.backward)
        _register(cls, "torch", lambda: _torch_rule(definition, library))
    return cls


def _torch_rule(definition: Definition, library: Library) -> Rule:
    from meta500.custom.torch_function import torch_rule

    rule = Rule(torch_rule(definition, library))
    rule.note = "C++ on the host; tensors of other devices are copied there and back"
    return rule


def _register(cls: type[CustomOperator], backend: str, make: Callable[[], Rule]) -> None:
    """Add a rule to those of a backend, when that is imported; defining an operator does not import it."""
    definition = cls.definition

    def add(table: RuleTable) -> None:
        if custom_operations().get((definition.domain, definition.op_type)) is cls:  # not removed meanwhile
            rule = make()
            definition.rules[backend] = table.rule(definition.op_type, domain=definition.domain)(rule)

    definition.rules[backend] = None
    when_loaded(backend, add)


def _split(names: str | Sequence[str]) -> list[str]:
    return names.split() if isinstance(names, str) else list(names)


def _input_rules(
    label: str,
    signature: Signature,
    dtypes: Sequence[Any] | Mapping[str, Sequence[Any]],
    ranks: Mapping[str, int],
) -> dict[str, InputRule]:
    by_name = dict(dtypes) if isinstance(dtypes, Mapping) else {f.name: dtypes for f in signature.inputs}
    check_input_names(label, "dtypes", by_name, signature)
    check_input_names(label, "ranks", ranks, signature)
    found = {}
    for formal in signature.inputs:
        allowed = by_name.get(formal.name, ())
        try:
            known = tuple(np.dtype(d) for d in ([allowed] if isinstance(allowed, str) else allowed))
        except TypeError:
            raise UserError(f"{label}: dtypes of '{formal.name}': {allowed!r} are no numpy dtypes") from None
        found[formal.name] = InputRule(known, ranks.get(formal.name))
    return found


def _attributes(definition: Definition, keywords: Mapping[str, Any]) -> dict[str, Any]:
    return {name: keywords.get(name) for name in definition.signature.attributes}


def _types(
    definition: Definition, inputs: Sequence[Any], keywords: Mapping[str, Any]
) -> tuple[TensorType | None, ...]:
    given = [None if a is None else TensorType(a.dtype, tuple(a.shape)) for a in inputs]
    return output_types(definition, given, _attributes(definition, keywords))


def _library_forward(
    definition: Definition, library: Library, *inputs: Any, **keywords: Any
) -> tuple[np.ndarray, ...]:
    arrays = [None if a is None else np.asarray(a) for a in inputs]
    types = _types(definition, arrays, keywords)
    return library.forward(arrays, types, _attributes(definition, keywords))


def _own(array: np.ndarray) -> np.ndarray:
    """``array``, copied if it is (a part of) an input, which is read-only."""
    return array if array.flags.writeable else array.copy()


def _checked_forward(definition: Definition, *inputs: Any, **keywords: Any) -> tuple[np.ndarray, ...]:
    """The user's numpy function, with its inputs and results checked."""
    arrays = [None if a is None else np.asarray(a) for a in inputs]
    check_inputs(definition, arrays)
    expected = _types(definition, arrays, keywords)
    with user_code(definition.label, definition.function):
        found = definition.function(*map(read_only, arrays), **keywords)
    results = tuple(_own(np.asarray(a)) for a in (found if isinstance(found, tuple | list) else (found,)))
    outputs = definition.signature.outputs
    if len(results) != len(outputs):
        raise UserError(f"{definition.label} returns {len(results)} arrays for {len(outputs)} outputs")
    for formal, array, wanted in zip(outputs, results, expected, strict=True):
        got = TensorType(array.dtype, array.shape)
        if wanted is not None and (wanted.dtype, wanted.shape) != (got.dtype, got.shape):
            raise UserError(f"output '{formal.name}' of {definition.label} is {got}, declared is {wanted}")
    return results


def _checked_backward(
    definition: Definition, function: Callable[..., Any], call: Call, *cotangents: Any
) -> tuple[Any, ...]:
    """The user's backward, with zeros for missing cotangents and its results checked."""
    given = [
        np.zeros_like(output) if cotangent is None else np.asarray(cotangent)
        for cotangent, output in zip(cotangents, call.outputs, strict=False)
    ]
    given += [np.zeros_like(output) for output in call.outputs[len(given) :]]
    seen = replace(
        call, inputs=tuple(map(read_only, call.inputs)), outputs=tuple(map(read_only, call.outputs))
    )
    with user_code(f"the backward of {definition.label}", function):
        found = function(seen, *map(read_only, given))
    gradients = list(found) if isinstance(found, tuple | list) else [found]
    count = len(call.inputs)
    if len(gradients) < count or any(g is not None for g in gradients[count:]):
        raise UserError(
            f"the backward of {definition.label} returns {len(gradients)} gradients for {count} inputs"
        )
    names = input_names(definition.signature, count)
    checked: list[np.ndarray | None] = []
    for name, value, gradient in zip(names, call.inputs, gradients, strict=False):
        if gradient is None or value is None or not is_floating(np.asarray(value).dtype):
            checked.append(None)
            continue
        array, wanted = np.asarray(gradient), np.asarray(value)
        if (array.dtype, array.shape) != (wanted.dtype, wanted.shape):
            raise UserError(
                f"the backward of {definition.label} gives {array.dtype}{list(array.shape)} as the gradient "
                f"of '{name}', which is {wanted.dtype}{list(wanted.shape)}"
            )
        checked.append(_own(array))
    return tuple(checked)
