"""Broken and hostile model files: reading one gives a model or one clear error, in bounded time and memory.

Two mutators work on a dozen small models that together use every kind of message: one changes bytes of the
file, the other fields of the message. Whatever survives the parser is then run on numpy.
"""

import contextlib
import functools
import resource
import signal
import time
import tracemalloc
from random import Random

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from onnx.backend.test.loader import load_model_tests

import meta500
from meta500 import models
from meta500.errors import UserError
from meta500.graph import Model, TensorType, load

# Limits for one file of a few kilobytes; measured are less than a tenth of them.
SECONDS, BYTES = 10, 256 * 2**20

bounded = settings(
    max_examples=400, derandomize=True, database=None, suppress_health_check=list(HealthCheck), deadline=None
)
long = settings(bounded, max_examples=5000)


# -- the models that are broken ------------------------------------------------------------------------------


def info(name, shape=(2, 3), kind=T.FLOAT):
    return helper.make_tensor_value_info(name, kind, list(shape))


def model(nodes, inputs, outputs, initializers=(), functions=(), domains=(), **kwargs):
    graph = helper.make_graph(nodes, "g", inputs, outputs, list(initializers), **kwargs)
    imports = [helper.make_opsetid("", 21), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10, functions=list(functions))


def control_flow():
    """If inside Loop, with values of the outer scope, and a Scan."""
    flag = info("c", (), T.BOOL)
    then = helper.make_graph([helper.make_node("Neg", ["h"], ["t"])], "then", [], [info("t")])
    other = helper.make_graph([helper.make_node("Abs", ["h"], ["e"])], "else", [], [info("e")])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["c2"]),
            helper.make_node("Add", ["h", "x"], ["s"]),
            helper.make_node("If", ["c"], ["i"], then_branch=then, else_branch=other),
            helper.make_node("Mul", ["s", "i"], ["h2"]),
        ],
        "body",
        [info("i0", (), T.INT64), flag, info("h")],
        [info("c2", (), T.BOOL), info("h2"), info("s")],
    )
    cell = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["a2"]), helper.make_node("Identity", ["a2"], ["o"])],
        "cell",
        [info("a", (3,)), info("b", (3,))],
        [info("a2", (3,)), info("o", (3,))],
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["y", "all"], name="loop", body=body),
        helper.make_node("Scan", ["z", "x"], ["last", "scan"], body=cell, num_scan_inputs=1),
    ]
    constants = [
        numpy_helper.from_array(np.array(3), "n"),
        numpy_helper.from_array(np.zeros(3, np.float32), "z"),
    ]
    return model(nodes, [info("x")], [info("y"), info("all", (3, 2, 3)), info("scan")], constants)


def sequences():
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "x"], ["s"]),
        helper.make_node("SequenceInsert", ["s", "x", "zero"], ["s2"]),
        helper.make_node("SequenceAt", ["s2", "zero"], ["first"]),
        helper.make_node("ConcatFromSequence", ["s2"], ["y"], axis=0),
        helper.make_node("Optional", ["s"], ["o"]),
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("SplitToSequence", ["y"], ["parts"], axis=1),
    ]
    parts = helper.make_tensor_sequence_value_info("parts", T.FLOAT, [6, 1])
    zero = numpy_helper.from_array(np.array(0), "zero")
    outputs = [info("first"), info("y", (6, 3)), info("has", (), T.BOOL), parts]
    return model(nodes, [info("x")], outputs, [zero])


