"""A grid's table as a picture: a parameter study, or a heat map."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.bandits.grid.notation import ENV, key_of, text_of
from hotloop.bandits.pictures import heat_map, parameter_study
from hotloop.bandits.results import Estimate
from hotloop.errors import ConfigError

if TYPE_CHECKING:
    from hotloop.bandits.grid.table import GridTable

_QUANTITY_LABELS = {
    "mean_reward": "reward per step",
    "mean_optimal": "steps that take an optimal arm, %",
    "final_regret": "cumulative regret at the end, units of reward",
    "late_reward": "reward per step, {late}",
    "late_optimal": "steps that take an optimal arm, {late}, %",
}
_UNITS = {"num_arms": "arms", "dimension": "components", "every": "steps"} | dict.fromkeys(
    ("initial_value", "prior_mean", "prior_std", "mean", "spread", "noise", "walk", "start"),
    "units of reward",
)
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


def draw(table: GridTable, path: Path, quantity: str) -> None:
    """See `GridTable.save_picture`."""
    x, y = picture_axes(table.ranges)
    percent = 100 if quantity.endswith("optimal") else 1
    estimates = {}
    for row in table.rows:
        where = key_of(row.settings[x]), key_of(row.settings[y]) if y else None
        mean, se = row.result.estimate(quantity)
        estimates[where] = Estimate(percent * mean, percent * se)
    label = _QUANTITY_LABELS[quantity].format(late=f"the last {table.late_steps:,}")
    if y is not None and _are_numbers(table.ranges[y]):
        values = [
            [estimates.get((key_of(one), key_of(other)), _NOTHING).mean for one in table.ranges[x]]
            for other in table.ranges[y]
        ]
        heat_map(
            table.ranges[x],
            table.ranges[y],
            np.array(values),
            path,
            title=table.title,
            x_label=_with_unit(x),
            y_label=_with_unit(y),
            value_label=label,
            best=np.nanargmin if quantity == "final_regret" else np.nanargmax,
        )
        return
    others = {table.rows[0].agent.name: None}
    if y is not None:
        others = {f"{y} = {text_of(one)}": key_of(one) for one in table.ranges[y]}
    lines = {
        line: [
            (float(one), estimates[key_of(one), other])
            for one in table.ranges[x]
            if (key_of(one), other) in estimates
        ]
        for line, other in others.items()
    }
    parameter_study(lines, path, title=table.title, x_label=_with_unit(x), y_label=label)


def _with_unit(name: str) -> str:
    return f"{name}, {_UNITS.get(name.removeprefix(ENV), 'dimensionless')}"


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
