"""A C++ operator on torch tensors: their memory is passed as it is, gradients through autograd."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from meta500.backends.torch.compilation import outside_of_graphs
from meta500.backends.torch.tensors import to_numpy, torch_dtype
from meta500.custom.inference import output_types
from meta500.custom.library import MISSING, View, fill, view
from meta500.errors import UserError
from meta500.graph.types import TensorType

if TYPE_CHECKING:
    import numpy as np

    from meta500.custom.definition import Definition
    from meta500.custom.library import Library


def torch_rule(definition: Definition, library: Library) -> Callable[..., Any]:
    """The torch rule of a C++ operator.

    Tensors on the CPU are passed without a copy if they are contiguous; those of other devices are copied to
    the host, and results back. The number of threads is PyTorch's.
    """

    def run(*tensors: torch.Tensor | None, node_label: str = "", **attributes: Any) -> Any:
        with _labelled(node_label):
            found = _LibraryFunction.apply(  # type: ignore[no-untyped-call]
                definition, library, node_label, attributes, *tensors
            )
        return found if len(definition.signature.outputs) > 1 else found[0]

    rule = functools.update_wrapper(run, definition.function)
    declared = inspect.signature(definition.function)
    label = inspect.Parameter("node_label", inspect.Parameter.KEYWORD_ONLY, default="")
    rule.__signature__ = declared.replace(  # type: ignore[attr-defined]
        parameters=[*(p for p in declared.parameters.values() if p.name != label.name), label]
    )
    return outside_of_graphs(rule)


@contextmanager
def _labelled(label: str) -> Iterator[None]:
    """A context whose errors name the node."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{label}: {error}") from None


@functools.cache
def _numpy_dtype(dtype: torch.dtype) -> np.dtype:
    return to_numpy(torch.empty(0, dtype=dtype)).dtype


def _on_host(tensor: torch.Tensor | None) -> torch.Tensor | None:
    return None if tensor is None else tensor.detach().to("cpu").contiguous()


def _view(tensor: torch.Tensor | None, name: str = "a tensor") -> View:
    if tensor is None:
        return MISSING
    return view(tensor.data_ptr(), _numpy_dtype(tensor.dtype), tuple(tensor.shape), name)


class _LibraryFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        definition: Definition,
        library: Library,
        label: str,
        attributes: Mapping[str, Any],
        *tensors: torch.Tensor | None,
    ) -> tuple[torch.Tensor, ...]:
        given = [None if t is None else TensorType(_numpy_dtype(t.dtype), tuple(t.shape)) for t in tensors]
        attributes = {name: attributes.get(name) for name in definition.signature.attributes}
        types = library.known(output_types(definition, given, attributes))
        device = next((t.device for t in tensors if t is not None), torch.device("cpu"))
        inputs = [_on_host(t) for t in tensors]
        outputs = [torch.empty(shape, dtype=torch_dtype(dtype)) for dtype, shape in types]
        fill([to_numpy(t) for t in outputs])
        library.run_forward(
            [_view(t, f"input {index}") for index, t in enumerate(inputs)],
            [_view(t) for t in outputs],
            attributes,
            torch.get_num_threads(),
        )
        found = tuple(t.to(device) for t in outputs)
        ctx.library, ctx.label, ctx.attributes = library, label, attributes
        ctx.save_for_backward(*tensors, *found)
        ctx.count = len(tensors)
        ctx.mark_non_differentiable(*(t for t in found if not t.is_floating_point()))
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[Any, ...]:
        saved = [_on_host(t) for t in ctx.saved_tensors]
        inputs, outputs = saved[: ctx.count], saved[ctx.count :]
        device = next((t.device for t in ctx.saved_tensors if t is not None), torch.device("cpu"))
        given = [
            torch.zeros_like(out) if g is None else _on_host(g)
            for g, out in zip(cotangents, outputs, strict=True)
            if out is not None
        ]
        needs = ctx.needs_input_grad[4:]
        wanted = [
            torch.zeros_like(t) if t is not None and need and t.is_floating_point() else None
            for t, need in zip(inputs, needs, strict=True)
        ]
        with _labelled(ctx.label):
            ctx.library.run_backward(
                [_view(t) for t in inputs],
                [_view(t) for t in outputs],
                [_view(t) for t in given],
                [_view(t) for t in wanted],
                ctx.attributes,
                torch.get_num_threads(),
            )
        return (None, None, None, None, *(None if t is None else t.to(device) for t in wanted))
