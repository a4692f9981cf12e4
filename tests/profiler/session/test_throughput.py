"""Environment steps per second, in any process that steps environments."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from hotloop import timing
from hotloop.base.processes import boot_id
from hotloop.profiler.session import ProfiledProcess
from hotloop.profiler.session.reading import read
from hotloop.profiler.session.throughput import throughput
from tests.profiler.sessions import period, process, session, span


def stepper(name: str, count: int, number: int = 0, **fields: object) -> ProfiledProcess:
    """Return a process of 10 s with `count` spans of a path."""
    return process(
        f"worker-{number}" if number else "main",
        role="worker" if number else "main",
        pid=100 + number,
        spans=[span(name, 0.01 * i, 0.01 * i + 0.005) for i in range(count)],
        **fields,
    )


def test_one_environment() -> None:
    steps = throughput(
        session(
            stepper(
                "collect > env_step",
                60,
                end_s=2.0,
                periods=[
                    period(1.0, spans={"collect > env_step": (20, 0.1), "update": (7, 0.1)}),
                    period(2.0, spans={"collect > env_step": (60, 0.3), "update": (9, 0.1)}),
                ],
            )
        )
    )
    assert steps is not None
    assert (steps.total, steps.mean) == (60, 30)
    assert steps.per_s.tolist() == pytest.approx([20, 40])


def test_a_vector_environment_in_other_processes_is_counted_once() -> None:
    steps = throughput(
        session(
            stepper("vector_step", 30, facts={"num_envs": 2.0}),
            stepper("env_step", 30, 1),
            stepper("env_step", 30, 2),
        )
    )
    assert steps is not None
    assert steps.total == 60
    assert len(steps.per_s) == 0


def test_a_vector_environment_in_one_process_is_counted_by_its_environments() -> None:
    main = process(
        spans=[
            *(span("vector_step", 1.0 * i, i + 0.9) for i in range(5)),
            *(span("vector_step > env_step", 0.1 * i, 0.1 * i + 0.05) for i in range(20)),
        ],
        facts={"num_envs": 4.0},
    )
    steps = throughput(session(main))
    assert steps is not None
    assert steps.total == 20


def test_independent_workers_add_up() -> None:
    first = [period(t, spans={"env_step": (10 * t, 0.1)}) for t in (1, 2, 3, 4)]
    # This worker starts at 2 s and is killed at 3 s.
    second = [period(3.0, spans={"env_step": (50, 0.1)})]
    steps = throughput(
        session(
            process(end_s=4.0),
            stepper("env_step", 40, 1, end_s=4.0, periods=first),
            stepper("env_step", 50, 2, start_s=2.0, end_s=3.0, state="killed", periods=second),
        )
    )
    assert steps is not None
    assert steps.total == 90
    assert steps.per_s.tolist() == pytest.approx([10, 10, 60, 10])


def test_a_long_run_has_fewer_bins_of_the_same_sum() -> None:
    periods = [period(t, spans={"env_step": (t * t, 0.1)}) for t in range(1, 1001)]
    steps = throughput(session(stepper("env_step", 3, end_s=1000.0, periods=periods)), max_bins=10)
    assert steps is not None
    assert steps.per_s.tolist() == pytest.approx([100 * (2 * i + 1) for i in range(10)])


def test_without_environments_there_is_no_throughput() -> None:
    assert throughput(session(process(spans=[span("update", 0.0, 1.0)]))) is None


def test_a_trainings_config_gives_its_number_of_environments(tmp_path: Path) -> None:
    run, profile = tmp_path / "run", tmp_path / "profile" / "timing"
    timing.start(run / "timing", "learner")
    for _ in range(5):
        with timing.span("env_step"):
            pass
    path = timing.stop()
    (run / "config.json").write_text(json.dumps({"config": {"num_envs": 8, "workers": 0}}))
    profile.mkdir(parents=True)
    (recording,), _ = timing.read_directory(run / "timing")
    lines = [
        {"version": 1, "pid": os.getpid(), "parent_pid": 1, "component": "main", "host": "",
         "boot_id": boot_id(), "start_ns": recording.start_ns, "interval_s": 0.01, "python": "",
         "command": [], "cores": 2},
        {"t": recording.end_ns, "places": [], "stacks": [], "paths": [], "counts": [],
         "threads": [], "spans": [[["env_step"], "work", 5, 100, 0]], "cpu_ns": 0, "rss": 0,
         "own_ns": 0, "facts": {}, "others": [], "recordings": [str(path)]},
    ]  # fmt: skip
    samples = profile / f"main-{os.getpid()}.samples.jsonl"
    samples.write_text("".join(json.dumps(line) + "\n" for line in lines))
    steps = throughput(read(profile.parent))
    assert steps is not None
    assert steps.total == 40
