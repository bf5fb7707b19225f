"""The profile of kernels: counted work, tables of known times, and the script in a process."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import meta500
from meta500.backends.generated.forms import Form
from meta500.benchmarks import kernel_tables as tables
from meta500.benchmarks.kernel_counts import KINDS, PRODUCT_KINDS, KernelWork, kernel_works
from meta500.benchmarks.kernels import DIRECT, WITH_WINOGRAD, Found, Limits, Plan, Profile
from meta500.benchmarks.operators.roofline import BANDWIDTH, PEAK, Roof
from meta500.errors import UserError

ROOT = Path(__file__).parents[2]


# -- counted work ---------------------------------------------------------------------------------------------


def works_of(batch, **options):
    model = meta500.models.unet(n=1, batch=batch, size=32)
    with meta500.network(model, backend="generated", threads=2, target="avx2", **options) as net:
        plan, _, _ = net.planned(Form(("logits",), (("image", (batch, 3, 32, 32)),)))
    return model, kernel_works(plan)


@pytest.mark.parametrize("winograd", [True, False])
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_operations_are_those_of_the_direct_convolutions(batch, winograd):
    """All threads together on one image, images one by one, and small pictures side by side."""
    model, works = works_of(batch, winograd=winograd)
    types, seen = model.graph.types(), set()
    for op in model.graph.operations:
        if op.op_type not in ("Conv", "ConvTranspose"):
            continue
        n, channels, height, width = types[op.Y].shape
        weight = model.graph.initializers[op.W].shape
        # Every output element of these up-convolutions (2 x 2, stride 2) meets one tap per input channel.
        per_element = math.prod(weight[1:]) if op.op_type == "Conv" else weight[0]
        found = [w for w in works if op.name in w.origin.replace(";", " ").split() and w.operations]
        for work in found:
            assert work.operations == 2 * n * channels * height * width * per_element, work
            seen.add(work.kind)
        # Only the smallest pictures of a single image are not blocked.
        assert len(found) == 1 or (batch < 8 and op.name.startswith(("bottom", "decoder4.up", "encoder4")))
    assert seen == ({"stencil", "Winograd"} if winograd else {"stencil"})
    assert {w.kind for w in works} <= set(KINDS)
    assert all((w.operations is not None) == (w.kind in PRODUCT_KINDS) for w in works)


@pytest.mark.parametrize("batch", [1, 2])
def test_data_are_counted_once_per_image(batch):
    _, works = works_of(batch)
    by_name = {w.name: w for w in works}
    # The image, the two channels of the result, their weights and biases.
    assert by_name["encoder1_relu1"].data_bytes == batch * 4 * (3 * 32 * 32 + 2 * 32 * 32 + 2 * 3 * 9 + 2)
    # Four elements for one.
    assert by_name["encoder1_pool"].data_bytes == batch * 4 * 2 * (32 * 32 + 16 * 16)
    # A concatenation of four channels, and four channels of the result.
    assert by_name["decoder1_relu1"].data_bytes == batch * 4 * ((4 + 4) * 32 * 32 + 4 * 4 * 9 + 4)


# -- tables ---------------------------------------------------------------------------------------------------

WORKS = [
    KernelWork("conv", "Winograd", "Winograd F(4, 3) down on 16 lanes", "Conv conv", 12_000_000_000, 10**6),
    KernelWork("weights", "dual", "dual on 16 lanes", "adjoint", 2_000_000_000, 10**6),
    KernelWork("pool", "map", "map", "AveragePool pool", None, 4 * 10**9),
]
SECONDS = np.array([[0.04, 0.02, 0.04], [0.04, 0.02, 0.04], [0.08, 0.02, 0.04]])
FOUND = Found(
    Plan("unet-0", "training", threads=2, rounds=3),
    "unet-0",
    Limits(
        100e9,
        20e9,
        90e9,
        (
            Roof(PEAK, "product", "numpy", "float32", 2, (180e9, 160e9, 150e9)),
            Roof(PEAK, "product", "numpy", "float32", 1, (100e9,)),
            Roof(BANDWIDTH, "copy", "torch", "", 2, (20e9,)),
        ),
    ),
    [Profile(WITH_WINOGRAD, WORKS, SECONDS, [0.125, 0.125, 0.25], [0.95, 0.5, 0.98])],
    [0.1, 0.125, 0.2],
)


def test_lines_of_kernels():
    frame = tables.kernel_frame(FOUND)
    assert list(frame["kernel"]) == ["conv", "pool", "weights"]
    conv, pool, weights = frame.to_dict("records")
    assert conv["time_ms"] == pytest.approx(40) and weights["time_ms"] == pytest.approx(20)
    assert conv["share_of_kernels"] == pytest.approx(0.4) and conv["share_of_step"] == pytest.approx(0.32)
    # 12 GFLOP in 40 ms by two cores: 150 GFLOP/s each, more than the peak.
    assert conv["speed_gflop_per_s_per_core"] == pytest.approx(150)
    assert conv["share_of_peak"] == pytest.approx(1.5) and weights["share_of_peak"] == pytest.approx(0.5)
    assert math.isnan(pool["share_of_peak"]) and math.isnan(pool["operations_gflop"])
    assert pool["data_rate_gb_per_s_per_core"] == pytest.approx(50)
    assert conv["time_quartile1_ms"] == pytest.approx(40) and conv["time_quartile3_ms"] == pytest.approx(60)


def test_summary_of_convolutions_and_step():
    (line,) = tables.summary_frame(FOUND).to_dict("records")
    assert line["products_gflop"] == pytest.approx(14)
    assert line["step_ms"] == pytest.approx(125) and line["kernels_ms"] == pytest.approx(100)
    assert line["products_ms"] == pytest.approx(60)
    assert (line["products_low_ms"], line["products_high_ms"]) == pytest.approx((60, 100))
    assert line["products_gflop_per_s_per_core"] == pytest.approx(14 / 0.06 / 2)
    assert line["products_share_of_peak"] == pytest.approx(14 / 0.06 / 2 / 100)
    assert line["products_share_of_kernels"] == pytest.approx(0.6)
    assert line["kernels_share_of_step"] == pytest.approx(0.8)
    assert line["stopwatches_cost"] == pytest.approx(0.25)


def test_tables_show_both_forms(tmp_path):
    direct = Profile(DIRECT, WORKS[1:], SECONDS[:, 1:], [0.25] * 3, [0.85] * 3)
    both = Found(FOUND.plan, FOUND.title, FOUND.limits, [*FOUND.profiles, direct], FOUND.plain)
    frame = tables.kernel_frame(both)
    console = Console(width=150)
    with console.capture() as capture:
        console.print(tables.limits_table(both))
        console.print(tables.kernel_table(both, frame, both.profiles[0], 2))
        console.print(tables.kinds_table(both, frame))
        console.print(tables.summary_table(both, tables.summary_frame(both)))
    shown = " ".join(capture.get().split())
    for part in (
        "180 GFLOP/s",
        "90 GFLOP/s",
        "2 longest of 3 kernels",
        "150%",
        "116.7%",
        "winograd=False",
        "+25.0%",
    ):
        assert part in shown, part
    assert tables.warning(tables.summary_frame(FOUND)) == ""
    assert "a processor for 85% of a step" in tables.warning(tables.summary_frame(both))
    names = {path.name for path in tables.write(both, tmp_path / "new", 20)}
    assert names == {"kernels.csv", "summary.csv"} | {
        f"{name}.{kind}" for name in ("kernels", "kernels-direct") for kind in ("png", "pdf")
    }
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be written"):
        tables.write(both, tmp_path / "file", 20)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net": "unet-9"}, "unknown network 'unet-9'"),
        ({"net": "resnet18", "quick": True}, "unknown network 'resnet18'"),
        ({"phase": "train"}, "unknown phase 'train'.*training"),
        ({"rounds": 0}, "rounds 0"),
        ({"threads": 0}, "threads 0"),
        ({"threads": 100_000}, "threads 100000 must be 1 to"),
    ],
)
def test_bad_plans_are_refused(changes, message):
    options = {"net": "unet-0", "phase": "training", "threads": 1, "rounds": 3, **changes}
    with pytest.raises(UserError, match=message):
        Plan(**options).chosen()


# -- the script -----------------------------------------------------------------------------------------------


def script(*options):
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "kernels.py"), *options],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.slow
def test_the_script_measures_a_small_network(tmp_path):
    options = ("--net", "digits_cnn", "--threads", "1", "--rounds", "2", "--direct", "--quick")
    done = script(*options, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "Limits of this machine" in done.stdout and "their share of the peak" in done.stdout
    frame, summary = (pd.read_csv(tmp_path / name) for name in ("kernels.csv", "summary.csv"))
    assert {"kernel", "kind", "time_ms", "share_of_kernels", "speed_gflop_per_s_per_core"} <= set(
        frame.columns
    )
    assert set(frame["form"]) == {WITH_WINOGRAD, DIRECT}
    for form, lines in frame.groupby("form"):
        assert lines["share_of_kernels"].sum() == pytest.approx(1)
        assert lines["kernel"].is_unique and (lines["time_ms"] >= 0).all()
        assert lines["time_ms"].is_monotonic_decreasing
        products = lines[lines["operations_gflop"].notna()]
        assert set(products["kind"]) <= set(PRODUCT_KINDS) and (products["share_of_peak"] > 0).all()
        assert ("Winograd" in set(lines["kind"])) == (form == WITH_WINOGRAD)
    # Stopwatches inside of a step can't show more than the step took.
    assert summary["kernels_share_of_step"].between(0, 1, inclusive="neither").all()
    assert summary["processor_share"].between(0, 1.1).all()
    assert summary["products_gflop"].nunique() == 1 and (summary["peak_gflop_per_s_per_core"] > 1).all()
    assert (tmp_path / "kernels.png").stat().st_size > 10_000
    assert (tmp_path / "kernels-direct.pdf").read_bytes().startswith(b"%PDF")


def test_the_script_tells_what_is_wrong():
    done = script("--net", "unet-9")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: unknown network 'unet-9'. Did you mean 'unet-")
