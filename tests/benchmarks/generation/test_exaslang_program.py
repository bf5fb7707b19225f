"""Folders for ExaStencils: written by the command line, checked by the interpreter, brought back as ONNX."""

import csv
import dataclasses
import json
import os
import shutil
import subprocess

import numpy as np
import pytest

import meta500
from meta500.backends.generated.exaslang.files import Platform
from meta500.backends.generated.exaslang.parse import parse
from meta500.backends.generated.exaslang.variant import Variant
from meta500.benchmarks.generation import sample_order
from meta500.benchmarks.generation.command import Prepared, Request
from meta500.benchmarks.generation.config import read_config
from meta500.benchmarks.generation.exaslang_check import LIMIT, check, interpreted
from meta500.benchmarks.generation.exaslang_files import program_files
from meta500.cli import main
from meta500.errors import UserError
from meta500.graph import load

CONFIG = """
[data]
name = "digits-segmentation"
options = {{ train_samples = 5, test_samples = 3, size = {size} }}
storage = "{storage}"
{data}

[model]
options = {{ n = 0, depth = {depth}, dtype = "float64", size = {size} }}

[train]
epochs = {epochs}
batch_size = 2
optimizer = "{optimizer}"
learning_rate = 0.01
precision = "{precision}"
seed = 3
{train}

[output]
report = "{report}"
"""
DEFAULTS = {
    "size": 16,
    "depth": 1,
    "storage": "exact",
    "data": "",
    "epochs": 2,
    "optimizer": "adam",
    "precision": "float64",
    "train": "",
    "report": "epoch",
}

MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.down = nn.Conv2d(3, channels, 3, padding=1)
        self.inner = nn.Conv2d(channels, channels, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(channels, channels, 2, stride=2)
        self.head = nn.Conv2d(2 * channels, 3, 1)

    def forward(self, x):
        skip = torch.relu(self.down(x))
        y = self.up(torch.relu(self.inner(self.pool(skip))))
        return self.head(torch.cat([skip, y], 1))
"""


def write(folder, **changes):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "train.toml").write_text(CONFIG.format(**(DEFAULTS | changes)))
    return folder


@pytest.fixture
def prepared(tmp_path):
    """``prepared(**changes)``: the configuration, its data and network, in this process."""

    def build(model="unet", **changes):
        config = read_config(write(tmp_path, **changes) / "train.toml")
        return Prepared.of(Request(model=model), config), config

    return build


def files_of(prepared, config, variant=None):
    variant = variant or Variant(double=config.precision == "float64")
    return program_files(prepared.subject, config, variant, Platform(), prepared.train, prepared.validation)


# -- the command line -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(exaslang, tmp_path_factory):
    """A folder with all files, and what the command said."""
    place = write(tmp_path_factory.mktemp("exaslang"))
    done = exaslang("unet", "--config", "train.toml", "--out", "out", "--check", cwd=place)
    return place, done


def test_a_checked_folder(folder):
    place, done = folder
    names = {p.name for p in (place / "out").iterdir()}
    assert names == {
        *(
            "unet.exa4",
            "unet.knowledge",
            "unet.platform",
            "unet.settings",
            "meta500_data.h",
            "meta500_network.h",
        ),
        *("order.bin", "weights.bin", "parameters.json", "train.toml", "README.md", "data", "meta500.json"),
    }
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[1:3]] == ["epoch 0", "epoch 1"]
    assert lines[-1].startswith("The same as the numpy backend in float64")
    text = (place / "out" / "unet.exa4").read_text()
    assert str(parse(text)) == text


def test_the_readme_has_the_three_commands(folder):
    place, _ = folder
    readme = (place / "out" / "README.md").read_text()
    assert "Main unet.settings unet.knowledge unet.platform" in readme
    assert "make -j -C generated" in readme and "./generated/exastencils" in readme
    assert "4 of 5 training samples" in readme and "2 of 3 validation samples" in readme


def test_weights_and_order(folder):
    place, _ = folder
    entries = json.loads((place / "out" / "parameters.json").read_text())["parameters"]
    numbers = np.fromfile(place / "out" / "weights.bin", "<f8")
    model = meta500.models.unet(n=0, depth=1, dtype="float64", size=16, seed=3)
    assert {e["name"] for e in entries} == set(model.parameters)
    for entry in entries:
        array = model.graph.initializers[entry["name"]]
        found = numbers[entry["offset"] :][: array.size].reshape(entry["shape"])
        np.testing.assert_array_equal(found, array)
    order = np.fromfile(place / "out" / "order.bin", "<i4").reshape(2, 5)
    np.testing.assert_array_equal(order, np.stack([sample_order(5, 3, epoch) for epoch in range(2)]))


READER = """
#include "meta500_data.h"

int main() {
    meta500_read();
    for (long epoch = 0; epoch < 2; ++epoch)
        for (long step = 0; step < 2; ++step)
            for (long batch = 0; batch < meta500::batch; ++batch)
                for (long row = 0; row < 16; ++row)
                    for (long column = 0; column < 16; ++column) {
                        const double x = (double(column) + 0.5) / 16, y = (double(row) + 0.5) / 16;
                        for (long c = 0; c < 3; ++c)
                            std::printf("%.17g\\n", meta500_training_0(epoch, step, batch, c, column, row, x, y));
                        std::printf("%.17g\\n", meta500_training_1(epoch, step, batch, 0, column, row, x, y));
                        if (epoch || step > 0) continue;
                        std::printf("%.17g\\n", meta500_validation_0(step, batch, 2, column, row, x, y));
                    }
    return 0;
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
@pytest.mark.parametrize("storage", ["exact", "uint8"])
def test_the_header_of_a_folder_gives_the_batches(storage, command, prepared, tmp_path):
    ready, _ = prepared(storage=storage)
    assert command("unet", "--config", "train.toml", "--out", "out") == (0, "")
    place = tmp_path / "out"
    (place / "main.cpp").write_text(READER)
    built = subprocess.run(
        ["g++", "-std=c++11", "-Wall", "-Wextra", "-Werror", "main.cpp", "-o", "main"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run(["./main"], cwd=place, capture_output=True, text=True, check=True, timeout=60)
    found = iter([float(line) for line in done.stdout.split()])
    limit = 0 if storage == "exact" else 0.5 / 255 + 1e-6
    image, label = ready.train.inputs["image"], ready.train.inputs["label"]
    for epoch in range(2):
        order = sample_order(5, 3, epoch)
        for step in range(2):
            for number in range(2):
                sample = order[2 * step + number]
                for row in range(16):
                    for column in range(16):
                        for c in range(3):
                            assert abs(next(found) - image[sample, c, row, column]) <= limit
                        assert next(found) == label[sample, row, column]
                        if not epoch and step < 1:
                            held = ready.validation.inputs["image"][2 * step + number, 2, row, column]
                            assert abs(next(found) - held) <= limit
    assert next(found, None) is None


@pytest.mark.slow
def test_a_folder_of_a_python_module(exaslang, tmp_path):
    """Two files, as in the thesis: the module and the configuration."""
    place = write(tmp_path, epochs=1)
    text = (place / "train.toml").read_text()
    start, _, end = text.partition("[model]")
    text = start + "[model]\nfile = 'net.py'\n" + end.partition("\n\n")[2]
    (place / "train.toml").write_text(text.replace("seed = 3", 'seed = 3\nloss = "cross_entropy"'))
    (place / "net.py").write_text(MODULE)
    done = exaslang(
        *("--config", "train.toml", "--out", "out", "--check", "--parallel", "mpi", "--blocks", "2x1"),
        cwd=place,
    )
    assert "The same as the numpy backend" in done.stdout
    assert (place / "out" / "Net.exa4").exists()
    knowledge = (place / "out" / "Net.knowledge").read_text()
    assert (
        "domain_rect_numBlocks_x" in knowledge and "mpirun -n 2" in (place / "out" / "README.md").read_text()
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unet", "--out", "o"), "--config FILE.toml is missing"),
        (("unet", "--config", "train.toml", "--out", "o", "--no-halo"), "--blocks 2x2"),
        (("unet", "--config", "train.toml", "--out", "o", "--parallel", "mpi", "--blocks", "5x1"), "5 x 1"),
        (("unet", "--config", "train.toml", "--out", "o.onnx", "--import", "none.bin"), "none.bin"),
    ],
)
def test_what_is_refused(arguments, message, exaslang, tmp_path):
    write(tmp_path)
    done = exaslang(*arguments, cwd=tmp_path, check=False)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.startswith("meta500: error: ") and len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "o").exists()


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """``command(*arguments)``: the exit status and the error text of the command line, in this process."""

    def run(*arguments):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as end:
            main(["generate", "exaslang", *arguments])
        return end.value.code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unet", "--config", "train.toml", "--import", "trained.bin"), "--import needs --out"),
        (("unet", "--config", "none.toml", "--out", "o"), "none.toml: cannot be read"),
        (("unet", "--config", "train.toml", "--out", "o", "--blocks", "2"), "is not of the form 2x2"),
        (
            ("unet", "--config", "train.toml", "--out", "o", "--threads", "2"),
            "need the parallelisation openmp",
        ),
        (("unet", "--config", "train.toml", "--out", "train.toml"), "is a file"),
        (("unet", "--config", "train.toml", "--out", "o", "--run", "--no-data"), "leave --no-data out"),
        (("--config", "train.toml", "--out", "o"), "no model"),
        (("unets", "--config", "train.toml", "--out", "o"), "unets"),
    ],
)
def test_what_is_refused_as_well(arguments, message, command, tmp_path):
    write(tmp_path)
    code, text = command(*arguments)
    assert code == 2 and message in text and text.startswith("meta500: error: ") and text.count("\n") == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("option", [("--pixels", "outer"), ("--parallel", "openacc"), ("--threads", "0")])
