"""PyTorch modules as networks: the same results, gradients and names, or a clear refusal."""

import builtins

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from meta500.backends.network import network
from meta500.errors import UserError
from meta500.graph import load
from meta500.graph.passes import FOLLOW, MODE_KEY
from meta500.models import from_torch

IMAGE = (2, 3, 8, 8)


def tensor(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def followers(model):
    """Operators of the nodes that follow the mode, in order."""
    return [op.op_type for op in model.graph.operations if op.metadata.get(MODE_KEY) == FOLLOW]


class WithoutDropout:
    """Turns all dropout of a module off while it trains, and of its network with it."""

    def __init__(self, module, model):
        self.parts = [part for part in module.modules() if "Dropout" in type(part).__name__]
        self.rates = [part.p for part in self.parts]
        names = {op.ratio for op in model.graph.operations if op.op_type == "Dropout"}
        for name in names:
            model.graph.initializers[name] = np.zeros_like(model.graph.initializers[name])

    def __enter__(self):
        for part in self.parts:
            part.p = 0.0

    def __exit__(self, *_):
        for part, rate in zip(self.parts, self.rates, strict=True):
            part.p = rate


def assert_same(module, model, inputs, batch_statistics=True):
    """Inference, and a training step without dropout, equal to the module's to 1e-10 in float64."""
    onnx.checker.check_model(model.to_proto(), full_check=True)
    names = [n for n, p in module.named_parameters() if p.requires_grad]
    assert list(model.parameters) == names
    for name, parameter in module.named_parameters():
        assert np.array_equal(model.graph.initializers[name], parameter.detach().numpy()), name
    feeds = dict(zip(model.inputs, (x.numpy() for x in inputs), strict=True))
    output = next(iter(model.outputs))
    weights = tensor(*module.eval()(*inputs).shape, seed=9)

    with WithoutDropout(module, model), network(model, backend="torch") as net:
        inferred = net.inference(feeds)[output]
        np.testing.assert_allclose(inferred, module(*inputs).detach(), rtol=1e-10, atol=1e-10)
        module.train(batch_statistics)
        expected = module(*inputs)
        assert model.outputs[output].shape == tuple(expected.shape)
        # A scalar that depends on every element in its own way.
        (expected * weights).sum().backward()
        trained, gradients = gradients_of(model, feeds, output, weights)
    np.testing.assert_allclose(trained, expected.detach(), rtol=1e-10, atol=1e-10)
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            size = parameter.grad.abs().max().item()
            np.testing.assert_allclose(gradients[name], parameter.grad, rtol=0, atol=1e-10 * (1 + size))


def gradients_of(model, feeds, output, weights):
    """Output and gradients of sum(output * weights) in a training step."""
    from meta500.graph import ops
    from meta500.graph.model import Graph, Model

    graph = model.graph
    mul = ops.Mul(output, "probe.weights", C="probe.product", opset=model.opset)
    total = ops.ReduceSum("probe.product", reduced="probe", keepdims=0, opset=model.opset)
    probed = Graph(
        name=graph.name,
        inputs=graph.inputs,
        outputs={output: graph.outputs[output], "probe": None},
        initializers={**graph.initializers, "probe.weights": weights.numpy()},
        operations=[*graph.operations, mul, total],
    )
    whole = Model(probed, dict(model.opset_imports), trainable=model.trainable)
    with network(whole, backend="torch") as net:
        out = net.inference_and_backprop(feeds, loss="probe")
        pairs = net.gradient()
        values = net.fetch_tensors([g for _, g in pairs])
    return out[output], dict(zip([p for p, _ in pairs], values, strict=True))


class Classifier(nn.Module):
    """Convolution, normalisation, dropout of values and of channels, an affine buffer."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4, eps=1e-3, momentum=0.25),
            nn.LeakyReLU(0.03, inplace=True),
            nn.Dropout2d(0.2),
            nn.MaxPool2d(2),
        )
        self.register_buffer("shift", torch.full((4, 1, 1), 0.5))
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(64, 5)

    def forward(self, x):
        return self.head(self.drop(torch.flatten(self.features(x) + self.shift, 1)))


class Skips(nn.Module):
    """A U-Net of one level whose skip goes around a dropout."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 4, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.deep = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.head = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        skip = self.down(x).relu()
        x = self.deep(F.avg_pool2d(self.drop(skip), 2)).relu()
        return self.head(torch.cat([skip, self.up(x)], dim=1))


class Tied(nn.Module):
    """One matrix under two names, one module used twice."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 4, bias=False)
        self.again = nn.Linear(4, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.mirror = nn.Linear(6, 4)
        self.mirror.weight = self.embed.weight

    def forward(self, x):
        y = self.again(self.again(self.embed(x)).tanh()) + self.mirror(x)
        return self.out(y)


class Norms(nn.Module):
    """Statistics of the batch in both modes, of the instance, and nothing to learn."""

    def __init__(self):
        super().__init__()
        self.batch = nn.BatchNorm2d(4, track_running_stats=False)
        self.plain = nn.BatchNorm2d(4, affine=False)
        self.instance = nn.InstanceNorm2d(4, affine=True)
        self.first = nn.Conv2d(3, 4, 1)

    def forward(self, x):
        return self.instance(self.plain(self.batch(self.first(x)).sigmoid()))


class Splits(nn.Module):
    """Chunks, a slice, a permutation and arithmetic with numbers."""

    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(6, 12)

    def forward(self, x):
        a, b, c = self.mix(x).chunk(3, dim=-1)
        y = F.elu(a * 0.1 + b.softmax(-1) / (1 / 3), alpha=2 / 3) - c.clamp(-0.7, 0.3)
        y = torch.add(y, torch.where(c > 0.1, a, 0.2), alpha=0.3) + torch.full_like(y, 0.9)
        return y[:, 1:].transpose(0, 1)


ROUND_TRIPS = {
    "classifier": (Classifier, [IMAGE], ["BatchNormalization", "Dropout", "Dropout"]),
    "skips": (Skips, [IMAGE], ["Dropout"]),
    "tied": (Tied, [(3, 6)], []),
    "norms": (Norms, [IMAGE], ["BatchNormalization"]),
    "splits": (Splits, [(3, 6)], []),
    "perceptron": (
        lambda: nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 5), nn.GELU(), nn.LayerNorm(5), nn.Linear(5, 2)),
        [(3, 6)],
        ["Dropout"],
    ),
    "transposed": (
        lambda: nn.Sequential(
            nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1, groups=1),
            nn.Conv2d(4, 4, 3, stride=2, padding=2, dilation=2, groups=2, bias=False),
        ),
        [IMAGE],
        [],
    ),
    "attention": (
        lambda: nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True),
        [(2, 3, 4)],
        ["Dropout", "Dropout", "Dropout"],
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_round_trips(name):
    make, shapes, expected = ROUND_TRIPS[name]
    torch.manual_seed(3)
    module = make().double()
    inputs = tuple(tensor(*shape) for shape in shapes)
    model = from_torch(module, inputs)
    assert followers(model) == expected
    assert_same(module, model, inputs)


def test_a_module_is_left_as_it_was():
    module = Classifier()
    module.features[1].eval()
    module.features[0].weight.requires_grad_(False)
    state = {key: value.clone() for key, value in module.state_dict().items()}
    flags = [part.training for part in module.modules()]
    generator = torch.get_rng_state()
    model = from_torch(module, torch.zeros(IMAGE))
    assert flags == [part.training for part in module.modules()]
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(state[key], value) for key, value in module.state_dict().items())
    assert all(p.grad is None for p in module.parameters())
    # The normalisation that is frozen does not train, the frozen weight is no parameter.
    assert followers(model) == ["Dropout", "Dropout"]
    assert "features.0.weight" not in model.parameters
    assert "features.0.weight" in model.graph.initializers
    # The weights are copies.
    before = model.graph.initializers["head.bias"].copy()
    with torch.no_grad():
        module.head.bias.add_(1)
    assert np.array_equal(model.graph.initializers["head.bias"], before)


def test_numbers_of_the_module_arrive_exactly():
    model = from_torch(Classifier(), torch.zeros(IMAGE))
    found = {op.op_type: op for op in model.graph.operations}
    norm = found["BatchNormalization"]
    assert (norm.epsilon, norm.momentum) == (1e-3, 0.75)
    assert found["LeakyRelu"].alpha == 0.03
    rates = [model.graph.initializers[op.ratio] for op in model.graph.operations if op.op_type == "Dropout"]
    assert [float(rate) for rate in rates] == [np.float32(0.2), np.float32(0.3)]
    assert [op.op_type for op in model.graph.operations] == [
        "Conv", "BatchNormalization", "LeakyRelu", "Dropout", "Mul", "MaxPool", "Add", "Reshape", "Dropout", "Gemm",
    ]  # fmt: skip
    assert "shift" in model.graph.initializers and "shift" not in model.parameters
    assert not any(op.doc_string or set(op.metadata) - {MODE_KEY} for op in model.graph.operations)
    assert load(model.to_proto()).parameters == model.parameters


def test_dropout_drops_in_training_steps_only():
    module = nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5), nn.Flatten(), nn.Linear(400, 1))
    model = from_torch(module, torch.zeros(2, 100, 2, 2), loss="mse", output_names=["y"])
    assert followers(model) == ["Dropout", "Dropout"]
    feeds = {"input": np.ones((2, 100, 2, 2), np.float32), "label": np.zeros((2, 1), np.float32)}
    expected = module.eval()(torch.ones(2, 100, 2, 2)).detach().numpy()
    with network(model, backend="torch") as net:
        for _ in range(2):
            np.testing.assert_allclose(net.inference(feeds, ["y"])["y"], expected, atol=1e-6)
        first, second = (net.inference_and_backprop(feeds)["y"] for _ in range(2))
        assert not np.allclose(first, second) and not np.allclose(first, expected)
        np.testing.assert_allclose(net.inference(feeds, ["y"])["y"], expected, atol=1e-6)


def test_dropout_can_be_left_out():
    for module in (Classifier(), nn.Sequential(nn.Linear(3, 3), nn.AlphaDropout(0.1))):
        example = torch.zeros(IMAGE) if isinstance(module, Classifier) else torch.zeros(2, 3)
        model = from_torch(module, example, dropout="drop")
        assert "Dropout" not in {op.op_type for op in model.graph.operations}


def test_inference_only():
    model = from_torch(Classifier(), torch.zeros(IMAGE), mode="inference")
    kinds = [op.op_type for op in model.graph.operations]
    assert not followers(model) and "Dropout" not in kinds and "BatchNormalization" in kinds


class Always(nn.Module):
    def forward(self, x):
        return F.dropout(F.dropout(x, 0.5), 0.25, training=False)


@pytest.mark.parametrize("mode", ["follow", "inference"])
def test_dropout_that_is_always_on_stays_on(mode):
    model = from_torch(Always(), torch.zeros(2, 50), mode=mode)
    (op,) = model.graph.operations
    assert op.op_type == "Dropout" and not followers(model)
    assert model.graph.initializers[op.training_mode].item() is True


def test_dropout_in_place_and_of_attention():
    module = nn.Sequential(
        nn.Conv2d(3, 3, 1), nn.ReLU(True), nn.Dropout(0.4, inplace=True), nn.Conv2d(3, 3, 1)
    )
    model = from_torch(module, torch.zeros(IMAGE))
    assert [op.op_type for op in model.graph.operations] == ["Conv", "Relu", "Dropout", "Conv"]
    assert followers(model) == ["Dropout"]
    # Dropout that the module calls in training only, and not at all in inference.
    attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
    model = from_torch(attention, (torch.zeros(2, 3, 4),) * 3)
    assert followers(model) == ["Dropout"] and list(model.inputs) == ["query", "key", "value"]


@pytest.mark.parametrize("batch", [True, "samples"])
def test_open_batch(batch):
    torch.manual_seed(0)
    module = Classifier().double()
    model = from_torch(module, tensor(*IMAGE), dynamic_batch=batch, loss="cross_entropy")
    name = "N" if batch is True else batch
    assert model.inputs["x"].shape == (name, 3, 8, 8) and model.inputs["label"].shape == (name,)
    assert model.outputs["logits"].shape == (name, 5)
    reshape = next(op for op in model.graph.operations if op.op_type == "Reshape")
    assert model.graph.initializers[reshape.shape].tolist() == [-1, 64]
    module.eval()
    with network(model, backend="torch") as net:
        for count in (1, 2, 5):
            x = tensor(count, 3, 8, 8, seed=count)
            result = net.inference({"x": x.numpy()}, ["logits"])["logits"]
            np.testing.assert_allclose(result, module(x).detach(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loss", ["cross_entropy", "mse"])
def test_losses(loss):
    module = nn.Conv2d(3, 4, 1).double()
    x = tensor(*IMAGE)
    model = from_torch(module, x, loss=loss, input_names=["image"])
    prediction = module(x)
    if loss == "mse":
        target = tensor(2, 4, 8, 8, seed=1)
        expected = F.mse_loss(prediction, target).item()
    else:
        target = torch.arange(128).reshape(2, 8, 8) % 4
        expected = F.cross_entropy(prediction, target).item()
    assert list(model.inputs) == ["image", "label"]
    assert list(model.outputs) == [{"mse": "output"}.get(loss, "logits"), "loss"]
    onnx.checker.check_model(model.to_proto(), full_check=True)
    with network(model, backend="torch") as net:
        result = net.inference({"image": x.numpy(), "label": target.numpy()})["loss"]
    np.testing.assert_allclose(result, expected, rtol=1e-12)


class Awkward(nn.Module):
    """Parameters with the names of values, several outputs, among them an input."""

    def __init__(self):
        super().__init__()
        self.relu, self.x = nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x, *, scale):
        y = torch.relu(x * self.x) + self.relu
        return {"second": (y * scale, x), "first": y}


def test_names():
    example = {"x": torch.zeros(2, 3), "scale": np.ones((2, 3), np.float32)}
    with pytest.raises(UserError, match="'Awkward': the name 'x' is needed twice"):
        from_torch(Awkward(), example)
    model = from_torch(
        Awkward(), example, input_names=["a", "linear"], output_names=["mul", "p", "add"], name="net"
    )
    assert (model.name, list(model.inputs), list(model.outputs)) == (
        "net",
        ["a", "linear"],
        ["mul", "p", "add"],
    )
    assert model.parameters == ("relu", "x")
    assert model.metadata["meta500.model"] == "Awkward"
    a, scale = np.array([[-1, 2, 3]] * 2, np.float32), np.full((2, 3), 3, np.float32)
    with network(model, backend="torch") as net:
        out = net.inference({"a": a, "linear": scale})
    np.testing.assert_array_equal(out["add"], np.maximum(2 * a, 0) + 1)
    np.testing.assert_array_equal(out["mul"], 3 * out["add"])
    np.testing.assert_array_equal(out["p"], a)


class Wrong(nn.Module):
    """One module that can't be a network for each value of ``fault``."""

    def __init__(self, fault):
        super().__init__()
        self.fault, self.layer, self.other = fault, nn.Linear(3, 3), nn.Linear(3, 3)
        self.register_buffer("count", torch.zeros(3))
        self.norm = nn.BatchNorm1d(3, momentum=None if fault == "momentum" else 0.1)
        self.lstm = nn.LSTM(3, 3, 2, dropout=0.5)

    def forward(self, x):
        y = self.other(self.layer(x))
        match self.fault:
            case "branch" if y.sum() > 0:
                return -y
            case "auxiliary" if self.training:
                return y, self.other(y)
            case "depth" if self.training:
                return y * torch.bernoulli(torch.full((2, 1), 0.5))
            case "factor":
                return y * (0.5 if self.training else 1.0)
            case "constant":
                return y + torch.tensor([1.0, 2.0, 3.0] if self.training else [0.0, 0.0, 0.0])
            case "counter":
                self.count += 1
                return y * self.count
            case "unused":
                return self.layer(x)
            case "twice":
                return y, y
            case "none":
                return y, None
            case "alpha":
                return F.alpha_dropout(y, 0.1, self.training)
            case "norm":
                return self.norm(self.norm(y))
            case "lstm":
                return self.lstm(y[None])[0]
            case "svd":
                return torch.linalg.svd(y)[0]
        return y


FAULTS = {
    "branch": "'Wrong' in training mode cannot be exported: Could not guard on data-dependent expression",
    "auxiliary": r"training comes to aten.linear.default \(in 'other'\) where inference comes to the end",
    "depth": "something else in training than in inference: training comes to aten.full.default",
    "factor": "aten.mul.Tensor has other=0.5 in training and 1.0 in inference; put the parts",
    "constant": "computes something else in training than in inference",
    "counter": "'Wrong' changes count in inference",
    "unused": "parameters do not reach the outputs: other.weight, other.bias, norm.weight",
    "twice": "returns the same tensor twice",
    "none": "returns None, which is no tensor",
    "alpha": "dropout of aten.alpha_dropout.default has no form in ONNX.*dropout='drop'",
    "norm": "normalisation of 'norm.running_mean' is used twice",
    "momentum": r"'norm' \(BatchNorm1d\) has momentum=None",
    "lstm": r"dropout of aten.lstm.input \(in 'lstm'\) has no form in ONNX",
    "svd": "'Wrong' cannot be written in ONNX: No ONNX function found for .*svd",
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_modules_that_cannot_be_networks_are_refused(fault, capfd):
    module = Wrong(fault)
    with pytest.raises(UserError, match=FAULTS[fault]) as caught:
        from_torch(module, torch.ones(2, 3))
    assert "\n" not in str(caught.value)
    assert all(part.training for part in module.modules())
    assert capfd.readouterr() == ("", "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"example_inputs": torch.zeros(2, 4)},
            r"'Linear' does not run on the example inputs \(float32\[2, 4\]\)",
        ),
        (
            {"example_inputs": ()},
            r"on the example inputs \(none\): TypeError: .*missing 1 required positional",
        ),
        ({"example_inputs": {"y": torch.zeros(2, 3)}}, "unexpected keyword argument 'y'"),
        ({"example_inputs": [1.0]}, "example input 0 must be a tensor or a numpy array, not float"),
        ({"example_inputs": {"input": None}}, "example input 'input' must be"),
        ({"loss": "bce"}, "unknown loss 'bce'. Choose one of: cross_entropy, mse"),
        ({"mode": "train"}, "unknown mode 'train'"),
        ({"dropout": "keep"}, "unknown dropout 'keep'. Choose one of: drop, follow"),
        ({"opset": 17}, "opset must be an integer from 18 to"),
        ({"opset": 99}, "opset must be an integer from 18 to"),
        ({"dynamic_batch": 3}, "dynamic_batch must be True, False or a name, not 3"),
        ({"dynamic_batch": True, "example_inputs": torch.zeros(1, 3)}, "of at least 2; theirs: 1"),
        ({"input_names": ["a", "b"]}, r"'Linear' has 1 inputs \(input\); input_names gives"),
        ({"output_names": "output"}, "has 1 outputs .*; output_names gives 'output'"),
        ({"output_names": ["input"]}, "the name 'input' is needed twice"),
        ({"loss": "mse", "label": "input"}, "the name 'input' is needed twice"),
        ({"loss": "cross_entropy", "example_inputs": torch.zeros(3)}, r"needs logits \(N, classes, \.\.\.\)"),
        ({"module": "net.pt"}, "takes a torch.nn.Module, not str"),
        (
            {"module": torch.jit.ScriptModule()},
            "original module, not one compiled",
        ),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    given = {"module": nn.Linear(3, 3), "example_inputs": torch.zeros(2, 3), **options}
    with pytest.raises(UserError, match=message):
        from_torch(**given)


@pytest.mark.parametrize("package", ["torch", "onnxscript"])
def test_a_missing_package_is_named(package, monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == package:
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(UserError, match=f"from_torch needs {package}: pip install {package}"):
        from_torch(nn.Linear(3, 3), torch.zeros(2, 3))


@pytest.mark.parametrize("opset", [18, 22])
def test_other_opsets_and_silence(opset, capfd, recwarn):
    model = from_torch(Classifier(), torch.zeros(IMAGE), opset=opset)
    assert model.opset == opset
    onnx.checker.check_model(model.to_proto(), full_check=True)
    assert capfd.readouterr() == ("", "") and not recwarn.list
