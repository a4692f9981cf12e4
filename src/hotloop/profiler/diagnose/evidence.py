"""Evidence for rules: a session, with what several of them need worked out once.

A rule asks what time the program would be without. That is the time of what the program waits for:
its main process, or, while that waits, the processes that work meanwhile.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.diagnosis import Diagnosis
from hotloop.profiler.session import Frame, Process, Sample, Session, Stack, is_library
from hotloop.profiler.session.gpu import gpu_use
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.purpose import Purpose
from hotloop.profiler.session.stages import Leaf, Share, stage_by_key, user_leaf

# Fewer samples than half a second's tell nothing of shares: at 50, one of 20 % is known to ±11
# points, at 200 to ±6.
MIN_SAMPLES = 50
# Blocked in one of these, a thread waits for another process or thread.
_WAITS = re.compile(
    r"/(multiprocessing|concurrent/futures|asyncio|ray)/|"
    r"/(threading|queue|selectors|subprocess|socket|socketserver|multiprocess)\.py$"
)


# What calls the function that a process or thread was given.
_STARTS = re.compile(r"/(multiprocessing|concurrent/futures)/|/threading\.py$")
# Functions that Python makes of parts of a line.
PARTS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
# What a thread is blocked on while another one of the program may be at work for it. Others, as the
# network or a disk, are nobody's of the program.
_HANDED_OVER = {"pipe", "events", "lock", "something", "child", None}
# Calls that wait for another thread or process, by what the user's line says.
_WAITING_CALLS = {"acquire", "get", "put", "wait", "join", "result", "recv", "poll", "map"}


class Row(NamedTuple):
    """Samples of a thread in one place.

    Attributes:
        weight: what a nanosecond of it is of the whole program's.
    """

    process: Process
    sample: Sample
    stack: Stack
    stage: str
    leaf: Leaf
    weight: float

    @property
    def ns(self) -> float:
        """Its time, of the whole program's."""
        return self.weight * self.sample.elapsed_ns


