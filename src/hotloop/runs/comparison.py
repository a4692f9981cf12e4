"""Runs side by side: which of them are seeds of one thing, and what these say together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from hotloop.errors import ConfigError, RunDirectoryError, nearest
from hotloop.runs.directory import RunDirectory
from hotloop.statistics import bootstrap_interval, interquartile_mean
from hotloop.types import Array

# What is compared anyway, or stands beside the configuration.
_COMPARED = {"total_timesteps"}
_NOT_COMPARED = {"seed", "env_id", "torch_threads", "execution", "compile"}
_MAX_POINTS = 200
# What a curve may be drawn over, and how axes call it.
Over = Literal["steps", "time", "updates"]
OVER: dict[Over, str] = {"steps": "steps", "time": "time, s", "updates": "updates"}
# Metrics of episodes and evaluations, and how axes call them; all others are of an iteration.
EPISODES = {"return": "episode_returns", "length": "episode_lengths"}
NAMES = {
    "return": "undiscounted return of training episodes",
    "length": "steps in a training episode",
    "evaluation": "mean undiscounted return of an evaluation",
}
NO_METRICS = {"iteration", "timesteps", "elapsed_s"}
# Before the name of an environment's number, where a metric of the algorithm is called so too.
INFO = "info/"
_SMOOTHED_SHARE = 0.05  # of the steps


@dataclass(frozen=True, eq=False, kw_only=True)
class SeedCurve:
    """The training episodes of one run, or another metric of it.

    Attributes:
        path: its directory.
        seed: the run's.
        at: (E,), ascending: after how many steps each episode ended, or seconds, or updates.
        values: float64, (E,), undiscounted returns, or what is looked at instead.
        end: of the run: transitions collected, or seconds, or updates.
    """

    path: Path
    seed: int
    at: Array = field(repr=False)
    values: Array = field(repr=False)
    end: float

    def smoothed(self, points: Array, width: float) -> Array:
        """Mean of the episodes that ended in the last `width` steps before each point.

        Args:
            points: float64, (G,), ascending.
            width: steps, or seconds, or updates.

        Returns:
            float64, (G,). Bridged by a line where none ended; NaN before the first one, and after
            the run's own end.
        """
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        stop = np.searchsorted(self.at, points, side="right")
        start = np.searchsorted(self.at, points - width, side="right")
        has_any = stop > start
        curve = np.full(len(points), np.nan)
        if has_any.any():
            means = (sums[stop] - sums[start])[has_any] / (stop - start)[has_any]
            curve = np.interp(points, points[has_any], means, left=np.nan)
        # One more point than the run has, so that a line reaches its end.
        last = int(np.searchsorted(points, self.end))
        curve[last + 1 :] = np.nan
        return curve

    def late(self, end: float) -> float:
        """Mean over the last tenth before `end`, or the last one before that; NaN: there is none.

        Args:
            end: steps, or seconds, or updates.
        """
        stop = int(np.searchsorted(self.at, end, side="right"))
        start = min(int(np.searchsorted(self.at, 0.9 * end, side="right")), stop - 1)
        return float(self.values[start:stop].mean()) if stop else math.nan


@dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Runs that differ by their seed alone.

    Attributes:
        env_id: the environment.
        algorithm: the algorithm.
        options: what tells the group from others of this environment and algorithm.
        seeds: its runs, by seed.
    """

    env_id: str
    algorithm: str
    options: dict[str, Any]
    seeds: list[SeedCurve]

    @property
    def label(self) -> str:
        """The algorithm and the options that are set: `ppo, learning_rate=0.0003`."""
        given = {name: value for name, value in self.options.items() if value is not None}
        options = (f"{name}={text_of(value)}" for name, value in given.items())
        return ", ".join([self.algorithm, *options])

    @property
    def end(self) -> float:
        """Steps that all seeds have; or seconds, or updates."""
        return min(seed.end for seed in self.seeds)

    def late(self, end: float | None = None) -> Array:
        """Each seed's mean over the last tenth of the steps, float64, (S,); see `SeedCurve.late`.

        Args:
            end: steps, or seconds, or updates; None for those that all seeds have.
        """
        until = self.end if end is None else end
        return np.array([seed.late(until) for seed in self.seeds])

    def final(self) -> tuple[float, tuple[float, float] | None]:
        """Sum up the last tenth of the steps that all seeds have.

        Returns:
            The interquartile mean over seeds of each one's mean, and its 95 % interval, None of
            one seed. NaN where a seed has no episode by then.
        """
        middle, band = over_seeds(self.late()[:, None])
        return float(middle[0]), None if band is None else (float(band[0][0]), float(band[1][0]))


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, and runs that are in none.

    Attributes:
        groups: by environment and label.
        left_out: directories, and why each is not in a group.
    """

    groups: list[Group]
    left_out: list[tuple[Path, str]]


def compare(paths: Iterable[Path], *, metric: str = "return", over: Over = "steps") -> Comparison:
    """Put runs into groups by environment, algorithm and configuration, whatever the seed.

    Options that change nothing that is learned (directories, checkpoints, evaluations, trackers,
    threads, compilation) are not looked at. Of several runs with one configuration and one seed,
    which would have to be the same, the longest is taken, of equals the last one.

    Args:
        paths: run directories.
        metric: `return` and `length` of training episodes, `evaluation`, any number that is
            logged of an iteration, or an environment's own number of episodes (`info/NAME` where
            both are called so).
        over: what it is drawn over.

    Raises:
        ConfigError: no run has this metric, though some have others.
    """
    known: set[str] = set()
    left_out: list[tuple[Path, str]] = []
    seeds: dict[tuple[str, str, str], dict[int, SeedCurve]] = {}
    for path in paths:
        try:
            env_id, algorithm, options, curve, has = _read(path, metric, over)
        except RunDirectoryError as error:
            left_out.append((path, str(error)))
            continue
        known |= has
        if not len(curve.at):
            without = "no episode that ended" if metric in EPISODES else f"no `{metric}`"
            left_out.append((path, f"{path} has {without}"))
            continue
        group = seeds.setdefault((env_id, algorithm, json.dumps(options, sort_keys=True)), {})
        other = group.get(curve.seed)
        if other is not None and other.end > curve.end:
            curve, other = other, curve
        if other is not None:
            same = f"the configuration and the seed of {curve.path}"
            left_out.append((other.path, f"{other.path} has {same}, which is taken instead"))
        group[curve.seed] = curve
    if not seeds and known and metric not in known | {*NAMES}:
        hint = nearest(metric, known | {*NAMES}) or ""
        raise ConfigError(
            f"`--metric` must be one that the runs have ({', '.join(sorted(known | {*NAMES}))}), "
            f"got '{metric}'{hint}"
        )
    return Comparison(_named(seeds), left_out)


def episodes_in(lines: Sequence[Mapping[str, Any]]) -> tuple[Array, Array]:
    """Every training episode of a run, from the lines of its `metrics.jsonl`.

    Returns:
        The step at which it ended, int64, (E,), ascending, and its undiscounted return, float64,
        (E,). The episodes of an iteration are spread over its steps, in the order in which they
        ended.
    """
    steps, returns = spread(lines, EPISODES["return"], _ends(lines, "steps"))
    return np.ceil(steps).astype(np.int64), returns


def over_seeds(curves: Array) -> tuple[Array, tuple[Array, Array] | None]:
    """Interquartile mean over seeds, and its 95 % bootstrap interval.

    Args:
        curves: float64, (S, G).

    Returns:
        float64, (G,), and the lower and the upper bound; None in their place where S = 1.
    """
    middle = interquartile_mean(curves)
    return middle, None if len(curves) == 1 else bootstrap_interval(curves)


def grid(groups: list[Group]) -> tuple[Array, float]:
    """Where curves of one environment are compared.

    Returns:
        Steps, or seconds, or updates, float64, (G,), and the width to smooth over. There are no
        more points than episodes: a finer curve would be a staircase.
    """
    seeds = [seed for group in groups for seed in group.seeds]
    end = max(seed.end for seed in seeds)
    num_points = min(_MAX_POINTS, max(len(np.unique(seed.at)) for seed in seeds))
    return np.linspace(0.0, end, num_points + 1)[1:], max(_SMOOTHED_SHARE * end, end / num_points)


def _read(
    path: Path, metric: str, over: Over
) -> tuple[str, str, dict[str, Any], SeedCurve, set[str]]:
    """Return what a run is of, its curve, and the metrics that it has."""
    run = RunDirectory.open(path)
    content, lines = run.config, run.metrics()
    same = (set(content["may_change"]) - _COMPARED) | _NOT_COMPARED
    options = {k: v for k, v in content["config"].items() if k not in same}
    options["network"] = content["network"]
    ends = _ends(lines, over)
    infos = info_names(lines)
    own = metric.removeprefix(INFO)
    has_metric = any(_number(line, metric) is not None for line in lines)
    if metric in EPISODES or (own in infos and not has_metric):
        name = EPISODES.get(metric, "episode_info")
        try:
            at, values = spread(lines, name, ends, own if name == "episode_info" else None)
        except (TypeError, ValueError) as error:
            raise RunDirectoryError(
                f"{path}: `{name}` of metrics.jsonl must be lists of numbers: it is damaged"
            ) from error
    else:
        found = [(end, _number(line, metric)) for end, line in zip(ends, lines, strict=True)]
        pairs = np.array([x for x in found if x[1] is not None], np.float64).reshape(-1, 2)
        at, values = pairs[:, 0], pairs[:, 1]
    curve = SeedCurve(
        path=path,
        seed=content["config"]["seed"],
        at=at,
        values=values,
        end=ends[-1] if ends else 0.0,
    )
    has = {name for line in lines[-1:] for name in line if _number(line, name) is not None}
    has |= {name if name not in has else f"{INFO}{name}" for name in infos}
    return content["env_id"], content["algorithm"], options, curve, has - NO_METRICS


def info_names(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the environment's own numbers, in the order in which they came up."""
    return [*dict.fromkeys(name for line in lines for name in line.get("episode_info") or ())]


