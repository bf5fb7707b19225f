"""A multi-layer perceptron."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meta500.graph import Model
from meta500.models import arguments, layers


def mlp(
    batch: int | str | None = 64,
    *,
    shape: Sequence[int] = (1, 8, 8),
    hidden: Sequence[int] = (128, 64),
    classes: int = 10,
    seed: int = 0,
    initialization: str = "torch_default",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """Linear layers with ReLU between them.

    Source: Rumelhart, Hinton and Williams, "Learning representations by back-propagating errors",
    Nature 1986; ReLU in place of the sigmoid (Glorot, Bordes and Bengio, AISTATS 2011).

    Layers: flatten; fc1, ReLU; fc2, ReLU; ...; the last fc gives the logits. With the defaults
    64->128->64->10: 8,320 + 8,256 + 650 = 17,226 parameters.

    Inputs: "image" (batch, *shape) of ``dtype``, "label" (batch,) int64. Outputs: "logits" (batch,
    classes), "loss": SoftmaxCrossEntropyLoss, mean over the batch.

    Args:
        batch: samples per batch; None or a name leaves the dimension open.
        shape: of one sample.
        hidden: widths of the hidden layers; empty for softmax regression.
        classes: number of classes.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    sample = arguments.integers("shape", shape)
    widths = arguments.integers("hidden", hidden, empty=True)
    classes = arguments.integer("classes", classes, minimum=2)
    samples = arguments.batch_dimension(batch)
    net = layers.draft("mlp", initialization=initialization, seed=seed, dtype=dtype)

    x = net.builder.input("image", net.dtype, (samples, *sample))
    if len(sample) > 1:
        x = layers.flatten(net, x, "flat")
    features = math.prod(sample)
    for index, width in enumerate(widths, 1):
        x = layers.relu(net, layers.linear(net, x, f"fc{index}", (features, width)), f"relu{index}")
        features = width
    logits = layers.linear(net, x, f"fc{len(widths) + 1}", (features, classes))
    options = {
        "batch": samples,
        "shape": list(sample),
        "hidden": list(widths),
        "classes": classes,
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    return layers.finish(net, logits, (samples,) if loss else None, options)
