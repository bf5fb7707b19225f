"""The process of one variant: it makes the network, then runs as many steps as it is asked to.

Only what the variant needs is imported, so that its peak memory is its own: plain PyTorch takes the weights
from a file and loads nothing of the builder, the generated backend loads no PyTorch.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import psutil

from meta500.benchmarks.workers import serve

TRAINING, INFERENCE = "training_step", "inference"
GENERATED_NAME, EXASTENCILS_NAME = "generated", "exastencils"
Step = Callable[[], Any]
_BETA1 = 0.9

_state: dict[str, Any] = {}


def make(job: Mapping[str, Any]) -> dict[str, float]:
    """Make the network and its optimizer; runs nothing.

    Args:
        job: "backend", "threads", "channels_last", "compiled"; "phase"; "model" and "model_options" as for
            ``meta500.models.create``; "inputs" and "weights", paths of .npz files.

    Returns:
        Seconds of "imports" and of making; "resident", bytes of memory between the two.
    """
    inputs = _arrays(job["inputs"])
    begin = time.perf_counter()
    build = _generated if job["backend"] in (GENERATED_NAME, EXASTENCILS_NAME) else _plain_torch
    ready = build(job, inputs)
    imported = time.perf_counter() - begin
    resident = psutil.Process().memory_info().rss
    begin = time.perf_counter()
    _state["step"] = ready()
    return {"imports": imported, "seconds": time.perf_counter() - begin, "resident": resident}


def steps(order: Mapping[str, Any]) -> dict[str, Any]:
    """Run steps.

    Args:
        order: "count" of timed steps; "lead_in": seconds of steps before, outside of the clock (0: none).

    Returns:
        "seconds" of all timed steps together, and "found": loss of the last training step, or the root mean
        square of the logits of the last inference.
    """
    step: Step = _state["step"]
    gc.collect(1)
    gc.disable()
    try:
        if order["lead_in"] > 0:
            awake = time.perf_counter() + order["lead_in"]
            step()
            while time.perf_counter() < awake:
                step()
        result = None
        begin = time.perf_counter_ns()
        for _ in range(order["count"]):
            result = None  # freed inside the clock, as in a loop of one's own
            result = step()
        seconds = (time.perf_counter_ns() - begin) * 1e-9
    finally:
        gc.enable()
    return {"seconds": seconds, "found": _number(result)}


def judge(order: Mapping[str, Any]) -> dict[str, Any]:
    """Error of the generated backend against numpy in float64, of logits or of loss and gradients.

    A training step is judged as it is timed, with Adam's update in it: after the first one Adam's first
    moment is the gradient times 1 - beta1.

    Args:
        order: "model" and "model_options", small enough for float64 in numpy; "phase"; "threads";
            "gradients": whether those of a training step are compared, or its loss alone.

    Returns:
        The columns of a row about it.
    """
    from meta500.benchmarks.networks import float64_reference, judged, worst_of
    from meta500.benchmarks.subjects import prepared
    from meta500.metrics.norms import compare

    subject = prepared(order["model"], order["model_options"])
    reference = float64_reference(subject)
    net, _ = subject.on({"backend": GENERATED_NAME, "threads": order["threads"]})
    with net:
        if order["phase"] == INFERENCE:
            return judged(subject, INFERENCE, net, reference)
        adam: Any = net.native_optimizer("adam", learning_rate=1e-3, beta1=_BETA1)
        loss = adam.train(subject.inputs, outputs=["loss"])["loss"]
        norms = [compare(loss, reference["loss"])]
        if order["gradients"]:
            moments = [adam.state[name]["first_moment"] for name, _ in net.gradient()]
            found = [(moment / (1 - _BETA1)).astype(moment.dtype) for moment in moments]
            norms += [compare(g, e) for g, e in zip(found, reference["gradients"], strict=True)]
        return worst_of(norms, subject)


def peak_memory(order: Mapping[str, Any]) -> int:
    """Highest resident memory of this process so far, in bytes."""
    from meta500.benchmarks.memory import high_water_mark

    return high_water_mark()


def _arrays(path: str) -> dict[str, np.ndarray]:
    with np.load(path) as file:
        return {name: file[name] for name in file.files}


def _number(result: Any) -> float:
    array = np.asarray(result, np.float64)
    return float(array) if array.ndim == 0 else float(np.sqrt(np.mean(array**2)))


def _generated(job: Mapping[str, Any], inputs: dict[str, np.ndarray]) -> Callable[[], Step]:
    from meta500.backends.network import backend_class, network
    from meta500.models import create

    model = create(job["model"], **job["model_options"])
    # The rules are imported when the first node is asked for; imports are no part of making.
    backend_class(GENERATED_NAME).node_coverage(model.graph.operations[0])

    through = job["backend"] == EXASTENCILS_NAME

    def ready() -> Step:
        options = {"toolchain": "exastencils"} if through else {}
        net = network(model, backend=GENERATED_NAME, threads=job["threads"], **options)
        if job["phase"] == INFERENCE:
            fed = {"image": inputs["image"]}
            return lambda: net.inference(fed, outputs=["logits"])["logits"]
        if through:
            from meta500.optimizers import Adam

            reference = Adam(net, learning_rate=1e-3)
            return lambda: float(reference.train(inputs)["loss"])
        optimizer = net.native_optimizer("adam", learning_rate=1e-3)
        return lambda: float(optimizer.train(inputs, outputs=["loss"])["loss"])

    return ready


def _plain_torch(job: Mapping[str, Any], inputs: dict[str, np.ndarray]) -> Callable[[], Step]:
    import torch

    # torch.optim imports the first when an optimizer is made; imports are no part of making.
    if job["phase"] == TRAINING:
        import torch._dynamo
    if job["compiled"]:
        import torch._inductor.compile_fx
    from meta500.benchmarks.plain_torch import loaded_module, plain_inference_action, plain_step_action

    torch.set_num_threads(job["threads"])
    weights = _arrays(job["weights"])

    def ready() -> Step:
        module = loaded_module(job["model"], weights, job["model_options"])
        how = {"channels_last": job["channels_last"], "compiled": job["compiled"]}
        if job["phase"] == INFERENCE:
            return plain_inference_action(module, inputs["image"], **how)
        return plain_step_action(module, inputs["image"], inputs["label"], **how)

    return ready


def main() -> None:
    """Serve until the parent is done."""
    serve({"make": make, "steps": steps, "judge": judge, "peak_memory": peak_memory})


if __name__ == "__main__":
    main()
