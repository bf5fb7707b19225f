"""The levels of the vendors' libraries, called directly by programs that are generated for one network."""

from __future__ import annotations

import importlib.metadata
import os
import re
from dataclasses import dataclass
from pathlib import Path

from meta500.benchmarks.studies.abstraction.level import (
    CPU,
    INFERENCE,
    Job,
    Level,
    Session,
    Unavailable,
)
from meta500.errors import UserError

_HEADER, _LIBRARIES = "oneapi/dnnl/dnnl.hpp", ("libdnnl.so", "libdnnl.so.3")
_PACKAGES = ("onednn-devel-cpu-gomp", "onednn-cpu-gomp")
_SYSTEM = (Path("/usr/local"), Path("/usr"))
_ABSENT = (
    "oneDNN 3 is not installed: pip install 'meta500[onednn]' (Linux on x86-64), or name the folder of an "
    "installation with include/oneapi/dnnl/dnnl.hpp in the environment variable DNNLROOT"
)
_CUDNN = "no program for cuDNN is written: this study calls a vendor's library directly on the CPU only"
_TEXTS = ("onednn.h", "onednn_primitives.h", "onednn.cpp")
_BASE_FLAGS = ("-O1", "-std=c++20")


@dataclass(frozen=True)
class Installation:
    """Where a oneDNN is: the folder of headers, the library, and its version as the headers tell it."""

    headers: Path
    library: Path
    version: str


def onednn() -> Installation:
    """The oneDNN to build against: of ``DNNLROOT``, of the packages of the extra, or of the system.

    Raises:
        UserError: there is none, or what ``DNNLROOT`` names is none; the message names the extra.
    """
    root = os.environ.get("DNNLROOT")
    if root:
        found = _under(Path(root))
        if found is None:
            raise UserError(f"DNNLROOT is '{root}', which has no {_HEADER} with libdnnl.so; {_ABSENT}")
        return found
    installed = _of_packages()
    candidates = [installed] if installed is not None else [_under(place) for place in _SYSTEM]
    for candidate in candidates:
        if candidate is not None:
            return candidate
    raise UserError(_ABSENT)


def _under(root: Path) -> Installation | None:
    folders = [root / "lib", root / "lib64", *sorted((root / "lib").glob("*-linux-gnu"))]
    libraries = [folder / name for folder in folders for name in _LIBRARIES]
    return _checked(root / "include" / _HEADER, libraries)


def _of_packages() -> Installation | None:
    """The files of the two wheels, wherever they were installed to."""
    files: list[Path] = []
    for package in _PACKAGES:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            return None
        files += [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    headers = [
        Path(os.path.abspath(file)) for file in files if file.as_posix().endswith(f"include/{_HEADER}")
    ]
    libraries = [Path(os.path.abspath(file)) for file in files if file.name in _LIBRARIES]
    return _checked(headers[0], libraries) if headers else None


def _checked(header: Path, libraries: list[Path]) -> Installation | None:
    found = next((library for library in libraries if library.is_file()), None)
    try:
        text = header.with_name("dnnl_version.h").read_text()
    except OSError:
        return None
    parts = [re.search(rf"#define DNNL_VERSION_{part}\s+(\d+)", text) for part in ("MAJOR", "MINOR", "PATCH")]
    version = ".".join(part[1] for part in parts if part is not None)
    if found is None or not header.is_file() or not version.startswith("3."):
        return None
    return Installation(header.parents[2], found, version)


def program_of(text: str) -> Path:
    """The executable of a printed network, built now or found in the cache.

    Raises:
        UserError: there is no compiler with OpenMP, no oneDNN, or the text does not compile.
    """
    from meta500.backends.toolchain import compile_program
    from meta500.benchmarks.studies.abstraction.network_program import TEXTS, common_texts

    found = onednn()
    own = {name: (TEXTS / name).read_text() for name in _TEXTS}
    flags = [
        # Joined to -isystem they count as headers of the system, for which the version in the flags stands.
        f"-isystem{found.headers}",
        f'-DMETA500_ONEDNN_VERSION="{found.version}"',
        f"-L{found.library.parent}",
        f"-Wl,-rpath,{found.library.parent}",
        f"-l:{found.library.name}",
    ]
    # network.cpp is not optimized; it comes last so that the optimized copies of inline functions are linked.
    return compile_program(common_texts() | own | {"network.cpp": text}, flags, base_flags=_BASE_FLAGS)


def _make_onednn(job: Job) -> Session:
    from meta500.backends.compiler import has_openmp, no_openmp
    from meta500.benchmarks.studies.abstraction.network_program import ProgramSession, describe
    from meta500.benchmarks.studies.abstraction.onednn_program import network_source, untrainable

    if reason := _missing_onednn(job.device):
        raise Unavailable(reason)
    if not has_openmp():  # which runs the program's own loops
        raise Unavailable(no_openmp())
    network = describe(job.network())
    if job.phase != INFERENCE and (reason := untrainable(network)):
        raise Unavailable(reason)
    return ProgramSession(program_of(network_source(network)), network, job, "the oneDNN program")


def _missing_onednn(device: str) -> str:
    from meta500.backends.compiler import compiler

    if device != CPU:
        return "oneDNN is measured on the CPU"
    try:
        onednn()
        compiler()
    except UserError as error:
        return str(error)
    return ""


def _onednn_version() -> str:
    """Of the library itself: the packages count by the year."""
    try:
        return f"oneDNN {onednn().version}"
    except UserError:
        return ""


def _make_cudnn(job: Job) -> Session:
    raise Unavailable(_missing_cudnn(job.device))


def _missing_cudnn(device: str) -> str:
    return _CUDNN if device != CPU else f"cuDNN runs on GPUs of NVIDIA only; besides, {_CUDNN}"


ONEDNN = Level(
    name="onednn",
    title="oneDNN (C++)",
    rank=7,
    what="a C++ program generated for this network: Intel's primitives, built once and called one by one",
    make=_make_onednn,
    missing=_missing_onednn,
    version=_onednn_version,
)
CUDNN = Level(
    name="cudnn",
    title="cuDNN (C++)",
    rank=8,
    what="NVIDIA's library called directly",
    make=_make_cudnn,
    missing=_missing_cudnn,
)
