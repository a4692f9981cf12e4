"""Learning of a run, as its directory tells of it: episodes, evaluations and metrics over steps.

learning = read(Path("runs/mine"))
print(summary_text(learning))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.durations import duration
from hotloop.runs.charts import Series, finite
from hotloop.runs.comparison import EPISODES, NO_METRICS, info_names, spread
from hotloop.runs.directory import RunDirectory
from hotloop.runs.plots import sparkline
from hotloop.runs.summary import RunSummary, summary_of
from hotloop.types import Array

_NO_CURVES = NO_METRICS | {"episode_returns", "episode_lengths", "episode_info", "evaluation"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Evaluations:
    """Evaluations of a run.

    Attributes:
        mean: their mean undiscounted returns.
        spread: float64, (2, E), the lowest and the highest return of each; its mean where they are
            not known.
        lengths: mean steps of an episode.
        info: the environment's own numbers, means over the episodes, by name.
        num_episodes: of the last one; 0 where it is not known.
    """

    mean: Series
    spread: Array
    lengths: Series
    info: dict[str, Series]
    num_episodes: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Learning:
    """What a run has learned.

    Attributes:
        content: of `config.json`.
        summary: where it stands.
        elapsed_s: seconds in the training loop.
        returns: of training episodes.
        lengths: of training episodes, in steps.
        info: the environment's own numbers of training episodes, by name.
        evaluations: see there.
        metrics: of iterations, by name, and `steps_per_s`.
        problem: what of `metrics.jsonl` can't be read; what stands before it is shown. Empty: all
            was read.
    """

    content: dict[str, Any]
    summary: RunSummary
    elapsed_s: float
    returns: Series
    lengths: Series
    info: dict[str, Series]
    evaluations: Evaluations
    metrics: dict[str, Series]
    problem: str

    @property
    def end(self) -> float:
        """Steps that it has made."""
        return float(self.summary.timesteps)


def is_run(path: Path) -> bool:
    """Whether a directory is a run's, whole or not."""
    return (path / "config.json").exists() or (path / "metrics.jsonl").exists()


def read(path: Path) -> Learning:
    """Read a run, which may be going on, or be cut short.

    Raises:
        RunDirectoryError: its `config.json` is missing or damaged.
    """
    run = RunDirectory.open(path)
    lines, problem = run.sound_metrics()
    ends = [max(0.0, float(line["timesteps"])) for line in lines]

    def episodes(name: str, own: str | None = None) -> Series:
        try:
            return finite(own or name, *spread(lines, name, ends, own))
        except (TypeError, ValueError):  # no numbers
            return finite(own or name, (), ())

    elapsed_s = (lines[-1].get("elapsed_s") or 0.0) if lines else 0.0
    return Learning(
        content=run.config,
        summary=summary_of(run, lines),
        elapsed_s=elapsed_s,
        returns=episodes(EPISODES["return"]),
        lengths=episodes(EPISODES["length"]),
        info={name: episodes("episode_info", name) for name in info_names(lines)},
        evaluations=_evaluations(lines),
        metrics=_metrics(lines, ends),
        problem=problem,
    )


def summary_text(learning: Learning) -> str:
    """Sum up a run for a terminal, in a few lines."""
    about, evaluations = learning.summary, learning.evaluations
    lines = [
        f"{about.algorithm} on {about.env_id}, seed {about.seed}: {about.status}, "
        f"{about.timesteps:,} of {about.total_timesteps:,} steps in "
        f"{duration(learning.elapsed_s)}"
    ]
    if about.mean_return is not None:
        count = min(100, about.num_episodes)
        told = "training episode" if count == 1 else f"{count} training episodes"
        lines.append(f"  mean return of the last {told}  {number(about.mean_return)}")
    elif not len(learning.returns):
        lines.append("  no training episode has ended")
    if len(evaluations.mean):
        best = int(np.argmax(evaluations.mean.values))
        value, at = evaluations.mean.values[best], evaluations.mean.at[best]
        lines.append(f"  best mean return of an evaluation  {number(value)}, at {at:,.0f} steps")
    for name, series in learning.info.items():
        if len(series):
            recent = series.values[-100:]
            lines.append(f"  {name}, mean of the last {len(recent)}  {number(recent.mean())}")
    if curve := sparkline(learning.returns.at.astype(np.int64), learning.returns.values):
        lines.append(f"  return over steps  {curve}")
    if learning.problem:
        lines.append(f"  what follows is not shown: {learning.problem}")
    return "\n".join(lines)


def number(value: float) -> str:
    """A number that is read and not reckoned with: four digits, or whole."""
    text = f"{value:,.1f}" if 10 <= abs(value) < 1e9 else f"{value:.4g}"
    return text.replace("-", "−")


def _evaluations(lines: Sequence[Mapping[str, Any]]) -> Evaluations:
    told = [(line["timesteps"], line["evaluation"]) for line in lines if line.get("evaluation")]
    mean = [float(one["mean_return"]) for _, one in told]
    kept = [x for x, value in zip(told, mean, strict=True) if np.isfinite(value)]
    at = [max(0.0, float(steps)) for steps, _ in kept]
    names = dict.fromkeys(name for _, one in kept for name in _object(one.get("info")))
    return Evaluations(
        mean=finite("evaluation", at, [one["mean_return"] for _, one in kept]),
        spread=np.array([_ends(one) for _, one in kept]).reshape(-1, 2).T,
        lengths=finite("lengths", at, [_mean(one.get("lengths")) for _, one in kept]),
        info={
            name: finite(name, at, [_mean(_object(one.get("info")).get(name)) for _, one in kept])
            for name in names
        },
        num_episodes=len(_list(kept[-1][1].get("returns"))) if kept else 0,
    )


def _metrics(lines: Sequence[Mapping[str, Any]], ends: Sequence[float]) -> dict[str, Series]:
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for line, end in zip(lines, ends, strict=True):
        for name, value in line.items():
            if type(value) in (float, int) and name not in _NO_CURVES:
                at, values = columns.setdefault(name, ([], []))
                at.append(end)
                values.append(_float(value))
    found = {name: finite(name, at, values) for name, (at, values) in columns.items()}
    elapsed = np.diff([0.0, *(_float(line.get("elapsed_s")) for line in lines)])
    steps = np.diff([0.0, *ends])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        found["steps_per_s"] = finite(
            "steps_per_s", ends, steps / np.where(elapsed > 0, elapsed, 0)
        )
    return {name: series for name, series in found.items() if len(series)}


def _float(value: Any) -> float:
    """A number of a file; NaN where it is none, or none that a float can hold."""
    try:
        return float(value) if type(value) in (float, int) else float("nan")
    except OverflowError:
        return float("nan")


def _mean(values: Any) -> float:
    found = [one for value in _list(values) if np.isfinite(one := _float(value))]
    return sum(found) / len(found) if found else float("nan")


def _ends(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    found = [one for x in _list(evaluation.get("returns")) if np.isfinite(one := _float(x))]
    found = found or [float(evaluation["mean_return"])]
    return min(found), max(found)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
