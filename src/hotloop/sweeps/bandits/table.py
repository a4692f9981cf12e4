"""The table of a grid: its rows, the best of them, and ways to keep them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.bandits.agents import Agent
from hotloop.bandits.environments import Environment
from hotloop.bandits.pictures import check_picture, heat_map, parameter_study
from hotloop.bandits.results import QUANTITIES, Estimate, Estimates, Result
from hotloop.errors import ConfigError
from hotloop.sweeps import parquet
from hotloop.sweeps.bandits.notation import ENV, key_of, text_of

_QUANTITY_LABELS = {
    "mean_reward": "reward per step",
    "mean_optimal": "steps that take an optimal arm, %",
    "final_regret": "cumulative regret at the end, units of reward",
    "late_reward": "reward per step, {late}",
    "late_optimal": "steps that take an optimal arm, {late}, %",
}


@dataclass(frozen=True, kw_only=True)
class GridRow(Estimates):
    """A point of a grid, and what came of it.

    Attributes:
        settings: the fields that were given, an environment's as "env.walk"; JSON values.
        config: the point in full, as the file has it; JSON values.
        result: estimates and curves.
    """

    settings: dict[str, Any]
    config: dict[str, Any]
    result: Result

    @property
    def agent(self) -> Agent:
        """Who played."""
        return self.result.agent

    @property
    def environment(self) -> Environment:
        """Where."""
        return self.result.environment

    def estimate(self, quantity: str) -> Estimate:
        """One of `QUANTITIES`, over runs."""
        return self.result.estimate(quantity)


@dataclass(frozen=True, kw_only=True)
class GridTable:
    """A finished grid.

    Attributes:
        rows: one for each point, in the grid's order: the last range changes fastest, agents within
            environments.
        ranges: the fields that have several values: name → values, an environment's as "env.walk".
        path: the file.
        seed, num_runs, num_steps, late_steps, steps_per_point: of every point.
        threads: how many computed.
        elapsed_s: seconds that it took, the file's opening, reading and closing among them.
        prepare_s: seconds besides, for compiling or for loading what was compiled.
        kernel_share: what part of `elapsed_s` the threads spent in kernels, in the mean; NaN if
            nothing was left to compute.
        computed_run_steps: runs × steps computed; the rest was in the file.
        num_of_other_kernels: the file's rows of these points that are of another version of the
            kernels: they are left alone, and not part of anything here.
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
        """What was played, in one line: names, the settings that all points share, sizes, seed."""
        row = self.rows[0]
        agent, environment = row.agent.name, row.environment.name
        for name, value in row.settings.items():
            if name not in self.ranges and name.startswith(ENV):
                environment += f", {name.removeprefix(ENV)} {text_of(value)}"
            elif name not in self.ranges:
                agent += f", {name} {text_of(value)}"
        if f"{ENV}num_arms" not in row.settings and f"{ENV}means" not in self.ranges:
            environment += f", {row.environment.num_arms} arms"
        sizes = f"{self.num_runs:,} runs of {self.num_steps:,} steps"
        return f"{agent} · {environment} · {sizes} · seed {self.seed}"

    def sorted(self, quantity: str = "mean_reward") -> list[GridRow]:
        """The rows, best first (for a regret: the least); rows without a number stand last.

        Raises:
            BanditError: there is no such quantity.
        """
        sign = 1 if quantity == "final_regret" else -1
        means = [row.estimate(quantity).mean for row in self.rows]
        order = np.argsort([math.inf if math.isnan(mean) else sign * mean for mean in means])
        return [self.rows[index] for index in order]

    def best(self, quantity: str = "mean_reward") -> GridRow:
        """The first of `sorted`."""
        return self.sorted(quantity)[0]

    def to_dict(self, *, curves: bool = False) -> dict[str, Any]:
        """What JSON can hold: settings and estimates, NaN as null; the curves too if asked for."""
        share = None if math.isnan(self.kernel_share) else self.kernel_share
        return {
            **{name: getattr(self, name) for name in _OUTER},
            "path": str(self.path),
            "kernel_share": share,
            "points": [_to_dict(row, curves=curves) for row in self.rows],
        }

    def save_picture(self, path: str | Path, quantity: str = "mean_reward") -> Path:
        """Draw a quantity over the one or two fields that have several values.

        One field of numbers is a parameter study with error bars, and so is one beside another with
        words among its values (`none`, `true`): a line for each of those. Two fields of numbers are
        a heat map.

        Raises:
            ConfigError: other fields than these have several values, or the suffix is no picture's.
            MissingExtraError: matplotlib is not installed.
            OutputError: `path` can't be written.
        """
        path = check_picture(path)
        x, y = picture_axes(self.ranges)
        percent = 100 if quantity.endswith("optimal") else 1
        estimates = {}
        for row in self.rows:
            where = key_of(row.settings[x]), key_of(row.settings[y]) if y else None
            mean, se = row.estimate(quantity)
            estimates[where] = Estimate(percent * mean, percent * se)
        label = _QUANTITY_LABELS[quantity].format(late=f"the last {self.late_steps:,}")
        if y is not None and _are_numbers(self.ranges[y]):
            none = Estimate(math.nan, math.nan)  # `means` says how many arms: no point
            values = [
                [estimates.get((key_of(one), key_of(other)), none).mean for one in self.ranges[x]]
                for other in self.ranges[y]
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
        others = {self.rows[0].agent.name: None}
        if y is not None:
            others = {f"{y} = {text_of(one)}": key_of(one) for one in self.ranges[y]}
        lines = {
            line: [
                (float(one), estimates[key_of(one), other])
                for one in self.ranges[x]
                if (key_of(one), other) in estimates
            ]
            for line, other in others.items()
        }
        x_label = self._with_unit(x)
        parameter_study(lines, path, title=self.title, x_label=x_label, y_label=label)
        return path

    def _with_unit(self, name: str) -> str:
        row = self.rows[0]
        thing = row.environment if name.startswith(ENV) else row.agent
        return f"{name}, {thing.unit_of(name.removeprefix(ENV))}"

    def save_parquet(self, path: str | Path) -> Path:
        """Write a row a point: settings, estimates, and the curves as lists.

        Columns: `agent`, its fields, `environment`, its fields as "env.walk", `seed`, `num_runs`,
        `num_steps`, …; `mean_reward`, `mean_reward_se`, … for the five estimates; `step`, `reward`,
        `reward_se`, … as lists.

        Raises:
            MissingExtraError: pyarrow is not installed.
            OutputError: `path` can't be written.
        """
        path = Path(path)
        parquet.write(path, list(map(_flat, self.rows)))
        return path


_OUTER = (
    *("ranges", "seed", "num_runs", "num_steps", "late_steps", "steps_per_point"),
    *("threads", "elapsed_s", "prepare_s", "computed_run_steps", "num_of_other_kernels"),
)


def _to_dict(row: GridRow, *, curves: bool) -> dict[str, Any]:
    about = row.result.to_dict(curves=curves)
    for name in (*_OUTER, "prepare_s", "ns_per_step"):  # the whole grid's, or nobody's
        about.pop(name, None)
    # The file's description of an environment has a matrix' digest for the matrix.
    about |= {kind: row.config[kind] for kind in ("agent", "environment")}
    return {"settings": row.settings, **about}


def _flat(row: GridRow) -> dict[str, Any]:
    """A point in columns."""
    result = row.result
    columns = {"agent": row.agent.name}
    columns |= _typed(row.agent, row.config["agent"])
    columns["environment"] = row.environment.name
    inner = _typed(row.environment, row.config["environment"])
    columns |= {f"{ENV}{name}": value for name, value in inner.items()}
    for name in ("seed", "num_runs", "num_steps", "late_steps", "steps_per_point"):
        columns[name] = getattr(result, name)
    for quantity in QUANTITIES:
        columns[quantity], columns[f"{quantity}_se"] = result.estimate(quantity)
    for name in ("step", "reward", "optimal", "regret"):
        columns[name] = getattr(result, name)
        if name != "step":
            columns[f"{name}_se"] = getattr(result, f"{name}_se")
    return columns


def _typed(thing: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with the types of their fields: a column is float64 though all in it are whole."""
    typed = {}
    for one in fields(thing):
        value = config[one.name]
        is_float = "float" in str(one.type) and isinstance(value, int)
        typed[one.name] = float(value) if is_float else value
    return typed


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


def _are_numbers(values: Iterable[Any]) -> bool:
    return all(isinstance(one, (int, float)) and not isinstance(one, bool) for one in values)
