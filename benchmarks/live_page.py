"""The figures of the live page's server: what watching costs, and what it survives.

    python benchmarks/live_page.py clients [--clients 50] [--segments 200] [--seconds 2] [--threads 1]
    python benchmarks/live_page.py uploads [--files 200] [--seed 0]
    python benchmarks/live_page.py restart [--kills 5]
    python benchmarks/live_page.py disk

Each starts servers of its own in a temporary folder, prints a table and writes its figures as JSON to
``--out``, by default live_page-NAME.json. ``uploads`` ends with 1 if anything was accepted, executed or
left, or the server failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from hostile_files import KINDS, TRACE
from live_clients import clients, step_times, steps_so_far
from live_server import LONG, Server, temporary

from meta500.metrics import RunFolder
from meta500.metrics.machine import environment

# -- uploads ------------------------------------------------------------------------------------------


def uploads(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Files of many kinds that are no models to train; each must be refused, and the server must live.

    ``bad`` of what it gives says what went wrong, in words; it is empty where nothing did.
    """
    with Server(folder) as live:
        live.client.get("/api/choices")
        server = psutil.Process(live.process.pid)
        before = server.memory_info().rss
        draw = random.Random(options.seed)
        codes: dict[str, Counter[int]] = {name: Counter() for name in KINDS}
        seconds: list[float] = []
        peak = before
        names = sorted(KINDS)
        for index in range(options.files):
            name = names[index % len(names)]
            begin = time.perf_counter()
            file = ("../../" + name + "\n<img src=x>.onnx", KINDS[name](draw))
            answer = live.client.post("/api/uploads", files={"file": file})
            seconds.append(time.perf_counter() - begin)
            codes[name][answer.status_code] += 1
            peak = max(peak, server.memory_info().rss)
        left = list((folder / ".serve" / "uploads").iterdir())
        alive = live.client.get("/api/runs").status_code == 200
    for name, found in codes.items():
        print(f"{name:22} " + ", ".join(f"{code}: {count}" for code, count in sorted(found.items())))
    verdict = judged(codes, executed=Path(TRACE).exists(), left=len(left), alive=alive)
    executed = "something was executed" if verdict["executed"] else "nothing was executed"
    print(
        f"{options.files} files: {verdict['accepted']} accepted, {verdict['server_errors']} errors of the "
        f"server, {len(left)} files left; {executed}; the server {'lives' if alive else 'is dead'}; memory "
        f"{before / 2**20:.0f} MiB before, at most {peak / 2**20:.0f} MiB; median "
        f"{1e3 * float(np.median(seconds)):.0f} ms"
    )
    return {
        "files": options.files,
        **verdict,
        "rss_before": before,
        "rss_peak": peak,
        "median_seconds": float(np.median(seconds)),
        "codes": {name: {str(code): count for code, count in found.items()} for name, found in codes.items()},
    }


def judged(
    codes: Mapping[str, Mapping[int, int]], *, executed: bool, left: int, alive: bool
) -> dict[str, Any]:
    """Numbers of what must not be, by the answers' statuses; ``bad`` has them in words."""
    counted: Counter[int] = Counter()
    for found in codes.values():
        counted.update(found)
    accepted = sum(count for code, count in counted.items() if code < 400)
    failed = sum(count for code, count in counted.items() if code >= 500)
    wrong = {
        f"{accepted} files were accepted": accepted,
        "a file was executed": executed,
        f"{failed} answers were errors of the server": failed,
        f"{left} files were left behind": left,
        "the server is dead": not alive,
    }
    return {
        "accepted": accepted,
        "server_errors": failed,
        "executed": executed,
        "left": left,
        "alive": alive,
        "bad": [words for words, there in wrong.items() if there],
    }


# -- restart ------------------------------------------------------------------------------------------