def functions():
    """A function that calls another, with references to its attributes, one of them with a default."""
    leaky = helper.make_node("LeakyRelu", ["a"], ["b"])
    reference = leaky.attribute.add(name="alpha", ref_attr_name="slope")
    reference.type = onnx.AttributeProto.FLOAT
    call = helper.make_node("Inner", ["p"], ["q"], domain="mine")
    call.attribute.add(name="slope", ref_attr_name="slope").type = onnx.AttributeProto.FLOAT
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]
    inner = helper.make_function("mine", "Inner", ["a"], ["b"], [leaky], opsets, ["slope"])
    outer = helper.make_function(
        "mine",
        "Outer",
        ["p"],
        ["r"],
        [call, helper.make_node("Neg", ["q"], ["r"])],
        opsets,
        attribute_protos=[helper.make_attribute("slope", 0.5)],
    )
    nodes = [
        helper.make_node("Outer", ["x"], ["h"], domain="mine", slope=0.25, name="one"),
        helper.make_node("Outer", ["h"], ["y"], domain="mine", name="two"),
    ]
    return model(nodes, [info("x")], [info("y")], functions=[inner, outer], domains=["mine"])


def constants():
    """Every form of dense constant: text, packed integers, small floats, typed lists."""
    nodes = [
        helper.make_node("Constant", [], ["floats"], value_floats=[1.0, 2.0, 3.0]),
        helper.make_node("Constant", [], ["ints"], value_ints=[2, 3]),
        helper.make_node("Cast", ["packed"], ["wide"], to=T.FLOAT),
        helper.make_node("Cast", ["half"], ["single"], to=T.FLOAT),
        helper.make_node("Sum", ["x", "floats", "wide", "single"], ["sum"]),
        helper.make_node("Reshape", ["sum", "ints"], ["y"]),
        helper.make_node("StringConcat", ["text", "text"], ["words"]),
    ]
    initializers = [
        helper.make_tensor("packed", T.INT4, [3], [1, -2, 3]),
        helper.make_tensor("half", T.FLOAT16, [3], [1.0, 2.0, 3.0]),
        helper.make_tensor("text", T.STRING, [2], [b"a", "ü".encode()]),
    ]
    outputs = [info("y"), info("words", (2,), T.STRING)]
    return model(nodes, [info("x")], outputs, initializers)


def sparse():
    """A sparse initializer and a sparse attribute: they are read, but numpy runs neither."""
    values = numpy_helper.from_array(np.array([1.0, 2.0], np.float32), "w")
    indices = numpy_helper.from_array(np.array([[0, 1], [1, 2]]), "")
    weight = helper.make_sparse_tensor(values, indices, [2, 3])
    other = helper.make_sparse_tensor(values, indices, [2, 3])
    nodes = [
        helper.make_node("Constant", [], ["c"], sparse_value=other),
        helper.make_node("Sum", ["x", "w", "c"], ["y"]),
    ]
    return model(nodes, [info("x")], [info("y")], sparse_initializer=[weight])


def shapes():
    """Shapes that are computed at run time."""
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("ConstantOfShape", ["shape"], ["zeros"]),
        helper.make_node("Concat", ["shape", "one"], ["longer"], axis=0),
        helper.make_node("Reshape", ["x", "longer"], ["r"]),
        helper.make_node("Expand", ["r", "wide"], ["e"]),
        helper.make_node("Pad", ["e", "pads"], ["p"], mode="reflect"),
        helper.make_node("Slice", ["p", "one", "two", "one"], ["s"]),
        helper.make_node("Tile", ["zeros", "shape"], ["t"]),
        helper.make_node("Range", ["start", "stop", "step"], ["range"]),
        helper.make_node("TopK", ["t", "one"], ["top", "where"]),
        helper.make_node("Gather", ["e", "where"], ["y"], axis=0),
    ]
    initializers = [
        numpy_helper.from_array(np.array(values), name)
        for name, values in (
            ("one", [1]),
            ("two", [2]),
            ("wide", [2, 3, 4]),
            ("pads", [0, 0, 1, 0, 0, 1]),
            ("start", 0),
            ("stop", 5),
            ("step", 2),
        )
    ]
    outputs = [info("s"), info("y"), info("range", (), T.INT64)]
    for output in outputs:
        output.type.tensor_type.ClearField("shape")
    return model(nodes, [info("x", ("N", 3))], outputs, initializers)


