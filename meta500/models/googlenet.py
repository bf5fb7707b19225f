"""GoogLeNet (Inception v1) with batch normalisation, and its auxiliary heads."""

from __future__ import annotations

from typing import Any

from meta500.errors import UserError, choose
from meta500.graph import Model, ops
from meta500.models import arguments, layers
from meta500.models.adaptive import adaptive_average_pool
from meta500.models.layers import Draft

BATCH_NORM_EPSILON = 0.001
# Weight of an auxiliary head's loss, side of what it pools to, and channels of its convolution and fc1.
AUXILIARY_WEIGHT = 0.3
AUXILIARY_SIDE = 4
AUXILIARY_CHANNELS = (128, 1024)

# The paper's table 1, by module: channels of the 1x1 branch; of the two convolutions of the 3x3 branch; of
# those of the "5x5" branch; of the 1x1 convolution behind the pool.
MODULES = {
    "inception3a": (64, (96, 128), (16, 32), 32),
    "inception3b": (128, (128, 192), (32, 96), 64),
    "inception4a": (192, (96, 208), (16, 48), 64),
    "inception4b": (160, (112, 224), (24, 64), 64),
    "inception4c": (128, (128, 256), (24, 64), 64),
    "inception4d": (112, (144, 288), (32, 64), 64),
    "inception4e": (256, (160, 320), (32, 128), 128),
    "inception5a": (256, (160, 320), (32, 128), 128),
    "inception5b": (384, (192, 384), (48, 128), 128),
}
# Pools (name, kernel) and heads that follow a module.
POOLS = {"inception3b": ("maxpool3", 3), "inception4e": ("maxpool4", 2)}
HEADS = {"inception4a": "aux1", "inception4d": "aux2"}


def googlenet(
    batch: int | str | None = 8,
    *,
    size: int | tuple[int, int] = 224,
    classes: int = 1000,
    channels_in: int = 3,
    auxiliary: bool = True,
    dropout: float = 0.2,
    auxiliary_dropout: float = 0.7,
    branch3_kernel: int = 3,
    small_images: bool = False,
    seed: int = 0,
    initialization: str = "kaiming_normal",
    dtype: Any = "float32",
    loss: bool = True,
) -> Model:
    """GoogLeNet with batch normalisation: nine inception modules, and two auxiliary heads.

    Source: Szegedy et al., "Going Deeper with Convolutions", CVPR 2015, in torchvision's form and
    parameter names (``inception3a.branch2.0.conv.weight``, ...). That form differs from the paper's:
    batch normalisation behind every convolution instead of local response normalisation, 3x3 kernels in
    the branch that the paper gives 5x5 ones (see ``branch3_kernel``), a 2x2 fourth max pool instead of a
    3x3 one, and heads that average over 4x4 windows which divide the image, where the paper has 5x5
    windows of stride 3.

    Layers: conv1 7x7 stride 2 to 64 channels, max pool; conv2 1x1, conv3 3x3 to 192 channels, max pool;
    inception 3a, 3b, max pool; 4a to 4e, max pool; 5a, 5b; global average pool; dropout; fc. The pools
    are 3x3 (the last 2x2) of stride 2, their numbers of windows rounded up. Every convolution has no
    bias and is followed by batch normalisation and ReLU. A head reads the result of 4a ("aux1") or 4d
    ("aux2"): average pool to 4x4, 1x1 convolution to 128 channels, fc1 to 1024, ReLU, dropout, fc2.
    13,004,888 parameters at 1000 classes; 6,624,904 without auxiliary heads.

    Batch normalisation has epsilon 0.001, keeps 0.9 of the running statistics per step (PyTorch's
    momentum 0.1), and begins with gamma 1, beta 0. ``initialization`` holds for all convolutions and
    linear layers (torchvision: a truncated normal distribution of deviation 0.01).

    Inputs: "image" (batch, channels_in, height, width) of ``dtype``, "label" (batch,) int64.
    Outputs: "logits" (batch, classes), with the heads "aux1" and "aux2" of the same shape, "loss":
    SoftmaxCrossEntropyLoss, mean over the batch, of the logits plus 0.3 times that of each head. The
    heads and their part in the loss are there in inference too.

    Args:
        batch: images per batch; None or a name leaves the dimension open.
        size: height and width, or both as one number; at least 31, or 8 with ``small_images``.
        classes: number of classes.
        channels_in: channels of the image.
        auxiliary: whether to add the heads.
        dropout: share of fc's inputs that a training step drops, below 1 (the paper: 0.4); 0 leaves the
            operation out.
        auxiliary_dropout: the same for the heads' fc2.
        branch3_kernel: side of the last kernel of each module's third branch: 3 as in torchvision, 5 as
            in the paper.
        small_images: for images such as CIFAR's 32x32: conv1 is 3x3 of stride 1, and no max pool
            follows it.
        seed: of the initialisation.
        initialization: see :func:`meta500.models.initializations`.
        dtype: float16, float32 or float64.
        loss: whether to append the loss.

    Raises:
        UserError: an option that is out of range; the message says what would be right.
    """
    net = layers.draft("googlenet", initialization=initialization, seed=seed, dtype=dtype)
    choose("branch3_kernel", str(branch3_kernel), ("3", "5"))
    options: dict[str, Any] = {
        "batch": arguments.batch_dimension(batch),
        "size": list(arguments.image_size(size)),
        "classes": arguments.integer("classes", classes, minimum=2),
        "channels_in": arguments.integer("channels_in", channels_in),
        "auxiliary": arguments.flag("auxiliary", auxiliary),
        "dropout": arguments.ratio("dropout", dropout),
        "auxiliary_dropout": arguments.ratio("auxiliary_dropout", auxiliary_dropout),
        "branch3_kernel": int(branch3_kernel),
        "small_images": arguments.flag("small_images", small_images),
        "dtype": net.dtype.name,
        "loss": arguments.flag("loss", loss),
    }
    images, sides = options["batch"], _inner_size(options["size"], small_images)
    x = net.builder.input("image", net.dtype, (images, options["channels_in"], *options["size"]))
    x, channels = _stem(net, x, options["channels_in"], small_images)
    heads = {}
    for name, (one, three, five, pooled) in MODULES.items():
        x = _inception(net, x, name, channels, (one, three, five, pooled), options["branch3_kernel"])
        channels = one + three[1] + five[1] + pooled
        if auxiliary and name in HEADS:
            head = HEADS[name]
            _head(net, x, head, channels, sides, options)
            heads[head] = AUXILIARY_WEIGHT
        if name in POOLS:
            pool, kernel = POOLS[name]
            x = layers.max_pool(net, x, pool, kernel, stride=2, ceil=True)
    x = layers.global_average_pool(net, x, "avgpool")
    if options["dropout"]:
        x = layers.dropout(net, x, "dropout", options["dropout"])
    logits = layers.linear(net, x, "fc", (channels, options["classes"]))
    return layers.finish(net, logits, (images,) if loss else None, options, auxiliary=heads)


