"""VGG-16 and VGG-19."""

from __future__ import annotations

from typing import Any

from meta500.errors import UserError
from meta500.graph import Model
from meta500.models import arguments, layers
from meta500.models.adaptive import adaptive_average_pool
from meta500.models.layers import Draft

# Channels of each stage; side of what the classifier reads, and its hidden units.
CHANNELS = (64, 128, 256, 512, 512)
SIDE, HIDDEN = 7, 4096


def vgg16(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    batch_norm: bool = False,
    dropout: float = 0.5,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """VGG-16: thirteen 3x3 convolutions in five stages, and three fully connected layers.

    Source: Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition",
    ICLR 2015 (configuration D), in torchvision's layout and parameter names (``features.0.weight``, ...).

    Layers: five stages of 2, 2, 3, 3, 3 convolutions 3x3 with 64, 128, 256, 512, 512 channels, padded by
    1, each followed by ReLU, and a 2x2 max pool behind each stage; average pool to 7x7 (the identity at
    size 224); classifier: 25088->4096, ReLU, dropout, 4096->4096, ReLU, dropout, 4096->classes. Every
    layer has a bias. 138,357,544 parameters at 1000 classes; 138,365,992 with ``batch_norm``.

    The windows of the average pool are those of PyTorch's AdaptiveAvgPool2d: window i of a side of H
    pixels goes from i H / 7, rounded down, to (i + 1) H / 7, rounded up.

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch,) int64.
    Outputs: "logits" (batch, classes), "loss": SoftmaxCrossEntropyLoss, mean over the batch.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width, or both as one number; at least 32.
        classes: number of classes.
        channels_in: channels of the image.
        batch_norm: batch normalisation between each convolution and its ReLU, with epsilon 1e-5, 0.9 of
            the running statistics kept per step (PyTorch's momentum 0.1), gamma 1 and beta 0 at first.
        dropout: share of the inputs of the classifier's last two layers that a training step drops,
            below 1; 0 leaves the operation out.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations` (torchvision:
            "kaiming_normal_fan_out" for convolutions, N(0, 0.01^2) for the classifier; the paper:
            N(0, 0.01), from a smaller trained network where that does not learn).
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("vgg16", initialization=initialization, seed=seed, dtype=dtype)
    return _vgg(
        net,
        (2, 2, 3, 3, 3),
        batch=batch,
        size=size,
        classes=classes,
        channels_in=channels_in,
        batch_norm=batch_norm,
        dropout=dropout,
        loss=loss,
    )


def vgg19(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    batch_norm: bool = False,
    dropout: float = 0.5,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """VGG-19: sixteen 3x3 convolutions in five stages, and three fully connected layers.

    Source: Simonyan and Zisserman, ICLR 2015 (configuration E). As :func:`vgg16`, where inputs, outputs
    and options are described, but with 2, 2, 4, 4, 4 convolutions in the stages. 143,667,240 parameters
    at 1000 classes; 143,678,248 with ``batch_norm``.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("vgg19", initialization=initialization, seed=seed, dtype=dtype)
    return _vgg(
        net,
        (2, 2, 4, 4, 4),
        batch=batch,
        size=size,
        classes=classes,
        channels_in=channels_in,
        batch_norm=batch_norm,
        dropout=dropout,
        loss=loss,
    )


def _vgg(
    net: Draft,
    counts: tuple[int, ...],
    *,
    batch: int | str | None,
    size: int | tuple[int, int],
    classes: int,
    channels_in: int,
    batch_norm: bool,
    dropout: float,
    loss: bool,
) -> Model:
    """Five stages of ``counts`` convolutions, average pool, and classifier."""
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "batch_norm": arguments.flag("batch_norm", batch_norm),
        "dropout": arguments.ratio("dropout", dropout),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    images, (height, width) = options["batch"], options["size"]
    smallest = 2 ** len(counts)
    if min(height, width) < smallest:
        raise UserError(
            f"size {height}x{width} is too small for the five 2x2 max pools of {net.builder.name}; "
            f"it takes {smallest}x{smallest} or more"
        )
    x = net.builder.input("image", net.dtype, (images, options["channels_in"], height, width))
    channels, index = options["channels_in"], 0
    for c_out, count in zip(CHANNELS, counts, strict=True):
        for _ in range(count):
            x = layers.convolution(net, x, f"features.{index}", (channels, c_out), 3, pad=1)
            if batch_norm:
                index += 1
                x = layers.batch_norm(net, x, f"features.{index}", c_out)
            x = layers.relu(net, x, f"features.{index + 1}")
            channels, index = c_out, index + 2
        x = layers.max_pool(net, x, f"features.{index}", 2)
        index += 1
    sides = (height // smallest, width // smallest)
    x = layers.flatten(net, adaptive_average_pool(net, x, "avgpool", sides, SIDE), "flat")
    x = layers.relu(net, layers.linear(net, x, "classifier.0", (channels * SIDE**2, HIDDEN)), "classifier.1")
    x = layers.dropout(net, x, "classifier.2", dropout) if options["dropout"] else x
    x = layers.relu(net, layers.linear(net, x, "classifier.3", (HIDDEN, HIDDEN)), "classifier.4")
    x = layers.dropout(net, x, "classifier.5", dropout) if options["dropout"] else x
    logits = layers.linear(net, x, "classifier.6", (HIDDEN, options["classes"]))
    return layers.finish(net, logits, (images,) if loss else None, options)
