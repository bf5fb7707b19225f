"""Programs that train without Python: their losses, weights and validation against backends in Python."""

import json
import shutil

import numpy as np
import pytest

import meta500
from meta500.benchmarks.generation import Source, load_subject, load_weights, save_weights
from meta500.datasets import load_files


@pytest.fixture(scope="module")
def trained(digits_program, tmp_path_factory):
    """A run over two epochs, with its weights."""
    out = tmp_path_factory.mktemp("trained") / "weights.safetensors"
    run = digits_program.train("--out", out)
    assert run.status == 0, run.messages
    return run, out


@pytest.mark.parametrize(
    ("backend", "options"), [("numpy", {}), ("generated", {"threads": 2, "winograd": False})]
)
def test_the_digits_train_as_in_python(digits_program, trained, train_in_python, check, backend, options):
    run, saved = trained
    train, validation = load_files(digits_program.folder / "data")
    expected = train_in_python(
        meta500.models.digits_cnn(batch="N", seed=0),
        train,
        validation,
        backend=backend,
        optimizer=lambda net: net.native_optimizer("adam", learning_rate=1e-3),
        batch=64,
        epochs=2,
        seed=0,
        precision="float32",
        **options,
    )
    assert len(run.losses) == 44 and run.losses[-1] < 0.5 * run.losses[0]
    check(run, saved, expected, 1e-6)


@pytest.mark.slow
def test_a_module_with_statistics_trains_as_in_python(module_program, train_in_python, check, tmp_path):
    saved = tmp_path / "w.safetensors"
    run = module_program.train("--out", saved)
    assert run.status == 0, run.messages
    train, validation = load_files(module_program.folder / "data")
    assert (len(train), len(validation)) == (1078, 360)
    source = Source(
        str(module_program.config.parent / "net.py"),
        options={"channels": 4},
        loss="cross_entropy",
        seed=7,
        examples={"image": train.inputs["image"][:2]},
    )
    expected = train_in_python(
        load_subject(source, batch=100).model,
        train,
        validation,
        backend="numpy",
        optimizer=lambda net: meta500.optimizers.Momentum(
            net, learning_rate=0.05, momentum=0.8, weight_decay=0.05
        ),
        batch=100,
        epochs=2,
        seed=7,
        precision="float64",
    )
    check(run, saved, expected, 1e-10)
    tensors, metadata = load_weights(saved)
    assert {t.dtype.name for t in tensors.values()} == {"float64"}
    assert metadata["optimizer"] == "momentum" and metadata["epoch"] == "2" and metadata["step"] == "20"
    assert any(name.startswith("optimizer/velocity/") for name in tensors)


def test_what_is_left_out_is_said(digits_program, trained):
    run, _ = trained
    (start,) = run.events["start"]
    assert (start["samples"], start["left_out"], start["steps_per_epoch"]) == (1438, 30, 22)
    assert start["validation_samples"] == 359  # 5 batches of 64, and 39 samples one by one
    assert "30 of 1438 training samples" in run.messages
    assert [event["epoch"] for event in run.events["epoch"]] == [1, 2] and len(run.events["end"]) == 1


def test_a_run_that_goes_on_is_the_run_without_interruption(digits_program, trained, tmp_path):
    run, whole = trained
    first = digits_program.train("--epochs", 1, "--out", tmp_path / "one")
    assert first.losses == run.losses[:22]
    second = digits_program.train("--weights", tmp_path / "one", "--out", tmp_path / "two")
    assert second.events["start"][0]["epoch"] == 1 and second.losses == run.losses[22:]
    assert (tmp_path / "two").read_bytes() == whole.read_bytes()
    again = digits_program.train("--weights", whole, "--out", tmp_path / "no")
    assert again.status == 1 and "has been trained for 2 epochs" in again.messages
    fresh = digits_program.train("--weights", whole, "--restart", "--epochs", 1, "--out", tmp_path / "fresh")
    assert fresh.events["start"][0]["step"] == 0 and fresh.losses[0] < 1


