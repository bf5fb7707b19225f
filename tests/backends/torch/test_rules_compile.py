"""Rules as ``torch.fx`` nodes, eager and traced whole by ``torch.compile``."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import fx

from meta500.backends.torch.compilation import before_compiling
from meta500.backends.torch.operators import rules

before_compiling()

X = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(0))
W = torch.randn(4, 4, 3, 3, generator=torch.Generator().manual_seed(1))
C = torch.tensor([0.5, 1.0, 1.5, 2.0])
LABELS = torch.randint(0, 4, (2, 8, 8), generator=torch.Generator().manual_seed(2))
BYTES = torch.arange(12).reshape(3, 4)

# (operator, version, tensors, host inputs behind them, attributes, number of outputs)
CALLS: list[tuple[str, int, tuple[Any, ...], dict[str, Any], int]] = [
    ("Conv", 22, (X, W, C), {"pads": (1, 1, 1, 1), "strides": (2, 2)}, 1),
    ("Conv", 22, (X, W), {"auto_pad": "SAME_LOWER", "strides": (2, 2), "kernel_shape": (3, 3)}, 1),
    ("ConvTranspose", 22, (X, W, C), {"strides": (2, 2), "pads": (1, 1, 0, 0)}, 1),
    ("ConvTranspose", 22, (X, W, C), {"strides": (2, 2), "pads": (0, 0, 3, 2)}, 1),
    ("MaxPool", 22, (X,), {"kernel_shape": (2, 2), "strides": (2, 2)}, 2),
    ("MaxPool", 22, (X,), {"kernel_shape": (3, 3), "pads": (2, 1, 1, 0), "storage_order": 1}, 2),
    ("AveragePool", 22, (X,), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, 1),
    ("AveragePool", 22, (X,), {"kernel_shape": (3, 2), "pads": (2, 1, 0, 0), "dilations": (2, 1)}, 1),
    ("BatchNormalization", 15, (X, C, C, C, C), {}, 1),
    ("BatchNormalization", 15, (X, C, C, C, C), {"training_mode": 1}, 3),
    ("BatchNormalization", 9, (X, C, C, C, C), {}, 5),
    ("InstanceNormalization", 22, (X, C, C), {}, 1),
    ("LayerNormalization", 17, (X, torch.ones(8)), {}, 1),
    ("LayerNormalization", 17, (X, torch.ones(1)), {"axis": 2}, 3),
    ("LRN", 13, (X,), {"size": 3}, 1),
    ("SoftmaxCrossEntropyLoss", 13, (X, LABELS), {}, 1),
    ("SoftmaxCrossEntropyLoss", 13, (X, LABELS, C), {"ignore_index": 1, "reduction": "sum"}, 2),
    ("NegativeLogLikelihoodLoss", 13, (X, LABELS.int()), {}, 1),
    ("MeanSquaredError", 1, (X, X + 1), {}, 1),
    ("Reshape", 14, (X, (0, -1)), {}, 1),
    ("Flatten", 13, (X,), {"axis": -2}, 1),
    ("Resize", 19, (X, None, (1.0, 1.0, 2.0, 2.0)), {"mode": "linear"}, 1),
    ("Resize", 19, (X, None, (1.0, 1.0, 2.0, 2.0)), {}, 1),
    ("Resize", 19, (X, None, None, (2, 4, 5, 11)), {"nearest_mode": "ceil"}, 1),
    ("Resize", 19, (X, None, None, (5, 11)), {"mode": "cubic", "axes": (2, 3), "antialias": 1}, 1),
    ("Resize", 19, (torch.ones(1, 80), None, (1.0, 1.7)), {"mode": "linear"}, 1),
    (
        "Resize",
        19,
        (X, (0.1, 0.1, 1.2, 0.8), None, (5, 6)),
        {"axes": (2, 3), "coordinate_transformation_mode": "tf_crop_and_resize"},
        1,
    ),
    ("Slice", 13, (X, (6, 1), (-9, 5), (-1, 1), (-2, 2)), {}, 1),
    ("Pad", 19, (X, (0, 0, 9, 1, 0, 0, 2, 0)), {"mode": "reflect"}, 1),
    ("Pad", 19, (X, (1, -1), 0.5, (1,)), {}, 1),
    ("Split", 18, (X,), {"axis": 1, "num_outputs": 3}, 3),
    ("Gather", 13, (X, torch.tensor(-1)), {"axis": 1}, 1),
    ("Gather", 13, (X, torch.tensor([[0, -1]])), {"axis": 1}, 1),
    ("Concat", 13, (X, X), {"axis": 1}, 1),
    ("Unsqueeze", 13, (X, (0, -1)), {}, 1),
    ("Squeeze", 13, (X[:1], (0,)), {}, 1),
    ("Expand", 13, (C, (2, 1)), {}, 1),
    ("Tile", 13, (C, (3,)), {}, 1),
    ("Shape", 15, (X,), {"start": 1}, 1),
    ("Cast", 13, (X,), {"to": 7}, 1),
    ("Gemm", 13, (X[0, 0], X[0, 1], X[0, 2, 0]), {"alpha": 0.5, "transB": 1}, 1),
    ("MatMul", 13, (X, X), {}, 1),
    ("Softmax", 11, (X,), {"axis": 2}, 1),
    ("Selu", 6, (X,), {}, 1),
    ("Clip", 13, (X, torch.tensor(-0.5), torch.tensor(0.5)), {}, 1),
    ("Max", 13, (X, X + 1, C[:, None, None]), {}, 1),
    ("Div", 14, (BYTES, BYTES + 1), {}, 1),
    ("Div", 14, (BYTES.to(torch.uint64), (BYTES + 1).to(torch.uint64)), {}, 1),
    ("Add", 6, (X, C), {"broadcast": 1, "axis": 1}, 1),
    ("Pow", 15, (X, torch.tensor(2)), {}, 1),
    ("ReduceMean", 18, (X, (2, 3)), {"keepdims": 0}, 1),
    ("ReduceMax", 20, (X,), {}, 1),
    ("ReduceL2", 18, (X, (1,)), {}, 1),
    ("ReduceProd", 18, (X, (1, 2)), {}, 1),
    ("ArgMax", 13, (X,), {"select_last_index": 1, "axis": 1}, 1),
    ("Dropout", 13, (X, 0.5, False), {}, 2),
]


def _graph(
    op_type: str, version: int, inputs: tuple[Any, ...], attributes: dict[str, Any], n_outputs: int
) -> Any:
    """A module with one fx node for the rule, and the tensors to call it with."""
    entry = rules.find("meta500" if op_type == "MeanSquaredError" else "", op_type, version)
    assert entry is not None
    graph = fx.Graph()
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    operands = [
        graph.placeholder(f"x{i}") if isinstance(v, torch.Tensor) else v for i, v in enumerate(inputs)
    ]
    injected = {"n_outputs": n_outputs, "since_version": version, "rng": None}
    keywords = attributes | {name: injected[name] for name in entry.rule.injected}
    graph.output(graph.call_function(entry.rule.function, tuple(operands), keywords))
    return fx.GraphModule(torch.nn.Module(), graph), tensors


@pytest.mark.parametrize("call", CALLS, ids=lambda c: f"{c[0]}-{c[1]}")
def test_rule_traces_as_one_graph(call: Any) -> None:
    module, tensors = _graph(*call)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    expected, got = module(*tensors), compiled(*tensors)
    torch.testing.assert_close(got, expected, rtol=0, atol=0)


@pytest.mark.parametrize(
    "call",
    [c for c in CALLS if c[0] in ("Conv", "BatchNormalization", "MaxPool", "Resize") and c[4] < 4][::2],
    ids=lambda c: f"{c[0]}-{c[1]}",
)
def test_gradients_survive_tracing(call: Any) -> None:
    module, tensors = _graph(*call)
    torch.compiler.reset()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    found = []
    for run in (module, compiled):
        leaves = [t.clone().requires_grad_() for t in tensors]
        if call[0] == "BatchNormalization":
            leaves = leaves[:3] + [t.detach() for t in leaves[3:]]
        outputs = run(*leaves)
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        (first * first).sum().backward()
        found.append([leaf.grad for leaf in leaves if leaf.requires_grad])
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_dropout_traces_without_its_generator() -> None:
    """A generator cannot enter a compiled graph: the default one, seeded by ``manual_seed``, draws there."""
    entry = rules.find("", "Dropout", 13)
    assert entry is not None
    rng = torch.Generator()

    def run(x: torch.Tensor) -> Any:
        return entry.rule.function(x, 0.25, True, n_outputs=2, rng=rng)

    torch.compiler.reset()
    compiled = torch.compile(run, backend="eager", fullgraph=True)
    x = torch.ones(4000)
    torch.manual_seed(5)
    y, mask = compiled(x)
    torch.manual_seed(5)
    again, _ = compiled(x)
    assert torch.equal(y, again)
    assert torch.equal(y, mask / 0.75)
    assert 0.7 < mask.float().mean().item() < 0.8


def test_dropout_with_a_seed_draws_outside_of_the_compiled_graph() -> None:
    entry = rules.find("", "Dropout", 13)
    assert entry is not None

    def run(x: torch.Tensor) -> Any:
        return entry.rule.function(x, 0.25, True, seed=3)

    torch.compiler.reset()
    kept = np.random.RandomState(3).uniform(0.0, 1.0, 400) >= 0.25
    compiled = torch.compile(run, backend="eager")(torch.ones(400))
    np.testing.assert_allclose(compiled.numpy(), kept / 0.75, rtol=1e-6)


def test_rules_are_plain_functions() -> None:
    """Importable by name, as fx code and caches need them: no lambdas, closures or bound methods."""
    for entry in rules:
        function = entry.rule.function
        assert inspect.isfunction(function) and function.__closure__ is None
        assert getattr(inspect.getmodule(function), function.__name__).function is function


def test_the_compiler_is_loaded_for_compiled_networks_only() -> None:
    """It takes seconds; the first call of a compiled network does not pay for it."""
    program = (
        "import sys, numpy as np, meta500\n"
        "from meta500.models import create\n"
        "model = create('mlp', batch=2)\n"
        "given = {name: np.zeros(t.shape, t.dtype) for name, t in model.inputs.items()}\n"
        "with meta500.network(model, backend='torch') as net:\n"
        "    net.inference_and_backprop(given, loss='loss')\n"
        "print('torch._dynamo' in sys.modules)\n"
        "meta500.network(model, backend='torch', mode='compile').close()\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
