"""Sessions read from the files of processes: one clock, kills, damaged and foreign files."""

from __future__ import annotations

import json
import os
import shutil
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotloop import timing
from hotloop.base.processes import boot_id, process_start
from hotloop.errors import OutputError, ProfileError
from hotloop.profiler.collect import samples as samples_file
from hotloop.profiler.diagnose.source import source_line
from hotloop.profiler.session import ProfiledProcess, Session, UnrecordedProcess, sample_totals
from hotloop.profiler.session.reading import merge, read
from hotloop.profiler.session.saving import load, save
from hotloop.timing import Node, Recording
from hotloop.timing.reader import RecordedThread
from tests.profiler.sessions import (
    Span,
    at,
    events,
    ns,
    period,
    process,
    sample,
    session,
    span,
    tree,
)


class RecordingWithTree(Recording):
    """A recording with a predefined tree."""

    stored_tree: Node

    def tree(self, thread: int | None = None) -> Node:
        return self.stored_tree


def recording(
    component: str = "main",
    *,
    pid: int = 100,
    parent_pid: int = 1,
    start_s: float = 0.0,
    end_s: float = 10.0,
    spans: Sequence[Span] = (),
    state: str = "complete",
    boot: str = "one",
) -> Recording:
    array, places = events(*spans)
    result = RecordingWithTree(
        path=Path(f"{component}-{pid}.hlt"),
        component=component,
        pid=pid,
        parent_pid=parent_pid,
        host="here",
        boot_id=boot,
        recorder="c",
        state=state,  # pyright: ignore[reportArgumentType]
        start_ns=at(start_s),
        end_ns=at(end_s),
        wall_offset_ns=0,
        threads=[RecordedThread("MainThread", pid, 1, False, ns(end_s - start_s), 0)],
        spans=places,
        events=array,
        open_spans=[],
        _segments=[],
    )
    result.stored_tree = tree(spans, component, start_s, end_s)
    return result


def line(
    end_s: float,
    *,
    places: Sequence[Any] = (),
    stacks: Sequence[Any] = (),
    paths: Sequence[Any] = (),
    counts: Sequence[Any] = (),
    **overrides: Any,
) -> dict[str, Any]:
    """Return a period as the sampler writes it."""
    return {
        "t": at(end_s), "places": places, "stacks": stacks, "paths": paths, "counts": counts,
        "threads": [[100, "python", ns(0.5), ns(0.1)]], "spans": [], "cpu_ns": ns(end_s / 2),
        "rss": 1 << 20, "own_ns": ns(end_s / 100), "facts": {}, "others": [], "recordings": [],
        **overrides,
    }  # fmt: skip


def make_header(
    *, pid: int = 100, start_s: float = 0.0, boot: str = "one", **overrides: Any
) -> dict[str, Any]:
    return {
        "version": 1, "pid": pid, "parent_pid": 1, "component": "main", "boot_id": boot,
        "start_ns": at(start_s), "interval_s": 0.01, "command": ["python", "x.py"], "cores": 2,
        **overrides,
    }  # fmt: skip


def samples(*periods: Mapping[str, Any], **header: Any) -> samples_file.Samples:
    return samples_file.Samples(
        make_header(**header), [dict(period_line) for period_line in periods], is_torn=False
    )


def by_name(merged: Session) -> dict[str, ProfiledProcess]:
    return {process.name: process for process in merged.processes}


# --- merging --------------------------------------------------------------------------------------


def test_processes_that_started_at_different_times_share_a_clock() -> None:
    merged = merge(
        [
            recording(pid=100, start_s=0.0, end_s=8.0, spans=[span("vector_step", 3.0, 4.0)]),
            recording(
                "process", pid=101, parent_pid=100, start_s=2.5, end_s=9.5,
                spans=[span("env_step", 3.1, 3.9)],
            ),
        ],
        [],
    )  # fmt: skip
    assert [process.name for process in merged.processes] == ["main", "worker-0"]
    assert (merged.start_ns, merged.end_ns) == (at(0.0), at(9.5))
    main, worker = merged.processes
    assert worker.start_ns == at(2.5)
    assert main.events["start_ns"][0] < worker.events["start_ns"][0]
    assert worker.events["end_ns"][0] < main.events["end_ns"][0] == at(4.0)


