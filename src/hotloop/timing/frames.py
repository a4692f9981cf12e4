"""The frames of a stack."""

from __future__ import annotations

import gc
import sys
from collections import deque
from types import FrameType

# A sample of a deeper stack has this many frames at each end.
_NUM_END_FRAMES = 64


def end_frames(innermost: FrameType) -> list[FrameType]:
    """Return the frames of a stack, innermost first, without the middle of a deep recursion.

    The outer frames attribute the time to the lines that start the recursion. They also make the
    stacks of different levels equal, which may be thousands.
    """
    inner: list[FrameType] = []
    frame: FrameType | None = innermost
    while frame is not None and len(inner) < _NUM_END_FRAMES:
        inner.append(frame)
        frame = frame.f_back
    outer: deque[FrameType] = deque(maxlen=_NUM_END_FRAMES)
    while frame is not None:
        outer.append(frame)
        frame = frame.f_back
    return [*inner, *outer]


def frames_of_threads() -> dict[int, FrameType]:
    """Return the innermost frame of each Python thread by its identifier.

    Delete the caller's own frame from the result, which otherwise keeps all of them alive.
    """
    # The call could collect garbage, and release the GIL while it holds a lock that another thread
    # waits for (CPython issue 106883, fixed in 3.11.9).
    is_gc_enabled = gc.isenabled()
    gc.disable()
    try:
        return sys._current_frames()
    finally:
        if is_gc_enabled:
            gc.enable()
