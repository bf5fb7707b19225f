"""Real MPI processes for the tests of distributed training."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Started with `python -c`, the folder of the tests would not be found by the processes.
ROOT = Path(__file__).resolve().parents[2]


def mpiexec_path() -> str:
    """The mpiexec that belongs to this Python (the wheel's), else the one on the PATH."""
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if not found:
        pytest.skip("there is no mpiexec: install meta500[mpi]")
    return found


def run_mpiexec(n, script, *args, env=None, timeout=60, returncode=0, cwd=None):
    """Run a script as n MPI processes and return its ``subprocess.CompletedProcess`` (text).

    Args:
        n: number of ranks.
        script: Python source, a path of a Python file, or a list of words (a whole command).
        args: further words of the command line.
        env: environment variables to set; None as a value removes one.
        timeout: seconds after which all processes are killed and the test fails.
        returncode: the exit code that is expected, "failure" for any but 0, None for any.
        cwd: working directory of the processes.
    """
    pytest.importorskip("mpi4py", reason="mpi4py is not installed: install meta500[mpi]")
    if isinstance(script, list | tuple):
        command = [str(word) for word in script]
    elif isinstance(script, Path) or (
        "\n" not in script and script.endswith(".py") and Path(script).exists()
    ):
        command = [sys.executable, str(script)]
    else:
        command = [sys.executable, "-c", script]
    command = [mpiexec_path(), "-n", str(n), *command, *map(str, args)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"}
    # Unbuffered, a line is written in pieces, and the ranks' pieces would mix.
    environment.pop("PYTHONUNBUFFERED", None)
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    for name, value in (env or {}).items():
        if value is None:
            environment.pop(name, None)
        else:
            environment[name] = str(value)
    # A session of its own, so that a test which hangs can be ended with all its processes.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment,
        cwd=cwd,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"{n} ranks were not finished after {timeout} s\n--- stdout\n{out}\n--- stderr\n{err}")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    wrong = returncode is not None and (
        process.returncode == 0 if returncode == "failure" else process.returncode != returncode
    )
    if wrong:
        pytest.fail(
            f"{n} ranks ended with code {process.returncode}, expected {returncode}\n"
            f"--- stdout\n{out}\n--- stderr\n{err}"
        )
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture
def mpiexec():
    """``mpiexec(n, script, *args, env=None, timeout=60, returncode=0)``, see :func:`run_mpiexec`."""
    return run_mpiexec


@pytest.fixture(scope="module")
def mpiexec_module():
    """The same for fixtures that live as long as a module."""
    return run_mpiexec
