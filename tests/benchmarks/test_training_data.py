"""What a training setup makes of its data: shapes and ignored labels for the model, workers, augmentation."""

import json
from dataclasses import replace

import numpy as np
import pytest

from meta500 import datasets, models
from meta500.benchmarks.training import Setup, busy_cores, check_loading, load_model, train
from meta500.cli.train import _resumed
from meta500.datasets import Dataset, LazyDataset
from meta500.errors import UserError
from meta500.metrics.run import RunFolder

SMALL = Setup(backend="numpy", dataset_options={"test_fraction": 0.9}, epochs=1, batch_size=32)


class Void:
    """Reads scenes with void pixels."""

    def __call__(self, index):
        random = np.random.default_rng(index)
        label = random.integers(0, 4, (16, 16))
        return {
            "image": random.random((2, 16, 16), np.float32),
            "label": np.where(label == 3, 255, label),
        }


def void(ignore=255):
    shapes, dtypes = {"image": (2, 16, 16), "label": (16, 16)}, {"image": "float32", "label": "int64"}
    return LazyDataset("void", 6, Void(), shapes, dtypes, classes=("a", "b", "c"), ignore=ignore)


def test_a_model_takes_shapes_classes_and_the_ignored_label_from_the_set():
    setup = Setup(model="unet", model_options={"depth": 1})
    model = load_model(setup, void())
    assert [list(t.shape[1:]) for t in model.inputs.values()] == [[2, 16, 16], [16, 16]]
    losses = [op for op in model.graph.operations if op.op_type == "SoftmaxCrossEntropyLoss"]
    assert [op.ignore_index for op in losses] == [255]
    assert load_model(setup, void(None)).graph.operations[-1].ignore_index is None


def test_a_loss_that_counts_ignored_labels_is_refused(tmp_path):
    path = tmp_path / "net.onnx"
    models.unet(n=0, batch="N", size=16, depth=1, channels_in=2, ignore=7).save(path)
    with pytest.raises(UserError) as caught:
        load_model(Setup(model=str(path)), void())
    assert "dataset 'void' has labels 255 that must not count" in str(caught.value)
    assert "leaves out the label 7: its ignore_index has to be 255" in str(caught.value)
    data = Dataset("d", {"image": np.zeros((4, 1, 8, 8), np.float32), "label": np.arange(4)}, ignore=3)
    with pytest.raises(UserError, match="leaves no label out"):
        load_model(Setup(model="mlp", model_options={"shape": (1, 8, 8)}), data)


def test_a_set_with_void_pixels_trains_and_is_scored(monkeypatch, tmp_path):
    monkeypatch.setattr(datasets, "load", lambda name, **options: (void(), void()))
    setup = replace(SMALL, model="unet", model_options={"depth": 1}, metrics=("iou",), dataset_options={})
    setup = replace(setup, batch_size=4, workers=2, augment=("flip", "rotate:30"))
    with RunFolder.create(tmp_path / "run", environment={}) as folder:
        epoch = train(setup, folder).epochs[0]
    assert np.isfinite([epoch.loss, epoch.test_loss, epoch.accuracy, epoch.scores["iou"]]).all()
    assert 0 < epoch.accuracy < 1 and epoch.data_seconds > 0


def test_workers_change_nothing_and_augmentation_changes_the_training_set(tmp_path):
    losses = {}
    for name, options in {
        "plain": {},
        "threads": {"workers": 2},
        "augmented": {"augment": ("crop:1",)},
        "both": {"workers": 3, "augment": ("crop:1",), "backend_options": {"precision": "float32"}},
    }.items():
        with RunFolder.create(tmp_path / name, environment={}) as folder:
            losses[name] = train(replace(SMALL, **options), folder).losses
        assert any(r.quantity == "data_time" for r in folder.rows)
    assert losses["plain"] == losses["threads"] != losses["augmented"] == losses["both"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workers": -1}, "--workers must be at least 0, got -1"),
        ({"loader": "fibre"}, "unknown --loader 'fibre'. Choose one of: process, thread"),
        ({"augment": ("flop",)}, "unknown augmentation 'flop'. Did you mean 'flip'?"),
    ],
)
def test_options_that_cannot_work_are_refused_before_anything_is_loaded(options, message):
    with pytest.raises(UserError) as caught:
        check_loading(replace(SMALL, **options))
    assert message in str(caught.value)


def test_a_resumed_run_keeps_its_pipeline(tmp_path):
    (tmp_path / "run" / "checkpoints" / "step-00000005").mkdir(parents=True)
    setup = {"metrics": [], "workers": 3, "loader": "process", "augment": ["flip"], "epochs": 2}
    (tmp_path / "run" / "rows.csv").write_text("schema,level,quantity,unit,value\n")
    info = {"format": "meta500 run", "schema_version": 1, "id": "x", "status": "finished", "setup": setup}
    info |= {"environment": {}, "command": [], "seeds": {}, "started": ""}
    (tmp_path / "run" / "run.json").write_text(json.dumps(info))
    values, _ = _resumed(tmp_path / "run", {"epochs": 4}, {"resume", "epochs"})
    assert (values["workers"], values["loader"], values["augment"]) == (3, "process", ("flip",))
    assert Setup(**values).epochs == 4
    with pytest.raises(UserError, match="--augment cannot be changed with --resume"):
        _resumed(tmp_path / "run", {}, {"augment"})


def test_more_workers_and_threads_than_cores_are_told(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("os.sched_getaffinity", lambda process: range(4))
    assert busy_cores(0, 8) == busy_cores(3, 1) == "" != busy_cores(1, None)
    for cores, lines in ((3, 0), (2, 1)):
        monkeypatch.setattr("os.sched_getaffinity", lambda process, cores=cores: range(cores))
        setup = replace(SMALL, workers=2, backend_options={"threads": 1})
        with RunFolder.create(tmp_path / str(cores), environment={}) as folder:
            train(setup, folder)
        told = capsys.readouterr().err.splitlines()
        assert len(told) == lines
    assert told[0].startswith("2 workers and 1 thread of the network share 2 cores: step times contain")
    assert {row.protocol for row in folder.rows} == {"2 workers (thread)"}
