"""A cache of the syntax trees of the program's source files."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=256)
def parse_file(file: str) -> ast.Module | None:
    """Return the syntax tree of a file; None if it is missing or not valid Python."""
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return None
