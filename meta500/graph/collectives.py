"""Operations in which the processes of a grid take part together: halos of neighbours, and sums over all.

A network that is cut into blocks of the image (``meta500.distributed.spatial``) has these between the layers.
The processes belong to a group, which is known by name while the network runs
(``meta500.backends.process_grid``). Both operations are linear; their gradients are the transposed messages,
so that every process gets its part of the gradient of the sum of all processes' losses.
"""

from __future__ import annotations

from typing import Any

from onnx import TensorProto, TypeProto, defs

from meta500.errors import UserError
from meta500.graph.custom import DOMAIN, custom_operation
from meta500.graph.operation import Attribute, Operation, Signature

ROWS, COLUMNS = 0, 1
_FLOATS = ["tensor(float16)", "tensor(bfloat16)", "tensor(float)", "tensor(double)"]


def _schema(op_type: str, doc: str, signature: Signature, infer: Any) -> Any:
    """The ``onnx.defs.OpSchema`` of an operator with one input and one output of the same element type."""
    schema = defs.OpSchema
    made = schema(
        op_type,
        DOMAIN,
        1,
        doc,
        inputs=[schema.FormalParameter(signature.inputs[0].name, "T")],
        outputs=[schema.FormalParameter(signature.outputs[0].name, "T")],
        type_constraints=[("T", _FLOATS, "")],
        attributes=[
            schema.Attribute(a.name, getattr(schema.AttrType, a.kind), "", required=a.required)
            for a in signature.attributes.values()
        ],
    )
    return made.set_type_and_shape_inference_function(infer)


def _same_type(context: Any) -> None:
    """The output has the type of the input."""
    given = context.get_input_type(0)
    if given is not None:
        context.set_output_type(0, given)


def _extended_type(context: Any) -> None:
    """The output is longer along ``axis`` by what the neighbours send."""
    given = context.get_input_type(0)
    if given is None or given.tensor_type.elem_type == TensorProto.UNDEFINED:
        return
    found = TypeProto()
    found.CopyFrom(given)
    shape = found.tensor_type.shape

    def number(name: str) -> int:
        proto = context.get_attribute(name)
        return 0 if proto is None else int(proto.i)

    if found.tensor_type.HasField("shape") and -len(shape.dim) <= number("axis") < len(shape.dim):
        dimension = shape.dim[number("axis")]
        extra = number("before") + number("after")
        if dimension.HasField("dim_value"):
            dimension.dim_value += extra
        elif extra:
            dimension.Clear()
    context.set_output_type(0, found)


@custom_operation
class HaloExchange(Operation):
    """The block of a process, extended along one axis by cells of its neighbours in the grid of processes.

    Y = [last ``before`` cells of the previous process, X, first ``after`` cells of the next one]. At the same
    time the process sends its first ``send_before`` cells to the previous process and its last ``send_after``
    cells to the next one: one process' ``send_after`` is the next one's ``before``. Corners need two
    operations, the second on the result of the first.

    Input: X (T, rank > axis). Output: Y (T), longer along ``axis`` by before + after. T: float16, bfloat16,
    float, double. Attributes: ``axis`` (not negative); ``direction``, 0 for neighbours above and below, 1 for
    left and right; ``group``, the name of the grid of processes; ``tag`` of the messages, one per operation.
    """

    domain = DOMAIN
    op_type = "HaloExchange"
    signatures = (
        Signature(
            1,
            "X",
            "Y",
            (
                Attribute("axis", "INT", True),
                Attribute("direction", "INT", True),
                Attribute("before", "INT", False, 0),
                Attribute("after", "INT", False, 0),
                Attribute("send_before", "INT", False, 0),
                Attribute("send_after", "INT", False, 0),
                Attribute("group", "STRING", True),
                Attribute("tag", "INT", False, 0),
            ),
            minimum=1,
        ),
    )
    schema = _schema("HaloExchange", __doc__ or "", signatures[0], _extended_type)
    X: str
    Y: str | None = None
    axis: int
    direction: int
    before: int = 0
    after: int = 0
    send_before: int = 0
    send_after: int = 0
    group: str
    tag: int = 0

    def validate(self) -> None:
        """Raises:
        UserError: a negative width, axis or tag, or a direction other than 0 and 1.
        """
        super().validate()
        for name in ("axis", "before", "after", "send_before", "send_after", "tag"):
            if getattr(self, name) < 0:
                raise UserError(f"{self.label}: {name} is {getattr(self, name)}, it must be at least 0")
        if self.direction not in (ROWS, COLUMNS):
            raise UserError(f"{self.label}: direction is {self.direction}, not 0 (rows) or 1 (columns)")


@custom_operation
class AllReduce(Operation):
    """The sum of X over all processes of a grid; every process gets it.

    The gradient of X is the sum of the gradients of Y over all processes.

    Input: X (T, any shape, the same on all processes). Output: Y (T, the same shape). T: float16, bfloat16,
    float, double. Attribute: ``group``, the name of the grid of processes.
    """

    domain = DOMAIN
    op_type = "AllReduce"
    signatures = (Signature(1, "X", "Y", (Attribute("group", "STRING", True),), minimum=1),)
    schema = _schema("AllReduce", __doc__ or "", signatures[0], _same_type)
    X: str
    Y: str | None = None
    group: str
