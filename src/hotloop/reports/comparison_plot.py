"""Learning curves over seeds, drawn with matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np

from hotloop.base.figures import new_figure, save_figure
from hotloop.reports.run_groups import (
    METRIC_LABELS,
    X_AXIS_LABELS,
    RunGroup,
    XAxis,
    aggregate_seeds,
    comparison_grid,
)
from hotloop.types import Array

_LEGEND_LINE = 0.2  # inches
_MAX_LABEL = 42  # characters of a vertical label in one line


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
    # Legends get separate space below the curves.
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
    save_figure(figure, path, bbox_inches="tight")


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
