"""Starting ranks: mpiexec, scripts that start themselves, batch scripts."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meta500.distributed import launch
from meta500.errors import UserError

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
# Unbuffered, a line is written in pieces, and the ranks' pieces would mix.
ENVIRONMENT.pop("PYTHONUNBUFFERED", None)

FORK = """
import sys, os
from meta500.distributed.launch import mpi_fork
if mpi_fork(2) == "child":
    from meta500.distributed import CommunicationNetwork
    communication = CommunicationNetwork()
    found = communication.gather_objects((communication.rank, sys.argv[1]))
    if communication.is_root:
        print("child", found, flush=True)
        if sys.argv[1] == "fail":
            os._exit(7)
    communication.barrier()
else:
    print("parent", "mpi4py" in sys.modules, flush=True)
    try:
        mpi_fork(2)
    except Exception as error:
        print(error)
"""


def run(*words, cwd, **more):
    return subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=60,
        check=False, **more,
    )  # fmt: skip


def test_mpiexec_is_that_of_the_library_of_mpi4py():
    path, family = launch.find_mpiexec()
    assert os.access(path, os.X_OK) and family in ("MPICH", "Open MPI", "Intel")
    assert launch.mpiexec_command(3, ["a", "b"])[:3] == [path, "-n", "3"]
    assert launch.mpiexec_command(3, ["a", "b"], path="/x/mpiexec") == ["/x/mpiexec", "-n", "3", "a", "b"]


def test_a_script_starts_its_own_ranks(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(FORK)
    done = run(script, "two words", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["child [(0, 'two words'), (1, 'two words')]", "parent False"]
    assert "can start its ranks once" in lines[2] and len(lines) == 3
    failed = run(script, "fail", cwd=tmp_path)
    assert failed.returncode == 1 and "mpi_fork(2): the ranks ended with exit code" in failed.stderr


def test_ranks_that_run_already(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    assert launch.mpi_fork(2) == "child"
    with pytest.raises(UserError, match="runs on 2 ranks already"):
        launch.mpi_fork(3)
    assert launch.ranks_of_command(None) is None and launch.ranks_of_command(2) is None
    with pytest.raises(UserError, match="--ranks 4 does not agree with the 2 ranks"):
        launch.ranks_of_command(4)
    with pytest.raises(UserError, match="one of 2 ranks already"):
        launch.start(2, ["true"])


def test_ranks_of_a_command(monkeypatch):
    for name in ("PMI_SIZE", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    assert launch.ranks_of_command(None) is None
    assert launch.ranks_of_command(1) is None
    assert launch.ranks_of_command(4) == 4
    with pytest.raises(UserError, match="--ranks must be an integer of at least 1"):
        launch.ranks_of_command(0)


def test_exit_codes_and_signals_pass_through_the_launcher(tmp_path):
    program = "import time, sys\nfrom mpi4py import MPI\nprint('up', flush=True)\ntime.sleep(60)"
    code = "import sys\nfrom meta500.distributed.launch import start\nsys.exit(start(2, sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", code, sys.executable, "-c", program],
        env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout.readline() == process.stdout.readline() == "up\n"
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=40)
        assert process.returncode != 0 and time.monotonic() - begin < 40
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    done = run("-c", code, sys.executable, "-c", "import sys; sys.exit(5)", cwd=tmp_path)
    assert done.returncode == 5


@pytest.mark.parametrize(
    "more", [{}, {"time": "01:30:00", "partition": "long", "gpus_per_node": 2, "mpi": "pmi2"}]
)
def test_the_batch_script_is_what_bash_and_slurm_read(tmp_path, more):
    program = ["meta500", "train", "--model-option", "note=it's here", "--out", "$HOME/run"]
    text = launch.slurm_script(program, ranks=8, nodes=2, threads=4, environment="/opt/my env", **more)
    lines = text.splitlines()
    assert lines[0] == "#!/bin/bash"
    settings = dict(
        line.removeprefix("#SBATCH --").split("=") for line in lines if line.startswith("#SBATCH")
    )
    assert (settings["ntasks"], settings["nodes"], settings["cpus-per-task"]) == ("8", "2", "4")
    assert settings["ntasks-per-node"] == "4" and settings.get("time") == more.get("time")
    assert settings.get("gpus-per-node") == ("2" if more else None)
    # Run it with a stand-in for srun that shows its words.
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "srun").write_text('#!/bin/bash\nprintf "%s\\n" "$OMP_NUM_THREADS" "$@"\n')
    (tools / "srun").chmod(0o755)
    script = tmp_path / "job.sh"
    script.write_text(text.replace("source '/opt/my env/bin/activate'", ":"))
    assert "source '/opt/my env/bin/activate'" in text
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0
    done = subprocess.run(
        ["bash", script], env={"PATH": f"{tools}:{os.environ['PATH']}", "SLURM_CPUS_PER_TASK": "4"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    words = done.stdout.splitlines()
    assert words[0] == "4" and words[-len(program) :] == program
    assert "--kill-on-bad-exit=1" in words and ("--mpi=pmi2" in words) == bool(more)


def test_what_a_batch_script_cannot_hold_is_refused():
    with pytest.raises(UserError, match="--ranks 5 is no multiple of --nodes 2"):
        launch.slurm_script(["a"], ranks=5, nodes=2)
    with pytest.raises(UserError, match="there is no command"):
        launch.slurm_script([], ranks=4)
    with pytest.raises(UserError, match="--partition 'a b' must be one word"):
        launch.slurm_script(["a"], ranks=4, partition="a b")
    with pytest.raises(UserError, match="--threads must be an integer of at least 1"):
        launch.slurm_script(["a"], ranks=4, threads=0)


def test_the_launch_command(tmp_path):
    done = run(
        "-m",
        "meta500",
        "launch",
        "--ranks",
        4,
        "--slurm",
        "--nodes",
        2,
        "--",
        "meta500",
        "train",
        cwd=tmp_path,
    )
    assert done.returncode == 0 and done.stdout.startswith("#!/bin/bash\n#SBATCH")
    assert done.stdout.rstrip().endswith("meta500 train")
    done = run("-m", "meta500", "launch", "--ranks", 2, "--", sys.executable, "-c", "print(1)", cwd=tmp_path)
    again = subprocess.run(
        done.stdout, shell=True, capture_output=True, text=True, check=True, env=ENVIRONMENT
    )
    assert again.stdout.split() == ["1", "1"]
    done = run("-m", "meta500", "launch", "--ranks", 2, "--nodes", 2, "--", "true", cwd=tmp_path)
    assert done.returncode == 2 and "--nodes is for batch scripts: add --slurm" in done.stderr
