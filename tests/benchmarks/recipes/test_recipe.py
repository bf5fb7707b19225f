"""Reading recipes: what they say, what is refused with which message, and what --set may change."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meta500.benchmarks.recipes import values
from meta500.benchmarks.recipes.recipe import find, read, shipped, with_settings
from meta500.benchmarks.training import Setup
from meta500.errors import UserError

RUNS = '[[runs]]\nname = "a"\nnative = false\n[[runs]]\nname = "b"\nnative = true\n'
METRIC = '[[metrics]]\nname = "accuracy"\nquantity = "test_accuracy"\n'
OF_A = METRIC + 'run = "a"\n'


def refused(path, *parts):
    with pytest.raises(UserError) as caught:
        read(path)
    for part in (str(path), *parts):
        assert part in str(caught.value), str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_recipe_as_a_setup(tiny):
    recipe = read(tiny())
    assert (recipe.name, recipe.seeds, recipe.single_run, recipe.isolated) == ("tiny", 2, False, False)
    assert recipe.setup(recipe.runs[0], seed=7) == Setup(
        model="mlp",
        dataset="digits",
        optimizer="adam",
        hyperparameters={"learning_rate": 0.003},
        epochs=1,
        backend="numpy",
        batch_size=64,
        model_options={"hidden": (16,)},
        seed=7,
    )
    (metric,) = recipe.metrics
    assert (metric.at, metric.form, metric.runs, metric.unit) == ("final", "run", ("run",), "1")
    assert (metric.low, metric.high, metric.confidence) == (0.2, 0.95, 0.95)


def test_options_in_tables_and_with_dots_are_the_same(tiny):
    dotted = read(tiny())
    quoted = read(tiny("hyperparameters.learning_rate", '"hyperparameters.learning_rate"'))
    table = read(
        tiny(
            "hyperparameters.learning_rate = 0.003\n",
            "",
            "[mutable]",
            "[fixed.hyperparameters]\nlearning_rate = 0.003\n[mutable]",
        )
    )
    assert dotted.fixed == quoted.fixed == table.fixed
    assert dotted.fixed["hyperparameters.learning_rate"] == 0.003


def test_runs_add_to_the_common_values_and_leave_out_of_them(tiny):
    without = RUNS.replace("native = false", 'native = false\nwithout = ["model_options.hidden"]')
    recipe = read(tiny(METRIC, without + OF_A))
    first, second = (recipe.setup(run) for run in recipe.runs)
    assert (first.native, second.native) == (False, True)
    assert (first.model_options, second.model_options) == ({}, {"hidden": (16,)})
    assert first.epochs == second.epochs == 1


def test_metrics_of_two_runs_and_units(tiny):
    more = (
        '[[metrics]]\nname = "d"\nquantity = "train_loss"\ndifference = ["b", "a"]\nat = "best"\n'
        '[[metrics]]\nname = "r"\nquantity = "step_seconds"\nratio = ["b", "a"]\nunit = "1"\n'
        '[[metrics]]\nname = "t"\nquantity = "step_seconds"\nrun = "b"\nunit = "s"\n'
    )
    _, d, r, t = (
        read(tiny("[[metrics]]", RUNS + more + "[[metrics]]", METRIC, OF_A)).metrics[-1:]
        + (
            read(tiny("[[metrics]]", RUNS + more + "[[metrics]]", METRIC[12:], METRIC[12:] + 'run = "a"\n'))
        ).metrics[:3]
    )
    assert d.of({"a": 3.0, "b": 2.5}) == -0.5 and d.at == "best"
    assert r.of({"a": 4.0, "b": 2.0}) == 0.5 and r.at == "" and r.unit == "1"
    assert r.of({"a": 0.0, "b": 2.0}) != r.of({"a": 0.0, "b": 2.0})  # NaN
    assert t.of({"a": 4.0, "b": 2.0}) == 2.0 and t.unit == "s" and not t.bounded


FORMAT_ERRORS = {
    "no TOML": (("[fixed]", "[fixed"), ("is no TOML", "line 8")),
    "unknown table": (("[mutable]", "[mutables]"), ("unknown table", "'mutables'", "Did you mean 'mutable'")),
    "no name": (('name = "tiny"\n', ""), ("[recipe] name is missing",)),
    "bad name": (('"tiny"', '"Tiny one"'), ("[recipe] name", "'Tiny one'")),
    "empty title": (('"A tiny recipe"', '""'), ("[recipe] title must be a text that is not empty",)),
    "unknown head key": (
        ("seeds = 2", "seeds = 2\nseed = 1"),
        ("[recipe]", "'seed'", "Did you mean 'seeds'"),
    ),
    "no seeds": (("seeds = 2", "seeds = 0"), ("[recipe] seeds", "at least 1", "not 0")),
    "seeds are true": (("seeds = 2", "seeds = true"), ("[recipe] seeds", "not True")),
    "flag": (("seeds = 2", "seeds = 2\nisolated = 1"), ("[recipe] isolated must be true or false",)),
    "unknown key": (("epochs = 1", "epoch = 1"), ("[fixed]", "'epoch'", "Did you mean 'epochs'")),
    "unknown group": (
        ("hyperparameters.l", "hyperparameter.l"),
        ("[fixed]", "'hyperparameter'", "Did you mean 'hyperparameters'"),
    ),
    "options of what has none": (
        ("epochs = 1", '"epochs.n" = 1'),
        ("[fixed]", "'epochs' has no options", "'epochs.n'"),
    ),
    "group as a value": (("model_options.hidden = [16]", "model_options = 3"), ("model_options.NAME",)),
    "table as an option": (("hidden = [16]", "hidden = { a = 1 }"), ("'model_options.hidden' is a table",)),
    "both": (("[mutable]", "[mutable]\nepochs = 2"), ("'epochs' stands in [fixed] and in [mutable]",)),
    "twice": (
        ("[mutable]", '"hyperparameters.learning_rate" = 1\n[mutable]'),
        ("[fixed]", "'hyperparameters.learning_rate' is given twice"),
    ),
    "whole number": (("epochs = 1", "epochs = 1.5"), ("[fixed]: 'epochs' must be a whole number", "1.5")),
    "no flag": (("epochs = 1", "epochs = true"), ("'epochs' must be a whole number, not True",)),
    "text": (('"numpy"', "3"), ("[mutable]: 'backend' must be a text, not 3",)),
    "list of texts": (("epochs = 1", 'epochs = 1\nmetrics = "iou"'), ("'metrics' must be a list of texts",)),
    "entry of a list": (("epochs = 1", "epochs = 1\nmetrics = [1]"), ("'metrics', entry 1 must be a text",)),
    "seed": (("epochs = 1", "epochs = 1\nseed = 3"), ("[fixed]: 'seed' is not for recipes",)),
    "scheme": (("epochs = 1", 'epochs = 1\nscheme = "dpsgd"'), ("'scheme'", "several ranks")),
    "no epochs": (("epochs = 1\n", ""), ("'epochs' is missing", "[fixed] or [mutable]")),
    "no rate": (
        ("hyperparameters.learning_rate = 0.003\n", ""),
        ("'hyperparameters.learning_rate' is missing",),
    ),
    "epochs 0": (("epochs = 1", "epochs = 0"), ("'epochs' must be at least 1, not 0",)),
    "unknown score": (("epochs = 1", 'epochs = 1\nmetrics = ["iuo"]'), ("'metrics'", "Did you mean 'iou'")),
    "schedule without a name": (
        ("epochs = 1", "epochs = 1\nschedule.steps = 3"),
        ("'schedule.name' is missing",),
    ),
    "unknown schedule": (
        ("epochs = 1", 'epochs = 1\nschedule.name = "cosin"\nschedule.steps = 1'),
        ("unknown schedule 'cosin'", "Did you mean 'cosine'"),
    ),
    "option of a schedule": (
        ("epochs = 1", 'epochs = 1\nschedule.name = "cosine"'),
        ("schedule 'cosine' needs the option 'steps'",),
    ),
    "unit of a schedule": (
        ("epochs = 1", 'epochs = 1\nschedule.per = "day"'),
        ("'schedule.per'", "unknown unit 'day'"),
    ),
    "unnamed option": (("epochs = 1", 'epochs = 1\n"model_options." = 1'), ("names no option",)),
    "runs as a table": ((METRIC, "[runs]\n" + METRIC), ("'runs' must be tables, each under [[runs]]",)),
    "run without a name": ((METRIC, "[[runs]]\nnative = true\n" + METRIC), ("[[runs]] 1 name is missing",)),
    "name of a run": ((METRIC, RUNS.replace('"a"', '"A/b"') + METRIC), ("[[runs]] 1 name", "'A/b'")),
    "same run": ((METRIC, RUNS.replace('"b"', '"a"') + OF_A), ("[[runs]] 'a': two runs",)),
    "mutable in a run": (
        (METRIC, RUNS.replace("native = true", "batch_size = 8") + OF_A),
        ("[[runs]] 'b': 'batch_size' is mutable",),
    ),
    "fixed again": (
        (METRIC, RUNS.replace("native = true", "epochs = 1") + OF_A),
        ("[[runs]] 'b': 'epochs' is 1 already in [fixed]",),
    ),
    "key of a run": (
        (METRIC, RUNS.replace("native = true", "nativ = true") + OF_A),
        ("[[runs]] 'b'", "Did you mean 'native'"),
    ),
    "leaving out": (
        (METRIC, RUNS.replace("native = true", 'without = ["epoch"]') + OF_A),
        ("leave out", "[[runs]] 'b'", "Did you mean 'epochs'"),
    ),
    "leaving out a text": (
        (METRIC, RUNS.replace("native = true", 'without = "epochs"') + OF_A),
        ("[[runs]] 2 without must be a list of texts",),
    ),
    "leaving out what is needed": (
        (METRIC, RUNS.replace("native = true", 'without = ["epochs"]') + OF_A),
        ("run 'b': 'epochs' is missing",),
    ),
    "no metric": ((METRIC + "low = 0.2\nhigh = 0.95\n", ""), ("no [[metrics]] has a bound",)),
    "no bound": (("low = 0.2\nhigh = 0.95\n", ""), ("no [[metrics]] has a bound",)),
    "unknown quantity": (('"test_accuracy"', '"test_acuracy"'), ("Did you mean 'test_accuracy'",)),
    "unscored": (
        ('"test_accuracy"', '"iou"'),
        ("[[metrics]] 'accuracy'", "not scored by iou", 'metrics = ["iou"]'),
    ),
    "at": (("low = 0.2", 'low = 0.2\nat = "last"'), ("'accuracy' at", "unknown epoch 'last'", "best, final")),
    "at of a time": (
        ('"test_accuracy"\n', '"step_seconds"\nat = "best"\n'),
        ("'accuracy' at", "one value per run"),
    ),
    "memory": (('"test_accuracy"', '"peak_memory"'), ("peak_memory needs a process", "isolated = true")),
    "bounds": (("low = 0.2", "low = 0.99"), ("[[metrics]] 'accuracy': low = 0.99 is above high = 0.95",)),
    "bound": (("low = 0.2", "low = nan"), ("'accuracy' low must be a finite number, not nan",)),
    "bound as text": (("low = 0.2", 'low = "2 %"'), ("'accuracy' low must be a finite number",)),
    "confidence": (("low = 0.2", "low = 0.2\nconfidence = 95"), ("'accuracy' confidence", "0.95, not 95")),
    "unit": (
        ("low = 0.2", 'low = 0.2\nunit = "%"'),
        ("unit: test_accuracy as run has the unit '1', not '%'",),
    ),
    "key of a metric": (("low = 0.2", "lower = 0.2"), ("'accuracy'", "'lower'", "Did you mean 'low'")),
    "same metric": ((METRIC, METRIC + METRIC), ("[[metrics]] 'accuracy': two metrics",)),
    "which run": ((METRIC, RUNS + METRIC), ("'accuracy': says of no run",)),
    "unknown run": ((METRIC, RUNS + METRIC + 'run = "c"\n'), ("'accuracy' run: unknown run 'c'", "a, b")),
    "two forms": (
        (METRIC, RUNS + METRIC + 'run = "a"\nratio = ["a", "b"]\n'),
        ("'accuracy': has run and ratio",),
    ),
    "pair": (
        (METRIC, RUNS + METRIC + 'ratio = ["a", "a"]\n'),
        ("'accuracy' ratio must name two different runs",),
    ),
    "unknown of a pair": (
        (METRIC, RUNS + METRIC + 'ratio = ["a", "x"]\n'),
        ("'accuracy' ratio: unknown run 'x'",),
    ),
}


@pytest.mark.parametrize("case", FORMAT_ERRORS)
def test_what_is_wrong_is_told_with_file_table_and_key(tiny, case):
    changes, parts = FORMAT_ERRORS[case]
    refused(tiny(*changes), *parts)


def test_files_that_cannot_be_read(tmp_path):
    refused(tmp_path / "none.toml", "cannot be read", "No such file")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    refused(tmp_path / "bytes.toml", "byte 0 is no UTF-8")
    with pytest.raises(UserError, match=r"unknown recipe 'digits-79'.*Did you mean 'digits-97'"):
        find("digits-79")


def test_mutable_values_may_be_set(tiny):
    recipe = with_settings(
        read(tiny()), {"batch_size": 32, "backend": "torch", "model_options.hidden": (8, 8)}
    )
    setup = recipe.setup(recipe.runs[0])
    assert (setup.batch_size, setup.backend, setup.model_options) == (32, "torch", {"hidden": (8, 8)})
    assert recipe.chosen == {"batch_size": 32, "backend": "torch", "model_options.hidden": (8, 8)}


def test_an_option_may_be_left_out(tiny):
    recipe = with_settings(read(tiny()), {"model_options.hidden": None})
    assert recipe.setup(recipe.runs[0]).model_options == {}
    assert recipe.chosen == {"model_options.hidden": None}


@pytest.mark.parametrize(
    ("settings", "parts"),
    [
        (
            {"epochs": 3},
            ("--set epochs", "'epochs' is fixed in recipe 'tiny', it is 1", "mutable are: backend"),
        ),
        ({"hyperparameters.learning_rate": 1}, ("is fixed", "it is 0.003")),
        ({"batchsize": 3}, ("unknown mutable key of recipe 'tiny' 'batchsize'", "Did you mean 'batch_size'")),
        ({"drop_last": True}, ("unknown mutable key of recipe 'tiny' 'drop_last'",)),
        ({"batch_size": 2.5}, ("--set: 'batch_size' must be a whole number, not 2.5",)),
        ({"batch_size": "many"}, ("--set: 'batch_size' must be a whole number, not 'many'",)),
        ({"batch_size": None}, ("--set: 'batch_size' must be a whole number, not None",)),
        ({"batch_size": 0}, ("'batch_size' must be at least 1, not 0",)),
        (
            {"model_options.hidden": "wide"},
            ("--set model_options.hidden must be a list like (16,), not 'wide'",),
        ),
    ],
)
def test_what_set_may_not_change(tiny, settings, parts):
    with pytest.raises(UserError) as caught:
        with_settings(read(tiny()), settings)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_what_runs_decide_may_not_be_set(tiny):
    recipe = read(tiny(METRIC, RUNS + OF_A))
    with pytest.raises(UserError, match=r"--set native: 'native' is fixed .* it is False in run 'a'"):
        with_settings(recipe, {"native": True})


def test_a_recipe_without_mutable_keys(tiny):
    path = tiny("[mutable]\n", "")
    with pytest.raises(UserError, match="has no mutable keys"):
        with_settings(read(path), {"seed": 1})


def test_a_schedule_counts_epochs_from_the_learning_rate(tiny):
    recipe = read(
        tiny("epochs = 1", 'epochs = 1\nschedule.name = "multi-step"\nschedule.milestones = [2, 4]')
    )
    function, per = values.schedule(recipe.values_of(recipe.runs[0]))
    assert per == "epoch"
    assert [round(function(k), 9) for k in range(5)] == [0.003, 0.003, 0.0003, 0.0003, 0.00003]
    assert values.schedule(read(tiny()).fixed) is None


@given(st.integers(1, 10**6), st.floats(1e-6, 1.0), st.booleans(), st.none() | st.booleans())
def test_values_of_fields_survive(epochs, target, native, drop_last):
    flat = {"epochs": epochs, "target_accuracy": target, "native": native, "drop_last": drop_last}
    table = {key: values.checked("here", key, value) for key, value in flat.items()}
    setup = values.setup_from(table, seed=3)
    assert dataclasses.replace(Setup(), **flat, seed=3) == setup


def test_every_field_of_a_setup_is_known_or_excluded():
    names = {field.name for field in dataclasses.fields(Setup)}
    assert set(values.known_keys()) == (names - set(values.NOT_IN_RECIPES)) | {values.SCHEDULE}
    assert set(values.NOT_IN_RECIPES) <= names


def test_shipped_recipes_are_named_as_their_files():
    assert {"digits-97", "digits-segmentation", "cifar10-resnet18", "pets-unet"} <= set(shipped())
    assert {"deep500-optimizers", "optimizers-digits", "abstraction-cost"} <= set(shipped())
    for name in shipped():
        assert find(name).name == name


@pytest.mark.parametrize(
    ("entry", "kind"),
    [("2026-01-02", "date"), ("2026-01-02T03:04:05", "datetime"), ("[1, 03:04:05]", "time")],
)
def test_dates_and_times_are_no_values(tiny, entry, kind):
    path = tiny("model_options.hidden = [16]", f"model_options.hidden = {entry}")
    refused(path, "[mutable]: 'model_options.hidden' has", f"a {kind}")


def test_a_table_in_a_list_is_no_value(tiny):
    path = tiny("model_options.hidden = [16]", "model_options.hidden = [{a = 1}]")
    refused(path, "'model_options.hidden' has a table")


def test_an_onnx_file_lies_beside_the_recipe_and_its_contents_decide(tiny, tmp_path, monkeypatch):
    recipe = read(tiny('"mlp"', '"net.onnx"', "model_options.hidden = [16]\n", ""))
    assert recipe.setup(recipe.runs[0]).model == str(tmp_path / "net.onnx")
    absolute = read(tiny('"mlp"', '"/models/net.onnx"', "model_options.hidden = [16]\n", ""))
    assert absolute.setup(absolute.runs[0]).model == "/models/net.onnx"
    with pytest.raises(UserError, match="net.onnx: cannot be read"):
        recipe.decides()
    (tmp_path / "net.onnx").write_bytes(b"one")
    before = recipe.decides()
    assert "SHA-256 of net.onnx of run 'run'" in before
    (tmp_path / "net.onnx").write_bytes(b"two")
    assert recipe.decides() != before
