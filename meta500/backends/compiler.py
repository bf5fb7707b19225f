"""The C++ compiler: which one, what it understands, and running it.

Environment variables: ``CXX`` names the compiler (default ``g++``; arguments are allowed), ``CXXFLAGS`` has
further flags. For a target of another architecture the compiler is a cross compiler:
``aarch64-linux-gnu-g++``, or ``CXX`` where its name has the architecture in it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meta500.backends.library_cache import cache_folder, disk_full, load_fact, store_fact
from meta500.backends.targets import Target, native_target, this_machine
from meta500.errors import UserError

_FULL = ("No space left on device", "Disk quota exceeded")
_ERROR = re.compile(r"error:|undefined reference|multiple definition|cannot find")
_FIRST_ERRORS = 5
_POLL_SECONDS = 0.002
_PLAIN = "int main() { return 0; }\n"
_OPENMP = (
    "#include <omp.h>\nint main() {\n    int n = 0;\n"
    "#pragma omp parallel reduction(+ : n)\n    n += omp_get_num_threads();\n    return n == 0;\n}\n"
)
_facts: dict[tuple[Path, str], str] = {}


@dataclass(frozen=True)
class Ended:
    """A compiler that has run: its command, its exit status (negative: a signal) and what it printed."""

    command: list[str]
    status: int
    output: str


def compiler(target: Target | None = None) -> list[str]:
    """The command of the C++ compiler for ``target`` (default: this machine).

    Raises:
        UserError: it is not installed.
    """
    given = words("CXX")
    if target is None or target.machine == this_machine():
        return _installed(given or ["g++"], "install g++ or name another one in the environment variable CXX")
    if any(target.machine in Path(word).name for word in given):
        return _installed(given, f"set CXX to a compiler for {target.machine}")
    prefix = f"{target.machine.replace('_', '-')}-linux-gnu"
    return _installed(
        [f"{target.machine}-linux-gnu-g++"],
        f"target '{target.name}' is another architecture than this machine's ({this_machine()}) and needs "
        f"a cross compiler; install it (Debian: g++-{prefix}) or name one in the environment variable CXX",
    )


def words(variable: str) -> list[str]:
    """An environment variable as words of a command.

    Raises:
        UserError: a quote is open.
    """
    text = os.environ.get(variable, "")
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(
            f"the environment variable {variable} is no command line: {text!r} ({error})"
        ) from None


def compiler_version(command: Sequence[str]) -> str:
    """What the compiler ``command`` prints for ``--version``.

    Raises:
        UserError: it does not run.
    """

    def ask() -> str:
        ended = run([*command, "--version"])
        if ended.status != 0:
            raise UserError(complaint(f"the C++ compiler '{command[0]}' does not run", ended))
        return ended.output

    return _known("version", command, (), ask)


def has_openmp(target: Target | None = None, *, again: bool = False) -> bool:
    """Whether the compiler for ``target`` compiles and links OpenMP (with ``$CXXFLAGS``).

    Args:
        target: default: this machine.
        again: ask the compiler although the answer is known.

    Raises:
        UserError: there is no compiler, or it can't compile anything.
    """
    chosen = native_target() if target is None else target
    command = compiler(chosen)
    flags = [*chosen.flags, *words("CXXFLAGS")]
    key = (cache_folder(), _key("openmp", command, flags))
    if again or key not in _facts:
        kept = load_fact(key[1])
        # A no is not believed later: the user installs what is missing, and the compiler stays the same.
        answer = "True" if kept == "True" and not again else str(_compiles_openmp(command, flags))
        if "True" in (kept, answer) and kept != answer:
            store_fact(key[1], answer)
        _facts[key] = answer
    return _facts[key] == "True"


def no_openmp(target: Target | None = None) -> str:
    """The message for a compiler without OpenMP: it says what to install."""
    return (
        f"the C++ compiler '{shlex.join(compiler(target))}' does not compile OpenMP (-fopenmp, omp.h and its "
        "library): install it (g++ brings it; clang++ needs libomp-dev on Debian, libomp on macOS), or name "
        "another compiler in the environment variable CXX, or use threads=1"
    )


def understood(flags: Sequence[str], target: Target | None = None) -> tuple[str, ...]:
    """Those of ``flags`` that the compiler for ``target`` takes without a warning.

    Raises:
        UserError: there is no compiler, or it can't compile anything.
    """
    command = compiler(target)

    def taken(flag: str) -> str:
        # g++ is silent about an unknown -Wno-x until there is another warning; about -Wx it is not.
        asked = flag.replace("-Wno-", "-W", 1)
        if _try(_PLAIN, command, ["-Werror", asked]):
            return "True"
        _require_working(command)
        return "False"

    answers = (_known("flag", command, (flag,), functools.partial(taken, flag)) for flag in flags)
    return tuple(flag for flag, answer in zip(flags, answers, strict=True) if answer == "True")


def run(command: Sequence[str]) -> Ended:
    """Run one command.

    Raises:
        UserError: it can't be started.
    """
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            env=_environment(),
        )
    except OSError as error:
        raise _no_start(command, error) from None
    return Ended(list(command), done.returncode, done.stdout.decode(errors="replace"))


def run_all(commands: Sequence[Sequence[str]], folder: Path) -> list[Ended]:
    """Run commands, as many at once as there are processors for this process.

    After the first that fails no other is started, and those that run are ended.

    Args:
        commands: each a program and its arguments.
        folder: for their output and their temporary files.

    Returns:
        The ones that have ended, in the order in which they did; where the last failed there are fewer.

    Raises:
        UserError: one can't be started.
    """
    waiting = list(enumerate(commands))[::-1]
    running: dict[int, subprocess.Popen[bytes]] = {}
    ended: list[Ended] = []
    try:
        while waiting or running:
            while waiting and len(running) < _processors():
                index, command = waiting.pop()
                running[index] = _start(command, folder / f"output-{index}.txt", folder)
            for index, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[index]
                text = (folder / f"output-{index}.txt").read_bytes().decode(errors="replace")
                ended.append(Ended(list(commands[index]), process.returncode, text))
                if process.returncode != 0:
                    return ended
            if running:
                time.sleep(_POLL_SECONDS)
    finally:
        for process in running.values():
            _end(process)
    return ended


def complaint(what: str, ended: Ended) -> str:
    """The message for a compiler that failed: its first errors and its command.

    Args:
        what: the sentence before, as "heat.cpp: does not compile".
        ended: the compiler.
    """
    lines = ended.output.strip().splitlines()
    full = next((line for line in lines if any(text in line for text in _FULL)), None)
    if full is not None:
        return disk_full(full.strip())
    errors = [line for line in lines if _ERROR.search(line) and not line.startswith("collect2:")]
    shown = errors[:_FIRST_ERRORS] or lines[-_FIRST_ERRORS:] or ["the compiler says nothing"]
    more = f"\n  and {len(errors) - len(shown)} more errors" if len(errors) > len(shown) else ""
    text = "\n  ".join(shown)
    return f"{what}{_ending(ended)}:\n  {text}{more}\ncommand: {shlex.join(ended.command)}"


def _installed(command: list[str], advice: str) -> list[str]:
    if shutil.which(command[0]) is None:
        raise UserError(f"the C++ compiler '{command[0]}' is not installed; {advice}")
    return command


def _known(question: str, command: Sequence[str], flags: Sequence[str], ask: Callable[[], str]) -> str:
    """The answer of ``ask()``, which is not asked again while the compiler's file stays the same."""
    key = (cache_folder(), _key(question, command, flags))
    if key not in _facts:
        answer = load_fact(key[1])
        if answer is None:
            answer = ask()
            store_fact(key[1], answer)
        _facts[key] = answer
    return _facts[key]


