"""Recordings of other profilers, as sessions with the same stacks."""

from __future__ import annotations

import contextlib
import cProfile
import gzip
import json
import marshal
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hotloop.cli import main
from hotloop.errors import ProfileError
from hotloop.profiler.diagnose import diagnose
from hotloop.profiler.render import flame
from hotloop.profiler.session import Frame, ProfiledProcess, Session
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.stages import innermost_user_line, stage_times
from tests.profiler.sessions import process, sample, session

RECORDINGS = Path(__file__).with_name("recordings")
MS = 1_000_000
SOURCE = """import functools


class Env:
    @functools.cache
    def step(self):
        def inner():
            return 1
        return inner()
"""


def plain(name: str) -> Frame:
    return Frame(name, "", 0)


def read_text(tmp_path: Path, text: str | bytes, name: str = "stacks.txt") -> Session:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read(path)


def seconds_by_line(process: ProfiledProcess, file: str) -> dict[int, float]:
    """Return the seconds of the main thread by line of a file, of the innermost frame there."""
    seconds: dict[int, float] = {}
    for item in process.samples:
        stack = process.stacks[item.stack]
        lines = [
            line
            for frame, line in zip(stack.frames, stack.lines, strict=True)
            if frame.file.endswith(file)
        ]
        if item.thread == process.pid and lines:
            seconds[lines[-1]] = seconds.get(lines[-1], 0.0) + item.elapsed_ns / 1e9
    return seconds


# --- real recordings of a program with a child process and a thread ------------------------------


@pytest.mark.parametrize("name", ["py-spy.txt", "speedscope.json", "austin.txt", "austin.mojo"])
def test_a_real_recording_has_processes_threads_and_lines(name):
    profile = read(RECORDINGS / name)
    assert [(x.name, x.role) for x in profile.processes] == [
        ("main", "main"),
        ("worker-0", "worker"),
    ]
    for recorded in profile.processes:
        lines = seconds_by_line(recorded, "train.py")
        assert max(lines, key=lambda line: lines[line]) == 7, "the line that sleeps"
    loaders = [x for x in profile.main.threads if x.number != profile.main.pid]
    assert len(loaders) == 1
    own = [x for x in profile.main.samples if x.thread == loaders[0].number]
    functions = {profile.main.stacks[x.stack].frames[-1].function for x in own}
    assert "spin" in functions
    assert all("recorded by" in problem for problem in profile.problems)
    assert profile.problems


def test_austin_in_full_mode_knows_when_a_thread_is_off_the_core():
    for name in ("austin.txt", "austin.mojo"):
        profile = read(RECORDINGS / name)
        sleeping = [x for x in profile.main.samples if 7 in profile.main.stacks[x.stack].lines]
        assert sum(x.blocked_ns for x in sleeping) > 0.4 * sum(x.elapsed_ns for x in sleeping)
        assert "--full" not in " ".join(profile.problems)


def test_torch_traces_have_spans_and_functions():
    profile = read(RECORDINGS / "torch.json.gz")
    paths = {path: node.count for path, node in profile.main.tree.walk()}
    assert paths[("collect",)] == 2
    assert len(profile.main.events) >= 4
    stepping_ns = sum(
        sample.elapsed_ns
        for sample in profile.main.samples
        if innermost_user_line(profile.main.stacks[sample.stack]).function == "step"
    )
    assert stepping_ns > 0.05 * stage_times(profile.main).total.elapsed_ns
    assert any(
        frame.function == "aten::addmm" for stack in profile.main.stacks for frame in stack.frames
    )


def test_the_report_of_a_recording(capsys):
    assert main(["report", str(RECORDINGS / "austin.txt")]) == 0
    text = capsys.readouterr().out
    assert "train.py:7 in Env.step" in text
    assert "what if" not in text
    assert "recorded by austin, whose overhead is unknown" in text


def test_two_recordings_are_compared(capsys):
    paths = [str(RECORDINGS / name) for name in ("py-spy.txt", "austin.mojo")]
    assert main(["compare", *paths]) == 0
    assert "stepping and resetting environments" in capsys.readouterr().out


# --- text -----------------------------------------------------------------------------------------


