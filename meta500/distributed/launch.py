"""Starting ranks: the mpiexec that fits, scripts that start themselves, batch scripts for Slurm."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from meta500.distributed.mpi import REMEDY, launched_ranks
from meta500.errors import UserError

MPIEXEC = "META500_MPIEXEC"
# Width of the terminal of the process that started mpiexec; behind mpiexec there is none.
COLUMNS = "META500_COLUMNS"

_forked: list[int] = []

# Asks mpi4py for its library without initialising MPI: launchers refuse a second initialisation.
_QUESTION = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().split(chr(10))[0])
for line in open('/proc/self/maps') if __import__('os').path.exists('/proc/self/maps') else ():
    path = line.rstrip().split(' ', 5)[-1].strip()
    if __import__('os').path.basename(path).startswith(('libmpi.', 'libmpich.', 'libmpi_abi.')):
        print(path)
        break
"""
# First words of an MPI library's version -> (words in the output of its mpiexec --version, names of it).
_FAMILIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "MPICH": (("hydra", "mpich"), ("mpiexec", "mpiexec.mpich", "mpiexec.hydra", "mpirun.mpich")),
    "Intel": (("intel", "hydra"), ("mpiexec", "mpiexec.hydra", "mpirun")),
    "Open MPI": (("open mpi", "openrte", "prte"), ("mpiexec", "mpiexec.openmpi", "mpirun", "mpirun.openmpi")),
}


def mpiexec_command(ranks: int, program: Sequence[str], *, path: str | None = None) -> list[str]:
    """The words that start ``program`` on ``ranks`` ranks of this machine.

    Args:
        ranks: number of processes.
        program: the words of the program.
        path: of mpiexec; by default the one that belongs to the MPI library of mpi4py.

    Raises:
        UserError: ``ranks`` is below 1, or there is no mpiexec.
    """
    _checked_ranks(ranks)
    launcher, family = find_mpiexec() if path is None else (path, "")
    options = ["-n", str(ranks)]
    if family == "Open MPI" and ranks > len(os.sched_getaffinity(0)):
        options.append("--oversubscribe")
    return [launcher, *options, *program]


@lru_cache(maxsize=1)
def find_mpiexec() -> tuple[str, str]:
    """Path of the mpiexec that belongs to the MPI library which mpi4py loads, and that library's family.

    The environment variable META500_MPIEXEC overrides the search.

    Raises:
        UserError: mpi4py, the library or its mpiexec is missing.
    """
    family, library = _library()
    given = os.environ.get(MPIEXEC)
    if given:
        return given, family
    words, names = _FAMILIES.get(family, ((), ("mpiexec", "mpirun")))
    for folder in _folders(library):
        for name in names:
            candidate = folder / name
            if os.access(candidate, os.X_OK) and _belongs(candidate, words):
                return str(candidate), family
    raise UserError(
        f"there is no mpiexec of {family or 'the MPI library'} (mpi4py loads "
        f"{library or 'an unknown file'}): "
        f"install its programs, or name one in the environment variable {MPIEXEC}"
    )


