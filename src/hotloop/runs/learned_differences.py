"""Learning of runs side by side: how they differ, and what each has learned at equal steps.

A side is a run, or a directory of runs that differ by their seed alone. Seeds are redrawn within a
side, as Agarwal et al. 2021, arXiv:2108.13264, do within each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import ConfigError, RunDirectoryError
from hotloop.runs import comparison
from hotloop.runs.comparison import EPISODES, Group, grid, over_seeds
from hotloop.runs.directory import RunDirectory
from hotloop.runs.summary import find_runs
from hotloop.statistics import interquartile_mean, probability_of_improvement, stratified_interval
from hotloop.types import Array

Interval = tuple[float, float] | None
# Of a run alone, or of where it lies; env_id has a table of its own.
_OF_A_RUN = {"seed", "run_dir", "runs_dir", "env_id"}
# More of it is better.
_GAINS = ("return", "evaluation")


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the things that are compared.

    Attributes:
        letter: "A", "B", ….
        path: as it was given.
        runs: its directories that can be read, and their `config.json`.
        left_out: what else it has, and why not.
    """

    letter: str
    path: Path
    runs: dict[Path, dict[str, Any]]
    left_out: list[str] = field(default_factory=list)

    @property
    def told(self) -> str:
        """`A (runs/one)`."""
        return f"{self.letter} ({self.path})"

    @property
    def env_ids(self) -> list[str]:
        """Its environments."""
        return sorted({content["env_id"] for content in self.runs.values()})


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One side's row of a table. Intervals hold 95 % and are None of one seed.

    Attributes:
        letter: the side's.
        seeds: of its runs.
        middle, band: interquartile mean over seeds of each one's last tenth.
        difference, difference_band: of it to A's; None of A itself.
        improvement, improvement_band: the probability that a run of it has more than one of A.
        steps_to: at which its curve first reaches the table's level; None: never, or no level.
    """

    letter: str
    seeds: list[int]
    middle: float
    band: Interval
    difference: float | None
    difference_band: Interval
    improvement: float | None
    improvement_band: Interval
    steps_to: float | None

    @property
    def verdict(self) -> str:
        """What the interval of the difference says."""
        if self.difference is None:
            return ""
        if self.difference_band is None:
            return "one seed: nothing told from chance"
        low, high = self.difference_band
        return "higher" if low > 0 else "lower" if high < 0 else "not told from noise"


@dataclass(frozen=True, kw_only=True)
class Table:
    """One metric in one environment.

    Attributes:
        env_id, metric: which.
        end: steps that all runs have.
        level: the least of the sides' middles, which all have reached; None where less is better.
        rows: one for each side.
    """

    env_id: str
    metric: str
    end: float
    level: float | None
    rows: list[Learned]


@dataclass(frozen=True, kw_only=True)
class Learning:
    """All that is compared.

    Attributes:
        sides: what is compared.
        options: names that differ, and each side's values of them, as texts; "" where it has none.
        tables: by environment and metric.
        improvement: of each side but A, over all environments, and its interval; none where there
            is one environment.
        notes: what else is to be known.
    """

    sides: list[Side]
    options: dict[str, list[str]]
    tables: list[Table]
    improvement: dict[str, tuple[float, Interval]]
    notes: list[str]


def sides_of(paths: Sequence[Path]) -> list[Side]:
    """Find the runs of each side.

    Raises:
        ConfigError: a run is in two sides, or the sides have no environment in common.
        RunDirectoryError: a side has no run that can be read.
    """
    sides: list[Side] = []
    owner: dict[Path, Side] = {}
    for k, path in enumerate(paths):
        side = Side(letter=letter(k), path=path, runs={})
        for found in find_runs(path):
            try:
                side.runs[found] = RunDirectory.open(found).config
            except RunDirectoryError as error:
                side.left_out.append(str(error))
        if not side.runs:
            why = side.left_out[0] if side.left_out else "it has no run: `hotloop runs` lists them"
            raise RunDirectoryError(f"{side.told} can't be compared: {why}")
        for found in side.runs:
            other = owner.setdefault(found.resolve(), side)
            if other is not side:
                raise ConfigError(
                    f"each run must be on one side, got {found} in {other.told} and {side.told}: "
                    "name another one"
                )
        sides.append(side)
    if not set.intersection(*({*side.env_ids} for side in sides)):
        each = ", ".join(f"{side.told} with {', '.join(side.env_ids)}" for side in sides)
        raise ConfigError(
            f"runs of one environment can be compared, got {each}: name runs of the same, or draw "
            "them with `hotloop plot`, a panel for each"
        )
    return sides


def letter(number: int) -> str:
    """A, B, …, Z, A2, …."""
    turn, number = divmod(number, 26)
    return chr(ord("A") + number) + (str(turn + 1) if turn else "")


def learning(sides: Sequence[Side], *, metric: str | None = None) -> Learning:
    """Compare what the sides have learned, at equal steps.

    Args:
        sides: of `sides_of`.
        metric: as `comparison.compare` takes it; None for the returns of training episodes and of
            evaluations, as far as all sides have them.

    Raises:
        ConfigError: a side has runs of two configurations in one environment, or no side has such
            a metric.
        RunDirectoryError: one side has it, and another has not.
    """
    common = sorted(set.intersection(*({*side.env_ids} for side in sides)))
    notes = [why for side in sides for why in side.left_out]
    for side in sides:
        if alone := [env_id for env_id in side.env_ids if env_id not in common]:
            notes.append(f"not compared: {', '.join(alone)} of {side.told}, which not all have")
    tables: list[Table] = []
    values: dict[str, list[list[Array]]] = {}  # by metric and environment, of each side
    for name in ("return", "evaluation") if metric is None else (metric,):
        by_side = _groups(sides, name, notes, is_asked=metric is not None)
        for env_id in common:
            groups = [found.get(env_id) for found in by_side]
            if has_all := [one for one in groups if one is not None]:
                without = [s.told for s, one in zip(sides, groups, strict=True) if one is None]
                if without:
                    notes.append(f"{env_id}: {name} is not compared, {', '.join(without)} lacks it")
                    continue
                end = min(group.end for group in has_all)
                late = [group.late(end) for group in has_all]
                if early := [s.told for s, x in zip(sides, late, strict=True) if np.isnan(x).any()]:
                    notes.append(
                        f"{env_id}: {name} is not compared, a run of {', '.join(early)} has none "
                        f"until step {end:,.0f}, as far as all go"
                    )
                    continue
                table = _table(env_id, name, sides, has_all, end, late)
                tables.append(table)
                values.setdefault(name, []).append(late)
    notes += _few(tables)
    return Learning(
        sides=list(sides),
        options=_differences(sides, common),
        tables=tables,
        improvement=_over_environments(sides, next(iter(values.values()), [])),
        notes=list(dict.fromkeys(notes)),
    )


def _groups(
    sides: Sequence[Side], metric: str, notes: list[str], *, is_asked: bool
) -> list[dict[str, Group]]:
    """Each side's group of each environment that has the metric."""
    found: list[dict[str, Group]] = []
    mistakes: list[ConfigError] = []
    for side in sides:
        try:
            compared = comparison.compare(side.runs, metric=metric)
        except ConfigError as error:
            mistakes.append(error)
            found.append({})
            continue
        own: dict[str, Group] = {}
        for group in compared.groups:
            if group.env_id in own:
                raise ConfigError(
                    f"the runs of {side.told} must differ by their seed alone, got "
                    f"{own[group.env_id].label} and {group.label} in {group.env_id}: name "
                    "directories of one each"
                )
            own[group.env_id] = group
        if compared.groups or metric != "evaluation" or is_asked:
            notes += [why for _, why in compared.left_out]
        found.append(own)
    if len(mistakes) == len(sides):
        raise mistakes[0]
    if is_asked and not all(found):
        lacking = " and ".join(s.told for s, own in zip(sides, found, strict=True) if not own)
        what = "no episode that ended" if metric in EPISODES else f"no `{metric}`"
        raise RunDirectoryError(f"{lacking} has {what}: give another --metric, or other runs")
    return found


