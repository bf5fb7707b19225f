"""Tables of rules while several threads use them: custom operators may be defined at any time."""

import sys
import threading

import pytest

from meta500.backends import rules
from meta500.backends.rules import RuleTable


@pytest.fixture
def often_switched():
    """Threads that take turns every few instructions."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_a_rule_is_found_while_other_versions_are_registered(often_switched):
    table = RuleTable("somewhere")
    table.rule("Relu", 1)(lambda x: x)
    end = threading.Event()
    missed = []

    def look():
        while not end.is_set():
            if table.find("", "Relu", 1) is None:
                missed.append(1)

    watcher = threading.Thread(target=look)
    watcher.start()
    for version in range(400, 1, -1):
        table.rule("Relu", version)(lambda x: x)
    end.set()
    watcher.join()
    assert not missed
    assert [entry.since for entry in table] == list(range(1, 401))


def test_no_version_is_registered_twice_by_two_threads(often_switched):
    table = RuleTable("somewhere")
    taken = []

    def register():
        for version in range(1, 200):
            try:
                table.rule("Relu", version)(lambda x: x)
                taken.append(version)
            except ValueError as refusal:
                assert "registered twice" in str(refusal)

    threads = [threading.Thread(target=register) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == [entry.since for entry in table] == list(range(1, 200))


def test_what_waits_for_a_backend_is_called_once_whenever_it_comes(often_switched, monkeypatch):
    monkeypatch.setattr(rules, "_LOADED", {})
    monkeypatch.setattr(rules, "_WAITING", {})
    for trial in range(100):
        table, seen = RuleTable(f"backend{trial}"), []
        begin = threading.Barrier(2)

        def wait(table=table, seen=seen, begin=begin):
            begin.wait()
            for number in range(5):
                rules.when_loaded(table.backend, lambda _, number=number: seen.append(number))

        thread = threading.Thread(target=wait)
        thread.start()
        begin.wait()
        rules.loaded(table)
        thread.join()
        assert sorted(seen) == list(range(5))
