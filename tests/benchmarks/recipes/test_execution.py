"""Running recipes in this process: folders, verdicts, failures, continuing, and the command line."""

import dataclasses
import json
import shutil

import pytest

from meta500.benchmarks.recipes import execution
from meta500.benchmarks.recipes.checks import check, missing, needs_download
from meta500.benchmarks.recipes.execution import exit_code, measured, run_recipe
from meta500.benchmarks.recipes.folder import opened
from meta500.benchmarks.recipes.recipe import find, read, shipped, with_settings
from meta500.benchmarks.recipes.report import conclusion
from meta500.cli import main
from meta500.errors import UserError
from meta500.metrics.rows import read_csv
from meta500.metrics.run import RunFolder
from meta500.metrics.tickers import EpochSummary, Summary

METRIC = '[[metrics]]\nname = "accuracy"\nquantity = "test_accuracy"\n'
# Three trainings whose middle one has a learning rate that no float32 survives.
THREE = (
    '[[runs]]\nname = "good"\nhyperparameters.learning_rate = 0.003\n'
    '[[runs]]\nname = "bad"\nhyperparameters.learning_rate = 1e38\noptimizer = "sgd"\n'
)


def info(folder):
    return json.loads((folder / "recipe.json").read_text())


def command(*arguments):
    with pytest.raises(SystemExit) as stopped:
        main(["recipe", *map(str, arguments)])
    return stopped.value.code or 0


def test_a_run_writes_all_trainings_and_verdicts(tiny, tmp_path):
    path = tmp_path / "out"
    folder, verdicts = run_recipe(read(tiny()), out=path)
    assert folder.path == path and exit_code(verdicts) in (0, 1, 3)
    trainings = [RunFolder.open(path / f"run-{seed}") for seed in range(2)]
    assert [t.status for t in trainings] == ["finished"] * 2
    assert [t.info["setup"]["seed"] for t in trainings] == [0, 1]
    accuracies = [
        row.value
        for t in trainings
        for row in t.rows
        if row.quantity == "accuracy" and row.phase == "test_set"
    ]
    assert len(accuracies) == 2 and accuracies[0] != accuracies[1]
    assert verdicts[0].values == dict(enumerate(accuracies))
    found = info(path)
    assert found["text"] == tiny().read_text() and found["status"] == "finished"
    assert found["verdict"] == verdicts[0].verdict and found["environment"]["versions"]["meta500"]
    assert found["metrics"][0]["values"] == {"0": accuracies[0], "1": accuracies[1]}
    (row,) = read_csv(path / "verdicts.csv")
    assert row.samples == tuple(accuracies) and (row.low, row.high) == (verdicts[0].low, verdicts[0].high)
    assert row.value == verdicts[0].mean and row.confidence == 0.95 and row.run_id == found["id"]
    assert (row.model, row.dataset, row.backend, row.quantity) == ("mlp", "digits", "numpy", "accuracy")


def test_the_same_folder_goes_on_with_missing_seeds(tiny, tmp_path, capsys):
    recipe, path = read(tiny()), tmp_path / "out"
    _, first = run_recipe(recipe, out=path)
    rows = (path / "run-0" / "rows.csv").read_bytes()
    # A training that was killed: its folder still says that it is running.
    state = json.loads((path / "run-1" / "run.json").read_text())
    (path / "run-1" / "run.json").write_text(json.dumps(state | {"status": "running"}))
    capsys.readouterr()
    folder, second = run_recipe(recipe, out=path, seeds=3)
    told = capsys.readouterr().err
    assert "seed 0 (training 1 of 3): finished earlier" in told and "seed 1 (training 2 of 3)\n" in told
    assert (path / "run-0" / "rows.csv").read_bytes() == rows
    assert (path / "run-1.interrupted-1" / "rows.csv").exists()
    assert {0: second[0].values[0], 1: second[0].values[1]} == first[0].values  # the same seeds again
    assert list(second[0].values) == [0, 1, 2] and info(path)["seeds"] == [0, 1, 2]
    assert folder.notes == []


