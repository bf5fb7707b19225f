"""Single convolutions and blocks of them, interpreted against compiled (section 5.4, figures 5.3 to 5.5).

The convolutions of ResNet-50 are taken from its graph, each kind once; `profiled` measures them inside of the
network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta500.benchmarks.protocol import Emit, shape_text
from meta500.benchmarks.studies.compiler.modes import Compile, Work, compare_modes, compiled, conditions
from meta500.benchmarks.studies.compiler.settings import DEFAULT, Settings
from meta500.errors import UserError
from meta500.graph import Model, Operation, TensorType
from meta500.graph.model import operations_for
from meta500.graph.operators import Conv
from meta500.graph.passes import infer_types

SINGLE, ALONE, BLOCK = "single convolution", "convolution alone", "block of convolutions"
RESNET = "resnet50"
# The last value of ResNet-50's first stage; the quick mode ends the network there.
FIRST_STAGE = "layer1.2.relu"
# Of the ablation (section 4.1.2).
KERNELS, STRIDES, PADDINGS = (1, 3, 5), (1, 2), (1, 2, 3)
# Batch, channels and size of its images; the thesis does not say which it took.
IMAGES, QUICK_IMAGES = (8, 64, 56), (1, 32, 28)
BLOCK_SIZES, QUICK_BLOCK_SIZES = (1, 2, 4, 8, 16, 32), (1, 2, 4)
BLOCK_KERNELS, QUICK_BLOCK_KERNELS = (1, 3), (3,)


@dataclass(frozen=True)
class Convolution:
    """A kind of convolution: what decides how long one takes.

    Attributes:
        image: shape of its input, (batch, channels, height, width).
        weight: shape of its weights, (channels out, channels in / groups, height, width).
        strides, padding, dilations: along height and width; padding is the same on both sides.
        groups: of channels.
        bias: whether it adds one.
    """

    image: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilations: tuple[int, int] = (1, 1)
    groups: int = 1
    bias: bool = True

    @property
    def label(self) -> str:
        """In words: "3x3, 64 to 64 on 56x56, stride 1, padding 1"."""
        out, _, *kernel = self.weight
        text = f"{_sides(kernel)}, {self.image[1]} to {out} on {_sides(self.image[2:])}"
        text += f", stride {_one_or_both(self.strides)}, padding {_one_or_both(self.padding)}"
        text += f", dilation {_one_or_both(self.dilations)}" if self.dilations != (1, 1) else ""
        return text + (f", groups {self.groups}" if self.groups > 1 else "")

    @property
    def terms(self) -> int:
        """Terms of the sum behind one element of the result."""
        return int(np.prod(self.weight[1:])) + self.bias

    def columns(self) -> dict[str, Any]:
        """The columns of a row that say which convolution."""
        return {
            "operator": "Conv",
            "node": self.label,
            "shape": shape_text([self.image, self.weight]),
            "dtype": "float32",
            "batch": self.image[0],
        }

    def layer(self) -> Any:
        """A ``torch.nn.Conv2d`` of this kind, with PyTorch's own initialisation, in evaluation mode."""
        import torch

        return torch.nn.Conv2d(
            self.image[1],
            self.weight[0],
            self.weight[2:],
            self.strides,
            self.padding,
            self.dilations,
            self.groups,
            self.bias,
        ).eval()


def ablated(settings: Settings, kernel: int) -> list[Convolution]:
    """The convolutions of the ablation with this kernel: all strides and paddings, in quick 1 and 1."""
    batch, channels, size = QUICK_IMAGES if settings.quick else IMAGES
    strides, paddings = ((1,), (1,)) if settings.quick else (STRIDES, PADDINGS)
    return [
        Convolution((batch, channels, size, size), (channels, channels, kernel, kernel), (s, s), (p, p))
        for s in strides
        for p in paddings
    ]


def convolutions_of(model: Model) -> dict[Convolution, int]:
    """The kinds of two-dimensional convolutions of a network, and how often each occurs.

    Args:
        model: with fixed shapes; its shapes are inferred.

    Raises:
        UserError: a convolution whose shapes are not known, or with different padding on two sides.
    """
    typed = infer_types(model)
    types = typed.graph.types()
    found: dict[Convolution, int] = {}
    for op in typed.graph.operations:
        if isinstance(op, Conv):
            image, weight = (_shape(types.get(name), op, str(name)) for name in op.operands[:2])
            kind = _convolution(op, image, weight)
            found[kind] = found.get(kind, 0) + 1
    return found


def resnet(settings: Settings) -> tuple[Model, str]:
    """ResNet-50 without its loss, and its output; in quick only its first stage."""
    from meta500.models import create

    model = create(RESNET, **settings.network_options(RESNET))
    if not settings.quick:
        return model, "logits"
    kind = infer_types(model).graph.types()[FIRST_STAGE]
    graph = replace(model.graph, outputs={FIRST_STAGE: kind})
    return model.with_graph(replace(graph, operations=operations_for(graph, [FIRST_STAGE]))), FIRST_STAGE