def test_stacks_of_hotloop_are_read_back(tmp_path):
    profile = session(
        process(
            "main",
            samples=[
                sample("main (/t.py:1)", "f (/t.py:9)", path="collect > act", elapsed_s=0.5),
                sample("main (/t.py:1)", elapsed_s=1.5),
            ],
        ),
        process("worker-0 (201)", role="worker", pid=201, samples=[sample("g (/t.py:3)")]),
    )
    flame.write_folded(profile, tmp_path / "stacks.txt")
    copy = read(tmp_path / "stacks.txt")
    assert flame.folded(copy) == flame.folded(profile)
    assert [x.role for x in copy.processes] == ["main", "worker"]


def test_py_spy_without_process_names(tmp_path):
    text = (
        "<module> (train.py:3);learn (ppo.py:40) 7\n"
        "<module> (train.py:3);f (x) (ppo.py) 2\n"
        "thread (0x7F12AB): loader;<module> (train.py:3) 1\n"
    )
    module = Frame("<module>", "train.py", 0)
    assert flame.folded(read_text(tmp_path, text)) == {
        (plain("main"), module, Frame("learn", "ppo.py", 40)): 70 * MS,
        (plain("main"), module, Frame("f (x)", "ppo.py", 0)): 20 * MS,
        (plain("main"), plain("thread loader"), module): 10 * MS,
    }


def test_py_spy_with_subprocesses(tmp_path):
    parent = 'process 10:"python -c import a; print("x")"'
    child = 'process 11:"python worker.py --n 3"'
    text = f"{parent};run (a.py:3) 5\n{parent};{child};step (env.py:4) 6\n{parent};{child} 1\n"
    profile = read_text(tmp_path, text)
    assert flame.folded(profile) == {
        (plain("main"), Frame("run", "a.py", 3)): 50 * MS,
        (plain("worker-0"), Frame("step", "env.py", 4)): 60 * MS,
        (plain("worker-0"), Frame("(no Python)", "<unknown>", 0)): 10 * MS,
    }
    assert [(x.pid, x.parent_pid) for x in profile.processes] == [(10, 0), (11, 10)]
    assert profile.processes[1].command == ["python", "worker.py", "--n", "3"]


def test_frames_of_the_sampler_are_left_out(tmp_path):
    text = (
        "_bootstrap (threading.py:1);Sampler._run (hotloop/profiler/collect/sampler.py:170) 50\n"
        "f (train.py:3) 1\n"
    )
    assert flame.folded(read_text(tmp_path, text)) == {
        (plain("main"), Frame("f", "train.py", 3)): 10 * MS
    }


AUSTIN = {
    "with interpreters": (
        "# austin: 3.7.0\n# interval: 100\n# mode: wall\n\n"
        "P10;T0:10;/t.py:g:3;/t.py:step:9 300\n"
        "P10;T0:10;/t.py:g:3;/t.py:step:9 200\n"
        "P10;T0:12;/t.py:run:5 100\n"
        "P11;T0:11;/t.py:g:3 50\n"
        "# duration: 650\n"
    ),
    "before 3.6": (
        "# austin: 3.0.0\n# mode: wall\n"
        "P10;T10;/t.py:g:3;/t.py:step:9 500\n"
        "P10;T12;/t.py:run:5 100\nP11;T11;/t.py:g:3 50\n"
    ),
    "before 3": (
        "P10;T10;/t.py:g;L3;/t.py:step;L9 500 0 0\n"
        "P10;T12;/t.py:run;L5 100 0 0\nP11;T11;/t.py:g;L3 50 0 0\n"
    ),
    "threads in hexadecimal": (
        "P10;T0:a;/t.py:g:3;/t.py:step:9 500\nP10;T0:12;/t.py:run:5 100\nP11;T0:b;/t.py:g:3 50\n"
    ),
}


@pytest.mark.parametrize("text", AUSTIN.values(), ids=list(AUSTIN))
def test_austin(tmp_path, text):
    outer = Frame("g", "/t.py", 3)
    assert flame.folded(read_text(tmp_path, text)) == {
        (plain("main"), outer, Frame("step", "/t.py", 9)): 500_000,
        (plain("main"), plain("thread 12"), Frame("run", "/t.py", 5)): 100_000,
        (plain("worker-0"), outer): 50_000,
    }


