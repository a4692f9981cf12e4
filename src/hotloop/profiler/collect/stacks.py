"""Numbers for what samples are taken in: code, stacks, and paths of open spans."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from hotloop.profiler.collect.awaiting import Awaited
from hotloop.profiler.collect.samples import LIBRARY

_ticker: Any = None
# Why the C extension is not available; empty if it is.
MISSING_EXTENSION = ""
try:
    import hotloop.profiler.collect._ticker as _extension

    _ticker = _extension
except ModuleNotFoundError:
    MISSING_EXTENSION = "it was not built: install a C compiler, then reinstall hotloop"
except ImportError as error:  # built for a version of Python that it does not know
    MISSING_EXTENSION = str(error).partition(":")[0]

MAX_FRAMES = 128
# Of each place in code, where samples were taken, the stack's number is remembered.
_MAX_PLACES = 8192
_RESUME = opmap.get("RESUME", -1)

# Code objects by `id`, since hashing one takes microseconds, and lines, from the innermost out.
_Stack = tuple[tuple[int, ...], tuple[int, ...]]

# Whose a frame is. Ours are left out of stacks, and so is what is outside of a script's first one.
_USERS, _LIBRARYS, _OURS, _STARTER = range(4)
_PACKAGE = str(Path(__file__).parent) + os.sep
_SCRIPT = _PACKAGE + "script.py"


class Numbers:
    """Gives each path and each stack a number when it first comes up."""

    def __init__(self) -> None:
        # By the code's `id`: the code, which is kept alive by it, and whose it is.
        self._codes: dict[int, tuple[CodeType, int]] = {}
        self._places: dict[int, int] = {}
        self._stacks: dict[_Stack, int] = {}
        self._stacks_by_place: dict[bytes, int] = {}
        self._paths: dict[tuple[str, ...], int] = {}
        self._new: dict[str, list[Any]] = {"places": [], "stacks": [], "paths": []}

    def pop_new(self) -> dict[str, list[Any]]:
        """What has got a number since the last call, as it is written."""
        new, self._new = self._new, {"places": [], "stacks": [], "paths": []}
        return new

    def of_path(self, path: tuple[str, ...]) -> int:
        """Of the names of open spans."""
        number = self._paths.get(path)
        if number is None:
            number = self._paths[path] = len(self._paths)
            self._new["paths"].append(list(path))
        return number

    def of_frame(self, innermost: FrameType) -> int:
        """Of a frame and those that it was called from."""
        frames: list[FrameType] = []
        frame: FrameType | None = innermost
        while frame is not None and len(frames) < MAX_FRAMES:
            frames.append(frame)
            frame = frame.f_back
        return self._of_stack(
            [one.f_code for one in frames], lambda depth: frames[depth].f_lineno or 0
        )

    def of_places(self, places: bytes, codes: Sequence[CodeType]) -> int:
        """Of what the extension has seen: a place for each code, from the innermost out."""
        stack = self._stacks_by_place.get(places)
        return self._of_new_places(places, codes) if stack is None else stack

    def _of_new_places(self, places: bytes, codes: Sequence[CodeType]) -> int:
        instructions = _instructions(places)
        # A function that has just begun has done nothing yet: time went by where it was called.
        begun = len(codes) > 1 and codes[0].co_code[max(0, instructions[0])] == _RESUME
        stack = self._of_stack(
            codes[begun:],
            lambda depth: _ticker.line_of(codes[depth + begun], instructions[depth + begun]),
        )
        if len(self._stacks_by_place) >= _MAX_PLACES:
            self._stacks_by_place.clear()
        self._stacks_by_place[places] = stack
        return stack

    def of_awaited(self, awaited: Awaited, places: bytes, codes: Sequence[CodeType]) -> int:
        """Of a task's places, within those that run the event loop."""
        instructions, inner = _instructions(places), len(awaited.codes)

        def line(depth: int) -> int:
            if depth < inner:
                return awaited.lines[depth]
            return _ticker.line_of(codes[depth - inner], instructions[depth - inner])

        return self._of_stack([*awaited.codes, *codes], line)

    def _of_stack(self, innermost: Sequence[CodeType], line: Callable[[int], int]) -> int:
        """Of code from the innermost out, with a function for the line at a depth."""
        codes: list[int] = []
        lines: list[int] = []
        known = self._codes
        for depth, code in enumerate(innermost):
            number = id(code)
            if number not in known:
                self._enter(code)
            whose = known[number][1]
            if whose == _STARTER:
                break
            if whose != _OURS:
                # Of the innermost frame, and of the user's.
                lines.append(line(depth) if whose == _USERS or not codes else 0)
                codes.append(number)
        if not codes:
            codes, lines = [id(innermost[0])], [line(0)]
        key = tuple(codes), tuple(lines)
        stack = self._stacks.get(key)
        if stack is None:
            stack = self._stacks[key] = len(self._stacks)
            places = [self._places[number] for number in reversed(codes)]
            self._new["stacks"].append([places, lines[::-1]])
        return stack

    def _enter(self, code: CodeType) -> None:
        self._codes[id(code)] = code, _whose(code.co_filename)
        self._places[id(code)] = len(self._places)
        name = getattr(code, "co_qualname", code.co_name)
        self._new["places"].append([name, code.co_filename, code.co_firstlineno])


def _instructions(places: bytes) -> tuple[int, ...]:
    """Of each place its instruction's offset."""
    return struct.unpack(f"{len(places) // 8}q", places)[1::2]


def _whose(file: str) -> int:
    if file.startswith(_PACKAGE):
        return _STARTER if file == _SCRIPT else _OURS
    return _LIBRARYS if any(part in file for part in LIBRARY) else _USERS
