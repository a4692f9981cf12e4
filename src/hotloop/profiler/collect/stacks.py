"""Numbers for code objects, stacks and paths of open spans."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Sequence
from opcode import opmap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from hotloop.base import import_hooks, programs, startup
from hotloop.profiler.collect.asyncio_waits import AwaitedTask
from hotloop.profiler.collect.samples import is_library_file
from hotloop.timing.frames import end_frames

_ticker: Any = None
# Reason why the C extension is not available. Empty if it is available.
MISSING_EXTENSION = ""
try:
    import hotloop.profiler.collect._ticker as _extension

    _ticker = _extension
except ModuleNotFoundError:
    MISSING_EXTENSION = "it was not built: install a C compiler, then reinstall hotloop"
except ImportError as error:  # built for an unsupported version of Python
    MISSING_EXTENSION = str(error).partition(":")[0]

# Limits on the places in code for which the number of the stack is cached, and on the code objects
# that are kept. A program may generate code in its loop.
_MAX_PLACES, _MAX_CODES = 8192, 16384
_RESUME = opmap.get("RESUME", -1)

# Numbers of places and lines, innermost first.
_StackKey = tuple[tuple[int, ...], tuple[int, ...]]

# Origins of a frame. Stacks omit the profiler's frames and those outside a script's first one.
_USER, _LIBRARY, _PROFILER, _STARTER = range(4)
_PACKAGE = str(Path(__file__).parent) + os.sep
_STARTING_FILES = (programs.__file__, _PACKAGE + "script.py")
_OWN_FILES = (_PACKAGE, str(startup.BOOT_DIRECTORY), startup.__file__, import_hooks.__file__)


class StackIndex:
    """A table that numbers paths and stacks in the order of their first use."""

    def __init__(self) -> None:
        # Code (a reference, so that its `id` stays valid), number of its place, and origin, by `id`
        # of the code. Hashing a code takes microseconds.
        self._codes: dict[int, tuple[CodeType, int, int]] = {}
        self._places: dict[tuple[str, str, int], int] = {}
        self._stacks: dict[_StackKey, int] = {}
        # With the codes, so that their addresses in the key stay valid.
        self._stacks_by_place: dict[bytes, tuple[int, Sequence[CodeType]]] = {}
        self._paths: dict[tuple[str, ...], int] = {}
        self._new: dict[str, list[Any]] = {"places": [], "stacks": [], "paths": []}

    def pop_new(self) -> dict[str, list[Any]]:
        """Return the entries numbered since the last call, in the format of the samples file."""
        new, self._new = self._new, {"places": [], "stacks": [], "paths": []}
        return new

    def path_number(self, path: tuple[str, ...]) -> int:
        """Return the number of a path, given the names of its open spans."""
        number = self._paths.get(path)
        if number is None:
            number = self._paths[path] = len(self._paths)
            self._new["paths"].append(list(path))
        return number

    def stack_of_frame(self, innermost: FrameType) -> int:
        """Return the number of the stack that ends in a frame."""
        frames = end_frames(innermost)
        return self._stack_number(
            [frame.f_code for frame in frames], lambda depth: frames[depth].f_lineno or 0
        )

    def stack_of_places(self, places: bytes, codes: Sequence[CodeType]) -> int:
        """Return the number of a stack from the extension: one place per code, innermost first."""
        known = self._stacks_by_place.get(places)
        return self._stack_of_new_places(places, codes) if known is None else known[0]

    def _stack_of_new_places(self, places: bytes, codes: Sequence[CodeType]) -> int:
        instructions = _instruction_offsets(places)
        # A function that has just started has done nothing yet: the time passed in its caller.
        is_starting = len(codes) > 1 and codes[0].co_code[max(0, instructions[0])] == _RESUME
        stack = self._stack_number(
            codes[is_starting:],
            lambda depth: _ticker.line_of(
                codes[depth + is_starting], instructions[depth + is_starting]
            ),
        )
        if len(self._stacks_by_place) >= _MAX_PLACES:
            self._stacks_by_place.clear()
        self._stacks_by_place[places] = stack, codes
        return stack

    def stack_of_task(self, task: AwaitedTask, places: bytes, codes: Sequence[CodeType]) -> int:
        """Return the number of a task's stack on top of the event loop's."""
        instructions, task_depth = _instruction_offsets(places), len(task.codes)

        def line(depth: int) -> int:
            if depth < task_depth:
                return task.lines[depth]
            return _ticker.line_of(codes[depth - task_depth], instructions[depth - task_depth])

        return self._stack_number([*task.codes, *codes], line)

    def _stack_number(self, stack_codes: Sequence[CodeType], line: Callable[[int], int]) -> int:
        """Return the number of a stack, innermost first. `line` returns the line at a depth."""
        if len(self._codes) > _MAX_CODES:
            self._codes.clear()
        places: list[int] = []
        lines: list[int] = []
        codes_by_id = self._codes
        for depth, code in enumerate(stack_codes):
            _, place, origin = codes_by_id.get(id(code)) or self._add_code(code)
            if origin == _STARTER:
                break
            if origin != _PROFILER:
                # Lines matter in the innermost frame and in the user's code.
                lines.append(line(depth) if origin == _USER or not places else 0)
                places.append(place)
        if not places:
            places, lines = [codes_by_id[id(stack_codes[0])][1]], [line(0)]
        key = tuple(places), tuple(lines)
        stack = self._stacks.get(key)
        if stack is None:
            stack = self._stacks[key] = len(self._stacks)
            self._new["stacks"].append([places[::-1], lines[::-1]])
        return stack

    def _add_code(self, code: CodeType) -> tuple[CodeType, int, int]:
        name = getattr(code, "co_qualname", code.co_name)
        key = name, code.co_filename, code.co_firstlineno
        if key not in self._places:
            self._places[key] = len(self._places)
            self._new["places"].append(list(key))
        entry = self._codes[id(code)] = code, self._places[key], _code_origin(code.co_filename)
        return entry


def _instruction_offsets(places: bytes) -> tuple[int, ...]:
    return struct.unpack(f"{len(places) // 8}q", places)[1::2]


def _code_origin(file: str) -> int:
    if file in _STARTING_FILES:
        return _STARTER
    if file.startswith(_OWN_FILES):
        return _PROFILER
    return _LIBRARY if is_library_file(file) else _USER
