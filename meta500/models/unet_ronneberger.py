"""The U-Net as published by Ronneberger, Fischer and Brox."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from meta500.errors import UserError
from meta500.graph import Model, ops
from meta500.models import arguments, layers
from meta500.models.layers import Draft

# As in unet: 4,096 channels at the bottom at most.
_WIDEST = 4096


def unet_ronneberger(
    batch: int | str | None = 1,
    *,
    size: int | tuple[int, int] = 572,
    classes: int = 2,
    channels_in: int = 1,
    channels: int = 64,
    depth: int = 4,
    dropout: float = 0.5,
    ignore: int | None = None,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """The published U-Net: convolutions without padding, and skips that are cropped.

    Source: Ronneberger, Fischer and Brox, "U-Net: Convolutional Networks for Biomedical Image
    Segmentation", MICCAI 2015, figure 1 and section 2.

    Layers (``c`` channels at the top, 64 in the paper): encoders 1..4, each two 3x3 convolutions to c, 2c,
    4c, 8c channels and a 2x2 max pool; bottom: two 3x3 convolutions to 16c; decoders 4..1, each a 2x2
    transposed convolution of stride 2 that halves the channels ("up-convolution"), a concatenation [skip,
    up] whose skip is cropped in the middle to the size of the other, and two 3x3 convolutions to 8c, 4c, 2c,
    c; head: a 1x1 convolution to the classes. The 3x3 convolutions have no padding, each is followed by
    ReLU; all 23 convolutions have a bias. Dropout follows the last encoder's second ReLU (so the skip and
    the pool read what it leaves) and the bottom's, at the end of the contracting path.

    Parameters: a 3x3 convolution from a to b channels has (9 a + 1) b, an up-convolution to b channels
    (8 b + 1) b. With w = 2c, 4c, 8c, 16c the levels below the first have w (27/2 w + 2), with w = c, 2c, 4c,
    8c the decoders w (35 w + 3); for an image of i channels and K classes all together 7574 c^2 +
    (9 i + 107 + K) c + K: 31,030,658 parameters at c = 64, i = 1, K = 2.

    A network of ``depth`` halvings takes sides of 2^depth b + 4 (2^depth - 1) pixels, where b is the side
    behind the last pool, and gives 12 2^depth - 8 pixels less: 572 -> 388 (b = 32). At depth 4 the sides
    that tile are 188 + 16 j.

    The weights by pixel of the paper's loss (its equations 1 and 2), its overlapping tiles and elastic
    deformations are no part of the network.

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch, output height, output
    width) int64: the labels of the pixels in the middle of the image.
    Outputs: "logits" (batch, classes, output height, output width), "loss": SoftmaxCrossEntropyLoss, mean
    over all pixels and images.

    Args:
        batch: images per batch (the paper: one large image); None or a name leaves the dimension open.
        size: height and width in pixels, or both as one number; sides that tile, see above.
        classes: number of classes.
        channels_in: channels of the image.
        channels: of the first encoder; they double with every halving, up to 4,096 at the bottom.
        depth: how many times the image is halved, 1 to 8.
        dropout: share that a training step drops, below 1 (the paper gives none, the authors' Caffe files
            0.5); 0 leaves the operation out.
        ignore: label value of pixels that the loss leaves out; None for none.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`; the default is the paper's, N(0, 2/N) of
            N incoming values.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("unet_ronneberger", initialization=initialization, seed=seed, dtype=dtype)
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "channels": arguments.integer("channels", channels),
        "depth": arguments.integer("depth", depth, minimum=1, maximum=8),
        "dropout": arguments.ratio("dropout", dropout),
        "ignore": arguments.label_or_none("ignore", ignore),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    if channels * 2**depth > _WIDEST:
        raise UserError(
            f"channels={channels} and depth={depth} give {channels * 2**depth} channels at the bottom; "
            f"they may be at most {_WIDEST}"
        )
    height, width = options["size"]
    _check_tiling((height, width), depth)
    images = options["batch"]
    x = net.builder.input("image", net.dtype, (images, options["channels_in"], height, width))
    skips: list[tuple[str, tuple[int, int]]] = []
    before, sides = options["channels_in"], (height, width)
    for level in range(1, depth + 1):
        wide = channels * 2 ** (level - 1)
        x, sides = _block(net, x, f"encoder{level}", (before, wide, wide), sides)
        if options["dropout"] and level == depth:
            x = layers.dropout(net, x, f"encoder{level}.dropout", dropout)
        skips.append((x, sides))
        x, sides = layers.max_pool(net, x, f"encoder{level}.pool"), (sides[0] // 2, sides[1] // 2)
        before = wide
    x, sides = _block(net, x, "bottom", (before, 2 * before, 2 * before), sides)
    x = layers.dropout(net, x, "bottom.dropout", dropout) if options["dropout"] else x
    for level in range(depth, 0, -1):
        wide = channels * 2 ** (level - 1)
        name = f"decoder{level}"
        up = layers.transposed_convolution(net, x, f"{name}.up", (2 * wide, wide))
        sides = (2 * sides[0], 2 * sides[1])
        skip = _crop(net, *skips[level - 1], sides, f"{name}.crop")
        x = layers.concatenate(net, (skip, up), f"{name}.concat")
        x, sides = _block(net, x, name, (2 * wide, wide, wide), sides)
    logits = layers.convolution(net, x, "head", (channels, options["classes"]), 1)
    label = (images, *sides) if loss else None
    return layers.finish(net, logits, label, options, ignore=options["ignore"])


def _block(
    net: Draft, x: str, name: str, channels: tuple[int, int, int], sides: tuple[int, int]
) -> tuple[str, tuple[int, int]]:
    """Two 3x3 convolutions without padding, each with ReLU; the result and its height and width."""
    for index, pair in enumerate(itertools.pairwise(channels), 1):
        x = layers.relu(net, layers.convolution(net, x, f"{name}.conv{index}", pair), f"{name}.relu{index}")
    return x, (sides[0] - 4, sides[1] - 4)


def _crop(net: Draft, x: str, have: tuple[int, int], want: tuple[int, int], name: str) -> str:
    """The middle of ``x`` (N, C, *have), as (N, C, *want). ONNX: Slice."""
    # Even: a pool halves the one side, an up-convolution has doubled the other.
    first = [(a - b) // 2 for a, b in zip(have, want, strict=True)]
    last = [start + length for start, length in zip(first, want, strict=True)]
    positions = (
        net.builder.constant(np.array(value, np.int64), f"{name}.{side}")
        for side, value in (("starts", first), ("ends", last), ("axes", [2, 3]))
    )
    return net.builder.add(ops.Slice, x, *positions, name=name)


def _check_tiling(size: tuple[int, int], depth: int) -> None:
    """Every pool must halve an even side, and every decoder leave a pixel.

    Raises:
        UserError: a side does not tile; the message names the nearest that do.
    """
    step = 2**depth
    # The side behind the last pool is b; the output has step (b - 8) + 4 pixels.
    smallest = step * (8 - 3 // step) + 4 * (step - 1)
    if all(side >= smallest and (side - smallest) % step == 0 for side in size):
        return
    below = tuple(max(side - (side - smallest) % step, smallest) for side in size)
    above = tuple(max(side + (smallest - side) % step, smallest) for side in size)
    near = " or ".join(f"{h}x{w}" for h, w in dict.fromkeys((below, above)))
    raise UserError(
        f"size {size[0]}x{size[1]} does not tile: {depth} halvings between unpadded convolutions take sides "
        f"of {smallest} + {step} j pixels; the nearest are {near}"
    )
