import itertools
import subprocess
import sys

import pytest

from hotloop.base import crowding
from hotloop.base.crowding import Crowding, CrowdingMonitor
from hotloop.base.processes import CoreTimes
from hotloop.rollouts.processes.process import INFERENCE_PROGRAM, WORKER_PROGRAM


def crowded(**changed):
    """A process whose threads are queued for half of their runnable time."""
    base = {"cores": 2, "seconds": 10.0, "on_core_s": 5.0, "queued_s": 5.0, "longest_s": 5.0}
    return Crowding(**{**base, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"on_core_s": 9.8, "queued_s": 0.2, "longest_s": 0.2},  # one training alone
        {"seconds": 0.5},
        {"on_core_s": 0.1, "queued_s": 0.1, "longest_s": 0.1},  # it waits for its environments
        {"on_core_s": 0.0, "queued_s": 0.0, "longest_s": 0.0},  # the system reports nothing
        {"queued_s": 0.87, "longest_s": 0.87},
    ],
)
def test_sufficient_cores_give_no_summary(changed):
    assert not crowded(**changed).is_crowded
    assert crowded(**changed).summary() == ""


@pytest.mark.parametrize(
    ("changed", "cause", "cure"),
    [
        ({"torch_threads": 8, "threads": 8}, "8 torch threads", "--torch-threads 1"),
        ({"torch_threads": 2, "threads": 2, "others": 1}, "2 torch threads", "--torch-threads 1"),
        ({"jobs": 4, "others": 3}, "4 trainings at a time", "--jobs 2"),
        ({"jobs": 2, "others": 1, "on_core_s": 9.0}, "2 trainings at a time", "--jobs 1"),
        ({"others": 1}, "1 other training", "one training at a time"),
        ({"jobs": 2, "others": 3}, "2 other trainings", "one training at a time"),
        ({}, "other programs", "an idle machine or `nice`"),
        ({"torch_threads": 2, "threads": 2}, "other programs", "an idle machine or `nice`"),
        ({"workers": 2, "workers_queued_s": 5.0}, "other programs", "an idle machine or `nice`"),
    ],
)
def test_causes(changed, cause, cure):
    result = crowded(queued_s=changed.get("on_core_s", 5.0), **changed)
    assert result.causes[0][0] == cause
    assert result.causes[0][1].startswith(cure)
    assert cause in result.summary()
    assert "for 50% of their runnable time" in result.summary()


def workers_at_work(workers, busy_share, seconds=10.0, cores=2):
    """Workers whose steps compute for a share of their time without waiting, and sleep else.

    They keep at most all cores busy. The others that could run are queued.
    """
    running = min(cores, workers * busy_share)
    # Each worker sleeps for (1 − b) / b of the time that it computes.
    sleeping = min(workers - running, running * (1 - busy_share) / busy_share)
    queued_s = max(0.0, workers - running - sleeping) * seconds
    return Crowding(
        cores=cores,
        seconds=seconds,
        on_core_s=running * seconds,
        queued_s=queued_s,
        longest_s=queued_s / workers,
        workers=workers,
        workers_on_core_s=running * seconds,
        workers_queued_s=queued_s,
    )


@pytest.mark.parametrize("workers", [1, 2, 4, 6, 24])
def test_fewer_workers_are_advised_only_if_they_keep_the_cores_busy(workers):
    shares = 0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0
    for busy_share, cores in itertools.product(shares, (1, 2, 3, 8)):
        result = workers_at_work(workers, busy_share, cores=cores)
        for _, cure in result.causes:
            if not cure.startswith("--workers"):
                continue
            fewer = int(cure.removeprefix("--workers "))
            assert workers % fewer == 0  # divides the environments, too
            assert fewer * busy_share >= 0.89 * min(cores, workers * busy_share)
        if busy_share == 1.0 and workers == 24:
            assert result.causes == [("24 workers", f"--workers {cores}")]
            assert not result.is_crowded  # the cores stay as busy


def test_sleeping_workers_get_no_advice():
    """24 workers that wake up together are queued for a moment, and sleep for most of the time."""
    sleeping = {"workers": 24, "workers_queued_s": 4.0, "on_core_s": 9.0, "longest_s": 1.0}
    assert crowded(**sleeping).causes == []
    assert not crowded(**sleeping).is_crowded
    assert crowded(**sleeping).summary() == ""


def test_a_training_that_fills_the_cores_blames_no_other_program():
    assert crowded(on_core_s=19.0, queued_s=9.0, workers=2, workers_queued_s=5.0).causes == []


