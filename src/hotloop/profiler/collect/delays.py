"""Delays at single places of a running program, switched on and off by another process.

The process beside the program (`profiler.what_if`) writes two files into the profile's directory
`what-if`. `points.json` lists the points at which the program may be delayed. `control` selects the
point that is delayed at present, those that are counted, and the length of the delay. Each process
of the program counts calls and delays in a file of its own. `control` and these files are arrays of
64-bit integers in shared memory. An inactive point takes 0.1 µs, and no process waits for another.

A delay uses the same resource as the place itself: CPU time of its thread, with or without the
interpreter's lock, or time asleep. On a busy machine, a delay in CPU time takes longer by the same
factor as the work that it imitates.
"""

from __future__ import annotations

import _thread
import builtins
import json
import mmap
import os
import runpy
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from hotloop.base import programs
from hotloop.base.processes import ThreadTimes
from hotloop.base.signals import blocked_signals
from hotloop.profiler.collect.hooks import wrapping
from hotloop.profiler.collect.points import compile_with_points, point_names
from hotloop.profiler.collect.samples import is_library_file
from hotloop.timing import span

DIRECTORY = "what-if"
POINTS_FILE, CONTROL_FILE, COUNTERS_SUFFIX = "points.json", "control", ".counters"
MAX_POINTS = 64
# Words of the control file: CPU time and sleep per call of the delayed point in nanoseconds,
# whether the CPU time is spent without the interpreter's lock, the point whose thread's queued time
# is read (−1: none), and the mode of each point.
CPU_NS, SLEEP_NS, WITHOUT_LOCK, QUEUE_POINT, FIRST_MODE = range(5)
NUM_CONTROLS = FIRST_MODE + MAX_POINTS
IGNORED, COUNTED, DELAYED = range(3)
# Words of a point in a file of counters: calls, delays, the time of the last call, and three values
# of one call: its number, its time, and the time that its thread had queued for a core.
CALLS, DELAYED_NS, LAST_NS, READ_CALLS, READ_NS, QUEUED_NS, NUM_COUNTERS = range(7)
# Reading the kernel's time takes 5 µs.
_READ_PERIOD_NS = 2_000_000
DELAY_SPAN = "what-if delay"
# Shorter delays are added up, because reading the thread's clock takes 0.4 µs.
_LEAST_NS = 20_000
# A sleep takes longer than requested: by the kernel's timer slack, in an event loop by a
# millisecond, and by more on a busy machine.
_TIMER_SLACK_NS, _LOOP_SLACK_NS = 80_000, 1_100_000
_POLL_S = 0.1
# `zlib` releases the interpreter's lock for some 10 µs to read these bytes.
_BYTES = bytes(16_384)


