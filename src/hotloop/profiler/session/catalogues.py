"""Catalogues of known functions: data files of patterns, each with examples that a test checks.

A row of a catalogue has a pattern for the file of a function, one for its name, or both. `{python}`
stands for the standard library, `{site}` for the directory of installed libraries.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from hotloop.profiler.session import Frame

_DIRECTORIES = {"{python}": r"/lib/python3[^/]*/", "{site}": r"/(site|dist)-packages/"}


class FramePattern(NamedTuple):
    """Regular expressions, searched in a function's file and name. Empty ones match anything.

    Of a library's file, only the path from the directory of installed libraries on counts.
    """

    file: str = ""
    function: str = ""

    def matches(self, frame: Frame) -> bool:
        """Return whether a frame's file and function match."""
        return bool(
            _compiled(self.file).search(_path_in_library(frame.file))
            and _compiled(self.function).search(frame.function)
        )


@lru_cache(maxsize=65536)
def _path_in_library(file: str) -> str:
    """Return a file's path from the directory of installed libraries, or of Python, on.

    The directories above may have the name of a library: an environment in `gym_trading/.venv`.
    """
    for mark in ("/site-packages/", "/dist-packages/", "/lib/python3"):
        start = file.rfind(mark)
        if start >= 0:
            return file[start:]
    return file


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    for name, directory in _DIRECTORIES.items():
        pattern = pattern.replace(name, directory)
    return re.compile(pattern)


def read_catalogue(path: Path) -> Any:
    """Return the content of a catalogue."""
    return json.loads(path.read_text(encoding="utf-8"))


def frame_patterns(rows: Iterable[Mapping[str, str]]) -> tuple[FramePattern, ...]:
    """Return the patterns of a catalogue's rows."""
    return tuple(FramePattern(row.get("file", ""), row.get("function", "")) for row in rows)


_LIBRARIES: dict[str, tuple[FramePattern, ...]] = {
    group: frame_patterns(rows)
    for group, rows in read_catalogue(Path(__file__).with_name("libraries.json")).items()
}


@lru_cache(maxsize=65536)
def is_in(group: str, frame: Frame) -> bool:
    """Return whether a function belongs to a group of known functions, see `libraries.json`."""
    return any(pattern.matches(frame) for pattern in _LIBRARIES[group])


WORDS: dict[str, frozenset[str]] = {
    name: frozenset(words)
    for name, (_, words) in read_catalogue(Path(__file__).with_name("words.json")).items()
}
"""Names of functions and attributes with a common meaning, by that meaning, see `words.json`."""
