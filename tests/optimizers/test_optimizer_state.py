"""Saving and loading: continuation to the bit, and every file that does not fit is refused."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meta500.errors import UserError
from meta500.optimizers import SGD, AcceleGrad, Adam, RMSProp, create, names, schedules

VARIANTS = {name: {} for name in names()} | {
    "rmsprop": {"centered": True, "momentum": 0.5, "weight_decay": 0.1},
    "accelegrad": {"average": True, "diameter": 2.0},
    "adam": {"learning_rate": schedules.cosine(0.1, 12), "weight_decay": 0.05},
}


def everything(network, optimizer):
    """All numbers of a run, as bytes."""
    arrays = {name: np.asarray(value).tobytes() for name, value in network.params.items()}
    state = {
        f"{slot}:{name}": np.asarray(value).tobytes()
        for name, slots in optimizer.state.items()
        for slot, value in slots.items()
    }
    return arrays, state, optimizer.scalars, optimizer.step_count


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", names())
def test_continuation_is_bit_identical(*, name, dtype, backend, problem, make_network, tmp_path):
    straight = make_network(backend, problem, dtype)
    optimizer = create(name, straight, **VARIANTS[name])
    for _ in range(6):
        optimizer.train({})
    path = tmp_path / "state"
    optimizer.save(path)
    middle = dict(zip(straight.params, straight.fetch_tensors(straight.get_params()), strict=True))
    for _ in range(6):
        optimizer.train({})

    resumed = make_network(backend, problem, dtype)
    for key, value in middle.items():
        resumed.feed_tensor(key, value)
    other = create(name, resumed, **{k: v for k, v in VARIANTS[name].items() if k == "learning_rate"})
    other.load(path)
    assert other.step_count == 6
    assert other.hyper_parameters() == optimizer.hyper_parameters()
    for _ in range(6):
        other.train({})
    assert everything(resumed, other) == everything(straight, optimizer)


def test_state_goes_from_one_backend_to_another(make_network, tmp_path):
    results = []
    first = make_network("numpy")
    optimizer = Adam(first)
    for _ in range(5):
        optimizer.train({})
    optimizer.save(tmp_path / "state.npz")
    for backend in ("numpy", "torch"):
        network = make_network(backend)
        for key, value in first.params.items():
            network.feed_tensor(key, value)
        other = Adam(network)
        other.load(tmp_path / "state.npz")
        for _ in range(5):
            other.train({})
        results.append(np.asarray(network.params["layer.weight"]))
    assert np.allclose(results[0], results[1], rtol=1e-13)


def test_state_dict_is_a_copy_in_plain_values(backend, make_network):
    network = make_network(backend)
    optimizer = Adam(network, 0.1)
    optimizer.train({})
    state = optimizer.state_dict()
    assert state["hyper"] == {
        "learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0,
    }  # fmt: skip
    assert state["parameters"]["layer.weight"] == {"shape": [3, 4], "dtype": "float64"}
    first = {slot: value.copy() for slot, value in state["state"]["layer.weight"].items()}
    assert set(first) == {"m", "v"}
    optimizer.train({})
    for slot, value in first.items():
        assert isinstance(state["state"]["layer.weight"][slot], np.ndarray)
        assert np.array_equal(state["state"]["layer.weight"][slot], value)
    # Loading copies as well: two optimizers from one state do not share arrays.
    a, b = Adam(make_network(backend)), Adam(make_network(backend))
    a.load_state_dict(state)
    b.load_state_dict(state)
    a.train({})
    assert np.array_equal(np.asarray(b.state["layer.weight"]["m"]), first["m"])


def test_saving_before_the_first_step(make_network, tmp_path):
    Adam(make_network(), 0.5).save(tmp_path / "new.npz")
    other = Adam(make_network())
    other.load(tmp_path / "new.npz")
    assert (other.step_count, other.learning_rate, other.state) == (0, 0.5, {})


def test_optimizer_without_network_saves_and_loads(starting_point, tmp_path):
    params = starting_point("numpy")
    optimizer = Adam(None)
    optimizer.apply(params, params)
    optimizer.save(tmp_path / "plain.npz")
    other = Adam(None)
    with pytest.raises(UserError, match="needs params="):
        other.load(tmp_path / "plain.npz")
    other.load(tmp_path / "plain.npz", params=params)
    again, expected = other.apply(params, params), optimizer.apply(params, params)
    assert all(np.array_equal(again[name], expected[name]) for name in params)


def test_awkward_parameter_names_survive(tmp_path):
    params = {name: np.full(2, i + 1.0) for i, name in enumerate(["a/b", "m:x.npy", "é ü", "..", ""])}
    optimizer = Adam(None)
    optimizer.apply(params, params)
    optimizer.save(tmp_path / "s.npz")
    other = Adam(None)
    other.load(tmp_path / "s.npz", params=params)
    for name, slots in optimizer.state.items():
        assert np.array_equal(other.state[name]["v"], slots["v"])


def saved(make_network, **changes):
    optimizer = Adam(make_network())
    optimizer.train({})
    state = optimizer.state_dict()
    state.update(changes)
    return state


def without(mapping, *path):
    mapping = dict(mapping)
    if len(path) == 1:
        del mapping[path[0]]
    else:
        mapping[path[0]] = without(mapping[path[0]], *path[1:])
    return mapping


MISFITS = {
    "class": (lambda s: {**s, "optimizer": "SGD"}, "state of optimizer SGD .* into Adam"),
    "format": (lambda s: {**s, "format": 99}, "key 'format' is 99"),
    "no state": (lambda s: without(s, "state"), "key 'state' is missing"),
    "steps": (lambda s: {**s, "step_count": -1}, "key 'step_count' is -1"),
    "steps type": (lambda s: {**s, "step_count": "3"}, "key 'step_count' is '3'"),
    "hyper": (lambda s: without(s, "hyper", "beta1"), "key 'hyper' has the options"),
    "hyper value": (
        lambda s: {**s, "hyper": {**s["hyper"], "beta1": 1.5}},
        "key 'hyper.beta1': Adam: beta1 = 1.5 is not valid",
    ),
    "schedule": (
        lambda s: {**s, "hyper": {**s["hyper"], "learning_rate": "cosine(0.1, 5, 0.0)"}},
        r"saved with the learning rate cosine\(0.1, 5, 0.0\), this optimizer has 0.001",
    ),
    "scalar": (lambda s: {**s, "scalars": {"a": "b"}}, "key 'scalars.a' is 'b'"),
    "missing parameter": (
        lambda s: without(s, "parameters", "scale"),
        r"key 'parameters' .* it lacks: \['scale'\]",
    ),
    "extra parameter": (
        lambda s: {**s, "parameters": {**s["parameters"], "new": {}}},
        r"this network lacks: \['new'\]",
    ),
    "shape": (
        lambda s: {
            **s,
            "parameters": {**s["parameters"], "scale": {"shape": [1], "dtype": "float64"}},
        },
        "key 'parameters.scale'",
    ),
    "stranger": (
        lambda s: {**s, "state": {**s["state"], "new": {}}},
        "key 'state.new' belongs to no parameter",
    ),
    "slot": (lambda s: without(s, "state", "scale", "v"), "key 'v:scale' is missing"),
    "slot shape": (
        lambda s: {**s, "state": {"scale": {"m": np.zeros(1), "v": np.zeros(())}}},
        r"key 'm:scale' has shape \(1,\)",
    ),
    "slot dtype": (
        lambda s: {**s, "state": {"scale": {"m": np.zeros((), np.float32)}}},
        "key 'm:scale' has shape .* dtype float32, expected",
    ),
    "slot type": (lambda s: {**s, "state": {"scale": {"m": 1.0}}}, "'m:scale' is a float"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_states_that_do_not_fit_are_refused_and_change_nothing(case, make_network):
    change, pattern = MISFITS[case]
    state = change(saved(make_network))
    optimizer = Adam(make_network())
    optimizer.train({})
    before = everything(optimizer.network, optimizer), optimizer.hyper_parameters()
    with pytest.raises(UserError, match=f"state_dict: .*{pattern}"):
        optimizer.load_state_dict(state)
    assert (everything(optimizer.network, optimizer), optimizer.hyper_parameters()) == before


def test_float32_state_is_not_loaded_into_float64(make_network):
    optimizer = Adam(make_network(dtype="float32"))
    optimizer.train({})
    with pytest.raises(UserError, match=r"'parameters.layer.weight' says .*float32.* has .*float64"):
        Adam(make_network()).load_state_dict(optimizer.state_dict())


def test_schedules_must_be_the_same(make_network):
    optimizer = SGD(make_network(), schedules.cosine(0.1, 5))
    state = optimizer.state_dict()
    SGD(make_network(), schedules.cosine(0.1, 5)).load_state_dict(state)
    for rate in (schedules.cosine(0.1, 6), 0.1):
        with pytest.raises(UserError, match=r"learning rate cosine\(0.1, 5, 0.0\)"):
            SGD(make_network(), rate).load_state_dict(state)
    constant = SGD(make_network(), 0.3).state_dict()
    with pytest.raises(UserError, match=r"learning rate 0.3, this optimizer has cosine"):
        optimizer.load_state_dict(constant)


# -- files ---------------------------------------------------------------------------------------------


def written(make_network, path: Path) -> bytes:
    optimizer = Adam(make_network())
    optimizer.train({})
    optimizer.save(path)
    return path.read_bytes()


def test_file_is_npz_without_pickle(make_network, tmp_path):
    written(make_network, tmp_path / "s.npz")
    with np.load(tmp_path / "s.npz", allow_pickle=False) as archive:
        assert archive["m:layer.weight"].shape == (3, 4)
        manifest = json.loads(str(archive["manifest"]))
    assert manifest["optimizer"] == "Adam"
    assert os.listdir(tmp_path) == ["s.npz"]


def test_file_errors_name_the_file(make_network, tmp_path):
    optimizer = Adam(make_network())
    target = tmp_path / "missing" / "s.npz"
    with pytest.raises(UserError, match=rf"cannot write the optimizer state '{target}'"):
        optimizer.save(target)
    with pytest.raises(UserError, match=rf"file '{target}' does not exist"):
        optimizer.load(target)
    with pytest.raises(UserError, match="cannot be read"):
        optimizer.load(tmp_path)
    with pytest.raises(UserError, match="cannot write"):
        optimizer.save(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04", b"\x93NUMPY\x01\x00"])
def test_files_of_another_kind(content, make_network, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"file '{path}': key 'manifest' cannot be read"):
        Adam(make_network()).load(path)


def test_arrays_of_another_kind(make_network, tmp_path):
    optimizer = Adam(make_network())
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    np.save(tmp_path / "b.npy", np.ones(3))
    np.savez(tmp_path / "c.npz", manifest=np.array(["x", None], dtype=object))
    np.savez(tmp_path / "d.npz", manifest=np.array("[1, 2]"))
    np.savez(tmp_path / "e.npz", manifest=np.array('{"slots": {"scale": ["m"]}}'))
    np.savez(tmp_path / "f.npz", manifest=np.array('{"slots": {"scale": 3}}'))
    patterns = {
        "a.npz": "key 'manifest' is missing",
        "b.npy": "key 'manifest' cannot be read",
        "c.npz": "key 'manifest' cannot be read",
        "d.npz": "key 'manifest' does not describe",
        "e.npz": "key 'm:scale' is missing",
        "f.npz": "key 'manifest' cannot be read",
    }
    for name, pattern in patterns.items():
        with pytest.raises(UserError, match=f"file '{tmp_path / name}': {pattern}"):
            optimizer.load(tmp_path / name)


def test_failed_write_keeps_the_old_file(make_network, tmp_path, monkeypatch):
    path = tmp_path / "s.npz"
    before = written(make_network, path)

    def full(*args, **kwargs):
        args[0].write(b"half a file")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UserError, match="No space left on device"):
        AcceleGrad(make_network()).save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["s.npz"]


@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_refused_or_harmless(data):
    """Cut off or changed anywhere: an error that names the file, or the very same state."""
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(3, 4)), "b": rng.normal(size=2)}
    optimizer = RMSProp(None, momentum=0.5)
    optimizer.apply(params, params)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.npz"
        optimizer.save(path)
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        if data.draw(st.booleans()):
            del content[place:]
        else:
            content[place] ^= data.draw(st.integers(1, 255))
        path.write_bytes(content)
        other = RMSProp(None)
        try:
            other.load(path, params=params)
        except UserError as error:
            assert str(path) in str(error)
            assert other.state == {}
        else:
            for name, slots in optimizer.state.items():
                for slot, value in slots.items():
                    assert np.array_equal(other.state[name][slot], value)
