"""Cores as affinity and quotas have them."""

import pytest

from hotloop.system import cores, groups


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine of six cores, as files that tests write to."""
    monkeypatch.setattr(groups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(groups, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def test_cores_by_affinity_where_there_are_no_groups(machine):
    assert cores.available_cores() == 6


@pytest.mark.parametrize("place", ["groups/a/b", "groups/a", "groups"])
@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 6)],
)
def test_cores_by_the_quota_of_a_group_and_of_those_above_it(machine, place, quota, count):
    machine("proc/self/cgroup", "0::/a/b\n")
    machine("groups/a/b/cpu.max", "max 100000\n")
    machine(f"{place}/cpu.max", f"{quota}\n")
    assert cores.available_cores() == count


@pytest.mark.parametrize(("quota", "count"), [(-1, 6), (300_000, 3)])
def test_cores_by_the_quota_of_a_group_of_the_first_version(machine, quota, count):
    machine("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    machine("groups/cpu/cpu.cfs_quota_us", "-1\n")
    machine("groups/cpu/a/cpu.cfs_quota_us", f"{quota}\n")
    for group in ("cpu", "cpu/a"):
        machine(f"groups/{group}/cpu.cfs_period_us", "100000\n")
    assert cores.available_cores() == count


@pytest.mark.parametrize(
    ("running", "free"),
    [(2, 6), (3, 5), (7, 1), (40, 0), (0, 6)],  # two of them are the process's own
)
def test_free_cores(machine, monkeypatch, running, free):
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 6)
    machine("proc/stat", f"cpu 1 2 3\nprocs_running {running}\nprocs_blocked 0\n")
    for thread, state in enumerate("RSR"):
        machine(f"proc/self/task/{thread}/stat", f"7 (a) R) {state} 1 2\n")
    assert cores.free_cores() == free


def test_free_cores_where_nothing_tells_of_them(machine):
    assert cores.free_cores() is None
    machine("proc/stat", "cpu 1 2 3\n")
    assert cores.free_cores() is None


def test_free_cores_here():
    assert cores.free_cores() in range(cores.available_cores() + 1)
