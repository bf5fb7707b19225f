"""Checkpoints: everything that a training run needs to go on as if it had never stopped.

One folder for each checkpoint, ``checkpoints/step-00000050`` in the run folder, with a file for each rank:
parameters and running statistics (of the root alone where all replicas are equal), the states of optimizer
and scheme, the random state of the network, the position in the data and the Summary so far. The folder is
written under another name and renamed when all ranks have written theirs, so that it is whole or not there,
whenever the writer is killed; only then is the checkpoint before it removed.

Files are .npz without pickled objects: a JSON text with everything that is no array, and the arrays.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meta500.distributed.agreement import Agreement, at_root
from meta500.errors import UserError
from meta500.graph.passes import training_form
from meta500.metrics.events import RunState, Ticker
from meta500.metrics.position import Position, position

FORMAT = 1
FOLDER = "checkpoints"
# What numpy and zipfile raise on files that are cut off or changed.
_DAMAGE = (OSError, EOFError, ValueError, KeyError, TypeError, struct.error, zlib.error, zipfile.BadZipFile)
_ARRAY, _TUPLE, _TREE = "__array__", "__tuple__", "tree"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as one rank reads it: ``contents`` as `contents_of` makes them."""

    path: Path
    step: int
    contents: Mapping[str, Any]

    @property
    def position(self) -> Position:
        """Where the run stands."""
        return Position.from_plain(self.contents["position"])


class CheckpointTicker(Ticker):
    """Write a checkpoint after every ``every`` optimizer steps; give it after all other tickers.

    A step with a loss that is not finite is left out.

    Args:
        folder: of the run, the same on all ranks.
        every: optimizer steps between checkpoints.
        communication: the ranks; None for one process.

    Raises:
        UserError: ``every`` below 1; a scheme whose ranks do not step together; an optimizer or network whose
            state cannot be saved.
    """

    def __init__(self, folder: str | Path, every: int, communication: Any = None) -> None:
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise UserError(f"the number of steps between checkpoints must be at least 1, not {every!r}")
        self.folder, self.every, self.communication = Path(folder), every, communication

    def before_run(self, state: RunState) -> None:
        if not getattr(state.optimizer, "synchronous", True):
            raise UserError(
                f"checkpoints need ranks that step together; with {type(state.optimizer).__name__} every "
                "rank has "
                "its own pace"
            )
        # What cannot be saved is said now and not after hours.
        state.optimizer.state_dict()
        state.network.random_state()

    def after_optimizer_step(self, state: RunState) -> None:
        if state.step % self.every == 0 and state.loss is not None and math.isfinite(state.loss):
            write(self.folder, state.step, contents_of(state, self.communication), self.communication)


def contents_of(state: RunState, communication: Any = None) -> dict[str, Any]:
    """What this rank has to keep of a run after an optimizer step."""
    network, optimizer = state.network, state.optimizer
    equal = bool(getattr(optimizer, "consistent", True))
    names = _tensors(network) if communication is None or communication.is_root or not equal else []
    return {
        "format": FORMAT,
        "rank": 0 if communication is None else communication.rank,
        "ranks": 1 if communication is None else communication.size,
        "tensors": dict(zip(names, network.fetch_tensors(names), strict=True)),
        "random": network.random_state(),
        "optimizer": optimizer.state_dict(),
        "position": position(state).plain(),
    }


def restore(checkpoint: Checkpoint, network: Any, optimizer: Any) -> Position:
    """Put network and optimizer into the state of a checkpoint; gives the position for ``Runner.run``.

    Raises:
        UserError: they are not those that the checkpoint was made of.
    """
    contents = checkpoint.contents
    tensors = contents["tensors"]
    expected, found = set(_tensors(network)), set(tensors)
    if expected != found:
        name = sorted(expected ^ found)[0]
        raise UserError(
            f"{checkpoint.path}: is of another network: tensor '{name}' is only in the "
            f"{'network' if name in expected else 'checkpoint'}"
        )
    for name, value in tensors.items():
        network.feed_tensor(name, value)
    optimizer.load_state_dict(contents["optimizer"])
    network.restore_random_state(contents["random"])
    return checkpoint.position


def write(folder: Path, step: int, contents: Mapping[str, Any], communication: Any = None) -> Path:
    """Write a checkpoint into the run folder (collective); the ones before it are removed.

    Raises:
        UserError: on all ranks, if one cannot write.
    """
    target = folder / FOLDER / f"step-{step:08d}"
    temporary = target.with_name(f".{target.name}.part")
    at_root(communication, lambda: _make(temporary))
    write_file(temporary / f"rank-{contents['rank']}.npz", contents)
    if communication is not None and communication.size > 1:
        # All files are written, or all ranks learn who could not.
        Agreement.of(communication).step(0.0, 0, 0.0)
    at_root(communication, lambda: _publish(temporary, target))
    return target


