"""DistributedDataParallel against one rank with the whole batch; the checks are in torch_ddp_checks.py."""

import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).with_name("torch_ddp_checks.py")
# Another launcher's variables, which must not be believed.
ELSEWHERE = {
    "MASTER_ADDR": "192.0.2.1",
    "MASTER_PORT": "1",
    "RANK": "7",
    "WORLD_SIZE": "99",
    "LOCAL_RANK": "7",
}


@pytest.mark.parametrize("ranks", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3))])
def test_equals_one_rank_with_the_whole_batch(mpiexec, ranks):
    result = mpiexec(ranks, CHECKS, env=ELSEWHERE)
    assert result.stdout.splitlines() == [
        "exactness ok",
        "schedule_and_state ok",
        "sum_of_losses ok",
        "running_statistics ok",
        "unused_parameters ok",
        "agreement ok",
        "bad_input ok",
    ]


def test_a_rank_that_leaves_ends_the_step_of_the_others(mpiexec):
    assert "lost_rank ok" in mpiexec(2, CHECKS, "lost", returncode="failure").stdout


@pytest.mark.slow
def test_compiled_networks_equal_one_rank_with_the_whole_batch(mpiexec):
    assert mpiexec(2, CHECKS, "compiled", timeout=300).stdout == "compiled ok\n"


def test_importing_the_schemes_loads_neither_torch_nor_mpi():
    script = (
        "import sys, meta500.distributed, meta500.distributed.registry\n"
        "assert not {'torch', 'mpi4py', 'mpi4py.MPI'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
