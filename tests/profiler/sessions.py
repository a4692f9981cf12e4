"""Sessions that tests construct by hand.

    example = session(
        process("main", spans=[span("collect", 0.0, 2.0), span("collect > env_step", 0.5, 1.0)]),
        process("worker-0", role="worker", pid=201, state="killed", end_s=1.5),
    )

Seconds count from the program's start, when the machine's clock is at `START_NS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hotloop.profiler.session import (
    Frame,
    Period,
    ProfiledProcess,
    Role,
    Sample,
    Session,
    SpanThread,
    Stack,
)
from hotloop.timing import Node
from hotloop.timing import _format as f
from hotloop.timing._fold import fold
from hotloop.timing._format import Kind
from hotloop.timing.reader import EVENT, OpenSpan, SpanPath

START_NS = 5_000_000_000_000


def at(seconds: float) -> int:
    """Return nanoseconds on the machine's clock."""
    return START_NS + round(seconds * 1e9)


def ns(seconds: float) -> int:
    """Return a duration in nanoseconds."""
    return round(seconds * 1e9)


def names(path: str | tuple[str, ...]) -> tuple[str, ...]:
    """Return `"collect > env_step"` as a path. The empty string is the empty path."""
    if isinstance(path, tuple):
        return path
    return tuple(part.strip() for part in path.split(">")) if path else ()


@dataclass(frozen=True)
class Span:
    """One span, which is still open if its end is None."""

    path: tuple[str, ...]
    start_s: float
    end_s: float | None
    kind: Kind
    thread: int


def span(
    path: str, start_s: float, end_s: float | None = None, *, kind: Kind = "work", thread: int = 0
) -> Span:
    """Return a span at `"outer > inner"`."""
    return Span(names(path), start_s, end_s, kind, thread)


def events(*spans: Span) -> tuple[np.ndarray, list[SpanPath]]:
    """Return the events of the ended spans, ordered by their ends, and the paths of spans."""
    paths: list[SpanPath] = []
    rows = []
    for span in sorted((span for span in spans if span.end_s is not None), key=_end):
        path = SpanPath(span.path, span.kind, span.thread)
        if path not in paths:
            paths.append(path)
        number = paths.index(path)
        rows.append((at(span.start_s), at(_end(span)), number, span.thread, len(span.path)))
    return np.array(rows, EVENT), paths


def _end(span: Span) -> float:
    assert span.end_s is not None
    return span.end_s


def tree(spans: Iterable[Span], name: str, start_s: float, end_s: float) -> Node:
    """Return the tree of a process's spans."""
    root = Node(name, total_ns=ns(end_s - start_s))
    spans = list(spans)
    kinds = {(span.path, span.thread): span.kind for span in spans}
    for span in sorted(spans, key=lambda span: len(span.path)):
        node = root
        for depth in range(1, len(span.path) + 1):
            path = span.path[:depth]
            node = node.child(path[-1], kinds.get((path, span.thread), "work"))
        if span.end_s is None:
            open_ns = ns(end_s - span.start_s)
            node.add(Node("", span.kind, total_ns=open_ns, open=1, open_ns=open_ns))
            continue
        row = np.zeros((1, f.ROW_WORDS), np.int64)
        start, end = np.array([at(span.start_s)]), np.array([at(span.end_s)])
        fold(row, np.zeros(1, np.int64), start, end)
        node.add(Node("", span.kind, *map(int, row[0, :4]), histogram=row[0, f.T_HIST :]))
    return root


@dataclass(frozen=True)
class SampleRow:
    """Samples of one thread with one stack."""

    stack: tuple[str, ...]
    path: tuple[str, ...]
    elapsed_s: float
    on_core_s: float
    queued_s: float
    count: int
    thread: int | None
    waits_s: Mapping[str, float]


def sample(
    *stack: str,
    path: str = "",
    elapsed_s: float = 1.0,
    on_core_s: float = 0.0,
    queued_s: float = 0.0,
    count: int | None = None,
    thread: int | None = None,
    **waits_s: float,
) -> SampleRow:
    """Return samples of one thread (None: the main thread) with one stack.

    Args:
        stack: `"function (file:line)"` from the outermost in.
        path: open spans, such as `"collect > env_step"`.
        elapsed_s, on_core_s, queued_s: the remaining elapsed time is blocked.
        count: number of samples, by default a hundred per second.
        waits_s: blocked time by its cause, such as `sleep=0.5`.
    """
    number = max(1, round(elapsed_s * 100)) if count is None else count
    return SampleRow(stack, names(path), elapsed_s, on_core_s, queued_s, number, thread, waits_s)