def test_a_folder_of_something_else_is_refused(tiny, tmp_path):
    recipe, path = read(tiny()), tmp_path / "out"
    run_recipe(recipe, out=path, seeds=1)
    with pytest.raises(UserError, match=r"another recipe: \[mutable\] batch_size is 64 there and 32 here"):
        run_recipe(with_settings(recipe, {"batch_size": 32}), out=path)
    with pytest.raises(UserError, match=r"\[\[metrics\]\] 'accuracy' is .*'low': 0.2.* and .*'low': 0.1"):
        run_recipe(read(tiny("low = 0.2", "low = 0.1")), out=path)
    with pytest.raises(UserError, match="begun without --quick"):
        run_recipe(recipe, out=path, quick=True)
    run_recipe(recipe, out=path, seeds=2)
    with pytest.raises(UserError, match=r"--seeds 1: .* begun with 2 seeds"):
        run_recipe(recipe, out=path, seeds=1)
    state = json.loads((path / "run-0" / "run.json").read_text())
    state["setup"]["epochs"] = 7
    (path / "run-0" / "run.json").write_text(json.dumps(state))
    with pytest.raises(UserError, match="run-0: holds another training"):
        run_recipe(recipe, out=path)


def test_folders_that_cannot_be_used(tiny, tmp_path):
    recipe = read(tiny())
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="is not empty and holds no recipe.json"):
        run_recipe(recipe, out=other)
    assert (other / "notes.txt").read_text() == "mine"
    with pytest.raises(UserError, match="cannot be written"):
        run_recipe(recipe, out=other / "notes.txt")
    (other / "recipe.json").write_text("{")
    with pytest.raises(UserError, match="recipe.json: is damaged"):
        run_recipe(recipe, out=other)
    (other / "recipe.json").write_text("{}")
    with pytest.raises(UserError, match="does not describe the run of a recipe"):
        run_recipe(recipe, out=other)
    with (
        opened(recipe, tmp_path / "busy", None, False),
        pytest.raises(UserError, match="another process is running a recipe"),
    ):
        run_recipe(recipe, out=tmp_path / "busy")
    with pytest.raises(UserError, match="--seeds must be at least 1, got 0"):
        run_recipe(recipe, seeds=0, out=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_failed_training_does_not_stop_the_others(tiny, tmp_path, capsys):
    text = tiny("hyperparameters.learning_rate = 0.003\n", "", METRIC, THREE + METRIC + 'run = "good"\n')
    text.write_text(text.read_text() + '[[metrics]]\nname = "bad"\nquantity = "train_loss"\nrun = "bad"\n')
    path = tmp_path / "out"
    _, verdicts = run_recipe(read(text), out=path)
    good, bad = verdicts
    assert "failed" not in good.reason
    assert list(good.values) == [0, 1] and bad.values == {}
    assert bad.verdict == "not reproduced" and bad.reason.startswith(
        "seed 0 failed (and 1 more): run 'bad': "
    )
    assert "loss is nan in step 2" in bad.reason
    assert exit_code(verdicts) == 1
    assert [run["status"] for run in info(path)["runs"]] == ["finished", "failed"] * 2
    assert read_csv(path / "verdicts.csv")[1].verdict == "failed"
    assert RunFolder.open(path / "bad-0").rows  # the rows until then stay
    capsys.readouterr()
    _, again = run_recipe(read(text), out=path)
    assert "bad, seed 0 (training 2 of 4): failed earlier" in capsys.readouterr().err
    assert [v.reason for v in again] == [v.reason for v in verdicts]


def test_an_error_in_a_training_is_its_failure(tiny, tmp_path):
    scored = tiny("epochs = 1", 'epochs = 1\nmetrics = ["rmse"]')  # digits have no images to compare
    _, verdicts = run_recipe(read(scored), out=tmp_path / "out", seeds=1)
    assert verdicts[0].verdict == "not reproduced" and "rmse" in verdicts[0].reason
    assert "\n" not in verdicts[0].reason


def test_ctrl_c_keeps_what_is_done(tiny, tmp_path, monkeypatch, capsys):
    recipe, path = read(tiny()), tmp_path / "out"
    real = execution.train

    def interrupted(setup, *arguments):
        if setup.seed == 1:
            raise KeyboardInterrupt
        return real(setup, *arguments)

    monkeypatch.setattr(execution, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_recipe(recipe, out=path)
    found = info(path)
    assert (found["status"], found["verdict"]) == ("interrupted", "undecided")
    assert found["metrics"][0]["reason"] == "1 seed has not been run"
    assert f"--out {path}" in capsys.readouterr().err
    assert RunFolder.open(path / "run-1").status == "interrupted"
    monkeypatch.setattr(execution, "train", real)
    _, verdicts = run_recipe(recipe, out=path)
    assert list(verdicts[0].values) == [0, 1] and info(path)["status"] == "finished"


def test_quick_is_one_epoch_of_one_seed_and_decides_nothing(tiny, tmp_path):
    recipe = read(tiny("epochs = 1", "epochs = 50", "seeds = 2", "seeds = 2\nsingle_run = true"))
    _, verdicts = run_recipe(recipe, out=tmp_path / "out", quick=True)
    assert verdicts[0].verdict == "undecided" and "--quick" in verdicts[0].reason
    assert list(verdicts[0].values) == [0] and exit_code(verdicts) == 3
    assert RunFolder.open(tmp_path / "out" / "run-0").info["setup"]["epochs"] == 1


def test_a_schedule_sets_the_learning_rate(tiny, tmp_path):
    off = 'epochs = 2\nschedule.name = "multi-step"\nschedule.milestones = [1]\nschedule.factor = 0.0'
    frozen, _ = run_recipe(read(tiny("epochs = 1", off)), out=tmp_path / "frozen", seeds=1)
    rows = RunFolder.open(frozen.training(frozen.recipe.runs[0], 0)).rows
    losses = [r.value for r in rows if r.phase == "test_set" and r.quantity == "loss"]
    assert len(losses) == 2 and losses[0] == losses[1]  # with rate 0 nothing moves in the second epoch
    setup = json.loads((tmp_path / "frozen" / "run-0" / "run.json").read_text())
    assert setup["schedule"] == {"learning_rate": "multi_step(0.003, [1], 0.0)", "per": "epoch"}


def test_what_a_training_measures():
    epochs = [
        EpochSummary(0, loss=2.0, accuracy=0.9, test_loss=0.7, scores={"iou": 0.4, "rmse": 3.0}),
        EpochSummary(1, loss=1.0, accuracy=0.8, test_loss=0.9, scores={"iou": 0.3, "rmse": 2.0}),
    ]
    summary = Summary(step_seconds=[9.0, 1.0, 2.0, 4.0], epochs=epochs, seconds={"data": 2.0})
    assert measured(summary) == {
        "test_accuracy": {"final": 0.8, "best": 0.9},
        "test_loss": {"final": 0.9, "best": 0.7},
        "train_loss": {"final": 1.0, "best": 1.0},
        "iou": {"final": 0.3, "best": 0.4},
        "rmse": {"final": 2.0, "best": 2.0},
        "step_seconds": {"": 2.0},
        "first_step_seconds": {"": 9.0},
        "data_seconds": {"": 0.5},
        "train_seconds": {"": 16.0},
    }
    epochs[1] = dataclasses.replace(epochs[1], loss=float("nan"), accuracy=None)
    partial = measured(Summary(epochs=epochs))
    assert "train_loss" not in partial and "test_accuracy" not in partial


# That of abstraction-cost loads PyTorch's compiler.
CHECKED = [
    name if name != "abstraction-cost" else pytest.param(name, marks=pytest.mark.slow) for name in shipped()
]


@pytest.mark.parametrize("name", CHECKED)
def test_shipped_recipes_are_valid_or_say_what_has_to_be_got(name, tmp_path, monkeypatch):
    monkeypatch.setenv("META500_DATA", str(tmp_path))
    recipe = find(name)
    assert bool(missing(recipe)) == bool(needs_download(recipe))
    if not missing(recipe):
        check(recipe)
        return
    with pytest.raises(UserError) as caught:
        run_recipe(recipe, out=tmp_path / "out")
    text = str(caught.value)
    for dataset, files in missing(recipe).items():
        assert f"`meta500 data get {dataset}`" in text and all(file in text for file in files)
    assert not (tmp_path / "out").exists()


def test_missing_files_of_all_datasets_are_told_at_once(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("META500_DATA", str(tmp_path))
    two = '[[runs]]\nname = "a"\ndataset = "mnist"\n[[runs]]\nname = "b"\ndataset = "cifar10"\n'
    path = tiny(METRIC, two + METRIC + 'run = "a"\n', 'dataset = "digits"\n', "")
    with pytest.raises(UserError) as caught:
        check(read(path))
    for part in ("data_batch_1", "t10k-labels", "`meta500 data get mnist`", "`meta500 data get cifar10`"):
        assert part in str(caught.value)


def test_missing_files_are_those_that_the_options_ask_for(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("META500_DATA", str(tmp_path))
    two = (
        '[[runs]]\nname = "a"\ndataset = "stl10"\ndataset_options.part = "unlabelled"\n'
        '[[runs]]\nname = "b"\ndataset = "voc-segmentation"\ndataset_options.year = "2007"\n'
    )
    recipe = read(tiny(METRIC, two + METRIC + 'run = "a"\n', 'dataset = "digits"\n', ""))
    assert missing(recipe)["stl10"] == ["stl10_binary/unlabeled_X.bin", "stl10_binary/test_X.bin"]
    assert missing(recipe)["voc-segmentation"][0] == "VOCdevkit/VOC2007/JPEGImages"
    with pytest.raises(UserError) as caught:
        check(recipe)
    text = str(caught.value)
    assert "VOCtrainval_06-Nov-2007.tar" in text and "data get voc-segmentation" not in text
    assert "`meta500 data get stl10`" in text


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        (('"mlp"', '"mpl"'), ("unknown model 'mpl'", "Did you mean 'mlp'")),
        (("hidden", "hiden"), ("unknown option of model 'mlp' 'hiden'", "Did you mean 'hidden'")),
        (('"digits"', '"digit"'), ("unknown dataset 'digit'", "Did you mean 'digits'")),
        (
            ("epochs", "dataset_options.fraction = 1\nepochs"),
            ("unknown option of dataset 'digits' 'fraction'",),
        ),
        (('"numpy"', '"numpi"'), ("unknown backend 'numpi'", "Did you mean 'numpy'")),
        (("epochs", "backend_options.mode = 1\nepochs"), ("unknown option 'mode' of backend 'numpy'",)),
        (('"adam"', '"adma"'), ("unknown optimizer 'adma'", "Did you mean 'adam'")),
        (("learning_rate = 0.003", "learning_rate = -1"), ("learning_rate = -1 is not valid",)),
        (("epochs", "hyperparameters.beta3 = 1\nepochs"), ("unknown option of optimizer 'adam' 'beta3'",)),
        (("epochs", "native = true\nhyperparameters.beta3 = 1\nepochs"), ("beta3",)),
        (
            ('"adam"', '"adagrad"\nnative = true'),
            ("unknown native optimizer of the numpy backend 'adagrad'",),
        ),
        (
            ("epochs", "target_accuracy = 97\nepochs"),
            ("target_accuracy must be a fraction in (0, 1], not 97",),
        ),
        (("epochs", "time_limit = 0\nepochs"), ("time_limit must be a positive number",)),
        (("epochs", 'augment = ["flop"]\nepochs'), ("flop",)),
        (("hidden = [16]", 'hidden = ["a"]'), ("hidden",)),
        (('"digits"', '"arrays"'), ("dataset 'arrays' needs dataset_options.",)),
        (('"mlp"', '"none.onnx"', "model_options.hidden = [16]\n", ""), ("none.onnx",)),
    ],
)
def test_what_cannot_run_is_told_before_anything_starts(tiny, tmp_path, changes, parts):
    with pytest.raises(UserError) as caught:
        run_recipe(read(tiny(*changes)), out=tmp_path / "out")
    for part in ("recipe 'tiny'", *parts):
        assert part in str(caught.value), str(caught.value)
    assert not (tmp_path / "out").exists()


def test_command_line_list_and_show(capsys):
    assert command("list", "--json") == 0
    listed = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(listed) == set(shipped()) and listed["cifar10-resnet18"]["downloads"] == ["cifar10"]
    assert command("list") == 0
    assert "digits-97" in capsys.readouterr().out
    assert command("show", "digits-97") == 0
    text = capsys.readouterr().out
    assert "hyperparameters.learning_rate" in text and "0.97 to 0.995" in text and "mutable" in text
    assert command("show", "pets-unet", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["fixed"]["dataset_options.limit"] == 128 and shown["metrics"][0]["low"] == 0.999


def test_command_line_check_and_run(tiny, tmp_path, capsys):
    assert command("check", tiny(), "--set", "batch_size=32") == 0
    assert "could start" in capsys.readouterr().out
    assert command("check", tiny("epochs = 1", "epoch = 1")) == 2
    assert "Did you mean 'epochs'" in capsys.readouterr().err
    assert command("run", tiny(), "--set", "epochs=2", "--out", tmp_path / "x") == 2
    assert "'epochs' is fixed in recipe 'tiny', it is 1" in capsys.readouterr().err
    arguments = ("--set", "model_options.hidden=[8]", "--out")
    sure = tiny("low = 0.2\nhigh = 0.95", "low = -100.0")
    assert command("run", sure, *arguments, tmp_path / "sure") == 0
    assert "Recipe 'tiny', 2 seeds: reproduced" in capsys.readouterr().out
    never = tiny("low = 0.2\nhigh = 0.95", "low = 100.0")
    assert command("run", never, *arguments, tmp_path / "never", "--seeds", 1) == 3
    assert "at least 2 are needed" in capsys.readouterr().out
    assert command("run", never, *arguments, tmp_path / "never", "--seeds", 2) == 1
    assert "the interval lies below the bounds" in capsys.readouterr().out
    assert command("run", never, *arguments, tmp_path / "never", "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "not reproduced" and found["set"] == {"model_options.hidden": [8]}
    assert "text" not in found and found["seeds"] == [0, 1]
    shutil.rmtree(tmp_path / "never")


def test_a_failed_training_that_no_metric_uses_counts(tiny, tmp_path, capsys):
    text = tiny("hyperparameters.learning_rate = 0.003\n", "", METRIC, THREE + METRIC + 'run = "good"\n')
    text.write_text(text.read_text().replace("low = 0.2\nhigh = 0.95", "low = -100.0"))
    path = tmp_path / "out"
    assert command("run", text, "--out", path) == 1
    told = capsys.readouterr().out
    assert "Recipe 'tiny', 2 seeds: not reproduced" in told
    assert "run 'bad', seed 0 failed: " in told and "(no metric uses it)" in told
    assert info(path)["verdict"] == "not reproduced" and info(path)["metrics"][0]["verdict"] == "reproduced"


def test_fewer_seeds_than_the_recipes_are_told(tiny, tmp_path):
    many = read(tiny("seeds = 2", "seeds = 3\nsingle_run = true", "low = 0.2\nhigh = 0.95", "low = -100.0"))
    path = tmp_path / "out"
    folder, (verdict,) = run_recipe(many, out=path, seeds=1)
    assert verdict.verdict == "undecided"  # a single run decides where the recipe has one seed
    assert "1 seed instead of the recipe's 3" in conclusion(folder, [verdict])
    assert info(path)["notes"] == ["1 seed instead of the recipe's 3"]
    folder, _ = run_recipe(many, out=path, seeds=2)
    assert info(path)["notes"] == folder.notes == ["2 seeds instead of the recipe's 3"]
    run_recipe(many, out=path, seeds=3)
    assert info(path)["notes"] == []
    one = read(tiny("seeds = 2", "seeds = 1\nsingle_run = true", "low = 0.2\nhigh = 0.95", "low = -100.0"))
    assert run_recipe(one, out=tmp_path / "one")[1][0].verdict == "reproduced"


def test_a_time_limit_before_the_first_test_is_the_reason(tiny, tmp_path):
    recipe = read(tiny("epochs = 1", "epochs = 1\ntime_limit = 1e-9"))
    _, (verdict,) = run_recipe(recipe, out=tmp_path / "out", seeds=1)
    assert verdict.verdict == "not reproduced" and "nan" not in verdict.reason
    assert "it ended before test_accuracy was measured: time limit of 1e-09 s" in verdict.reason


def saved(path, **options):
    from meta500 import models

    given = {"batch": "N", "shape": (1, 8, 8), "hidden": (4,), "classes": 10}
    models.create("mlp", **{**given, **options}).save(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shape": (1, 9, 9)}, "input 'image' must have shape [N, 1, 9, 9], got [64, 1, 8, 8]"),
        ({"batch": 32}, "batch_size is 64, but the network takes batches of exactly 32"),
        ({"batch": 64}, "no multiple of the network's fixed batch size 64"),
        ({"classes": 7}, "tells 7 classes apart, but dataset 'digits' has 10"),
    ],
)
def test_networks_that_do_not_fit_the_data_are_refused(tiny, tmp_path, options, said):
    saved(tmp_path / "net.onnx", **options)
    path = tiny('"mlp"', '"net.onnx"', "model_options.hidden = [16]\n", "")
    with pytest.raises(UserError) as caught:
        run_recipe(read(path), out=tmp_path / "out")
    assert said in str(caught.value) and "recipe 'tiny'" in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_a_fitting_onnx_file_is_trained(tiny, tmp_path):
    saved(tmp_path / "net.onnx", classes=12)  # more than the data has does no harm
    path = tiny('"mlp"', '"net.onnx"', "model_options.hidden = [16]\n", "")
    _, (verdict,) = run_recipe(read(path), out=tmp_path / "out", seeds=1)
    assert list(verdict.values) == [0]
    saved(tmp_path / "net.onnx", hidden=(5,))
    with pytest.raises(UserError, match="another recipe: SHA-256 of net.onnx"):
        run_recipe(read(path), out=tmp_path / "out", seeds=1)


def test_backends_that_only_infer_are_refused(tiny, capsys):
    pytest.importorskip("onnxruntime")
    assert command("check", tiny(), "--set", "backend=onnxruntime") == 2
    assert "backend 'onnxruntime' does not train" in capsys.readouterr().err