@functools.cache
def seeds():
    """The intact models by name."""
    found = {
        "digits": models.digits_cnn(batch=2).to_proto(),
        "unet": models.unet(n=0, batch=1, size=16).to_proto(),
        "mlp": models.mlp(batch="N", shape=(4,), hidden=(3,), classes=2).to_proto(),
        **{make.__name__: make() for make in (control_flow, sequences, functions, constants, sparse, shapes)},
    }
    for case in load_model_tests(kind="simple")[:4]:
        found[case.name] = onnx.load(f"{case.model_dir}/model.onnx")
    return {name: proto.SerializeToString() for name, proto in found.items()}


# -- mutators ------------------------------------------------------------------------------------------------


def mutated_bytes(data, other, random):
    """``data`` cut off, with bits flipped, bytes changed, pieces removed, repeated or taken from ``other``."""
    data = bytearray(data)
    # Structure lies mostly outside the weights: half of the changes go to the first and last kilobyte.
    for _ in range(random.choice((1, 1, 1, 2, 4, 16))):
        if not data:
            break
        if random.random() < 0.5:
            at = random.randrange(min(1024, len(data)))
            at = at if random.random() < 0.5 else len(data) - 1 - at
        else:
            at = random.randrange(len(data))
        size = random.choice((1, 2, 4, 8, 64, 512))
        kind = random.randrange(6)
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            data[at] = random.choice((0, 0xFF, 0x7F, 0x80, random.randrange(256)))
        elif kind == 3:
            del data[at : at + size]
        elif kind == 4:
            data[at:at] = data[at : at + size]
        else:
            begin = random.randrange(len(other))
            data[at : at + size] = other[begin : begin + size]
    return bytes(data)


def slots(message):
    """Every (message, field) of a message and what it holds, the unset fields of the messages included."""
    for field in message.DESCRIPTOR.fields:
        yield message, field
        if field.message_type is None:
            continue
        value = getattr(message, field.name)
        if field.is_repeated:
            for item in value:
                yield from slots(item)
        elif message.HasField(field.name):
            yield from slots(value)


WHOLE = (0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63))
REAL = (0.0, -1.0, 1e30, float("inf"), float("-inf"), float("nan"))
OPERATORS = (
    "Relu",
    "Add",
    "If",
    "Loop",
    "Conv",
    "Concat",
    "Split",
    "Nope",
    "Inner",
    "Outer",
    "Resize",
    "LSTM",
)
TEXTS = ("", "x", "y", "h", "shape", "ai.onnx", "ai.onnx.ml", "nowhere", "a\n'b", "\N{SNOWMAN}", *OPERATORS)


def scalar(field, strings, random):
    kind = field.cpp_type
    if kind == field.CPPTYPE_STRING:
        if field.type == field.TYPE_BYTES:
            return random.choice((b"", b"\xff\xfe", b"SAME_UPPER", bytes(random.randrange(40))))
        return random.choice((random.choice(TEXTS), random.choice(strings)))
    if kind in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return random.choice(REAL)
    if kind == field.CPPTYPE_ENUM:
        return random.choice([v.number for v in field.enum_type.values])
    value = random.choice((*WHOLE, random.randrange(-4, 30)))
    bits = 32 if kind in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    if kind in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return value % 2**bits
    return value if bits == 64 else (value + 2**31) % 2**32 - 2**31


