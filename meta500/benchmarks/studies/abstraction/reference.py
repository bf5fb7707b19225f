"""What all levels should give: the same steps in float64."""

from __future__ import annotations

import numpy as np

from meta500.benchmarks.studies.abstraction.level import INFERENCE, LEARNING_RATE, Job

NUMPY, TORCH = "numpy, float64", "PyTorch eager, float64"
# Multiply-adds of one inference up to which the reference is independent of PyTorch; numpy is slow.
NUMPY_MULTIPLY_ADDS = 2e9


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
        import torch

        from meta500.benchmarks.studies.abstraction.torch_session import TorchSession, eager

        session = TorchSession(job, eager, torch.float64)
        return np.stack([np.array(session.step(), np.float64) for _ in range(count)])
    from meta500.backends.network import network

    arrays = job.arrays()
    arrays["image"] = arrays["image"].astype(np.float64)
    with network(job.network(), backend="numpy", precision="float64") as net:
        if job.phase == INFERENCE:
            logits = net.inference({"image": arrays["image"]}, outputs=["logits"])["logits"]
            return np.stack([logits] * count)
        optimizer = net.native_optimizer("sgd", learning_rate=LEARNING_RATE)
        losses = [optimizer.train(arrays, outputs=["loss"])["loss"] for _ in range(count)]
        return np.asarray(losses, np.float64).reshape(count)
