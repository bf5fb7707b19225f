"""One-sided windows on real ranks."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.sampled(3, first=1)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_windows(mpiexec, ranks):
    mpiexec(ranks, HERE / "window_checks.py", timeout=120)
