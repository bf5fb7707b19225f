"""Vision networks end to end, interpreted against compiled in every mode (section 5.5.1, figure 5.6)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.benchmarks.protocol import Emit, shape_text
from meta500.benchmarks.studies.compiler.fresh import FirstCall, emit_first_calls, first_call
from meta500.benchmarks.studies.compiler.modes import Compile, Work, compare_modes, compiled, conditions
from meta500.benchmarks.studies.compiler.settings import Settings
from meta500.graph import Model, TensorType

if TYPE_CHECKING:
    import torch
    from torch import fx

PHASE = "end to end"


def module_and_images(model: Model, output: str, seed: int) -> tuple[fx.GraphModule, torch.Tensor, int]:
    """A network as a module of PyTorch in evaluation mode, without gradients, on the CPU.

    Args:
        model: with one input "image" of fixed shape.
        output: the value that is computed.
        seed: of the images.

    Returns:
        The module, one batch of images, and how many terms the longest chain of sums behind an element of the
        result has: all layers follow each other, so that of all of them together.
    """
    import torch

    from meta500.backends.torch.module import torch_module

    module = torch_module(model, (output,)).requires_grad_(False)
    kind = model.inputs["image"]
    assert isinstance(kind, TensorType) and kind.static and kind.shape is not None
    shape = [int(size) for size in kind.shape]  # type: ignore[arg-type]
    images = torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))
    terms = sum(w.numel() // w.shape[0] for w in module.parameters() if w.ndim > 1)
    return module, images, max(1, terms)


def network_work(model: Model, output: str, settings: Settings, device: str, *, exact: bool = True) -> Work:
    """A network with one batch of seeded images; see :func:`module_and_images`.

    Args:
        model, output: which network, and the value that is computed.
        settings: its seed is that of the images.
        device: where module and images are.
        exact: whether to compute the result in float64, on the CPU.
    """
    import torch

    module, image, terms = module_and_images(model, output, settings.seed)
    reference = None
    if exact:
        with torch.no_grad():
            reference = copy.deepcopy(module).double()(image.double()).numpy()
    module = module.to(device)

    def infer(image: torch.Tensor) -> torch.Tensor:
        return module(image)  # type: ignore[no-any-return]

    return Work(infer, [image.to(device)], reference, terms)


def vision_network(name: str, settings: Settings, device: str, *, exact: bool = False) -> Work:
    """One of our networks with the study's options; see :func:`network_work`."""
    from meta500.models import create

    return network_work(
        create(name, **settings.network_options(name)), "logits", settings, device, exact=exact
    )


def columns(name: str, settings: Settings) -> dict[str, Any]:
    """The columns of a row that say which network."""
    options = settings.network_options(name)
    image = (options["batch"], 3, options["size"], options["size"])
    return {
        "level": 1,
        "model": name,
        "phase": PHASE,
        "shape": shape_text([image]),
        "dtype": "float32",
        "batch": options["batch"],
    }


def measure_network(settings: Settings, name: str, emit: Emit, *, compile: Compile = compiled) -> None:
    """Rows of one network: inference, interpreted and in every mode, in one interleaved run."""
    with conditions(settings, settings.device):
        work = vision_network(name, settings, settings.device, exact=True)
        compare_modes(
            work,
            settings.chosen_modes,
            settings,
            emit,
            columns(name, settings),
            device=settings.device,
            compile=compile,
        )


def measure_first_network(
    settings: Settings, name: str, modes: Sequence[str], emit: Emit, *, call: FirstCall = first_call
) -> None:
    """Rows "first_call" of one network in these modes, one fresh process each."""
    emit_first_calls(
        {"kind": "network", "name": name},
        modes,
        1,
        settings,
        settings.device,
        emit,
        columns(name, settings),
        call,
    )
