"""Calling torch rules the way the visitor does, without graph and network."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper

from meta500.backends.torch.operators import rules
from meta500.errors import UserError

_SPECIAL = {
    np.dtype(ml_dtypes.bfloat16): (np.uint16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e4m3fnuz): (np.uint8, torch.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
    np.dtype(ml_dtypes.float8_e5m2fnuz): (np.uint8, torch.float8_e5m2fnuz),
}


def tensor_of(array: Any) -> torch.Tensor:
    """A tensor of its own with the array's values; refuses what torch has no dtype for, as feeding does."""
    if isinstance(array, torch.Tensor):
        return array
    array = np.asarray(array)
    if array.dtype in _SPECIAL:
        bits, dtype = _SPECIAL[array.dtype]
        return torch.tensor(array.view(bits)).view(dtype)
    try:
        return torch.tensor(array)
    except TypeError:
        raise UserError(f"torch has no dtype for {array.dtype}") from None


def array_of(tensor: torch.Tensor) -> np.ndarray:
    """The values of a tensor."""
    for special, (bits, dtype) in _SPECIAL.items():
        if tensor.dtype is dtype:
            width = torch.uint8 if bits is np.uint8 else torch.uint16
            return tensor.detach().contiguous().view(width).numpy().view(special)
    return tensor.detach().numpy()


def literal(value: Any) -> Any:
    """A host input: an array's values as nested tuples, anything else as it is."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(map(literal, value)) if isinstance(value, list) else value


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.detach().reshape(-1)
    return flat.contiguous().view(torch.uint8) if flat.numel() else torch.zeros(0)


def run_rule(
    op_type: str,
    since_version: int,
    inputs: Sequence[Any],
    attributes: dict[str, Any] | None = None,
    *,
    domain: str = "",
    n_outputs: int = 1,
    rng: torch.Generator | None = None,
    host_lists: bool = False,
) -> tuple[torch.Tensor, ...]:
    """Outputs of the rule that covers this version, given arrays or tensors; checks that inputs stay as they are."""
    entry = rules.find(domain, op_type, since_version)
    assert entry is not None, f"no rule for {op_type} version {since_version}"
    arguments: list[Any] = []
    for position, value in enumerate(inputs):
        if value is None:
            arguments.append(None)
        elif position in entry.host_positions:
            host = literal(value)
            arguments.append(list(host) if host_lists and isinstance(host, tuple) else host)
        else:
            arguments.append(tensor_of(value))
    keywords = dict(attributes or {})
    unknown = set(keywords) - entry.rule.attributes
    assert not unknown, f"{op_type}: rule {entry.rule.__name__} takes no {unknown}"
    injected = {"n_outputs": n_outputs, "since_version": since_version, "rng": rng}
    keywords.update({name: injected[name] for name in entry.rule.injected})
    before = [a.detach().clone() if isinstance(a, torch.Tensor) else None for a in arguments]
    result = entry.rule.function(*arguments, **keywords)
    for argument, copy in zip(arguments, before, strict=True):
        if copy is not None and copy.device.type != "meta":
            assert torch.equal(_bytes(argument), _bytes(copy)), f"{op_type} changed an input"
    assert isinstance(result, tuple) == (n_outputs > 1), "one output is a tensor, several are a tuple"
    return result if isinstance(result, tuple) else (result,)


def run_node(
    node: onnx.NodeProto, opset: int, inputs: dict[str, np.ndarray], **keywords: Any
) -> tuple[torch.Tensor, ...]:
    """Outputs of the rule for a node of a model with this opset."""
    attributes: dict[str, Any] = {}
    for attribute in node.attribute:
        value = helper.get_attribute_value(attribute)
        if isinstance(value, onnx.TensorProto):
            value = tensor_of(numpy_helper.to_array(value))
        elif isinstance(value, bytes):
            value = value.decode()
        elif not isinstance(value, (int, float)):
            value = tuple(v.decode() if isinstance(v, bytes) else v for v in value)
        attributes[attribute.name] = value
    since = onnx.defs.get_schema(node.op_type, opset, node.domain).since_version
    operands = [inputs[name] if name else None for name in node.input]
    results = list(node.output)
    while not results[-1]:
        results.pop()
    return run_rule(
        node.op_type,
        since,
        operands,
        attributes,
        domain=node.domain,
        n_outputs=len(results),
        **keywords,
    )


@pytest.fixture(scope="session")
def rule() -> Callable[..., tuple[torch.Tensor, ...]]:
    """``rule(op_type, since_version, inputs, attributes, n_outputs=1)``: a tuple of output tensors."""
    return run_rule


@pytest.fixture(scope="session")
def node_rule() -> Callable[..., tuple[torch.Tensor, ...]]:
    """``node_rule(node, opset, inputs by name)``: a tuple of output tensors."""
    return run_node


@pytest.fixture(scope="session")
def values() -> Callable[[torch.Tensor], np.ndarray]:
    """The values of a tensor as an array, bfloat16 included."""
    return array_of


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    """Small tensors: more threads only get in each other's way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
