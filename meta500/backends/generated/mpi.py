"""The MPI library of this process, as generated C++ needs it: its header, its file, communicators.

mpi4py decides which library that is. Generated code is compiled with that library's ``mpi.h`` and linked with
the very file that is loaded, so that a handle means the same on both sides. Nothing here initialises MPI: who
has a communicator has done so.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meta500.errors import UserError

# Seconds after which a reduction that some rank does not take part in is given up.
TIMEOUT = 600.0
MPICH, OPEN_MPI, STANDARD = "MPICH", "Open MPI", "the MPI standard's ABI"
_WRAPPERS = ("mpicxx", "mpic++", "mpicc")
_ASKING = (("--showme:compile",), ("-show",))  # Open MPI; MPICH and its relatives
# What only one family's header defines.
_MARKS = {MPICH: ("MPICH_VERSION", "I_MPI_VERSION", "MPICH_NAME"), OPEN_MPI: ("OMPI_MAJOR_VERSION",)}


@dataclass(frozen=True)
class MpiLibrary:
    """An MPI library with the header that belongs to it.

    Attributes:
        path: of the shared library that mpi4py has loaded.
        include: flags with which the compiler finds ``mpi.h``.
        version: what the library says of itself, its first line.
        identity: hash (hex) of all that tells one library from another; part of every cache key.
    """

    path: Path
    include: tuple[str, ...]
    version: str
    identity: str

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags for compiling and linking; those that say nothing to the other are ignored there."""
        folder = self.path.parent
        exact = sys.platform.startswith("linux")
        linked = (f"-L{folder}", f"-l:{self.path.name}") if exact else (f"-Wl,{self.path}",)
        return (*self.include, f"-DMETA500_MPI={self.identity}", *linked, f"-Wl,-rpath,{folder}")


def checked(communicator: Any) -> Any:
    """``communicator``, an mpi4py intracommunicator.

    Raises:
        UserError: it is none, or MPI is not running.
    """
    module = sys.modules.get("mpi4py.MPI")  # who has a communicator has imported it
    if module is None or not isinstance(communicator, module.Intracomm):
        raise UserError(
            f"communicator: expected an mpi4py communicator, such as mpi4py.MPI.COMM_WORLD, not "
            f"{type(communicator).__name__}"
        )
    if communicator == module.COMM_NULL or not module.Is_initialized() or module.Is_finalized():
        raise UserError("communicator: MPI is not running, or it is MPI.COMM_NULL")
    if module.Query_thread() < module.THREAD_FUNNELED:
        raise UserError(
            "communicator: MPI was initialised without threads; generated code needs MPI_THREAD_FUNNELED "
            "(mpi4py.rc.thread_level = 'multiple' is mpi4py's default)"
        )
    return communicator


def release(communicator: Any) -> None:
    """Free a communicator that was duplicated, unless MPI has ended."""
    module = sys.modules["mpi4py.MPI"]
    if not module.Is_finalized() and communicator != module.COMM_NULL:
        communicator.Free()


def handle(communicator: Any) -> tuple[int, int]:
    """The address of a communicator's ``MPI_Comm`` and its size in bytes.

    The address is valid as long as the Python object. C++ reads the handle from it, whatever type the
    library's ABI gives it (an int in MPICH, a pointer in Open MPI), and compares the size with its own.
    """
    module = sys.modules["mpi4py.MPI"]
    return module._addressof(communicator), module._sizeof(communicator)


@functools.cache
def mpi_library() -> MpiLibrary:
    """The library that mpi4py has loaded, with its header; to be asked for by those who have a communicator.

    Raises:
        UserError: mpi4py is missing or has no MPI library, or there is no ``mpi.h`` of that library.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"MPI in generated code needs mpi4py and an MPI library ({reason}): install them with "
            "pip install 'meta500[mpi]', or mpi4py beside the system's MPI"
        ) from None
    path = _loaded(MPI)
    version = MPI.Get_library_version().partition("\n")[0].strip("\0 ")
    family = _family(path)
    for include in _includes(path):
        header = _header(include)
        if header is not None and (defines := _fits(header, family)) is not None:
            flags = (*include, *defines)
            return MpiLibrary(path, flags, version, _identity(path, header, version, flags))
    raise UserError(
        f"there is no mpi.h of the MPI library that mpi4py uses ({path}, {version}): install its headers "
        "(the wheel 'mpich' has them; Debian: libmpich-dev or libopenmpi-dev), or name its compiler in the "
        "environment variable MPICXX"
    )


class _Info(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


def _loaded(module: Any) -> Path:
    """The file from which mpi4py's functions come."""
    # dlsym through mpi4py's own module looks where its own calls go.
    function = ctypes.cast(ctypes.CDLL(module.__file__).MPI_Comm_rank, ctypes.c_void_p)
    info = _Info()
    ask = ctypes.CDLL(None).dladdr
    ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
    if not ask(function, ctypes.byref(info)) or not info.file:
        raise UserError("the file of the MPI library that mpi4py has loaded is not known to this system")
    return Path(os.fsdecode(info.file)).absolute()


def _family(path: Path) -> str:
    if path.name.startswith("libmpi_abi"):
        return STANDARD
    return OPEN_MPI if hasattr(ctypes.CDLL(str(path)), "ompi_mpi_comm_world") else MPICH


def _includes(path: Path) -> Iterator[tuple[str, ...]]:
    """Flags under which mpi.h may be found: beside the library, and as compiler wrappers say."""
    beside = path.parent.parent / "include"
    yield (f"-I{beside}",)
    given = shlex.split(os.environ.get("MPICXX", ""))
    bins = [path.parent.parent / "bin", Path(sys.prefix) / "bin"]
    commands = [given] if given else []
    commands += [[str(place / name)] for place in bins for name in _WRAPPERS if (place / name).is_file()]
    commands += [[found] for name in _WRAPPERS if (found := shutil.which(name))]
    for command in commands:
        for arguments in _ASKING:
            yield from _told([*command, *arguments])


def _told(command: list[str]) -> Iterator[tuple[str, ...]]:
    """The include flags that a compiler wrapper prints."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, timeout=30
        )
        words = shlex.split(done.stdout) if done.returncode == 0 else []
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return
    flags = tuple(word for word in words if re.match(r"-(I|D|isystem)\S", word))
    if any(flag.startswith("-I") for flag in flags):
        yield flags


def _header(include: tuple[str, ...]) -> Path | None:
    found = (Path(flag[2:]) / "mpi.h" for flag in include if flag.startswith("-I"))
    return next((path for path in found if path.is_file()), None)


def _fits(header: Path, family: str) -> tuple[str, ...] | None:
    """Further flags with which a header belongs to a family of libraries; None where it does not."""
    text = header.read_text(errors="replace")
    if family != STANDARD:
        return () if any(mark in text for mark in _MARKS[family]) else None
    if (header.parent / "mpi_abi.h").is_file() and "MPI_ABI" in text:
        return ("-DMPI_ABI",)
    return () if "MPI_ABI_VERSION" in text else None


def _identity(path: Path, header: Path, version: str, flags: tuple[str, ...]) -> str:
    stamps = [f"{p} {p.stat().st_size} {p.stat().st_mtime_ns}" for p in (path.resolve(), header)]
    return hashlib.sha256("\0".join([version, *flags, *stamps]).encode()).hexdigest()[:16]
