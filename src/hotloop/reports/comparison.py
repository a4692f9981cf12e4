"""Comparison of runs: options that differ, performance at equal steps, and speed.

A side is a run, or a directory of runs that differ only in their seeds. The bootstrap resamples the
seeds of each side, as Agarwal et al. 2021, arXiv:2108.13264, do for each task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base.redaction import redacted_options
from hotloop.base.statistics import (
    interquartile_mean,
    probability_of_improvement,
    stratified_interval,
)
from hotloop.errors import ConfigError, ProfileError, RunDirectoryError, UntrustedError
from hotloop.profiler.diagnose.comparison import ProfileComparison, compare
from hotloop.profiler.session.reading import read
from hotloop.reports import run_groups
from hotloop.reports.run_groups import RunGroup, aggregate_seeds, comparison_grid
from hotloop.runs import trust
from hotloop.runs.directory import RunDirectory
from hotloop.runs.episodes import EPISODE_LISTS
from hotloop.runs.summary import find_runs
from hotloop.types import Array

Interval = tuple[float, float] | None
# Options that may differ between runs of a side. Each env_id gets a separate table.
_RUN_OPTIONS = {"seed", "run_dir", "runs_dir", "env_id"}
# Metrics of which higher values are better.
_HIGHER_IS_BETTER = ("return", "evaluation")


@dataclass(frozen=True, kw_only=True)
class RunSide:
    """One side of a comparison.

    Attributes:
        letter: "A", "B", ….
        path: path passed by the user.
        runs: content of the `config.json` of each run, by directory.
        skipped: error messages of unreadable runs.
    """

    letter: str
    path: Path
    runs: dict[Path, dict[str, Any]]
    skipped: list[str] = field(default_factory=list)

    @property
    def label(self) -> str:
        """The letter and the path, such as `A (runs/one)`."""
        return f"{self.letter} ({self.path})"

    @property
    def seeds(self) -> list[int]:
        """Seeds of its runs."""
        return sorted({content["config"]["seed"] for content in self.runs.values()})

    @property
    def env_ids(self) -> list[str]:
        """Ids of its environments."""
        return sorted({content["env_id"] for content in self.runs.values()})


@dataclass(frozen=True, kw_only=True)
class SideResult:
    """The row of a side in a table. Intervals are 95 %, and None for one seed.

    Attributes:
        letter: letter of the side.
        seeds: seeds of its runs.
        middle, band: interquartile mean over seeds in the last tenth of the steps.
        difference, difference_band: difference of `middle` from A's, None for A itself.
        improvement, improvement_band: probability that a run of this side exceeds one of A.
        steps_to: steps until its curve reaches the table's level, or None.
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
        """The conclusion from the interval of the difference, as text."""
        if self.difference is None:
            return ""
        if self.difference_band is None:
            return "one seed: may be chance"
        low, high = self.difference_band
        return "higher" if low > 0 else "lower" if high < 0 else "within noise"


@dataclass(frozen=True, kw_only=True)
class MetricTable:
    """The results for one metric in one environment.

    Attributes:
        env_id, metric: the environment and the metric.
        end: steps of the shortest run.
        level: lowest `middle` of all sides. None unless higher values are better.
        rows: the results of each side.
    """

    env_id: str
    metric: str
    end: float
    level: float | None
    rows: list[SideResult]


