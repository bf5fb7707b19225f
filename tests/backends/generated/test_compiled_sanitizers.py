"""Generated code under the address and undefined-behaviour sanitizers, in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

THREADS = min(2, len(os.sched_getaffinity(0)))
CHECKED = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g"

PROGRAM = """
import importlib.util, sys
from pathlib import Path

import numpy as np

import meta500
from meta500.graph import Builder, ops

spec = importlib.util.spec_from_file_location("random_steps", Path(sys.argv[1]) / "random_steps.py")
steps = importlib.util.module_from_spec(spec)
sys.modules["random_steps"] = steps
spec.loader.exec_module(steps)
networks = steps.networks
threads = int(sys.argv[2])
for word in sys.argv[3:]:
    if word == "unet":
        model = meta500.models.create("unet", n=1, batch=2 * threads - 1, size=(16, 48), depth=2, dtype="float32")
        rng = np.random.default_rng(0)
        fed = {n: rng.standard_normal(t.shape).astype("float32") for n, t in model.inputs.items() if n == "image"}
        fed["label"] = rng.integers(0, 3, model.inputs["label"].shape)
        with meta500.network(model, backend="generated", threads=threads) as net:
            trainer = net.native_optimizer("adam", learning_rate=0.01)
            losses = [float(trainer.train(fed)["loss"]) for _ in range(3)]
            assert losses[2] < losses[0], losses
            net.inference(fed)
    elif word == "strided":
        # The last element of an array of the caller is the last one that a window sees.
        rng = np.random.default_rng(0)
        for width, kernel in ((17, 3), (15, 1)):
            builder = Builder("strided")
            x = builder.input("x", np.float64, (threads, 1, width, width))
            weight = builder.parameter("p", rng.standard_normal((2, 1, kernel, kernel)))
            y = builder.add(ops.Conv, x, weight, None, kernel_shape=(kernel, kernel), strides=(2, 2))
            builder.output(y)
            builder.output(builder.add(ops.ReduceMean, builder.add(ops.Mul, y, y), keepdims=0, outputs=["loss"]))
            networks.check(builder.build(), {"x": rng.standard_normal((threads, 1, width, width))}, threads)
    elif word in ("reduction", "atomics"):
        # Additions to where a window went: some of its taps were beyond the edge of the caller's array.
        rng = np.random.default_rng(0)
        for images in (1, threads):
            builder = Builder("scattered")
            x = builder.input("x", np.float64, (images, 1, 3, 9))
            weight = builder.parameter("p", rng.standard_normal((2, 1, 3, 3)))
            y = builder.add(ops.Conv, x, weight, None, kernel_shape=(3, 3), pads=(1, 1, 1, 1))
            builder.output(y)
            builder.output(builder.add(ops.ReduceMean, builder.add(ops.Mul, y, y), keepdims=0, outputs=["loss"]))
            fed = {"x": rng.standard_normal((images, 1, 3, 9))}
            networks.check(builder.build(), fed, threads, adjoint=word)
    elif word.startswith("operators"):
        model, fed, text = steps.seeded(int(word.removeprefix("operators")))
        networks.check(model, fed, threads, least=1.0)
    else:
        model, fed, text = networks.seeded(int(word))
        networks.check(model, fed, threads)
    print("clean", word, flush=True)
"""


def run(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # The library that throws has to be there before the sanitizer looks for it.
    libraries = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        # Python itself leaks on purpose; stacks of threads are no leak either.
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "CXX": "g++",
        "CXXFLAGS": CHECKED,
        "META500_CACHE": str(folder),
    }
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def clean(folder: Path, threads: int, *words: str) -> None:
    ended = run(folder, PROGRAM, str(Path(__file__).parent), str(threads), *words)
    report = ended.stderr[-6000:]
    assert "ERROR: AddressSanitizer" not in ended.stderr, report
    assert "runtime error" not in ended.stderr, report
    assert ended.returncode == 0, report
    assert ended.stdout.split() == [w for word in words for w in ("clean", word)]


@pytest.fixture(scope="module", autouse=True)
def sanitizers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips where g++ has none."""
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("sanitized")
    source = folder / "a.cpp"
    source.write_text("int main() { return 0; }\n")
    command = ["g++", "-fsanitize=address,undefined", str(source), "-o", str(folder / "a")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("g++ has no sanitizers here")


@pytest.mark.slow
def test_a_small_unet_and_a_random_network(tmp_path):
    clean(tmp_path, THREADS, "unet", "4")


@pytest.mark.slow
def test_windows_with_steps_of_two_end_where_the_array_ends(tmp_path):
    clean(tmp_path, THREADS, "strided")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("adjoint", ["reduction", "atomics"])
def test_scattered_additions_stay_inside_of_the_array(tmp_path, adjoint):
    clean(tmp_path, THREADS, adjoint)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ('extern "C" int f(int *a) { return a[64]; }', "heap-buffer-overflow"),
        ('extern "C" int f(int *a) { return a[0] << 40; }', "shift exponent"),
    ],
)
def test_the_sanitizers_would_see_it(tmp_path, code, words):
    program = f"""
import ctypes, numpy as np
from meta500.backends.toolchain import compile_text, load_library
f = load_library(compile_text({{"a.cpp": {code!r}}})).f
a = np.ones(64, np.int32).copy()
f(ctypes.c_void_p(a.ctypes.data))
"""
    ended = run(tmp_path, program)
    assert words in ended.stderr
    assert ended.returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("first", range(0, 60, 10))
def test_many_random_networks_under_sanitizers(tmp_path, threads, first):
    clean(tmp_path, threads, "unet", *(str(seed) for seed in range(first, first + 10)))


@pytest.mark.slow
@pytest.mark.parametrize("threads", sorted({1, THREADS}))
@pytest.mark.parametrize("first", range(0, 80, 10))
def test_many_random_operators_under_sanitizers(tmp_path, threads, first):
    clean(tmp_path, threads, *(f"operators{seed}" for seed in range(first, first + 10)))
