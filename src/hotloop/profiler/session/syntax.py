"""Source files of the program: their syntax trees, which are cached, and parts of them."""

from __future__ import annotations

import ast
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

from hotloop.base.files import read_regular

Node = TypeVar("Node", bound=ast.AST)
_Params = ParamSpec("_Params")
_Result = TypeVar("_Result")

_caches: list[Any] = []
# Time of change and size of each file when it was first read, None if it was missing.
_states: dict[str, tuple[int, int] | None] = {}
_MAX_STATES = 10_000


def source_cache(
    maxsize: int,
) -> Callable[[Callable[_Params, _Result]], Callable[_Params, _Result]]:
    """Return a decorator that caches results until a source file changes."""

    def decorate(function: Callable[_Params, _Result]) -> Callable[_Params, _Result]:
        cached: Any = lru_cache(maxsize=maxsize)(function)
        _caches.append(cached)
        return cached

    return decorate


def forget_changed_files() -> None:
    """Clear all caches if a source file changed, as between two profiles in one notebook."""
    if len(_states) > _MAX_STATES or any(_state(x) != state for x, state in _states.items()):
        for cached in _caches:
            cached.cache_clear()
        _states.clear()


def _state(file: str) -> tuple[int, int] | None:
    try:
        status = os.stat(file)
    except (OSError, ValueError):  # the name of a file may have a NUL
        return None
    return status.st_mtime_ns, status.st_size


class CodeBlock(NamedTuple):
    """First and last line of a statement, loop or function, inclusive."""

    first: int
    last: int

    @classmethod
    def of(cls, node: ast.stmt | ast.expr) -> CodeBlock:
        """Return the lines of a node."""
        return cls(node.lineno, node.end_lineno or node.lineno)

    @property
    def lines(self) -> range:
        """All line numbers."""
        return range(self.first, self.last + 1)

    def __contains__(self, line: object) -> bool:
        return isinstance(line, int) and self.first <= line <= self.last


@source_cache(256)
def parse_file(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is missing or not valid Python."""
    _states.setdefault(file, _state(file))
    try:
        return ast.parse(read_regular(Path(file)))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return None


def nodes(file: str, *kinds: type[Node]) -> tuple[Node, ...]:
    """Return the nodes of some kinds in a file, outer ones first, none if it is not valid."""
    return _nodes(file, kinds)


@source_cache(4096)
def _nodes(file: str, kinds: tuple[type[Any], ...]) -> tuple[Any, ...]:
    return tuple(node for node in _all_nodes(file) if isinstance(node, kinds))


def nodes_in(file: str, block: CodeBlock, *kinds: type[Node]) -> list[Node]:
    """Return the nodes of some kinds that start in some lines of a file, by line."""
    lines, found = _sorted_nodes(file, kinds)
    return found[bisect_left(lines, block.first) : bisect_right(lines, block.last)]


@source_cache(4096)
def _sorted_nodes(file: str, kinds: tuple[type[Any], ...]) -> tuple[list[int], list[Any]]:
    found = sorted(nodes(file, *kinds), key=lambda node: node.lineno)
    return [node.lineno for node in found], found


@source_cache(256)
def _all_nodes(file: str) -> tuple[ast.AST, ...]:
    tree = parse_file(file)
    return tuple(ast.walk(tree)) if tree else ()


@source_cache(256)
def source_lines(file: str) -> list[str]:
    """Return the lines of a Python file, none if it is missing."""
    if not file.endswith(".py"):  # a profile of someone else may name any file
        return []
    _states.setdefault(file, _state(file))
    try:
        return split_lines(read_regular(Path(file)))
    except (OSError, ValueError):  # the name of a file may have a NUL
        return []


def split_lines(content: bytes) -> list[str]:
    """Return the lines of a file as Python counts them: a form feed ends no line."""
    text = content.decode("utf-8", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").split("\n")


def called_name(call: ast.Call) -> str:
    """Return the last part of the name that a call calls, empty if it has none."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def names_in(node: ast.AST) -> set[str]:
    """Return the plain names in a piece of source."""
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