def test_unknown_values(option, command, tmp_path):
    write(tmp_path)
    code, text = command("unet", "--config", "train.toml", "--out", "o", *option)
    assert code == 2 and option[0] in text and option[1] in text


@pytest.mark.parametrize("folder", ["", "."])
def test_the_generator_that_is_not_there(folder, command, tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setenv("META500_EXASTENCILS", folder)
    code, text = command("unet", "--config", "train.toml", "--out", "o", "--run")
    assert code == 2 and text.count("\n") == 1
    assert "java" in text or ("no jar files" if folder else "META500_EXASTENCILS") in text
    # The files are written all the same.
    assert (tmp_path / "o" / "unet.exa4").exists()


# -- in this process ------------------------------------------------------------------------------


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "changes",
    [
        {"report": "step"},
        {"data": 'validation = "none"'},
        {"data": "validation = 0.4"},
        {"train": "shuffle = false", "optimizer": "sgd"},
        {"optimizer": "momentum", "train": "momentum = 0.5\nweight_decay = 0.1"},
        {"optimizer": "adamw"},
        {"optimizer": "adam", "train": "betas = [0.5, 0.9]\nepsilon = 1e-3\nweight_decay = 0.01"},
        {"storage": "uint8", "epochs": 1},
        {"precision": "float32", "epochs": 1},
    ],
)
def test_configurations(changes, prepared, capsys):
    ready, config = prepared(**changes)
    written = files_of(ready, config)
    check(ready, config, Variant(double=config.precision == "float64"), written)
    assert "The same as the numpy backend" in capsys.readouterr().out


@pytest.mark.parametrize("report", ["epoch", "step"])
def test_what_a_program_prints(report, prepared):
    ready, config = prepared(report=report)
    text = files_of(ready, config).files["unet.exa4"].decode()
    assert ('"loss", loss' in text) == (report == "step")
    assert '"training_loss", epoch_loss' in text and '"validation_loss", validation_loss' in text


