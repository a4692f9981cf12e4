"""The samples of one process, added up: what is left of a file once it is read.

A file of ten minutes is some megabytes of text, and several times that as Python's objects. One
after another is added up and let go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hotloop.profiler.collect.samples import Samples
from hotloop.profiler.session import (
    Frame,
    Period,
    Process,
    Sample,
    Stack,
    ThreadTimes,
    Uncovered,
)

Path = tuple[str, ...]


@dataclass
class Sampled:
    """A file of samples.

    Attributes:
        about: its first line.
        last: its last period, as it was written; empty: there is none.
        others: descendants that were seen, by number, without any that left a recording.
        damage: why what follows was left out; empty: nothing was.
        stacks, samples, periods, threads, own_ns, facts: as of `Process`.
    """

    about: dict[str, Any]
    last: dict[str, Any] = field(default_factory=dict)
    others: dict[int, Uncovered] = field(default_factory=dict)
    damage: str = ""
    stacks: list[Stack] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    periods: list[Period] = field(default_factory=list)
    threads: list[ThreadTimes] = field(default_factory=list)
    own_ns: int = 0
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def identity(self) -> tuple[int, int, str, str]:
        """What is the same of two copies of one file."""
        about = self.about
        return about["pid"], about["start_ns"], about["boot_id"], about["component"]

    @property
    def end_ns(self) -> int | None:
        """Of the last period; None: there is none."""
        return self.last.get("t")

    def add_to(self, process: Process) -> None:
        """A program that replaced itself by another leaves two files, one after the other."""
        about, first = self.about, len(process.stacks)
        process.command = list(about.get("command", ()))
        process.interval_ns = int(about.get("interval_s", 0.0) * 1e9)
        process.cores = int(about.get("cores", 0))
        process.stacks += self.stacks
        if not first:
            process.samples += self.samples
            process.periods += self.periods
        else:
            process.samples += [one._replace(stack=first + one.stack) for one in self.samples]
            process.periods += [
                one._replace(by_stack={first + stack: n for stack, n in one.by_stack.items()})
                for one in self.periods
            ]
        if self.periods:
            process.threads, process.own_ns = self.threads, self.own_ns
            process.facts = self.facts


def add_up(file: Samples) -> Sampled:
    """All periods of a file; of a damaged one those before the damage."""
    found = Sampled(file.about, file.periods[-1] if file.periods else {})
    try:
        _add_periods(found, file)
        for period in file.periods:
            for pid, parent_pid, command, cpu_ns in period.get("others", ()):
                found.others[pid] = Uncovered(pid, parent_pid, command, cpu_ns)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        found.damage = f"{type(error).__name__}: {error}"
    return found


def _add_periods(found: Sampled, file: Samples) -> None:
    pid = file.about["pid"]
    places: list[Frame] = []
    paths: list[Path] = []
    # By the numbers of thread, path and stack: count, on core, queued, elapsed, waits.
    totals: dict[tuple[int, int, int], list[Any]] = {}
    ended, spans = _Spans(), _Spans()
    num_recordings = 0
    by_path: dict[Path, int] = {}
    by_stack: dict[int, int] = {}
    is_early = False
    try:
        for period in file.periods:
            places += [Frame(*place) for place in period["places"]]
            paths += [tuple(path) for path in period["paths"]]
            for numbers, lines in period["stacks"]:
                frames = tuple([places[number] for number in numbers])
                found.stacks.append(Stack(frames, tuple(lines)))
            if not is_early:
                by_path, by_stack = {}, {}
            for thread, path, stack, count, on_core_ns, queued_ns, elapsed_ns, *more in period[
                "counts"
            ]:
                total = totals.get((thread, path, stack))
                if total is None:
                    if stack >= len(found.stacks) or path >= len(paths):
                        raise IndexError(f"stack {stack} or path {path} was never told of")
                    total = totals[thread, path, stack] = [0, 0, 0, 0, {}]
                total[0] += count
                total[1] += on_core_ns
                total[2] += queued_ns
                total[3] += elapsed_ns
                for wait, ns in more[0].items() if more else ():
                    total[4][wait] = total[4].get(wait, 0) + ns
                if thread == pid:
                    by_path[paths[path]] = by_path.get(paths[path], 0) + count
                    by_stack[stack] = by_stack.get(stack, 0) + count
            if len(period["recordings"]) > num_recordings:
                # Another recording began: its spans are counted from zero again.
                num_recordings, ended = len(period["recordings"]), spans
            spans = ended.plus(period["spans"], spans)
            if is_early:
                found.periods.pop()  # it goes on, with this line
            is_early = bool(period.get("early"))
            found.periods.append(
                Period(period["t"], dict(spans), period["cpu_ns"], period["rss"], by_path, by_stack)
            )
            found.threads = [ThreadTimes(*thread) for thread in period["threads"]]
            found.own_ns = period["own_ns"]
            found.facts = dict(period["facts"])
    finally:
        found.samples = [
            Sample(thread, paths[path], stack, *row)
            for (thread, path, stack), row in totals.items()
        ]


class _Spans(dict[Path, tuple[int, int]]):
    """Count and total ns by path."""

    def plus(self, spans: list[list[Any]], before: Mapping[Path, object]) -> _Spans:
        """With those of a period; of one path there may be several kinds.

        Args:
            before: what came before, whose paths are taken: of each there is one alone in memory.
        """
        known = {path: path for path in before}
        sums = _Spans(self)
        for names, _, count, total_ns, _ in spans:
            path = tuple(names)
            path = known.get(path, path)
            counted, passed_ns = sums.get(path, (0, 0))
            sums[path] = counted + count, passed_ns + total_ns
        return sums
