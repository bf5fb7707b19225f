"""``meta500 models`` as a user runs it, and the table of the documentation."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meta500 import models
from meta500.cli.application import application
from meta500.cli.models import show_all
from meta500.errors import UserError
from meta500.models.costs import costs_per_image

ROOT = Path(__file__).parents[2]


def run(*arguments):
    done = CliRunner().invoke(application, ["models", *arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def listing():
    return run("--json")


def test_all_networks_are_listed(listing):
    found = json.loads(listing)
    assert [entry["name"] for entry in found["models"]] == list(models.names())
    vgg = next(entry for entry in found["models"] if entry["name"] == "vgg16")
    assert vgg["parameters"] == 138_357_544 and vgg["multiply_adds"] == 15_470_264_320
    assert vgg["flops"] == 2 * vgg["multiply_adds"] and vgg["image"] == [3, 224, 224]
    assert "2 per multiply-add" in found["counted"]


def test_the_documentation_has_the_table(listing):
    rows = {}
    for line in (ROOT / "docs" / "models.md").read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if len(cells) == 6 and cells[0] in models.names():
            rows[cells[0]] = cells
    assert set(rows) == set(models.names())
    for entry in json.loads(listing)["models"]:
        _, _, image, parameters, flops, activations = rows[entry["name"]]
        assert image == " x ".join(map(str, entry["image"]))
        assert parameters == f"{entry['parameters']:,}"
        scale = {"G": 1e9, "M": 1e6, "k": 1e3}[flops[-1]]
        assert flops[:-2] == f"{entry['flops'] / scale:.2f}"
        scale = {"MiB": 2**20, "KiB": 2**10}[activations[-3:]]
        assert activations[:-4] == f"{entry['activation_bytes'] / scale:,.2f}"


def words(text):
    """The lines of a table, each with single spaces."""
    return [" ".join(line.split()) for line in text.splitlines()]


def test_the_table(listing, capsys):
    show_all(json.loads(listing)["models"])
    lines = words(capsys.readouterr().out)
    assert "resnet50 3 x 224 x 224 25,557,032 8.18 G 143.29 MiB" in lines
    assert "digits_cnn 1 x 8 x 8 38,282 675.07 k 28.54 KiB" in lines
    assert any(line.startswith("FLOPs: 2 per multiply-add") for line in lines)


def test_one_network_with_options():
    shown = run("unet_ronneberger", "--model-option", "size=[188,204]", "--model-option", "channels=8")
    assert "image float32[1, 1, 188, 204]" in shown and "logits float32[1, 2, 4, 20]" in shown
    assert "channels=8" in shown and "Slice" in shown
    found = json.loads(run("unet_ronneberger", "--model-option", "channels=8", "--json"))
    expected = costs_per_image("unet_ronneberger", channels=8)
    assert found["parameters"] == expected.parameters and found["options"]["channels"] == 8
    assert sum(part["multiply_adds"] for part in found["operators"]) == expected.multiply_adds
    assert [node["name"] for node in found["nodes"]] == [node.name for node in expected.nodes]


def test_figures_are_those_of_one_image_and_shapes_those_of_the_batch():
    found = json.loads(run("lenet", "--model-option", "batch=null", "--json"))
    assert found["inputs"]["image"] == "float32[N, 1, 28, 28]" and found["multiply_adds"] == 416_520


def test_nodes():
    lines = words(run("lenet", "--nodes"))
    assert "conv1 Conv 1 x 6 x 28 x 28 156 235.20 k 18.38 KiB" in lines
    assert "all 61,706 833.04 k 58.61 KiB" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model-option", "n=1"), "--model-option is for one network: meta500 models NAME --model-option"),
        (("--nodes",), "--nodes is for one network"),
        (("alexnett",), "unknown model 'alexnett'. Did you mean 'alexnet'"),
        (("unet", "--model-option", "m=1"), "unknown option of model 'unet' 'm'"),
        (("unet", "--model-option", "n"), "'n' is not of the form key=value"),
        (("unet", "--model-option", "size=100"), "size 100x100 cannot be halved 4 times"),
        (("mlp", "--model-option", "initialization=he"), "unknown initialization 'he'"),
    ],
)
def test_mistakes_get_one_clear_message(arguments, message):
    with pytest.raises(UserError, match="^[^\n]*$") as caught:
        run(*arguments)
    assert message in str(caught.value)


def test_the_command_imports_no_torch_and_ends_with_2_on_a_mistake(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = "import sys; from meta500.cli import main; sys.argv[1:] = ['models', 'mlp']\ntry: main()\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"
    done = subprocess.run(
        [sys.executable, "-m", "meta500", "models", "mpl"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and "Did you mean 'mlp'" in done.stderr and "Traceback" not in done.stderr
