"""Programs of other networks, losses and builds; slow because each is compiled."""

import shutil
import subprocess

import numpy as np
import pytest

import meta500
from meta500.benchmarks.generation import Source, load_subject
from meta500.datasets import load_files

pytestmark = pytest.mark.slow

TRAIN = """
[data]
{data}

[model]
{model}

[train]
epochs = 2
batch_size = 16
threads = {threads}
{train}

[output]
report = "step"
"""

DROPOUT = """
from torch import nn


def net():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 24), nn.ReLU(), nn.Dropout(0.4), nn.Linear(24, 10))


model = net()
"""


def write(folder, data='name = "digits"', model="", threads=1, train=""):
    (folder / "train.toml").write_text(TRAIN.format(data=data, model=model, threads=threads, train=train))


def test_dropout_is_seeded(build_program, tmp_path):
    (tmp_path / "net.py").write_text(DROPOUT)
    write(
        tmp_path, threads=2, train='loss = "cross_entropy"\noptimizer = "sgd"\nlearning_rate = 0.1\nseed = 3'
    )
    program, _ = build_program(tmp_path, "net.py:model")
    run = program.train("--out", tmp_path / "w")
    again = program.train("--epochs", 1, "--out", tmp_path / "one")
    rest = program.train("--weights", tmp_path / "one", "--out", tmp_path / "two")
    assert again.losses + rest.losses == run.losses
    assert (tmp_path / "two").read_bytes() == (tmp_path / "w").read_bytes()
    # The same masks in Python: they depend on the seed and the number of the run.
    from meta500.benchmarks.generation import sample_order

    train, _ = load_files(program.folder / "data")
    source = Source(
        str(tmp_path / "net.py:model"),
        loss="cross_entropy",
        seed=3,
        examples={"input": train.inputs["image"][:2]},
    )
    model = load_subject(source, batch=16).model
    losses = []
    with meta500.network(model, backend="generated", threads=2, seed=3) as net:
        optimizer = net.native_optimizer("sgd", learning_rate=0.1)
        for epoch in range(2):
            order = sample_order(len(train), 3, epoch)
            for step in range(len(train) // 16):
                batch = train.batch(order[16 * step : 16 * step + 16])
                out = optimizer.train({"input": batch["image"], "label": batch["label"]}, ["loss"])
                losses.append(float(out["loss"]))
    np.testing.assert_allclose(run.losses, losses, rtol=1e-6)


def test_a_unet(build_program, train_in_python, check, tmp_path):
    write(
        tmp_path,
        data='name = "digits-segmentation"\noptions = { size = 32, train_samples = 64, test_samples = 20 }',
        model='name = "unet"\noptions = { depth = 2 }',
        threads=2,
        train='optimizer = "adamw"\nlearning_rate = 0.01\nweight_decay = 0.05\nbetas = [0.8, 0.95]\nepsilon = 1e-6',
    )
    program, command = build_program(tmp_path, "")
    assert "-fopenmp" in command
    run = program.train("--out", tmp_path / "w")
    assert run.status == 0, run.messages
    assert run.events["start"][0]["validation_samples"] == 20
    train, validation = load_files(program.folder / "data")
    expected = train_in_python(
        meta500.models.unet(n=0, batch="N", size=32, depth=2, classes=3, seed=0),
        train,
        validation,
        backend="numpy",
        optimizer=lambda net: meta500.optimizers.AdamW(
            net, learning_rate=0.01, weight_decay=0.05, beta1=0.8, beta2=0.95, epsilon=1e-6
        ),
        batch=16,
        epochs=2,
        seed=0,
        precision="float32",
    )
    check(run, tmp_path / "w", expected, 1e-5)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weight_decay_of_the_gradient(build_program, train_in_python, check, tmp_path, optimizer):
    """Momentum is in ``test_program``, the decoupled weight decay of AdamW in ``test_a_unet``."""
    write(
        tmp_path,
        data='name = "digits"\nvalidation = 0.25',
        model='name = "mlp"\noptions = { hidden = [16] }',
        train=f'optimizer = "{optimizer}"\nlearning_rate = 0.02\nweight_decay = 0.1\nprecision = "float64"',
    )
    program, _ = build_program(tmp_path, "")
    run = program.train("--out", tmp_path / "w")
    assert run.status == 0, run.messages
    options = {"learning_rate": 0.02, "weight_decay": 0.1}
    for backend, make in (
        ("numpy", lambda net: meta500.optimizers.create(optimizer, net, **options)),
        ("generated", lambda net: net.native_optimizer(optimizer, **options)),
    ):
        expected = train_in_python(
            meta500.models.mlp(batch="N", hidden=(16,), seed=0),
            *load_files(program.folder / "data"),
            backend=backend,
            optimizer=make,
            batch=16,
            epochs=2,
            seed=0,
            precision="float64",
        )
        check(run, tmp_path / "w", expected, 1e-9)
    program.train("--epochs", 1, "--out", tmp_path / "one")
    program.train("--weights", tmp_path / "one", "--out", tmp_path / "two")
    assert (tmp_path / "two").read_bytes() == (tmp_path / "w").read_bytes()


def test_a_fixed_batch_and_a_squared_error(build_program, tmp_path):
    meta500.models.digits_cnn(batch=16, loss=False).save(tmp_path / "net.onnx")
    rng = np.random.default_rng(0)
    for part, count in (("train", 40), ("validation", 20)):
        (tmp_path / "files" / part).mkdir(parents=True)
        np.save(tmp_path / "files" / part / "picture.npy", rng.random((count, 1, 8, 8), np.float32))
        np.save(tmp_path / "files" / part / "label.npy", rng.random((count, 10), np.float32))
    write(
        tmp_path,
        data='path = "files"\ninputs = { picture = "image", label = "target" }',
        train='loss = "mean_squared_error"\noptimizer = "sgd"\nlearning_rate = 0.1\nshuffle = false',
    )
    program, _ = build_program(tmp_path, "net.onnx")
    assert not (program.folder / "single").exists()
    run = program.train("--out", tmp_path / "w")
    assert run.status == 0, run.messages
    assert "the last 4 validation samples are left out" in run.messages
    assert run.events["start"][0]["validation_samples"] == 16
    assert all(event["validation_accuracy"] is None for event in run.events["epoch"])
    train, validation = load_files(tmp_path / "files")
    model = load_subject(Source(str(tmp_path / "net.onnx"), loss="mean_squared_error", label="target")).model
    losses = []
    with meta500.network(model, backend="numpy") as net:
        optimizer = net.native_optimizer("sgd", learning_rate=0.1)
        for _ in range(2):
            for step in range(2):
                batch = train.batch(np.arange(16 * step, 16 * step + 16))
                fed = {"image": batch["picture"], "target": batch["label"]}
                losses.append(float(optimizer.train(fed, ["loss"])["loss"]))
        batch = validation.batch(np.arange(16))
        out = net.inference({"image": batch["picture"], "target": batch["label"]}, ["loss"])
    np.testing.assert_allclose(run.losses, losses, rtol=1e-6)
    assert run.events["epoch"][-1]["validation_loss"] == pytest.approx(float(out["loss"]), rel=1e-6)


def test_without_openmp(digits_program, tmp_path):
    build = ["cmake", "-S", digits_program.folder, "-B", tmp_path / "b", "-DMETA500_OPENMP=OFF"]
    subprocess.run([*build, "-DMETA500_MARCH=x86-64-v3"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path / "b"], check=True, capture_output=True)
    other = type(digits_program)(digits_program.folder, tmp_path / "b" / "train", digits_program.config)
    data = ["--data", digits_program.folder / "data"]
    run = other.train(
        *data, "--weights", digits_program.folder / "initial.safetensors", "--out", tmp_path / "w"
    )
    assert run.status == 0, run.messages
    assert run.events["start"][0]["threads"] == 1
    refused = other.train(*data, "--threads", 2)
    assert refused.status == 2 and "without OpenMP" in refused.messages
    expected = digits_program.train("--out", tmp_path / "v")
    np.testing.assert_allclose(run.losses, expected.losses, rtol=1e-4)
    lost = other.train()
    assert lost.status == 1 and "there is no initial.safetensors" in lost.messages


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_sanitizers_find_nothing(build_program, two_files, tmp_path):
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    program, _ = build_program(two_files(tmp_path), "net.py", *flags)
    good = program.folder / "initial.safetensors"
    run = program.train("--weights", good, "--out", tmp_path / "w")
    assert run.status == 0, run.messages
    rng = np.random.default_rng(0)
    header = (program.folder / "data" / "dataset.json").read_bytes()
    data = shutil.copytree(program.folder / "data", tmp_path / "data")
    for number in range(60):
        whole = good.read_bytes() if number % 2 else header
        damaged = bytearray(whole)
        for _ in range(int(rng.integers(1, 5))):
            damaged[int(rng.integers(min(len(damaged), 600)))] = int(
                rng.choice([*b'"9]}{,:\\u', *rng.integers(256, size=4)])
            )
        damaged = damaged[: int(rng.integers(len(damaged)))] if number % 5 == 0 else damaged
        place = tmp_path / "bad" if number % 2 else data / "dataset.json"
        place.write_bytes(damaged)
        options = ("--weights", place) if number % 2 else ("--weights", good, "--data", data)
        run = program.train(*options, "--epochs", 1, "--out", tmp_path / "w")
        assert run.status == 0 if bytes(damaged) == whole else run.status in (0, 1), run.messages
        assert "Sanitizer" not in run.messages and "runtime error" not in run.messages, run.messages