class Evidence:
    """A session's numbers, each worked out when it is first asked for."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.main = session.main
        self._rows: dict[int, dict[int, list[Row]]] = {}
        self._purposes: dict[int, Purpose] = {}

    # --- time -------------------------------------------------------------------------------------

    @property
    def whole_ns(self) -> int:
        """How long the program took."""
        return max(1, self.session.end_ns - self.session.start_ns)

    @property
    def cpu_ns(self) -> int:
        """Of all processes together."""
        return sum(one.cpu_ns for one in self.session.processes)

    def gain(self, saved_ns: float, *, crowds_out: bool = False) -> float:
        """How many times as fast the program is without some of its time.

        A fiftieth always stays: what a profile of a hundred samples a second can't tell from zero.

        Args:
            crowds_out: what is removed runs much Python in between, which the rest finds the
                caches full of. Of a bandit sweep, what stays took 1.2 to 1.5 times as long beside
                a cause of 40 to 65 % of the time: a third of its share.
        """
        share = self.share(saved_ns)
        stays = 1.0 - share
        if crowds_out:
            stays *= 1.0 - share / 3
        return 1.0 / max(0.02, stays)

    def share(self, ns: float) -> float:
        """Of the whole program's time."""
        return ns / self.whole_ns

    # --- samples ----------------------------------------------------------------------------------

    def rows_of(self, process: Process, thread: int | None = None) -> list[Row]:
        """Of a process's main thread, or of another one, with weight 1."""
        if process.pid not in self._rows:
            stages = stage_by_key(process, by_name=False)
            leaves = [user_leaf(stack) if stack.frames else _NOWHERE for stack in process.stacks]
            # All threads at once: there may be a thousand.
            by_thread: dict[int, list[Row]] = {}
            for sample in process.samples:
                stack = process.stacks[sample.stack]
                if stack.frames:
                    stage = stages[sample.path, sample.stack]
                    row = Row(process, sample, stack, stage, leaves[sample.stack], 1.0)
                    by_thread.setdefault(sample.thread, []).append(row)
            self._rows[process.pid] = by_thread
        return self._rows[process.pid].get(process.pid if thread is None else thread, [])

    def waited_ns(self, process: Process) -> int:
        """How long a main thread was blocked by others."""
        return sum(row.sample.blocked_ns for row in self.rows_of(process) if waits(row))

    def busy_ns(self, process: Process, thread: int | None = None) -> int:
        """How long it was not, be it on a core, queued for one, or asleep in an environment."""
        rows = self.rows_of(process, thread)
        waited = sum(row.sample.blocked_ns for row in rows if waits(row))
        return sum(row.sample.elapsed_ns for row in rows) - waited

    @cached_property
    def working(self) -> list[Process]:
        """The processes that main waits for, if it waits for a tenth of the time; else none."""
        main = self.main
        if self.waited_ns(main) < 0.1 * self.whole_ns:
            return []
        return [
            one
            for one in self.session.processes
            if one is not main and self.busy_ns(one) > 0.02 * self.whole_ns
        ]

    @cached_property
    def other_threads(self) -> list[int]:
        """Threads of main's that run the user's code, for a fiftieth of the time at least.

        What a library's own do (a pool's, a queue's) is part of waiting for what they hand on.
        """
        main = self.main
        numbers = {
            sample.thread for sample in main.samples if positions(main.stacks[sample.stack])
        } - {main.pid, 0}
        return [one for one in sorted(numbers) if self.busy_ns(main, one) > 0.02 * self.whole_ns]

    @cached_property
    def rows(self) -> list[Row]:
        """Of all that the program's time depends on.

        What main does, and for the time in which it waits for other processes or threads of the
        program, what those do. Such that work side by side count once: each with its share of the
        busiest one's time. What it waits for in vain is main's own.
        """
        rows = [row for row in self.rows_of(self.main) if not waits(row)]
        waiting = [row for row in self.rows_of(self.main) if waits(row)]
        waited = sum(row.sample.elapsed_ns for row in waiting)
        others = [(one, one.pid) for one in self.working]
        if waited >= 0.1 * self.whole_ns:
            others += [(self.main, thread) for thread in self.other_threads]
        busy = [self.busy_ns(*one) for one in others]
        if not others or max(busy) <= 0:
            return rows + waiting
        side_by_side = sum(busy) / max(busy)
        # More than main waits for is done while it works itself.
        weight = min(1.0, waited / max(busy)) / side_by_side if waited else 0.0
        for process, thread in others:
            rows += [
                row._replace(weight=weight)
                for row in self.rows_of(process, thread)
                if not waits(row)
            ]
        unexplained = 1.0 - min(1.0, max(busy) / waited) if waited else 0.0
        if unexplained > 0.2:
            rows += [row._replace(weight=unexplained) for row in waiting]
        return rows

    @cached_property
    def waited_at(self) -> Leaf | None:
        """The user's line at which main waits for other processes and threads the longest."""
        waiting = (row for row in self.rows_of(self.main) if waits(row) and positions(row.stack))
        return next((leaf for leaf, _ in by_line(waiting)), None)

    @cached_property
    def num_samples(self) -> int:
        """Of all rows."""
        return sum(row.sample.count for row in self.rows)

    @property
    def is_sampled(self) -> bool:
        """Whether there are enough samples to speak of shares."""
        return self.num_samples >= MIN_SAMPLES

    def stage_ns(self, *stages: str) -> float:
        """Time in some stages."""
        return spent(row for row in self.rows if row.stage in stages).ns

    def purpose(self, row: Row) -> str:
        """`act` or `update`: what code is for that is known by its place alone."""
        process = row.process
        if process.pid not in self._purposes:
            self._purposes[process.pid] = Purpose(
                (other.stack, other.stage) for other in self.rows_of(process)
            )
        return self._purposes[process.pid].of(row.stack)

    # --- spans ------------------------------------------------------------------------------------

    def spans(self, process: Process, *names: str) -> tuple[int, int]:
        """Count and total nanoseconds of a process's spans, those within one another once."""
        count = total = 0
        for path, node in process.tree.walk():
            if node.name in names and not set(path[:-1]).intersection(names):
                count += node.count
                total += node.total_ns
        return count, total

    def spans_of_all(self, *names: str) -> tuple[int, int]:
        """Of all processes."""
        found = [self.spans(process, *names) for process in self.session.processes]
        return sum(count for count, _ in found), sum(total for _, total in found)

    def mean_ns(self, name: str) -> float:
        """Of main's spans of a name, less their waiting for a core; infinite: there are none."""
        count, total_ns = self.spans(self.main, name)
        within = spent(row for row in self.rows_of(self.main) if name in row.sample.path)
        queued = within.queued_ns / within.ns if within.ns else 0.0
        return total_ns / count * max(0.0, 1.0 - queued) if count else float("inf")

    def fact(self, name: str) -> float:
        """What hooks have seen in any process; 0: nothing."""
        return max(one.facts.get(name, 0.0) for one in self.session.processes)

    def lines_calling(self, names: frozenset[str]) -> tuple[Leaf, ...]:
        """The first line of each of the user's files that calls one of some names."""
        files = dict.fromkeys(
            frame.file
            for row in self.rows_of(self.main)
            for frame in row.stack.frames
            if not is_library(frame)
        )
        return tuple(
            Leaf("<module>", file, line)
            for file in files
            if (line := source.line_calling(file, names))
        )

    # --- GPU --------------------------------------------------------------------------------------

    @cached_property
    def gpu(self) -> Host | None:
        """What windows on the GPU say, and what the host did in them; None: there are none."""
        use = gpu_use(self.session)
        return None if use is None else Host(use)

    # --- words ------------------------------------------------------------------------------------

    @property
    def target(self) -> str:
        """The program and its arguments, as they follow `python`."""
        command = self.session.command or ["SCRIPT"]
        if "hotloop.profiler.collect.script" in command:  # ours, with its settings
            return shlex.join(command[command.index("hotloop.profiler.collect.script") + 2 :])
        return shlex.join(command[1:] or command)

    @property
    def profile_again(self) -> str:
        """Profile once more, with the same options, and compare."""
        before = self.session.directory or "BEFORE"
        options = self.session.about.get("options") or []
        names = (f"{before.rstrip('/')}-after{number}" for number in ("", *range(2, 100)))
        after = next((name for name in names if not Path(name).exists()), "AFTER")
        again = shlex.join(["hotloop", "profile", *options, "--out", after])
        return f"{again} {self.target} && hotloop compare {shlex.join([before, after])}"


