"""Free memory of machines and control groups, and the refusal of allocations that do not fit."""

from pathlib import Path

import pytest

from hotloop.base import control_groups, memory
from hotloop.base.memory import format_bytes, require_memory
from hotloop.errors import ConfigError


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1.0 KiB"),
        (1_599, "1.5 KiB"),
        (10 * 2**20, "10 MiB"),
        (18 * 2**30 + 1, "18 GiB"),
        (4_617_089_843_750, "4.1 TiB"),
        (10**30, "827,180 YiB"),
    ],
)
def test_sizes_in_units(size_bytes, text):
    assert format_bytes(size_bytes) == text


def test_a_too_large_allocation_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    require_memory(2**30, "ten apples", "take five")
    message = "^ten apples take at least 1.0 TiB, and 1.0 GiB are free: take five$"
    with pytest.raises(ConfigError, match=message):
        require_memory(2**40, "ten apples", "take five")


def test_unknown_free_memory_refuses_nothing(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    require_memory(2**60, "ten apples", "take five")


def test_small_sizes_skip_the_check(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1 / 0)
    require_memory(2**24, "ten apples", "take five")
    with pytest.raises(ZeroDivisionError):
        require_memory(2**24 + 1, "ten apples", "take five")


def test_free_memory_is_below_the_total():
    meminfo = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemTotal:"))
    assert 0 < memory.available_memory() < total


@pytest.fixture
def write_file(monkeypatch, tmp_path):
    """A machine with 1,000 KiB free, simulated by files that tests write."""
    monkeypatch.setattr(control_groups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path / "groups")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", "MemTotal:  9999 kB\nMemFree:  10 kB\nMemAvailable:  1000 kB\n")
    return write


def test_free_memory_without_control_groups(write_file):
    assert memory.available_memory() == 1000 * 1024


@pytest.mark.parametrize("place", ["groups/a/b", "groups/a", "groups"])
def test_nested_groups_limit_free_memory(write_file, place):
    write_file("proc/self/cgroup", "0::/a/b\n")
    write_file("groups/a/b/memory.max", "max\n")
    write_file(f"{place}/memory.max", "500000\n")
    write_file(f"{place}/memory.current", "450000\n")
    write_file(f"{place}/memory.stat", "anon 5\nactive_file 1000\ninactive_file 200\nfile 9\n")
    assert memory.available_memory() == 500_000 - 450_000 + 1200
    write_file(f"{place}/memory.current", "600000\n")
    assert memory.available_memory() == 0


def test_the_root_group_limits_a_container(write_file):
    write_file("proc/self/cgroup", "0::/outside/it\n")
    write_file("groups/memory.max", "500000\n")
    write_file("groups/memory.current", "400000\n")
    write_file("groups/memory.stat", "anon 5\n")
    assert memory.available_memory() == 100_000


def test_a_cgroup_v1_limit_applies(write_file):
    write_file("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    for place, limit in (("memory", 9223372036854771712), ("memory/a", 500_000)):
        write_file(f"groups/{place}/memory.limit_in_bytes", f"{limit}\n")
        write_file(f"groups/{place}/memory.usage_in_bytes", "450000\n")
        text = "active_file 7\ninactive_file 7\ntotal_active_file 1000\ntotal_inactive_file 200\n"
        write_file(f"groups/{place}/memory.stat", text)
    assert memory.available_memory() == 500_000 - 450_000 + 1200


def test_total_memory_counts_without_system_files(monkeypatch, tmp_path):
    monkeypatch.setattr(control_groups, "PROC", tmp_path)
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    assert memory.available_memory() > 2**28
