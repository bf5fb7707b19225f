"""DeepBench's shapes: against published ones, and against independent computations."""

import numpy as np
import pytest
import torch

from meta500.benchmarks.operators.plan import Plan
from meta500.benchmarks.operators.sweep_runner import measure_problem
from meta500.benchmarks.operators.sweeps import SAMPLES, SWEEPS, disagreement, obstacle, problems, smallest
from meta500.errors import UserError


def test_published_shapes_are_there():
    """Rows of the tables in DeepBench's README: convolutions (W, H, C, N, K, S, R, pads, strides) and products."""
    convolutions = {p.name for p in problems("deepbench-conv")}
    assert {
        "speech-n4-c1-161x700-k32-5x20-s2-p0",
        "vision-n8-c3-224x224-k64-3x3-s1-p1",
        "vision-n16-c3-224x224-k64-7x7-s2-p3",
        "face-n8-c64-54x54-k64-3x3-s1-p1",
        "vision-n16-c512-7x7-k512-3x3-s1-p1",
    } <= convolutions
    products = {p.name for p in problems("deepbench-gemm")}
    assert {
        "speech-m1760-n128-k1760-NN",
        "speech-m7680-n64-k2560-NN",
        "speech-m2560-n64-k2560-NN",
        "speech-m1760-n7133-k1760-NT",
        "speech-m5124-n9124-k1760-NN",
        "speech-m3072-n128-k1024-TN",
    } <= products


@pytest.mark.parametrize("sweep", SWEEPS)
def test_names_are_unique_and_shapes_fit_together(sweep):
    found = problems(sweep)
    assert len({p.name for p in found}) == len(found)
    assert {s for p in found for s in p.sets} == {"training", "server", "device"}
    for problem in found:
        assert all(size > 0 for shape in (*problem.inputs.values(), problem.output) for size in shape)
        if problem.operator == "Conv":
            # torch works the output's shape out for itself, without computing anything.
            x, w = (torch.empty(shape, device="meta") for shape in problem.inputs.values())
            strides, pads = problem.attributes["strides"], problem.attributes["pads"][:2]
            assert torch.conv2d(x, w, stride=strides, padding=pads).shape == problem.output


def test_a_problem_is_what_torch_computes():
    (conv,) = problems("deepbench-conv", ["ocr-n1-c16-24x240-k32-3x3-s1-p1"])
    data = conv.data("float32")
    x, w = (torch.from_numpy(a).double() for a in data.values())
    exact = torch.conv2d(x, w, padding=1).numpy()
    places = np.array([[0, 0, 0, 0], [0, 31, 23, 239], [0, 5, 11, 100]])
    np.testing.assert_allclose(conv.exact(data, places), exact[tuple(places.T)], rtol=1e-12)
    assert conv.error(data, exact) < 1e-12
    assert conv.error(data, exact + 1) > 0.1
    assert 0.5 < exact.std() < 2
    assert conv.counts("float32")[0].flops == 2 * exact.size * 16 * 9
    (product,) = problems("deepbench-gemm", ["speech-m512-n16-k512-NT"])
    data = product.data("float32")
    a, b = data.values()
    exact = a.astype("float64") @ b.astype("float64").T
    assert product.error(data, exact) < 1e-12
    assert product.counts("float64")[0].flops == 2 * 512 * 16 * 512


def test_choosing_shapes():
    assert len(problems("deepbench-gemm", sets=["device"])) < len(problems("deepbench-gemm"))
    assert all("device" in p.sets for p in problems("deepbench-conv", sets=["device"]))
    few = smallest(problems("deepbench-gemm"))
    assert len(few) == 10
    assert max(p.counts("float32")[0].flops for p in few) <= 1e9
    with pytest.raises(UserError, match="nothing_like_it"):
        problems("deepbench-conv", ["nothing_like_it"])
    with pytest.raises(UserError, match="deepbench-conv"):
        problems("deepbench-con")


def test_what_does_not_fit_is_left_out_with_the_need():
    (large,) = problems("deepbench-gemm", ["speech-m5124-n9124-k4096-NN"])
    assert obstacle(large, "float32", memory=None, peak=None, calls=5, budget=1) is None
    resource, needed, reason = obstacle(large, "float32", memory=1e8, peak=None, calls=5, budget=1)
    assert (resource, needed) == ("memory", large.memory("float32"))
    assert "0.1 GB are free" in reason
    resource, needed, _ = obstacle(large, "float32", memory=1e12, peak=1e9, calls=5, budget=1)
    assert resource == "time"
    assert needed == pytest.approx(5 * 2 * 5124 * 9124 * 4096 / 1e9)


def test_disagreement_looks_at_every_element():
    a = np.ones((3000, 2000), "float32")
    b = a.copy()
    b[-1, -1] = 2
    assert disagreement(a, a) == 0
    assert disagreement(b, a) == 1.0
    with pytest.raises(UserError, match="shape"):
        disagreement(a, a[1:])


def test_rows_of_a_shape():
    (problem,) = problems("deepbench-gemm", ["speech-m512-n16-k512-NN"])
    rows = []
    plan = Plan(sweep="deepbench-gemm", gradients=True, time=False)
    measure_problem(plan, problem, "float32", None, rows.append)
    found = {(r.quantity, r.backend): r for r in rows}
    assert {q for q, _ in found} == {"max_relative", "disagreement", "gradient_error"}
    assert all(r.verdict == "ok" and r.error <= r.tolerance for r in rows)
    assert all(r.shape == "512x512 * 512x16" for r in rows)
    assert SAMPLES <= 512


def test_float16_on_numpy_is_left_out_with_the_reason():
    (problem,) = problems("deepbench-gemm", ["speech-m512-n1-k512-NN"])
    rows = []
    plan = Plan(sweep="deepbench-gemm", time=False)
    measure_problem(plan, problem, "float16", None, rows.append)
    assert [(r.quantity, r.backend, r.verdict) for r in rows] == [
        ("skipped", "numpy", "not_compared"),
        ("max_relative", "torch", "ok"),
    ]
    assert "BLAS" in rows[0].note