def _ends(lines: Sequence[Mapping[str, Any]], over: Over) -> list[float]:
    """Return where each iteration ended."""
    if over == "steps":
        return [float(line["timesteps"]) for line in lines]
    if over == "time":
        return [float(line["elapsed_s"] or 0.0) for line in lines]
    return np.cumsum([_number(line, "num_updates") or 0.0 for line in lines]).tolist()


def spread(
    lines: Sequence[Mapping[str, Any]], name: str, ends: Sequence[float], own: str | None = None
) -> tuple[Array, Array]:
    """Return where the episodes of each iteration ended, about, and what is known of them.

    Args:
        lines: of `metrics.jsonl`.
        name: of the lists, or of the objects that have lists.
        ends: where each iteration ended.
        own: which of those; episodes that don't have it are left out.
    """
    values: list[float | None] = []
    counts = np.zeros(len(lines), np.int64)
    for k, line in enumerate(lines):
        ended: Any = line.get(name) or []
        if own is not None and ended:
            ended = ended.get(own) or []
        counts[k] = len(ended)
        values += ended
    stops = np.asarray(ends, np.float64)
    starts = np.concatenate([[0.0], stops])[: len(stops)]
    # The place of each in its iteration, from 1.
    place = np.arange(1, len(values) + 1) - np.repeat(np.cumsum(counts) - counts, counts)
    at = np.repeat(stops - starts, counts) * place / np.repeat(counts, counts)
    at += np.repeat(starts, counts)
    numbers = np.asarray(values, np.float64)  # None becomes NaN
    if own is None:
        return at, numbers
    return at[~np.isnan(numbers)], numbers[~np.isnan(numbers)]


def _number(line: Mapping[str, Any], metric: str) -> float | None:
    """Return a metric of an iteration; None where it has none."""
    value = line.get(metric)
    if metric == "evaluation" and value is not None:
        value = value["mean_return"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value)


def _named(seeds: dict[tuple[str, str, str], dict[int, SeedCurve]]) -> list[Group]:
    """Groups, each with those options in which it differs from its like."""
    groups: list[Group] = []
    for (env_id, algorithm, text), curves in seeds.items():
        own = json.loads(text)
        alike = [json.loads(key[2]) for key in seeds if key[:2] == (env_id, algorithm)]
        names = sorted({name for options in alike for name in options})
        options = {
            name: own[name]
            for name in names
            if name in own and any(name not in o or o[name] != own[name] for o in alike)
        }
        ordered = [curves[seed] for seed in sorted(curves)]
        groups.append(Group(env_id=env_id, algorithm=algorithm, options=options, seeds=ordered))
    return sorted(groups, key=lambda group: (group.env_id, group.label))


def text_of(value: Any) -> str:
    """An option's value as a label or a table has it."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
