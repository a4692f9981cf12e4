"""Trace of a session: all processes on one timeline, for Perfetto or chrome://tracing.

Trace Event Format, JSON object form
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). Spans are complete events
("X"), values read about once a second are counters ("C"), a kill is an instant ("i"), names are
metadata ("M"). Times are microseconds since the session's start, with three decimals, so that no
nanosecond is lost. A thread's spans are sorted by start, outer ones first. GPU activity in
measurement windows is on the same timeline (`gpu`).
"""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from hotloop.base.files import atomic_write
from hotloop.profiler.render.gpu import trace_events
from hotloop.profiler.render.phrases import one_line
from hotloop.profiler.session import ProfiledProcess, Session
from hotloop.profiler.session.throughput import step_factors
from hotloop.timing.reader import EVENT

# Events formatted at once, about 1 MB of text.
_CHUNK = 8192
# Level 4 compresses a trace to a tenth of its size, in half the time of the default level.
_GZIP_LEVEL = 4
# Viewers color spans by name. Spans that do no work get colors of chrome://tracing.
_COLORS = {"wait": "grey", "transfer": "thread_state_iowait"}


def write(session: Session, path: str | os.PathLike[str]) -> None:
    """Write the trace of a session, compressed if the path ends in `.gz`.

    Raises:
        OutputError: The file can't be written.
    """
    path = Path(path)
    with atomic_write(path) as partial, _opened(partial, compress=path.suffix == ".gz") as file:
        for text in _texts(session):
            file.write(text.encode())


@contextmanager
def _opened(path: Path, *, compress: bool) -> Iterator[BinaryIO | io.BufferedWriter]:
    with open(path, "wb") as file:
        if not compress:
            yield file
            return
        # Omit the name and time in the header, so that a session always gives the same file.
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as compressed:
            yield compressed  # pyright: ignore[reportReturnType]


def _texts(session: Session) -> Iterator[str]:
    """Yield the file's text in pieces."""
    separator = '{"traceEvents":[\n'
    for text in _events(session):
        yield separator
        yield text
        separator = ",\n"
    other = {
        "command": " ".join(session.command),
        "problems": session.problems,
        "not covered": [f"{x.pid}: {one_line(x.command)}" for x in session.unrecorded],
    }
    # With "ms", chrome://tracing rounds to microseconds when it nests the spans.
    yield f'\n],"displayTimeUnit":"ns","otherData":{_json(other)}}}\n'


def _events(session: Session) -> Iterator[str]:
    """Yield the events as text, one or several at a time, separated by commas."""
    zero = session.start_ns
    threads = [_thread_numbers(process) for process in session.processes]
    for number, process in enumerate(session.processes):
        yield ",\n".join(map(_json, _names(process, number, threads[number])))
    for process, numbers in zip(session.processes, threads, strict=True):
        yield from _spans(process, zero, numbers)
        yield from map(_json, _counters(process, zero))
        if process.state == "killed":
            yield _json(
                {
                    "ph": "i",
                    "name": "killed",
                    "cat": "process",
                    "pid": process.pid,
                    "tid": numbers[0],
                    "ts": (process.end_ns - zero) / 1e3,
                    "s": "p",
                }
            )
    yield from map(_json, trace_events(session))


def _json(event: dict[str, Any]) -> str:
    return json.dumps(event, separators=(",", ":"))


def _thread_numbers(process: ProfiledProcess) -> list[int]:
    """Return a number for each thread with spans: the native thread id if it is known."""
    used = [*process.events["thread"].tolist(), *(span.thread for span in process.open_spans)]
    numbers: list[int] = []
    for thread in range(1 + max([*used, len(process.span_threads) - 1, 0])):
        known = process.span_threads[thread : thread + 1]
        number = known[0].native_id if known and known[0].native_id else process.pid + thread
        while number in numbers:
            number += 1
        numbers.append(number)
    return numbers


