"""The dearest lines and functions, by samples, and what stands in the source there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hotloop.profiler.render import words
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.lines import Costs, Sources
from hotloop.profiler.session import Frame, Process, Sample, Session, Stack, ThreadTimes
from tests.profiler.sessions import ns, process, seen, session

LIB = "/x/site-packages/lib/a.py"


def at(*frames: tuple[str, str, int, int], elapsed_s: float, thread: int = 100) -> Process:
    """Main, seen in one place: functions, files, their first lines, and the lines they were at."""
    one = process()
    one.stacks = [Stack(tuple(Frame(*f[:3]) for f in frames), tuple(f[3] for f in frames))]
    one.samples = [Sample(thread, (), 0, 100, ns(elapsed_s), 0, ns(elapsed_s))]
    return one


def together(*parts: Process) -> Process:
    """All that was seen in one process."""
    whole = process()
    for one in parts:
        whole.samples += [
            sample._replace(stack=len(whole.stacks) + sample.stack) for sample in one.samples
        ]
        whole.stacks += one.stacks
    return whole


def costs(*parts: Process) -> Costs:
    (found,) = Findings(session(together(*parts))).costs
    return found


MAIN = ("main", "train.py", 1)


def test_a_line_has_all_that_it_calls_up_to_the_next_of_the_users() -> None:
    found = costs(
        at((*MAIN, 5), ("solve", LIB, 3, 0), elapsed_s=3.0),
        at((*MAIN, 5), elapsed_s=1.0),
        at((*MAIN, 6), ("step", "env.py", 10, 12), ("_c", LIB, 9, 0), elapsed_s=6.0),
        at((*MAIN, 7), elapsed_s=0.05),
    )
    assert [(one.file, one.line, one.function, round(one.part, 3)) for one in found.lines] == [
        ("env.py", 12, "step", 0.597),
        ("train.py", 5, "main", 0.398),
    ]
    assert found.lines[1].share.on_core_ns == ns(4.0)
    assert found.lines[0].stage == "other"


def test_a_comprehension_is_part_of_its_line_and_its_function() -> None:
    found = costs(
        at((*MAIN, 5), ("main.<locals>.<listcomp>", "train.py", 5, 5), elapsed_s=3.0),
        at((*MAIN, 5), elapsed_s=1.0),
    )
    (line,) = found.lines
    assert (line.line, line.function, line.part) == (5, "main", 1.0)
    (function,) = found.functions
    assert (function.name, function.own, function.inclusive) == ("main", 1.0, 1.0)


def test_functions_of_libraries_are_public_ones() -> None:
    found = costs(
        at(
            (*MAIN, 5),
            ("Adam.step", LIB, 3, 0),
            ("Adam._init", LIB, 5, 0),
            ("f.<locals>.wrapper", LIB, 7, 0),
            ("_c", LIB, 9, 0),
            elapsed_s=3.0,
        ),
        at((*MAIN, 5), elapsed_s=1.0),
        # One that calls itself counts once.
        at((*MAIN, 5), ("again", "a.py", 1, 2), ("again", "a.py", 1, 2), elapsed_s=4.0),
    )
    told = {one.name: (one.is_user, one.own, one.inclusive) for one in found.functions}
    assert told == {
        "Adam.step": (False, 0.375, 0.375),
        "main": (True, 0.125, 1.0),
        "again": (True, 0.5, 0.5),
    }


def test_starting_is_left_out_but_part_of_the_whole() -> None:
    found = costs(
        at((*MAIN, 1), ("_find_and_load", "<frozen importlib._bootstrap>", 1, 0), elapsed_s=6.0),
        at((*MAIN, 5), elapsed_s=4.0),
    )
    assert [(one.line, one.part) for one in found.lines] == [(5, 0.4)]


def test_workers_and_threads_at_work_have_lines_of_their_own() -> None:
    main = together(
        at((*MAIN, 5), elapsed_s=10.0),
        at(("load", "data.py", 1, 2), elapsed_s=5.0, thread=107),
        at(("watch", "data.py", 7, 8), elapsed_s=0.1, thread=108),
    )
    main.threads = [ThreadTimes(107, "loader", 0, 0)]
    workers = [
        process(
            f"worker-{number}",
            role="worker",
            pid=200 + number,
            samples=[seen(f"step (env.py:{3 + number})", elapsed_s=1.0 + 2 * number)],
        )
        for number in range(2)
    ]
    found = Findings(session(main, *workers)).costs
    assert [(one.name, [(line.line, line.part) for line in one.lines]) for one in found] == [
        ("main", [(5, 1.0)]),
        ("thread loader of main", [(2, 1.0)]),
        ("all 2 workers", [(4, 0.75), (3, 0.25)]),
    ]


def test_what_workers_wait_for_is_left_out_and_told() -> None:
    def blocked(elapsed_s: float, number: int, **waits: float) -> Process:
        one = at(("work", "env.py", 1, number), elapsed_s=elapsed_s)
        waited = {name: ns(seconds) for name, seconds in waits.items()}
        one.samples = [one.samples[0]._replace(on_core_ns=0, waits=waited)]
        return one

    parts = [
        blocked(6.0, 2, pipe=6.0),
        blocked(3.0, 3, sleep=2.0, pipe=1.0),
        at(("work", "env.py", 1, 4), elapsed_s=1.0),
    ]
    worker = together(*parts)
    worker.name, worker.role = "worker-0", "worker"
    of_main, of_worker = Findings(session(together(*parts), worker)).costs
    assert [(one.line, one.part, one.blocked_on) for one in of_worker.lines] == [
        (3, 0.3, "sleep"), (4, 0.1, ""),
    ]  # fmt: skip
    assert of_worker.waiting == 0.6
    # Where main waits is a line of yours like others.
    assert [(one.line, one.blocked_on) for one in of_main.lines][:1] == [(2, "pipe")]
    assert of_main.waiting == 0.0
    assert words.lines_of(of_worker) == "worker-0 (60% waiting)"


# --- source ---------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("".join(f"    line_{n}()\n" for n in range(1, 11)))
    return path


def sources(started: str | None = None) -> Sources:
    one: Session = session(process(), about={} if started is None else {"started": started})
    return Sources(one)


def test_lines_are_read_from_their_file(file: Path) -> None:
    found = sources()
    assert [found.text(str(file), line) for line in (0, 1, 10, 11, 99)] == [
        "", "line_1()", "line_10()", "", "",
    ]  # fmt: skip
    assert found.problem(str(file)) == ""


def test_a_file_that_is_gone_or_newer_is_told(file: Path, tmp_path: Path) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    assert sources(now).problem(str(file)) == ""
    assert sources("2100-01-01T00:00:00+0100").problem(str(file)) == ""
    os.utime(file, (time.time() + 100, time.time() + 100))
    found = sources(now)
    assert "newer than the profile" in found.problem(str(file))
    assert found.text(str(file), 2) == "line_2()"
    assert sources("yesterday").problem(str(file)) == ""
    assert sources().problem(str(tmp_path / "none.py")) == "is gone"


@pytest.mark.parametrize("name", ["/etc/passwd", "/dev/zero", "a\0.py", "", "<stdin>"])
def test_what_is_no_source_is_not_read(name: str) -> None:
    found = sources()
    assert found.text(name, 1) == ""
    assert found.problem(name)


def test_a_pipe_or_a_directory_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "directory.py").mkdir()
    for name in ("pipe.py", "directory.py"):
        assert sources().problem(str(tmp_path / name)) == "is gone"


def test_windows_that_touch_are_one(file: Path) -> None:
    lines = costs(
        *(at(("f", str(file), 1, line), elapsed_s=s) for line, s in ((9, 1), (1, 3), (6, 2))),
        at(("g", "gone.py", 1, 5), elapsed_s=1.5),
    ).lines
    assert [line.line for line in lines] == [1, 6, 5, 9]
    found = sources().listings(lines, 3)
    assert [(one.first, len(one.text), sorted(one.hot)) for one in found] == [(1, 9, [1, 6, 9])]
    # Of one that is not among the first its share is told, and not what is around it.
    assert sources().listings(lines, 1)[0].hot.keys() == {1}
