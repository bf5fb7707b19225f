"""The plain PyTorch modules compute what the builder's networks do, in every way in which they are run."""

import numpy as np
import pytest
import torch

from meta500.backends.network import network
from meta500.benchmarks.plain_torch import plain_inference_action, plain_module, plain_step_action
from meta500.benchmarks.subjects import prepared
from meta500.errors import UserError

SUBJECTS = [
    ("digits_cnn", {"batch": 4}),
    ("unet", {"n": 1, "batch": 2, "size": 16}),
    ("resnet18", {"batch": 3, "size": 32, "classes": 5, "small_images": True}),
    ("resnet18", {"batch": 3, "size": 64, "classes": 5}),
]


@pytest.mark.parametrize(("name", "options"), SUBJECTS)
def test_loss_gradients_and_logits_are_those_of_the_network(name, options):
    subject = prepared(name, options)
    x, y = (torch.from_numpy(subject.inputs[key]) for key in ("image", "label"))
    with network(subject.model, backend="torch", precision="float64") as net:
        inputs = {"image": subject.inputs["image"].astype(np.float64), "label": subject.inputs["label"]}
        logits = net.inference({"image": inputs["image"]}, outputs=["logits"])["logits"]
        loss = net.inference_and_backprop(inputs, outputs=["loss"])["loss"]
        gradients = dict(
            zip(net.get_params(), net.fetch_tensors([g for _, g in net.gradient()]), strict=True)
        )
    module = plain_module(name, subject.model, **options).double()
    found = torch.nn.functional.cross_entropy(module(x.double()), y)
    found.backward()
    assert found.item() == pytest.approx(float(loss), rel=1e-12)
    parameters = dict(module.named_parameters())
    assert parameters.keys() == gradients.keys()
    for key, gradient in gradients.items():
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(parameters[key].grad.numpy(), gradient, rtol=0, atol=1e-10 * scale)
    module = plain_module(name, subject.model, **options).double().eval()
    np.testing.assert_allclose(
        module(x.double()).detach().numpy(), logits, rtol=0, atol=1e-10 * np.abs(logits).max()
    )


def losses(step, count=4):
    return [step() for _ in range(count)]


def test_channels_last_and_fused_adam_train_like_our_network():
    subject = prepared("unet", {"n": 0, "batch": 2, "size": 32})
    runs = []
    for channels_last in (False, True):
        module = plain_module("unet", subject.model, n=0)
        step = plain_step_action(module, **subject.inputs, channels_last=channels_last)
        runs.append(losses(step))
        memory = torch.channels_last if channels_last else torch.contiguous_format
        assert module.encoder1.conv2.weight.is_contiguous(memory_format=memory)
    with network(subject.model, backend="numpy") as net:
        optimizer = net.native_optimizer("adam", learning_rate=1e-3)
        exact = losses(lambda: float(optimizer.train(subject.inputs, outputs=["loss"])["loss"]))
    assert exact[0] > exact[-1]
    for run in runs:
        np.testing.assert_allclose(run, exact, rtol=1e-5)


def test_inference_is_the_same_in_channels_last():
    subject = prepared("unet", {"n": 0, "batch": 2, "size": 32})
    module = plain_module("unet", subject.model, n=0)
    plain, last = (
        plain_inference_action(module, subject.inputs["image"], channels_last=c)() for c in (False, True)
    )
    np.testing.assert_allclose(last, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_compiled_step_trains_like_the_eager_one():
    subject = prepared("digits_cnn", {"batch": 8})
    runs = []
    for compiled in (False, True):
        module = plain_module("digits_cnn", subject.model)
        runs.append(losses(plain_step_action(module, **subject.inputs, compiled=compiled)))
    np.testing.assert_allclose(runs[1], runs[0], rtol=1e-5)


def test_what_has_no_plain_form_or_other_weights_is_refused():
    digits = prepared("digits_cnn", {"batch": 2})
    with pytest.raises(UserError, match="unknown plain PyTorch model 'lenet'.*digits_cnn, resnet18, unet"):
        plain_module("lenet", digits.model)
    with pytest.raises(UserError, match="(?s)plain unet: .*encoder1"):
        plain_module("unet", digits.model, n=0)


def test_weights_in_double_precision_make_a_double_module():
    subject = prepared("unet", {"n": 0, "batch": 1, "size": 16, "dtype": "float64"})
    module = plain_module("unet", subject.model, n=0)
    assert all(parameter.dtype == torch.float64 for parameter in module.parameters())
    with network(subject.model, backend="numpy") as net:
        loss = float(net.inference_and_backprop(subject.inputs, outputs=["loss"])["loss"])
    step = plain_step_action(module, **subject.inputs)
    assert step() == pytest.approx(loss, rel=1e-13)
