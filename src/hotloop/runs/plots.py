"""Pictures of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hotloop.errors import MissingExtraError
from hotloop.runs.directory import RunDirectory
from hotloop.types import Array


def episodes_of(run: RunDirectory) -> tuple[Array, Array]:
    """Every training episode of a run.

    Returns:
        The step at which the iteration that it ended in was over, int64, (E,), and its undiscounted
        return, float64, (E,).
    """
    steps: list[int] = []
    returns: list[float] = []
    for line in run.metrics():
        steps.extend([line["timesteps"]] * len(line["episode_returns"]))
        returns.extend(line["episode_returns"])
    return np.asarray(steps, np.int64), np.asarray(returns, np.float64)


def learning_curve(run: RunDirectory, *, window: int = 100) -> Path:
    """Draw `learning_curve.png`: each episode's return, and the running mean of `window` of them.

    Returns:
        The picture's path.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "drawing a curve needs matplotlib: pip install 'hotloop[train]'"
        ) from error
    steps, returns = episodes_of(run)
    config = run.config
    # A figure without pyplot: no global state, no window, no backend to choose.
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    if len(returns):
        axes.scatter(steps, returns, s=4, alpha=0.25, linewidths=0, label="episode")
        mean = running_mean(returns, window)
        axes.plot(steps, mean, color="C1", label=f"mean of {window} episodes")
        axes.legend(loc="lower right")
    else:
        axes.text(0.5, 0.5, "no episode ended", ha="center", transform=axes.transAxes)
    axes.set_xlabel("steps")
    axes.set_ylabel("undiscounted return")
    axes.set_title(f"{config['algorithm']} on {config['env_id']}, seed {config['config']['seed']}")
    axes.grid(alpha=0.3)
    path = run.path / "learning_curve.png"
    figure.savefig(path, dpi=120)
    return path


def running_mean(values: Array, window: int) -> Array:
    """Mean of the last `window` values, of fewer at the start: (E,), from (E,)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (sums[end] - sums[start]) / (end - start)


def sparkline(steps: Array, returns: Array, *, width: int = 50) -> str:
    """A learning curve as one line of text, for terminals.

    Args:
        steps: int64, (E,), when each episode ended.
        returns: float64, (E,).
        width: characters; each is the mean of the episodes that ended in its share of the steps.

    Returns:
        `"22 ▁▂▅▇█ 500"`: the first and the last mean around the curve; empty without episodes.
    """
    if not len(returns):
        return ""
    column = np.minimum(steps * width // (steps.max() + 1), width - 1)
    counts = np.bincount(column, minlength=width)
    sums = np.bincount(column, weights=returns, minlength=width)
    means = sums[counts > 0] / counts[counts > 0]
    span = means.max() - means.min()
    levels = np.round(7 * (means - means.min()) / span if span else np.zeros_like(means))
    bars = "".join("▁▂▃▄▅▆▇█"[int(level)] for level in levels)
    first, last = (f"{mean:.0f}" if abs(mean) >= 100 else f"{mean:.3g}" for mean in means[[0, -1]])
    return f"{first} {bars} {last}"
