"""Functions that an upper room registers for lower ones, which do not import it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OPTION_OWNERS: list[Callable[[str], list[str]]] = []
"""Functions that return the names of the algorithms that have an option."""
ALGORITHM_FINDERS: list[Callable[[str], Any]] = []
"""`hotloop.algorithms.find`, once that room is imported."""