def measure_ablation(settings: Settings, kernel: int, emit: Emit, *, compile: Compile = compiled) -> None:
    """Rows of all convolutions of the ablation with one kernel, in every mode (in quick: one)."""
    modes = settings.chosen_modes[:1] if settings.quick else settings.chosen_modes
    for convolution in ablated(settings, kernel):
        measure_convolution(convolution, modes, settings, emit, {"phase": SINGLE}, compile=compile)


def measure_alone(settings: Settings, emit: Emit, *, compile: Compile = compiled) -> None:
    """Rows of every kind of convolution of ResNet-50, each alone, in one mode."""
    model, _ = resnet(settings)
    for convolution in convolutions_of(model):
        what = {"phase": ALONE, "model": RESNET}
        measure_convolution(convolution, [one_mode(settings)], settings, emit, what, compile=compile)


def measure_convolution(
    convolution: Convolution,
    modes: Sequence[str],
    settings: Settings,
    emit: Emit,
    what: dict[str, Any],
    *,
    compile: Compile = compiled,
) -> None:
    """Rows of one convolution, interpreted and compiled.

    Args:
        convolution: which one.
        modes: of ``torch.compile``.
        settings: protocol, device, seed.
        emit: receives the rows.
        what: further columns.
        compile: see :func:`~.modes.compare_modes`.
    """
    with conditions(settings, settings.device):
        work = block([convolution], settings)
        compare_modes(
            work,
            modes,
            settings,
            emit,
            {"level": 0, **convolution.columns(), **what},
            device=settings.device,
            compile=compile,
        )


def measure_block(
    settings: Settings, kernel: int, count: int, emit: Emit, *, compile: Compile = compiled
) -> None:
    """Rows of ``count`` convolutions in a row, each with weights of its own, whose results keep the shape."""
    batch, channels, size = QUICK_IMAGES if settings.quick else IMAGES
    same = Convolution(
        (batch, channels, size, size),
        (channels, channels, kernel, kernel),
        padding=(kernel // 2, kernel // 2),
    )
    what = {**same.columns(), "level": 0, "phase": BLOCK, "node": f"{count} of {kernel}x{kernel}"}
    with conditions(settings, settings.device):
        compare_modes(
            block([same] * count, settings),
            [one_mode(settings)],
            settings,
            emit,
            what,
            device=settings.device,
            compile=compile,
        )


def one_mode(settings: Settings) -> str:
    """The mode where one is enough: "default" if it is among the chosen ones."""
    return DEFAULT if DEFAULT in settings.chosen_modes else settings.chosen_modes[0]


def block(convolutions: Sequence[Convolution], settings: Settings) -> Work:
    """Convolutions one after the other, with their result in float64."""
    import torch

    generator = torch.Generator().manual_seed(settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        layers = torch.nn.Sequential(*(c.layer() for c in convolutions)).requires_grad_(False)
    image = torch.randn(convolutions[0].image, generator=generator)
    exact = layers.double()(image.double()).numpy()
    layers = layers.float().to(settings.device)

    def convolve(image: torch.Tensor) -> torch.Tensor:
        return layers(image)  # type: ignore[no-any-return]

    return Work(convolve, [image.to(settings.device)], exact, sum(c.terms for c in convolutions))


def _convolution(op: Conv, image: tuple[int, ...], weight: tuple[int, ...]) -> Convolution:
    if len(image) != 4:
        raise UserError(
            f"{op.label}: only two-dimensional convolutions can be measured, not {len(image) - 2}"
        )
    pads = tuple(op.pads or (0, 0, 0, 0))
    if pads[:2] != pads[2:] or (op.auto_pad or "NOTSET") != "NOTSET":
        raise UserError(f"{op.label}: padding {pads} {op.auto_pad} is not the same on both sides")
    return Convolution(
        image,  # type: ignore[arg-type]
        weight,  # type: ignore[arg-type]
        tuple(op.strides or (1, 1)),  # type: ignore[arg-type]
        pads[:2],  # type: ignore[arg-type]
        tuple(op.dilations or (1, 1)),  # type: ignore[arg-type]
        op.group or 1,
        len(op.operands) > 2 and bool(op.operands[2]),
    )


def _shape(value: Any, op: Operation, name: str) -> tuple[int, ...]:
    if not isinstance(value, TensorType) or not value.static or value.shape is None:
        raise UserError(f"{op.label}: the shape of '{name}' is not fixed; give the network a batch size")
    return tuple(int(size) for size in value.shape)  # type: ignore[arg-type]


def _sides(sides: Sequence[int]) -> str:
    return "x".join(str(side) for side in sides)


def _one_or_both(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else _sides(pair)
