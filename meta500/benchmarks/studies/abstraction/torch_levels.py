"""Levels of PyTorch in Python: eager, compiled, exported, TorchScript, and ahead of time through Inductor."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

from meta500.benchmarks.studies.abstraction.level import (
    INFERENCE,
    Job,
    Level,
    Session,
    Unavailable,
    no_driver,
    scratch,
)

_FORWARD_ONLY = "the package holds the compiled forward pass alone, without gradients"
_SESSIONS = "meta500.benchmarks.studies.abstraction.torch_session"
# torch.optim imports Dynamo when the first optimizer is made; imports are no part of making.
_IMPORTS = ("torch", "torch._dynamo", _SESSIONS)
_INDUCTOR = (*_IMPORTS, "torch._inductor.compile_fx")


def _make(lower: str, job: Job) -> Session:
    from meta500.benchmarks.studies.abstraction import torch_session

    return torch_session.TorchSession(job, getattr(torch_session, lower))


def _make_packaged(job: Job) -> Session:
    if job.phase != INFERENCE:
        raise Unavailable(_FORWARD_ONLY)
    from meta500.benchmarks.studies.abstraction.torch_session import TorchSession, packaged

    return TorchSession(job, partial(packaged, path=scratch(job) / "network.pt2"))


def _missing(device: str) -> str:
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed: pip install torch"
    return no_driver(device)


def _missing_compiler(device: str) -> str:
    """Inductor writes C++ for the CPU, and for what launches the kernels of a GPU."""
    from meta500.backends.compiler import compiler
    from meta500.errors import UserError

    try:
        compiler()
    except UserError as error:
        return f"Inductor compiles C++: {error}"
    return _missing(device)


def _missing_torchscript(device: str) -> str:
    reason = _missing(device)
    if reason:
        return reason
    # Asking for torch.jit itself would import torch.
    found = importlib.util.find_spec("torch")
    places = found.submodule_search_locations if found is not None else None
    if any(Path(place, "jit").is_dir() for place in places or ()):
        return ""
    return "the installed PyTorch has no TorchScript (torch.jit) any more"


EAGER = Level(
    name="eager",
    title="PyTorch eager",
    rank=0,
    what="nn layers called from Python, one after the other",
    make=partial(_make, "eager"),
    imports=_IMPORTS,
    missing=_missing,
    package="torch",
)
COMPILE = Level(
    name="compile",
    title="torch.compile",
    rank=1,
    what="the same module through Dynamo and Inductor, called from Python",
    make=partial(_make, "compiled"),
    imports=_INDUCTOR,
    missing=_missing_compiler,
    package="torch",
)
EXPORT = Level(
    name="export",
    title="torch.export",
    rank=2,
    what="the graph of torch.export.export, run operator by operator as a module",
    make=partial(_make, "exported"),
    imports=(*_IMPORTS, "torch.export"),
    missing=_missing,
    package="torch",
)
TORCHSCRIPT = Level(
    name="torchscript",
    title="TorchScript",
    rank=3,
    what="traced, for inference also frozen; run by the interpreter of torch.jit",
    make=partial(_make, "scripted"),
    imports=_IMPORTS,
    missing=_missing_torchscript,
    package="torch",
)
AOTINDUCTOR = Level(
    name="aotinductor",
    title="AOTInductor",
    rank=5,
    what="compiled ahead of time by Inductor into a shared library, called from Python",
    make=_make_packaged,
    imports=(*_INDUCTOR, "torch._inductor.package", "torch.export"),
    missing=_missing_compiler,
    untrainable=_FORWARD_ONLY,
    package="torch",
)
