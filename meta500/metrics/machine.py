"""The machine and the software that a run ran on, as far as they can change its timings.

Read from ``/proc`` and ``/sys`` where they exist, since asking tools takes longer than many
measurements. Environment variables are recorded by name from a fixed list only, so that no secret
enters a run folder.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

PACKAGES = (
    "meta500", "numpy", "scipy", "onnx", "torch", "onnxruntime", "tensorflow", "jax", "mpi4py",
    "threadpoolctl",
)  # fmt: skip
VARIABLE_PREFIXES = (
    "OMP_", "MKL_", "OPENBLAS_", "BLIS_", "KMP_", "GOMP_", "MALLOC_", "ONEDNN_", "DNNL_",
    "NUMEXPR_",
)  # fmt: skip
VARIABLES = (
    "GLIBC_TUNABLES", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUBLAS_WORKSPACE_CONFIG",
    "NVIDIA_TF32_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "TORCHINDUCTOR_MAX_AUTOTUNE",
    "PYTHONHASHSEED", "CC", "CXX", "CFLAGS", "CXXFLAGS",
)  # fmt: skip
SECRET = re.compile("KEY|TOKEN|SECRET|PASS|LICENSE|CREDENTIAL")
VECTOR_FLAGS = (
    "sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_bf16", "amx_tile", "neon", "asimd", "sve",
)  # fmt: skip
# Different in any two runs, or unable to change a timing.
VOLATILE = ("memory.available_bytes", "git.dirty")
LOAD_DIFFERENCE = 0.5
LOAD = "load.1min"

ROOT = Path("/")


def environment(directory: str | Path = ".", root: Path = ROOT) -> dict[str, Any]:
    """What the machine, the installed software and the settings are now; plain values for JSON.

    Keys: ``cpu`` (model, cores, affinity, caches in bytes, vector instructions, limit of the
    container in cores), ``memory`` (bytes), ``os``, ``python``, ``versions``, ``compiler``,
    ``blas``, ``threads``, ``variables``, ``gpus``, ``container``, ``git`` (of ``directory``) and
    ``load`` (averages of 1, 5 and 15 minutes). What cannot be found out is None or empty.

    Args:
        directory: whose git state is meant.
        root: where ``proc`` and ``sys`` are found.
    """
    return {
        "cpu": _cpu(root),
        "memory": _memory(root),
        "os": _operating_system(root),
        "container": _container(root),
        "python": {
            "version": platform.python_version(),
            "implementation": platform.python_implementation(),
        },
        "versions": _versions(),
        "compiler": _compiler(),
        "blas": _blas(),
        "threads": _threads(),
        "variables": _variables(os.environ),
        "gpus": _gpus(root),
        "git": _git(Path(directory)),
        "load": _load(),
    }


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What differs between two environments and can change timings.

    The entries are (dotted key, value in a, value in b). A key that only one has counts as None in
    the other. The load counts if its averages of one minute are more than half a core apart; free
    memory and uncommitted changes do not count.
    """
    first, second = dict(flat(a)), dict(flat(b))
    keys = list(first) + [key for key in second if key not in first]
    found = [
        (key, first.get(key), second.get(key))
        for key in keys
        if first.get(key) != second.get(key) and not key.startswith(VOLATILE)
    ]
    loads = [e.get("load") for e in (a, b)]
    if all(isinstance(load, list) and load for load in loads):
        one, other = (float(load[0]) for load in loads)  # type: ignore[index]
        if abs(one - other) > LOAD_DIFFERENCE:
            found.append((LOAD, one, other))
    return found


def flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Pairs of a dotted key such as "cpu.model" and its value; the load and what is absent are left out."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from flat(entry, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, list) and any(isinstance(entry, Mapping) for entry in value):
        for index, entry in enumerate(value):
            yield from flat(entry, f"{prefix}[{index}]")
    elif value is not None and value != [] and prefix != "load":
        yield prefix, value


