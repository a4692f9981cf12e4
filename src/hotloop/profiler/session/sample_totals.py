"""Sums of one process's samples, which replace the content of its file.

A file of ten minutes is some megabytes of text, and takes several times that as Python objects.
Each line is therefore summed and freed before the next one is read.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotloop.profiler.collect.samples import Samples
from hotloop.profiler.session import (
    Frame,
    Period,
    ProfiledProcess,
    Sample,
    Stack,
    ThreadTotals,
    UnrecordedProcess,
)
from hotloop.profiler.session.sums import sums

# Spans of all periods. A period also has those of earlier recordings, 0.1 kB for each.
_MAX_SPANS = 2**24
# The periods of a longer run are joined in pairs, again and again. Two hours of seconds.
_MAX_PERIODS = 7200
Path = tuple[str, ...]
SpanTotals = dict[Path, tuple[int, int]]


@dataclass
class SampleTotals:
    """Sums over a file of samples.

    Attributes:
        header: first line of the file.
        last_period: last period, as written; empty if there is none.
        descendants: descendant processes that were found while it ran, by process id.
        damage: error that ended the reading; empty if the file is intact.
        stacks, samples, periods, threads, own_ns, facts: see `ProfiledProcess`.
    """

    header: dict[str, Any]
    last_period: dict[str, Any] = field(default_factory=dict)
    descendants: dict[int, UnrecordedProcess] = field(default_factory=dict)
    damage: str = ""
    stacks: list[Stack] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)
    threads: list[ThreadTotals] = field(default_factory=list)
    own_ns: int = 0
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[int, int, str, str]:
        """A key that copies of one file share."""
        header = self.header
        return header["pid"], header["start_ns"], header["boot_id"], header["component"]

    @property
    def end_ns(self) -> int | None:
        """The end of the last period; None without periods."""
        return self.last_period.get("t")

    def add_to(self, process: ProfiledProcess) -> None:
        """Append the sums to a process. One that replaced its program (exec) has several files."""
        header, first = self.header, len(process.stacks)
        process.command = list(header.get("command", ()))
        process.interval_ns = int(header.get("interval_s", 0.0) * 1e9)
        process.cores = int(header.get("cores", 0))
        process.stacks += self.stacks
        if not first and not process.periods:
            process.samples += self.samples
            process.periods += self.periods
        else:
            process.samples += [
                sample._replace(stack=first + sample.stack) for sample in self.samples
            ]
            earlier = process.periods[-1].spans if process.periods else {}  # they restart at 0
            process.periods += [
                period._replace(
                    spans=_added(earlier, period.spans),
                    by_stack={first + stack: n for stack, n in period.by_stack.items()},
                )
                for period in self.periods
            ]
        if self.periods:
            process.threads, process.own_ns = self.threads, self.own_ns
            process.facts = self.facts


def _added(a: SpanTotals, b: SpanTotals) -> SpanTotals:
    """Return the sums of two tables of counts and total ns by path."""
    none = 0, 0
    pairs = {path: (a.get(path, none), b.get(path, none)) for path in a | b}
    return {path: (x[0] + y[0], x[1] + y[1]) for path, (x, y) in pairs.items()}


def sum_samples(file: Samples) -> SampleTotals:
    """Return the sums over a file, up to the first damaged period."""
    totals = SampleTotals(file.header)
    try:
        _add_periods(totals, file)
    except Exception as error:  # the file may have any content
        totals.damage = f"{type(error).__name__}: {error}"
    return totals


def _add_periods(totals: SampleTotals, file: Samples) -> None:
    pid = file.header["pid"]
    places: list[Frame] = []
    paths: list[Path] = []
    stack_numbers: dict[int, int] = {}  # one object for each number, to save memory
    # Keys: thread, path, stack. Values: count, on-core ns, queued ns, elapsed ns, waits.
    rows: dict[tuple[int, int, int], list[Any]] = {}
    finished, spans = _SpanTotals(), _SpanTotals()
    num_recordings = num_spans = num_lines = 0
    lines_per_period = 1
    by_path: dict[int, int] = {}  # by number of the path
    by_stack: dict[int, int] = {}
    continues = False
    try:
        for period in file.periods:
            if not (type(period["cpu_ns"]) is type(period["rss"]) is int):
                raise TypeError("`cpu_ns` and `rss` must be integers")
            places += [Frame(*place) for place in period["places"]]
            paths += [tuple(path) for path in period["paths"]]
            for numbers, lines in period["stacks"]:
                frames = tuple([places[number] for number in numbers])
                totals.stacks.append(Stack(frames, tuple(lines)))
            if not continues:
                by_path, by_stack = {}, {}
            for thread, path, stack, count, on_core_ns, queued_ns, elapsed_ns, *waits in period[
                "counts"
            ]:
                row = rows.get((thread, path, stack))
                if row is None:
                    if stack >= len(totals.stacks) or path >= len(paths):
                        raise IndexError(f"stack {stack} or path {path} was not defined before")
                    row = rows[thread, path, stack] = [0, 0, 0, 0, {}]
                row[0] += count
                row[1] += on_core_ns
                row[2] += queued_ns
                row[3] += elapsed_ns
                for wait, ns in waits[0].items() if waits else ():
                    row[4][wait] = row[4].get(wait, 0) + ns
                if thread == pid:
                    by_path[path] = by_path.get(path, 0) + count
                    number = stack_numbers.setdefault(stack, stack)
                    by_stack[number] = by_stack.get(number, 0) + count
            if len(period["recordings"]) > num_recordings:
                # Another recording started: its span counts start from zero.
                num_recordings, finished = len(period["recordings"]), spans
            spans = finished.plus(period["spans"], spans)
            if continues:
                num_spans -= len(totals.periods.pop().spans)  # this line continues it
            num_spans += len(spans)
            if num_spans > _MAX_SPANS:
                raise ValueError(f"it has more than {_MAX_SPANS:,} spans in all periods")
            num_lines += not period.get("early")
            continues = bool(period.get("early") or num_lines % lines_per_period)
            counts = sums((paths[path], count) for path, count in by_path.items())
            totals.periods.append(
                Period(period["t"], dict(spans), period["cpu_ns"], period["rss"], counts, by_stack)
            )
            if len(totals.periods) >= _MAX_PERIODS and not continues:
                totals.periods = _joined_in_pairs(totals.periods)
                num_spans = sum(len(joined.spans) for joined in totals.periods)
                num_lines, lines_per_period = 0, 2 * lines_per_period
            totals.threads = [ThreadTotals(*thread) for thread in period["threads"]]
            totals.own_ns = period["own_ns"]
            totals.facts = dict(period["facts"])
            if not all(
                isinstance(x, str) for x in itertools.chain(*period.get("problems", {}).items())
            ):
                raise TypeError("`problems` must be texts")
            if not all(map(_is_path, period["recordings"])):
                raise TypeError("`recordings` must be paths")
            executed = period.get("executed", {}).get("command", [])
            if not all(isinstance(text, str) for text in executed):
                raise TypeError("`executed` must have a command of texts")
            for other in map(UnrecordedProcess._make, period.get("others", ())):
                if [*map(type, other)] != [int, int, str, int]:
                    raise TypeError("`others` must be three numbers and a command each")
                totals.descendants[other.pid] = other
            totals.last_period = period
    finally:
        totals.samples = [
            Sample(thread, paths[path], stack, *row) for (thread, path, stack), row in rows.items()
        ]


def _joined_in_pairs(periods: list[Period]) -> list[Period]:
    """Return half as many periods, of twice the length. Their number must be even."""
    return [
        second._replace(
            by_path=sums((*first.by_path.items(), *second.by_path.items())),
            by_stack=sums((*first.by_stack.items(), *second.by_stack.items())),
        )
        for first, second in zip(periods[::2], periods[1::2], strict=True)
    ]


def _is_path(text: Any) -> bool:
    """Return whether a value is a text that the system accepts as a path."""
    try:
        return "\0" not in text and all(len(os.fsencode(x)) < 256 for x in text.split("/"))
    except (TypeError, AttributeError, UnicodeEncodeError):
        return False


class _SpanTotals(SpanTotals):
    """Count and total ns by path."""

    def plus(self, spans: list[list[Any]], previous: Mapping[Path, object]) -> _SpanTotals:
        """Return the totals plus a period's. `previous` path tuples are reused to save memory."""
        interned = {path: path for path in previous}
        sums = _SpanTotals(self)
        for names, _, count, total_ns, _ in spans:
            path = tuple(names)
            path = interned.get(path, path)
            old_count, old_ns = sums.get(path, (0, 0))
            sums[path] = old_count + count, old_ns + total_ns
        return sums
