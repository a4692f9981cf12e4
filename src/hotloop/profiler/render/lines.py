"""Time by user's line and by function, with the source code around the lines.

Importing and starting are excluded, since the report shows them as a stage.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hotloop.base.files import read_regular
from hotloop.profiler.session import (
    COMPREHENSION,
    Frame,
    ProfiledProcess,
    Sample,
    Session,
    enclosing_function,
    is_library,
)
from hotloop.profiler.session.stages import TimeSum, path_weights, stage_by_key
from hotloop.profiler.session.syntax import split_lines

# Minimum share of a reported line.
MIN_SHARE = 0.01
# Lines of context before and after a line.
_CONTEXT = 3
# Only these files are read, since a session from an untrusted source may name any file.
_SOURCES = (".py", ".pyw")
_MAX_BYTES = 4_000_000
# Waits of a thread during which other threads or processes of its program may work.
_INTERNAL_WAITS = ("pipe", "events", "lock")


class LineCost(NamedTuple):
    """Time of a line of the user's code, with the library code that it calls.

    Attributes:
        stage: stage with most of the line's time.
        times: the line's times.
        share: share of the threads' time.
        blocked_on: what blocks it most, see `collect.samples`. Empty if it is blocked for less
            than half of the time, or if the cause is unknown.
    """

    file: str
    line: int
    function: str
    stage: str
    times: TimeSum
    share: float
    blocked_on: str = ""


class FunctionCost(NamedTuple):
    """Time of a user's function or of a library's public function.

    Attributes:
        own_share: share of the time in its own lines and in unlisted functions that they call.
        inclusive_share: share of the time in it and in all that it calls.
    """

    name: str
    file: str
    first_line: int
    is_user: bool
    own_share: float
    inclusive_share: float


@dataclass
class ThreadCosts:
    """Costs of one thread, or of several similar threads together.

    Attributes:
        name: such as "main process", "all 24 workers", "thread loader of main".
        lines, functions: most expensive first.
        waiting_share: share of the time that is excluded, because the threads wait for others.
    """

    name: str
    lines: list[LineCost] = field(default_factory=list)
    functions: list[FunctionCost] = field(default_factory=list)
    waiting_share: float = 0.0


def thread_costs(
    name: str,
    threads: Iterable[tuple[ProfiledProcess, int]],
    whole_ns: float,
    *,
    with_waiting: bool = True,
) -> ThreadCosts:
    """Return the costs of threads, without importing and starting.

    Args:
        name: name of the threads.
        threads: process and thread number of each thread.
        whole_ns: time that corresponds to a share of 1.
        with_waiting: whether to include the time of waiting for the program's other threads and
            processes. Exclude it for workers.
    """
    whole_ns = whole_ns or 1.0
    lines: dict[tuple[str, int], _TimeSpent] = {}
    own_ns: dict[_FunctionKey, float] = {}
    inclusive_ns: dict[_FunctionKey, float] = {}
    waiting_ns = 0
    # Add up all stacks by line and by function, then sort by cost.
    for process, thread in threads:
        by_stack, waited_ns = _by_stack(process, thread, with_waiting=with_waiting)
        waiting_ns += waited_ns
        for number, spent in by_stack.items():
            stack = process.stacks[number]
            if not stack.frames:
                continue
            _add_line(lines, stack.frames, stack.lines, spent)
            elapsed_ns = spent.times.elapsed_ns
            keys = [key for frame in stack.frames if (key := _function_key(frame)) is not None]
            if keys:
                own_ns[keys[-1]] = own_ns.get(keys[-1], 0.0) + elapsed_ns
            for key in set(keys):
                inclusive_ns[key] = inclusive_ns.get(key, 0.0) + elapsed_ns
    return ThreadCosts(
        name,
        [
            LineCost(file, line, spent.function, spent.stage, spent.times, share, spent.blocked_on)
            for (file, line), spent in sorted(
                lines.items(), key=lambda item: (-item[1].times.elapsed_ns, item[0])
            )
            if (share := spent.times.elapsed_ns / whole_ns) >= MIN_SHARE
        ],
        sorted(
            (
                FunctionCost(*key, own_ns.get(key, 0.0) / whole_ns, ns / whole_ns)
                for key, ns in inclusive_ns.items()
            ),
            key=lambda item: (-item.own_share, -item.inclusive_share, item.name),
        ),
        waiting_ns / whole_ns,
    )


class _FunctionKey(NamedTuple):
    """The key of a function in the table."""

    name: str
    file: str
    first_line: int
    is_user: bool


@lru_cache(maxsize=65536)
def _function_key(frame: Frame) -> _FunctionKey | None:
    """Return the key of a frame's function, None if the frame counts for its caller."""
    if not is_library(frame):
        if COMPREHENSION.search(frame.function):
            return None
        return _FunctionKey(frame.function, frame.file, frame.first_line, True)
    if frame.file.startswith("<") or "<" in frame.function:
        return None
    if any(part.startswith("_") for part in frame.function.split(".")):
        return None
    return _FunctionKey(frame.function, frame.file, frame.first_line, False)


