"""Evidence for rules: a session with derived numbers that several rules need.

A rule estimates the time that a program would save. Only the critical work counts: that of the main
process, and, while the main process waits, that of the processes that work meanwhile.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.profiler.diagnose import source
from hotloop.profiler.diagnose.limits import LIMITS
from hotloop.profiler.diagnose.sample_rows import SampleRow, with_polls, without_work_in_waits
from hotloop.profiler.session import Frame, ProfiledProcess, Session, Stack, is_library
from hotloop.profiler.session.catalogues import is_in
from hotloop.profiler.session.gpu import gpu_use
from hotloop.profiler.session.gpu_host import Host
from hotloop.profiler.session.purpose import PurposeClassifier
from hotloop.profiler.session.stages import CodeLine, TimeSum, innermost_user_line, stage_by_key
from hotloop.profiler.session.syntax import source_cache

# Functions that Python compiles from parts of a line.
INLINE_FUNCTIONS = ("<listcomp>", "<genexpr>", "<dictcomp>", "<setcomp>", "<lambda>")
# Waits during which another thread of the program may be working. The network and disks are outside
# the program.
_INTERNAL_WAITS = {"pipe", "events", "lock", "something", "child", None}
# Names on the user's line of calls that wait for another thread or process.
_WAITING_CALLS = {"acquire", "get", "put", "wait", "join", "result", "recv", "poll", "map"}


class Evidence:
    """Numbers derived from a session, each computed at first use."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.main = session.main
        self._rows: dict[int, dict[int, list[SampleRow]]] = {}
        self._purposes: dict[int, PurposeClassifier] = {}

    @property
    def training(self) -> dict[str, Any]:
        """Options of a hotloop training, see `run_facts`. Empty for other programs."""
        return self.session.metadata.get("training") or {}

    # --- time -------------------------------------------------------------------------------------

    @property
    def duration_ns(self) -> int:
        """Duration of the program."""
        return max(1, self.session.end_ns - self.session.start_ns)

    @property
    def cpu_ns(self) -> int:
        """CPU time of all processes together."""
        return sum(process.cpu_ns for process in self.session.processes)

    def gain(self, saved_ns: float, *, fills_caches: bool = False) -> float:
        """Return the program's speed-up if it no longer spends this time.

        Args:
            fills_caches: whether the removed code is a lot of Python that slows down the other code
                by filling the caches. In a bandit sweep, that took 1.2 to 1.5 times as long beside
                a cause of 40 to 65 % of the time, so a third of the cause's share is deducted.
        """
        share = self.share(saved_ns)
        remaining = 1.0 - share
        if fills_caches:
            remaining *= 1.0 - share / 3
        return 1.0 / max(LIMITS.remaining_share, remaining)

    def share(self, ns: float) -> float:
        """Return a time as a share of the program's duration."""
        return ns / self.duration_ns

    # --- samples ----------------------------------------------------------------------------------

    def rows_of(self, process: ProfiledProcess, thread: int | None = None) -> list[SampleRow]:
        """Return the rows of a process's main thread, or of another thread, with weight 1."""
        if process.pid not in self._rows:
            stages = stage_by_key(process, by_name=False)
            leaves = [
                innermost_user_line(stack) if stack.frames else _UNKNOWN for stack in process.stacks
            ]
            # Group all threads in one pass, since there may be a thousand.
            by_thread: dict[int, list[SampleRow]] = {}
            for sample in process.samples:
                stack = process.stacks[sample.stack]
                if stack.frames:
                    stage = stages[sample.path, sample.stack]
                    row = SampleRow(process, sample, stack, stage, leaves[sample.stack], 1.0)
                    by_thread.setdefault(sample.thread, []).append(row)
            self._rows[process.pid] = {
                number: rows if number == process.pid else without_work_in_waits(rows)
                for number, rows in by_thread.items()
            }
            if process is self.main:
                main_rows = self._rows[process.pid].get(process.pid, [])
                self._rows[process.pid][process.pid] = with_polls(
                    main_rows, self.session, restarts_processes=self.restarts_processes
                )
        return self._rows[process.pid].get(process.pid if thread is None else thread, [])

    def waited_ns(self, process: ProfiledProcess) -> int:
        """Return how long a main thread was blocked by other threads and processes."""
        return sum(row.sample.blocked_ns for row in self.rows_of(process) if is_waiting(row))

    def busy_ns(self, process: ProfiledProcess, thread: int | None = None) -> int:
        """Return the time that a thread was on a core, queued, or blocked outside the program."""
        rows = self.rows_of(process, thread)
        waited = sum(row.sample.blocked_ns for row in rows if is_waiting(row))
        return sum(row.sample.elapsed_ns for row in rows) - waited

    @cached_property
    def _unsampled_ns(self) -> int:
        """Time for which another profiler left out the main thread, since it waited."""
        if not self.session.metadata.get("recorded_by"):
            return 0
        sampled_ns = sum(row.sample.elapsed_ns for row in self.rows_of(self.main))
        return max(0, self.duration_ns - sampled_ns)

    @cached_property
    def _lanes(self) -> list[list[ProfiledProcess]]:
        """Processes that the main process waits for. Those that never overlap share a list.

        A program may start a child now and then. Such children replace each other, and their work
        adds up, unlike that of workers side by side.
        """
        main = self.main
        waited_ns = self.waited_ns(main) + self._unsampled_ns
        if waited_ns < LIMITS.wait_share * self.duration_ns:
            return []
        lanes: list[list[ProfiledProcess]] = []
        for process in sorted(self.session.processes, key=lambda process: process.start_ns):
            if process is not main and self.busy_ns(process):
                free_lanes = (lane for lane in lanes if lane[-1].end_ns <= process.start_ns)
                lane = next(free_lanes, None)
                if lane is None:
                    lanes.append(lane := [])
                lane.append(process)
        min_ns = LIMITS.present_share * self.duration_ns
        return [lane for lane in lanes if self._lane_busy_ns(lane) > min_ns]

    def _lane_busy_ns(self, lane: Iterable[ProfiledProcess]) -> int:
        return sum(map(self.busy_ns, lane))

    @cached_property
    def working_processes(self) -> list[ProfiledProcess]:
        """Processes that the main process waits for, if it waits for a tenth of the time."""
        return [process for lane in self._lanes for process in lane]

    @property
    def num_side_by_side(self) -> int:
        """Number of processes that work at the same time while the main process waits."""
        return len(self._lanes)

    @cached_property
    def restarts_processes(self) -> bool:
        """Whether the program starts processes again after others of its processes have ended."""
        children = [x for x in self.session.processes if x is not self.main]
        first_end_ns = min((child.end_ns for child in children), default=0)
        return sum(child.start_ns > first_end_ns for child in children) >= LIMITS.min_restarts

    @cached_property
    def other_threads(self) -> list[int]:
        """Other threads of the main process that run the user's code for 2 % of the time or more.

        The work of a library's own threads (a pool's, a queue's) is part of waiting for them.
        """
        main = self.main
        numbers = {
            sample.thread for sample in main.samples if user_positions(main.stacks[sample.stack])
        } - {main.pid, 0}
        min_ns = LIMITS.present_share * self.duration_ns
        return [number for number in sorted(numbers) if self.busy_ns(main, number) > min_ns]

    @cached_property
    def rows(self) -> list[SampleRow]:
        """Rows of all samples that determine the program's duration.

        These are the main thread's work and, while it waits for other processes or threads of the
        program, their work. Parallel work counts once: each worker has its share of the busiest
        one's time. A wait that no work explains stays with the main thread.
        """
        rows = [row for row in self.rows_of(self.main) if not is_waiting(row)]
        waiting = [row for row in self.rows_of(self.main) if is_waiting(row)]
        waited = sum(row.sample.elapsed_ns for row in waiting) + self._unsampled_ns
        workers = [(process, process.pid) for process in self.working_processes]
        busy = list(map(self._lane_busy_ns, self._lanes))
        if waited >= LIMITS.wait_share * self.duration_ns:
            workers += [(self.main, thread) for thread in self.other_threads]
            busy += [self.busy_ns(self.main, thread) for thread in self.other_threads]
        if not workers or max(busy) <= 0:
            return rows + waiting
        side_by_side = sum(busy) / max(busy)
        # Work beyond the main thread's waiting time overlaps with its own work.
        weight = min(1.0, waited / max(busy)) / side_by_side if waited else 0.0
        for process, thread in workers:
            rows += [
                row._replace(weight=weight)
                for row in self.rows_of(process, thread)
                if not is_waiting(row)
            ]
        unexplained = 1.0 - min(1.0, max(busy) / waited) if waited else 0.0
        if unexplained > LIMITS.unexplained_share:
            rows += [row._replace(weight=unexplained) for row in waiting]
        return rows

    @cached_property
    def longest_wait_line(self) -> CodeLine | None:
        """The user's line at which the main thread waits longest for processes and threads."""
        waiting = (
            row for row in self.rows_of(self.main) if is_waiting(row) and user_positions(row.stack)
        )
        return next((leaf for leaf, _ in time_by_line(waiting)), None)

    @cached_property
    def num_samples(self) -> int:
        """Number of samples in all rows."""
        return sum(row.sample.count for row in self.rows)

    @property
    def has_enough_samples(self) -> bool:
        """Whether there are enough samples to estimate shares."""
        return self.num_samples >= LIMITS.min_samples

    def stage_ns(self, *stages: str) -> float:
        """Return the time in some stages."""
        return total_time(row for row in self.rows if row.stage in stages).ns

    def purpose(self, row: SampleRow) -> str:
        """Return the purpose of a row's code, `act` or `update`, derived from its stack."""
        process = row.process
        if process.pid not in self._purposes:
            self._purposes[process.pid] = PurposeClassifier(
                (other.stack, other.stage) for other in self.rows_of(process)
            )
        return self._purposes[process.pid].classify_forward(row.stack)

    # --- spans ------------------------------------------------------------------------------------

    def span_totals(self, process: ProfiledProcess, *names: str) -> tuple[int, int]:
        """Return count and total nanoseconds of a process's spans. Nested ones count once."""
        count = total = 0
        for path, node in process.tree.walk():
            if node.name in names and not set(path[:-1]).intersection(names):
                count += node.count
                total += node.total_ns
        return count, total

    def span_totals_of_all(self, *names: str) -> tuple[int, int]:
        """Return count and total nanoseconds of the spans of all processes."""
        totals = [self.span_totals(process, *names) for process in self.session.processes]
        return sum(count for count, _ in totals), sum(total for _, total in totals)

    def mean_ns(self, name: str) -> float:
        """Return the mean of a main span without its time queued for a core, inf if none."""
        count, total_ns = self.span_totals(self.main, name)
        inside = total_time(row for row in self.rows_of(self.main) if name in row.sample.path)
        queued = inside.queued_ns / inside.ns if inside.ns else 0.0
        return total_ns / count * max(0.0, 1.0 - queued) if count else float("inf")

    def fact(self, name: str) -> float:
        """Return the maximum over processes of a value that hooks recorded, 0 if none."""
        return max(process.facts.get(name, 0.0) for process in self.session.processes)

    def lines_calling(self, names: frozenset[str]) -> tuple[CodeLine, ...]:
        """Return the first line in each of the user's files that calls one of the names."""
        files = dict.fromkeys(
            frame.file
            for row in self.rows_of(self.main)
            for frame in row.stack.frames
            if not is_library(frame)
        )
        return tuple(
            CodeLine("<module>", file, line)
            for file in files
            if (line := source.first_line_calling(file, names))
        )

    # --- GPU --------------------------------------------------------------------------------------

    @cached_property
    def gpu(self) -> Host | None:
        """GPU activity in the recorded windows with the host's work, None if there are none."""
        use = gpu_use(self.session)
        return None if use is None else Host(use)

    # --- text -------------------------------------------------------------------------------------

    @property
    def target(self) -> str:
        """The program and its arguments, as they follow `python`."""
        command = self.session.command or ["SCRIPT"]
        if "hotloop.profiler.collect.script" in command:  # hotloop's recorder and its settings
            return shlex.join(command[command.index("hotloop.profiler.collect.script") + 2 :])
        return shlex.join(command[1:] or command)

    @property
    def verify_command(self) -> str:
        """A command that profiles again with the same options and compares."""
        before = self.session.directory or "BEFORE"
        if self.session.metadata.get("recorded_by"):  # record again with that profiler
            return f"hotloop compare {shlex.quote(before)} AFTER"
        options = self.session.metadata.get("options") or []
        names = (f"{before.rstrip('/')}-after{number}" for number in ("", *range(2, 100)))
        after = next((name for name in names if not Path(name).exists()), "AFTER")
        again = shlex.join(["hotloop", "profile", *options, "--out", after])
        return f"{again} {self.target} && hotloop compare {shlex.join([before, after])}"


