"""Operators of your own: Swish in Python, a step of the heat equation in C++; checked, written, trained.

The C++ operator is compiled when it first runs; a C++ compiler has to be installed.
"""

import numpy as np

import meta500
from meta500.custom import operator
from meta500.graph import Builder, ops


@operator("examples", outputs={"y": "x"}, dtypes=("float32", "float64"))
def Swish(x, *, beta: float = 1.0):
    """y = x / (1 + exp(-beta x)); Ramachandran et al., 2017."""
    return x / (1 + np.exp(-beta * x))


@Swish.backward
def swish_backward(call, d_y):
    x, beta = call.inputs[0], call.attributes["beta"]
    s = 1 / (1 + np.exp(-beta * x))
    return d_y * (s + beta * x * s * (1 - s))


@operator(
    "examples", outputs={"y": "u"}, dtypes=("float32", "float64"), ranks={"u": 3}, source="heat_step.cpp"
)
def HeatStep(u, *, rate: float = 0.2):
    """The reference that the C++ function is checked against."""
    neighbours = sum(np.roll(u, by, axis) for axis in (1, 2) for by in (1, -1))
    return u + rate * (neighbours - 4 * u)


rng = np.random.default_rng(0)
print(meta500.check_operator(Swish, [rng.standard_normal((4, 5))], {"beta": 1.5}))
print(meta500.check_operator(HeatStep, [rng.standard_normal((2, 6, 7))]))

b = Builder("smooth")
image, label = b.input("image", "float32", ("N", 8, 8)), b.input("label", "int64", ("N",))
weight = b.parameter("weight", 0.1 * rng.standard_normal((64, 10)).astype(np.float32))
hidden = b.add(Swish, b.add(HeatStep, image, rate=0.1), beta=1.5)
b.output(b.add(ops.MatMul, b.add(ops.Flatten, hidden), weight), "logits")
b.output(b.add(ops.SoftmaxCrossEntropyLoss, "logits", label), "loss")
model = meta500.load(b.build().to_proto().SerializeToString())  # as if written to a file and read again

digits, _ = meta500.datasets.load("digits")
batch = digits.batch(np.arange(64))
fed = {"image": batch["image"].reshape(64, 8, 8), "label": batch["label"]}
for backend in ("numpy", "torch"):
    with meta500.network(model, backend=backend) as net:
        optimizer = meta500.optimizers.Adam(net, learning_rate=0.01)
        losses = [float(optimizer.train(fed)["loss"]) for _ in range(20)]
    print(f"{backend}: loss {losses[0]:.6f} -> {losses[-1]:.6f}")