@dataclass(frozen=True, kw_only=True)
class RunComparison:
    """The comparison of all sides.

    Attributes:
        sides: the sides.
        options: values of each side as text ("" if it has none), for each option that differs.
        tables: tables of all environments and metrics.
        improvement: mean probability of improvement over A over all environments and its interval,
            by letter. Empty for one environment.
        speed: comparison of the speed of two single runs, None for other sides.
        notes: messages on what is not compared, and on small numbers of seeds.
    """

    sides: list[RunSide]
    options: dict[str, list[str]]
    tables: list[MetricTable]
    improvement: dict[str, tuple[float, Interval]]
    speed: ProfileComparison | None
    notes: list[str]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with the sides by letter."""
        letters = [side.letter for side in self.sides]
        return {
            "sides": [
                {
                    "name": side.letter,
                    "path": str(side.path),
                    "env_ids": side.env_ids,
                    "runs": [str(path) for path in side.runs],
                    "seeds": side.seeds,
                }
                for side in self.sides
            ],
            "options": {
                name: dict(zip(letters, values, strict=True))
                for name, values in self.options.items()
            },
            "learning": [
                vars(table) | {"rows": [vars(x) | {"verdict": x.verdict} for x in table.rows]}
                for table in self.tables
            ],
            "improvement": {
                name: {"mean": share, "interval": band}
                for name, (share, band) in self.improvement.items()
            },
            "speed": None if self.speed is None else self.speed.to_json(),
            "notes": self.notes,
        }


def compare_runs(paths: Sequence[Path], *, metric: str | None = None) -> RunComparison:
    """Compare runs, or directories of runs, in all respects.

    Raises:
        ConfigError, RunDirectoryError: see `load_sides` and `compare_learning`.
    """
    sides = load_sides(paths)
    result = compare_learning(sides, metric=metric)
    if len(sides) != 2:
        return result
    speed, notes = None, list(result.notes)
    if all(len(side.runs) == 1 for side in sides):
        try:
            sessions = [read(next(iter(side.runs))) for side in sides]
            speed = compare(*sessions)
            notes += [problem for session in sessions for problem in session.problems]
        except ProfileError as error:
            notes.append(f"speed is not compared: {error}")
    else:
        notes.append("speed is not compared: it needs one run on each side")
    return replace(result, speed=speed, notes=notes)


def load_sides(paths: Sequence[Path]) -> list[RunSide]:
    """Return the sides with their runs.

    Raises:
        ConfigError: a run is on two sides, or the sides have no environment in common.
        RunDirectoryError: a side has no readable run.
    """
    sides: list[RunSide] = []
    owner: dict[Path, RunSide] = {}
    for k, path in enumerate(paths):
        side = RunSide(letter=letter(k), path=path, runs={})
        for run in find_runs(path):
            try:
                content = RunDirectory.open(run).config
                trust.check_unchanged(run, content)
                side.runs[run] = content
            except (RunDirectoryError, UntrustedError) as error:
                side.skipped.append(str(error))
        if not side.runs:
            reason = side.skipped[0] if side.skipped else "it has no run: see `hotloop runs`"
            raise RunDirectoryError(f"{side.label} can't be compared: {reason}")
        for run in side.runs:
            other = owner.setdefault(run.resolve(), side)
            if other is not side:
                raise ConfigError(
                    f"each run must be on one side, got {run} in {other.label} and {side.label}: "
                    "pass another one"
                )
        sides.append(side)
    if not set.intersection(*({*side.env_ids} for side in sides)):
        env_ids = ", ".join(f"{side.label} with {', '.join(side.env_ids)}" for side in sides)
        raise ConfigError(
            f"all sides must have an environment in common, got {env_ids}: pass such runs, or use "
            "`hotloop plot`, which draws a panel per environment"
        )
    return sides


def letter(number: int) -> str:
    """Return the letter of a side: A, B, …, Z, A2, …."""
    turn, number = divmod(number, 26)
    return chr(ord("A") + number) + (str(turn + 1) if turn else "")


def compare_learning(sides: Sequence[RunSide], *, metric: str | None = None) -> RunComparison:
    """Compare the options of the sides, and their performance at equal steps.

    Args:
        sides: sides from `load_sides`.
        metric: metric for `run_groups.group_runs`, or None for the returns of training episodes and
            evaluations, if all sides have them.

    Raises:
        ConfigError: a side has two configurations in one environment, or no side has the metric.
        RunDirectoryError: one of the sides lacks the metric.
    """
    common = sorted(set.intersection(*({*side.env_ids} for side in sides)))
    notes = [reason for side in sides for reason in side.skipped]
    for side in sides:
        if alone := [env_id for env_id in side.env_ids if env_id not in common]:
            notes.append(f"not compared: {', '.join(alone)} of {side.label}, since not all have it")
    tables: list[MetricTable] = []
    values: dict[str, list[list[Array]]] = {}  # by metric, environment and side
    for name in ("return", "evaluation") if metric is None else (metric,):
        by_side = _groups_by_environment(sides, name, notes, is_explicit=metric is not None)
        for env_id in common:
            groups = [groups.get(env_id) for groups in by_side]
            if present := [group for group in groups if group is not None]:
                without = [s.label for s, group in zip(sides, groups, strict=True) if group is None]
                if without:
                    notes.append(f"{env_id}: {name} is not compared, {', '.join(without)} lacks it")
                    continue
                end = min(group.end for group in present)
                late = [group.late_means(end) for group in present]
                if empty := [
                    s.label for s, x in zip(sides, late, strict=True) if np.isnan(x).any()
                ]:
                    notes.append(
                        f"{env_id}: {name} is not compared, a run of {', '.join(empty)} has none "
                        f"until step {end:,.0f}, the end of the shortest run"
                    )
                    continue
                table = _metric_table(env_id, name, sides, present, end, late)
                tables.append(table)
                values.setdefault(name, []).append(late)
    notes += _seed_notes(tables)
    return RunComparison(
        sides=list(sides),
        options=_differing_options(sides, common),
        tables=tables,
        improvement=_mean_improvement(sides, next(iter(values.values()), [])),
        speed=None,
        notes=list(dict.fromkeys(notes)),
    )


def _groups_by_environment(
    sides: Sequence[RunSide], metric: str, notes: list[str], *, is_explicit: bool
) -> list[dict[str, RunGroup]]:
    """Return each side's groups that have the metric, by environment."""
    by_side: list[dict[str, RunGroup]] = []
    errors: list[ConfigError] = []
    for side in sides:
        try:
            compared = run_groups.group_runs(side.runs, metric=metric)
        except ConfigError as error:
            errors.append(error)
            by_side.append({})
            continue
        groups: dict[str, RunGroup] = {}
        for group in compared.groups:
            if group.env_id in groups:
                raise ConfigError(
                    f"the runs of {side.label} must differ only in their seeds, got "
                    f"{groups[group.env_id].label} and {group.label} in {group.env_id}: pass a "
                    "directory for each"
                )
            groups[group.env_id] = group
        if compared.groups or metric != "evaluation" or is_explicit:
            notes += [reason for _, reason in compared.skipped]
        by_side.append(groups)
    if len(errors) == len(sides):
        raise errors[0]
    if is_explicit and not all(by_side):
        lacking = " and ".join(
            s.label for s, groups in zip(sides, by_side, strict=True) if not groups
        )
        missing = "no finished episode" if metric in EPISODE_LISTS else f"no `{metric}`"
        raise RunDirectoryError(f"{lacking} has {missing}: pass another --metric, or other runs")
    return by_side


