"""Exact zeros in front of a Relu: black pictures and zero biases."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import meta500
from meta500.backends.generated.winograd import Winograd


@pytest.fixture(scope="module")
def batch():
    digits = load_digits()
    images = (digits.images[:64, None] / 16).astype(np.float32)
    return {"image": images, "label": digits.target[:64].astype(np.int64)}


def losses(backend, batch, steps):
    with meta500.network(meta500.models.digits_cnn(batch=64), backend=backend, threads=1) as net:
        optimizer = net.native_optimizer("adam", learning_rate=1e-3)
        return [float(optimizer.train(batch, outputs=["loss"])["loss"]) for _ in range(steps)]


def test_training_on_black_backgrounds_follows_numpy(batch):
    # With rounding where direct convolutions give exact zeros, losses differ by 5e-3 after these steps.
    np.testing.assert_allclose(losses("generated", batch, 44), losses("numpy", batch, 44), rtol=1e-5)


def forms(model, inputs):
    with meta500.network(model, backend="generated", threads=1) as net:
        net.inference_and_backprop(inputs, outputs=["loss"])
        (executable,) = net._executables.values()
        kernels = [kernel for step in executable.schedule.steps for kernel in step.kernels]
        forward = [kernel for kernel in kernels if not kernel.stage.origin.startswith("adjoint")]
        return [isinstance(kernel.nest, Winograd) for kernel in forward]


def test_zero_biases_keep_the_direct_form():
    rng = np.random.default_rng(0)
    inputs = {
        "image": rng.standard_normal((2, 3, 64, 64)).astype(np.float32),
        "label": rng.integers(0, 3, (2, 64, 64)),
    }
    zero = meta500.models.unet(n=3, batch=2, size=64, depth=1, initialization="kaiming_normal")
    other = meta500.models.unet(n=3, batch=2, size=64, depth=1, initialization="torch_default")
    assert not any(forms(zero, inputs))
    assert any(forms(other, inputs))
