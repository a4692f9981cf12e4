"""Groups of runs with the same configuration, and their learning curves over seeds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hotloop.base.redaction import redacted_options
from hotloop.base.statistics import bootstrap_interval, interquartile_mean
from hotloop.errors import ConfigError, RunDirectoryError, UntrustedError, nearest
from hotloop.runs import trust
from hotloop.runs.directory import RunDirectory
from hotloop.runs.episodes import EPISODE_LISTS, info_names, spread_episodes
from hotloop.types import Array

# Options that always or never distinguish groups, regardless of `may_change`.
_ALWAYS_COMPARED = {"total_timesteps"}
_NEVER_COMPARED = {"seed", "env_id", "torch_threads", "execution", "compile"}
_MAX_POINTS = 200
# Quantities of the horizontal axis, and their labels.
XAxis = Literal["steps", "time", "updates"]
X_AXIS_LABELS: dict[XAxis, str] = {"steps": "steps", "time": "time, s", "updates": "updates"}
# Metrics of episodes and evaluations, with their labels. All other metrics are per iteration.
METRIC_LABELS = {
    "return": "undiscounted return of training episodes",
    "length": "steps in a training episode",
    "evaluation": "mean undiscounted return of an evaluation",
}
NON_METRICS = {"iteration", "timesteps", "elapsed_s"}
# Prefix of an environment's metric that has the same name as a metric of the algorithm.
INFO_PREFIX = "info/"
_SMOOTHED_SHARE = 0.05  # share of the horizontal axis


@dataclass(frozen=True, eq=False, kw_only=True)
class SeedCurve:
    """A metric of one run, such as the returns of its training episodes.

    Attributes:
        path: the run directory.
        seed: the seed.
        positions: steps, seconds or updates before each value, ascending, (E,).
        values: undiscounted returns, or values of another metric, float64, (E,).
        end: steps, seconds or updates of the run.
    """

    path: Path
    seed: int
    positions: Array = field(repr=False)
    values: Array = field(repr=False)
    end: float

    def smoothed(self, points: Array, width: float) -> Array:
        """Return the mean of the values in the last `width` before each point.

        Args:
            points: steps, seconds or updates, ascending, float64, (G,).
            width: steps, seconds or updates.

        Returns:
            Means, float64, (G,). Points without values are interpolated. Those before the first
            value and after the end of the run are NaN.
        """
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        stop = np.searchsorted(self.positions, points, side="right")
        start = np.searchsorted(self.positions, points - width, side="right")
        has_any = stop > start
        curve = np.full(len(points), np.nan)
        if has_any.any():
            means = (sums[stop] - sums[start])[has_any] / (stop - start)[has_any]
            curve = np.interp(points, points[has_any], means, left=np.nan)
        # Keep one point after the end, so that a line reaches the end.
        last = int(np.searchsorted(points, self.end))
        curve[last + 1 :] = np.nan
        return curve

    def late_mean(self, end: float) -> float:
        """Return the mean of the last tenth before `end`, or else the last value before it, or NaN.

        Args:
            end: steps, seconds or updates.
        """
        stop = int(np.searchsorted(self.positions, end, side="right"))
        start = min(int(np.searchsorted(self.positions, 0.9 * end, side="right")), stop - 1)
        return float(self.values[start:stop].mean()) if stop else math.nan


@dataclass(frozen=True, eq=False, kw_only=True)
class RunGroup:
    """Runs that differ only in their seeds.

    Attributes:
        env_id, algorithm: the environment and the algorithm.
        options: options that differ from other groups of this environment and algorithm.
        seeds: the runs, by seed.
    """

    env_id: str
    algorithm: str
    options: dict[str, Any]
    seeds: list[SeedCurve]

    @property
    def label(self) -> str:
        """The algorithm and the options that are not None: `ppo, learning_rate=0.0003`."""
        set_options = {name: value for name, value in self.options.items() if value is not None}
        options = (f"{name}={value_text(value)}" for name, value in set_options.items())
        return ", ".join([self.algorithm, *options])

    @property
    def end(self) -> float:
        """Steps, seconds or updates of the shortest run."""
        return min(seed.end for seed in self.seeds)

    def late_means(self, end: float | None = None) -> Array:
        """Return `SeedCurve.late_mean` of each seed, float64, (S,).

        Args:
            end: steps, seconds or updates, or None for the end of the shortest run.
        """
        until = self.end if end is None else end
        return np.array([seed.late_mean(until) for seed in self.seeds])

    def final_score(self) -> tuple[float, tuple[float, float] | None]:
        """Return the performance in the last tenth of the steps that all seeds have.

        Returns:
            The interquartile mean over seeds of their means, and its 95 % interval, which is None
            for one seed. NaN if a seed has no value by then.
        """
        middle, band = aggregate_seeds(self.late_means()[:, None])
        return float(middle[0]), None if band is None else (float(band[0][0]), float(band[1][0]))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with the performance of the group. NaN stays."""
        middle, band = self.final_score()
        return {
            "env_id": self.env_id,
            "algorithm": self.algorithm,
            "options": self.options,
            "seeds": [seed.seed for seed in self.seeds],
            "runs": [str(seed.path) for seed in self.seeds],
            "end": self.end,
            "interquartile_mean": middle,
            "interval": None if math.isnan(middle) else band,
        }


