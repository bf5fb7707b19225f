"""Forms: what one executable computes, and the program of stages that follows from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meta500.backends.generated.adjoint import differentiate, without_dead_stages
from meta500.backends.generated.exchange import exchanged
from meta500.backends.generated.fusion import fused
from meta500.backends.generated.ir import PARAMETER, REAL, WEIGHT, Program, Tensor
from meta500.backends.generated.kinks import exact_stages
from meta500.backends.generated.lower import lower
from meta500.backends.generated.packing import Packing, packed
from meta500.backends.generated.updates import with_update
from meta500.graph import Model, TensorType
from meta500.graph.passes import infer_types
from meta500.graph.types import is_floating

COTANGENT = "cotangent"


@dataclass(frozen=True)
class Form:
    """What one executable computes.

    ``loss`` is empty for inference; ``variables`` are differentiated by; ``shapes`` are those of the inputs;
    ``optimizer`` names the update that follows, if any. ``exchange``: gradients are reduced over ranks, in
    parts of so many bytes or more; 0 where they are not.
    """

    outputs: tuple[str, ...]
    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    loss: str = ""
    variables: tuple[str, ...] = ()
    cotangent: bool = False
    updates: tuple[tuple[str, str], ...] = ()
    optimizer: str = ""
    exchange: int = 0


def stages_of(form: Form, model: Model, parameters: Iterable[str], method: str) -> Program:
    """The stages of a form, forward and backward, before anything is joined.

    Args:
        form: the form.
        model: its graph, of training if there is a loss.
        parameters: names of the trainable parameters.
        method: how additions that may collide are done in backward.
    """
    model = with_shapes(model, dict(form.shapes))
    updates = dict(form.updates)
    program = lower(model, [*form.outputs, *updates.values()], external(model, parameters))
    for statistic, new in updates.items():
        program.updates[statistic] = program.outputs.pop(new)
    if form.loss:
        loss = program.outputs[form.loss]
        cotangent = None
        if form.cotangent:
            cotangent = program.unique(COTANGENT)
            program.tensors[cotangent] = replace(program.tensors[loss], name=cotangent, role="input")
        elif form.exchange:
            cotangent = WEIGHT
            program.tensors[WEIGHT] = replace(program.tensors[loss], name=WEIGHT, role="input")
        for name in form.variables:
            if name not in program.tensors:
                _add_unused(program, model, name)
        program = differentiate(program, loss, form.variables, cotangent=cotangent, method=method)
    wanted = [
        *program.outputs.values(),
        *program.gradients.values(),
        *program.updates.values(),
        *program.faults,
    ]
    return without_dead_stages(program, wanted)


def joined(
    stages: Program, form: Form, packing: Packing, with_zeros: tuple[str, ...], itemsize: int
) -> tuple[Program, str, str]:
    """Fused stages with packed parameters, reductions over ranks and the update of a form.

    Args:
        stages: those of :func:`stages_of`.
        form: the form.
        packing: of the parameters.
        with_zeros: parameters that have elements which are exactly 0.
        itemsize: bytes of one floating-point number.

    Returns:
        The program, and the names of its packed parameters and gradients ("" for none).
    """
    program = fused(stages)
    program.exact = exact_stages(program, with_zeros)
    before = set(program.tensors)
    program = packed(program, packing)
    new = [name for name in program.tensors if name not in before]
    parameters = next((n for n in new if program.tensors[n].role == PARAMETER), "")
    gradients = next((n for n in new if program.tensors[n].role != PARAMETER), "")
    if form.exchange:
        program = exchanged(program, packing, gradients, form.exchange, itemsize)
    if form.optimizer:
        program = with_update(program, form.optimizer, parameters, gradients)
    return program, parameters, gradients


def external(model: Model, parameters: Iterable[str]) -> list[str]:
    """Initializers that stay arrays of the network: all floating-point tensors that are no scalars."""
    parameters = set(parameters)
    return [
        name
        for name, array in model.graph.initializers.items()
        if name in parameters or (is_floating(array.dtype) and array.ndim > 0)
    ]


def _add_unused(program: Program, model: Model, name: str) -> None:
    """A variable that the outputs do not depend on: its gradient is zero."""
    shape = getattr(model.graph.types()[name], "shape", ())
    program.tensors[name] = Tensor(name, tuple(shape), REAL, PARAMETER)


def shapes_of(arrays: Mapping[str, np.ndarray]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """The shapes of arrays as a form has them."""
    return tuple((name, array.shape) for name, array in arrays.items())


def with_shapes(model: Model, shapes: Mapping[str, tuple[int, ...]]) -> Model:
    """The model with these shapes of its inputs, and the types that follow from them."""
    graph = model.graph
    inputs = dict(graph.inputs)
    changed = False
    for name, shape in shapes.items():
        declared = inputs[name]
        if isinstance(declared, TensorType) and declared.shape != tuple(shape):
            inputs[name] = replace(declared, shape=tuple(shape))
            changed = True
    if changed:
        outputs = {
            name: replace(t, shape=None) if isinstance(t, TensorType) and not t.static else t
            for name, t in graph.outputs.items()
        }
        graph = replace(graph, inputs=inputs, outputs=outputs, value_types={})
    return infer_types(model.with_graph(graph), strict=False)
