"""Lookup by name: of heads, of encoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from hotloop.errors import UnknownNameError, nearest

Value = TypeVar("Value")


def find(registry: Mapping[str, Value], what: str, name: str) -> Value:
    """Return `registry[name]`.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in registry:
        raise UnknownNameError(
            f"there is no {what} '{name}'{nearest(name, registry)}: there are "
            + ", ".join(registry)
        )
    return registry[name]