_UNKNOWN = CodeLine("?", "?", 0)


class CodePosition(NamedTuple):
    """A line in a user's function."""

    frame: Frame
    line: int

    @property
    def code_line(self) -> CodeLine:
        """The line with the name of its function."""
        return CodeLine(self.frame.function, self.frame.file, self.line)

    @property
    def called_names(self) -> frozenset[str]:
        """Names that its statement calls, see `source.names_called`."""
        return _called_names(self.frame.file, self.line)


def entry_index(stack: Stack) -> int:
    """Return the index of the innermost frame that calls a process or thread target, else −1."""
    calls = (i for i, frame in enumerate(stack.frames) if is_in("entries", frame))
    return max(calls, default=-1)


@lru_cache(maxsize=65536)
def library_frames(stack: Stack) -> tuple[Frame, ...]:
    """Return the library frames called by the innermost user frame, outermost first."""
    frames = stack.frames
    users = (i for i in range(len(frames) - 1, -1, -1) if not is_library(frames[i]))
    return frames[next(users, -1) + 1 :]


@source_cache(65536)
def user_positions(stack: Stack) -> tuple[CodePosition, ...]:
    """Return the user's lines in a stack, innermost first.

    A comprehension belongs to its line, and so does a lambda that is called where it is written.
    The target of a thread or process is the outermost frame, since a forked process also has its
    parent's frames.
    """
    frames = stack.frames
    begin = entry_index(stack)
    if all(map(is_library, frames[begin + 1 :])):
        begin = -1
    lines = [
        CodePosition(frames[i], stack.lines[i] or frames[i].first_line)
        for i in range(len(frames) - 1, begin, -1)
        if not is_library(frames[i])
    ]
    callers = zip_longest(lines, lines[1:])
    return tuple(at for at, caller in callers if not _is_inline(at, caller)) or tuple(lines[:1])