def test_weights_of_other_programs_begin_a_run(digits_program, trained, tmp_path):
    tensors, _ = load_weights(trained[1])
    plain = {name: array for name, array in tensors.items() if not name.startswith("optimizer/")}
    header = {}
    data = b""
    for name, array in plain.items():
        raw = array.tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    (tmp_path / "plain").write_bytes(len(text).to_bytes(8, "little") + text + data)
    run = digits_program.train("--weights", tmp_path / "plain", "--epochs", 1, "--out", tmp_path / "w")
    assert run.status == 0 and run.events["start"][0]["step"] == 0 and run.losses[0] < 1


def test_seed_and_threads(digits_program, trained, tmp_path):
    other = digits_program.train("--seed=5", "--epochs=1", "--out", tmp_path / "a")
    assert other.events["start"][0]["seed"] == 5 and other.losses[0] != trained[0].losses[0]
    single = digits_program.train("--threads", 1, "--epochs", 1, "--out", tmp_path / "b")
    np.testing.assert_allclose(single.losses, trained[0].losses[:22], rtol=1e-4)
    resumed = digits_program.train("--weights", tmp_path / "a", "--out", tmp_path / "c")
    assert resumed.events["start"][0]["seed"] == 5  # that of the weights


def test_npy_files_are_data_too(digits_program, trained, tmp_path):
    for name, part in zip(("train", "validation"), load_files(digits_program.folder / "data"), strict=True):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "image.npy", part.inputs["image"].astype(np.float64))
        np.save(tmp_path / name / "label.npy", part.inputs["label"].astype(np.int32))
    run = digits_program.train("--data", tmp_path, "--out", tmp_path / "w")
    assert run.status == 0, run.messages
    assert run.losses == trained[0].losses
    assert run.events["epoch"][1]["validation_loss"] == trained[0].events["epoch"][1]["validation_loss"]


def test_weights_come_back_as_onnx(digits_program, trained, generate, tmp_path):
    run, saved = trained
    model = tmp_path / "model.onnx"
    config = digits_program.config
    generate("digits_cnn", "--config", config, "--import", saved, "--out", model, cwd=tmp_path)
    _, validation = load_files(digits_program.folder / "data")
    with meta500.network(meta500.load(model), backend="numpy") as net:
        out = net.inference(dict(validation.inputs))
    last = run.events["epoch"][-1]
    assert float(out["loss"]) == pytest.approx(last["validation_loss"], rel=1e-6)
    accuracy = float((out["logits"].argmax(1) == validation.inputs["label"]).mean())
    assert accuracy == pytest.approx(last["validation_accuracy"], abs=1e-12)


def refused(run, *parts, status=1):
    assert run.status == status, run.messages
    assert run.messages.splitlines()[-1].startswith("error: ")
    for part in parts:
        assert part in run.messages, run.messages


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--rounds", "3"], ["unknown option '--rounds'"]),
        (["--epochs"], ["--epochs needs a value"]),
        (["--epochs", "0"], ["--epochs must be a whole number from 1", "'0'"]),
        (["--epochs", "2x"], ["'2x'"]),
        (["--threads", "3"], ["--threads must be a whole number from 1 to 2"]),
        (["--seed", "-1"], ["--seed", "'-1'"]),
    ],
)
def test_wrong_options(digits_program, options, parts):
    refused(digits_program.train(*options), *parts, status=2)


def test_help(digits_program):
    import subprocess

    text = subprocess.run(
        [digits_program.executable, "--help"], capture_output=True, text=True, check=True
    ).stdout
    assert "digits_cnn" in text and all(o in text for o in ("--data", "--weights", "--restart", "--seed"))


