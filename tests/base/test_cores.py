"""The number of usable cores by affinity, control group quotas and load."""

import pytest

from hotloop.base import control_groups, cores


@pytest.fixture
def write_file(monkeypatch, tmp_path):
    """A machine with six cores, simulated by files that tests write."""
    monkeypatch.setattr(control_groups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(cores.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    return write


def test_affinity_limits_cores_without_control_groups(write_file):
    assert cores.available_cores() == 6


@pytest.mark.parametrize("place", ["groups/a/b", "groups/a", "groups"])
@pytest.mark.parametrize(
    ("quota", "count"),
    [("max 100000", 6), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 6)],
)
def test_quotas_of_nested_groups_limit_cores(write_file, place, quota, count):
    write_file("proc/self/cgroup", "0::/a/b\n")
    write_file("groups/a/b/cpu.max", "max 100000\n")
    write_file(f"{place}/cpu.max", f"{quota}\n")
    assert cores.available_cores() == count


@pytest.mark.parametrize(("quota", "count"), [(-1, 6), (300_000, 3)])
def test_a_cgroup_v1_quota_limits_cores(write_file, quota, count):
    write_file("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    write_file("groups/cpu/cpu.cfs_quota_us", "-1\n")
    write_file("groups/cpu/a/cpu.cfs_quota_us", f"{quota}\n")
    for group in ("cpu", "cpu/a"):
        write_file(f"groups/{group}/cpu.cfs_period_us", "100000\n")
    assert cores.available_cores() == count


@pytest.mark.parametrize(
    ("running", "free"),
    [(2, 6), (3, 5), (7, 1), (40, 0), (0, 6)],  # two of them belong to this process
)
def test_free_cores(write_file, monkeypatch, running, free):
    monkeypatch.setattr(cores.os, "cpu_count", lambda: 6)
    write_file("proc/stat", f"cpu 1 2 3\nprocs_running {running}\nprocs_blocked 0\n")
    for thread, state in enumerate("RSR"):
        write_file(f"proc/self/task/{thread}/stat", f"7 (a) R) {state} 1 2\n")
    assert cores.free_cores() == free


def test_free_cores_are_unknown_without_process_counts(write_file):
    assert cores.free_cores() is None
    write_file("proc/stat", "cpu 1 2 3\n")
    assert cores.free_cores() is None


def test_free_cores_of_this_machine():
    assert cores.free_cores() in range(cores.available_cores() + 1)
