"""The C++ header that gives data and weights to a layer-4 program: compiled, and asked for every number."""

import shutil
import subprocess

import numpy as np
import pytest

from meta500.backends.generated.exaslang.files import HEADER
from meta500.benchmarks.generation.exaslang_files import TEXTS

FLAGS = ("-std=c++11", "-Wall", "-Wextra", "-Werror", "-O1")
pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")

NETWORK = """
#ifndef META500_NETWORK_H
#define META500_NETWORK_H
namespace meta500 {
static const Blocks blocks = {2, 3};
static const Array arrays[] = {
    {"f4.bin", Type::float32, 1.0, 2, 3, 6, 4, 0},
    {"f8.bin", Type::float64, 1.0, 2, 3, 6, 4, 0},
    {"i8.bin", Type::int64, 1.0, 2, 1, 6, 4, 7},
    {"i4.bin", Type::int32, 1.0, 2, 1, 6, 4, 0},
    {"u1.bin", Type::uint8, 0.5, 2, 3, 6, 4, 0},
};
}  // namespace meta500
#endif
"""

# Prints all numbers as a program asks for them: by the cell in its block and a position in the domain.
MAIN = """
#include "meta500_data.h"

int main() {
    using namespace meta500;
    training().read(arrays, 5);
    const long across = 4 / blocks.columns, down = 6 / blocks.rows;
    for (long a = 0; a < 5; ++a)
        for (long sample = 0; sample < arrays[a].samples; ++sample)
            for (long channel = 0; channel < arrays[a].channels; ++channel)
                for (long row = 0; row < 6; ++row)
                    for (long column = 0; column < 4; ++column) {
                        const long i0 = column % across, i1 = row % down;
                        /* Cells as wide as on level 5. */
                        const double x = (double(column / across) + (double(i0) + 0.5) / 32) / double(blocks.columns);
                        const double y = (double(row / down) + (double(i1) + 0.5) / 32) / double(blocks.rows);
                        std::printf("%.17g\\n", training().at(a, sample, channel, i0, i1, x, y, blocks));
                    }
    double weights[4];
    float narrow[2];
    meta500_load("weights.bin", 0, weights, 4, 6);
    meta500_load("weights.bin", 4, narrow, 2, 6);
    for (double w : weights) std::printf("%.17g\\n", w);
    meta500_save("trained.bin", 0, weights, 4, 6);
    meta500_save("trained.bin", 4, narrow, 2, 6);
    return 0;
}
"""


def compiled(folder, main, network):
    (folder / HEADER).write_bytes((TEXTS / "layer4" / HEADER).read_bytes())
    if network:
        (folder / "meta500_network.h").write_text(network)
    (folder / "main.cpp").write_text(main)
    done = subprocess.run(
        ["g++", *FLAGS, "main.cpp", "-o", "main"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(3)
    return {
        "f4": rng.standard_normal((2, 3, 6, 4)).astype("<f4"),
        "f8": rng.standard_normal((2, 3, 6, 4)).astype("<f8"),
        "i8": rng.integers(0, 7, (2, 1, 6, 4)).astype("<i8"),
        "i4": rng.integers(-(2**31), 2**31 - 1, (2, 1, 6, 4)).astype("<i4"),
        "u1": rng.integers(0, 256, (2, 3, 6, 4)).astype("u1"),
    }


@pytest.fixture(scope="module")
def binary(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("header"), MAIN, NETWORK)


@pytest.fixture
def folder(binary, arrays, tmp_path):
    """A folder with the program and its data."""
    shutil.copy(binary / "main", tmp_path / "main")
    for name, array in arrays.items():
        array.tofile(tmp_path / f"{name}.bin")
    np.arange(6.0).astype("<f8").tofile(tmp_path / "weights.bin")
    return tmp_path


def run(folder):
    return subprocess.run(["./main"], cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_all_numbers_of_all_types_and_blocks(folder, arrays):
    done = run(folder)
    assert (done.returncode, done.stderr) == (0, "")
    found = np.array([float(line) for line in done.stdout.split()])
    scales = {"u1": 0.5}
    wanted = [array.astype(np.float64).ravel() * scales.get(name, 1) for name, array in arrays.items()]
    np.testing.assert_array_equal(found, np.concatenate([*wanted, np.arange(4.0)]))


def test_weights_are_saved_whole_or_not_at_all(folder):
    run(folder)
    np.testing.assert_array_equal(np.fromfile(folder / "trained.bin", "<f8"), np.arange(6.0))
    assert not list(folder.glob("trained.bin.*"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("f4.bin", lambda raw: raw[:-1], "f4.bin: has not the 576 bytes"),
        ("f4.bin", lambda raw: raw + b"x", "f4.bin: has not the 576 bytes"),
        ("f8.bin", lambda raw: b"", "f8.bin: has not the 1152 bytes"),
        ("f8.bin", None, "f8.bin: cannot be opened"),
        ("i8.bin", lambda raw: np.int64(7).tobytes() + raw[8:], "i8.bin: has the label 7, of 7 classes"),
        ("i8.bin", lambda raw: raw[:-8] + np.int64(-1).tobytes(), "i8.bin: has the label -1, of 7 classes"),
        ("weights.bin", lambda raw: raw[:-8], "weights.bin: has not the 6 weights"),
        ("weights.bin", lambda raw: raw + raw, "weights.bin: has not the 6 weights"),
        ("weights.bin", None, "weights.bin: cannot be opened"),
    ],
)
def test_faults_of_the_files(folder, name, change, message):
    if change is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(change((folder / name).read_bytes()))
    done = run(folder)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {message}") and done.stderr.count("\n") == 1
    assert not (folder / "trained.bin").exists()


def test_a_folder_that_cannot_be_written(folder):
    (folder / "trained.bin").mkdir()
    done = run(folder)
    assert done.returncode == 2 and "cannot be written" in done.stderr and done.stderr.count("\n") == 1
