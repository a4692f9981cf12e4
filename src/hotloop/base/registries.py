"""Functions that an upper room registers for lower ones, which do not import it."""

from __future__ import annotations

from collections.abc import Callable

OPTION_OWNERS: list[Callable[[str], list[str]]] = []
"""Functions that return the names of the algorithms that have an option."""
