"""Runs side by side: which of them are seeds of one thing, and what these say together."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.errors import RunDirectoryError
from hotloop.runs.directory import RunDirectory
from hotloop.statistics import student_t
from hotloop.types import Array

# What is compared anyway, or stands beside the configuration.
_COMPARED = {"total_timesteps"}
_NOT_COMPARED = {"seed", "env_id", "torch_threads", "compile"}
_MAX_POINTS = 200
_SMOOTHED_SHARE = 0.05  # of the steps


@dataclass(frozen=True, eq=False, kw_only=True)
class SeedCurve:
    """The training episodes of one run.

    Attributes:
        path: its directory.
        seed: the run's.
        steps: int64, (E,), after how many steps each ended, ascending.
        returns: float64, (E,), undiscounted.
        timesteps: transitions collected.
    """

    path: Path
    seed: int
    steps: Array = field(repr=False)
    returns: Array = field(repr=False)
    timesteps: int

    def smoothed(self, points: Array, width: float) -> Array:
        """Mean return of the episodes that ended in the last `width` steps before each point.

        Args:
            points: float64, (G,), ascending.
            width: steps.

        Returns:
            float64, (G,). Bridged by a line where none ended; NaN before the first one, and after
            the run's own end.
        """
        sums = np.concatenate([[0.0], np.cumsum(self.returns)])
        stop = np.searchsorted(self.steps, points, side="right")
        start = np.searchsorted(self.steps, points - width, side="right")
        has_any = stop > start
        curve = np.full(len(points), np.nan)
        if has_any.any():
            means = (sums[stop] - sums[start])[has_any] / (stop - start)[has_any]
            curve = np.interp(points, points[has_any], means, left=np.nan)
        # One more point than the run has, so that a line reaches its end.
        last = int(np.searchsorted(points, self.timesteps))
        curve[last + 1 :] = np.nan
        return curve


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
        options = (f"{name}={_text(value)}" for name, value in given.items())
        return ", ".join([self.algorithm, *options])

    @property
    def timesteps(self) -> int:
        """Steps that all seeds have."""
        return min(seed.timesteps for seed in self.seeds)

    def final_return(self) -> tuple[float, float | None]:
        """Mean return of the episodes in the last tenth of the steps that all seeds have.

        Returns:
            The mean over seeds of each one's mean, and the half-width of its 95 % confidence
            interval, None of one seed. NaN where a seed has no episode by then.
        """
        end = self.timesteps
        means = [seed.smoothed(np.array([float(end)]), 0.1 * end)[0] for seed in self.seeds]
        mean, half_width = confidence_band(np.array(means)[:, None])
        return float(mean[0]), None if half_width is None else float(half_width[0])


@dataclass(frozen=True)
class Comparison:
    """Groups of runs, and runs that are in none.

    Attributes:
        groups: by environment and label.
        left_out: directories, and why each is not in a group.
    """

    groups: list[Group]
    left_out: list[tuple[Path, str]]


def compare(paths: Iterable[Path]) -> Comparison:
    """Put runs into groups by environment, algorithm and configuration, whatever the seed.

    Options that change nothing that is learned (directories, checkpoints, evaluations, trackers,
    threads, compilation) are not looked at. Of several runs with one configuration and one seed,
    which would have to be the same, the longest is taken, of equals the last one.
    """
    left_out: list[tuple[Path, str]] = []
    seeds: dict[tuple[str, str, str], dict[int, SeedCurve]] = {}
    for path in paths:
        try:
            env_id, algorithm, options, curve = _read(path)
        except RunDirectoryError as error:
            left_out.append((path, str(error)))
            continue
        if not len(curve.steps):
            left_out.append((path, f"{path} has no episode that ended"))
            continue
        group = seeds.setdefault((env_id, algorithm, json.dumps(options, sort_keys=True)), {})
        other = group.get(curve.seed)
        if other is not None and other.timesteps > curve.timesteps:
            curve, other = other, curve
        if other is not None:
            same = f"the configuration and the seed of {curve.path}"
            left_out.append((other.path, f"{other.path} has {same}, which is taken instead"))
        group[curve.seed] = curve
    return Comparison(_named(seeds), left_out)


def episodes_in(lines: Iterable[Mapping[str, Any]]) -> tuple[Array, Array]:
    """Every training episode of a run, from the lines of its `metrics.jsonl`.

    Returns:
        The step at which the iteration that it ended in was over, int64, (E,), and its undiscounted
        return, float64, (E,).
    """
    steps: list[int] = []
    returns: list[float] = []
    for line in lines:
        steps.extend([line["timesteps"]] * len(line["episode_returns"]))
        returns.extend(line["episode_returns"])
    return np.asarray(steps, np.int64), np.asarray(returns, np.float64)


def confidence_band(curves: Array) -> tuple[Array, Array | None]:
    """Mean over seeds and half the width of its 95 % confidence interval, by Student's t.

    Args:
        curves: float64, (S, G).

    Returns:
        float64, (G,) both; None in place of the second where S = 1.
    """
    mean = curves.mean(0)
    if len(curves) == 1:
        return mean, None
    standard_error = curves.std(0, ddof=1) / math.sqrt(len(curves))
    return mean, student_t(len(curves) - 1) * standard_error


def grid(groups: list[Group]) -> tuple[Array, float]:
    """Where curves of one environment are compared.

    Returns:
        Steps, float64, (G,), and the width to smooth over. There are no more points than iterations
        in which an episode ended: a finer curve would be a staircase.
    """
    seeds = [seed for group in groups for seed in group.seeds]
    end = max(seed.timesteps for seed in seeds)
    num_points = min(_MAX_POINTS, max(len(np.unique(seed.steps)) for seed in seeds))
    return np.linspace(0.0, end, num_points + 1)[1:], max(_SMOOTHED_SHARE * end, end / num_points)


def _read(path: Path) -> tuple[str, str, dict[str, Any], SeedCurve]:
    run = RunDirectory.open(path)
    content, lines = run.config, run.metrics()
    same = (set(content["may_change"]) - _COMPARED) | _NOT_COMPARED
    options = {k: v for k, v in content["config"].items() if k not in same}
    options["network"] = content["network"]
    steps, returns = episodes_in(lines)
    curve = SeedCurve(
        path=path,
        seed=content["config"]["seed"],
        steps=steps,
        returns=returns,
        timesteps=lines[-1]["timesteps"] if lines else 0,
    )
    return content["env_id"], content["algorithm"], options, curve


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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
