"""What must be known of a compiled program to run it, kept on disk so that a warm start generates nothing.

A manifest is found by the hash of everything that the program follows from: the network, the form, the
options, the generator's own files, the compiler and the processor. Values of parameters are no part of it.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from meta500.backends import library_cache
from meta500.backends.compiler import compiler, compiler_version
from meta500.backends.targets import Target, cpu_model
from meta500.graph.model import Model

# Environment variables that decide how something is compiled.
_ENVIRONMENT = ("CXX", "CXXFLAGS", "CPATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH")


@dataclass
class Manifest:
    """A compiled program without its stages.

    Attributes:
        name: of the network.
        library: key of its entry in the cache.
        external: tensors that the caller hands over, in order: name, shape and element type of the IR.
        outputs, gradients, updates: names of tensors by name of output, variable and statistic.
        faults: messages, in the order of their numbers.
        parameters, packed_gradients: names of the packed tensors, "" where there are none.
        baked: initializers whose values are part of the code.
        threads: of the program.
        total_bytes: of its memory.
        constants: contents of external tensors that belong to the program.
        timed: for programs that reduce over ranks, what they record the times of: lane, name and bytes.
        samples: of these programs, in one run.
        group: name of the processes that the program exchanges messages with in its middle, if it does.
    """

    name: str
    library: str
    external: list[tuple[str, tuple[int, ...], str]]
    outputs: dict[str, str]
    gradients: dict[str, str]
    updates: dict[str, str]
    faults: list[str]
    parameters: str
    packed_gradients: str
    baked: list[str]
    threads: int
    total_bytes: int
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    timed: list[tuple[str, str, int]] = field(default_factory=list)
    samples: int = 1
    group: str = ""

    @property
    def exchanges(self) -> bool:
        """Whether the program reduces over ranks."""
        return bool(self.timed)

    def save(self, key: str) -> None:
        """Keep it in the cache.

        Raises:
            UserError: the cache can't be written.
        """
        plain = asdict(self)
        del plain["constants"]
        text = np.frombuffer(json.dumps(plain).encode(), np.uint8)
        buffer = io.BytesIO()
        arrays = {f"constant {i}": array for i, array in enumerate(self.constants.values())}
        names = np.array(list(self.constants), dtype=str)
        np.savez(buffer, text=text, names=names, **arrays)  # type: ignore[arg-type]
        library_cache.store_object(key, buffer.getvalue())

    @staticmethod
    def load(key: str) -> Manifest | None:
        """The manifest with this key, None if there is none or its library is damaged."""
        data = library_cache.load_object(key)
        if data is None:
            return None
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as file:
                plain = json.loads(file["text"].tobytes())
                constants = {str(name): file[f"constant {i}"] for i, name in enumerate(file["names"])}
            plain["external"] = [(name, tuple(shape), dtype) for name, shape, dtype in plain["external"]]
            plain["timed"] = [(lane, name, size) for lane, name, size in plain["timed"]]
            found = Manifest(**plain, constants=constants)
        except (ValueError, KeyError, TypeError, OSError):
            return None
        return found if library_cache.intact(library_cache.library_entry(found.library)) else None


def network_digest(model: Model, parameters: Iterable[str]) -> str:
    """The hash (hex) of a network: operations, types, and the contents of all initializers but parameters."""
    from meta500.graph.writer import model_to_proto

    digest = hashlib.sha256(model_to_proto(model, weights=False).SerializeToString(deterministic=True))
    trained = set(parameters)
    for name, array in model.graph.initializers.items():
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        if name not in trained:
            digest.update(np.asarray(array, order="C").tobytes())
    return digest.hexdigest()


def program_key(network: str, target: Target, *parts: object) -> str:
    """The key of a program's manifest.

    Args:
        network: its digest.
        target: the processor.
        parts: form and options, whose ``repr`` says all of them.
    """
    program = compiler(target)
    environment = [f"{name}={os.environ.get(name, '')}" for name in _ENVIRONMENT]
    texts = [network, _generator(), repr(target), *map(repr, parts), *program, *environment]
    texts += [compiler_version(program), cpu_model()]
    return "program-" + hashlib.sha256("\0".join(texts).encode()).hexdigest()[:40]


@functools.cache
def _generator() -> str:
    """Sizes and times of the generator's files: a changed generator has other keys."""
    folder = Path(__file__).parent
    files = sorted([*folder.rglob("*.py"), *folder.rglob("*.h")])
    stamps = [f"{path.name} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in files]
    return "\n".join(stamps)


def known(key: str) -> bool:
    """Whether ``key`` was remembered."""
    return library_cache.load_object(key) is not None


def remember(key: str, values: Mapping[str, str] | None = None) -> None:
    """Keep ``key``; nothing happens where the cache can't be written."""
    from contextlib import suppress

    from meta500.errors import UserError

    with suppress(UserError):
        library_cache.store_object(key, json.dumps(dict(values or {})).encode())