@dataclass(frozen=True)
class GroupedRuns:
    """Groups of runs.

    Attributes:
        groups: the groups, by environment and label.
        skipped: run directories that are in no group, and the reasons.
    """

    groups: list[RunGroup]
    skipped: list[tuple[Path, str]]

    def to_json(self) -> dict[str, Any]:
        """Return JSON values, with the performance of each group. NaN stays."""
        left_out = [{"path": str(path), "why": reason} for path, reason in self.skipped]
        return {"groups": [group.to_json() for group in self.groups], "left_out": left_out}


def group_runs(
    paths: Iterable[Path], *, metric: str = "return", x_axis: XAxis = "steps"
) -> GroupedRuns:
    """Group runs by environment, algorithm and configuration, regardless of the seed.

    Options that do not influence the learned policy (directories, checkpoints, evaluations,
    trackers, threads, compilation) are ignored. Runs with the same configuration and seed should be
    equal. The group contains only the longest of them, or the last one of equal length.

    Args:
        paths: run directories.
        metric: `return` or `length` of training episodes, `evaluation`, any number logged per
            iteration, or an environment's own metric of episodes (`info/NAME` if a metric of
            iterations has the same name).
        x_axis: quantity of the horizontal axis.

    Raises:
        ConfigError: no run has this metric, but the runs have others.
    """
    known: set[str] = set()
    skipped: list[tuple[Path, str]] = []
    seeds: dict[tuple[str, str, str], dict[int, SeedCurve]] = {}
    for path in paths:
        try:
            env_id, algorithm, options, curve, metric_names = _read_run(path, metric, x_axis)
        except (RunDirectoryError, UntrustedError) as error:
            skipped.append((path, str(error)))
            continue
        known |= metric_names
        if not len(curve.positions):
            missing = "no finished episode" if metric in EPISODE_LISTS else f"no `{metric}`"
            skipped.append((path, f"{path} has {missing}"))
            continue
        group = seeds.setdefault((env_id, algorithm, json.dumps(options, sort_keys=True)), {})
        other = group.get(curve.seed)
        if other is not None and other.end > curve.end:
            curve, other = other, curve
        if other is not None:
            shared = f"the configuration and the seed of {curve.path}"
            skipped.append((other.path, f"{other.path} has {shared}, which is used instead"))
        group[curve.seed] = curve
    if not seeds and known and metric not in known | {*METRIC_LABELS}:
        hint = nearest(metric, known | {*METRIC_LABELS}) or ""
        raise ConfigError(
            f"`--metric` must be one that the runs have "
            f"({', '.join(sorted(known | {*METRIC_LABELS}))}), got '{metric}'{hint}"
        )
    return GroupedRuns(_labeled_groups(seeds), skipped)


def aggregate_seeds(curves: Array) -> tuple[Array, tuple[Array, Array] | None]:
    """Return the interquartile mean over seeds and its 95 % bootstrap interval.

    Args:
        curves: a curve per seed, float64, (S, G).

    Returns:
        The mean, float64, (G,), and a pair of bounds like it, or None if S = 1.
    """
    middle = interquartile_mean(curves)
    return middle, None if len(curves) == 1 else bootstrap_interval(curves)


