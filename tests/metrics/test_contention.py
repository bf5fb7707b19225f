"""What others do on the processors: this process and its descendants are not others, everybody else is."""

import os
import subprocess
import sys
import time

import pytest

from meta500.metrics import contention
from meta500.metrics.contention import Contention, busy_seconds, cores_here

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
    own[0] = None
    assert found.share() is None
    own[0], clock[0] = 12.0, 0.05
    assert found.share() is None
    clock[0], busy[0] = 10.0, 0.0  # there is no /proc/stat
    assert found.share() is None


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
def test_a_process_that_is_no_descendant_is_an_other(tmp_path):
    mark = tmp_path / "done"
    code = f"import os\n{_BURN.format(seconds=1.0)}\nopen({str(mark)!r}, 'w').write(str(os.getppid()))"
    (tmp_path / "burn.py").write_text(code)
    found, family = Contention(), contention._family_seconds()
    # The shell ends at once, and its child belongs to nobody here.
    subprocess.run(["sh", "-c", f'"{sys.executable}" "{tmp_path}/burn.py" >/dev/null 2>&1 &'], check=True)
    deadline = begin = time.monotonic()
    while not (mark.exists() and mark.read_text()):
        assert time.monotonic() < deadline + 60
        time.sleep(0.05)
    if mark.read_text() == str(os.getpid()):
        pytest.skip("processes without a parent become children of this one")
    assert contention._family_seconds() - family < 0.8
    assert found.share() * len(cores_here()) * (time.monotonic() - begin) >= 0.8


def test_busy_seconds_are_those_of_the_cores_asked_for(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(
        "cpu  100 0 0 900 0 0 0 0 0 0\n"
        "cpu0 10 1 2 500 9 3 4 5 7 8\n"
        "cpu1 100 0 0 400 0 0 0 0 0 0\n"
        "cpu10 1 0 0 0 0 0 0 0 0 0\nintr 5\n"
    )
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert busy_seconds([0], tmp_path) == 25 * tick
    assert busy_seconds([0, 1], tmp_path) == 125 * tick
    assert busy_seconds([0], tmp_path / "nowhere") == 0.0


def test_work_of_this_process_is_busy_time():
    cores = cores_here()
    before, own = busy_seconds(cores), time.process_time()
    while time.process_time() - own < 0.3:
        pass
    assert busy_seconds(cores) - before >= 0.2
