"""The trace, by the rules of the Trace Event Format."""

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
from hotloop.profiler.session import Session, Uncovered
from hotloop.timing.reader import EVENT, Place
from tests.profiler.sessions import START_NS, Span, period, process, session, span

METADATA = {
    "process_name": "name",
    "process_sort_index": "sort_index",
    "process_labels": "labels",
    "thread_name": "name",
    "thread_sort_index": "sort_index",
}


def written(one: Session, path: Path) -> dict[str, Any]:
    trace.write(one, path)
    content = json.loads(path.read_text("utf-8"))
    check(content)
    return content


def of(content: dict[str, Any], phase: str) -> list[dict[str, Any]]:
    return [event for event in content["traceEvents"] if event["ph"] == phase]


def check(content: dict[str, Any]) -> None:
    """Required fields, types, order, nesting, and that all numbers have names."""
    assert content["displayTimeUnit"] in ("ms", "ns")
    known_processes: dict[int, str] = {}
    known_threads: dict[tuple[int, int], str] = {}
    # Of each thread the spans around the latest one, as (start, end) in ns, and the latest start.
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
        assert event["pid"] in known_processes, "metadata stands first"
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
    one = session(
        process(
            spans=[
                span("iteration", 0.0, 2.0),
                span("iteration > env_step", 0.5, 1.0000005),
                span("iteration > queue", 1.25, 1.5, kind="wait"),
                span("send", 2.0, 2.5, kind="transfer", thread=1),
            ]
        )
    )
    content = written(one, tmp_path / "trace.json")
    assert of(content, "M") == [
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
    own = {"ph": "X", "pid": 100, "tid": 100}
    assert of(content, "X") == [
        {**own, "name": "iteration", "cat": "work", "ts": 0.0, "dur": 2e6},
        {**own, "name": "env_step", "cat": "work", "ts": 5e5, "dur": 500000.5},
        {**own, "name": "queue", "cat": "wait", "ts": 1.25e6, "dur": 2.5e5, "cname": "grey"},
        {
            **own,
            "tid": 101,
            "name": "send",
            "cat": "transfer",
            "ts": 2e6,
            "dur": 5e5,
            "cname": "thread_state_iowait",
        },
    ]
    assert of(content, "C") == of(content, "i") == []


def test_a_killed_worker_ends_where_it_was_seen_last(tmp_path):
    one = session(
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
    content = written(one, tmp_path / "trace.json")
    spans = [event for event in of(content, "X") if event["pid"] == 200]
    assert [(e["name"], e["ts"], e["dur"], e.get("args")) for e in spans] == [
        ("collect", 1.5e6, 2.5e6, {"still open": True}),
        ("env_step", 2e6, 5e5, None),
        ("env_step", 3e6, 1e6, {"still open": True}),
    ]
    (killed,) = of(content, "i")
    assert (killed["name"], killed["pid"], killed["ts"], killed["s"]) == ("killed", 200, 4e6, "p")
    labels = [e for e in of(content, "M") if e["name"] == "process_labels"]
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
            # What is stepped inside of a vector is not counted twice, what is beside it once.
            spans={
                "collect > vector_step": (50, 1.0),
                "collect > vector_step > env_step": (400, 0.9),
                "evaluate > env_step": (20, 0.1),
            },
        ),
    ]
    own = [
        span("collect > vector_step", 0.0, 0.01),
        span("collect > vector_step > env_step", 0.0, 0.001),
        span("evaluate > env_step", 2.0, 2.001),
    ]
    # Its environments are in other processes; after 2 s it begins another recording.
    other = [span("vector_step", 0.0, 0.01)]
    counts = [period(end_s, spans={"vector_step": (n, 1.0)}) for end_s, n in [(1, 10), (2, 5)]]
    facts = {"num_envs": 8.0}
    one = session(
        process(end_s=4.0, spans=own, periods=periods, facts=facts),
        process("other", pid=200, end_s=2.0, spans=other, periods=counts, facts=facts),
    )
    content = written(one, tmp_path / "trace.json")

    def series(name: str, key: str, pid: int = 100) -> list[tuple[float, float]]:
        events = [e for e in of(content, "C") if e["name"] == name and e["pid"] == pid]
        return [(event["ts"], event["args"][key]) for event in events]

    # Seconds of CPU before the first period's end are not all of that period. (8 − 5) / 2 = 1.5.
    assert series("CPU", "cores") == [(1e6, 1.5), (4e6, 0.0)]
    assert series("memory", "MB") == [(1e6, 100.0), (3e6, 250.0), (4e6, 0.0)]
    # 80 in the first second, 320 + 20 in the next two.
    assert series("env steps", "per second") == [(0.0, 80.0), (1e6, 170.0), (4e6, 0.0)]
    assert series("env steps", "per second", 200) == [(0.0, 80.0), (1e6, 40.0), (2e6, 0.0)]