def _is_inline(at: CodePosition, caller: CodePosition | None) -> bool:
    """Return whether a frame is part of its caller's line: a comprehension or a lambda there."""
    if not at.frame.function.endswith(INLINE_FUNCTIONS):
        return False
    if not at.frame.function.endswith("<lambda>") or caller is None:
        return True
    file, line = caller.frame.file, caller.line
    return at.frame.file == file and at.line in source.statement_at(file, line)


class TimeTotals(NamedTuple):
    """Total time of some rows."""

    ns: float
    on_core_ns: float
    queued_ns: float
    samples: int


def total_time(rows: Iterable[SampleRow]) -> TimeTotals:
    """Return the weighted total time of some rows."""
    ns = on_core = queued = 0.0
    samples = 0
    for row in rows:
        sample = row.sample
        ns += row.ns
        on_core += row.weight * sample.on_core_ns
        queued += row.weight * sample.queued_ns
        samples += sample.count
    return TimeTotals(ns, on_core, queued, samples)


def time_by_line(rows: Iterable[SampleRow]) -> list[tuple[CodeLine, TimeSum]]:
    """Return the weighted time of each user's line, most expensive first."""
    shares: dict[CodeLine, TimeSum] = {}
    for row in rows:
        shares.setdefault(row.leaf, TimeSum()).add(TimeSum.of(row.sample, row.weight))
    return sorted(shares.items(), key=lambda item: -item[1].elapsed_ns)


