"""A thread that has all threads of its process looked at a hundred times a second.

Of every thread of Python's: the stack, the span that it is in, and what the kernel has counted for
it since the last look. Once a second what was seen is written out (`samples`).

Who looks decides what is seen. A thread beside the program has to ask for the GIL, which it gets
soonest where the program lets go of it, in NumPy and torch: those it would see too often, and each
time the program has to wait for two wake-ups. So the main thread looks itself when it is asked to
(`_ticker`), which takes some 10 µs; only where it does not answer, because it is in a long call or
waits, the thread beside it does. Without the extension the thread beside it always looks.
"""

from __future__ import annotations

import _thread
import contextlib
import errno
import gc
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop import timing
from hotloop.profiler.collect.awaiting import Awaited, runs_loop, what_is_awaited
from hotloop.profiler.collect.import_hooks import is_being_imported
from hotloop.profiler.collect.samples import OWN_THREADS, SUFFIX, VERSION
from hotloop.profiler.collect.stacks import Numbers, _ticker
from hotloop.profiler.collect.tally import Tally
from hotloop.system import processes
from hotloop.system.cores import available_cores
from hotloop.system.processes import boot_id, process_start
from hotloop.timing import _control
from hotloop.timing._totals import totals
from hotloop.timing._writer import CLOSED, OwnFile

# Writing out takes at most this share of the time: periods grow with what there is to write.
_WRITING_SHARE = 0.01
_PERIOD_S = 1.0
# A process that is killed in its first second is to leave something as well.
_FIRST_S = (0.1, 0.3, 0.6)
# The kernel is asked for all threads, memory and descendants when so much time has passed: with
# every second line, and with those at the first second's beginning and end.
_KERNEL_S = 1.5
# The thread beside the program asks for the GIL after so many microseconds. After Python's own
# 5,000 hardly a sample would be of what runs in Python: of a loop over omegaconf's objects, 20 %
# instead of 70.
_SWITCH_US = 50
_PR_SET_NAME, _PR_SET_TIMERSLACK = 15, 29


