"""Processes and their threads, as the kernel tells of them: on a core, queued, blocked."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_IMPORTED_AT = time.monotonic()
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000


def _stat(pid: int | str) -> list[str]:
    """Return what /proc tells of a process, from its state on: without number and command.

    Raises:
        OSError: there is no such process, or no /proc.
    """
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The command stands in parentheses, and may hold some.
        return file.read().rpartition(")")[2].split()


def process_start(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 where nothing says.

    Together with the pid it names a process: pids are used again.
    """
    try:
        return int(_stat(pid)[19])
    except (OSError, ValueError, IndexError):
        return 0


def process_state(pid: int) -> str:
    """Return the letter of a process's state: R, S, T when stopped, Z when ended; "": not known."""
    try:
        return _stat(pid)[0]
    except (OSError, IndexError):
        return ""


def process_age_s() -> float:
    """Return the seconds since this process started, imports included."""
    try:
        ticks = int(_stat("self")[19])
    except OSError:  # no /proc (macOS): since this module was imported
        return time.monotonic() - _IMPORTED_AT
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks * _TICK_NS / 1e9


def boot_id() -> str:
    """Return the name of this boot of this machine: only within it do monotonic clocks agree."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


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
    """Do what the extension does at one go."""
    import glob  # which brings `re`

    found: list[tuple[str, bytes]] = []
    for pattern in patterns:
        for path in glob.glob(pattern):
            with suppress(OSError), open(path, "rb") as file:
                found.append((path, file.read()))
    return found


try:
    from hotloop.system import _files
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
    return _held_bytes()[0]


def private_bytes() -> int:
    """Return the memory that this process holds and shares with no other; 0: not known."""
    resident, shared = _held_bytes()
    return resident - shared


def _held_bytes() -> tuple[int, int]:
    """Return what this process holds, and the part of it that is of files or shared."""
    with suppress(OSError, ValueError, IndexError):
        ((_, text),) = read_files(("/proc/self/statm",))
        _, resident, shared = text.split()[:3]
        page = os.sysconf("SC_PAGE_SIZE")
        return int(resident) * page, int(shared) * page
    return 0, 0


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
