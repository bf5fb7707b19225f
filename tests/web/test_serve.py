"""The live page's server as a process: runs from the request to their end, restarts, and what it prints."""

import io
import os
import signal
import time
import zipfile

import httpx
import pytest

from meta500.metrics import RunFolder
from meta500.metrics.run import STATUSES
from tests.web.conftest import Server


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] != "Z"


def pid_of(runs, job):
    import json

    return json.loads((runs / ".serve" / "jobs" / f"{job}.json").read_text())["pid"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One server for all tests that do not end theirs; gives it and its folder."""
    runs = tmp_path_factory.mktemp("shared") / "runs"
    live = Server(runs, "--max-running", "2")
    yield live, runs
    out, err = live.stop()
    assert live.process.returncode == 0 and out == "" and err == ""


def test_whole_life_of_a_run(shared, small, events):
    live, runs = shared
    assert live.url.startswith("http://127.0.0.1:")
    job = live.start({**small, "epochs": 2, "label": "first <b>run</b>", "seed": 3})
    with live.client.stream("GET", f"/api/runs/{job}/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        told = list(events(response))
    kinds = [kind for kind, _, _ in told]
    assert kinds[0] == "snapshot" and kinds[-1] == "end" and set(kinds[1:-1]) <= {"update"}
    assert told[-1][2]["state"] == "finished"
    run = live.get(f"/api/runs/{job}")
    assert run["label"] == "first <b>run</b>" and run["setup"]["seed"] == 3
    assert run["started"] > run["created"] and run["ended"] > run["started"]
    # What came piece by piece is the whole.
    points = [p for _, _, data in told[:-1] for p in _series(data).get("accuracy", [])]
    assert points == run["snapshot"]["series"]["accuracy"] and len(points) == 2
    folder = RunFolder.open(runs / job)
    assert folder.status == "finished" and folder.info["setup"]["epochs"] == 2
    assert live.get("/api/runs")["runs"][0]["state"] == "finished"
    ranked = live.get("/api/ranking?metric=accuracy")
    assert [entry["id"] for entry in ranked["runs"]] == [job] and ranked["left_out"] == 0
    assert ranked["runs"][0]["value"] == points[-1][2] and ranked["runs"][0]["epochs"] == 2
    archive = zipfile.ZipFile(io.BytesIO(live.client.get(f"/api/runs/{job}/folder.zip").content))
    assert archive.testzip() is None
    assert archive.read(f"meta500-{job}/rows.csv") == folder.rows_path.read_bytes()
    assert "Results:" in live.client.get(f"/api/runs/{job}/log").text


def _series(data):
    part = data.get("snapshot") or data.get("since") or {}
    return part.get("series", {})


def test_queue_stop_and_limits(inside, tmp_path, long):
    live = inside(running=1, queued=2)
    jobs = [live.start(long) for _ in range(3)]
    full = live.client.post("/api/runs", json=long)
    assert full.status_code == 429 and "2 wait" in full.json()["error"]
    live.training(jobs[0])
    positions = {run["id"]: run["position"] for run in live.get("/api/runs")["runs"]}
    assert positions == {jobs[0]: None, jobs[1]: 1, jobs[2]: 2}
    # Out of the queue; the next one moves up.
    assert live.client.post(f"/api/runs/{jobs[1]}/stop").json()["state"] == "stopped"
    assert live.get(f"/api/runs/{jobs[2]}")["position"] == 1
    process = pid_of(tmp_path / "runs", jobs[0])
    assert live.client.post(f"/api/runs/{jobs[0]}/stop").status_code == 202
    assert "interrupted by the user" in live.wait(jobs[0], "stopped")["message"]
    assert not alive(process)
    assert RunFolder.open(tmp_path / "runs" / jobs[0]).status == "interrupted"
    again = live.client.post(f"/api/runs/{jobs[0]}/stop")
    assert again.status_code == 409 and "it is stopped" in again.json()["error"]
    live.wait(jobs[2], "starting", "running")
    assert live.get("/api/ranking")["left_out"] == 3


def test_stop_of_what_ignores_ctrl_c(inside, tmp_path, long):
    """SIGINT, then SIGTERM, then SIGKILL, which no process can ignore."""
    live = inside(grace=1.0)
    job = live.start(long)
    live.training(job)
    process = pid_of(tmp_path / "runs", job)
    os.kill(process, signal.SIGSTOP)  # takes no signal but SIGKILL
    live.client.post(f"/api/runs/{job}/stop")
    run = live.wait(job, "stopped")
    assert "by force" in run["message"] and not alive(process)
    assert RunFolder.open(tmp_path / "runs" / job).status == "interrupted"


def test_server_killed_and_started_again(server, tmp_path, long, small, events):
    first = server("--max-running", "2")
    lives, dies = first.start({**long, "label": "lives"}), first.start(long)
    waits = first.start({**small, "label": "waits"})
    first.training(lives), first.training(dies)
    with first.client.stream("GET", f"/api/events?ids={lives}") as response:
        _, number, before = next(events(response))
    first.kill()
    goes_on, dead = (pid_of(tmp_path / "runs", job) for job in (lives, dies))
    assert alive(goes_on)
    os.killpg(dead, signal.SIGKILL)
    second = server("--max-running", "2")
    gone = second.wait(dies, "interrupted")
    assert "gone" in gone["message"]
    assert RunFolder.open(tmp_path / "runs" / dies).status == "interrupted"
    assert second.get(f"/api/runs/{lives}")["state"] == "running" and alive(goes_on)
    assert second.wait(waits, "finished")["label"] == "waits"
    # The number of an event of the server before means nothing: everything comes again.
    headers = {"Last-Event-ID": number}
    with second.client.stream("GET", f"/api/events?ids={lives}", headers=headers) as response:
        kind, _, after = next(events(response))
    assert kind == "snapshot" and after["curves"][lives]["rows"] >= before["curves"][lives]["rows"]
    second.client.post(f"/api/runs/{lives}/stop")
    second.wait(lives, "stopped")
    assert not alive(goes_on)


def test_ctrl_c_with_and_without_keep_running(server, tmp_path, long):
    """The first server leaves the run alone, the second one follows it and stops it, the third one knows."""
    live = server("--keep-running")
    job = live.start(long)
    live.training(job)
    process = pid_of(tmp_path / "runs", job)
    assert live.stop()[0] == "1 run goes on; start the server again to follow\n"
    assert alive(process)
    again = server()
    assert again.get(f"/api/runs/{job}")["state"] == "running"
    out, err = again.stop()
    assert out == "Stopping 1 run\n1 run stopped\n" and err == "" and again.process.returncode == 0
    assert not alive(process) and RunFolder.open(tmp_path / "runs" / job).status == "interrupted"
    third = server()
    assert third.get(f"/api/runs/{job}")["state"] == "stopped"


def test_events_go_on_after_the_last_one_seen(shared, long, events):
    live, _ = shared
    job = live.start(long)
    live.training(job)
    with live.client.stream("GET", f"/api/events?ids={job}") as response:
        kind, number, first = next(events(response))
    assert kind == "snapshot"
    time.sleep(1.5)
    with live.client.stream("GET", f"/api/events?ids={job}", headers={"Last-Event-ID": number}) as response:
        kind, _, more = next(events(response))
    assert kind == "update" and not more["curves"][job]["reset"]
    seen = [*first["curves"][job]["series"]["loss"], *more["curves"][job]["series"]["loss"]]
    samples = [p[0] for p in seen]
    assert samples == sorted(set(samples)), "no step is told twice or out of order"
    every = live.get(f"/api/runs/{job}")["snapshot"]
    if not every["every"]:
        assert every["series"]["loss"][: len(seen)] == seen
    live.client.post(f"/api/runs/{job}/stop")
    live.wait(job, "stopped")


def test_many_clients_hear_the_same(shared, small, events):
    from concurrent.futures import ThreadPoolExecutor

    live, _ = shared
    job = live.start({**small, "epochs": 3})

    def follow(_):
        with httpx.stream("GET", f"{live.url}api/runs/{job}/events", timeout=60) as response:
            told = list(events(response))
        return [p for _, _, data in told[:-1] for p in _series(data).get("accuracy", [])], told[-1][0]

    with ThreadPoolExecutor(12) as pool:
        heard = list(pool.map(follow, range(12)))
    assert all(one == heard[0] for one in heard)
    assert len(heard[0][0]) == 3 and heard[0][1] == "end"


def test_run_that_fails_by_itself(inside):
    live = inside()
    job = live.start(
        {"model": "mlp", "backend": "numpy", "optimizer": "sgd", "learning_rate": 1e6, "epochs": 3}
    )
    run = live.wait(job, "failed")
    assert "loss" in run["message"].lower() or "nan" in run["message"].lower(), run


def test_run_that_is_killed(inside, tmp_path, long):
    live = inside()
    job = live.start(long)
    live.training(job)
    os.kill(pid_of(tmp_path / "runs", job), signal.SIGKILL)
    run = live.wait(job, "interrupted")
    assert "SIGKILL" in run["message"]
    assert RunFolder.open(tmp_path / "runs" / job).status == "interrupted"


def test_full_disk(inside, monkeypatch, small):
    """No file of the run above 24 kB: rows.csv is cut off, the run is listed as failed, and the server goes on."""
    import resource
    from functools import partial
    from types import SimpleNamespace

    from meta500.web import processes

    def little():
        resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, 24_000))

    limited = partial(processes.subprocess.Popen, preexec_fn=little)
    live = inside()
    with monkeypatch.context() as patch:
        patch.setattr(processes, "subprocess", SimpleNamespace(Popen=limited, DEVNULL=-3))
        run = live.wait(live.start({**small, "epochs": 30}), "failed")
        assert "cannot be written" in run["message"]
    run = live.wait(live.start(small), "finished")
    assert live.get("/api/runs")["runs"][0]["id"] == run["id"]


def test_a_job_file_that_cannot_be_written_is_written_later(served, monkeypatch, small):
    from meta500.errors import UserError
    from meta500.web import manager as module
    from meta500.web.jobs import Job

    _, page = served()
    job = Job(module.new_job(), {}, "", "mlp", module.now(), "running")
    page.manager.jobs[job.id] = job
    with monkeypatch.context() as patch:
        patch.setattr(Job, "save", lambda *_: (_ for _ in ()).throw(UserError("the disk is full")))
        page.manager._save(job)
    assert not page.storage.job(job.id).exists()
    monkeypatch.setattr(module, "AGAIN", 0.0)
    deadline = time.monotonic() + 10
    while not page.storage.job(job.id).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_token_where_others_can_reach_it(server):
    live = server("--host", "0.0.0.0")
    assert len(live.token) >= 40
    port = httpx.URL(live.url).port
    with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        assert client.get("/api/runs").status_code == 401
        assert client.get("/").status_code == 401
        bearer = {"Authorization": f"Bearer {live.token}"}
        assert client.get("/api/runs", headers=bearer).status_code == 200
        entered = client.get("/", params={"token": live.token})
        assert entered.status_code == 303 and entered.headers["location"] == "/"
        assert client.get("/api/runs").status_code == 200  # with the cookie
    live.client = httpx.Client()


def test_one_server_per_folder(server, tmp_path):
    import subprocess
    import sys

    live = server()
    done = subprocess.run(
        [sys.executable, "-m", "meta500", "serve", "--port", "0", "--runs", str(tmp_path / "runs")],
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2 and "another server uses this folder" in done.stderr
    assert live.get("/api/runs") == {"runs": []}


@pytest.mark.parametrize(("names", "demanded"), [((), False), (("proxy.example",), True)])
def test_a_further_name_demands_a_token(names, demanded, tmp_path, monkeypatch):
    """Others come through what calls the server by it, and then the loopback address says nothing."""
    from meta500.web import server as module
    from meta500.web.limits import Limits

    told = []

    async def instead(how, limits, storage, listening, token, generated):
        told.append((token, generated))

    monkeypatch.setattr(module, "_serve", instead)
    how = module.Serving("127.0.0.1", 0, tmp_path / "runs", None, names, False)
    module.serve(how, Limits())
    (token, generated) = told[0]
    assert generated == demanded and (token is not None and len(token) >= 40) == demanded


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-running", "0"], "--max-running must be at least 1"),
        (["--max-upload", "0"], "--max-upload must be at least 1"),
        (["--max-memory", "0.1"], "--max-memory must be at least 1 GiB"),
        (["--host", "no.such.host.invalid"], "cannot listen on no.such.host.invalid"),
        (["--token-file", "nothing"], "--token-file nothing: cannot be read"),
    ],
)
def test_bad_options(options, words, tmp_path, monkeypatch, capsys):
    from meta500.cli import main

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["serve", "--port", "0", *options])
    assert stop.value.code == 2 and words in capsys.readouterr().err


def test_statuses_are_those_of_runs():
    from meta500.web.jobs import FINAL

    assert set(STATUSES[1:]) < set(FINAL)
