"""Candidates and measures of progress, from sessions that are made by hand."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hotloop.errors import ConfigError
from hotloop.profiler.collect.delays import DELAY_SPAN
from hotloop.profiler.session import Frame, ProfiledProcess, Sample, Session, Stack, ThreadTotals
from hotloop.profiler.what_if import places

MAIN, LOADER = 100, 101
S = 1_000_000_000


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(
        dedent(
            """\
            def load():
                while True:
                    batches.put(read())

            def main():
                while True:
                    act(batches.get())
                    with span("update"):
                        learn()
                    log()
            """
        )
    )
    return str(path)


def session_of(script: str, *samples: Sample) -> Session:
    main, load = Frame("main", script, 5), Frame("load", script, 1)
    library = Frame("forward", "/x/site-packages/torch/nn/modules/linear.py", 1)
    stacks = [
        Stack((main,), (7,)),
        Stack((main, library), (9, 0)),
        Stack((load,), (3,)),
        Stack((main,), (10,)),
        Stack((Frame("_load", "<frozen importlib._bootstrap>", 1),), (1,)),
    ]
    process = ProfiledProcess(
        "main", "main", MAIN, 1, "complete", 0, 10 * S, stacks=stacks, samples=list(samples)
    )
    return Session("", {}, [process])


def sample(stack: int, seconds: float, *, thread: int = MAIN, path: str = "", **waits: float):
    ns = round(seconds * S)
    blocked = {wait: round(value * S) for wait, value in waits.items()}
    on_core_ns = ns - sum(blocked.values())
    names = (path,) if path else ()
    return Sample(thread, names, stack, 100, on_core_ns, 0, ns, blocked)


def test_the_most_expensive_places_are_candidates_once(script: str) -> None:
    session = session_of(
        script,
        sample(0, 3.0),
        sample(1, 5.0, path="update"),
        sample(2, 4.0, thread=LOADER),
        sample(3, 0.2),
        sample(4, 9.0),  # importing
        sample(0, 7.0, path=DELAY_SPAN),
    )
    times = places.activities(session)
    labels = [place.label for place in places.candidates(times, 10 * S)]
    # The span, not line 9 inside it. The functions are one with their lines, but for `main`.
    assert labels == [
        "main (train.py:5)",
        "update (learn)",
        "train.py:3 in load",
        "train.py:7 in main",
    ]
    update = next(p for p in places.candidates(times, 10 * S) if p.kind == "span")
    assert places.time_in(update, times).cpu_ns == 5 * S
    assert places.time_in(update, times).lock_free_ns == 5 * S


def test_waits_for_other_threads_are_not_time_of_a_place(script: str) -> None:
    times = places.activities(session_of(script, sample(0, 4.0, lock=2.5, sleep=0.5)))
    (time,) = times.values()
    assert (time.cpu_ns, time.blocked_ns, time.sleeping_ns) == (1.0 * S, 0.5 * S, 0.5 * S)


def test_time_in_a_queue_for_a_core_is_the_kernels_of_the_whole_run(script: str) -> None:
    session = session_of(script, sample(0, 4.0))  # sampled as if it were on a core
    session.main.threads = [ThreadTotals(MAIN, "main", 1 * S, 3 * S)]
    (time,) = places.activities(session).values()
    assert (time.cpu_ns, time.queued_ns) == (1 * S, 3 * S)


def test_progress_is_measured_by_updates_then_by_loops(script: str) -> None:
    session = session_of(script, sample(0, 3.0), sample(1, 5.0, path="update"))
    labels = [place.label for place in places.progress_places(places.activities(session))]
    assert labels == ["update (learn)", "loop at train.py:6 in main"]


def test_a_main_thread_that_only_sleeps_measures_no_progress(script: str) -> None:
    session = session_of(script, sample(0, 3.0, sleep=3.0), sample(2, 9.0, thread=LOADER))
    labels = [place.label for place in places.progress_places(places.activities(session))]
    assert labels == ["loop at train.py:2 in load"]


def test_users_name_lines_functions_spans_and_stages(script: str) -> None:
    session = session_of(script, sample(0, 3.0), sample(1, 5.0, path="update"))
    times = places.activities(session)
    assert places.find_place("train.py:7", times).label == "train.py:7 in main"
    assert places.find_place(f"{script}:3", times).label == "train.py:3 in load"
    assert places.find_place("load", times).label == "load (train.py:1)"
    for name in ("update", "learn"):
        place = places.find_place(name, times)
        point = places.point_of(place, [script])
        assert point.spans == ["update"]
        assert point.places == [("s", script, 8)]  # the `with` statement


def test_unknown_places_are_one_sentence(script: str) -> None:
    times = places.activities(session_of(script, sample(1, 5.0, path="update")))
    with pytest.raises(ConfigError, match=r"span or stage that has run, got 'step'.*are update"):
        places.find_place("step", times)
    with pytest.raises(ConfigError, match=r"got 'train.py:4'"):
        places.find_place("train.py:4", times)


def test_recent_times_are_differences(script: str) -> None:
    before = places.activities(session_of(script, sample(0, 3.0)))
    after = places.activities(session_of(script, sample(0, 4.5), sample(3, 1.0)))
    recent = places.difference(after, before)
    assert sorted(time.cpu_ns for time in recent.values()) == [1.0 * S, 1.5 * S]
