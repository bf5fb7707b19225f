"""The forms of a network that are generated: training steps and inference, with their schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meta500.backends.generated.forms import Form
from meta500.backends.generated.network import GeneratedNetwork
from meta500.backends.generated.schedule import Schedule
from meta500.errors import UserError
from meta500.graph import Model, training_form

Shapes = Mapping[str, tuple[int, ...]]
TRAINING, INFERENCE = "training", "inference"


@dataclass(frozen=True)
class Planned:
    """A form with its schedule.

    Attributes:
        form: what is computed.
        schedule: how.
        parameters, gradients: names of the packed tensors, "" where there are none.
    """

    form: Form
    schedule: Schedule
    parameters: str
    gradients: str


@dataclass(frozen=True)
class Scores:
    """The class scores that an accuracy is computed from.

    Attributes:
        scores: value of the graph, (N, classes, ...).
        label: input with the classes, int64 (N, ...).
        ignored: label that does not count, or None.
    """

    scores: str
    label: str
    ignored: int | None


def training(net: GeneratedNetwork, shapes: Shapes, optimizer: str = "", loss: str = "loss") -> Form:
    """A training step: loss, gradients of all parameters, new statistics, and the optimizer's update.

    Raises:
        UserError: the network has no such loss, or no parameters.
    """
    if loss not in net.model.outputs:
        raise UserError(
            f"network '{net.model.name}' has no output '{loss}' to train; its outputs are "
            f"{', '.join(net.model.outputs)}. Give it a loss: cross_entropy or mean_squared_error"
        )
    if not net.get_params():
        raise UserError(f"network '{net.model.name}' has no parameters to train")
    _, updates = training_form(net.model)
    needed = net.needs((loss,))
    fed = tuple((name, shape) for name, shape in shapes.items() if name in needed)
    return Form((loss,), fed, loss, tuple(net.get_params()), False, tuple(updates.items()), optimizer)


def inference(net: GeneratedNetwork, shapes: Shapes, outputs: tuple[str, ...] = ()) -> Form:
    """All outputs that are no loss, or those that are named."""
    wanted = (
        outputs or tuple(name for name in net.model.outputs if name != "loss") or tuple(net.model.outputs)
    )
    needed = net.needs(wanted)
    return Form(wanted, tuple((name, shape) for name, shape in shapes.items() if name in needed))


def plan(net: GeneratedNetwork, form: Form) -> Planned:
    """The schedule of a form."""
    return Planned(form, *net.planned(form))


def scores(model: Model, loss: str = "loss") -> Scores | None:
    """The scores of a softmax cross entropy whose labels are an input; None for other losses."""
    op: Any = model.graph.producers().get(loss)
    if op is None or op.op_type != "SoftmaxCrossEntropyLoss" or op.operands[1] not in model.inputs:
        return None
    label = model.inputs[op.operands[1]]
    if getattr(getattr(label, "dtype", None), "name", "") != "int64":
        return None
    return Scores(op.operands[0], op.operands[1], op.ignore_index)
