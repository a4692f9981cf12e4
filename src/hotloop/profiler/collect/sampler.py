"""A sampler of all threads of its process, about a hundred times a second.

For every Python thread it records the stack, the open span and the kernel's counters since the
previous sample. Once a second it writes the samples to a file (`samples`).

A separate sampling thread must acquire the GIL, which it gets soonest where the program releases
it, in NumPy and torch. It would sample these places too often, and the program would wait for two
wake-ups per sample. Therefore the main thread samples itself on request (`_ticker`), which takes
some 10 µs. The separate thread samples only if the main thread does not respond, because it is in a
long call or waits. Without the extension, the separate thread always samples.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
import threading
import time
import warnings

# gevent replaces these functions in their modules. The sampler's thread must not be a greenlet.
from _thread import allocate_lock, get_ident, start_new_thread
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop import timing
from hotloop.base import processes
from hotloop.base.cores import available_cores
from hotloop.base.import_hooks import is_being_imported
from hotloop.base.line_checksums import LineChecksums
from hotloop.base.owned_file import CLOSED, OwnedFile
from hotloop.base.processes import boot_id, process_start
from hotloop.base.redaction import redacted
from hotloop.base.signals import blocked_signals
from hotloop.profiler.collect.asyncio_waits import AwaitedTask, pick_awaited_task, runs_event_loop
from hotloop.profiler.collect.samples import SUFFIX, THREAD_PREFIX, VERSION
from hotloop.profiler.collect.stacks import StackIndex, _ticker
from hotloop.profiler.collect.tally import Tally
from hotloop.timing import _control
from hotloop.timing._totals import totals
from hotloop.timing.frames import frames_of_threads

try:  # at once, since the program may have a module of this name
    import ctypes
except ImportError:
    ctypes = None

# Writing takes at most this fraction of the time: periods grow with the amount to write.
_WRITE_FRACTION = 0.01
_PERIOD_S = 1.0
# Short first periods, so that a process killed in its first second leaves samples too.
_FIRST_S = (0.1, 0.3, 0.6)
# Minimum time between two readings of all threads, memory and descendants from the kernel. They are
# read for every second line, and for the first and last line of the first second.
_KERNEL_PERIOD_S = 1.5
# Switch interval while the sampler's thread samples, in microseconds. With Python's 5,000, hardly a
# sample would show Python code: in a loop over omegaconf objects, 20 % instead of 70.
_SWITCH_US = 50
_PR_SET_NAME, _PR_SET_TIMERSLACK = 15, 29


class StackSampler:
    """A sampler of this process, which runs until `stop`.

    Args:
        directory: directory of the file, next to the recording.
        component: role of this process in the program.
        interval_s: time between two samples.
        records_descendants: whether to record the descendants of this process.
        opens_late: whether to create the file only with the first samples, since `exec` soon
            replaces most forks, which then leave no file.
        problems: errors of hooks, by module. May grow.
    """

    # Programs that test themselves stop the clocks of `time`.
    _now_ns = staticmethod(getattr(_ticker, "now_ns", time.monotonic_ns))

    def __init__(
        self,
        directory: Path,
        component: str,
        *,
        interval_s: float = 0.01,
        records_descendants: bool = True,
        opens_late: bool = False,
        problems: Mapping[str, str] | None = None,
    ) -> None:
        self._problems = {} if problems is None else problems
        self.path = directory / f"{component}-{os.getpid()}{SUFFIX}"
        self._interval_s = interval_s
        self._records_descendants = records_descendants
        self._opens_late = opens_late
        # The extension reads open spans from the recorder in C.
        self._uses_ticker = _ticker is not None and not _control.backend.__name__.endswith("_pure")
        self._pid = os.getpid()
        # gevent changes the number that `threading` has for the main thread.
        is_main = threading.get_native_id() == self._pid
        self._main_ident = get_ident() if is_main else threading.main_thread().ident or 0
        self._component = component
        self._start_ns = 0
        self._times = processes.ThreadTimes()
        self._tally = Tally()
        self._index = StackIndex()
        self._overhead_ns = 0
        # Samples from the extension, and awaited tasks of the main thread by index in this list.
        self._records: list[Any] = []
        self._awaited: dict[int, AwaitedTask] = {}
        self._last_awaited: AwaitedTask | None = None
        # Latest values from the kernel.
        self._kernel_read_s = 0.0
        self._threads: list[processes.ThreadInfo] = []
        self._resident_bytes = 0
        self._descendants: list[processes.DescendantProcess] = []
        self._pending_text = b""
        # Unbuffered: a forked child would write the buffer of a file object a second time.
        self._file = OwnedFile()
        self._has_failed = False
        self._next_sample_s = self._written_s = 0.0
        self._period_s = _FIRST_S[0]
        self._num_lines = 0
        self._write_s = 0.0
        self._switch_us = round(sys.getswitchinterval() * 1e6)
        self._is_switching_fast = False
        self._lock = allocate_lock()
        self._is_stopping = False
        self._running = allocate_lock()  # locked while a thread should run
        # Several threads may fork at the same time.
        self._pause_lock = allocate_lock()
        self._num_pauses = 1
        self._has_ended = False
        # Lock that the running thread holds until it ends.
        self._thread_lock: Any = None

    def start(self) -> None:
        """Start sampling. If the file cannot be written, warn and sample nothing."""
        self._start_ns = self._now_ns()
        self._written_s = self._now_s()
        self._next_sample_s = self._written_s + self._interval_s
        if not self._opens_late:
            self._open()
        times = self._times.read(self._pid)
        self._tally.has_thread_times = times is not None
        self._tally.begin(self._pid, self._start_ns, times)
        if self._uses_ticker:
            self._records = []
            _ticker.begin(self._records, self._interval_s, self._main_ident, self._pid)
            self._times.close()
        self.resume()

    def pause(self) -> None:
        """End the thread until `resume`: a process should fork with as few threads as possible."""
        with self._pause_lock:
            self._num_pauses += 1
            if self._num_pauses > 1:
                return
            self._is_stopping = True
            if self._running.locked():
                self._running.release()
            if self._uses_ticker:
                _ticker.stop()
            if self._thread_lock is not None and self._thread_lock.acquire(timeout=5.0):
                self._thread_lock.release()
            self._thread_lock = None
            self._set_fast_switching(False)

    def resume(self) -> None:
        """Restart the thread after the last of several pauses."""
        with self._pause_lock:
            self._num_pauses -= 1
            if self._num_pauses or self._has_failed or self._has_ended:
                return
            self._is_stopping = False
            self._running.acquire(blocking=False)
            thread_lock = self._thread_lock = allocate_lock()
            thread_lock.acquire()
            try:
                if self._uses_ticker:
                    _ticker.start()
                # Not a `threading.Thread`: a program that joins all threads must not wait for it.
                with blocked_signals():
                    start_new_thread(self._run, (thread_lock,))
            except RuntimeError:  # the thread limit is reached, or the interpreter is shutting down
                self._thread_lock = None
                if self._uses_ticker:
                    _ticker.stop()

    def stop(self) -> None:
        """Write the remaining samples and end. No effect when repeated or in a forked child."""
        if os.getpid() != self._pid:
            return
        self._has_ended = True
        self.pause()
        with self._lock:
            self._flush(last=True)
            self.release()
        self._has_failed = True

    def record_exec(self, command: list[str], has_settings: bool) -> None:
        """Write all samples, since another program is about to replace this one."""
        with self._lock:
            # A fork that has not written anything leaves no file.
            if os.getpid() == self._pid and self._file:
                self._flush(last=True, executed={"command": command, "has_settings": has_settings})

    def release(self) -> None:
        """Close the files and free the ticker. A forked child does so with those of its parent."""
        self._file.close()
        self._times.close()
        if self._uses_ticker:
            _ticker.end()

    # --- the thread -------------------------------------------------------------------------------

    def _run(self, thread_lock: Any) -> None:
        before_ns = self._overhead_ns  # the overhead of earlier threads, before a pause
        try:
            _set_timer_slack()
            if self._uses_ticker:
                _ticker.enter(threading.get_native_id())
            # If this thread did not end in time, another one runs.
            while self._thread_lock is thread_lock and self._wait():
                self._flush_if_due()
                # All CPU time of the thread, because waiting for the GIL also takes some.
                self._overhead_ns = before_ns + time.thread_time_ns()
        except Exception as error:
            self._fail(error)
        finally:
            thread_lock.release()

    def _flush_if_due(self) -> None:
        start_ns = time.thread_time_ns()
        with self._lock:
            now = self._now_s()
            if now - self._written_s < self._period_s:
                return
            self._written_s = now
            self._flush()
            write_s = (time.thread_time_ns() - start_ns) / 1e9
            if self._num_lines < len(_FIRST_S):
                self._period_s = _FIRST_S[self._num_lines]
            else:  # a single slow write, such as the first one, does not count
                self._period_s = max(_PERIOD_S, min(write_s, self._write_s) / _WRITE_FRACTION)
            self._write_s = write_s

    def _wait(self) -> bool:
        """Wait for a sample or until a line is due. Return False when the sampler stops."""
        if not self._uses_ticker:
            wait_s = max(0.0, self._next_sample_s - self._now_s())
            if self._running.acquire(timeout=wait_s) or self._is_stopping:
                return False
            with self._lock:
                self._sample_threads()
            self._next_sample_s = self._now_s() + self._interval_s
            return True
        text, self._pending_text = self._pending_text, b""
        due_ns = round((self._written_s + self._period_s) * 1e9)
        result = _ticker.wait(due_ns, self._file.descriptor() if text else -1, text)
        if result == _ticker.UNANSWERED:
            _ticker.look()
            self._record_awaited_task()
        return result != _ticker.STOPPED and not self._is_stopping

    # --- samples ----------------------------------------------------------------------------------

    def _sample_threads(self) -> None:
        """Sample every Python thread from this thread."""
        frames = frames_of_threads()
        now_ns = self._now_ns()
        # This function's own frame refers to `frames`, and would keep all of them alive.
        frames.pop(get_ident(), None)
        paths = timing.open_paths()
        native_ids = self._native_ids()
        for ident, frame in frames.items():
            thread = native_ids.get(ident, 0)
            times = self._times.read(thread) if thread else None
            path = self._index.path_number(paths.get(thread, ()))
            self._tally.add(thread, path, self._index.stack_of_frame(frame), now_ns, times, None)
        self._times.forget_except(self._tally.threads())
        self._set_fast_switching(len(self._tally.busy_threads()) < 2)

    def _record_awaited_task(self) -> None:
        """Store the task that the main thread's idle event loop waits for."""
        index = next(
            (i for i in range(len(self._records) - 1, -1, -1) if self._records[i][0] == self._pid),
            None,
        )
        if index is None or self._records[index][6] != "events":
            return
        awaited = pick_awaited_task(self._records[index][-1], self._main_ident)
        if awaited is not None:
            self._awaited[index] = awaited

    def _count_records(self) -> None:
        """Count the samples from the extension."""
        new_records: list[Any] = []
        records, *idle_after = _ticker.swap(new_records)
        self._records = new_records
        awaited, self._awaited = self._awaited, {}
        for index, record in enumerate(records):
            thread, state, node, at_ns, on_core_ns, queued_ns, wait, *idle, places, codes = record
            if at_ns != self._tally.last_sample_ns:
                self._tally.add_idle(*idle)
            path = () if state is None else state.segment.path(node)
            stack = self._index.stack_of_places(places, codes)
            self._last_awaited = awaited.get(index, self._last_awaited)
            is_idle_loop = wait == "events" and thread == self._pid and runs_event_loop(codes)
            if is_idle_loop and self._last_awaited is not None:
                # If the event loop woke up before its task was read, assume the previous task.
                wait = self._last_awaited.wait
                stack = self._index.stack_of_task(self._last_awaited, places, codes)
            times = processes.CoreTimes(on_core_ns, queued_ns) if on_core_ns >= 0 else None
            self._tally.add(thread, self._index.path_number(path), stack, at_ns, times, wait)
        self._tally.add_idle(*idle_after)
        # A busy main thread samples itself, and the other thread does not need the GIL.
        busy = self._tally.busy_threads()
        self._set_fast_switching(len(busy) == 1 and busy[0] != self._pid)

    def _set_fast_switching(self, is_fast: bool) -> None:
        """Set the GIL switch interval to microseconds, or restore the program's own."""
        # Use fast switching only beside a single busy thread, which then loses only the time of the
        # samples. Several busy threads would switch among each other just as often.
        now_us = round(sys.getswitchinterval() * 1e6)
        if not self._is_switching_fast or now_us != _SWITCH_US:
            self._switch_us = now_us  # the program's interval, which it may have changed
        self._is_switching_fast = is_fast
        target_us = min(_SWITCH_US, self._switch_us) if is_fast else self._switch_us
        if target_us != now_us:
            sys.setswitchinterval(target_us / 1e6)

    def _native_ids(self) -> dict[int, int]:
        """Return native thread ids by Python's thread identifiers, which Python reuses."""
        native_ids = {
            thread.ident: thread.native_id
            for thread in threading.enumerate()
            if thread.ident is not None and thread.native_id is not None
        }
        return native_ids | {self._main_ident: self._pid}  # a fork may still have its parent's

    def _now_s(self) -> float:
        return self._now_ns() / 1e9

    # --- writing ----------------------------------------------------------------------------------

    def _open(self) -> None:
        """Create the file under a unique name, since `exec` may have started a second program."""
        try:
            stem = self.path.name[: -len(SUFFIX)]
            access = os.O_WRONLY | os.O_APPEND
            self.path = self._file.create(self.path.parent, stem, SUFFIX, access)
            self._checksums = LineChecksums()
            header = self._line(
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
            self._fail(error)

    def _flush(self, *, last: bool = False, executed: dict[str, Any] | None = None) -> None:
        """Add a line. With the extension, `_wait` writes all lines but the last."""
        if not self._file and not self._has_failed:
            self._open()
        if self._has_failed:
            return
        if self._uses_ticker:
            self._count_records()
        # Read the kernel's numbers from time to time, which is slow.
        self._num_lines += 1
        now = self._now_s()
        is_due = now - self._kernel_read_s > _KERNEL_PERIOD_S or self._num_lines == len(_FIRST_S)
        if last or is_due:
            self._kernel_read_s = now
            self._threads = processes.threads()
            self._resident_bytes = processes.resident_bytes()
            if self._records_descendants:
                self._descendants = processes.descendants()
        # Add the line to the text to write.
        line = {
            "t": self._now_ns(),
            "early": not last and self._num_lines < len(_FIRST_S),
            "last": last,
            **self._index.pop_new(),
            "counts": self._tally.pop(),
            "threads": [[thread.number, thread.name, *thread.times] for thread in self._threads],
            "spans": _spans(),
            "cpu_ns": time.process_time_ns(),
            "rss": self._resident_bytes,
            "own_ns": self._overhead_ns + (_ticker.cost_ns() if self._uses_ticker else 0),
            "facts": _facts() | ({} if self._tally.has_thread_times else {"knows_no_times": 1.0}),
            "problems": dict(self._problems),
            "others": [list(process) for process in self._descendants],
            "recordings": [str(path) for path in _control.recording_paths()],
        }
        if executed is not None:
            line["executed"] = executed
        self._pending_text += self._line(line)
        if self._uses_ticker and not last:
            return
        try:
            self._write(self._pending_text)
        except OSError as error:
            self._fail(error)
        self._pending_text = b""

    def _write(self, text: bytes) -> None:
        remaining = memoryview(text)
        while remaining:
            remaining = remaining[os.write(self._file.descriptor(), remaining) :]

    def _line(self, fields: dict[str, Any]) -> bytes:
        text = json.dumps(fields, separators=(",", ":"))
        return (self._checksums.add(text) + "\n").encode()

    def _fail(self, error: Exception) -> None:
        """Stop sampling with a single warning. The program continues."""
        self._file.close()
        self._has_failed = True
        self._is_stopping = True
        is_closed = isinstance(error, OSError) and error.errno == errno.EBADF
        reason = CLOSED if is_closed else error
        if self._uses_ticker:
            _ticker.stop()
            _ticker.swap([])
        with contextlib.suppress(RuntimeWarning):  # where warnings are errors
            warnings.warn(
                f"expected to write samples to {self.path}, got '{reason}': the program continues "
                "without samples; free some space or choose another directory",
                RuntimeWarning,
                stacklevel=2,
            )


def _spans() -> list[list[Any]]:
    """Return the span tree of this process so far, as flat rows."""
    # Reading it needs NumPy, which only the program may import: it may still set NumPy's number of
    # threads in its environment.
    numpy = sys.modules.get("numpy")
    if numpy is None or is_being_imported(numpy) or not hasattr(numpy, "ndarray"):
        return []
    return [[list(total.path), *total[1:]] for total in totals()]


def _facts() -> dict[str, float]:
    """Return the facts that hooks recorded and the debug modes that are on."""
    wrapping: ModuleType | None = sys.modules.get("hotloop.profiler.collect.hooks.wrapping")
    facts: dict[str, float] = {} if wrapping is None else dict(wrapping.facts)
    modes = {
        "is_traced": _ticker is not None and _ticker.is_traced(),
        "traces_memory": _call_if_imported("_tracemalloc", "is_tracing"),
        "detects_anomalies": _call_if_imported("torch", "is_anomaly_enabled"),
    }
    return facts | {name: 1.0 for name, is_on in modes.items() if is_on}


def _call_if_imported(module: str, function: str) -> bool:
    imported = sys.modules.get(module)
    if imported is None or is_being_imported(imported):
        return False
    return bool(getattr(imported, function, bool)())


def _set_timer_slack() -> None:
    """Make Linux wake this thread on time, instead of up to 50 µs late."""
    with contextlib.suppress(OSError, AttributeError):
        prctl = ctypes.CDLL(None).prctl  # pyright: ignore[reportOptionalMemberAccess]
        prctl(_PR_SET_NAME, f"{THREAD_PREFIX}sampler".encode(), 0, 0, 0)
        prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _command() -> list[str]:
    try:
        with open("/proc/self/cmdline", encoding="utf-8", errors="replace") as file:
            return redacted(file.read().split("\0")[:-1])
    except OSError:
        return redacted(sys.argv)
