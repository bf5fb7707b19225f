"""The torch backend on a CUDA device; skipped where there is none."""

import numpy as np
import pytest
import torch

import meta500
from meta500.optimizers import Adam

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def batch(model, seed=0):
    rng = np.random.default_rng(seed)
    image, label = model.inputs["image"], model.inputs["label"]
    return {
        "image": rng.standard_normal(image.shape).astype(image.dtype),
        "label": rng.integers(0, 3, label.shape),
    }


def losses(model, steps=5, native=False, **options):
    data = batch(model)
    with meta500.network(model, **options) as net:
        optimizer = net.native_optimizer("adam") if native else Adam(net, learning_rate=1e-3)
        return np.array([optimizer.train(data, outputs=["loss"])["loss"] for _ in range(steps)])


@pytest.mark.parametrize("mode", ["eager", "compile"])
@pytest.mark.parametrize("native", [False, True])
def test_training_agrees_with_numpy_in_float64(mode, native):
    model = meta500.models.unet(n=0, batch=2, size=32, dtype="float64")
    expected = losses(model, backend="numpy")
    found = losses(model, backend="torch", device="cuda", mode=mode, native=native)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_batch_normalisation_agrees_with_numpy():
    model = meta500.models.resnet18(batch=2, size=32, classes=3, small_images=True, dtype="float64")
    expected = losses(model, 2, backend="numpy")
    np.testing.assert_allclose(losses(model, 2, backend="torch", device="cuda"), expected, rtol=1e-9)


def test_float32_is_float32_unless_tf32_is_asked_for():
    model = meta500.models.unet(n=3, batch=1, size=64)
    data = batch(model)
    with meta500.network(model, backend="numpy", precision="float64") as net:
        exact = net.inference(data)["logits"]
    errors = {}
    before = torch.backends.cudnn.allow_tf32
    for tf32 in (False, True):
        with meta500.network(model, backend="torch", device="cuda", tf32=tf32) as net:
            errors[tf32] = np.abs(net.inference(data)["logits"] - exact).max() / np.abs(exact).max()
            assert ("tf32" in net.mode) == tf32
    assert torch.backends.cudnn.allow_tf32 == before
    assert errors[False] < 1e-5 < errors[True]


def test_tensors_stay_on_the_device():
    model = meta500.models.mlp(batch=4)
    with meta500.network(model, backend="torch", device="cuda") as net:
        assert net.device.startswith("cuda")
        net.inference_and_backprop(batch(model))
        for name in (*net.get_params(), *(g for _, g in net.gradient())):
            assert net.native(name).device.type == "cuda"
        name = net.get_params()[0]
        with pytest.raises(meta500.UserError, match="lies on cuda"):
            net.assign(name, torch.zeros(net.native(name).shape))


def test_dropout_and_host_fallback_run():
    from meta500.graph import Builder, ops

    b = Builder("host")
    x = b.input("x", "float32", (1000,))
    b.output(b.add(ops.Dropout, x, follow_mode=True), "y")
    b.output(b.add(ops.ReduceSum, "y", keepdims=0), "loss")
    b.output(b.add(ops.Trilu, b.add(ops.Reshape, x, b.constant(np.array([10, 100])))), "upper")
    ones = np.ones(1000, np.float32)
    with meta500.network(b.build(), backend="torch", device="cuda") as net:
        assert {c.how for c in net.coverage()} == {"native", "host"}
        np.testing.assert_array_equal(net.inference({"x": ones})["upper"], np.triu(ones.reshape(10, 100)))
        dropped = net.inference_and_backprop({"x": ones}, wrt=["x"], outputs=["y"])["y"]
        assert 350 < (dropped == 0).sum() < 650
        np.testing.assert_array_equal(net.fetch_tensors(["grad/x"])[0], dropped)


def test_deterministic_losses_repeat_bit_for_bit():
    model = meta500.models.unet(n=0, batch=2, size=32)
    options = {"backend": "torch", "device": "cuda", "deterministic": True}
    assert losses(model, **options).tobytes() == losses(model, **options).tobytes()
