"""Capture of the machine, on made-up machines and on this one."""

import json
import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from meta500.metrics import machine as module
from meta500.metrics.machine import differences, environment

CPUINFO = """processor\t: 0
model name\t: Abacus 9000
physical id\t: 0
core id\t\t: 0
flags\t\t: fpu avx avx2 fma hypervisor
microcode\t: 0x7

processor\t: 1
model name\t: Abacus 9000
physical id\t: 0
core id\t\t: 0

processor\t: 2
model name\t: Abacus 9000
physical id\t: 1
core id\t\t: 0
"""


def write(root, path, text):
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def machine(tmp_path):
    write(tmp_path, "proc/cpuinfo", CPUINFO)
    write(
        tmp_path,
        "proc/meminfo",
        "MemTotal:       1000 kB\nMemAvailable:    600 kB\nHugePages_Total: 0\n",
    )
    write(tmp_path, "proc/self/cgroup", "0::/outer/inner\n")
    write(tmp_path, "sys/fs/cgroup/outer/cpu.max", "150000 100000\n")
    write(tmp_path, "sys/fs/cgroup/outer/inner/cpu.max", "300000 100000\n")
    write(tmp_path, "sys/fs/cgroup/cpu.max", "max 100000\n")
    write(tmp_path, "sys/fs/cgroup/outer/inner/memory.max", "512000\n")
    write(tmp_path, "sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n")
    write(tmp_path, "etc/os-release", 'NAME=X\nPRETTY_NAME="Abacus OS 1"\n')
    cache = "sys/devices/system/cpu/cpu0/cache"
    for index, (level, kind, size) in enumerate(
        [(1, "Data", "48K"), (2, "Unified", "2M"), (3, "Unified", "1G")]
    ):
        write(tmp_path, f"{cache}/index{index}/level", str(level))
        write(tmp_path, f"{cache}/index{index}/type", kind)
        write(tmp_path, f"{cache}/index{index}/size", size)
    write(tmp_path, ".dockerenv", "")
    return tmp_path


def test_a_made_up_machine(machine):
    found = environment(root=machine)
    cpu = found["cpu"]
    assert cpu["model"] == "Abacus 9000"
    assert (cpu["physical_cores"], cpu["logical_cores"]) == (2, 3)
    assert cpu["caches_bytes"] == {"L1d": 48 * 1024, "L2": 2 * 1024**2, "L3": 1024**3}
    assert cpu["vector"] == ["avx", "avx2", "fma"]
    assert cpu["virtual"] is True
    assert cpu["limit_cores"] == 1.5
    assert found["memory"] == {
        "total_bytes": 1000 * 1024,
        "available_bytes": 600 * 1024,
        "limit_bytes": 512000,
        "huge_pages": "madvise",
    }
    assert found["os"]["distribution"] == "Abacus OS 1"
    assert found["container"] == "docker"
    assert found["gpus"] == []


def test_affinity_is_written_as_ranges(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {5, 0, 2, 1, 9, 8}, raising=False)
    assert environment()["cpu"]["affinity"] == "0-2,5,8-9"


