"""Programs that train a network without Python: a CMake project with all decisions taken."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meta500.backends.generated.ir import INPUT, RANDOM, REAL, VALUE, Program
from meta500.backends.generated.network import GeneratedNetwork
from meta500.backends.generated.updates import UPDATES, slot_tensor
from meta500.backends.toolchain import GENERATED_FLAGS
from meta500.benchmarks.generation import forms
from meta500.benchmarks.generation.config import Config
from meta500.benchmarks.generation.folder import Folder
from meta500.benchmarks.generation.forms import Planned, Scores
from meta500.benchmarks.generation.sources import compile_command, named_sources, runtime_files
from meta500.benchmarks.generation.subject import Subject
from meta500.benchmarks.generation.weights import SLOTS, weights_bytes
from meta500.errors import UserError

TEXTS = Path(__file__).parent / "program"
TRAINING, INFERENCE, SINGLE = "training", "inference", "single"
_TYPES = {"real": "real", "int64": "int64", "int32": "int32", "bool": "boolean"}
_C_TYPES = {"real": "real", "int64": "std::int64_t", "int32": "std::int32_t", "bool": "unsigned char"}
_MOST_DIMENSIONS = 8
# The optimizers' numbers that program/runner.h computes.
_SETTINGS = (
    "rate",
    "momentum",
    "step",
    "epsilon",
    "beta1",
    "beta2",
    "share1",
    "share2",
    "decay",
    "weight_decay",
)


def write_program(
    folder: Folder, subject: Subject, net: GeneratedNetwork, config: Config, keep: tuple[str, ...] = ()
) -> str:
    """Write the project of a network that trains as ``config`` says.

    Args:
        folder: where.
        subject: the network, with the shapes of a training batch.
        net: the same, in the precision and for the processor and threads of the program.
        config: of the training.
        keep: other files in the folder that belong to the program: its data.

    Returns:
        A command that compiles it without CMake, run inside of the folder.

    Raises:
        UserError: the network has no loss or parameters, or takes what the program can't feed; the folder
            can't be written to.
        UnsupportedOperation: a node that can't be generated.
    """
    scores = forms.scores(net.model)
    outputs = ("loss", *([scores.scores] if scores else []))
    plans = {
        TRAINING: forms.plan(net, forms.training(net, subject.shapes, config.update)),
        INFERENCE: forms.plan(net, forms.inference(net, subject.shapes, outputs)),
    }
    batch = _batch(subject)
    if subject.open_batch and batch > 1:
        plans[SINGLE] = forms.plan(net, forms.inference(net, subject.with_batch(1), outputs))
    statistics = _statistics(net, plans)
    files = {f"program/{path.name}": path.read_bytes() for path in sorted(TEXTS.glob("*.h"))}
    files |= runtime_files()
    for name, planned in plans.items():
        files |= named_sources(planned.schedule, name)
    files["main.cpp"] = (TEXTS / "main.cpp").read_bytes()
    files["real.h"] = _real(plans[TRAINING]).encode()
    files["config.cpp"] = _config(subject, net, config, plans, scores, statistics).encode()
    files["initial.safetensors"] = _initial(net, statistics)
    command = _command(net, plans)
    files["CMakeLists.txt"] = _cmake(net, plans).encode()
    files["README.md"] = _readme(net, config, command).encode()
    files["train.toml"] = config.path.read_bytes()
    folder.write(files, keep)
    return command


def _batch(subject: Subject) -> int:
    sizes = {name: shape[0] if shape else 0 for name, shape in subject.shapes.items()}
    if len(set(sizes.values())) != 1 or 0 in sizes.values():
        listed = ", ".join(f"{name} {list(subject.shapes[name])}" for name in sizes)
        raise UserError(
            f"the first dimension of all inputs must be the samples of a batch; they are {listed}"
        )
    return next(iter(sizes.values()))


def _statistics(net: GeneratedNetwork, plans: dict[str, Planned]) -> list[str]:
    """Initializers that are no parameters but arrays outside of the code: running means, frozen weights."""
    found: dict[str, None] = {}
    for planned in plans.values():
        program = planned.schedule.program
        for name in planned.schedule.external:
            if (
                name in net.model.graph.initializers
                and name not in program.constants
                and name != planned.parameters
            ):
                found[name] = None
    return list(found)


def _initial(net: GeneratedNetwork, statistics: Sequence[str]) -> bytes:
    tensors = {name: np.asarray(net.native(name)) for name in (*net.get_params(), *statistics)}
    for name, array in tensors.items():
        if name.startswith(SLOTS):
            raise UserError(
                f"parameter '{name}': names that begin with {SLOTS} are those of the optimizer's state"
            )
        if array.ndim > _MOST_DIMENSIONS:
            raise UserError(
                f"parameter '{name}' has {array.ndim} dimensions; programs have {_MOST_DIMENSIONS}"
            )
    return weights_bytes(tensors, {"network": net.model.name})


# -- config.cpp ------------------------------------------------------------------------------------


def _config(
    subject: Subject,
    net: GeneratedNetwork,
    config: Config,
    plans: dict[str, Planned],
    scores: Scores | None,
    statistics: Sequence[str],
) -> str:
    lines = [
        f"// {net.model.name}: what the program of this folder knows of the network and of its training.",
        "#include <limits>",
        "",
        '#include "real.h"',
        '#include "tables.h"',
        "",
        'extern "C" {',
    ]
    for name in plans:
        lines += [
            f"void* {name}_open();",
            f"void {name}_close(void* instance);",
            f"int {name}_run(void* instance, void* const* tensors);",
            f"void {name}_threads(int count);",
        ]
    lines += ["}", "", "namespace meta500 {", "namespace {", ""]
    for name, planned in plans.items():
        lines += _program(name, planned, net, scores)
    lines += ["const Tensor tensors[] = {"]
    for name in net.get_params():
        lines.append(
            f"    {{{_text(name)}, {net.packing.offsets[name]}, {_shape(net.packing.shapes[name])}}},"
        )
    for name in statistics:
        lines.append(f"    {{{_text(name)}, -1, {_shape(net.native(name).shape)}}},")
    lines += ["};", "", "const Input inputs[] = {"]
    arrays = {value: key for key, value in config.inputs.items()}
    fed = dict.fromkeys(name for planned in plans.values() for name, _ in planned.form.shapes)
    for name in fed:
        shape = subject.shapes[name][1:]
        if len(shape) > _MOST_DIMENSIONS:
            raise UserError(f"input '{name}' has {len(shape)} dimensions; programs have {_MOST_DIMENSIONS}")
        kind = _kind(plans[TRAINING].schedule.program, name)
        lines.append(
            f"    {{{_text(name)}, {_text(arrays.get(name, name))}, Type::{kind}, {_shape(shape)}}},"
        )
    slots = UPDATES[config.update].slots
    lines += ["};", ""]
    if slots:
        lines += [f"const char* const slots[] = {{{', '.join(map(_text, slots))}}};", ""]
    hyper = [
        config.hyper[k] for k in ("learning_rate", "momentum", "beta1", "beta2", "epsilon", "weight_decay")
    ]
    count = sum(math.prod(net.packing.shapes[name]) for name in net.get_params())
    size = _scores_shape(plans, scores)
    fields = [
        (_text(net.model.name), "the network"),
        (_text(config.optimizer), "the optimizer"),
        (
            ", ".join(_number(value) for value in hyper),
            "learning rate, momentum, betas, epsilon, weight decay",
        ),
        (str(config.epochs), "epochs"),
        (f"{config.seed}u", "seed"),
        (f"{_flag(config.shuffle)}, {_flag(config.report == 'step')}", "shuffle, a line for every step"),
        (str(plans[TRAINING].schedule.options.threads), "threads"),
        (f"{count}, {net.packing.size}", "parameters, elements of their array"),
        (f"tensors, {len(net.get_params()) + len(statistics)}", ""),
        ("slots, " + str(len(slots)) if slots else "nullptr, 0", ""),
        (f"inputs, {len(fed)}", ""),
        (str(list(fed).index(scores.label)) if scores and size else "-1", "input with the labels"),
        (f"{size[0]}, {size[1]}" if size else "0, 0", "classes, labels per sample"),
        (f"{_flag(_ignores(scores))}, {scores.ignored or 0 if scores else 0}", "labels that do not count"),
        (f"&{TRAINING}_program, &{INFERENCE}_program", ""),
        (f"&{SINGLE}_program" if SINGLE in plans else "nullptr", ""),
    ]
    lines += ["}  // namespace", "", "const Config config = {"]
    lines += [f"    {value},{f'  // {what}' if what else ''}" for value, what in fields]
    lines += ["};", "", "}  // namespace meta500", ""]
    return "\n".join(lines)


def _ignores(scores: Scores | None) -> bool:
    return scores is not None and scores.ignored is not None


def _scores_shape(plans: dict[str, Planned], scores: Scores | None) -> tuple[int, int] | None:
    """Classes, and labels per sample."""
    if scores is None:
        return None
    program = plans[INFERENCE].schedule.program
    shape = program.tensors[program.outputs[scores.scores]].shape
    return shape[1], math.prod(shape[2:])


def _program(name: str, planned: Planned, net: GeneratedNetwork, scores: Scores | None) -> list[str]:
    """The tables of one program."""
    schedule, program = planned.schedule, planned.schedule.program
    lines = []
    rows = []
    for number, tensor in enumerate(schedule.external):
        role, label, constant = _role(planned, net, tensor), tensor, "nullptr"
        if role == "constant":
            constant = f"{name}_constant_{number}"
            values = ", ".join(
                _element(v, program.tensors[tensor].dtype) for v in program.constants[tensor].ravel()
            )
            kind = _C_TYPES[program.tensors[tensor].dtype]
            lines.append(f"alignas(64) const {kind} {constant}[] = {{{values}}};")
        if role in ("slot", "setting"):
            label = tensor.removeprefix(slot_tensor(""))
        rows.append(
            f"    {{Role::{role}, {_text(label)}, Type::{_kind(program, tensor)}, "
            f"{program.tensors[tensor].size}, {constant}}},"
        )
    lines += [f"const External {name}_externals[] = {{", *rows, "};"]
    updates = [f"{{{_text(s)}, {schedule.external.index(new)}}}" for s, new in program.updates.items()]
    if updates:
        lines.append(f"const Update {name}_updates[] = {{{', '.join(updates)}}};")
    faults = [_text(message) for message in program.faults.values()]
    if faults:
        lines.append(f"const char* const {name}_faults[] = {{{', '.join(faults)}}};")
    loss = schedule.external.index(program.outputs["loss"])
    found = -1
    if scores is not None and scores.scores in program.outputs:
        found = schedule.external.index(program.outputs[scores.scores])
    batch = planned.form.shapes[0][1][0]
    lines += [
        f"const Program {name}_program = {{",
        f"    {batch}, {schedule.total_bytes}, {name}_open, {name}_close, {name}_run, {name}_threads,",
        f"    {name}_externals, {len(rows)}, {f'{name}_updates' if updates else 'nullptr'}, {len(updates)},",
        f"    {f'{name}_faults' if faults else 'nullptr'}, {loss}, {found}}};",
        "",
    ]
    return lines


def _role(planned: Planned, net: GeneratedNetwork, name: str) -> str:
    """What the program hands over for an external tensor."""
    program = planned.schedule.program
    update = UPDATES.get(planned.form.optimizer)
    if name in dict(planned.form.shapes):
        return "input"
    if name == planned.parameters:
        return "parameters"
    if update is not None and name in map(slot_tensor, update.slots):
        return "slot"
    if update is not None and name in map(slot_tensor, update.settings):
        if name.removeprefix(slot_tensor("")) not in _SETTINGS:
            raise UserError(
                f"stand-alone programs do not have the setting '{name}' of {planned.form.optimizer}"
            )
        return "setting"
    if name in program.constants:
        return "constant"
    if name == RANDOM:
        return "random"
    if name in net.model.graph.initializers:
        if program.tensors[name].dtype != REAL:
            raise UserError(
                f"'{name}' is {program.tensors[name].dtype}: weights of programs are floating point"
            )
        return "statistic"
    if program.tensors[name].role in (INPUT,):
        raise UserError(f"network '{net.model.name}': a stand-alone program cannot feed '{name}'")
    assert program.tensors[name].role == VALUE or name in program.gradients.values(), name
    return "result"


def _kind(program: Program, name: str) -> str:
    return _TYPES[program.tensors[name].dtype]


def _shape(shape: Sequence[int]) -> str:
    return f"{len(shape)}, {{{', '.join(map(str, shape))}}}"


def _text(text: str) -> str:
    """A C++ string; bytes beyond ASCII in octal, which no digit after them can become part of."""
    found = ""
    for byte in text.encode():
        if chr(byte) in '"\\' or not 32 <= byte < 127 or chr(byte) == "?":
            found += f"\\{byte:03o}"
        else:
            found += chr(byte)
    return f'"{found}"'


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _number(value: float) -> str:
    """A double that reads back as itself."""
    text = repr(float(value))
    return text if any(c in text for c in ".en") else f"{text}.0"


def _element(value: object, dtype: str) -> str:
    if dtype != "real":
        number = int(value)  # type: ignore[call-overload]
        return "std::numeric_limits<std::int64_t>::min()" if number == -(2**63) else str(number)
    number = float(value)  # type: ignore[arg-type]
    if math.isnan(number):
        return "std::numeric_limits<real>::quiet_NaN()"
    if math.isinf(number):
        return f"{'-' if number < 0 else ''}std::numeric_limits<real>::infinity()"
    return f"real({number.hex()})"


# -- building --------------------------------------------------------------------------------------


def _real(planned: Planned) -> str:
    return (
        "// The floating-point type of this network.\n#pragma once\n\n"
        f"namespace meta500 {{\nusing real = {planned.schedule.options.real};\n}}\n"
    )


def _command(net: GeneratedNetwork, plans: dict[str, Planned]) -> str:
    inputs = " ".join(["main.cpp", "config.cpp", *(f"{name}/*.cpp" for name in plans)])
    options = ("-I.", "-Iprogram", "-Iruntime")
    openmp = plans[TRAINING].schedule.options.threads > 1
    return compile_command(net.target, openmp=openmp, inputs=inputs, output="train", options=options)


def _cmake(net: GeneratedNetwork, plans: dict[str, Planned]) -> str:
    march = next((f.partition("=")[2] for f in net.target.flags if f.startswith(("-march=", "-mcpu="))), "")
    release = [flag for flag in GENERATED_FLAGS if not flag.startswith("-std=")]
    sources = ["main.cpp", "config.cpp"]
    for name, planned in plans.items():
        sources += [file for file in named_sources(planned.schedule, name) if file.endswith(".cpp")]
    listed = "\n    ".join(sources)
    return f"""# {net.model.name}: generated by meta500.
