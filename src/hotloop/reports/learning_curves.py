"""Learning curves of a run directory: episodes, evaluations and metrics over steps.

curves = read(Path("runs/mine"))
print(summary_text(curves))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hotloop.base import rounding
from hotloop.base.durations import duration
from hotloop.base.sparkline import sparkline
from hotloop.base.svg_charts import ChartSeries, finite_series
from hotloop.reports.run_groups import NON_METRICS
from hotloop.runs.directory import RunDirectory
from hotloop.runs.episodes import EPISODE_LISTS, info_names, spread_episodes
from hotloop.runs.summary import RunSummary, summarize_run
from hotloop.types import Array

_NO_CURVES = NON_METRICS | {"episode_returns", "episode_lengths", "episode_info", "evaluation"}


@dataclass(frozen=True, eq=False, kw_only=True)
class EvaluationCurves:
    """Evaluations of a run.

    Attributes:
        mean: mean undiscounted returns.
        bounds: lowest and highest return of each evaluation, or its mean if they are unknown,
            float64, (2, E).
        lengths: mean episode lengths, in steps.
        info: means of the environment's own metrics, by name.
        num_episodes: number of episodes of the last evaluation, 0 if unknown.
    """

    mean: ChartSeries
    bounds: Array
    lengths: ChartSeries
    info: dict[str, ChartSeries]
    num_episodes: int


@dataclass(frozen=True, eq=False, kw_only=True)
class LearningCurves:
    """Learning curves of a run.

    Attributes:
        content: content of `config.json`.
        summary: summary of the run.
        elapsed_s: seconds in the training loop.
        returns: undiscounted returns of training episodes.
        lengths: lengths of training episodes, in steps.
        info: the environment's own metrics of training episodes, by name.
        evaluations: the evaluations.
        metrics: metrics of iterations by name, including `steps_per_s`.
        problem: error message if a line of `metrics.jsonl` is damaged, "" otherwise. The curves end
            before that line.
    """

    content: dict[str, Any]
    summary: RunSummary
    elapsed_s: float
    returns: ChartSeries
    lengths: ChartSeries
    info: dict[str, ChartSeries]
    evaluations: EvaluationCurves
    metrics: dict[str, ChartSeries]
    problem: str

    @property
    def end(self) -> float:
        """Steps of the run so far."""
        return float(self.summary.timesteps)


def is_run(path: Path) -> bool:
    """Return whether a path is a run directory, intact or damaged."""
    return (path / "config.json").exists() or (path / "metrics.jsonl").exists()


def read(path: Path) -> LearningCurves:
    """Return the learning curves of a run, which may be in progress or incomplete.

    Raises:
        RunDirectoryError: `config.json` is missing or damaged.
    """
    run = RunDirectory.open(path)
    lines, problem = run.intact_metrics()
    ends = [max(0.0, float(line["timesteps"])) for line in lines]

    def episodes(name: str, key: str | None = None) -> ChartSeries:
        try:
            return finite_series(key or name, *spread_episodes(lines, name, ends, key))
        except (TypeError, ValueError, OverflowError):  # the values are no numbers of a run
            return finite_series(key or name, (), ())

    elapsed_s = (lines[-1].get("elapsed_s") or 0.0) if lines else 0.0
    return LearningCurves(
        content=run.config,
        summary=summarize_run(run, lines),
        elapsed_s=elapsed_s,
        returns=episodes(EPISODE_LISTS["return"]),
        lengths=episodes(EPISODE_LISTS["length"]),
        info={name: episodes("episode_info", name) for name in info_names(lines)},
        evaluations=_evaluations(lines),
        metrics=_metrics(lines, ends),
        problem=problem,
    )


def summary_text(curves: LearningCurves) -> str:
    """Return a summary of a run for terminals, in a few lines."""
    summary, evaluations = curves.summary, curves.evaluations
    lines = [
        f"{summary.algorithm} on {summary.env_id}, seed {summary.seed}: {summary.status}, "
        f"{summary.timesteps:,} of {summary.total_timesteps:,} steps in "
        f"{duration(curves.elapsed_s)}"
    ]
    if summary.mean_return is not None:
        count = min(100, summary.num_episodes)
        episodes = "training episode" if count == 1 else f"{count} training episodes"
        mean = format_number(summary.mean_return, summary.std_return)
        lines.append(f"  mean return of the last {episodes}  {mean}")
    elif not len(curves.returns):
        lines.append("  no finished training episode")
    if len(evaluations.mean):
        best = int(np.argmax(evaluations.mean.values))
        value, steps = evaluations.mean.values[best], evaluations.mean.steps[best]
        text = format_number(value, summary.best_evaluation_std)
        lines.append(f"  best mean return of an evaluation  {text}, at {steps:,.0f} steps")
    for name, series in curves.info.items():
        if len(series):
            recent = series.values[-100:]
            mean = format_number(recent.mean(), recent.std())
            lines.append(f"  {name}, mean of the last {len(recent)}  {mean}")
    if curve := sparkline(curves.returns.steps.astype(np.int64), curves.returns.values):
        lines.append(f"  return over steps  {curve}")
    if curves.problem:
        lines.append(f"  later lines are not shown: {curves.problem}")
    return "\n".join(lines)


def format_number(value: float, spread: float | None = None) -> str:
    """Return the text of `hotloop.base.rounding.format_number` with a typographic minus."""
    return rounding.format_number(value, spread, least=1 if spread else 0).replace("-", "−")


def _evaluations(lines: Sequence[Mapping[str, Any]]) -> EvaluationCurves:
    entries = [(line["timesteps"], line["evaluation"]) for line in lines if line.get("evaluation")]
    mean = [float(evaluation["mean_return"]) for _, evaluation in entries]
    finite = [x for x, value in zip(entries, mean, strict=True) if np.isfinite(value)]
    steps = [max(0.0, float(timesteps)) for timesteps, _ in finite]
    names = dict.fromkeys(name for _, x in finite for name in _object(x.get("info")))
    return EvaluationCurves(
        mean=finite_series("evaluation", steps, [x["mean_return"] for _, x in finite]),
        bounds=np.array([_return_bounds(x) for _, x in finite]).reshape(-1, 2).T,
        lengths=finite_series("lengths", steps, [_mean(x.get("lengths")) for _, x in finite]),
        info={
            name: finite_series(
                name, steps, [_mean(_object(x.get("info")).get(name)) for _, x in finite]
            )
            for name in names
        },
        num_episodes=len(_list(finite[-1][1].get("returns"))) if finite else 0,
    )


def _metrics(lines: Sequence[Mapping[str, Any]], ends: Sequence[float]) -> dict[str, ChartSeries]:
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for line, end in zip(lines, ends, strict=True):
        for name, value in line.items():
            if type(value) in (float, int) and name not in _NO_CURVES:
                line_ends, values = columns.setdefault(name, ([], []))
                line_ends.append(end)
                values.append(_float(value))
    metrics = {
        name: finite_series(name, steps, values) for name, (steps, values) in columns.items()
    }
    elapsed = np.diff([0.0, *(_float(line.get("elapsed_s")) for line in lines)])
    steps = np.diff([0.0, *ends])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        metrics["steps_per_s"] = finite_series(
            "steps_per_s", ends, steps / np.where(elapsed > 0, elapsed, 0)
        )
    return {name: series for name, series in metrics.items() if len(series)}


def _float(value: Any) -> float:
    """Return a JSON value as a float, or NaN if it is not a number or too large."""
    try:
        return float(value) if type(value) in (float, int) else float("nan")
    except OverflowError:
        return float("nan")


def _mean(values: Any) -> float:
    finite = [x for value in _list(values) if np.isfinite(x := _float(value))]
    return sum(finite) / len(finite) if finite else float("nan")


def _return_bounds(evaluation: Mapping[str, Any]) -> tuple[float, float]:
    returns = [x for value in _list(evaluation.get("returns")) if np.isfinite(x := _float(value))]
    returns = returns or [float(evaluation["mean_return"])]
    return min(returns), max(returns)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
