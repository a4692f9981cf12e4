"""Functions of other profilers' frames: their first lines, full names and files."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from hotloop.profiler.collect.samples import is_library_file
from hotloop.profiler.session import Frame
from hotloop.profiler.session.syntax import parse_file, source_cache


class FunctionLines(NamedTuple):
    """The lines of a function, with its decorators."""

    first: int
    last: int
    name: str


def file_finder(directory: Path, *, has_folders: bool) -> Callable[[str], str]:
    """Return a function that completes the files of a recording.

    Relative files are searched beside the recording, in the current directory and in Python's
    search path.

    Args:
        directory: the recording's directory.
        has_folders: whether the recording stores files with their folders. If it stores bare names,
            a file that is not found counts as a library's.
    """

    @source_cache(65536)
    def complete(file: str) -> str:
        if not file or file.startswith(("<", "~")):
            return f"<{file.strip('<>~') or 'built-in'}>"
        if os.path.isabs(file) or ".." in file.split("/") or "\0" in file:
            return file
        for root in (directory, Path.cwd(), *map(Path, filter(None, sys.path))):
            if os.path.isfile(root / file):
                return os.path.abspath(root / file)
        if not has_folders:
            return f"<{file}>"
        # Torch shortens paths below the entries of Python's search path.
        return f"/site-packages/{file}" if file.startswith("torch/") else file

    return complete


@source_cache(65536)
def function_of(frame: Frame, *, is_first_line: bool) -> tuple[Frame, int]:
    """Return a frame with the first line and the full name of its function, and its line.

    The source decides, for files of the user. Without it, the recorded line is used.

    Args:
        frame: a frame with the recorded line as its first line.
        is_first_line: whether the recorded line is the function's, so that its own is unknown.
    """
    is_module = frame.function == "<module>"
    line = frame.first_line if is_module or not is_first_line else 0
    if is_module or frame.first_line <= 0 or is_library_file(frame.file):
        return frame._replace(first_line=0 if is_module else frame.first_line), line
    last_name = frame.function.rpartition(".")[2]
    around = [
        function
        for function in _functions(frame.file)
        if function.first <= frame.first_line <= function.last
        and function.name.rpartition(".")[2] == last_name
    ]
    if around:
        function = max(around, key=lambda function: function.first)
        return Frame(function.name, frame.file, function.first), line
    return frame, line


@source_cache(256)
def _functions(file: str) -> list[FunctionLines]:
    """Return the functions of a file with their qualified names, none if it can't be read."""
    functions: list[FunctionLines] = []
    tree = parse_file(file) if file.endswith((".py", ".pyw")) else None
    pending: list[tuple[ast.AST, str]] = [(tree, "")] if tree is not None else []
    while pending:
        node, prefix = pending.pop()
        for child in ast.iter_child_nodes(node):
            inner = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([child.lineno, *(x.lineno for x in child.decorator_list)])
                name = f"{prefix}{child.name}"
                functions.append(FunctionLines(first, child.end_lineno or first, name))
                inner = f"{name}.<locals>."
            elif isinstance(child, ast.ClassDef):
                inner = f"{prefix}{child.name}."
            pending.append((child, inner))
    return functions
