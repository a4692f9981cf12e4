"""The user's lines and the functions that time was spent in, and what stands in the source there.

What came before the loop, importing and starting, is left out: it is told as a stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from hotloop.profiler.session import Frame, Process, Sample, Session, is_library
from hotloop.profiler.session.stages import Share, path_weights, stage_by_key

# Less of the time than this is not worth a line.
MIN_SHARE = 0.01
# What is shown of a file around a line, before it and after.
_CONTEXT = 3
# A session says which files to read, and may come from anywhere.
_SOURCES = (".py", ".pyw")
_MAX_BYTES = 4_000_000
# What a thread is blocked on while others of its program are at work.
_OTHERS = ("pipe", "events", "lock")
# They are part of the function that they stand in, and run within it.
_COMPREHENSION = re.compile(r"(\.<locals>\.|^)<(listcomp|dictcomp|setcomp|genexpr)>.*")


class Line(NamedTuple):
    """A line of the user's: of each stack the innermost one, with all that it calls.

    Attributes:
        stage: that most of its time is in.
        part: of the time of the threads together.
        blocked_on: what it is mostly blocked on, see `collect.samples`; empty: it is not, for the
            most part, or nothing tells.
    """

    file: str
    line: int
    function: str
    stage: str
    share: Share
    part: float
    blocked_on: str = ""


class Function(NamedTuple):
    """A function of the user's, or a public one of a library's.

    Attributes:
        own: part of the time in its own lines, and in what they call that is no such function.
        inclusive: part of the time in it and in all that it calls.
    """

    name: str
    file: str
    first_line: int
    is_user: bool
    own: float
    inclusive: float


@dataclass
class Costs:
    """Threads of one kind, together.

    Attributes:
        name: "main", "all 24 workers", "thread loader of main".
        lines, functions: the dearest first.
        waiting: part of the time that is left out, since it waited for others' work.
    """

    name: str
    lines: list[Line] = field(default_factory=list)
    functions: list[Function] = field(default_factory=list)
    waiting: float = 0.0


def costs(
    name: str,
    threads: Iterable[tuple[Process, int]],
    whole_ns: float,
    *,
    with_waiting: bool = True,
) -> Costs:
    """What was spent where, after starting.

    Args:
        name: of the threads.
        threads: that are added up, each a process and a number.
        whole_ns: that shares are of.
        with_waiting: also where they wait for other threads and processes of the program. What a
            worker is for tells where it works.
    """
    whole_ns = whole_ns or 1.0
    lines: dict[tuple[str, int], _Spent] = {}
    own: dict[_Place, float] = {}
    inclusive: dict[_Place, float] = {}
    waiting_ns = 0
    for process, thread in threads:
        by_stack, waited_ns = _by_stack(process, thread, with_waiting=with_waiting)
        waiting_ns += waited_ns
        for number, spent in by_stack.items():
            stack = process.stacks[number]
            if not stack.frames:
                continue
            _add_line(lines, stack.frames, stack.lines, spent)
            elapsed_ns = spent.share.elapsed_ns
            places = [place for frame in stack.frames if (place := _place(frame)) is not None]
            if places:
                own[places[-1]] = own.get(places[-1], 0.0) + elapsed_ns
            for place in set(places):
                inclusive[place] = inclusive.get(place, 0.0) + elapsed_ns
    return Costs(
        name,
        [
            Line(file, line, spent.function, spent.stage, spent.share, part, spent.blocked_on)
            for (file, line), spent in sorted(
                lines.items(), key=lambda item: (-item[1].share.elapsed_ns, item[0])
            )
            if (part := spent.share.elapsed_ns / whole_ns) >= MIN_SHARE
        ],
        sorted(
            (
                Function(*place, own.get(place, 0.0) / whole_ns, ns / whole_ns)
                for place, ns in inclusive.items()
            ),
            key=lambda one: (-one.own, -one.inclusive, one.name),
        ),
        waiting_ns / whole_ns,
    )


def function_of(name: str) -> str:
    """The function that a comprehension stands in; any other itself."""
    return _COMPREHENSION.sub("", name) or name


class _Place(NamedTuple):
    """What is one function in the table."""

    name: str
    file: str
    first_line: int
    is_user: bool


@lru_cache(maxsize=65536)
def _place(frame: Frame) -> _Place | None:
    """The function of a frame; None: it is a part of the one that called it."""
    if not is_library(frame):
        if _COMPREHENSION.search(frame.function):
            return None
        return _Place(frame.function, frame.file, frame.first_line, True)
    if frame.file.startswith("<") or "<" in frame.function:
        return None
    if any(part.startswith("_") for part in frame.function.split(".")):
        return None
    return _Place(frame.function, frame.file, frame.first_line, False)


@dataclass
class _Spent:
    """Time of one stack, or of one line."""

    function: str = ""
    share: Share = field(default_factory=Share)
    by_stage: dict[str, int] = field(default_factory=dict)
    waits: dict[str, float] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        return max(self.by_stage, key=lambda one: self.by_stage[one])

    @property
    def blocked_on(self) -> str:
        if self.share.blocked_ns < 0.5 * self.share.elapsed_ns:
            return ""
        return max(self.waits, key=lambda one: self.waits[one], default="")

    def add(
        self, share: Share, by_stage: Mapping[str, int], waits: Mapping[str, float], weight: float
    ) -> None:
        self.share.add(share.elapsed_ns, share.on_core_ns, share.queued_ns, share.samples)
        for stage, ns in by_stage.items():
            self.by_stage[stage] = self.by_stage.get(stage, 0) + ns
        for wait, ns in waits.items():
            self.waits[wait] = self.waits.get(wait, 0.0) + weight * ns


def _by_stack(
    process: Process, thread: int, *, with_waiting: bool
) -> tuple[dict[int, _Spent], int]:
    """A thread's time by stack, without what it took to start; and what of it was left out."""
    stages, weights = stage_by_key(process), path_weights(process, thread)
    found: dict[int, _Spent] = {}
    waiting_ns = 0
    for sample in process.samples:
        if sample.thread != thread:
            continue
        stage = stages[sample.path, sample.stack]
        if stage == "import":
            continue
        weight = weights.get(sample.path, 1.0)
        elapsed_ns = round(weight * sample.elapsed_ns)
        if not with_waiting and _waits_for_others(sample, stage):
            waiting_ns += elapsed_ns
            continue
        share = Share(
            elapsed_ns,
            round(weight * sample.on_core_ns),
            round(weight * sample.queued_ns),
            sample.count,
        )
        spent = found.setdefault(sample.stack, _Spent())
        spent.add(share, {stage: elapsed_ns}, sample.waits, weight)
    return found, waiting_ns


