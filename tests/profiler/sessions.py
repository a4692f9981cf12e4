"""Sessions made by hand.

    one = session(
        process("main", spans=[span("collect", 0.0, 2.0), span("collect > env_step", 0.5, 1.0)]),
        process("worker-0", role="worker", pid=201, state="killed", end_s=1.5),
    )

Seconds count from the program's beginning, at which the machine's clock stood at `START_NS`.
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
    Process,
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
from hotloop.timing.reader import EVENT, OpenSpan, Place

START_NS = 5_000_000_000_000


def at(seconds: float) -> int:
    """Nanoseconds on the machine's clock."""
    return START_NS + round(seconds * 1e9)


def ns(seconds: float) -> int:
    """A duration in nanoseconds."""
    return round(seconds * 1e9)


def names(path: str | tuple[str, ...]) -> tuple[str, ...]:
    """`"collect > env_step"` as a path; the empty string is no span at all."""
    if isinstance(path, tuple):
        return path
    return tuple(part.strip() for part in path.split(">")) if path else ()


@dataclass(frozen=True)
class Span:
    """One span; an end of None: it is still open."""

    path: tuple[str, ...]
    start_s: float
    end_s: float | None
    kind: Kind
    thread: int


def span(
    path: str, start_s: float, end_s: float | None = None, *, kind: Kind = "work", thread: int = 0
) -> Span:
    """A span at `"outer > inner"`."""
    return Span(names(path), start_s, end_s, kind, thread)


def events(*spans: Span) -> tuple[np.ndarray, list[Place]]:
    """The events of those spans that have ended, in the order of their ends, and their places."""
    places: list[Place] = []
    rows = []
    for one in sorted((one for one in spans if one.end_s is not None), key=_end):
        place = Place(one.path, one.kind, one.thread)
        if place not in places:
            places.append(place)
        number = places.index(place)
        rows.append((at(one.start_s), at(_end(one)), number, one.thread, len(one.path)))
    return np.array(rows, EVENT), places


def _end(one: Span) -> float:
    assert one.end_s is not None
    return one.end_s


def tree(spans: Iterable[Span], name: str, start_s: float, end_s: float) -> Node:
    """The tree of a process's spans."""
    root = Node(name, total_ns=ns(end_s - start_s))
    spans = list(spans)
    kinds = {(one.path, one.thread): one.kind for one in spans}
    for one in sorted(spans, key=lambda one: len(one.path)):
        node = root
        for depth in range(1, len(one.path) + 1):
            path = one.path[:depth]
            node = node.child(path[-1], kinds.get((path, one.thread), "work"))
        if one.end_s is None:
            left = ns(end_s - one.start_s)
            node.add(Node("", one.kind, total_ns=left, open=1, open_ns=left))
            continue
        row = np.zeros((1, f.ROW_WORDS), np.int64)
        start, end = np.array([at(one.start_s)]), np.array([at(one.end_s)])
        fold(row, np.zeros(1, np.int64), start, end)
        node.add(Node("", one.kind, *map(int, row[0, :4]), histogram=row[0, f.T_HIST :]))
    return root


@dataclass(frozen=True)
class Seen:
    """One row of samples."""

    stack: tuple[str, ...]
    path: tuple[str, ...]
    elapsed_s: float
    on_core_s: float
    queued_s: float
    count: int
    thread: int | None
    waits_s: Mapping[str, float]


def seen(
    *stack: str,
    path: str = "",
    elapsed_s: float = 1.0,
    on_core_s: float = 0.0,
    queued_s: float = 0.0,
    count: int | None = None,
    thread: int | None = None,
    **waits_s: float,
) -> Seen:
    """Samples of one thread (None: the main one) in one place.

    Args:
        stack: `"function (file:line)"` from the outermost in.
        path: open spans, `"collect > env_step"`.
        elapsed_s, on_core_s, queued_s: the rest of the elapsed time is blocked.
        count: of samples; None: a hundred a second.
        waits_s: on what it was blocked: `sleep=0.5`.
    """
    number = max(1, round(elapsed_s * 100)) if count is None else count
    return Seen(stack, names(path), elapsed_s, on_core_s, queued_s, number, thread, waits_s)


def frame(text: str) -> tuple[Frame, int]:
    """`"function (file:line)"`: the frame, and the line that it was at."""
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
    """What was written about once a second.

    Args:
        spans: count and seconds of each path since the process began.
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
    samples: Sequence[Seen] = (),
    periods: Sequence[Period] = (),
    **fields: Any,
) -> Process:
    """A process; what else `Process` has can be given by name."""
    array, places = events(*spans)
    one = Process(
        name,
        role,
        pid,
        parent_pid,
        state,
        at(start_s),
        at(end_s),
        tree=tree(spans, name, start_s, end_s),
        spans=places,
        events=array,
        open_spans=[
            OpenSpan(one.path, one.kind, one.thread, at(one.start_s))
            for one in spans
            if one.end_s is None
        ],
        span_threads=[
            SpanThread(pid + number, "MainThread" if number == 0 else f"Thread-{number}")
            for number in range(1 + max((one.thread for one in spans), default=0))
        ],
        periods=list(periods),
    )
    for row in samples:
        frames, lines = zip(*map(frame, row.stack), strict=True)
        stack = Stack(frames, lines)
        if stack not in one.stacks:
            one.stacks.append(stack)
        one.samples.append(
            Sample(
                pid if row.thread is None else row.thread,
                row.path,
                one.stacks.index(stack),
                row.count,
                ns(row.on_core_s),
                ns(row.queued_s),
                ns(row.elapsed_s),
                {name: ns(seconds) for name, seconds in row.waits_s.items()},
            )
        )
    if samples:
        one.interval_ns = 10_000_000
    for field, value in fields.items():
        assert hasattr(one, field), field
        setattr(one, field, value)
    return one


def session(*processes: Process, **fields: Any) -> Session:
    """A session of processes, main first."""
    return Session("profiles/by-hand", fields.pop("about", {}), list(processes), **fields)


def correlated(rng: np.random.Generator, count: int, phi: float) -> np.ndarray:
    """x_t = φ x_{t−1} + noise, of variance 1; its autocorrelation time is (1 + φ) / (1 − φ)."""
    noise = rng.normal(size=count) * math.sqrt(1 - phi**2)
    series = np.empty(count)
    series[0] = rng.normal()
    for t in range(1, count):
        series[t] = phi * series[t - 1] + noise[t]
    return series
