"""The base of all operation classes: typed fields over the schema versions of one operator.

The classes in :mod:`meta500.graph.operators` are generated from the ONNX schemas; custom operations are
written the same way by hand. A field is an input or output (the name of a value, ``""`` when an optional one
is absent, a tuple of names when it is variadic) or an attribute. Which fields count is decided by the
``since_version`` of the instance: an operator whose signature changed keeps one class, and a name that
moved from attribute to input (``Squeeze.axes``) is one field that holds either form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meta500.errors import UserError

INPUT, OUTPUT, ATTRIBUTE = "input", "output", "attribute"

KINDS = {
    "FLOAT": "float",
    "INT": "int",
    "STRING": "str",
    "TENSOR": "tensor",
    "GRAPH": "graph",
    "SPARSE_TENSOR": "sparse tensor",
    "TYPE_PROTO": "type",
}


@dataclass(frozen=True)
class Formal:
    """One input or output of a signature, under its field name."""

    name: str
    optional: bool = False
    variadic: bool = False


@dataclass(frozen=True)
class Attribute:
    """One attribute of a signature; ``kind`` is the ONNX attribute type ("INT", "FLOATS", "GRAPH", ...)."""

    name: str
    kind: str
    required: bool = False
    default: Any = None


@dataclass(frozen=True)
class AttributeReference:
    """The value of an attribute inside a model-local function: the caller's attribute ``name``."""

    name: str


class Signature:
    """Inputs, outputs and attributes of one schema version.

    Inputs and outputs are given in short form: ``"X"`` required, ``"B?"`` optional, ``"inputs*"`` variadic;
    ``minimum`` is the least number of inputs.
    """

    __slots__ = ("attributes", "deprecated", "inputs", "minimum", "outputs", "since")

    def __init__(
        self,
        since: int,
        inputs: str,
        outputs: str,
        attributes: Iterable[Attribute] = (),
        minimum: int = 0,
        deprecated: bool = False,
    ) -> None:
        self.since = since
        self.inputs = tuple(_formal(text) for text in inputs.split())
        self.outputs = tuple(_formal(text) for text in outputs.split())
        self.attributes = {a.name: a for a in attributes}
        self.minimum = minimum
        self.deprecated = deprecated


def _formal(text: str) -> Formal:
    return Formal(text.rstrip("?*"), optional=text.endswith("?"), variadic=text.endswith("*"))


