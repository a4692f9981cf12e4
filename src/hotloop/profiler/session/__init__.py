"""Sessions: the records of all processes of a program, merged on one clock.

A session is data: what is told of it (`text`, `trace`, `flame`, `html`, `diagnose`, `compare`) are
functions of it alone. `reading` makes one of a directory, `saving` one file of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hotloop.profiler.collect import samples as samples_file
from hotloop.timing import Node
from hotloop.timing.reader import EVENT, OpenSpan, Place

if TYPE_CHECKING:
    from hotloop.profiler.session.gpu import GpuWindow

Role = Literal["main", "worker", "helper"]
# Spans in which an environment is stepped, alone or with others.
STEPS = ("env_step", "vector_step")


class Frame(NamedTuple):
    """A place in code."""

    function: str
    file: str
    first_line: int


class Stack(NamedTuple):
    """Frames from the outermost in, and the lines they were at; 0 where that was not looked up."""

    frames: tuple[Frame, ...]
    lines: tuple[int, ...]


def is_library(frame: Frame) -> bool:
    """Whether a frame is an installed library's, or Python's own, and not the user's."""
    return _is_library_file(frame.file)


@lru_cache(maxsize=65536)
def _is_library_file(file: str) -> bool:
    return any(part in file for part in samples_file.LIBRARY)


class Sample(NamedTuple):
    """What was seen of one thread in one place, added up.

    The times are those between a sample and the one before it; what is neither on a core nor queued
    for one is blocked, on what `waits` says as far as it is known (see `collect.samples`).
    """

    thread: int
    path: tuple[str, ...]
    stack: int
    count: int  # pyright: ignore[reportIncompatibleMethodOverride]
    on_core_ns: int
    queued_ns: int
    elapsed_ns: int
    waits: Mapping[str, int] = {}

    @property
    def blocked_ns(self) -> int:
        """Neither on a core nor queued for one."""
        return max(0, self.elapsed_ns - self.on_core_ns - self.queued_ns)


class Period(NamedTuple):
    """About a second of a process.

    Attributes:
        end_ns: its end.
        spans: of every place in the tree, since the process began: count and total ns.
        cpu_ns: user and system time of the process so far.
        resident: bytes.
        by_path: samples of the main thread in this period, by the path of open spans.
        by_stack: the same by the number of the stack.
    """

    end_ns: int
    spans: dict[tuple[str, ...], tuple[int, int]]
    cpu_ns: int
    resident: int
    by_path: dict[tuple[str, ...], int]
    by_stack: Mapping[int, int] = MappingProxyType({})


class SpanThread(NamedTuple):
    """A thread that had spans: its number, as the kernel counts, and its name, as Python has it."""

    number: int
    name: str


@dataclass
class ThreadTimes:
    """What the kernel said of a thread, in the end."""

    number: int
    name: str
    on_core_ns: int
    queued_ns: int


@dataclass
class Process:
    """One process.

    Attributes:
        name: unique in the session: "main", "learner", "worker-3".
        role: main, worker (it steps environments for another one), or helper (it did next to
            nothing).
        pid, parent_pid: numbers.
        state: as of `timing.Recording`.
        start_ns, end_ns: CLOCK_MONOTONIC.
        command: its arguments; empty if there were no samples.
        tree: of its spans.
        spans: what the events' `span` refers to.
        events: `timing.reader.EVENT`, the latest ones of each thread, by their ends.
        open_spans: those that had not ended.
        span_threads: what the `thread` of events, spans and open spans refers to.
        stacks: what samples refer to.
        samples: added up over the whole run.
        periods: one after another.
        threads: of the kernel, by the end.
        interval_ns: between two samples; 0: there were none.
        own_ns: CPU time that sampling took.
        cores: that it was allowed to run on.
        facts: what hooks have seen, by name: `num_envs`, `torch_threads`.
    """

    name: str
    role: Role
    pid: int
    parent_pid: int
    state: str
    start_ns: int
    end_ns: int
    command: list[str] = field(default_factory=list)
    tree: Node = field(default_factory=lambda: Node("main"))
    spans: list[Place] = field(default_factory=list)
    events: np.ndarray = field(default_factory=lambda: np.zeros(0, EVENT))
    open_spans: list[OpenSpan] = field(default_factory=list)
    span_threads: list[SpanThread] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)
    threads: list[ThreadTimes] = field(default_factory=list)
    interval_ns: int = 0
    own_ns: int = 0
    cores: int = 0
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        """From its start to its end."""
        return self.end_ns - self.start_ns

    @property
    def cpu_ns(self) -> int:
        """User and system time, as far as it was sampled."""
        return self.periods[-1].cpu_ns if self.periods else 0


class Uncovered(NamedTuple):
    """A process that belongs to the program and left no recording."""

    pid: int
    parent_pid: int
    command: str
    cpu_ns: int


@dataclass
class Session:
    """A profiled program.

    Attributes:
        directory: where it was read from.
        about: what `hotloop profile` wrote down: command, exit code, times.
        processes: main first, then helpers, then workers, each by name.
        uncovered: processes without a recording.
        problems: what was torn, foreign or missing, a sentence each.
        gpu: windows on GPUs, in the order of their times.
    """

    directory: str
    about: dict[str, Any]
    processes: list[Process]
    uncovered: list[Uncovered] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    gpu: list[GpuWindow] = field(default_factory=list)

    @property
    def start_ns(self) -> int:
        """Of the first process."""
        return min(process.start_ns for process in self.processes)

    @property
    def end_ns(self) -> int:
        """Of the last one."""
        return max(process.end_ns for process in self.processes)

    @property
    def main(self) -> Process:
        """The process that the program began as."""
        return self.processes[0]

    @property
    def command(self) -> list[str]:
        """What was run, by `hotloop profile`'s word or else by the kernel's; empty: not known."""
        return list(self.about.get("command") or self.main.command)

    @property
    def workers(self) -> list[Process]:
        """Those that step environments for another one."""
        return [process for process in self.processes if process.role == "worker"]