def test_a_killed_process_ends_at_its_last_record() -> None:
    merged = merge(
        [
            recording(end_s=8.0),
            recording(
                "worker-0", pid=101, parent_pid=100, end_s=3.25, state="killed",
                spans=[span("env_step", 3.0, 3.25)],
            ),
        ],
        [samples(line(1.0), line(2.0), line(3.0), pid=101)],
    )  # fmt: skip
    worker = by_name(merged)["worker-0"]
    assert (worker.state, worker.end_ns) == ("killed", at(3.25))
    assert worker.tree.find("env_step").count == 1
    assert len(worker.periods) == 3


def test_files_of_another_boot_are_reported() -> None:
    merged = merge(
        [recording(), recording("old", pid=7, boot="two")],
        [samples(line(1.0)), samples(line(1.0), pid=8, boot="two")],
    )
    assert [process.pid for process in merged.processes] == [100]
    assert [problem.partition(" are ")[0].partition(" is ")[0] for problem in merged.problems] == [
        "old-7.hlt",
        "samples of process 8",
    ]


def test_two_recordings_of_one_process_are_joined() -> None:
    first = recording(end_s=4.0, spans=[span("update", 1.0, 2.0)])
    second = recording(
        "learner", start_s=4.0, end_s=10.0, spans=[span("act", 5.0, 5.5), span("update", 6.0, 9.0)]
    )
    merged = merge([second, first], [])
    (process,) = merged.processes
    assert process.name == "learner"  # of the longer recording
    assert (process.start_ns, process.end_ns) == (at(0.0), at(10.0))
    assert process.tree.find("update").count == 2
    assert process.tree.find("update").total_ns == ns(4.0)
    assert [process.spans[number].path for number in process.events["span"]] == [
        ("update",), ("act",), ("update",),
    ]  # fmt: skip
    assert process.events["end_ns"].tolist() == [at(2.0), at(5.5), at(9.0)]


def test_period_spans_continue_in_a_second_recording() -> None:
    periods = [
        line(1.0, spans=[[["update"], "work", 5, 50, 0]], recordings=["a"]),
        line(2.0, spans=[[["update"], "work", 9, 90, 0]], recordings=["a"]),
        line(3.0, spans=[[["update"], "work", 2, 20, 0]], recordings=["a", "b"]),
        line(4.0, spans=[[["update"], "work", 4, 40, 1], [["update"], "wait", 1, 3, 0]],
             recordings=["a", "b"]),
    ]  # fmt: skip
    (process,) = merge([recording()], [samples(*periods)]).processes
    assert [period.spans["update",] for period in process.periods] == [
        (5, 50), (9, 90), (11, 110), (14, 133),
    ]  # fmt: skip


def test_period_spans_continue_in_a_program_that_replaced_another() -> None:
    first = samples(
        line(1.0, spans=[[["update"], "work", 5, 50, 0]]),
        line(2.0, spans=[[["update"], "work", 9, 90, 0], [["act"], "work", 1, 7, 0]]),
    )
    second = samples(line(4.0, spans=[[["update"], "work", 20, 200, 0]]))
    second.header["start_ns"] = at(3.0)
    (process,) = merge([recording()], [second, first]).processes
    assert [period.spans["update",] for period in process.periods] == [(5, 50), (9, 90), (29, 290)]
    assert process.periods[-1].spans["act",] == (1, 7)


PLACES = [["main", "/home/user/x.py", 1], ["step", "/home/user/x.py", 20]]


def test_samples_are_added_up() -> None:
    merged = merge(
        [recording()],
        [
            samples(
                line(1.0, places=PLACES, stacks=[[[0, 1], [5, 21]]], paths=[[], ["env_step"]],
                     counts=[[100, 1, 0, 60, 500, 20, 600], [55, 0, 0, 60, 0, 0, 600]],
                     facts={"num_envs": 2.0}),
                line(2.0, stacks=[[[0], [6]]],
                     counts=[[100, 1, 0, 40, 300, 10, 400], [100, 0, 1, 60, 6, 0, 600]],
                     facts={"num_envs": 4.0}),
            )
        ],
    )  # fmt: skip
    (process,) = merged.processes
    assert [stack.frames[-1].function for stack in process.stacks] == ["step", "main"]
    assert {sample[:3]: sample[3:7] for sample in process.samples} == {
        (100, ("env_step",), 0): (100, 800, 30, 1000),
        (55, (), 0): (60, 0, 0, 600),
        (100, (), 1): (60, 6, 0, 600),
    }
    assert [dict(period.by_path) for period in process.periods] == [
        {("env_step",): 60}, {("env_step",): 40, (): 60},
    ]  # fmt: skip
    assert [dict(period.by_stack) for period in process.periods] == [{0: 60}, {0: 40, 1: 60}]
    assert process.facts == {"num_envs": 4.0}
    assert (process.cpu_ns, process.own_ns) == (ns(1.0), ns(0.02))
    assert (process.interval_ns, process.cores, process.command) == (
        10_000_000,
        2,
        ["python", "x.py"],
    )


