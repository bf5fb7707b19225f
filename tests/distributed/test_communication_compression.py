"""Top-k compression with error feedback."""

from pathlib import Path

import numpy as np
import pytest

from meta500.distributed.compression import TopK, from_text
from meta500.errors import UserError

HERE = Path(__file__).parent


@pytest.mark.sampled(3, first=1)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_exchanges_against_simulation(mpiexec, ranks):
    mpiexec(ranks, HERE / "compression_checks.py")


def test_number_of_elements():
    assert [TopK(0.01).kept(n) for n in (0, 1, 99, 100, 101, 300, 1000)] == [0, 1, 1, 1, 2, 3, 10]
    assert [TopK(1.0).kept(n) for n in (0, 1, 7)] == [0, 1, 7]
    for fraction in (0.1, 0.3, 0.7):
        for n in (10, 30, 70, 1000):
            assert TopK(fraction).kept(n) == round(fraction * n)


def test_texts():
    assert from_text("top-k:0.25").fraction == 0.25
    assert str(from_text("top-k:0.25")) == "top-k:0.25"
    assert from_text("none") is None
    for text in ("top-k", "top-k:", "top-k:0", "top-k:1.5", "top-k:nan", "gzip:1", "none:1"):
        with pytest.raises(UserError):
            from_text(text)
    for fraction in (0, -1, 2, "0.1", None, True, np.nan):
        with pytest.raises(UserError, match="fraction"):
            TopK(fraction)
