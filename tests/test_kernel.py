"""Cores as affinity and quota have them; memory as the machine and groups of processes have it."""

import pytest

from hotloop import kernel


def test_cores_are_counted_by_affinity_and_quota(monkeypatch, tmp_path):
    quota = tmp_path / "cpu.max"
    real = kernel.Path

    def path(name):
        return quota if name == "/sys/fs/cgroup/cpu.max" else real(name)

    monkeypatch.setattr(kernel, "Path", path)
    monkeypatch.setattr(kernel.os, "sched_getaffinity", lambda pid: set(range(6)), raising=False)
    assert kernel.available_cores() == 6  # no such file
    quota.write_text("max 100000\n")
    assert kernel.available_cores() == 6
    quota.write_text("250000 100000\n")
    assert kernel.available_cores() == 2
    quota.write_text("50000 100000\n")
    assert kernel.available_cores() == 1


def test_the_memory_that_is_free_is_known():
    meminfo = (kernel.Path("/proc/meminfo")).read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemTotal:"))
    assert 0 < kernel.available_memory() < total


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 1,000 KiB free, as files that tests write to."""
    monkeypatch.setattr(kernel, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(kernel, "_GROUPS", tmp_path / "groups")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", "MemTotal:  9999 kB\nMemFree:  10 kB\nMemAvailable:  1000 kB\n")
    return write


def test_memory_of_a_machine_without_groups(machine):
    assert kernel.available_memory() == 1000 * 1024


@pytest.mark.parametrize("place", ["groups/a/b", "groups/a", "groups"])
def test_memory_of_a_group_and_of_those_above_it(machine, place):
    machine("proc/self/cgroup", "0::/a/b\n")
    machine("groups/a/b/memory.max", "max\n")
    machine(f"{place}/memory.max", "500000\n")
    machine(f"{place}/memory.current", "450000\n")
    machine(f"{place}/memory.stat", "anon 5\nactive_file 1000\ninactive_file 200\nfile 9\n")
    assert kernel.available_memory() == 500_000 - 450_000 + 1200
    machine(f"{place}/memory.current", "600000\n")
    assert kernel.available_memory() == 0


def test_memory_of_a_container_whose_group_is_at_the_top(machine):
    machine("proc/self/cgroup", "0::/outside/it\n")
    machine("groups/memory.max", "500000\n")
    machine("groups/memory.current", "400000\n")
    machine("groups/memory.stat", "anon 5\n")
    assert kernel.available_memory() == 100_000


def test_memory_of_a_group_of_the_first_version(machine):
    machine("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    for place, limit in (("memory", 9223372036854771712), ("memory/a", 500_000)):
        machine(f"groups/{place}/memory.limit_in_bytes", f"{limit}\n")
        machine(f"groups/{place}/memory.usage_in_bytes", "450000\n")
        text = "active_file 7\ninactive_file 7\ntotal_active_file 1000\ntotal_inactive_file 200\n"
        machine(f"groups/{place}/memory.stat", text)
    assert kernel.available_memory() == 500_000 - 450_000 + 1200


def test_memory_where_the_system_tells_nothing_is_all_that_there_is(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel, "_PROC", tmp_path)
    monkeypatch.setattr(kernel, "_GROUPS", tmp_path)
    assert kernel.available_memory() > 2**28