@pytest.mark.parametrize("used_cores", [0.1, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("jobs", [2, 3, 8])
def test_fewer_trainings_are_advised_only_if_they_fill_the_cores(used_cores, jobs):
    """Trainings that would use some cores each if they were alone on two cores."""
    share = min(1.0, 2 / (jobs * used_cores))  # of the time that each gets
    on_core_s = 10.0 * used_cores * share
    longest_s = 10.0 * (1 - share)
    result = crowded(on_core_s=on_core_s, queued_s=9.0, longest_s=longest_s, jobs=jobs)
    for cause, cure in result.causes:
        if cause.endswith("at a time"):
            assert int(cure.removeprefix("--jobs ")) * used_cores >= 0.8 * min(2, jobs * used_cores)
    assert (jobs * used_cores > 2.5) <= any(cure.startswith("--jobs") for _, cure in result.causes)


def test_the_gain_by_hand():
    """Without the 5 s of the thread that waited the longest, 5 of 10 are left."""
    assert crowded().gain == 2.0
    # 16 s of work take at least 8 s on two cores.
    busy = {"on_core_s": 16.0, "queued_s": 90.0, "longest_s": 9.0}
    assert crowded(**busy, workers=24, workers_queued_s=80.0).gain == 1.25
    # torch's threads spin while they wait for each other.
    assert crowded(**busy, torch_threads=8, threads=8).gain == 10.0


def test_several_causes_are_listed_in_order():
    result = crowded(torch_threads=4, threads=4, jobs=3, others=4)
    assert [cause for cause, _ in result.causes] == [
        "4 torch threads",
        "3 trainings at a time",
        "2 other trainings",
    ]


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"cores": 2, "seconds": 1.0}, {**vars(crowded()), "queued_s": "x"}],
)
def test_a_foreign_value_is_rejected(value):
    assert Crowding.from_json(value) is None


@pytest.mark.parametrize("x", [-1.0, float("nan"), float("inf"), 1e300, True])
def test_invalid_numbers_are_rejected(x):
    assert Crowding.from_json({**vars(crowded()), "seconds": x}) is None


@pytest.mark.parametrize(("name", "x"), [("workers", 2.5), ("workers", 10**11), ("cores", 2.0)])
def test_invalid_counts_are_rejected(name, x):
    assert Crowding.from_json({**vars(crowded()), name: x}) is None


def test_a_stored_value_is_read_back():
    assert Crowding.from_json(vars(crowded(others=3))) == crowded(others=3)
    assert Crowding.from_json({**vars(crowded()), "later": "version"}) == crowded()


class Machine:
    """Threads of a process and of two workers, with their scheduling times."""

    def __init__(self, monkeypatch):
        self.now_s, self.times = 100.0, {}
        monkeypatch.setattr(crowding.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(crowding, "available_cores", lambda: 2)
        monkeypatch.setattr(crowding, "_count_other_trainings", lambda: 3)
        monkeypatch.setattr(CrowdingMonitor, "_read", lambda times: self.read(times))

    def read(self, monitor):
        for path, (on_core_s, queued_s) in self.times.items():
            target = monitor._main_times if path.startswith("/proc/1/") else monitor._worker_times
            target[path] = CoreTimes(round(on_core_s * 1e9), round(queued_s * 1e9))


PROGRAMS = {"worker_program": "a worker's module", "inference_program": "a server's module"}


def test_times_add_up(monkeypatch):
    machine = Machine(monkeypatch)
    machine.times = {"/proc/1/task/1/schedstat": (50.0, 50.0)}  # importing does not count
    monitor = CrowdingMonitor(1, **PROGRAMS)
    monitor.start()
    machine.now_s = 104.0
    machine.times = {
        "/proc/1/task/1/schedstat": (52.0, 51.0),
        "/proc/1/task/2/schedstat": (0.5, 0.5),
        "/proc/7/task/7/schedstat": (1.0, 2.0),
        "/proc/8/task/8/schedstat": (1.0, 0.5),
    }
    monitor.update()  # too soon
    assert monitor.crowding().seconds == 0.0
    machine.now_s = 105.0
    monitor.update()
    del machine.times["/proc/1/task/2/schedstat"]  # it ended, and its queued time still counts
    machine.now_s = 110.0
    machine.times["/proc/7/task/7/schedstat"] = (3.0, 6.0)
    monitor.update(is_final=True)
    assert monitor.crowding() == Crowding(
        cores=2,
        seconds=10.0,
        on_core_s=6.5,
        queued_s=8.0,
        longest_s=6.0,
        threads=2,
        torch_threads=1,
        workers=2,
        workers_on_core_s=4.0,
        workers_queued_s=6.5,
        others=3,
    )


def test_this_process_is_read():
    times = CrowdingMonitor(1, **PROGRAMS)
    times.start()
    sum(range(1_000_000))
    times.update(is_final=True)
    assert 0.0 < times.crowding().on_core_s < 60.0
    assert times.crowding().workers == 0


def test_workers_are_found_by_their_program():
    programs = {"worker_program": WORKER_PROGRAM, "inference_program": INFERENCE_PROGRAM}
    command = [sys.executable, "-c", "print(flush=True); input()", WORKER_PROGRAM]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as worker:
        assert worker.stdout is not None
        worker.stdout.readline()  # right after its start it has no command line
        monitor = CrowdingMonitor(1, **programs)
        monitor.start()
        assert worker.stdin is not None
        worker.stdin.write(b"\n")
    assert monitor.crowding().workers == 1


@pytest.mark.parametrize(
    ("command", "is_training"),
    [
        ("python\0-m\0hotloop\0train\0ppo\0", True),
        ("/venv/bin/python\0/venv/bin/hotloop\0resume\0runs/a\0", True),
        (
            "python\0-m\0hotloop\0train\0ppo\0--seeds\x001-5\0",
            False,
        ),  # it waits for child processes
        ("python\0-m\0hotloop\0train\0ppo\0--seeds=1-5\0", False),
        ("python\0-m\0hotloop\0plot\0train\0", False),
        ("vim\0hotloop-train\0", False),
        ("", False),
    ],
)
def test_other_trainings(command, is_training):
    assert crowding._is_training(command.encode()) == is_training