def mutated_proto(data, random):
    """The model of ``data`` with a few fields set to something else, cleared, removed, repeated or moved."""
    proto = onnx.ModelProto.FromString(data)
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        places = list(slots(proto))
        strings = [n for node in proto.graph.node for n in (*node.input, *node.output)] or [""]
        message, field = random.choice(places)
        if random.random() < 0.7:
            # Fields that hold something are rarer than those that do not, and tell more.
            filled = [
                (m, f)
                for m, f in places
                if (len(getattr(m, f.name)) if f.is_repeated else m.HasField(f.name))
            ]
            message, field = random.choice(filled or places)
        value = getattr(message, field.name)
        if field.is_repeated:
            action = random.randrange(4)
            if action == 0 and len(value):
                del value[random.randrange(len(value))]
            elif action == 1 and len(value):
                at = random.randrange(len(value))
                value.extend([value[at]])
            elif action == 2 and len(value) > 1:
                items = list(value)[:2000]
                random.shuffle(items)
                if field.message_type is not None:
                    items = [type(i).FromString(i.SerializeToString()) for i in items]
                del value[:]
                value.extend(items)
            elif field.message_type is not None:
                value.add()
            elif len(value) and action == 3:
                value[random.randrange(len(value))] = scalar(field, strings, random)
            else:
                value.append(scalar(field, strings, random))
        elif field.message_type is not None:
            message.ClearField(field.name)
            if random.random() < 0.3:
                getattr(message, field.name).SetInParent()
        elif random.random() < 0.2:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, scalar(field, strings, random))
    return proto