def test_a_program_that_replaced_itself_has_two_sample_files() -> None:
    first = line(
        1.0, places=PLACES, stacks=[[[0], [5]]], paths=[[]], counts=[[100, 0, 0, 1, 0, 0, 7]]
    )
    second = line(2.0, places=PLACES[1:], stacks=[[[0], [9]]], paths=[["a"]],
               counts=[[100, 0, 0, 1, 0, 0, 8]])  # fmt: skip
    (profiled,) = merge([], [samples(second, start_s=1.5), samples(first)]).processes
    assert [stack.frames[0].function for stack in profiled.stacks] == ["main", "step"]
    assert [(*sample[1:3], sample.elapsed_ns) for sample in profiled.samples] == [
        ((), 0, 7), (("a",), 1, 8),
    ]  # fmt: skip
    assert [(period.end_ns, period.by_stack) for period in profiled.periods] == [
        (at(1.0), {0: 1}), (at(2.0), {1: 1}),
    ]  # fmt: skip


def test_successive_processes_with_one_pid_are_separate() -> None:
    tables = {"places": [["f", "a.py", 1]], "stacks": [[[0], [2]]], "paths": [[]]}

    def file(start_s: float, ticks: int) -> samples_file.Samples:
        counts = [[7, 0, 0, 5, 0, 0, ns(0.5)]]
        return samples(
            line(start_s + 1, counts=counts, **tables),
            pid=7, parent_pid=100, start_s=start_s, ticks=ticks, component="process",
        )  # fmt: skip

    files = [samples(line(9.0), ticks=1), file(5.0, 30), file(1.0, 10), file(3.0, 20)]
    files += [file(3.5, 20)]  # a program that has replaced itself
    merged = merge([recording(), recording(pid=7, start_s=3.1, end_s=3.2)], files)
    main, *others = merged.processes
    assert main.pid == 100
    assert sorted((at(0) - x.start_ns, len(x.samples)) for x in others) == sorted(
        (at(0) - at(start_s), num) for start_s, num in ((1.0, 1), (3.0, 2), (5.0, 1))
    )
    for other in others:
        assert {sample.thread for sample in other.samples} == {other.pid}
    assert len({other.pid for other in others}) == 3
    assert [x.start_ns for x in others if x.tree.total_ns] == [at(3.0)]


def test_samples_after_damage_are_left_out() -> None:
    good = line(1.0, places=PLACES, stacks=[[[0], [5]]], paths=[[]],
                counts=[[100, 0, 0, 3, 0, 0, 30]])  # fmt: skip
    for bad in (
        line(2.0, counts=[[100, 0, 9, 1, 0, 0, 1]]),
        line(2.0, counts=[[100, 4, 0, 1, 0, 0, 1]]),
        line(2.0, stacks=[[[7], [1]]]),
        line(2.0) | {"cpu_ns": "much"},
        line(2.0) | {"rss": None},
        {"t": at(2.0)},
    ):
        merged = merge([recording()], [samples(good, bad)])
        (process,) = merged.processes
        assert [(sample.count, sample.elapsed_ns) for sample in process.samples] == [(3, 30)]
        assert len(process.periods) == 1
        assert [problem for problem in merged.problems if "process 100 are damaged" in problem]


@pytest.mark.parametrize(
    "header",
    [{"interval_s": 1e300}, {"interval_s": float("nan")}, {"command": ["python", 3]}],
    ids=["a huge number", "no number", "no text"],
)
def test_impossible_values_in_a_header_are_one_sentence(tmp_path: Path, header: Any) -> None:
    path = tmp_path / "main-100.samples.jsonl"
    content = [make_header(), line(1.0), make_header(pid=101) | header, line(1.0)]
    texts = [json.dumps(item) + "\n" for item in content]
    path.write_text("".join(texts[:2]))
    (tmp_path / "main-101.samples.jsonl").write_text("".join(texts[2:]))
    profile = read(tmp_path)
    assert [process.pid for process in profile.processes] == [100]
    assert [x for x in profile.problems if "got a file without their header" in x]


