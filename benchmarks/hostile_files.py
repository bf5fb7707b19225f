"""Files that somebody could upload instead of a model; none of them may be taken, and none may do harm."""

from __future__ import annotations

import io
import os
import pickle
import random
import secrets
import tempfile
import zipfile
from collections.abc import Callable
from typing import Any

import onnx
from onnx import TensorProto, helper

import meta500

# What a pickle among them would make, if anybody loaded it: a new name in every process, so that nothing that
# an earlier one left is taken for it.
TRACE = os.path.join(tempfile.gettempdir(), f"meta500-was-here-{secrets.token_hex(8)}")


def valid() -> bytes:
    """A small model that can be trained."""
    return bytes(meta500.models.mlp(batch="N").to_proto().SerializeToString())


def model(nodes: list[Any], initializers: list[Any] = (), **more: Any) -> bytes:  # type: ignore[assignment]
    """A model of one float input x and one output y."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph(nodes, "g", [x], [y], list(initializers))
    opsets = [helper.make_opsetid(more.get("domain", ""), more.get("opset", 18))]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=more.get("functions", []))
    return bytes(proto.SerializeToString())


def external(location: str) -> bytes:
    """A model whose weight is said to be in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def external_attribute() -> bytes:
    """The same in an attribute."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1])
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    return model(
        [helper.make_node("Constant", [], ["c"], value=tensor), helper.make_node("Add", ["x", "c"], ["y"])]
    )


def declared(dims: list[int]) -> bytes:
    """A model with a weight whose shape says far more than there is."""
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=dims, raw_data=b"\0" * 16)
    return model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor])


def nested(depth: int) -> bytes:
    """Graphs in attributes of nodes in graphs, and so on, as raw bytes: protobuf would not write them."""
    inner = b""
    for _ in range(depth):
        attribute = b"\x0a\x01b" + _field(6, inner) + b"\xa0\x01\x05"
        inner = _field(1, _field(4, b"If") + _field(5, attribute))
    return b"\x08\x09" + _field(7, inner) + _field(8, b"\x10\x12")


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class _Command:
    """What a pickle would run, if anybody loaded it."""

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return os.system, (f"touch {TRACE}",)


def _zip(names: list[str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in names:
            archive.writestr(name, b"\0" * 100_000)
    return out.getvalue()


def _calls(first: str, second: str) -> Any:
    node = helper.make_node(second, ["a"], ["b"], domain="f")
    return helper.make_function("f", first, ["a"], ["b"], [node], [helper.make_opsetid("f", 1)])


def _cut(draw: random.Random) -> bytes:
    data = valid()
    return data[: draw.randrange(20, len(data) - 200)]


def _patched(old: bytes, new: bytes) -> bytes:
    data = model([helper.make_node("Relu", ["x"], ["y"])])
    assert old in data
    return data.replace(old, new)


KINDS: dict[str, Callable[[random.Random], bytes]] = {
    "empty": lambda draw: b"",
    "random": lambda draw: draw.randbytes(draw.randrange(1, 100_000)),
    "zeros": lambda draw: bytes(draw.randrange(1, 100_000)),
    "text": lambda draw: b"<script>alert(1)</script>" * draw.randrange(1, 100),
    "truncated": _cut,
    "zip": lambda draw: _zip(["../../etc/passwd", "a.onnx"]),
    "zip bomb": lambda draw: _zip([str(i) for i in range(500)]),
    "pickle": lambda draw: pickle.dumps([_Command()] * draw.randrange(1, 9)),
    "torch archive": lambda draw: _zip(["archive/data.pkl", "archive/version"]),
    "elf": lambda draw: b"\x7fELF\x02\x01\x01" + draw.randbytes(5000),
    "huge length": lambda draw: b"\x08\x09\x3a" + _varint(2 ** draw.randrange(31, 63)) + b"\0" * 100,
    "huge shape": lambda draw: declared([2 ** draw.randrange(20, 31)] * draw.randrange(2, 4)),
    "negative shape": lambda draw: declared([-draw.randrange(1, 2**40)]),
    "external": lambda draw: external("weights.bin"),
    "external above": lambda draw: external("../" * draw.randrange(1, 20) + "etc/passwd"),
    "external device": lambda draw: external(draw.choice(["/dev/zero", "/dev/stdin", "/proc/self/mem"])),
    "external attribute": lambda draw: external_attribute(),
    "nested": lambda draw: nested(draw.randrange(60, 3000)),
    "unknown operator": lambda draw: model([helper.make_node("Nothing", ["x"], ["y"])]),
    "unknown domain": lambda draw: model(
        [helper.make_node("Run", ["x"], ["y"], domain="evil")], domain="evil"
    ),
    "future opset": lambda draw: model(
        [helper.make_node("Relu", ["x"], ["y"])], opset=draw.randrange(99, 10**9)
    ),
    "cycle": lambda draw: model(
        [helper.make_node("Add", ["x", "y"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    ),
    "dangling": lambda draw: model([helper.make_node("Relu", ["nowhere"], ["y"])]),
    "written twice": lambda draw: model([helper.make_node("Relu", ["x"], ["y"])] * 2),
    "no graph": lambda draw: bytes(onnx.ModelProto(ir_version=9).SerializeToString()),
    "no text": lambda draw: _patched(b"Relu", b"\xff\xfe\xff\xfe"),
    "function calls itself": lambda draw: model(
        [helper.make_node("A", ["x"], ["y"], domain="f")],
        domain="f",
        opset=1,
        functions=[_calls("A", "B"), _calls("B", "A")],
    ),
}