def test_austin_in_the_garbage_collector(tmp_path):
    text = "P10;T0:10;/t.py:f:3;:GC: 500\n"
    (stack,) = flame.folded(read_text(tmp_path, text))
    assert stack[-1] == Frame("GC", "<built-in>", 0)


def test_a_truncated_last_line_is_left_out(tmp_path):
    profile = read_text(tmp_path, "P10;T0:10;/t.py:f:3 500\nP10;T0:10;/t.py:f:")
    assert flame.folded(profile) == {(plain("main"), Frame("f", "/t.py", 3)): 500_000}


def test_collapsed_stacks_of_profiling_sampling(tmp_path):
    (tmp_path / "train.py").write_text(SOURCE)
    text = (
        "tid:77;train.py:<module>:30;train.py:step:9;train.py:inner:8 600\n"
        "tid:77;train.py:<module>:30;module.py:_call_impl:1770;<GC> 200\n"
        "tid:78;threading.py:wait:12 5\n"
    )
    profile = read_text(tmp_path, text)
    file = str(tmp_path / "train.py")
    assert flame.folded(profile) == {
        (
            plain("main"),
            Frame("<module>", file, 0),
            Frame("Env.step", file, 5),
            Frame("Env.step.<locals>.inner", file, 7),
        ): 600 * MS,
        (
            plain("main"),
            Frame("<module>", file, 0),
            Frame("_call_impl", "<module.py>", 1770),
            Frame("<GC>", "<built-in>", 0),
        ): 200 * MS,
        (plain("main"), plain("thread 78"), Frame("wait", threading.__file__, 12)): 5 * MS,
    }
    assert seconds_by_line(profile.main, "train.py") == {8: 0.6, 30: 0.2}
    assert "files have no folders" in profile.problems[0]


# --- JSON -----------------------------------------------------------------------------------------


def gecko() -> dict[str, Any]:
    """Return a document as profiling.sampling writes it: 40 samples at 10 ms, 20 off the CPU."""
    meta = {"interval": 10.0, "importedFrom": "Tachyon Sampling Profiler", "product": "Python"}
    thread = {
        **dict.fromkeys(("pid", "tid"), 12),
        "isMainThread": True,
        "samples": {"stack": [0, 1] * 20, "time": [10.0 * i for i in range(40)]},
        "stackTable": {"frame": [0, 1], "prefix": [None, 0]},
        "frameTable": {"func": [0, 1], "line": [3, 9]},
        "funcTable": {"name": [5, 1], "fileName": [2, 2]},
        "markers": {"name": [4], "startTime": [200.0], "endTime": [400.0]},
    }
    texts = ["(root)", "step", "train.py", "sleep", "Off CPU", "<module>"]
    return {"meta": meta, "threads": [thread], "shared": {"stringArray": texts}}


def test_gecko_profiles_of_profiling_sampling(tmp_path):
    profile = read_text(tmp_path, json.dumps(gecko()), "profile.json")
    assert {x.stack: (x.count, x.elapsed_ns, x.on_core_ns) for x in profile.main.samples} == {
        0: (20, 200 * MS, 100 * MS),
        1: (20, 200 * MS, 100 * MS),
    }
    assert [frame.function for frame in profile.main.stacks[1].frames] == ["<module>", "step"]
    assert profile.main.stacks[1].lines == (3, 9)
    assert (profile.main.start_ns, profile.main.end_ns) == (0, 400 * MS)


def test_speedscope_with_opening_and_closing_frames(tmp_path):
    places = (("O", 0, 0), ("O", 1, 4), ("C", 1, 9), ("C", 0, 10))
    events = [{"type": kind, "frame": frame, "at": at} for kind, frame, at in places]
    evented = {"type": "evented", "name": "simple", "unit": "milliseconds", "events": events}
    frames = [{"name": "f", "file": "/t.py", "line": 3}, {"name": "g"}]
    profiles = [{**evented, "startValue": 0, "endValue": 9}]
    document = {"shared": {"frames": frames}, "profiles": profiles}
    folded = flame.folded(read_text(tmp_path, json.dumps(document), "a.json"))
    f = Frame("f", "/t.py", 3)
    assert folded == {
        (plain("simple"), f): 5 * MS,
        (plain("simple"), f, Frame("g", "<built-in>", 0)): 5 * MS,
    }


