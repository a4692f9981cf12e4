"""Sessions: the records of all processes of a program, merged on one clock.

A session is plain data. `text`, `trace`, `flame`, `html`, `diagnose` and `compare` are functions of
it. `reading` creates a session from a directory, and `saving` stores one as a single file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from hotloop.profiler.collect import samples as samples_file
from hotloop.timing import Node
from hotloop.timing.reader import EVENT, OpenSpan, SpanPath

if TYPE_CHECKING:
    from hotloop.profiler.session.gpu import GpuWindow

Role = Literal["main", "worker", "helper"]
# Spans in which an environment is stepped, alone or with others.
STEP_SPANS = ("env_step", "vector_step")
# Comprehensions belong to the function that contains them.
COMPREHENSION = re.compile(r"(\.<locals>\.|^)<(listcomp|dictcomp|setcomp|genexpr)>.*")


class Frame(NamedTuple):
    """A function in a source file."""

    function: str
    file: str
    first_line: int


class Stack(NamedTuple):
    """Frames, outermost first, and their line numbers. A line is 0 if it was not recorded."""

    frames: tuple[Frame, ...]
    lines: tuple[int, ...]


def enclosing_function(name: str) -> str:
    """Return the function that contains a comprehension, or the function itself."""
    return COMPREHENSION.sub("", name) or name


def is_library(frame: Frame) -> bool:
    """Return whether a frame belongs to an installed library or Python, not to the user."""
    return _is_library_file(frame.file)


@lru_cache(maxsize=65536)
def _is_library_file(file: str) -> bool:
    return samples_file.is_library_file(file)


class Sample(NamedTuple):
    """The sum of the samples of one thread in one place.

    The times are those between a sample and the previous one. Time that is neither on a core nor
    queued for one is blocked. `waits` divides it by cause, if known (see `collect.samples`).
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
        """Nanoseconds in which the thread was neither on a core nor queued for one."""
        return max(0, self.elapsed_ns - self.on_core_ns - self.queued_ns)


class Period(NamedTuple):
    """About a second of a process.

    Attributes:
        end_ns: end of the period, CLOCK_MONOTONIC.
        spans: count and total ns by path, since the start of the process.
        cpu_ns: user and system time of the process so far.
        resident_bytes: resident memory at the end of the period.
        by_path: number of samples of the main thread in this period, by path of open spans.
        by_stack: number of the same samples, by index of the stack.
    """

    end_ns: int
    spans: dict[tuple[str, ...], tuple[int, int]]
    cpu_ns: int
    resident_bytes: int
    by_path: dict[tuple[str, ...], int]
    by_stack: Mapping[int, int] = MappingProxyType({})


class SpanThread(NamedTuple):
    """A thread with spans: its native id and its name in Python."""

    native_id: int
    name: str


@dataclass
class ThreadTotals:
    """The last kernel counters of a thread."""

    number: int
    name: str
    on_core_ns: int
    queued_ns: int


@dataclass(eq=False)
class ProfiledProcess:
    """One process, which does not change after it was read.

    Attributes:
        name: unique name in the session, such as "main", "learner" or "worker-3".
        role: main, worker (steps environments for another process), or helper (almost idle).
        pid, parent_pid: process ids.
        state: see `timing.Recording`.
        start_ns, end_ns: CLOCK_MONOTONIC.
        command: command line; empty without samples.
        tree: tree of its spans.
        spans: table that the `span` field of events indexes.
        events: `timing.reader.EVENT`, the latest ones of each thread, sorted by end.
        open_spans: spans that had not ended.
        span_threads: table that the `thread` field of events, spans and open spans indexes.
        stacks: table that samples index.
        samples: sums over the whole run.
        periods: periods in order of time.
        threads: final kernel counters of its threads.
        interval_ns: time between two samples; 0 without samples.
        own_ns: CPU time of the sampling.
        cores: number of cores that it was allowed to use.
        facts: numbers recorded by hooks, by name, such as `num_envs` and `torch_threads`.
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
    spans: list[SpanPath] = field(default_factory=list)
    events: np.ndarray = field(default_factory=lambda: np.zeros(0, EVENT))
    open_spans: list[OpenSpan] = field(default_factory=list)
    span_threads: list[SpanThread] = field(default_factory=list)
    stacks: list[Stack] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)
    threads: list[ThreadTotals] = field(default_factory=list)
    interval_ns: int = 0
    own_ns: int = 0
    cores: int = 0
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def duration_ns(self) -> int:
        """The time from its start to its end."""
        return self.end_ns - self.start_ns

    @property
    def thread_names(self) -> dict[int, str]:
        """Names of the threads by native id. Python's names replace those of the kernel."""
        names = {thread.number: thread.name for thread in self.threads}
        return names | {
            thread.native_id: thread.name for thread in self.span_threads if thread.name
        }

    @property
    def cpu_ns(self) -> int:
        """User and system time up to the last sample."""
        return self.periods[-1].cpu_ns if self.periods else 0


class UnrecordedProcess(NamedTuple):
    """A process of the program without a recording."""

    pid: int
    parent_pid: int
    command: str
    cpu_ns: int


@dataclass
class Session:
    """A profiled program.

    Attributes:
        directory: directory it was read from.
        metadata: content of `profile.json`: command, exit code, times.
        processes: main first, then helpers, then workers, each group sorted by name.
        unrecorded: processes without a recording.
        problems: one sentence for each file that is incomplete, missing or of another program.
        gpu: GPU windows in order of time.
    """

    directory: str
    metadata: dict[str, Any]
    processes: list[ProfiledProcess]
    unrecorded: list[UnrecordedProcess] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    gpu: list[GpuWindow] = field(default_factory=list)

    @property
    def start_ns(self) -> int:
        """The start of the first process."""
        return min(process.start_ns for process in self.processes)

    @property
    def end_ns(self) -> int:
        """The end of the last process."""
        return max(process.end_ns for process in self.processes)

    @property
    def main(self) -> ProfiledProcess:
        """The process that started the program."""
        return self.processes[0]

    @property
    def command(self) -> list[str]:
        """The command line from the metadata, or else from the kernel. Empty if unknown."""
        return list(self.metadata.get("command") or self.main.command)

    @property
    def workers(self) -> list[ProfiledProcess]:
        """The processes that step environments for another process."""
        return [process for process in self.processes if process.role == "worker"]