# -- what must hold ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def limits(seconds=SECONDS, memory=2 * 2**30):
    """Stop what takes longer or asks for more memory; restores both limits."""

    def stop(number, frame):
        raise TimeoutError(f"took longer than {seconds} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    resource.setrlimit(resource.RLIMIT_AS, (now + memory, hard))
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def read(source):
    """The model, or None where the one clear error was raised."""
    try:
        with limits():
            found = load(source)
    except UserError as error:
        assert str(error).strip() and len(str(error)) < 5000
        return None
    assert isinstance(found, Model)
    return found


def feeds(model):
    """Inputs of the declared types; None where they cannot be made small."""
    rng = np.random.default_rng(0)
    found = {}
    for name, declared in model.inputs.items():
        if not isinstance(declared, TensorType) or declared.dtype is None or declared.shape is None:
            return None
        shape = [d if isinstance(d, int) else 2 for d in declared.shape]
        if any(d < 0 for d in shape) or np.prod(shape, dtype=float) > 1e5:
            return None
        if declared.dtype == np.dtype(object):
            found[name] = np.full(shape, "text", object)
        elif declared.dtype.kind in "iub":
            found[name] = rng.integers(0, 2, shape).astype(declared.dtype)
        else:
            found[name] = np.asarray(rng.standard_normal(shape)).astype(declared.dtype)
    return found


class Endless(Exception):
    """The computation that the model describes takes too long; that is no fault of the reader."""


def run(model, seconds=2):
    """Make a network on numpy and run it: results, or the one clear error."""
    try:
        with limits(seconds), np.errstate(all="ignore"):
            net = meta500.network(model, backend="numpy")
            fed = feeds(model)
            if fed is not None:
                net.inference(fed)
    except UserError as error:
        assert str(error).strip()
    except TimeoutError:
        raise Endless from None


def check(source):
    found = read(source)
    if found is not None:
        with contextlib.suppress(Endless):
            run(found)


def from_bytes(seed, first, second):
    data = seeds()
    names = sorted(data)
    check(mutated_bytes(data[names[first % len(names)]], data[names[second % len(names)]], Random(seed)))


def from_proto(seed, which, again):
    data = seeds()
    proto = mutated_proto(data[sorted(data)[which % len(data)]], Random(seed))
    if again:
        # Some things that a message may hold in memory cannot be written.
        with contextlib.suppress(Exception):
            check(proto.SerializeToString())
    check(proto)


numbers = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", autouse=True)
def intact():
    """Without changes every model is read, and those of this file run."""
    for name, data in seeds().items():
        found = read(data)
        assert found is not None and feeds(found) is not None, name
        if name != "sparse" and not name.startswith("test_"):
            meta500.network(found, backend="numpy").inference(feeds(found))


@bounded
@given(numbers, numbers, numbers)
def test_changed_bytes(seed, first, second):
    from_bytes(seed, first, second)


@bounded
@given(numbers, numbers, st.booleans())
def test_changed_messages(seed, which, again):
    from_proto(seed, which, again)


@pytest.mark.slow
@long
@given(numbers, numbers, numbers)
def test_changed_bytes_for_longer(seed, first, second):
    from_bytes(seed, first, second)


@pytest.mark.slow
@long
@given(numbers, numbers, st.booleans())
def test_changed_messages_for_longer(seed, which, again):
    from_proto(seed, which, again)


def test_the_mutators_reach_past_the_first_check():
    """A good share of the changed messages is read, and another good share is refused."""
    data = seeds()["shapes"]
    found = [read(mutated_proto(data, Random(seed))) for seed in range(100)]
    assert 10 <= sum(model is None for model in found) <= 90


@bounded
@given(st.binary(max_size=200))
def test_any_bytes(data):
    assert read(data) is None


@pytest.mark.parametrize("name", ["control_flow", "functions", "constants"])
def test_every_beginning_of_a_file(name):
    data = seeds()[name]
    for size in range(len(data)):
        read(data[:size])


# -- models that mean harm -----------------------------------------------------------------------------------

MINE = [helper.make_opsetid("", 21), helper.make_opsetid("mine", 1)]


def of_functions(*bodies):
    """A model that calls the last of the functions, each given as (name, names of what it calls in turn)."""
    found = []
    for name, calls in bodies:
        nodes = [
            helper.make_node(call, [f"v{i}"], [f"v{i + 1}"], domain="mine" if call[0] == "F" else "")
            for i, call in enumerate(calls)
        ]
        found.append(helper.make_function("mine", name, ["v0"], [f"v{len(calls)}"], nodes, MINE))
    call = helper.make_node(bodies[-1][0], ["x"], ["y"], domain="mine")
    return model([call], [info("x")], [info("y")], functions=found, domains=["mine"])


def initializer(**fields):
    tensor = T(name="w", **fields)
    return model([helper.make_node("Neg", ["w"], ["y"])], [], [info("y", (4,))], [tensor])


def nested_type(depth):
    proto = control_flow()
    inner = proto.graph.value_info.add(name="deep").type
    for _ in range(depth):
        inner = inner.sequence_type.elem_type
    inner.tensor_type.elem_type = T.FLOAT
    return proto


def shadowing():
    """A body that reads x of the outer scope, then writes another x."""
    proto = control_flow()
    body = proto.graph.node[0].attribute[0].g
    body.node[2].output.append("x")
    return proto


def main_graph_reference():
    proto = functions()
    node = proto.graph.node.add(op_type="LeakyRelu", input=["x"], output=["z"])
    node.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    return proto


def default_reference():
    proto = functions()
    proto.functions[1].attribute_proto[0].ref_attr_name = "slope"
    return proto


def not_text():
    data = model([helper.make_node("Neg", ["x"], ["QQQQ"])], [info("x")], [info("QQQQ")])
    return data.SerializeToString().replace(b"QQQQ", b"Q\x80\xffQ")


def doubling(levels):
    return of_functions(("F0", ["Neg"]), *((f"F{i}", [f"F{i - 1}"] * 2) for i in range(1, levels)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (of_functions(("F", ["F"])), "must not call themselves: mine.F -> mine.F"),
        (of_functions(("F", ["FG"]), ("FG", ["Neg", "F"])), "must not call themselves"),
        (doubling(40), "expand to 16.* nodes; at most"),
        (nested_type(200), "nested more than 100 deep"),
        (shadowing(), "node Add: reads 'x' before node If writes it"),
        (
            main_graph_reference(),
            "'alpha' refers to attribute 'slope' of a function, but the node is in none",
        ),
        (default_reference(), "the default of attribute 'slope' refers"),
        (not_text(), "no text in UTF-8"),
        (initializer(data_type=T.FLOAT, dims=[-1], raw_data=bytes(16)), "negative dimension"),
        (initializer(data_type=T.FLOAT, dims=[2**62, 4], raw_data=bytes(16)), "'w': malformed tensor data"),
        (initializer(data_type=T.FLOAT, dims=[2**40]), "'w': malformed tensor data"),
        (initializer(data_type=T.FLOAT, dims=[1] * 70, raw_data=bytes(4)), "'w': malformed tensor data"),
        (initializer(data_type=T.FLOAT, dims=[4], raw_data=bytes(17)), "'w': malformed tensor data"),
        (initializer(data_type=T.FLOAT, dims=[4], raw_data=bytes(20)), "'w': malformed tensor data"),
        (initializer(data_type=T.STRING, dims=[4], string_data=[b"a"]), "'w': malformed tensor data"),
        (initializer(data_type=999, dims=[4], raw_data=bytes(16)), "'w': element type 999 is unknown"),
        (initializer(dims=[4], raw_data=bytes(16)), "'w': has no element type"),
    ],
    ids=lambda value: value if isinstance(value, str) else "model",
)
def test_harmful_models_are_refused(source, message):
    tracemalloc.start()
    try:
        begin = time.perf_counter()
        with pytest.raises(UserError, match=message):
            load(source)
        assert time.perf_counter() - begin < SECONDS
        assert tracemalloc.get_traced_memory()[1] < BYTES
    finally:
        tracemalloc.stop()


def test_functions_within_the_limit_still_run():
    x = np.ones((2, 3), np.float32)
    found = meta500.network(load(doubling(7)), backend="numpy").inference({"x": x})
    assert np.array_equal(found["y"], x)


def test_a_long_shape_is_refused_before_anything_is_allocated_for_it():
    nodes = [helper.make_node("Expand", ["x", "s"], ["y"])]
    proto = model(nodes, [info("x"), info("s", (2**31,), T.INT64)], [info("y", ("a", "b"))])
    with limits(), pytest.raises(UserError, match="node Expand.*'s' has 2147483648 entries"):
        meta500.network(load(proto), backend="numpy")


def test_more_outputs_than_an_operator_gives():
    proto = control_flow()
    proto.graph.node[1].output.append("more")
    with pytest.raises(UserError, match="Scan"):
        meta500.network(load(proto), backend="numpy").inference(feeds(load(proto)))


@pytest.fixture
def folder(tmp_path):
    """A model's folder with 64 bytes of weights, and things outside that it must not reach."""
    (tmp_path / "secret").write_bytes(bytes(64))
    inside = tmp_path / "models"
    inside.mkdir()
    (inside / "w.bin").write_bytes(bytes(64))
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "loop").symlink_to("loop")
    (inside / "sub").mkdir()
    return inside


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"location": "../secret"}, "outside"),
        ({"location": "sub/../../secret"}, "outside"),
        ({"location": "/etc/hostname"}, "outside"),
        ({"location": "link"}, "outside"),
        ({"location": ""}, "outside"),
        ({}, "outside"),
        ({"location": "loop"}, "'w'"),
        ({"location": "sub"}, "missing"),
        ({"location": "none"}, "missing"),
        ({"location": "a\0b"}, "'w'"),
        ({"location": "a" * 300}, "'w'"),
        ({"location": "w.bin"}, "'w': malformed tensor data"),
        ({"location": "w.bin", "length": "3"}, "'w': malformed tensor data"),
        ({"location": "w.bin", "length": "-1"}, "negative"),
        ({"location": "w.bin", "offset": "-4"}, "negative"),
        ({"location": "w.bin", "offset": "1e3"}, "malformed offset"),
        ({"location": "w.bin", "offset": "9" * 30}, "has 64 bytes"),
        ({"location": "w.bin", "offset": "9" * 5000}, "malformed offset"),
        ({"location": "w.bin", "length": str(2**63)}, "has 64 bytes"),
    ],
)
def test_external_data_that_does_harm(folder, entries, message):
    proto = initializer(data_type=T.FLOAT, dims=[4], data_location=T.EXTERNAL)
    for key, text in entries.items():
        proto.graph.initializer[0].external_data.add(key=key, value=text)
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(UserError, match=message):
        load(folder / "m.onnx")


@pytest.mark.parametrize("path", ["a\0b", "", "a" * 5000])
def test_paths_that_are_none(path):
    with pytest.raises(UserError, match="cannot be read"):
        load(path)