def frame(text: str) -> tuple[Frame, int]:
    """Return the frame and the current line of `"function (file:line)"`."""
    function, _, place = text.partition(" (")
    file, _, line = place.rstrip(")").rpartition(":")
    return Frame(function, file, int(line)), int(line)


def period(
    end_s: float,
    *,
    cpu_s: float = 0.0,
    resident: int = 0,
    spans: Mapping[str, tuple[int, float]] | None = None,
    by_path: Mapping[str, int] | None = None,
    by_stack: Mapping[int, int] | None = None,
) -> Period:
    """Return a period as the sampler writes it about once a second.

    Args:
        spans: count and seconds of each path since the process started.
        by_path, by_stack: samples of the main thread.
    """
    return Period(
        at(end_s),
        {names(path): (count, ns(total)) for path, (count, total) in (spans or {}).items()},
        ns(cpu_s),
        resident,
        {names(path): count for path, count in (by_path or {}).items()},
        dict(by_stack or {}),
    )


def process(
    name: str = "main",
    *,
    role: Role = "main",
    pid: int = 100,
    parent_pid: int = 1,
    state: str = "complete",
    start_s: float = 0.0,
    end_s: float = 10.0,
    spans: Sequence[Span] = (),
    samples: Sequence[SampleRow] = (),
    periods: Sequence[Period] = (),
    **fields: Any,
) -> ProfiledProcess:
    """Return a process. `fields` sets the other attributes of `ProfiledProcess`."""
    array, paths = events(*spans)
    profiled = ProfiledProcess(
        name,
        role,
        pid,
        parent_pid,
        state,
        at(start_s),
        at(end_s),
        tree=tree(spans, name, start_s, end_s),
        spans=paths,
        events=array,
        open_spans=[
            OpenSpan(span.path, span.kind, span.thread, at(span.start_s))
            for span in spans
            if span.end_s is None
        ],
        span_threads=[
            SpanThread(pid + number, "MainThread" if number == 0 else f"Thread-{number}")
            for number in range(1 + max((span.thread for span in spans), default=0))
        ],
        periods=list(periods),
    )
    for row in samples:
        frames, lines = zip(*map(frame, row.stack), strict=True)
        stack = Stack(frames, lines)
        if stack not in profiled.stacks:
            profiled.stacks.append(stack)
        profiled.samples.append(
            Sample(
                pid if row.thread is None else row.thread,
                row.path,
                profiled.stacks.index(stack),
                row.count,
                ns(row.on_core_s),
                ns(row.queued_s),
                ns(row.elapsed_s),
                {name: ns(seconds) for name, seconds in row.waits_s.items()},
            )
        )
    if samples:
        profiled.interval_ns = 10_000_000
    for field, value in fields.items():
        assert hasattr(profiled, field), field
        setattr(profiled, field, value)
    return profiled


def session(*processes: ProfiledProcess, **fields: Any) -> Session:
    """Return a session of processes, main first."""
    return Session("profiles/by-hand", fields.pop("metadata", {}), list(processes), **fields)


def with_first_lines(profiled: ProfiledProcess, first_lines: Mapping[str, int]) -> ProfiledProcess:
    """Set the first lines of functions by name."""
    profiled.stacks = [
        Stack(
            tuple(
                frame._replace(first_line=first_lines.get(frame.function, frame.first_line))
                for frame in stack.frames
            ),
            stack.lines,
        )
        for stack in profiled.stacks
    ]
    return profiled


def correlated_noise(rng: np.random.Generator, count: int, phi: float) -> np.ndarray:
    """x_t = φ x_{t−1} + noise of variance 1, with autocorrelation time (1 + φ) / (1 − φ)."""
    noise = rng.normal(size=count) * math.sqrt(1 - phi**2)
    series = np.empty(count)
    series[0] = rng.normal()
    for t in range(1, count):
        series[t] = phi * series[t - 1] + noise[t]
    return series