def test_without_a_halo_every_block_is_a_picture(prepared, capsys):
    ready, config = prepared(epochs=1)
    variant = Variant(parallel="mpi", blocks=(4, 2), halo=False, double=True)
    check(ready, config, variant, files_of(ready, config, variant))
    assert "The same" in capsys.readouterr().out


def test_a_wrong_program_is_found(prepared):
    """Without the bias' step, with another learning rate, with another sign."""
    ready, config = prepared(epochs=1)
    written = files_of(ready, config)
    text = written.files["unet.exa4"].decode()
    for old, new in (
        ("epoch_loss /= 2", "epoch_loss /= 3"),
        ("communicate ghost of", "// communicate ghost of"),
        ("max ( ", "min ( "),
    ):
        assert old in text
        files = written.files | {"unet.exa4": text.replace(old, new).encode()}
        changed = dataclasses.replace(written, files=files)
        variant = Variant(double=True)
        if "communicate" in old:
            # One block has no neighbours: the same.
            check(ready, config, variant, changed)
            continue
        with pytest.raises(UserError, match="does not do what the network does: epoch 0, training loss"):
            check(ready, config, variant, changed)
    assert LIMIT <= 1e-10


def test_a_batch_larger_than_the_data(prepared):
    with pytest.raises(UserError, match="batch_size 2 is more than the 1 training samples"):
        prepared(data="validation = 0.8")


def test_fewer_validation_samples_than_a_batch(prepared):
    """There is nothing to validate: no validation loss, and the README says so."""
    ready, config = prepared(data="validation = 0.1")
    written = files_of(ready, config)
    assert len(ready.validation) < 2 and written.training.validation == 0
    assert "validation_loss" not in written.files["unet.exa4"].decode()
    assert "validation_arrays" not in written.files["meta500_network.h"].decode()
    assert f"0 of {len(ready.validation)} validation samples" in written.files["README.md"].decode()


def test_data_of_another_shape(prepared):
    ready, config = prepared()
    inputs = ready.train.inputs | {"image": ready.train.inputs["image"][:, :, :6]}
    other = dataclasses.replace(ready.train, inputs=inputs)
    with pytest.raises(
        UserError, match=r"'image' has samples of \[3, 6, 16\], the network takes \[3, 16, 16\]"
    ):
        files_of(dataclasses.replace(ready, train=other), config)


def test_the_text_does_not_grow_with_data_or_epochs(prepared):
    lengths = set()
    for epochs in (2, 9):
        ready, config = prepared(epochs=epochs)
        lengths.add(len(files_of(ready, config).files["unet.exa4"]))
    assert len(lengths) == 1


def test_a_written_folder_is_written_again(command, tmp_path):
    write(tmp_path)
    texts = []
    for pixels in ("outermost", "innermost", "outermost"):
        code, _ = command(*("unet", "--config", "train.toml", "--out", "o", "--no-data", "--pixels", pixels))
        assert code == 0
        texts.append((tmp_path / "o" / "unet.exa4").read_bytes())
    assert texts[0] == texts[2] != texts[1]


# -- and back -------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_trained_weights_come_back_as_onnx(dtype, prepared, command, tmp_path):
    """The validation loss that the program prints last is that of the imported network in all backends."""
    ready, config = prepared()
    text = (tmp_path / "train.toml").read_text().replace('dtype = "float64"', f'dtype = "{dtype}"')
    (tmp_path / "train.toml").write_text(text)
    ready = Prepared.of(Request(model="unet"), config := read_config(tmp_path / "train.toml"))
    assert command("unet", "--config", "train.toml", "--out", "out", "--no-data") == (0, "")
    written = files_of(ready, config)
    assert written.files["unet.exa4"] == (tmp_path / "out" / "unet.exa4").read_bytes()
    found = interpreted(ready, config, Variant(double=True), written)
    flat = np.concatenate([found.weights[p.name].ravel() for p in written.trained.parameters])
    flat.astype("<f8").tofile(tmp_path / "out" / "trained.bin")
    back = ("unet", "--config", "train.toml", "--import", "out/trained.bin", "--out", "trained.onnx")
    assert command(*back) == (0, "")
    model = load(tmp_path / "trained.onnx")
    assert {
        n: a.dtype.name for n, a in model.graph.initializers.items() if n in model.parameters
    } == dict.fromkeys(model.parameters, dtype)
    limit = 1e-12 if dtype == "float64" else 1e-6
    fed = {name: array[:2] for name, array in ready.validation.inputs.items()}
    for backend in ("numpy", "torch"):
        with meta500.network(model, backend=backend, precision="float64") as net:
            loss = float(net.inference(fed, outputs=["loss"])["loss"])
        assert loss == pytest.approx(found.validation[-1], rel=limit)
        assert abs(loss - found.validation[0]) > 1e-5  # not that of the first epoch


