"""A backend in one file: a Network class, registered under a name. This one runs onnx.reference."""

import numpy as np
from onnx.reference import ReferenceEvaluator

import meta500
from meta500.backends.network import NATIVE, Network, NodeCoverage, register


class ReferenceNetwork(Network):
    """Inference by onnx's own reference evaluator."""

    backend = "onnx-reference"

    def __init__(self, model, *, precision=None, threads=None, seed=0):
        super().__init__(model, precision=precision, threads=threads, seed=seed)
        self._tensors = dict(self.model.graph.initializers)
        self._rebuild()

    @classmethod
    def node_coverage(cls, op, types=None):
        return NodeCoverage(op.name, op.op_type, op.domain, op.since_version, NATIVE)

    def _rebuild(self):
        self._evaluator = ReferenceEvaluator(self.current_model().to_proto())

    def inference(self, inputs, outputs=None):
        wanted = self._select_outputs(inputs, outputs)
        fed = {name: self._as_input(name, value) for name, value in inputs.items()}
        self._check_shapes({name: array.shape for name, array in fed.items()})
        return dict(zip(wanted, self._evaluator.run(list(wanted), fed), strict=True))

    def inference_and_backprop(self, inputs, loss="loss", outputs=None, wrt=None, cotangent=None):
        raise meta500.UserError("onnx-reference has no gradients; use the numpy or torch backend")

    def native(self, name):
        return self._tensors[name]

    def assign(self, name, tensor):
        self._tensors[name] = tensor
        self._rebuild()

    def to_native(self, array):
        return array

    def to_numpy(self, tensor):
        return np.array(tensor)


register("onnx-reference", f"{__name__}:ReferenceNetwork")
model = meta500.models.mlp(batch=2, shape=(4,), hidden=(3,), classes=2, loss=False)
image = np.ones((2, 4), np.float32)
for backend in ("onnx-reference", "numpy"):
    with meta500.network(model, backend=backend) as network:
        print(backend, network.inference({"image": image})["logits"].ravel())
