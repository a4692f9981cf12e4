"""Recordings that small files blow up: deep stacks, patterns, references, compression."""

from __future__ import annotations

import gzip
import json
import marshal
import os
from pathlib import Path
from typing import Any

import pytest

from hotloop.base import documents, memory
from hotloop.errors import ProfileError
from hotloop.profiler.session import sample_totals
from hotloop.profiler.session.other_profilers import (
    chrome_trace,
    collapsed,
    function_totals,
    gecko,
    mojo,
    speedscope,
)
from hotloop.profiler.session.reading import read
from tests.profiler.session.test_other_profilers import gecko as gecko_document
from tests.profiler.session.test_other_profilers import read_text

DEPTH = 1_000
MAX_FRAMES = 128  # the outermost and the innermost 64


def nested_events(name: str) -> dict[str, Any]:
    """Return a trace of events that are each within the last one."""
    return {
        "traceEvents": [
            {"ph": "X", "pid": 1, "tid": 1, "ts": i, "dur": 4 * DEPTH - 2 * i, "name": name}
            for i in range(DEPTH)
        ]
    }


def deep_gecko() -> dict[str, Any]:
    document = gecko_document()
    thread = document["threads"][0]
    prefix: list[int | None] = [None, *range(DEPTH - 1)]
    thread["stackTable"] |= {"frame": [0] * DEPTH, "prefix": prefix, "length": DEPTH}
    thread["samples"]["stack"] = [DEPTH - 1] * len(thread["samples"]["stack"])
    return document


def deep_speedscope() -> dict[str, Any]:
    events = [{"type": "O", "frame": 0, "at": at} for at in range(DEPTH)]
    item = {"type": "evented", "unit": "seconds", "startValue": 0, "events": events}
    return {"shared": {"frames": [{"name": "f"}]}, "profiles": [item]}


def repeated_mojo() -> bytes:
    """Return a deep stack, and samples of a few bytes that repeat it."""
    deep = b"\x02\x011\0" + b"\x04" * DEPTH + b"\x09\x01"
    return b"MOJ\x02" + deep + b"\x02\x011\0\x0d\x09\x01" * 10


@pytest.mark.parametrize(
    "profile",
    [
        chrome_trace.read(nested_events("f (t.py:3)")),
        gecko.read(deep_gecko()),
        speedscope.read(deep_speedscope()),
        mojo.read(repeated_mojo()),
    ],
    ids=["chrome", "gecko", "speedscope", "mojo"],
)
def test_samples_of_a_deep_stack_do_not_keep_all_of_it(profile):
    # N stacks of up to N frames would take N² references: 40 GB for a file of a few megabytes.
    lengths = [len(sample.frames) for sample in profile.samples]
    assert max(lengths) == MAX_FRAMES


def test_spans_that_are_nested_too_deeply_count_as_their_outer_ones(tmp_path):
    document = {"traceEvents": nested_events("span")["traceEvents"]}
    document["traceEvents"].append(
        {"ph": "X", "pid": 1, "tid": 1, "ts": 2, "dur": 1, "name": "f (t.py:3)"}
    )
    profile = chrome_trace.read(document)
    assert list(profile.samples)
    assert max(len(span.path) for span in profile.spans) == 64
    assert any("within 64 others" in text for text in profile.missing)
    recorded = read_text(tmp_path, json.dumps(document), "trace.json")
    assert any("within 64 others" in problem for problem in recorded.problems)


@pytest.mark.parametrize(
    "line",
    [
        "main;" + "f (" * 200_000 + " 5",
        ";".join(f'process {i}:"python t.py"' for i in range(20_000)) + ";f (t.py:3) 5",
    ],
    ids=["places", "processes"],
)
def test_lines_are_parsed_in_linear_time(line):
    # Each took minutes or hours: patterns tried each length at each place.
    assert collapsed.read(f"{line}\nmain;f (t.py:3) 5\n".encode(), Path("stacks.txt")).samples