def _read(path: Path) -> str:
    """Text of a small file, "" if there is none."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _run(command: list[str], seconds: float) -> str | None:
    """Standard output of a command, None if it fails or takes longer."""
    quiet = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=seconds,
            env=quiet,
            check=True,
            errors="replace",
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return done.stdout


def _load() -> list[float] | None:
    try:
        return [round(average, 2) for average in os.getloadavg()]
    except (AttributeError, OSError):
        return None


def _cpu(root: Path) -> dict[str, Any]:
    processors = [
        dict(re.findall(r"^([^:\n]+?)\s*:[ \t]*(.*)$", block, re.MULTILINE))
        for block in _read(root / "proc/cpuinfo").split("\n\n")
    ]
    processors = [p for p in processors if "processor" in p]
    first = processors[0] if processors else {}
    model = first.get("model name") or _cpu_model_elsewhere(first)
    cores = {(p.get("physical id"), p["core id"]) for p in processors if "core id" in p}
    flags = (first.get("flags") or first.get("Features") or "").split()
    return {
        "model": model,
        "architecture": platform.machine(),
        "physical_cores": len(cores) or _physical_cores_of_sysfs(root),
        "logical_cores": len(processors) or os.cpu_count(),
        "affinity": _ranges(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "limit_cores": _cpu_limit(root),
        "caches_bytes": _caches(root),
        "vector": [flag for flag in VECTOR_FLAGS if flag in flags],
        "microcode": first.get("microcode"),
        "governor": _read(root / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") or None,
        "virtual": "hypervisor" in flags,
    }


def _ranges(numbers: Iterable[int]) -> str:
    """Numbers in the form of Linux's lists of processors: {0, 1, 2, 5} -> "0-2,5"."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def _cpu_model_elsewhere(first: Mapping[str, str]) -> str | None:
    if "CPU part" in first:
        return f"implementer {first.get('CPU implementer')} part {first['CPU part']}"
    try:
        from cpuinfo import get_cpu_info
    except ImportError:
        return platform.processor() or None
    return get_cpu_info().get("brand_raw") or platform.processor() or None


def _physical_cores_of_sysfs(root: Path) -> int | None:
    siblings = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list")
    return len({_read(path) for path in siblings}) or None


