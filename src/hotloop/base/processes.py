"""Processes and threads, with their states and times as reported by the kernel in /proc."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Set
from contextlib import suppress
from pathlib import Path
from typing import Literal, NamedTuple

from hotloop.base.owned_file import OwnedFile
from hotloop.base.redaction import redacted

_IMPORTED_AT = time.monotonic()
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 10_000_000
# Characters that are kept of a command. The profiler's own command of a program has 400.
_MAX_COMMAND = 1000


def _stat(pid: int | str) -> list[str]:
    """Return /proc/PID/stat's fields after the command, or raise OSError if there is none."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        # The command is in parentheses, and may contain parentheses.
        return file.read().rpartition(")")[2].split()


def process_start(pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, 0 if unknown.

    Together with the pid, which the kernel reuses, it identifies a process.
    """
    try:
        # In a namespace with the /proc of its parent, this process has another number there.
        return int(_stat("self" if pid == os.getpid() else pid)[19])
    except (OSError, ValueError, IndexError):
        return 0


def process_state(pid: int) -> str:
    """Return the state of a process: R, S, T (stopped), Z (zombie), …, or "" if unknown."""
    try:
        return _stat(pid)[0]
    except (OSError, IndexError):
        return ""


def is_running(pid: int, start: int) -> bool:
    """Return whether a process runs that started at this time, see `process_start`."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        pass
    # A zombie has ended, but its parent has not waited for it.
    return process_start(pid) == start and process_state(pid) not in ("Z", "X")


def process_age_s() -> float:
    """Return the seconds since this process started, imports included."""
    try:
        ticks = int(_stat("self")[19])
    except OSError:  # without /proc (macOS), count from the import of this module
        return time.monotonic() - _IMPORTED_AT
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks * _TICK_NS / 1e9


def boot_id() -> str:
    """Return the id of this boot, within which all monotonic clocks agree, or "" if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


class CoreTimes(NamedTuple):
    """Nanoseconds of a thread on a core and queued for one. Otherwise it was blocked."""

    on_core_ns: int
    queued_ns: int


class ThreadTimes:
    """A reader of the scheduler times of this process's threads, at some 2 µs per thread.

    It returns None on systems other than Linux, and on kernels that do not record these times.
    """

    def __init__(self) -> None:
        self._files: dict[int, OwnedFile] = {}

    def read(self, thread: int) -> CoreTimes | None:
        """Return the times of the thread with this native id, None if it ended or is unknown."""
        try:
            if thread not in self._files:
                file = OwnedFile()
                file.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY)
                self._files[thread] = file
            on_core, queued, _ = os.pread(self._files[thread].descriptor(), 64, 0).split()
        except (OSError, ValueError):
            self.forget(thread)
            return None
        return CoreTimes(int(on_core), int(queued))

    def forget_except(self, threads: Set[int]) -> None:
        """Close the files of all threads but these."""
        for thread in self._files.keys() - threads:
            self.forget(thread)

    def forget(self, thread: int) -> None:
        """Close the file of a thread."""
        if thread in self._files:
            self._files.pop(thread).close()

    def close(self) -> None:
        """Close all files."""
        for thread in list(self._files):
            self.forget(thread)


def _read_files_in_python(patterns: Iterable[str]) -> list[tuple[str, bytes]]:
    """Return paths and contents of all matching files, like `_files.read_files`."""
    import glob  # slow to import, since it imports `re`

    files: list[tuple[str, bytes]] = []
    for pattern in patterns:
        for path in glob.glob(pattern):
            with suppress(OSError), open(path, "rb") as file:
                files.append((path, file.read()))
    return files


try:
    from hotloop.base import _files
except ImportError:
    read_files = _read_files_in_python
else:
    read_files = _files.read_files


class ThreadInfo(NamedTuple):
    """A thread of this process, which may not run Python."""

    number: int
    name: str
    times: CoreTimes


def threads(process: int | Literal["self"] = "self") -> list[ThreadInfo]:
    """Return all threads of a process, an empty list without /proc."""
    texts: dict[int, dict[str, str]] = {}
    tasks = f"/proc/{process}/task/*"
    for path, text in read_files((f"{tasks}/schedstat", f"{tasks}/comm")):
        *_, number, name = path.split("/")
        texts.setdefault(int(number), {})[name] = text.decode(errors="replace").strip()
    infos: list[ThreadInfo] = []
    for number in sorted(texts):
        with suppress(KeyError, ValueError):
            on_core, queued, _ = map(int, texts[number]["schedstat"].split())
            infos.append(ThreadInfo(number, texts[number]["comm"], CoreTimes(on_core, queued)))
    return infos


def resident_bytes() -> int:
    """Return the resident memory of this process, 0 if unknown."""
    return _memory_bytes()[0]


def private_bytes() -> int:
    """Return the resident memory of this process that it shares with no other, 0 if unknown."""
    resident, shared = _memory_bytes()
    return resident - shared


def _memory_bytes() -> tuple[int, int]:
    """Return resident bytes of this process, and how many of them belong to files or are shared."""
    with suppress(OSError, ValueError, IndexError):
        ((_, text),) = read_files(("/proc/self/statm",))
        _, resident, shared = text.split()[:3]
        page_bytes = os.sysconf("SC_PAGE_SIZE")
        return int(resident) * page_bytes, int(shared) * page_bytes
    return 0, 0


class DescendantProcess(NamedTuple):
    """A descendant of this process."""

    pid: int
    parent: int
    command: str
    cpu_ns: int
    """User and system time."""


def descendants() -> list[DescendantProcess]:
    """Return all descendants of this process."""
    processes: dict[int, DescendantProcess] = {}
    new_pids = {os.getpid()}
    while new_pids:
        # The kernel lists children per thread.
        files = read_files([f"/proc/{pid}/task/*/children" for pid in sorted(new_pids)])
        new_pids = {int(pid) for _, text in files for pid in text.split()} - processes.keys()
        texts = {
            path: text.decode(errors="replace")
            for path, text in read_files(
                [f"/proc/{pid}/{name}" for pid in sorted(new_pids) for name in ("stat", "cmdline")]
            )
        }
        for pid in sorted(new_pids):
            with suppress(KeyError, ValueError, IndexError):
                # Fields after the command: state, parent, …, user time, system time.
                stat = texts[f"/proc/{pid}/stat"].rpartition(")")[2].split()
                words = redacted(texts[f"/proc/{pid}/cmdline"].split("\0"))
                command = " ".join(words).strip()[:_MAX_COMMAND]
                cpu_ns = (int(stat[11]) + int(stat[12])) * _TICK_NS
                processes[pid] = DescendantProcess(pid, int(stat[1]), command, cpu_ns)
        new_pids &= processes.keys()
    return [processes[pid] for pid in sorted(processes)]