class DelayPoints:
    """The points of this process. There is one object, which a fork inherits."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / DIRECTORY
        self._control = memoryview(bytearray(8 * NUM_CONTROLS)).cast("q")
        self._counters = memoryview(bytearray(8 * NUM_COUNTERS * MAX_POINTS)).cast("q")
        self._functions: dict[str, Callable[[], Any]] = {}
        self._call_ns = 0
        self._times, self._next_read_ns = ThreadTimes(), 0
        self._is_armed = self._is_final = False

    def install(self) -> None:
        """Compile the program's files with points from now on, and wait for `points.json`."""
        _patch_imports(self)
        os.register_at_fork(after_in_child=self._after_fork)
        self._start_thread()

    def compile(self, source: bytes, file: str) -> CodeType:
        """Compile a file with points."""
        code, points = compile_with_points(source, file)
        for name in points.names:
            if not hasattr(builtins, name):
                setattr(builtins, name, self._functions.get(name))
        return code

    def _start_thread(self) -> None:
        # Not a `threading.Thread`: a program that joins all threads must not wait for it.
        with suppress(RuntimeError), blocked_signals():
            _thread.start_new_thread(self._follow_points, ())

    def _follow_points(self) -> None:
        """Read `points.json` whenever it changes, up to its last version."""
        path, version = self._directory / POINTS_FILE, 0
        with suppress(OSError, ValueError, KeyError):  # the program goes on without delays
            while not self._is_final:
                time.sleep(_POLL_S)
                if path.exists() and path.stat().st_mtime_ns != version:
                    version = path.stat().st_mtime_ns
                    document = json.loads(path.read_text(encoding="utf-8"))
                    self._arm(document["points"])
                    self._is_final = document["is_final"]

    def _after_fork(self) -> None:
        self._times.close()
        if self._is_armed:
            self._open_counters()
        if not self._is_final:
            self._start_thread()

    def _arm(self, points: list[dict[str, Any]]) -> None:
        """Call a function at each of the points, and at no others.

        Args:
            points: `places` (kind, file and line) and `spans` of each point.
        """
        if not self._is_armed:
            self._measure_call()  # with the memory of this process alone
            file = os.open(self._directory / CONTROL_FILE, os.O_RDWR)
            self._control = memoryview(mmap.mmap(file, 8 * NUM_CONTROLS)).cast("q")
            os.close(file)
            self._open_counters()
            self._is_armed = True
        previous = dict.fromkeys(self._functions)
        self._functions = {}
        by_span: dict[str, Callable[[], Any]] = {}
        for index, point in enumerate(points[:MAX_POINTS]):
            call, call_async = self._make_functions(index)
            by_span |= dict.fromkeys(point["spans"], call)
            for kind, path, line in point["places"]:
                plain_name, async_name = point_names(kind, path, line)
                self._functions |= {plain_name: call, async_name: call_async}
        for name, function in (previous | self._functions).items():
            setattr(builtins, name, function)
        wrapping.delays.functions = by_span

    def _open_counters(self) -> None:
        name = f"{os.getpid()}-{time.monotonic_ns()}{COUNTERS_SUFFIX}"
        size = 8 * NUM_COUNTERS * MAX_POINTS
        file = os.open(self._directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        os.truncate(file, size)
        self._counters = memoryview(mmap.mmap(file, size)).cast("q")
        os.close(file)

    def _make_functions(self, index: int) -> tuple[Callable[[], None], Callable[[], Any]]:
        """Return the functions of a point, for plain and for asynchronous code."""
        control, first, mode_word = self._control, index * NUM_COUNTERS, FIRST_MODE + index
        calls, delayed, last = first + CALLS, first + DELAYED_NS, first + LAST_NS
        debt_ns = 0

        def is_delayed() -> bool:
            """Count the call. Return whether to delay it."""
            mode = control[mode_word]
            if mode == IGNORED:
                return False
            self._counters[calls] += 1
            now_ns = self._counters[last] = time.monotonic_ns()
            if control[QUEUE_POINT] == index and now_ns >= self._next_read_ns:
                self._read_queue(first, now_ns)
            return mode == DELAYED

        def compute() -> None:
            """Compute for the requested CPU time, or later for that of several calls at once."""
            nonlocal debt_ns
            debt_ns += control[CPU_NS] - self._call_ns
            self._counters[delayed] += self._call_ns
            if debt_ns >= _LEAST_NS:
                start_ns = time.thread_time_ns()
                with span(DELAY_SPAN):
                    _compute_until(start_ns + debt_ns, without_lock=bool(control[WITHOUT_LOCK]))
                spent_ns = time.thread_time_ns() - start_ns
                debt_ns -= spent_ns
                self._counters[delayed] += spent_ns

        def call() -> None:
            if is_delayed():
                compute()
                sleep_ns = control[SLEEP_NS]
                if sleep_ns > _LEAST_NS:
                    start_ns = time.monotonic_ns()
                    with span(DELAY_SPAN):
                        time.sleep(sleep_ns / 1e9)
                    elapsed_ns = time.monotonic_ns() - start_ns
                    self._counters[delayed] += min(elapsed_ns, sleep_ns + _TIMER_SLACK_NS)

        async def call_async() -> None:
            if is_delayed():
                compute()
                sleep_ns = control[SLEEP_NS]
                if sleep_ns > _LEAST_NS:
                    start_ns = time.monotonic_ns()
                    await sys.modules["asyncio"].sleep(sleep_ns / 1e9)
                    elapsed_ns = time.monotonic_ns() - start_ns
                    self._counters[delayed] += min(elapsed_ns, sleep_ns + _LOOP_SLACK_NS)

        return call, call_async

    def _measure_call(self) -> None:
        """Measure the CPU time of a call that computes nothing, which is a delay too."""
        call, _ = self._make_functions(MAX_POINTS - 1)
        self._control[FIRST_MODE + MAX_POINTS - 1] = DELAYED
        times_ns: list[int] = []
        for _ in range(5):
            start_ns = time.thread_time_ns()
            for _ in range(200):
                call()
            times_ns.append(time.thread_time_ns() - start_ns)
        self._call_ns = sorted(times_ns)[2] // 200

    def _read_queue(self, first: int, now_ns: int) -> None:
        """Store how long this thread has queued for a core, beside the number of the call."""
        self._next_read_ns = now_ns + _READ_PERIOD_NS
        times = self._times.read(threading.get_native_id())
        if times is not None:
            self._counters[first + QUEUED_NS] = times.queued_ns
            self._counters[first + READ_NS] = now_ns
            self._counters[first + READ_CALLS] = self._counters[first + CALLS]


_points: DelayPoints | None = None


def install_points(directory: Path) -> None:
    """Prepare the places of this process's program for delays, once."""
    global _points
    if _points is None:
        _points = DelayPoints(directory)
        _points.install()


def _compute_until(end_ns: int, *, without_lock: bool) -> None:
    """Compute until this thread has used a CPU time."""
    while time.thread_time_ns() < end_ns:
        if without_lock:
            zlib.crc32(_BYTES)


def _patch_imports(points: DelayPoints) -> None:
    """Compile the program's own files with points, and leave Python's cache of modules alone."""
    get_code = SourceFileLoader.get_code

    def get_own_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        path = loader.get_filename(fullname)
        if not is_library_file(path):
            with suppress(SyntaxError, RecursionError, ValueError):  # which Python reports then
                return points.compile(loader.get_data(path), path)
        return get_code(loader, fullname)

    def compile_own(source: Any, file: str, *args: Any, **options: Any) -> CodeType:
        if isinstance(source, bytes) and not is_library_file(file):
            with suppress(SyntaxError, RecursionError, ValueError):
                return points.compile(source, file)
        return compile(source, file, *args, **options)

    SourceFileLoader.get_code = get_own_code  # pyright: ignore[reportAttributeAccessIssue]
    # The modules that run scripts: in this process, and the main script in a spawned one.
    for module in (programs, runpy):
        setattr(module, "compile", compile_own)  # noqa: B010 (hides the builtin function there)
