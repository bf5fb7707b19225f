"""AlexNet."""

from __future__ import annotations

from typing import Any

from meta500.errors import UserError
from meta500.graph import Model
from meta500.models import arguments, layers
from meta500.models.adaptive import adaptive_average_pool

# Position in ``features``: channels, kernel, stride and padding of the convolutions, each followed by ReLU.
CONVOLUTIONS = {
    0: (64, 11, 4, 2),
    3: (192, 5, 1, 2),
    6: (384, 3, 1, 1),
    8: (256, 3, 1, 1),
    10: (256, 3, 1, 1),
}
POOLS = (2, 5, 12)
# Side of what the classifier reads, and its hidden units.
SIDE, HIDDEN = 6, 4096


def alexnet(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    dropout: float = 0.5,
    seed: int = 0,
    initialization: str = "torch_default",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """AlexNet in its one-column form: five convolutions and three fully connected layers.

    Source: Krizhevsky, Sutskever and Hinton, "ImageNet Classification with Deep Convolutional Neural
    Networks", NIPS 2012, in the form of Krizhevsky, "One weird trick for parallelizing convolutional
    neural networks", arXiv:1404.5997, 2014, with torchvision's layout and parameter names
    (``features.0.weight``, ...). That form has neither local response normalisation nor the groups in
    which the first paper divides the channels over two processors.

    Layers: features: 11x11 stride 4 to 64 channels, pool, 5x5 to 192, pool, 3x3 to 384, 256, 256, pool,
    with ReLU after each convolution and 3x3 max pools of stride 2; average pool to 6x6 (the identity at
    size 224); classifier: dropout, 9216->4096, ReLU, dropout, 4096->4096, ReLU, 4096->classes.
    61,100,840 parameters at 1000 classes; 57,044,810 with 10 classes.

    The windows of the average pool are those of PyTorch's AdaptiveAvgPool2d: window i of a side of H
    pixels goes from i H / 6, rounded down, to (i + 1) H / 6, rounded up.

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch,) int64.
    Outputs: "logits" (batch, classes), "loss": SoftmaxCrossEntropyLoss, mean over the batch.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width, or both as one number; at least 63.
        classes: number of classes.
        channels_in: channels of the image.
        dropout: share of the inputs of the classifier's first two layers that a training step drops,
            below 1; 0 leaves the operation out.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`; the default is torchvision's (the first
            paper: N(0, 0.01^2), and biases 1 in some layers).
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("alexnet", initialization=initialization, seed=seed, dtype=dtype)
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "dropout": arguments.ratio("dropout", dropout),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    images, sides = options["batch"], _inner_size(*options["size"])
    x = net.builder.input("image", net.dtype, (images, options["channels_in"], *options["size"]))
    channels = options["channels_in"]
    for index in range(max(POOLS) + 1):
        if index in CONVOLUTIONS:
            c_out, kernel, stride, pad = CONVOLUTIONS[index]
            x = layers.convolution(
                net, x, f"features.{index}", (channels, c_out), kernel, stride=stride, pad=pad
            )
            channels = c_out
        elif index in POOLS:
            x = layers.max_pool(net, x, f"features.{index}", 3, stride=2)
        else:
            x = layers.relu(net, x, f"features.{index}")
    x = layers.flatten(net, adaptive_average_pool(net, x, "avgpool", sides, SIDE), "flat")
    x = layers.dropout(net, x, "classifier.0", dropout) if options["dropout"] else x
    x = layers.linear(net, x, "classifier.1", (channels * SIDE**2, HIDDEN))
    x = layers.relu(net, x, "classifier.2")
    x = layers.dropout(net, x, "classifier.3", dropout) if options["dropout"] else x
    x = layers.relu(net, layers.linear(net, x, "classifier.4", (HIDDEN, HIDDEN)), "classifier.5")
    logits = layers.linear(net, x, "classifier.6", (HIDDEN, options["classes"]))
    return layers.finish(net, logits, (images,) if loss else None, options)


def _inner_size(height: int, width: int) -> tuple[int, int]:
    """Height and width behind the features.

    Raises:
        UserError: the last max pool would have no window.
    """
    sides = []
    for side in (height, width):
        inner = (side + 4 - 11) // 4 + 1
        for _ in POOLS:
            inner = (inner - 3) // 2 + 1
        sides.append(inner)
    if min(sides) < 1:
        raise UserError(
            f"size {height}x{width} is too small for alexnet's three 3x3 max pools; it takes 63x63 or more"
        )
    return sides[0], sides[1]
