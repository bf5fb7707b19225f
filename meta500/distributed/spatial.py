"""Spatial domain decomposition: one image on several processes, with halos exchanged after each layer.

:func:`decompose` takes the network of the whole image, the blocks and the communication, and gives every
process the network of its block with what belongs to it::

    communication = CommunicationNetwork()
    local = decompose(model, "2x1", communication, halo=True)  # upper half on rank 0, lower half on rank 1
    with meta500.network(local.model, backend="generated", threads=2) as network:
        optimizer = ConsistentDecentralized(Adam(network), communication)
        runner = DistributedRunner(..., local.dataset(train_set), local.dataset(test_set))
        # or by hand:
        optimizer.train(local.cut(batch))

Every process gets the same samples in the same order (an ordinary sampler with the same seed, no
DistributedSampler), cut to its block. The loss that comes out is that of the whole image, the same on every
process; the mean of the processes' gradients, which every consistent scheme with equal weights forms, is the
gradient of the undivided network. Passes, inference included, are collective: all processes run the same
ones.

Source: the inter-node parallelization of the U-Net code-generation thesis (section 6.3.8), with and without
communication of the boundary pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta500.backends.process_grid import ProcessGrid, register, registered
from meta500.datasets import Dataset, LazyDataset, Samples
from meta500.datasets.lazy import Prepare
from meta500.distributed.blocks import Cut, Layout, assembled, even_bounds, grid_of, part_of
from meta500.distributed.localization import Localization
from meta500.distributed.localization_rules import localize_operation
from meta500.errors import UserError
from meta500.graph import Model, TensorType, infer_types, inline_functions
from meta500.graph.collectives import COLUMNS, ROWS
from meta500.graph.types import is_floating

SPATIAL_KEY = "meta500.spatial"


@dataclass(frozen=True)
class Decomposition:
    """The network of one block.

    Attributes:
        model: the local network; its inputs have the shapes of the block, its parameters are the global ones.
        grid: rows and columns of blocks.
        rank: number of this block, counted along rows.
        halo: whether neighbours communicate.
        inputs, outputs: the cut axes of the network's inputs and outputs, none for what every process has
            whole.
    """

    model: Model
    grid: tuple[int, int]
    rank: int
    halo: bool
    inputs: Mapping[str, Layout]
    outputs: Mapping[str, Layout]

    @property
    def position(self) -> tuple[int, int]:
        """Row and column of this block."""
        return divmod(self.rank, self.grid[1])

    def cut(self, batch: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """This block's part of a batch of whole images, by input.

        Raises:
            UserError: an array of another size than the network's image.
        """
        return {name: self._part(f"input '{name}'", np.asarray(value), name) for name, value in batch.items()}

    def dataset(self, dataset: Samples, *, augmented: bool = False) -> Samples:
        """The samples of ``dataset``, all of them, cut to this block.

        Sets that read their samples when they are asked for cut them then, after they were changed and
        prepared; so an augmentation moves the whole image and not every block for itself. ``augmented`` says
        that a set in memory has to do so too.

        Raises:
            UserError: images of another size than the network's.
        """
        if not isinstance(dataset, Dataset):
            return self._cut_when_read(dataset)
        if augmented:
            return self._cut_when_read(_read_from_memory(dataset))
        arrays = {}
        for name, value in dataset.inputs.items():
            arrays[name] = self._part(f"dataset '{dataset.name}', input '{name}'", value, name)
        return replace(dataset, inputs=arrays)

    def assemble(self, name: str, blocks: Sequence[np.ndarray]) -> np.ndarray:
        """An output of the whole image from those of all blocks, in the order of the ranks."""
        return assembled(blocks, self.outputs.get(name, {}), self.grid[1])

    def _cut_when_read(self, dataset: Samples) -> Samples:
        if not isinstance(dataset, LazyDataset):
            raise UserError(
                f"dataset '{dataset.name}' is a {type(dataset).__name__}, whose samples cannot be cut into "
                "blocks: give dataset.in_memory()"
            )
        layouts = {
            name: {axis - 1: cut for axis, cut in self.inputs.get(name, {}).items()}
            for name in dataset.shapes
        }
        cut = _CutSample(dataset.name, dataset.prepare, layouts, self.position)
        # An example of the right shape tells now what does not fit, and the shapes of the parts.
        parts = cut.parts({name: np.empty(shape, bool) for name, shape in dataset.shapes.items()})
        return replace(dataset, prepare=cut, sample_shapes={name: a.shape for name, a in parts.items()})

    def _part(self, label: str, array: np.ndarray, name: str) -> np.ndarray:
        try:
            return part_of(array, self.inputs.get(name, {}), self.position)
        except UserError as error:
            raise UserError(f"{label}: {error}") from None


@dataclass(frozen=True)
class _CutSample:
    """Prepares a sample and takes the part at ``position``; ``layouts`` are those of one sample."""

    name: str
    prepare: Prepare | None
    layouts: Mapping[str, Layout]
    position: tuple[int, int]

    def __call__(self, sample: dict[str, np.ndarray], index: int) -> dict[str, np.ndarray]:
        return self.parts(sample if self.prepare is None else self.prepare(sample, index))

    def parts(self, sample: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The parts of whole arrays."""
        found = {}
        for name, array in sample.items():
            try:
                found[name] = part_of(array, self.layouts.get(name, {}), self.position)
            except UserError as error:
                raise UserError(f"dataset '{self.name}', input '{name}': {error}") from None
        return found