class Operation:
    """One node of a graph.

    Every operation has, beside the fields of its operator: ``name`` (of the node), ``since_version`` (which
    version of the operator's definition holds), ``doc_string``, ``metadata`` (the node's metadata_props),
    ``overload`` and ``device_configurations`` (as the file has them). ``opset`` may be given instead of
    ``since_version``: the version in force at that opset.

    Raises:
        UserError: an unknown field, a field that this version of the operator does not have, a missing
            required one, or an attribute of the wrong type.
    """

    domain: ClassVar[str] = ""
    op_type: ClassVar[str] = ""
    signatures: ClassVar[tuple[Signature, ...]] = ()
    fields: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        fields: dict[str, None] = {}
        for part in ("inputs", "outputs"):
            for signature in reversed(cls.signatures):
                fields.update((formal.name, None) for formal in getattr(signature, part))
        for signature in reversed(cls.signatures):
            fields.update((name, None) for name in signature.attributes)
        cls.fields = tuple(fields)

    def __init__(
        self,
        *args: Any,
        name: str = "",
        opset: int | None = None,
        since_version: int | None = None,
        doc_string: str = "",
        metadata: Mapping[str, str] | None = None,
        overload: str = "",
        device_configurations: tuple[bytes, ...] = (),
        **values: Any,
    ) -> None:
        self.name = name
        self.doc_string = doc_string
        self.metadata: dict[str, str] = dict(metadata or {})
        self.overload = overload
        self.device_configurations = device_configurations
        self.signature = self.signature_at(opset, since_version)
        if len(args) > len(self.fields):
            raise UserError(f"{self.label}: {len(args)} positional values for {len(self.fields)} fields")
        for field, value in zip(self.fields, args, strict=False):
            if field in values:
                raise UserError(f"{self.label}: field '{field}' is given twice")
            values[field] = value
        self._set_fields(values)

    @classmethod
    def signature_at(cls, opset: int | None = None, since_version: int | None = None) -> Signature:
        """The signature in force at ``opset``, or exactly ``since_version``; the newest without either."""
        if since_version is not None:
            for signature in cls.signatures:
                if signature.since == since_version:
                    return signature
            known = ", ".join(str(s.since) for s in cls.signatures)
            raise UserError(f"{cls.op_type} has no version {since_version}; its versions are {known}")
        if opset is None:
            return cls.signatures[-1]
        found = [s for s in cls.signatures if s.since <= opset]
        if not found:
            raise UserError(
                f"{cls.op_type} does not exist in opset {opset} of {cls.domain or 'ai.onnx'}; "
                f"it begins with opset {cls.signatures[0].since}"
            )
        return found[-1]

    def _set_fields(self, values: dict[str, Any]) -> None:
        signature = self.signature
        for formal in (*signature.inputs, *signature.outputs):
            given = values.pop(formal.name, None)
            if formal.variadic:
                given = (given,) if isinstance(given, str) else tuple(given or ())
                if not all(isinstance(item, str) for item in given):
                    raise UserError(f"{self.label}: '{formal.name}' takes names of values, got {given!r}")
            elif given is None:
                given = ""
            elif not isinstance(given, str):
                raise UserError(
                    f"{self.label}: '{formal.name}' is an input or output in version "
                    f"{signature.since} and takes the name of a value, got {given!r}"
                )
            setattr(self, formal.name, given)
        for attribute in signature.attributes.values():
            given = values.pop(attribute.name, None)
            if given is None:
                given = attribute.default
            elif not isinstance(given, AttributeReference):
                given = _checked(self, attribute, given)
            setattr(self, attribute.name, given)
        for field, given in values.items():
            if _is_set(given):
                raise UserError(
                    f"{self.label}: version {signature.since} of {self.op_type} has no '{field}'; "
                    f"it has {', '.join(self._names()) or 'no fields'}"
                )
        for field in self.fields:
            if field not in self.__dict__:
                setattr(self, field, None)

    def _names(self) -> list[str]:
        signature = self.signature
        return [f.name for f in (*signature.inputs, *signature.outputs)] + list(signature.attributes)

    @property
    def label(self) -> str:
        """Name and operator, for messages."""
        return f"node '{self.name}' ({self.op_type})" if self.name else f"node {self.op_type}"

    @property
    def since_version(self) -> int:
        """Version of the operator's definition that holds for this node."""
        return self.signature.since

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the input values in ONNX order; ``""`` where an optional one is missing in between."""
        return self._values(self.signature.inputs)

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the output values in ONNX order; ``""`` where an optional one is missing in between."""
        return self._values(self.signature.outputs)

    def _values(self, formals: tuple[Formal, ...]) -> tuple[str, ...]:
        names: list[str] = []
        for formal in formals:
            value = getattr(self, formal.name)
            if formal.variadic:
                names.extend(value)
            else:
                names.append(value)
        while names and not names[-1]:
            names.pop()
        return tuple(names)

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that have a value, defaults included."""
        values = {name: getattr(self, name) for name in self.signature.attributes}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def subgraphs(self) -> dict[str, Any]:
        """Graph-valued attributes, by name (lists as ``name[i]``)."""
        found: dict[str, Any] = {}
        for name, value in self.attributes.items():
            if isinstance(value, AttributeReference):
                continue
            kind = self.attribute_kind(name)
            if kind == "GRAPH":
                found[name] = value
            elif kind == "GRAPHS":
                found.update({f"{name}[{i}]": graph for i, graph in enumerate(value)})
        return found

    def attribute_kind(self, name: str) -> str:
        """ONNX type of an attribute, as in ``AttributeProto.AttributeType``."""
        return self.signature.attributes[name].kind

    def replace(self, **changes: Any) -> Operation:
        """A copy with other values in some fields (``name`` and ``since_version`` included)."""
        values = {name: getattr(self, name) for name in self._names()}
        values.update(
            name=self.name,
            since_version=self.since_version,
            doc_string=self.doc_string,
            metadata=self.metadata,
            overload=self.overload,
            device_configurations=self.device_configurations,
        )
        values.update(changes)
        return type(self)(**values)

    def renamed(self, names: Mapping[str, str]) -> Operation:
        """A copy whose inputs and outputs are renamed by ``names``."""
        changes: dict[str, Any] = {}
        for formal in (*self.signature.inputs, *self.signature.outputs):
            value = getattr(self, formal.name)
            if formal.variadic:
                changes[formal.name] = tuple(names.get(item, item) for item in value)
            else:
                changes[formal.name] = names.get(value, value)
        return self.replace(**changes)

    def validate(self) -> None:
        """Check that required inputs and attributes are there.

        Raises:
            UserError: names the node and what is missing.
        """
        signature = self.signature
        for formal in signature.inputs:
            value = getattr(self, formal.name)
            if not formal.optional and not formal.variadic and not value:
                raise UserError(f"{self.label}: input '{formal.name}' is required")
        if len(self.operands) < signature.minimum:
            raise UserError(
                f"{self.label}: {len(self.operands)} inputs, at least {signature.minimum} are required"
            )
        for attribute in signature.attributes.values():
            if attribute.required and getattr(self, attribute.name) is None:
                raise UserError(f"{self.label}: attribute '{attribute.name}' ({attribute.kind}) is required")

    def accept(self, visitor: Any, network: Any) -> Any:
        """Call ``visitor.visit_<operator>(self, network)``."""
        method = getattr(visitor, visit_method(self.op_type), None)
        return (method or visitor.visit_operation)(self, network)

    def __repr__(self) -> str:
        parts = [f"{name}={getattr(self, name)!r}" for name in self._names() if _is_set(getattr(self, name))]
        label = f"{self.name!r}, " if self.name else ""
        return f"{type(self).__name__}[{self.since_version}]({label}{', '.join(parts)})"


class FunctionCall(Operation):
    """A call of a model-local function: operands, results and attributes without a schema.

    ``attributes`` maps names to (ONNX attribute type, value).
    """

    def __init__(
        self,
        domain: str,
        op_type: str,
        operands: Iterable[str],
        results: Iterable[str],
        attributes: Mapping[str, tuple[str, Any]] | None = None,
        **common: Any,
    ) -> None:
        super().__init__(**common)
        self.domain, self.op_type = domain, op_type  # type: ignore[misc]
        self._operands, self._results = tuple(operands), tuple(results)
        self._attributes = dict(attributes or {})
        specifications = [Attribute(name, kind) for name, (kind, _) in self._attributes.items()]
        self.signature = Signature(1, "operands*", "results*", specifications)

    @classmethod
    def signature_at(cls, opset: int | None = None, since_version: int | None = None) -> Signature:
        """Functions have one version."""
        return Signature(1, "", "")

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the arguments."""
        return self._operands

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the outputs."""
        return self._results

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes that the call gives."""
        return {name: value for name, (_, value) in self._attributes.items()}

    def replace(self, **changes: Any) -> Operation:
        """A copy with other ``operands``, ``results``, ``attributes`` or common fields."""
        given = {
            "operands": self.operands,
            "results": self.results,
            "attributes": self._attributes,
            "name": self.name,
            "doc_string": self.doc_string,
            "metadata": self.metadata,
            "overload": self.overload,
            "device_configurations": self.device_configurations,
            **changes,
        }
        return FunctionCall(self.domain, self.op_type, **given)

    def renamed(self, names: Mapping[str, str]) -> Operation:
        """A copy whose operands and results are renamed by ``names``."""
        return self.replace(
            operands=[names.get(name, name) for name in self.operands],
            results=[names.get(name, name) for name in self.results],
        )

    def with_defaults(self, defaults: Mapping[str, tuple[str, Any]]) -> Operation:
        """A copy with the attributes of ``defaults`` (name to type and value) that the call does not give."""
        return self.replace(attributes={**defaults, **self._attributes})

    def validate(self) -> None:
        """Nothing is required: a function has no schema."""

    def __repr__(self) -> str:
        return f"{self.op_type}({self.name!r}, {self.operands}, {self.results}, {self.attributes})"


