"""Settings shared by all tests."""

import atexit
import os
import shutil
import signal
import tempfile
from collections import Counter

# Tests run next to each other on few cores: numerical libraries get one thread unless told otherwise.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# Shells start background jobs with Ctrl-C ignored, and what tests start would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What tests and the processes that they start compile is kept in a folder of its own, shared by the workers of
# pytest-xdist (they inherit the variable) and removed by the process that made it.
if "META500_TEST_CACHE" not in os.environ:
    os.environ["META500_TEST_CACHE"] = tempfile.mkdtemp(prefix="meta500-tests-")
    atexit.register(shutil.rmtree, os.environ["META500_TEST_CACHE"], ignore_errors=True)
os.environ["META500_CACHE"] = os.environ["META500_TEST_CACHE"]

import pytest  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile("meta500", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("meta500")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Of a test marked ``sampled(n, first=k)``, cases k, k + n, ... run by default; the others are slow."""
    counts = Counter()
    for item in items:
        marker = item.get_closest_marker("sampled")
        if marker is None or not hasattr(item, "callspec"):
            continue
        test = item.nodeid.partition("[")[0]
        if (counts[test] - marker.kwargs.get("first", 0)) % marker.args[0]:
            item.add_marker(pytest.mark.slow)
        counts[test] += 1
