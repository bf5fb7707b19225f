"""The benchmark of the data-parallel step, on two ranks."""

import json
from types import SimpleNamespace

import pytest

from meta500.benchmarks import data_parallel
from meta500.errors import UserError

SCRIPT = """
import json
from dataclasses import asdict
from meta500.benchmarks.data_parallel import measure_data_parallel
from meta500.distributed import CommunicationNetwork

communication, emitted = CommunicationNetwork(timeout=60), []
rows = measure_data_parallel(
    "digits_cnn", {"batch": 4}, communication, emitted.append, optimizer="momentum", rounds=3, warmup=1,
    variants=["DDP", "DDP with bucket views", "ddp", "native", "reference", "no exchange"],
)
assert emitted == (rows if communication.is_root else [])
if communication.is_root:
    print(json.dumps([asdict(row) for row in rows]))
"""


def test_rows_have_times_of_all_variants_and_ratios_to_plain_ddp(mpiexec):
    rows = json.loads(mpiexec(2, SCRIPT).stdout)
    times = [row for row in rows if row["quantity"] == "time"]
    ratios = [row for row in rows if row["quantity"] == "ratio"]
    assert [(row["backend"], row["mode"]) for row in times] == [
        ("plain PyTorch", "DDP"),
        ("plain PyTorch", "DDP, bucket views"),
        ("torch", "ddp, native"),
        ("torch", "consistent-decentralized, native"),
        ("torch", "consistent-decentralized, reference"),
        ("plain PyTorch", "no exchange"),
    ]
    assert {row["baseline"] for row in ratios} == {"plain PyTorch DDP"} and len(ratios) == len(times) - 1
    for row in rows:
        assert (row["level"], row["ranks"], row["threads"], row["batch"]) == (3, 2, 1, 8)
    for time, ratio in zip(times[1:], ratios, strict=True):
        pairs = zip(time["samples"], times[0]["samples"], strict=True)
        assert ratio["samples"] == pytest.approx([a / b for a, b in pairs])


def test_variants_that_train_otherwise_are_refused():
    alone = SimpleNamespace(sync_all=lambda array: array)
    losses = {"DDP": [2.3, 2.2, 1.0], "native": [2.3, 2.2001, 3.0], "no exchange": [2.3, 1.0, 1.0]}
    data_parallel._check_alike(losses, alone)
    with pytest.raises(UserError, match="variant 'native' .* do not train alike"):
        data_parallel._check_alike({**losses, "native": [2.3, 2.25]}, alone)


def test_unknown_names_are_refused():
    with pytest.raises(UserError, match="variant"):
        data_parallel.measure_data_parallel("unet", {}, None, print, variants=["DDP", "horovod"])
    with pytest.raises(UserError, match="optimizer"):
        data_parallel.measure_data_parallel("unet", {}, None, print, optimizer="lion")