@dataclass
class _TimeSpent:
    """Time of one stack or line."""

    function: str = ""
    times: TimeSum = field(default_factory=TimeSum)
    by_stage: dict[str, int] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        return max(self.by_stage, key=lambda stage: self.by_stage[stage])

    @property
    def blocked_on(self) -> str:
        if self.times.blocked_ns < 0.5 * self.times.elapsed_ns:
            return ""
        return max(self.waits, key=lambda wait: self.waits[wait], default="")

    def add(
        self, times: TimeSum, by_stage: Mapping[str, int], waits: Mapping[str, float], weight: float
    ) -> None:
        self.times.add(times)
        for stage, ns in by_stage.items():
            self.by_stage[stage] = self.by_stage.get(stage, 0) + ns
        for wait, ns in waits.items():
            self.waits[wait] = self.waits.get(wait, 0.0) + weight * ns


def _by_stack(
    process: ProfiledProcess, thread: int, *, with_waiting: bool
) -> tuple[dict[int, _TimeSpent], int]:
    """Return a thread's time by stack without the imports, and its excluded waiting time."""
    stages, weights = stage_by_key(process), path_weights(process, thread)
    by_stack: dict[int, _TimeSpent] = {}
    waiting_ns = 0
    for sample in process.samples:
        if sample.thread != thread:
            continue
        stage = stages[sample.path, sample.stack]
        if stage == "import":
            continue
        weight = weights.get(sample.path, 1.0)
        times = TimeSum.of(sample, weight)
        if not with_waiting and _waits_for_others(sample, stage):
            waiting_ns += times.elapsed_ns
            continue
        spent = by_stack.setdefault(sample.stack, _TimeSpent())
        spent.add(times, {stage: times.elapsed_ns}, sample.waits, weight)
    return by_stack, waiting_ns


def _waits_for_others(sample: Sample, stage: str) -> bool:
    """Return whether a thread mostly waited for other threads or processes of its program."""
    if sample.blocked_ns < 0.5 * sample.elapsed_ns:
        return False
    wait = max(sample.waits, key=lambda name: sample.waits[name], default="")
    return stage == "wait" or wait in _INTERNAL_WAITS


def _add_line(
    lines: dict[tuple[str, int], _TimeSpent],
    frames: Sequence[Frame],
    numbers: Sequence[int],
    spent: _TimeSpent,
) -> None:
    for frame, number in zip(reversed(frames), reversed(numbers), strict=True):
        if is_library(frame):
            continue
        line = lines.setdefault((frame.file, number or frame.first_line), _TimeSpent())
        line.function = line.function or enclosing_function(frame.function)
        line.add(spent.times, spent.by_stage, spent.waits, 1.0)
        return


# --- source ---------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """Consecutive lines of a file.

    Attributes:
        first_line: number of the first line.
        text: the lines' text.
        hot_lines: costs of lines that took time, by number.
    """

    file: str
    first_line: int
    text: list[str]
    hot_lines: dict[int, LineCost]


class SourceFiles:
    """The source files of a session's lines, as far as they exist.

    Args:
        session: the session, with the time of its recording.
    """

    def __init__(self, session: Session) -> None:
        self._started_s = _started_s(session)
        self._files: dict[str, tuple[list[str], str]] = {}

    def text(self, file: str, line: int) -> str:
        """Return a line's text, empty if there is none."""
        lines = self._read(file)[0]
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def problem(self, file: str) -> str:
        """Return why a file's lines are missing or may have changed, empty if they are valid."""
        return self._read(file)[1]

    def listings(self, lines: Sequence[LineCost], num_lines: int) -> list[Listing]:
        """Return the code around the first lines, with overlapping parts merged.

        Args:
            lines: costs of lines, most expensive first.
            num_lines: number of lines to show with their context.
        """
        windows: list[tuple[str, int, int]] = []
        for line in lines[:num_lines]:
            first, last = line.line - _CONTEXT, line.line + _CONTEXT
            near = [x for x in windows if x[0] == line.file and x[1] <= last and first <= x[2]]
            # Put the merged window in the place of the most expensive one.
            position = windows.index(near[0]) if near else len(windows)
            windows = [x for x in windows if x not in near]
            first = min([first, *(x[1] for x in near)])
            windows.insert(position, (line.file, first, max([last, *(x[2] for x in near)])))
        listings: list[Listing] = []
        for file, first, last in windows:
            first = max(1, first)
            text = self._read(file)[0][first - 1 : last]
            hot_lines = {x.line: x for x in lines if x.file == file and first <= x.line <= last}
            if text:
                listings.append(Listing(file, first, text, hot_lines))
        return listings

    def _read(self, file: str) -> tuple[list[str], str]:
        if file not in self._files:
            self._files[file] = self._read_once(file)
        return self._files[file]

    def _read_once(self, file: str) -> tuple[list[str], str]:
        path = Path(file)
        if path.suffix not in _SOURCES:
            return [], "is not a Python file"
        try:
            if not path.is_file():
                return [], "no longer exists"
            status = path.stat()
            if status.st_size > _MAX_BYTES:
                return [], "is too large to show"
            lines = split_lines(read_regular(path))
        except (OSError, ValueError) as error:
            return [], f"can't be read ({type(error).__name__})"
        # The recorded start has a resolution of a second.
        is_newer = self._started_s is not None and status.st_mtime > self._started_s + 1
        return lines, "is newer than the profile: its lines may have changed" if is_newer else ""


def _started_s(session: Session) -> float | None:
    """Return the Unix time of the program's start, None if it was not recorded."""
    try:
        return datetime.strptime(session.metadata["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
