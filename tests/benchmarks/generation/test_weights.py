"""Files of weights: written and read, damaged in any place, and put into networks."""

import json

import numpy as np
import pytest

import meta500
from meta500.benchmarks.generation import import_weights, load_weights, save_weights
from meta500.errors import UserError

TENSORS = {
    "a.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "ä": np.array(1.5),
    "empty": np.zeros((0, 2), np.float32),
}


def test_what_is_written_is_read(tmp_path):
    save_weights(tmp_path / "w", TENSORS, {"epoch": "3", "network": 'a "b"'})
    found, metadata = load_weights(tmp_path / "w")
    assert list(found) == list(TENSORS)
    for name, array in TENSORS.items():
        assert found[name].dtype == array.dtype and np.array_equal(found[name], array)
    assert metadata["epoch"] == "3" and metadata["network"] == 'a "b"'
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_the_format_is_safetensors(tmp_path):
    save_weights(tmp_path / "w", TENSORS)
    data = (tmp_path / "w").read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    begin, end = header["a.weight"]["data_offsets"]
    found = np.frombuffer(data[8 + length :][begin:end], "<f4").reshape(header["a.weight"]["shape"])
    assert np.array_equal(found, TENSORS["a.weight"]) and header["a.weight"]["dtype"] == "F32"
    assert (8 + length) % 8 == 0


def test_damage_is_found_in_every_byte(tmp_path):
    save_weights(tmp_path / "w", {"a": TENSORS["a.weight"]})
    data = (tmp_path / "w").read_bytes()
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        (tmp_path / "w").write_bytes(damaged)
        with pytest.raises(UserError):
            load_weights(tmp_path / "w")
    for length in range(len(data)):
        (tmp_path / "w").write_bytes(data[:length])
        with pytest.raises(UserError):
            load_weights(tmp_path / "w")


def test_other_types_are_refused(tmp_path):
    with pytest.raises(UserError, match="'a' is int64"):
        save_weights(tmp_path / "w", {"a": np.zeros(2, np.int64)})
    with pytest.raises(UserError, match="nothing: cannot be read"):
        load_weights(tmp_path / "nothing")


def test_weights_go_into_a_network(tmp_path):
    model = meta500.models.mlp(batch="N", seed=0)
    other = meta500.models.mlp(batch="N", seed=1)
    tensors = {name: other.graph.initializers[name] for name in other.parameters}
    save_weights(tmp_path / "w", {**tensors, "optimizer/velocity/x": np.zeros(1, np.float32)})
    found = import_weights(model, tmp_path / "w")
    for name in model.parameters:
        assert np.array_equal(found.graph.initializers[name], tensors[name])
    first = model.parameters[0]
    for change, message in (
        ({first: tensors[first][:1]}, f"'{first}' is float32"),
        ({first: tensors[first].astype(np.float64)}, f"'{first}' is float64"),
        ({"more": np.zeros(1, np.float32)}, "a tensor 'more'"),
        ({first: None}, f"no tensor '{first}'"),
    ):
        wrong = {name: array for name, array in {**tensors, **change}.items() if array is not None}
        save_weights(tmp_path / "w", wrong)
        with pytest.raises(UserError, match=message):
            import_weights(model, tmp_path / "w")