def _caches(root: Path) -> dict[str, int]:
    """Sizes in bytes of the caches that one core sees, by name: L1d, L1i, L2, L3."""
    sizes = {}
    for index in sorted((root / "sys/devices/system/cpu/cpu0/cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(index / "size"))
        if size:
            letter = {"Data": "d", "Instruction": "i"}.get(_read(index / "type"), "")
            factor = 1024 ** " KMG".index(size[2] or " ")
            sizes[f"L{_read(index / 'level')}{letter}"] = int(size[1]) * factor
    return sizes


def _cgroup_files(root: Path, controller: str, new: str, old: str) -> Iterator[str]:
    """Contents of a limit's file in this process's control group and all groups above it."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:
            base, name = root / "sys/fs/cgroup", new
        elif controller in controllers.split(","):
            base, name = root / "sys/fs/cgroup" / controllers, old
            base = base if base.is_dir() else root / "sys/fs/cgroup" / controller
        else:
            continue
        parts = [part for part in group.split("/") if part]
        for depth in range(len(parts), -1, -1):
            if text := _read(base.joinpath(*parts[:depth]) / name):
                period = base.joinpath(*parts[:depth]) / "cpu.cfs_period_us"
                yield f"{text} {_read(period)}" if name == "cpu.cfs_quota_us" else text


def _cpu_limit(root: Path) -> float | None:
    """Cores that the container may use on average, None without a limit."""
    limits = []
    for text in _cgroup_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            limits.append(int(quota) / int(period))
    return min(limits, default=None)


def _memory(root: Path) -> dict[str, Any]:
    sizes = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(root / "proc/meminfo"), re.MULTILINE))

    def size(name: str) -> int | None:
        return int(sizes[name]) * 1024 if name in sizes else None

    total = size("MemTotal")
    texts = _cgroup_files(root, "memory", "memory.max", "memory.limit_in_bytes")
    limit = min((int(text) for text in texts if text.isdigit()), default=None)
    pages = re.search(r"\[(\w+)\]", _read(root / "sys/kernel/mm/transparent_hugepage/enabled"))
    return {
        "total_bytes": total,
        "available_bytes": size("MemAvailable"),
        "limit_bytes": limit if limit and total and limit < total else None,
        "huge_pages": pages[1] if pages else None,
    }


def _operating_system(root: Path) -> dict[str, Any]:
    name = re.search(r'^PRETTY_NAME="?(.*?)"?$', _read(root / "etc/os-release"), re.MULTILINE)
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "distribution": name[1] if name else None,
        "libc": " ".join(platform.libc_ver()).strip() or None,
    }


def _container(root: Path) -> str | None:
    if (root / ".dockerenv").exists():
        return "docker"
    if (root / "run/.containerenv").exists():
        return "podman"
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    return None


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _compiler() -> str | None:
    try:
        command = shlex.split(os.environ.get("CXX") or "c++")
    except ValueError:
        return None
    output = _run([*command, "--version"], seconds=1.0) if command else None
    return output.splitlines()[0] if output else None


def _blas() -> list[dict[str, Any]]:
    """Linear algebra and OpenMP libraries loaded into this process, with their threads."""
    try:
        import numpy  # noqa: F401  the library is only seen once it is loaded
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    names = (
        "user_api",
        "internal_api",
        "version",
        "num_threads",
        "threading_layer",
        "architecture",
    )
    pools = [{name: pool[name] for name in names if pool.get(name)} for pool in threadpool_info()]
    return sorted(pools, key=lambda pool: json.dumps(pool, sort_keys=True))


def _threads() -> dict[str, int]:
    # PyTorch is asked only if the run has loaded it: importing it here would cost more than most
    # runs.
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {}
    return {
        "torch": torch.get_num_threads(),
        "torch_between_operators": torch.get_num_interop_threads(),
    }


def _variables(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: variables[name]
        for name in sorted(variables)
        if (name in VARIABLES or name.startswith(VARIABLE_PREFIXES)) and not SECRET.search(name.upper())
    }


def _gpus(root: Path) -> list[dict[str, Any]]:
    if not (root / "proc/driver/nvidia").exists() and not (root / "dev/nvidiactl").exists():
        return []
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the library is missing, or there is no driver for it
        return _gpus_of_tool()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        return [
            {
                "name": _text(pynvml.nvmlDeviceGetName(handle)),
                "memory_bytes": int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
                "driver": driver,
            }
            for handle in handles
        ]
    except pynvml.NVMLError:
        return []
    finally:
        pynvml.nvmlShutdown()


def _gpus_of_tool() -> list[dict[str, Any]]:
    query = "--query-gpu=name,memory.total,driver_version"
    output = _run(["nvidia-smi", query, "--format=csv,noheader,nounits"], seconds=2.0) or ""
    cells = [[cell.strip() for cell in line.split(",")] for line in output.splitlines()]
    return [
        {
            "name": name,
            "memory_bytes": int(size) * 2**20 if size.isdigit() else None,
            "driver": driver,
        }
        for name, size, driver in (c for c in cells if len(c) == 3)
    ]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _git(directory: Path) -> dict[str, Any] | None:
    """Commit and whether tracked files differ from it; None outside of a repository."""
    inside = _run(["git", "-C", str(directory), "rev-parse", "--is-inside-work-tree"], seconds=1.0)
    if inside is None or inside.strip() != "true":
        return None
    commit = _run(["git", "-C", str(directory), "rev-parse", "--verify", "HEAD"], seconds=1.0)
    status = _run(["git", "-C", str(directory), "status", "--porcelain", "--untracked-files=no"], 1.0)
    return {
        "commit": commit.strip() if commit else None,
        "dirty": None if status is None else bool(status.strip()),
    }