def comparison_grid(groups: list[RunGroup]) -> tuple[Array, float]:
    """Return the points at which the curves of one environment are compared.

    Returns:
        Steps, seconds or updates, float64, (G,), and the width for smoothing. There are at most as
        many points as episodes, since a finer curve would be a staircase.
    """
    seeds = [seed for group in groups for seed in group.seeds]
    end = max(seed.end for seed in seeds)
    num_points = min(_MAX_POINTS, max(len(np.unique(seed.positions)) for seed in seeds))
    return np.linspace(0.0, end, num_points + 1)[1:], max(_SMOOTHED_SHARE * end, end / num_points)


def _read_run(
    path: Path, metric: str, x_axis: XAxis
) -> tuple[str, str, dict[str, Any], SeedCurve, set[str]]:
    """Return environment, algorithm, options and curve of a run, and the names of its metrics."""
    run = RunDirectory.open(path)
    trust.check_unchanged(path, run.config)
    content, lines = run.config, run.metrics()
    ignored = (set(content["may_change"]) - _ALWAYS_COMPARED) | _NEVER_COMPARED
    config = redacted_options(content["config"])
    options = {k: v for k, v in config.items() if k not in ignored}
    options["network"] = content["network"]
    ends = _iteration_ends(lines, x_axis)
    infos = info_names(lines)
    info_name = metric.removeprefix(INFO_PREFIX)
    has_metric = any(_number(line, metric) is not None for line in lines)
    if metric in EPISODE_LISTS or (info_name in infos and not has_metric):
        name = EPISODE_LISTS.get(metric, "episode_info")
        try:
            positions, values = spread_episodes(
                lines, name, ends, info_name if name == "episode_info" else None
            )
        except (TypeError, ValueError, OverflowError) as error:
            raise RunDirectoryError(
                f"{path} is damaged: `{name}` in metrics.jsonl must be lists of numbers"
            ) from error
    else:
        points = [(end, _number(line, metric)) for end, line in zip(ends, lines, strict=True)]
        pairs = np.array([x for x in points if x[1] is not None], np.float64).reshape(-1, 2)
        positions, values = pairs[:, 0], pairs[:, 1]
    is_finite = np.isfinite(values)  # the mean of later values must not depend on others
    curve = SeedCurve(
        path=path,
        seed=content["config"]["seed"],
        positions=positions[is_finite],
        values=values[is_finite],
        end=ends[-1] if ends else 0.0,
    )
    metric_names = {name for line in lines[-1:] for name in line if _number(line, name) is not None}
    metric_names |= {name if name not in metric_names else f"{INFO_PREFIX}{name}" for name in infos}
    return content["env_id"], content["algorithm"], options, curve, metric_names - NON_METRICS


def _iteration_ends(lines: Sequence[Mapping[str, Any]], x_axis: XAxis) -> list[float]:
    """Return the steps, seconds or updates at the end of each iteration."""
    if x_axis == "steps":
        return [float(line["timesteps"]) for line in lines]
    if x_axis == "time":
        return [float(line["elapsed_s"] or 0.0) for line in lines]
    ends, total = [], 0.0
    for line in lines:
        # Off-policy algorithms log the updates so far, on-policy ones those of the iteration.
        count = _number(line, "num_updates") or 0.0
        total = max(total, count) if "replay_size" in line else total + count
        ends.append(total)
    return ends


def _number(line: Mapping[str, Any], metric: str) -> float | None:
    value = line.get(metric)
    if metric == "evaluation" and value is not None:
        value = value["mean_return"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:  # an integer that no run writes
        return None


def _labeled_groups(seeds: dict[tuple[str, str, str], dict[int, SeedCurve]]) -> list[RunGroup]:
    """Return groups with the options that differ between groups of an environment and algorithm."""
    groups: list[RunGroup] = []
    for (env_id, algorithm, text), curves in seeds.items():
        run_options = json.loads(text)
        all_options = [json.loads(key[2]) for key in seeds if key[:2] == (env_id, algorithm)]
        names = sorted({name for options in all_options for name in options})
        options = {
            name: run_options[name]
            for name in names
            if name in run_options
            and any(name not in o or o[name] != run_options[name] for o in all_options)
        }
        ordered = [curves[seed] for seed in sorted(curves)]
        groups.append(RunGroup(env_id=env_id, algorithm=algorithm, options=options, seeds=ordered))
    return sorted(groups, key=lambda group: (group.env_id, group.label))


def value_text(value: Any) -> str:
    """Return an option's value as text for labels and tables."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
