"""Wrappers around environments: which part of a stack is a wrapper's own work.

A wrapper's `step` calls the `step` of another environment. Its own work is what it does outside of
that call, with all functions that it calls: resizing, stacking, normalizing.
"""

from __future__ import annotations

import re

from hotloop.profiler.diagnose import episodes, source
from hotloop.profiler.diagnose.evidence import CodePosition, SampleRow, user_positions
from hotloop.profiler.session import Frame, Stack, is_library
from hotloop.profiler.session.catalogues import is_in
from hotloop.profiler.session.purpose import is_environment
from hotloop.profiler.session.stages import CodeLine
from hotloop.profiler.session.sums import ranked, sums
from hotloop.profiler.session.syntax import source_cache

_MAX_PLACES, _MAX_NAMES = 6, 4

# Calls of another environment's step, as opposed to those of a robot or a game.
_INNER_STEP = re.compile(
    r"(?i)(env\w*|wrapped|inner|base|super\(\))(\[[^]]*\])?\.(step|reset|step_wait)$"
)


class WrapperFinder:
    """The wrappers of a program: methods `step` that call another `step`."""

    def __init__(self, rows: list[SampleRow]) -> None:
        self._users = {frame for row in rows for frame in _users_wrappers(row.stack)}

    def position(self, stack: Stack) -> CodePosition | None:
        """Return the line of the wrapper that does its own work, None if none does."""
        steps = _steps(stack)
        if not steps or not self._is_wrapper(stack.frames[steps[-1]]):
            return None
        if any(is_in("environments", x) for x in stack.frames[steps[-1] :]):
            return None
        return wrapper_position(stack)

    def _is_wrapper(self, frame: Frame) -> bool:
        if is_library(frame):
            return is_in("wrappers", frame) or is_in("base_wrappers", frame)
        return frame in self._users


def wrapper_position(stack: Stack) -> CodePosition | None:
    """Return the line of a wrapper below the innermost step, in a stack of a wrapper's own work.

    It is in the user's outermost function there, or else in the library's innermost. None: a base
    class only calls the next environment.
    """
    inside = range(_steps(stack)[-1], len(stack.frames))
    places = [i for i in inside if not is_library(stack.frames[i])][:1]
    places = places or [i for i in inside if is_in("wrappers", stack.frames[i])]
    if not places:
        return None
    frame = stack.frames[places[-1]]
    return CodePosition(frame, stack.lines[places[-1]] or frame.first_line)


def wrapper_places(rows: list[SampleRow]) -> tuple[CodeLine, ...]:
    """Return lines of wrappers: those that create a library's, their work, and their callers."""
    constructions: list[tuple[CodeLine, float]] = []
    work: list[tuple[CodeLine, float]] = []
    callers: list[tuple[CodeLine, float]] = []
    for row in rows:
        at, chain = wrapper_position(row.stack), list(user_positions(row.stack))
        if at is None:
            continue
        is_users = not is_library(at.frame)
        place = chain[0] if is_users else at
        outside = [x for x in chain if x.frame != at.frame]
        if is_users:  # without the functions that the wrapper calls
            frames = [position.frame for position in chain]
            outside = chain[frames.index(at.frame) + 1 :] if at.frame in frames else []
        else:
            name = frozenset({class_name(at.frame)})
            for file in dict.fromkeys(position.frame.file for position in chain):
                if line := source.first_line_calling(file, name):
                    constructions.append((CodeLine("<module>", file, line), row.ns))
        work.append((place.code_line, row.ns))
        callers += [(position.code_line, row.ns) for position in outside[:1]]
    order = [
        line
        for times, count in ((constructions, 3), (work, 3), (callers, 1))
        for line in ranked(sums(times))[:count]
    ]
    return tuple(dict.fromkeys(order))[:_MAX_PLACES]


def describe_wrappers(rows: list[SampleRow]) -> str:
    """Return the wrappers' names with their shares of the rows' time, largest first."""
    positions = ((wrapper_position(row.stack), row.ns) for row in rows)
    times = sums((class_name(at.frame), ns) for at, ns in positions if at is not None)
    if len(times) < 2:
        return next(iter(times), "")
    whole = sum(times.values())
    return ", ".join(f"{name} ({times[name] / whole:.0%})" for name in ranked(times)[:_MAX_NAMES])


def class_name(frame: Frame) -> str:
    """Return the name of a method's class, or the function's name if it is no method."""
    return frame.function.partition(".")[0]


@source_cache(65536)
def _steps(stack: Stack) -> tuple[int, ...]:
    """Return the indices of methods that step or reset an environment."""
    return tuple(
        i
        for i, frame in enumerate(stack.frames)
        if is_environment(frame) or _is_library_step(frame)
    )


def _is_library_step(frame: Frame) -> bool:
    return is_library(frame) and "." in frame.function and is_in("steps", frame)


@source_cache(65536)
def _users_wrappers(stack: Stack) -> tuple[Frame, ...]:
    """Return the user's methods in a stack that step another environment.

    The inner step may be too fast to be sampled. If the source is missing, only the stack shows it.
    """
    steps = _steps(stack)
    users = [stack.frames[i] for i in steps if not is_library(stack.frames[i])]
    inner = stack.frames[steps[-1]] if steps else None
    return tuple(
        frame
        for frame in users
        if _steps_inner(frame) or (frame != inner and source.parse_file(frame.file) is None)
    )


@source_cache(4096)
def _steps_inner(frame: Frame) -> bool:
    """Return whether a method's source calls another environment's step.

    It has such a name, or a result of at least four parts, such as reward and termination.
    """
    block = source.function_around(frame.file, frame.first_line)
    names = source.names_called(frame.file, block)
    is_named = any(_INNER_STEP.search(name) for name in names)
    return is_named or episodes.unpacks_step(frame.file, block)
