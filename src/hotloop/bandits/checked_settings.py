"""Settings of agents and environments: checks, labels, descriptions."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np

from hotloop.errors import ConfigError

_MAX_VALUE = 1e30  # float32 also holds sums of such values
_MAX_LABEL_VALUES = 8  # values in one label
REWARD_UNIT = "units of reward"


def check_number(
    owner: str,
    name: str,
    value: Any,
    *,
    low: float = -_MAX_VALUE,
    high: float = _MAX_VALUE,
    excludes_low: bool = False,
) -> None:
    """Check that a setting is a finite number within limits.

    Raises:
        ConfigError: It is not.
    """
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    is_valid = is_number and not isinstance(value, bool) and low <= value <= high
    if is_valid and not (excludes_low and value == low):
        return
    limits = f"{'above' if excludes_low else 'from'} {low:g} up to {high:g}"
    raise ConfigError(f"`{name}` of {owner} must be a finite number {limits}, got {value!r}")


def check_int(name: str, value: Any, low: int, high: int, *, owner: str = "") -> int:
    """Return a setting as an int.

    Raises:
        ConfigError: It is not a whole number, or is out of range.
    """
    is_int = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_int or not low <= value <= high:
        label = f"`{name}` of {owner}" if owner else f"`{name}`"
        raise ConfigError(f"{label} must be a whole number from {low} to {high:,}, got {value!r}")
    return int(value)


def setting(
    default: Any,
    *,
    low: float = -_MAX_VALUE,
    high: float = _MAX_VALUE,
    excludes_low: bool = False,
    unit: str = "",
) -> Any:
    """Return a field of `CheckedSettings`: a bool, or a number from `low` or above it to `high`."""
    limits = {"low": low, "high": high, "excludes_low": excludes_low}
    return field(default=default, metadata={"limits": limits, "unit": unit})


@dataclass(frozen=True, kw_only=True)
class CheckedSettings:
    """Settings with checks, a label and a description.

    Raises:
        ConfigError: A setting is invalid.
    """

    name: ClassVar[str]
    title: ClassVar[str] = ""  # the name in labels

    def __post_init__(self) -> None:
        for option in fields(self):
            value, limits = getattr(self, option.name), option.metadata.get("limits")
            if limits is None or (value is None and "None" in str(option.type)):
                continue
            if option.type == "bool":
                if not isinstance(value, bool):
                    raise ConfigError(
                        f"`{option.name}` of {self.name} must be true or false, got {value!r}"
                    )
            elif option.type == "int":
                check_int(option.name, value, limits["low"], limits["high"], owner=self.name)
            else:
                check_number(self.name, option.name, value, **limits)

    def unit_of(self, name: str) -> str:
        """Return the unit of a setting."""
        units = {option.name: option.metadata.get("unit", "") for option in fields(self)}
        return units.get(name) or "dimensionless"

    def describe(self) -> dict[str, Any]:
        """Return the name and the settings as JSON values."""
        settings = {option.name: getattr(self, option.name) for option in fields(self)}
        return {"name": self.name} | {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in settings.items()
        }

    @property
    def label(self) -> str:
        """The label in legends and tables: the name, and the settings that are not defaults."""
        changed = [
            f"{option.name.replace('_', ' ')} {format_setting(getattr(self, option.name))}"
            for option in fields(self)
            if option.default is not getattr(self, option.name)
            and option.default != getattr(self, option.name)
        ]
        return ", ".join([self.title or self.name, *changed])


def format_setting(value: Any) -> str:
    """Return a setting as text for a label."""
    if isinstance(value, (tuple, list)):
        if len(value) > _MAX_LABEL_VALUES:
            return ", ".join([*map(format_setting, value[:3]), "…"])
        return ", ".join(map(format_setting, value))
    return f"{value:.4g}" if isinstance(value, (float, np.floating)) else str(value)
