"""Whether a forward pass chooses actions or learns, in a script that has both in one piece.

A training loop without functions, as CleanRL writes them, steps environments in some of its lines
and goes backward in others. The innermost block of the source (loop, function, branch) around a
forward pass that holds only one of the two says what it is for. Where every block around it holds
both, the order does: what stands before the step of the environments acts, what stands between it
and the backward pass learns.

A loss is made of operations that run in the script's own lines. Those in a block that goes backward
and steps no environment are learning too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from hotloop.profiler.session import Frame, Stack, is_library

_BLOCKS = (ast.For, ast.While, ast.With, ast.If, ast.FunctionDef, ast.AsyncFunctionDef)


class Purpose:
    """What code is for, by the places that environments are stepped and learned at.

    Args:
        known: stacks of samples, and the stage that each is in.
    """

    def __init__(self, known: Iterable[tuple[Stack, str]]) -> None:
        self._lines: dict[str, dict[str, set[int]]] = {}
        self._functions: dict[tuple[str, str], set[str]] = {}
        for stack, stage in known:
            if stage not in ("env", "update"):
                continue
            for frame, line in zip(stack.frames, stack.lines, strict=True):
                if is_library(frame) or not line:
                    continue
                self._lines.setdefault(frame.file, {}).setdefault(stage, set()).add(line)
                self._functions.setdefault((frame.file, frame.function), set()).add(stage)

    def of(self, stack: Stack) -> str:
        """Of a forward pass: `act` or `update`."""
        for frame, line in self._known_places(stack):
            seen, env_lines = self._innermost(frame, line)
            if seen == {"update"}:
                return "update"
            if seen:
                return "update" if "update" in seen and line > max(env_lines) else "act"
        return "act"

    def of_own_lines(self, stack: Stack) -> str | None:
        """`update`, or None: nothing says so."""
        for frame, line in self._known_places(stack):
            return "update" if self._innermost(frame, line)[0] == {"update"} else None
        return None

    def _known_places(self, stack: Stack) -> Iterator[tuple[Frame, int]]:
        """The user's functions in which something is seen, and lines, from the innermost out."""
        for frame, line in zip(reversed(stack.frames), reversed(stack.lines), strict=True):
            if (frame.file, frame.function) in self._functions and line:
                yield frame, line

    def _innermost(self, frame: Frame, line: int) -> tuple[set[str], list[int]]:
        """Of the innermost block around a line that holds any: the stages, and where `env` is."""
        of_function = self._functions[frame.file, frame.function]
        if len(of_function) == 1:
            return of_function, [line]
        for first, last in _blocks(frame.file, line):
            inside = {
                stage: [one for one in lines if first <= one <= last]
                for stage, lines in self._lines[frame.file].items()
            }
            seen = {stage for stage, lines in inside.items() if lines}
            if seen:
                return seen, inside.get("env", [])
        return set(), []


def _blocks(file: str, line: int) -> list[tuple[int, int]]:
    """First and last lines of the blocks around a line, from the innermost out."""
    return [(first, last) for first, last in _all_blocks(file) if first <= line <= last]


@lru_cache(maxsize=256)
def _all_blocks(file: str) -> tuple[tuple[int, int], ...]:
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return ((0, 2**31),)
    found: list[tuple[int, int]] = []
    for node in ast.walk(tree):
        if isinstance(node, _BLOCKS):
            found.append((node.lineno, node.end_lineno or node.lineno))
    found.append((0, 2**31))
    return tuple(sorted(found, key=lambda block: block[1] - block[0]))