def test_samples_that_ended_early_are_reported() -> None:
    merged = merge([recording(end_s=30.0)], [samples(line(1.0))])
    (problem,) = merged.problems
    assert "no samples in its last 29 s" in problem
    assert not merge([recording(end_s=8.0)], [samples(line(1.0))]).problems
    # A killed process could not write its last samples.
    assert not merge([recording(end_s=30.0, state="killed")], [samples(line(1.0))]).problems


def test_names_roles_and_order() -> None:
    stepping = [span("env_step", 5.0, 6.0)]
    server = ["python", "-c", "from multiprocessing.forkserver import main; main(…)"]
    merged = merge(
        [
            *(
                recording("main", pid=200 + i, parent_pid=150, start_s=2.0 + i / 10, spans=stepping)
                for i in range(11)
            ),
            recording("main", pid=150, parent_pid=100, start_s=1.0),
            recording("main", pid=100, parent_pid=99, start_s=0.0),
            recording("tracker", pid=300, parent_pid=100, start_s=0.5),
            recording("tracker", pid=301, parent_pid=100, start_s=0.6),
        ],
        [
            samples(line(9.0), pid=100),
            samples(line(9.0), pid=150, command=server),
            *(samples(line(9.0), pid=200 + i, command=server) for i in range(11)),
        ],
    )
    assert [process.name for process in merged.processes] == [
        "main", "forkserver", "tracker", "tracker (301)",
        *(f"worker-{i}" for i in range(11)),
    ]  # fmt: skip
    assert [process.role for process in merged.processes][:4] == [
        "main",
        "helper",
        "helper",
        "helper",
    ]
    assert {process.role for process in merged.workers} == {"worker"}
    assert merged.main.pid == 100


def test_busy_pool_processes_are_workers() -> None:
    merged = merge(
        [
            recording(),
            *(recording(pid=pid, parent_pid=100, start_s=1.0) for pid in (101, 102, 103)),
        ],
        [
            samples(line(9.0, cpu_ns=ns(5.0)), pid=101),
            samples(line(9.0, cpu_ns=ns(0.01)), pid=102),
            samples(line(9.0, cpu_ns=ns(5.0)), pid=103),
        ],
    )
    assert [(process.name, process.role, process.pid) for process in merged.processes] == [
        ("main", "main", 100),
        ("process", "helper", 102),
        ("worker-0", "worker", 101),
        ("worker-1", "worker", 103),
    ]


def test_workers_keep_their_names() -> None:
    merged = merge(
        [
            recording("learner"),
            recording("worker-0", pid=101, parent_pid=100),
            recording("worker-10", pid=102, parent_pid=100),
            recording("worker-9", pid=103, parent_pid=100),
            recording("process", pid=104, parent_pid=100, spans=[span("env_step", 1.0, 2.0)]),
        ],
        [],
    )
    assert [(process.name, process.pid) for process in merged.processes] == [
        ("learner", 100), ("worker-0", 101), ("worker-1", 104), ("worker-9", 103),
        ("worker-10", 102),
    ]  # fmt: skip


def test_processes_without_a_recording_are_listed() -> None:
    merged = merge(
        [recording(), recording(pid=101, parent_pid=100)],
        [
            samples(
                line(1.0, others=[[101, 100, "python w.py", 5], [102, 100, "ffmpeg", 7]]),
                line(2.0, others=[[102, 100, "ffmpeg -i x", 9], [103, 102, "sh", 0]]),
            )
        ],
    )
    assert merged.unrecorded == [
        UnrecordedProcess(102, 100, "ffmpeg -i x", 9),
        UnrecordedProcess(103, 102, "sh", 0),
    ]


def test_samples_are_counted_by_period_beside_processes_without_a_recording() -> None:
    place = ["main", "/x.py", 1]
    merged = merge(
        [],
        [
            samples(
                line(
                    1.0, places=[place], stacks=[[[0], [1]]], paths=[[]],
                    counts=[[100, 0, 0, 60, 0, 0, ns(0.6)]], others=[[102, 100, "game", 7]],
                ),
                line(2.0, counts=[[100, 0, 0, 40, 0, 0, ns(0.4)]]),
            )
        ],
    )  # fmt: skip
    assert [dict(period.by_stack) for period in merged.main.periods] == [{0: 60}, {0: 40}]


