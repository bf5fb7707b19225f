"""A network's stages through ExaStencils into a library that the generated backend runs like its own.

The layer-4 program takes parameters and inputs from the caller's arrays, computes, and hands gradients and
outputs back, all by C++ functions of a header that is written beside it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from meta500.backends import library_cache
from meta500.backends.generated.exaslang import files
from meta500.backends.generated.exaslang.generator import generate, identity
from meta500.backends.generated.exaslang.pictures import Picture
from meta500.backends.generated.exaslang.training import initializations
from meta500.backends.generated.exaslang.translate import (
    BACKWARD,
    FORWARD,
    LOSS,
    Translation,
    declared_once,
    elements,
    translate,
)
from meta500.backends.generated.exaslang.tree import (
    Assignment,
    Call,
    Evaluate,
    Expression,
    FieldAccess,
    FieldLoop,
    Function,
    Integer,
    Name,
    Program,
    Statement,
)
from meta500.backends.generated.exaslang.variant import INNERMOST, OPENMP, OUTERMOST, SERIAL, Variant
from meta500.backends.generated.ir import INPUT, PARAMETER
from meta500.backends.generated.ir import Program as Stages
from meta500.backends.generated.manifest import Manifest
from meta500.backends.generated.packing import Packing
from meta500.backends.targets import Target
from meta500.backends.toolchain import compile_text
from meta500.errors import UserError

_NAME = "network"
_PARAMETERS, _GRADIENTS = "parameters", "gradients"
_C_TYPES = {"real": "meta500_real", "int64": "std::int64_t", "int32": "std::int32_t", "bool": "std::uint8_t"}


def build(
    stages: Stages, packing: Packing, real: str, threads: int, target: Target, gradients: bool
) -> Manifest:
    """Compile stages through ExaStencils.

    Args:
        stages: joined, not packed.
        packing: of the parameters in the caller's array.
        real: "float" or "double".
        threads: of OpenMP.
        target: the processor.
        gradients: whether the stages have gradients of the parameters.

    Raises:
        UserError: what layer-4 code can't express, with the name of the node; the generator or the compiler
            is missing or fails.
    """
    others = [*stages.updates, *(name for name in stages.gradients if name not in packing.offsets)]
    if others:
        raise UserError(
            f"network '{stages.name}': through ExaStencils only gradients of parameters come back, and no "
            f"statistics: not {', '.join(others)}"
        )
    variant = Variant(
        pixels=INNERMOST if threads > 1 else OUTERMOST,
        parallel=OPENMP if threads > 1 else SERIAL,
        threads=threads,
        double=real == "double",
    ).checked()
    result = translate(stages, variant, faults=True)
    external = _external(stages, packing, gradients)
    tree = _tree(stages, result, variant, packing)
    texts = _generated(tree, result, variant)
    texts["meta500_data.h"] = _header(stages, result, external, real)
    texts["bridge.cpp"] = _bridge(result.top)
    path = compile_text(texts, ["-Dmain=meta500_main", "-w"], target=target, openmp=threads > 1)
    return Manifest(
        name=stages.name,
        library=path.parent.name,
        external=external,
        outputs=dict(stages.outputs),
        gradients={name: _GRADIENTS for name in stages.gradients} if gradients else {},
        updates={},
        faults=list(stages.faults.values()),
        parameters=_PARAMETERS if packing.offsets else "",
        packed_gradients=_GRADIENTS if gradients else "",
        baked=sorted(stages.baked),
        threads=threads,
        total_bytes=_bytes(result, variant),
        constants={},
    )


def _external(stages: Stages, packing: Packing, gradients: bool) -> list[tuple[str, tuple[int, ...], str]]:
    """The caller's arrays in order."""
    found = [(n, t.shape, t.dtype) for n, t in stages.tensors.items() if t.role == INPUT]
    if packing.offsets:
        found.append((_PARAMETERS, (packing.size,), "real"))
    if gradients:
        found.append((_GRADIENTS, (packing.size,), "real"))
    for name in dict.fromkeys(stages.outputs.values()):
        tensor = stages.tensors[name]
        found.append((name, tensor.shape, tensor.dtype))
    return found