def _metric_table(
    env_id: str,
    metric: str,
    sides: Sequence[RunSide],
    groups: Sequence[RunGroup],
    end: float,
    late: Sequence[Array],
) -> MetricTable:
    """Return the results of all sides for one metric. `late`: each side's means per seed."""
    middles = [float(interquartile_mean(means)) for means in late]
    level = min(middles) if metric in _HIGHER_IS_BETTER else None
    points, width = comparison_grid(list(groups))
    points = np.append(points[points < end], end)
    rows: list[SideResult] = []
    for k, (side, group) in enumerate(zip(sides, groups, strict=True)):
        difference = improvement = None
        difference_band = improvement_band = None
        if k:
            pair = (late[0], late[k])
            difference = middles[k] - middles[0]
            improvement = float(probability_of_improvement(*pair))
            if min(map(len, pair)) > 1:
                difference_band = stratified_interval(
                    pair,
                    lambda sample: interquartile_mean(sample[1]) - interquartile_mean(sample[0]),
                )
                improvement_band = stratified_interval(
                    pair, lambda sample: probability_of_improvement(*sample)
                )
        band = aggregate_seeds(late[k][:, None])[1]
        rows.append(
            SideResult(
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
    return MetricTable(env_id=env_id, metric=metric, end=end, level=level, rows=rows)


def _steps_to(group: RunGroup, level: float, points: Array, width: float) -> float | None:
    """Return the steps until the smoothed curve over seeds reaches a level, or None."""
    curve, _ = aggregate_seeds(np.stack([seed.smoothed(points, width) for seed in group.seeds]))
    reached = np.flatnonzero(curve >= level)
    return float(points[reached[0]]) if len(reached) else None


def _mean_improvement(
    sides: Sequence[RunSide], values: Sequence[Sequence[Array]]
) -> dict[str, tuple[float, Interval]]:
    """Return the mean over environments of the probability of improvement over A, by letter."""
    if len(values) < 2:
        return {}
    improvement: dict[str, tuple[float, Interval]] = {}
    for k, side in enumerate(sides[1:], 1):
        strata = [means for late in values for means in (late[0], late[k])]

        def mean(samples: Sequence[Array]) -> Array:
            pairs = zip(samples[::2], samples[1::2], strict=True)
            return np.mean([probability_of_improvement(a, b) for a, b in pairs], axis=0)

        band = stratified_interval(strata, mean) if min(map(len, strata)) > 1 else None
        improvement[side.letter] = float(mean(strata)), band
    return improvement


def _seed_notes(tables: Sequence[MetricTable]) -> list[str]:
    fewest = min((len(row.seeds) for table in tables for row in table.rows), default=5)
    if fewest == 1:
        return ["a difference of one seed may be chance: train more with --seeds 1-5"]
    if fewest < 5:
        return [f"with {fewest} seeds, intervals are narrower than 95 %: train five or more"]
    return []


def _differing_options(sides: Sequence[RunSide], common: Sequence[str]) -> dict[str, list[str]]:
    """Return the values of algorithm, options and versions that differ between sides."""
    by_side: list[dict[str, list[str]]] = []
    for side in sides:
        values: dict[str, list[str]] = {}
        for content in side.runs.values():
            if content["env_id"] not in common:
                continue
            config = redacted_options(content["config"])
            options = {k: v for k, v in config.items() if k not in _RUN_OPTIONS}
            versions = {f"version of {k}": v for k, v in content["versions"].items()}
            parts = {"algorithm": content["algorithm"], "network": content["network"]}
            for name, value in {**parts, **options, **versions}.items():
                text = "none" if value is None else run_groups.value_text(value)
                if text not in values.setdefault(name, []):
                    values[name].append(text)
        by_side.append(values)
    names = dict.fromkeys(name for values in by_side for name in values)
    texts = {name: [" | ".join(sorted(side.get(name, []))) for side in by_side] for name in names}
    return {name: values for name, values in texts.items() if len(set(values)) > 1}
