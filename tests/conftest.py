"""Settings shared by all tests."""

import os

# Tests run next to each other on few cores: numerical libraries get one thread unless told otherwise.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("MPLBACKEND", "Agg")

from hypothesis import HealthCheck, settings  # noqa: E402

settings.register_profile("meta500", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("meta500")
