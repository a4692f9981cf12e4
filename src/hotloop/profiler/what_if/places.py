"""Places of a program that may be delayed, and the time that samples show for them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from hotloop.base.files import read_regular
from hotloop.errors import ConfigError
from hotloop.profiler.collect.delays import DELAY_SPAN
from hotloop.profiler.collect.points import FUNCTION, STATEMENT, SourcePoints, insert_points
from hotloop.profiler.session import (
    ProfiledProcess,
    Sample,
    Session,
    enclosing_function,
    is_library,
)

# Libraries that compute without the interpreter's lock.
_LOCK_FREE = re.compile(r"/(site|dist)-packages/(torch|jax|jaxlib|tensorflow|scipy|cv2)/")
# Spans of hooks by the stage of the loop, outermost first.
STAGE_SPANS = {
    "act": ("act",),
    "step": ("vector_step", "env_step"),
    "store": ("replay_add",),
    "sample": ("replay_sample",),
    "learn": ("update", "backward", "optimizer_step"),
}
# Waits for something other than threads and processes of the program: part of a place's own time.
_OWN_WAITS = ("sleep", "network", "disk", "child", "something")
_LINE = re.compile(r"(.+):(\d+)$")


class Place(NamedTuple):
    """A place in the program.

    Attributes:
        kind: a statement, a function, a span, or an iteration of a loop.
        file, line: position in the source; "" and 0 for a span.
        name: name of a span or function, or of the function around a line.
    """

    kind: Literal["line", "function", "span", "loop"]
    file: str
    line: int
    name: str

    @property
    def label(self) -> str:
        """The place as text, such as "train.py:17 in main"."""
        position = f"{Path(self.file).name}:{self.line}"
        if self.kind == "span":
            stage = next((s for s, spans in STAGE_SPANS.items() if self.name in spans), self.name)
            return self.name if stage == self.name else f"{self.name} ({stage})"
        if self.kind == "function":
            return f"{self.name} ({position})"
        return f"{'loop at ' if self.kind == 'loop' else ''}{position} in {self.name}"


class ThreadPlaces(NamedTuple):
    """The places of a thread in a sample.

    Attributes:
        own_line: innermost line of the program's own code.
        places: all places that the thread was in.
        loops: loops around it, outermost first.
        is_main: whether it was the main thread of the main process.
    """

    own_line: Place | None
    places: frozenset[Place]
    loops: tuple[Place, ...]
    is_main: bool


@dataclass
class SampledTime:
    """Sampled time, in nanoseconds.

    Attributes:
        cpu_ns: time on a core.
        blocked_ns: time blocked by something other than the program's own threads and processes.
        queued_ns: time queued for a core.
        unknown_ns: blocked time without a known cause, as sampled without the C extension.
        lock_free_ns: part of `cpu_ns` in libraries that compute without the interpreter's lock.
        sleeping_ns: part of `blocked_ns` in a sleep.
        count: number of samples.
    """

    cpu_ns: float = 0.0
    blocked_ns: float = 0.0
    queued_ns: float = 0.0
    unknown_ns: float = 0.0
    lock_free_ns: float = 0.0
    sleeping_ns: float = 0.0
    count: float = 0.0

    @property
    def busy_ns(self) -> float:
        """Time that the place itself takes, without the time in a queue for a core."""
        return self.cpu_ns + self.blocked_ns

    @property
    def elapsed_ns(self) -> float:
        """Time on a core, queued, and blocked by something other than the program itself."""
        return self.busy_ns + self.queued_ns + self.unknown_ns

    def add(self, other: SampledTime, factor: float = 1.0) -> None:
        """Add another time, or subtract it with a factor of −1."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + factor * value)


PlaceTimes = dict[ThreadPlaces, SampledTime]


@lru_cache(maxsize=256)
def source_points(file: str) -> SourcePoints:
    """Return the points of a source file, none if it cannot be read."""
    try:
        return insert_points(ast.parse(read_regular(Path(file))), file)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return SourcePoints()


