"""Waiting for the slowest worker, compared with results by hand and by two plain loops."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hotloop.profiler.session import ProfiledProcess
from hotloop.profiler.session.lockstep import LockstepWaste, lockstep
from tests.profiler.sessions import Span, process, session, span

SECOND = 1_000_000_000


def parent(*spans: Span) -> ProfiledProcess:
    return process("main", spans=spans, end_s=100.0)


def worker(number: int, *spans: Span) -> ProfiledProcess:
    return process(
        f"worker-{number}",
        role="worker",
        pid=200 + number,
        parent_pid=100,
        spans=spans,
        end_s=100.0,
    )


def steps(*times: tuple[float, float], name: str = "env_step") -> list[Span]:
    return [span(name, start, end) for start, end in times]


def test_each_step_waits_for_its_slowest_worker() -> None:
    result = lockstep(
        session(
            parent(*steps((0.0, 1.0), (2.0, 3.0), name="collect > vector_step")),
            worker(0, *steps((0.1, 0.4), (2.1, 2.6))),
            worker(1, *steps((0.1, 0.9), (2.1, 2.3))),
            worker(2, *steps((0.2, 0.3), (2.2, 2.6))),
        )
    )
    assert result is not None
    assert result.parent == "main"
    assert result.workers == ("worker-0", "worker-1", "worker-2")
    assert result.num_steps == 2
    assert result.slowest_ns / SECOND == pytest.approx([0.8, 0.5])
    # 0.3 + 0.8 + 0.1, 0.5 + 0.2 + 0.4
    assert result.busy_ns / SECOND == pytest.approx([1.2, 1.1])
    # (0.8 − 0.3) + (0.8 − 0.1), (0.5 − 0.2) + (0.5 − 0.4)
    assert result.waste_ns / SECOND == pytest.approx([1.2, 0.4])
    assert result.times_slowest == {"worker-0": 1, "worker-1": 1, "worker-2": 0}
    assert result.waste_share == pytest.approx(1.6 / (1.6 + 2.3))
    assert result.speedup == pytest.approx(1 + 1.6 / 2.3)
    assert (result.end_ns - result.start_ns) / SECOND == pytest.approx([1.0, 1.0])


def test_a_reset_in_a_step_counts_as_busy_time() -> None:
    result = lockstep(
        session(
            parent(*steps((0.0, 1.0), name="vector_step")),
            worker(0, *steps((0.1, 0.2))),
            worker(1, span("env_step", 0.1, 0.2), span("env_reset", 0.2, 0.8)),
        )
    )
    assert result is not None
    assert result.waste_ns / SECOND == pytest.approx([0.6])


def test_a_reset_instead_of_a_step_shifts_no_later_steps() -> None:
    result = lockstep(
        session(
            parent(*steps((0, 1), (1, 2), (2, 3), name="vector_step")),
            worker(0, *steps((0.1, 0.4), (1.1, 1.2), (2.1, 2.2))),
            worker(
                1,
                span("env_step", 0.1, 0.2),
                span("env_reset", 1.1, 1.9),
                span("env_step", 2.1, 2.6),
            ),
        )
    )
    assert result is not None
    assert result.waste_ns / SECOND == pytest.approx([0.2, 0.7, 0.4])


def test_nested_steps_count_once() -> None:
    result = lockstep(
        session(
            parent(*steps((0.0, 1.0), name="vector_step")),
            worker(0, span("env_step", 0.1, 0.5), span("env_step > env_step", 0.1, 0.4)),
            worker(1, *steps((0.1, 0.2))),
        )
    )
    assert result is not None
    assert result.busy_ns / SECOND == pytest.approx([0.5])


def test_two_vector_environments_wait_separately() -> None:
    result = lockstep(
        session(
            parent(
                *steps((0, 1), (1, 2), name="collect > vector_step"),
                *steps((5, 6), name="evaluation > vector_step"),
            ),
            worker(0, *steps((0.1, 0.2), (1.1, 1.3))),
            worker(1, *steps((0.1, 0.4), (1.1, 1.2))),
            worker(2, *steps((5.1, 5.9))),
            worker(3, *steps((5.1, 5.2))),
        )
    )
    assert result is not None
    assert result.waste_ns / SECOND == pytest.approx([0.2, 0.1, 0.7])
    assert result.times_slowest == {"worker-0": 1, "worker-1": 1, "worker-2": 1, "worker-3": 0}


def free_running(number: int, until_s: float, seed: int) -> ProfiledProcess:
    clock, spans = 0.0, []
    random_state = random.Random(seed)
    while clock < until_s:
        took = random_state.choice((0.003, 0.1))
        spans.append(span("env_step", clock, clock + took))
        clock += took
    return worker(number, *spans)


def test_independent_workers_waste_nothing() -> None:
    workers = [free_running(number, 4.0, number) for number in range(3)]
    assert lockstep(session(parent(), *workers)) is None
    # The same holds if main steps another environment or vector environment meanwhile.
    for name, length in (("env_step", 0.004), ("vector_step", 0.3), ("vector_step", 0.05)):
        main_steps = steps(
            *((i * length, (i + 0.98) * length) for i in range(int(4 / length))), name=name
        )
        assert lockstep(session(parent(*main_steps), *workers)) is None, (name, length)


def test_many_worker_steps_per_main_step_are_no_lockstep() -> None:
    workers = []
    for number in range(2):
        random_state, clock, spans = random.Random(number), 0.0, []
        while clock < 4.0:
            took = random_state.uniform(0.001, 0.003)
            spans.append(span("env_step", clock, clock + took))
            clock += took
        workers.append(worker(number, *spans))
    main_steps = steps(*((0.2 * i, 0.2 * i + 0.1999) for i in range(20)), name="vector_step")
    assert lockstep(session(parent(*main_steps), *workers)) is None


def test_a_single_process_has_no_lockstep() -> None:
    vector_steps = steps((0, 1), (1, 2), name="vector_step")
    inner_steps = steps((0.1, 0.2), (1.1, 1.2), name="vector_step > env_step")
    assert lockstep(session(parent(*vector_steps, *inner_steps))) is None
    assert (
        lockstep(session(parent(*vector_steps), worker(0, *steps((0.1, 0.2), (1.1, 1.2))))) is None
    )


def drop_events(profiled: ProfiledProcess, number: int) -> ProfiledProcess:
    """Drop the first events, as a full ring does. The totals stay."""
    profiled.events = profiled.events[number:]
    return profiled


def test_a_step_with_dropped_events_is_left_out() -> None:
    result = lockstep(
        session(
            parent(*steps((0, 1), (1, 2), (2, 3), name="vector_step")),
            worker(0, *steps((0.1, 0.2), (1.1, 1.2), (2.1, 2.2))),
            drop_events(worker(1, *steps((0.1, 0.9), (1.1, 1.4), (2.1, 2.6))), 1),
            worker(2, *steps((0.1, 0.3), (1.1, 1.2), (2.1, 2.2))),
        )
    )
    assert result is not None
    assert result.waste_ns / SECOND == pytest.approx([0.4, 0.8])


def test_steps_are_matched_by_index_without_parent_events() -> None:
    result = lockstep(
        session(
            drop_events(parent(*steps((0, 1), (1, 2), (2, 3), name="vector_step")), 3),
            worker(0, *steps((0.1, 0.2), (1.1, 1.2), (2.1, 2.2))),
            drop_events(worker(1, *steps((0.1, 0.9), (1.2, 1.4), (2.0, 2.6))), 1),
        )
    )
    assert result is not None
    assert result.waste_ns / SECOND == pytest.approx([0.1, 0.5])
    assert (result.end_ns - result.start_ns) / SECOND == pytest.approx([0.3, 0.6])


def test_independent_workers_are_not_matched_by_index() -> None:
    workers = []
    for number in range(3):
        profiled = free_running(number, 4.0, number)
        workers.append(worker(number, *[span("env_step", *_times(profiled, i)) for i in range(30)]))
    main = drop_events(parent(*steps((0, 1), (1, 2), name="vector_step")), 2)
    assert lockstep(session(main, *workers)) is None


def _times(profiled: ProfiledProcess, number: int) -> tuple[float, float]:
    event = profiled.events[number]
    return (event["start_ns"] - profiled.start_ns) / SECOND, (
        event["end_ns"] - profiled.start_ns
    ) / SECOND


@pytest.mark.parametrize("seed", range(5))
def test_waste_agrees_with_plain_loops(seed: int) -> None:
    random_state = np.random.default_rng(seed)
    times_s = (
        np.where(random_state.random((50, 6)) < 0.1, 0.1, 0.003)
        + random_state.random((50, 6)) / 1e3
    )
    clock, windows = 0.0, []
    spans: list[list[Span]] = [[] for _ in range(6)]
    for row in times_s:
        for number, took in enumerate(row):
            start_s = clock + 0.0001 * number
            spans[number].append(span("env_step", start_s, start_s + took))
        windows.append((clock, clock + row.max() + 0.001))
        clock += row.max() + 0.002
    waste = 0.0
    for row in times_s:
        for took in row:
            waste += max(row) - took
    workers = [worker(number, *worker_spans) for number, worker_spans in enumerate(spans)]
    for main in (
        parent(*steps(*windows, name="vector_step")),
        drop_events(parent(*steps(*windows, name="vector_step")), 50),
    ):
        result = lockstep(session(main, *workers))
        assert result is not None
        assert result.num_steps == 50
        assert result.waste_ns.sum() / SECOND == pytest.approx(waste, rel=1e-6)


def test_the_always_slowest_worker_is_named() -> None:
    spans = [
        [span("env_step", step, step + took + 0.001 * (step % 3)) for step in range(30)]
        for took in (0.1, 0.1, 0.4, 0.1)
    ]
    # Another worker is slower once.
    spans[0][7] = span("env_step", 7.0, 7.9)
    main = parent(*steps(*((t, t + 0.95) for t in range(30)), name="vector_step"))
    result = lockstep(
        session(main, *(worker(number, *worker_spans) for number, worker_spans in enumerate(spans)))
    )
    assert result is not None
    slowest = result.always_slowest
    assert slowest is not None
    assert (slowest.name, slowest.share) == ("worker-2", pytest.approx(29 / 30))
    assert slowest.step_ns / SECOND == pytest.approx(0.401)
    assert slowest.other_step_ns / SECOND == pytest.approx(0.101)


def test_no_worker_is_named_if_the_slowest_changes() -> None:
    def analyze(number: int, slowdown: float) -> LockstepWaste:
        random_state = np.random.default_rng(0)
        times_s = 0.1 + 0.1 * random_state.random((200, number))
        times_s[:, 0] *= slowdown
        main = parent(*steps(*((t, t + 0.95) for t in range(200)), name="vector_step"))
        workers = [
            worker(i, *steps(*((t, t + times_s[t, i]) for t in range(200)))) for i in range(number)
        ]
        result = lockstep(session(main, *workers))
        assert result is not None
        return result

    for number in (2, 3, 8):
        assert analyze(number, 1.0).always_slowest is None
        slowest = analyze(number, 2.5).always_slowest
        assert slowest is not None
        assert slowest.name == "worker-0"


def test_equally_fast_workers_have_no_slowest() -> None:
    main = parent(*steps((0, 1), (2, 3), name="vector_step"))
    result = lockstep(session(main, *(worker(i, *steps((0, 0.5), (2, 2.5))) for i in range(3))))
    assert result is not None
    assert result.always_slowest is None
