"""The order of samples: every number once, and in Python as in C++."""

import subprocess

import numpy as np
import pytest

from meta500.backends.compiler import compiler
from meta500.backends.generated.library import RUNTIME
from meta500.benchmarks.generation import sample_order
from meta500.benchmarks.generation.program import TEXTS
from meta500.errors import UserError

MAIN = """
#include <cstdio>
#include <cstdlib>
#include "shuffle.h"
int main(int, char **words) {
    for (long i : meta500::sample_order(std::atol(words[1]), std::strtoull(words[2], nullptr, 10),
                                        std::strtoull(words[3], nullptr, 10))) {
        std::printf("%ld\\n", i);
    }
}
"""


@pytest.fixture(scope="module")
def in_cpp(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shuffle")
    (folder / "main.cpp").write_text(MAIN)
    options = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fopenmp-simd", f"-I{TEXTS}", f"-I{RUNTIME}"]
    subprocess.run([*compiler(), *options, "main.cpp", "-o", "main"], cwd=folder, check=True)

    def order(*arguments):
        text = subprocess.run(
            [folder / "main", *map(str, arguments)], capture_output=True, text=True, check=True
        ).stdout
        return np.array(text.split(), np.int64)

    return order


@pytest.mark.parametrize("arguments", [(1, 0, 0), (2, 0, 0), (1438, 0, 1), (1000, 2**63 - 1, 2**33)])
def test_python_and_cpp_agree(in_cpp, arguments):
    order = sample_order(*arguments)
    assert np.array_equal(np.sort(order), np.arange(arguments[0]))
    assert np.array_equal(in_cpp(*arguments), order)


def test_orders_differ_and_are_uniform():
    assert not np.array_equal(sample_order(50, 0, 0), sample_order(50, 0, 1))
    assert not np.array_equal(sample_order(50, 0, 0), sample_order(50, 1, 0))
    counts = np.zeros((4, 4))
    for epoch in range(4000):
        counts[np.arange(4), sample_order(4, 3, epoch)] += 1
    # Chi squared of 16 cells with 9 degrees of freedom; 27.9 is exceeded once in a thousand seeds.
    assert ((counts - 1000) ** 2 / 1000).sum() < 27.9


@pytest.mark.parametrize("arguments", [(0, 0, 0), (3, -1, 0), (3, 0, -1), (3.0, 0, 0)])
def test_arguments_are_checked(arguments):
    with pytest.raises(UserError, match="must be an integer"):
        sample_order(*arguments)