def _key(question: str, command: Sequence[str], flags: Sequence[str]) -> str:
    """Hash of a question and of the programs in ``command``: their paths, times and sizes."""
    stamps = []
    for word in command:  # "ccache g++" has two
        path = shutil.which(word)
        if path is not None:
            status = os.stat(path)
            stamps.append([os.path.realpath(path), status.st_mtime_ns, status.st_size])
    text = json.dumps([question, list(command), list(flags), stamps])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _compiles_openmp(command: Sequence[str], flags: Sequence[str]) -> bool:
    if _try(_OPENMP, command, [*flags, "-fopenmp"]):
        return True
    _require_working([*command, *flags])
    return False


def _require_working(command: Sequence[str]) -> None:
    if not _try(_PLAIN, command, ()):
        raise UserError(
            f"the C++ compiler '{shlex.join(command)}' does not compile an empty program; name another one "
            "in the environment variable CXX"
        )


def _try(text: str, command: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether a whole program compiles and links; it is not run."""
    with tempfile.TemporaryDirectory(prefix="meta500-") as folder:
        source, program = Path(folder, "probe.cpp"), Path(folder, "probe")
        source.write_text(text)
        ended = run([*command, str(source), *flags, "-o", str(program)])
        return ended.status == 0 and program.is_file() and program.stat().st_size > 0


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _start(command: Sequence[str], output: Path, folder: Path) -> subprocess.Popen[bytes]:
    # Temporary files in the folder go with it, also when the compiler is killed. The group of its own lets
    # the compiler's children be ended with it.
    try:
        with output.open("wb") as file:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**_environment(), "TMPDIR": str(folder)},
                process_group=0,
            )
    except OSError as error:
        raise _no_start(command, error) from None


def _end(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except OSError:  # it has ended
        process.kill()
    process.wait()


def _no_start(command: Sequence[str], error: OSError) -> UserError:
    return UserError(f"the C++ compiler '{command[0]}' does not run: {error.strerror}")


def _ending(ended: Ended) -> str:
    """How a program ended that did so by a signal; what it printed says the rest."""
    number = -ended.status if ended.status < 0 else ended.status - 128  # shells return 128 + signal
    if ended.status >= 0 and not 1 <= number < 65:
        return ""
    name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
    memory = " (is there enough memory?)" if number == signal.SIGKILL else ""
    return f" (the compiler was ended by signal {name}){memory}"
