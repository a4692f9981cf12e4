"""Memory as the machine and groups of processes have it; the refusal of what would not fit."""

from pathlib import Path

import pytest

from hotloop.errors import ConfigError
from hotloop.system import groups, memory
from hotloop.system.memory import in_units, need_memory


@pytest.mark.parametrize(
    ("size_bytes", "told"),
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
def test_sizes_in_units(size_bytes, told):
    assert in_units(size_bytes) == told


def test_what_does_not_fit_is_refused(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 2**30)
    need_memory(2**30, "ten apples", "take five")
    message = "^ten apples take at least 1.0 TiB, and 1.0 GiB are free: take five$"
    with pytest.raises(ConfigError, match=message):
        need_memory(2**40, "ten apples", "take five")


def test_nothing_is_refused_where_free_memory_is_not_known(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: None)
    need_memory(2**60, "ten apples", "take five")


def test_small_sizes_are_not_asked_for(monkeypatch):
    monkeypatch.setattr(memory, "available_memory", lambda: 1 / 0)
    need_memory(2**24, "ten apples", "take five")
    with pytest.raises(ZeroDivisionError):
        need_memory(2**24 + 1, "ten apples", "take five")


def test_the_memory_that_is_free_is_known():
    meminfo = Path("/proc/meminfo").read_text().splitlines()
    total = next(int(line.split()[1]) * 1024 for line in meminfo if line.startswith("MemTotal:"))
    assert 0 < memory.available_memory() < total


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 1,000 KiB free, as files that tests write to."""
    monkeypatch.setattr(groups, "PROC", tmp_path / "proc")
    monkeypatch.setattr(groups, "GROUPS", tmp_path / "groups")

    def write(path, text):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    write("proc/meminfo", "MemTotal:  9999 kB\nMemFree:  10 kB\nMemAvailable:  1000 kB\n")
    return write


def test_memory_of_a_machine_without_groups(machine):
    assert memory.available_memory() == 1000 * 1024


@pytest.mark.parametrize("place", ["groups/a/b", "groups/a", "groups"])
def test_memory_of_a_group_and_of_those_above_it(machine, place):
    machine("proc/self/cgroup", "0::/a/b\n")
    machine("groups/a/b/memory.max", "max\n")
    machine(f"{place}/memory.max", "500000\n")
    machine(f"{place}/memory.current", "450000\n")
    machine(f"{place}/memory.stat", "anon 5\nactive_file 1000\ninactive_file 200\nfile 9\n")
    assert memory.available_memory() == 500_000 - 450_000 + 1200
    machine(f"{place}/memory.current", "600000\n")
    assert memory.available_memory() == 0


def test_memory_of_a_container_whose_group_is_at_the_top(machine):
    machine("proc/self/cgroup", "0::/outside/it\n")
    machine("groups/memory.max", "500000\n")
    machine("groups/memory.current", "400000\n")
    machine("groups/memory.stat", "anon 5\n")
    assert memory.available_memory() == 100_000


def test_memory_of_a_group_of_the_first_version(machine):
    machine("proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/a\n0::/\n")
    for place, limit in (("memory", 9223372036854771712), ("memory/a", 500_000)):
        machine(f"groups/{place}/memory.limit_in_bytes", f"{limit}\n")
        machine(f"groups/{place}/memory.usage_in_bytes", "450000\n")
        text = "active_file 7\ninactive_file 7\ntotal_active_file 1000\ntotal_inactive_file 200\n"
        machine(f"groups/{place}/memory.stat", text)
    assert memory.available_memory() == 500_000 - 450_000 + 1200


def test_memory_where_the_system_tells_nothing_is_all_that_there_is(monkeypatch, tmp_path):
    monkeypatch.setattr(groups, "PROC", tmp_path)
    monkeypatch.setattr(groups, "GROUPS", tmp_path)
    assert memory.available_memory() > 2**28
