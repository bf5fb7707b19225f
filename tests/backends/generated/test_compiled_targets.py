"""The same numbers from the code of every processor, without OpenMP, and from another compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meta500
from meta500.backends.generated import cpp
from meta500.backends.generated.forms import Form
from meta500.backends.generated.library import RUNTIME
from meta500.backends.generated.schedule import schedule
from meta500.backends.targets import NAMES, can_run, target
from meta500.backends.toolchain import GENERATED_FLAGS, compile_text
from meta500.errors import UserError
from meta500.models import create

FEW = min(2, len(os.sched_getaffinity(0)))
CROSS = "aarch64-linux-gnu-g++"
QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")


def model(dtype: str = "float64") -> meta500.Model:
    return create("unet", n=1, batch=2, size=(8, 40), depth=2, dtype=dtype)


def batch(dtype: str = "float64") -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "image": rng.standard_normal((2, 3, 8, 40)).astype(dtype),
        "label": rng.integers(0, 3, (2, 8, 40)),
    }


def results(dtype: str = "float64", **options: Any) -> dict[str, np.ndarray]:
    with meta500.network(model(dtype), **options) as net:
        found = dict(net.inference_and_backprop(batch(dtype)))
        names = [name for _, name in net.gradient()]
        return found | dict(zip(names, net.fetch_tensors(names), strict=True))


@pytest.fixture(scope="module")
def wanted() -> dict[str, np.ndarray]:
    return results(backend="numpy")


def agree(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], tolerance: float = 1e-10) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        size = max(float(np.sqrt(np.mean(np.square(value)))), 1e-3)
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance * size, err_msg=name)


@pytest.mark.parametrize("name", [n for n in NAMES if can_run(target(n))])
def test_every_target_of_this_machine(name, wanted):
    agree(results(backend="generated", target=name, threads=FEW), wanted)


@pytest.mark.skipif(not can_run(target("x86-64")), reason="needs an x86-64")
def test_narrow_rows_in_single_precision(wanted):
    """Rows of 10 and 20 columns are no multiples of a vector of four numbers."""
    agree(results("float32", backend="generated", target="x86-64", threads=1), wanted, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in NAMES if can_run(target(n))])
def test_every_target_in_single_precision(name, wanted):
    agree(results("float32", backend="generated", target=name, threads=FEW), wanted, 1e-4)


def test_a_target_of_another_machine_does_not_run():
    foreign = "aarch64" if can_run(target("x86-64")) else "x86-64"
    with (
        pytest.raises(UserError, match=foreign),
        meta500.network(model(), backend="generated", target=foreign, threads=1) as net,
    ):
        net.inference_and_backprop(batch())


def test_one_thread_needs_no_openmp(wanted, monkeypatch):
    """Not even the option: the compiler is one that refuses it."""
    monkeypatch.setenv("CXXFLAGS", "-fno-openmp -D_OPENMP_MUST_NOT_BE_USED")
    with meta500.network(model(), backend="generated", threads=1) as net:
        net.inference_and_backprop(batch())
        (executable,) = net._executables.values()
        path = executable.path
        symbols = subprocess.run(["nm", "-D", str(path)], capture_output=True, text=True, check=True).stdout
        assert "omp" not in symbols.lower()
    agree(results(backend="generated", threads=1), wanted)


@pytest.mark.skipif(shutil.which("clang++") is None, reason="needs clang++")
@pytest.mark.parametrize("threads", sorted({1, FEW}))
def test_clang(wanted, monkeypatch, threads):
    from meta500.backends.compiler import has_openmp

    monkeypatch.setenv("CXX", "clang++")
    if threads > 1 and not has_openmp():
        pytest.skip("this clang++ has no OpenMP")
    agree(results(backend="generated", threads=threads), wanted)


MAIN = """
#include <cstdint>
#include <cstdio>
#include <vector>
extern "C" void* meta500_open();
extern "C" void meta500_close(void*);
extern "C" int meta500_run(void*, void* const*);
// The file has every tensor as its size in bytes and its contents; they are written back after the run.
int main(int, char** arguments) {
    std::vector<std::vector<std::int64_t>> data;
    std::vector<std::int64_t> sizes;
    std::FILE* file = std::fopen(arguments[1], "rb");
    for (std::int64_t size; std::fread(&size, 8, 1, file) == 1;) {
        sizes.push_back(size);
        data.emplace_back(size / 8 + 1);
        if (std::fread(data.back().data(), 1, size, file) != std::size_t(size)) return 1;
    }
    std::fclose(file);
    std::vector<void*> tensors;
    for (auto& tensor : data) tensors.push_back(tensor.data());
    void* instance = meta500_open();
    if (instance == nullptr || meta500_run(instance, tensors.data()) != 0) return 2;
    meta500_close(instance);
    file = std::fopen(arguments[1], "wb");
    for (std::size_t i = 0; i < data.size(); ++i) std::fwrite(data[i].data(), 1, sizes[i], file);
    return std::fclose(file);
}
"""


def cross_network(dtype: str, threads: int) -> Any:
    return meta500.network(model(dtype), backend="generated", target="aarch64", threads=threads)


def cross_schedule(net: Any, dtype: str) -> tuple[Any, str, str]:
    """What a processor with Neon does for the gradients, and the names of the packed parameters and gradients."""
    shapes = tuple((n, a.shape) for n, a in batch(dtype).items())
    program, parameters, gradients = net.program(Form(("loss",), shapes, "loss", tuple(net.get_params())))
    return schedule(program, net._schedule_options()), parameters, gradients


def cross_sources(dtype: str) -> dict[str, str]:
    with cross_network(dtype, FEW) as net:
        return cpp.sources(cross_schedule(net, dtype)[0])


@pytest.mark.skipif(shutil.which(CROSS) is None, reason=f"needs {CROSS}")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_code_for_neon_compiles(dtype):
    path = compile_text(cross_sources(dtype), include=[RUNTIME], target=target("aarch64"))
    assert Path(path).read_bytes()[18:20] == b"\xb7\x00"  # e_machine of ELF: AArch64


@pytest.mark.skipif(shutil.which(CROSS) is None or QEMU is None, reason=f"needs {CROSS} and qemu-aarch64")
def test_code_for_neon_gives_the_same_numbers(tmp_path, wanted):
    with cross_network("float64", 1) as net:
        plan, parameters, gradients = cross_schedule(net, "float64")
        for name, text in {**cpp.sources(plan), "main.cpp": MAIN}.items():
            (tmp_path / name).write_text(text)
        units = [str(path) for path in sorted(tmp_path.glob("*.cpp"))]
        program = str(tmp_path / "program")
        flags = [*GENERATED_FLAGS, *target("aarch64").flags, f"-I{RUNTIME}", f"-I{tmp_path}", "-static"]
        subprocess.run([CROSS, *flags, *units, "-o", program], check=True)
        kinds = {"int64": np.int64, "int32": np.int32, "bool": np.bool_}
        arrays = {}
        for name in plan.external:
            tensor = plan.program.tensors[name]
            known = {**net.model.graph.initializers, **plan.program.constants, **batch()}
            known[parameters] = net.packed
            value = known.get(name, np.zeros(tensor.shape))
            arrays[name] = np.ascontiguousarray(value, kinds.get(tensor.dtype, np.float64))
        file = tmp_path / "tensors"
        file.write_bytes(b"".join(np.int64(a.nbytes).tobytes() + a.tobytes() for a in arrays.values()))
        subprocess.run([str(QEMU), program, str(file)], check=True)
        data, found = file.read_bytes(), {}
        for name, array in arrays.items():
            found[name] = np.frombuffer(data[: array.nbytes], array.dtype).reshape(array.shape)
            data = data[array.nbytes :]
        assert not data
        np.testing.assert_allclose(found[plan.program.outputs["loss"]], wanted["loss"], rtol=1e-12)
        for name in net.get_params():
            value = wanted[f"grad/{name}"]
            size = float(np.sqrt(np.mean(np.square(value))))
            np.testing.assert_allclose(net.view(found[gradients], name), value, rtol=1e-10, atol=1e-10 * size)


def test_text_for_neon_has_vectors_of_its_width():
    text = "\n".join(cross_sources("float32").values())
    assert "Vector<real, 4>" in text
    assert not any(f"Vector<real, {lanes}>" in text for lanes in (8, 16))
    assert "immintrin" not in text
