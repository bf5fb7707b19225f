"""What others do on the processors: this process and its descendants are not others, everybody else is."""

import subprocess
import sys
import time

import pytest

from meta500.metrics import contention
from meta500.metrics.contention import Contention, cores_here

_BURN = "import time\nwhile time.process_time() < {seconds}: pass"


def test_others_are_what_was_busy_and_not_of_this_family(monkeypatch):
    busy, own, clock = [100.0], [7.0], [0.0]
    monkeypatch.setattr(contention, "busy_seconds", lambda cores: busy[0])
    monkeypatch.setattr(contention, "_family_seconds", lambda: own[0])
    monkeypatch.setattr(contention.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(contention, "cores_here", lambda: [0, 3])
    found = Contention()
    clock[0], busy[0], own[0] = 10.0, 112.0, 12.0
    assert found.share() == pytest.approx(7 / 20)
    own[0] = 20.0  # ticks are rounded
    assert found.share() == 0.0
    clock[0] = 0.05
    assert found.share() == 0.0


def test_children_that_run_and_that_have_ended_belong_to_the_family():
    before = contention._family_seconds()
    subprocess.run([sys.executable, "-c", _BURN.format(seconds=0.5)], check=True)
    ended = contention._family_seconds()
    assert ended - before >= 0.4
    with subprocess.Popen([sys.executable, "-c", _BURN.format(seconds=600)]) as child:
        try:
            deadline = time.monotonic() + 60
            while contention._family_seconds() - ended < 0.4 and time.monotonic() < deadline:
                time.sleep(0.05)
            assert contention._family_seconds() - ended >= 0.4
        finally:
            child.kill()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc/stat")
def test_a_process_that_is_no_descendant_is_an_other():
    found = Contention()
    # The shell ends at once, and its child belongs to nobody here.
    code = _BURN.format(seconds=1.0)
    subprocess.run(["sh", "-c", f'"{sys.executable}" -c "{code}" >/dev/null 2>&1 &'], check=True)
    deadline = time.monotonic() + 60
    begin = time.monotonic()
    while found.share() * len(cores_here()) * (time.monotonic() - begin) < 0.5:
        assert time.monotonic() < deadline
        time.sleep(0.1)