def activities(session: Session) -> PlaceTimes:
    """Return the sampled times of all threads, without imports and without inserted delays."""
    times: PlaceTimes = {}
    for process in session.processes:
        core_shares = _core_shares(process)
        by_stack: dict[int, tuple[Place | None, frozenset[Place], tuple[Place, ...]] | None] = {}
        for sample in process.samples:
            if sample.stack not in by_stack:
                by_stack[sample.stack] = _places_of_stack(process, sample.stack)
            places = by_stack[sample.stack]
            if places is None or DELAY_SPAN in sample.path:
                continue
            spans = frozenset(Place("span", "", 0, name) for name in sample.path)
            is_main = process is session.main and sample.thread == process.pid
            activity = ThreadPlaces(places[0], places[1] | spans, places[2], is_main)
            time = _time(sample, core_shares[sample.thread])
            if _LOCK_FREE.search(process.stacks[sample.stack].frames[-1].file):
                time.lock_free_ns = time.cpu_ns
            times.setdefault(activity, SampledTime()).add(time)
    return times


def _core_shares(process: ProfiledProcess) -> dict[int, float]:
    """Return the share of each thread's runnable time in which it was on a core.

    The kernel counts the time in a queue only when it ends, so this share comes from the counters
    of the whole run instead of one sample.
    """
    runnable_ns: dict[int, float] = {}
    on_core_ns: dict[int, float] = {}
    for sample in process.samples:
        runnable = sample.on_core_ns + sample.queued_ns
        runnable_ns[sample.thread] = runnable_ns.get(sample.thread, 0.0) + runnable
        on_core_ns[sample.thread] = on_core_ns.get(sample.thread, 0.0) + sample.on_core_ns
    on_core_ns |= {total.number: total.on_core_ns for total in process.threads}
    return {
        thread: min(1.0, on_core_ns[thread] / runnable) if runnable else 1.0
        for thread, runnable in runnable_ns.items()
    }


def _time(sample: Sample, core_share: float) -> SampledTime:
    own_ns = sum(sample.waits.get(wait, 0) for wait in _OWN_WAITS)
    runnable_ns = sample.on_core_ns + sample.queued_ns
    return SampledTime(
        core_share * runnable_ns,
        own_ns,
        (1.0 - core_share) * runnable_ns,
        unknown_ns=0.0 if sample.waits else sample.blocked_ns,
        sleeping_ns=sample.waits.get("sleep", 0),
        count=sample.count,
    )


def _places_of_stack(
    process: ProfiledProcess, number: int
) -> tuple[Place | None, frozenset[Place], tuple[Place, ...]] | None:
    """Return innermost own line, all places and loops of a stack; None while importing."""
    stack = process.stacks[number]
    imports = any(frame.file.startswith("<frozen importlib") for frame in stack.frames)
    if imports or not stack.frames:
        return None
    own_line: Place | None = None
    places: set[Place] = set()
    loops: list[Place] = []
    for frame, line in zip(stack.frames, stack.lines, strict=True):
        if is_library(frame) or not line:
            continue
        points, name = source_points(frame.file), enclosing_function(frame.function)
        if name != "<module>":
            places.add(Place("function", frame.file, frame.first_line, name))
        statement = points.statements.get(line)
        if statement is not None:
            own_line = Place("line", frame.file, statement, name)
            places.add(own_line)
        loops += [Place("loop", frame.file, header, name) for header in points.loops.get(line, ())]
    return own_line, frozenset(places), tuple(loops)


def difference(after: PlaceTimes, before: PlaceTimes) -> PlaceTimes:
    """Return the times between two readings of a session."""
    result: PlaceTimes = {}
    for activity, time in after.items():
        result[activity] = SampledTime(**vars(time))
        if activity in before:
            result[activity].add(before[activity], -1.0)
    return result


def time_in(place: Place, times: PlaceTimes) -> SampledTime:
    """Return the time in a place, with all that it calls, summed over all threads."""
    total = SampledTime()
    for activity, time in times.items():
        if place in activity.places or place in activity.loops:
            total.add(time)
    return total


# --- points ---------------------------------------------------------------------------------------


@dataclass
class MeasuredPlace:
    """A place and the points in the program that belong to it.

    Attributes:
        place: the place.
        places: kind, file and line of its points (`collect.points`).
        spans: names of spans that hooks open.
    """

    place: Place
    places: list[tuple[str, str, int]] = field(default_factory=list)
    spans: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return what the program's processes need to know."""
        return {"places": self.places, "spans": self.spans}


def point_of(place: Place, files: Iterable[str]) -> MeasuredPlace:
    """Return the point of a place. `files` are the program's files that may open a span."""
    if place.kind == "span":
        statements = [
            (STATEMENT, file, line)
            for file in files
            for line in source_points(file).spans.get(place.name, ())
        ]
        return MeasuredPlace(place, statements, [place.name])
    kind = FUNCTION if place.kind == "function" else STATEMENT
    return MeasuredPlace(place, [(kind, place.file, place.line)])


