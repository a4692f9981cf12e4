"""Windows on the GPU: now and then, what CUDA does within a few hundred milliseconds.

    windows = GpuWindows("runs/one/timing", "learner")
    windows.start()  # once CUDA is initialised
    ...
    windows.stop()

A thread beside the program starts torch's profiler (Kineto), waits, and stops it. Kineto sees the
calls and kernels of the whole process, but operations of the thread that started it alone: so the
program pays for CUPTI, and not for a record of each of its operations. Meanwhile the thread looks
where all threads of Python's are, 500 times a second, which says what the host did in a gap.

Each window leaves two files:

* `<component>-<pid>-<number>.kineto.json`: what torch exports, in the Trace Event Format.
* `<component>-<pid>-<number>.gpu.json`, written last: what that lacks (see `GpuWindows._about`).

Kineto's times are of another clock than our spans'. At both ends of a window markers are recorded,
with CLOCK_MONOTONIC read before and after each: the offset lies between what each of them allows.

While a CUDA graph is captured by torch, no window begins, and no capture begins within a window:
what the profiler calls would break it.
"""

from __future__ import annotations

import _thread
import contextlib
import gc
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

from hotloop.errors import ProfileError
from hotloop.system.processes import boot_id
from hotloop.timing import _control
from hotloop.timing._totals import totals

VERSION = 1
SUFFIX, TRACE_SUFFIX = ".gpu.json", ".kineto.json"
MARKER = "hotloop clock"
# Kineto tells of its work on stderr, which is the program's, up to level 99.
LOG_LEVEL = "KINETO_LOG_LEVEL", "100"

LENGTH_S = 0.25
# When windows begin, from the start on: a run's first seconds compile and fill buffers, and what
# is true of its first minute may not be of its tenth.
AT_S = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
_PERIOD_S = 0.002
_NUM_MARKERS = 3
_MAX_FRAMES = 64
# A graph is captured in less; after that a window is left out.
_MAX_WAIT_S = 10.0
# A program that ends waits so long for its last window.
_MAX_WRITING_S = 60.0


