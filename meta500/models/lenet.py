"""LeNet-5."""

from __future__ import annotations

from typing import Any

from meta500.errors import UserError, choose
from meta500.graph import Model
from meta500.models import arguments, layers

_ACTIVATIONS = {"relu": layers.relu, "tanh": layers.tanh}
_POOLS = {"max": layers.max_pool, "average": layers.average_pool}


def lenet(
    batch: int | str | None = 64,
    *,
    size: int = 28,
    classes: int = 10,
    channels_in: int = 1,
    activation: str = "relu",
    pool: str = "max",
    seed: int = 0,
    initialization: str = "torch_default",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """LeNet-5 in its usual present form: ReLU, max pooling, fully connected maps, softmax cross
    entropy.

    Source: LeCun, Bottou, Bengio and Haffner, "Gradient-Based Learning Applied to Document
    Recognition", Proc. IEEE 1998. The published network has tanh units, trainable average pooling,
    a partly connected second convolution and radial-basis outputs; ``activation="tanh",
    pool="average"`` comes nearer to it.

    Layers: conv1 5x5 1->6; pool 2x2; conv2 5x5 6->16; pool 2x2; fc1 400->120; fc2 120->84; fc3
    84->classes; the activation after each convolution, fc1 and fc2. Size 28 pads conv1 by 2, size
    32 does not.
    Parameters: 156 + 2,416 + 48,120 + 10,164 + 850 = 61,706.

    Inputs: "image" (batch, channels_in, size, size) of ``dtype``, "label" (batch,) int64. Outputs:
    "logits" (batch, classes), "loss": SoftmaxCrossEntropyLoss, mean over the batch.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: 28 or 32 pixels.
        classes: number of classes.
        channels_in: channels of the image.
        activation: "relu" or "tanh".
        pool: "max" or "average".
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    height, width = arguments.image_size(size)
    if (height, width) not in ((28, 28), (32, 32)):
        raise UserError(f"lenet takes images of size 28 or 32, not {size!r}")
    classes = arguments.integer("classes", classes, minimum=2)
    channels_in = arguments.integer("channels_in", channels_in)
    activate = _ACTIVATIONS[choose("activation", activation, _ACTIVATIONS)]
    reduce = _POOLS[choose("pool", pool, _POOLS)]
    images = arguments.batch_dimension(batch)
    net = layers.draft("lenet", initialization=initialization, seed=seed, dtype=dtype)

    x = net.builder.input("image", net.dtype, (images, channels_in, height, width))
    x = layers.convolution(net, x, "conv1", (channels_in, 6), 5, pad=(32 - height) // 2)
    x = reduce(net, activate(net, x, "act1"), "pool1")
    x = layers.convolution(net, x, "conv2", (6, 16), 5)
    x = reduce(net, activate(net, x, "act2"), "pool2")
    x = layers.flatten(net, x, "flat")
    x = activate(net, layers.linear(net, x, "fc1", (400, 120)), "act3")
    x = activate(net, layers.linear(net, x, "fc2", (120, 84)), "act4")
    logits = layers.linear(net, x, "fc3", (84, classes))
    options = {
        "batch": images,
        "size": height,
        "classes": classes,
        "channels_in": channels_in,
        "activation": activation,
        "pool": pool,
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    return layers.finish(net, logits, (images,) if loss else None, options)
