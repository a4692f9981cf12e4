"""Traces follow the rules of the Trace Event Format."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop.errors import OutputError
from hotloop.profiler.render import trace
from hotloop.profiler.session import Session, UnrecordedProcess
from hotloop.timing.reader import EVENT, SpanPath
from tests.profiler.sessions import START_NS, Span, period, process, session, span

METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "process_labels": "labels",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def write_trace(profile: Session, path: Path) -> dict[str, Any]:
    trace.write(profile, path)
    content = json.loads(path.read_text("utf-8"))
    check_trace(content)
    return content


def phase_events(content: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in content["traceEvents"] if event["ph"] == phase]


def check_trace(content: dict[str, Any]) -> None:
    """Check required fields, types, order and nesting, and that all ids have names."""
    assert content["displayTimeUnit"] in ("ms", "ns")
    known_processes: dict[int, str] = {}
    known_threads: dict[tuple[int, int], str] = {}
    # Per thread, the spans around the latest one as (start, end) in ns, and the latest start.
    around: dict[tuple[int, int], list[tuple[int, int]]] = {}
    latest: dict[tuple[int, int], int] = {}
    for event in content["traceEvents"]:
        phase = event["ph"]
        assert phase in "MXCi"
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is int
        if phase != "C":
            assert type(event["tid"]) is int
        if phase == "M":
            (field,) = event["args"]
            assert field == METADATA[event["name"]]
            if event["name"] == "process_name":
                assert event["pid"] not in known_processes
                known_processes[event["pid"]] = event["args"]["name"]
            if event["name"] == "thread_name":
                key = event["pid"], event["tid"]
                assert key not in known_threads
                known_threads[key] = event["args"]["name"]
            continue
        assert event["pid"] in known_processes, "metadata comes first"
        assert event["ts"] >= 0
        if phase == "C":
            assert event["args"]
            assert all(type(value) in (int, float) for value in event["args"].values())
        elif phase == "i":
            assert event["s"] in ("g", "p", "t")
        else:
            assert event["cat"] in ("work", "wait", "transfer")
            assert event["dur"] >= 0
            key = event["pid"], event["tid"]
            assert key in known_threads
            start = round(event["ts"] * 1000)
            end = start + round(event["dur"] * 1000)
            assert start >= latest.get(key, 0), "in the order of their starts"
            latest[key] = start
            outer = around.setdefault(key, [])
            while outer and outer[-1][1] <= start and (start, end) != outer[-1]:
                outer.pop()
            if outer:
                assert outer[-1][0] <= start
                assert end <= outer[-1][1], "a span ends within the one around it"
            outer.append((start, end))
    assert len(set(known_processes.values())) == len(known_processes)


def test_one_worker_step_by_step(tmp_path):
    example = session(
        process(
            spans=[
                span("iteration", 0.0, 2.0),
                span("iteration > env_step", 0.5, 1.0000005),
                span("iteration > queue", 1.25, 1.5, kind="wait"),
                span("send", 2.0, 2.5, kind="transfer", thread=1),
            ]
        )
    )
    content = write_trace(example, tmp_path / "trace.json")
    assert phase_events(content, "M") == [
        {"ph": "M", "name": name, "pid": 100, "tid": tid, "args": {key: value}}
        for name, tid, key, value in [
            ("process_name", 100, "name", "main"),
            ("process_sort_index", 100, "sort_index", 0),
            ("thread_name", 100, "name", "MainThread"),
            ("thread_sort_index", 100, "sort_index", 0),
            ("thread_name", 101, "name", "Thread-1"),
            ("thread_sort_index", 101, "sort_index", 1),
        ]
    ]
    common = {"ph": "X", "pid": 100, "tid": 100}
    assert phase_events(content, "X") == [
        {**common, "name": "iteration", "cat": "work", "ts": 0.0, "dur": 2e6},
        {**common, "name": "env_step", "cat": "work", "ts": 5e5, "dur": 500000.5},
        {**common, "name": "queue", "cat": "wait", "ts": 1.25e6, "dur": 2.5e5, "cname": "grey"},
        {
            **common,
            "tid": 101,
            "name": "send",
            "cat": "transfer",
            "ts": 2e6,
            "dur": 5e5,
            "cname": "thread_state_iowait",
        },
    ]
    assert phase_events(content, "C") == phase_events(content, "i") == []


def test_a_killed_worker_ends_at_its_last_record(tmp_path):
    example = session(
        process(spans=[span("iteration", 0.0, 9.0)]),
        process(
            "worker-0",
            role="worker",
            pid=200,
            state="killed",
            start_s=1.0,
            end_s=4.0,
            spans=[
                span("collect", 1.5),
                span("collect > env_step", 2.0, 2.5),
                span("collect > env_step", 3.0),
            ],
        ),
    )
    content = write_trace(example, tmp_path / "trace.json")
    spans = [event for event in phase_events(content, "X") if event["pid"] == 200]
    assert [(e["name"], e["ts"], e["dur"], e.get("args")) for e in spans] == [
        ("collect", 1.5e6, 2.5e6, {"still open": True}),
        ("env_step", 2e6, 5e5, None),
        ("env_step", 3e6, 1e6, {"still open": True}),
    ]
    (killed,) = phase_events(content, "i")
    assert (killed["name"], killed["pid"], killed["ts"], killed["s"]) == ("killed", 200, 4e6, "p")
    labels = [e for e in phase_events(content, "M") if e["name"] == "process_labels"]
    assert [(e["pid"], e["args"]["labels"]) for e in labels] == [(200, "killed")]


def test_counters(tmp_path):
    periods = [
        period(
            1.0,
            cpu_s=5.0,
            resident=100_000_000,
            spans={
                "collect > vector_step": (10, 0.5),
                "collect > vector_step > env_step": (80, 0.4),
            },
        ),
        period(
            3.0,
            cpu_s=8.0,
            resident=250_000_000,
            # Steps inside a vector environment count once, like steps beside it.
            spans={
                "collect > vector_step": (50, 1.0),
                "collect > vector_step > env_step": (400, 0.9),
                "evaluate > env_step": (20, 0.1),
            },
        ),
    ]
    main_spans = [
        span("collect > vector_step", 0.0, 0.01),
        span("collect > vector_step > env_step", 0.0, 0.001),
        span("evaluate > env_step", 2.0, 2.001),
    ]
    # The environments are in other processes.
    other_spans = [span("vector_step", 0.0, 0.01)]
    counts = [period(end_s, spans={"vector_step": (n, 1.0)}) for end_s, n in [(1, 10), (2, 15)]]
    facts = {"num_envs": 8.0}
    example = session(
        process(end_s=4.0, spans=main_spans, periods=periods, facts=facts),
        process("other", pid=200, end_s=2.0, spans=other_spans, periods=counts, facts=facts),
    )
    content = write_trace(example, tmp_path / "trace.json")

    def series(name: str, key: str, pid: int = 100) -> list[tuple[float, float]]:
        events = [e for e in phase_events(content, "C") if e["name"] == name and e["pid"] == pid]
        return [(event["ts"], event["args"][key]) for event in events]

    # CPU time before the first period's end is not only of that period. (8 − 5) / 2 = 1.5.
    assert series("CPU", "cores") == [(1e6, 1.5), (4e6, 0.0)]
    assert series("memory", "MB") == [(1e6, 100.0), (3e6, 250.0), (4e6, 0.0)]
    # 80 in the first second, 320 + 20 in the next two.
    assert series("env steps", "per second") == [(0.0, 80.0), (1e6, 170.0), (4e6, 0.0)]
    assert series("env steps", "per second", 200) == [(0.0, 80.0), (1e6, 40.0), (2e6, 0.0)]


def test_counters_of_a_running_process_have_no_end(tmp_path):
    example = session(process(state="running", periods=[period(1.0, resident=5_000_000)]))
    content = write_trace(example, tmp_path / "trace.json")
    assert [(e["name"], e["ts"]) for e in phase_events(content, "C")] == [("memory", 1e6)]


def test_spans_of_equal_times_are_outer_first(tmp_path):
    spans = [span("a > b > c", 1.0, 2.0), span("a > b", 1.0, 2.0), span("a", 1.0, 2.0)]
    content = write_trace(session(process(spans=spans)), tmp_path / "trace.json")
    assert [event["name"] for event in phase_events(content, "X")] == ["a", "b", "c"]


def nested(rng: random.Random, path: str, start: int, end: int, thread: int) -> list[Span]:
    """Return randomly nested spans, with times in nanoseconds."""
    spans = [span(path, start / 1e9, end / 1e9, thread=thread)]
    while end - start > 1 and rng.random() < 0.7 and path.count(">") < 8:
        inner_end = rng.randint(start, end)
        spans += nested(rng, f"{path} > {rng.choice('abc')}", start, inner_end, thread)
        start = inner_end
    return spans


@pytest.mark.parametrize("seed", range(5))
def test_random_nesting_follows_the_format(tmp_path, seed):
    rng = random.Random(seed)
    processes = []
    for number in range(3):
        spans = []
        for thread in range(2):
            for first in range(0, 3000, 1000):
                spans += nested(rng, "abc"[thread], first, first + rng.randint(0, 1000), thread)
        name = f"worker-{number}"
        processes.append(process(name, role="worker", pid=300 + 10 * number, spans=spans))
    content = write_trace(session(*processes), tmp_path / "trace.json")
    assert len(phase_events(content, "X")) == sum(len(worker.events) for worker in processes)
    starts = sorted(START_NS + round(event["ts"] * 1000) for event in phase_events(content, "X"))
    assert starts == sorted(int(t) for worker in processes for t in worker.events["start_ns"])


def test_threads_with_shared_or_missing_ids_are_separate(tmp_path):
    example = process(spans=[span("a", 0.0, 1.0), span("b", 0.5, 2.0, thread=1)])
    example.span_threads = [example.span_threads[0], example.span_threads[0]]
    assert {
        e["tid"] for e in phase_events(write_trace(session(example), tmp_path / "t.json"), "X")
    } == {100, 101}
    example.span_threads = []
    assert {
        e["tid"] for e in phase_events(write_trace(session(example), tmp_path / "t.json"), "X")
    } == {100, 101}


def test_any_name_is_valid_json(tmp_path):
    name = 'say "hi"\\\n\t\u2028é\udc80'
    example = session(
        process(name, spans=[span(name, 0.0, 1.0)]), metadata={"command": ["python", name]}
    )
    example.problems.append(name)
    example.unrecorded.append(UnrecordedProcess(7, 100, "./simulator", 10))
    content = write_trace(example, tmp_path / "trace.json")
    assert [event["name"] for event in phase_events(content, "X")] == [name]
    assert content["otherData"] == {
        "command": f"python {name}",
        "problems": [name],
        "not covered": ["7: ./simulator"],
    }


def test_compression_is_lossless_and_deterministic(tmp_path):
    example = session(process(spans=[span("a", 0.0, 1.0)]))
    trace.write(example, tmp_path / "trace.json")
    trace.write(example, tmp_path / "trace.json.gz")
    compressed = (tmp_path / "trace.json.gz").read_bytes()
    assert gzip.decompress(compressed) == (tmp_path / "trace.json").read_bytes()
    # Magic, deflate, no flags and therefore no name, and no time (RFC 1952).
    assert compressed[:8] == b"\x1f\x8b\x08\x00" + bytes(4)


def test_an_empty_process(tmp_path):
    content = write_trace(session(process()), tmp_path / "trace.json")
    assert {event["ph"] for event in content["traceEvents"]} == {"M"}


def test_unwritable_paths_raise(tmp_path):
    example = session(process(spans=[span("a", 0.0, 1.0)]))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/trace\.json can't be written"):
        trace.write(example, tmp_path / "file" / "trace.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="folder can't be written"):
        trace.write(example, tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_long_run_needs_little_memory(tmp_path):
    """Two full rings hold 65,536 events, each of some 500 bytes as a dictionary."""
    starts = START_NS + 1000 * np.arange(32768)
    events = np.zeros(32768, EVENT)
    events["start_ns"], events["end_ns"], events["depth"] = starts, starts + 700, 1
    processes = []
    for number in range(2):
        worker = process(f"worker-{number}", pid=100 + number)
        worker.spans, worker.events = [SpanPath(("env_step",), "work", 0)], events
        processes.append(worker)
    tracemalloc.start()
    try:
        trace.write(session(*processes), tmp_path / "trace.json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 7e6  # measured: 4.7, and 9.1 with the whole text in memory
    content = json.loads((tmp_path / "trace.json").read_text())
    check_trace(content)
    assert len(phase_events(content, "X")) == 65536
