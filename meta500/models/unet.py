"""U-Net(n): the segmentation network of Deep500's training experiments."""

from __future__ import annotations

import itertools
from typing import Any

from meta500.errors import UserError
from meta500.graph import Model
from meta500.models import arguments, layers
from meta500.models.layers import Draft

# Exponent of the channels at the bottom: 4,096 channels, 377 million parameters at depth 4.
_WIDEST = 12


def unet(
    n: int = 0,
    *,
    batch: int | str | None = 8,
    size: int | tuple[int, int] = 512,
    classes: int = 3,
    channels_in: int = 3,
    depth: int = 4,
    ignore: int | None = None,
    seed: int = 0,
    initialization: str = "torch_default",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """U-Net with c = 2^n base channels and ``depth`` levels.

    Source: Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image
    Segmentation", MICCAI 2015, in the reduced form with padded convolutions and average pooling
    that the Deep500 thesis measures.

    Layers (channels in -> out, depth 4): encoders 1..4, each two 3x3 convolutions (3->c, c->c;
    c->2c, 2c->2c; 2c->4c, 4c->4c; 4c->8c, 8c->8c) and a 2x2 average pool; bottom 8c->16c, 16c->8c;
    decoders 4..1, each a 2x2 transposed convolution of stride 2 that keeps the channels, a
    concatenation [skip, up], and two 3x3 convolutions (16c->8c, 8c->4c; 8c->4c, 4c->2c; 4c->2c,
    2c->c; 2c->2c, 2c->2c); head: a 1x1 convolution 2c->classes. All 3x3 convolutions are padded by
    1 and followed by ReLU; every convolution has a bias. Depth 4 with 3 channels and 3 classes has
    5,879 / 23,253 / 92,495 / 368,955 parameters for n = 0..3.

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch, height, width)
        int64.
    Outputs: "logits" (batch, classes, height, width), "loss": SoftmaxCrossEntropyLoss, mean over
    all pixels and images.

    Args:
        n: 0 to 8; every step doubles the channels. n + depth is at most 12.
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width in pixels, or both as one number; multiples of 2^depth.
        classes: number of classes.
        channels_in: channels of the image.
        depth: how many times the image is halved.
        ignore: label value of pixels that the loss leaves out; None for none.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    n = arguments.integer("n", n, minimum=0, maximum=8)
    depth = arguments.integer("depth", depth, minimum=1, maximum=8)
    if n + depth > _WIDEST:
        raise UserError(
            f"n={n} and depth={depth} give 2^{n + depth} channels at the bottom; "
            f"n + depth may be at most {_WIDEST}"
        )
    height, width = _divisible(arguments.image_size(size), depth)
    classes = arguments.integer("classes", classes, minimum=2)
    channels_in = arguments.integer("channels_in", channels_in)
    ignore = arguments.label_or_none("ignore", ignore)
    images = arguments.batch_dimension(batch)
    net = layers.draft("unet", initialization=initialization, seed=seed, dtype=dtype)
    base = 2**n

    x = net.builder.input("image", net.dtype, (images, channels_in, height, width))
    skips = []
    channels = channels_in
    for level in range(1, depth + 1):
        wide = base * 2 ** (level - 1)
        x = _block(net, x, f"encoder{level}", (channels, wide, wide))
        skips.append(x)
        x = layers.average_pool(net, x, f"encoder{level}.pool")
        channels = wide
    x = _block(net, x, "bottom", (channels, 2 * channels, channels))
    for level in range(depth, 0, -1):
        wide = base * 2 ** (level - 1)
        up = layers.transposed_convolution(net, x, f"decoder{level}.up", (wide, wide))
        x = layers.concatenate(net, (skips[level - 1], up), f"decoder{level}.concat")
        # The last decoder does not narrow: the head reads 2c channels.
        through = (2 * wide, wide, wide // 2) if level > 1 else (2 * wide, 2 * wide, 2 * wide)
        x = _block(net, x, f"decoder{level}", through)
    logits = layers.convolution(net, x, "head", (2 * base, classes), 1)
    options = {
        "n": n,
        "batch": images,
        "size": [height, width],
        "classes": classes,
        "channels_in": channels_in,
        "depth": depth,
        "ignore": ignore,
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    return layers.finish(net, logits, (images, height, width) if loss else None, options, ignore=ignore)


def _block(net: Draft, x: str, name: str, channels: tuple[int, int, int]) -> str:
    """Two 3x3 convolutions, padded, each with ReLU."""
    for index, pair in enumerate(itertools.pairwise(channels), 1):
        x = layers.convolution(net, x, f"{name}.conv{index}", pair, 3, pad=1)
        x = layers.relu(net, x, f"{name}.relu{index}")
    return x


def _divisible(size: tuple[int, int], depth: int) -> tuple[int, int]:
    step = 2**depth
    if any(side % step for side in size):
        below = tuple(max(side // step, 1) * step for side in size)
        above = tuple(-(-side // step) * step for side in size)
        near = " or ".join(f"{h}x{w}" for h, w in dict.fromkeys((below, above)))
        raise UserError(
            f"size {size[0]}x{size[1]} cannot be halved {depth} times: height and width must be "
            f"multiples of {step}, for example {near}"
        )
    return size