def _tree(stages: Stages, result: Translation, variant: Variant, packing: Packing) -> Program:
    top, tensors = result.top, result.tensors
    trained = [
        (name, array) for name, array in tensors.arrays.items() if stages.tensors[name].role == PARAMETER
    ]
    taken: list[Statement] = []
    for name, array in trained:
        if not array.shape:
            raise UserError(f"network '{stages.name}': parameter '{name}' is a single number, not an array")
        if name not in packing.offsets:
            raise UserError(
                f"network '{stages.name}': '{name}' is no parameter, layer-4 code has no constants"
            )
        arguments = (Integer(packing.offsets[name]), Name(array.variable), Integer(array.size))
        taken.append(Evaluate(Call("meta500_take", arguments)))
    given: list[Statement] = []
    for name, tensor in stages.gradients.items():
        array = tensors.arrays[tensor]
        arguments = (Integer(packing.offsets[name]), Name(array.variable), Integer(array.size))
        given.append(Evaluate(Call("meta500_give", arguments)))
    for number, name in enumerate(dict.fromkeys(stages.outputs.values())):
        if name in tensors.arrays:
            given.append(Evaluate(Call(f"meta500_number_{number}", (Name(tensors.arrays[name].variable),))))
        else:
            given.append(_cells(tensors.pictures[name], f"meta500_output_{number}", False))
    for number, name in enumerate(stages.faults, 1):
        count = Name(tensors.arrays[name].variable)
        given.append(Evaluate(Call("meta500_fault_number", (count, Integer(number)))))
    loads = [
        _cells(picture, f"meta500_input_{i}", True)
        for i, picture in enumerate(result.inputs(stages).values())
    ]
    phases = [*result.phases[FORWARD], *result.phases[LOSS], *result.phases[BACKWARD]]
    functions = (
        Function("Take", top, declared_once([*taken, *loads])),
        Function("Compute", top, declared_once(phases)),
        Function("Give", top, declared_once(given)),
        Function("Application", None, tuple(initializations())),
    )
    return Program(
        tuple(result.layouts(variant)), tuple(result.fields()), tuple(result.variables()), functions
    )


def _cells(picture: Picture, function: str, read: bool) -> FieldLoop:
    """A loop that takes all numbers of a field from a function, or hands them to one."""
    target = FieldAccess(picture.field, picture.level, Name("batch"), Name("channel"))
    at: tuple[Expression, ...] = tuple(Name(n) for n in ("batch", "channel", "i0", "i1"))
    inner: Statement = (
        Assignment(target, Call(function, at)) if read else Evaluate(Call(function, (*at, target)))
    )
    return elements(picture, inner)


def _generated(tree: Program, result: Translation, variant: Variant) -> dict[str, str]:
    """The generator's C++ by plain file name, from the cache if it wrote it before."""
    levels = (result.bottom, result.top)
    sources = {
        f"{_NAME}.exa4": str(tree),
        f"{_NAME}.knowledge": files.knowledge(variant, levels),
        f"{_NAME}.platform": files.platform(variant, files.Platform()),
        f"{_NAME}.settings": files.settings(_NAME),
    }
    texts = [f"{name}\0{text}" for name, text in sources.items()]
    digest = hashlib.sha256("\0".join([identity(), *texts]).encode()).hexdigest()
    key = f"exastencils-{digest[:40]}"
    kept = library_cache.load_object(key)
    if kept is not None:
        return dict(json.loads(kept))
    with TemporaryDirectory() as place:
        folder = Path(place)
        for name, text in sources.items():
            (folder / name).write_text(text)
        generate(folder, _NAME)
        found = _plain(folder / files.GENERATED)
    library_cache.store_object(key, json.dumps(found).encode())
    return found


