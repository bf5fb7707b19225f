"""The level of LibTorch: a C++ program of ATen calls, generated for one network and built against PyTorch."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from meta500.benchmarks.studies.abstraction.level import CPU, INFERENCE, Job, Level, Session, Unavailable
from meta500.errors import UserError

# The work is in the libraries: what is compiled here only calls them, and -O1 compiles fastest of all levels.
_BASE_FLAGS = ("-O1", "-std=c++20")


def program_of(text: str) -> Path:
    """The executable of a printed network, built now or found in the cache.

    Raises:
        UserError: there is no compiler, or PyTorch comes without its headers, or the text does not compile.
    """
    import torch
    from torch.utils import cpp_extension

    from meta500.backends.toolchain import compile_program
    from meta500.benchmarks.studies.abstraction.network_program import TEXTS, common_texts

    includes = [Path(path) for path in cpp_extension.include_paths()]
    if not any((path / "ATen" / "core" / "Tensor.h").is_file() for path in includes):
        raise UserError("PyTorch is installed without its C++ headers (torch/include)")
    texts = common_texts() | {"libtorch.h": (TEXTS / "libtorch.h").read_text(), "network.cpp": text}
    abi = int(torch._C._GLIBCXX_USE_CXX11_ABI)
    version = torch.__version__.replace('"', "")
    # Joined to -isystem they count as headers of the system, for which the version in the flags stands.
    flags = [f"-isystem{path}" for path in includes]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={abi}", f'-DMETA500_LIBTORCH_VERSION="{version}"']
    for path in cpp_extension.library_paths():
        flags += [f"-L{path}", f"-Wl,-rpath,{path}"]
    # PyTorch brings its own OpenMP runtime; a second one in the process would have threads of its own.
    return compile_program(texts, [*flags, "-ltorch_cpu", "-lc10"], base_flags=_BASE_FLAGS, openmp=False)


def _make(job: Job) -> Session:
    from meta500.benchmarks.studies.abstraction.libtorch_program import network_source, untrainable
    from meta500.benchmarks.studies.abstraction.network_program import ProgramSession, describe

    if job.device != CPU:
        raise Unavailable(_missing(job.device))
    network = describe(job.network())
    if job.phase != INFERENCE and (reason := untrainable(network)):
        raise Unavailable(reason)
    return ProgramSession(program_of(network_source(network)), network, job, "the LibTorch program")


def _missing(device: str) -> str:
    from meta500.backends.compiler import compiler

    if device != CPU:
        return "the LibTorch program is written for the CPU only"
    found = importlib.util.find_spec("torch")
    if found is None:
        return "PyTorch is not installed: pip install torch"
    folders = [Path(place) for place in found.submodule_search_locations or ()]
    if not any((place / "include" / "ATen" / "core" / "Tensor.h").is_file() for place in folders):
        return "PyTorch is installed without its C++ headers (torch/include)"
    try:
        compiler()
    except UserError as error:
        return str(error)
    return ""


LIBTORCH = Level(
    name="libtorch",
    title="LibTorch (C++)",
    rank=6,
    what="a C++ program generated for this network: PyTorch's operators one by one, without Python",
    make=_make,
    missing=_missing,
    package="torch",
)
