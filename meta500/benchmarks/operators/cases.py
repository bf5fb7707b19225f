"""The cases of ONNX's backend suites: models with inputs and expected outputs, made when asked for."""

from __future__ import annotations

import difflib
import functools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meta500.errors import UserError, choose, nearest
from meta500.graph import Model, load

# An array, a list (sequence), None (empty optional) or a dict (map).
Value = Any
DataSet = tuple[dict[str, Value], dict[str, Value]]

_STORED = ("simple", "pytorch-operator", "pytorch-converted")
SUITES = ("node", *_STORED, "light", "light-random")

_EXPANDED = re.compile(r"_expanded(_ver\d+)?$")


@dataclass(frozen=True)
class Case:
    """One model of a suite with inputs and what they have to give.

    Attributes:
        name: without "test_".
        suite: one of :data:`SUITES`.
        operator: what the case is about, "Conv" or with its domain "ai.onnx.ml.Scaler"; an expanded case
            belongs to the operator that it expands; "" for networks.
        rtol, atol: what an expected number may be missed by, as in ``numpy.allclose``.
    """

    name: str
    suite: str
    operator: str
    rtol: float
    atol: float
    source: Callable[[], tuple[Any, list[DataSet]]] = field(repr=False, compare=False)

    def proto(self) -> Any:
        """The model as ``onnx.ModelProto``; shared, not to be changed."""
        return _read(self)[0]

    def model(self) -> Model:
        """The model; shared, not to be changed."""
        return _model(self)

    def data(self) -> list[DataSet]:
        """Inputs and expected outputs by name, for each of the case's data sets.

        Values are arrays (strings as dtype object), lists for sequences, None for empty optionals and dicts
        for maps. The suite "light-random" expects nothing: its outputs are compared between backends.
        """
        return _read(self)[1]

    @property
    def expanded(self) -> bool:
        """Whether the operator is written out as the function that defines it."""
        return _EXPANDED.search(self.name) is not None

    @property
    def unexpanded(self) -> str:
        """The name of the case that this one expands; its own name if it expands none."""
        return _EXPANDED.sub("", self.name)


def cases(
    suite: str = "node", operators: Sequence[str] | None = None, names: Sequence[str] | None = None
) -> list[Case]:
    """The cases of a suite, sorted by name.

    Args:
        suite: "node" (operators, 1,884 cases), "simple", "pytorch-operator", "pytorch-converted", "light"
            (nine networks as onnx ships them, their weights one constant) or "light-random" (the same
            networks with seeded random weights).
        operators: only cases about these.
        names: only these, with or without "test_".

    Raises:
        UserError: an unknown suite, operator or name; the message names the nearest.
    """
    found = _suite(choose("suite", suite, SUITES))
    if operators is not None:
        known = {case.operator for case in found.values()} - {""}
        if not known:
            raise UserError(f"the cases of suite '{suite}' are about no operator; choose them by name")
        for operator in operators:
            if operator not in known:
                raise _no_case(operator, suite, known)
        wanted = set(operators)
        found = {name: case for name, case in found.items() if case.operator in wanted}
    if names is not None:
        found = {name: found[name] for name in sorted({_known(name, suite, found) for name in names})}
    return list(found.values())


def operators(suite: str = "node") -> list[str]:
    """The operators that a suite has cases about, sorted.

    Raises:
        UserError: an unknown suite.
    """
    return sorted({case.operator for case in cases(suite)} - {""})


def operator_name(domain: str, op_type: str) -> str:
    """The name of an operator in results: "Conv", or "ai.onnx.ml.Scaler" outside the standard domain."""
    return f"{domain}.{op_type}" if domain not in ("", "ai.onnx") else op_type


def _no_case(operator: str, suite: str, known: set[str]) -> UserError:
    near = nearest(operator, known)
    hint = f". The nearest are: {', '.join(near)}" if near else ""
    option = "" if suite == "node" else f" --suite {suite}"
    return UserError(
        f"unknown operator '{operator}': none of the {len(known)} operators of suite '{suite}' has this name"
        f"{hint}. All of them: meta500 operators{option} --list"
    )


def _known(name: str, suite: str, found: dict[str, Case]) -> str:
    short = name.removeprefix("test_")
    if short in found:
        return short
    near = difflib.get_close_matches(short, found, n=8, cutoff=0.4) or list(found)[:8]
    raise UserError(
        f"unknown case '{name}' among {len(found)} of suite '{suite}'. The nearest are: {', '.join(near)}"
    )


