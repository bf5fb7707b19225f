"""Residual networks: ResNet-18, ResNet-34 and ResNet-50."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta500.graph import Model
from meta500.models import arguments, layers
from meta500.models.layers import Draft


@dataclass(frozen=True)
class Form:
    """A block: name, channels in, width, stride, and gamma of its last normalisation."""

    name: str
    c_in: int
    width: int
    stride: int
    gamma: float


# Writes a block behind a value; gives the block's result and its number of channels.
Block = Callable[[Draft, str, Form], tuple[str, int]]


def resnet18(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    small_images: bool = False,
    zero_gamma: bool = False,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """ResNet-18: eight basic blocks in four stages.

    Source: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition", CVPR 2016, in
    torchvision's layout and parameter names (``layer1.0.conv1.weight``, ...).

    Layers: conv1 7x7 stride 2, batch normalisation, ReLU, 3x3 max pool of stride 2; layer1..layer4
    with 64, 128, 256, 512 channels and two blocks each (3x3, 3x3; the first of layer2..4 has stride
    2 and a 1x1 projection as shortcut); global average pool; fc. Convolutions have no bias.
    11,689,512 parameters at 1000 classes; 11,173,962 with ``small_images`` and 10 classes.

    Batch normalisation has epsilon 1e-5, keeps 0.9 of the running statistics per step (PyTorch's
    momentum 0.1), and begins with gamma 1, beta 0. ``initialization`` holds for all convolutions
    and fc; its default is the paper's (torchvision: "kaiming_normal_fan_out", and "torch_default"
    for fc).

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch,) int64.
    Outputs: "logits" (batch, classes), "loss": SoftmaxCrossEntropyLoss, mean over the batch.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width, or both as one number.
        classes: number of classes.
        channels_in: channels of the image.
        small_images: for images such as CIFAR's 32x32: conv1 is 3x3 of stride 1, and there is no
            max pool.
        zero_gamma: begin with gamma 0 in the last normalisation of each block (Goyal et al.,
            "Accurate, Large Minibatch SGD", 2017).
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("resnet18", initialization=initialization, seed=seed, dtype=dtype)
    return _resnet(
        net,
        _basic,
        (2, 2, 2, 2),
        batch=batch,
        size=size,
        classes=classes,
        channels_in=channels_in,
        small_images=small_images,
        zero_gamma=zero_gamma,
        loss=loss,
    )


