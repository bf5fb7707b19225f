"""The main job where the C++ compiler is missing or broken, and the columns of the generated backend."""

import pytest

import meta500
from meta500.benchmarks import layers, main_job
from meta500.benchmarks.protocol import label, version, who_from
from meta500.metrics import RunFolder


@pytest.fixture
def relu_only(monkeypatch):
    """The layers of the main job are one ReLU."""
    every = layers.unet_layers
    monkeypatch.setattr(layers, "SETTLE_SECONDS", 0.001)
    monkeypatch.setattr(
        layers, "unet_layers", lambda **options: [x for x in every(**options) if x.name == "ReLU"]
    )


def run(tmp_path):
    return main_job.run(parts=["layers"], size="quick", threads=1, out=tmp_path / "run")


def times(tmp_path):
    return {r.backend: r for r in RunFolder.open(tmp_path / "run").rows if r.quantity == "time"}


def test_a_missing_compiler_is_said_and_is_no_failure(relu_only, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert run(tmp_path) is False
    shown = capsys.readouterr().out
    assert "generated: not measured: the C++ compiler 'no-such-compiler' is not installed" in shown
    (line,) = (line for line in shown.splitlines() if line.lstrip().startswith("everything"))
    assert "generated" in line and "unsupported" in line
    found = times(tmp_path)
    assert found["generated"].verdict == "unsupported" and "no-such-compiler" in found["generated"].note
    assert found["numpy"].verdict == found["torch"].verdict == "ok"


def test_a_compiler_that_fails_is_a_failure(relu_only, tmp_path, monkeypatch, capsys):
    fake = tmp_path / "broken-g++"
    fake.write_text(
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'broken 1.0' && exit 0\necho 'x.cpp:1: error: no' >&2\nexit 1\n"
    )
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    assert run(tmp_path) is True
    found = times(tmp_path)
    assert found["generated"].verdict == "failed" and "error: no" in found["generated"].note
    assert found["numpy"].verdict == "ok"
    assert "failed: ReLU" in capsys.readouterr().out


def test_threads_without_openmp_are_a_problem_and_one_thread_is_none(monkeypatch):
    monkeypatch.setattr("meta500.backends.compiler.has_openmp", lambda: False)
    assert main_job.compiler_problem(1) == ""
    assert "does not compile OpenMP" in main_job.compiler_problem(2)


def test_columns_of_the_generated_backend():
    columns = who_from({"backend": "generated", "threads": 2})
    assert (columns["mode"], columns["device"], columns["threads"]) == ("", "cpu", 2)
    assert label(columns) == "generated"
    found = version("generated")
    assert found.startswith(f"{meta500.__version__}, ") and any(
        word in found for word in ("g++", "clang", "GCC")
    )
