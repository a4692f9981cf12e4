"""A session as a trace: all processes on one timeline, in Perfetto or chrome://tracing.

Trace Event Format, JSON object form
(docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU). Spans are complete events
("X"), what was read about once a second are counters ("C"), a kill is an instant ("i"), names are
metadata ("M"). Times are microseconds since the session's start, with three decimals, so that none
of a nanosecond is lost. Spans of a thread stand in the order of their starts, outer ones first.
What GPUs did in windows is on the same timeline (`gpu`).
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

from hotloop.profiler.render.gpu import trace_events
from hotloop.profiler.render.words import one_line
from hotloop.profiler.session import Process, Session
from hotloop.profiler.session.throughput import step_factors
from hotloop.system.files import written_whole
from hotloop.timing.reader import EVENT

# What is formatted at once: some 1 MB of text.
_CHUNK = 8192
# At level 4 a trace takes a tenth of its size, in half the time that the default takes.
_GZIP_LEVEL = 4
# Viewers colour spans by their names; what does not work is told apart, by names of colours that
# chrome://tracing has.
_COLOURS = {"wait": "grey", "transfer": "thread_state_iowait"}


def write(session: Session, path: str | os.PathLike[str]) -> None:
    """Write the trace of a session, compressed where the path ends in `.gz`.

    Raises:
        OutputError: it can't be written there.
    """
    path = Path(path)
    with written_whole(path) as aside, _opened(aside, compress=path.suffix == ".gz") as file:
        for text in _texts(session):
            file.write(text.encode())


@contextmanager
def _opened(path: Path, *, compress: bool) -> Iterator[BinaryIO | io.BufferedWriter]:
    with open(path, "wb") as file:
        if not compress:
            yield file
            return
        # Without a name and a time in its header the same session gives the same file.
        with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as compressed:
            yield compressed  # pyright: ignore[reportReturnType]


def _texts(session: Session) -> Iterator[str]:
    """The file's text, piece by piece."""
    separator = '{"traceEvents":[\n'
    for text in _events(session):
        yield separator
        yield text
        separator = ",\n"
    other = {
        "command": " ".join(session.command),
        "problems": session.problems,
        "not covered": [f"{one.pid}: {one_line(one.command)}" for one in session.uncovered],
    }
    # With "ms" chrome://tracing rounds to microseconds where it finds out which span holds which.
    yield f'\n],"displayTimeUnit":"ns","otherData":{_json(other)}}}\n'


def _events(session: Session) -> Iterator[str]:
    """Events, one or several at a time, with commas between them."""
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


def _thread_numbers(process: Process) -> list[int]:
    """A number for each of the threads that had spans: the kernel's where it is known."""
    used = [*process.events["thread"].tolist(), *(one.thread for one in process.open_spans)]
    numbers: list[int] = []
    for thread in range(1 + max([*used, len(process.span_threads) - 1, 0])):
        known = process.span_threads[thread : thread + 1]
        number = known[0].number if known and known[0].number else process.pid + thread
        while number in numbers:
            number += 1
        numbers.append(number)
    return numbers


def _names(process: Process, index: int, threads: list[int]) -> Iterator[dict[str, Any]]:
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


def _spans(process: Process, zero: int, threads: list[int]) -> Iterator[str]:
    """Spans that ended, and those still open up to the process's end."""
    heads: list[str] = []
    tails: list[str] = []
    open_rows = np.zeros(len(process.open_spans), EVENT)
    for row, one in enumerate(process.open_spans):
        end_ns = max(process.end_ns, one.start_ns)
        number = len(process.spans) + row
        open_rows[row] = one.start_ns, end_ns, number, one.thread, len(one.path)
    for number, place in enumerate([*process.spans, *process.open_spans]):
        head = {
            "ph": "X",
            # The top of a thread's tree is a place without a name, which no event refers to.
            "name": place.path[-1] if place.path else "",
            "cat": place.kind,
            "pid": process.pid,
            "tid": threads[place.thread] if place.thread < len(threads) else process.pid,
        }
        if place.kind in _COLOURS:
            head["cname"] = _COLOURS[place.kind]
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


def _counters(process: Process, zero: int) -> Iterator[dict[str, Any]]:
    """Of each period: cores used, steps a second, memory at its end."""

    def counter(at_ns: int, name: str, series: str, value: float) -> dict[str, Any]:
        return {
            "ph": "C",
            "name": name,
            "pid": process.pid,
            "ts": (at_ns - zero) / 1e3,
            "args": {series: round(value, 3)},
        }

    factors = step_factors(process)
    # A value holds from its time to the next one's: that of a period stands at its beginning. CPU
    # time at the first one's beginning is not known, since the process began before its recording.
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
            # A program that began another recording counts from zero again.
            grown = steps - num_steps if steps >= num_steps else steps
            yield counter(begin_ns, "env steps", "per second", grown / seconds)
        yield counter(period.end_ns, "memory", "MB", period.resident / 1e6)
        begin_ns, cpu_ns, num_steps = period.end_ns, period.cpu_ns, steps
    if process.periods and process.state != "running":
        end_ns = max(process.end_ns, begin_ns)
        if len(process.periods) > 1:
            yield counter(end_ns, "CPU", "cores", 0.0)
        if factors:
            yield counter(end_ns, "env steps", "per second", 0.0)
        yield counter(end_ns, "memory", "MB", 0.0)