def resnet34(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    small_images: bool = False,
    zero_gamma: bool = False,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """ResNet-34: sixteen basic blocks in four stages.

    As :func:`resnet18`, where inputs, outputs and options are described, but with 3, 4, 6, 3 blocks in the
    stages. 21,797,672 parameters at 1000 classes; 21,282,122 with ``small_images`` and 10 classes.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("resnet34", initialization=initialization, seed=seed, dtype=dtype)
    return _resnet(
        net,
        _basic,
        (3, 4, 6, 3),
        batch=batch,
        size=size,
        classes=classes,
        channels_in=channels_in,
        small_images=small_images,
        zero_gamma=zero_gamma,
        loss=loss,
    )


def resnet50(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    small_images: bool = False,
    zero_gamma: bool = False,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """ResNet-50 v1.5: sixteen bottleneck blocks in four stages.

    As :func:`resnet18`, where inputs, outputs and options are described, but with 3, 4, 6, 3 blocks
    of 1x1, 3x3, 1x1 convolutions that end in 256, 512, 1024, 2048 channels. The stride of a stage
    is on the 3x3 convolution of its first block (v1.5, as in torchvision and MLPerf; the paper's v1
    has it on the first 1x1). 25,557,032 parameters at 1000 classes; 23,520,842 with
    ``small_images`` and 10 classes.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("resnet50", initialization=initialization, seed=seed, dtype=dtype)
    return _resnet(
        net,
        _bottleneck,
        (3, 4, 6, 3),
        batch=batch,
        size=size,
        classes=classes,
        channels_in=channels_in,
        small_images=small_images,
        zero_gamma=zero_gamma,
        loss=loss,
    )


def _resnet(
    net: Draft,
    block: Block,
    counts: tuple[int, ...],
    *,
    batch: int | str | None,
    size: int | tuple[int, int],
    classes: int,
    channels_in: int,
    small_images: bool,
    zero_gamma: bool,
    loss: bool,
) -> Model:
    """Stem, four stages of ``counts`` blocks, and head."""
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "small_images": arguments.flag("small_images", small_images),
        "zero_gamma": arguments.flag("zero_gamma", zero_gamma),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    images, gamma = options["batch"], 0.0 if zero_gamma else 1.0

    x = net.builder.input("image", net.dtype, (images, options["channels_in"], *options["size"]))
    kernel, stride, pad = (3, 1, 1) if small_images else (7, 2, 3)
    x = layers.convolution(
        net, x, "conv1", (options["channels_in"], 64), kernel, stride=stride, pad=pad, bias=False
    )
    x = layers.relu(net, layers.batch_norm(net, x, "bn1", 64), "relu")
    if not small_images:
        x = layers.max_pool(net, x, "maxpool", 3, stride=2, pad=1)
    channels = 64
    for stage, count in enumerate(counts, 1):
        for index in range(count):
            stride = 2 if stage > 1 and index == 0 else 1
            width = 64 * 2 ** (stage - 1)
            form = Form(f"layer{stage}.{index}", channels, width, stride, gamma)
            x, channels = block(net, x, form)
    x = layers.global_average_pool(net, x, "avgpool")
    logits = layers.linear(net, x, "fc", (channels, options["classes"]))
    return layers.finish(net, logits, (images,) if loss else None, options)


def _basic(net: Draft, x: str, form: Form) -> tuple[str, int]:
    """3x3 with the stride, 3x3, and the shortcut."""
    name, width = form.name, form.width
    y = _convolution(net, x, f"{name}.conv1", (form.c_in, width), 3, stride=form.stride)
    y = layers.relu(net, layers.batch_norm(net, y, f"{name}.bn1", width), f"{name}.relu1")
    y = _convolution(net, y, f"{name}.conv2", (width, width), 3)
    y = layers.batch_norm(net, y, f"{name}.bn2", width, gamma=form.gamma)
    return _join(net, x, y, form, width), width


def _bottleneck(net: Draft, x: str, form: Form) -> tuple[str, int]:
    """1x1, 3x3 with the stride, 1x1, and the shortcut."""
    name, width, c_out = form.name, form.width, 4 * form.width
    y = _convolution(net, x, f"{name}.conv1", (form.c_in, width), 1)
    y = layers.relu(net, layers.batch_norm(net, y, f"{name}.bn1", width), f"{name}.relu1")
    y = _convolution(net, y, f"{name}.conv2", (width, width), 3, stride=form.stride)
    y = layers.relu(net, layers.batch_norm(net, y, f"{name}.bn2", width), f"{name}.relu2")
    y = _convolution(net, y, f"{name}.conv3", (width, c_out), 1)
    y = layers.batch_norm(net, y, f"{name}.bn3", c_out, gamma=form.gamma)
    return _join(net, x, y, form, c_out), c_out


def _convolution(
    net: Draft, x: str, name: str, channels: tuple[int, int], kernel: int, *, stride: int = 1
) -> str:
    """A convolution without bias, padded so that stride 1 keeps the size."""
    return layers.convolution(net, x, name, channels, kernel, stride=stride, pad=kernel // 2, bias=False)


def _join(net: Draft, x: str, y: str, form: Form, c_out: int) -> str:
    """ReLU of the block's result ``y`` plus its shortcut: ``x``, projected if its shape differs."""
    if form.stride != 1 or form.c_in != c_out:
        name = f"{form.name}.downsample"
        x = _convolution(net, x, f"{name}.0", (form.c_in, c_out), 1, stride=form.stride)
        x = layers.batch_norm(net, x, f"{name}.1", c_out)
    return layers.relu(net, layers.add(net, y, x, f"{form.name}.add"), f"{form.name}.relu")
