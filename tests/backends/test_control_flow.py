"""Control flow, sequences and optionals on both backends: values and gradients against plain formulas."""

import numpy as np
import onnx.parser
import pytest

import meta500
from meta500.errors import UserError
from meta500.graph import OptionalType, SequenceType

BACKENDS = ["numpy", "torch"]
HEADER = '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.preview.training" : 1]>\n'


def model(text, header=HEADER):
    return meta500.load(onnx.parser.parse_model(header + text))


def run(text, inputs, backend, header=HEADER, **options):
    with meta500.network(model(text, header), backend=backend, **options) as net:
        return net.inference(inputs)


def gradients(text, inputs, backend, loss="loss", wrt=None, header=HEADER):
    wrt = wrt or [name for name, value in inputs.items() if np.asarray(value).dtype.kind == "f"]
    with meta500.network(model(text, header), backend=backend) as net:
        net.inference_and_backprop(inputs, loss=loss, wrt=wrt)
        return dict(zip(wrt, net.fetch_tensors([f"grad/{name}" for name in wrt]), strict=True))


def central_differences(text, inputs, name, header=HEADER, step=1e-6):
    found = np.zeros_like(inputs[name])
    with meta500.network(model(text, header), backend="numpy") as net:
        for index in np.ndindex(found.shape):
            values = []
            for sign in (1, -1):
                moved = inputs[name].copy()
                moved[index] += sign * step
                values.append(float(net.inference({**inputs, name: moved})["loss"].reshape(())))
            found[index] = (values[0] - values[1]) / (2 * step)
    return found