def _plain(folder: Path) -> dict[str, str]:
    """C++ files of all folders under names without folders."""
    paths = [p for p in sorted(folder.rglob("*")) if p.suffix in (".cpp", ".h")]
    names = {str(p.relative_to(folder)): str(p.relative_to(folder)).replace("/", "_") for p in paths}

    def included(match: re.Match[str]) -> str:
        return f'#include "{names.get(match.group(1), match.group(1))}"'

    return {
        names[str(p.relative_to(folder))]: re.sub(r'#include "([^"]+)"', included, p.read_text())
        for p in paths
    }


def _header(
    stages: Stages, result: Translation, external: Sequence[tuple[str, tuple[int, ...], str]], real: str
) -> str:
    """The functions between the layer-4 program and the caller's arrays."""
    tensors = result.tensors
    numbers = {name: i for i, (name, _, _) in enumerate(external)}
    kinds = {name: _C_TYPES[dtype] for name, _, dtype in external}
    lines = [
        "#ifndef META500_DATA_H",
        "#define META500_DATA_H",
        "#include <cstdint>",
        "#include <cstddef>",
        f"typedef {real} meta500_real;",
        "inline void* const*& meta500_tensors() { static void* const* given = nullptr; return given; }",
        "inline long& meta500_fault() { static long fault = 0; return fault; }",
    ]
    for verb, name in (("take", _PARAMETERS), ("give", _GRADIENTS)):
        if name not in numbers:
            continue
        array = f"static_cast<meta500_real*>(meta500_tensors()[{numbers[name]}]) + offset"
        copy = "values[i] = T(array[i])" if verb == "take" else "array[i] = meta500_real(values[i])"
        lines += [
            f"template <typename T> void meta500_{verb}(long offset, T* values, long count) {{",
            f"    meta500_real* const array = {array};",
            f"    for (long i = 0; i < count; ++i) {copy};",
            "}",
        ]
    for i, (name, picture) in enumerate(result.inputs(stages).items()):
        lines += [
            f"inline double meta500_input_{i}(long batch, long channel, long i0, long i1) {{",
            f"    auto* const array = static_cast<const {kinds[name]}*>(meta500_tensors()[{numbers[name]}]);",
            f"    return double(array[{_index(picture)}]);",
            "}",
        ]
    for i, name in enumerate(dict.fromkeys(stages.outputs.values())):
        array = f"static_cast<meta500_real*>(meta500_tensors()[{numbers[name]}])"
        if name in tensors.arrays:
            lines.append(
                f"inline void meta500_number_{i}(double value) {{ *{array} = meta500_real(value); }}"
            )
        else:
            lines += [
                f"inline void meta500_output_{i}"
                "(long batch, long channel, long i0, long i1, double value) {",
                f"    {array}[{_index(tensors.pictures[name])}] = meta500_real(value);",
                "}",
            ]
    lines.append("inline void meta500_fault_number(double count, long number) {")
    lines.append("    if (count != 0 && meta500_fault() == 0) meta500_fault() = number;")
    return "\n".join([*lines, "}", "#endif"]) + "\n"


def _index(picture: Picture) -> str:
    rows, columns = picture.size
    return f"((batch * {picture.channels} + channel) * {rows} + i1) * {columns} + i0"


def _bridge(level: int) -> str:
    """What the generated backend calls."""
    return f"""#include "meta500_data.h"

int meta500_main(int, char**);
void Take_{level}();
void Compute_{level}();
void Give_{level}();

extern "C" {{

void* meta500_open() {{
    // Fields are allocated once, however many instances there are.
    static int opened = meta500_main(0, nullptr);
    return &opened;
}}
void meta500_close(void*) {{}}
void meta500_threads(int) {{}}
int meta500_run(void*, void* const* tensors) {{
    meta500_tensors() = tensors;
    meta500_fault() = 0;
    Take_{level}();
    Compute_{level}();
    Give_{level}();
    return int(meta500_fault());
}}

}}
"""


def _bytes(result: Translation, variant: Variant) -> int:
    """Memory of all fields."""
    cells = sum(
        p.images * p.channels * (p.size[0] + 2 * result.ghost) * (p.size[1] + 2 * result.ghost)
        for p in result.tensors.pictures.values()
    )
    return cells * (8 if variant.double else 4)
