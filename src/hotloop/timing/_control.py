"""Control of recording: the recorder of this process, its directory, its start and end."""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

from hotloop.timing import _format as f
from hotloop.timing import _span
from hotloop.timing._writer import Recorder, Segment, in_multiprocessing_child


def _choose() -> ModuleType:
    """The extension, or Python where it wasn't built, or where the environment asks for it."""
    if not os.environ.get("HOTLOOP_PURE_TIMING"):
        try:
            from hotloop.timing import _recorder

            return _recorder
        except ImportError:
            pass
    from hotloop.timing import _pure

    return _pure


class _Loan:
    """Lives as long as a thread, and then gives its segment back."""

    __slots__ = ("segment",)

    def __init__(self, segment: Segment) -> None:
        self.segment = segment

    def __del__(self) -> None:
        self.segment.release()


backend: Any = _choose()
_recorder = Recorder(None, "main", backend.FLAGS)
_loans = threading.local()
_ended: list[Path] = []


def _attach() -> Any:
    """A state for the calling thread, which from now on records into it."""
    while True:
        recorder, loans = _recorder, _loans
        segment = recorder.lend()
        if segment.state is None:
            segment.state = backend.State(segment)
        else:
            segment.state.rewind()
        loans.loan = _Loan(segment)
        state = segment.state
        if recorder is _recorder and state is not None:
            return state
        # Another thread started or stopped a recording meanwhile: take part in that one.


def _switch(recorder: Recorder, *, in_child: bool = False) -> Path | None:
    """Have all threads record into `recorder`, and end the one before it; returns its file."""
    global _recorder, _loans
    previous, _recorder = _recorder, recorder
    backend.reset()
    path = previous.abandon() if in_child else previous.close()
    if in_child:
        _ended.clear()
    elif path is not None:
        _ended.append(path)
    _loans = threading.local()  # after the end: spans that are open stay on record as open
    return path


def start(directory: str | os.PathLike[str], component: str = "main") -> Path | None:
    """Record into a file of this process from here on: `<directory>/<component>-<pid>.hlt`.

    The recording begins clean: what was recorded before stays behind, a span that is open is not
    part of it. A recording that was started before ends. A process forked from this one gets a file
    of its own beside it. If there is no space, that is warned of once, and recording goes on in
    memory.

    Args:
        directory: made if it is missing.
        component: what this process is in the program: "learner", "worker-3".
    Returns:
        The file, or None if it couldn't be made.
    """
    recorder = Recorder(Path(directory).absolute(), component, backend.FLAGS)
    recorder.open()
    _switch(recorder)
    return recorder.path


def stop() -> Path | None:
    """End the recording cleanly; what follows is recorded in memory, as before `start()`.

    Returns:
        The file that was written, or None if there is none.
    """
    return _switch(Recorder(None, _recorder.component, backend.FLAGS))


def recorder() -> Recorder:
    """The one in use."""
    return _recorder


def files() -> list[Path]:
    """All that this process has recorded into so far."""
    path = _recorder.path
    return _ended + ([] if path is None else [path])


def open_paths() -> dict[int, tuple[str, ...]]:
    """What each thread of this process is inside of at the moment, by its native number.

    For a sampler in a thread of its own. Threads that have had no span yet are missing.
    """
    paths: dict[int, tuple[str, ...]] = {}
    for segment in list(_recorder.segments):
        state, words = segment.state, segment.words
        if state is not None and words[f.S_STATE] == f.LIVE:
            paths[words[f.S_IDENT]] = segment.path(state.current())
    return paths


def _in_child() -> None:
    # The file is opened at the child's first span: most forks are soon replaced by a program.
    parent = _recorder
    _switch(Recorder(parent.directory, parent.component, backend.FLAGS), in_child=True)
    if parent.directory is not None:
        in_multiprocessing_child(stop)


def _at_exit() -> None:
    if _recorder.directory is not None:
        stop()


if backend.__name__.endswith("_pure"):
    backend.install(_attach)
else:
    backend.install(_attach, _span.decorate, _span.check_span)
os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