def test_a_running_process_has_no_end_of_its_counters(tmp_path):
    one = session(process(state="running", periods=[period(1.0, resident=5_000_000)]))
    content = written(one, tmp_path / "trace.json")
    assert [(e["name"], e["ts"]) for e in of(content, "C")] == [("memory", 1e6)]


def test_spans_of_equal_times_stand_outer_first(tmp_path):
    spans = [span("a > b > c", 1.0, 2.0), span("a > b", 1.0, 2.0), span("a", 1.0, 2.0)]
    content = written(session(process(spans=spans)), tmp_path / "trace.json")
    assert [event["name"] for event in of(content, "X")] == ["a", "b", "c"]


def nested(rng: random.Random, path: str, start: int, end: int, thread: int) -> list[Span]:
    """Spans within spans, in nanoseconds."""
    found = [span(path, start / 1e9, end / 1e9, thread=thread)]
    while end - start > 1 and rng.random() < 0.7 and path.count(">") < 8:
        inner_end = rng.randint(start, end)
        found += nested(rng, f"{path} > {rng.choice('abc')}", start, inner_end, thread)
        start = inner_end
    return found


@pytest.mark.parametrize("seed", range(5))
def test_any_nesting_keeps_the_rules(tmp_path, seed):
    rng = random.Random(seed)
    processes = []
    for number in range(3):
        spans = []
        for thread in range(2):
            for first in range(0, 3000, 1000):
                spans += nested(rng, "abc"[thread], first, first + rng.randint(0, 1000), thread)
        name = f"worker-{number}"
        processes.append(process(name, role="worker", pid=300 + 10 * number, spans=spans))
    content = written(session(*processes), tmp_path / "trace.json")
    assert len(of(content, "X")) == sum(len(one.events) for one in processes)
    starts = sorted(START_NS + round(event["ts"] * 1000) for event in of(content, "X"))
    assert starts == sorted(int(t) for one in processes for t in one.events["start_ns"])


def test_threads_that_share_a_number_or_have_none_stay_apart(tmp_path):
    one = process(spans=[span("a", 0.0, 1.0), span("b", 0.5, 2.0, thread=1)])
    one.span_threads = [one.span_threads[0], one.span_threads[0]]
    assert {e["tid"] for e in of(written(session(one), tmp_path / "t.json"), "X")} == {100, 101}
    one.span_threads = []
    assert {e["tid"] for e in of(written(session(one), tmp_path / "t.json"), "X")} == {100, 101}


def test_any_name_is_valid_json(tmp_path):
    name = 'say "hi"\\\n\t\u2028é\udc80'
    one = session(process(name, spans=[span(name, 0.0, 1.0)]), about={"command": ["python", name]})
    one.problems.append(name)
    one.uncovered.append(Uncovered(7, 100, "./simulator", 10))
    content = written(one, tmp_path / "trace.json")
    assert [event["name"] for event in of(content, "X")] == [name]
    assert content["otherData"] == {
        "command": f"python {name}",
        "problems": [name],
        "not covered": ["7: ./simulator"],
    }


def test_compressed_is_the_same_and_always_the_same(tmp_path):
    one = session(process(spans=[span("a", 0.0, 1.0)]))
    trace.write(one, tmp_path / "trace.json")
    trace.write(one, tmp_path / "trace.json.gz")
    compressed = (tmp_path / "trace.json.gz").read_bytes()
    assert gzip.decompress(compressed) == (tmp_path / "trace.json").read_bytes()
    # Magic, deflate, no flags, so no name; no time (RFC 1952).
    assert compressed[:8] == b"\x1f\x8b\x08\x00" + bytes(4)


def test_a_process_without_anything(tmp_path):
    content = written(session(process()), tmp_path / "trace.json")
    assert {event["ph"] for event in content["traceEvents"]} == {"M"}


def test_where_nothing_can_be_written(tmp_path):
    one = session(process(spans=[span("a", 0.0, 1.0)]))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"file/trace\.json can't be written"):
        trace.write(one, tmp_path / "file" / "trace.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="folder can't be written"):
        trace.write(one, tmp_path / "folder")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_long_run_needs_little_memory(tmp_path):
    """Two full rings: 65,536 events, of which each would be some 500 bytes as a dictionary."""
    starts = START_NS + 1000 * np.arange(32768)
    events = np.zeros(32768, EVENT)
    events["start_ns"], events["end_ns"], events["depth"] = starts, starts + 700, 1
    processes = []
    for number in range(2):
        one = process(f"worker-{number}", pid=100 + number)
        one.spans, one.events = [Place(("env_step",), "work", 0)], events
        processes.append(one)
    tracemalloc.start()
    try:
        trace.write(session(*processes), tmp_path / "trace.json")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 7e6  # 4.7 as it is, 9.1 with the whole text
    content = json.loads((tmp_path / "trace.json").read_text())
    check(content)
    assert len(of(content, "X")) == 65536