def _unit(
    net: Draft, x: str, name: str, channels: tuple[int, int], kernel: int, *, stride: int = 1, pad: int = 0
) -> str:
    """Convolution ``name.conv``, normalisation ``name.bn`` and ReLU ``name.relu``."""
    y = layers.convolution(net, x, f"{name}.conv", channels, kernel, stride=stride, pad=pad, bias=False)
    y = layers.batch_norm(net, y, f"{name}.bn", channels[1], epsilon=BATCH_NORM_EPSILON)
    return layers.relu(net, y, f"{name}.relu")


def _stem(net: Draft, x: str, channels_in: int, small_images: bool) -> tuple[str, int]:
    """conv1 to conv3 and their pools; the result and its number of channels."""
    kernel, stride, pad = (3, 1, 1) if small_images else (7, 2, 3)
    x = _unit(net, x, "conv1", (channels_in, 64), kernel, stride=stride, pad=pad)
    if not small_images:
        x = layers.max_pool(net, x, "maxpool1", 3, stride=2, ceil=True)
    x = _unit(net, x, "conv2", (64, 64), 1)
    x = _unit(net, x, "conv3", (64, 192), 3, pad=1)
    return layers.max_pool(net, x, "maxpool2", 3, stride=2, ceil=True), 192


def _inception(
    net: Draft,
    x: str,
    name: str,
    c_in: int,
    form: tuple[int, tuple[int, int], tuple[int, int], int],
    branch3_kernel: int,
) -> str:
    """Four branches of the same height and width, joined along the channels."""
    one, three, five, pooled = form
    branches = [_unit(net, x, f"{name}.branch1", (c_in, one), 1)]
    for branch, (inside, c_out), kernel in (("branch2", three, 3), ("branch3", five, branch3_kernel)):
        y = _unit(net, x, f"{name}.{branch}.0", (c_in, inside), 1)
        branches.append(_unit(net, y, f"{name}.{branch}.1", (inside, c_out), kernel, pad=kernel // 2))
    y = layers.max_pool(net, x, f"{name}.branch4.0", 3, stride=1, pad=1)
    branches.append(_unit(net, y, f"{name}.branch4.1", (c_in, pooled), 1))
    return layers.concatenate(net, tuple(branches), f"{name}.concat")


def _head(net: Draft, x: str, name: str, c_in: int, sides: tuple[int, int], options: dict[str, Any]) -> str:
    """The auxiliary head ``name`` (N, classes) behind ``x`` (N, c_in, *sides)."""
    inside, hidden = AUXILIARY_CHANNELS
    y = adaptive_average_pool(net, x, f"{name}.pool", sides, AUXILIARY_SIDE)
    y = layers.flatten(net, _unit(net, y, f"{name}.conv", (c_in, inside), 1), f"{name}.flat")
    y = layers.linear(net, y, f"{name}.fc1", (inside * AUXILIARY_SIDE**2, hidden))
    y = layers.relu(net, y, f"{name}.relu")
    if options["auxiliary_dropout"]:
        y = layers.dropout(net, y, f"{name}.dropout", options["auxiliary_dropout"])
    shape = (options["classes"], hidden)
    weight = net.weight(f"{name}.fc2.weight", shape)
    bias = net.bias(f"{name}.fc2.bias", shape[0], shape)
    return net.builder.add(ops.Gemm, y, weight, bias, name=f"{name}.fc2", outputs=[name], transB=1)


def _inner_size(size: list[int], small_images: bool) -> tuple[int, int]:
    """Height and width of modules 4a to 4e.

    Raises:
        UserError: the window of a max pool before or behind them would be larger than what it reads.
    """
    # The last max pool needs 2 pixels, hence the one before it 4, and those before that 8 and 16.
    least = 8 if small_images else 31
    height, width = size
    if min(size) < least:
        raise UserError(
            f"size {height}x{width} is too small for googlenet's max pools; "
            f"{'with small_images ' if small_images else ''}it takes {least}x{least} or more"
        )
    inner = [side if small_images else -(-side // 2) for side in size]
    for _ in range(2 if small_images else 3):
        inner = [-(-(side - 3) // 2) + 1 for side in inner]
    return inner[0], inner[1]