def test_metrics_are_parsed_in_linear_time():
    text = "P1;T0:1;t.py:f:3" + " 1" * 200_000 + "x\nP1;T0:1;t.py:f:3 5\n"
    with pytest.raises(ProfileError, match="in line 1"):
        collapsed.read(text.encode(), Path("stacks.txt"))


def test_metrics_of_austin_follow_the_stack():
    text = b"P1;T0:1;a b.py:f:3;c 4 d.py:g:9 500,1,-7\n"
    (sample,) = collapsed.read(text, Path("stacks.txt")).samples
    assert [tuple(frame) for frame in sample.frames] == [("f", "a b.py", 3), ("g", "c 4 d.py", 9)]
    assert (sample.ns, sample.is_idle) == (500_000, True)


# --- files of cProfile ----------------------------------------------------------------------------


def doubled() -> bytes:
    """Return a table in which each value holds the last one twice, and the last value is a key."""
    key = b")\x03z\x04t.pyi\0\0\0\0z\x01f"
    content = b"{" + key + b"\xa9\x02z\x01az\x01b"
    for number in range(59):
        content += key + b"\xa9\x02" + 2 * (b"r" + number.to_bytes(4, "little"))
    return content + b"r" + (59).to_bytes(4, "little") + b"N0"


def everyone_calls(own_s: float, *, is_shared: bool) -> bytes:
    """Return a table of functions that all call each other, perhaps with the same dict."""
    functions = [("t.py", number, "f") for number in range(14)]
    callers = dict.fromkeys(functions, (1, 1, own_s, 1.0))
    return marshal.dumps(
        {x: (1, 1, own_s, 1.0, callers if is_shared else dict(callers)) for x in functions}
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (doubled(), "refers to a container"),
        (everyone_calls(1.0, is_shared=True), "refers to a container"),
        (everyone_calls(0.0, is_shared=False), "got none"),
        (b"{(\x01\0\0\0l\xff\xff\xff\x7f", "an integer of 2,147,483,647 digits"),
        (marshal.dumps({("a", ("b", 1), "c"): None}), "whose name contains others"),
    ],
    ids=["doubled", "shared callers", "no times", "long integer", "nested name"],
)
def test_hostile_files_of_cprofile_raise_one_sentence(tmp_path, content, message):
    with pytest.raises(ProfileError, match=message):
        read_text(tmp_path, content, "a.prof")


def test_small_shares_are_not_divided_among_many_callers():
    callers = [("t.py", number, "g") for number in range(2_000)]
    table: dict[Any, Any] = {x: (1, 1, 0.0, 1.0, {}) for x in callers}
    rare = dict.fromkeys(callers, (1, 1, 0.0, 1e-7))
    table["t.py", 1, "f"] = (1, 1, 1.0, 1.0, rare | {callers[0]: (1, 1, 1.0, 1.0)})
    samples = [x for x in function_totals.read(marshal.dumps(table)).samples if x.ns]
    assert len(samples) == 2
    assert sum(sample.ns for sample in samples) == 10**9


# --- compressed files and large ones --------------------------------------------------------------


def test_a_recording_that_unpacks_to_a_thousand_times_its_size_is_refused(tmp_path):
    content = gzip.compress(b"\n" * 2**26)
    with pytest.raises(ProfileError, match=r"bytes unpack to .* or more"):
        read_text(tmp_path, content, "stacks.txt.gz")


def test_json_needs_memory_for_its_containers(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**25)
    text = b"[" + b"[]," * 2**19 + b"1]"  # 1.5 MB, and 36 MB of lists
    (tmp_path / "trace.json").write_bytes(text)
    with pytest.raises(ProfileError, match="larger than the free memory"):
        read(tmp_path / "trace.json")
    assert len(documents.parse_large(b"[1,2]", tmp_path)) == 2


def test_long_names_are_cut(tmp_path):
    name, file = "f" * 5_000, f"/{'d' * 5_000}.py"
    recorded = read_text(tmp_path, f"main;{name} ({file}:3) 5000000\n")
    (frame,) = recorded.main.stacks[0].frames
    assert (len(frame.function), len(frame.file)) == (1_000, 4_096)