def test_listed_commands_belong_to_the_program() -> None:
    """Forks are listed by the script's command, and processes of multiprocessing are left out."""
    command = (
        'python3.11 -c ... hotloop.profiler.collect.script {"directory": "p", "hooks": true} '
        "train.py --seed 1"
    )
    tracker = "python -c from multiprocessing.resource_tracker import main;main(10)"
    merged = merge(
        [recording()], [samples(line(1.0, others=[[101, 100, command, 5], [102, 100, tracker, 7]]))]
    )
    assert merged.unrecorded == [UnrecordedProcess(101, 100, "fork of python train.py --seed 1", 5)]


def test_partial_periods_of_the_first_second_are_joined() -> None:
    def part(end_s: float, samples: int, **overrides: Any) -> dict[str, Any]:
        return line(end_s, counts=[[100, 0, 0, samples, 0, 0, ns(0.01)]], **overrides)

    tables = {"places": [["f", "a.py", 1]], "stacks": [[[0], [2]]], "paths": [[]]}
    merged = merge(
        [],
        [
            samples(
                part(0.1, 9, early=True, **tables),
                part(0.4, 29, early=True),
                part(1.0, 58),
                part(2.0, 90),
            )
        ],
    )
    assert [(period.end_ns, period.by_stack) for period in merged.main.periods] == [
        (at(1.0), {0: 96}), (at(2.0), {0: 90}),
    ]  # fmt: skip
    assert [sample.count for sample in merged.main.samples] == [186]


def test_the_periods_of_a_long_run_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sample_totals, "_MAX_PERIODS", 4)
    tables = {"places": [["f", "a.py", 1]], "stacks": [[[0], [2]]], "paths": [[], ["a"]]}
    lines = [
        line(number, counts=[[100, number % 2, 0, number, 0, 0, ns(0.01)]],
             spans=[[["a"], "work", number, 10 * number, 0]], **(tables if number == 1 else {}))
        for number in range(1, 20)
    ]  # fmt: skip
    main = merge([], [samples(*lines)]).main
    # Four lines each, and the rest.
    assert [period.end_ns for period in main.periods] == [at(8), at(16), at(19)]
    assert [period.by_stack for period in main.periods] == [
        {0: sum(range(1, 9))}, {0: sum(range(9, 17))}, {0: 17 + 18 + 19},
    ]  # fmt: skip
    assert main.periods[0].by_path == {("a",): 1 + 3 + 5 + 7, (): 2 + 4 + 6 + 8}
    assert [period.spans["a",] for period in main.periods] == [(8, 80), (16, 160), (19, 190)]
    assert sum(sample.count for sample in main.samples) == sum(range(1, 20))


def test_the_state_follows_from_samples_alone() -> None:
    machine = {"host": os.uname().nodename, "boot": boot_id()}
    alive = {**machine, "pid": os.getpid(), "ticks": process_start(os.getpid())}
    for header, has_last, state in (
        (alive, True, "complete"),
        (alive, False, "running"),
        ({**alive, "ticks": alive["ticks"] - 1}, False, "killed"),  # another process with this pid
        ({**alive, "boot": "another"}, False, "unknown"),
        (machine, False, "unknown"),  # of an earlier version
    ):
        assert merge([], [samples(line(1.0, last=has_last), **header)]).main.state == state


def test_nothing_to_merge() -> None:
    with pytest.raises(ProfileError, match="from one machine and boot, got none"):
        merge([], [])


# --- files ----------------------------------------------------------------------------------------


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    """Write a real recording of this process and hand-written samples."""
    timing.start(tmp_path / "timing", "main")
    with timing.span("update"):
        pass
    path = timing.stop()
    assert path is not None
    (recorded,), _ = timing.read_directory(tmp_path / "timing")
    header = make_header(pid=recorded.pid, boot=recorded.boot_id) | {"start_ns": recorded.start_ns}
    periods = [line(1.0) | {"t": recorded.start_ns + 10**8 * i} for i in (1, 2, 3)]
    text = "".join(json.dumps(entry) + "\n" for entry in [header, *periods])
    (tmp_path / "timing" / f"main-{recorded.pid}.samples.jsonl").write_text(text)
    return tmp_path


def test_reading_a_directory(profile: Path) -> None:
    (profile / "profile.json").write_text('{"command": ["python", "x.py"], "exit_code": 3}')
    loaded = read(profile)
    assert loaded.problems == []
    assert loaded.metadata["exit_code"] == 3
    assert loaded.main.tree.find("update").count == 1
    assert len(loaded.main.periods) == 3
    assert len(read(profile / "timing").main.periods) == 3