def top_places(rows: Iterable[SampleRow], at_most: int = 6) -> tuple[CodeLine, ...]:
    """Return the most expensive of the user's lines in some rows, a library's if there are none."""
    rows = list(rows)
    users = [row for row in rows if user_positions(row.stack)]
    return tuple(leaf for leaf, _ in time_by_line(users or rows)[:at_most])


def describe_lines(evidence: Evidence, rows: Iterable[SampleRow], at_most: int = 3) -> str:
    """Return the most expensive lines as text: "31 % at agent.py:40 in choose, 12 % at …"."""
    lines = [
        (leaf, share)
        for leaf, share in time_by_line(rows)
        if share.elapsed_ns >= 0.01 * evidence.duration_ns
    ][:at_most]
    return ", ".join(
        f"{evidence.share(share.elapsed_ns):.0%} at {describe_place(leaf)}" for leaf, share in lines
    )


def describe_place(leaf: CodeLine) -> str:
    """Return a line as text: "agent.py:40 in choose"."""
    return f"{short_path(leaf.file)}:{leaf.line} in {leaf.function}"


def short_path(file: str) -> str:
    """Return the last two parts of a path."""
    return "/".join(file.replace("\\", "/").split("/")[-2:])


def is_waiting(row: SampleRow) -> bool:
    """Return whether the samples are mostly a wait for another thread or process of the program."""
    if not row.is_blocked:
        return False
    waits = row.sample.waits
    wait = max(waits, key=lambda name: waits[name], default=None)
    if wait in ("sleep", "child") and row.stage == "wait":
        return True  # see `with_polls`
    if wait == "sleep" and is_in("polls", row.stack.frames[-1]):
        return True
    if wait not in _INTERNAL_WAITS or any("/subprocess.py" in x.file for x in row.stack.frames):
        return False
    if wait == "pipe" or row.stage == "wait" or is_in("waits", row.stack.frames[-1]):
        return True
    return (
        wait is not None
        and runs_user_code(row.stack)
        and bool(_WAITING_CALLS & _called_names(row.leaf.file, row.leaf.line))
    )


@source_cache(65536)
def _called_names(file: str, line: int) -> frozenset[str]:
    return source.names_called(file, source.statement_at(file, line))


def innermost_user_frame(stack: Stack) -> Frame | None:
    """Return the innermost frame of the user's code, None if there is none."""
    return next((frame for frame in reversed(stack.frames) if not is_library(frame)), None)


def runs_user_code(stack: Stack) -> bool:
    """Return whether the innermost frame is the user's, so its line or C code called there runs."""
    return bool(stack.frames) and not is_library(stack.frames[-1])
