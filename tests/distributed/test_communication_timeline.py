"""Timelines: recording, gathering, the trace file and its plot."""

import json
import math

import pytest

from meta500.distributed.timeline import Event, Timeline, chrome_trace, write_chrome_trace
from meta500.errors import UserError
from meta500.metrics.plots.timeline import (
    Span,
    draw_timeline,
    hidden_share,
    read_trace,
    timeline_plot,
    union,
)

EVENTS = [
    Event(0, "step", "step 1", 1_000_000, 9_000_000),
    Event(0, "compute", "backward", 1_000_000, 5_000_000),
    Event(0, "communication", "allreduce", 4_000_000, 8_000_000, 4096),
    Event(1, "step", "step 1", 1_500_000, 9_500_000),
    Event(1, "compute", "backward", 1_500_000, 6_000_000),
    Event(1, "communication", "allreduce", 4_000_000, 5_000_000, 4096),
    Event(1, "communication", "allreduce", 4_500_000, 9_000_123, 1),
]


def test_trace_file_round_trip(tmp_path):
    path = write_chrome_trace(EVENTS, tmp_path / "new" / "timeline.json")
    spans = read_trace(path)
    assert len(spans) == len(EVENTS)
    for span, event in zip(spans, EVENTS, strict=True):
        assert (span.rank, span.lane, span.name, span.bytes) == (
            event.rank,
            event.lane,
            event.name,
            event.bytes,
        )
        assert math.isclose(span.begin, (event.begin_ns - 1_000_000) * 1e-9, abs_tol=1e-12)
        assert math.isclose(span.end, (event.end_ns - 1_000_000) * 1e-9, abs_tol=1e-12)


def test_trace_event_format():
    trace = chrome_trace(EVENTS)
    json.dumps(trace)
    names = {(e["pid"], e["args"]["name"]) for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert names == {(0, "rank 0"), (1, "rank 1")}
    lanes = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    assert set(lanes.values()) == {"step", "compute", "communication"}
    for entry in trace["traceEvents"]:
        if entry["ph"] == "X":
            assert lanes[entry["pid"], entry["tid"]] == entry["cat"]
            assert entry["ts"] >= 0 and entry["dur"] >= 0
    assert chrome_trace([])["traceEvents"] == []


def test_recorder():
    timeline = Timeline(rank=3, limit=3)
    with pytest.raises(ZeroDivisionError), timeline.span("compute", "forward"):
        1 / 0  # noqa: B018
    timeline.extend([("communication", "reduce", 5, 9, 16), ("compute", "x", 1, 2, 0)])
    timeline.record("compute", "too many", 0, 1)
    assert [(e.rank, e.lane, e.name) for e in timeline.events] == [
        (3, "compute", "forward"), (3, "communication", "reduce"), (3, "compute", "x")
    ]  # fmt: skip
    assert timeline.events[0].end_ns >= timeline.events[0].begin_ns
    assert timeline.dropped == 1
    timeline.clear()
    assert (timeline.events, timeline.dropped) == ([], 0)


def test_hidden_share(tmp_path):
    spans = read_trace(write_chrome_trace(EVENTS, tmp_path / "t.json"))
    assert math.isclose(hidden_share(spans, 0), 1 / 4)
    assert math.isclose(hidden_share(spans, 1), 2 / 5.000123)
    assert math.isnan(hidden_share([s for s in spans if s.lane == "compute"], 0))
    assert union([(3, 4), (1, 2), (2, 2.5), (1.5, 1.6)]) == [(1, 2.5), (3, 4)]


def test_plot_from_the_file_alone(tmp_path):
    path = write_chrome_trace(EVENTS, tmp_path / "t.json")
    files = timeline_plot(path, [tmp_path / "t.png", tmp_path / "t.pdf"])
    assert all(file.stat().st_size > 3000 for file in files)
    figure = draw_timeline(read_trace(path))
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert labels == [f"rank {r}: {lane}" for r in (0, 1) for lane in ("compute", "communication")]
    assert [text.get_text() for text in figure.axes[0].texts] == ["25 %\nhidden", "40 %\nhidden"]
    # Cut to a range: only what is in it, and shares of that.
    cut = draw_timeline(read_trace(path), begin=0.0, end=0.0035)
    assert [text.get_text() for text in cut.axes[0].texts] == ["100 %\nhidden", "100 %\nhidden"]
    assert cut.axes[0].get_xlim() == (0, pytest.approx(3.5))


def test_last_steps_are_drawn(tmp_path):
    events = [
        event._replace(
            name=event.name.replace("1", str(k)),
            begin_ns=event.begin_ns + k * 10**7,
            end_ns=event.end_ns + k * 10**7,
        )
        for k in range(20)
        for event in EVENTS
    ]
    figure = draw_timeline(read_trace(write_chrome_trace(events, tmp_path / "t.json")))
    assert figure.axes[0].get_xlim()[1] == pytest.approx(10 + 8.5)


def test_bad_files(tmp_path):
    for text, message in [
        ("x", "no JSON"),
        ("{}", "Trace Event Format"),
        ('{"traceEvents": [{}]}', "Trace Event Format"),
    ]:
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(UserError, match=message):
            read_trace(tmp_path / "bad.json")
    with pytest.raises(UserError, match="cannot be read"):
        read_trace(tmp_path / "none.json")
    with pytest.raises(UserError, match="nothing in it"):
        draw_timeline([])
    spans = read_trace(write_chrome_trace(EVENTS, tmp_path / "t.json"))
    with pytest.raises(UserError, match="nothing happens"):
        draw_timeline(spans, begin=1.0, end=2.0)
    with pytest.raises(UserError, match="empty"):
        draw_timeline(spans, begin=2.0, end=1.0)


def test_gathered_from_all_ranks(mpiexec, tmp_path):
    program = f"""
import numpy as np, time
from meta500.distributed import CommunicationNetwork, Timeline
from meta500.distributed.timeline import clock_offset, write_chrome_trace
timeline = Timeline()
network = CommunicationNetwork(timeline=timeline)
with timeline.span("compute", "wait"):
    time.sleep(0.01 * network.rank)
network.sync_all(np.zeros(100))
network.sync_all_many({{"a": np.zeros(5)}})
assert clock_offset(network) == 0
events = timeline.gather(network)
assert (events is None) == (network.rank != 0)
if events:
    assert events == sorted(events, key=lambda e: (e.begin_ns, e.rank))
    assert {{(e.rank, e.lane, e.name, e.bytes) for e in events}} == {{
        (r, lane, name, count)
        for r in range(3)
        for lane, name, count in [
            ("compute", "wait", 0), ("communication", "sync_all", 1600), ("communication", "sync_all_many", 80)
        ]
    }}
    # An allreduce ends nowhere before it began everywhere: the clocks agree.
    calls = [e for e in events if e.name == "sync_all"]
    assert min(e.end_ns for e in calls) >= max(e.begin_ns for e in calls)
    write_chrome_trace(events, {str(tmp_path / "t.json")!r})
# Machines that differ: the way over messages, on one machine, whose offset must be small.
network._MPI = type("Elsewhere", (), {{"Get_processor_name": lambda: f"host {{network.rank}}"}})
assert abs(clock_offset(network)) < 50_000_000
"""
    mpiexec(3, program)
    assert len(read_trace(tmp_path / "t.json")) == 9


def test_long_names_fit_into_the_legend():
    spans = [Span(0, "compute", ", ".join(f"layer{i}.weight" for i in range(40)), 0, 5, 0)]
    texts = [text.get_text() for legend in draw_timeline(spans).legends for text in legend.get_texts()]
    assert texts == ["layer0.weight and 39 more"]
