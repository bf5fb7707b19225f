"""The generated classes: complete, up to date, and true to the schemas."""

from pathlib import Path

import onnx
import pytest

from meta500.errors import UnsupportedOperation, UserError
from meta500.graph import Visitor, generate, ops
from meta500.graph.operation import visit_method
from meta500.graph.operators import ONNX_VERSION, OPERATORS

FOLDER = Path(generate.__file__).parent


def test_committed_files_are_what_the_generator_writes():
    if onnx.__version__ != ONNX_VERSION:
        pytest.skip(f"generated from onnx {ONNX_VERSION}, installed is {onnx.__version__}")
    assert (FOLDER / "operators.py").read_text() == generate.operators_source()
    assert (FOLDER / "visitors.py").read_text() == generate.visitors_source()


def test_every_operator_and_version_has_its_signature():
    schemas = onnx.defs.get_all_schemas_with_history()
    assert {(s.domain, s.name) for s in schemas} == set(OPERATORS)
    for schema in schemas:
        signature = OPERATORS[schema.domain, schema.name].signature_at(since_version=schema.since_version)
        assert len(signature.inputs) == len(schema.inputs)
        assert len(signature.outputs) == len(schema.outputs)
        assert set(signature.attributes) == set(schema.attributes)
        for name, attribute in schema.attributes.items():
            ours = signature.attributes[name]
            assert (ours.kind, ours.required) == (attribute.type.name, attribute.required)
        names = [f.name for f in (*signature.inputs, *signature.outputs)] + list(signature.attributes)
        assert len(names) == len(set(names)), (schema.name, schema.since_version)


def test_the_visitor_has_one_refusing_method_per_operator():
    methods = set()
    for domain, op_type in OPERATORS:
        method = visit_method(op_type)
        assert method not in methods, f"{domain}.{op_type} shares {method}"
        methods.add(method)
        assert hasattr(Visitor, method)
    with pytest.raises(UnsupportedOperation, match=r"node 'r': operator ai\.onnx\.Relu \(version 14\)"):
        ops.Relu("x", name="r").accept(Visitor(), None)


def test_a_visitor_overrides_one_method():
    class Names(Visitor):
        def visit_relu(self, op, network):
            return f"relu of {op.X} into {network}"

    assert ops.Relu("x").accept(Names(), "n") == "relu of x into n"


def test_positional_fields_are_inputs_first():
    op = ops.Gemm("a", "b", "c", "y", alpha=2, transB=1)
    assert op.operands == ("a", "b", "c") and op.results == ("y",)
    assert op.alpha == 2.0 and isinstance(op.alpha, float) and op.beta == 1.0
    assert op.replace(beta=0.5).attributes == {"alpha": 2.0, "beta": 0.5, "transA": 0, "transB": 1}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.Relu("x", alpha=1.0), "has no 'alpha'; it has X, Y"),
        (lambda: ops.Squeeze("x", axes=(0,)), "'axes' is an input or output in version"),
        (lambda: ops.Conv("x", "w", strides=2), "'strides' must be INTS, got 2"),
        (lambda: ops.Conv("x", "w", strides=(1.5,)), "'strides' must be INTS"),
        (lambda: ops.Conv("x", "w", X="z"), "'X' is given twice"),
        (lambda: ops.Relu(3), "takes the name of a value, got 3"),
        (lambda: ops.Gelu("x", opset=11), "Gelu does not exist in opset 11"),
        (lambda: ops.Relu("x", since_version=2), "no version 2; its versions are 1, 6, 13, 14"),
    ],
)
def test_wrong_fields(make, message):
    with pytest.raises(UserError, match=message):
        make()
