import pytest

from hotloop.system import crowding
from hotloop.system.crowding import CoreTimes, Crowding
from hotloop.system.processes import Times


def crowded(**changed):
    """Half of the time in which its threads could run, they waited."""
    base = {"cores": 2, "seconds": 10.0, "on_core_s": 5.0, "queued_s": 5.0, "longest_s": 5.0}
    return Crowding(**{**base, **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"on_core_s": 9.8, "queued_s": 0.2, "longest_s": 0.2},  # one training alone
        {"seconds": 0.5},
        {"on_core_s": 0.1, "queued_s": 0.1, "longest_s": 0.1},  # it waits for its environments
        {"on_core_s": 0.0, "queued_s": 0.0, "longest_s": 0.0},  # the system tells nothing
        {"queued_s": 0.87, "longest_s": 0.87},
    ],
)
def test_nothing_is_told_where_cores_suffice(changed):
    assert not crowded(**changed).is_crowded
    assert crowded(**changed).told() == ""


@pytest.mark.parametrize(
    ("changed", "cause", "cure"),
    [
        ({"torch_threads": 8, "threads": 8}, "8 torch threads", "--torch-threads 1"),
        ({"torch_threads": 2, "threads": 2, "others": 1}, "2 torch threads", "--torch-threads 1"),
        ({"workers": 24, "workers_queued_s": 4.0}, "24 workers", "--workers 2, or auto"),
        ({"jobs": 4, "others": 3}, "4 seeds at a time", "--jobs 2"),
        ({"jobs": 2, "others": 1, "workers": 1}, "2 seeds at a time", "--jobs 1"),
        ({"others": 1}, "1 other training beside this one", "one after another: --seeds 1-5"),
        ({"jobs": 2, "others": 3}, "2 other trainings beside this one", "one after another"),
        ({}, "other programs", "a machine of its own"),
        ({"torch_threads": 2, "threads": 2}, "other programs", "a machine of its own"),
        ({"workers": 2, "workers_queued_s": 5.0}, "other programs", "a machine of its own"),
    ],
)
def test_causes(changed, cause, cure):
    found = crowded(**changed)
    assert found.causes[0][0] == cause
    assert found.causes[0][1].startswith(cure)
    assert cause in found.told()
    assert "for 50% of the time" in found.told()


def test_the_gain_by_hand():
    """Without the 5 s of the thread that waited the longest, 5 of 10 are left."""
    assert crowded().gain == 2.0
    # What was done on two cores for 16 s takes 8 on them.
    busy = {"on_core_s": 16.0, "queued_s": 90.0, "longest_s": 9.0}
    assert crowded(**busy, workers=24, workers_queued_s=80.0).gain == 1.25
    # But torch's threads spin while they wait for each other.
    assert crowded(**busy, torch_threads=8, threads=8).gain == 10.0


def test_several_causes_are_told_in_order():
    found = crowded(torch_threads=4, threads=4, jobs=3, others=4)
    assert [cause for cause, _ in found.causes] == [
        "4 torch threads",
        "3 seeds at a time",
        "2 other trainings beside this one",
    ]


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"cores": 2, "seconds": 1.0}, {**vars(crowded()), "queued_s": "x"}],
)
def test_a_strangers_file(value):
    assert Crowding.of(value) is None


@pytest.mark.parametrize("x", [-1.0, float("nan"), float("inf"), 1e300, True])
def test_a_strangers_numbers(x):
    assert Crowding.of({**vars(crowded()), "seconds": x}) is None


def test_of_a_file():
    assert Crowding.of(vars(crowded(others=3))) == crowded(others=3)
    assert Crowding.of({**vars(crowded()), "later": "version"}) == crowded()


class Machine:
    """Threads of a process and of two workers, and what the kernel says of them."""

    def __init__(self, monkeypatch):
        self.now_s, self.times = 100.0, {}
        monkeypatch.setattr(crowding.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(crowding, "available_cores", lambda: 2)
        monkeypatch.setattr(crowding, "_other_trainings", lambda: 3)
        monkeypatch.setattr(CoreTimes, "_read", lambda times: self.read(times))

    def read(self, into):
        for path, (on_core_s, queued_s) in self.times.items():
            where = into._own if path.startswith("/proc/1/") else into._workers
            where[path] = Times(round(on_core_s * 1e9), round(queued_s * 1e9))


def test_times_add_up(monkeypatch):
    machine = Machine(monkeypatch)
    machine.times = {"/proc/1/task/1/schedstat": (50.0, 50.0)}  # importing does not count
    times = CoreTimes(1)
    times.begin()
    machine.now_s = 104.0
    machine.times = {
        "/proc/1/task/1/schedstat": (52.0, 51.0),
        "/proc/1/task/2/schedstat": (0.5, 0.5),
        "/proc/7/task/7/schedstat": (1.0, 2.0),
        "/proc/8/task/8/schedstat": (1.0, 0.5),
    }
    times.look()  # too soon
    assert times.crowding().seconds == 0.0
    machine.now_s = 105.0
    times.look()
    del machine.times["/proc/1/task/2/schedstat"]  # it ended, and what it waited stays
    machine.now_s = 110.0
    machine.times["/proc/7/task/7/schedstat"] = (3.0, 6.0)
    times.look(is_last=True)
    assert times.crowding() == Crowding(
        cores=2,
        seconds=10.0,
        on_core_s=6.5,
        queued_s=8.0,
        longest_s=6.0,
        threads=2,
        torch_threads=1,
        workers=2,
        workers_queued_s=6.5,
        others=3,
    )


def test_this_process_is_read():
    times = CoreTimes(1)
    times.begin()
    sum(range(1_000_000))
    times.look(is_last=True)
    assert 0.0 < times.crowding().on_core_s < 60.0
    assert times.crowding().workers == 0


@pytest.mark.parametrize(
    ("command", "is_one"),
    [
        ("python\0-m\0hotloop\0train\0ppo\0", True),
        ("/venv/bin/python\0/venv/bin/hotloop\0resume\0runs/a\0", True),
        ("python\0-m\0hotloop\0train\0ppo\0--seeds\x001-5\0", False),  # which waits for others
        ("python\0-m\0hotloop\0train\0ppo\0--seeds=1-5\0", False),
        ("python\0-m\0hotloop\0plot\0train\0", False),
        ("vim\0hotloop-train\0", False),
        ("", False),
    ],
)
def test_other_trainings(command, is_one):
    assert crowding._is_training(command.encode()) == is_one