def test_missing_and_damaged_files(digits_program, trained, tmp_path):
    saved = trained[1]
    refused(digits_program.train("--data", tmp_path / "nowhere"), "nowhere: there is no such folder")
    refused(digits_program.train("--data", tmp_path), str(tmp_path), "no training data")
    refused(digits_program.train("--weights", tmp_path / "nothing"), "nothing: cannot be read")
    unwritable = digits_program.train("--out", tmp_path / "no" / "w")
    refused(unwritable, "cannot be written")
    assert not unwritable.events  # said before the training
    data = bytearray(saved.read_bytes())
    for place in (3, 40, 700, len(data) - 1):
        damaged = bytearray(data)
        damaged[place] ^= 4
        (tmp_path / "damaged").write_bytes(damaged)
        refused(digits_program.train("--weights", tmp_path / "damaged", "--epochs", 9), "damaged:")
    (tmp_path / "damaged").write_bytes(data[:-8])
    refused(digits_program.train("--weights", tmp_path / "damaged"), "damaged")
    copied = shutil.copytree(digits_program.folder / "data", tmp_path / "data")
    image = bytearray((copied / "train_image.bin").read_bytes())
    image[100] ^= 1
    (copied / "train_image.bin").write_bytes(image)
    refused(digits_program.train("--data", copied), "train_image.bin: is damaged")
    (copied / "train_image.bin").write_bytes(image[:-4])
    refused(digits_program.train("--data", copied), "train_image.bin: has", "bytes")
    (copied / "dataset.json").write_text('{"format": "meta500 dataset", "version": 1, ')
    refused(digits_program.train("--data", copied), "dataset.json: is no JSON")
    assert not list(digits_program.folder.glob("*.part*"))


def test_weights_that_do_not_fit(digits_program, trained, tmp_path):
    tensors, metadata = load_weights(trained[1])
    metadata.pop("crc32"), metadata.pop("format")

    def using(change, **more):
        found = dict(tensors)
        change(found)
        save_weights(tmp_path / "w", found, {**metadata, **more})
        return digits_program.train("--weights", tmp_path / "w", "--epochs", 3, "--out", tmp_path / "out")

    refused(using(lambda t: t.pop("fc1.bias")), "no tensor 'fc1.bias'")
    refused(using(lambda t: t.update({"fc1.bias": np.zeros(63, "f")})), "'fc1.bias' is F32 63", "F32 64")
    refused(using(lambda t: t.update({"fc1.bias": np.zeros(64)})), "F64 64")
    refused(using(lambda t: t.update(more=np.zeros(2, "f"))), "a tensor 'more'")
    refused(using(lambda t: None, optimizer="sgd"), "the optimizer sgd", "--restart")
    refused(using(lambda t: None, step="many"), "'step' is 'many'")
    assert not (tmp_path / "out").exists()


def test_data_that_do_not_fit(digits_program, tmp_path):
    (tmp_path / "train").mkdir()

    def using(image, label):
        np.save(tmp_path / "train" / "image.npy", image)
        np.save(tmp_path / "train" / "label.npy", label)
        return digits_program.train("--data", tmp_path, "--out", tmp_path / "out", "--epochs", 1)

    image, label = np.zeros((64, 1, 8, 8), "f"), np.zeros(64, np.int64)
    assert using(image, label).status == 0
    (tmp_path / "out").unlink()
    refused(using(image[:63], label[:63]), "63 training samples, fewer than one batch of 64")
    refused(using(image, label[:63]), "label.npy: has 63 samples", "64")
    refused(using(image[:, :, 1:], label), "1 x 7 x 8", "1 x 8 x 8")
    refused(using(image.astype(np.uint8), label), "holds uint8", "scale")
    refused(using(image.astype(np.float16), label), "'<f2'")
    refused(using(np.asfortranarray(np.ones((64, 1, 8, 8), "f")), label), "Fortran order")
    refused(using(image, label.astype(np.float32)), "holds float32", "int64")
    refused(using(image, label + 10), "label", "outside [0, 9]")
    refused(using(np.full_like(image, np.nan), label), "the loss is not finite at step 1")
    assert not (tmp_path / "out").exists()
