"""One network on several backends: is it right, and how fast is it?

Give the path of an ONNX file with fixed shapes to look at your own network.
"""

import sys

import numpy as np

import meta500
from meta500.metrics import error_norms, interleave, ratio_interval

model = meta500.load(sys.argv[1]) if len(sys.argv) > 1 else meta500.models.unet(n=0, batch=1, size=64)
rng = np.random.default_rng(0)
inputs = {}
for name, value in model.inputs.items():
    if value.dtype.kind == "f":
        inputs[name] = rng.standard_normal(value.shape).astype(value.dtype)
    else:
        inputs[name] = np.zeros(value.shape, value.dtype)

reference = meta500.network(model, backend="numpy", precision="float64").inference(inputs)
networks = {
    "numpy": meta500.network(model, backend="numpy"),
    "torch": meta500.network(model, backend="torch"),
    "torch, channels last": meta500.network(model, backend="torch", memory_format="channels_last"),
}
timings = interleave({name: lambda net=net: net.inference(inputs) for name, net in networks.items()})
for name, net in networks.items():
    found = net.inference(inputs)
    error = max(error_norms(found[output], reference[output]).max_relative for output in reference)
    ratio = ratio_interval(timings[name].samples, timings["torch"].samples)
    print(
        f"{name:22} {1e3 * timings[name].median:8.3f} ms   "
        f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}] of torch   error {error:.1e}"
    )
