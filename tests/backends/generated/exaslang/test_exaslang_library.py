"""The generated backend through ExaStencils: what it refuses, and, where the generator is there, what it computes."""

from __future__ import annotations

import os

import numpy as np
import pytest

import meta500
from meta500.backends.generated.exaslang.execute import ProgramError, execute
from meta500.backends.generated.exaslang.generator import VARIABLE, generate
from meta500.backends.generated.exaslang.parse import parse
from meta500.errors import UserError
from meta500.graph import Builder, ops

PRESENT = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no ExaStencils")
FEW = min(2, len(os.sched_getaffinity(0)))


@pytest.fixture(scope="module")
def model() -> meta500.Model:
    return meta500.models.unet(n=0, batch=2, size=16, depth=2)


@pytest.fixture(scope="module")
def fed(model) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.standard_normal((2, 3, 16, 16)).astype("float32"),
        "label": rng.integers(0, 3, (2, 16, 16)),
    }


def network(model: meta500.Model, **options):
    return meta500.network(model, backend="generated", toolchain="exastencils", **options)


def test_the_generator_is_asked_for(model, fed, monkeypatch, tmp_path):
    monkeypatch.delenv(VARIABLE, raising=False)
    # What an earlier run generated must not be found.
    monkeypatch.setenv("META500_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("meta500.backends.generated.exaslang.generator.java", lambda: "true")
    with network(model) as net, pytest.raises(UserError, match=f"set {VARIABLE}"):
        net.inference_and_backprop(fed)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    with network(model) as net, pytest.raises(UserError, match="has no jar files"):
        net.inference_and_backprop(fed)


def test_java_is_asked_for(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="needs java"):
        generate(tmp_path, "network")


def test_a_generator_that_fails(model, fed, monkeypatch, tmp_path):
    """Its last lines are in the message, and nothing is kept."""
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'line 3: no layer 4' >&2\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "a.jar").write_text("")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("META500_CACHE", str(tmp_path / "cache"))
    for _ in range(2):
        with network(model) as net, pytest.raises(UserError, match="ended with 1:\nline 3: no layer 4"):
            net.inference_and_backprop(fed)


def test_native_optimizers_are_refused(model, fed):
    with network(model) as net, pytest.raises(UserError, match="reference optimizer"):
        net.native_optimizer("sgd", learning_rate=0.1).train(fed)


def test_gradients_of_inputs_are_refused(model, fed):
    with network(model) as net, pytest.raises(UserError, match="gradients of parameters.*image"):
        net.inference_and_backprop(fed, wrt=["image"])


def test_nodes_are_refused_by_name():
    b = Builder("dense")
    x = b.input("x", "float32", (2, 3))
    b.output(b.add(ops.Gemm, x, b.parameter("w", np.ones((3, 4), "float32"))))
    with network(b.build()) as net, pytest.raises(UserError, match="pictures"):
        net.inference({"x": np.ones((2, 3), "float32")})


def test_numbers_that_are_fed_are_refused():
    b = Builder("scaled")
    x, scale = b.input("x", "float32", (2, 3, 8, 8)), b.input("scale", "float32", ())
    b.output(b.add(ops.Mul, x, scale))
    fed = {"x": np.ones((2, 3, 8, 8), "float32"), "scale": np.float32(2)}
    with network(b.build()) as net, pytest.raises(UserError, match=r"'scale' of shape \[\]"):
        net.inference(fed)


def test_untrained_tensors_are_refused():
    b = Builder("shifted")
    x = b.input("x", "float32", (2, 3, 8, 8))
    b.output(b.add(ops.Sub, x, b.constant(np.arange(3, dtype="float32").reshape(3, 1, 1))))
    with network(b.build()) as net, pytest.raises(UserError, match="no file holds|no parameter"):
        net.inference({"x": np.ones((2, 3, 8, 8), "float32")})


def test_unknown_toolchain(model):
    with pytest.raises(UserError, match="compiler, exastencils"):
        meta500.network(model, backend="generated", toolchain="exastencil")


def test_the_toolchain_is_an_option_of_the_network(model):
    with network(model) as net:
        assert net.options["toolchain"] == "exastencils"
    with meta500.network(model, backend="generated") as net:
        assert "toolchain" not in net.options


@pytest.mark.parametrize(
    "branch",
    [
        "if ( f@2[0][0] > 0.0 ) { v = 1.0 } else { v = 2.0 }",
        "if ( f@2[0][0] > 0.0 ) { if ( f@2[0][1] > 0.0 ) { v = 1.0 } }",
    ],
)
def test_branches_that_vectorised_loops_get_wrong_are_found(branch):
    text = f"""Domain global< [0, 0] to [1, 1] >
Layout L< Matrix<Real, 1, 2>, Cell >@2 {{
  innerPoints     = [4, 4]
  duplicateLayers = [0, 0]
  ghostLayers     = [1, 1] with communication
}}
Field f< global, L, None >@2
Globals {{ Var g : Real = 0.0 }}
Function Application {{
  initGlobals ( )
  initFieldsWithZero ( )
  loop over f@2 {{
    Var v : Real = 0.0
    {branch}
    f@2[0][0] = v
  }}
}}
"""
    with pytest.raises(ProgramError, match="branch"):
        execute(parse(text))


@PRESENT
@pytest.mark.parametrize("threads", sorted({1, FEW}))
def test_gradients_and_training_are_those_of_numpy(model, fed, threads):
    with (
        network(model, precision="float64", threads=threads) as net,
        meta500.network(model, backend="numpy", precision="float64") as reference,
    ):
        for one in (net, reference):
            one.inference_and_backprop(fed)
        names = [gradient for _, gradient in reference.gradient()]
        pairs = zip(names, net.fetch_tensors(names), reference.fetch_tensors(names), strict=True)
        for name, ours, theirs in pairs:
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12, err_msg=name)
        losses = []
        for one in (net, reference):
            optimizer = meta500.optimizers.Adam(one, learning_rate=0.01)
            losses.append([float(optimizer.train(fed)["loss"]) for _ in range(3)])
        np.testing.assert_allclose(*losses, rtol=1e-10)
        outputs = [
            one.inference({"image": fed["image"]}, outputs=["logits"])["logits"] for one in (net, reference)
        ]
        np.testing.assert_allclose(*outputs, rtol=1e-8, atol=1e-10)


@PRESENT
def test_a_label_that_is_no_class_is_found(model, fed):
    with network(model, threads=1) as net:
        with pytest.raises(UserError, match="label"):
            net.inference_and_backprop({**fed, "label": fed["label"] + 1})
        net.inference_and_backprop(fed)
