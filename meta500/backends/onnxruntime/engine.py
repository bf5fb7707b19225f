"""ONNX Runtime itself: what it can load, how it is set up, and its errors in words that name the node."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any, NoReturn

import onnx
import onnxruntime
from onnx import helper

from meta500.errors import UserError, choose
from meta500.graph.model import Model
from meta500.graph.operation import Operation
from meta500.graph.visitor import unsupported
from meta500.graph.writer import model_to_proto

BACKEND = "onnxruntime"
OPTIMIZATIONS = {
    "none": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}
_ML = "ai.onnx.ml"
# Only what is fatal: everything else reaches the user as an exception.
_QUIET = 4
# Before this version of the file format initializers had to be listed as inputs.
_OLDEST_IR = 4
_PLACES = (
    r"node with name '(#\d+)",
    r'In Node, \("(#\d+)',
    r"[Nn]ode:? ?\((#\d+)",
    r"Name:'(#\d+)",
    r"[Nn]ode:? ?'?(#\d+)",
)


def parse_device(name: str) -> tuple[str, list[Any]]:
    """The device's name ("cpu", "cuda:0") and the execution providers for it.

    Raises:
        UserError: an unknown device, or this ONNX Runtime has no provider for it.
    """
    match = re.fullmatch(r"(cpu|cuda)(?::(\d+))?", str(name))
    if match is None or (match[1] == "cpu" and match[2]):
        raise UserError(f"unknown device '{name}'; choose cpu, cuda or cuda:N")
    if match[1] == "cpu":
        return "cpu", ["CPUExecutionProvider"]
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise UserError(
            f"device '{name}': this ONNX Runtime has no CUDA provider "
            "(it comes with the package onnxruntime-gpu); choose cpu"
        )
    index = int(match[2] or 0)
    providers = [("CUDAExecutionProvider", {"device_id": index, "use_tf32": 0}), "CPUExecutionProvider"]
    return f"cuda:{index}", providers


def settings(optimization: str = "none", threads: int | None = None) -> Any:
    """Session options.

    Raises:
        UserError: an unknown level of optimization.
    """
    level = OPTIMIZATIONS[choose("optimization", optimization, OPTIMIZATIONS)]
    found = onnxruntime.SessionOptions()
    found.graph_optimization_level = level
    found.log_severity_level = _QUIET
    # Threads that go on spinning after a run would slow down whatever is measured next.
    found.add_session_config_entry("session.force_spinning_stop", "1")
    if threads is not None:
        found.intra_op_num_threads = found.inter_op_num_threads = threads
    return found


def load(model: Model, options: Any, providers: list[Any], where: str = "") -> Any:
    """An ``onnxruntime.InferenceSession`` of ``model``.

    The model is stamped with the lowest version of its operator sets that gives every node the meaning that
    it has: ONNX Runtime refuses newer stamps whatever the nodes are.

    Raises:
        UnsupportedOperation: ONNX Runtime does not run a node.
        UserError: it does not load the model for another reason.
    """
    try:
        data = stamped(model).SerializeToString()
    except ValueError as error:
        raise UserError(
            f"{where or model.name}: the {BACKEND} backend takes models up to 2 GiB: {error}"
        ) from None
    try:
        return onnxruntime.InferenceSession(data, options, providers=providers)
    except Exception as error:  # its exceptions share no base class
        refuse(error, model.graph.operations, f"{where or model.name}: ONNX Runtime does not load the model")


def stamped(model: Model) -> onnx.ModelProto:
    """``model`` as ONNX Runtime reads it, its nodes named #0, #1, ... to be found again in messages."""
    newest, newest_ir = newest_versions()
    needed: dict[str, int] = {}
    for op in model.graph.walk():
        needed[op.domain] = max(op.since_version, needed.get(op.domain, 1))
    imports = {**model.opset_imports}
    imports[""] = max(min(imports.get("", newest), newest), needed.get("", 1))
    if _ML in imports and _ML in needed:
        imports[_ML] = needed[_ML]
    proto = model_to_proto(replace(model, opset_imports=imports))
    for index, node in enumerate(proto.graph.node):
        node.name = f"#{index}"
    proto.ir_version = min(max(proto.ir_version, _OLDEST_IR), newest_ir)
    return proto


@functools.cache
def newest_versions() -> tuple[int, int]:
    """The newest versions of ai.onnx and of the file format that this ONNX Runtime loads, found by trying."""

    def loads(opset: int, ir_version: int) -> bool:
        value = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
        graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "probe", value[:1], value[1:])
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version
        )
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(), settings(), providers=["CPUExecutionProvider"]
            )
        except Exception:
            return False
        return True

    opset = next((v for v in range(onnx.defs.onnx_opset_version(), 13, -1) if loads(v, 8)), 13)
    return opset, next((v for v in range(int(onnx.IR_VERSION), 8, -1) if loads(opset, v)), 8)


def refuse(error: Exception, operations: list[Operation], what: str, running: bool = False) -> NoReturn:
    """Raise what an exception of ONNX Runtime says.

    Raises:
        UnsupportedOperation: it is about one node, or there is only one.
        UserError: it is not, or it came while the network was ``running``: then the values may be at fault.
    """
    text = reason(error)
    for pattern in _PLACES:
        match = re.search(pattern, text)
        if match is None or int(match[1][1:]) >= len(operations):
            continue
        found = operations[int(match[1][1:])]
        break
    else:
        if len(operations) != 1:
            raise UserError(f"{what}: {text}") from None
        found = operations[0]
    text = re.sub(r"#\d+", found.name or found.op_type, text)
    if running:
        raise UserError(f"{found.label}: {what}: {text}") from None
    raise unsupported(found, BACKEND, text) from None


def reason(error: Exception) -> str:
    """What an exception says, in one line, without error numbers and places in ONNX Runtime's own source."""
    text = " ".join(str(error).split())
    text = re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", text)
    signature = r"[^()]*?onnxruntime::[^()]*\([^()]*\)(?: const)?(?:::<lambda\([^()]*\)>)?(?: \[with .*?\])? "
    text = re.sub(rf"\S*/onnxruntime_src/\S+ (?:{signature})?", "", text)
    return text[:600]
