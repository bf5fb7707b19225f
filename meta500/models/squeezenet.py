"""SqueezeNet 1.1."""

from __future__ import annotations

from typing import Any

from meta500.errors import UserError
from meta500.graph import Model
from meta500.models import arguments, layers
from meta500.models.layers import Draft

# Position in ``features``: channels of a fire module's squeeze convolution, and of each of its two expanding
# ones.
FIRES = {
    3: (16, 64),
    4: (16, 64),
    6: (32, 128),
    7: (32, 128),
    9: (48, 192),
    10: (48, 192),
    11: (64, 256),
    12: (64, 256),
}
POOLS = (2, 5, 8)
FIRST = 64


def squeezenet1_1(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    dropout: float = 0.5,
    seed: int = 0,
    initialization: str = "kaiming_uniform",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """SqueezeNet 1.1: a convolution, eight fire modules and a convolution, no fully connected layer.

    Source: Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model
    size", arXiv:1602.07360, 2016, in version 1.1 that the authors published with their code (a smaller
    first convolution and earlier pools), with torchvision's layout and parameter names
    (``features.3.squeeze.weight``, ...).

    Layers: features: 3x3 stride 2 to 64 channels, ReLU, pool, two fire modules to 128 channels, pool, two
    to 256, pool, two to 384, two to 512; classifier: dropout, 1x1 convolution to the classes, ReLU, global
    average pool. A fire module is a 1x1 convolution ("squeeze"), of which a 1x1 and a 3x3 convolution each
    make half of the module's channels, joined; all with ReLU. Pools are 3x3 max pools of stride 2, their
    numbers of windows rounded up. Every convolution has a bias. 1,235,496 parameters at 1000 classes;
    727,626 with 10 classes.

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch,) int64.
    Outputs: "logits" (batch, classes), never negative, "loss": SoftmaxCrossEntropyLoss, mean over the
    batch.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width, or both as one number; at least 25.
        classes: number of classes.
        channels_in: channels of the image.
        dropout: share of the last convolution's inputs that a training step drops, below 1; 0 leaves the
            operation out.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations` (torchvision: this default, and
            N(0, 0.01^2) for the last convolution).
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("squeezenet1_1", initialization=initialization, seed=seed, dtype=dtype)
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "dropout": arguments.ratio("dropout", dropout),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    images = options["batch"]
    # The images before the pools have sides of 12, 6 and 3 then: none is smaller than a window.
    if min(options["size"]) < 25:
        raise UserError(
            f"size {options['size'][0]}x{options['size'][1]} is too small for squeezenet1_1's three 3x3 max "
            "pools; it takes 25x25 or more"
        )
    x = net.builder.input("image", net.dtype, (images, options["channels_in"], *options["size"]))
    x = layers.convolution(net, x, "features.0", (options["channels_in"], FIRST), 3, stride=2)
    x, channels = layers.relu(net, x, "features.1"), FIRST
    for index in range(2, max(FIRES) + 1):
        if index in POOLS:
            x = layers.max_pool(net, x, f"features.{index}", 3, stride=2, ceil=True)
        else:
            x, channels = _fire(net, x, f"features.{index}", channels, *FIRES[index])
    x = layers.dropout(net, x, "classifier.0", dropout) if options["dropout"] else x
    x = layers.convolution(net, x, "classifier.1", (channels, options["classes"]), 1)
    logits = layers.global_average_pool(net, layers.relu(net, x, "classifier.2"), "classifier.3")
    return layers.finish(net, logits, (images,) if loss else None, options)


def _fire(net: Draft, x: str, name: str, c_in: int, squeeze: int, expand: int) -> tuple[str, int]:
    """The module's result and its number of channels."""
    x = _unit(net, x, f"{name}.squeeze", (c_in, squeeze), 1)
    parts = tuple(_unit(net, x, f"{name}.expand{k}x{k}", (squeeze, expand), k) for k in (1, 3))
    return layers.concatenate(net, parts, f"{name}.concat"), 2 * expand


def _unit(net: Draft, x: str, name: str, channels: tuple[int, int], kernel: int) -> str:
    """A convolution that keeps the size, and ReLU."""
    x = layers.convolution(net, x, name, channels, kernel, pad=kernel // 2)
    return layers.relu(net, x, f"{name}_activation")