def test_older_control_groups(machine):
    write(machine, "proc/self/cgroup", "4:memory:/job\n2:cpu,cpuacct:/job\n0::/\n")
    write(machine, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\n")
    write(machine, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    write(machine, "sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    write(machine, "sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    write(machine, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712\n")
    found = environment(root=machine)
    assert found["cpu"]["limit_cores"] == 0.5
    # The kernel writes a number beyond all memory where there is no limit.
    assert found["memory"]["limit_bytes"] is None


def test_a_machine_that_tells_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cpuinfo", None)
    monkeypatch.setattr(module.platform, "processor", lambda: "")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = environment(directory=tmp_path, root=tmp_path)
    assert found["cpu"]["model"] is None
    assert found["cpu"]["physical_cores"] is None
    assert found["cpu"]["caches_bytes"] == {}
    assert found["memory"]["total_bytes"] is None
    assert found["compiler"] is None
    assert found["git"] is None


def test_arm_processors_have_other_words(machine):
    text = "processor\t: 0\nFeatures\t: fp asimd sve\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
    write(machine, "proc/cpuinfo", text)
    for cpu, siblings in enumerate(["0-1", "0-1", "2-3"]):
        path = f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        write(machine, path, siblings)
    cpu = environment(root=machine)["cpu"]
    assert cpu["model"] == "implementer 0x41 part 0xd40"
    assert cpu["vector"] == ["asimd", "sve"]
    assert cpu["physical_cores"] == 2


def test_this_machine():
    found = environment()
    assert json.loads(json.dumps(found)) == found
    assert found["cpu"]["logical_cores"] == os.cpu_count()
    ends = [[int(end) for end in part.split("-")] for part in found["cpu"]["affinity"].split(",")]
    assert {n for part in ends for n in range(part[0], part[-1] + 1)} == os.sched_getaffinity(0)
    assert found["python"]["version"] == sys.version.split()[0]
    import numpy

    assert found["versions"]["numpy"] == numpy.__version__
    assert any(pool["user_api"] == "blas" and pool["num_threads"] >= 1 for pool in found["blas"])


def test_only_listed_variables_are_recorded(monkeypatch):
    for name in list(os.environ):
        if name.startswith(module.VARIABLE_PREFIXES) or name in module.VARIABLES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
    monkeypatch.setenv("MKL_SECRET_TOKEN", "hush")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    monkeypatch.setenv("HOME_SWEET_HOME", "hush")
    found = environment()
    assert found["variables"] == {
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
        "OMP_NUM_THREADS": "3",
    }
    assert "hush" not in json.dumps(found)


def test_capture_does_not_import_torch():
    program = (
        "import sys; from meta500.metrics.machine import environment as e; e(); print('torch' in sys.modules)"
    )
    path = str(Path(module.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "False\n"


def test_threads_of_a_loaded_torch_are_asked_for(monkeypatch):
    fake = types.SimpleNamespace(get_num_threads=lambda: 3, get_num_interop_threads=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert environment()["threads"] == {"torch": 3, "torch_between_operators": 2}


def test_git_state(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))

    def git(*words):
        names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *names, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert environment(tmp_path)["git"] is None
    git("init")
    assert environment(tmp_path)["git"] == {"commit": None, "dirty": False}
    (tmp_path / "a").write_text("1")
    git("add", "a")
    git("commit", "-m", "first")
    head = git("rev-parse", "HEAD")
    assert environment(tmp_path)["git"] == {"commit": head, "dirty": False}
    (tmp_path / "new").write_text("1")
    assert environment(tmp_path)["git"] == {"commit": head, "dirty": False}
    (tmp_path / "a").write_text("2")
    assert environment(tmp_path)["git"] == {"commit": head, "dirty": True}


def test_gpus_by_library(machine, monkeypatch):
    write(machine, "proc/driver/nvidia/version", "1")
    closed = []
    fake = types.SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda i: i,
        nvmlDeviceGetName=lambda i: [b"Old", "New"][i],
        nvmlDeviceGetMemoryInfo=lambda i: types.SimpleNamespace(total=(i + 1) * 1024),
        nvmlSystemGetDriverVersion=lambda: b"550.1",
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert environment(root=machine)["gpus"] == [
        {"name": "Old", "memory_bytes": 1024, "driver": "550.1"},
        {"name": "New", "memory_bytes": 2048, "driver": "550.1"},
    ]
    assert closed == [True]


def test_gpus_by_tool(machine, monkeypatch):
    write(machine, "dev/nvidiactl", "")
    write(machine, "bin/nvidia-smi", "#!/bin/sh\necho 'H100, 81559, 550.1'\necho 'odd line'\n")
    (machine / "bin/nvidia-smi").chmod(0o755)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(machine / "bin"), prepend=os.pathsep)
    assert environment(root=machine)["gpus"] == [
        {"name": "H100", "memory_bytes": 81559 * 2**20, "driver": "550.1"}
    ]


def test_differences_are_named_by_path():
    a = {
        "cpu": {"model": "x", "affinity": "0-1"},
        "memory": {"total_bytes": 1, "available_bytes": 5},
        "versions": {"numpy": "2.0", "torch": "2.1"},
        "blas": [{"num_threads": 1}],
        "git": {"commit": "aa", "dirty": False},
        "gpus": [],
        "load": [0.1, 0.0, 0.0],
    }
    b = {
        "cpu": {"model": "y", "affinity": "0"},
        "memory": {"total_bytes": 1, "available_bytes": 6},
        "versions": {"numpy": "2.0", "onnx": "1.0"},
        "blas": [{"num_threads": 2}],
        "git": {"commit": "bb", "dirty": True},
        "gpus": [{"name": "H100"}],
        "load": [2.0, 0.0, 0.0],
    }
    assert differences(a, b) == [
        ("cpu.model", "x", "y"),
        ("cpu.affinity", "0-1", "0"),
        ("versions.torch", "2.1", None),
        ("blas[0].num_threads", 1, 2),
        ("git.commit", "aa", "bb"),
        ("versions.onnx", None, "1.0"),
        ("gpus[0].name", None, "H100"),
        ("load.1min", 0.1, 2.0),
    ]
    assert differences(a, {**a, "load": [0.5, 9.0, 9.0], "memory": {"total_bytes": 1}}) == []
    assert differences(a, {**a, "load": None}) == []


def test_two_captures_of_one_machine_do_not_differ():
    first = environment()
    assert differences(first, {**json.loads(json.dumps(environment())), "load": first["load"]}) == []
