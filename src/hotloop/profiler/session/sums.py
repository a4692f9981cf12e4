"""Sums of amounts by key, such as of time by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

Key = TypeVar("Key")
Amount = TypeVar("Amount", int, float)


def sums(amounts: Iterable[tuple[Key, Amount]]) -> dict[Key, Amount]:
    """Return the sum of each key's amounts, in the order in which the keys first occur."""
    totals: dict[Key, Amount] = {}
    for key, amount in amounts:
        totals[key] = totals[key] + amount if key in totals else amount
    return totals


def ranked(totals: Mapping[Key, float]) -> list[Key]:
    """Return the keys, those with the largest amounts first. Equal ones keep their order."""
    return sorted(totals, key=lambda key: -totals[key])
