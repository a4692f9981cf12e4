"""GPU windows: records of all CUDA activity over a few hundred milliseconds, taken repeatedly.

    windows = GpuWindows("runs/one/timing", "learner")
    windows.start()  # once CUDA is initialized
    ...
    windows.stop()

A separate thread starts torch's profiler (Kineto), waits, and stops it. Kineto records the CUDA
calls and kernels of the whole process, but only the operations of the thread that started it. So
the program is slowed by CUPTI, but not by a record of each of its operations. The thread also
samples the stacks of all Python threads, 500 times per second, to find the host's activity in GPU
gaps.

Each window writes two files:

* `<component>-<pid>-<number>.kineto.json`: the export of torch, in the Trace Event Format.
* `<component>-<pid>-<number>.gpu.json`, written last: see `GpuWindows._window_fields`.

Kineto uses a different clock than spans. At both ends of a window markers are recorded, and
CLOCK_MONOTONIC is read before and after each. They give bounds for the offset of the clocks.

No window begins while torch captures a CUDA graph, and no capture begins within a window, because
the profiler's calls would break the capture.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from hotloop.base.files import atomic_write
from hotloop.base.processes import boot_id
from hotloop.base.signals import blocked_signals
from hotloop.errors import ProfileError
from hotloop.timing import _control
from hotloop.timing._totals import totals
from hotloop.timing.frames import end_frames, frames_of_threads

VERSION = 1
SUFFIX, TRACE_SUFFIX = ".gpu.json", ".kineto.json"
MARKER = "hotloop clock"
# Kineto prints messages up to level 99 to the program's stderr.
LOG_LEVEL = "KINETO_LOG_LEVEL", "100"

LENGTH_S = 0.25
# Windows start at these times. A run's first seconds compile and fill buffers, and its first minute
# may differ from its tenth.
START_TIMES_S = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_PERIOD_S = 0.002
_NUM_MARKERS = 3
# Limit of the wait for a capture, which is usually shorter. The window is skipped after it.
_MAX_WAIT_S = 10.0
# Limit of the wait for the last window when the program ends.
_MAX_STOP_S = 60.0


class GpuWindows:
    """A thread that records GPU windows until it is stopped.

    Args:
        directory: output directory, the same as that of the process's recording.
        component: role of this process in the program.
        length_s: length of a window in seconds.
        start_times_s: start of each window, in seconds since `start`.
        device: device to record, by torch's name. None records the host alone, for tests.
    """

    def __init__(
        self,
        directory: Path,
        component: str,
        *,
        length_s: float = LENGTH_S,
        start_times_s: tuple[float, ...] = START_TIMES_S,
        device: str | None = "cuda",
    ) -> None:
        self._directory, self._component = Path(directory), component
        self._length_s, self._start_times_s, self._device = length_s, start_times_s, device
        self._pid = os.getpid()
        self._stopping = threading.Event()
        # The thread holds this lock until it ends.
        self._thread_lock: Any = None
        self.problems: list[str] = []

    def start(self) -> None:
        """Start, unless windows are recorded already. Kineto needs the thread that imported torch.

        Raises:
            ProfileError: this build of torch cannot profile a GPU.
        """
        global _active
        if _active is not None and _active._pid == self._pid:
            return
        torch = sys.modules["torch"]
        os.environ.setdefault(*LOG_LEVEL)
        _initialize_kineto(torch, self._device)
        _delay_captures(torch)
        _active = self
        thread_lock = self._thread_lock = _thread.allocate_lock()
        thread_lock.acquire()
        # Not `threading.Thread`, because programs may wait for all threads that `threading` lists.
        with blocked_signals():
            _thread.start_new_thread(self._run, (torch, thread_lock))

    def stop(self) -> None:
        """End and write an open window. Repeated calls, and calls in a fork, do nothing."""
        global _active
        if _active is self:
            _active = None
        thread_lock, self._thread_lock = self._thread_lock, None
        if thread_lock is not None and os.getpid() == self._pid:
            self._stopping.set()
            if thread_lock.acquire(timeout=_MAX_STOP_S):
                thread_lock.release()

    def _run(self, torch: ModuleType, thread_lock: Any) -> None:
        _name_thread()
        try:
            self._record_windows(torch)
        finally:
            thread_lock.release()

    def _record_windows(self, torch: ModuleType) -> None:
        start = time.monotonic()
        for number, start_s in enumerate(self._start_times_s):
            if self._stopping.wait(max(0.0, start + start_s - time.monotonic())):
                return
            # Torch has one profiler, and the program's own use of it takes priority.
            is_in_use = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
            if is_in_use or not _capture_lock.open_window(self._stopping):
                continue
            try:
                self._record_window(torch, number)
            except Exception as error:  # must not stop the program
                self.problems.append(f"{type(error).__name__}: {error}")
                self._write(number, {"problem": self.problems[-1]})
                return
            finally:
                _capture_lock.close_window()

    def _record_window(self, torch: ModuleType, number: int) -> None:
        """Record one window and write its files."""
        samples = _ThreadSamples()
        began_ns = time.monotonic_ns()
        profiler = _make_profiler(torch, self._device)
        profiler.__enter__()
        try:
            markers = _record_markers(torch)
            start_spans, start_ns = _span_totals(), time.monotonic_ns()
            deadline = time.monotonic() + self._length_s
            while time.monotonic() < deadline and not self._stopping.wait(_sample_interval_s()):
                samples.sample()
            end_ns, end_spans = time.monotonic_ns(), _span_totals()
            markers += _record_markers(torch)
        finally:
            profiler.__exit__(None, None, None)
        _capture_lock.close_window()
        stopped_ns = time.monotonic_ns()
        profiler.export_chrome_trace(str(self._path(number, TRACE_SUFFIX)))
        times = {
            "began_ns": began_ns,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "stopped_ns": stopped_ns,
            "written_ns": time.monotonic_ns(),
        }
        self._write(
            number,
            self._window_fields(torch, times, markers, (start_spans, end_spans), samples),
        )

    def _window_fields(
        self,
        torch: ModuleType,
        times: dict[str, int],
        markers: list[list[int]],
        spans: tuple[list[list[Any]], list[list[Any]]],
        samples: _ThreadSamples,
    ) -> dict[str, Any]:
        """Return the fields to store. All times are CLOCK_MONOTONIC.

        * `began_ns` … `written_ns`: start of the profiler, start and end of the window, stop of the
          profiler, end of the trace's export.
        * `markers`: [time before, time after] of each marker, half of them at the window's start.
        * `spans`: totals of the process's spans at both ends, in the format of `_span_totals`.
        * `threads`: [native id, ident, name]. Kineto may identify a thread by either number.
        * `places`, `stacks`, `paths`, `looks`: [function, file, first line]; [[place, …],
          [line, …]], outermost first; names of open spans; [time, thread, path, stack].
        """
        return {
            **times,
            "torch": str(getattr(torch, "__version__", "")),
            "devices": _devices(torch) if self._device == "cuda" else [],
            "marker": MARKER,
            "markers": markers,
            "period_ns": round(_PERIOD_S * 1e9),
            "spans": spans,
            "threads": [
                [thread.native_id, thread.ident, thread.name] for thread in threading.enumerate()
            ],
            **samples.fields(),
        }

    def _path(self, number: int, suffix: str) -> Path:
        return self._directory / f"{self._component}-{self._pid}-{number}{suffix}"

    def _write(self, number: int, fields: dict[str, Any]) -> None:
        path = self._path(number, SUFFIX)
        document = {
            "version": VERSION,
            "pid": self._pid,
            "boot_id": boot_id(),
            "component": self._component,
            **fields,
            "trace": self._path(number, TRACE_SUFFIX).name,
        }
        try:
            with atomic_write(path) as partial:
                partial.write_text(json.dumps(document, separators=(",", ":")), encoding="utf-8")
        except OSError as error:  # a full disk
            self.problems.append(f"{type(error).__name__}: {error}")


# The object that records the windows of this process, one at most because torch has one profiler.
_active: GpuWindows | None = None


class _ThreadSamples:
    """Samples of the stacks of all Python threads, with an index for each distinct item."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._paths: dict[tuple[str, ...], int] = {}
        self._samples: list[tuple[int, int, int, int]] = []
        self._own_ident = threading.get_ident()

    def sample(self) -> None:
        """Record the stack and open spans of each thread."""
        frames = frames_of_threads()
        now_ns = time.monotonic_ns()
        frames.pop(self._own_ident, None)
        paths = _control.open_paths()
        native_ids = {thread.ident: thread.native_id or 0 for thread in threading.enumerate()}
        for ident, frame in frames.items():
            native_id = native_ids.get(ident, 0)
            path = self._index(self._paths, paths.get(native_id, ()))
            self._samples.append((now_ns, native_id, path, self._stack(frame)))

    def _stack(self, innermost: FrameType) -> int:
        places: list[int] = []
        lines: list[int] = []
        for frame in end_frames(innermost):
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            places.append(self._index(self._places, (name, code.co_filename, code.co_firstlineno)))
            lines.append(frame.f_lineno or 0)
        return self._index(self._stacks, (tuple(places[::-1]), tuple(lines[::-1])))

    @staticmethod
    def _index(indices: dict[Any, int], item: Any) -> int:
        return indices.setdefault(item, len(indices))

    def fields(self) -> dict[str, Any]:
        return {
            "places": list(self._places),
            "stacks": list(self._stacks),
            "paths": list(self._paths),
            "looks": self._samples,
        }


