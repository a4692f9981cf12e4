"""A grid's table as a picture: a parameter study, or a heat map."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.pictures import heat_map, parameter_study
from hotloop.bandits.results import Estimate
from hotloop.errors import ConfigError
from hotloop.sweeps.bandits.notation import key_of, text_of

_QUANTITY_LABELS = {
    "mean_reward": "reward per step",
    "mean_optimal": "steps that take an optimal arm, %",
    "final_regret": "cumulative regret at the end, units of reward",
    "late_reward": "reward per step, {late}",
    "late_optimal": "steps that take an optimal arm, {late}, %",
}
_NOTHING = Estimate(math.nan, math.nan)  # of a pair that is no point: `means` says how many arms


def picture_axes(ranges: Mapping[str, Sequence[Any]]) -> tuple[str, str | None]:
    """Which field a picture has along x, and which along y or as its lines.

    Raises:
        ConfigError: there is no picture of so many fields, or of words alone.
    """
    numeric = [name for name, values in ranges.items() if _are_numbers(values)]
    if not 1 <= len(ranges) <= 2 or not numeric:
        have = ", ".join(ranges) or "none"
        raise ConfigError(
            "a picture is of one field or two that have several values, one of them numbers alone, "
            f"got {have}: give such ranges, or export the grid"
        )
    others = [name for name in ranges if name != numeric[0]]
    return numeric[0], others[0] if others else None


def draw(
    points: Sequence[tuple[Mapping[str, Any], Estimate]],
    ranges: Mapping[str, Sequence[Any]],
    quantity: str,
    path: Path,
    *,
    title: str,
    agent: str,
    late: str,
    units: Mapping[str, str],
) -> None:
    """Draw a quantity over the one or two fields that have several values.

    Args:
        points: settings, and the estimate of each.
        ranges: those fields, and their values.
        quantity: which it is.
        path: of the picture.
        title: its heading.
        agent: who played.
        late: over which steps late quantities are taken.
        units: of fields; the others are dimensionless.

    Raises:
        ConfigError: there is no picture of these fields.
    """
    x, y = picture_axes(ranges)

    def with_unit(name: str) -> str:
        return f"{name}, {units.get(name, 'dimensionless')}"

    percent = 100 if quantity.endswith("optimal") else 1
    estimates = {}
    for settings, (mean, se) in points:
        where = key_of(settings[x]), key_of(settings[y]) if y else None
        estimates[where] = Estimate(percent * mean, percent * se)
    label = _QUANTITY_LABELS[quantity].format(late=late)
    if y is not None and _are_numbers(ranges[y]):
        values = [
            [estimates.get((key_of(one), key_of(other)), _NOTHING).mean for one in ranges[x]]
            for other in ranges[y]
        ]
        heat_map(
            ranges[x],
            ranges[y],
            np.array(values),
            path,
            title=title,
            x_label=with_unit(x),
            y_label=with_unit(y),
            value_label=label,
            best=np.nanargmin if quantity == "final_regret" else np.nanargmax,
        )
        return
    others = {agent: None}
    if y is not None:
        others = {f"{y} = {text_of(one)}": key_of(one) for one in ranges[y]}
    lines = {
        line: [
            (float(one), estimates[key_of(one), other])
            for one in ranges[x]
            if (key_of(one), other) in estimates
        ]
        for line, other in others.items()
    }
    parameter_study(lines, path, title=title, x_label=with_unit(x), y_label=label)


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