# --- samples of a profile -------------------------------------------------------------------------

HEADER = {
    "version": 1,
    "pid": 7,
    "parent_pid": 1,
    "component": "main",
    "boot_id": "b",
    "start_ns": 0,
    "interval_s": 0.01,
    "command": ["python"],
    "cores": 2,
}
PERIOD = {
    "t": 10**9,
    "last": True,
    "places": [["f", "/t.py", 1]],
    "stacks": [[[0], [3]]],
    "paths": [[]],
    "counts": [[7, 0, 0, 100, 10**9, 0, 10**9]],
    "threads": [[7, "python", 10**9, 0]],
    "spans": [],
    "cpu_ns": 10**9,
    "rss": 1000,
    "own_ns": 0,
    "facts": {},
    "problems": {},
    "others": [],
    "recordings": [],
}


def write_samples(
    folder: Path, name: str, header: dict[str, Any], *periods: dict[str, Any]
) -> None:
    lines = [HEADER | header, *(PERIOD | period for period in periods)]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / f"{name}.samples.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("period", "problem"),
    [
        ({"others": [[5, 1, 7, 0]]}, "`others` must be three numbers and a command"),
        (
            {"others": [["5", 1, "python", 0], [6, 1, "python", 0]]},
            "`others` must be three numbers",
        ),
        ({"others": [[[5], 1, "python", 0]]}, "`others` must be three numbers"),
        ({"executed": {"command": 5}}, "TypeError"),
        ({"executed": {"command": [5]}}, "`executed` must have a command of texts"),
        ({"executed": [5]}, "AttributeError"),
        ({"t": 10**400}, "it has no time"),
        ({"recordings": ["/a\0b/c.hlt"]}, "`recordings` must be paths"),
        ({"recordings": ["/\ud800/c.hlt"]}, "`recordings` must be paths"),
        ({"recordings": [f"/{'d' * 300}/c.hlt"]}, "`recordings` must be paths"),
        ({"recordings": [5]}, "`recordings` must be paths"),
        ({"facts": {"num_envs": 10**400}}, "facts"),
    ],
    ids=str,
)
def test_hostile_samples_are_reported_in_a_sentence(tmp_path, period, problem):
    write_samples(tmp_path, "main-7", {}, {}, {"t": 2 * 10**9, "stacks": [], "places": []} | period)
    try:
        problems = read(tmp_path).problems
    except ProfileError as error:
        problems = [str(error)]
    assert any(problem in text for text in problems)


def test_names_with_other_digits_are_sorted(tmp_path):
    for pid, name in enumerate(["main", "worker-\N{SUPERSCRIPT TWO}", f"worker-{'9' * 5000}"], 7):
        header = {"pid": pid, "component": name, "parent_pid": 7, "start_ns": pid}
        write_samples(tmp_path, f"p-{pid}", header, {"counts": []})
    assert len(read(tmp_path).processes) == 3


def test_environments_without_end_are_no_fact(tmp_path):
    write_samples(tmp_path, "main-7", {}, {})
    (tmp_path / "config.json").write_text(json.dumps({"config": {"num_envs": 10**400}}))
    assert "training" not in read(tmp_path).metadata


def test_the_spans_of_all_periods_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(sample_totals, "_MAX_SPANS", 5)
    spans = [[["a"], "work", 1, 5, 0], [["b"], "work", 1, 5, 0]]
    periods = [{"t": (i + 1) * 10**9, "spans": [], "recordings": ["a.hlt"]} for i in range(4)]
    periods[0] |= {"spans": spans, "recordings": []}
    write_samples(tmp_path, "main-7", {}, *periods)
    recorded = read(tmp_path)
    assert len(recorded.main.periods) == 2
    assert any("more than 5 spans" in problem for problem in recorded.problems)


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_other_files_are_named(tmp_path, kind):
    path = Path("/dev/null")
    if kind == "pipe":
        path = tmp_path / "pipe"
        os.mkfifo(path)
    with pytest.raises(ProfileError, match="is neither a directory nor a regular file"):
        read(path)