def test_a_truncated_last_line_is_reported(profile: Path) -> None:
    (path,) = profile.glob("timing/*.jsonl")
    text = path.read_text()
    path.write_text(text[:-20])
    loaded = read(profile)
    assert len(loaded.main.periods) == 2
    (problem,) = loaded.problems
    assert "in the middle of a line" in problem
    # Lines after a lost line cannot be decoded.
    lines = text.splitlines(keepends=True)
    path.write_text("".join([lines[0], lines[1], lines[2][:-20] + "\n", lines[3]]))
    assert len(read(profile).main.periods) == 1


def test_foreign_files_are_reported(profile: Path) -> None:
    timings = profile / "timing"
    (timings / "other.hlt").write_bytes(b"not one of ours" * 10_000)
    (timings / "other.samples.jsonl").write_text('{"hello": 1}\n')
    (timings / "empty.samples.jsonl").write_text("")
    (timings / "late.samples.jsonl").write_text(json.dumps(make_header(version=2)) + "\n")
    (timings / "binary.samples.jsonl").write_bytes(bytes(range(256)) * 10)
    loaded = read(profile)
    assert len(loaded.processes) == 1
    assert len(loaded.problems) == 5
    for name in ("other.hlt", "other.samples", "empty.samples", "late.samples", "binary.samples"):
        assert sum(name in problem for problem in loaded.problems) == 1
    assert any("update hotloop" in problem for problem in loaded.problems)


