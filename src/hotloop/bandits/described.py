"""Settings of agents and environments: checked, labelled, described."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from hotloop.errors import ConfigError

_LARGEST = 1e30  # what float32 holds, with room for sums
_MANY = 8  # values that a label has room for


def number(
    owner: str,
    name: str,
    value: Any,
    *,
    low: float = -_LARGEST,
    high: float = _LARGEST,
    above: bool = False,
) -> None:
    """Whether a setting is a finite number within its limits.

    Raises:
        ConfigError: it is not.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    is_good = is_number and not isinstance(value, bool) and low <= value <= high
    if is_good and not (above and value == low):
        return
    limits = f"{'above' if above else 'from'} {low:g} up to {high:g}"
    raise ConfigError(f"`{name}` of {owner} must be a finite number {limits}, got {value!r}")


def whole(name: str, value: Any, low: int, high: int, *, owner: str = "") -> int:
    """A count, as a user gives it.

    Raises:
        ConfigError: it is no whole number, or out of range.
    """
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_whole or not low <= value <= high:
        setting = f"`{name}` of {owner}" if owner else f"`{name}`"
        raise ConfigError(f"{setting} must be a whole number from {low} to {high:,}, got {value!r}")
    return int(value)


@dataclass(frozen=True, kw_only=True)
class Described:
    """What can say of itself what it is."""

    name: ClassVar[str]
    title: ClassVar[str] = ""  # its name as people write it
    units: ClassVar[Mapping[str, str]] = {}  # of fields; the others are dimensionless

    def describe(self) -> dict[str, Any]:
        """Its name and its settings, as JSON holds them."""
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"name": self.name} | {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in settings.items()
        }

    def _check(self, name: str, **limits: Any) -> None:
        number(self.name, name, getattr(self, name), **limits)

    @property
    def label(self) -> str:
        """A short text for a legend: its name, and the settings that are not the usual ones."""
        changed = [
            f"{one.name.replace('_', ' ')} {short(getattr(self, one.name))}"
            for one in fields(self)
            if one.default is not getattr(self, one.name) and one.default != getattr(self, one.name)
        ]
        return ", ".join([self.title or self.name, *changed])


def short(value: Any) -> str:
    """A setting as labels have it."""
    if isinstance(value, (tuple, list)):
        if len(value) > _MANY:
            return ", ".join([*map(short, value[:3]), "…"])
        return ", ".join(map(short, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)