def _waits_for_others(sample: Sample, stage: str) -> bool:
    """Whether a thread was blocked by others of its program, for the most part."""
    if sample.blocked_ns < 0.5 * sample.elapsed_ns:
        return False
    on = max(sample.waits, key=lambda one: sample.waits[one], default="")
    return stage == "wait" or on in _OTHERS


def _add_line(
    lines: dict[tuple[str, int], _Spent],
    frames: Sequence[Frame],
    numbers: Sequence[int],
    spent: _Spent,
) -> None:
    for frame, number in zip(reversed(frames), reversed(numbers), strict=True):
        if is_library(frame):
            continue
        at = lines.setdefault((frame.file, number or frame.first_line), _Spent())
        at.function = at.function or function_of(frame.function)
        at.add(spent.share, spent.by_stage, spent.waits, 1.0)
        return


# --- source ---------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """Some lines of a file.

    Attributes:
        first: number of the first one.
        text: of each.
        hot: those of them that time was spent at, by number.
    """

    file: str
    first: int
    text: list[str]
    hot: dict[int, Line]


class Sources:
    """The files that a session's lines are in, as far as they are there.

    Args:
        session: the session, which says when it was recorded.
    """

    def __init__(self, session: Session) -> None:
        self._began_s = _began_s(session)
        self._files: dict[str, tuple[list[str], str]] = {}

    def text(self, file: str, line: int) -> str:
        """One line; empty where there is none."""
        lines = self._read(file)[0]
        return lines[line - 1].strip() if 0 < line <= len(lines) else ""

    def problem(self, file: str) -> str:
        """Why a file's lines are missing, or may be others by now; empty: they are right."""
        return self._read(file)[1]

    def listings(self, lines: Sequence[Line], num_lines: int) -> list[Listing]:
        """What stands around the first lines; of neighbours once. The dearest first.

        Args:
            lines: that time was spent at, the dearest first.
            num_lines: around how many of them.
        """
        windows: list[tuple[str, int, int]] = []
        for line in lines[:num_lines]:
            first, last = line.line - _CONTEXT, line.line + _CONTEXT
            near = [
                one for one in windows if one[0] == line.file and one[1] <= last and first <= one[2]
            ]
            # Together in the dearest one's place.
            where = windows.index(near[0]) if near else len(windows)
            windows = [one for one in windows if one not in near]
            first = min([first, *(one[1] for one in near)])
            windows.insert(where, (line.file, first, max([last, *(one[2] for one in near)])))
        found: list[Listing] = []
        for file, first, last in windows:
            first = max(1, first)
            text = self._read(file)[0][first - 1 : last]
            hot = {one.line: one for one in lines if one.file == file and first <= one.line <= last}
            if text:
                found.append(Listing(file, first, text, hot))
        return found

    def _read(self, file: str) -> tuple[list[str], str]:
        if file not in self._files:
            self._files[file] = self._read_once(file)
        return self._files[file]

    def _read_once(self, file: str) -> tuple[list[str], str]:
        path = Path(file)
        if path.suffix not in _SOURCES:
            return [], "is no file of Python's"
        try:
            if not path.is_file():
                return [], "is gone"
            about = path.stat()
            if about.st_size > _MAX_BYTES:
                return [], "is too large to be shown"
            text = path.read_bytes().decode("utf-8", "replace")
        except (OSError, ValueError) as error:
            return [], f"can't be read ({type(error).__name__})"
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        # It was written down to the second.
        is_newer = self._began_s is not None and about.st_mtime > self._began_s + 1
        return lines, "is newer than the profile: its lines may be others" if is_newer else ""


def _began_s(session: Session) -> float | None:
    """When the program began, by the clock on the wall; None: nobody wrote it down."""
    try:
        return datetime.strptime(session.about["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