def visit_method(op_type: str) -> str:
    """Name of the visitor method of an operator: ``visit_`` and the operator in lower case."""
    return f"visit_{op_type.lower()}"


_PYTHON: dict[str, tuple[type, ...]] = {"INT": (int,), "FLOAT": (float, int), "STRING": (str, bytes)}


def _checked(op: Operation, attribute: Attribute, value: Any) -> Any:
    """``value`` in the normal form of its kind: tuples for lists, float for FLOAT."""
    scalar = attribute.kind.removesuffix("S") if attribute.kind != "TENSORS" else "TENSOR"
    if attribute.kind in ("INTS", "FLOATS", "STRINGS"):
        try:
            return tuple(_checked_scalar(op, attribute, scalar, item) for item in value)
        except TypeError:
            raise _wrong_type(op, attribute, value) from None
    if attribute.kind in _PYTHON:
        return _checked_scalar(op, attribute, attribute.kind, value)
    if attribute.kind == "TENSOR":
        return _frozen(value)
    return value


def _frozen(value: Any) -> np.ndarray:
    """A read-only array: the given one if it is read-only already, else a copy."""
    array = np.asarray(value)
    if array.flags.writeable:
        array = array.copy()
        array.flags.writeable = False
    return array


def _checked_scalar(op: Operation, attribute: Attribute, kind: str, value: Any) -> Any:
    import numbers

    if kind == "INT" and isinstance(value, numbers.Integral):
        return int(value)
    if kind == "FLOAT" and isinstance(value, numbers.Real):
        return float(value)
    if kind == "STRING" and isinstance(value, str | bytes):
        return value
    raise _wrong_type(op, attribute, value)


def _wrong_type(op: Operation, attribute: Attribute, value: Any) -> UserError:
    return UserError(f"{op.label}: attribute '{attribute.name}' must be {attribute.kind}, got {value!r}")


def _is_set(value: Any) -> bool:
    return value is not None and not (isinstance(value, str | tuple) and not value)
