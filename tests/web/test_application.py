"""The addresses of the live page: right answers, and one sentence for everything wrong."""

import io
import json
import zipfile

import pytest

from meta500.web.jobs import Job
from meta500.web.storage import new_job, now

RUN = {"model": "mlp", "backend": "numpy", "optimizer": "sgd"}


def add(page, state="finished", **more):
    job = Job(
        new_job(),
        {"dataset": "digits", "backend": "numpy", "optimizer": "sgd", "native": False},
        "",
        "mlp",
        now(),
        state,
        **more,
    )
    page.manager.jobs[job.id] = job
    return job


def error(answer, code):
    assert answer.status_code == code, answer.text
    assert set(answer.json()) == {"error"}
    return answer.json()["error"]


IDS = [
    "x",
    "%2e%2e",
    "..%2f..%2fetc",
    "20261122T203001Z-0000000g",
    "20261122T203001Z-00000000",
    "a" * 5000,
    "\u0660" * 3,
]


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("rest", ["", "/events", "/log", "/folder.zip"])
def test_identifiers_that_are_none(served, name, rest):
    client, _ = served()
    assert error(client.get(f"/api/runs/{name}{rest}"), 404)


def test_stop_of_no_run(served):
    client, _ = served()
    assert "there is no run 'x'" in error(client.post("/api/runs/x/stop"), 404)
    assert "GET is not possible" in error(client.get("/api/runs/x/stop"), 405)


def test_addresses_that_are_none(served):
    client, _ = served()
    for path in (
        "/api",
        "/api/",
        "/nothing",
        "/static/nothing.js",
        "/static/../guard.py",
        "/static/%2e%2e/guard.py",
        "/static/..%2fguard.py",
    ):
        assert error(client.get(path), 404)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("/api/runs?state=running", "unknown parameter 'state'"),
        ("/api/ranking?metric=size", "unknown metric 'size'"),
        ("/api/ranking?metric=time_to_accuracy&target=2", "target must be"),
        ("/api/ranking?target=nan", "target must be"),
        ("/api/ranking?target=x", "target must be an accuracy in (0, 1], got 'x'"),
        ("/api/events?ids=" + ",".join(map(str, range(17))), "at most 16"),
    ],
)
def test_parameters(served, query, words):
    client, _ = served()
    assert words in error(client.get(query), 422)


@pytest.mark.parametrize(
    ("headers", "body", "code", "words"),
    [
        ({"Content-Type": "text/plain"}, b"{}", 415, "must be JSON"),
        ({}, b"{}", 415, "must be JSON"),
        ({"Content-Type": "application/json"}, b"", 422, "is no JSON"),
        ({"Content-Type": "application/json"}, b"{", 422, "is no JSON"),
        ({"Content-Type": "application/json"}, b"\xff\xfe", 422, "is no JSON"),
        ({"Content-Type": "application/json"}, b"[" * 60_000, 422, "is no JSON"),
        ({"Content-Type": "application/json"}, b"1" * 5000, 422, "is no JSON"),
        ({"Content-Type": "application/json"}, b" " * 70_000, 413, "larger than 64 KiB"),
        ({"Content-Type": "application/json; charset=utf-8"}, b'{"epoch": 1}', 422, "unknown key 'epoch'"),
        ({"Content-Type": "application/json"}, b'{"\\ud800": 1}', 422, "unknown key"),
        (
            {"Content-Type": "application/json"},
            b'{"model": "mlp", "backend": "numpy", "optimizer": "sgd", "epochs": NaN}',
            422,
            "epochs must be",
        ),
    ],
)
def test_requests_that_are_no_run(served, headers, body, code, words):
    client, page = served()
    assert words in error(client.post("/api/runs", content=body, headers=headers), code)
    assert page.manager.jobs == {}


def test_json_of_any_depth(served):
    """Near the depth that reading takes, writing it for a message takes no more."""
    client, page = served()
    for depth in range(900, 1001):
        body = b'{"model":' + b"[" * depth + b"]" * depth + b"}"
        answer = client.post("/api/runs", content=body, headers={"Content-Type": "application/json"})
        assert error(answer, 422), depth
    assert page.manager.jobs == {}


def test_what_only_training_would_find(served):
    """A value that is a number, but not one that the network takes: refused before a process is started."""
    client, page = served()
    setup = {**RUN, "model_options": {"hidden": [-3]}}
    assert "hidden" in error(client.post("/api/runs", json=setup), 422)
    setup = {**RUN, "optimizer_options": {"weight_decay": -1}}
    assert "weight_decay" in error(client.post("/api/runs", json=setup), 422)
    assert page.manager.jobs == {}


def test_a_full_disk_is_said_in_one_sentence(served, monkeypatch):
    from meta500.web import storage

    client, page = served()
    monkeypatch.setattr(storage, "FREE", 2**80)
    assert "the disk is full: free some space" in error(client.post("/api/runs", json=RUN), 507)
    assert "the disk is full" in error(client.post("/api/uploads", content=b"x"), 507)
    assert page.manager.jobs == {}


