"""The table of a grid: its rows in order of a quantity, plots and exports."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.grids.notation import ENV, setting_key, setting_text
from hotloop.bandits.plots import check_plot_path, heat_map, parameter_study
from hotloop.bandits.results import QUANTITIES, BanditResult, MeanEstimate
from hotloop.base import parquet
from hotloop.errors import ConfigError

_QUANTITY_LABELS = {
    "mean_reward": "reward per step",
    "mean_optimal": "steps with an optimal arm, %",
    "final_regret": "cumulative regret at the end, units of reward",
    "late_reward": "reward per step, {late}",
    "late_optimal": "steps with an optimal arm, {late}, %",
}


@dataclass(frozen=True, kw_only=True)
class GridRow:
    """A point of a grid with its result.

    Attributes:
        settings: explicit fields as JSON values, those of the environment named like "env.walk".
        config: the complete point as JSON values, as stored in the file.
        result: estimates and curves.
    """

    settings: dict[str, Any]
    config: dict[str, Any]
    result: BanditResult


@dataclass(frozen=True, kw_only=True)
class GridTable:
    """A finished grid.

    Attributes:
        rows: one row per point, with the last range changing fastest, agents within environments.
        ranges: values of each field with several values, an environment's named like "env.walk".
        path: the SQLite file.
        seed, num_runs, num_steps, late_steps, steps_per_point: sizes and seed of every point.
        threads: number of computing threads.
        elapsed_s: seconds without `prepare_s`, including opening, reading and closing the file.
        prepare_s: additional seconds for compiling kernels or loading compiled ones.
        kernel_share: mean fraction of `elapsed_s` that the threads spent in kernels. NaN if all
            results were in the file.
        computed_run_steps: runs × steps computed, as opposed to read from the file.
        num_of_other_kernels: number of these points' rows from other kernel versions. They stay in
            the file and have no effect here.
    """

    rows: tuple[GridRow, ...]
    ranges: dict[str, list[Any]]
    path: Path
    seed: int
    num_runs: int
    num_steps: int
    late_steps: int
    steps_per_point: int
    threads: int
    elapsed_s: float
    prepare_s: float
    kernel_share: float
    computed_run_steps: int
    num_of_other_kernels: int

    @property
    def title(self) -> str:
        """A line with names, the settings that all points share, sizes and seed."""
        row = self.rows[0]
        agent, environment = row.result.agent.name, row.result.environment.name
        for name, value in row.settings.items():
            if name not in self.ranges and name.startswith(ENV):
                environment += f", {name.removeprefix(ENV)} {setting_text(value)}"
            elif name not in self.ranges:
                agent += f", {name} {setting_text(value)}"
        if f"{ENV}num_arms" not in row.settings and f"{ENV}means" not in self.ranges:
            environment += f", {row.result.environment.num_arms} arms"
        sizes = f"{self.num_runs:,} runs of {self.num_steps:,} steps"
        return f"{agent} · {environment} · {sizes} · seed {self.seed}"

    def sorted(self, quantity: str = "mean_reward") -> list[GridRow]:
        """Return the rows, best first (lowest regret or highest value), rows with NaN last.

        Raises:
            BanditError: there is no such quantity.
        """
        sign = 1 if quantity == "final_regret" else -1
        means = [row.result.estimate(quantity).mean for row in self.rows]
        order = np.argsort([math.inf if math.isnan(mean) else sign * mean for mean in means])
        return [self.rows[index] for index in order]

    def best(self, quantity: str = "mean_reward") -> GridRow:
        """Return the first row of `sorted`."""
        return self.sorted(quantity)[0]

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """Return settings, estimates, and optionally curves as JSON values, with NaN as null."""
        share = None if math.isnan(self.kernel_share) else self.kernel_share
        return {
            **{name: getattr(self, name) for name in _GRID_KEYS},
            "path": str(self.path),
            "kernel_share": share,
            "points": [_to_dict(row, curves=curves) for row in self.rows],
        }

    def save_picture(self, path: str | Path, quantity: str = "mean_reward") -> Path:
        """Draw a quantity over the one or two fields that have several values.

        One field of numbers gives a parameter study with error bars. A second field with words
        among its values (`none`, `true`) adds a line per value. Two of numbers give a heat map.

        Raises:
            ConfigError: more fields or only words have several values, or the suffix is not in
                `FORMATS`.
            MissingExtraError: matplotlib is not installed.
            OutputError: `path` can't be written.
        """
        # Collect the estimates by cell.
        path = check_plot_path(path)
        x, y = plot_axes(self.ranges)
        percent = 100 if quantity.endswith("optimal") else 1
        estimates = {}
        for row in self.rows:
            cell = setting_key(row.settings[x]), setting_key(row.settings[y]) if y else None
            mean, se = row.result.estimate(quantity)
            estimates[cell] = MeanEstimate(percent * mean, percent * se)
        label = _QUANTITY_LABELS[quantity].format(late=f"the last {self.late_steps:,}")
        # Draw a heat map of two numbers.
        if y is not None and _are_numbers(self.ranges[y]):
            none = MeanEstimate(math.nan, math.nan)  # `means` sets the number of arms: no point
            values = [
                [estimates.get((setting_key(a), setting_key(b)), none).mean for a in self.ranges[x]]
                for b in self.ranges[y]
            ]
            heat_map(
                self.ranges[x],
                self.ranges[y],
                np.array(values),
                path,
                title=self.title,
                x_label=self._with_unit(x),
                y_label=self._with_unit(y),
                value_label=label,
                best=np.nanargmin if quantity == "final_regret" else np.nanargmax,
            )
            return path
        # Draw lines otherwise.
        line_keys = {self.rows[0].result.agent.name: None}
        if y is not None:
            line_keys = {f"{y} = {setting_text(b)}": setting_key(b) for b in self.ranges[y]}
        lines = {
            line: [
                (float(value), estimates[setting_key(value), key])
                for value in self.ranges[x]
                if (setting_key(value), key) in estimates
            ]
            for line, key in line_keys.items()
        }
        x_label = self._with_unit(x)
        parameter_study(lines, path, title=self.title, x_label=x_label, y_label=label)
        return path

    def _with_unit(self, name: str) -> str:
        result = self.rows[0].result
        instance = result.environment if name.startswith(ENV) else result.agent
        return f"{name}, {instance.unit_of(name.removeprefix(ENV))}"

    def save_parquet(self, path: str | Path) -> Path:
        """Write a row per point: settings, estimates, and the curves as lists.

        Columns: `agent`, its fields, `environment`, its fields as "env.walk", `seed`, `num_runs`,
        `num_steps`, …; `mean_reward`, `mean_reward_se`, … for the five estimates; `step`, `reward`,
        `reward_se`, … as lists.

        Raises:
            MissingExtraError: pyarrow is not installed.
            OutputError: `path` can't be written.
        """
        path = Path(path)
        parquet.write(path, list(map(_to_columns, self.rows)))
        return path


_GRID_KEYS = (
    *("ranges", "seed", "num_runs", "num_steps", "late_steps", "steps_per_point"),
    *("threads", "elapsed_s", "prepare_s", "computed_run_steps", "num_of_other_kernels"),
)


def _to_dict(row: GridRow, *, curves: bool) -> dict[str, Any]:
    content = row.result.to_dict(curves=curves)
    for name in (*_GRID_KEYS, "prepare_s", "ns_per_step"):  # values of the grid, not of a point
        content.pop(name, None)
    # The configuration contains the digest of a matrix instead of the matrix.
    content |= {kind: row.config[kind] for kind in ("agent", "environment")}
    return {"settings": row.settings, **content}


def _to_columns(row: GridRow) -> dict[str, Any]:
    result, columns = row.result, {}
    for kind, prefix in (("agent", ""), ("environment", ENV)):
        columns[kind] = getattr(result, kind).name
        settings = _typed(getattr(result, kind), row.config[kind])
        columns |= {f"{prefix}{name}": value for name, value in settings.items()}
    for name in ("seed", "num_runs", "num_steps", "late_steps", "steps_per_point"):
        columns[name] = getattr(result, name)
    for quantity in QUANTITIES:
        columns[quantity], columns[f"{quantity}_se"] = result.estimate(quantity)
    for name in ("step", "reward", "optimal", "regret"):
        columns[name] = getattr(result, name)
        if name != "step":
            columns[f"{name}_se"] = getattr(result, f"{name}_se")
    return columns


def _typed(instance: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with their fields' types, so that a column of whole floats is float64."""
    typed = {}
    for field in fields(instance):
        value = config[field.name]
        is_float = "float" in str(field.type) and isinstance(value, int)
        typed[field.name] = float(value) if is_float else value
    return typed


def plot_axes(ranges: Mapping[str, Sequence[Any]]) -> tuple[str, str | None]:
    """Return the field on a plot's x axis, and the one on the y axis or of the lines.

    Raises:
        ConfigError: there is no plot for this number of fields, or for words only.
    """
    numeric = [name for name, values in ranges.items() if _are_numbers(values)]
    if not 1 <= len(ranges) <= 2 or not numeric:
        names = ", ".join(ranges) or "none"
        raise ConfigError(
            "a picture needs one or two fields with several values, at least one with numbers "
            f"only, got {names}: give such ranges, or export the grid"
        )
    second = [name for name in ranges if name != numeric[0]]
    return numeric[0], second[0] if second else None


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