class Sampler:
    """Samples this process until it is stopped.

    Args:
        directory: where the file goes; beside the recording.
        component: what this process is in the program.
        interval_s: between two looks.
        watches_others: whether to note which processes descend from this one.
        opens_late: make the file with the first samples: most forks are soon replaced by a program,
            and leave none.
        problems: what could not be recorded, by what it is; may grow.
    """

    def __init__(
        self,
        directory: Path,
        component: str,
        *,
        interval_s: float = 0.01,
        watches_others: bool = True,
        opens_late: bool = False,
        problems: Mapping[str, str] | None = None,
    ) -> None:
        self._problems = {} if problems is None else problems
        self.path = directory / f"{component}-{os.getpid()}{SUFFIX}"
        self._interval_s = interval_s
        self._watches_others = watches_others
        self._opens_late = opens_late
        # The extension knows the other one's open spans.
        self._asks_main = _ticker is not None and not _control.backend.__name__.endswith("_pure")
        self._pid = os.getpid()
        self._component = component
        self._start_ns = 0
        self._times = processes.ThreadTimes()
        self._tally = Tally()
        self._known = Numbers()
        self._own_ns = 0
        # Where the extension puts what it sees, and of main's, by place there: what is awaited.
        self._records: list[Any] = []
        self._awaited: dict[int, Awaited] = {}
        self._last_awaited: Awaited | None = None
        # What the kernel said when it was last asked.
        self._asked_at = 0.0
        self._threads: list[processes.Thread] = []
        self._resident = 0
        self._others: list[processes.OtherProcess] = []
        self._text = b""  # to be written
        # Unbuffered: what a file object holds back would be written once more by a forked child.
        self._file = OwnFile()
        self._has_given_up = False
        self._due = self._written_at = 0.0
        self._period_s = _FIRST_S[0]
        self._num_lines = 0
        self._took_s = 0.0
        self._switch_us = round(sys.getswitchinterval() * 1e6)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        # Several threads may fork at the same time.
        self._gate = threading.Lock()
        self._num_pauses = 1
        self._has_ended = False
        # Of the thread that runs: held until it has ended.
        self._running: Any = None

    def start(self) -> None:
        """Begin; where there is no room for the file, that is warned of, and nothing is sampled."""
        self._start_ns = time.monotonic_ns()
        self._written_at = time.monotonic()
        self._due = self._written_at + self._interval_s
        if not self._opens_late:
            self._open()
        times = self._times.read(self._pid)
        self._tally.knows_times = times is not None
        self._tally.begin(self._pid, self._start_ns, times)
        if self._asks_main:
            main = threading.main_thread().ident or 0
            self._records = []
            _ticker.begin(self._records, self._interval_s, main, self._pid)
        self.go_on()

    def pause(self) -> None:
        """End the thread for a while: a process should fork with as few threads as it can."""
        with self._gate:
            self._num_pauses += 1
            if self._num_pauses > 1:
                return
            self._stopping.set()
            if self._asks_main:
                _ticker.stop()
            if self._running is not None and self._running.acquire(timeout=5.0):
                self._running.release()
            self._running = None
            self._ask_soon(False)

    def go_on(self) -> None:
        """Begin again after a pause; the last of several counts."""
        with self._gate:
            self._num_pauses -= 1
            if self._num_pauses or self._has_given_up or self._has_ended:
                return
            self._stopping.clear()
            running = self._running = _thread.allocate_lock()
            running.acquire()
            try:
                if self._asks_main:
                    _ticker.start()
                # Not threading's: a program that waits for all of its threads waits for no other.
                _thread.start_new_thread(self._run, (running,))
            except RuntimeError:  # no more threads, or the interpreter is about to end
                self._running = None
                if self._asks_main:
                    _ticker.stop()

    def stop(self) -> None:
        """Write what was seen and end. Harmless when repeated, and in a forked child."""
        if os.getpid() != self._pid:
            return
        self._has_ended = True
        self.pause()
        with self._lock:
            self._flush(last=True)
            self.abandon()
        self._has_given_up = True

    def abandon(self) -> None:
        """Let go of what is the parent's, in a forked child."""
        self._file.close()
        self._times.close()
        if self._asks_main:
            _ticker.end()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self, running: Any) -> None:
        before_ns = self._own_ns  # of threads before a pause
        try:
            _wake_on_time()
            if self._asks_main:
                _ticker.enter(threading.get_native_id())
            # Another one runs where this one did not end in time.
            while self._running is running and self._wait():
                self._write_when_due()
                # All of the thread's: waiting for the interpreter takes some, too.
                self._own_ns = before_ns + time.thread_time_ns()
        except Exception as error:
            self._give_up(error)
        finally:
            running.release()

    def _write_when_due(self) -> None:
        began = time.thread_time_ns()
        with self._lock:
            now = time.monotonic()
            if now - self._written_at < self._period_s:
                return
            self._written_at = now
            self._flush()
            took_s = (time.thread_time_ns() - began) / 1e9
            if self._num_lines < len(_FIRST_S):
                self._period_s = _FIRST_S[self._num_lines]
            else:  # one that takes long, as the first one does, says nothing of those to come
                self._period_s = max(_PERIOD_S, min(took_s, self._took_s) / _WRITING_SHARE)
            self._took_s = took_s

    def _wait(self) -> bool:
        """Until something was looked at or is to be written; False: until the end."""
        if not self._asks_main:
            if self._stopping.wait(max(0.0, self._due - time.monotonic())):
                return False
            with self._lock:
                self._look()
            self._due = time.monotonic() + self._interval_s
            return True
        text, self._text = self._text, b""
        due_ns = round((self._written_at + self._period_s) * 1e9)
        why = _ticker.wait(due_ns, self._file.number() if text else -1, text)
        if why == _ticker.UNANSWERED:
            _ticker.look()
            self._note_awaited()
        return why != _ticker.STOPPED and not self._stopping.is_set()

    # --- what was seen ----------------------------------------------------------------------------

    def _look(self) -> None:
        """Count one sample of every thread that runs Python, from this one."""
        # It may collect garbage, and let go of the GIL with a lock held that another thread waits
        # for (CPython's issue 106883; mended in 3.11.9).
        collects = gc.isenabled()
        gc.disable()
        try:
            frames = sys._current_frames()
        finally:
            if collects:
                gc.enable()
        now_ns = time.monotonic_ns()
        # Our own frame, in a variable of which it would be, would keep all of them alive.
        frames.pop(threading.get_ident(), None)
        paths = timing.open_paths()
        numbers = self._numbers()
        for ident, frame in frames.items():
            thread = numbers.get(ident, 0)
            times = self._times.read(thread) if thread else None
            path = self._known.of_path(paths.get(thread, ()))
            self._tally.add(thread, path, self._known.of_frame(frame), now_ns, times, None)
        self._times.keep(self._tally.threads())
        self._ask_soon(len(self._tally.at_work()) < 2)

    def _note_awaited(self) -> None:
        """Where an event loop is idle: what its tasks wait for, by their own places in code."""
        place = next(
            (i for i in range(len(self._records) - 1, -1, -1) if self._records[i][0] == self._pid),
            None,
        )
        if place is None or self._records[place][6] != "events":
            return
        awaited = what_is_awaited(self._records[place][-1])
        if awaited is not None:
            self._awaited[place] = awaited

    def _take(self) -> None:
        """Count what the main thread has seen."""
        fresh: list[Any] = []
        records, *idle_after = _ticker.swap(fresh)
        self._records = fresh
        awaited, self._awaited = self._awaited, {}
        for i, record in enumerate(records):
            thread, state, node, at_ns, on_core_ns, queued_ns, wait, *idle, places, codes = record
            if at_ns != self._tally.look_ns:
                self._tally.add_idle(*idle)
            path = () if state is None else state.segment.path(node)
            stack = self._known.of_places(places, codes)
            self._last_awaited = awaited.get(i, self._last_awaited)
            is_idle_loop = wait == "events" and thread == self._pid and runs_loop(codes)
            if is_idle_loop and self._last_awaited is not None:
                # Where the loop woke up before it was looked at, it waited for the same.
                wait = self._last_awaited.wait
                stack = self._known.of_awaited(self._last_awaited, places, codes)
            times = processes.Times(on_core_ns, queued_ns) if on_core_ns >= 0 else None
            self._tally.add(thread, self._known.of_path(path), stack, at_ns, times, wait)
        self._tally.add_idle(*idle_after)
        # Where main works it answers: then nobody has to ask for the GIL.
        at_work = self._tally.at_work()
        self._ask_soon(len(at_work) == 1 and at_work[0] != self._pid)

    def _ask_soon(self, soon: bool) -> None:
        """Have the interpreter handed over within microseconds, or as the program has it.

        Only where one thread is at work, which then loses no time but what looking takes; several
        would take turns that often.
        """
        now_us = round(sys.getswitchinterval() * 1e6)
        if now_us != _SWITCH_US:
            self._switch_us = now_us  # the program's own, also if it has changed it
        wanted_us = min(_SWITCH_US, self._switch_us) if soon else self._switch_us
        if wanted_us != now_us:
            sys.setswitchinterval(wanted_us / 1e6)

    def _numbers(self) -> dict[int, int]:
        """The kernel's numbers of threads, by Python's, which are used again for others."""
        numbers = {
            thread.ident: thread.native_id
            for thread in threading.enumerate()
            if thread.ident is not None and thread.native_id is not None
        }
        main = threading.main_thread().ident
        if main is not None:
            # In a fork Python may still give the parent's number.
            numbers[main] = self._pid
        return numbers

    # --- writing ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """Make the file, of a name of its own: a program may have replaced another in here."""
        try:
            stem = self.path.name[: -len(SUFFIX)]
            access = os.O_WRONLY | os.O_APPEND
            self.path = self._file.make(self.path.parent, stem, SUFFIX, access)
            header = _line(
                {
                    "version": VERSION,
                    "pid": self._pid,
                    "parent_pid": os.getppid(),
                    "component": self._component,
                    "host": os.uname().nodename,
                    "boot_id": boot_id(),
                    "start_ns": self._start_ns,
                    "ticks": process_start(self._pid),
                    "interval_s": self._interval_s,
                    "python": sys.version.split()[0],
                    "command": _command(),
                    "cores": available_cores(),
                }
            )
            self._write(header)
        except OSError as error:
            self._give_up(error)

    def _flush(self, *, last: bool = False) -> None:
        """Write a line; but the last one, `_wait` does, if it can."""
        if not self._file and not self._has_given_up:
            self._open()
        if self._has_given_up:
            return
        if self._asks_main:
            self._take()
        self._num_lines += 1
        now = time.monotonic()
        is_due = now - self._asked_at > _KERNEL_S or self._num_lines == len(_FIRST_S)
        if last or is_due:
            self._asked_at = now
            self._threads = processes.threads()
            self._resident = processes.resident_bytes()
            if self._watches_others:
                self._others = processes.descendants()
        line = {
            "t": time.monotonic_ns(),
            "early": not last and self._num_lines < len(_FIRST_S),
            "last": last,
            **self._known.pop_new(),
            "counts": self._tally.pop(),
            "threads": [[one.number, one.name, *one.times] for one in self._threads],
            "spans": _spans(),
            "cpu_ns": time.process_time_ns(),
            "rss": self._resident,
            "own_ns": self._own_ns + (_ticker.cost_ns() if self._asks_main else 0),
            "facts": _facts() | ({} if self._tally.knows_times else {"knows_no_times": 1.0}),
            "problems": dict(self._problems),
            "others": [list(one) for one in self._others],
            "recordings": [str(path) for path in _control.files()],
        }
        self._text += _line(line)
        if self._asks_main and not last:
            return
        try:
            self._write(self._text)
        except OSError as error:
            self._give_up(error)
        self._text = b""

    def _write(self, text: bytes) -> None:
        left = memoryview(text)
        while left:
            left = left[os.write(self._file.number(), left) :]

    def _give_up(self, error: Exception) -> None:
        """The program matters more than its profile: it goes on, and that is said once."""
        self._file.close()
        self._has_given_up = True
        self._stopping.set()
        is_closed = isinstance(error, OSError) and error.errno == errno.EBADF
        why = CLOSED if is_closed else error
        if self._asks_main:
            _ticker.stop()
            _ticker.swap([])
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors
            warnings.warn(
                f"expected to write samples to {self.path}, got '{why}': the program goes on, "
                "and no more of it is sampled; free some space or choose another directory",
                RuntimeWarning,
                stacklevel=2,
            )