@dataclass(frozen=True, eq=False)
class _Stored:
    """Reads samples from arrays in memory."""

    arrays: Mapping[str, np.ndarray]

    def __call__(self, index: int) -> dict[str, np.ndarray]:
        return {name: array[index] for name, array in self.arrays.items()}


def _read_from_memory(dataset: Dataset) -> LazyDataset:
    return LazyDataset(
        dataset.name,
        len(dataset),
        _Stored(dataset.inputs),
        dataset.shapes,
        dataset.dtypes,
        label=dataset.label,
        classes=dataset.classes,
        licence=dataset.licence,
        default_loss=dataset.default_loss,
        ignore=dataset.ignore,
        labels=dataset.class_labels(),
    )


def decompose(
    model: Model, blocks: str | Sequence[int], communication: Any, *, halo: bool = True
) -> Decomposition:
    """The network of this process' block, ready to run on any backend.

    Args:
        model: the network of the whole image, with the height and width of its image known.
        blocks: rows x columns of blocks, such as "2x1" or (2, 2); their product is the number of processes.
        communication: the :class:`CommunicationNetwork` whose ranks are the blocks, row by row. For spatial
            and
            data parallelism at once, one that was split off (``communication.split``).
        halo: communicate the cells at the borders of blocks; without it they are padding, as if every block
            were
            an image of its own (losses and other sums over the image stay those of the whole image).

    Raises:
        UserError: blocks that do not fit the number of processes or the image, or a node that has no form on
            blocks; it is named.
    """
    rows, columns = grid = grid_of(blocks)
    if rows * columns != communication.size:
        raise UserError(
            f"spatial blocks {rows}x{columns} need {rows * columns} ranks, there are {communication.size}"
        )
    refusal = ""
    try:
        local = localize(model, grid, communication.rank, halo=halo)
    except UserError as error:
        refusal = str(error)
    # The block of one rank may not fit; then all refuse, before anything that they do together.
    found = next(filter(None, communication.comm.allgather(refusal)), "")
    if found:
        raise UserError(found)
    group = group_name(grid)
    if not registered(group, communication.comm):
        # Halos travel apart from all other messages.
        own = communication.comm.Dup()
        count = communication.counters.add
        seconds = math.inf if communication.timeout is None else communication.timeout
        grid_here = ProcessGrid(own, rows, columns, communication.comm, seconds, count)
        register(group, grid_here)
    return local


def group_name(grid: tuple[int, int]) -> str:
    """The name of the processes in a network's operations; the same for all, so that code can be shared."""
    return f"spatial {grid[0]}x{grid[1]}"


def localize(model: Model, grid: tuple[int, int], rank: int, *, halo: bool = True) -> Decomposition:
    """The pass behind :func:`decompose`, without any communication: what rank ``rank`` of ``grid`` has.

    Raises:
        UserError: as for :func:`decompose`.
    """
    model = infer_types(inline_functions(model), strict=False)
    position = divmod(rank, grid[1])
    if grid == (1, 1):
        return Decomposition(model, grid, rank, halo, {}, {})
    images = _images(model)
    # The blocks must stay whole under all strides; with one block the pass finds these.
    single = _localized(model, grid, (0, 0), halo, _whole(model, images, grid))
    granules = {
        direction: math.lcm(*(cut.stride.numerator for cut in _cuts(single) if cut.direction == direction))
        for direction in (ROWS, COLUMNS)
    }
    cuts = {
        name: {
            axis: Cut(d := cut.direction, even_bounds(cut.size, grid[d], granules[d], d))
            for axis, cut in layout.items()
        }
        for name, layout in _whole(model, images, grid).items()
    }
    to = _localized(model, grid, position, halo, cuts)
    return Decomposition(
        _finished(to, grid, rank),
        grid,
        rank,
        halo,
        {name: to.layout(name) for name in model.inputs if to.layout(name)},
        {name: to.layout(name) for name in model.outputs if to.layout(name)},
    )


