"""Settings shared by all tests."""

import atexit
import os
import shutil
import tempfile

# Tests run next to each other on few cores: numerical libraries get one thread unless told otherwise.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

# What tests and the processes that they start compile is kept in a folder of its own, shared by the workers of
# pytest-xdist (they inherit the variable) and removed by the process that made it.
if "META500_TEST_CACHE" not in os.environ:
    os.environ["META500_TEST_CACHE"] = tempfile.mkdtemp(prefix="meta500-tests-")
    atexit.register(shutil.rmtree, os.environ["META500_TEST_CACHE"], ignore_errors=True)
os.environ["META500_CACHE"] = os.environ["META500_TEST_CACHE"]

from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile("meta500", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("meta500")
