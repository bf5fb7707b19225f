"""DenseNet-121: every layer reads what all layers before it in its block have made."""

from __future__ import annotations

from typing import Any

from meta500.errors import UserError
from meta500.graph import Model
from meta500.models import arguments, layers
from meta500.models.layers import Draft

# Layers in each of the four dense blocks, channels that a layer adds, channels of its 1x1 convolution in
# units of these, and channels of the first convolution.
BLOCKS = (6, 12, 24, 16)
GROWTH = 32
BOTTLENECK = 4
FIRST = 64


def densenet121(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    small_images: bool = False,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """DenseNet-121: four dense blocks of 6, 12, 24 and 16 layers, growth 32.

    Source: Huang, Liu, van der Maaten and Weinberger, "Densely Connected Convolutional Networks", CVPR
    2017 (DenseNet-BC, k = 32, compression 0.5), in torchvision's layout and parameter names
    (``features.denseblock1.denselayer1.conv1.weight``, ...).

    Layers: conv0 7x7 stride 2 to 64 channels, batch normalisation, ReLU, 3x3 max pool of stride 2;
    denseblock1..4, each layer of which writes 32 channels (normalisation, ReLU, 1x1 convolution to 128
    channels, normalisation, ReLU, 3x3 convolution) behind those that it read; between two blocks a
    transition: normalisation, ReLU, 1x1 convolution to half the channels, 2x2 average pool;
    normalisation, ReLU, global average pool; classifier. Convolutions have no bias. 7,978,856
    parameters at 1000 classes; 6,956,426 with ``small_images`` and 10 classes.

    Batch normalisation has epsilon 1e-5, keeps 0.9 of the running statistics per step (PyTorch's
    momentum 0.1), and begins with gamma 1, beta 0. ``initialization`` holds for all convolutions and
    the classifier; its default is the paper's (torchvision: "torch_default" for the classifier's weight).
    There is no dropout, as in the paper's training on ImageNet.

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch,) int64.
    Outputs: "logits" (batch, classes), "loss": SoftmaxCrossEntropyLoss, mean over the batch.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width, or both as one number; at least 29, or 8 with ``small_images``.
        classes: number of classes.
        channels_in: channels of the image.
        small_images: for images such as CIFAR's 32x32: conv0 is 3x3 of stride 1, and there is no
            max pool.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("densenet121", initialization=initialization, seed=seed, dtype=dtype)
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "small_images": arguments.flag("small_images", small_images),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    _check_size(options["size"], small_images)
    images = options["batch"]
    x = net.builder.input("image", net.dtype, (images, options["channels_in"], *options["size"]))
    kernel, stride, pad = (3, 1, 1) if small_images else (7, 2, 3)
    x = layers.convolution(
        net, x, "features.conv0", (options["channels_in"], FIRST), kernel, stride=stride, pad=pad, bias=False
    )
    x = layers.relu(net, layers.batch_norm(net, x, "features.norm0", FIRST), "features.relu0")
    if not small_images:
        x = layers.max_pool(net, x, "features.pool0", 3, stride=2, pad=1)
    channels = FIRST
    for number, count in enumerate(BLOCKS, 1):
        for index in range(1, count + 1):
            name = f"features.denseblock{number}.denselayer{index}"
            new = _layer(net, x, name, channels)
            x = layers.concatenate(net, (x, new), f"{name}.concat")
            channels += GROWTH
        if number < len(BLOCKS):
            x, channels = _transition(net, x, f"features.transition{number}", channels)
    x = layers.relu(net, layers.batch_norm(net, x, "features.norm5", channels), "features.relu5")
    x = layers.global_average_pool(net, x, "avgpool")
    logits = layers.linear(net, x, "classifier", (channels, options["classes"]))
    return layers.finish(net, logits, (images,) if loss else None, options)


def _layer(net: Draft, x: str, name: str, c_in: int) -> str:
    """The GROWTH channels that a dense layer adds to ``x``."""
    inside = BOTTLENECK * GROWTH
    y = layers.relu(net, layers.batch_norm(net, x, f"{name}.norm1", c_in), f"{name}.relu1")
    y = layers.convolution(net, y, f"{name}.conv1", (c_in, inside), 1, bias=False)
    y = layers.relu(net, layers.batch_norm(net, y, f"{name}.norm2", inside), f"{name}.relu2")
    return layers.convolution(net, y, f"{name}.conv2", (inside, GROWTH), 3, pad=1, bias=False)


def _transition(net: Draft, x: str, name: str, c_in: int) -> tuple[str, int]:
    """Half the channels and half the height and width."""
    y = layers.relu(net, layers.batch_norm(net, x, f"{name}.norm", c_in), f"{name}.relu")
    y = layers.convolution(net, y, f"{name}.conv", (c_in, c_in // 2), 1, bias=False)
    return layers.average_pool(net, y, f"{name}.pool", 2), c_in // 2


def _check_size(size: list[int], small_images: bool) -> None:
    """Three halvings, rounded down, behind the first layers must leave a pixel.

    Raises:
        UserError: the images are smaller than that.
    """
    # conv0 and pool0 each give ceil(size / 2), and ceil(29 / 4) = 8.
    height, width = size
    least = 8 if small_images else 29
    if min(height, width) < least:
        raise UserError(
            f"size {height}x{width} is too small for densenet121's three 2x2 average pools; "
            f"{'with small_images ' if small_images else ''}it takes {least}x{least} or more"
        )