def restart(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """kill -9 of the server in the middle of a run, again and again; the run must not notice."""
    gaps: list[float] = []
    steps: list[float] = []
    with contextlib.ExitStack() as stack:
        live = stack.enter_context(Server(folder))
        job = live.start()
        live.training(job)
        process = live.pid(job)
        for _ in range(options.kills):
            begin = steps_so_far(folder / job)
            live.kill()
            time.sleep(1.0)
            start = time.perf_counter()
            live = stack.enter_context(Server(folder))
            run = live.client.get(f"/api/runs/{job}").json()
            gaps.append(time.perf_counter() - start)
            assert run["state"] == "running" and psutil.pid_exists(process), run
            time.sleep(1.5)
            steps.append(steps_so_far(folder / job) - begin)
        # As a crash of the machine: the server and the run are killed.
        live.kill()
        os.killpg(process, signal.SIGKILL)
        live = stack.enter_context(Server(folder))
        run = live.client.get(f"/api/runs/{job}").json()
        times = step_times(folder / job)
        problems = RunFolder.open(folder / job).problems
    print(
        f"{options.kills} kills: the run went on each time by {min(steps):.0f} steps or more; found again "
        f"after {float(np.median(gaps)):.2f} s (median)"
    )
    print(
        f"the run killed too: {run['state']} ({run['message']}), its folder has {len(times)} steps"
        f"{''.join('; ' + problem for problem in problems)}"
    )
    return {
        "kills": options.kills,
        "seconds": gaps,
        "steps": steps,
        "state": run["state"],
        "rows": len(times),
    }


# -- disk ---------------------------------------------------------------------------------------------


def disk(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """A disk that becomes full while a run writes, and one that is full when a run is to begin."""
    found: dict[str, Any] = {}
    way = tmpfs(folder)
    if way is None:
        print(
            "no tmpfs can be mounted here without rights: files are limited to 40 kB by RLIMIT_FSIZE instead"
        )

        def little() -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

        found["way"] = "RLIMIT_FSIZE"
        server = Server(folder, preexec_fn=little)
    else:
        found["way"] = "tmpfs"
        server = Server(way)
    with server as live:
        job = live.start(batch_size=1)
        if way is not None:
            live.training(job)
            _fill(way / "filler")
            refused = live.client.post("/api/runs", json=LONG)
            print(f"starting: {refused.status_code} {refused.json()['error']}")
            found["refused"] = [refused.status_code, refused.json()["error"]]
        run = live.wait(job, "failed", "finished", "interrupted")
        print(f"the run: {run['state']}: {run['message']}")
        found |= {"state": run["state"], "message": run["message"]}
        if way is not None:
            (way / "filler").unlink()
        again = live.wait(live.start(epochs=1), "finished", "failed")
        print(f"the next run, with space again: {again['state']}")
        found["next"] = again["state"]
    return found


def tmpfs(folder: Path) -> Path | None:
    """A file system of 48 MiB, mounted in a namespace of this user; None where that is not allowed.

    Processes enter such a namespace at their start, so this one starts itself again.
    """
    inside = "META500_NAMESPACE"
    enter = ["unshare", "--user", "--map-root-user", "--mount"]
    if inside not in os.environ:
        if shutil.which("unshare") is None or subprocess.run([*enter, "true"], check=False).returncode:
            return None
        shutil.rmtree(folder)
        os.environ[inside] = "1"
        os.execvp(enter[0], [*enter, sys.executable, *sys.argv])
    place = folder / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(place)]
    return place if subprocess.run(mount, check=False).returncode == 0 else None


def _fill(path: Path) -> None:
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


# -- all ----------------------------------------------------------------------------------------------


def main() -> None:
    """Run one subcommand."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="name", required=True)
    one = commands.add_parser("clients", help=clients.__doc__)
    one.add_argument("--clients", type=int, default=50)
    one.add_argument("--segments", type=int, default=200)
    one.add_argument("--seconds", type=float, default=2.0)
    one.add_argument("--threads", type=int, default=1)
    one.add_argument("--batch", type=int, default=64)
    one = commands.add_parser("uploads", help=uploads.__doc__)
    one.add_argument("--files", type=int, default=200)
    one.add_argument("--seed", type=int, default=0)
    one = commands.add_parser("restart", help=restart.__doc__)
    one.add_argument("--kills", type=int, default=5)
    commands.add_parser("disk", help=disk.__doc__)
    for command in commands.choices.values():
        command.add_argument("--out", type=Path)
    options = parser.parse_args()
    tasks = {"clients": clients, "uploads": uploads, "restart": restart, "disk": disk}
    with temporary() as folder:
        found = tasks[options.name](options, folder)
    out = options.out or Path(f"live_page-{options.name}.json")
    out.write_text(
        json.dumps({"name": options.name, **found, "environment": environment()}, indent=2, default=str)
    )
    print(f"Figures: {out}")
    if found.get("bad"):
        sys.exit(1)


if __name__ == "__main__":
    main()
