"""What all levels should give: the same steps in float64, and how well float32 can give the same."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meta500.benchmarks.studies.abstraction.level import CPU, INFERENCE, LEARNING_RATE, Job

if TYPE_CHECKING:
    from torch import nn

NUMPY, TORCH = "numpy, float64", "PyTorch eager, float64"
# Multiply-adds of one inference up to which the results are independent of PyTorch; numpy is slow. How a
# network is trained, and how sensitive that is to rounding, always comes from PyTorch.
NUMPY_MULTIPLY_ADDS = 2e9
# Of the loss, by which the first update is to lower it: enough to be seen in float32, and little enough not
# to overshoot, where the loss of the second step follows from the rounding of the first.
_DECREASE = 0.02
_SHAKES = 2
_RATES = (1e-20, 1e6)


@dataclass(frozen=True)
class Learning:
    """How a network is trained so that its first two losses say something about its gradients.

    Attributes:
        rate: learning rate of SGD; to first order the update by it lowers the loss by 2 %.
        loss, change: largest relative deviation of the first loss, and of its change by the update, when all
            weights are wrong by one eps of float32 at random.
    """

    rate: float
    loss: float = 0.0
    change: float = 0.0


def float64_results(job: Job, count: int, by: str) -> np.ndarray:
    """Results of the first steps.

    Args:
        job: what to run.
        count: of steps.
        by: "numpy, float64": this package's numpy backend, which shares no code with any level; or "PyTorch
            eager, float64".

    Returns:
        Logits (count, batch, classes) of inference, or losses (count,) of training; float64.
    """
    if by == TORCH:
        return _torch_results(job, count)
    from meta500.backends.network import network

    arrays = job.arrays()
    arrays["image"] = arrays["image"].astype(np.float64)
    with network(job.network(), backend="numpy", precision="float64") as net:
        if job.phase == INFERENCE:
            logits = net.inference({"image": arrays["image"]}, outputs=["logits"])["logits"]
            return np.stack([logits] * count)
        optimizer = net.native_optimizer("sgd", learning_rate=job.learning_rate)
        losses = [optimizer.train(arrays, outputs=["loss"])["loss"] for _ in range(count)]
        return np.asarray(losses, np.float64).reshape(count)


def reference(job: Job, count: int, by: str) -> tuple[np.ndarray, Learning]:
    """Results of the first steps, and how the network is trained for them.

    Args:
        job: what to run; training is done with a learning rate chosen for it.
        count: of steps; of training 2.
        by: as :func:`float64_results` takes it.
    """
    if job.phase == INFERENCE:
        return float64_results(job, count, by), Learning(job.learning_rate)
    job = replace(job, learning_rate=learning_rate(job))
    return float64_results(job, count, by), Learning(job.learning_rate, *sensitivity(job))


def learning_rate(job: Job) -> float:
    """The learning rate, to two digits, by which one update lowers the loss by 2 % to first order.

    Along the negative gradient g the loss falls by rate |g|^2. :data:`.level.LEARNING_RATE` where there is no
    gradient, or no finite one, or it is too small for such a rate.
    """
    norms: list[float] = []

    def keep(module: nn.Module) -> None:
        def add(gradient: Any) -> None:
            norms.append(float((gradient * gradient).sum()))

        for parameter in module.parameters():
            parameter.register_hook(add)

    loss = abs(float(_torch_results(job, 1, keep)[0]))
    squared = sum(norms)
    if not (squared > 0 and math.isfinite(squared) and math.isfinite(loss)):
        return LEARNING_RATE
    rate = float(f"{_DECREASE * loss / squared:.1e}")
    return rate if _RATES[0] <= rate <= _RATES[1] else LEARNING_RATE


def sensitivity(job: Job) -> tuple[float, float]:
    """How far float32 can take the first loss of training, and its change by the first update.

    All networks run on PyTorch, so that a difference between two references is none of this.

    Returns:
        The largest relative deviation of each over several networks, in float64, whose weights are each wrong
        by one eps of float32, up or down at random; infinite where a loss is not finite.
    """
    import torch

    eps = float(np.finfo(np.float32).eps)
    right = _torch_results(job, 2)
    worst = [0.0, 0.0]
    for seed in range(_SHAKES):
        generator = torch.Generator().manual_seed(seed)

        def shake(module: nn.Module, generator: torch.Generator = generator) -> None:
            with torch.no_grad():
                for parameter in module.parameters():
                    signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                    parameter.mul_(1 + eps * signs.to(parameter.dtype))

        found = _torch_results(job, 2, shake)
        pairs = ((found[0], right[0]), (found[1] - found[0], right[1] - right[0]))
        for place, (value, exact) in enumerate(pairs):
            deviation = float(abs(value - exact) / max(abs(exact), 1e-30))
            worst[place] = max(worst[place], deviation if math.isfinite(deviation) else math.inf)
    return worst[0], worst[1]


def _torch_results(job: Job, count: int, prepare: Callable[[nn.Module], None] | None = None) -> np.ndarray:
    import torch

    from meta500.benchmarks.studies.abstraction.torch_session import Tensors, TorchSession

    def lower(module: nn.Module, fed: Tensors) -> nn.Module:
        if prepare is not None:
            prepare(module)
        return module

    assert job.device == CPU
    session = TorchSession(job, lower, torch.float64)
    try:
        return np.stack([np.array(session.step(), np.float64) for _ in range(count)])
    finally:
        session.close()
