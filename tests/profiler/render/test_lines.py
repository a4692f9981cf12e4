"""The most expensive lines and functions by samples, with their source text."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from hotloop.profiler.render import phrases
from hotloop.profiler.render.findings import Findings
from hotloop.profiler.render.lines import SourceFiles, ThreadCosts
from hotloop.profiler.session import Frame, ProfiledProcess, Sample, Session, Stack, ThreadTotals
from tests.profiler.sessions import ns, process, sample, session

LIB = "/x/site-packages/lib/a.py"


def at(*frames: tuple[str, str, int, int], elapsed_s: float, thread: int = 100) -> ProfiledProcess:
    """Return main, sampled at one stack of (function, file, first line, current line)."""
    main = process()
    main.stacks = [Stack(tuple(Frame(*f[:3]) for f in frames), tuple(f[3] for f in frames))]
    main.samples = [Sample(thread, (), 0, 100, ns(elapsed_s), 0, ns(elapsed_s))]
    return main


def merge(*parts: ProfiledProcess) -> ProfiledProcess:
    """Return one process with the samples of all parts."""
    merged = process()
    for part in parts:
        merged.samples += [
            sample._replace(stack=len(merged.stacks) + sample.stack) for sample in part.samples
        ]
        merged.stacks += part.stacks
    return merged


def costs(*parts: ProfiledProcess) -> ThreadCosts:
    (result,) = Findings(session(merge(*parts))).costs
    return result


MAIN = ("main", "train.py", 1)


def test_a_line_includes_its_library_calls() -> None:
    result = costs(
        at((*MAIN, 5), ("solve", LIB, 3, 0), elapsed_s=3.0),
        at((*MAIN, 5), elapsed_s=1.0),
        at((*MAIN, 6), ("step", "env.py", 10, 12), ("_c", LIB, 9, 0), elapsed_s=6.0),
        at((*MAIN, 7), elapsed_s=0.05),
    )
    assert [
        (line.file, line.line, line.function, round(line.share, 3)) for line in result.lines
    ] == [
        ("env.py", 12, "step", 0.597),
        ("train.py", 5, "main", 0.398),
    ]
    assert result.lines[1].times.on_core_ns == ns(4.0)
    assert result.lines[0].stage == "other"


def test_a_comprehension_is_part_of_its_line_and_its_function() -> None:
    result = costs(
        at((*MAIN, 5), ("main.<locals>.<listcomp>", "train.py", 5, 5), elapsed_s=3.0),
        at((*MAIN, 5), elapsed_s=1.0),
    )
    (line,) = result.lines
    assert (line.line, line.function, line.share) == (5, "main", 1.0)
    (function,) = result.functions
    assert (function.name, function.own_share, function.inclusive_share) == ("main", 1.0, 1.0)


def test_only_public_library_functions_are_listed() -> None:
    result = costs(
        at(
            (*MAIN, 5),
            ("Adam.step", LIB, 3, 0),
            ("Adam._init", LIB, 5, 0),
            ("f.<locals>.wrapper", LIB, 7, 0),
            ("_c", LIB, 9, 0),
            elapsed_s=3.0,
        ),
        at((*MAIN, 5), elapsed_s=1.0),
        # A recursive function counts once.
        at((*MAIN, 5), ("again", "a.py", 1, 2), ("again", "a.py", 1, 2), elapsed_s=4.0),
    )
    functions = {
        function.name: (function.is_user, function.own_share, function.inclusive_share)
        for function in result.functions
    }
    assert functions == {
        "Adam.step": (False, 0.375, 0.375),
        "main": (True, 0.125, 1.0),
        "again": (True, 0.5, 0.5),
    }


def test_start_up_counts_only_in_the_total() -> None:
    result = costs(
        at((*MAIN, 1), ("_find_and_load", "<frozen importlib._bootstrap>", 1, 0), elapsed_s=6.0),
        at((*MAIN, 5), elapsed_s=4.0),
    )
    assert [(line.line, line.share) for line in result.lines] == [(5, 0.4)]


def test_workers_and_busy_threads_have_their_own_lines() -> None:
    main = merge(
        at((*MAIN, 5), elapsed_s=10.0),
        at(("load", "data.py", 1, 2), elapsed_s=5.0, thread=107),
        at(("watch", "data.py", 7, 8), elapsed_s=0.1, thread=108),
    )
    main.threads = [ThreadTotals(107, "loader", 0, 0)]
    workers = [
        process(
            f"worker-{number}",
            role="worker",
            pid=200 + number,
            samples=[sample(f"step (env.py:{3 + number})", elapsed_s=1.0 + 2 * number)],
        )
        for number in range(2)
    ]
    result = Findings(session(main, *workers)).costs
    assert [
        (thread_costs.name, [(line.line, line.share) for line in thread_costs.lines])
        for thread_costs in result
    ] == [
        ("main process", [(5, 1.0)]),
        ("thread loader of main", [(2, 1.0)]),
        ("all 2 workers", [(4, 0.75), (3, 0.25)]),
    ]


def test_waiting_of_workers_is_reported_separately() -> None:
    def blocked(elapsed_s: float, number: int, **waits: float) -> ProfiledProcess:
        blocked_process = at(("work", "env.py", 1, number), elapsed_s=elapsed_s)
        waits_ns = {name: ns(seconds) for name, seconds in waits.items()}
        blocked_process.samples = [
            blocked_process.samples[0]._replace(on_core_ns=0, waits=waits_ns)
        ]
        return blocked_process

    parts = [
        blocked(6.0, 2, pipe=6.0),
        blocked(3.0, 3, sleep=2.0, pipe=1.0),
        at(("work", "env.py", 1, 4), elapsed_s=1.0),
    ]
    worker = merge(*parts)
    worker.name, worker.role = "worker-0", "worker"
    main_costs, worker_costs = Findings(session(merge(*parts), worker)).costs
    assert [(line.line, line.share, line.blocked_on) for line in worker_costs.lines] == [
        (3, 0.3, "sleep"), (4, 0.1, ""),
    ]  # fmt: skip
    assert worker_costs.waiting_share == 0.6
    # Lines where main waits are listed.
    assert [(line.line, line.blocked_on) for line in main_costs.lines][:1] == [(2, "pipe")]
    assert main_costs.waiting_share == 0.0
    assert phrases.costs_title(worker_costs) == "worker-0, 60% waiting"


# --- source ---------------------------------------------------------------------------------------


@pytest.fixture
def source_file(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("".join(f"    line_{n}()\n" for n in range(1, 11)))
    return path


def make_sources(started: str | None = None) -> SourceFiles:
    example: Session = session(process(), metadata={} if started is None else {"started": started})
    return SourceFiles(example)


def test_lines_are_read_from_their_file(source_file: Path) -> None:
    reader = make_sources()
    assert [reader.text(str(source_file), line) for line in (0, 1, 10, 11, 99)] == [
        "", "line_1()", "line_10()", "", "",
    ]  # fmt: skip
    assert reader.problem(str(source_file)) == ""


def test_missing_and_newer_files_are_reported(source_file: Path, tmp_path: Path) -> None:
    now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    assert make_sources(now).problem(str(source_file)) == ""
    assert make_sources("2100-01-01T00:00:00+0100").problem(str(source_file)) == ""
    os.utime(source_file, (time.time() + 100, time.time() + 100))
    reader = make_sources(now)
    assert "newer than the profile" in reader.problem(str(source_file))
    assert reader.text(str(source_file), 2) == "line_2()"
    assert make_sources("yesterday").problem(str(source_file)) == ""
    assert make_sources().problem(str(tmp_path / "none.py")) == "no longer exists"


@pytest.mark.parametrize("name", ["/etc/passwd", "/dev/zero", "a\0.py", "", "<stdin>"])
def test_only_source_files_are_read(name: str) -> None:
    reader = make_sources()
    assert reader.text(name, 1) == ""
    assert reader.problem(name)


def test_a_pipe_or_a_directory_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "directory.py").mkdir()
    for name in ("pipe.py", "directory.py"):
        assert make_sources().problem(str(tmp_path / name)) == "no longer exists"


def test_adjacent_listings_are_merged(source_file: Path) -> None:
    lines = costs(
        *(
            at(("f", str(source_file), 1, line), elapsed_s=s)
            for line, s in ((9, 1), (1, 3), (6, 2))
        ),
        at(("g", "gone.py", 1, 5), elapsed_s=1.5),
    ).lines
    assert [line.line for line in lines] == [1, 6, 5, 9]
    listings = make_sources().listings(lines, 3)
    assert [
        (listing.first_line, len(listing.text), sorted(listing.hot_lines)) for listing in listings
    ] == [(1, 9, [1, 6, 9])]
    # Only the first lines get a listing.
    assert make_sources().listings(lines, 1)[0].hot_lines.keys() == {1}