def test_external_recordings_are_read_unless_older(
    profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("run")
    timing.start(run, "older")
    timing.stop()
    (older,) = run.glob("*.hlt")
    timing.start(run, "learner")
    with timing.span("learning"):
        pass
    path = timing.stop()
    (sampled,) = profile.glob("timing/*.jsonl")
    lines = [json.loads(text) for text in sampled.read_text().splitlines()]
    lines[-1]["recordings"] = [str(path)]
    (recorded,), _ = timing.read_directory(profile / "timing")
    # The profile started after the older run had ended.
    lines[0]["start_ns"] = timing.read(older).end_ns + 1
    sampled.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    recorded_path = recorded.path
    assert recorded_path is not None
    recorded_path.unlink()
    loaded = read(profile)
    assert [process.name for process in loaded.processes] == ["learner"]
    assert loaded.main.tree.find("learning").count == 1
    assert loaded.main.start_ns == lines[0]["start_ns"]


def set_recordings(profile: Path, *paths: Path) -> None:
    """Make the samples of a profile refer to recordings by absolute paths."""
    (sampled,) = profile.glob("timing/*.jsonl")
    lines = [json.loads(text) for text in sampled.read_text().splitlines()]
    for entry in lines[1:]:
        entry["recordings"] = [str(path) for path in paths]
    sampled.write_text("".join(json.dumps(entry) + "\n" for entry in lines))


def num_updates(loaded: Session) -> int:
    return loaded.main.tree.find("update").count


def test_a_copied_profile_is_read_without_its_original(profile: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    a.mkdir()
    (profile / "timing").rename(a / "timing")
    (recorded,) = a.glob("timing/*.hlt")
    set_recordings(a, recorded)
    shutil.copytree(a, b)
    assert (num_updates(read(a)), num_updates(read(b))) == (1, 1)
    assert num_updates(read(b / "timing")) == 1
    # Changes to the original have no effect.
    (a / "timing" / "torn.hlt").write_bytes(b"x")
    assert read(b).problems == []
    shutil.rmtree(a)
    assert num_updates(read(b)) == 1


def test_a_moved_profile_ignores_its_old_location(profile: Path, tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    b.mkdir()
    (profile / "timing").rename(b / "timing")
    (recorded,) = b.glob("timing/*.hlt")
    set_recordings(b, a / "timing" / recorded.name)
    assert num_updates(read(b)) == 1
    # Later, the same process writes another recording of the same name there.
    (b / "profile.json").write_text(json.dumps({"end_ns": time.monotonic_ns()}))
    timing.start(a / "timing", "main")
    for _ in range(5):
        with timing.span("update"):
            pass
    timing.stop()
    assert [path.name for path in a.glob("timing/*.hlt")] == [recorded.name]
    assert num_updates(read(b)) == 1


def test_the_recording_of_a_run_is_read_with_a_copied_profile(
    profile: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (recorded,) = profile.glob("timing/*.hlt")
    run = tmp_path_factory.mktemp("run")
    timing.start(run / "timing", "learner")
    with timing.span("learning"):
        pass
    path = timing.stop()
    assert path is not None
    (run / "config.json").write_text(json.dumps({"config": {"num_envs": 8}}))
    set_recordings(profile, recorded, path)
    copy = tmp_path_factory.mktemp("copies") / "copy"
    shutil.copytree(profile, copy)
    for directory in (profile, copy):
        loaded = read(directory).main
        assert (loaded.name, loaded.tree.find("learning").count) == ("learner", 1)
        assert loaded.tree.find("update").count == 1


def test_a_run_within_a_profile_is_read_from_the_copy(profile: Path, tmp_path: Path) -> None:
    a = tmp_path / "a"
    a.mkdir()
    (profile / "timing").rename(a / "timing")
    (recorded,) = a.glob("timing/*.hlt")
    timing.start(a / "run" / "timing", "learner")
    with timing.span("learning"):
        pass
    path = timing.stop()
    assert path is not None
    set_recordings(a, recorded, path)
    shutil.copytree(a, tmp_path / "b")
    path.write_bytes(b"another")
    loaded = read(tmp_path / "b")
    assert loaded.problems == []
    assert loaded.main.tree.find("learning").count == 1


def test_two_copies_of_samples_count_once(profile: Path) -> None:
    (sampled,) = profile.glob("timing/*.jsonl")
    shutil.copy(sampled, profile)
    assert len(read(profile).main.periods) == 3


def test_the_run_config_gives_the_number_of_environments(profile: Path) -> None:
    config = {"config": {"num_envs": 8, "workers": 0}}
    (profile / "config.json").write_text(json.dumps(config))
    assert read(profile).main.facts["num_envs"] == 8
    assert not read(profile).metadata["training"]["has_auto_workers"]
    config["auto"] = {"asked": {"workers": "auto"}, "chosen": {"workers": 0}}
    (profile / "config.json").write_text(json.dumps(config))
    assert read(profile).metadata["training"]["has_auto_workers"]
    (profile / "config.json").write_text("[]")
    assert "num_envs" not in read(profile).main.facts


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="does not exist"):
        read(tmp_path / "none")
    with pytest.raises(ProfileError, match=r"expected recordings .* got none: profile again"):
        read(tmp_path)
    (tmp_path / "seed_1" / "timing").mkdir(parents=True)
    with pytest.raises(ProfileError, match=r"choose a run in it, such as .*/seed_1$"):
        read(tmp_path)
    (tmp_path / "x.hlt").write_bytes(b"x")
    with pytest.raises(ProfileError, match="it has another format"):
        read(tmp_path)


def plain(value: Any) -> Any:
    """Return a value that can be compared with `==`."""
    if isinstance(value, np.ndarray):
        return value.dtype.descr, value.tolist()
    if isinstance(value, (Session, ProfiledProcess, Node)):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if type(value) is list else value


def full_session() -> Session:
    main = process(
        spans=[span("update", 0.0, 1.0), span("update > backward", 0.2, 0.5, kind="wait"),
               span("collect", 2.0)],
        samples=[sample("main (/home/user/x.py:3)", path="update", elapsed_s=2.0, on_core_s=1.5)],
        periods=[period(1.0, cpu_s=0.5, resident=7, spans={"update": (1, 1.0)},
                        by_path={"update": 9}, by_stack={0: 9})],
        facts={"num_envs": 4.0}, cores=2, own_ns=5, command=["python", "x.py"],
    )  # fmt: skip
    worker = process("worker-0", role="worker", pid=101, state="killed")
    return session(
        main, worker, metadata={"exit_code": -9}, unrecorded=[UnrecordedProcess(7, 100, "sh", 3)],
        problems=["torn"],
    )  # fmt: skip


def test_a_saved_session_is_loaded(tmp_path: Path) -> None:
    saved = full_session()
    save(saved, tmp_path / "session.npz")
    loaded = load(tmp_path / "session.npz")
    assert plain(loaded) == plain(saved)
    assert type(loaded.unrecorded[0]) is UnrecordedProcess
    assert loaded.main.stacks == saved.main.stacks
    assert type(loaded.main.stacks[0].frames[0]) is type(saved.main.stacks[0].frames[0])
    # The session is found by its file and by its directory.
    assert plain(read(tmp_path / "session.npz")) == plain(saved)
    assert plain(read(tmp_path)) == plain(saved)


def test_a_read_session_can_be_saved(profile: Path, tmp_path: Path) -> None:
    saved = read(profile)
    save(saved, tmp_path / "s.npz")
    assert plain(load(tmp_path / "s.npz")) == plain(saved)


def test_invalid_session_files_raise(tmp_path: Path) -> None:
    path = tmp_path / "session.npz"
    save(full_session(), path)
    good = path.read_bytes()
    for content, message in (
        (b"", "can't be read"),
        (b"text", "can't be read"),
        (good[: len(good) // 2], "can't be read"),
        (good[:-30], "can't be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(ProfileError, match=message):
            load(path)
    np.savez(path, session=np.frombuffer(b'{"version": 99}', np.uint8))
    with pytest.raises(ProfileError, match="update hotloop"):
        load(path)
    np.savez(path, session=np.frombuffer(b"[]", np.uint8))
    with pytest.raises(ProfileError, match="can't be read"):
        load(path)
    with pytest.raises(OutputError, match="choose another path"):
        save(full_session(), path / "s.npz")
    # NumPy's own message has several lines and advises to trust the file.
    header = b"{'descr': " + b"(" * 20_000
    with zipfile.ZipFile(path, "w") as archive:
        start = b"\x93NUMPY\x02\x00" + len(header).to_bytes(4, "little")
        archive.writestr("session.npy", start + header)
    with pytest.raises(ProfileError, match=r"can't be read \(ValueError: Header") as caught:
        load(path)
    assert "\n" not in str(caught.value)


def test_a_resumed_run_has_a_second_learner():
    merged = merge(
        [
            recording("learner", pid=100),
            recording("worker-0", pid=101, parent_pid=100),
            recording("learner", pid=200, start_s=20.0, end_s=30.0),
            recording("worker-0", pid=201, parent_pid=200, start_s=21.0, end_s=30.0),
        ],
        [],
    )
    names = [process.name for process in merged.processes]
    assert names == ["learner", "learner (200)", "worker-0", "worker-0 (201)"]
    assert merged.problems == [
        "process 200 started after learner had ended, as in a resumed run: shares are relative to "
        "each process"
    ]


def test_a_resumed_learner_that_steps_environments_keeps_its_name():
    steps = [span("env_step", 21.0, 29.0)]
    merged = merge(
        [
            recording("learner", pid=100, spans=[span("env_step", 1.0, 9.0)]),
            recording("learner", pid=200, start_s=20.0, end_s=30.0, spans=steps),
        ],
        [],
    )
    names = [(process.name, process.role) for process in merged.processes]
    assert names == [("learner", "main"), ("learner (200)", "helper")]


def test_a_notebook_s_kernel_and_a_program_s_own_names_are_kept():
    """Processes without a name are numbered as workers."""
    kernel = ["python", "-m", "ipykernel_launcher", "-f", "/run/kernel.json"]
    recordings = [
        recording(pid=100),
        recording("process", pid=101, parent_pid=100, spans=[span("env_step", 1.0, 9.0)]),
        recording("collector", pid=102, parent_pid=100, spans=[span("env_step", 1.0, 9.0)]),
        recording("process", pid=103, parent_pid=100, spans=[span("env_step", 1.0, 9.0)]),
        recording("process", pid=104, parent_pid=101, spans=[span("env_step", 1.0, 9.0)]),
    ]
    totals = [
        samples(line(9.0), pid=pid, component="process", command=kernel) for pid in (101, 104)
    ]
    merged = merge(recordings, totals)
    names = {process.pid: process.name for process in merged.processes}
    assert names == {100: "main", 101: "kernel", 102: "collector", 103: "worker-0", 104: "worker-1"}


@pytest.mark.parametrize("training", [{}, [], {"execution": 5}, {"has_replay": "yes"}])
def test_options_of_a_training_are_checked(profile: Path, training: object) -> None:
    (profile / "profile.json").write_text(json.dumps({"training": training}))
    session = read(profile)
    assert "training" not in session.metadata
    assert any("profile.json is damaged" in problem for problem in session.problems)


def test_a_form_feed_ends_no_line(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"x = 1\n\x0c\r\ny = 2\rz = 3\n")
    assert source_line(str(tmp_path / "a.py"), 3) == "y = 2"
    assert source_line(str(tmp_path / "a.py"), 4) == "z = 3"