def test_chrome_traces_of_other_tracers(tmp_path):
    events = [
        {"ph": "X", "pid": 7, "tid": 7, "ts": 1000, "dur": 9000, "name": "update"},
        {"ph": "B", "pid": 7, "tid": 7, "ts": 2000, "name": "f (/t.py:3)"},
        {"ph": "E", "pid": 7, "tid": 7, "ts": 6000},
        {"ph": "X", "pid": 7, "tid": 7, "ts": 7000, "dur": "?", "name": "damaged"},
        {"ph": "M", "name": "process_name"},
    ]
    profile = read_text(tmp_path, json.dumps(events), "trace.json")
    assert flame.folded(profile) == {
        (plain("main"), plain("[update]"), Frame("f", "/t.py", 3)): 4 * MS
    }
    assert {path: node.total_ns for path, node in profile.main.tree.walk()} == {("update",): 9 * MS}


def test_kernels_become_a_gpu_window(tmp_path):
    host = {"ph": "X", "pid": 7, "tid": 7, "cat": "python_function", "name": "t.py(3): f"}
    kernel = {"ph": "X", "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm"}
    events = [
        host | {"ts": 0, "dur": 5000},
        kernel | {"ts": 1000, "dur": 2000, "args": {"device": 0, "stream": 7, "correlation": 1}},
    ]
    document = {"schemaVersion": 1, "traceEvents": events}
    profile = read_text(tmp_path, json.dumps(document), "trace.json")
    (window,) = profile.gpu
    assert window.work["end_ns"].tolist() == [3 * MS]
    assert main(["report", str(tmp_path / "trace.json")]) == 0


# --- totals of functions --------------------------------------------------------------------------


def test_cprofile(tmp_path):
    profiler = cProfile.Profile()
    profiler.runcall(lambda: [sum(range(20_000)) for _ in range(50)])
    profiler.dump_stats(tmp_path / "train.prof")
    profile = read(tmp_path / "train.prof")
    inner = max(profile.main.samples, key=lambda x: x.elapsed_ns)
    stack = profile.main.stacks[inner.stack]
    assert stack.frames[-1] == Frame("<built-in method builtins.sum>", "<built-in>", 0)
    assert stack.frames[0].function == "<lambda>"
    assert stack.frames[0].file == __file__


def test_sampled_totals_are_divided_among_callers(tmp_path):
    main_, step, learn, mul = (("/t.py", n, name) for n, name in enumerate("msux", 1))
    stats = {
        main_: (0, 100, 0.0, 0.1, {}),
        step: (10, 40, 0.01, 0.04, {main_: 40}),
        learn: (0, 60, 0.0, 0.06, {main_: 60}),
        mul: (90, 90, 0.09, 0.09, {step: 30, learn: 60}),
        ("__sampled__",): True,
    }
    folded = flame.folded(read_text(tmp_path, marshal.dumps(stats), "a.pstats"))
    frames = {name: Frame(name, "/t.py", n) for n, name in enumerate("msux", 1)}
    assert folded == {
        (plain("main"), *(frames[name] for name in names)): ns
        for names, ns in {"ms": 10 * MS, "msx": 30 * MS, "mux": 60 * MS}.items()
    }


def test_a_source_that_changed_since_is_noted(tmp_path, capsys):
    source = tmp_path / "train.py"
    text = f"P7;T0:7;{source}:step:3 900000\nP7;T0:7;{source}:step:900 100000\n"
    (tmp_path / "a.austin").write_text(text)
    os.utime(tmp_path / "a.austin", (1e9, 1e9))
    source.write_text("def other():\n    return 1\n")
    assert main(["report", str(tmp_path / "a.austin")]) == 0
    report = capsys.readouterr().out
    assert f"{source} is newer than the profile: its lines may have changed" in report
    assert "train.py:3 in step" in report


# --- damaged and hostile files --------------------------------------------------------------------

FRAME = {"name": "f", "file": "/t.py", "line": 3}