def own_files(times: Mapping[ThreadPlaces, Any]) -> list[str]:
    """Return the files of the program in which a sample was taken."""
    places = (place for activity in times for place in (*activity.places, *activity.loops))
    return sorted({place.file for place in places if place.file})


def find_place(text: str, times: PlaceTimes) -> Place:
    """Return the place that a user names: FILE:LINE, a function, a span or a stage.

    Raises:
        ConfigError: There is no such place.
    """
    files = own_files(times)
    position = _LINE.match(text)
    if position is not None:
        return _find_line(text, position[1], int(position[2]), files)
    known = {place for activity in times for place in activity.places}
    spans = {place.name for place in known if place.kind == "span"}
    spans |= {name for file in files for name in source_points(file).spans}
    for name in (text, *STAGE_SPANS.get(text, ())):
        if name in spans:
            return Place("span", "", 0, name)
    for file in files:
        for name, line in source_points(file).functions.items():
            if name == text or name.endswith(f".{text}"):
                return Place("function", file, line, name)
    raise ConfigError(
        f"expected FILE:LINE, or the name of a function, span or stage that has run, got '{text}': "
        f"spans so far are {', '.join(sorted(spans)) or 'none'}"
    )


def _find_line(text: str, name: str, line: int, files: Sequence[str]) -> Place:
    path = str(Path(name).absolute())
    matches = [file for file in files if file == path or file.endswith(f"/{name}")]
    file = matches[0] if matches else path
    statement = source_points(file).statements.get(line)
    if statement is None:
        raise ConfigError(
            f"expected the line of a statement in a function or a loop, which calls or computes "
            f"something, got '{text}': name another line"
        )
    functions = source_points(file).functions.items()
    around = [(first, function) for function, first in functions if first <= statement]
    return Place("line", file, statement, max(around, default=(0, "<module>"))[1])


# --- selection ------------------------------------------------------------------------------------

# Smallest share of the time for which a place is a candidate.
_LEAST_SHARE = 0.05
# Two places that share this part of their time are one: the first kind in this order is kept.
_SAME = 0.85
_ORDER = {"span": 0, "line": 1, "function": 2}


def candidates(times: PlaceTimes, wall_ns: float) -> list[Place]:
    """Return the places that take most of the time, most expensive first, each once.

    Args:
        times: times in the latest part of the run.
        wall_ns: its duration.
    """
    own_ns: dict[Place, float] = {}
    for activity, time in times.items():
        places = [place for place in activity.places if place.kind != "line"]
        for place in (*places, *([activity.own_line] if activity.own_line else [])):
            own_ns[place] = own_ns.get(place, 0.0) + time.elapsed_ns
    ranked = sorted(
        (place for place, ns in own_ns.items() if ns >= _LEAST_SHARE * wall_ns),
        key=lambda place: (_ORDER[place.kind], -own_ns[place]),
    )
    selected: list[Place] = []
    for place in ranked:
        ns = own_ns[place]
        if not any(
            _shared_ns(place, other, times) > _SAME * max(ns, own_ns[other]) for other in selected
        ):
            selected.append(place)
    return sorted(selected, key=lambda place: -own_ns[place])


def _shared_ns(place: Place, other: Place, times: PlaceTimes) -> float:
    return sum(
        time.elapsed_ns
        for activity, time in times.items()
        if place in activity.places and other in activity.places
    )


def progress_places(times: PlaceTimes) -> list[Place]:
    """Return places whose passes may measure the throughput, best first.

    Environment steps and updates come first, then loops: those of the main thread, unless it only
    sleeps while others work, from the outside in.
    """
    names = {place.name for activity in times for place in activity.places if place.kind == "span"}
    spans = [
        Place("span", "", 0, name)
        for name in ("vector_step", "env_step", "update", "optimizer_step")
        if name in names
    ]
    by_loop: dict[Place, list[Any]] = {}
    total = SampledTime()
    for activity, time in times.items():
        total.add(time)
        for depth, loop in enumerate(activity.loops):
            row = by_loop.setdefault(loop, [activity.is_main, depth, SampledTime()])
            row[2].add(time)
    loops = [
        (not is_main, depth, -time.busy_ns, loop)
        for loop, (is_main, depth, time) in by_loop.items()
        if not (
            is_main and time.sleeping_ns > 0.9 * time.busy_ns and time.busy_ns < total.busy_ns / 2
        )
    ]
    return [*spans, *(loop for *_, loop in sorted(loops, key=lambda row: row[:3]))]
