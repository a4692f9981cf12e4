"""The recorder of this process, and the functions that start and stop recordings."""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.base.signals import blocked_signals, delayed_interrupt
from hotloop.timing import _span
from hotloop.timing._writer import Recorder, Segment, in_multiprocessing_child


def _choose_backend() -> ModuleType:
    """Return the C extension, or the Python module if it is missing or switched off."""
    if not os.environ.get("HOTLOOP_PURE_TIMING"):
        try:
            from hotloop.timing import _recorder

            return _recorder
        except ImportError:
            pass
    with blocked_signals():  # NumPy starts threads, which must not receive the program's signals
        from hotloop.timing import _pure

    return _pure


class _SegmentGuard:
    """A thread-local object that releases the thread's segment when the thread ends."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    def __del__(self) -> None:
        self.segment.release()


backend: Any = _choose_backend()
_recorder = Recorder(None, "main", backend.FLAGS)
_guards = threading.local()
_closed_paths: list[Path] = []


def _attach() -> Any:
    """Return a state for the calling thread, which records into it from now on."""
    while True:
        recorder, guards = _recorder, _guards
        segment = recorder.acquire_segment()
        if segment.state is None:
            segment.state = backend.RecorderState(segment)
        else:
            segment.state.rewind()
        guards.guard = _SegmentGuard(segment)
        state = segment.state
        if recorder is _recorder and state is not None:
            return state
        # Another thread has started or stopped a recording in the meantime: attach to the new
        # recorder.
        segment.state = None  # breaks a reference cycle


def _switch_recorder(recorder: Recorder, *, in_child: bool = False) -> Path | None:
    """Switch all threads to `recorder`, end the previous one, and return its file."""
    global _recorder, _guards
    previous, previous_guards = _recorder, _guards
    # Keep this order: a thread may attach in between, and its guard must live as long as its
    # segment.
    _guards = threading.local()
    _recorder = recorder
    backend.reset()
    path = previous.abandon() if in_child else previous.close()
    if in_child:
        _closed_paths.clear()
    elif path is not None:
        _closed_paths.append(path)
    del previous_guards  # after the recording's end, so that open spans stay open in the file
    return path


def start(directory: str | os.PathLike[str], component: str = "main") -> Path | None:
    """Start to record into the file `<directory>/<component>-<pid>.hlt`.

    The new recording is empty and does not include spans that are open already. The previous
    recording ends. A process forked from this one gets its own file beside it. If there is no
    space, a warning appears once and recording continues in memory.

    Args:
        directory: created if it is missing.
        component: role of this process in the program, such as "learner" or "worker-3".
    Returns:
        The file, or None if it could not be created.
    """
    recorder = Recorder(Path(directory).absolute(), component, backend.FLAGS)
    with delayed_interrupt():  # Ctrl-C in between would leave a file that nothing closes
        recorder.open()
        _switch_recorder(recorder)
    return recorder.path


def stop() -> Path | None:
    """Close the recording. Later spans are recorded in memory, as before `start()`.

    Returns:
        The closed file, or None if there is none.
    """
    recorder = Recorder(None, _recorder.component, backend.FLAGS)
    with delayed_interrupt():
        return _switch_recorder(recorder)


def recorder() -> Recorder:
    """Return the recorder in use."""
    return _recorder


def recording_paths() -> list[Path]:
    """Return all files into which this process has recorded so far."""
    path = _recorder.path
    return _closed_paths + ([] if path is None else [path])


def open_paths() -> dict[int, tuple[str, ...]]:
    """Return the names of each thread's open spans, outermost first, by native thread id.

    A sampler calls this from its own thread. Threads that have had no span yet are missing.
    """
    paths: dict[int, tuple[str, ...]] = {}
    for segment in list(_recorder.segments):
        state, thread = segment.state, segment.thread
        if state is not None and thread is not None:
            paths[thread] = segment.path(state.current())
    return paths


def _after_fork() -> None:
    # The file is opened at the child's first span, because most forks soon call exec.
    parent = _recorder
    _switch_recorder(Recorder(parent.directory, parent.component, backend.FLAGS), in_child=True)
    if parent.directory is not None:
        in_multiprocessing_child(stop)


def _at_exit() -> None:
    if _recorder.directory is not None:
        stop()


if backend.__name__.endswith("_pure"):
    backend.install(_attach)
else:
    backend.install(_attach, _span.decorate, _span.check_span)
os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