def test_log(served):
    client, page = served()
    job = add(page)
    assert client.get(f"/api/runs/{job.id}/log").text == ""
    page.storage.log(job.id).write_bytes(b"x" * 100_000 + b"<script>\xff end")
    answer = client.get(f"/api/runs/{job.id}/log")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.text.endswith("<script>\ufffd end") and len(answer.text) == 65536


def test_folder(served):
    client, page = served()
    job = add(page)
    assert "no folder yet" in error(client.get(f"/api/runs/{job.id}/folder.zip"), 404)
    folder = page.storage.run(job.id)
    (folder / "plots").mkdir(parents=True)
    (folder / "rows.csv").write_text("a,b\n" * 200_000)
    (folder / "plots" / "loss.png").write_bytes(b"png")
    (folder / "empty").touch()
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "outside").symlink_to("/etc")
    answer = client.get(f"/api/runs/{job.id}/folder.zip")
    assert answer.headers["content-disposition"] == f'attachment; filename="meta500-{job.id}.zip"'
    archive = zipfile.ZipFile(io.BytesIO(answer.content))
    assert archive.testzip() is None
    names = {f"meta500-{job.id}/{name}" for name in ("rows.csv", "plots/loss.png", "empty")}
    assert set(archive.namelist()) == names
    assert archive.read(f"meta500-{job.id}/rows.csv") == (folder / "rows.csv").read_bytes()


def test_plotly_comes_from_its_package(served):
    pytest.importorskip("plotly")
    client, _ = served()
    answer = client.get("/static/plotly.min.js")
    assert answer.status_code == 200 and "javascript" in answer.headers["content-type"]
    assert "plotly.js v" in answer.text[:300]


def test_choices(served):
    client, _ = served()
    assert client.get("/api/choices").json()["models"][0]["name"] == "mlp"


def test_the_list(served):
    client, page = served(running=1)
    add(page, message="<b>"), add(page, state="running", pid=1, birth=0.0)
    runs = client.get("/api/runs").json()["runs"]
    assert [run["message"] for run in runs] == ["", "<b>"]
    keys = {"id", "label", "state", "position", "created", "started", "ended", "setup", "progress", "message"}
    assert set(runs[0]) == keys and runs[0]["setup"]["model"] == "mlp"
    one = client.get(f"/api/runs/{runs[1]['id']}").json()
    assert set(one) == keys | {"snapshot"} and one["snapshot"] is None


def test_damaged_files_of_jobs_are_left_alone(served, tmp_path):
    jobs = tmp_path / "runs" / ".serve" / "jobs"
    jobs.mkdir(parents=True)
    setup = {"dataset": "digits", "backend": "numpy", "optimizer": "sgd", "native": False}
    good = Job(new_job(), setup, "good", "mlp", now(), "finished")
    good.save(jobs / f"{good.id}.json")
    (jobs / "20261122T203001Z-00000000.json").write_text("{")
    (jobs / "20261122T203001Z-00000001.json").write_text(json.dumps({"id": "../x"}))
    (jobs / "20261122T203001Z-00000002.json").write_text("[]")
    client, page = served()
    assert [run["label"] for run in client.get("/api/runs").json()["runs"]] == ["good"]
    assert len(page.manager.problems) == 3


REACHED = {
    "accuracy": 0.5, "best_accuracy": 0.5, "loss": "NaN", "seconds": 1.0, "epochs": 1, "improvements": [[1.0, 0.5]],
    "progress": None,
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"results": {}},
        {"results": [1]},
        {"results": {**REACHED, "accuracy": "much"}},
        {"results": {**REACHED, "loss": float("nan")}},
        {"results": {**REACHED, "improvements": [[1.0]]}},
        {"results": {**REACHED, "improvements": [[1.0, None]]}},
        {"results": {**REACHED, "progress": 3}},
        {"results": {key: value for key, value in REACHED.items() if key != "progress"}},
        {"label": 3},
        {"label": None},
        {"setup": {}},
        {"setup": {"dataset": 1, "backend": "numpy", "optimizer": "sgd", "native": False}},
        {"created": 5},
        {"birth": "x"},
        {"pid": -1},
        {"message": [1]},
    ],
)
def test_one_odd_job_does_not_hide_the_others(served, tmp_path, changed):
    jobs = tmp_path / "runs" / ".serve" / "jobs"
    jobs.mkdir(parents=True)
    setup = {"dataset": "digits", "backend": "numpy", "optimizer": "sgd", "native": False}
    for label in ("good", "odd"):
        job = Job(new_job(), setup, label, "mlp", now(), "finished", results=REACHED)
        job.save(jobs / f"{job.id}.json")
    path = jobs / f"{job.id}.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    client, page = served()
    assert [run["label"] for run in client.get("/api/runs").json()["runs"]] == ["good"]
    assert [line["label"] for line in client.get("/api/ranking").json()["runs"]] == ["good"]
    assert len(page.manager.problems) == 1 and str(path) in page.manager.problems[0]


def test_a_job_comes_back_as_it_was(served):
    _, page = served()
    job = add(page, results=REACHED)
    job.save(page.storage.job(job.id))
    assert Job.read(page.storage.job(job.id)) == job
