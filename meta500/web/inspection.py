"""Looking at what came from outside in a process of its own, ``python -m meta500.web.inspection``.

The process reads one JSON request from standard input and writes one JSON answer. Whatever a file does to the
parser, such as asking for all memory, never ending or crashing it, ends this process and nothing else.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from meta500.errors import UserError
from meta500.web.setups import DEFAULTS, HIDDEN, NAME, OPTIONS

# Names of values and operators of one model that are told.
_FEW = 200
# Characters of an unexpected error that are told.
_LONG = 500


def main() -> None:
    """Do the one task that standard input asks for."""
    request = json.load(sys.stdin)
    restrict(request["memory"], request["seconds"], request.get("files", 0))
    answer_to = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no part of the answer
    try:
        answer = TASKS[request["task"]](request)
    except UserError as error:
        answer = {"problem": _told(str(error), request)}
    except MemoryError:
        answer = {"problem": "needs more memory than this server allows"}
    except RecursionError:
        answer = {"problem": "is nested too deeply"}
    except Exception as error:  # a fault here, or in a library: told as what it is
        answer = {"crash": _told(f"{type(error).__name__}: {error}", request)[:_LONG]}
    with open(answer_to, "w", encoding="utf-8") as out:
        json.dump(answer, out)


def _told(text: str, request: Mapping[str, Any]) -> str:
    """A message with the name of the file for people in place of its path."""
    return text.replace(request["path"], request["shown"]) if request.get("path") else text


def restrict(memory: int, seconds: int, files: int) -> None:
    """Bound what this process can take: bytes of data, seconds of computing, bytes of a file that it writes
    (0: it writes none), no core dump."""
    import resource

    with contextlib.suppress(OSError):
        os.nice(5)  # runs that are measured go first
    limits = {
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: files,
        resource.RLIMIT_CORE: 0,
    }
    for what, most in limits.items():
        _, hard = resource.getrlimit(what)
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (most, most))


def upload(request: Mapping[str, Any]) -> dict[str, Any]:
    """What an uploaded file is: inputs, outputs, operators, and whether it can be trained.

    Raises:
        UserError: it is no ONNX model, or one whose tensors are in other files.
    """
    import onnx

    from meta500.graph import load

    data = Path(request["path"]).read_bytes()
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as error:  # protobuf's DecodeError has no stable home
        raise UserError(f"is no ONNX model ({type(error).__name__})") from None
    refuse_external(proto)
    model = load(proto)
    counts: dict[str, int] = {}
    for operation in model.graph.operations:
        name = f"{operation.domain}.{operation.op_type}" if operation.domain else operation.op_type
        counts[name[:NAME]] = counts.get(name[:NAME], 0) + 1
    problem = untrainable(model)
    initializers = model.graph.initializers
    return {
        "inputs": _values(model.inputs),
        "outputs": _values(model.outputs),
        "parameters": int(sum(initializers[name].size for name in model.parameters)),
        "operators": dict(sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:_FEW]),
        "trainable": not problem,
        "problem": problem,
    }


def refuse_external(proto: Any) -> None:
    """Refuse a model that names other files; its tensors must be in the file itself.

    Raises:
        UserError: names the tensor.
    """
    from onnx import TensorProto

    pending = [proto]
    while pending:
        message = pending.pop()
        if isinstance(message, TensorProto):
            if message.external_data or message.data_location == TensorProto.EXTERNAL:
                raise UserError(
                    f"tensor '{message.name[:NAME]}' is in another file: "
                    "save the model with its tensors inside"
                )
            continue
        for field, value in message.ListFields():
            if field.type == field.TYPE_MESSAGE:
                pending += value if field.is_repeated else (value,)


def untrainable(model: Any) -> str:
    """Why a model cannot be trained; "" where it can."""
    import numpy as np

    from meta500.graph.passes import training_form

    loss = model.outputs.get("loss")
    if "loss" not in model.outputs:
        found = ", ".join(list(model.outputs)[:5])
        return f"it has no output 'loss' to minimise; its outputs are: {found}"[: 2 * NAME]
    shape, dtype = getattr(loss, "shape", None), getattr(loss, "dtype", None)
    if any(isinstance(side, int) and side != 1 for side in shape or ()):
        return f"its output 'loss' must be a scalar, it has shape {list(shape or ())[:8]}"
    if dtype is not None and np.dtype(dtype).kind != "f":
        return f"its output 'loss' must be floating point, it is {dtype}"
    if not model.parameters:
        return "it has no parameters to train"
    try:
        training_form(model)
    except UserError as error:
        return str(error)
    return ""


def setup(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make everything that a training needs up to its first step.

    Raises:
        UserError: as ``meta500 train`` does.
    """
    from meta500.backends.network import network
    from meta500.benchmarks import training
    from meta500.metrics.runner import Runner

    given = request["setup"]
    options = {key: {k: _tupled(v) for k, v in given[key].items()} for key in OPTIONS}
    chosen = training.Setup(
        model=request["path"] or given["model"],
        dataset=given["dataset"],
        backend=given["backend"],
        optimizer=given["optimizer"],
        native=given["native"],
        epochs=given["epochs"],
        batch_size=given["batch_size"],
        seed=given["seed"],
        model_options=options["model_options"],
        dataset_options=options["dataset_options"],
        backend_options={} if given["threads"] is None else {"threads": given["threads"]},
        hyperparameters={"learning_rate": given["learning_rate"], **options["optimizer_options"]},
    )
    training.check_arguments(chosen, None, None)
    train_set, test_set = training.load_sets(chosen)
    model = training.load_model(chosen, train_set)
    train_set, test_set = (training.fitting_labels(model, part) for part in (train_set, test_set))
    problem = untrainable(model)
    if problem:
        raise UserError(f"the model cannot be trained: {problem}")
    with network(model, chosen.backend, seed=chosen.seed, **chosen.backend_options) as net:
        optimizer = training.make_optimizer(chosen, net)
        Runner(net, optimizer, train_set, test_set, batch_size=chosen.batch_size, seed=chosen.seed)
    return {}


