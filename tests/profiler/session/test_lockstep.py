"""Waiting for the slowest worker: by hand, and against two plain loops."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hotloop.profiler.session import Process
from hotloop.profiler.session.lockstep import LockstepWaste, lockstep
from tests.profiler.sessions import Span, process, session, span

SECOND = 1_000_000_000


def parent(*spans: Span) -> Process:
    return process("main", spans=spans, end_s=100.0)


def worker(number: int, *spans: Span) -> Process:
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
    found = lockstep(
        session(
            parent(*steps((0.0, 1.0), (2.0, 3.0), name="collect > vector_step")),
            worker(0, *steps((0.1, 0.4), (2.1, 2.6))),
            worker(1, *steps((0.1, 0.9), (2.1, 2.3))),
            worker(2, *steps((0.2, 0.3), (2.2, 2.6))),
        )
    )
    assert found is not None
    assert found.parent == "main"
    assert found.workers == ("worker-0", "worker-1", "worker-2")
    assert found.num_steps == 2
    assert found.slowest_ns / SECOND == pytest.approx([0.8, 0.5])
    # 0.3 + 0.8 + 0.1, 0.5 + 0.2 + 0.4
    assert found.busy_ns / SECOND == pytest.approx([1.2, 1.1])
    # (0.8 − 0.3) + (0.8 − 0.1), (0.5 − 0.2) + (0.5 − 0.4)
    assert found.waste_ns / SECOND == pytest.approx([1.2, 0.4])
    assert found.times_slowest == {"worker-0": 1, "worker-1": 1, "worker-2": 0}
    assert found.share == pytest.approx(1.6 / (1.6 + 2.3))
    assert found.speedup == pytest.approx(1 + 1.6 / 2.3)
    assert (found.end_ns - found.start_ns) / SECOND == pytest.approx([1.0, 1.0])


def test_a_reset_in_the_same_step_is_the_workers_own_time() -> None:
    found = lockstep(
        session(
            parent(*steps((0.0, 1.0), name="vector_step")),
            worker(0, *steps((0.1, 0.2))),
            worker(1, span("env_step", 0.1, 0.2), span("env_reset", 0.2, 0.8)),
        )
    )
    assert found is not None
    assert found.waste_ns / SECOND == pytest.approx([0.6])


def test_a_reset_instead_of_a_step_does_not_shift_the_steps_after_it() -> None:
    found = lockstep(
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
    assert found is not None
    assert found.waste_ns / SECOND == pytest.approx([0.2, 0.7, 0.4])


def test_steps_within_steps_count_once() -> None:
    found = lockstep(
        session(
            parent(*steps((0.0, 1.0), name="vector_step")),
            worker(0, span("env_step", 0.1, 0.5), span("env_step > env_step", 0.1, 0.4)),
            worker(1, *steps((0.1, 0.2))),
        )
    )
    assert found is not None
    assert found.busy_ns / SECOND == pytest.approx([0.5])


def test_workers_of_two_vector_environments_wait_for_their_own() -> None:
    found = lockstep(
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
    assert found is not None
    assert found.waste_ns / SECOND == pytest.approx([0.2, 0.1, 0.7])
    assert found.times_slowest == {"worker-0": 1, "worker-1": 1, "worker-2": 1, "worker-3": 0}


def free_running(number: int, until_s: float, seed: int) -> Process:
    clock, spans = 0.0, []
    random_state = random.Random(seed)
    while clock < until_s:
        took = random_state.choice((0.003, 0.1))
        spans.append(span("env_step", clock, clock + took))
        clock += took
    return worker(number, *spans)


def test_workers_that_go_their_own_way_waste_nothing() -> None:
    workers = [free_running(number, 4.0, number) for number in range(3)]
    assert lockstep(session(parent(), *workers)) is None
    # Nor where main steps an environment, or a vector environment, of its own meanwhile.
    for name, length in (("env_step", 0.004), ("vector_step", 0.3), ("vector_step", 0.05)):
        own = steps(*((i * length, (i + 0.98) * length) for i in range(int(4 / length))), name=name)
        assert lockstep(session(parent(*own), *workers)) is None, (name, length)


def test_many_steps_of_their_own_within_one_of_main_are_no_lock_step() -> None:
    workers = []
    for number in range(2):
        random_state, clock, spans = random.Random(number), 0.0, []
        while clock < 4.0:
            took = random_state.uniform(0.001, 0.003)
            spans.append(span("env_step", clock, clock + took))
            clock += took
        workers.append(worker(number, *spans))
    own = steps(*((0.2 * i, 0.2 * i + 0.1999) for i in range(20)), name="vector_step")
    assert lockstep(session(parent(*own), *workers)) is None


def test_one_process_waits_for_nobody() -> None:
    alone = steps((0, 1), (1, 2), name="vector_step")
    inside = steps((0.1, 0.2), (1.1, 1.2), name="vector_step > env_step")
    assert lockstep(session(parent(*alone, *inside))) is None
    assert lockstep(session(parent(*alone), worker(0, *steps((0.1, 0.2), (1.1, 1.2))))) is None


def forget(one: Process, number: int) -> Process:
    """As a ring that has gone round: the first events are gone, totals are kept."""
    one.events = one.events[number:]
    return one


def test_a_step_that_a_worker_has_forgotten_is_left_out() -> None:
    found = lockstep(
        session(
            parent(*steps((0, 1), (1, 2), (2, 3), name="vector_step")),
            worker(0, *steps((0.1, 0.2), (1.1, 1.2), (2.1, 2.2))),
            forget(worker(1, *steps((0.1, 0.9), (1.1, 1.4), (2.1, 2.6))), 1),
            worker(2, *steps((0.1, 0.3), (1.1, 1.2), (2.1, 2.2))),
        )
    )
    assert found is not None
    assert found.waste_ns / SECOND == pytest.approx([0.4, 0.8])


def test_where_the_parent_has_forgotten_its_steps_the_kth_are_matched() -> None:
    found = lockstep(
        session(
            forget(parent(*steps((0, 1), (1, 2), (2, 3), name="vector_step")), 3),
            worker(0, *steps((0.1, 0.2), (1.1, 1.2), (2.1, 2.2))),
            forget(worker(1, *steps((0.1, 0.9), (1.2, 1.4), (2.0, 2.6))), 1),
        )
    )
    assert found is not None
    assert found.waste_ns / SECOND == pytest.approx([0.1, 0.5])
    assert (found.end_ns - found.start_ns) / SECOND == pytest.approx([0.3, 0.6])


def test_workers_that_go_their_own_way_are_not_matched_by_their_numbers() -> None:
    workers = []
    for number in range(3):
        one = free_running(number, 4.0, number)
        workers.append(worker(number, *[span("env_step", *_times(one, i)) for i in range(30)]))
    main = forget(parent(*steps((0, 1), (1, 2), name="vector_step")), 2)
    assert lockstep(session(main, *workers)) is None


def _times(one: Process, number: int) -> tuple[float, float]:
    event = one.events[number]
    return (event["start_ns"] - one.start_ns) / SECOND, (event["end_ns"] - one.start_ns) / SECOND


@pytest.mark.parametrize("seed", range(5))
def test_it_agrees_with_plain_loops(seed: int) -> None:
    random_state = np.random.default_rng(seed)
    own = (
        np.where(random_state.random((50, 6)) < 0.1, 0.1, 0.003)
        + random_state.random((50, 6)) / 1e3
    )
    clock, windows = 0.0, []
    spans: list[list[Span]] = [[] for _ in range(6)]
    for row in own:
        for number, took in enumerate(row):
            begun = clock + 0.0001 * number
            spans[number].append(span("env_step", begun, begun + took))
        windows.append((clock, clock + row.max() + 0.001))
        clock += row.max() + 0.002
    waste = 0.0
    for row in own:
        for took in row:
            waste += max(row) - took
    workers = [worker(number, *one) for number, one in enumerate(spans)]
    for main in (
        parent(*steps(*windows, name="vector_step")),
        forget(parent(*steps(*windows, name="vector_step")), 50),
    ):
        found = lockstep(session(main, *workers))
        assert found is not None
        assert found.num_steps == 50
        assert found.waste_ns.sum() / SECOND == pytest.approx(waste, rel=1e-6)


def test_the_worker_that_all_wait_for_is_named() -> None:
    spans = [
        [span("env_step", step, step + took + 0.001 * (step % 3)) for step in range(30)]
        for took in (0.1, 0.1, 0.4, 0.1)
    ]
    # Now and then another one is slower.
    spans[0][7] = span("env_step", 7.0, 7.9)
    main = parent(*steps(*((t, t + 0.95) for t in range(30)), name="vector_step"))
    found = lockstep(session(main, *(worker(number, *one) for number, one in enumerate(spans))))
    assert found is not None
    slowest = found.always_slowest
    assert slowest is not None
    assert (slowest.name, slowest.share) == ("worker-2", pytest.approx(29 / 30))
    assert slowest.own_ns / SECOND == pytest.approx(0.401)
    assert slowest.others_ns / SECOND == pytest.approx(0.101)


def test_no_worker_is_named_where_it_is_now_one_now_another() -> None:
    def found_of(number: int, slow: float) -> LockstepWaste:
        random_state = np.random.default_rng(0)
        own = 0.1 + 0.1 * random_state.random((200, number))
        own[:, 0] *= slow
        main = parent(*steps(*((t, t + 0.95) for t in range(200)), name="vector_step"))
        workers = [
            worker(i, *steps(*((t, t + own[t, i]) for t in range(200)))) for i in range(number)
        ]
        found = lockstep(session(main, *workers))
        assert found is not None
        return found

    for number in (2, 3, 8):
        assert found_of(number, 1.0).always_slowest is None
        slowest = found_of(number, 2.5).always_slowest
        assert slowest is not None
        assert slowest.name == "worker-0"


def test_workers_that_take_equally_long_wait_for_nobody() -> None:
    main = parent(*steps((0, 1), (2, 3), name="vector_step"))
    found = lockstep(session(main, *(worker(i, *steps((0, 0.5), (2, 2.5))) for i in range(3))))
    assert found is not None
    assert found.always_slowest is None