cmake_minimum_required(VERSION 3.16)
project(train CXX)

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "{" ".join(release)}")
set(META500_MARCH "{march}" CACHE STRING "the processor, as in -march=; empty for the compiler's default")
option(META500_OPENMP "use threads" ON)

add_executable(train
    {listed})
target_compile_features(train PRIVATE cxx_std_17)
set_target_properties(train PROPERTIES CXX_EXTENSIONS OFF)
target_include_directories(train PRIVATE ${{CMAKE_CURRENT_SOURCE_DIR}} program runtime)
if(META500_MARCH)
    target_compile_options(train PRIVATE -march=${{META500_MARCH}})
endif()
if(META500_OPENMP)
    find_package(OpenMP COMPONENTS CXX)
    if(OpenMP_CXX_FOUND)
        target_link_libraries(train PRIVATE OpenMP::OpenMP_CXX)
    else()
        message(WARNING "without OpenMP the program has one thread")
    endif()
endif()
"""


def _readme(net: GeneratedNetwork, config: Config, command: str) -> str:
    return f"""# Training {net.model.name} without Python

Generated by meta500 from train.toml: {config.optimizer}, batch {config.batch_size}, {config.precision}.

```sh
cmake -S . -B build && cmake --build build -j    # or: {command}
build/train                                      # or: ./train
```

`train --help` lists the options. The program prints JSON, one object per line (`start`, `step` or `epoch`,
`end`), and saves the weights after every epoch; `--weights FILE` goes on from there, with the same result as
a run without the interruption. Samples that do not fill a batch are left out of an epoch. Other processors:
`-DMETA500_MARCH=...`;
without threads: `-DMETA500_OPENMP=OFF`.

- Data (`data/`, or `--data`): the format is that of `dataset.json` there; or `train/NAME.npy`,
`validation/NAME.npy`. - Weights: safetensors with a checksum, see `program/weights.h`.
- Order of the samples: see `program/shuffle.h`.
- `meta500 generate cpp ... --config train.toml --import weights.safetensors --out model.onnx` makes ONNX of
weights.
"""