def _names(process: ProfiledProcess, index: int, threads: list[int]) -> Iterator[dict[str, Any]]:
    def metadata(event: str, tid: int, **args: Any) -> dict[str, Any]:
        return {"ph": "M", "name": event, "pid": process.pid, "tid": tid, "args": args}

    yield metadata("process_name", threads[0], name=process.name)
    yield metadata("process_sort_index", threads[0], sort_index=index)
    if process.state in ("killed", "running"):
        yield metadata("process_labels", threads[0], labels=process.state)
    for thread, tid in enumerate(threads):
        known = process.span_threads[thread : thread + 1]
        name = known[0].name if known and known[0].name else f"thread {thread}"
        yield metadata("thread_name", tid, name=name)
        yield metadata("thread_sort_index", tid, sort_index=thread)


def _spans(process: ProfiledProcess, zero: int, threads: list[int]) -> Iterator[str]:
    """Yield the finished spans, and the open ones up to the process's end."""
    heads: list[str] = []
    tails: list[str] = []
    open_rows = np.zeros(len(process.open_spans), EVENT)
    for row, span in enumerate(process.open_spans):
        end_ns = max(process.end_ns, span.start_ns)
        number = len(process.spans) + row
        open_rows[row] = span.start_ns, end_ns, number, span.thread, len(span.path)
    # Format each span's constant text once.
    for number, place in enumerate([*process.spans, *process.open_spans]):
        head = {
            "ph": "X",
            # The root of a thread's tree has no name, and no event refers to it.
            "name": place.path[-1] if place.path else "",
            "cat": place.kind,
            "pid": process.pid,
            "tid": threads[place.thread] if place.thread < len(threads) else process.pid,
        }
        if place.kind in _COLORS:
            head["cname"] = _COLORS[place.kind]
        heads.append(_json(head)[:-1] + ',"ts":')
        is_open = number >= len(process.spans)
        tails.append(',"args":{"still open":true}}' if is_open else "}")
    rows = np.concatenate((process.events, open_rows))
    order = np.lexsort((rows["depth"], rows["start_ns"], rows["thread"]))
    for first in range(0, len(order), _CHUNK):
        part = rows[order[first : first + _CHUNK]]
        starts = (part["start_ns"] - zero).tolist()
        durations = np.maximum(part["end_ns"] - part["start_ns"], 0).tolist()
        yield ",\n".join(
            [
                f'{heads[span]}{start / 1e3:.3f},"dur":{duration / 1e3:.3f}{tails[span]}'
                for span, start, duration in zip(
                    part["span"].tolist(), starts, durations, strict=True
                )
            ]
        )


def _counters(process: ProfiledProcess, zero: int) -> Iterator[dict[str, Any]]:
    """Yield each period's used cores, steps per second, and memory at its end."""

    def counter(at_ns: int, name: str, series: str, value: float) -> dict[str, Any]:
        return {
            "ph": "C",
            "name": name,
            "pid": process.pid,
            "ts": (at_ns - zero) / 1e3,
            "args": {series: round(value, 3)},
        }

    factors = step_factors(process)
    # A value is valid until the next one, so a period's value is written at its start. The CPU
    # time at the first start is unknown, since the process started before its recording.
    begin_ns, cpu_ns, num_steps = process.start_ns, None, 0.0
    for period in process.periods:
        seconds = (period.end_ns - begin_ns) / 1e9
        if seconds <= 0:
            continue
        if cpu_ns is not None:
            used = max(0.0, (period.cpu_ns - cpu_ns) / 1e9 / seconds)
            yield counter(begin_ns, "CPU", "cores", used)
        steps = sum(factor * period.spans.get(path, (0, 0))[0] for path, factor in factors.items())
        if factors:
            yield counter(begin_ns, "env steps", "per second", (steps - num_steps) / seconds)
        yield counter(period.end_ns, "memory", "MB", period.resident_bytes / 1e6)
        begin_ns, cpu_ns, num_steps = period.end_ns, period.cpu_ns, steps
    if process.periods and process.state != "running":
        end_ns = max(process.end_ns, begin_ns)
        if len(process.periods) > 1:
            yield counter(end_ns, "CPU", "cores", 0.0)
        if factors:
            yield counter(end_ns, "env steps", "per second", 0.0)
        yield counter(end_ns, "memory", "MB", 0.0)
