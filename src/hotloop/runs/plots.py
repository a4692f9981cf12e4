"""Matplotlib plots and text plots of runs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np

from hotloop.base.files import atomic_write
from hotloop.base.importing import import_matplotlib
from hotloop.base.rounding import format_number
from hotloop.errors import requires_extra
from hotloop.runs.directory import RunDirectory
from hotloop.runs.run_groups import (
    METRIC_LABELS,
    X_AXIS_LABELS,
    RunGroup,
    XAxis,
    aggregate_seeds,
    comparison_grid,
    episodes_from_metrics,
)
from hotloop.types import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEGEND_LINE = 0.2  # inches
_MAX_LABEL = 42  # characters of a vertical label in one line


def training_episodes(run: RunDirectory) -> tuple[Array, Array]:
    """Return the training episodes of a run.

    Returns:
        Step of the end of each episode, int64, (E,), and its undiscounted return, float64, (E,).
        See `hotloop.runs.run_groups.episodes_from_metrics`.
    """
    return episodes_from_metrics(run.metrics())


CURVE_FILE = "learning_curve.png"


def learning_curve(run: RunDirectory, *, window: int = 100) -> Path:
    """Draw `learning_curve.png`: returns of episodes, their mean over `window`, and evaluations.

    Returns:
        The path of the image.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError, RunDirectoryError: the image cannot be written.
    """
    figure = new_figure(7, 4)
    lines = run.metrics()
    steps, returns = episodes_from_metrics(lines)
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
        axes.plot(steps, mean, color="C1", label=f"mean of {window} episodes")
    elif not evaluations:
        axes.text(0.5, 0.5, "no finished episode", ha="center", transform=axes.transAxes)
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
    with atomic_write(path) as temp_path:
        figure.savefig(temp_path, dpi=120)
    return path


def comparison_plot(
    groups: Sequence[RunGroup], path: Path, *, metric: str = "return", x_axis: XAxis = "steps"
) -> None:
    """Draw learning curves over seeds, with a panel for each environment.

    A group has its interquartile mean over seeds, a 95 % bootstrap band up to the end of its
    shortest run, and a thin line for each seed.

    Args:
        groups: one or more groups of runs.
        path: the image, with the suffix .png, .svg or .pdf.
        metric: metric of the curves, for the label of the vertical axis.
        x_axis: quantity on the horizontal axis, for its label.

    Raises:
        MissingExtraError: matplotlib is not installed.
        OutputError: `path` cannot be written.
    """
    panels: dict[str, list[RunGroup]] = {}
    for group in groups:
        panels.setdefault(group.env_id, []).append(group)
    num_columns = min(len(panels), 3)
    num_rows = -(-len(panels) // num_columns)
    # Legends are below the curves, and get a place of their own.
    num_lines = max(
        sum(_legend_label(group).count("\n") + 1 for group in members)
        for members in panels.values()
    )
    height = (4.2 + _LEGEND_LINE * num_lines) * num_rows
    figure = new_figure(7 if len(panels) == 1 else 5.5 * num_columns, height)
    all_axes = figure.subplots(num_rows, num_columns, squeeze=False).flat
    for axes in all_axes[len(panels) :]:
        axes.remove()
    for axes, (env_id, members) in zip(all_axes, panels.items(), strict=False):
        points, width = comparison_grid(members)
        for k, group in enumerate(members):
            _draw_group(axes, group, points, width, color=f"C{k}")
        axes.set_title(env_id, parse_math=False)
        axes.set_xlabel(X_AXIS_LABELS[x_axis])
        y_label = fill(METRIC_LABELS.get(metric, metric), _MAX_LABEL)
        axes.set_ylabel(y_label, parse_math=False)
        axes.grid(alpha=0.3)
        legend = axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), fontsize="small")
        for text in legend.get_texts():
            text.set_parse_math(False)
    with atomic_write(path) as temp_path:
        figure.savefig(temp_path, dpi=120, bbox_inches="tight")


def _legend_label(group: RunGroup) -> str:
    count = len(group.seeds)
    seeds = "1 seed, no band" if count == 1 else f"{count} seeds, 95 %"
    return fill(f"{group.label} ({seeds})", 60)


def _draw_group(axes: Any, group: RunGroup, points: Array, width: float, *, color: str) -> None:
    curves = np.stack([seed.smoothed(points, width) for seed in group.seeds])
    middle, band = aggregate_seeds(curves)
    marker = "o" if len(points) == 1 else None  # a single point has no line
    axes.plot(points, middle, color=color, label=_legend_label(group), marker=marker)
    if band is not None:
        axes.plot(points, curves.T, color=color, alpha=0.35, linewidth=0.7)
        axes.fill_between(points, *band, color=color, alpha=0.2, linewidth=0)


def warm_up() -> None:
    """Load matplotlib and its fonts, so that later drawings are fast."""
    figure = new_figure(1, 1)
    figure.subplots().set_title("0")
    figure.savefig(io.BytesIO())


def new_figure(width: float, height: float) -> Figure:
    """Return a figure without pyplot, which has global state, windows and backends."""
    with requires_extra("drawing a curve needs matplotlib", "train"):
        import_matplotlib()
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def running_mean(values: Array, window: int) -> Array:
    """Return the mean of the last `window` values (fewer at the start), (E,), for (E,)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    end = np.arange(1, len(values) + 1)
    start = np.maximum(end - window, 0)
    return (sums[end] - sums[start]) / (end - start)


def sparkline(steps: Array, returns: Array, *, width: int = 50) -> str:
    """Return a learning curve as one line of text, such as `22 ▁▂▅▇█ 500`.

    Args:
        steps: step of the end of each episode, int64, (E,).
        returns: return of each episode, float64, (E,).
        width: number of characters. Each shows the mean of the episodes in its share of the steps.

    Returns:
        The first mean, the curve and the last mean, or "" without episodes.
    """
    if not len(returns):
        return ""
    column = np.minimum(steps * width // (steps.max() + 1), width - 1)
    counts = np.bincount(column, minlength=width)
    with np.errstate(all="ignore"):  # returns up to the largest float, and infinite ones
        sums = np.bincount(column, weights=returns, minlength=width)
        means = sums[counts > 0] / counts[counts > 0]
        span = means.max() - means.min()
        levels = np.round(7 * (means - means.min()) / span if span else np.zeros_like(means))
        levels = np.nan_to_num(levels, posinf=7).clip(0, 7)
    bars = "".join("▁▂▃▄▅▆▇█"[int(level)] for level in levels)
    first, last = (format_number(mean, span, least=0) for mean in means[[0, -1]].tolist())
    return f"{first} {bars} {last}"
