"""What a picture of a grid can show, and how it calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hotloop.errors import ConfigError

QUANTITY_LABELS = {
    "mean_reward": "reward per step",
    "mean_optimal": "steps that take an optimal arm, %",
    "final_regret": "cumulative regret at the end, units of reward",
    "late_reward": "reward per step, {late}",
    "late_optimal": "steps that take an optimal arm, {late}, %",
}


def picture_axes(ranges: Mapping[str, Sequence[Any]]) -> tuple[str, str | None]:
    """Which field a picture has along x, and which along y or as its lines.

    Raises:
        ConfigError: there is no picture of so many fields, or of words alone.
    """
    numeric = [name for name, values in ranges.items() if are_numbers(values)]
    if not 1 <= len(ranges) <= 2 or not numeric:
        have = ", ".join(ranges) or "none"
        raise ConfigError(
            "a picture is of one field or two that have several values, one of them numbers alone, "
            f"got {have}: give such ranges, or export the grid"
        )
    others = [name for name in ranges if name != numeric[0]]
    return numeric[0], others[0] if others else None


def are_numbers(values: Iterable[Any]) -> bool:
    """Whether a picture can have them along an axis."""
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