def _line(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, separators=(",", ":")) + "\n").encode()


def _spans() -> list[list[Any]]:
    """The tree of this process so far, flat.

    Reading it takes numpy. A program that has not imported that itself must not get it from here:
    it may yet set in its environment how many threads numpy is to have.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or is_being_imported(numpy):
        return []
    return [[list(one.path), *one[1:]] for one in totals()]


def _facts() -> dict[str, float]:
    """What hooks have seen, if there are any, and which debug modes are on."""
    wrapping: ModuleType | None = sys.modules.get("hotloop.profiler.collect.hooks.wrapping")
    facts: dict[str, float] = {} if wrapping is None else dict(wrapping.facts)
    modes = {
        "is_traced": _ticker is not None and _ticker.is_traced(),
        "traces_memory": _answer("_tracemalloc", "is_tracing"),
        "detects_anomalies": _answer("torch", "is_anomaly_enabled"),
    }
    return facts | {name: 1.0 for name, is_on in modes.items() if is_on}


def _answer(module: str, function: str) -> bool:
    """What a function of a module says that the program has imported."""
    there = sys.modules.get(module)
    if there is None or is_being_imported(there):
        return False
    return bool(getattr(there, function, bool)())


def _wake_on_time() -> None:
    """Linux may wake a thread 50 µs late, to wake several at once: not this one."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_NAME, f"{OWN_THREADS}sampler".encode(), 0, 0, 0)
        prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _command() -> list[str]:
    try:
        with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as file:
            return file.read().split("\0")[:-1]
    except OSError:
        return list(sys.argv)
