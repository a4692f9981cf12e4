"""Lookup of heads and encoders by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from hotloop.errors import UnknownNameError, nearest

Value = TypeVar("Value")


def find(registry: Mapping[str, Value], kind: str, name: str) -> Value:
    """Return `registry[name]`.

    Raises:
        UnknownNameError: the registry has no such name.
    """
    if name not in registry:
        raise UnknownNameError(
            f"there is no {kind} '{name}'{nearest(name, registry)}: there are "
            + ", ".join(registry)
        )
    return registry[name]
