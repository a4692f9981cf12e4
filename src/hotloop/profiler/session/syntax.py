"""The syntax of the program's own files, each read once."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=256)
def parsed(file: str) -> ast.Module | None:
    """A file's syntax; None: it is not there, or is no Python."""
    try:
        return ast.parse(Path(file).read_bytes())
    except (OSError, ValueError, SyntaxError):
        return None