def _library() -> tuple[str, Path | None]:
    """Family and file of the MPI library that mpi4py loads."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI_", "PMIX_", "OMPI_"))}
    done = subprocess.run(
        [sys.executable, "-c", _QUESTION], capture_output=True, text=True, env=environment, check=False
    )
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        raise UserError(f"starting ranks needs mpi4py and an MPI library ({reason}); {REMEDY}")
    family = next((name for name in _FAMILIES if lines[0].startswith(name)), "")
    return family, Path(lines[1]).resolve() if len(lines) > 1 else None


def _folders(library: Path | None) -> list[Path]:
    """Folders with programs, those nearest to the library first."""
    found = [parent / "bin" for parent in library.parents] if library is not None else []
    found.append(Path(sys.executable).parent)
    found += [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
    return list(dict.fromkeys(found))


def _belongs(program: Path, words: Sequence[str]) -> bool:
    if not words:
        return True
    try:
        done = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    text = (done.stdout + done.stderr).lower()
    return any(word in text for word in words)


def start(ranks: int, program: Sequence[str], environment: Mapping[str, str] | None = None) -> int:
    """Start ``program`` on ``ranks`` ranks here, wait for its end and return its exit code.

    Ctrl-C goes on to the ranks. The ranks have no standard input.

    Raises:
        UserError: there is no mpiexec, or this process is itself a rank.
    """
    if launched_ranks() is not None:
        raise UserError(
            f"this process is one of {launched_ranks()} ranks already: start it without mpiexec, or leave "
            "out "
            "the number of ranks"
        )
    command = mpiexec_command(ranks, program)
    variables = {**os.environ, **(environment or {})}
    if sys.stderr.isatty():
        variables.setdefault(COLUMNS, str(os.get_terminal_size(sys.stderr.fileno()).columns))
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        # A group of its own: mpiexec must see Ctrl-C once, from here, since a second one kills at once.
        process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        raise UserError(f"{command[0]} cannot be started: {error.strerror}") from None
    return _waited(process)


def _waited(process: subprocess.Popen[Any]) -> int:
    def forward(number: int, frame: Any) -> None:
        process.send_signal(number)

    before = {n: signal.signal(n, forward) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def same_command() -> list[str]:
    """The words that started this Python program, options of the interpreter included."""
    return [sys.executable, *sys.orig_argv[1:]]


def mpi_fork(ranks: int) -> Literal["child", "parent"]:
    """Start this script again on ``ranks`` MPI ranks; "child" in them, "parent" here when all are finished.

    The process that calls it is no MPI process; the ranks run the script from its beginning::

        if mpi_fork(3) == "child":
            train()
        else:
            print("all ranks are finished")

    In a script that mpiexec started it returns "child" at once.

    Raises:
        UserError: the ranks failed (names the exit code), they are another number than ``ranks``, or a script
            calls it twice.
    """
    _checked_ranks(ranks)
    running = launched_ranks()
    if running is not None:
        if running != ranks:
            raise UserError(f"mpi_fork({ranks}): this script runs on {running} ranks already; use as many")
        return "child"
    if _forked:
        raise UserError("mpi_fork: a script can start its ranks once, since they run it from its beginning")
    _forked.append(ranks)
    code = start(ranks, same_command())
    if code:
        raise UserError(f"mpi_fork({ranks}): the ranks ended with exit code {code}; their messages are above")
    return "parent"


def ranks_of_command(ranks: int | None) -> int | None:
    """How many ranks a command with ``--ranks`` has to start; None if this process is to do the work itself.

    Raises:
        UserError: ``ranks`` is below 1 or is not the number of ranks that are running already.
    """
    if ranks is not None:
        _checked_ranks(ranks, "--ranks")
    running = launched_ranks()
    if running is not None:
        if ranks not in (None, running):
            raise UserError(
                f"--ranks {ranks} does not agree with the {running} ranks that mpiexec started: leave it "
                "out, or "
                "start the command without mpiexec"
            )
        return None
    return None if ranks in (None, 1) else ranks


def slurm_script(
    program: Sequence[str],
    *,
    ranks: int,
    nodes: int = 1,
    threads: int = 1,
    time: str | None = None,
    partition: str | None = None,
    account: str | None = None,
    gpus_per_node: int | None = None,
    name: str = "meta500",
    environment: str | None = None,
    mpi: str | None = None,
) -> str:
    """A batch script that runs ``program`` on ``ranks`` ranks through srun.

    Args:
        program: words of the command.
        ranks: processes in total, spread evenly over ``nodes``.
        threads: processors of each rank, and its OpenMP threads.
        time: limit, "HH:MM:SS" or another form that Slurm knows.
        partition, account: names at the site.
        gpus_per_node: GPUs of each node.
        name: of the job.
        environment: a Python virtual environment to activate.
        mpi: srun's ``--mpi`` type, e.g. "pmi2" or "pmix"; None: the site's default.

    Raises:
        UserError: a number below 1, ranks that do not fit evenly on the nodes, a value with a line end.
    """
    for key, value in (("ranks", ranks), ("nodes", nodes), ("threads", threads)):
        _checked_ranks(value, f"--{key}")
    if gpus_per_node is not None:
        _checked_ranks(gpus_per_node, "--gpus-per-node")
    if ranks % nodes:
        raise UserError(f"--ranks {ranks} is no multiple of --nodes {nodes}: every node gets as many ranks")
    if not program:
        raise UserError("there is no command to run: give it after '--', such as: -- meta500 train")
    settings = {
        "job-name": name,
        "nodes": nodes,
        "ntasks": ranks,
        "ntasks-per-node": ranks // nodes,
        "cpus-per-task": threads,
        "time": time,
        "partition": partition,
        "account": account,
        "gpus-per-node": gpus_per_node,
        "output": f"{name}-%j.out",
    }
    for key, setting in settings.items():
        if isinstance(setting, str) and (not setting or any(c in setting for c in "\n\r \t'\"")):
            raise UserError(f"--{key} '{setting}' must be one word")
    lines = ["#!/bin/bash"]
    lines += [f"#SBATCH --{key}={setting}" for key, setting in settings.items() if setting is not None]
    lines += ["", "set -euo pipefail"]
    if environment is not None:
        lines.append(f"source {shlex.quote(str(Path(environment) / 'bin' / 'activate'))}")
    lines += [
        'export OMP_NUM_THREADS="${SLURM_CPUS_PER_TASK:-1}"',
        "# A rank that fails ends the job instead of leaving the others waiting.",
        f"srun {f'--mpi={mpi} ' if mpi else ''}--kill-on-bad-exit=1 "
        f'--cpus-per-task="${{SLURM_CPUS_PER_TASK:-1}}" ' + "\\",
        "    " + shlex.join(program),
    ]
    return "\n".join(lines) + "\n"


def _checked_ranks(value: Any, name: str = "ranks") -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"{name} must be an integer of at least 1, not {value!r}")