def _table(
    env_id: str,
    metric: str,
    sides: Sequence[Side],
    groups: Sequence[Group],
    end: float,
    late: Sequence[Array],
) -> Table:
    middles = [float(interquartile_mean(one)) for one in late]
    level = min(middles) if metric in _GAINS else None
    points, width = grid(list(groups))
    points = np.append(points[points < end], end)
    rows: list[Learned] = []
    for k, (side, group) in enumerate(zip(sides, groups, strict=True)):
        difference = improvement = None
        difference_band = improvement_band = None
        if k:
            pair = (late[0], late[k])
            difference = middles[k] - middles[0]
            improvement = float(probability_of_improvement(*pair))
            if min(map(len, pair)) > 1:
                difference_band = stratified_interval(
                    pair, lambda drawn: interquartile_mean(drawn[1]) - interquartile_mean(drawn[0])
                )
                improvement_band = stratified_interval(
                    pair, lambda drawn: probability_of_improvement(*drawn)
                )
        band = over_seeds(late[k][:, None])[1]
        rows.append(
            Learned(
                letter=side.letter,
                seeds=[seed.seed for seed in group.seeds],
                middle=middles[k],
                band=None if band is None else (float(band[0][0]), float(band[1][0])),
                difference=difference,
                difference_band=difference_band,
                improvement=improvement,
                improvement_band=improvement_band,
                steps_to=None if level is None else _steps_to(group, level, points, width),
            )
        )
    return Table(env_id=env_id, metric=metric, end=end, level=level, rows=rows)