_NOWHERE = Leaf("?", "?", 0)


class Position(NamedTuple):
    """A line of a function of the user's."""

    frame: Frame
    line: int


def given_at(stack: Stack) -> int:
    """The innermost frame that calls what a process or thread was given; −1: there is none."""
    calls = (i for i, frame in enumerate(stack.frames) if _STARTS.search(frame.file))
    return max(calls, default=-1)


@lru_cache(maxsize=65536)
def below(stack: Stack) -> tuple[Frame, ...]:
    """The library's frames below the innermost one of the user's, from the outermost in."""
    frames = stack.frames
    last = max((i for i, frame in enumerate(frames) if not is_library(frame)), default=-1)
    return frames[last + 1 :]


@lru_cache(maxsize=65536)
def positions(stack: Stack) -> tuple[Position, ...]:
    """The user's lines of a stack, from the innermost out.

    Comprehensions are part of the line that they stand in. What a thread or process was given is
    the outermost: below it, a fork has its parent's.
    """
    frames = stack.frames
    begin = given_at(stack)
    if all(map(is_library, frames[begin + 1 :])):
        begin = -1
    own = [
        Position(frames[i], stack.lines[i] or frames[i].first_line)
        for i in range(len(frames) - 1, begin, -1)
        if not is_library(frames[i])
    ]
    return tuple(one for one in own if not one.frame.function.endswith(PARTS)) or tuple(own[:1])