class GpuWindows:
    """Looks at the GPU now and then, until it is stopped.

    Args:
        directory: where the files go; beside the process's recording.
        component: what this process is in the program.
        length_s: of a window.
        at_s: when windows begin, from `start` on.
        device: what is looked at, by torch's name; None: the host alone, for tests.
    """

    def __init__(
        self,
        directory: Path,
        component: str,
        *,
        length_s: float = LENGTH_S,
        at_s: tuple[float, ...] = AT_S,
        device: str | None = "cuda",
    ) -> None:
        self._directory, self._component = Path(directory), component
        self._length_s, self._at_s, self._device = length_s, at_s, device
        self._pid = os.getpid()
        self._stopping = threading.Event()
        # Of the thread that runs: held until it has ended.
        self._running: Any = None
        self.problems: list[str] = []

    def start(self) -> None:
        """Begin, where no others are taken; in the thread that imported torch, as Kineto wants.

        Raises:
            ProfileError: this torch can't look at a GPU.
        """
        global _taken
        if _taken is not None and _taken._pid == self._pid:
            return
        torch = sys.modules["torch"]
        os.environ.setdefault(*LOG_LEVEL)
        _prepare(torch, self._device)
        _keep_from_captures(torch)
        _taken = self
        running = self._running = _thread.allocate_lock()
        running.acquire()
        # Not threading's: a program that waits for all of its threads waits for no other.
        _thread.start_new_thread(self._run, (torch, running))

    def stop(self) -> None:
        """End a window that is open, and write it. Harmless when repeated, and in a fork."""
        global _taken
        if _taken is self:
            _taken = None
        running, self._running = self._running, None
        if running is not None and os.getpid() == self._pid:
            self._stopping.set()
            if running.acquire(timeout=_MAX_WRITING_S):
                running.release()

    def _run(self, torch: ModuleType, running: Any) -> None:
        _name_thread()
        try:
            self._take_all(torch)
        finally:
            running.release()

    def _take_all(self, torch: ModuleType) -> None:
        began = time.monotonic()
        for number, at_s in enumerate(self._at_s):
            if self._stopping.wait(max(0.0, began + at_s - time.monotonic())):
                return
            # The program's own use of the profiler comes first: there is one.
            is_taken = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
            if is_taken or not _captures.open_window(self._stopping):
                continue
            try:
                self._look(torch, number)
            except Exception as error:  # the program matters more than its profile
                self.problems.append(f"{type(error).__name__}: {error}")
                self._write(number, {"problem": self.problems[-1]})
                return
            finally:
                _captures.close_window()

    def _look(self, torch: ModuleType, number: int) -> None:
        """Take one window and write it."""
        seen = _Seen()
        began_ns = time.monotonic_ns()
        recorded = _profile(torch, self._device)
        recorded.__enter__()
        try:
            markers = _mark(torch)
            spans, start_ns = _spans(), time.monotonic_ns()
            until = time.monotonic() + self._length_s
            while time.monotonic() < until and not self._stopping.wait(_pause_s()):
                seen.look()
            end_ns, spans_then = time.monotonic_ns(), _spans()
            markers += _mark(torch)
        finally:
            recorded.__exit__(None, None, None)
        _captures.close_window()
        stopped_ns = time.monotonic_ns()
        recorded.export_chrome_trace(str(self._path(number, TRACE_SUFFIX)))
        times = {
            "began_ns": began_ns,
            "start_ns": start_ns,
            "end_ns": end_ns,
            "stopped_ns": stopped_ns,
            "written_ns": time.monotonic_ns(),
        }
        self._write(number, self._about(torch, times, markers, (spans, spans_then), seen))

    def _about(
        self,
        torch: ModuleType,
        times: dict[str, int],
        markers: list[list[int]],
        spans: tuple[list[list[Any]], list[list[Any]]],
        seen: _Seen,
    ) -> dict[str, Any]:
        """What is written of a window; all times are CLOCK_MONOTONIC's.

        * `began_ns` … `written_ns`: the profiler was started; the window began, and ended; the
          profiler was stopped; its trace was written.
        * `markers`: [before, after] of each, half of them at the window's beginning.
        * `spans`: totals of the process's spans at both ends, as `samples` have them.
        * `threads`: [kernel's number, Python's, name]; Kineto may name a thread by either.
        * `places`, `stacks`, `paths`, `looks`: [function, file, first line]; [[place, …],
          [line, …]] from the outermost in; names of open spans; [time, thread, path, stack].
        """
        return {
            **times,
            "torch": str(getattr(torch, "__version__", "")),
            "devices": _devices(torch) if self._device == "cuda" else [],
            "marker": MARKER,
            "markers": markers,
            "period_ns": round(_PERIOD_S * 1e9),
            "spans": spans,
            "threads": [[one.native_id, one.ident, one.name] for one in threading.enumerate()],
            **seen.fields(),
        }

    def _path(self, number: int, suffix: str) -> Path:
        return self._directory / f"{self._component}-{self._pid}-{number}{suffix}"

    def _write(self, number: int, fields: dict[str, Any]) -> None:
        path = self._path(number, SUFFIX)
        about = {
            "version": VERSION,
            "pid": self._pid,
            "boot_id": boot_id(),
            "component": self._component,
            **fields,
            "trace": self._path(number, TRACE_SUFFIX).name,
        }
        partial = path.with_suffix(".tmp")
        try:
            partial.write_text(json.dumps(about, separators=(",", ":")), encoding="utf-8")
            partial.replace(path)
        except OSError as error:  # a full disk
            self.problems.append(f"{type(error).__name__}: {error}")


# By whom windows of this process are taken: torch has one profiler.
_taken: GpuWindows | None = None


