"""MobileNetV2: inverted residuals with linear bottlenecks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meta500.graph import Model
from meta500.models import arguments, layers
from meta500.models.layers import Draft

# The paper's table 2: expansion, channels, blocks, stride of the first block.
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
FIRST, LAST = 32, 1280


@dataclass(frozen=True)
class Form:
    """An inverted residual: name, channels in and out, expansion, stride, gamma of its last normalisation
    where it has a shortcut."""

    name: str
    c_in: int
    c_out: int
    expansion: int
    stride: int
    gamma: float


def mobilenet_v2(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    width: float = 1.0,
    dropout: float = 0.2,
    small_images: bool = False,
    zero_gamma: bool = False,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """MobileNetV2: seventeen inverted residuals.

    Source: Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: Inverted Residuals and Linear
    Bottlenecks", CVPR 2018, in torchvision's layout and parameter names
    (``features.1.conv.0.0.weight``, ...).

    Layers: 3x3 convolution of stride 2; inverted residuals, each a 1x1 convolution to six times the
    channels (not in the first), a depthwise 3x3 one with the stride, and a 1x1 one to the block's
    channels that no activation follows, plus the shortcut where shapes allow one; 1x1 convolution to
    1280 channels; global average pool; dropout; classifier. Every convolution has batch normalisation
    and no bias; the activation is ReLU6, min(max(x, 0), 6). 3,504,872 parameters at 1000 classes;
    2,236,682 with 10 classes.

    Batch normalisation has epsilon 1e-5, keeps 0.9 of the running statistics per step (PyTorch's
    momentum 0.1), and begins with gamma 1, beta 0. ``initialization`` holds for all convolutions and
    the classifier (torchvision: "kaiming_normal_fan_out", and N(0, 0.01^2) for the classifier).

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch,) int64.
    Outputs: "logits" (batch, classes), "loss": SoftmaxCrossEntropyLoss, mean over the batch.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width, or both as one number.
        classes: number of classes.
        channels_in: channels of the image.
        width: multiplies the channels of every layer but the last convolution, which is never narrower
            than 1280; each is rounded to a multiple of 8.
        dropout: share of the classifier's inputs that a training step drops, below 1; 0 leaves the
            operation out.
        small_images: for images such as CIFAR's 32x32: the first convolution and the first inverted
            residual that would have stride 2 have stride 1.
        zero_gamma: begin with gamma 0 in the last normalisation of each inverted residual that has a
            shortcut (Goyal et al., "Accurate, Large Minibatch SGD", 2017); without one, nothing would
            pass.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("mobilenet_v2", initialization=initialization, seed=seed, dtype=dtype)
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "width": arguments.positive("width", width),
        "dropout": arguments.ratio("dropout", dropout),
        "small_images": arguments.flag("small_images", small_images),
        "zero_gamma": arguments.flag("zero_gamma", zero_gamma),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    images, width, gamma = options["batch"], options["width"], 0.0 if zero_gamma else 1.0
    unhalved = 2 if small_images else 0  # strides of 2 that become 1

    x = net.builder.input("image", net.dtype, (images, options["channels_in"], *options["size"]))
    channels = divisible(FIRST * width)
    stride = 1 if unhalved else 2
    x = _unit(net, x, "features.0", (options["channels_in"], channels), 3, stride=stride)
    unhalved -= bool(unhalved)
    number = 1
    for expansion, base, count, first_stride in STAGES:
        stride = first_stride
        if stride == 2 and unhalved:
            stride, unhalved = 1, unhalved - 1
        for index in range(count):
            c_out = divisible(base * width)
            step = stride if index == 0 else 1
            form = Form(f"features.{number}", channels, c_out, expansion, step, gamma)
            x, channels = _inverted_residual(net, x, form), c_out
            number += 1
    last = divisible(LAST * max(1.0, width))
    x = _unit(net, x, f"features.{number}", (channels, last), 1)
    x = layers.global_average_pool(net, x, "avgpool")
    if options["dropout"]:
        x = layers.dropout(net, x, "classifier.0", options["dropout"])
    logits = layers.linear(net, x, "classifier.1", (last, options["classes"]))
    return layers.finish(net, logits, (images,) if loss else None, options)


def divisible(channels: float, divisor: int = 8) -> int:
    """The multiple of ``divisor`` nearest to ``channels``, at least ``divisor`` and never less than 0.9
    of ``channels``: the rule of the authors' code."""
    nearest = max(divisor, int(channels + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * channels else nearest


def _unit(
    net: Draft,
    x: str,
    name: str,
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
) -> str:
    """Convolution ``name.0``, normalisation ``name.1`` and ReLU6 ``name.2``."""
    y = layers.convolution(
        net, x, f"{name}.0", channels, kernel, stride=stride, pad=kernel // 2, groups=groups, bias=False
    )
    return layers.relu6(net, layers.batch_norm(net, y, f"{name}.1", channels[1]), f"{name}.2")


def _inverted_residual(net: Draft, x: str, form: Form) -> str:
    """Expansion, depthwise convolution with the stride, projection, and the shortcut."""
    name, inside = f"{form.name}.conv", form.c_in * form.expansion
    y, index = x, 0
    if form.expansion != 1:
        y, index = _unit(net, y, f"{name}.0", (form.c_in, inside), 1), 1
    y = _unit(net, y, f"{name}.{index}", (inside, inside), 3, stride=form.stride, groups=inside)
    y = layers.convolution(net, y, f"{name}.{index + 1}", (inside, form.c_out), 1, bias=False)
    shortcut = form.stride == 1 and form.c_in == form.c_out
    gamma = form.gamma if shortcut else 1.0
    y = layers.batch_norm(net, y, f"{name}.{index + 2}", form.c_out, gamma=gamma)
    return layers.add(net, y, x, f"{form.name}.add") if shortcut else y