class _CaptureLock:
    """A lock that excludes captures of CUDA graphs from windows. Captures may overlap."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_captures = 0
        self._is_open = False

    def open_window(self, stopping: threading.Event) -> bool:
        """Wait for captures to end. Return False after a timeout or if the program ends."""
        deadline = time.monotonic() + _MAX_WAIT_S
        with self._changed:
            while self._num_captures and not stopping.is_set() and time.monotonic() < deadline:
                self._changed.wait(0.1)
            self._is_open = not self._num_captures and not stopping.is_set()
            return self._is_open

    def close_window(self) -> None:
        """Allow captures. Repeated calls do nothing."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def begin_capture(self) -> None:
        """Wait for the end of a window, and block new ones."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open)
            self._num_captures += 1

    def end_capture(self) -> None:
        """Allow windows again once no capture is running."""
        with self._changed:
            self._num_captures = max(0, self._num_captures - 1)
            self._changed.notify_all()


_capture_lock = _CaptureLock()
_random = random.Random()  # leaves the global generator to the program
_DELAYED_MARK = "_hotloop_is_delayed"


def _sample_interval_s() -> float:
    """Return a random interval between two samples, to avoid lockstep with the program's loop."""
    return _PERIOD_S * _random.uniform(0.5, 1.5)


def _delay_captures(torch: ModuleType) -> None:
    """Patch torch's CUDA graphs, once, so that a capture waits for the end of a window."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    begin, end = getattr(graph, "capture_begin", None), getattr(graph, "capture_end", None)
    if graph is None or begin is None or end is None or hasattr(begin, _DELAYED_MARK):
        return

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _capture_lock.begin_capture()
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            _capture_lock.end_capture()
            raise

    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            _capture_lock.end_capture()

    setattr(capture_begin, _DELAYED_MARK, True)
    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _initialize_kineto(torch: ModuleType, device: str | None) -> None:
    """Initialize Kineto, and configure CUPTI for CUDA graphs, or raise ProfileError."""
    # Before CUDA 12.6, CUPTI crashes if it is torn down and initialized again next to CUDA graphs.
    # Torch's own profiler sets the same two variables.
    supported = torch.autograd._supported_activities()
    if device == "cuda" and "CUDA" not in {activity.name for activity in supported}:
        raise ProfileError(
            f"expected a torch that can profile a GPU, got {torch.__version__}, which was built "
            "without CUPTI: install torch with CUDA, or disable GPU windows (`--gpu-window 0`, "
            "`--gpu-window-ms 0`)"
        )
    version = str(getattr(getattr(torch, "version", None), "cuda", None) or "0.0")
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")[:2]]
    if tuple(parts) < (12, 6):
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
    with _make_profiler(torch, None):
        pass


def _make_profiler(torch: ModuleType, device: str | None) -> Any:
    """Return a profiler of torch. Unlike `torch.profiler`, it does not import the compiler."""
    profile: Callable[..., Any] = torch.autograd.profiler.profile
    try:
        return profile(use_cpu=True, use_kineto=True, use_device=device)
    except TypeError:  # before torch 2.1
        return profile(use_cpu=True, use_kineto=True, use_cuda=device == "cuda")


def _record_markers(torch: ModuleType) -> list[list[int]]:
    """Record markers, and return the times before and after each."""
    markers: list[list[int]] = []
    for _ in range(_NUM_MARKERS):
        before = time.monotonic_ns()
        with torch.autograd.profiler.record_function(MARKER):
            pass
        markers.append([before, time.monotonic_ns()])
    return markers


def _span_totals() -> list[list[Any]]:
    """Return the totals of this process's spans, or none if the program has no NumPy."""
    if not hasattr(sys.modules.get("numpy"), "ndarray"):
        return []
    return [[list(total.path), *total[1:]] for total in totals()]


def _name_thread() -> None:
    """Name the calling thread in the kernel. The sampler skips threads with this prefix."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(b"hotloop-gpu")


def _devices(torch: ModuleType) -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
