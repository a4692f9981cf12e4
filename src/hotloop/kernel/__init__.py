"""What the kernel says: of threads (on a core, queued, blocked), processes, cores and memory."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
_NO_LIMIT = 2**62  # what the first version of groups says is some pages less than 2⁶³
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000


class Times(NamedTuple):
    """Of a thread since it began, in nanoseconds; the rest of its life it was blocked."""

    on_core_ns: int
    queued_ns: int


class ThreadTimes:
    """Reads the times of this process's threads: some 2 µs each.

    Where the system doesn't tell (it is not Linux, or was built without), there are none.
    """

    def __init__(self) -> None:
        self._files: dict[int, int] = {}

    def read(self, thread: int) -> Times | None:
        """Of one thread, by its native number; None: it has ended, or nothing is known."""
        try:
            file = self._files.get(thread)
            if file is None:
                path = f"/proc/self/task/{thread}/schedstat"
                file = self._files[thread] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            on_core, queued, _ = os.pread(file, 64, 0).split()
        except (OSError, ValueError):
            self.forget(thread)
            return None
        return Times(int(on_core), int(queued))

    def keep(self, threads: Set[int]) -> None:
        """Close what was kept open for others."""
        for gone in self._files.keys() - threads:
            self.forget(gone)

    def forget(self, thread: int) -> None:
        """Close what was kept open for a thread."""
        file = self._files.pop(thread, None)
        if file is not None:
            with suppress(OSError):
                os.close(file)

    def close(self) -> None:
        """Close all of them."""
        for thread in list(self._files):
            self.forget(thread)


def _read_one_by_one(patterns: Iterable[str]) -> list[tuple[str, bytes]]:
    """What the extension does at one go."""
    found: list[tuple[str, bytes]] = []
    for pattern in patterns:
        for path in glob.glob(pattern):
            with suppress(OSError), open(path, "rb") as file:
                found.append((path, file.read()))
    return found


try:
    from hotloop.kernel import _files
except ImportError:
    read_files = _read_one_by_one
else:
    read_files = _files.read_files


class Thread(NamedTuple):
    """One of this process's, also where no Python runs in it."""

    number: int
    name: str
    times: Times


def threads() -> list[Thread]:
    """All threads of this process; none where the system doesn't tell of them."""
    texts: dict[int, dict[str, str]] = {}
    for path, text in read_files(("/proc/self/task/*/schedstat", "/proc/self/task/*/comm")):
        *_, number, name = path.split("/")
        texts.setdefault(int(number), {})[name] = text.decode(errors="replace").strip()
    found: list[Thread] = []
    for number in sorted(texts):
        with suppress(KeyError, ValueError):
            on_core, queued, _ = map(int, texts[number]["schedstat"].split())
            found.append(Thread(number, texts[number]["comm"], Times(on_core, queued)))
    return found


def resident_bytes() -> int:
    """Memory that this process holds at the moment; 0: not known."""
    with suppress(OSError, ValueError, IndexError):
        ((_, text),) = read_files(("/proc/self/statm",))
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


class OtherProcess(NamedTuple):
    """A process that descends from this one."""

    pid: int
    parent: int
    command: str
    cpu_ns: int
    """User and system time so far."""


def descendants() -> list[OtherProcess]:
    """All processes that this one has started, and those that they have."""
    found: dict[int, OtherProcess] = {}
    waiting = {os.getpid()}
    while waiting:
        # Of a process: those that any of its threads has started.
        files = read_files([f"/proc/{pid}/task/*/children" for pid in sorted(waiting)])
        waiting = {int(pid) for _, text in files for pid in text.split()} - found.keys()
        texts = {
            path: text.decode(errors="replace")
            for path, text in read_files(
                [f"/proc/{pid}/{name}" for pid in sorted(waiting) for name in ("stat", "cmdline")]
            )
        }
        for pid in sorted(waiting):
            with suppress(KeyError, ValueError, IndexError):
                # After the command's closing parenthesis: state, parent; …, user and system time.
                stat = texts[f"/proc/{pid}/stat"].rpartition(")")[2].split()
                command = texts[f"/proc/{pid}/cmdline"].replace("\0", " ").strip()
                cpu_ns = (int(stat[11]) + int(stat[12])) * _TICK_NS
                found[pid] = OtherProcess(pid, int(stat[1]), command[:300], cpu_ns)
        waiting &= found.keys()
    return [found[pid] for pid in sorted(found)]


def available_cores() -> int:
    """Cores that this process may use: by its affinity, and by its group's quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = count or 1
    with suppress(OSError, ValueError):
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="utf-8").split()
        if quota != "max":
            count = min(count, max(1, int(quota) // int(period)))
    return count


def available_memory() -> int | None:
    """Bytes that may still be used, by the machine and by this process's groups; None: unknown.

    Where the system tells only how much there is at all, it is that.
    """
    found: list[int] = []
    with suppress(OSError, ValueError):
        for line in (_PROC / "meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) * 1024)
    for directory, limit, usage, prefix in _memory_groups():
        with suppress(OSError, ValueError):
            most = (directory / limit).read_text(encoding="utf-8").strip()
            if most == "max" or int(most) >= _NO_LIMIT:
                continue
            used = int((directory / usage).read_text(encoding="utf-8"))
            # What files are cached in is given back when it is needed.
            cached = (f"{prefix}active_file", f"{prefix}inactive_file")
            for line in (directory / "memory.stat").read_text(encoding="utf-8").splitlines():
                name, size = line.split()
                used -= int(size) if name in cached else 0
            found.append(max(0, int(most) - used))
    if not found and hasattr(os, "sysconf"):
        with suppress(OSError, ValueError):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return min(found, default=None)


def _memory_groups() -> Iterator[tuple[Path, str, str, str]]:
    """Yield this process's groups, own and above, of both versions: each may have a limit.

    They are directories, with the names of their files and what begins those of their statistics.
    """
    lines = []
    with suppress(OSError):
        lines = (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines()
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if not kinds:
            mount, limit, usage, prefix = _GROUPS, "memory.max", "memory.current", ""
        elif "memory" in kinds.split(","):
            mount, prefix = _GROUPS / "memory", "total_"
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        own = mount / path.lstrip("/")
        for directory in (own, *own.parents):
            # In a container the path may be one outside it: its own group is at the top.
            if directory.is_relative_to(mount):
                yield directory, limit, usage, prefix