def latest(folder: str | Path) -> Path:
    """The newest complete checkpoint of a run.

    Raises:
        UserError: there is none.
    """
    parent = Path(folder) / FOLDER
    found = sorted(parent.glob("step-*")) if parent.is_dir() else []
    if not found:
        raise UserError(
            f"{folder}: has no checkpoint to resume from; runs with --checkpoint-every K write some"
        )
    return found[-1]


def read(path: Path, rank: int = 0, ranks: int = 1) -> Checkpoint:
    """A checkpoint for one rank.

    Raises:
        UserError: a damaged or missing file, or a checkpoint of another number of ranks.
    """
    root = read_file(path / "rank-0.npz")
    if root.get("format") != FORMAT:
        raise UserError(
            f"{path}: format {root.get('format')!r} of checkpoints is unknown; this meta500 reads {FORMAT}"
        )
    if root["ranks"] != ranks:
        raise UserError(
            f"{path}: was written by {root['ranks']} rank{'s' if root['ranks'] > 1 else ''}, this run has "
            f"{ranks}: "
            f"resume with --ranks {root['ranks']}"
        )
    contents = root if rank == 0 else read_file(path / f"rank-{rank}.npz")
    contents["tensors"] = contents["tensors"] or root["tensors"]
    return Checkpoint(path, int(root["position"]["step"]), contents)


def _tensors(network: Any) -> list[str]:
    """Names of everything that training changes: parameters and running statistics."""
    return [*network.get_params(), *sorted(training_form(network.model)[1])]


def _make(temporary: Path) -> None:
    with _disk(temporary):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)


def _publish(temporary: Path, target: Path) -> None:
    with _disk(target):
        shutil.rmtree(target, ignore_errors=True)
        os.replace(temporary, target)
        _sync_folder(target.parent)
        for older in target.parent.glob("*step-*"):
            if older != target:
                shutil.rmtree(older, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _disk(path: Path) -> Any:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: the checkpoint cannot be written: {error.strerror or error}; the one before it is "
            "intact"
        ) from error


# -- files -----------------------------------------------------------------------------------------------


def write_file(path: Path, contents: Mapping[str, Any]) -> None:
    """Write nested dictionaries, lists, tuples, numbers, texts and arrays as .npz, and wait for the disk.

    Raises:
        UserError: the file cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    tree = _packed(contents, arrays)
    arrays[_TREE] = np.array(json.dumps(tree))
    with _disk(path), open(path, "wb") as stream:
        np.savez(stream, **arrays)  # type: ignore[arg-type]
        stream.flush()
        os.fsync(stream.fileno())


def read_file(path: Path) -> dict[str, Any]:
    """What `write_file` wrote.

    Raises:
        UserError: the file is missing or damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return _unpacked(json.loads(str(arrays.pop(_TREE)[()])), arrays)  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise UserError(f"{path}: this file of the checkpoint is missing") from None
    except _DAMAGE as error:
        raise UserError(f"{path}: this file of the checkpoint is damaged: {error}") from None


def _packed(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """``value`` as JSON can hold it; arrays go to ``arrays``."""
    if isinstance(value, np.ndarray):
        key = f"a{len(arrays)}"
        dtype = value.dtype
        # Element types that numpy does not know (bfloat16) are kept as their bytes.
        own = dtype.kind == "V" or dtype.name not in np.sctypeDict
        arrays[key] = np.frombuffer(value.tobytes(), np.uint8) if own else value
        return {_ARRAY: key, "dtype": dtype.name if own else "", "shape": list(value.shape)}
    if isinstance(value, Mapping):
        return {str(key): _packed(entry, arrays) for key, entry in value.items()}
    if isinstance(value, tuple):
        return {_TUPLE: [_packed(entry, arrays) for entry in value]}
    if isinstance(value, list):
        return [_packed(entry, arrays) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def _unpacked(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, list):
        return [_unpacked(entry, arrays) for entry in value]
    if not isinstance(value, dict):
        return value
    if _ARRAY in value:
        array = arrays[value[_ARRAY]]
        if value["dtype"]:
            import ml_dtypes

            array = np.frombuffer(array.tobytes(), getattr(ml_dtypes, value["dtype"])).copy()
        return array.reshape(value["shape"])
    if _TUPLE in value:
        return tuple(_unpacked(entry, arrays) for entry in value[_TUPLE])
    return {key: _unpacked(entry, arrays) for key, entry in value.items()}