@pytest.mark.parametrize(
    "change", [lambda raw: raw[:-8], lambda raw: raw + raw[:8], lambda raw: b"", lambda raw: raw[:-3]]
)
def test_weights_of_another_size(change, folder, command, tmp_path):
    place, _ = folder
    shutil.copy(place / "out" / "parameters.json", tmp_path)
    write(tmp_path)
    (tmp_path / "trained.bin").write_bytes(change((place / "out" / "weights.bin").read_bytes()))
    code, text = command("unet", "--config", "train.toml", "--import", "trained.bin", "--out", "t.onnx")
    assert code == 2 and "trained.bin: has" in text and text.count("\n") == 1
    assert not (tmp_path / "t.onnx").exists()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"parameters": 3}', '{"parameters": []}', '{"parameters": [{"name": "a"}]}']
)
def test_a_list_of_parameters_that_is_none(text, folder, command, tmp_path):
    place, _ = folder
    write(tmp_path)
    (tmp_path / "parameters.json").write_text(text)
    shutil.copy(place / "out" / "weights.bin", tmp_path / "trained.bin")
    code, message = command("unet", "--config", "train.toml", "--import", "trained.bin", "--out", "t.onnx")
    assert code == 2 and "parameters.json" in message and message.count("\n") == 1


# -- the real generator ---------------------------------------------------------------------------

JARS = os.environ.get("META500_EXASTENCILS", "")
real = pytest.mark.skipif(
    not JARS or shutil.which("java") is None,
    reason="ExaStencils is not here: META500_EXASTENCILS names no folder of its jar files, or java is missing",
)


def through_the_generator(exaslang, place, *options):
    done = exaslang(
        *("unet", "--config", "train.toml", "--out", "out", "--run", *options),
        cwd=place,
    )
    assert "The same as the numpy backend" in done.stdout
    (run,) = (place / "runs").iterdir()
    return done, run


@real
def test_the_real_generator(exaslang, tmp_path):
    _, run = through_the_generator(exaslang, write(tmp_path))
    with (run / "rows.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    phases = {row["phase"] for row in rows}
    assert {"code generation", "compilation", "run", "training_step"} <= phases
    assert all(row["backend"] == "exastencils" for row in rows)


@real
@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "options"),
    [
        ({}, ("--parallel", "openmp", "--threads", "2")),
        ({}, ("--parallel", "openmp", "--threads", "2", "--pixels", "innermost")),
        ({}, ("--pixels", "innermost")),
        ({}, ("--optimize",)),
        ({"precision": "float32"}, ()),
        ({}, ("--parallel", "mpi", "--blocks", "2x1")),
        ({}, ("--parallel", "mpi", "--blocks", "1x2", "--no-halo")),
        ({}, ("--parallel", "hybrid", "--blocks", "2x1", "--threads", "2", "--pixels", "innermost")),
        ({"storage": "uint8"}, ()),
        ({"depth": 3}, ()),
        ({"depth": 3}, ("--parallel", "mpi", "--blocks", "2x2")),
    ],
)
def test_variants_of_the_real_generator(changes, options, exaslang, tmp_path):
    if "--blocks" in options and shutil.which("mpicxx") is None:
        pytest.skip("MPI is not installed")
    through_the_generator(exaslang, write(tmp_path, **changes), *options)
