"""Files from outside: what is taken, what is refused and how, and that nothing of them is left or run."""

import importlib.util
import json
import random
import re
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import meta500
from meta500.errors import UserError
from meta500.web.storage import Storage, stem
from meta500.web.uploads import _Form, cleaned

_SPEC = importlib.util.spec_from_file_location(
    "hostile_files", Path(__file__).parents[2] / "benchmarks" / "hostile_files.py"
)
hostile = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = hostile  # pickle looks its classes up
_SPEC.loader.exec_module(hostile)


@pytest.fixture(scope="module")
def mlp():
    return hostile.valid()


def send(client, data, name="net.onnx", **more):
    return client.post("/api/uploads", files={"file": (name, data)}, **more)


def left(page):
    folder = page.storage.uploads
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_model(served, mlp):
    client, page = served()
    answer = send(client, mlp)
    assert answer.status_code == 201
    facts = answer.json()
    model = meta500.load(mlp)
    assert facts["name"] == "net.onnx" and facts["bytes"] == len(mlp)
    assert facts["parameters"] == sum(model.graph.initializers[name].size for name in model.parameters)
    assert facts["operators"]["Gemm"] == 3 and facts["trainable"] is True and facts["problem"] == ""
    assert set(facts["inputs"]) == {"image", "label"} and "loss" in facts["outputs"]
    assert left(page) == [f"{facts['id']}/net.onnx", f"{facts['id']}/upload.json"]
    assert page.storage.uploaded(facts["id"]).read_bytes() == mlp


def test_a_raw_body(served, mlp):
    client, page = served()
    answer = client.post("/api/uploads?name=a/b.onnx", content=mlp)
    assert answer.status_code == 201 and answer.json()["name"] == "b.onnx"
    empty = client.post("/api/uploads", content=b"")
    assert empty.status_code == 422 and "is empty" in empty.json()["error"]
    assert len(left(page)) == 2


@pytest.mark.parametrize("kind", sorted(hostile.KINDS))
def test_hostile_files(served, kind):
    client, page = served()
    answer = send(client, hostile.KINDS[kind](random.Random(1)))
    assert answer.status_code == 422, answer.text
    assert answer.json()["error"].startswith("net.onnx: ") and len(answer.json()["error"]) < 1500
    assert str(page.storage.uploads) not in answer.text
    assert left(page) == [] and not Path(hostile.TRACE).exists()


def test_a_model_without_loss_is_taken_but_not_trained(served):
    from onnx import helper

    client, _ = served()
    facts = send(client, hostile.model([helper.make_node("Relu", ["x"], ["y"])])).json()
    assert facts["trainable"] is False and "no output 'loss'" in facts["problem"]
    run = client.post("/api/runs", json={"upload": facts["id"], "backend": "numpy", "optimizer": "sgd"})
    assert run.status_code == 422 and "net.onnx: cannot be trained" in run.json()["error"]


def test_hostile_names_are_text(served, mlp):
    from onnx import ModelProto

    proto = ModelProto.FromString(mlp)
    proto.graph.node[0].name = "<img src=x onerror=alert(1)>"
    proto.graph.name = "../../x"
    client, page = served()
    name = "..\\..\\<b>\u202e&'.onnx"
    facts = send(client, proto.SerializeToString(), name=name).json()
    assert facts["name"] == "<b> &'.onnx"
    assert left(page) == [f"{facts['id']}/b.onnx", f"{facts['id']}/upload.json"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/etc/passwd", "passwd"),
        ("..\\..\\a.onnx", "a.onnx"),
        ("a\nb\x00\u202e.onnx", "a b  .onnx"),
        ("", "model.onnx"),
        ("/", "model.onnx"),
        ("x" * 1000, "x" * 200),
        ("名前.onnx", "名前.onnx"),
    ],
)
def test_names_for_people(name, shown):
    assert cleaned(name) == shown


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("net.onnx", "net"),
        ("my net (2).onnx", "my-net-2"),
        ("--out=x.onnx", "out-x"),
        ("..", "model"),
        ("名前.onnx", "model"),
        ("a/../b.onnx", "a-b"),
        ("x" * 1000, "x" * 40),
        ("", "model"),
    ],
)
def test_what_of_a_name_gets_into_a_path(name, found):
    assert stem(name) == found


@given(st.text(max_size=60))
def test_nothing_else_of_a_name_gets_into_a_path(name):
    assert re.fullmatch("[A-Za-z0-9_][A-Za-z0-9_-]{0,39}|[A-Za-z0-9_-]{1,40}", stem(name), re.ASCII)


def test_what_a_killed_server_left_is_removed(served, mlp, tmp_path):
    client, page = served()
    facts = send(client, mlp).json()
    whole = left(page)
    (page.storage.uploads / f"{'0' * 32}.part").write_bytes(b"x")
    (page.storage.uploads / ("1" * 32)).mkdir()
    (page.storage.uploads / ("1" * 32) / "upload.json").write_text("{}")
    page.storage.close()
    storage = Storage(tmp_path / "runs")
    assert left(page) == whole and storage.uploaded(facts["id"]).is_file()
    assert [path.name for path in storage.uploads.iterdir()] == [facts["id"]]
    page.storage._lock = storage._lock  # closed at the end