class _Seen:
    """Where threads of Python's were, with numbers for what comes up again."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
        self._paths: dict[tuple[str, ...], int] = {}
        self._looks: list[tuple[int, int, int, int]] = []
        self._own = threading.get_ident()

    def look(self) -> None:
        """Note where each thread is."""
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
        frames.pop(self._own, None)
        paths = _control.open_paths()
        numbers = {one.ident: one.native_id or 0 for one in threading.enumerate()}
        for ident, frame in frames.items():
            thread = numbers.get(ident, 0)
            path = self._number(self._paths, paths.get(thread, ()))
            self._looks.append((now_ns, thread, path, self._stack(frame)))

    def _stack(self, innermost: FrameType) -> int:
        places: list[int] = []
        lines: list[int] = []
        frame: FrameType | None = innermost
        while frame is not None and len(places) < _MAX_FRAMES:
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)
            places.append(self._number(self._places, (name, code.co_filename, code.co_firstlineno)))
            lines.append(frame.f_lineno or 0)
            frame = frame.f_back
        return self._number(self._stacks, (tuple(places[::-1]), tuple(lines[::-1])))

    @staticmethod
    def _number(known: dict[Any, int], one: Any) -> int:
        return known.setdefault(one, len(known))

    def fields(self) -> dict[str, Any]:
        """As they are written."""
        return {
            "places": list(self._places),
            "stacks": list(self._stacks),
            "paths": list(self._paths),
            "looks": self._looks,
        }


class _Captures:
    """Keeps windows and captures of CUDA graphs apart."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_captures = 0
        self._is_open = False

    def open_window(self, stopping: threading.Event) -> bool:
        """Wait until nothing is captured; False: that took too long, or the program ends."""
        until = time.monotonic() + _MAX_WAIT_S
        with self._changed:
            while self._num_captures and not stopping.is_set() and time.monotonic() < until:
                self._changed.wait(0.1)
            self._is_open = not self._num_captures and not stopping.is_set()
            return self._is_open

    def close_window(self) -> None:
        """Let captures begin. Harmless when repeated."""
        with self._changed:
            self._is_open = False
            self._changed.notify_all()

    def begin(self) -> None:
        """Wait for the end of a window, and let none begin."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_open)
            self._num_captures += 1

    def end(self) -> None:
        """Let windows begin."""
        with self._changed:
            self._num_captures = max(0, self._num_captures - 1)
            self._changed.notify_all()


_captures = _Captures()
_random = random.Random()  # the module's own is the program's
_MARK = "_hotloop_kept_apart"


def _pause_s() -> float:
    """Between two looks: uneven, lest they keep step with the program's loop."""
    return _PERIOD_S * _random.uniform(0.5, 1.5)


def _keep_from_captures(torch: ModuleType) -> None:
    """Have torch's graphs wait for a window's end before they capture; once."""
    graph = getattr(torch.cuda, "CUDAGraph", None)
    begin, end = getattr(graph, "capture_begin", None), getattr(graph, "capture_end", None)
    if graph is None or begin is None or end is None or hasattr(begin, _MARK):
        return

    def capture_begin(self: Any, *args: Any, **kwargs: Any) -> Any:
        _captures.begin()
        try:
            return begin(self, *args, **kwargs)
        except BaseException:
            _captures.end()
            raise

    def capture_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return end(self, *args, **kwargs)
        finally:
            _captures.end()

    setattr(capture_begin, _MARK, True)
    graph.capture_begin, graph.capture_end = capture_begin, capture_end


def _prepare(torch: ModuleType, device: str | None) -> None:
    """Begin Kineto, where it can see the device; say what CUPTI is to do beside CUDA graphs.

    Before CUDA 12.6 CUPTI crashes where it is taken down and begun again beside CUDA graphs;
    torch's own profiler sets the same two variables.

    Raises:
        ProfileError: this torch has no CUPTI.
    """
    supported = torch.autograd._supported_activities()
    if device == "cuda" and "CUDA" not in {one.name for one in supported}:
        raise ProfileError(
            f"expected a torch that can look at a GPU, got {torch.__version__}, which was built "
            "without CUPTI: install one with CUDA, or take no windows (`--gpu-window 0`, "
            "`--gpu-window-ms 0`)"
        )
    version = str(getattr(getattr(torch, "version", None), "cuda", None) or "0.0")
    numbers = [int(one) if one.isdigit() else 0 for one in version.split(".")[:2]]
    if tuple(numbers) < (12, 6):
        os.environ.setdefault("DISABLE_CUPTI_LAZY_REINIT", "1")
        os.environ.setdefault("TEARDOWN_CUPTI", "0")
    with _profile(torch, None):
        pass


def _profile(torch: ModuleType, device: str | None) -> Any:
    """Torch's profiler; the one that does not import the compiler, as `torch.profiler` does."""
    profile: Callable[..., Any] = torch.autograd.profiler.profile
    try:
        return profile(use_cpu=True, use_kineto=True, use_device=device)
    except TypeError:  # before torch 2.1
        return profile(use_cpu=True, use_kineto=True, use_cuda=device == "cuda")


def _mark(torch: ModuleType) -> list[list[int]]:
    """Record markers; the clock before and after each."""
    found: list[list[int]] = []
    for _ in range(_NUM_MARKERS):
        before = time.monotonic_ns()
        with torch.autograd.profiler.record_function(MARKER):
            pass
        found.append([before, time.monotonic_ns()])
    return found


def _spans() -> list[list[Any]]:
    """Totals of this process's spans; none where the program has no NumPy."""
    return [[list(one.path), *one[1:]] for one in totals()] if "numpy" in sys.modules else []


def _name_thread() -> None:
    """What the kernel calls it; samples leave out those of ours."""
    with contextlib.suppress(OSError):
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_bytes(b"hotloop-gpu")


def _devices(torch: ModuleType) -> list[str]:
    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
