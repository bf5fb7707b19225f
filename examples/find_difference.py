"""Find the node on which two backends differ: here the second activation of a network is wrong on purpose."""

from dataclasses import replace
from pathlib import Path

import meta500
from meta500.backends.network import register
from meta500.backends.numpy.network import NumpyNetwork
from meta500.benchmarks.differential import diff
from meta500.graph import ops


class FaultyNetwork(NumpyNetwork):
    """numpy, except that the node "relu2" lets a hundredth of the negative values through."""

    backend = "faulty"

    def __init__(self, model, **options):
        operations = [
            ops.LeakyRelu(*op.operands, *op.results, alpha=0.01, name=op.name, opset=21)
            if op.name == "relu2"
            else op
            for op in model.graph.operations
        ]
        super().__init__(model.with_graph(replace(model.graph, operations=operations)), **options)


register("faulty", f"{__name__}:FaultyNetwork")
model = meta500.models.digits_cnn(batch=4)

print("\n".join(diff(model, "torch", "numpy").summary()))

found = diff(model, "torch", "faulty", out=Path("runs/difference"))
print("\n".join(found.summary()))
for finding in found.findings:
    if finding.verdict == "differs":
        print(f"{finding.phase:8} {finding.node:8} {finding.value:8} max error {finding.max_absolute:.3g}")

# The case holds the one node, its inputs and what "faulty" made of them; `meta500 diff FOLDER` runs it again.
print(sorted(path.name for path in found.cases["forward"].rglob("*.*")))
