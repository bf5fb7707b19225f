"""Comparison of a network with a PyTorch module that has the same parameter names."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from meta500.backends.network import network

STATISTICS = ("running_mean", "running_var")


def perturb(model):
    """Normalisation parameters and running statistics other than 0 and 1."""
    rng = np.random.default_rng(5)
    norms = [op for op in model.graph.operations if op.op_type == "BatchNormalization"]
    for op in norms:
        for key in (op.scale, op.B, op.input_mean, op.input_var):
            value = model.graph.initializers[key]
            changed = value + rng.uniform(0.1, 0.4, value.shape)
            model.graph.initializers[key] = changed.astype(value.dtype)
    return model


def with_weights(module, model):
    """``module`` in float64 with the parameters and statistics of ``model``, which must have the same names."""
    module = module.double()
    assert set(model.parameters) == {key for key, _ in module.named_parameters()}
    kept = {key for key, _ in module.named_buffers() if key.endswith(STATISTICS)}
    assert kept == {key for key in model.graph.initializers if key.endswith(STATISTICS)}
    values = {key: torch.tensor(model.graph.initializers[key]) for key in (*model.parameters, *kept)}
    module.load_state_dict(values, strict=False)
    return module


def feeds(model, seed=0):
    """Random images and labels that fit ``model``."""
    rng = np.random.default_rng(seed)
    image, logits = model.inputs["image"], model.outputs["logits"].shape
    return {
        "image": rng.normal(size=image.shape).astype(image.dtype),
        "label": rng.integers(0, logits[1], model.inputs["label"].shape),
    }


def run(model, backend, inputs, *, inference=True):
    """Outputs of inference (if wanted), outputs of a training step, and gradients by parameter."""
    with network(model, backend=backend) as net:
        inferred = dict(net.inference(inputs)) if inference else {}
        trained = dict(net.inference_and_backprop(inputs))
        pairs = net.gradient()
        values = net.fetch_tensors([gradient for _, gradient in pairs])
        gradients = {key: np.array(value) for (key, _), value in zip(pairs, values, strict=True)}
    assert list(gradients) == list(model.parameters)
    return inferred, trained, gradients


def same_gradients(found, wanted, tolerance):
    """Within ``tolerance`` of the largest gradient of the layer: some parameters, such as the shift of a
    normalisation behind which only linear layers and another normalisation come, have none but rounding."""
    largest = {}
    for key, value in wanted.items():
        layer = key.rpartition(".")[0]
        largest[layer] = max(largest.get(layer, 0.0), np.abs(value).max())
    for key, value in wanted.items():
        bound = tolerance * largest[key.rpartition(".")[0]]
        assert bound > 0, key
        np.testing.assert_allclose(found[key], value, rtol=0, atol=bound, err_msg=key)


@pytest.fixture
def agrees():
    """(model without dropout, module that gives outputs by name, weights of losses by output, backend):
    forward, loss and gradients of both modes agree to 1e-10 in float64."""

    def check(model, module, weights, backend):
        module = with_weights(module, perturb(model))
        inputs = feeds(model)
        inferred, trained, gradients = run(model, backend, inputs)
        image, label = (torch.tensor(inputs[key]) for key in ("image", "label"))
        for training, ours in ((False, inferred), (True, trained)):
            module.train(training)
            outputs = module(image)
            assert set(outputs) == set(weights)
            loss = sum(weight * F.cross_entropy(outputs[key], label) for key, weight in weights.items())
            for key, value in outputs.items():
                np.testing.assert_allclose(ours[key], value.detach(), rtol=1e-10, atol=1e-10, err_msg=key)
            np.testing.assert_allclose(ours["loss"], loss.item(), rtol=1e-10)
        loss.backward()
        same_gradients(gradients, {key: p.grad.numpy() for key, p in module.named_parameters()}, 1e-10)

    return check


@pytest.fixture
def generated_agrees():
    """(model without dropout): the generated backend's outputs and gradients in a training step, and its
    outputs in inference where wanted, are those of the numpy backend, which is compared with PyTorch."""

    def check(model, tolerance=1e-10, *, inference=False):
        inputs = feeds(perturb(model))
        wanted, found = (run(model, b, inputs, inference=inference) for b in ("numpy", "generated"))
        for ours, theirs in zip(found[not inference : 2], wanted[not inference : 2], strict=True):
            assert set(ours) == set(theirs) == set(model.outputs)
            for key, value in theirs.items():
                np.testing.assert_allclose(ours[key], value, rtol=tolerance, atol=tolerance, err_msg=key)
        same_gradients(found[2], wanted[2], tolerance)

    return check
