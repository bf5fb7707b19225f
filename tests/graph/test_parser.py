"""From ONNX to the typed graph and back."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

from meta500.errors import UserError
from meta500.graph import Builder, FunctionCall, Graph, SequenceType, TensorType, load, ops


def graph_model(nodes, inputs=(), outputs=(), initializers=(), opset=21, **kwargs):
    graph = helper.make_graph(nodes, "g", list(inputs), list(outputs), list(initializers), **kwargs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def value(name, shape=("N",), dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, list(shape))


@pytest.fixture(scope="module")
def suite():
    cases = []
    for kind in ("node", "simple", "pytorch-operator", "pytorch-converted"):
        for case in load_model_tests(kind=kind):
            cases.append(case.model or onnx.load(f"{case.model_dir}/model.onnx"))
    assert len(cases) > 2000
    return cases


def strip(names):
    names = list(names)
    while names and not names[-1]:
        names.pop()
    return names


def comparable(value):
    """Tensors by contents, graphs by their nodes, everything else by its text."""
    if isinstance(value, TensorProto):
        array = numpy_helper.to_array(value)
        return array.dtype, array.astype(object).tolist()
    if isinstance(value, onnx.GraphProto):
        return [(n.op_type, list(n.input), list(n.output)) for n in value.node]
    return repr(value)


def attributes(node):
    return {a.name: helper.get_attribute_value(a) for a in node.attribute if not a.ref_attr_name}


def test_every_model_of_the_onnx_suite_round_trips(suite):
    for proto in suite:
        model = load(proto)
        written = model.to_proto()
        assert [(n.op_type, n.domain, strip(n.input), strip(n.output)) for n in written.graph.node] == [
            (n.op_type, "" if n.domain == "ai.onnx" else n.domain, strip(n.input), strip(n.output))
            for n in proto.graph.node
        ]
        assert list(written.graph.input) == list(proto.graph.input)
        assert list(written.graph.output) == list(proto.graph.output)
        assert {(i.domain, i.version) for i in written.opset_import} == {
            (i.domain, i.version) for i in proto.opset_import
        }
        assert len(written.functions) == len(proto.functions)
        try:
            onnx.checker.check_model(proto)
        except onnx.checker.ValidationError:
            continue
        onnx.checker.check_model(written)


def test_writing_what_was_read_is_stable(suite):
    for proto in suite[::7]:
        first = load(proto).to_proto()
        second = load(first.SerializeToString()).to_proto()
        assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)


def test_attributes_keep_their_meaning(suite):
    """An attribute that the writer leaves out equals the schema's default at the node's version."""
    for proto in suite[::3]:
        for before, after in zip(proto.graph.node, load(proto).to_proto().graph.node, strict=True):
            old, new = attributes(before), attributes(after)
            assert set(new) <= set(old)
            for name in old:
                if name in new:
                    assert comparable(old[name]) == comparable(new[name]), (before.op_type, name)
                    continue
                version = next(i.version for i in proto.opset_import if i.domain == before.domain)
                schema = onnx.defs.get_schema(before.op_type, version, before.domain)
                assert old[name] == helper.get_attribute_value(schema.attributes[name].default_value)


@pytest.mark.parametrize("element", sorted(TensorProto.DataType.values()))
def test_every_element_type(element):
    if element == TensorProto.UNDEFINED:
        pytest.skip("no values of an undefined type")
    if element == TensorProto.STRING:
        tensor = helper.make_tensor("c", element, [3], [b"a", b"", "ü".encode()])
    else:
        dtype = helper.tensor_dtype_to_np_dtype(element)
        tensor = numpy_helper.from_array(np.array([0, 1, 1, 0, 1], np.float32).astype(dtype), "c")
    tensor.name = "c"
    shape = list(tensor.dims)
    proto = graph_model(
        [helper.make_node("Identity", ["c"], ["y"])],
        outputs=[value("y", shape, element)],
        initializers=[tensor],
    )
    model = load(proto)
    array = model.graph.initializers["c"]
    assert list(array.shape) == shape and not array.flags.writeable
    again = load(model.to_proto()).graph.initializers["c"]
    assert again.dtype == array.dtype
    assert [str(v) for v in again] == [str(v) for v in array]
    assert model.to_proto().graph.output[0].type.tensor_type.elem_type == element


def test_fields_types_and_defaults():
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    proto = graph_model(
        [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1], name="c1")],
        [value("x", ("N", 3, None, 8))],
        [value("y", ("N", 4, None, 8))],
        [weight],
    )
    proto.metadata_props.add(key="author", value="someone")
    model = load(proto)
    conv = model.graph.operations[0]
    assert isinstance(conv, ops.Conv)
    assert (conv.X, conv.W, conv.B, conv.Y) == ("x", "w", "", "y")
    assert (
        conv.pads == (1, 1, 1, 1) and conv.group == 1 and conv.auto_pad == "NOTSET" and conv.strides is None
    )
    assert conv.since_version == 11
    assert model.inputs == {"x": TensorType(np.dtype("float32"), ("N", 3, None, 8))}
    assert model.metadata == {"author": "someone"}
    assert model.parameters == ("w",)
    assert model.to_proto().metadata_props[0].value == "someone"


def test_the_opset_decides_the_version_and_its_defaults():
    for opset, since, axis in ((11, 11, 1), (13, 13, -1)):
        proto = graph_model(
            [helper.make_node("Softmax", ["x"], ["y"])],
            [value("x", (2, 3, 4))],
            [value("y", (2, 3, 4))],
            opset=opset,
        )
        node = load(proto).graph.operations[0]
        assert (node.since_version, node.axis) == (since, axis)


def test_an_attribute_that_became_an_input():
    old = graph_model(
        [helper.make_node("Squeeze", ["x"], ["y"], axes=[0])], [value("x")], [value("y")], opset=11
    )
    assert load(old).graph.operations[0].axes == (0,)
    axes = numpy_helper.from_array(np.array([0]), "a")
    new = graph_model(
        [helper.make_node("Squeeze", ["x", "a"], ["y"])], [value("x")], [value("y")], [axes], opset=13
    )
    assert load(new).graph.operations[0].axes == "a"


def test_optional_and_variadic_inputs_and_outputs():
    bound = numpy_helper.from_array(np.float32(1), "hi")
    proto = graph_model(
        [
            helper.make_node("Clip", ["x", "", "hi"], ["c"]),
            helper.make_node("Split", ["c"], ["a", "b"], num_outputs=2),
            helper.make_node("Concat", ["a", "b", "a"], ["y"], axis=0),
        ],
        [value("x", (4,))],
        [value("y", (6,))],
        [bound],
    )
    clip, split, concat = load(proto).graph.operations
    assert (clip.input, clip.min, clip.max) == ("x", "", "hi") and clip.operands == ("x", "", "hi")
    assert split.outputs == ("a", "b") and concat.inputs == ("a", "b", "a")


def test_initializers_that_are_inputs_too():
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), "w")
    proto = graph_model(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        [value("x", (1, 2)), value("w", (2, 2))],
        [value("y", (1, 2))],
        [weight],
    )
    model = load(proto)
    assert list(model.inputs) == ["x"] and model.parameters == ("w",)
    assert [i.name for i in model.to_proto().graph.input] == ["x", "w"]


def test_subgraphs_are_graphs_and_see_the_outer_scope():
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "then", [], [value("t")])
    other = helper.make_graph([helper.make_node("Abs", ["x"], ["e"])], "else", [], [value("e")])
    proto = graph_model(
        [helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)],
        [value("c", (), TensorProto.BOOL), value("x")],
        [value("y")],
    )
    node = load(proto).graph.operations[0]
    assert isinstance(node.then_branch, Graph)
    assert node.then_branch.free_names() == {"x"}
    assert [op.op_type for op in load(proto).graph.walk()] == ["If", "Neg", "Abs"] or len(node.subgraphs) == 2


def test_a_dangling_name_in_a_subgraph():
    then = helper.make_graph(
        [helper.make_node("Neg", ["nowhere"], ["t"], name="n1")], "then", [], [value("t")]
    )
    proto = graph_model(
        [helper.make_node("If", ["c"], ["y"], name="if1", then_branch=then, else_branch=then)],
        [value("c", (), TensorProto.BOOL)],
        [value("y")],
    )
    with pytest.raises(UserError, match="'if1'.*'nowhere'"):
        load(proto)


def test_model_local_functions_are_read_written_and_inlined():
    from meta500.graph import inline_functions

    body = helper.make_function(
        "my.domain",
        "ScaledRelu",
        ["x"],
        ["y"],
        [
            helper.make_node("LeakyRelu", ["x"], ["y"]),
        ],
        [helper.make_opsetid("", 21)],
        ["slope"],
    )
    reference = body.node[0].attribute.add(name="alpha", ref_attr_name="slope")
    reference.type = onnx.AttributeProto.FLOAT
    call = helper.make_node("ScaledRelu", ["x"], ["y"], domain="my.domain", slope=0.5, name="call")
    proto = graph_model([call], [value("x", (3,))], [value("y", (3,))])
    proto.functions.append(body)
    proto.opset_import.append(helper.make_opsetid("my.domain", 1))
    onnx.checker.check_model(proto)
    model = load(proto)
    assert isinstance(model.graph.operations[0], FunctionCall)
    onnx.checker.check_model(model.to_proto())
    (inlined,) = inline_functions(model).graph.operations
    assert inlined.op_type == "LeakyRelu" and inlined.alpha == 0.5


def test_types_of_sequences_and_symbols():
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.INT64, ["k", 2])
    proto = graph_model(
        [helper.make_node("SequenceLength", ["s"], ["n"])], [sequence], [value("n", (), TensorProto.INT64)]
    )
    model = load(proto)
    assert model.inputs["s"] == SequenceType(TensorType(np.dtype("int64"), ("k", 2)))
    assert model.to_proto().graph.input[0] == sequence


def test_external_data(tmp_path):
    array = np.arange(2000, dtype=np.float32)
    proto = graph_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", (2000,))],
        [value("y", (2000,))],
        [numpy_helper.from_array(array, "w")],
    )
    path = tmp_path / "m.onnx"
    load(proto).save(path, external_data=True)
    assert (tmp_path / "m.onnx.data").stat().st_size >= array.nbytes > path.stat().st_size
    read = load(path)
    assert np.array_equal(read.graph.initializers["w"], array)
    del read
    data = (tmp_path / "m.onnx.data").read_bytes()
    (tmp_path / "m.onnx.data").write_bytes(data[:100])
    with pytest.raises(UserError, match="m.onnx.*'w'.*100 bytes"):
        load(path)
    (tmp_path / "m.onnx.data").unlink()
    with pytest.raises(UserError, match="m.onnx.*'w'.*missing"):
        load(path)
    with pytest.raises(UserError, match="not from bytes"):
        load(path.read_bytes())


def test_external_data_must_stay_in_the_folder(tmp_path):
    (tmp_path / "secret").write_bytes(b"\0" * 16)
    folder = tmp_path / "models"
    folder.mkdir()
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../secret")
    proto = graph_model(
        [helper.make_node("Neg", ["w"], ["y"])], outputs=[value("y", (4,))], initializers=[tensor]
    )
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match="outside"):
        load(folder / "m.onnx")


def bad(nodes, **kwargs):
    return graph_model(nodes, [value("x")], [value("y")], **kwargs)


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (bad([helper.make_node("Nope", ["x"], ["y"], name="n")]), "'n' .Nope.: unknown operator"),
        (bad([helper.make_node("Relu", ["z"], ["y"], name="n")]), "'n'.*reads 'z', which no node writes"),
        (
            bad(
                [
                    helper.make_node("Relu", ["b"], ["a"], name="p"),
                    helper.make_node("Add", ["a", "x"], ["b"], name="q"),
                ]
            ),
            "cycle.*'p'.*'q'|cycle.*'q'.*'p'",
        ),
        (
            bad(
                [
                    helper.make_node("Relu", ["a"], ["y"], name="p"),
                    helper.make_node("Neg", ["x"], ["a"], name="q"),
                ]
            ),
            "'p'.*before node 'q'.*sorted topologically",
        ),
        (
            bad(
                [
                    helper.make_node("Relu", ["x"], ["y"], name="p"),
                    helper.make_node("Neg", ["x"], ["y"], name="q"),
                ]
            ),
            "'q'.*writes 'y', which node 'p'",
        ),
        (bad([helper.make_node("Neg", ["x"], ["q"])]), "nothing produces its output 'y'"),
        (bad([helper.make_node("Relu", ["x", "x"], ["y"], name="n")]), "'n'.*at most 1"),
        (bad([helper.make_node("Add", ["x"], ["y"], name="n")]), "'n'.*input 'B' is required"),
        (bad([helper.make_node("Relu", ["x"], ["y"], name="n", alpha=1.0)]), "'n'.*no attribute 'alpha'"),
        (bad([helper.make_node("Flatten", ["x"], ["y"], name="n", axis=1.5)]), "'n'.*'axis' must be INT"),
        (bad([helper.make_node("Concat", ["x"], ["y"], name="n")]), "'n'.*'axis' .INT. is required"),
        (
            bad([helper.make_node("Gelu", ["x"], ["y"], name="n")], opset=11),
            "'n'|Gelu.*opset 11.*begins with opset 20",
        ),
        (bad([helper.make_node("Relu", ["x"], ["y"])], opset=999), "opset 999.*knows 1 to"),
    ],
)
def test_bad_graphs_have_one_clear_error(proto, message, tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match=f"bad.onnx.*({message})"):
        load(path)


def test_bad_files(tmp_path):
    with pytest.raises(UserError, match=r"nope\.onnx.*No such file"):
        load(tmp_path / "nope.onnx")
    (tmp_path / "text.onnx").write_text("hello")
    with pytest.raises(UserError, match=r"text\.onnx: not an ONNX model"):
        load(tmp_path / "text.onnx")
    (tmp_path / "empty.onnx").write_bytes(b"")
    with pytest.raises(UserError, match=r"empty\.onnx: not an ONNX model"):
        load(tmp_path / "empty.onnx")
    with pytest.raises(UserError, match="path, bytes or a ModelProto, not int"):
        load(3)


def test_truncated_initializer():
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], raw_data=b"\0" * 12)
    proto = graph_model(
        [helper.make_node("Neg", ["w"], ["y"])], outputs=[value("y", (4,))], initializers=[tensor]
    )
    with pytest.raises(UserError, match="initializer 'w': malformed"):
        load(proto)


def test_declared_parameters():
    proto = graph_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [value("x", (2,))],
        [value("y", (2,))],
        [numpy_helper.from_array(np.ones(2, np.float32), "w")],
    )
    assert load(proto, parameters=[]).parameters == ()
    again = load(load(proto, parameters=[]).to_proto())
    assert again.parameters == ()
    with pytest.raises(UserError, match="'nope' is no initializer"):
        load(proto, parameters=["nope"])


@pytest.mark.parametrize("names", [["a\nb", "c"], ["[w]", "v"], ['["w"]'], ["w", "v"]])
def test_parameters_keep_any_name(names, tmp_path):
    builder = Builder("sum")
    builder.input("x", "float32", (2,))
    total = "x"
    for name in names:
        total = builder.add(ops.Add, total, builder.parameter(name, np.ones(2, np.float32)))
    builder.output(total, "y")
    model = builder.build()
    model.save(tmp_path / "sum.onnx")
    assert load(tmp_path / "sum.onnx").parameters == tuple(names)


@pytest.mark.parametrize("text", ["[", '["w", 1]', '["v"]', "w\nx"])
def test_a_list_of_parameters_that_does_not_fit_is_refused(text):
    builder = Builder("sum")
    builder.input("x", "float32", (2,))
    builder.output(builder.add(ops.Add, "x", builder.parameter("w", np.ones(2, np.float32))), "y")
    proto = builder.build().to_proto()
    (entry,) = (entry for entry in proto.metadata_props if entry.key == "meta500.parameters")
    entry.value = text
    with pytest.raises(UserError, match="parameter"):
        load(proto)