BRANCHES = """branches (bool c, double[3] x, double[3] w) => (double loss) {
    y = If (c) <
        then_branch = squares () => (double[3] p) { s = Mul(x, x)  p = Mul(s, w) },
        else_branch = plain () => (double[3] q) { q = Mul(x, w) }>
    loss = ReduceSum <keepdims = 0> (y)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("condition", [True, False])
def test_if_differentiates_the_branch_that_ran(backend, condition):
    x, w = np.array([1.0, -2, 3]), np.array([0.5, 2, -1])
    found = gradients(BRANCHES, {"c": np.array(condition), "x": x, "w": w}, backend)
    np.testing.assert_allclose(found["x"], 2 * x * w if condition else w)
    np.testing.assert_allclose(found["w"], x * x if condition else x)


POWER = """power (int64 n, double[2] x, double[2] w) => (double loss, double[2] y, double[N,2] steps) {
    one = Constant <value = double[2] {1, 1}> ()
    yes = Constant <value = bool {1}> ()
    y, steps = Loop (n, yes, one) <body = step (int64 i, bool go, double[2] p) => (bool on, double[2] q, double[2] out) {
        on = Identity(go)
        t = Mul(p, x)
        q = Add(t, w)
        out = Mul(q, q)
    }>
    a = ReduceSum <keepdims = 0> (y)
    b = ReduceSum <keepdims = 0> (steps)
    loss = Add(a, b)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n", [0, 1, 4])
def test_loop_gradients_add_up_over_iterations(backend, n):
    inputs = {"n": np.array(n), "x": np.array([0.7, -1.1]), "w": np.array([0.3, 0.2])}
    p, outs = np.ones(2), []
    for _ in range(n):
        p = p * inputs["x"] + inputs["w"]
        outs.append(p * p)
    got = run(POWER, inputs, backend)
    np.testing.assert_allclose(got["y"], p, rtol=1e-12)
    assert got["steps"].shape == (n, 2)
    found = gradients(POWER, inputs, backend)
    for name in ("x", "w"):
        np.testing.assert_allclose(
            found[name], central_differences(POWER, inputs, name), rtol=1e-7, atol=1e-8
        )


@pytest.mark.parametrize("backend", BACKENDS)
def test_loop_ends_when_its_condition_turns_false(backend):
    text = """count (float limit) => (float total, int64[K] seen) {
        none = Constant <value = float {0}> ()
        yes = Constant <value = bool {1}> ()
        total, seen = Loop ("", yes, none) <body = step (int64 i, bool go, float t) => (bool on, float u, int64 k) {
            one = Constant <value = float {1}> ()
            u = Add(t, one)
            on = Less(u, limit)
            k = Identity(i)
        }>
    }"""
    got = run(text, {"limit": np.float32(3.5)}, backend)
    assert got["total"] == 4 and got["seen"].tolist() == [0, 1, 2, 3]


SCAN = """rnn (double[2] h, double[T,2] x, double[2,2] w) => (double loss, double[2] last, double[2,T] all) {
    last, all = Scan (h, x) <num_scan_inputs = 1, scan_input_directions = [1], scan_output_axes = [1],
        scan_output_directions = [1], body = cell (double[2] s, double[2] e) => (double[2] t, double[2] o) {
            a = MatMul(s, w)
            b = Add(a, e)
            t = Tanh(b)
            o = Mul(t, e)
        }>
    p = ReduceSum <keepdims = 0> (all)
    q = ReduceSum <keepdims = 0> (last)
    loss = Add(p, q)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_backwards_is_a_recurrent_network(backend):
    draw = np.random.default_rng(0)
    inputs = {"h": draw.normal(size=2), "x": draw.normal(size=(5, 2)), "w": draw.normal(size=(2, 2))}
    state, outs = inputs["h"], []
    for element in inputs["x"][::-1]:
        state = np.tanh(state @ inputs["w"] + element)
        outs.append(state * element)
    got = run(SCAN, inputs, backend)
    np.testing.assert_allclose(got["last"], state, rtol=1e-12)
    np.testing.assert_allclose(got["all"], np.stack(outs[::-1], axis=1), rtol=1e-12)
    found = gradients(SCAN, inputs, backend)
    for name in inputs:
        np.testing.assert_allclose(found[name], central_differences(SCAN, inputs, name), rtol=1e-6, atol=1e-8)


SCAN8 = """batched (int64[2] lengths, double[2,1] start, double[2,3,1] x) => (double loss, double[2,1] y, double[2,3,1] z) {
    y, z = Scan (lengths, start, x) <num_scan_inputs = 1, body = cell (double[1] s, double[1] e) => (double[1] t, double[1] o) {
        m = Mul(s, e)
        t = Add(m, e)
        o = Mul(t, t)
    }>
    p = ReduceSum <keepdims = 0> (y)
    q = ReduceSum <keepdims = 0> (z)
    loss = Add(p, q)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_scan_of_version_8_has_batches_of_several_lengths(backend):
    header = '<ir_version: 3, opset_import: ["" : 8]>\n'
    inputs = {
        "lengths": np.array([3, 1]),
        "start": np.array([[1.0], [2.0]]),
        "x": np.arange(1.0, 7.0).reshape(2, 3, 1) / 4,
    }
    got = run(SCAN8, inputs, backend, header)
    expected = np.zeros((2, 3, 1))
    for entry, length in enumerate((3, 1)):
        state = inputs["start"][entry]
        for t in range(length):
            state = state * inputs["x"][entry, t] + inputs["x"][entry, t]
            expected[entry, t] = state**2
        np.testing.assert_allclose(got["y"][entry], state)
    np.testing.assert_allclose(got["z"], expected)
    found = gradients(SCAN8, inputs, backend, header=header)
    for name in ("start", "x"):
        np.testing.assert_allclose(
            found[name], central_differences(SCAN8, inputs, name, header), rtol=1e-6, atol=1e-8
        )
    assert not found["x"][1, 1:].any()


MAP = """mapped (double[4] x, double[2] w) => (double loss) {
    two = Constant <value = int64 {2}> ()
    parts = SplitToSequence (x, two)
    squares = SequenceMap (parts, w) <body = each (double[2] e, double[2] f) => (double[2] r) {
        s = Mul(e, e)
        r = Mul(s, f)
    }>
    first = Constant <value = int64 {0}> ()
    head = SequenceAt (squares, first)
    longer = SequenceInsert (squares, head)
    shorter = SequenceErase (longer, first)
    joined = ConcatFromSequence <axis = 0, new_axis = 1> (shorter)
    loss = ReduceSum <keepdims = 0> (joined)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_flow_through_sequences(backend):
    inputs = {"x": np.array([1.0, 2, 3, 4]), "w": np.array([0.5, -2])}
    # squares = [x01^2 w, x23^2 w]; the first is appended and then erased from the front.
    found = gradients(MAP, inputs, backend)
    np.testing.assert_allclose(found["x"], 2 * inputs["x"] * np.tile(inputs["w"], 2))
    np.testing.assert_allclose(found["w"], [1 + 9, 4 + 16])


@pytest.mark.parametrize("backend", BACKENDS)
def test_values_that_are_no_tensors_go_in_and_out(backend):
    text = """values (seq(float[N]) s, optional(float[2]) o) => (bool has, seq(float[N]) t) {
        has = OptionalHasElement (o)
        t = Identity (s)
    }"""
    header = '<ir_version: 10, opset_import: ["" : 18]>\n'
    with meta500.network(model(text, header), backend=backend) as net:
        assert isinstance(net.inputs["s"], SequenceType) and isinstance(net.inputs["o"], OptionalType)
        fed = [np.float32([1, 2]), np.float32([3])]
        got = net.inference({"s": fed, "o": None})
        assert got["has"].tolist() is False
        assert [a.tolist() for a in got["t"]] == [[1, 2], [3]]
        got["t"][0][:] = 7
        assert fed[0].tolist() == [1, 2]
        assert net.inference({"s": fed, "o": np.float32([1, 2])})["has"].tolist() is True
        with pytest.raises(UserError, match="input 's' is a sequence: give a list"):
            net.inference({"s": np.float32([1, 2]), "o": None})
        with pytest.raises(UserError, match="input 's', element 1 must be float32"):
            net.inference({"s": [np.float32([1]), np.array([1.5])], "o": None})
        with pytest.raises(UserError, match="'s' is no tensor"):
            net.inference_and_backprop({"s": fed, "o": None}, loss="has", wrt=["s"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "line, message",
    [
        ("y = SequenceAt (s, n)", "position 5 is outside of a sequence of 1 elements"),
        (
            "s2 = SequenceErase (s, n)  z = Constant <value = int64 {0}> ()  y = SequenceAt (s2, z)",
            "position 5",
        ),
        ("e = SequenceErase (s)  y = ConcatFromSequence <axis = 0> (e)", "empty sequence"),
        ("o = Optional <type = float[2]> ()  y = OptionalGetElement (o)", "has no value"),
    ],
)
def test_positions_and_missing_values_are_refused(backend, line, message):
    text = f"""refused (float[2] x, int64 n) => (float[2] y) {{ s = SequenceConstruct (x) {line} }}"""
    with pytest.raises(UserError, match=message):
        run(text, {"x": np.float32([1, 2]), "n": np.array(5)}, backend)


GRADIENT = """derivative (double[2] a, double[2] b, double[2] k) => (double[2] da, double[2] db, double[2] y) {
    s = Mul (a, b)
    t = Sin (s)
    y = Mul (t, k)
    da, db = ai.onnx.preview.training.Gradient <xs = ["a", "b"], y = "y"> (a, b)
}"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_operator_differentiates_its_own_graph(backend):
    a, b, k = np.array([0.3, 1.2]), np.array([2.0, -0.5]), np.array([1.0, 3.0])
    got = run(GRADIENT, {"a": a, "b": b, "k": k}, backend)
    np.testing.assert_allclose(got["da"], k * np.cos(a * b) * b)
    np.testing.assert_allclose(got["db"], k * np.cos(a * b) * a)


def test_the_second_derivative_is_given_by_torch_and_refused_by_numpy():
    text = GRADIENT.replace("double[2] y)", "double[2] y, double loss)").replace(
        "\n}", "\n    loss = ReduceSum <keepdims = 0> (da)\n}"
    )
    a, b, k = np.array([0.3, 1.2]), np.array([2.0, -0.5]), np.array([1.0, 3.0])
    found = gradients(text, {"a": a, "b": b, "k": k}, "torch", wrt=["a"])
    np.testing.assert_allclose(found["a"], -k * np.sin(a * b) * b * b)
    with pytest.raises(UserError, match="no gradient for Gradient"):
        gradients(text, {"a": a, "b": b, "k": k}, "numpy", wrt=["a"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_unsupported_operation_inside_a_subgraph_is_found_before_running(backend):
    text = """inner (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = a () => (float[2] p) { p = custom.domain.Unknown (x) },
                    else_branch = b () => (float[2] q) { q = Identity (x) }>
    }"""
    header = '<ir_version: 10, opset_import: ["" : 21, "custom.domain" : 1]>\n'
    with pytest.raises(UserError, match="Unknown"):
        run(text, {"c": np.array(False), "x": np.float32([1, 2])}, backend, header)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nested_subgraphs_read_the_outermost_scope(backend):
    text = """nested (bool c, double[2] x, double[2] w) => (double loss) {
        two = Constant <value = int64 {2}> ()
        y = Loop (two, c, x) <body = step (int64 i, bool go, double[2] p) => (bool on, double[2] q) {
            on = Identity (go)
            q = If (go) <then_branch = a () => (double[2] u) { u = Mul (p, w) },
                         else_branch = b () => (double[2] v) { v = Identity (p) }>
        }>
        loss = ReduceSum <keepdims = 0> (y)
    }"""
    x, w = np.array([1.0, 2]), np.array([3.0, -1])
    found = gradients(text, {"c": np.array(True), "x": x, "w": w}, backend)
    np.testing.assert_allclose(found["x"], w * w)
    np.testing.assert_allclose(found["w"], 2 * w * x)


def test_compiled_networks_run_control_flow():
    inputs = {"n": np.array(3), "x": np.array([0.7, -1.1]), "w": np.array([0.3, 0.2])}
    expected = run(POWER, inputs, "torch")
    got = run(POWER, inputs, "torch", mode="compile")
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-12)


def test_types_that_torch_lacks_travel_as_numpy_arrays():
    text = """strings (string[2] s, float[4] x) => (string[2] t, int4[4] q, float[4] y) {
        t = StringConcat (s, s)
        q = Cast <to = 22> (x)
        y = Cast <to = 1> (q)
    }"""
    with meta500.network(model(text), backend="torch") as net:
        how = {c.op_type: c for c in net.coverage()}
        assert how["Cast"].how == "host" and "int4" in how["Cast"].reason
        got = net.inference({"s": np.array(["a", "b"], object), "x": np.float32([-8, 0.4, 3, 7])})
    assert got["t"].tolist() == ["aa", "bb"]
    assert got["q"].dtype.name == "int4" and got["y"].tolist() == [-8.0, 0.0, 3.0, 7.0]


def test_types_inside_of_subgraphs_are_inferred():
    text = """inner (bool c, string[2] s) => (bool[2] y) {
        y = If (c) <
            then_branch = a () => (bool[2] p) { t = StringConcat (s, s)  u = Identity (t)  p = Equal (u, t) },
            else_branch = b () => (bool[2] q) { q = Equal (s, s) }>
    }"""
    inputs = {"c": np.array(True), "s": np.array(["a", "b"], object)}
    with meta500.network(model(text), backend="torch") as net:
        (node,) = net.coverage()
        assert node.how == "host" and "torch has no string" in node.reason
        assert net.inference(inputs)["y"].tolist() == [True, True]
