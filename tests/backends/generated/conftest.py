"""Running one node as an interpreted program, forward and backward, against the numpy backend in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import meta500
from meta500.backends.generated.adjoint import differentiate
from meta500.backends.generated.interpret import run
from meta500.backends.generated.ir import Program
from meta500.backends.generated.lower import lower
from meta500.graph import load
from meta500.graph.passes import infer_types


def model_of(
    op_type: str,
    opset: int,
    inputs: Sequence[np.ndarray | None],
    constants: Mapping[int, np.ndarray],
    n_outputs: int,
    weighted: Mapping[int, np.ndarray],
    domain: str,
    attributes: Mapping[str, Any],
) -> meta500.Model:
    """One node with inputs x0, x1, ... and outputs out0, ...; "loss" is the sum of outputs times weights."""
    names = [f"x{i}" for i in range(max([len(inputs), *(i + 1 for i in constants)]))]
    given = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
    fixed = {f"x{i}": np.asarray(x) for i, x in constants.items()}
    operands = [n if n in given or n in fixed else "" for n in names]
    results = [f"out{i}" for i in range(n_outputs)]
    nodes = [helper.make_node(op_type, operands, results, domain=domain, name="node", **attributes)]
    stored = [onnx.numpy_helper.from_array(x, n) for n, x in fixed.items()]
    for i, weight in weighted.items():
        stored.append(onnx.numpy_helper.from_array(np.asarray(weight), f"weight{i}"))
        nodes.append(helper.make_node("Mul", [f"out{i}", f"weight{i}"], [f"product{i}"]))
        keep = {"keepdims": 0}
        nodes.append(helper.make_node("ReduceSum", [f"product{i}"], [f"part{i}"], **keep))
    if weighted:
        nodes.append(helper.make_node("Sum", [f"part{i}" for i in weighted], ["loss"]))
    kinds = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given.items()
    ]
    outputs = [onnx.ValueInfoProto(name=n) for n in (*results, *(["loss"] if weighted else []))]
    opsets = [helper.make_opsetid("", opset)]
    if domain:
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(domain, opset)]
    graph = helper.make_graph(nodes, op_type, kinds, outputs, stored)
    return load(helper.make_model(graph, opset_imports=opsets, ir_version=10))


@pytest.fixture(scope="session")
def lowered() -> Callable[..., Program]:
    """``lowered(op_type, opset, inputs, constants={}, n_outputs=1, domain="", **attributes)``: the program."""

    def build(
        op_type: str,
        opset: int,
        inputs: Sequence[Any],
        constants: Any = None,
        n_outputs: int = 1,
        domain: str = "",
        **attributes: Any,
    ) -> Program:
        model = model_of(op_type, opset, inputs, constants or {}, n_outputs, {}, domain, attributes)
        return lower(infer_types(model, strict=False), list(model.outputs), [])

    return build


@pytest.fixture(scope="session")
def same() -> Callable[..., tuple[list[np.ndarray], Program]]:
    """``same(op_type, opset, inputs, constants={}, n_outputs=1, gradient=True, ...)``.

    Checks that the outputs of the interpreted program and the gradients of all its floating-point inputs are those
    of the numpy backend; returns the outputs and the differentiated program. ``weighted`` says which outputs
    the differentiated loss is made of.
    """

    def compare(
        op_type: str,
        opset: int,
        inputs: Sequence[Any],
        constants: Mapping[int, Any] | None = None,
        n_outputs: int = 1,
        gradient: bool = True,
        weighted: Sequence[int] = (0,),
        wrt: Sequence[int] | None = None,
        method: str = "auto",
        domain: str = "",
        tolerance: float = 1e-10,
        **attributes: Any,
    ) -> tuple[list[np.ndarray], Program]:
        constants = {i: np.asarray(x) for i, x in (constants or {}).items()}
        plain = model_of(op_type, opset, inputs, constants, n_outputs, {}, domain, attributes)
        fed = {f"x{i}": x for i, x in enumerate(inputs) if x is not None}
        with meta500.network(plain, backend="numpy") as net:
            values = net.inference(fed)
        rng = np.random.default_rng(5)
        weights = {}
        if gradient:
            weights = {i: np.asarray(rng.standard_normal(values[f"out{i}"].shape)) for i in weighted}
        model = model_of(op_type, opset, inputs, constants, n_outputs, weights, domain, attributes)
        places = [i for i, x in enumerate(inputs) if x is not None and x.dtype.kind == "f"]
        names = [f"x{i}" for i in (places if wrt is None else wrt)]
        typed = infer_types(model, strict=False)
        program = lower(typed, list(model.outputs), [f"weight{i}" for i in weights])
        if gradient:
            program = differentiate(program, "loss", names, method=method)
        found = run(program, {**fed, **{n: a for n, a in model.graph.initializers.items() if "weight" in n}})
        for i in range(n_outputs):
            out = found[program.outputs[f"out{i}"]]
            assert out.shape == values[f"out{i}"].shape
            np.testing.assert_allclose(
                out, values[f"out{i}"], rtol=tolerance, atol=tolerance, err_msg=f"out{i}"
            )
        if gradient:
            with meta500.network(model, backend="numpy") as net:
                net.inference_and_backprop(fed, loss="loss", wrt=names)
                wanted = net.fetch_tensors([f"grad/{n}" for n in names])
            for name, gradient_ in zip(names, wanted, strict=True):
                np.testing.assert_allclose(
                    found[program.gradients[name]], gradient_, rtol=tolerance, atol=tolerance, err_msg=name
                )
        return [found[program.outputs[f"out{i}"]] for i in range(n_outputs)], program

    return compare