def _steps_to(group: Group, level: float, points: Array, width: float) -> float | None:
    """Where the smoothed curve over seeds first reaches a level."""
    curve, _ = over_seeds(np.stack([seed.smoothed(points, width) for seed in group.seeds]))
    reached = np.flatnonzero(curve >= level)
    return float(points[reached[0]]) if len(reached) else None


def _over_environments(
    sides: Sequence[Side], values: Sequence[Sequence[Array]]
) -> dict[str, tuple[float, Interval]]:
    """The probability of improvement over A, its mean over environments: it has no unit."""
    if len(values) < 2:
        return {}
    found: dict[str, tuple[float, Interval]] = {}
    for k, side in enumerate(sides[1:], 1):
        strata = [one for late in values for one in (late[0], late[k])]

        def mean(drawn: Sequence[Array]) -> Array:
            pairs = zip(drawn[::2], drawn[1::2], strict=True)
            return np.mean([probability_of_improvement(a, b) for a, b in pairs], axis=0)

        band = stratified_interval(strata, mean) if min(map(len, strata)) > 1 else None
        found[side.letter] = float(mean(strata)), band
    return found


def _few(tables: Sequence[Table]) -> list[str]:
    fewest = min((len(row.seeds) for table in tables for row in table.rows), default=5)
    if fewest == 1:
        return ["one seed tells nothing of chance: train more with --seeds 1-5"]
    if fewest < 5:
        return [f"with {fewest} seeds, intervals are narrower than 95 %: train five or more"]
    return []


def _differences(sides: Sequence[Side], common: Sequence[str]) -> dict[str, list[str]]:
    """What of algorithm, options and versions is not the same on all sides."""
    each: list[dict[str, list[str]]] = []
    for side in sides:
        own: dict[str, list[str]] = {}
        for content in side.runs.values():
            if content["env_id"] not in common:
                continue
            options = {k: v for k, v in content["config"].items() if k not in _OF_A_RUN}
            versions = {f"version of {k}": v for k, v in content["versions"].items()}
            about = {"algorithm": content["algorithm"], "network": content["network"]}
            for name, value in {**about, **options, **versions}.items():
                text = "none" if value is None else comparison.text_of(value)
                if text not in own.setdefault(name, []):
                    own[name].append(text)
        each.append(own)
    names = dict.fromkeys(name for own in each for name in own)
    told = {name: [" | ".join(sorted(own.get(name, []))) for own in each] for name in names}
    return {name: values for name, values in told.items() if len(set(values)) > 1}
