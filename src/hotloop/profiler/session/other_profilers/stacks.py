"""Stacks as other profilers record them, before they become a session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from hotloop.profiler.session import Frame
from hotloop.profiler.session.gpu import GpuWindow

# The name of the process if the format does not name processes.
MAIN = "main"
# Outermost and innermost frames that are kept of a deep stack.
_MAX_FRAMES_EACH = 64

Item = TypeVar("Item")


class StackSample(NamedTuple):
    """Samples of one thread in one place.

    Attributes:
        process: name of the process.
        thread: name of the thread, empty for the main thread.
        frames: outermost first. `first_line` is the recorded line, 0 if it is unknown.
        ns: time of the samples.
        path: open spans.
        is_idle: whether the thread was off the core.
        end_ns: end of the samples since any start, −1 if the format has no times.
    """

    process: str
    thread: str
    frames: tuple[Frame, ...]
    ns: int
    path: tuple[str, ...] = ()
    is_idle: bool = False
    end_ns: int = -1


class SpanEvent(NamedTuple):
    """A span of a thread, in nanoseconds since any start."""

    process: str
    path: tuple[str, ...]
    start_ns: int
    end_ns: int


@dataclass
class OtherProfile:
    """A recording of another profiler.

    Attributes:
        tool: the profiler.
        samples: its stacks, which are read once. `spans` is complete afterwards.
        missing: sentences on the information that the format lacks.
        interval_ns: time between two samples.
        pids: process ids by name of the process, as far as they are known.
        parents: names of the processes' parents.
        commands: command lines by name of the process.
        has_first_lines: whether the lines are the first lines of functions instead of running
            lines.
        has_folders: whether files are recorded with their folders.
        spans: spans, in order of their ends.
        windows: activity of GPUs.
    """

    tool: str
    samples: Iterable[StackSample]
    missing: list[str]
    interval_ns: int
    pids: dict[str, int] = field(default_factory=dict)
    parents: dict[str, str] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    has_first_lines: bool = False
    has_folders: bool = True
    spans: list[SpanEvent] = field(default_factory=list)
    windows: list[GpuWindow] = field(default_factory=list)


def without_middle(frames: Sequence[Item]) -> tuple[Item, ...]:
    """Return the outermost and innermost frames of a stack, so that deep ones take little memory.

    A stack of N frames that is stored at each of its depths would take N² references.
    """
    if len(frames) <= 2 * _MAX_FRAMES_EACH:
        return tuple(frames)
    return (*frames[:_MAX_FRAMES_EACH], *frames[-_MAX_FRAMES_EACH:])
