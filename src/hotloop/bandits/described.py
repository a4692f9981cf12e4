"""Settings of agents and environments: checked, labelled, described."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from hotloop.errors import ConfigError

_LARGEST = 1e30  # what float32 holds, with room for sums
_MANY = 8  # values that a label has room for
IN_REWARDS = "units of reward"


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


def setting(
    default: Any,
    *,
    low: float = -_LARGEST,
    high: float = _LARGEST,
    above: bool = False,
    unit: str = "",
) -> Any:
    """A field of a `Described`: a number from `low`, or above it, to `high`; or true or false."""
    limits = {"low": low, "high": high, "above": above}
    return field(default=default, metadata={"limits": limits, "unit": unit})


@dataclass(frozen=True, kw_only=True)
class Described:
    """Settings that are checked, and say what they are.

    Raises:
        ConfigError: a setting makes no sense.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # its name as people write it

    def __post_init__(self) -> None:
        for one in fields(self):
            value, limits = getattr(self, one.name), one.metadata.get("limits")
            if limits is None or (value is None and "None" in str(one.type)):
                continue
            if one.type == "bool":
                if not isinstance(value, bool):
                    raise ConfigError(
                        f"`{one.name}` of {self.name} must be true or false, got {value!r}"
                    )
            elif one.type == "int":
                whole(one.name, value, limits["low"], limits["high"], owner=self.name)
            else:
                number(self.name, one.name, value, **limits)

    def unit_of(self, name: str) -> str:
        """The unit of one of its settings."""
        units = {one.name: one.metadata.get("unit", "") for one in fields(self)}
        return units.get(name) or "dimensionless"

    def describe(self) -> dict[str, Any]:
        """Its name and its settings, as JSON holds them."""
        settings = {one.name: getattr(self, one.name) for one in fields(self)}
        return {"name": self.name} | {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in settings.items()
        }

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