@functools.cache
def _suite(suite: str) -> dict[str, Case]:
    if suite == "node":
        found = _node_cases()
    elif suite in _STORED:
        found = _stored_cases(suite)
    else:
        from meta500.benchmarks.operators.light import light_cases

        found = light_cases(random=suite == "light-random")
    return dict(sorted((case.name, case) for case in found))


def _node_cases() -> list[Case]:
    with quiet_generators():
        from onnx.backend.test.loader import load_model_tests

        tests = load_model_tests(kind="node")
    about = {
        test.name: operator_name(test.model.graph.node[0].domain, test.model.graph.node[0].op_type)
        for test in tests
        if not _EXPANDED.search(test.name)
    }
    return [
        Case(
            test.name.removeprefix("test_"),
            "node",
            about[_EXPANDED.sub("", test.name)],
            test.rtol,
            test.atol,
            functools.partial(_generated, test),
        )
        for test in tests
    ]


def _generated(test: Any) -> tuple[Any, list[DataSet]]:
    graph = test.model.graph
    sets = [(_named(graph.input, given), _named(graph.output, wanted)) for given, wanted in test.data_sets]
    return test.model, sets


def _stored_cases(suite: str) -> list[Case]:
    with quiet_generators():
        from onnx.backend.test.loader import load_model_tests

        tests = load_model_tests(kind=suite)
    found = []
    for test in tests:
        folder = Path(test.model_dir)
        source = functools.cache(functools.partial(_stored, folder))
        nodes = [n for n in source()[0].graph.node if n.op_type != "Constant"]
        operator = operator_name(nodes[0].domain, nodes[0].op_type) if len(nodes) == 1 else ""
        name = test.name.removeprefix("test_")
        found.append(Case(name, suite, operator, test.rtol, test.atol, source))
    return found


def _stored(folder: Path) -> tuple[Any, list[DataSet]]:
    import onnx

    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        given, wanted = (
            [
                read_value(data / f"{kind}_{index}.pb", values[index].type)
                for index in range(len(list(data.glob(f"{kind}_*.pb"))))
            ]
            for kind, values in (("input", model.graph.input), ("output", model.graph.output))
        )
        sets.append((_named(model.graph.input, given), _named(model.graph.output, wanted)))
    return model, sets


def read_value(path: Path, type_proto: Any) -> Value:
    """The value in a file of onnx's suites, of the kind that ``type_proto`` (``onnx.TypeProto``) says."""
    import onnx

    data = path.read_bytes()
    if type_proto.HasField("sequence_type"):
        return plain(onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
    if type_proto.HasField("optional_type"):
        return plain(onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
    if type_proto.HasField("map_type"):
        return plain(onnx.numpy_helper.to_dict(onnx.MapProto.FromString(data)))
    return plain(onnx.TensorProto.FromString(data))


def plain(value: Any) -> Value:
    """A value of onnx's suites as arrays, lists, dicts and None."""
    import onnx

    if value is None or isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, onnx.TensorProto):
        return np.asarray(onnx.numpy_helper.to_array(value))
    array = np.asarray(value)
    return array.astype(object) if array.dtype.kind in "US" else array


def _named(infos: Sequence[Any], values: Sequence[Any]) -> dict[str, Value]:
    return {info.name: plain(value) for info, value in zip(infos, values, strict=False)}


@functools.cache
def _read_kept(case: Case) -> tuple[Any, list[DataSet]]:
    return case.source()


@functools.cache
def _model_kept(case: Case) -> Model:
    return load(_read(case)[0])


@functools.lru_cache(maxsize=1)
def _read_large(case: Case) -> tuple[Any, list[DataSet]]:
    return case.source()


def _read(case: Case) -> tuple[Any, list[DataSet]]:
    return _read_large(case) if case.suite == "light-random" else _read_kept(case)


def _model(case: Case) -> Model:
    return load(_read(case)[0]) if case.suite == "light-random" else _model_kept(case)


@contextmanager
def quiet_generators() -> Iterator[None]:
    """The modules that make onnx's cases draw from numpy's global generator and warn when imported."""
    state = np.random.get_state()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            yield
    finally:
        np.random.set_state(state)