def choices(_: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that a form can offer on this machine."""
    from meta500 import models, optimizers
    from meta500.backends.network import backend_class, backend_names
    from meta500.benchmarks.data_listing import listing

    native: dict[str, list[dict[str, Any]]] = {}
    for name in backend_names():
        try:
            backend_class(name)
        except UserError:
            continue  # a package is missing
        found = native_optimizers(name)
        if found is not None:
            native[name] = found
    return {
        "models": [_entry(name, models.title(name), models.options(name)) for name in models.names()],
        "datasets": [
            _entry(record["name"], record["title"], record["options"])
            for record in listing()
            if record["kind"] == "no files needed" or record.get("here")
        ],
        "backends": [
            {"name": name, "native": [optimizer["name"] for optimizer in native[name]]} for name in native
        ],
        "optimizers": [_optimizer(name, optimizers.options(name)) for name in optimizers.names()],
        "native": native,
        "defaults": DEFAULTS,
        "metrics": ["accuracy", "loss", "seconds", "time_to_accuracy"],
        "limits": {"threads": os.cpu_count() or 1},
    }


def native_optimizers(backend: str) -> list[dict[str, Any]] | None:
    """The backend's own optimizers; None where it does not train."""
    import importlib

    try:
        module = importlib.import_module(f"meta500.backends.{backend}.optimizers")
    except ModuleNotFoundError:
        return None
    found = []
    for name, maker in module._CLASSES.items():
        cls, fixed = maker if isinstance(maker, tuple) else (maker, {})
        parameters = inspect.signature(cls).parameters
        options = {
            key: parameter.default
            for key, parameter in parameters.items()
            if key not in {"network", "params", "lr", *fixed} and parameter.default is not parameter.empty
        }
        rate = parameters.get("learning_rate")
        options["learning_rate"] = rate.default if rate is not None else module._RATES.get(name, 1e-2)
        found.append(_optimizer(name, options))
    return sorted(found, key=lambda entry: entry["name"])


def _optimizer(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "learning_rate": options["learning_rate"], "options": _offered(options)}


def _entry(name: str, title: str, options: Mapping[str, Any]) -> dict[str, Any]:
    return {"name": name, "title": title, "options": _offered(options)}


def _offered(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that a form offers: those that are no places, with values that JSON has."""
    simple = (bool, int, float, str, tuple, list)
    return {
        key: value
        for key, value in options.items()
        if key not in HIDDEN and (value is None or isinstance(value, simple))
    }


def _values(values: Mapping[str, Any]) -> dict[str, str]:
    return {name[:NAME]: str(value)[:NAME] for name, value in list(values.items())[:_FEW]}


def _tupled(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


TASKS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "choices": choices,
    "setup": setup,
    "upload": upload,
}

if __name__ == "__main__":
    main()