class Spent(NamedTuple):
    """Time of some rows."""

    ns: float
    on_core_ns: float
    queued_ns: float
    samples: int


def spent(rows: Iterable[Row]) -> Spent:
    """Add up rows, by their weights."""
    ns = on_core = queued = 0.0
    samples = 0
    for row in rows:
        sample = row.sample
        ns += row.ns
        on_core += row.weight * sample.on_core_ns
        queued += row.weight * sample.queued_ns
        samples += sample.count
    return Spent(ns, on_core, queued, samples)


def by_line(rows: Iterable[Row]) -> list[tuple[Leaf, Share]]:
    """The user's lines, the dearest first; rows with their weights."""
    found: dict[Leaf, Share] = {}
    for row in rows:
        sample, weight = row.sample, row.weight
        found.setdefault(row.leaf, Share()).add(
            round(weight * sample.elapsed_ns),
            round(weight * sample.on_core_ns),
            round(weight * sample.queued_ns),
            sample.count,
        )
    return sorted(found.items(), key=lambda item: -item[1].elapsed_ns)


def places_of(rows: Iterable[Row], at_most: int = 6) -> tuple[Leaf, ...]:
    """The user's dearest lines of some rows."""
    return tuple(leaf for leaf, _ in by_line(rows)[:at_most])


def told_lines(evidence: Evidence, rows: Iterable[Row], at_most: int = 3) -> str:
    """The dearest lines in words: "31 % at agent.py:40 in choose, 12 % at …"."""
    lines = [
        (leaf, share)
        for leaf, share in by_line(rows)
        if share.elapsed_ns >= 0.01 * evidence.whole_ns
    ][:at_most]
    return ", ".join(
        f"{evidence.share(share.elapsed_ns):.0%} at {place(leaf)}" for leaf, share in lines
    )


def place(leaf: Leaf) -> str:
    """A line in words."""
    return f"{short(leaf.file)}:{leaf.line} in {leaf.function}"


def short(file: str) -> str:
    """A file's last two parts."""
    return "/".join(file.replace("\\", "/").split("/")[-2:])


def waits(row: Row) -> bool:
    """Whether a thread was blocked by others of the program, for the most part of these samples."""
    sample = row.sample
    if sample.blocked_ns < 0.5 * sample.elapsed_ns:
        return False
    on = max(sample.waits, key=lambda one: sample.waits[one], default=None)
    if on not in _HANDED_OVER or any("/subprocess.py" in frame.file for frame in row.stack.frames):
        return False
    if on == "pipe" or row.stage == "wait" or _is_wait(row.stack.frames[-1]):
        return True
    return on is not None and runs_user_code(row.stack) and bool(_WAITING_CALLS & _called(row.leaf))


@lru_cache(maxsize=4096)
def _called(leaf: Leaf) -> frozenset[str]:
    return source.names_called(leaf.file, source.statement_at(leaf.file, leaf.line))


@lru_cache(maxsize=65536)
def _is_wait(frame: Frame) -> bool:
    return bool(_WAITS.search(frame.file))


def user_frame(stack: Stack) -> Frame | None:
    """The innermost frame of the user's own; None: there is none."""
    return next((frame for frame in reversed(stack.frames) if not is_library(frame)), None)


def runs_user_code(stack: Stack) -> bool:
    """Whether the innermost frame is the user's: what runs is its own line, or C called there."""
    return bool(stack.frames) and not is_library(stack.frames[-1])


Rule = Callable[[Evidence], Diagnosis | None]
"""A pure function of what was recorded, and of the sources that it refers to."""
