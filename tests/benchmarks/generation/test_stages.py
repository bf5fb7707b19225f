"""``meta500 generate cpp``: stages on the terminal and in folders, sources that compile by themselves, refusals."""

import ctypes
import subprocess

import numpy as np
import pytest

import meta500
from meta500.benchmarks.generation.command import Request, generate_command, parse_shapes
from meta500.errors import UserError

SMALL = ("digits_cnn", "--batch", 2, "--size", 4, "--threads", 1)


def refused(done, *parts):
    assert done.returncode == 2, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr, done.stderr


def test_stages_on_standard_output(generate, tmp_path):
    text = generate(*SMALL, cwd=tmp_path).stdout
    assert [line for line in text.splitlines() if line.startswith("====")] == [
        "==== forward.txt ====",
        "==== adjoint.txt ====",
        "==== fused.txt ====",
    ]
    assert "conv1[n, k, i, j] += image[n, 0, i+r-1, j+q-1] * conv1.weight[k, 0, r, q]" in text
    # Verdicts with their reasons.
    assert "# gather: neighbouring iterations meet in i+r-1, j+q-1; transposed" in text
    text = generate(*SMALL, "--stage", "schedule", "--optimizer", "adam", cwd=tmp_path).stdout
    assert text.startswith("schedule of digits_cnn: float, 1 threads") and "optimizer.first_moment" in text


def test_stages_in_a_folder(generate, tmp_path):
    generate(*SMALL, "--out", "ir", cwd=tmp_path)
    names = {path.name for path in (tmp_path / "ir").iterdir()}
    assert names == {"forward.txt", "adjoint.txt", "fused.txt", "meta500.json"}
    generate(*SMALL, "--phase", "inference", "--precision", "float64", "--out", "ir", cwd=tmp_path)
    names = {path.name for path in (tmp_path / "ir").iterdir()}
    assert names == {"forward.txt", "fused.txt", "meta500.json"}  # what is left of before is gone


def test_sources_compile_and_run_by_themselves(generate, tmp_path):
    options = ("--stage", "source", "--phase", "inference", "--seed", 4, "--out", "code")
    done = generate(*SMALL, *options, cwd=tmp_path)
    command = done.stdout.splitlines()[-1].removeprefix("Compile with: ")
    built = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert built.returncode == 0 and not built.stderr, built.stderr
    rows = [line.split("|")[1:-1] for line in (tmp_path / "code" / "README.md").read_text().splitlines()]
    order = [row[1].strip(" `") for row in rows if len(row) == 5 and row[0].strip().isdigit()]
    assert set(order) == {"image", "logits", "parameters"}
    model = meta500.models.digits_cnn(batch=2, size=4, seed=4)
    arrays = {
        "image": np.random.default_rng(0).random((2, 1, 4, 4), np.float32),
        "logits": np.zeros((2, 10), np.float32),
    }
    with meta500.network(model, backend="generated", threads=1) as net:
        arrays["parameters"] = net.packed.copy()
        expected = net.inference({"image": arrays["image"]}, ["logits"])["logits"]
    library = ctypes.CDLL(str(tmp_path / "code" / "network.so"))
    library.meta500_open.restype = ctypes.c_void_p
    instance = ctypes.c_void_p(library.meta500_open())
    pointers = (ctypes.c_void_p * 3)(*(arrays[name].ctypes.data for name in order))
    assert library.meta500_run(instance, pointers) == 0
    library.meta500_close(instance)
    np.testing.assert_allclose(arrays["logits"], expected, rtol=1e-6)


@pytest.mark.slow
def test_a_module_needs_shapes_and_a_loss_only(generate, two_files, tmp_path):
    two_files(tmp_path)
    shape = ("net.py:Net", "--model-option", "channels=2", "--shape", "x=4x1x8x8")
    text = generate(*shape, "--loss", "cross_entropy", cwd=tmp_path).stdout
    assert "program Net" in text and "head.weight" in text and "grad/" in text


def test_what_is_refused(generate, digits_config, tmp_path):
    (tmp_path / "train.toml").write_text(digits_config)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("keep")

    refused(generate("digits_cm", cwd=tmp_path, check=False), "unknown model 'digits_cm'", "digits_cnn")
    refused(
        generate(*SMALL, "--out", "full", cwd=tmp_path, check=False),
        "full: has files that were not generated",
    )
    assert (tmp_path / "full" / "mine.txt").read_text() == "keep"
    out, config = tmp_path / "p", tmp_path / "train.toml"
    for request, message in (
        (Request(), "no model"),
        (Request("digits_cnn", program=True, out=out), "--program needs --config"),
        (Request("digits_cnn", program=True), "--program needs --out"),
        (Request(config=config), "no model: give MODEL"),
        (Request("digits_cnn", config=config, batch=2), "--batch is decided by"),
        (Request("digits_cnn", config=tmp_path / "none.toml"), "none.toml: cannot be read"),
        (Request("digits_cnn", config=config, weights=tmp_path / "w", out=out), "w: cannot be read"),
        (Request("digits_cnn", config=config, weights=tmp_path / "w"), "--import needs --out"),
        (Request("digits_cnn", target="vax"), "unknown target 'vax'"),
        (Request("digits_cnn", optimizer="lbfgs"), "unknown optimizer 'lbfgs'"),
        (Request("digits_cnn", optimizer="adam", phase="inference"), "--optimizer belongs to"),
        (Request("digits_cnn", stage="text"), "unknown stage 'text'"),
        (Request("digits_cnn", out=config), "is a file"),
        (Request(str(tmp_path / "net.onnx")), "net.onnx"),
    ):
        with pytest.raises(UserError, match=message):
            generate_command(request)
    assert not out.exists()
    for text in ("image", "image=", "image=2x", "image=0x2", "image=2,3"):
        with pytest.raises(UserError, match=f"--shape: '{text}' is not of the form"):
            parse_shapes([text])


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('"digits"', '"digit"', ["unknown dataset 'digit'"]),
        ('"digits"', '"digits"\nvalidation = 0.0001', ["leaves the test set empty"]),
        ('"digits"', '"digits"\ninputs = { image = "x" }', ["has the input 'image'", "[data] inputs"]),
        ('name = "digits"', 'path = "nowhere"', ["nowhere: there is no such folder"]),
        ("batch_size = 64", "batch_size = 5000", ["batch_size 5000 is more than the 1438"]),
        (
            "epochs = 2",
            'epochs = 2\nloss = "mean_squared_error"',
            ["input 'label'", "takes float32", "int64"],
        ),
    ],
)
def test_configurations_that_do_not_fit(digits_config, tmp_path, old, new, parts):
    assert old in digits_config
    (tmp_path / "train.toml").write_text(digits_config.replace(old, new))
    with pytest.raises(UserError) as error:
        generate_command(
            Request("digits_cnn", config=tmp_path / "train.toml", program=True, out=tmp_path / "p")
        )
    for part in parts:
        assert part in str(error.value)
    assert not (tmp_path / "p" / "main.cpp").exists()
