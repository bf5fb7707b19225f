"""A network cut into segments, each of which can be compiled, and all that is assembled from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import fx

from meta500.benchmarks.protocol import shape_text
from meta500.benchmarks.studies.compiler.chain import Region, assembled, even_borders, layers_of, part
from meta500.benchmarks.studies.compiler.instruments import Action, Stopwatch
from meta500.benchmarks.studies.compiler.modes import Compile, compiled, synchronizing
from meta500.benchmarks.studies.compiler.networks import module_and_images
from meta500.benchmarks.studies.compiler.oracle import COMPILED, regions
from meta500.benchmarks.studies.compiler.settings import SMALL, Settings
from meta500.metrics.norms import tolerance

# Interpreted runs after which it is decided where to cut.
TRIALS = 7
OUTPUT = "logits"
SMALL_OPTIONS: Mapping[str, Any] = {"batch": 8, "size": 32, "loss": False}


@dataclass
class CutNetwork:
    """A network with its images, its borders, and what has been compiled of it.

    Attributes:
        name: of the network.
        module: interpreted.
        images: its input, on the device.
        mode: of torch.compile.
        compile: from a function and a mode to the compiled function.
        limit: tolerance of a result in float32.
        borders: 0, the layers behind which it is cut, and the number of layers.
    """

    name: str
    module: fx.GraphModule
    images: torch.Tensor
    mode: str
    compile: Compile
    limit: float
    device: str
    borders: tuple[int, ...] = ()
    _compiled: dict[tuple[int, int], Any] = field(default_factory=dict)

    @property
    def segments(self) -> int:
        """Their number."""
        return len(self.borders) - 1

    @property
    def layers(self) -> list[fx.Node]:
        """In topological order."""
        return layers_of(self.module)

    def wait(self) -> Action | None:
        """Waits for the device."""
        return synchronizing(self.device)

    def segment_name(self, index: int) -> str:
        """Its first and its last layer."""
        first, last = self.layers[self.borders[index]], self.layers[self.borders[index + 1] - 1]
        names = [str(node.target) if node.op == "call_module" else node.name for node in (first, last)]
        return names[0] if first is last else f"{names[0]} to {names[1]}"

    def region(self, first: int, end: int) -> Region:
        """Segments ``first`` to ``end`` (not included) compiled as one function, once."""
        begin, stop = self.borders[first], self.borders[end]
        if (begin, stop) not in self._compiled:
            inner, _ = part(self.module, begin, stop)

            def run(*values: torch.Tensor) -> Any:
                return inner(*values)

            self._compiled[begin, stop] = self.compile(run, self.mode)
        return Region(begin, stop, self._compiled[begin, stop])

    def compiled_runs(self, states: Sequence[int]) -> list[Region]:
        """One region for each run of consecutive compiled segments."""
        return [self.region(a, b) for a, b, state in regions(states) if state == COMPILED]

    def chosen(self, states: Sequence[int]) -> fx.GraphModule:
        """The network with these segments compiled, runs of them as one region, and no marks."""
        return assembled(self.module, self.compiled_runs(states))

    def prefix(self, states: Sequence[int], end: int) -> fx.GraphModule:
        """As :meth:`chosen`, stopped behind ``end`` segments."""
        return assembled(self.module, self.compiled_runs(states[:end]), end=self.borders[end])

    def timed(self, found: Sequence[Region], marks: Sequence[int], watch: Any) -> fx.GraphModule:
        """The network with these regions and a mark behind each of the layers ``marks``."""
        return assembled(self.module, found, before=watch.start, after=dict.fromkeys(marks, watch.mark))

    def action(self, run: Any) -> Action:
        """``run`` on the images."""
        images = self.images
        return lambda: run(images)

    def columns(self) -> dict[str, Any]:
        """The columns of a row that say which network."""
        return {
            "level": 1,
            "model": self.name,
            "shape": shape_text([tuple(self.images.shape)]),
            "dtype": "float32",
            "batch": self.images.shape[0],
        }


def cut(
    name: str, settings: Settings, mode: str, segments: int, *, compile: Compile = compiled
) -> CutNetwork:
    """A network of ours with seeded images, cut into segments of about the same interpreted time.

    To be called inside of :func:`~.modes.conditions`.

    Args:
        name: of the network.
        settings: options of networks, device, seed; ``SMALL`` has options of its own.
        mode: of torch.compile.
        segments: at most so many.
        compile: see :class:`CutNetwork`.
    """
    from meta500.models import create

    options = {**SMALL_OPTIONS, "seed": settings.seed} if name == SMALL else settings.network_options(name)
    module, images, terms = module_and_images(create(name, **options), OUTPUT, settings.seed)
    network = CutNetwork(
        name=name,
        module=module.to(settings.device),
        images=images.to(settings.device),
        mode=mode,
        compile=compile,
        limit=2 * tolerance(np.float32, terms),
        device=settings.device,
    )
    # The least of each: what disturbs a run only adds to it, and must not decide where to cut.
    seconds = layer_seconds(network).min(axis=0)
    return replace(network, borders=even_borders(seconds.tolist(), segments), _compiled={})


def layer_seconds(network: CutNetwork) -> np.ndarray[Any, Any]:
    """(TRIALS, layers) seconds of the interpreted layers, by timers, after one run to warm up."""
    watch = Stopwatch(network.wait())
    run = network.action(network.timed([], range(1, len(network.layers) + 1), watch))
    for _ in range(TRIALS + 1):
        run()
    return watch.seconds(TRIALS)
