"""Pictures of runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.errors import MissingExtraError
from hotloop.runs.comparison import NAMES, OVER, Group, Over, episodes_in, grid, over_seeds
from hotloop.runs.directory import RunDirectory
from hotloop.system.files import written_whole
from hotloop.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def episodes_of(run: RunDirectory) -> tuple[Array, Array]:
    """Every training episode of a run.

    Returns:
        The step at which it ended, int64, (E,), and its undiscounted return, float64, (E,); see
        `hotloop.runs.comparison.episodes_in`.
    """
    return episodes_in(run.metrics())


CURVE_FILE = "learning_curve.png"


def learning_curve(run: RunDirectory, *, window: int = 100) -> Path:
    """Draw `learning_curve.png`: each episode's return, the running mean of `window`, evaluations.

    Returns:
        The picture's path.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError, RunDirectoryError: the picture can't be written.
    """
    figure = new_figure(7, 4)
    lines = run.metrics()
    steps, returns = episodes_in(lines)
    evaluations = [
        (line["timesteps"], line["evaluation"]["mean_return"])
        for line in lines
        if line.get("evaluation")
    ]
    config = run.config
    axes = figure.subplots()
    if len(returns):
        axes.scatter(steps, returns, s=4, alpha=0.25, linewidths=0, label="training episode")
        mean = running_mean(returns, window)
        axes.plot(steps, mean, color="C1", label=f"mean of {window} of them")
    elif not evaluations:
        axes.text(0.5, 0.5, "no episode ended", ha="center", transform=axes.transAxes)
    if evaluations:
        axes.plot(*zip(*evaluations, strict=True), "C2o-", markersize=4, label="evaluation")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc="lower right")
    axes.set_xlabel("steps")
    axes.set_ylabel("undiscounted return")
    title = f"{config['algorithm']} on {config['env_id']}, seed {config['config']['seed']}"
    axes.set_title(title, parse_math=False)
    axes.grid(alpha=0.3)
    path = run.path / CURVE_FILE
    run.check_present()
    with written_whole(path) as aside:
        figure.savefig(aside, dpi=120)
    return path


def comparison_plot(
    groups: Sequence[Group], path: Path, *, metric: str = "return", over: Over = "steps"
) -> None:
    """Draw learning curves over seeds, a panel for each environment.

    Of each group the interquartile mean over its seeds and a 95 % bootstrap band, as far as all of
    them go, and each seed as a thin line.

    Args:
        groups: at least one.
        path: where to, by suffix: .png, .svg or .pdf.
        metric: what the groups' curves are of, for the axis.
        over: what they are drawn over, for the axis.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` can't be written.
    """
    panels: dict[str, list[Group]] = {}
    for group in groups:
        panels.setdefault(group.env_id, []).append(group)
    num_columns = min(len(panels), 3)
    num_rows = -(-len(panels) // num_columns)
    figure = new_figure(7 if len(panels) == 1 else 5.5 * num_columns, 4.5 * num_rows)
    all_axes = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for axes in all_axes[len(panels) :]:
        axes.remove()
    for axes, (env_id, members) in zip(all_axes, panels.items(), strict=False):
        points, width = grid(members)
        for k, group in enumerate(members):
            _draw_group(axes, group, points, width, color=f"C{k}")
        axes.set_title(env_id, parse_math=False)
        axes.set_xlabel(OVER[over])
        axes.set_ylabel(NAMES.get(metric, metric), parse_math=False)
        axes.grid(alpha=0.3)
        # Below: labels are long, and curves are what is to be seen.
        legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize="small")
        for text in legend.get_texts():
            text.set_parse_math(False)
    with written_whole(path) as aside:
        figure.savefig(aside, dpi=120)


def _draw_group(axes: Any, group: Group, points: Array, width: float, *, color: str) -> None:
    curves = np.stack([seed.smoothed(points, width) for seed in group.seeds])
    middle, band = over_seeds(curves)
    seeds = "1 seed, no band" if band is None else f"{len(curves)} seeds, 95 %"
    marker = "o" if len(points) == 1 else None  # of which there is no line
    label = fill(f"{group.label} ({seeds})", 60)
    axes.plot(points, middle, color=color, label=label, marker=marker)
    if band is not None:
        axes.plot(points, curves.T, color=color, alpha=0.35, linewidth=0.7)
        axes.fill_between(points, *band, color=color, alpha=0.2, linewidth=0)


def warm_up() -> None:
    """Load all that a drawing needs, fonts too, before there is something to draw."""
    figure = new_figure(1, 1)
    figure.subplots().set_title("0")
    figure.savefig(io.BytesIO())


def new_figure(width: float, height: float) -> Figure:
    """A figure without pyplot: no global state, no window, no backend to choose."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError(
            "drawing a curve needs matplotlib: pip install 'hotloop[train]'"
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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