def test_too_large(served, mlp):
    client, page = served(upload=10_000)
    assert len(mlp) > 10_000
    for answer in (send(client, mlp), client.post("/api/uploads", content=mlp)):
        assert answer.status_code == 413 and "the limit here" in answer.json()["error"]

    def without_length():
        for _ in range(100):
            yield b"x" * 1000

    assert client.post("/api/uploads", content=without_length()).status_code == 413
    lies = {"Content-Length": str(10**12)}
    assert client.post("/api/uploads", content=b"x", headers=lies).status_code == 413
    assert left(page) == []


FORM = {"Content-Type": "multipart/form-data; boundary=b"}


@pytest.mark.parametrize(
    ("headers", "body", "code", "words"),
    [
        ({"Content-Type": "text/html"}, b"x", 415, "'text/html' is no kind of body for a file"),
        ({"Content-Type": "multipart/form-data"}, b"x", 422, "no boundary"),
        (FORM, b"", 422, "no field 'file'"),
        (FORM, b"nonsense", 422, "malformed"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="other"\r\n\r\nx\r\n--b--\r\n', 422, "no field"),
        (FORM, b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx', 422, "ends in the middle"),
        (
            FORM,
            b'--b\r\nContent-Disposition: form-data; name="file"\r\n\r\nx\r\n' * 2 + b"--b--\r\n",
            422,
            "more than one",
        ),
        (FORM, b"--b\r\n" + b"X: y\r\n" * 10_000 + b"\r\nx\r\n--b--\r\n", 422, "malformed"),
        (FORM, b"--b\r\nX: " + b"y" * 100_000 + b"\r\n\r\nx\r\n--b--\r\n", 422, "malformed"),
    ],
)
def test_bodies_that_hold_no_file(served, headers, body, code, words):
    client, page = served()
    answer = client.post("/api/uploads", content=body, headers=headers)
    assert answer.status_code == code and words in answer.json()["error"], answer.text
    assert left(page) == []


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.binary(max_size=60)
        | st.sampled_from([b"--b", b"\r\n", b'; name="file"', b"Content-Disposition: form-data"]),
        max_size=12,
    )
)
def test_forms_of_any_bytes(parts):
    """Whatever comes, it is taken apart or refused; nothing else is raised."""
    written = []
    try:
        form = _Form(b"b", written.append, 1000)
        for part in parts:
            form.feed(part, lambda: UserError("too large"))
        form.finish()
    except UserError:
        pass
    assert sum(map(len, written)) <= sum(map(len, parts))


@given(st.binary(max_size=3000), st.integers(1, 50))
def test_a_form_in_parts_of_any_size(content, size):
    content = content.replace(b"--b", b"")
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.onnx"\r\n\r\n'
        + content
        + b"\r\n--b--\r\n"
    )
    written = []
    form = _Form(b"b", written.append, 5000)
    for start in range(0, len(body), size):
        form.feed(body[start : start + size], lambda: UserError("too large"))
    assert form.finish() == "a.onnx" and b"".join(written) == content


def test_old_files_make_room_for_new_ones(served, mlp):
    client, page = served(uploads=2)
    first, second, third = (send(client, mlp).json()["id"] for _ in range(3))
    assert left(page) == sorted(
        f"{one}/{name}" for one in (second, third) for name in ("net.onnx", "upload.json")
    )
    gone = client.post("/api/runs", json={"upload": first, "backend": "numpy", "optimizer": "sgd"})
    assert gone.status_code == 422 and "upload it again" in gone.json()["error"]


def test_inspections_are_bounded(served):
    """A file for which there is not enough memory ends its inspection, and nothing else."""
    import asyncio

    from meta500.web.inspectors import Inspectors

    async def ask(path, **bounds):
        return await Inspectors(seconds=30).ask("upload", "the file", path=str(path), shown="x", **bounds)

    _, page = served()
    path = page.storage.uploads / "large"
    with open(path, "wb") as file:
        file.truncate(600 * 2**20)
    with pytest.raises(UserError, match="memory"):
        asyncio.run(ask(path, memory=300 * 2**20))


def test_inspections_end_in_time(tmp_path, monkeypatch):
    import asyncio
    import os

    from meta500.web.inspectors import Inspectors

    os.mkfifo(tmp_path / "never")

    async def ask():
        return await Inspectors(seconds=3).ask("upload", "the file", path=str(tmp_path / "never"), shown="x")

    with pytest.raises(UserError, match="within 3 s"):
        asyncio.run(ask())


def test_facts_of_an_upload_are_json(served, mlp):
    client, page = served()
    facts = send(client, mlp).json()
    assert json.loads((page.storage.upload(facts["id"]) / "upload.json").read_text()) == facts