def speedscope(**fields: Any) -> dict[str, Any]:
    item = {"type": "sampled", "name": "m", "unit": "seconds", "samples": [[0]], "weights": [1]}
    return {"shared": {"frames": [FRAME]}, "profiles": [item | fields]}


def damaged_gecko(table: str, **fields: Any) -> dict[str, Any]:
    document = gecko()
    document["threads"][0][table] |= fields
    return document


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"MOJ\x09", "version 9 of the MOJO format"),
        (b"MOJ\x03\x11", "unknown event 17"),
        (b"MOJ\x03", "expected stacks of austin"),
        (b"MOJ\x03\x01mode\0memory\0", "memory mode"),
        (b"MOJ\x03" + b"\x09" + b"\xff" * 20, "integer that is too long"),
        (b"# mode: memory\nP1;T0:1;/t.py:f:3 4096\n", "austin's memory mode"),
        (b"P1;T0:1;/t.py:f:3 5\nwhat is this\nP1;T0:1 5\n", "in line 2 of .*, got 'what is this'"),
        (b"\x89PNG\r\n\x1a\n\x00\n\xff 1\n", "in line 1 of .*"),
        (b"", "got none"),
        (b"main;f (t.py:3) 0\n", "got none"),
        (b"main;f (t.py:3) " + b"9" * 40, "must be int"),
        (b"{", "can't be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "got JSON with the keys of an empty object"),
        (b'{"a": 1}', "got JSON with the keys 'a'"),
        (speedscope(samples=[[1]]), "frame 1 must be below 1"),
        (speedscope(samples=[[-1]]), "frame -1 must be below 1"),
        (speedscope(weights=[-1]), "a time must be a number of 0 or more"),
        (speedscope(weights=[1e300]), "a time must be a number of 0 or more"),
        (speedscope(weights=[1, 2]), "zip"),
        ({"shared": {"frames": [{}]}, "profiles": []}, "a speedscope file.*KeyError"),
        (damaged_gecko("stackTable", prefix=[1, 0]), "impossible prefix"),
        (damaged_gecko("samples", stack=[9] * 40), "stack 9 must be below 2"),
        (damaged_gecko("frameTable", func=[7, 7]), "Firefox Profiler"),
        ({"traceEvents": []}, "no events with a duration"),
        ({"traceEvents": [{"ph": "X", "ts": 1e300, "dur": 1}]}, "no events with a duration"),
        (b"{(" + b"\xff\xff\xff\x7f", "tuple of"),
        (b"{)\x03", "ends too early"),
        (b"{" + b"(\x01\0\0\0" * 100, "nested too deeply"),
        (b"\x1f\x8bnothing", "can't be read"),
    ],
)
def test_damaged_files_raise_one_sentence(tmp_path, content, message):
    content = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "recording").write_bytes(content)
    with pytest.raises(ProfileError, match=message) as caught:
        read(tmp_path / "recording")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["py-spy.txt", "speedscope.json", "austin.mojo", "torch.json.gz"])
def test_a_truncated_recording_works_or_raises_a_profile_error(tmp_path, name):
    content = (RECORDINGS / name).read_bytes()
    if name.endswith(".gz"):
        content = gzip.decompress(content)
    for part in range(1, 12):
        (tmp_path / "part").write_bytes(content[: len(content) * part // 12])
        with contextlib.suppress(ProfileError):
            assert read(tmp_path / "part").main.samples


def test_a_main_thread_that_waits_is_left_out_by_py_spy(tmp_path):
    """Its thread's work is the program's, although no sample shows that the main thread waits."""
    recording = tmp_path / "stacks.txt"
    dumps = "dumps (/usr/lib/python3.11/json/__init__.py:9)"
    recording.write_text(
        "thread (0x7F01): MainThread;<module> (/me/train.py:90);main (/me/train.py:80) 20\n"
        f"thread (0x7F02): trainer;train (/me/data.py:5);{dumps} 600\n"
        "thread (0x7F02): trainer;train (/me/data.py:6) 380\n"
    )
    first, *_ = diagnose(read(recording))
    assert (first.rule, first.places[0].line) == ("text-and-bytes", 5)
    assert first.gain == pytest.approx(1 / (1 - 0.6), rel=0.1)