def _images(model: Model) -> list[str]:
    """The inputs that are images from the beginning: of the size of the first floating-point one.

    Raises:
        UserError: there is none, or its size is not known.
    """
    found: list[str] = []
    size: tuple[Any, ...] = ()
    for name, value in model.inputs.items():
        if not isinstance(value, TensorType) or value.shape is None or len(value.shape) < 3:
            continue
        if not is_floating(value.dtype):
            continue
        if not found:
            size = value.shape[2:4]
            if not all(isinstance(n, int) for n in size):
                raise UserError(
                    f"input '{name}' has the shape {value}: its height and width must be known to be cut"
                )
        if value.shape[2:4] == size:
            found.append(name)
    if not found:
        raise UserError(f"network '{model.name}' has no image among its inputs that could be cut into blocks")
    return found


def _whole(model: Model, images: Sequence[str], grid: tuple[int, int]) -> dict[str, Layout]:
    """The axes of the images that will be cut, each in one block.

    Raises:
        UserError: images without columns, and blocks along columns.
    """
    layouts: dict[str, Layout] = {}
    for name in images:
        shape = model.inputs[name].shape  # type: ignore[union-attr]
        assert shape is not None
        if grid[COLUMNS] > 1 and len(shape) < 4:
            raise UserError(f"input '{name}' has the shape {list(shape)}: it has no columns to cut")
        layouts[name] = {
            2 + direction: Cut(direction, (0, int(shape[2 + direction])))  # type: ignore[arg-type]
            for direction in (ROWS, COLUMNS)
            if grid[direction] > 1
        }
    return layouts


def _cuts(to: Localization) -> list[Cut]:
    return [cut for layout in to.layouts.values() for cut in layout.values()]


def _localized(
    model: Model, grid: tuple[int, int], position: tuple[int, int], halo: bool, cuts: Mapping[str, Layout]
) -> Localization:
    """Run the pass over all operations."""
    to = Localization(model, position, group_name(grid), halo, dict(cuts))
    for name in cuts:
        to.read_whole(name)
    for op in model.graph.operations:
        localize_operation(to, op)
    return to


def _finished(to: Localization, grid: tuple[int, int], rank: int) -> Model:
    """The local model, with types, after a look at all shapes."""
    model, graph = to.model, to.model.graph
    inputs = {name: _local_type(to, name, value) for name, value in graph.inputs.items()}
    outputs = {name: _local_type(to, name, value) for name, value in graph.outputs.items()}
    local = replace(
        graph,
        inputs=inputs,
        outputs=outputs,
        operations=to.operations,
        initializers=to.initializers,
        value_types={},
    )
    # Nothing of the rank: blocks that are alike share their generated code.
    key = f"{group_name(grid)}, {'with' if to.halo else 'without'} halos"
    metadata = {**model.metadata, SPATIAL_KEY: key}
    trainable = model.parameters
    changed = replace(model.with_graph(local), metadata=metadata, trainable=trainable)
    found = infer_types(changed, strict=False)
    types = found.graph.types()
    for name, layout in to.layouts.items():
        shape = getattr(types.get(name), "shape", None)
        for axis, cut in layout.items():
            if shape is not None and isinstance(shape[axis], int) and shape[axis] != to.length(cut):
                raise UserError(
                    f"'{name}' has the shape {list(shape)} on block {rank}, where axis {axis} should have "
                    f"{to.length(cut)} cells: network '{model.name}' cannot be cut into blocks"
                )
    return found


def _local_type(to: Localization, name: str, value: Any) -> Any:
    if not isinstance(value, TensorType) or value.shape is None:
        return value
    shape = list(value.shape)
    for axis, cut in to.layout(name).items():
        shape[axis] = to.length(cut)
    return replace(value, shape=tuple(shape))
